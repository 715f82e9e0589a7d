"""Allocator settings and annotations, as far as a file has them."""

import pytest

from snapconv.allocator.allocator_settings import AllocatorSettings
from snapconv.errors import MalformedSnapshotError
from snapconv.snapshot.event_table import read_annotations
from snapconv.snapshot.fields import Interner
from snapconv.snapshot.segment_table import read_settings
from tests.builders import START_US

MIB_BUCKETS = [str(1 << i) for i in range(16)]


def settings(**fields):
    return read_settings(fields, "allocator_settings")[0]


def entries(raw):
    return read_settings(raw, "allocator_settings")[1]


class TestSettings:
    def test_a_file_without_settings_has_torchs_defaults(self):
        assert read_settings(None, "allocator_settings") == (AllocatorSettings(), ())

    def test_the_settings_of_torch_2_3_are_read(self):
        found = settings(
            PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True",
            max_split_size=1 << 25,
            expandable_segments=True,
            roundup_power2_divisions=dict.fromkeys(MIB_BUCKETS, 4),
        )
        assert found.max_split_size_bytes == 1 << 25
        assert found.expandable_segments is True
        assert found.roundup_power2_divisions == (4,) * 16
        assert found.conf == "expandable_segments:True"

    @pytest.mark.parametrize("limit", [-1, 2**63, 2**64 - 1, None])
    def test_an_unlimited_split_size_is_none(self, limit):
        assert settings(max_split_size=limit).max_split_size_bytes is None

    @pytest.mark.parametrize(
        "key", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"]
    )
    def test_the_configuration_is_found_under_any_backends_key(self, key):
        assert settings(**{key: "max_split_size_mb:32"}).conf == "max_split_size_mb:32"

    def test_buckets_that_are_missing_are_0(self):
        assert settings(roundup_power2_divisions={"1": 8, "32768": 2}).roundup_power2_divisions == (
            8,
            *[0] * 14,
            2,
        )

    def test_everything_is_kept_as_text_unknown_keys_too(self):
        nested = {"a": 1, "b": {"c": 2}}
        raw = {"garbage_collection_threshold": 0.5, "new_in_3": True, "nested": nested, "odd": [1]}
        assert dict(entries(raw)) == {
            "garbage_collection_threshold": "0.5",
            "new_in_3": "True",
            "nested": "a:1,b:dict",
            "odd": "list",
        }

    def test_not_a_number_is_no_value(self):
        raw = {"garbage_collection_threshold": float("nan"), "max_split_size": -1}
        assert entries(raw) == (("max_split_size", "-1"),)

    def test_keys_that_are_no_text_are_left_out(self):
        assert entries({1: 2, "a": {3: 4}}) == (("a", ""),)

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"max_split_size": "32"}, "max_split_size: expected int, got str"),
            ({"max_split_size": True}, "max_split_size: expected int, got bool"),
            ({"roundup_power2_divisions": 4}, "roundup_power2_divisions: expected dict, got int"),
            (
                {"roundup_power2_divisions": {"4": "2"}},
                "roundup_power2_divisions.4: expected int, got str",
            ),
            (
                {"roundup_power2_divisions": {"1": -2}},
                "roundup_power2_divisions.1: expected 0 to 2^31 - 1, got -2",
            ),
            (
                {"roundup_power2_divisions": {"2": 2**70}},
                f"roundup_power2_divisions.2: expected 0 to 2^31 - 1, got {2**70}",
            ),
        ],
    )
    def test_a_wrong_value_is_refused_with_the_path(self, fields, message):
        with pytest.raises(MalformedSnapshotError) as caught:
            settings(**fields)
        assert str(caught.value) == f"allocator_settings.{message}"

    @pytest.mark.parametrize("raw", [[], "x", 1, False])
    def test_settings_must_be_a_dictionary(self, raw):
        with pytest.raises(
            MalformedSnapshotError, match=r"^allocator_settings: expected dict, got"
        ):
            read_settings(raw, "allocator_settings")

    def test_a_dictionary_that_holds_itself_is_no_trap(self):
        raw = {}
        raw["again"] = raw
        assert entries(raw) == (("again", "again:dict"),)

    def test_no_text_is_longer_than_a_page_and_no_file_has_many(self):
        found = entries({f"k{i}": "x" * 10_000 for i in range(1000)})
        assert len(found) == 200
        assert {len(text) for _, text in found} == {2000}


def annotation(name="Optimizer.step#SGD.step", stage="START", device=0, time_us=START_US):
    return {"name": name, "stage": stage, "device": device, "time_us": time_us}


class TestAnnotations:
    def test_a_file_without_annotations_has_an_empty_table(self):
        assert len(read_annotations(None, Interner(), "x")) == 0
        assert len(read_annotations([], Interner(), "x")) == 0

    def test_ranges_are_read_as_entered_and_left(self):
        texts = Interner()
        table = read_annotations(
            [
                annotation(),
                annotation(stage="END", time_us=START_US + 5),
                annotation("epoch", device=1),
            ],
            texts,
            "external_annotations",
        )
        assert [texts.values()[i] for i in table.name_id] == ["Optimizer.step#SGD.step"] * 2 + [
            "epoch"
        ]
        assert table.is_start.tolist() == [True, False, True]
        assert table.device.tolist() == [0, 0, 1]
        assert table.time_us.tolist() == [START_US, START_US + 5, START_US]
        assert not table.time_us.flags.writeable

    def test_missing_keys_have_defaults(self):
        table = read_annotations([{}], Interner(), "x")
        assert (table.name_id.tolist(), table.is_start.tolist()) == ([-1], [False])
        assert (table.device.tolist(), table.time_us.tolist()) == ([0], [-1])

    @pytest.mark.parametrize(
        ("raw", "message"),
        [
            ({}, ": expected list, got dict"),
            ([annotation(), []], "[1]: expected dict, got list"),
            ([annotation(name=5)], "[0].name: expected str, got int"),
            ([annotation(), annotation(device="cuda:0")], "[1].device: expected int, got str"),
            ([annotation(time_us=0.5)], "[0].time_us: expected int, got float"),
            (
                [annotation(time_us=-(2**63))],
                f"[0].time_us: expected microseconds of at most 62 bits, got {-(2**63)}",
            ),
        ],
    )
    def test_a_wrong_value_is_refused_with_the_path(self, raw, message):
        with pytest.raises(MalformedSnapshotError) as caught:
            read_annotations(raw, Interner(), "external_annotations")
        assert str(caught.value) == f"external_annotations{message}"
