"""The kinds of findings: one row each, with its sentences and its detector."""

from snapconv.answers.advice.evidence import Kind, Sort
from snapconv.answers.advice.gradients import kept_gradients
from snapconv.answers.advice.replaced import previous_kept

KINDS = (
    Kind(
        slug="previous-kept",
        sort=Sort.FAULT,
        what="{where} keeps its previous {thing} until the next one is made.",
        how=(
            "Delete the name before the next call: `del` it at the end of the loop body.",
            "Or move the loop body into a function, whose names end with each call.",
        ),
        costs="nothing",
        wrong_if="{where} reads the previous one",
        detect=previous_kept,
        is_cheap=True,
    ),
    Kind(
        slug="gradients-kept",
        sort=Sort.FAULT,
        what="Gradients of the last step stay in use through the next forward: {when}.",
        how=(
            "Call optimizer.zero_grad(set_to_none=True) right after optimizer.step().",
            "With model.zero_grad(), the same.",
        ),
        costs="nothing",
        wrong_if="gradients are added up over several steps on purpose",
        detect=kept_gradients,
        is_cheap=True,
    ),
)
