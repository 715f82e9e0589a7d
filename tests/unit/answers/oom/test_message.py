"""Texts about memory that ran out, of every backend and era, with what happened in each.

They are put together as the sources do: CUDACachingAllocator.cpp (1.0 to 2.15),
CUDAMallocAsyncAllocator.cpp, XPUCachingAllocator.cpp, MPSAllocator.mm, the allocators of torch_npu,
MLU, MUSA and GCU, and for the kinds without figures the libraries that raise them. A case begins
with the memory as it was, and says why the request failed; the text follows from the first alone.
"""

import time
from contextlib import suppress
from dataclasses import asdict

import pytest
from orjson import dumps

from snapconv.answers.oom.message import explain_message, read_message
from snapconv.answers.oom.message_text import compacted
from snapconv.errors import InputError
from snapconv.writers.text.oom_message import message_lines

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def size(n_bytes, units=("KiB", "MiB", "GiB")):
    """format_size of torch: two decimals, from KiB on; "GB" for GiB in old releases and in MPS."""
    if n_bytes <= KIB:
        return f"{n_bytes} bytes"
    power = 3 if n_bytes > GIB else 2 if n_bytes > MIB else 1
    return f"{n_bytes / (1 << 10 * power):.2f} {units[power - 1]}"


def from_1_0(tried, total, free, allocated, reserved):
    return (
        f"RuntimeError: CUDA out of memory. Tried to allocate {size(tried)} (GPU 0; {size(total)} "
        f"total capacity; {size(allocated)} already allocated; {size(free)} free; "
        f"{size(reserved - allocated)} cached)"
    )


def with_figures_above(tried, *figures):
    """A log that has the figures on a line of their own above the sentence."""
    sentence, _, rest = from_1_4(tried, *figures, advice=False).partition(" (")
    return f"({rest}\nRuntimeError: {sentence}"


def from_1_4(
    tried,
    total,
    free,
    allocated,
    reserved,
    *,
    backend="CUDA",
    name="GPU",
    allowed=None,
    advice=True,
):
    limit = f"{size(allowed)} allowed; " if allowed else ""
    active = f"{size(allocated + MIB)} current active; " if name == "NPU" else ""
    hint = (
        " If reserved memory is >> allocated memory try setting max_split_size_mb to avoid "
        "fragmentation."
    )
    left = "" if free is None else f"{size(free)} free; "
    return (
        f"{backend} out of memory. Tried to allocate {size(tried)} ({name} 0; {size(total)} total "
        f"capacity; {size(allocated)} already allocated; {active}{left}{limit}{size(reserved)} "
        f"reserved in total by PyTorch){hint if advice else ''}"
    )


def from_2_1(
    tried, total, free, allocated, reserved, *, backend="CUDA", word="capacity", processes="", allowed=None,
    pools=None, more="",
):  # fmt: skip
    """torch 2.1 to 2.15; what is free in private pools counts as allocated in its text."""
    private = (
        (f"with {size(pools)} allocated in private pools (e.g., CUDA Graphs), ") if pools else ""
    )
    left = "" if free is None else f" of which {size(free)} is free"
    return (
        f"torch.OutOfMemoryError: {backend} out of memory. Tried to allocate {size(tried)}.{more} "
        f"GPU 0 has "
        f"a total {word} of {size(total)}{left}. "
        f"{processes}{f'{size(allowed)} allowed; ' if allowed else ''}"
        f"Of the allocated memory {size(allocated + (pools or 0))} is allocated by PyTorch, "
        f"{private}and "
        f"{size(reserved - allocated - (pools or 0))} is reserved by PyTorch but unallocated. If "
        f"reserved "
        f"but unallocated memory is large try setting "
        f"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to "
        f"avoid fragmentation."
    )


def of_malloc_async(
    tried, total, free, allocated, *, limit=(1 << 64) - 1, device="0", runtime="CUDA"
):
    return (
        f"torch.OutOfMemoryError: Allocation on device {device} would exceed allowed memory. "
        f"(out of "
        f"memory)\nCurrently allocated     : {size(allocated)}\nRequested               : "
        f"{size(tried)}\n"
        f"Device limit            : {size(total)}\nFree (according to {runtime}): {size(free)}\n"
        f"PyTorch limit (set by user-supplied memory fraction)\n                        : "
        f"{size(limit)}\n"
    )


def of_mps(tried, torchs, others, allowed=None, *, units=("KB", "MB", "GB")):
    limit = f", max allowed: {size(allowed, units)}" if allowed else ""
    hint = (
        " Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations "
        "(may cause system failure)."
    )
    return (
        f"RuntimeError: MPS backend out of memory (MPS allocated: {size(torchs, units)}, other "
        f"allocations: "
        f"{size(others, units)}{limit}). Tried to allocate {size(tried, units)} on private pool."
        f"{hint if allowed else ''}"
    )


def of_npu_workspace(tried, total, free):
    return (
        f"NPU out of memory. NPUWorkspaceAllocator tried to allocate {size(tried)}(NPU 0; "
        f"{size(total)} total capacity; {size(free)} free)"
    )


def cut(text):
    """What is left where the poster left out what torch's allocator has."""
    return text.partition("Of the allocated memory")[0]


def process(number, n_bytes):
    return f"Process {number} has {size(n_bytes)} memory in use. "


def own(n_bytes):
    return f"Including non-PyTorch memory, this process has {size(n_bytes)} memory in use. "


def of_pids_and_pools():
    return from_2_1(
        2 * GIB,
        80 * GIB,
        GIB,
        60 * GIB,
        70 * GIB,
        pools=8 * GIB,
        processes=own(79 * GIB),
        word="capacty",
    )


# The request, the device, free on it, held by tensors, reserved by torch.
FULL = (2 * GIB, 80 * GIB, GIB, 77 * GIB, 78 * GIB)
PIECES = (2 * GIB, 80 * GIB, GIB, 60 * GIB, 78 * GIB)
FREE = (2 * GIB, 80 * GIB, 30 * GIB, 40 * GIB, 41 * GIB)
OTHERS = (2 * GIB, 80 * GIB, GIB, 30 * GIB, 31 * GIB)
HUGE = (900 * GIB, 80 * GIB, 60 * GIB, 10 * GIB, 11 * GIB)
TIGHT = (2 * GIB, 80 * GIB, 60 * GIB, 15 * GIB, 15 * GIB)

OF_ALLOCATORS = {
    "1.0 full": (from_1_0(*FULL), "full", False),
    "1.0 fragmented": (from_1_0(*PIECES), "fragmented", True),
    "1.2 another process": (from_1_0(*OTHERS), "held outside torch", True),
    "1.3 free above it": (from_1_0(*FREE), "not known", False),
    ("1.4 another process, its figures "
    "above it"): (with_figures_above(*OTHERS), "held outside torch", True),
    "1.4 full, its figures above it": (with_figures_above(*FULL), "full", False),
    "1.4 full": (from_1_4(*FULL, advice=False), "full", False),
    "1.4 fragmented": (from_1_4(*PIECES, advice=False), "fragmented", True),
    "1.7 free above it": (from_1_4(*FREE, advice=False), "not known", False),
    "1.8 limit": (from_1_4(*TIGHT, allowed=16 * GIB), "limited", False),
    "1.10 larger": (from_1_4(*HUGE), "larger than the device", False),
    "1.12 limit above it": (from_1_4(*FULL, allowed=90 * GIB), "full", False),
    "2.0 HIP full": (from_1_4(*FULL, backend="HIP"), "full", False),
    "2.0 HIP free above it": (from_1_4(*FREE, backend="HIP"), "not known", False),
    "2.0 another process": (from_1_4(*OTHERS), "held outside torch", True),
    "2.1 full": (from_2_1(*FULL, word="capacty"), "full", False),
    "2.1 fragmented": (from_2_1(*PIECES, word="capacty"), "fragmented", True),
    "2.2 own process": (from_2_1(*FULL, processes=own(79 * GIB)), "full", False),
    "2.3 neighbour": (
        from_2_1(*OTHERS, processes=process(41, 47 * GIB) + own(32 * GIB)), "held outside torch", False
    ),
    "2.4 container": (from_2_1(*FULL, processes=process(41, 79 * GIB)), "full", False),
    "2.5 free in CUDA graphs": (of_pids_and_pools(), "wrong pool or stream", True),
    "2.5 little in CUDA graphs": (from_2_1(*FULL, pools=64 * MIB), "full", False),
    "2.6 free above it": (from_2_1(*FREE), "not known", False),
    "2.6 limit": (from_2_1(*TIGHT, allowed=16 * GIB), "limited", False),
    "2.6 limit, far below": (from_2_1(*FREE, allowed=60 * GIB), "not known", False),
    "2.6 limit, by rounding": (
        from_2_1(2 * GIB, 80 * GIB, 30 * GIB, 14 * GIB, 14 * GIB, allowed=16 * GIB), "limited", True
    ),
    "2.7 Windows": (from_2_1(20 * MIB, 8 * GIB, 0, 14 * GIB - 100 * MIB, 14 * GIB), "full", False),
    "2.7 unified memory": (from_2_1(GIB, 15 * GIB, 85 * GIB, 9 * GIB, 9 * GIB), "not known", False),
    "2.8 HIP of an APU": (
        from_2_1(GIB, 16 * GIB, 9 * GIB, 4 * GIB, 5 * GIB, backend="HIP"), "not known", False
    ),
    "2.8 XPU without free": (from_2_1(*FULL[:2], None, *FULL[3:], backend="XPU"), "full", True),
    # Intel's driver allows blocks of 4 GiB.
    "2.8 XPU nearly empty": (from_2_1(8 * GIB, 15 * GIB, None, 0, 0, backend="XPU"), "limited", True),
    "2.8 XPU nearly empty, a small block": (
        from_2_1(2 * GIB, 15 * GIB, None, 0, 0, backend="XPU"), "not known", False
    ),
    "2.8 XPU fragmented": (from_2_1(*PIECES[:2], None, *PIECES[3:], backend="XPU"), "fragmented", True),
    "XPU of IPEX": (from_1_4(*FULL[:2], None, *FULL[3:], backend="XPU"), "full", True),
    "2.9 XPU estimate": (
        from_2_1(GIB, 16 * GIB, 6 * GIB, 9 * GIB, 10 * GIB, backend="XPU"), "not known", False
    ),
    "2.10 XPU limit": (from_2_1(*TIGHT, backend="XPU", allowed=16 * GIB), "limited", False),
    "2.15 preempted": (
        "CUDA out of memory. Allocation was preemptively rejected because it would exceed "
        f"per_process_memory_fraction limit. Requested size: {size(2 * GIB)}", "limited", False
    ),
    "2.15 overflow": (
        ("CUDA out of memory. Tried to allocate more than 1EB "
        "memory."), "larger than the device", False
    ),
    "2.15 reserve": (
        from_2_1(*FREE, more=(" This allocation exceeds the expandable-segment reserve of 1.00 "
                             "GiB,")),
        "limited", False,
    ),
    "2.15 MemPool": (
        from_2_1(*FREE, more=" The custom allocator backing this MemPool returned nullptr."),
        "not known", False,
    ),
    "NPU full": (from_1_4(*FULL, backend="NPU", name="NPU"), "full", False),
    "NPU fragmented": (from_1_4(*PIECES, backend="NPU", name="NPU"), "fragmented", True),
    # Its text says nothing about the 60 GiB that are in use.
    "NPU workspace": (of_npu_workspace(2 * GIB, 61 * GIB, GIB), "not known", False),
    "NPU workspace, free": (of_npu_workspace(2 * GIB, 61 * GIB, 9 * GIB), "not known", False),
    "MLU full": (from_1_4(*FULL, backend="MLU", name="MLU"), "full", False),
    "MUSA free above it": (from_2_1(*FREE, backend="MUSA"), "not known", False),
    # What the driver's pool has cached is not in its text: here 1 GiB is not torch's tensors, or 19
    # GiB.
    "async full": (of_malloc_async(2 * GIB, 24 * GIB, 7 * MIB, 23 * GIB), "full", True),
    "async, cached or of others": (
        of_malloc_async(2 * GIB, 24 * GIB, 7 * MIB, 5 * GIB), "not known", False
    ),
    "async retyped": (
        of_malloc_async(2 * GIB, 24 * GIB, 7 * MIB, 23 * GIB)
        .replace("Requested               :", "Requested")
        .replace("Device limit            :", "Device limit"),
        "full",
        True,
    ),
    "async limit": (of_malloc_async(2 * GIB, 24 * GIB, 9 * GIB, 9 * GIB, limit=10 * GIB), "limited", False),
    "async free": (of_malloc_async(2 * GIB, 24 * GIB, 9 * GIB, 9 * GIB, device=""), "not known", False),
    "async larger": (of_malloc_async(90 * GIB, 24 * GIB, 9 * GIB, 9 * GIB), "larger than the device", False),
    "GCU async": (of_malloc_async(2 * GIB, 24 * GIB, GIB, 21 * GIB, runtime="TOPS"), "full", True),
    "2.2 cut above what torch has": (cut(from_2_1(*FULL)), "not known", False),
    "2.2 cut below the process": (cut(from_2_1(*FULL, processes=own(79 * GIB))), "full", True),
    "2.8 XPU, cut, as large as the device": (
        cut(from_2_1(16 * GIB, 16 * GIB, None, 0, 0, backend="XPU")), "larger than the device", False
    ),
    "more allocated than reserved": (
        from_1_4(14 * GIB, 24 * GIB, 4 * GIB, 9 * GIB, 8 * GIB), "not known", False
    ),
    "MPS limit": (of_mps(GIB, 17 * GIB, GIB, 18 * GIB), "limited", False),
    "MPS limit of 2.8": (of_mps(GIB, 17 * GIB, GIB, 18 * GIB, units=("KiB", "MiB", "GiB")), "limited", False),
    "MPS without limit": (of_mps(GIB, 17 * GIB, 6 * GIB), "full", True),
    "MPS below its limit": (of_mps(GIB, 9 * GIB, GIB, 18 * GIB), "not known", False),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_ALLOCATORS)
