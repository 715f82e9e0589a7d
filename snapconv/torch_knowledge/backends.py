"""Kinds of devices with an allocator of torch's: names, monitors, settings and recorders.

Sources. CUDA: allocator_options.py. NPU: strings of libtorch_npu.so in 22 wheels of torch_npu 2.1.0
to 2.14.0 and their last post releases, which take options over from later ones. XPU:
torch/xpu/memory.py of 2.13, and the keys that it writes as settings. The others: their error texts.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from snapconv.torch_knowledge.allocator_options import OPTIONS, VARIABLES, release_key

# The kind in a file that torch.profiler wrote and no allocator.
NO_ALLOCATOR = "profiler"
WHY_FREE = (
    "possible: another thread or process freed memory meanwhile; Windows, WSL, MIG or "
    "a virtual GPU allows a process less, or Windows' page file, which backs the GPU's "
    "memory, is too small; the driver could not use the last few MiB, or lacked "
    "address space. A memory fraction is not the cause: torch would print it"
)
_RECORDS_ITSELF = (
    "call {package}.memory._record_memory_history() before the model is built, and "
    '{package}.memory._dump_snapshot("snapshot.pickle") when memory runs out'
)


@dataclass(frozen=True, slots=True)
class Backend:
    """One kind of device.

    ``kind`` is the first part of its devices' names, ``monitor`` the program that shows its memory,
    if any, ``variable`` the one that every release reads for its allocator, with ``caution`` where
    that may fail. ``options`` are those that move blocks, with the first release that accepts each;
    ``exclusive`` cannot be on beside ``expandable_segments``. ``record`` is what to do for a file
    with stacks and events, empty where nothing is known to write one; ``is_recorded``: by snapconv
    itself. ``frames`` is a part of source paths by which a stack of this kind is recognised; empty
    where there is none. ``why_free``: why a request can fail beside free memory.
    """

    kind: str
    monitor: str = "nvidia-smi"
    variable: str = "PYTORCH_ALLOC_CONF"
    caution: str = ""
    options: dict[str, str] = field(default_factory=dict)
    exclusive: tuple[str, ...] = ()
    record: str = ""
    is_recorded: bool = False
    frames: str = ""
    why_free: str = WHY_FREE

    @property
    def watch(self) -> str:
        """What shows next time which lines hold the memory; for a sentence of its own."""
        if self.is_recorded:
            return "`snapconv watch train.py` saves a file that shows which lines hold the memory"
        if self.record:
            return f"{self.record}: the file shows which lines hold the memory"
        return "no recorder of this device's memory is known"

    @property
    def library(self) -> str:
        """The library with the allocator."""
        return "torch" if self.kind in ("cuda", "xpu", "mps", "") else f"torch_{self.kind}"

    @property
    def expandable(self) -> str:
        """How to switch expandable segments on; for a sentence of its own."""
        since = self.options.get("expandable_segments")
        accepted = (
            f"from {self.library} {since}" if since else "if its release accepts that"
        )
        return f"set {self.variable}=expandable_segments:True ({accepted})"

    def refusal(self, names: Collection[str], on: Collection[str], *, release: str) -> str:
        """Return why the allocator may refuse some options, or an empty text.

        ``on`` are all options that are on. ``release`` is the earliest that can have written the
        file.
        """
        for name in names:
            since = self.options.get(name)
            if since is None:
                return f"the allocator of {self.kind} devices is not known to take {name}"
            if release_key(release) < release_key(since):
                return f"{self.library} before {since} refuses {name}"
        exclusive = [name for name in self.exclusive if name in on]
        if exclusive and "expandable_segments" in on:
            return f"{self.library} refuses {exclusive[0]} beside expandable_segments"
        return ""


_CUDA_OPTIONS = {name: option.since for name, option in OPTIONS.items()}
_NPU_OPTIONS = {
    "max_split_size_mb": "2.1",
    "garbage_collection_threshold": "2.1",
    "expandable_segments": "2.1",
    "roundup_power2_divisions": "2.9",
    "per_process_memory_fraction": "2.11",
    "large_segment_size_mb": "2.11",
    "max_non_split_rounding_mb": "2.13",
}
# The keys are names in error texts; files of HIP are those of CUDA.
BACKENDS = {
    "CUDA": Backend(
        "cuda",
        variable="PYTORCH_CUDA_ALLOC_CONF",
        options=_CUDA_OPTIONS,
        record="snapconv record train.py",
        is_recorded=True,
    ),
    "HIP": Backend(
        "cuda",
        monitor="amd-smi",
        variable="PYTORCH_HIP_ALLOC_CONF",
        options=_CUDA_OPTIONS,
        record="snapconv record train.py",
        is_recorded=True,
        why_free=f"{WHY_FREE}; an APU's figure has memory of the host in it",
    ),
    "XPU": Backend(
        "xpu",
        monitor="xpu-smi",
        options={"expandable_segments": "2.11"},
        record=f"{_RECORDS_ITSELF.format(package='torch.xpu')} (torch 2.11 or newer)",
        frames="torch/xpu/",
        why_free="possible: Intel's driver does not report free memory, and torch "
        "printed the device less what it had reserved; another process; one block may "
        "not be larger than the driver allows (4 GiB on some)",
    ),
    "NPU": Backend(
        "npu",
        monitor="npu-smi info",
        variable="PYTORCH_NPU_ALLOC_CONF",
        caution="unset PYTORCH_ALLOC_CONF: torch_npu 2.10 and newer refuse both at once",
        options=_NPU_OPTIONS,
        exclusive=("max_split_size_mb", "garbage_collection_threshold"),
        record=f"{_RECORDS_ITSELF.format(package='torch_npu.npu')} (torch_npu 2.3 or newer)",
        frames="torch_npu",
    ),
    "MLU": Backend(
        "mlu", monitor="cnmon", variable="PYTORCH_MLU_ALLOC_CONF", frames="torch_mlu"
    ),
    "MUSA": Backend(
        "musa",
        monitor="mthreads-gmi",
        variable="PYTORCH_MUSA_ALLOC_CONF",
        frames="torch_musa",
    ),
    "GCU": Backend("gcu", monitor="efsmi", frames="torch_gcu"),
    "MPS": Backend(
        "mps",
        monitor="Activity Monitor",
        why_free="possible: Metal found no memory, as macOS and other programs had it, "
        "or no room for one heap",
    ),
}
UNKNOWN_BACKEND = Backend(
    "",
    monitor="nvidia-smi",
    record="snapconv record train.py",
    is_recorded=True,
)
# The row of kinds that torch.profiler alone describes; for a page it needs memory, shapes and
# stacks switched on.
_PROFILED = Backend(
    "",
    monitor="",
    record="torch.profiler.profile(profile_memory=True, record_shapes=True, "
    "with_stack=True), then torch.cuda._memory_viz.profile_plot(prof)",
)


def conf_of(environment: Mapping[str, str], release: str) -> str:
    """Return the settings that a release of torch reads for CUDA: the first set variable's text."""
    return _first_text(environment, release, VARIABLES)


def cuda_conf_of(environment: Mapping[str, str], release: str) -> str:
    """Return the settings from which a CUDA build reads the options of CUDA alone."""
    return _first_text(environment, release, (VARIABLES[0], VARIABLES[2]))


def _first_text(
    environment: Mapping[str, str], release: str, variables: tuple[str, ...]
) -> str:
    names = variables if release_key(release) >= (2, 10) else variables[:1]
    return next((environment[name] for name in names if name in environment), "")


def backend_of_kind(kind: str) -> Backend:
    """Return the row of a file's kind of device.

    ``cpu`` and ``device``, a kind that the file does not name, are described by torch.profiler
    alone. A kind that the table lacks, such as ``host``, gets a row with its name and the defaults.
    """
    if kind in (NO_ALLOCATOR, "cpu", "device"):
        return replace(_PROFILED, kind=kind)
    return BACKENDS.get(kind.upper(), Backend(kind))
