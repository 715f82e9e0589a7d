"""From an analysis to a report: what is counted, how it is named, in which order it stands."""

import pickle

import pytest

from snapconv.analysis import analyze_device
from snapconv.answers.memory_report import (
    PEAK_ACTIVATIONS,
    PEAK_ALLOCATED,
    ActivationEntry,
    WeightEntry,
    build_memory_report,
    cut_frames,
    fitting_frames,
)
from snapconv.answers.peak import LineTotal, ModuleTotal
from snapconv.classification.categories import Category, Trait, categories_with
from snapconv.phases.trace_phases import Phase
from snapconv.snapshot.load import load_snapshot
from snapconv.stacks.project_frames import find_project
from snapconv.stacks.project_lines import SourceLine
from snapconv.stacks.stack_facts import StackFacts
from snapconv.version import VERSION
from tests.builders import MIB, START_US, TraceBuilder, frame

TORCH = "/opt/venv/lib/python3.11/site-packages/torch"
MAIN = [frame("main", "/home/me/project/train.py", 30)]
BUILD = [
    frame("_apply", f"{TORCH}/nn/modules/module.py"),
    frame("build", "/home/me/project/train.py", 8),
    *MAIN,
]
FORWARD = [
    frame("forward", "/home/me/project/net/model.py", 7),
    frame("_call_impl", f"{TORCH}/nn/modules/module.py"),
    *MAIN,
]
LINEAR = [frame("linear", f"{TORCH}/nn/functional.py"), *FORWARD]
ENGINE = [frame("torch::autograd::Engine::evaluate_function(int)", "??", 0)]
BLAS = [frame("at::cuda::getCurrentCUDABlasHandle()", "??", 0), *LINEAR]
STEP = [frame("_multi_tensor_adamw", f"{TORCH}/optim/adamw.py"), *MAIN]

AT_MODEL = SourceLine("net/model.py", 7, "forward")
AT_BUILD = SourceLine("train.py", 8, "build")
AT_MAIN = SourceLine("train.py", 30, "main")


@pytest.fixture
def report_of(tmp_path):
    def report_of(raw, device=0, **options):
        path = tmp_path / "run.pickle"
        path.write_bytes(pickle.dumps(raw.snapshot() if isinstance(raw, TraceBuilder) else raw))
        snapshot = load_snapshot(path)
        project = find_project(snapshot.stacks, **options)
        return build_memory_report(
            analyze_device(
                snapshot, snapshot.devices[device], StackFacts(snapshot.stacks, project)
            ),
        )

    return report_of


def training():
    """At the peak: weights of 1,000 and 600, an activation of 3,000, a workspace of 500, a gradient of 600.

    Events: 0 the segment, 1 and 2 weights, 3 the activation, 4 the workspace, 5 the gradient, 6 and
    7 the activation's free.
    """
    builder = TraceBuilder().segment().alloc(1000, frames=BUILD).alloc(600, frames=BUILD)
    builder.alloc(3000, frames=LINEAR)
    activation = builder.events[-1]["addr"]
    builder.alloc(500, frames=BLAS).alloc(600, frames=ENGINE)
    return builder.free(activation, frames=ENGINE)


def test_weights_are_called_by_their_lines_with_requested_bytes_and_without_lines_by_numbers(
    report_of,
):
    where = f"{AT_BUILD.file_path}:{AT_BUILD.line_number}"
    assert report_of(training()).weights == (
        WeightEntry(f"{where}#1", 1000, 0, (AT_BUILD, AT_MAIN)),
        WeightEntry(f"{where}#2", 600, 600, (AT_BUILD, AT_MAIN)),
    )
    builder = TraceBuilder().segment().alloc(600, frames=BUILD).alloc(1000, frames=BUILD[:1])
    assert [weight.name for weight in report_of(builder).weights] == ["train.py:8#1", "weight_2"]


def test_a_preexisting_gradient_may_stand_before_its_weight(report_of):
    builder = TraceBuilder().segment(traced=False).alloc(600, traced=False, frames=ENGINE)
    (weight,) = report_of(builder.alloc(600, traced=False, frames=BUILD)).weights
    assert (weight.size_bytes, weight.grad_size_bytes) == (600, 600)


