"""Conversations with ``snapconv mcp`` in trouble: many calls at once, cancelled ones, signals, lost clients.

A conversation gets a server that has been greeted, and what is drawn; it returns the codes that may
end it.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MOST_S = 60
MESSAGE = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 80.00 GiB"
CALLS: list[dict[str, Any]] = [
    {"name": "files", "arguments": {}},
    {"name": "oom_message", "arguments": {"text": MESSAGE}},
    {"name": "info", "arguments": {"snapshot": "run.pickle"}},
    {"name": "verdict", "arguments": {"snapshot": "run.pickle"}},
    {"name": "summary", "arguments": {"snapshot": "run.pickle", "top": 3}},
    {"name": "tree", "arguments": {"snapshot": "run.capture", "by": "category"}},
    {"name": "diff", "arguments": {"old": "old.pickle", "new": "run.pickle"}},
    {"name": "info", "arguments": {"snapshot": "../theirs/precious"}},
]
N_MANY = 100


def hear_ctrl_c() -> None:
    """Hear Ctrl-C also where whoever runs the tests does not: in the background of a shell."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Server:
    """A server, what it answers by the numbers of its calls, and what else it says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.answers: dict[int, Any] = {}
        self.other_lines: list[str] = []
        self.calls: dict[int, dict[str, Any]] = {}
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
            "TMPDIR": str(folder / "tmp"),
        }
        with folder.with_suffix(".err.txt").open("wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "snapconv", "mcp", str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                preexec_fn=hear_ctrl_c,
                env=environment,
                start_new_session=True,
            )
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()
        client = {"name": "t", "version": "1"}
        params = {"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": client}
        self.say({"id": 0, "method": "initialize", "params": params})
        self.wait_for({0})
        self.say({"method": "notifications/initialized"})

    def _listen(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            try:
                answer = json.loads(line)
                self.answers[answer["id"]] = answer
            except (ValueError, KeyError):
                self.other_lines.append(line.decode(errors="replace"))

    def say(self, request: dict[str, Any]) -> None:
        self.send_bytes(json.dumps({"jsonrpc": "2.0", **request}).encode() + b"\n")

    def send_bytes(self, line: bytes) -> None:
        assert self.process.stdin
        with suppress(BrokenPipeError):
            self.process.stdin.write(line)
            self.process.stdin.flush()

    def call(self, number: int, call: dict[str, Any]) -> None:
        self.calls[number] = call
        self.say({"id": number, "method": "tools/call", "params": call})

    def call_many(self, draw: random.Random, n_calls: int) -> None:
        first = len(self.calls) + 1
        for number in range(first, first + n_calls):
            self.call(number, draw.choice(CALLS))

    def cancel(self, number: int) -> None:
        self.say({"method": "notifications/cancelled", "params": {"requestId": number}})

    def wait_for(self, numbers: set[int]) -> None:
        end = time.monotonic() + MOST_S
        while numbers - self.answers.keys():
            code = self.process.poll()
            assert code is None, f"the server ended with {code}\n{self.errors()}"
            assert time.monotonic() < end, f"no answer to {sorted(numbers - self.answers.keys())}"
            time.sleep(0.003)

    def errors(self) -> str:
        """Return the end of what the server printed on its standard error."""
        return self.folder.with_suffix(".err.txt").read_text()[-4000:]

    def close(self) -> int:
        """End the conversation as a client does, and return the exit code."""
        assert self.process.stdin
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        return self.ended()

    def ended(self) -> int:
        """Return the exit code of a server that ends by itself; one that does not is killed."""
        try:
            return self.process.wait(MOST_S)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"the server did not end in {MOST_S} s") from error
        finally:
            self.process.kill()
            self._listener.join()
            for stream in (self.process.stdin, self.process.stdout):
                with suppress(BrokenPipeError):
                    stream.close()

    def check_answers(self, numbers: set[int]) -> None:
        """Check that calls have the answers of their kind: equal ones where the calls are equal."""
        by_call: dict[str, Any] = {}
        for number in numbers:
            result = self.answers[number]["result"]
            call = self.calls[number]
            is_refused = "theirs" in json.dumps(call)
            assert result["isError"] == is_refused, result
            assert by_call.setdefault(json.dumps(call), result) == result
        assert self.other_lines == []


def many_at_once(server, draw):
    server.call_many(draw, N_MANY)
    server.wait_for(set(server.calls))
    server.check_answers(set(server.calls))
    return server.close(), {0}


def many_cancelled(server, draw):
    server.call_many(draw, N_MANY // 2)
    cancelled = {number for number in server.calls if draw.random() < 0.5}
    for number in draw.sample(sorted(cancelled), len(cancelled)):
        time.sleep(draw.expovariate(200))
        server.cancel(number)
    server.call(N_MANY, CALLS[3])
    server.wait_for(set(server.calls))
    done = {number for number in server.calls if "result" in server.answers[number]}
    assert set(server.calls) - done <= cancelled
    server.check_answers(done)
    return server.close(), {0}


def garbage(server, draw):
    """Say what is no request between calls."""
    lines = [
        b"\n",
        b"{\n",
        b"\xff\xfe\n",
        b"[" * 20_000 + b"\n",
        b'{"jsonrpc": "2.0", "id": 7}\n',
        b"null\n",
    ]
    for number in range(1, 20):
        server.send_bytes(draw.choice(lines))
        server.call(number, draw.choice(CALLS))
    server.wait_for(set(server.calls))
    server.other_lines.clear()  # what the SDK says of such lines is its affair
    server.check_answers(set(server.calls))
    return server.close(), {0}


def file_replaced(server, draw):
    """Replace and cut the file while calls read it: each is answered or refused."""
    other = server.folder / "old.pickle"
    server.call_many(draw, 30)
    for _ in range(5):
        time.sleep(draw.uniform(0, 0.1))
        new = server.folder / "tmp" / "new"
        new.write_bytes(other.read_bytes()[: draw.choice([None, draw.randrange(1 << 15)])])
        new.replace(server.folder / "run.pickle")
    server.wait_for(set(server.calls))
    assert all("result" in answer for answer in server.answers.values())
    return server.close(), {0}


def client_gone(server, draw):
    server.call_many(draw, draw.randrange(40))
    time.sleep(draw.uniform(0, 0.3))
    return server.close(), {0, 141}


def stopped_by(number):
    def conversation(server, draw):
        server.call_many(draw, draw.choice([0, 1, 20]))
        time.sleep(draw.uniform(0, 0.3))
        server.process.send_signal(number)
        expected = -number if number == signal.SIGKILL else 128 + number
        return server.ended(), {expected}

    return conversation


CONVERSATIONS = {
    "mcp: 100 calls at once": many_at_once,
    "mcp: calls cancelled": many_cancelled,
    "mcp: no requests": garbage,
    "mcp: file replaced": file_replaced,
    "mcp: client gone": client_gone,
    "mcp: ctrl-c": stopped_by(signal.SIGINT),
    "mcp: terminated": stopped_by(signal.SIGTERM),
    "mcp: killed": stopped_by(signal.SIGKILL),
}
