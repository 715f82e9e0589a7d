"""How likely a truth value is True that was not computed, by the operation that returns it."""

from math import isinf, isnan
from typing import Any

# How likely a truth value is that was not computed, of finite numbers that all differ.
_CERTAIN = {
    "isnan": 0.0,
    "isinf": 0.0,
    "isposinf": 0.0,
    "isneginf": 0.0,
    "isfinite": 1.0,
    "isreal": 1.0,
}
_AS_BEFORE = {
    "_to_copy",
    "clone",
    "index",
    "index_select",
    "gather",
    "repeat",
    "cat",
    "flip",
    "bitwise_and",
}
_COMBINED = {
    "logical_and": min,
    "bitwise_and": min,
    "mul": min,
    "logical_or": max,
    "bitwise_or": max,
}
# Truth values that are neither all False nor all True: some are True, and not all.
_SOME = {"any": 0.9, "all": 0.1}


def likelihood_of(call: Any) -> float:
    """Estimate how likely the truth value is True that an operation did not compute."""
    name = call.operation.name
    args = call.args
    inputs = [
        0.5 if placement is None else placement.likelihood for placement in call.inputs
    ]
    first = inputs[0] if inputs else 0.5
    if name in ("eq", "ne"):
        is_equal = _likelihood_of_equality(*args)
        return is_equal if name == "eq" else 1 - is_equal
    if name in _SOME:
        return first if first in (0, 1) or args[0].numel() == 1 else _SOME[name]
    if name in ("logical_not", "bitwise_not"):
        return 1 - first
    if len(inputs) == len(args) and name in _COMBINED:
        return _COMBINED[name](inputs)
    return first if name in _AS_BEFORE else _CERTAIN.get(name, 0.5)


def _likelihood_of_equality(tensor: Any, operand: Any) -> float:
    """Estimate how likely a value equals another: itself always, infinity and one number never."""
    if tensor is operand:
        return 1.0
    is_special = isinstance(operand, float) and (isinf(operand) or isnan(operand))
    return 0.0 if is_special or tensor.numel() == 1 else 0.5
