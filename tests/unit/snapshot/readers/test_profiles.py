"""What torch.profiler and the first viewers wrote: read with the bytes and the categories that they have."""

import base64
import gzip
import json
import pickle
from contextlib import suppress
from pathlib import Path

import pytest

from snapconv import load
from snapconv.cli.app import main
from snapconv.errors import InputError, SnapconvError
from snapconv.replay.history_verdict import Verdict
from snapconv.snapshot.readers.text_frames import split_frame
from tests.builders import MIB, TraceBuilder

ROOT = Path(__file__).parents[4]
PROFILES = ROOT / "fixtures" / "profiles"
EXPECTED = json.loads((PROFILES / "expected.json").read_text(encoding="utf-8"))["peak"]
FORMS = {
    "profile_plot.html": ("cpu", "profile_plot"),
    "timeline.raw.json.gz": ("device", "a raw memory timeline"),
}
# Ours by torch's; what it calls detail of autograd is temporary.
OURS = {"parameter": "weight", "autograd_detail": "temporary"}


@pytest.mark.parametrize("name", FORMS)
def test_a_profile_has_the_profilers_own_peak_by_category(name):
    session = load(PROFILES / name)
    (state,) = session.at("peak")
    expected = {}
    for category, n_bytes in EXPECTED.items():
        ours = OURS.get(category, category)
        expected[ours] = expected.get(ours, 0) + n_bytes
    found = {row.category: row.block_bytes for row in state.summary_rows}
    assert {one: n for one, n in found.items() if n} == {one: n for one, n in expected.items() if n}
    assert state.allocated_bytes == sum(EXPECTED.values())
    assert not any(row.certainty for row in state.summary_rows)  # all are the profiler's own


@pytest.mark.parametrize(
    ("name", "kind", "title"), [(name, *about) for name, about in FORMS.items()]
)
def test_a_profile_is_called_what_it_is(name, kind, title):
    snapshot = load(PROFILES / name).snapshot
    assert [one.device.kind for one in snapshot.devices] == [kind]
    assert snapshot.written_by == "torch.profiler"
    (note,) = [note for note in snapshot.notes if note.slug == "profile"]
    assert title in note.message
    assert "reserved" in note.message


@pytest.mark.parametrize("name", FORMS)
def test_a_profile_does_not_claim_to_know_all_from_its_start(name):
    """Tensors of before that no operation used meanwhile are not in it; these are the weights."""
    (device,) = load(PROFILES / name).devices
    assert device.history.verdict is Verdict.STARTED_LATE
    assert device.history.reason == (
        "the file has 4 allocations from before its first event, and only what was used or freed "
        "later"
    )


@pytest.mark.parametrize("name", FORMS)
def test_nothing_that_needs_a_gpu_is_advised_for_a_profile_of_none(name, capsys):
    path = str(PROFILES / name)
    for command in (["info"], ["summary"], ["oom"], ["advise"], ["growth"], []):
        assert main([*command, path]) == 0
        text = "".join(capsys.readouterr())
        assert "--device-total" not in text
        assert "snapconv record" not in text
        assert "context='all'" not in text
    main(["fragmentation", path])
    assert "on a GPU, `snapconv record` records it" in capsys.readouterr().err


def test_the_next_command_of_a_timeline_is_the_profile_with_stacks(capsys):
    assert main([str(PROFILES / "timeline.raw.json.gz")]) == 0
    text = capsys.readouterr().out
    assert (
        "next: torch.profiler.profile(profile_memory=True, record_shapes=True, with_stack=True)"
        in text
    )


def test_frames_of_a_profile_are_lines_of_the_project():
    (state,) = load(PROFILES / "profile_plot.html").at("peak")
    lines = {row.line.place: row.block_bytes for row in state.lines}
    assert "record_profiles.py:32" in lines  # forward
    assert all("record_profiles.py" in place for place in lines)


def test_the_steps_of_a_profile_are_counted_by_its_optimizer():
    """A tensor that is written to keeps its life: in the page it ends and begins in every step."""
    assert len(load(PROFILES / "profile_plot.html").devices[0].iterations) == 2


@pytest.mark.parametrize(
    ("text", "frame"),
    [
        ("model.py(33): forward", ("forward", "model.py", 33)),
        ("/w/my (1).py(7): f", ("f", "/w/my (1).py", 7)),
        ("torch/optim/adam.py(3): step", ("step", "site-packages/torch/optim/adam.py", 3)),
        ("threading.py(975): run", ("run", "lib/python3.0/threading.py", 975)),
        ("a.py:20:main", ("main", "a.py", 20)),
        ("C:\\w\\a.py:20:main", ("main", "C:\\w\\a.py", 20)),
        ("<built-in method relu of type object at 0x7f9f>", ("relu", "<torch>", 0)),
        ("<built-in function linear>", ("linear", "<torch>", 0)),
        (
            "nn.Module: Linear_0",
            ("nn.Module: Linear_0", "site-packages/torch/nn/modules/module.py", 0),
        ),
        ("anything else", ("anything else", "<torch>", 0)),
    ],
)
def test_a_frame_that_is_one_text_is_read(text, frame):
    assert split_frame(text) == frame


