"""Texts about memory that ran out, of every backend and era, with what happened in each.

They are put together as the sources do: CUDACachingAllocator.cpp (1.0 to 2.15), CUDAMallocAsyncAllocator.cpp,
XPUCachingAllocator.cpp, MPSAllocator.mm, the allocators of torch_npu, MLU, MUSA and GCU, and for the kinds
without figures the libraries that raise them. A case begins with the memory as it was, and says why the
request failed; the text follows from the first alone.
"""

import time

import pytest

from snapconv.answers.oom.message import compact, explain_message, read_message
from snapconv.answers.oom.message_kinds import MESSAGE_KINDS
from snapconv.errors import InputError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def size(n_bytes, units=("KiB", "MiB", "GiB")):
    """format_size of torch: two decimals, from KiB on; "GB" for GiB in old releases and in MPS."""
    if n_bytes <= KIB:
        return f"{n_bytes} bytes"
    power = 3 if n_bytes > GIB else 2 if n_bytes > MIB else 1
    return f"{n_bytes / (1 << 10 * power):.2f} {units[power - 1]}"


def from_1_0(tried, total, free, allocated, reserved):
    return (
        f"RuntimeError: CUDA out of memory. Tried to allocate {size(tried)} (GPU 0; {size(total)} total "
        f"capacity; {size(allocated)} already allocated; {size(free)} free; {size(reserved - allocated)} "
        f"cached)"
    )


def from_1_4(
    tried, total, free, allocated, reserved, *, backend="CUDA", name="GPU", allowed=None, advice=True
):
    limit = f"{size(allowed)} allowed; " if allowed else ""
    active = f"{size(allocated + MIB)} current active; " if name == "NPU" else ""
    hint = " If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation."
    left = "" if free is None else f"{size(free)} free; "
    return (
        f"{backend} out of memory. Tried to allocate {size(tried)} ({name} 0; {size(total)} total capacity; "
        f"{size(allocated)} already allocated; {active}{left}{limit}{size(reserved)} reserved in total by "
        f"PyTorch){hint if advice else ''}"
    )


def from_2_1(
    tried, total, free, allocated, reserved, *, backend="CUDA", word="capacity", processes="", allowed=None,
    pools=None, more="",
):  # fmt: skip
    """torch 2.1 to 2.15; what is free in private pools counts as allocated in its text."""
    private = f"with {size(pools)} allocated in private pools (e.g., CUDA Graphs), " if pools else ""
    left = "" if free is None else f" of which {size(free)} is free"
    return (
        f"torch.OutOfMemoryError: {backend} out of memory. Tried to allocate {size(tried)}.{more} GPU 0 has "
        f"a total {word} of {size(total)}{left}. {processes}{f'{size(allowed)} allowed; ' if allowed else ''}"
        f"Of the allocated memory {size(allocated + (pools or 0))} is allocated by PyTorch, {private}and "
        f"{size(reserved - allocated - (pools or 0))} is reserved by PyTorch but unallocated. If reserved "
        f"but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to "
        f"avoid fragmentation."
    )


def of_malloc_async(tried, total, free, allocated, *, limit=(1 << 64) - 1, device="0", runtime="CUDA"):
    return (
        f"torch.OutOfMemoryError: Allocation on device {device} would exceed allowed memory. (out of "
        f"memory)\nCurrently allocated     : {size(allocated)}\nRequested               : {size(tried)}\n"
        f"Device limit            : {size(total)}\nFree (according to {runtime}): {size(free)}\n"
        f"PyTorch limit (set by user-supplied memory fraction)\n                        : {size(limit)}\n"
    )


def of_mps(tried, torchs, others, allowed=None, *, units=("KB", "MB", "GB")):
    limit = f", max allowed: {size(allowed, units)}" if allowed else ""
    hint = (
        " Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause "
        "system failure)."
    )
    return (
        f"RuntimeError: MPS backend out of memory (MPS allocated: {size(torchs, units)}, other allocations: "
        f"{size(others, units)}{limit}). Tried to allocate {size(tried, units)} on private pool."
        f"{hint if allowed else ''}"
    )


