"""Texts about memory that ran out: the figures of torch's allocator, and a row for each other kind.

Patterns are searched in a text without white space, so that no line break of a terminal hides a
match, and in small letters; the spaces in them are for the reader. ``<tried>`` stands for the
number of a figure, see message_figures.py, and a name that ends in ``_bytes`` for a size with its
unit, a field of OomMessage or MemorySummary. The order of the rows decides between two that begin
at the same character. Sources: the code of these projects that raises the texts, and public reports
that quote them.
"""

from dataclasses import dataclass

from snapconv.answers.oom.allocator_messages import (
    LESS,
    LOADING,
    NEXT_STEPS,
    SHAPES,
    SHARDS,
    WRONG_SIZE,
)
from snapconv.answers.oom.verdict import OomCause

_LEAVE_ROOM = (
    "leave room: a smaller batch, or torch.cuda.set_per_process_memory_fraction(0.9)"
)
_STOP_OTHERS = (
    "stop the other processes that `nvidia-smi` shows, also those of earlier runs; "
    "else a smaller batch, input or model"
)
# Words of torch and of what Python raises for it: a text without them may be of any program.
_OF_TORCH = (
    r"torch|c10::|cuda driver error: |cuda kernel errors might|runtimeerror: cuda error:|triton "
    r"error|"
    "when calling `(?:cu|hip)",
    "(?:runtime|accelerator)error: cudnn error|runtimeerror: cudnn_status",
    "caffe2",
)
# A person may quote torch's message without its first words; "you tried" is of the host's memory.
_OUT_OF_MEMORY = r"out of memory(?!: ?kill)|(?<!you)tried to allocate \d"
# The words of cudaMallocAsync, and what ComfyUI writes of it.
_ALLOCATION_ON_DEVICE = (
    r"allocation on device(?! ?\d| ?would)|this error means you ran out of memory on your "
    "gpu"
)
# Where neither the program nor its memory is known.
_LESS_OF_ANY = (
    "use less at once: a smaller batch, input, context or model; `nvidia-smi` and "
    "`free -g` while it runs show whether the GPU's memory or the host's is full, and "
    "the lines above in the log may say why"
)
# A shape with two lengths of 20,000 or more, which images seldom have.
_LONG = r"(?:[2-9]\d{4}|\d{6,12})"
_ALL_AGAINST_ALL = rf"\((?:[1-9],)?{_LONG},(?:[1-9],)?{_LONG}\)"
_NOT_OF_GPU = "(?<!gpu)(?<!cuda)(?<!vram)(?<!device)(?<!video)(?<!metal)"
_FAILURE = (
    "(?:fail|unable|can ?n[o']t|could ?n[o']t|exceed|insufficient|not "
    "enough|not sufficient|exhaust|overflow)"
)
# The shell's word, and not the end of a sentence.
_KILLED = "(?<!were)(?<!was)(?<!been)(?<!be)killed"
# Not a counter of 0, a switch, or Docker's `"OOMKilled": false`.
_OOM_KILL = (
    r"oom[-_]?kill(?!_disable|er (?:is)?(?:disabled|not)|\W{0,3}0(?!\d)|ed\W{0,4}false)"
)
# Neither the return of an episode, nor a loss or a step, is an exit code.
_EXIT_CODE = (
    r"(?:exit|status|return(?=ed|_?code|_?value))(?:(?!loss|step|epoch|iter)[a-z_ "
    r"]){0,20}(?:-zero code)?"
    r"[\"':=(]{0,3}(?:-9|137)(?![./]?\d)"
)
_LIBRARY_CALLS = (
    "(?:cublas|cudnn|cusolver|cusparse|hipblas|hipsparse)_status_not_initialized",
    r"cusolver_status_internal_error.{0,40}cusolver\w{0,4}create",
    "curand_status_initialization_failed",
    "rocblas_create_handle",
    "(?:cublas|cudnn|cusolver|cusparse|curand|hipblas|hipsparse)_status_alloc(?:ation)?_failed",
    "cufft_alloc_failed|cufft failed to allocate",
    "rocblas_status_memory_error",
    "nvjpeg_status_allocator_failure",
    "miopenstatusallocfailed",
    "cuda ran out of memory outside pytorch's allocator",
)

# Sizes of a program that no row knows, by the words beside them, near words about memory.
_ANY_SIZE = r"\d[\d,]{0,20}(?:\.\d{1,9})?(?:bytes|[kmgt]i?b)(?!it|ps|/s)"
_NEAR_MEMORY = r"(?:memory|vram|oom|cache|alloc|buffer).{0,200}?"
_ANY_FIGURES = (
    r"alloc[a-z_]{0,20} (?:memory of )?(?:size )?(?P<tried>\d[\d,]{0,20}(?:\.\d{1,9})?"
    r"(?:bytes|[kmgt]i?b))",
    rf"{_NEAR_MEMORY}(?:requir(?:es?|ed|ement)|needs?|needed|must have)[^\d.;,]{{0,24}}?"
    rf"(?P<needed>{_ANY_SIZE})",
    rf"(?P<needed>{_ANY_SIZE})[^\d.;,]{{0,16}}?(?:is |are )?(?:needed|required)",
    rf"{_NEAR_MEMORY}(?:availab(?:le|ility)|has only|only has|but only|free|remaining)"
    rf"[^\d.;,]{{0,24}}?(?P<available>{_ANY_SIZE})",
    rf"(?P<available>{_ANY_SIZE})[^\d.;,]{{0,12}}?(?:available|free|remaining)",
    rf"but(?: only| you have| you only have){{1,2}} (?P<available>{_ANY_SIZE})",
    rf"(?:needs?|requires?) [^\d.;,]{{0,20}}(?P<needed>{_ANY_SIZE})",
    rf"{_NEAR_MEMORY}(?:limit|maximum|quota|at most)[^\d.;,]{{0,24}}?(?P<limit>{_ANY_SIZE})",
    rf"(?P<limit>{_ANY_SIZE}) (?:memory)?limit",
    rf"{_NEAR_MEMORY}(?:current(?:ly)? us(?:ed|age)|in use|usage|used)[^\d.;,]{{0,16}}?"
    rf"(?P<used>{_ANY_SIZE})",
    rf"(?P<used>{_ANY_SIZE})[^\d.;,]{{0,8}}?(?:used|in use)",
    rf"{_NEAR_MEMORY}requested[^\d.;,]{{0,16}}?(?P<tried>{_ANY_SIZE})",
)


@dataclass(frozen=True, slots=True)
class MessageKind:
    """A kind of text that is not of torch's allocator.

    A text has one of the patterns ``seen``, all that it ``needs`` and no ``unless``, and may have
    the figures ``also``. ``exact`` is the next step with the text's own figures, where it has them.
    ``numbered`` finds what distinguishes messages of a kind, such as a process's number.
    ``leads``: beside a message of torch's allocator, its next step comes first. Where a text fits
    several kinds, the lowest ``level`` wins: 1 is a general row, 1.5 a call that any program may
    make, 2 a warning or a consequence, 3 a table or an unknown program, 4 mere words, 5 words that
    may be about anything.
    """

    name: str
    backend: str = "GPU"
    level: float = 0
    seen: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    means: str = ""
    next_step: str = ""
    exact: str = ""
    cause: str = OomCause.FULL
    leads: bool = False
    numbered: str = ""


_OUTSIDE_STEP = (
    "stop the other processes that `nvidia-smi` shows, also those of earlier runs; else a smaller "
    "batch, model or input (torch.cuda.set_per_process_memory_fraction(0.9) makes torch leave room)"
)
_OF_ORT = "failed to allocate memory for requested buffer of size <tried>"

