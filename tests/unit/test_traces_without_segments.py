"""A trace without segments in every output: exact where it begins with nothing, else lower bounds."""

import json
import pickle
import sqlite3
from contextlib import closing

import pytest

import snapconv
from snapconv.cli.app import main
from snapconv.writers.html.view_device import view_device
from tests.builders import ADDR, MIB, TraceBuilder

AT_LEAST = ["active", "allocated", "requested", "reserved"]


def whole():
    """Six buffers in segments of their own, and a temporary that comes and goes, as MLX writes it."""
    builder = TraceBuilder()
    for _ in range(6):
        builder.segment(16 * MIB).alloc(16 * MIB)
    return builder.segment(8 * MIB).alloc(8 * MIB).free()


def part():
    """Recording began after three buffers were made, and the program deleted them."""
    builder = TraceBuilder().segment(24 * MIB, traced=False)
    for _ in range(3):
        builder.alloc(8 * MIB, traced=False)
    for number in range(3):
        builder.free(ADDR + number * 8 * MIB)
    return builder


@pytest.fixture(params=["whole", "part"])
def case(request, tmp_path):
    """A file, its peak in bytes, and the figures of it that are lower bounds."""
    builder, peak, at_least = {"whole": (whole(), 104, []), "part": (part(), 24, AT_LEAST)}[
        request.param
    ]
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(builder.snapshot(segments=[])))
    return path, peak * MIB, at_least


def answer(capsys, *words):
    code = main(list(map(str, words)))
    return code, capsys.readouterr().out


def test_text_names_the_peak_and_calls_a_lower_bound_so(case, capsys):
    path, peak, at_least = case
    _, out = answer(capsys, "summary", path)
    least = "at least " if at_least else ""
    shown = f"{peak // MIB}.00 MiB"
    assert f"  allocated {least}{shown} ({peak} bytes), reserved {least}{shown}\n" in out
    _, out = answer(capsys, path)
    assert f"peak {least}{shown}" in out
    assert f"PyTorch reserved {'at least' if at_least else 'at most'} {shown}" in out
    _, out = answer(capsys, "info", path)
    assert "the file has no segments; at the end of its trace: reserved " in out


def test_json_has_the_figures_and_names_the_lower_bounds(case, capsys):
    path, peak, at_least = case
    (found,) = json.loads(answer(capsys, "summary", path, "--json")[1])["devices"]
    assert (found["allocated_bytes"], found["reserved_bytes"], found["at_least"]) == (
        peak,
        peak,
        at_least,
    )
    assert found["history_verdict"] == ("started late" if at_least else "complete")
    (found,) = json.loads(answer(capsys, "info", path, "--json")[1])["devices"]
    assert (found["n_segments"], found["at_least"]) == (0, at_least)


def test_a_limit_for_reserved_bytes_is_not_kept_by_what_the_file_lacks(case, capsys):
    path, peak, at_least = case
    assert answer(capsys, "check", path, "--max-reserved", "1GiB")[0] == (7 if at_least else 0)
    assert answer(capsys, "check", path, "--max-reserved", f"{peak // MIB - 1}MiB")[0] == 7


def test_the_report_and_the_page_have_the_same_figures(case, capsys, tmp_path):
    path, peak, at_least = case
    assert main(["to-sqlite", str(path), "--extended", "-o", str(tmp_path / "r.sqlite")]) == 0
    with closing(sqlite3.connect(tmp_path / "r.sqlite")) as report:
        (verdict,) = report.execute("select history_verdict from snapconv_report").fetchone()
        (lowest,) = report.execute("select min(reserved_bytes) from snapconv_timeline").fetchone()
    assert (verdict, lowest >= 0) == ("started late" if at_least else "complete", True)
    (device,) = snapconv.load(path).devices
    facts = view_device(device).facts
    assert (facts["peak_bytes"], facts["reserved_peak_bytes"]) == (peak, peak)
    assert "no-segments" in [slug for slug, _ in facts["notes"]]
    assert ("every figure is a lower bound" in facts["history_reason"]) == bool(at_least)


def test_an_agent_gets_the_same_figures(case):
    pytest.importorskip("mcp")
    from snapconv.cli.mcp_command import ToolBox

    path, peak, at_least = case
    result = ToolBox((path.parent,)).call("summary", {"snapshot": path.name})
    (found,) = json.loads(result.content[0].text)["devices"]
    assert (found["allocated_bytes"], found["reserved_bytes"], found["at_least"]) == (
        peak,
        peak,
        at_least,
    )
