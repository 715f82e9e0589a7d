"""Measure the pages of `snapconv view`: how large they are, how long they take to write, to open and to pan.

    python scripts/bench/view.py --cache FOLDER        # all that have a budget; the largest load
    takes 7 GiB python scripts/bench/view.py --events 20000 --irregular

Beside a bare ``pickle.load`` of the same file, in fresh processes, in seconds of the processor. The
page is opened in Chromium, headless and without a GPU, and panned at several zooms while every
frame is counted; ``idle`` is the same while nothing moves, as a busy machine has slow frames of its
own. Clicks are measured until what they draw is on the screen, and what they take of the page's
thread, which a busy machine changes less. Each figure stands beside its budget, and the exit code is
1 where one does not hold. Needs selenium, Chromium and its driver.
"""

import argparse
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.bench.irregular import write as write_irregular  # the root is on the path only now
from scripts.bench.run import LOAD_PROGRAM, ROOT, make_sample

ZOOMS = (1, 10, 100, 1000)
TABS = ("live", "allocations", "map")
# What the page takes beyond the analysis: its data, and the file.
WRITE_PROGRAM = """
import sys, time
import snapconv
session = snapconv.load(sys.argv[1])
start = time.process_time()
session.view(sys.argv[2], force=True)
print(time.process_time() - start)
"""
# The most megabytes of a page by its number of events; the others are for all pages.
MOST_MB = {20_000: 1.5, 1_000_000: 12.0, 10_000_000: 40.0}
# Larger files are loaded and written once. Their stacks are of Python alone: with those of C++ a
# bare load of 10^7 events needs more memory than most machines have.
MOST_REPEATED, REPEATS = 2_000_000, 3
MOST_OF_LOAD, MOST_FIRST_MS, MOST_MEDIAN_MS, MOST_LATE_MS = 0.5, 1500.0, 33.4, 100.0
MOST_CLICK_MS = 100.0
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--window-size=1280,900",
)
# Pans by a tenth of the view in 40 steps, one a frame; gives the milliseconds between frames.
PAN = """
const done = arguments[2], moves = arguments[1];
const plot = document.querySelector('.overlay'), box = plot.getBoundingClientRect();
HTMLElement.prototype.setPointerCapture = () => {};
const at = (type, x) => plot.dispatchEvent(new PointerEvent(type,
    {clientX: x, clientY: box.top + 120, pointerId: 1, bubbles: true, button: 0}));
const middle = box.left + box.width / 2, x = middle + 120, frames = [];
for (let zoom = arguments[0]; zoom > 1; zoom /= 1.5)
  plot.dispatchEvent(new WheelEvent('wheel', {clientX: middle, clientY: box.top + 120, deltaY: -101,
                                              ctrlKey: true, bubbles: true, cancelable: true}));
let last = 0, step = 0;
requestAnimationFrame(() => requestAnimationFrame(function tick(now) {
  if (last) frames.push(now - last); else if (moves) at('pointerdown', x);
  last = now;
  if (step++ === 40) { if (moves) at('pointerup', x - 240); return done(frames); }
  if (moves) at('pointermove', x - 6 * step);
  requestAnimationFrame(tick);
}));
"""
# A click on the timeline, at a share of its width.
POINT = """
HTMLElement.prototype.setPointerCapture = () => {};
const plot = document.querySelector('.overlay'), box = plot.getBoundingClientRect();
const place = {clientX: box.left + 58 + (box.width - 66) * %s, clientY: box.bottom - 60};
for (const type of ['pointerdown', 'pointerup'])
  plot.dispatchEvent(new PointerEvent(type, {...place, pointerId: 1, bubbles: true}));
"""
POINTS = tuple(POINT % share for share in (0.2, 0.3, 0.4, 0.5, 0.6, 0.7))
# The first visible button whose text begins so.
CHOOSE = """
[...document.querySelectorAll('button')].find(
    b => b.offsetParent && b.textContent.startsWith('%s')).click();
"""
TYPE = """
const field = document.querySelector('input[type=search]');
field.value = '%s'; field.dispatchEvent(new Event('input'));
"""
# What people do, by the tab they do it in: each script is one click, or one letter of a filter.
CLICKS = {
    "live memory: another moment": ("live", POINTS),
    "live memory: a line of the tree": (
        "live",
        tuple(f"document.querySelectorAll('.cell')[{n}].click()" for n in (3, 2, 1)),
    ),
    "live memory: a row of the table": (
        "live",
        tuple(f"document.querySelectorAll('.live-table tbody tr')[{n}].click()" for n in (2, 1)),
    ),
    "live memory: a letter of the filter": ("live", tuple(TYPE % text for text in ("f", "fo", ""))),
    "live memory: by operation, by line": (
        "live",
        (CHOOSE % "Operations", CHOOSE % "Lines") * 2,
    ),
    "live memory: sorted by category": ("live", (CHOOSE % "Category",) * 2),
    "allocations: another moment": ("allocations", POINTS),
    "allocator map: another moment": ("map", POINTS),
    "range: another moment": ("range", POINTS),
    "events: another moment": ("events", POINTS),
}
CLICK = """
const [script, done] = arguments, start = performance.now();
new Function(script)();
requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(() => done(performance.now() - start))));
"""


