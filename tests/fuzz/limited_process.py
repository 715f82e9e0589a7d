"""A process with all of snapconv loaded: runs each command in a fork that may have little memory and time.

It has run some commands on a small file before, so that none spends time on what is done once in a
process:
Typer's imports, the fields of dataclasses.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

# A line has bytes of memory, seconds of the processor (a busy machine changes nothing), a file for
# the output and a command; "load" alone is no command of snapconv.
PROGRAM = """
import contextlib, importlib, json, os, pkgutil, resource, signal, sys
from pathlib import Path
import snapconv
from snapconv.cli.app import main
from snapconv.errors import SnapconvError

def load(path):
    try:
        snapconv.load(path)
        print("read", flush=True)
    except SnapconvError as error:
        print(type(error).__name__, flush=True)
    return 0

NOT_LOADED = ("snapconv.guest", "snapconv.recorder", "snapconv.simulation", "snapconv.integrations",
              "snapconv.__main__", "snapconv.native.core")
for module in pkgutil.walk_packages(snapconv.__path__, "snapconv."):
    if not module.name.startswith(NOT_LOADED):
        importlib.import_module(module.name)
with open(os.devnull, "w") as sink, contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
    for command in json.loads(sys.argv[1]):
        main(command)
for line in sys.stdin:
    memory, seconds, said, command = json.loads(line)
    process = os.fork()
    if not process:
        output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (in_use + memory,) * 2)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        code = 1
        try:
            code = load(command[1]) if command[0] == "load" else main(command)
        finally:
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
"""


@contextmanager
def limited_process(
    first: Sequence[Sequence[str]] = (), *, memory_bytes: int, seconds: int
) -> Iterator[Callable[[Sequence[str], Path], int]]:
    """Yield a function that runs a command with its output in a file; its code is negative after a signal."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, json.dumps(first)],
        # A thread of OpenBLAS less to fork beside.
        env=os.environ
        | {"PYTHONPATH": str(Path(__file__).parents[2]), "OPENBLAS_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:

        def run(command: Sequence[str], said: Path) -> int:
            assert process.poll() is None, f"the process has ended with {process.returncode}"
            print(
                json.dumps([memory_bytes, seconds, str(said), command]),
                file=process.stdin,
                flush=True,
            )
            return int(process.stdout.readline())

        yield run
