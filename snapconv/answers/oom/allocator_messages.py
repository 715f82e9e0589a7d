"""Messages of torch's allocators: their first words, rare words, and the next step by the cause."""

from snapconv.answers.oom.message_text import squeezed
from snapconv.answers.oom.verdict import OomCause
from snapconv.torch_knowledge.backends import BACKENDS

# The begin of a message of torch's allocator, not of a chip; the second is cudaMallocAsync's.
BACKEND_NAMES = {name.lower(): name for name in (*BACKENDS, "OpenCL")}
BEGINNINGS = squeezed(
    rf"(?<!c)(?P<backend>{'|'.join(BACKEND_NAMES)})(?: backend)? out-?of-?(?:the)? memory"
    r"(?!message|issue|problem)|"
    r"allocation on device -?\d{0,3} would exceed allowed memory"
)

RAISE_LIMIT = (
    "raise or remove the limit: set_per_process_memory_fraction(), or {backend.variable}"
)
SHAPES = "look at the shapes in the traceback's last line of your code"
WRONG_SIZE = (
    "more than 2^60 bytes were requested: a size was computed wrongly, or is negative"
)
NEXT_STEPS = {
    OomCause.FULL: "{less}; {backend.watch}",
    OomCause.FRAGMENTED: (
        "{backend.expandable}; on Windows, which lacks it, or if it is not enough: {less}"
    ),
    OomCause.OTHER_POOL: (
        "let CUDA graphs share a pool (torch.cuda.graph(..., pool=...)), or capture fewer"
    ),
    OomCause.LIMIT: RAISE_LIMIT,
    OomCause.OUTSIDE: (
        "stop the other processes that `{backend.monitor}` shows, or use another device"
    ),
    OomCause.TOO_LARGE: f"make this one request smaller: {SHAPES}; if they are as intended, a "
    "smaller batch, shorter sequences or smaller images",
    OomCause.UNKNOWN: "run it again with `{backend.monitor}` beside it, which shows what other "
    "programs hold; if this one holds the memory, {less}; {backend.watch}",
}
# Where the program's last line moves a tensor to the device: `x = data.to(device)`.
MOVING = (
    r"(?:line\d{1,6}, in|-->\d{1,5})[\w<>=.,()\[\]:-]{1,160}?"
    r"\.(?:cuda\(\w{0,20}\)|"
    r"to\((?:self\.|torch\.)?(?:device|[\"']cuda|rank|gpu)[\w:.\"'=(),]{0,60}\))"
    r"[\^~]{0,200}(?:torch\.)?(?:cuda\.)?(?:runtime|outofmemory)error:?$"
)
MOVED_AT_ONCE = (
    "keep this data in the host's memory and move a part of it, such as one batch, to the device "
    "at a time: the traceback's last line moves all of it"
)
# Where the request is larger than all that torch holds beside it.
ONE_REQUEST = (
    f"{SHAPES}: this one request is larger than all that torch has; else "
    f"{NEXT_STEPS[OomCause.FULL]}"
)
# Where no device will ever have as much.
WRONG_SHAPE = (
    f"{SHAPES}: the request is a thousand times the device or more, so most likely a size was "
    "computed wrongly, or read from memory that nothing had written"
)
# What else makes one request as large: its shape has the same length twice.
_ALL_PAIRS = (
    "all pairs at once (attention without a fused kernel, distances, a Hessian) ask for as much: "
    "compute them in parts, attention with a fused kernel"
)
# The step for a large request where the text does not say what the device has.
LARGE_REQUEST = (
    f"{SHAPES}: this one request is large; {_ALL_PAIRS}. If the shapes are as intended, "
    "{less}; `{backend.monitor}` shows what other programs hold"
)
# Where a quarter of the device or more is not torch's, as the desktop and a context take of a small
# one.
OUTSIDE_TOO = (
    "{less}; stop the other programs that `{backend.monitor}` shows, also those of the "
    "desktop: a quarter of the device or more is not torch's; {backend.watch}"
)
# Where it is also larger than a device that shares the host's memory.
LARGER_THAN_OWN = (
    "make the request smaller: it is larger than the device's own memory, and what is free "
    f"includes the host's; {SHAPES}"
)
# Where the text lists the processes that hold what is not torch's.
STOP_OTHER = (
    "stop process {number}, which holds {size} (`{backend.monitor}` shows its program), or use "
    "another device"
)
STOP_OTHERS = (
    "stop the other processes, which hold {size} together (`{backend.monitor}` shows their "
    "programs), or use another device"
)
# Where more was free than was needed.
CAME_BACK = "what the text calls free may have come back after the failure"
FREE_ENOUGH = (
    "run it again with `{backend.monitor}` beside it, which shows what other programs hold; on "
    "Windows a larger page file (system settings). If this program holds the memory, {less}; "
    "{backend.watch}"
)
PAGE_FILE = (
    "on Windows, where the program most likely ran, a larger page file (system settings) and fewer "
    "open programs; else run it again with `{backend.monitor}` beside it, which shows what other "
    "programs hold. If this one holds the memory, {less}; {backend.watch}"
)
# Where nothing else of the process can have it: the rest is of a library in the same process.
SAME_PROCESS = (
    "limit the other library in this process: JAX (XLA_PYTHON_CLIENT_PREALLOCATE=false), "
    "TensorFlow (set_memory_growth), CuPy, or a server's own pool"
)
# The step for a table in which much more was active than allocated.
WAITED = (
    "wait for the other stream's work before a buffer is dropped, or use one stream; "
    "before torch 2.8 TORCH_NCCL_AVOID_RECORD_STREAMS=1 for what NCCL uses"
)
# Releases before 2.1 have no expandable segments; those before 1.10, of which the oldest have words
# of their own, have no setting at all.
BEFORE_EXPANDABLE = (
    "set {backend.variable}=max_split_size_mb:128 if this torch is 1.10 or newer; else "
    "{less}. It is older than 2.1, from which expandable_segments:True is better"
)
# Of a device that no Windows knows.
NOT_ON_WINDOWS = "{backend.expandable}; if it is not enough: {less}"
ON_WINDOWS = (
    "{less}; max_split_size_mb:128 in {backend.variable} may help, expandable_segments does not "
    "exist on Windows"
)
BEFORE_SETTINGS = (
    "{less}; this torch is older than 1.4 and has no setting against it, newer ones "
    "(from 2.1) have expandable_segments:True"
)
# The steps against fragmentation where what is cached is next to nothing of a device: a setting
# then serves this request and few more.
_FEW_MORE = "{less}; or, for this request and few more, {backend.expandable}"
NEARLY_FULL = {
    NEXT_STEPS[OomCause.FRAGMENTED]: _FEW_MORE,
    NOT_ON_WINDOWS: _FEW_MORE,
    BEFORE_EXPANDABLE: "{less}; or, for this request and few more, {backend.variable}="
    "max_split_size_mb:128 if this torch is 1.10 or newer (expandable_segments:True from 2.1)",
}
# Intel's drivers allow no larger block on many devices; torch does not say so.
LARGE_BLOCK = (
    "not allocate memory block with size larger than 4 ?gb",
    OomCause.LIMIT,
    (
        "one block is larger than the 4 GiB that Intel's driver allows on many "
        "devices, whatever is free"
    ),
    "smaller tensors: a smaller batch, or the work in pieces",
)
# What torch adds in rare cases: the cause, whatever the figures are.
WORDS = (
    (
        "would exceed per_process_memory_fraction",
        OomCause.LIMIT,
        "stopped by per_process_memory_fraction, before the driver was called",
        RAISE_LIMIT,
    ),
    ("allocate more than 1eb", OomCause.TOO_LARGE, WRONG_SIZE, SHAPES),
    (
        r"allocate \d{4,12}(?:\.\d\d)?gi?b(?!.{0,60}capac)",
        OomCause.TOO_LARGE,
        "the request is larger than any device",
        f"{SHAPES}; {_ALL_PAIRS}",
    ),
    (
        "exceeds the expandable-segment reserve",
        OomCause.LIMIT,
        "the request is larger than the address range of an expandable segment",
        "raise expandable_segments_reserve in {backend.variable}, or leave it out",
    ),
    (
        "allocator backing this mempool returned nullptr",
        OomCause.UNKNOWN,
        "the allocator of a torch.cuda.MemPool refused, whatever the device has free",
        "look for that allocator's own warnings further up in the log",
    ),
    LARGE_BLOCK,
)
MPS_LIMIT = (
    "a smaller batch, image, sequence or model; a higher "
    "PYTORCH_MPS_HIGH_WATERMARK_RATIO may make the system fail, as torch warns"
)
# Where most of what counts against the limit is no tensor of torch's.
MPS_OTHER = (
    "look first at the other Metal memory, the larger part: another library of this process (MLX, "
    f"llama.cpp), or graphs that MPS keeps for each new shape (pad inputs to equal shapes); then "
    f"{MPS_LIMIT}"
)

