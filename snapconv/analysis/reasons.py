"""The rules that are no frame rules, as data: what each says, and of what it makes an allocation.

classify.py, persistent.py, inference.py and held.py decide by them; a frame rule's own words are in rules.py.
"""

from dataclasses import dataclass

from snapconv.analysis.categories import Category, Evidence
from snapconv.analysis.rules import FRAME_RULES

_W, _G, _S, _A = Category.WEIGHT, Category.GRADIENT, Category.OPTIMIZER_STATE, Category.ACTIVATION
_NOTED = (Evidence.METADATA,)
# Rules that ask for phases conclude from the recorder's marks where there are any.
_STEP = (Evidence.ANNOTATION, Evidence.FRAMES, Evidence.METADATA)
_ZERO_GRAD = (Evidence.ANNOTATION, Evidence.FREE_SITE)
_LIFE, _SIZES = (Evidence.LIFETIME, Evidence.METADATA), (Evidence.SIZES,)


@dataclass(frozen=True, slots=True)
class DecisionRule:
    """One rule of the decisions; ``slug`` stands in every output as the reason of a decision."""

    slug: str
    categories: tuple[Category, ...]
    evidence: tuple[Evidence, ...]
    reason: str


DECISION_RULES: tuple[DecisionRule, ...] = (
    DecisionRule("none", (Category.UNKNOWN,), (Evidence.NONE,), "nothing was decided"),
    DecisionRule("noted-as-parameter", (_W,), _NOTED, "a parameter of the model lay there"),
    DecisionRule("noted-as-buffer", (_W,), _NOTED, "a buffer of the model lay there"),
    DecisionRule("noted-as-gradient", (_G,), _NOTED, "the gradient of a parameter lay there"),
    DecisionRule("noted-as-optimizer-state", (_S,), _NOTED, "a state of an optimizer lay there"),
    DecisionRule(
        "noted-as-input", (Category.INPUT,), _NOTED, "the model was called with it, and no module made it"
    ),
    DecisionRule("noted-as-saved", (_A,), _NOTED, "autograd saved it for backward"),
    DecisionRule(
        "cublas-workspace-size",
        (Category.WORKSPACE,),
        _SIZES,
        "as large as cuBLAS's workspace, kept, and rare; only where no C++ frame names it",
    ),
    DecisionRule("dropped-in-zero-grad", (_G,), _ZERO_GRAD, "freed inside zero_grad"),
    DecisionRule("made-in-step-and-kept", (_S,), _STEP, "made in a step, outlives it"),
    DecisionRule("made-in-step-and-freed", (Category.TEMPORARY,), _STEP, "made in a step, freed in it"),
    DecisionRule(
        "replaced-in-step",
        (_S,),
        _LIFE,
        "older than the trace, freed in a step, as large as a state made in one",
    ),
    DecisionRule(
        "freed-in-step",
        (Category.TEMPORARY,),
        (Evidence.LIFETIME, Evidence.METADATA),
        "older than the trace, which begins in the step that frees it",
    ),
    DecisionRule(
        "freed-while-placing", (Category.TEMPORARY,), _LIFE, "made while placing weights, gone before forward"
    ),
    DecisionRule(
        "held-by-a-backward-that-failed",
        (Category.TEMPORARY,),
        (Evidence.LIFETIME, Evidence.METADATA),
        "made by the engine, as large as no weight, in a backward that ran out of memory at the trace's end",
    ),
    DecisionRule(
        "freed-within-backward",
        (Category.TEMPORARY,),
        _LIFE,
        "made by the engine, freed in the same run of backward or before the step that follows it",
    ),
    DecisionRule(
        "kept-for-another-backward",
        (_A,),
        (Evidence.FREE_SITE,),
        "made by the engine and let go of by the engine in a later backward",
    ),
    DecisionRule(
        "held-for-another-backward",
        (_A,),
        _LIFE,
        "made by the engine in a backward of which a later one lets go, and held by the program",
    ),
    DecisionRule("kept-after-backward", (_G,), _LIFE, "made by the engine, kept, as large as a weight"),
    DecisionRule(
        "made-outside-modules-used-in-forward",
        (Category.INPUT,),
        (Evidence.FRAMES, *_LIFE),
        "copied or created outside of modules and live in forward",
    ),
    DecisionRule(
        "freed-by-backward",
        (_A,),
        (Evidence.FREE_SITE, Evidence.METADATA),
        "made in forward, or just before backward outside of modules; freed by the engine",
    ),
    DecisionRule("kept-into-backward", (_A,), _LIFE, "made in forward, still live when backward begins"),
    DecisionRule(
        "made-in-forward-and-live-at-dump",
        (_A,),
        _LIFE,
        "made in forward, never freed, and no backward follows",
    ),
    DecisionRule(
        "held-while-its-line-ran-again",
        (_A,),
        _LIFE,
        "made in forward without a backward, and still there when its line had run twice more and "
        "something had been made outside of modules",
    ),
    DecisionRule(
        "freed-before-backward", (Category.TEMPORARY,), _LIFE, "made in forward, freed before backward"
    ),
    DecisionRule(
        "freed-soon-outside-modules",
        (Category.TEMPORARY,),
        _LIFE,
        "made outside of modules, freed before the next forward or backward",
    ),
    DecisionRule(
        "beside-gradients-and-states",
        (_W,),
        _SIZES,
        "of a size that gradients have, and more than the states that this optimizer keeps for them",
    ),
    DecisionRule(
        "states-of-the-optimizer",
        (_S,),
        _SIZES,
        "as many of a size as this optimizer keeps for the parameters that have gradients",
    ),
    DecisionRule("as-many-as-gradients", (_W,), _SIZES, "as many old blocks of a size as gradients"),
    DecisionRule(
        "whole-copies-beside-gradients",
        (_S,),
        _SIZES,
        "the further whole copies of a size, beside weights and gradients",
    ),
    DecisionRule("as-many-as-optimizer-states", (_W,), _SIZES, "as many old blocks of a size as states"),
    DecisionRule(
        "whole-copies-beside-optimizer-states",
        (_G,),
        _SIZES,
        "the further whole copy of a size, beside weights and states",
    ),
    DecisionRule(
        "4-copies-of-every-size",
        (_W, _S, _G),
        _SIZES,
        "every size occurs in fours: weight, two states, gradient",
    ),
    DecisionRule(
        "3-copies-of-every-size",
        (_W, _S, _G),
        _SIZES,
        "every size occurs in threes: a weight, a state, and what the optimizer or backward says",
    ),
    DecisionRule(
        "2-copies-of-every-size",
        (_W, _S, _G),
        _SIZES,
        "every size occurs twice: a weight, and one state or a gradient that backward adds to",
    ),
    DecisionRule(
        "stays-without-gradient",
        (_W,),
        _SIZES,
        "as large as no gradient, although the trace has all of a step, and such sizes repeat: not trained",
    ),
    DecisionRule(
        "copies-in-full-precision",
        (_S,),
        _SIZES,
        "every size of a gradient occurs twice as large, as often or a whole number of times as often",
    ),
    DecisionRule(
        "made-for-every-parameter",
        (_S, _W),
        _SIZES,
        "kept, and made outside of modules by a line that makes one for every parameter: zeros, and what is "
        "in full precision beside them, an optimizer's; copies made before backward, a second model's",
    ),
    DecisionRule(
        "sizes-in-turn",
        (_W,),
        _SIZES,
        "old, where nothing is trained, among sizes that take turns in memory, as those of layers do",
    ),
    DecisionRule(
        "one-for-every-layer",
        (_A,),
        _SIZES,
        "kept outside of modules where nothing is trained, once or twice for every layer: a cache",
    ),
    DecisionRule(
        "kept-and-has-a-gradient",
        (_W,),
        _SIZES,
        "made outside of modules before the first backward, kept, and there is a gradient without a weight",
    ),
    DecisionRule(
        "made-after-backward-and-kept",
        (_S,),
        _LIFE,
        "made outside of modules after backward by a line that makes several as large as weights, and kept",
    ),
    DecisionRule(
        "replaced-on-the-same-line",
        tuple(which for which in Category if which != Category.UNKNOWN),
        (Evidence.FREE_SITE,),
        "older than the trace, let go of by a line that had made another of its size, which is this",
    ),
    DecisionRule(
        "freed-where-its-like-are",
        tuple(which for which in Category if which != Category.UNKNOWN),
        (Evidence.FREE_SITE,),
        "older than the trace, let go of by a line that lets go of nothing but this",
    ),
    DecisionRule(
        "replaced-by-one-of-its-size",
        (Category.INPUT, _A),
        _SIZES,
        "older than the trace, let go of by the program, which holds another of its size instead",
    ),
)


