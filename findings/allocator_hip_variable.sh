#!/usr/bin/env bash
# A CUDA build obeys PYTORCH_HIP_ALLOC_CONF in part: it takes the options of all devices, and does not read those of CUDA.
#
# Guess, written down before: a CUDA build ignores the variable for AMD's cards, or reads it as a whole.
# Seen (torch 2.15.0, the registry's build for Linux; no GPU is needed): it hides PYTORCH_ALLOC_CONF and stands in the
# snapshot as the text in force. Its max_split_size_mb holds; its pinned_num_register_threads is neither set nor checked,
# although 3 is refused elsewhere; such options come from the hidden PYTORCH_ALLOC_CONF. So a shell that exports the same
# settings for both makes of cards gets half of them, and a snapshot shows a text that holds only in part.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.15.0 numpy==2.4.6
cat >"$folder/settings.py" <<'PYTHON'
import torch

settings = torch.cuda.memory._snapshot()["allocator_settings"]
print(settings["PYTORCH_CUDA_ALLOC_CONF"], settings["max_split_size"] >> 20, settings["pinned_num_register_threads"])
PYTHON
unset PYTORCH_CUDA_ALLOC_CONF PYTORCH_HIP_ALLOC_CONF PYTORCH_ALLOC_CONF
{
    PYTORCH_HIP_ALLOC_CONF=max_split_size_mb:64,pinned_num_register_threads:3 \
        "$folder/venv/bin/python" "$folder/settings.py"
    PYTORCH_HIP_ALLOC_CONF=max_split_size_mb:64 PYTORCH_ALLOC_CONF=max_split_size_mb:128,pinned_num_register_threads:8 \
        "$folder/venv/bin/python" "$folder/settings.py"
    PYTORCH_ALLOC_CONF=pinned_num_register_threads:3 "$folder/venv/bin/python" "$folder/settings.py" 2>"$folder/error" ||
        grep -o 'power of 2, got 3' "$folder/error" | head -n 1
} >"$folder/seen"
cat "$folder/seen"
diff - "$folder/seen" <<'SEEN'
max_split_size_mb:64,pinned_num_register_threads:3 64 1
max_split_size_mb:64 64 8
power of 2, got 3
SEEN
