"""A step that torch takes for a checkpoint, so that an optimizer has states, is no step of a training."""

import pytest

torch = pytest.importorskip("torch")
state_dict = pytest.importorskip("torch.distributed.checkpoint.state_dict")

from snapconv.guest.guard import Guard  # noqa: E402
from snapconv.guest.torch_surface import Feature  # noqa: E402
from snapconv.recorder.interception import Event, _steps  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def test_states_for_a_checkpoint_are_made_without_a_step_that_counts():
    layer = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(layer.parameters())
    events = []
    with _steps(lambda event, *_: events.append(event), Guard(Feature.OPTIMIZER_STEPS)):
        states = state_dict.get_optimizer_state_dict(layer, optimizer)
        assert "exp_avg" in states["state"]["weight"]
        assert events == []
        layer(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    assert events == [Event.STEP_BEGINS, Event.STEP_ENDS]
