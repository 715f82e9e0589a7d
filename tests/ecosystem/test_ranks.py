"""One rank of eight of the libraries' own distributed training: what it holds, by arithmetic."""

import pickle
from collections import Counter
from importlib.util import find_spec

import pytest

import snapconv
from tests.ecosystem.catalogue import PROGRAMS_FOLDER
from tests.ecosystem.recorded_program import Recorded, run_snapconv

N_RANKS = 8
# Two matrices in each of three blocks, in float32; eight ranks divide their rows.
N_MATRICES, MATRIX_BYTES = 3 * 2, 4 * 1024 * 128
WHOLE_BYTES = N_MATRICES * MATRIX_BYTES
PART_BYTES = WHOLE_BYTES // N_RANKS
# The counter of steps may be on the device.
MOST_OF_COUNTERS = 4 * 8

NEEDS_DEEPSPEED = [
    pytest.mark.long,
    pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed"),
]
KINDS = (
    "accelerate-fsdp2",
    pytest.param("accelerate-fsdp1", marks=pytest.mark.long),
    "lightning-fsdp",
    pytest.param("lightning-ddp", marks=pytest.mark.long),
    "trainer-fsdp",
    *(pytest.param(kind, marks=NEEDS_DEEPSPEED) for kind in ("zero1", "zero2", "zero3")),
    pytest.param("trainer-zero3", marks=NEEDS_DEEPSPEED),
)


def record_rank_3(kind, folder):
    """Rank 3: what libraries ask of rank 0 alone has another answer there."""
    options = ["--simulate", "--no-compute", "--world-size", str(N_RANKS), "--ranks", "3"]
    program = str(PROGRAMS_FOLDER / "ranks.py")
    run = run_snapconv(["record", *options, "-o", "it.capture", program, kind], folder)
    assert run.code == 0, run.said
    assert "Traceback" not in run.err, run.said
    return run, snapconv.load(folder / "it.capture").devices[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_holds_its_part_of_weights_gradients_and_states(kind, tmp_path):
    run, device = record_rank_3(kind, tmp_path)
    states = device.rows(snapconv.Category.OPTIMIZER_STATE)
    part = WHOLE_BYTES // (1 if kind == "lightning-ddp" else N_RANKS)
    n_bytes = int(device.allocations.requested_bytes[states].sum())
    assert 0 <= n_bytes - 2 * part <= MOST_OF_COUNTERS
    if "zero" not in kind:  # its gradients lie in buffers of its own
        rows = Recorded(run, tmp_path).query(
            "SELECT sum(size_bytes), sum(grad_size_bytes) FROM weight_entries"
        )
        assert rows == [(part, part)]


def sizes_of(device, category):
    """Count the sizes of a category's allocations; flags and counters are left out."""
    sizes = device.allocations.requested_bytes[device.rows(category)]
    return Counter(sizes[sizes > 1000].tolist())


@pytest.mark.parametrize("stage", [pytest.param(n, marks=NEEDS_DEEPSPEED) for n in (1, 2, 3)])
def test_zero_has_the_categories_of_other_sharded_jobs(stage, tmp_path):
    """Two steps are recorded, with buckets of 1,000 values, smaller than every matrix."""
    _, device = record_rank_3(f"zero{stage}", tmp_path)
    # Stages 1 and 2 keep all weights, in one buffer, and step a copy of the rank's part.
    kept_bytes = PART_BYTES if stage == 3 else WHOLE_BYTES
    weights = sizes_of(device, snapconv.Category.WEIGHT)
    assert weights == Counter([kept_bytes, PART_BYTES])
    gathered = sizes_of(device, snapconv.Category.GATHERED_WEIGHT)
    # Forward and backward need each matrix; the next step may keep it from one to the other.
    assert set(gathered) == ({MATRIX_BYTES} if stage == 3 else set())
    assert stage != 3 or gathered[MATRIX_BYTES] >= 3 * N_MATRICES
    n_buckets = 1 if stage == 3 else 2  # stages 1 and 2 make one for each step
    unreduced = sizes_of(device, snapconv.Category.UNREDUCED_GRADIENT)
    assert unreduced == Counter({MATRIX_BYTES: 2 * N_MATRICES, 4 * 1000: n_buckets})
    # Stage 3 keeps the reduced part, and flattens it for each step. The part of rank 3 begins in
    # the third matrix, 3 / 8 * 6 = 2.25, and ends with it: the others keep all of that matrix.
    reduced = Counter({PART_BYTES: 3} if stage == 3 else {MATRIX_BYTES: 2})
    assert sizes_of(device, snapconv.Category.GRADIENT) == reduced
    assert set(sizes_of(device, snapconv.Category.INPUT)) == {4 * 4 * 128}


@pytest.mark.parametrize("kind", [pytest.param("zero3", marks=NEEDS_DEEPSPEED)])
def test_a_weight_of_zero_3_has_its_place_among_the_ranks(kind, tmp_path):
    record_rank_3(kind, tmp_path)
    contents = (tmp_path / "it.capture" / "snapshot.pickle").read_bytes()
    metadata = pickle.loads(contents)["snapconv"]
    assert metadata["meshes"] == [{"names": [], "shape": [N_RANKS], "coordinates": [3]}]
    rows = {row["name"]: row for row in metadata["parameters"] if "mesh" in row}
    assert set(rows) == {
        f"module.{block}.{name}.weight" for block in range(3) for name in ("up", "down")
    }
    for name, row in rows.items():
        assert row["shape"] == ([1024, 128] if "up" in name else [128, 1024])
        assert (row["placements"], row["local_shape"]) == (["FlatShard()"], [1024 * 128 // N_RANKS])
        assert row["bytes"] == MATRIX_BYTES // N_RANKS


@pytest.mark.long
def test_a_model_that_accelerate_spreads_has_weights_on_two_devices(tmp_path):
    program = str(PROGRAMS_FOLDER / "device_map.py")
    options = ["--simulate", "--device", "1", "-o", "it.capture"]
    run = run_snapconv(["record", *options, program], tmp_path)
    assert run.code == 0, run.said
    # Of each of eight layers four matrices of 256 x 256, three of 1024 x 256, two norms; words
    # twice, and a norm.
    n_weights = 8 * (4 * 256**2 + 3 * 1024 * 256 + 2 * 256) + 2 * 512 * 256 + 256
    n_bytes = []
    for device in snapconv.load(tmp_path / "it.capture").devices:
        rows = device.rows(snapconv.Category.WEIGHT)
        live = device.allocations.live_at(device.peak_event)
        n_bytes.append(int(device.allocations.requested_bytes[rows][live[rows]].sum()))
    assert 0 < n_bytes[0] <= 20 << 20
    # Buffers of the rotary tables are weights too.
    assert 4 * n_weights <= sum(n_bytes) < 4 * n_weights + 2048
