"""What was recorded, matched with hand-made traces; event ``i`` is at START_US + i."""

import math

import numpy as np
import pytest

from snapconv.analysis import DeviceAnalysis, analyze_device
from snapconv.classification.categories import Category, Evidence
from snapconv.phases.recorded_matches import match_recorded
from snapconv.phases.trace_phases import Phase
from snapconv.replay.device_replay import replay
from snapconv.snapshot.load import load_snapshot
from snapconv.stacks.project_frames import find_project
from snapconv.stacks.stack_facts import StackFacts
from tests.builders import ADDR, START_US, TraceBuilder, frame
from tests.metadata_builder import memory_row, metadata, parameter, phase

CALL = frame("_call_impl", "/site-packages/torch/nn/modules/module.py")


def at(event: float) -> int:
    return START_US + int(event)


def matched_saved(tmp_path, builder, *notes, **fields):
    """The alloc events of the allocations that these notes of saved tensors mean."""
    path = builder.write(tmp_path / "s.pickle", snapconv=metadata(saved=list(notes)), **fields)
    snapshot = load_snapshot(path)
    device = snapshot.devices[0]
    allocations = replay(snapshot, device).allocations
    rows = match_recorded(snapshot.metadata, device.device, device.events, allocations).saved
    return [int(allocations.alloc_event[row]) if row >= 0 else None for row in rows.tolist()]


def reused() -> TraceBuilder:
    """Events: 0 segment, 1 alloc, 2 and 3 its free, 4 alloc at the same address."""
    return TraceBuilder().segment().alloc(512).free().alloc(1024)


def test_a_note_means_the_allocation_that_lived_then(tmp_path):
    notes = [
        memory_row(ADDR, 512, at(1)),
        memory_row(ADDR, 1024, at(4)),
        memory_row(ADDR, 1024, at(900)),
    ]
    assert matched_saved(tmp_path, reused(), *notes) == [1, 4, 4]


def test_a_note_between_two_lives_means_nothing(tmp_path):
    assert matched_saved(tmp_path, reused(), memory_row(ADDR, 512, at(3))) == [None]


def test_a_note_of_the_microsecond_of_a_free_means_what_is_freed(tmp_path):
    assert matched_saved(tmp_path, reused(), memory_row(ADDR, 512, at(2))) == [1]


def test_a_note_before_the_first_event_means_nothing_unless_it_was_there(tmp_path):
    builder = TraceBuilder().segment(traced=False).alloc(512, traced=False).alloc(512)
    notes = [memory_row(ADDR, 512, at(-5)), memory_row(ADDR + 512, 512, at(-5))]
    assert matched_saved(tmp_path, builder, *notes) == [-1, None]


def test_notes_of_another_device_mean_nothing_here(tmp_path):
    builder = TraceBuilder().segment().alloc(512)
    assert matched_saved(tmp_path, builder, memory_row(ADDR, 512, at(1), device=1)) == [None]


def test_without_times_a_note_means_what_is_there_in_the_end(tmp_path):
    builder = reused()
    for event in builder.events:
        del event["time_us"]
    assert matched_saved(tmp_path, builder, memory_row(ADDR, 512, at(1))) == [4]


def test_many_notes_are_joined_as_one_by_one(tmp_path):
    """Against a plain search through the list of lives."""
    chance = np.random.default_rng(3)
    builder, lives = TraceBuilder().segment(20 << 20), []
    for _ in range(300):
        if lives and chance.random() < 0.45 and builder._live:
            addr = int(chance.choice(list(builder._live)))
            life = next(life for life in reversed(lives) if life[0] == addr)
            life[2] = len(builder.events)
            builder.free(addr)
        else:
            builder.alloc(int(chance.integers(1, 5000)))
            addr = list(builder._live)[-1]
            lives.append([addr, len(builder.events) - 1, 1 << 60])
    places = chance.integers(ADDR, ADDR + 200_000, 400).tolist() + [life[0] for life in lives] * 3
    times = chance.integers(0, len(builder.events), len(places)).tolist()

    def expected(addr: int, time: int) -> int | None:
        # Of the event at the very time, either side may be meant: the newest that lived on one of
        # them.
        fits = [b for a, b, e in lives if a == addr and b <= time and e > time - 1]
        return fits[-1] if fits else None

    found = matched_saved(
        tmp_path, builder, *(memory_row(a, 1, at(t)) for a, t in zip(places, times, strict=True))
    )
    assert found == [expected(a, t) for a, t in zip(places, times, strict=True)]
    assert sum(event is not None for event in found) > 100


