"""The names of the purposes of memory, and of the kinds of evidence."""

from enum import IntEnum

# Stands in every output where a rule's name would, of what no rule has decided.
NO_RULE = "none"


class Category(IntEnum):
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

    @property
    def label(self) -> str:
        """The word used in every output."""
        return self.name.lower()


class Evidence(IntEnum):
    """Why an allocation has its category, strongest first; NONE goes with UNKNOWN."""

    NONE = 0
    USER_RULE = 1
    METADATA = 2
    ANNOTATION = 3
    FREE_SITE = 4
    FRAMES = 5
    LIFETIME = 6
    SIZES = 7

    @property
    def label(self) -> str:
        """The word used in every output."""
        return self.name.lower()
