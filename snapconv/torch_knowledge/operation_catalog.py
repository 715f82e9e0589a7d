"""Names of operations in C++ and graphs -> the user's word: ``at::_ops::addmm`` is linear."""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

UNNAMED = "unknown"

# Names in C++ are as long as whoever wrote a file likes: nothing here goes back further than one
# character.
_PYTHON_NAME = re.compile(r"THPVariable_(\w+)")
_DISPATCHED = re.compile(r"^at::_ops::(\w+)::(?:call|redispatch)")
_NODE = re.compile(r"Backward\d*(?:::release_variables|::~|::apply|_apply_functional)")
# The overload that torch appends to a dispatched name: `add_Tensor`, `sum_dim_IntList`, `mean_dim`.
_OVERLOAD = re.compile(
    r"_(?:[A-Z]\w*|dim(?:_\w+)?|int|out|names\w*|memory_format|default|padding|start(?:_step)?|low"
    r"|vec|other|self|correction|dtype(?:_layout)?|device|values|stable|generator(?:_\w+)?"
    r"|using_ints|input|default_\w+)$"
)
# Names of kernels and backward nodes that differ from what the user calls, without underscores at
# their ends.
_USER_WORDS = {
    "addmm": "linear",
    "native_layer_norm": "layer_norm",
    "native_group_norm": "group_norm",
    "native_batch_norm": "batch_norm",
    "cudnn_batch_norm": "batch_norm",
    "miopen_batch_norm": "batch_norm",
    "batch_norm_impl_index": "batch_norm",
    "native_dropout": "dropout",
    "fused_dropout": "dropout",
    "to_copy": "to",
    "nll_loss_forward": "nll_loss",
    "nll_loss2d_forward": "nll_loss",
    "max_pool2d_with_indices": "max_pool2d",
    "cudnn_rnn": "lstm",
    "cross_entropy_loss": "cross_entropy",
    "embedding_dense": "embedding",
    "scaled_dot_product_efficient_attention": "scaled_dot_product_attention",
    "scaled_dot_product_flash_attention": "scaled_dot_product_attention",
    "scaled_dot_product_cudnn_attention": "scaled_dot_product_attention",
}
# Operations that neither work in place nor return a view: every forward of theirs allocates, and
# so shows its line (torch 2.0-2.13).
ALWAYS_ALLOCATE = frozenset({
    "bmm", "mm", "linear", "convolution", "embedding", "layer_norm", "mean", "softmax",
    "log_softmax", "nll_loss", "mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "scaled_dot_product_attention",
})  # fmt: skip
_TENSOR_DUNDER = re.compile(r"^__i?r?(\w+)__$")


def name_in_native(native: Sequence[str]) -> str | None:
    """Return the name nearest to Python: of the binding, else of the outermost dispatched one."""
    dispatched = ""
    for name in native:
        is_binding, operation = _operation_of(name)
        if is_binding:
            return tidy(operation)
        dispatched = operation or dispatched
    if not dispatched:
        return next(filter(None, map(name_in_node, native)), None)
    return tidy(_OVERLOAD.sub("", dispatched))


def dispatched_names(native: Sequence[str]) -> Iterator[str]:
    """Yield the operations that were dispatched, those that others are made of too."""
    for name in native:
        dispatched = _DISPATCHED.match(name)
        if dispatched:
            yield tidy(_OVERLOAD.sub("", dispatched.group(1)))


@lru_cache(maxsize=1 << 14)
def _operation_of(name: str) -> tuple[bool, str]:
    """Return whether a C++ function is a binding, and the operation that it binds or calls."""
    for match in _PYTHON_NAME.finditer(name):
        following = name[match.end() : match.end() + 1]
        if following in ("(", ">", ","):
            return True, match.group(1)
    dispatched = _DISPATCHED.match(name)
    return False, dispatched.group(1) if dispatched else ""


@lru_cache(maxsize=1 << 14)
def name_in_node(name: str) -> str | None:
    """Return the operation of the backward node that a C++ frame is of, None if it is of none."""
    for match in _NODE.finditer(name):
        end = match.start()
        begin = end
        while begin and (name[begin - 1].isalnum() or name[begin - 1] == "_"):
            begin -= 1
        if begin < end:
            return tidy(_snake_case(name[begin:end]))
    return None


@lru_cache(maxsize=4096)
def tidy(name: str) -> str:
    """Bring a kernel's or a binding's name to the user's word."""
    dunder = _TENSOR_DUNDER.match(name)
    if dunder:
        name = dunder.group(1)
    bare = name.strip("_")
    # A kernel's name begins with an underscore; an operation in place ends with one.
    if bare in ("softmax", "log_softmax"):
        return name.lstrip("_")
    return _USER_WORDS.get(bare, name) if bare else UNNAMED


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z0-9])(?=[A-Z][a-z])", "_", name).lower()
