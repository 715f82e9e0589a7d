#!/usr/bin/env bash
# The product with weights of 4 bits has a meta function that fails on meta tensors: AttributeError, not a shape.
#
# Guess, written down before: an operation that is registered for the meta device gives the shape of its result there, as
# who plans a quantized model with `torch.device("meta")` expects.
# Seen (torch 2.13.0 and 2.15.0): `_weight_int4pack_mm` asks its weight for `fake_device`, which only a FakeTensor has, and
# raises AttributeError for a plain tensor on the meta device; under FakeTensorMode the same call gives [4, 64].
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cat >"$folder/product.py" <<'PYTHON'
import torch
from torch._subclasses.fake_tensor import FakeTensorMode


def multiply(device: str) -> str:
    """Multiply 4 x 256 by 64 x 256 in groups of 128, packed as CUDA wants it."""
    left = torch.empty(4, 256, dtype=torch.bfloat16, device=device)
    packed = torch.empty(8, 16 // 2, 32, 4, dtype=torch.int32, device=device)
    scales = torch.empty(2, 64, 2, dtype=torch.bfloat16, device=device)
    try:
        return str(list(torch._weight_int4pack_mm(left, packed, 128, scales).shape))
    except (AttributeError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"


on_meta = multiply("meta")
with FakeTensorMode():
    faked = multiply("cuda")
print(f"{on_meta} | {faked}")
PYTHON
answers=$("$folder/venv/bin/python" "$folder/product.py" 2>/dev/null)
echo "$answers"
[ "$answers" = "AttributeError: 'Tensor' object has no attribute 'fake_device' | [4, 64]" ]
