"""The roles that a frame on a stack gives to the code that ran, by frame rules and by users."""

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
    ATTRIBUTE = 22
    REPLICA = 23
    SCATTERED = 24
    DEEP_COPY = 25
    NAMED_WEIGHTS = 26
    NAMED_CACHE = 27
    ACCUMULATION = 28
    LOOKUP = 29
    LAYER = 30
    SET_GRAD = 31


# What a rule of a user says of code by giving it a role.
ROLE_MEANINGS: dict[Role, str] = {
    Role.ENGINE: "runs backward",
    Role.RELEASE: "frees what was saved for backward: counts on stacks that free",
    Role.ACCUMULATION: "adds to a gradient: counts on stacks that free",
    Role.OPTIMIZER: "is an optimizer's step",
    Role.ZERO_GRAD: "frees gradients",
    Role.MODULE_CALL: "is forward",
    Role.LOSS: "is a loss, and with it part of forward",
    Role.PLACEMENT: "puts parameters and buffers on the device",
    Role.NAMED_WEIGHTS: "is named after the weights that it makes: counts for what is kept",
    Role.NAMED_CACHE: "is named after the cache that it makes: counts for what is kept, and in inference",
    Role.WORKSPACE: "allocates scratch memory",
    Role.COMMUNICATION: "holds buffers of a collective",
    Role.REPLICA: "copies a model to another device for one forward",
    Role.SCATTERED: "copies a part of a batch to another device",
    Role.COPY: "copies a tensor to the device",
    Role.FACTORY: "makes a tensor from nothing",
    Role.COLLECTED: "puts a tensor together from parts of others",
    Role.RECOMPUTE: "runs a checkpointed forward again",
    Role.REENTERED: "runs backward inside backward, as the reentrant checkpoint does",
    Role.LOOKUP: "looks up rows of a table",
    Role.SET_GRAD: "gives a tensor another gradient: counts on stacks that free",
    Role.LAYER: "computes with the weights of a layer",
    Role.ZEROS: "fills a tensor with zeros",
    Role.CLONE: "copies a tensor on its device",
    Role.DEEP_COPY: "copies a tensor with all that holds it",
    Role.CACHE: "makes a cache of keys and values",
    Role.CACHE_UPDATE: "makes it anew with those of another token: counts in a forward without a backward",
    Role.STATES: "makes the states of an optimizer that is being built",
    Role.ATTRIBUTE: "gives an attribute of a module a new value: counts on stacks that free",
    Role.PINNED_BATCH: "pins a batch: counts on pinned host memory",
    Role.OFFLOADED: "keeps on the host what autograd saves: counts on pinned host memory",
    Role.COMPILED: "code that torch.compile wrote: what it frees in backward need not have been kept for it",
}
