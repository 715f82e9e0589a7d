"""The whole of a file: top-level shapes, devices, order of events, and the notes on what is odd."""

import gc
import json
import pickle

import pytest

from snapconv.errors import (
    InputError,
    MalformedSnapshotError,
    NotASnapshotError,
    TruncatedFileError,
    UnsafePickleError,
)
from snapconv.snapshot import load as load_module
from snapconv.snapshot.event_table import Action
from snapconv.snapshot.load import load_snapshot
from tests.builders import ADDR, MIB, START_US, TraceBuilder, frame


@pytest.fixture
def load(tmp_path):
    """Pickle a value and load it as a snapshot; the file is called s.pickle."""

    def load(value, *, progress=None):
        path = tmp_path / "s.pickle"
        path.write_bytes(pickle.dumps(value, 4))
        return load_snapshot(path, progress=progress)

    return load


def small(device=0):
    return TraceBuilder(device).segment().alloc(1000, frames=[frame()]).alloc(2000).free()


def slugs(snapshot):
    return [note.slug for note in snapshot.notes]


def note(snapshot, slug):
    return next(note for note in snapshot.notes if note.slug == slug)


def columns(snapshot):
    """Everything that the numbers of a report come from, as plain values."""
    return [
        [
            getattr(table, name).tolist()
            for name in table.__slots__
            if getattr(table, name) is not None
        ]
        for device in snapshot.devices
        for table in (device.events, device.segments, device.blocks)
    ]


class TestShapes:
    def test_a_whole_snapshot_is_one_device_with_its_tables(self, load):
        found = load(small().snapshot())
        (device,) = found.devices
        assert (device.device, len(device.events), len(device.segments), len(device.blocks)) == (
            0,
            5,
            1,
            2,
        )
        assert found.n_visible_devices == 1
        assert (found.container.format, found.container.pickle_protocol) == ("pickle", 4)
        assert found.notes == ()

    def test_json_gives_the_same_columns(self, load, tmp_path):
        raw = small().snapshot(allocator_settings={"max_split_size": -1})
        path = tmp_path / "s.json"
        path.write_text(json.dumps(raw), encoding="utf-8")
        assert columns(load_snapshot(path)) == columns(load(raw))
        assert load_snapshot(path).era == load(raw).era

    def test_a_bare_list_of_segments_is_a_snapshot_without_events(self, load):
        found = load(small().raw_segments())
        assert (len(found.devices[0].blocks), len(found.devices[0].events)) == (2, 0)
        assert str(found.era) == "torch 2.1 or newer"

    def test_the_viewers_own_name_for_the_traces_is_known(self, load):
        """torch.cuda._memory_viz wraps a bare list so."""
        found = load({"segments": small().raw_segments(), "traces": []})
        assert slugs(found) == []

    @pytest.mark.parametrize(
        "raw", [{"segments": [], "device_traces": []}, {"device_traces": [[]]}, []], ids=repr
    )
    def test_an_empty_snapshot_is_an_empty_device_0_with_a_note(self, load, raw):
        found = load(raw)
        assert [device.device for device in found.devices] == [0]
        assert "empty-snapshot" in slugs(found)

    @pytest.mark.parametrize("empty", [None, []])
    def test_a_missing_or_empty_list_is_no_rows(self, load, empty):
        found = load({"segments": empty, "device_traces": empty, "external_annotations": None})
        assert (len(found.devices[0].segments), len(found.annotations)) == (0, 0)

    @pytest.mark.parametrize(
        ("raw", "said"),
        [
            ({}, r"a dictionary with the keys \(none\), and no segments or device_traces"),
            ({"a": 1, 5: 2}, "a dictionary with the keys a, 5, and no segments"),
            (
                {"traceEvents": []},
                "a Chrome trace without torch.profiler's memory events",
            ),
            ([[]], "a list of 1 list"),
            ([[], []], "sums by category, as torch.profiler's export_memory_timeline wrote them"),
            ([1, 2], "a list of 2 int"),
            ([{"blocks": []}, {}], "a list of 2 dict"),
            (None, "it contains a single NoneType"),
            ("segments", "it contains a single str"),
            (5, "it contains a single int"),
        ],
    )
    def test_anything_else_is_described(self, load, raw, said):
        with pytest.raises(NotASnapshotError, match=said):
            load(raw)

    @pytest.mark.parametrize(
        ("raw", "message"),
        [
            ({"segments": {}}, "segments: expected list, got dict"),
            ({"segments": 5}, "segments: expected list, got int"),
            ({"segments": [], "device_traces": {}}, "device_traces: expected list, got dict"),
            (
                {"segments": [], "device_traces": [[], {}]},
                "device_traces[1]: expected list, got dict",
            ),
            (
                {"segments": [], "device_traces": [None, 1]},
                "device_traces[1]: expected list, got int",
            ),
            (
                {"segments": [], "device_traces": [[]] * 129},
                "device_traces: expected at most 128 devices, got 129",
            ),
            (
                {"segments": [], "allocator_settings": []},
                "allocator_settings: expected dict, got list",
            ),
            (
                {"segments": [], "external_annotations": {}},
                "external_annotations: expected list, got dict",
            ),
        ],
    )
    def test_a_wrong_type_at_the_top_is_refused_with_the_file_and_the_path(
        self, load, tmp_path, raw, message
    ):
        with pytest.raises(MalformedSnapshotError) as caught:
            load(raw)
        assert str(caught.value) == f"{tmp_path / 's.pickle'}: {message}"

    def test_one_trace_for_two_devices_is_refused(self, load):
        trace = small().events
        with pytest.raises(
            MalformedSnapshotError,
            match=r"device_traces\[1\] is the same list as device_traces\[0\]",
        ):
            load({"segments": [], "device_traces": [trace, trace]})


