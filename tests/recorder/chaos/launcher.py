"""Processes that run ``snapconv record`` and have torch already: forks of this one.

Reads a case per line of its standard input, as JSON, and answers with the process's id and, when
that is over, with how it ended. A fork is as a fresh process to the recorder: nothing of ours has
run before it.
"""

import json
import os
import runpy
import sys

import torch

import snapconv.cli.app  # noqa: F401  # so that no fork has to


def become(case):
    os.setsid()
    os.chdir(case["folder"])
    os.environ.update(case["environment"])
    for number, name in enumerate(["/dev/null", "out.txt", "err.txt"]):
        descriptor = os.open(name, os.O_RDWR | (os.O_CREAT if number else 0), 0o666)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.argv = case["command"]


torch.set_num_threads(1)
for line in sys.stdin:
    case = json.loads(line)
    pid = os.fork()
    if not pid:
        become(case)
        if sys.argv[0] == "snapconv":
            from snapconv.__main__ import run

            run()
        runpy.run_path(sys.argv[0], run_name="__main__")
        sys.exit()
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
