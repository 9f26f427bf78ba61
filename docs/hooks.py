r"""What MkDocs does beside rendering Markdown: the pages of the API, and mathematics as MathML.

Nothing of the site is loaded from elsewhere: formulas are converted when the site is built, and browsers draw MathML
without help.
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
#: Pages that come with the runs and the checks they report; the navigation shows them where they are there.
REPORTS = ("results/index.md", "theory.md", "reliability.md")


# The API reference: one page for the package and one for each of the modules that it exports.


def exports(source: Path) -> list[str]:
    """The public names of a module: what it defines, and what it imports as ``X as X``."""
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
    """The file of a module of a package, None if the name is no module."""
    places = (package / module / "__init__.py", package / f"{module}.py")
    return next((place for place in places if place.exists()), None)


def modules(source: Path, dotted: str) -> list[str]:
    """The modules that a package passes on: ``from package import module as module``."""
    nodes = [node for node in ast.parse(source.read_text()).body if isinstance(node, ast.ImportFrom)]
    return sorted(alias.name for node in nodes if node.module == dotted for alias in node.names if alias.asname)


#: What is shown by itself, not as a member of its module.
ROOT_OPTIONS = """\
      show_root_heading: true
      show_root_full_path: false
      show_root_toc_entry: true
"""


def api_pages(source: Path = PACKAGE / "__init__.py", dotted: str = "semaopt") -> dict[str, str]:
    """The path of each page of the reference, with its text: a module, and below it those that it passes on."""
    below = modules(source, dotted)
    names = [name for name in exports(source) if name not in below]
    hidden = [name for name in names if source.name == "__init__.py" and source_of(source.parent, name)]
    pages = {f"api/{dotted.removeprefix('semaopt.')}.md": api_page(dotted, names, hidden)}
    for name in below:
        found = source_of(source.parent, name)
        if found is None:
            raise PluginError(f"{source}: {dotted}.{name} is no module of the package")
        pages |= api_pages(found, f"{dotted}.{name}")
    return pages


def api_page(module: str, names: list[str], hidden: Sequence[str] = ()) -> str:
    """Of a module and its public names. ``hidden`` are those that are also the names of the files they come from."""
    members = "".join(f"\n        - {name}" for name in names if name not in hidden)
    text = f"# `{module}` {{#{module}}}\n\n::: {module}\n    options:\n      members:{members}\n"
    for name in hidden:
        text += f"\n[](){{#{module}.{name}}}\n\n::: {module}.{name}.{name}\n    options:\n{ROOT_OPTIONS}"
    return text


#: Need the extra ``experiments``, so ``semaopt`` does not pass them on.
EXTRA = ("checks", "experiments/data", "experiments/models")
#: Where what is used of the other modules of the experiments is defined, and under which names it is found.
EXPERIMENTS = {
    "semaopt.experiments.run": "semaopt.experiments.api.run",
    "semaopt.experiments.tune": "semaopt.experiments.api.tune",
    "semaopt.experiments.results.table.Table": "",
    "semaopt.experiments.spec.schema.load": "",
    "semaopt.experiments.spec.schema.shipped": "",
    "semaopt.experiments.spec.schema.Spec": "",
    "semaopt.experiments.spec.schema.Method": "",
    "semaopt.experiments.spec.schema.Tuning": "",
    "semaopt.experiments.spec.schema.Claim": "",
    "semaopt.experiments.spec.schema.Data": "",
    "semaopt.experiments.results.model.Results": "",
    "semaopt.experiments.results.model.Finding": "",
    "semaopt.experiments.results.statistics.Comparison": "",
    "semaopt.experiments.results.load.results": "",
}


def all_pages() -> dict[str, str]:
    """Of the package, and of what needs an extra."""
    text = (
        "# `semaopt.experiments` {#semaopt.experiments}\n\n::: semaopt.experiments\n    options:\n      members: []\n"
    )
    for name, home in EXPERIMENTS.items():
        text += f"\n[](){{#{name}}}\n" * bool(home) + f"\n::: {home or name}\n    options:\n{ROOT_OPTIONS}"
    pages = {**api_pages(), "api/experiments.md": text}
    for part in EXTRA:
        pages |= api_pages(PACKAGE / part / "__init__.py", f"semaopt.{part.replace('/', '.')}")
    return pages


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The pages of the reference are put where the navigation says ``api/``."""
    nav: list[Any] = []
    for entry in config.nav or []:
        [(title, value)] = entry.items()
        if value == "api/":
            nav.append({title: [{page.removeprefix("api/").removesuffix(".md"): page} for page in all_pages()]})
        elif value not in REPORTS or Path(config.docs_dir, value).exists():
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
    """A formula, or an error that shows what the converter could not read."""
    tex = re.sub(r"\\arg\s*\\(min|max)(?![a-z])", r"\\operatorname{arg\1}", tex)
    result = convert(tex, display=display)
    for bad in (r"<mi>(\\[^<]*)</mi>", "<mi>(&|&amp;)</mi>", r"<mtext>(\\[^<]*)</mtext>"):
        if found := re.search(bad, result):
            raise PluginError(f"no MathML for {found[1]!r} in the formula {tex!r}")
    # The bars of a norm: as high as the line and close to it, not a stretched "such that".
    return result.replace("<mo>&#x0007C;</mo>", '<mo stretchy="false" lspace="0" rspace="0">&#x0007C;</mo>')


def on_page_content(html: str, page: Page, **_: Any) -> str:
    def replace(match: re.Match[str]) -> str:
        display = "inline" if match.groupdict().get("tag", "span") == "span" else "block"
        try:
            return mathml(unescape(match["tex"]).strip(), display)
        except PluginError as error:
            raise PluginError(f"{page.file.src_uri}: {error}") from None

    if "<code>```" in html:
        raise PluginError(f"{page.file.src_uri}: shows ``` as text: a docstring's doctest is indented; move it left")
    entries = list(page.toc.items)
    for entry in entries:
        entry.title = re.sub(r"\\\((?P<tex>.*?)\\\)", replace, entry.title)
        entries += entry.children
    html = IMAGE.sub(lambda match: figure(match, Path(page.file.abs_src_path or "")), html)
    return FORMULA.sub(replace, html)


# Figures of the experiments. As files they have the colours of the reader's system; in a page those of the page, which
# its switch may change, so their elements are taken in.

IMAGE = re.compile(r'<img alt="(?P<alt>[^"]*)" src="(?P<src>[^"/:]+\.svg)"\s*/?>')
THEME = re.compile(r'<style class="semaopt-theme">svg \{(.*?)\} @media [^{]*\{ svg \{(.*?)\} \}</style>', re.DOTALL)


def figure(match: re.Match[str], page: Path) -> str:
    """The element of an SVG file that has a style of ours; any other image stays what it is."""
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