def of_npu_workspace(tried, total, free):
    return (
        f"NPU out of memory. NPUWorkspaceAllocator tried to allocate {size(tried)}(NPU 0; {size(total)} "
        f"total capacity; {size(free)} free)"
    )


def process(number, n_bytes):
    return f"Process {number} has {size(n_bytes)} memory in use. "


def own(n_bytes):
    return f"Including non-PyTorch memory, this process has {size(n_bytes)} memory in use. "


def of_pids_and_pools():
    return from_2_1(
        2 * GIB, 80 * GIB, GIB, 60 * GIB, 70 * GIB, pools=8 * GIB, processes=own(79 * GIB), word="capacty"
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
        from_2_1(*OTHERS, processes=process(41, 47 * GIB) + own(32 * GIB)), "held outside torch", True
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
    "2.7 Windows": (from_2_1(20 * MIB, 8 * GIB, 0, 14 * GIB - 200 * MIB, 14 * GIB), "full", False),
    "2.7 unified memory": (from_2_1(GIB, 15 * GIB, 85 * GIB, 9 * GIB, 9 * GIB), "not known", False),
    "2.8 HIP of an APU": (
        from_2_1(GIB, 16 * GIB, 9 * GIB, 4 * GIB, 5 * GIB, backend="HIP"), "not known", False
    ),
    "2.8 XPU without free": (from_2_1(*FULL[:2], None, *FULL[3:], backend="XPU"), "full", True),
    "2.8 XPU nearly empty": (
        from_2_1(8 * GIB, 15 * GIB, None, 0, 0, backend="XPU"), "not known", False
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
        "CUDA out of memory. Tried to allocate more than 1EB memory.", "larger than the device", False
    ),
    "2.15 reserve": (
        from_2_1(*FREE, more=" This allocation exceeds the expandable-segment reserve of 1.00 GiB,"),
        "limited", False,
    ),
    "2.15 MemPool": (
        from_2_1(*FREE, more=" The custom allocator backing this MemPool returned nullptr."),
        "not known", False,
    ),
    "NPU full": (from_1_4(*FULL, backend="NPU", name="NPU"), "full", False),
    "NPU fragmented": (from_1_4(*PIECES, backend="NPU", name="NPU"), "fragmented", True),
    "NPU workspace": (of_npu_workspace(2 * GIB, 61 * GIB, GIB), "full", False),
    "NPU workspace, free": (of_npu_workspace(2 * GIB, 61 * GIB, 9 * GIB), "not known", False),
    "MLU full": (from_1_4(*FULL, backend="MLU", name="MLU"), "full", False),
    "MUSA free above it": (from_2_1(*FREE, backend="MUSA"), "not known", False),
    "async full": (of_malloc_async(2 * GIB, 24 * GIB, 7 * MIB, 5 * GIB), "full", False),
    "async limit": (of_malloc_async(2 * GIB, 24 * GIB, 9 * GIB, 9 * GIB, limit=10 * GIB), "limited", False),
    "async free": (of_malloc_async(2 * GIB, 24 * GIB, 9 * GIB, 9 * GIB, device=""), "not known", False),
    "async larger": (of_malloc_async(90 * GIB, 24 * GIB, 9 * GIB, 9 * GIB), "larger than the device", False),
    "GCU async": (of_malloc_async(2 * GIB, 24 * GIB, GIB, 9 * GIB, runtime="TOPS"), "full", False),
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


WITHOUT_FIGURES = {
    "a CUDA call outside torch's allocator": (
        "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"
    ),
    "the CUDA driver": "RuntimeError: CUDA driver error: out of memory",
    "a HIP call outside torch's allocator": (
        "RuntimeError: HIP error: out of memory\nHIP kernel errors might be"
    ),
    "a GPU library": (
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR. CUDA ran out of memory outside PyTorch's "
        "allocator.",
    ),
    "NCCL": (
        "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nFailed to CUDA calloc async 608 "
        "bytes",
        "NCCL WARN Cuda failure 2 'out of memory'",
    ),
    "vLLM's sleep-mode pool": "CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62",
    "vLLM's KV cache": (
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
        "4.00 GiB KV cache is needed, which is larger than the available KV cache memory (1.20 GiB)",
    ),
    "vLLM's start": "Free memory on device cuda:0 (6.9/8.0 GiB) on startup is less than desired GPU memory "
    "utilization",
    "SGLang's start": "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
    "accelerate's batch size": "RuntimeError: No executable batch size found, reached zero.",
    "XPU": (
        "RuntimeError: level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
        "Native API returns: -5 (PI_ERROR_OUT_OF_RESOURCES) -5 (PI_ERROR_OUT_OF_RESOURCES)",
    ),
    "a Metal buffer": "RuntimeError: Invalid buffer size: 24.00 GiB",
    "Metal": "Error: command buffer exited with error status.\n\tInsufficient Memory (00000008:kIOGPU)",
    "the Ascend driver": "EL0004: [PID: 41] 2025-01-01 Failed to allocate memory.",
    "torch up to 1.0": (
        "THCudaCheck FAIL file=/pytorch/aten/src/THC/generic/THCStorage.cu line=58 error=2 : out of memory",
        "RuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/THCStorage.cu:58",
    ),
    "spconv": "RuntimeError: /io/spconv/indice.cu 126 cuda execution failed with error 2",
    "shared memory of a kernel": "triton.OutOfResources: out of resource: shared memory, Required: 131072",
    "XLA or JAX": "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4096 bytes.",
    "pinned memory": "Caught RuntimeError in pin memory thread for device 0.\nRuntimeError: CUDA error: out "
    "of memory",
    "/dev/shm": "Bus error. It is possible that dataloader's workers are out of shared memory.",
    "an allocation of the program": (
        "[enforce fail at alloc_cpu.cpp:114] DefaultCPUAllocator: can't allocate memory: you tried to "
        "allocate 8192 bytes",
        "$ Torch: not enough memory: you tried to allocate 24GB. Buy new RAM!",
        "numpy.core._exceptions.MemoryError: Unable to allocate 3.50 GiB for an array with shape (9,)",
    ),
    "a killed process": (
        "RuntimeError: DataLoader worker (pid 41) is killed by signal: Killed.",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=41.batch.",
    ),
    "unknown": "the worker raised OutOfMemoryError",
}  # fmt: skip
OF_KINDS = [
    (kind, text)
    for kind, texts in WITHOUT_FIGURES.items()
    for text in ([texts] if isinstance(texts, str) else texts)
]


@pytest.mark.parametrize(("kind", "text"), OF_KINDS)
def test_a_text_without_figures_has_its_kind_its_meaning_and_a_next_step(kind, text):
    found = explain_message(f"epoch 3, loss 0.5\n{text}\nexit\n")
    assert (found.kind, found.verdict) == (kind, None)
    assert found.meaning
    assert found.next_step


def test_every_kind_of_text_is_tried():
    assert {kind.name for kind in MESSAGE_KINDS} < WITHOUT_FIGURES.keys()
    assert len(OF_ALLOCATORS) + len(OF_KINDS) >= 60


# --- the figures


def before_every_line(prefix, text, *, at=" "):
    """A log in which a launcher, or a quotation, has words before every line."""
    return "\n".join(f"{prefix}{line}" for line in text.replace(at, f"{at}\n").splitlines())


def wrapped(text, width):
    """A terminal that breaks lines anywhere, in words and numbers too."""
    return "\n".join(text[i : i + width] for i in range(0, len(text), width))


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
    "engine and rank": before_every_line("(EngineCore pid=7) [rank0]: ", from_2_1(*FIGURES), at=". "),
    "container": before_every_line("2025-01-01T00:00:00.123Z ", from_2_1(*FIGURES), at=". "),
    "colours": "\x1b[31m" + from_2_1(*FIGURES).replace(". ", ".\x1b[0m "),
    "box": before_every_line("│ ", from_2_1(*FIGURES), at=". ").replace("\n", " │\n"),
    "escaped": from_2_1(*FIGURES).replace(". ", ".\\n"),
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
    assert (found.message.allocated_bytes, found.message.allowed_bytes) == (5 * GIB, None)
    assert (found.message.reserved_bytes, found.unallocated_bytes, found.outside_bytes) == (None, None, None)


def test_other_allocations_of_metal_are_not_torchs_cache():
    found = explain_message(of_mps(GIB, 17 * GIB, 6 * GIB, 18 * GIB))
    assert (found.message.reserved_bytes, found.message.metal_bytes) == (17 * GIB, 6 * GIB)
    assert (found.unallocated_bytes, found.message.allowed_bytes) == (None, 18 * GIB)
    assert "over the MPS limit of 18.00 GiB" in getattr(found.verdict, "sentence", "")
    assert "PYTORCH_MPS_HIGH_WATERMARK_RATIO" in found.next_step


@pytest.mark.parametrize("name", ["2.7 Windows", "2.7 unified memory"])
def test_figures_that_are_more_than_the_device_give_no_difference(name):
    found = explain_message(OF_ALLOCATORS[name][0])
    assert found.outside_bytes is None
    assert any("host's memory" in note for note in found.notes)


@pytest.mark.parametrize(("tried", "words"), [(2 * MIB, "up to 1 MiB"), (20 * MIB, "1 to 10 MiB")])
def test_a_shared_segment_is_no_request_of_its_size(tried, words):
    text = from_2_1(tried, 80 * GIB, MIB, 70 * GIB, 79 * GIB)
    assert any(words in note for note in explain_message(text).notes)


def test_a_process_that_torch_did_not_recognise_may_be_its_own():
    text = from_2_1(*FULL, processes=process(4711, 79 * GIB))
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


def test_of_several_messages_the_first_is_explained_and_all_are_counted():
    text = f"epoch 3\n{from_2_1(*FIGURES)}\nretrying with half\n{from_2_1(4 * GIB, *FIGURES[1:])}\n"
    found = explain_message(f"CUDA error: out of memory\n{text}")
    assert (found.n_messages, found.message.tried_bytes) == (2, 2 * GIB)


@pytest.mark.parametrize("text", ["", "epoch 3, loss 0.5", "CUDA is available", "allocate 2.00 GiB of disk"])
def test_a_text_without_a_message_is_refused(text):
    with pytest.raises(InputError, match="no out-of-memory message"):
        explain_message(text)


def test_a_message_without_its_figures_has_no_verdict():
    for text in ("CUDA out of memory.", "CUDA out of memory. Tried to allocate 2.00 GiB"):
        found = explain_message(text)
        assert (found.kind, found.verdict) == ("torch's allocator", None)
        assert found.meaning


def test_what_is_cut_off_has_no_figures_that_it_does_not_have():
    whole = compact(from_2_1(*FIGURES))
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


# --- tables of torch.cuda.memory_summary()


def table(*, ooms=0, retries=0, allocated, reserved, partly_used, peak, old=False):
    """What torch.cuda.memory_summary(abbreviated=True) prints, made as its source does."""
    units = ("MB", "GB") if old else ("MiB", "GiB")

    def row(name, now, most):
        cells = (f"{n_bytes >> 20:6d} {units[0]}" for n_bytes in (now, most, 9 * most, 9 * most - now))
        return f"| {name:<21} | {' | '.join(cells)} |"

    lines = [
        f"|{'=' * 75}|",
        f"| {'':16} PyTorch CUDA memory summary, device ID {1:<17d} |",
        f"|  {'':9} CUDA OOMs: {ooms:<12d} | {'':6} cudaMalloc retries: {retries:<8d}  |",
        "|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |",
        row("Allocated memory", allocated, peak),
        row("Active memory", allocated, peak),
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
