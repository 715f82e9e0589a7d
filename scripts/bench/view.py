"""Measure the pages of `snapconv view`: how large they are, how long they take to write, to open and to pan.

    python scripts/bench/view.py --events 20000 1000000 --cache FOLDER

Beside a bare ``pickle.load`` of the same file, in fresh processes. The page is opened in Chromium, headless
and without a GPU, and panned at several zooms while every frame is counted; ``idle`` is the same while
nothing moves, as a busy machine has slow frames of its own. Needs selenium, Chromium and its driver.
"""

import argparse
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

from scripts.bench.run import LOAD_PROGRAM, ROOT, make_sample  # the root is on the path only now

ZOOMS = (1, 10, 100, 1000)
TABS = ("live", "allocations", "map")
# What the page takes beyond the analysis: its data, and the file.
WRITE_PROGRAM = """
import sys, time
from pathlib import Path
import snapconv
from snapconv.reports.html.page_writer import ViewFile, write_page
from snapconv.reports.html.view_device import view_device, vocabulary
from snapconv.reports.html.view_file import file_facts
session = snapconv.load(sys.argv[1])
start = time.perf_counter()
devices = tuple(view_device(session.snapshot, session.project, device) for device in session.devices)
file = ViewFile(file_facts(session.snapshot, session.project, name="bench"), devices)
shared = vocabulary() | {"is_comparison": False}
write_page(Path(sys.argv[2]), [file], shared, title="bench", force=True)
print(time.perf_counter() - start)
"""
ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--window-size=1280,900")
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


@dataclass(frozen=True, slots=True)
class Page:
    """One page: seconds are the least of several runs, frames those of every zoom and tab together."""

    events: int
    page_bytes: int
    load_seconds: float
    write_seconds: float
    first_picture_ms: float
    all_read_ms: float
    frames_ms: tuple[float, ...]
    idle_ms: tuple[float, ...]


def load_seconds(snapshot: Path) -> float:
    """The seconds of a process that loads a file and does nothing with it."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", LOAD_PROGRAM, str(snapshot)], check=True)
    return time.perf_counter() - start


def write_seconds(snapshot: Path, page: Path) -> float:
    """The seconds that the page takes when the analysis is done."""
    program = [sys.executable, "-c", WRITE_PROGRAM, str(snapshot), str(page)]
    return float(subprocess.run(program, cwd=ROOT, check=True, capture_output=True, text=True).stdout)


@contextmanager
def browser() -> Iterator[Any]:
    """Start Chromium."""
    from selenium import webdriver

    driver, chromium = shutil.which("chromedriver"), shutil.which("chromium") or shutil.which("google-chrome")
    if not driver or not chromium:
        raise SystemExit("this needs Chromium and its driver (Debian: apt install chromium chromium-driver)")
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


def measure(driver: Any, snapshot: Path, n_events: int, page: Path) -> Page:
    """Write, open and pan the page of one file."""
    load = min(load_seconds(snapshot) for _ in range(3))
    written = min(write_seconds(snapshot, page) for _ in range(3))
    first, everything = min(opened(driver, page) for _ in range(3))
    panned, idle = (tuple(frames(driver, page, moves=moves)) for moves in (True, False))
    return Page(n_events, page.stat().st_size, load, written, first, everything, panned, idle)


def table(pages: list[Page]) -> Iterator[str]:
    """Format the figures as Markdown."""
    yield (
        "| events | page MB | bare load s | page s | first picture ms | all data ms "
        "| frame median, 95th percentile ms | idle |"
    )
    yield "|---:|---:|---:|---:|---:|---:|---:|---:|"
    for page in pages:
        shown = (page.frames_ms, page.idle_ms)
        cells = (
            f"{page.events:,}",
            f"{page.page_bytes / 1e6:.2f}",
            f"{page.load_seconds:.2f}",
            f"{page.write_seconds:.2f}",
            f"{page.first_picture_ms:.0f}",
            f"{page.all_read_ms:.0f}",
            *(f"{statistics.median(ms):.1f}, {statistics.quantiles(ms, n=20)[-1]:.1f}" for ms in shown),
        )
        yield "| " + " | ".join(cells) + " |"


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Measure the pages of snapconv view.")
    parser.add_argument("--events", type=int, nargs="*", default=[20_000, 1_000_000], metavar="N")
    parser.add_argument("--files", type=Path, nargs="*", default=[], help="snapshots of your own, too")
    parser.add_argument("--cache", type=Path, help="folder that keeps the generated files for the next time")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="snapconv-view-") as folder, browser() as driver:
        cache = (arguments.cache or Path(folder)).resolve()
        cache.mkdir(parents=True, exist_ok=True)
        samples = [make_sample(cache, n_events, stacks="all") for n_events in arguments.events]
        files = [(sample.path, sample.n_events) for sample in samples]
        files += [(path.resolve(), 0) for path in arguments.files]
        page = Path(folder) / "page.html"
        pages = [measure(driver, path, n_events, page) for path, n_events in files]
    print("\n".join(table(pages)))


if __name__ == "__main__":
    main()
