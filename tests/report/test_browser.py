"""The page in a real browser: it draws, it is quiet, it asks for nothing, and labels are text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.report.chromium import Browser, browser
from tests.report.conftest import Made
from tests.report.small import HOSTILE
from tests.report.test_page import charts_in

pytestmark = pytest.mark.browser

VIEWS = {
    "light": {},
    "dark": {"dark": True},
    "phone": {"width": 390, "height": 844},
}


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.parametrize("view", VIEWS)
def test_every_chart_is_drawn_quietly_and_without_a_request(made: Made, tab: Browser, view: str) -> None:
    tab.show(made.written.page, **VIEWS[view])
    charts = charts_in(made.html)
    drawn = "[...document.querySelectorAll('.chart')].filter(c => c.querySelectorAll('svg path').length > 5).length"
    assert tab.value(drawn) == len(charts) > 5
    assert tab.complaints() == []
    assert tab.requests() == [made.written.page.resolve().as_uri()]


@pytest.mark.parametrize("view", VIEWS)
def test_nothing_sticks_out_of_the_window(made: Made, tab: Browser, view: str) -> None:
    tab.show(made.written.page, **VIEWS[view])
    assert tab.value("document.documentElement.scrollWidth <= window.innerWidth")
    outside = "[...document.querySelectorAll('.chart svg')].filter(s => s.getBoundingClientRect().right > innerWidth)"
    assert tab.value(f"{outside}.length") == 0


def test_charts_follow_the_ground(made: Made, tab: Browser) -> None:
    colours = []
    for dark in (False, True):
        tab.show(made.written.page, dark=dark)
        ground = tab.value("getComputedStyle(document.body).backgroundColor")
        ink = tab.value("document.querySelector('.chart svg .role-axis-label text').getAttribute('fill')")
        line = tab.value("document.querySelector('.chart svg .mark-line path').getAttribute('stroke')")
        colours.append((ground, ink, line))
    assert all(light != dark for light, dark in zip(*colours, strict=True))


def test_hostile_labels_are_shown_as_text(made: Made, tab: Browser) -> None:
    tab.show(made.written.page)
    assert tab.value("document.title") == HOSTILE
    assert tab.value("document.querySelector('h1').textContent") == HOSTILE
    assert tab.value("document.querySelectorAll('script').length") == 3  # the data, the library, ours
    assert tab.value("document.querySelectorAll('img').length") == 0
    place = "document.querySelector('#plan-hostile')"
    assert HOSTILE in tab.value(f"{place}.querySelector('table').textContent")
    assert "<img src=x" in tab.value(f"{place}.querySelector('.chart svg').textContent")
    assert tab.complaints() == []


def point_of(tab: Browser, chart: str) -> tuple[float, float]:
    """Where the first run of a chart is drawn, brought into the window."""
    found = f"document.querySelector('{chart} svg .mark-symbol path[aria-label*=run]')"
    tab.value(f"{found}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
    box = tab.value(f"(b => [b.x + b.width / 2, b.y + b.height / 2])({found}.getBoundingClientRect())")
    return float(box[0]), float(box[1])


def test_hovering_tells_the_run_and_a_click_leads_to_it(made: Made, tab: Browser) -> None:
    tab.show(made.written.page)
    x, y = point_of(tab, "#plan-width-fixed-steps-lab .chart")
    tab.move(x - 30, y - 30)
    tab.move(x, y)
    told = tab.value("document.querySelector('#vg-tooltip-element').innerText")
    for word in ("run", "seed", "η", "loss", "ended"):
        assert word in told
    tab.click(x, y)
    target = tab.value("location.hash")
    assert target.startswith("#run-")
    assert target.removeprefix("#run-") in told
    assert tab.value("document.querySelector(':target').textContent").startswith(target.removeprefix("#run-"))
    assert tab.complaints() == []


def test_a_click_on_the_legend_shows_one_series_and_another_adds(made: Made, tab: Browser) -> None:
    tab.show(made.written.page)
    chart = "document.querySelector('#plan-width-fixed-steps-lab .chart svg')"
    bright = (
        f"[...{chart}.querySelectorAll('.mark-line path')]"
        ".filter(p => Number(p.getAttribute('opacity') ?? 1) > 0.5).length"
    )
    assert tab.value(bright) == 3
    for i, expected in ((0, 1), (1, 2), (0, 1)):
        label = f"{chart}.querySelectorAll('.role-legend-label text')[{i}]"
        tab.value(f"{label}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        box = tab.value(f"(b => [b.x + b.width / 2, b.y + b.height / 2])({label}.getBoundingClientRect())")
        tab.click(*box)
        assert tab.value(bright) == expected


def test_without_scripts_there_are_pictures_and_tables(made: Made, tab: Browser) -> None:
    tab.show(made.written.page, scripts=False)
    stills = "[...document.querySelectorAll('img.still')]"
    assert tab.value(f"{stills}.length") == len({path.stem for path in made.written.figures})
    assert tab.value(f"{stills}.every(i => i.complete && i.naturalWidth > 300)")
    assert tab.value("getComputedStyle(document.querySelector('.charts')).display") == "none"
    assert tab.value("document.querySelectorAll('table').length") > 8
    assert tab.complaints() == []
    assert tab.requests() == [made.written.page.resolve().as_uri()]


def test_a_screenshot_is_not_empty(made: Made, tab: Browser, tmp_path: Path) -> None:
    """What people look at before they publish: here only that there is something to look at."""
    from PIL import Image

    tab.show(made.written.page)
    tab.screenshot(tmp_path / "page.png", most=3000)
    with Image.open(tmp_path / "page.png") as image:
        assert len(image.convert("RGB").getcolors(1 << 24) or []) > 50
