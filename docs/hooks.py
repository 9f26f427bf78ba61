r"""MkDocs hooks: generate the API pages, convert formulas to MathML, and inline the figures.

The site loads nothing from other servers. Formulas are converted when the site is built, and browsers display MathML
natively.
"""

import ast
import re
from collections.abc import Sequence
from html import unescape
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

PACKAGE = Path(__file__).parent.parent / "semaopt"


# The API reference: one page for the package and one for each module that it exports.


def exports(source: Path) -> list[str]:
    """Return the public names of a module: its definitions and its imports of the form ``X as X``."""
    names = []
    for node in ast.parse(source.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            names += [alias.name for alias in node.names if alias.asname == alias.name]
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.append(node.name)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            names += [target.id for target in targets if isinstance(target, ast.Name)]
    return [name for name in names if not name.startswith("_")]


def source_of(package: Path, module: str) -> Path | None:
    """Return the file of a module in a package, or None if there is no such module."""
    places = (package / module / "__init__.py", package / f"{module}.py")
    return next((place for place in places if place.exists()), None)


def modules(source: Path, dotted: str) -> list[str]:
    """Return the modules that a package re-exports by ``from package import module as module``."""
    nodes = [node for node in ast.parse(source.read_text()).body if isinstance(node, ast.ImportFrom)]
    return sorted(alias.name for node in nodes if node.module == dotted for alias in node.names if alias.asname)


#: Options of objects that are rendered by themselves, not as members of a module.
ROOT_OPTIONS = """\
      show_root_heading: true
      show_root_full_path: false
      show_root_toc_entry: true
"""


#: The order in which the page of the package starts.
FIRST = ("ASA", "from_torch", "PDAda", "PDSM", "SMB", "SBMA", "SCMA", "Iterates")


def api_pages(source: Path = PACKAGE / "__init__.py", dotted: str = "semaopt") -> dict[str, str]:
    """Map the path of each page to its text: one for this module and one for each module that it re-exports."""
    below = modules(source, dotted)
    names = [name for name in exports(source) if name not in below]
    hidden = [name for name in names if source.name == "__init__.py" and source_of(source.parent, name)]
    pages = {f"api/{dotted.removeprefix('semaopt.')}.md": api_page(dotted, names, hidden)}
    for name in below:
        found = source_of(source.parent, name)
        if found is None:
            raise PluginError(f"{source}: {dotted}.{name} is not a module of the package")
        pages |= api_pages(found, f"{dotted}.{name}")
    return pages


def api_page(module: str, names: list[str], hidden: Sequence[str] = ()) -> str:
    """Return the page of a module. ``hidden`` names are hidden by the files of the same name that define them."""
    apart = [name for name in FIRST if name in names and name not in hidden] if module == "semaopt" else []
    members = [name for name in names if name not in hidden and name not in apart]
    text = f"# `{module}` {{#{module}}}\n\n"
    if apart:  # the module's docstring, then the most important classes, then all others
        text += f"::: {module}\n    options:\n      members: []\n"
        text += "".join(f"\n::: {module}.{name}\n    options:\n{ROOT_OPTIONS}" for name in apart)
        text += "".join(f"\n::: {module}.{name}\n    options:\n{ROOT_OPTIONS}" for name in members)
    else:
        shown = "".join(f"\n        - {name}" for name in members)
        text += f"::: {module}\n    options:\n      members:{shown}\n"
    for name in hidden:
        text += f"\n[](){{#{module}.{name}}}\n\n::: {module}.{name}.{name}\n    options:\n{ROOT_OPTIONS}"
    return text


#: Packages that need the extra ``experiments``, so ``semaopt`` does not re-export them.
EXTRA = ("checks", "experiments/data", "experiments/models")
#: Modules that need an extra of their own, and their documented names.
INTEGRATIONS = {
    "semaopt.integrations.sklearn": ["AUCClassifier"],
    "semaopt.integrations.huggingface": ["LossCallback", "WithIndex", "trainer_kwargs"],
    "semaopt.integrations.lightning": ["AUCModule", "FollowOf", "ranking_metrics"],
}
#: Documented names of the experiments, each with the place of its definition if that differs.
EXPERIMENTS = {
    "semaopt.experiments.run": "semaopt.experiments.api.run",
    "semaopt.experiments.tune": "semaopt.experiments.api.tune",
    "semaopt.experiments.reproduce": "semaopt.experiments.api.reproduce",
    "semaopt.experiments.api.report": "",
    "semaopt.experiments.results.table.Table": "",
    "semaopt.experiments.spec.schema.load": "",
    "semaopt.experiments.spec.schema.shipped": "",
    "semaopt.experiments.spec.schema.Spec": "",
    "semaopt.experiments.spec.schema.Method": "",
    "semaopt.experiments.spec.schema.Tuning": "",
    "semaopt.experiments.spec.schema.Claim": "",
    "semaopt.experiments.data.settings.Data": "",
    "semaopt.experiments.results.model.Results": "",
    "semaopt.experiments.results.model.Finding": "",
    "semaopt.experiments.results.statistics.Comparison": "",
    "semaopt.experiments.sweep.load.results": "",
}


def all_pages() -> dict[str, str]:
    """Return all API pages, including the packages that need an extra."""
    text = (
        "# `semaopt.experiments` {#semaopt.experiments}\n\n::: semaopt.experiments\n    options:\n      members: []\n"
    )
    for name, home in EXPERIMENTS.items():
        text += f"\n[](){{#{name}}}\n" * bool(home) + f"\n::: {home or name}\n    options:\n{ROOT_OPTIONS}"
    pages = {**api_pages(), "api/experiments.md": text}
    for part in EXTRA:
        pages |= api_pages(PACKAGE / part / "__init__.py", f"semaopt.{part.replace('/', '.')}")
    for module, names in INTEGRATIONS.items():
        pages[f"api/{module.removeprefix('semaopt.')}.md"] = api_page(module, names)
    return pages


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Insert the API pages where the navigation says ``api/``."""
    nav: list[Any] = []
    for entry in config.nav or []:
        [(title, value)] = entry.items()
        if value == "api/":
            nav.append({title: [{page.removeprefix("api/").removesuffix(".md"): page} for page in all_pages()]})
        else:
            nav.append(entry)
    config.nav = nav
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, text in all_pages().items():
        files.append(File.generated(config, path, content=text))
    return files


# Mathematics.

FORMULA = re.compile(r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<tex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL)


def mathml(tex: str, display: str) -> str:
    """Convert a formula, or raise an error that shows what cannot be converted."""
    tex = re.sub(r"\\arg\s*\\(min|max)(?![a-z])", r"\\operatorname{arg\1}", tex)
    result = convert(tex, display=display)
    for bad in (r"<mi>(\\[^<]*)</mi>", "<mi>(&|&amp;)</mi>", r"<mtext>(\\[^<]*)</mtext>"):
        if found := re.search(bad, result):
            raise PluginError(f"no MathML for {found[1]!r} in the formula {tex!r}")
    # Bars of a norm: not stretched, and without the spacing of "such that".
    return result.replace("<mo>&#x0007C;</mo>", '<mo stretchy="false" lspace="0" rspace="0">&#x0007C;</mo>')


def on_page_content(html: str, page: Page, **_: Any) -> str:
    def replace(match: re.Match[str]) -> str:
        display = "inline" if match.groupdict().get("tag", "span") == "span" else "block"
        try:
            return mathml(unescape(match["tex"]).strip(), display)
        except PluginError as error:
            raise PluginError(f"{page.file.src_uri}: {error}") from None

    if "<code>```" in html:
        raise PluginError(
            f"{page.file.src_uri}: shows ``` as text because a doctest is indented; move it to the left margin"
        )
    entries = list(page.toc.items)
    for entry in entries:
        entry.title = re.sub(r"\\\((?P<tex>.*?)\\\)", replace, entry.title)
        entries += entry.children
    html = IMAGE.sub(lambda match: figure(match, Path(page.file.abs_src_path or "")), html)
    return FORMULA.sub(replace, html)


# Figures of the experiments. As files they follow the colours of the reader's system. Inlined, they follow the light or
# dark switch of the page.

IMAGE = re.compile(r'<img alt="(?P<alt>[^"]*)" src="(?P<src>[^"/:]+\.svg)"\s*/?>')
THEME = re.compile(r'<style class="semaopt-theme">svg \{(.*?)\} @media [^{]*\{ svg \{(.*?)\} \}</style>', re.DOTALL)


def figure(match: re.Match[str], page: Path) -> str:
    """Return the inlined SVG if the file has our theme, or the image unchanged."""
    file = page.parent / match["src"]
    svg = file.read_text() if file.is_file() else ""
    found = THEME.search(svg)
    if found is None:
        return match[0]
    light, dark = (re.sub(r"(?<!-)color: [^;]*;", "", part).strip() for part in found.groups())
    mark, name = "semaopt-figure", file.stem
    rules = f".{mark} {{ {light} }} [data-md-color-scheme=slate] .{mark} {{ {dark} }}"
    svg = svg[svg.index("<svg") :].replace(found[0], f"<style>{rules}</style>")
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(url\(|href=")#', rf"\1#{name}-", svg)
    return svg.replace("<svg", f'<svg class="{mark}" role="img" aria-label="{match["alt"]}"', 1)