def training() -> TraceBuilder:
    """Two steps whose stacks have no known frame; see recorded_training for what is recorded."""
    nothing = [frame("x", "/elsewhere/y.cc")]
    builder = TraceBuilder().segment(20 << 20)
    builder.alloc(1000, frames=[frame("build")])  # 1: weight
    builder.alloc(400, frames=nothing)  # 2: input
    builder.alloc(3000, frames=nothing)  # 3: forward: saved
    builder.alloc(5000, frames=nothing)  # 4: forward: kept by the program, not recorded
    builder.alloc(1024, frames=nothing)  # 5: forward: freed there
    builder.free()  # 6, 7
    builder.alloc(1000, frames=nothing)  # 8: backward: gradient
    builder.alloc(2048, frames=nothing)  # 9: backward: freed there
    builder.free()  # 10, 11
    builder.alloc(1000, frames=nothing)  # 12: optimizer: state
    builder.alloc(700, frames=nothing)  # 13: optimizer: freed there
    builder.free()  # 14, 15
    return builder


WEIGHT, INPUT, SAVED = ADDR, ADDR + 1024, ADDR + 1536
HELD = SAVED + 3072
GRADIENT = HELD + 5120
STATE = GRADIENT + 1024


def analyse(tmp_path, builder, raw) -> DeviceAnalysis:
    snapshot = load_snapshot(builder.write(tmp_path / "s.pickle", snapconv=raw))
    return analyze_device(
        snapshot, snapshot.devices[0], StackFacts(snapshot.stacks, find_project(snapshot.stacks))
    )


def recorded_training(**fields):
    notes = {
        "parameters": [parameter("fc.weight", WEIGHT, 1000, at(2), frames=[frame("make")])],
        "gradients": [memory_row(GRADIENT, 996, at(11), parameter=0, iteration=0)],
        "optimizer_states": [memory_row(STATE, 1000, at(15), parameter=0, state="exp_avg")],
        "inputs": [memory_row(INPUT, 400, at(2), iteration=0, shape=[100], dtype="float32")],
        "saved": [
            memory_row(SAVED, 3000, at(3), iteration=0, module="fc"),
            memory_row(WEIGHT, 1000, at(3), iteration=0, module="fc"),
        ],
        "phases": [
            phase("forward", at(3), at(7)),
            phase("backward", at(8), at(11)),
            phase("optimizer", at(12), at(15)),
        ],
        "iterations": [{"iteration": 0, "kind": "memory", "began_us": at(0), "ended_us": at(16)}],
    }  # fmt: skip
    return metadata(**(notes | fields))


def decided(analysis: DeviceAnalysis) -> dict[int, tuple[str, str, str]]:
    found = analysis.classification
    return {
        event: (
            Category(found.category[row]).label,
            Evidence(found.evidence[row]).label,
            found.reasons[found.reason_id[row]],
        )
        for row, event in enumerate(analysis.allocations.alloc_event.tolist())
    }


def test_every_category_follows_from_what_was_recorded_or_from_the_phases(tmp_path):
    assert decided(analyse(tmp_path, training(), recorded_training())) == {
        1: ("weight", "metadata", "recorded-as-parameter"),
        2: ("input", "metadata", "recorded-as-input"),
        3: ("activation", "metadata", "recorded-as-saved"),
        4: ("activation", "metadata", "kept-into-backward"),
        5: ("temporary", "metadata", "freed-before-backward"),
        8: ("gradient", "metadata", "recorded-as-gradient"),
        9: ("temporary", "metadata", "freed-within-backward"),
        12: ("optimizer_state", "metadata", "recorded-as-optimizer-state"),
        13: ("temporary", "metadata", "made-in-step-and-freed"),
    }


