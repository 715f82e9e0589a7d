"""A timed step allocates what the same step does without a timer, in the same order."""

import pytest

torch = pytest.importorskip("torch")

from snapconv.simulation import SimulationOptions, simulated  # noqa: E402  # only where torch is
from tests.recorder.timing.test_coverage import MODELS, step_of  # noqa: E402
from tests.recorder.timing.timed import timer_for  # noqa: E402


def events_of(name, *, timed):
    """What the allocator did in the third step, and what was left on the graph for the fourth."""
    with simulated(SimulationOptions()):
        torch.manual_seed(0)
        net = MODELS[name]()
        batch = net.batch()[:2, :32].cuda()
        step = step_of(net.cuda(), batch)
        timer = timer_for(net)
        with timer:
            step()
            step()
            torch.cuda.memory._record_memory_history(context=None)
            if timed:
                timer.begin(0)
            step()
            if timed:
                timer.end()
            step()
            events = torch.cuda.memory._snapshot()["device_traces"][0]
            torch.cuda.memory._record_memory_history(enabled=None)
    return [(event["action"], event["size"], event["stream"]) for event in events]


@pytest.mark.parametrize("name", ["cnn", "checkpointed"])
def test_a_timed_step_allocates_as_one_without_a_timer(name):
    plain = events_of(name, timed=False)
    assert len(plain) > 50
    assert events_of(name, timed=True) == plain
