#!/usr/bin/env bash
# A change of allocator settings at run time keeps most of those that it does not name; the snapshot shows only its text.
#
# Guess, written down before: a text given at run time replaces all settings, so that what it does not name has its
# default again and the text in a snapshot is all that was ever set.
# Seen (torch 2.15.0, the registry's build for Linux; no GPU is needed): max_split_size_mb, garbage_collection_threshold
# and roundup_power2_divisions return to their defaults; expandable_segments, the register threads of pinned memory and
# all others stay as the environment had them, also after an empty text. So "" does not switch expandable segments off,
# and a snapshot whose text is empty can be of a program with all of them on.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.15.0 numpy==2.4.6
cat >"$folder/changes.py" <<'PYTHON'
import torch

for text in (None, "max_split_size_mb:128", ""):
    if text is not None:
        torch._C._accelerator_setAllocatorSettings(text)
    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    print(
        repr(settings["PYTORCH_CUDA_ALLOC_CONF"] if text is not None else "environment"),
        settings["max_split_size"] // 2**20,
        settings["garbage_collection_threshold"],
        settings["expandable_segments"],
        settings["pinned_num_register_threads"],
    )
PYTHON
unset PYTORCH_ALLOC_CONF PYTORCH_HIP_ALLOC_CONF
conf=max_split_size_mb:64,garbage_collection_threshold:0.8,expandable_segments:True,pinned_num_register_threads:8
PYTORCH_CUDA_ALLOC_CONF=$conf "$folder/venv/bin/python" "$folder/changes.py" >"$folder/seen"
cat "$folder/seen"
diff - "$folder/seen" <<'SEEN'
'environment' 64 0.8 True 8
'max_split_size_mb:128' 128 0.0 True 8
'' -1 0.0 True 8
SEEN
