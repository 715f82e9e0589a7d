"""The facts behind ``snapconv info``, each from a snapshot whose figures are plain to see."""

import gzip
import json
import pickle
from pathlib import Path

import pytest

import snapconv
from scripts.fixtures.recorded_allocator import RecordedAllocator
from snapconv.allocator.allocator_settings import AllocatorSettings
from snapconv.answers.info import describe
from snapconv.writers.text.info import info_lines

FIXTURES = Path(__file__).parents[3] / "fixtures"
MIB = 1 << 20
FRAMES = [{"name": "forward", "filename": "/home/me/project/net.py", "line": 7}]


def model_with_two_blocks(**options):
    """Event 0 a segment, 1 and 2 allocs of 1000 and 3000 bytes, 3 and 4 the two halves of a free."""
    model = RecordedAllocator(**options)
    first = model.malloc(1000, frames=FRAMES)
    model.malloc(3000, frames=FRAMES)
    model.free(first)
    return model


@pytest.fixture
def described(tmp_path):
    """The facts of a file, those of its only device, the slugs of its notes, and the text."""

    def described(raw, data=None):
        path = tmp_path / "run.pickle"
        path.write_bytes(pickle.dumps(raw, protocol=4) if data is None else data)
        facts, notes = describe(path)
        (device,) = facts["devices"]
        return facts, device, [note.slug for note in notes], "\n".join(info_lines(facts))

    return described


def test_a_device_is_counted_at_the_dump(described):
    _, device, notes, _ = described(model_with_two_blocks().snapshot())
    assert {
        name: device[name] for name in device if name not in ("duration_us", "history_reason")
    } == {
        "device": 0,
        "kind": "cuda",
        "n_events": 5,
        "actions": {"alloc": 2, "free_requested": 1, "free_completed": 1, "segment_alloc": 1},
        "n_segments": 1,
        "n_blocks": 3,
        "n_live_blocks": 1,
        "n_pools": 1,
        "n_streams": 1,
        "reserved_bytes": 2 * MIB,
        "active_bytes": 3072,
        "at_least": [],
        "n_checked_sizes": 1,
        "n_different_sizes": 0,
        "history": "complete",
    }
    assert notes == []


def test_the_duration_runs_from_the_first_event_to_the_last_and_without_times_there_is_none(
    described,
):
    raw = model_with_two_blocks(clock=iter(range(100, 1000, 50)).__next__).snapshot()
    times = [entry["time_us"] for entry in raw["device_traces"][0]]
    _, device, _, text = described(raw)
    assert device["duration_us"] == times[-1] - times[0] > 0
    assert f"over {times[-1] - times[0]} us" in text
    for entry in raw["device_traces"][0]:
        del entry["time_us"]
    _, device, notes, text = described(raw)
    assert (device["duration_us"], notes, "over" in text) == (None, ["no-timestamps"], False)


def test_only_devices_with_memory_are_described(described):
    facts, device, _, text = described(model_with_two_blocks(device=2).snapshot())
    assert (facts["n_visible_devices"], device["device"], "cuda:2" in text) == (3, 2, True)


@pytest.mark.parametrize(
    ("wrap", "format_name", "protocol"),
    [
        (lambda raw: pickle.dumps(raw, protocol=2), "pickle", 2),
        (lambda raw: gzip.compress(pickle.dumps(raw, protocol=5)), "pickle in gzip", 5),
        (lambda raw: json.dumps(raw).encode(), "json", None),
    ],
)
def test_the_container_is_named(described, wrap, format_name, protocol):
    data = wrap(model_with_two_blocks().snapshot())
    facts, _, _, text = described(None, data)
    assert (facts["format"], facts["pickle_protocol"], facts["n_bytes"]) == (
        format_name,
        protocol,
        len(data),
    )
    assert format_name in text


def test_one_of_a_kind_is_singular(described):
    model = RecordedAllocator()
    model.malloc(20 * MIB, frames=FRAMES)
    *_, text = described({"segments": model.segments(), "device_traces": [model.trace()[:1]]})
    for one in (
        "1 visible device\n",
        "1 distinct stack of 1 distinct frame\n",
        "1 event\n",
        "1 segment with 1 block,",
    ):
        assert one in text.replace(" over 0 us", "")
    assert "1 pool, 1 stream\n" in text


def test_block_sizes_are_checked_against_those_at_the_dump(described):
    raw = model_with_two_blocks().snapshot()
    assert "block sizes: 1 compared with the blocks at the dump, 0 differ" in described(raw)[-1]
    # The block of 3072 bytes: in no allocator does a request of 3000 bytes have 4096 of them.
    _, block, rest = raw["segments"][0]["blocks"]
    block["size"] += 1024
    rest.update(address=rest["address"] + 1024, size=rest["size"] - 1024)
    _, device, notes, _ = described(raw)
    assert (device["n_checked_sizes"], device["n_different_sizes"]) == (1, 1)
    assert notes == ["block-size-mismatch"]
    assert "block sizes" not in described(model_with_two_blocks(record=False).snapshot())[-1]


def test_the_history_is_decided(described):
    late = model_with_two_blocks(record=False)
    late.start_recording()
    late.malloc(512)
    assert described(late.snapshot())[1]["history"] == "started late"
    _, without, *_ = described({"segments": late.segments(), "device_traces": []})
    assert (without["history"], without["n_events"], without["active_bytes"]) == (
        "no trace",
        0,
        3072 + 512,
    )


def test_a_file_without_memory_and_events_is_described_all_the_same(described):
    _, device, notes, text = described({"segments": [], "device_traces": [[]]})
    assert (device["n_events"], device["reserved_bytes"], device["actions"]) == (0, 0, {})
    assert "empty-snapshot" in notes
    assert text


def test_settings_that_differ_from_the_default_are_shown(described):
    settings = AllocatorSettings.from_conf("max_split_size_mb:64")
    facts, *_, text = described(model_with_two_blocks(settings=settings).snapshot())
    assert facts["settings"]["max_split_size"] == str(64 * MIB)
    assert f"max_split_size={64 * MIB}" in text
    assert "max_split_size" not in described(model_with_two_blocks().snapshot())[-1]


def test_a_value_that_the_text_names_is_shown_even_if_it_is_zero(described):
    settings = AllocatorSettings.from_conf("pinned_max_cached_size_mb:0")
    text = described(model_with_two_blocks(settings=settings).snapshot())[-1]
    assert "max_cached_size=0" in text
    assert "max_round_threshold" not in text


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["step", "step"], "step (2)"),
        ([f"part {n}" for n in range(20)], "and 12 more"),
        (["x" * 3000], f"{'x' * 80}… (2920 characters more) (1)"),
    ],
)
def test_annotations_are_counted_by_their_starts_and_cut_short_for_a_person_only(
    described, names, shown
):
    raw = model_with_two_blocks().snapshot()
    stages = [(name, stage) for name in names for stage in ("START", "END")]
    raw["external_annotations"] = [
        {"name": name, "stage": stage, "device": 0, "time_us": 1} for name, stage in stages
    ]
    facts, *_, text = described(raw)
    assert facts["annotations"] == {name: names.count(name) for name in names}
    assert shown in text
    assert max(map(len, text.splitlines())) < 250


def test_a_capture_names_the_torch_that_recorded_it():
    facts, _ = describe(FIXTURES / "transformer.capture")
    recorded = snapconv.load(FIXTURES / "transformer.capture").snapshot.metadata.facts
    assert facts["written_by"] == f"torch {dict(recorded)['torch']}"
