"""Whole pickles with wrong values in them: nothing but SnapconvError escapes, up to the last output."""

import copy
import json
import pickle
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import snapconv
from snapconv.answers.info import describe
from snapconv.answers.verdict import find_verdict
from snapconv.answers.what_if.setting_trials import Request
from snapconv.convert import ConvertOptions, to_sqlite
from snapconv.errors import SnapconvError
from snapconv.writers.text.info import info_lines
from tests.builders import write_anew
from tests.drawn_inputs import SEED, drawn
from tests.fuzz.corpus import OLD, RICH

REQUESTS = (
    Request(("expandable_segments:True", "max_split_size_mb:32,roundup_power2_divisions:4")),
    Request(
        ("garbage_collection_threshold:0.5,per_process_memory_fraction:0.5",), capacity=1 << 26
    ),
)
FUZZ = settings(
    deadline=None,
    derandomize=not SEED,
    max_examples=drawn(100),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
_BITS = (0, 1, 9, 31, 32, 48, 60, 62, 63, 64)
INTEGERS = st.sampled_from(
    sorted(
        {sign * 2**bits + beside for bits in _BITS for sign in (1, -1) for beside in (-1, 0, 1)}
        | {10**30}
    )
) | st.integers(-(2**64), 2**64)
TEXTS = st.sampled_from(
    [
        "",
        "alloc",
        "free",
        "oom",
        "snapshot",
        "segment_unmap",
        "inactive",
        "START",
        "\ud800",
        "\0",
        "a\nb",
        "x" * 5000,
    ]
) | st.text(max_size=5)
LEAVES = st.one_of(INTEGERS, TEXTS, st.floats(), st.none(), st.booleans(), st.binary(max_size=3))
WRONG = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(TEXTS | st.integers(0, 3), inner, max_size=3),
    ),
    max_leaves=6,
)


class Edit:
    """One change at a random place: which way down, and what to do there."""

    KINDS = ("replace", "replace", "drop", "repeat", "share", "enclose", "swap")

    def __init__(self, kind: str, way: list[int], other: list[int], value: Any) -> None:
        self.kind, self.way, self.other, self.value = kind, way, other, value

    def __repr__(self) -> str:
        return f"Edit({self.kind!r}, {self.way}, {self.other}, {self.value!r})"

    def apply(self, raw: Any) -> None:
        parent, key = place(raw, self.way)
        if parent is None:
            return
        match self.kind:
            case "replace":
                parent[key] = copy.deepcopy(self.value)
            case "drop":
                del parent[key]
            case "repeat" if isinstance(parent, list):
                parent[key:key] = [parent[key]] * 3
            case "share":
                # Another part of the same file, by reference: a list may come to hold itself.
                source, name = place(raw, self.other)
                parent[key] = raw if source is None else source[name]
            case "enclose":
                parent[key] = [parent[key]]
            case "swap" if isinstance(parent, list):
                parent.reverse()


def place(raw: Any, way: list[int]) -> tuple[Any, Any]:
    """Walk down from the top, one number per level; the container where the walk ends, and its key."""
    parent, key = None, None
    for number in way:
        keys = (
            list(raw) if isinstance(raw, dict) else range(len(raw)) if isinstance(raw, list) else ()
        )
        if not keys:
            break
        parent, key = raw, keys[number % len(keys)]
        raw = raw[key]
    return parent, key


WAYS = st.lists(st.integers(0, 100), min_size=1, max_size=6)
EDITS = st.lists(
    st.builds(Edit, st.sampled_from(Edit.KINDS), WAYS, WAYS, WRONG), min_size=1, max_size=3
)


def try_all(raw: Any, folder: Path, *, as_json: bool = False) -> str:
    """Convert a value with every output; "read", or the message of the error that is ours."""
    path = folder / "x.pickle"
    try:
        write_anew(path, json.dumps(raw).encode() if as_json else pickle.dumps(raw, 4))
    except (TypeError, ValueError, RecursionError):
        return "not writable"  # bytes and cycles in JSON
    try:
        "\n".join(info_lines(describe(path)[0]))
        with TemporaryDirectory(
            dir=folder
        ) as new:  # ext4 waits for the disk where a file replaces another
            to_sqlite(path, ConvertOptions(output=Path(new) / "x.sqlite", extended=True))
    except SnapconvError as error:
        return str(error)
    return "read"


