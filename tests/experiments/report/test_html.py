"""The page and the figure: they hold the numbers, escape what they are given, and need nothing else."""

import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from semaopt.experiments.report import figures, html, markdown, theorem_figure
from semaopt.experiments.results.export import to_json
from semaopt.experiments.results.statistics import mean_and_std, number_text
from semaopt.experiments.training.run import Result
from tests.experiments.tiny import AUC, a_spec, go

HOSTILE = '<script>alert("&")</script>'
VOID = {"meta"}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return go(tmp_path_factory.mktemp("report"))


def render(results):
    panels = {finding.name: figures.panels(finding) for finding in results.findings}
    return html.page(
        results, panels, {c.name: theorem_figure.panel(c, theorem_figure.element(c)) for c in results.checks}
    )


class Balanced(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.ids, self.seen = [], [], set()

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_and_alone(results):
    page = render(results)
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    assert page.count("<script") == 1
    assert "link" not in parser.seen
    assert len(parser.ids) == len(set(parser.ids))
    outside = re.findall(r'(?:src|href)="([^"#][^"]*)"|url\((?!#)([^)]*)\)', page)
    assert outside == []
    assert "default-src 'none'" in page


def test_the_page_has_the_numbers(results):
    page, (finding,) = render(results), results.findings
    for final in finding.finals:
        mean, std = mean_and_std(final.last("train_loss"))
        assert f"{number_text(mean, 3)} ± {number_text(std)}" in page
        mean, std = mean_and_std(final.last("test_accuracy"))
        assert f"{100 * mean:.2f} ± {100 * std:.2f}" in page
        for loss, accuracy in zip(final.last("train_loss"), final.last("test_accuracy"), strict=True):
            assert f"<td>{number_text(loss, 3)}</td>" in page
            assert f"<td>{100 * accuracy:.2f}</td>" in page
        for trial in finding.tuning.trials[final.method.name].values():
            assert f"<td>{number_text(trial.mean, 4)}</td>" in page
    assert page.count('<tr class="chosen">') == 3
    assert results.session.command in page
    assert results.environment["torch"] in page
    for sentence in finding.headline.split(". "):
        assert sentence.replace("'", "&#x27;") in page
    assert finding.evidence in page


def changed(finding, **changes):
    return replace(finding, spec=finding.spec.model_copy(update=changes))


def test_hostile_strings_are_escaped(results):
    (finding,) = results.findings
    finals = [
        replace(f, method=f.method.model_copy(update={"label": f"{HOSTILE}{k}"})) for k, f in enumerate(finding.finals)
    ]
    claim = finding.spec.claim.model_copy(update={"text": HOSTILE})
    worst = replace(changed(finding, title=HOSTILE, about=HOSTILE, claim=claim), finals=tuple(finals))
    session = replace(results.session, command=HOSTILE, damaged=(HOSTILE,))
    everything = replace(results, scale=HOSTILE, findings=(worst,), environment={HOSTILE: HOSTILE}, session=session)
    page = render(everything)
    assert page.count("<script") == 1  # our own
    assert "&lt;script&gt;alert(&quot;&amp;&quot;)&lt;/script&gt;" in page
    Balanced().feed(page)


def test_dollars_are_no_mathematics(results):
    (finding,) = results.findings
    text = r"cost $\nosuch$ of \$5"
    methods = [method.model_copy(update={"label": text}) for method in finding.spec.methods]
    finals = tuple(replace(final, method=method) for final, method in zip(finding.finals, methods, strict=True))
    spec = finding.spec.model_copy(update={"title": text, "methods": methods})
    dollars = replace(finding, spec=spec, finals=finals)
    assert text in figures.whole(dollars).svg
    assert text in render(replace(results, findings=(dollars,)))


def test_the_tables_in_markdown_say_where_it_was_run(results):
    (finding,) = results.findings
    known = {"torch": "2.13", "python": "3.12", "platform": "Linux-6.1-x86_64-with-glibc2.36", "cores": "2"}
    old = {"torch": "2.13", "machine": "x86_64", "step": "compiled"}
    for environment, said in ((known, "torch 2.13, python 3.12, Linux, 2 cores."), (old, "torch 2.13.")):
        changed = replace(finding, origin=replace(finding.origin, environment=environment))
        assert f"\n\n{said}\n\n" in markdown.text(replace(results, findings=(changed,)))


def test_extensions_and_remaining_edges_are_told(results):
    (finding,) = results.findings
    falling = {"lr": finding.tuning.grid["lr"][::-1]}
    for grid in (finding.tuning.grid, falling):
        tuning = replace(finding.tuning, grid=grid, on_edge={("lr", -1): ("adam", "both")})
        told = replace(results, findings=(replace(finding, tuning=tuning),))
        said = "The best lr of folklore Adam and increasing β + decreasing lr still lies on the edge, 0.0333."
        assert said in render(told)
        assert said in markdown.text(told)
        assert to_json(told)["experiments"]["tiny"]["tuning"]["still_on_edge"][0]["value"] == 0.0333333


def test_what_the_growth_of_the_grid_changed_is_shown(results):
    (finding,) = results.findings
    before = [finding.tuning.best_before(method.name) for method in finding.spec.methods]
    after = [finding.tuning.best(method.name) for method in finding.spec.methods]
    assert before != after
    head = "| method | validation loss, first grid | lr, first grid | validation loss, grown grid | lr, grown grid |\n"
    written = markdown.text(results).partition(head)[2].splitlines()[1:4]
    numbers = [
        [number_text(t.mean, 4), f"{t.values['lr']:.3g}", number_text(u.mean, 4), f"{u.values['lr']:.3g}"]
        for t, u in zip(before, after, strict=True)
    ]
    assert [line.strip("| ").split(" | ")[1:] for line in written] == numbers
    assert all("".join(f"<td>{cell}</td>" for cell in row) in render(results) for row in numbers)
    unknown = {
        name: {key: replace(trial, round=None) for key, trial in trials.items()}
        for name, trials in finding.tuning.trials.items()
    }
    for change in ({"extensions": []}, {"trials": unknown}):
        still = replace(results, findings=(replace(finding, tuning=replace(finding.tuning, **change)),))
        assert "grown grid" not in markdown.text(still) + render(still)


def test_successive_halving_is_told(results):
    (finding,) = results.findings
    assert "halving" not in render(results) + markdown.text(results)
    cases = (
        (16, 3, "3, 12", "epochs 3, 12"),
        (16, None, "1, 4", "epochs 1, 4"),
        (16, 5, "5", "epoch 5"),
        (1, None, None, None),
    )
    for epochs, first, said, written in cases:
        options = finding.spec.tuning.model_copy(update={"pruner": "halving", "first_look": first})
        spec = finding.spec.model_copy(update={"tuning": options, "epochs": epochs})
        these = replace(results, findings=(replace(finding, spec=spec),))
        page, tables = render(these), markdown.text(these)
        assert ("halving" in page) == ("halving" in tables) == (said is not None)
        assert said is None or f"By successive halving: from epoch {said} a trial goes on" in page
        assert said is None or f"method, by successive halving after {written}, 2 tuning seeds." in tables


def test_epochs_are_whole_and_shares_end_at_one_hundred(results):
    (finding,) = results.findings
    for curve in ([0.99, 0.999, 1.0], [1.0, 1.0, 1.0]):
        near = Result({**finding.finals[0].runs[0].curves, "test_accuracy": curve}, 1.0)
        finals = tuple(replace(final, runs=(near,) * 3) for final in finding.finals)
        axes = Figure().subplots()
        figures.draw(axes, replace(finding, finals=finals), "test_accuracy")
        low, high = axes.get_ylim()
        shown = [tick for tick in axes.get_yticks() if low <= tick <= high]
        assert high > 100.0 == pytest.approx(max(shown))
        assert all(tick == round(tick) for tick in axes.get_xticks())


def test_what_diverged_is_called_so(results):
    (finding,) = results.findings
    broken = Result(dict.fromkeys(finding.spec.metrics, [math.nan] * 3), 1.0, "diverged")
    finals = (replace(finding.finals[0], runs=(broken,) * 3), *finding.finals[1:])
    page = render(replace(results, findings=(replace(finding, finals=finals),)))
    assert "diverged" in page
    assert "not comparable" in page
    assert "nan" not in re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL)


