"""A program's own versions of the files that were there, which stay as they are.

One rule: a file that was there and that the program opens to change is copied into a folder of the
run, once; a name that it removes or moves is gone. ``FileVersions.versions`` has such names and
where they lead, and ``FUNCTIONS`` the functions of Python that take a path, which are given the
true one. The originals stay even where the process is killed. Other processes, and C code that
opens files by itself, are not seen.
"""

import errno
import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from enum import Enum, auto
from functools import partial, wraps
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote, unquote

from snapconv.errors import RecorderError
from snapconv.guest.import_hook import when_imported
from snapconv.guest.own_frames import for_program, is_in_our_work, stands_in
from snapconv.simulation.patches import Patches
from snapconv.simulation.tracker import Tracker

# No larger file is copied to be changed.
_MAX_BYTES = 1 << 30
_MOST_LINKS = 40
# Other names of files that are open.
_NO_FILES = ("/dev/std", "/dev/fd", "/proc/")

Real = Callable[..., Any]


class To(Enum):
    """The purpose for which a program names a file."""

    READ = auto()
    LOOK = auto()  # at a link itself
    MAKE = auto()
    CHANGE = auto()
    OVERWRITE = auto()
    SAVE = auto()  # where it is known what is computed
    ARCHIVE = (
        auto()
    )  # values that need not be computed: in the folder of the run, even if new


