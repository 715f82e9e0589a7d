"""The frame rules as data: what a frame on a stack shows about the code that ran.

A frame rule gives a stack a role; ``classification/facts.py`` concludes categories from roles and
lifetimes. Each frame rule says why it is valid, and in which torch versions its frames were seen (in real
snapshots where a single version is named after "seen", otherwise in torch's sources, 2.0 to 2.13 as a rule).

``function`` and ``file`` are regular expressions searched in a frame's name and in its file name with forward
slashes; empty matches everything.
``is_outermost``: only the last Python frame of a stack counts.
"""

from dataclasses import dataclass

from snapconv.torch_knowledge.frame_roles import Role


@dataclass(frozen=True, slots=True)
class FrameRule:
    """One rule; ``slug`` is stable and stands in every output as the reason of a decision."""

    slug: str
    role: Role
    function: str
    reason: str
    file: str = ""
    seen: str = "2.0-2.13"
    is_outermost: bool = False


# torch._inductor.codecache names a file after its contents; TORCHINDUCTOR_CACHE_DIR may name the folder.
# No file system has names of more than 255 bytes; without that bound, and those below, a long name made of
# such beginnings would be searched again from each of them.
_COMPILED_FILE = r"torchinductor_[^/]{1,255}/|(^|/)c[a-z2-7]{51}\.py$"

