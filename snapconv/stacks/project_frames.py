"""The frames of the user's own code: below the project root, given or inferred, or included."""

import posixpath
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from snapconv.columns import BoolColumn, Int64Column, read_only, rows_of, sums_by
from snapconv.snapshot.recorded.metadata import NOT_RECORDED, RecordedProject
from snapconv.snapshot.stack_table import StackTable
from snapconv.stacks.paths import (
    installed_part,
    is_absolute,
    is_generated,
    is_hidden,
    is_library,
    is_notebook,
    is_python,
    is_standard_library,
    is_under,
    normal,
)

# Folders that contain projects and are none; also every direct child of the second group. Some
# images mount a single project at /workspace, others clone several below it. The root is what paths
# are shown from: too wide a one makes them long, and makes the folder less clear.
_TOO_WIDE = {
    "",
    "/",
    "/root",
    "/home",
    "/Users",
    "/mnt",
    "/tmp",
    "/opt",
    "/srv",
    "/data",
    "/workspace",
}
_HOMES = {"/home", "/Users", "c:/Users"}
# The code of a model is here as often as in the user's own project; DeepView counts both too.
MODEL_LIBRARIES = ("transformers/models", "diffusers/models")
# What every call of a module goes through, so that it shows where torch is.
_OF_TORCH = "/torch/nn/modules/module.py"


@dataclass(frozen=True, slots=True)
class Project:
    """The user's code in one file's frames.

    ``root`` is as recorded, None if no frame looks like a project. ``seen_root`` is
    the one that the frames themselves suggest, whether or not one was given. ``is_project`` (bool)
    and ``relative_paths`` have one entry per frame of the FrameTable. ``includes`` are the
    libraries with frames that count too, ``unused_includes`` those that were requested and have
    none.
    """

    root: str | None
    seen_root: str | None
    is_inferred: bool
    is_project: BoolColumn
    relative_paths: tuple[str, ...]
    includes: tuple[str, ...] = ()
    unused_includes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Include:
    """Installed code that counts as the project: the models of libraries, and every ``--include``.

    ``path`` is a folder or file as recorded, or a package's below site-packages.
    """

    text: str
    path: str

    def contains(self, path: str) -> bool:
        """Return whether a normal path of a Python file is in it."""
        if is_generated(path):
            return False
        if is_absolute(self.path):
            return path == self.path or is_under(path, self.path)
        installed = installed_part(path)
        if installed is not None:
            return installed in (self.path, f"{self.path}.py") or installed.startswith(
                f"{self.path}/"
            )
        return f"/{self.path}/" in f"/{path}/" or f"/{path}".endswith(f"/{self.path}.py")


def parse_include(text: str, *, root: str | None) -> Include:
    """Read a package (``timm.models``, ``timm/models``), a path, or one relative to the root (``../lib``)."""
    if text.startswith(".") and root is not None:
        path = posixpath.normpath(posixpath.join(root, text.replace("\\", "/")))
    elif "/" in text or "\\" in text or text.endswith(".py"):
        path = normal(text)
    else:
        path = text.replace(".", "/")
    return Include(text, path)


def find_project(
    stacks: StackTable,
    *,
    bytes_of_stack: Int64Column | None = None,
    root: str | None = None,
    recorded: RecordedProject = NOT_RECORDED,
    includes: Sequence[str] = (),
) -> Project:
    """Decide for every frame whether it is the user's; infer the root where none is given or recorded.

    ``bytes_of_stack`` is what every stack has requested, by which the root is inferred; without it
    all stacks count the same. The user's are all Python files that no installer put there: a
    package beside the script's folder, or installed as editable, as well. A given root excludes
    what is not below it. ``includes`` are libraries that count too, beside those that were
    recorded. Where no file is the user's, the package counts that the program was started in.
    """
    frames, paths = stacks.frames, list(map(normal, stacks.frames.files))
    every = dict.fromkeys(paths)
    mine = _not_installed(set(paths))
    if bytes_of_stack is None:
        bytes_of_stack = np.ones(len(stacks), np.int64)
    seen = _infer_root(
        stacks, paths, {path for path in mine if not is_hidden(path)} or mine, bytes_of_stack
    )
    root_there = normal(recorded.root) if recorded.root else None
    chosen = normal(root) if root else root_there or seen
    is_named = bool(root) or (root_there is not None and recorded.is_given)
    own = {
        path
        for path in every
        if path in mine and (_belongs(path, chosen) or not (is_named or is_hidden(path)))
    }
    entry = None if own or is_named or includes else _entry_package(stacks, bytes_of_stack)
    wanted = dict.fromkeys(
        (*MODEL_LIBRARIES, *([entry] if entry else ()), *recorded.includes, *includes)
    )
    included = [parse_include(text, root=chosen) for text in wanted]
    included_by = {path: [one.text for one in included if one.contains(path)] for path in every}
    own |= {path for path, by in included_by.items() if by and is_python(path)}
    used = {text for by in included_by.values() for text in by}
    shown = [_shown(path, chosen, is_own=path in own) for path in paths]
    project = Project(
        root=chosen,
        seen_root=seen,
        is_inferred=not (root or recorded.root),
        is_project=frames.in_files(lambda file: normal(file) in own),
        relative_paths=tuple(map(shown.__getitem__, frames.file_id.tolist())),
        includes=tuple(text for text in wanted if text in used),
        unused_includes=tuple(t for t in wanted if t not in used and t not in MODEL_LIBRARIES),
    )
    return read_only(project)


