"""A gradient that a sharded job frees within a call is free at once: the recording has no name for it."""

import sys
import weakref
from importlib import import_module
from types import ModuleType, SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from snapconv.guest.guard import Guards  # noqa: E402  # after the check that torch is there
from snapconv.recorder.interception import Event, Interception  # noqa: E402

FULLY_SHARDED = "torch.distributed.fsdp._fully_shard._fsdp_param_group"


class Weight(SimpleNamespace):
    """The attributes that fully_shard and ZeRO have on their own objects."""


def gradients_left_in(call, weight, names):
    """Run a call with a listener and return how many gradients live on where the call freed them."""
    references = [weakref.ref(getattr(weight, name)) for name in names]
    guards, counts = Guards(), []
    interception = Interception(guards)
    listeners = {Event.GRADIENTS_TO_REDUCE: lambda tensors: counts.append(len(list(tensors)))}
    interception.listen(listeners)
    try:
        n_left = call(references)
    finally:
        interception.leave(listeners)
    assert guards.notes() == ()
    assert counts == [2]
    return n_left


def free(weight, names, references):
    for name in names:
        setattr(weight, name, None)
    return sum(reference() is not None for reference in references)


def test_zero_frees_a_whole_gradient_within_its_call(monkeypatch):
    names = ("grad", "grad_accum")

    class Optimizer:
        def reduce_ready_partitions_and_remove_grads(self, weight, references):
            return free(weight, names, references)

        def independent_gradient_partition_epilogue(self):
            pass

    for package in ("deepspeed", "deepspeed.runtime", "deepspeed.runtime.zero"):
        monkeypatch.setitem(sys.modules, package, ModuleType(package))
    module = ModuleType("deepspeed.runtime.zero.stage3")
    module.DeepSpeedZeroOptimizer_Stage3 = Optimizer
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("snapconv.recorder.interception.missing", lambda _rows: iter(()))
    weight = Weight(grad=torch.ones(2), grad_accum=torch.ones(2))

    def call(references):
        return Optimizer().reduce_ready_partitions_and_remove_grads(weight, references)

    assert gradients_left_in(call, weight, names) == 0


@pytest.mark.skipif(not torch.distributed.is_available(), reason="no torch.distributed")
def test_fully_shard_frees_whole_gradients_within_its_call(monkeypatch):
    name = "unsharded_accumulated_grad"
    group = pytest.importorskip(FULLY_SHARDED).FSDPParamGroup
    weight = Weight(_unsharded_param=None, unsharded_accumulated_grad=torch.ones(2))

    def post_backward(group, references):
        return free(group.fsdp_params[0], (name,), references)

    monkeypatch.setattr(group, "post_backward", post_backward)

    def call(references):
        return import_module(FULLY_SHARDED).FSDPParamGroup.post_backward(
            SimpleNamespace(fsdp_params=[weight]), references
        )

    assert gradients_left_in(call, weight, (name,)) == 0
