"""The frame rules: each has a frame that it matches, and near misses that it does not."""

import pytest

from snapconv.snapshot.stack_table import StackInterner
from snapconv.stacks.stack_roles import assign_roles
from snapconv.torch_knowledge.frame_patterns import FRAME_RULES, Role

SITE = "/opt/venv/lib/python3.11/site-packages"
USER = ("main", "/w/proj/train.py")
# A frame that each rule matches: a file that does not begin with a slash is below site-packages.
EXAMPLES = {
    "engine-thread": (
        "torch::autograd::Engine::evaluate_function(std::shared_ptr<GraphTask>&)",
        "??",
    ),
    "autograd-backward": ("backward", "torch/autograd/__init__.py"),
    "tensor-backward": ("backward", "torch/_tensor.py"),
    "root-gradient": ("_make_grads", "torch/autograd/__init__.py"),
    "custom-function-backward": ("apply", "torch/autograd/function.py"),
    "release-variables": ("torch::autograd::generated::AddmmBackward0::release_variables()", "??"),
    "leaf-dropped": ("torch::autograd::AccumulateGrad::release_resources()", ""),
    "node-destroyed": ("torch::autograd::generated::MulBackward0::~MulBackward0()", ""),
    "optimizer-file": ("_multi_tensor_adamw", "torch/optim/adamw.py"),
    "accumulate-grad": ("torch::autograd::AccumulateGrad::apply(std::vector<at::Tensor>&&)", "??"),
    "optimizer-wrapper": ("wrapper", "torch/optim/optimizer.py"),
    "optimizer-other": ("step", "apex/optimizers/fused_adam.py"),
    "optimizer-init": ("__init__", "torch/optim/adagrad.py"),
    "zero-grad": ("zero_grad", "torch/optim/optimizer.py"),
    "set-grad": ("THPVariable_set_grad(THPVariable*, _object*, void*)", "??"),
    "autocast-cast": ("at::autocast::cached_cast(c10::ScalarType, at::Tensor const&)", "??"),
    "autocast-exit": ("__exit__", "torch/amp/autocast_mode.py"),
    "saved-in-place": (
        (
            "torch::autograd::VariableType::(anonymous namespace)::silu_(c10::DispatchKeySet, "
            "at::Tensor&)"
        ),
        "??",
    ),
    "checkpointed": ("checkpoint", "torch/utils/checkpoint.py"),
    "adapter-input": ("_cast_input_dtype", "peft/tuners/tuners_utils.py"),
    "parametrization": ("get_parametrized", "torch/nn/utils/parametrize.py"),
    "collector": ("gc_collect_with_callback", "/usr/src/Python-3.11.7/Modules/gcmodule.c"),
    "module-call": ("_call_impl", "torch/nn/modules/module.py"),
    "forward-method": ("forward", "/w/proj/model.py"),
    "compiled-call": ("call", "/tmp/torchinductor_me/xy/cxyabc.py"),
    "loss-function": ("cross_entropy", "torch/nn/functional.py"),
    "loss-module": ("forward", "torch/nn/modules/loss.py"),
    "named-weights": ("init_all_weights", "/w/engine/opt.py"),
    "diffusers-average": ("__init__", "diffusers/training_utils.py"),
    "named-cache": ("init_cache_one_gpu_batch", "/w/engine/opt.py"),
    "module-apply": ("_apply", "torch/nn/modules/module.py"),
    "module-init": ("__init__", "torch/nn/modules/linear.py"),
    "parameter-new": ("__new__", "torch/nn/parameter.py"),
    "checkpoint-load": ("from_pretrained", "transformers/modeling_utils.py"),
    "weights-cast": ("prepare_model_for_kbit_training", "peft/utils/other.py"),
    "torch-load": ("persistent_load", "torch/serialization.py"),
    "unsharded-weights": ("alloc_storage", "torch/distributed/fsdp/_fully_shard/_fsdp_param.py"),
    "serving-weights": ("create_weights", "vllm/model_executor/layers/linear.py"),
    "fsdp-parameters": (
        "_init_sharded_param",
        "torch/distributed/fsdp/_fully_shard/_fsdp_param.py",
    ),
    "cublas-workspace": ("at::cuda::getCurrentCUDABlasHandle()", "??"),
    "cudnn-workspace": ("at::native::run_conv_plan(cudnnContext*, at::Tensor const&)", ""),
    "serving-cache": ("_create_buffers", "sglang/srt/mem_cache/memory_pool.py"),
    "paged-cache": ("__init__", "transformers/generation/continuous_batching/cache.py"),
    "cache-update": ("update", "transformers/cache_utils.py"),
    "cache-of-own": ("update_quantized", "/w/models/cache_utils_v2.py"),
    "replica": ("replicate", "torch/nn/parallel/replicate.py"),
    "scattered": ("scatter_map", "torch/nn/parallel/scatter_gather.py"),
    "process-group": ("c10d::ProcessGroupNCCL::allgather(std::vector<at::Tensor>&)", ""),
    "gradient-bucket": ("setup_buckets", f"{SITE}/deepspeed/runtime/zero/stage_1_and_2.py"),
    "bucket-of-ddp": ("c10d::Reducer::initialize_buckets(std::vector<int>)", "??"),
    "collective": (
        "foreach_all_gather",
        "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py",
    ),
    "device-copy": ("at::_ops::_to_copy::call(at::Tensor const&)", ""),
    "device-copy-python": ("send_to_device", "accelerate/utils/operations.py"),
    "factory": ("at::_ops::zeros::call(c10::ArrayRef<c10::SymInt>)", ""),
    "collected": ("at::_ops::index_Tensor::redispatch(c10::DispatchKeySet)", "??"),
    "layer": ("forward", "torch/nn/modules/conv.py"),
    "zeros": ("at::_ops::zeros_like::call(at::Tensor const&)", "??"),
    "recompute": ("recompute_fn", "torch/utils/checkpoint.py"),
    "loader-pins": ("pin_memory", "torch/utils/data/_utils/pin_memory.py"),
    "saved-on-cpu": ("pack_to_cpu", "torch/autograd/graph.py"),
}
NEAR_MISSES = {
    "autograd-backward": ("backward", f"{SITE}/torch/_tensor.py"),
    "tensor-backward": ("backward", "/w/proj/_tensor.py"),
    "serving-weights": ("__init__", f"{SITE}/sglang/srt/layers/attention/flashinfer_backend.py"),
    "serving-cache": ("__init__", f"{SITE}/vllm/worker/cache_engine.py"),
    "paged-cache": ("__init__", f"{SITE}/transformers/generation/continuous_batching/scheduler.py"),
    "cache-update": ("update", "/w/proj/cache_utils.py"),
    "cache-of-own": ("update", "/w/proj/caching.py"),
    "replica": ("replicate", "/w/proj/replicate.py"),
    "scattered": ("gather_map", f"{SITE}/torch/nn/parallel/scatter_gather.py"),
    "collected": ("at::_ops::index_put_::call(at::Tensor&)", "??"),
    "layer": ("forward", f"{SITE}/torch/nn/modules/upsampling.py"),
    "zeros": ("at::_ops::empty_like::call(at::Tensor const&)", "??"),
    "custom-function-backward": ("apply", "/w/proj/function.py"),
    "optimizer-file": ("step", f"{SITE}/torch/optim/lr_scheduler.py"),
    "optimizer-wrapper": ("wrapper", "/w/proj/optimizer.py"),
    "optimizer-init": ("__init__", f"{SITE}/torch/optim/swa_utils.py"),
    "zero-grad": ("zero_grad_buffers", f"{SITE}/torch/optim/optimizer.py"),
    "set-grad": ("THPVariable_set_data(THPVariable*, _object*, void*)", "??"),
    "autocast-cast": ("at::autocast::set_autocast_cache_enabled(bool)", "??"),
    "autocast-exit": ("__exit__", f"{SITE}/torch/amp/grad_scaler.py"),
    "saved-in-place": (
        (
            "torch::autograd::VariableType::(anonymous namespace)::silu(c10::DispatchKeySet, "
            "at::Tensor const&)"
        ),
        "??",
    ),
    "collector": ("collect_garbage", "??"),
    "checkpointed": ("checkpoint", "/w/proj/checkpoint.py"),
    "adapter-input": ("_cast_input_dtype", "/w/proj/tuners.py"),
    "parametrization": ("forward", "torch/nn/utils/rnn.py"),
    "module-call": ("_call_impl", "/w/proj/module.py"),
    "forward-method": ("forward_features", "/w/proj/model.py"),
    "compiled-call": ("call", "/w/proj/caller.py"),
    "loss-function": ("linear", f"{SITE}/torch/nn/functional.py"),
    "loss-module": ("forward", "/w/proj/loss.py"),
    "named-weights": ("_allocate_buffers_for_parameters", "/w/engine/buffers.py"),
    "diffusers-average": ("step", f"{SITE}/diffusers/training_utils.py"),
    "named-cache": ("make_data_cache", "/w/engine/data.py"),
    "module-apply": ("to", f"{SITE}/torch/nn/modules/module.py"),
    "module-init": ("__init__", f"{SITE}/torch/nn/modules/module.py"),
    "parameter-new": ("__new__", "/w/proj/parameter.py"),
    "checkpoint-load": ("from_pretrained", "/w/proj/loading.py"),
    "weights-cast": ("cast_training_params", "/w/proj/training.py"),
    "torch-load": ("load", "/w/proj/serialization.py"),
    "unsharded-weights": (
        "free_storage",
        f"{SITE}/torch/distributed/fsdp/_fully_shard/_fsdp_param.py",
    ),
    "cublas-workspace": ("at::cuda::blas::gemm<float>(char)", "??"),
    "process-group": ("vllm::c10d::ProcessGroup", "??"),
    "collective": ("all_reduce", "/w/proj/metrics.py"),
    "device-copy": ("at::_ops::to_device::redispatch(at::Tensor const&)", "??"),
    "factory": ("at::_ops::empty_like::redispatch(at::Tensor const&)", "??"),
    "recompute": ("checkpoint", f"{SITE}/torch/utils/checkpoint.py"),
    "loader-pins": ("pin_memory", "/w/proj/pin_memory.py"),
    "saved-on-cpu": ("unpack_from_cpu", f"{SITE}/torch/autograd/graph.py"),
}