@pytest.mark.parametrize(
    ("freed_by", "expected"),
    [
        (CALL, ("temporary", "freed-before-backward")),
        (frame("train"), ("activation", "recorded-as-saved")),
    ],
    ids=["the module", "the program"],
)
def test_what_was_saved_is_an_activation_unless_its_own_forward_frees_it(
    freed_by, expected, tmp_path
):
    """A graph that is freed while the module still runs has no backward, one that it returned may have."""
    builder = TraceBuilder().segment()
    builder.alloc(3000, frames=[frame("forward", "/w/model.py"), CALL])  # 1
    builder.free(frames=[frame("line", "/w/train.py", 7), freed_by])  # 2, 3
    builder.alloc(2000, frames=[frame("loss", "/w/train.py"), CALL])  # 4
    builder.alloc(1000, frames=[frame("x", "/elsewhere/y.cc")])  # 5: backward
    raw = metadata(
        saved=[memory_row(ADDR, 3000, at(1), iteration=0, module="fc")],
        phases=[phase("forward", at(1), at(4)), phase("backward", at(5), at(5))],
    )
    category, _, reason = decided(analyse(tmp_path, builder, raw))[1]
    assert (category, reason) == expected


def test_a_buffer_is_a_weight_of_its_own_kind(tmp_path):
    raw = recorded_training(
        parameters=[parameter("mean", WEIGHT, 1000, at(2), kind="buffer")], gradients=[]
    )
    assert decided(analyse(tmp_path, training(), raw))[1] == (
        "weight",
        "metadata",
        "recorded-as-buffer",
    )


@pytest.mark.parametrize(
    ("kind", "reason"), [("parameter", "recorded-as-parameter"), ("buffer", "recorded-as-buffer")]
)
def test_where_a_parameter_lay_before_is_a_weight_too(kind, reason, tmp_path):
    """The program gave it other memory, that of the input, and the first was freed."""
    other = [
        parameter(
            "other",
            ADDR + (1 << 30),
            512,
            at(2),
            kind="buffer" if kind == "parameter" else "parameter",
        )
    ]
    raw = recorded_training(
        parameters=[*other, parameter("w", ADDR + (1 << 29), 1000, at(9), kind=kind)],
        earlier_parameters=[memory_row(WEIGHT, 1000, at(2), parameter=1)],
        gradients=[],
    )
    assert decided(analyse(tmp_path, training(), raw))[1] == ("weight", "metadata", reason)


def test_what_a_module_made_is_no_input(tmp_path):
    builder = TraceBuilder().segment().alloc(512, frames=[CALL])
    raw = metadata(inputs=[memory_row(ADDR, 512, at(1), iteration=0, shape=[], dtype="float32")])
    category, _, reason = decided(analyse(tmp_path, builder, raw))[1]
    assert (category, reason) != ("input", "recorded-as-input")


COPY = frame("at::_ops::_to_copy::call(at::Tensor const&)", "??")
EARLIER = phase("forward", at(1), at(1))  # without gradients: a teacher's
CLEARED, STEPPED = (phase(name, at(2), at(2)) for name in ("other", "optimizer"))


