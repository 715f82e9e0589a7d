"""What torch.profiler wrote, in every output: its bytes, its categories, and nothing of an allocator."""

import base64
import json
import re
import sqlite3
import zlib
from pathlib import Path

import pytest

from tests.unit.cli.test_mcp_command import served

PROFILES = Path(__file__).parents[3] / "fixtures" / "profiles"
PEAK = sum(json.loads((PROFILES / "expected.json").read_text(encoding="utf-8"))["peak"].values())
NAMES = {"profile_plot.html": "cpu", "timeline.raw.json.gz": "device"}


@pytest.mark.parametrize(("name", "device"), NAMES.items())
def test_text_names_what_the_file_is_and_claims_nothing_reserved(snapconv, name, device):
    done = snapconv(PROFILES / name)
    assert done.out.startswith(f"{device}  peak 868.02 KiB in this trace: 30 % optimizer state")
    assert "reserved" not in done.out
    assert "note: profile: the file is a" in done.err
    assert "torch.profiler" in snapconv("info", PROFILES / name).out.partition("\n")[0]


@pytest.mark.parametrize("name", NAMES)
def test_json_tables_page_and_agent_have_the_profilers_bytes(snapconv, name, tmp_path):
    (peak,) = json.loads(snapconv("summary", PROFILES / name, "--json").out)["devices"]
    assert peak["allocated_bytes"] == PEAK
    assert peak["kind"] == NAMES[name]
    found = {row["category"]: row["block_bytes"] for row in peak["categories"]}
    assert (found["weight"], found["optimizer_state"], found["unknown"]) == (132352, 264720, 0)
    report, page = tmp_path / "out.sqlite", tmp_path / "out.html"
    assert snapconv("to-sqlite", PROFILES / name, "--extended", "-o", report).code == 0
    with sqlite3.connect(report) as database:
        rows = database.execute(
            "SELECT device_kind, peak_usage_bytes FROM snapconv_report"
        ).fetchall()
    assert rows == [(NAMES[name], PEAK)]
    assert snapconv("view", PROFILES / name, "-o", page).code == 0
    parts = re.findall(r'octet-stream" id="[^"]*">([A-Za-z0-9+/=]+)<', page.read_text())
    assert any(
        f'"{NAMES[name]}"'.encode() in zlib.decompress(base64.b64decode(part)) for part in parts
    )


def test_an_agent_reads_the_profilers_bytes():
    calls = [
        ("summary", {"snapshot": "profile_plot.html"}),
        ("info", {"snapshot": "profile_plot.html"}),
    ]
    (_, summary), (_, info) = served([PROFILES], *calls)[1]
    assert json.loads(summary)["devices"][0]["allocated_bytes"] == PEAK
    assert "profile_plot" in json.loads(info)["form"]


@pytest.mark.parametrize("command", [("fragmentation",), ("what-if", "--search")])
def test_what_needs_an_allocator_says_that_there_is_none(snapconv, command):
    done = snapconv(command[0], PROFILES / "profile_plot.html", *command[1:])
    assert done.code == 3
    assert "tensors and not the allocator" in done.err


def test_a_limit_of_reserved_memory_is_unknown(snapconv):
    limits = ("--max-peak", "1MiB", "--max-reserved", "1GiB", "--in-trace")
    done = snapconv("check", PROFILES / "profile_plot.html", *limits)
    assert done.code == 7
    assert "ok    peak allocated of cpu" in done.out
    assert "UNKNOWN  peak reserved of cpu is not known" in done.out


def test_a_limit_of_the_peak_is_unknown_where_tensors_were_there_before(snapconv):
    done = snapconv("check", PROFILES / "profile_plot.html", "--max-peak", "1MiB")
    assert done.code == 7
    assert (
        "UNKNOWN  peak allocated of cpu is not known: at least 868.02 KiB, limit 1.00 MiB"
        in done.out
    )
