"""The key ``snapconv`` of a snapshot: read where it is right, left out with a note where it is not."""

import pytest

from snapconv.snapshot.load import load_snapshot
from tests.builders import ADDR, START_US, TraceBuilder, frame
from tests.metadata_builder import memory_row, metadata, parameter, phase


def load(tmp_path, raw_metadata, builder=None):
    builder = builder or TraceBuilder().segment().alloc(512)
    return load_snapshot(builder.write(tmp_path / "snapshot.pickle", snapconv=raw_metadata))


def slugs(snapshot) -> list[str]:
    return [note.slug for note in snapshot.notes]


def test_a_snapshot_without_a_recorder_has_no_metadata_and_no_note(tmp_path):
    snapshot = load_snapshot(TraceBuilder().segment().alloc(512).write(tmp_path / "s.pickle"))
    assert snapshot.metadata is None
    assert snapshot.notes == ()


def test_everything_that_was_recorded_is_read(tmp_path):
    raw = metadata(
        parameters=[
            parameter(
                "a.weight", ADDR, 512, 1, names=["a.weight", "b.weight"], frames=[frame("make")]
            ),
            parameter("a.mean", ADDR + 512, 8, 2, kind="buffer", requires_grad=False, shape=[1, 2]),
        ],
        gradients=[memory_row(ADDR, 512, 3, parameter=0, iteration=4)],
        optimizer_states=[
            memory_row(ADDR, 512, 5, parameter=0, state="exp_avg"),
            memory_row(ADDR, 4, 6, parameter=None, state="step"),
        ],
        inputs=[memory_row(ADDR, 24, 7, iteration=1, shape=[2, 3], dtype="float32")],
        saved=[
            memory_row(ADDR, 24, 8, iteration=1, module=None),
            memory_row(ADDR, 24, 9, iteration=1, module="a"),
        ],
        phases=[phase("forward", 10, 20), phase("backward", 21, None, 1)],
        iterations=[{"iteration": 0, "kind": "warm-up", "began_us": 1, "ended_us": 9}],
    )
    snapshot = load(tmp_path, raw)
    found = snapshot.metadata
    rows = found.parameters
    assert rows.names == ("a.weight", "a.mean")
    assert rows.modules == ("a", "a")
    assert (rows.shapes, rows.dtypes) == (((128,), (1, 2)), ("float32", "float32"))
    assert rows.is_buffer.tolist() == [False, True]
    assert rows.addr.tolist() == [ADDR, ADDR + 512]
    assert rows.n_bytes.tolist() == [512, 8]
    assert rows.recorded_us.tolist() == [1, 2]
    [made_by] = snapshot.stacks.frames_of(int(rows.stack_ids[0])).tolist()
    assert snapshot.stacks.frames.names[made_by] == "make"
    assert (found.gradients.parameter.tolist(), found.gradients.iteration.tolist()) == ([0], [4])
    assert (found.states.parameter.tolist(), found.states.names) == ([0, -1], ("exp_avg", "step"))
    assert (found.inputs.shapes, found.inputs.dtypes) == (((2, 3),), ("float32",))
    assert found.saved.modules == ("", "a")
    assert found.phases.phase.tolist() == [1, 2]
    assert found.phases.ended_us.tolist() == [20, -1]
    assert found.iterations.began_us.tolist() == [1]
    assert found.project.root == "/home/me/project"
    assert ("command", "train.py --fast") in found.facts
    assert ("torch", "2.13.0") in found.facts
    assert slugs(snapshot) == []


def test_phases_are_brought_into_the_order_of_their_beginnings(tmp_path):
    snapshot = load(tmp_path, metadata(phases=[phase("backward", 5, 6), phase("forward", 1, 2)]))
    assert snapshot.metadata.phases.began_us.tolist() == [1, 5]


def test_a_simulated_recording_is_reported_and_what_it_met_and_lacks(tmp_path):
    snapshot = load(tmp_path, metadata(simulated={"not_modelled": ["cuDNN workspaces", "NCCL"]}))
    [note] = snapshot.notes
    assert note.slug == "simulated"
    assert note.message == "recorded without a GPU; not modelled: cuDNN workspaces; NCCL"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("finished", "program ended before"), ("exception", ("ended by an exception "
                                                            "(ValueError: no)")),
        ("interrupted", "interrupted"), ("oom", "ran out of memory"), ("exit", "left"), ("else", "ended"),
    ],
)  # fmt: skip
def test_a_program_that_ended_early_gives_a_note(tmp_path, how, words):
    detail = "ValueError: no" if how == "exception" else ""
    [note] = load(tmp_path, metadata(ended={"how": how, "detail": detail})).notes
    assert note.slug == "ended-early"
    assert words in note.message


def test_of_a_long_message_two_sentences_are_kept(tmp_path):
    detail = (
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has 1 GiB. See"
    )
    [note] = load(tmp_path, metadata(ended={"how": "oom", "detail": detail})).notes
    said = "(OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.)"
    assert f"the program ran out of memory {said} before" in note.message


def test_a_termination_gives_a_note_with_its_signal(tmp_path):
    [note] = load(tmp_path, metadata(ended={"how": "interrupted", "detail": "SIGTERM"})).notes
    assert "the program was interrupted (SIGTERM) before" in note.message


