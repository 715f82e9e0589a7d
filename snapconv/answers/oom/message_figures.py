"""The figures of a text: of torch's out-of-memory messages of every era, and of memory_summary() tables.

    1.0 to 1.3  Tried to allocate A (GPU 0; B total capacity; C already allocated; D free; E cached)
    1.4 to 2.0  … D free; [F allowed; ]E reserved in total by PyTorch)
    2.1 on      Tried to allocate A. GPU 0 has a total capacity of B of which D is free. [processes]
                [F allowed; ]Of the allocated memory C is allocated by PyTorch, [with P allocated in private
                pools, ]and U is reserved by PyTorch but unallocated.

HIP, XPU, NPU and others have the same words; cudaMallocAsync and MPS have their own. Sizes have two decimals.
"""

import re
from dataclasses import dataclass

from snapconv.answers.oom.message_kinds import squeezed

# What stands before every line of a rank, a quotation, a container: `[rank0]: `, `(Worker pid=12) `, `E   `.
_PREFIX = re.compile(
    r"^[^\S\n]*(?:(?:\[[^\]\n]{1,40}\]:?|\([^)\n]{1,60}\)|\d{1,4}:|[E#>|]|"
    r"\d{4}-\d\d-\d\d[T ][\d:.,]{5,20}Z?)[ \t]+){1,4}",
    re.MULTILINE,
)
# Colours of terminals, frames of boxes, line breaks that were escaped, control characters.
_NOISE = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]|[\u2500-\u257f]|\\[nrt]|[\x00-\x08\x0e-\x1f]")
_POWERS = {"B": 0, "K": 10, "M": 20, "G": 30, "T": 40, "P": 50}
_SIZE = r"(\d{1,20}(?:\.\d{1,9})?)(bytes|[KMGTP]i?B|B)"
# cudaMallocAsync writes the largest number where no limit was set.
_NO_LIMIT = 1 << 60


def _sizes(*wordings: str) -> re.Pattern[str]:
    return squeezed("|".join(wordings).replace("{}", _SIZE))


def _row(name: str) -> re.Pattern[str]:
    """Match a row of a table, whose bars may have been taken for the mark of a quotation."""
    return squeezed(rf"{name} \|? {_SIZE} \|? {_SIZE}")


# Each field by its wordings; a text has those of its era.
_FIELDS = {
    "tried": _sizes("allocate {}", r"Requested(?: size)?: {}"),
    "total": _sizes("{} total capacity", "capaci?ty of {}", "Device limit: {}"),
    "free": _sizes(r"{} free[;)]", "of which {} is free", r"Free \(according to \w+\): {}"),
    "allocated": _sizes("{} already allocated", "{} is allocated by PyTorch", "Currently allocated: {}"),
    "unallocated": _sizes("{} is reserved by PyTorch but unallocated", "{} cached"),
    "reserved": _sizes("{} reserved in total by PyTorch", "MPS allocated: {}"),
    "private": _sizes("with {} allocated in private pools"),
    "allowed": _sizes("{} allowed;", "max allowed: {}", r"memory fraction\): {}"),
    "process": _sizes("this process has {} memory in use"),
    "metal": _sizes("other allocations: {}"),
}
_PROCESS = squeezed(rf"Process (\d{{1,9}}) has {_SIZE} memory in use")
_DEVICE = squeezed(r"(?:GPU|NPU|MLU|GCU|device) (\d{1,4})(?=has|;|would|\D{0,2}$)")
_TABLE = squeezed(r"CUDA memory summary, device ID (\d{1,4})")
_COUNTS = squeezed(r"CUDA OOMs: (\d{1,12}) \|? cudaMalloc retries: (\d{1,12})")
_ROWS = {
    "allocated": _row("Allocated memory"),
    "reserved": _row("GPU reserved memory"),
    "partly_used": _row("Non-releasable memory"),
}


