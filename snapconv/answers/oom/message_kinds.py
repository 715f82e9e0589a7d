"""Texts about memory that ran out: those of torch's allocator, and every other kind, one row each.

Patterns are searched in a text without white space, so that no line break of a terminal hides a match, and in
small letters; the spaces and capital letters in them are for the reader. The order of the rows decides
between two that begin at the same place.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from snapconv.answers.oom.message_table import TABLE
from snapconv.answers.oom.message_text import squeezed
from snapconv.answers.oom.verdict import OomCause
from snapconv.torch_knowledge.backends import BACKENDS

# The begin of a message of torch's allocator, not of a chip; the second is cudaMallocAsync's.
BACKEND_NAMES = {name.lower(): name for name in (*BACKENDS, "OpenCL")}
BEGINNINGS = squeezed(
    rf"(?<!c)(?P<backend>{'|'.join(BACKEND_NAMES)})(?: backend)? out of memory|"
    r"Allocation on device -?\d{0,3} would exceed allowed memory"
)

NEXT_STEPS = {
    OomCause.FULL: "{less}; {watch}",
    OomCause.FRAGMENTED: "{expandable}",
    OomCause.OTHER_POOL: "let CUDA graphs share a pool (torch.cuda.graph(..., pool=...)), or capture fewer",
    OomCause.LIMIT: "raise or remove the limit: set_per_process_memory_fraction(), or {variable}",
    OomCause.OUTSIDE: "stop the other processes that `{monitor}` shows, or use another device",
    OomCause.TOO_LARGE: "look at the shapes in the traceback's last line of your code",
    OomCause.UNKNOWN: "run it again with `{monitor}` beside it; {watch}",
}
# Where nothing else of the process can have it: the rest is of a library in the same process.
SAME_PROCESS = (
    "limit the other library in this process: JAX (XLA_PYTHON_CLIENT_PREALLOCATE=false), TensorFlow "
    "(set_memory_growth), CuPy, or a server's own pool"
)
# Of a table in which much more was active than allocated.
WAITED = (
    "wait for the other stream's work before a buffer is dropped, or use one stream; before torch 2.8 "
    "TORCH_NCCL_AVOID_RECORD_STREAMS=1 for what NCCL uses"
)
# Releases before 2.1 have no expandable segments; the setting is from 1.10.
BEFORE_EXPANDABLE = (
    "set {variable}=max_split_size_mb:128 (this torch is older than 2.1; newer ones have "
    "expandable_segments:True, which is better)"
)
# Intel's drivers allow no larger block on many devices; torch does not say so.
LARGE_BLOCK = (
    "NOT allocate memory block with size larger than 4 ?GB",
    OomCause.LIMIT,
    "one block is larger than the 4 GiB that Intel's driver allows on many devices, whatever is free",
    "smaller tensors: a smaller batch, or the work in pieces",
)
# What torch adds in rare cases: the cause, whatever the figures are.
WORDS = (
    (
        "would exceed per_process_memory_fraction",
        OomCause.LIMIT,
        "stopped by per_process_memory_fraction, before the driver was called",
        NEXT_STEPS[OomCause.LIMIT],
    ),
    (
        "allocate more than 1EB",
        OomCause.TOO_LARGE,
        "more than 2^60 bytes were requested: a size was computed wrongly, or is negative",
        NEXT_STEPS[OomCause.TOO_LARGE],
    ),
    (
        "exceeds the expandable-segment reserve",
        OomCause.LIMIT,
        "the request is larger than the address range of an expandable segment",
        "raise expandable_segments_reserve in {variable}, or leave it out",
    ),
    (
        "allocator backing this MemPool returned nullptr",
        OomCause.UNKNOWN,
        "the allocator of a torch.cuda.MemPool refused, whatever the device has free",
        "look for that allocator's own warnings further up in the log",
    ),
    LARGE_BLOCK,
)
MPS_LIMIT = (
    "a smaller batch or sequence; a higher PYTORCH_MPS_HIGH_WATERMARK_RATIO may make the system fail, as "
    "torch warns"
)


# Where a program was when its request failed, by the last of these frames above the message: what then grows
# or shrinks the memory that it needs.
LESS = (
    "a smaller batch or shorter sequences (while weights are loaded, or in optimizer.step(), neither helps)"
)
PHASES = (
    (
        r",line\d{1,6},in (?:_apply|_load_state_dict|_load_parameter|set_module_tensor_to_device|"
        r"load_checkpoint|caching_allocator_warmup|create_weights|initialize_model|load_model|process_weights)",
        "load the weights in fewer bytes (bf16, 8 or 4 bits), or spread them over GPUs or the CPU: a smaller "
        "batch does not help while weights are loaded",
    ),
    (
        r"optim\w{0,12}/\w{1,40}\.py\"?,line\d{1,6},in (?:step|_init_group|_single|_multi|_fused|"
        r"\w{1,20}adam)|in initialize_optimizer_states",
        "an optimizer with smaller states (8 bits), or sharded ones (FSDP, ZeRO): a smaller batch does not "
        "make states smaller",
    ),
    (
        r",line\d{1,6},in (?:backward|_engine_run_backward)|run_backward\(",
        "a smaller batch or shorter sequences, or activation checkpointing",
    ),
    (
        r",line\d{1,6},in (?:generate|_sample|_?beam_search|_?greedy_search|_prefill)",
        "fewer or shorter sequences at once, under torch.no_grad(): the KV cache grows with them",
    ),
)


@dataclass(frozen=True, slots=True)
class FigureName:
    """A figure that a text may have: its noun, and its unit, by which its number is found and written."""

    noun: str
    unit: str = "bytes"


_NUMBERS = {
    "size": r"\d{1,20}(?:\.\d{1,9})?(?:bytes|[KMGTP]i?B|B)",
    "bytes": r"\d[\d,]{0,20}(?:\.\d{1,9})?(?:bytes?|[KMGTP]i?B|B)?",
    "GiB": r"\d{1,9}(?:\.\d{1,9})?",
    "tokens": r"\d[\d,]{0,15}",
    "requests": r"\d{1,9}",
    "number": r"\d{1,9}",
    "share": r"\d?\.\d{1,6}|\d",
    "shape": r"\[[\d,]{1,200}\]",
    "name": r"float|half|bfloat16|double|bool|string|u?int\d{1,2}|complex\d{2,3}",
}
# ``tried`` and ``device`` are fields of OomMessage; the others have rows of their own.
FIGURES = {
    "tried": FigureName("requested"),
    "free": FigureName("free on the device"),
    "total": FigureName("the whole device"),
    "allocated": FigureName("allocated"),
    "reserved": FigureName("reserved"),
    "allowed": FigureName("allowed"),
    "device": FigureName("device", "number"),
    "shape": FigureName("shape", "shape"),
    "type": FigureName("type", "name"),
    "needed": FigureName("needed"),
    "available": FigureName("available"),
    "lacking": FigureName("short"),
    "wanted": FigureName("wanted by the setting"),
    "limit": FigureName("the limit"),
    "missing": FigureName("missing"),
    "rounded": FigureName("requested, rounded"),
    "weights": FigureName("weights"),
    "before": FigureName("free before"),
    "after": FigureName("free when it failed"),
    "used": FigureName("used"),
    "peak": FigureName("allocated at most"),
    "process": FigureName("held by the process"),
    "free_gib": FigureName("free on the device", "GiB"),
    "total_gib": FigureName("the whole device", "GiB"),
    "used_gib": FigureName("used", "GiB"),
    "utilization": FigureName("the setting's share", "share"),
    "length": FigureName("asked for", "tokens"),
    "fits": FigureName("fit", "tokens"),
    "missing_tokens": FigureName("short", "tokens"),
    "prefill": FigureName("of them prefill", "tokens"),
    "requests": FigureName("in the trial run", "requests"),
    "part": FigureName("part", "name"),
}
# What placeholders of the table stand for: a text that several rows share, or a figure's pattern.
_PLACEHOLDER = re.compile(r"(?<!\?P)<(\w{1,30})>")
_SHARED = {
    "watch": "a smaller batch or model; `snapconv watch train.py` shows what torch holds, `nvidia-smi` what "
    "others hold",
    "less_of_step": LESS,
    "less": "leave room: a smaller batch, or torch.cuda.set_per_process_memory_fraction(0.9)",
    "host": "fewer DataLoader workers, a smaller prefetch_factor, or more memory for the job; `free -g` "
    "while it runs",
    "shapes": NEXT_STEPS[OomCause.TOO_LARGE],
    **{name: f"(?P<{name}>{_NUMBERS[figure.unit]})" for name, figure in FIGURES.items()},
}


@dataclass(frozen=True, slots=True)
class MessageKind:
    """A text that is not of torch's allocator, by its row of the table: ``parts`` by their keys."""

    name: str
    parts: Mapping[str, tuple[str, ...]]

    def all(self, *keys: str) -> tuple[str, ...]:
        """Return every part of some keys."""
        return tuple(part for key in keys for part in self.parts.get(key, ()))

    def one(self, key: str, usual: str = "") -> str:
        """Return the part of a key that a row has once."""
        return self.parts.get(key, (usual,))[0]


_ROW, _PART = re.compile(r"\n(?! )"), re.compile(r"\n {4}(?! )")


def _text_of(placeholder: re.Match[str]) -> str:
    name = placeholder[1]
    return _SHARED.get(name, f"(?P<{name}>{_NUMBERS['size']})")


def _kinds(table: str) -> Iterator[MessageKind]:
    for row in _ROW.split(_PLACEHOLDER.sub(_text_of, table).strip()):
        name, *parts = _PART.split(row)
        texts: dict[str, tuple[str, ...]] = {}
        for word, *rest in map(str.split, parts):
            texts[word] = (*texts.get(word, ()), " ".join(rest))
        yield MessageKind(name, texts)


ALLOCATOR, *MESSAGE_KINDS = _kinds(TABLE)
SUMMARY = MESSAGE_KINDS[-2]