def test_the_verdict_on_a_message_of_an_allocator_is_what_happened(name):
    text, cause, is_inferred = OF_ALLOCATORS[name]
    verdict = explain_message(text).verdict
    assert (verdict.cause, verdict.is_inferred) == (cause, is_inferred)


# --- the figures


def before_every_line(prefix, text, *, at=" "):
    """A log in which a launcher, or a quotation, has words before every line."""
    return "\n".join(f"{prefix}{line}" for line in text.replace(at, f"{at}\n").splitlines())


def wrapped(text, width):
    """A terminal that breaks its longest lines anywhere, in words and numbers too."""
    lines = text.split("\n")
    return "\n".join(line[i : i + width] for line in lines for i in range(0, len(line), width))


FIGURES = (2 * GIB, 80 * GIB, GIB, 70 * GIB, 75 * GIB)
WORDINGS = {
    "1.0": from_1_0(*FIGURES),
    "1.4": from_1_4(*FIGURES, advice=False),
    "hip": from_1_4(*FIGURES, backend="HIP"),
    "npu": from_1_4(*FIGURES, backend="NPU", name="NPU"),
    "2.1": from_2_1(*FIGURES, word="capacty"),
    "2.2": from_2_1(*FIGURES),
    "pytest": before_every_line("E   ", from_2_1(*FIGURES), at=". "),
    "ranks": before_every_line("[rank3]: ", from_2_1(*FIGURES)),
    "workers": before_every_line("(Worker_TP0 pid=41) ", from_2_1(*FIGURES), at=". "),
    "engine and rank": before_every_line(
        "(EngineCore pid=7) [rank0]: ", from_2_1(*FIGURES), at=". "
    ),
    "container": before_every_line("2025-01-01T00:00:00.123Z ", from_2_1(*FIGURES), at=". "),
    "colours": "\x1b[31m" + from_2_1(*FIGURES).replace(". ", ".\x1b[0m "),
    "box": before_every_line("│ ", from_2_1(*FIGURES), at=". ").replace("\n", " │\n"),
    "escaped": from_2_1(*FIGURES).replace(". ", ".\\n"),
    "figures above": with_figures_above(*FIGURES),
    "first words cut": from_2_1(*FIGURES)[50:],
    "first words cut in 1.4": from_1_4(*FIGURES)[20:],
    **{f"wrapped at {width}": wrapped(from_2_1(*FIGURES), width) for width in (7, 40, 79, 80)},
}


@pytest.mark.parametrize("name", WORDINGS)
def test_every_wording_gives_the_same_figures(name):
    found = explain_message(WORDINGS[name])
    message = found.message
    assert (message.tried_bytes, message.total_bytes, message.free_bytes) == FIGURES[:3]
    assert (message.allocated_bytes, message.reserved_bytes, message.device) == (*FIGURES[3:], 0)
    assert (found.unallocated_bytes, found.outside_bytes) == (5 * GIB, 4 * GIB)


def test_free_blocks_of_private_pools_are_no_memory_of_tensors():
    found = explain_message(of_pids_and_pools())
    assert (found.message.allocated_bytes, found.message.private_pool_bytes) == (60 * GIB, 8 * GIB)
    assert "torch's 68.00 GiB includes 8.00 GiB free in private pools" in found.notes
    assert (found.message.reserved_bytes, found.unallocated_bytes) == (70 * GIB, 2 * GIB)


@pytest.mark.parametrize(
    ("reserved", "cause"), [(61 * GIB, "fragmented"), (26 * GIB, "wrong pool or stream")]
)
def test_the_larger_of_two_kinds_of_free_memory_is_named(reserved, cause):
    """3 GiB are free in private pools beside 37 GiB, or 2 GiB, in the ordinary ones."""
    found = explain_message(from_2_1(2 * GIB, 64 * GIB, GIB, 21 * GIB, reserved, pools=3 * GIB))
    assert found.cause == cause


def test_processes_are_separate_and_the_own_one_has_its_part_outside_torch():
    found = explain_message(from_2_1(*OTHERS, processes=process(4711, 47 * GIB) + own(32 * GIB)))
    assert found.message.other_processes == ((4711, 47 * GIB),)
    assert (found.message.process_bytes, found.own_outside_bytes, found.outside_bytes) == (
        32 * GIB,
        GIB,
        48 * GIB,
    )


def test_what_cuda_malloc_async_has_cached_is_in_no_text():
    text, *_ = OF_ALLOCATORS["async full"]
    found = explain_message(text)
    assert (found.message.allocated_bytes, found.message.allowed_bytes) == (23 * GIB, None)
    assert (found.message.reserved_bytes, found.unallocated_bytes, found.outside_bytes) == (
        None,
        None,
        None,
    )


def test_other_allocations_of_metal_are_not_torchs_cache():
    found = explain_message(of_mps(GIB, 17 * GIB, 6 * GIB, 18 * GIB))
    assert (found.message.reserved_bytes, found.message.metal_bytes) == (17 * GIB, 6 * GIB)
    assert (found.unallocated_bytes, found.message.allowed_bytes) == (None, 18 * GIB)
    assert "over the MPS limit of 18.00 GiB" in getattr(found.verdict, "sentence", "")
    assert "PYTORCH_MPS_HIGH_WATERMARK_RATIO" in found.next_step


def test_the_larger_part_of_what_counts_against_the_limit_of_metal_is_looked_at_first():
    assert explain_message(of_mps(GIB, 2 * GIB, 17 * GIB, 18 * GIB)).next_step.startswith(
        "look first at the other"
    )
    assert explain_message(of_mps(GIB, 17 * GIB, 2 * GIB, 18 * GIB)).next_step.startswith(
        "a smaller batch"
    )


def test_a_request_larger_than_a_device_that_shares_the_hosts_memory_is_to_be_smaller():
    found = explain_message(from_2_1(24 * GIB, 15 * GIB, 90 * GIB, GIB, 2 * GIB))
    assert (found.cause, found.next_step[:24]) == ("not known", "make the request smaller")


@pytest.mark.parametrize("name", ["2.7 Windows", "2.7 unified memory"])
def test_figures_that_are_more_than_the_device_give_no_difference(name):
    found = explain_message(OF_ALLOCATORS[name][0])
    assert found.outside_bytes is None
    assert any("host's memory" in note for note in found.notes)


@pytest.mark.parametrize(("tried", "words"), [(2 * MIB, "up to 1 MiB"), (20 * MIB, "1 to 10 MiB")])
def test_a_shared_segment_is_no_request_of_its_size(tried, words):
    text = from_2_1(tried, 80 * GIB, MIB, 70 * GIB, 79 * GIB)
    assert any(words in note for note in explain_message(text).notes)


def test_the_only_process_that_has_all_is_torchs_own():
    message = explain_message(from_2_1(*FULL, processes=process(4711, 79 * GIB))).message
    assert (message.process_bytes, message.other_processes) == (79 * GIB, ())


def test_a_process_that_torch_did_not_recognise_may_be_its_own():
    text = from_2_1(*OTHERS, processes=process(4711, 32 * GIB) + process(12, 47 * GIB))
    assert any("may be this one" in note for note in explain_message(text).notes)


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("DefaultCPUAllocator: not enough memory: you tried to allocate 8192 bytes.", 8192),
        ("Unable to allocate 3.50 GiB for an array", 3.5 * GIB),
        ("RuntimeError: Invalid buffer size: 24.00 GB", 24 * GIB),
    ],
)
def test_a_text_of_another_kind_has_its_request(text, n_bytes):
    assert explain_message(text).message.tried_bytes == n_bytes


def test_words_that_a_user_typed_are_read():
    found = explain_message("RuntimeError: CUDA out of the memory. Tried to allocate 360.00 MiB")
    assert (found.cause, found.message.tried_bytes) == ("not known", 360 * MIB)


def test_words_of_a_post_are_no_message():
    words = "Why the CUDA out of memory message? It tried to allocate 2.50 GiB."
    found = explain_message(f"{words}\n{from_2_1(*FIGURES)}\nStill cuda out of memory.")
    assert (found.n_messages, found.message.tried_bytes) == (1, 2 * GIB)


def test_of_several_messages_the_first_is_explained_and_all_are_counted():
    text = f"epoch 3\n{from_2_1(*FIGURES)}\nretrying with half\n{from_2_1(4 * GIB, *FIGURES[1:])}\n"
    found = explain_message(f"CUDA error: out of memory\n{text}")
    assert (found.n_messages, found.message.tried_bytes) == (2, 2 * GIB)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "epoch 3, loss 0.5",
        "CUDA is available",
        "allocate 2.00 GiB of disk",
        # Numbers that are no exit code and no signal, in logs of programs that go on.
        "step 100, episode return: -9.52",
        "episode_return=-9, length 20",
        "status: 137/1000 done",
        "noise of the signal: 9.5 dB",
        "the old sessions were killed",
        # What counts kills, switches the killer off, or denies one.
        "low 0\noom 0\noom_kill 0",
        "oom_kill_disable 0\nunder_oom 0",
        '"OOMKilled": false, "ExitCode": 1, "Error": ""',
        # The end of a name, the words of other programs, and a size that no buffer of Metal's is
        # refused for.
        "saved model0004.pt",
        "429 RESOURCE_EXHAUSTED: Quota allocation exceeded",
        "Resource limit (100) exceeded",
        "Invalid buffer size: 4096",
        # An access is no request: SGLang's advice that follows it speaks of memory.
        "Capture cuda graph failed: Triton Error [CUDA]: an illegal memory access was encountered\n"
        "Possible solutions:\n2. set --mem-fraction-static to a smaller value",
    ],
)
def test_a_text_without_a_message_is_refused(text):
    with pytest.raises(InputError, match="no out-of-memory message"):
        explain_message(text)