@pytest.mark.parametrize(
    ("made_at", "fields", "category"),
    [
        (3, {}, "input"),  # before forward
        (
            3,
            {"without_history": False},
            "activation",
        ),  # computed with gradients before the model was called
        (3, {"frames": [CALL]}, "activation"),  # a module made it
        (3, {"phases": [EARLIER]}, "activation"),  # computed from what another model answered
        (3, {"phases": [EARLIER, CLEARED]}, "activation"),  # though zero_grad comes between
        (3, {"phases": [EARLIER, STEPPED]}, "input"),  # of the next iteration
        (3, {"phases": [EARLIER], "frames": [COPY]}, "input"),  # copied to the device all the same
        (
            4,
            {"dtype": "int64"},
            "activation",
        ),  # in the middle of forward: a mask that it made for itself
        (
            4,
            {"dtype": "int64", "frames": [COPY]},
            "input",
        ),  # labels that are moved there when they are needed
        (
            4,
            {"dtype": "float32", "frames": [COPY]},
            "activation",
        ),  # may as well be of another type than before
    ],
)
def test_what_is_saved_without_a_history_and_came_from_outside_is_an_input(
    made_at, fields, category, tmp_path
):
    """Events: 0 segment, 1 weight, 2 anything, 3 and 4 what may be a target."""
    fields = {"without_history": True, "dtype": "float32", "frames": [], "phases": []} | fields
    builder = TraceBuilder().segment().alloc(1024).alloc(1024)
    for event in (3, 4):
        builder.alloc(400, frames=fields["frames"] if event == made_at else [])
    about = {"iteration": 0, "module": None, "dtype": fields["dtype"]}
    about["without_history"] = fields["without_history"]
    raw = metadata(
        saved=[memory_row(ADDR + 2048 + 512 * (made_at - 3), 400, at(5), **about)],
        phases=[*fields["phases"], phase("forward", at(4), at(5)), phase("backward", at(6), at(7))],
    )
    assert decided(analyse(tmp_path, builder, raw))[made_at][0] == category


def test_a_copy_is_for_what_its_original_is_for(tmp_path):
    """Events: 0 segment, 1 weight, 2 state, 3 to 5 copies of both and of the first copy, 6 no copy."""
    builder = TraceBuilder().segment()
    for _ in range(6):
        builder.alloc(512)
    addrs = [ADDR + 512 * i for i in range(6)]
    copies = [(2, 0, 3), (3, 1, 4), (4, 2, 5)]
    raw = metadata(
        parameters=[parameter("w", addrs[0], 512, at(2))],
        optimizer_states=[memory_row(addrs[1], 512, at(2), parameter=0, state="exp_avg")],
        copies=[memory_row(addrs[copy], 512, at(t), original=addrs[of]) for copy, of, t in copies],
    )
    found = decided(analyse(tmp_path, builder, raw))
    assert [found[event][0] for event in (3, 4, 5)] == ["weight", "optimizer_state", "weight"]
    assert {found[event][1:] for event in (3, 4, 5)} == {("metadata", "recorded-as-copy")}
    assert found[6][2] != "recorded-as-copy"


@pytest.mark.parametrize(("weight", "copy", "original"), [(1, 0, None), (0, None, 0)])
def test_a_copy_or_an_original_that_is_not_in_the_file_shows_nothing(
    weight, copy, original, tmp_path
):
    """Freed before the trace, or on another device; events: 0 segment, 1 and 2 allocations."""
    builder = TraceBuilder().segment().alloc(512).alloc(512)
    addrs = {0: ADDR, 1: ADDR + 512, None: ADDR + (1 << 30)}
    raw = metadata(
        parameters=[parameter("w", addrs[weight], 512, at(3))],
        copies=[memory_row(addrs[copy], 512, at(3), original=addrs[original])],
    )
    found = decided(analyse(tmp_path, builder, raw))
    assert found[1 + weight] == ("weight", "metadata", "recorded-as-parameter")
    assert found[2 - weight][2] != "recorded-as-copy"


@pytest.mark.parametrize(("written", "category"), [(True, "activation"), (False, "weight")])
def test_what_a_module_holds_as_an_attribute_is_a_cache_if_it_was_written_and_else_as_a_buffer(
    written, category, tmp_path
):
    builder = TraceBuilder().segment().alloc(512)
    place = memory_row(ADDR, 512, at(2), module="", name="table", written=written)
    phases = [phase("forward", at(5), at(6))]
    found = decided(analyse(tmp_path, builder, metadata(attributes=[place], phases=phases)))
    assert found[1] == (category, "metadata", "recorded-as-attribute")


