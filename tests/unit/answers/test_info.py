"""The facts behind ``snapconv info``, each from a snapshot whose figures are plain to see."""

import gzip
import json
import pickle
from dataclasses import asdict
from pathlib import Path

import pytest

import snapconv
from scripts.fixtures.recorded_allocator import RecordedAllocator
from snapconv.allocator.allocator_settings import AllocatorSettings
from snapconv.answers.info import describe
from snapconv.errors import NotASnapshotError
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
def facts_of(tmp_path):
    def facts_of(raw, data=None):
        path = tmp_path / "run.pickle"
        path.write_bytes(pickle.dumps(raw, protocol=4) if data is None else data)
        return describe(path)

    return facts_of


def shown(facts):
    return "\n".join(info_lines(facts))


def test_a_device_is_counted_at_the_dump(facts_of):
    (device,) = facts_of(model_with_two_blocks().snapshot()).devices
    assert (device.device, device.n_events) == (0, 5)
    assert device.actions == {"alloc": 2, "free_requested": 1, "free_completed": 1, "segment_alloc": 1}
    assert (device.n_segments, device.n_blocks, device.n_live_blocks) == (1, 3, 1)
    assert (device.reserved_bytes, device.active_bytes) == (2 * MIB, 3072)
    assert (device.n_pools, device.n_streams) == (1, 1)


def test_the_duration_runs_from_the_first_event_to_the_last(facts_of):
    raw = model_with_two_blocks(clock=iter(range(100, 1000, 50)).__next__).snapshot()
    times = [entry["time_us"] for entry in raw["device_traces"][0]]
    facts = facts_of(raw)
    assert facts.devices[0].duration_us == times[-1] - times[0] > 0
    assert f"over {times[-1] - times[0]} us" in shown(facts)


def test_without_times_there_is_no_duration_but_a_note(facts_of):
    raw = model_with_two_blocks().snapshot()
    for entry in raw["device_traces"][0]:
        del entry["time_us"]
    facts = facts_of(raw)
    assert facts.devices[0].duration_us is None
    assert "over" not in shown(facts)
    assert [note.slug for note in facts.notes] == ["no-timestamps"]


def test_every_device_with_memory_is_described(facts_of):
    raw = model_with_two_blocks(device=2).snapshot()
    facts = facts_of(raw)
    assert facts.n_visible_devices == 3
    assert [device.device for device in facts.devices] == [2]
    assert "cuda:2" in shown(facts)


@pytest.mark.parametrize(
    ("wrap", "format_name", "protocol"),
    [
        (lambda raw: pickle.dumps(raw, protocol=2), "pickle", 2),
        (lambda raw: gzip.compress(pickle.dumps(raw, protocol=5)), "pickle in gzip", 5),
        (lambda raw: json.dumps(raw).encode(), "json", None),
    ],
)
def test_the_container_is_named(facts_of, wrap, format_name, protocol):
    data = wrap(model_with_two_blocks().snapshot())
    facts = facts_of(None, data)
    assert (facts.format, facts.pickle_protocol, facts.n_bytes) == (format_name, protocol, len(data))
    assert format_name in shown(facts)


def test_one_of_a_kind_is_singular(facts_of):
    model = RecordedAllocator()
    model.malloc(20 * MIB, frames=FRAMES)
    text = shown(facts_of({"segments": model.segments(), "device_traces": [model.trace()[:1]]}))
    for one in (
        "1 visible device\n",
        "1 distinct stack of 1 distinct frame\n",
        "1 event\n",
        "1 segment with 1 block,",
    ):
        assert one in text.replace(" over 0 us", "")
    assert "1 pool, 1 stream\n" in text


def test_block_sizes_are_checked_against_those_at_the_dump(facts_of):
    raw = model_with_two_blocks().snapshot()
    facts = facts_of(raw)
    assert (facts.devices[0].n_checked_sizes, facts.devices[0].n_different_sizes) == (1, 0)
    assert "block sizes: 1 compared with the blocks at the dump, 0 differ" in shown(facts)
    # The block of 3072 bytes: in no allocator does a request of 3000 bytes have 4096 of them.
    _, block, rest = raw["segments"][0]["blocks"]
    block["size"] += 1024
    rest.update(address=rest["address"] + 1024, size=rest["size"] - 1024)
    facts = facts_of(raw)
    assert (facts.devices[0].n_checked_sizes, facts.devices[0].n_different_sizes) == (1, 1)
    assert [note.slug for note in facts.notes] == ["block-size-mismatch"]


