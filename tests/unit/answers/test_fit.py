"""The conclusion of combinations, from rows whose figures a test shows."""

import csv
import json
import pickle

import pytest

from snapconv.analysis import AnalysisOptions, analyze_file
from snapconv.answers.fit import (
    CardMemory,
    Combination,
    FitReport,
    FitRow,
    Verdict,
    conclude,
    fill_row,
)
from snapconv.fitting.fit import FitOptions
from snapconv.stacks.project_lines import SourceLine
from snapconv.units import HOST
from snapconv.writers.fit_table import write_fit_table
from snapconv.writers.text.fit import fit_lines
from tests.builders import MIB, TraceBuilder
from tests.unit.test_docs import catalogs, flat

GIB = 1 << 30
CARD = CardMemory.from_total(80 * GIB)


def fits(world_size, batch, reserved):
    combination = Combination(world_size, (("batch", str(batch)),))
    usable = CARD.usable(world_size)
    return FitRow(combination, Verdict.FITS, usable, peak_bytes=reserved, reserved_bytes=reserved)


def too_large(world_size, batch, short):
    combination = Combination(world_size, (("batch", str(batch)),))
    line = SourceLine("train.py", 12, "step")
    usable = CARD.usable(world_size)
    return FitRow(combination, Verdict.TOO_LARGE, usable, short_bytes=short, line=line)


def failed(world_size, batch, reason="ValueError: odd"):
    combination = Combination(world_size, (("batch", str(batch)),))
    return FitRow(combination, Verdict.FAILED, CARD.usable(world_size), reason=reason)


def test_nccl_takes_a_gibibyte_of_a_card_in_a_job_of_several_ranks_alone():
    assert CARD.usable(1) == 79 * GIB
    assert CARD.usable(2) == CARD.usable(64) == 78 * GIB


def test_a_capacity_is_what_pytorch_may_have_for_any_job():
    assert CardMemory(70 * GIB).usable(1) == CardMemory(70 * GIB).usable(64) == 70 * GIB


def test_the_answer_has_the_fewest_cards_and_there_the_largest_value_by_number():
    rows = [
        too_large(8, 1, GIB),
        fits(32, 10, 60 * GIB),
        fits(16, 2, 50 * GIB),
        fits(16, 10, 68 * GIB),
        too_large(16, 12, GIB),
    ]
    # 78 GiB are usable, of which 68 were reserved.
    assert conclude(rows) == (
        "fits on 16 cards with batch 10: 68.00 GiB reserved of 78.00 GiB, 10.00 GiB left"
    )


def test_a_larger_value_that_needs_more_cards_is_named_with_the_fewest_of_them():
    rows = [fits(64, 4, GIB), fits(32, 4, GIB), fits(16, 2, GIB), too_large(16, 4, GIB)]
    assert conclude(rows).endswith("; largest batch that fits: 4, on 32 cards")


def test_a_largest_value_may_be_zero():
    rows = [fits(1, -1, GIB), too_large(1, 0, GIB), fits(2, 0, GIB)]
    assert conclude(rows).endswith("; largest batch that fits: 0, on 2 cards")


def test_where_nothing_fits_the_nearest_combination_is_named_with_its_line():
    rows = [too_large(8, 1, 5 * GIB), too_large(16, 1, 2 * GIB)]
    assert conclude(rows) == (
        "no combination fits: the nearest is 16 cards with batch 1, "
        "at least 2.00 GiB short at train.py:12"
    )


def test_where_some_could_not_be_judged_only_the_others_do_not_fit():
    assert conclude([too_large(8, 1, GIB), failed(16, 1)]).startswith(
        "none that could be judged fits: the nearest is 8 cards with batch 1"
    )
    assert conclude([too_large(8, 1, GIB)], [Combination(16)]).startswith("none that could be")


