"""The HTML and Markdown reports: they contain the numbers, escape all text and load nothing."""

import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from semaopt.experiments.report import html, markdown, view, wording
from semaopt.experiments.results import claims
from semaopt.experiments.results.export import to_json
from semaopt.experiments.results.model import StudyResult
from semaopt.experiments.results.statistics import number_text, spread_text
from semaopt.experiments.training.run import Result
from tests.experiments.tiny import go

HOSTILE = '<script>alert("&")</script>'
VOID = {"meta"}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return go(tmp_path_factory.mktemp("report"))


class Balanced(HTMLParser):
    """Asserts that every tag is closed; collects ids and tag names."""

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


def with_spec(finding, **changes):
    return replace(finding, spec=finding.spec.model_copy(update=changes))


def with_study(finding, *, finals=None, tuning=None):
    """The finding with another tuning or other final runs in its only study."""
    (study,) = finding.studies
    return replace(finding, studies=(StudyResult(finals or study.finals, tuning or study.tuning),))


def test_the_page_is_complete_and_self_contained(results):
    page = html.render(results)
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    assert page.count("<script") == 1
    assert "link" not in parser.seen
    assert len(parser.ids) == len(set(parser.ids))
    outside = re.findall(r'(?:src|href)="([^"#][^"]*)"|url\((?!#)([^)]*)\)', page)
    assert outside == []
    assert "default-src 'none'" in page


def test_the_page_contains_the_numbers(results):
    page, (finding,) = html.render(results), results.findings
    for final in finding.finals:
        name = final.method.name
        assert f"<td>{spread_text(finding.ends(name, 'train_loss'), is_ratio=True)}</td>" in page
        assert f"<td>{spread_text(finding.ends(name, 'test_accuracy'), percent=True)}</td>" in page
        for loss, accuracy in zip(final.last("train_loss"), final.last("test_accuracy"), strict=True):
            assert f"<td>{number_text(loss, 3)}</td>" in page
            assert f"<td>{100 * accuracy:.2f}</td>" in page
        for trial in finding.tuning.trials[name].values():
            assert f"<td>{number_text(trial.mean, 4)}</td>" in page
    assert page.count('<tr class="chosen">') == 3
    assert results.session.command in page
    assert results.environment["torch"] in page


def test_the_verdict_comes_first_then_differences_curves_protocol_runs(results):
    page, (finding,) = html.render(results), results.findings
    verdict = claims.verdict(finding)
    line = wording.evidence_line(finding)
    assert f'<span class="outcome {verdict.outcome}">{verdict.outcome}</span> {line}' in page
    for row in verdict.rows:
        assert f"<td>{row.outcome}</td><td>{row.comparison.text}</td><td>{row.comparison.probability:.2f}</td>" in page
    parts = ['<h2 id="tiny">', line, 'id="tiny-differences-', 'id="tiny-train_loss-', "<h3>Protocol", "<h3>All runs"]
    places = [page.rindex(part) if part == line else page.index(part) for part in parts]
    assert page.index(line) < places[0]  # and in the summary above
    assert sorted(places[2:]) == places[2:]
    assert not re.search(r"\d+ of \d+ (?:comparisons|claims)", page)


def test_hostile_text_is_escaped(results):
    (finding,) = results.findings
    finals = [
        replace(f, method=f.method.model_copy(update={"label": f"{HOSTILE}{k}"})) for k, f in enumerate(finding.finals)
    ]
    claim = finding.spec.claim.model_copy(update={"text": HOSTILE})
    worst = with_study(with_spec(finding, title=HOSTILE, about=HOSTILE, claim=claim), finals=tuple(finals))
    session = replace(results.session, command=HOSTILE, damaged=(HOSTILE,))
    everything = replace(
        results, scale=HOSTILE, findings=(worst,), environment={HOSTILE: HOSTILE}, session=session, notes=(HOSTILE,)
    )
    page = html.render(everything)
    assert page.count("<script") == 1  # the script that sorts tables
    assert "&lt;script&gt;alert(&#34;&amp;&#34;)&lt;/script&gt;" in page
    assert "&amp;lt;" not in page  # escaped once
    Balanced().feed(page)
    text = markdown.render(everything)
    assert "<script" not in text
    assert '&lt;script&gt;alert("&amp;")&lt;/script&gt;' in text