def test_without_a_traced_block_that_is_live_nothing_is_written_of_sizes(facts_of):
    facts = facts_of(model_with_two_blocks(record=False).snapshot())
    assert facts.devices[0].n_checked_sizes == 0
    assert "block sizes" not in shown(facts)


def test_the_history_is_decided(facts_of):
    assert facts_of(model_with_two_blocks().snapshot()).devices[0].history == "complete"
    late = model_with_two_blocks(record=False)
    late.start_recording()
    late.malloc(512)
    assert facts_of(late.snapshot()).devices[0].history == "started late"
    (without,) = facts_of({"segments": late.segments(), "device_traces": []}).devices
    assert (without.history, without.n_events, without.active_bytes) == ("no trace", 0, 3072 + 512)


def test_a_file_without_memory_and_events_is_described_all_the_same(facts_of):
    facts = facts_of({"segments": [], "device_traces": [[]]})
    (device,) = facts.devices
    assert (device.n_events, device.reserved_bytes, device.actions) == (0, 0, {})
    assert "empty-snapshot" in [note.slug for note in facts.notes]
    assert shown(facts)


def test_settings_that_differ_from_the_default_are_shown(facts_of):
    settings = AllocatorSettings.from_conf("max_split_size_mb:64")
    facts = facts_of(model_with_two_blocks(settings=settings).snapshot())
    assert facts.settings["max_split_size"] == str(64 * MIB)
    assert f"max_split_size={64 * MIB}" in shown(facts)
    assert "max_split_size" not in shown(facts_of(model_with_two_blocks().snapshot()))


def annotation(name, stage):
    return {"name": name, "stage": stage, "device": 0, "time_us": 1}


def test_annotations_are_counted_by_their_starts(facts_of):
    raw = model_with_two_blocks().snapshot()
    raw["external_annotations"] = [annotation("step", stage) for stage in ("START", "END", "START")]
    facts = facts_of(raw)
    assert facts.annotations == {"step": 2}
    assert "step (2)" in shown(facts)


def test_many_annotations_are_cut_short_for_a_person_only(facts_of):
    raw = model_with_two_blocks().snapshot()
    raw["external_annotations"] = [annotation(f"part {n}", "START") for n in range(20)]
    facts = facts_of(raw)
    assert len(facts.annotations) == 20
    assert "and 12 more" in shown(facts)


def test_a_long_annotation_is_cut_short_for_a_person_only(facts_of):
    raw = model_with_two_blocks().snapshot()
    raw["external_annotations"] = [annotation("x" * 3000, "START")]
    facts = facts_of(raw)
    assert facts.annotations == {"x" * 3000: 1}
    assert max(map(len, info_lines(facts))) < 200
    assert f"{'x' * 80}… (2920 characters more) (1)" in shown(facts)


def test_the_values_are_plain_enough_for_json(facts_of):
    facts = facts_of(model_with_two_blocks().snapshot())
    assert json.loads(json.dumps(facts.to_json())) == json.loads(json.dumps(asdict(facts)))


def test_progress_is_shown_in_stages(tmp_path):
    path = tmp_path / "run.pickle"
    path.write_bytes(pickle.dumps(model_with_two_blocks().snapshot()))
    steps = []
    describe(path, progress=lambda *step: steps.append(step))
    assert {"loading", "reading"} <= {stage for stage, _, _ in steps} <= {"checking", "loading", "reading"}
    assert all(0 <= done <= total for _, done, total in steps)


def test_another_file_is_refused(facts_of):
    with pytest.raises(NotASnapshotError):
        facts_of({"weights": 1})


def test_a_capture_names_the_torch_that_recorded_it():
    facts = describe(FIXTURES / "transformer.capture")
    recorded = snapconv.load(FIXTURES / "transformer.capture").snapshot.metadata.facts
    assert facts.written_by == f"torch {dict(recorded)['torch']}"
