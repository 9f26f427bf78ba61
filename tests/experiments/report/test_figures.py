"""Figures: one look per method, readable axes, labels that do not overlap."""

import itertools
import re
import textwrap
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from semaopt.experiments.report import figures, style, view, wording
from semaopt.experiments.results.model import StudyResult
from semaopt.experiments.spec.schema import load, shipped
from semaopt.experiments.training.run import Result
from tests.experiments.tiny import AUC, a_spec, go


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return go(tmp_path_factory.mktemp("figures"))


@pytest.fixture(scope="module")
def finding(results):
    return results.findings[0]


@pytest.fixture(scope="module")
def looks(results):
    return view.method_looks(results)


def test_a_long_title_keeps_the_verdict_alone(finding, monkeypatch):
    assert wording.figure_title(finding) == wording.headline(finding)
    long = replace(finding, spec=finding.spec.model_copy(update={"title": "a" * 240}))
    assert wording.figure_title(long) == f"{'a' * 240}: undecided."


def test_long_names_are_wrapped_above_the_differences(finding, looks):
    methods = [method.model_copy(update={"label": f"{method.name} " + "long " * 14}) for method in finding.spec.methods]
    finals = tuple(replace(final, method=one) for final, one in zip(finding.finals, methods, strict=True))
    (study,) = finding.studies
    long = replace(finding, studies=(replace(study, finals=finals),))
    short, tall = (ElementTree.fromstring(figures.differences(one, looks)) for one in (finding, long))
    boxes = [[float(x) for x in svg.get("viewBox").split()] for svg in (short, tall)]
    assert boxes[0][2] == boxes[1][2]  # as wide
    assert boxes[1][3] > 1.1 * boxes[0][3]  # and with room for more lines


def with_curves(finding, metric, *curves):
    """The finding with these curves of a metric, one per method, in all seeds."""
    (study,) = finding.studies
    finals = [
        replace(final, runs=tuple(Result({**run.curves, metric: curve}, 1.0) for run in final.runs))
        for final, curve in zip(study.finals, curves, strict=True)
    ]
    return replace(finding, studies=(StudyResult(tuple(finals), study.tuning),))


def luminance(colour):
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("name", shipped())
def test_methods_of_a_shipped_spec_differ_in_colour_marker_and_dash(name):
    spec = load(name)
    methods = [method.name for method in spec.methods]
    looks = style.looks(methods)
    if spec.claim.stability is not None:  # one line for each method and beta
        assert len({look.hue for look in looks.values()}) == len({look.dash for look in looks.values()}) == 4
        return
    assert len(set(looks.values())) == len(methods)
    if spec.claim.groups:  # the curves of the claim's methods are drawn
        drawn = [looks[one] for pair in spec.claim.beats.items() for one in (pair[0], *pair[1])]
        assert len({look.hue for look in drawn}) == len({look.dash for look in drawn}) == len(drawn)
        return
    own = {name: look for name, look in looks.items() if not name.endswith(("_last", "_uncorrected"))}
    pairs = itertools.combinations(own.values(), 2)
    shares = name.startswith("beta-study") or len(own) > len(style.HUES)  # methods of one hue: other marker and dash
    if shares:
        pairs = [(a, b) for a, b in pairs if a.hue == b.hue]
    else:
        assert len({look.hue for look in own.values()}) == len(own)
    if name.startswith("beta-study"):  # each schedule of lr has a colour, each schedule of beta a marker and a dash
        assert len({(method.partition("_")[0], look.hue) for method, look in own.items()}) == 3
    assert all(a.marker != b.marker and a.dash != b.dash for a, b in pairs)
    for control in looks.keys() - own.keys():  # a control arm has the colour of its method, another marker and dash
        look, method = looks[control], looks[control.removesuffix("_last").removesuffix("_uncorrected")]
        assert (look.hue, look.marker != method.marker, look.dash != method.dash) == (method.hue, True, True)


