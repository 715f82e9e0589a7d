"""The explanation of an allocation: its lifetime, its code, and the evidence for and against its category."""

import pickle
from pathlib import Path

import numpy as np
import pytest

import snapconv
from snapconv.allocator.caching_allocator import CachingAllocator
from snapconv.classification.categories import Category, Evidence
from snapconv.classification.features import find_features
from snapconv.classification.rule_order import opinions
from snapconv.units import device_name
from tests.builders import ADDR, MIB, START_US, TraceBuilder, frame

FIXTURES = Path(__file__).parents[3] / "fixtures"
TORCH = "/opt/venv/lib/python3.11/site-packages/torch"
MAIN = [frame("<module>", "/home/me/project/train.py", 3)]
CALL = [frame("_call_impl", f"{TORCH}/nn/modules/module.py", 1750), *MAIN]
FORWARD = [frame("forward", "/home/me/project/net.py", 7), *CALL]
ENGINE = [frame("torch::autograd::Engine::evaluate_function(int)", "??", 0)]
RELEASE = [frame("torch::autograd::generated::MulBackward0::release_variables()", "??", 0), *ENGINE]
CUBLAS = [frame("at::cuda::getCurrentCUDABlasHandle()", "??", 0), *FORWARD]
APPLY = [frame("_apply", f"{TORCH}/nn/modules/module.py", 930), *MAIN]
STEP = [frame("_multi_tensor_adamw", f"{TORCH}/optim/adamw.py", 200), *MAIN]


@pytest.fixture
def load(tmp_path):
    """Load what a builder or an allocator recorded."""

    def load(made):
        path = tmp_path / "run.pickle"
        path.write_bytes(pickle.dumps(made.snapshot()))
        return snapconv.load(path)

    return load


def text(explanation, **options):
    return "\n".join(explanation.lines(**options))


# --- the lifetime


def test_a_lifetime_has_its_events_times_and_sizes(load):
    builder = TraceBuilder().segment().alloc(1000, stream=7).alloc(512).free(ADDR)
    (explained,) = load(builder).explain("#1").allocations
    assert (explained.requested_bytes, explained.block_bytes, explained.is_exact, explained.place.stream) == (
        1000,
        1024,
        True,
        7,
    )
    times = [
        h and (h.event, h.time_us, h.after_us)
        for h in (explained.lifetime.allocated, explained.lifetime.free_requested)
    ]
    assert times == [(1, START_US + 1, 1), (3, START_US + 3, 3)]
    assert explained.lifetime.free_completed.event == explained.lifetime.end_event == 4
    assert (explained.lifetime.in_use_events, explained.lifetime.in_use_us) == (2, 2)
    assert (explained.lifetime.is_live_at_peak, explained.lifetime.is_live_at_dump) == (True, False)
    assert (
        explained.place.segment.address,
        explained.place.segment.total_bytes,
        explained.place.segment.freed_event,
    ) == (
        hex(ADDR),
        2 * MIB,
        None,
    )
    assert explained.place.pool == (0, 0)


def test_what_was_there_before_the_trace_has_no_event_and_lives_from_its_beginning(load):
    builder = TraceBuilder().segment(traced=False).alloc(512, traced=False).alloc(512).alloc(512).free(ADDR)
    explanation = load(builder).explain(hex(ADDR))
    (explained,) = explanation.allocations
    assert (explained.lifetime.allocated, explained.lifetime.free_requested.event) == (None, 2)
    assert (explained.lifetime.in_use_events, explained.lifetime.in_use_us) == (2, 2)
    assert "allocated   before the trace begins" in text(explanation)
    assert "in use for  at least 2 us, 2 events" in text(explanation)


def test_what_is_never_freed_lives_to_the_dump(load):
    explanation = load(TraceBuilder().segment().alloc(512).alloc(512)).explain("#1")
    (explained,) = explanation.allocations
    assert (
        explained.lifetime.free_requested,
        explained.lifetime.free_completed,
        explained.lifetime.end_event,
    ) == (
        None,
        None,
        None,
    )
    assert (explained.lifetime.is_live_at_dump, explained.lifetime.in_use_events) == (True, 1)
    assert "freed       not before the dump: still in use" in text(explanation)


def test_what_waits_for_a_stream_is_freed_and_has_no_free_block(load):
    explanation = load(TraceBuilder().segment().alloc(512).free(completed=False)).explain("#1")
    (explained,) = explanation.allocations
    assert (
        explained.lifetime.free_requested.event,
        explained.lifetime.free_completed,
        explained.lifetime.is_live_at_dump,
    ) == (
        2,
        None,
        True,
    )
    assert "block free  not before the dump: a stream still uses it" in text(explanation)