def test_markdown_tables_survive_bars(results):
    (finding,) = results.findings
    finals = tuple(replace(f, method=f.method.model_copy(update={"label": "a|b"})) for f in finding.finals)
    text = markdown.render(replace(results, findings=(with_study(finding, finals=finals),)))
    rows = [line for line in text.splitlines() if line.startswith("| a\\|b |")]
    assert rows
    heads = [line for line in text.splitlines() if line.startswith("| method | training loss")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in (heads[0], rows[0])} == {5}


def test_dollars_are_not_mathematics(results):
    (finding,) = results.findings
    text = r"cost $\nosuch$ of \$5"
    methods = [method.model_copy(update={"label": text}) for method in finding.spec.methods]
    finals = tuple(replace(final, method=method) for final, method in zip(finding.finals, methods, strict=True))
    dollars = with_study(with_spec(finding, title=text, methods=methods), finals=finals)
    assert text in html.render(replace(results, findings=(dollars,)))


def test_markdown_describes_the_environment(results):
    (finding,) = results.findings
    known = {"torch": "2.13", "python": "3.12", "platform": "Linux-6.1-x86_64-with-glibc2.36", "cores": "2"}
    other = {"torch": "2.13", "machine": "x86_64", "step": "compiled"}
    for environment, text in ((known, "torch 2.13, python 3.12, Linux, 2 cores."), (other, "torch 2.13.")):
        (study,) = finding.studies
        changed = replace(finding, studies=(replace(study, origin=replace(study.origin, environment=environment)),))
        assert f" {text}\n\n" in markdown.render(replace(results, findings=(changed,)))


def test_best_values_on_an_edge_are_reported(results):
    (finding,) = results.findings
    tuning = replace(finding.tuning, on_edge={("lr", -1): ("adam", "both")})
    changed = replace(results, findings=(with_study(finding, tuning=tuning),))
    edge = tuning.edge("lr", -1)
    names = "folklore Adam and increasing β + decreasing lr"
    text = f"The search space ends at the best lr of {names} ({edge:.3g})."
    assert text in html.render(changed)
    assert text in markdown.render(changed)
    (written,) = to_json(changed)["experiments"]["tiny"]["tuning"]
    assert written["still_on_edge"][0]["value"] == edge
    ranges = finding.spec.tuning.model_copy(update={"ranges": {"lr": [1e-3, edge]}})
    spec = finding.spec.model_copy(update={"tuning": ranges})
    text = wording.on_edge(replace(finding, spec=spec), tuning, "lr", -1, ("adam",))
    assert text == f"The best lr of folklore Adam is in the highest tenth of its range (end: {edge:.3g})."


def test_the_second_ranking_is_reported(results):
    (finding,) = results.findings
    assert "ranked again" not in wording.tuning(finding, ())
    seeds = finding.spec.seeds.model_copy(update={"rerank": [200, 201]})
    text = wording.tuning(replace(finding, spec=finding.spec.model_copy(update={"seeds": seeds})), ())
    assert "the best quarter of the trials is ranked again with 2 more seeds; the selected trial is one" in text


