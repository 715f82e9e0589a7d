"""Processes that run ``snapconv`` and have imported it already: forks of this one.

Each message of the socket is a request as JSON. ``start`` comes with the process's three streams,
and is answered with its id once it runs; ``code`` is answered with how a process ended, or null.
"""

import ctypes
import json
import os
import resource
import signal
import socket
import sys

# Of linux/prctl.h and linux/capability.h: CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH,
# CAP_FOWNER.
PR_CAPBSET_DROP, LINUX_CAPABILITY_VERSION_3 = 24, 0x20080522
RIGHTS = (0, 1, 2, 3)


def become(case, streams):
    """Be the process of a case: with its folder, streams, limit of a file's size, and rights."""
    os.setsid()
    # Whoever runs the tests may ignore some: under nohup, or in the background of a shell.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.chdir(case["folder"])
    os.environ.update(case["environment"])
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    # Python looked at the streams of its start, whether they are files.
    sys.stdout = os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", buffering=1)
    if case["file_bytes"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (case["file_bytes"], resource.RLIM_INFINITY))
    if case["is_without_rights"]:
        give_up_rights()


def give_up_rights():
    """Let root be a user who may write into no other's folder, also in programs that it starts."""
    system = ctypes.CDLL(None)
    for right in RIGHTS:
        system.prctl(PR_CAPBSET_DROP, right, 0, 0, 0)
    system.capset((ctypes.c_uint32 * 2)(LINUX_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)())


def start(case, streams, requests):
    ready, begun = os.pipe()
    pid = os.fork()
    if pid:
        os.close(begun)
        for descriptor in streams:
            os.close(descriptor)
        os.read(ready, 1)
        os.close(ready)
        return pid
    requests.close()
    os.close(ready)
    become(case, streams)
    sys.argv = ["snapconv", *case["command"]]
    os.close(begun)  # the next line is where a signal is the command's affair
    if case["is_new"]:
        os.execv(sys.executable, [sys.executable, "-m", "snapconv", *case["command"]])
    if case["program"]:
        exec(compile(case["program"], "program.py", "exec"), {"__name__": "__main__"})
        sys.exit()
    run()
    raise AssertionError("a command line ends its process")


def code_of(pid):
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def serve(requests):
    while True:
        message, streams, _, _ = socket.recv_fds(requests, 1 << 16, 3)
        if not message:
            return
        request = json.loads(message)
        answer = (
            code_of(request["code"])
            if "code" in request
            else start(request["start"], streams, requests)
        )
        requests.send(json.dumps(answer).encode())


if __name__ == "__main__":  # a worker of `ranks` imports this file, as Python's pools do
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    import snapconv.cli.app
    import snapconv.session  # noqa: F401  # so that no fork has to
    from snapconv.__main__ import run

    serve(socket.socket(fileno=int(sys.argv[1])))
