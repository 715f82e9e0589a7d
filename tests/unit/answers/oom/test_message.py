"""Torch's own text of an out-of-memory error, as each release writes it, read and explained.

The texts are put together as the sources of the releases do: CUDACachingAllocator.cpp (1.10 to 2.15),
CUDAMallocAsyncAllocator.cpp, XPUCachingAllocator.cpp, MPSAllocator.mm, and torch_npu's allocator.
"""

import time

import pytest

from snapconv.answers.oom.message import explain_message, read_message
from snapconv.errors import InputError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def size(n_bytes):
    """format_size of torch: two decimals, from KiB on."""
    if n_bytes <= KIB:
        return f"{n_bytes} bytes"
    for unit, name in ((KIB, "KiB"), (MIB, "MiB"), (GIB, "GiB")):
        if n_bytes <= unit << 10 or unit == GIB:
            return f"{n_bytes / unit:.2f} {name}"
    raise AssertionError


def up_to_2_0(tried, total, allocated, free, reserved, *, allowed=None, backend="CUDA", name="GPU"):
    limit = f"{size(allowed)} allowed; " if allowed else ""
    return (
        f"{backend} out of memory. Tried to allocate {size(tried)} ({name} 0; "
        f"{size(total)} total capacity; {size(allocated)} already allocated; {size(free)} free; "
        f"{limit}{size(reserved)} reserved in total by PyTorch) If reserved memory is >> allocated "
        "memory try setting max_split_size_mb to avoid fragmentation."
    )


def from_2_1(
    tried, total, allocated, free, reserved, *, word="capacity", processes="", allowed=None, pools=None
):
    limit = f"{size(allowed)} allowed; " if allowed else ""
    private = f"with {size(pools)} allocated in private pools (e.g., CUDA Graphs), " if pools else ""
    return (
        f"CUDA out of memory. Tried to allocate {size(tried)}. GPU 0 has a total {word} of "
        f"{size(total)} of which {size(free)} is free. {processes}{limit}Of the allocated memory "
        f"{size(allocated)} is allocated by PyTorch, {private}and {size(reserved - allocated)} is "
        "reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation"
    )


def of_npu(*figures):
    """torch_npu counts active memory too, between what is allocated and what is free."""
    text = up_to_2_0(*figures, backend="NPU", name="NPU")
    return text.replace("allocated; ", "allocated; 70.00 GiB current active; ", 1)


def before_every_line(prefix, text, *, at=" "):
    """A log in which a launcher, or a quotation, has words before every line."""
    return "\n".join(f"{prefix}{line}" for line in text.replace(at, f"{at}\n").splitlines())


FIGURES = (2 * GIB, 80 * GIB, 70 * GIB, 1 * GIB, 75 * GIB)


@pytest.mark.parametrize(
    "text",
    [
        up_to_2_0(*FIGURES),
        up_to_2_0(*FIGURES, backend="HIP"),
        of_npu(*FIGURES),
        from_2_1(*FIGURES, word="capacty"),
        from_2_1(*FIGURES),
        from_2_1(*FIGURES, pools=3 * GIB),
        f"torch.OutOfMemoryError: {from_2_1(*FIGURES)}",
        before_every_line("E   ", f"torch.cuda.OutOfMemoryError: {from_2_1(*FIGURES)}", at=". "),
        before_every_line("[rank3]: ", from_2_1(*FIGURES)),
        before_every_line("(Worker_TP0 pid=41) ", from_2_1(*FIGURES), at=". "),
    ],
    ids=["2.0", "hip", "npu", "2.1", "2.2 on", "pools", "traceback", "pytest", "ranks", "workers"],
)
def test_every_wording_gives_the_same_figures(text):
    found = explain_message(text)
    message = found.message
    assert (message.tried_bytes, message.total_bytes, message.allocated_bytes) == FIGURES[:3]
    assert (message.free_bytes, message.reserved_bytes, message.device) == (*FIGURES[3:], 0)
    assert (found.unallocated_bytes, found.outside_bytes) == (5 * GIB, 4 * GIB)


def test_processes_are_separate_and_the_own_one_has_its_part_outside_torch():
    processes = (
        "Process 4711 has 20.00 GiB memory in use. Including non-PyTorch memory, this process has "
        "55.00 GiB memory in use. "
    )
    figures = (2 * GIB, 80 * GIB, 50 * GIB, 1 * GIB, 54 * GIB)
    found = explain_message(from_2_1(*figures, processes=processes))
    assert found.message.other_processes == ((4711, 20 * GIB),)
    assert (found.message.process_bytes, found.own_outside_bytes) == (55 * GIB, 1 * GIB)
    assert (found.verdict.cause, found.outside_bytes) == ("held outside torch", 25 * GIB)


def test_a_process_that_torch_did_not_recognise_may_be_its_own():
    text = from_2_1(*FIGURES, processes="Process 4711 has 79.00 GiB memory in use. ")
    assert any("may be this one" in note for note in explain_message(text).notes)


