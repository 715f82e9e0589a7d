"""Texts about memory that ran out which are not of torch's allocator: a row each, with what is right.

Each row is a text as the project that is named raises it, its kind, its cause, the figures that it
has, and the words with which the first remedy begins. The texts are put together from the code that
raises them, with figures of our own.
"""

import re

import pytest

from snapconv.answers.oom.allocator_messages import PHASES, WORDS
from snapconv.answers.oom.message import OomMessage, explain_message
from snapconv.answers.oom.message_kinds import ALLOCATOR, MESSAGE_KINDS, SUMMARY
from tests.drawn_inputs import sample

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
FULL, LIMITED, OUTSIDE, HOST = "full", "limited", "held outside torch", "host memory"
UNKNOWN = "not known"
LARGER, OTHER_MEMORY, WARNING = "larger than the device", "not the device's memory", "not a failure"


def gib(number):
    return round(number * GIB)


# A text; its kind, cause and figures (with the noun for those that OomMessage has no field for);
# the remedy.
TEXTS = (
    (
        "ResourceExhaustedError: OOM when allocating tensor with shapedim { size: 1000 } dim { size: "
        "14 } dim { size: 14 } dim { size: 64 }\n\t [[Node: Conv2D_1 = Conv2D[T=DT_FLOAT, "
        'padding="SAME", _device="/job:localhost/replica:0/task:0/gpu:0"](MaxPool, Variable_4)]]',
        "TensorFlow",
        FULL,
        {
            "device": 0,
            "tried": 1000 * 14 * 14 * 64 * 4,
            "shape": "[1000,14,14,64]",
            "type": "float",
        },
        "a smaller batch",
    ),
    (
        # Of the limit of its pool, which is all that this program may have.
        "Limit:                  3145728000\nInUse:                        9984\nMaxInUse:"
        "                    10752\nResource exhausted: OOM when allocating tensor with "
        "shape[1474944849] and type int32 on /job:localhost/replica:0/task:0/device:GPU:0 by "
        "allocator GPU_0_bfc",
        "TensorFlow",
        LARGER,
        {
            "device": 0,
            "tried": 4 * 1474944849,
            "shape": "[1474944849]",
            "type": "int32",
            "allowed": 3145728000,
            "allocated": 9984,
            "allocated at most": 10752,
        },
        "look at the shapes",
    ),
    (
        "[09:12:44] C:\\mxnet\\src\\storage\\./pinned_memory_storage.h:54: Check failed: e == "
        "cudaSuccess || e == cudaErrorCudartUnloading CUDA: out of memory",
        "MXNet's pinned memory",
        HOST,
        {},
        "free memory of the machine",
    ),
    (
        "Warning: Ran out of memory when regular VAE decoding, retrying with tiled VAE decoding.\n"
        "!!! Exception during processing !!! Allocation on device\nTraceback (most recent call last):",
        "the VAE in ComfyUI",
        FULL,
        {},
        "fewer frames or a smaller image",
    ),
    (
        # The failed call stands below its error in Java's stacks, in the error elsewhere.
        "example.jcuda.CudaException: CUDA_ERROR_OUT_OF_MEMORY\n"
        "    at jcuda.driver.JCudaDriver.checkResult(JCudaDriver.java:337)\n"
        "    at jcuda.driver.JCudaDriver.cuCtxCreate(JCudaDriver.java:1514)",
        "a CUDA context",
        FULL,
        {},
        "stop the other processes that `nvidia-smi` shows",
    ),
    (
        "/site-packages/torch/cuda/__init__.py:129: UserWarning: CUDA initialization: Unexpected "
        "error from cudaGetDeviceCount(). Did you run some cuda functions before calling "
        "NumCudaDevices() that might have already set an error? Error 2: out of memory (Triggered "
        "internally at /pytorch/c10/cuda/CUDAFunctions.cpp:109.)",
        "the start of CUDA",
        UNKNOWN,
        {},
        "`nvidia-smi` and `free -g`",
    ),
    (
        "pycuda._driver.MemoryError: cuCtxCreate failed: out of memory",
        "a CUDA context",
        FULL,
        {},
        "stop the other processes that `nvidia-smi` shows",
    ),
    (
        "CUDA error at cuCtxCreate: Out of memory",
        "a CUDA context",
        FULL,
        {},
        "stop the other processes that `nvidia-smi` shows",
    ),
    (
        "numba.cuda.cudadrv.driver.CudaAPIError: [2] Call to cuDevicePrimaryCtxRetain results in "
        "CUDA_ERROR_OUT_OF_MEMORY",
        "a CUDA context",
        FULL,
        {},
        "stop the other processes that `nvidia-smi` shows",
    ),
    (
        "(VllmWorker rank=1 pid=912) ERROR 07-02 08:11:09 [multiproc_executor.py:470]   File "
        '"/opt/torch/cuda/graphs.py", line 84, in capture_end\n'
        "(VllmWorker rank=1 pid=912) ERROR 07-02 08:11:09 [multiproc_executor.py:470] RuntimeError: "
        "CUDA error: out of memory",
        "graph capture in vLLM",
        FULL,
        {},
        "lower --gpu-memory-utilization, or capture fewer graphs",
    ),
    ('Received "killed" signal', "a killed process", HOST, {}, "less host memory"),
    (
        "- **Node ID:** 4\n- **Node Type:** DownloadAndLoadFlorenceModel\n- **Exception Type:** "
        "torch.OutOfMemoryError\n- **Exception Message:** Allocation on device",
        "weights in ComfyUI",
        FULL,
        {},
        "a quantized model",
    ),
    (
        "- **Node ID:** 4\n- **Node Type:** VHS_LoadVideo\n- **Exception Type:** "
        "torch.OutOfMemoryError\n- **Exception Message:** Allocation on device",
        "ComfyUI",
        FULL,
        {},
        "a smaller image",
    ),
    (
        "DEBUG whisper_rs::whisper_sys_tracing: ggml_gallocr_reserve_n: failed to allocate Vulkan0 "
        "buffer of size 268435456",
        "whisper.cpp",
        FULL,
        {"tried": 256 * MIB},
        "a smaller or quantized model",
    ),
    (
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1073741824 bytes.\n"
        "BufferAssignment stats:\n  preallocated temp allocation: 2.00GiB\n"
        "  preallocated temp fragmentation: 512.00MiB (25.00%)",
        "a compiled program of XLA",
        FULL,
        {"tried": GIB, "temporary": 2 * GIB, "lost in gaps": 512 * MIB},
        "compare what it needs",
    ),
    (
        "[ERROR] Failures:\n[ERROR]   UsageTest.testLargeInput:38 Ran out of memory",
        "Java, without its reason",
        HOST,
        {},
        "the first OutOfMemoryError in the log",
    ),
    (
        "Warning: Ran out of memory when regular decoding, retrying with tiled VAE decoding.",
        "a second try of ComfyUI",
        WARNING,
        {},
        "nothing, if the image appears",
    ),
    (
        "worker 3: ran out of memory on the whole volume, falling back to patches",
        "a skipped or retried batch",
        WARNING,
        {},
        "a smaller batch",
    ),
    (
        "llama_params_fit_impl: projected to use 40960 MiB of device memory vs. 20480 MiB of free "
        "device memory\nllama_params_fit_impl: cannot meet free memory target of 1024 MiB, need to "
        "reduce device memory by 21504 MiB\nllama_params_fit_impl: context size reduced from 65536 "
        "to 8192 -> need 21600 MiB less memory in total",
        "a model that llama.cpp makes fit",
        WARNING,
        {
            "needed on the GPU": 40 * GIB,
            "free before": 20 * GIB,
            "missing": 21 * GIB,
            "requested": 65536,
            "fit": 8192,
            "to be left free": GIB,
        },
        "nothing, if that context is long enough",
    ),
    (
        '  File "/srv/ComfyUI/comfy/model_patcher.py", line 41, in patch_weight_to_device\n'
        "    weight = cast_to_device(weight, device)\n"
        "torch.OutOfMemoryError: Allocation on device",
        "weights in ComfyUI",
        FULL,
        {},
        "a quantized model",
    ),
    (
        "- **Node ID:** 4\n- **Node Type:** UNETLoader\n- **Exception Type:** "
        "torch.OutOfMemoryError\n- **Exception Message:** Allocation on device",
        "weights in ComfyUI",
        FULL,
        {},
        "a quantized model",
    ),
    (
        # Weights were loaded before the sampler ran out.
        '  File "/srv/ComfyUI/comfy/model_management.py", line 41, in load_models_gpu\n    load()\n'
        '  File "/srv/ComfyUI/comfy/samplers.py", line 9, in predict_noise\n    model(x)\n'
        "torch.OutOfMemoryError: Allocation on device",
        "ComfyUI",
        FULL,
        {},
        "a smaller image",
    ),
    (
        "[1.2] python invoked oom-killer: gfp_mask=0xd0, order=0, oom_score_adj=0\n"
        "[1.2]  [<ffffffff811d3a85>] mem_cgroup_oom_synchronize+0x555/0x580",
        "a control group's limit",
        HOST,
        {},
        "a higher limit",
    ),
    (
        "java.lang.OutOfMemoryError: Failed to allocate a 4194316 byte allocation with 2097152 free "
        "bytes and 2048KB until OOM, target footprint 536870912, growth limit 536870912; giving up "
        "on allocation because <1% of heap free after GC.",
        "Android's heap",
        HOST,
        {"tried": 4194316, "free in the heap": 2 * MIB, "the heap allowed": 512 * MIB},
        "hold fewer or smaller objects",
    ),
    (
        "OutOfMemoryError: Failed to allocate a 40 byte allocation with 1024 free bytes and 8MB "
        "until OOM",
        "Android's heap",
        HOST,
        {"tried": 40, "free in the heap": KIB},
        "hold fewer or smaller objects",
    ),
    (
        "RuntimeError: No available KV cache blocks",
        "vLLM's KV cache",
        LIMITED,
        {},
        "raise --gpu-memory-utilization",
    ),
    (
        'main.cpp of llama.cpp ends with "failed to allocate CPU buffer" for a model of 13B',
        "llama.cpp, on the host",
        HOST,
        {},
        "a smaller or more strongly quantized model",
    ),
    (
        "our worker logs bfc_arena.cc: Failed to allocate memory for requested buffer",
        "ONNX Runtime, without its device",
        UNKNOWN,
        {},
        "a smaller batch or input",
    ),
    (
        "Loading weights [0f1e2d3c4b] from D:\\webui\\models\\Stable-diffusion\\v1.safetensors\n"
        'File "D:\\webui\\modules\\initialize.py", line 99, in load_model\n'
        "RuntimeError: CUDA error: out of memory",
        "Stable Diffusion's web UI",
        FULL,
        {},
        "a smaller image or batch",
    ),
    (
        "numpy.core._exceptions.MemoryError: Unable to allocate 3.00 MiB for an array with shape "
        "(1, 1024, 1024, 3) and data type uint8",
        "a small NumPy array",
        HOST,
        {"tried": 3 * MIB, "shape": "(1,1024,1024,3)", "type": "uint8"},
        "hold less at once: read and process the data in parts",
    ),
    (
        "RuntimeError: Resource exhausted: Out of memory while trying to allocate 6210718745600 "
        "bytes.",
        "one array of XLA or JAX",
        LARGER,
        {"tried": 6210718745600},
        "look at the shapes: all against all",
    ),
    (
        "ort.webgpu.bundle.min.mjs:2603 Uncaught Error: Can't create a session. Failed to allocate "
        "a buffer of size 2079238052.",
        "ONNX Runtime in a browser",
        LIMITED,
        {"tried": 2079238052},
        "quantized weights",
    ),
    (
        'I see the error "Your GPU memory is full" with every project.',
        "a program that edits videos",
        UNKNOWN,
        {},
        "if `nvidia-smi` shows that the memory is not full",
    ),
    (
        "llama_model_load: error loading model: failed to allocate buffer\n"
        "llama_load_model_from_file: failed to load model",
        "llama.cpp",
        FULL,
        {},
        "fewer layers on the GPU",
    ),
    (
        "numpy.core._exceptions.MemoryError: Unable to allocate 149. GiB for an array with shape "
        "(100000, 200000) and data type float64",
        "a large NumPy matrix",
        HOST,
        {"tried": 149 * GIB, "shape": "(100000,200000)", "type": "float64"},
        "keep it sparse (scipy.sparse), take fewer rows or columns",
    ),
    (
        "Unable to allocate array with shape (93849, 1, 52300) and data type float64",
        "a large NumPy matrix",
        HOST,
        {"tried": 93849 * 52300 * 8, "shape": "(93849,1,52300)", "type": "float64"},
        "keep it sparse (scipy.sparse), take fewer rows or columns",
    ),
    (
        "ideogram graph cut max_vram=2048.00 MB merged 3 segments -> 2 segments\n"
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 2048.00 MiB on device 1: cudaMalloc "
        "failed: out of memory",
        "stable-diffusion.cpp",
        FULL,
        {"tried": 2 * GIB, "device": 1},
        "--vae-tiling where it decodes the image",
    ),
    (
        "ValueError: The total number of blocks cannot be less than zero. Please increase "
        "gpu_memory_utilization Or decrease max_num_batched_tokens(max model length).",
        "FastDeploy's KV cache",
        LIMITED,
        {},
        "raise --gpu-memory-utilization",
    ),
    (
        "  Downloading https://pypi.example/torch-1.5.0-cp36-cp36m-manylinux1_x86_64.whl (752.0MB)\n"
        "Killed\nThe command '/bin/sh -c pip3 install -r r.txt' returned a non-zero code: 137",
        "a killed installation",
        HOST,
        {},
        "`pip install --no-cache-dir`",
    ),
    (
        "[ 17%] Building NVCC (Device) object src/ATen/ATen_generated_THCTensorMode.cu.o\nKilled\n"
        "CMake Error at ATen_generated_THCTensorIndex.cu.o.Release.cmake:279 (message):",
        "a compiler",
        HOST,
        {},
        "fewer jobs at once",
    ),
    (
        "[TM][ERROR] No enough blocks. Assertion fail: /root/lmdeploy/src/turbomind/models/llama/"
        "LlamaBatch.cc:358",
        "LMDeploy's KV cache",
        LIMITED,
        {},
        "a higher cache_max_entry_count",
    ),
    (
        "[TM][WARNING] No enough blocks for `session_len` (131072), `session_len` truncated to "
        "111360.",
        "LMDeploy's shorter sessions",
        "not a failure",
        {"requested": 131072, "fit": 111360},
        "nothing, where that length",
    ),
    (
        "W1224 09:35:54 1 pinned_memory_manager.cc:103] failed to allocate pinned system memory: no "
        "pinned memory pool, falling back to non-pinned system memory",
        "Triton without pinned memory",
        "not a failure",
        {},
        "nothing, if the models load",
    ),
    (
        "OpenBLAS blas_thread_init: pthread_create failed for thread 9 of 32: Operation not "
        "permitted\nRuntimeError: can't start new thread",
        "a limit of threads",
        "not the device's memory",
        {},
        "fewer of them (OMP_NUM_THREADS",
    ),
    (
        "    pid = os.fork()\nBlockingIOError: [Errno 11] Resource temporarily unavailable",
        "a limit of threads",
        "not the device's memory",
        {},
        "fewer of them",
    ),
    (
        "ERROR TaskSchedulerImpl: Lost executor 1 on node: Remote RPC client disassociated. Likely "
        "due to containers exceeding thresholds, or network issues.",
        "perhaps the cause of a lost executor of Spark",
        UNKNOWN,
        {},
        "its own log",
    ),
    (
        "Process finished with exit code -1073741801 (0xC0000017)",
        "a Windows program's exit code",
        HOST,
        {},
        "close other programs",
    ),
    (
        "[1]+  Killed                  python train.py",
        "a killed process",
        HOST,
        {},
        "less host memory",
    ),
    ("background\n\n**Killed**\n\nwhat is that?", "a killed process", HOST, {}, "less host memory"),
    (
        "(EngineCore_DP0 pid=7) ERROR 12-03 12:16:41 [core.py:710] alloc device memory failed, "
        "runtime result = 207001[FUNC:ReportCallError]",
        "the Ascend driver, in vLLM",
        FULL,
        {},
        "lower --gpu-memory-utilization",
    ),
    (
        "alloc device memory failed, runtime result = 207001[FUNC:ReportCallError]",
        "the Ascend driver",
        FULL,
        {},
        "stop the other processes",
    ),
    (
        "NPUWorkspaceAllocator tried to allocate 2.00 MiB",
        "an operator's workspace on Ascend",
        FULL,
        {},
        "TASK_QUEUE_ENABLE=1",
    ),
    (
        'INFO: "POST /generate HTTP/1.1" 500 Internal Server Error\nError: out of memory',
        "a server of a model",
        FULL,
        {},
        "fewer or shorter requests at once",
    ),
    (
        "Maximum concurrency for 4096 tokens per request: 1.5x\n"
        "torch.OutOfMemoryError: CUDA out of memory.",
        "vLLM",
        FULL,
        {},
        "lower --gpu-memory-utilization",
    ),
    (
        "CUDA out of memory: try a smaller max_model_len",
        "vLLM",
        FULL,
        {},
        "lower --gpu-memory-utilization",
    ),
    (
        "Memory pool end. avail mem=3.90 GB\ntorch.OutOfMemoryError: CUDA out of memory.",
        "SGLang",
        FULL,
        {},
        "lower --mem-fraction-static",
    ),
    (
        "Input prompt (9000 tokens) is too long and exceeds the capacity of block_manager",
        "a prompt beyond vLLM's KV cache",
        LIMITED,
        {"requested": 9000},
        "a shorter prompt, or a larger cache",
    ),
    (
        "LLama.Exceptions.LLamaDecodeError: llama_decode failed: 'NoKvSlot'",
        "llama.cpp's KV slots",
        OTHER_MEMORY,
        {},
        "a longer context",
    ),
    (
        "AssertionError: Job requires 9 pages (only 8 available) and cannot be enqueued. Total "
        "cache allocated is 8 * 256 = 2048 tokens",
        "the pages of ExLlama's cache",
        LIMITED,
        {"pages needed": 9, "pages free": 8, "pages in all": 8, "fit": 2048},
        "a smaller max_tokens or a shorter prompt",
    ),
    (
        "ValueError: You can't train a model that has been loaded in 8-bit with CPU or disk offload.",
        "a model that was dispatched to the CPU",
        FULL,
        {},
        "free what other processes or models hold",
    ),
    (
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO MEMORY LIMIT ***",
        "a job's memory limit",
        HOST,
        {},
        "ask for more",
    ),
    (
        "Ran out of memory (used over 512MB) while running your code.",
        "the limit of a hosted program",
        HOST,
        {"allowed": 512 * MIB},
        "fewer requests at once",
    ),
    (
        "Container 'Build' exceeded memory limit.",
        "the limit of a hosted program",
        HOST,
        {},
        "fewer requests at once",
    ),
    (
        "This app has gone over its resource limits.",
        "perhaps the limit of a hosted program",
        UNKNOWN,
        {},
        "the host's page of metrics",
    ),
    (
        "ArrayMemoryError: Unable to allocate 2 GB for array with form (16384, 16384) and data type "
        "float64",
        "a NumPy array",
        HOST,
        {"tried": 2 * GIB, "shape": "(16384,16384)", "type": "float64"},
        "smaller arrays",
    ),
    (
        "systemd-oomd[7]: Considered 12 cgroups for killing, top candidates were:\n"
        "systemd-oomd[7]: Swap Usage: 512M\n"
        "systemd-oomd[7]: Failed to kill any cgroups based on swap: Invalid argument",
        "systemd-oomd, which looked for a unit to kill",
        HOST,
        {"swap used": 512 * MIB},
        "use less host memory",
    ),
    (
        "WARNING CUDA out of memory with batch=16. Reducing to batch=8 and retrying.",
        "a skipped or retried batch",
        WARNING,
        {},
        "a smaller batch",
    ),
    (
        "panicked at mistralrs-core/src/pipeline.rs:9: DriverError(CUDA_ERROR_OUT_OF_MEMORY, "
        '"out of memory")',
        "a local program for language models",
        FULL,
        {},
        "a model quantized to 8 or 4 bits",
    ),
    (
        "Your model is too large: it needs 28 GB of VRAM but you have 16 GB",
        "words about memory",
        UNKNOWN,
        {"needed": 28 * GIB, "available": 16 * GIB},
        "use less at once",
    ),
    (
        "The available memory for KV cache is not enough: available 2 GB, required 3 GB",
        "a cache of keys and values",
        UNKNOWN,
        {"needed": 3 * GIB, "available": 2 * GIB},
        "a shorter context",
    ),
    (
        "quant_config = BaseQuantizeConfig(bits=4)\nmodel.quantize(examples)\n"
        "torch.OutOfMemoryError: CUDA out of memory.",
        "the quantization of a model",
        FULL,
        {},
        "keep the model on the CPU and let the quantizer move a layer at a time",
    ),
    (
        "ValueError: Cannot auto-fit max_model_len: not enough GPU memory available to serve even "
        "a single token. Try increasing `gpu_memory_utilization`.",
        "vLLM's KV cache",
        LIMITED,
        {},
        "raise --gpu-memory-utilization",
    ),
    (
        "could not be created: Drafter\nTotal GPU memory (GiB): 80.00\nPreviously created "
        "components and free GPU memory before/after creation (GiB):\nModel: 79.00 / 40.00\n"
        "Sampler: 40.00 / 39.50\nInitial KV cache (temporary for KV cache size estimation): "
        "39.50 / 38.00\nExecutor creation failed due to insufficient GPU memory.",
        "TensorRT-LLM",
        FULL,
        {
            "part": "drafter",
            "total": 80 * GIB,
            "free before the model": 79 * GIB,
            "free after the model": 40 * GIB,
            "free after the sampler": gib(39.5),
            "free after the first KV cache": 38 * GIB,
        },
        "lower free_gpu_memory_fraction",
    ),
    (
        "maxTokensInPagedKvCache must be large enough to process at least 1 sequence to "
        "completion (i.e. must be larger than beam_width * tokensPerBlock * maxBlocksPerSeq)",
        "TensorRT-LLM's KV cache",
        LIMITED,
        {},
        "a larger kv_cache_free_gpu_mem_fraction",
    ),
    (
        "MemoryError: No enough free memory blocks.",
        "LMDeploy's KV cache",
        LIMITED,
        {},
        "a higher cache_max_entry_count",
    ),
    (
        "[TM][WARNING] dp1 ID 7: cache out of memory, no request can be admitted; failing "
        "head-of-line request",
        "LMDeploy's KV cache",
        LIMITED,
        {},
        "a higher cache_max_entry_count",
    ),
    (
        "Not enough memory to handle `max_total_tokens=8192`",
        "text-generation-inference",
        FULL,
        {"requested": 8192},
        "lower --max-batch-prefill-tokens (or --max-batch-total-tokens) below 8192",
    ),
    (
        "Reducing the max batch prefill from 8192 to 5000 because there is not enough VRAM to "
        "support it.",
        "a warning of text-generation-inference",
        WARNING,
        {"requested": 8192, "fit": 5000},
        "nothing, if the server starts",
    ),
    (
        "Batch inference out of memory. Xinference will restart the model: m. Please be patient "
        "for a few moments.",
        "Xinference",
        FULL,
        {},
        "fewer models on this GPU",
    ),
    (
        "Error: llama-server reported out-of-memory during startup: exit status 1",
        "Ollama's llama-server",
        FULL,
        {},
        "a shorter context (num_ctx)",
    ),
    (
        "Error: insufficient memory - required allocations: {InputWeights:0U CPU:{Name:CPU "
        "Weights:[] Cache:[] Graph:0U} GPUs:[{Name:CUDA0 Weights:[2097152A] Cache:[1048576A] "
        "Graph:4194304F}]}",
        "Ollama's layers",
        FULL,
        {"weights": 2 * MIB, "the KV cache": MIB, "tried": 4 * MIB},
        "leave num_gpu out",
    ),
    (
        'level=WARN msg="predicted usage exceeds VRAM" gpu=0 totalMemory=8388608 predicted=9437184',
        "Ollama making room for a model",
        WARNING,
        {"total": 8 * MIB, "needed": 9 * MIB},
        "nothing, if the model loads",
    ),
    (
        "[WARNING] 3 pytorch allocator cache flushes since last step. this happens when there is "
        "high memory pressure and is detrimental to performance.",
        "a warning of DeepSpeed",
        WARNING,
        {"times in the step": 3},
        "a smaller micro batch",
    ),
    (
        "AssertionError: failed to create trt context, maybe not enough CUDA memory, try reduce "
        "current trt concurrent 2",
        "an execution context of TensorRT",
        FULL,
        {"contexts at once": 2},
        "fewer contexts at once",
    ),
    (
        "ValueError: Insufficient memory to allocate KV-caches. Required: 4194304bytes, "
        "Available: 1048576bytes",
        "a cache of keys and values",
        UNKNOWN,
        {"needed": 4 * MIB, "available": MIB},
        "a shorter context or fewer requests at once",
    ),
    (
        "ggml_vulkan: Memory allocation of size 1048576 failed.",
        "llama.cpp on Vulkan",
        FULL,
        {"tried": MIB},
        "a smaller batch (-ub)",
    ),
    (
        "RuntimeError: Background workers died. Look for the error message further up! If there is "
        "none then your RAM was full and the worker was killed by the OS.",
        "perhaps the cause of a dead nnU-Net worker",
        UNKNOWN,
        {},
        "read the lines above it",
    ),
    (
        "memory: usage 4096kB, limit 4096kB, failcnt 8\nkmem: usage 3072kB, limit "
        "9007199254740988kB, failcnt 0\nKilled process 7 (a) total-vm:8192kB, anon-rss:1024kB",
        "a control group's limit",
        HOST,
        {
            "used": 4 * MIB,
            "the limit": 4 * MIB,
            "of it the kernel's own": 3 * MIB,
            "of address space": 8 * MIB,
            "process": MIB,
        },
        "a higher limit",
    ),
    # A program that no row knows: its sizes are read by the words beside them.
    (
        "the memory is not sufficient for this job: it needs 12 GiB, 10.5 GiB free",
        "words about memory",
        UNKNOWN,
        {"needed": 12 * GIB, "available": gib(10.5)},
        "use less at once",
    ),
    (
        "the memory limit was exceeded: limit 4GB, used 5GB",
        "words about memory",
        UNKNOWN,
        {"the limit": 4 * GIB, "used": 5 * GIB},
        "use less at once",
    ),
    (
        "E/AndroidRuntime: com.some.python.PyException: RuntimeError: [enforce fail at "
        "CPUAllocator.cpp:72] data. DefaultCPUAllocator: not enough memory: you tried to allocate "
        "2097152 bytes. Buy new RAM!",
        "a CPU allocation of torch on Android",
        HOST,
        {"tried": 2 * MIB},
        "a smaller input, under torch.no_grad()",
    ),
    (
        "failed to allocate memory for the export\n$ ulimit -a\n"
        "-s: stack size (kbytes)             8192\n"
        "-v: address space (kbytes)          4194304\n",
        "the limit of the address space",
        HOST,
        {"the limit": 4 * GIB},
        "`ulimit -v unlimited` before the program starts",
    ),
    (
        "MemoryError\n$ ulimit -a\nmax memory size         (kbytes, -m) unlimited\n"
        "virtual memory          (kbytes, -v) 2097152\n",
        "the limit of the address space",
        HOST,
        {"the limit": 2 * GIB},
        "`ulimit -v unlimited` before the program starts",
    ),
    (
        "Native memory allocation (malloc) failed to allocate 2.097.152 bytes for committing "
        "reserved memory.",
        "Java's memory outside the heap",
        HOST,
        {"tried": 2 * MIB},
        "a smaller heap (-Xmx) or fewer processes",
    ),
    (
        "Failed to allocate memory for tensor(torch.Size([2, 80, 256, 256]), torch.float16) "
        "because no "
        "memory is available (memory_management.py:444:lmcache.experimental.memory_management)",
        "LMCache's pool",
        LIMITED,
        {},
        "a larger pool (LMCACHE_MAX_LOCAL_CPU_SIZE",
    ),
    (
        'File "/env/vllm_ascend/worker/model_runner_v1.py", line 24, in _allocate_kv_cache_tensors\n'
        "RuntimeError: NPU out of memory.",
        "the allocation of vLLM's KV cache",
        FULL,
        {},
        "lower --gpu-memory-utilization",
    ),
    (
        'File "/env/vllm/v1/worker/gpu_worker.py", line 5, in compile_or_warm_up_model\n'
        'File "/env/vllm/v1/worker/gpu_model_runner.py", line 9, in _dummy_sampler_run\n'
        "torch.OutOfMemoryError: CUDA out of memory.",
        "vLLM's warm-up",
        FULL,
        {},
        "lower --gpu-memory-utilization",
    ),
    (
        'File "/env/vllm/v1/worker/gpu_worker.py", line 5, in compile_or_warm_up_model\n'
        'File "/env/vllm/v1/worker/gpu_model_runner.py", line 9, in capture_model\n'
        "torch.OutOfMemoryError: CUDA out of memory.",
        "graph capture in vLLM",
        FULL,
        {},
        "lower --gpu-memory-utilization, or capture fewer graphs",
    ),
    (
        'File "/env/vllm/v1/worker/gpu_worker.py", line 5, in determine_available_memory\n'
        'File "/env/vllm/model_executor/models/a_vl.py", line 9, in get_multimodal_embeddings\n'
        "torch.OutOfMemoryError: CUDA out of memory.",
        "vLLM's trial run with images",
        FULL,
        {},
        "fewer or smaller of them in one request: --limit-mm-per-prompt",
    ),
    (
        "torch.OutOfMemoryError: HIP out of memory.\nTraceback (most recent call last):\n"
        '  File "/env/bin/vllm", line 8, in <module>\n    sys.exit(main())',
        "vLLM's start",
        FULL,
        {},
        "if the weights alone do not fit, a quantized or smaller model",
    ),
    (
        "On the CPU backend: ValueError: To serve at least one request with the models's max seq "
        "len (2048), (3.00 GiB KV cache is needed, which is larger than the available KV cache "
        "memory (2.00 GiB). Based on the available memory, the estimated maximum model length is "
        "1024.",
        "vLLM's KV cache on a CPU",
        LIMITED,
        {"requested": 2048, "needed": 3 * GIB, "available": 2 * GIB, "fit": 1024},
        "raise VLLM_CPU_KVCACHE_SPACE (GiB of the host's memory), or --max-model-len 1024",
    ),
    (
        'File "/env/sglang/srt/managers/scheduler.py", line 9, in __init__\n'
        'File "/env/sglang/srt/model_executor/model_runner.py", line 4, in init_memory_pool\n'
        "torch.OutOfMemoryError: CUDA out of memory.",
        "the allocation of SGLang's KV cache",
        FULL,
        {},
        "lower --mem-fraction-static",
    ),
    (
        'File "/env/sglang/srt/managers/scheduler.py", line 9, in __init__\n'
        'File "/env/sglang/srt/model_executor/model_runner.py", line 4, in init_device_graphs\n'
        "torch.OutOfMemoryError: CUDA out of memory.",
        "graph capture in SGLang",
        FULL,
        {},
        "capture fewer or smaller graphs",
    ),
    (
        'File "/env/lmdeploy/pytorch/engine/model_agent.py", line 9, in load_model_weights\n'
        "torch.OutOfMemoryError: CUDA out of memory.",
        "weights in LMDeploy",
        FULL,
        {},
        "a quantized model or more GPUs (--tp)",
    ),
    (
        'File "/env/tensorrt_llm/_torch/pyexecutor/model_engine.py", line 9, in _load_model\n'
        "torch.OutOfMemoryError: CUDA out of memory.",
        "weights in TensorRT-LLM",
        FULL,
        {},
        "a quantized model, or more GPUs (--tp_size",
    ),
    (
        "Executor creation failed due to insufficient GPU memory.\nPreviously created components "
        "and free GPU memory before/after creation (GiB):\nModel: 40.50 / 8.25",
        "TensorRT-LLM",
        FULL,
        {"free before the model": gib(40.5), "free after the model": gib(8.25)},
        "lower free_gpu_memory_fraction",
    ),
    (
        "Error: Model loading aborted due to insufficient system resources. Overloading the system "
        "will likely cause it to freeze.",
        "LM Studio's guardrails",
        OTHER_MEMORY,
        {},
        "a shorter context",
    ),
    (
        'Runtime memory requirement for model "ai/a" exceeds total system memory: required '
        "2147483648 RAM 4294967296 VRAM, system 1073741824 RAM 3221225472 VRAM",
        "Docker Model Runner's check",
        OTHER_MEMORY,
        {
            "needed": 2 * GIB,
            "needed on the GPU": 4 * GIB,
            "the machine's memory": GIB,
            "total": 3 * GIB,
        },
        "a smaller or more strongly quantized variant",
    ),
    (
        "load_tensors: CUDA0 model buffer size = 2048.00 MiB\nload_hparams: model size: 900.00 "
        "MiB\nggml_backend_cuda_buffer_type_alloc_buffer: allocating 900.00 MiB on device 0: "
        "cudaMalloc failed: out of memory",
        "the vision part of llama.cpp",
        FULL,
        {"device": 0, "tried": 900 * MIB, "weights": 2 * GIB},
        "fewer layers of the language model on the GPU",
    ),
    (
        "llama_model_load_internal: mem required  = 4096.00 MB (+ 1024.00 MB per state)\n"
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "llama.cpp, on the host",
        HOST,
        {"needed": 4 * GIB, "for its state": GIB},
        "a smaller or more strongly quantized model",
    ),
    (
        'File "modules/models.py", line 8, in load_model\n'
        'File "/env/exllamav2/linear.py", line 9, in load\n'
        "torch.OutOfMemoryError: CUDA out of memory.",
        "weights in a local program for language models",
        FULL,
        {},
        "weights in fewer bytes",
    ),
    (
        "I use A.from_pretrained to load the 72B one: it is out of memory.",
        "a model as it is loaded",
        UNKNOWN,
        {},
        "weights in fewer bytes",
    ),
    (
        "llama_model_load_from_file_impl: using device CUDA1 (Card (b)) (unknown id) - 4096 MiB "
        "free\nusing device CUDA0 (Card) - 2048 MiB free\nload_tensors: CUDA1 model buffer size "
        "= 3072.00 MiB\nload_tensors: CUDA0 model buffer size = 1024.00 MiB\nCUDA1 KV buffer size "
        "= 256.00 MiB\nCUDA0 KV buffer size = 512.00 MiB\nggml_gallocr_reserve_n: failed to "
        "allocate CUDA0 buffer of size 1073741824",
        "llama.cpp's compute buffers",
        FULL,
        {
            "device": 0,
            "tried": GIB,
            "free before": 2 * GIB,
            "weights": GIB,
            "the KV cache": 512 * MIB,
        },
        "fewer layers on the GPU",
    ),
    (
        "llama_kv_cache_init: CUDA5 KV buffer size = 64.00 MiB\nllama_kv_cache_init: CUDA6 KV buffer "
        "size = 32.00 MiB\nllama_new_context_with_model: KV self size = 512.00 MiB, K (f16): 256.00 "
        "MiB\nggml_backend_cuda_buffer_type_alloc_buffer: allocating 700.00 MiB on device 0: "
        "cudaMalloc failed: out of memory\nggml_gallocr_reserve_n: failed to allocate CUDA0 buffer "
        "of size 734003200",
        "llama.cpp's compute buffers",
        FULL,
        {"device": 0, "tried": 700 * MIB, "the KV cache": 512 * MIB},
        "fewer layers on the GPU",
    ),
    (
        'a comment: "failed to allocate CUDA0 buffer" means that the VRAM is too small',
        "llama.cpp",
        FULL,
        {"device": 0},
        "fewer layers on the GPU",
    ),
    (
        'msg="error loading llama server" error="timed out waiting for llama runner to start - '
        'progress 0.00 - "\nmsg="gpu VRAM usage didn\'t recover within timeout" seconds=5.1',
        "a start that Ollama stopped waiting for",
        UNKNOWN,
        {},
        "a longer time (OLLAMA_LOAD_TIMEOUT",
    ),
    (
        "INFO 05-13 14:03:40 Starting to load model /models/a...\nCUDA out of memory.",
        "weights in vLLM",
        FULL,
        {},
        "load the weights in fewer bytes",
    ),
    (
        "INFO 05-13 14:03:40 Starting to load model /models/a...\nModel loading took 14.5 GiB and "
        "9 seconds\nCUDA out of memory.",
        "vLLM's trial run",
        FULL,
        {"weights": gib(14.5)},
        "a smaller step",
    ),
    (
        "Model loading took 14.5 GiB and 9 seconds\n# GPU blocks: 3120, # CPU blocks: 512\n"
        "CUDA out of memory.",
        "vLLM's warm-up",
        FULL,
        {},
        "lower --gpu-memory-utilization",
    ),
    (
        "[TP0] Load weight begin. avail mem=23.10 GB\nCUDA out of memory.",
        "weights in SGLang",
        FULL,
        {},
        "load the weights in fewer bytes",
    ),
    (
        "[TP0] Load weight begin. avail mem=23.10 GB\nLoad weight end. type=A, avail mem=4.00 GB, "
        "mem usage=19.00 GB.\nCUDA out of memory.",
        "the allocation of SGLang's KV cache",
        FULL,
        {"free before": 4 * GIB, "weights": 19 * GIB},
        "lower --mem-fraction-static",
    ),
    (
        "ERROR text_generation_launcher: Method Prefill encountered an error.\nCUDA out of memory.",
        "a step of text-generation-inference",
        FULL,
        {},
        "lower --max-batch-prefill-tokens",
    ),
    (
        "ERROR text_generation_launcher: Method Warmup encountered an error.\nCUDA out of memory.",
        "text-generation-inference",
        FULL,
        {},
        "lower --max-batch-prefill-tokens",
    ),
    (
        "ERROR text_generation_launcher: Error when initializing model\nCUDA out of memory.",
        "text-generation-inference's start",
        FULL,
        {},
        "more GPUs (--num-shard)",
    ),
    (
        "Out of memory: Killed process (VLLM::Worker_TP)\ntotal-vm:2048kB anon-rss:1024kB "
        "shmem-rss:512kB\nRuntimeError: Engine core initialization failed.",
        "the machine's memory",
        HOST,
        {
            "of address space": 2 * MIB,
            "held by the process": MIB,
            "its shared pages": 512 * KIB,
        },
        "use less host memory",
    ),
    (
        "Error: 500: memory layout cannot be allocated with num_gpu = N\nmemory layout cannot be "
        "allocated with num_gpu = 26",
        "Ollama's layers",
        FULL,
        {"layers on the GPU, as set": 26},
        "leave num_gpu out",
    ),
    (
        "ggml_metal_add_buffer: allocated 'kv' buffer, size = 512.00 MiB, ( 1536.00 /  1024.00)"
        "ggml_metal_add_buffer: warning: current allocated size is greater than the recommended "
        "max working set size\nggml_metal_add_buffer: allocated 'alloc' buffer, size = 512.00 MiB, "
        "( 2048.00 /  1024.00)ggml_metal_add_buffer: warning: current allocated size is greater "
        "than the recommended max working set size\nggml_metal_graph_compute: command buffer 0 "
        "failed with status 5\nGGML_ASSERT: ggml-metal.m:1623: false",
        "a failed command of llama.cpp on a Mac",
        FULL,
        {"taken on the GPU": 2 * GIB, "recommended at most": GIB},
        "a smaller or more strongly quantized model",
    ),
    (
        "Prefill out of memory. This should nerver happen.\n 3 (1, 8) r=1\n#tokens: 7",
        "SGLang's KV cache",
        LIMITED,
        {},
        "lower --max-running-requests",
    ),
    (
        "ERROR batch{batch_size=1}:prefill:prefill{id=1 size=1}: text_generation_client: Server "
        "error: CUDA out of memory.",
        "a step of text-generation-inference",
        FULL,
        {},
        "lower --max-batch-prefill-tokens",
    ),
    (
        'File "/env/exllamav2/cache.py", line 9, in create_state_tensors\n'
        "torch.OutOfMemoryError: CUDA out of memory.",
        "ExLlama's cache",
        FULL,
        {},
        "a shorter cache (max_seq_len)",
    ),
    (
        "Model loading took 14.5 GiB and 9 seconds\n...\nAvg prompt throughput: 90.1 tokens/s\n"
        '(EngineCore_DP0 pid=8) File "/env/vllm/v1/engine/core.py", line 7, in run_busy_loop\n'
        "CUDA out of memory.",
        "vLLM",
        FULL,
        {},
        "lower --gpu-memory-utilization, --max-num-batched-tokens",
    ),
    (
        "Failed to allocate memory block of size 83886080 because no memory is available",
        "LMCache's pool",
        LIMITED,
        {"tried": 80 * MIB},
        "a larger pool (LMCACHE_MAX_LOCAL_CPU_SIZE",
    ),
    (
        "ERROR    Failed to load the model.\nout of memory",
        "a model that was not loaded",
        UNKNOWN,
        {},
        "a smaller model, or weights in fewer bytes",
    ),
    (
        "ROCm error: out of memory\n  current device: 0, in function alloc "
        "build/ggml-cuda.cu:420\n  "
        "ggml_cuda_device_malloc(&ptr, look_ahead_size, device)",
        "llama.cpp",
        FULL,
        {"device": 0},
        "fewer layers on the GPU",
    ),
    (
        "ggml_extend.hpp:61   - ROCm pool[0]: alloc of 1200.00 MiB failed, flushing 935.90 MiB of "
        "cached "
        "buffers\nggml_extend.hpp:70   - ROCm error: out of memory\nggml_extend.hpp:70   -   "
        "current device: "
        "0, in function alloc at ggml/src/ggml-cuda/ggml-cuda.cu:449",
        "stable-diffusion.cpp",
        FULL,
        {"device": 0, "tried": 1200 * MIB},
        "--vae-tiling where it decodes",
    ),
    (
        "stable-diffusion.cpp:846  - attempting to apply 1 LoRAs\nggml_vulkan: Device memory "
        "allocation of "
        "size 5365186560 failed.\nggml_vulkan: Requested buffer size exceeds device memory "
        "allocation limit: "
        "ErrorOutOfDeviceMemory",
        "one buffer of stable-diffusion.cpp",
        LIMITED,
        {"tried": 5365186560},
        "--vae-tiling, or a smaller image",
    ),
    (
        "whisper_model_load: loading model\nggml_backend_cuda_buffer_type_alloc_buffer: "
        "allocating 2951.00 "
        "MiB on device 0: cudaMalloc failed: out of memory",
        "whisper.cpp",
        FULL,
        {"device": 0, "tried": 2951 * MIB},
        "a smaller or quantized model",
    ),
    (
        "ggml_sycl_init: found 1 SYCL devices\nlevel_zero backend failed with error: 39 "
        "[UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY]",
        "llama.cpp on SYCL",
        FULL,
        {},
        "fewer layers on the GPU",
    ),
    (
        "Native API failed. Native API returns: -6 (PI_ERROR_OUT_OF_HOST_MEMORY)\nException "
        "caught at file:"
        "llama-cpp/ggml/src/ggml-sycl.cpp, line:5066",
        "llama.cpp on SYCL",
        FULL,
        {},
        "fewer layers on the GPU",
    ),
    (
        "Error occurred when executing VHS_LoadVideo: Memory limit hit after loading 1347 frames. "
        "Stopping execution.",
        "frames of a video in ComfyUI",
        LIMITED,
        {"frames loaded": 1347},
        "fewer frames (frame_load_cap",
    ),
    (
        "[2025-03-07 21:49:33 TP3] Decode out of memory happened. #retracted_reqs: 1, "
        "#new_token_ratio: 0.1474 -> 0.1845",
        "retracted requests in SGLang",
        WARNING,
        {},
        "nothing, where it is rare",
    ),
    (
        'File "/opt/torch/cuda/graphs.py", line 82, in capture_end\n    super().capture_end()\n'
        "RuntimeError: CUDA error: out of memory\nERROR warmup{max_input_length=500}:warmup: "
        "text_generation_client: router/client/src/lib.rs:46: Server error: CANCELLED",
        "graph capture in text-generation-inference",
        FULL,
        {},
        "capture fewer or smaller graphs",
    ),
    (
        "ERROR: Detected OutOfMemoryError! Enabling checkpointing to reduce memory usage, but this "
        "slows down training.",
        "a skipped or retried batch",
        WARNING,
        {},
        "a smaller batch",
    ),
    (
        "ResourceExhaustedError: OOM when allocating tensor with shape[2,720,1280,3]\n"
        "[[Node: ToFloat = Cast[DstT=DT_FLOAT, SrcT=DT_UINT8, "
        '_device="/job:localhost/replica:0/task:0/device:CPU:0"](DecodeJpeg)]]',
        "TensorFlow's CPU memory",
        HOST,
        {"shape": "[2,720,1280,3]"},
        "a smaller batch, or fewer elements in tf.data's",
    ),
    (
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 5120.00 MiB on device 0: cudaMalloc "
        "failed: out of memory\nllama_model_load: error loading model: failed to allocate buffer",
        "llama.cpp's weights",
        FULL,
        {"tried": 5 * GIB, "device": 0},
        "fewer layers on the GPU",
    ),
    (
        # Its logger's name begins every line, and is no part of the message.
        "ggml_vulkan: Failed to allocate pinned memory.\n"
        "ggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory",
        "a warning of llama.cpp",
        WARNING,
        {},
        "nothing, if the model loads",
    ),
    (
        "Error: llama runner process has terminated: error loading model: unable to allocate "
        "backend buffer",
        "llama.cpp's weights, without their device",
        UNKNOWN,
        {},
        "a smaller or more strongly quantized model; `nvidia-smi` and `free -g`",
    ),
    (
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 5120.00 MiB on device 1: cudaMalloc "
        "failed: out of memory\nllama_model_load: error loading model: unable to allocate backend "
        "buffer",
        "llama.cpp's weights",
        FULL,
        {"tried": 5 * GIB, "device": 1},
        "fewer layers on the GPU",
    ),
    (
        # llama.cpp tries memory that is not pinned before it says so: none of the host's was left.
        "llama_model_load: error loading model: unable to allocate CUDA_Host buffer",
        "llama.cpp, on the host",
        HOST,
        {},
        "a smaller or more strongly quantized model",
    ),
    (
        "llama_model_load: error loading model: vk::Queue::submit: ErrorOutOfDeviceMemory",
        "llama.cpp on Vulkan",
        FULL,
        {},
        "a smaller batch (-ub)",
    ),
    (
        'File "C:\\SD WebUI Forge\\spandrel\\drct_arch.py", line 201, in forward\n'
        "torch.OutOfMemoryError: Allocation on device",
        "torch on cudaMallocAsync",
        FULL,
        {},
        "a smaller image, a smaller factor",
    ),
    (
        (
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate\n)> to CPU due to "
            "CUDA OOM"
        ),
        "an allocation of the program",
        HOST,
        {},
        "a smaller batch, input or model",
    ),
    (
        "RuntimeError: $ Torch: not enough memory: you tried to allocate 0GB. Buy new RAM!",
        "an allocation of the program",
        HOST,
        {},
        "a smaller batch, input or model",
    ),
    (
        "torch.OutOfMemoryError: Tried to allocate 3.50 GiB. GPU had 3.25 GiB free of 40",
        "torch's allocator, in other words",
        FULL,
        {"tried": gib(3.5), "free": gib(3.25)},
        "a smaller batch",
    ),
    (
        "torch.OutOfMemoryError: Tried to allocate 3.50 GiB on rank 3",
        "torch's allocator, in other words",
        UNKNOWN,
        {"tried": gib(3.5)},
        "look at the whole message",
    ),
    (
        "[enforce fail at alloc_cpu.cpp:81] data. DefaultCPUAllocator: not enough memory: you "
        "tried to allocate 214748364800 bytes.",
        "one request of host memory",
        HOST,
        {"tried": 200 * GIB},
        "look at the shapes",
    ),
    (
        "AutoBatch: Computing optimal batch size for imgsz=320\nCUDA out of memory\n"
        "AutoBatch: WARNING \u26a0\ufe0f CUDA anomaly detected, using default batch-size 8.",
        "a search for a batch size",
        WARNING,
        {},
        "nothing, if the training starts",
    ),
    (
        "AutoBatch: Computing optimal batch size for imgsz=320\nCUDA out of memory. "
        + " ".join(f"Another program, number {i}, is here." for i in range(40))
        + "\nAutoBatch: Using batch-size 9 for CUDA:0 5.00G/8.00G (60%)",
        "a search for a batch size",
        WARNING,
        {},
        "nothing, if the training starts",
    ),
    (
        "AutoBatch: WARNING  error detected: 'OutOfMemoryError' object has no attribute "
        "'encode',  using default batch-size 4.",
        "a search for a batch size",
        WARNING,
        {},
        "nothing, if the training starts",
    ),
    (
        "AutoBatch: Using batch-size 71 for CUDA:0 9.00G/16.00G (56%)\n"
        "torch.cuda.OutOfMemoryError: CUDA out of memory.",
        "a batch size that was searched for",
        FULL,
        {},
        "set a smaller batch yourself",
    ),
    (
        (
            "RuntimeError: Current platform can NOT allocate memory block with size larger than "
            "4GB! Tried to"
        ),
        "Intel's limit of a block",
        LIMITED,
        {},
        "smaller tensors",
    ),
    (
        "Unable to pin more tensors for 'transformer' as the maximum reservable memory has been "
        "reached (1023.00). Transfer speed from RAM to VRAM may be slower.",
        "pinned memory of an offloader",
        WARNING,
        {},
        "nothing, unless an error follows",
    ),
    (
        "Unable to allocate memory with native alloc for size 2097152 bytes with error 'ArrayFire "
        "Exception "
        "(Device out of memory:101)'\n"
        "terminate called after throwing an instance of 'af::exception'\n  what():  ArrayFire "
        "Exception "
        "(Device out of memory:101):\nIn function af_err af_matmul(void**, af_array, af_array)",
        "ArrayFire",
        FULL,
        {"tried": 2 * MIB},
        "a smaller batch, shorter audio",
    ),
    (
        "ray.exceptions.RayTaskError(OutOfMemoryError): ray::WorkerDict.update_actor() "
        "(pid=118848, "
        "ip=10.130.71.7)",
        "torch's allocator, without its message",
        UNKNOWN,
        {},
        "look for 'Tried to allocate' further up",
    ),
    (
        "CUDACachingAllocator.cpp:3933] memory allocation failed with OOM on device 0 while "
        "trying to "
        "allocate 2097152 bytes (free: 2031616, total: 23661248512).\n"
        "RuntimeError: Engine core initialization failed. See root cause above.",
        "torch's allocator, without its message",
        FULL,
        {"device": 0, "tried": 2 * MIB, "free": 2031616, "total": 23661248512},
        "look for 'Tried to allocate' below it",
    ),
    (
        "[rank1]:[W812 16:00:28.643448608 CUDACachingAllocator.cpp:3933] memory allocation failed "
        "with OOM on device 1 while trying to allocate 20971520 bytes (free: 15794176, total: "
        "150111977472).",
        "torch's allocator, a first attempt",
        WARNING,
        {"device": 1, "tried": 20 * MIB, "free": 15794176, "total": 150111977472},
        "nothing, if the run goes on",
    ),
    (
        "expandable_segments: memory mapping failed with OOM on device 0 while trying to map "
        "20971520 bytes (free: 5832704, total: 101975851008)",
        "torch's allocator, a first attempt",
        WARNING,
        {"device": 0, "tried": 20 * MIB, "free": 5832704, "total": 101975851008},
        "nothing, if the run goes on",
    ),
    (
        "HSA Error 4104: HSA_STATUS_ERROR_OUT_OF_RESOURCES: The runtime failed to allocate the "
        "necessary resources. This error may also occur when the core runtime library needs to "
        "spawn threads or create internal OS-specific events.",
        "ROCm's HSA runtime",
        UNKNOWN,
        {},
        "`rocm-smi --showmeminfo vram`",
    ),
    (
        "Status Message: bfc_arena.cc:376 void* onnxruntime::BFCArena::AllocateRawInternal() "
        "Failed to "
        "allocate memory for requested buffer of size 136723103642368",
        "a wrong size in ONNX Runtime",
        LARGER,
        {"tried": 136723103642368},
        "one session for each thread",
    ),
    (
        "Attempting to copy inputs of <function pairwise_iou at 0x7f09a1a5c310> to CPU due to "
        "CUDA OOM\n"
        "RuntimeError: [enforce fail at alloc_cpu.cpp:66] . DefaultCPUAllocator: can't allocate "
        "memory: you "
        "tried to allocate 81788928000 bytes. Error code 12 (Cannot allocate memory)",
        "an allocation of the program",
        HOST,
        {"tried": 81788928000},
        "a smaller batch",
    ),
    (
        (
            "RuntimeError: FATAL ERROR :: MODULE:SYNHELPER workspace Allocation of size "
            "::14493510400 failed!"
        ),
        "Gaudi",
        FULL,
        {"tried": 14493510400},
        "a smaller batch",
    ),
    (
        "CUDA error: out of memory\n...ggml-cuda.cu:97: CUDA error\n  current device: 0, in "
        "function alloc "
        "at ...ggml-cuda.cu:476\n  cuMemAddressReserve(&pool_addr, CUDA_POOL_VMM_MAX_SIZE, 0, "
        "0, 0)",
        "a range of GPU addresses",
        OTHER_MEMORY,
        {},
        "build llama.cpp with -DGGML_CUDA_NO_VMM=ON",
    ),
    (
        "RuntimeError: include/tiny-cuda-nn/gpu_memory.h:459 cuMemAddressReserve(&m_base_address, "
        "m_max_size, 0, 0, 0) failed with error CUDA_ERROR_OUT_OF_MEMORY",
        "a range of GPU addresses",
        OTHER_MEMORY,
        {},
        "build llama.cpp with -DGGML_CUDA_NO_VMM=ON",
    ),
    (
        "Uncaught exception: Could not allocate memory: "
        "E:\\ngp\\dependencies\\tiny-cuda-nn\\include\\"
        "tiny-cuda-nn/gpu_memory.h:109 cudaMalloc(&rawptr, n_bytes+DEBUG_GUARD_SIZE*2) failed "
        "with error "
        "out of memory",
        "tiny-cuda-nn",
        FULL,
        {},
        "fewer or smaller images",
    ),
    (
        "THCudaCheck FAIL file=..\\aten\\src\\THC\\THCCachingHostAllocator.cpp line=296 error=2 : "
        "out of "
        "memory\nRuntimeError: cuda runtime error (2) : out of memory at "
        "..\\aten\\src\\THC\\THCCachingHostAllocator.cpp:296",
        "pinned memory",
        HOST,
        {},
        "pin_memory=False",
    ),
    (
        "[Warning] [omni.physx.plugin] PhysX warning: Failed to allocate pinned memory",
        "pinned memory of a library",
        HOST,
        {},
        "`free -g` and `ulimit -l` show",
    ),
    (
        "[omni.physx.plugin] PhysX error: SynchronizeStreams cuEventRecord failed with error 700\n"
        "[omni.physx.plugin] PhysX warning: Failed to allocate pinned memory",
        "an illegal access before an allocation",
        OTHER_MEMORY,
        {},
        "rerun with CUDA_LAUNCH_BLOCKING=1",
    ),
    (
        "OOM Detected, reducing batch/grad size to 0/2.",
        "a skipped or retried batch",
        WARNING,
        {},
        "a smaller batch",
    ),
    (
        "Exception No valid triton configs. OutOfMemoryError: out of resource: triton_mm "
        "Required: 294912 Hardware limit:232448 Reducing block sizes or `num_stages` may help.",
        "shared memory of a kernel",
        OTHER_MEMORY,
        {"needed": 294912, "the limit": 232448},
        "a smaller block size",
    ),
    (
        '  File "/usr/lib/python3.5/subprocess.py", line 1490, in _execute_child\n'
        "    restore_signals, start_new_session, preexec_fn)\n"
        "OSError: [Errno 12] Cannot allocate memory",
        "a new process",
        HOST,
        {},
        "fewer DataLoader workers (num_workers=0 starts none) or other processes",
    ),
    (
        "ray.exceptions.RayTaskError(OutOfMemoryError): torch.cuda.OutOfMemoryError",
        "torch's allocator, without its message",
        UNKNOWN,
        {},
        "look for 'Tried to allocate'",
    ),
    (
        "Epoch 3 failed: cuda OOM",
        "a program on the GPU",
        UNKNOWN,
        {},
        "look for 'Tried to allocate'",
    ),
    (
        "torch.cuda.OutOfMemoryError at step 1200, reducing micro batch size from 8 to 4",
        "a skipped or retried batch",
        WARNING,
        {},
        "a smaller batch",
    ),
    (
        "triton.code_gen.OutOfResources: out of resource: shared memoryRequired: 110592Hardware "
        "limit: 101376",
        "shared memory of a kernel",
        OTHER_MEMORY,
        {"needed": 110592, "the limit": 101376},
        "a smaller block size",
    ),
    (
        "RuntimeError: [enforce fail at CPUAllocator.cpp:79] data. DefaultCPUAllocator: not "
        "enough memory: you tried to allocate 6553600 bytes.",
        "a CPU allocation of torch on Windows",
        HOST,
        {"tried": 6553600},
        "a larger page file",
    ),
    (
        "| WARNING: ran out of memory, skipping batch",
        "a skipped or retried batch",
        WARNING,
        {},
        "a smaller batch",
    ),
    (
        "[OOM Warning] Skipping batch 7 due to CUDA OOM.",
        "a skipped or retried batch",
        WARNING,
        {},
        "a smaller batch",
    ),
    (
        "Attempting to copy inputs of <function pairwise_iou at 0x7f> to CPU due to CUDA OOM",
        "a skipped or retried batch",
        WARNING,
        {},
        "a smaller batch",
    ),
    (
        "WARNING CUDA OutOfMemoryError in TaskAlignedAssigner, using CPU",
        "a skipped or retried batch",
        WARNING,
        {},
        "a smaller batch",
    ),
    (
        "[Low GPU VRAM Warning] Your current GPU free memory is 845.12 MB for this VAE decode.\n"
        "[Low GPU VRAM Warning] This number is lower than the safe value of 1536.00 MB.",
        "Stable Diffusion WebUI Forge",
        WARNING,
        {"free on the device": round(845.12 * MIB), "the limit": 1536 * MIB},
        "a lower GPU Weights",
    ),
    (
        "GPU memory exhausted, please reduce the batch size",
        "a program on the GPU",
        FULL,
        {},
        "stop the other processes",
    ),
    ("zsh: killed     python train.py", "a killed process", HOST, {}, "less host memory"),
    (
        "[Error] [carb.graphics-vulkan.plugin] VkResult: ERROR_OUT_OF_DEVICE_MEMORY\n[Error] "
        "[gpu.foundation.plugin] subAllocate() failed for AccelStruct size: 4096",
        "Vulkan",
        FULL,
        {"tried": 4096},
        "close other programs",
    ),
    (
        "Error at: /build/caffe2/core/context_gpu.cu:343: out of memory",
        "a CUDA call outside torch's allocator",
        FULL,
        {},
        "stop the other processes",
    ),
    *(
        # Of the GPU or of the host: none says that it was the host.
        (text, "an allocation that failed", UNKNOWN, figures, "use less at once")
        for text, figures in (
            # A buffer of no model.
            ("Unable to allocate output buffer.", {}),
            ("Failed to allocate 4294967296 bytes", {"tried": 4 * GIB}),
        )
    ),
    *(
        (text, "an allocation on the GPU", UNKNOWN, figures, "stop the other processes")
        for text, figures in (
            ("cudaMalloc of size 4294967296 failed", {}),
            ("hipMalloc of size 4 GB failed", {"tried": 4 * GIB}),
            ("GPU memory allocation of 4294967296 bytes failed", {"tried": 4 * GIB}),
            ("Error: cannot allocate memory on GPU 0", {}),
            ("Not enough GPU memory: you tried to allocate 4 GB", {"tried": 4 * GIB}),
            (
                "F0623 11:32:24 gpu_memory.hpp:38] Failed to allocate 49152000 bytes on device 2. "
                "Total memory: 12799574016, Free: 21430272",
                {"tried": 49152000, "total": 12799574016, "free": 21430272, "device": 2},
            ),
        )
    ),
    (
        "/usr/bin/ld: out of memory allocating 5703833397850032382 bytes after a total of 58503168 "
        "bytes\ncollect2: error: ld returned 1 exit status",
        "a linker",
        LARGER,
        {"tried": 5703833397850032382, "allocated before": 58503168},
        "look at the shapes",
    ),
    (
        "/usr/bin/ld: out of memory allocating 65536 bytes after a total of 58503168 bytes",
        "a linker",
        HOST,
        {"tried": 65536, "allocated before": 58503168},
        "build from clean object files",
    ),
    (
        "/usr/bin/ld.gold: error: memory exhausted",
        "a linker",
        HOST,
        {},
        "build from clean object files",
    ),
    # As torch 0.4 writes of its own allocator, later ones of calls outside it.
    (
        '    loss.backward()\n  File "/usr/lib/python3.5/site-packages/torch/tensor.py", line 93'
        "\nRuntimeError: CUDA error: out of memory",
        "a CUDA call, or torch 0.4",
        FULL,
        {},
        "stop the other processes",
    ),
    (
        '  File "/usr/lib/python3.11/site-packages/torch/cuda/__init__.py", line 302'
        "\nRuntimeError: CUDA error: out of memory",
        "a CUDA call outside torch's allocator",
        FULL,
        {},
        "stop the other processes",
    ),
    *(
        # What stands before has the name of a compiler, or ends as another code of errors begins.
        (text, "a CUDA call outside torch's allocator", FULL, {}, "stop the other processes")
        for text in (
            "caught a C++ exception: CUDA error: out of memory",
            "built with g++ 11.4\ntorch.AcceleratorError: CUDA error: out of memory",
            "saved model0004.pt\ntorch.AcceleratorError: CUDA error: out of memory",
            # What ends the program after it.
            (
                "CUDA error: out of memory\nterminate called after throwing an instance of "
                "'std::bad_alloc'"
            ),
        )
    ),
    *(
        (text, "a compiler", HOST, {}, "fewer jobs at once")
        for text in (
            "/usr/lib/gcc/cc1plus: out of memory allocating 65536 bytes",
            "clang-15: error: unable to execute command: Killed",
            "ninja: fatal: posix_spawn: Cannot allocate memory",
        )
    ),
    (
        "terminate called after throwing an instance of 'thrust::system::detail::bad_alloc'\n"
        "  what():  std::bad_alloc: out of memory",
        "Thrust",
        FULL,
        {},
        "fewer points",
    ),
    # Not the machine's memory, whatever Python calls the error.
    (
        (
            "dist2 = distCUDA2(points)\nMemoryError: bad allocation: cudaErrorMemoryAllocation: "
            "out "
            "of memory"
        ),
        "Thrust",
        FULL,
        {},
        "fewer points",
    ),
    (
        "MemoryError: std::bad_alloc: cudaErrorMemoryAllocation: out of memory",
        "Thrust",
        FULL,
        {},
        "fewer points",
    ),
    (
        "ImportError: DLL load failed while importing _x: Die Auslagerungsdatei ist zu klein, um "
        "diesen "
        "Vorgang durchzuf\u00fchren.",
        "Windows' page file",
        HOST,
        {},
        "a larger page file",
    ),
    (
        (
            "ImportError: DLL load failed while importing _x: "
            "\u9875\u9762\u6587\u4ef6\u592a\u5c0f\uff0c"
        ),
        "Windows' page file",
        HOST,
        {},
        "a larger page file",
    ),
    (
        "    self.pid = os.fork()\nOSError: [Errno 12] Cannot allocate memory",
        "a new process",
        HOST,
        {},
        "fewer DataLoader workers",
    ),
    (
        "RuntimeError: One or more background workers are no longer alive. Exiting. Please check "
        "the print statements above for the actual error message",
        "perhaps the cause of a dead nnU-Net worker",
        UNKNOWN,
        {},
        "read the lines above it",
    ),
    (
        (
            "24/01/09 12:00:01 | INFO | root | Failed (CUDA out of memory) on sequence P1 of "
            "length "
            "1204."
        ),
        "ESMFold",
        UNKNOWN,
        {"length of the sequence": 1204},
        "--chunk-size 64",
    ),
    (
        (
            "Failed (CUDA out of memory) to predict batch of size 7. Try lowering "
            "`--max-tokens-per-batch`."
        ),
        "ESMFold",
        UNKNOWN,
        {"sequences in the batch": 7},
        "--chunk-size 64",
    ),
    (
        "Loading checkpoint shards:  71%|████▍ | 5/7 [01:46<00:43, "
        "21.78s/it]WARNING:torch.distributed.elastic."
        "multiprocessing.api:Sending process 517201 closing signal SIGTERM\n"
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 2 "
        "(pid: "
        "517203)",
        "a killed process",
        HOST,
        {},
        "low_cpu_mem_usage=True",
    ),
    (
        "Loading checkpoint shards: 100%|████| 2/2 [00:09<00:00]\n"
        + "{'loss': 1.2}\n" * 100
        + "exitcode: -9",
        "a killed process",
        HOST,
        {},
        "less host memory: fewer processes or DataLoader workers",
    ),
    (
        "Step 00020 | Loss 0.5810\nBus error (core dumped)",
        "a bus error",
        HOST,
        {},
        "a larger --shm-size",
    ),
    (
        "failed to allocate 8.00G from device: hipError_t(1002)",
        "TensorFlow's start",
        FULL,
        {"tried": 8 * GIB},
        "stop the other processes that `amd-smi` shows",
    ),
    (
        "CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62",
        "vLLM's sleep-mode pool",
        FULL,
        {},
        "free what other processes hold",
    ),
    (
        "ValueError: No available memory for the cache blocks. Try increasing "
        "`gpu_memory_utilization` when initializing the engine.",
        "vLLM's KV cache",
        LIMITED,
        {},
        "raise --gpu-memory-utilization",
    ),
    (
        "INFO 10-25 13:12:42 [gpu_worker.py:298] Available KV cache memory: -1.25 "
        "GiB\n(EngineCore pid=7) "
        "ValueError: No available memory for the cache blocks.",
        "vLLM's KV cache",
        LIMITED,
        {"short": gib(1.25)},
        "raise --gpu-memory-utilization",
    ),
    (
        (
            "4.00 GiB KV cache is needed, which is larger than the available KV cache memory "
            "(-0.50 GiB)"
        ),
        "vLLM's KV cache",
        LIMITED,
        {"needed": 4 * GIB, "short": gib(0.5)},
        "raise --gpu-memory",
    ),
    (
        (
            "4.00 GiB KV cache is needed, which is larger than the available KV cache memory (1.20 "
            "GiB)"
        ),
        "vLLM's KV cache",
        LIMITED,
        {"needed": 4 * GIB, "available": gib(1.2)},
        "raise --gpu-memory",
    ),
    (
        "ValueError: To serve at least one request with the models's max seq len (262144), (24.0 "
        "GiB KV cache is needed, which is larger than the available KV cache memory (3.18 GiB). "
        "Based on the available memory, the estimated maximum model length is 34736.",
        "vLLM's KV cache",
        LIMITED,
        {"needed": 24 * GIB, "available": gib(3.18), "requested": 262144, "fit": 34736},
        "--max-model-len 34736 fits",
    ),
    (
        "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens "
        "that can be stored in KV cache (7344). Try increasing `gpu_memory_utilization` or "
        "decreasing `max_model_len`",
        "vLLM's KV cache",
        LIMITED,
        {"requested": 32768, "fit": 7344},
        "--max-model-len 7344 fits",
    ),
    (
        "(EngineCore_DP0 pid=4711) ValueError: Free memory on device (17.42/23.64 GiB) on startup "
        "is less than desired GPU memory utilization (0.9, 21.28 GiB). Decrease GPU memory "
        "utilization",
        "vLLM's start",
        OUTSIDE,
        {
            "free": gib(17.42),
            "total": gib(23.64),
            "the setting's share": 0.9,
            "wanted by the setting": gib(21.28),
        },
        "--gpu-memory-utilization 0.73 fits",
    ),
    (
        "ValueError: Free memory on device xpu:2 (7.16/14.32 GiB) on startup is less than desired "
        "GPU memory utilization (0.9, 12.89 GiB).",
        "vLLM's start",
        OUTSIDE,
        {
            "free": gib(7.16),
            "total": gib(14.32),
            "device": 2,
            "the setting's share": 0.9,
            "wanted by the setting": gib(12.89),
        },
        (
            "--gpu-memory-utilization 0.50 fits what is free; for more, stop the other processes "
            "that `xpu-smi`"
        ),
    ),
    (
        (
            "Free memory on device cuda:1 (6.9/8.0 GiB) on startup is less than desired GPU memory "
            "utilization"
        ),
        "vLLM's start",
        OUTSIDE,
        {"free": gib(6.9), "total": 8 * GIB, "device": 1},
        "--gpu-memory-utilization 0.86",
    ),
    (
        "AssertionError: Error in memory profiling. Initial free memory 38.12 GiB, current free "
        "memory 38.50 GiB. This happens when other processes sharing the same container release "
        "GPU memory",
        "vLLM's memory profiling",
        OUTSIDE,
        {"free before": gib(38.12), "free": gib(38.5)},
        "start servers on one",
    ),
    (
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy "
        "requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization` when "
        "initializing the engine.",
        "vLLM's warm-up",
        FULL,
        {"in the trial run": 1024},
        "lower --max-num-seqs below 1024",
    ),
    (
        "[2026-03-03 03:03:03 TP0] Memory pool end. avail mem=6.40 GB\n[2026-03-03 03:03:09 TP0] "
        "Capture "
        "cuda "
        "graph begin. This can take up to several minutes. avail mem=6.10 GB\nCapturing batches "
        "(bs=256 "
        "avail_mem=5.80 GB):  10%\rCapturing batches (bs=160 avail_mem=0.02 GB):  45%\n"
        "torch.AcceleratorError: CUDA error: out of memory",
        "graph capture in SGLang",
        FULL,
        {"free before": gib(6.1), "free when it failed": gib(0.02)},
        "capture fewer or smaller graphs",
    ),
    (
        "Exception: Capture cuda graph failed: CUDA out of memory.\nPossible solutions:\n1. set "
        "--mem-fraction-static to a smaller value",
        "graph capture in SGLang",
        FULL,
        {},
        "capture fewer or smaller graphs",
    ),
    (
        "Capturing CUDA graph shapes:  43%|####3     | 15/35 [00:09]\nRuntimeError: CUDA error: "
        "out of "
        "memory",
        "graph capture in vLLM",
        FULL,
        {},
        "lower --gpu-memory-utilization",
    ),
    (
        "Load weight end. quant=fp8, avail mem=9.50 GB, mem usage=61.25 GB.\nValueError: Loaded "
        "weights leave no GPU memory for the KV cache under --mem-fraction-static=0.8. Raise "
        "--mem-fraction-static above 0.861 (minimum viable = 1 - available/pre = 0.8603).",
        "SGLang's start",
        LIMITED,
        {
            "the setting's share": 0.8,
            "the least share that fits the weights": 0.861,
            "free": gib(9.5),
            "weights": gib(61.25),
        },
        "raise --mem-fraction-static above 0.861",
    ),
    (
        # The end of TensorFlow's dump alone.
        "bfc_allocator.cc:700] 3 Chunks of size 4096 totalling 12.0KiB\nStats:\nLimit:      "
        "      3145728000\nInUse:            3145000000\nMaxInUse:         3145600000\nNumAllocs:"
        "             5120\nMaxAllocSize:      209715200",
        "the figures of TensorFlow's pool",
        FULL,
        {
            "allowed": 3145728000,
            "allocated": 3145000000,
            "allocated at most": 3145600000,
            "largest request so far": 209715200,
        },
        "a smaller batch",
    ),
    (
        # Neither a type nor a device.
        "OOM when allocating tensor with shape[64,512,512]\nLimit: 8145728000\nInUse: 8145700000",
        "TensorFlow, without its device",
        UNKNOWN,
        {"shape": "[64,512,512]", "allowed": 8145728000, "allocated": 8145700000},
        "a smaller batch",
    ),
    (
        # What Ollama had counted before.
        'msg=offload memory.available="[22.5 GiB]" memory.required.full="6.5 GiB" '
        'memory.required.kv="1.0 GiB" memory.weights.total="4.5 GiB"\n'
        "error loading model: unable to allocate ROCm0 buffer",
        "llama.cpp's weights",
        FULL,
        {
            "available": gib(22.5),
            "needed, as estimated": gib(6.5),
            "the KV cache": GIB,
            "weights": gib(4.5),
        },
        "fewer layers on the GPU",
    ),
    (
        # Kubernetes would call it OOMKilled at the limit.
        "    Last State:  Terminated\n      Reason:  Error\n      Exit Code:  137\n",
        "a container that was killed below its limit",
        UNKNOWN,
        {},
        "`dmesg | grep -i kill`",
    ),
    (
        "terminate called after throwing an instance of 'thrust::system::system_error'\n  what():  "
        "parallel_for failed: out of memory",
        "Thrust",
        FULL,
        {},
        "fewer points",
    ),
    (
        "ERROR | yolox.models.yolo_head:get_losses:333 - OOM RuntimeError is raised due to the huge "
        "memory cost during label assignment. CPU mode is applied in this batch.",
        "the labels of YOLOX",
        WARNING,
        {},
        "nothing, where it is rare",
    ),
    (
        "[INFO] [utils.py:829:see_memory_usage] After creating fp16 partitions: 7\n"
        "[INFO] [utils.py:830:see_memory_usage] MA 12.5 GB  Max_MA 12.5 GB\n"
        "[INFO] [utils.py:829:see_memory_usage] Before creating fp32 partitions\n"
        "[INFO] [utils.py:830:see_memory_usage] MA 12.5 GB  Max_MA 12.5 GB\n"
        "RuntimeError: CUDA error: out of memory",
        "DeepSpeed's shards",
        FULL,
        {},
        "more of ZeRO's states on the CPU",
    ),
    (
        "[TM][WARNING] `session_len` truncated to 4352 due to limited KV cache memory",
        "LMDeploy's shorter sessions",
        WARNING,
        {"fit": 4352},
        "nothing, where that length is enough",
    ),
    (
        "the current vLLM instance can use total_gpu_memory (22.00GiB) x gpu_memory_utilization "
        "(0.75) = 16.50GiB\nvllm/worker.py\nFile torch/cuda/graphs.py, line 84, in capture_end\n"
        "RuntimeError: CUDA error: out of memory",
        "graph capture in vLLM",
        FULL,
        {"total": 22 * GIB, "the setting's share": 0.75, "wanted by the setting": gib(16.5)},
        "lower --gpu-memory-utilization",
    ),
    (
        "W/Adreno-GSL(4711): <sharedmem_gpuobj_alloc:2339>: sharedmem_gpumem_alloc: mmap failed "
        "errno 12 Out of memory",
        "Adreno's driver",
        FULL,
        {},
        "close other apps",
    ),
    (
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
        "SGLang's start",
        LIMITED,
        {},
        "raise --mem-fraction-static",
    ),
    (
        "[2026-03-03 03:03:03 TP0] Load weight end. avail mem=9.10 GB, mem usage=66.30 "
        "GB.\n[2026-03-03 "
        "03:03:03 "
        "TP0] max_total_tokens=65536 is larger than the profiled value -12345. Use the profiled "
        "value "
        "instead.",
        "SGLang's start",
        LIMITED,
        {"free": gib(9.1), "weights": gib(66.3), "requested": 65536, "short": 12345},
        "raise --mem-fraction-static",
    ),
    (
        "Decode out of memory. Try to lower your batch size.\nTry to allocate 24 "
        "tokens.\nAvailable "
        "tokens: 3",
        "SGLang's KV cache",
        LIMITED,
        {"requested": 24, "fit": 3},
        "lower --max-running-requests",
    ),
    (
        # SGLang's own spelling, and pages of 32 tokens: enough tokens for the sum, too few pages.
        "Decode out of memory. Try to lower your batch size.\nTry to allocate 96 "
        "tokens.\nAvaliable "
        "tokens: 512",
        "SGLang's KV cache",
        UNKNOWN,
        {"requested": 96, "fit": 512},
        "lower --max-running-requests, or set --page-size 1",
    ),
    (
        'Error: Warmup(Generation("Not enough memory to handle 4096 prefill tokens. You need to '
        "decrease "
        '`--max-batch-prefill-tokens`"))',
        "text-generation-inference",
        FULL,
        {"requested": 4096},
        "lower --max-batch-prefill-tokens",
    ),
    (
        "Not enough memory to handle 16000 total tokens with 2 prefill tokens. You need to "
        "decrease `--max-batch-total-tokens` or `--max-batch-prefill-tokens`",
        "text-generation-inference",
        FULL,
        {"requested": 16000, "of them prefill": 2},
        "lower --max-batch-prefill",
    ),
    (
        "[TRT-LLM] [RANK 1] [E] Executor creation failed due to insufficient GPU memory.\n\nThe "
        "following "
        "component "
        "could not be created: KV cache\nTotal GPU memory (GiB): 140.06\nFree GPU memory before "
        "component "
        "creation "
        "attempt (GiB): 108.86",
        "TensorRT-LLM",
        FULL,
        {"total": gib(140.06), "free": gib(108.86), "part": "kvcache"},
        "lower free_gpu_memory_fraction",
    ),
    (
        "[TRT] [E] 2: [virtualMemoryBuffer.cpp::resizePhysical::145] Error Code 2: OutOfMemory "
        "(no further "
        "information)\n[TRT] [W] Requested amount of GPU memory (17179869184 bytes) could not be "
        "allocated.",
        "TensorRT",
        FULL,
        {"tried": 16 * GIB},
        "a smaller workspace",
    ),
    (
        "[TRT] [W] Requested amount of GPU memory (17179869184 bytes) could not be "
        "allocated.\n[TRT] [E] 2: "
        "[globWriter.cpp::makeResizableGpuMemory::9] Error Code 2: OutOfMemory (no further "
        "information)\n"
        "[TRT-LLM] [E] Engine building failed, please check the error log.",
        "a build of TensorRT-LLM",
        FULL,
        {"tried": 16 * GIB},
        "fewer weights for each GPU",
    ),
    (
        "E runtime.cpp (24) - Cuda Error in allocate: 2\nterminate called after throwing an "
        "instance of "
        "'nvinfer1::CudaError'",
        "TensorRT",
        FULL,
        {},
        "a smaller workspace",
    ),
    (
        "[E] [TRT] ../rtSafe/safeRuntime.cpp (25) - Cuda Error in allocate: 2 (out of memory)",
        "TensorRT",
        FULL,
        {},
        "a smaller workspace",
    ),
    (
        "[TRT] [W] Skipping tactic 8 due to insufficient memory on requested size of 17179869184 "
        "detected for tactic",
        "a skipped tactic of TensorRT",
        WARNING,
        {"tried": 16 * GIB},
        "nothing, if the build succeeds",
    ),
    (
        "RuntimeError: Error in function 'aligned_alloc' at /w/flashinfer/allocator.h:49: Buffer "
        "overflow when allocating memory for batch_prefill_tmp_v with size 536346624 and "
        "alignment 16, but only 413138944 bytes available in AlignedAllocator. Increase the "
        "workspace buffer size.",
        "FlashInfer's workspace",
        LIMITED,
        {"tried": 536346624, "available": 413138944},
        "a workspace of more than 511.50 MiB",
    ),
    (
        "RuntimeError: Failed to allocate memory for batch_prefill_tmp_v with size 304087040 and "
        "alignment 16 in AlignedAllocator",
        "FlashInfer's workspace",
        LIMITED,
        {"tried": 304087040},
        "a workspace of more than 290.00 MiB",
    ),
    (
        "RuntimeError: No executable batch size found, reached zero.",
        "accelerate's batch size",
        FULL,
        {},
        "run once with batch size 1",
    ),
    (
        "ValueError: Some modules are dispatched on the CPU or the disk. Make sure you have "
        "enough GPU RAM to fit the quantized model.",
        "a model that was dispatched to the CPU",
        FULL,
        {},
        "free what other processes or models hold",
    ),
    ("RuntimeError: Insufficient VRAM for model and cache", "ExLlama", FULL, {}, "a shorter cache"),
    (
        "RuntimeError: Insufficient VRAM in split for model and cache",
        "ExLlama",
        FULL,
        {},
        "a shorter cache",
    ),
    (
        "[TM][ERROR] CUDA runtime error: out of memory /src/turbomind/core/allocator.cc:12",
        "LMDeploy",
        FULL,
        {},
        "lower cache_max_entry_count",
    ),
    (
        "[TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMallocAsync(ptr, n, stream): out of "
        "memory "
        "(/src/buffers.h:12)",
        "TensorRT-LLM",
        FULL,
        {},
        "lower free_gpu_memory_fraction",
    ),
    (
        "[E] [TRT] [defaultAllocator.cpp::allocate::31] Error Code 1: Cuda Runtime (out of "
        "memory)\n[W] "
        "[TRT] Requested amount of GPU memory (4294967296 bytes) could not be allocated.\n[E] "
        "Skipping "
        "tactic 0x0 due to exception\n[E] Error Code 10: Internal Error (Could not find any "
        "implementation "
        "for node a.)\n[E] Engine could not be created from network",
        "TensorRT",
        FULL,
        {"tried": 4 * GIB},
        "a smaller workspace",
    ),
    (
        "[E] 2: [virtualMemoryBuffer.cpp::resizePhysical::145] Error Code 2: OutOfMemory (no "
        "further "
        "information)\n[W] [TRT] Tactic Device request: 9000MB Available: 8000MB. Device memory is "
        "insufficient to use tactic.\n[W] [TRT] Skipping tactic 3 due to insufficient memory on "
        "requested "
        "size of 9000 detected for tactic 0x4.",
        "a skipped tactic of TensorRT",
        WARNING,
        {"tried": 9000 * MIB, "available": 8000 * MIB},
        "nothing, if the build succeeds",
    ),
    (
        # The program runs, and needs more than is left.
        "[W] [TRT] Skipping tactic 3 due to insufficient memory on requested size of 9000 "
        "detected for "
        "tactic 0x4.\nEngine built in 30 s.\n"
        + "step ok\n"
        * 3000
        + "[E] [TRT] 2: [executionContext.cpp::enqueue::1] "
        "Error Code 2: OutOfMemory (no further information)",
        "TensorRT",
        FULL,
        {},
        "a smaller workspace",
    ),
    (
        # Newer releases write MiB there, without saying so.
        (
            "Skipping tactic 3 due to insufficient memory on requested size of 9000 detected for "
            "tactic 0x4."
        ),
        "a skipped tactic of TensorRT",
        WARNING,
        {"tried": 9000 * MIB},
        "nothing, if the build succeeds",
    ),
    (
        "[E] 1: [defaultAllocator.cpp::allocate::19] Error Code 1: Cuda Runtime (out of "
        "memory)\n[W] "
        "Requested amount of GPU memory (1073741824 bytes) could not be allocated.\n[E] 2: "
        "[safeDeserialize.cpp::load::269] Error Code 2: OutOfMemory (no further "
        "information)\nCould not "
        "deserialize engine.",
        "an engine of TensorRT",
        FULL,
        {"tried": GIB},
        "stop the other processes",
    ),
    (
        "RuntimeException: Exception during initialization: /src/bfc_arena.cc:368 void* "
        "onnxruntime::BFCArena::AllocateRawInternal(size_t, bool)\nFailed to allocate memory for "
        "requested "
        "buffer of size 1048576",
        "a session of ONNX Runtime",
        FULL,
        {"tried": MIB},
        "a smaller or quantized model",
    ),
    (
        "Out of Memory: Not enough space to allocate 12582912 B DRAM buffer across 12 banks, "
        "where each bank needs to store 1048576 B, but bank size is 4194304 B (allocated: 2097152 "
        "B, free: 2097152 B, largest free block: 524288 B)",
        "Tenstorrent",
        FULL,
        {
            "tried": 12 * MIB,
            "needed": MIB,
            "the limit": 4 * MIB,
            "used": 2 * MIB,
            "available": 2 * MIB,
            "largest free block": MIB // 2,
        },
        "smaller tensors",
    ),
    (
        (
            "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=1 ; hostname=h ; "
            "expr=cublasCreate(&handle_);"
        ),
        "cuBLAS or cuDNN in ONNX Runtime or CNTK",
        FULL,
        {"device": 1},
        "a smaller model, batch or input",
    ),
    (
        (
            "ggml_metal_add_buffer: buffer 'data' size 21474836480 is larger than buffer maximum "
            "of 17179869184"
        ),
        "one buffer of llama.cpp on Metal",
        LIMITED,
        {"tried": 20 * GIB, "allowed": 16 * GIB},
        "a newer llama.cpp",
    ),
    (
        "ggml_sycl: ggml-sycl.cpp:12: UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
        "llama.cpp on SYCL",
        FULL,
        {},
        "fewer layers on the GPU",
    ),
    (
        (
            "Check failed: (!free_page_ids_.empty()) is false: The KV cache is full. No page "
            "can be "
            "allocated."
        ),
        "MLC's KV cache",
        OTHER_MEMORY,
        {},
        "a shorter prompt or chat",
    ),
    (
        "Error: llama runner exited, you may not have enough memory to run the model",
        "Ollama's runner",
        UNKNOWN,
        {},
        "read the server's log",
    ),
    (
        # An integrated GPU refuses one large buffer although it has more free.
        "Available devices:\n  ROCm0: Radeon (110592 MiB, 109568 MiB free)\nallocating 102400.00 "
        "MiB on "
        "device 0: cudaMalloc failed: out of memory",
        "llama.cpp",
        FULL,
        {"device": 0, "tried": 100 * GIB, "total": 108 * GIB, "free before": 107 * GIB},
        "fewer layers on the GPU",
    ),
    (
        "worker 1: processing method load_model.\nRuntimeError: CUDA error: out of memory",
        "weights in vLLM",
        FULL,
        {},
        "load the weights in fewer bytes",
    ),
    (
        'File "/site-packages/vllm/v1/worker/gpu_worker.py", line 12, in '
        "determine_available_memory\n"
        "RuntimeError: CUDA error: out of memory",
        "vLLM's trial run",
        FULL,
        {},
        "a smaller step: lower --max-num-batched-tokens",
    ),
    (
        'File "/site-packages/vllm/v1/engine/core.py", line 12, in step\n'
        "RuntimeError: CUDA error: out of memory",
        "vLLM",
        FULL,
        {},
        "lower --gpu-memory-utilization",
    ),
    (
        'File "/sglang/srt/model_executor/model_runner.py", line 12, in '
        "forward_extend\nRuntimeError: CUDA "
        "error: out of memory",
        "SGLang",
        FULL,
        {},
        "lower --mem-fraction-static",
    ),
    (
        'File "/text_generation_server/server.py", line 12, in Prefill\n'
        "RuntimeError: CUDA error: out of memory",
        "text-generation-inference's server",
        FULL,
        {},
        "lower --max-batch-prefill-tokens",
    ),
    *(
        # The frames of a server or a program say whose settings help.
        (f"{frame}\nRuntimeError: CUDA error: out of memory", kind, FULL, {}, remedy)
        for frame, kind, remedy in (
            (
                ("(VllmWorker rank=1 pid=7) ERROR 03-19 07:27:53 [x.py:3] died"),
                "vLLM",
                "lower --gpu-mem",
            ),
            ("ERROR 03-19 07:27:53 [core.py:842] died", "vLLM", "lower --gpu-mem"),
            (
                ("(EngineCore_DP0 pid=7) ERROR 03-19 07:27:53 [core.py:842] died"),
                "vLLM",
                "lower --gpu-mem",
            ),
            ('File "/vllm/lora/ops/ops.py", line 3, in shrink', "vLLM", "lower --gpu-memory-util"),
            (
                ('File "/sglang/multimodal_gen/x.py", line 3'),
                "SGLang Diffusion",
                "--dit-layerwise-offload",
            ),
            (
                'File "/sglang/srt/model_executor/model_runner.py", line 323, in load_model',
                "weights in SGLang",
                "load the weights in fewer bytes",
            ),
            (
                ('File "/lmdeploy/pytorch/engine/e.py", line 3'),
                "LMDeploy",
                "lower cache_max_entry_count",
            ),
            (
                "Memory usage when calculating max tokens in paged kv cache: total: 22.19 GiB",
                "TensorRT-LLM",
                "lower free_gpu_memory_fraction",
            ),
            (
                ('File "/tensorrt_llm/_torch/x.py", line 3'),
                "TensorRT-LLM",
                "lower free_gpu_memory_fraction",
            ),
            ('File "/invokeai/app/x.py", line 3', "InvokeAI", "enable_partial_loading: true"),
            (
                ('File "/Fooocus/modules/patch.py", line 3'),
                "Fooocus",
                "a smaller image; start with --always",
            ),
            (
                ('File "C:\\ai\\modules\\processing.py", line 3'),
                "Stable Diffusion's web UI",
                "a smaller image",
            ),
            (
                (
                    "Loading safetensors checkpoint shards:   3% Completed | 1/37 [00:02<01:39,  "
                    "2.77s/it]"
                ),
                "weights in vLLM",
                "load the weights in fewer bytes",
            ),
            ('File "/ComfyUI/execution.py", line 3', "ComfyUI", "a smaller image, fewer frames"),
            ("Prompt executed in 188.48 seconds", "ComfyUI", "a smaller image, fewer frames"),
            (
                ("ERROR 2024-11-28 13:24:44 infinity_emb ERROR:"),
                "Infinity's server",
                "lower --batch-size",
            ),
            (
                'File "D:\\ai\\aki-v1\\execution.py", line 152, in recursive_execute',
                "ComfyUI",
                "a smaller image, fewer frames",
            ),
            (
                (
                    'File "F:\\SdWebui\\webui\\modules\\devices.py", line 148, in '
                    "first_time_calculation"
                ),
                "Stable Diffusion's web UI",
                "a smaller image",
            ),
            (
                'File "/text-generation-webui/modules/callbacks.py", line 3',
                "a local program for language models",
                "a model quantized",
            ),
            (
                'File "/text_embeddings_server/models/m.py", line 3',
                "text-embeddings-inference",
                "lower --max-batch-tokens",
            ),
        )
    ),
    (
        "[worker.py:267] the current vLLM instance can use total_gpu_memory (8.00GiB) x "
        "gpu_memory_utilization (0.70) = 5.60GiB\nINFO 02-26 09:54:05 worker.py:267] model "
        "weights take "
        "5.25GiB; non_torch_memory takes 0.25GiB; PyTorch activation peak memory takes 1.50GiB; "
        "the rest of "
        "the memory reserved for KV Cache is -1.50GiB.",
        "vLLM's KV cache",
        LIMITED,
        {
            "short": gib(1.5),
            "total": 8 * GIB,
            "the setting's share": 0.7,
            "wanted by the setting": gib(5.6),
            "weights": gib(5.25),
            "outside torch": gib(0.25),
            "activations at most": gib(1.5),
        },
        "raise --gpu-memory-utilization",
    ),
    (
        "Memory profiling results: total_gpu_memory=16.00GiB initial_memory_usage=4.75GiB "
        "peak_torch_memory=14.50GiB memory_usage_post_profile=4.75Gib non_torch_memory=0.25GiB "
        "kv_cache_size=-0.50GiB gpu_memory_utilization=0.90\n# GPU blocks: 0, # CPU blocks: 4681",
        "vLLM's KV cache",
        LIMITED,
        {
            "short": gib(0.5),
            "total": 16 * GIB,
            "used before its start": gib(4.75),
            "allocated at most": gib(14.5),
            "used": gib(4.75),
            "outside torch": gib(0.25),
            "the setting's share": 0.9,
        },
        "raise --gpu-memory-utilization",
    ),
    (
        "(VllmWorker rank=1 pid=7) torch.distributed.DistBackendError: NCCL error in: "
        "NCCLUtils.cpp:133\n"
        "(VllmWorker rank=1 pid=7) Last error:\n(VllmWorker rank=1 pid=7) Failed to CUDA calloc "
        "608 bytes",
        "NCCL beside vLLM",
        FULL,
        {"tried": 608},
        "lower --gpu-memory-utilization",
    ),
    (
        '(EngineCore pid=7) ERROR [core.py:9] File "/vllm/_custom_ops.py", line 9, in '
        "gptq_marlin_repack\n"
        "RuntimeError: CUDA driver error: out of memory",
        "weights in vLLM",
        FULL,
        {},
        "load the weights in fewer bytes",
    ),
    (
        'File "/lmdeploy/turbomind/turbomind.py", line 9, in _create_weight_func\n'
        "RuntimeError: [TM][ERROR] CUDA runtime error: out of memory /lmdeploy/memory_utils.cu:32",
        "weights in LMDeploy",
        FULL,
        {},
        "a quantized model or more GPUs (--tp)",
    ),
    *(
        (text, "LM Studio's guardrails", OTHER_MEMORY, figures, "a shorter context")
        for text, figures in (
            (
                "Model loading was stopped due to insufficient system resources. Under the current "
                "settings, this model requires approximately 22.50 GB of memory, and continuing",
                {"needed, as estimated": gib(22.5)},
            ),
            (
                "Model loading was stopped due to insufficient system resources. Under the current "
                "settings, this model requires approximately NaN undefined of memory, and "
                "continuing",
                {},
            ),
            ("Not enough resources to load the model with the current settings", {}),
        )
    ),
    (
        "Failed to allocate CUDA memory with byte size 67108864 on GPU 0: "
        "CNMEM_STATUS_OUT_OF_MEMORY, falling back to pinned system memory",
        "Triton's pool of GPU memory",
        WARNING,
        {"device": 0, "tried": 64 * MIB},
        "a larger pool: tritonserver --cuda-memory-pool-byte-size",
    ),
    (
        "W0121 22:12:18.273157 1 pinned_memory_manager.cc] Unable to allocate pinned system "
        "memory, pinned memory pool will not be available: operation not supported",
        "Triton without pinned memory",
        WARNING,
        {},
        "nothing, if the models load",
    ),
    (
        "tritonclient.utils.ServerException: Failed to increase the shared memory pool size for "
        "key 'triton_python_backend_shm_region_2' to 67108864 bytes. If you are running Triton "
        "inside docker, use '--shm-size' flag to control the shared memory region size. Error: No "
        "space left on device",
        "Triton's shared memory",
        HOST,
        {"held by the pool": 64 * MIB},
        "a larger --shm-size",
    ),
    (
        "Unable to initialize shared memory key 'triton_python_backend_shm_region_3' to requested "
        "size (67108864 bytes).",
        "Triton's shared memory",
        HOST,
        {"tried": 64 * MIB},
        "a larger --shm-size",
    ),
    (
        "Failed to initialize the model instance python_int8_0 because it run out of shared "
        "memory. Increase the shared memory size to fix this error.",
        "Triton's shared memory",
        HOST,
        {},
        "a larger --shm-size",
    ),
    (
        "[ModelManagerService]::WARNING --> Insufficient GPU memory to load model. Aborting",
        "a model in InvokeAI",
        FULL,
        {},
        "enable_partial_loading: true",
    ),
    (
        'level=ERROR source=sched.go:455 msg="error loading llama server" error="llama runner '
        "process has "
        'terminated: exit status 2"\nmsg="gpu VRAM usage didn\'t recover within timeout"',
        "Ollama's runner, without a reason",
        UNKNOWN,
        {},
        "look for the first error",
    ),
    (
        ("./invoke.sh: riga 24:  8612 Killed    python invoke.py"),
        "a killed process",
        HOST,
        {},
        "less host",
    ),
    (
        "Server error: Out of available cache blocks: asked 107, only 4 free blocks",
        "text-generation-inference's KV cache",
        LIMITED,
        {"pages needed": 107, "free slots": 4},
        "a newer release",
    ),
    (
        "The decoder prompt contains a(n) image item with length 6042, which exceeds the "
        "pre-allocated encoder cache size 4800. Please reduce the input size",
        "vLLM's encoder cache",
        LIMITED,
        {"requested": 6042, "fit": 4800},
        "a smaller input",
    ),
    (
        "[GPU] Exceeded max size of memory allocation: Required 1073741824 bytes, already "
        "occupied : 8589934592 bytes, but available memory size is 8589934592 bytes",
        "OpenVINO on the GPU",
        FULL,
        {"tried": GIB, "used": 8 * GIB, "the whole device": 8 * GIB},
        "weights in fewer bytes",
    ),
    (
        "[GPU] Exceeded max size of memory allocation, check debug message for size info",
        "OpenVINO on the GPU",
        FULL,
        {},
        "weights in fewer bytes",
    ),
    (
        "[Warning] [GPU] Exceeded max size of memory allocation: Required 1073741824 bytes, "
        "already occupied "
        ": 8589934592 bytes, but available memory size is 8589934592 bytes\n"
        "Please note that performance might drop due to memory swap.",
        "OpenVINO beyond the GPU's memory",
        WARNING,
        {"tried": GIB, "used": 8 * GIB, "the whole device": 8 * GIB},
        "nothing, if it is fast",
    ),
    (
        "pipeline_continuous_batching_adapter.hpp:175:\nGot unfinished GenerationStatus",
        "OpenVINO GenAI's KV cache",
        UNKNOWN,
        {},
        "a larger cache_size",
    ),
    (
        "E alloc_tensor_range: failed to allocate RPC0[10.0.69.2:50052] buffer of size "
        "193608946688\n"
        "E llama_model_load: error loading model: unable to allocate RPC0[10.0.69.2:50052] buffer",
        "a remote device of llama.cpp",
        FULL,
        {"tried": 193608946688},
        "a smaller share",
    ),
    (
        "Cannot allocate 262144000 bytes directly in RAM",
        "a warning of distributed-llama",
        WARNING,
        {"tried": 250 * MIB},
        "nothing, if it is fast",
    ),
    (
        "[Memory Management] Target: JointTextEncoder, Free GPU: 3000.00 MB, Model Require: "
        "512.00 MB, "
        "Previously Loaded: 0.00 MB, Inference Require: 1024.00 MB, Remaining: -64.00 MB, All "
        "loaded\n"
        "[Memory Management] Target: KModel, Free GPU: 3072.00 MB, Model Require: 11264.00 MB, "
        "Previously "
        "Loaded: 0.00 MB, Inference Require: 189.00 MB, Remaining: -8381.00 MB, CUDA error: out "
        "of memory",
        "Stable Diffusion WebUI Forge, in its log",
        FULL,
        {"free on the device": 3 * GIB, "needed": 11 * GIB, "short": 8381 * MIB},
        "a smaller or more strongly quantized model",
    ),
    (
        "[Low VRAM Warning] You just set Forge to use 100% GPU memory (4096.00 MB) to load model "
        "weights.\n"
        "[Low VRAM Warning] Computations may fallback to CPU or go Out of Memory.",
        "GPU Weights of Stable Diffusion WebUI Forge",
        WARNING,
        {"the limit": 4 * GIB},
        "lower GPU Weights",
    ),
    (
        "MemoryError: A context size of 4096 with 4 sequences is too large for the available VRAM",
        "node-llama-cpp's context",
        LIMITED,
        {"requested": 4096, "sequences in the batch": 4},
        "a smaller contextSize",
    ),
    (
        "A context size of 131072 is too large for the available RAM (including swap)",
        "node-llama-cpp's context, on the host",
        HOST,
        {"requested": 131072},
        "a smaller contextSize",
    ),
    (
        "GGML_ASSERT: /PowerInfer/llama.cpp:3107: vram_allocated_bytes < vram_capacity",
        "PowerInfer's budget",
        LIMITED,
        {},
        "a larger --vram-budget",
    ),
    (
        "error: [METAL] Command buffer execution failed: Ignored (for causing prior/excessive GPU "
        "errors) (00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored)",
        "an ignored command of Metal",
        UNKNOWN,
        {},
        "look for the first",
    ),
    (
        "RuntimeError: Not enough memory, use lower resolution (max approx. 640x640). Need: 1.5GB "
        "free, Have:0.5GB free",
        "split attention of an image generator",
        FULL,
        {"needed": gib(1.5), "available": gib(0.5)},
        "a smaller image: the message names",
    ),
    (
        # Rounded: it says nothing.
        (
            "Not enough memory, use lower resolution (max approx. 448x448). Need: 0.0GB free, "
            "Have:0.0GB free"
        ),
        "split attention of an image generator",
        FULL,
        {},
        "a smaller image: the message names",
    ),
    (
        "[W] [TRT] Requested amount of GPU memory (2359296 bytes) could not be allocated.\nMyelin "
        "error: "
        "autotuning: CUDA error 2 allocating 0-byte buffer: out of memory",
        "TensorRT",
        FULL,
        {"tried": 2359296},
        "a smaller workspace",
    ),
    (
        "failed to allocate pinned system memory, falling back to non-pinned system memory",
        "Triton's pool of pinned memory",
        WARNING,
        {},
        "a larger pool: tritonserver --pinned-memory-pool-byte-size",
    ),
    (
        "txt2img: out of memory\nCould not generate image.",
        "an image generator",
        FULL,
        {},
        "a smaller image, or fewer images or frames at once",
    ),
    (
        "Error: llama runner process has terminated: cudaMalloc failed: out of memory\n"
        "ggml_gallocr_reserve_n: failed to allocate CUDA1 buffer of size 838860800",
        "llama.cpp's compute buffers",
        FULL,
        {"device": 1, "tried": 800 * MIB},
        "fewer layers on the GPU",
    ),
    (
        "Insufficient GPU memory error: The available single GPU memory is 4762.5 MB, which is "
        "less than the sum of model weight size (4958.25 MB) and temporary buffer size (609.5 MB).",
        "MLC's start",
        LIMITED,
        {
            "available": round(4762.5 * MIB),
            "weights": round(4958.25 * MIB),
            "temporary": round(609.5 * MIB),
        },
        "a larger gpu_memory_utilization",
    ),
    (
        "!!! Exception during processing !!! CUDA error: out of memory\nCUDA kernel errors "
        "might be "
        'asynchronously reported\nFile "C:\\ComfyUI\\execution.py", line 510, in execute',
        "a CUDA call in ComfyUI",
        FULL,
        {},
        "a smaller image, fewer frames",
    ),
    (
        # The frames of a server below the message, as well as above it.
        'RuntimeError: CUDA error: out of memory\nFile "/vllm/v1/engine/core.py", line 12, in step',
        "vLLM",
        FULL,
        {},
        "lower --gpu-memory-utilization",
    ),
    (
        "2024-01-18 21:27:53 xinference.core.model 35043 ERROR    Model actor is out of memory.",
        "Xinference",
        FULL,
        {},
        "fewer models on this GPU",
    ),
    (
        "Loading model weights took 27.5 GB\nAvailable KV cache memory: -0.75 GiB",
        "vLLM's KV cache",
        LIMITED,
        {"weights": gib(27.5), "short": gib(0.75)},
        "raise --gpu-memory-utilization",
    ),
    (
        "GGML_ASSERT: /src/ggml.c:4411: ctx->mem_buffer != NULL\nAborted",
        "ggml's memory",
        HOST,
        {},
        "a smaller or more strongly quantized model",
    ),
    *(
        (
            text,
            ("a killed process of llama.cpp"),
            HOST,
            {},
            "a smaller or more strongly quantized model",
        )
        for text in (
            "llama_model_load: loading tensors from 'm.ggml'\nProcess finished with exit code 137",
            (
                "Process finished with exit code 137 (signal 9: SIGKILL)\nllama_model_load: n_ctx "
                "= 512"
            ),
        )
    ),
    (
        (
            "it is likely that you have unsufficient VRAM and you should therefore reduce the "
            "video resolution"
        ),
        # Its author: the message stands for other errors too.
        "Wan2GP",
        UNKNOWN,
        {},
        "a smaller video or fewer frames",
    ),
    (
        "it is likely that you have unsufficient RAM and / or Reserved RAM allocation should be "
        "reduced "
        "using 'perc_reserved_mem_max'\nfull requirements for pinned models is 37086.5 MB while "
        "estimated "
        "available reservable RAM is 26128.25 MB",
        "Wan2GP, on the host",
        HOST,
        {"needed": round(37086.5 * MIB), "available": round(26128.25 * MIB)},
        "a smaller perc_reserved_mem_max",
    ),
    (
        "Error allocating memory ErrorOutOfDeviceMemory\nerror loading model: Error allocating "
        "vulkan "
        "memory.",
        "Vulkan",
        FULL,
        {},
        "close other programs",
    ),
    (
        # The frames of a constructor are those of a trial run too.
        'File "/vllm/engine/llm_engine.py", line 3, in __init__\n    self.model_executor = '
        "executor_class()\n"
        "RuntimeError: CUDA error: out of memory",
        "vLLM",
        FULL,
        {},
        "lower --gpu-memory-utilization",
    ),
    (
        (
            "ValueError: max_num_seqs (256) exceeds available Mamba cache blocks (184). Each "
            "decode sequence"
        ),
        "vLLM's Mamba cache",
        LIMITED,
        {"sequences at once, as set": 256, "blocks for sequences": 184},
        "--max-num-seqs 184 fits",
    ),
    *(
        (text, kind, WARNING, figures, "nothing")
        for text, kind, figures in (
            (
                "Sequence group 7 is preempted by PreemptionMode.RECOMPUTE mode because there is "
                "not enough KV cache space.",
                "preempted requests in vLLM",
                {},
            ),
            (
                "KV cache pool is full. Retract requests. #retracted_reqs: 1",
                "retracted requests in SGLang",
                {},
            ),
            (
                (
                    "Possibly too large swap space. 16.00 GiB out of the 31.00 GiB total CPU "
                    "memory is allocated"
                ),
                "a warning about vLLM's swap space",
                {"needed": 16 * GIB, "the machine's memory": 31 * GIB},
            ),
            (
                (
                    'msg="model requires more gpu memory than is currently available, evicting a '
                    'model to make"'
                ),
                "Ollama making room for a model",
                {},
            ),
            (
                (
                    "llama_params_fit: failed to fit params to free device memory: n_gpu_layers "
                    "already set"
                ),
                "llama.cpp's automatic fit",
                {},
            ),
            (
                "warning: failed to mlock 827228160-byte buffer (after previously locking 0 "
                "bytes): Cannot allocate memory",
                "llama.cpp's --mlock",
                {"tried": 827228160},
            ),
            (
                (
                    "Warning: Ran out of memory when regular VAE decoding, retrying with tiled VAE "
                    "decoding."
                ),
                "a second try of ComfyUI",
                {},
            ),
            (
                "Generating with a model that requires 30000 MB which is close to the maximum "
                "recommended size of 21845 MB.",
                "a warning of MLX",
                {"needed": 30000 * MIB, "allowed": 21845 * MIB},
            ),
        )
    ),
    (
        (
            "ValueError: Too large swap space. 32.00 GiB out of the 31.00 GiB total CPU memory is "
            "allocated"
        ),
        "vLLM's swap space",
        HOST,
        {"needed": 32 * GIB, "the machine's memory": 31 * GIB},
        "a smaller --swap-space",
    ),
    (
        "RuntimeError: No enough gpu memory for runtime.",
        "LMDeploy's start",
        FULL,
        {},
        "a quantized model or more GPUs (--tp)",
    ),
    (
        "Error: memory layout cannot be allocated with num_gpu = 99",
        "Ollama's layers",
        FULL,
        {"layers on the GPU, as set": 99},
        "leave num_gpu out",
    ),
    (
        (
            "CUDA error: the resource allocation failed\n  current device: 0, in function "
            "cublas_handle"
        ),
        "cuBLAS in llama.cpp",
        FULL,
        {},
        "fewer layers on the GPU",
    ),
    (
        (
            "Error: llama runner process has terminated: exit status 2 error:cudaMalloc failed: "
            "out of memory"
        ),
        "llama.cpp",
        FULL,
        {},
        "fewer layers on the GPU",
    ),
    (
        "Error: llama runner process has terminated: signal: killed",
        "a killed process of llama.cpp",
        HOST,
        {},
        "a smaller or more strongly quantized model",
    ),
    (
        "Warning: GPU loading failed (out of VRAM?)",
        "GPT4All",
        UNKNOWN,
        {},
        "a smaller or more strongly quantized model",
    ),
    (
        (
            "Failed to allocate 6 pages from `PagePool`.\nRequired pages: 6, Available pages: 2, "
            "Total pages: 9"
        ),
        "shark-ai's page pool",
        OTHER_MEMORY,
        {"pages needed": 6, "pages free": 2, "pages in all": 9},
        "a higher --device-block-count",
    ),
    (
        "was running was 12.00GB / 13.00GB (0.95), which exceeds the memory usage threshold of "
        "0.95. Ray killed this worker (ID: 7)",
        "Ray",
        HOST,
        {"used": 12 * GIB, "the machine's memory": 13 * GIB, "the setting's share": 0.95},
        "fewer tasks or actors",
    ),
    (
        'msg="model request too large for system" requested="5.0 GiB" available="3.5 GiB"',
        "Ollama",
        HOST,
        {"needed": 5 * GIB, "available": gib(3.5)},
        "a smaller or more strongly quantized model",
    ),
    (
        "ggml_metal_graph_compute: command buffer 6 failed with status 5\nout of memory",
        "Metal",
        FULL,
        {},
        "close other programs",
    ),
    *(
        (
            f"{words} (needed 536950912, {available} 536870912)",
            "a pool of ggml",
            OTHER_MEMORY,
            {"needed": 536950912, "available": 536870912},
            "a newer release of the program",
        )
        for words, available in (
            ("ggml_new_tensor_impl: not enough space in the context's memory pool", "available"),
            ("ggml_new_tensor_impl: not enough space in the scratch memory pool", "available"),
            ("ggml_tallocr_alloc: not enough space in the buffer", "largest block available"),
        )
    ),
    (
        "panic: failed to decode batch: could not find a kv cache slot",
        "llama.cpp's KV slots",
        OTHER_MEMORY,
        {},
        "a longer context",
    ),
    (
        "WARNING: Skipping tactic 0x0 due to exception autotuning: CUDA error 2 allocating "
        "1073741824-byte "
        "buffer: out of memory\nCould not find any implementation for node {a[b]} due to "
        "insufficient "
        "workspace.",
        "TensorRT's limit of the workspace",
        LIMITED,
        {"tried": GIB},
        "a larger limit",
    ),
    (
        (
            "Autotuning: User allocator error allocating 1073741824-byte buffer\nEngine could "
            "not be "
            "created"
        ),
        "TensorRT",
        FULL,
        {"tried": GIB},
        "a smaller workspace",
    ),
    (
        "Shard process was signaled to shutdown with signal 7 rank=1",
        "a bus error",
        HOST,
        {},
        "a larger --shm-size",
    ),
    (
        "llm = LLM(model, gpu_memory_utilization=0.9)\nRuntimeError: CUDA error: out of memory",
        "vLLM",
        FULL,
        {},
        "lower --gpu-memory-utilization",
    ),
    (
        "Time taken: 9.1 sec.\nA: 2.82 GB, R: 2.90 GB, Sys: 3.8/3.8 GB (99.7%)\nout of memory",
        "Stable Diffusion's web UI",
        FULL,
        {},
        "a smaller image or batch; start the web UI with --medvram",
    ),
    (
        "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nFailed to CUDA "
        "calloc async "
        "608 bytes",
        "NCCL",
        FULL,
        {"tried": 608},
        "leave room",
    ),
    (
        "node:41:42 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'\n\nnode:41:42 "
        "[3] "
        "include/alloc.h:185 NCCL WARN Failed to CUDA calloc 6291456 bytes",
        "NCCL",
        FULL,
        {"tried": 6 * MIB},
        "leave room",
    ),
    ("NCCL WARN Cuda failure 2 'out of memory'", "NCCL", FULL, {}, "leave room"),
    (
        "RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "
        '"../c10/cuda/CUDACachingAllocator.cpp":1131, '
        "please report a bug to PyTorch.",
        "torch's allocator, without its figures",
        FULL,
        {},
        "a smaller batch",
    ),
    (
        "NVML_SUCCESS == DriverAPI::get()->nvmlInit_v2_() INTERNAL ASSERT FAILED at "
        '"/pytorch/c10/cuda/CUDACachingAllocator.cpp":813',
        "torch's allocator, without its figures",
        FULL,
        {},
        "a smaller batch",
    ),
    (
        ("NvMapMemAllocInternalTagged: 1075072515 error 12"),
        "Jetson's memory",
        FULL,
        {},
        "close other programs",
    ),
    (
        (
            "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling "
            "`cublasCreate(handle)`"
        ),
        "a GPU library's handle",
        FULL,
        {},
        "leave room",
    ),
    (
        "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
        "a GPU library's handle",
        FULL,
        {},
        "leave room",
    ),
    (
        (
            "E stream_executor/cuda/cuda_blas.cc:226] failed to create cublas handle: "
            "CUBLAS_STATUS_ALLOC_FAILED"
        ),
        "a library's handle in TensorFlow",
        FULL,
        {},
        "tf.config.experimental.set_memory_growth",
    ),
    (
        "cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnCreate(handle)`",
        "a GPU library's handle",
        FULL,
        {},
        "leave room",
    ),
    (
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "a GPU library",
        FULL,
        {},
        "leave room",
    ),
    (
        ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        "a GPU library",
        FULL,
        {},
        "leave room",
    ),
    (
        "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR. CUDA ran out of memory outside "
        "PyTorch's allocator.",
        "a GPU library",
        FULL,
        {},
        "leave room",
    ),
    (
        "RuntimeError: Unable to find a valid cuDNN algorithm to run convolution",
        "no algorithm of cuDNN",
        FULL,
        {},
        "a smaller batch or input",
    ),
    (
        "RuntimeError: GET was unable to find an engine to execute this computation",
        "no algorithm of cuDNN",
        FULL,
        {},
        "a smaller batch or input",
    ),
    (
        "NotFoundError: No algorithm worked! [Op:Conv2D]",
        "no algorithm of cuDNN",
        FULL,
        {},
        "a smaller batch or input",
    ),
    (
        (
            "FAILED_PRECONDITION: DNN library initialization failed. Look at the errors above for "
            "more details."
        ),
        "no algorithm of cuDNN",
        FULL,
        {},
        "a smaller batch or input",
    ),
    (
        (
            "Caught RuntimeError in pin memory thread for device 0.\nRuntimeError: CUDA error: "
            "out of "
            "memory"
        ),
        "pinned memory",
        HOST,
        {},
        "pin_memory=False",
    ),
    (
        "RuntimeError: CUDA error: out of memory\nException raised from allocate at "
        "../aten/src/ATen/cuda/CachingHostAllocator.cpp:91",
        "pinned memory",
        HOST,
        {},
        "pin_memory=False",
    ),
    (
        '  File "zero/stage3.py", line 9, in __init__\n    buffer = '
        "get_accelerator().pin_memory(tensor)\n"
        "RuntimeError: CUDA error: out of memory",
        "pinned memory",
        HOST,
        {},
        "pin_memory=False",
    ),
    (
        # ggml goes on with memory that is not pinned.
        "ggml_cuda_host_malloc: failed to allocate 1900,00 MiB of pinned memory: invalid argument",
        "a warning of llama.cpp",
        WARNING,
        {"tried": 1900 * MIB},
        "nothing, if the model loads",
    ),
    (
        "ggml_vulkan: Failed to allocate pinned memory.\nggml_vulkan: vk::Device::allocateMemory: "
        "ErrorOutOfDeviceMemory",
        "a warning of llama.cpp",
        WARNING,
        {},
        "nothing, if the model loads",
    ),
    (
        "ggml_vulkan: Failed to allocate pinned memory.\nggml_vulkan: Device memory allocation of "
        "size "
        "8388608 failed.",
        "llama.cpp on Vulkan",
        FULL,
        {"tried": 8 * MIB},
        "a smaller batch (-ub)",
    ),
    (
        "ResourceExhaustedError: OOM when allocating tensor with shape[8,1024] and type float on "
        "/job:localhost/replica:0/task:0/device:CPU:0 by allocator cpu",
        "TensorFlow's CPU memory",
        HOST,
        {"shape": "[8,1024]", "type": "float", "tried": 32 * KIB},
        "a smaller batch",
    ),
    (
        "OOM when allocating tensor with shape[3,3,512,1024] and type float on "
        "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc [Op:Mul]",
        "TensorFlow",
        FULL,
        {"shape": "[3,3,512,1024]", "type": "float", "device": 0, "tried": 18 * MIB},
        "a smaller batch",
    ),
    (
        "ResourceExhaustedError: OOM when allocating tensor with shape[1792,4096]\n\t [[Node: "
        "a/MatMul = "
        "MatMul",
        "TensorFlow, without its device",
        UNKNOWN,
        {"shape": "[1792,4096]"},
        "a smaller batch",
    ),
    (
        "W tensorflow/core/bfc_allocator.cc:439] Allocator (GPU_0_bfc) ran out of memory trying "
        "to allocate "
        "1.50GiB (rounded to 1610612736)requested by op Mul\nStats: \nLimit:                  "
        "2118451200\nInUse:"
        "                     3846144\nMaxInUse:               1317554688\nNumAllocs:             "
        "     "
        "119350",
        "TensorFlow",
        FULL,
        {
            "tried": gib(1.5),
            "requested, rounded": gib(1.5),
            "allowed": 2118451200,
            "allocated": 3846144,
            "allocated at most": 1317554688,
        },
        "a smaller batch",
    ),
    (
        "Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.10GiB with "
        "freed_by_count=0. The caller indicates that this is not a failure, but this may mean "
        "that there could be performance gains",
        "a warning of TensorFlow",
        WARNING,
        {"tried": gib(2.1)},
        "nothing, unless an error follows",
    ),
    (
        (
            "failed to allocate 17.79G (19104890880 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: "
            "out of memory"
        ),
        "TensorFlow's start",
        FULL,
        {"tried": 19104890880},
        "stop the other processes",
    ),
    (
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space "
        "hbm. Used 22.83G of 15.48G hbm. Exceeded hbm capacity by 7.35G.",
        "XLA on a TPU",
        FULL,
        {"needed": gib(22.83), "total": gib(15.48), "missing": gib(7.35)},
        "a smaller batch per core",
    ),
    (
        "RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to allocate 1.00G. That "
        "was not possible. There are 512.0M free.; (0x0x0_HBM0)",
        "XLA on a TPU",
        FULL,
        {"tried": GIB, "free": 512 * MIB},
        "shard the model over more cores",
    ),
    (
        "RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem while allocating on stack",
        "a kernel on a TPU",
        OTHER_MEMORY,
        {},
        "a smaller block size",
    ),
    (
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to "
        "allocate 7406166528 bytes.",
        "XLA or JAX",
        FULL,
        {"tried": 7406166528},
        "a smaller batch",
    ),
    (
        # As jaxlib 0.10.2 writes it on a machine without a GPU.
        "RESOURCE_EXHAUSTED: Out of memory allocating 20029400304 bytes.",
        "XLA or JAX",
        UNKNOWN,
        {"tried": 20029400304},
        "`jax.devices()` shows where it computes",
    ),
    (
        (
            "RESOURCE_EXHAUSTED: Failed to allocate request for 1.95GiB (2097152000B) on device "
            "ordinal 1"
        ),
        "XLA or JAX",
        FULL,
        {"tried": 2097152000, "device": 1},
        "a smaller batch",
    ),
    (
        "BFCArena::AllocateRawInternal(size_t, bool) Available memory of 1048576 is smaller than "
        "requested bytes of 4194304",
        "ONNX Runtime's limit",
        LIMITED,
        {"tried": 4 * MIB, "available": MIB},
        "raise gpu_mem_limit",
    ),
    (
        "2024-09-05 15:15:49.95 [E:onnxruntime:, sequential_executor.cc:514 ExecuteKernel] "
        "Non-zero status "
        "code "
        "returned while running FusedConv node. Name:'Conv_3' Status Message: bfc_arena.cc:376 "
        "onnxruntime::BFCArena::AllocateRawInternal Failed to allocate memory for requested "
        "buffer of size "
        "643840\n"
        "2024-09-05 15:15:50 next",
        "ONNX Runtime, without its device",
        UNKNOWN,
        {"tried": 643840},
        "a smaller batch or input",
    ),
    (
        "Non-zero status code returned while running Conv node. Name:'347_nchwc' bfc_arena.cc:330 "
        "Failed to allocate memory for requested buffer of size 285081600",
        "ONNX Runtime on the CPU",
        HOST,
        {"tried": 285081600},
        "a smaller image or batch",
    ),
    (
        "CUDAExecutionProvider bfc_arena.cc:376 Failed to allocate memory for requested buffer of "
        "size 285081600",
        "ONNX Runtime",
        FULL,
        {"tried": 285081600},
        "a smaller batch or input",
    ),
    (
        "(EngineCore_DP0 pid=9) ERROR [core.py:7] EngineCore failed to start.\n(EngineCore_DP0 "
        'pid=9) ERROR [core.py:7] File "/env/vllm/v1/engine/core.py", line 6, in run_engine_core\n'
        "torch.OutOfMemoryError: CUDA out of memory.",
        "vLLM's start",
        FULL,
        {},
        "if the weights alone do not fit, a quantized or smaller model or more GPUs",
    ),
    (
        'File "/env/sglang/srt/managers/scheduler.py", line 9, in __init__\n'
        "torch.OutOfMemoryError: CUDA out of memory.",
        "SGLang's start",
        FULL,
        {},
        "if the weights alone do not fit, a quantized or smaller model or more GPUs",
    ),
    (
        "torch.cuda.OutOfMemoryError: CUDA out of memory.\n rank=0\nError: ShardCannotStart\n"
        "ERROR text_generation_launcher: Shard 0 failed to start",
        "text-generation-inference's start",
        FULL,
        {},
        "more GPUs (--num-shard), --quantize",
    ),
    (
        "JetPack 6.1\nRuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "
        '"/src/c10/cuda/CUDACachingAllocator.cpp":838, please report a bug to PyTorch.',
        "torch's allocator, without its figures",
        FULL,
        {},
        "free the memory that other programs and models hold, which `tegrastats` shows",
    ),
    (
        "(Worker_TP2 pid=9) INFO 10-28 21:14:48 [worker_v1.py:259] Available memory: 0, total "
        "memory: 32212254720\n(EngineCore_DP0 pid=8) ERROR EngineCore failed to start.",
        "vLLM's KV cache",
        LIMITED,
        {"total": 30 * GIB},
        "raise --gpu-memory-utilization",
    ),
    (
        "ggml_backend_vk_get_device_memory utilizing DXGI + PDH memory reporting free: 9663676416 "
        "total: 12884901888\nggml_vulkan: Device memory allocation of size 4294967296 failed.\n"
        "ggml_vulkan: Requested buffer size exceeds device buffer size limit: "
        "ErrorOutOfDeviceMemory\n"
        "ggml_gallocr_reserve_n: failed to allocate Vulkan0 buffer of size 5368709120",
        "a Vulkan buffer of llama.cpp",
        LIMITED,
        {
            "device": 0,
            "tried": 4 * GIB,
            "free": 9 * GIB,
            "total": 12 * GIB,
            "all that this buffer was to hold": 5 * GIB,
        },
        "fewer layers on the GPU",
    ),
    (
        "+ docker-compose exec web supervisorctl restart all\nExited with code 137\nHint: it is "
        "often killed because it was running out of memory\nHint: Max memory usage of this "
        "container is 3221225472",
        "a process that was perhaps stopped",
        UNKNOWN,
        {"used": 3 * GIB},
        "`dmesg",
    ),
    (
        "kernel: Out of memory and no killable processes...\nwatchdogd[2]: Memory usage: 1024 kB, "
        "cached: 2048 kB, total: 4096 kB",
        "no process that may be killed",
        HOST,
        {
            "used": 1 * MIB,
            "pages of files in memory": 2 * MIB,
            "the machine's memory": 4 * MIB,
        },
        "the lines above it say whose limit it was",
    ),
    (
        "Runtime error\nCPU Memory limit exceeded (32GB)",
        "the limit of a hosted program",
        HOST,
        {"allowed": 32 * GIB},
        "fewer requests at once",
    ),
    (
        "Run docker exec web pip install -r requirements.txt\nError: Process completed with exit "
        "code 137.",
        "a process that was perhaps stopped",
        UNKNOWN,
        {},
        "`dmesg",
    ),
    (
        "ERROR 03-31 15:19:44 [async_llm_engine.py:68] torch.OutOfMemoryError: CUDA out of memory.",
        "vLLM",
        FULL,
        {},
        "lower --gpu-memory-utilization",
    ),
    (
        "File ~/env/bitsandbytes/nn/modules.py:296, in Params4bit._quantize(self, device)\n"
        "RuntimeError: CUDA driver error: out of memory",
        "the CUDA driver, as weights are loaded",
        FULL,
        {},
        "weights in fewer bytes",
    ),
    (
        "ggml_bert_new_tensor_impl: not enough space in the context's memory pool (needed "
        "3145728, available 2097152)",
        "a pool of ggml",
        OTHER_MEMORY,
        {"needed": 3 * MIB, "available": 2 * MIB},
        "a newer release",
    ),
    (
        "cpu_device_storage.h:72: Failed to allocate CPU Memory",
        "MXNet's CPU memory",
        HOST,
        {},
        "smaller images",
    ),
    (
        "The byte size of input/output arguments (1374526449600) exceeds the base limit "
        "(25554419712). This "
        "indicates an error!\nAllocator (GPU_0_bfc) ran out of memory trying to allocate 1.25TiB "
        "(rounded to "
        "1374521760000)requested by op",
        "a program of XLA larger than the GPU",
        LARGER,
        {"needed": 1374526449600, "the limit": 25554419712, "tried": 1374389534720},
        "smaller inputs and outputs",
    ),
    (
        "RuntimeError: Resource exhausted: Out of memory while trying to allocate 1073741824 "
        "bytes.\n"
        "BufferAssignment OOM Debugging.\ntotal allocation:    3.00GiB",
        "a compiled program of XLA",
        FULL,
        {"tried": GIB, "needed": 3 * GIB},
        "compare what it needs with the GPU",
    ),
    (
        "RuntimeError: Resource exhausted: Out of memory while trying to allocate 24 bytes.",
        "a small request of XLA",
        UNKNOWN,
        {"tried": 24},
        "`jax.devices()`",
    ),
    (
        "CUDA failure 2: out of memory ; GPU=0 ; hostname=h ; file=cuda_allocator.cc ; "
        "expr=cudaMalloc(&p, size);",
        "ONNX Runtime's call of CUDA",
        FULL,
        {"device": 0},
        "fewer sessions and threads",
    ),
    (
        "RuntimeException: Can't allocate [HOST] memory: 42080; threadId: 29",
        "ND4J",
        HOST,
        {"tried": 42080},
        "a higher limit",
    ),
    (
        "RuntimeException: Can't allocate [DEVICE] memory: 4096; threadId: 2",
        "ND4J, on the GPU",
        FULL,
        {"tried": 4096},
        "a smaller batch",
    ),
    (
        (
            "Requested 1928440402996x1 (14368.0GB) array exceeds maximum array size preference "
            "(31.9GB)."
        ),
        "a wrong size in MATLAB",
        HOST,
        {"tried": gib(14368), "the limit": gib(31.9)},
        "look at the sizes",
    ),
    (
        "RuntimeError: Could not allocate tensor with 1073741824 bytes. There is not enough GPU "
        "video memory available!",
        "DirectML",
        FULL,
        {"tried": GIB},
        "a smaller batch or model",
    ),
    (
        "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 25,600,000 bytes (allocated "
        "so far: 3,635,267,072 bytes).",
        "CuPy",
        FULL,
        {"tried": 25_600_000, "held by the pool": 3_635_267_072},
        "smaller arrays",
    ),
    (
        "Out of memory allocating 8,192 bytes (allocated so far: 4,096 bytes, limit set to: "
        "1,000,000 bytes).",
        "CuPy's limit",
        LIMITED,
        {"tried": 8192, "held by the pool": 4096, "allowed": 1_000_000},
        "cupy.get_default_memory_pool",
    ),
    (
        "cupy.cuda.memory.OutOfMemoryError: out of memory to allocate 1073741824 bytes (total "
        "12373894656 bytes)",
        "CuPy",
        FULL,
        {"tried": GIB, "the pool with this request": 12373894656},
        "smaller arrays",
    ),
    (
        "Out of memory error on GPU 0. Cannot allocate 98.000244MB memory on GPU 0, 6.000000GB "
        "memory has been allocated and available memory is only 0.000000B.",
        "Paddle",
        FULL,
        {"tried": round(98.000244 * MIB), "device": 0, "allocated": 6 * GIB, "free": 0},
        "a smaller batch",
    ),
    (
        "Out of memory error on GPU 1. Cannot allocate 3.125000GB memory on GPU 1, available "
        "memory is only 117.750000MB.",
        "Paddle",
        FULL,
        {"tried": gib(3.125), "device": 1, "free": round(117.75 * MIB)},
        "a smaller batch",
    ),
    (
        "RuntimeError: [metal::malloc] Attempting to allocate 48736917632 bytes which is greater "
        "than the maximum allowed buffer size of 30150672384 bytes.",
        "MLX's buffer",
        LARGER,
        {"tried": 48736917632, "allowed": 30150672384},
        "smaller arrays",
    ),
    (
        ("[malloc_or_wait] Unable to allocate 1073741824 bytes."),
        "MLX",
        FULL,
        {"tried": GIB},
        "a smaller model",
    ),
    (
        "[rank2]: RuntimeError: [Rank:2] FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for "
        "size::3288334336 (3136)MB",
        "Gaudi",
        FULL,
        {"tried": 3288334336},
        "a smaller batch",
    ),
    (
        "MemoryError: std::bad_alloc: out_of_memory: RMM failure "
        "at:/rmm/mr/device/pool_memory_resource.hpp:257: Maximum pool size exceeded (failed to "
        "allocate 1.50 GiB)",
        "a pool of RAPIDS",
        LIMITED,
        {"tried": gib(1.5)},
        "a larger maximum_pool_size",
    ),
    (
        "MemoryError: std::bad_alloc: CUDA error at: "
        "../include/rmm/mr/device/cuda_memory_resource.hpp68: cudaErrorMemoryAllocation out of "
        "memory",
        "RAPIDS",
        FULL,
        {},
        "less data at once",
    ),
    (
        "xgboost.core.XGBoostError: [12:00:00] device_helpers.cuh: Memory allocation error on "
        "worker 0: "
        "std::bad_alloc: cudaErrorMemoryAllocation: out of memory\n- Free memory: 10223616\n- "
        "Requested "
        "memory: "
        "15728640\n",
        "XGBoost",
        FULL,
        {"free": 10223616, "tried": 15728640},
        "QuantileDMatrix",
    ),
    (
        "StandardGpuResources: alloc fail type FlatData dev 0 space Device stream 0x5 size "
        "10240000000 bytes "
        "(cudaMalloc error out of memory [2])",
        "FAISS",
        FULL,
        {"device": 0, "tried": 10240000000},
        "a smaller index",
    ),
    (
        "ERROR: Out of GPU memory trying to allocate 1.863 GiB\nEffective GPU memory usage: "
        "98.88% (11.600 "
        "GiB/11.700 "
        "GiB)\nMemory pool usage: 10.200 GiB (11.000 GiB reserved)",
        "CUDA.jl",
        FULL,
        {
            "tried": gib(1.863),
            "used": gib(11.6),
            "total": gib(11.7),
            "allocated": gib(10.2),
            "reserved": 11 * GIB,
        },
        "smaller arrays",
    ),
    (
        "Device(id:0) memory isn't enough and alloc failed, kernel name: Default/MatMul, alloc "
        "size: 1048576B.",
        "MindSpore",
        FULL,
        {"tried": MIB},
        "a smaller batch",
    ),
    (
        "PxgCudaDeviceMemoryAllocator fail to allocate memory 33554432 bytes!! Result = 2",
        "PhysX",
        FULL,
        {"tried": 32 * MIB},
        "fewer environments",
    ),
    (
        "RuntimeError: Failed to allocate 4096 bytes on device 'cuda:1'",
        "Warp",
        FULL,
        {"tried": 4096, "device": 1},
        "smaller arrays",
    ),
    (
        "RuntimeError: CUDA failed with error out of memory",
        "CTranslate2",
        FULL,
        {},
        'compute_type="int8"',
    ),
    (
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 144.00 MiB on device 4: "
        "cudaMalloc failed: "
        "out of "
        "memory\nggml_gallocr_reserve_n: failed to allocate CUDA4 buffer of size "
        "150994944\nllama_new_context: failed",
        "llama.cpp's compute buffers",
        FULL,
        {"tried": 144 * MIB, "device": 4},
        "fewer layers on the GPU",
    ),
    (
        "ggml_gallocr_reserve_n: failed to allocate CPU buffer of size 4096\n"
        "llama_init_from_model: failed to initialize the context: failed to allocate compute pp "
        "buffers",
        "llama.cpp, on the host",
        HOST,
        {"tried": 4096},
        "a smaller or more strongly quantized model",
    ),
    (
        (
            "llama_init_from_model: failed to initialize the context: failed to allocate compute "
            "pp buffers"
        ),
        "llama.cpp's compute buffers",
        FULL,
        {},
        "fewer layers on the GPU",
    ),
    (
        "allocating 6144.00 MiB on device 1: cudaMalloc failed: out of "
        "memory\nggml_gallocr_reserve_n: "
        "failed to allocate CUDA1 buffer of size 6442450944\ngraph_reserve: failed to allocate "
        "compute buffers\nsched_reserve: compute buffer allocation failed, retrying without pip",
        "a second try of llama.cpp",
        WARNING,
        {"tried": 6 * GIB, "device": 1},
        "nothing, if the model loads",
    ),
    (
        "graph_reserve: failed to allocate compute buffers\nsched_reserve: compute buffer "
        "allocation failed, "
        "retrying without pipeline parallelism\ngraph_reserve: failed to allocate compute buffers",
        "llama.cpp's compute buffers",
        FULL,
        {},
        "fewer layers on the GPU",
    ),
    (
        "llama_context: n_ctx = 8192\nllama_kv_cache: CUDA0 KV buffer size = 512.00 MiB\nCUDA "
        "error: out of "
        "memory",
        "llama.cpp",
        FULL,
        {"the KV cache": 512 * MIB},
        "fewer layers on the GPU (--n-gpu-layers; num_gpu in Ollama)",
    ),
    (
        "Error: llama runner process has terminated: CUDA error: out of memory",
        "llama.cpp",
        FULL,
        {},
        "fewer layers on the GPU",
    ),
    (
        "allocating 4096.00 MiB on device 0: cudaMalloc failed: out of "
        "memory\nalloc_tensor_range: failed to "
        "allocate CUDA0 buffer of size 4294967296\nllama_init_from_model: failed to initialize "
        "the context: "
        "failed to allocate buffer for kv cache",
        "llama.cpp's KV cache",
        FULL,
        {"tried": 4 * GIB, "device": 0},
        "a shorter context (-c), or a quantized cache (-ctk q8_0 -ctv q8_0",
    ),
    (
        "allocating 8192.00 MiB on device 0: cudaMalloc failed: out of "
        "memory\nalloc_tensor_range: failed to "
        "allocate CUDA0 buffer of size 8589934592\nllama_model_load: error loading model: unable "
        "to allocate "
        "CUDA0 buffer",
        "llama.cpp's weights",
        FULL,
        {"tried": 8 * GIB, "device": 0},
        "fewer layers on the GPU (--n-gpu-layers; num_gpu in Ollama), or a model",
    ),
    (
        "allocating 144.00 MiB on device 4: cudaMalloc failed: out of memory",
        "llama.cpp",
        FULL,
        {"tried": 144 * MIB, "device": 4},
        "fewer layers on the GPU",
    ),
    (
        "ggml_vulkan: Device memory allocation of size 118497280 failed.\nggml_vulkan: "
        "vk::Device::allocateMemory: "
        "ErrorOutOfDeviceMemory",
        "llama.cpp on Vulkan",
        FULL,
        {"tried": 118497280},
        "a smaller batch (-ub)",
    ),
    (
        "ggml_vulkan: Device memory allocation of size 8589934592 failed.\nggml_vulkan: Requested "
        "buffer "
        "size exceeds device memory allocation limit: ErrorOutOfDeviceMemory",
        "a Vulkan buffer of llama.cpp",
        LIMITED,
        {"tried": 8 * GIB},
        "fewer layers on the GPU",
    ),
    (
        (
            "ggml_new_object: not enough space in the context's memory pool (needed 3145728, "
            "available 2097152)"
        ),
        "a pool of ggml",
        OTHER_MEMORY,
        {"needed": 3 * MIB, "available": 2 * MIB},
        "a newer release of the program",
    ),
    (
        "CUDA error 2 at /src/llama.cpp/ggml-cuda.cu:123: out of memory\ncurrent device: 1",
        "llama.cpp",
        FULL,
        {"device": 1},
        "fewer layers on the GPU",
    ),
    (
        (
            "CUDA error: out of memory\n  current device: 0, in function alloc at "
            "/build/ggml-cuda.cu:337"
        ),
        "llama.cpp",
        FULL,
        {"device": 0},
        "fewer layers on the GPU",
    ),
    (
        "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 4096\n"
        "llama_model_load: error loading model: unable to allocate CPU buffer",
        "llama.cpp, on the host",
        HOST,
        {"tried": 4096},
        "a smaller or more strongly quantized model",
    ),
    (
        "Error: model requires more system memory (164.8 GiB) than is available (13.4 GiB)",
        "Ollama",
        HOST,
        {"needed": gib(164.8), "available": gib(13.4)},
        "a smaller or more strongly quantized model",
    ),
    (
        "- **Exception Type:** torch.OutOfMemoryError\n- **Exception Message:** Allocation on "
        "device \n## "
        "Stack",
        "ComfyUI",
        FULL,
        {},
        "a smaller image",
    ),
    (
        "Got an OOM, unloading all loaded models.\nPrompt executed in 15.86 seconds",
        "ComfyUI, in its log",
        FULL,
        {},
        "a smaller image",
    ),
    *(
        # Programs without torch have them too: a smaller model helps in all.
        (text, "the CUDA driver", FULL, {}, "a smaller batch, model or input")
        for text in (
            "RuntimeError: CUDA driver error: out of memory",
            "cuMemAlloc of 64 MiB: CUDA_ERROR_OUT_OF_MEMORY",
            "gpu_memory.h:592 cuMemSetAccess(base, n) failed with error CUDA_ERROR_OUT_OF_MEMORY",
        )
    ),
    (
        (
            "numba.cuda.cudadrv.driver.CudaAPIError: [2] Call to cuMemAlloc results in "
            "CUDA_ERROR_OUT_OF_MEMORY"
        ),
        "Numba",
        FULL,
        {},
        "less data at once",
    ),
    *(
        (
            text,
            "a program on the GPU",
            FULL,
            figures,
            "stop the other processes that `nvidia-smi` shows, also",
        )
        for text, figures in (
            (
                (
                    "renderer: allocated 12 -> 0x6c90 (64 bytes)\nerror: cuda_malloc(): out of "
                    "memory!"
                ),
                {},
            ),
            ("what():  /src/SimpleCudaMalloc_impl.hpp(42):\nerror: out of memory", {}),
            ("the renderer is out of video memory", {}),
        )
    ),
    *(
        (
            text,
            "a GPU library of a program",
            FULL,
            {},
            "stop the other processes that `nvidia-smi` shows, also",
        )
        for text in (
            "CUFFTError(code 2, cuFFT failed to allocate GPU or CPU memory)",
            "cublas error: CUBLAS_STATUS_ALLOC_FAILED in gemm.cc:12",
        )
    ),
    *(
        (
            "[12:00:00] src/storage/./pooled_storage_manager.h:80: " + text,
            "MXNet",
            FULL,
            {},
            "stop the other processes",
        )
        for text in ("cudaMalloc failed: out of memory", "Memory allocation failed.")
    ),
    *(
        (text, "OpenCV on the GPU", FULL, {}, "release each GpuMat")
        for text in (
            "gpu_mat.cu:116: error: (-217:Gpu API call) out of memory in function 'allocate'",
            "OpenCV Error: Gpu API call (out of memory) in CudaFuncTable::mallocPitch",
        )
    ),
    *(
        (text, "Blender", FULL, {}, "a smaller scene")
        for text in (
            (
                "Out of memory in cuStreamCreate(&stream, NON_BLOCKING) "
                "(cycles/device/cuda/queue.cpp:21)"
            ),
            "System is out of GPU memory",
            "Error: System is out of GPU and shared host memory",
        )
    ),
    *(
        (text, "FAISS", FULL, figures, "a smaller index")
        for text, figures in (
            (
                "Faiss assertion 'cudaMalloc(p, size) == cudaSuccess' failed in void "
                "faiss::gpu::allocMemorySpace() at x.cpp:20; details: Failed to cudaMalloc 4096 "
                "bytes",
                {"tried": 4096},
            ),
            (
                "failed: Failed to cudaMalloc 8192 bytes on device 1 (error 2 out of memory",
                {"tried": 8192, "device": 1},
            ),
        )
    ),
    (
        "Faiss assertion 'err__ == cudaSuccess' failed in virtual void "
        "faiss::gpu::StandardGpuResourcesImpl::initializeForDevice(int); details: CUDA error 2 "
        "out of memory",
        "FAISS's start",
        FULL,
        {},
        "stop the other processes",
    ),
    (
        "Out of GPU memory trying to allocate 3.000 MiB\nEffective GPU memory usage: 90.00% (9.000 "
        "GiB/10.000 GiB)\nCUDA allocator usage: 7.500 GiB (capped at 8.000 GiB)",
        "CUDA.jl's limit",
        LIMITED,
        {
            "tried": 3 * MIB,
            "allowed": 8 * GIB,
            "used": 9 * GIB,
            "the whole device": 10 * GIB,
            "allocated": gib(7.5),
        },
        "raise JULIA_CUDA_MEMORY_LIMIT",
    ),
    (
        "LoadError: CUDA error: out of memory (code #2, ERROR_OUT_OF_MEMORY)",
        "CUDA.jl",
        FULL,
        {},
        "smaller arrays",
    ),
    (
        ("what():  /src/common/device_helpers.cuh(456): out of memory"),
        "XGBoost",
        FULL,
        {},
        "QuantileDMatrix",
    ),
    (
        "Exception: cudaAllocMapped() failed to allocate memory",
        "Jetson's memory",
        FULL,
        {},
        "close other programs",
    ),
    (
        "Call rtMalloc fail, purpose: page caching, type = 2, size:4096, device_id:3[FUNC:Alloc]",
        "the Ascend driver",
        FULL,
        {"tried": 4096, "device": 3},
        "stop the other processes that `npu-smi info` shows",
    ),
    (
        "failed to allocate 8.00G (8589934592 bytes) from device: hipError_t(1002)",
        "TensorFlow's start",
        FULL,
        {"tried": 8 * GIB},
        "stop the other processes",
    ),
    (
        "RuntimeError: CUDA error encountered at: ../src/null_mask.cu:93: 2 "
        "cudaErrorMemoryAllocation out of memory",
        "RAPIDS",
        FULL,
        {},
        "less data at once",
    ),
    (
        'MTLCommandBufferErrorDomain Code=8 "Insufficient Memory (IOAF code 8)"',
        "Metal",
        FULL,
        {},
        "close other programs",
    ),
    (
        # More is free than was requested, but in pieces.
        "RESOURCE_EXHAUSTED: Attempting to reserve 6.50G at the bottom of memory. That was not "
        "possible. "
        "There are 6.75G free, 0B reserved, and 3.25G reservable.; \nHBM capacity 8.00G:\n   "
        "Currently "
        "allocated:    1.25G (   1,342,177,280 bytes)\n  Program requirement:    6.50G (   "
        "6,979,321,856 "
        "bytes)",
        "a TPU's memory in pieces",
        "fragmented",
        {
            "tried": gib(6.5),
            "free in all pieces": gib(6.75),
            "available": gib(3.25),
            "the whole device": 8 * GIB,
            "allocated": gib(1.25),
            "needed": gib(6.5),
        },
        "a smaller batch per core",
    ),
    (
        "Attempting to reserve 4.50G at the bottom of memory. That was not possible. There are "
        "1.75G free, "
        "0B reserved, and 1.75G reservable.; \nHBM capacity 8.00G:\n  Currently allocated:    "
        "6.25G (   "
        "6,710,886,400 bytes)\n  Program requirement:    4.50G (   4,831,838,208 bytes)",
        "XLA on a TPU",
        FULL,
        {
            "tried": gib(4.5),
            "free": gib(1.75),
            "the whole device": 8 * GIB,
            "allocated": gib(6.25),
            "needed": gib(4.5),
        },
        "a smaller batch per core",
    ),
    *(
        (
            text,
            ("pinned memory of a library"),
            HOST,
            {"tried": 8192},
            "`free -g` and `ulimit -l` show",
        )
        for text in (
            "W gpu_host_allocator.h:44] could not allocate pinned host memory of size: 8192",
            "failed to alloc 8192 bytes on host: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
            "failed to alloc 8192 bytes on host: CUDA_ERROR_OPERATING_SYSTEM: OS call failed",
            "faiss::gpu::StandardGpuResourcesImpl::initializeForDevice(int): failed to "
            "cudaHostAlloc 8192 bytes for CPU <-> GPU async copy buffer (error 2 out of memory)",
        )
    ),
    (
        "misc dxg: dxgkio_make_resident: Ioctl failed: -12",
        "WSL's driver",
        FULL,
        {},
        "less memory for the program",
    ),
    (
        "ResourceExhaustedError: OOM when allocating tensor with shape[1792,4096]\n\t [[Node: "
        "a/MatMul = "
        'MatMul[device:GPU:1"]]',
        "TensorFlow",
        FULL,
        {"shape": "[1792,4096]"},
        "a smaller batch",
    ),
    (
        "ResourceExhaustedError: Fail to alloc memory of 8192 size, error code is 12.",
        "Paddle's CPU memory",
        HOST,
        {"tried": 8192},
        "smaller images",
    ),
    (
        (
            "VkCreateFence failed with ERROR_OUT_OF_HOST_MEMORY (file descriptors: 303, soft "
            "limit: 8192)"
        ),
        "Vulkan's driver, on the host",
        UNKNOWN,
        {},
        "`free -g` and `ulimit -n`",
    ),
    (
        (
            "enforce fail at CPUAllocator.cpp:56] posix_memalign(&data, gAlignment, nbytes) == 0. "
            "12 vs 0"
        ),
        "an allocation of the program",
        HOST,
        {},
        "a smaller batch",
    ),
    (
        "cuMemCreate CUDA_ERROR_OUT_OF_MEMORY (may not be an issue e.g. torch allocator will free "
        "cache and retry)",
        "a warning of torch_memory_saver",
        WARNING,
        {},
        "nothing",
    ),
    *(
        (text, "an allocation that failed", UNKNOWN, figures, "use less at once")
        for text, figures in (
            ("[error] bm_alloc_gmem failed, dev_id = 0, size = 0xc0fb4000", {}),
            ("simulator: could not allocate 12.5 MiB for the grid", {"tried": 12.5 * MIB}),
            ("solver: memory allocation failed", {}),
            ("solver: out of memory when allocating 64 MiB", {"tried": 64 * MIB}),
            ("E loader: failed to allocate device_memory", {}),
        )
    ),
    (
        "INTERNAL: Failed to allocate 8192 bytes for new constant",
        "XLA or JAX",
        FULL,
        {"tried": 8192},
        "a smaller batch",
    ),
    (
        "failed to allocate 8.00G (8589934592 bytes) from device: HIP_ERROR_OutOfMemory",
        "TensorFlow's start",
        FULL,
        {"tried": 8 * GIB},
        "stop the other processes",
    ),
    (
        "failed to allocate 3.00G (3221225472 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out "
        "of memory\n"
        "Resource exhausted: Failed to allocate request for 3.00GiB (3221225472B) on device "
        "ordinal 1",
        "XLA or JAX",
        FULL,
        {"tried": 3 * GIB, "device": 1},
        "a smaller batch",
    ),
    (
        "MIOpen Error: handlehip.cpp:68: Memory not available to allocate buffer: 8192",
        "MIOpen",
        FULL,
        {"tried": 8192},
        "a smaller batch",
    ),
    (
        "[GPU] Exceeded max size of memory object allocation: requested 2147483648 bytes, but max "
        "alloc size supported by device is 1073741824 bytes.Please try to reduce batch size",
        "a buffer of OpenVINO",
        LARGER,
        {"tried": 2 * GIB, "the limit": GIB},
        "a smaller batch",
    ),
    (
        "Could not create cudnn handle: CUDNN_STATUS_NOT_INITIALIZED\nMemory usage: 2097152 bytes "
        "free, "
        "8589934592 bytes total.",
        "a library's handle in TensorFlow",
        FULL,
        {"free": 2 * MIB, "total": 8 * GIB},
        "tf.config.experimental.set_memory_growth",
    ),
    (
        "std::bad_alloc: CUDA error (failed to allocate 16 bytes) at: "
        "/rmm/cuda_async_view_memory_resource.cpp:43: cudaErrorIllegalAddress an illegal memory "
        "access was encountered",
        "an illegal access before an allocation",
        OTHER_MEMORY,
        {},
        "rerun with CUDA_LAUNCH_BLOCKING=1",
    ),
    (
        "MemoryError: std::bad_alloc: out_of_memory: CUDA error (failed to allocate 8192 bytes) "
        "at: "
        "/home/coder/.conda/envs/rapids/include/rmm/mr/cuda_async_view_memory_resource.hpp:86: "
        "cudaErrorMemoryAllocation out of memory",
        "RAPIDS",
        FULL,
        {"tried": 8192},
        "less data at once",
    ),
    (
        "stack_like_memory_pool.h:303: Error: Out of memory. Requested 8880 MB; Free 5902.50 MB",
        "CatBoost",
        FULL,
        {"tried": 8880 * MIB, "free": round(5902.5 * MIB)},
        "fewer rows or features",
    ),
    (
        (
            "stack_like_memory_pool.h:294: Error: Out of memory. Requested 1070.546387; Free "
            "1010.952393"
        ),
        "CatBoost",
        FULL,
        {},
        "fewer rows or features",
    ),
    (
        "TotalUsedMemStatistics : 2147483648 plus TotalUsedByEventMemStatistics : 0 and plus "
        "alloc size : 1073741824 is more than total mem size : 3000000000.",
        "MindSpore",
        FULL,
        {"used": 2 * GIB, "tried": GIB, "total": 3_000_000_000},
        "a smaller batch",
    ),
    (
        "Init] cudaHostAlloc failed, ret[2], out of memory",
        "pinned memory of a library",
        HOST,
        {},
        "`free -g` and `ulimit -l` show",
    ),
    (
        "Total hbm usage >= 11.50G:\n    reserved        530.00M\n    program          10.96G",
        "XLA on a TPU",
        FULL,
        {"needed": gib(11.5)},
        "a smaller batch per core",
    ),
    (
        "[metal::malloc] Resource limit (499000) exceeded.",
        "MLX's number of buffers",
        OTHER_MEMORY,
        {"buffers allowed": 499000},
        "fewer arrays alive",
    ),
    *(
        (text, "FFmpeg's decoder on the GPU", UNKNOWN, {}, "`nvidia-smi` shows whether")
        for text in (
            "Device setup failed for decoder on input stream #0:0 : Cannot allocate memory",
            "Failed to create specified HW device. Cannot allocate memory.",
        )
    ),
    (
        "warning: current allocated size is greater than the recommended max working set size",
        "a warning of llama.cpp on a Mac",
        WARNING,
        {},
        "a smaller or more",
    ),
    (
        (
            "EnforceNotMet: enforce allocating <= available failed, 2147483648 > 1073741824\nat "
            "[gpu_info.cc:89]"
        ),
        "Paddle's pool",
        FULL,
        {"tried": 2 * GIB, "free": GIB},
        "stop the other processes",
    ),
    *(
        (
            text,
            ("an allocation of the program"),
            HOST,
            {"tried": 8192},
            "a smaller batch, input or model",
        )
        for text in (
            "alloc.cpp:73: error: (-4:Insufficient memory) Failed to allocate 8192 bytes in "
            "function 'cv::OutOfMemoryError'",
            "alloc.cpp:55: error: (-4) Failed to allocate 8192 bytes in function OutOfMemoryError",
        )
    ),
    (
        "ggml_vulkan: Device memory allocation of size 8192 failed.\nggml_vulkan: Requested "
        "buffer size "
        "exceeds device memory allocation limit: ErrorOutOfDeviceMemory",
        "a Vulkan buffer of llama.cpp",
        LIMITED,
        {"tried": 8192},
        "fewer layers",
    ),
    (
        "W ggml_vulkan: Failed to allocate pinned memory (Requested buffer size exceeds device "
        "buffer size limit: ErrorOutOfDeviceMemory)",
        "a warning of llama.cpp",
        WARNING,
        {},
        "nothing",
    ),
    (
        (
            "THCudaCheck FAIL file=/pytorch/aten/src/THC/generic/THCStorage.cu line=58 error=2 : "
            "out of memory"
        ),
        "torch up to 1.0",
        FULL,
        {},
        "a smaller batch or model",
    ),
    (
        (
            "RuntimeError: cuda runtime err(2): out of memory at "
            "/pytorch/aten/src/THC/THCStorage.cu:58"
        ),
        "torch up to 1.0",
        FULL,
        {},
        "a smaller batch or model",
    ),
    (
        "RuntimeError: /io/spconv/indice.cu 126 cuda execution failed with error 2",
        "spconv",
        FULL,
        {},
        "fewer points",
    ),
    (
        "RuntimeError: HIP error: out of memory\nHIP kernel errors might be",
        "a HIP call outside torch's allocator",
        FULL,
        {},
        "stop the other processes",
    ),
    *(
        (text, "a CUDA call outside torch's allocator", FULL, {}, "stop the other processes")
        for text in (
            (
                "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be "
                "asynchronously "
                "reported"
            ),
            "torch.AcceleratorError: CUDA error: out of memory",
            "gpu_memory.h:109 cudaMalloc(&rawptr, n_bytes+GUARD*2) failed with error out of memory",
            "[enforce fail at event_gpu.cc:17] error == cudaSuccess. 2 vs 0. Error at: "
            "event_gpu.cc:17: out of memory",
            "CUDA Error: out of memory: Success",
            "CUDA runtime error in ::cudaMallocAsync(ptr, n, pool, stream): out of memory "
            "(tllmBuffers.h:125)",
            "Check failed: error == cudaSuccess (2 vs. 0)  out of memory",
            "mxnet.base.MXNetError: cudaMalloc retry failed: out of memory",
            "what():  parallel_for failed: out of memory",
            "[LightGBM] [Fatal] [CUDA] out of memory /src/cuda_utils.hu 50",
            "Error out of memory at line 380 in file /csrc/ops.cu",
            "Check failed: [error == cudaSuccess]  out of memory",
            (
                'CUDA error at x.cpp:9 code=2(cudaErrorMemoryAllocation) "cudaMalloc((void**)&d, n '
                '* 4)"'
            ),
        )
    ),
    (
        (
            "RuntimeError: level_zero backend failed with error: 39 "
            "(UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)"
        ),
        "XPU",
        FULL,
        {},
        "a smaller batch",
    ),
    (
        "Native API returns: -5 (PI_ERROR_OUT_OF_RESOURCES) -5 (PI_ERROR_OUT_OF_RESOURCES)",
        "XPU's resources",
        UNKNOWN,
        {},
        "a smaller batch",
    ),
    (
        "RuntimeError: Invalid buffer size: 24.00 GiB",
        "a Metal buffer",
        LARGER,
        {"tried": 24 * GIB},
        "make this one request smaller",
    ),
    (
        "failed assertion `[MPSNDArray initWithDevice:] Error: total bytes of NDArray > 2**32'",
        "a Metal buffer",
        LARGER,
        {},
        "make this one request smaller",
    ),
    (
        "[METAL] Command buffer execution failed: Insufficient Memory "
        "(00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
        "Metal",
        FULL,
        {},
        "close other programs",
    ),
    ("vk::Queue::submit: ErrorOutOfDeviceMemory", "Vulkan", FULL, {}, "close other programs"),
    (
        ("clEnqueueNDRangeKernel: CL_OUT_OF_RESOURCES"),
        "OpenCL's resources",
        UNKNOWN,
        {},
        "use less memory",
    ),
    (
        "EL0004: [PID: 41] 2025-01-01 Failed to allocate memory.",
        "the Ascend driver",
        FULL,
        {},
        "stop the other",
    ),
    ("aclrtMallocPhysical device memory failed", "the Ascend driver", FULL, {}, "stop the other"),
    ("nrt_load failed: NRT_RESOURCE(4)", "Neuron", FULL, {}, "a smaller batch or sequence"),
    (
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 131072, "
        "Hardware limit: 101376. Reducing block sizes or `num_stages` may help.",
        "shared memory of a kernel",
        OTHER_MEMORY,
        {"needed": 128 * KIB, "the limit": 99 * KIB},
        "a smaller block size",
    ),
    (
        # Not /dev/shm, which is shared memory of the host.
        "FullyFusedMLP: insufficient shared memory available on the GPU. Reduce n_neurons",
        "shared memory of a kernel",
        OTHER_MEMORY,
        {},
        "a smaller block size",
    ),
    (
        "RuntimeError: CUDA error: too many resources requested for launch",
        "shared memory of a kernel",
        OTHER_MEMORY,
        {},
        "a smaller block size",
    ),
    (
        (
            "unable to open shared memory object </torch_41_7> in read-write mode: Too many open "
            "files (24)"
        ),
        "files that are open",
        OTHER_MEMORY,
        {},
        "torch.multiprocessing.set_sharing_strategy",
    ),
    *(
        (text, "/dev/shm", HOST, figures, "a larger --shm-size")
        for text, figures in (
            ("Bus error. It is possible that dataloader's workers are out of shared memory.", {}),
            ("This might be caused by insufficient shared memory (shm).", {}),
            ("RuntimeError: unable to write to file </torch_41_7>", {}),
            (
                "include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on "
                "device\n"
                "NCCL WARN Error while creating shared memory segment nccl-shm-recv-14-1-2 (size "
                "9637888)",
                {"tried": 9637888},
            ),
            (
                ("NCCL WARN Error: failed to extend /dev/shm/nccl-fjwOOB to 5967876 bytes"),
                {"tried": 5967876},
            ),
        )
    ),
    (
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on "
        "memory.\nMemory "
        "on the node "
        "(IP: 10.0.0.2, ID: 8c5a) where the task (task ID: 4161, name=f, pid=548, memory "
        "used=12.18GB) was "
        "running was "
        "59.49GB / 62.58GB (0.950744), which exceeds the memory usage threshold of 0.95.",
        "Ray",
        HOST,
        {
            "process": gib(12.18),
            "used": gib(59.49),
            "the machine's memory": gib(62.58),
            "the setting's share": 0.95,
        },
        "fewer tasks or actors",
    ),
    (
        "RayOutOfMemoryError: More than 95% of the memory on node h is used (11.8 / 12.3 GB).",
        "Ray",
        HOST,
        {"used": gib(11.8), "the machine's memory": gib(12.3)},
        "fewer tasks or actors",
    ),
    (
        "ray.exceptions.ObjectStoreFullError: Failed to put object ab in object store because it "
        "is full. Object size is 1073741824 bytes.",
        "Ray's object store",
        HOST,
        {"tried": GIB},
        "drop references",
    ),
    (
        "fatal error: Killed signal terminated program cc1plus",
        "a compiler",
        HOST,
        {},
        "MAX_JOBS=2",
    ),
    (
        "OSError: [WinError 1455] The paging file is too small for this operation to complete.",
        "Windows' page file",
        HOST,
        {},
        "a larger page file",
    ),
    (
        "slurmstepd: error: Exceeded job memory limit at some point.",
        "a job's memory limit",
        HOST,
        {},
        "ask for more",
    ),
    *(
        (
            text,
            "a step that Slurm killed",
            HOST,
            {"kills in the step": int(text.split("Detected ")[1][0])},
            "ask for more (--mem)",
        )
        for text in (
            "slurmstepd: error: Detected 1 oom_kill event in StepId=41.batch.",
            "job.sh: line 7: 4711 Killed  python train.py\nslurmstepd: error: Detected 3 oom-kill "
            "event(s) "
            "in StepId=52.batch cgroup.",
            "slurmstepd: error: Detected 2 oom-kill event(s) in StepId=41.0 cgroup.",
            (
                "srun: error: nid001: task 0: Out Of Memory\nerror: Detected 1 oom_kill event in "
                "StepId=41.7."
            ),
        )
    ),
    (
        "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.",
        "a job's memory limit",
        HOST,
        {},
        "ask for more",
    ),
    (
        "RuntimeError: alloc_req_slots runs out of memory. Please set a smaller number for "
        "`--max-running-requests`. self.req_to_token_pool.available_size()=3, num_reqs=8,",
        "SGLang's request slots",
        OTHER_MEMORY,
        {"free slots": 3, "requests to run": 8},
        "lower --max-running-requests",
    ),
    (
        "terminate called after throwing an instance of 'boost::compute::opencl_error'\n  what(): "
        " Memory "
        "Object Allocation Failure",
        "LightGBM on OpenCL",
        FULL,
        {},
        "fewer bins",
    ),
    ("clCreateBuffer: Memory Object Allocation Failure", "OpenCL", FULL, {}, "smaller buffers"),
    (
        "Nov 02 07:08:09 box systemd-oomd[77]: Killed /user.slice/train.scope due to memory "
        "pressure for /user.slice being 61.25% > 40.50% for > 30s with reclaim activity",
        "systemd-oomd",
        HOST,
        {
            ("percent of the time waited for memory"): 61.25,
            "percent allowed": 40.5,
            "seconds above it": 30,
        },
        "use less host memory",
    ),
    (
        (
            "systemd-oomd[77]: Killed /user.slice/train.scope due to memory used (7) / total (8) "
            "and swap used"
        ),
        "systemd-oomd, because swap was full",
        HOST,
        {"used": 7, "the machine's memory": 8},
        "use less host memory",
    ),
    (
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 3221225472 "
        "bytes.\nBufferAssignment "
        "stats:\n parameter allocation: 256.00MiB\n constant allocation: 16.0KiB\n maybe_live_out "
        "allocation: 5.50GiB\n preallocated temp allocation: 3.25GiB\n total allocation: "
        "9.00GiB\n total "
        "fragmentation: 128.00MiB (1.39%)",
        "a compiled program of XLA",
        FULL,
        {
            "tried": 3 * GIB,
            "needed": 9 * GIB,
            "parameters": 256 * MIB,
            "constants": 16 * KIB,
            "outputs": gib(5.5),
            "temporary": gib(3.25),
            "lost in gaps": 128 * MIB,
        },
        "compare what it needs with the GPU",
    ),
    # A size that no machine has was computed wrongly: no batch is small enough.
    (
        (
            "bfc_arena.cc:376 Failed to allocate memory for requested buffer of size "
            "4611686018427388928"
        ),
        "ONNX Runtime, without its device",
        LARGER,
        {"tried": (1 << 62) + 1024},
        "look at the shapes",
    ),
    # What was free is far more than what was needed: the GPU was not full when it was read.
    (
        "Memory allocation error on worker 0: std::bad_alloc: cudaErrorMemoryAllocation: out of "
        "memory\n- "
        "Free memory: 8589934592\n- Requested memory: 65536",
        "XGBoost",
        UNKNOWN,
        {"tried": 64 * KIB, "free": 8 * GIB},
        "run it again with `nvidia-smi`",
    ),
    (
        # More free than there is: no share follows from it.
        "Free memory on device cuda:0 (90.00/80.00 GiB) on startup is less than desired GPU memory "
        "utilization",
        "vLLM's start",
        OUTSIDE,
        {"free": 90 * GIB, "total": 80 * GIB, "device": 0},
        "free what other processes hold (`nvidia-smi`)",
    ),
    (
        "ValueError: Free memory on device (0.50/80.00 GiB) on startup is less than desired GPU "
        "memory utilization (0.5, 40.00 GiB).",
        "vLLM's start",
        OUTSIDE,
        {
            "free": gib(0.5),
            "total": 80 * GIB,
            "the setting's share": 0.5,
            "wanted by the setting": 40 * GIB,
        },
        "free what other processes hold (`nvidia-smi`), or use another GPU",
    ),
    (
        "Memory cgroup out of memory: Killed process 41 (python) total-vm:99kB, "
        "anon-rss:1048576kB, file-rss:0kB, shmem-rss:4kB, UID:0 pgtables:8kB oom_score_adj:0",
        "a control group's limit",
        HOST,
        {
            "of address space": 99 * KIB,
            "process": GIB,
            "its shared pages": 4 * KIB,
            "its page tables": 8 * KIB,
        },
        "a higher limit (--memory in Docker",
    ),
    (
        "[12.5] Task in /ecs/a killed as a result of limit of /ecs/a\n[12.5] memory: usage "
        "1048576kB, limit "
        "1048576kB, failcnt 9\n[12.5] memory+swap: usage 1048576kB, limit 2097152kB, failcnt 0",
        "a control group's limit",
        HOST,
        {"used": GIB, "the limit": GIB},
        "a higher limit (--memory in Docker",
    ),
    (
        "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),global_oom,task=perl,pid=7\nOut of "
        "memory: "
        "Killed process 7 (perl) total-vm:87033376kB, anon-rss:60356340kB, file-rss:0kB\n"
        "oom_reaper: reaped process 7 (perl), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
        "the machine's memory",
        HOST,
        {"of address space": 87033376 * KIB, "process": 60356340 * KIB},
        "use less host memory",
    ),
    (
        "Out of memory: Killed process 14592 (python3) total-vm:1980996kB...",
        "the machine's memory",
        HOST,
        {"of address space": 1980996 * KIB},
        "use less host memory",
    ),
    (
        "python invoked oom-killer: gfp_mask=0x14200ca, order=0\noom_reaper: reaped process 7 "
        "(python), now "
        "anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
        "the kernel's OOM killer",
        HOST,
        {},
        "use less host memory",
    ),
    # Beside a container that was killed, the kernel's line does not say whether it was the
    # machine's memory.
    (
        (
            "Out of memory: Killed process 41 (python) total-vm:2048kB, anon-rss:1024kB\nReason: "
            "OOMKilled"
        ),
        "the kernel's OOM killer",
        HOST,
        {"of address space": 2 * MIB, "process": MIB},
        "use less host memory",
    ),
    (
        (
            "Last State: Terminated\n  Reason: OOMKilled\n  Exit Code: 137\nLimits:\n  cpu: 2\n  "
            "memory: 4Gi\n"
        ),
        "a container of Kubernetes",
        HOST,
        {"the limit": 4 * GIB},
        "a higher resources.limits.memory",
    ),
    (
        "mem avail: 1524 of 13855 MiB (10 %), swap free: 0 of 0 MiB ( 0 %)\nlow memory! at or "
        "below SIGTERM "
        'limits: mem 10 %, swap 10 %\nkilling process 41 "python" with signal 15: badness 5, '
        "VmRSS 7609 MiB",
        "earlyoom",
        HOST,
        {
            "the machine's memory": 13855 * MIB,
            "process": 7609 * MIB,
            "available": 1524 * MIB,
            "swap free": 0,
            "all swap": 0,
        },
        "use less host memory",
    ),
    (
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. "
        "Used 21.95G of 15.48G hbm. Exceeded hbm capacity by 6.47G.\n\nTotal hbm usage >= 22.47G:\n"
        "    reserved        530.00M\n    program          21.95G\n    arguments            0B\n",
        "XLA on a TPU",
        FULL,
        {
            "needed": gib(21.95),
            "total": gib(15.48),
            "missing": gib(6.47),
            "all together": gib(22.47),
            "kept by the runtime": 530 * MIB,
            "the compiled program": gib(21.95),
            "arguments": 0,
        },
        "a smaller batch per core",
    ),
    (
        'msg="offload to cpu" layers.model=57 layers.offload=0 memory.available="[7.5 GiB]" '
        'memory.required.full="13.5 GiB" memory.required.partial="0 B"\nlevel=ERROR msg="error '
        'loading llama server" error="llama runner process no longer running: -1 "',
        "Ollama's runner, without a reason",
        UNKNOWN,
        {"available": gib(7.5), "needed": gib(13.5)},
        "look for the first error above",
    ),
    (
        "llama_params_fit_impl: projected to use 38404 MiB of device memory vs. 6368 MiB of free device "
        "memory\nllama_params_fit_impl: cannot meet free memory target of 1024 MiB, need to reduce "
        "device memory by 33060 MiB\nload_tensors: offloaded 12/48 layers to GPU\nsignal: killed",
        "a killed process of llama.cpp",
        HOST,
        {
            "needed on the GPU": 38404 * MIB,
            "free before": 6368 * MIB,
            "missing": 33060 * MIB,
        },
        "a smaller or more strongly quantized model",
    ),
    (
        "ggml_vulkan: Requested buffer size exceeds device buffer size limit: ErrorOutOfDeviceMemory\n"
        "ggml_gallocr_reserve_n_impl: failed to allocate Vulkan0 buffer of size 8753520640\n"
        "graph_reserve: failed to allocate compute buffers\n",
        "a Vulkan compute buffer of llama.cpp",
        LIMITED,
        {"tried": 8753520640, "device": 0},
        "a smaller batch (-ub)",
    ),
    (
        "[INFO] [utils.py:800:see_memory_usage] CPU Virtual Memory:  used = 60.14 GB, percent = 95.1%\n"
        "['/usr/bin/python3', '-u', 'train.py', '--local_rank=0'] exits with return code = -9",
        "a killed process",
        HOST,
        {"used": gib(60.14)},
        "less host memory",
    ),
    (
        "Total memory: 8.00GiB\nFree memory: 7.75GiB\nE tensorflow/stream_executor/rocm/rocm_driver.cc:590"
        "] failed to allocate 8.00G from device: hipError_t(1002)",
        "TensorFlow's start",
        FULL,
        {"tried": 8 * GIB, "free": gib(7.75), "total": 8 * GIB},
        "stop the other processes that `amd-smi` shows",
    ),
    (
        "PSI mem some avg10:  12.50 | MemAvail:  900 M,  9.0 % | SwapFree: 700 M,  70.0 %\n"
        "PSI mem some avg10:  61.20 | MemAvail:   12 M,  0.1 % | SwapFree: 384 M,  52.5 %\n"
        "avg (61.20) > sigterm_psi (60.0)\nFound the victim with highest badness:\n"
        "  Name:    python3\n  VmSize:  9719 MiB\n  VmRSS:   8624 MiB (Anon: 8618 MiB)\n"
        "Implement corrective action: SIGTERM\n",
        "nohang",
        HOST,
        {"process": 8624 * MIB, "available": 12 * MIB, "swap free": 384 * MIB},
        "use less host memory",
    ),
    (
        "radv/amdgpu: Failed to allocate a buffer:\nradv/amdgpu:    size      : 4269813760 bytes\n"
        "radv/amdgpu:    alignment : 262144 bytes\nradv/amdgpu:    domains   : 2\n",
        "Mesa's driver of AMD's GPUs",
        FULL,
        {"tried": 4269813760},
        "a smaller context",
    ),
    (
        "ROCm: the arena alloc failed for tensor-span:7 (1792.00 MiB chunk): out of memory",
        "a program on the GPU",
        FULL,
        {"tried": 1792 * MIB},
        "stop the other processes that `amd-smi` shows",
    ),
    (
        "[TensorRT-LLM][INFO] [MemUsageChange] Init cuBLAS: CPU +0, GPU +8, now: CPU 90, GPU 400 (MiB)"
        "\n[TensorRT-LLM][INFO] [MemUsageChange] TensorRT-managed allocation in IExecutionContext "
        "creation: CPU +0, GPU +0, now: CPU 0, GPU 12569 (MiB)\n[TensorRT-LLM][ERROR] CUDA runtime "
        "error in ::cudaMallocAsync(ptr, n, mCudaStream->get()): out of memory (/app/x.h:112)",
        "TensorRT-LLM",
        FULL,
        {"held by TensorRT's engines": 12569 * MIB, "taken on the GPU": 400 * MIB},
        "lower free_gpu_memory_fraction",
    ),
    (
        "distributed.nanny - WARNING - Worker exceeded 95% memory budget. Restarting",
        "Dask's nanny",
        HOST,
        {"percent of its limit allowed": 95},
        "smaller partitions",
    ),
    (
        "distributed.worker - WARNING - Worker is at 82% memory usage. Pausing worker. Process "
        "memory: 2.50 GiB -- Worker memory limit: 3.00 GiB",
        "a warning of Dask",
        WARNING,
        {"process": gib(2.5), "the limit": 3 * GIB},
        "nothing, if the job goes on",
    ),
    (
        "distributed.scheduler.KilledWorker: Attempted to run task 'sum' on 4 different workers, "
        "but all those workers died while running it.",
        "perhaps the cause of dead Dask workers",
        UNKNOWN,
        {},
        "the workers' own logs",
    ),
    (
        (
            "Container killed by YARN for exceeding memory limits. 12.5 GB of 12 GB physical "
            "memory used."
        ),
        "YARN's limit of a container",
        HOST,
        {"used": gib(12.5), "the limit": 12 * GIB},
        "raise spark.executor.memoryOverhead",
    ),
    (
        (
            "Native memory allocation (mmap) failed to map 715849728 bytes for committing reserved "
            "memory."
        ),
        "Java's memory outside the heap",
        HOST,
        {"tried": 715849728},
        "a smaller heap",
    ),
    (
        "[7:0x1] 41 ms: Mark-sweep 428.1 (465.0) -> 425.5 (466.0) MB, 1.8 / 0.0 ms allocation "
        "failure\n"
        "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory",
        "the heap of Node.js",
        HOST,
        {"the heap at the end": round(425.5 * MIB)},
        "a larger heap: NODE_OPTIONS",
    ),
    (
        "Error: cannot allocate vector of size 3.5 Gb\n  Reached total allocation of 4000Mb",
        "R",
        HOST,
        {"tried": gib(3.5), "the limit": 4000 * MIB},
        "use less memory: rm()",
    ),
    ("Error: vector memory exhausted (limit reached?)", "R", HOST, {}, "use less memory: rm()"),
    (
        "Error using gpuArray\nOut of memory on device. To view more detail about available "
        "memory on the "
        "GPU, "
        "use 'gpuDevice()'.",
        "MATLAB on the GPU",
        FULL,
        {},
        "a smaller MiniBatchSize",
    ),
    (
        "Requested 100000x100000 (74.5GB) array exceeds maximum array size preference (15.5GB).",
        "MATLAB",
        HOST,
        {"tried": gib(74.5), "the limit": gib(15.5)},
        "smaller arrays",
    ),
    (
        "Your notebook tried to allocate more memory than is available. It has restarted.",
        "a restarted notebook",
        HOST,
        {},
        "a smaller batch",
    ),
    (
        "MemoryError   Traceback (most recent call "
        "last)\n~\\Python\\Python38-32\\lib\\parsers.py in "
        "read_csv(a)",
        "a 32-bit Python",
        HOST,
        {},
        "a 64-bit Python",
    ),
    (
        "InternalError: Failed copying input tensor from CPU:0 to GPU:0 in order to run "
        "_EagerConst: Dst tensor is not initialized.",
        "a copy to the GPU in TensorFlow",
        FULL,
        {},
        "a smaller batch",
    ),
    (
        "Ran out of memory in memory space hbm. Used 40.00G of 16.00G hbm. Exceeded hbm capacity "
        "by 24.00G.\n"
        "  Largest program allocations in hbm:\n\n  1. Size: 32.00G\n     Shape: "
        "s32[8,4]{1,0:T(8,128)}\n"
        "     Unpadded size: 1.00G\n     Extra memory due to padding: 31.00G (32.0x expansion)",
        "a padded array on a TPU",
        FULL,
        {
            "needed": 40 * GIB,
            "total": 16 * GIB,
            "missing": 24 * GIB,
            "the largest array": 32 * GIB,
            "that array without padding": GIB,
            "padding in that array": 31 * GIB,
        },
        "give that array a last dimension of 128",
    ),
    (
        "Error allocating 3242496000 bytes of device memory (out of memory). Driver report "
        "876146688 bytes free and 4294246400 bytes total",
        "Theano",
        FULL,
        {"tried": 3242496000, "free": 876146688, "total": 4294246400},
        "a smaller batch",
    ),
    (
        "ERROR: Insufficient memory on accelerator (src/GPU/gpu_extra.h:38)",
        "LAMMPS",
        FULL,
        {},
        "fewer atoms for each GPU",
    ),
    (
        "CUDA failure 2: out of memory ; GPU=1 ; hostname=box ; expr=cudaMalloc((void**) &p, "
        "sizeof(AllocatedElemType) * AsMultipleOf(n, 2))",
        "CNTK",
        FULL,
        {"device": 1},
        "a smaller minibatch",
    ),
    (
        " Try to set subdivisions=64 in your cfg-file.\nCUDA Error: out of memory",
        "Darknet",
        FULL,
        {},
        "larger subdivisions=",
    ),
    (
        "net.cpp:283] Memory required for data: 2147483648\n"
        "syncedmem.cpp:71] Check failed: error == cudaSuccess (2 vs. 0)  out of memory",
        "Caffe",
        FULL,
        {"for the data of the network": 2 * GIB},
        "a smaller batch_size",
    ),
    (
        "HIP out of memory.\nName: gfx1103",
        "an APU's share of the host's memory",
        FULL,
        {},
        "give the GPU more of the host's memory",
    ),
    (
        "vkAllocateMemory failed -10",
        "Vulkan's limit of allocations",
        OTHER_MEMORY,
        {},
        "a smaller tile",
    ),
    (
        '"Status": "exited",\n"OOMKilled": true,\n"ExitCode": 137,',
        "a container of Docker",
        HOST,
        {},
        "a higher limit (--memory of docker run",
    ),
    (
        "Memory cgroup out of memory: Killed process 7 (java)\nhierarchical_memory_limit 536870912",
        "a control group's limit",
        HOST,
        {"the limit": 536870912},
        "a higher limit",
    ),
    (
        "slurmstepd: error: Step 1141.0 exceeded memory limit (52917772 > 20971520), being killed",
        "a job's memory limit",
        HOST,
        {"process": 52917772 * KIB, "the limit": 20 * GIB},
        "ask for more",
    ),
    (
        (
            "slurmstepd: error: StepId=1141.0 exceeded memory limit (8612294656 > 8589934592), "
            "being killed"
        ),
        "a job's memory limit",
        HOST,
        {"process": 8612294656, "the limit": 8 * GIB},
        "ask for more",
    ),
    # What was free as TensorFlow started would have been enough.
    (
        "totalMemory: 11.00GiB freeMemory: 10.75GiB\nCreating TensorFlow device "
        "(/device:GPU:0)\nfailed to "
        "allocate 10.00G (10737418240 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY",
        "TensorFlow's start",
        UNKNOWN,
        {"tried": 10 * GIB, "total": 11 * GIB, "free": gib(10.75)},
        "run it again with `nvidia-smi` beside it",
    ),
    (
        "pycuda._driver.LogicError: cuMemHostAlloc failed: OS call failed or operation not "
        "supported on this OS",
        "pinned memory of a library",
        HOST,
        {},
        "`free -g` and `ulimit -l` show",
    ),
    (
        "RuntimeError: DataLoader worker (pid(s) 411948) exited unexpectedly",
        "perhaps the cause of a dead DataLoader worker",
        UNKNOWN,
        {},
        "num_workers=0",
    ),
    (
        (
            "Container killed by YARN for exceeding memory limits. 7.5 GB of 4.5 GB virtual memory "
            "used."
        ),
        "YARN's limit of virtual memory",
        HOST,
        {"used": gib(7.5), "the limit": gib(4.5)},
        "turn the check off",
    ),
    (
        (
            "REPORT Memory Size: 2688 MB\tMax Memory Used: 2581 MB\nRuntime exited with error: "
            "signal: killed"
        ),
        "AWS Lambda",
        HOST,
        {"the limit": 2688 * MIB, "used": 2581 * MIB},
        "a larger memory size",
    ),
    ("[GPU] out of GPU resources", "OpenCL's resources", UNKNOWN, {}, "use less memory"),
    (
        "errcode -5,CL_OUT_OF_RESOURCES,src/gpu",
        "OpenCL's resources",
        UNKNOWN,
        {},
        "use less memory",
    ),
    (
        ("[W dml_heap_allocator.cc:97] DML allocator out of memory!"),
        "DirectML",
        FULL,
        {},
        "a smaller batch",
    ),
    (
        "[1.5] memory: usage 131072kB, limit 131072kB, failcnt 34764\noom-kill:constraint=CON",
        "a control group's limit",
        HOST,
        {"used": 128 * MIB, "the limit": 128 * MIB},
        "a higher limit",
    ),
    (
        "Allocator (DmlAllocator) ran out of memory trying to allocate 5.50MiB (rounded to "
        "5767168).\n"
        "Limit:    7593787392\nInUse:    7589175808",
        "TensorFlow",
        FULL,
        {
            "tried": round(5.5 * MIB),
            "requested, rounded": 5767168,
            "allowed": 7593787392,
            "allocated": 7589175808,
        },
        "a smaller batch",
    ),
    (
        "kernel 4222e7b2-aca5-4c53-972e-ea8892e41d74 restarted\ntcmalloc: large alloc 2400002048 "
        "bytes == "
        "0x9",
        "a notebook's session that ended",
        HOST,
        {"tried": 2400002048},
        "a smaller batch",
    ),
    (
        "Your session crashed after using all available RAM.",
        "a restarted notebook",
        HOST,
        {},
        "a smaller batch",
    ),
    (
        (
            'job 7.1 exceeded job hard limit "h_vmem" of queue "all.q@box" (4.5G > limit:4.0G) - '
            "sending SIGKILL"
        ),
        "a job's memory limit",
        HOST,
        {"process": gib(4.5), "the limit": 4 * GIB},
        "ask for more",
    ),
    (
        "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.\n  Max Memory : 1234 MB\n"
        "  Total Requested Memory : 1000.00 MB",
        "a job's memory limit",
        HOST,
        {"used": 1234 * MIB, "requested from the scheduler": 1000 * MIB},
        "ask for more",
    ),
    (
        "MemoryError: Unable to allocate internal buffer.",
        "an allocation of the program",
        HOST,
        {},
        "a smaller",
    ),
    (
        "OSError: [WinError 8] Not enough memory resources are available",
        "Windows' page file",
        HOST,
        {},
        "a larger",
    ),
    (
        ("Error tokenizing data. C error: out of memory"),
        "an allocation of the program",
        HOST,
        {},
        "a smaller",
    ),
    (
        ("ERROR: LoadError: OutOfMemoryError()"),
        "an allocation of the program",
        HOST,
        {},
        "a smaller batch",
    ),
    (
        "runtime: out of memory: cannot allocate 4194304-byte block (3221225472 in use)",
        "an allocation of the program",
        HOST,
        {"tried": 4 * MIB, "used": 3 * GIB},
        "a smaller batch",
    ),
    (
        (
            "OpenCV Error: Insufficient memory (Failed to allocate 2764800000 bytes) in "
            "OutOfMemoryError"
        ),
        "an allocation of the program",
        HOST,
        {"tried": 2764800000},
        "a smaller batch",
    ),
    (
        "OSError: [Errno 28] No space left on device: '/dev/shm/psm_1'",
        "/dev/shm",
        HOST,
        {},
        "a larger --shm-size",
    ),
    (
        "systemd-oomd[7]: Killed /user.slice/app.scope due to memory used (15000000000) / total "
        "(16000000000) and swap used (8000000000) / total (8589930496) being more than 90.00%",
        "systemd-oomd, because swap was full",
        HOST,
        {
            "used": 15000000000,
            "the machine's memory": 16000000000,
            "swap used": 8000000000,
            "all swap": 8589930496,
        },
        "use less host memory",
    ),
    (
        "systemd[1]: a.scope: A process of this unit has been killed by the OOM killer.",
        "the kernel's OOM killer",
        HOST,
        {},
        "use less host memory",
    ),
    (
        ("srun: error: node1: task 0: Out Of Memory"),
        "a step that Slurm killed",
        HOST,
        {},
        "ask for more",
    ),
    (
        (
            "State: OUT_OF_MEMORY (exit code 0)\nMemory Utilized: 15.50 GB\nMemory Efficiency: "
            "96.9% "
            "of 16.00 GB"
        ),
        "a job's memory limit",
        HOST,
        {"used": gib(15.5), "the limit": 16 * GIB},
        "ask for more",
    ),
    (
        "java.lang.OutOfMemoryError: unable to create new native thread",
        "Java's threads",
        OTHER_MEMORY,
        {},
        "a higher limit of processes",
    ),
    (
        "java.lang.OutOfMemoryError: Requested array size exceeds VM limit",
        "a Java array",
        LIMITED,
        {},
        "split the data into",
    ),
    (
        "Total size of serialized results of 16 tasks (1048.5 MiB) is bigger than "
        "spark.driver.maxResultSize (1024.0 MiB)",
        "Spark's limit of results",
        LIMITED,
        {"used": round(1048.5 * MIB), "the limit": GIB},
        "collect less (write the results",
    ),
    (
        "OpenBLAS : Program is Terminated. Because you tried to allocate too many memory regions.",
        "OpenBLAS's buffers",
        OTHER_MEMORY,
        {},
        "OPENBLAS_NUM_THREADS=1",
    ),
    (
        "0/3 nodes are available: 1 node(s) had taints, 2 Insufficient memory.",
        "an unschedulable pod",
        OTHER_MEMORY,
        {},
        "a smaller resources.requests.memory",
    ),
    (
        ("ClientError: Please use an instance type with more memory"),
        "SageMaker",
        HOST,
        {},
        "an instance type",
    ),
    (
        "The kernel appears to have died. It will restart automatically.",
        "perhaps the cause of a dead notebook kernel",
        UNKNOWN,
        {},
        "run the code as a script",
    ),
    (
        'Kokkos ERROR: Cuda memory space failed to allocate 2.5 GiB (label="neighbors"). The '
        "allocation "
        'using cudaMalloc() returned the error code "cudaErrorMemoryAllocation".',
        "Kokkos",
        FULL,
        {"tried": gib(2.5)},
        "less work for each GPU",
    ),
    ("OPTIX_ERROR_DEVICE_OUT_OF_MEMORY in optixModuleCreate", "OptiX", FULL, {}, "a smaller scene"),
    (
        ('nrt_tensor_allocate status=4 message="Allocation Failure"'),
        "Neuron",
        FULL,
        {},
        "a smaller batch",
    ),
    (
        "RuntimeError: level_zero backend failed with error: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)",
        "XPU's resources",
        UNKNOWN,
        {},
        "a smaller batch",
    ),
    (
        "used slow CUDNN algo without Workspace! Need memory: 32321295, available: 30998528\n Try "
        "to set "
        "subdivisions=64 in your cfg-file.\nCUDA Error: out of memory: Cannot allocate memory",
        "Darknet",
        FULL,
        {"needed": 32321295, "available": 30998528},
        "larger subdivisions=",
    ),
    (
        "OOM killed process 659 (java) vm:4973220kB, rss:2066504kB, swap:0kB",
        "the kernel's OOM killer",
        HOST,
        {"of address space": 4973220 * KIB, "process": 2066504 * KIB},
        "use less host memory",
    ),
    (
        "System memory low at node with IP 1.2.3.4. Used memory (23.50GB) / total capacity "
        "(33.25GB) (0.7) exceeds threshold 0.7, killing latest task",
        "Ray",
        HOST,
        {"used": gib(23.5), "the machine's memory": gib(33.25), "the setting's share": 0.7},
        "fewer tasks or actors",
    ),
    (
        "Total hbm usage >= 11.50G:\n    HLO temp 10.75G (1.2% utilization: Unpadded (140.25M) "
        "Padded "
        "(10.75G), 0.0% fragmentation (0B))",
        "a padded array on a TPU",
        FULL,
        {
            "needed": gib(11.5),
            "that array without padding": round(140.25 * MIB),
            "all arrays with padding": gib(10.75),
        },
        "give that array a last dimension of 128",
    ),
    (
        (
            "ResourceExhaustedError: Failed to allocate request for 64.00MiB (67108864B) on device "
            "ordinal 1"
        ),
        "XLA or JAX",
        FULL,
        {"tried": 64 * MIB, "device": 1},
        "a smaller batch",
    ),
    (
        "mxnet.base.MXNetError: [17:13:00] src/operator/mxnet_op.h:576: Check failed: err == "
        "cudaSuccess (2 vs. 0) Name: mxnet_generic_kernel ErrStr:out of memory",
        "MXNet",
        FULL,
        {},
        "stop the other processes",
    ),
    (
        "The command '/bin/sh -c python a.py' returned a non-zero code: 137",
        "a killed process",
        HOST,
        {},
        "less host memory: fewer processes or DataLoader workers",
    ),
    (
        "cuda_info.cpp:74: error: (-217:Gpu API call) out of memory in function 'setDevice'\n"
        "cuda_host_mem.cpp:95: error: (-217:Gpu API call) out of memory in function 'allocate'",
        "OpenCV's pinned memory",
        HOST,
        {},
        "fewer or smaller pinned buffers",
    ),
    (
        "[METAL] Command buffer execution failed: Insufficient Memory",
        "Metal",
        FULL,
        {},
        "close other programs",
    ),
    (
        "E tensorflow/stream_executor/cuda/cuda_dnn.cc:329] Could not create cudnn handle: "
        "CUDNN_STATUS_INTERNAL_ERROR",
        "a library's handle in TensorFlow",
        FULL,
        {},
        "tf.config.experimental.set_memory_growth",
    ),
    (
        "[TensorRT] ERROR: Requested amount of memory (150994944 bytes) could not be allocated. "
        "There may "
        "not be enough free memory for allocation to succeed.\n[TensorRT] ERROR: "
        "../rtSafe/WeightsPtr.cpp (92) - OutOfMemory Error in allocate: 0\n[TensorRT] ERROR: Out "
        "of memory "
        "error during getBestTactic: [FULLY_CONNECTED #1]",
        "TensorRT",
        FULL,
        {"tried": 144 * MIB},
        "a smaller workspace",
    ),
    (
        "Ran out of memory in memory space hbm. Used 63.80G of 30.75G hbm. Exceeded hbm "
        "capacity by "
        "33.05G.\n  Largest program allocations in hbm:\n\n  1. Size: 2.00G\n     Operator: "
        'op_name="a"\n'
        "     Shape: f32[32,4096,4096]{1,2,0:T(8,128)}\n     Unpadded size: 2.00G",
        "XLA on a TPU",
        FULL,
        {
            "needed": gib(63.8),
            "total": gib(30.75),
            "missing": gib(33.05),
            "the largest array": 2 * GIB,
            "shape": "f32[32,4096,4096]",
        },
        "a smaller batch per core",
    ),
    (
        "opencv/modules/core/src/cuda_info.cpp:74: error: (-217:Gpu API call) out of memory in "
        "function "
        "'setDevice'\nopencv/modules/core/src/cuda_host_mem.cpp:95: error: (-217:Gpu API call) "
        "out of "
        "memory in function 'allocate'",
        "OpenCV's pinned memory",
        HOST,
        {},
        "fewer or smaller pinned buffers",
    ),
    (
        "\u2502 Step Name \u2502 State \u2502 MaxRSS \u2502\n"
        "\u2502 wf1_j1_r1_a1 \u2502 OUT_OF_MEMORY \u2502 4096000K \u2502",
        "a job's memory limit",
        HOST,
        {"held by the process": 4096000 * 1024},
        "ask for more",
    ),
    ("370626.batch batch OUT_OF_ME+ 0:125", "a job's memory limit", HOST, {}, "ask for more"),
    (
        "command terminated with non-zero exit code: Error executing in Docker Container: 137",
        "a killed process",
        HOST,
        {},
        "less host memory: fewer processes or DataLoader workers",
    ),
    (
        '"exitCode": 137,\n"reason": "OOM Killed",',
        "a container of Kubernetes",
        HOST,
        {},
        "a higher resources.limits.memory",
    ),
    (
        "[shard 0:stmt] seastar - Failed to allocate 174794 bytes\nUsed memory:   8G\nFree "
        "memory:   113M\n"
        "Total memory:  8G",
        "Seastar",
        HOST,
        {"tried": 174794, "used": 8 * GIB, "available": 113 * MIB, "the limit": 8 * GIB},
        "less data or fewer requests",
    ),
    (
        "thread '<main>' panicked at 'called `Result::unwrap()` on an `Err` value: "
        "OomError(OutOfDeviceMemory)', ../src/libcore/result.rs:746",
        "Vulkan",
        FULL,
        {},
        "close other programs",
    ),
    ("VK Error Code: ERROR_OUT_OF_DEVICE_MEMORY", "Vulkan", FULL, {}, "close other programs"),
    (
        "[HAMI-core ERROR (pid:30 thread=140382094939712 allocator.c:53)]: Device 0 OOM "
        "3171158016 / "
        "3145728000\nRuntimeError: CUDA error: unrecognized error code",
        "HAMi's limit of a container",
        LIMITED,
        {"needed": 3171158016, "the limit": 3145728000},
        "a larger share",
    ),
    (
        "[HAMI-core ERROR (pid:1 thread=140160828682240 allocator.c:53)]: Device 0 OOM "
        "18446744073707737660 "
        "/ 24146608128",
        "HAMi's wrong count",
        UNKNOWN,
        {"the limit": 24146608128},
        "restart the container",
    ),
    (
        (
            "[HAMI-core ERROR (pid:7 thread=140360328144640 allocator.c:115)]: cuMemoryAllocate "
            "failed res=2"
        ),
        "HAMi",
        FULL,
        {},
        "a smaller batch or model",
    ),
    (
        (
            "RuntimeError: FATAL ERROR :: MODULE:SYNHELPER workspace Allocation of size "
            "::14493510400 failed!"
        ),
        "Gaudi",
        FULL,
        {"tried": 14493510400},
        "a smaller batch",
    ),
    (
        "Refer to the documentation on how to address the out of memory issue: "
        "https://docs.ray.io/en/latest/ray-core/scheduling/ray-oom-prevention.html.",
        "Ray",
        HOST,
        {},
        "fewer tasks or actors",
    ),
    (
        "out of memory in ./Connections/ConnGrowth_d.cu at line 34",
        "a program on the GPU",
        FULL,
        {},
        "stop the other processes",
    ),
    (
        "onnxruntime\\core\\providers\\dml\\DmlExecutionProvider\\src\\ExecutionProvider.cpp(962): "
        "Exception(3) "
        "tid(5a68) 887A0005 The GPU device instance has been suspended.",
        "DirectML's device",
        UNKNOWN,
        {},
        "a smaller batch, image or model",
    ),
    (
        "systemd-oomd[702]: Killed /user.slice/app-code.scope due to memory used (65921351680) / "
        "total (67252178944) and swap used (2145480704) / total (2147479552) being more than "
        "90.00%",
        "systemd-oomd, because swap was full",
        HOST,
        {
            "used": 65921351680,
            "the machine's memory": 67252178944,
            "swap used": 2145480704,
            "all swap": 2147479552,
        },
        "use less host memory",
    ),
    (
        "failed qmaster enforced h_rt, h_cpu, or h_vmem limit because:\njob 1234.1 died through "
        "signal KILL "
        "(9)\nmaxvmem      16.021G",
        "a limit of Grid Engine",
        UNKNOWN,
        {"of address space": gib(16.021)},
        "`qacct -j JOB`",
    ),
    (
        'State:{\nDead:false,\nError:"",\nExitCode:137,\nOOMKilled:false,\n}',
        "a container that was killed below its limit",
        UNKNOWN,
        {},
        "`dmesg | grep -i kill`",
    ),
    (
        "  self.gpudata = self.allocator(self.size * self.dtype.itemsize)\nMemoryError: "
        "cuMemAlloc failed: "
        "out "
        "of memory",
        "the CUDA driver",
        FULL,
        {},
        "a smaller batch, model or input",
    ),
    (
        "RuntimeError: unable to mmap 23802932552 bytes from file <./flux1-dev.safetensors>: "
        "Cannot allocate memory (12)",
        "a mapping of a file",
        HOST,
        {"tried": 23802932552},
        "more swap",
    ),
    (
        "torch/lib/libgomp-d22c30c5.so.1: cannot allocate memory in static TLS block",
        "the static TLS block",
        OTHER_MEMORY,
        {},
        "load that library first",
    ),
    (
        "Allocator (cuda_host_bfc) ran out of memory trying to allocate 9.16GiB.  Current "
        "allocation summary follows.",
        "TensorFlow's pinned memory",
        HOST,
        {"tried": gib(9.16)},
        "copy less at once",
    ),
    (
        "Execution of replica 0 failed: RESOURCE_EXHAUSTED: Failed to load in-memory CUBIN "
        "(compiled for a "
        "different GPU?).: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        "kernel code beside XLA's pool",
        FULL,
        {},
        "XLA_PYTHON_CLIENT_MEM_FRACTION=0.6",
    ),
    ("vkAllocateMemory failed -2", "ncnn on Vulkan", FULL, {}, "a smaller tile"),
    (
        "lightgbm.basic.LightGBMError: Out of Host Memory",
        "OpenCL, on the host",
        UNKNOWN,
        {},
        "`clinfo` shows",
    ),
    (
        "MemoryError: create_buffer failed: MEM_OBJECT_ALLOCATION_FAILURE",
        "OpenCL",
        FULL,
        {},
        "smaller buffers",
    ),
    (
        "python(7,0x7) malloc: *** mach_vm_map(size=4294967296) failed (error code=3)",
        "an allocation of the program",
        HOST,
        {"tried": 4 * GIB},
        "a smaller batch",
    ),
    (
        "pyarrow.lib.ArrowMemoryError: realloc of size 2172846080 failed",
        "an allocation of the program",
        HOST,
        {"tried": 2172846080},
        "a smaller batch",
    ),
    ("java.lang.OutOfMemoryError: Java heap space", "Java's heap", HOST, {}, "a larger heap"),
    *(
        # One request of the program's own: its workers may have no part in it.
        (text, "an allocation of the program", HOST, figures, "a smaller batch, input or model")
        for text, figures in (
            (
                "[enforce fail at alloc_cpu.cpp:114] DefaultCPUAllocator: can't allocate memory: "
                "you tried to allocate 8192 bytes. Error code 12 (Cannot allocate memory)",
                {"tried": 8192},
            ),
            (
                ("$ Torch: not enough memory: you tried to allocate 24GB. Buy new RAM!"),
                {"tried": 24 * GIB},
            ),
            ("memory allocation of 4096 bytes failed", {"tried": 4096}),
            ("terminate called after throwing an instance of 'std::bad_alloc'", {}),
            ("OSError: [Errno 12] Cannot allocate memory", {}),
            ("MemoryError", {}),
            ("LLVM ERROR: out of memory", {}),
        )
    ),
    *(
        (text, "a killed process", HOST, figures, "less host memory: fewer processes")
        for text, figures in (
            ("RuntimeError: DataLoader worker (pid 41) is killed by signal: Killed.", {}),
            (
                (
                    "exitcode  : -9 (pid: 14750)\ntraceback : Signal 9 (SIGKILL) received by PID "
                    "14750"
                ),
                {},
            ),
            ("[launch.py:315:sigkill_handler] ['python'] exits with return code = -9", {}),
            ("subprocess.CalledProcessError: Command died with <Signals.SIGKILL: 9>.", {}),
            (" 31%|###    | 331/1063 [01:06<03:59,  3.06it/s]Killed\n$ ls", {}),
            ("loading\nKilled\n(base) me@box:~/work$", {}),
            ("100%|######| 300/300 [00:33<00:00, 9.26it/s]\n```\nKilled\n```\nWhat is that?", {}),
            ("Epoch 3\n\u5df2\u6740\u6b7b", {}),
            ("process rank 7 with PID 0 on node box exited on signal 9 (Killed).", {}),
            ("ProcessExitedException: process 1 terminated with signal SIGKILL", {}),
            ("Process finished with exit code 137 (interrupted by signal 9: SIGKILL)", {}),
            ("[train-n0-0] terminated with exit code (137). Reason [Error]. Message:", {}),
            ('"State": {"ExitCode": 137, "Error": ""}', {}),
            ("Command '['python3', 'train.py']' returned non-zero exit status -9.", {}),
            ("run.sh: line 3:  4711 Killed                  python train.py", {}),
        )
    ),
    ("the worker raised OutOfMemoryError", "unknown", "not known", {}, "use less at once"),
    (
        "=>> PBS: job killed: mem 38427376kb exceeded limit 33554432kb",
        "a job's memory limit",
        HOST,
        {"process": 38427376 * KIB, "the limit": 32 * GIB},
        "ask for more",
    ),
    (
        "Job exceeded a memory resource limit (vmem, pvmem, etc.). Job was aborted\n"
        "resources_used.vmem=4194304kb\nresources_used.mem=2097152kb",
        "a job's memory limit",
        HOST,
        {"of address space": 4 * GIB, "used": 2 * GIB},
        "ask for more",
    ),
    (
        (
            "Job has gone over cgroup memory limit of 2048 megabytes. Last measured usage: 2050 "
            "megabytes."
        ),
        "a job's memory limit",
        HOST,
        {"the limit": 2 * GIB, "process": 2050 * MIB},
        "ask for more",
    ),
    (
        "VkResult: ERROR_OUT_OF_HOST_MEMORY\nVkCreateFence failed with ERROR_OUT_OF_HOST_MEMORY",
        "Vulkan's driver, on the host",
        UNKNOWN,
        {},
        "`free -g` and `ulimit -n` while it runs",
    ),
    (
        'File "C:\\Program Files (x86)\\Python36-32\\lib\\site-packages\\numpy\\lib\\format.py", '
        "line 5\n"
        "MemoryError",
        "a 32-bit Python",
        HOST,
        {},
        "a 64-bit Python",
    ),
    *(
        (
            text,
            ("a notebook's session that ended"),
            HOST,
            {"tried": 40 * GIB},
            "a smaller batch or input",
        )
        for text in (
            "tcmalloc: large alloc 42949672960 bytes == 0x7f6ef822c000 @ 0x7f7a28081001\n^C",
            (
                "KernelRestarter: restarting kernel (1/5)\ntcmalloc: large alloc 42949672960 "
                "bytes == "
                "0x7f88 @"
            ),
        )
    ),
    *(
        (
            text,
            ("a large request of host memory"),
            WARNING,
            {"tried": 6 * GIB},
            "nothing, if the program goes",
        )
        for text in (
            "tcmalloc: large alloc 6442450944 bytes == 0x695ff4000 @ 0x7f6d5f840b6b",
            "cpu_allocator_impl.cc:81] Allocation of 6442450944 exceeds 10% of free system memory.",
        )
    ),
    (
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 52Mi. "
        "Container train was using 29Gi, request is 8Gi, has larger consumption of memory.",
        "a pod that Kubernetes evicted",
        HOST,
        {
            "the limit": 100 * MIB,
            "available": 52 * MIB,
            "process": 29 * GIB,
            "wanted by the setting": 8 * GIB,
        },
        "request as much memory as the program needs",
    ),
    (
        "UserWarning: This system does not have apparently enough memory to store the complete "
        "replay buffer 48.00GB > 31.25GB",
        "a replay buffer",
        HOST,
        {"needed": 48 * GIB, "available": gib(31.25)},
        "a smaller buffer_size",
    ),
    (
        "W1128 01:02:03.4 77 torch/_inductor/select_algorithm.py:99] [1/0] out of resource: "
        "shared memory, Required: 163840, Hardware limit: 101376. Reducing block sizes or "
        "`num_stages` may help.",
        "a kernel that torch.compile skipped",
        WARNING,
        {"needed": 160 * KIB, "the limit": 99 * KIB},
        "nothing, if the run goes on",
    ),
    *(
        # Where /dev/shm were full, it would be a bus error.
        (
            f"unable to mmap 4096 bytes from file <{name}>: Cannot allocate memory (12)",
            "a mapping of memory",
            HOST,
            {"tried": 4096},
            "fewer or larger shared tensors",
        )
        for name in ("/torch_7_8_9", "filename not specified")
    ),
    (
        "RuntimeError: unable to open shared memory object </torch_7_8> in read-write mode",
        "a tensor of another process",
        OTHER_MEMORY,
        {},
        'torch.multiprocessing.set_sharing_strategy("file_system")',
    ),
    *(
        # Ray names the kernel's killer as one of three causes: no text that it was.
        (text, "perhaps the cause of a dead Ray worker", UNKNOWN, {}, "`dmesg | grep -i kill`")
        for text in (
            "(raylet) A worker died or was killed while executing a task by an unexpected system "
            "error. There are some potential root causes. (1) The process is killed by SIGKILL by "
            "OOM killer due to high memory usage. (2) ray stop --force is called.",
            "ActorDiedError: The actor died unexpectedly before finishing this task.",
        )
    ),
    *(
        (
            text,
            ("perhaps the cause of a broken process pool"),
            UNKNOWN,
            {},
            "fewer processes, or less data",
        )
        for text in (
            "BrokenProcessPool: A process in the process pool was terminated abruptly while the "
            "future was running",
            "BrokenProcessPool: A process in the executor was terminated abruptly",
            "A child process terminated abruptly, the process pool is not usable anymore",
        )
    ),
    (
        "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        "perhaps the cause of a GPU library's error",
        UNKNOWN,
        {},
        "try a smaller batch, with `nvidia-smi` beside it",
    ),
    *(
        (text, "a NumPy array", HOST, figures, "smaller arrays (chunks, fewer")
        for text, figures in (
            (
                "numpy.core._exceptions.MemoryError: Unable to allocate 3.50 GiB for an array "
                "with shape (9,)",
                {"tried": gib(3.5), "shape": "(9,)"},
            ),
            (
                # NumPy's three digits end with a point; MLX's sentence ends with one too.
                "MemoryError: Unable to allocate 412. GiB for an array with shape (7000, 79, "
                "200000) and data type float32",
                {"tried": 412 * GIB, "shape": "(7000,79,200000)", "type": "float32"},
            ),
            (
                "MemoryError: Unable to allocate array with shape (26577,) and data type <U1847338",
                {"shape": "(26577,)", "type": "<u1847338"},
            ),
            (
                (
                    "MemoryError: Unable to allocate array with shape (32768, 16384) and data type "
                    "float64"
                ),
                {"tried": 4 * GIB, "shape": "(32768,16384)", "type": "float64"},
            ),
        )
    ),
    (
        "TerminatedWorkerError: A worker process managed by the executor was unexpectedly "
        "terminated. This could be caused by a segmentation fault while calling the function or "
        "by an excessive memory usage causing the Operating System to kill the worker. The exit "
        "codes of the workers are {SIGKILL(-9)}",
        "a killed worker of joblib",
        HOST,
        {},
        "fewer workers (n_jobs)",
    ),
    ("Error allocating memory ErrorOutOfDeviceMemory", "Vulkan", FULL, {}, "close other programs"),
    ("Error allocating memory\nErrorOutOfDeviceMemory", "Vulkan", FULL, {}, "close other programs"),
    ("failed to allocate KV cache", "llama.cpp's KV cache", FULL, {}, "a shorter context"),
    *(
        (text, "a compiler", HOST, {}, "fewer jobs at once")
        for text in (
            "virtual memory exhausted: \u65e0\u6cd5\u5206\u914d\u5185\u5b58",
            "c++: fatal error: Killed signal terminated program cc1plus",
            "g++: internal compiler error: Killed (program cc1plus)",
        )
    ),
    (
        "gpu_async_0 cuMemAllocAsync failed to allocate 4096 bytes: RESOURCE_EXHAUSTED: : "
        "CUDA_ERROR_OUT_OF_MEMORY: out of memory\n Reported by CUDA: Free memory/Total memory: "
        "1024/65536\n"
        "Stats: Limit:                      32768\nInUse:                      40960\n"
        "MaxInUse:                   49152",
        "TensorFlow's asynchronous allocator",
        FULL,
        {
            "tried": 4096,
            "free": 1024,
            "total": 65536,
            "allowed": 32768,
            "allocated": 40960,
            "allocated at most": 49152,
        },
        "stop the other processes",
    ),
    (
        "OutOfMemoryException: Out of Memory Error: failed to pin block of size 256.0 KiB (7.5 "
        "MiB/8.0 MiB used)",
        "DuckDB's limit",
        LIMITED,
        {"tried": 256 * KIB, "used": 15 * MIB // 2, "the limit": 8 * MIB},
        "a higher memory_limit",
    ),
    (
        (
            "earlyoom[1460]: mem avail:    56 of 15881 MiB ( 0.35%), swap free: 2555 of 4095 MiB "
            "(62.38%)"
        ),
        "a report of earlyoom",
        UNKNOWN,
        {},
        "`top` shows which processes hold",
    ),
    (
        "RuntimeError: Aborted due to the lack of CPU swap space. Please increase the swap space.",
        "vLLM's swap space",
        LIMITED,
        {},
        "a larger --swap-space",
    ),
    (
        "[w cuda_device_allocator.cc:30] Unable to alloc cuda device memory, use unify memory "
        "instead. This may cause low performance.",
        "Jittor",
        WARNING,
        {},
        "a smaller model",
    ),
    (
        'GGML_ASSERT: ggml-backend.c:460: data != NULL && "failed to allocate buffer"',
        "llama.cpp, on the host",
        HOST,
        {},
        "a smaller",
    ),
    (
        "bfc_allocator.cc:271] Ran out of memory trying to allocate 2.0KiB.  See logs for memory "
        "state.\n"
        "[[Node: zeros = Const[value=Tensor<type: float shape: [512] values: 0 0 0...>]()]]",
        "TensorFlow",
        FULL,
        {"tried": 2 * KIB, "shape": "[512]", "type": "float"},
        "a smaller batch",
    ),
    *(
        (text, "words about memory", UNKNOWN, {}, "use less at once")
        for text in (
            "tts engine: buffer pool exhausted while requesting 812 MiB for stage decoder",
            "device heap: unable to hold 3 pages",
        )
    ),
    *(
        (text, "a program's guess", UNKNOWN, {}, "use less at once")
        for text in (
            "Prediction on device was unsuccessful, probably due to a lack of memory.",
            "It is likely that you have unsufficient RAM.",
            (
                "MemoryError: The current model can't be trained on this hardware with these "
                "parameters."
            ),
        )
    ),
    (
        "Runtime error during autotuning:\nCUDA out of memory.\nIgnoring this choice.",
        "a kernel that torch.compile skipped",
        WARNING,
        {},
        "nothing, if the run goes on",
    ),
    (
        (
            "DatabaseError: out of shared memory\nHINT:  You might need to increase "
            "max_locks_per_transaction."
        ),
        "PostgreSQL's table of locks",
        OTHER_MEMORY,
        {},
        "a larger max_locks_per_transaction",
    ),
    (
        "redis.exceptions.ResponseError: OOM command not allowed when used memory > 'maxmemory'.",
        "Redis's limit",
        LIMITED,
        {},
        "a larger maxmemory",
    ),
    (
        "[parent] Data too large, data for [<http_request>] would be [2055000000/1.9gb], which is "
        "larger than the limit of [2040109465/1.8gb], real usage: [2054999000/1.9gb], new bytes "
        "reserved: [1000/1000b]",
        "Elasticsearch's limit",
        LIMITED,
        {"needed": 2055000000, "the limit": 2040109465, "used": 2054999000},
        "a larger heap",
    ),
    (
        "CircuitBreakingException: [parent] Data too large, data for [<transport_request>] would "
        "be larger than limit of [1491035750/1.3gb]",
        "Elasticsearch's limit",
        LIMITED,
        {"the limit": 1491035750},
        "a larger heap",
    ),
    (
        "Invalid context in cuCtxPopCurrent(NULL) (intern/cycles/device/cuda/util.cpp:31)\n"
        "System is out of GPU and shared host memory",
        "Blender, after another error",
        UNKNOWN,
        {},
        "look at the first error in the log",
    ),
    (
        "RuntimeError: Resource exhausted: Failed to allocate request for 30.12GiB (32341200016B) "
        "on device ordinal 0",
        "XLA or JAX",
        UNKNOWN,
        {"device": 0, "tried": 32341200016},
        "`jax.devices()` shows where it computes",
    ),
    (
        "WARNING: Job failed: exit code 137\nthere is no sign of an oom killer in syslog",
        "a process that was perhaps stopped",
        UNKNOWN,
        {},
        "`dmesg | grep -i kill` on the host, and `docker inspect`",
    ),
    (
        "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-11-01T00:00:00 DUE TO TIME LIMIT "
        "***\n"
        "Requeued job 12\nepoch 1\n/var/spool/slurmd/job12/slurm_script: line 9: 4242 Killed   "
        "python a.py",
        "a killed process",
        HOST,
        {},
        "less host memory: fewer processes",
    ),
    (
        "slurmstepd: error: *** JOB 31 ON n2 CANCELLED AT 2026-11-02T00:00:00 DUE TO TIME LIMIT "
        "***\nLoaded the checkpoint of step 70\nstep 71\n/var/spool/slurmd/job31/slurm_script: line "
        "4: 5151 Killed   python b.py",
        "a killed process",
        HOST,
        {},
        "less host memory: fewer processes",
    ),
    (
        "earlyoom: Low memory! mem avail: 412 of 4096 MiB (10.06%) <= min 11.00%, swap free: 9 of "
        "64 MiB (14.06%) <= min 15%\nearlyoom: Killing process 77 python",
        "earlyoom",
        HOST,
        {
            "available": 412 * MIB,
            "the machine's memory": 4 * GIB,
            "swap free": 9 * MIB,
            "all swap": 64 * MIB,
        },
        "use less host memory",
    ),
    (
        "earlyoom[9]: mem avail:   300 of  3000 MiB (10 %), swap avail:     7 of    70 MiB (10 %)\n"
        "low memory! at or below SIGTERM limits: mem 10 %, swap 10 %\nsending SIGTERM to process "
        '78 "python": badness 800, VmRSS 2048 MiB',
        "earlyoom",
        HOST,
        {
            "process": 2 * GIB,
            "available": 300 * MIB,
            "the machine's memory": 3000 * MIB,
            "swap free": 7 * MIB,
            "all swap": 70 * MIB,
        },
        "use less host memory",
    ),
    (
        "[1.5] Out of memory: Killed process 25 (python3) total-vm:5331224kB, anon-rss:3145145kB, "
        "file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:690     68kB oom_score_adj:0",
        "the machine's memory",
        HOST,
        {"of address space": 5331224 * KIB, "process": 3145145 * KIB},
        "use less host memory",
    ),
    (
        "MemoryError: Unable to allocate 7.91 GiB for an array with shape (1396913, 190, 4) and "
        "data type "
        "float64\n\n40GB of memory",
        "a NumPy array",
        HOST,
        {"tried": gib(7.91), "shape": "(1396913,190,4)", "type": "float64"},
        "smaller arrays",
    ),
    (
        (
            "ERROR: out of memory\nDETAIL:  Failed on request of size 134217728 in memory context "
            '"ExprContext".'
        ),
        "PostgreSQL's memory",
        HOST,
        {"tried": 128 * MIB},
        "fewer connections and queries",
    ),
    (
        (
            "{ [Error: out of memory] severity: 'ERROR', code: '53200', detail: 'Failed on request of "
            "size 16.' }"
        ),
        "PostgreSQL's memory",
        HOST,
        {"tried": 16},
        "fewer connections and queries",
    ),
    (
        "ERROR:  XX000: invalid memory alloc request size 1107200064",
        "PostgreSQL's largest request",
        LIMITED,
        {"tried": 1107200064},
        "smaller values or results",
    ),
    (
        "Code: 241. DB::Exception: Memory limit (total) exceeded: would use 118.25 GiB (attempt "
        "to allocate chunk of 0 bytes), maximum: 115.25 GiB. OvercommitTracker decision: none.",
        "ClickHouse's limit",
        LIMITED,
        {"needed": gib(118.25), "the limit": gib(115.25)},
        "for a query, max_bytes_before_external_group_by",
    ),
    (
        "Code: 241. DB::Exception: (total) memory limit exceeded: would use 2.25 GiB (attempt to "
        "allocate chunk of 4624776 bytes), current RSS 63.00 GiB, maximum: 60.00 GiB.",
        "ClickHouse's limit",
        LIMITED,
        {"tried": 4624776, "needed": gib(2.25), "process": 63 * GIB, "the limit": 60 * GIB},
        "for a query, max_bytes_before_external_group_by",
    ),
    (
        "DB::Exception: Query memory limit exceeded: would use 9.50 GiB (attempt to allocate "
        "chunk of 4.00 MiB bytes), maximum: 9.25 GiB. (MEMORY_LIMIT_EXCEEDED)",
        "ClickHouse's limit",
        LIMITED,
        {"tried": 4 * MIB, "needed": gib(9.5), "the limit": gib(9.25)},
        "for a query, max_bytes_before_external_group_by",
    ),
    (
        "OOM when allocating tensor of shape [5,5,256,512] and type float\n[[node a (defined at "
        "C:\\up_to_RTX)",
        "TensorFlow",
        FULL,
        {"tried": 5 * 5 * 256 * 512 * 4, "shape": "[5,5,256,512]", "type": "float"},
        "a smaller batch",
    ),
    (
        "OOM when allocating tensor of shape [4096] and type float",
        "TensorFlow, without its device",
        UNKNOWN,
        {"tried": 16 * KIB, "shape": "[4096]", "type": "float"},
        "a smaller batch",
    ),
    (
        "  (1) Resource exhausted: failed to allocate memory\n[[{{node mul_89}}]]",
        "TensorFlow, without its device",
        UNKNOWN,
        {},
        "a smaller batch",
    ),
    (
        "go build -o a main.go\n# example.org/api\nfatal error: runtime: out of memory\n",
        "a compiler",
        HOST,
        {},
        "fewer jobs at once",
    ),
    (
        "go build example.org/util: /go/pkg/tool/linux_amd64/compile: signal: killed",
        "a killed compiler",
        HOST,
        {},
        "fewer jobs at once",
    ),
    (
        "error: could not compile `a`\n  process didn't exit successfully: `rustc --crate-name a "
        "-C lto=fat` "
        "(signal: 9, SIGKILL: kill)",
        "a killed compiler",
        HOST,
        {},
        "fewer jobs at once",
    ),
    (
        "vkAllocateMemory failed -1000072003",
        "Vulkan's import of memory",
        OTHER_MEMORY,
        {},
        "a newer driver",
    ),
    (
        "$ ng build --configuration=docker\nKilled\nerror Command failed with exit code 137.",
        "a killed process",
        HOST,
        {},
        "less host memory",
    ),
    (
        "openmm.OpenMMException: Error creating array savedForces: CUDA_ERROR_OUT_OF_MEMORY (2)",
        "OpenMM",
        FULL,
        {},
        "fewer Contexts at once",
    ),
    (
        "Error creating array TabulatedFunction: CUDA_OUT_OF_MEMORY",
        "OpenMM",
        FULL,
        {},
        "fewer Contexts at once",
    ),
    (
        "cudaCustomAllocator out of memory\n [requestedSpace:             44135424 B]\n"
        " [largestContinuousFreeSpace: 29665280 B]\n [totalFreeSpace:             39136768 B]",
        "RELION",
        FULL,
        {"tried": 44135424, "largest free block": 29665280, "available": 39136768},
        "fewer MPI ranks and threads",
    ),
    (
        (
            "ERROR: out of memory in /opt/relion/src/acc/acc_projector_impl.h at line 74 "
            "(error-code 2)"
        ),
        "RELION",
        FULL,
        {},
        "fewer MPI ranks and threads",
    ),
    ("Allocate: No space left", "RELION, on the host", HOST, {}, "fewer MPI ranks"),
    (
        "CUDA error at /home/a/colmap/src/mvs/gpu_mat.h:167 - out of memory",
        "COLMAP",
        FULL,
        {},
        "smaller images",
    ),
    (
        "[h264_nvenc @ 0000023a] OpenEncodeSessionEx failed: out of memory (10): (no details)\n"
        "Error opening video encoder : Cannot allocate memory",
        "NVENC",
        UNKNOWN,
        {},
        "fewer encodings at once",
    ),
    (
        "nvenc : Error on nvEncOpenEncodeSessionEx: 10 (NVENC indicates that the API call failed "
        "because it was unable to allocate enough memory to perform the requested operation.)",
        "NVENC",
        UNKNOWN,
        {},
        "fewer encodings at once",
    ),
    (
        "panicked at 'wgpu error: Validation Error\n\nCaused by:\n    In Device::create_buffer\n"
        "    Not enough memory left\n",
        "wgpu",
        FULL,
        {},
        "a smaller model",
    ),
    (
        "MemoryError: Metal OOM while allocating size=4000000000",
        "tinygrad",
        UNKNOWN,
        {"tried": 4000000000},
        "a smaller batch",
    ),
    (
        "tinygrad/runtime/ops_amd.py\nMemoryError: Cannot allocate 122341986304 bytes: no "
        "memory is "
        "available.",
        "tinygrad",
        UNKNOWN,
        {"tried": 122341986304},
        "a smaller batch",
    ),
    (
        "E RKNN: failed to malloc npu memory, size: 3085697024, flags: 0x2",
        "Rockchip's NPU",
        UNKNOWN,
        {"tried": 3085697024},
        "a smaller or more strongly quantized model",
    ),
    (
        "RKNN init failed. error code: RKNN_ERR_MALLOC_FAIL",
        "Rockchip's NPU",
        UNKNOWN,
        {},
        "a smaller or more strongly quantized model",
    ),
    (
        "E RKNN: failed to convert handle(1020) to fd, ret: -1, errno: 24, errstr: Too many open "
        "files\n"
        "E RKNN: failed to malloc npu memory, size: 80, flags: 0xa",
        "files that are open, beside Rockchip's NPU",
        OTHER_MEMORY,
        {},
        "a higher limit",
    ),
    (
        "[ERROR] InnoDB: mmap(137428992 bytes) failed; errno 12\n"
        "[ERROR] InnoDB: Cannot allocate memory for the buffer pool",
        "InnoDB's buffer pool",
        HOST,
        {"tried": 137428992},
        "a smaller innodb_buffer_pool_size",
    ),
    *(
        (text, "MongoDB's limit of a stage", LIMITED, figures, "an index that gives the order")
        for text, figures in (
            (
                "MongoError: Sort exceeded memory limit of 104857600 bytes, but did not opt in to "
                "external sorting.",
                {"the limit": 104857600},
            ),
            (
                "Sort operation used more than the maximum 33554432 bytes of RAM. Add an index.",
                {"the limit": 33554432},
            ),
            (
                "Overflow sort stage buffered data usage of 33569579 bytes exceeds internal limit "
                "of 33554432 bytes",
                {"used": 33569579, "the limit": 33554432},
            ),
        )
    ),
    (
        "PHP Fatal error:  Allowed memory size of 1610612736 bytes exhausted (tried to allocate "
        "134217736 bytes) in a.php on line 84",
        "PHP's limit",
        LIMITED,
        {"the limit": 1610612736, "tried": 134217736},
        "a larger memory_limit",
    ),
    (
        "The Daemon will expire after the build after running out of JVM Metaspace.\nThe currently "
        "configured "
        "max heap space is '4 GiB' and the configured max metaspace is '1 GiB'.",
        "Gradle's daemon",
        HOST,
        {"the heap allowed": 4 * GIB, "the metaspace allowed": GIB},
        "larger values of org.gradle.jvmargs",
    ),
    (
        "<jemalloc>: Unsupported system page size\nmemory allocation of 24 bytes failed",
        "jemalloc's page size",
        OTHER_MEMORY,
        {},
        "a newer release of that package",
    ),
    (
        '  File "multiprocessing/synchronize.py", line 162, in __init__\n    '
        "SemLock.__init__(self, "
        "SEMAPHORE, 1, 1, ctx=ctx)\nOSError: [Errno 28] No space left on device",
        "/dev/shm",
        HOST,
        {},
        "a larger --shm-size",
    ),
    (
        "ResourceExhaustedError: OOM when allocating tensor of shape [3,3,512,1024] and type "
        "float\n"
        '[[Node: conv/w/Adam_1/Initializer/zeros = Const[_device="/device:GPU:0"]()]]',
        "a variable of TensorFlow",
        FULL,
        {"tried": 18 * MIB, "shape": "[3,3,512,1024]", "type": "float"},
        "stop the other processes",
    ),
    (
        "Limit:  37363712\nInUse:  6309376\nMaxInUse:  15738368\nResource exhausted: OOM when "
        "allocating "
        "tensor "
        "with shape[3,3,512,1024] and type float on /job:localhost/device:GPU:0 by allocator "
        "GPU_0_bfc",
        "TensorFlow's small pool",
        FULL,
        {
            "device": 0,
            "tried": 18 * MIB,
            "shape": "[3,3,512,1024]",
            "type": "float",
            "allowed": 37363712,
            "allocated": 6309376,
            "allocated at most": 15738368,
        },
        "stop the other processes",
    ),
    (
        "external/org_tensorflow/tensorflow/core/common_runtime/bfc_allocator.cc:479] Allocator "
        "(GPU_0_bfc) "
        "ran "
        "out of memory trying to allocate 2.00GiB (rounded to 2147483648)requested by "
        "op\nRESOURCE_EXHAUSTED: "
        "Failed to allocate request for 2.00GiB (2147483648B) on device ordinal 0",
        "XLA or JAX",
        FULL,
        {"device": 0, "tried": 2 * GIB},
        "a smaller batch, or jax.checkpoint",
    ),
    (
        "Cannot malloc 49.0002 MB GPU memory. Please shrink FLAGS_fraction_of_gpu_memory_to_use",
        "Paddle",
        FULL,
        {"tried": 51380434},
        "a smaller batch",
    ),
    (
        "legacy_allocator.cc:200] Cannot allocate 382.812500MB in GPU 0, available 177.562500MB "
        "total 11996954624 GpuMinChunkSize 256.000000B GPU memory used: 10.250000GB",
        "Paddle",
        FULL,
        {
            "device": 0,
            "tried": 401408000,
            "free": 186187776,
            "total": 11996954624,
            "used": int(10.25 * GIB),
        },
        "a smaller batch",
    ),
    (
        "Enforce failed. Expected allocating <= available, but received allocating:20998686233 > "
        "available:19587333888.\nInsufficient GPU memory to allocation.",
        "Paddle's pool",
        FULL,
        {"tried": 20998686233, "free": 19587333888},
        "stop the other processes",
    ),
    (
        (
            "radv/amdgpu: Not enough memory for command submission.\nvk::Queue::submit: "
            "ErrorDeviceLost"
        ),
        "AMD's Vulkan driver",
        FULL,
        {},
        "use less on the GPU",
    ),
    (
        "[METAL] Command buffer execution failed: Impacting Interactivity "
        "(0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity)",
        "a stopped command of Metal",
        OTHER_MEMORY,
        {},
        "less work in one command",
    ),
    (
        "aclrtHostRegister failed, ptr: 0xfffb10000000, size: 214748364800, error: 207001\n"
        "RuntimeError: register ptr failed",
        "pinned memory on Ascend",
        OTHER_MEMORY,
        {"tried": 200 * GIB},
        "pin less",
    ),
    (
        "2021-Jul-06 09:21:09  ERROR  TDRV:dmem_alloc  Failed to alloc DEVICE memory: 4194304\n"
        "2021-Jul-06 09:21:09  ERROR  NMGR:dlr_load  failed",
        "Neuron",
        FULL,
        {"tried": 4 * MIB},
        "a smaller batch",
    ),
    (
        "RuntimeError: RMM_ERROR_OUT_OF_MEMORY (4) Attempted to allocate: 4000000000 bytes.",
        "RAPIDS",
        FULL,
        {"tried": 4_000_000_000},
        "less data at once",
    ),
    (
        "cudaCreateTextureObject( & tex_obj ) error( cudaErrorMemoryAllocation): out of memory "
        "lib/kokkos/core/src/Cuda/Kokkos_CudaSpace.cpp:296",
        "Kokkos",
        FULL,
        {},
        "less work for each GPU",
    ),
    (
        (
            "##[error]The runner has received a shutdown signal.\n##[error]Process completed with "
            "exit code 137."
        ),
        "a process that was perhaps stopped",
        UNKNOWN,
        {},
        "`dmesg",
    ),
    (
        "memory allocation of 1266630535279424 bytes failed",
        "a size beyond every machine's",
        LARGER,
        {"tried": 1266630535279424},
        "look at the shapes",
    ),
    (
        (
            "Unhandled exception. System.OutOfMemoryException: Array dimensions exceeded supported "
            "range."
        ),
        "a .NET array",
        LIMITED,
        {},
        "split the data",
    ),
    (
        ("RangeError: Array buffer allocation failed"),
        "a buffer of JavaScript",
        HOST,
        {},
        "smaller buffers",
    ),
    (
        "SparkException: Not enough memory to build and broadcast the table to all worker nodes.",
        "Spark's broadcast",
        HOST,
        {},
        "spark.sql.autoBroadcastJoinThreshold=-1",
    ),
    (
        (
            "org.apache.spark.memory.SparkOutOfMemoryError: Unable to acquire 1073741824 bytes of "
            "memory, got 0"
        ),
        "Spark's memory of a task",
        HOST,
        {"tried": GIB, "available": 0},
        "more and smaller partitions",
    ),
    (
        "Size of broadcasted table far exceeds estimates and exceeds limit of "
        "spark.driver.maxResultSize=4294967296.",
        "Spark's limit of results",
        LIMITED,
        {"the limit": 4 * GIB},
        "spark.sql.autoBroadcastJoinThreshold=-1",
    ),
    *(
        (
            "TerminatedWorkerError: A worker process managed by the executor was unexpectedly "
            "terminated. This could be caused by a segmentation fault while calling the function "
            "or by an excessive memory usage causing the Operating System to kill the "
            f"worker.{codes}",
            kind,
            cause,
            {},
            remedy,
        )
        for codes, kind, cause, remedy in (
            (
                " The exit codes of the workers are {SIGSEGV(-11)}",
                "a crashed worker of joblib",
                OTHER_MEMORY,
                "n_jobs=1",
            ),
            ("", "a lost worker of joblib", UNKNOWN, "fewer workers (n_jobs)"),
        )
    ),
    (
        "Reason: Evicted\nMessage: The node was low on resource: ephemeral-storage. Container web "
        "was using "
        "34260Ki, which exceeds its request of 0.",
        "a pod evicted for its disk",
        OTHER_MEMORY,
        {},
        "fewer or smaller files",
    ),
    (
        "CudaCustomAllocator out of memory\n [requestedSpace:             3145728 B]",
        "RELION",
        FULL,
        {"tried": 3 * MIB},
        "fewer MPI ranks",
    ),
    (
        "Limit:  8716288\nInUse:  8017152\nMaxInUse:  8458496\nResource exhausted: OOM when "
        "allocating "
        "tensor "
        'of shape [1,399,532,3] and type float\n[[Node: mul = Const[_device="/device:GPU:0"]()]]',
        "TensorFlow's small pool",
        FULL,
        {
            "tried": 4 * 399 * 532 * 3,
            "shape": "[1,399,532,3]",
            "type": "float",
            "allowed": 8716288,
            "allocated": 8017152,
            "allocated at most": 8458496,
        },
        "stop the other processes",
    ),
    (
        "OOM when allocating tensor of shape [171164,200] and type float\n[[Node: "
        'training/Adam/Variable_1/initial_value = Const[_device="/device:GPU:0"]()]]',
        "a variable of TensorFlow",
        FULL,
        {"tried": 4 * 171164 * 200, "shape": "[171164,200]", "type": "float"},
        "stop the other processes",
    ),
    # What a warning asked for is not what failed.
    (
        "OOM when allocating tensor with shape[123008,500]\nAllocator (GPU_0_bfc) ran out of "
        "memory trying "
        "to "
        "allocate 84.60MiB. The caller indicates that this is not a failure, but may mean",
        "TensorFlow",
        FULL,
        {"shape": "[123008,500]"},
        "a smaller batch",
    ),
    (
        "return _posixsubprocess.fork_exec(\nOSError: [Errno 12] Cannot allocate memory",
        "a new process",
        HOST,
        {},
        "fewer DataLoader workers",
    ),
    (
        "2026-04-09-21:56:40 Memory_Allocation_Failure(EL0004): Failed to allocate memory "
        "requested by GE module.",
        "the Ascend driver",
        FULL,
        {},
        "stop the other processes",
    ),
    (
        "pyarrow.lib.ArrowMemoryError: malloc of size 128 failed",
        "a small request of the program",
        UNKNOWN,
        {"tried": 128},
        "`free -g`",
    ),
    (
        "Out of Memory Error: Failed to allocate block of 13230080 bytes (bad allocation)",
        "DuckDB, refused by the system",
        HOST,
        {"tried": 13230080},
        "SET memory_limit",
    ),
    (
        "Out of Memory Error: Failed to change memory limit to 128000000: could not free up "
        "enough memory for the new limit",
        "DuckDB's limit",
        LIMITED,
        {"the limit": 128_000_000},
        "a higher memory_limit",
    ),
    (
        (
            "used_memory:15772568\nmaxmemory:20971520\nOOM command not allowed when used memory > "
            "'maxmemory'."
        ),
        "Redis's limit",
        LIMITED,
        {"used": 15772568, "the limit": 20971520},
        "a larger maxmemory",
    ),
    (
        "Error in asMethod(object) : 'Realloc' could not re-allocate memory (562272000 bytes)",
        "R",
        HOST,
        {"tried": 562272000},
        "use less memory",
    ),
    ("'Calloc' could not allocate memory (298833518 of 8 bytes)", "R", HOST, {}, "use less memory"),
    (
        "rocm_driver.cc:606] failed to allocate 127.99TiB (140729850295296 bytes) from device: "
        "HIP_ERROR_OutOfMemory",
        "a wrong size at TensorFlow's start",
        LARGER,
        {"tried": 140729850295296},
        "the release of ROCm or CUDA",
    ),
    (
        "WARNING: CUDA memory allocation failed; attempting to free up memory...\n... running a "
        "quick GC\n"
        "Effective GPU memory usage: 99.55% (11.500 GiB/11.750 GiB)\nMemory pool usage: 8.500 GiB "
        "(10.500 "
        "GiB "
        "reserved)",
        "a warning of CUDA.jl",
        WARNING,
        {
            "used": gib(11.5),
            "total": gib(11.75),
            "allocated": gib(8.5),
            "held by the pool": gib(10.5),
        },
        "nothing",
    ),
    ("Err: hipHostRegister failed with code: 2.", "pinned memory of HIP", UNKNOWN, {}, "pin less"),
    (
        (
            "Device was lost during reload. This can happen due to insufficient memory or other "
            "GPU constraints."
        ),
        "a lost device of WebGPU",
        UNKNOWN,
        {},
        "a smaller or more strongly quantized model",
    ),
    (
        (
            "ERROR: oom: Memory cgroup out of memory: killed 1 task on n7.\nERROR: oom: "
            "memory.peak = "
            "1.5G"
        ),
        "a control group's limit",
        HOST,
        {"used": gib(1.5)},
        "a higher limit",
    ),
    (
        "device:GPU:0 RESOURCE_EXHAUSTED: failed to allocate memory",
        "TensorFlow",
        FULL,
        {},
        "a smaller batch",
    ),
    (
        (
            "[torch_memory_saver.cpp] CUresult error  result=2 file=torch_memory_saver.cpp "
            "func=cu_mem_create"
        ),
        "the CUDA driver",
        FULL,
        {},
        "a smaller batch",
    ),
    (
        "systemd[1075]: app-x.scope: systemd-oomd killed 2104 process(es) in this unit.",
        "systemd-oomd, in systemd's words",
        HOST,
        {},
        "use less host memory",
    ),
    *(
        (
            (
                f"Memory limit of {limit} exceeded with {used} used. Consider increasing the "
                "memory limit"
            ),
            "Cloud Run's limit",
            HOST,
            {"the limit": n_limit * MIB, "used": n_used * MIB},
            "a larger limit",
        )
        for limit, used, n_limit, n_used in (
            ("512 MiB", "516 MiB", 512, 516),
            ("256M", "343M", 256, 343),
        )
    ),
    (
        "heroku[w.1]: Error R14 (Memory quota exceeded)\nheroku[w.1]: Process running "
        "mem=1214M(237.2%)\n"
        "heroku[w.1]: Error R15 (Memory quota vastly exceeded)\nProcess exited with status 137",
        "Heroku's limit",
        HOST,
        {"used": 1214 * MIB},
        "fewer processes",
    ),
    (
        (
            "heroku[w.1]: Process running mem=807M(157.7%)\nheroku[w.1]: Error R14 (Memory quota "
            "exceeded)"
        ),
        "a warning of Heroku",
        WARNING,
        {"used": 807 * MIB},
        "fewer processes",
    ),
    (
        (
            "max virtual memory areas vm.max_map_count [65530] is too low, increase to at least "
            "[262144]"
        ),
        "the number of mappings",
        OTHER_MEMORY,
        {},
        "`sudo sysctl",
    ),
    (
        (
            "Exception: java.lang.OutOfMemoryError thrown from the UncaughtExceptionHandler in "
            "thread "
            '"q-22"'
        ),
        "Java, without its reason",
        HOST,
        {},
        "the first OutOfMemoryError",
    ),
    (
        "distributed.nanny - WARNING - Worker process 8999 was killed by unknown signal",
        "a lost worker of Dask",
        UNKNOWN,
        {},
        "`dmesg",
    ),
)
NOUNS = {
    "free": "free on the device",
    "total": "the whole device",
    "process": "held by the process",
}