def test_every_attribute_counts_that_the_file_has_an_allocation_of(tmp_path):
    """Events: 0 segment, 1 to 3 allocations; of what the first note means there is none."""
    builder = TraceBuilder().segment().alloc(512).alloc(512).alloc(512)
    addrs = (ADDR + (1 << 30), ADDR, ADDR + 512)
    notes = [
        memory_row(addr, 512, at(4), module="", name=f"table{addr}", written=False)
        for addr in addrs
    ]
    phases = [phase("forward", at(5), at(6))]
    found = decided(analyse(tmp_path, builder, metadata(attributes=notes, phases=phases)))
    assert [found[event][2] == "recorded-as-attribute" for event in (1, 2, 3)] == [
        True,
        True,
        False,
    ]


ZEROS = frame("at::_ops::zeros_like::call(at::Tensor const&)", "??")
SIZES = [4096, 512, 8192, 1024]


def reasons_of_lines(tmp_path, sizes, *, made_by=ZEROS, lines=(3,), n_freed=0):
    """Why each of what lines make of these sizes is what it is, beside a parameter of each of SIZES."""
    builder, parameters = TraceBuilder().segment(20 << 20), []
    for number, size in enumerate(SIZES):
        builder.alloc(size)
        parameters.append(parameter(f"w{number}", ADDR + sum(SIZES[:number]), size, at(4)))
    for line in lines:
        for size in sizes:
            builder.alloc(size, frames=[made_by, frame("moments", line=line)])
    for _ in range(n_freed):
        builder.free()
    raw = metadata(parameters=parameters, phases=[phase("forward", at(30), at(31))])
    found = decided(analyse(tmp_path, builder, raw))
    assert {found[event][2] for event in (1, 2, 3, 4)} == {"recorded-as-parameter"}
    return [found[5 + i][2] for i in range(len(sizes) * len(lines))]


@pytest.mark.parametrize(
    ("sizes", "made", "are_states"),
    [
        (SIZES, {}, True),
        (SIZES[::-1], {}, True),
        ([2 * size for size in SIZES], {}, True),  # in full precision beside half
        (SIZES, {"lines": (3, 4)}, True),  # the first moments and the second
        (SIZES[:3], {}, False),  # of some of them only
        ([*SIZES, 4096], {}, False),  # there is one of that size, and not two
        (SIZES, {"n_freed": len(SIZES)}, False),
        (SIZES, {"made_by": COPY}, False),
    ],
)
def test_zeros_that_are_kept_for_every_parameter_of_a_list_are_states(
    sizes, made, are_states, tmp_path
):
    reasons = reasons_of_lines(tmp_path, sizes, **made)
    assert {reason == "zeros-for-every-parameter" for reason in reasons} == {are_states}


BATCH, OTHER = frame("get_batch", line=7), frame("elsewhere", line=8)


@pytest.mark.parametrize(
    ("frames", "earlier_is_input", "expected"),
    [(BATCH, True, True), (OTHER, True, False), (BATCH, False, False)],
)
def test_a_batch_that_is_fetched_ahead_is_an_input_as_those_of_its_line_are(
    frames, earlier_is_input, expected, tmp_path
):
    """Events: 0 segment, 1 weight, 2 a batch, 3 the next one, made in forward and there in the end."""
    builder = (
        TraceBuilder().segment().alloc(1024).alloc(400, frames=[BATCH]).alloc(600, frames=[frames])
    )
    batch = memory_row(ADDR + 1024, 400, at(2), iteration=0, shape=[100], dtype="float32")
    raw = metadata(
        inputs=[batch] if earlier_is_input else [],
        parameters=[] if earlier_is_input else [parameter("w", ADDR + 1024, 400, at(2))],
        phases=[phase("forward", at(3), at(4)), phase("backward", at(5), at(6))],
    )
    reason = decided(analyse(tmp_path, builder, raw))[3][2]
    assert (reason == "made-by-code-of-inputs") == expected


