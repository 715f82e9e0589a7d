"""The programs of an earlier commit: brought from the repository's history into a folder that git ignores."""

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

ROOT = Path(__file__).parents[3]
CACHE = ROOT / ".bench-corpus"
# The folder in which all commits have their programs and the figures of these.
PLACE = "scripts/bench/classification"
# A commit that has all programs in its tree: 385 scripts, and 54 functions of modules.
ALL_PROGRAMS = "04700b204a8c0d0a40de8f1dee2b9e4a6249b848"


class NoSuchCorpusError(Exception):
    """The programs of a commit cannot be had; the message says what to do."""


def programs_at(commit: str, *, root: Path = ROOT, cache: Path = CACHE) -> Path:
    """Return the folder with the programs of a commit, from the cache or else from git."""
    found = _git(root, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
    if found.returncode:
        raise NoSuchCorpusError(f"{commit} cannot be found: {_remedy(root)}")
    name = found.stdout.decode().strip()
    folder = cache / name
    if not folder.exists():
        archive = _git(root, "archive", "--format=tar", name, "--", PLACE)
        if archive.returncode:
            raise NoSuchCorpusError(f"{name[:12]} has no folder {PLACE}: name a commit that has it")
        _extract(archive.stdout, folder)
    return folder / PLACE


def _git(root: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, check=False)
    except FileNotFoundError:
        raise NoSuchCorpusError("git cannot be found: install it, or leave out --corpus") from None


def _remedy(root: Path) -> str:
    """Say what brings a commit that this copy of the project lacks."""
    top = _git(root, "rev-parse", "--show-toplevel")
    if top.returncode or Path(top.stdout.decode().strip()).resolve() != root.resolve():
        return (
            "this copy of the project is not a git repository; clone the repository, or leave out "
            "--corpus "
            "to measure the programs that are here"
        )
    if _git(root, "rev-parse", "--is-shallow-repository").stdout.strip() == b"true":
        return "this clone is shallow; run `git fetch --unshallow`, then try again"
    return "run `git fetch`, or check the name with `git log`"


def _extract(archive: bytes, folder: Path) -> None:
    """Unpack git's archive; the folder is there only once it is whole."""
    part = folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar.getmembers():
            if member.isfile():
                path = part / member.name
                path.parent.mkdir(parents=True, exist_ok=True)
                content = tar.extractfile(member)
                assert content is not None
                path.write_bytes(content.read())
    part.replace(folder)