def test_of_several_arguments_the_largest_is_that_of_the_first_alone():
    """8 with 512 and 4 with 8192 both fit: neither is larger than the other."""
    rows = []
    for cards, batch, length in ((1, 4, 8192), (2, 8, 512)):
        combination = Combination(cards, (("mb", str(batch)), ("seq", str(length))))
        usable = CARD.usable(cards)
        row = FitRow(combination, Verdict.FITS, usable, peak_bytes=GIB, reserved_bytes=GIB)
        rows.append(row)
    assert conclude(rows).endswith("; largest mb that fits: 8 with seq 512, on 2 cards")


def test_nothing_is_inferred_about_what_failed_or_did_not_run():
    answer = conclude([fits(16, 1, GIB), failed(8, 1)], [Combination(4), Combination(2)])
    assert answer.startswith("fits on 16 cards")
    assert "; 1 combination failed and could not be judged; 2 combinations did not run" in answer


def test_one_reason_for_all_is_said_once_in_the_answer():
    rows = [failed(8, 1, "ImportError: no x"), failed(16, 1, "ImportError: no x")]
    assert conclude(rows) == (
        "unknown whether it fits; every combination that ran failed: ImportError: no x"
    )


def test_a_request_that_failed_beside_enough_free_memory_has_no_cause_that_is_not_known():
    """Free memory may be in pieces, or may wait for another stream."""
    answer = conclude([too_large(8, 1, 0)])
    assert answer.endswith("out of memory at train.py:12, with enough free in sum")


def test_of_ranks_that_differ_the_worst_comes_last():
    rows = [too_large(8, 1, 2), fits(8, 1, 9), too_large(8, 1, 3), failed(8, 1), fits(8, 1, 5)]
    ordered = sorted(rows, key=lambda row: row.order)
    assert [row.reserved_bytes or row.short_bytes for row in ordered] == [5, 9, None, 2, 3]


def test_the_text_begins_with_the_answer_and_says_what_is_outside_pytorch():
    report = FitReport("train.py", CARD, (fits(16, 2, 50 * GIB), failed(8, 2)))
    answer, memory, head, *rows = fit_lines(report)
    assert answer == report.answer
    assert memory.endswith(
        "80.00 GiB less 1.00 GiB of CUDA's context and libraries and 1.00 GiB of NCCL in jobs of "
        "several cards (estimated; --capacity is exact)"
    )
    assert head.split() == ["cards", "batch", "peak", "reserved", "most", "of", "it", "result"]
    assert rows[0].split()[:2] == ["16", "2"]
    assert rows[0].endswith("fits, 28.00 GiB left")
    assert rows[1].endswith("failed: ValueError: odd")


def test_the_csv_has_a_row_for_each_combination_with_its_arguments(tmp_path):
    report = FitReport("train.py", CARD, (fits(16, 2, 50 * GIB), too_large(8, 2, GIB)))
    write_fit_table(tmp_path / "fit.csv", report, force=False)
    with (tmp_path / "fit.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["world_size"], row["batch"], row["verdict"]) for row in rows] == [
        ("16", "2", "fits"),
        ("8", "2", "does not fit"),
    ]
    assert [row["left_bytes"] for row in rows] == [str(28 * GIB), ""]
    assert [row["short_bytes"] for row in rows] == ["", str(GIB)]


def test_an_argument_with_the_name_of_a_column_has_a_column_of_its_own(tmp_path):
    report = FitReport(
        "train.py",
        CARD,
        (
            FitRow(Combination(4, (("rank", "8"),)), Verdict.FITS, GIB, rank=3, reserved_bytes=1),
            FitRow(Combination(4, (("rank", "16"),)), Verdict.FITS, GIB, rank=0, reserved_bytes=1),
        ),
    )
    write_fit_table(tmp_path / "fit.csv", report, force=False)
    with (tmp_path / "fit.csv").open(newline="") as file:
        rows = [(row["--rank"], row["rank"]) for row in csv.DictReader(file)]
    assert rows == [("8", "3"), ("16", "0")]


