"""Hooks into torch, and the dispatch of their events to listeners.

A source puts its hooks or wrappers into torch when somebody listens to one of its events, and takes
them away when the last has left. A fault in one ends that source alone.
"""

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from enum import Enum, auto
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from snapconv.guest.guard import Guard, Guards
from snapconv.guest.import_hook import when_imported
from snapconv.guest.torch_surface import SURFACE, Feature, missing
from snapconv.recorder.observe.tensors import named_tensors


class Event(Enum):
    """Events in the program; each comment lists its arguments."""

    OPTIMIZER_BUILT = auto()  # optimizer
    STEP_BEGINS = auto()  # optimizer; a closure may run backward passes in it (L-BFGS)
    STEP_ENDS = auto()  # optimizer
    SCALER_BEGINS = auto()  # optimizer
    SCALER_ENDS = auto()  # optimizer; a GradScaler has stepped it, or left the step out
    BACKWARD_BEGINS = auto()  # roots, is_grad; one that another calls is reported, too
    BACKWARD_ENDS = auto()  # is_grad, is_complete
    CALL_BEGINS = auto()  # module, positional arguments
    CALL_ENDS = auto()  # module, positional arguments, result; None where it raised
    TENSOR_REGISTERED = auto()  # owner, name, tensor or None
    MODULE_REGISTERED = auto()  # owner, name, module or None
    TENSOR_COPIED = auto()  # original, copy
    MODULE_RESTORED = auto()  # module, from a pickle or as a copy
    WEIGHTS_GATHERED = auto()  # tensors of whole weights, on any thread, as the next three
    GRADIENTS_TO_REDUCE = auto()  # tensors or None
    GRADIENTS_REDUCED = auto()  # tensors or None, the shards of gradients
    BUFFERS_IN_USE = auto()  # tensors or None, of a collective


Listeners = Mapping[Event, Callable[..., object]]
Report = Callable[..., None]
Source = Callable[[Report, Guard], AbstractContextManager[None]]
# The holder of a function, its name, and what is run around it.
Wrapper = tuple[Any, str, Callable[..., Any]]


class Interception:
    """The events of one recording."""

    def __init__(self, guards: Guards) -> None:
        self._guards = guards
        self._listeners: list[Listeners] = []
        self._on: dict[Feature, ExitStack] = {}

    def listen(self, listeners: Listeners, *, is_first: bool = False) -> None:
        """Add listeners, called after all others, or before them if ``is_first``."""
        self._listeners.insert(0 if is_first else len(self._listeners), listeners)
        self._update()

    def leave(self, listeners: Listeners) -> None:
        """Remove listeners."""
        self._listeners = [other for other in self._listeners if other is not listeners]
        self._update()

    def _update(self) -> None:
        """Turn sources on that somebody listens to, and off those that nobody does."""
        heard_events = {event for listeners in self._listeners for event in listeners}
        for feature, (source, events) in _SOURCES.items():
            guard = self._guards.of(feature)
            if heard_events.isdisjoint(events):
                if feature in self._on:
                    guard.finish(self._on.pop(feature).close)
            elif feature not in self._on:
                parts = self._on[feature] = ExitStack()
                guard.enter(parts, partial(source, self._report, guard))

    def _report(self, event: Event, *arguments: Any) -> None:
        for listeners in tuple(self._listeners):  # some begin or end to listen at an event
            listener = listeners.get(event)
            if listener is not None:
                listener(*arguments)


