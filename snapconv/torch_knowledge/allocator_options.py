"""Allocator options of torch for CUDA, their variables, kinds of value and first releases.

Sources. 2.9, 2.12 and newer: measured with the wheels of the registry by
scripts/measure_allocator_settings. Others: the same names in libc10.so and libc10_cuda.so of the
wheels, and how CUDAAllocatorConfig.cpp of torch 2.5 to 2.8 reads them.
"""

import re
from dataclasses import dataclass

_NUMBER = (
    r"^\+?(0[xX][\da-fA-F]*\.?[\da-fA-F]+(?:[pP][+-]?\d+)?|(?:\d+\.?\d*"
    r"|\.\d+)(?:[eE][+-]?\d+)?).*"
)
# By kind of value: its pattern, where a group is what torch takes of it, and what it must be.
KINDS = {
    "size": (re.compile("^(.+)"), "an integer"),
    "threads": (
        re.compile(r"^\+?0*(1|2|4|8|16|32|64|128)(?!\d).*", re.DOTALL),
        "a power of 2 up to 128",
    ),
    "fraction": (re.compile(_NUMBER, re.DOTALL), "from 0 to 1"),
    "threshold": (re.compile(_NUMBER, re.DOTALL), "above 0 and below 1"),
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
    size in MiB; 0: the size of large segments, -1: any.
    """

    kind: str
    since: str
    shown: str = ""
    minimum: int = 0


OPTIONS = {
    "max_split_size_mb": AllocatorOption("size", "2.0"),
    "max_non_split_rounding_mb": AllocatorOption("size", "2.6"),
    "large_segment_size_mb": AllocatorOption("size", "2.12", minimum=11),
    "garbage_collection_threshold": AllocatorOption("threshold", "2.0"),
    "per_process_memory_fraction": AllocatorOption("fraction", "2.10"),
    "roundup_power2_divisions": AllocatorOption("divisions", "2.0"),
    "expandable_segments": AllocatorOption("switch", "2.1"),
    "expandable_segments_reserve": AllocatorOption("reserve", "2.15"),
    "expandable_segments_reserve_by_class": AllocatorOption("reserves", "2.15"),
    "backend": AllocatorOption("backend", "2.0"),
    "throw_on_cudamalloc_oom": AllocatorOption("switch", "2.12"),
    "graph_capture_record_stream_reuse": AllocatorOption(
        "switch", "2.9", "graph_capture_record_stream_reuse"
    ),
    "release_lock_on_cudamalloc": AllocatorOption(
        "switch", "2.1", "release_lock_on_cudamalloc"
    ),
    "release_lock_on_hipmalloc": AllocatorOption(
        "switch", "2.6", "release_lock_on_cudamalloc"
    ),
    "pinned_use_cuda_host_register": AllocatorOption(
        "switch", "2.1", "pinned_use_cuda_host_register"
    ),
    "pinned_use_hip_host_register": AllocatorOption(
        "switch", "2.6", "pinned_use_cuda_host_register"
    ),
    "pinned_num_register_threads": AllocatorOption(
        "threads", "2.1", "pinned_num_register_threads"
    ),
    "pinned_use_background_threads": AllocatorOption("switch", "2.6"),
    "pinned_reserve_segment_size_mb": AllocatorOption("size", "2.10", minimum=1),
    "pinned_max_round_threshold_mb": AllocatorOption(
        "size", "2.13", "max_round_threshold", minimum=-1
    ),
    "pinned_max_cached_size_mb": AllocatorOption(
        "size", "2.13", "max_cached_size", minimum=-1
    ),
    "pinned_free_catch_all": AllocatorOption("switch", "2.12"),
}
# Before torch 2.10 a comma had to stand between options, a tab was no space, the sizes up to which
# blocks are split and reused had to be above 20 MiB, and integers had 31 bits (stoi).
BEFORE_2_10 = re.compile(
    r"^(?:(?!max_(?:split_size|non_split_rounding)_mb:0*20(?!\d))"
    r"(?!\w+:0*(?:\d{11,}|[3-9]\d{9}|2[2-9]\d{8}|21[5-9]\d{7}|214[89]\d{6}|2147[5-9]\d{5}"
    r"|21474[89]\d{4}"
    r"|214748[4-9]\d{3}|2147483[7-9]\d\d|21474836[5-9]\d|214748364[89]))"
    r"[^,:\[\]\s]+:(?:\[[^\[\]]*\]|[^,:\[\]]+)(?:,|$))*"
)
# The first that is set counts; before torch 2.10 only the first, and the second on ROCm.
VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
# The newest torch whose options are known.
NEWEST_RELEASE = "2.15"
