"""The order of the classification: facts first, then the inventory of the job, then what is like others."""

from collections.abc import Iterator

from snapconv.classification import inventory, propagation
from snapconv.classification.categories import NO_RULE
from snapconv.classification.decisions import LIKELY_ONLY, Classification, Decided, Fact, Proposal, Stage
from snapconv.classification.facts import FACTS, HOST_FACTS, LATER, LIKELY
from snapconv.classification.features import Features
from snapconv.classification.recorded import ATTRIBUTES, RECORDED, user_rules
from snapconv.columns import Int64Column
from snapconv.stop_signals import stage
from snapconv.torch_knowledge.frame_patterns import FRAME_RULES

ORDER: tuple[Stage, ...] = (
    user_rules,
    *RECORDED,
    *FACTS,
    *ATTRIBUTES,
    inventory.explain_by_job,
    *LATER,
    propagation.propagate,
    *LIKELY,
)
HOST_ORDER: tuple[Stage, ...] = (user_rules, *HOST_FACTS)

# Every reason by its slug: of facts, of stages, and of frame rules.
REASONS: dict[str, str] = {
    NO_RULE: "nothing was decided",
    LIKELY_ONLY: "it is likely only, and --certain counts that as unknown",
    **{fact.slug: fact.reason for fact in ORDER if isinstance(fact, Fact)},
    **inventory.REASONS,
    **propagation.REASONS,
}
_OF_FRAMES = {rule.slug: (rule.reason, rule.seen) for rule in FRAME_RULES}


def reason_of(slug: str) -> tuple[str, str]:
    """Return one of our reasons, and the releases of torch it was seen in (empty: any), or KeyError."""
    return _OF_FRAMES[slug] if slug in _OF_FRAMES else (REASONS[slug], "")


@stage
def classify(features: Features, order: tuple[Stage, ...] = ORDER) -> Classification:
    """Classify every allocation of one device."""
    decided = Decided(features)
    for _ in _proposals(decided, order):
        pass
    return decided.result()


def _proposals(decided: Decided, order: tuple[Stage, ...]) -> Iterator[Proposal]:
    for one in order:
        for proposal in one(decided):
            decided.add(proposal)
            yield proposal


def opinions(
    features: Features, rows: Int64Column, order: tuple[Stage, ...] = ORDER
) -> Iterator[tuple[int, Proposal]]:
    """Yield what every stage proposes for some allocations: the first about a row is what it is."""
    for proposal in _proposals(Decided(features), order):
        yield from ((row, proposal) for row in rows[proposal.where[rows]].tolist())