def test_six_methods_of_the_auc_have_six_colours(results, tmp_path):
    spec = a_spec(**AUC)
    twice = [
        m.model_copy(update={"name": f"{m.name}{k}", "label": f"{m.label} {k}"}) for k in range(3) for m in spec.methods
    ]
    claim = spec.claim.model_copy(update={"order": ["sgda0", "pdada0"]})
    tuning = spec.tuning.model_copy(update={"budget": 1})
    seeds = spec.seeds.model_copy(update={"final": [0, 1]})
    found = go(tmp_path, spec.model_copy(update={"methods": twice, "claim": claim, "tuning": tuning, "seeds": seeds}))
    page = render(found)
    Balanced().feed(page)
    assert {f"var(--method-{k})" for k in range(6)} <= set(re.findall(r"var\(--method-\d\)", page))
    assert "training AUC, %" in page
    assert figures.whole(found.findings[0]).png.startswith(b"\x89PNG")


def test_the_svg_is_xml_with_axes_units_and_legend(results):
    (finding,) = results.findings
    drawing = figures.whole(finding)
    texts = {"".join(element.itertext()).strip() for element in ElementTree.fromstring(drawing.svg).iter()}
    labels = {final.method.label for final in finding.finals}
    assert {*labels, "training loss (cross-entropy, nats)", "test accuracy (%)", "epoch (dotted: rates decay)"} <= texts
    assert any("paper's order" in text for text in texts)


def test_the_figure_is_the_same_each_time(results):
    (finding,) = results.findings
    assert figures.whole(finding) == figures.whole(finding)