# The rules that ask in which phase something was made or freed: recorded phases are better evidence.
RULES_BY_PHASE = frozenset(
    rule.slug for rule in DECISION_RULES if len(rule.evidence) > 1 and Evidence.METADATA in rule.evidence
)


@dataclass(frozen=True, slots=True)
class EvidenceWorth:
    """What a category with this evidence follows from, and when that is wrong."""

    follows_from: str
    is_wrong_when: str


EVIDENCE_WORTH: dict[Evidence, EvidenceWorth] = {
    Evidence.USER_RULE: EvidenceWorth("a rule of your own", "the rule matches more than its author meant"),
    Evidence.METADATA: EvidenceWorth(
        "what the recorder noted in the file", "the program freed and reused it unseen"
    ),
    Evidence.ANNOTATION: EvidenceWorth(
        "the ranges that torch (2.5 and newer) writes around step and zero_grad",
        "another thread allocates meanwhile",
    ),
    Evidence.FREE_SITE: EvidenceWorth(
        "the stack that freed it, recorded with context='all'",
        "a node of the graph lets go of something that the program holds as well",
    ),
    Evidence.FRAMES: EvidenceWorth(
        "the stack that allocated it", "the code is called for another purpose than usual"
    ),
    Evidence.LIFETIME: EvidenceWorth(
        "in which phase it was made and freed",
        "the program itself keeps what it no longer needs, or drops it early",
    ),
    Evidence.SIZES: EvidenceWorth(
        "how often its size occurs among the others",
        "the model has tensors of equal size with other purposes",
    ),
    Evidence.NONE: EvidenceWorth("nothing: goes with unknown", ""),
}

_SAID: dict[str, tuple[str, str]] = {
    **{rule.slug: (rule.reason, "") for rule in DECISION_RULES},
    **{rule.slug: (rule.reason, rule.seen) for rule in FRAME_RULES},
}


def said_of(slug: str) -> tuple[str, str]:
    """The reason of one of our rules, and the releases of torch it was seen in (empty: of any).

    Raises KeyError for a rule that is not ours.
    """
    return _SAID[slug]
