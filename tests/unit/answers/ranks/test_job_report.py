"""Ranks compared: which differs, in what, and by how much, on rows whose every figure is written here."""

import time
from dataclasses import asdict, replace

import pytest

import snapconv
from snapconv.answers.ranks.job_report import Kind, report_job
from snapconv.answers.ranks.rank_file import (
    FailedRequest,
    RankDevice,
    RankFile,
    RankLine,
    rank_file,
)
from snapconv.json_text import dataclass_from, read_json, write_json
from snapconv.writers.text.ranks import job_lines
from tests.job_builder import rank_trace, write_rank

GIB = 1 << 30
NET, OPTIM, LEAK = ("net.py", 35), ("optim.py", 88), ("leak.py", 7)
FIGURES = {
    "usable_bytes": 80 * GIB, "unlisted_bytes": 0, "history": "complete", "about": "peak", "verdict": "",
    "command": "tree", "growth_bytes": 0, "growth_place": "", "failed": None, "input_shape": (),
}  # fmt: skip


def device(**lines):
    """A device whose lines are ``category_at=(line, GiB)``; its peak is their sum."""
    found = [
        RankLine(name.split("_at")[0], file, line, "f", int(size * GIB))
        for name, ((file, line), size) in lines.items()
    ]
    totals = {}
    for one in found:
        totals[one.category] = totals.get(one.category, 0) + one.block_bytes
    peak = sum(totals.values())
    return RankDevice(
        device=0, peak_bytes=peak, end_bytes=peak, reserved_bytes=peak, categories=totals,
        lines=tuple(found), **FIGURES,
    )  # fmt: skip


def usual():
    return device(weight=(NET, 20), activation=(NET, 10))


def rank(number, one=None, **fields):
    fields = {"file": f"rank{number}.pickle", "rank": number} | fields
    return RankFile(**fields, devices=(one or usual(),))


def sentences(files, kind):
    return [one.sentence for one in report_job(files).select(kind)]


def test_a_rank_with_memory_that_its_group_does_not_have_is_named_with_the_line():
    odd = device(weight=(NET, 20), activation=(NET, 10), optimizer_state=(OPTIM, 19))
    files = [rank(number, odd if number == 37 else None) for number in range(64)]
    (found,) = report_job(files).select(Kind.OUTLIER)
    assert (
        found.sentence == "rank 37: +19.00 GiB optimizer_state at optim.py:88 (none in its group)"
    )
    assert (found.rank, found.n_bytes, found.file) == (37, 19 * GIB, "rank37.pickle")


def test_a_rank_with_more_of_what_its_group_has_is_compared_with_the_median():
    odd = device(weight=(NET, 20), activation=(NET, 16))
    assert sentences([*map(rank, range(7)), rank(7, odd)], Kind.OUTLIER) == [
        "rank 7: +6.00 GiB activation at net.py:35 (group median 10.00 GiB)"
    ]


def test_a_rank_that_lacks_what_its_group_has_differs_too():
    odd = device(weight=(NET, 20))
    assert sentences([*map(rank, range(7)), rank(7, odd)], Kind.OUTLIER) == [
        "rank 7: −10.00 GiB activation at net.py:35 (group median 10.00 GiB)"
    ]


def test_a_line_that_a_row_has_no_room_for_is_not_taken_for_missing():
    odd = replace(device(weight=(NET, 20)), unlisted_bytes=10 * GIB, categories=usual().categories)
    odd = replace(odd, peak_bytes=30 * GIB, reserved_bytes=30 * GIB)
    assert sentences([*map(rank, range(7)), rank(7, odd)], Kind.OUTLIER) == []


def test_ranks_that_all_differ_by_chance_have_no_outlier():
    spread = [device(weight=(NET, 20), activation=(NET, 10 + size / 10)) for size in range(32)]
    assert sentences([rank(number, one) for number, one in enumerate(spread)], Kind.OUTLIER) == []


def test_growth_within_one_rank_alone_is_a_difference():
    odd = replace(usual(), growth_bytes=GIB, growth_place="leak.py:7")
    assert sentences([*map(rank, range(7)), rank(7, odd)], Kind.OUTLIER) == [
        "rank 7: grows by 1.00 GiB per iteration at leak.py:7"
    ]


def stages(n_first, n_last):
    first = device(weight=(NET, 40), activation=(NET, 30))
    files = [rank(number, first, coordinates={"pp": 0, "dp": number}) for number in range(n_first)]
    return files + [
        rank(n_first + number, usual(), coordinates={"pp": 1, "dp": number})
        for number in range(n_last)
    ]


def test_pipeline_stages_are_groups_of_their_own_and_their_difference_is_an_imbalance():
    report = report_job(stages(4, 12))
    assert [(one.name, one.n_ranks, one.median_bytes) for one in report.groups] == [
        ("pp=0", 4, 70 * GIB),
        ("pp=1", 12, 30 * GIB),
    ]
    assert [(one.kind, one.sentence) for one in report.findings] == [
        (Kind.IMBALANCE, "pp=0 peaks at 70.00 GiB, pp=1 at 30.00 GiB (medians)")
    ]