def test_code_that_makes_weights_too_fetches_no_batch(tmp_path):
    """Events: 0 segment, 1 other code, then of one line: 2 a weight, 3 a batch, 4 maybe the next one."""
    builder = TraceBuilder().segment().alloc(512).alloc(1024, frames=[BATCH])
    builder.alloc(400, frames=[BATCH]).alloc(600, frames=[BATCH])
    raw = metadata(
        inputs=[memory_row(ADDR + 1536, 400, at(3), iteration=0, shape=[100], dtype="float32")],
        parameters=[parameter("w", ADDR + 512, 1024, at(3))],
        phases=[phase("forward", at(4), at(5)), phase("backward", at(6), at(7))],
    )
    reasons = [reason for *_, reason in decided(analyse(tmp_path, builder, raw)).values()]
    assert "recorded-as-input" in reasons
    assert "made-by-code-of-inputs" not in reasons


def test_recorded_phases_stand_in_place_of_inferred_ones(tmp_path):
    phases = analyse(tmp_path, training(), recorded_training()).phases
    expected = (
        [Phase.OTHER] * 3 + [Phase.FORWARD] * 5 + [Phase.BACKWARD] * 4 + [Phase.OPTIMIZER] * 4
    )
    assert phases.phase.tolist() == expected
    assert phases.is_recorded


def test_a_phase_without_an_end_lasts_to_the_end(tmp_path):
    raw = recorded_training(phases=[phase("forward", at(3), at(7)), phase("backward", at(8), None)])
    assert analyse(tmp_path, training(), raw).phases.phase.tolist()[8:] == [Phase.BACKWARD] * 8


def test_without_recorded_phases_they_are_inferred_and_evidence_stays_what_it_is(tmp_path):
    builder = TraceBuilder().segment().alloc(512, frames=[CALL]).free(frames=[CALL])
    analysis = analyse(tmp_path, builder, metadata())
    assert not analysis.phases.is_recorded
    assert decided(analysis)[1] == ("temporary", "lifetime", "freed-before-backward")


def test_iterations_begin_where_they_were_marked(tmp_path):
    rows = [
        {"iteration": i, "kind": "memory", "began_us": at(began)}
        for i, began in ((3, 0), (4, 8), (5, 12))
    ]
    analysis = analyse(tmp_path, training(), recorded_training(iterations=rows))
    assert analysis.phases.iteration.tolist() == [0] * 8 + [1] * 4 + [2] * 4
    assert [(it.first_event, it.last_event) for it in analysis.iterations] == [
        (0, 7),
        (8, 11),
        (12, 15),
    ]


def test_iterations_of_which_nothing_is_left_do_not_count(tmp_path):
    rows = [
        {"iteration": i, "kind": "memory", "began_us": at(began)}
        for i, began in ((0, -9), (1, -5), (2, 8))
    ]
    analysis = analyse(tmp_path, training(), recorded_training(iterations=rows))
    assert analysis.phases.n_iterations == 2


def weights_of(analysis: DeviceAnalysis):
    table = analysis.weights
    columns = (table.names, table.size_bytes.tolist(), table.gradient_bytes.tolist())
    return list(zip(*columns, strict=True))


def test_weights_have_their_names_and_the_sizes_of_the_tensors(tmp_path):
    analysis = analyse(tmp_path, training(), recorded_training())
    assert weights_of(analysis) == [("fc.weight", 1000, 996)]
    rows = analysis.allocations
    assert rows.alloc_event[analysis.weights.row].tolist() == [1]
    assert rows.alloc_event[analysis.weights.gradient_row].tolist() == [8]


def test_a_weight_without_a_gradient_has_none_and_a_buffer_is_no_row(tmp_path):
    frozen = parameter("frozen", WEIGHT, 1000, at(2), requires_grad=False)
    mean = parameter("mean", INPUT, 400, at(2), kind="buffer")
    raw = recorded_training(parameters=[frozen, mean], gradients=[], inputs=[])
    assert weights_of(analyse(tmp_path, training(), raw)) == [("frozen", 1000, 0)]