# The program that shows a device's memory where a text names the device's maker, and not NVIDIA.
OF_NVIDIA = "nvidia|geforce|rtx ?\\d|tesla|cudamalloc|cuda error|cublas"
MONITORS = (
    (r"rocm|hip ?error|hipmalloc|amdgpu|radeon|gfx(?:9|1[0-2])", BACKENDS["HIP"].monitor),
    (r"level[-_ ]?zero|intel\(r\)(?:arc|data ?center gpu)|xpu", BACKENDS["XPU"].monitor),
)


# Where a program was when its request failed, by the last of these frames above the message: what
# then grows or shrinks the memory that it needs.
LESS = (
    "a smaller batch, shorter sequences or smaller images (none helps while weights "
    "are loaded, or in optimizer.step())"
)
# Where no frame says it, and next to nothing of what torch reserved is free again: only weights are
# put there one after the other with nothing freed between.
NOTHING_FREED = (
    "if weights were being loaded, as is likely where torch has freed next to nothing, load them "
    "in fewer bytes (bf16, 8 or 4 bits) or spread them over GPUs or the CPU; else a smaller batch, "
    "shorter sequences or smaller images"
)
# The same around a server whose row does not say where it was.
WEIGHTS_FIRST = (
    "if weights were being loaded, as is likely where torch has freed next to nothing, "
    "{fewer}"
)
WEIGHTS_IN_PARTS = (
    "load the weights in fewer bytes (bf16, 8 or 4 bits), or spread them over GPUs or the CPU: a "
    "smaller batch does not help while weights are loaded"
)
SHARDS = (
    "more of ZeRO's states on the CPU (offload_optimizer, offload_param) or on more GPUs: a "
    "smaller batch does not help while DeepSpeed puts the shards on the device"
)
# Where no frame says it either: what a person or a log says around the message of when it came.
_SOME = r"(?:about|around|only|exactly|always)? ?(?:a few|several|some|many|\d{1,7}k?(?:-\d{1,7})?)"
_RUNS = (
    "(?:iter|epoch|step|run|image|file|video|frame|generation|batch|hour|loop|game|prompt)"
)
WORDS_AROUND = (
    (
        r"(?:at|when|while|during|on|in|line) ?(?:the line)? ?[`'\"]?(?:\w{1,20}=)?"
        r"(?:model|pipe|pipeline|net)\.(?:to\(|cuda\()",
        WEIGHTS_IN_PARTS,
    ),
    (
        r"memory leak|(?:gpu|vram|memory)(?: usage| use| consumption)? (?:keeps?|is|was)? "
        r"?(?:slowly|gradually|constantly|continuously|steadily)? ?"
        r"(?:increas(?:e|es|ing) ?(?:with|every|each|over|after|until|and|by|dur)|grow|accumulat)|"
        r"accumulat\w{0,5} (?:gpu|vram)? ?memory|"
        rf"(?:out of memory|oom|error|crash\w{{0,4}}|fails?|happens|occurs) after {_SOME} {_RUNS}|"
        rf"after (?:training|running|processing)? ?(?:for)? ?{_SOME} {_RUNS}",
        "see what stays from step to step: losses and outputs kept with their graph (loss.item(), "
        ".detach(), torch.no_grad() where nothing is trained), tensors in lists on the GPU; where "
        "inputs differ in size, the largest decides. Else {less}",
    ),
    (
        # Not a setting, such as evaluation_strategy.
        r"(?:during|while|in|at|on|when) ?(?:the|my)? ?(?:eval(?!\w{0,8}_)|validat)|"
        r"eval(?:uation)? (?:still|step|phase|loop|seems)|validation (?:step|phase|loop)|"
        r"trainer\.evaluate\(",
        "in an evaluation: torch.no_grad(), a smaller batch for it (per_device_eval_batch_size), "
        "and predictions that do not stay on the GPU (eval_accumulation_steps in the Trainer of "
        "transformers, preprocess_logits_for_metrics). Else {less}",
    ),
)
# `File "a.py", line 5, in f`, IPython's `File a.py:5, in Class.f(x)` or `a.py in f(x)`, Colab's
# `[a.py](url) in f`.
_IN = r"\.py\"?(?:,line\d{1,6},|:\d{1,6},?)?(?:\]\([^)]{1,60}\))? in (?:[a-z]\w{1,40}\.)?"
# The frames of a program that puts weights on the GPU.
LOADING = (
    _IN + r"(?:_apply(?!_)|_cuda_deserialize|default_restore_location|_load_state_dict|"
    r"_load_parameter|set_module_tensor_to_device|"
    r"_quantize(?!_)|load_checkpoint(?!_)|caching_allocator_warmup|create_weights|initialize_model"
    r"|_?load_model(?!_)"
    r"|process_weights)|"
    # Frames of rich have the lines of the code without the name of the function.
    r"self\._apply\(convert\)|model=(?:\w{1,20}\.)?load_model\(|"
    r"self\.\w{1,30}=(?:torch\.)?(?:nn\.)?parameter\(|return t\.to\(device,dtype if "
    r"t\.is_floating_point|"
    r"(?:,line\d{1,6},in[\w<>]{1,40}?|-->\d{1,4}"
    r"|\u2771\d{1,4})[\w.,=]{0,60}\.from_pretrained\(|"
    # A line of the program itself: `pipe.to(device)`, `model = model.cuda()`.
    r"line\d{1,6}, in [\w<>=.]{1,60}?"
    r"(?:pipe|pipeline|model|net|unet|transformer|encoder|vae)\d?"
    r"\.(?:cuda\(\w{0,20}\)|to\((?:device|\w{1,20}\.device|torch\.device\(|[\"']cuda|rank)"
    r"[\w:\"'=,]{0,60}\)?\))(?!\()|"
    r"occurred when executing \w{0,40}load(?:er|model)?\w{0,20}:|"
    r"loading checkpoint shards:\d{1,2}%(?!.{0,8000}?shards:100%)|"
    r"loading pipeline components\.\.\.:\d{1,2}%(?!.{0,8000}?components\.\.\.:100%)|"
    r"loading weights:\d{1,2}%(?!.{0,8000}?weights:100%)"
)
PHASES = (
    (
        LOADING,
        WEIGHTS_IN_PARTS,
    ),
    (
        r"optim\w{0,12}[/\\]\w{1,40}" + _IN + r"(?:step|_init_group|_single|_multi|_fused|"
        r"\w{1,20}adam)|in initialize_optimizer_states",
        "an optimizer with smaller states (8 bits), or sharded ones (FSDP, ZeRO): a "
        "smaller batch does not make states smaller",
    ),
    (
        _IN + r"(?:backward|_engine_run_backward)|run_backward\(",
        "a smaller batch, shorter sequences or smaller images, or activation checkpointing",
    ),
    (
        _IN
        + r"_\w{4,24}_state_dict_hook|clone implementation of|failed to clone\(\) tensor",
        "a state dict that is gathered on the CPU "
        "(FullStateDictConfig(offload_to_cpu=True, rank0_only=True)), or sharded "
        "checkpoints: a smaller batch does not help while a checkpoint is saved",
    ),
    (
        _IN + r"(?:cross_entropy|_convert_to_fp32|(?:fixed|vocab_parallel)_cross_entropy"
        r"|forcausallmloss|loss_function|selective_log_softmax|get_batch_logps)"
        r"|logits=logits\.float\(\)|logits\.to\(torch\.float32\)",
        "a smaller batch, shorter sequences or smaller images; of a language model the logits, "
        "tokens times vocabulary, are what is large there: a fused or chunked loss (Liger, "
        "cut cross-entropy) never holds all of them",
    ),
    (
        _IN
        + r"eager_attention_forward|attn_(?:weights|scores|probs)=|attention_(?:scores|probs)="
        r"|torch\.baddbmm\(|(?:sim|dots|attn)=(?:torch\.)?(?:einsum|matmul|softmax)\(",
        "attention with a fused kernel (sdpa or flash_attention_2 in transformers, "
        "scaled_dot_product_attention, xformers), which never holds all scores; else shorter "
        "sequences, smaller images or a smaller batch",
    ),
    (
        r"optim\w{0,12}[/\\]\w{1,40}"
        + _IN
        + r"(?:load_state_dict|_cast|_process_value\w{0,40}"
        r"|update_group)|" + _IN + "_load_optimizer_and_scheduler",
        "a checkpoint that is read to the CPU (map_location='cpu') and deleted before the next "
        "step, or sharded states: a smaller batch does not help while an optimizer is restored",
    ),
    (
        _IN + r"(?:merge_and_unload|get_delta_weight|_unload_and_optionally_merge)",
        "merge the adapter on the CPU (the base model with device_map='cpu'), or on a device "
        "with room for the weights twice: a smaller batch does not help there",
    ),
    (
        _IN + r"(?:_create_fp(?:16|32)_\w{0,12}partitions\w{0,30}|_setup_for_real_optimizer"
        r"|_create_fp16_sub_groups|_configure_zero_optimizer)|single_grad_partition=torch\.zeros\(",
        SHARDS,
    ),
    (
        r"fsdp[/\\]\w{1,40}"
        + _IN
        + r"(?:_?unshard|_alloc_padded_unsharded_flat_param|_all_gather_flat_param)",
        "smaller units in FSDP (an auto_wrap_policy for each layer), of which fewer parameters are "
        "gathered at once; else CPU offload, more GPUs or a smaller batch",
    ),
    (
        _IN + r"(?:_ddp_init_helper|_sync_module_states)",
        "gradient_as_bucket_view=True in DistributedDataParallel, whose buckets are as large as "
        "the gradients; else sharding (FSDP, ZeRO): a smaller batch does not help there",
    ),
    (
        _IN + r"(?:bbox_overlaps|batch_probiou|box_iou|bbox_iou|pairwise_iou|fp16_clamp)"
        r"|assigners?[/\\]\w{1,40}" + _IN + "assign",
        "fewer boxes at once, all of which are compared with each other: a smaller batch or "
        "smaller images; gpu_assign_thr of the assigner in mmdetection compares many boxes on "
        "the CPU",
    ),
    (
        _IN + r"(?:nested_concat|torch_pad_and_concatenate)|preds_host=",
        "eval_accumulation_steps=20 in TrainingArguments, which moves predictions to "
        "the CPU, or fewer of them (preprocess_logits_for_metrics): a smaller batch "
        "does not help where an evaluation keeps all",
    ),
    (
        _IN + r"(?:generate(?!_)|_sample(?!_)|_?beam_search|_?greedy_search|_prefill)",
        "fewer or shorter sequences at once, under torch.no_grad(); of a language "
        "model the KV cache grows with them",
    ),
    (
        r"whisper[/\\](?:decoding|transcribe|model)\.py",
        "a smaller Whisper model, or a smaller beam or batch",
    ),
    (
        r"diffusers[/\\]pipelines|comfy[/\\]|ldm_patched[/\\]|k_diffusion[/\\]"
        r"|modules[/\\](?:processing|sd_)"
        "|ksampler",
        "a smaller image, or fewer images or frames at once; or keep a part of the models on the "
        "CPU (enable_model_cpu_offload() in diffusers, --lowvram in ComfyUI and the web UI)",
    ),
    (
        r"(?:autoencoder\w{0,30}|vae|comfy[/\\]sd)" + _IN + "_?decode.{0,4000}",
        "decode the image in tiles (vae.enable_tiling() in diffusers, VAE Decode "
        "(Tiled) in ComfyUI), or a smaller image or fewer frames",
    ),
)
