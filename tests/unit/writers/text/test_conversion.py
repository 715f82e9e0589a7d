"""What a conversion says at its end, out of a report in which every number can be checked by hand."""

from pathlib import Path

import pytest

from snapconv.answers.peak import CategoryTotal, LineTotal, ModuleTotal
from snapconv.notes import Note
from snapconv.stacks.project_lines import SourceLine
from snapconv.units import HOST, format_bytes
from snapconv.writers.text.info import note_lines
from snapconv.writers.text.moment import summary_lines
from snapconv.writers.text.size_rows import category_lines, project_shown
from tests.report_builder import small_report
from tests.timing_builder import ROOT, small_trace, time_report

REPORT = small_report()
PATH = Path("out") / "r.sqlite"


def lines(report=REPORT):
    return list(summary_lines(((PATH, report),)))


def line_with(text, report=REPORT):
    (found,) = [line for line in lines(report) if text in line]
    return found.split()


def test_a_report_is_summed_up_from_its_peak_to_its_file():
    assert lines() == [
        "cuda:0  peak allocated 3.50 KiB (3584 bytes), at event 1 of 7",
        "  reserved at most 2.00 MiB",
        "  activation           2.00 KiB   57.1 %        1 allocation",
        "  weight               1.00 KiB   28.6 %        1 allocation",
        "  unknown                 512 B   14.3 %        1 allocation",
        "  project lines, below /home/me/project",
        "        2.00 KiB  model/net.py:12 in forward",
        "        1.00 KiB  train.py:8 in build",
        "           512 B  library code only",
        "  modules and call paths",
        "        2.00 KiB  model/net.py:12 < train.py:40",
        "        1.00 KiB  encoder",
        "  history: truncated: frees without an alloc",
        f"  written: {PATH.absolute()}",
    ]


def test_a_peak_before_the_first_event_is_reported_to_be_there():
    assert lines(small_report(event=None))[0].endswith("before the first event")


def test_each_size_has_its_own_unit():
    totals = (CategoryTotal("weight", 2, 5 << 30, 5 << 30), CategoryTotal("input", 1, 512, 512))
    large = small_report(allocated_bytes=(5 << 30) + 512, categories=totals)
    assert line_with("weight", large)[:3] == ["weight", "5.00", "GiB"]
    assert line_with("input", large)[:3] == ["input", "512", "B"]


