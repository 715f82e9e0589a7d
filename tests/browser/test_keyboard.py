"""The page of `snapconv view` by keyboard alone: Tab reaches whatever a mouse can, Enter acts as a click."""

import re
from pathlib import Path

import pytest

from snapconv import load

FIXTURES = Path(__file__).parents[2] / "fixtures"
CAPTURE = FIXTURES / "transformer.capture"
NAMES = ("live", "allocations", "map", "range", "events", "times", "source")
TABS = {str(number): name for number, name in enumerate(NAMES, 1)}
TAB_KEY, ENTER, ESCAPE = "\ue004", "\ue007", "\ue00c"
# Whatever a click does something with; a tree has one entry, from which arrows lead on.
TARGETS = (
    "[...document.querySelectorAll('button, input, a[href], summary, canvas.overlay, .map canvas, "
    "tr[data-kind], tr[data-event]')].filter(e => e.checkVisibility() && e.tabIndex >= 0)"
)
NAMED = "e => (e.dataset.place ??= String(Math.random()))"


@pytest.fixture
def page(browser, tmp_path):
    source = FIXTURES / "entries/transformer"
    browser.open(load(CAPTURE).view(tmp_path / "page.html", source=source).path)
    return browser


def send(browser, *keys):
    """Press keys as a person does: they go to whatever has the focus."""
    from selenium.webdriver import ActionChains

    chain = ActionChains(browser.driver, duration=0)
    for key in keys:
        chain = chain.send_keys(key)
    chain.perform()


def focused(browser, expression):
    return browser.run(f"const e = document.activeElement; return {expression}")


def tab_to(browser, condition, most=400):
    """Press Tab until what has the focus fulfils a condition; the focus is never lost on the way."""
    for _ in range(most):
        send(browser, TAB_KEY)
        if focused(browser, condition):
            return
    raise AssertionError(f"Tab does not lead to {condition}")


@pytest.mark.parametrize(("key", "tab"), TABS.items(), ids=TABS.values())
def test_tab_reaches_everything_that_a_click_does_something_with(page, key, tab):
    page.press(key)
    assert page.each("[aria-selected=true]", "e.dataset.tab") == [tab]
    expected = set(page.run(f"return {TARGETS}.map({NAMED})"))
    reached = set()
    for _ in range(2 * len(expected) + 20):
        send(page, TAB_KEY)
        place, outline = page.run(
            "const e = document.activeElement, style = getComputedStyle(e);"
            f"return [({NAMED})(e), e === document.body || parseFloat(style.outlineWidth) > 0]"
        )
        assert outline, page.run("return document.activeElement.outerHTML.slice(0, 200)")
        reached.add(place)
        if expected <= reached:
            break
    missing = page.run(
        f"return {TARGETS}.filter(e => arguments[0].includes(e.dataset.place)).map(e => e.outerHTML)",
        sorted(expected - reached),
    )
    assert missing == []
    assert len(expected) > 15
    # Nothing is for the mouse alone: what looks like a control can have the focus.
    pointers = (
        "[...document.querySelectorAll('#app *')].filter(e => e.checkVisibility() && "
        "getComputedStyle(e).cursor === 'pointer' && "
        "!e.closest('button, a, input, summary, label, select, [tabindex]'))"
    )
    assert page.run(f"return {pointers}.map(e => e.outerHTML.slice(0, 200))") == []


def test_a_row_opens_by_enter_and_closes_by_escape(page):
    for key, row in (("1", "tr[data-kind]"), ("5", "tr[data-event]")):
        page.press(key)
        tab_to(page, f"e.matches({row!r})")
        send(page, ENTER)
        assert page.text(".detail code").startswith("snapconv explain")
        page.press("Escape")
        assert page.each(".columns.has-detail", "1") == []


def test_a_tab_a_column_and_a_line_of_the_source_are_chosen_by_enter(page):
    tab_to(page, "e.matches('.tab') && e.dataset.tab === 'allocations'")
    send(page, ENTER)
    assert page.each("[aria-selected=true]", "e.dataset.tab") == ["allocations"]
    page.press("1")
    tab_to(page, "e.matches('.live-table .sort') && e.textContent.startsWith('Count')")
    send(page, ENTER)
    assert page.each("th[aria-sort=descending]", "e.textContent") == ["Count ↓"]
    assert focused(page, "e.textContent") == "Count ↓"  # though the table was drawn anew
    tab_to(page, "e.matches('.live-table .link')")
    place = focused(page, "e.textContent")
    send(page, ENTER)
    page.wait("return document.querySelector('.source tr.chosen')")
    (number,) = page.each(".source tr.chosen .s-number", "e.textContent.replace('?', '')")
    assert f":{number} in " in place


def test_enter_on_the_chosen_row_leads_into_its_details_and_escape_back(page):
    tab_to(page, "e.matches('tr[data-kind]')")
    kind = focused(page, "e.dataset.kind")
    send(page, ENTER)
    page.wait("return document.activeElement.matches('.chosen')")  # it is drawn with the next frame
    send(page, ENTER)
    assert focused(page, "Boolean(e.closest('.detail')) && e.tagName") == "BUTTON"
    send(page, ESCAPE)
    assert page.each(".columns.has-detail", "1") == []
    assert focused(page, "e.dataset.kind") == kind


def range_title(page):
    title = page.text(".range h3")
    return re.match(r"(.*): [\d.]+ \w+ allocated", title)[1]


def test_ranges_are_chosen_by_keys_from_the_widest_to_the_visible_part(page):
    (device,) = load(CAPTURE).devices
    page.press("p", "i")
    assert page.each("[aria-selected=true]", "e.dataset.tab") == ["range"]
    peak = device.peak_event
    number = int(device.phases.iteration[peak])
    iteration = device.iterations[number]
    bounds = f"events {iteration.first_event} to {iteration.last_event}"
    assert range_title(page) == f"Iteration {number}, {bounds}"
    page.press("i")
    first, last = map(int, re.findall(r"\d+", range_title(page).rpartition("events")[2]))
    assert iteration.first_event <= first <= peak <= last <= iteration.last_event
    for _ in range(9):
        page.press("i")
        if range_title(page).startswith("The visible part"):
            break
    else:
        raise AssertionError("the ranges around a moment do not end")


def test_a_full_stop_and_a_comma_lead_to_the_range_after_and_before(page):
    (device,) = load(CAPTURE).devices
    page.press("p", "i", ",", ",", ",", ",")
    for iteration in device.iterations:
        bounds = f"events {iteration.first_event} to {iteration.last_event}"
        assert range_title(page).endswith(bounds)
        page.press(".")
    assert range_title(page).endswith(bounds)  # the last one stays


def test_the_name_of_a_range_row_leads_to_what_is_live_by_enter(page):
    page.press("p", "i")
    tab_to(page, "e.matches('.range .link') && e.closest('tr')")
    name = focused(page, "e.textContent").partition(" in ")[0]
    send(page, ENTER)
    assert page.each("[aria-selected=true]", "e.dataset.tab") == ["live"]
    assert page.run("return document.querySelector('input[type=search]').value") == name
