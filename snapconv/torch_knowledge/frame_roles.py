"""The roles that a frame on a stack gives to the code that ran, by frame rules."""

from enum import IntEnum, unique


@unique
class Role(IntEnum):
    """The kind of code that a stack went through; a stack may have several."""

    ENGINE = 0
    RELEASE = 1
    OPTIMIZER = 2
    ZERO_GRAD = 3
    MODULE_CALL = 4
    LOSS = 5
    PLACEMENT = 6
    WORKSPACE = 7
    COMMUNICATION = 8
    COPY = 9
    FACTORY = 10
    RECOMPUTE = 11
    REENTERED = 12
    ZEROS = 13
    CLONE = 14
    CACHE = 15
    COMPILED = 16
    PINNED_BATCH = 17
    OFFLOADED = 18
    CACHE_UPDATE = 19
    STATES = 20
    COLLECTED = 21
    REPLICA = 22
    SCATTERED = 23
    DEEP_COPY = 24
    NAMED_WEIGHTS = 25
    NAMED_CACHE = 26
    ACCUMULATION = 27
    LAYER = 28
    SET_GRAD = 29
