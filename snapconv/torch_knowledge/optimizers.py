"""The states that optimizers keep for every parameter, as rows of a table."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OptimizerRule:
    """The number of tensors that an optimizer keeps for every parameter, each as large as it.

    ``name`` is searched in the class that torch writes into its annotations from 2.5 on. The least
    and the most differ where that depends on the optimizer's arguments. ``is_built``: it makes them
    when it is built itself, and so before the first gradients.
    """

    name: str
    least_states: int
    most_states: int
    reason: str
    is_built: bool = False


# From the sources of torch 2.1 to 2.13. Adam's third state, with amsgrad, is so rare that a third
# copy is more likely one of the weights. These are known by their file too, which has the name of
# the class.
OF_TORCH: tuple[OptimizerRule, ...] = (
    OptimizerRule(r"^(N|R)?Adam(W|ax)?$", 2, 2, "exp_avg, exp_avg_sq"),
    OptimizerRule(r"^Adadelta$", 2, 2, "square_avg, acc_delta"),
    OptimizerRule(r"^Rprop$", 2, 2, "prev, step_size"),
    OptimizerRule(r"^Adagrad$", 1, 1, "sum", is_built=True),
    OptimizerRule(r"^SparseAdam$", 2, 2, "exp_avg, exp_avg_sq"),
    OptimizerRule(r"^SGD$", 0, 1, "momentum_buffer"),
    OptimizerRule(r"^RMSprop$", 1, 3, "square_avg, momentum_buffer, grad_avg"),
)
# From the sources of timm 1.0.31, pytorch_optimizer 4.1, schedulefree 1.4.1, prodigyopt 1.1.2 and
# MONAI 1.6, and from a first step of each: ranges where their options or two libraries differ. What
# keeps factors or vectors besides (Adafactor, CAME, Shampoo, SOAP) is not here.
OF_OTHERS: tuple[OptimizerRule, ...] = (
    OptimizerRule(r"^AdamW?Legacy$|^FusedAdam$", 2, 2, "exp_avg, exp_avg_sq"),
    OptimizerRule(r"^(Fused)?L(amb|AMB)$", 2, 2, "exp_avg, exp_avg_sq"),
    OptimizerRule(
        r"^(AdamP|Yogi|Adopt|ADOPT|La[pP]rop|FAdam|Grams|Kate|AvaGrad|EXAdam|SRMM)$",
        2,
        2,
        "an average of gradients, and one of their squares, of the Hessian or of weights",
    ),
    OptimizerRule(
        r"^(AdaBelief|AdaBound|AdamS|AdamC|StableAdamW)$",
        2,
        3,
        "exp_avg, exp_avg_sq, and with amsgrad the largest of those, or what rounding has lost",
    ),
    OptimizerRule(
        r"^(Ada[hH]essian|Sophia[GH]?)$", 2, 3, "two averages, and the last Hessian"
    ),
    OptimizerRule(
        r"^R?AdamW?ScheduleFree(Closure)?$|^ScheduleFreeR?AdamW?$", 2, 2, "z, exp_avg_sq"
    ),
    OptimizerRule(r"^SGDScheduleFree(Closure)?$|^ScheduleFreeSGD$", 1, 1, "z"),
    OptimizerRule(r"^(Lion|Tiger|(Nv)?Novo[gG]rad)$", 1, 1, "exp_avg"),
    OptimizerRule(r"^(SGDP|SGDW|Lars|LARS|QHM)$", 0, 1, "momentum"),
    OptimizerRule(r"^RMSpropTF$", 1, 3, "square_avg, momentum_buffer, grad_avg"),
    # That of bitsandbytes 0.50 keeps the first two in one tensor of twice the size.
    OptimizerRule(r"^AdEMAMix$", 1, 3, "exp_avg, exp_avg_slow, exp_avg_sq"),
    OptimizerRule(
        r"^DiffGrad$", 3, 4, "exp_avg, exp_avg_sq, previous_grad, max_exp_avg_sq"
    ),
    OptimizerRule(r"^Ranger$", 3, 3, "exp_avg, exp_avg_sq, slow_buffer"),
    OptimizerRule(
        r"^(MADGRAD|MARS|Mars)$", 2, 3, "two sums or averages, and x0 or last_grad"
    ),
    OptimizerRule(r"^Adan$", 4, 4, "exp_avg, exp_avg_sq, exp_avg_diff, neg_pre_grad"),
    # With slice_p, s and p0 have a part of the size.
    OptimizerRule(r"^Prodigy$", 2, 4, "exp_avg, exp_avg_sq, s, and p0 of what is not zero"),
    OptimizerRule(r"^DAdaptAdam$", 3, 3, "s, exp_avg, exp_avg_sq"),
)