# --- profile_plot, by hand


def plot(tmp_path, traces, blocks=(), device=0, name="plot.pickle"):
    segment = {
        "device": device,
        "address": 4096,
        "total_size": 1 << 40,
        "stream": 0,
        "blocks": list(blocks),
    }
    raw = {"device_traces": traces, "segments": [segment] if blocks else []}
    (tmp_path / name).write_bytes(pickle.dumps(raw))
    return load(tmp_path / name)


def alloc(addr, size, category, *names):
    frames = [{"name": name, "filename": "none", "line": 0} for name in names]
    event = {"action": "alloc", "addr": addr, "size": size, "stream": 0}
    return [event | {"frames": frames, "category": category}]


def free(addr, size):
    events = [
        {"action": a, "addr": addr, "size": size, "stream": 0}
        for a in ("free_requested", "free_completed")
    ]
    return [event | {"frames": []} for event in events]


def by_category(session, moment="peak"):
    rows = [row for state in session.at(moment) for row in state.summary_rows]
    return {row.category: row.block_bytes for row in rows if row.block_bytes}


def test_what_was_there_before_counts_from_the_start(tmp_path):
    """It has a free alone, or a block at the end without an alloc: the block of 700 bytes, and the free."""
    blocks = [
        {"size": 700, "state": "active_allocated", "requested_size": 700, "frames": []},
        {"size": 1 << 30, "state": "inactive"},
        {"size": 300, "state": "active_allocated", "requested_size": 300, "frames": []},
    ]
    trace = [*alloc(64, 300, "activation", "m.py(3): forward"), *free(8, 50)]
    session = plot(tmp_path, [trace], blocks)
    assert session.devices[0].replay.allocated.peak == 700 + 50 + 300
    assert by_category(session)["activation"] == 300
    assert session.at("end")[0].allocated_bytes == 1000
    assert "has 2 allocations from before" in session.devices[0].history.reason


def test_a_profile_of_what_was_allocated_in_it_alone_is_complete(tmp_path):
    session = plot(tmp_path, [alloc(64, 300, "activation", "m.py(3): forward")])
    assert session.devices[0].history.verdict is Verdict.COMPLETE


def test_a_weight_that_is_written_to_is_one_allocation(tmp_path):
    trace = [
        *free(8, 4096),
        *alloc(8, 4096, "parameter"),
        *free(8, 4096),
        *alloc(8, 4096, "parameter"),
    ]
    session = plot(tmp_path, [trace])
    assert len(session.devices[0].allocations) == 1
    assert by_category(session) == {"weight": 4096}


def test_a_tensor_that_changes_its_category_is_counted_once_at_a_time(tmp_path):
    trace = [*alloc(8, 4096, "temporary"), *free(8, 4096), *alloc(8, 4096, "gradient")]
    session = plot(tmp_path, [trace])
    assert session.devices[0].replay.allocated.peak == 4096
    assert by_category(session, "end") == {"gradient": 4096}


def test_an_alloc_without_a_category_begins_a_life_of_its_own(tmp_path):
    bare = {"action": "alloc", "addr": 8, "size": 64, "stream": 0, "frames": []}
    session = plot(tmp_path, [[*alloc(8, 64, "parameter"), *free(8, 64), bare]])
    assert len(session.devices[0].allocations) == 2
    assert session.at("end")[0].allocated_bytes == 64


def test_frames_that_are_lists_are_refused_and_not_compared(tmp_path):
    """Python cannot compare lists that are nested deeply enough."""
    rows = [*alloc(8, 64, "temporary"), *free(8, 64), *alloc(8, 64, "temporary")]
    with pytest.raises(InputError, match=r"frames\[0\]: expected dict, got list"):
        plot(tmp_path, [[row | {"frames": [[[]]]} for row in rows]])


def test_the_last_trace_is_no_gpus(tmp_path):
    session = plot(tmp_path, [alloc(8, 512, "input"), [], alloc(8, 1024, "unknown")])
    assert repr(session.snapshot).count("cuda:0") == 1
    assert [(one.device.kind, int(one.device)) for one in session.snapshot.devices] == [
        ("cuda", 0),
        ("cpu", 2),
    ]
    assert by_category(session) == {"input": 512, "unknown": 1024}


# --- the page of torch 2.0