@pytest.mark.parametrize("row", TEXTS, ids=lambda row: row[1])
def test_a_text_has_its_kind_its_cause_all_its_figures_and_the_first_remedy(row):
    text, kind, cause, figures, remedy = row
    found = explain_message(f"epoch three, loss 0.5\n{text}\nexit\n")
    assert (found.kind, found.cause, found.verdict) == (kind, cause, None)
    assert found.meaning
    assert found.next_step.startswith(remedy)
    assert found.message == OomMessage(
        device=figures.get("device"), tried_bytes=figures.get("tried")
    )
    others = {name: value for name, value in figures.items() if name not in ("device", "tried")}
    assert {figure.noun: figure.value for figure in found.figures} == {
        NOUNS.get(name, name): value for name, value in others.items()
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        # torch's own words: "It is possible that dataloader's workers are out of shared memory"; a
        # file that was cut while it is mapped ends with the same signal.
        ("DataLoader worker (pid 7) is killed by signal: Bus error.", "which is most likely full"),
        # Other processes, or cached memory in pieces, end in the same words.
        ("RuntimeError: cuda runtime error (2) : out of memory", "does not say what holds it"),
    ],
)
def test_what_a_text_does_not_prove_is_not_said_as_certain(text, words):
    assert words in explain_message(text).meaning


