"""Frames that are one text.

torch.profiler writes `model.py(33): forward`, torch 2.0 wrote `model.py:33:forward`.
"""

import re
import sys

# The file that profile_plot gives such frames.
NO_FILE = "none"
_FRAMES = (
    re.compile(r"\A(?P<file>[^\n]+)\((?P<line>\d{1,9})\): (?P<name>[^\n]+)"),
    re.compile(r"\A(?P<file>[^\n]+?):(?P<line>\d{1,9}):(?P<name>[^\n]*)"),
)
# The group leaves out the address of the object, which is another in every run.
_BUILT_IN = re.compile(r"<built-in (?:method|function) (\w+)\b.*>")
# A call of a module, by its class and a number: what calls is in torch.
_MODULE_CALL, _MODULE_FILE = "nn.Module: ", "site-packages/torch/nn/modules/module.py"
# The profiler cuts the folders of Python's path off, which hides that a package is installed.
_INSTALLED = {
    "torch", "torchvision", "torchaudio", "transformers", "accelerate", "lightning",
    "pytorch_lightning", "diffusers", "deepspeed", "peft", "timm", "numpy", "tqdm",
}  # fmt: skip


def split_frame(text: str) -> tuple[str, str, int]:
    """Return the function's name, the file and the line of a frame."""
    for pattern in _FRAMES:
        match = pattern.fullmatch(text)
        if match:
            return match["name"], _path(match["file"]), int(match["line"])
    if text.startswith(_MODULE_CALL):
        return text, _MODULE_FILE, 0
    return _BUILT_IN.sub(r"\1", text), "<torch>", 0


def _path(file: str) -> str:
    package = file.partition("/")[0].removesuffix(".py")
    if package in _INSTALLED:
        return f"site-packages/{file}"
    return f"lib/python3.0/{file}" if package in sys.stdlib_module_names else file