class TestErrors:
    def test_every_error_keeps_its_kind_and_names_the_file(self, tmp_path):
        path = tmp_path / "broken.pickle"
        for content, kind in (
            (b"", TruncatedFileError),
            (b"%PDF-1.7", NotASnapshotError),
            (b"\x80\x04.", MalformedSnapshotError),
            (b"\x80\x04cos\nsystem\n.", UnsafePickleError),
        ):
            path.write_bytes(content)
            with pytest.raises(kind) as caught:
                load_snapshot(path)
            assert str(caught.value).startswith(f"{path}: ")

    def test_a_missing_file_is_an_input_error_that_names_it(self, tmp_path):
        with pytest.raises(InputError, match=r"missing\.pickle: cannot be read: No such file"):
            load_snapshot(tmp_path / "missing.pickle")

    def test_too_little_memory_is_an_input_error(self, load, monkeypatch):
        def fail(*_, **__):
            raise MemoryError

        monkeypatch.setattr(load_module, "read_raw", fail)
        with pytest.raises(InputError, match="does not fit into this machine's memory"):
            load(small().snapshot())

    @pytest.mark.parametrize("is_on", [True, False])
    def test_the_collector_is_as_it_was_after_an_error(self, load, is_on):
        (gc.enable if is_on else gc.disable)()
        try:
            with pytest.raises(InputError):
                load(5)
            assert gc.isenabled() == is_on
        finally:
            gc.enable()


class TestDevices:
    def test_two_devices_are_kept_apart(self, load):
        other = TraceBuilder(device=1).segment(20 * MIB).alloc(5 * MIB)
        found = load(small().snapshot(other))
        assert [device.device for device in found.devices] == [0, 1]
        assert [len(device.events) for device in found.devices] == [5, 2]
        assert [device.segments.total_bytes.tolist() for device in found.devices] == [
            [2 * MIB],
            [20 * MIB],
        ]
        assert [device.blocks.segment_id.tolist() for device in found.devices] == [[0, 0], [0, 0]]

    def test_devices_share_their_stacks(self, load):
        found = load(small().snapshot(small(device=1)))
        assert [device.events.stack_id[1] for device in found.devices] == [1, 1]

    def test_a_device_without_a_trace_is_known_by_its_memory(self, load):
        """torch 2.0 recorded the current device only."""
        found = load(
            {"segments": small(device=5).raw_segments(), "device_traces": [small().events]}
        )
        assert [(device.device, len(device.events)) for device in found.devices] == [(0, 5), (5, 0)]
        assert [len(device.segments) for device in found.devices] == [0, 1]

    def test_a_visible_device_with_nothing_in_it_is_only_counted(self, load):
        raw = small().snapshot()
        raw["device_traces"] += [[], []]
        found = load(raw)
        assert [device.device for device in found.devices] == [0]
        assert found.n_visible_devices == 3

    def test_segments_and_blocks_are_sorted_by_address(self, load):
        segments = (
            TraceBuilder().segment().alloc(512).segment(20 * MIB).alloc(5 * MIB).raw_segments()
        )
        table = load(segments[::-1]).devices[0]
        assert table.segments.addr.tolist() == [ADDR, ADDR + 2 * MIB]
        assert table.blocks.addr.tolist() == [ADDR, ADDR + 512, ADDR + 2 * MIB, ADDR + 7 * MIB]
        assert table.blocks.segment_id.tolist() == [0, 0, 1, 1]


def growing(action="segment_map"):
    return TraceBuilder().segment(traced=False).event(action, addr=ADDR, size=2 * MIB)


