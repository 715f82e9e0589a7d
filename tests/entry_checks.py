"""What must hold of every recorded entry, simulated or on a GPU. Subclassed where there are recordings.

The expected numbers come from the model itself, from torch's own counters, and from a run that
nobody recorded; never from snapconv.
"""

import linecache
from collections.abc import Callable
from pathlib import Path

import pytest

import snapconv
from tests.entries import ENTRIES, FOLDER, Step, build, file_of, weights_of
from tests.recordings import N_MEMORY_STEPS, Recording, Reports, convert, coverage

# What an optimizer keeps per trained parameter, in copies of it: SGD its momentum, Adam two
# moments.
N_STATES = {"SGD": 1, "Adam": 2, "AdamW": 2}
MIN_FORWARD, MIN_BACKWARD = 0.93, 0.97
PACKAGE = str(Path(snapconv.__file__).parent)


class EntryChecks:
    """Asks for fixtures: ``recording``, one of each entry and kind; ``again``, which makes it once more;
    ``unrecorded``, the steps of the same training that nobody records.
    """

    @pytest.fixture
    def reports(self, recording: Recording) -> Reports:
        return convert(recording.capture)

    # --- the recording

    def test_a_recording_is_complete_and_ends_as_the_program_does(
        self, recording: Recording
    ) -> None:
        assert recording.code == 0, recording.said
        assert recording.metadata["ended"] == {"how": "complete", "detail": ""}
        assert recording.metadata["overflowed"] is False
        assert "error" not in recording.said
        names = sorted(path.name for path in recording.capture.iterdir())
        assert names == ["ending.json", "snapshot.pickle", "timing.json"]

    def test_the_entry_is_distinguished_by_what_it_defines(self, recording: Recording) -> None:
        kind = "script" if recording.kind == "train" else "providers"
        assert recording.metadata["entry"] == {
            "path": str(file_of(recording.entry, recording.kind)),
            "kind": kind,
        }

    def test_parameters_and_gradients_are_bit_equal_to_those_of_a_run_without_recording(
        self, recording: Recording, unrecorded: tuple[Step, ...]
    ) -> None:
        assert len(unrecorded) >= 4
        assert recording.steps == unrecorded

    # --- memory

    def test_every_parameter_is_named_with_the_bytes_of_the_tensor_and_of_its_gradient(
        self, recording: Recording, reports: Reports
    ) -> None:
        rows = reports.rows("SELECT name, size_bytes, grad_size_bytes FROM weight_entries")
        assert {name: (size, gradient) for name, size, gradient in rows} == weights_of(
            recording.entry
        )
        assert len(rows) == len(weights_of(recording.entry))

    def test_every_parameter_is_shown_with_a_line_of_the_model(
        self, recording: Recording, reports: Reports
    ) -> None:
        rows = reports.rows(
            "SELECT DISTINCT file_path, line_number FROM weight_entries "
            "JOIN stack_correlation ON entry_id = id AND entry_type = 1 "
            "JOIN stack_frames USING (correlation_id) WHERE ordering = 0"
        )
        assert rows
        for path, line in rows:
            assert path in ("model.py", "train.py", "providers.py")
            assert _line(recording.entry, path, line)

    def test_the_peak_is_torchs_own_and_the_sum_of_the_categories(
        self, recording: Recording, reports: Reports
    ) -> None:
        (device,) = recording.metadata["devices"]
        ((peak,),) = reports.rows(
            "SELECT size_bytes FROM misc_sizes WHERE key = 'peak_usage_bytes'"
        )
        assert peak == device["max_memory_allocated"]
        (report,) = reports.values["reports"]
        assert peak == sum(total["block_bytes"] for total in report["categories_at_peak"].values())

    def test_weights_and_states_at_the_peak_have_the_bytes_of_the_model(
        self, recording: Recording, reports: Reports
    ) -> None:
        (report,) = reports.values["reports"]
        held = report["categories_at_peak"]
        weights = weights_of(recording.entry).values()
        buffers = sum(
            buffer.numel() * buffer.element_size() for buffer in build(recording.entry).buffers()
        )
        n_states = N_STATES[ENTRIES[recording.entry].optimizer]
        own = sum(w.size_bytes for w in weights)
        copies = held["weight"]["requested_bytes"] - own - buffers
        if recording.entry.startswith("amp"):  # autocast's copies have half the bits
            assert 0 <= copies <= own / 2
        else:
            assert copies == 0
        assert held["optimizer_state"]["requested_bytes"] == n_states * sum(
            w.gradient_bytes for w in weights
        )

    def test_nothing_at_the_peak_is_unknown_and_nearly_all_is_known_from_the_metadata(
        self, recording: Recording, reports: Reports
    ) -> None:
        (report,) = reports.values["reports"]
        assert report["categories_at_peak"].get("unknown", {"block_bytes": 0})["block_bytes"] == 0
        by_evidence = dict(
            reports.rows(
                "SELECT evidence, sum(block_bytes) FROM snapconv_peak_allocations "
                "WHERE category != 'workspace' GROUP BY evidence"
            )
        )
        assert by_evidence["metadata"] >= 0.99 * sum(by_evidence.values()), by_evidence

    def test_the_iterations_are_those_that_were_recorded(
        self, recording: Recording, reports: Reports
    ) -> None:
        kinds = [row["kind"] for row in recording.metadata["iterations"]]
        assert kinds == ["warm-up", "memory"]
        assert len(kinds) == N_MEMORY_STEPS
        ((n_iterations,),) = reports.rows("SELECT count(*) FROM snapconv_iterations")
        assert n_iterations == N_MEMORY_STEPS

    # --- times

    @pytest.mark.alone
    def test_rows_cover_93_percent_of_forward_and_97_of_backward(
        self, recording: Recording, again: Callable[[int], Recording]
    ) -> None:
        forward, backward = coverage(recording.timing)
        for attempt in range(4):  # a busy machine may take the processor away in between two calls
            if forward >= MIN_FORWARD and backward >= MIN_BACKWARD:
                break
            forward, backward = (
                max(pair)
                for pair in zip((forward, backward), coverage(again(attempt).timing), strict=True)
            )
        assert MIN_FORWARD <= forward <= 1
        assert MIN_BACKWARD <= backward <= 1

    def test_the_rows_of_the_time_report_have_the_names_of_the_functions_that_were_called(
        self, recording: Recording, reports: Reports
    ) -> None:
        rows = reports.rows(
            "SELECT operation_name, forward_ms, backward_ms FROM run_time_entries", of="time"
        )
        assert ENTRIES[recording.entry].operations | {"cross_entropy"} <= {
            name for name, _, _ in rows
        }
        assert all(forward_ms > 0 for _, forward_ms, _ in rows)
        assert all(
            backward_ms is not None for name, _, backward_ms in rows if name == "cross_entropy"
        )

    def test_stacks_begin_in_the_program_and_have_no_frame_of_the_recorder(
        self, recording: Recording
    ) -> None:
        outermost = {"train": ("train.py", "<module>"), "providers": ("providers.py", "iteration")}
        trace = next(trace for trace in recording.snapshot["device_traces"] if trace)
        stacks = [stack[-1] for stack in recording.timing["stacks"]]
        assert {(Path(file).name, name) for file, _, name, _ in stacks} >= {
            outermost[recording.kind]
        }
        frames = [frame for event in trace for frame in event.get("frames", ())]
        files = {frame["filename"] for frame in frames}
        files |= {frame[0] for stack in recording.timing["stacks"] for frame in stack}
        assert [file for file in files if file.startswith(PACKAGE)] == []

    def test_a_row_of_the_time_report_names_the_line_that_made_the_call(
        self, recording: Recording, reports: Reports
    ) -> None:
        rows = reports.rows(
            "SELECT operation_name, file_path, line_number FROM run_time_entries "
            "JOIN stack_frames ON stack_frames.entry_id = run_time_entries.id WHERE ordering = 0",
            of="time",
        )
        lines = [(name, _line(recording.entry, path, line)) for name, path, line in rows]
        assert all(text for _, text in lines)
        assert all("cross_entropy(" in text for name, text in lines if name == "cross_entropy")


def _line(entry: str, path: str, number: int) -> str:
    """A line of an entry's source; empty where there is none."""
    return linecache.getline(str(Path(FOLDER / entry / path)), number).strip()
