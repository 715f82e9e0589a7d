"""Frames that are one text: of torch.profiler `model.py(33): forward`, of torch 2.0 `model.py:33:forward`."""

import re
import sys

# The file that profile_plot gives such frames.
NO_FILE = "none"
_FRAMES = (
    re.compile(r"\A(?P<file>[^\n]+)\((?P<line>\d{1,9})\): (?P<name>[^\n]+)"),
    re.compile(r"\A(?P<file>[^\n]+?):(?P<line>\d{1,9}):(?P<name>[^\n]*)"),
)
# Without the address of the object, which is another in every run.
_BUILT_IN = re.compile(r"<built-in (?:method|function) (\w+)\b.*>")
# The profiler cuts the folders of Python's path off, which hides what was installed.
_INSTALLED = {
    "torch", "torchvision", "torchaudio", "transformers", "accelerate", "lightning", "pytorch_lightning",
    "diffusers", "deepspeed", "peft", "timm", "numpy", "tqdm",
}  # fmt: skip


def split_frame(text: str) -> tuple[str, str, int]:
    """Return the function's name, the file and the line of a frame."""
    for pattern in _FRAMES:
        if found := pattern.fullmatch(text):
            return found["name"], _path(found["file"]), int(found["line"])
    return _BUILT_IN.sub(r"\1", text), "<torch>", 0


def _path(file: str) -> str:
    package = file.partition("/")[0].removesuffix(".py")
    if package in _INSTALLED:
        return f"site-packages/{file}"
    return f"lib/python3.0/{file}" if package in sys.stdlib_module_names else file
