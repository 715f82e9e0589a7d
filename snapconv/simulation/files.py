"""A program's own versions of the files that were there, which stay as they are.

The program finds what it has made of them: a changed file is a copy, in a folder that goes with the run, a
removed one is hidden, and one by a new name is read where it is. That goes by names, in the functions of
Python that take one. Other processes, and C code that opens files by itself, are not seen.
"""

import errno
import io
import os
import pathlib
import shutil
import stat
import sys
import tempfile
import uuid
from collections.abc import Callable
from contextlib import closing, suppress
from enum import Enum, auto
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote, unquote

from snapconv.recorder.program.own_frames import for_program, is_in_our_work, stands_in
from snapconv.simulation.branches import shortened, users_own_place
from snapconv.simulation.patches import Patches

# No larger file is copied to be changed.
_MOST_BYTES = 1 << 30
# Other names of files that are open.
_NO_FILES = ("/dev/std", "/dev/fd", "/proc/")
_MOST_LINKS = 40
_MOST_NAMED = 100

Real = Callable[..., Any]


class To(Enum):
    """The purpose for which a program names a file."""

    READ = auto()
    MAKE = auto()
    CHANGE = auto()
    OVERWRITE = auto()
    REMOVE = auto()


class FileVersions:
    """The files that a program has made, and its versions of those that were there.

    ``places``: where files lie that do not lie where their names say. ``made``: the program's files and
    folders by place, and whether they may have values that were not computed. ``beyond``: what is not undone.
    """

    def __init__(self, may_be_uncomputed: Callable[[], bool]) -> None:
        self._may_be_uncomputed = may_be_uncomputed
        self.folder = os.path.realpath(tempfile.mkdtemp(prefix="snapconv-"))
        self.places: dict[str, str] = {}
        self.made = {self.folder: False}
        self._open, self._pid, self.by_others = io.open, os.getpid(), f"{self.folder}{os.sep}made"
        self.beyond: dict[str, None] = {}
        self._wrapped: dict[int, Real] = {}
        self._is_closed = False

    def _do(self, to: To, real: Real, *args: Any, **kwargs: Any) -> Any:
        """Do to a file what a function that is given its path first does."""
        follows = to is not To.MAKE and real.__name__ not in ("lstat", "readlink")
        at = partial(self.at, to=to, follows=follows and kwargs.get("follow_symlinks", True))
        if args:
            return real(at(args[0]), *args[1:], **kwargs)
        return real(
            **{name: at(value) if i == 0 else value for i, (name, value) in enumerate(kwargs.items())}
        )

    def open(self, real: Real, file: Any, mode: Any = "r", *args: Any, **kwargs: Any) -> Any:
        """Open a file as ``open`` does."""
        to = To.OVERWRITE if "w" in mode else To.CHANGE if set(mode) & set("a+") else To.READ
        has_arrays = "b" in mode and self._may_be_uncomputed()
        place = self.at(file, To.MAKE if "x" in mode else to, has_arrays=has_arrays)
        return real(place, mode, *args, **kwargs)

    def open_number(self, real: Real, path: Any, flags: int, *args: Any, **kwargs: Any) -> Any:
        """Open a file as ``os.open`` does."""
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        to = To.OVERWRITE if flags & os.O_TRUNC else To.CHANGE if writes else To.READ
        to = To.MAKE if flags & os.O_EXCL else to
        return real(self.at(path, to, has_arrays=self._may_be_uncomputed()), flags, *args, **kwargs)

    def write(
        self, real: Real, what: Any, path: Any, *args: Any, has_arrays: bool = False, **kwargs: Any
    ) -> Any:
        """Do what a function does that is given what it writes, then the path."""
        place = self.at(path, To.OVERWRITE, has_arrays=has_arrays or self._may_be_uncomputed())
        return real(what, place, *args, **kwargs)

    def map_file(self, real: Real, filename: Any, shared: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Do what ``torch.from_file`` does."""
        return real(self.at(filename, To.CHANGE if shared else To.READ), shared, *args, **kwargs)

    def connect(self, real: Real, database: Any, *args: Any, **kwargs: Any) -> Any:
        """Open a database as ``sqlite3.connect`` does."""
        is_uri = kwargs.get("uri") or any(args[6:7])
        if not is_uri or not str(database).startswith("file:"):
            return real(self.at(database, To.CHANGE), *args, **kwargs)
        path, _, query = str(database).removeprefix("file:").partition("?")
        place = self.at(unquote(path), To.READ if "mode=ro" in query else To.CHANGE)
        return real(f"file:{quote(place)}?{query}", *args, **kwargs)

    def remove(self, real: Real, path: Any, *args: Any, **kwargs: Any) -> None:
        """Remove a file, a link, an empty folder or a tree."""
        name, place = self._find(path, follows=False)
        if not self._is_users(place) or _is_folder(place) != (real.__name__ in ("rmdir", "rmtree")):
            real(place if place != name else path, *args, **kwargs)
        elif real.__name__ == "rmdir" and self.list_names(os.listdir, path):
            raise for_program(OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path))
        else:
            self._version(name, place, To.REMOVE)
        self._forget(name)

    def rename(self, real: Real, src: Any, dst: Any) -> Any:
        """Rename; what was there keeps its name, and the program finds it by the other."""
        name, before = self._find(src, follows=False)
        new_name, after = self._find(dst, follows=False)
        is_users = self._is_users(before)
        is_into = _is_folder(after) and (not _is_folder(before) or os.listdir(after))
        if is_into or not os.path.lexists(before) or before == after:
            return real(before, after)  # it says what is wrong
        if self._is_users(after):
            after = self._version(new_name, after, To.REMOVE)
        elif is_users:
            erase(after)
        self._forget(new_name)
        moved = [key for key in self.places if key.startswith(name + os.sep)]
        if is_users:
            self._version(name, before, To.REMOVE)
            self.places[new_name] = before
        else:
            # A version may be in another file system.
            (shutil.move if (self.folder in before) != (self.folder in after) else real)(before, after)
            for place in [place for place in self.made if f"{place}{os.sep}".startswith(before + os.sep)]:
                self.made[after + place[len(before) :]] = self.made.pop(place)
        for key in moved:
            self.places[new_name + key[len(name) :]] = self.places.pop(key)
        return None

    def link(self, real: Real, src: Any, dst: Any, *args: Any, **kwargs: Any) -> None:
        """Make a link; a hard one to a file that was there is another name of it in this run alone."""
        if real.__name__ == "link":
            src, (name, after) = self._find(src)[1], self._find(dst, follows=False)
            if self._is_users(src) and not os.path.lexists(after):
                self.places[name] = src
                return
        self._do(To.MAKE, wraps(real)(partial(real, src)), dst, *args, **kwargs)

    def list_names(self, real: Real, path: Any = ".") -> Any:
        """List a folder as the program has made it."""
        names = real(self.at(path))
        if isinstance(path, str | os.PathLike) and self.places:
            folder = self._find(path)[0]
            places = {os.path.split(name): place for name, place in self.places.items()}
            names = [name for name in names if (folder, name) not in places]
            names += [
                name
                for (parent, name), place in places.items()
                if parent == folder and os.path.lexists(place)
            ]
        return names

    def scan(self, real: Real, path: Any = ".") -> Any:
        """Do what ``os.scandir`` does."""
        if not isinstance(path, str | os.PathLike) or not self.places:
            return real(path)
        return _Scan(_entry(path, name) for name in self.list_names(os.listdir, path))

    def start(self, real: Real, *args: Any, **kwargs: Any) -> Any:
        """Start another program, and name it if the program's own lines do."""
        command = [*args, *kwargs.values()][real.__name__.startswith("posix_spawn")]
        words = [command] if isinstance(command, str | bytes) else command
        if (place := users_own_place()) and len(self.beyond) < _MOST_NAMED:
            text = " ".join(map(os.fsdecode, words))
            what = "a process of multiprocessing" if "from multiprocessing." in text else text[:80]
            self.beyond.setdefault(f"{what} ({place})")
        return real(*args, **kwargs)

    def at(self, path: Any, to: To = To.READ, *, follows: bool = True, has_arrays: bool = False) -> Any:
        """Return the place of the program's version of a file, which is made if need be."""
        is_path = isinstance(path, str | bytes | os.PathLike)
        if not is_path or os.fsdecode(path).startswith(_NO_FILES) or (to is To.READ and not self.places):
            return path
        name, place = self._find(path, follows=follows)
        if to in (To.CHANGE, To.OVERWRITE) and self._is_users(place):
            place = self._version(name, place, to)
        if to is not To.READ and (place in self.made or not os.path.lexists(place)):
            self.made[place] = has_arrays or (to is not To.OVERWRITE and self.made.get(place, False))
            if os.getpid() != self._pid:
                with self._open(self.by_others, "ab") as file:
                    file.write(os.fsencode(f"{self.made[place]:d}{place}\0"))
        if place == os.path.abspath(os.fsdecode(path)):
            return path
        return os.fsencode(place) if isinstance(path, bytes) else place

    def add_others(self) -> dict[str, bool]:
        """Return what the program and its forked children have made."""
        with suppress(OSError), self._open(self.by_others, "rb") as file:
            # One that is being written is not whole.
            self.made |= {one[1:]: one[0] == "1" for one in os.fsdecode(file.read()).split("\0")[:-1]}
        return self.made

    def _find(self, path: Any, *, follows: bool = True) -> tuple[str, str]:
        """Return a file's one name, in full and without the links that the program sees, and its place."""
        full = Path(os.fsdecode(path)).absolute()
        name = place = full.anchor
        parts, n_links = [*reversed(full.parts[1:])], 0
        while parts:
            part = parts.pop()
            inner = os.path.join(name, part)
            inner_place = self.places.get(inner) or os.path.join(place, part)
            is_followed = (parts or follows) and n_links < _MOST_LINKS and os.path.islink(inner_place)
            if part == ".." or is_followed:
                n_links += is_followed
                target = Path(name, os.readlink(inner_place)) if is_followed else Path(name).parent
                parts += reversed(target.parts[1:])
                name = place = target.anchor
            else:
                name, place = inner, inner_place
        return name, place

    def _is_users(self, place: str) -> bool:
        """Whether there is a file, a folder or a link that the program has not made."""
        if not os.path.lexists(place) or not self.add_others().keys().isdisjoint(with_parents(place)):
            return False
        mode = os.lstat(place).st_mode
        return stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)

    def _version(self, name: str, place: str, to: To) -> str:
        """Give the program a version of a file: a copy to change, an empty one, or none."""
        is_kept = to is not To.REMOVE and os.path.isdir(place)
        if is_kept or (to is To.CHANGE and os.path.getsize(place) > _MOST_BYTES):
            self.beyond.setdefault(shortened(name))
            return place
        version = self.new_place(os.path.basename(name))
        if to is To.CHANGE:
            shutil.copy2(place, version)
            for ending in ("-wal", "-journal"):  # what SQLite left
                with suppress(OSError):
                    shutil.copyfile(place + ending, version + ending)
        elif to is To.OVERWRITE:
            Path(version).touch()
            shutil.copymode(place, version)
        if to is not To.REMOVE:
            self.made[version] = False
        self.places[name] = version
        return version

    def new_place(self, name: str) -> str:
        """Name a place for a version."""
        return f"{self.folder}{os.sep}{uuid.uuid4().hex[:8]}-{name[-100:]}"

    def _forget(self, folder: str) -> None:
        """Forget what was in a folder that is no more."""
        for name in [name for name in self.places if name.startswith(folder + os.sep)]:
            del self.places[name]

    def shown_name(self, place: str) -> str:
        """Return the program's name of what lies somewhere; nothing if it has none any more."""
        names = {place: name for name, place in self.places.items()}
        part = next((part for part in with_parents(place) if part in names), "")
        if not part and place.startswith(self.folder):
            return ""
        return shortened(names.get(part, "") + place[len(part) :])

    def close(self) -> None:
        """Let all files be what they are, and remove the versions."""
        self._is_closed = True
        for holder, name, ours in _held(self._wrapped):  # also in modules that the program has imported
            setattr(holder, name, ours.__wrapped__)
        self.places.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def patch_all(self, patches: Patches) -> None:
        """Let the program have versions of files, whatever function of Python it calls."""
        replaced: dict[Real, Any] = {open: self.open, shutil.rmtree: self.remove}
        for name, ours in _OF_OS.items():
            if hasattr(os, name):
                replaced[getattr(os, name)] = getattr(self, ours) if isinstance(ours, str) else ours
        with suppress(ImportError):  # as on Windows
            replaced[import_module("_posixsubprocess").fork_exec] = self.start
        self.patch(patches, replaced)

    def patch(self, patches: Patches, replaced: dict[Real, Any]) -> None:
        """Replace functions by every name that a module has for them: ``tarfile`` has its own for ``open``.

        Each has a function that does its work, called with the original first, or a ``To``: what it does to
        the file that is its first argument.
        """
        # Not guarded: torch's own would write over files.
        wrapped = {id(real): self.wrapped(real, ours) for real, ours in replaced.items()}
        self._wrapped |= {id(ours): ours for ours in wrapped.values()}
        for holder, name, real in _held(wrapped):
            patches.set(holder, name, wrapped[id(real)])

    def wrapped(self, real: Real, ours: Any) -> Real:
        """Make a function that does the program's calls of another, but for what is another file's."""
        work = partial(self._do, ours) if isinstance(ours, To) else ours

        @stands_in
        @wraps(real)
        def call(*args: Any, **kwargs: Any) -> Any:
            # An opener opens another file than is named: tempfile's one in that folder.
            is_elsewhere = any(kwargs.get(name) is not None for name in _ELSEWHERE)
            is_ours = is_elsewhere or self._is_closed or is_in_our_work(sys._getframe(1))
            return real(*args, **kwargs) if is_ours else work(real, *args, **kwargs)

        return call


