r"""Convert docstrings to Markdown: a griffe extension that mkdocstrings loads.

Docstrings are written for readers of the source: mathematics and references in reStructuredText, doctests, and
arguments that share a description on one line. This extension converts them to the Markdown of the site.
"""

import re
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import Any

import griffe

Resolve = Callable[[str], str | None]


class ToMarkdown(griffe.Extension):
    """Rewrite every docstring after the package is loaded, when names can be resolved."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value, lambda name: path_of(obj, name))


def to_markdown(text: str, resolve: Resolve) -> str:
    """Convert one docstring, block by block."""
    lines = list(tables(text.splitlines()))
    lines = list(shared_descriptions(math_blocks(doctests(lines))))
    return roles("\n".join(lines), resolve)


def path_of(obj: griffe.Object, name: str) -> str | None:
    """Return the full name of a reference in a docstring of ``obj``, or None if it is not part of this package."""
    if "." in name and name.split(".", maxsplit=1)[0] in ("semaopt", "torch"):
        return name if name.startswith("semaopt.") else None
    first, *rest = name.split(".")
    try:
        return ".".join([obj.resolve(first), *rest])
    except griffe.NameResolutionError:
        return None


def roles(text: str, resolve: Resolve) -> str:
    """Convert ``:math:`` to ``$`` and other roles to links, or to code if the site does not document the name."""

    def link(match: re.Match[str]) -> str:
        kind, name = match[1], match[2].strip()
        if kind == "math":
            return f"${' '.join(name.split())}$"
        path, shown = resolve(name.lstrip("~")), name.rsplit(".", 1)[-1] if name.startswith("~") else name
        if path is None:
            return f"`{shown}`"
        return f'<autoref identifier="{path}" optional><code>{shown}</code></autoref>'

    return re.sub(r":([a-z]+):`([^`]+)`", link, text)


def indent_of(line: str) -> int:
    return len(line) - len(line.lstrip())


def doctests(lines: list[str]) -> Iterator[str]:
    """Put fences around every doctest, which ends at the next empty line."""
    inside = ""
    for line in lines:
        if not inside and line.lstrip().startswith(">>> "):
            inside = " " * indent_of(line) + "```"
            yield f"{inside}pycon"
        elif inside and not line.strip():
            yield inside
            inside = ""
        yield line
    if inside:
        yield inside


def math_blocks(source: Iterator[str]) -> Iterator[str]:
    """Convert ``.. math::`` to a ``$$`` block, with several lines aligned at ``&``."""
    lines = list(source)
    i = 0
    while i < len(lines):
        line, i = lines[i], i + 1
        if not line.lstrip().startswith(".. math::"):
            yield line
            continue
        depth = indent_of(line)
        body = list(takewhile(lambda below, depth=depth: below.strip() and indent_of(below) > depth, lines[i:]))
        i += len(body)
        formula = [part.strip() for part in (line.split("::", 1)[1], *body) if part.strip()]
        if any("&" in part for part in formula):
            formula = [r"\begin{align*}", *formula, r"\end{align*}"]
        yield from (" " * depth + part for part in ("", "$$", *formula, "$$", ""))


def shared_descriptions(source: Iterator[str]) -> Iterator[str]:
    """Split ``a, b: text`` below ``Args:`` into two entries with the same text."""
    lines, depth, i = list(source), None, 0
    while i < len(lines):
        line, i = lines[i], i + 1
        if line.strip() == "Args:":
            depth = indent_of(line) + 4
        elif line.strip() and depth is not None and indent_of(line) < depth:
            depth = None
        while indent_of(line) == depth and re.fullmatch(r"\s*(?:\w+, )*\w+,", line) and i < len(lines):
            line, i = f"{line} {lines[i].strip()}", i + 1  # the names continue on the next line
        match = re.match(r"\s*(\w+(?:, \w+)+):(.*)", line)
        if match is None or indent_of(line) != depth:
            yield line
            continue
        below = list(takewhile(lambda more, depth=depth: more.strip() and indent_of(more) > depth, lines[i:]))
        i += len(below)
        for name in match[1].split(", "):
            yield from (f"{' ' * depth}{name}:{match[2]}", *below)


def tables(lines: list[str]) -> Iterator[str]:
    """Convert simple tables (rules of ``=`` above, below the header and at the end) to Markdown tables."""
    rules = 0
    columns: list[slice] = []
    for line in lines:
        if re.fullmatch(r"\s*=+( +=+)+", line):
            rules += 1
            if rules == 1:
                spans = [match.span() for match in re.finditer("=+", line)]
                ends = [*(start for start, _ in spans[1:]), None]
                columns = [slice(start, end) for (start, _), end in zip(spans, ends, strict=True)]
            elif rules == 2:
                yield "|" + "---|" * len(columns)
            rules %= 3
        elif rules:
            yield "| " + " | ".join(line[column].strip() for column in columns) + " |"
        else:
            yield line
