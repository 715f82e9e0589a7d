"""A user's patterns, tried on the names of a file in a process of their own, ended where they take long.

Python's ``re`` cannot be interrupted, and ``(a|a)*b`` takes for ever on forty letters. So each pattern that
may take long is searched once by another Python, on every system and thread alike; what that did in time is
then searched here. Another engine would need a package more, and patterns would mean other things.
"""

import re
import subprocess
import sys
from collections.abc import Iterable, Sequence

from snapconv.classification.user_rules import UserRule
from snapconv.errors import InputError
from snapconv.snapshot.stack_table import FrameTable

# Of the wall clock, for a machine that is busy: a trial takes some hundredths of a second. For every 50 MiB
# of names, which are more than any file has, as much again.
_SECONDS = 10.0
_CHARACTERS = 50 << 20
# No repetition, alternative or group: such a pattern looks at every character of a text a few times at most.
_TAKES_LITTLE = re.compile(r"(?:[^\\*+?{|(]|\\.)*", re.DOTALL)
# Prints the number of every pattern before its search. Without the user's site and environment: -I -S.
_CHILD = r"""
import re, sys
n, *texts = sys.stdin.buffer.read().decode("utf-8", "surrogatepass").split("\0")
for i in range(int(n)):
    print(i, flush=True)
    search = re.compile(texts[i]).search
    for text in texts[int(n):]:
        search(text)
"""


def try_patterns(rules: Sequence[UserRule], frames: FrameTable) -> None:
    """Raise InputError that names the first rule whose pattern takes too long on these frames."""
    _try_key("function", [(rule.slug, rule.function) for rule in rules], frames.names)
    _try_key("file", [(rule.slug, rule.file) for rule in rules], frames.filenames)


def seconds_for(n_characters: int) -> float:
    """How long a search of so many characters may take."""
    return _SECONDS * (1 + n_characters / _CHARACTERS)


def _try_key(key: str, patterns: Iterable[tuple[str, str]], texts: Sequence[str]) -> None:
    doubtful = [(slug, pattern) for slug, pattern in patterns if not _TAKES_LITTLE.fullmatch(pattern)]
    if not doubtful or not sys.executable or getattr(sys, "frozen", False):
        return  # where Python is inside another program, there is no Python to start
    distinct = [text.replace("\\", "/").replace("\0", "") for text in dict.fromkeys(texts)]
    shown = [pattern.replace("\0", r"\x00") for _, pattern in doubtful]
    given = "\0".join([str(len(shown)), *shown, *distinct])
    seconds = seconds_for(len(given))
    try:
        subprocess.run(
            [sys.executable, "-I", "-S", "-c", _CHILD],
            input=given.encode("utf-8", "surrogatepass"),
            capture_output=True,
            timeout=seconds,
            check=False,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),  # of Windows
        )
    except subprocess.TimeoutExpired as error:
        number = max(len((error.stdout or b"").split()) - 1, 0)
        raise InputError(
            f"the pattern of {key} takes more than {seconds:.0f} s on the frames of this file (rule "
            f"{doubtful[number][0]}): write it without one repetition inside another, such as (a+)+"
        ) from error
    except OSError:
        return  # no process can be started here
