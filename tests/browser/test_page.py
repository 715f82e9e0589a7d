"""The page of `snapconv view` in a browser: its figures are the library's, its choices lead somewhere."""

import re
import time
from pathlib import Path

import numpy as np
import pytest

from snapconv import load
from snapconv.answers.advice.findings import advise, goal_of
from snapconv.answers.moments import find_moment
from snapconv.answers.oom.failed_allocation import failed_allocations
from snapconv.answers.peak import group_modules, state_at
from snapconv.answers.ranks.job_report import report_job
from snapconv.answers.ranks.rank_file import RankFile, rank_file
from snapconv.answers.verdict import find_verdict
from snapconv.classification.categories import Category
from snapconv.units import format_bytes
from snapconv.writers.html.ranks_page import write_ranks_page
from snapconv.writers.text.annotation import annotation_lines
from tests.builders import ADDR, MIB, START_US, TraceBuilder, frame
from tests.golden.test_dumps import WRAPPINGS
from tests.job_builder import rank_trace, write_rank

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "fixtures"
CAPTURE = FIXTURES / "transformer.capture"
SHARED = ROOT.parent / "shared" / "snapshots"
# Of other people's files one of each; of ours none whose wrapping alone is another.
REAL = {path.name.split("-")[0]: path for path in sorted(SHARED.glob("*.pickle"))}
FILES = [
    path
    for path in [*sorted(FIXTURES.iterdir()), *REAL.values()]
    if path.suffix in {".pickle", ".gz", ".html", ".capture"} and path.name not in WRAPPINGS
]
RUNS = "document.title='run'"
HOSTILE = f'</script><script>{RUNS}</script><img src=x onerror="{RUNS}">\'&\u202e\u2066'
TABS = {"1": "live", "2": "allocations", "3": "map", "4": "range", "5": "events", "6": "times"}
OVERFLOW = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
BYTES = re.compile(r"[\d.]+ [KMGT]?i?B")


def number(text):
    """The bytes in a text, to its two decimals."""
    value, unit = text.split()
    return float(value) * 1024 ** ("B", "KiB", "MiB", "GiB").index(unit)


def live_bytes(analysis, event):
    live = analysis.allocations.live_at(event)
    return int(analysis.allocations.block_bytes[live].sum()), int(np.count_nonzero(live))


@pytest.fixture(scope="module")
def analysis():
    return load(CAPTURE).devices[0]


@pytest.fixture
def page(browser, page_of):
    browser.open(page_of(CAPTURE))
    return browser


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_page_of_every_file_opens_without_an_error(browser, page_of, path):
    browser.open(page_of(path))
    for key, tab in TABS.items():
        browser.press(key)
        (shown,) = browser.each("[aria-selected=true]", "e.dataset.tab")
        assert shown in {tab, "events"}  # most files have no times
    assert browser.run(OVERFLOW) <= 0


def test_the_head_answers_what_filled_the_memory(page, analysis):
    assert page.text(".figure.main .figure-value") == "64.33 MiB"
    assert page.text(".figure.main .figure-more") == f"after event {analysis.peak_event} of 814"
    shown = page.each(".legend li", "[e.dataset.category, +e.dataset.bytes]")
    live = analysis.allocations.live_at(analysis.peak_event)
    category, n_bytes = analysis.classification.category, analysis.allocations.block_bytes
    expected = {c.label: int(n_bytes[live & (category == c)].sum()) for c in Category}
    assert dict(shown) == {name: size for name, size in expected.items() if size}
    assert page.text(".figure.history .figure-name") == "History complete"


def test_the_head_has_the_verdict_of_the_command_line_and_its_causes_lead_to_their_allocations(
    browser, page_of
):
    source = FIXTURES / "out_of_memory.pickle"
    session = load(source)
    found = find_verdict(session.devices[0])
    browser.open(page_of(source))
    assert browser.text(".verdict .sentence") == found.sentence
    assert browser.texts(".verdict .figure-name") == [f"The largest causes {found.moment}"]
    shown = browser.texts(".verdict .link")
    assert shown == [f"{c.category}, {c.line.place} in {c.line.function}" for c in found.causes]
    browser.choose(shown[0])
    categories = {text.strip() for text in browser.texts(".live-table .c-category")} - {"Category"}
    assert categories == {found.causes[0].category}
    lines = set(browser.texts(".live-table .c-where")) - {"Line"}
    assert lines == {f"{found.causes[0].line.place} in {found.causes[0].line.function}"}
    top = browser.run("return document.querySelector('.live-table').getBoundingClientRect().top")
    assert 0 <= top < browser.run("return innerHeight")


def test_the_head_has_the_findings_of_advise_which_open_to_what_to_do(browser, page_of):
    source = FIXTURES / "out_of_memory.pickle"
    (analysis,) = load(source).devices
    (trade,) = advise(analysis, goal_bytes=goal_of(analysis, capacity=None, save=None)).findings
    browser.open(page_of(source))
    assert browser.texts(".advice summary") == [
        f"−{format_bytes(trade.saved_bytes)}trade: {trade.what}"
    ]
    browser.run("document.querySelector('.advice summary').click()")
    rows = dict(zip(browser.texts(".advice th"), browser.texts(".advice td"), strict=True))
    assert (rows["how"], rows["costs"]) == (*trade.how, trade.costs)