class TestExpandableSegments:
    @pytest.mark.parametrize(
        "builder",
        [
            TraceBuilder().segment(traced=False, is_expandable=True),
            growing("segment_map"),
            growing("segment_unmap"),
        ],
        ids=["a segment", "segment_map", "segment_unmap"],
    )
    @pytest.mark.parametrize(
        "settings", [None, {"max_split_size": -1}], ids=["no settings", "another setting"]
    )
    def test_without_the_setting_segments_and_events_show_them(self, load, builder, settings):
        fields = {} if settings is None else {"allocator_settings": settings}
        assert load(builder.snapshot(**fields)).settings.expandable_segments

    def test_one_device_shows_them_for_all_since_the_setting_is_the_process_own(self, load):
        raw = small().snapshot(TraceBuilder(device=1).segment(is_expandable=True))
        assert load(raw).settings.expandable_segments

    def test_the_setting_counts_where_the_file_has_it(self, load):
        raw = growing().snapshot(allocator_settings={"expandable_segments": False})
        assert not load(raw).settings.expandable_segments

    def test_ordinary_segments_and_events_show_none(self, load):
        assert not load(small().snapshot()).settings.expandable_segments


class TestOrder:
    def test_a_ring_that_shrank_is_sorted_by_time(self, load):
        """Shrunk from 10 to 4 entries while full, torch leaves [12, 13, 4..9, 14, 15]."""
        events = [
            TraceBuilder().event("alloc", time_us=START_US + i, size=i).events[0]
            for i in (12, 13, 4, 5, 6, 7, 8, 9, 14, 15)
        ]
        found = load({"segments": [], "device_traces": [events]})
        assert found.devices[0].events.size.tolist() == [4, 5, 6, 7, 8, 9, 12, 13, 14, 15]
        assert note(found, "reordered-ring").device == 0
        assert "in 1 place (" in note(found, "reordered-ring").message

    def test_a_ring_that_grew_is_sorted_by_time(self, load):
        """Grown from 4 to 8 entries while full, torch leaves [2, 3, 6, 7, 8, 9, 4, 5]."""
        events = [
            TraceBuilder().event("alloc", time_us=i, size=i).events[0]
            for i in (2, 3, 6, 7, 8, 9, 4, 5)
        ]
        assert load({"device_traces": [events]}).devices[0].events.size.tolist() == list(
            range(2, 10)
        )

    def test_events_of_one_microsecond_keep_their_order(self, load):
        times = (5, 5, 5, 1, 1)
        events = [
            TraceBuilder().event("alloc", time_us=t, size=n).events[0] for n, t in enumerate(times)
        ]
        assert load({"device_traces": [events]}).devices[0].events.size.tolist() == [3, 4, 0, 1, 2]

    def test_a_trace_in_order_is_left_alone(self, load):
        assert "reordered-ring" not in slugs(load(small().snapshot()))

    def test_without_every_time_the_order_of_the_file_stands(self, load):
        events = [TraceBuilder().event("alloc", time_us=9 - i, size=i).events[0] for i in range(3)]
        del events[1]["time_us"]
        assert load({"device_traces": [events]}).devices[0].events.size.tolist() == [0, 1, 2]

    def test_each_device_is_sorted_by_itself(self, load):
        shuffled = [TraceBuilder().event("alloc", time_us=t).events[0] for t in (2, 1)]
        found = load({"device_traces": [[dict(e) for e in small().events], shuffled]})
        assert note(found, "reordered-ring").device == 1


class TestNotes:
    def test_unknown_actions_are_counted_in_a_note(self, load):
        found = load(small().event("teleport").event("teleport").event("x\n").snapshot())
        assert note(found, "unknown-action").message.endswith(r": teleport (2), x\n (1)")
        assert found.devices[0].events.action.tolist()[-3:] == [Action.UNKNOWN] * 3

    def test_a_long_list_of_unknown_actions_is_cut(self, load):
        builder = small()
        for i in range(9):
            builder.event(f"k{i}")
        assert note(load(builder.snapshot()), "unknown-action").message.endswith(
            "k4 (1) and 4 more"
        )

    def test_what_no_torch_is_known_to_write_is_left_out(self, load):
        raw = small().event("alloc", colour=1).snapshot(notebook="print()") | {5: 1, (0, 0): 1}
        raw["segments"][0]["shape"] = raw["segments"][0]["blocks"][0]["odour"] = 1
        assert slugs(load(raw)) == []

    def test_events_without_times_get_a_note(self, load):
        raw = small().snapshot()
        for event in raw["device_traces"][0]:
            del event["time_us"]
        assert slugs(load(raw)) == ["no-timestamps"]

    def test_a_file_without_any_frame_gets_a_note(self, load):
        assert slugs(load(TraceBuilder().segment().alloc(512, frames=[]).snapshot())) == [
            "no-stacks"
        ]

    def test_blocks_of_torch_1_get_a_note(self, load):
        raw = small().raw_segments()
        for block in raw[0]["blocks"]:
            del block["requested_size"]
        assert slugs(load(raw)) == ["no-requested-size"]

    def test_several_snapshots_in_a_page_get_a_note(self, tmp_path):
        import base64

        text = base64.b64encode(pickle.dumps(small().snapshot(), 4)).decode()
        path = tmp_path / "page.html"
        path.write_text(
            f'<script>[{{"base64": "{text}"}}, {{"base64": "{text}"}}]</script>', encoding="utf-8"
        )
        assert slugs(load_snapshot(path)) == ["several-embedded"]