@pytest.mark.parametrize(
    ("text", "cause", "is_inferred"),
    [
        (up_to_2_0(2 * GIB, 80 * GIB, 78 * GIB, 512 * MIB, 79 * GIB), "full", False),
        (from_2_1(2 * GIB, 80 * GIB, 60 * GIB, 512 * MIB, 79 * GIB), "fragmented", True),
        (from_2_1(2 * GIB, 80 * GIB, 30 * GIB, 30 * GIB, 31 * GIB), "limited", True),
        (from_2_1(2 * GIB, 80 * GIB, 30 * GIB, 30 * GIB, 31 * GIB, allowed=32 * GIB), "limited", False),
        (up_to_2_0(2 * GIB, 80 * GIB, 30 * GIB, 30 * GIB, 31 * GIB, allowed=32 * GIB), "limited", False),
        (from_2_1(2 * GIB, 80 * GIB, 30 * GIB, 512 * MIB, 31 * GIB), "held outside torch", True),
        (from_2_1(130206 * GIB, 24 * GIB, 5 * GIB, 16 * GIB, 6 * GIB), "larger than the device", False),
    ],
    ids=["full", "fragmented", "inferred limit", "limit", "limit of 2.0", "outside", "too large"],
)
def test_the_verdict_follows_from_the_figures(text, cause, is_inferred):
    verdict = explain_message(text).verdict
    assert (verdict.cause, verdict.is_inferred) == (cause, is_inferred)


@pytest.mark.parametrize(("tried", "words"), [(2 * MIB, "up to 1 MiB"), (20 * MIB, "1 to 10 MiB")])
def test_a_shared_segment_is_no_request_of_its_size(tried, words):
    text = from_2_1(tried, 80 * GIB, 70 * GIB, 1 * MIB, 79 * GIB)
    assert any(words in note for note in explain_message(text).notes)


def test_more_than_the_device_has_is_memory_of_the_host():
    text = from_2_1(20 * MIB, 8 * GIB, 14 * GIB, 0, 14 * GIB)
    found = explain_message(text)
    assert found.message.free_bytes == found.outside_bytes == 0
    assert any("Windows" in note for note in found.notes)


def test_xpu_has_no_free_memory_in_its_first_texts():
    text = (
        "XPU out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 48.00 GiB. Of the "
        "allocated memory 40.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but "
        "unallocated. Please use `empty_cache` to release all unoccupied cached memory."
    )
    found = explain_message(text)
    assert (found.message.backend, found.message.device) == ("XPU", 1)
    assert (found.message.reserved_bytes, found.message.free_bytes) == (41 * GIB, None)
    assert (found.verdict.cause, found.verdict.is_inferred, found.outside_bytes) == ("full", True, None)


def test_cuda_malloc_async_has_words_of_its_own():
    text = (
        "Allocation on device 0 would exceed allowed memory. (out of memory)\n"
        "Currently allocated     : 9.43 GiB\nRequested               : 640.00 MiB\n"
        "Device limit            : 11.59 GiB\nFree (according to CUDA): 7.12 MiB\n"
        "PyTorch limit (set by user-supplied memory fraction)\n                        : 17179869184.00 GiB"
    )
    message = explain_message(text).message
    assert (message.tried_bytes, message.device) == (640 * MIB, 0)
    assert (message.allocated_bytes, message.total_bytes) == (round(9.43 * GIB), round(11.59 * GIB))
    assert explain_message(text).verdict.cause == "full"
    limited = text.replace("17179869184.00", "10.00")
    assert explain_message(limited).verdict.cause == "limited"


def test_mps_has_words_of_its_own():
    text = (
        "MPS backend out of memory (MPS allocated: 8.00 GB, other allocations: 512.00 MB, "
        "max allowed: 9.00 GB). Tried to allocate 1.00 GB on private pool. Use "
        "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations."
    )
    found = explain_message(text)
    assert (found.message.backend, found.message.tried_bytes) == ("MPS", GIB)
    assert (found.message.allowed_bytes, found.message.reserved_bytes) == (9 * GIB, 8 * GIB + 512 * MIB)
    assert (found.verdict.cause, found.verdict.is_inferred) == ("limited", False)


def test_texts_of_torch_2_15_without_figures_are_explained():
    preempted = (
        "CUDA out of memory. Allocation was preemptively rejected because it would exceed "
        "per_process_memory_fraction limit. Requested size: 2.00 GiB"
    )
    assert explain_message(preempted).verdict.cause == "limited"
    absurd = explain_message("CUDA out of memory. Tried to allocate more than 1EB memory.")
    assert absurd.verdict is None
    assert any("negative" in note for note in absurd.notes)


def test_an_error_of_the_driver_is_not_one_of_the_allocator():
    found = explain_message("RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be")
    assert (found.message.is_of_driver, found.verdict) == (True, None)
    assert any("driver" in note for note in found.notes)


def test_of_several_messages_the_first_is_explained_and_all_are_counted():
    second = from_2_1(4 * GIB, *FIGURES[1:])
    found = explain_message(f"epoch 3\n{from_2_1(*FIGURES)}\nretrying with half of the batch\n{second}\n")
    assert (found.n_messages, found.message.tried_bytes) == (2, 2 * GIB)


@pytest.mark.parametrize("text", ["", "epoch 3, loss 0.5", "CUDA is available"])
def test_a_text_without_a_message_is_refused(text):
    with pytest.raises(InputError, match="no out-of-memory message"):
        explain_message(text)


def test_what_is_cut_off_has_no_figures_that_it_does_not_have():
    whole = from_2_1(*FIGURES)
    for end in range(len("CUDA out of memory."), len(whole), 7):
        message = read_message(whole[:end])
        for found, true in zip(
            (message.tried_bytes, message.total_bytes, message.allocated_bytes, message.free_bytes),
            FIGURES[:4],
            strict=True,
        ):
            assert found in (None, true)


@pytest.mark.parametrize("line", ["\n", "\r\n", "E   ", "[rank0]: \n"])
def test_what_stands_before_a_message_costs_no_more_than_its_length(line):
    began = time.process_time()
    found = explain_message(f"{line * 100_000}CUDA out of memory. Tried to allocate 2.00 GiB.")
    assert found.message.tried_bytes == 2 << 30
    assert time.process_time() - began < 5
