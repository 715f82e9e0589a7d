"""Texts about memory that ran out: those of torch's allocator, and every other kind, one row each.

Patterns are searched in a text without white space, so that no line break of a terminal hides a match; the
spaces in them are for the reader. The order of the rows decides between two that begin at the same place.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from snapconv.answers.oom.verdict import OomCause
from snapconv.torch_knowledge.backends import BACKENDS


def squeezed(pattern: str) -> re.Pattern[str]:
    """Compile a pattern for texts without white space."""
    return re.compile(pattern.replace(" ", ""), re.IGNORECASE)


# The begin of a message of torch's allocator; the second is cudaMallocAsync's.
BEGINNINGS = squeezed(
    rf"(?P<backend>(?-i:{'|'.join(BACKENDS)}|OpenCL))(?: backend)? out of memory|"
    r"Allocation on device -?\d{0,3} would exceed allowed memory"
)

NEXT_STEPS = {
    OomCause.FULL: "{watch}",
    OomCause.FRAGMENTED: "{expandable}",
    OomCause.OTHER_POOL: "let CUDA graphs share a pool (torch.cuda.graph(..., pool=...)), or capture fewer",
    OomCause.LIMIT: "raise or remove the limit: set_per_process_memory_fraction(), or {variable}",
    OomCause.OUTSIDE: "`{monitor}` shows the processes on the device",
    OomCause.TOO_LARGE: "look at the shapes in the traceback's last line of your code",
    OomCause.UNKNOWN: "run it again with `{monitor}` beside it; {watch}",
}
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
)
MPS_LIMIT = (
    "a smaller batch or sequence; a higher PYTORCH_MPS_HIGH_WATERMARK_RATIO may make the system fail, as "
    "torch warns"
)


@dataclass(frozen=True, slots=True)
class MessageKind:
    """A text that is not of torch's allocator: what it usually means, and what to do next.

    A group of the pattern is the size of the request, where the text has it.
    """

    name: str
    pattern: str
    meaning: str
    next_step: str
    is_host: bool = False

    def search(self, text: str) -> re.Match[str] | None:
        """Find its first words in a text without white space."""
        return squeezed(self.pattern).search(text)


# Placeholders in the table for texts that several rows share.
_SHARED = {
    "<watch>": "`nvidia-smi` while it runs; `snapconv watch train.py` shows what torch holds",
    "<less>": "leave room: a smaller batch, or torch.cuda.set_per_process_memory_fraction(0.9)",
    "<host>": "`free -g` while it runs; fewer DataLoader workers, a smaller prefetch_factor, or more memory "
    "for the job",
    "<shapes>": NEXT_STEPS[OomCause.TOO_LARGE],
    "<size>": r"(\d{1,20}(?:\.\d{1,9})?(?:bytes|[KMGT]i?B|B)?)",
}
# A name, and below it: a pattern that is *seen* in a text, what that usually *means*, what to do *next*, and
# *host* where the host's memory ran out, not a device's. Lines that are indented further continue a part.
_TABLE = r"""
vLLM's sleep-mode pool
    seen CUDA Error: out of memory at \S{0,200}cumem_allocator
    means vLLM's pool for weights and KV cache (cumem_allocator) got no memory from the driver: they do not
      fit, or another process, often a trainer on the same GPU, still holds memory
    next `nvidia-smi` for other processes; then lower --gpu-memory-utilization
vLLM's KV cache
    seen No available memory for the cache blocks|larger than the (?:available KV cache memory|maximum number
      of tokens that can be stored in KV cache)
    means after the weights and a trial run, vLLM's share of the GPU has too little left for the KV cache
    next raise --gpu-memory-utilization, or lower --max-model-len; else quantize or use more GPUs
vLLM's start
    seen Free memory on device .{0,80}less than desired GPU memory utilization
    means vLLM's share of the GPU is larger than what other processes left free
    next `nvidia-smi` for other processes; or lower --gpu-memory-utilization
SGLang's start
    seen Not enough memory\. Please try (?:to increase|increasing) --mem-fraction-static
    means after the weights, SGLang's share of the GPU has nothing left for the KV cache
    next raise --mem-fraction-static; else quantize or use more GPUs
accelerate's batch size
    seen No executable batch size found, reached zero
    means every batch size down to 1 ran out of memory: find_executable_batch_size halves it and hides each
      message
    next run once with batch size 1 and without it: the message then says what is full
NCCL
    seen Failed to CUDA (?:host )?[cm]alloc(?: async)? \d|Cuda failure (?:2 )?'out of memory'
    means NCCL allocates its buffers outside torch's allocator when a communicator first works, and the GPU
      was full
    next <less>; or start NCCL early, by a barrier before the model is built
a GPU library
    seen (?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE|CURAND|HIPBLAS|HIPSPARSE)_STATUS_ALLOC(?:ATION)?_FAILED|
      CUFFT_ALLOC_FAILED|rocblas_status_memory_error|miopenStatusAllocFailed|
      CUDA ran out of memory outside PyTorch's allocator
    means a library (cuBLAS, cuDNN, …) allocates its workspace outside torch's allocator, and torch had left
      nearly nothing; rarely it is an earlier error, such as an index out of range
    next <less>; if the GPU is not full, rerun with CUDA_LAUNCH_BLOCKING=1
