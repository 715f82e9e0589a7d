"""A block that autograd keeps for backward -> the layers that keep it, and what would free it.

A recorder writes which layer was running as autograd saved a tensor; a table has what that layer's
operation keeps. Of code that is no layer of torch.nn nothing is known.
"""

from typing import Any

from snapconv.analysis import DeviceAnalysis
from snapconv.classification.categories import Category
from snapconv.columns import rows_of
from snapconv.hypotheses.batch_growth import WeightShapes
from snapconv.torch_knowledge.saved_tensors import KeptByLayer, kept_by_layers

# Whether freezing the weights of a layer frees a block.
FREES, DOES_NOT_FREE = "frees", "does not free"


def kept_for_backward(analysis: DeviceAnalysis, row: int) -> list[dict[str, Any]]:
    """Return the layers that keep an activation for backward, in the order in which they saved it.

    ``freezing`` is FREES where freezing all these layers frees it, else DOES_NOT_FREE, and None
    where the layer has no weights, or where that is not known. Empty where no recorder saw who
    saved it, or where the program itself keeps it.
    """
    recorded = analysis.recorded
    is_activation = analysis.classification.category[row] == Category.ACTIVATION
    if (
        recorded is None
        or not is_activation
        or not analysis.features.is_freed_by_engine[row]
    ):
        return []
    saved = recorded.metadata.saved
    weight_shapes = WeightShapes(recorded)
    keepers: dict[tuple[str, str], dict[str, Any]] = {}
    for record in rows_of(recorded.saved == row).tolist():
        module, layer = saved.modules[record], saved.layers[record]
        rule = kept_by_layers().get(layer)
        # A weight that the layer has computed is kept for the gradient of its input.
        is_weight = weight_shapes.has(module, saved.shapes[record])
        needs_gradient = not saved.without_history[record]
        keepers[module, layer] = {
            "module": module or None,
            "layer": layer or None,
            "operation": None if rule is None else rule.operation,
            "freezing": None
            if is_weight
            else _freezing(rule, needs_gradient=needs_gradient),
        }
    rows = list(keepers.values())
    _limit_freezing(rows)
    return rows


def _freezing(rule: KeptByLayer | None, *, needs_gradient: bool) -> str | None:
    if rule is None or rule.freed_by_freezing is None:
        return None
    if rule.freed_by_freezing:
        return FREES
    # A frozen layer keeps nothing of an input that needs no gradient.
    return DOES_NOT_FREE if needs_gradient else None


def _limit_freezing(rows: list[dict[str, Any]]) -> None:
    """Let no layer free what another keeps, whatever is frozen."""
    if all(row["freezing"] == FREES for row in rows):
        return
    is_kept = any(row["freezing"] == DOES_NOT_FREE or _has_no_weights(row) for row in rows)
    for row in rows:
        if row["freezing"] == FREES:
            row["freezing"] = DOES_NOT_FREE if is_kept else None


def _has_no_weights(row: dict[str, Any]) -> bool:
    rule = kept_by_layers().get(row["layer"])
    return rule is not None and rule.freed_by_freezing is None
