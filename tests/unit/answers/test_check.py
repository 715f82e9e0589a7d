"""Limits on hand-made traces: what holds by a byte, and what does not."""

import re

import pytest

import snapconv
from snapconv.answers.check import Budgets, Check, check_budgets, parse_allowance
from snapconv.classification.categories import Category
from snapconv.writers.text.comparisons import check_lines, github_lines
from tests.builders import MIB, TraceBuilder, frame

TORCH = "/opt/venv/lib/python3.11/site-packages/torch"
MAIN = frame("main", "/home/me/project/train.py", 30)
KEEP = [frame("keep", "/home/me/project/log.py", 5), MAIN]
FORWARD = [frame("_call_impl", f"{TORCH}/nn/modules/module.py"), MAIN]
STEP = [frame("_single_tensor_adamw", f"{TORCH}/optim/adamw.py"), MAIN]


@pytest.fixture
def devices_of(tmp_path):
    def devices_of(builder):
        return snapconv.load(builder.write(tmp_path / "s.pickle")).devices

    return devices_of


def steps(n, size):
    builder = TraceBuilder().segment(64 * MIB)
    for _ in range(n):
        builder.alloc(512, frames=FORWARD).free(frames=FORWARD).alloc(size, frames=KEEP)
        builder.alloc(512, frames=STEP).free(frames=STEP)
    return builder


def outcomes(devices, budgets, **others):
    return [(check.what, check.holds) for check in check_budgets(devices, budgets, **others)]


@pytest.mark.parametrize(("limit", "holds"), [(3 * MIB, True), (3 * MIB - 1, False)])
def test_a_peak_may_be_its_limit_and_not_a_byte_more(devices_of, limit, holds):
    devices = devices_of(TraceBuilder().segment(8 * MIB).alloc(3 * MIB).free())
    assert outcomes(devices, Budgets(max_peak=limit)) == [("peak allocated", holds)]


@pytest.mark.parametrize(("limit", "holds"), [(4 * MIB, True), (4 * MIB - 1, False)])
def test_what_is_reserved_has_a_limit_of_its_own(devices_of, limit, holds):
    devices = devices_of(TraceBuilder().segment(4 * MIB).alloc(512))
    assert outcomes(devices, Budgets(max_reserved=limit)) == [("peak reserved", holds)]


def test_a_category_is_what_it_has_at_the_peak(devices_of):
    devices = devices_of(TraceBuilder().segment(4 * MIB).alloc(MIB))
    budgets = Budgets(max_category={Category.UNKNOWN: MIB - 1, Category.WEIGHT: 0})
    found = check_budgets(devices, budgets)
    assert sum(check.actual_bytes for check in found) == MIB
    assert [check.what for check in found] == ["unknown at the peak", "weight at the peak"]


@pytest.mark.parametrize(("limit", "holds"), [(1024, True), (1023, False), (0, False)])
def test_growth_is_what_an_iteration_adds(devices_of, limit, holds):
    devices = devices_of(steps(5, 1024))
    assert outcomes(devices, Budgets(max_growth=limit)) == [("growth per iteration", holds)]


def test_a_limit_that_cannot_be_checked_does_not_hold(devices_of):
    (check,) = check_budgets(devices_of(steps(2, 1024)), Budgets(max_growth=1 << 40))
    assert not check.holds
    assert check.sentence.startswith(
        "growth per iteration of cuda:0 is not known: the trace has 2 iterations"
    )


@pytest.mark.parametrize(
    ("size", "holds"), [(100 << 10, True), (102 << 10, True), (103 << 10, False)]
)
def test_a_peak_may_be_a_little_more_than_that_of_a_baseline(devices_of, size, holds):
    baseline = devices_of(TraceBuilder().segment().alloc(100 << 10))
    devices = devices_of(TraceBuilder().segment().alloc(size))
    budgets = Budgets(fail_over=parse_allowance("2%"))
    assert outcomes(devices, budgets, baseline=baseline) == [("peak allocated", holds)]


def test_a_device_that_the_baseline_does_not_have_does_not_hold(devices_of, tmp_path):
    baseline = devices_of(TraceBuilder(0).segment().alloc(512))
    both = (
        TraceBuilder(0)
        .segment()
        .alloc(512)
        .snapshot(TraceBuilder(1).segment(address=1 << 40).alloc(512))
    )
    path = tmp_path / "both.pickle"
    path.write_bytes(__import__("pickle").dumps(both))
    found = check_budgets(
        snapconv.load(path).devices, Budgets(fail_over=parse_allowance("2%")), baseline=baseline
    )
    assert [(check.device, check.holds) for check in found] == [(0, True), (1, False)]


def test_a_peak_without_a_trace_is_not_known(devices_of):
    devices = devices_of(TraceBuilder().segment(traced=False).alloc(512, traced=False))
    (check,) = check_budgets(devices, Budgets(max_peak=1 << 40))
    assert not check.holds
    assert "the file has no events" in check.sentence


@pytest.mark.parametrize("in_trace", [False, True])
def test_a_peak_of_a_truncated_trace_is_not_known_unless_the_trace_alone_is_checked(
    devices_of, in_trace
):
    builder = TraceBuilder().segment(traced=False).alloc(512, traced=False)
    builder.event("free_completed", addr=builder.segments[0]["address"] + 1024, size=512)
    builder.alloc(512).free()
    (check,) = check_budgets(devices_of(builder), Budgets(max_peak=1 << 40, in_trace=in_trace))
    assert check.holds == in_trace
    assert check.sentence == (
        "peak allocated of cuda:0: 1.00 KiB, limit 1.00 TiB; in this trace"
        if in_trace
        else "peak allocated of cuda:0 is not known: at least 1.00 KiB, limit 1.00 TiB; the oldest "
        "events are lost: record with a larger max_entries, or check this trace alone with "
        "--in-trace"
    )


