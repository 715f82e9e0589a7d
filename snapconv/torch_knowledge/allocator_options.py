"""Allocator options of torch for CUDA, their variables, kinds of value and first releases.

Sources. 2.9, 2.12 and newer: measured with the wheels of the registry by
scripts/measure_allocator_settings. Others: the same names in libc10.so and libc10_cuda.so of the
wheels, and how CUDAAllocatorConfig.cpp of torch 2.5 to 2.8 reads them.
"""

import re
from dataclasses import dataclass

_NUMBER = (
    r"^\s*\+?(0[xX][\da-fA-F]*\.?[\da-fA-F]+(?:[pP][+-]?\d+)?|(?:\d+\.?\d*"
    r"|\.\d+)(?:[eE][+-]?\d+)?).*"
)
_ANY_END = re.ASCII | re.DOTALL
# By kind of value: its pattern, where a group is what torch takes of it, and what it must be.
KINDS = {
    "size": (re.compile("^(.+)", re.DOTALL), "an integer"),
    "threads": (
        re.compile(r"^\s*\+?0*(1|2|4|8|16|32|64|128)(?!\d).*", _ANY_END),
        "a power of 2 up to 128",
    ),
    "fraction": (re.compile(_NUMBER, _ANY_END), "from 0 to 1"),
    "threshold": (re.compile(_NUMBER, _ANY_END), "above 0 and below 1"),
    "switch": (re.compile("^(True|False)"), "True or False"),
    "divisions": (
        re.compile(r"^(\[.*\]|[^\[].*)"),
        "a power of 2, or a list such as [256:4,>:8]",
    ),
    "backend": (re.compile("^(native|cudaMallocAsync)"), "native or cudaMallocAsync"),
    # A value without a meaning is taken too, with a warning.
    "reserve": (re.compile("^(.+)"), "a number, or GiB such as 40G"),
    "reserves": (re.compile(r"^(\[.*\])"), "a list such as [NAME:0.5]"),
}
LITERALS = {
    "True": True,
    "False": False,
    "1": 1,
    "2": 2,
    "4": 4,
    "8": 8,
    "16": 16,
    "32": 32,
    "64": 64,
    "128": 128,
}


@dataclass(frozen=True, slots=True)
class AllocatorOption:
    """One option: its kind of value, and the first release that takes it.

    ``shown`` is the key in a snapshot of an option that moves no block. ``minimum`` is that of a
    size in MiB; 0: the size of large segments, -1: any. ``is_of_cuda``: of CUDA alone, where other
    options are read for all kinds of devices.
    """

    kind: str
    since: str
    shown: str = ""
    minimum: int = 0
    is_of_cuda: bool = False


OPTIONS = {
    "max_split_size_mb": AllocatorOption("size", "2.0"),
    "max_non_split_rounding_mb": AllocatorOption("size", "2.6"),
    "large_segment_size_mb": AllocatorOption("size", "2.12", minimum=11),
    "garbage_collection_threshold": AllocatorOption("threshold", "2.0"),
    "per_process_memory_fraction": AllocatorOption("fraction", "2.10", is_of_cuda=True),
    "roundup_power2_divisions": AllocatorOption("divisions", "2.0"),
    "expandable_segments": AllocatorOption("switch", "2.1"),
    "expandable_segments_reserve": AllocatorOption("reserve", "2.15", is_of_cuda=True),
    "expandable_segments_reserve_by_class": AllocatorOption(
        "reserves", "2.15", is_of_cuda=True
    ),
    "backend": AllocatorOption("backend", "2.0", is_of_cuda=True),
    "throw_on_cudamalloc_oom": AllocatorOption("switch", "2.12", is_of_cuda=True),
    "graph_capture_record_stream_reuse": AllocatorOption(
        "switch", "2.9", "graph_capture_record_stream_reuse", is_of_cuda=True
    ),
    "release_lock_on_cudamalloc": AllocatorOption(
        "switch", "2.1", "release_lock_on_cudamalloc", is_of_cuda=True
    ),
    "release_lock_on_hipmalloc": AllocatorOption(
        "switch", "2.6", "release_lock_on_cudamalloc", is_of_cuda=True
    ),
    "pinned_use_cuda_host_register": AllocatorOption(
        "switch", "2.1", "pinned_use_cuda_host_register", is_of_cuda=True
    ),
    "pinned_use_hip_host_register": AllocatorOption(
        "switch", "2.6", "pinned_use_cuda_host_register", is_of_cuda=True
    ),
    "pinned_num_register_threads": AllocatorOption(
        "threads", "2.1", "pinned_num_register_threads", is_of_cuda=True
    ),
    "pinned_use_background_threads": AllocatorOption("switch", "2.6"),
    "pinned_reserve_segment_size_mb": AllocatorOption(
        "size", "2.10", minimum=1, is_of_cuda=True
    ),
    "pinned_max_round_threshold_mb": AllocatorOption(
        "size", "2.13", "max_round_threshold", minimum=-1
    ),
    "pinned_max_cached_size_mb": AllocatorOption(
        "size", "2.13", "max_cached_size", minimum=-1
    ),
    "pinned_free_catch_all": AllocatorOption("switch", "2.12", is_of_cuda=True),
}


