"""Record unmodified public programs as the benchmark records its own: with made-up data, for three steps.

    public_programs.py CHECKOUTS FOLDER [NAME...]    record what FOLDER lacks
    corpus.py FOLDER                                 classify what was recorded

public_programs.tsv lists them: their repository and commit, the folder within it that they run in,
the command, and how many steps of optimizers an iteration has, or "4 calls" of modules that no
other module calls, where nothing is trained. CHECKOUTS has a folder OWNER+NAME of each repository
at its commit.

Nothing can be downloaded: data sets of torchvision are noise, and the files that programs read are
written by ``public_data``. What a program copies to the device outside of modules is its input.
"""

import argparse
import csv
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from io import StringIO
from multiprocessing import get_context
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any
from unittest.mock import MagicMock, patch

import numpy as np
import torch
from corpus import keep
from entries import ENTRIES
from programs import OnEnd, Script
from public_data import write_data
from recording import OFFLINE, record
from setups import Known, Setup
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from scripts.measured.worker import declare_torchvision  # noqa: E402  # the root is on the path only now

_LIST = Path(__file__).with_suffix(".tsv")
_TORCH = str(Path(torch.__file__).parent)
_N_IMAGES = 2048
# Programs log to these, and download by the last; none changes what is on the device.
_REPLACED = (
    "torch.utils.tensorboard",
    "tensorboard",
    "tensorboard_logger",
    "wandb",
    "requests",
)


@dataclass(frozen=True, slots=True)
class PublicProgram(Script):
    """A program as its repository has it.

    ``arguments`` follow its name on the command line; it runs in ``folder``. An iteration ends with
    every ``n_parts``-th step of an optimizer, or, if it ``only_infers``, call of a module.
    """

    name: str
    group: str
    folder: Path
    arguments: tuple[str, ...]
    n_parts: int
    only_infers: bool
    import_path: Path

    def run(
        self,
        n_steps: int,
        on_end: OnEnd,
        *,
        call: Callable[..., Any],
        on_told: OnEnd | None = None,
    ) -> None:
        """Run the program until its last step ends."""
        code = compile(self.path.read_text(encoding="utf-8"), str(self.path), "exec")
        namespace = {"__name__": "__main__", "__file__": str(self.path)}
        os.chdir(self.folder)
        sys.argv = [self.path.name, *self.arguments]
        sys.path[:0] = [str(self.path.parent), str(self.import_path)]
        module = ModuleType("__main__")
        vars(module).update(namespace)
        with ExitStack() as parts:
            parts.enter_context(patch.dict(sys.modules, {"__main__": module}))
            parts.enter_context(_stand_ins())
            parts.enter_context(_inputs(on_told))
            parts.enter_context(self._iterations(n_steps, on_end))
            try:
                call(_execute, code, vars(module))
            except _EnoughSteps:
                return

    @contextmanager
    def _iterations(self, n_steps: int, on_end: OnEnd) -> Iterator[None]:
        """Count parts of iterations; their results are all that is left of one when it is counted."""
        n_done = 0

        def ended(*_: object) -> None:
            nonlocal n_done
            n_done += 1
            if n_done % self.n_parts == 0:
                on_end(Known())
                if n_done == n_steps * self.n_parts:
                    raise _EnoughSteps

        if self.only_infers:
            with _outermost_calls(ended):
                yield
            return
        handle = register_optimizer_step_post_hook(ended)
        try:
            yield
        finally:
            handle.remove()


def _execute(code: CodeType, namespace: dict[str, Any]) -> None:
    exec(code, namespace)


class _EnoughSteps(BaseException):
    """Ends a program after the last step that is wanted; no library catches it."""


@contextmanager
def _outermost_calls(ended: Callable[[], None]) -> Iterator[None]:
    """Call a function when a module returns that no other module has called."""
    n_running = 0

    def begins(*_: object) -> None:
        nonlocal n_running
        n_running += 1

    def ends(*_: object) -> None:
        nonlocal n_running
        n_running -= 1
        if not n_running:
            ended()

    handles = (register_module_forward_pre_hook(begins), register_module_forward_hook(ends))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _inputs(on_told: OnEnd | None) -> Iterator[None]:
    """Note what the program itself copies from the CPU to the device."""

    def noting(function: Any) -> Any:
        def copied(*arguments: Any, **options: Any) -> Any:
            result = function(*arguments, **options)
            if on_told and _is_copied(arguments, result) and not _is_called_by_torch():
                on_told(Known(inputs=(result,)))
            return result

        return copied

    with ExitStack() as parts:
        for owner, name in (
            *((torch.Tensor, name) for name in ("to", "cuda", "type")),
            *((torch, name) for name in ("tensor", "as_tensor")),
        ):
            parts.enter_context(patch.object(owner, name, noting(getattr(owner, name))))
        yield


def _is_copied(arguments: tuple[Any, ...], result: Any) -> bool:
    is_from_device = (
        bool(arguments) and isinstance(arguments[0], torch.Tensor) and arguments[0].is_cuda
    )
    return isinstance(result, torch.Tensor) and result.is_cuda and not is_from_device


def _is_called_by_torch() -> bool:
    """Return whether the caller of a noted function is torch: a module that moves its weights."""
    return sys._getframe(2).f_code.co_filename.startswith(_TORCH)


