#!/usr/bin/env bash
# Allocator settings that torch refuses at run time hold in part, and a snapshot shows the refused text.
#
# Guess, written down before: where the call raises ValueError, the settings are as before it.
# Seen (torch 2.15.0, the registry's build for Linux; no GPU is needed): what stands before the wrong value holds from
# then on, and limits that the text does not name are gone. A program that tries settings and catches the error, as for
# an option that an older release lacks, goes on with other settings than before.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.15.0 numpy==2.4.6
cat >"$folder/refused.py" <<'PYTHON'
import torch


def settings():
    values = torch.cuda.memory._snapshot()["allocator_settings"]
    return values["PYTORCH_CUDA_ALLOC_CONF"], values["max_split_size"] // 2**20, values["garbage_collection_threshold"]


print(*settings())
try:
    torch._C._accelerator_setAllocatorSettings("max_split_size_mb:128,no_such_option:1")
except ValueError as error:
    print(str(error).splitlines()[0])
print(*settings())
PYTHON
unset PYTORCH_ALLOC_CONF PYTORCH_HIP_ALLOC_CONF
PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64,garbage_collection_threshold:0.8 \
    "$folder/venv/bin/python" "$folder/refused.py" >"$folder/seen"
cat "$folder/seen"
diff - "$folder/seen" <<'SEEN'
max_split_size_mb:64,garbage_collection_threshold:0.8 64 0.8
Unrecognized key 'no_such_option' in Accelerator allocator config.
max_split_size_mb:128,no_such_option:1 128 0.0
SEEN
