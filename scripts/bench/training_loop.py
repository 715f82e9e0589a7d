"""The shape of a transformer -> what its training loop allocates and frees, in program order.

Every tensor is a name, a size and the stack that made it; where it lies is the allocator's affair.
The order of lifetimes is a real one (activations saved in forward and released in backward,
gradients kept until zero_grad), the values of a model are not needed for it. Each layer is called
on a line of its own, as in an exported module, so that the stacks run to thousands.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from scripts.bench.stacks import MODULE_CALL, Frame, StackTable, project_frame, torch_frame


class Allocate(NamedTuple):
    """A tensor comes to life."""

    tensor: str
    n_bytes: int
    stack_id: int


class Free(NamedTuple):
    """A tensor dies."""

    tensor: str
    stack_id: int


class Annotate(NamedTuple):
    """A record_function range starts or ends; ``stage`` is START or END."""

    name: str
    stage: str


Action: TypeAlias = Allocate | Free | Annotate


@dataclass(frozen=True, slots=True)
class Shape:
    """How large the model and its batch are; four-byte floats throughout."""

    n_layers: int
    batch: int
    length: int
    width: int = 1024
    n_heads: int = 16
    wide: int = 2816
    vocabulary: int = 32003

    def sizes(self) -> dict[str, int]:
        """Give the bytes of every kind of tensor that the tables below speak of."""
        n_tokens = self.batch * self.length
        n_scores = self.batch * self.n_heads * self.length**2
        return {
            "scalar": 4,
            "tokens": 8 * n_tokens,
            "row": 4 * n_tokens,
            "hidden": 4 * n_tokens * self.width,
            "wide": 4 * n_tokens * self.wide,
            "logits": 4 * n_tokens * self.vocabulary,
            "scores": 4 * n_scores,
            "mask": n_scores,
            "rotary": 4 * self.length * self.width // self.n_heads,
            "vector": 4 * self.width,
            "square": 4 * self.width**2,
            "oblong": 4 * self.width * self.wide,
            "vocabulary": 4 * self.width * self.vocabulary,
            "workspace": 8_519_680,
        }


class Operator(NamedTuple):
    """A row of the model's program: what a line of ``model.py`` computes.

    ``gradient`` is the kind of tensor that its backward makes ("": it passes one on), ``parameter``
    that of its weight, ``frees`` what dies at the same line.
    """

    output: str
    name: str
    kind: str
    module: str
    line: int
    gradient: str = "hidden"
    frees: tuple[str, ...] = ()
    is_saved: bool = False
    parameter: str = ""


def _norm(module: str, prefix: str) -> tuple[Operator, ...]:
    return (
        Operator(f"{prefix}_square", "pow", "hidden", module, 24),
        Operator(f"{prefix}_mean", "mean", "row", module, 24, frees=(f"{prefix}_square",)),
        Operator(
            f"{prefix}_rsqrt", "rsqrt", "row", module, 25, "row", (f"{prefix}_mean",), is_saved=True
        ),
        Operator(f"{prefix}_unit", "mul", "hidden", module, 26, is_saved=True),
        Operator(f"{prefix}_out", "mul", "hidden", module, 27, is_saved=True, parameter="vector"),
    )


def _rotary(module: str, prefix: str) -> tuple[Operator, ...]:
    parts = (f"{prefix}_cos", f"{prefix}_sin", f"{prefix}_turned")
    return (
        Operator(f"{prefix}_turned", "cat", "hidden", module, 38),
        Operator(f"{prefix}_cos", "mul", "hidden", module, 39),
        Operator(f"{prefix}_sin", "mul", "hidden", module, 40),
        Operator(f"{prefix}_rotary", "add", "hidden", module, 41, "", parts, is_saved=True),
    )


LAYER = (
    *_norm("attention_norm", "norm1"),
    Operator("query", "linear", "hidden", "attention", 66, parameter="square"),
    Operator("key", "linear", "hidden", "attention", 67, parameter="square"),
    Operator("value", "linear", "hidden", "attention", 68, is_saved=True, parameter="square"),
    *_rotary("query_rotary", "query"),
    *_rotary("key_rotary", "key"),
    Operator("scores", "bmm", "scores", "attention", 72, frees=("query", "key")),
    Operator("masked", "masked_fill", "scores", "attention", 73, "scores", ("scores",)),
    Operator(
        "probabilities", "_softmax", "scores", "attention", 74, "scores", ("masked",), is_saved=True
    ),
    Operator("drop_mask", "native_dropout", "mask", "attention", 75, "", is_saved=True),
    Operator("dropped", "native_dropout", "scores", "attention", 75, "scores", is_saved=True),
    Operator("context", "bmm", "hidden", "attention", 76, "scores"),
    Operator("merged", "clone", "hidden", "attention", 77, "hidden", ("context",), is_saved=True),
    Operator("projected", "linear", "hidden", "attention", 78, parameter="square"),
    Operator("residual", "add", "hidden", "block", 118, "", ("projected",), is_saved=True),
    *_norm("feed_forward_norm", "norm2"),
    Operator("gate", "linear", "wide", "feed_forward", 96, is_saved=True, parameter="oblong"),
    Operator("up", "linear", "wide", "feed_forward", 97, is_saved=True, parameter="oblong"),
    Operator("activated", "silu", "wide", "feed_forward", 98, "wide", is_saved=True),
    Operator("product", "mul", "wide", "feed_forward", 98, "wide", is_saved=True),
    Operator("down", "linear", "hidden", "feed_forward", 99, "wide", parameter="oblong"),
    Operator("output", "add", "hidden", "block", 119, "", ("down",), is_saved=True),
)
FIRST = (
    Operator(
        "embedded", "embedding", "hidden", "model", 145, "", is_saved=True, parameter="vocabulary"
    ),
)
LAST = (
    *_norm("final_norm", "final"),
    Operator("logits", "linear", "logits", "model", 347, is_saved=True, parameter="vocabulary"),
    Operator("log_softmax", "_log_softmax", "logits", "loss", 57, "logits", is_saved=True),
    Operator("loss_weight", "nll_loss_forward", "scalar", "loss", 57, "", is_saved=True),
    Operator("loss", "nll_loss_forward", "scalar", "loss", 57, "logits"),
)

# Forward operator -> the node that autograd records, and the operator that the node calls.
_NODES = {
    "_log_softmax": ("LogSoftmaxBackward0", "_log_softmax_backward_data"),
    "_softmax": ("SoftmaxBackward0", "_softmax_backward_data"),
    "add": ("AddBackward0", "sum_dim_IntList"),
    "bmm": ("BmmBackward0", "bmm"),
    "cat": ("CatBackward0", "slice_backward"),
    "clone": ("CloneBackward0", "clone"),
    "embedding": ("EmbeddingBackward0", "embedding_dense_backward"),
    "linear": ("AddmmBackward0", "mm"),
    "masked_fill": ("MaskedFillBackward0", "masked_fill_Scalar"),
    "mean": ("MeanBackward1", "div_Tensor"),
    "mul": ("MulBackward0", "mul_Tensor"),
    "native_dropout": ("NativeDropoutBackward0", "native_dropout_backward"),
    "nll_loss_forward": ("NllLossBackward0", "nll_loss_backward"),
    "pow": ("PowBackward0", "pow_Tensor_Scalar"),
    "rsqrt": ("RsqrtBackward0", "mul_Tensor"),
    "silu": ("SiluBackward0", "silu_backward"),
}

# Operators that Python code of torch itself calls for the user's line.
_TORCH_CALLERS = {
    "linear": (torch_frame("forward", "nn/modules/linear.py", 134), *MODULE_CALL),
    "silu": (torch_frame("silu", "nn/functional.py", 2371),),
    "_softmax": (torch_frame("softmax", "nn/functional.py", 2133),),
    "_log_softmax": (torch_frame("cross_entropy", "nn/functional.py", 3494),),
    "nll_loss_forward": (torch_frame("cross_entropy", "nn/functional.py", 3494),),
    "native_dropout": (
        torch_frame("dropout", "nn/functional.py", 1425),
        torch_frame("forward", "nn/modules/dropout.py", 73),
        *MODULE_CALL,
    ),
    "embedding": (
        torch_frame("embedding", "nn/functional.py", 2542),
        torch_frame("forward", "nn/modules/sparse.py", 190),
        *MODULE_CALL,
    ),
}

_FUNCTIONS = {"query_rotary": "apply_rotary", "key_rotary": "apply_rotary"}
_ATTENTION = (*MODULE_CALL, project_frame("forward", "model.py", 118))
_FEED_FORWARD = (*MODULE_CALL, project_frame("forward", "model.py", 119))
_CALLERS = {
    "attention_norm": _ATTENTION,
    "attention": _ATTENTION,
    "query_rotary": (project_frame("forward", "model.py", 70), *_ATTENTION),
    "key_rotary": (project_frame("forward", "model.py", 71), *_ATTENTION),
    "feed_forward_norm": _FEED_FORWARD,
    "feed_forward": _FEED_FORWARD,
    "block": (),
}
_SCRIPT = (project_frame("main", "train.py", 92), project_frame("<module>", "train.py", 101))
_OPTIMIZER = torch_frame("wrapper", "optim/optimizer.py", 526)


def _train_step(line: int) -> tuple[Frame, ...]:
    return (project_frame("train_step", "train.py", line), *_SCRIPT)


def _python_frames(operator: Operator, layer: int | None) -> tuple[Frame, ...]:
    """Lead from the operator's own line out to the script."""
    own = project_frame(_FUNCTIONS.get(operator.module, "forward"), "model.py", operator.line)
    model = (*MODULE_CALL, *_train_step(56))
    if operator.module == "loss":
        return _train_step(operator.line)
    if operator.module == "model":
        return (own, *model)
    if layer is None:
        return (own, *MODULE_CALL, project_frame("forward", "model.py", 346), *model)
    call = project_frame("forward", "model.py", 146 + 2 * layer)
    return (own, *_CALLERS[operator.module], *MODULE_CALL, call, *model)