def page(value):
    return (
        f"<html><script>\nlet alloc_data = {json.dumps(value)}\n\nfunction f() {{}}</script>"
    ).encode()


STRINGS = ["a.py:3:build", "a.py:9:step", "a.py:20:main", "64.0MiB allocation", "8.0MiB allocation"]
SUFFIXES = [[2, None], [0, 0], [3, 1], [1, 0], [4, 3]]
ELEMENTS = [
    {"size": 64 * MIB, "info": 2},
    {"size": 8 * MIB, "info": 4},
    {"size": 8 * MIB, "info": 4},
]
OF_2_0 = {
    "actions": [0, 1, 1, 2, 2],
    "elements": ELEMENTS,
    "suffix_table": SUFFIXES,
    "string_table": STRINGS,
    "initially_allocated": [],
}
LATER = {
    "actions": [0, 1, 1, 2, 2],
    "elements_size": [64 * MIB, 8 * MIB, 8 * MIB],
    "elements_info": [[3, 1], [4, 2], [4, 2]],
    "elements_category": None,
    "suffix_table": [[2, None], [0, 0], [1, 0]],
    "string_table": STRINGS,
    "initially_allocated": [],
    "categories": None,
}


@pytest.mark.parametrize("value", [OF_2_0, LATER], ids=["2.0.1", "with columns"])
def test_a_page_of_torch_2_0_has_its_curve_and_its_lines(tmp_path, value):
    (tmp_path / "page.html").write_bytes(page(value))
    session = load(tmp_path / "page.html")
    (state,) = session.at("peak")
    assert state.allocated_bytes == 72 * MIB
    assert {row.line.place: row.block_bytes for row in state.lines} == {
        "a.py:3": 64 * MIB,
        "a.py:9": 8 * MIB,
    }
    assert "trace_plot of torch 2.0" in session.snapshot.form.title


def test_what_a_page_of_torch_2_0_has_from_before_has_the_stack_of_its_free(tmp_path):
    strings = ["512B allocation", "alloc not recorded, stack trace for free:", "a.py:7:free"]
    value = {
        "actions": [0],
        "elements": [{"size": 512, "info": 2}],
        "suffix_table": [[2, None], [1, 0], [0, 1]],
        "string_table": strings,
        "initially_allocated": [0],
    }
    (tmp_path / "page.html").write_bytes(page(value))
    session = load(tmp_path / "page.html")
    assert session.devices[0].replay.allocated.peak == 512
    assert session.devices[0].history.verdict is Verdict.STARTED_LATE
    assert session.at("peak")[0].no_stack_bytes == 512
    assert session.at("end")[0].allocated_bytes == 0


def test_a_profile_of_torch_2_0_has_categories(tmp_path):
    value = OF_2_0 | {"string_table": [*STRINGS[:3], "64.0MiB allocation (parameter)", STRINGS[4]]}
    (tmp_path / "page.html").write_bytes(page(value))
    assert by_category(load(tmp_path / "page.html"))["weight"] == 64 * MIB


# --- pools


def test_a_list_of_segments_of_one_private_pool_is_called_so(tmp_path):
    """torch.cuda.MemPool.snapshot() returns them, beside nothing of the device's other pools."""
    segments = TraceBuilder().segment(segment_pool_id=(0, 7)).alloc(512).raw_segments()
    (tmp_path / "pool.pickle").write_bytes(pickle.dumps(segments))
    (note,) = [one for one in load(tmp_path / "pool.pickle").notes if one.slug == "one-pool"]
    assert "private pool (0, 7)" in note.message
    assert "MemPool.snapshot()" in note.message
    both = TraceBuilder().segment(segment_pool_id=(0, 7)).segment().alloc(512).raw_segments()
    (tmp_path / "both.pickle").write_bytes(pickle.dumps(both))
    assert not [one for one in load(tmp_path / "both.pickle").notes if one.slug == "one-pool"]


# --- damage

WRONG_PAGES = {
    "alloc_data.actions[0]: expected an element from 0 to 2": OF_2_0 | {"actions": [3]},
    "alloc_data.actions[1]: expected int, got str": OF_2_0 | {"actions": [0, "1"]},
    "alloc_data.suffix_table[0]: expected a row below 0": OF_2_0
    | {"suffix_table": [[2, 0], *SUFFIXES[1:]]},
    "alloc_data.suffix_table[2]: expected a pair": OF_2_0
    | {"suffix_table": [*SUFFIXES[:2], [3], *SUFFIXES[3:]]},
    "expected a text below 5": OF_2_0 | {"suffix_table": [[9, None], *SUFFIXES[1:]]},
    "alloc_data.string_table[2]: expected str": OF_2_0
    | {"string_table": [*STRINGS[:2], 7, *STRINGS[3:]]},
    "alloc_data.elements[0].size: expected 0 to 2^48": OF_2_0
    | {"elements": [{"size": -1, "info": 2}] * 3},
    "alloc_data.elements_size[0]: expected 0 to 2^48": LATER | {"elements_size": [-1, 1, 1]},
    "alloc_data.actions[1]: expected an element from 0 to 0": LATER | {"elements_info": [[3, 1]]},
    "alloc_data.elements[1].info: expected int, got nothing": OF_2_0
    | {"elements": [*ELEMENTS[:1], {"size": 8}]},
    "alloc_data.elements: expected list": OF_2_0 | {"elements": {}},
    "alloc_data.string_table: expected list": {"suffix_table": SUFFIXES},
    "alloc_data.elements_size: expected list": {"suffix_table": [], "string_table": []},
    "a dictionary with the keys (none)": {},
}