# What llama.cpp logs before a buffer fails, of the device that failed where the text names it. What
# was free is that before the weights were loaded.
_GGML_DEVICE = r"(?:cuda|rocm|hip|vulkan|sycl|musa|cann|metal|mtl)\d{0,2}"
_OF_THE_FAILED = r"(?=.{0,4000}?(?:failed|unable) to allocate \1 buffer)"
_LLAMA_FIT = (
    r"projected to use <needed_vram> of device memory vs\. <before> of free device memory",
    "need to reduce device memory by <missing>",
)
_LLAMA_FIGURES = (
    *_LLAMA_FIT,
    r"(?:alloc_tensor_range|ggml\w{0,40}): failed to allocate \w{1,12} buffer of size <tried>",
    r"allocating <tried> on device <device>: \w{2,4}malloc failed",
    "failed to allocate (?:cuda|rocm|vulkan|musa|sycl)<device> buffer",
    r"failed to allocate <tried>(?= |$|\D)",
    rf"using device ({_GGML_DEVICE}) ?\(.{{1,90}}?\) ?- <before> free{_OF_THE_FAILED}",
    rf"using device {_GGML_DEVICE} ?\(.{{1,90}}?\) ?- <before> free",
    rf"({_GGML_DEVICE}) (?:model)? buffer size = <weights>{_OF_THE_FAILED}",
    rf"{_GGML_DEVICE} (?:model)? buffer size = <weights>",
    rf"({_GGML_DEVICE}) kv buffer size = <kv>{_OF_THE_FAILED}",
    # The sum of all devices: a log of several may lack that of the one that failed.
    r"kv self size = <kv>",
    rf"{_GGML_DEVICE} kv buffer size = <kv>",
    r"\(<total>, <before> free\)",
    "capacity: <total>",
    # Ollama's count before the load, where it has one GPU.
    r"memory\.available=\W{0,3}\[<available>\]",
    r"memory\.required\.full=\W{0,3}<estimated>",
    r"memory\.required\.kv=\W{0,3}<kv>",
    r"memory\.weights\.total=\W{0,3}<weights>",
)
_FIRST_ATTEMPT = (
    r"memory (?:allocation|mapping) failed with oom on device (?:<device> while trying to "
    r"(?:allocate|map) "
    r"<tried> \(free: <free>, total: <total>)?"
)
# TensorRT's count of what it manages, and of what is taken on the GPU: the last before an error.
_TENSORRT_USED = (
    (
        r"tensorrt-managed allocation.{1,120}?now: cpu \d{1,9}, gpu <engine_mib> \(mib\)"
        r"(?!.{0,12000}?tensorrt-managed)"
    ),
    (
        r"init \w{1,20}: cpu [+-]\d{1,9}, gpu [+-]\d{1,9}, "
        r"now: cpu \d{1,9}, gpu <taken_mib> \(mib\)"
        r"(?!.{0,12000}?init \w{1,20}: cpu)"
    ),
)
# Not of an earlier run, where the job was put into the queue again, or went on from what it had
# written, and was killed later.
_ENDED_BY_SLURM = (
    r"due to (?:time limit|preemption)(?!.{0,4000}?(?:requeu|restart|resum|load(?:ed|ing)"
    r".{0,40}?checkpoint|continu(?:ed?|ing) from).{0,2000}?(?:oom[-_]kill|killed|sigkill|137))"
)
_SKIPPED_KERNEL = (
    "a warning: torch.compile tries several kernels, leaves out the one that needs too "
    "much, and goes on with the others"
)
_NOT_AUTOTUNED = (
    "nothing, if the run goes on; without mode='max-autotune' torch tries no other kernels"
)
_ENDED = r"(?:error|exception): |terminate called|core dumped"
# What TensorFlow logs of its pool before an error, and XLA of its own.
_POOL_FIGURES = (
    r"(?<![a-z])limit: (?:0(?!\d)|<allowed>) in_?use: <allocated>(?: max_?in_?use: <peak>)?"
    r"(?: num_?allocs: \d{1,15} max_?alloc_?size: <largest_request>)?"
)
_TENSORFLOW_POOL = (
    "ran out of memory trying to allocate <tried>(?!.{0,60}?caller indicates)",
    _POOL_FIGURES,
)
# What distinguishes the messages of torch's allocator.
REQUEST_AND_DEVICE = (
    r"(?:gpu|npu|mlu|gcu|device) <device>(?=has|;|would|[^\d%]{0,2}$)",
    "allocate <tried_bytes>",
    "requested(?: size)?: <tried_bytes>",
)
_KINDS = (
    MessageKind(
        "torch's allocator",
        also=(
            *REQUEST_AND_DEVICE,
            # A text may be cut anywhere: no more words than tell one figure from the others.
            "<total_bytes> total cap",
            r"\((?:gpu|npu|mlu|gcu) \d{1,4}; <total_bytes>(?<=b|s)(?! re)",
            "capaci?ty of <total_bytes>",
            "device limit:? <total_bytes>",
            r"<free_bytes> free(?:[;)]|$)",
            "of which <free_bytes>",
            r"free \(according to \w{1,20}\): <free_bytes>",
            "<allocated_bytes> alre",
            "<allocated_bytes> is allocated",
            # A text that is cut.
            "of the allocated memory <allocated_bytes>(?: is|$)",
            "total capacity; <allocated_bytes>$",
            "currently allocated: <allocated_bytes>(?: requested <tried_bytes>)?",
            # People retype it: "resrved".
            r"<reserved_bytes> re\w{4,7} in total",
            "<reserved_bytes> reserved in",
            r"free; <reserved_bytes> r[a-z]{0,7}$",
            "mps allocated: <reserved_bytes>",
            "<unallocated_bytes> is reserved by",
            "<unallocated_bytes> cache",
            "with <private_pool_bytes> allocated in",
            "<allowed_bytes> allowed;",
            "max allowed: <allowed_bytes>",
            r"memory fraction\): <allowed_bytes>",
            "other allocations: <metal_bytes>",
            "this process has <process_bytes>",
            "<active_bytes> current active",
        ),
    ),
    MessageKind(
        "vLLM's sleep-mode pool",
        seen=(r"cuda error: out of memory at \S{0,200}cumem_allocator",),
        means="vLLM's pool for weights and KV cache (cumem_allocator) got no memory "
        "from the driver: they do not fit, or another process, often a trainer on the "
        "same GPU, still holds memory",
        next_step=(
            "free what other processes hold (`nvidia-smi`), or lower --gpu-memory-utilization"
        ),
    ),
    MessageKind(
        "vLLM's KV cache",
        seen=(
            "no available (?:memory for the cache|kv cache) blocks",
            "cannot auto-fit max_model_len: not enough gpu memory",
            "kv cache is needed, which is larger than the available kv cache memory",
            r"max seq len \(<length>\) is larger than the maximum number of tokens that can be "
            r"stored in kv cache \(<fits>\)",
            "larger than the maximum number of tokens that can be stored in kv cache",
            "the rest of the memory reserved for kv cache is -<lacking>",
            "available kv cache memory: -<lacking>",
            r"memory profiling results: total_gpu_memory=\S{0,160}?kv_cache_size=-<lacking>",
            r"(?:cuda|gpu) blocks: 0(?!\d)",
            # vLLM on Ascend's devices, before its start fails.
            "available memory: 0, total memory: <total>",
        ),
        also=(
            r"total_gpu_memory \(<total>\) x gpu_memory_utilization \(<utilization>\) = <wanted>",
            "non_torch_memory takes <outside>",
            "pytorch activation peak memory takes <activations>",
            "total_gpu_memory=<total>",
            "initial_memory_usage=<before_start>",
            "peak_torch_memory=<peak>",
            "memory_usage_post_profile=<used>",
            "non_torch_memory=<outside>",
            r"kv_cache_size=\S{1,20}?gpu_memory_utilization=<utilization>",
            "<needed> kv cache is needed",
            r"available kv cache memory \(<available>\)",
            r"available kv cache memory \(-<lacking>\)",
            r"max seq len \(<length>\)",
            "estimated maximum model length is <fits>",
            "available kv cache memory: <available>",
            "available kv cache memory: -<lacking>",
            "model weights take <weights>",
            "(?:model loading|loading model weights) took <weights>",
        ),
        means="after the weights and a trial run, vLLM's share of the GPU has too "
        "little left for the KV cache",
        next_step=(
            "raise --gpu-memory-utilization, or lower --max-model-len; else quantize "
            "or use more GPUs"
        ),
        exact="--max-model-len {fits} fits; for longer sequences raise "
        "--gpu-memory-utilization, quantize, or use more GPUs",
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "vLLM's KV cache on a CPU",
        backend="host",
        level=-0.5,
        seen=(
            "no available memory for the cache blocks",
            "kv cache is needed, which is larger than the available kv cache memory",
            "larger than the maximum number of tokens that can be stored in kv cache",
        ),
        needs=("vllm_cpu_|cpu backend|cpu_(?:worker|model_runner)|vllm[-_]cpu|device=cpu",),
        also=(
            "<needed> kv cache is needed",
            r"available kv cache memory \(<available>\)",
            r"max seq len \(<length>\)",
            r"stored in kv cache \(<fits>\)",
            "estimated maximum model length is <fits>",
        ),
        means="on a CPU, the KV cache has the size that VLLM_CPU_KVCACHE_SPACE sets, which is too "
        "small for one sequence of the model's length: the GPU plays no part",
        next_step="raise VLLM_CPU_KVCACHE_SPACE (GiB of the host's memory), or lower "
        "--max-model-len",
        exact="raise VLLM_CPU_KVCACHE_SPACE (GiB of the host's memory), or "
        "--max-model-len {fits}, which fits",
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "a prompt beyond vLLM's KV cache",
        seen=(
            r"input prompt \(<length>(?:tokens)?\) is too long and exceeds (?:the )?capacity of "
            r"block_manager",
            "input prompt .{0,60}? is too long and exceeds (?:the )?capacity of block_manager",
        ),
        means="the KV cache of old vLLM is smaller than this one prompt, which it leaves out",
        next_step="a shorter prompt, or a larger cache: a higher --gpu-memory-utilization, a lower "
        "--max-model-len, quantized weights or more GPUs",
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "vLLM's encoder cache",
        seen=(
            (
                r"item with (?:length <length>|\d{1,9} embedding tokens), which exceeds the "
                r"pre-allocated encoder cache size <fits>"
            ),
        ),
        means="one image, video or audio has more tokens than vLLM's cache for them, "
        "whose size is fixed at the start: no memory ran out",
        next_step="a smaller input, such as fewer pixels (--mm-processor-kwargs); or a larger "
        "cache: --max-num-batched-tokens above the item's length, or its sizes in "
        "--limit-mm-per-prompt",
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "vLLM's Mamba cache",
        seen=(
            (
                r"max_num_seqs \(<most_sequences>\) exceeds available mamba cache blocks "
                r"\(<blocks>\)"
            ),
        ),
        means="each sequence needs a block of the Mamba cache, and vLLM's share of the "
        "GPU has room for fewer blocks than --max-num-seqs",
        next_step="lower --max-num-seqs, or raise --gpu-memory-utilization",
        exact="--max-num-seqs {blocks} fits; for more sequences raise --gpu-memory-utilization",
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "preempted requests in vLLM",
        level=2,
        seen=("preempted .{0,60}?because there is not enough kv cache space",),
        means="a warning: the KV cache is full; vLLM preempts requests and computes "
        "them again later, which is slower",
        next_step="nothing, where it is rare; else raise --gpu-memory-utilization, or "
        "lower --max-num-seqs or --max-model-len",
        cause=OomCause.WARNING,
    ),
    MessageKind(
        "vLLM's swap space",
        backend="host",
        seen=(
            "(?<!possibly)too large swap space. <needed> out of the <machine> total cpu memory",
        ),
        means=(
            "--swap-space, which vLLM takes once for each GPU, asks for more than the host's memory"
        ),
        next_step="a smaller --swap-space (GiB for each GPU)",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "a warning about vLLM's swap space",
        backend="host",
        level=2,
        seen=(
            "possibly too large swap space. <needed> out of the <machine> total cpu memory",
        ),
        means="a warning: --swap-space, which vLLM takes once for each GPU, asks for a "
        "large part of the host's memory",
        next_step="nothing, if the server starts; else a smaller --swap-space (GiB for each GPU)",
        cause=OomCause.WARNING,
    ),
    MessageKind(
        "vLLM's swap space",
        backend="host",
        seen=("lack of cpu swap space",),
        means="vLLM's swap space, its pool in host memory for sequences that the KV "
        "cache has no room for, is full (this is not the system's swap)",
        next_step="a larger --swap-space (GiB for each GPU), or fewer or shorter "
        "sequences (--max-num-seqs, --max-model-len)",
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "vLLM's start",
        seen=(
            r"free memory on device .{0,12}?\(<free_gib>/<total>\).{0,20}less than desired gpu "
            "memory utilization",
            "free memory on device .{0,80}less than desired gpu memory utilization",
        ),
        also=(
            r"free memory on device (?P<backend>[a-z]{2,8}):<device>",
            r"desired gpu memory utilization \(<utilization>, <wanted>\)",
        ),
        means="vLLM's share of the GPU is larger than what other processes left free",
        next_step="free what other processes hold (`{monitor}`), or use another GPU; a lower "
        "--gpu-memory-utilization serves only where the model fits into what is free",
        exact="--gpu-memory-utilization {share} fits what is free; for more, stop the "
        "other processes that `{monitor}` shows",
        cause=OomCause.OUTSIDE,
    ),
    MessageKind(
        "vLLM's memory profiling",
        seen=(r"error in memory profiling\.",),
        also=("initial free memory <before>, current free memory <free>",),
        means="another process freed or took memory of this GPU while vLLM measured its own",
        next_step=(
            "start servers on one GPU one after another, each when the other has finished its start"
        ),
        cause=OomCause.OUTSIDE,
    ),
    MessageKind(
        "the quantization of a model",
        level=1.6,
        seen=(
            r"basequantizeconfig\(?|(?<!\w)model\.quantize\(|gptqmodifier\(|awqmodifier\(|"
            r"from llmcompressor|\w{3,6}(?:quantizer|quantize)\.py\"?,line",
        ),
        needs=(_OUT_OF_MEMORY,),
        means="a program that quantizes a model needs its weights in full, and on the GPU those of "
        "the layers that it works on",
        next_step="keep the model on the CPU and let the quantizer move a layer at a time (no "
        ".cuda(), no device_map to the GPU), or spread it (device_map, max_memory); fewer or "
        "shorter calibration examples, kept on the CPU; or take weights that are quantized already",
        leads=True,
    ),
    MessageKind(
        "vLLM's warm-up",
        seen=(
            r"out of memory occurred when warming up \w{1,20} with <requests> dummy requests",
            "out of memory occurred when warming up",
        ),
        means="vLLM's KV cache already has its share of the GPU, and the trial run "
        "with all sequences at once does not fit beside it",
        next_step="lower --max-num-seqs, or --gpu-memory-utilization",
        exact="lower --max-num-seqs below {requests}, or lower --gpu-memory-utilization",
        leads=True,
    ),
    MessageKind(
        "vLLM's warm-up",
        level=0.2,
        seen=(
            r"vllm\S{0,80}?\.py\"?,line\d{1,6},in "
            r"(?:compile_or_warm_up_model|_dummy_sampler_run|kernel_warmup)",
        ),
        needs=(_OUT_OF_MEMORY,),
        means="vLLM's KV cache already has its share of the GPU, and a trial run of "
        "the warm-up does not fit beside it",
        next_step="lower --gpu-memory-utilization, --max-num-seqs or --max-num-batched-tokens",
        leads=True,
    ),
    MessageKind(
        "the allocation of vLLM's KV cache",
        seen=(
            r"vllm\S{0,80}?\.py\"?,line\d{1,6},in (?:initialize_from_config"
            r"|initialize_kv_cache\w{0,12}|_?allocate_kv_cache\w{0,12}|_init_cache_engine)",
        ),
        needs=(_OUT_OF_MEMORY,),
        means="the weights and the trial run fitted, and it was allocating the KV cache, which "
        "takes the rest of vLLM's share of the GPU: less was free than vLLM had counted on",
        next_step="lower --gpu-memory-utilization; stop other processes on the same GPU",
        leads=True,
    ),
    MessageKind(
        "graph capture in SGLang",
        seen=(
            "capture cuda graph failed: .{0,40}out of memory",
            r"sglang\S{0,80}?\.py\"?,line\d{1,6},in "
            r"(?:init_(?:cuda|device)_graphs|capture_one_batch_size)",
            r"capture cuda graph begin\.",
        ),
        needs=(_OUT_OF_MEMORY,),
        unless=("capture cuda graph end|server is fired up",),
        also=(
            r"capture cuda graph begin\..{0,80}?avail mem=<before>",
            r"capture cuda graph begin\..{0,2000}avail_mem=<after>",
            "gpu <device> has a total",
        ),
        means=(
            "captured CUDA graphs took the memory that the static share (weights and "
            "KV cache) left free"
        ),
        next_step=(
            "capture fewer or smaller graphs (--cuda-graph-max-bs), or lower --mem-fraction-static"
        ),
        leads=True,
    ),
    MessageKind(
        "graph capture in vLLM",
        seen=(
            "capturing (?:the model for )?cuda graphs?",
            r"vllm\S{0,80}?\.py\"?,line\d{1,6},in (?:capture_model|_capture_cudagraphs"
            r"|_warm_up_model)",
            r"vllm.{0,4000}?torch[/\\]cuda[/\\]graphs\.py\"?,line\d{1,6},in capture_end",
        ),
        needs=(_OUT_OF_MEMORY,),
        unless=(r"captur\w{0,8} finished|application startup complete",),
        also=(
            "gpu <device> has a total",
            r"total_gpu_memory \(<total>\) x gpu_memory_utilization \(<utilization>\) = <wanted>",
        ),
        means=(
            "captured CUDA graphs took the memory that vLLM's share (weights and KV "
            "cache) left free"
        ),
        next_step="lower --gpu-memory-utilization, or capture fewer graphs "
        "(--max-num-seqs, or --enforce-eager for none)",
        leads=True,
    ),
    MessageKind(
        "the allocation of SGLang's KV cache",
        seen=(
            r"sglang\S{0,80}?\.py\"?,line\d{1,6},in "
            r"(?:init_memory_pool|_init_pools|_create_buffers|init_kv_buffer)",
        ),
        needs=(_OUT_OF_MEMORY,),
        means="the weights fitted, and it was allocating the KV cache, which takes the "
        "rest of SGLang's static share: less was free than SGLang had counted on",
        next_step="lower --mem-fraction-static; stop other processes on the same GPU",
        leads=True,
    ),
    MessageKind(
        "SGLang's start",
        seen=(
            r"not enough memory\. please try (?:to increase|increasing) --mem-fraction-static",
            "loaded weights leave no gpu memory for the kv cache"
            r"(?: under --mem-fraction-static=<utilization>(?!\d))?",
            (
                "max_total_(?:num_)?tokens=<length> is larger than the profiled value "
                "-<missing_tokens>"
            ),
        ),
        also=(
            r"load weight end\..{0,120}?avail mem=<free>, mem usage=<weights>",
            r"load weight end\..{0,120}?avail mem=<free>",
            r"current value: (?:self\.)?(?:server_args\.)?mem_fraction_static=<utilization>",
            "raise --mem-fraction-static above <least_share>",
        ),
        means=(
            "after the weights, SGLang's static share of the GPU has nothing left for the KV cache"
        ),
        next_step="raise --mem-fraction-static; else quantize or use more GPUs (--tp)",
        exact="raise --mem-fraction-static above {least_share}; where another process is on the "
        "same GPU (`nvidia-smi`), stop it; else quantize or use more GPUs (--tp)",
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "SGLang's KV cache",
        seen=(
            r"(?:prefill|decode) out of memory\. (?:try to lower your batch size"
            r"|this should ne\w{2,4} happen)",
        ),
        also=(
            "try to allocate <length> tokens",
            "ava(?:ila|lia)ble (?:full )?tokens: <fits>",
        ),
        means="SGLang's KV cache has no room for the tokens of the running requests",
        next_step="lower --max-running-requests, or raise --mem-fraction-static",
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "retracted requests in SGLang",
        level=2,
        seen=(
            (
                r"kv cache pool is full\. retract requests|decode out of memory happened[.,] "
                r"#retracted_reqs"
            ),
        ),
        means="a warning: the KV cache is full; SGLang retracts requests and computes "
        "them again later, which is slower",
        next_step="nothing, where it is rare; else --schedule-conservativeness 1.3, a "
        "lower --max-running-requests, or a higher --mem-fraction-static",
        cause=OomCause.WARNING,
    ),
    MessageKind(
        "SGLang's request slots",
        seen=("alloc_req_slots runs out of memory",),
        also=(r"available_size\(\)=<free_slots>, num_reqs=<wanted_slots>",),
        means="more requests were to run at once than SGLang has slots for: the GPU is not full",
        next_step="lower --max-running-requests",
        cause=OomCause.OTHER_MEMORY,
    ),
    MessageKind(
        "text-generation-inference",
        seen=(
            "not enough memory to handle <length> (?:prefill|total) tokens",
            "not enough memory to handle `max_total_tokens=<length>",
            "unable to warmup model.{0,120}?out of memory",
            "method warmup encountered an error.{0,8000}?out of memory",
        ),
        also=("with <prefill> prefill tokens",),
        means="the trial run with as many tokens at once as the server allows does not "
        "fit beside the weights",
        next_step="lower --max-batch-prefill-tokens (and --max-batch-total-tokens), "
        "quantize, or use more GPUs",
        exact="lower --max-batch-prefill-tokens (or --max-batch-total-tokens) below "
        "{length}, quantize, or use more GPUs",
        leads=True,
    ),
    MessageKind(
        "TensorRT-LLM",
        seen=(
            "executor creation failed due to insufficient gpu memory",
            r"\[tensorrt-llm\]\S{0,120}?cuda runtime error in \S{1,120}?: out of memory",
        ),
        also=(
            *_TENSORRT_USED,
            r"could not be created: (?P<part>[\w ]{1,30}?)total gpu memory",
            r"total gpu memory \(gib\): <total_gib>",
            r"free gpu memory before component creation attempt \(gib\): <free_gib>",
            r"creation \(gib\): model: <before_model>/<after_model>",
            r"sampler: [\d.]{1,9}/<after_sampler>",
            r"initial kv cache[^:]{0,60}: [\d.]{1,9}/<after_first_cache>",
            r"drafter: [\d.]{1,9}/<after_drafter>",
            r"additional executor resources[^:]{0,60}: [\d.]{1,9}/<after_resources>",
        ),
        means="a part of the executor did not fit beside those that were created before",
        next_step="lower free_gpu_memory_fraction of the KV cache "
        "(kv_cache_free_gpu_mem_fraction in Triton), max_num_tokens or max_batch_size",
    ),
    MessageKind(
        "TensorRT-LLM's KV cache",
        seen=(
            "maxtokensinpagedkvcache must be large enough to process at least 1 sequence",
            "the amount of kv cache memory is insufficient to run this model",
        ),
        means="the share of the free memory that TensorRT-LLM takes for the KV cache, or the "
        "number of its tokens that was set, has no room for one sequence of the engine's "
        "largest length",
        next_step="a larger kv_cache_free_gpu_mem_fraction (free_gpu_memory_fraction) or "
        "max_tokens_in_paged_kv_cache; else an engine with a smaller max_seq_len, or more GPUs",
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "LMDeploy's KV cache",
        seen=(
            "no enough free memory blocks",
            "no enough blocks\\. assertion fail",
            "cache out of memory, no request can be admitted",
        ),
        means="the KV cache of LMDeploy has too few free blocks for a request: the GPU itself is "
        "not full",
        next_step="a higher cache_max_entry_count (--cache-max-entry-count), a shorter prompt or "
        "session (--session-len), or fewer requests at once (--max-batch-size)",
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "FastDeploy's KV cache",
        seen=("total number of blocks cannot be less than zero",),
        means="after the weights and a trial step, nothing of FastDeploy's share of the GPU is "
        "left for its KV cache",
        next_step="raise --gpu-memory-utilization where other processes leave room (`nvidia-smi`), "
        "or lower --max-num-batched-tokens and --max-model-len; else a quantized model or more "
        "GPUs (--tensor-parallel-size)",
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "LMDeploy's shorter sessions",
        level=2,
        seen=(
            "no enough blocks for `?session_len`? \\(<length>\\), `?session_len`? truncated to "
            "<fits>",
            "`?session_len`? truncated to <fits> due to limited kv cache memory",
        ),
        means="a warning: the KV cache of LMDeploy has no room for one session of the length that "
        "was set, and its sessions become as long as the cache allows",
        next_step="nothing, where that length is enough; else a higher cache_max_entry_count "
        "(--cache-max-entry-count), --quant-policy 8 for a smaller cache, or more GPUs (--tp)",
        cause=OomCause.WARNING,
    ),
    MessageKind(
        "LMDeploy's start",
        seen=("no enough gpu memory for (?:runtime|kv cache|state cache)",),
        means=(
            "after the weights, too little of the GPU is left for LMDeploy's steps and its KV cache"
        ),
        next_step="a quantized model or more GPUs (--tp), or a smaller max_prefill_token_num or "
        "max_batch_size; stop the other processes that `nvidia-smi` shows",
    ),
    MessageKind(
        "weights in LMDeploy",
        seen=("create_shared_weights|in _create_weight|in process_weight",),
        needs=(r"\[tm\]\[\w{4,8}\] cuda runtime error: out of memory",),
        means="TurboMind, LMDeploy's engine, got no memory for the weights",
        next_step=(
            "a quantized model or more GPUs (--tp); stop the other processes that "
            "`nvidia-smi` shows"
        ),
    ),
    MessageKind(
        "LMDeploy",
        seen=(r"\[tm\]\[\w{4,8}\] cuda runtime error: out of memory",),
        means="TurboMind, LMDeploy's engine, got no memory for its weights, its KV cache or a step",
        next_step="lower cache_max_entry_count (--cache-max-entry-count) where the KV cache or a "
        "step did not fit; while weights are loaded, a quantized model or more GPUs (--tp)",
    ),
    MessageKind(
        "TensorRT's limit of the workspace",
        seen=(
            (
                r"could not find any implementation for node .{0,400}?due to insufficient "
                r"workspace"
            ),
        ),
        also=(r"allocating (?P<tried>\d{1,20})-byte buffer",),
        means=(
            "no tactic of a layer fits into the workspace that TensorRT may use, or "
            "into what is free"
        ),
        next_step="a larger limit (config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, …); "
        "trt_max_workspace_size in ONNX Runtime), smaller shapes, or a GPU with more memory",
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "an engine of TensorRT",
        seen=("could not deserialize|deserialization failed|deserializecudaengine",),
        needs=("out ?of ?memory",),
        also=(r"requested amount of gpu memory \(<tried>",),
        means=(
            "TensorRT got no memory for the weights or the activations of an engine, "
            "as it was loaded"
        ),
        next_step="stop the other processes that `nvidia-smi` shows, load fewer "
        "engines at once, or build this one for smaller shapes",
    ),
    MessageKind(
        "a build of TensorRT-LLM",
        seen=(
            (
                r"error code 2: outofmemory .{0,2000}?engine building failed, please check the "
                r"error log"
            ),
        ),
        also=(r"requested amount of gpu memory \(<tried>",),
        means="TensorRT got no memory while TensorRT-LLM built an engine: the weights of the model "
        "that is read may stand on the GPU beside the engine's, and what other processes hold",
        next_step="fewer weights for each GPU (a larger --tp_size of convert_checkpoint.py, or "
        "weights of 8 or 4 bits), or the model's weights on the CPU while the engine is "
        "built; stop the other processes that `nvidia-smi` shows; a smaller "
        "max_batch_size or max_input_len",
    ),
    MessageKind(
        "an execution context of TensorRT",
        level=0.5,
        seen=("failed to create trt context, maybe not enough cuda memory",),
        also=("try reduce current trt concurrent <contexts>",),
        means="TensorRT made no execution context: most likely the GPU's memory did not suffice "
        "for the activations of one more, as the program guesses",
        next_step="fewer contexts at once (trt_concurrent in CosyVoice), or stop the other "
        "processes that `nvidia-smi` shows",
    ),
    MessageKind(
        "TensorRT",
        seen=(
            "error code 2: outofmemory",
            r"error code 1: cuda runtime \(out of memory\)",
            (
                r"(?:user allocator error|cuda error 2) allocating "
                r"(?:(?P<tried>[1-9]\d{0,19})|0)-byte buffer"
            ),
            r"cuda error in \S{0,80}allocate: 2(?!\d)",
            r"outofmemory error in \S{0,120}computecosts",
            "out of memory error during getbesttactic",
            r"requested amount of memory \(<tried>\) could not be allocated\. there may",
        ),
        unless=(
            "could not deserialize|deserialization failed|deserializecudaengine",
            "due to insufficient workspace",
            # An error that lets a tactic be skipped stands before these words: what follows the
            # last is real.
            "skipping tactic(?!.{0,8000}?(?:skipping tactic|could not find any "
            "implementation|engine could not|engine build|failed to "
            "build|build_serialized_network)|.{200,60000}?error code 2: outofmemory)",
        ),
        also=(
            r"requested (?:size was|amount of (?:gpu )?memory \()<tried>",
            r"insufficient memory on requested size of (?P<tried>\d{7,20})",
            *_TENSORRT_USED,
        ),
        means=(
            "TensorRT got no memory for an engine's weights, its activations or the "
            "workspace of a tactic"
        ),
        next_step="a smaller workspace (config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, "
        "…)) while an engine is built; smaller shapes, or fewer engines and contexts, while it "
        "runs; or free what other processes hold (`nvidia-smi`)",
    ),
    MessageKind(
        "a skipped tactic of TensorRT",
        level=2,
        seen=(
            r"tactic\w{0,3} device request: <tried> available: <available>",
            r"requested amount of gpu memory \(<tried>\) could not be allocated",
            r"skipping tactic .{0,40}insufficient memory on requested size of (?P<tried>\d{7,20})",
            # TensorRT before 10 writes MiB, without the unit.
            r"skipping tactic .{0,40}insufficient memory on requested size of "
            r"(?P<tried_mib>\d{1,6})(?!\d)",
            "skipping tactic .{0,40}insufficient memory on requested size",
        ),
        means=(
            "a warning: TensorRT leaves out a tactic whose workspace does not fit, and "
            "goes on with others"
        ),
        next_step="nothing, if the build succeeds; else a smaller workspace "
        "(config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, …))",
        cause=OomCause.WARNING,
    ),
    MessageKind(
        "FlashInfer's workspace",
        seen=(
            r"(?:buffer overflow when allocating|failed to allocate) memory for \w{1,60} with "
            r"size <tried> and alignment \d{1,6}",
            r"out of workspace memory in alignedallo\w{1,8}",
        ),
        also=("but only <available>",),
        means="FlashInfer's own workspace buffer is too small for this batch: the GPU is not full",
        next_step="a larger workspace: VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE in vLLM, "
        "SGLANG_FLASHINFER_WORKSPACE_SIZE in SGLang, both in bytes",
        exact="a workspace of more than {tried}: VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE "
        "in vLLM, SGLANG_FLASHINFER_WORKSPACE_SIZE in SGLang, both in bytes",
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "a warning of DeepSpeed",
        level=2,
        seen=("<flushes> pytorch allocator cache flushes since last step",),
        means="a warning: the GPU is so nearly full that torch emptied its cache in the step to "
        "serve a request, which is slow; a slightly larger step fails",
        next_step="a smaller micro batch or shorter sequences, or smaller ZeRO buckets "
        "(reduce_bucket_size, stage3_max_live_parameters); get_accelerator().empty_cache() in "
        "the loop makes all ranks flush at the same time",
        cause=OomCause.WARNING,
    ),
    MessageKind(
        "DeepSpeed's shards",
        seen=(
            r"before (?:creating fp(?:16|32) partitions|initializing optimizer states) ?:? "
            r"\d{0,4}ma[\d.]{1,9}gb(?!.{0,8000}?(?:before|after) (?:creating fp|initializing opt))",
        ),
        needs=(_OUT_OF_MEMORY,),
        means="DeepSpeed was putting the shards of the model's states on the device",
        next_step=SHARDS,
        leads=True,
    ),
    MessageKind(
        "the labels of YOLOX",
        level=2,
        seen=(
            "oom runtimeerror is raised due to the huge memory cost during label assignment",
        ),
        means="a warning: the GPU had no room for the comparison of all boxes that assigns labels; "
        "YOLOX, or a program made from it, goes on with this batch on the CPU, which is slow",
        next_step="nothing, where it is rare; else a smaller batch or smaller images",
        cause=OomCause.WARNING,
    ),
    MessageKind(
        "accelerate's batch size",
        seen=("no executable batch size found, reached zero",),
        means="every batch size down to 1 ran out of memory: "
        "find_executable_batch_size halves it and hides each message",
        next_step="run once with batch size 1 and without it: the message then says what is full",
    ),
    MessageKind(
        "ESMFold",
        seen=(
            r"failed \(cuda out of memory\) on sequence .{1,200}?of length <residues>",
            r"failed \(cuda out of memory\) to predict batch of size <sequences>",
        ),
        means="ESMFold ran out of GPU memory and skipped this sequence or batch; its need grows "
        "with the square of the sequence length, and the text does not say what else held memory",
        next_step="--chunk-size 64 (or 32) for a long sequence, a lower --max-tokens-per-batch for "
        "a batch; else --cpu-offload; `nvidia-smi` shows what other processes hold",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "a model that was dispatched to the CPU",
        seen=(
            "some modules are dispatched on the cpu or the disk",
            r"(?:can't|cannot) train a model that has been loaded in 8-bit (?:precision )?with "
            "cpu or disk offload",
            "`device_map` had weights offloaded to the disk",
        ),
        means="the weights do not fit on the GPUs, so that device_map put a part of "
        "them on the CPU or the disk, which this quantization does not allow",
        next_step="free what other processes or models hold on the GPU (`nvidia-smi`), use a "
        "smaller model, or llm_int8_enable_fp32_cpu_offload=True with a device_map of your own",
    ),
    MessageKind(
        "ExLlama",
        seen=(
            (
                r"insufficient (?:vram (?:in split )?for model and cache|space (?:on|in) \w{1,20} "
                r"for)"
            ),
        ),
        means="the weights and the cache do not fit into the memory that the GPUs have free",
        next_step="a shorter cache (max_seq_len) or a quantized one, or a smaller model",
    ),
    MessageKind(
        "the pages of ExLlama's cache",
        seen=(r"job requires <pages> pages \(only <free_pages> available\)",),
        also=(r"total cache allocated is <all_pages> \* \d{1,5} = <fits>",),
        means="the prompt with the tokens that may be generated is longer than ExLlamaV3's cache: "
        "the GPU is not full",
        next_step="a smaller max_tokens or a shorter prompt; or a larger cache (cache_size in "
        "tabbyAPI, with max_seq_len), a quantized one (cache_mode) where the GPU has no room",
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "FAISS",
        seen=(
            "standardgpuresources: alloc fail .{0,40}?dev <device> space .{0,80}?size <tried>",
            r"failed to cudamalloc <tried> on device <device>",
            r"faiss.{0,400}?failed to cudamalloc <tried>",
        ),
        means="the index, or FAISS's temporary memory (by default up to 1.5 GiB), does "
        "not fit into what is free on the GPU",
        next_step="a smaller index (float16, PQ), or shard it over GPUs; less "
        "temporary memory (StandardGpuResources.setTempMemory())",
    ),
    MessageKind(
        "FAISS's start",
        seen=(
            r"faiss.{0,200}?initializefordevice(?!.{0,300}cudahostalloc).{0,200}?out of memory",
        ),
        means="the GPU was full when FAISS started on it",
        next_step="stop the other processes that `nvidia-smi` shows; "
        "torch.cuda.empty_cache() before, where torch shares the GPU",
    ),
    MessageKind(
        "NCCL beside vLLM",
        seen=(
            r"vllm[/\\][\w/\\]{1,80}\.py|vllmworker|\((?:enginecore|worker_[dtpe]p)",
            "vllm.{0,2000}?cuda failure",
        ),
        needs=(
            "nccl",
            "failed to cuda (?:host )?[cm]alloc|cuda failure (?:2 )?'out of memory'",
        ),
        unless=(r"trl[/\\]trainer|verl[/\\]|openrlhf",),
        also=("failed to cuda (?:host )?[cm]alloc(?: async)? <tried>",),
        means="NCCL allocates its buffers outside torch's allocator, and vLLM's share "
        "of the GPU, or another process, had left too little; if another error stands "
        "before it in the log, that one is likely the cause",
        next_step=(
            "lower --gpu-memory-utilization; stop the other processes that `nvidia-smi` shows"
        ),
    ),
    MessageKind(
        "NCCL",
        seen=(
            "failed to cuda (?:host )?[cm]alloc(?: async)? <tried>",
            "nccl warn cuda failure (?:2 )?'out of memory'",
            "cuda failure (?:2 )?'out of memory'",
        ),
        also=("failed to cuda (?:host )?[cm]alloc(?: async)? <tried>",),
        means="NCCL allocates its buffers outside torch's allocator when a "
        "communicator first works, and the GPU was full",
        next_step=f"{_LEAVE_ROOM}; or start NCCL early, by a barrier before the model is built",
    ),
    MessageKind(
        "torch's allocator, without its figures",
        seen=(
            "nvml_success == .{0,120}?internal assert failed at .{0,200}?cudacachingallocator",
        ),
        means="CUDA out of memory: torch requested the figures of its message from "
        "NVML, and failed at that (MIG slices, Jetson, WSL, containers without NVML)",
        next_step="a smaller batch or smaller inputs, as for any CUDA out of memory; "
        "free what other processes hold (`nvidia-smi`, on Jetson `tegrastats`)",
    ),
    MessageKind(
        "torch's allocator, without its figures",
        level=-1,
        seen=(
            "nvml_success == .{0,120}?internal assert failed at .{0,200}?cudacachingallocator",
        ),
        needs=("jetson|jetpack|tegra|l4t|orin|xavier",),
        means="CUDA out of memory: torch requested the figures of its message from "
        "NVML, which a Jetson does not have; the CPU and the GPU share its memory",
        next_step="free the memory that other programs and models hold, which "
        "`tegrastats` shows; else a smaller or quantized model, or a smaller batch",
    ),
    MessageKind(
        "Jetson's memory",
        seen=(
            r"nvmapmem\w{1,40}: .{0,24}?error (?:12|0)(?!\d)",
            r"cudaallocmapped\(\) failed to allocate",
        ),
        means="the memory that the CPU and the GPU of a Jetson share ran out",
        next_step="close other programs, use a smaller model or batch, or add swap; "
        "`tegrastats` shows the memory",
    ),
    MessageKind(
        "a GPU library of a program",
        level=1,
        seen=_LIBRARY_CALLS,
        unless=_OF_TORCH,
        means="most often a library (cuBLAS, cuDNN, cuFFT, …) got no memory for its handle or its "
        "workspace: the program, or another, had left nearly nothing; else an earlier error",
        next_step=_STOP_OTHERS,
    ),
    MessageKind(
        "a GPU library's handle",
        level=1,
        seen=(
            "(?:cublas|cudnn|cusolver|cusparse|hipblas|hipsparse)_status_not_initialized",
            r"cusolver_status_internal_error.{0,40}cusolver\w{0,4}create",
            "curand_status_initialization_failed",
            "rocblas_create_handle",
        ),
        means="most often memory ran out as the library made its handle, outside "
        "torch's allocator; else an earlier error, such as an index out of range",
        next_step=f"{_LEAVE_ROOM}; if the GPU is not full, rerun with CUDA_LAUNCH_BLOCKING=1",
    ),
    MessageKind(
        "a GPU library",
        level=1,
        seen=_LIBRARY_CALLS,
        means="a library (cuBLAS, cuDNN, …) allocates its workspace outside torch's "
        "allocator, and torch had left nearly nothing; rarely it is an earlier error, "
        "such as an index out of range",
        next_step=f"{_LEAVE_ROOM}; if the GPU is not full, rerun with CUDA_LAUNCH_BLOCKING=1",
    ),
    MessageKind(
        "no algorithm of cuDNN",
        seen=(
            "unable to find a valid cudnn algorithm",
            "unable to find an engine to execute this computation",
            "no algorithm worked!",
            "failed to get convolution algorithm",
            "failed to determine best cudnn convolution algorithm",
            "dnn library (?:initialization failed|is not found)",
        ),
        also=("memory usage: <free> free, <total> total",),
        means="most often the workspace of no algorithm fits into what is free on the "
        "GPU; else the cuDNN that is installed does not fit the GPU or this program",
        next_step="a smaller batch or input, or free what other processes hold (`nvidia-smi`); if "
        "the GPU is not full, reinstall the cuDNN that your torch, TensorFlow or JAX asks for",
    ),
    MessageKind(
        "WSL's driver",
        seen=(r"dxgkio_make_resident: ioctl failed: -12",),
        means="Windows could not keep more memory of the GPU for WSL, which may use "
        "less than nvidia-smi shows as free",
        next_step="less memory for the program (a smaller batch; --gpu-memory-utilization in "
        "vLLM), and close programs of Windows that use the GPU",
    ),
    MessageKind(
        "pinned memory",
        backend="host",
        seen=(
            r"(?:\.pin_memory\(|in _?pin_memory|pin memory "
            "thread|cudahostalloc|cudahostregister).{0,400}?cuda error: out of memory",
            r"cuda error: out of memory.{0,120}?cachinghostallocator\.",
            r"(?:cuda runtime err(?:or)? ?:?\(2\)|thcudacheck fail).{0,200}?hostallocator",
        ),
        means="no host memory could be pinned: the machine's memory, not the GPU's, or "
        "the limit of locked memory",
        next_step="pin_memory=False, or a smaller batch; `ulimit -l` and `free -g` show the limits",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "pinned memory of a library",
        backend="host",
        seen=(
            "could not allocate pinned host memory of size: <tried>",
            "failed to alloc <tried> on host: cuda_error_(?:out_of_memory|operating_system)",
            "failed to cudahostalloc <tried>",
            r"cudahostalloc failed, ret\[2\]",
            "cumemhostalloc failed",
            r"physx \w{1,20}: failed to allocate pinned memory",
        ),
        means="the driver pinned no more memory of the host, whatever the GPU has "
        "free; under WSL the limit is low",
        next_step="`free -g` and `ulimit -l` show what is short: free memory of the "
        "host, or raise the limit; a smaller batch, and fewer elements that are "
        "prefetched; under WSL more memory= in .wslconfig",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "a copy to the GPU in TensorFlow",
        seen=("dst tensor is not initialized",),
        means="most often the GPU had no memory left for a tensor that TensorFlow "
        "copied to it: this program or another process has filled it",
        next_step="a smaller batch or model, or data that stays on the CPU (tf.data); "
        "stop the other processes that `nvidia-smi` shows; set_memory_growth(gpu, "
        "True) where another program shares the GPU",
    ),
    MessageKind(
        "TensorFlow's CPU memory",
        backend="host",
        seen=(
            "oom when allocating tensor with shape<shape> and type <type> on "
            r"\S{0,80}cpu:\d{1,3} by allocator",
            "oom when allocating tensor with shape<shape>.{0,120}by allocator (?:mkl)?_?cpu",
            # Older releases name the device of the operation alone.
            r"oom when allocating tensor with shape<shape>\[\[(?:\{\{)?node(?:(?!\[\[).){0,300}?"
            r"_device=\"\S{0,80}?cpu:\d{1,3}\"",
        ),
        means="the machine's memory ran out, not the GPU's",
        next_step="a smaller batch, or fewer elements in tf.data's prefetch and shuffle buffers",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "TensorFlow, without its device",
        backend="device",
        seen=(
            "oom when allocating tensor (?:with|of) shape<shape>(?: and type <type>)?",
            "resource_?exhausted: failed to allocate memory",
            "resourceexhaustederror.{0,400}?failed to allocate memory",
        ),
        unless=("gpu|cpu:|dml:|xpu:|cuda|nvidia|[gr]tx",),
        also=_TENSORFLOW_POOL,
        means="TensorFlow's own allocator found no memory: the text does not say "
        "whether of the GPU or of the host",
        next_step=(
            "a smaller batch; `nvidia-smi` and `free -g` show which memory fills while it runs"
        ),
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "TensorFlow's pinned memory",
        backend="host",
        seen=(
            (
                r"allocator \(?(?:cuda_|gpu_|xla_gpu_)host_bfc\)? ?ran out of memory trying to "
                r"allocate <tried>"
            ),
            r"oom when allocating tensor with shape<shape> and type <type> on \S{0,80}? by "
            r"allocator "
            "(?:cuda_|gpu_|xla_gpu_)host_bfc",
        ),
        means="TensorFlow got no pinned host memory, which it needs to copy tensors to "
        "the GPU; the GPU's own memory did not run out",
        next_step="copy less at once (a smaller batch; large constants and variables in parts); "
        "TF_GPU_HOST_MEM_LIMIT_IN_MB sets TensorFlow's own limit; `free -g` shows the host's "
        "memory while it runs",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "TensorFlow's small pool",
        seen=(
            "oom when allocating tensor (?:with|of) shape<shape> and type <type>"
            r"(?: on \S{0,80}?gpu:<device> by)?",
            r"allocator \(?gpu_\d{1,2}_bfc\)? ran out of memory trying to allocate <tried> "
            r"?(?:\(rounded to <rounded>\))?(?!.{0,12}?(?:the caller indicates|with "
            r"freed_by_count))",
        ),
        needs=(r"limit: \d{1,9}inuse.{0,4000}?gpu",),
        also=(*_TENSORFLOW_POOL,),
        means="TensorFlow's own pool on the GPU is very small: it found little free "
        "memory when it started, because other programs had it (on a Jetson, also "
        "those that run on the CPU), or a limit was set",
        next_step="stop the other processes that `nvidia-smi` shows (on a Jetson, "
        "close other programs, the desktop too) before TensorFlow starts; else a "
        "larger memory_limit or per_process_gpu_memory_fraction, where one is set",
    ),
    MessageKind(
        "a variable of TensorFlow",
        seen=(
            "oom when allocating tensor (?:with|of) shape<shape>(?: and type <type>)?"
            r"(?:on \S{0,80}?:<device> by)?.{0,300}?/(?:initializer/|initial_value)",
        ),
        needs=("gpu",),
        also=(*_TENSORFLOW_POOL,),
        means="TensorFlow's own allocator found no memory for a variable, a weight or "
        "what the optimizer keeps for one, as it was made: the batch plays no part",
        next_step="stop the other processes that `nvidia-smi` shows; else a smaller model, or an "
        "optimizer that keeps less (Adam keeps two more of each weight, SGD none)",
    ),
    MessageKind(
        "TensorFlow",
        seen=(
            "oom when allocating tensor with shape<shape> and type <type>(?: on "
            r"\S{0,80}?:<device> by)?",
            "oom when allocating tensor (?:with|of) shape<shape>(?: and type <type>)?",
            # Up to TensorFlow 0.6.
            r"oom when allocating tensor with shape(?P<shape>(?:dim ?\{size:\d{1,12}\}){1,9})",
            "resource_?exhausted: failed to allocate memory",
            r"allocator \(?\S{0,30}?\)? ?ran out of memory trying to allocate <tried> "
            r"?(?:\(rounded to <rounded>\))?(?!.{0,12}?(?:the caller indicates|with "
            "freed_by_count))",
            "resourceexhaustederror.{0,400}?failed to allocate memory",
            r"ran out of memory trying to allocate <tried>\(rounded",
        ),
        # Paths of jaxlib.
        unless=(
            (
                r"external/(?:org_tensorflow|xla|tsl)/\S{0,80}?bfc_allocator|failed to allocate "
                r"request for"
            ),
        ),
        also=(
            *_TENSORFLOW_POOL,
            "tensor<type: <type> shape: <shape>",
            r"shapedim.{0,400}?\[t=dt_<type>.{0,400}?gpu:<device>",
        ),
        means="TensorFlow's own allocator found no memory",
        next_step=(
            "a smaller batch; set_memory_growth(gpu, True) where another program shares the GPU"
        ),
    ),
    MessageKind(
        "a library's handle in TensorFlow",
        seen=(
            r"(?:failed to create|could not create) cu(?:blas|dnn|solver|sparse)\w{0,3} handle",
        ),
        also=("memory usage: <free> free, <total> total",),
        means="most often a GPU library found no memory for its handle, because "
        "TensorFlow takes almost all of a GPU at its start or another process holds "
        "it; rarely the library's version does not match the driver",
        next_step="tf.config.experimental.set_memory_growth(gpu, True) (allow_growth in TensorFlow "
        "1), so that TensorFlow leaves room; stop the other processes that `nvidia-smi` shows",
    ),
    MessageKind(
        "a warning of TensorFlow",
        level=2,
        seen=(
            "ran out of memory trying to allocate <tried>.{0,60}?the caller indicates "
            "that this is not a failure",
        ),
        means="a warning: TensorFlow goes on with a slower algorithm that needs less memory",
        next_step="nothing, unless an error follows; a smaller batch makes it faster",
        cause=OomCause.WARNING,
    ),
    MessageKind(
        "the figures of TensorFlow's pool",
        backend="device",
        level=2,
        seen=(_POOL_FIGURES,),
        needs=("bfc_allocator|chunks? of size|numallocs",),
        also=_TENSORFLOW_POOL,
        means="TensorFlow or XLA logs these figures of its own allocator when a request fails; the "
        "error itself is not in the text",
        next_step="a smaller batch; where other programs use the GPU too (`nvidia-smi`), "
        "stop them, or raise the limit where one is set (memory_limit, "
        "per_process_gpu_memory_fraction, XLA_PYTHON_CLIENT_MEM_FRACTION)",
    ),
    MessageKind(
        "a wrong size at TensorFlow's start",
        seen=(r"failed to allocate \d{2,5}(?:\.\d{1,2})?tib? \(<tried>\) from device",),
        means="TensorFlow or JAX requested more than any GPU has: it read the size of "
        "the GPU's memory wrongly, most often because its build does not fit the "
        "driver or the release of ROCm or CUDA",
        next_step="the release of ROCm or CUDA, and the driver, that this TensorFlow was built "
        "for; else a limit of its own (memory_limit in tf.config.LogicalDeviceConfiguration)",
        cause=OomCause.TOO_LARGE,
    ),
    MessageKind(
        "TensorFlow's start",
        seen=(
            # The first request after the line of the device.
            r"total ?memory: <total> free ?memory: <free>(?:(?!failed to "
            r"allocate).){0,900}?failed to "
            r"allocate [\d.]{1,9}\w{1,3} \(<tried>\) from device: .{0,40}?cuda_error_out_of_memory",
            r"failed to allocate [\d.]{1,9}\w{1,3} \(<tried>\) from device: "
            ".{0,40}?cuda_error_out_of_memory",
        ),
        unless=("failed to allocate request for",),
        means="TensorFlow or JAX requested its pool from the driver, or a larger one, "
        "and the GPU had less left, most often because other processes hold memory: it "
        "then takes a smaller pool, or stops",
        next_step="stop the other processes that `{monitor}` shows, or set_memory_growth(gpu, "
        "True) in TensorFlow, XLA_PYTHON_CLIENT_MEM_FRACTION in JAX",
    ),
    MessageKind(
        "TensorFlow's start",
        backend="HIP",
        seen=(
            r"failed to allocate [\d.]{1,9}\w{1,3} \(<tried>\) from device: hip_?error",
            r"failed to allocate (?P<tried>[\d.]{1,9}[kmgt]) from device: hip_?error",
        ),
        also=("total ?memory: <total> free ?memory: <free>",),
        means="TensorFlow requested its pool from the driver, or a larger one, and the "
        "GPU had less left, most often because other processes hold memory: it then "
        "takes a smaller pool, or stops",
        next_step=(
            "stop the other processes that `{monitor}` shows, or set_memory_growth(gpu, True)"
        ),
    ),
    MessageKind(
        "a TPU's memory in pieces",
        backend="TPU",
        seen=(
            r"attempting to reserve (?P<tried>[\d.]{1,12}[kmgt]?) at the bottom of memory\. that "
            r"was not "
            r"possible\. there are (?P<pieces>[\d.]{1,12}[kmgtb]?) free, [\d.]{1,12}[kmgtb]? "
            r"reserved, and "
            r"(?!(?P=pieces)reservable)(?P<available>[\d.]{1,12}[kmgtb]?) reservable",
        ),
        also=(
            r"hbm capacity (?P<total>[\d.]{1,12}[kmgt]?)",
            r"currently allocated: (?P<allocated>[\d.]{1,12}[kmgt]?)",
            r"program requirement: (?P<needed>[\d.]{1,12}[kmgt]?)",
        ),
        means="a program needs its memory in one piece, and the free memory (HBM) is "
        "in several: the largest that can be reserved is smaller",
        next_step="a smaller batch per core, jax.checkpoint (remat), or fewer arrays "
        "kept between steps; or shard the model over more cores",
        cause=OomCause.FRAGMENTED,
    ),
    MessageKind(
        "a padded array on a TPU",
        backend="TPU",
        seen=(
            r"(?:ran out of memory in memory space hbm|attempting to (?:allocate|reserve)|total "
            r"hbm usage >=)"
            r".{0,1500}?largest program allocations in hbm: ?1\. size: "
            r"?(?P<array>[\d.]{1,12}[kmgt]?b?)"
            r"(?:(?!2\. size).){0,500}?unpadded size: ?(?P<unpadded>[\d.]{1,12}[kmgt]?b?) extra "
            r"memory due "
            r"to padding: ?(?P<padding>[\d.]{1,12}[kmgt]?b?)\((?:[2-9]|\d\d{1,3})\.\d{1,2}x "
            r"expansion",
            r"(?:ran out of memory in memory space hbm|attempting to (?:allocate|reserve)|total "
            r"hbm usage >=)"
            r".{0,1500}?\([0-4]?\d(?:\.\d)?% utilization: unpadded "
            r"\((?P<unpadded>[\d.]{1,12}[kmgt]?b?)\) "
            r"padded \((?P<padded>[\d.]{1,12}[kmgt]?b?)\)",
            r"(?<![\d.])[0-4]?\d(?:\.\d)?% utilization: unpadded "
            r"\((?P<unpadded>[\d.]{1,12}[kmgt]?b?)\) "
            r"padded \((?P<padded>[\d.]{1,12}[kmgt]?b?)\)",
        ),
        also=(
            r"used (?P<needed>[\d.]{1,12}[kmgt]?) of (?P<total>[\d.]{1,12}[kmgt]?) hbm",
            r"total hbm usage >= (?P<needed>[\d.]{1,12}[kmgt])",
            r"exceeded hbm capacity by (?P<missing>[\d.]{1,12}[kmgt]?)",
            r"attempting to (?:allocate|reserve) (?P<tried>[\d.]{1,12}[kmgt]?)(?: at the bottom "
            r"of memory)?"
            r"\. that was not possible\. there are (?P<free>[\d.]{1,12}[kmgtb]?) free",
        ),
        means="the program needs more than the TPU's memory (HBM), and half or more of "
        "its largest array, or of all its arrays, is padding: a TPU pads the last two "
        "dimensions of an array to multiples of 8 and 128 (of 32-bit numbers)",
        next_step="give that array a last dimension of 128 or more (reshape or transpose it, merge "
        "small dimensions); else a smaller batch per core, or shard the model over more cores",
    ),
    MessageKind(
        "XLA on a TPU",
        backend="TPU",
        seen=(
            r"ran out of memory in memory space hbm\. used "
            r"(?P<needed>\d{1,9}(?:\.\d{1,9})?[kmgt]?) of "
            r"(?P<total>\d{1,9}(?:\.\d{1,9})?[kmgt]?) hbm",
            r"attempting to reserve (?P<tried>\d{1,9}(?:\.\d{1,9})?[kmgt]?)(?: at the bottom of "
            r"memory)?\. that was not possible\. there are "
            r"(?P<free>\d{1,9}(?:\.\d{1,9})?[kmgtb]?) free",
            r"total hbm usage >= (?P<needed>[\d.]{1,12}[kmgt])",
        ),
        also=(
            r"exceeded hbm capacity by (?P<missing>\d{1,9}(?:\.\d{1,9})?[kmgt]?)",
            r"total hbm usage >= (?P<in_all>[\d.]{1,12}[kmgt]):? reserved (?P<runtime>[\d.]{1,12}"
            r"[kmgtb]?) program (?P<program>[\d.]{1,12}[kmgtb]?) arguments "
            r"(?P<arguments>[\d.]{1,12}[kmgtb]?)",
            r"hbm capacity (?P<total>[\d.]{1,12}[kmgt]?)",
            r"currently allocated: (?P<allocated>[\d.]{1,12}[kmgt]?)",
            r"program requirement: (?P<needed>[\d.]{1,12}[kmgt]?)",
            r"largest program allocations in hbm: ?1\. size: ?(?P<array>[\d.]{1,12}[kmgt]?b?)",
            r"largest program allocations in hbm: ?1\. size: (?:(?!2\. size).){0,900}?shape: ?"
            r"(?P<shape>\w{1,12}\[[\d,]{0,60}\])",
        ),
        means="the program needs more than the TPU's memory (HBM)",
        next_step=(
            "a smaller batch per core, jax.checkpoint (remat), or shard the model over more cores"
        ),
    ),
    MessageKind(
        "XLA on a TPU",
        backend="TPU",
        seen=(
            r"attempting to allocate (?P<tried>\d{1,9}(?:\.\d{1,9})?[kmgt]?)\. that was not "
            r"possible\. there are (?P<free>\d{1,9}(?:\.\d{1,9})?[kmgtb]?) free",
        ),
        means="this array or program does not fit beside what is in the TPU's memory (HBM) already",
        next_step="shard the model over more cores, or one of fewer bytes (bfloat16); else a "
        "smaller batch per core, or jax.checkpoint (remat)",
    ),
    MessageKind(
        "a kernel on a TPU",
        backend="TPU",
        seen=("ran out of memory in memory space (?:vmem|smem)",),
        means="a kernel needs more of a TPU core's own memory than it has: this is not the HBM",
        next_step="a smaller block size of the kernel",
        cause=OomCause.OTHER_MEMORY,
    ),
    MessageKind(
        "a compiled program of XLA",
        seen=(
            (
                r"resource_?exhausted: \S{0,40}?out of memory (?:while trying to "
                r"allocate|allocating) "
                r"<tried>"
            ),
        ),
        needs=("bufferassignment stats|total allocation: <needed>",),
        also=(
            "total allocation: <needed>",
            "parameter allocation: <parameters>",
            "constant allocation: <constants>",
            "maybe_live_out allocation: <outputs>",
            "preallocated temp allocation: <temporary>",
            "total fragmentation: <gaps>",
            "temp fragmentation: <gaps>",
        ),
        means="XLA's own allocator found no memory for a program that it had compiled: "
        "JAX's pool is 75 % of a GPU by default",
        next_step="compare what it needs with the GPU: if that is nearly all, a "
        "smaller batch, or jax.checkpoint (remat); if far less, stop what else holds "
        "the memory (`nvidia-smi`; arrays of earlier steps)",
    ),
    MessageKind(
        "TensorFlow's asynchronous allocator",
        seen=("cumemallocasync failed to allocate <tried>",),
        also=("free memory/total memory: <free>/<total>", _POOL_FIGURES),
        means=(
            "the GPU had less memory left than TensorFlow requested; this process and "
            "others hold the rest"
        ),
        next_step="stop the other processes that `nvidia-smi` shows; else a smaller "
        "batch or model, or run on the CPU (CUDA_VISIBLE_DEVICES=-1)",
    ),
    MessageKind(
        "Jittor",
        seen=("unable to alloc cuda device memory, use unify memory instead",),
        means="a warning: the GPU is full, and Jittor uses host memory instead, which is slow",
        next_step="a smaller model or batch, or half precision; stop the other "
        "processes that `nvidia-smi` shows",
        cause=OomCause.WARNING,
    ),
    MessageKind(
        "a program of XLA larger than the GPU",
        seen=(
            r"byte size of input/output arguments \((?P<needed>\d{7,17})\) exceeds the base limit "
            r"\((?P<limit>\d{7,17})\)",
        ),
        needs=("out of memory|resource_exhausted",),
        also=("ran out of memory trying to allocate <tried>",),
        means=(
            "the inputs and outputs of a compiled program are larger than the GPU, whatever is free"
        ),
        next_step="smaller inputs and outputs: a smaller batch, the work in pieces, or "
        "results that are summed up inside the compiled function instead of all kept "
        "(fewer samples, thinning)",
        cause=OomCause.TOO_LARGE,
    ),
    MessageKind(
        "a small request of XLA",
        backend="device",
        level=1,
        seen=(
            r"(?:resource_?exhausted: )?out of memory (?:while trying to allocate|allocating) "
            r"(?P<tried>\d{1,4})bytes",
        ),
        means="XLA got no memory even for so little: all of it was in use before, by "
        "this program or by others, or the allocator failed for another reason, such "
        "as a build that does not fit the machine",
        next_step="`jax.devices()` and `nvidia-smi` (`free -g` on the CPU) before the program "
        "runs: if the memory is full, stop what holds it; else another release of jaxlib",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "XLA or JAX",
        backend="device",
        level=1,
        # jaxlib 0.10 writes this where it computes on the CPU (measured); plugins of GPUs may, too.
        seen=(
            r"resource_exhausted: \S{0,40}?out of memory allocating <tried>",
            (
                r"failed to allocate request for \S{1,12}\(<tried>\) on device ordinal "
                r"(?P<device>0)(?!\d)"
            ),
        ),
        unless=("cuda|gpu|rocm|tpu|hbm|nvidia|[gr]tx|tesla",),
        means=(
            "XLA got no memory for an array: of the machine, where it computes on the "
            "CPU, else of the GPU"
        ),
        next_step="`jax.devices()` shows where it computes: smaller arrays or a "
        "smaller batch, or more memory for the job where that is the CPU",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "one array of XLA or JAX",
        backend="device",
        level=0.9,
        seen=(
            r"out of memory (?:while trying to allocate|allocating) (?P<tried>\d{12,20}bytes)",
        ),
        means="one array of more than 100 GB, which is more than most devices have in all",
        next_step="look at the shapes: all against all (a kernel matrix, distances, attention) "
        "asks for as much; take fewer rows, an approximation, or compute it in parts",
        cause=OomCause.TOO_LARGE,
    ),
    MessageKind(
        "XLA or JAX",
        level=1,
        seen=(
            r"resource_exhausted: \S{0,40}?out of memory (?:while trying to "
            "allocate|allocating) <tried>",
            "resource exhausted: out of memory while trying to allocate <tried>",
            "failed to allocate <tried> for new constant",
            "out of memory while trying to allocate <tried>",
            r"failed to allocate request for \S{1,12}\(<tried>\) on device ordinal <device>",
            # The words of gRPC: Google's services have them for a quota.
            r"resource_exhausted: (?:(?!quota)\S){0,40}?(?:out of memory|allocat(?!\S{0,40}quota))",
            r"external/(?:org_tensorflow|xla|tsl)/\S{0,80}?bfc_allocator\.cc:\d{1,4}\] allocator "
            r"\(gpu_<device>_bfc\) ran out of memory trying to allocate <tried>(?!.{0,60}?caller "
            r"indicates)",
        ),
        also=(
            "total allocation: <needed>",
            "parameter allocation: <parameters>",
            "constant allocation: <constants>",
            "maybe_live_out allocation: <outputs>",
            "preallocated temp allocation: <temporary>",
            "total fragmentation: <gaps>",
            "temp fragmentation: <gaps>",
        ),
        means="XLA's own allocator found no memory: JAX's pool is 75 % of a GPU by default",
        next_step="a smaller batch, or jax.checkpoint (remat); "
        "XLA_PYTHON_CLIENT_PREALLOCATE=false where another program shares the GPU",
    ),
    MessageKind(
        "ONNX Runtime's limit",
        seen=(
            "available memory of <available> is smaller than requested bytes of <tried>",
        ),
        means="the request is more than gpu_mem_limit leaves",
        next_step="raise gpu_mem_limit of the CUDA provider, or a smaller batch",
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "Triton's pool of GPU memory",
        seen=("failed to allocate cuda memory with byte size <tried> on gpu <device>",),
        means="a warning: Triton's pool for passing tensors (64 MiB on each GPU by "
        "default) is full, and Triton uses host memory instead, which is slower",
        next_step="a larger pool: tritonserver "
        "--cuda-memory-pool-byte-size=0:268435456 (the GPU's number and the bytes)",
        cause=OomCause.WARNING,
    ),
    MessageKind(
        "Triton without pinned memory",
        backend="host",
        level=2,
        seen=(
            "unable to allocate pinned system memory, pinned memory pool will not be available",
            "failed to allocate pinned system memory: "
            "(?:no pinned memory pool|cuda driver version)",
        ),
        means="a warning: the driver gave Triton no pinned memory of the host, and Triton goes on "
        "without. The words after it say why: often the container has no GPU or an old driver, or "
        "a virtual GPU does not support it; only `out of memory` there would be a lack of memory",
        next_step="nothing, if the models load and run; else `nvidia-smi` in the container shows "
        "whether it has the GPU (docker run --gpus all) and which driver",
        cause=OomCause.WARNING,
    ),
    MessageKind(
        "Triton's pool of pinned memory",
        backend="host",
        seen=("failed to allocate pinned system memory, falling back",),
        also=("failed to allocate <tried> of pinned",),
        means="a warning: Triton's pool of pinned memory for passing tensors (256 MiB by default) "
        "is full, and Triton uses memory that is not pinned, which is slower",
        next_step="a larger pool: tritonserver --pinned-memory-pool-byte-size=1073741824 (bytes)",
        cause=OomCause.WARNING,
    ),
    MessageKind(
        "a wrong size in ONNX Runtime",
        level=-1,
        seen=(_OF_ORT,),
        needs=(r"requested buffer of size \d{14,16}(?!\d)",),
        means="a node of ONNX Runtime requested more than any device has: its size was "
        "computed wrongly, because an input has a shape that the model does not "
        "expect, or because threads share one session",
        next_step="one session for each thread; check the shapes of the inputs",
        cause=OomCause.TOO_LARGE,
    ),
    MessageKind(
        "a session of ONNX Runtime",
        seen=(
            "exception during initialization: .{0,400}?failed to allocate memory for "
            "requested buffer of size <tried>",
        ),
        means="ONNX Runtime got no memory for the weights of the model, as it made the "
        "session: of the GPU, where the session runs there, else of the machine",
        next_step="a smaller or quantized model, or fewer sessions on this GPU (fewer "
        "instances in Triton); stop the other processes that `nvidia-smi` shows",
    ),
    MessageKind(
        "cuBLAS or cuDNN in ONNX Runtime or CNTK",
        seen=(
            r"cu(?:blas|dnn) failure \d{1,3}: "
            r"cu(?:blas|dnn)_status_(?:alloc_failed|not_initialized) ; "
            "gpu=<device>",
        ),
        means="most often cuBLAS or cuDNN got no GPU memory, because the arena of ONNX "
        "Runtime or CNTK, or another process, holds it",
        next_step="a smaller model, batch or input, or fewer sessions and threads on "
        "this GPU; stop the other processes that `nvidia-smi` shows",
    ),
    MessageKind(
        "CNTK",
        seen=(
            (
                r"cuda failure 2: out of memory ; "
                r"gpu=<device>.{0,300}?(?:asmultipleof|allocatedelemtype|cntk)"
            ),
        ),
        means="CNTK got no memory from the driver",
        next_step="a smaller minibatch or input; stop the other processes that `nvidia-smi` shows",
    ),
    MessageKind(
        "ONNX Runtime on the CPU",
        backend="host",
        seen=(_OF_ORT,),
        # The layout of its kernels for CPUs.
        needs=("nchwc",),
        means="ONNX Runtime's arena got no memory of the machine for a node that runs "
        "on the CPU, or a limit of the process, the job or the container was reached",
        next_step="a smaller image or batch, or fewer requests at once; enable_cpu_mem_arena=False "
        "in SessionOptions keeps less between runs; `free -g` while it runs",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "ONNX Runtime, without its device",
        backend="device",
        seen=(_OF_ORT, "failed to allocate memory for requested buffer"),
        unless=("cuda|gpu|tensorrt|dml|directml|nvidia|rocm|migraphx|[gr]tx|tesla",),
        means=(
            "ONNX Runtime's arena got no memory: the text does not say whether of the "
            "GPU or of the host"
        ),
        next_step="a smaller batch or input, or fewer threads and sessions at once; "
        "`nvidia-smi` and `free -g` show which memory fills while it runs",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "ONNX Runtime",
        seen=(_OF_ORT, "failed to allocate memory for requested buffer"),
        means="ONNX Runtime's arena got no memory: of the GPU, where the node runs "
        "there, else of the machine",
        next_step=(
            "a smaller batch or input; arena_extend_strategy=kSameAsRequested keeps the arena small"
        ),
    ),
    MessageKind(
        "ONNX Runtime's call of CUDA",
        seen=("cuda failure 2: out of memory ; gpu=<device>",),
        unless=(_OF_ORT,),
        means="a call of ONNX Runtime to CUDA got no memory of the GPU: for a tensor, "
        "a stream, or a library such as cuDNN",
        next_step="fewer sessions and threads on the GPU at once, or a smaller batch or input; "
        "stop the other processes that `nvidia-smi` shows; gpu_mem_limit and "
        "arena_extend_strategy=kSameAsRequested keep ONNX Runtime's arena small",
    ),
    MessageKind(
        "ND4J",
        backend="host",
        seen=(r"can't allocate \[host\] memory: (?P<tried>\d{1,20})",),
        means="ND4J, on which DL4J stands, got no memory of the host outside Java's "
        "heap: the machine's memory, the limit of such memory, or what CUDA can pin is "
        "used up; or an earlier error has left CUDA unusable",
        next_step="a higher limit (-Dorg.bytedeco.javacpp.maxbytes=8G, and maxphysicalbytes above "
        "it), where `free -g` shows room; else fewer threads and models at once, or a smaller "
        "batch. Look for an earlier error of CUDA in the log",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "ND4J, on the GPU",
        seen=(r"can't allocate \[device\] memory: (?P<tried>\d{1,20})",),
        means="ND4J, on which DL4J stands, got no memory of the GPU",
        next_step=(
            "a smaller batch, model or input; stop the other processes that `nvidia-smi` shows"
        ),
    ),
    MessageKind(
        "DirectML",
        seen=(
            r"could not allocate tensor with <tried>\. there is not enough gpu video memory",
            "8007000e .{0,20}not enough memory resources",
            "dml allocator out of memory",
        ),
        means="the GPU's memory, or the share of it that Windows allows, ran out",
        next_step="a smaller batch or model; close other programs that use the GPU",
    ),
    MessageKind(
        "HAMi's wrong count",
        seen=(r"device \d{1,3} oom 1844674407\d{10} ?/ ?(?P<limit>\d{7,20})(?!\d)",),
        means="HAMi, which shares a GPU among containers, counted the memory in use "
        "wrongly, as a negative number: the GPU may have had enough",
        next_step=(
            "restart the container, and update HAMi; CUDA_DISABLE_CONTROL=true turns its limit off"
        ),
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "HAMi's limit of a container",
        seen=(r"device \d{1,3} oom (?P<needed>\d{7,15}) ?/ ?(?P<limit>\d{7,15})(?!\d)",),
        means="HAMi, which shares a GPU among containers, refused the request: with it "
        "the container would hold more than its share, whatever the GPU has free",
        next_step=(
            "a larger share (nvidia.com/gpumem in the pod's limits), or a smaller batch or model"
        ),
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "HAMi",
        seen=(r"cumemoryallocate failed res=2(?!\d)",),
        means="the driver had no memory for a container under HAMi, which shares a GPU among "
        "containers: others may hold it if their shares add up to more than the GPU",
        next_step=(
            "a smaller batch or model; stop the other containers on the GPU "
            "(`nvidia-smi` on the node)"
        ),
    ),
    MessageKind(
        "CuPy's limit",
        seen=(
            (
                r"out of memory allocating <tried> \(allocated so far: <pool>, limit set to: "
                r"<allowed>"
            ),
        ),
        means="CuPy's pool has a limit, and what it holds plus this request is more; freed blocks "
        "stay in the pool and count. If the sum is below the limit, the GPU was full",
        next_step="cupy.get_default_memory_pool().free_all_blocks() before large arrays, or a "
        "higher limit (set_limit(), CUPY_GPU_MEMORY_LIMIT); else smaller arrays",
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "CuPy",
        seen=(
            r"out of memory allocating <tried> \(allocated so far: <pool>",
            r"out of memory to allocate <tried> \(total <pool_and_request>\)",
        ),
        means="CuPy's pool got no memory from the driver: the request is larger than "
        "what the GPU has, or CuPy's arrays or torch's cache on the same GPU hold it",
        next_step="smaller arrays, or cupy.get_default_memory_pool().free_all_blocks() "
        "first; torch.cuda.empty_cache() where torch shares the GPU",
    ),
    MessageKind(
        "Theano",
        seen=(
            r"error allocating <tried> of device memory \([^()]{1,60}\)\. driver report <free> "
            r"free and "
            "<total> total",
            r"error allocating <tried> of device memory",
        ),
        means="Theano got no GPU memory for one more array",
        next_step="a smaller batch (in validation too) or a smaller model; stop the "
        "other processes that `nvidia-smi` shows",
    ),
    MessageKind(
        "Kokkos",
        seen=(
            r"memory space failed to allocate <tried>",
            r"rawmemoryallocationfailure: allocation of size <tried> failed\.",
            (
                r"error\( ?(?:cudaerrormemoryallocation|hiperroroutofmemory)\): out of memory "
                r"\S{0,200}?kokkos"
            ),
        ),
        needs=("cudamalloc|cudaerrormemoryallocation|hipmalloc|hiperroroutofmemory",),
        means="a program built on Kokkos, such as LAMMPS, got no GPU memory for an array",
        next_step="less work for each GPU (fewer atoms or cells, more GPUs or nodes), or fewer MPI "
        "ranks on each GPU; stop the other processes that `nvidia-smi` shows",
    ),
    MessageKind(
        "OptiX",
        seen=(
            r"optix_error_(?:device_|host_)?out_of_memory",
            r"optix\S{0,400}?returned \(2\): out of "
            r"memory",
        ),
        means="OptiX got no GPU memory for the scene, its acceleration structures or a context",
        next_step="a smaller scene: smaller textures, fewer instances; stop the other "
        "processes that `nvidia-smi` shows, or use another GPU",
    ),
    MessageKind(
        "OpenMM",
        seen=(
            r"error (?:creating|uploading|downloading|resizing) array \w{1,60}: "
            r"cuda_(?:error_)?out_of_memory",
            r"openmm\S{0,200}?cuda_(?:error_)?out_of_memory",
        ),
        means="OpenMM got no GPU memory for an array",
        next_step="fewer Contexts at once (replicas, states), a smaller system, or a "
        "coarser PME grid; stop the other processes that `nvidia-smi` shows",
    ),
    MessageKind(
        "RELION",
        seen=(
            r"custom_?allocator out of memory(?:\[requestedspace: <tried>)?",
            r"out of memory in \S{0,160}?(?:relion|acc_|cuda_)\S{0,80}?\(error-code 2\)",
        ),
        also=("largestcontinuousfreespace: <largest>", "totalfreespace: <available>"),
        means=(
            "RELION's pool on the GPU had no room for one more array; particles that "
            "align badly need more"
        ),
        next_step="fewer MPI ranks and threads (--j) on each GPU, fewer classes, a smaller box or "
        "more binning; stop the other processes that `nvidia-smi` shows",
    ),
    MessageKind(
        "RELION, on the host",
        backend="host",
        seen=("(?<!f)(?<!to )allocate: ?no space left(?!on|in)",),
        means=(
            "RELION got no memory of the machine for an array, or a limit of the "
            "process was reached"
        ),
        next_step="fewer MPI ranks on a machine, a smaller box or more binning, or "
        "more memory; `free -g` while it runs",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "COLMAP",
        seen=(r"mvs[/\\]\w{1,30}\.(?:h|cu|cuh):\d{1,5} ?- ?out of memory",),
        means="COLMAP's dense stereo got no GPU memory for the images and depth maps of one view",
        next_step="smaller images (--PatchMatchStereo.max_image_size 2000); stop the "
        "other processes that `nvidia-smi` shows",
    ),
    MessageKind(
        "NVENC",
        seen=(
            "openencodesession(?:ex)? failed: out of memory",
            r"openencodesessionex\S{0,60}?: ?10 ?\(",
            "nv_enc_err_out_of_memory",
            (
                "create(?:bitstream|input)buffer failed: out of "
                "memory|initializeencoder failed: out of memory"
            ),
        ),
        means="NVENC, the GPU's video encoder, opened no session or buffer: drivers of GeForce "
        "cards allow a few sessions at once, whatever memory is free; else GPU memory is full",
        next_step="fewer encodings at once, also those of other programs; fewer "
        "surfaces (-surfaces 8 in FFmpeg) or smaller pictures; `nvidia-smi` shows "
        "whether GPU memory is full",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "wgpu",
        seen=(
            r"wgpu.{0,600}?not enough memory left",
            r"(?:wgpu.{0,600}?)?allocationerror\(outofmemory\(device\)\)",
        ),
        means="wgpu, through which the program uses the GPU, got no memory for a buffer or a "
        "texture: the GPU is full, or one buffer is larger than its driver allows",
        next_step="a smaller model, batch or image; close other programs that use the GPU",
    ),
    MessageKind(
        "tinygrad",
        backend="device",
        seen=(
            "memoryerror: (?:cannot allocate|failed to allocate|metal oom while "
            "allocating) (?:size=)?<tried>",
            "memoryerror: metal oom",
        ),
        needs=("tinygrad|metal oom|no memory is available",),
        means=(
            "tinygrad got no memory of the device that it computes on: the GPU, where that is one"
        ),
        next_step="a smaller batch, context or model, or weights in fewer bits; stop "
        "the other programs that use the device",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "files that are open, beside Rockchip's NPU",
        backend="NPU",
        level=-1,
        seen=("failed to (?:convert|allocate) handle.{0,60}?too many open files",),
        means="a limit of open files: each buffer of Rockchip's NPU needs one",
        next_step="a higher limit (`ulimit -n 65535`) before the program starts",
        cause=OomCause.OTHER_MEMORY,
    ),
    MessageKind(
        "Rockchip's NPU",
        backend="NPU",
        seen=(
            r"failed to malloc npu memory ?!?, size: (?P<tried>\d{1,15})",
            "rknn_err_malloc_fail",
        ),
        means="the driver of Rockchip's NPU got no memory for the model: the board's "
        "memory is used up, or the range that the NPU can address (4 GiB; a small "
        "reserved part where its IOMMU is off)",
        next_step="a smaller or more strongly quantized model, or a shorter context; in rkllm, "
        "base_domain_id = 1 for one of several models; `dmesg | grep -i npu` shows whether the "
        "IOMMU is off; a newer NPU driver",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "LAMMPS",
        seen=("insufficient memory on accelerator",),
        means="LAMMPS's GPU package got no GPU memory for its atoms and neighbor lists",
        next_step="fewer atoms for each GPU (more GPUs or nodes), a shorter cutoff, or fewer MPI "
        "ranks on each GPU; stop the other processes that `nvidia-smi` shows",
    ),
    MessageKind(
        "Darknet",
        seen=(
            r"cuda error(?: prev)?: out of memory.{0,400}?(?:darknet|subdivisions)",
            r"darknet.{0,4000}?cuda error(?: prev)?: out of memory",
            r"try to set subdivisions=\d{1,3} in your cfg",
        ),
        also=("need memory: <needed>, available: <available>",),
        means="Darknet got no GPU memory for the network",
        next_step="larger subdivisions= in the .cfg file (fewer images at once), or a "
        "smaller width= and height=; stop the other processes that `nvidia-smi` shows",
    ),
    MessageKind(
        "Caffe",
        seen=(
            r"(?:syncedmem|cudnn_conv_layer|math_functions|im2col"
            r"|layer\w{0,20})\.c\w{1,2}:\d{1,5}\]? ?check "
            r"failed: error==cudasuccess\(2vs\.0\)out of memory",
        ),
        also=(r"memory required for data: ?(?P<blobs>\d{1,16})(?!\d)",),
        means="Caffe got no GPU memory for the blobs of the network",
        next_step="a smaller batch_size or image in the .prototxt (iter_size in the solver makes "
        "up for a smaller batch); stop the other processes that `nvidia-smi` shows",
    ),
    MessageKind(
        "Adreno's driver",
        seen=(r"adreno-gsl.{0,80}?:\d{1,5}>.{0,120}?out of memory",),
        means="the driver of a phone's GPU got no memory of the phone, which its apps share",
        next_step="close other apps; a smaller image, model or batch",
    ),
    MessageKind(
        "AMD's Vulkan driver",
        seen=("not enough memory for command submission",),
        needs=(r"radv|vk::|vulkan|device ?lost",),
        means="the driver of an AMD GPU could not make all that a piece of work needs "
        "resident: the GPU's memory and the part of the machine's that it may use "
        "(GTT) are full; the lost device comes of that",
        next_step="use less on the GPU: a smaller model, batch, context or image, or "
        "fewer layers on it; close other programs that use the GPU",
    ),
    MessageKind(
        "a lost device of WebGPU",
        seen=(
            r"device was lost(?: during reload)?\. this can happen due to insufficient memory",
        ),
        means="the browser lost the GPU: its memory ran out, or the driver stopped or "
        "reset it; the program does not know which",
        next_step="a smaller or more strongly quantized model, or a shorter context; close other "
        "tabs and programs that use the GPU; if little is in use, a newer driver or browser",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "Vulkan's limit of allocations",
        seen=(r"vkallocatememory failed -10(?!\d)",),
        means="the program holds as many allocations as the Vulkan driver allows "
        "(often 4096), however much memory is free",
        next_step="a smaller tile (-t in the command-line programs of ncnn) or image; "
        "else a newer release of the program or the driver",
        cause=OomCause.OTHER_MEMORY,
    ),
    MessageKind(
        "Vulkan's import of memory",
        seen=(r"vkallocatememory failed -1000072003(?!\d)",),
        means="the Vulkan driver refused to use memory of the host as its own "
        "(VK_ERROR_INVALID_EXTERNAL_HANDLE): memory is not full",
        next_step="a newer driver of the GPU, or another release of the program",
        cause=OomCause.OTHER_MEMORY,
    ),
    MessageKind(
        "ncnn on Vulkan",
        seen=("vkallocatememory failed -[12](?!\\d)",),
        means=(
            "ncnn got no GPU memory (or, with error -1, no host memory) for an image, "
            "a tile or the model"
        ),
        next_step="a smaller tile (-t in the command-line programs), fewer threads "
        "(-j), a smaller image, or another GPU (-g)",
    ),
    MessageKind(
        "Paddle's CPU memory",
        backend="host",
        seen=("fail to alloc memory of <tried> size",),
        means="the machine's memory ran out, not the GPU's",
        next_step=(
            "smaller images or a smaller batch, or fewer processes at once; `free -g` while it runs"
        ),
        cause=OomCause.HOST,
    ),
    MessageKind(
        "Paddle's pool",
        seen=(
            "(?:expected|enforce) allocating <= available(?: failed)?,? (?:but received "
            "allocating: )?"
            r"(?P<tried>\d{7,15}) > (?:available: )?(?P<free>\d{1,15})",
        ),
        means="Paddle requested its share of the GPU "
        "(FLAGS_fraction_of_gpu_memory_to_use, 92 % by default), or to enlarge it, and "
        "less was free: other processes, or its own earlier pools, hold the rest",
        next_step="stop the other processes that `nvidia-smi` shows; or a smaller "
        "FLAGS_fraction_of_gpu_memory_to_use, or FLAGS_allocator_strategy=auto_growth",
    ),
    MessageKind(
        "Paddle",
        seen=(
            r"cannot allocate <tried> memory on \w{1,20} <device>, <allocated> memory has been "
            "allocated and available memory is only <free>",
            r"cannot allocate <tried> memory on \w{1,20} <device>, available memory is only "
            "<free>",
            "cannot allocate <tried> gpu memory, available memory is (?:only )?<free>",
            r"cannot allocate <tried> in gpu <device>(?!\d), available <free>",
            "cannot malloc <tried> gpu memory",
        ),
        also=(
            r"cannot malloc \S{0,2000}?in gpu <device>(?!\d), available <free>",
            r"in gpu \d{1,2}, available [\d.]{1,12}[kmgt]?b,? total (?P<total>\d{7,15})",
            "gpu memory used: <used>",
        ),
        means="Paddle's allocator found no memory",
        next_step="a smaller batch; stop the other processes that `nvidia-smi` shows",
    ),
    MessageKind(
        "MLX's buffer",
        backend="MPS",
        seen=(
            "attempting to allocate <tried> which is greater than the maximum allowed "
            "buffer size of <allowed>",
        ),
        means="one array is larger than Metal's largest buffer, whatever is free",
        next_step=(
            "smaller arrays: a smaller batch, a shorter context or prompt, or the work in pieces"
        ),
        cause=OomCause.TOO_LARGE,
    ),
    MessageKind(
        "a warning of MLX",
        backend="MPS",
        level=2,
        seen=(
            (
                "with a model that requires <needed> which is close to the maximum "
                "recommended size of <allowed>"
            ),
        ),
        means="a warning: the model needs nearly all of the memory that macOS "
        "recommends for the GPU, which makes it slow",
        next_step="nothing, if it is fast enough; else a more strongly quantized "
        "model, or a higher limit (`sudo sysctl iogpu.wired_limit_mb=N`)",
        cause=OomCause.WARNING,
    ),
    MessageKind(
        "MLX's number of buffers",
        backend="MPS",
        seen=(r"resource limit \((?P<buffers>\d{5,9})\) exceeded",),
        means="the program has as many Metal buffers as MLX allows, whatever memory is free",
        next_step="fewer arrays alive at once: mx.eval() more often, and drop what is "
        "no longer needed; mx.clear_cache()",
        cause=OomCause.OTHER_MEMORY,
    ),
    MessageKind(
        "MLX",
        backend="MPS",
        seen=(r"unable to allocate <tried>(?<=bytes)\.",),
        means="the memory that Metal gives to one program ran out",
        next_step=(
            "a smaller model, batch or context; mx.clear_cache(), or mx.set_cache_limit() for less"
        ),
    ),
    MessageKind(
        "Tenstorrent",
        backend="device",
        seen=(r"not enough space to allocate <tried> \w{1,8} buffer across",),
        also=(
            "each bank needs to store <needed>",
            "bank size is (?:only )?<limit>",
            r"\(allocated: <used>, free: <available>, largest free block: <largest>",
        ),
        means="no bank of the device's memory had a free block for its part of the "
        "buffer: it is full, or what is free is in pieces; the part is larger than a bank only "
        "where more is needed than the limit (each figure but the request is of one bank)",
        next_step=(
            "smaller tensors: a smaller batch, image or sequence, or the model over more devices"
        ),
    ),
    MessageKind(
        "Gaudi",
        backend="HPU",
        seen=(
            r"pt_devmem\S{0,20} allocation failed for size:{1,2}<tried>",
            "workspace allocation of size:{1,2}<tried> failed",
        ),
        means="the memory of the Gaudi card ran out",
        next_step=(
            "a smaller batch or shorter sequences, or more cards; `hl-smi` for other processes"
        ),
    ),
    MessageKind(
        "an illegal access before an allocation",
        seen=(
            r"std::bad_alloc\S{0,400}?(?:cudaerrorillegaladdress|illegal memory access)",
            r"physx.{0,80}?with error 700.{0,4000}?failed to allocate pinned memory",
        ),
        means="no memory ran out: an earlier kernel used an address that is not its "
        "own, and the next call, an allocation, reports it",
        next_step="rerun with CUDA_LAUNCH_BLOCKING=1, which shows the kernel; try a "
        "newer release of the library",
        cause=OomCause.OTHER_MEMORY,
    ),
    MessageKind(
        "CatBoost",
        seen=(
            r"out of memory\. requested (?P<tried>[\d.]{1,20}mb); free (?P<free>[\d.]{1,20}mb)",
            r"stack_like_memory_pool\.h:\d{1,5}: error: out of memory",
        ),
        means="CatBoost's data or its trees do not fit on the GPU",
        next_step="fewer rows or features, a smaller depth or border_count; with features that are "
        "categories also max_ctr_complexity=1, or gpu_cat_features_storage='CpuPinnedMemory'",
    ),
    MessageKind(
        "a pool of RAPIDS",
        seen=(
            r"std::bad_alloc\S{0,160}?maximum pool size exceeded",
            "maximum pool size exceeded",
        ),
        also=("maximum pool size exceeded.{0,10}?failed to allocate <tried>",),
        means="RMM's pool on the GPU has reached its maximum: not the machine's memory",
        next_step="a larger maximum_pool_size, or less data at once (smaller partitions)",
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "XGBoost",
        seen=(
            r"memory allocation error on worker \d{1,6}",
            r"device_helpers\.cuh\(\d{1,5}\): out of memory",
        ),
        also=(
            "free memory: <free>",
            "requested memory: <tried>",
        ),
        means="XGBoost's data or its histograms do not fit on the GPU",
        next_step=(
            "QuantileDMatrix instead of DMatrix, fewer bins (max_bin), or data in external memory"
        ),
    ),
    MessageKind(
        "Thrust",
        seen=(
            r"(?:std::)?bad_?alloc(?:ation)?: (?:cuda|hip)error(?:memoryallocation|outofmemory)",
            "thrust::system::detail::bad_alloc",
            "thrust::system::system_error.{0,80}?out of memory",
        ),
        unless=("rmm|cudf|cuml|rapids|xgboost|on worker \\d|free memory: ",),
        means="Thrust, a CUDA library that extensions of torch use (point clouds, "
        "Gaussian splatting), got no GPU memory from the driver, outside torch's "
        "allocator; host memory did not run out",
        next_step="fewer points, smaller images or a smaller batch at once; stop the "
        "other processes that `nvidia-smi` shows; "
        "torch.cuda.set_per_process_memory_fraction(0.9) makes torch leave room",
    ),
    MessageKind(
        "RAPIDS",
        seen=(
            r"std::bad_alloc\S{0,200}?(?:cuda_memory_resource|cuda_async|pool_memory_resource"
            r"|managed_memory|"
            "arena_memory|rmm/|rmm failure|cudaerrormemoryallocation|hiperroroutofmemory)",
            "rmm_error_out_of_memory|rmm::out_of_memory",
            r"cuda error encountered at: \S{0,200}?cudaerrormemoryallocation",
        ),
        also=("failed to allocate <tried>", "attempted to allocate: <tried>"),
        means="the GPU's memory ran out, or RMM's pool on it: not the machine's memory",
        next_step="less data at once (smaller partitions); or cudf's spilling, or "
        "rmm.reinitialize(managed_memory=True)",
    ),
    MessageKind(
        "a warning of CUDA.jl",
        level=2,
        seen=("cuda memory allocation failed; attempting to free up memory",),
        also=(
            r"effective gpu memory usage: [\d.]{1,6}% \(<used>/<total>\)",
            r"memory pool usage: <allocated> \(<pool> reserved\)",
        ),
        means="a warning: the GPU was full, and CUDA.jl frees what Julia's garbage collector finds "
        "to be no longer in use, which is slow; it goes on where that is enough",
        next_step="nothing, if it is fast enough; else CUDA.unsafe_free!() for arrays "
        "no longer needed, or smaller arrays",
        cause=OomCause.WARNING,
    ),
    MessageKind(
        "CUDA.jl's limit",
        seen=("out of gpu memory trying to allocate <tried>.{0,200}capped at <allowed>",),
        also=(
            r"effective gpu memory usage: [\d.]{1,6}% \(<used>/<total>\)",
            "cuda allocator usage: <allocated>",
        ),
        means="CUDA.jl's pool has reached its own limit",
        next_step="raise JULIA_CUDA_MEMORY_LIMIT, or leave it out; else smaller "
        "arrays, or GC.gc() and CUDA.reclaim() before",
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "CUDA.jl",
        seen=(
            "out of gpu memory trying to allocate <tried>",
            r"cuda error: out of memory \(code #?2",
        ),
        also=(
            r"effective gpu memory usage: [\d.]{1,6}% \(<used>/<total>\)",
            r"memory pool usage: <allocated> \(<reserved> reserved\)",
        ),
        means="CUDA.jl's pool got no memory from the driver",
        next_step=(
            "smaller arrays, or GC.gc() and CUDA.reclaim() before; `nvidia-smi` for other processes"
        ),
    ),
    MessageKind(
        "MindSpore",
        seen=(
            "memory isn't enough and alloc failed.{0,160}?alloc size: <tried>",
            "totalusedmemstatistics: <used> plus .{0,80}? plus alloc size: <tried> is "
            "more than total mem size: <total>",
            "memory isn't enough and alloc failed",
        ),
        means="the device's memory ran out",
        next_step="a smaller batch; max_device_memory in set_context where a limit is set",
    ),
    MessageKind(
        "PhysX",
        seen=("pxgcudadevicememoryallocator fail to allocate memory <tried>",),
        means="the physics simulation found no memory on the GPU",
        next_step="fewer environments, or smaller gpu_* buffers of PhysX",
    ),
    MessageKind(
        "Numba",
        seen=(
            r"call to cu(?!ctxcreate|deviceprimaryctx)\w{3,40} results in cuda_error_out_of_memory",
        ),
        means="Numba got no memory from the driver: its arrays, or a pool of another "
        "library (RMM, CuPy, torch), hold it, or another process does",
        next_step="less data at once, and free the pools of other libraries; stop the "
        "other processes that `nvidia-smi` shows",
    ),
    MessageKind(
        "MXNet's CPU memory",
        backend="host",
        seen=("failed to allocate cpu memory",),
        needs=(r"mxnet|cpu_device_storage\.h",),
        means="MXNet got no memory of the machine, not of the GPU",
        next_step="smaller images or a smaller batch, or fewer processes and workers; "
        "`free -g` while it runs",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "MXNet's pinned memory",
        backend="host",
        seen=(
            r"pinned_memory_storage\.h:\d{1,5}:? check failed:? \S{0,120}?out of memory",
        ),
        means="CUDA pinned no host memory for MXNet: most likely the machine's memory is used up, "
        "or what a process may pin, whatever the GPU has free",
        next_step="free memory of the machine: close other programs, fewer workers and a smaller "
        "batch, a larger page file on Windows; `free -g` while it runs",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "MXNet",
        seen=(
            (
                r"pooled_storage_manager\.h:\d{1,5}: (?:cudamalloc|memory allocation) (?:retry "
                r")?failed"
            ),
            r"(?:mxnet|mshadow)\S{0,200}?check failed: \S{0,40}?cudasuccess\S{0,80}?out of memory",
        ),
        unless=(r"pinned_memory_storage\.h",),
        means="MXNet's pool got no memory from the driver",
        next_step="stop the other processes that `nvidia-smi` shows; else a smaller batch or input",
    ),
    MessageKind(
        "FFmpeg's decoder on the GPU",
        seen=(
            (
                "device setup failed for decoder .{0,60}?memory|failed to create "
                "specified hw device"
            ),
        ),
        means="FFmpeg could not set up the decoder, and says so for several causes: a full GPU, a "
        "GPU that is not visible, or a library of the driver that is missing",
        next_step="`nvidia-smi` shows whether the GPU is visible and full; `ffmpeg -v "
        "debug` shows the first error; else decode on the CPU",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "OpenCV's pinned memory",
        backend="host",
        seen=(
            r"(?:cuda_info\.cpp:\d{1,5}: error: \(-217[^()]{0,20}\) out of memory in function "
            r".{1,120}?)?"
            r"cuda_host_mem\.cpp:\d{1,5}: error: \(-217[^()]{0,20}\) out of memory",
        ),
        means="OpenCV's CUDA module got no pinned host memory, whatever the GPU has "
        "free; under WSL the limit is low. If the text also says that a device could "
        "not be set, the GPU may be full too",
        next_step="fewer or smaller pinned buffers (HostMem), fewer processes; `free -g` and "
        "`nvidia-smi` show which memory is full; under WSL more memory= in .wslconfig",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "OpenCV on the GPU",
        seen=(
            r"gpu api call[():]{1,3} ?out of memory",
            r"\(-217[^()]{0,20}\) out of memory",
        ),
        means="OpenCV's CUDA module got no memory: images that are still held (GpuMat), or another "
        "process, fill the GPU; rarely it is pinned memory of the host",
        next_step="release each GpuMat that is no longer needed, or smaller images; "
        "stop the other processes that `nvidia-smi` shows",
    ),
    MessageKind(
        "Blender, after another error",
        seen=(
            r"(?:invalid (?:context|value|handle)|illegal address|launch \w{4,8}|unknown error) in "
            r"cu\w{3,40}\(.{0,600}?system is out of gpu (?:and shared host )?memory",
        ),
        means="an earlier call to the GPU's driver failed, after which Blender also "
        "says that memory is full: that may not be so",
        next_step="look at the first error in the log; restart Blender with a simple scene, with "
        "`nvidia-smi` beside it: if that works and memory fills, a smaller scene, else a driver "
        "that fits this Blender",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "Blender",
        seen=(
            r"out of memory in cu\w{3,40}\(",
            "system is out of gpu (?:and shared host )?memory",
        ),
        means="the scene, with its textures, does not fit into what is free on the GPU "
        "(newer releases also use memory of the host, which is full then)",
        next_step="a smaller scene: smaller textures, less subdivision (Simplify); "
        "close other programs that use the GPU; or render on the CPU",
    ),
    MessageKind(
        "Warp",
        seen=("failed to allocate <tried> on device 'cuda:<device>'",),
        means="Warp got no memory from the driver",
        next_step="smaller arrays; stop the other processes that `nvidia-smi` shows",
    ),
    MessageKind(
        "CTranslate2",
        seen=("cuda failed with error out of memory",),
        means="CTranslate2 (faster-whisper) allocates outside torch's allocator, and "
        "the driver refused memory: most often the GPU was full",
        next_step='compute_type="int8", a smaller model, beam size or batch; stop the other '
        "processes that `nvidia-smi` shows; if the GPU is not full, CT2_CUDA_ALLOCATOR=cub_caching",
    ),
    MessageKind(
        "one buffer of stable-diffusion.cpp",
        level=-0.75,
        seen=(
            r"requested buffer size exceeds device (?:memory allocation|buffer size) limit",
        ),
        needs=(
            r"stable-diffusion\.cpp|ggml_extend\.hpp|(?<!\w)sd-cli|--(?:uncond-)?diffusion-model|"
            "--diffusion-fa|graph cut max_vram",
        ),
        also=(
            r"device memory allocation of size <tried> failed",
            r"failed to allocate vulkan\d{1,2} buffer of size <buffer>",
            r"utilizing dxgi \+ pdh memory reporting free: <free> total: <total>",
        ),
        means="one buffer is larger than Vulkan's driver allows, whatever is free",
        next_step="--vae-tiling, or a smaller image; where weights are loaded, a more "
        "strongly quantized model; or a newer release",
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "stable-diffusion.cpp",
        level=-0.5,
        seen=(
            r"(?:cuda|rocm|hip|musa) error: out of memory(?:\S{0,60}?current device: <device>)?",
            r"allocating <tried> on device <device>: \w{2,4}malloc failed",
            "ggml_vulkan: device memory allocation of size <tried> failed",
            r"failed to allocate (?!cpu)\w{1,12} buffer of size <tried>|failed to allocate the "
            r"compute "
            r"buffer",
        ),
        needs=(
            r"stable-diffusion\.cpp|ggml_extend\.hpp|(?<!\w)sd-cli|--(?:uncond-)?diffusion-model|"
            "--diffusion-fa|graph cut max_vram",
        ),
        also=(r"pool\[\d\]: alloc of <tried> failed",),
        means="the driver refused a buffer for the weights or for a step of "
        "stable-diffusion.cpp (text encoder, diffusion model or VAE)",
        next_step="--vae-tiling where it decodes the image, --diffusion-fa while it samples, "
        "--offload-to-cpu or a more strongly quantized model for the weights; or a smaller image",
    ),
    MessageKind(
        "whisper.cpp",
        level=-0.5,
        seen=(
            r"(?:cuda|rocm|hip|musa) error: out of memory(?:\S{0,60}?current device: <device>)?",
            r"allocating <tried> on device <device>: \w{2,4}malloc failed",
            "ggml_vulkan: device memory allocation of size <tried> failed",
            r"failed to allocate (?!cpu)\w{1,12} buffer of size <tried>",
        ),
        needs=(
            r"whisper_(?:init|model|backend|kv|full|sched)\w{0,30}:|whisper-(?:cli|server)|"
            # Its bindings.
            r"whisper[-_.](?:rs|cpp|net|sys)(?![a-z])|pywhispercpp",
        ),
        means="the driver refused a buffer for the model, its KV cache or a step of whisper.cpp",
        next_step="a smaller or quantized model, or the CPU (--no-gpu); stop the other "
        "programs that `nvidia-smi` shows",
    ),
    MessageKind(
        "llama.cpp's KV cache",
        seen=("failed to allocate buffer for kv cache",),
        also=_LLAMA_FIGURES,
        means="the weights fit on the GPU, but the KV cache, which grows with the "
        "context, does not fit beside them",
        next_step="a shorter context (-c), or a quantized cache (-ctk q8_0 -ctv q8_0, with -fa)",
    ),
    MessageKind(
        "a remote device of llama.cpp",
        seen=(
            (
                r"alloc_tensor_range: failed to allocate rpc\d{0,3}\[\S{1,80}?\] buffer of size "
                r"<tried>"
            ),
            r"unable to allocate rpc\d{0,3}\[\S{1,80}?\] buffer",
        ),
        means="an rpc-server of llama.cpp has too little memory for its share of the weights",
        next_step="a smaller share for it (--tensor-split), more servers, or fewer "
        "layers (--n-gpu-layers); the server's own log says which memory it lacked",
    ),
    MessageKind(
        "the vision part of llama.cpp",
        level=-0.3,
        seen=(
            r"(?:clip_(?:model_load\w{0,4}|ctx|init):|load_hparams:|handle_\w{1,20}_clip:)"
            r"(?:(?!llm_load|llama_model|llama_kv|llama_new|llama_context|load_tensors).){0,800}?"
            r"allocating <tried> on device <device>: \w{2,4}malloc failed",
        ),
        also=_LLAMA_FIGURES,
        means="the weights of the language model fit on the GPU, but its vision part (the "
        "projector, mmproj), which is loaded after it and encodes images, does not fit beside it",
        next_step="fewer layers of the language model on the GPU (--n-gpu-layers; num_gpu in "
        "Ollama) or a shorter context (-c; num_ctx in Ollama); in llama.cpp also "
        "--no-mmproj-offload, which keeps the vision part on the CPU",
    ),
    MessageKind(
        "llama.cpp's weights",
        seen=(
            "unable to allocate "
            "(?:cuda|rocm|hip|vulkan|musa|sycl|metal|mtl|cann|opencl|webgpu)"
            r"\w{0,8}(?<!host) buffer",
            r"(?:\w{2,4}malloc failed|device memory allocation of size).{0,1200}?"
            "(?:unable to allocate backend|error loading model: failed to allocate) buffer",
        ),
        also=_LLAMA_FIGURES,
        means="the model's weights do not fit on the GPU",
        next_step="fewer layers on the GPU (--n-gpu-layers; num_gpu in Ollama), or a "
        "model with a smaller quantization",
    ),
    MessageKind(
        "llama.cpp's weights, without their device",
        backend="device",
        level=0.5,
        seen=("unable to allocate backend buffer",),
        also=_LLAMA_FIGURES,
        means="llama.cpp got no memory for the weights: the text does not say whether of a GPU or "
        "of the host",
        next_step="a smaller or more strongly quantized model; `nvidia-smi` and `free -g` show "
        "which memory fills: fewer layers on a GPU that is full (--n-gpu-layers; num_gpu in "
        "Ollama), more of them, fewer open programs or a larger page file where it is the host",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "a second try of llama.cpp",
        seen=(
            "(?:allocating|ggml_gallocr_reserve|failed to allocate "
            "compute).{0,600}?retrying without pip(?!.{0,4000}?failed to allocate)",
        ),
        also=_LLAMA_FIGURES,
        means="a warning: the compute buffers with copies for pipeline parallelism did "
        "not fit, and llama.cpp tries again without the copies",
        next_step="nothing, if the model loads; else a smaller batch (-ub), or fewer "
        "layers on the GPU (--n-gpu-layers)",
        cause=OomCause.WARNING,
    ),
    MessageKind(
        "llama.cpp's compute buffers",
        seen=(
            r"failed to allocate compute (?:\w{1,12} )?buffers",
            r"ggml_gallocr_reserve\w{0,20}: failed to allocate (?!cpu)\w{1,12} buffer of size "
            "<tried>",
        ),
        also=_LLAMA_FIGURES,
        means="the weights and the KV cache fit on the GPU, but the compute buffers, which grow "
        "with the batch and, without flash attention, with the context, do not fit beside them",
        next_step="fewer layers on the GPU (--n-gpu-layers; num_gpu in Ollama), a smaller batch "
        "(-ub; num_batch in Ollama) or a shorter context (-c; num_ctx in Ollama)",
    ),
    MessageKind(
        "llama.cpp's KV cache",
        backend="device",
        level=1,
        seen=("failed to allocate (?:the )?kv cache",),
        means="the KV cache, which grows with the context, does not fit beside the "
        "weights, in GPU memory or in host memory",
        next_step="a shorter context (-c), or a quantized cache (-ctk q8_0 -ctv q8_0, with -fa)",
    ),
    MessageKind(
        "a Vulkan compute buffer of llama.cpp",
        level=-0.5,
        seen=(
            r"(?<!pinned memory \()requested buffer size exceeds device (?:memory "
            r"allocation|buffer size) limit .{0,200}?failed to allocate vulkan<device> buffer of "
            r"size <tried>.{0,200}?failed to allocate compute",
        ),
        also=_LLAMA_FIGURES,
        means="one compute buffer, which grows with the batch and, without flash attention, with "
        "the context, is larger than Vulkan's driver allows, whatever is free",
        next_step="a smaller batch (-ub), flash attention (-fa) or a shorter context (-c)",
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "a Vulkan buffer of llama.cpp",
        seen=(
            r"(?:utilizing dxgi \+ pdh memory reporting free: <free> total: <total>.{0,400}?)?"
            r"(?<!pinned memory \()requested buffer size exceeds device (?:memory "
            r"allocation|buffer size) limit"
            r"(?:.{0,200}?failed to allocate vulkan\d{1,2} buffer of size <buffer>)?",
            "device memory allocation of size <tried> failed.{0,60}?requested buffer size exceeds",
        ),
        also=_LLAMA_FIGURES,
        means="one buffer is larger than Vulkan's driver allows, whatever is free",
        next_step=(
            "fewer layers on the GPU (--n-gpu-layers), a shorter context (-c) or a "
            "smaller batch (-ub)"
        ),
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "one buffer of llama.cpp on Metal",
        backend="MPS",
        seen=(
            "buffer '[^']{1,40}' size <tried> is larger than buffer maximum of <allowed>",
        ),
        means="one buffer is larger than Metal's largest, whatever is free: older "
        "releases of llama.cpp put all weights into one",
        next_step="a newer llama.cpp; else a smaller or more strongly quantized model, "
        "or fewer layers on the GPU (--n-gpu-layers)",
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "llama.cpp on SYCL",
        backend="XPU",
        level=-0.5,
        seen=(
            r"(?:ur|ze)_result_error_out_of_(?:device_memory|resources|host_memory)",
            r"pi_error_out_of_(?:host_memory|resources)",
        ),
        needs=("ggml.{0,4}sycl|llama|gguf",),
        means="Intel's driver refused memory: the model does not fit on the GPU or into the host's "
        "memory that belongs to it, or one block is larger than the driver allows (4 GiB on some)",
        next_step="fewer layers on the GPU (--n-gpu-layers), a smaller model or a shorter context "
        "(-c); UR_L0_ENABLE_RELAXED_ALLOCATION_LIMITS=1 allows blocks of more than 4 GiB",
    ),
    MessageKind(
        "MLC's start",
        seen=(
            r"the available single gpu memory is <available>, which is less than the sum of model "
            r"weight "
            r"size \(<weights>\) and temporary buffer size \(<temporary>\)",
        ),
        means="MLC's share of the GPU (gpu_memory_utilization, 0.85 by default) has no "
        "room for a KV cache beside the weights and the buffers; if these add up to "
        "less, the KV cache's sizes in the model's configuration are the cause",
        next_step="a larger gpu_memory_utilization or a more strongly quantized model; "
        "or, in `mlc_llm gen_config`, more GPUs (--tensor-parallel-shards) or a "
        "smaller --prefill-chunk-size",
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "MLC's KV cache",
        seen=("the kv cache is full. no page can be allocated",),
        means="the pages of the KV cache of MLC or WebLLM are used up: the GPU is not full",
        next_step="a shorter prompt or chat, or a larger context window (context_window_size)",
        cause=OomCause.OTHER_MEMORY,
    ),
    MessageKind(
        "Ollama's layers",
        seen=("memory layout cannot be allocated(?: with num_gpu = <layers>)?",),
        also=("with num_gpu = <layers>",),
        means="the layers that num_gpu puts on the GPUs do not fit there, or the rest "
        "of the model does not fit into host memory",
        next_step="leave num_gpu out, or set a smaller one; a shorter context "
        "(num_ctx), or a smaller model; `ollama ps` shows the other loaded models",
    ),
    MessageKind(
        "Ollama's llama-server",
        level=1.7,
        seen=("llama-server reported out-of-memory during startup",),
        means="Ollama's llama-server ran out of memory as it loaded the model; Ollama has unloaded "
        "the others, or gave up",
        next_step="a shorter context (num_ctx), fewer layers on the GPU (num_gpu) or a smaller "
        "model; the server's log (`journalctl -u ollama`, server.log) has the buffer that failed",
    ),
    MessageKind(
        "Ollama's layers",
        seen=(r"insufficient memory - required allocations: \{",),
        also=(r"weights:\[<weights>", r"cache:\[<kv>", r"graph:<tried>(?=f)"),
        means="the parts of the model that Ollama put on each device do not fit there: F marks "
        "the allocation that failed",
        next_step="leave num_gpu out, or set a smaller one; a shorter context (num_ctx), or a "
        "smaller model; `ollama ps` shows the other loaded models",
    ),
    MessageKind(
        "Ollama making room for a model",
        level=2,
        seen=(
            "runtime oom detected; expiring loaded models",
            "predicted usage exceeds vram",
            "requires more (?:gpu|system)? ?memory than is currently available, evicting a model",
            "gpu vram usage didn't recover within timeout",
        ),
        also=("totalmemory=<total>", "predicted=<needed>"),
        means="a warning: Ollama unloads another model to make room, or the memory of "
        "an unloaded model became free later than it expected",
        next_step="nothing, if the model loads; else OLLAMA_MAX_LOADED_MODELS=1, or "
        "stop the other programs that `nvidia-smi` shows",
        cause=OomCause.WARNING,
    ),
    MessageKind(
        "cuBLAS in llama.cpp",
        seen=("cuda error: the resource allocation failed",),
        also=_LLAMA_FIGURES,
        means="cuBLAS got no memory for its handle or workspace: the model, its KV "
        "cache or another program left almost no GPU memory",
        next_step="fewer layers on the GPU (--n-gpu-layers; num_gpu in Ollama), or a "
        "shorter context (-c; num_ctx in Ollama)",
    ),
    MessageKind(
        "llama.cpp's automatic fit",
        level=2,
        seen=("failed to fit params to (?:free)? device memory",),
        means="a warning: llama.cpp could not choose settings that fit on the GPU, "
        "often because the command line already sets one that it would choose; it goes "
        "on with the settings as they are",
        next_step="nothing, if the model loads; else leave out --n-gpu-layers and "
        "--tensor-split, or use a shorter context (-c)",
        cause=OomCause.WARNING,
    ),
    MessageKind(
        "llama.cpp's --mlock",
        backend="host",
        seen=(r"failed to mlock (?P<tried>\d{1,20})-byte buffer",),
        unless=(
            "malloc failed|failed to allocate|out of memory|unable to allocate|bad_alloc",
        ),
        means="a warning: the model is larger than the limit of locked memory, so the "
        "system may swap parts of it out",
        next_step="nothing, if the model loads and is fast enough; else raise the limit (`ulimit "
        "-l unlimited` before the start), or leave out --mlock. An error after it has a reason of "
        "its own",
        cause=OomCause.WARNING,
    ),
    MessageKind(
        "a warning of distributed-llama",
        backend="host",
        level=2,
        seen=("cannot allocate <tried> directly in ram",),
        means="a warning: distributed-llama could not lock this buffer in the "
        "machine's memory (mlock), and uses memory that may be swapped out",
        next_step="nothing, if it is fast enough; else raise the limit (`ulimit -l "
        "unlimited` before the start)",
        cause=OomCause.WARNING,
    ),
    MessageKind(
        "a start that Ollama stopped waiting for",
        backend="",
        level=1.5,
        seen=("timed out waiting for (?:llama runner|server) to start",),
        means="Ollama stopped waiting while a model was loaded: the text does not say "
        "that memory ran out, and its lines about VRAM follow from the stop",
        next_step="a longer time (OLLAMA_LOAD_TIMEOUT=30m), or a faster disk; if the log has an "
        "error of memory above, a smaller model or a shorter context (num_ctx)",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "Ollama's runner, without a reason",
        level=1.5,
        seen=(
            "llama runner process has terminated: exit status",
            r"llama runner process no longer running: -?\d",
        ),
        needs=("memory|vram",),
        also=(
            r"memory\.available=\W{0,3}\[<available>\].{0,20}"
            r"memory\.required\.full=\W{0,3}<needed>",
        ),
        means=(
            "Ollama's runner ended, and its exit status does not say why: memory, or something else"
        ),
        next_step="look for the first error above in the server's log (`journalctl -u ollama`); "
        "without one, a smaller model, a shorter context (num_ctx) or fewer layers on the GPU "
        "(num_gpu) shows whether it was memory",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "Ollama's runner",
        backend="device",
        seen=(
            r"llama runner (?:exited|process no longer running|process has "
            r"terminated).{0,60}?(?:enough|"
            "available) memory",
        ),
        means=(
            "Ollama's runner ended; that memory ran out is Ollama's guess, and the "
            "reason is in its log"
        ),
        next_step="read the server's log (`journalctl -u ollama`, on macOS and Windows "
        "server.log); if memory is short there, a shorter context (num_ctx), a smaller model, or "
        "fewer layers on the GPU (num_gpu)",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "llama.cpp on Vulkan",
        level=1,
        seen=(
            "ggml_vulkan: (?:device)?memory allocation of size <tried> failed",
            r"error loading model: vk::\S{1,60}?: ?erroroutofdevicememory",
        ),
        also=_LLAMA_FIGURES,
        means="the GPU's memory ran out, or one buffer is larger than its driver allows",
        next_step="a smaller batch (-ub), a shorter context (-c; num_ctx in Ollama) or "
        "fewer layers on the GPU (--n-gpu-layers; num_gpu in Ollama)",
    ),
    MessageKind(
        "llama.cpp's KV slots",
        seen=(
            "could not find a kv cache slot|nokvslot|failed to find free space in the kv "
            "cache|failed to find a memory slot for batch",
        ),
        unless=(r"malloc failed|failed to allocate (?:\w{1,12} buffer|compute)",),
        means="the KV cache of llama.cpp has no room for more tokens: neither the GPU "
        "nor the machine's memory is full",
        next_step="a longer context (-c; num_ctx in Ollama) or shorter prompts, or "
        "fewer requests at once (-np; OLLAMA_NUM_PARALLEL)",
        cause=OomCause.OTHER_MEMORY,
    ),
    MessageKind(
        "a pool of ggml",
        backend="host",
        seen=(
            r"ggml_(?:\w{1,12}_)?new_\w{1,16}: not enough space in the "
            r"(?:context's|scratch) memory pool "
            r"\(needed <needed>, available <available>",
            r"ggml_\w{4,30}: not enough space in the buffer \S{0,80}?\(needed <needed>, "
            r"(?:largest block )?"
            r"available <available>",
            r"ggml_(?:\w{1,12}_)?new_\w{1,16}: not enough space in the "
            r"(?:context's|scratch) memory pool",
        ),
        means="a pool of fixed size, in which ggml keeps its graph, was too small: "
        "neither the GPU nor the machine's memory is full",
        next_step="a newer release of the program, which computes the size of that "
        "pool; else a smaller image, batch or context",
        cause=OomCause.OTHER_MEMORY,
    ),
    MessageKind(
        "a model that llama.cpp makes fit",
        level=2.5,
        seen=(
            r"cannot (?:fulfill margin|meet free memory target) of \d{1,7}mib[^,]{0,40}, need to "
            r"(?:use|reduce device memory by) <missing>",
            r"context size reduced from \d{1,9} to \d{1,9} ?->",
        ),
        unless=(
            "failed to fit params|failed to allocate|unable to allocate|out ?of ?memory",
        ),
        also=(
            *_LLAMA_FIT,
            "(?:margin|memory target) of <margin>",
            r"context size reduced from <length> to <fits>(?=->)",
        ),
        means="a warning: the model with this context does not fit on the GPU, and llama.cpp takes "
        "a shorter context, or leaves layers on the CPU, so that it does",
        next_step="nothing, if that context is long enough; else fewer layers on the GPU "
        "(--n-gpu-layers), a smaller or more strongly quantized model, or a quantized KV cache "
        "(-ctk q8_0 -ctv q8_0)",
        cause=OomCause.WARNING,
    ),
    MessageKind(
        "llama.cpp",
        level=1,
        seen=(
            "allocating <tried> on device <device>: (?:cuda|hip|musa)malloc failed",
            r"ggml\w{0,40}: failed to allocate (?!cpu)\w{1,12} buffer of size <tried>",
            r"alloc_tensor_range: failed to allocate (?!cpu)\w{1,12} buffer of size <tried>",
            "failed to allocate buffer, size = <tried>",
            "error loading model: failed to allocate buffer",
            (
                r"(?:cuda|rocm|hip|musa) error: out of memory \S{0,40}current device: "
                r"<device>.{0,200}ggml"
            ),
            "(?:cuda|rocm|hip|musa) error: out of memory .{0,200}ggml-cuda",
            r"(?:cuda error \d{1,3} at \S{0,200}?)?ggml-cuda\S{0,40}?: out of memory"
            "(?: current device: <device>)?",
            r"(?:llama_\w{3,30}|ggml_\w{0,12}init\w{0,12}|load_tensors|llama runner "
            r"process).{0,300}?cuda "
            "error: out of memory",
            "llama runner process has terminated.{0,60}?cudamalloc failed: out of memory",
            rf"failed to allocate {_GGML_DEVICE} buffer(?! of size)",
        ),
        also=_LLAMA_FIGURES,
        means="the driver refused a buffer: the model's weights, its KV cache, its "
        "compute buffers and what its kernels need do not fit on the GPU, or one "
        "buffer is larger than an integrated GPU allows",
        next_step="fewer layers on the GPU (--n-gpu-layers; num_gpu in Ollama), a "
        "shorter context (-c; num_ctx in Ollama) or a smaller batch (-ub)",
    ),
    MessageKind(
        "a failed command of llama.cpp on a Mac",
        backend="MPS",
        level=0.5,
        seen=(
            r"graph_compute: command buffer \d{1,4} failed with status 5",
            "ggml_metal_get_buffer: error: buffer is nil",
        ),
        needs=("greater than the recommended max working set size",),
        also=(
            r"\(<taken_mib>/<recommended_mib>\),?(?:ggml_\w{1,40}:)?warning: current"
            r"(?!.{0,2000}?\d\),?(?:ggml_\w{1,40}:)?warning: current)",
        ),
        means="a GPU command failed after the model had taken more memory than macOS recommends "
        "for the GPU: most likely memory ran out, though the text does not name the reason",
        next_step="a smaller or more strongly quantized model, a shorter context (-c; num_ctx in "
        "Ollama), or fewer layers on the GPU (--n-gpu-layers; num_gpu in Ollama)",
    ),
    MessageKind(
        "a warning of llama.cpp on a Mac",
        level=2,
        backend="MPS",
        seen=(
            "current allocated size is greater than the recommended max working set size",
        ),
        also=(
            r"\(<taken_mib>/<recommended_mib>\),?(?:ggml_\w{1,40}:)?warning: current"
            r"(?!.{0,2000}?\d\),?(?:ggml_\w{1,40}:)?warning: current)",
        ),
        means=(
            "a warning: the model takes more memory than macOS recommends for the GPU; "
            "it may fail later"
        ),
        next_step="a smaller or more strongly quantized model, a shorter context (-c), "
        "or fewer layers on the GPU (--n-gpu-layers)",
        cause=OomCause.WARNING,
    ),
    MessageKind(
        "a warning of llama.cpp",
        level=2,
        seen=(
            "ggml_vulkan: failed to allocate pinned memory",
            "failed to allocate <tried> of pinned memory",
        ),
        means=(
            "a warning: llama.cpp keeps this part in memory of the host that is not pinned: slower"
        ),
        next_step="nothing, if the model loads and answers; if it does not, the machine's memory "
        "(on Windows, the half of it that the GPU may share) is short: a smaller model or context, "
        "or "
        "GGML_CUDA_NO_PINNED=1",
        cause=OomCause.WARNING,
    ),
    MessageKind(
        "ggml's memory",
        backend="host",
        seen=("mem_buffer ?!= ?null",),
        means="ggml's malloc failed: most likely the machine's memory ran out; else a "
        "size was computed wrongly",
        next_step="a smaller or more strongly quantized model, a shorter context (-c) or a smaller "
        "image; `free -g` while it runs; or a newer release of the program",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "llama.cpp, on the host",
        backend="host",
        seen=(
            r"ggml_aligned_malloc: insufficient memory \(attempted to allocate <tried>\)",
            r"ggml-backend\.c\w{0,2}:\d{1,6}: data != null && \W{0,3}failed to allocate buffer",
            "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size <tried>",
            # Where no memory can be pinned, llama.cpp tries memory that is not pinned first.
            "unable to allocate (?:cpu|(?:cuda|rocm|hip|musa|vulkan|sycl|cann)_host) buffer",
            "failed to allocate cpu buffer of size <tried>",
            r"llama.{0,200}?failed to allocate cpu buffer(?! of size)",
        ),
        means="the machine's memory ran out, not the GPU's",
        next_step="a smaller or more strongly quantized model, or a shorter context (-c)",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "llama.cpp, on the host",
        backend="host",
        level=-0.5,
        seen=(r"(?:llama_model_load|llama_init|llm_load)\w{0,20}:.{0,400}?std::bad_alloc",),
        also=(r"mem required = <needed> \(\+ <state> per state\)",),
        means="the machine's memory ran out as llama.cpp loaded the model",
        next_step="a smaller or more strongly quantized model, or a shorter context "
        "(-c); close other programs",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "LM Studio's guardrails",
        seen=(
            "model loading (?:was stopped|aborted) due to insufficient system "
            "resources(?:.{0,80}?requires approximately <estimated>)?",
            "not enough resources to (?:load|run) (?:the)? model with the current settings",
        ),
        also=("(?:requires approximately|estimate it will take) <estimated>",),
        means="LM Studio estimated that the model with its context needs more memory "
        "than the machine can give, and refused to load it: no memory ran out",
        next_step="a shorter context, fewer layers on the GPU or a smaller quantization; if the "
        "estimate is wrong, relax the model loading guardrails in LM Studio's settings, or try a "
        "newer release",
        cause=OomCause.OTHER_MEMORY,
    ),
    MessageKind(
        "Docker Model Runner's check",
        seen=(
            r"runtime memory requirement for model .{0,80}?exceeds total system memory"
            "(?:: required <needed> ram <needed_vram> vram, system <machine> ram <total> vram)?",
        ),
        means="Docker Model Runner estimated that the model needs more memory than the "
        "machine has, and refused it: no memory ran out",
        next_step="a smaller or more strongly quantized variant of the model, or a shorter "
        "context; if the estimate is wrong, `docker model` has --ignore-runtime-memory-check",
        cause=OomCause.OTHER_MEMORY,
    ),
    MessageKind(
        "Ollama",
        backend="host",
        seen=(
            r"requires more system memory \(<needed>\) than is available \(<available>\)",
            r"model request too large for system(?: .{0,4}?requested=\"?<needed>\"? "
            r"available=\"?<available>)?",
        ),
        means=(
            "the model does not fit into the machine's memory, with what fits on the GPU taken off"
        ),
        next_step="a smaller or more strongly quantized model, or a shorter context "
        "(num_ctx); close other programs",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "weights in ComfyUI",
        level=-0.1,
        seen=(
            r"(?:comfy[/\\]\w{1,40}|nodes)\.py\"?,line\d{1,6},in (?:load_models_gpu|model_load|"
            r"model_use_more_vram|partially_load|patch_weight_to_device|load_checkpoint|"
            r"load_diffusion_model|load_torch_file|load_unet|load_checkpoint_guess_config)"
            r"(?!.{0,12000}?in (?:outer_sample|_calc_cond_batch|sampling_function|predict_noise|"
            r"decode|encode))",
            # Not one that loads images, which computes nothing on the GPU.
            r"node type:\*{0,2} \w{0,40}?load(?!images?|videos?|audio|latents?|masks?)\w{0,40}",
        ),
        needs=(_ALLOCATION_ON_DEVICE,),
        unless=("forge",),
        means="ComfyUI was putting a model's weights on the GPU, and caught torch's out of memory",
        next_step="a quantized model (fp8, GGUF), or start with --lowvram, which leaves weights in "
        "the host's memory: a smaller image does not help while weights are loaded",
        leads=True,
    ),
    MessageKind(
        "ComfyUI",
        seen=(
            "this error means you ran out of memory on your gpu",
            r"exception message:\*{0,2} allocation on device(?! ?\d)",
            r"allocation on device(?! ?\d| ?would)",
            r"error occurred when executing \w{1,60}: allocation on device",
        ),
        unless=("forge",),
        means="the models and the intermediate results of a step have to fit on the GPU together",
        next_step="a smaller image, fewer frames or a quantized model; start with --lowvram",
        leads=True,
    ),
    MessageKind(
        "torch on cudaMallocAsync",
        level=1,
        seen=(r"allocation on device(?! ?\d| ?would)",),
        means="torch found no memory on the GPU; with the driver's allocator "
        "(cudaMallocAsync), its message has no figures",
        next_step="a smaller image, a smaller factor of an upscaler, or fewer images "
        "or frames at once; stop the other programs that `nvidia-smi` shows",
        leads=True,
    ),
    MessageKind(
        "a CUDA call in ComfyUI",
        seen=(r"exception during processing ?!{0,3} cuda error: out of memory",),
        means="a CUDA call outside torch's allocator got no memory: of the GPU, or of "
        "the host, where ComfyUI pins memory for weights that it keeps off the GPU",
        next_step="a smaller image, fewer frames or a quantized model; start with --lowvram, or "
        "with --disable-pinned-memory where the machine's memory is nearly full",
    ),
    MessageKind(
        "frames of a video in ComfyUI",
        backend="host",
        seen=(r"memory limit hit after loading <frames> frames",),
        means="a node that loads videos stopped before the frames would fill the "
        "machine's free memory and swap, or its own memory_limit_mb",
        next_step="fewer frames (frame_load_cap, select_every_nth), smaller ones "
        "(custom_width, custom_height), or batches (the Meta Batch Manager of "
        "VideoHelperSuite); more memory or swap",
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "the VAE in ComfyUI",
        seen=(
            r"ran out of memory when regular (?:vae)? ?(?:de|en)coding, retrying with tiled"
            r".{0,400}?(?:exception during processing|allocation on device|cuda out of memory)",
        ),
        unless=("gpu <device> has a total",),
        means="the VAE ran out of memory on the whole image or video, and then on its tiles",
        next_step="fewer frames or a smaller image, smaller tiles (VAE Encode or Decode (Tiled)), "
        "or start with --cpu-vae; else unload models (--lowvram)",
    ),
    MessageKind(
        "a second try of ComfyUI",
        seen=(
            r"ran out of memory when regular (?:vae)? ?(?:de|en)coding, retrying with tiled",
        ),
        unless=(
            "exception during processing|allocation on device|cuda out of memory|got an oom",
        ),
        means=(
            "a warning: the VAE ran out of memory on the whole image, and ComfyUI "
            "tries again with tiles"
        ),
        next_step="nothing, if the image appears; the node VAE Decode (Tiled) avoids the first try",
        cause=OomCause.WARNING,
    ),
    MessageKind(
        "ComfyUI, in its log",
        seen=("got an oom, unloading all loaded models",),
        unless=(r"in \w{0,30}_?decode|allocation on device",),
        means="ComfyUI caught torch's out of memory and put its models back into the host's memory",
        next_step="a smaller image, fewer frames or a quantized model; start with --lowvram",
        leads=True,
    ),
    MessageKind(
        "a warning of torch_memory_saver",
        level=2,
        seen=(r"cumemcreate cuda_error_out_of_memory \(may not be an issue",),
        means="a warning: the driver refused memory, and torch may empty its cache and ask again",
        next_step=(
            "nothing, unless an error follows; then a smaller share for the server "
            "beside the trainer"
        ),
        cause=OomCause.WARNING,
    ),
    MessageKind(
        "an APU's share of the host's memory",
        backend="HIP",
        seen=(
            r"hip out of memory\..{0,60}?(?:gpu \d; |total capaci?ty of )(?:\d{1,4}(?:\.\d\d)?mib|"
            r"[0-3]\.\d\dgib)(?:total capaci?ty|of which)",
            r"hip out of memory\..{0,3000}?gfx(?:90c|103[56]|1103|115[0-3])(?!\d)",
            r"gfx(?:90c|103[56]|1103|115[0-3])(?!\d).{0,3000}?hip out of memory\.",
        ),
        means="most likely an APU, whose memory is a part of the host's: what the firmware "
        "reserves for it (UMA frame buffer) and what Linux lets it share (ttm.pages_limit)",
        next_step="give the GPU more of the host's memory: a larger UMA frame buffer in the "
        "firmware (BIOS), or on Linux a higher ttm.pages_limit (`amd-ttm --set GB`); else a "
        "smaller model or batch",
        leads=True,
    ),
    MessageKind(
        "Stable Diffusion's web UI",
        seen=(r"time taken: .{0,24}?a: [\d.]{1,8}gb, r: [\d.]{1,8}gb, sys: ",),
        needs=(_OUT_OF_MEMORY,),
        means="the models and the intermediate results of a step have to fit on the GPU together",
        next_step=(
            "a smaller image or batch; start the web UI with --medvram, or --lowvram on a small GPU"
        ),
        leads=True,
    ),
    MessageKind(
        "Stable Diffusion WebUI Forge, in its log",
        seen=(
            # Its last such line: the model that was loaded when memory ran out.
            r"target: \w{1,60}, free gpu: <free>, model require: <needed>, previously loaded: "
            r"[\d.]{1,12}mb, "
            r"inference require: [\d.]{1,12}mb, remaining: -<lacking>(?!.{0,9000}?, free gpu: \d)",
        ),
        needs=(_OUT_OF_MEMORY,),
        means="the model with what a step needs is larger than what is free, and Forge "
        "keeps a part of it in the machine's memory: what then did not fit may also be "
        "memory that Forge pins there",
        next_step="a smaller or more strongly quantized model, or a lower GPU Weights; "
        "with Swap Location `Shared`, try `CPU`",
        leads=True,
    ),
    MessageKind(
        "split attention of an image generator",
        level=-0.5,
        seen=(
            r"not enough memory, use lower resolution(?: \(max approx\. .{3,12}?\)\. need: "
            r"(?!0\.0gb)"
            r"<needed> free, have: ?<available> free)?",
        ),
        means="the attention of one step does not fit on the GPU, even in 64 parts: the program (a "
        "web UI or ComfyUI with split attention) stopped before it requested memory "
        "from torch's allocator",
        next_step="a smaller image: the message names the largest size; or attention that needs "
        "less memory (--xformers or --opt-sdp-attention in AUTOMATIC1111's web UI), and --medvram "
        "or --lowvram",
    ),
    MessageKind(
        "weights in vLLM",
        seen=(
            "processing method load_model",
            r"vllm[/\\]\S{0,80}?\.py\"?,line\d{1,6},in load_model",
            r"vllm[/\\]model_executor[/\\]models\S{0,60}?,in __init__",
            r"in process_weights_after_loading|(?:gptq|awq)_marlin_\w{0,8}repack"
            r"|vllm[/\\]model_executor[/\\]"
            r"(?:layers[/\\]quantization|model_loader)",
        ),
        needs=(_OUT_OF_MEMORY,),
        unless=(
            (
                r"vllm[/\\]\S{0,80}?\.py\"?,line\d{1,6},in "
                r"(?:execute_model|profile_run|determine_)"
            ),
        ),
        means="it was loading the weights",
        next_step="load the weights in fewer bytes (a quantized model, --dtype), or "
        "spread them over more GPUs (--tensor-parallel-size)",
        leads=True,
    ),
    MessageKind(
        "weights in vLLM",
        level=0.5,
        seen=(
            (
                r"loading safetensors checkpoint shards: \d{1,2}% completed(?!.{0,9000}?100% "
                r"completed)"
            ),
        ),
        needs=(_OUT_OF_MEMORY,),
        unless=("sglang",),
        means="it was loading the weights",
        next_step="load the weights in fewer bytes (a quantized model, --dtype), or "
        "spread them over more GPUs (--tensor-parallel-size)",
        leads=True,
    ),
    MessageKind(
        "weights in vLLM",
        level=0.5,
        seen=(
            r"starting to load model (?!.{0,4000}?(?:model loading|loading model weights) took)",
        ),
        needs=(_OUT_OF_MEMORY,),
        unless=("sglang",),
        means="it was loading the weights",
        next_step="load the weights in fewer bytes (a quantized model, --dtype), or "
        "spread them over more GPUs (--tensor-parallel-size)",
        leads=True,
    ),
    MessageKind(
        "vLLM's trial run",
        level=0.6,
        seen=(
            r"(?:model loading|loading model weights) took "
            r"<weights>(?!.{0,4000}?(?:(?:gpu|npu|cuda) "
            r"blocks:|kv cache size:|available kv cache memory|startup complete))",
        ),
        needs=(_OUT_OF_MEMORY,),
        # A server at work, whose log of the start was shortened.
        unless=(
            "in (?:engine_step|run_engine_loop|run_busy_loop)|avg prompt "
            "throughput|received request|post /v1",
        ),
        means="the weights were loaded, and the text shows no KV cache yet: most "
        "likely a trial run of the largest step did not fit beside them",
        next_step="a smaller step: lower --max-num-batched-tokens or --max-num-seqs; "
        "else quantize, or use more GPUs (--tensor-parallel-size)",
        leads=True,
    ),
    MessageKind(
        "vLLM's warm-up",
        level=0.7,
        seen=(
            r"(?:gpu kv cache size:|(?:gpu|npu|cuda) blocks: [1-9])"
            r"(?!.{0,4000}?(?:startup complete|init engine))",
        ),
        needs=(_OUT_OF_MEMORY,),
        # A server at work, whose log of the start was shortened.
        unless=(
            "in (?:engine_step|run_engine_loop|run_busy_loop)|avg prompt "
            "throughput|received request|post /v1",
        ),
        means="vLLM's KV cache already has its share of the GPU, and the text shows no end of the "
        "start: most likely graphs or a trial run of the warm-up did not fit beside it",
        next_step="lower --gpu-memory-utilization, --max-num-seqs or --max-num-batched-tokens",
        leads=True,
    ),
    MessageKind(
        "weights in SGLang",
        level=0.5,
        seen=(r"load weight begin\.(?!.{0,4000}?load weight end)",),
        needs=(_OUT_OF_MEMORY,),
        means="it was loading the weights",
        next_step="load the weights in fewer bytes (a quantized model, --quantization "
        "fp8), or spread them over more GPUs (--tp)",
        leads=True,
    ),
    MessageKind(
        "the allocation of SGLang's KV cache",
        level=0.6,
        seen=(
            r"load weight end\.(?!.{0,4000}?(?:memory pool end|kv cache is allocated"
            r"|max_total_num_tokens=|capture cuda graph|server is fired up))",
        ),
        needs=(_OUT_OF_MEMORY,),
        also=(
            r"load weight end\..{0,120}?avail mem=<before>, mem usage=<weights>",
            r"load weight end\..{0,120}?avail mem=<before>",
        ),
        means="the weights fitted, and what SGLang builds next beside them, the KV "
        "cache above all, did not",
        next_step="lower --mem-fraction-static; stop other processes on the same GPU",
        leads=True,
    ),
    MessageKind(
        "weights in SGLang",
        seen=(
            r"sglang[/\\]\S{0,80}?\.py\"?,line\d{1,6},in load_model",
            r"sglang[/\\]srt[/\\]models\S{0,60}?,in __init__",
        ),
        needs=(_OUT_OF_MEMORY,),
        unless=(
            r"sglang[/\\]\S{0,80}?\.py\"?,line\d{1,6},in (?:forward|capture)|verl[/\\]|"
            r"capture cuda graph",
        ),
        means="it was loading the weights",
        next_step="load the weights in fewer bytes (a quantized model, --quantization "
        "fp8), or spread them over more GPUs (--tp)",
        leads=True,
    ),
    MessageKind(
        "vLLM's trial run with images",
        level=-0.5,
        seen=(r"vllm[/\\]\S{0,80}?\.py\"?,line\d{1,6},in (?:profile_run|determine_)",),
        needs=(
            _OUT_OF_MEMORY,
            r"in (?:embed_multimodal|get_multimodal_embeddings|_execute_mm_encoder"
            r"|_process_(?:image|video|audio)_input|_?embed_(?:image|vision)\w{0,20}"
            r"|dummy_mm\w{0,20})|self\.(?:visual|vision_\w{1,20})\(",
        ),
        means="beside the weights, the largest image, video or audio that a request "
        "may hold did not fit: vLLM's trial run encodes it",
        next_step="fewer or smaller of them in one request: --limit-mm-per-prompt (0 "
        "for kinds that are not used), or fewer pixels (--mm-processor-kwargs); else "
        "quantize, or use more GPUs",
        leads=True,
    ),
    MessageKind(
        "vLLM's trial run",
        seen=(
            r"vllm[/\\]\S{0,80}?\.py\"?,line\d{1,6},in (?:profile_run|determine_)",
            "while processing method determine_num_available_blocks",
        ),
        needs=(_OUT_OF_MEMORY,),
        means="beside the weights, the activations of the largest step did not fit",
        next_step="a smaller step: lower --max-num-batched-tokens or --max-num-seqs; "
        "else quantize, or use more GPUs (--tensor-parallel-size)",
        leads=True,
    ),
    MessageKind(
        "vLLM's start",
        level=0.9,
        seen=(
            r"enginecore failed to start|enginecoreproc\(|engine core initialization failed|"
            r"engine process failed to start|in run_mp_engine",
            # The command itself ends with an error only where its server did not start.
            r"bin[/\\]vllm\"?,line\d{1,6},in \Wmodule\W|vllm\S{0,80}?\.py\"?,line\d{1,6},in "
            r"(?:from_engine_args|from_vllm_config|_init_engine|_init_executor"
            r"|build_async_engine_client\w{0,20})",
            r"(?:line\d{1,6}|-->\d{1,4}),? ?in ?[\w<>\W]{1,20}llm=llm\(|"
            r"vllm\S{0,80}?llm\.py\"?,line\d{1,6}"
            r", in __init__",
        ),
        needs=(_OUT_OF_MEMORY, r"vllm|worker_[dtpe]p"),
        unless=(r"trl[/\\]trainer|verl[/\\]|openrlhf|in load_model",),
        means="memory ran out while vLLM started, before it served anything: the weights, or what "
        "it builds beside them (its trial run, the KV cache, graphs), need more than the GPU has",
        next_step="if the weights alone do not fit, a quantized or smaller model or "
        "more GPUs (--tensor-parallel-size); if they do, lower "
        "--gpu-memory-utilization, --max-model-len or --max-num-seqs",
        leads=True,
    ),
    MessageKind(
        "vLLM",
        level=1,
        seen=(
            r"vllm(?:_ascend|_omni)?[/\\][\w/\\]{1,80}\.py\"?,line\d",
            r"vllm[/\\](?:v1|engine|worker|executor|entrypoints|model_executor)[/\\]",
            # What stands before its lines, which compacted() takes off.
            r"vllmworker|\((?:enginecore|worker_[dtpe]p|apiserver)|"
            r"\[(?:worker_base|multiproc_worker_utils|multiproc_executor|gpu_worker|"
            r"gpu_model_runner|"
            r"(?:async_)?llm_engine|async_llm"
            r"|core_client)\.py:|"
            r"(?:info|warning|error)\d\d-\d{4}:\d\d:\d\d\[core\.py:",
            r"vllm serve |vllm\.entrypoints\.|from vllm import|import vllm|vllm_use_v1=",
            # In a person's words; not in a list of packages.
            r"(?:(?:using|use|with|run|running|by|and|think) vllm|vllm "
            r"(?:version|server|engine|docker))"
            r"(?![=/\\\d_.])",
            (
                r"vllm\.(?:v1|engine|worker|executor)|mqllmengine|error in model execution \(input "
                r"dumped to"
            ),
            r"gpu[-_]memory[-_]utilization ?=? ?0?\.\d",
            # Its words about the KV cache, and settings of its own.
            r"maximum concurrency for [\d,]{1,12} tokens per request|"
            r"gpu kv cache size: [\d,]{1,14} "
            r"tokens|# (?:gpu|cuda) blocks: \d|memory profiling takes \d|model loading took \d|"
            r"init engine \(profile|available kv cache memory: ",
            "max[-_]model[-_]len|max[-_]num[-_]batched[-_]tokens|enforce[-_]eager",
        ),
        needs=(_OUT_OF_MEMORY,),
        unless=(r"trl[/\\]trainer|verl[/\\]|openrlhf|in load_model",),
        means=(
            "vLLM fills its share of the GPU with weights and KV cache, and a step "
            "needs more than it left"
        ),
        next_step="lower --gpu-memory-utilization, --max-num-batched-tokens or --max-num-seqs; "
        "while weights are loaded, a quantized model or more GPUs (--tensor-parallel-size)",
        leads=True,
    ),
    MessageKind(
        "SGLang's start",
        level=0.9,
        seen=(
            r"sglang[/\\]srt[/\\]managers[/\\](?:scheduler|tp_worker)\.py\"?,line\d{1,6},in "
            r"__init__",
        ),
        needs=(_OUT_OF_MEMORY,),
        unless=(r"verl[/\\]|in load_model",),
        means="memory ran out while SGLang started, before it served anything: the weights, or "
        "what it builds beside them (the KV cache, graphs), need more than the GPU has",
        next_step="if the weights alone do not fit, a quantized or smaller model or more GPUs "
        "(--tp); if they do, lower --mem-fraction-static, --context-length or --cuda-graph-max-bs",
        leads=True,
    ),
    MessageKind(
        "SGLang",
        level=1,
        seen=(
            r"sglang[/\\]srt[/\\]|sglang\.launch_server",
            r"load weight (?:begin|end)\. .{0,120}?avail mem=|memory pool end\. avail mem=|"
            r"max_total_num_tokens=\d|kv cache is allocated\. ",
        ),
        needs=(_OUT_OF_MEMORY,),
        unless=(r"verl[/\\]",),
        means=(
            "SGLang's static share of the GPU holds weights and KV cache; a step needs "
            "more than it left"
        ),
        next_step="lower --mem-fraction-static, --chunked-prefill-size or --max-running-requests; "
        "while weights are loaded, a quantized model or more GPUs (--tp)",
        leads=True,
    ),
    MessageKind(
        "SGLang Diffusion",
        level=1,
        seen=(r"sglang[/\\]multimodal_gen|sglang generate",),
        needs=(_OUT_OF_MEMORY,),
        means="the models and the intermediate results of a step do not fit on the GPU together",
        next_step="--dit-layerwise-offload (or --dit-cpu-offload), --text-encoder-cpu-offload and "
        "--vae-cpu-offload; a smaller image or fewer frames; or more GPUs (--num-gpus)",
        leads=True,
    ),
    MessageKind(
        "weights in LMDeploy",
        seen=(
            r"lmdeploy\S{0,80}?\.py\"?,line\d{1,6},in "
            r"(?:_?build_model|load_model_weights|_?create_weight|process_weight)",
        ),
        needs=(_OUT_OF_MEMORY,),
        unless=(
            r"lmdeploy\S{0,80}?\.py\"?,line\d{1,6},in (?:forward|_forward_impl|warmup)",
        ),
        means="LMDeploy was loading the weights",
        next_step=(
            "a quantized model or more GPUs (--tp); stop the other processes that "
            "`nvidia-smi` shows"
        ),
        leads=True,
    ),
    MessageKind(
        "LMDeploy",
        level=1,
        seen=(r"lmdeploy[/\\](?:pytorch|turbomind|serve|cli|messages|api|archs)",),
        needs=(_OUT_OF_MEMORY,),
        means="LMDeploy's KV cache takes a share of what the weights leave free, and a "
        "step needs more than the rest",
        next_step="lower cache_max_entry_count (--cache-max-entry-count) or max_prefill_token_num; "
        "while weights are loaded, a quantized model or more GPUs (--tp)",
        leads=True,
    ),
    MessageKind(
        "weights in TensorRT-LLM",
        seen=(
            r"tensorrt_llm\S{0,80}?\.py\"?,line\d{1,6},in "
            r"(?:_?load_model|_?load_weights\w{0,12}|create_weights|init_meta_tensor)",
        ),
        needs=(_OUT_OF_MEMORY,),
        unless=(r"tensorrt_llm\S{0,80}?\.py\"?,line\d{1,6},in (?:forward|warmup)",),
        means="TensorRT-LLM was loading the weights",
        next_step="a quantized model, or more GPUs (--tp_size, --ep_size); stop the "
        "other processes that `nvidia-smi` shows",
        leads=True,
    ),
    MessageKind(
        "TensorRT-LLM",
        level=1,
        seen=(
            (
                r"tensorrt_llm[/\\][\w/\\]{1,80}\.py\"?,line\d|trtllm-serve|max tokens in paged kv "
                r"cache"
            ),
        ),
        needs=(_OUT_OF_MEMORY,),
        means="the weights, the KV cache or a step of TensorRT-LLM did not fit",
        next_step="lower free_gpu_memory_fraction of the KV cache "
        "(--kv_cache_free_gpu_memory_fraction), max_num_tokens or max_batch_size; "
        "while weights are loaded, a quantized model or more GPUs",
        leads=True,
    ),
    MessageKind(
        "a model in InvokeAI",
        seen=(r"insufficient gpu memory to load model\. aborting",),
        means="InvokeAI caught torch's out of memory while it moved a model to the GPU",
        next_step="enable_partial_loading: true in invokeai.yaml, or a smaller or "
        "quantized model; stop the other programs that `nvidia-smi` shows",
        leads=True,
    ),
    MessageKind(
        "InvokeAI",
        level=1,
        seen=(r"invokeai[/\\]|\[invokeai\]::",),
        needs=(_OUT_OF_MEMORY,),
        means="the models in InvokeAI's cache and the intermediate results of a step have to fit "
        "on the GPU together",
        next_step="enable_partial_loading: true and a larger device_working_mem_gb (3 "
        "by default) in invokeai.yaml; or a smaller image; while weights are loaded, "
        "enable_partial_loading: true in invokeai.yaml, or a smaller or quantized model",
        leads=True,
    ),
    MessageKind(
        "Fooocus",
        level=1,
        seen=(r"fooocus|ldm_patched[/\\]",),
        needs=(_OUT_OF_MEMORY,),
        unless=("forge",),
        means="the models and the intermediate results of a step have to fit on the GPU together",
        next_step="a smaller image; start with --always-low-vram, or --always-no-vram",
        leads=True,
    ),
    MessageKind(
        "Stable Diffusion's web UI",
        level=1,
        seen=(
            r"stable-diffusion-webui|webui-forge|sd-webui|(?<!generation-)webui[/\\]modules|"
            r"modules[/\\](?:processing|sd_samplers|sd_models|sd_hijack|txt2img|img2img"
            r"|call_queue)",
        ),
        needs=(_OUT_OF_MEMORY,),
        unless=(r"in train\w{0,20}|train_\w{1,20}\.py|in _?decode",),
        means="the models and the intermediate results of a step have to fit on the GPU together",
        next_step="a smaller image or batch; start AUTOMATIC1111's web UI with "
        "--medvram (--lowvram on a small GPU); in Forge, lower GPU Weights",
        leads=True,
    ),
    MessageKind(
        "ComfyUI",
        level=1,
        seen=(
            # Not the environment that another program shares with it.
            r"comfyui[\w.-]{0,40}[/\\](?!\.?v?env[/\\])|comfy[/\\]\w{1,30}\.py|"
            r"execution\.py\"?,line\d{1,5},in (?:recursive_execute|get_output_data|map_node)|got "
            r"prompt(?=requested|model|loaded|using)|"
            r"exception during processing ?!|prompt executed in \d",
        ),
        needs=(_OUT_OF_MEMORY,),
        unless=(r"in \w{0,30}_?decode",),
        means="the models and the intermediate results of a step have to fit on the GPU together",
        next_step="a smaller image, fewer frames or a quantized model; start with --lowvram",
        leads=True,
    ),
    MessageKind(
        "ONNX Runtime in a browser",
        backend="host",
        level=0.5,
        seen=("failed to allocate a buffer of size <tried>",),
        needs=(
            r"ort[.-]\w{0,12}\.?bundle|ort-w(?:eb|asm)|onnxruntime-web|transformers\.js",
        ),
        means="a model's weights have to lie in one buffer of the browser's memory for the program "
        "(WebAssembly: 4 GiB at most, often less in one piece): not the GPU's memory",
        next_step="quantized weights (dtype: 'q4' or 'q8' in transformers.js) or a smaller model; "
        "weights in external files (use_external_data_format); one part loaded after the other",
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "a program that edits videos",
        level=2,
        seen=("your gpu memory is full",),
        means="DaVinci Resolve or a program like it found no GPU memory, or no GPU that it can "
        "use: the text has no figures",
        next_step="if `nvidia-smi` shows that the memory is not full, choose the GPU in the "
        "program's settings and install the driver with CUDA and OpenCL; else a lower resolution "
        "of the timeline, fewer effects, and close other programs that use the GPU",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "an image generator",
        level=3,
        seen=(
            r"in comfy(?!\w)|comfyui(?![\w.-]{0,40}[/\\]\.?v?env[/\\])|loadimage|saveimage|"
            r"could not generate (?:the)? image|image\(s\) generated|txt2img|img2img|text[- ]to[- "
            r"]image|"
            "generat(?:e|ing) (?:an|the)? image|hires\\.? ?fix",
            r"text[- ]?to[- ]?video|image[- ]?to[- ]?video|save_video|num_frames|wanvideo|"
            r"(?:t2v|i2v)[-_]\d",
        ),
        needs=(_OUT_OF_MEMORY,),
        unless=(
            r"in train\w{0,20}|train_\w{1,20}\.py|optimizer|epoch\W{0,2}\d|learning_?rate|training|"
            r"in _?decode|diffusers[/\\]",
        ),
        means="the models and the intermediate results of a step have to fit on the GPU together",
        next_step="a smaller image, or fewer images or frames at once; or keep a part "
        "of the models on the CPU (--medvram or --lowvram in web UIs, "
        "enable_model_cpu_offload() in diffusers)",
        leads=True,
    ),
    MessageKind(
        "a server of a model",
        level=3,
        seen=(r"\"post /\S{1,80}? http/\d",),
        needs=(_OUT_OF_MEMORY,),
        means="memory ran out while a server answered a request",
        next_step="fewer or shorter requests at once (images, tokens, a smaller batch of the "
        "server), or a smaller or quantized model; `nvidia-smi` shows what other programs hold",
        leads=True,
    ),
    MessageKind(
        "LMCache's pool",
        backend="host",
        seen=(
            r"failed to allocate memory block of size <tried>\"? ?because no memory is available",
            r"failed to allocate memory for tensor\(.{1,120}?because no memory is available",
        ),
        means="LMCache's own pool for KV caches, most often the one in host memory, "
        "has no room for more: neither the GPU nor the machine's memory is full",
        next_step="a larger pool (LMCACHE_MAX_LOCAL_CPU_SIZE, in GB for each worker), "
        "or fewer requests at once; a newer LMCache where the pool never empties",
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "a model that was not loaded",
        backend="device",
        level=2.5,
        seen=(
            r"(?:failed|unable|not able) to load (?:the )?model(?! ?(?:card|config))|could "
            r"?n[o']t (?:be )?load(?:ed)? "
            r"(?:the )?model|model \S{1,60}? could not be "
            r"loaded|\u6a21\u578b\u672a\u6210\u529f\u52a0\u8f7d",
        ),
        needs=(_OUT_OF_MEMORY,),
        unless=(
            r"in train\w{0,20}|train_\w{1,20}\.py|optimizer|epoch\W{0,2}\d|ggml|llama_",
        ),
        means="the program says that it could not load the model: the weights did not fit into "
        "what was free, of the GPU or, where they pass through it, of the machine",
        next_step="a smaller model, or weights in fewer bytes (bf16, 8 or 4 bits); a part of them "
        "on the CPU or another GPU; a smaller batch does not help while weights are loaded",
        cause=OomCause.UNKNOWN,
        leads=True,
    ),
    MessageKind(
        "a model as it is loaded",
        backend="device",
        level=2.6,
        seen=(
            r"(?:while|when|trying to|tried to|try to|during) (?:i )?(?:the )?load(?:ing)?"
            r"[\w./ -]{0,60}?(?:model|checkpoint|weights|shards)",
            r"\.from_(?:pretrained|quantized)(?:\([^()]{0,80}\))? to load",
        ),
        needs=(_OUT_OF_MEMORY,),
        unless=(
            r"train(?!ed)|fine-?tun|optimizer|epoch\W{0,2}\d|backward|inference|in forward|in "
            r"generate|"
            r"loads? fine|ggml|llama_|comfy|diffus",
        ),
        means="the text says that a model was being loaded: the weights did not fit "
        "into what was free",
        next_step="weights in fewer bytes (bf16, 8 or 4 bits) or a smaller model; a "
        "part of them on the CPU or another GPU (without a .cuda() of the whole); a "
        "smaller batch does not help while weights are loaded",
        cause=OomCause.UNKNOWN,
        leads=True,
    ),
    MessageKind(
        "Xinference",
        level=1,
        seen=(
            "model actor is out of memory",
            "batch (?:inference|text_to_image) out of memory. xinference will restart",
        ),
        means="Xinference stopped the model's process because torch ran out of GPU memory",
        next_step="fewer models on this GPU, a quantized model, or shorter and fewer "
        "requests at once; `xinference terminate` stops a model",
        leads=True,
    ),
    MessageKind(
        "ExLlama's cache",
        level=0.8,
        seen=(r"exllamav?\d?[/\\]cache\w{0,12}\.py\"?,line\d",),
        needs=(_OUT_OF_MEMORY,),
        means="it was allocating the cache of the context, which did not fit beside the weights",
        next_step="a shorter cache (max_seq_len) or a quantized one, a smaller model, "
        "or a part of it on another GPU",
        leads=True,
    ),
    MessageKind(
        "weights in a local program for language models",
        level=0.9,
        seen=(
            r"modules[/\\]\w{1,20}\.py\"?,line\d{1,6},in (?:load_model\w{0,12}|load_quantized)|"
            r"exllamav?\d?[/\\][\w/\\]{1,30}\.py\"?,line\d{1,6},in load(?!_state)|"
            r"(?:while|when|trying to|after) loading \S{1,80}?(?:gptq|awq|exl2|exl3)",
        ),
        needs=(_OUT_OF_MEMORY,),
        unless=(
            r"in (?:generate\w{0,20}|gentask|forward|_?sample)(?!\w)|vllm[/\\]|sglang|"
            "stable[ _-]?diffusion",
        ),
        means="it was loading the weights, with which some loaders also allocate the "
        "cache of the context",
        next_step="weights in fewer bytes (quantized to 4 bits or less), a shorter "
        "context, or a part of the layers on the CPU or another GPU",
        leads=True,
    ),
    MessageKind(
        "a local program for language models",
        level=1,
        seen=(
            r"text-generation-webui[/\\]|oobabooga|modules[/\\](?:text_generation|models"
            r"|callbacks)\.py|"
            r"exllama\w{0,4}[/\\]|fastchat[/\\]|tabbyapi[/\\]|koboldai|ktransformers|mistralrs|"
            "candle_core",
            r"starting the web ui\.|exllama|loading \S{1,80}?(?:gptq|awq|exl2|gguf)",
        ),
        needs=(_OUT_OF_MEMORY,),
        means=(
            "the weights, the context's KV cache and a step of the model do not fit on "
            "the GPU together"
        ),
        next_step="a model quantized to 8 or 4 bits, a shorter context or prompt, or a "
        "part of the layers on the CPU or another GPU",
        leads=True,
    ),
    MessageKind(
        "Infinity's server",
        level=1,
        seen=("infinity_emb",),
        needs=(_OUT_OF_MEMORY,),
        means="the model and a batch of texts or images have to fit on the GPU together",
        next_step="lower --batch-size, or split long texts before they are sent",
        leads=True,
    ),
    MessageKind(
        "text-embeddings-inference",
        level=1,
        seen=(r"text_embeddings_(?:server|backend|router)|text-embeddings-router",),
        needs=(_OUT_OF_MEMORY,),
        means="the trial run did not fit: it has as many tokens as the server allows at once",
        next_step="lower --max-batch-tokens; or --dtype float16",
        leads=True,
    ),
    MessageKind(
        "a warning of text-generation-inference",
        level=2,
        seen=(
            "reducing the max batch prefill from <length> to <fits> because there is not",
        ),
        means="a warning: the server's largest prefill does not fit into the GPU's memory, so that "
        "text-generation-inference takes a smaller one and goes on",
        next_step="nothing, if the server starts; else lower --max-batch-prefill-tokens and "
        "--max-input-tokens yourself",
        cause=OomCause.WARNING,
    ),
    MessageKind(
        "text-generation-inference's KV cache",
        seen=("out of available cache blocks: asked <pages>, only <free_slots> free",),
        means="text-generation-inference's pool of blocks for the KV cache is full: "
        "its router let in more requests than the server has blocks for",
        next_step="a newer release, in which the router counts the blocks itself; else "
        "lower --max-batch-total-tokens or --max-batch-prefill-tokens",
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "graph capture in text-generation-inference",
        seen=(r"capture_end\(|torch[/\\]cuda[/\\]graphs\.py",),
        needs=("out of memory", r"text_generation_(?:server|launcher|client|router)"),
        means="captured CUDA graphs took the memory that the weights and the KV cache left free",
        next_step="capture fewer or smaller graphs (--cuda-graphs 1,2,4; 0 for none), "
        "or lower --cuda-memory-fraction or --max-batch-total-tokens",
        leads=True,
    ),
    MessageKind(
        "text-generation-inference's start",
        level=0.9,
        seen=(
            "shard ?cannot ?start|shard \\d{1,4} failed to start|error when initializing model",
        ),
        needs=(_OUT_OF_MEMORY,),
        means="memory ran out while a shard of this server started: most often the "
        "weights are larger than the GPU",
        next_step="more GPUs (--num-shard), --quantize or a smaller model; if the "
        "weights fit, lower --max-batch-prefill-tokens",
        leads=True,
    ),
    MessageKind(
        "a step of text-generation-inference",
        level=0.8,
        seen=(
            "method (?:prefill|decode|clear_?cache) encountered an error",
            r"batch\{batch_size=\d{1,6}\}:(?:prefill|decode)",
        ),
        needs=(_OUT_OF_MEMORY,),
        means="the server had started, and a step of the requests that it ran at once "
        "did not fit beside the weights and the KV cache",
        next_step="lower --max-batch-prefill-tokens and --max-batch-total-tokens, or "
        "--max-input-tokens for shorter requests",
        leads=True,
    ),
    MessageKind(
        "text-generation-inference's server",
        level=1,
        seen=(
            r"text_generation_(?:server|launcher|client|router)|text-generation-launcher|"
            r"text_generation[./\\](?:client|errors)",
        ),
        needs=(_OUT_OF_MEMORY,),
        means="the weights, the KV cache or a step of this server did not fit",
        next_step="lower --max-batch-prefill-tokens or --max-batch-total-tokens; while "
        "weights are loaded, --quantize or more GPUs (--num-shard)",
        leads=True,
    ),
    MessageKind(
        "kernel code beside XLA's pool",
        seen=(
            r"failed to load in-memory cubin.{0,80}?cuda_error_out_of_memory",
            "jax pre-?allocating too much device memory",
        ),
        means="JAX takes most of the GPU at its start, and CUDA or a library found no "
        "memory beside that pool for its code; or another process holds the rest",
        next_step="XLA_PYTHON_CLIENT_MEM_FRACTION=0.6, or XLA_PYTHON_CLIENT_PREALLOCATE=false; "
        "stop the other processes that `nvidia-smi` shows",
    ),
    MessageKind(
        "the CUDA driver, as weights are loaded",
        level=1.4,
        seen=("cuda driver error: (?:2 \\()?out of memory",),
        needs=(LOADING,),
        means="the driver refused memory while the program put weights on the GPU: "
        "they do not fit there, or other programs hold memory",
        next_step="weights in fewer bytes (a checkpoint of 8 or 4 bits, which needs no "
        "16 bits while it is loaded), a smaller model, or more GPUs; stop the other "
        "processes that `nvidia-smi` shows",
    ),
    MessageKind(
        "the start of CUDA",
        seen=(
            r"cuda initialization: (?:unexpected error from )?\S{0,200}?error 2: out of memory",
        ),
        means="CUDA did not start, so torch saw no GPU and went on without it: the driver had no "
        "memory for its own start, of the GPU or of the host, before the program used any; a "
        "driver or WSL that does not fit the torch installed says the same",
        next_step="`nvidia-smi` and `free -g`: stop what fills the GPU or the machine, and look at "
        "`ulimit -v`; else restart the machine (under WSL: wsl --shutdown) or update the driver",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "a CUDA context",
        level=1.4,
        seen=(
            r"(?:cuctxcreate|cudeviceprimaryctxretain)(?:_v\d)?(?:(?: call)? failed|"
            r" (?:results in|returned|resulted in)|:) ?\S{0,40}?out_?of_?memory",
            r"cuda_(?:error_)?out_of_memory\S{0,200}?(?:cuctxcreate|cudeviceprimaryctxretain)",
        ),
        means="the driver refused the context that every program makes first on a GPU: the "
        "GPU was full before this program had used it",
        next_step="stop the other processes that `nvidia-smi` shows, also those of earlier runs, "
        "or use another device",
    ),
    MessageKind(
        "the CUDA driver",
        level=1.5,
        seen=(
            r"cuda driver error: (?:2 \()?out of memory",
            r"curesult error:? result=2(?!\d)",
            (
                r"cuda_(?:error_)?out_of_memory(?! \(may not be an issue)|cumem\w{1,30} failed: "
                r"out "
                r"of memory"
            ),
        ),
        unless=("failed to allocate request for",),
        means="the driver refused memory: the GPU is full, or a context or a kernel "
        "did not fit; in a torch program with expandable segments, no page was left",
        next_step=(
            "a smaller batch, model or input; stop the other processes that `nvidia-smi` shows"
        ),
    ),
    MessageKind(
        "torch up to 1.0",
        seen=(r"cuda runtime err(?:or)? ?:?\(2\)|thcudacheck fail \S{0,200}error=2",),
        unless=("hostallocator",),
        means="torch up to 1.0, or Torch for Lua, writes this when its allocator finds "
        "no memory on the GPU; the text does not say what holds it",
        next_step="a smaller batch or model; `nvidia-smi` shows what other processes hold",
    ),
    MessageKind(
        "spconv",
        seen=(r"cuda execution failed with error 2(?!\d)|spconv\S{0,200}?out of memory",),
        means=(
            "spconv allocates its tables outside torch's allocator, or too many voxels were active"
        ),
        next_step=f"fewer points or larger voxels; {_LEAVE_ROOM}",
    ),
    MessageKind(
        "MIOpen",
        backend="HIP",
        seen=("memory not available to allocate buffer: <tried>",),
        means="MIOpen, AMD's library for convolutions, found no memory on the GPU",
        next_step="a smaller batch or input; stop the other processes that `amd-smi process` shows",
    ),
    MessageKind(
        "pinned memory of HIP",
        backend="host",
        seen=(
            (
                r"hiphost(?:register|malloc)\S{0,120}?(?:hiperroroutofmemory|code:2(?!\d)|out of "
                r"memory)"
            ),
            r"hiperroroutofmemory\S{0,120}?hiphost(?:register|malloc)",
        ),
        means="the driver could not pin memory of the host: the machine's memory, or "
        "what may be locked of it, is used up, or the address was not valid; the GPU's "
        "own memory did not run out",
        next_step="pin less at once; `free -g` and `ulimit -l` while it runs; check "
        "the pointer and the size that the program passes",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "a HIP call outside torch's allocator",
        backend="HIP",
        seen=(
            "hip error: out of memory|hiperroroutofmemory|hipmalloc failed: out of memory",
        ),
        means="a HIP call outside torch's allocator got no memory, or the GPU was full "
        "when the process started",
        next_step="stop the other processes that `amd-smi process` shows",
    ),
    MessageKind(
        "a CUDA call, or torch 0.4",
        level=1.4,
        seen=(r"runtimeerror: cuda error: ?out of memory",),
        # Words, and versions of Python, that are newer than torch 0.4.
        unless=(
            r"asynchronously reported|cuda_launch_blocking|torch_use_cuda_dsa|exception raised "
            r"from|python3\.(?:[89]|1\d)|torch\.compile|vllm|sglang",
        ),
        means="a CUDA call got no memory: in torch 0.4 its allocator, which found the GPU full; in "
        "newer torch a call outside it (at the start of a process its context, as the GPU is "
        "already full; later a library, a kernel, or pinned memory of the host, whatever the GPU "
        "has free)",
        next_step=_OUTSIDE_STEP,
    ),
    MessageKind(
        "a CUDA call outside torch's allocator",
        level=1.5,
        seen=(
            r"cuda ?(?:runtime )?error:?(?: (?:in|at) \S{1,120}?:)? ?\"?out of memory",
            r"cuda error 2(?:: | at \S{0,200}?)out of memory",
            "cudaerrormemoryallocation|cudamalloc (?:retry )?failed: out of "
            "memory|cudamalloc error out of memory",
            r"cu(?:da)?mem\w{1,24}\([^()]{0,120}\) failed with error out of memory",
            r"cudamalloc\w{0,20}\([^()]{0,120}\).{0,40}?out of memory",
            r"2 vs\.? 0\)?\S{0,200}?out of memory|parallel_for failed: out of memory|out of memory "
            r"\S{0,60}?cuda_utils",
            r"cuda: out of memory|error out of memory at line \d",
            r"cudasuccess\S{0,60}?out of memory",
            r"caffe2[/\\]\S{0,80}?\.cu:\d{1,5}:? out of memory",
        ),
        means="a CUDA call outside torch's allocator got no memory: at the start of a process its "
        "context (the GPU is already full), later a library, a kernel, a program without torch, or "
        "pinned memory of the host, whatever the GPU has free",
        next_step=_OUTSIDE_STEP,
    ),
    MessageKind(
        "Intel's limit of a block",
        backend="XPU",
        level=0.5,
        seen=(
            "current platform can ?not allocate memory block with size larger than 4 ?gb",
        ),
        also=(r"allocate <tried> ?(?:\(gpu|\. gpu)",),
        means=(
            "one tensor is larger than the 4 GiB that Intel's driver allows for a "
            "block, whatever is free"
        ),
        next_step="smaller tensors: a smaller batch, or the work in pieces",
        cause=OomCause.LIMIT,
        leads=True,
    ),
    MessageKind(
        "XPU's resources",
        backend="XPU",
        seen=(
            "(?:ur|ze)_result_error_out_of_resources|pi_error_out_of_resources",
            r"backend failed with error: 40(?!\d)|backend returns: ?40(?!\d)",
        ),
        means="Intel's driver lacked a resource: most often GPU memory (the GPU is "
        "full, or one block is larger than the driver allows: 4 GiB on some GPUs), "
        "else a kernel or the driver failed",
        next_step="a smaller batch, or smaller blocks; `xpu-smi` shows other "
        "processes; if little is in use, a newer driver and torch",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "XPU",
        backend="XPU",
        seen=(
            "(?:ur|ze)_result_error_out_of_(?:device|host)_memory|pi_error_out_of_host_memory",
            "level_zero backend failed with error: 39",
        ),
        means="Intel's driver refused memory: the GPU is full, one block is larger than the driver "
        "allows (4 GiB on some), or an integrated GPU has used up its share of the host's memory",
        next_step="a smaller batch, or smaller blocks; `xpu-smi` for other processes",
    ),
    MessageKind(
        "a Metal buffer",
        backend="MPS",
        seen=(
            r"invalid buffer size: (?P<tried>[\d.]{1,12}[mgt]i?b)",
            r"total bytes of ndarray > 2\*\*32|product of dimension sizes > 2\*\*3[12]",
        ),
        means="one tensor is larger than Metal's largest buffer, whatever is free",
        next_step=NEXT_STEPS[OomCause.TOO_LARGE],
        cause=OomCause.TOO_LARGE,
    ),
    MessageKind(
        "a stopped command of Metal",
        backend="MPS",
        seen=(
            r"impacting interactivity "
            r"\(\w{8}|kiogpucommandbuffercallbackerror(?:impactinginteractivity|timeout)",
        ),
        means="no memory ran out: macOS stopped a GPU command that took too long, "
        "because the screen needed the GPU",
        next_step="less work in one command (a shorter prompt, smaller steps of the prompt, a "
        "smaller batch), and fewer other programs that draw; else a newer release of the program",
        cause=OomCause.OTHER_MEMORY,
    ),
    MessageKind(
        "an ignored command of Metal",
        backend="MPS",
        level=2,
        seen=("kiogpucommandbuffercallbackerrorsubmissionsignored",),
        means="macOS ignored this GPU command because earlier ones of the process had "
        "failed: the first error above says why, which may be memory",
        next_step="look for the first `[METAL]` or `IOGPU` error in the log; none: a "
        "newer release of the program, or a smaller model or context",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "Metal",
        backend="MPS",
        seen=(
            "kiogpucommandbuffercallbackerroroutofmemory",
            "command buffer execution failed: insufficient memory",
            r"insufficient memory \((?:ioaf code)?0{0,7}8",
            r"command buffer \d{1,4} failed with status \d (?:error: )?out of memory",
        ),
        means="macOS stopped a GPU command because the machine's memory was used up",
        next_step="close other programs; a smaller model, batch or context",
    ),
    MessageKind(
        "Vulkan's driver, on the host",
        backend="host",
        level=1,
        seen=("(?<!result_)error_?out_?of_?host_?memory",),
        means="Vulkan's driver got no memory of the host, or met a limit of the process (open "
        "files, mappings), or failed for another reason: drivers use this word for several",
        next_step="`free -g` and `ulimit -n` while it runs; else the releases of the "
        "driver and the program that belong together",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "Vulkan",
        level=1,
        seen=(
            "(?<!limit: )erroroutofdevicememory|vk(?:result: )?_?error_out_of_device_memory|error "
            "allocating "
            r"vulkan memory|vk error code: "
            r"error_out_of_device_memory|oomerror\(outofdevicememory\)",
        ),
        unless=("failed to allocate pinned memory",),
        also=(r"suballocate\(\) failed for \w{1,40} size: <tried>",),
        means="the GPU's memory ran out, or one block is larger than the driver allows",
        next_step="close other programs that use the GPU; a smaller model, scene, image or batch",
    ),
    MessageKind(
        "node-llama-cpp's context",
        seen=(
            (
                r"a context size of <length>(?: with <sequences> sequences)? is too large for the "
                r"available vram"
            ),
        ),
        means="node-llama-cpp estimated that the KV cache and the compute buffers of "
        "this context do not fit beside the weights into what the GPU has free, and "
        "did not try: no memory ran out",
        next_step=(
            'a smaller contextSize, or "auto"; fewer sequences, fewer gpuLayers, or a smaller model'
        ),
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "node-llama-cpp's context, on the host",
        backend="host",
        seen=(
            (
                r"a context size of <length>(?: with <sequences> sequences)? is too large for the "
                r"available ram"
            ),
        ),
        means="node-llama-cpp estimated that the KV cache and the compute buffers of this context "
        "do not fit into what the machine has free, and did not try: no memory ran out",
        next_step='a smaller contextSize, or "auto"; fewer sequences, or a smaller model',
        cause=OomCause.HOST,
    ),
    MessageKind(
        "PowerInfer's budget",
        seen=("vram_allocated_bytes < vram_capacity",),
        means=(
            "the layers that PowerInfer always puts on the GPU are larger than its "
            "budget of GPU memory"
        ),
        next_step="a larger --vram-budget, where the GPU has more free, or a smaller "
        "model; releases of 2023 also stopped here by mistake",
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "LightGBM on OpenCL",
        seen=(r"compute::opencl_error\S{0,40}memory object allocation failure",),
        means="one buffer of the data is larger than OpenCL allows on this device "
        "(often a quarter of its memory), or the device is full",
        next_step='fewer bins (max_bin=63) or less data on the GPU; or device_type="cuda", which '
        "does not use OpenCL",
    ),
    MessageKind(
        "OpenVINO on the GPU",
        seen=(
            r"exceeded max size of memory allocation: required <tried>, already occupied ?: "
            r"<used>, but "
            r"available "
            "memory size is <total>",
            "exceeded max size of memory allocation, check debug message",
        ),
        unless=("performance might drop due to memory swap",),
        means="what OpenVINO already holds and this request are more than the GPU has, "
        "or one buffer is larger than its driver allows",
        next_step="weights in fewer bytes (int8 or int4), a smaller batch or a shorter "
        "context, or fewer models on this GPU",
    ),
    MessageKind(
        "OpenVINO beyond the GPU's memory",
        level=2,
        seen=(
            r"exceeded max size of memory allocation: required <tried>, already occupied ?: "
            r"<used>, but "
            r"available "
            "memory size is <total>",
        ),
        needs=("performance might drop due to memory swap",),
        means="a warning: OpenVINO takes more than the GPU has, Windows moves some of "
        "it to the machine's memory, and the model may become slow",
        next_step="nothing, if it is fast enough; else weights in fewer bytes (int8 or "
        "int4), a smaller batch or a shorter context",
        cause=OomCause.WARNING,
    ),
    MessageKind(
        "OpenVINO GenAI's KV cache",
        seen=("got unfinished generationstatus",),
        means="OpenVINO GenAI gave up a generation, most often because the prompt and its answer "
        "did not fit into the pool of its KV cache (cache_size): no memory ran out",
        next_step="a larger cache_size in SchedulerConfig (GB; --cache_size in "
        "OpenVINO Model Server), or a shorter prompt",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "a buffer of OpenVINO",
        seen=(
            "exceeded max size of memory object allocation: requested <tried>, but max "
            "alloc size supported by device is <limit>",
        ),
        means="one buffer is larger than the GPU's driver allows, whatever is free",
        next_step="a smaller batch or a shorter context, or lower precision; or, in a "
        "new release, the property GPU_ENABLE_LARGE_ALLOCATIONS=YES, which allows a "
        "larger buffer where enough is free",
        cause=OomCause.TOO_LARGE,
    ),
    MessageKind(
        "OpenCL, on the host",
        backend="host",
        seen=(
            (
                "cl_out_of_host_memory|lightgbmerror: out of host "
                "memory|opencl_error.{0,60}out of host memory"
            ),
        ),
        means="OpenCL's driver got no host memory, or failed for another reason, such "
        "as no usable device: it reports several causes with this error",
        next_step=(
            "`clinfo` shows whether the driver works; `free -g` shows the host's "
            "memory while it runs"
        ),
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "OpenCL's resources",
        seen=("(?:cl_|: )out_of_resources|out of gpu resources",),
        means="the OpenCL driver lacked a resource: often GPU memory; else a kernel "
        "was too large, took too long or failed",
        next_step="use less memory: a smaller batch, image or context, lower "
        "precision, fewer programs on this GPU; if little is in use, a newer driver",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "OpenCL",
        seen=("(?:cl_|: )mem_object_allocation_failure|memory object allocation failure",),
        means="the device's memory ran out, or one buffer is larger than the driver allows",
        next_step="smaller buffers or a smaller batch",
    ),
    MessageKind(
        "pinned memory on Ascend",
        backend="host",
        seen=(
            r"aclrthostregister failed.{0,80}?size: (?P<tried>\d{1,15}).{0,40}?207001",
            r"aclrt(?:hostregister|mallochost)\S{0,200}?(?:207001|register ptr failed)",
        ),
        means=(
            "the driver of the NPU could not pin that much memory of the host for it: "
            "memory may be free"
        ),
        next_step="pin less: a smaller cache in the machine's memory (max_local_cpu_size in "
        "LMCache), or fewer processes that pin; `ulimit -l` and the job's memory limit",
        cause=OomCause.OTHER_MEMORY,
    ),
    MessageKind(
        "the Ascend driver, in vLLM",
        backend="NPU",
        seen=(
            r"el0004\)?: ?(?:\[pid|\d{4}-|failed)",
            r"rtmalloc fail, \S{0,60}?size:<tried>, device_id:<device>",
            r"rtmalloc\S{0,110}?fail",
            "error code (?:is )?207001",
            "alloc device memory failed, runtime result = ?207001",
        ),
        needs=(r"vllm|\((?:enginecore|worker_[dtpe]p|apiserver)",),
        means="the NPU's driver refused memory that an operator needs outside torch's allocator: "
        "most likely vLLM's share left too little for it, else the weights do not fit",
        next_step="lower --gpu-memory-utilization, which leaves room for operators, or "
        "--max-num-batched-tokens; stop the other processes that `npu-smi info` shows",
    ),
    MessageKind(
        "an operator's workspace on Ascend",
        level=1.2,
        seen=("npuworkspaceallocator tried to allocate",),
        means="the workspace of an operator, which torch_npu allocates beside its tensors, did not "
        "fit on the NPU",
        next_step="TASK_QUEUE_ENABLE=1, as torch_npu advises; a smaller share for a server's cache "
        "(mem_fraction_static, gpu_memory_utilization), else a smaller batch; `npu-smi info` shows "
        "what other programs hold",
        leads=True,
    ),
    MessageKind(
        "the Ascend driver",
        backend="NPU",
        seen=(
            # Not the end of a name such as model0004.
            r"el0004\)?: ?(?:\[pid|\d{4}-|failed)",
            r"rtmalloc fail, \S{0,60}?size:<tried>, device_id:<device>",
            r"rtmalloc\S{0,110}?fail",
            "error code (?:is )?207001",
            "alloc device memory failed, runtime result = ?207001",
        ),
        unless=(r"vllm|\((?:enginecore|worker_[dtpe]p|apiserver)",),
        means="the NPU's driver refused memory: another process has it, or operators "
        "outside torch's allocator",
        next_step="stop the other processes that `npu-smi info` shows; else a smaller batch",
    ),
    MessageKind(
        "Neuron",
        backend="Neuron",
        seen=(
            (
                r"nrt_resource|nrt_\w{3,30} status=4(?!\d)|failed to alloc(?:ate)? device memory: "
                r"<tried>"
            ),
        ),
        also=(r"current utilization: \*? ?total: <used>",),
        means="the memory of the Neuron device ran out",
        next_step="a smaller batch or sequence, or more cores (tp_degree)",
    ),
    MessageKind(
        "shared memory of a kernel",
        seen=(
            (
                "out of resources?: shared memory,? required: <needed>,? hardware "
                "limit(?:ation)?: <limit>"
            ),
            "out of resources?: (?:shared|tensor) memory",
            r"out of resource: \w{1,80} required: <needed>,? hardware limit: <limit>",
            "shared memory size limit exceeded: requested <needed>, available: <limit>",
            "insufficient shared memory available on the gpu",
            "uses too much shared data|too many resources requested for launch|out of "
            "resources?: (?:threads| registers)",
        ),
        means="a kernel needs more shared memory or registers of one multiprocessor "
        "than it has: the GPU's memory is not full",
        next_step="a smaller block size or fewer stages (num_stages) of the kernel; "
        "often a newer release of the library has settings for this GPU",
        cause=OomCause.OTHER_MEMORY,
    ),
    MessageKind(
        "a kernel that torch.compile skipped",
        seen=(
            r"select_algorithm\.py:\d{1,5}\].{0,24}?out of resources?: \w{1,12} memory, required: "
            "<needed>, hardware limit(?:ation)?: <limit>",
            (
                "error during autotuning:.{0,400}?out of "
                "(?:memory|resource).{0,1500}?ignoring this choice"
            ),
        ),
        unless=("outofresources: out of resource",),
        means=_SKIPPED_KERNEL,
        next_step=_NOT_AUTOTUNED,
        cause=OomCause.WARNING,
    ),
    MessageKind(
        "a kernel that torch.compile skipped",
        # A message below it is of another request, which did fail.
        seen=(
            "error during autotuning:.{0,400}?out of memory.{0,1500}?ignoring this "
            "choice(?!.{0,8000}?tried to allocate)",
        ),
        unless=("outofresources: out of resource",),
        means=_SKIPPED_KERNEL,
        next_step=_NOT_AUTOTUNED,
        cause=OomCause.WARNING,
        leads=True,
    ),
    MessageKind(
        "a mapping of a file",
        backend="host",
        seen=(
            r"unable to mmap <tried> from file "
            r"<(?!/?torch_|filename)[^<>]{0,300}\.(?:safetensors|bin|pth?|ckpt|gguf)"
            r">: cannot allocate memory",
        ),
        means="the kernel refused to map a file of weights, which is larger than the "
        "memory and swap that may be committed (vm.overcommit_memory, `ulimit -v`, a "
        "job's limit), although only parts of it are read at once",
        next_step="more swap, or `sysctl -w vm.overcommit_memory=1`; smaller files (shards, or a "
        "quantized model), or a newer release of the program that loads them",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "a mapping of memory",
        backend="host",
        seen=("unable to mmap <tried> from file .{0,120}?: cannot allocate memory",),
        means="the kernel refused a mapping: the machine's memory ran out, or the "
        "process has as many mappings as vm.max_map_count allows, of which each shared "
        "tensor is one: not the GPU's memory",
        next_step="fewer or larger shared tensors (fewer DataLoader workers, a smaller "
        "prefetch_factor), or `sysctl -w vm.max_map_count=262144`; `free -g` while it runs",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "a tensor of another process",
        level=1,
        seen=("unable to open shared memory object",),
        means="a process could not open a tensor that another shared with it: most "
        "often the limit of open files, else a full /dev/shm; not the GPU's memory",
        next_step='torch.multiprocessing.set_sharing_strategy("file_system"), or a higher `ulimit '
        "-n`; `df -h /dev/shm` shows whether that is full",
        cause=OomCause.OTHER_MEMORY,
    ),
    MessageKind(
        "files that are open",
        seen=("unable to open shared memory object .{0,200}?too many open files",),
        means="a limit of open files: DataLoader workers keep one for every tensor that they pass",
        next_step=(
            'torch.multiprocessing.set_sharing_strategy("file_system"), or a higher `ulimit -n`'
        ),
        cause=OomCause.OTHER_MEMORY,
    ),
    MessageKind(
        "PostgreSQL's table of locks",
        backend="host",
        seen=(
            r"out of shared memory.{0,200}?max_(?:pred_)?locks_per_transaction",
            (
                r"(?:psycopg|psqlexception|postgres|pg_dump|operationalerror)\S{0,80}?out of "
                r"shared "
                r"memory"
            ),
        ),
        means="PostgreSQL's table of locks, which has a fixed size, is full: no memory "
        "of the machine ran out",
        next_step="a larger max_locks_per_transaction (or max_pred_locks_per_transaction, if the "
        "hint names it) in postgresql.conf, and a restart; or fewer tables, partitions or "
        "savepoints in one transaction",
        cause=OomCause.OTHER_MEMORY,
    ),
    MessageKind(
        "Triton's shared memory",
        backend="host",
        level=-0.5,
        seen=(
            (
                r"failed to increase the shared memory pool size(?: for key \W\w{1,60}\W)?(?: to "
                r"<pool>)?"
            ),
            (
                r"unable to initialize shared memory key \W\w{1,60}\W(?: to requested size "
                r"\(<tried>\))?"
            ),
            "model instance .{1,80}?because it run out of shared memory",
        ),
        means="Triton's Python backend passes tensors through /dev/shm, which is most "
        "likely full: host memory, not the GPU's",
        next_step="a larger --shm-size (docker), or a larger /dev/shm of the pod: 64 "
        "MiB or more for each instance of a Python model, and room for its largest "
        "tensors; fewer instances or smaller batches",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "/dev/shm",
        backend="host",
        seen=(
            (
                r"out of shared memory|insufficient shared memory(?!available)|bus "
                r"error\S{0,80}?shared memory"
            ),
            r"unable to (?:write|mmap|allocate shared memory|resize) \S{0,120}?/torch_",
            r"failed to extend /dev/shm/\S{1,40} to <tried>",
            r"creating shared memory segment \S{1,60}? \(size <tried>\)",
            "posix_fallocate failed ?: no space left on device",
            r"no space left on device: ?\W{0,2}/dev/shm",
            r"semlock.{0,200}?\[errno 28\] no space left",
            "killed by signal: bus error",
        ),
        means="DataLoader workers or NCCL pass data through /dev/shm, which is most "
        "likely full: host memory, not the GPU's",
        next_step="a larger --shm-size (docker), or fewer workers",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "a bus error",
        backend="host",
        level=2,
        seen=(
            r"(?:shutdown with|terminated by|received|killed by) signal:? 7(?!\d)",
            r"signal 7 \(?sigbus|\(sigbus\)|bus error \(core dumped\)",
        ),
        means=(
            "most often /dev/shm, by which processes of one machine pass data (NCCL, "
            "DataLoader), is full"
        ),
        next_step="a larger --shm-size (docker) or a volume of memory on /dev/shm "
        "(Kubernetes); `df /dev/shm` shows it",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "Ray",
        backend="host",
        seen=(
            "task was killed due to the node running low on memory",
            r"exceeds the memory usage threshold of <utilization>\. ray killed this worker",
            r"killed due to memory pressure \(oom\)",
            "address the out of memory issue: https://docs.ray.io",
            (
                r"system memory low at node.{0,120}?used memory \(<used>\) / total capacity "
                r"\(<machine>\)"
            ),
            r"rayoutofmemoryerror: more than [\d.]{1,5}% of the memory on node \S{1,80}? is used",
        ),
        also=(
            "memory used=<process>",
            r"was running was <used>/<machine> \(",
            r"is used \(<used_gib>/<machine>\)",
            "memory usage threshold of <utilization>",
            "exceeds threshold <utilization>",
        ),
        means=(
            "Ray stopped a worker because the node's host memory was nearly used up: not the GPU's"
        ),
        next_step="fewer tasks or actors on a node (more CPUs for each), or more "
        "memory; RAY_memory_usage_threshold sets the limit",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "a pod evicted for its disk",
        backend="host",
        seen=("the node was low on resource: (?:ephemeral-storage|inodes)",),
        means="Kubernetes ended the pod because its node's disk was nearly full: no memory ran out",
        next_step="fewer or smaller files in the container and its emptyDir volumes (checkpoints, "
        "caches, logs), a volume for them, or a request (resources.requests.ephemeral-storage)",
        cause=OomCause.OTHER_MEMORY,
    ),
    MessageKind(
        "a pod that Kubernetes evicted",
        backend="host",
        seen=("the node was low on resource: memory",),
        also=(
            r"threshold quantity: (?P<limit>\d{1,15}[kmgt]?i?),",
            r"low on resource: memory\..{0,60}?available: (?P<available>\d{1,15}[kmgt]?i?)\.",
            r"was using (?P<process>\d{1,15}[kmgt]?i?)(?:,|which)",
            r"(?:request is|exceeds its request of) (?P<wanted>\d{1,15}[kmgt]?i?)(?:,|\.)",
        ),
        means=(
            "Kubernetes ended the pod because its node had nearly no host memory left: "
            "not the GPU's"
        ),
        next_step="request as much memory as the program needs (resources.requests.memory, with "
        "the limit equal to it), or use less: fewer DataLoader workers, a smaller prefetch_factor",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "a replay buffer",
        backend="host",
        seen=("enough memory to store the complete replay buffer <needed> > <available>",),
        means="a warning: the replay buffer of Stable-Baselines3 will not fit into the "
        "machine's memory when it is full",
        next_step=(
            "a smaller buffer_size, or optimize_memory_usage=True; smaller or uint8 observations"
        ),
        cause=OomCause.HOST,
    ),
    MessageKind(
        "Ray's object store",
        backend="host",
        seen=(
            r"objectstorefullerror|failed to put object \S{1,60} in object store because it is "
            "full",
        ),
        also=("object size is <tried>",),
        means="Ray's object store in the host's memory is full",
        next_step="drop references to objects, or a larger object_store_memory in ray.init()",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "a 32-bit Python",
        backend="host",
        seen=(
            r"python\d{1,4}-32[\\/].{0,3000}?memoryerror(?:: unable to allocate <tried>)?",
            r"memoryerror traceback \(most recent call last\).{0,3000}?python\d{1,4}-32[\\/]",
        ),
        means="a 32-bit Python has room for 2 to 4 GiB, whatever memory the machine has",
        next_step="a 64-bit Python, which uses all of the machine's memory; else less data at once",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "a notebook's session that ended",
        backend="host",
        level=2,
        seen=(
            (
                r"large alloc <tried>[*= ]{2,8}.{0,6000}?(?:\^c|restarting kernel|kernel [\w-]{36} "
                r"restarted)"
            ),
            r"(?:restarting kernel|kernel [\w-]{36} restarted).{0,4000}?large alloc <tried>",
        ),
        means="the session ended after a large request of host memory: most likely it "
        "had used up its memory, not the GPU's",
        next_step=(
            "a smaller batch or input, data that is read in pieces, or a session with more memory"
        ),
        cause=OomCause.HOST,
    ),
    MessageKind(
        "a large request of host memory",
        backend="host",
        level=3,
        seen=(
            "tcmalloc ?: large alloc <tried>",
            r"allocation of <tried> exceeds \d{1,3}% of (?:free)? system memory",
        ),
        means="a warning: one request is a large part of the machine's memory; it is a "
        "failure only where the program ends after it",
        next_step="nothing, if the program goes on; else a smaller batch or input, or "
        "a machine with more memory",
        cause=OomCause.WARNING,
    ),
    MessageKind(
        "a compiler",
        backend="host",
        seen=(r"killed signal terminated program \w{1,12}",),
        means="the kernel killed a compiler because host memory ran out: too many ran at once",
        next_step="MAX_JOBS=2 before the command that builds",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "Windows' page file",
        backend="host",
        seen=(
            "paging file is too small",
            "winerror 1455",
            "os error 1455",
            # German, French, Spanish, Portuguese, Italian, Russian, Chinese, Japanese and Korean.
            "auslagerungsdatei ist zu klein|fichier de pagination est insuffisant|archivo de "
            "paginaci\u00f3n es demasiado|arquivo de pagina\u00e7\u00e3o \u00e9 muito pequeno|file "
            "di paging insufficiente|\u0444\u0430\u0439\u043b "
            "\u043f\u043e\u0434\u043a\u0430\u0447\u043a\u0438 "
            "\u0441\u043b\u0438\u0448\u043a\u043e\u043c "
            "\u043c\u0430\u043b|\u9875\u9762\u6587\u4ef6\u592a\u5c0f|"
            "\u30da\u30fc\u30b8\u30f3\u30b0 "
            "\u30d5\u30a1\u30a4\u30eb\u304c\u5c0f\u3055\u3059\u304e|\ud398\uc774\uc9d5 "
            "\ud30c\uc77c\uc774 \ub108\ubb34 \uc791",
            r"winerror 8(?!\d)",
        ),
        means=(
            "Windows could not promise more memory: the machine's memory and its page "
            "file are used up"
        ),
        next_step="a larger page file (system settings), or fewer DataLoader workers, "
        "each of which loads torch's libraries",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "a limit of Grid Engine",
        backend="host",
        seen=(
            r"enforced (?:h_rt, ?h_cpu,? or ?h_vmem|[hs]_\w{1,8}(?:, ?[hs]_\w{1,8}){1,3},? or "
            r"?[hs]_\w{1,8}) limit",
        ),
        also=(r"maxvmem ?(?:=|:)?(?P<address_space>[\d.]{1,12}[kmgt])",),
        means="the scheduler killed the job at one of its limits: of time, or of host "
        "memory (not the GPU's) if maxvmem is near h_vmem",
        next_step="`qacct -j JOB` shows the time and maxvmem; ask for more of what is "
        "near its limit (-l h_rt= for time, -l h_vmem= for each slot's memory)",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "a job's memory limit",
        backend="host",
        seen=(
            # Slurm up to 17.11 writes KiB, newer ones bytes.
            r"(?:step|job)id=[\w.+]{1,40} exceeded memory limit \(<process> > <limit>\)",
            r"(?:step|job) \d[\d._]{0,20} exceeded memory limit \((?P<process>\d{10,15}) > "
            r"(?P<limit>\d{10,15})\)",
            r"(?:step|job) \d[\d._]{0,20} exceeded memory limit \((?P<process_kib>\d{1,10}) > "
            r"(?P<limit_kib>\d{1,9})\)",
            r"exceeded memory limit \(\d{1,15} > \d{1,15}\)",
            "exceeded (?:job|step) memory limit",
            "cancelled at .{0,30}? due to memory limit",
            "memory usage exceeded request_memory",
            "term_memlimit",
            "state: out_of_memory",
            r"out_of_me(?:mory|\+) ?(?:0:125)?(?P<process>\d{4,12}k)",
            r"out_of_me(?:mory|\+) ?0:125",
            "job killed: v?mem(?: job total)? <process> exceeded limit <limit>",
            "job exceeded a memory resource limit",
            r"exceeded job (?:hard|soft) limit \W{0,2}(?:[hs]_vmem|[hs]_rss)\W{0,2} of queue "
            r"\S{1,80}? "
            r"\((?P<process>[\d.]{1,12}[kmgt]?) > limit: ?(?P<limit>[\d.]{1,12}[kmgt]?)\)",
            r"job violates resource utilization policies \(mem",
            r"has gone over (?:cgroup)? memory limit of (?P<limit>\d{1,12}[kmgt])\w{1,7}bytes",
        ),
        also=(
            r"resources_used\.vmem=<address_space>",
            r"resources_used\.mem=<used>",
            r"max memory : <used>",
            "memory utilized: <used>",
            r"memory efficiency: [\d.]{1,8}% of <limit>",
            r"total requested memory : <job_request>",
            r"(?:peak|last measured) usage: (?P<process>\d{1,12}[kmgt])\w{1,7}bytes",
        ),
        means=(
            "the job used more host memory than it had requested from the scheduler: not the GPU's"
        ),
        next_step='ask for more (--mem in Slurm, -M and -R "rusage[mem=…]" in LSF, -l mem= in '
        "PBS), or use less: fewer processes or DataLoader workers, less data at once",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "PostgreSQL's memory",
        backend="host",
        seen=(
            r"out of memory.{0,120}?failed on request of size (?P<tried>\d{1,15})(?!\d)",
            r"failed on request of size (?P<tried>\d{1,15}) in memory context",
        ),
        means="a process of PostgreSQL got no memory: the machine's is used up, or a "
        "limit is reached (of its container, `ulimit -v`, or vm.overcommit_memory=2)",
        next_step="fewer connections and queries at once, or a smaller work_mem "
        "(maintenance_work_mem for vacuum and indexes); or more memory; PostgreSQL's "
        "log lists what each memory context held",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "PostgreSQL's largest request",
        backend="host",
        seen=(r"invalid memory alloc request size (?P<tried>\d{1,20})",),
        means="PostgreSQL refuses a request of 1 GiB or more, whatever memory is free: "
        "one value or a list in the query is too large, or stored data is damaged",
        next_step="smaller values or results (split large texts, bytea and arrays, aggregate fewer "
        "rows); if the query only reads stored rows, look for damage: `pg_dump -t TABLE`, and "
        "amcheck",
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "InnoDB's buffer pool",
        backend="host",
        seen=(
            r"innodb: mmap\(<tried>\) failed",
            "innodb: (?:fatal error: )?cannot allocate memory for the buffer pool",
        ),
        means=(
            "MySQL or MariaDB got no memory of the machine for InnoDB's buffer pool, "
            "and does not start"
        ),
        next_step="a smaller innodb_buffer_pool_size, fewer other programs, or more "
        "memory or swap; `free -g` shows what is free",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "MongoDB's limit of a stage",
        backend="host",
        seen=(
            "sort exceeded memory limit of <limit>",
            "sort operation used more than the maximum <limit> of ram",
            "sort stage buffered data usage of <used> exceeds internal limit of <limit>",
            r"exceeded memory limit for \$group|queryexceededmemorylimitnodiskuseallowed",
        ),
        means="a sort or a group of MongoDB needed more than MongoDB allows one stage, "
        "and was not allowed to use the disk: the machine's memory is not full",
        next_step="an index that gives the order, or allowDiskUse: true (the default from MongoDB "
        "6.0); or fewer documents and fields before the sort ($match, $project, $limit)",
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "PHP's limit",
        backend="host",
        seen=(
            r"allowed memory size of <limit> exhausted(?: ?\(tried to allocate <tried>\))?",
        ),
        means=(
            "a script of PHP reached its own limit, memory_limit: the machine's memory is not full"
        ),
        next_step="a larger memory_limit (php.ini, or `php -d memory_limit=2G` for one "
        "command; COMPOSER_MEMORY_LIMIT=-1 for Composer), or less at once",
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "Gradle's daemon",
        backend="host",
        seen=(
            "running out of jvm (?:metaspace|memory|heap)",
            "jvm garbage collector is thrashing",
            "not enough memory to run compilation",
        ),
        also=(
            "max heap space is '<heap_limit>'",
            "max metaspace is '<metaspace_limit>'",
        ),
        means=(
            "the heap or the metaspace of Gradle's JVM is nearly used up, whatever "
            "memory the machine has"
        ),
        next_step="larger values of org.gradle.jvmargs in gradle.properties (-Xmx, "
        "-XX:MaxMetaspaceSize), or fewer workers at once (--max-workers)",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "jemalloc's page size",
        backend="host",
        seen=("unsupported system page size",),
        needs=("jemalloc|memory allocation of|rust|panicked|redis",),
        means="a package has jemalloc for smaller memory pages than this machine's (16 or 64 KiB "
        "on some ARM machines), so that every allocation fails: no memory ran out",
        next_step="a newer release of that package, or one that is built on this "
        "machine (JEMALLOC_SYS_WITH_LG_PAGE=16 for programs in Rust)",
        cause=OomCause.OTHER_MEMORY,
    ),
    MessageKind(
        "ClickHouse's limit",
        backend="host",
        seen=(
            r"memory limit \(\w{4,12}\) exceeded: would use <needed> \(attempt to allocate "
            r"chunk of "
            r"(?:0(?:\.00b)? ?|<tried>)(?:bytes)?\)(?:, current rss:? <process>)?, maximum: "
            r"<limit>",
            r"(?:\(\w{4,6}\)|query|user) memory limit exceeded: would use <needed> \(attempt to "
            r"allocate "
            r"chunk of "
            r"(?:0(?:\.00b)? ?|<tried>)(?:bytes)?\)(?:, current rss:? <process>)?, maximum: "
            r"<limit>",
            r"(?:memory limit \((?:total|for query|for user)\) exceeded: |"
            r"\((?:total|query|user)\) memory limit exceeded: |\(memory_limit_exceeded\))",
        ),
        means=(
            "ClickHouse reached one of its own limits: of the server ('total'), of a "
            "query or of a user"
        ),
        next_step="for a query, max_bytes_before_external_group_by and "
        "max_bytes_before_external_sort (it then uses the disk), or a larger max_memory_usage; "
        "for the server, fewer queries at once or a larger max_server_memory_usage",
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "Redis's limit",
        backend="host",
        seen=("oom command not allowed when used memory > ?['\u2019]?maxmemory",),
        also=(r"used_memory: ?(?P<used>\d{1,15})", r"maxmemory: ?(?P<limit>[1-9]\d{3,15})"),
        means="Redis holds as much data as its own limit, maxmemory, allows, and its "
        "policy found nothing to delete: the machine's memory is not full",
        next_step="a larger maxmemory, or a maxmemory-policy that deletes old keys "
        "(allkeys-lru); `redis-cli INFO memory` shows both, and what is used",
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "Elasticsearch's limit",
        backend="host",
        seen=(
            r"data too large, data for .{1,120}?would be "
            r"\[(?P<needed>\d{1,15})/[\d.]{1,9}[kmgt]?b\], which "
            r"is "
            r"larger than the limit of \[(?P<limit>\d{1,15})/[\d.]{1,9}[kmgt]?b\](?:, real "
            r"usage: \["
            r"(?P<used>\d{1,15})/)?",
            (
                r"data too large, data for .{1,120}?would be larger than limit of "
                r"\[(?P<limit>\d{1,15})/"
            ),
            r"circuit_?breaking_?exception(?!.{0,80}?script)",
        ),
        also=(
            r"bytes_wanted\W{1,4}(?P<needed>\d{1,15})",
            r"bytes_limit\W{1,4}(?P<limit>\d{1,15})",
        ),
        means="a circuit breaker of Elasticsearch (or OpenSearch) refused the request, which would "
        "have used more of Java's heap than its limit: the machine's memory is not full",
        next_step="a larger heap (-Xms and -Xmx, up to half of the machine's memory), or less at "
        "once: smaller bulk requests, fewer buckets in aggregations, fewer shards; `GET "
        "_nodes/stats/breaker` shows which breaker is full",
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "Java's threads",
        backend="host",
        seen=("unable to create (?:new )?native thread(?! ?pool)",),
        means="the system let Java create no more threads: most often because of a limit of "
        "processes, else because memory for their stacks ran out; Java's heap is not full",
        next_step="a higher limit of processes (`ulimit -u`, docker's --pids-limit), "
        "or fewer threads; a smaller heap (-Xmx) leaves more memory for stacks",
        cause=OomCause.OTHER_MEMORY,
    ),
    MessageKind(
        "a Java array",
        backend="host",
        seen=("requested array size exceeds vm limit",),
        means=(
            "one array is larger than Java allows (about 2^31 elements), whatever the heap has free"
        ),
        next_step="split the data into smaller arrays or partitions",
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "Spark's broadcast",
        backend="host",
        seen=("not enough memory to build and broadcast the table",),
        means=(
            "the driver of Spark had no heap left to build the table that a join sends "
            "to all executors"
        ),
        next_step="spark.sql.autoBroadcastJoinThreshold=-1 (and no broadcast hint), or a larger "
        "spark.driver.memory; ANALYZE TABLE where Spark took the table for smaller than it is",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "Spark's memory of a task",
        backend="host",
        seen=(
            ("unable to acquire <tried> of memory, got (?P<available>\\d{1,15})"),
            "sparkoutofmemoryerror",
        ),
        means="a task of Spark got no more of the part of the executor's heap that its "
        "tasks share, whatever memory the machine has",
        next_step="more and smaller partitions (spark.sql.shuffle.partitions, and look for one "
        "that is much larger), fewer tasks at once (spark.executor.cores), or a larger "
        "spark.executor.memory",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "Spark's limit of results",
        backend="host",
        seen=(
            "size of broadcasted table far exceeds estimates and exceeds limit of "
            r"spark\.driver\.maxresultsize=(?P<limit>\d{1,15})",
        ),
        means="a table that a join was to send to all executors is larger than Spark "
        "estimated, and than it lets the driver collect: no memory ran out",
        next_step="spark.sql.autoBroadcastJoinThreshold=-1 (and no broadcast hint); "
        "else a larger spark.driver.maxResultSize, with a larger spark.driver.memory",
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "Spark's limit of results",
        backend="host",
        seen=(
            r"total size of serialized results of \d{1,9} tasks \(<used>\) is bigger than "
            r"(?:spark\.driver\.)?maxresultsize \(<limit>\)",
        ),
        means=(
            "the results that tasks send to the driver are larger than Spark allows: "
            "no memory ran out"
        ),
        next_step="collect less (write the results to files, or aggregate them first); "
        "else a larger spark.driver.maxResultSize, with a larger spark.driver.memory",
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "OpenBLAS's buffers",
        backend="host",
        seen=("you tried to allocate too many memory regions",),
        means=(
            "more threads called OpenBLAS than it was built for: the machine's memory is not full"
        ),
        next_step="OPENBLAS_NUM_THREADS=1 (or another small number) before the "
        "program, or fewer processes and threads",
        cause=OomCause.OTHER_MEMORY,
    ),
    MessageKind(
        "an unschedulable pod",
        backend="host",
        seen=(r"nodes? (?:is|are) available: .{0,160}?insufficient memory",),
        means=(
            "Kubernetes did not start the pod: it requests more memory than any node "
            "has left for requests"
        ),
        next_step="a smaller resources.requests.memory, a larger node, or stop other "
        "pods; `kubectl describe nodes` shows what pods have requested",
        cause=OomCause.OTHER_MEMORY,
    ),
    MessageKind(
        "SageMaker",
        backend="host",
        level=2,
        seen=("use an instance type with more memory",),
        means="SageMaker stopped the job because the instance's memory was used up",
        next_step="an instance type with more memory, or less data at once",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "a limit of threads",
        backend="host",
        level=3,
        seen=(
            "can't start new thread|failed to create new thread",
            r"(?:pthread_create failed|thread creation failed)",
            "fork: (?:retry: )?(?:no child processes|resource temporarily unavailable)",
            r"os\.fork\(\) (?:blockingioerror|oserror): \[errno 11\]",
        ),
        means="the system let a program start no more threads or processes: most often because of "
        "a limit of their number, else because memory for their stacks ran out",
        next_step="fewer of them (OMP_NUM_THREADS and OPENBLAS_NUM_THREADS, which follow the "
        "machine's cores, and num_workers), or a higher limit (`ulimit -u`, docker's --pids-limit)",
        cause=OomCause.OTHER_MEMORY,
    ),
    MessageKind(
        "perhaps the cause of a lost executor of Spark",
        backend="host",
        level=3,
        seen=(
            "remote rpc client disassociated",
            r"lost executor \d{1,5} on [^:]{1,80}: (?:worker lost|executor heartbeat timed out)",
        ),
        means="Spark lost a process: most often because it used more memory than its container or "
        "machine has, else by an error of its own or of the network",
        next_step="its own log, and those of YARN or Kubernetes, say which; if memory ran out: a "
        "larger spark.executor.memoryOverhead, fewer spark.executor.cores, or smaller partitions",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "a Windows program's exit code",
        backend="host",
        level=2,
        seen=(
            r"(?:exit|return)[a-z_ ]{0,20}code\W{0,4}(?:-1073741801|-1073741523|3221225495|"
            "3221225773|0xc0000017|0xc000012d)(?![0-9a-f])",
        ),
        means="Windows had no memory left for the program: neither the machine's nor its page file "
        "had room",
        next_step="close other programs, a larger page file on a disk with room, or less data and "
        "fewer DataLoader workers at once",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "Java, without its reason",
        backend="host",
        level=2,
        seen=(
            r"java\.lang\.outofmemoryerror(?!:)",
            # A line of a report of JUnit's tests, by Maven.
            r"tests?\.test\w{1,80}:\d{1,6} .{0,80}?out of memory",
        ),
        means="a Java program ran out of memory: most often its heap is full, whatever "
        "memory the machine has; the text does not say which memory it was",
        next_step="the first OutOfMemoryError in the log says which (`Java heap space`, "
        "`Metaspace`, threads): for the heap a larger one (-Xmx), or less data at once",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "Java's heap",
        backend="host",
        seen=(
            "outofmemoryerror: (?:java heap space|gc overhead limit exceeded|metaspace)",
        ),
        means="the heap of a Java program is full, whatever memory the machine has",
        next_step="a larger heap (-Xmx; spark.driver.memory or spark.executor.memory "
        "in Spark), or less data at once",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "Android's heap",
        backend="host",
        seen=(
            r"failed to allocate a <tried> allocation with <heap_free> free bytes and \S{1,16} "
            "until oom",
        ),
        also=("growth limit <heap_limit>",),
        means="the heap of an Android app has reached the limit that Android sets for each app, "
        "whatever memory the device has",
        next_step="hold fewer or smaller objects (bitmaps first): a heap dump of Android Studio "
        'shows what holds them; android:largeHeap="true" in the manifest raises the limit',
        cause=OomCause.HOST,
    ),
    MessageKind(
        "pinned memory of an offloader",
        level=2,
        seen=("as the maximum reservable memory has been reached",),
        means="mmgp, the offloader of Wan2GP, could not pin more host memory for the "
        "weights that it keeps there: copies to the GPU are slower, but nothing fails",
        next_step="nothing, unless an error follows; then a smaller --perc-reserved-mem-max, or a "
        "profile that keeps less in the machine's memory",
        cause=OomCause.WARNING,
    ),
    MessageKind(
        "ArrayFire",
        seen=("device out of memory:101",),
        also=("native alloc for size <tried>",),
        means="ArrayFire's memory manager (Flashlight, wav2letter) got no device "
        "memory, even after it had freed its cache",
        next_step="a smaller batch, shorter audio or a smaller beam; stop the other "
        "processes that `nvidia-smi` shows; af::deviceGC() frees ArrayFire's cache",
    ),
    MessageKind(
        "ROCm's HSA runtime",
        backend="device",
        level=1,
        seen=("hsa_status_error_out_of_resources",),
        means="ROCm's runtime lacked a resource: memory, queues, signals, threads, or "
        "permission to open /dev/kfd; at hsa_init or in rocminfo it is rarely memory",
        next_step="`rocm-smi --showmeminfo vram` and `free -g` show whether memory is full while "
        "it runs; if it fails at its start, check `ulimit -u`, `dmesg`, that the user is in the "
        "groups render and video, and that the process loads one HSA runtime only",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "a range of GPU addresses",
        level=-1,
        seen=(r"cumemaddressreserve ?\([^()]{0,120}\)",),
        needs=("out_?of_?memory",),
        means="the driver had no free range of GPU addresses, which is not memory: "
        "llama.cpp reserves 32 GiB of them for each pool, tiny-cuda-nn (NeRF programs) "
        "as many as the GPU has memory",
        next_step="build llama.cpp with -DGGML_CUDA_NO_VMM=ON; run fewer models and GPU programs "
        "at once; `ulimit -v unlimited` before the start; or a newer driver",
        cause=OomCause.OTHER_MEMORY,
    ),
    MessageKind(
        "tiny-cuda-nn",
        # The \t of a path of Windows was taken for a tab.
        seen=(r"iny-cuda-nn\S{0,40}?gpu_memory\.h.{0,200}?out_?of_?memory",),
        means="tiny-cuda-nn (instant-ngp, NeRF programs) got no GPU memory from the driver: it "
        "allocates outside torch's allocator, and instant-ngp keeps all training images on the GPU",
        next_step="fewer or smaller images, a smaller hash table (log2_hashmap_size), "
        "batch or mesh resolution; stop the other processes that `nvidia-smi` shows",
    ),
    MessageKind(
        "a new process",
        backend="host",
        seen=(
            (
                r"(?:os\.fork\(\)|_fork\w{0,6}\(|fork_exec\(|forking_?pickler).{0,200}?cannot "
                r"allocate memory"
            ),
            "fork(?:ing)?(?: failed)?: cannot allocate memory",
            r"_execute_child.{0,400}?\[errno 12\] cannot allocate memory",
        ),
        means="the kernel refused to copy the process (fork): host memory (not the "
        "GPU's), or what the kernel may commit of it, is used up",
        next_step="fewer DataLoader workers (num_workers=0 starts none) or other "
        "processes, or start them before the large data is read; else more memory or "
        "swap; `free -g` shows the memory while it runs",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "a large NumPy matrix",
        backend="host",
        seen=(
            rf"unable to allocate <tried> for (?:an)?array with \w{{4,9}} ?(?={_ALL_AGAINST_ALL})"
            "<shape>(?: and data type <type>)?",
            rf"unable to allocate array with shape (?={_ALL_AGAINST_ALL})<shape>"
            "(?: and data type <type>)?",
        ),
        means="host memory (not the GPU's) has no room for one array with 20,000 or more rows "
        "and as many columns: a dense matrix, all against all, or shapes that broadcast",
        next_step="keep it sparse (scipy.sparse), take fewer rows or columns, or compute it in "
        "parts; where no such matrix was meant, look at shapes that broadcast, such as (n,) "
        "with (n, 1)",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "a small NumPy array",
        backend="host",
        seen=(
            r"unable to allocate (?P<tried>\d{1,3}(?:\.\d{0,2})?(?:bytes|[km]ib)) for (?:an)?array"
            r"(?: with \w{4,9} ?<shape>(?: and data type <type>)?)?",
        ),
        means="host memory (not the GPU's), or a limit of the process, was used up before: this "
        "array is small, and what holds the memory was made earlier",
        next_step="hold less at once: read and process the data in parts and delete what is done, "
        "fewer workers or other programs; else more memory, or a larger page file on Windows; "
        "`free -g` shows the memory while it runs",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "a NumPy array",
        backend="host",
        seen=(
            # People retype it: "with form".
            r"unable to allocate <tried> for (?:an)?array(?: with \w{4,9} ?<shape>"
            "(?: and data type <type>)?)?",
            "unable to allocate array with shape <shape>(?: and data type <type>)?",
            "_arraymemoryerror",
        ),
        means="host memory (not the GPU's), or a limit of the process, has no room for one array",
        next_step="smaller arrays (chunks, fewer columns), smaller types (float32, int32, "
        "category), or more memory for the job; `free -g` shows the memory while it runs",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "one request of host memory",
        backend="host",
        level=0.9,
        seen=(
            r"allocator: (?:not enough|can't allocate) memory: you tried to allocate "
            r"(?P<tried>\d{12,20}bytes)",
        ),
        means="one request of more than 100 GB, which is more than most machines have: "
        "data that is taken in one piece, or a size that was computed wrongly",
        next_step=f"{SHAPES}; if they are as intended, process the data in parts, or keep it in a "
        f"file that "
        "is mapped (numpy.memmap)",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "a CPU allocation of torch on Android",
        backend="host",
        level=0.9,
        seen=("cpuallocator: not enough memory: you tried to allocate <tried>",),
        needs=(
            r"androidruntime|java\.lang\.|com\.[a-z]\w{1,30}\.python|\.apk|/data/app/|arm64-v8a|"
            r"armeabi",
        ),
        means="torch on Android got no memory on the CPU: the app has reached what the phone lets "
        "it have (of a 32-bit app the address space), not the GPU's memory",
        next_step="a smaller input, under torch.no_grad(), or a smaller or quantized model; "
        "build the app for 64 bits (arm64-v8a)",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "a CPU allocation of torch on Windows",
        backend="host",
        level=1,
        seen=("cpuallocator: not enough memory: you tried to allocate <tried>",),
        means="torch on Windows (or Android) got no memory on the CPU: the machine's "
        "memory and its page file are used up, not the GPU's memory",
        next_step="a larger page file (system settings), or close other programs; else "
        "a smaller batch, input or model in the machine's memory",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "Seastar",
        backend="host",
        seen=(r"seastar\w{0,10} - failed to allocate <tried>",),
        also=(
            r"used memory: (?P<used>\d{1,9}[kmgt]?)",
            r"free memory: (?P<available>\d{1,9}[kmgt]?)",
            r"total memory: (?P<limit>\d{1,9}[kmgt]?)",
        ),
        means="a shard of a Seastar program (ScyllaDB, Redpanda) has used up its share "
        "of host memory, or has only small pieces of it left",
        next_step="less data or fewer requests at once, or a larger --memory, or fewer "
        "shards (--smp), each of which then has a larger share",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "the static TLS block",
        backend="host",
        seen=("cannot allocate memory in static tls block",),
        means="no memory ran out: the small block that each process has for "
        "thread-local variables (static TLS) was full when a library was loaded late",
        next_step="load that library first: LD_PRELOAD=PATH, with the path that the "
        "text shows (often libgomp), or import torch before other libraries",
        cause=OomCause.OTHER_MEMORY,
    ),
    MessageKind(
        "a size beyond every machine's",
        backend="host",
        seen=(
            r"memory allocation of (?P<tried>\d{15,18}) bytes failed",
            r"tried to allocate (?P<tried>\d{15,18}) bytes",
        ),
        means="more than any machine has was requested: a size was computed wrongly, "
        "or was read from a damaged file or from memory that is no size",
        next_step=(
            f"{SHAPES}; where it reads a file, check that file; else a newer release of the program"
        ),
        cause=OomCause.TOO_LARGE,
    ),
    MessageKind(
        "a .NET array",
        backend="host",
        seen=("array dimensions exceeded supported range",),
        means=(
            "one array or list is longer than .NET allows (about 2^31 elements), "
            "whatever memory is free"
        ),
        next_step="split the data into smaller arrays, or read it in pieces",
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "a buffer of JavaScript",
        backend="host",
        seen=("array buffer allocation failed",),
        means="a JavaScript program got no memory of the machine for one buffer, which "
        "lies outside the heap, or the buffer is larger than the browser or Node.js "
        "allows (2 to 4 GiB, less in 32 bits)",
        next_step="smaller buffers (read the file in pieces, as a stream), fewer at "
        "once, or more memory; --max-old-space-size does not help",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "a small request of the program",
        backend="host",
        seen=(r"(?<!cuda)(?<!hip)(?:re|m|c)alloc of size (?P<tried>\d{1,4}) failed",),
        means="the program got no memory even for so little: all of it was in use "
        "before, by this process or by others, or the allocator refused for another "
        "reason (an alignment, a damaged heap, a build for other memory pages)",
        next_step="`free -g` while it runs: if the memory is not full, another release "
        "of the package, or another allocator (ARROW_DEFAULT_MEMORY_POOL=system for "
        "Arrow); if it is, less data at once",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "an allocation of the program",
        backend="host",
        level=1.5,
        seen=(
            # Before torch 1.2 in whole GB: 0 is less than one of them, not nothing.
            "(?<!gpu memory: )you tried to allocate (?:0gb|<tried>)",
            "defaultcpuallocator: can't allocate memory",
            r"posix_memalign\([^()]{0,80}\) == 0\. 12 vs 0",
            f"{_NOT_OF_GPU}memory allocation of <tried> failed",
            r"(?:insufficient memory|\(-4)\) failed to allocate <tried>",
            f"{_NOT_OF_GPU}(?<!hip)(?:re|m|c)alloc of size <tried> failed",
            r"mach_vm_map\(size=<tried>\) failed",
            "llvm error: out of memory",
            r"tokenizing data\. c error: out of memory",
            "openblas error: memory allocation still failed",
            r"(?<![\w.])outofmemoryerror\(\)",
            r"system\.outofmemoryexception",
            r"runtime: out of memory(?:: cannot allocate <tried>-byte block \(<used> in use\))?",
            r"insufficient memory ?\(failed to allocate <tried>",
            "std::bad_alloc",
            "bad allocation",
            "cannot allocate memory(?!(?:on|for|in) (?:the)?(?:gpu|cuda|device|vram))",
            # The kernel's words for it in Chinese.
            "\u65e0\u6cd5\u5206\u914d\u5185\u5b58",
            # What a program raises in words of its own may be of any memory.
            f"{_NOT_OF_GPU}(?<!of)memoryerror"
            "(?!out|\\([\"'f]|:(?!unable|std::|cannot|could|fail|bad|out of|alloc|not "
            "enough|[^a-z]|$))",
        ),
        means="host memory (not the GPU's) ran out, or a limit of the process, the job "
        "or the container was reached",
        next_step="a smaller batch, input or model in the machine's memory, or more "
        "memory for the job; fewer DataLoader workers; `free -g` while it runs",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "a linker",
        backend="host",
        seen=(
            r"(?:\bld|\bgold|\blld)(?:\.\w{2,4})?(?:-\d{1,2})?: "
            r"(?:error: )?(?:final link failed: )?"
            r"(?:out of memory(?: allocating (?P<tried>\d{1,20}bytes) after a total of "
            r"(?P<held_before>\d{1,20}bytes))?|memory exhausted|cannot allocate memory)",
        ),
        means="a linker ran out of host memory, not the GPU's, or an object file is damaged where "
        "it asks for far more than a machine has",
        next_step="build from clean object files; fewer jobs at once (make -j1), without debug "
        "symbols, more memory or swap",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "a compiler",
        backend="host",
        seen=(
            "virtual memory exhausted",
            r"(?:cc1plus|cc1|cicc|ptxas|nvcc|clang|ninja|c\+\+|g\+\+)[-\d.]{0,8}(?:fatal)?:"
            r"(?:(?!cuda|gpu|hip)\S){0,40}?(?:out of memory|(?<!oom)killed|cannot allocate memory)",
            r"killed(?:\(program|signal terminated program) (?:cc1|cc1plus|cicc|ptxas)",
            r"building (?:nvcc|cuda|cxx|c) (?:\(device\))? object \S{1,400}?(?<!oom)killed"
            r"(?:cmake error|g?make\[|make:|ninja)",
            r"(?:go (?:build|install|test|run)|cmd/(?:compile|link)).{0,600}?fatal error: "
            r"(?:runtime:)? "
            r"?out of "
            "memory",
        ),
        means="a compiler ran out of host memory, not the GPU's",
        next_step="fewer jobs at once (MAX_JOBS=1, make -j1, go build -p 1), more "
        "memory or swap, or a prebuilt package",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "a killed compiler",
        backend="host",
        seen=(
            r"pkg[/\\]tool[/\\]\w{1,40}[/\\](?:compile|link)\S{0,4}: ?signal: killed",
            r"rustc --crate-name.{0,8000}?\(signal: 9, sigkill",
            "error: could not compile .{0,400}?signal: 9, sigkill",
        ),
        means="most likely the kernel killed a compiler because host memory ran out: "
        "the machine's, or the limit of a container",
        next_step="fewer jobs at once (cargo build -j 1, go build -p 1), no link-time optimization "
        "(lto), more memory or swap, or a prebuilt package; `dmesg | grep -i kill` confirms it",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "a step that Slurm killed",
        backend="host",
        level=2,
        seen=(
            r"srun: error: \S{1,60}?: tasks? ?[\d,-]{1,40}: out of memory",
            r"detected <kills> oom[_-]kill event(?:\(s\)|s)? in step",
        ),
        means="the step used more host memory than the job had requested from Slurm: not the GPU's",
        next_step="ask for more (--mem), or fewer DataLoader workers",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "systemd-oomd, because swap was full",
        backend="host",
        level=2,
        seen=(
            r"systemd-oomd\S{0,20}: killed \S{1,400}? due to memory used \(<used>\) / total "
            r"\(<machine>\) "
            r"and swap used \(<swap>\) / total \(<all_swap>\)",
            (
                r"systemd-oomd\S{0,20}: killed \S{1,400}? due to memory used \(<used>\) / total "
                r"\(<machine>\)"
            ),
            r"systemd-oomd\S{0,20}: killed \S{1,400}? due to (?:memory used|swap)",
        ),
        means="systemd-oomd killed all processes of a unit because the machine's "
        "memory and swap were nearly used up: not the GPU's",
        next_step="use less host memory: fewer DataLoader workers, a smaller prefetch_factor; or "
        "more swap; `oomctl` shows the limit, which SwapUsedLimit= in oomd.conf sets",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "systemd-oomd, in systemd's words",
        backend="host",
        level=2,
        seen=(r"systemd-oomd killed \d{1,6} process",),
        means="systemd-oomd killed all processes of a unit because programs waited too long for "
        "host memory, or because the swap was nearly full: not the GPU's memory",
        next_step="use less host memory: fewer processes or DataLoader workers, less data at "
        "once; `oomctl` shows the limits (ManagedOOMMemoryPressureLimit= and ManagedOOMSwap= of a "
        "unit). A program started with `systemd-run --user --scope` is in a unit of its own",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "systemd-oomd",
        backend="host",
        level=2,
        seen=(
            r"systemd-oomd\S{0,20}: killed \S{1,400}? due to memory pressure for \S{1,300}? being "
            "<pressure>% > <most_pressure>% for > <waited>s",
            r"systemd-oomd\S{0,20}: killed \S{1,400}? due to memory pressure",
        ),
        means="systemd-oomd killed all processes of a unit because programs waited too "
        "long for host memory: not the GPU's",
        next_step="use less host memory: fewer DataLoader workers, a smaller prefetch_factor; "
        "`oomctl` shows the limits, which ManagedOOMMemoryPressureLimit= of a unit sets",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "systemd-oomd, which looked for a unit to kill",
        backend="host",
        level=2.2,
        seen=(
            r"considered \d{1,6} cgroups for killing, top candidates",
            r"failed to kill any cgroups? .{0,20}?based on (?:swap|pressure)",
        ),
        also=("swap usage: (?P<swap>[\\d.]{1,12}[kmgt])",),
        means="systemd-oomd found the machine's swap or its waiting for memory over a limit and "
        "looked for a unit to kill; whether it killed one stands in another line",
        next_step="use less host memory (the first candidate uses most), or more swap; `oomctl` "
        "shows the limits, and `journalctl -u systemd-oomd` what was killed",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "a control group's limit",
        backend="host",
        level=1,
        seen=(
            "memory cgroup out of memory",
            "constraint=constraint_memcg",
            r"killed as a result of limit of [/\w]",
            r"memory: usage \d{1,15}kb, limit \d{1,15}kb, failcnt",
            # In the kernel's call trace.
            r"mem_cgroup_(?:oom_synchronize|out_of_memory)\+0x|try_charge_memcg\+0x",
        ),
        also=(
            "memory: usage <used>, limit <limit>",
            "kmem: usage (?!0kb)<kernel_memory>",
            "hierarchical_memory_limit <limit>",
            "total-vm: ?<address_space>",
            "anon-rss: ?(?!0kb)<process>",
            "file-rss: ?(?!0kb)<file_pages>",
            "shmem-rss: ?(?!0kb)<shared_pages>",
            "pgtables: ?(?!0kb)<page_tables>(?<=b)",
            r"memory\.peak = (?P<used>[\d.]{1,12}[kmgt])",
        ),
        means="the kernel killed a process because its control group (a container, a pod, a job or "
        "a service) had used up its limit of host memory, whatever the machine has free",
        next_step="a higher limit (--memory in Docker, resources.limits.memory in "
        "Kubernetes, --mem in Slurm), or less host memory: fewer processes or "
        "DataLoader workers, less data at once",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "the limit of a hosted program",
        backend="host",
        seen=(
            r"(?<!gpu)(?<!vram)memory limit exceeded "
            r"\((?P<allowed>\d{1,4}(?:\.\d{1,2})?[gm])i?b?\)",
            r"ran out of memory \(used over <allowed>",
            r"container '[^']{1,40}' exceeded memory limit",
            "function exceeded its memory limit|runner terminated, out of memory",
            "container killed due to memory usage",
        ),
        means="the program used more of the machine's memory than its container may, "
        "and was ended: host memory, not the GPU's",
        next_step="fewer requests at once, smaller inputs or a smaller model, and no "
        "results that are kept; or hardware with more memory",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "perhaps the limit of a hosted program",
        backend="host",
        level=2,
        seen=(
            "app has gone over its resource limits",
            "spark driver has stopped unexpectedly and is restarting",
        ),
        means="the host of the program ended it because it used more than it may: most often of "
        "the machine's memory, which the text does not say",
        next_step="the host's page of metrics shows whether memory ran out: then less data at once "
        "and no results that are kept (collect() and toPandas() bring all to Spark's driver), or "
        "a larger machine",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "no process that may be killed",
        backend="host",
        seen=("out of memory and no killable processes",),
        also=("memory usage: <used>, cached: <cached>, total: <machine>",),
        means="the kernel needed memory of the host (not the GPU's), and every process "
        "there is exempt from being killed (oom_score_adj -1000): where only few are "
        "listed, most likely the limit of a container",
        next_step="the lines above it say whose limit it was (memory usage, limit, Memory cgroup "
        "stats): raise that limit or put less into it, its files in memory (tmpfs) included; let "
        "processes that may end have a higher oom_score_adj",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "the machine's memory",
        backend="host",
        level=1,
        seen=(
            r"(?<!cgroup)out of memory: kill(?:ed)? process (?:\d|\()",
            "constraint=constraint_none",
        ),
        unless=("cgroup out of memory|constraint_memcg|mem_cgroup_o|oomkilled|limit of /",),
        also=(
            "total-vm: ?<address_space>",
            "anon-rss: ?(?!0kb)<process>",
            "file-rss: ?(?!0kb)<file_pages>",
            "shmem-rss: ?(?!0kb)<shared_pages>",
            "pgtables: ?(?!0kb)<page_tables>(?<=b)",
        ),
        means="the kernel killed a process because the machine's memory was used up (not the "
        "GPU's, and not just a container's limit); other processes may hold most of it",
        next_step="use less host memory: fewer processes or DataLoader workers, less data at "
        "once, of a database or of Java a lower limit in its own settings; or more memory or "
        "swap. The kernel's table of processes above that line shows what held it",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "the kernel's OOM killer",
        backend="host",
        level=2,
        seen=(
            "invoked oom-killer",
            "killed by the oom killer",
            (
                r"oom killed process \d{1,9}(?: ?\([^()]{1,40}\) vm: ?<address_space>, rss: "
                r"?<process>)?"
            ),
            "oom_reaper: reaped process",
            r"out of memory: kill(?:ed)? process \d",
        ),
        also=(
            "total-vm: ?<address_space>",
            "anon-rss: ?(?!0kb)<process>",
        ),
        means="the kernel killed a process because host memory was used up: the "
        "machine's, or the limit of a container or job",
        next_step="use less host memory: fewer processes or DataLoader workers, less "
        "data at once; or more memory or a higher limit. `dmesg | grep -i -A 1 "
        "oom-kill` shows whether it was a limit, and which process was killed",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "a container of Docker",
        backend="host",
        level=2,
        seen=(r"oomkilled\W{0,4}true",),
        means="the kernel killed the container, or a process in it, because it had used up its "
        "limit of host memory (or the machine's memory, if it has no limit): not the GPU's",
        next_step="a higher limit (--memory of docker run, deploy.resources.limits.memory in "
        "Compose), or less host memory: fewer processes or DataLoader workers, less data at once",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "a container of Kubernetes",
        backend="host",
        level=2,
        seen=(
            r"(?:reason\W{0,4}|status\W{0,4})oomkilled|oomkilled(?!\W{0,4}(?:false|true)|process)",
            r"exit ?code\W{1,4}\d{1,3}\W.{0,200}?reason\W{0,4}oomkilled",
        ),
        also=(
            r"limits: (?:cpu: ?[\w.]{1,12}?)?memory: ?(?P<limit>\d{1,12}[kmgt])i",
            "total-vm: ?<address_space>",
            "anon-rss: ?(?!0kb)<process>",
        ),
        means="the kernel killed the container because host memory (not the GPU's) ran "
        "out: most often the container's own limit, else the node's memory",
        next_step="a higher resources.limits.memory of the container, or less host "
        "memory: fewer processes or DataLoader workers, a smaller prefetch_factor; "
        "`kubectl describe pod` shows the limit",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "DuckDB, refused by the system",
        backend="host",
        seen=(
            (
                r"out of memory.?error: failed to allocate block of <tried>(?: \(bad "
                r"allocation\))?"
            ),
        ),
        means="the system gave DuckDB no more memory, before its own limit "
        "(memory_limit) was reached: other programs hold the rest, or a limit of the "
        "process, the container or the kernel (vm.max_map_count) is lower",
        next_step="SET memory_limit to well below what the machine or the container has, fewer "
        "threads (SET threads), or preserve_insertion_order=false; `free -g` while it runs",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "DuckDB's limit",
        backend="host",
        seen=(
            r"failed to change memory limit to "
            r"(?P<limit>\d{1,15}(?:\.\d{1,3}[kmgt]i?b)?)\S{0,40}?could not "
            r"free "
            "up enough memory",
        ),
        means="a new limit (memory_limit) is lower than what DuckDB holds already: "
        "memory itself did not run out",
        next_step="a higher memory_limit; or set it at the start, before data is read",
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "DuckDB's limit",
        backend="host",
        seen=(
            r"(?:failed to|could not) [a-z]{3,9} (?:data )?(?:block )?of size <tried> "
            r"\(<used>/<limit> used\)",
        ),
        means=(
            "DuckDB reached its own limit (memory_limit, by default 80 % of the machine's memory)"
        ),
        next_step="a higher memory_limit if the machine has more; else fewer threads, "
        "preserve_insertion_order=false, or a temp_directory to spill to",
        cause=OomCause.LIMIT,
    ),
    MessageKind(
        "a report of earlyoom",
        backend="host",
        level=1,
        seen=(r"earlyoom\S{0,20}: mem avail",),
        unless=("low memory!", r"earlyoom\S{0,20}: sending sig(?:term|kill) to process \d"),
        means="earlyoom reports the machine's memory here and killed nothing: by "
        "default it kills a process when free memory and free swap are both below 10 %",
        next_step="`top` shows which processes hold the memory; with -s 100 earlyoom ignores swap",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "earlyoom",
        backend="host",
        level=1,
        seen=(
            "low memory! at or below sig(?:term|kill) limits",
            r"low memory! mem avail: \d",
            r"earlyoom\S{0,20}: sending sig(?:term|kill) to process \d",
        ),
        also=(
            "vmrss:? <process>",
            r"mem avail: <available_mib> of (?P<machine>\d{1,9}mib)\([\d.]{1,6} ?%\)"
            r"(?:<= min [\d.]{1,6} ?%)?,swap (?:free|avail): "
            r"<swap_mib> of (?P<all_swap>\d{1,9}mib)(?:(?!mem avail).){0,80}?"
            r"(?:low memory|sending|killing)",
            r"mem avail: \d{1,9} of (?P<machine>\d{1,9}mib)",
        ),
        means="earlyoom killed a process (by default the one with the highest OOM "
        "score), as the machine's free memory and swap fell below its limits: not the GPU's memory",
        next_step="use less host memory: fewer processes or DataLoader workers, less "
        "data at once; or more memory or swap. earlyoom's options -m and -s set the "
        "free memory and swap at which it acts",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "nohang",
        backend="host",
        level=1,
        seen=("found the victim with highest badness",),
        also=(
            r"vmrss: <process>",
            r"\A.*memavail: <available_mib>m,[\d.%|]{1,9}swapfree: <swap_mib>m,",
        ),
        means="nohang ended the process with the highest badness, as free memory, swap or pressure "
        "passed its limits: the machine's memory ran low, not the GPU's",
        next_step="use less host memory: fewer processes or DataLoader workers, less data at once; "
        "or more memory or swap. nohang.conf has the limits at which it acts",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "a lost worker of Dask",
        backend="host",
        level=2.5,
        seen=(r"worker process \d{1,9} was killed by (?:signal 9(?!\d)|unknown signal)",),
        means="a signal ended a Dask worker: most often the kernel's, because the machine's memory "
        "or the limit of a container ran out, else a crash; Dask does not know",
        next_step="`dmesg | grep -i kill` on that machine shows whether it was memory: then "
        "smaller partitions, fewer workers, or a memory_limit that all of them together stay below",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "Dask's nanny",
        backend="host",
        level=1,
        seen=("exceeded <budget>% memory budget",),
        also=("process memory: <process> -- worker memory limit: <limit>",),
        means="Dask killed a worker that came too close to the memory limit that Dask "
        "sets for each worker; the machine may have memory free",
        next_step="smaller partitions or chunks, fewer threads for each worker, or a "
        "higher memory_limit of the workers",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "a warning of Dask",
        backend="host",
        level=2,
        seen=("worker memory limit: <limit>",),
        unless=("exceeded [0-9.]{1,5}% memory budget",),
        also=(
            "process memory: <process> -- worker",
            "unmanaged memory: <process> -- worker",
        ),
        means="a warning: a Dask worker comes near its limit of host memory; Dask "
        "pauses it, and kills it at 95 % of the limit",
        next_step="nothing, if the job goes on; else smaller partitions or chunks, "
        "fewer threads for each worker, or a higher memory_limit",
        cause=OomCause.WARNING,
    ),
    MessageKind(
        "perhaps the cause of dead Dask workers",
        backend="host",
        level=2,
        seen=(r"killedworker[(:]|died while (?:running|trying to run) it",),
        unless=("memory budget",),
        means="Dask workers died several times on one task: often because host memory "
        "ran out, else because the task crashed them",
        next_step="the workers' own logs, or `dmesg | grep -i kill`, show which; if "
        "memory ran out, smaller partitions or a higher memory_limit",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "YARN's limit of virtual memory",
        backend="host",
        level=1,
        seen=(
            r"killed by yarn for exceeding (?:virtual)? ?memory limits\. <used> of <limit> "
            r"virtual memory "
            r"used",
            r"is running (?:\d{1,15}b)? ?beyond (?:the)? ?'?virtual'? memory limit",
        ),
        also=("<used> of <limit> virtual memory used",),
        means="YARN killed the container because its address space was larger than "
        "YARN allows, whatever memory it really used",
        next_step="turn the check off (yarn.nodemanager.vmem-check-enabled=false), or a larger "
        "yarn.nodemanager.vmem-pmem-ratio; else a larger spark.executor.memoryOverhead",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "YARN's limit of a container",
        backend="host",
        level=1,
        seen=(
            r"killed by yarn for exceeding (?:physical|virtual)? ?memory limits",
            r"is running (?:\d{1,15}b)? ?beyond (?:the)? ?'?(?:physical|virtual)'? memory limit",
        ),
        also=("<used> of <limit> physical memory used",),
        means="YARN killed the container because it used more host memory than its limit, which "
        "counts the heap and everything outside it, such as Python's workers",
        next_step="raise spark.executor.memoryOverhead (or spark.executor.memory), or process less "
        "at once: more partitions, fewer cores for each executor (spark.executor.cores)",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "Java's memory outside the heap",
        backend="host",
        seen=(
            r"native memory allocation \([a-z]{1,12}\) failed to (?:map|allocate) <tried>",
            "insufficient memory for the java runtime environment to continue",
            r"outofmemoryerror: (?:cannot reserve|direct buffer memory)",
        ),
        means="Java got no memory outside its heap: the machine, or the limit of a "
        "container, has none left, or the limit of direct buffers is reached",
        next_step="a smaller heap (-Xmx) or fewer processes, so that some is left; for "
        "direct buffers, a larger -XX:MaxDirectMemorySize",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "the heap of Node.js",
        backend="host",
        seen=("javascript heap out of memory",),
        also=(
            r"(?:mark-\w{5,8}|scavenge)(?:\([^)]{1,20}\))? "
            r"[\d.]{1,9}\([\d.]{1,9}\)->(?P<heap_mib>[\d.]{1,9})\(",
        ),
        means=(
            "the heap of a JavaScript program has reached its limit, whatever memory "
            "the machine has"
        ),
        next_step="a larger heap: NODE_OPTIONS=--max-old-space-size=8192 (MiB); if its "
        "use only grows, look for a leak in the program",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "R",
        backend="host",
        seen=(
            "cannot (?:not )?allocate (?:a )?(?:vector|memory block) of size <tried>",
            r"['\u2018](?:re|c)alloc['\u2019] could not (?:re-?)?allocate memory(?: "
            r"\((?P<tried>\d{1,15})bytes\))?",
            r"vector memory (?:exhausted|limit of <limit> reached)",
        ),
        also=("reached total allocation of <limit>",),
        means="R got no host memory for one more object, or has reached its own limit",
        next_step="use less memory: rm() and gc() for objects no longer needed, sparse "
        "matrices, data in pieces; a 64-bit R; to raise R's own limit, R_MAX_VSIZE "
        "(memory.limit() before R 4.2 on Windows)",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "MATLAB on the GPU",
        seen=(
            "maximum variable size allowed on the device is exceeded",
            (
                r"out of memory on device\. to view more detail|out of memory on device\. you "
                r"requested: <tried>"
            ),
        ),
        also=("you requested: <tried>", r"device has (?P<free>\d[\d.]{0,9}[kmgt]b) free"),
        means="MATLAB got no GPU memory for one more array",
        next_step="a smaller MiniBatchSize or smaller arrays; clear gpuArrays that are no longer "
        "needed; reset(gpuDevice) frees all of them; gpuDevice shows what is free",
    ),
    MessageKind(
        "a wrong size in MATLAB",
        backend="host",
        seen=(
            r"requested [\dx]{3,60}\((?P<tried>\d{4,12}(?:\.\d)?gb)\) array exceeds maximum",
        ),
        also=(r"(?:array size preference|possible variable size) \(<limit>\)",),
        means="the array is larger than the memory of any machine on which MATLAB "
        "usually runs: its size is most likely wrong",
        next_step="look at the sizes at the line that MATLAB names; a compiled function (MEX) that "
        "was built for another release of MATLAB returns such sizes: compile it again",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "MATLAB",
        backend="host",
        seen=(
            r"requested [\dx]{3,60}\(<tried>\) array exceeds maximum (?:array size "
            r"preference|possible "
            "variable size)",
            r"out of memory\. type \"?help memory",
        ),
        also=(r"array size preference \(<limit>\)",),
        means="an array of MATLAB does not fit into the machine's memory, or into the "
        "limit that MATLAB sets (by default all of it)",
        next_step="smaller arrays (single instead of double, sparse, tall arrays), or clear what "
        "is no longer needed; the limit is in the preferences (MATLAB > Workspace)",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "Cloud Run's limit",
        backend="host",
        seen=(
            (
                r"memory limit of (?P<limit>\d{1,7}[mg](?:ib)?) exceeded with "
                r"(?P<used>\d{1,7}[mg](?:ib)?) used"
            ),
        ),
        means="Cloud Run (or Cloud Functions) stopped the instance because it used "
        "more memory than its limit, which counts files in /tmp too",
        next_step="a larger limit (gcloud run services update NAME --memory 2Gi), "
        "fewer requests at once in an instance (--concurrency), or less data at once",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "Heroku's limit",
        backend="host",
        seen=(r"error r15 \(memory quota vastly exceeded",),
        also=(r"process running mem=(?P<used>\d{1,7}[mg])\((?:[2-9]\d\d|\d{4})",),
        means=(
            "Heroku stopped the dyno because it used far more memory than its type "
            "has, swap included"
        ),
        next_step="fewer processes (WEB_CONCURRENCY), less data at once, or a larger type of dyno",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "a warning of Heroku",
        backend="host",
        level=1,
        seen=(r"error r14 \(memory quota exceeded",),
        also=(r"process running mem=(?P<used>\d{1,7}[mg])\(",),
        means="a warning: the dyno uses more memory than its type has, and swaps, "
        "which is slow; Heroku stops it at a far larger use",
        next_step="fewer processes (WEB_CONCURRENCY), less data at once, or a larger type of dyno",
        cause=OomCause.WARNING,
    ),
    MessageKind(
        "the number of mappings",
        backend="host",
        level=1,
        seen=(r"vm\.max_map_count \[\d{1,9}\] (?:is|likely) too low",),
        means="no memory ran out: Elasticsearch (or OpenSearch) does not start, "
        "because the kernel allows a process fewer mappings than it wants",
        next_step="`sudo sysctl -w vm.max_map_count=262144` on the host, and the same "
        "line in /etc/sysctl.conf",
        cause=OomCause.OTHER_MEMORY,
    ),
    MessageKind(
        "AWS Lambda",
        backend="host",
        level=2,
        seen=(
            "runtime exited with error: signal: killed",
            r"runtime\.outofmemory",
        ),
        also=("memory size: <limit> ?max memory used: <used>",),
        means=(
            "AWS stopped the function, most likely because it used more memory than "
            "its setting allows"
        ),
        next_step="a larger memory size of the function (MemorySize), or less data at "
        "once; the line REPORT of its log shows the peak",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "a restarted notebook",
        backend="host",
        level=2,
        seen=(
            "notebook tried to allocate more memory than is available",
            "session crashed after using all available ram",
        ),
        means="the notebook's session used up its host memory (not the GPU's) and was restarted",
        next_step="a smaller batch or input, data that is read in pieces, or del and "
        "gc.collect() for objects no longer needed; else a session with more memory",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "a killed process",
        backend="host",
        level=2,
        seen=(
            (
                r"loading checkpoint "
                r"shards:.{0,1000}?(?:(?:exitcode|returncode)[:=]{1,2}-9(?!\d)|it\]killed)"
            ),
        ),
        means="the kernel most likely killed the process because host memory (the "
        "machine's, or the limit of a container) ran out while weights were loaded: "
        "each process may have its own copy of them there",
        next_step="low_cpu_mem_usage=True or device_map in from_pretrained(), weights "
        "that are not float32, FSDP's cpu_ram_efficient_loading, fewer processes, or "
        "more memory for the job; `dmesg | grep -i kill` confirms it",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "a killed worker of joblib",
        backend="host",
        level=2,
        seen=(
            "worker process managed by the executor was unexpectedly terminated.{0,240}?"
            r"sigkill\(-9\)",
        ),
        means="most likely the kernel killed a worker because host memory ran out: the "
        "machine's, or the limit of a container; joblib does not know",
        next_step=(
            "fewer workers (n_jobs), or less data for each; `dmesg | grep -i kill` confirms it"
        ),
        cause=OomCause.HOST,
    ),
    MessageKind(
        "a crashed worker of joblib",
        backend="host",
        level=2,
        seen=(
            "worker process managed by the executor was unexpectedly terminated.{0,240}?workers "
            "are "
            r"\{(?:sigsegv|exit)",
        ),
        means="a worker crashed or ended by itself, as its exit code says: the kernel "
        "did not kill it for its memory, which joblib names for every lost worker",
        next_step="n_jobs=1, or the output of the workers, shows the error; a crash "
        "(SIGSEGV) is one of a library's own code",
        cause=OomCause.OTHER_MEMORY,
    ),
    MessageKind(
        "a lost worker of joblib",
        backend="host",
        level=2,
        seen=(
            "worker process managed by the executor was unexpectedly "
            "terminated.{0,200}?excessive memory usage",
        ),
        means="a worker was killed because host memory ran out, or it crashed: joblib "
        "does not know, and the text does not say",
        next_step="fewer workers (n_jobs), or less data for each; `free -g` while it runs, and "
        "`dmesg | grep -i kill`, show whether it was memory; if not, n_jobs=1 shows the error",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "a killed process of llama.cpp",
        backend="host",
        level=2,
        seen=(
            r"(?:out of memory: |cgroup out of memory: )killed? process \d",
            _OOM_KILL,
            r"killed process \d",
            _EXIT_CODE,
            _KILLED + "(?:`{3}|$)",
            (
                r"sigkill(?!_handler)|signal: killed|signal:? ?\(?9(?!\.?\d)|line \d{1,6}: \d{2,8} "
                r"killed"
            ),
        ),
        needs=(
            (
                r"llama_\w{3,30}:|whisper_\w{3,30}:|load_tensors:|llama[-_.]?(?:cpp|server|cli"
                r"|runner)"
                r"|\.gguf"
            ),
        ),
        unless=(_ENDED_BY_SLURM,),
        also=("mem required = <needed>", *_LLAMA_FIT),
        means="the kernel most likely killed the process because host memory, which has to hold "
        "all that is not on the GPU, ran out: the machine's, or the limit of a container",
        next_step="a smaller or more strongly quantized model, a shorter context (-c; num_ctx in "
        "Ollama) or more layers on the GPU; `free -g` while it runs; `dmesg | grep -i kill` "
        "confirms it",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "a killed installation",
        backend="host",
        seen=(r"\.(?:whl|tar\.gz)\(\d{1,5}(?:\.\d{1,3})?mb\)\S{0,240}?(?<!oom)killed",),
        means="the kernel most likely killed pip because the machine's memory, or what Docker's "
        "machine has of it, ran out: older versions of pip hold a downloaded package in memory to "
        "put it into their cache",
        next_step="`pip install --no-cache-dir`, or more memory: in Docker Desktop's settings on a "
        "Mac or Windows, else for the container or the machine",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "a container that was killed below its limit",
        backend="host",
        level=2,
        seen=(
            r"exit ?code\W{1,4}137(?!\d).{0,200}?oomkilled\W{1,4}false",
            r"oomkilled\W{1,4}false.{0,200}?exit ?code\W{1,4}137(?!\d)",
            # Kubernetes writes OOMKilled where the limit was the reason.
            r"(?:last state|state): terminated reason: error exit code: 137(?!\d)",
        ),
        means="the container was killed (SIGKILL), but not at its own memory limit: by `docker "
        "stop`, by a health check (a probe of Kubernetes), or by the kernel because the machine's "
        "memory ran out",
        next_step="`dmesg | grep -i kill` on the host shows whether the kernel did it: "
        "if so, use less host memory; if not, look for what stopped the container (`docker "
        "events`, `kubectl describe pod`)",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "a process that was perhaps stopped",
        backend="host",
        level=1.75,
        seen=(
            r"docker container: 137(?!\d)",
            _EXIT_CODE,
            r"sigkill(?!_handler)|signal: killed|signal:? ?\(?9(?!\.?\d)",
        ),
        needs=(
            r"docker(?:-?compose)? (?:stop(?!ped)|kill(?!ed)|down(?!load))|(?:liveness|startup) "
            r"?(?:probe)? "
            r"?(?:probe "
            r"failed|"
            r"failed)|stopping container|kubectl delete|no "
            r"(?:invocations?|signs?|traces?|entr\w{1,4}|evidence|"
            r"mentions?|logs?) of (?:the|an|any)? ?oom|runner has received a shutdown "
            r"signal|sending "
            r"sigterm|received sigterm|failed to stop "
            r"gracefully|(?:docker(?:-?compose)?|podman|kubectl) exec|"
            r"(?:supervisorctl|systemctl|docker(?:-?compose)?) (?:restart|stop)",
        ),
        unless=(
            (
                # "Running out of memory" is what programs say of what 137 may mean.
                "oom[-_]kill event|oomkilled(?!\\W{1,4}false)|killed process "
                "\\d|(?<!running)out of memory|invoked oom"
            ),
            "memory cgroup|used up",
        ),
        also=("max memory usage of this container is <used>",),
        means="SIGKILL ended the process: the kernel's, because host memory ran out, "
        "or that of whatever stops the container (`docker stop` after its grace "
        "period, a failed probe, a scheduler), of which the text has a sign",
        next_step="`dmesg | grep -i kill` on the host, and `docker inspect` "
        "(OOMKilled) or `kubectl describe pod` (Last State, Events), show which: if "
        "memory ran out, use less host memory; if not, look for what stopped it",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "a killed process",
        backend="host",
        level=2,
        seen=(
            r"(?:out of memory: |cgroup out of memory: )killed? process \d",
            _OOM_KILL,
            r"killed process \d",
            "killed by signal: killed",
            r"docker container: 137(?!\d)",
            # Of CircleCI.
            'received "killed" signal',
            _EXIT_CODE,
            # The word of the shell, in the languages of those who post, before its prompt or after
            # a bar.
            r"(?:it/s|s/it|[=>\u2588]|\|)\]?killed|killed(?:\(\w{1,30}\))?\w{1,32}@[\w.-]{1,64}:",
            _KILLED + r"(?:`{3}|$)|\u5df2\u6740\u6b7b|\u5df2\u6bba\u6b7b"
            r"|\u0443\u0431\u0438\u0442\u043e|"
            "get\u00f6tet|\uc8fd\uc5c8\uc74c",
            r"sigkill(?!_handler)|signal: killed|signal:? ?\(?9(?!\.?\d)",
            # The shell's `line 5: 12 Killed`, in any language.
            r"[^\W\d]{4,6} \d{1,6}: \d{2,8} killed",
            # The shell's `[1]+  Killed  python train.py`; a line in bold letters.
            r"\[\d{1,3}\][+-]?(?:\d{2,8})? killed(?! ?by)|\*\*killed\*\*",
            "terminated by the operating system.{0,80}memory|(?:zsh|bash|fish): killed",
        ),
        unless=(
            r"oom[_-]kill event(?:\(s\)|s)? in step",
            _ENDED_BY_SLURM,
        ),
        also=(
            "cpu virtual memory: used = <used>",
            "total-vm: ?<address_space>",
            "anon-rss: ?(?!0kb)<process>",
        ),
        numbered=r"killed process (\d{1,10})",
        means="the kernel most likely killed the process because host memory ran out: "
        "the machine's, or the limit of a container",
        next_step="less host memory: fewer processes or DataLoader workers, less data "
        "or a smaller model at once; or more memory for the job; `free -g` while it "
        "runs; `dmesg | grep -i kill` confirms it",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "perhaps the cause of a dead DataLoader worker",
        backend="host",
        level=2,
        seen=(r"dataloader worker \(pid\S{0,60}?\) exited unexpectedly",),
        unless=(r"killed by signal|sigkill|exit ?code \D{0,4}(?:-9|137)(?!\d)",),
        means="a worker ended without an error message: often the kernel killed it "
        "because host memory ran out, else it crashed or raised an error of its own",
        next_step="num_workers=0 shows an error of the worker itself; `dmesg | grep -i kill` shows "
        "whether memory ran out: then fewer workers or a smaller prefetch_factor",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "perhaps the cause of a dead notebook kernel",
        backend="host",
        level=2,
        seen=(
            "kernel appears to have died",
            "kernel crashed while executing code",
            r"kernel (?:died|restarting)\W{1,3}the kernel",
        ),
        unless=("large alloc|all available ram|than is available",),
        means="the kernel of a notebook ended without an error of its own: often "
        "because host memory ran out, else a library crashed",
        next_step="run the code as a script, which shows an error or 'Killed'; `free "
        "-g` while it runs shows whether memory fills: then less data at once",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "perhaps the cause of a dead Ray worker",
        backend="host",
        level=2,
        seen=(
            "worker died or was killed while executing|actor died unexpectedly before "
            "finishing|worker process has died|potential root causes.{0,80}?oom ?killer",
        ),
        unless=("out of memory: killed|oom[_-]kill event|node running low on memory",),
        means="a worker of Ray ended without an error that Ray could read: the kernel "
        "may have ended it because host memory ran out, or it crashed",
        next_step="`dmesg | grep -i kill` on its node shows whether memory ran out, the worker's "
        "own log whether it crashed; if memory ran out, fewer or smaller tasks on a node",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "perhaps the cause of a dead nnU-Net worker",
        backend="host",
        level=2,
        seen=(
            "background workers? (?:is|are) no longer alive|background workers died|"
            "some background worker is 6 feet under",
        ),
        unless=("sigkill|exit code (?:-9|137)|out of memory: killed",),
        means="a process that prepares nnU-Net's batches ended: most often because "
        "host memory ran out, else because of an error that stands further up",
        next_step="read the lines above it; fewer such processes (nnUNet_n_proc_DA=2; -npp 1 "
        "-nps 1 in a prediction, -np 2 in preprocessing), or more memory; `dmesg | grep -i kill` "
        "shows whether memory ran out",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "perhaps the cause of a broken process pool",
        backend="host",
        level=2,
        seen=(
            r"brokenprocesspool|process(?: in the [a-z ]{4,20})? (?:was )?terminated abruptly",
        ),
        unless=("sigkill|exit code (?:-9|137)|out of memory: killed",),
        means="a process of a pool ended without an error of its own: most often the "
        "kernel killed it because host memory ran out, else it crashed",
        next_step="fewer processes, or less data in each; `dmesg | grep -i kill` shows "
        "whether memory ran out",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "perhaps the cause of a GPU library's error",
        level=2,
        seen=(
            "(?:cudnn|cublas|cusolver|cusparse|hipblas|rocblas|miopen)_?status_?"
            "(?:execution_?failed|internal_?error|mapping_?error)",
        ),
        means="such an error has many causes; too little memory for the library's "
        "workspace is a frequent one",
        next_step="try a smaller batch, with `nvidia-smi` beside it; if it fails too, "
        "rerun with CUDA_LAUNCH_BLOCKING=1, which shows the call that fails",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "torch's allocator, a first attempt",
        level=1.5,
        seen=(_FIRST_ATTEMPT,),
        unless=(_ENDED,),
        means="torch 2.13 writes this line for each failed attempt, even if it then "
        "frees its cache and gets the memory (up to three lines for one allocation): "
        "alone, it is not a failure",
        next_step="nothing, if the run goes on, though it is slower so near the limit; "
        "if it stopped, look for 'Tried to allocate' below this line; then a smaller "
        "batch, or a smaller share for the server (vLLM's gpu_memory_utilization)",
        cause=OomCause.WARNING,
    ),
    MessageKind(
        "torch's allocator, without its message",
        level=1.5,
        seen=(_FIRST_ATTEMPT,),
        needs=(_ENDED,),
        means="the driver had no memory left for torch's allocator, and an error "
        "follows; if it is torch's, its message has more figures",
        next_step="look for 'Tried to allocate' below it; stop the other processes "
        "that `nvidia-smi` shows; else a smaller batch, or a smaller share for the "
        "server (vLLM's gpu_memory_utilization)",
    ),
    MessageKind(
        "a skipped or retried batch",
        level=1.25,
        seen=(
            r"out of memory, (?:skip|retry|split)\w{0,4} (?:the |this )?batch",
            r"out of memory.{0,30}?reducing (?:to )?batch",
            # In any words: "ran out of memory …, retrying with …".
            r"(?:out of memory|(?<!\w)oom(?!-?kill))[^.!:]{0,80}?[,;:.!]{1,3}(?:now )?"
            r"(?:retrying|falling back to|trying again|will retry|switching to|continuing with)"
            r"(?!\w{0,20}failed)",
            (
                r"(?:skip|retry|drop)\w{0,5}[\w ]{0,40}? due to (?:cuda |gpu )?(?:oom|out of "
                r"memory)(?!killed)"
            ),
            "attempting to recover from oom|recovering from oom error|failed with oom, "
            "(?:try|reduc|retry)ing|to cpu due to cuda oom|"
            r"detected outofmemoryerror!? (?:enabl|switch|reduc)ing|"
            r"outofmemoryerror in \w{1,40}, using cpu|oom detected, (?:falling back to "
            r"cpu|reducing "
            r"batch)|outofmemoryerror "
            r".{0,60}?, reducing (?:the |micro)? ?batch",
        ),
        unless=("illegal memory access|defaultcpuallocator: ",),
        means="the program ran out of GPU memory and goes on: it skips this batch, tries a smaller "
        "one, or computes in a slower way that needs less (checkpoints, the CPU); the figures are "
        "not in the text",
        next_step="a smaller batch, shorter sequences or smaller images, unless "
        "skipped batches are acceptable; `nvidia-smi` shows what other programs hold",
        cause=OomCause.WARNING,
    ),
    MessageKind(
        "torch's allocator, in other words",
        level=1.4,
        seen=(r"outofmemoryerror: tried to allocate <tried>.{0,24}?had <free> free",),
        means="torch's allocator found no memory for this request; the text does not "
        "say who holds the rest of the device",
        next_step="a smaller batch, shorter sequences or smaller images; `nvidia-smi` "
        "shows what other programs hold",
    ),
    MessageKind(
        "torch's allocator, in other words",
        level=1.4,
        seen=(r"outofmemoryerror: tried to allocate <tried>(?!.{0,24}?had \d)",),
        means="torch's allocator found no memory for this request; the rest of its "
        "message, which has the other figures, is not in the text",
        next_step="look at the whole message in the log; else a smaller batch, shorter "
        "sequences or smaller images; `nvidia-smi` shows what other programs hold",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "a search for a batch size",
        level=1.25,
        seen=(
            # AutoBatch of ultralytics prints the messages that it catches, without a traceback.
            (
                r"out ?of ?memory.{0,2000}?autobatch: (?:warning)?\W{0,4}(?:using batch-size|cuda "
                r"anomaly)"
            ),
            r"autobatch: (?:warning)?\W{0,4}error detected: .{0,300}?out ?of ?memory",
        ),
        unless=(r"traceback \(most recent call last\)",),
        means="the program tries larger and larger batches, catches the message of the "
        "one that does not fit, and goes on with a smaller batch",
        next_step="nothing, if the training starts; if it then runs out of memory, set a smaller "
        "batch yourself (batch=8) instead of -1, or stop the other processes that `nvidia-smi` "
        "shows",
        cause=OomCause.WARNING,
        leads=True,
    ),
    MessageKind(
        "a batch size that was searched for",
        level=1.26,
        seen=(
            r"autobatch: using batch-size \d",
            r"batch size \d{1,7} succeeded, trying batch size",
        ),
        needs=("out of memory|outofmemoryerror",),
        means="the batch size is one that a search found to fit in a short trial; "
        "images with more objects, longer inputs, or the evaluation need more",
        next_step="set a smaller batch yourself, below the size that the search found",
        leads=True,
    ),
    MessageKind(
        "torch's allocator, without its message",
        level=3,
        seen=(r"(?:torch\.(?:cuda\.)?|raytaskerror\()outofmemoryerror",),
        means=(
            "torch's allocator found no GPU memory; its message, which has the "
            "figures, is not in the text"
        ),
        next_step="look for 'Tried to allocate' further up in the log; else a smaller batch, "
        "shorter sequences or smaller images; `nvidia-smi` shows what other programs hold",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "a program on the GPU",
        level=3,
        seen=("(?:cuda|gpu|vram|metal|hip|xpu|npu|rocm) ?oom(?![_-]|kill)",),
        means="a program, most often one that uses torch, got no memory of the GPU; "
        "the figures are not in the text",
        next_step="look for 'Tried to allocate' further up in the log, which has "
        "torch's figures; else less at once: a smaller batch, input or model; "
        "`nvidia-smi` shows what other programs hold",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "GPU Weights of Stable Diffusion WebUI Forge",
        level=2,
        seen=(r"you just set forge to use 100% gpu memory \(<limit>\)",),
        means="a warning: Forge's setting gives all of the GPU to the weights, and leaves nothing "
        "for the computation, which then runs out of memory or becomes very slow",
        next_step=(
            "lower GPU Weights, at the top of Forge's user interface: leave 1 to 2 GiB or more"
        ),
        cause=OomCause.WARNING,
    ),
    MessageKind(
        "Stable Diffusion WebUI Forge",
        level=2,
        seen=("your current gpu free memory is <free>",),
        also=("safe value of <limit>",),
        means="a warning: little GPU memory is free; if the driver uses host memory "
        "instead, the program becomes very slow",
        next_step="a lower GPU Weights in Forge's user interface, or a smaller image",
        cause=OomCause.WARNING,
    ),
    MessageKind(
        "DirectML's device",
        level=2,
        seen=(
            r"dml.{0,200}?887a000[5-7]",
            "gpu device instance has been suspended",
        ),
        means="Windows took the GPU away from the program: often because GPU memory "
        "ran out, else because the driver hung or crashed",
        next_step="a smaller batch, image or model, and close other programs that use "
        "the GPU; if the GPU is not full, a newer driver",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "a program on the GPU",
        level=3,
        seen=(
            r"(?:cuda|gpu|vram|\.cuh?\b|opencl|rocm)\S{0,80}?out of (?:\w{1,12})?memory(?!error)",
            r"out of (?:gpu|vram|video|device|graphics) ?memory",
            r"out of memory\S{0,80}?(?:cuda|gpu|vram|\.cuh?(?:\b|(?=at ?line))|opencl|rocm)",
            (
                "(?:cuda|gpu|vram) (?:memory )?(?:is |was )?(?:exhausted|limit (?:was "
                ")?(?:reached|exceeded))"
            ),
        ),
        unless=_OF_TORCH,
        # With its unit: a number alone may be anything.
        also=(
            r"(?:to allocate|allocating|allocation of|requested(?:space|size)?:?|of "
            r"size):?(?P<tried>\d{1,20}"
            r"(?:\.\d{1,9})?(?:bytes|[kmgt]i?b|b(?![a-z])))",
            rf"alloc[a-z]{{0,6}} failed \S{{0,60}}?\((?P<tried>{_ANY_SIZE})(?:chunk)?\)",
        ),
        means="a program got no GPU memory; the text does not say what holds it",
        next_step=_STOP_OTHERS,
    ),
    MessageKind(
        "a cache of keys and values",
        level=3.5,
        seen=(
            rf"{_FAILURE}.{{0,60}}?(?:kv|key-?value)[-_ ]?cache",
            rf"(?:kv|key-?value)[-_ ]?cache.{{0,60}}?{_FAILURE}",
            r"(?:not enough|insufficient|out of|no free) \w{0,12}(?:memory)?"
            r"(?:(?:kv)?cache)?blocks?(?!ed|ing)",
        ),
        needs=("memory|block|token|byte|gib|space",),
        unless=(r"swap|failed to (?:transfer|store|save)|defaultcpuallocator",),
        also=_ANY_FIGURES,
        means="a server's cache of keys and values, whose size is a share of the GPU's memory or "
        "a setting, has too little room for the tokens of a request; the GPU itself may not be "
        "full",
        next_step="a shorter context or fewer requests at once; else a larger share of the GPU "
        "for the cache (gpu_memory_utilization in vLLM, mem_fraction_static in SGLang), weights in "
        "fewer bytes, or more GPUs",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "the limit of the address space",
        backend="host",
        level=1,
        seen=(
            r"address space \(kbytes\) (?P<limit_kib>\d{4,12})",
            r"virtual memory \(kbytes,-v\) (?P<limit_kib>\d{4,12})",
        ),
        needs=(
            rf"{_FAILURE}.{{0,30}}?(?:memory|alloc)|alloc\w{{0,8}}fail|memoryerror|bad_alloc",
        ),
        means="the shell limits the address space of a program (ulimit -v). Every mapping counts, "
        "also of a GPU's driver, of files and of threads' stacks, so that an allocation may fail "
        "long before so much memory is used",
        next_step="`ulimit -v unlimited` before the program starts (or the limit in "
        "/etc/security/limits.conf); if it fails then too, `free -g` shows whether the machine's "
        "memory is full",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "Mesa's driver of AMD's GPUs",
        backend="GPU",
        level=2,
        seen=(r"(?:radv/)?amdgpu: failed to allocate a buffer:",),
        also=(r"amdgpu: size: <tried>",),
        means="the driver found no room for one buffer of the size in the text, in the GPU's "
        "memory or in the host's that it may use (domains: 4 and 2)",
        next_step="a smaller context, batch or model, or fewer layers on the GPU; with memory that "
        "CPU and GPU share, a larger part for the GPU (the firmware's setting, or ttm.pages_limit)",
    ),
    MessageKind(
        "an allocation on the GPU",
        level=3.9,
        seen=(
            r"(?:fail(?:ed|ure|s)?|unable|could ?n[o']t|can ?n?[o']?t) (?:to )?(?:re)?alloc\w{0,6} "
            r"[^:;]{0,60}?(?:(?:on|for|from) (?:the )?(?:gpu|cuda|device \d)|gpu memory|vram)",
            r"(?:cuda|hip)malloc\w{0,8} "
            r"(?:of (?:size )?\d[\d.,]{0,20}(?:bytes|[kmgt]i?b)? )?failed",
            r"(?:gpu|vram|device) memory alloc\w{0,6} (?:of (?:size )?\d[\d.,]{0,20}(?:bytes|"
            r"[kmgt]i?b)? )?(?:error|fail)",
            r"(?:not enough|insufficient|no more) (?:gpu|video|device) ?memory",
        ),
        also=(
            r"bytes on device <device>\. total memory: <total>, free: <free>",
            *_ANY_FIGURES,
        ),
        means="an allocation on the GPU failed: most likely its memory is full; the text does not "
        "say what holds it",
        next_step=_STOP_OTHERS,
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "an allocation that failed",
        backend="device",
        level=4,
        seen=(
            r"(?:fail(?:ed|ure|s)?|unable|could ?n[o']t|can ?n?[o']?t) (?:to )?(?:re)?alloc\w{0,6} "
            r"(?:[a-z_]{0,24}(?:memory|buffer|storage|cache|tensor|workspace|scratch|space"
            r")|\d[\d.,]{0,20}(?:bytes|[kmgt]i?b))",
            (
                r"memory allocation (?:error|fail)|(?:not enough|insufficient|no more) "
                r"(?:\w{1,8})?memory"
            ),
            r"alloc\w{0,12}(?:\(\))? failed|enomem",
            r"out of memory \S{0,40}?alloc[a-z]{0,6} \d[\d.,]{0,20}(?:bytes|[kmgt]i?b)",
            r"alloc[a-z]{0,6} of (?:size )?\d[\d.,]{0,20}(?:bytes|[kmgt]i?b)? failed",
        ),
        also=_ANY_FIGURES,
        means="an allocation failed; the text does not say whether of the GPU or of the host",
        next_step=_LESS_OF_ANY,
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "GPT4All",
        level=1,
        seen=(r"gpu loading failed \(out of vram\?\)",),
        means="GPT4All could not load the model on the GPU, suspects too little "
        "memory, and uses the CPU instead",
        next_step=(
            "a smaller or more strongly quantized model, or a shorter context; or the CPU as device"
        ),
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "shark-ai's page pool",
        seen=(r"failed to allocate \d{1,9} pages from `?pagepool",),
        also=(
            "required pages: <pages>",
            "available pages: <free_pages>",
            "total pages: <all_pages>",
        ),
        means="the pages of shark-ai's KV cache are used up: the GPU is not full",
        next_step=(
            "a higher --device-block-count when the model is exported; or fewer or shorter requests"
        ),
        cause=OomCause.OTHER_MEMORY,
    ),
    MessageKind(
        "Wan2GP",
        level=1,
        seen=("unsufficient vram and you should therefore",),
        means="Wan2GP caught an error and suspects too little GPU memory; the error "
        "itself is in its terminal",
        next_step=(
            "a smaller video or fewer frames; a profile that needs less memory (--profile 4, or 5)"
        ),
        cause=OomCause.UNKNOWN,
        leads=True,
    ),
    MessageKind(
        "Wan2GP, on the host",
        backend="host",
        level=1,
        seen=(r"unsufficient ram and / or reserved ram",),
        also=(
            "requirement for pinned models is <needed>",
            "requirements for pinned models is <needed>",
            "estimated available reservable ram is <available>",
        ),
        means=(
            "Wan2GP caught an error and suspects too little host memory, which it pins "
            "for the models"
        ),
        next_step="a smaller perc_reserved_mem_max (--perc-reserved-mem-max 0.3), or a "
        "profile that needs less memory (--profile 4, or 5)",
        cause=OomCause.HOST,
    ),
    MessageKind(
        "a program's guess",
        backend="device",
        level=4,
        seen=(
            r"(?:lack|shortage) of (?:(?:gpu|video|system|device|free|available)){0,2}"
            r"(?:memory|v?ram(?!et|p|m))",
            "(?<!of)memoryerror:",
            r"(?:[iu]nsufficient|not enough|out of|too little|low on) v?ram",
        ),
        also=_ANY_FIGURES,
        means="a program suspects a lack of memory; the error itself is not in the text",
        next_step=_LESS_OF_ANY,
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "words about memory",
        backend="",
        level=5,
        seen=(
            f"{_FAILURE}.{{0,40}}?(?:memory(?! access)|vram|buffer|heap)",
            f"(?:memory(?! access)|vram|buffer|heap).{{0,40}}?{_FAILURE}",
            rf"(?:needs?|requires?) [^\d.;]{{0,20}}{_ANY_SIZE}.{{0,40}}?"
            r"(?:but|only|have)[^\d.;]{0,24}"
            rf"{_ANY_SIZE}",
        ),
        also=_ANY_FIGURES,
        means="the text mentions memory and a failure, in words of no program that snapconv knows",
        next_step=_LESS_OF_ANY,
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "torch.cuda.memory_summary()",
        level=3,
        seen=(
            r"cuda memory summary, device id (?P<device>\d{1,4}) \D{0,200} cuda ooms: "
            r"(?P<n_ooms>\d{1,12}) \|? cudamalloc retries: (?P<n_retries>\d{1,12})",
            # Without its head.
            r"allocated memory \| <allocated_bytes> \| <peak_allocated_bytes> \|",
        ),
        also=(
            r"allocated memory \|? <allocated_bytes> \|? <peak_allocated_bytes>",
            r"active memory \|? <active_bytes> \|? <peak_active_bytes>",
            r"requested memory \|? <requested_bytes> \|? <peak_requested_bytes>",
            r"(?:gpu|xpu|npu|cuda) reserved memory \|? <reserved_bytes> \|? "
            "<peak_reserved_bytes>",
            r"non-releasable memory \|? <partly_used_bytes> \|? <peak_partly_used_bytes>",
        ),
        next_step=(
            f"{LESS}; `snapconv watch train.py` saves a file that shows which lines hold the memory"
        ),
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "unknown",
        backend="device",
        level=4,
        seen=("out of memory|outofmemoryerror",),
        also=_ANY_FIGURES,
        means=(
            "memory ran out; the text has no figures that are known, and does not say whether the "
            "GPU's or the host's"
        ),
        next_step=_LESS_OF_ANY,
        cause=OomCause.UNKNOWN,
    ),
)
ALLOCATOR, *MESSAGE_KINDS = _KINDS
SUMMARY = MESSAGE_KINDS[-2]
# What stands in place of a text's own kind, where its figures deny that memory was too small.
_DENIALS = (
    MessageKind(
        "a request larger than the pool",
        means="the request is larger than all that the program's own allocator may have: no free "
        "memory serves it",
        next_step=f"{SHAPES}; a wrong index or length asks for as much; if they are as intended, "
        "the work in parts",
        cause=OomCause.TOO_LARGE,
    ),
    MessageKind(
        "a wrong size",
        means=f"{WRONG_SIZE}, or was read from a damaged file",
        next_step=f"{SHAPES}; where it reads a file, check that file",
        cause=OomCause.TOO_LARGE,
    ),
    MessageKind(
        "enough memory",
        means="the cause is not in the text: when the program measured it, more memory "
        "was free than was needed; possible: another thread or process held it at that "
        "moment, or a limit of Windows, WSL or a virtual GPU",
        next_step="run it again with `{monitor}` beside it, which shows what else "
        "takes memory at that moment",
        cause=OomCause.UNKNOWN,
    ),
    MessageKind(
        "enough tokens",
        means="the cause is not in the text: the cache had room for more tokens than "
        "were requested; possible: with pages of more than one token, each request "
        "needs a whole page, and too few are free",
        next_step=(
            "lower --max-running-requests, or set --page-size 1; else a newer release of the server"
        ),
        cause=OomCause.UNKNOWN,
    ),
)
LARGER_THAN_POOL, OF_WRONG_SIZE, OF_ENOUGH, OF_ENOUGH_TOKENS = _DENIALS