def test_sgda_and_pdsm_differ_without_colour():
    sgda, pdsm = style.LOOKS["sgda"], style.LOOKS["pdsm"]
    assert sgda.marker != pdsm.marker
    assert sgda.dash != pdsm.dash
    for shade in (1, 2):
        bright, dark = sorted((luminance(style.HUES[look.hue][shade]) + 0.05 for look in (sgda, pdsm)), reverse=True)
        assert bright / dark > 1.1


@pytest.mark.parametrize(("shade", "background"), [(1, "#ffffff"), (2, "#14171b")])
def test_every_hue_contrasts_with_its_background(shade, background):
    for hue, shades in style.HUES.items():
        dark, bright = sorted((luminance(shades[shade]) + 0.05, luminance(background) + 0.05))
        assert bright / dark > 3, hue


def test_unknown_methods_get_free_looks_in_alphabetical_order():
    names = ["pdada", "zeta", "pdsm", "alpha"]
    looks = style.looks(names)
    assert looks == style.looks(names[::-1])
    assert list(looks) == names
    assert looks["pdada"] == style.LOOKS["pdada"]
    assert len({look.hue for look in looks.values()}) == 4
    many = style.looks(f"method{k}" for k in range(200))
    assert len(set(many.values())) == 200
    assert len({many[name].hue for name in sorted(many)[:7]}) == 7


def test_a_method_has_one_look_in_all_figures(tmp_path):
    spec = a_spec(**AUC)
    copies = [
        m.model_copy(update={"name": f"{m.name}{k}", "label": f"{m.label} {k}"}) for k in range(3) for m in spec.methods
    ]
    claim = spec.claim.model_copy(update={"order": ["sgda0", "pdada0"]})
    tuning = spec.tuning.model_copy(update={"budget": 1})
    seeds = spec.seeds.model_copy(update={"final": [0, 1]})
    found = go(tmp_path, spec.model_copy(update={"methods": copies, "claim": claim, "tuning": tuning, "seeds": seeds}))
    looks = view.method_looks(found)
    assert len({look.hue for look in looks.values()}) == 6
    (finding,) = found.findings
    hues = {f"var(--hue-{look.hue})" for look in looks.values()}
    drawings = [*figures.panels(finding, looks).values(), figures.whole(finding, looks).svg]
    assert all(hues <= set(re.findall(r"var\(--hue-\w+\)", svg)) for svg in drawings)
    assert f"var(--hue-{looks['pdada0'].hue})" in figures.differences(finding, looks)


def test_svgs_are_well_formed_and_follow_the_theme(finding, looks):
    for svg in (figures.whole(finding, looks).svg, *figures.panels(finding, looks).values()):
        ElementTree.fromstring(svg.encode())
        assert "currentColor" in svg
        assert style.INK not in svg
    assert figures.whole(finding, looks).png.startswith(b"\x89PNG")


def test_drawing_twice_gives_the_same_bytes(finding, looks):
    assert figures.whole(finding, looks) == figures.whole(finding, looks)


def test_panels_have_training_before_test(finding):
    assert figures.panel_metrics(finding) == ["train_loss", "test_accuracy"]
    claim = finding.spec.claim.model_copy(update={"metric": "test_accuracy"})
    spec = finding.spec.model_copy(update={"claim": claim, "metrics": ["test_accuracy", "train_loss"]})
    assert figures.panel_metrics(replace(finding, spec=spec)) == ["train_loss", "test_accuracy"]


def drawn(finding, metric, looks):
    axes = Figure().subplots()
    return axes, figures.draw_curves(axes, finding, metric, looks)