@contextmanager
def _steps(report: Report, guard: Guard) -> Iterator[None]:
    """Report the steps of all optimizers.

    Our hook is kept last: the work of other hooks then counts to the step that ends, and torch 2.13
    iterates over the hook dictionary itself, so only its last entry can be removed safely
    meanwhile.
    """
    from torch.optim.optimizer import (
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    is_last = is_over = False

    def begins(optimizer: Any, *_: object) -> None:
        if post.id in hooks and next(reversed(hooks)) != post.id:
            hooks.move_to_end(post.id)
        if not _is_for_states():
            report(Event.STEP_BEGINS, optimizer)

    def ends(optimizer: Any, *_: object) -> None:
        nonlocal is_last
        if _is_for_states():
            return
        is_last = True
        try:
            report(Event.STEP_ENDS, optimizer)
        finally:
            is_last = False
            if is_over:
                remove()

    def remove() -> None:
        post.remove()
        pre.remove()

    post = register_optimizer_step_post_hook(guard.hook(ends))
    pre = register_optimizer_step_pre_hook(guard.hook(begins))
    hooks = post.hooks_dict_ref()
    try:
        yield
    finally:
        is_over = not is_last and _is_in_step()
        if not is_over:
            remove()


# It steps with gradients of zero, so that an optimizer has states to save or to load into.
_MAKES_STATES = "_init_optim_state"
_CHECKPOINTS_FILE = str(Path("torch", "distributed", "checkpoint", "state_dict.py"))


def _is_for_states() -> bool:
    """Return whether a checkpoint of torch's takes the step, and no training does."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == _MAKES_STATES and code.co_filename.endswith(_CHECKPOINTS_FILE):
            return True
        frame = frame.f_back
    return False


_OPTIMIZER_FILE = str(Path("torch", "optim", "optimizer.py"))


def _is_in_step() -> bool:
    """Return whether a step of an optimizer is among the callers."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.endswith(_OPTIMIZER_FILE):
        frame = frame.f_back
    return frame is not None


def _scalers(report: Report, guard: Guard) -> AbstractContextManager[None]:
    import torch

    def step(
        call: Callable[[], Any], _scaler: Any, optimizer: Any, *_: Any, **__: Any
    ) -> Any:
        report(Event.SCALER_BEGINS, optimizer)
        result = call()
        report(Event.SCALER_ENDS, optimizer)
        return result

    return _wrapped(guard, (torch.amp.GradScaler, "step", step))


def _backward_passes(report: Report, guard: Guard) -> AbstractContextManager[None]:
    """Report every backward pass.

    ``Tensor.backward`` too, and not only what it calls: it takes function modes off while it runs,
    and puts them back afterwards. The timer's mode can only come and go outside of it.
    """
    import torch

    def work(roots_name: str, *, is_grad: bool) -> Callable[..., Any]:
        def around(call: Callable[[], Any], *args: Any, **keywords: Any) -> Any:
            roots = args[0] if args else keywords.get(roots_name)
            report(Event.BACKWARD_BEGINS, roots, is_grad)
            is_complete = False
            try:
                result = call()
                is_complete = True
                return result
            finally:
                report(Event.BACKWARD_ENDS, is_grad, is_complete)

        return around

    return _wrapped(
        guard,
        (torch.autograd, "backward", work("tensors", is_grad=False)),
        (torch.autograd, "grad", work("outputs", is_grad=True)),
        (torch.Tensor, "backward", work("self", is_grad=False)),
    )


def _optimizers(report: Report, guard: Guard) -> AbstractContextManager[None]:
    """Report every optimizer that is built.

    Step hooks miss wrappers such as SAM, whose inner optimizer steps.
    """
    from torch.optim import Optimizer

    def built(build: Callable[[], None], optimizer: Any, *_: Any, **__: Any) -> None:
        build()
        report(Event.OPTIMIZER_BUILT, optimizer)

    return _wrapped(guard, (Optimizer, "__init__", built))


def _copies(report: Report, guard: Guard) -> AbstractContextManager[None]:
    """Report copies by ``copy.deepcopy`` and modules restored by pickle.

    No registration hook sees them.
    """
    import torch

    def copied(call: Callable[[], Any], tensor: Any, *_: Any, **__: Any) -> Any:
        copy = call()
        if copy is not tensor:
            report(Event.TENSOR_COPIED, tensor, copy)
        return copy

    def restored(call: Callable[[], Any], module: Any, *_: Any, **__: Any) -> Any:
        result = call()
        report(Event.MODULE_RESTORED, module)
        return result

    tensors = [
        (kind, "__deepcopy__", copied) for kind in (torch.Tensor, torch.nn.Parameter)
    ]
    return _wrapped(guard, *tensors, (torch.nn.Module, "__setstate__", restored))


@contextmanager
def _removed_at_the_end(*hooks: Any) -> Iterator[None]:
    """Remove hooks of torch when the context ends."""
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _registrations(report: Report, guard: Guard) -> AbstractContextManager[None]:
    from torch.nn.modules import module

    tensor_hook = guard.hook(partial(report, Event.TENSOR_REGISTERED))
    module_hook = guard.hook(partial(report, Event.MODULE_REGISTERED))
    return _removed_at_the_end(
        module.register_module_parameter_registration_hook(tensor_hook),
        module.register_module_buffer_registration_hook(tensor_hook),
        module.register_module_module_registration_hook(module_hook),
    )


# The warning of torch.compile about hooks such as ours: the program did not cause it.
_WARNING = "Using `torch.compile\\(module\\)` when there are global hooks"


@contextmanager
def _calls(report: Report, guard: Guard) -> Iterator[None]:
    from torch.nn.modules import module

    begin_hook = guard.hook(partial(report, Event.CALL_BEGINS))
    end_hook = guard.hook(partial(report, Event.CALL_ENDS))
    hooks = _removed_at_the_end(
        module.register_module_forward_pre_hook(begin_hook),
        module.register_module_forward_hook(end_hook, always_call=True),
    )
    warnings.filterwarnings("ignore", message=_WARNING, category=UserWarning)
    own_filter = warnings.filters[0]
    try:
        with hooks:
            yield
    finally:
        if own_filter in warnings.filters:
            warnings.filters.remove(own_filter)  # type: ignore[attr-defined]  # it is a list


_FULLY_SHARDED = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
_FLAT_SHARDED = "torch.distributed.fsdp._runtime_utils"


def _fully_sharded(report: Report, guard: Guard) -> AbstractContextManager[None]:
    """Report what ``fully_shard`` gathers, and whole gradients as it begins to reduce them."""

    def gathered(call: Callable[[], Any], weight: Any, *_: Any, **__: Any) -> Any:
        result = call()
        tensors = (*weight.all_gather_outputs, weight._unsharded_param)
        report(Event.WEIGHTS_GATHERED, tensors)
        return result

    def reduced(call: Callable[[], Any], group: Any, *_: Any, **__: Any) -> Any:
        for weight in group.fsdp_params:
            report(Event.GRADIENTS_TO_REDUCE, gradients(weight))
        return call()

    def gradients(weight: Any) -> tuple[Any, Any]:
        """Return them to be reported alone: the call frees what no frame of ours holds."""
        parameter = getattr(weight, "_unsharded_param", None)
        accumulated = getattr(weight, "unsharded_accumulated_grad", None)
        return (None if parameter is None else parameter.grad, accumulated)

    def wrappers() -> Iterator[Wrapper]:
        group = sys.modules[_FULLY_SHARDED]
        yield group.FSDPParam, "to_unsharded", gathered
        yield group.FSDPParamGroup, "post_backward", reduced

    return _wrapped_when_imported(guard, _FULLY_SHARDED, wrappers)


def _flat_sharded(report: Report, guard: Guard) -> AbstractContextManager[None]:
    """Report what FullyShardedDataParallel gathers, and whole gradients as it reduces them."""

    def gathered(call: Callable[[], Any], handle: Any, *_: Any, **__: Any) -> Any:
        result = call()
        if handle.uses_sharded_strategy:
            report(Event.WEIGHTS_GATHERED, (handle._get_padded_unsharded_flat_param(),))
            # The shard in the type of the whole weights, from which they are gathered.
            shard = getattr(handle.flat_param, "_mp_shard", None)
            report(Event.BUFFERS_IN_USE, (shard,))
        return result

    def reduced(
        call: Callable[[], Any], _state: Any, handle: Any, *_: Any, **__: Any
    ) -> Any:
        if handle.uses_sharded_strategy:
            report(Event.GRADIENTS_TO_REDUCE, (handle.flat_param.grad,))
        return call()

    def reduces(
        call: Callable[[], Any], _state: Any, gradient: Any, *_: Any, **__: Any
    ) -> Any:
        """See the gradient in the type in which it is reduced, and padded."""
        padded, shard = call()
        report(Event.GRADIENTS_TO_REDUCE, (gradient,))
        report(Event.BUFFERS_IN_USE, (padded,))
        return padded, shard

    def wrappers() -> Iterator[Wrapper]:
        runtime = sys.modules[_FLAT_SHARDED]
        yield runtime.FlatParamHandle, "unshard", gathered
        yield runtime, "_post_backward_hook", reduced
        yield runtime, "_get_reduce_scatter_tensors", reduces

    return _wrapped_when_imported(guard, _FLAT_SHARDED, wrappers)


_ZERO = "deepspeed.runtime.zero."
_ZERO_OPTIMIZERS = {
    "stage3": "DeepSpeedZeroOptimizer_Stage3",
    "stage_1_and_2": "DeepSpeedZeroOptimizer",
}


@contextmanager
def _zero_sharded(report: Report, guard: Guard) -> Iterator[None]:
    """Report what DeepSpeed's ZeRO gathers, and whole gradients as it begins to reduce them."""
    wrappers = {"partition_parameters": partial(_zero_weights, report)}
    for module, name in _ZERO_OPTIMIZERS.items():
        wrappers[module] = partial(_zero_gradients, report, module, name)
    with ExitStack() as parts:
        for module, find_wrappers in wrappers.items():
            parts.enter_context(
                _wrapped_when_imported(guard, _ZERO + module, find_wrappers)
            )
        yield


def _zero_weights(report: Report) -> Iterator[Wrapper]:
    def freed(call: Callable[[], Any], _init: Any, weight: Any, *_: Any, **__: Any) -> Any:
        if weight.ds_tensor is not None:  # not the first time, when it is cut
            report(Event.WEIGHTS_GATHERED, (weight,))
        return call()

    def gathered(call: Callable[[], Any], handle: Any, *_: Any, **__: Any) -> Any:
        report(Event.BUFFERS_IN_USE, handle.partitions[:1])  # parts of one tensor
        return call()

    weights = sys.modules[f"{_ZERO}partition_parameters"]
    yield weights.Init, "_partition_param", freed
    yield weights.AllGatherCoalescedHandle, "wait", gathered


def _zero_gradients(report: Report, module: str, name: str) -> Iterator[Wrapper]:
    def begins(
        call: Callable[[], Any], _optimizer: Any, weight: Any, *_: Any, **__: Any
    ) -> Any:
        # No name has them: the call frees them where no frame of ours holds them.
        report(
            Event.GRADIENTS_TO_REDUCE, (weight.grad, getattr(weight, "grad_accum", None))
        )
        return call()

    def reduces(call: Callable[[], Any], optimizer: Any, *_: Any, **__: Any) -> Any:
        buckets = getattr(optimizer, "ipg_buckets", {}).values()
        buffers = named_tensors([bucket.buffer for bucket in buckets])
        report(Event.GRADIENTS_TO_REDUCE, [tensor for _, tensor in buffers])
        result = call()
        shards = named_tensors(getattr(optimizer, "averaged_gradients", None))
        report(Event.GRADIENTS_REDUCED, [tensor for _, tensor in shards])
        return result

    optimizer = getattr(sys.modules[_ZERO + module], name)
    yield optimizer, "reduce_ready_partitions_and_remove_grads", begins
    yield optimizer, "independent_gradient_partition_epilogue", reduces


_SOURCES: dict[Feature, tuple[Source, tuple[Event, ...]]] = {
    Feature.MODULES: (_registrations, (Event.TENSOR_REGISTERED, Event.MODULE_REGISTERED)),
    Feature.BUILT_OPTIMIZERS: (_optimizers, (Event.OPTIMIZER_BUILT,)),
    Feature.COPIES: (_copies, (Event.TENSOR_COPIED, Event.MODULE_RESTORED)),
    Feature.MODEL_CALLS: (_calls, (Event.CALL_BEGINS, Event.CALL_ENDS)),
    Feature.OPTIMIZER_STEPS: (_steps, (Event.STEP_BEGINS, Event.STEP_ENDS)),
    Feature.SCALER_STEPS: (_scalers, (Event.SCALER_BEGINS, Event.SCALER_ENDS)),
    Feature.BACKWARD_PASSES: (
        _backward_passes,
        (Event.BACKWARD_BEGINS, Event.BACKWARD_ENDS),
    ),
    Feature.FULLY_SHARDED: (
        _fully_sharded,
        (Event.WEIGHTS_GATHERED, Event.GRADIENTS_TO_REDUCE),
    ),
    Feature.FLAT_SHARDED: (
        _flat_sharded,
        (Event.WEIGHTS_GATHERED, Event.GRADIENTS_TO_REDUCE, Event.BUFFERS_IN_USE),
    ),
    Feature.ZERO_SHARDED: (
        _zero_sharded,
        (
            Event.WEIGHTS_GATHERED,
            Event.GRADIENTS_TO_REDUCE,
            Event.GRADIENTS_REDUCED,
            Event.BUFFERS_IN_USE,
        ),
    ),
}


@contextmanager
def _wrapped_when_imported(
    guard: Guard, module: str, wrappers: Callable[[], Iterable[Wrapper]]
) -> Iterator[None]:
    """Run work around functions of a module that the program may import, or may not."""

    def imported() -> None:
        with guard:
            guard.lacking = guard.lacking or next(missing(SURFACE[guard.feature]), "")
        guard.enter(parts, lambda: _wrapped(guard, *wrappers()))

    with ExitStack() as parts, when_imported(module, imported):
        yield


@contextmanager
def _wrapped(guard: Guard, *wrappers: Wrapper) -> Iterator[None]:
    """Run ``work(call, *arguments)`` around functions.

    Our wrapper stays, and idles, where others have wrapped it.
    """
    is_on = True

    def while_on(work: Callable[..., Any]) -> Callable[..., Any]:
        def run(call: Callable[[], Any], *args: Any, **keywords: Any) -> Any:
            return work(call, *args, **keywords) if is_on else call()

        return run

    with ExitStack() as parts:
        for holder, name, work in wrappers:
            parts.enter_context(guard.replaced(holder, name, while_on(work)))
        try:
            yield
        finally:
            is_on = False
