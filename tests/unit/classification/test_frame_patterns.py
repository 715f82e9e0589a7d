"""The frame rules: each has a frame that it matches, and near misses that it does not."""

import pytest

from snapconv.snapshot.stack_table import StackInterner
from snapconv.stacks.stack_roles import assign_roles
from snapconv.torch_knowledge.frame_patterns import FRAME_RULES
from snapconv.torch_knowledge.frame_roles import Role

SITE = "/opt/venv/lib/python3.11/site-packages"
USER = ("main", "/w/proj/train.py")
NAMES = "std::shared_ptr<torch::autograd::GraphTask>&"

# slug -> a frame that the rule is about.
EXAMPLES = {
    "engine-thread": (f"torch::autograd::Engine::evaluate_function({NAMES})", "??"),
    "engine-python": ("_engine_run_backward", f"{SITE}/torch/autograd/graph.py"),
    "autograd-backward": ("backward", f"{SITE}/torch/autograd/__init__.py"),
    "tensor-backward": ("backward", f"{SITE}/torch/_tensor.py"),
    "custom-function-backward": ("apply", f"{SITE}/torch/autograd/function.py"),
    "release-variables": ("torch::autograd::generated::AddmmBackward0::release_variables()", "??"),
    "node-destroyed": ("torch::autograd::generated::MulBackward0::~MulBackward0()", ""),
    "accumulate-grad": ("torch::autograd::AccumulateGrad::apply(std::vector<at::Tensor>&&)", "??"),
    "optimizer-file": ("_multi_tensor_adamw", f"{SITE}/torch/optim/adamw.py"),
    "optimizer-wrapper": ("wrapper", f"{SITE}/torch/optim/optimizer.py"),
    "optimizer-other": ("step", f"{SITE}/apex/optimizers/fused_adam.py"),
    "optimizer-init": ("__init__", f"{SITE}/torch/optim/adagrad.py"),
    "zero-grad": ("zero_grad", f"{SITE}/torch/optim/optimizer.py"),
    "set-grad": ("THPVariable_set_grad(THPVariable*, _object*, void*)", "??"),
    "module-call": ("_call_impl", f"{SITE}/torch/nn/modules/module.py"),
    "forward-method": ("forward", "/w/proj/model.py"),
    "compiled-call": ("call", "/tmp/torchinductor_me/xy/cxyabc.py"),
    "compiled-code": ("call", f"/scratch/cache/ab/c{'a2' * 25}b.py"),
    "loss-function": ("cross_entropy", f"{SITE}/torch/nn/functional.py"),
    "loss-module": ("forward", f"{SITE}/torch/nn/modules/loss.py"),
    "named-weights": ("init_all_weights", "/w/engine/opt.py"),
    "diffusers-average": ("__init__", f"{SITE}/diffusers/training_utils.py"),
    "file-of-averages": ("register", "/w/proj/utils/model_ema.py"),
    "named-cache": ("init_cache_one_gpu_batch", "/w/engine/opt.py"),
    "module-apply": ("_apply", f"{SITE}/torch/nn/modules/module.py"),
    "module-init": ("__init__", f"{SITE}/torch/nn/modules/linear.py"),
    "parameter-new": ("__new__", f"{SITE}/torch/nn/parameter.py"),
    "stacked-parameters": ("construct_stacked_leaf", f"{SITE}/torch/_functorch/functional_call.py"),
    "checkpoint-load": ("from_pretrained", f"{SITE}/transformers/modeling_utils.py"),
    "weights-cast": ("prepare_model_for_kbit_training", f"{SITE}/peft/utils/other.py"),
    "torch-load": ("persistent_load", f"{SITE}/torch/serialization.py"),
    "serving-weights": ("create_weights", f"{SITE}/vllm/model_executor/layers/linear.py"),
    "serving-cache": ("_create_buffers", f"{SITE}/sglang/srt/mem_cache/memory_pool.py"),
    "paged-cache": ("__init__", f"{SITE}/transformers/generation/continuous_batching/cache.py"),
    "cache-update": ("update", f"{SITE}/transformers/cache_utils.py"),
    "cache-of-own": ("update_quantized", "/w/models/cache_utils_v2.py"),
    "cache-reordered": ("_reorder_cache", "/w/models/modeling_own.py"),
    "collected": ("at::_ops::index_Tensor::redispatch(c10::DispatchKeySet, at::Tensor const&)", "??"),
    "embedding": ("embedding", f"{SITE}/torch/nn/functional.py"),
    "layer": ("forward", f"{SITE}/torch/nn/modules/conv.py"),
    "zeros": ("at::_ops::zeros_like::call(at::Tensor const&)", "??"),
    "clone": ("at::_ops::clone::call(at::Tensor const&)", "??"),
    "deepcopy": ("__deepcopy__", f"{SITE}/torch/_tensor.py"),
    "module-attribute": ("__setattr__", f"{SITE}/torch/nn/modules/module.py"),
    "fsdp-parameters": ("_init_sharded_param", f"{SITE}/torch/distributed/fsdp/_fully_shard/_fsdp_param.py"),
    "cublas-workspace": ("at::cuda::getCurrentCUDABlasHandle()", "??"),
    "cudnn-workspace": ("at::native::run_conv_plan(cudnnContext*, at::Tensor const&)", ""),
    "replica": ("replicate", f"{SITE}/torch/nn/parallel/replicate.py"),
    "scattered": ("scatter_map", f"{SITE}/torch/nn/parallel/scatter_gather.py"),
    "process-group": ("c10d::ProcessGroupNCCL::allgather(std::vector<at::Tensor>&)", ""),
    "collective": ("foreach_all_gather", f"{SITE}/torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py"),
    "device-copy": ("at::_ops::_to_copy::call(at::Tensor const&)", ""),
    "device-copy-python": ("send_to_device", f"{SITE}/accelerate/utils/operations.py"),
    "factory": ("at::_ops::zeros::call(c10::ArrayRef<c10::SymInt>)", ""),
    "recompute": ("recompute_fn", f"{SITE}/torch/utils/checkpoint.py"),
    "engine-reentered": ("_engine_run_backward", f"{SITE}/torch/autograd/graph.py"),
    "backward-reentered": ("backward", f"{SITE}/torch/autograd/__init__.py"),
    "loader-pins": ("pin_memory", f"{SITE}/torch/utils/data/_utils/pin_memory.py"),
    "saved-on-cpu": ("pack_to_cpu", f"{SITE}/torch/autograd/graph.py"),
}
NEAR_MISSES = {
    "engine-python": ("_engine_run_backward", "/w/proj/graph.py"),
    "autograd-backward": ("backward", f"{SITE}/torch/_tensor.py"),
    "tensor-backward": ("backward", "/w/proj/_tensor.py"),
    "serving-weights": ("__init__", f"{SITE}/sglang/srt/layers/attention/flashinfer_backend.py"),
    "serving-cache": ("__init__", f"{SITE}/vllm/worker/cache_engine.py"),
    "paged-cache": ("__init__", f"{SITE}/transformers/generation/continuous_batching/scheduler.py"),
    "cache-update": ("update", "/w/proj/cache_utils.py"),
    "cache-of-own": ("update", "/w/proj/caching.py"),
    "cache-reordered": ("_reorder_cache", "/w/proj/search.py"),
    "replica": ("replicate", "/w/proj/replicate.py"),
    "scattered": ("gather_map", f"{SITE}/torch/nn/parallel/scatter_gather.py"),
    "collected": ("at::_ops::index_put_::call(at::Tensor&)", "??"),
    "layer": ("forward", f"{SITE}/torch/nn/modules/upsampling.py"),
    "zeros": ("at::_ops::empty_like::call(at::Tensor const&)", "??"),
    "clone": ("at::_ops::clone::redispatch(at::Tensor const&)", "??"),
    "deepcopy": ("__deepcopy__", "/w/proj/_tensor.py"),
    "module-attribute": ("__setattr__", "/w/proj/module.py"),
    "custom-function-backward": ("apply", "/w/proj/function.py"),
    "optimizer-file": ("step", f"{SITE}/torch/optim/lr_scheduler.py"),
    "optimizer-wrapper": ("wrapper", "/w/proj/optimizer.py"),
    "optimizer-init": ("__init__", f"{SITE}/torch/optim/swa_utils.py"),
    "zero-grad": ("zero_grad_buffers", f"{SITE}/torch/optim/optimizer.py"),
    "set-grad": ("THPVariable_set_data(THPVariable*, _object*, void*)", "??"),
    "module-call": ("_call_impl", "/w/proj/module.py"),
    "forward-method": ("forward_features", "/w/proj/model.py"),
    "compiled-call": ("call", "/w/proj/caller.py"),
    "loss-function": ("linear", f"{SITE}/torch/nn/functional.py"),
    "loss-module": ("forward", "/w/proj/loss.py"),
    "named-weights": ("_allocate_buffers_for_parameters", "/w/engine/buffers.py"),
    "diffusers-average": ("step", f"{SITE}/diffusers/training_utils.py"),
    "file-of-averages": ("register", "/w/proj/schema.py"),
    "named-cache": ("make_data_cache", "/w/engine/data.py"),
    "module-apply": ("to", f"{SITE}/torch/nn/modules/module.py"),
    "module-init": ("__init__", f"{SITE}/torch/nn/modules/module.py"),
    "parameter-new": ("__new__", "/w/proj/parameter.py"),
    "stacked-parameters": ("functional_call", f"{SITE}/torch/_functorch/functional_call.py"),
    "checkpoint-load": ("from_pretrained", "/w/proj/loading.py"),
    "weights-cast": ("cast_training_params", "/w/proj/training.py"),
    "torch-load": ("load", "/w/proj/serialization.py"),
    "cublas-workspace": ("at::cuda::blas::gemm<float>(char)", "??"),
    "process-group": ("vllm::c10d::ProcessGroup", "??"),
    "collective": ("all_reduce", "/w/proj/metrics.py"),
    "device-copy": ("at::_ops::to_device::redispatch(at::Tensor const&)", "??"),
    "factory": ("at::_ops::empty_like::redispatch(at::Tensor const&)", "??"),
    "recompute": ("checkpoint", f"{SITE}/torch/utils/checkpoint.py"),
    "engine-reentered": ("_engine_run_backward", "/w/proj/graph.py"),
    "backward-reentered": ("backward", f"{SITE}/torch/_tensor.py"),
    "loader-pins": ("pin_memory", "/w/proj/pin_memory.py"),
    "saved-on-cpu": ("unpack_from_cpu", f"{SITE}/torch/autograd/graph.py"),
}


