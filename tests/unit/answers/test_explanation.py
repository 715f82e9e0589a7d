"""The answer of ``snapconv explain``: its questions, and an allocation's lifetime, code and evidence."""

import json
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

import snapconv
from scripts.fixtures.recorded_allocator import RecordedAllocator
from snapconv.answers.explanation import parse_question
from snapconv.classification.categories import Category, Evidence
from snapconv.classification.classify import opinions
from snapconv.classification.features import find_features
from snapconv.cli.app import main
from snapconv.errors import InputError
from snapconv.units import device_name
from snapconv.writers.text.explanation import explanation_lines
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
    return "\n".join(explanation_lines(explanation, **options))


# --- the lifetime


def moments_of(lifetime):
    """The events of a lifetime: allocated, free requested, free completed, the block's end."""
    events = [lifetime[name] for name in ("allocated", "free_requested", "free_completed")]
    return (*(event and event["event"] for event in events), lifetime["end_event"])


def test_a_lifetime_has_its_events_times_and_sizes(load):
    builder = TraceBuilder().segment().alloc(1000, stream=7).alloc(512).free(ADDR)
    (explained,) = load(builder).explain("#1").allocations
    life, times = explained["lifetime"], ("time_us", "after_us")
    assert [explained[key] for key in ("requested_bytes", "block_bytes", "is_exact")] == [
        1000,
        1024,
        True,
    ]
    assert moments_of(life) == (1, 3, 4, 4)
    assert [life["allocated"][key] for key in times] == [START_US + 1, 1]
    assert [life["free_requested"][key] for key in times] == [START_US + 3, 3]
    assert (life["in_use_events"], life["in_use_us"]) == (2, 2)
    assert (life["is_live_at_peak"], life["is_live_at_dump"]) == (True, False)
    segment = {"address": hex(ADDR), "total_bytes": 2 * MIB, "freed_event": None}
    assert explained["place"] == {"segment": segment, "pool": (0, 0), "stream": 7}


@pytest.mark.parametrize(
    ("builder", "question", "moments", "shown"),
    [
        (
            TraceBuilder()
            .segment(traced=False)
            .alloc(512, traced=False)
            .alloc(512)
            .alloc(512)
            .free(ADDR),
            hex(ADDR),
            (None, 2, 3, 3),
            "allocated   before the trace begins",
        ),
        (
            TraceBuilder()
            .segment(traced=False)
            .alloc(512, traced=False)
            .alloc(512)
            .alloc(512)
            .free(ADDR),
            hex(ADDR),
            (None, 2, 3, 3),
            "in use for  at least 2 us, 2 events",
        ),
        (
            TraceBuilder().segment().alloc(512).alloc(512),
            "#1",
            (1, None, None, None),
            "freed       not before the dump: still in use",
        ),
        (
            TraceBuilder().segment().alloc(512).free(completed=False),
            "#1",
            (1, 2, None, None),
            "reusable    not before the dump: a stream still uses it",
        ),
    ],
)
def test_a_lifetime_says_what_the_trace_lacks(load, builder, question, moments, shown):
    explanation = load(builder).explain(question)
    (explained,) = explanation.allocations
    assert moments_of(explained["lifetime"]) == moments
    assert shown in text(explanation)


def test_without_times_only_events_are_counted(load):
    builder = TraceBuilder().segment().alloc(512)
    for event in builder.events:
        del event["time_us"]
    explanation = load(builder).explain("#1")
    life = explanation.allocations[0]["lifetime"]
    assert (life["allocated"]["time_us"], life["allocated"]["after_us"], life["in_use_us"]) == (
        None,
    ) * 3
    assert "in use for  0 events" in text(explanation)


def test_a_segment_that_was_given_back_has_its_event(load):
    model = RecordedAllocator()
    addr = model.malloc(30 * MIB)
    model.free(addr)
    model.empty_cache()
    # segment_alloc, alloc, free_requested, free_completed, segment_free
    assert "of 30.00 MiB, given back at event 4" in text(load(model).explain(hex(addr)))


