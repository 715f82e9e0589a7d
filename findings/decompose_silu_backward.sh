#!/usr/bin/env bash
# silu's and mish's backward say that they can be decomposed, though they have kernels: decomposed, they make many tensors.
#
# Guess, written down before in the docstring of our own dispatch mode: what says `_can_decompose()` is an operation of
# parts (CompositeImplicitAutograd), such as `to` and `linear`, which a device only ever runs by its parts.
# Seen (torch 2.13.0, CPU): aten.silu_backward and aten.mish_backward have a kernel of the CPU and parts beside it. Plain
# torch runs each as one operation, which makes one tensor; a TorchDispatchMode that decomposes whatever says that it can
# sees eight and eleven operations. A mode that sums memory so finds too high a peak in backward of every model with SiLU.
# Of all operations of torch, aten.native_channel_shuffle alone is like these two.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cat >"$folder/parts.py" <<'PYTHON'
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key


class Results(TorchDispatchMode):
    """Count the operations that make a tensor, and decompose those that say that they can, if told to."""

    def __init__(self, decomposes):
        super().__init__()
        self.decomposes, self.n = decomposes, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if self.decomposes and func._can_decompose():
            with self:
                return func.decompose(*args, **(kwargs or {}))
        self.n += 1
        return func(*args, **(kwargs or {}))


def n_results(function, decomposes):
    """Return how many operations the backward of a function runs."""
    x = torch.ones(4, requires_grad=True)
    result, gradient = function(x), torch.ones(4)
    with Results(decomposes) as results:
        torch.autograd.grad(result, x, gradient)
    return results.n


both = [
    name
    for name in torch._C._dispatch_get_all_op_names()
    if name.startswith("aten::") and has_kernel(name, "CPU") and has_kernel(name, "CompositeImplicitAutograd")
]
print("a kernel of the CPU and parts:", *sorted(both))
counts = {f.__name__: (n_results(f, False), n_results(f, True)) for f in (F.silu, F.mish, F.gelu)}
print("operations in backward, plain and decomposed:", counts)
assert sorted(both) == ["aten::mish_backward", "aten::native_channel_shuffle", "aten::silu_backward"]
assert counts == {"silu": (1, 8), "mish": (1, 11), "gelu": (1, 1)}
PYTHON
"$folder/venv/bin/python" "$folder/parts.py"