pinned memory
    seen (?:pin_memory|pin memory thread|cudaHostAlloc|cudaHostRegister).{0,2000}CUDA error: out of memory
    means no host memory could be pinned: the machine's memory, not the GPU's, or the limit of locked memory
    next pin_memory=False, or a smaller batch; `ulimit -l` and `free -g` show the limits
    host
the CUDA driver
    seen CUDA driver error: (?:2 \()?out of memory|CUDA_ERROR_OUT_OF_MEMORY
    means the driver refused memory below torch's allocator: with expandable segments no page was left, or a
      context or a kernel did not fit
    next <watch>
torch up to 1.0
    seen cuda runtime error \(2\)|THCudaCheck FAIL \S{0,200}error=2
    means torch up to 1.0 writes this when its allocator finds no memory: the GPU is full
    next <watch>
spconv
    seen cuda execution failed with error 2(?!\d)|spconv\S{0,500}cuda\S{0,40}out of memory
    means spconv allocates its tables outside torch's allocator, or too many voxels were active
    next fewer points or larger voxels; <less>
a HIP call outside torch's allocator
    seen HIP error: out of memory|hipErrorOutOfMemory
    means a HIP call outside torch's allocator got no memory, or the GPU was full when the process started
    next `amd-smi process` for other processes
a CUDA call outside torch's allocator
    seen CUDA ?(?:runtime )?error:? \"?out of memory|cudaErrorMemoryAllocation|
      cudaMalloc failed: out of memory|Error out of memory at line \d
    means a CUDA call outside torch's allocator got no memory: at the start of a process its context (the GPU
      is already full), later a library or a kernel
    next `nvidia-smi` for other processes, also those of earlier runs
XPU
    seen (?:UR|ZE)_RESULT_ERROR_OUT_OF_(?:DEVICE_MEMORY|RESOURCES|HOST_MEMORY)|PI_ERROR_OUT_OF_RESOURCES|
      level_zero backend failed with error: (?:39|40)|NOT allocate memory block with size larger than 4 ?GB
    means Intel's driver refused memory: the GPU is full, one block is larger than the driver allows (4 GiB on
      some), or an integrated GPU has used up its share of the host's memory
    next `xpu-smi` for other processes; smaller blocks; a smaller batch
a Metal buffer
    seen Invalid buffer size: <size>
    means one tensor is larger than Metal's largest buffer, whatever is free
    next <shapes>
Metal
    seen kIOGPUCommandBufferCallbackErrorOutOfMemory|Insufficient Memory \(0{0,7}8
    means macOS stopped a GPU command because the machine's memory was used up
    next close other programs; a smaller batch
the Ascend driver
    seen EL0004|(?:rtMalloc|aclrtMalloc\w*)\W{0,4}\S{0,80}fail|error code (?:is )?207001
    means the NPU's driver refused memory: another process has it, or operators outside torch's allocator
    next `npu-smi info` for other processes
shared memory of a kernel
    seen out of resources?: shared memory
    means a kernel needs more shared memory of one multiprocessor than it has: this is not the GPU's memory
    next a smaller block size or fewer stages (num_stages) of the Triton kernel
XLA or JAX
    seen RESOURCE_EXHAUSTED: \S{0,40}(?:out of memory|allocat)
    means XLA's own allocator found no memory; JAX takes 75 % of a GPU at its start, which torch then lacks
    next XLA_PYTHON_CLIENT_PREALLOCATE=false where torch is in the same job
/dev/shm
    seen out of shared memory|Bus error\S{0,80}shared memory|unable to (?:write|mmap) \S{0,120}/torch_
    means DataLoader workers pass batches through /dev/shm, which is full: host memory, not the GPU's
    next a larger --shm-size (docker), or fewer workers
    host
an allocation of the program
    seen you tried to allocate <size>|Unable to allocate <size> for an array|std::bad_alloc|
      Cannot allocate memory|_ArrayMemoryError
    means the machine's memory ran out, not the GPU's
    next <host>
    host
a killed process
    seen oom[-_]?kill|Killed process \d|killed by signal: Killed|exit ?code ?: ?-9(?!\d)
    means the kernel, or the limit of a container, most likely ended the process because host memory ran out
    next `dmesg | grep -i kill` confirms it; <host>
    host
unknown
    seen out of memory|OutOfMemoryError
    means memory ran out, and the text has no figures
    next look for 'Tried to allocate' further up in the log, or run it by `snapconv watch train.py`
"""


def _kinds(table: str) -> Iterator[MessageKind]:
    for shared, text in _SHARED.items():
        table = table.replace(shared, text)
    for row in re.split(r"\n(?! )", table.strip()):
        name, *parts = re.split(r"\n {4}(?! )", row)
        texts = {word: " ".join(rest) for word, *rest in map(str.split, parts)}
        yield MessageKind(name, texts["seen"], texts["means"], texts["next"], is_host="host" in texts)


*MESSAGE_KINDS, OTHER = _kinds(_TABLE)
