"""The names of the purposes of memory, and of the kinds of evidence."""

from dataclasses import dataclass
from enum import IntEnum

# Stands in every output where a rule's name would, of what no rule has decided.
NO_RULE = "none"


class _Words(IntEnum):
    """Codes of columns, each with a word."""

    @property
    def label(self) -> str:
        """The word used in every output."""
        return self.name.lower()


class Category(_Words):
    """What an allocation was for. The values are indices into columns of ``category``."""

    UNKNOWN = 0
    WEIGHT = 1
    GRADIENT = 2
    OPTIMIZER_STATE = 3
    ACTIVATION = 4
    INPUT = 5
    WORKSPACE = 6
    TEMPORARY = 7
    COMMUNICATION = 8
    KV_CACHE = 9


@dataclass(frozen=True, slots=True)
class Appearance:
    """A category's noun, and its colour in pages."""

    noun: str
    color: str


# In the order in which they are stacked: what lives long lies low. The page of `snapconv view` has the same
# colours (web/src/colors.ts), distinct for every kind of colour vision.
APPEARANCES: dict[Category, Appearance] = {
    Category.WEIGHT: Appearance("weights", "#164884"),
    Category.OPTIMIZER_STATE: Appearance("optimizer state", "#69b8e2"),
    Category.GRADIENT: Appearance("gradients", "#ecad28"),
    Category.KV_CACHE: Appearance("KV cache", "#3a9b6c"),
    Category.INPUT: Appearance("inputs", "#d8df8a"),
    Category.COMMUNICATION: Appearance("communication", "#5a3d28"),
    Category.WORKSPACE: Appearance("workspaces", "#8f62b8"),
    Category.ACTIVATION: Appearance("activations", "#cb5839"),
    Category.TEMPORARY: Appearance("temporary memory", "#edb0c8"),
    Category.UNKNOWN: Appearance("unknown", "#898e95"),
}


class Certainty(_Words):
    """How sure the category of an allocation is: what is likely is right as often as its probability says."""

    UNKNOWN = 0
    LIKELY = 1
    CERTAIN = 2
    RECORDED = 3


class Evidence(_Words):
    """Why an allocation has its category, strongest first; NONE goes with UNKNOWN."""

    NONE = 0
    USER_RULE = 1
    METADATA = 2
    ANNOTATION = 3
    FREE_SITE = 4
    FRAMES = 5
    LIFETIME = 6
    SIZES = 7


# What a category with this evidence follows from, and when it is wrong.
EVIDENCE_WORTH: dict[Evidence, tuple[str, str]] = {
    Evidence.USER_RULE: ("a user rule", "the rule matches more than intended"),
    Evidence.METADATA: (
        "what the recorder wrote into the file",
        "the program freed and reused it without a record",
    ),
    Evidence.ANNOTATION: (
        "the ranges that torch (2.5 and newer) writes around step and zero_grad",
        "another thread allocates meanwhile",
    ),
    Evidence.FREE_SITE: (
        "the stack that freed it, recorded with context='all'",
        "a node of the graph releases a tensor that the program also references",
    ),
    Evidence.FRAMES: ("the stack that allocated it", "the code is called for another purpose than usual"),
    Evidence.LIFETIME: (
        "the phases in which it was allocated and freed",
        "the program keeps memory that it no longer needs, or frees it early",
    ),
    Evidence.SIZES: (
        "how often its size occurs among the others",
        "the model has tensors of equal size with other purposes",
    ),
    Evidence.NONE: ("nothing: the category is unknown", ""),
}