def answer_all(path: Path) -> None:
    """Ask every question that a file can answer."""
    session = snapconv.load(path)
    for moment in ("peak", "worst", "end"):
        session.at(moment)
    session.tree(by="module")
    session.fragmentation()
    for analysis in session.devices:
        session.explain_oom(analysis.device.device, device_total=1 << 36)
        find_verdict(analysis)


def try_settings(path: Path) -> None:
    """Replay a file under other settings of the allocator."""
    session = snapconv.load(path)
    for request in REQUESTS:
        session.what_if(request)
        session.what_if(request, batch_scale=3)


BASES = pytest.mark.parametrize("base", [RICH, OLD], ids=["torch-2.12", "torch-2.0"])


@BASES
@pytest.mark.parametrize("ask", [answer_all, try_settings])
@FUZZ
@given(edits=EDITS)
def test_wrong_values_are_answered_or_refused_in_our_own_words(tmp_path, base, ask, edits):
    raw = copy.deepcopy(base)
    failed = {"action": "oom", "size": 1 << 30, "device_free": 0, "stream": 0, "frames": []}
    for trace in raw["device_traces"] if ask is answer_all else ():
        trace.extend([{**trace[-1], **failed}] if trace else [])
    for edit in edits:
        edit.apply(raw)
    path = tmp_path / "x.pickle"
    write_anew(path, pickle.dumps(raw, 4))
    with suppress(SnapconvError):
        ask(path)


@BASES
@settings(FUZZ, max_examples=drawn(250))
@given(edits=EDITS, as_json=st.booleans())
def test_wrong_values_are_read_or_refused_in_our_own_words(tmp_path, base, edits, as_json):
    raw = copy.deepcopy(base)
    for edit in edits:
        edit.apply(raw)
    try_all(raw, tmp_path, as_json=as_json)


COLUMNS = [
    ("device_traces", 0, 3, "addr"),
    ("device_traces", 0, 3, "size"),
    ("device_traces", 0, 3, "stream"),
    ("device_traces", 0, 3, "time_us"),
    ("device_traces", 0, 3, "pool_id"),
    ("device_traces", 0, 3, "frames"),
    ("device_traces", 0, 3, "action"),
    ("device_traces", 0, 0, "size"),
    ("segments", 0, "address"),
    ("segments", 0, "total_size"),
    ("segments", 0, "device"),
    ("segments", 0, "blocks", 0, "address"),
    ("segments", 0, "blocks", 0, "size"),
    ("segments", 0, "blocks", 0, "requested_size"),
    ("segments", 0, "blocks", 0, "state"),
    ("allocator_settings", "max_split_size"),
    ("allocator_settings", "roundup_power2_divisions", "1"),
    ("external_annotations", 0, "time_us"),
    ("external_annotations", 0, "device"),
    ("external_annotations", 0, "name"),
]


@settings(FUZZ, max_examples=drawn(250))
@given(where=st.sampled_from(COLUMNS), value=LEAVES, every=st.booleans())
@example(where=COLUMNS[1], value=2**63 - 1, every=True)
def test_any_number_in_any_column_is_read_or_refused_with_its_path(tmp_path, where, value, every):
    raw = copy.deepcopy(RICH)
    *way, key = where
    target: Any = raw
    for step in way:
        target = target[step]
    target[key] = value
    if every and isinstance(way[-1], int):
        rows = raw
        for step in way[:-1]:
            rows = rows[step]
        for row in rows:
            row[key] = value
    said = try_all(raw, tmp_path)
    shown = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in where)[1:]
    if said != "read" and not every:
        assert shown in said or "an integer of more than 64 bits at byte" in said


@pytest.mark.parametrize("at", ["device_traces", "segments", "external_annotations"])
def test_a_list_that_holds_itself_is_refused(tmp_path, at):
    raw = copy.deepcopy(RICH)
    raw[at].append(raw[at])
    assert f"{at}[" in try_all(raw, tmp_path)


def test_a_snapshot_inside_itself_is_an_unknown_key(tmp_path):
    raw = copy.deepcopy(RICH)
    raw["again"] = raw
    raw["allocator_settings"]["again"] = raw
    assert try_all(raw, tmp_path) == "read"