@dataclass(frozen=True, slots=True)
class Click:
    """One click: milliseconds of the page's thread, and until it was drawn."""

    name: str
    thread_ms: float
    drawn_ms: float


@dataclass(frozen=True, slots=True)
class Page:
    """One page: seconds are of the processor and the least of several runs, frames of every zoom and tab."""

    name: str
    events: int
    page_bytes: int
    load_seconds: float
    write_seconds: float
    first_picture_ms: float
    all_read_ms: float
    frames_ms: tuple[float, ...]
    idle_ms: tuple[float, ...]
    clicks: tuple[Click, ...]


def load_seconds(snapshot: Path) -> float:
    """Return the seconds of a process that loads a file and does nothing with it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", LOAD_PROGRAM, str(snapshot)], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def write_seconds(snapshot: Path, page: Path) -> float:
    """Return the seconds that the page takes when the analysis is done."""
    program = [sys.executable, "-c", WRITE_PROGRAM, str(snapshot), str(page)]
    return float(
        subprocess.run(program, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    )


@contextmanager
def browser() -> Iterator[Any]:
    """Start Chromium."""
    from selenium import webdriver

    driver, chromium = (
        shutil.which("chromedriver"),
        shutil.which("chromium") or shutil.which("google-chrome"),
    )
    if not driver or not chromium:
        raise SystemExit(
            "this needs Chromium and its driver (Debian: apt install chromium chromium-driver)"
        )
    with tempfile.TemporaryDirectory(prefix="chromium-") as folder:
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        for argument in (*ARGUMENTS, f"--user-data-dir={folder}"):
            options.add_argument(argument)
        found = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
        try:
            yield found
        finally:
            found.quit()


def opened(driver: Any, page: Path, fragment: str = "") -> tuple[float, float]:
    """Open a page; give the milliseconds to its first picture, and to all of its data."""
    driver.get("about:blank")
    driver.get(page.as_uri() + fragment)
    while driver.execute_script("return document.documentElement.dataset.state") != "ready":
        time.sleep(0.05)
    marks = driver.execute_script(
        "return performance.getEntriesByType('mark').map(m => [m.name, m.startTime])"
    )
    return dict(marks)["first-picture"], dict(marks)["all-read"]


def frames(driver: Any, page: Path, *, moves: bool) -> Iterator[float]:
    """Pan every tab at every zoom, or only look at it."""
    for tab in TABS:
        for zoom in ZOOMS:
            opened(driver, page, f"#t={tab}")
            yield from driver.execute_async_script(PAN, zoom, moves)[2:]


def clicks(driver: Any, page: Path) -> Iterator[Click]:
    """Click what people click, each kind in a page that was just opened."""
    driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    for name, (tab, scripts) in CLICKS.items():
        opened(driver, page, f"#t={tab}")
        for script in scripts:
            before = _thread_seconds(driver)
            drawn_ms = driver.execute_async_script(CLICK, script)
            yield Click(name, (_thread_seconds(driver) - before) * 1000, drawn_ms)
    driver.execute_cdp_cmd("Performance.disable", {})


def _thread_seconds(driver: Any) -> float:
    metrics = driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return float(next(row["value"] for row in metrics if row["name"] == "TaskDuration"))


def measure(driver: Any, snapshot: Path, n_events: int, name: str, page: Path) -> Page:
    """Write, open and pan the page of one file."""
    repeats = range(REPEATS if n_events <= MOST_REPEATED else 1)
    load = min(load_seconds(snapshot) for _ in repeats)
    written = min(write_seconds(snapshot, page) for _ in repeats)
    first, everything = min(opened(driver, page) for _ in range(3))
    panned, idle = (tuple(frames(driver, page, moves=moves)) for moves in (True, False))
    done = tuple(clicks(driver, page))
    size = page.stat().st_size
    return Page(name, n_events, size, load, written, first, everything, panned, idle, done)


def row(page: Page) -> tuple[list[str], bool]:
    """Return the figures of a page, each beside its budget, and whether all of these hold."""
    limits = [most for events, most in MOST_MB.items() if page.events <= events]
    median, late = (
        statistics.median(page.frames_ms),
        statistics.quantiles(page.frames_ms, n=20)[-1],
    )
    idle = (statistics.median(page.idle_ms), statistics.quantiles(page.idle_ms, n=20)[-1])
    figures = (
        (page.page_bytes / 1e6, limits[0] if limits else None, 2),
        (page.write_seconds, page.load_seconds * MOST_OF_LOAD, 3),
        (page.first_picture_ms, MOST_FIRST_MS, 0),
        (page.all_read_ms, None, 0),
        (median, MOST_MEDIAN_MS, 1),
        (late, MOST_LATE_MS, 1),
    )
    cells = [page.name, *(_beside(*figure) for figure in figures), f"{idle[0]:.1f}, {idle[1]:.1f}"]
    return cells, all(limit is None or value <= limit for value, limit, _ in figures)


def _beside(value: float, limit: float | None, digits: int) -> str:
    if limit is None:
        return f"{value:.{digits}f}"
    return f"{value:.{digits}f} {'of' if value <= limit else '**over**'} {limit:.{digits}f}"


def table(pages: list[Page]) -> Iterator[str]:
    """Format the figures as Markdown."""
    yield (
        "| events | page MB | page s, of half a bare load | first picture ms | all data ms "
        "| frame median ms | 95th percentile ms | idle |"
    )
    yield "|---:|---:|---:|---:|---:|---:|---:|---:|"
    for page in pages:
        yield f"| {' | '.join(row(page)[0])} |"


def click_table(pages: list[Page]) -> Iterator[str]:
    """Format the clicks as Markdown, the median and the slowest of each."""
    yield "| events | click | ms of the page's thread: median, slowest | ms until drawn |"
    yield "|---:|---|---:|---:|"
    for page in pages:
        for name in CLICKS:
            rows = [click for click in page.clicks if click.name == name]
            thread, drawn = (
                [getattr(row, key) for row in rows] for key in ("thread_ms", "drawn_ms")
            )
            slowest = _beside(max(thread), MOST_CLICK_MS, 0)
            median = f"{statistics.median(thread):.0f}"
            yield (
                f"| {page.name} | {name} | {median}, {slowest} "
                f"| {statistics.median(drawn):.0f}, {max(drawn):.0f} |"
            )


def are_clicks_quick(page: Page) -> bool:
    """Return whether every click keeps its budget."""
    return all(click.thread_ms <= MOST_CLICK_MS for click in page.clicks)


def samples(arguments: argparse.Namespace, cache: Path) -> Iterator[tuple[Path, int, str]]:
    """Return the files to measure, with their number of events and what they are called."""
    for n_events in arguments.events:
        sample = make_sample(
            cache, n_events, stacks="all" if n_events <= MOST_REPEATED else "python"
        )
        yield sample.path, sample.n_events, f"{sample.n_events:,}"
    for n_events in arguments.irregular:
        path = cache / f"irregular-{n_events}.pickle"
        if not path.exists():
            write_irregular(n_events, path)
        yield path, n_events, f"{n_events:,}, all different"
    for path in arguments.files:
        yield path.resolve(), 0, path.name


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Measure the pages of snapconv view.")
    parser.add_argument(
        "--events", type=int, nargs="*", default=[20_000, 1_000_000, 10_000_000], metavar="N"
    )
    parser.add_argument(
        "--irregular",
        type=int,
        nargs="*",
        default=[1_000_000, 10_000_000],
        metavar="N",
        help="all different, too",
    )
    parser.add_argument(
        "--files", type=Path, nargs="*", default=[], help="snapshots of your own, too"
    )
    parser.add_argument(
        "--cache", type=Path, help="folder that keeps the generated files for the next time"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="snapconv-view-") as folder, browser() as driver:
        cache = (arguments.cache or Path(folder)).resolve()
        cache.mkdir(parents=True, exist_ok=True)
        page = Path(folder) / "page.html"
        pages = []
        for sample in samples(arguments, cache):
            pages.append(measure(driver, *sample, page))
            print(row(pages[-1])[0], file=sys.stderr)  # a run of all takes a quarter of an hour
    print("\n".join((*table(pages), "", *click_table(pages))))
    return 0 if all(row(page)[1] and are_clicks_quick(page) for page in pages) else 1


if __name__ == "__main__":
    sys.exit(main())
