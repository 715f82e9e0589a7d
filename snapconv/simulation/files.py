"""A program's own versions of the files that were there, which stay as they are.

``FileVersions.entries`` is the program's view of the file system: each name that it has made,
changed, moved or removed, and the true path of its contents. A changed file is a copy in a folder
that goes with the run, so that the original stays even where the process is killed. Functions of
Python that take a path, ``FUNCTIONS``, are given the true one. Other processes, and C code that
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
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import partial, wraps
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote, unquote

from snapconv.guest.import_hook import when_imported
from snapconv.guest.own_frames import for_program, is_in_our_work, stands_in
from snapconv.simulation.patches import Patches

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
    ARCHIVE = auto()  # where it is not known


@dataclass(frozen=True, slots=True)
class Entry:
    """A name of a file, a folder or a link, and the true path of its contents, if there is any.

    ``is_users``: it was there before the run. ``has_arrays``: the program opened it for writing
    after it was given an array of values that were not computed.
    """

    name: str
    path: str
    is_users: bool = False
    has_arrays: bool = False

    @property
    def exists(self) -> bool:
        """Whether there is something."""
        return os.path.lexists(self.path)

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder, and no link to one."""
        return os.path.isdir(self.path) and not os.path.islink(self.path)

    @property
    def is_kept(self) -> bool:
        """Whether it was there and has contents, which a device or a pipe has not."""
        kinds = (os.path.isfile, os.path.isdir, os.path.islink)
        return self.is_users and any(is_kind(self.path) for is_kind in kinds)