def test_the_effect_of_extending_the_grid_is_shown(results):
    (finding,) = results.findings
    before = [finding.tuning.best_before(method.name) for method in finding.spec.methods]
    after = [finding.tuning.best(method.name) for method in finding.spec.methods]
    assert before != after
    columns = [f"{name}, {when}" for when in ("first grid", "extended grid") for name in ("validation loss", "lr")]
    head = f"| method | {' | '.join(columns)} |\n"
    rows = markdown.render(results).partition(head)[2].splitlines()[1:4]
    numbers = [
        [number_text(t.mean, 4), f"{t.values['lr']:.3g}", number_text(u.mean, 4), f"{u.values['lr']:.3g}"]
        for t, u in zip(before, after, strict=True)
    ]
    assert [line.strip("| ").split(" | ")[1:] for line in rows] == numbers
    assert all("".join(f"<td>{cell}</td>" for cell in row) in html.render(results) for row in numbers)
    assert "The grid was extended to lr 0.0333 for all methods: the best lr of " in markdown.render(results)
    same = replace(results, findings=(with_study(finding, tuning=replace(finding.tuning, extensions=[])),))
    assert "extended grid" not in markdown.render(same) + html.render(same)


def test_successive_halving_is_described(results, monkeypatch):
    assert "halving" not in html.render(results) + markdown.render(results)
    for epochs, text in (([3, 12], "epochs 3 and 12"), ([5], "epoch 5")):
        monkeypatch.setattr(view, "rungs", lambda _, epochs=epochs: epochs)
        expected = f"Successive halving: at {text}, only the best quarter of a method&#39;s trials continue."
        assert expected in html.render(results)
        assert expected.replace("&#39;", "'") in markdown.render(results)


def test_diverged_runs_are_named(results):
    (finding,) = results.findings
    broken = Result(dict.fromkeys(finding.spec.metrics, [math.nan] * 3), 1.0, "diverged")
    finals = (replace(finding.finals[0], runs=(broken,) * 3), *finding.finals[1:])
    page = html.render(replace(results, findings=(with_study(finding, finals=finals),)))
    assert "<td>diverged</td>" in page
    assert "geometric mean ×/÷ geometric standard deviation of losses; 3 runs." in page
    assert "A line ends where a run diverged." in page
    assert "nan" not in re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL)


def test_several_studies_are_shown_one_by_one(results):
    (finding,) = results.findings
    (study,) = finding.studies
    two = replace(with_spec(finding, studies=2), studies=(study, replace(study, number=1)))
    page, text = (render(replace(results, findings=(two,))) for render in (html.render, markdown.render))
    assert "Study 2, folklore Adam: 9 trials" in page
    assert "| method | study | lr |" in text
    for shown in (page, text):
        assert "2 studies with 3 seeds each" in shown
        assert wording.STUDIES in shown
        assert wording.ONE_STUDY not in shown
    assert "over 2 studies" in page


def test_a_claim_without_comparisons_is_measured(results):
    (finding,) = results.findings
    claim = finding.spec.claim.model_copy(update={"order": [], "beats": {}})
    changed = replace(results, findings=(with_spec(finding, claim=claim),))
    page = html.render(changed)
    assert '<span class="outcome measured">measured</span>' in page
    assert "tiny-differences" not in page
    assert wording.evidence_line(changed.findings[0]).startswith("Training loss from ")


def test_comparisons_are_grouped_by_outcome(results, monkeypatch):
    (finding,) = results.findings
    rows = claims.verdict(finding).rows
    assert len(rows) == 3

    def with_outcomes(*outcomes):
        changed = tuple(replace(row, outcome=outcome) for row, outcome in zip(rows, outcomes, strict=False))
        monkeypatch.setattr(claims, "verdict", lambda _: claims.ClaimVerdict(outcomes[0], changed))
        return wording.evidence_line(finding)

    values = [row.comparison.text.partition(" (")[0] for row in rows]
    beta, both = "increasing β vs folklore Adam", "increasing β + decreasing lr vs"
    same = with_outcomes("confirmed", "confirmed", "confirmed")
    assert same == f"{beta} ({values[0]}); {both} folklore Adam ({values[1]}), increasing β ({values[2]})."
    mixed = with_outcomes("undecided", "confirmed", "contradicted")
    assert mixed == (
        f"Confirmed: {both} folklore Adam ({values[1]}). Contradicted: {both} increasing β ({values[2]}). "
        f"Undecided: {beta} ({values[0]})."
    )
    assert with_outcomes("confirmed") == f"{beta}: {rows[0].comparison.text}."
