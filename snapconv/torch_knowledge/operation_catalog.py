"""The names that C++ and graphs have for an operation -> the user's word: ``at::_ops::addmm`` is linear."""

import re
from collections.abc import Sequence
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
    r"|vec|other|self"
    r"|correction|dtype(?:_layout)?|device|values|stable|generator(?:_\w+)?|using_ints|input"
    r"|default_\w+)$"
)
# Names of kernels and backward nodes that differ from what the user calls, without underscores at
# their ends.
_SAME_AS = {
    "addmm": "linear", "native_layer_norm": "layer_norm", "native_group_norm": "group_norm",
    "native_batch_norm": "batch_norm", "cudnn_batch_norm": "batch_norm", "miopen_batch_norm": "batch_norm",
    "batch_norm_impl_index": "batch_norm", "native_dropout": "dropout", "fused_dropout": "dropout",
    "to_copy": "to", "nll_loss_forward": "nll_loss", "nll_loss2d_forward": "nll_loss",
    "max_pool2d_with_indices": "max_pool2d", "cudnn_rnn": "lstm", "cross_entropy_loss": "cross_entropy",
    "embedding_dense": "embedding",
    **{f"scaled_dot_product_{way}_attention": "scaled_dot_product_attention"
       for way in ("efficient", "flash", "cudnn")},
}  # fmt: skip
_TENSOR_DUNDER = re.compile(r"^__i?r?(\w+)__$")


def name_in_native(native: Sequence[str]) -> str | None:
    """Return the name nearest to Python: of the binding, else of the outermost dispatched operation."""
    dispatched = None
    for name in native:
        is_bound, found = _named_in(name)
        if is_bound:
            return tidy(found)
        dispatched = found or dispatched
    if dispatched is None:
        return next((name for name in map(name_in_node, native) if name), None)
    return tidy(_OVERLOAD.sub("", dispatched))


@lru_cache(maxsize=1 << 14)
def _named_in(name: str) -> tuple[bool, str]:
    """Return whether a C++ function is a binding, and its operation or that which it dispatches to."""
    for bound in _PYTHON_NAME.finditer(name):
        if name[bound.end() : bound.end() + 1] in ("(", ">", ","):
            return True, bound.group(1)
    found = _DISPATCHED.match(name)
    return False, found.group(1) if found else ""


@lru_cache(maxsize=1 << 14)
def name_in_node(name: str) -> str | None:
    """Return the operation of the backward node that a C++ frame is of, None if it is of none."""
    for found in _NODE.finditer(name):
        begin = found.start()
        while begin and (name[begin - 1].isalnum() or name[begin - 1] == "_"):
            begin -= 1
        if begin < found.start():
            return tidy(_snake_case(name[begin : found.start()]))
    return None


@lru_cache(maxsize=4096)
def tidy(name: str) -> str:
    """Bring a kernel's or a binding's name to the user's word."""
    dunder = _TENSOR_DUNDER.match(name)
    if dunder:
        name = dunder.group(1)
    bare = name.strip("_")
    if bare in (
        "softmax",
        "log_softmax",
    ):  # the kernel has an underscore first, in place it is last
        return name.lstrip("_")
    return _SAME_AS.get(bare, name) if bare else UNNAMED


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z0-9])(?=[A-Z][a-z])", "_", name).lower()