def test_what_may_be_of_a_category_decides_where_what_is_known_keeps_the_limit(devices_of):
    devices = devices_of(TraceBuilder().segment(8 * MIB).alloc(3 * MIB))
    found = {
        limit: check_budgets(devices, Budgets(max_category={Category.WEIGHT: limit}))[0]
        for limit in (3 * MIB, 3 * MIB - 1)
    }
    assert found[3 * MIB].holds
    assert found[3 * MIB].sentence.endswith("between 0 B and 3.00 MiB, limit 3.00 MiB")
    assert (found[3 * MIB].to_json()["least_bytes"], found[3 * MIB].to_json()["actual_bytes"]) == (
        0,
        None,
    )
    assert not found[3 * MIB - 1].holds
    assert found[3 * MIB - 1].sentence == (
        "weight at the peak of cuda:0 is not known: 3.00 MiB have no known category; --rules FILE "
        "gives "
        "lines a category"
    )
    values = found[3 * MIB - 1].to_json()
    assert (values["least_bytes"], values["actual_bytes"], values["holds"]) == (0, None, False)


@pytest.mark.parametrize(
    ("limit", "words"), [(MIB, "23.00 MiB over"), (1 << 40, "not known: at least 24.00")]
)
def test_what_is_reserved_without_segments_breaks_a_limit_and_never_keeps_one(
    devices_of, limit, words
):
    raw = TraceBuilder().segment(64 * MIB, traced=False).alloc(24 * MIB)
    raw.segments = []
    (check,) = check_budgets(devices_of(raw), Budgets(max_reserved=limit))
    assert not check.holds
    assert words in check.sentence


@pytest.mark.parametrize("in_trace", [False, True])
def test_a_program_that_ran_out_of_memory_keeps_no_limit_but_one_for_the_trace(
    devices_of, in_trace
):
    devices = devices_of(TraceBuilder().segment(20 * MIB).alloc(5 * MIB).oom(30 * MIB))
    limits = Budgets(max_peak=8 * MIB, max_reserved=20 * MIB, in_trace=in_trace)
    for found in check_budgets(devices, limits):
        assert (found.holds, found.is_unknown) == (in_trace, not in_trace)
        assert ("memory ran out before the program was over" in found.sentence) is not in_trace
    baseline = devices_of(TraceBuilder().segment(20 * MIB).alloc(5 * MIB))
    (found,) = check_budgets(devices, Budgets(fail_over=2.0), baseline=baseline)
    assert (found.holds, found.is_unknown) == (False, True)


def test_a_late_beginning_keeps_no_limit_but_one_for_the_trace(devices_of):
    devices = devices_of(TraceBuilder().segment(traced=False).alloc(512, traced=False).alloc(512))
    late = (
        "is not known: at least 1.00 KiB, limit 1.00 MiB; recording began after the program "
        "had allocated"
    )
    (check,) = check_budgets(devices, Budgets(max_peak=MIB))
    assert late in check.sentence
    assert outcomes(devices, Budgets(max_peak=MIB, in_trace=True)) == [("peak allocated", True)]
    assert outcomes(devices, Budgets(max_peak=512)) == [("peak allocated", False)]
    assert outcomes(devices, Budgets(fail_over=0.0), baseline=devices) == [("peak allocated", True)]


def test_faults_are_not_known_where_frees_have_no_stacks_of_their_own(devices_of):
    builder = (
        TraceBuilder()
        .segment(8 * MIB)
        .alloc(MIB, frames=KEEP)
        .free(frames=[])
        .alloc(MIB, frames=KEEP)
    )
    (check,) = check_budgets(devices_of(builder), Budgets(no_faults_above=1 << 40))
    assert not check.holds
    assert check.sentence.endswith(
        "the trace does not record what freed its blocks, which shows faults"
    )


@pytest.mark.parametrize(("text", "per_cent"), [("2%", 2), (" 0.5 % ", 0.5), ("0%", 0)])
def test_an_allowance_is_in_per_cent(text, per_cent):
    assert parse_allowance(text) == per_cent


@pytest.mark.parametrize("text", ["2", "", "%", "-1%", "2%%", "two%", "1e3%"])
def test_anything_else_is_no_allowance(text):
    with pytest.raises(ValueError, match="in per cent"):
        parse_allowance(text)


# --- for people and GitHub, with hostile names


HELD, BROKEN = Check("peak allocated", 0, 100, 100), Check("peak reserved", 1, 100, 101)
UNKNOWN = Check("growth per iteration", 0, 0, 0, "the file has no trace")
HOSTILE = 'a"]]>&<script>\x00\x1b[2J|`*\n<!-- -->\ud800\ufffe.pickle'


def test_people_get_a_line_for_each_limit():
    assert list(check_lines("s.pickle", (HELD, BROKEN, UNKNOWN))) == [
        "ok    peak allocated of cuda:0: 100 B, limit 100 B",
        "FAIL  peak reserved of cuda:1: 101 B, 1 B over the limit of 100 B",
        "UNKNOWN  growth per iteration of cuda:0 is not known: the file has no trace",
    ]


@pytest.mark.parametrize("file", ["s.pickle", HOSTILE])
def test_a_summary_on_github_has_a_row_for_each_limit_and_no_markup_of_names(file):
    shown = list(github_lines(file, (HELD, BROKEN)))
    assert len(shown) == 6
    assert not re.search(r"(?<!\\)[<>&`*]", shown[0])
    assert all("\n" not in line for line in shown)
    assert [line[:4] for line in shown[-2:]] == ["| ✅ ", "| ❌ "]
