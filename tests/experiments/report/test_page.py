"""The page in a browser: it renders, its tables sort, by keyboard too, and it fits a phone, in light and in dark."""

import pytest

from semaopt.experiments.report import write
from semaopt.experiments.sweep import reproduction, study
from semaopt.experiments.sweep.engines.local import InProcess
from semaopt.experiments.sweep.runner import Workspace
from semaopt.experiments.training.run import Machine
from tests.experiments.report.browser import FOUND, WHY_NOT, Browser
from tests.experiments.tiny import Watcher, a_spec

pytestmark = pytest.mark.skipif(FOUND is None, reason=WHY_NOT)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    out = tmp_path_factory.mktemp("page")
    spec = a_spec(seeds={"tuning": [100], "final": [0, 1, 2, 3]}, tuning={"rounds": 0})
    parts = reproduction.Parts((spec,), ("smb[logistic]",))
    results = study.conduct(
        [spec], Workspace(out, Machine()), InProcess(), Watcher(), command="semaopt run", parts=parts
    )
    write(results, out)
    return out / "report.html"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as found:
        yield found
        assert found.said == []  # no message and no error on the console, in all tests


TABLE = "[...document.querySelectorAll('table')].find(t => t.ariaLabel.startsWith('Training loss, after'))"
COLUMN = f"[...{TABLE}.tBodies[0].rows].map(r => Number(r.cells[1].textContent))"
HEAD = f"{TABLE}.tHead.rows[0].cells[1]"
# What sticks out of the page at its right and is not in a box that scrolls.
WIDE = """[...document.querySelectorAll('body *')].filter(e => !e.closest('.wide, pre, svg')
  && e.getBoundingClientRect().right > document.documentElement.clientWidth + 1).map(e => e.outerHTML.slice(0, 99))"""
COLOURS = "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.querySelector('svg text')).fill]"


def test_tables_sort_by_mouse_and_keyboard(browser, report):
    browser.open(report, width=1000)
    before = browser.ask(COLUMN)
    assert len(before) == 4
    assert browser.ask(f"{HEAD}.ariaSort") == "none"
    browser.ask(f"{HEAD}.querySelector('button').click()")
    assert browser.ask(COLUMN) == sorted(before)
    assert browser.ask(f"{HEAD}.ariaSort") == "ascending"
    browser.ask(f"{HEAD}.querySelector('button').focus()")
    browser.press("Enter")
    assert browser.ask(COLUMN) == sorted(before, reverse=True)
    assert browser.ask(f"{HEAD}.ariaSort") == "descending"
    assert browser.ask(f"{TABLE}.tHead.rows[0].cells[0].ariaSort") == "none"
    browser.ask(f"{TABLE}.tHead.rows[0].cells[0].querySelector('button').click()")
    assert browser.ask(COLUMN) == before  # by seed


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1200])
def test_it_fits_and_can_be_read(browser, report, width, dark):
    browser.open(report, width=width, dark=dark)
    browser.ask("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert browser.ask("document.documentElement.scrollWidth") == width
    assert browser.ask(WIDE) == []
    assert browser.ask("(b => b.scrollWidth - b.clientWidth)(document.querySelector('.claims').parentElement)") == 0
    assert browser.ask("document.querySelectorAll('svg').length") == 3
    boxes = browser.ask("[...document.querySelectorAll('svg')].map(s => s.getBoundingClientRect().width)")
    assert all(250 < box <= width for box in boxes)
    background, text = browser.ask(COLOURS)
    assert contrast(background, text) > 7


def contrast(a, b):
    """Of two colours rgb(r, g, b), as WCAG defines it."""

    def luminance(colour):
        parts = [int(part) / 255 for part in colour[4:-1].split(",")]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted([luminance(a), luminance(b)])
    return (light + 0.05) / (dark + 0.05)