def stack_table(*stacks):
    """Stacks of (function, file), leaf first."""
    interner = StackInterner()
    rows = [[{"name": name, "filename": file, "line": 1} for name, file in stack] for stack in stacks]
    interner.ids(rows, str)
    return interner.table()


def slugs(*stack):
    """The rules that gave a stack its roles."""
    roles = assign_roles(stack_table(stack))
    return {FRAME_RULES[rule].slug for rule in roles.rule_id[:, 0].tolist() if rule >= 0}


def test_every_rule_has_an_example():
    assert {rule.slug for rule in FRAME_RULES} == set(EXAMPLES)


@pytest.mark.parametrize("rule", FRAME_RULES, ids=lambda rule: rule.slug)
def test_a_rule_gives_the_stack_of_its_frame_its_role(rule):
    roles = assign_roles(stack_table([EXAMPLES[rule.slug]]))
    assert roles.has[rule.role].tolist() == [True]
    assert rule.slug in slugs(EXAMPLES[rule.slug])


@pytest.mark.parametrize("slug", sorted(NEAR_MISSES))
def test_a_near_miss_has_no_role_of_the_rule(slug):
    assert slug not in slugs(NEAR_MISSES[slug], USER)


@pytest.mark.parametrize(
    "frame", [("load_batch", "/w/proj/cifar_ema.py"), ("__init__", "/w/proj/ema_trainer.py")]
)
def test_a_script_that_is_named_after_an_average_makes_other_things_too(frame):
    assert "file-of-averages" not in slugs(frame, ("<module>", frame[1]))


@pytest.mark.parametrize("slug", sorted(set(EXAMPLES) - {"custom-function-backward"}))
def test_a_frame_anywhere_in_the_stack_counts(slug):
    assert slug in slugs(("at::empty", "??"), EXAMPLES[slug], USER)


@pytest.mark.parametrize("slug", sorted(EXAMPLES))
def test_a_path_of_windows_counts_too(slug):
    name, file = EXAMPLES[slug]
    assert slug in slugs((name, file.replace("/", "\\")))


def test_slugs_are_unique_and_every_role_has_a_rule():
    assert len(EXAMPLES) == len(FRAME_RULES)
    assert {rule.role for rule in FRAME_RULES} == set(Role)


def test_every_rule_shows_why_and_in_which_versions():
    assert all(rule.reason and rule.seen for rule in FRAME_RULES)
