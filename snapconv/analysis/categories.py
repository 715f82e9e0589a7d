"""The words for what memory was for, and for how we know it."""

from enum import IntEnum


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

    @property
    def label(self) -> str:
        """The word used in every output."""
        return self.name.lower()


class Evidence(IntEnum):
    """Why an allocation has its category, strongest first; NONE goes with UNKNOWN."""

    NONE = 0
    METADATA = 1
    ANNOTATION = 2
    FREE_SITE = 3
    FRAMES = 4
    LIFETIME = 5
    SIZES = 6

    @property
    def label(self) -> str:
        """The word used in every output."""
        return self.name.lower()
