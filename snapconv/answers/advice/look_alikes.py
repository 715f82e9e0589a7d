"""Other explanations of findings, with the same lifetimes, and the signs that tell them apart.

A detector looks for the sign first. Where it shows the other explanation nothing is found; where it
is missing the finding is likely only, and names what else it could be. A kind with a look-alike
that has no sign in any file is never certain. Every fault has a row; what is free, and a trade, may
have one.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LookAlike:
    """Another explanation of the same memory, and its sign in a file, if files have one."""

    slug: str
    what: str
    sign: str = ""


_OUTPUTS = LookAlike(
    "outputs",
    "outputs, hidden states or features that the program keeps",
    "no node of autograd frees them, and no three operations left statistics beside their results",
)
_CACHE = LookAlike(
    "cache",
    "a cache of keys and values",
    "made by a cache's code, or by fewer than five lines",
)
_CASTS = LookAlike(
    "casts", "autocast's cache of cast weights", "cast by autocast, or freed at its exit"
)

_OF_AUTOCAST = (
    LookAlike(
        "graph", "copies that a graph keeps for backward", "in use when a backward begins"
    ),
    LookAlike("half-model", "a model in half precision", "not freed at autocast's exit"),
)

LOOK_ALIKES: Mapping[str, tuple[LookAlike, ...]] = {
    "weights-copied": (
        LookAlike("average", "an average of the weights"),
        LookAlike("reference", "a reference model or a target network"),
        LookAlike(
            "early-average",
            "an average that begins with the training",
            "made before the first step",
        ),
        LookAlike(
            "masters",
            "weights in full precision for the optimizer",
            "not as large as the weights",
        ),
        LookAlike(
            "states",
            "states of the optimizer from a checkpoint",
            "two for every weight, as Adam has",
        ),
        _CASTS,
    ),
    "batches-early": (
        LookAlike("data", "a data set that stays on the GPU on purpose"),
        LookAlike("micro-batches", "micro-batches of one step, copied together on purpose"),
        LookAlike(
            "queue", "a queue of batches that are fetched ahead", "no more than three"
        ),
        LookAlike(
            "views", "images or crops that one step reads", "all are freed within two steps"
        ),
    ),
    "previous-kept": (
        LookAlike(
            "state",
            "a state that the next call reads",
            "the first call had a tensor of its size to read",
        ),
        LookAlike(
            "longer",
            "a cache that each call makes longer",
            "its size is not the same again",
        ),
        LookAlike(
            "later",
            "a graph whose backward comes after the trace",
            "none of it is freed in the trace",
        ),
        LookAlike(
            "ahead",
            "a batch that is fetched while the one before is in use",
            "another line frees it",
        ),
        LookAlike(
            "model",
            "a model from before the trace, now replaced",
            "made anew outside forward",
        ),
        LookAlike(
            "entry",
            "the oldest entry of a cache",
            "as many others from before the trace stay in use",
        ),
        LookAlike(
            "collected",
            "a graph in reference cycles",
            "the collector is on the stack that frees it",
        ),
        _OUTPUTS,
        _CASTS,
    ),
    "gradients-kept": (
        LookAlike(
            "accumulation",
            "gradients that are added up over several steps",
            "they stay through the next backward",
        ),
        LookAlike(
            "later-step",
            "gradients of an optimizer that steps later",
            "optimizers step on several lines, or torch noted no step",
        ),
    ),
    "gradient-views": (
        LookAlike("shared", "gradients in one buffer", "together they fill it"),
        LookAlike("kept", "gradients that the program keeps itself, as retain_grad() does"),
    ),
    "open-graph": (
        _OUTPUTS,
        LookAlike("later", "activations whose backward comes after the trace"),
        _CACHE,
        _CASTS,
    ),
    "unused-graph": (
        _OUTPUTS,
        LookAlike(
            "later",
            "activations whose backward comes after the trace",
            "none of it is freed in the trace",
        ),
        _CACHE,
        _CASTS,
        LookAlike(
            "offloaded",
            "activations on their way to the CPU",
            "freed within the model's call",
        ),
    ),
    "graphs-kept": (
        _OUTPUTS,
        LookAlike(
            "later",
            "activations whose backward comes after the trace",
            "none of it is freed in the trace",
        ),
        LookAlike(
            "parts",
            "parts of a sequence, which one backward goes through",
            "the engine frees them",
        ),
        _CACHE,
        _CASTS,
    ),
    "garbage": (
        LookAlike(
            "dropped",
            "a list that the program clears at any of several lines",
            "no frame of the collector",
        ),
        LookAlike(
            "cleared", "a list or a cache that is cleared", "each time at the same line"
        ),
        LookAlike(
            "window",
            "a graph of several steps that one backward goes through",
            "the engine frees it",
        ),
    ),
    "growing": (
        LookAlike("cycles", "reference cycles, which gc.collect() frees"),
        LookAlike(
            "limited", "a cache or replay buffer with a limit that is not reached yet"
        ),
        LookAlike("results", "results that are collected on purpose"),
        LookAlike(
            "text", "keys and values of one text", "it begins anew with the next text"
        ),
        LookAlike(
            "warm-up",
            "memory that is made once, on first use",
            "later iterations add nothing",
        ),
    ),
    "autocast-cache": _OF_AUTOCAST,
    "autocast-cache-in-use": _OF_AUTOCAST,
    "late-frees": (
        LookAlike("captured", "frees that a captured graph delays", "in its private pool"),
    ),
    "idle-cache": (
        LookAlike(
            "again",
            "a cache that the program needs again",
            "its stream requests memory again",
        ),
        LookAlike("private", "memory of a captured graph", "in its private pool"),
    ),
    "many-streams": (
        LookAlike("overlap", "calls that have to overlap on the GPU"),
        LookAlike(
            "in-turn", "streams that the program made once", "they come back in turn"
        ),
    ),
    "buckets": (
        LookAlike(
            "flattened",
            "a copy of the gradients that the program made",
            "not made by the code of DDP",
        ),
    ),
    "unsharded": (
        LookAlike(
            "summoned",
            "weights that the program gathers itself",
            "no backward finds them in use",
        ),
    ),
    "logits": (LookAlike("same-size", "other tensors that have the size of the logits"),),
    "attention": (
        LookAlike(
            "classes",
            "a softmax over classes or experts",
            "nothing beside it has its size in forward",
        ),
        LookAlike(
            "read",
            "attention weights that the program reads",
            "in use when a backward begins, or with a gradient of their own",
        ),
    ),
    "mask-copies": (LookAlike("own", "a mask of its own in each call"),),
    "masks": (
        LookAlike("results", "results of attention", "as large as another of its results"),
        LookAlike("needed", "masks that cannot be merged into one"),
    ),
    "adapter-inputs": (
        LookAlike("sixteen", "copies in 16 bits, for adapters that have them already"),
    ),
    "foreach": (
        LookAlike("state-update", "new states of the optimizer", "kept after its step"),
    ),
    "checkpointing": (LookAlike("shared", "activations that later modules read too"),),
    "last-segment": (LookAlike("shared", "activations that later modules read too"),),
    "offloading": (LookAlike("in-use", "activations that a name keeps on the GPU"),),
    "states": (LookAlike("short", "states in 16 bits", "recorded with their types"),),
    "batch": (LookAlike("fixed", "memory that does not grow with the batch"),),
}