class TrainingLoop:
    """The program of one training run: set-up once, then equal steps, the first with more to do."""

    def __init__(self, shape: Shape, stacks: StackTable) -> None:
        self._sizes = shape.sizes()
        self._stacks = stacks
        layers = [(f"layers.{layer}.", layer, LAYER) for layer in range(shape.n_layers)]
        self._parts: list[tuple[str, int | None, Sequence[Operator]]] = [
            ("", None, FIRST),
            *layers,
            ("", None, LAST),
        ]
        self._parameters = [
            (f"{prefix}{operator.output}.weight", operator.parameter)
            for prefix, _, operators in self._parts
            for operator in operators
            if operator.parameter
        ]

    def set_up(self) -> Iterator[Action]:
        """Move the model to the device."""
        buffers = [("rotary_cos", "rotary"), ("rotary_sin", "rotary")]
        for name, kind in [*buffers, *self._parameters]:
            nested = [torch_frame("_apply", "nn/modules/module.py", 915)] * (
                1 + 2 * name.count(".")
            )
            python = (
                torch_frame("convert", "nn/modules/module.py", 1355),
                torch_frame("_apply", "nn/modules/module.py", 942),
                *nested,
                torch_frame("to", "nn/modules/module.py", 1369),
                project_frame("main", "train.py", 84),
                _SCRIPT[-1],
            )
            yield self._allocate(name, kind, self._stacks.allocated_by("_to_copy", python))

    def step(self, *, is_first: bool) -> Iterator[Action]:
        """Train on one batch; the first step also makes what is made lazily and kept."""
        for name in ("tokens", "targets"):
            stack_id = self._stacks.allocated_by("_to_copy", _train_step(54))
            yield self._allocate(name, "tokens", stack_id)
        yield from self._forward(is_first=is_first)
        yield from self._backward()
        yield from self._clip()
        yield from self._optimize(is_first=is_first)
        for name in ("loss", "tokens", "targets"):
            yield Free(name, self._stacks.dropped_at(_SCRIPT))

    def _allocate(self, tensor: str, kind: str, stack_id: int) -> Allocate:
        return Allocate(tensor, self._sizes[kind], stack_id)

    def _forward(self, *, is_first: bool) -> Iterator[Action]:
        for prefix, layer, operators in self._parts:
            for operator in operators:
                python = _python_frames(operator, layer)
                full = (*_TORCH_CALLERS.get(operator.name, ()), *python)
                if is_first and layer == 0 and operator.output == "query":
                    workspace = self._stacks.workspace_of("linear", full)
                    yield self._allocate("workspace", "workspace", workspace)
                stack_id = self._stacks.allocated_by(operator.name, full)
                yield self._allocate(prefix + operator.output, operator.kind, stack_id)
                for tensor in operator.frees:
                    yield Free(prefix + tensor, self._stacks.dropped_at(python))

    def _backward(self) -> Iterator[Action]:
        """Walk the model backwards; one gradient is passed from node to node."""
        python = (torch_frame("backward", "_tensor.py", 647), *_train_step(58))
        incoming = "gradient"
        yield self._allocate(incoming, "scalar", self._stacks.allocated_by("ones_like", python))
        for prefix, _, operators in reversed(self._parts):
            for operator in reversed(operators):
                node, called = _NODES[operator.name]
                stack_id = self._stacks.allocated_in_backward(node, called)
                outgoing = f"gradient.{prefix}{operator.output}" if operator.gradient else incoming
                if operator.gradient:
                    yield self._allocate(outgoing, operator.gradient, stack_id)
                if operator.parameter:
                    name = f"{prefix}{operator.output}.weight.grad"
                    yield self._allocate(name, operator.parameter, stack_id)
                if operator.is_saved:
                    yield Free(prefix + operator.output, self._stacks.released_in_backward(node))
                if operator.gradient:
                    yield Free(incoming, self._stacks.dropped_in_backward())
                incoming = outgoing
        yield Free(incoming, self._stacks.dropped_in_backward())

    def _clip(self) -> Iterator[Action]:
        """Take the norm of every gradient."""
        python = (
            torch_frame("_get_total_norm", "nn/utils/clip_grad.py", 101),
            torch_frame("_no_grad_wrapper", "nn/utils/clip_grad.py", 36),
            torch_frame("clip_grad_norm_", "nn/utils/clip_grad.py", 218),
            *_train_step(59),
        )
        norms = [f"{name}.norm" for name, _ in self._parameters]
        for norm in norms:
            yield self._allocate(norm, "scalar", self._stacks.allocated_by("_foreach_norm", python))
        for norm in norms:
            yield Free(norm, self._stacks.dropped_at(python[1:]))

    def _optimize(self, *, is_first: bool) -> Iterator[Action]:
        """Update the weights with AdamW and drop the gradients."""
        yield Annotate("Optimizer.step#AdamW.step", "START")
        step = (torch_frame("step", "optim/adam.py", 237), _OPTIMIZER, *_train_step(60))
        if is_first:
            init = (torch_frame("_init_group", "optim/adam.py", 188), *step)
            for name, kind in self._parameters:
                for state in ("exp_avg", "exp_avg_sq"):
                    stack_id = self._stacks.allocated_by("zeros_like", init)
                    yield self._allocate(f"{name}.{state}", kind, stack_id)
        update = (torch_frame("_multi_tensor_adam", "optim/adam.py", 731), *step)
        for name, kind in self._parameters:
            yield self._allocate(
                f"{name}.root", kind, self._stacks.allocated_by("_foreach_sqrt", update)
            )
        for name, _ in self._parameters:
            yield Free(f"{name}.root", self._stacks.dropped_at(update[1:]))
        yield Annotate("Optimizer.step#AdamW.step", "END")
        yield Annotate("Optimizer.zero_grad#AdamW.zero_grad", "START")
        python = (torch_frame("zero_grad", "optim/optimizer.py", 1021), *_train_step(61))
        for name, _ in self._parameters:
            yield Free(f"{name}.grad", self._stacks.dropped_at(python))
        yield Annotate("Optimizer.zero_grad#AdamW.zero_grad", "END")