@dataclass(frozen=True, slots=True)
class OomMessage:
    """The figures of one message; None: it does not have them. ``reserved_bytes`` includes what is allocated.

    ``allocated_bytes`` is what tensors hold; ``private_pool_bytes`` are free blocks of private pools, which
    torch counts as allocated in its text. ``metal_bytes`` is Metal memory outside torch's allocator (MPS).
    ``process_bytes`` is all that this process has on the device; where torch does not know its own process
    (in a container), all are in ``other_processes``, by their numbers.
    """

    device: int | None
    tried_bytes: int | None
    total_bytes: int | None
    free_bytes: int | None
    allocated_bytes: int | None
    reserved_bytes: int | None
    private_pool_bytes: int | None
    allowed_bytes: int | None
    metal_bytes: int | None
    process_bytes: int | None
    other_processes: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class MemorySummary:
    """The figures of a torch.cuda.memory_summary() table.

    ``partly_used_bytes`` are free bytes in segments that also hold live blocks: the table's non-releasable
    memory.
    """

    device: int
    n_ooms: int
    n_retries: int
    allocated_bytes: int
    peak_allocated_bytes: int
    reserved_bytes: int
    peak_reserved_bytes: int
    partly_used_bytes: int | None

    @property
    def empty_segment_bytes(self) -> int:
        """The bytes in segments without any live block."""
        return max(self.reserved_bytes - self.allocated_bytes - (self.partly_used_bytes or 0), 0)


def compact(text: str) -> str:
    """Remove white space from a text, and what terminals and launchers put between its words."""
    return "".join(_NOISE.sub(" ", _PREFIX.sub(" ", text)).split())


def read_message(text: str) -> OomMessage:
    """Read the figures of one message, whichever release wrote it; ``text`` has no white space."""
    found = {name: _size(pattern, text) for name, pattern in _FIELDS.items()}
    allocated, private, reserved = found["allocated"], found["private"], found["reserved"]
    if reserved is None and allocated is not None and found["unallocated"] is not None:
        reserved = allocated + found["unallocated"]
    device = _DEVICE.search(text)
    allowed = found["allowed"]
    return OomMessage(
        device=int(device[1]) if device else None,
        tried_bytes=found["tried"],
        total_bytes=found["total"],
        free_bytes=found["free"],
        allocated_bytes=None if allocated is None else max(allocated - (private or 0), 0),
        reserved_bytes=reserved,
        private_pool_bytes=private,
        allowed_bytes=None if allowed is None or allowed >= _NO_LIMIT else allowed,
        metal_bytes=found["metal"],
        process_bytes=found["process"],
        other_processes=tuple(
            (int(pid), size_of(number, unit)) for pid, number, unit in _PROCESS.findall(text)
        ),
    )


def read_summary(text: str) -> MemorySummary | None:
    """Read the first memory_summary() table; ``text`` has no white space."""
    begin = _TABLE.search(text)
    if not begin:
        return None
    counts = _COUNTS.search(text, begin.start())
    rows = {name: row.search(text, begin.start()) for name, row in _ROWS.items()}
    allocated, reserved, partly_used = rows["allocated"], rows["reserved"], rows["partly_used"]
    if not (counts and allocated and reserved):
        return None
    return MemorySummary(
        device=int(begin[1]),
        n_ooms=int(counts[1]),
        n_retries=int(counts[2]),
        allocated_bytes=size_of(*allocated.group(1, 2)),
        peak_allocated_bytes=size_of(*allocated.group(3, 4)),
        reserved_bytes=size_of(*reserved.group(1, 2)),
        peak_reserved_bytes=size_of(*reserved.group(3, 4)),
        partly_used_bytes=size_of(*partly_used.group(1, 2)) if partly_used else None,
    )


def size_of(number: str, unit: str = "") -> int:
    """Return the bytes of a number and its unit, which may end the number; torch's GB of old are GiB."""
    digits = number.rstrip("bytesKMGTPiB")
    return round(float(digits) * (1 << _POWERS[(unit or number[len(digits) :] or "B")[0].upper()]))


def _size(pattern: re.Pattern[str], text: str) -> int | None:
    """Read the size that the first wording in a text gives."""
    found = pattern.search(text)
    if not found:
        return None
    number, unit = (group for group in found.groups() if group is not None)
    return size_of(number, unit)
