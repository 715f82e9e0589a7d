"""What torch's optimizers keep for every parameter, as data: each is known by its class or its file."""

from snapconv.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class OptimizerRule:
    """How many tensors of its own an optimizer keeps for every parameter, each as large as it.

    ``name`` is searched in the class that torch writes into its annotations, ``file`` in those of frames.
    ``least_states`` and ``most_states`` differ where that depends on the optimizer's arguments. ``is_built``:
    it makes them when it is built itself, and so before the first gradients.
    """

    name: str
    file: str
    least_states: int
    most_states: int
    reason: str
    is_built: bool = False


# From the sources of torch 2.1 to 2.13. Adam's third state, with amsgrad, is so rare that a third copy is
# more likely one of the weights, unless a line of optimizer_lines.py shows it.
OPTIMIZER_RULES: tuple[OptimizerRule, ...] = (
    OptimizerRule(r"^(N|R)?Adam(W|ax)?$", r"torch/optim/(n|r)?adam(w|ax)?\.py$", 2, 2, "exp_avg, exp_avg_sq"),
    OptimizerRule(r"^Adadelta$", r"torch/optim/adadelta\.py$", 2, 2, "square_avg, acc_delta"),
    OptimizerRule(r"^Rprop$", r"torch/optim/rprop\.py$", 2, 2, "prev, step_size"),
    OptimizerRule(r"^Adagrad$", r"torch/optim/adagrad\.py$", 1, 1, "sum", is_built=True),
    OptimizerRule(r"^SGD$", r"torch/optim/sgd\.py$", 0, 1, "momentum_buffer"),
    OptimizerRule(r"^RMSprop$", r"torch/optim/rmsprop\.py$", 1, 3, "square_avg, momentum_buffer, grad_avg"),
)
