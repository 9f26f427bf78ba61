"""The look of figures: one table of colours, markers and dashes, and SVGs that follow light and dark mode."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

Dash = str | tuple[int, tuple[float, ...]]

#: Placeholder for the text colour; SVGs get ``currentColor`` instead.
INK = "#010203"
#: Text colour on a light and on a dark background.
INK_LIGHT, INK_DARK = "#1b1f24", "#e3e7ec"

#: Hues of Okabe and Ito, which colour-blind readers can tell apart: (drawn, on light, on dark). The drawn colour is a
#: placeholder in SVGs; the other two are shades of it that contrast with their background.
HUES: dict[str, tuple[str, str, str]] = {
    "vermillion": ("#d55e00", "#c94f00", "#ff8a3d"),
    "blue": ("#0072b2", "#0072b2", "#5db4ee"),
    "green": ("#009e73", "#00825e", "#35c79b"),
    "purple": ("#cc79a7", "#a8487e", "#e79cc4"),
    "orange": ("#e69f00", "#a86b00", "#f3bd45"),
    "black": ("#000001", INK_LIGHT, INK_DARK),
    "sky": ("#56b4e9", "#2486bd", "#8fd0f5"),
}

SOLID: Dash = "-"
DASHED: Dash = (0, (5, 2))
DOTTED: Dash = (0, (1.2, 1.4))
DASH_DOT: Dash = (0, (6, 1.5, 1.2, 1.5))
LONG: Dash = (0, (9, 2))
DASH_DOT_DOT: Dash = (0, (4, 1.2, 1, 1.2, 1, 1.2))
_DASHES = (SOLID, DASHED, DOTTED, DASH_DOT, LONG, DASH_DOT_DOT)
_MARKERS = {"o": "●", "s": "■", "^": "▲", "D": "◆", "v": "▼", "P": "✚", "X": "✖"}


@dataclass(frozen=True)
class Look:
    """Colour, marker and dash of one method in every figure."""

    hue: str
    marker: str
    dash: Dash = SOLID

    @property
    def colour(self) -> str:
        """The colour that Matplotlib draws with."""
        return HUES[self.hue][0]

    @property
    def glyph(self) -> str:
        """The marker as a character."""
        return _MARKERS[self.marker]


#: One look per method. The paper's adaptive method is a solid vermillion line, its momentum method a dashed blue one.
LOOKS: dict[str, Look] = {
    # Figures 1 and 3
    "adam": Look("black", "o", DOTTED),
    "lr": Look("green", "D", DASH_DOT),
    "beta": Look("blue", "s", DASHED),
    "both": Look("vermillion", "^", SOLID),
    "clipped": Look("orange", "v", SOLID),
    "amsgrad": Look("blue", "s", DASH_DOT),
    "adafom": Look("green", "D", DASHED),
    "adam_plus": Look("purple", "P", LONG),
    "adabound": Look("vermillion", "X", DASH_DOT_DOT),
    # Figure 2 and its peers
    "sgda": Look("orange", "o", DOTTED),
    "epoch_sgda": Look("green", "v", DASH_DOT),
    "pes_sgda": Look("purple", "s", LONG),
    "pes_adagrad": Look("black", "D", DASH_DOT_DOT),
    "pdsm": Look("blue", "^", DASHED),
    "pdada": Look("vermillion", "P", SOLID),
    # their control arms: the colour of the method, another marker and dash
    "epoch_sgda_last": Look("green", "X", SOLID),
    "pes_sgda_last": Look("purple", "o", DASHED),
    "pes_adagrad_last": Look("black", "s", DOTTED),
    "pdsm_uncorrected": Look("blue", "v", LONG),
    "pdada_uncorrected": Look("vermillion", "D", DASH_DOT),
    "pesg": Look("black", "X", DASH_DOT),
    "pesg_adam": Look("green", "D", DOTTED),
    # stability: one line per beta, each with several step sizes
    **{f"sgda_{lr}": Look("orange", "o", DOTTED) for lr in ("03", "1", "2", "3", "5")},
    **{f"pdsm_5_{lr}": Look("green", "s", DASH_DOT) for lr in ("03", "1", "2", "3", "5")},
    **{f"pdsm_9_{lr}": Look("blue", "^", DASHED) for lr in ("03", "1", "2", "3", "5")},
    **{f"pdsm_99_{lr}": Look("black", "D", SOLID) for lr in ("03", "1", "2", "3", "5")},
    # combinations with LibAUC: hue and dash show the optimizer, the marker shows loss and score
    **{
        f"{name}_{loss}": Look(hue, marker, dash)
        for name, hue, dash in (
            ("pdsm", "blue", DASHED),
            ("pdada", "vermillion", SOLID),
            ("pesg", "black", DASH_DOT),
            ("pesg_adam", "green", DOTTED),
        )
        for loss, marker in (
            ("ours_linear", "o"),
            ("ours_sigmoid", "s"),
            ("theirs_linear", "^"),
            ("theirs_sigmoid", "v"),
        )
    },
    "recipe": Look("purple", "D", LONG),
    "uniform_linear": Look("black", "o", DOTTED),
    "uniform_sigmoid": Look("orange", "^", DASH_DOT),
    "balanced_linear": Look("blue", "s", SOLID),
    "balanced_sigmoid": Look("green", "v", DASHED),
    "ours": Look("blue", "o", SOLID),
    "sigmoid": Look("blue", "s", SOLID),
    "pd": Look("blue", "D", SOLID),
    "adaptive": Look("blue", "v", SOLID),
    # bilevel
    "bsa": Look("black", "X", DOTTED),
    "ttsa": Look("orange", "o", DASH_DOT),
    "stocbio": Look("purple", "s", LONG),
    "soba": Look("green", "D", DASH_DOT_DOT),
    "smb_neumann": Look("blue", "^", DASHED),
    "smb": Look("vermillion", "P", SOLID),
    "saba": Look("sky", "o", SOLID),
    "f2sa": Look("sky", "D", DASHED),
    "amigo": Look("purple", "^", SOLID),
    "sustain": Look("orange", "s", SOLID),
    "fsla": Look("green", "P", DASHED),
    "mrbo": Look("black", "v", DASHED),
    "bome": Look("black", "o", SOLID),
    # SMB with each scaling: the hue shows the inverse, marker and dash show the scaling
    "smb_tracked": Look("vermillion", "P", SOLID),
    "smb_tracked_adam": Look("vermillion", "o", DASHED),
    "smb_neumann_adam": Look("blue", "o", SOLID),
    **{
        f"smb_{inverse}_{scaling}": Look(hue, marker, dash)
        for inverse, hue in (("tracked", "vermillion"), ("neumann", "blue"))
        for scaling, marker, dash in (
            ("amsgrad", "s", DOTTED),
            ("adafom", "X", DASH_DOT),
            ("adam_plus", "D", LONG),
            ("adabound", "v", DASH_DOT_DOT),
        )
    },
    # compositional
    "batch": Look("black", "o", DOTTED),
    "scgd": Look("green", "D", DASH_DOT),
    "scma_shb": Look("blue", "^", DASHED),
    "scma": Look("vermillion", "P", SOLID),
}
# The beta study: the colour shows the schedule of lr; marker and dash show the schedule of beta.
_BETA_STUDY = {
    "black": ("constant", "constant_staged", "constant_falling", "constant_average"),
    "blue": ("cosine", "cosine_follow", "cosine_falling", "cosine_sqrt"),
    "vermillion": ("stagewise", "stagewise_follow", "stagewise_falling", "stagewise_sqrt"),
}
for _hue, _names in _BETA_STUDY.items():
    for _name, _marker, _dash in zip(_names, "o^sD", (SOLID, DASHED, DOTTED, DASH_DOT), strict=True):
        LOOKS[_name] = Look(_hue, _marker, _dash)
    for _name, _marker, _dash in zip(_names, "vPXo", (LONG, DASH_DOT_DOT, SOLID, DASHED), strict=True):
        LOOKS[f"{_name}_uncorrected"] = Look(_hue, _marker, _dash)


def looks(names: Iterable[str]) -> dict[str, Look]:
    """Return the look of each method; names outside :data:`LOOKS` take the next free ones in alphabetical order.

    A free look has a hue that no other name uses or, once all hues are taken, is an unused one of the 294 combinations.

    >>> looks(["pdsm", "mine"])["mine"].hue
    'vermillion'
    >>> looks(["mine", "yours", "pdsm"]) == looks(["pdsm", "yours", "mine"])
    True
    """
    names = list(dict.fromkeys(names))
    found = {name: LOOKS[name] for name in names if name in LOOKS}
    for name in sorted(set(names) - set(found)):
        taken = set(found.values())
        unused = [look for look in _all() if look not in taken]
        hues = {look.hue for look in taken}
        found[name] = next((look for look in unused if look.hue not in hues), unused[0])
    return {name: found[name] for name in names}


def _all() -> Iterator[Look]:
    """Iterate over all looks: first each hue once, with a marker and a dash of its own, then further combinations."""
    markers = tuple(_MARKERS)
    for shift in range(len(markers) * len(_DASHES)):
        turns, rest = divmod(shift, len(markers))
        for k, hue in enumerate(HUES):
            yield Look(hue, markers[(k + rest) % len(markers)], _DASHES[(k + rest + turns) % len(_DASHES)])


_SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "semaopt",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_INKED = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")


@contextmanager
def settings(ink: str = INK) -> Iterator[None]:
    """Apply the Matplotlib settings inside the block; draw and save figures there."""
    chosen: dict[Any, Any] = {**_SETTINGS, **dict.fromkeys(_INKED, ink)}  # Matplotlib's key type lists every key
    with mpl.rc_context(chosen):
        yield


def blank(size: tuple[float, float], ink: str = INK) -> Figure:
    """Create an empty figure: transparent in the placeholder ink, white otherwise."""
    figure = Figure(figsize=size, layout="constrained")
    figure.patch.set_alpha(0 if ink == INK else 1)
    return figure


def plain(text: str) -> str:
    """Escape dollar signs, which Matplotlib would read as mathematics."""
    return text.replace("$", r"\$")


def png(figure: Figure) -> bytes:
    """Render a figure as PNG."""
    file = io.BytesIO()
    with settings("black"):
        figure.savefig(file, format="png", dpi=160, metadata={"Software": None})
    return file.getvalue()


def svg(figure: Figure) -> str:
    """Render a figure as an ``<svg>`` element whose colours are CSS variables and whose ink is ``currentColor``."""
    file = io.StringIO()
    with settings():
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # Matplotlib's style sheet would apply to the whole page; the element's own attributes are inherited instead.
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, count=1, flags=re.DOTALL)
    text = text.replace("<svg", '<svg stroke-linejoin="round"', 1)
    for hue, (drawn, _, _) in HUES.items():
        text = text.replace(drawn, f"var(--hue-{hue})")
    return text.replace(INK, "currentColor")


def inline(element: str, name: str) -> str:
    """Prepare an SVG element for a page: let it fill its container and prefix its ids with ``name``."""
    element = re.sub(r' (?:width|height)="[\d.]+pt"', "", element, count=2)
    element = re.sub(r'\bid="', f'id="{name}-', element)
    return re.sub(r'(url\(|href=")#', rf"\1#{name}-", element)


def variables(dark: bool = False) -> str:
    """Return the hues as CSS custom properties.

    >>> variables().split(";")[1].strip()
    '--hue-blue: #0072b2'
    """
    return " ".join(f"--hue-{hue}: {shades[2 if dark else 1]};" for hue, shades in HUES.items())


#: Class of the style sheet inside an SVG file; pages that inline the file remove it and set the variables themselves.
THEME = "semaopt-theme"


def standalone(element: str) -> str:
    """Turn an SVG element into a file that follows the reader's light or dark mode."""
    rules = (
        f"svg {{ color: {INK_LIGHT}; {variables()} }} "
        f"@media (prefers-color-scheme: dark) {{ svg {{ color: {INK_DARK}; {variables(dark=True)} }} }}"
    )
    element = re.sub(r"(<svg[^>]*>)", rf'\1<style class="{THEME}">{rules}</style>', element, count=1)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{element}'