@dataclass(frozen=True, slots=True)
class SettingsGrammar:
    """How releases read a text of settings.

    ``spaces`` are left out, even in a word. ``entry`` is a key and its value. ``is_strict``: a
    colon and a comma have to stand where they belong, and ``pair`` is an entry without its comma.
    The least ``max_split_size_mb`` is ``extra_mib`` more than a large segment has, and no integer
    is above ``max_integer``. ``is_rest_inclusive``: ``>`` has the last size that was named, too.
    """

    spaces: str
    entry: re.Pattern[str]
    pair: re.Pattern[str]
    is_strict: bool
    extra_mib: int
    max_integer: int
    is_rest_inclusive: bool


# A key, a token for the colon, a value, which may be a list, and a token for the comma.
_TOKEN = r"(?:[,:\[\]]|[^,:\[\]]+)"
_ENTRY = re.compile(rf"({_TOKEN})(?:{_TOKEN}(\[[^\]]*\]?|[,:\]]|[^,:\[\]]+)?{_TOKEN}?)?")
# A name begins where a token does: inside of one, every place would be tried.
_STRICT_PAIR = r"(?:^|(?<=[,:\[\]]))([^,:\[\]]+):(\[[^\]]*\]|[^,:\[\]]+)"
_FROM_2_10 = SettingsGrammar(
    spaces=" \t\n\v\f\r",
    entry=_ENTRY,
    pair=_ENTRY,
    is_strict=False,
    extra_mib=0,
    max_integer=(1 << 64) - 1,
    is_rest_inclusive=False,
)
_BEFORE_2_10 = SettingsGrammar(
    spaces=" ",
    entry=re.compile(f"{_STRICT_PAIR}(?:,|$)"),
    pair=re.compile(_STRICT_PAIR),
    is_strict=True,
    extra_mib=1,
    max_integer=(1 << 31) - 1,
    is_rest_inclusive=True,
)


def grammar_of(release: str) -> SettingsGrammar:
    """Return how a release such as ``2.13.0+cu128`` reads the text of allocator settings."""
    return _FROM_2_10 if release_key(release) >= (2, 10) else _BEFORE_2_10


def is_known(name: str, release: str) -> bool:
    """Return whether a release has an option."""
    option = OPTIONS.get(name)
    return option is not None and release_key(release) >= release_key(option.since)


def release_key(release: str) -> tuple[int, ...]:
    """Return the first two numbers of a release, for sorting."""
    return tuple(int(part) for part in release.split(".")[:2] if part.isdecimal())


# The first that is set counts; before torch 2.10 only the first, and the second on ROCm. A CUDA
# build does not read the options of CUDA alone from the second.
VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
# The newest torch whose options are known.
NEWEST_RELEASE = "2.15"