def test_a_message_without_its_figures_has_no_verdict():
    for text in ("CUDA out of memory.", "CUDA out of memory. Tried to allocate 2.00 GiB"):
        found = explain_message(text)
        assert (found.kind, found.verdict) == ("torch's allocator", None)
        assert found.meaning


def test_cached_pieces_beside_free_memory_are_said_not_to_serve_the_request():
    texts = [
        from_1_4(34 * MIB, 24 * GIB, 93 * MIB, 20 * GIB, 20 * GIB + n_bytes)
        for n_bytes in (33 * MIB, GIB)
    ]
    notes = [" ".join(explain_message(text).notes) for text in texts]
    assert [("had no piece that served the request either") in note for note in notes] == [
        False,
        True,
    ]


def test_a_text_that_is_cut_within_what_is_reserved_is_not_taken_for_an_older_release():
    text = from_1_4(44 * MIB, 24 * GIB, 36 * MIB, 20 * GIB, 23 * GIB).partition(" total by")[0]
    found = explain_message(text)
    assert found.cause == "fragmented"
    assert "max_split_size_mb" in found.next_step


def test_memory_and_error_of_two_lines_are_no_exception_of_python():
    """The line before is the longest, which a terminal may have broken."""
    assert (
        explain_message("the device was unable to give its memory\nError: 12").cause
        != "host memory"
    )


def test_every_process_of_a_message_is_shown():
    listed = "".join(f"Process {pid} has {pid}.00 GiB memory in use. " for pid in range(1, 7))
    text = from_2_1(72 * MIB, 40 * GIB, 60 * MIB, 10 * GIB, 10 * GIB, processes=listed)
    lines = [line.split() for line in message_lines(explain_message(text))]
    assert [f"{pid}.00 GiB process {pid}".split() in lines for pid in range(1, 7)] == [True] * 6


def test_a_small_request_of_old_torch_needs_a_segment_of_2_mib():
    text = (
        "CUDA out of memory. Tried to allocate 1024.00 KiB (GPU 0; 15.90 GiB total capacity; "
        "858.54 MiB already allocated; 1.88 MiB free; 14.39 GiB cached)"
    )
    assert explain_message(text).cause == "fragmented"


def test_other_processes_that_hold_what_is_missing_are_stopped_first():
    """What the process itself holds outside torch may be more, and cannot be told apart."""
    text = from_2_1(72 * MIB, 40 * GIB, 60 * MIB, 28 * GIB, 28 * GIB, processes=own(35 * GIB))
    others = text.replace("Including", "Process 7 has 5.00 GiB memory in use. Including")
    steps = [explain_message(words).next_step for words in (text, others)]
    assert [step.startswith("stop the other processes") for step in steps] == [False, True]


@pytest.mark.parametrize(
    ("processes", "reason", "step"),
    [
        (
            "Process 7 has 40.00 GiB memory in use. ",
            "process 7 holds 40.00 GiB of it",
            "stop process 7, which holds 40.00 GiB (`nvidia-smi` shows its program)",
        ),
        (
            "Process 7 has 30.00 GiB memory in use. Process 8 has 10.00 GiB memory in use. ",
            "2 other processes hold 40.00 GiB of it",
            "stop the other processes, which hold 40.00 GiB together",
        ),
    ],
)
def test_processes_that_hold_what_is_not_torchs_are_named_as_the_text_proves(
    processes, reason, step
):
    text = from_2_1(72 * MIB, 80 * GIB, 60 * MIB, 38 * GIB, 38 * GIB, processes=own(39 * GIB))
    found = explain_message(text.replace("Including", f"{processes}Including"))
    verdict = found.verdict
    assert (found.cause, verdict.reason, verdict.is_inferred) == (
        "held outside torch",
        reason,
        False,
    )
    assert found.next_step.startswith(step)


def test_beside_enough_free_memory_a_process_that_holds_most_is_named():
    text = from_2_1(72 * MIB, 24 * GIB, 300 * MIB, 7 * GIB, 7 * GIB, processes=own(8 * GIB))
    found = explain_message(text.replace("Including", f"{process(7, 15 * GIB)}Including"))
    assert found.cause == "not known"
    assert found.next_step.startswith("stop process 7, which holds 15.00 GiB")


def test_a_process_that_may_be_torchs_own_is_not_blamed():
    processes = "Process 7 has 30.00 GiB memory in use. Process 8 has 25.00 GiB memory in use. "
    text = from_2_1(72 * MIB, 80 * GIB, 20 * MIB, 20 * GIB, 20 * GIB, processes=processes)
    found = explain_message(text)
    assert found.cause == "held outside torch"
    assert found.verdict.is_inferred
    assert "process 7" not in found.next_step


@pytest.mark.parametrize(
    ("text", "begin"),
    [
        (
            from_2_1(544 * MIB, 12 * GIB, 6 * GIB, 3 * GIB, 4 * GIB, processes=""),
            "on Windows, where",
        ),
        (
            from_2_1(544 * MIB, 12 * GIB, 6 * GIB, 3 * GIB, 4 * GIB, processes=own(5 * GIB)),
            "run it",
        ),
        (from_1_4(544 * MIB, 12 * GIB, 6 * GIB, 3 * GIB, 4 * GIB), "run it again"),
        (
            'File "C:\\app\\a.py", line 7, in f\n'
            + from_1_4(544 * MIB, 12 * GIB, 6 * GIB, 3 * GIB, 4 * GIB),
            "on Windows, where",
        ),
    ],
)
def test_beside_enough_free_memory_the_page_file_comes_first_where_the_text_is_of_windows(
    text, begin
):
    """torch from 2.1 on lists what processes hold, but not on Windows."""
    step = explain_message(text).next_step
    assert step.startswith(begin)
    assert "larger page file" in step


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (from_1_4(*FIGURES).partition(" total by")[0], "reserved_bytes"),
        (from_1_4(*FIGURES).partition("erved in")[0], "reserved_bytes"),
        (from_2_1(*FIGURES).partition(" PyTorch but")[0], "reserved_bytes"),
        (from_1_4(*FIGURES).partition("ity;")[0], "total_bytes"),
        (from_1_4(*FIGURES).partition(" allocated;")[0], "allocated_bytes"),
        (from_1_4(*FIGURES).partition("ady allocated")[0], "allocated_bytes"),
        (from_2_1(*FIGURES).partition(" by PyTorch")[0], "allocated_bytes"),
    ],
)
def test_a_figure_whose_words_are_cut_is_read(text, field):
    assert getattr(explain_message(text).message, field) is not None


def test_a_bar_of_progress_below_a_cut_message_is_no_number_of_a_device():
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 48.00 MiB. GPU\n  0%|  "
    answer = explain_message(text)
    assert (answer.message.device, answer.message.tried_bytes) == (None, 48 * MIB)
    assert next(message_lines(answer)) == "CUDA out of memory: torch's allocator"
    assert b'"device":0' not in dumps(asdict(answer))


def test_what_is_cut_off_has_no_figures_that_it_does_not_have():
    whole = compacted(from_2_1(*FIGURES)).text
    for end in range(len(whole)):
        message = read_message(whole[:end])
        for found, true in zip(
            (message.tried_bytes, message.total_bytes, message.free_bytes, message.allocated_bytes),
            FIGURES[:4],
            strict=True,
        ):
            assert found in (None, true)


@pytest.mark.parametrize(
    "line", ["\n", "\r\n", "E   ", "[rank0]: \n", "(a) ", "1234567890", "allocate 1", "│"]
)
def test_what_stands_before_a_message_costs_no_more_than_its_length(line):
    began = time.process_time()
    found = explain_message(f"{line * 100_000}\nCUDA out of memory. Tried to allocate 2.00 GiB.")
    assert found.message.tried_bytes == 2 << 30
    assert time.process_time() - began < 5


def test_a_long_log_is_checked_between_its_pieces():
    calls = []
    text = "allocator: the memory of an arena\n" * 20_000
    with pytest.raises(InputError):
        explain_message(text, check=lambda: calls.append(len(calls)))
    assert len(calls) > 2 * len(text) // 8192

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        explain_message(text, check=stop)


def test_figures_above_a_message_are_not_those_of_the_message_before():
    text = (
        f"{from_1_4(*FULL, advice=False)}\nRuntimeError: CUDA out of memory. Tried to allocate "
        f"20.00 MiB"
    )
    found = explain_message(text)
    assert [one.message.total_bytes for one in (found, *found.others)] == [80 * GIB, None]


def test_a_request_larger_than_all_that_torch_has_is_looked_at_first():
    huge = (40 * GIB, 44 * GIB, 33 * GIB, 10 * GIB, 10 * GIB + MIB)
    steps = [explain_message(from_2_1(*figures)).next_step for figures in (huge, FULL)]
    assert [step.startswith("look at the shapes") for step in steps] == [True, False]
    assert "else a smaller batch" in steps[0]


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("OOM when allocating tensor with shape[64,512,112,112] and type float", 1568 * MIB),
        (
            (
                "OOM when allocating tensor with shape[64,512,112,112] and type half on "
                "/device:GPU:0"
            ),
            784 * MIB,
        ),
        ("OOM when allocating tensor with shape[8] and type string", None),
        (f"OOM when allocating tensor with shape[{'9' * 60}] and type float", None),
    ],
)
def test_a_shape_and_a_type_are_a_request(text, n_bytes):
    assert explain_message(text).message.tried_bytes == n_bytes


@pytest.mark.parametrize(
    "text",
    [
        "Unable to allocate 99999999999 PiB for an array",
        "OOM when allocating tensor with shape[,,] and type float",
        (
            f"{from_2_1(*FULL)} Process 41 has 1.2.3 MiB memory in use. Process 4 has .. GiB "
            "memory in use."
        ),
        (
            "Ran out of memory in memory space hbm. Used 1.2.3G of ..G hbm. Exceeded hbm capacity "
            "by .G"
        ),
        "Ran out of memory in memory space hbm. Used 20.0G of 16.0G hbm. See HBM capacity.",
        "Attempting to reserve 1.2.3G at the bottom of memory. That was not possible. There are "
        "2G free, 0B reserved, and 1G reservable.",
        "Failed to allocate memory for requested buffer of size 1,234,56",
        f"{from_2_1(*FULL)}\nGPUs 0,1,24 GB each",
        "More than 9.9.9% of the memory on node n is used (1.2.3 / 4.5.6 GB). RayOutOfMemoryError",
    ],
)
def test_a_number_that_is_none_is_no_figure_and_ends_no_answer(text):
    found = explain_message(text)
    assert dumps(asdict(found))


# --- several ranks and devices


def of_device(number, tried=2 * GIB, allocated=77 * GIB):
    return from_2_1(tried, 80 * GIB, GIB, allocated, 78 * GIB).replace("GPU 0", f"GPU {number}")