def test_activations_have_block_bytes_and_their_frames_innermost_first_the_newest_first(report_of):
    builder = TraceBuilder().segment().alloc(512, frames=LINEAR)
    builder.alloc(2000, frames=LINEAR[:1] + LINEAR[2:3]).alloc(1024, frames=LINEAR)
    assert report_of(builder).activations == (
        ActivationEntry("linear", 1024, (AT_MODEL, AT_MAIN)),
        ActivationEntry("linear", 2048, ()),
        ActivationEntry("linear", 512, (AT_MODEL, AT_MAIN)),
    )


def test_frames_of_the_file_are_relative_to_the_root(report_of):
    report = report_of(training(), root="/home/me")
    assert report.peak.project_root == "/home/me"
    assert report.weights[0].frames[0].file_path == "project/train.py"


def test_there_are_three_moments_of_each_curve(report_of):
    moments = {moment.name: moment for moment in report_of(training()).moments}
    assert len(moments) == 13
    assert moments[PEAK_ALLOCATED].event == 5
    assert moments[PEAK_ALLOCATED].time_us == START_US + 5
    assert moments[PEAK_ALLOCATED].size_bytes == 6656
    assert (moments["start_allocated"].event, moments["start_allocated"].time_us) == (-1, None)
    assert (moments["end_allocated"].event, moments["end_allocated"].size_bytes) == (7, 3584)
    assert moments["peak_requested"].size_bytes == 5700
    assert moments["start_reserved"].size_bytes == 0
    assert moments["end_reserved"].size_bytes == 2 * MIB


def test_the_activations_are_those_live_at_their_own_high_water_mark(report_of):
    """Activations of 3,000 and 500 at once; the peak comes later, with one of them and a gradient."""
    builder = TraceBuilder().segment().alloc(3000, frames=LINEAR).alloc(500, frames=LINEAR)
    builder.free(frames=ENGINE).alloc(2000, frames=ENGINE)
    report = report_of(builder)
    moments = {moment.name: moment for moment in report.moments}
    assert moments[PEAK_ACTIVATIONS].event == 2
    assert moments[PEAK_ACTIVATIONS].size_bytes == 3072 + 512
    assert sum(entry.size_bytes for entry in report.activations) == 3072 + 512
    assert (moments[PEAK_ALLOCATED].event, moments[PEAK_ALLOCATED].size_bytes) == (5, 3072 + 2048)


def test_moments_of_a_file_without_events_are_all_before_the_first(report_of):
    report = report_of(TraceBuilder().segment(traced=False).alloc(1000, traced=False))
    assert {(moment.event, moment.time_us) for moment in report.moments} == {(-1, None)}
    assert report.analysis.device.events.time_us is None
    assert len(report.analysis.replay.allocated.after) == 0


def test_categories_have_a_row_each_with_unknown_last(report_of):
    rows = report_of(training()).peak.categories
    assert [row.category for row in rows] == [
        *(c.label for c in list(Category)[1:] if c not in categories_with(Trait.ONLY_RECORDED)),
        "unknown",
    ]
    found = {
        row.category: (row.n_allocations, row.requested_bytes, row.block_bytes) for row in rows
    }
    assert found["weight"] == (2, 1600, 2048)
    assert found["gradient"] == (1, 600, 1024)
    assert found["activation"] == (1, 3000, 3072)
    assert found["workspace"] == (1, 500, 512)
    assert found["unknown"] == (0, 0, 0)


def test_lines_are_the_innermost_of_the_project_with_most_bytes_first_then_by_their_names(
    report_of,
):
    assert report_of(training()).peak.lines == (
        LineTotal(AT_MODEL, 2, 3072 + 512),
        LineTotal(AT_BUILD, 2, 2048),
    )
    builder = TraceBuilder().segment()
    for line, file in ((9, "b.py"), (7, "b.py"), (8, "a.py")):
        builder.alloc(512, frames=[frame("f", f"/home/me/project/{file}", line), *MAIN])
    assert [row.line.place for row in report_of(builder).peak.lines] == [
        "a.py:8",
        "b.py:7",
        "b.py:9",
    ]


def test_modules_at_the_peak_are_shown_with_most_bytes_first(report_of):
    nested = [
        LINEAR[0],
        *FORWARD[:2],
        frame("forward", "/home/me/project/net/model.py", 20),
        *FORWARD[1:],
    ]
    builder = TraceBuilder().segment().alloc(512, frames=LINEAR).alloc(3000, frames=nested)
    builder.alloc(512, frames=LINEAR).alloc(512, frames=MAIN)
    assert report_of(builder).peak.modules == (
        ModuleTotal("net/model.py:20 < train.py:30", "frames", 1, 3072),
        ModuleTotal("train.py:30", "frames", 2, 1024),
    )