def test_what_a_recorder_named_has_its_name():
    session = snapconv.load(FIXTURES / "transformer.capture")
    (analysis,) = session.devices
    category = analysis.classification.category
    named = {}
    for row in np.flatnonzero(np.isin(category, (Category.WEIGHT, Category.GRADIENT))).tolist():
        found = session.explain(hex(int(analysis.allocations.addr[row]))).allocations
        (explained,) = [explained for explained in found if explained["id"] == row]
        named.setdefault(explained["verdict"]["decision"]["category"], set()).add(explained["name"])
    names = {weight.name for weight in session.report().weights}
    assert names
    assert named["gradient"] == {f"{name}.grad" for name in names}
    assert named["weight"] >= names


def test_a_gradient_is_named_after_the_only_weight_of_its_size(load):
    model = RecordedAllocator()
    model.malloc(7000, frames=APPLY)
    model.free(model.malloc(512, frames=FORWARD), frames=RELEASE)
    model.malloc(7000, frames=ENGINE)
    # 0 segment_alloc, 1 the weight, 2-4 the activation
    explanation = load(model).explain("#5")
    assert "on cuda:0: gradient train.py:3, tensor 1.grad, " in text(explanation)
    assert "\n  event 4 makes it reusable\n" in text(load(model).explain("#4"))


# --- the category


@pytest.fixture
def explanations(load):
    """The explanations of a training step with one allocation of each kind, by name."""
    model, events = RecordedAllocator(), {}

    def alloc(name, size, frames):
        addr = model.malloc(size, frames=frames)
        events[name] = len(model.trace()) - 1
        return addr

    alloc("weight", 3000, APPLY)
    alloc("workspace", 2 * MIB, CUBLAS)
    saved = alloc("saved", 5000, FORWARD)
    model.free(alloc("scratch", 600, FORWARD), frames=FORWARD)
    model.free(alloc("backward scratch", 700, ENGINE), frames=ENGINE)
    model.free(saved, frames=RELEASE)
    alloc("state", 9000, STEP)
    model.free(alloc("temporary", 9500, STEP), frames=[{**STEP[0], "line": 201}])
    session = load(model)
    return {name: session.explain(f"#{event}") for name, event in events.items()}


def said(*found):
    return [(opinion["category"], opinion["evidence"], opinion["rule"]) for opinion in found]


@pytest.mark.parametrize(
    ("name", "decision", "others"),
    [
        (
            "saved",
            ("activation", "free_site", "release-variables"),
            [
                ("activation", "free_site", "freed-by-backward"),
                ("activation", "lifetime", "kept-into-backward"),
            ],
        ),
        (
            "workspace",
            ("workspace", "frames", "cublas-workspace"),
            [("activation", "lifetime", "kept-into-backward")],
        ),
        ("weight", ("weight", "frames", "module-apply"), []),
        ("scratch", ("temporary", "lifetime", "freed-before-backward"), []),
        ("state", ("optimizer_state", "frames", "made-in-step-and-kept"), []),
        ("temporary", ("temporary", "frames", "made-in-step-and-freed"), []),
        ("backward scratch", ("temporary", "lifetime", "freed-within-backward"), []),
    ],
)
def test_the_deciding_rule_and_the_rules_that_came_too_late_are_listed(
    explanations, name, decision, others
):
    verdict = explanations[name].allocations[0]["verdict"]
    assert said(verdict["decision"]) == [decision]
    assert said(*verdict["others"]) == others


def test_the_deciding_rule_has_its_reason_and_its_releases(explanations):
    verdict = explanations["saved"].allocations[0]["verdict"]
    reason = "a backward node frees what it saved: the memory was kept for backward"
    assert (verdict["decision"]["reason"], verdict["decision"]["torch"]) == (
        reason,
        "2.0-2.13; seen 2.5-2.11",
    )
    assert verdict["follows_from"].startswith("the stack that freed it")


