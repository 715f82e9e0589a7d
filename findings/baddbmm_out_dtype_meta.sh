#!/usr/bin/env bash
# torch.baddbmm with out_dtype fails on the meta device, where mm, bmm and addmm with out_dtype give the result's shape.
#
# Guess, written down before: all four products that take out_dtype know the shape and type of their result without
# values, since a graph of shapes (a meta tensor, FakeTensorMode, torch.compile) is made before any card is there.
# Seen (torch 2.13.0, the registry's build): mm, bmm and addmm return a float32 tensor of the right shape; baddbmm raises
# a TypeError, as the decomposition takes the type in third place for the factor beta and multiplies by it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cat >"$folder/products.py" <<'PYTHON'
import torch

halves = torch.empty(2, 3, 3, dtype=torch.bfloat16, device="meta")
sums = torch.empty(2, 3, 3, device="meta")
calls = {
    "mm": (halves[0], halves[0]),
    "bmm": (halves, halves),
    "addmm": (sums[0], halves[0], halves[0]),
    "baddbmm": (sums, halves, halves),
}
for name, tensors in calls.items():
    try:
        print(name, getattr(torch, name)(*tensors, out_dtype=torch.float32).dtype)
    except TypeError as error:
        print(name, "TypeError", error)
PYTHON
seen=$("$folder/venv/bin/python" "$folder/products.py")
echo "$seen"
[ "$seen" = "mm torch.float32
bmm torch.float32
addmm torch.float32
baddbmm TypeError unsupported operand type(s) for *: 'Tensor' and 'torch.dtype'" ]