def test_epochs_are_integers_and_percentages_end_at_100(finding, looks):
    near = with_curves(finding, "test_accuracy", *[[0.9, 0.97, 0.985]] * 3)
    axes, scale = drawn(near, "test_accuracy", looks)
    assert scale.kind == "percent"
    low, high = axes.get_ylim()
    ticks = [tick for tick in axes.get_yticks() if low <= tick <= high]
    assert max(ticks) <= 100.0
    assert high <= 100 + 0.02 * (100 - low)
    assert all(tick == round(tick) for tick in axes.get_xticks())


def test_saturated_shares_are_drawn_as_errors_on_a_logarithmic_axis(finding, looks):
    near = with_curves(finding, "test_accuracy", [0.9, 0.99, 1.0], [0.9, 0.95, 0.98], [0.5, 0.6, 0.7])
    axes, scale = drawn(near, "test_accuracy", looks)
    assert (scale.kind, axes.get_yscale(), axes.get_ylabel()) == ("log", "log", "1 − test accuracy")
    assert scale.curves[1].mean == pytest.approx([0.1, 0.05, 0.02])
    assert scale.curves[0].mean[-1] == pytest.approx(0.005)  # an error of 0 is drawn below the smallest other one
    perfect = with_curves(finding, "test_accuracy", *[[1.0, 1.0, 1.0]] * 3)
    assert drawn(perfect, "test_accuracy", looks)[1].curves[0].mean[-1] > 0


def test_bands_are_standard_errors(finding, looks):
    (study,) = finding.studies
    values = (0.5, 0.6, 0.7)
    runs = tuple(
        Result({**run.curves, "test_accuracy": [value] * 3}, 1.0)
        for run, value in zip(study.finals[0].runs, values, strict=True)
    )
    finals = (replace(study.finals[0], runs=runs), *study.finals[1:])
    changed = replace(finding, studies=(StudyResult(finals, study.tuning),))
    curve = figures.scale(changed, "test_accuracy").curves[0]
    assert curve.mean == pytest.approx([60.0] * 3)
    assert curve.high - curve.mean == pytest.approx([10 / 3**0.5] * 3)


def label_heights(finding, metric, looks, labels):
    finals = tuple(
        replace(final, method=final.method.model_copy(update={"label": label}))
        for final, label in zip(finding.finals, labels, strict=True)
    )
    changed = replace(finding, studies=(StudyResult(finals, finding.tuning),))
    figure = Figure()
    axes = figure.subplots()
    scale = figures.draw_curves(axes, changed, metric, looks)
    figures._name_lines([axes], [scale], changed, looks, height=3.9)
    return figure, [text.get_position()[1] for text in axes.texts]


def test_lines_are_labelled_at_their_ends_where_labels_fit(finding, looks):
    close = with_curves(finding, "test_accuracy", [0.2, 0.5, 0.600], [0.2, 0.5, 0.605], [0.2, 0.5, 0.95])
    figure, heights = label_heights(close, "test_accuracy", looks, ["a", "b", "c"])
    assert len(heights) == 3
    assert figure.legends == []
    gaps = [b - a for a, b in itertools.pairwise(sorted(heights))]
    assert min(gaps) > 0.05
    figure, heights = label_heights(close, "test_accuracy", looks, ["a", "b", "a label of many characters"])
    assert (heights, len(figure.legends)) == ([], 1)


def test_the_plot_of_differences_has_one_row_per_comparison(finding, looks):
    svg = figures.differences(finding, looks)
    for row in figures.comparable(finding):
        text = f"{finding.label(row.comparison.method)} vs {finding.label(row.comparison.against)}: "
        assert all(line in svg for line in textwrap.wrap(f"{text}{row.comparison.text}, {row.outcome}", 78))
    one_seed = replace(
        finding,
        spec=finding.spec.model_copy(update={"seeds": finding.spec.seeds.model_copy(update={"final": [0]})}),
        studies=tuple(
            StudyResult(tuple(replace(final, runs=final.runs[:1]) for final in study.finals), study.tuning)
            for study in finding.studies
        ),
    )
    assert figures.differences(one_seed, looks) is None
