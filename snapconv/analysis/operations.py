"""What a person would call the operation that allocated a block: ``linear``, ``conv2d``, ``add``.

From a stack's frames: the Python function of torch nearest to the user's code, the name under which
C++ shows an operation to Python, or the dispatched operation itself; last, the innermost function.
"""

import re
from collections.abc import Iterator
from functools import lru_cache

from snapconv.analysis.paths import is_library, is_python, normal
from snapconv.snapshot.stacks import FrameTable, StackTable

UNNAMED = "unknown"

_PYTHON_NAME = re.compile(r"THPVariable_(\w+?)[(>,]")
_DISPATCHED = re.compile(r"^at::_ops::(\w+)::(?:call|redispatch)")
_NODE = re.compile(r"(\w+?)Backward\d*(?:::release_variables|::~|::apply|_apply_functional)")
# The overload that torch appends to a dispatched name: `add_Tensor`, `sum_dim_IntList`, `mean_dim`.
_OVERLOAD = re.compile(
    r"_(?:[A-Z]\w*|dim(?:_\w+)?|int|out|names\w*|memory_format|default|padding|start(?:_step)?|low|vec|other|self"
    r"|correction|dtype(?:_layout)?|device|values|stable|generator(?:_\w+)?|using_ints|input|default_\w+)$"
)
# Names of kernels and backward nodes that differ from what the user calls.
_SAME_AS = {
    "addmm": "linear", "native_layer_norm": "layer_norm", "native_group_norm": "group_norm",
    "native_batch_norm": "batch_norm", "cudnn_batch_norm": "batch_norm", "miopen_batch_norm": "batch_norm",
    "_batch_norm_impl_index": "batch_norm", "native_dropout": "dropout", "fused_dropout": "dropout",
    "_fused_dropout": "dropout", "_softmax": "softmax", "_log_softmax": "log_softmax",
    "_scaled_dot_product_efficient_attention": "scaled_dot_product_attention",
    "_scaled_dot_product_flash_attention": "scaled_dot_product_attention",
    "_scaled_dot_product_cudnn_attention": "scaled_dot_product_attention",
    "scaled_dot_product_efficient_attention": "scaled_dot_product_attention",
    "scaled_dot_product_flash_attention": "scaled_dot_product_attention",
    "scaled_dot_product_cudnn_attention": "scaled_dot_product_attention",
    "_to_copy": "to", "to_copy": "to", "nll_loss_forward": "nll_loss", "nll_loss2d_forward": "nll_loss",
    "max_pool2d_with_indices": "max_pool2d", "_cudnn_rnn": "lstm", "cudnn_rnn": "lstm",
    "cross_entropy_loss": "cross_entropy", "embedding_dense": "embedding",
}  # fmt: skip
# Modules of torch.nn whose forward calls one function: file -> its name.
_MODULE_FILES = {
    "linear.py": "linear", "normalization.py": "layer_norm", "batchnorm.py": "batch_norm",
    "dropout.py": "dropout", "sparse.py": "embedding", "rnn.py": "lstm", "conv.py": "conv",
    "pooling.py": "pool", "instancenorm.py": "instance_norm", "upsampling.py": "interpolate",
}  # fmt: skip
_FUNCTIONAL = re.compile(r"torch/(nn/functional|functional|nn/init)\.py$")
_TENSOR_DUNDER = re.compile(r"^__i?r?(\w+)__$")


def name_operations(stacks: StackTable) -> tuple[str, ...]:
    """The operation of every stack, by stack id; UNNAMED where no frame tells."""
    return tuple(name_with_source(stacks, stack)[0] for stack in range(len(stacks)))


def name_with_source(stacks: StackTable, stack_id: int) -> tuple[str, str]:
    """The operation of one stack, and what told it."""
    return _name(stacks.frames, stacks.frames_of(stack_id).tolist())


def name_of_node(stacks: StackTable, stack_id: int) -> str:
    """The operation whose backward node freed memory with this stack; UNNAMED if none did."""
    for frame in stacks.frames_of(stack_id).tolist():
        found = _NODE.search(stacks.frames.names[frame])
        if found:
            return _tidy(_snake_case(found.group(1)))
    return UNNAMED


def _name(frames: FrameTable, stack: list[int]) -> tuple[str, str]:
    return next((name, source) for name, source in _candidates(frames, stack) if name)


def _candidates(frames: FrameTable, stack: list[int]) -> Iterator[tuple[str | None, str]]:
    """What each way of telling says, the best way first."""
    python = [i for i in stack if is_python(frames.filenames[i])]
    # Beyond the first Python frame the C++ frames belong to outer calls.
    first_python = stack.index(python[0]) if python else len(stack)
    native = [frames.names[i] for i in stack[:first_python]]
    leaf = _leading_library(frames, python)
    yield _from_functional(frames, leaf), "the function of torch.nn.functional in its stack"
    yield _from_native(native), "the C++ frames of its stack"
    yield _from_module_file(frames, leaf), "the module of torch.nn in its stack"
    yield _from_innermost(frames, python), "the innermost Python function of its stack"
    yield UNNAMED, "no frame tells"


def _leading_library(frames: FrameTable, python: list[int]) -> list[int]:
    """The Python frames between the operation and the user's own code."""
    own = next((k for k, i in enumerate(python) if not is_library(normal(frames.filenames[i]))), len(python))
    return python[:own]


def _from_functional(frames: FrameTable, leaf: list[int]) -> str | None:
    """The outermost function of torch.nn.functional below the module that called it."""
    name = None
    for i in leaf:
        path = normal(frames.filenames[i])
        if _FUNCTIONAL.search(path):
            name = frames.names[i]
        elif "/torch/nn/modules/" in path and name:
            break
    return None if name is None or name.startswith("_") or name == "fn" else name


def _from_native(native: list[str]) -> str | None:
    """The name nearest to Python: of the binding, else of the outermost dispatched operation."""
    dispatched = None
    for name in native:
        bound = _PYTHON_NAME.search(name)
        if bound:
            return _tidy(bound.group(1))
        found = _DISPATCHED.match(name)
        if found:
            dispatched = found.group(1)
    if dispatched is None:
        node = next((found for name in native if (found := _NODE.search(name))), None)
        return _tidy(_snake_case(node.group(1))) if node else None
    return _tidy(_OVERLOAD.sub("", dispatched))


def _from_module_file(frames: FrameTable, leaf: list[int]) -> str | None:
    for i in leaf:
        path = normal(frames.filenames[i])
        if "/torch/nn/modules/" in path:
            return _MODULE_FILES.get(path.rsplit("/", 1)[1])
    return None


def _from_innermost(frames: FrameTable, python: list[int]) -> str | None:
    """The innermost Python function, be it a library's, which at least says where memory was asked for.

    In real snapshots those of libraries (``clone``, ``reshape``, ``sdpa_attention_forward``) say more of
    the operation than the user's function around them (``forward``, ``main``).
    """
    name = next((frames.names[i] for i in python if frames.names[i] != "wrapped"), None)
    return name.strip("<>") if name else None


@lru_cache(maxsize=4096)
def _tidy(name: str) -> str:
    """Bring a kernel's or a binding's name to the user's word."""
    dunder = _TENSOR_DUNDER.match(name)
    if dunder:
        name = dunder.group(1)
    name = _SAME_AS.get(name, name)
    name = _SAME_AS.get(name.rstrip("_"), name)
    return name if name.strip("_") else UNNAMED


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z0-9])(?=[A-Z][a-z])", "_", name).lower()