class TestOverflowFlags:
    """torch newer than 2.13 says so itself: in the settings or at the top, once or per device."""

    @pytest.mark.parametrize("place", ["top", "settings"])
    @pytest.mark.parametrize(
        ("flag", "expected"),
        [
            (True, [True, True]),
            (False, [False, False]),
            ([True, False], [True, False]),
            ([False], [False, None]),
            ([], [None, None]),
            (None, [None, None]),
            ("yes", [None, None]),
            ([1, 0], [None, None]),
        ],
    )
    def test_the_flag_is_found_in_both_places_as_a_value_or_a_list(
        self, load, place, flag, expected
    ):
        fields = {"trace_alloc_overflowed": flag, "trace_alloc_max_entries": 100}
        extra = fields if place == "top" else {"allocator_settings": fields}
        found = load(small().snapshot(small(device=1), **extra))
        assert [device.history_overflowed for device in found.devices] == expected

    def test_without_a_flag_nothing_is_known(self, load):
        assert load(small().snapshot()).devices[0].history_overflowed is None


class TestEras:
    def test_a_file_of_torch_2_0_is_inferred_from_its_blocks(self, load):
        segments = small().raw_segments()
        for block in segments[0]["blocks"]:
            del block["address"]
            block["history"] = [
                {"addr": 0, "real_size": block.pop("requested_size"), "frames": block.pop("frames")}
            ]
        found = load({"segments": segments, "device_traces": [[]]})
        assert str(found.era) == "torch 2.0"
        assert found.devices[0].blocks.requested_bytes.tolist() == [1000, 0]

    @pytest.mark.parametrize(
        ("fields", "settings", "era"),
        [
            ({}, None, "torch 2.2"),
            ({}, {"max_split_size": -1}, "torch 2.3 to 2.4"),
            ({"compile_context": "N/A"}, {"graph_capture_record_stream_reuse": False}, "torch 2.9"),
            ({"compile_context": "N/A", "user_metadata": ""}, {"a": 1}, "torch 2.10 to 2.11"),
            ({"pool_id": (0, 0)}, {"a": 1}, "torch 2.12"),
            ({"pool_id": (0, 0)}, {"max_round_threshold": 1}, "torch 2.13"),
        ],
    )
    def test_the_release_is_inferred_from_the_keys(self, load, fields, settings, era):
        raw = small().event("alloc", **fields).snapshot()
        found = load(raw if settings is None else raw | {"allocator_settings": settings})
        assert str(found.era) == era

    def test_annotations_show_2_5(self, load):
        assert str(load(small().snapshot(external_annotations=[])).era) == "torch 2.5 to 2.7"

    @pytest.mark.parametrize(
        ("builder", "settings", "backend"),
        [
            (small().event("workspace_snapshot"), {}, "npu"),
            (small().event("empty_cache"), {}, "npu"),
            (small().alloc(512, frames=[frame(filename="/x/torch_npu/npu/memory.py")]), {}, "npu"),
            (small(), {"PYTORCH_ALLOC_CONF": ""}, "xpu"),
            (small().alloc(512, frames=[frame(filename="/x/torch/xpu/memory.py")]), {}, "xpu"),
            (small(), {"PYTORCH_CUDA_ALLOC_CONF": ""}, "cuda"),
        ],
        ids=["npu-action", "npu-marker", "npu-file", "xpu-settings", "xpu-file", "cuda"],
    )
    def test_the_backend_is_inferred_from_actions_files_and_settings(
        self, load, builder, settings, backend
    ):
        assert load(builder.snapshot(allocator_settings=settings)).era.backend == backend


def test_progress_counts_the_traces_of_all_devices(load):
    seen = []
    load(small().snapshot(small(device=1)), progress=lambda *args: seen.append(args))
    assert [args for args in seen if args[0] == "reading"] == [("reading", n, 3) for n in (1, 2, 3)]


def test_loading_twice_gives_the_same(load):
    raw = small().snapshot(small(device=1), external_annotations=[])
    assert columns(load(raw)) == columns(load(raw))