def test_the_gradient_is_that_of_the_iteration_of_the_peak_or_else_the_last(tmp_path):
    def gradients(*iterations):
        rows = [
            memory_row(GRADIENT, 500 + i, at(11) + i, parameter=0, iteration=i) for i in iterations
        ]
        return weights_of(analyse(tmp_path, training(), recorded_training(gradients=rows)))[0][2]

    assert gradients(0, 1) == 500
    assert gradients(2, 1) == 502


@pytest.mark.parametrize(
    ("trace", "named", "rows"),
    [
        (
            lambda it: it.alloc(512).free().alloc(4096),
            [("old", 512, 1), ("new", 4096, 4)],
            [("new", 4096, 0)],
        ),
        (
            lambda it: it.alloc(512).alloc(4096).free().free(),
            [("gone", 512, 2)],
            [("gone", 512, 0)],
        ),
        (lambda it: it.alloc(4096).free().alloc(512), [("late", 512, 4)], []),
    ],
    ids=["freed by the peak", "freed later", "made later"],
)
def test_a_weight_is_a_row_if_it_lives_at_the_peak(trace, named, rows, tmp_path):
    raw = metadata(parameters=[parameter(name, ADDR, size, at(when)) for name, size, when in named])
    assert weights_of(analyse(tmp_path, trace(TraceBuilder().segment()), raw)) == rows


def test_a_model_that_is_built_again_has_each_weight_once(tmp_path):
    """A program trains, saves, builds its model again and loads: two objects of one name, and one peak."""
    builder = TraceBuilder().segment().alloc(512).alloc(8192).free().free(ADDR).alloc(512)
    raw = metadata(
        parameters=[
            parameter("fc.weight", ADDR, 512, at(2)),
            parameter("fc.weight", ADDR, 508, at(7)),
        ]
    )
    assert weights_of(analyse(tmp_path, builder, raw)) == [("fc.weight", 512, 0)]


def moved() -> TraceBuilder:
    """Events: 0 segment, 1 alloc at ADDR, 2 at ADDR + 512, 3 at ADDR + 1024: the peak; then all are freed."""
    builder = TraceBuilder().segment().alloc(512).alloc(512).alloc(4096)
    return builder.free(ADDR + 1024).free(ADDR).free(ADDR + 512)


@pytest.mark.parametrize(
    ("before_us", "now_us", "expected"),
    [
        (at(1), at(3), ("w", 508)),  # the move was recorded by the time of the peak
        (at(1), at(5), ("w", 508)),  # it was recorded after it: it may have been made by then
        (at(3), at(5), ("w", 512)),  # at the peak itself it was where it had been
    ],
)
def test_a_parameter_that_moved_is_one_row_with_where_it_lay_at_the_peak(
    before_us, now_us, expected, tmp_path
):
    """The program holds both."""
    raw = metadata(
        parameters=[parameter("w", ADDR + 512, 508, now_us)],
        earlier_parameters=[memory_row(ADDR, 512, before_us, parameter=0)],
    )
    analysis = analyse(tmp_path, moved(), raw)
    assert [row[:2] for row in weights_of(analysis)] == [expected]
    first = {512: 1, 508: 2}[expected[1]]
    assert analysis.allocations.alloc_event[analysis.weights.row].tolist() == [first]


def test_a_parameter_that_moved_after_the_peak_is_where_it_was(tmp_path):
    builder = TraceBuilder().segment().alloc(1024).alloc(4096).free().alloc(512).free(ADDR)
    raw = metadata(
        parameters=[parameter("w", ADDR + 1024, 512, at(6))],
        earlier_parameters=[memory_row(ADDR, 1024, at(1), parameter=0)],
    )
    assert weights_of(analyse(tmp_path, builder, raw)) == [("w", 1024, 0)]


@pytest.mark.parametrize(
    ("first_us", "later_us", "rows"),
    [
        (3, 6, [("w", 1024, 0)]),  # it moved away after the peak
        (1, 2, []),  # before the peak; the program holds its first memory on
    ],
)
def test_a_parameter_that_moved_to_another_device_is_a_row_where_it_lay_at_the_peak(
    first_us, later_us, rows, tmp_path
):
    """Events: 0 segment, 1 first place, 2 anything, 3 the peak."""
    builder = TraceBuilder().segment().alloc(1024).alloc(512).alloc(4096)
    raw = metadata(
        parameters=[parameter("w", ADDR + (1 << 30), 1024, at(later_us), device=1)],
        earlier_parameters=[memory_row(ADDR, 1024, at(first_us), parameter=0)],
    )
    assert weights_of(analyse(tmp_path, builder, raw)) == rows


