r"""Texts about memory that ran out: the figures of torch's allocator, and a row for each other kind of text.

message_kinds.py reads it, and has how a message of torch's allocator begins.

A row is a name, and below it

    seen   a pattern in a text without white space: the row's text. It may have several
    with   a pattern that the text must have too;  unless one that it must not have
    also   a pattern of further figures that the same text may have
    means  the usual meaning
    next   the first thing to do;  exact the same with the text's own figures, where it has them
    cause  one of OomCause: full, where nothing else is said
    on     the backend: GPU, where nothing else is said, or host by its cause
    leads  beside a message of torch's allocator, its next step comes first
    level  a row of a lower level is preferred, wherever both are in the text: 0, where nothing else is
      said, 1 of a general row, 2 of a warning or a consequence, 3 of a table, 4 of mere words

``<tried>`` stands for a figure of that name, see FIGURES in message_kinds.py, and a name that ends in
``_bytes`` for a size with its unit, a field of OomMessage or MemorySummary. Lines that are indented
further continue a part. Sources: the code of these projects that raises the texts, and public reports that
quote them.
"""

# Plain words in small letters of which every text about memory has one.
SIGNS = (
    "/dev/shm|/torch_|1455|8007000e|=error 2|_create|algorithm|alloc fail|alloc:|alloc_|allocate |"
    "allocating|allocation|allocator|already allocated|arrayallocat|available memory|backend failed|"
    "bad_alloc|buffer size|bus error|calloc|crashed|cuda execution|cuda graph|device memory|"
    "dimension sizes|dispatched on|dnn library|el0004|enough|error (2)|error code|error: 39|"
    "error: 40|error=2|exceed|excessive|exit|handle|insufficient|is allocated|kill|kv cache|limit|"
    "malloc|memlimit|memory error|memory on device|memory on node|memory on the node|"
    "memory pressure|memory prof|memory summary|memoryerror|ndarray|nrt_|nvmap|object store|"
    "objectstore|oom|out of |out_of_|outof|paging file|profiled value|return code|returncode|"
    "shared memory|size found|status_|system memory|terminated|than requested|thcuda|to alloc|"
    "to execute this|too many|unable to"
).split("|")

