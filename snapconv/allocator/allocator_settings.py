"""The allocator's settings, and the size rules that depend on nothing else.

They are read from the text of PYTORCH_ALLOC_CONF and from a snapshot. Has no blocks, pools or
addresses. The rules are those of torch 2.1 to 2.15; each names its place in torch.
replay/rounding.py has them for columns.
"""

import math
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from snapconv.errors import SettingError
from snapconv.torch_knowledge.allocator_options import BEFORE_2_10, KINDS, LITERALS, OPTIONS
from snapconv.torch_knowledge.backends import release_key

KIB = 1024
MIB = 1024 * KIB

# c10/core/AllocatorConfig.h (before 2.9: the head of c10/cuda/CUDACachingAllocator.cpp).
MIN_BLOCK_BYTES = 512
SMALL_REQUEST_BYTES = 1 * MIB  # the largest rounded request that the small pools serve
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB
MIN_OWN_SEGMENT_BYTES = 10 * MIB  # from here on, a request gets a segment of its own size
SEGMENT_GRANULE_BYTES = 2 * MIB
# torch_npu adds these to every request (round_size in NPUCachingAllocator.cpp).
NPU_PADDING_BYTES = 32

N_ROUNDUP_INTERVALS = 16  # 1 MiB, 2 MiB, 4 MiB … 32 GiB and above
NO_ROUNDUP = (0,) * N_ROUNDUP_INTERVALS
# The keys of the intervals in a snapshot.
ROUNDUP_KEYS = tuple(str(1 << i) for i in range(N_ROUNDUP_INTERVALS))
_MAX_UNSIGNED = 2**64 - 1
_INTEGER = re.compile(r"^([+-]?)0*(\d{1,20})(?!\d)")
_TOKEN = re.compile(r"[,:\[\]]|[^,:\[\]]+")
# A key, a token for the colon, a value, which may be a list, and a token for the comma.
_ENTRY = re.compile(
    r"([,:\[\]]|[^,:\[\]]+)"
    r"(?:(?:[,:\[\]]|[^,:\[\]]+)"
    r"(\[[^\]]*\]?|[,:\]]|[^,:\[\]]+)?"
    r"(?:[,:\[\]]|[^,:\[\]]+)?)?"
)


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """Everything that PYTORCH_ALLOC_CONF can change about where blocks go.

    ``max_split_size_bytes`` None means unlimited. ``roundup_power2_divisions`` has one entry per
    power of two from 1 MiB on; 0 and 1 switch the rounding off. ``padding_bytes`` are added to
    every request before it is rounded: 0 in torch, 32 in torch_npu. ``memory_fraction`` is the part
    of the device that the process may have; less than 1 and a ``garbage_collection_threshold``
    above 0 switch the collection of unused segments on. ``conf`` is the text that the settings come
    from.
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
        """Read the text of PYTORCH_ALLOC_CONF; see ``changed``."""
        return cls().changed(conf)

    def changed(
        self, conf: str, *, skipped: tuple[type[Exception], ...] = ()
    ) -> "AllocatorSettings":
        """Return these settings with those replaced that a text as in PYTORCH_ALLOC_CONF names.

        Options that do not move blocks are skipped. Raises SettingError for a value that torch
        refuses, unless such a value alone is to be skipped.
        """
        settings = replace(self, conf=conf)
        pairs = split_conf(conf)
        for name, fields in _FIELDS.items():
            for key, text in pairs:
                with suppress(*skipped):
                    if key == name:
                        value = _read(name, text, settings)
                        settings = replace(settings, **dict.fromkeys(fields, value))
        return settings

    def conf_with(self, conf: str) -> str:
        """Return the text of these settings with those replaced that another text names."""
        pairs = dict(split_conf(self.conf) + split_conf(conf))
        return ",".join(map(":".join, pairs.items()))

    def round_size(self, n_bytes: int) -> int:
        """Round a request up to a block size (round_size in CUDACachingAllocator.cpp)."""
        n_bytes += self.padding_bytes
        if n_bytes < MIN_BLOCK_BYTES:
            return MIN_BLOCK_BYTES
        # All below 2 MiB falls into the first interval, all from 32 GiB into the last.
        interval = min(
            max(n_bytes.bit_length() - MIB.bit_length(), 0), N_ROUNDUP_INTERVALS - 1
        )
        divisions = self.roundup_power2_divisions[interval]
        if divisions > 1 and n_bytes > MIN_BLOCK_BYTES * divisions:
            # The space between two powers of two has so many equal steps, of 512 bytes or more.
            return round_up(n_bytes, (1 << (n_bytes.bit_length() - 1)) // divisions)
        return round_up(n_bytes, MIN_BLOCK_BYTES)

    def segment_size(self, block_bytes: int) -> int:
        """Return the size of the cudaMalloc that serves a rounded request (get_allocation_size)."""
        if block_bytes <= SMALL_REQUEST_BYTES:
            return SMALL_SEGMENT_BYTES
        if block_bytes < MIN_OWN_SEGMENT_BYTES:
            return self.large_segment_bytes
        return round_up(block_bytes, SEGMENT_GRANULE_BYTES)

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
        return (
            self.max_split_size_bytes is not None and n_bytes >= self.max_split_size_bytes
        )

    def as_snapshot(self) -> dict[str, object]:
        """Write the settings as the ``allocator_settings`` of torch 2.13."""
        limit = self.max_split_size_bytes
        divisions = dict(zip(ROUNDUP_KEYS, self.roundup_power2_divisions, strict=True))
        values = {
            "PYTORCH_CUDA_ALLOC_CONF": self.conf,
            "max_split_size": -1 if limit is None else _signed(limit),
            "garbage_collection_threshold": self.garbage_collection_threshold,
            "expandable_segments": self.expandable_segments,
            "pinned_num_register_threads": 1,
            "release_lock_on_cudamalloc": False,
            "pinned_use_cuda_host_register": False,
            "graph_capture_record_stream_reuse": False,
            "roundup_power2_divisions": divisions,
            "max_round_threshold": -1,
            "max_cached_size": -1,
        }
        for name, text in split_conf(self.conf):
            option = OPTIONS.get(name)
            if option and option.shown:
                value = _read(name, text, self)
                values[option.shown] = _signed(value) if option.kind == "size" else value
        return values


def _signed(number: int) -> int:
    """Return 64 unsigned bits as a snapshot has them."""
    return number - (number >> 63 << 64)


def round_up(n_bytes: int, granule: int) -> int:
    """Return the least multiple of a granule that is no smaller."""
    return -(-n_bytes // granule) * granule


def split_conf(conf: str) -> list[tuple[str, str]]:
    """Split a text into keys and values as ConfigTokenizer of torch 2.10 and newer does.

    It leaves out all spaces, even in a word, and takes anything for the colon and the comma.
    """
    return _ENTRY.findall("".join(conf.split()))


def require_taken(conf: str, release: str) -> None:
    """Raise SettingError where a release of torch refuses a text for CUDA."""
    settings = AllocatorSettings.from_conf(conf)
    if release_key(release) < (2, 10) and not BEFORE_2_10.fullmatch(conf.replace(" ", "")):
        raise SettingError(
            f"allocator settings: torch {release} refuses {conf!r}: before 2.10 it takes "
            "key:value pairs with commas between them, sizes above 20 MiB and integers below 2^31"
        )
    for name, text in split_conf(conf):
        if name not in OPTIONS or release_key(release) < release_key(OPTIONS[name].since):
            raise SettingError(
                f"allocator settings: torch {release} has no option {name!r}"
            )
        _read(name, text, settings)


def _read(name: str, text: str, settings: AllocatorSettings) -> Any:
    """Read one value as torch does, beside settings that are read already."""
    kind = OPTIONS[name].kind
    pattern, expected = KINDS[kind]
    value = pattern.fullmatch(text)
    if value is None:
        raise _refused(name, expected, text)
    if kind in _READERS:
        return _READERS[kind](name, value[1], settings)
    return LITERALS.get(value[1], value[1])


def _refused(name: str, expected: str, text: object) -> SettingError:
    return SettingError(f"allocator settings: {name} must be {expected}, got {text!r}")


def _size(name: str, text: str, settings: AllocatorSettings) -> int:
    minimum = OPTIONS[name].minimum or settings.large_segment_bytes // MIB
    megabytes = _integer(name, text)
    if megabytes < minimum:
        raise _refused(name, f"{minimum} or more", megabytes)
    return min(megabytes, _MAX_UNSIGNED // MIB) * MIB


def _integer(name: str, text: str) -> int:
    """Read the integer at the start of a text; a negative one becomes 64 unsigned bits (stoull)."""
    digits = _INTEGER.match(text)
    number = int(f"{digits[1]}{digits[2]}") if digits else _MAX_UNSIGNED + 1
    if abs(number) > _MAX_UNSIGNED:
        raise _refused(name, "an integer", text)
    return number & _MAX_UNSIGNED


def _fraction(name: str, text: str, _settings: AllocatorSettings) -> float:
    try:
        number = float.fromhex(text) if "x" in text.lower() else float(text)
    except OverflowError:
        number = math.inf
    kind = OPTIONS[name].kind
    if not (0 < number < 1 or (number in (0, 1) and kind == "fraction")):
        raise _refused(name, KINDS[kind][1], number)
    return number


def _divisions(name: str, text: str, settings: AllocatorSettings) -> tuple[int, ...]:
    """Read one number for all intervals, or ``[256:1,512:2,>:8]`` (parseRoundUpPower2Divisions).

    As in torch, the first entry also applies to all smaller sizes, ``>`` applies to all sizes above
    the last one named (that one included before torch 2.10), and other sizes keep what they have.
    """
    if not text.startswith("["):
        return (_power_of_2(name, text, minimum=1),) * N_ROUNDUP_INTERVALS
    tokens = _TOKEN.findall(text)[1:]
    divisions = list(settings.roundup_power2_divisions)
    start = last = 0
    # Any token stands for the colon and the comma, and a comma may follow the last entry.
    for i in range(0, len(tokens) - 1, 4):
        bound, _, value, *_ = (*tokens[i : i + 4], "", "")
        count = _power_of_2(name, value)
        begin, end = last + 1, N_ROUNDUP_INTERVALS
        if bound != ">":
            end = min(_power_of_2(name, bound, minimum=1).bit_length(), end)
            last = end - 1
            begin, start = min(start, last), N_ROUNDUP_INTERVALS
        divisions[begin:end] = [count] * (end - begin)
    return tuple(divisions)


def _power_of_2(name: str, text: str, *, minimum: int = 0) -> int:
    number = _integer(name, text)
    if number < minimum or number & (number - 1):
        raise _refused(name, f"{minimum}, or a larger power of 2", number)
    return number


# --- the readers of a text

_READERS: dict[str, Callable[[str, str, AllocatorSettings], Any]] = {
    "size": _size,
    "fraction": _fraction,
    "threshold": _fraction,
    "divisions": _divisions,
}
# The fields of options that move blocks, in the order in which they are read.
_FIELDS = {
    # The size of blocks that are not split follows that of large segments.
    "large_segment_size_mb": ("large_segment_bytes", "max_non_split_rounding_bytes"),
    "max_non_split_rounding_mb": ("max_non_split_rounding_bytes",),
    "max_split_size_mb": ("max_split_size_bytes",),
    "per_process_memory_fraction": ("memory_fraction",),
    "garbage_collection_threshold": ("garbage_collection_threshold",),
    "expandable_segments": ("expandable_segments",),
    "roundup_power2_divisions": ("roundup_power2_divisions",),
}
MODELLED_SETTINGS = tuple(sorted(_FIELDS))
