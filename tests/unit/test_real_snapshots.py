"""Conversions of real snapshots, against figures that a slow independent walk found in them.

The files belong to other people and lie beside the project, with ``truth.json``; see its README for
what each figure is. Everything here is exact to the byte, except where the file itself leaves room.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import snapconv
from snapconv.analysis import DeviceAnalysis
from snapconv.classification.categories import Category
from snapconv.convert import ConvertOptions, to_sqlite
from snapconv.snapshot.event_table import Action
from tests.tables import ask

REAL_SNAPSHOTS = Path(__file__).parents[3] / "shared" / "snapshots"
TRUTH_FILE = REAL_SNAPSHOTS / "truth.json"
TRUTH = json.loads(TRUTH_FILE.read_text(encoding="utf-8")) if TRUTH_FILE.exists() else {}
ADAMW_STEP = "notHanmin-assignment2-systems-memory_snapshot.pickle"
WITH_SNAPSHOT_EVENT = "Yiyi-philosophy-LLM-inference-oom_snapshot.pickle"
SYNTHETIC = "facebookresearch-mosaic-output.pickle"

pytestmark = pytest.mark.skipif(not TRUTH, reason="the real snapshots are not beside this checkout")


@dataclass(frozen=True)
class Converted:
    """A file, its reports by device, and their analyses with the truth about each."""

    name: str
    reports: dict[int, Path]
    analyses: dict[int, DeviceAnalysis]
    truth: dict[int, dict[str, int]]

    def figures(self, *keys):
        """The truth of every device that has all these figures."""
        for device, truth in self.truth.items():
            if set(keys) <= set(truth):
                yield self.analyses[device], *(truth[key] for key in keys)

    def rows(self, query):
        """The rows of a query, one list per device."""
        for path in self.reports.values():
            yield ask(path, query)


@pytest.fixture(scope="module", params=sorted(TRUTH) or ["none"])
def converted(request, tmp_path_factory):
    return convert(request.param, tmp_path_factory.mktemp("reports"))


def convert(name, folder):
    options = ConvertOptions(output=folder / "report.sqlite", extended=True)
    made = to_sqlite(REAL_SNAPSHOTS / name, options)
    truth = {int(device): figures for device, figures in TRUTH[name].items()}
    return Converted(
        name, {report.peak.device: path for path, report in made.reports}, analyses_of(name), truth
    )


@cache
def analyses_of(name):
    """The devices of a file, analysed once for all tests of a process."""
    return {one.device.device: one for one in snapconv.load(REAL_SNAPSHOTS / name).devices}


def peak(converted):
    """What the reports call the peak, by device in their order."""
    return [rows[0][0] for rows in converted.rows("SELECT size_bytes FROM misc_sizes")]


def test_there_is_a_report_for_every_device_that_has_anything(converted):
    assert set(converted.reports) == set(converted.truth)
    assert all(path.exists() for path in converted.reports.values())


def test_requested_bytes_are_true_at_the_start_the_peak_and_the_end(converted):
    keys = ("start_requested", "peak_active_requested", "end_active_requested")
    found = [
        (
            analysis.replay.requested.start,
            analysis.replay.requested.peak,
            analysis.replay.requested.end,
        )
        for analysis, *_ in converted.figures(*keys)
    ]
    assert found == [tuple(true) for _, *true in converted.figures(*keys)]


def test_active_blocks_at_the_end_are_true(converted):
    for analysis, true in converted.figures("end_active_block"):
        assert analysis.replay.active.end == true


def test_reserved_bytes_are_true_at_the_end_and_the_peak(converted):
    for analysis, end, highest in converted.figures("end_reserved", "peak_reserved"):
        assert (analysis.replay.reserved.end, analysis.replay.reserved.peak) == (end, highest)
        assert analysis.replay.reserved.start >= 0


def test_every_event_of_the_file_is_in_the_curves(converted):
    for analysis, true in converted.figures("events"):
        assert len(analysis.replay.allocated.after) == len(analysis.device.events) == true


def test_every_traced_block_that_is_live_at_the_dump_has_the_size_that_is_derived(converted):
    for analysis, true in converted.figures("traced_live_blocks"):
        found = analysis.replay.size_check
        assert (found.n_checked, found.n_different, found.n_different_by_settings) == (true, 0, 0)


def test_the_peak_is_true_and_higher_only_by_what_preexisting_blocks_are_known_to_have(converted):
    """The truth takes blocks that were allocated before the trace and freed in it at rounded requests."""
    for analysis, true, n_freed in converted.figures("peak_allocated_block", "preexisting_freed"):
        rows = analysis.allocations
        freed = (rows.alloc_event < 0) & (rows.end_event >= 0)
        rounded = analysis.replay.rules.rounded(rows.requested_bytes[freed])
        known_to_be_larger = int((rows.block_bytes[freed] - rounded).sum())
        assert true <= analysis.replay.allocated.peak <= true + known_to_be_larger
        assert n_freed or not known_to_be_larger


def test_as_many_preexisting_blocks_are_freed_as_really_were(converted):
    for analysis, true in converted.figures("preexisting_freed"):
        rows = analysis.allocations
        assert np.count_nonzero((rows.alloc_event < 0) & (rows.end_event >= 0)) == true


def test_snapshot_events_have_the_active_bytes_that_torch_counted(converted):
    for analysis in converted.analyses.values():
        events, rows = analysis.device.events, analysis.allocations
        at = np.flatnonzero(events.action == Action.SNAPSHOT)
        assert len(at) == (converted.name == WITH_SNAPSHOT_EVENT)
        found = analysis.replay.active.after[at]
        if rows.is_exact.all():
            assert found.tolist() == events.size[at].tolist()
        else:
            assert (found <= events.size[at]).all()


def test_the_report_shows_the_peak_of_the_replay(converted):
    assert peak(converted) == [
        converted.analyses[d].replay.allocated.peak for d in converted.reports
    ]


def test_the_allocations_at_the_peak_sum_to_it(converted):
    query = "SELECT ifnull(sum(block_bytes), 0) FROM snapconv_peak_allocations"
    assert [rows[0][0] for rows in converted.rows(query)] == peak(converted)


def test_timeline_rows_are_the_four_curves(converted):
    query = (
        "SELECT requested_bytes, allocated_bytes, active_bytes, reserved_bytes FROM "
        "snapconv_timeline"
    )
    for device, rows in zip(
        converted.reports, converted.rows(f"{query} ORDER BY event"), strict=True
    ):
        replay = converted.analyses[device].replay
        curves = (replay.requested, replay.allocated, replay.active, replay.reserved)
        assert rows == list(zip(*(curve.after.tolist() for curve in curves), strict=True))


@pytest.fixture
def adamw_step():
    return analyses_of(ADAMW_STEP)[0]


def requested_at_peak(analysis, category):
    live = analysis.allocations.live_at(analysis.peak_event)
    of_category = analysis.classification.category == category
    return int(analysis.allocations.requested_bytes[live & of_category].sum())


def test_a_weight_has_a_gradient_of_its_size_and_two_states_of_adamw(adamw_step):
    weights = requested_at_peak(adamw_step, Category.WEIGHT)
    assert weights == pytest.approx(3.6 * 1024**3, rel=0.01)
    assert requested_at_peak(adamw_step, Category.GRADIENT) == weights
    assert requested_at_peak(adamw_step, Category.OPTIMIZER_STATE) == pytest.approx(
        2 * weights, rel=0.01
    )


def test_every_weight_of_the_adamw_step_finds_its_gradient(adamw_step):
    assert (adamw_step.weights.gradient_row >= 0).all()
    assert adamw_step.weights.n_unmatched_gradients == 0


def test_the_workspaces_of_cublas_are_no_gradients(adamw_step):
    rows = adamw_step.rows(Category.WORKSPACE)
    assert adamw_step.allocations.requested_bytes[rows].tolist() == [8_519_680, 8_519_680]


def test_activations_of_the_adamw_step_are_what_backward_frees(adamw_step):
    reasons = adamw_step.classification.reasons
    rows = adamw_step.rows(Category.ACTIVATION)
    found = {reasons[i] for i in adamw_step.classification.reason_id[rows].tolist()}
    # The logits of the step before were there when the trace began, and made way for those of this
    # step.
    assert found <= {
        *(
            "release-variables",
            "freed-by-backward",
            "kept-into-backward",
            "replaced-on-the-same-line",
        ),
    }
    assert len(adamw_step.activation_rows) > 0.9 * len(rows)


def test_unknown_is_a_small_part_of_the_adamw_peak(adamw_step):
    unknown = requested_at_peak(adamw_step, Category.UNKNOWN)
    assert 0 <= unknown < 0.01 * adamw_step.replay.requested.peak


# The elements of two models by their published shapes: Llama-2-7B, and a transformer of 12 layers
# with 768 features and two tables of rotations in each.
LLAMA = 32 * (4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096) + 4096 + 2 * 32000 * 4096
SMALL = 12 * (4 * 768**2 + 3 * 768 * 3072 + 2 * 768 + 2 * 128 * 64) + 768 + 2 * 10_000 * 768


@pytest.mark.parametrize(
    ("name", "n_bytes"),
    [
        ("LfieLike-SketchKV2-my_snapshot.pickle", 2 * LLAMA),
        ("silmont2000-assignment2-systems-memory_forward_fp32_128.pickle", 4 * SMALL),
    ],
)
def test_weights_of_an_inference_that_was_recorded_late_are_those_of_the_model(name, n_bytes):
    found = requested_at_peak(analyses_of(name)[0], Category.WEIGHT)
    assert found == pytest.approx(
        n_bytes, rel=_SUMS_WITHIN
    )  # a table of ids may be as large as a norm


# What was derived from the sources of the programs that were recorded. The copies of weights that
# autocast makes, weights too, are not in it: of 12, 16 and 1 matrices in half precision.
COPIES = 12 * 1376256 + 16 * 524288 + 10_240_000
EXPECTED = REAL_SNAPSHOTS / "expected-categories.json"
_SUMS_WITHIN = 0.002


@pytest.mark.parametrize("name", json.loads(EXPECTED.read_bytes()) if EXPECTED.exists() else ())
def test_sums_of_categories_are_those_that_the_programs_sources_give(name):
    for label, n_bytes in json.loads(EXPECTED.read_bytes())[name].items():
        found = requested_at_peak(analyses_of(name)[0], Category[label.upper()])
        found -= COPIES if (label, "mixed_precision" in name) == ("weight", True) else 0
        assert found == pytest.approx(n_bytes, rel=_SUMS_WITHIN), label


# Of files with a trace; over 19 devices the mean was 11.2 % before the whole job was explained at
# once.
_MOST_UNKNOWN = 0.03


def test_little_is_unknown_in_files_with_a_trace():
    shares = []
    for path in sorted(REAL_SNAPSHOTS.glob("*.pickle")):
        for device in analyses_of(path.name).values():
            if len(device.device.events):
                unknown = requested_at_peak(device, Category.UNKNOWN)
                shares.append(unknown / max(1, device.replay.requested.peak))
    assert not shares or sum(shares) / len(shares) <= _MOST_UNKNOWN