@pytest.mark.parametrize("said", WRONG_PAGES)
def test_a_damaged_page_is_refused_with_its_place(tmp_path, said):
    (tmp_path / "page.html").write_bytes(page(WRONG_PAGES[said]))
    with pytest.raises(InputError) as wrong:
        load(tmp_path / "page.html")
    assert said in str(wrong.value)


def test_of_a_stack_that_no_program_has_its_innermost_frames_are_read(tmp_path):
    """Else a small page could mean endless ones."""
    n = 2000
    value = {
        "actions": list(range(n)),
        "elements": [{"size": 1, "info": i} for i in range(n)],
        "suffix_table": [[0, i - 1 if i else None] for i in range(n)],
        "string_table": ["a.py:1:f"],
        "initially_allocated": [],
    }
    (tmp_path / "page.html").write_bytes(page(value))
    stacks = load(tmp_path / "page.html").snapshot.stacks
    assert max(len(stacks.frames_of(i)) for i in range(len(stacks))) == 255


WRONG_TIMELINES = {
    "[0].action: expected an action from 1 to 4, got 5": [[0, 5, 8, 0]],
    "[0].category: expected a category from 0 to 7, got 8": [[0, 2, 8, 8]],
    "[1].category: expected int, got nothing": [[0, 2, 8, 0], [0, 2, 8]],
    "[0].size: expected int, got str": [[0, 2, "8", 0]],
    "[0].size: expected at most 2^48 bytes": [[0, 2, 1 << 50, 0]],
    "[1]: expected list, got int": [[0, 2, 8, 0], 5],
}


@pytest.mark.parametrize("said", WRONG_TIMELINES)
def test_a_damaged_timeline_is_refused_with_its_place(tmp_path, said):
    (tmp_path / "x.json").write_text(json.dumps(WRONG_TIMELINES[said]), encoding="utf-8")
    with pytest.raises(InputError) as wrong:
        load(tmp_path / "x.json")
    assert said in str(wrong.value)


def test_a_free_of_what_the_timeline_never_had_is_no_error(tmp_path):
    (tmp_path / "x.json").write_text(
        "[[5000, 2, 64, 4], [6000, 4, -32, 4], [7000, 4, -64, 4]]", encoding="utf-8"
    )
    assert load(tmp_path / "x.json").devices[0].replay.allocated.peak >= 64


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            b"<html><head><title>GPU Memory Timeline HTML</title></head><img src=''>",
            "a picture that torch.profiler",
        ),
        (b"<html><body>hello</body></html>", "an HTML page with no snapshot embedded"),
        (
            b"[[-1, 5000], [[0, 0, 0, 0, 0, 0, 0, 0, 0], [0, 64, 0, 0, 0, 0, 0, 0, 0]]]",
            "sums by category, as torch.profiler's export_memory_timeline wrote them; write all "
            "of it: "
            'prof.export_memory_timeline("x.raw.json.gz")',
        ),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:07\nsize 5120000\n",
            "a pointer of Git LFS to a file of 4.88 MiB; run `git lfs pull`",
        ),
    ],
)
def test_what_has_no_snapshot_is_named(tmp_path, content, said):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(InputError) as wrong:
        load(tmp_path / "file")
    assert said in str(wrong.value)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("seed", range(40))
def test_a_profile_with_bytes_changed_is_read_or_refused(tmp_path, name, seed):
    """What is embedded, and not its packing: that would find every change."""
    data = (PROFILES / name).read_bytes()
    if name.endswith(".gz"):
        data = gzip.decompress(data)
    else:
        begin = data.index(b'"base64": "') + len(b'"base64": "')
        data = base64.b64decode(data[begin : data.index(b'"', begin)])
    place = len(data) * seed // 40
    (tmp_path / "changed").write_bytes(
        data[:place] + bytes([data[place] ^ 1 << seed % 8]) + data[place + 1 :]
    )
    with suppress(SnapconvError):
        load(tmp_path / "changed").at("peak")