TABLE = r"""
torch's allocator
    also allocate <tried_bytes>
    also Requested(?: size)?: <tried_bytes>
    also <total_bytes> total capacity
    also capaci?ty of <total_bytes>
    also Device limit: <total_bytes>
    also <free_bytes> free[;)]
    also of which <free_bytes> is free
    also Free \(according to \w{1,20}\): <free_bytes>
    also <allocated_bytes> already allocated
    also <allocated_bytes> is allocated by PyTorch
    also Currently allocated: <allocated_bytes>
    also <reserved_bytes> reserved in total by PyTorch
    also MPS allocated: <reserved_bytes>
    also <unallocated_bytes> is reserved by PyTorch but unallocated
    also <unallocated_bytes> cached
    also with <private_pool_bytes> allocated in private pools
    also <allowed_bytes> allowed;
    also max allowed: <allowed_bytes>
    also memory fraction\): <allowed_bytes>
    also other allocations: <metal_bytes>
    also this process has <process_bytes> memory in use
    also <active_bytes> current active
    also (?:GPU|NPU|MLU|GCU|device) <device>(?=has|;|would|\D{0,2}$)
vLLM's sleep-mode pool
    seen CUDA Error: out of memory at \S{0,200}cumem_allocator
    means vLLM's pool for weights and KV cache (cumem_allocator) got no memory from the driver: they do not
      fit, or another process, often a trainer on the same GPU, still holds memory
    next free what other processes hold (`nvidia-smi`), or lower --gpu-memory-utilization
vLLM's KV cache
    seen No available memory for the cache blocks
    seen KV cache is needed, which is larger than the available KV cache memory
    seen max seq len \(<length>\) is larger than the maximum number of tokens that can be stored in KV
      cache \(<fits>\)
    seen larger than the maximum number of tokens that can be stored in KV cache
    also <needed> KV cache is needed
    also available KV cache memory \(<available>\)
    also available KV cache memory \(-<lacking>\)
    also max seq len \(<length>\)
    also estimated maximum model length is <fits>
    also Available KV cache memory: <available>
    also Available KV cache memory: -<lacking>
    also model weights take <weights>
    also (?:Model loading|Loading model weights) took <weights>
    means after the weights and a trial run, vLLM's share of the GPU has too little left for the KV cache
    next raise --gpu-memory-utilization, or lower --max-model-len; else quantize or use more GPUs
    exact --max-model-len {fits} fits; for longer sequences raise --gpu-memory-utilization, quantize, or use
      more GPUs
    cause limited
vLLM's start
    seen Free memory on device .{0,12}?\(<free_gib>/<total>\).{0,20}less than desired GPU memory utilization
    seen Free memory on device .{0,80}less than desired GPU memory utilization
    also Free memory on device cuda:<device>
    also desired GPU memory utilization \(<utilization>, <wanted>\)
    means vLLM's share of the GPU is larger than what other processes left free
    next free what other processes hold (`nvidia-smi`), or lower --gpu-memory-utilization
    exact --gpu-memory-utilization {share} fits what is free; for more, stop the other processes that
      `nvidia-smi` shows
    cause held outside torch
vLLM's memory profiling
    seen Error in memory profiling\.
    also Initial free memory <before>, current free memory <free>
    means another process freed or took memory of this GPU while vLLM measured its own
    next start servers on one GPU one after another, each when the other has finished its start
    cause held outside torch
vLLM's warm-up
    seen out of memory occurred when warming up \w{1,20} with <requests> dummy requests
    seen out of memory occurred when warming up
    means vLLM's KV cache already has its share of the GPU, and the trial run with all sequences at once does
      not fit beside it
    next lower --max-num-seqs, or --gpu-memory-utilization
    exact lower --max-num-seqs below {requests}, or lower --gpu-memory-utilization
    leads
graph capture in SGLang
    seen Capture cuda graph failed: .{0,40}out of memory
    seen Capture cuda graph begin\.
    with out of memory
    unless Capture cuda graph end|server is fired up
    also Capture cuda graph begin\..{0,80}?avail mem=<before>
    also Capture cuda graph begin\..{0,2000}avail_mem=<after>
    also GPU <device> has a total
    means captured CUDA graphs took the memory that the static share (weights and KV cache) left free
    next capture fewer or smaller graphs (--cuda-graph-max-bs), or lower --mem-fraction-static
    leads
graph capture in vLLM
    seen Capturing (?:the model for )?CUDA graphs?
    with out of memory
    unless captur\w{0,8} finished|Application startup complete
    also GPU <device> has a total
    means captured CUDA graphs took the memory that vLLM's share (weights and KV cache) left free
    next lower --gpu-memory-utilization, or capture fewer graphs (--max-num-seqs, or --enforce-eager for none)
    leads
SGLang's start
    seen Not enough memory\. Please try (?:to increase|increasing) --mem-fraction-static
    seen max_total_(?:num_)?tokens=<length> is larger than the profiled value -<missing_tokens>
    also Load weight end\..{0,120}?avail mem=<free>, mem usage=<weights>
    also Load weight end\..{0,120}?avail mem=<free>
    also Current value: (?:self\.)?(?:server_args\.)?mem_fraction_static=<utilization>
    means after the weights, SGLang's static share of the GPU has nothing left for the KV cache
    next raise --mem-fraction-static; else quantize or use more GPUs (--tp)
    cause limited
SGLang's KV cache
    seen (?:Prefill|Decode) out of memory\. Try to lower your batch size
    also Try to allocate <length> tokens
    also Available tokens: <fits>
    means SGLang's KV cache has no room for the tokens of the running requests
    next lower --max-running-requests, or raise --mem-fraction-static
    cause limited
text-generation-inference
    seen Not enough memory to handle <length> (?:prefill|total) tokens
    also with <prefill> prefill tokens
    means the trial run with as many tokens at once as the server allows does not fit beside the weights
    next lower --max-batch-prefill-tokens (and --max-batch-total-tokens), quantize, or use more GPUs
    exact lower --max-batch-prefill-tokens (or --max-batch-total-tokens) below {length}, quantize, or use more
      GPUs
TensorRT-LLM
    seen Executor creation failed due to insufficient GPU memory
    also could not be created: (?P<part>[\w ]{1,30}?)Total GPU memory
    also Total GPU memory \(GiB\): <total_gib>
    also Free GPU memory before component creation attempt \(GiB\): <free_gib>
    means a part of the executor did not fit beside those that were created before
    next lower free_gpu_memory_fraction of the KV cache, max_num_tokens or max_batch_size
TensorRT
    seen Error Code 2: OutOfMemory
    seen Cuda Error in \S{0,80}allocate: 2 \(out of memory\)
    seen OutOfMemory Error in \S{0,120}computeCosts
    also Requested (?:size was|amount of GPU memory \()<tried>
    also insufficient memory on requested size of <tried>
    means TensorRT got no memory for an engine's weights, its activations or the workspace of a tactic
    next a smaller workspace (config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, …)), or free what
      other processes hold (`nvidia-smi`)
a skipped tactic of TensorRT
    seen Requested amount of GPU memory \(<tried>\) could not be allocated
    seen Skipping tactic .{0,40}insufficient memory on requested size of <tried>
    means a warning: TensorRT leaves out a tactic whose workspace does not fit, and goes on with others
    next nothing, if the build ends well; else a smaller workspace
      (config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, …))
    cause not a failure
    level 2
FlashInfer's workspace
    seen (?:Buffer overflow when allocating|Failed to allocate) memory for \w{1,60} with size <tried>
      and alignment \d{1,6}
    seen Out of workspace memory in AlignedAllo\w{1,8}
    also but only <available>
    means FlashInfer's own workspace buffer is too small for this batch: the GPU is not full
    next a larger workspace: VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE in vLLM, SGLANG_FLASHINFER_WORKSPACE_SIZE
      in SGLang, both in bytes
    exact a workspace of more than {tried}: VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE in vLLM,
      SGLANG_FLASHINFER_WORKSPACE_SIZE in SGLang, both in bytes
    cause limited
accelerate's batch size
    seen No executable batch size found, reached zero
    means every batch size down to 1 ran out of memory: find_executable_batch_size halves it and hides each
      message
    next run once with batch size 1 and without it: the message then says what is full
a model that was dispatched to the CPU
    seen Some modules are dispatched on the CPU or the disk
    means the weights do not fit on the GPUs, so that device_map put a part of them on the CPU or the disk,
      which this quantization does not allow
    next free what other processes or models hold on the GPU (`nvidia-smi`), use a smaller model, or
      llm_int8_enable_fp32_cpu_offload=True with a device_map of your own
ExLlama
    seen Insufficient (?:VRAM for model and cache|space (?:on|in) \w{1,20} for)
    means the weights and the cache do not fit into the memory that the GPUs have free
    next a shorter cache (max_seq_len) or a quantized one, or a smaller model
NCCL
    seen Failed to CUDA (?:host )?[cm]alloc(?: async)? <tried>
    seen NCCL WARN Cuda failure (?:2 )?'out of memory'
    seen Cuda failure (?:2 )?'out of memory'
    also Failed to CUDA (?:host )?[cm]alloc(?: async)? <tried>
    means NCCL allocates its buffers outside torch's allocator when a communicator first works, and the GPU
      was full
    next <less>; or start NCCL early, by a barrier before the model is built
torch's allocator, without its figures
    seen NVML_SUCCESS == .{0,120}?INTERNAL ASSERT FAILED at .{0,200}?CUDACachingAllocator
    means CUDA out of memory: torch asked NVML for the figures of its message, and failed at that (MIG slices,
      Jetson, WSL, containers without NVML)
    next a smaller batch or shorter sequences, as for any CUDA out of memory; free what other processes hold
      (`nvidia-smi`, on Jetson `tegrastats`)
Jetson's memory
    seen NvMapMem\w{1,40}: .{0,24}?error (?:12|0)(?!\d)
    means the memory that the CPU and the GPU of a Jetson share ran out
    next close other programs, use a smaller model or batch, or add swap; `tegrastats` shows the memory
a GPU library's handle
    seen (?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE|HIPBLAS|HIPSPARSE)_STATUS_NOT_INITIALIZED
    seen CUSOLVER_STATUS_INTERNAL_ERROR.{0,40}cusolver\w{0,4}Create
    seen CURAND_STATUS_INITIALIZATION_FAILED
    seen rocblas_create_handle
    seen failed to create cublas handle
    level 1
    means most often memory ran out as the library made its handle, outside torch's allocator; else an earlier
      error, such as an index out of range
    next <less>; if the GPU is not full, rerun with CUDA_LAUNCH_BLOCKING=1
a GPU library
    seen (?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE|CURAND|HIPBLAS|HIPSPARSE)_STATUS_ALLOC(?:ATION)?_FAILED
    seen CUFFT_ALLOC_FAILED
    seen rocblas_status_memory_error
    seen miopenStatusAllocFailed
    seen CUDA ran out of memory outside PyTorch's allocator
    level 1
    means a library (cuBLAS, cuDNN, …) allocates its workspace outside torch's allocator, and torch had left
      nearly nothing; rarely it is an earlier error, such as an index out of range
    next <less>; if the GPU is not full, rerun with CUDA_LAUNCH_BLOCKING=1
no algorithm of cuDNN
    seen Unable to find a valid cuDNN algorithm
    seen unable to find an engine to execute this computation
    seen No algorithm worked!
    seen Failed to get convolution algorithm|Could not create cudnn handle
    seen Failed to determine best cudnn convolution algorithm
    seen DNN library (?:initialization failed|is not found)
    means most often the workspace of no algorithm fits into what is free on the GPU; else the cuDNN that is
      installed does not fit the GPU or this program
    next a smaller batch or input, or free what other processes hold (`nvidia-smi`); if the GPU is not full,
      reinstall the cuDNN that your torch, TensorFlow or JAX asks for
pinned memory
    seen (?:\.pin_memory\(|in _?pin_memory|pin memory thread|cudaHostAlloc|cudaHostRegister).{0,400}?CUDA
      error: out of memory
    seen failed to allocate <tried> of pinned memory
    means no host memory could be pinned: the machine's memory, not the GPU's, or the limit of locked memory
    next pin_memory=False, or a smaller batch; `ulimit -l` and `free -g` show the limits
    cause host memory
TensorFlow's CPU memory
    seen OOM when allocating tensor with shape<shape> and type <type>
      on \S{0,80}CPU:\d{1,3} by allocator
    seen OOM when allocating tensor with shape<shape>.{0,120}by allocator (?:mkl)?_?cpu
    means the machine's memory ran out, not the GPU's
    next a smaller batch, or fewer elements in tf.data's prefetch and shuffle buffers
    cause host memory
TensorFlow
    seen OOM when allocating tensor with shape<shape> and type <type>(?: on \S{0,80}?:<device> by)?
    seen OOM when allocating tensor with shape<shape>
    seen Allocator \(?\S{0,30}?\)? ?ran out of memory trying to allocate <tried> ?(?:\(rounded
      to <rounded>\))?(?!.{0,12}?(?:The caller indicates|with freed_by_count))
    seen ResourceExhaustedError.{0,400}?failed to allocate memory
    seen ran out of memory trying to allocate <tried>\(rounded
    also ran out of memory trying to allocate <tried>
    also (?<![A-Za-z])Limit: <allowed>InUse: <allocated>MaxInUse: <peak>
    means TensorFlow's own allocator found no memory
    next a smaller batch; set_memory_growth(gpu, True) where another program shares the GPU
a warning of TensorFlow
    seen ran out of memory trying to allocate <tried>.{0,60}?The caller indicates that this is not a failure
    means a warning: TensorFlow goes on with a slower algorithm that needs less memory
    next nothing, unless an error follows; a smaller batch makes it faster
    cause not a failure
    level 2
TensorFlow's start
    seen failed to allocate [\d.]{1,9}\w{1,3} \(<tried>\) from device: .{0,40}?CUDA_ERROR_OUT_OF_MEMORY
    means TensorFlow or JAX asked the driver for its pool, and other processes had left less: it tries less,
      or stops
    next stop the other processes that `nvidia-smi` shows, or set_memory_growth(gpu, True) in TensorFlow,
      XLA_PYTHON_CLIENT_MEM_FRACTION in JAX
    cause held outside torch
XLA on a TPU
    on TPU
    seen Ran out of memory in memory space hbm\. Used (?P<needed>[\d.]{1,9}[KMGT]?) of
      (?P<total>[\d.]{1,9}[KMGT]?) hbm
    seen Attempting to (?:allocate|reserve) (?P<tried>[\d.]{1,9}[KMGT]?)(?: at the bottom of memory)?\. That
      was not possible\. There are (?P<free>[\d.]{1,9}[KMGTB]?) free
    also Exceeded hbm capacity by (?P<missing>[\d.]{1,9}[KMGT]?)
    means the program needs more than the TPU's memory (HBM)
    next a smaller batch per core, jax.checkpoint (remat), or shard the model over more cores
a kernel on a TPU
    on TPU
    seen Ran out of memory in memory space (?:vmem|smem)
    means a kernel needs more of a TPU core's own memory than it has: this is not the HBM
    next a smaller block size of the kernel
    cause not the device's memory
XLA or JAX
    seen RESOURCE_EXHAUSTED: \S{0,40}?Out of memory (?:while trying to allocate|allocating) <tried>
    seen Resource exhausted: Out of memory while trying to allocate <tried>
    seen RESOURCE_EXHAUSTED: \S{0,40}?Failed to allocate request for \S{1,12}\(<tried>\) on device ordinal
      <device>
    seen RESOURCE_EXHAUSTED: \S{0,40}?(?:out of memory|allocat)
    also total allocation: <needed>
    level 1
    means XLA's own allocator found no memory; JAX takes 75 % of a GPU at its start
    next a smaller batch, or jax.checkpoint (remat); XLA_PYTHON_CLIENT_PREALLOCATE=false where another program
      shares the GPU
ONNX Runtime's limit
    seen Available memory of <available> is smaller than requested bytes of <tried>
    means the request is more than gpu_mem_limit leaves
    next raise gpu_mem_limit of the CUDA provider, or a smaller batch
    cause limited
ONNX Runtime
    seen Failed to allocate memory for requested buffer of size <tried>
    seen CUDA failure 2: out of memory ; GPU=<device>
    means ONNX Runtime's arena got no memory: of the GPU, where the node runs there, else of the machine
    next a smaller batch or input; arena_extend_strategy=kSameAsRequested keeps the arena small
DirectML
    seen Could not allocate tensor with <tried>\. There is not enough GPU video memory
    seen 8007000E .{0,20}Not enough memory resources
    means the GPU's memory, or the share of it that Windows allows, ran out
    next a smaller batch or model; close other programs that use the GPU
CuPy
    seen Out of memory allocating <tried> \(allocated so far: <allocated>(?:, limit set to: <allowed>)?
    seen out of memory to allocate <tried> \(total <allocated>\)
    means CuPy's pool got no memory from the driver: its arrays, or torch's cache on the same GPU, hold it
    next smaller arrays, or cupy.get_default_memory_pool().free_all_blocks() first;
      torch.cuda.empty_cache() where torch shares the GPU
Paddle
    seen Cannot allocate <tried> memory on \w{1,20} <device>, <allocated> memory has been allocated and
      available memory is only <free>
    seen Cannot allocate <tried> memory on \w{1,20} <device>, available memory is only <free>
    seen Cannot allocate <tried> GPU memory, available memory is (?:only )?<free>
    means Paddle's allocator found no memory
    next a smaller batch; stop the other processes that `nvidia-smi` shows
MLX's buffer
    on MPS
    seen Attempting to allocate <tried> which is greater than the maximum allowed buffer size of <allowed>
    means one array is larger than Metal's largest buffer, whatever is free
    next smaller arrays: a smaller batch, a shorter context or prompt, or the work in pieces
    cause larger than the device
MLX
    on MPS
    seen Unable to allocate <tried>\.(?!\d)
    seen Resource limit \(\d{1,12}\) exceeded
    means the memory that Metal gives to one program ran out
    next a smaller model, batch or context; mx.clear_cache(), or mx.set_cache_limit() for less
Gaudi
    on HPU
    seen PT_DEVMEM\S{0,20} Allocation failed for size:{1,2}<tried>
    means the memory of the Gaudi card ran out
    next a smaller batch or shorter sequences, or more cards; `hl-smi` for other processes
a pool of RAPIDS
    seen std::bad_alloc\S{0,160}?Maximum pool size exceeded
    seen Maximum pool size exceeded
    also Maximum pool size exceeded.{0,10}?failed to allocate <tried>
    means RMM's pool on the GPU has reached its maximum: not the machine's memory
    next a larger maximum_pool_size, or less data at once (smaller partitions)
    cause limited
XGBoost
    seen Memory allocation error on worker \d{1,6}
    also Free memory: <free>
    also Requested memory: <tried>
    means XGBoost's data or its histograms do not fit on the GPU
    next QuantileDMatrix instead of DMatrix, fewer bins (max_bin), or data in external memory
RAPIDS
    seen std::bad_alloc\S{0,80}?(?:cuda_memory_resource|cuda_async|pool_memory_resource|managed_memory|
      arena_memory|rmm/|RMM failure|cudaErrorMemoryAllocation|hipErrorOutOfMemory)
    seen RMM_ERROR_OUT_OF_MEMORY|rmm::out_of_memory
    also failed to allocate <tried>
    means the GPU's memory ran out, or RMM's pool on it: not the machine's memory
    next less data at once (smaller partitions); or cudf's spilling, or rmm.reinitialize(managed_memory=True)
FAISS
    seen StandardGpuResources: alloc fail .{0,120}?size <tried>
    means the index does not fit on the GPU
    next a smaller index (float16, PQ), or shard it over GPUs
CUDA.jl
    seen Out of GPU memory trying to allocate <tried>
    also Effective GPU memory usage: [\d.]{1,6}% \(<used>/<total>\)
    also Memory pool usage: <allocated> \(<reserved> reserved\)
    means CUDA.jl's pool got no memory from the driver
    next smaller arrays, or GC.gc() and CUDA.reclaim() before; `nvidia-smi` for other processes
MindSpore
    seen memory isn't enough and alloc failed.{0,160}?alloc size: <tried>
    seen memory isn't enough and alloc failed
    means the device's memory ran out
    next a smaller batch; max_device_memory in set_context where a limit is set
PhysX
    seen PxgCudaDeviceMemoryAllocator fail to allocate memory <tried>
    means the physics simulation found no memory on the GPU
    next fewer environments, or smaller gpu_* buffers of PhysX
Warp
    seen Failed to allocate <tried> on device 'cuda:<device>'
    means Warp got no memory from the driver
    next smaller arrays; stop the other processes that `nvidia-smi` shows
CTranslate2
    seen CUDA failed with error out of memory
    means CTranslate2 (faster-whisper) allocates outside torch's allocator, and the GPU was full
    next compute_type="int8", a smaller model, beam size or batch; stop the other processes that `nvidia-smi`
      shows
llama.cpp's KV cache
    seen failed to allocate buffer for kv cache
    also (?:alloc_tensor_range|ggml\w{0,40}): failed to allocate \w{1,12} buffer of size <tried>
    also allocating <tried> on device <device>: \w{2,4}Malloc failed
    means the weights fit on the GPU, but the KV cache, which grows with the context, does not fit beside them
    next a shorter context (-c), or a quantized cache (-ctk q8_0 -ctv q8_0, with -fa)
llama.cpp's weights
    seen unable to allocate (?!cpu)\w{1,12} buffer
    also (?:alloc_tensor_range|ggml\w{0,40}): failed to allocate \w{1,12} buffer of size <tried>
    also allocating <tried> on device <device>: \w{2,4}Malloc failed
    means the model's weights do not fit on the GPU
    next fewer layers on the GPU (--n-gpu-layers), or a model with a smaller quantization
llama.cpp's compute buffers
    seen failed to allocate compute (?:\w{1,12} )?buffers
    seen ggml_gallocr_reserve\w{0,20}: failed to allocate (?!cpu)\w{1,12} buffer of size <tried>
    also allocating <tried> on device <device>: \w{2,4}Malloc failed
    means the weights and the KV cache fit on the GPU, but the compute buffers, which grow with the batch, do
      not fit beside them
    next a smaller batch (-ub), or fewer layers on the GPU (--n-gpu-layers)
llama.cpp
    level 1
    seen allocating <tried> on device <device>: (?:cuda|hip|musa)Malloc failed: out of memory
    seen ggml\w{0,40}: failed to allocate (?!cpu)\w{1,12} buffer of size <tried>
    seen alloc_tensor_range: failed to allocate (?!cpu)\w{1,12} buffer of size <tried>
    seen ggml_vulkan: Device memory allocation of size <tried> failed
    seen failed to allocate buffer, size = <tried>
    seen CUDA error: out of memory \S{0,40}current device: <device>.{0,200}ggml
    seen CUDA error: out of memory .{0,200}ggml-cuda
    means the model's weights, its KV cache or its compute buffers do not fit on the GPU
    next fewer layers on the GPU (--n-gpu-layers), a shorter context (-c) or a smaller batch (-ub)
llama.cpp, on the host
    seen ggml_aligned_malloc: insufficient memory \(attempted to allocate <tried>\)
    seen ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size <tried>
    seen unable to allocate CPU buffer
    means the machine's memory ran out, not the GPU's
    next a smaller or more strongly quantized model, or a shorter context (-c)
    cause host memory
Ollama
    seen requires more system memory \(<needed>\) than is available \(<available>\)
    means the model does not fit into the machine's memory, with what fits on the GPU taken off
    next a smaller or more strongly quantized model, or a shorter context (num_ctx); close other programs
    cause host memory
ComfyUI
    seen This error means you ran out of memory on your GPU
    seen Exception Message:\*{0,2} Allocation on device(?! ?\d)
    seen Allocation on device(?! ?\d| ?would)
    means ComfyUI caught torch's out of memory, and shows no figures where cudaMallocAsync has none
    next a smaller image, fewer frames or a quantized model; start with --lowvram
    leads
the CUDA driver
    seen CUDA driver error: (?:2 \()?out of memory
    seen CUDA_ERROR_OUT_OF_MEMORY|cuMem\w{1,30} failed: out of memory
    level 1
    means the driver refused memory below torch's allocator: with expandable segments no page was left, or a
      context or a kernel did not fit
    next <watch>
torch up to 1.0
    seen cuda runtime error \(2\)|THCudaCheck FAIL \S{0,200}error=2
    means torch up to 1.0 writes this when its allocator finds no memory: the GPU is full
    next <watch>
spconv
    seen cuda execution failed with error 2(?!\d)|spconv\S{0,200}?out of memory
    means spconv allocates its tables outside torch's allocator, or too many voxels were active
    next fewer points or larger voxels; <less>
a HIP call outside torch's allocator
    on HIP
    seen HIP error: out of memory|hipErrorOutOfMemory|hipMalloc failed: out of memory
    means a HIP call outside torch's allocator got no memory, or the GPU was full when the process started
    next stop the other processes that `amd-smi process` shows
a CUDA call outside torch's allocator
    seen CUDA ?(?:runtime )?error:?(?: in \S{1,120}?:)? ?\"?out of memory
    seen CUDA error 2(?:: | at \S{0,200}?)out of memory
    seen cudaErrorMemoryAllocation|cudaMalloc (?:retry )?failed: out of memory|cudaMalloc error out of memory
    seen \(2 vs\. 0\) out of memory|parallel_for failed: out of memory|out of memory \S{0,60}?cuda_utils
    seen CUDA: out of memory|Error out of memory at line \d
    level 1
    means a CUDA call outside torch's allocator got no memory: at the start of a process its context (the GPU
      is already full), later a library or a kernel
    next stop the other processes that `nvidia-smi` shows, also those of earlier runs; else <less>
XPU
    on XPU
    seen (?:UR|ZE)_RESULT_ERROR_OUT_OF_(?:DEVICE_MEMORY|RESOURCES|HOST_MEMORY)|
      PI_ERROR_OUT_OF_(?:RESOURCES|HOST_MEMORY)
    seen level_zero backend failed with error: (?:39|40)
    means Intel's driver refused memory: the GPU is full, one block is larger than the driver allows (4 GiB on
      some), or an integrated GPU has used up its share of the host's memory
    next a smaller batch, or smaller blocks; `xpu-smi` for other processes
a Metal buffer
    on MPS
    seen Invalid buffer size: <tried>
    seen total bytes of NDArray > 2\*\*32|product of dimension sizes > 2\*\*3[12]
    means one tensor is larger than Metal's largest buffer, whatever is free
    next <shapes>
    cause larger than the device
Metal
    on MPS
    seen kIOGPUCommandBufferCallbackErrorOutOfMemory|Insufficient Memory \(0{0,7}8
    means macOS stopped a GPU command because the machine's memory was used up
    next close other programs; a smaller model, batch or context
Vulkan
    seen ErrorOutOfDeviceMemory|VK_ERROR_OUT_OF_DEVICE_MEMORY
    level 1
    means the GPU's memory ran out, or one block is larger than the driver allows
    next a smaller model or batch; close other programs that use the GPU
OpenCL
    seen CL_MEM_OBJECT_ALLOCATION_FAILURE|CL_OUT_OF_RESOURCES
    means the device's memory ran out, or one buffer is larger than the driver allows
    next smaller buffers or a smaller batch
the Ascend driver
    on NPU
    seen EL0004
    seen rtMalloc\S{0,110}?fail
    seen error code (?:is )?207001
    means the NPU's driver refused memory: another process has it, or operators outside torch's allocator
    next stop the other processes that `npu-smi info` shows; else a smaller batch
Neuron
    on Neuron
    seen NRT_RESOURCE|Failed to alloc(?:ate)? DEVICE memory: <tried>
    means the memory of the Neuron device ran out
    next a smaller batch or sequence, or more cores (tp_degree)
shared memory of a kernel
    seen out of resources?: shared memory, Required: <needed>, Hardware limit(?:ation)?: <limit>
    seen out of resources?: (?:shared|tensor) memory
    seen Shared memory size limit exceeded: requested <needed>, available: <limit>
    seen uses too much shared data|too many resources requested for launch|out of resources?: (?:threads|
      registers)
    means a kernel needs more shared memory or registers of one multiprocessor than it has: the GPU's memory
      is not full
    next a smaller block size or fewer stages (num_stages) of the kernel; often a newer release of the library
      has settings for this GPU
    cause not the device's memory
files that are open
    seen unable to open shared memory object .{0,200}?Too many open files
    means a limit of open files: DataLoader workers keep one for every tensor that they pass
    next torch.multiprocessing.set_sharing_strategy("file_system"), or a higher `ulimit -n`
    cause not the device's memory
/dev/shm
    seen out of shared memory|insufficient shared memory|Bus error\S{0,80}?shared memory
    seen unable to (?:write|mmap|allocate shared memory|resize) \S{0,120}?/torch_
    seen failed to extend /dev/shm/\S{1,40} to <tried>
    seen creating shared memory segment /dev/shm/\S{1,40}? \(size <tried>\)
    seen Bus error \(core dumped\)|killed by signal: Bus error
    means DataLoader workers or NCCL pass data through /dev/shm, which is full: host memory, not the GPU's
    next a larger --shm-size (docker), or fewer workers
    cause host memory
Ray
    seen Task was killed due to the node running low on memory
    seen killed due to memory pressure \(OOM\)
    seen RayOutOfMemoryError: More than [\d.]{1,5}% of the memory on node \S{1,80}? is used
    also memory used=<process>
    also was running was <used>/<total> \(
    also is used \((?P<used_gib>[\d.]{1,9})/<total>\)
    also memory usage threshold of <utilization>
    means Ray stopped a worker because the node's host memory was nearly used up: not the GPU's
    next fewer tasks or actors on a node (more CPUs for each), or more memory; RAY_memory_usage_threshold sets
      the limit
    cause host memory
Ray's object store
    seen ObjectStoreFullError|Failed to put object \S{1,60} in object store because it is full
    also Object size is <tried>
    means Ray's object store in the host's memory is full
    next drop references to objects, or a larger object_store_memory in ray.init()
    cause host memory
a compiler
    seen Killed signal terminated program \w{1,12}
    means the kernel ended a compiler because host memory ran out: too many ran at once
    next MAX_JOBS=2 before the command that builds
    cause host memory
Windows' page file
    seen paging file is too small
    seen WinError 1455
    seen os error 1455
    means Windows could not promise more memory: the machine's memory and its page file are used up
    next a larger page file (system settings), or fewer DataLoader workers, each of which loads torch's
      libraries
    cause host memory
a job's memory limit
    seen exceeded memory limit \(\d{1,15} > \d{1,15}\)
    seen Exceeded (?:job|step) memory limit
    seen TERM_MEMLIMIT
    seen State: OUT_OF_MEMORY
    means the job used more host memory than it had asked the scheduler for: not the GPU's
    next ask for more (--mem in Slurm), or fewer DataLoader workers
    cause host memory
Java's heap
    seen OutOfMemoryError: (?:Java heap space|GC overhead limit exceeded|Metaspace)
    seen JavaScript heap out of memory
    means the heap of a Java or JavaScript program is full: not the GPU's memory
    next a larger heap (-Xmx, spark.driver.memory, or --max-old-space-size for Node)
    cause host memory
an allocation of the program
    seen you tried to allocate <tried>
    seen Unable to allocate <tried> for an array
    seen memory allocation of <tried> failed
    seen LLVM ERROR: out of memory
    seen std::bad_alloc
    seen bad allocation
    seen Cannot allocate memory
    seen _ArrayMemoryError
    seen (?<!Of)MemoryError
    level 1
    means the machine's memory ran out, not the GPU's
    next <host>
    cause host memory
a killed process
    seen (?:Out of memory: |cgroup out of memory: )Killed? process \d
    seen oom[-_]?kill
    seen Killed process \d
    seen killed by signal: Killed
    seen OOMKilled
    seen exit ?(?:code|status) ?:? ?=? ?(?:-9|137)(?!\d)|return ?code ?[:=]? ?-9(?!\d)|exited with code 137
    seen (?:Signals\.|Signal 9 \()SIGKILL|line \d{1,6}: \d{2,8} Killed|session crashed after using all
      available RAM
    seen terminated by the operating system.{0,80}memory|excessive memory usage causing the Operating System
    seen DataLoader worker \(pid\S{0,40}?\) exited unexpectedly
    also anon-rss: ?<process>
    means the kernel, or the limit of a container, most likely ended the process because host memory ran out
    next <host>; `dmesg | grep -i kill` confirms it
    cause host memory
    level 2
torch.cuda.memory_summary()
    level 3
    seen CUDA memory summary, device ID (?P<device>\d{1,4}) \D{0,200} CUDA OOMs: (?P<n_ooms>\d{1,12})
      \|? cudaMalloc retries: (?P<n_retries>\d{1,12})
    also Allocated memory \|? <allocated_bytes> \|? <peak_allocated_bytes>
    also Active memory \|? <active_bytes> \|? <peak_active_bytes>
    also Requested memory \|? <requested_bytes> \|? <peak_requested_bytes>
    also (?:GPU|XPU|NPU|CUDA) reserved memory \|? <reserved_bytes> \|? <peak_reserved_bytes>
    also Non-releasable memory \|? <partly_used_bytes> \|? <peak_partly_used_bytes>
    next <less_of_step>; `snapconv watch train.py` saves a file that shows which lines hold the memory
    cause not known
unknown
    level 4
    on device
    seen out of memory|OutOfMemoryError
    means memory ran out, and the text has no figures
    next look for 'Tried to allocate' further up in the log, or run it by `snapconv watch train.py`
    cause not known
"""
