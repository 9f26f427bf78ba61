"""What the page is made of: its frame, its style, the script that sorts tables, and the tables."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape

from semaopt.experiments.report.style import DARK, LIGHT, variables

_CSS = (
    f":root {{ color-scheme: light dark; --ink: {LIGHT[0]}; --soft: #57606a; --line: #d5dae0; --back: #fff; "
    f"--mark: #eef6ff; --good: #0a6b48; --bad: #b3261e; {variables(LIGHT)} }}\n"
    f"@media (prefers-color-scheme: dark) {{ :root {{ --ink: {DARK[0]}; --soft: #9aa4af; --line: #363d46; "
    f"--back: #14171b; --mark: #1b2a3c; --good: #4ad295; --bad: #ff8f85; {variables(DARK)} }} }}"
    """
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 70rem; padding: 1rem 1.25rem 3rem; background: var(--back); color: var(--ink);
  font: 1rem/1.55 system-ui, sans-serif; overflow-wrap: break-word; }
a { color: inherit; }
h1 { font-size: 1.35rem; line-height: 1.3; margin: 1rem 0 .5rem; text-wrap: pretty; }
h2 { font-size: 1.2rem; margin: 2.6rem 0 .5rem; padding-top: .8rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.8rem 0 .4rem; }
p, li { max-width: 44rem; }
.soft, figcaption { color: var(--soft); font-size: .9rem; }
.panels { display: flex; flex-wrap: wrap; gap: 1rem; margin: 1rem 0 .3rem; }
.panels svg { flex: 1 1 20rem; min-width: 0; max-width: 32rem; height: auto; }
.checks { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(22rem, 100%), 1fr)); gap: 1.2rem; }
.checks svg { width: 100%; height: auto; }
figure { margin: 0; }
li { margin-bottom: .5rem; }
.wide { overflow-x: auto; margin: 0 0 1.1rem; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
.about { margin: 1.2rem 0 .2rem; }
th, td { padding: .28rem .9rem .28rem 0; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child, .left, .text, tbody th { text-align: left; }
td.text { white-space: normal; min-width: 15rem; }
thead th { font-weight: 600; vertical-align: bottom; }
tbody th { font-weight: 400; }
.claims { width: 100%; }
.claims tbody th { white-space: normal; padding-top: 1.1rem; font-weight: 600; }
.claims tbody th small { font-weight: 400; color: var(--soft); display: block; max-width: min(44rem, 88vw); }
.claims td { vertical-align: top; }
.left-second td:nth-child(2), .left-second th:nth-child(2) { text-align: left; }
tr.chosen td, tr.chosen th { background: var(--mark); font-weight: 600; }
.good { color: var(--good); font-weight: 600; }
.bad { color: var(--bad); font-weight: 600; }
th button { all: unset; cursor: pointer; font-weight: 600; }
th button:focus-visible { outline: 2px solid var(--method-1); outline-offset: 2px; }
th button::after { content: "\\2195"; color: var(--soft); opacity: .55; margin-left: .3em; font-weight: 400; }
th[aria-sort=ascending] button::after { content: "\\2191"; opacity: 1; }
th[aria-sort=descending] button::after { content: "\\2193"; opacity: 1; }
i.swatch { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .45em; }
code, pre { font: .88rem/1.5 ui-monospace, monospace; }
pre { border: 1px solid var(--line); border-radius: 6px; padding: .6rem .8rem; overflow-x: auto; }
summary { cursor: pointer; margin: .6rem 0; }
@media (max-width: 40rem) { ul { padding-left: 1.2rem; } tbody th { white-space: normal; min-width: 9rem; }
  th, td { padding-right: .6rem; }
  .claims thead { display: none; }
  .claims tr { display: grid; grid-template-columns: 1fr auto; border-bottom: 1px solid var(--line); }
  .claims tr th { grid-column: 1 / -1; border: 0; padding: 1.1rem 0 .1rem; }
  .claims td { border: 0; padding: .1rem 0; white-space: normal; }
  .claims td.text { min-width: 0; padding-right: .6rem; }
  .claims td:nth-child(2) { text-align: right; }
  .claims td:nth-child(3) { text-align: left; }
  .claims td:nth-child(4):not(:empty)::after { content: " dev."; color: var(--soft); } }
"""
)

#: A head's button sorts the rows of its table by the number that a cell begins with, or by its text, and then turns it.
_SCRIPT = """
"use strict";
function key(cell) {
  const text = cell.textContent.trim();
  const found = text.match(/^(?:\\u00d7 )?([-+]?\\d+(\\.\\d+)?(e[-+]?\\d+)?)/i);
  return found ? Number(found[1]) : text === "diverged" ? Infinity : text;
}
function order(a, b) {
  if (typeof a === typeof b) return a < b ? -1 : a > b ? 1 : 0;
  return typeof a === "number" ? -1 : 1;
}
document.addEventListener("click", function (event) {
  const button = event.target.closest("th button");
  if (!button) return;
  const head = button.parentElement, table = head.closest("table"), body = table.tBodies[0];
  const up = head.getAttribute("aria-sort") !== "ascending";
  for (const other of head.parentElement.children) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const rows = Array.from(body.rows), k = head.cellIndex;
  rows.sort((a, b) => (up ? 1 : -1) * order(key(a.cells[k]), key(b.cells[k])));
  body.append(...rows);
});
"""

_FRAME = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src '{sum}'">
<title>{title}</title>
<style>{css}</style>
</head>
<body>
{body}
<script>{script}</script>
</body>
</html>
"""


def frame(title: str, body: str) -> str:
    """A whole page; ``body`` is HTML."""
    digest = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
    return _FRAME.format(title=escape(title), css=_CSS, body=body, script=_SCRIPT, sum=f"sha256-{digest}")


def table(
    caption: str, head: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]], *, sorts: bool = False, kind: str = ""
) -> str:
    """``rows`` are a class and cells of HTML; ``caption`` and ``head`` are plain text."""
    body = "".join(row(kind, cells) for kind, cells in rows)
    heads = "".join(_head(name, sorts) for name in head)
    return (
        f'<p class="soft about">{escape(caption)}</p><div class="wide" tabindex="0" role="region" '
        f'aria-label="{escape(caption)}"><table class="{kind}" aria-label="{escape(caption)}">'
        f"<thead><tr>{heads}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def _head(name: str, sorts: bool) -> str:
    if not sorts:
        return f'<th scope="col">{escape(name)}</th>'
    return f'<th scope="col" aria-sort="none"><button type="button">{escape(name)}</button></th>'


def row(kind: str, cells: Sequence[str]) -> str:
    """The first cell heads it."""
    first, *rest = cells
    opening = f'<tr class="{kind}">' if kind else "<tr>"
    return f'{opening}<th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>'


def seconds(value: float) -> str:
    """A duration for people.

    >>> seconds(42), seconds(312), seconds(7500)
    ('42 s', '5 min', '2.1 h')
    """
    if value < 100:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 5400 else f"{value / 3600:.1f} h"
