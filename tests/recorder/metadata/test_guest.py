"""The observer is a guest: nothing of the program is another with it, and nothing of it stays."""

import copy
import gc
import os
import pickle
import threading
import warnings
import weakref

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402  # after the check that torch is there
from torch.autograd.function import FunctionCtx  # noqa: E402
from torch.optim.optimizer import (  # noqa: E402
    _global_optimizer_post_hooks,
    register_optimizer_step_post_hook,
)

from snapconv.recorder.observe.observer import Observer  # noqa: E402
from snapconv.simulation import SimulationOptions, simulated  # noqa: E402
from tests.recorder.metadata.watching import train, watching  # noqa: E402


def net():
    return nn.Sequential(nn.Linear(2, 2), nn.Sigmoid())


def loss_of(model):
    return model(torch.ones(1, 2)).sum()


def test_parameters_can_still_be_swapped():
    with watching():
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            model = net().double()
        finally:
            torch.__future__.set_swap_module_params_on_conversion(False)
        assert model[0].weight.dtype is torch.float64


def test_a_model_that_is_dropped_is_freed_at_once():
    with watching() as observer:
        model = net()
        model(torch.ones(1, 2))
        observer.note_now()
        freed = []
        weakref.finalize(model, freed.append, True)
        gc.disable()
        try:
            del model
            assert freed
        finally:
            gc.enable()


def test_models_and_optimizers_are_copied_and_pickled_as_ever():
    with watching():
        model = net()
        optimizer = torch.optim.Adam(model.parameters())
        train(model, loss_of, optimizer)
        assert copy.deepcopy(model)[0].weight.shape == (2, 2)
        assert b"snapconv" not in pickle.dumps((model, optimizer.state_dict()))


def test_other_threads_are_not_noted():
    with watching() as observer:
        model = net()
        thread = threading.Thread(target=lambda: model(torch.ones(1, 2)).sum().backward())
        thread.start()
        thread.join()
        assert observer.facts({})["phases"] == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_notes_nothing():
    with watching() as observer:
        model = nn.Linear(2, 2)
        child = os.fork()
        if not child:
            model(torch.ones(1, 2)).sum().backward()
            os._exit(len(observer.facts({})["phases"]))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_everything_is_as_before_after_the_end():
    autograd, c_autograd = torch.autograd, torch._C._autograd
    before = (autograd.backward, autograd.grad, dict(vars(c_autograd)), dict(vars(FunctionCtx)))
    kinds = (torch.optim.Optimizer, torch.Tensor, nn.Parameter, nn.Module)
    contents = [dict(vars(kind)) for kind in kinds]
    filters = list(warnings.filters)
    with watching() as observer:
        model = net()
        loss = loss_of(model)
        assert autograd.backward is not before[0]
    assert (autograd.backward, autograd.grad, vars(c_autograd), dict(vars(FunctionCtx))) == before
    x = torch.ones(1, requires_grad=True)
    assert (x * x).grad_fn._saved_self is x  # which hooks for saved tensors would replace
    assert [dict(vars(kind)) for kind in kinds] == contents
    from torch.nn.modules import module
    from torch.optim import optimizer

    hooks = (
        module._global_forward_pre_hooks, module._global_forward_hooks,
        module._global_parameter_registration_hooks, module._global_module_registration_hooks,
        module._global_buffer_registration_hooks,
        optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks,
    )  # fmt: skip
    assert not any(hooks)
    assert warnings.filters == filters
    observer.stop()
    loss.backward()


def test_what_somebody_else_puts_around_backward_stays():
    calls = []
    with watching() as observer:
        before = torch.autograd.backward

        def theirs(*args, **kwargs):
            calls.append("theirs")
            return before(*args, **kwargs)

        torch.autograd.backward = theirs
        observer.stop()
        loss_of(net()).backward()
        assert calls == ["theirs"]
        torch.autograd.backward = before


@pytest.mark.parametrize("of_all", [True, False], ids=["hook of all optimizers", "hook of one"])
def test_it_may_be_stopped_from_within_a_step(of_all):
    with watching() as observer:
        model = nn.Linear(2, 2)
        sgd = torch.optim.SGD(model.parameters())
        register = register_optimizer_step_post_hook if of_all else sgd.register_step_post_hook
        hooks = [
            register(lambda *_: observer.stop()),
            register_optimizer_step_post_hook(lambda *_: None),
        ]
        train(model, loss_of, sgd, 2)
        for hook in hooks:
            hook.remove()
        assert [row["phase"] for row in observer.facts({})["phases"]] == [
            "forward",
            "backward",
            "optimizer",
        ]
    assert not _global_optimizer_post_hooks


def events():
    """The trace so far, but for times and stacks; taking it leaves an event of its own."""
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    found = [tuple(e.get(key) for key in ("action", "addr", "size", "stream")) for e in trace]
    return [event for event in found if event[0] != "snapshot"]


def test_noting_at_an_out_of_memory_allocates_nothing():
    with simulated(SimulationOptions(capacity_bytes=64 << 20)):
        torch.cuda.memory._record_memory_history(max_entries=10_000)
        observer = Observer()
        observer.start()
        traces = []

        def out_of_memory(*_):
            traces.append(events())
            observer.note_now()
            traces.append(events())

        torch._C._cuda_attach_out_of_memory_observer(out_of_memory)
        model = nn.Linear(512, 512).cuda()
        model(torch.ones(1, 512, device="cuda")).sum().backward()
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(80 << 20, device="cuda")
        facts = observer.facts({})
        observer.stop()
        torch.cuda.memory._record_memory_history(enabled=None)
    assert traces[0] == traces[1] != []
    assert len(facts["gradients"]) == len(facts["parameters"]) == 2