@pytest.mark.parametrize(
    ("n_bytes", "like", "text"),
    [
        (0, None, "0 B"),
        (1023, None, "1023 B"),
        (1024, None, "1.00 KiB"),
        (3 << 30, None, "3.00 GiB"),
        (1, 1000, "1 B"),
        (0, 1 << 30, "0.00 GiB"),
        (1, 1 << 30, "< 0.01 GiB"),
        ((1 << 30) // 100, 1 << 30, "0.01 GiB"),
    ],
)
def test_a_size_has_two_decimals_in_the_unit_of_another(n_bytes, like, text):
    assert format_bytes(n_bytes, like=like) == text


def test_the_largest_category_comes_first_and_empty_ones_are_left_out():
    totals = (*REPORT.peak.categories, CategoryTotal("communication", 0, 0, 0))
    shown = [line.split()[0] for line in lines(small_report(categories=totals)) if "%" in line]
    assert shown == ["activation", "weight", "unknown"]


def test_what_the_shown_lines_leave_out_is_summed_up():
    """Eight lines of 512 bytes, of which five are shown; the rest of the peak has no line."""
    many = tuple(LineTotal(SourceLine("a.py", n, f"f{n}"), 1, 512) for n in range(1, 9))
    said = [line.strip() for line in lines(small_report(lines=many, allocated_bytes=5 << 10))]
    assert "1.50 KiB  3 more lines" in said
    assert "1.00 KiB  library code only" in said


def test_without_lines_of_the_project_it_is_reported():
    report = small_report(lines=(), project_root=None)
    assert any("3.50 KiB  library code only" in line for line in lines(report))
    assert not any("None" in line for line in lines(report))


def modules_of(*rows):
    shown = lines(small_report(modules=rows))
    begins = [
        i
        for i, line in enumerate(shown)
        if line in ("  modules", "  call paths", "  modules and call paths")
    ]
    ends = [i for i, line in enumerate(shown) if "history:" in line]
    return [line.strip() for line in shown[begins[0] : ends[0]]] if begins else []


def test_modules_are_shown_by_their_paths_where_these_are_known_beside_what_is_of_none():
    recorded = (
        ModuleTotal("head", "metadata", 1, 1024),
        ModuleTotal("blocks.0", "metadata", 2, 512),
    )
    seen = ModuleTotal("a.py:1 < b.py:2", "frames", 1, 2048)
    assert modules_of(seen, *recorded) == [
        "modules and call paths",
        "2.00 KiB  a.py:1 < b.py:2",
        "1.00 KiB  head",
        "512 B  blocks.0",
    ]


def test_modules_without_paths_are_shown_by_the_lines_that_call_them():
    seen = [ModuleTotal(f"a.py:{n} < b.py:2", "frames", 1, 1024) for n in range(1, 9)]
    title, *shown = modules_of(*seen)
    assert title == "call paths"
    assert shown == [
        *(f"1.00 KiB  a.py:{n} < b.py:2" for n in range(1, 6)),
        "3.00 KiB  3 more call paths",
    ]


def test_a_single_module_is_not_shown():
    assert modules_of(ModuleTotal("b.py:2", "frames", 1, 1024)) == []
    assert modules_of() == []


def test_what_is_likely_stands_behind_its_sum_and_what_is_one_of_two_has_a_row():
    rows = (
        CategoryTotal("weight", 4, 4096, 4096, likely_bytes=4096),
        CategoryTotal("gradient", 2, 2048, 2048, likely_bytes=1024),
        CategoryTotal("gradient or optimizer state", 1, 512, 512),
    )
    assert list(category_lines(rows, 8192)) == [
        "  weight                           4.00 KiB   50.0 %        4 allocations, likely",
        (
            "  gradient                         2.00 KiB   25.0 %        2 allocations, 1.00 KiB of "
            "it only likely"
        ),
        "  gradient or optimizer state         512 B    6.2 %        1 allocation",
    ]


def test_a_note_is_one_line_with_slug_device_and_sentence_and_comes_once():
    notes = (
        Note("truncated-history", "Lost.", 1),
        Note("no-stacks", "None."),
        Note("no-stacks", "None."),
    )
    assert list(note_lines(notes)) == [
        "note: truncated-history (cuda:1): Lost.",
        "note: no-stacks: None.",
    ]


def test_a_note_that_several_devices_have_is_one_line_that_names_them():
    def lines_of(*devices, message="Lost."):
        return list(note_lines(tuple(Note("gaps", message, device) for device in devices)))

    assert lines_of(0, 1) == ["note: gaps (cuda:0, cuda:1): Lost."]
    assert lines_of(0, 2, 3) == ["note: gaps (cuda:0, cuda:2, cuda:3): Lost."]
    assert lines_of(HOST, None, 1) == ["note: gaps (host, cuda:1): Lost.", "note: gaps: Lost."]
    (many,) = lines_of(*range(128))
    assert many.endswith("cuda:15, and 112 more): Lost.")
    assert list(note_lines((Note("gaps", "1 is lost.", 0), Note("gaps", "2 are lost.", 1)))) == [
        "note: gaps (cuda:0): 1 is lost.",
        "note: gaps (cuda:1): 2 are lost.",
    ]


def test_the_values_are_those_of_the_report():
    values = REPORT.to_json(PATH)
    assert values["output"] == str(PATH)
    assert values["peak_usage_bytes"] == 3584
    assert values["categories_at_peak"]["unknown"] == {
        "n_allocations": 1,
        "requested_bytes": 500,
        "block_bytes": 512,
        "likely_bytes": 0,
    }
    assert (values["n_weights"], values["n_activations"]) == (1, 2)
    assert values["history"] == {"verdict": "truncated", "reason": "frees without an alloc"}
    assert values["notes"][1] == {
        "slug": "no-settings",
        "message": "None found.",
        "device": None,
        "is_minor": False,
    }


# --- times


OUTPUT = Path("run.time.sqlite")


@pytest.fixture
def report_of(tmp_path):
    def build(root=ROOT, **changes):
        return time_report(tmp_path, root=root, **changes)

    return build


def time_lines(report):
    return list(summary_lines((), (OUTPUT, report)))[1:]


@pytest.mark.parametrize(
    ("root", "includes", "shown"),
    [
        ("/job", ("timm.models", "torch"), "below /job and in timm.models, torch"),
        (None, ("torch",), "in torch"),
        (None, (), "none found"),
    ],
)
def test_the_project_is_named_by_its_folder_and_its_packages(root, includes, shown):
    assert project_shown(root, includes) == shown


def test_the_summary_has_phases_coverage_and_what_took_longest(report_of):
    assert time_lines(report_of()) == [
        "cuda:1  forward 10.0 ms, backward 20.0 ms, optimizer 4.0 ms, in iteration 3",
        (
            "  the median of 3 timed iterations; its operations are 95.0 % of forward and 97.5 % of "
            "backward"
        ),
        "  operations, forward and backward",
        "         16.0 ms  linear, 1 call",
        "          7.5 ms  cross_entropy, 1 call",
        "          5.0 ms  relu, 1 call",
        "          500 us  MulBackward0, 1 call",
        f"  project lines, below {ROOT}",
        "         16.0 ms  model/net.py:12 in forward, 1 call",
        "          7.5 ms  train.py:41 in step, 1 call",
        "          5.0 ms  model/net.py:13 in forward, 1 call",
        f"  written: {OUTPUT.absolute()}",
    ]


def test_a_phase_that_did_not_happen_is_not_mentioned(report_of):
    empty = {name: [] for name in small_trace()["calls"]}
    found = time_lines(report_of(iterations=[{"iteration": 2, "forward_ms": 8}], calls=empty))
    assert found[0] == "cuda:1  forward 8.0 ms, in iteration 2"
    assert found[1] == "  the median of 1 timed iteration; its operations are 0.0 % of forward"
    found = time_lines(report_of(iterations=[{"iteration": 2}], calls=empty))
    assert found[0] == "cuda:1  nothing was timed, in iteration 2"
    assert (
        found[1]
        == "  the median of 1 timed iteration; what part of a phase its operations are is unknown"
    )


def test_a_report_without_lines_of_the_project_is_named_as_such(report_of):
    assert "    none: no timed operation was called from a file of the project" in time_lines(
        report_of("/else")
    )


def test_the_values_are_those_of_the_time_report(report_of):
    values = report_of(clock="cpu", simulated=True).to_json(OUTPUT)
    assert (values["output"], values["device"], values["clock"]) == ("run.time.sqlite", 1, "cpu")
    assert (values["is_simulated"], values["iteration"], values["n_entries"]) == (True, 3, 3)
    assert values["iterations"][0] == {
        "iteration": 3,
        "forward_ms": 10.0,
        "backward_ms": 20.0,
        "optimizer_ms": 4.0,
        "forward_coverage": 0.95,
        "backward_coverage": 0.975,
    }
    assert [note["slug"] for note in values["notes"]] == ["simulated-times"]