def test_the_first_message_of_every_device_is_explained():
    lines = (f"[rank{rank}]: {of_device(rank)}" for rank in (3, 1, 3))
    found = explain_message("\n".join([*lines, f"[rank1]: {of_device(1, GIB, 40 * GIB)}"]))
    assert (found.n_messages, found.rank, found.message.device) == (4, "rank 3", 3)
    assert [(other.rank, other.message.device, other.cause) for other in found.others] == [
        ("rank 1", 1, "full")
    ]


@pytest.mark.parametrize(
    ("n_devices", "last"), [(17, ("--json shows 1 more device")), (19, "3 more devices")]
)
def test_the_text_counts_the_devices_that_only_json_shows(n_devices, last):
    text = "\n".join(f"[rank{rank}]: {of_device(rank)}" for rank in range(n_devices))
    assert list(message_lines(explain_message(text)))[-1].endswith(last)


def test_ranks_that_all_call_their_device_0_are_told_apart_and_repeated_lines_are_not():
    text = "\n".join(
        [
            f"[rank0]: {of_device(0)}",
            f"[rank1]: {of_device(0, GIB)}",
            of_device(0),
            f"E   {of_device(0, GIB)}",
        ]
    )
    found = explain_message(text)
    assert [one.rank for one in (found, *found.others)] == ["rank 0", "rank 1"]


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [
        ("[rank3]: ", "rank 3"),
        ("[rank: 3] ", "rank 3"),
        ("[2026-03-03 03:03:03 DP1 TP3] ", "DP 1 TP 3"),
        ("(VllmWorker rank=3 pid=41) ERROR 03-16 06:12:38 [multiproc_executor.py:375] ", "rank 3"),
        ("\x1b[36m(RayWorker pid=41)\x1b[0m ", ""),
        ("2026-03-03T03:03:03.123Z ", ""),
    ],
)
def test_what_stands_before_a_line_names_its_rank_and_is_no_part_of_the_message(prefix, rank):
    text = before_every_line(prefix, from_2_1(*FIGURES), at=". ")
    found = explain_message(text)
    assert (found.rank, found.message.tried_bytes, found.unallocated_bytes) == (
        rank,
        2 * GIB,
        5 * GIB,
    )


# --- the cause and the first remedy


@pytest.mark.parametrize(
    ("reserved", "tried", "cause"),
    [
        (78 * GIB + 205 * MIB, 64 * MIB, "fragmented"),
        (78 * GIB + 205 * MIB, 4 * GIB, "full"),
        # No more than every full device has: a hundredth, and 256 MiB at most.
        (75 * GIB + 255 * MIB, 64 * MIB, "full"),
        (75 * GIB + 256 * MIB, 64 * MIB, "fragmented"),
        (15 * GIB + 165 * MIB, 64 * MIB, "full"),
        (15 * GIB + 166 * MIB, 64 * MIB, "fragmented"),
        # Enough, and no more than a partly used segment has beside it.
        (75 * GIB + 73 * MIB, 64 * MIB, "full"),
        # In one piece enough, and little beside what tensors hold: from two requests on.
        (22 * GIB + 225 * MIB, 200 * MIB, "full"),
        (22 * GIB + 399 * MIB, 200 * MIB, "full"),
        (22 * GIB + 400 * MIB, 200 * MIB, "fragmented"),
    ],
)
def test_full_is_judged_against_the_request_and_not_against_a_share(reserved, tried, cause):
    allocated = reserved // GIB * GIB if reserved < 78 * GIB else 75 * GIB
    found = explain_message(from_2_1(tried, reserved + GIB, 10 * MIB, allocated, reserved))
    assert found.cause == cause


@pytest.mark.parametrize(("reserved", "is_much"), [("2.35", True), ("3.40", False)])
def test_a_full_device_of_which_much_is_not_torchs_has_other_programs_in_its_next_step(
    reserved, is_much
):
    found = explain_message(
        "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 4.00 GiB total capacity; "
        f"{reserved} GiB already allocated; 1.89 MiB free; {reserved} GiB reserved in total by "
        f"PyTorch)"
    )
    assert found.cause == "full"
    assert ("also those of the desktop" in found.next_step) == is_much


def test_a_message_that_was_cut_before_what_is_free_does_not_say_who_holds_the_device():
    found = explain_message(
        "RuntimeError: CUDA out of memory. Tried to allocate 330.00 MiB (GPU 4; 10.92 GiB total "
        "capacity; 6.50 GiB already allocated;"
    )
    assert found.cause == "not known"
    assert "does not say who holds the rest of it: " in found.verdict.reason
    assert "4.42 GiB" not in str(found)


def test_a_message_that_was_cut_within_what_is_allocated_does_not_say_that_the_device_is_held():
    found = explain_message(
        "RuntimeError: CUDA out of memory. Tried to allocate 66.00 MiB (GPU 0; 15.77 GiB total "
        "capacity; 11."
    )
    assert found.cause == "not known"
    assert found.verdict.sentence == "the device lacked memory: 66.00 MiB more were needed"
    assert found.verdict.reason.startswith("the text does not say who holds it: ")


def test_a_message_with_what_is_free_alone_says_how_much_of_the_device_somebody_holds():
    found = explain_message(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total "
        "capacity of 31.50 GiB of which 1.25 GiB is free."
    )
    assert "does not say who holds 30.25 GiB of it" in found.verdict.reason


TRACEBACK = 'File "/site-packages/torch/{}", line 915, in {}\n    return f(x)\n'


@pytest.mark.parametrize(
    ("frames", "remedy"),
    [
        # Nothing says whether the program's inputs are texts or images.
        ((), "a smaller batch, shorter sequences or smaller images (none helps while weights"),
        ((("nn/modules/module.py", "_apply"),), "load the weights in fewer bytes"),
        ((("torch/serialization.py", "_cuda_deserialize"),), "load the weights in fewer bytes"),
        ((("optim/adamw.py", "_init_group"),), "an optimizer with smaller states"),
        (
            (("_tensor.py", "backward"),),
            "a smaller batch, shorter sequences or smaller images, or activation checkpointing",
        ),
        (
            (("nn/modules/module.py", "_apply"), ("_tensor.py", "backward")),
            "a smaller batch, shorter sequences or smaller images, or activation checkpointing",
        ),
        ((("generation/utils.py", "generate"),), "fewer or shorter sequences at once"),
        # Names that begin with those of torch's and transformers' functions.
        (
            (("model.py", "_apply_rotary_emb"),),
            ("a smaller batch, shorter sequences or smaller images (none"),
        ),
        (
            (("data.py", "generate_batch"),),
            ("a smaller batch, shorter sequences or smaller images (none"),
        ),
        ((("transformers/trainer_pt_utils.py", "nested_concat"),), "eval_accumulation_steps=20"),
        (
            (("fsdp/_state_dict_utils.py", "_full_pre_state_dict_hook"),),
            ("a state dict that is gathered"),
        ),
        ((("whisper/decoding.py", "run"),), "a smaller Whisper model"),
        ((("bbox/bbox_overlaps.py", "bbox_overlaps"),), "fewer boxes at once"),
        (
            (("nn/functional.py", "cross_entropy"),),
            "a smaller batch, shorter sequences or smaller images; of a language model the logits",
        ),
        ((("m.py", "forward\n    logits = logits.float()"),), "a smaller batch, shorter sequences"),
        (
            (("accelerate/utils/operations.py", "_convert_to_fp32"),),
            "a smaller batch, shorter sequences or smaller images; of a language model the logits",
        ),
        ((("m.py", "eager_attention_forward"),), "attention with a fused kernel"),
        ((("m.py", "f\n    sim = einsum('b i d, b j d', q, k)"),), "attention with a fused kernel"),
        ((("optim/optimizer.py", "load_state_dict"),), "a checkpoint that is read to the CPU"),
        ((("lora/layer.py", "get_delta_weight"),), "merge the adapter on the CPU"),
        (
            (("zero/stage3.py", "_create_fp16_partitions_with_defragmentation"),),
            "more of ZeRO's states on the CPU",
        ),
        (
            (("deepspeed/runtime/engine.py", "_configure_zero_optimizer"),),
            "more of ZeRO's states on the CPU",
        ),
        (
            (("zero/x.py", "f\n    single_grad_partition = torch.zeros(int(self.sizes[i]),"),),
            "more of ZeRO's states on the CPU",
        ),
        ((("fsdp/_flat_param.py", "unshard"),), "smaller units in FSDP"),
        ((("nn/parallel/distributed.py", "_ddp_init_helper"),), "gradient_as_bucket_view=True"),
        ((("assigners/max_iou_assigner.py", "assign"),), "fewer boxes at once"),
        ((("diffusers/pipelines/flux/pipeline_flux.py", "__call__"),), "a smaller image"),
        (
            (("model.py", "__init__\n    self.weight = nn.Parameter(torch.empty(9))"),),
            "load the weights in fewer",
        ),
        (
            (
                (
                    "chat.py",
                    ("<module>\n    model = AutoModel.from_pretrained('m', torch_dtype='auto')"),
                ),
            ),
            "load the weights in fewer",
        ),
        (
            (
                ("diffusers/models/autoencoders/autoencoder_kl.py", "decode"),
                ("nn/functional.py", "conv2d"),
            ),
            "decode the image in tiles",
        ),
    ],
)
def test_the_first_remedy_fits_where_the_program_was(frames, remedy):
    traceback = "".join(TRACEBACK.format(*frame) for frame in frames)
    found = explain_message(f"Traceback (most recent call last):\n{traceback}{from_2_1(*FULL)}")
    assert found.next_step.startswith(remedy)
    assert "`snapconv watch train.py`" in found.next_step


@pytest.mark.parametrize(("tried", "is_wrong"), [(48_000, False), (48_001, True)])
def test_a_request_of_a_thousand_devices_is_a_wrong_size(tried, is_wrong):
    text = from_1_4(tried * GIB, 48 * GIB, 40 * GIB, GIB, GIB)
    found = explain_message(text)
    assert found.cause == "larger than the device"
    assert ("most likely a size was computed" in found.next_step) == is_wrong


@pytest.mark.parametrize("below", ["", "Some words of a person.\n"])
def test_frames_below_a_message_count_where_none_stand_above_it(below):
    """A debugger shows the message first."""
    frame = 'File "D:\\\\a.py", line 8, in <module>\n    model = AutoModel.from_pretrained("m")\n'
    step = explain_message(f"{from_1_4(*FULL)}\n{below}{frame}").next_step
    assert step.startswith("load the weights in fewer bytes")
    other = TRACEBACK.format("nn/modules/linear.py", "forward")
    step = explain_message(f"{other}{from_1_4(*FULL)}\n{below}{frame}").next_step
    assert step.startswith("a smaller batch")


def test_a_frame_of_torchs_functions_computes_also_where_nothing_is_freed():
    filled = from_1_4(158 * MIB, 11 * GIB, 130 * MIB, 10 * GIB, 10 * GIB + MIB)
    frame = TRACEBACK.format("nn/functional.py", "threshold")
    assert explain_message(filled).next_step.startswith("if weights were being loaded")
    assert explain_message(frame + filled).next_step.startswith("a smaller batch")


