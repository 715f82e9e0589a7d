"""One rank of eight of the libraries' own distributed training: what it holds, by arithmetic."""

from importlib.util import find_spec

import pytest

import snapconv
from tests.ecosystem.catalogue import PROGRAMS_FOLDER
from tests.ecosystem.recorded_program import Recorded, run_snapconv

N_RANKS = 8
# Two matrices in each of three blocks, in float32; eight ranks divide their rows.
WHOLE_BYTES = 4 * 3 * 2 * 1024 * 128
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


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_holds_its_part_of_weights_gradients_and_states(kind, tmp_path):
    """Rank 3: what libraries ask of rank 0 alone has another answer there."""
    options = ["--simulate", "--no-compute", "--world-size", str(N_RANKS), "--ranks", "3"]
    program = str(PROGRAMS_FOLDER / "ranks.py")
    run = run_snapconv(["record", *options, "-o", "it.capture", program, kind], tmp_path)
    assert run.code == 0, run.said
    assert "Traceback" not in run.err, run.said
    device = snapconv.load(tmp_path / "it.capture").devices[-1]
    states = device.rows(snapconv.Category.OPTIMIZER_STATE)
    part = WHOLE_BYTES // (1 if kind == "lightning-ddp" else N_RANKS)
    n_bytes = int(device.allocations.requested_bytes[states].sum())
    assert 0 <= n_bytes - 2 * part <= MOST_OF_COUNTERS
    if "zero" not in kind:  # its gradients lie in buffers of its own
        rows = Recorded(run, tmp_path).query(
            "SELECT sum(size_bytes), sum(grad_size_bytes) FROM weight_entries"
        )
        assert rows == [(part, part)]


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
