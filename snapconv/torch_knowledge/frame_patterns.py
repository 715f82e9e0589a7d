"""The frame rules as data: what a frame on a stack shows about the code that ran.

A rule gives a stack a role; ``classification/facts.py`` concludes categories from roles and
lifetimes. Each rule says why it is valid, and in which torch versions its frames were seen (in real
snapshots where a version is named after "seen", otherwise in torch's sources, 2.0 to 2.13 as a
rule).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

# The kind of code that a stack went through; a stack may have several.
Role = IntEnum(
    "Role",
    """
    ENGINE RELEASE OPTIMIZER ZERO_GRAD MODULE_CALL LOSS PLACEMENT WORKSPACE COMMUNICATION COPY FACTORY
    RECOMPUTE REENTERED ZEROS CACHE COMPILED PINNED_BATCH OFFLOADED CACHE_UPDATE STATES COLLECTED
    REPLICA SCATTERED NAMED_WEIGHTS NAMED_CACHE ACCUMULATION LAYER SET_GRAD LOADED GATHERED
    IN_PLACE CAST UNCACHED COLLECTOR CHECKPOINTED ADAPTED
    """,
    start=0,
)


@dataclass(frozen=True, slots=True)
class FrameRule:
    """One rule; ``slug`` is stable and stands in every output as the reason of a decision.

    ``function`` and ``file`` are regular expressions searched in a frame's name and in its file
    name with forward slashes; empty matches everything. ``is_outermost``: only the last Python
    frame of a stack counts.
    """

    slug: str
    role: Role
    function: str
    reason: str
    file: str = ""
    seen: str = "2.0-2.13"
    is_outermost: bool = False


# A rule is a line of its slug, its roles (joined by +) and its ``seen``, then indented lines:
# "function" or "file" and a pattern, "outermost", or its reason. Two of one kind are parts of one
# pattern or reason. torch._inductor.codecache names a file after its contents;
# TORCHINDUCTOR_CACHE_DIR may name the folder. No file system has names of more than 255 bytes;
# without that bound, and those below, a long name made of such beginnings would be searched again
# from each of them. Pinned host memory is in files from torch 2.14 on.
_TABLE = r"""
engine-thread ENGINE 2.1-2.13; seen 2.5-2.11
    function ^torch::autograd::Engine::(evaluate_function|thread_main)
    backward runs on the autograd engine's own thread
autograd-backward ENGINE+REENTERED 2.0-2.13
    function ^(backward|grad)$
    file torch/autograd/__init__\.py$
    Python calls the engine here: within backward, for the backward of a checkpointed part
tensor-backward ENGINE 2.0-2.13
    function ^backward$
    file torch/_tensor\.py$
    Tensor.backward frees the gradient that it began with
custom-function-backward ENGINE 2.0-2.13; seen 2.10
    function ^apply(_boxed)?$
    file torch/autograd/function\.py$
    outermost
    BackwardCFunction.apply is how the engine runs a custom backward; in forward it has callers