@pytest.mark.parametrize("event", [-1, 0, 100, 547, 813])
def test_what_is_live_is_what_the_library_counts(browser, page_of, analysis, event):
    browser.open(page_of(CAPTURE), f"#e={event}")
    n_bytes, count = live_bytes(analysis, event)
    title = browser.text(".live h3")
    assert abs(number(BYTES.match(title).group()) - n_bytes) <= max(1, n_bytes // 1000)
    assert f"in {count} allocation" in title
    root = browser.run(
        "return +(document.querySelector('.cell') ?? {dataset: {bytes: 0}}).dataset.bytes"
    )
    assert root == n_bytes
    rows = browser.run(
        "for (let b; b = document.querySelector('.live .more');) b.click();"
        "return [...document.querySelectorAll('.live-table tbody tr')].map(e => +e.dataset.bytes)"
    )
    assert sum(rows) == n_bytes
    assert rows == sorted(rows, reverse=True)


def test_a_click_on_the_timeline_chooses_the_moment_there(page, analysis):
    page.click_timeline(0.5)
    event = int(page.run("return document.querySelector('.moment').value"))
    assert 400 <= event <= 412
    n_bytes, count = live_bytes(analysis, event)
    assert page.run("return +document.querySelector('.cell').dataset.bytes") == n_bytes
    assert f"{count} allocations after event {event}" in page.text(".live h3")
    page.press("p")
    assert page.text(".live h3").endswith("after event 547, the peak")


def test_zoomed_to_one_event_the_view_is_that_event(browser, page_of):
    browser.open(page_of(CAPTURE), "#e=547&v=545,549")
    browser.press("]")
    assert "after event 548" in browser.text(".live h3")
    browser.press("[", "[")
    assert "after event 546" in browser.text(".live h3")
    browser.press("0")
    browser.wait("return !location.hash.includes('v=')")


def view_of(browser):
    """The visible events, from the address; None where all are."""
    time.sleep(0.4)  # the address follows a moment later
    found = re.search(r"v=([\d.]+),([\d.]+)", browser.run("return location.hash"))
    return tuple(map(float, found.groups())) if found else None


def test_the_mouse_brushes_pans_and_zooms(page):
    chains = pytest.importorskip("selenium.webdriver").ActionChains
    plot = page.driver.find_element("css selector", ".overlay")
    at = plot.size["width"] // 2
    chain = chains(page.driver).move_to_element_with_offset(plot, 300 - at, 0).key_down("\ue008")
    chain.click_and_hold().move_by_offset(100, 0).release().key_up("\ue008").perform()
    first, last = view_of(page)
    per_pixel = 814 / (plot.size["width"] - 66)
    assert first == pytest.approx((300 - 58) * per_pixel, abs=2)
    assert last - first == pytest.approx(100 * per_pixel, abs=2)
    chains(page.driver).move_to_element(plot).click_and_hold().move_by_offset(
        -50, 0
    ).release().perform()
    moved, _ = view_of(page)
    assert moved - first == pytest.approx(50 / (plot.size["width"] - 66) * (last - first), rel=0.1)
    chains(page.driver).move_to_element(plot).double_click().perform()
    narrow = view_of(page)
    assert narrow[1] - narrow[0] == pytest.approx((last - first) * 0.4, rel=0.05)
    page.press("0")
    assert view_of(page) is None


def test_the_keys_are_explained_and_esc_closes_that(page):
    page.choose("?")
    assert "zoom" in page.text("dialog")
    page.driver.find_element("css selector", "body").send_keys("\ue00c")
    page.wait("return !document.querySelector('dialog')")
    page.press("/")
    page.wait("return document.activeElement.type === 'search'")


def test_a_part_of_the_icicle_is_all_that_the_table_shows(page):
    page.each(".cell", "e.textContent.startsWith('train.py:24') && e.click()")
    assert page.text(".live h3").startswith("19.99 MiB (31.1 %) in train.py:24 in train_step")
    categories = {text.strip() for text in page.texts(".live-table .c-category")} - {"Category"}
    assert categories == {"optimizer_state"}
    page.press("Escape")
    assert page.text(".live h3").startswith("64.33 MiB in 125 allocations")


def test_arrows_lead_through_live_memory_and_enter_chooses(page):
    page.run("document.querySelector('.cell[tabindex=\"0\"]').focus()")
    active = page.driver.switch_to.active_element
    for key, label in (
        ("\ue015", "train.py:43"),
        ("\ue015", "train.py:38"),
        ("\ue014", "train.py:35"),
    ):
        active.send_keys(key)
        active = page.driver.switch_to.active_element
        assert active.text.startswith(label)
    active.send_keys("\ue007")
    assert "in train.py:35 in main" in page.text(".live h3")
    assert view_of(page) is None  # the arrows did not move the timeline


def test_a_filter_leaves_what_has_all_its_words(page):
    page.run(
        "const i = document.querySelector('input[type=search]'); i.value = 'head weight exp_avg';"
        "i.dispatchEvent(new Event('input'))"
    )
    assert page.texts(".live-table tbody .c-tensor") == [
        "head.weight: exp_avg",
        "head.weight: exp_avg_sq",
    ]


def test_a_line_in_the_filter_is_no_longer_line_that_begins_so(browser, page_of):
    """Lines 35 and 38 of train.py hold memory, line 3 has none."""
    browser.open(page_of(CAPTURE), "#q=train.py:3")
    assert browser.text(".live .empty") == "Nothing is live here that fits the filter."
    browser.open(page_of(CAPTURE), "#q=train.py:35")
    assert browser.text(".live h3").startswith("10.00 MiB (15.5 %) fit the filter")


@pytest.mark.parametrize(
    ("grouping", "label"),
    [
        ("Modules", "blocks.*.mlp.2, 2 modules · "),
        ("Operations", "linear · "),
        ("Lines", "train.py:43 in "),
    ],
)
def test_live_memory_is_grouped_as_chosen(page, grouping, label):
    page.choose(grouping)
    assert any(text.startswith(label) for text in page.texts(".cell"))


def test_a_column_sorts_up_and_down(page):
    page.choose("Tensor")
    names = page.texts(".live-table tbody .c-tensor")
    assert names == sorted(names)
    page.choose("Tensor ↑")
    assert page.texts(".live-table tbody .c-tensor")[0] >= names[-1]


def test_a_chosen_allocation_has_its_evidence_its_life_and_its_stack(page):
    page.run("document.querySelector('.live-table tbody tr').click()")
    text = page.text(".detail")
    assert "4.28 MiB temporary" in text
    assert "evidence: " in text
    assert re.search(r"from event \d+ to event \d+", text)
    assert re.search(r"snapconv explain transformer.capture '#\d+'", text)


@pytest.mark.parametrize("tab", ["1", "2", "3"])
def test_a_chosen_allocation_is_shown_beside_the_picture_it_was_chosen_in(page, tab):
    page.run("document.querySelector('.live-table tbody tr').click()")
    page.press(tab)
    top, left, right = page.run(
        "const box = (s) => document.querySelector(s).getBoundingClientRect();"
        "const [d, t] = [box('.detail'), box('.main-column')];"
        "return [d.top, d.left, t.right]"
    )
    assert top < 600
    assert left >= right
    assert page.run(OVERFLOW) <= 0


def test_lines_and_functions_come_first_and_the_whole_place_is_in_the_tooltip(
    browser, page_of, tmp_path
):
    place = "/home/me/proj/a/very/deep/folder/model.py"
    builder = TraceBuilder().segment().alloc(512, frames=[frame("main", "/home/me/proj/t.py", 1)])
    builder.alloc(
        1024, frames=[frame("forward", place, 35), frame("main", "/home/me/proj/t.py", 1)]
    )
    browser.open(page_of(builder.write(tmp_path / "s.pickle")))
    cells = browser.each(".live-table .c-where", "[e.textContent, e.title]")
    shown = next(cell for cell in cells if "35" in cell[0])
    assert shown == ["model.py:35 in forward", "a/very/deep/folder/model.py:35 in forward"]
    titles = browser.each(".cell", "[e.textContent, e.title.split('\\n')[0]]")
    assert ["model.py:35 in forward · 1.00 KiB", shown[1]] in titles


def test_a_page_opens_on_the_device_that_ran_out_of_memory(browser, page_of, tmp_path):
    first = TraceBuilder().segment().alloc(4096)
    second = TraceBuilder(device=2).segment().alloc(512).oom(1 << 30)
    browser.open(page_of(first.write(tmp_path / "s.pickle", second)))
    assert browser.texts("[aria-label=Device] [aria-pressed=true]") == ["cuda:2"]


@pytest.mark.parametrize("coloring", ["Line", "Stack"])
def test_allocations_are_coloured_as_chosen_and_a_link_has_the_choice(page, coloring):
    page.press("2")
    pixels = "return document.querySelector('.allocations canvas').toDataURL()"
    before = page.run(pixels)
    page.choose(coloring)
    assert page.run(pixels) != before
    time.sleep(0.4)  # the address follows
    assert f"c={coloring.lower()}" in page.run("return location.hash")


def test_the_wheel_zooms_a_picture_that_was_clicked_and_wasd_zooms_and_moves(page):
    def wheel():
        page.run(
            "const turned = {deltaY: -120, clientX: 500, clientY: 500, bubbles: true, cancelable: "
            "true};"
            "document.querySelector('.timeline .overlay').dispatchEvent(new WheelEvent('wheel', "
            "turned))"
        )
        time.sleep(0.5)
        return view_of(page)

    assert wheel() is None  # the page scrolls
    page.run("document.querySelector('.timeline .overlay').focus()")
    zoomed = wheel()
    assert zoomed is not None
    page.press("0", "w")
    time.sleep(0.5)
    inner = view_of(page)
    page.press("d")
    time.sleep(0.5)
    assert view_of(page)[0] > inner[0]
    page.press("s", "s")
    time.sleep(0.5)
    assert view_of(page) is None or view_of(page)[1] - view_of(page)[0] > inner[1] - inner[0]


def test_the_map_has_the_reserved_bytes(page, analysis):
    page.press("3")
    reserved = analysis.replay.reserved.at(analysis.peak_event)
    title = page.text(".map h3")
    assert number(BYTES.match(title).group()) == reserved
    free = reserved - analysis.replay.active.at(analysis.peak_event)
    assert abs(number(BYTES.findall(title)[1]) - free) < 2**20 / 100


def test_times_stand_beside_the_memory(page):
    page.press("6")
    rows = page.run(
        "return [...document.querySelectorAll('.times tbody tr')].map(e => e.textContent)"
    )
    assert rows[0].startswith("linear")
    assert any("MiB" in row for row in rows)


def test_a_link_leads_to_the_same_selection(browser, page_of):
    page = page_of(CAPTURE)
    browser.open(page, "#e=300&t=live&g=module&q=blocks.0")
    title = browser.text(".live h3")
    assert "after event 300" in title
    browser.wait("return location.hash.includes('g=module')")
    fragment = browser.run("return location.hash")
    browser.open(page, fragment)
    assert browser.text(".live h3") == title
    assert browser.run("return document.querySelector('input[type=search]').value") == "blocks.0"


def test_names_of_a_file_are_text_wherever_they_are_shown(browser, page_of, tmp_path):
    marks = [
        {"name": HOSTILE, "stage": stage, "time_us": START_US + i, "device": 0}
        for i, stage in ((0, "START"), (2, "END"))
    ]
    long = "x" * 1_000_000
    builder = TraceBuilder().segment().alloc(512, frames=[frame(HOSTILE, f"/home/me/{HOSTILE}.py")])
    builder.alloc(1024, frames=[frame(long, f"/home/me/{long}.py")], user_metadata=HOSTILE)
    settings = {HOSTILE: HOSTILE, "PYTORCH_CUDA_ALLOC_CONF": long}
    path = builder.write(
        tmp_path / "run.pickle", external_annotations=marks, allocator_settings=settings
    )
    browser.open(page_of(path))
    for key in TABS:
        browser.press(key)
    browser.press("1")
    browser.choose("All frames")
    browser.run("document.querySelector('.live-table tbody tr:last-child').click()")
    assert "<script>" in browser.text(".detail")
    assert "\\u202e" in browser.text(".detail")
    assert "\u202e" not in browser.run("return document.body.textContent")
    assert browser.run("return document.title") == "run.pickle – snapconv"
    assert browser.run("return document.querySelectorAll('img, #app script').length") == 0
    assert browser.run(OVERFLOW) <= 0


@pytest.mark.parametrize("width", [380, 400, 1280, 2560])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_cut_off_at_any_width_in_any_theme(page_with_source, width, scheme):
    browser = page_with_source
    browser.scheme(scheme)
    browser.resize(width, 900)
    for keys in ("1", "2", "3", "4", "5", "6", "7", "pi", "?"):
        key = keys[-1]
        browser.press(*keys)
        browser.run("return 0")
        assert browser.run(OVERFLOW) <= 0, key
        outside = browser.run(
            "return [...document.querySelectorAll('button, h1, h2, h3, canvas, .figure, li')]"
            ".filter(e => e.offsetParent && !e.closest('.icicle, .table-box'))"
            ".map(e => e.getBoundingClientRect())"
            ".filter(b => b.width && (b.left < -1 || b.right > innerWidth + 1)).length"
        )
        assert outside == 0, key
        wide = browser.each(
            ".panel:not([hidden]) table", "e.scrollWidth > e.parentElement.clientWidth"
        )
        assert not any(wide), key
        heights = browser.each("tbody tr", "e.offsetHeight")
        assert max(heights, default=0) < 100, key  # a column without room has a letter a line
    dark = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", dark)[:3])) < 200) is (scheme == "dark")


@pytest.mark.parametrize("tab", ["live", "allocations", "map"])
def test_a_picture_is_saved_as_svg_and_png_from_the_page_alone(browser, page_of, tab):
    browser.open(page_of(CAPTURE), f"#t={tab}")
    browser.run(
        "window.saved = []; const make = URL.createObjectURL.bind(URL);"
        "URL.createObjectURL = blob => { window.saved.push(blob); return make(blob); };"
        "HTMLAnchorElement.prototype.click = () => {};"
        "const buttons = [...document.querySelectorAll('button')].filter(b => b.offsetParent);"
        "for (const b of buttons) if (['SVG', 'PNG'].includes(b.textContent)) b.click();"
    )
    kinds = browser.wait("return window.saved.length >= 6 && window.saved.map(b => b.type)")
    assert sorted(set(kinds)) == ["image/png", "image/svg+xml"]
    parsed = browser.driver.execute_async_script(
        "const done = arguments[0], svgs = window.saved.filter(b => b.type.includes('svg'));"
        "const parsed = t => new DOMParser().parseFromString(t, 'image/svg+xml');"
        "const faults = t => parsed(t).querySelectorAll('parsererror').length;"
        "Promise.all(svgs.map(b => b.text())).then(texts => done(texts.map(faults)))"
    )
    assert set(parsed) == {0}


def test_devices_are_shown_one_at_a_time(browser, page_of, tmp_path):
    other = TraceBuilder(device=1).segment().alloc(4096)
    path = TraceBuilder().segment().alloc(512).write(tmp_path / "two.pickle", other)
    browser.open(page_of(path))
    assert browser.text(".figure.main .figure-value") == "4.00 KiB"  # the higher peak
    browser.choose("cuda:0")
    assert browser.text(".figure.main .figure-value") == "512 B"
    assert browser.text(".live h3").startswith("512 B in 1 allocation")


@pytest.fixture
def moved(tmp_path):
    """Two files: a line has moved down by two and holds more, another one has appeared."""
    paths = []
    for name, line, size in (("old.pickle", 9, 2048), ("new.pickle", 11, 6144)):
        grown = [frame("forward", "/home/me/project/model.py", line)]
        builder = TraceBuilder().segment().alloc(1024).alloc(size, frames=grown)
        if line == 11:
            builder.alloc(512, frames=[frame("log", "/home/me/project/log.py", 3)])
        paths.append(builder.write(tmp_path / name))
    return paths


def test_two_files_are_compared_as_diff_does(browser, page_of, moved):
    browser.open(page_of(*moved))
    assert browser.text(".compare h3") == "Peak 3.00 KiB → 7.50 KiB (+4.50 KiB)"
    assert browser.texts("[aria-label=Axis] [aria-pressed=true]") == ["Iterations"]
    assert "+4.50 KiB" in browser.texts(".figure-value")
    pixels = "return document.querySelector('.timeline canvas').toDataURL()"
    with_other = browser.run(pixels)
    browser.choose("allocated in the other file")
    assert browser.run(pixels) != with_other
    browser.choose("Lines")
    rows = browser.each(".compare tbody tr", "[e.dataset.name, +e.dataset.change]")
    assert rows == [
        ["model.py:11 in forward (was 9)", 4096],
        ["log.py:3 in log", 512],
        ["train.py:7 in train", 0],
    ]
    assert browser.texts(".became") == ["appeared"]
    found = load(moved[1]).compared_with(load(moved[0])).devices[0]
    browser.choose("Operations")
    rows = browser.each(".compare tbody tr", "[e.dataset.name, +e.dataset.change]")
    assert rows == [[row.name, row.more_bytes] for row in found.operations]


def test_arrows_lead_over_the_allocations_and_the_map(page):
    for tab, canvas, key in (
        ("2", ".allocations .overlay", "\ue013"),
        ("3", ".map canvas", "\ue014"),
    ):
        page.press("Escape", tab)
        page.run("document.querySelector(arguments[0]).focus()", canvas)
        chosen = set()
        for _ in range(3):
            page.driver.switch_to.active_element.send_keys(key)
            chosen.add(page.text(".detail table"))
        assert len(chosen) == 3, tab  # each time another one, and the focus stayed
    assert view_of(page) is None


def test_the_button_for_the_theme_changes_all_colours_and_back(page):
    def body():
        return page.run("return getComputedStyle(document.body).backgroundColor")

    for system in ("light", "dark"):
        page.scheme(system)
        before = body()
        page.choose("Theme")
        after = body()
        assert after != before
        page.choose("Theme")
        assert body() == before
        page.driver.refresh()
        page.wait("return document.documentElement.dataset.state === 'ready'")


def test_a_page_that_is_cut_off_says_so(shared_browser, page_of, tmp_path):
    page = page_of(CAPTURE).read_bytes()
    cut = tmp_path / "cut.html"
    cut.write_bytes(page[: len(page) - 3000])
    shared_browser.driver.get(cut.as_uri())
    shared_browser.wait("return document.documentElement.dataset.state === 'failed'")
    assert "cannot be shown" in shared_browser.text(".failed")
    shared_browser.logged()


@pytest.fixture
def failing_file(tmp_path):
    """A file whose peak of 8 KiB is over when a request of 1 GiB fails at 2 KiB, and another of 2."""
    builder = TraceBuilder().segment().alloc(2048).alloc(6144).free().oom(1 << 30)
    return builder.alloc(512).oom(2 << 30).write(tmp_path / "failed.pickle")


def test_a_page_opens_at_the_failure_and_the_red_figure_leads_to_each(
    browser, page_of, failing_file
):
    first, second = (row.event for row in failed_allocations(load(failing_file).devices[0]))
    browser.open(page_of(failing_file))
    expected = f"2.00 KiB in 1 allocation after event {first}, when the request failed"
    assert browser.text(".live h3") == expected
    browser.press("p")
    assert browser.text(".live h3").startswith("8.00 KiB in 2 allocations")
    browser.run("document.querySelector('.figure.alarm').click()")
    assert browser.text(".live h3") == expected
    browser.press("f")
    assert f"2.50 KiB in 2 allocations after event {second}" in browser.text(".live h3")
    browser.press("f")
    assert browser.text(".live h3") == expected


def test_a_click_on_an_iteration_gives_its_totals_by_line_and_category(page, analysis):
    first, last = analysis.iterations[1].first_event, analysis.iterations[1].last_event
    page.click_timeline((first + last) / 2 / analysis.n_events, from_top=6)
    table = analysis.allocations
    begins = (table.alloc_event >= first) & (table.alloc_event <= last)
    ends = (table.freed_event >= first) & (table.freed_event <= last)
    masks = (begins, ends, begins & ~ends)
    sums = [int(table.block_bytes[mask].sum()) for mask in masks]
    words = zip(map(format_bytes, sums), ("allocated", "freed", "kept"), strict=True)
    expected = ", ".join(map(" ".join, words))
    title = page.text(".range h3")
    assert title == f"Iteration 1, events {first} to {last}: {expected}"
    read = "[e.dataset.name, [...e.querySelectorAll('[data-bytes]')].map(c => +c.dataset.bytes)]"
    lines = page.each(".range tbody tr", read)
    assert [sum(column) for column in zip(*(row for _, row in lines), strict=True)] == sums
    page.choose("Categories")
    category = analysis.classification.category
    for name, row in page.each(".range tbody tr", read):
        is_in = category == next(c for c in Category if c.label == name)
        assert row == [int(table.block_bytes[mask & is_in].sum()) for mask in masks]
    page.choose("Lines")
    page.each(".range tbody .link", "e.textContent.startsWith('train.py:24 ') && e.click()")
    assert f"after event {last}" in page.text(".live h3")
    assert "fit the filter" in page.text(".live h3")
    page.press("r", "Escape")
    assert page.text(".range h3").startswith("The visible part, events 0 to 813: ")


def test_by_operation_the_live_memory_is_a_flame_graph_upside_down(page, analysis):
    page.choose("Operations")
    labels = page.each(".cell", "[e.title.split('\\n')[0], +e.dataset.bytes, e.style.top]")
    operation = np.array(analysis.operations)[analysis.operation_id]
    live = analysis.live_at_peak & (operation == "zeros_like")
    n_bytes = int(analysis.allocations.block_bytes[live].sum())
    rows = [label for label, size, _ in labels if size == n_bytes]
    # Only the step calls it, and only main the step.
    expected = ["zeros_like", "train.py:24 in train_step", "train.py:38 in main"]
    assert rows == [*expected, "train.py:43 in <module>"]


def test_two_files_are_one_flame_graph_of_what_differs(browser, page_of, moved):
    browser.open(page_of(*moved))
    browser.choose("Lines")
    cells = dict(browser.each(".compare .cell", "e.title.split('\\n')"))
    assert cells == {
        "all that is live at the peak": "3.00 KiB → 7.50 KiB (+4.50 KiB)",
        # The line has moved down by two: it is one of the same function all the same.
        "model.py in forward": "2.00 KiB → 6.00 KiB (+4.00 KiB)",
        "model.py:11 in forward": "2.00 KiB → 6.00 KiB (+4.00 KiB)",
        "train.py in train": "1.00 KiB → 1.00 KiB (the same)",
        "train.py:7 in train": "1.00 KiB → 1.00 KiB (the same)",
        "log.py in log": "0 B → 512 B (+512 B)",
        "log.py:3 in log": "0 B → 512 B (+512 B)",
    }
    browser.each(".compare .cell", "e.title.startsWith('log.py in') && e.click()")
    assert browser.each(".compare .cell", "e.title.split(' ')[0]") == ["all", "log.py", "log.py:3"]


def test_the_list_of_events_has_each_with_its_effect_and_a_click_chooses_it(page, analysis):
    page.press("p", "5")
    assert page.text(".events h3") == "Events 500 to 549 of 814"
    table, events = analysis.allocations, analysis.device.events
    read = "[+e.dataset.event, e.children[1].textContent, +e.dataset.bytes]"
    rows = page.each(".events tbody tr", read)
    for event, action, n_bytes in rows:
        at = {"alloc": table.alloc_event, "free": table.freed_event, "reusable": table.end_event}
        if action in at:
            assert n_bytes in table.block_bytes[at[action] == event].tolist()
        if action == "segment":
            assert n_bytes == events.size[event]
    allocs = [event for event, action, _ in rows if action == "alloc"]
    is_on_page = (table.alloc_event >= 500) & (table.alloc_event < 550)
    assert allocs == sorted(table.alloc_event[is_on_page].tolist())
    page.run(
        "document.querySelector('.events tr[data-event=\"' + arguments[0] + '\"]').click()",
        allocs[0],
    )
    assert f"'#{allocs[0]}'" in page.text(".detail code")
    assert int(page.run("return document.querySelector('.moment').value")) == allocs[0]
    page.choose("Earlier")
    assert page.text(".events h3") == "Events 450 to 499 of 814"


@pytest.fixture
def part(browser, tmp_path):
    """A file of a segment, four allocations and two frees, and the page of its events 3 to 5.

    Events: 0 the segment, 1 to 4 the allocations (1, 2, 3 and 4 MiB), 5 and 6 the free of that of
    2 MiB, 7 and 8 the free of that of 3 MiB.
    """
    trace = TraceBuilder().segment(20 * MIB)
    for n_bytes in (MIB, 2 * MIB, 3 * MIB, 4 * MIB):
        trace.alloc(n_bytes, frames=[frame(f"make_{n_bytes // MIB}", line=n_bytes // MIB)])
    trace.free(ADDR + MIB).free(ADDR + 3 * MIB)
    session = load(trace.write(tmp_path / "run.pickle"))
    browser.open(session.between("3", "5").view(tmp_path / "part.html").path)
    return session


def test_the_page_of_a_range_has_the_events_of_the_file(browser, part):
    assert "events 3 to 5 of 9, " in browser.text(".file p")
    assert browser.text(".figure.main .figure-more") == "after event 4 of 9"
    assert browser.text(".live h3") == "10.00 MiB in 4 allocations after event 4, the peak"
    browser.press("]")
    assert browser.run("return document.querySelector('.moment').value") == "5"
    browser.run(
        "const box = document.querySelector('.moment'); box.value = 3;"
        "box.dispatchEvent(new Event('change'))"
    )
    assert browser.text(".live h3") == "6.00 MiB in 3 allocations after event 3"
    browser.press("[")
    assert browser.text(".live h3") == "3.00 MiB in 2 allocations before event 3"
    browser.press("4")
    assert browser.text(".range h3").startswith("The visible part, events 3 to 5: ")
    browser.press("5")
    assert browser.text(".events h3") == "Events 3 to 5 of 9"
    rows = browser.each(".events tbody tr", "[e.dataset.event, e.children[1].textContent]")
    assert rows == [["3", "alloc"], ["4", "alloc"], ["5", "free"]]


@pytest.mark.parametrize(
    ("line", "life"),
    [
        (2, "from before event 3 to event 5"),
        (3, "from event 3 to after event 5"),  # event 7 frees it
        (4, "from event 4 to after event 5"),
    ],
)
def test_the_command_of_a_range_explains_the_allocation_of_the_file(browser, part, line, life):
    browser.run(
        "const rows = [...document.querySelectorAll('.live-table tbody tr')];"
        "rows.find(row => row.textContent.includes('in make_' + arguments[0])).click()",
        line,
    )
    question = browser.text(".detail code").split()[-1].strip("'")
    (explained,) = part.explain(question).allocations
    assert explained["block_bytes"] == line * MIB
    assert life in browser.text(".detail table")


def test_an_iteration_of_a_range_keeps_its_number_and_an_event_its_time(browser, tmp_path):
    session = load(FIXTURES / "growing.pickle")
    page = session.between("iteration:2", "iteration:4").view(tmp_path / "part.html")
    browser.open(page.path)
    (device,) = session.devices
    begin, third, end = (device.iterations[i] for i in (2, 3, 4))
    first, last, n_events = third.first_event, third.last_event, end.last_event + 1
    middle = (first + last) / 2 - begin.first_event
    browser.click_timeline(middle / (n_events - begin.first_event), from_top=6)
    assert browser.text(".range h3").startswith(f"Iteration 3, events {first} to {last}: ")
    browser.choose("Time")
    browser.run("document.querySelector('.overlay').focus()")
    browser.press("w")
    times = device.device.events.time_us
    since_first = times[[begin.first_event, n_events - 1]] - times[0]
    assert since_first[0] <= view_of(browser)[0] < view_of(browser)[1] <= since_first[1] * 1.01


def test_the_list_of_events_has_failures(browser, page_of, failing_file):
    browser.open(page_of(failing_file), "#t=events")
    actions = browser.each(".events tbody tr", "[e.children[1].textContent, +e.dataset.bytes]")
    assert [size for action, size in actions if action == "out of memory"] == [1 << 30, 2 << 30]
    assert [size for action, size in actions if action == "alloc"] == [2048, 6144, 512]
    assert browser.each(".events tr.chosen td.alarm", "e.textContent") == ["out of memory"]


def test_a_tab_is_copied_as_text_with_the_moment_and_the_filter_in_words(
    browser, page_of, analysis
):
    browser.open(page_of(CAPTURE), "#q=head%20weight%20exp_avg")
    browser.driver.execute_script(
        "Object.defineProperty(navigator, 'clipboard', {value: {writeText: t => {window.text = t}}})"
    )
    browser.choose("Copy as text")
    lines = browser.wait("return window.text").splitlines()
    assert lines[:2] == [
        "transformer.capture, cuda:0, after event 547 of 814, the peak, iteration 1",
        "filter: only what has the words head and weight and exp_avg",
    ]
    # Of a linear layer from 256 features to 2,000 words, Adam keeps two states of 4 bytes a weight.
    n_bytes = 2 * 2_000 * 256 * 4
    whole, _ = live_bytes(analysis, analysis.peak_event)
    sizes = f"{n_bytes / MIB:.2f} MiB ({100 * n_bytes / whole:.1f} %)"
    assert lines[2].startswith(f"{sizes} fit the filter, of {format_bytes(whole)}")
    assert lines[3].split() == [
        "Bytes",
        "Count",
        "Category",
        "Line",
        "Operation",
        *("Module", "or", "call", "path"),  # the loss is computed in no module of the program
        "Tensor",
    ]
    assert [line.rpartition("  ")[2] for line in lines[4:]] == [
        "head.weight: exp_avg",
        "head.weight: exp_avg_sq",
    ]
    browser.driver.execute_script(
        "navigator.clipboard.writeText = () => Promise.reject(Error('not allowed'))"
    )
    browser.press("c")
    browser.wait("return document.querySelector('dialog textarea')?.value === window.text")


def test_equal_modules_are_one_row_as_on_the_terminal(page, analysis):
    page.choose("Modules")
    sizes = dict(page.each(".cell", "[e.title.split('\\n')[0], +e.dataset.bytes]"))
    state = state_at(analysis, find_moment(analysis, "peak"))
    groups = [(name, n_bytes) for n_bytes, name in group_modules(state.modules)]
    several = {name: n_bytes for name, n_bytes in groups if name.endswith(" modules")}
    assert "blocks.*.mlp.2, 2 modules" in several
    least = max(sizes.values()) / 200  # narrower cells are left out
    for name, n_bytes in several.items():
        assert sizes.get(name, n_bytes if n_bytes < least else 0) == n_bytes, name
    assert sizes["blocks.*.mlp.2, 2 modules"] == 2 * sizes["blocks.1.mlp.2"]


def test_words_are_those_of_the_terminal(browser, page_of, tmp_path):
    calls = [frame("forward", "/home/me/p/model.py", 5), frame("main", "/home/me/p/train.py", 9)]
    builder = TraceBuilder().segment().alloc(2048, frames=calls).alloc(512, frames=[])
    browser.open(page_of(builder.write(tmp_path / "s.pickle")))
    cells = browser.texts(".live-table .c-where")
    assert "no stack recorded" in cells
    browser.run("document.querySelector('.live-table tbody tr:last-child').click()")
    assert "no stack recorded" in browser.text(".detail .stack")


def test_lines_of_calls_are_call_paths_and_no_modules(browser, page_of):
    browser.open(page_of(FIXTURES / "growing.pickle"))  # which has no paths of modules
    browser.choose("Call paths")
    browser.run("document.querySelector('.live-table tbody tr').click()")
    assert "call path" in browser.texts(".detail th")


@pytest.fixture
def page_with_source(browser, tmp_path):
    """The page of a job: 10.01 MiB at model.py:35, called by model.py:53 and train.py."""
    page = load(CAPTURE).view(tmp_path / "page.html", source=FIXTURES / "entries/transformer").path
    browser.open(page)
    return browser


def chosen_source(page):
    """The chosen line of the source: its number and text, where that is visible."""
    page.wait("return document.querySelector('.source tr.chosen')")
    (row,) = page.each(
        ".source tr.chosen",
        "[e.querySelector('.s-number').textContent, e.querySelector('.s-text').textContent,"
        " e.getBoundingClientRect().bottom < innerHeight]",
    )
    assert row.pop()
    return row


def test_the_source_tab_has_the_rows_of_annotate(page_with_source):
    page = page_with_source
    page.press("7")
    assert page.text("[aria-selected=true]") == "Source"
    (annotation,) = load(CAPTURE).annotate(source=FIXTURES / "entries/transformer")
    terminal = [line.split() for line in annotation_lines(annotation)]
    shown = page.each(
        ".source tbody tr", "[...e.cells].map(c => c.textContent).join(' ').split(/\\s+/)"
    )
    shown = [[word for word in words if word] for words in shown]
    assert len(shown) > 10
    assert [words for words in shown if words not in terminal] == []
    loss = FIXTURES.joinpath("entries/transformer/train.py").read_text().splitlines()[21].strip()
    assert ["3.91", "MiB", "3.91", "MiB", "7.82", "MiB", "22", *loss.split()] in shown
    page.run(
        "[...document.querySelectorAll('.source .link')].find(b => /^3.91/.test(b.textContent)).click()"
    )
    assert page.text(".live h3").startswith("3.91 MiB")


def test_the_table_the_flame_graph_the_stack_and_the_head_lead_to_a_line_of_the_source(
    page_with_source,
):
    page = page_with_source
    line = FIXTURES.joinpath("entries/transformer/train.py").read_text().splitlines()
    link = "[...document.querySelectorAll('{} .link')].find(b => b.textContent.startsWith('{}')).click()"
    step = ["24", line[23].strip()]
    page.run(link.format(".live-table", "train.py:24"))
    assert chosen_source(page)[1].strip() == step[1]
    page.press("1")
    page.each(".cell", "e.textContent.startsWith('train.py:38') && e.click()")
    page.choose("show source")
    assert chosen_source(page)[0] == "38"  # this line allocates nothing itself
    page.press("1", "Escape")
    page.each(".live-table tbody tr", "e.textContent.includes('model.py:18') && e.click()")
    page.run(link.format(".stack", "train.py:43"))
    assert chosen_source(page)[0] == "43"
    page.press("Escape", "Escape")
    assert page.each(".source tr.chosen", "1") == []
    page.run("document.querySelector('.verdict .link + .link').click()")
    assert [text.strip() for text in chosen_source(page)] == step


def test_a_page_without_source_has_no_tab_of_it(page):
    page.press("7")
    assert "Source" not in page.texts(".tab")
    assert page.each(".live-table .link", "1") == []


@pytest.mark.parametrize("width", [400, 1280, 2560])
def test_the_source_overflows_at_no_width(page_with_source, width):
    page_with_source.resize(width, 900)
    page_with_source.press("7")
    assert page_with_source.run(OVERFLOW) <= 0
    assert (
        page_with_source.run(
            "const b = document.querySelector('.source .table-box');"
            "return b.scrollWidth - b.clientWidth"
        )
        <= 0
    )


@pytest.mark.parametrize("width", [400, 1280, 2560])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_of_ranks_overflows_at_no_width(browser, tmp_path, width, scheme):
    files = []
    for rank in range(32):
        trace = rank_trace(leak=(rank % 3) * MIB)
        path = write_rank(tmp_path / f"a_very_long_name_of_a_dump_{'x' * 60}_{rank}.pickle", trace)
        row = RankFile(str(path), rank, coordinates={"dp": rank // 16, "cp": 0, "tp": rank % 16})
        files.append(rank_file(load(path).analysis, row))
    write_ranks_page(tmp_path / "job.html", report_job(files), force=False)
    browser.scheme(scheme)
    browser.resize(width, 900)
    browser.driver.get((tmp_path / "job.html").as_uri())
    assert browser.run(OVERFLOW) <= 0
    right = browser.run("return document.querySelector('.heat').getBoundingClientRect().right")
    assert right <= width
    # The root has the scheme, so that the canvas and the text have it too.
    color = browser.run("return getComputedStyle(document.body).color")
    assert color == {"light": "rgb(0, 0, 0)", "dark": "rgb(255, 255, 255)"}[scheme]
    if width > 400:
        box = "const b = document.querySelector('.box'); return b.scrollWidth - b.clientWidth"
        assert browser.run(box) <= 0
