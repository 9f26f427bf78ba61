"""The page and the figure: they hold the numbers, escape what they are given, and need nothing else."""

import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from semaopt.experiments.digits import Outcome

from semaopt.experiments import figure, report
from semaopt.experiments.compare import mean_and_std, number
from tests.experiments.tiny import go

HOSTILE = '<script>alert("&")</script>'
VOID = {"meta"}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return go(tmp_path_factory.mktemp("report"))


def render(results):
    return report.page(results, {finding.name: figure.panels(finding) for finding in results.findings})


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
    assert "script" not in parser.seen
    assert "link" not in parser.seen
    assert len(parser.ids) == len(set(parser.ids))
    outside = re.findall(r'(?:src|href)="([^"#][^"]*)"|url\((?!#)([^)]*)\)', page)
    assert outside == []
    assert "default-src 'none'" in page


def test_the_page_has_the_numbers(results):
    page, (finding,) = render(results), results.findings
    for final in finding.finals:
        mean, std = mean_and_std(final.train_loss)
        assert f"{number(mean, 3)} ± {number(std)}" in page
        mean, std = mean_and_std(final.test_accuracy)
        assert f"{100 * mean:.2f} ± {100 * std:.2f}" in page
        for loss, accuracy in zip(final.train_loss, final.test_accuracy, strict=True):
            assert f"<td>{number(loss, 3)}</td>" in page
            assert f"<td>{100 * accuracy:.2f}</td>" in page
        for trial in finding.tuning.trials[final.method.name].values():
            assert f"<td>{number(trial.loss, 4)}</td>" in page
    assert page.count('<tr class="chosen">') == 3
    assert results.session.command in page
    assert results.environment["torch"] in page
    for sentence in finding.headline.split(". "):
        assert sentence.replace("'", "&#x27;") in page
    assert finding.evidence in page


def test_hostile_strings_are_escaped(results):
    (finding,) = results.findings
    finals = [
        replace(f, method=replace(f.method, label=f"{HOSTILE}{k}")) for k, f in enumerate(finding.finals)
    ]  # fmt: skip
    worst = replace(
        results,
        scale=HOSTILE,
        findings=(replace(finding, title=HOSTILE, about=HOSTILE, finals=tuple(finals)),),
        environment={HOSTILE: HOSTILE},
        session=replace(results.session, command=HOSTILE, damaged=(HOSTILE,)),
    )
    page = render(worst)
    assert "<script" not in page
    assert "&lt;script&gt;alert(&quot;&amp;&quot;)&lt;/script&gt;" in page
    Balanced().feed(page)


def test_extensions_and_remaining_edges_are_told(results):
    (finding,) = results.findings
    tuning = replace(finding.tuning, on_edge={("lr", -1): ("adam", "both")})
    page = render(replace(results, findings=(replace(finding, tuning=tuning),)))
    assert "The best lr of folklore Adam and increasing β + decreasing lr still lies on the edge, 0.0333." in page


def test_what_diverged_is_called_so(results):
    (finding,) = results.findings
    broken = Outcome(*[[[math.nan] * 3] * 3] * 3)
    finals = (replace(finding.finals[0], outcome=broken), *finding.finals[1:])
    page = render(replace(results, findings=(replace(finding, finals=finals),)))
    assert "diverged" in page
    assert "not comparable" in page
    assert "nan" not in re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL)


def test_the_svg_is_xml_with_axes_units_and_legend(results):
    (finding,) = results.findings
    drawing = figure.whole(finding)
    texts = {"".join(element.itertext()).strip() for element in ElementTree.fromstring(drawing.svg).iter()}
    labels = {final.method.label for final in finding.finals}
    assert {*labels, "training loss (cross-entropy, nats)", "test accuracy (%)", "epoch (dotted: rates decay)"} <= texts
    assert any("paper's order" in text for text in texts)


def test_the_figure_is_the_same_each_time(results):
    (finding,) = results.findings
    assert figure.whole(finding) == figure.whole(finding)