def test_experts_of_a_stage_that_need_more_are_an_imbalance():
    more = device(weight=(NET, 20), activation=(NET, 16))
    files = [
        rank(n, more if n % 4 == 1 else None, coordinates={"pp": 0, "ep": n % 4, "dp": n // 4})
        for n in range(16)
    ]
    assert sentences(files, Kind.IMBALANCE) == [
        "ep=1 peaks at 36.00 GiB, ep=0 at 30.00 GiB (medians)"
    ]


def on_a_mesh(coordinates, is_more):
    """A job of 4 by 2 ranks, or fewer axes; some have 6 GiB more activations."""
    more = device(weight=(NET, 20), activation=(NET, 16))
    places = [coordinates(n // 2, n % 2) for n in range(8)]
    return report_job(
        [
            rank(n, more if is_more(place) else None, coordinates=place)
            for n, place in enumerate(places)
        ]
    )


def test_the_axis_of_a_mesh_along_which_peaks_differ_is_named():
    report = on_a_mesh(lambda dp, tp: {"dp": dp, "tp": tp}, lambda place: place["tp"] == 1)
    lines = list(job_lines(report))
    first = lines.index("  axes of the mesh (each between ranks that are equal on the others)")
    assert [line.strip() for line in lines[first + 1 : first + 3]] == [
        "dp      4  peaks are equal",
        "tp      2  tp=1 has up to 6.00 GiB more than tp=0; unequal in 4 of 4 sets",
    ]
    _, tp = report.to_json()["axes"]
    assert tp == {
        "name": "tp", "n_coordinates": 2, "n_compared": 4, "n_unequal": 4,
        "difference_bytes": 6 * GIB, "highest": 1, "lowest": 0,
    }  # fmt: skip


def test_one_rank_that_differs_is_in_one_set_of_each_axis():
    report = on_a_mesh(
        lambda dp, tp: {"dp": dp, "tp": tp}, lambda place: place == {"dp": 3, "tp": 0}
    )
    assert [(axis.name, axis.n_unequal, axis.n_compared, axis.highest) for axis in report.axes] == [
        ("dp", 1, 2, 3),
        ("tp", 1, 4, 0),
    ]


def test_axes_of_a_mesh_with_one_that_has_several_coordinates_are_not_compared():
    report = on_a_mesh(lambda dp, tp: {"dp": 2 * dp + tp, "tp": 0}, lambda place: place["dp"] == 1)
    assert report.axes == ()


def test_without_its_mesh_a_mixed_job_gets_the_hint_to_pass_one():
    files = [replace(file, coordinates={}) for file in stages(5, 12)]
    (hint,) = sentences(files, Kind.HINT)
    assert "the peaks of the 17 ranks differ widely" in hint
    assert "--mesh" in hint


def test_peaks_that_differ_without_an_outlier_get_the_hint_too():
    files = [rank(number, device(weight=(NET, 10 + 10 * (number % 2)))) for number in range(8)]
    assert sentences(files, Kind.OUTLIER) == []
    assert "--mesh" in sentences(files, Kind.HINT)[0]


def test_devices_of_one_process_are_compared_with_those_in_the_same_place_of_others():
    small = replace(device(activation=(NET, 2)), device=1)
    odd = replace(device(activation=(NET, 20)), device=1)
    files = [
        replace(rank(number), devices=(usual(), odd if number == 2 else small))
        for number in range(8)
    ]
    assert sentences(files, Kind.OUTLIER) == [
        "rank 2, cuda:1: +18.00 GiB activation at net.py:35 (group median 2.00 GiB)"
    ]
    assert "device=0, device=1" in sentences(files[:2], Kind.HINT)[0]
    # A few such files beside those of one device lack nobody.
    assert sentences([*files[:2], *map(rank, range(3, 9))], Kind.HINT) == []


def test_a_line_that_took_the_place_of_another_is_named_though_sums_are_equal():
    odd = device(weight=(NET, 20), activation=(LEAK, 10))
    (found,) = sentences([*map(rank, range(7)), rank(7, odd)], Kind.OUTLIER)
    assert "+10.00 GiB activation at leak.py:7 (none in its group)" in found
    assert "−10.00 GiB activation at net.py:35" in found


def test_ranks_that_all_have_lines_of_their_own_take_no_longer_than_others():
    files = [
        rank(number, device(weight=(NET, 20), input=(("in.py", number), 4)))
        for number in range(6000)
    ]
    began = time.process_time()
    assert "rank 7: +4.00 GiB input at in.py:7 (none in its group)" in sentences(
        files, Kind.OUTLIER
    )
    assert (
        time.process_time() - began < 10
    )  # compared with each other's lines it took half a minute


def test_two_ranks_are_not_compared():
    odd = device(weight=(NET, 60))
    assert sentences([rank(0), rank(1, odd)], Kind.OUTLIER) == []
    assert "needs 3 ranks" in sentences([rank(0), rank(1, odd)], Kind.HINT)[0]


def test_a_rank_that_ran_out_is_shown_with_what_the_others_had_left():
    failed = FailedRequest(2 * GIB, GIB, 30 * GIB, "net.py:36", "full", "full")
    odd = replace(usual(), failed=failed, usable_bytes=31 * GIB)
    others = [rank(number, replace(usual(), usable_bytes=None)) for number in (0, 1)]
    more = replace(usual(), usable_bytes=None, reserved_bytes=29 * GIB)
    assert sentences([*others, rank(2, more), rank(3, odd)], Kind.OUT_OF_MEMORY) == [
        "rank 3 at net.py:36: 2.00 GiB needed, 1.00 GiB free; "
        "3 other ranks of its group had 1.00 GiB to 2.00 GiB left at their peaks"
    ]


def test_the_last_dump_is_compared_and_the_first_shows_the_growth():
    later = device(weight=(NET, 20), activation=(NET, 10), unknown=(LEAK, 5))
    dumps = [
        rank(0, file=f"iteration_{n}/rank0", dump=f"iteration_{n}", dump_number=n) for n in (10, 20)
    ]
    last = rank(0, later, file="iteration_30/rank0", dump="iteration_30", dump_number=30)
    report = report_job([last, *dumps])
    assert [file.file for file in report.last_dumps] == ["iteration_30/rank0"]
    assert [one.sentence for one in report.select(Kind.GROWTH)] == [
        (
            "rank 0: peak 30.00 GiB at iteration_10, 35.00 GiB at iteration_30 (3 dumps), most of it "
            "at leak.py:7"
        )
    ]


def test_two_files_of_one_rank_and_dump_are_named_since_one_may_be_of_another_rank():
    files = [*map(rank, range(4)), rank(2, file="another.pickle")]
    assert sentences(files, Kind.HINT) == [
        (
            "1 file not compared, as another has the same rank and dump: such as another.pickle, for "
            "rank2.pickle"
        )
    ]


def test_a_few_ranks_without_a_file_are_errors_and_most_of_a_job_are_none():
    assert [one.rank for one in report_job([rank(n) for n in (4, 5, 7, 8)]).errors] == [6]
    assert [one.rank for one in report_job([*map(rank, range(6))], n_ranks=8).errors] == [6, 7]
    assert report_job([*map(rank, range(6))], n_ranks=64).errors == ()
    assert report_job([rank(0), rank(999_999_999)]).errors == ()
    assert report_job([rank(n) for n in (0, 1, 2, 4)], is_whole=False).errors == ()


def test_recorded_inputs_of_other_lengths_are_an_imbalance():
    files = [rank(n, replace(usual(), input_shape=(1, 2048 if n else 8192))) for n in range(4)]
    assert sentences(files, Kind.IMBALANCE) == [
        "the inputs of rank 0 are 1 × 8192, those of rank 1 1 × 2048"
    ]


@pytest.mark.parametrize("trace", [rank_trace(leak=1 << 20), rank_trace(free_at_oom=1 << 20)])
def test_a_row_of_a_file_comes_back_from_json_as_it_was(tmp_path, trace):
    path = write_rank(tmp_path / "rank3.pickle", trace)
    row = rank_file(snapconv.load(path).analysis, RankFile(str(path), rank=3))
    assert dataclass_from(RankFile, read_json(write_json(asdict(row)))) == row
    assert row.main_device.peak_bytes == sum(row.main_device.categories.values())


def test_a_failed_request_is_in_the_row_with_what_was_free(tmp_path):
    path = write_rank(tmp_path / "rank3.pickle", rank_trace(free_at_oom=1 << 20))
    device = rank_file(snapconv.load(path).analysis, RankFile(str(path), rank=3)).main_device
    assert device.failed.free_bytes == 1 << 20
    assert device.failed.needed_bytes == 80 << 20
    assert device.failed.place == "net.py:36"
    assert device.usable_bytes == (64 + 1) << 20  # one segment, and what was free
    assert (device.about, device.command) == ("oom", "oom")


@pytest.mark.parametrize("values", [{}, {"file": "a"}, [], None, {"file": "a", "devices": [{}]}])
def test_what_is_no_row_is_refused(values):
    with pytest.raises(ValueError, match="not the values of RankFile"):
        dataclass_from(RankFile, values)


def test_a_fault_that_ranks_share_is_said_once():
    held = "x.py:1 keeps its previous output until the next one is made"
    files = [
        rank(number, replace(usual(), faults={held: (5 + number) * GIB})) for number in range(3)
    ]
    assert sentences(files, Kind.FAULT) == [f"{held}: 7.00 GiB at the peak of rank 2 and 2 others"]


def test_a_rank_that_grew_and_whose_last_dump_has_pinned_memory_only_leads_on():
    more = device(weight=(NET, 20), activation=(NET, 30))
    dumps = [usual(), more, replace(usual(), device=-1)]
    files = [
        rank(0, one, file=f"{number}.pickle", dump=f"iteration_{number}", dump_number=number)
        for number, one in enumerate(dumps)
    ]
    assert len(sentences(files, Kind.GROWTH)) == 1
    assert [*job_lines(report_job(files))][-1] == "  next: snapconv info 1.pickle"