def test_what_the_recorder_has_of_its_ring_is_accepted(tmp_path):
    assert load(tmp_path, metadata(overflowed=True)).devices[0].history_overflowed is True
    assert load(tmp_path, metadata(overflowed=False)).devices[0].history_overflowed is False


def test_stacks_of_parameters_do_not_count_where_nothing_else_has_a_stack(tmp_path):
    raw = metadata(parameters=[parameter("a", ADDR, 512, 1, frames=[frame()])])
    builder = TraceBuilder().segment(frames=[]).alloc(512, frames=[])
    snapshot = load(tmp_path, raw, builder)
    assert len(snapshot.stacks.frames) == 0
    assert snapshot.metadata.parameters.stack_ids.tolist() == [-1]


WRONG = {
    "snapconv: expected dict, got list": [],
    "snapconv.version: expected 1, got 2": metadata(version=2),
    "snapconv.version: expected 1, got NoneType": metadata(version=None),
    "snapconv.version: expected 1, got True": metadata(version=True),
    "snapconv.parameters: expected list, got dict": metadata(parameters={}),
    "snapconv.saved[1]: expected dict, got int": metadata(
        saved=[memory_row(1, 1, 1, iteration=0), 7]
    ),
    "snapconv.saved[0].addr: expected int, got nothing": metadata(saved=[{"device": 0}]),
    "snapconv.saved[0].addr: expected int, got str": metadata(
        saved=[memory_row("1", 1, 1, iteration=0)]
    ),
    "snapconv.saved[0].bytes: expected 0 to 2^48 bytes, got -1": metadata(
        saved=[memory_row(1, -1, 1)]
    ),
    "snapconv.saved[0].device: expected a device from 0 to 127": metadata(
        saved=[memory_row(1, 1, 1, device=128)]
    ),
    "snapconv.saved[0].module: expected str, got int": metadata(
        saved=[memory_row(1, 1, 1, module=3)]
    ),
    "snapconv.saved[0].iteration: expected 0 to 2^31": metadata(
        saved=[memory_row(1, 1, 1, iteration=-3)]
    ),
    "snapconv.gradients[0].parameter: expected an index below 0": metadata(
        gradients=[memory_row(1, 1, 1, parameter=0)]
    ),
    "snapconv.parameters: expected a name for each": metadata(
        parameters=[parameter("a", 1, 4, 1) | {"name": None}]
    ),
    "snapconv.parameters[0].shape: expected 0 to 2^62": metadata(
        parameters=[parameter("a", 1, 4, 1, shape=[-1])]
    ),
    (
        "snapconv.parameters[0].shape: expected dimensions with a product of at most 2^60, got"
    ): metadata(parameters=[parameter("a", 1, 4, 1, shape=[1 << 32, 1 << 32])]),
    "snapconv.parameters[0].shape: expected list, got int": metadata(
        parameters=[parameter("a", 1, 4, 1, shape=4)]
    ),
    "snapconv.parameters[0].frames: expected list, got int": metadata(
        parameters=[parameter("a", 1, 4, 1, frames=3)]
    ),
    "snapconv.phases[0].began_us: expected int, got nothing": metadata(
        phases=[{"phase": "forward"}]
    ),
    "snapconv: the sizes add up to more than 2^61 bytes": metadata(
        saved=[memory_row(1, 1 << 48, 1)] * 8193
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_metadata_that_cannot_be_right_is_left_out_with_a_note_that_names_the_place(
    tmp_path, fault
):
    snapshot = load(tmp_path, WRONG[fault])
    [note] = snapshot.notes
    assert note.slug == "metadata-left-out"
    assert fault in note.message
    assert snapshot.metadata is None
    assert len(snapshot.devices[0].events) == 2


def test_what_is_missing_is_as_good_as_empty(tmp_path):
    found = load(tmp_path, {"version": 1}).metadata
    assert (len(found.parameters), len(found.saved), len(found.phases.phase)) == (0, 0, 0)
    assert (found.project.root, found.is_simulated, found.ended) == (None, False, "complete")


def test_of_a_huge_list_the_beginning_is_read(tmp_path):
    rows = [parameter("a" * 100_000, 1, 4, START_US) | {"shape": [1] * 100_000}]
    found = load(tmp_path, metadata(parameters=rows)).metadata.parameters
    assert (len(found.names[0]), len(found.shapes[0])) == (2000, 100)


def test_a_huge_list_that_stands_in_many_rows_costs_little(tmp_path):
    many = ["x" * 100_000] * 100_000
    rows = [parameter("a", 1, 4, START_US) | {"names": many} for _ in range(5_000)]
    assert slugs(load(tmp_path, metadata(parameters=rows))) == ["metadata-left-out"]


def test_notes_of_the_recording_are_notes_of_the_file(tmp_path):
    rows = [{"slug": "simulated-nccl", "message": "one rank"}]
    assert slugs(load(tmp_path, metadata(notes=rows))) == ["simulated-nccl"]


@pytest.mark.parametrize(
    "rows",
    [
        None,
        "text",
        [1],
        [{"slug": 1, "message": "m"}],
        [{"slug": "ab-c"}],
        [{"slug": "Not A Slug", "message": "m"}],
    ],
)
def test_what_is_no_note_is_left_out(tmp_path, rows):
    assert slugs(load(tmp_path, metadata(notes=rows))) == []