class _Entry(type(Path())):  # type: ignore[misc]
    """An entry of a folder, as ``os.scandir`` has them."""

    path: str

    @stands_in
    def inode(self) -> int:
        return int(self.lstat().st_ino)

    @stands_in
    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return (follow_symlinks or not self.is_symlink()) and super().is_dir()

    @stands_in
    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return (follow_symlinks or not self.is_symlink()) and super().is_file()


def _entry(folder: Any, name: str) -> _Entry:
    entry = _Entry(folder, name)
    entry.path = os.path.join(folder, name)
    return entry


class _Scan(closing):  # type: ignore[type-arg]
    """Entries of a folder, as ``os.scandir`` gives them."""

    def __iter__(self) -> Any:
        return self.__enter__()

    def __next__(self) -> Any:
        return next(self.__enter__())

    def close(self) -> None:
        self.__exit__()


def _held(functions: dict[int, Real]) -> list[tuple[Any, str, Any]]:
    """List the names that modules have for functions, which are given by their ids."""
    accessor = getattr(pathlib, "_normal_accessor", None)  # Python 3.10 has the functions there too
    # The import system has its own, of posix.
    modules = [each for name, each in [*sys.modules.items()] if name not in ("posix", "nt")]
    holders = [(each, vars(each)) for each in modules if type(each) is ModuleType]
    return [
        (holder, name, value)
        for holder, names in [*holders, (accessor, vars(type(accessor)))]
        for name, value in [*names.items()]
        if id(value) in functions
    ]


def erase(path: str) -> None:
    """Remove a file or an empty folder, if that is possible."""
    with suppress(OSError):
        (os.rmdir if _is_folder(path) else os.unlink)(path)


def _is_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def with_parents(path: str) -> list[str]:
    """List a path and the folders that it is in."""
    return [path, *map(str, Path(path).parents)]


# How the program reaches files, beside ``open``: functions of os by their names, and what is done for them.
_OF_OS: dict[str, str | To] = {
    **dict.fromkeys(("stat", "lstat", "statvfs", "access", "readlink"), To.READ),
    **dict.fromkeys(("remove", "unlink", "rmdir"), "remove"),
    **dict.fromkeys(("rename", "replace"), "rename"),
    **dict.fromkeys(("link", "symlink"), "link"),
    **dict.fromkeys(("system", "posix_spawn", "posix_spawnp"), "start"),
    "mkdir": To.MAKE,
    **dict.fromkeys(("truncate", "utime", "chmod", "chown"), To.CHANGE),
    "listdir": "list_names",
    "scandir": "scan",
    "open": "open_number",
}

_ELSEWHERE = ("dir_fd", "src_dir_fd", "dst_dir_fd", "opener")
