"""Lines that grow, and the text of them."""

from dataclasses import replace

import numpy as np
import pytest

from snapconv.answers.growth import Fate, Growth, GrowthReport, Trend, UnfreedLine, growth_by_line
from snapconv.stacks.project_lines import SourceLine
from snapconv.writers.text.growth import growth_lines

KEEP, LOG, MAIN = (SourceLine(f"{name}.py", 5, name) for name in ("keep", "log", "main"))


def row(frames, n_bytes, *, fate=Fate.NEVER_FREED, first=0, last=3):
    n = last - first + 1
    return Growth(0, fate, first, last, n, n * n_bytes, n_bytes, np.arange(n), frames)


def report_of(*rows, unknown=""):
    return GrowthReport(0, (1024, 2048), growth_by_line(rows), unknown)


def test_stacks_of_one_line_are_summed_up():
    found = report_of(
        row((KEEP, MAIN), 512, first=2),
        row((LOG,), 9),
        row((KEEP, LOG), 1024, last=9),
        row((), 100),
    )
    assert [(line.frames[:1], line.bytes_per_iteration) for line in found.lines] == [
        ((KEEP,), 1536),
        ((), 100),
        ((LOG,), 9),
    ]
    keep = found.lines[0]
    assert (keep.certainty, keep.first_iteration, keep.last_iteration) == ("certain", 0, 9)
    assert (keep.n_iterations, keep.n_allocations) == (10, 12)
    assert found.bytes_per_iteration == 1645


@pytest.mark.parametrize(
    ("n_bytes", "shown"),
    [
        (
            (1024, 3072, 2048),
            "after iteration 0: 1.00 KiB; after iteration 1: 3.00 KiB",
        ),
        (
            (1024, 3072, 4096, 2048),
            "after iteration 0: 1.00 KiB; after iteration 2: 4.00 KiB",
        ),
    ],
)
def test_the_first_iterations_the_last_whole_ones_and_the_traces_end_are_shown(n_bytes, shown):
    found = replace(report_of(row((KEEP, MAIN), 1024)), end_bytes=n_bytes)
    assert list(growth_lines(found, "a.pickle"))[1] == f"  allocated {shown}; at the end: 2.00 KiB"


def test_a_line_is_shown_with_its_callers_how_long_it_grew_and_how_sure_that_is():
    shown = list(growth_lines(report_of(row((KEEP, MAIN), 1 << 20, first=1, last=3)), "a.pickle"))
    assert "grows by 1.00 MiB per iteration" in shown[0]
    *_, place, seen, following = shown
    assert place.split(maxsplit=4)[-1] == "keep.py:5 in keep < main.py:5 in main"
    assert seen.strip() == "in iterations 1 to 3; 3.00 MiB at the end; likely"
    assert following == "  next: snapconv advise a.pickle"


def test_a_few_lines_are_shown_and_the_others_summed_up():
    rows = [row((SourceLine("a.py", number, "f"),), 1024) for number in range(1, 12)]
    shown = list(growth_lines(report_of(*rows), "a.pickle"))
    assert shown[-2].split() == ["3.00", "KiB", "per", "iteration", "3", "more", "lines"]


def test_without_iterations_what_was_never_freed_is_shown_by_when_it_was_made():
    rows = (
        UnfreedLine(KEEP, True, 100, 200 << 20, 9, 990, Trend.GROWS),
        UnfreedLine(MAIN, True, 2, 64 << 20, 4, 5, Trend.STOPPED),
        UnfreedLine(MAIN, True, 3, 8 << 20, 4, 7, Trend.UNKNOWN),
        UnfreedLine(LOG, True, 1, 32 << 20, 6, 6, Trend.ONCE),
        UnfreedLine(LOG, True, 3, 16 << 20, 6, 8, Trend.WAITS),
        UnfreedLine(None, False, 2, 1 << 20, 995, 999, Trend.RECENT),
    )
    found = replace(report_of(unknown="too few"), never_freed=rows)
    assert list(growth_lines(found, "a.pickle")) == [
        "cuda:0  growth per iteration is unknown: too few",
        "  321.00 MiB in 111 allocations of this trace were never freed",
        "  kept growing to the end of the trace: a leak, a cache that is not full yet, or "
        "reference cycles "
        "(gc.collect() frees these)",
        "      200.00 MiB  keep.py:5 in keep: 100 allocations",
        (
            "  results of the forward pass in which the trace ends, which may wait for a backward "
            "pass: record three steps"
        ),
        "       16.00 MiB  log.py:5 in log: 3 allocations",
        "  allocated in some parts of the trace: whether it grows is unknown",
        "        8.00 MiB  main.py:5 in main: 3 allocations, the last at event 7",
        "  allocated in some parts of the trace only: likely no steady growth",
        "       64.00 MiB  main.py:5 in main: 2 allocations, the last at event 5",
        "  allocated once",
        "       32.00 MiB  log.py:5 in log: 1 allocation",
        "  made in the last 12 % of the trace: may still be freed",
        "        1.00 MiB  no stack recorded: 2 allocations",
    ]
    assert found.to_json()["unknown"] == "too few"
