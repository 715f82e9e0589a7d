"""The purposes of memory and what holds of each, and the kinds of evidence."""

from dataclasses import dataclass
from enum import Flag, IntEnum, auto
from functools import cache

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
    GATHERED_WEIGHT = 10
    UNREDUCED_GRADIENT = 11


class Trait(Flag):
    """What may hold of a category: code that depends on the category asks for a trait."""

    # It grows with the batch, as an engineer expects.
    GROWS = auto()
    # Forward and backward make it.
    COMPUTED = auto()
    # Autograd keeps it for backward; batches too, where no name keeps them.
    SAVED = auto()
    # Skyline has no cache of keys and values: it counts what modules made and keep.
    SKYLINE_ACTIVATION = auto()
    # It is made once for a parameter, a kernel or a shape: on its first use, maybe in a later
    # iteration.
    MADE_ONCE = auto()
    # It stays once it is made, however long that takes.
    USUALLY_KEPT = auto()
    # That a line reads it says nothing of that line.
    READ_BY_EVERYTHING = auto()
    # It is never a copy of the weights, whatever made it.
    NO_SPARE_WEIGHT = auto()
    # A program does the last two by itself, again and again. Of other categories neither was seen.
    # A line makes the new value, then frees the one before.
    REPLACED = auto()
    # Lines that free it free nothing else.
    FREED_BY_LINE = auto()
    # Only a recorder sees it: reports of other files have no row for it.
    ONLY_RECORDED = auto()


@dataclass(frozen=True, slots=True)
class About:
    """A category's noun, its colour in pages, its traits and its meaning in the documentation.

    ``returned`` is a noun for what a function returns of it.
    """

    noun: str
    color: str
    traits: Trait
    meaning: str
    returned: str = "output"


# In the order in which they are stacked: what lives long lies low. The page of `snapconv view` has
# the same colours (web/src/colors.ts), distinct for every kind of colour vision.
ABOUT: dict[Category, About] = {
    Category.WEIGHT: About(
        "weights",
        "#164884",
        Trait.MADE_ONCE | Trait.USUALLY_KEPT | Trait.READ_BY_EVERYTHING,
        "put on the device while a model was built, loaded or moved, and still there when forward "
        "begins. **Buffers too**: statistics of a batch norm, masks, tables of positions; and "
        "**copies** that autocast casts and keeps, in its cache or for backward",
    ),
    Category.OPTIMIZER_STATE: About(
        "optimizer state",
        "#69b8e2",
        Trait.MADE_ONCE
        | Trait.USUALLY_KEPT
        | Trait.READ_BY_EVERYTHING
        | Trait.NO_SPARE_WEIGHT
        | Trait.REPLACED,
        "made in an optimizer step and kept after it",
    ),
    Category.GRADIENT: About(
        "gradients",
        "#ecad28",
        Trait.USUALLY_KEPT
        | Trait.READ_BY_EVERYTHING
        | Trait.NO_SPARE_WEIGHT
        | Trait.FREED_BY_LINE,
        "made by backward and kept after it, or freed by `zero_grad`",
    ),
    Category.KV_CACHE: About(
        "KV cache",
        "#3a9b6c",
        Trait.GROWS | Trait.COMPUTED | Trait.SKYLINE_ACTIVATION | Trait.NO_SPARE_WEIGHT,
        "keys and values of earlier tokens, which inference keeps for the next ones: "
        "those of vLLM, SGLang and transformers, and memory kept in the same way, once "
        "or twice for every layer. In Skyline's tables it is an activation",
        returned="cache of keys and values",
    ),
    Category.INPUT: About(
        "inputs",
        "#d8df8a",
        Trait.GROWS | Trait.SAVED | Trait.REPLACED | Trait.FREED_BY_LINE,
        "made outside of modules and used in forward: batches, and data kept on the "
        "device, such as a replay buffer",
        returned="batch",
    ),
    Category.GATHERED_WEIGHT: About(
        "gathered weights",
        "#500af0",
        Trait.COMPUTED
        | Trait.READ_BY_EVERYTHING
        | Trait.NO_SPARE_WEIGHT
        | Trait.ONLY_RECORDED,
        "in a capture: whole weights that FSDP or ZeRO gathers from all shards, until it frees "
        "them again",
    ),
    Category.UNREDUCED_GRADIENT: About(
        "unreduced gradients",
        "#c3f5c3",
        Trait.COMPUTED
        | Trait.READ_BY_EVERYTHING
        | Trait.NO_SPARE_WEIGHT
        | Trait.ONLY_RECORDED,
        "in a capture: gradients of whole weights before they are reduced to shards, and the "
        "buckets of DistributedDataParallel, unless gradients are views of them",
    ),
    Category.COMMUNICATION: About(
        "communication buffers",
        "#5a3d28",
        Trait.COMPUTED,
        "inputs, outputs and staging of collectives",
    ),
    Category.WORKSPACE: About(
        "workspaces",
        "#8f62b8",
        Trait.COMPUTED | Trait.MADE_ONCE | Trait.USUALLY_KEPT,
        "scratch memory of cuBLAS and cuDNN",
    ),
    Category.ACTIVATION: About(
        "activations",
        "#cb5839",
        Trait.GROWS
        | Trait.COMPUTED
        | Trait.SAVED
        | Trait.SKYLINE_ACTIVATION
        | Trait.REPLACED
        | Trait.FREED_BY_LINE,
        "made in forward and kept for backward. If the trace has no backward: also what forward "
        "made and nothing freed, and what the graph holds after the modules have returned. Saved "
        "by autograd but freed within the module's own forward, as in `cdist(a, b).argmin()`: "
        "`temporary`, because no backward can follow",
    ),
    Category.TEMPORARY: About(
        "temporary memory",
        "#edb0c8",
        Trait.GROWS | Trait.COMPUTED | Trait.FREED_BY_LINE,
        "made and freed within one phase; without a backward, also made in forward and freed later",
    ),
    Category.UNKNOWN: About(
        "unknown", "#898e95", Trait.COMPUTED, "there is no evidence for any of these"
    ),
}


@cache
def categories_with(trait: Trait) -> tuple[Category, ...]:
    """Return the categories that have a trait, in the order of their values."""
    return tuple(category for category in Category if trait in ABOUT[category].traits)


class Certainty(_Words):
    """How sure a category is: what is likely is right as often as its probability says."""

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
    Evidence.FRAMES: (
        "the stack that allocated it",
        "the code is called for another purpose than usual",
    ),
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
