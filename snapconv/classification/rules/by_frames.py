"""Memory whose stack shows its purpose; and cuBLAS's workspace by its size, where no stack names it."""

import numpy as np

from snapconv.classification.categories import Category, Evidence
from snapconv.classification.features import Features
from snapconv.classification.rule import Decided, PipelineRule, Reason, role_rule, rule
from snapconv.columns import BoolColumn, Int64Column, is_among
from snapconv.phases.trace_phases import Phase
from snapconv.torch_knowledge.frame_patterns import CUBLAS_WORKSPACE_BYTES
from snapconv.torch_knowledge.frame_roles import Role

WORKSPACE_SIZE = Reason(
    "cublas-workspace-size",
    "as large as cuBLAS's workspace, kept, and rare; only where no C++ frame names it",
)

# One for every handle and stream: of so few there may be several.
_MOST_TRACED = 4
_MOST_PREEXISTING = 2


def _everywhere(features: Features, _: Decided) -> BoolColumn:
    return np.ones(len(features.alloc), np.bool_)


@role_rule(Role.WORKSPACE, Category.WORKSPACE)
def workspace(features: Features, decided: Decided) -> BoolColumn:
    """A library's scratch memory."""
    return _everywhere(features, decided)


@role_rule(Role.COMMUNICATION, Category.COMMUNICATION)
def communication(features: Features, decided: Decided) -> BoolColumn:
    """Buffers of collectives.

    No program of the benchmark has any, nor a real snapshot that was at hand: jobs of several processes do.
    """
    return _everywhere(features, decided)


@role_rule(Role.REPLICA, Category.WEIGHT)
def replica(features: Features, decided: Decided) -> BoolColumn:
    """Parameters on another device for one forward: its graph saves and frees them like activations.

    The benchmark has one device; simulated programs with two had them and the batches called activations.
    """
    return _everywhere(features, decided)


@role_rule(Role.SCATTERED, Category.INPUT)
def scattered(features: Features, decided: Decided) -> BoolColumn:
    """A part of a batch, which its graph saves."""
    return _everywhere(features, decided)


@role_rule(Role.CACHE, Category.KV_CACHE)
def cache(features: Features, decided: Decided) -> BoolColumn:
    """Keys and values that an engine keeps."""
    return _everywhere(features, decided)


@rule(WORKSPACE_SIZE, Category.WORKSPACE, Evidence.SIZES)
def workspace_by_size(features: Features, _: Decided) -> BoolColumn:
    """Made in forward or by the engine, where no stack of the file has C++ frames."""
    if features.has_cpp:
        return np.zeros(len(features.alloc), np.bool_)
    likely = _has_workspace_size(features) & ((features.alloc_phase == Phase.FORWARD) | features.by_engine)
    return np.asarray(likely & _is_rare(features.sizes, likely, _MOST_TRACED))


@rule(WORKSPACE_SIZE, Category.WORKSPACE, Evidence.SIZES)
def preexisting_workspace_by_size(features: Features, _: Decided) -> BoolColumn:
    """Less is known of what is pre-existing: nothing else in the whole trace may have the size."""
    unnamed = features.has_no_frames | np.bool_(not features.has_cpp)
    likely = _has_workspace_size(features) & ~features.is_traced & unnamed
    return likely & _is_rare(features.sizes, np.ones(len(likely), np.bool_), _MOST_PREEXISTING)


def _has_workspace_size(features: Features) -> BoolColumn:
    return np.asarray(is_among(features.sizes, CUBLAS_WORKSPACE_BYTES) & features.is_live_at_dump)


def _is_rare(values: Int64Column, where: BoolColumn, most: int) -> BoolColumn:
    """Whether each value occurs at most a few times among the marked rows."""
    found, counts = np.unique(values[where], return_counts=True)
    return is_among(values, found[counts <= most])


@role_rule(Role.PINNED_BATCH, Category.INPUT)
def pinned_batch(features: Features, decided: Decided) -> BoolColumn:
    """Host memory that a loader of batches pins."""
    return _everywhere(features, decided)


@role_rule(Role.OFFLOADED, Category.ACTIVATION)
def offloaded(features: Features, decided: Decided) -> BoolColumn:
    """Host memory to which saved tensors are moved until backward."""
    return _everywhere(features, decided)


BY_FRAMES: tuple[PipelineRule, ...] = (
    workspace,
    communication,
    replica,
    scattered,
    cache,
    workspace_by_size,
    preexisting_workspace_by_size,
)
OF_HOST: tuple[PipelineRule, ...] = (pinned_batch, offloaded)