@contextmanager
def _stand_ins() -> Iterator[None]:
    """Replace what needs a network, another process or a logger."""
    initialize = DataLoader.__init__

    def without_workers(loader: Any, *arguments: Any, **options: Any) -> None:
        for name in ("num_workers", "persistent_workers", "prefetch_factor", "timeout"):
            options.pop(name, None)
        initialize(loader, *arguments, **options)

    with ExitStack() as parts:
        parts.enter_context(patch.object(DataLoader, "__init__", without_workers))
        replaced = {name: MagicMock(__spec__=ModuleSpec(name, None)) for name in _REPLACED}
        replaced["torch.utils.tensorboard"].SummaryWriter().log_dir = "."
        parts.enter_context(patch.dict(sys.modules, replaced))
        # pytorch-cifar asks stty how wide the terminal is.
        parts.enter_context(patch.object(os, "popen", lambda *_: StringIO("24 80")))
        if find_spec("tiktoken"):
            parts.enter_context(patch("tiktoken.get_encoding", lambda _: _Letters()))
        # gcn downloads and unpacks what ``write_data`` has put there.
        parts.enter_context(patch("tarfile.open", MagicMock()))
        if find_spec("torchvision"):
            declare_torchvision()
            from torchvision import datasets

            parts.enter_context(patch.object(datasets, "MNIST", _digits(datasets)))
            for name, n_classes in (("CIFAR10", 10), ("CIFAR100", 100)):
                photographs = _photographs(datasets, name, n_classes)
                parts.enter_context(patch.object(datasets, name, photographs))
        yield


class _Letters:
    """Stands in for a tokenizer, whose vocabulary would be downloaded: a token is a letter."""

    def encode(self, text: str, **_: object) -> list[int]:
        return [ord(letter) % 50257 for letter in text]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(map(chr, tokens))


def _digits(datasets: Any) -> type:
    class MNIST(datasets.MNIST):  # type: ignore[misc]  # torchvision counts as Any
        def __init__(self, root: Any, *, train: bool = True, **options: Any) -> None:
            options.pop("download", None)
            datasets.VisionDataset.__init__(self, root, **options)
            self.train = train
            self.data = torch.randint(0, 256, (_N_IMAGES, 28, 28), dtype=torch.uint8)
            self.targets = torch.arange(_N_IMAGES) % 10

    return MNIST


def _photographs(datasets: Any, name: str, n_classes: int) -> type:
    class Photographs(getattr(datasets, name)):  # type: ignore[misc]  # torchvision counts as Any
        def __init__(self, root: Any, *, train: bool = True, **options: Any) -> None:
            options.pop("download", None)
            datasets.VisionDataset.__init__(self, root, **options)
            self.train = train
            generator = np.random.default_rng(0)
            self.data = generator.integers(0, 256, (_N_IMAGES, 32, 32, 3), dtype=np.uint8)
            self.targets = [number % n_classes for number in range(_N_IMAGES)]

    return Photographs


def programs(checkouts: Path) -> list[PublicProgram]:
    """Return the listed programs."""
    with _LIST.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    found = []
    for row in rows:
        root = checkouts / row["repository"].replace("/", "+")
        folder = root / row["folder"]
        file_name, *arguments = row["command"].split()
        n_parts, _, of_modules = row["steps"].partition(" ")
        found.append(
            PublicProgram(
                folder / file_name,
                row["name"],
                row["group"],
                folder,
                tuple(arguments),
                int(n_parts),
                bool(of_modules),
                root / row["path"],
            )
        )
    return found


def main(argv: Sequence[str]) -> int:
    """Record the chosen programs; 1 where one fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="by default all that are listed")
    options = parser.parse_args(argv)
    checkouts, folder = options.checkouts.resolve(), options.folder.resolve()
    write_data(checkouts)
    chosen = [
        each for each in programs(checkouts) if each.name in options.names or not options.names
    ]
    are_recorded = [_is_recorded(program, folder) for program in chosen]
    return int(not all(are_recorded))


def _is_recorded(program: PublicProgram, folder: Path) -> bool:
    """Record a program that the folder lacks, in a process of its own."""
    path = folder / f"{program.name}.{program.group}.pickle.xz"
    if not path.exists():
        process = get_context("fork").Process(target=_record, args=(program, folder))
        process.start()
        process.join()
    print(f"{program.name}: {'recorded' if path.exists() else 'failed'}", flush=True)
    return path.exists()


def _record(program: PublicProgram, folder: Path) -> None:
    os.environ.update({**OFFLINE, "WANDB_MODE": "disabled", "MPLBACKEND": "Agg"})
    ENTRIES[program.name] = program
    try:
        recorded = record(program.name, Setup())
    except BaseException:  # noqa: BLE001  # whatever other people's code raises, exits too
        traceback.print_exc()
        return
    _leave_out_our_frames(recorded.raw)
    keep(folder, program.name, program.group, recorded)


def _leave_out_our_frames(raw: dict[str, Any]) -> None:
    """Leave out the frames of this file, which a program alone has not."""
    blocks = [block for segment in raw["segments"] for block in segment["blocks"]]
    for holder in (*raw["device_traces"][0], *raw["segments"], *blocks):
        if any(frame["filename"] == __file__ for frame in holder.get("frames", ())):
            holder["frames"] = [
                frame for frame in holder["frames"] if frame["filename"] != __file__
            ]


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(sys.argv[1:]))