def test_the_described_json_is_that_of_a_report():
    report = FitReport("train.py", CARD, (fits(16, 2, GIB),), (Combination(8, (("batch", "2"),)),))
    document = json.loads(json.dumps(report.to_json()))
    open_at = ("combinations[].arguments", "not_run[].arguments")
    paths = set(flat(document, open_at=open_at)) - {f"{path}.*" for path in open_at}
    assert sorted(key.path for key in catalogs.json_keys()["fit"]) == sorted(paths)


# --- the program's arguments


def test_placeholders_become_values_and_other_values_options():
    options = FitOptions(
        capacity="1GiB",
        world_sizes=(8, 16),
        values={"micro-batch": ("1", "2"), "seq": ("64",)},
        args=("--batch={micro-batch}", "--ranks", "{world-size}", "{other}"),
    )
    combinations = options.combinations()
    assert [(row.world_size, dict(row.arguments)["micro-batch"]) for row in combinations] == [
        (8, "1"),
        (8, "2"),
        (16, "1"),
        (16, "2"),
    ]
    assert options.arguments(combinations[2])[2] == "16"
    expected = ["--batch=2", "--ranks", "8", "{other}", "--seq", "64"]
    assert options.arguments(combinations[1]) == expected


def test_the_size_of_the_job_is_no_argument_of_the_program():
    options = FitOptions(capacity="1GiB", values={"world-size": ("1", "2")})
    with pytest.raises(ValueError, match="give it as --world-size"):
        options.combinations()


@pytest.mark.parametrize("values", [{}, {"card": "H100", "capacity": "1GiB"}])
def test_either_a_card_or_a_capacity_is_given(values):
    with pytest.raises(ValueError, match="a card or a capacity"):
        FitOptions(**values).memory()


def test_a_card_has_the_memory_of_the_table():
    # 79.11 GiB as CUDA reports it, less the GiB outside PyTorch.
    assert FitOptions(card="H100").memory().usable(1) == int(79.11 * GIB) - GIB


# --- a capture


def filled(path, usable_bytes):
    row = FitRow(Combination(1), Verdict.FITS, usable_bytes)
    return fill_row(row, analyze_file(path, AnalysisOptions()))


def test_the_device_that_ran_out_decides_with_the_least_that_it_lacks(tmp_path):
    spacious = TraceBuilder(0).segment(40 * MIB).alloc(30 * MIB)
    full = TraceBuilder(1).segment(20 * MIB).alloc(6 * MIB).oom(30 * MIB, 8 * MIB)
    row = filled(spacious.write(tmp_path / "x.pickle", full), 28 * MIB)
    assert (row.verdict, row.device) == (Verdict.TOO_LARGE, 1)
    assert row.short_bytes == (6 + 30 - 28) * MIB  # whatever the cache holds
    assert (row.left_bytes, row.reserved_bytes) == (None, 20 * MIB)


def test_without_one_the_device_that_reserved_most_decides(tmp_path):
    small = TraceBuilder(0).segment(20 * MIB).alloc(19 * MIB)
    large = TraceBuilder(1).segment(40 * MIB).alloc(9 * MIB)
    row = filled(small.write(tmp_path / "x.pickle", large), 64 * MIB)
    assert (row.verdict, row.device, row.peak_bytes) == (Verdict.FITS, 1, 9 * MIB)
    # It made no step, which the answer says.
    assert conclude([row]).endswith("left; no training step was seen")
    assert row.left_bytes == 24 * MIB


def test_pinned_memory_of_the_host_is_on_no_card(tmp_path):
    host = TraceBuilder(HOST).segment(80 * MIB).alloc(70 * MIB)
    card = TraceBuilder(0).segment(20 * MIB).alloc(MIB)
    path = tmp_path / "x.pickle"
    path.write_bytes(pickle.dumps({**card.snapshot(), **host.as_host()}))
    assert filled(path, 64 * MIB).reserved_bytes == 20 * MIB