class FileVersions:
    """A program's view of the file system: entries by name; a file without one is in its folder."""

    def __init__(self, has_given_arrays: Callable[[], bool]) -> None:
        self._has_given_arrays = has_given_arrays
        self.folder = os.path.realpath(tempfile.mkdtemp(prefix="snapconv-"))
        self.entries: dict[str, Entry] = {}
        self._has_versions = self._is_closed = False
        self._replacements: dict[int, Any] = {}

    def at(self, path: Any, to: To = To.READ, *, follows: bool = True) -> Any:
        """Return the true path of a file; of the program's own version if it is to be written."""
        if not isinstance(path, str | bytes | os.PathLike) or not path:
            return path
        name = os.fsdecode(path)
        is_read = to in (To.READ, To.LOOK)
        if name.startswith(_NO_FILES) or (is_read and not self._has_versions):
            return path
        entry = self.find(path, follows=follows and to not in (To.LOOK, To.MAKE))
        true_path = entry.path if is_read else self._writable(entry, to)
        if true_path == os.path.abspath(name):
            return path
        return os.fsencode(true_path) if isinstance(path, bytes) else true_path

    def find(self, path: Any, *, follows: bool = True, n_links: int = 0) -> Entry:
        """Return a file's entry, by its full name without the links that the program sees."""
        path = Path(os.fsdecode(path)).absolute()
        if path == path.parent:
            return Entry(str(path), str(path), is_users=True)
        folder = self.find(path.parent, n_links=n_links)
        if path.name == "..":
            return self.find(Path(folder.name).parent)
        name = os.path.join(folder.name, path.name)
        true_path = os.path.join(folder.path, path.name)
        entry = self.entries.get(name) or Entry(name, true_path, folder.is_users)
        if follows and n_links < _MOST_LINKS and os.path.islink(entry.path):
            target = Path(folder.name, os.readlink(entry.path))
            return self.find(target, n_links=n_links + 1)
        return entry

    def is_new(self, entry: Entry) -> bool:
        """Whether an entry is the program's and no version, so that it stays."""
        return not entry.is_users and not entry.path.startswith(self.folder)

    def _writable(self, entry: Entry, to: To) -> str:
        """Return a path where the program may write: that of a version if the file was there."""
        path = entry.path
        if entry.is_users and entry.exists:
            if to is To.MAKE or not entry.is_kept:
                return path  # the function says that it is there, or that is no file
            if os.path.isdir(path):
                return tempfile.mkdtemp(
                    dir=self.folder
                )  # a folder's mode and times are forgotten
            path = self.new_path(entry.name)
            if to is To.CHANGE:
                self._copy(entry, path)
            else:
                Path(path).touch()
        has_arrays = to is To.ARCHIVE or (to is To.CHANGE and entry.has_arrays)
        has_arrays |= to is not To.SAVE and self._has_given_arrays()
        self.entries[entry.name] = Entry(entry.name, path, has_arrays=has_arrays)
        return path

    def _copy(self, entry: Entry, path: str) -> None:
        if os.path.getsize(entry.path) > _MAX_BYTES:
            reason = (
                "a file over 1 GiB is not copied to be changed where nothing is "
                "computed; open it to read"
            )
            raise for_program(OSError(errno.EFBIG, reason, entry.name))
        for ending in ("-wal", "-journal"):  # what SQLite left
            with suppress(OSError):
                shutil.copyfile(entry.path + ending, path + ending)
        shutil.copy2(entry.path, path, follow_symlinks=False)

    def new_path(self, name: str) -> str:
        """Name a file for a version."""
        self._has_versions = True
        ending = os.path.basename(name)[-100:]
        return os.path.join(self.folder, f"{uuid.uuid4().hex[:8]}-{ending}")

    def _vacate(self, entry: Entry) -> list[Entry]:
        """Let there be nothing by a name, and hide any true contents; return what was below it."""
        folder = entry.name + os.sep
        names = [name for name in list(self.entries) if name.startswith(folder)]
        below = [self.entries.pop(name) for name in names]
        self.entries.pop(entry.name, None)
        if entry.is_users or entry.path != entry.name:
            self.entries[entry.name] = Entry(entry.name, self.new_path(entry.name))
        return below

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
        options = dict(zip(_OPEN_ARGUMENTS, args, strict=False)) | kwargs
        opener = options.pop("opener", None) or partial(
            self.open_number, os.open, mode=0o666
        )
        return real(file, opener=opener, **options)

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
        return real(
            self.at(filename, To.CHANGE if shared else To.READ), shared, *args, **kwargs
        )

    def connect(self, real: Real, database: Any, *args: Any, **kwargs: Any) -> Any:
        """Open a database as ``sqlite3.connect`` does, by its path or its address."""
        if not str(database).startswith("file:"):
            return real(self.at(database, To.CHANGE), *args, **kwargs)
        path, _, query = str(database).removeprefix("file:").partition("?")
        true_path = self.at(unquote(path), To.READ if "mode=ro" in query else To.CHANGE)
        return real(f"file:{quote(true_path)}?{query}", *args, **kwargs)

    def remove(self, real: Real, path: Any, *args: Any, **kwargs: Any) -> None:
        """Remove a file, a link, an empty folder or a tree."""
        entry = self.find(path, follows=False)
        if not entry.is_kept or entry.is_folder != (real.__name__ in ("rmdir", "rmtree")):
            real(entry.path, *args, **kwargs)
            if entry.exists:  # errors are ignored
                return
        elif real.__name__ == "rmdir" and self.list_names(os.listdir, path):
            raise for_program(OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path))
        for inner in self._vacate(entry):
            if self.is_new(inner):  # in a folder that is hidden now
                delete = shutil.rmtree if inner.is_folder else os.unlink
                with suppress(OSError):
                    delete(inner.path)

    def rename(self, real: Real, src: Any, dst: Any) -> Any:
        """Rename; a new file is moved, any other has its new name in this run alone."""
        entry = self.find(src, follows=False)
        target = self.find(dst, follows=False)
        if not entry.exists or entry.name == target.name:
            return real(entry.path, target.path)
        if target.exists:
            self.remove(os.rmdir if target.is_folder else os.unlink, target.name)
            target = self.find(target.name, follows=False)
        # Not by renaming: a version may be in another file system.
        path = shutil.move(entry.path, target.path) if self.is_new(entry) else entry.path
        below = self._vacate(entry)
        self.entries[target.name] = replace(entry, name=target.name, path=path)
        for inner in below:
            name = target.name + inner.name.removeprefix(entry.name)
            inner_path = inner.path.replace(entry.path + os.sep, path + os.sep)
            self.entries[name] = replace(inner, name=name, path=inner_path)
        return None

    def link(self, real: Real, src: Any, dst: Any, *args: Any, **kwargs: Any) -> None:
        """Make a hard link; a file that was there has that name in this run alone."""
        entry = self.find(src)
        target = self.find(dst, follows=False)
        if target.exists or self.is_new(entry):
            real(entry.path, self.at(dst, To.MAKE), *args, **kwargs)
        else:
            self.entries[target.name] = replace(entry, name=target.name)
            self._has_versions = True

    def list_names(self, real: Real, path: Any = ".") -> Any:
        """List a folder as the program sees it."""
        if not isinstance(path, str | os.PathLike) or not self._has_versions:
            return real(path)
        folder = self.find(path)
        inside: dict[str, bool] = {}
        for entry in list(self.entries.values()):
            parent, name = os.path.split(entry.name)
            if parent == folder.name:
                inside[name] = entry.exists
        names = [name for name in real(folder.path) if name not in inside]
        return names + [name for name, exists in inside.items() if exists]

    def scan(self, real: Real, path: Any = ".") -> Any:
        """Do what ``os.scandir`` does."""
        if not isinstance(path, str | os.PathLike) or not self._has_versions:
            return real(path)
        return _Scan(
            _FolderEntry.inside(path, name) for name in self.list_names(os.listdir, path)
        )

    def close(self) -> None:
        """Let all files be what they are, and remove the versions."""
        self._is_closed = True
        # Also in modules that the program has imported.
        for module, name, replacement in _globals_among(self._replacements):
            setattr(module, name, replacement.__wrapped__)
        shutil.rmtree(self.folder, ignore_errors=True)

    def patch(self, patches: Patches, *tables: tuple["Functions", object]) -> None:
        """Replace functions by methods of an object, as soon as their modules are imported."""
        modules: dict[str, dict[str, Real]] = {}
        for functions, owner in tables:
            for module, rows in functions.items():
                works = modules.setdefault(module, {})
                for path, method, *arguments in rows:
                    works[path] = partial(method, owner, *arguments)
        for module, works in modules.items():
            patches.enter_context(
                when_imported(module, partial(self._patch_module, patches, module, works))
            )

    def _patch_module(self, patches: Patches, module: str, works: dict[str, Real]) -> None:
        wrapped: dict[int, Real] = {}
        for path, work in works.items():
            *owners, name = path.split(".")
            owner: Any = sys.modules[module]
            for owner_name in owners:
                owner = getattr(owner, owner_name, None)
            real = getattr(owner, name, None)
            if real is None:  # not every Python has each, on every system
                continue
            replacement: Any = self._wrapped(real, work)
            if not owners:
                wrapped[id(real)] = replacement
                self._replacements[id(replacement)] = replacement
                continue
            if isinstance(vars(owner).get(name), staticmethod):
                replacement = staticmethod(replacement)
            patches.set(owner, name, replacement)
        for holder, name, real in _globals_among(wrapped):
            patches.set(holder, name, wrapped[id(real)])

    def _wrapped(self, real: Real, work: Real) -> Real:
        """Make a function that does the program's calls of ``real``."""

        @stands_in
        @wraps(real)
        def call(*args: Any, **kwargs: Any) -> Any:
            # An opener opens another file than is named: tempfile's one in that folder.
            is_elsewhere = any(kwargs.get(name) is not None for name in _ELSEWHERE)
            if is_elsewhere or self._is_closed or is_in_our_work(sys._getframe(1)):
                return real(*args, **kwargs)
            # Not guarded: torch's own would write over files.
            return work(real, *args, **kwargs)

        return call


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
    "shutil": (("rmtree", FileVersions.remove),),
    "sqlite3": (("connect", FileVersions.connect),),
    "torch": (("from_file", FileVersions.map_file),),
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
    "safetensors": (("serialize_file", FileVersions.do, To.OVERWRITE, 1),),
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
_OPEN_ARGUMENTS = (
    "mode",
    "buffering",
    "encoding",
    "errors",
    "newline",
    "closefd",
    "opener",
)
_NAMES_OF_PATHS = ("path", "dst", "f", "filename")
_ELSEWHERE = ("dir_fd", "src_dir_fd", "dst_dir_fd", "opener")
