"""The commands of the guide to sharded jobs, run as they are written there.

    python scripts/bench/sharded/guide.py [NUMBER ...]

llama.py lies in an empty folder as the guide's train.py. Every command, or those of these numbers,
is run there in the guide's order, and what it prints first is compared with the block of text behind
it, where there is one. Prints the difference, and ends with 1 where there is any or a command fails.
The last command compares with a capture of real cards: the recorded rank's own takes its place.
"""

import difflib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "guide" / "cards.md"
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
COMMAND = re.compile(r"`(snapconv\s+diff\s[^`]+)`")


def commands(page: str) -> Iterator[tuple[str, str]]:
    """Yield each command with the text that the page shows of it, or an empty one."""
    blocks = BLOCK.findall(page)
    for index, (kind, text) in enumerate(blocks):
        if kind == "sh":
            *first, last = text.splitlines()
            yield from ((line, "") for line in first)
            following = blocks[index + 1 :][:1]
            yield last, "".join(shown for kind, shown in following if kind == "text")
    yield from ((" ".join(line.split()), "") for line in COMMAND.findall(page))


def main() -> int:
    """Run all, and print what differs."""
    is_equal = True
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(Path(__file__).with_name("llama.py"), Path(folder, "train.py"))
        numbered = enumerate(commands(PAGE.read_text(encoding="utf-8")), 1)
        chosen = {int(number) for number in sys.argv[1:]}
        for line, shown in (pair for number, pair in numbered if not chosen or number in chosen):
            real = Path(folder, "real.capture")
            if real.name in line:
                shutil.copytree(Path(folder, "train.rank0.capture"), real)
            command = [sys.executable, "-m", *shlex.split(line)]
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, check=False
            )
            print(f"{line}: {done.returncode}", flush=True)
            expected = shown.splitlines()
            printed = done.stdout.splitlines()[: len(expected)]
            lines = difflib.unified_diff(expected, printed, lineterm="")
            difference = "\n".join(lines) if shown else ""
            if done.returncode or difference:
                is_equal = False
                print(difference or done.stderr, flush=True)
    return int(not is_equal)


if __name__ == "__main__":
    sys.exit(main())
