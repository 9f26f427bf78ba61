"""The page in a browser: tables sort by mouse and keyboard, and everything fits a phone, in light and dark mode."""

import pytest

from semaopt.experiments.report import write
from semaopt.experiments.sweep import reproduction, study
from semaopt.experiments.sweep.engines.local import InProcess
from semaopt.experiments.sweep.runner import Workspace
from semaopt.experiments.training.run import Machine
from tests.experiments.report.browser import CHROMIUM, REASON, Browser
from tests.experiments.tiny import Watcher, a_spec

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=REASON)


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
        assert found.messages == []  # no error and no console message in any test


TABLE = "[...document.querySelectorAll('table')].find(t => t.ariaLabel.startsWith('Training loss after'))"
COLUMN = f"[...{TABLE}.tBodies[0].rows].map(r => Number(r.cells[1].textContent))"
HEAD = f"{TABLE}.tHead.rows[0].cells[1]"
# Elements that extend beyond the right edge of the page and are not in a box that scrolls.
OVERFLOWING = """[...document.querySelectorAll('body *')].filter(e => !e.closest('.wide, pre, svg')
  && e.getBoundingClientRect().right > document.documentElement.clientWidth + 1).map(e => e.outerHTML.slice(0, 99))"""
COLOURS = "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.querySelector('svg text')).fill]"
FONTS = """[...document.querySelectorAll('svg text')].map(t => t.getBoundingClientRect())
  .filter(b => b.width > 0).map(b => Math.min(b.height, b.width + 99))"""


def test_tables_sort_by_mouse_and_keyboard(browser, report):
    browser.open(report, width=1000)
    before = browser.evaluate(COLUMN)
    assert len(before) == 4
    assert browser.evaluate(f"{HEAD}.ariaSort") == "none"
    browser.evaluate(f"{HEAD}.querySelector('button').click()")
    assert browser.evaluate(COLUMN) == sorted(before)
    assert browser.evaluate(f"{HEAD}.ariaSort") == "ascending"
    browser.evaluate(f"{HEAD}.querySelector('button').focus()")
    browser.press("Enter")
    assert browser.evaluate(COLUMN) == sorted(before, reverse=True)
    assert browser.evaluate(f"{HEAD}.ariaSort") == "descending"
    assert browser.evaluate(f"{TABLE}.tHead.rows[0].cells[0].ariaSort") == "none"
    browser.evaluate(f"{TABLE}.tHead.rows[0].cells[0].querySelector('button').click()")
    assert browser.evaluate(COLUMN) == before  # sorted by seed


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1200])
def test_the_page_fits_and_is_legible(browser, report, width, dark):
    browser.open(report, width=width, dark=dark)
    browser.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    assert browser.evaluate(OVERFLOWING) == []
    assert browser.evaluate("document.querySelectorAll('.verdicts li').length") == 1
    assert browser.evaluate("document.querySelectorAll('svg').length") == 4  # differences, two panels, one check
    boxes = browser.evaluate("[...document.querySelectorAll('svg')].map(s => s.getBoundingClientRect().width)")
    assert all(250 < box <= width for box in boxes)
    assert min(browser.evaluate(FONTS)) > 8  # pixels
    background, text = browser.evaluate(COLOURS)
    assert contrast(background, text) > 7


def contrast(a, b):
    """Return the contrast of two colours rgb(r, g, b) as WCAG defines it."""

    def luminance(colour):
        parts = [int(part) / 255 for part in colour[4:-1].split(",")]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted([luminance(a), luminance(b)])
    return (light + 0.05) / (dark + 0.05)
