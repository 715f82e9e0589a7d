"""Memory that the program has freed and that waits for another stream, in every answer and output."""

import json
import sqlite3
from contextlib import closing

import pytest

import snapconv
from snapconv.answers.fragmentation import find_fragmentation
from snapconv.answers.peak import WAITING_LABEL
from snapconv.answers.verdict import find_verdict
from snapconv.cli.app import main
from snapconv.convert import ConvertOptions, to_sqlite
from snapconv.writers.html.view_device import view_device
from tests.builders import ADDR, MIB, TraceBuilder, frame

N_CALLS, GATHERED, COMPUTED, WEIGHTS = 4, 24, 8, 40
BUILD, GATHER, COMPUTE = (
    [frame(name, "/home/me/project/train.py", line)]
    for name, line in (("build", 20), ("gather", 34), ("compute", 33))
)


def gathering(*, waits=True, completes=True, unit=MIB):
    """Each call gathers shards into a buffer, which is freed while another stream uses it, and computes."""
    trace = TraceBuilder().segment(WEIGHTS * unit).alloc(WEIGHTS * unit, frames=BUILD)
    waiting = []
    for _ in range(N_CALLS):
        trace.segment(GATHERED * unit).alloc(GATHERED * unit, frames=GATHER)
        gathered = trace.events[-1]["addr"]
        trace.segment(COMPUTED * unit).alloc(COMPUTED * unit, frames=COMPUTE)
        trace.free(gathered, completed=not waits)
        waiting.append(gathered)
    for addr in waiting if waits and completes else ():
        trace.complete(addr)
    return trace


# At the peak the last buffer is still in use.
WAITING = (N_CALLS - 1) * GATHERED * MIB
ALLOCATED = (WEIGHTS + GATHERED + N_CALLS * COMPUTED) * MIB


@pytest.fixture
def path(tmp_path):
    return gathering().write(tmp_path / "s.pickle")


def state_of(path):
    (state,) = snapconv.load(path).at("peak")
    return state


def test_what_waits_is_beside_what_is_allocated_and_its_line_is_known(path):
    state = state_of(path)
    assert (state.allocated_bytes, state.waiting_bytes) == (ALLOCATED, WAITING)
    assert state.active_bytes == ALLOCATED + WAITING
    assert [(one.line.place, one.block_bytes) for one in state.waiting_lines] == [
        ("train.py:34", WAITING)
    ]


def test_what_waits_at_the_dump_is_known_by_its_block(tmp_path):
    path = gathering(completes=False).write(tmp_path / "s.pickle")
    (state,) = snapconv.load(path).at("end")
    assert state.waiting_bytes == N_CALLS * GATHERED * MIB


def test_a_free_that_completes_at_once_or_after_the_file_ends_waits_for_nothing(tmp_path):
    trace = TraceBuilder().segment(20 * MIB).alloc(8 * MIB).free(completed=False)
    during = trace.complete(ADDR).write(tmp_path / "s.pickle")
    (state,) = snapconv.load(during).at("event:2")
    assert (state.allocated_bytes, state.waiting_bytes) == (0, 0)
    cut = gathering(waits=False)
    cut.free(ADDR)
    cut.events.pop()  # a tool cut the trace between the request and its completion
    (state,) = snapconv.load(cut.write(tmp_path / "cut.pickle")).at("end")
    assert (state.waiting_bytes, state.waiting_lines) == (0, ())


def test_the_parts_of_oom_sum_to_what_is_in_use_and_the_line_with_most_comes_first(path, capsys):
    assert main(["oom", str(path)]) == 0
    text = capsys.readouterr().out
    assert "      96.00 MiB  in use\n" in text
    assert f"      72.00 MiB  {WAITING_LABEL}\n" in text
    lines = text[text.index("held by line") :].splitlines()[1:4]
    waiting = f"train.py:34 in gather (72.00 MiB of it {WAITING_LABEL})"
    assert [line.split(maxsplit=4) for line in lines] == [
        ["96.00", "MiB", "57.1", "%", waiting],
        ["40.00", "MiB", "23.8", "%", "train.py:20 in build"],
        ["32.00", "MiB", "19.0", "%", "train.py:33 in compute"],
    ]
    purposes = text[text.index("held by purpose") : text.index("  held by line")].splitlines()[1:]
    assert sum(float(line.split()[0]) for line in purposes) == (ALLOCATED + WAITING) / MIB


def test_the_verdict_says_why_so_much_is_reserved(path):
    found = find_verdict(snapconv.load(path).devices[0])
    assert "; 72.00 MiB more were freed and waited for another stream; " in found.sentence
    first = found.causes[0]
    assert (first.category, first.line.place, first.block_bytes) == (
        WAITING_LABEL,
        "train.py:34",
        WAITING,
    )
    assert sum(one.block_bytes for one in found.causes) <= ALLOCATED + WAITING


def test_the_summary_and_the_fragmentation_name_it_too(path, capsys):
    assert main(["summary", str(path)]) == 0
    text = capsys.readouterr().out
    assert f"  {WAITING_LABEL} 72.00 MiB\n" in text
    assert f"train.py:34 in gather (72.00 MiB of it {WAITING_LABEL})" in text
    assert main(["fragmentation", str(path), "--at", "peak"]) == 0
    of_line = "  waiting for a stream at the peak, most of it of train.py:34 in gather: 72.00 MiB\n"
    assert of_line in capsys.readouterr().out
    assert (
        find_fragmentation(snapconv.load(path).devices[0], "peak").moments[0].pending_bytes
        == WAITING
    )


def test_much_that_waits_is_the_conclusion_on_fragmentation(tmp_path):
    path = gathering(unit=8 * MIB).write(tmp_path / "s.pickle")
    found = find_fragmentation(snapconv.load(path).devices[0])
    sentence = (
        "1.31 GiB reserved at most, 0.00 GiB more than was ever in use at once; "
        "0.56 GiB was freed and waited for another stream"
    )
    assert found.conclusion == sentence


def test_json_has_it(path, capsys):
    assert main(["oom", str(path), "--json"]) == 0
    (device,) = json.loads(capsys.readouterr().out)["devices"]
    assert device["state"]["waiting_bytes"] == WAITING
    assert device["state"]["waiting_lines"][0]["line"]["line_number"] == 34


def test_the_database_has_it(path, tmp_path):
    output = tmp_path / "report.sqlite"
    to_sqlite(path, ConvertOptions(output=output, extended=True))
    with closing(sqlite3.connect(output)) as connection:
        sql = (
            "SELECT sum(block_bytes), group_concat(DISTINCT line) FROM snapconv_waiting_allocations"
        )
        assert connection.execute(sql).fetchone() == (WAITING, "34")


def test_the_page_has_it(path):
    verdict = view_device(snapconv.load(path).devices[0]).facts["verdict"]
    assert verdict["causes"][0] == [WAITING, "", "train.py:34 in gather", WAITING_LABEL]


def test_an_agent_gets_it(path):
    pytest.importorskip("mcp")
    from snapconv.cli.mcp_command import ToolBox

    answer = ToolBox((path.parent,)).call("oom", {"snapshot": path.name})
    assert f'"waiting_bytes": {WAITING}' in answer.content[0].text.replace('":', '": ').replace(
        ":  ", ": "
    )