@pytest.mark.parametrize(("free", "begin"), [(8.2, "look at the shapes"), (9.2, "run it again")])
def test_a_request_of_nearly_all_that_is_free_is_looked_at_first(free, begin):
    text = from_1_4(round(8.1 * GIB), 11 * GIB, round(free * GIB), GIB // 2, GIB // 2)
    found = explain_message(text)
    assert (found.cause, found.next_step.startswith(begin)) == ("not known", True)


@pytest.mark.parametrize("line", ["pipe.to(device)", "model = model.cuda()", 'unet.to("cuda:0")'])
def test_the_remedy_is_that_of_weights_where_the_program_moves_its_model(line):
    moving = (
        f'Traceback (most recent call last):\n  File "app.py", line 81, in <module>\n    {line}\n'
    )
    for text in (moving + from_2_1(*FULL), f"{from_2_1(*FULL)}\n\nThe whole log:\n{moving}"):
        assert explain_message(text).next_step.startswith("load the weights in fewer bytes")


def test_a_batch_that_is_moved_has_not_the_remedy_of_weights():
    moving = (
        'Traceback (most recent call last):\n  File "app.py", line 8, in f\n    x = '
        "batch.to(device)\n"
    )
    assert explain_message(moving + from_2_1(*FULL)).next_step.startswith("a smaller batch")


def test_data_larger_than_the_device_that_is_moved_at_once_is_moved_in_parts():
    moving = (
        'Traceback (most recent call last):\n  File "data.py", line 29, in __init__\n    self.data = '
        "data.view(n_rows, -1).t().contiguous().to(device)\nRuntimeError: "
    )
    for reserved in (0, 4 * GIB):
        larger = from_1_4(40 * GIB, 12 * GIB, 7 * GIB, reserved, reserved)
        next_step = explain_message(moving + larger).next_step
        assert next_step.startswith("keep this data in the host's memory and move a part of it")
        step_elsewhere = explain_message(moving.replace(".to(device)", "") + larger).next_step
        assert step_elsewhere.startswith("make this one request smaller")


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("The inference tends to accumulate memory each run.", "see what stays from step to step"),
        ("It fails after 55000 iterations, always:", "see what stays from step to step"),
        ("GPU memory keeps growing with every epoch until", "see what stays from step to step"),
        ("It happens during evaluation of the whole set:", "in an evaluation: torch.no_grad()"),
        ("The eval still seems to need too much:", "in an evaluation: torch.no_grad()"),
        ("It stops at `pipe = pipe.to(device)`:", "load the weights in fewer bytes"),
        ("My batch size is 8.", "a smaller batch"),
        ("lr_warmup=on evaluation_strategy=steps", "a smaller batch"),
    ],
)
def test_what_a_person_says_of_the_moment_decides_where_no_frame_does(words, remedy):
    in_a_step = f"Traceback (most recent call last):\n{TRACEBACK.format('optim/adam.py', 'step')}"
    cut = "CUDA out of memory. Tried to allocate 8.08 GiB. GPU "
    assert explain_message(f"{words}\n{from_1_4(*FULL)}").next_step.startswith(remedy)
    expected = "look at the shapes" if remedy == "a smaller batch" else remedy
    assert explain_message(f"{words}\n{cut}").next_step.startswith(expected)
    step = explain_message(f"{words}\n{in_a_step}{from_1_4(*FULL)}").next_step
    assert step.startswith("an optimizer with smaller states")


def test_a_server_whose_gpu_only_weights_have_filled_needs_a_smaller_model():
    n_used, total = round(92.8 * GIB), 95 * GIB
    filled = from_2_1(2 * GIB, total, GIB, n_used, n_used + 5 * MIB, processes=own(93 * GIB))
    server = "python3 -m sglang.launch_server --model-path some-80b\n"
    step = explain_message(server + filled).next_step
    assert step.startswith("if weights were being loaded, as is likely where torch has freed next")
    assert "else lower --mem-fraction-static" in step
    assert step.count("a quantized model or more GPUs (--tp)") == 1


def test_a_line_of_the_program_loads_no_weights_also_where_nothing_is_freed():
    filled = from_1_4(158 * MIB, 11 * GIB, 130 * MIB, 10 * GIB, 10 * GIB + MIB)
    frame = 'File "crf.py", line 27, in log_sum_exp\n    return score + torch.log(x)\n'
    assert explain_message(filled).next_step.startswith("if weights were being loaded")
    assert explain_message(frame + filled).next_step.startswith("a smaller batch")


def test_a_device_of_which_torch_has_nine_tenths_is_full_also_where_the_message_is_cut():
    cut = (
        "CUDA out of memory. Tried to allocate 1.96 GiB.\nGPU 4 has a total capacity of {} GiB of "
        "which 1.07 GiB is free.\n... 73.15 GiB is allocated by PyTorch ..."
    )
    assert explain_message(cut.format(79.11)).next_step.startswith("a smaller batch")
    assert explain_message(cut.format(95.00)).next_step.startswith("run it again with `nvidia-smi`")


def test_the_size_of_a_device_is_read_where_its_words_are_damaged():
    text = "CUDA out of memory. Tried to allocate 962.00 MiB (GPU 0; 23.65 GiBry Management and"
    assert explain_message(text).message.total_bytes == round(23.65 * GIB)


@pytest.mark.parametrize(
    "line",
    [
        "(RayWorkerWrapper pid=1, ip=1.2.3.4) ERROR 04-18 01:30:29 [worker_base.py:620] ",
        "(Worker pid=42) ERROR 08-04 16:54:59 [multiproc_worker_utils.py:238] ",
    ],
)
def test_a_worker_of_vllm_is_known_by_its_file(line):
    assert "--max-num-seqs" in explain_message(line + from_2_1(*FULL)).next_step


def test_a_model_that_is_quantized_stays_on_the_cpu():
    code = "\nfrom auto_gptq import AutoGPTQForCausalLM, BaseQuantizeConfig\n"
    next_step = explain_message(from_2_1(*FULL) + code).next_step
    assert next_step.startswith("keep the model on the CPU and let the quantizer move a layer")


@pytest.mark.parametrize(
    "frame",
    [
        "File /site-packages/torch/optim/adamw.py:566, in _multi_tensor_adamw(params, grads)",
        "/site-packages/torch/optim/adam.py in step(self, closure)",
        "[/site-packages/torch/optim/adam.py](https://localhost:8080/#) in step(self, closure)",
        "\u2502 C:\\venv\\site-packages\\torch\\optim\\adamw.py:566 in _multi_tensor_adamw \u2502",
    ],
)
def test_frames_of_notebooks_and_of_rich_say_where_the_program_was(frame):
    found = explain_message(f"{frame}\n--> 566     denom = exp_avg_sq\n{from_2_1(*FULL)}")
    assert found.next_step.startswith("an optimizer with smaller states")


def test_most_of_a_small_device_outside_torch_is_named():
    """A context and libraries take 2 GiB of no device that has no more."""
    found = explain_message(from_1_4(36 * MIB, 2 * GIB, 0, 233 * MIB, 258 * MIB))
    assert found.cause == "held outside torch"


def test_memory_of_the_same_process_outside_torch_is_not_blamed_on_others():
    found = explain_message(from_2_1(*OTHERS, processes=own(79 * GIB)))
    assert (found.cause, found.own_outside_bytes) == ("held outside torch", 48 * GIB)
    assert found.next_step.startswith("limit the other library in this process")


def test_a_fragmented_torch_has_a_remedy_on_windows_too():
    step = explain_message(from_2_1(*PIECES)).next_step
    assert (
        "expandable_segments:True (from torch 2.1); on Windows, which lacks it, or if it is not "
        "enough:"
    ) in step


def test_a_fragmented_torch_on_windows_is_not_told_a_setting_that_windows_lacks():
    text = from_2_1(*PIECES)
    path = 'File "C:\\app\\train.py", line 7, in f'
    steps = [explain_message(words).next_step for words in (f"{path}\n{text}", f"{text}\n{path}")]
    assert [step.startswith("a smaller batch") for step in steps] == [True, True]


@pytest.mark.parametrize(
    ("bars", "is_loading"),
    [
        ("Loading pipeline components...:  57%|###   | 4/7", True),
        (
            "Loading pipeline components...:  57%|###   | 4/7\nLoading pipeline components...: 100%",
            False,
        ),
        ("Loading weights:  12%|#     | 40/320", True),
    ],
)
def test_a_bar_that_is_not_at_its_end_says_that_weights_were_loaded(bars, is_loading):
    step = explain_message(f"{bars}\n{from_2_1(*FULL)}").next_step
    assert step.startswith("load the weights") is is_loading


def test_a_line_of_rich_without_a_function_says_that_weights_were_moved():
    line = "\u2502   1145     return self._apply(convert) \u2502"
    assert explain_message(f"{line}\n{from_2_1(*FULL)}").next_step.startswith("load the weights")


@pytest.mark.parametrize(
    ("unallocated", "frame", "is_likely"),
    [
        (MIB, "", True),
        (90 * MIB, "", False),
        (MIB, 'File "a.py", line 3, in forward\n', False),
    ],
)
def test_weights_are_likely_where_torch_has_freed_next_to_nothing(unallocated, frame, is_likely):
    message = from_2_1(72 * MIB, 24 * GIB, 60 * MIB, 23 * GIB, 23 * GIB + unallocated)
    step = explain_message(frame + message).next_step
    assert step.startswith("if weights were being loaded, as is likely") is is_likely


def test_processes_with_a_context_only_are_not_blamed():
    """Each rank of a job has a context on the first device, where it does not choose its own."""
    contexts = "".join(process(pid, 400 * MIB) for pid in range(4))
    figures = (136 * MIB, 24 * GIB, 90 * MIB, 21.75 * GIB, 21.75 * GIB + 40 * MIB)
    found = explain_message(from_2_1(*figures, processes=contexts))
    assert found.cause == "full"
    assert any("torch.cuda.set_device()" in note for note in found.notes)


def test_a_large_request_whose_message_is_cut_is_looked_at_first():
    cut = from_2_1(35 * GIB, 44 * GIB, 22 * GIB, 20 * GIB, 20 * GIB).partition(" is free")[0]
    assert explain_message(cut).next_step.startswith("look at the shapes")


def test_a_fragmented_torch_before_2_1_is_told_what_it_has():
    assert "max_split_size_mb" in explain_message(from_1_4(*PIECES)).next_step
    assert "expandable_segments" in explain_message(from_2_1(*PIECES)).next_step.partition(" (")[0]
    assert (
        "PYTORCH_NPU_ALLOC_CONF"
        in explain_message(from_1_4(*PIECES, backend="NPU", name="NPU")).next_step
    )


def test_a_message_that_is_cut_after_what_is_reserved_is_of_no_release_before_1_4():
    text = from_1_4(200 * MIB, 12 * GIB, 100 * MIB, 8 * GIB, 10 * GIB).partition("erved in")[0]
    assert explain_message(text).next_step.startswith(
        "set PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb"
    )


def test_a_fragmented_torch_is_advised_no_setting_that_its_release_does_not_have():
    from_1_4_on = explain_message(from_1_4(*PIECES, advice=False)).next_step
    assert (
        "max_split_size_mb:128 if this torch is 1.10 or newer; else a smaller batch"
    ) in from_1_4_on
    before = explain_message(from_1_0(*PIECES))
    assert before.cause == "fragmented"
    assert before.next_step.startswith("a smaller batch")
    assert "max_split_size_mb" not in before.next_step


def test_what_is_held_outside_a_large_device_of_hip_may_be_the_memory_of_the_host():
    text = (
        "HIP out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total capacity of 128.00 GiB of "
        "which 1.00 GiB is free. Of the allocated memory 57.00 GiB is allocated by PyTorch, and 70.00 "
        "MiB is reserved by PyTorch but unallocated."
    )
    assert any("most likely an APU" in note for note in explain_message(text).notes)
    # A MI250X has 64 GiB for each of its two devices, a MI300X 192.
    for other in ("HIP", "CUDA"), ("128.00", "63.98"), ("128.00", "191.98"):
        assert not any("APU" in note for note in explain_message(text.replace(*other)).notes)


