"""The parameters and buffers of a model as a list of plain values, in the order of ``named_parameters``.

The model is built by an entry's model provider, or by a class or function that is named. Nothing is trained,
and no tensor need have values: it is built on torch's meta device, or on the CPU.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from sysconfig import get_path
from types import ModuleType
from typing import Any

from snapconv.errors import EntryPointError
from snapconv.recorder import environment
from snapconv.recorder.program import script
from snapconv.recorder.program.entry import Entry, find_file, imported, load_providers, provider_module
from snapconv.recorder.program.own_frames import call_user, is_ours
from snapconv.recorder.torch_surface import Module, Tensor
from snapconv.version import VERSION


def building_on(device: str) -> Any:
    """Return a context in which every new tensor, and every one that is moved, is on ``device``."""
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils import _device

    constructors = _device._device_constructors()
    stays = {torch.Tensor.cuda, torch.Tensor.cpu, torch.Tensor.pin_memory}

    class BuildingOn(TorchFunctionMode):  # type: ignore[misc]  # torch counts as Any
        def __torch_function__(
            self,
            function: Callable[..., Any],
            _types: Any,
            args: tuple[Any, ...] = (),
            kwargs: dict[str, Any] | None = None,
        ) -> Any:
            named = dict(kwargs or {})
            if function in stays:
                return args[0]
            if function is torch.Tensor.to:
                args = (args[0], *(device if _is_device(value) else value for value in args[1:]))
            if function in constructors or named.get("device") is not None:
                named["device"] = device
            return function(*args, **named)

    def _is_device(value: object) -> bool:
        return isinstance(value, (str, torch.device)) or type(value) is int

    return BuildingOn()


LIST_VERSION = 1
_ON_META = "on the meta device tensors have no values: if building the model needs some, give --on-cpu"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The source of a model: a file or module, and the class or function in it; empty for providers."""

    path: str
    maker: str = ""

    @classmethod
    def parse(cls, text: str) -> "ModelSource":
        """Read ``entry.py``, ``file.py:Name`` or ``package.module:Name``."""
        path, colon, maker = text.rpartition(":")
        # A drive's colon has no name behind it.
        if colon and path and all(part.isidentifier() for part in maker.split(".")):
            return cls(path, maker)
        return cls(text)


def list_parameters(source: ModelSource, *, on_cpu: bool = False) -> dict[str, Any]:
    """Build the model and return its list; whatever the program prints goes to stderr.

    Raises EntryPointError where there is no model to be had, also for what the user's code raises.
    """
    environment.require_torch()
    import torch

    with (
        _as_input_error(source, on_cpu=on_cpu),
        redirect_stdout(sys.stderr),
        building_on("cpu" if on_cpu else "meta"),
    ):
        model = _build(source)
    return {
        "version": LIST_VERSION,
        "snapconv": VERSION,
        "torch": str(torch.__version__),
        "model": type(model).__name__,
        "parameters": list(_rows(source, model)),
    }


def _build(source: ModelSource) -> Any:
    import torch

    model = _provided(source) if not source.maker else _made(source)
    if not isinstance(model, torch.nn.Module):
        by = source.maker or "the model provider"
        raise EntryPointError(
            f"{source.path}: {by} returned a {type(model).__name__}; expected a torch.nn.Module"
        )
    return model


def _provided(source: ModelSource) -> Any:
    entry = find_file(source.path)
    if entry.kind != "providers":
        raise EntryPointError(
            f"{source.path} has no model provider, and a script does not show where its model is. Name a "
            "class or function that makes it without arguments: "
            f"snapconv params {source.path}:NAME; the file is then imported, not run as a script. "
            "Or record it: a capture has the names"
        )
    with script.surroundings(entry.path, ()), imported(provider_module(entry)) as module:
        return load_providers(entry, module, batch_size=None).model()


def _made(source: ModelSource) -> Any:
    """Import a file or module, and call what is named in it."""
    if not source.path.endswith(".py"):
        with script.surroundings(str(Path("x")), ()):
            return call_user(_found(source, call_user(import_module, source.path)))
    entry = find_file(source.path)
    assert entry.code is not None
    with script.surroundings(entry.path, ()), imported(_file_module(entry)) as module:
        call_user(exec, entry.code, module.__dict__)
        return call_user(_found(source, module))


def _file_module(entry: Entry) -> ModuleType:
    module = provider_module(entry)
    if module.__name__ == "__main__":
        module.__name__ = "snapconv_entry"
    return module


def _found(source: ModelSource, module: ModuleType) -> Callable[[], Any]:
    found: Any = module
    for part in source.maker.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        got = "is not there" if found is None else f"is a {type(found).__name__}"
        raise EntryPointError(
            f"{source.path}: {source.maker} {got}; expected a class, or a function that returns the model"
        )
    return found  # type: ignore[no-any-return]  # callable, as checked


@contextmanager
def _as_input_error(source: ModelSource, *, on_cpu: bool) -> Iterator[None]:
    """Turn whatever the user's code raises into an error with its place, and what to do."""
    try:
        yield
    except EntryPointError:
        raise
    except (Exception, SystemExit) as error:
        where = _where(error)
        advice = f"; {_ON_META}" if not on_cpu and "meta" in str(error) else ""
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise EntryPointError(f"{source.path}: no model was built: {text}{where}{advice}") from error


def _where(error: BaseException) -> str:
    """Name the user's own line that an error came from, as far as there is one."""
    place = ""
    traceback = error.__traceback__
    while traceback is not None:
        filename = traceback.tb_frame.f_code.co_filename
        is_library = "site-packages" in filename or filename.startswith(get_path("stdlib"))
        if not is_ours(filename) and not is_library and Path(filename).is_file():
            place = f" ({filename}, line {traceback.tb_lineno})"
        traceback = traceback.tb_next
    return place


def _rows(source: ModelSource, model: Module) -> Iterator[dict[str, Any]]:
    """One row per name: a module's parameters, its buffers, then the modules in it."""
    first_name: dict[int, str] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for kind, held in (("parameter", module._parameters), ("buffer", module._buffers)):
            for local, tensor in held.items():
                if tensor is None:
                    continue
                name = f"{path}.{local}" if path else local
                _check_shape(source, name, tensor)
                tied_to = first_name.setdefault(id(tensor), name)
                yield {
                    "name": name,
                    "shape": list(tensor.shape),
                    "dtype": str(tensor.dtype).removeprefix("torch."),
                    "requires_grad": bool(tensor.requires_grad),
                    "tied_to": tied_to if tied_to != name else None,
                    "kind": kind,
                    "module_class": type(module).__name__,
                }


def _check_shape(source: ModelSource, name: str, tensor: Tensor) -> None:
    from torch.nn.parameter import is_lazy

    if is_lazy(tensor):
        raise EntryPointError(
            f"{source.path}: {name} is lazy, it gets its shape in the first forward pass; record the program "
            "instead: a capture has the names"
        )
