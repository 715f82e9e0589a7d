"""Block sizes derived from a simulated capture are those of the simulation, whatever its settings."""

import pickle
import random

import pytest

torch = pytest.importorskip("torch")

from snapconv.replay.device_replay import replay  # noqa: E402
from snapconv.simulation import SimulationOptions, simulated  # noqa: E402
from snapconv.snapshot.load import load_snapshot  # noqa: E402
from tests.recorder.simulation.support import MIB, Transformer, language_step, recorded  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

CONFS = (
    "",
    "expandable_segments:True",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[1:8,4:2,>:4]",
    "max_split_size_mb:24",
    "expandable_segments:True,roundup_power2_divisions:8,max_split_size_mb:32",
)


def train_and_serve():
    """A few training steps, and tensors of every size that come and go; some are left."""
    chance = random.Random(0)
    model = Transformer(n_words=3_001, width=516, n_blocks=2).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    left = []
    for _ in range(3):
        language_step(model, optimizer, torch.zeros(3, 101, dtype=torch.int64, device="cuda"))
        for _ in range(60):
            most = chance.choice((4_000, MIB, 24 * MIB, 48 * MIB))
            left.append(torch.empty(chance.randint(1, most), dtype=torch.uint8, device="cuda"))
            if len(left) > 20:
                left.pop(chance.randrange(len(left)))
        torch.cuda.empty_cache()
    return model, optimizer, left


@pytest.mark.parametrize("conf", CONFS)
def test_the_live_blocks_of_a_simulated_capture_have_the_sizes_that_are_derived(conf, monkeypatch, tmp_path):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", conf)
    with simulated(SimulationOptions(compute=False)), recorded() as snapshot:
        kept = train_and_serve()
        peak = torch.cuda.max_memory_allocated()
    del kept
    file = tmp_path / "snapshot.pickle"
    file.write_bytes(pickle.dumps(snapshot))
    loaded = load_snapshot(file)
    found = replay(loaded, loaded.devices[0])
    assert found.size_check.n_checked > 80
    assert found.size_check.n_different == found.size_check.n_different_by_settings == 0
    assert found.allocated.peak == peak
