"""The program that the user names: a script, a module or providers, told apart without running it.

Providers are the three functions that Skyline (``skyline_…``) and DeepView (``deepview_…``)
require.
"""

import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import decode_source
from pathlib import Path
from symtable import symtable
from types import CodeType, ModuleType
from typing import Any, Literal

from snapconv.errors import EntryPointError
from snapconv.guest.own_frames import call_user
from snapconv.recorder.program.launch_reading import LAUNCHERS

Kind = Literal["script", "module", "providers"]

# The providers of the model, of its inputs and of an iteration.
_PROVIDERS = (
    ("skyline_model_provider", "skyline_input_provider", "skyline_iteration_provider"),
    ("deepview_model_provider", "deepview_input_provider", "deepview_iteration_provider"),
)


@dataclass(frozen=True, slots=True)
class Entry:
    """The program to run; ``path`` is the file as the user wrote it, or the module's name.

    ``code`` is None for a module: finding it imports its packages, which is the user's code
    already. ``marks_steps``: the script calls ``snapconv.step()``, as far as its own text shows.
    ``is_installed``: it is a console script of this environment.
    """

    path: str
    kind: Kind
    code: CodeType | None = None
    providers: tuple[str, ...] = ()
    marks_steps: bool = False
    is_installed: bool = False

    @property
    def stem(self) -> str:
        """The name that the capture is called after."""
        return self.path if self.kind == "module" else Path(self.path).stem


# Options of launchers whose value, the next word, is a file and no program.
_FILE_OPTION = re.compile(r"--?[\w-]*(config|conf|file)")
# Imports of snapconv, under whatever name, and of ``step`` from it.
_IMPORTS = re.compile(
    r"^\s*import .*?\bsnapconv(?: +as +(\w+))?(?=\s*(?:$|[,;#]))", re.MULTILINE
)
_IMPORTS_STEP = re.compile(r"^\s*from +snapconv +import\b[^;\n]*\bstep\b", re.MULTILINE)


def refuse_launcher(
    entry: str, args: Sequence[str], *, is_module: bool, command: Sequence[str]
) -> None:
    """Raise EntryPointError for a launcher, with the line that records.

    It starts the training in processes of its own, which a recording around them does not reach.
    ``trl COMMAND`` starts one of its scripts.
    ``command`` is the line up to the entry: snapconv and its options.
    """
    if entry == "-m":
        raise EntryPointError(f"-m comes before --: {shlex.join([*command, '-m', *args])}")
    name = entry if is_module else Path(entry).name
    if name == "trl" and args:
        line = [*command, "-m", f"trl.scripts.{args[0]}", *args[1:]]
    elif name in LAUNCHERS:
        options, program = _split_launch(args)
        launch = ["python", "-m", name] if is_module else [name]
        line = [*launch, *options, LAUNCHERS[name].module_option, *command, *program]
    else:
        return
    raise EntryPointError(
        f"{name} starts the training in processes of its own, where it must be "
        f"recorded: {shlex.join(line)}"
    )


