"""Segments and blocks in SQL: at the dump those of the file itself, at the peak those that sum to it."""

import pickle
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from snapconv.cli.app import main
from snapconv.convert import ConvertOptions, to_sqlite

FIXTURES = Path(__file__).parents[4] / "fixtures"
FILES = (
    "training_step.pickle",
    "expandable_segments.pickle",
    "private_pools.pickle",
    "several_streams.pickle",
    "late_start.pickle",
    "torch_2_0.pickle",
    "missing_trace.pickle",
)


@pytest.fixture(scope="module", params=FILES)
def file_and_report(request, tmp_path_factory):
    """The raw value of a fixture, and a function that queries its report."""
    output = tmp_path_factory.mktemp("reports") / "report.sqlite"
    to_sqlite(FIXTURES / request.param, ConvertOptions(output=output, extended=True))

    def ask(query):
        with closing(sqlite3.connect(output)) as connection:
            return connection.execute(query).fetchall()

    return pickle.loads((FIXTURES / request.param).read_bytes()), ask


def test_the_segments_at_the_dump_are_those_of_the_file(file_and_report):
    raw, ask = file_and_report
    found = ask(
        "SELECT addr, total_bytes, stream, is_small, is_expandable, active_bytes, n_blocks, n_free "
        "FROM snapconv_segments WHERE moment = 'end_allocated' ORDER BY addr"
    )
    expected = [
        (
            segment["address"],
            segment["total_size"],
            segment["stream"],
            int(segment["segment_type"] == "small"),
            int(segment.get("is_expandable", False)),
            segment["active_size"],
            sum(block["state"] != "inactive" for block in segment["blocks"]),
            sum(block["state"] == "inactive" for block in segment["blocks"]),
        )
        for segment in sorted(raw["segments"], key=lambda segment: segment["address"])
    ]
    assert found == expected
    assert found


def test_the_blocks_at_the_dump_are_those_of_the_file(file_and_report):
    raw, ask = file_and_report
    found = ask(
        "SELECT segment_addr, block_bytes, allocation_id IS NULL FROM snapconv_blocks "
        "WHERE moment = 'end_allocated' ORDER BY addr"
    )
    assert found == [
        (segment["address"], block["size"], int(block["state"] == "inactive"))
        for segment in sorted(raw["segments"], key=lambda segment: segment["address"])
        for block in segment["blocks"]
    ]


def test_the_blocks_of_a_segment_sum_to_it_at_both_moments(file_and_report):
    _, ask = file_and_report
    different = ask(
        "SELECT segment.moment, segment.addr FROM snapconv_segments AS segment "
        "JOIN snapconv_blocks AS block ON block.moment = segment.moment AND segment_addr = segment.addr "
        "GROUP BY segment.moment, segment.addr HAVING sum(block_bytes) != total_bytes"
    )
    assert different == []


def test_at_the_peak_the_blocks_are_the_allocations_that_were_live(file_and_report):
    _, ask = file_and_report
    ((live,),) = ask("SELECT sum(block_bytes) FROM snapconv_peak_allocations")
    ((in_blocks,),) = ask(
        "SELECT sum(block.block_bytes) FROM snapconv_blocks AS block "
        "JOIN snapconv_peak_allocations AS allocation ON allocation.id = allocation_id "
        "WHERE moment = 'peak_allocated'"
    )
    assert live == in_blocks


def test_fragmentation_can_be_asked_in_sql(file_and_report):
    """What is free in segments that have blocks, against the file itself."""
    raw, ask = file_and_report
    enclosed = sum(
        block["size"]
        for segment in raw["segments"]
        for block in segment["blocks"]
        if segment["active_size"] and block["state"] == "inactive"
    )
    query = (
        "SELECT coalesce(sum(total_bytes - active_bytes), 0) FROM snapconv_segments "
        "WHERE moment = 'end_allocated' AND n_blocks > 0"
    )
    assert ask(query) == [(enclosed,)]


def test_a_program_that_went_on_has_what_stays_free_in_its_summary(tmp_path, capsys):
    assert main(["to-sqlite", str(FIXTURES / "out_of_memory.pickle"), "-o", str(tmp_path / "r.sqlite")]) == 0
    raw = pickle.loads((FIXTURES / "out_of_memory.pickle").read_bytes())
    free = sum(b["size"] for s in raw["segments"] for b in s["blocks"] if b["state"] == "inactive")
    whole = sum(s["total_size"] for s in raw["segments"] if not s["active_size"])
    shown = f"the program went on: at the dump {free / 2**20:.2f} MiB are reserved and free, of which "
    assert f"{shown}empty_cache() returns {whole / 2**20:.2f} MiB" in capsys.readouterr().out


def test_annotations_are_rows_with_their_events(tmp_path):
    output = tmp_path / "r.sqlite"
    to_sqlite(FIXTURES / "user_metadata.pickle", ConvertOptions(output=output, extended=True))
    with closing(sqlite3.connect(output)) as connection:
        rows = connection.execute(
            "SELECT name, kind, first_event, last_event FROM snapconv_annotations "
            "JOIN snapconv_annotation_names ON id = name_id WHERE kind = 'user_metadata'"
        ).fetchall()
        events = connection.execute("SELECT count(*) FROM snapconv_timeline").fetchone()[0]
    raw = pickle.loads((FIXTURES / "user_metadata.pickle").read_bytes())
    texts = [event["user_metadata"] for event in raw["device_traces"][0]]
    assert len(texts) == events
    for name, _, first, last in rows:
        assert set(texts[first : last + 1]) == {name}
    assert [row[0] for row in rows] == ["warm-up", "step \u03b1"]
