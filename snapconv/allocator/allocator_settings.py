"""The allocator's settings, and the size rules that depend on nothing else.

They are read from the text of PYTORCH_ALLOC_CONF and from a snapshot. Has no blocks, pools or addresses. The
rules are those of torch 2.1 to 2.13; each names its place in torch. replay/rounding.py has them for columns.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from snapconv.errors import SettingError
from snapconv.units import shown

KIB = 1024
MIB = 1024 * KIB

# c10/core/AllocatorConfig.h (before 2.9: the head of c10/cuda/CUDACachingAllocator.cpp).
MIN_BLOCK_BYTES = 512
SMALL_REQUEST_BYTES = 1 * MIB  # the largest rounded request that the small pools serve
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB
MIN_OWN_SEGMENT_BYTES = 10 * MIB  # from here on, a request gets a segment of its own size
SEGMENT_GRANULE_BYTES = 2 * MIB
NPU_PADDING_BYTES = 32  # what torch_npu adds to every request (round_size in NPUCachingAllocator.cpp)

N_ROUNDUP_INTERVALS = 16  # 1 MiB, 2 MiB, 4 MiB … 32 GiB and above
NO_ROUNDUP = (0,) * N_ROUNDUP_INTERVALS
_MAX_DIVISIONS = 2**31 - 1  # torch reads them with stoi


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """Everything that PYTORCH_ALLOC_CONF can change about where blocks go.

    ``max_split_size_bytes`` None means unlimited. ``roundup_power2_divisions`` has one entry per power
    of two from 1 MiB on; 0 and 1 switch the rounding off. ``padding_bytes`` are added to every request
    before it is rounded: 0 in torch, 32 in torch_npu. ``memory_fraction`` is the part of the device that
    the process may have; less than 1 and a ``garbage_collection_threshold`` above 0 switch the collection
    of unused segments on. ``conf`` is the text that the settings come from.
    """

    max_split_size_bytes: int | None = None
    max_non_split_rounding_bytes: int = LARGE_SEGMENT_BYTES
    large_segment_bytes: int = LARGE_SEGMENT_BYTES
    roundup_power2_divisions: tuple[int, ...] = NO_ROUNDUP
    expandable_segments: bool = False
    padding_bytes: int = 0
    memory_fraction: float = 1.0
    garbage_collection_threshold: float = 0.0
    conf: str = ""

    @classmethod
    def from_conf(cls, conf: str) -> "AllocatorSettings":
        """Read the text of PYTORCH_ALLOC_CONF; options that do not move blocks are skipped."""
        return cls().changed(conf)

    def changed(self, conf: str) -> "AllocatorSettings":
        """Return these settings with those replaced that a text as in PYTORCH_ALLOC_CONF names."""
        values = split_conf(conf)
        found = replace(self, conf=conf)
        for name, (fields, read) in _READERS.items():
            if name in values:
                found = replace(found, **dict.fromkeys(fields, read(name, values[name], found)))
        return found

    def with_snapshot_values(self, values: Mapping[str, object]) -> "AllocatorSettings":
        """Return these settings with the values that a snapshot has under its keys for them.

        Raises ValueError with the path below ``values``, as in ``max_split_size: expected int, got str``.
        """
        threshold = values.get("garbage_collection_threshold")
        return replace(
            self,
            max_split_size_bytes=_split_size_of_snapshot(values.get("max_split_size")),
            garbage_collection_threshold=(
                threshold if isinstance(threshold, float) and 0 <= threshold < 1 else 0.0
            ),
            expandable_segments=values.get("expandable_segments") is True,
            roundup_power2_divisions=_divisions_of_snapshot(values.get("roundup_power2_divisions")),
        )

    def round_size(self, n_bytes: int) -> int:
        """Round a request up to a block size (round_size in CUDACachingAllocator.cpp)."""
        n_bytes += self.padding_bytes
        if n_bytes < MIN_BLOCK_BYTES:
            return MIN_BLOCK_BYTES
        # Everything below 2 MiB falls into the first interval, everything from 32 GiB into the last.
        interval = min(max(n_bytes.bit_length() - MIB.bit_length(), 0), N_ROUNDUP_INTERVALS - 1)
        divisions = self.roundup_power2_divisions[interval]
        if divisions > 1 and n_bytes > MIN_BLOCK_BYTES * divisions:
            # To the next of as many equal steps, of 512 bytes or more, between two powers of two.
            return _round_up(n_bytes, (1 << (n_bytes.bit_length() - 1)) // divisions)
        return _round_up(n_bytes, MIN_BLOCK_BYTES)

    def segment_size(self, block_bytes: int) -> int:
        """Return the size of the cudaMalloc that serves a rounded request (get_allocation_size)."""
        if block_bytes <= SMALL_REQUEST_BYTES:
            return SMALL_SEGMENT_BYTES
        if block_bytes < MIN_OWN_SEGMENT_BYTES:
            return self.large_segment_bytes
        return _round_up(block_bytes, SEGMENT_GRANULE_BYTES)

    def page_size(self, *, is_small: bool) -> int:
        """Return the granule in which an expandable segment of that pool grows."""
        return SMALL_SEGMENT_BYTES if is_small else self.large_segment_bytes

    def should_split(self, free_bytes: int, block_bytes: int, *, is_small: bool) -> bool:
        """Return whether the rest of a free block is cut off and kept (should_split).

        The setting counts, not the segment: with expandable segments switched on, an existing
        ordinary segment is split as finely.
        """
        remaining = free_bytes - block_bytes
        if is_small or self.expandable_segments:
            return remaining >= MIN_BLOCK_BYTES
        return not self.is_oversize(block_bytes) and remaining > SMALL_REQUEST_BYTES

    def is_oversize(self, n_bytes: int) -> bool:
        """Return whether a size is at or above max_split_size."""
        return self.max_split_size_bytes is not None and n_bytes >= self.max_split_size_bytes

    def as_snapshot(self) -> dict[str, object]:
        """Write the settings as the ``allocator_settings`` of torch 2.13, the others at their defaults."""
        limit = self.max_split_size_bytes
        return {
            "PYTORCH_CUDA_ALLOC_CONF": self.conf,
            "max_split_size": -1 if limit is None else limit,
            "garbage_collection_threshold": self.garbage_collection_threshold,
            "expandable_segments": self.expandable_segments,
            "pinned_num_register_threads": 1,
            "release_lock_on_cudamalloc": False,
            "pinned_use_cuda_host_register": False,
            "graph_capture_record_stream_reuse": False,
            "roundup_power2_divisions": {
                str(1 << i): divisions for i, divisions in enumerate(self.roundup_power2_divisions)
            },
            "max_round_threshold": 0,
            "max_cached_size": 0,
        }


def _round_up(n_bytes: int, granule: int) -> int:
    return -(-n_bytes // granule) * granule


def split_conf(conf: str) -> dict[str, str]:
    """Split ``key:value,key:[a:b,c:d]`` at the commas outside brackets."""
    text = "".join(conf.split())
    values: dict[str, str] = {}
    depth = start = 0
    for i, char in enumerate(text + ","):
        depth += (char == "[") - (char == "]")
        if char == "," and depth == 0:
            if item := text[start:i]:
                key, colon, value = item.partition(":")
                if not colon or not value:
                    raise SettingError(f"allocator settings: expected key:value, got {item!r}")
                values[key] = value
            start = i + 1
    return values


def _megabytes(name: str, text: str, settings: AllocatorSettings) -> int:
    at_least = 11 if name == "large_segment_size_mb" else settings.large_segment_bytes // MIB
    megabytes = _integer(text, name)
    if megabytes < at_least:
        raise SettingError(f"allocator settings: {name} must be {at_least} or more, got {megabytes}")
    return megabytes * MIB


def _fraction(name: str, text: str, _settings: AllocatorSettings) -> float:
    may_be_1 = name == "per_process_memory_fraction"
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (0 <= number < 1 or (number == 1 and may_be_1)):
        bounds = "from 0 to 1" if may_be_1 else "at least 0 and below 1"
        raise SettingError(f"allocator settings: {name} must be {bounds}, got {text!r}")
    return number


def _integer(text: str, key: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise SettingError(f"allocator settings: {key} needs an integer, got {text!r}") from None


def _divisions(_name: str, text: str, _settings: AllocatorSettings) -> tuple[int, ...]:
    """Read one number for all intervals, or ``[256:1,512:2,>:8]`` (parseRoundUpPower2Divisions).

    As in torch, the first entry also applies to all smaller sizes, ``>`` applies to all sizes above
    the last one named (that one included before torch 2.9), and sizes between two named ones keep 0.
    """
    if not text.startswith("["):
        return (_power_of_two(text),) * N_ROUNDUP_INTERVALS
    divisions = list(NO_ROUNDUP)
    last = 0
    for i, pair in enumerate(text.strip("[]").split(",")):
        bound, _, value = pair.partition(":")
        count = _power_of_two(value)
        if bound == ">":
            divisions[last + 1 :] = [count] * (N_ROUNDUP_INTERVALS - last - 1)
            continue
        last = min(max(_power_of_two(bound).bit_length() - 1, 0), N_ROUNDUP_INTERVALS - 1)
        divisions[0 if i == 0 else last : last + 1] = [count] * (last + 1 if i == 0 else 1)
    return tuple(divisions)


def _power_of_two(text: str) -> int:
    number = _integer(text, "roundup_power2_divisions")
    if number < 0 or number & (number - 1):
        raise SettingError(f"allocator settings: {number} is neither 0 nor a power of two")
    return number


# --- values of a snapshot


def _split_size_of_snapshot(value: object) -> int | None:
    """Read a limit; -1, or SIZE_MAX where an unsigned type was written, is unlimited."""
    if value is None:
        return None
    if type(value) is not int:
        raise ValueError(f"max_split_size: expected int, got {type(value).__name__}")
    return value if 0 <= value < 1 << 63 else None


def _divisions_of_snapshot(value: object) -> tuple[int, ...]:
    if value is None:
        return NO_ROUNDUP
    if type(value) is not dict:
        raise ValueError(f"roundup_power2_divisions: expected dict, got {type(value).__name__}")
    divisions = []
    for i in range(N_ROUNDUP_INTERVALS):
        count = value.get(str(1 << i), 0)
        path = f"roundup_power2_divisions.{1 << i}"
        if type(count) is not int:
            raise ValueError(f"{path}: expected int, got {type(count).__name__}")
        if not 0 <= count <= _MAX_DIVISIONS:
            raise ValueError(f"{path}: expected 0 to 2^31 - 1, got {shown(str(count))}")
        divisions.append(count)
    return tuple(divisions)


# --- the readers of a text, in the order in which they are applied; all other settings move no blocks

_READERS: dict[str, tuple[tuple[str, ...], Callable[[str, str, AllocatorSettings], Any]]] = {
    # The size of blocks that are not split follows that of large segments.
    "large_segment_size_mb": (("large_segment_bytes", "max_non_split_rounding_bytes"), _megabytes),
    "max_non_split_rounding_mb": (("max_non_split_rounding_bytes",), _megabytes),
    "max_split_size_mb": (("max_split_size_bytes",), _megabytes),
    "per_process_memory_fraction": (("memory_fraction",), _fraction),
    # 0 switches collection off, as leaving it out does.
    "garbage_collection_threshold": (("garbage_collection_threshold",), _fraction),
    "expandable_segments": (("expandable_segments",), lambda _name, text, _settings: text == "True"),
    "roundup_power2_divisions": (("roundup_power2_divisions",), _divisions),
}
MODELLED_SETTINGS = tuple(sorted(_READERS))
