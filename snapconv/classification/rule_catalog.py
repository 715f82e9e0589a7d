"""The texts of rules and evidence: for the documentation, for ``explain``, and to keep slugs unique."""

from dataclasses import dataclass

from snapconv.classification.categories import NO_RULE, Category, Evidence
from snapconv.classification.rule import Rule
from snapconv.classification.rule_order import PIPELINE
from snapconv.torch_knowledge.frame_patterns import FRAME_RULES


@dataclass(frozen=True, slots=True)
class DecisionReason:
    """A reason of the pipeline, with every category and evidence that a rule gives for it."""

    slug: str
    categories: tuple[Category, ...]
    evidence: tuple[Evidence, ...]
    reason: str


def _decision_reasons() -> tuple[DecisionReason, ...]:
    """The reasons in the order in which the pipeline first has them."""
    rules = [rule for rule in PIPELINE if isinstance(rule, Rule)]
    found = [DecisionReason(NO_RULE, (Category.UNKNOWN,), (Evidence.NONE,), "nothing was decided")]
    for reason in dict.fromkeys(rule.reason for rule in rules):
        of_reason = [rule for rule in rules if rule.reason == reason]
        evidence = {rule.evidence for rule in of_reason} | (
            {Evidence.METADATA} if reason.uses_phases else set()
        )
        categories = sorted({rule.category for rule in of_reason})
        found.append(DecisionReason(reason.slug, tuple(categories), tuple(sorted(evidence)), reason.text))
    return tuple(found)


DECISION_REASONS = _decision_reasons()


@dataclass(frozen=True, slots=True)
class EvidenceWorth:
    """What a category with this evidence follows from, and when that is wrong."""

    follows_from: str
    is_wrong_when: str


EVIDENCE_WORTH: dict[Evidence, EvidenceWorth] = {
    Evidence.USER_RULE: EvidenceWorth("a user rule", "the rule matches more than intended"),
    Evidence.METADATA: EvidenceWorth(
        "what the recorder wrote into the file", "the program freed and reused it without a record"
    ),
    Evidence.ANNOTATION: EvidenceWorth(
        "the ranges that torch (2.5 and newer) writes around step and zero_grad",
        "another thread allocates meanwhile",
    ),
    Evidence.FREE_SITE: EvidenceWorth(
        "the stack that freed it, recorded with context='all'",
        "a node of the graph releases a tensor that the program also references",
    ),
    Evidence.FRAMES: EvidenceWorth(
        "the stack that allocated it", "the code is called for another purpose than usual"
    ),
    Evidence.LIFETIME: EvidenceWorth(
        "the phases in which it was allocated and freed",
        "the program keeps memory that it no longer needs, or frees it early",
    ),
    Evidence.SIZES: EvidenceWorth(
        "how often its size occurs among the others",
        "the model has tensors of equal size with other purposes",
    ),
    Evidence.NONE: EvidenceWorth("nothing: the category is unknown", ""),
}

_REASONS: dict[str, tuple[str, str]] = {
    **{reason.slug: (reason.reason, "") for reason in DECISION_REASONS},
    **{rule.slug: (rule.reason, rule.seen) for rule in FRAME_RULES},
}


def reason_of(slug: str) -> tuple[str, str]:
    """The reason of one of our rules, and the releases of torch it was seen in (empty: of any).

    Raises KeyError for a rule that is not ours.
    """
    return _REASONS[slug]
