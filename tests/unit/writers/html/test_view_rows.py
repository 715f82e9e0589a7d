"""The allocations of a page are those of the analysis, whatever the order that they are written in."""

import base64
import zlib
from dataclasses import replace

import numpy as np
import pytest

from snapconv import load
from snapconv.writers.html.view_rows import base_addr, view_rows
from tests.builders import MIB, TraceBuilder, frame


@pytest.fixture
def analysis(tmp_path):
    builder = TraceBuilder().segment(64 * MIB).alloc(512, traced=False)
    for line in (3, 9, 3, 3, 9):
        builder.alloc(512 * line, frames=[frame(line=line)])
        builder.free(frames=[frame(line=40)])
    builder.alloc(1024).free(completed=False)
    return load(builder.write(tmp_path / "run.pickle")).devices[0]


def numbers(column):
    data = np.frombuffer(zlib.decompress(base64.b64decode(column.base64)), np.uint8)
    planes = data.reshape(column.width, column.n).astype(np.int64)
    found = sum(plane << 8 * byte for byte, plane in enumerate(planes))
    signed = (found >> 1) ^ -(found & 1)
    return (found, np.cumsum(signed), signed)[column.kind]


def rows_of(analysis):
    """The columns of the page's allocations."""
    columns = view_rows(analysis, np.unique(analysis.allocations.stream)).columns
    return {name: numbers(column) for name, column in columns.items()}


def rows_of_page(analysis):
    """Each allocation as the page has it: its sizes, events, category, address."""
    c = rows_of(analysis)
    kind = np.repeat(np.arange(len(c["kind_count"])), c["kind_count"])
    freed = np.where(c["life"] > 0, c["alloc"] + c["life"], -1)
    end = np.where(c["pending"] > 0, freed + c["pending"] - 1, -1)
    addr = c["addrs"][c["addr"]] + base_addr(analysis)
    requested = c["kind_block"] - c["kind_rounding"]
    sizes = c["kind_block"][kind], requested[kind], c["trait_category"][c["kind_trait"]][kind]
    return sorted(
        zip(*(column.tolist() for column in (c["alloc"], freed, end, addr, *sizes)), strict=True)
    )


def rows_of_analysis(analysis):
    table = analysis.allocations
    columns = (
        *(table.alloc_event, table.freed_event, table.end_event, table.addr),
        *(table.block_bytes, table.requested_bytes, analysis.classification.category),
    )
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


def test_a_page_has_every_allocation_exactly(analysis):
    assert rows_of_page(analysis) == rows_of_analysis(analysis)


def test_alike_allocations_are_one_kind(analysis):
    columns = view_rows(analysis, np.unique(analysis.allocations.stream)).columns
    assert sorted(numbers(columns["kind_count"]).tolist()) == [1, 1, 2, 3]


def test_sizes_of_one_stack_share_its_trait(tmp_path):
    builder = TraceBuilder().segment(64 * MIB)
    for size in (512, 1024, 700, 512):
        builder.alloc(size, frames=[frame(line=3)])
        builder.free(frames=[frame(line=40)])
    columns = rows_of(load(builder.write(tmp_path / "run.pickle")).devices[0])
    assert [len(columns[name]) for name in ("kind_block", "trait_category")] == [3, 1]
    assert columns["kind_rounding"].tolist() == [0, 0, 324]


def test_a_block_smaller_than_its_request_is_shown_as_the_file_has_it(analysis):
    odd = replace(analysis.allocations, requested_bytes=analysis.allocations.block_bytes + 5)
    odd_analysis = replace(analysis, replay=replace(analysis.replay, allocations=odd))
    assert rows_of_page(odd_analysis) == rows_of_analysis(odd_analysis)


def test_a_row_of_the_table_is_found_at_its_place(analysis):
    rows = view_rows(analysis, np.unique(analysis.allocations.stream))
    alloc = numbers(rows.columns["alloc"])
    assert alloc[rows.page_rows].tolist() == analysis.allocations.alloc_event.tolist()
