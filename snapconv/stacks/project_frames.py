"""The frames of the user's own code: below the project root, given or inferred, or included."""

import posixpath
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from snapconv.columns import (
    BoolColumn,
    Int64Column,
    plain_rows,
    read_only,
    rows_of,
    sums_by,
)
from snapconv.snapshot.recorded.metadata import NOT_RECORDED, RecordedProject
from snapconv.snapshot.stack_table import FrameTable, StackTable
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
# Every call of a module goes through this file, so that it shows where torch is.
_MODULE_FILE = "/torch/nn/modules/module.py"


@dataclass(frozen=True, slots=True)
class Project:
    """The user's code in one file's frames.

    ``root`` is as recorded, None if no frame looks like a project. ``seen_root`` is the one that
    the frames themselves suggest, whether or not one was given. ``is_project`` (bool) and
    ``relative_paths`` have one entry per frame of the FrameTable. ``includes`` are the libraries
    with frames that count too, ``unused_includes`` those that were requested and have none.
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
        folder = f"{self.path}/"
        file = f"{self.path}.py"
        installed = installed_part(path)
        if installed is not None:
            return installed in (self.path, file) or installed.startswith(folder)
        return f"/{folder}" in f"/{path}/" or f"/{path}".endswith(f"/{file}")


def parse_include(text: str, *, root: str | None) -> Include:
    """Read a package, a path, or one relative to the root.

    ``timm.models``, ``timm/models``, ``/w/lib/timm``, ``../lib``.
    """
    if text.startswith(".") and root is not None:
        joined = posixpath.join(root, text.replace("\\", "/"))
        path = posixpath.normpath(joined)
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
    """Decide for every frame whether it is the user's; infer the root if none is given or recorded.

    ``bytes_of_stack`` is what every stack has requested, by which the root is inferred; without it
    all stacks count the same. The user's are all Python files that no installer put there: a
    package beside the script's folder, or installed as editable, as well. A given root excludes
    what is not below it. ``includes`` are libraries that count too, beside those that were
    recorded. Where no file is the user's, the package counts that the program was started in.
    """
    paths = list(map(normal, stacks.frames.files))
    if bytes_of_stack is None:
        bytes_of_stack = np.ones(len(stacks), np.int64)
    user_paths = _not_installed(set(paths))
    # What editors and caches keep in hidden folders is nobody's project, but for want of another.
    visible_paths = {path for path in user_paths if not is_hidden(path)}
    seen_root = _infer_root(stacks, paths, visible_paths or user_paths, bytes_of_stack)
    chosen_root, is_given = _chosen_root(root, recorded, seen_root)
    project_paths = _project_paths(user_paths, chosen_root, root_is_given=is_given)
    requested = [*recorded.includes, *includes]
    if not (project_paths or is_given or includes):
        requested = _entry_packages(stacks, bytes_of_stack) + requested
    texts = dict.fromkeys((*MODEL_LIBRARIES, *requested))
    included_paths = _included_paths(texts, chosen_root, paths)
    for library_paths in included_paths.values():
        project_paths.update(filter(is_python, library_paths))
    project = Project(
        root=chosen_root,
        seen_root=seen_root,
        is_inferred=not (root or recorded.root),
        is_project=stacks.frames.mark_files(lambda file: normal(file) in project_paths),
        relative_paths=_relative_paths(stacks.frames, chosen_root, project_paths),
        includes=tuple(included_paths),
        unused_includes=_unused(texts, included_paths),
    )
    return read_only(project)


def _chosen_root(
    root: str | None, recorded: RecordedProject, seen_root: str | None
) -> tuple[str | None, bool]:
    """Return the root that counts, and whether somebody gave it."""
    if root:
        return normal(root), True
    if not recorded.root:
        return seen_root, False
    return normal(recorded.root) or seen_root, recorded.is_given


def _project_paths(
    user_paths: set[str], root: str | None, *, root_is_given: bool
) -> set[str]:
    """Return the user's files that belong to the project.

    Those outside of a root that was inferred do too, unless they are hidden.
    """
    project_paths = {path for path in user_paths if _belongs(path, root)}
    if not root_is_given:
        project_paths |= {path for path in user_paths if not is_hidden(path)}
    return project_paths


def _included_paths(
    texts: Iterable[str], root: str | None, paths: Sequence[str]
) -> dict[str, list[str]]:
    """Return the files of the libraries that count too, where they have any, by their texts."""
    included_paths = {}
    for text in texts:
        include = parse_include(text, root=root)
        library_paths = list(filter(include.contains, paths))
        if library_paths:
            included_paths[text] = library_paths
    return included_paths


def _unused(texts: Iterable[str], included_paths: dict[str, list[str]]) -> tuple[str, ...]:
    """Return the libraries that were requested and have no file."""
    return tuple(t for t in texts if t not in included_paths and t not in MODEL_LIBRARIES)


def _relative_paths(
    frames: FrameTable, root: str | None, project_paths: set[str]
) -> tuple[str, ...]:
    """Return the path of every frame as reports show it."""
    shown = []
    for file in frames.files:
        path = normal(file)
        shown.append(_shown(path, root, is_own=path in project_paths))
    return tuple(map(shown.__getitem__, frames.file_id.tolist()))


def _entry_packages(stacks: StackTable, bytes_of_stack: Int64Column) -> list[str]:
    """Return the installed package that the program was started in, if there is one.

    Console scripts (``yolo train``) and modules (``-m trl.scripts.sft``) have no file of the
    user's: the package with the outermost line stands for the project.
    """
    is_of_package = stacks.frames.mark_files(_is_of_package)
    outermost = stacks.only(is_of_package).outermost
    n_bytes: Counter[str] = Counter()
    for frame, stack_bytes in plain_rows(outermost, bytes_of_stack):
        if frame >= 0:
            n_bytes[_package(stacks.frames.filenames[frame])] += stack_bytes
    return [_fullest(n_bytes)] if n_bytes else []


# They start what others wrote.
_STARTERS = {"torch", "click", "fire", "typer", "hydra", "jsonargparse", "absl", "snapconv"}


def _is_of_package(file: str) -> bool:
    return bool(_package(file))


def _package(file: str) -> str:
    """Return the installed package of a Python file.

    Empty for a file of none, and for a package that starts others.
    """
    path = normal(file)
    if not is_python(path) or is_standard_library(path):
        return ""
    package = (installed_part(path) or "").partition("/")[0]
    return "" if package in _STARTERS or package.endswith(".py") else package


def _not_installed(paths: set[str]) -> set[str]:
    """Return the Python files that are of no library, nor of a checkout of torch."""
    user_paths = {path for path in paths if is_python(path) and not is_library(path)}
    for path in paths:
        if path.endswith(_MODULE_FILE):
            checkout = path.removesuffix(_MODULE_FILE) + "/torch"
            user_paths = {user for user in user_paths if not is_under(user, checkout)}
    return user_paths


def _belongs(path: str, root: str | None) -> bool:
    # A script started as `python train.py` is recorded by that relative name.
    return (
        not is_absolute(path)
        or is_notebook(path)
        or (root is not None and is_under(path, root))
    )


def _shown(path: str, root: str | None, *, is_own: bool) -> str:
    """Return a path as reports show it.

    From the root if that is shorter; a library's as it is imported.
    """
    installed = installed_part(path) if is_own else None
    if installed is not None:
        return installed
    if root is None or not is_absolute(path) or is_notebook(path):
        return path
    if is_under(path, root):
        return path[len(root.rstrip("/")) + 1 :]
    drive = _drive(path)
    if is_own and is_absolute(root) and drive == _drive(root):
        relative = posixpath.relpath(path[len(drive) :], root[len(drive) :])
        return min(relative, path, key=len)
    return path


def _drive(path: str) -> str:
    return path[:2].lower() if path[1:2] == ":" else ""


def _infer_root(
    stacks: StackTable,
    paths: Sequence[str],
    user_paths: set[str],
    bytes_of_stack: Int64Column,
) -> str | None:
    """Return the common folder of the user's files, from the script with most of the bytes.

    ``paths`` are those of the distinct files. What starts a program, as a launcher does, is in all
    stacks too, but never innermost.
    """
    names = stacks.frames.names
    file_id = stacks.frames.file_id
    may_count = [
        path in user_paths and is_absolute(path) and not is_notebook(path) for path in paths
    ]
    is_user_file = np.array(may_count, bool)
    if not is_user_file.any():
        return None
    folders = list(map(posixpath.dirname, paths))
    is_user_frame = is_user_file[file_id]
    user_frames = rows_of(is_user_frame).tolist()
    scripts = {
        folders[file_id[frame]] for frame in user_frames if names[frame] == "<module>"
    }
    frame = stacks.only(is_user_frame).innermost
    has_frame = frame >= 0
    n_bytes = sums_by(file_id[frame[has_frame]], bytes_of_stack[has_frame], len(paths))
    innermost: Counter[str] = Counter()
    for file in rows_of(is_user_file).tolist():
        innermost[folders[file]] += int(n_bytes[file])
    # Even a folder that contains projects, where the script is right in it: no other root has the
    # script.
    common = _most_bytes_below(scripts, innermost) if scripts else _fullest(innermost)
    for folder in sorted(innermost):
        if common[:1] == folder[:1]:
            wider = posixpath.commonpath([common, folder])
            if not _is_too_wide(wider):
                common = wider
    return common


def _most_bytes_below(scripts: set[str], innermost: Counter[str]) -> str:
    """Return the folder of a script below which most of the bytes are, its own files first."""

    def sort_key(script: str) -> tuple[int, int, str]:
        n_below = 0
        for folder, n_bytes in innermost.items():
            if folder == script or is_under(folder, script):
                n_below += n_bytes
        return -n_below, -innermost[script], script

    return min(scripts, key=sort_key)


def _fullest(folders: Counter[str]) -> str:
    """Return the folder with the most bytes; of equals, the first by name."""
    most_bytes = max(folders.values())
    return min(folder for folder, n_bytes in folders.items() if n_bytes == most_bytes)


def _is_too_wide(folder: str) -> bool:
    if folder[1:] == ":":  # a drive
        return True
    return folder in _TOO_WIDE or folder in _HOMES or posixpath.dirname(folder) in _HOMES