def test_code_is_that_of_the_project_unless_the_whole_stack_is_wanted(explanations):
    explanation = explanations["saved"]
    assert "code        net.py:7 in forward\n              train.py:3 in <module>\n" in text(
        explanation
    )
    assert "free stack" not in text(explanation)
    whole = text(explanation, whole_stack=True)
    assert "stack       * net.py:7 in forward" in whole
    assert f"  {TORCH}/nn/modules/module.py:1750 in _call_impl" in whole
    assert "free stack    torch::autograd::generated::MulBackward0::release_variables()" in whole


def test_an_allocation_without_evidence_is_unknown(load):
    shown = text(load(TraceBuilder().segment().alloc(512, frames=[])).explain("#1"))
    assert "decided by  no rule: there is no evidence for any category" in shown
    assert "code        no stack recorded" in shown
    assert "operation   not known" in shown


def test_what_was_there_all_the_time_is_unknown_by_a_rule_that_is_shown(load):
    builder = TraceBuilder().segment(traced=False).alloc(512, traced=False).alloc(512)
    lines = text(load(builder).explain(hex(ADDR)))
    assert "decided by  there before the first event" in lines
    assert "[persistent-since-before-the-recording]" in lines
    assert "no rule:" not in lines
    assert "unless" not in lines


@pytest.mark.parametrize(
    ("frames", "free_frames", "operation"),
    [
        ([frame("relu", f"{TORCH}/nn/functional.py", 1), *MAIN], MAIN, "relu"),
        ([frame("at::_ops::bmm::call(int)", "??", 0), *MAIN], MAIN, "bmm"),
        (MAIN, FORWARD, "module"),
        ([], RELEASE, "mul"),
    ],
)
def test_an_operation_is_named_by_its_stack_or_by_the_node_that_freed_it(
    load, frames, free_frames, operation
):
    model = RecordedAllocator()
    model.free(model.malloc(512, frames=frames), frames=free_frames)
    origin = load(model).explain("#1").allocations[0]["origin"]
    assert origin["operation"] == operation


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*.pickle")), ids=lambda path: path.stem)
def test_every_kind_of_file_has_explanations(path):
    session = snapconv.load(path)
    for analysis in session.devices:
        rows = np.arange(len(analysis.allocations))
        for row in [*rows[:3], *rows[-3:]]:
            address = hex(int(analysis.allocations.addr[row]) & (1 << 64) - 1)
            explanation = session.explain(address, device=analysis.device.device)
            assert row in [explained["id"] for explained in explanation.allocations]
            shown = text(explanation, whole_stack=True)
            assert f"{address} on {device_name(analysis.device.device)}: " in shown


@pytest.mark.parametrize(
    "name", ["training_step", "training_step_python", "late_start", "context_alloc"]
)
def test_the_first_opinion_on_every_allocation_is_its_category(name):
    session = snapconv.load(FIXTURES / f"{name}.pickle")
    for analysis in session.devices:
        rows = np.arange(len(analysis.allocations))
        first = {}
        features = find_features(
            analysis.replay,
            analysis.phases,
            analysis.features.roles,
            user_rules=analysis.features.user_rules,
        )
        for row, opinion in opinions(features, rows):
            first.setdefault(row, (opinion.category, opinion.evidence, opinion.slug))
        found = analysis.classification
        nothing = (Category.UNKNOWN, Evidence.NONE, "none")
        assert first
        for row in rows.tolist():
            decided = (
                found.category[row],
                found.evidence[row],
                found.reasons[found.reason_id[row]],
            )
            assert first.get(row, nothing) == decided


# --- questions


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("#12", (12, 0)),
        ("0X7F00", (None, 0x7F00)),
        ("0xffffffffffffff00", (None, -256)),
        ("12", (12, 0)),
        (" #12\n", (12, 0)),
    ],
)
def test_an_address_or_an_event_may_be_requested(text, question):
    assert parse_question(text) == question


@pytest.mark.parametrize(
    "text",
    ["", "#", "#-1", "-256", "0x", "7f00", "0x1_0", "1.5", "#12 #13", "0x" + "f" * 17, "\u0661"],
)
def test_anything_else_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match=r"0x7f3c40001000 or an event such as #1234"):
        parse_question(text)