@pytest.mark.parametrize(("left_us", "rows"), [(1, [("w", 512, 0)]), (5, [])])
def test_a_parameter_that_came_from_another_device_is_no_row_of_this_one_before(
    left_us, rows, tmp_path
):
    """Its memory here is nowhere in the trace; the peak is event 2."""
    builder = TraceBuilder().segment().alloc(4096).alloc(512)
    raw = metadata(
        parameters=[parameter("w", ADDR + (1 << 30), 512, at(6))],
        earlier_parameters=[memory_row(ADDR, 512, at(left_us), parameter=0, device=1)],
    )
    assert weights_of(analyse(tmp_path, builder, raw)) == rows


@pytest.mark.parametrize(("recorded_at", "rows"), [(0, []), (3, [("elsewhere", 512, 0)])])
def test_a_weight_whose_memory_is_nowhere_is_a_row_if_it_was_seen_after_the_peak(
    recorded_at, rows, tmp_path
):
    builder = TraceBuilder().segment().alloc(4096).alloc(512)
    raw = metadata(parameters=[parameter("elsewhere", ADDR + (1 << 30), 512, at(recorded_at))])
    assert weights_of(analyse(tmp_path, builder, raw)) == rows


@pytest.mark.parametrize("n_events", [0, 1])
def test_a_trace_without_allocations_has_weights_all_the_same(tmp_path, n_events):
    builder = TraceBuilder()
    for _ in range(n_events):
        builder.event("snapshot")
    raw = recorded_training(phases=[], iterations=[])
    analysis = analyse(tmp_path, builder, raw)
    assert weights_of(analysis) == [("fc.weight", 1000, 996)]
    assert analysis.weights.row.tolist() == [-1]


def buffers(tmp_path, *phases, written=True, sides=(2, 8)):
    """Two buffers of equal sizes, and another, in a job with these phases."""
    nothing = [frame("x", "/elsewhere/y.cc")]
    builder = TraceBuilder().segment(20 << 20)
    for size in (1024, 1024, 2048):
        builder.alloc(size, frames=nothing)  # 1 to 3
    builder.alloc(700, frames=nothing)  # 4
    builder.free()  # 5, 6
    builder.alloc(900, frames=nothing)  # 7
    rows = [
        parameter(name, ADDR + place, n_bytes, at(4), kind="buffer", written=written)
        | {"shape": [*sides, n_bytes // 4 // math.prod(sides)]}
        for name, place, n_bytes in (("k", 0, 1024), ("v", 1024, 1024), ("mean", 2048, 2048))
    ]
    raw = metadata(parameters=rows, phases=list(phases))
    found = decided(analyse(tmp_path, builder, raw))
    return [(found[event][0], found[event][2]) for event in (1, 2, 3)]


def test_buffers_of_equal_sizes_that_inference_writes_again_and_again_are_caches(tmp_path):
    cache, weight = ("kv_cache", "recorded-as-written-buffer"), ("weight", "recorded-as-buffer")
    inference = phase("forward", at(4), at(8))
    assert buffers(tmp_path, inference) == [cache, cache, weight]
    assert buffers(tmp_path, inference, written=False) == [weight] * 3
    training = phase("forward", at(4), at(6)), phase("backward", at(7), at(8))
    assert buffers(tmp_path, *training) == [weight] * 3


@pytest.mark.parametrize("sides", [(), (8,)])
def test_counters_and_statistics_that_inference_writes_are_no_caches(tmp_path, sides):
    inference = phase("forward", at(4), at(8))
    weight = ("weight", "recorded-as-buffer")
    assert buffers(tmp_path, inference, sides=sides) == [weight] * 3
