"""File names as recorded, on any system: compared by whole components, never by prefix text."""

import re
from functools import lru_cache

_PACKAGES = re.compile(r"(^|/)(site|dist)-packages/")
_GENERATED = ("torchinductor_", "torch_compile_debug")
# Inductor's own names, in the folder of TORCHINDUCTOR_CACHE_DIR, and those of FX since torch 2.10.
_GENERATED_FILE = re.compile(r"(^|/)(c[a-z2-7]{51}|fx_generated_[^/]*)\.py$")
# `lib/python3.11` on Unix. On Windows `Lib` or `lib`, right in the folder of an interpreter: that
# of python.org (`Python311`) and the store, of uv (`cpython-3.10.19-windows-x86_64-none`), of conda
# (`miniconda3`, `envs/NAME` below it) and of pyenv (`versions/3.10.5`).
_STANDARD_LIBRARY = re.compile(
    r"(^|/)lib(64)?/(python|pypy)[23]\.[^/]*/"
    r"|^[a-z]:/(.+/)?((c?python|pypy)[^/]*|pyenv-win/versions/[^/]+"
    r"|(\.conda|(ana|mini)conda\d*|miniforge\d*|mambaforge\d*|micromamba)(/envs/[^/]+)?)/lib/",
    re.IGNORECASE,
)
# `/tmp/ipykernel_812/40112.py` of Jupyter, `/tmp/ipython-input-7-1f2e.py` of Colab, and what
# IPython writes where a cell has no file.
_NOTEBOOK_CELL = re.compile(
    r"^<ipython-input|/(ipykernel_\d+/[^/]+|ipython-input-[^/]+)\.py$"
)
# Functions of these libraries are operations, and no layers of a model.
_OPERATIONS = re.compile(r"(^|/)(torch|einops)/")
_CURRENT_FOLDER = re.compile(r"^(\./)+")
_HIDDEN = re.compile(r"(^|/)\.[^/.]")
# Debuggers run a program from folders of their own, which no installer filled, and wrap the
# functions of its threads: PyCharm's `…/helpers/pydev/pydevd.py` and `.pycharm_helpers`, and that
# of an editor's extension, debugpy.
_LIBRARY_FOLDERS = {
    "site-packages", "dist-packages", ".triton",
    "pydev", "_pydevd_bundle", "_pydev_bundle", "debugpy", "ptvsd",
}  # fmt: skip
# torch writes these for a C++ frame without debug information.
UNKNOWN_FILES = ("", "??")
_NATIVE_SUFFIXES = (".c", ".cc", ".cpp", ".cu", ".h", ".hpp", ".cuh", ".o", ".s", ".so")


# For functions that are called for every frame of every stack: their texts are those of a few
# hundred files. Where a file has more distinct texts than fit, and all are looked up in the same
# order, none is found again.
cached_text = lru_cache(maxsize=1 << 16)


@cached_text
def normal(path: str) -> str:
    """Return the same path with forward slashes and no trailing one.

    A Windows drive is in lower case.
    """
    text = _CURRENT_FOLDER.sub("", path.replace("\\", "/"))
    if text[1:2] == ":":
        text = text[0].lower() + text[1:]
    return text.rstrip("/") if len(text) > 1 else text


def is_under(path: str, root: str) -> bool:
    """Return whether a normal path is below a normal root.

    ``/w/proj2/x`` is not below ``/w/proj``.
    """
    if root == "/":
        return path.startswith("/")
    if root[1:2] == ":":
        path = path.lower()
        root = root.lower()
    return path.startswith(root + "/")


@cached_text
def is_python(filename: str) -> bool:
    """Return whether a frame's file name is that of Python code.

    C++ frames have ``??`` or a source file.
    """
    return filename.endswith((".py", ".ipynb")) or filename.startswith("<")


@cached_text
def is_native(filename: str) -> bool:
    """Return whether a frame's file name is that of C or C++ code.

    A script may have no suffix at all.
    """
    name = filename.lower()
    return name in UNKNOWN_FILES or name.endswith(_NATIVE_SUFFIXES) or ".so." in name


def is_notebook(filename: str) -> bool:
    """Return whether the name is that of a notebook cell: the user's code wherever it is."""
    return bool(_NOTEBOOK_CELL.search(filename))


def is_absolute(path: str) -> bool:
    """Return whether a normal path begins at a root, also one of Windows."""
    return path.startswith("/") or path[1:2] == ":"


@cached_text
def is_generated(path: str) -> bool:
    """Return whether a normal path is that of code that torch.compile wrote."""
    if _GENERATED_FILE.search(path):
        return True
    folders = path.split("/")[:-1]
    return any(folder.startswith(_GENERATED) for folder in folders)


def is_hidden(path: str) -> bool:
    """Return whether a normal path is in a hidden folder.

    Caches are, and what editors run programs with.
    """
    return bool(_HIDDEN.search(path))


@cached_text
def installed_part(path: str) -> str | None:
    """Return a normal path below the folder that an installer filled: ``torch/nn/functional.py``.

    None for a file that was not installed, such as that of a project or of a package's checkout.
    """
    end = 0
    for pattern in (_PACKAGES, _STANDARD_LIBRARY):
        for folder in pattern.finditer(path):
            end = max(end, folder.end())
    return path[end:] if end else None


@cached_text
def is_of_operations(path: str) -> bool:
    """Return whether a path is of torch, or of a library that only calls torch's operations."""
    return bool(_OPERATIONS.search(path))


def is_standard_library(path: str) -> bool:
    """Return whether a normal path is that of Python's own library, such as threading.py."""
    return bool(_STANDARD_LIBRARY.search(path)) and not _PACKAGES.search(path)


@cached_text
def is_library(path: str) -> bool:
    """Return whether a normal path is of a library, and not of the user's code.

    A library is a package, the standard library, a debugger or a compiler cache. A virtual
    environment inside a project is recognised by its site-packages and lib/python3.N.
    """
    if is_notebook(path):
        return False
    if path.startswith("<") or is_generated(path) or _STANDARD_LIBRARY.search(path):
        return True
    if not _LIBRARY_FOLDERS.isdisjoint(path.split("/")):
        return True
    # torch in a source checkout has no site-packages above it.
    return "/torch/nn/modules/" in path or "/torch/optim/" in path