# --- who is meant


def alloc_events(explanation):
    """The allocations of an answer, by the events that allocated them; None: before the trace."""
    return [moments_of(explained["lifetime"])[0] for explained in explanation.allocations]


@pytest.fixture
def reused(load):
    """Events: 0 segment; 1-3 first allocation at ADDR, 4 KiB; 4-6 second, 1 KiB; 7 third, 2 KiB, kept."""
    return load(TraceBuilder().segment().alloc(4096).free().alloc(1024).free().alloc(2048))


@pytest.mark.parametrize(
    ("question", "events"),
    [
        *((text, [4]) for text in ("#4", "4", "#5", "#6")),
        # What is live at the peak goes first, then the newest.
        *((text, [1, 7, 4]) for text in (hex(ADDR), hex(ADDR + 1023))),
        (hex(ADDR + 1024), [1, 7]),
        (hex(ADDR + 4095), [1]),
    ],
)
def test_events_and_addresses_lead_to_allocations(reused, question, events):
    assert alloc_events(reused.explain(question)) == events


def test_what_begins_at_the_address_goes_before_what_has_it_inside(load):
    builder = TraceBuilder().segment().alloc(4096).free().alloc(1024).alloc(512)
    assert alloc_events(load(builder).explain(hex(ADDR + 1024))) == [5, 1]


def test_an_address_beyond_2_to_the_63_is_found(load):
    high = (1 << 64) - 4 * MIB
    (explained,) = (
        load(TraceBuilder().segment(address=high).alloc(512)).explain(hex(high)).allocations
    )
    assert explained["address"] == "0xffffffffffc00000"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "#0",
            (
                "event #0 of cuda:0 is segment_alloc of 2.00 MiB, no allocation; the nearest one is "
                "event 1: "
            ),
        ),
        ("#8", "cuda:0 has no event #8; it has 8 events, the last is #7"),
        (
            hex(ADDR + 4096),
            f"it is in the segment at {ADDR:#x}; the next one below is at {ADDR:#x}",
        ),
        ("0x10", f"no allocation of cuda:0 has 0x10; the next one above is at {ADDR:#x}"),
    ],
)
def test_where_nothing_is_meant_the_error_shows_what_there_is(reused, text, said):
    with pytest.raises(InputError) as wrong:
        reused.explain(text)
    assert said in str(wrong.value)
    assert "run.pickle: " in str(wrong.value)


def test_a_request_that_failed_is_explained_by_another_command(load):
    with pytest.raises(
        InputError, match=r"a request that failed: snapconv oom .*run\.pickle explains it"
    ):
        load(TraceBuilder().segment().alloc(512).oom(1 << 30, 512)).explain("#2")


def test_a_device_without_allocations_is_reported(load):
    with pytest.raises(InputError, match="it has none at all"):
        load(TraceBuilder()).explain("0x10")


def test_every_device_is_looked_at_by_default(tmp_path):
    first, second = (
        TraceBuilder().segment().alloc(512),
        TraceBuilder(device=2).segment().alloc(1024),
    )
    path = tmp_path / "run.pickle"
    path.write_bytes(pickle.dumps(first.snapshot(second)))
    session = snapconv.load(path)
    assert [explained["device"] for explained in session.explain("#1").allocations] == [
        2,
        0,
    ]  # the highest peak first
    assert [explained["device"] for explained in session.explain("#1", device=2).allocations] == [2]
    with pytest.raises(InputError, match="nothing of device 1; it has: 0, 2"):
        session.explain("#1", device=1)


def test_of_very_many_allocations_the_newest_are_explained_and_all_are_counted(load):
    builder = TraceBuilder().segment()
    for _ in range(150):
        builder.alloc(512).free()
    explanation = load(builder).explain(hex(ADDR))
    assert (explanation.n_allocations, len(explanation.allocations)) == (150, 100)
    assert alloc_events(explanation)[:3] == [1, 448, 445]
    assert list(explanation_lines(explanation))[-1] == "  and 129 earlier ones"


