"""Stacks that grow -> lines that grow, and what is printed of them."""

from dataclasses import replace

import pytest

from snapconv.answers.growth_report import build_growth
from snapconv.answers.memory_report import GrowthRow, IterationRow
from snapconv.stacks.project_lines import SourceLine
from snapconv.writers.text.growth_text import growth_lines, growth_values
from tests.report_builder import small_report

KEEP, LOG, MAIN = (SourceLine(f"{name}.py", 5, name) for name in ("keep", "log", "main"))


def row(frames, n_bytes, *, fate="never freed", confidence="fair", first=0, last=3):
    n = last - first + 1
    return GrowthRow(0, frames, fate, confidence, first, last, n, n, n * n_bytes, n_bytes)


def report_of(*rows, **fields):
    return build_growth(replace(small_report(), growth=rows, growth_unknown="", **fields))


def test_stacks_of_one_line_are_summed_up_and_those_that_go_on_come_first():
    found = report_of(
        row((KEEP, MAIN), 512, first=2),
        row((LOG,), 9000, fate="freed late"),
        row((KEEP, LOG), 1024, confidence="strong", last=9),
        row((), 100),
    )
    assert [(line.frames[:1], line.bytes_per_iteration) for line in found.lines] == [
        ((KEEP,), 1536),
        ((), 100),
        ((LOG,), 9000),
    ]
    keep = found.lines[0]
    assert (keep.confidence, keep.first_iteration, keep.last_iteration) == ("strong", 0, 9)
    assert found.bytes_per_iteration == 1636


def test_the_ends_of_iterations_are_what_was_allocated_then():
    timeline = small_report().timeline.allocated.after
    rows = (IterationRow(0, 0, 2, 1, 1), IterationRow(1, 3, 5, 1, 4))
    assert report_of(iterations=rows).end_bytes == (timeline[2], timeline[5])


@pytest.mark.parametrize(
    ("n_bytes", "shown"),
    [
        (
            (1024, 3072, 2048),
            "the first ended: 1.00 KiB, the last but one: 3.00 KiB, the trace ended: 2.00 KiB",
        ),
        ((1024, 2048), "the first ended: 1.00 KiB, the trace ended: 2.00 KiB"),
        ((2048,), "the trace ended: 2.00 KiB"),
    ],
)
def test_the_last_iteration_ends_with_the_trace(n_bytes, shown):
    found = replace(report_of(row((KEEP, MAIN), 1024)), end_bytes=n_bytes)
    assert list(growth_lines(found))[1] == f"  allocated when {shown}"


def test_a_line_is_shown_with_its_callers_how_long_it_grew_and_how_sure_that_is():
    shown = list(growth_lines(report_of(row((KEEP, MAIN), 1 << 20, first=1, last=3))))
    assert "grows by 1.00 MiB per iteration" in shown[0]
    assert shown[3].split(maxsplit=4)[-1] == "keep.py:5 in keep < main.py:5 in main"
    assert shown[4].strip() == "in iterations 1 to 3, 3.00 MiB held in the end; confidence: fair"


def test_a_few_lines_are_shown_and_the_others_summed_up():
    rows = [row((SourceLine("a.py", number, "f"),), 1024) for number in range(1, 12)]
    shown = list(growth_lines(report_of(*rows)))
    assert shown[-1].split() == ["3.00", "KiB", "per", "iteration", "3", "more", "lines"]


def test_what_is_freed_late_alone_is_no_growth():
    shown = list(growth_lines(report_of(row((KEEP,), 1024, fate="freed late"))))
    assert "nothing grows" in shown[0]
    assert "held over several iterations, and freed then" in shown[2]


def test_why_growth_is_not_known_is_all_that_is_shown():
    found = build_growth(replace(small_report(), growth=(), growth_unknown="too few"))
    assert [line.strip() for line in growth_lines(found)][1:] == ["too few"]
    assert growth_values(found)["unknown"] == "too few"