def test_without_times_only_events_are_counted(load):
    builder = TraceBuilder().segment().alloc(512)
    for event in builder.events:
        del event["time_us"]
    explanation = load(builder).explain("#1")
    (explained,) = explanation.allocations
    assert (
        explained.lifetime.allocated.time_us,
        explained.lifetime.allocated.after_us,
        explained.lifetime.in_use_us,
    ) == (
        None,
        None,
        None,
    )
    assert "in use for  0 events" in text(explanation)


def test_a_segment_that_was_given_back_has_its_event(load):
    model = CachingAllocator()
    addr = model.malloc(30 * MIB)
    model.free(addr)
    model.empty_cache()
    explanation = load(model).explain(hex(addr))
    (explained,) = explanation.allocations
    # segment_alloc, alloc, free_requested, free_completed, segment_free
    assert (explained.place.segment.total_bytes, explained.place.segment.freed_event) == (30 * MIB, 4)
    assert "given back at event 4" in text(explanation)


def test_what_a_recorder_named_has_the_name_of_its_weight():
    session = snapconv.load(FIXTURES / "transformer.capture")
    (analysis,) = session.devices
    category = analysis.classification.category
    named = {}
    for row in np.flatnonzero(np.isin(category, (Category.WEIGHT, Category.GRADIENT))).tolist():
        found = session.explain(hex(int(analysis.allocations.addr[row]))).allocations
        (explained,) = [explained for explained in found if explained.id == row]
        named.setdefault(explained.verdict.decision.category, set()).add(explained.name)
    names = {weight.name for weight in session.report().weights}
    assert names
    assert named["gradient"] == names
    assert named["weight"] >= names


def test_a_gradient_is_named_after_the_only_weight_of_its_size(load):
    model = CachingAllocator()
    model.malloc(7000, frames=APPLY)
    model.free(model.malloc(512, frames=FORWARD), frames=RELEASE)
    model.malloc(7000, frames=ENGINE)
    # 0 segment_alloc, 1 the weight, 2-4 the activation
    explanation = load(model).explain("#5")
    assert text(explanation).split(", ")[0].endswith("on cuda:0: gradient train.py:3#1")


# --- the category


def training_step():
    """One allocation of each kind, by name with its event."""
    model = CachingAllocator()
    events = {}

    def alloc(name, size, frames):
        addr = model.malloc(size, frames=frames)
        events[name] = len(model.trace()) - 1
        return addr

    alloc("weight", 3000, APPLY)
    alloc("workspace", 2 * MIB, CUBLAS)
    saved = alloc("saved", 5000, FORWARD)
    scratch = alloc("scratch", 600, FORWARD)
    model.free(scratch, frames=FORWARD)
    model.free(alloc("backward scratch", 700, ENGINE), frames=ENGINE)
    model.free(saved, frames=RELEASE)
    alloc("state", 9000, STEP)
    model.free(alloc("temporary", 9500, STEP), frames=[{**STEP[0], "line": 201}])
    return model, events


@pytest.fixture
def explanations(load):
    """The explanations of the training step, by name."""
    model, events = training_step()
    session = load(model)
    return {name: session.explain(f"#{event}").allocations[0] for name, event in events.items()}


def said(opinions):
    return [(opinion.category, opinion.evidence, opinion.rule) for opinion in opinions]


def test_the_deciding_rule_has_its_reason_and_its_releases(explanations):
    decision = explanations["saved"].verdict.decision
    assert said([decision]) == [("activation", "free_site", "release-variables")]
    assert decision.reason == "a backward node frees what it saved: the memory was kept for backward"
    assert decision.torch == "2.0-2.13; seen 2.5-2.11"
    assert explanations["saved"].verdict.follows_from.startswith("the stack that freed it")


def test_rules_that_came_too_late_are_listed_for_and_against(explanations):
    assert said(explanations["saved"].verdict.others) == [
        ("activation", "free_site", "freed-by-backward"),
        ("activation", "lifetime", "kept-into-backward"),
    ]
    assert said([explanations["workspace"].verdict.decision]) == [("workspace", "frames", "cublas-workspace")]
    assert said(explanations["workspace"].verdict.others) == [
        ("activation", "lifetime", "kept-into-backward")
    ]


@pytest.mark.parametrize(
    ("name", "decision"),
    [
        ("weight", ("weight", "frames", "module-apply")),
        ("scratch", ("temporary", "lifetime", "freed-before-backward")),
        ("state", ("optimizer_state", "frames", "made-in-step-and-kept")),
        ("temporary", ("temporary", "frames", "made-in-step-and-freed")),
        ("backward scratch", ("temporary", "lifetime", "freed-within-backward")),
    ],
)
def test_a_rule_has_no_opinion_where_another_case_of_it_holds(explanations, name, decision):
    assert said([explanations[name].verdict.decision]) == [decision]
    assert said(explanations[name].verdict.others) == []