# --- the command


def test_the_command_prints_the_answer_and_its_json(tmp_path, capsys):
    model = RecordedAllocator()
    model.malloc(2 * MIB, frames=CUBLAS)
    (tmp_path / "run.pickle").write_bytes(pickle.dumps(model.snapshot()))

    def run(*argv):
        code = main(["explain", str(tmp_path / "run.pickle"), *argv])
        said = capsys.readouterr()
        return code, said.out, said.err

    code, out, err = run("#1")
    assert code == 0
    assert all(line.startswith("note: ") for line in err.splitlines())
    assert re.match(r"0x[0-9a-f]+ on cuda:0: workspace, 2\.00 MiB, live at the peak\n", out)
    assert "_call_impl" not in out
    assert "modules/module.py:1750 in _call_impl" in run("#1", "--stack")[1].split("category")[0]
    values = json.loads(run("#1", "--json")[1])
    assert values["question"] == "#1"
    assert values["allocations"][0]["verdict"]["decision"]["rule"] == "cublas-workspace"
    assert values["allocations"][0]["origin"]["stack"][1]["line"] == 7
    for argv, expected, said in (
        (["what"], 2, "expected an address"),
        (["#999"], 3, "has no event #999"),
        (["#1", "--device", "3"], 3, "nothing of device 3; it has: 0"),
        (["#1", "--rules", "nowhere.json"], 3, "nowhere.json: cannot be read"),
    ):
        code, out, err = run(*argv)
        assert (code, out) == (expected, "")
        assert said in err


# --- annotations


@pytest.mark.parametrize(
    ("builder", "expected"),
    [
        (
            TraceBuilder()
            .segment()
            .alloc(512, user_metadata="epoch 3")
            .event("annotate", addr=ADDR, size=512, user_metadata="rows")
            .free(user_metadata="epoch 4"),
            {1: [(1, "epoch 3", False), (2, "rows", False)]},
        ),
        (
            TraceBuilder()
            .segment()
            .alloc(512)
            .free()
            .alloc(512)
            .event("annotate", addr=ADDR, size=512, user_metadata="the second")
            .free()
            .event("annotate", addr=ADDR, size=512, user_metadata="nobody's"),
            {1: [], 4: [(5, "the second", False)]},
        ),
        (
            TraceBuilder()
            .segment(traced=False)
            .alloc(512, traced=False)
            .event("annotate", addr=ADDR, size=512, user_metadata="old")
            .free(),
            {1: [(0, "old", False)]},
        ),
        (
            TraceBuilder()
            .segment()
            .alloc(512, user_metadata="", internal_metadata="mallocWithAddress"),
            {1: [(1, "mallocWithAddress", True)]},
        ),
    ],
    ids=(
        "of the alloc and later",
        "of who had the address then",
        "of before the trace",
        "by the allocator",
    ),
)
def test_annotations_are_of_the_allocation_that_had_the_address(load, builder, expected):
    session = load(builder)
    for event, annotations in expected.items():
        explanation = session.explain(f"#{event}")
        (explained,) = explanation.allocations
        found = [tuple(annotation.values()) for annotation in explained["annotations"]]
        assert found == annotations
        assert all(note in text(explanation) for _, note, _ in annotations)


def test_of_many_annotations_the_first_twenty_are_shown_and_none_moves_memory(load):
    plain = load(TraceBuilder().segment().alloc(512)).devices[0].replay.allocated.after.tolist()
    builder = TraceBuilder().segment().alloc(512)
    for number in range(30):
        builder.event("annotate", addr=ADDR, size=512, user_metadata=f"note {number}")
    session = load(builder)
    (explained,) = session.explain("#1").allocations
    assert [one["text"] for one in explained["annotations"]] == [
        f"note {number}" for number in range(20)
    ]
    assert session.devices[0].replay.allocated.after.tolist() == [*plain, *[512] * 30]
