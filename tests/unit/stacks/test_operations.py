"""Stacks -> the name that a person would give the operation."""

import pytest

from snapconv.snapshot.stack_table import StackInterner
from snapconv.stacks.stack_facts import name_of_node
from snapconv.torch_knowledge.operation_catalog import UNNAMED
from tests.builders import name_operations

TORCH = "/opt/venv/lib/python3.11/site-packages/torch"
FUNCTIONAL = f"{TORCH}/nn/functional.py"
MODULE = [
    ("_call_impl", f"{TORCH}/nn/modules/module.py"),
    ("_wrapped_call_impl", f"{TORCH}/nn/modules/module.py"),
]
MODEL = [("forward", "/w/proj/model.py"), *MODULE, ("main", "/w/proj/train.py")]
NODES = "torch::autograd::generated"
INTERPRETER = [("_PyEval_EvalFrameDefault", "??"), ("PyEval_EvalCode", "??")]
MALLOC = [
    ("torch::CapturedTraceback::gather(bool, bool, bool)", "??"),
    ("c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc(unsigned long)", ""),
    ("at::detail::empty_cuda(c10::ArrayRef<long>, c10::TensorOptions const&)", "??"),
]
ENGINE = [
    (
        "torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&)",
        "??",
    )
]


def functional(name):
    return (name, FUNCTIONAL)


def module(file, name="forward"):
    return (name, f"{TORCH}/nn/modules/{file}")


def cpp(name):
    return (name, "??")


def bound(name):
    """The binding through which Python calls an operation."""
    return cpp(f"torch::autograd::THPVariable_{name}(_object*, _object*, _object*)")


def dispatched(name, how="call"):
    return cpp(f"at::_ops::{name}::{how}(at::Tensor const&, at::Tensor const&)")


def stack_table(*stacks):
    interner = StackInterner()
    rows = [
        [{"name": name, "filename": file, "line": 1} for name, file in stack] for stack in stacks
    ]
    interner.ids(rows, str)
    return interner.table()


PYTHON_ONLY = {
    "linear": [module("linear.py"), *MODULE, *MODEL],
    "layer_norm": [functional("layer_norm"), module("normalization.py"), *MODULE, *MODEL],
    "embedding": [functional("embedding"), module("sparse.py"), *MODULE, *MODEL],
    "conv": [module("conv.py", "_conv_forward"), module("conv.py"), *MODULE, *MODEL],
    "batch_norm": [functional("batch_norm"), module("batchnorm.py"), *MODULE, *MODEL],
    "cross_entropy": [functional("cross_entropy"), ("main", "/w/proj/train.py")],
    "multi_head_attention_forward": [
        functional("_in_projection_packed"),
        functional("multi_head_attention_forward"),
        module("activation.py"),
        *MODULE,
        *MODEL,
    ],
    "dropout": [module("dropout.py"), *MODULE, *MODEL],
    "max_pool2d": [
        functional("_max_pool2d"),
        ("fn", f"{TORCH}/_jit_internal.py"),
        ("fn", f"{TORCH}/_jit_internal.py"),
        module("pooling.py"),
        *MODULE,
        *MODEL,
    ],
    "unique": [
        ("_return_output", f"{TORCH}/functional.py"),
        ("fn", f"{TORCH}/_jit_internal.py"),
        *MODEL,
    ],
    "pow": [("wrapped", f"{TORCH}/_tensor.py"), *MODEL],
    "rsub": [("__rsub__", f"{TORCH}/_tensor.py"), ("wrapped", f"{TORCH}/_tensor.py"), *MODEL],
    "norm": [("norm", f"{TORCH}/functional.py"), ("norm", f"{TORCH}/_tensor.py"), *MODEL],
    "attend": [
        ("__torch_function__", f"{TORCH}/utils/_device.py"),
        ("attend", "/w/proj/model.py"),
        *MODEL,
    ],
    "einsum": [("einsum", f"{TORCH}/functional.py"), *MODEL],
    "rotate_half": [("rotate_half", "/w/proj/model.py"), *MODEL],
    "reshape": [("reshape", "/opt/venv/lib/python3.11/site-packages/einops/_backends.py"), *MODEL],
    "lambda": [("<lambda>", "/w/proj/model.py"), *MODEL],
    "module": [("<module>", "/w/proj/train.py")],
}
WITH_CPP = {
    "linear": [
        *MALLOC,
        dispatched("addmm"),
        dispatched("linear"),
        bound("linear"),
        module("linear.py"),
        *MODEL,
    ],
    "mul": [
        *MALLOC,
        dispatched("mul_Tensor", "redispatch"),
        dispatched("mul_Tensor"),
        cpp(
            "torch::autograd::TypeError_to_NotImplemented_<&torch::autograd::THPVariable_mul>(_object*)"
        ),
        *INTERPRETER,
        *MODEL,
    ],
    "add": [*MALLOC, dispatched("add_Tensor", "redispatch"), dispatched("add_Tensor"), *MODEL],
    "sum": [*MALLOC, dispatched("sum_dim_IntList"), *MODEL],
    "mean": [*MALLOC, dispatched("mean_dim"), *MODEL],
    "pow": [*MALLOC, dispatched("pow_Tensor_Scalar"), *MODEL],
    "max": [*MALLOC, dispatched("max_dim"), *MODEL],
    "where": [*MALLOC, dispatched("where_self"), *MODEL],
    "std": [*MALLOC, dispatched("std_correction"), *MODEL],
    "flatten": [*MALLOC, dispatched("flatten_using_ints"), *MODEL],
    "arange": [*MALLOC, dispatched("arange_start_step"), *MODEL],
    "to": [
        *MALLOC,
        dispatched("_to_copy", "redispatch"),
        dispatched("_to_copy"),
        dispatched("to_dtype"),
        *MODEL,
    ],
    "layer_norm": [*MALLOC, dispatched("native_layer_norm"), *MODEL],
    "softmax": [*MALLOC, dispatched("_softmax"), functional("softmax"), *MODEL],
    "log_softmax": [*MALLOC, dispatched("_log_softmax"), *MODEL],
    "conv2d": [
        *MALLOC,
        dispatched("cudnn_convolution"),
        dispatched("conv2d"),
        bound("conv2d"),
        *MODEL,
    ],
    "scaled_dot_product_attention": [
        *MALLOC,
        dispatched("_scaled_dot_product_flash_attention"),
        *MODEL,
    ],
    "max_pool2d": [*MALLOC, dispatched("max_pool2d_with_indices"), *MODEL],
    "dropout": [
        *MALLOC,
        dispatched("native_dropout"),
        functional("dropout"),
        module("dropout.py"),
        *MODEL,
    ],
    "index_put_": [*MALLOC, dispatched("index_put_"), *MODEL],
    "mm": [*MALLOC, dispatched("mm"), cpp(f"{NODES}::AddmmBackward0::apply()"), *ENGINE],
    "gelu": [
        *MALLOC,
        cpp(f"{NODES}::GeluBackward0::apply(std::vector<at::Tensor>&&)"),
        *ENGINE,
    ],
    "my_kernel": [
        *MALLOC,
        cpp("my_extension::launch()"),
        *INTERPRETER,
        ("my_kernel", "/w/proj/ops.py"),
        *MODEL,
    ],
}