def test_a_memory_error_of_python_without_words_ends_a_text():
    found = explain_message(
        "merge.py in get_result(self)\n    return op.get_result()\nMemoryError: \n"
    )
    assert (found.kind, found.cause) == ("an allocation of the program", HOST)


def test_patterns_have_no_capital_letter_which_would_never_match():
    kinds = (ALLOCATOR, *MESSAGE_KINDS)
    patterns = [
        text for kind in kinds for text in (*kind.seen, *kind.needs, *kind.unless, *kind.also)
    ]
    patterns += [row[0] for row in (*WORDS, *PHASES)]
    assert [text for text in patterns if re.search(r"(?<!\\)(?<!\(\?)[A-Z]", text)] == []


def test_every_kind_of_text_is_tried():
    assert {kind.name for kind in MESSAGE_KINDS if kind is not SUMMARY} == {row[1] for row in TEXTS}


@pytest.mark.parametrize("row", TEXTS, ids=lambda row: row[1])
def test_a_text_at_the_end_of_a_long_log_is_found(row):
    """Lines that have no sign are left out: after 400 of them one of the text has to have a sign."""
    text, kind, *_ = row
    lines = "ok\n" * 400
    assert explain_message(f"{lines}{text}\nok\n").kind == kind


def test_figures_are_read_where_the_error_is_though_the_servers_name_stands_far_above():
    lines = "step 1, loss 0.5, all is well\n" * 4_000
    log = f"(VllmWorker rank=1 pid=7) ready\n{lines}NCCL error: Failed to CUDA calloc 608 bytes"
    answer = explain_message(log)
    assert (answer.kind, answer.message.tried_bytes) == ("NCCL beside vLLM", 608)


@pytest.mark.parametrize("row", sample(TEXTS, 36), ids=lambda row: row[1])
def test_a_text_in_the_middle_of_a_long_log_is_found(row):
    text, kind, *_ = row
    lines = "step 1, loss 0.5, all is well\n" * 4_000
    assert explain_message(f"{lines}{text}\n{lines}").kind == kind


def test_the_processes_that_the_kernel_killed_are_counted():
    line = "kernel: Killed process {} (node), total-vm:606096kB, anon-rss:68308kB"
    lines = [line.format(number) for number in (4711, 4712, 4711, 5000)]
    assert explain_message("\n".join(lines)).n_messages == 3
    assert explain_message(lines[0]).n_messages == 1
