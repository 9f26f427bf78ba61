"""Draw the figure and print the table of the beta study: python benchmarks/beta_study.py DIR... --out docs/results

DIR are output folders of ``semaopt run beta-study`` or of its specs. A number is the ratio of a method's final test
loss to that of cosine decay with a constant beta: the geometric mean over the studies with its 95% interval.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from semaopt.experiments.report import style
from semaopt.experiments.results.model import Finding
from semaopt.experiments.results.statistics import Interval, geometric_mean
from semaopt.experiments.sweep import load

BASELINE = "cosine"
NAMES = {
    "mnist": "MNIST",
    "digits": "digits, noisy labels",
    "a9a": "a9a",
    "cifar10": "CIFAR-10",
    "text": "characters",
}
#: The methods of the figure, from the bottom to the top.
FIGURE = {
    "constant_average": "constant lr, average of iterates",
    "cosine_follow": "lr decay and increasing β",
    "cosine": "lr decay alone",
    "constant_staged": "increasing β alone",
    "constant": "constant lr, constant β",
}
#: The rows of the table.
TABLE = {
    "cosine_follow": "γ ∝ lr (`Follow`)",
    "cosine_sqrt": "γ ∝ √lr",
    "cosine_falling": "β falls at the end",
    "cosine_uncorrected": "no bias correction",
    "constant": "constant lr",
    "constant_staged": "constant lr, γ in stages (increasing β)",
    "constant_average": "constant lr, polynomial average",
    "stagewise": "stagewise lr",
    "stagewise_follow": "stagewise lr, γ follows",
}
_STYLES = (("blue", "o"), ("vermillion", "s"), ("green", "D"), ("purple", "^"), ("black", "v"))


def task(finding: Finding) -> str:
    """Return the name of a finding's data set in the tables."""
    return NAMES[finding.name.removeprefix("beta-study-")]


def ratio(finding: Finding, method: str, metric: str = "test_loss", against: str = BASELINE) -> Interval | None:
    """Return the ratio of the final losses of two methods; None if one of them was not run."""
    run = {final.method.name for final in finding.finals}
    if not {method, against} <= run:
        return None
    return finding.compare(metric, method, against).interval


def text(interval: Interval | None) -> str:
    """Format a ratio and its interval."""
    return "-" if interval is None else f"{interval.value:.3f} ({interval.low:.3f} to {interval.high:.3f})"


def table(findings: list[Finding]) -> str:
    """Return the Markdown table of ratios: one row per method, one column per data set."""
    head = ["relative to cosine with constant β", *map(task, findings)]
    rows = [[label, *(text(ratio(one, method)) for one in findings)] for method, label in TABLE.items()]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))


def chosen(findings: list[Finding]) -> str:
    """Return the selected lr and beta of the main methods, one row per data set."""
    methods = ("constant", "cosine", "cosine_follow", "stagewise")
    rows = [["data", *methods]]
    for one in findings:
        cells = []
        for method in methods:
            values = [final.values for study in one.studies for final in study.finals if final.method.name == method]
            lrs, betas = [v["lr"] for v in values], sorted(v["beta"] for v in values)
            listed = " ".join(f"{beta:g}" for beta in betas)
            cells.append(f"lr {geometric_mean(lrs):.2g}, β {listed}" if values else "-")
        rows.append([task(one), *cells])
    return "\n".join("| " + " | ".join(row) + " |" for row in (rows[0], ["---"] * len(rows[0]), *rows[1:]))


def draw(findings: list[Finding], ink: str) -> object:
    """Draw one row per method and one marker per data set."""
    with style.settings(ink):
        figure = style.blank((8.4, 3.5), ink)
        axes = figure.subplots()
        axes.set_facecolor("none")
        axes.axvline(1, color=ink, linewidth=0.8, alpha=0.6)
        for k, one in enumerate(findings):
            hue, marker = _STYLES[k]
            shift = 0.13 * ((len(findings) - 1) / 2 - k)
            for row, method in enumerate(FIGURE):
                found = ratio(one, method) if method != BASELINE else Interval(1.0, 1.0, 1.0)
                if found is None:
                    continue
                look = {"color": style.HUES[hue][0], "marker": marker, "markersize": 5, "linewidth": 1.4}
                axes.plot([found.low, found.high], [row + shift] * 2, color=look["color"], linewidth=1.4)
                axes.plot(
                    [found.value],
                    [row + shift],
                    linestyle="none",
                    **look,
                    label=task(one) if method == BASELINE else None,
                )
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axes.set_yticks(range(len(FIGURE)), [style.plain(label) for label in FIGURE.values()])
        axes.set_ylim(-0.6, len(FIGURE) - 0.4)
        axes.set_xlabel("final test loss relative to the lr decay alone (cosine); left is better")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
        figure.legend(loc="outside right center", frameon=False, fontsize=9)
        return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--png", action="store_true", help="write a PNG too")
    given = parser.parse_args()
    found = load.results(given.folders, "benchmarks/beta_study.py").findings
    order = [f"beta-study-{name}" for name in NAMES]
    findings = sorted((one for one in found if one.name in order), key=lambda one: order.index(one.name))
    print(table(findings), chosen(findings), sep="\n\n")
    (given.out / "beta-study.svg").write_text(style.standalone(style.svg(draw(findings, style.INK))))
    if given.png:
        (given.out / "beta-study.png").write_bytes(style.png(draw(findings, "black")))


if __name__ == "__main__":
    main()