class FileVersions:
    """A program's view of the file system."""

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker
        self.folder = os.path.realpath(tempfile.mkdtemp(prefix="snapconv-"))
        # The path of the program's version of a name; nothing is there if the name is gone.
        self.versions: dict[str, str] = {}
        # The paths that the program has written, and whether their contents may be values that were
        # not computed: the program had been given an array of such values before it opened them.
        self.new: dict[str, bool] = {}
        self._is_closed = False
        # What stands in for functions, by id.
        self._replacements: dict[int, Any] = {}

    def at(self, path: Any, to: To = To.READ, *, follows: bool = True) -> Any:
        """Return the true path of a file; of the program's own version if it is to be written."""
        if not isinstance(path, str | bytes | os.PathLike) or not path:
            return path
        name = os.fsdecode(path)
        is_read = to in (To.READ, To.LOOK)
        if name.startswith(_NO_FILES) or (is_read and not self.versions):
            return path
        key, true_path = self.find(path, follows=follows and to not in (To.LOOK, To.MAKE))
        if not is_read:
            true_path = self._writable(key, true_path, to)
        return path if true_path == os.path.abspath(name) else true_path

    def find(self, path: Any, *, follows: bool = True) -> tuple[str, str]:
        """Follow a path by the links that the program sees, to its name and its true path.

        The name is the key in ``versions``: the true path of the folder, with the last part added.
        Parts are followed one after the other. ``prefix`` is the path so far as the program writes
        it, from which ``..`` and relative links lead on.
        """
        remaining = [*reversed(Path(os.fsdecode(path)).absolute().parts)]
        prefix = true_path = name = remaining.pop()
        n_links = 0
        while remaining:
            part = remaining.pop()
            name = os.path.join(true_path, part)
            inside = self.versions.get(name, name)
            is_link = (follows or bool(remaining)) and os.path.islink(inside)
            if part == "..":
                target = os.path.dirname(prefix)
            elif is_link and n_links < _MOST_LINKS:
                n_links += 1
                target = os.path.join(prefix, os.readlink(inside))
            else:
                prefix = os.path.join(prefix, part)
                true_path = inside
                continue
            remaining += reversed(Path(target).parts)
            prefix = true_path = name = remaining.pop()
        return name, true_path

    def name_of(self, path: str) -> str:
        """Name a true path as the program does."""
        for name, true_path in [*self.versions.items()]:
            if path == true_path or path.startswith(true_path + os.sep):
                # Names are true paths but for their last part.
                folder, last = os.path.split(name)
                return os.path.join(self.name_of(folder), last) + path.removeprefix(
                    true_path
                )
        return path

    def is_new(self, path: str) -> bool:
        """Whether the program has made a true path outside the folder of the run."""
        is_version = path.startswith(self.folder)
        paths = {path, *map(str, Path(path).parents)}
        return not is_version and not paths.isdisjoint(self.new)

    def is_users(self, path: str) -> bool:
        """Whether there is something at a true path that was there before the run."""
        is_ours = path.startswith(self.folder) or self.is_new(path)
        return os.path.lexists(path) and not is_ours

    def _writable(self, name: str, path: str, to: To) -> str:
        """Return a path where the program may write: that of a version if the file was there."""
        is_users = self.is_users(path)
        if is_users and os.path.isdir(path) and to is not To.MAKE:
            # The program changes a folder's mode or times: those of an empty folder instead.
            return tempfile.mkdtemp(dir=self.folder)
        if is_users and (to is To.MAKE or not os.path.isfile(path)):
            return path  # the call fails, as the file exists; or it is a pipe or a device
        if is_users or to is To.ARCHIVE:
            path = self._version(name, path, to)
        has_arrays = to is To.ARCHIVE or (to is To.CHANGE and self.new.get(path, False))
        self.new[path] = has_arrays or (to is not To.SAVE and self.tracker.has_given_arrays)
        return path

    def _version(self, name: str, original: str, to: To) -> str:
        """Make a file in the folder of the run, and let a name lead to it."""
        path = self.new_path(name)
        if to is To.CHANGE:
            _copy(original, path)
        else:
            Path(path).touch()
        self.versions[name] = path
        return path

    def new_path(self, name: str) -> str:
        """Name a file for a version."""
        ending = os.path.basename(name)[-100:]
        return os.path.join(self.folder, f"{uuid.uuid4().hex[:8]}-{ending}")

    # The work of functions, which are given as the first argument.

    def do(self, to: To, position: int, real: Real, *args: Any, **kwargs: Any) -> Any:
        """Do what a function does that takes a path at a position of its arguments."""
        at = partial(self.at, to=to, follows=kwargs.get("follow_symlinks", True))
        arguments = list(args)
        if position < len(arguments):
            arguments[position] = at(arguments[position])
        for name in _NAMES_OF_PATHS:
            if name in kwargs:
                kwargs[name] = at(kwargs[name])
        return real(*arguments, **kwargs)

    def open(self, real: Real, file: Any, *args: Any, **kwargs: Any) -> Any:
        """Open a file as ``open`` does, which has ``os.open`` do it."""
        opener = partial(self.open_number, os.open, mode=0o666)
        return real(file, *args, **kwargs | {"opener": opener})

    def open_number(
        self, real: Real, path: Any, flags: int, mode: int = 0o777, **kwargs: Any
    ) -> Any:
        """Open a file as ``os.open`` does."""
        to = next((to for flag, to in _FLAG_PURPOSES if flags & flag), To.READ)
        return real(self.at(path, to), flags, mode, **kwargs)

    def map_file(
        self, real: Real, filename: Any, shared: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Do what ``torch.from_file`` does."""
        to = To.CHANGE if shared else To.READ
        return real(self.at(filename, to), shared, *args, **kwargs)

    def connect(self, real: Real, database: Any, *args: Any, **kwargs: Any) -> Any:
        """Open a database as ``sqlite3.connect`` does, by its path or its address."""
        if not str(database).startswith("file:"):
            return real(self.at(database, To.CHANGE), *args, **kwargs)
        path, _, query = str(database).removeprefix("file:").partition("?")
        true_path = self.at(unquote(path), To.READ if "mode=ro" in query else To.CHANGE)
        return real(f"file:{quote(true_path)}?{query}", *args, **kwargs)

    def remove(self, real: Real, path: Any, *args: Any, **kwargs: Any) -> None:
        """Remove a file, a link or an empty folder."""
        name, true_path = self.find(path, follows=False)
        is_folder = _is_folder(true_path)
        if not self.is_users(true_path) or is_folder != (real.__name__ == "rmdir"):
            real(true_path, *args, **kwargs)
            self.new.pop(true_path, None)
            return
        if is_folder and self.list_names(os.listdir, path):
            raise for_program(OSError(errno.ENOTEMPTY, "Directory not empty", path))
        self.versions[name] = self.new_path(name)

    def rename(self, real: Real, src: Any, dst: Any) -> Any:
        """Rename; a new file is moved, any other has its new name in this run alone."""
        name, path = self.find(src, follows=False)
        target_name, target = self.find(dst, follows=False)
        if name == target_name or not os.path.lexists(path):
            return real(path, target)
        if os.path.lexists(target):
            self.remove(os.rmdir if _is_folder(target) else os.unlink, dst)
            _, target = self.find(dst, follows=False)
        if self.is_new(path):
            # Not by renaming: a version may be in another file system.
            shutil.move(path, target)
            self._move_names(path, target)
        else:
            self.versions[name] = self.new_path(name)
            self.versions[target_name] = path
        return None

    def _move_names(self, path: str, target: str) -> None:
        """Give what is known of a path, and of what was in it, to another one."""
        tables: tuple[dict[str, Any], ...] = (self.new, self.versions)
        for table in tables:
            for name in list(table):
                if Path(name).is_relative_to(path):
                    table[target + name.removeprefix(path)] = table.pop(name)

    def link(self, real: Real, src: Any, dst: Any, *args: Any, **kwargs: Any) -> None:
        """Make a hard link; a file that was there has that name in this run alone."""
        _, path = self.find(src)
        name, target = self.find(dst, follows=False)
        if self.is_new(path) or os.path.lexists(target):
            real(path, self.at(dst, To.MAKE), *args, **kwargs)
        else:
            self.versions[name] = path

    def list_names(self, real: Real, path: Any = ".") -> Any:
        """List a folder as the program sees it."""
        if not isinstance(path, str | os.PathLike) or not self.versions:
            return real(path)
        _, folder = self.find(path)
        inside: dict[str, bool] = {}
        for name, true_path in [*self.versions.items()]:
            if os.path.dirname(name) == folder:
                inside[os.path.basename(name)] = os.path.lexists(true_path)
        names = [name for name in real(folder) if name not in inside]
        return names + [name for name, exists in inside.items() if exists]

    def scan(self, real: Real, path: Any = ".") -> Any:
        """Do what ``os.scandir`` does."""
        if not isinstance(path, str | os.PathLike) or not self.versions:
            return real(path)
        names = self.list_names(os.listdir, path)
        return _Scan(_FolderEntry.inside(path, name) for name in names)

    def close(self) -> None:
        """Let all files be what they are, and remove the versions."""
        self._is_closed = True
        # Also in modules that the program has imported.
        for module, name, replacement in _globals_among(self._replacements):
            setattr(module, name, replacement.__wrapped__)
        shutil.rmtree(self.folder, ignore_errors=True)

    def patch(self, patches: Patches, functions: "Functions") -> None:
        """Replace functions of modules, by the rows of FUNCTIONS, once they are imported."""
        # Else rmtree removes files by numbers of open folders, not by paths (Python 3.10 to 3.14).
        if not hasattr(shutil, "_use_fd_functions"):
            raise RecorderError(
                "with this Python, --no-compute cannot keep files from shutil.rmtree; "
                "record without it"
            )
        patches.set(shutil, "_use_fd_functions", value=False)
        for module, rows in functions.items():
            work = partial(self._patch_module, patches, module, rows)
            patches.enter_context(when_imported(module, work))

    def _patch_module(
        self, patches: Patches, module: str, rows: tuple[tuple[Any, ...], ...]
    ) -> None:
        """Replace functions, in their module and in every other one that has imported them."""
        replacements: dict[int, Real] = {}
        for path, work, *arguments in rows:
            *owners, name = path.split(".")
            owner: Any = sys.modules[module]
            for owner_name in owners:
                owner = getattr(owner, owner_name, None)
            real = getattr(owner, name, None)
            if real is None:  # not every Python has each, on every system
                continue
            replacement: Any = self._wrapped(real, partial(work, self, *arguments))
            if not owners:
                replacements[id(real)] = replacement
                self._replacements[id(replacement)] = replacement
                continue
            if isinstance(vars(owner).get(name), staticmethod):
                replacement = staticmethod(replacement)
            patches.set(owner, name, replacement)
        for holder, name, real in _globals_among(replacements):
            patches.set(holder, name, replacements[id(real)])

    def _wrapped(self, real: Real, work: Real) -> Real:
        """Make a function that does the program's calls of ``real``."""

        @stands_in
        @wraps(real)
        def call(*args: Any, **kwargs: Any) -> Any:
            # Relative to an open folder, or opened by an opener (tempfile's makes another file
            # inside the folder that is named), a path is not the file's own.
            is_elsewhere = any(kwargs.get(name) is not None for name in _ELSEWHERE)
            if is_elsewhere or self._is_closed or is_in_our_work(sys._getframe(1)):
                return real(*args, **kwargs)
            # No guard calls the original after a fault of ours: it would write over the file.
            return work(real, *args, **kwargs)

        return call


def _is_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _copy(source: str, path: str) -> None:
    if os.path.getsize(source) > _MAX_BYTES:
        reason = (
            "a file over 1 GiB is not copied to be changed where nothing is "
            "computed; open it to read"
        )
        raise for_program(OSError(errno.EFBIG, reason, source))
    for ending in ("-wal", "-journal"):  # what SQLite left
        with suppress(OSError):
            shutil.copyfile(source + ending, path + ending)
    shutil.copy2(source, path)


class _FolderEntry(type(Path())):  # type: ignore[misc]
    """An entry of a folder, as ``os.scandir`` has them."""

    path: str

    @classmethod
    def inside(cls, folder: Any, name: str) -> Any:
        """Make the entry of a name in a folder."""
        entry = cls(folder, name)
        entry.path = os.path.join(folder, name)
        return entry

    @stands_in
    def inode(self) -> int:
        return int(self.lstat().st_ino)

    @stands_in
    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return (follow_symlinks or not self.is_symlink()) and super().is_dir()

    @stands_in
    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return (follow_symlinks or not self.is_symlink()) and super().is_file()


class _Scan(closing):  # type: ignore[type-arg]
    """Entries of a folder, as ``os.scandir`` gives them."""

    def __iter__(self) -> Any:
        return self.__enter__()

    def __next__(self) -> Any:
        return next(self.__enter__())

    def close(self) -> None:
        self.__exit__()


def _globals_among(functions: dict[int, Real]) -> list[tuple[ModuleType, str, Any]]:
    """List the globals of all modules that are among functions, by id.

    ``tarfile`` has a name of its own for ``open``.
    """
    rows = []
    for module_name, module in list(sys.modules.items()):
        # The import system has its own, of posix.
        if type(module) is not ModuleType or module_name in ("posix", "nt"):
            continue
        for name, value in list(vars(module).items()):
            if id(value) in functions:
                rows.append((module, name, value))
    return rows


Functions = dict[str, tuple[tuple[Any, ...], ...]]

# Functions of os by name; the same of pathlib's accessor in Python 3.10.
_OS_FUNCTIONS: tuple[tuple[Any, ...], ...] = (
    ("stat", FileVersions.do, To.READ, 0),
    ("statvfs", FileVersions.do, To.READ, 0),
    ("access", FileVersions.do, To.READ, 0),
    ("getxattr", FileVersions.do, To.READ, 0),
    ("listxattr", FileVersions.do, To.READ, 0),
    ("lstat", FileVersions.do, To.LOOK, 0),
    ("readlink", FileVersions.do, To.LOOK, 0),
    ("mkdir", FileVersions.do, To.MAKE, 0),
    ("symlink", FileVersions.do, To.MAKE, 1),
    ("truncate", FileVersions.do, To.CHANGE, 0),
    ("utime", FileVersions.do, To.CHANGE, 0),
    ("chmod", FileVersions.do, To.CHANGE, 0),
    ("chown", FileVersions.do, To.CHANGE, 0),
    ("setxattr", FileVersions.do, To.CHANGE, 0),
    ("removexattr", FileVersions.do, To.CHANGE, 0),
    ("remove", FileVersions.remove),
    ("unlink", FileVersions.remove),
    ("rmdir", FileVersions.remove),
    ("rename", FileVersions.rename),
    ("replace", FileVersions.rename),
    ("link", FileVersions.link),
    ("listdir", FileVersions.list_names),
    ("scandir", FileVersions.scan),
    ("open", FileVersions.open_number),
)


def _accessor_functions() -> Iterator[tuple[Any, ...]]:
    """List the functions of os as pathlib has them in Python 3.10: its ``open`` is another one."""
    for name, *work in _OS_FUNCTIONS:
        if name != "open":
            yield f"_normal_accessor.{name}", *work


# How a program reaches files, by module: the function, the method that does its work, and that
# method's first arguments. For ``do`` these are the purpose of a path and its position in the call.
FUNCTIONS: Functions = {
    "builtins": (("open", FileVersions.open),),
    "os": _OS_FUNCTIONS,
    "pathlib": (("_normal_accessor.open", FileVersions.open), *_accessor_functions()),
    "sqlite3": (("connect", FileVersions.connect),),
    "torch": (
        ("from_file", FileVersions.map_file),
        ("UntypedStorage.from_file", FileVersions.map_file),
        # What it opens is known to be computed or not.
        ("save", FileVersions.do, To.SAVE, 1),
    ),
    "torch.jit": (
        ("load", FileVersions.do, To.READ, 0),
        ("RecursiveScriptModule.save", FileVersions.do, To.ARCHIVE, 1),
    ),
    # torch.export and torch.package use them.
    "torch._C": (
        ("PyTorchFileReader.__init__", FileVersions.do, To.READ, 1),
        ("PyTorchFileWriter.__init__", FileVersions.do, To.ARCHIVE, 1),
    ),
    # Written in Rust.
    "safetensors": (
        ("serialize_file", FileVersions.do, To.OVERWRITE, 1),
        ("safe_open", FileVersions.do, To.READ, 0),
    ),
    "tokenizers": (
        ("Tokenizer.save", FileVersions.do, To.OVERWRITE, 1),
        ("Tokenizer.from_file", FileVersions.do, To.READ, 0),
    ),
}
if sys.version_info[:2] == (3, 13):  # no other has functions of os there
    FUNCTIONS["glob"] = (
        ("_StringGlobber.lstat", FileVersions.do, To.LOOK, 0),
        ("_StringGlobber.scandir", FileVersions.scan),
    )
_FLAG_PURPOSES = (
    (os.O_EXCL, To.MAKE),
    (os.O_TRUNC, To.OVERWRITE),
    (os.O_WRONLY | os.O_RDWR | os.O_CREAT, To.CHANGE),
)
_NAMES_OF_PATHS = ("path", "dst", "f", "filename")
_ELSEWHERE = ("dir_fd", "src_dir_fd", "dst_dir_fd", "opener")
