"""Which torch wrote a file, inferred from the keys that each release added.

A present key proves a release; a missing one rules later releases out if the file has a place where it
would stand. The keys were bisected over the wheels of torch 2.0.1 to 2.15.0.
"""

from dataclasses import dataclass

# The other backends follow later and write fewer keys (torch/csrc/xpu/Module.cpp; torch_npu has no times),
# so with them a missing key proves nothing.
_SNAPSHOTS_SINCE = {"xpu": "2.11"}


@dataclass(frozen=True, slots=True)
class Era:
    """The range of torch releases that can have written the file, and for which device.

    ``first`` and ``last`` are such as ``2.5``; ``last`` is None for "or any newer". ``backend`` is
    cuda, npu or xpu (rocm is built from the same source and looks like cuda).
    """

    first: str
    last: str | None
    backend: str = "cuda"

    def __str__(self) -> str:
        if self.last is None:
            text = f"torch {self.first} or newer"
        elif self.first == self.last:
            text = f"torch {self.first}"
        else:
            text = f"torch {self.first} to {self.last}"
        return text if self.backend == "cuda" else f"{text} ({self.backend})"


@dataclass(frozen=True, slots=True)
class Traits:
    """What a file has, as far as it distinguishes releases.

    ``is_whole``: it is the dictionary of ``_snapshot()``, with places for settings and annotations, and
    not the list of segments that ``memory_snapshot()`` returns in every release. ``is_plot``: torch's
    profiler drew it (``torch.cuda._memory_viz.profile_plot``), with its own few keys in every release.
    """

    block_addresses: bool
    has_blocks: bool
    timed_events: int
    settings_keys: frozenset[str]
    has_settings: bool
    has_annotations: bool
    is_whole: bool
    has_compile_context: bool
    has_user_metadata: bool
    has_event_pools: bool
    has_host_memory: bool
    has_internal_metadata: bool
    n_events: int
    is_plot: bool
    backend: str


def infer_era(traits: Traits) -> Era:
    """Narrow the range of releases down by what is there and what is not."""
    # Newest first: first release that has the trait, last that lacks it, whether it is there, and
    # whether the file has a place where it would show.
    steps = (
        # Only what the allocator does for itself has it, so that a file of 2.15 may well lack it.
        ("2.15", "2.14", traits.has_internal_metadata, False),
        ("2.14", "2.13", traits.has_host_memory, traits.is_whole),
        ("2.13", "2.12", "max_round_threshold" in traits.settings_keys, traits.has_settings),
        ("2.12", "2.11", traits.has_event_pools, traits.n_events > 0),
        ("2.10", "2.9", traits.has_user_metadata, traits.n_events > 0),
        ("2.9", "2.8", "graph_capture_record_stream_reuse" in traits.settings_keys, traits.has_settings),
        ("2.8", "2.7", traits.has_compile_context, traits.n_events > 0),
        ("2.5", "2.4", traits.has_annotations, traits.is_whole),
        ("2.3", "2.2", traits.has_settings, traits.is_whole),
        ("2.2", "2.1", traits.timed_events > 0, traits.n_events > 0),
        ("2.1", "2.0", traits.block_addresses, traits.has_blocks),
    )
    first, last = _SNAPSHOTS_SINCE.get(traits.backend, "2.0"), None
    lacks_prove = traits.backend == "cuda" and not traits.is_plot
    for since, until, present, could_show in steps:
        if present:
            return Era(_later(since, first), last, traits.backend)
        if could_show and lacks_prove:
            last = until
    return Era(first, last, traits.backend)


def _later(one: str, other: str) -> str:
    return max(one, other, key=lambda release: int(release.partition(".")[2]))
