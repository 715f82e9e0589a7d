"""A program of tests/ecosystem as its author would have written it for the CPU: the baseline of a recording.

The text of the program is changed where it names the device, and nowhere else.
"""

import re
import shutil
from pathlib import Path

from tests.ecosystem.catalogue import PROGRAMS_FOLDER, Program
from tests.ecosystem.recorded_program import copy_program

# What is written for a GPU, and what stands there for the CPU.
_ON_THE_CPU = (
    (r'"cuda(:0)?"', '"cpu"'),
    (r'"gpu"', '"cpu"'),
    (r"\.cuda\(\)", ".cpu()"),
    (r"\.is_cuda\b", ".is_cpu"),
    (r"\.pin_memory\(\)", ""),
    (r"bf16=True", "bf16=True, use_cpu=True"),  # of transformers
    (r'nullcontext\(\) if device_type == "cpu" else ', ""),  # of nanoGPT: the same element types
    (r"devices=\[0\]", "devices=1"),  # of Lightning
    (r'"nccl"', '"gloo"'),
    (r"torch\.cuda\.set_device\(.*\)", "pass"),
    (r"torch\.cuda\.current_device\(\)", 'torch.device("cpu")'),  # of FSDP
    (r"device_ids=\[.*\]", "device_ids=None"),  # of DistributedDataParallel
    (r'int\(os\.environ\["LOCAL_RANK"\]\)', '"cpu"'),
)
# While values are computed, a recording runs compiled code as it is written: so does the program
# beside it.
_AS_WRITTEN = {"TORCHDYNAMO_DISABLE": "1"}


def copy_for_the_cpu(program: Program, folder: Path) -> None:
    """Copy a program into a folder that must not exist, with the CPU for its device."""
    copy_program(program, folder)
    shutil.copy(PROGRAMS_FOLDER / "own_count.py", folder)
    for path in folder.glob("*.py"):
        path.write_text(for_the_cpu(path.read_text(encoding="utf-8")), encoding="utf-8")


def for_the_cpu(source: str) -> str:
    """Return the text of a program with the CPU for its device."""
    for pattern, instead in _ON_THE_CPU:
        source = re.sub(pattern, instead, source)
    return source


def plain_environment(program: Program) -> dict[str, str]:
    """Return what must be set for the program beside what the catalogue sets."""
    return {**program.environment, **(_AS_WRITTEN if program.is_compiled else {})}