def test_a_text_that_ends_within_the_words_of_what_is_allocated_has_that_figure():
    text = (
        "CUDA out of memory. Tried to allocate 42.00 MiB. GPU 0 has a total capacty of 39.39 GiB of "
        "which 31.94 MiB is free. Of the allocated memory 37.21 GiB is allo"
    )
    assert explain_message(text).message.allocated_bytes == round(37.21 * GIB)


def test_a_device_of_so_little_memory_is_taken_for_an_apu():
    text = (
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 400.00 MiB (GPU 0; 512.00 "
        "MiB total capacity; 150.00 MiB already allocated; 312.00 MiB free; 168.00 MiB reserved "
        "in total by PyTorch)"
    )
    found = explain_message(text)
    assert found.next_step.startswith("give the GPU more of the host's memory")
    assert "most likely an APU" in found.notes[-1]
    # What is free does not explain the refusal, but the note does.
    found = explain_message(text.replace("400.00 MiB", "2.00 MiB"))
    assert found.cause == "not known"
    assert "most likely an APU" in found.notes[-1]
    assert "UMA frame buffer" in found.notes[-1]
    assert found.next_step.startswith("give the GPU more of the host's memory")
    # Nor is it too large for what the firmware could give, or another program to blame.
    for figures in (("400.00 MiB", "1.20 GiB"), ("312.00 MiB free", "0 bytes free")):
        assert explain_message(text.replace(*figures)).next_step.startswith("give the GPU more")
    assert not explain_message(text.replace("512.00 MiB", "24.00 GiB")).notes


def test_pieces_are_not_missed_by_a_torch_that_has_more_than_the_device():
    text = (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 40.00 MiB. GPU 0 has "
        "a total capacity of 8.00 GiB of which 0 bytes is free. Of the allocated memory {} GiB is "
        "allocated by PyTorch, and 600.00 MiB is reserved by PyTorch but unallocated."
    )
    beyond, within = explain_message(text.format("12.00")), explain_message(text.format("7.00"))
    assert (beyond.cause, within.cause) == ("full", "fragmented")
    assert beyond.next_step.startswith("a smaller batch")


@pytest.mark.parametrize(
    ("free", "cause"), [(3, "full"), (65, "full"), (66, "not known"), (99, "not known")]
)
def test_the_last_few_mib_of_a_device_do_not_count_as_enough(free, cause):
    text = from_2_1(2 * MIB, 16 * GIB, free * MIB, 15 * GIB, 15 * GIB)
    found = explain_message(text)
    assert found.cause == cause
    assert found.verdict.is_inferred == (cause == "full")
    assert ("not in one piece that the driver could use" in found.verdict.sentence) == (
        cause == "full"
    )
    # Where another program holds the device, it is to blame.
    assert explain_message(text.replace("15.00 GiB", "1.00 GiB")).cause == (
        "held outside torch" if cause == "full" else "not known"
    )


def test_a_message_that_a_search_for_a_batch_size_caught_is_no_failure():
    text = (
        f"AutoBatch: Computing optimal batch size for --imgsz 640\n{from_2_1(*FULL)}\n"
        "AutoBatch: Using batch-size 8 for CUDA:0 5.00G/8.00G (60%)\n"
    )
    assert explain_message(text).next_step.startswith("nothing, if the training starts")
    found = explain_message(
        f"{text}Epoch 1/9\nTraceback (most recent call last):\n{from_2_1(*FULL)}"
    )
    assert found.next_step.startswith("set a smaller batch yourself, below")
    assert found.cause == "full"


def test_a_block_that_intels_driver_does_not_allow_comes_before_a_later_message():
    text = (
        "RuntimeError: Current platform can NOT allocate memory block with size larger than 4GB! "
        "Tried to allocate 5.00 GiB (GPU 0; 9.00 GiB total capacity; 0 bytes already allocated; 0 "
        "bytes reserved in total by PyTorch)"
    )
    later = text.replace(
        "Current platform can NOT allocate memory block with size larger than 4GB!",
        "XPU out of memory.",
    )
    assert explain_message(text).cause == "limited"
    found = explain_message(f"{text}\n{later.replace('5.00 GiB', '2.00 GiB')}")
    assert found.next_step.startswith("smaller tensors")


def test_the_warm_up_of_a_server_leads_to_its_own_setting():
    text = (
        "thread 'main' panicked at 'Unable to warmup model: Generation(\"Allocation on device 0 "
        "would exceed "
        "allowed memory. (out of memory)\\nCurrently allocated     : 60.00 GiB\\nRequested        "
        "       : "
        "9.00 GiB\\nDevice limit            : 79.00 GiB\\nFree (according to CUDA): 16.00 MiB\")'"
    )
    answer = explain_message(text)
    # 19 GiB are cached by the driver's pool, or held by others: the text does not say it.
    assert (answer.cause, answer.message.tried_bytes) == ("not known", 9 * GIB)
    assert answer.next_step.startswith("lower --max-batch-prefill-tokens")


def test_what_comfyui_logs_after_the_message_leads_to_its_own_setting():
    answer = explain_message(f"{from_2_1(*FULL)}\n\nGot an OOM, unloading all loaded models.")
    assert answer.cause == "full"
    assert answer.next_step.startswith("a smaller image, fewer frames")


def test_beside_enough_free_memory_no_server_asks_for_a_smaller_request():
    text = from_2_1(26 * MIB, 16 * GIB, 13 * GIB, 2 * GIB, 2 * GIB, backend="HIP")
    answer = explain_message(f"{text}\nThis error means you ran out of memory on your GPU.")
    assert answer.cause == "not known"
    assert answer.next_step.startswith("run it again with `amd-smi` beside it")


def test_what_a_process_holds_is_shown_where_the_text_lacks_what_torch_has():
    found = explain_message(cut(from_2_1(*FULL, processes=own(79 * GIB))))
    assert "       79.00 GiB  held by this process" in list(message_lines(found))
    assert found.verdict.reason == "the text does not say how much of that torch had cached"


def test_figures_that_contradict_each_other_are_shown_and_nothing_follows_from_them():
    found = explain_message(from_1_4(14 * GIB, 24 * GIB, 4 * GIB, 9 * GIB, 8 * GIB))
    assert found.verdict.sentence.startswith(
        "the figures contradict each other: 9.00 GiB in use of 8.00 GiB"
    )
    assert (found.unallocated_bytes, found.outside_bytes) == (None, None)
    assert "        8.00 GiB  reserved by torch" in list(message_lines(found))


def test_figures_that_are_more_than_the_device_in_sum_are_called_so():
    found = explain_message(from_2_1(3 * GIB, 80 * GIB, 2 * GIB, 78 * GIB, 79 * GIB))
    assert found.cause == "full"
    assert any("more than the device" in note for note in found.notes)


def test_torch_before_snapshots_is_advised_none():
    answer = explain_message(
        "THCudaCheck FAIL file=/build/THCStorage.cu line=66 error=2 : out of memory"
    )
    assert "snapconv" not in answer.next_step


def test_a_cuda_call_outside_torch_may_also_be_of_the_hosts_memory():
    assert "pinned memory of the host" in explain_message("CUDA error: out of memory").meaning


def test_what_windows_cannot_know_of_a_process_is_no_figure():
    text = from_2_1(*FULL, processes="Process 41 has 17179869184.00 GiB memory in use. ")
    text = (
        f"{text} Including non-PyTorch memory, this process has 17179869184.00 GiB memory in use."
    )
    message = explain_message(text).message
    assert (message.process_bytes, message.other_processes) == (None, ())


def test_a_server_around_torch_has_the_better_remedy():
    text = f"Capturing CUDA graph shapes:  43%\n{from_2_1(*FULL)}"
    found = explain_message(text)
    assert (found.cause, found.kind) == ("full", "torch's allocator")
    assert found.next_step.startswith("lower --gpu-memory-utilization")
    assert any(note.startswith("graph capture in vLLM: ") for note in found.notes)
    loading = explain_message(
        f"{from_2_1(*FULL)}\nException in worker while processing method load_model."
    )
    assert loading.next_step.startswith("load the weights in fewer bytes (a quantized model")
    trainer = 'File "/trl/trainer/grpo_trainer.py", line 12, in step\n'
    engine = 'File "/vllm/v1/engine/core.py", line 12, in step\n'
    assert explain_message(f"{engine}{from_2_1(*FULL)}").next_step.startswith(
        "lower --gpu-memory-util"
    )
    assert explain_message(f"{trainer}{engine}{from_2_1(*FULL)}").next_step.startswith(
        "a smaller batch"
    )
    workers = "".join(
        f"(VllmWorker rank={rank} pid=7) ERROR 03-19 07:27:53 [x.py:3] {from_2_1(*row)}\n"
        for rank, row in enumerate((FULL, PIECES))
    )
    found = explain_message(workers)
    assert [row.rank for row in (found, *found.others)] == ["rank 0", "rank 1"]
    step = explain_message(f"{engine}{from_2_1(*FULL)}").next_step
    # The second is fragmented: the allocator's setting comes first there.
    setting = explain_message(from_2_1(*PIECES)).next_step.partition("a smaller batch")[0]
    assert setting.startswith("set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
    assert [row.next_step for row in (found, *found.others)] == [step, f"{setting}{step}"]
    served = explain_message(f"Graph capturing finished in 9 secs\n{text}")
    assert not served.next_step.startswith("lower")


def test_a_kernel_that_was_skipped_is_no_reason_to_do_nothing_about_a_later_message():
    message = from_2_1(*FULL)
    usual = explain_message(message).next_step
    skipped = "Runtime error during autotuning:\n{}\nIgnoring this choice.\n"
    shared = "out of resource: shared memory, Required: 147456, Hardware limit: 101376."
    for before in (shared, "CUDA out of memory."):
        assert explain_message(f"{skipped.format(before)}{message}").next_step == usual
    named = f"select_algorithm.py:12] {shared}\n{message}"
    assert explain_message(named).next_step == usual
    assert explain_message(skipped.format(message)).next_step.startswith(
        "nothing, if the run goes on"
    )


@pytest.mark.parametrize(
    "before",
    [
        "2024-10-25 13:12:42 [core.py:12] ",
        "[core.py:12] ",
        "training, num_frames=16\n",
        "epoch 3 of the text-to-image data\n",
    ],
)
def test_words_of_many_programs_name_no_server(before):
    message = from_2_1(*FULL)
    found = explain_message(f"{before}{message}")
    assert (found.next_step, found.notes) == (explain_message(message).next_step, ())


def test_a_server_is_not_blamed_for_what_others_hold():
    engine = 'File "/vllm/v1/engine/core.py", line 12, in step\n'
    found = explain_message(engine + from_2_1(*OTHERS))
    assert (found.cause, found.next_step[:24]) == ("held outside torch", "stop the other processes")
    assert not any(note.startswith("vLLM") for note in found.notes)


def test_what_a_servers_own_process_holds_outside_torch_leads_to_the_servers_setting():
    engine = 'File "/vllm/v1/engine/core.py", line 12, in step\n'
    text = from_2_1(
        48 * MIB, 80 * GIB, 43 * MIB, 71 * GIB, 72 * GIB, processes=own(80 * GIB - 43 * MIB)
    )
    assert explain_message(text).next_step.startswith("limit the other library in this process")
    found = explain_message(f"{engine}{text}")
    assert found.cause == "held outside torch"
    assert found.next_step.startswith("lower --gpu-memory-utilization")


def test_a_process_that_cannot_stand_beside_torchs_memory_is_torchs_own():
    """In a container torch does not know its own process; what it and others hold is in use together."""
    row = (128 * MIB, 80 * GIB, 16 * MIB, 69 * GIB, 70 * GIB)
    others = process(41, 400 * MIB) + process(43, 340 * MIB)
    message = explain_message(from_2_1(*row, processes=others + process(42, 79 * GIB))).message
    assert (message.process_bytes, message.other_processes) == (
        79 * GIB,
        ((41, 400 * MIB), (43, 340 * MIB)),
    )
    # Torch has nothing yet but its context, for which the only other process leaves no room.
    row = (2 * MIB, 80 * GIB, 2 * MIB, 0, 0)
    message = explain_message(from_2_1(*row, processes=process(42, 80 * GIB))).message
    assert (message.process_bytes, message.other_processes) == (80 * GIB, ())
    row = (128 * MIB, 80 * GIB, 16 * MIB, 69 * GIB, 70 * GIB)
    # It may be another one, beside 70 GiB of torch's.
    message = explain_message(from_2_1(*row, processes=process(42, 9 * GIB))).message
    assert (message.process_bytes, message.other_processes) == (None, ((42, 9 * GIB),))


@pytest.mark.parametrize(
    "words",
    [
        "I don't think vLLM is using all the GPUs.",
        "the same code with vLLM version 0.2.5",
        "vllm.engine.multiprocessing.MQEngineDeadError: Engine loop is not running.",
        "OutOfMemoryError('Error in model execution (input dumped to /tmp/input.pkl)",
    ],
)
def test_a_person_or_an_exception_that_names_vllm_leads_to_its_setting(words):
    found = explain_message(f"{words}\n{from_2_1(*FULL)}")
    assert found.next_step.startswith("lower --gpu-memory-utilization")


@pytest.mark.parametrize(
    "words", ["ERROR Failed to load the model.", "\u6a21\u578b\u672a\u6210\u529f\u52a0\u8f7d"]
)
def test_a_model_that_was_not_loaded_needs_fewer_bytes_and_no_smaller_batch(words):
    for text in (f"{words}\n{from_2_1(*FULL)}", f"{from_2_1(*FULL)}\n{words}"):
        found = explain_message(text)
        assert (found.cause, found.next_step[:15]) == ("full", "a smaller model")
    training = explain_message(f"{words}\nepoch 3\n{from_2_1(*FULL)}")
    assert training.next_step.startswith("a smaller batch")


def test_a_server_is_known_where_the_first_words_of_torchs_message_are_missing():
    text = (
        "--gpu-memory-utilization 0.98: Tried to allocate 136.00 MiB. GPU 0 has a total capacity "
        "of 22.36 GiB of which 120.88 MiB is free."
    )
    assert explain_message(text).next_step.startswith("lower --gpu-memory-utilization")
    host = (
        "invokeai/app.py DefaultCPUAllocator: not enough memory: you tried to allocate 13107200 "
        "bytes."
    )
    assert explain_message(host).cause == "host memory"


def test_a_size_of_more_digits_than_a_float_has_is_read_to_the_byte():
    text = "Failed to allocate memory for requested buffer of size 4547406516732812543"
    assert explain_message(text).message.tried_bytes == 4547406516732812543


def test_an_exception_of_comfyui_leads_to_its_setting():
    found = explain_message(f"!!! Exception during processing !!! {from_2_1(*FULL)}")
    assert found.next_step.startswith("a smaller image, fewer frames")


def test_an_apu_is_known_by_its_size_also_in_the_words_of_torch_2_1():
    text = from_2_1(288 * MIB, 512 * MIB, 1 << 64, 243 * MIB, 263 * MIB, backend="HIP")
    found = explain_message(text.replace("capacity", "capacty"))
    assert found.next_step.startswith("give the GPU more of the host's memory")


def test_a_message_comes_before_what_a_person_wrote_of_it():
    prose = "I have a CUDA out of memory error: it tried to allocate 20.00 MiB of 80 GiB"
    found = explain_message(f"{prose}\n{from_2_1(*PIECES)}")
    assert (found.cause, found.message.device) == ("fragmented", 0)


def test_a_request_larger_than_any_device_is_a_wrong_size():
    found = explain_message("RuntimeError: CUDA out of memory. Tried to allocate 1234567.89 GiB")
    assert (found.cause, found.next_step[:18]) == ("larger than the device", "look at the shapes")
    found = explain_message("CUDA out of memory. Tried to allocate 1263.35 GiB.")
    assert found.cause == "larger than the device"
    assert found.next_step.startswith("look at the shapes")


def test_free_memory_of_a_servers_own_graphs_is_not_the_cause():
    """vLLM sizes its cache so that the device is full: its graphs use what is free in their pools again."""
    torchs = from_2_1(2 * GIB, 95 * GIB, GIB, 88 * GIB, 92 * GIB, pools=3 * GIB)
    warm_up = "CUDA out of memory occurred when warming up sampler with 1024 dummy requests."
    assert explain_message(torchs).cause == "wrong pool or stream"
    found = explain_message(f"{torchs}\nRuntimeError: {warm_up}")
    assert (found.cause, found.verdict.cause, found.message.private_pool_bytes) == (
        "full",
        "full",
        3 * GIB,
    )
    assert found.next_step.startswith("lower --max-num-seqs below 1024")


def test_active_memory_is_a_figure_where_the_text_has_it():
    assert (
        explain_message(from_1_4(*FULL, backend="NPU", name="NPU")).message.active_bytes == 77 * GIB
    )


# --- tables of torch.cuda.memory_summary()


def table(*, ooms=0, retries=0, allocated, reserved, partly_used, peak, active=None, old=False):
    """What torch.cuda.memory_summary(abbreviated=True) prints, made as its source does."""
    units = ("MB", "GB") if old else ("MiB", "GiB")

    def row(name, now, most):
        cells = (
            f"{n_bytes >> 20:6d} {units[0]}" for n_bytes in (now, most, 9 * most, 9 * most - now)
        )
        return f"| {name:<21} | {' | '.join(cells)} |"

    lines = [
        f"|{'=' * 75}|",
        f"| {'':16} PyTorch CUDA memory summary, device ID {1:<17d} |",
        f"|  {'':9} CUDA OOMs: {ooms:<12d} | {'':6} cudaMalloc retries: {retries:<8d}  |",
        "|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |",
        row("Allocated memory", allocated, peak),
        row("Active memory", allocated, active or peak),
        row("GPU reserved memory", reserved, reserved),
        row("Non-releasable memory", partly_used, partly_used),
    ]
    return "\n".join(lines)


MEMORY = {"allocated": 9 * GIB, "reserved": 20 * GIB, "partly_used": 3 * GIB, "peak": 18 * GIB}


@pytest.mark.parametrize("is_wrapped", [False, True])
@pytest.mark.parametrize("old", [False, True])
def test_a_memory_summary_is_read_as_a_message_is(old, is_wrapped):
    text = table(ooms=1, retries=4, old=old, **MEMORY)
    found = explain_message(wrapped(text, 60) if is_wrapped else text)
    summary = found.summary
    assert (summary.device, summary.n_ooms, summary.n_retries) == (1, 1, 4)
    assert (summary.allocated_bytes, summary.peak_allocated_bytes) == (9 * GIB, 18 * GIB)
    assert (summary.reserved_bytes, summary.partly_used_bytes) == (20 * GIB, 3 * GIB)
    assert summary.empty_segment_bytes == 8 * GIB
    assert [note.split()[:2] for note in found.notes] == [
        ["memory", "ran"],
        ["torch", "emptied"],
        ["fragmentation:", "free"],
    ]


def test_a_message_with_a_summary_below_it_has_both():
    found = explain_message(f"{from_2_1(*FULL)}\n{table(**MEMORY)}")
    assert (found.verdict.cause, found.summary.reserved_bytes) == ("full", 20 * GIB)
    assert explain_message(table(**MEMORY)).kind == "torch.cuda.memory_summary()"


def test_a_memory_summary_is_read_without_its_head():
    head, _, rows = table(ooms=1, **MEMORY).partition("| Allocated memory")
    assert "device ID" in head
    summary = explain_message(f"| Allocated memory{rows}").summary
    assert (summary.device, summary.n_ooms, summary.n_retries) == (None, None, None)
    assert (summary.allocated_bytes, summary.reserved_bytes) == (9 * GIB, 20 * GIB)
    assert summary.partly_used_bytes == 3 * GIB


@pytest.mark.parametrize(
    ("cut", "field", "n_bytes"),
    [
        ("CUDA out of memory. Tried to allocate 1.50 Gi", "tried_bytes", 3 * GIB // 2),
        ("(GPU 0; 8.00 GiB total capacity; 4.50 G", "allocated_bytes", 9 * GIB // 2),
        ("GPU 0 has a total capacity of 8.00 GiB of which 5.00 Mi", "free_bytes", 5 * MIB),
        ("GPU 0 has a total capacity of 8.00 G", "total_bytes", 8 * GIB),
        (
            "of which 5.00 MiB is free. Of the allocated memory 7.50 G",
            "allocated_bytes",
            15 * GIB // 2,
        ),
    ],
)
def test_the_end_of_a_text_may_cut_a_unit(cut, field, n_bytes):
    text = cut if "Tried" in cut else f"CUDA out of memory. Tried to allocate 20.00 MiB. {cut}"
    assert getattr(explain_message(text).message, field) == n_bytes


def test_a_remedy_of_a_web_ui_stands_once_beside_a_setting():
    frames = 'File "C:\\stable-diffusion-webui\\modules\\processing.py", line 5, in run\n'
    text = (
        "CUDA out of memory. Tried to allocate 256.00 MiB (GPU 0; 12.00 GiB total capacity; "
        "9.00 GiB already allocated; 0 bytes free; 11.00 GiB reserved in total by PyTorch)"
    )
    step = explain_message(frames + text).next_step
    assert step.startswith("set PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128")
    assert (step.count("a smaller image"), step.count("--lowvram")) == (1, 1)


@pytest.mark.parametrize(
    ("reserved", "begin"), [(11 * GIB + 200 * MIB, "load the weights"), (12 * GIB, "set PYTORCH")]
)
def test_little_cached_memory_is_no_reason_for_a_setting_while_weights_are_loaded(reserved, begin):
    frames = 'File "module.py", line 987, in convert\nFile "module.py", line 5, in _apply\n'
    found = explain_message(frames + from_2_1(20 * MIB, 13 * GIB, 18 * MIB, 11 * GIB, reserved))
    assert found.cause == "fragmented"
    assert found.next_step.startswith(begin)


def test_what_may_have_killed_a_container_is_no_lack_of_memory_in_the_first_line():
    text = "Last State: Terminated\n Reason: Error\n Exit Code: 137\n"
    first = next(message_lines(explain_message(text)))
    assert first.startswith("out of memory on the host, or another cause: ")


def test_a_model_that_is_being_loaded_has_the_step_for_that_alone():
    loading = 'File "/invokeai/x.py", line 3, in load\nFile "module.py", line 9, in _apply\n'
    figures = (20 * MIB, 2 * GIB, MIB, GIB, GIB + 50 * MIB)
    step = explain_message(loading + from_2_1(*figures)).next_step
    assert step.startswith("enable_partial_loading: true in invokeai.yaml")
    assert "a smaller image" not in step


def test_memory_that_waited_for_a_stream_is_what_was_active_beyond_what_was_allocated():
    found = explain_message(table(**MEMORY, active=19 * GIB))
    assert (found.summary.peak_active_bytes, found.summary.waited_bytes) == (19 * GIB, GIB)
    assert any(
        ("at least 1.00 GiB were freed and waited for another stream") in note
        for note in found.notes
    )
    assert found.next_step.startswith("wait for the other stream's work")
    without = explain_message(table(**MEMORY))
    assert without.summary.waited_bytes == 0
    assert without.next_step.startswith("a smaller batch")


def test_a_context_may_take_half_of_the_smallest_devices():
    found = explain_message(from_2_1(72 * MIB, GIB, 0, 378 * MIB, 418 * MIB))
    assert found.cause == "full"


def test_free_memory_that_is_little_of_the_device_is_no_room():
    scarce = explain_message(from_2_1(20 * MIB, 24 * GIB, 45 * MIB, 22 * GIB, 22 * GIB))
    enough = explain_message(from_2_1(20 * MIB, 24 * GIB, 245 * MIB, 22 * GIB, 22 * GIB))
    assert (scarce.cause, enough.cause) == ("full", "not known")
    assert scarce.verdict.is_inferred


def test_less_cached_memory_than_was_requested_is_no_fragmentation_where_the_driver_had_as_much():
    found = explain_message(from_2_1(850 * MIB, 10 * GIB, 863 * MIB, 8 * GIB, 8 * GIB + 297 * MIB))
    assert found.cause == "full"


def test_a_full_device_has_the_step_of_its_server_also_where_the_driver_left_a_few_mib():
    line = "ERROR text_generation_client: router/client/src/lib.rs:33: Server error: "
    figures = (2 * MIB, 24 * GIB, 3 * MIB, 22 * GIB - 100 * MIB, 22 * GIB)
    found = explain_message(line + from_2_1(*figures))
    assert found.next_step.startswith("lower --max-batch-prefill-tokens")


@pytest.mark.parametrize(("tried", "remedy"), [(18, "look at the shapes"), (2, "run it again")])
def test_a_large_request_without_other_figures_is_looked_at_by_its_shapes(tried, remedy):
    text = f"HIP out of memory. Tried to allocate {tried}.00 GiB. GPU"
    assert explain_message(text).next_step.startswith(remedy)


def test_cached_memory_may_be_retyped():
    text = from_2_1(*FULL).partition(" Tried")[0] + (
        " Tried to allocate 474.75 MiB (GPU 0; 5.93 GiB total capacity; 4.39 GiB already "
        "allocated; 445.06 MiB free; 503.89 MiB cache)"
    )
    assert explain_message(text).unallocated_bytes == pytest.approx(503.89 * MIB, abs=MIB)


def test_a_little_more_than_usual_outside_of_torch_is_a_context_and_not_another_program():
    own = "Including non-PyTorch memory, this process has 79.08 GiB memory in use. "
    text = from_2_1(20 * MIB, 79.1 * GIB, 10 * MIB, 76.8 * GIB, 76.9 * GIB, processes=own)
    assert explain_message(text).cause == "full"


def test_what_other_processes_are_listed_with_is_to_blame_also_where_it_is_little():
    listed = "Process 1 has 1.20 GiB memory in use. Process 2 has 0.90 GiB memory in use. "
    text = from_2_1(64 * MIB, 15.7 * GIB, 50 * MIB, 13.2 * GIB, 13.4 * GIB, processes=listed)
    assert explain_message(text).cause == "held outside torch"


def test_the_sentence_about_what_is_usual_outside_of_torch_has_the_bound_that_was_used():
    found = explain_message(from_2_1(20 * MIB, 2 * GIB, 0, 0.5 * GIB, 0.6 * GIB))
    assert found.cause == "held outside torch"
    assert "usually take less than 1.00 GiB" in found.verdict.reason


def test_a_program_that_keeps_its_own_limit_keeps_its_advice_for_a_wrong_size():
    found = explain_message("ERROR:  invalid memory alloc request size 18446744073709551613")
    assert (found.kind, found.cause) == ("PostgreSQL's largest request", "limited")


@pytest.mark.parametrize(
    ("line", "is_loading"),
    [
        ("model = model.to(device)", True),
        ("logits = model.to(device)(ids)", False),
        ("outputs = load_model_outputs(x)", False),
    ],
)
def test_only_a_line_that_moves_the_model_and_does_no_more_loads_weights(line, is_loading):
    moving = (
        f'Traceback (most recent call last):\n  File "a.py", line 81, in <module>\n    {line}\n'
    )
    step = explain_message(moving + from_2_1(*FULL)).next_step
    assert step.startswith("load the weights") == is_loading


def test_a_traceback_of_another_error_says_nothing_of_the_request():
    moving = (
        'Traceback (most recent call last):\n  File "a.py", line 8, in load_checkpoint\n'
        "    open(path)\n{}: no such file\n"
    )
    below = f"{from_2_1(*FULL)}\n{moving.format('FileNotFoundError')}"
    earlier = f"{moving.format('FileNotFoundError')}Traceback (most recent call last):\n"
    for text in (below, earlier + from_2_1(*FULL)):
        assert explain_message(text).next_step.startswith("a smaller batch")


@pytest.mark.parametrize(
    "text",
    [
        "fallocate: no space left in quota", "worker process 4512 was killed by signal 15",
        "lack of parameters", "Unable to create native thread pool", "unsupported system page size",
        "[drm] Not enough memory for command submission!",
    ],
)  # fmt: skip
def test_words_of_other_programs_are_no_known_failure_of_memory(text):
    with suppress(InputError):
        assert explain_message(text).cause == "not known"


def test_what_this_process_holds_outside_torch_is_not_called_another_ones():
    text = (
        "CUDA out of memory. Tried to allocate 48.00 MiB. GPU 7 has a total capacity of 80.00 GiB "
        "of which 40.00 MiB is free. Including non-PyTorch memory, this process has 79.00 GiB "
        "memory in use. Of the allocated memory 72.00 GiB is allocated by PyTorch, and 0 bytes is "
        "reserved by PyTorch but unallocated."
    )
    verdict = explain_message(text).verdict
    assert verdict.cause == "held outside torch"
    assert verdict.reason.startswith("7.00 GiB of it are this process's own")
    # Less than half of what is outside: the rest is somebody else's.
    verdict = explain_message(text.replace("79.00 GiB", "75.00 GiB")).verdict
    assert "another process" in verdict.reason


def test_a_figure_whose_word_was_retyped_wrongly_is_read():
    text = (
        "CUDA out of memory. Tried to allocate 2.97GiB(GPU 0; 10.92GiB total capacity; 5.99GiB "
        "already allocated; 1.7GiB free; 8.63GiB resrved in total by Pytorch)"
    )
    assert explain_message(text).message.reserved_bytes == round(8.63 * GIB)


def test_ipythons_class_before_a_frames_function_is_read_over():
    frame = "File ~/torch/nn/modules/module.py:797, in Module._apply(self, fn)\n"
    traceback = f"Traceback (most recent call last)\n{frame}"
    answer = explain_message(f"{traceback}{from_2_1(*FIGURES)}")
    assert "load the weights in fewer bytes" in answer.next_step


def test_a_process_that_is_given_less_than_torch_has_is_said_to_be_miscounted():
    message = (
        "CUDA out of memory. Tried to allocate 896.00 MiB. GPU has a total capacity of 22.00 GiB of "
        "which 759.00 MiB is free. Including non-PyTorch memory, this process has 0 bytes memory in "
        "use. Of the allocated memory 20.50 GiB is allocated by PyTorch, and 102.00 MiB is reserved "
        "by PyTorch but unallocated."
    )
    answer = explain_message(message)
    assert "the text gives this process 0 B, less than torch has in it" in "\n".join(answer.notes)
    assert "held by this process" not in "\n".join(message_lines(answer))


def test_the_environment_of_another_program_does_not_make_it_that_program():
    warning = "/home/user/ComfyUI/.venv/lib/python3.11/site-packages/torch/cuda/__init__.py:641: UserWarning"
    assert "ComfyUI" not in "".join(explain_message(f"{from_2_1(*FULL)}\n{warning}").notes)
    frame = 'File "/home/user/ComfyUI/nodes.py", line 268, in sample'
    assert "ComfyUI" in "".join(explain_message(f"{frame}\n{from_2_1(*FULL)}").notes)


def without_request(*figures):
    """The end of a message of torch 1.4 to 2.0, as it stays where a log cuts its beginning."""
    return from_1_4(0, *figures).partition("(")[2]


def test_a_request_whose_size_is_cut_off_was_larger_than_what_was_free():
    # 12 GiB asked; the text begins behind that.
    answer = explain_message(without_request(32 * GIB, 10 * GIB, 21 * GIB, 21 * GIB))
    assert (answer.cause, answer.message.tried_bytes) == ("full", None)
    assert answer.verdict.is_inferred
    assert answer.verdict.sentence.startswith("more than 10.00 GiB were needed")
    assert answer.next_step.startswith("look at the shapes")
    assert not answer.notes


def test_cached_memory_may_have_been_enough_for_a_request_whose_size_is_cut_off():
    answer = explain_message(without_request(32 * GIB, GIB, 20 * GIB, 30 * GIB))
    assert (answer.cause, answer.verdict) == ("not known", None)


def test_what_others_hold_is_blamed_also_where_the_request_is_cut_off():
    answer = explain_message(without_request(24 * GIB, 100 * MIB, 200 * MIB, 300 * MIB))
    assert answer.cause == "held outside torch"


@pytest.mark.parametrize(("n_bytes", "is_huge"), [(192 * GIB, True), (90 * GIB, False)])
def test_one_huge_request_without_figures_is_said_to_be_one(n_bytes, is_huge):
    text = f"torch.OutOfMemoryError: HIP out of memory. Tried to allocate {size(n_bytes)}."
    answer = explain_message(text)
    assert ("which is more than most devices have" in answer.meaning) == is_huge
    assert answer.next_step.startswith("look at the shapes")


@pytest.mark.parametrize(("cached", "begin"), [(MIB * 160, "a smaller"), (4 * GIB, "set PYTORCH")])
def test_a_setting_comes_second_where_next_to_nothing_is_cached(cached, begin):
    total = 8 * GIB
    text = from_1_4(50 * MIB, total, 20 * MIB, total - 2 * GIB - cached, total - 2 * GIB)
    answer = explain_message(text)
    assert answer.cause == "fragmented"
    assert answer.next_step.startswith(begin)
    assert "max_split_size_mb" in answer.next_step


def test_a_device_that_has_no_windows_gets_no_word_about_it():
    text = from_2_1(GIB, 32 * GIB, 500 * MIB, 20 * GIB, 30 * GIB).replace("CUDA", "NPU")
    answer = explain_message(text)
    assert (answer.backend, answer.cause) == ("NPU", "fragmented")
    assert "expandable_segments:True" in answer.next_step
    assert "Windows" not in answer.next_step


@pytest.mark.parametrize(("allocated", "is_said"), [(60 * GIB, True), (20 * GIB, False)])
def test_a_program_that_holds_most_itself_may_also_need_less(allocated, is_said):
    text = from_1_4(3 * GIB, 80 * GIB, GIB, allocated, 63 * GIB if is_said else 22 * GIB)
    answer = explain_message(text)
    assert answer.cause == "held outside torch"
    assert ("else a smaller batch" in answer.next_step) == is_said