def _entry_package(stacks: StackTable, bytes_of_stack: Int64Column) -> str | None:
    """Return the installed package that a program without a file of the user's was started in.

    Console scripts (``yolo train``) and modules (``-m trl.scripts.sft``) have none: the package
    with the outermost line stands for the project.
    """
    packages = [_package(normal(file)) for file in stacks.frames.filenames]
    n_bytes: Counter[str] = Counter()
    for stack, stack_bytes in enumerate(bytes_of_stack.tolist()):
        frames = reversed(stacks.frames_of(stack).tolist())
        outermost = next((packages[frame] for frame in frames if packages[frame]), None)
        if outermost is not None:
            n_bytes[outermost] += stack_bytes
    return _most(n_bytes) if n_bytes else None


# They start what others wrote.
_STARTERS = {"torch", "click", "fire", "typer", "hydra", "jsonargparse", "absl", "snapconv"}


def _package(path: str) -> str:
    """Return the installed package of a Python file; empty for none, and for one that starts others."""
    installed = None if not is_python(path) or is_standard_library(path) else installed_part(path)
    package = (installed or "").partition("/")[0]
    return "" if package in _STARTERS or package.endswith(".py") else package


def _not_installed(paths: set[str]) -> set[str]:
    """Return the Python files that are of no library, nor of a checkout of torch."""
    mine = {path for path in paths if is_python(path) and not is_library(path)}
    checkouts = {
        path.removesuffix(_OF_TORCH) + "/torch" for path in paths if path.endswith(_OF_TORCH)
    }
    return {path for path in mine if not any(is_under(path, checkout) for checkout in checkouts)}


def _belongs(path: str, root: str | None) -> bool:
    # A script started as `python train.py` is recorded by that relative name.
    return not is_absolute(path) or is_notebook(path) or (root is not None and is_under(path, root))


def _shown(path: str, root: str | None, *, is_own: bool) -> str:
    """Return a path as reports show it: from the root if that is shorter, or as a library's is imported."""
    installed = installed_part(path) if is_own else None
    if installed is not None:
        return installed
    if root is None or not is_absolute(path) or is_notebook(path):
        return path
    if is_under(path, root):
        return path[len(root.rstrip("/")) + 1 :]
    if is_own and is_absolute(root) and _drive(path) == _drive(root):
        return min(
            posixpath.relpath(path[len(_drive(path)) :], root[len(_drive(root)) :]), path, key=len
        )
    return path


def _drive(path: str) -> str:
    return path[:2].lower() if path[1:2] == ":" else ""


def _infer_root(
    stacks: StackTable, paths: Sequence[str], mine: set[str], bytes_of_stack: Int64Column
) -> str | None:
    """Return the common folder of the user's files, from the script that most of the bytes come from.

    ``paths`` are those of the distinct files. What starts a program, as a launcher does, is in all
    stacks too, but never innermost.
    """
    names = stacks.frames.names
    file_id = stacks.frames.file_id
    is_own = np.array([p in mine and is_absolute(p) and not is_notebook(p) for p in paths], bool)
    if not is_own.any():
        return None
    folder_of = [posixpath.dirname(path) for path in paths]
    is_mine = is_own[file_id]
    scripts = {
        folder_of[file_id[one]] for one in rows_of(is_mine).tolist() if names[one] == "<module>"
    }
    frame = stacks.only(is_mine).innermost
    n_bytes = sums_by(file_id[frame[frame >= 0]], bytes_of_stack[frame >= 0], len(paths))
    innermost: Counter[str] = Counter()
    for file in rows_of(is_own).tolist():
        innermost[folder_of[file]] += int(n_bytes[file])
    # Even a folder that contains projects, where the script is right in it: no other root has the
    # script.
    common = _most_bytes_below(scripts, innermost) if scripts else _most(innermost)
    for folder in sorted(innermost):
        wider = posixpath.commonpath([common, folder]) if common[:1] == folder[:1] else ""
        if not _is_too_wide(wider):
            common = wider
    return common


def _most_bytes_below(scripts: set[str], innermost: Counter[str]) -> str:
    """Return the folder of a script below which most of the bytes are, its own files first."""

    def n_below(script: str) -> int:
        return sum(
            n for folder, n in innermost.items() if folder == script or is_under(folder, script)
        )

    return min(scripts, key=lambda script: (-n_below(script), -innermost[script], script))


def _most(folders: Counter[str]) -> str:
    """Return the folder with the most bytes; of equals, the first by name."""
    return min(folders, key=lambda folder: (-folders[folder], folder))


def _is_too_wide(folder: str) -> bool:
    is_drive = folder[1:] == ":"
    return (
        is_drive or folder in _TOO_WIDE or folder in _HOMES or posixpath.dirname(folder) in _HOMES
    )