release-variables RELEASE 2.0-2.13; seen 2.5-2.11
    function (Backward\d*|PyNode)::release_variables\(
    a backward node frees what it saved: the memory was kept for backward
node-destroyed RELEASE 2.0-2.13; seen 2.5-2.7
    function Backward\d*::~|^torch::autograd::deleteNode
    the graph is freed without a backward pass, and its saved tensors with it
optimizer-file OPTIMIZER 2.0-2.13
    function ^(step|_init_group|_multi_tensor_|_single_tensor_|_fused_|_foreach)
    file torch/optim/(?!lr_scheduler|swa_utils)\w+\.py$
    the optimizers of torch keep their code in torch/optim
accumulate-grad ACCUMULATION 2.0-2.13; seen 2.5-2.11
    function ^torch::autograd::AccumulateGrad::apply\(
    backward adds a gradient to one that is there, and frees it
optimizer-wrapper OPTIMIZER 2.0-2.13; seen 2.5-2.11
    function ^(wrapper|profile_hook_step)$
    file torch/optim/optimizer\.py$
    every subclass of torch.optim.Optimizer has its step wrapped here
optimizer-other OPTIMIZER sources of these packages; Megatron's seen with torch 2.5
    function ^(step|_build_model_and_main_param_groups)$
    file (apex/optimizers|deepspeed/runtime/zero|megatron/core/optimizer|bitsandbytes/optim)/
    optimizers outside torch that keep their own loop, and their master weights
optimizer-init STATES 2.0-2.13
    function ^__init__$
    file torch/optim/(?!lr_scheduler|swa_utils)\w+\.py$
    an optimizer of torch makes its states when it is built, as Adagrad does
zero-grad ZERO_GRAD 2.0-2.13; seen 2.5-2.9
    function ^zero_grad$
    file torch/(optim/optimizer|nn/modules/module)\.py$
    gradients are freed or cleared here
set-grad SET_GRAD 2.0-2.15; seen 2.13-2.14
    function ^THPVariable_set_grad\b
    an assignment to .grad frees the gradient that was there (torch/csrc/autograd/python_variable.cpp)
autocast-cast CAST 2.0-2.15; seen 2.5-2.15
    function ^at::autocast::cached_cast\(
    autocast casts an argument of an operation, and keeps the copy of a weight for the next one
autocast-exit UNCACHED 2.0-2.15; seen 2.5-2.15
    function ^(__exit__$|at::autocast::clear_cache\()
    file torch/amp/autocast_mode\.py$|^\?*$
    the outermost autocast drops its cache here: copies of weights, and nothing else
saved-in-place IN_PLACE 2.1-2.15; seen 2.15
    function ^torch::autograd::VariableType::\(anonymous namespace\)::\w+_\(
    an operation in place copies its input for backward; without a graph it makes nothing
collector COLLECTOR CPython 3.10-3.14; seen 3.11
    function ^(gc_collect_(main|with_callback|generations|impl)|delete_garbage|finalize_garbage|_Py_RunGC)$
    Python's garbage collector frees what objects in reference cycles held (Modules/gcmodule.c)
module-call MODULE_CALL 2.0-2.13; seen 2.1-2.11
    function ^(_call_impl|_wrapped_call_impl)$
    file torch/nn/modules/module\.py$
    the code runs inside a module's forward
forward-method MODULE_CALL 2.0-2.13; seen 2.7
    function ^forward$
    file \.py$
    a forward called without the module's __call__
compiled-call MODULE_CALL+COMPILED 2.1-2.13; seen 2.6
    function ^call$
    file torchinductor_[^/]{1,255}/|(^|/)c[a-z2-7]{51}\.py$
    code generated by torch.compile frees each tensor on a line of its own, after its last use
loss-function LOSS 2.0-2.13
    function ^(\w*cross_entropy|\w*_loss|kl_div)$
    file torch/nn/functional\.py$
    a loss outside any module is part of forward
loss-module LOSS 2.0-2.13
    function ^forward$
    file torch/nn/modules/loss\.py$
    a criterion is a loss, and no part of a model
named-weights NAMED_WEIGHTS engines for inference, state snapshots of torch 2.1 to 2.5
    function ^_*(init|load|create|make|build)_(?!\w*(optim|grad|loss|class|sample|attention
    function |attn))(\w+_)?(weights?|params|parameters)(_list|_dict|_tensors)?$
    file \.py$
    a program without modules of torch makes its weights in a function that says so
diffusers-average NAMED_WEIGHTS diffusers 0.42
    function ^(__init__|to)$
    file diffusers/training_utils\.py$
    EMAModel keeps an average of the weights in a list
named-cache NAMED_CACHE engines for inference
    function ^_*(init|alloc|allocate|create|make|build|setup|reserve)_((gpu|static|paged|kv
    function |key_value)_?)*caches?(_\w+)?$
    file \.py$
    and its cache of keys and values in one that says that
module-apply PLACEMENT 2.0-2.13; seen 2.5-2.11
    function ^(_apply|to_empty|cuda|_load_from_state_dict|load_state_dict)$
    file torch/nn/modules/module\.py$
    Module.to, .cuda, .half and loading put parameters and buffers on the device
module-init PLACEMENT 2.0-2.13
    function ^(__init__|reset_parameters|_reset_parameters)$
    file torch/nn/modules/(?!module\.py)\w+\.py$
    a module of torch.nn creates its parameters on the device
parameter-new PLACEMENT 2.0-2.13
    function ^(__new__|__deepcopy__|materialize)$
    file torch/nn/parameter\.py$
    a parameter is made
checkpoint-load PLACEMENT sources of these packages; seen with torch 2.1
    function ^(from_pretrained|_load_pretrained_model|_load_state_dict_into_meta_model
    function |set_module_tensor_to_device|_load_state_dict_into_model|load_file|_materialize_copy
    function |spawn_materialize)$
    file (transformers|accelerate|safetensors|diffusers)/
    weights are read from a checkpoint to the device
weights-cast PLACEMENT sources of peft 0.21 and diffusers 0.42
    function ^(prepare_model_for_kbit_training|_?cast_adapter_dtype|cast_mixed_precision_params
    function |cast_training_params)$
    file (peft/|diffusers/training_utils\.py$)
    weights get another type before training
torch-load PLACEMENT+LOADED 2.0-2.13
    function ^(load|_load|_legacy_load|persistent_load|restore_location|_cuda_deserialize)$
    file torch/serialization\.py$
    torch.load with map_location on the device
serving-weights PLACEMENT sources of these packages; vLLM's seen with torch 2.5
    function ^(__init__|create_weights|load_weights|process_weights_after_loading)$
    file (vllm/model_executor|sglang/srt)/(layers/(?!attention/)|models/|model_loader/)
    engines that serve models make each layer's weights on the device, and fill them later
fsdp-parameters PLACEMENT 2.1-2.13
    function ^(_init_flat_param_and_metadata|flatten_tensors|init_flat_param_attributes|_init_sharded_param)$
    file torch/distributed/
    the shards that FSDP keeps as parameters
cublas-workspace WORKSPACE 2.1-2.13; seen 2.5-2.7
    function getCurrentCUDABlasHandle|getNewWorkspace|getCUDABlasLtWorkspace|getNewCUDABlasLtWorkspace
    function |_getWorkspace
    cuBLAS keeps one workspace per handle and stream forever
cudnn-workspace WORKSPACE 2.1-2.13; seen 2.5-2.7
    function at::native::(run_conv_plan|\(anonymous namespace\)::Workspace|Workspace::)
    function |cudnn_rnn.{0,400}[Ww]orkspace|try_plans|run_single_conv|getBestAlgorithm
    cuDNN requests scratch memory through the caching allocator
serving-cache CACHE sources of these packages; vLLM's seen with torch 2.5
    function ^(_allocate_kv_cache\w*|_create_buffers\w*|lazy_initialization|early_initialization)$
    file (vllm/(v1/)?worker/|sglang/srt/mem_cache/|transformers/cache_utils\.py$)
    keys and values of the tokens so far, kept for all later tokens
paged-cache CACHE transformers 4.52-5.23
    function ^__init__$
    file transformers/generation/continuous_batching(/cache)?\.py$
    one block of memory for the keys and values of all requests, divided into pages
cache-update CACHE_UPDATE transformers 4.36-5.0
    function ^(update|update_indexer|batch_repeat_interleave|batch_select_indices|reorder_cache)$
    file transformers/cache_utils\.py$
    keys and values of the tokens so far, made anew with those of another token
cache-of-own CACHE_UPDATE a state snapshot of torch 2.1
    function ^(update|append|extend|concat)\w*$
    file (^|/)\w{0,255}(kv_?cache|cache_utils)\w{0,255}\.py$
    a program's own cache, in a file that is named after it, as in those of transformers
replica REPLICA 2.0-2.15
    function ^(replicate|_broadcast_coalesced_reshape)$
    file torch/nn/parallel/replicate\.py$
    DataParallel copies parameters and buffers to every other device, in every forward
scattered SCATTERED 2.0-2.15
    function ^(scatter|scatter_map|scatter_kwargs)$
    file torch/nn/parallel/scatter_gather\.py$
    DataParallel copies a part of the batch to every device
process-group COMMUNICATION 2.1-2.13
    function ^c10d::(ProcessGroup|Reducer|Backend|ops::)|ncclComm
    memory of a collective
collective COMMUNICATION 2.1-2.13
    function ^(all_gather\w*|all_reduce\w*|reduce_scatter\w*|broadcast\w*|_all_gather_flat_param
    function |_alloc_padded_unsharded_flat_param|all_gather_copy_in_cuda|foreach_all_gather\w*
    function |foreach_reduce\w*|init_all_gather_outputs|alloc_all_gather_outputs|_object_to_tensor)$
    file torch/distributed/
    buffers of collectives, also those of FSDP
gradient-bucket COMMUNICATION source of DeepSpeed 0.19; seen with torch 2.13
    function ^setup_buckets$
    file deepspeed/runtime/zero/
    ZeRO copies gradients into it, to reduce them together
unsharded-weights GATHERED 2.1-2.13
    function ^(init_all_gather_outputs|alloc_storage|_alloc_padded_unsharded_flat_param)$
    file torch/distributed/
    all of a module's weights, gathered from the shards of all ranks
device-copy COPY 2.1-2.13; seen 2.5-2.11
    function ^at::_ops::(_to_copy|to_device|to_dtype_layout|to_dtype|to_other|copy_)::call
    a tensor is copied to the device, or to another type
device-copy-python COPY sources of these packages
    function ^(send_to_device|_prepare_input|_prepare_inputs|to_map|_recursive_to|pin_memory
    function |recursively_apply)$
    file (accelerate|transformers|torch/distributed/utils\.py|lightning)
    a batch is moved to the device
factory FACTORY 2.1-2.13; seen 2.5-2.9
    function ^at::_ops::(empty|zeros|ones|full|rand|randn|randint|randperm|arange|linspace|eye|tensor
    function |scalar_tensor)(_\w+)?::call|THPVariable_(tensor|as_tensor|from_numpy)
    function |torch::utils::(tensor_ctor|legacy_tensor)
    a tensor made from nothing
collected COLLECTED 2.1-2.13
    function ^at::_ops::(index_Tensor|index_select|gather|take|masked_select|cat|stack)::(call|redispatch)
    rows chosen by number, or pieces side by side: batches of what lies on the device are made so
layer LAYER 2.0-2.15
    function ^forward$
    file torch/nn/modules/(linear|conv|rnn|sparse)\.py$
    a layer computes with its weights: spectrograms and augmentations are modules that do not
zeros ZEROS 2.1-2.13
    function ^at::_ops::(zeros|zeros_like|new_zeros)(_\w+)?::call
    filled with zeros: moments and caches begin this way
recompute RECOMPUTE 2.1-2.13
    function ^(recompute_fn|unpack_hook|unpack_hook_with_error_cb|backward)$
    file torch/utils/checkpoint\.py$
    a checkpointed forward runs again inside backward
checkpointed CHECKPOINTED 2.0-2.15; seen 2.13
    function ^checkpoint$
    file torch/utils/checkpoint\.py$
    the code runs in a part of forward that backward runs again; between such parts their inputs stay
adapter-input ADAPTED 2.0-2.15; seen 2.13
    function ^_cast_input_dtype$
    file peft/tuners/
    peft 0.21 casts the input of an adapter to the precision of its weights
loader-pins PINNED_BATCH 2.0-2.15
    file torch/utils/data/_utils/pin_memory\.py$
    a DataLoader with pin_memory pins its batches
saved-on-cpu OFFLOADED 2.0-2.15
    function ^pack_to_cpu$
    file torch/autograd/graph\.py$
    torch.autograd.graph.save_on_cpu keeps on the host what autograd saves
"""


def _rules(table: str) -> Iterator[FrameRule]:
    """Read the rows of a table."""
    for row in re.split(r"\n(?! )", table.strip()):
        first, *lines = row.split("\n    ")
        slug, roles, seen = first.split(" ", 2)
        given = {"function": "", "file": "", "reason": ""}
        for line in lines:
            word, _, pattern = line.partition(" ")
            if word in ("function", "file"):
                given[word] += pattern
            elif line != "outermost":
                given["reason"] += f" {line}" if given["reason"] else line
        for role in roles.split("+"):
            yield FrameRule(slug, Role[role], **given, seen=seen, is_outermost="outermost" in lines)


FRAME_RULES = tuple(_rules(_TABLE))

# Sizes of the workspaces that cuBLAS requests by default (bytes), where no C++ frame names them:
# 2 x 4096 KiB + 8 x 16 KiB, and 32 MiB on Hopper (aten/src/ATen/cuda/CublasHandlePool.cpp).
CUBLAS_WORKSPACE_BYTES = (8_519_680, 33_554_432)