def test_roles_of_stacks_have_the_frame_that_shows_them(explanations):
    (call,) = explanations["saved"].origin.stack_roles
    assert (call.role, call.rule) == ("module_call", "module-call")
    assert call.frame.function == "_call_impl"
    release = explanations["saved"].origin.free_stack_roles[-1]
    assert (release.role, release.rule) == ("release", "release-variables")
    assert str(release.frame) == "torch::autograd::generated::MulBackward0::release_variables()"


def test_code_is_that_of_the_project_unless_the_whole_stack_is_wanted(load):
    model, events = training_step()
    explanation = load(model).explain(f"#{events['saved']}")
    assert "code        net.py:7 in forward\n              train.py:3 in <module>\n" in text(explanation)
    assert "free stack" not in text(explanation)
    whole = text(explanation, whole_stack=True)
    assert "stack       * net.py:7 in forward" in whole
    assert f"  {TORCH}/nn/modules/module.py:1750 in _call_impl" in whole
    assert "free stack    torch::autograd::generated::MulBackward0::release_variables()" in whole


def test_with_python_only_stacks_the_thread_without_frames_is_the_engine(load):
    model = CachingAllocator()
    model.malloc(512, frames=FORWARD)
    model.malloc(512, frames=[])
    (explained,) = load(model).explain("#2").allocations
    assert [(role.role, role.rule, role.frame) for role in explained.origin.stack_roles] == [
        ("engine", "empty-stack", None)
    ]


def test_an_allocation_without_evidence_is_unknown(load):
    explanation = load(TraceBuilder().segment().alloc(512, frames=[])).explain("#1")
    (explained,) = explanation.allocations
    assert said([explained.verdict.decision]) == [("unknown", "none", "none")]
    assert "decided by  no rule: there is no evidence for any category" in text(explanation)
    assert "code        no frames were recorded" in text(explanation)
    assert "operation   not known (no known frame)" in text(explanation)


def test_what_was_there_all_the_time_is_unknown_by_a_rule_that_is_shown(load):
    builder = TraceBuilder().segment(traced=False).alloc(512, traced=False).alloc(512)
    lines = text(load(builder).explain(hex(ADDR)))
    assert "decided by  persistent-since-before-the-recording: there before the first event" in lines
    assert "no rule" not in lines
    assert "wrong when" not in lines


def test_frees_that_repeat_the_stack_of_their_alloc_are_not_shown(load):
    model = CachingAllocator()
    model.free(model.malloc(512, frames=FORWARD), frames=FORWARD)
    (explained,) = load(model).explain("#1").allocations
    assert (explained.origin.free_stack, explained.origin.free_stack_roles) == ((), ())
    assert len(explained.origin.stack) == len(FORWARD)


@pytest.mark.parametrize(
    ("frames", "free_frames", "operation", "source"),
    [
        (
            [frame("relu", f"{TORCH}/nn/functional.py", 1), *MAIN],
            MAIN,
            "relu",
            "the function of torch.nn.functional in its stack",
        ),
        ([frame("at::_ops::bmm::call(int)", "??", 0), *MAIN], MAIN, "bmm", "the C++ frames of its stack"),
        (MAIN, FORWARD, "module", "the innermost Python function of its stack"),
        ([], RELEASE, "mul", "the node of backward that freed it"),
    ],
)
def test_an_operation_has_what_it_was_inferred_from(load, frames, free_frames, operation, source):
    model = CachingAllocator()
    model.free(model.malloc(512, frames=frames), frames=free_frames)
    (explained,) = load(model).explain("#1").allocations
    assert (explained.origin.operation, explained.origin.operation_from) == (operation, source)


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*.pickle")), ids=lambda path: path.stem)
def test_every_kind_of_file_has_explanations(path):
    session = snapconv.load(path)
    for analysis in session.devices:
        rows = np.arange(len(analysis.allocations))
        for row in [*rows[:3], *rows[-3:]]:
            address = hex(int(analysis.allocations.addr[row]) & (1 << 64) - 1)
            explanation = session.explain(address, device=analysis.device.device)
            assert row in [explained.id for explained in explanation.allocations]
            assert f"{address} on {device_name(analysis.device.device)}: " in text(
                explanation, whole_stack=True
            )


@pytest.mark.parametrize("name", ["training_step", "training_step_python", "late_start", "context_alloc"])
def test_the_first_opinion_on_every_allocation_is_its_category(name):
    session = snapconv.load(FIXTURES / f"{name}.pickle")
    for analysis in session.devices:
        rows = np.arange(len(analysis.allocations))
        first = {}
        features = find_features(
            analysis.allocations, analysis.phases, analysis.roles, user_rules=analysis.user_rules
        )
        for opinion in opinions(features, rows):
            first.setdefault(opinion.row, (opinion.category, opinion.evidence, opinion.reason))
        found = analysis.classification
        nothing = (Category.UNKNOWN, Evidence.NONE, "none")
        assert first
        for row in rows.tolist():
            decided = (found.category[row], found.evidence[row], found.reasons[found.reason_id[row]])
            assert first.get(row, nothing) == decided
