"""The order of the classification: every rule, in order of precedence.

The first rule that marks an allocation decides. An allocation that no rule marks stays ``unknown``.
"""

from dataclasses import dataclass

from snapconv.classification.categories import Category, Evidence
from snapconv.classification.features import Features
from snapconv.classification.rule import Classification, Decided, PipelineRule
from snapconv.classification.rules.by_copies import BY_COPIES
from snapconv.classification.rules.by_dimensions import BY_DIMENSIONS
from snapconv.classification.rules.by_frames import BY_FRAMES, OF_HOST
from snapconv.classification.rules.by_free import BY_FREE
from snapconv.classification.rules.by_line import BY_LINE
from snapconv.classification.rules.by_names import BY_NAMES
from snapconv.classification.rules.by_optimizer import BY_OPTIMIZER, BY_PLACEMENT
from snapconv.classification.rules.by_record import RECORDED, USER_RULES
from snapconv.classification.rules.for_every_parameter import FOR_PARAMETERS
from snapconv.classification.rules.in_backward import FOR_THE_STEP, IN_BACKWARD
from snapconv.classification.rules.in_forward import BEFORE_THE_TRACE, IN_FORWARD
from snapconv.classification.rules.of_batches import OF_BATCHES
from snapconv.classification.rules.of_factors import OF_FACTORS
from snapconv.classification.rules.of_inference import OF_CACHES, OF_LAYERS
from snapconv.classification.rules.of_new_values import IN_PLACE_OF_WEIGHTS, OF_NEW_VALUES, OF_REPLACEMENTS
from snapconv.classification.rules.of_program import OF_PROGRAM
from snapconv.classification.rules.of_recording import LAST, OF_RECORDING
from snapconv.classification.rules.of_samples import OF_SAMPLES
from snapconv.classification.rules.of_state_dicts import OF_STATE_DICTS
from snapconv.classification.rules.of_unknown import OF_UNKNOWN
from snapconv.classification.rules.of_updates import OF_UPDATES
from snapconv.classification.rules.of_widths import OF_WIDTHS
from snapconv.columns import Int64Column
from snapconv.stop_signals import stage

PIPELINE: tuple[PipelineRule, ...] = (
    *USER_RULES,
    *RECORDED,
    *BY_FRAMES,
    *OF_UPDATES,
    *BY_FREE,
    *BY_OPTIMIZER,
    *BY_PLACEMENT,
    *BY_NAMES,
    *OF_FACTORS,
    *IN_BACKWARD,
    *IN_PLACE_OF_WEIGHTS,
    *OF_STATE_DICTS,
    *IN_FORWARD,
    *BEFORE_THE_TRACE,
    *BY_DIMENSIONS,
    *BY_COPIES,
    *OF_LAYERS,
    *OF_WIDTHS,
    *OF_CACHES,
    *OF_RECORDING,
    *FOR_PARAMETERS,
    *OF_SAMPLES,
    *FOR_THE_STEP,
    *OF_NEW_VALUES,
    *OF_PROGRAM,
    *BY_LINE,
    *LAST,
    *OF_BATCHES,
    *OF_REPLACEMENTS,
    *OF_UNKNOWN,
)
# Pinned host memory may be pinned on any thread at any time: lifetimes and phases are no evidence there.
HOST_PIPELINE: tuple[PipelineRule, ...] = (*USER_RULES, *OF_HOST)


def pipeline_of(*, is_host: bool) -> tuple[PipelineRule, ...]:
    """The rules for a device, or for pinned host memory."""
    return HOST_PIPELINE if is_host else PIPELINE


@dataclass(frozen=True, slots=True)
class Opinion:
    """What one rule has evidence for about one allocation, whether it decided or came too late."""

    row: int
    category: Category
    evidence: Evidence
    reason: str


@stage
def classify(features: Features, pipeline: tuple[PipelineRule, ...] = PIPELINE) -> Classification:
    """Classify every allocation of one device."""
    decided = Decided(len(features.alloc))
    for rule in pipeline:
        for proposal in rule.proposals(features, decided):
            decided.add(proposal)
    return decided.result()


def opinions(
    features: Features, rows: Int64Column, pipeline: tuple[PipelineRule, ...] = PIPELINE
) -> tuple[Opinion, ...]:
    """What every rule has evidence for about some allocations, in the order of the pipeline.

    The first opinion on a row is the one that ``classify`` follows.
    """
    decided, found = Decided(len(features.alloc)), []
    for rule in pipeline:
        for proposal in rule.proposals(features, decided):
            decided.add(proposal)
            for row in rows[proposal.where[rows]].tolist():
                found.append(Opinion(row, proposal.category, proposal.evidence, proposal.slug))
    return tuple(found)