def test_failures_have_what_was_requested_free_and_in_use_and_the_lines_innermost_first(report_of):
    raw = (
        TraceBuilder().segment().alloc(1000, frames=LINEAR).oom(4 * MIB, device_free=MIB).snapshot()
    )
    raw["device_traces"][0][-1]["frames"] = LINEAR
    (oom,) = report_of(raw).oom_events
    assert (oom.event, oom.time_us) == (2, START_US + 2)
    assert (oom.block_bytes, oom.device_free_bytes) == (4 * MIB, MIB)
    assert (oom.allocated_bytes, oom.reserved_bytes) == (1024, 2 * MIB)
    assert oom.lines == (AT_MODEL, AT_MAIN)


def test_the_source_shows_what_was_read(report_of):
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1}
    raw = training().snapshot(TraceBuilder(device=2).segment(), allocator_settings=settings)
    source = dict(report_of(raw).source)
    assert source["snapconv_version"] == VERSION
    assert source["file_name"] == "run.pickle"
    assert source["devices"] == "0, 2"
    assert (source["project_root"], source["project_root_is_inferred"]) == (
        "/home/me/project",
        "yes",
    )
    assert source["pickle_protocol"] == "4"
    assert source["allocator_settings.max_split_size"] == "-1"
    assert dict(report_of(raw, root="/w").source)["project_root_is_inferred"] == "no"


def test_an_allocation_has_the_phase_that_made_it(report_of):
    builder = TraceBuilder().segment().alloc(512, traced=False)
    builder.alloc(1024, frames=LINEAR).alloc(2048, frames=ENGINE).alloc(512, frames=STEP)
    phase = report_of(builder).phase
    assert phase.tolist() == [-1, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]


def test_stacks_show_which_frames_are_the_projects(report_of):
    stacks = report_of(training()).stacks
    pairs = zip(stacks.table.frames.filenames, stacks.is_project.tolist(), strict=True)
    own = {name for name, is_own in pairs if is_own}
    assert own == {"/home/me/project/train.py", "/home/me/project/net/model.py"}
    assert stacks.n_frames.sum() == len(stacks.table.frame_ids)


# --- the frames of entries, in proportion to the file


def entries(n: int, n_frames: int) -> tuple[ActivationEntry, ...]:
    frames = tuple(
        SourceLine("model/" + "x" * 78, line, "forward") for line in range(1, n_frames + 1)
    )
    return (ActivationEntry("linear", 512, frames),) * n


@pytest.mark.parametrize(
    ("n", "n_frames", "n_bytes", "lines"),
    [
        pytest.param(10, 50, 1000, range(1, 51), id="in proportion"),
        # A row is counted as 100 bytes; 8 × 100,000 bytes and 256 KiB hold 10,621 rows: 10 for each
        # of 1,000.
        pytest.param(
            1000, 100, 100_000, [1, 2, 3, 4, 97, 98, 99, 100], id="as many of each end as fit"
        ),
        pytest.param(10_000, 3, 0, [], id="not even one fits"),
    ],
)
def test_an_entry_keeps_as_many_frames_of_each_end_as_are_in_proportion_to_the_file(
    n, n_frames, n_bytes, lines
):
    many = entries(n, n_frames)
    n_of_an_end, notes = fitting_frames(many, n_bytes, n_cut_stacks=0, device=1)
    kept = cut_frames(many, n_of_an_end)
    assert [frame.line_number for frame in kept[-1].frames] == list(lines)
    assert [(note.slug, note.device) for note in notes] == [("left-out", 1)] * (
        len(lines) < n_frames
    )


@pytest.mark.parametrize(
    ("many", "n_cut_stacks", "words"),
    [
        (entries(1000, 100), 0, "the 4 innermost and the 4 outermost are"),
        (entries(1, 3), 7, "of 7 deep stacks only the 64 innermost and the 64 outermost lines are"),
        (entries(20_000, 3), 0, "none are"),
    ],
)
def test_the_note_says_what_is_written(many, n_cut_stacks, words):
    (note,) = fitting_frames(many, 100_000, n_cut_stacks=n_cut_stacks, device=0)[1]
    assert words in note.message