def example(rule):
    """The frame of a rule's example, below site-packages where it is an installed file."""
    name, file = EXAMPLES[rule.slug]
    return name, f"{SITE}/{file}" if file.endswith(".py") and not file.startswith("/") else file


def stack_table(*stacks):
    """Stacks of (function, file), leaf first."""
    interner = StackInterner()
    rows = [
        [{"name": name, "filename": file, "line": 1} for name, file in stack] for stack in stacks
    ]
    interner.ids(rows, str)
    return interner.table()


def slugs(*stack):
    """The rules that gave a stack its roles."""
    roles = assign_roles(stack_table(stack))
    return {FRAME_RULES[rule].slug for rule in roles.rule_id[:, 0].tolist() if rule >= 0}


@pytest.mark.parametrize("rule", FRAME_RULES, ids=lambda rule: rule.slug)
def test_a_rule_gives_the_stack_of_its_frame_its_role(rule):
    name, file = example(rule)
    roles = assign_roles(stack_table([example(rule)]))
    assert roles.has[rule.role].tolist() == [True]
    assert rule.slug in slugs(example(rule))
    assert rule.slug in slugs((name, file.replace("/", "\\")))  # a path of Windows
    # A frame anywhere in the stack counts, but where the outermost decides.
    assert (rule.slug in slugs(("at::empty", "??"), example(rule), USER)) != rule.is_outermost


@pytest.mark.parametrize("slug", sorted(NEAR_MISSES))
def test_a_near_miss_has_no_role_of_the_rule(slug):
    assert slug not in slugs(NEAR_MISSES[slug], USER)


def test_slugs_are_unique_and_every_role_has_a_rule():
    assert len({(rule.slug, rule.role) for rule in FRAME_RULES}) == len(FRAME_RULES)
    assert {rule.role for rule in FRAME_RULES} == set(Role)


def test_every_rule_shows_why_and_in_which_versions():
    assert all(rule.reason and rule.seen for rule in FRAME_RULES)