@pytest.mark.parametrize("name", sorted(PYTHON_ONLY))
def test_an_operation_is_named_from_python_frames(name):
    assert name_operations(stack_table(PYTHON_ONLY[name])) == (name,)


@pytest.mark.parametrize("name", sorted(WITH_CPP))
def test_an_operation_is_named_from_frames_of_cpp(name):
    assert name_operations(stack_table(WITH_CPP[name])) == (name,)


def test_the_outermost_operation_counts_since_that_is_what_the_user_called():
    stack = [
        *MALLOC,
        dispatched("empty_like"),
        dispatched("zeros_like"),
        dispatched("gelu_backward"),
        *MODEL,
    ]
    assert name_operations(stack_table(stack)) == ("gelu_backward",)


def test_frames_of_cpp_beyond_the_first_python_frame_belong_to_outer_calls():
    stack = [
        *MALLOC,
        dispatched("relu"),
        ("relu", "/w/proj/model.py"),
        dispatched("linear"),
        *MODEL,
    ]
    assert name_operations(stack_table(stack)) == ("relu",)


def test_windows_paths_name_operations_too():
    stack = [(name, "C:" + file.replace("/", "\\")) for name, file in PYTHON_ONLY["linear"]]
    assert name_operations(stack_table(stack)) == ("linear",)


def test_what_no_frame_shows_stays_unnamed():
    assert name_operations(stack_table([], MALLOC)) == (UNNAMED, UNNAMED)
    assert name_operations(stack_table()) == ()


def test_there_is_one_name_per_stack_in_their_order():
    names = sorted(PYTHON_ONLY)
    assert name_operations(stack_table(*(PYTHON_ONLY[name] for name in names))) == tuple(names)


@pytest.mark.parametrize(
    ("frame", "name"),
    [
        (f"{NODES}::AddmmBackward0::release_variables()", "linear"),
        (f"{NODES}::GeluBackward0::release_variables()", "gelu"),
        (f"{NODES}::NativeLayerNormBackward0::release_variables()", "layer_norm"),
        (f"{NODES}::MulBackward0::~MulBackward0()", "mul"),
        (
            f"{NODES}::ScaledDotProductFlashAttentionBackward0::apply()",
            "scaled_dot_product_attention",
        ),
        (f"{NODES}::MaxPool2DWithIndicesBackward0::release_variables()", "max_pool2d"),
        (f"{NODES}::NllLoss2DBackward0::release_variables()", "nll_loss2d"),
        (f"{NODES}::UpsampleNearest2DBackward0::release_variables()", "upsample_nearest2d"),
        (f"{NODES}::ToCopyBackward0::release_variables()", "to"),
        ("torch::autograd::Engine::thread_main()", UNNAMED),
    ],
)
def test_a_backward_node_names_the_operation_whose_memory_it_releases(frame, name):
    assert name_of_node(stack_table([*MALLOC[:1], cpp(frame), *ENGINE]), 0) == name


def test_what_python_runs_within_a_node_is_not_named_by_it():
    """A checkpoint runs its forward again where a node asks for what was saved."""
    outer = cpp(f"{NODES}::MulBackward0::apply()")
    again = ("recompute_fn", "/usr/lib/python3/site-packages/torch/utils/checkpoint.py")
    assert name_of_node(stack_table([*MALLOC, again, outer, *ENGINE]), 0) == UNNAMED


def test_no_stack_names_no_node():
    assert name_of_node(stack_table([cpp("GeluBackward0::release_variables()")]), -1) == UNNAMED