def _split_launch(args: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Split a launcher's arguments into its options and those from the program on."""
    before = ""
    for i, argument in enumerate(args):
        if argument in ("-m", "--module"):
            return args[:i], ["-m", *args[i + 1 :]]
        is_value = _FILE_OPTION.fullmatch(before) is not None
        if argument.endswith(".py") and not argument.startswith("-") and not is_value:
            return args[:i], args[i:]
        before = argument
    return args, ["SCRIPT"]


def strip_interpreter(
    entry: str, args: list[str], command: Sequence[str]
) -> tuple[str, list[str], bool]:
    """Return the program of a command line and its arguments, and whether it is a module.

    A first word ``python`` is left out.
    """
    if re.fullmatch(r"python[\d.]*(\.exe)?", Path(entry).name) is None:
        return entry, args, False
    # These options change nothing of the program; -O takes its assertions away, and others more.
    while args and re.fullmatch("-[uBq]+", args[0]):
        args = args[1:]
    is_module = args[:1] == ["-m"]
    program = args[is_module:]
    if not program or program[0].startswith("-"):
        line = shlex.join([entry, *args[:1], "-m", *command, "SCRIPT"])
        raise EntryPointError(
            f"python needs a script or -m MODULE here; its own options come first: {line}"
        )
    return program[0], program[1:], is_module


def find_module(name: str) -> Entry:
    """Return the entry for ``-m NAME``."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise EntryPointError(
            f"{name!r} is no module's name: after -m comes package.module, not a file"
        )
    return Entry(name, "module")


def find_file(path: str) -> Entry:
    """Read a script or a file of providers; a name without a file is a console script."""
    file = Path(path)
    installed = None
    if file.name == path and not file.exists():
        installed = shutil.which(path)
    code, defined, marks_steps = _compile(installed or path)
    if installed:
        return Entry(installed, "script", code, is_installed=True)
    names = max(_PROVIDERS, key=lambda names: len(defined.intersection(names)))
    present = [name for name in names if name in defined]
    if not present:
        return Entry(path, "script", code, marks_steps=marks_steps)
    missing = [name for name in names if name not in defined]
    if missing:
        raise EntryPointError(
            f"{path} defines {present[0]} but no {' and no '.join(missing)}: providers "
            f"come as a set of three"
        )
    return Entry(path, "providers", code, names)


def _compile(path: str) -> tuple[CodeType, set[str], bool]:
    """Compile a script; return its code, its names at the top level, and ``marks_steps``."""
    file = Path(path)
    try:
        source = file.read_bytes()
    except FileNotFoundError as error:
        hint = ""
        if "." in path and "/" not in path and not path.endswith(".py"):
            hint = f"; to run a module, give -m {path}"
        raise EntryPointError(
            f"there is no entry file {path} in {Path.cwd()}{hint}"
        ) from error
    except IsADirectoryError as error:
        raise EntryPointError(
            f"{path} is a folder: name the script in it, or a module with -m"
        ) from error
    except OSError as error:
        raise EntryPointError(
            f"the entry file {path} cannot be read: {error.strerror}"
        ) from error
    try:
        absolute_path = str(file.absolute())  # as Python has it
        code = compile(source, absolute_path, "exec", dont_inherit=True)
        text = decode_source(source)
        symbols = symtable(text, path, "exec").get_symbols()
    except SyntaxError as error:
        raise EntryPointError(
            f"{path}, line {error.lineno}: not valid Python: {error.msg}"
        ) from error
    except ValueError as error:  # null bytes, before Python 3.12
        raise EntryPointError(f"{path} is not valid Python: {error}") from error
    names = {
        symbol.get_name()
        for symbol in symbols
        if symbol.is_assigned() or symbol.is_imported()
    }
    return code, names, _marks_steps(text)


def _marks_steps(text: str) -> bool:
    """Return whether a script uses ``snapconv.step``, as far as its text shows."""
    if _IMPORTS_STEP.search(text):
        return True
    names = [name or "snapconv" for name in _IMPORTS.findall(text)]
    return any(re.search(rf"\b{name}\.step\b", text) for name in names)


def load_providers(entry: Entry, module: ModuleType) -> list[Callable[..., Any]]:
    """Run a providers file in ``module``, and return its functions: model, inputs, iteration."""
    assert entry.code is not None
    call_user(exec, entry.code, module.__dict__)
    functions = []
    for name in entry.providers:
        function = getattr(module, name, None)
        if not callable(function):
            raise EntryPointError(
                f"{entry.path}: {name} is not a function once the file has run"
            )
        functions.append(function)
    return functions


@contextmanager
def provider_module(entry: Entry) -> Iterator[ModuleType]:
    """Make the empty module in which a providers file runs; never ``__main__``, as in Skyline."""
    name = entry.stem
    if not name.isidentifier() or name in sys.modules:
        name = "snapconv_entry"
    module = sys.modules[name] = ModuleType(name)  # dataclasses and pickle look it up
    module.__file__ = str(Path(entry.path).absolute())
    try:
        yield module
    finally:
        sys.modules.pop(name, None)