FRAME_RULES: tuple[FrameRule, ...] = (
    FrameRule(
        "engine-thread",
        Role.ENGINE,
        r"^torch::autograd::Engine::(evaluate_function|thread_main)",
        "backward runs on the autograd engine's own thread",
        seen="2.1-2.13; seen 2.5-2.11",
    ),
    FrameRule(
        "autograd-backward",
        Role.ENGINE,
        r"^(backward|grad)$",
        "torch.autograd.backward and grad call the engine",
        r"torch/autograd/__init__\.py$",
    ),
    FrameRule(
        "tensor-backward",
        Role.ENGINE,
        r"^backward$",
        "Tensor.backward frees the gradient that it began with",
        r"torch/_tensor\.py$",
    ),
    FrameRule(
        "custom-function-backward",
        Role.ENGINE,
        r"^apply(_boxed)?$",
        "BackwardCFunction.apply is how the engine runs a custom backward; in forward it has callers",
        r"torch/autograd/function\.py$",
        "2.0-2.13; seen 2.10",
        is_outermost=True,
    ),
    FrameRule(
        "release-variables",
        Role.RELEASE,
        r"(Backward\d*|PyNode)::release_variables\(",
        "a backward node frees what it saved: the memory was kept for backward",
        seen="2.0-2.13; seen 2.5-2.11",
    ),
    FrameRule(
        "node-destroyed",
        Role.RELEASE,
        r"Backward\d*::~|^torch::autograd::deleteNode",
        "the graph is freed without a backward pass, and its saved tensors with it",
        seen="2.0-2.13; seen 2.5-2.7",
    ),
    FrameRule(
        "optimizer-file",
        Role.OPTIMIZER,
        r"^(step|_init_group|_multi_tensor_|_single_tensor_|_fused_|_foreach)",
        "the optimizers of torch keep their code in torch/optim",
        r"torch/optim/(?!lr_scheduler|swa_utils)\w+\.py$",
    ),
    FrameRule(
        "accumulate-grad",
        Role.ACCUMULATION,
        r"^torch::autograd::AccumulateGrad::apply\(",
        "backward adds a gradient to one that is there, and frees it",
        seen="2.0-2.13; seen 2.5-2.11",
    ),
    FrameRule(
        "optimizer-wrapper",
        Role.OPTIMIZER,
        r"^(wrapper|profile_hook_step)$",
        "every subclass of torch.optim.Optimizer has its step wrapped here",
        r"torch/optim/optimizer\.py$",
        "2.0-2.13; seen 2.5-2.11",
    ),
    FrameRule(
        "optimizer-other",
        Role.OPTIMIZER,
        r"^(step|_build_model_and_main_param_groups)$",
        "optimizers outside torch that keep their own loop, and their master weights",
        r"(apex/optimizers|deepspeed/runtime/zero|megatron/core/optimizer|bitsandbytes/optim)/",
        "sources of these packages; Megatron's seen with torch 2.5",
    ),
    FrameRule(
        "optimizer-init",
        Role.STATES,
        r"^__init__$",
        "an optimizer of torch makes its states when it is built, as Adagrad does",
        r"torch/optim/(?!lr_scheduler|swa_utils)\w+\.py$",
    ),
    FrameRule(
        "zero-grad",
        Role.ZERO_GRAD,
        r"^zero_grad$",
        "gradients are freed or cleared here",
        r"torch/(optim/optimizer|nn/modules/module)\.py$",
        "2.0-2.13; seen 2.5-2.9",
    ),
    FrameRule(
        "set-grad",
        Role.SET_GRAD,
        r"^THPVariable_set_grad\b",
        "an assignment to .grad frees the gradient that was there (torch/csrc/autograd/python_variable.cpp)",
        seen="2.0-2.15; seen 2.13-2.14",
    ),
    FrameRule(
        "module-call",
        Role.MODULE_CALL,
        r"^(_call_impl|_wrapped_call_impl)$",
        "the code runs inside a module's forward",
        r"torch/nn/modules/module\.py$",
        "2.0-2.13; seen 2.1-2.11",
    ),
    FrameRule(
        "forward-method",
        Role.MODULE_CALL,
        r"^forward$",
        "a forward called without the module's __call__",
        r"\.py$",
        "2.0-2.13; seen 2.7",
    ),
    FrameRule(
        "compiled-call",
        Role.MODULE_CALL,
        r"^call$",
        "code generated by torch.compile",
        _COMPILED_FILE,
        "2.1-2.13; seen 2.6",
    ),
    FrameRule(
        "compiled-code",
        Role.COMPILED,
        r"^call$",
        "code generated by torch.compile frees each tensor on a line of its own, after its last use",
        _COMPILED_FILE,
        "2.1-2.13; seen 2.6",
    ),
    FrameRule(
        "loss-function",
        Role.LOSS,
        r"^(\w*cross_entropy|\w*_loss|kl_div)$",
        "a loss outside any module is part of forward",
        r"torch/nn/functional\.py$",
    ),
    FrameRule(
        "loss-module",
        Role.LOSS,
        r"^forward$",
        "a criterion is a loss, and no part of a model",
        r"torch/nn/modules/loss\.py$",
    ),
    FrameRule(
        "named-weights",
        Role.NAMED_WEIGHTS,
        r"^_*(init|load|create|make|build)_(?!\w*(optim|grad|loss|class|sample|attention|attn))"
        r"(\w+_)?(weights?|params|parameters)(_list|_dict|_tensors)?$",
        "a program without modules of torch makes its weights in a function that says so",
        r"\.py$",
        "engines for inference, state snapshots of torch 2.1 to 2.5",
    ),
    FrameRule(
        "diffusers-average",
        Role.NAMED_WEIGHTS,
        r"^(__init__|to)$",
        "EMAModel keeps an average of the weights in a list",
        r"diffusers/training_utils\.py$",
        "diffusers 0.42",
    ),
    FrameRule(
        "named-cache",
        Role.NAMED_CACHE,
        r"^_*(init|alloc|allocate|create|make|build|setup|reserve)_((gpu|static|paged|kv|key_value)_?)*caches?(_\w+)?$",
        "and its cache of keys and values in one that says that",
        r"\.py$",
        "engines for inference",
    ),
    FrameRule(
        "module-apply",
        Role.PLACEMENT,
        r"^(_apply|to_empty|cuda|_load_from_state_dict|load_state_dict)$",
        "Module.to, .cuda, .half and loading put parameters and buffers on the device",
        r"torch/nn/modules/module\.py$",
        "2.0-2.13; seen 2.5-2.11",
    ),
    FrameRule(
        "module-init",
        Role.PLACEMENT,
        r"^(__init__|reset_parameters|_reset_parameters)$",
        "a module of torch.nn creates its parameters on the device",
        r"torch/nn/modules/(?!module\.py)\w+\.py$",
    ),
    FrameRule(
        "parameter-new",
        Role.PLACEMENT,
        r"^(__new__|__deepcopy__|materialize)$",
        "a parameter is made",
        r"torch/nn/parameter\.py$",
    ),
    FrameRule(
        "checkpoint-load",
        Role.PLACEMENT,
        r"^(from_pretrained|_load_pretrained_model|_load_state_dict_into_meta_model|set_module_tensor_to_device"
        r"|_load_state_dict_into_model|load_file|_materialize_copy|spawn_materialize)$",
        "weights are read from a checkpoint to the device",
        r"(transformers|accelerate|safetensors|diffusers)/",
        "sources of these packages; seen with torch 2.1",
    ),
    FrameRule(
        "weights-cast",
        Role.PLACEMENT,
        r"^(prepare_model_for_kbit_training|_?cast_adapter_dtype|cast_mixed_precision_params|cast_training_params)$",
        "weights get another type before training",
        r"(peft/|diffusers/training_utils\.py$)",
        "sources of peft 0.21 and diffusers 0.42",
    ),
    FrameRule(
        "torch-load",
        Role.PLACEMENT,
        r"^(load|_load|persistent_load|restore_location|_cuda_deserialize)$",
        "torch.load with map_location on the device",
        r"torch/serialization\.py$",
    ),
    FrameRule(
        "serving-weights",
        Role.PLACEMENT,
        r"^(__init__|create_weights|load_weights|process_weights_after_loading)$",
        "engines that serve models make each layer's weights on the device, and fill them later",
        r"(vllm/model_executor|sglang/srt)/(layers/(?!attention/)|models/|model_loader/)",
        "sources of these packages; vLLM's seen with torch 2.5",
    ),
    FrameRule(
        "fsdp-parameters",
        Role.PLACEMENT,
        r"^(_init_flat_param_and_metadata|flatten_tensors|init_flat_param_attributes|_init_sharded_param)$",
        "the shards that FSDP keeps as parameters",
        r"torch/distributed/",
        "2.1-2.13",
    ),
    FrameRule(
        "cublas-workspace",
        Role.WORKSPACE,
        r"getCurrentCUDABlasHandle|getNewWorkspace|getCUDABlasLtWorkspace|getNewCUDABlasLtWorkspace"
        r"|_getWorkspace",
        "cuBLAS keeps one workspace per handle and stream forever",
        seen="2.1-2.13; seen 2.5-2.7",
    ),
    FrameRule(
        "cudnn-workspace",
        Role.WORKSPACE,
        r"at::native::(run_conv_plan|\(anonymous namespace\)::Workspace|Workspace::)"
        r"|cudnn_rnn.{0,400}[Ww]orkspace|try_plans|run_single_conv|getBestAlgorithm",
        "cuDNN requests scratch memory through the caching allocator",
        seen="2.1-2.13; seen 2.5-2.7",
    ),
    FrameRule(
        "serving-cache",
        Role.CACHE,
        r"^(_allocate_kv_cache\w*|_create_buffers\w*|lazy_initialization|early_initialization)$",
        "keys and values of the tokens so far, kept for all later tokens",
        r"(vllm/(v1/)?worker/|sglang/srt/mem_cache/|transformers/cache_utils\.py$)",
        "sources of these packages; vLLM's seen with torch 2.5",
    ),
    FrameRule(
        "paged-cache",
        Role.CACHE,
        r"^__init__$",
        "one block of memory for the keys and values of all requests, divided into pages",
        r"transformers/generation/continuous_batching(/cache)?\.py$",
        "transformers 4.52-5.23",
    ),
    FrameRule(
        "cache-update",
        Role.CACHE_UPDATE,
        r"^(update|update_indexer|batch_repeat_interleave|batch_select_indices|reorder_cache)$",
        "keys and values of the tokens so far, made anew with those of another token",
        r"transformers/cache_utils\.py$",
        "transformers 4.36-5.0",
    ),
    FrameRule(
        "cache-of-own",
        Role.CACHE_UPDATE,
        r"^(update|append|extend|concat)\w*$",
        "a program's own cache, in a file that is named after it, as in those of transformers",
        r"(^|/)\w{0,255}(kv_?cache|cache_utils)\w{0,255}\.py$",
        "a state snapshot of torch 2.1",
    ),
    FrameRule(
        "replica",
        Role.REPLICA,
        r"^(replicate|_broadcast_coalesced_reshape)$",
        "DataParallel copies parameters and buffers to every other device, in every forward",
        r"torch/nn/parallel/replicate\.py$",
        "2.0-2.15",
    ),
    FrameRule(
        "scattered",
        Role.SCATTERED,
        r"^(scatter|scatter_map|scatter_kwargs)$",
        "DataParallel copies a part of the batch to every device",
        r"torch/nn/parallel/scatter_gather\.py$",
        "2.0-2.15",
    ),
    FrameRule(
        "process-group",
        Role.COMMUNICATION,
        r"^c10d::(ProcessGroup|Reducer|Backend|ops::)|ncclComm",
        "memory of a collective",
        seen="2.1-2.13",
    ),
    FrameRule(
        "collective",
        Role.COMMUNICATION,
        r"^(all_gather\w*|all_reduce\w*|reduce_scatter\w*|broadcast\w*|_all_gather_flat_param"
        r"|_alloc_padded_unsharded_flat_param|all_gather_copy_in_cuda|foreach_all_gather\w*|foreach_reduce\w*|init_all_gather_outputs"
        r"|alloc_all_gather_outputs|_object_to_tensor)$",
        "buffers of collectives, also those of FSDP",
        r"torch/distributed/",
        "2.1-2.13",
    ),
    FrameRule(
        "device-copy",
        Role.COPY,
        r"^at::_ops::(_to_copy|to_device|to_dtype_layout|to_dtype|to_other|copy_)::call",
        "a tensor is copied to the device, or to another type",
        seen="2.1-2.13; seen 2.5-2.11",
    ),
    FrameRule(
        "device-copy-python",
        Role.COPY,
        r"^(send_to_device|_prepare_input|_prepare_inputs|to_map|_recursive_to|pin_memory|recursively_apply)$",
        "a batch is moved to the device",
        r"(accelerate|transformers|torch/distributed/utils\.py|lightning)",
        "sources of these packages",
    ),
    FrameRule(
        "factory",
        Role.FACTORY,
        r"^at::_ops::(empty|zeros|ones|full|rand|randn|randint|randperm|arange|linspace|eye|tensor|scalar_tensor)"
        r"(_\w+)?::call|THPVariable_(tensor|as_tensor|from_numpy)|torch::utils::(tensor_ctor|legacy_tensor)",
        "a tensor made from nothing",
        seen="2.1-2.13; seen 2.5-2.9",
    ),
    FrameRule(
        "collected",
        Role.COLLECTED,
        r"^at::_ops::(index_Tensor|index_select|gather|take|masked_select|cat|stack)::(call|redispatch)",
        "rows chosen by number, or pieces side by side: batches of what lies on the device are made so",
        seen="2.1-2.13",
    ),
    FrameRule(
        "layer",
        Role.LAYER,
        r"^forward$",
        "a layer computes with its weights: spectrograms and augmentations are modules that do not",
        r"torch/nn/modules/(linear|conv|rnn|sparse)\.py$",
        "2.0-2.15",
    ),
    FrameRule(
        "zeros",
        Role.ZEROS,
        r"^at::_ops::(zeros|zeros_like|new_zeros)(_\w+)?::call",
        "filled with zeros: moments and caches begin this way",
        seen="2.1-2.13",
    ),
    FrameRule(
        "clone",
        Role.CLONE,
        r"^at::_ops::clone::call",
        "a copy of a tensor on its device",
        seen="2.1-2.13",
    ),
    FrameRule(
        "deepcopy",
        Role.DEEP_COPY,
        r"^__deepcopy__$",
        "a deep copy of what holds tensors, such as the state of a model",
        r"torch/_tensor\.py$",
    ),
    FrameRule(
        "recompute",
        Role.RECOMPUTE,
        r"^(recompute_fn|unpack_hook|unpack_hook_with_error_cb|backward)$",
        "a checkpointed forward runs again inside backward",
        r"torch/utils/checkpoint\.py$",
        "2.1-2.13",
    ),
    FrameRule(
        "backward-reentered",
        Role.REENTERED,
        r"^(backward|grad)$",
        "Python called the engine here: within backward, that is the backward of a checkpointed part",
        r"torch/autograd/__init__\.py$",
    ),
    # Of pinned host memory, which files have from torch 2.14 on.
    FrameRule(
        "loader-pins",
        Role.PINNED_BATCH,
        "",
        "a DataLoader with pin_memory pins its batches",
        r"torch/utils/data/_utils/pin_memory\.py$",
        "2.0-2.15",
    ),
    FrameRule(
        "saved-on-cpu",
        Role.OFFLOADED,
        r"^pack_to_cpu$",
        "torch.autograd.graph.save_on_cpu keeps on the host what autograd saves",
        r"torch/autograd/graph\.py$",
        "2.0-2.15",
    ),
)

# Sizes of the workspaces that cuBLAS requests by default (bytes), where no C++ frame names them:
# 2 x 4096 KiB + 8 x 16 KiB, and 32 MiB on Hopper (aten/src/ATen/cuda/CublasHandlePool.cpp).
CUBLAS_WORKSPACE_BYTES = (8_519_680, 33_554_432)
