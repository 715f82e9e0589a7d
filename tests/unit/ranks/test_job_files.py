"""Patterns and the files that they name, with the ranks and the dumps in the names."""

import os

import numpy as np
import pytest

from snapconv.errors import InputError
from snapconv.mesh import Mesh
from snapconv.ranks.job_files import find_inputs
from tests.job_builder import write_rank


def found(*patterns):
    return [
        (one.path, one.row.rank, one.row.dump)
        for one in find_inputs([str(one) for one in patterns])
    ]


@pytest.mark.parametrize(
    ("name", "rank", "dump"),
    [
        ("iteration_10/rank3_memory_snapshot.pickle", 3, "iteration_10"),  # torchtitan
        ("iteration_10_exit/rank3_memory_snapshot.pickle", 3, "iteration_10_exit"),
        ("memory_snapshot_rank-12.pickle", 12, ""),
        (
            "captures/rank3-step-000100.capture/snapshot.pickle",
            3,
            "step-000100",
        ),  # snapconv.recording
        ("train.rank3.capture/snapshot.pickle", 3, ""),  # snapconv record
        ("rank7/snapshot.pickle", 7, ""),
        ("snapshot-00003-of-00008.pickle", 3, ""),
        ("lora-rank-16/snapshot.pickle", None, ""),
        ("snapshot.pickle", None, ""),
    ],
)
def test_a_name_has_the_rank_and_the_dump(tmp_path, name, rank, dump):
    path = write_rank(tmp_path / name)
    assert found(tmp_path) == [(str(path), rank, dump)]
    (one,) = find_inputs([str(path)])
    assert one.row.n_bytes == path.stat().st_size


def test_the_dump_at_an_exit_comes_after_that_of_its_iteration(tmp_path):
    for name in ("iteration_20", "iteration_10_exit", "iteration_10"):
        write_rank(tmp_path / name / "rank0.pickle")
    numbers = {one.row.dump: one.row.dump_number for one in find_inputs([str(tmp_path)])}
    in_order = ["iteration_10", "iteration_10_exit", "iteration_20"]
    assert sorted(numbers, key=lambda dump: (numbers[dump], dump)) == in_order


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("tp1_pp0.pickle", {"tp": 1, "pp": 0}),
        ("DP-12.capture/snapshot.pickle", {"dp": 12}),
        ("step3_http2.pickle", {}),
    ],
)
def test_a_name_has_places_on_the_axes_of_a_mesh(tmp_path, name, places):
    (one,) = find_inputs([str(write_rank(tmp_path / "tp7" / name))])
    assert one.row.coordinates == places


def test_without_the_word_the_last_number_is_the_rank_if_all_differ(tmp_path):
    for name in ("snapshot_0.pickle", "snapshot_1.pickle", "snapshot_10.pickle"):
        write_rank(tmp_path / name)
    assert [rank for _, rank, _ in found(tmp_path)] == [0, 1, 10]
    write_rank(tmp_path / "other_10.pickle")
    assert [rank for _, rank, _ in found(tmp_path)] == [None] * 4


def test_workers_in_other_folders_get_whole_paths(tmp_path, monkeypatch):
    path = write_rank(tmp_path / "rank0.pickle")
    monkeypatch.chdir(tmp_path)
    assert [one.path for one in find_inputs(["."], is_absolute=True)] == [str(path)]


def test_patterns_are_files_folders_globs_and_lists_and_each_file_is_there_once(tmp_path):
    paths = [write_rank(tmp_path / "deep" / f"rank{rank}.pickle") for rank in range(3)]
    (tmp_path / "deep" / "notes.txt").write_text("no snapshot")
    (tmp_path / "list").write_text(f"# ranks\n{paths[2]}\n\n{paths[0]}\n")
    everything = [(str(path), rank, "") for rank, path in enumerate(paths)]
    assert found(tmp_path) == everything
    assert found(tmp_path / "*" / "rank*.pickle", paths[0]) == everything
    assert found(f"@{tmp_path / 'list'}") == [everything[2], everything[0]]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes have names here")
def test_what_is_not_there_is_an_input_with_its_error(tmp_path):
    path = write_rank(tmp_path / "rank0.pickle")
    (tmp_path / "rank1.pickle").symlink_to("nowhere")
    os.mkfifo(tmp_path / "rank2.pickle")
    inputs = find_inputs([str(tmp_path), str(tmp_path / "rank9.pickle"), str(tmp_path / "x*")])
    assert [one.path for one in inputs if one.row.error is None] == [str(path)]
    errors = {one.row.rank: one.row.error for one in inputs if one.row.error}
    assert "cannot be read" in errors[1]
    assert "pipe" in errors[2]
    assert "is not there" in errors[9]
    assert "is not there" in errors[None]


@pytest.mark.parametrize("pattern", ["", "nothing", "no*thing", "@nothing"])
def test_nothing_at_all_is_an_error(tmp_path, pattern):
    with pytest.raises(InputError):
        find_inputs([f"{pattern[:1] if pattern[:1] == '@' else ''}{tmp_path}/{pattern}"])


def test_a_mesh_places_ranks_as_an_array_of_its_shape_does():
    mesh = Mesh.parse("pp=4,dp=8,tp=2")
    assert mesh.n_ranks == 64
    assert mesh.first_of_stages() == {0, 16, 32, 48}
    for rank in range(64):
        places = zip(("pp", "dp", "tp"), map(int, np.unravel_index(rank, (4, 8, 2))), strict=True)
        assert mesh.coordinates(rank) == dict(places)


@pytest.mark.parametrize(
    "text",
    ["", "pp", "pp=", "pp=0", "pp=-1", "pp=x", "4,8", "pp=4;dp=2", "pp=99999999", "pp=2,PP=4"],
)
def test_what_is_no_mesh_is_refused(text):
    with pytest.raises(ValueError, match="expected axes"):
        Mesh.parse(text)
