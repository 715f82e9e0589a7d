"""A message has the same figures in whatever form a logger, a terminal or a report writes it."""

import html
import json
import textwrap

import pytest

from snapconv.answers.oom import message
from snapconv.answers.oom.message import explain_message
from snapconv.answers.oom.message_text import compacted, strip_margins
from snapconv.errors import InputError

MIB = 1 << 20
TRACEBACK = (
    "Traceback (most recent call last):\n"
    '  File "/app/train.py", line 12, in <module>\n'
    "    loss.backward()\n"
)
MESSAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU {device} has a "
    "total capacity of 8.00 GiB of which 256.00 MiB is free. Including non-PyTorch memory, this "
    "process has 7.50 GiB memory in use. Of the allocated memory 7.00 GiB is allocated by PyTorch, "
    "and 64.00 MiB is reserved by PyTorch but unallocated."
)
TEXT = TRACEBACK + MESSAGE.format(device=3)
WRITTEN_BEFORE_LINES = (
    "May 17 00:12:13 node1 python[1234]: ",
    "2024-05-17T00:12:13.123456789Z stderr F ",
    "2024-05-17 00:12:13.123 | ERROR    | engine:run:33 - ",
    "2024-05-17 00:12:13,123 - engine - ERROR - ",
    "E0517 00:12:13.123456 1234 engine.cc:33] ",
    "[2024-05-17, 00:12:13 UTC] {subprocess.py:93} INFO - ",
    "2024-05-17T00:12:13.1234567Z ##[error]",
    "time=2025-11-16T11:19:53.495-06:00 level=ERROR source=run.go:104 msg=",
    "[1,3]<stderr>:",
    "[default0]:",
    "gpu-q-13: ",
    "10.0.0.5: ",
    "(worker1, rank=1, pid=1234, ip=10.0.0.3) ",
    "[2024-05-17T00:12:13.123456Z] 1a2b3c4d || ",
    ">> ",
)


def of_every_line(text, width, written_before, written_after=""):
    lines = [piece for line in text.splitlines() for piece in textwrap.wrap(line, width) or [""]]
    return "\n".join(f"{written_before}{line}{written_after}" for line in lines)


def figures_of(text):
    return explain_message(text).message


def assert_is_read(text):
    figures = figures_of(text)
    assert figures.device == 3
    assert figures.tried_bytes == 1536 * MIB
    assert figures.total_bytes == 8192 * MIB
    assert figures.free_bytes == 256 * MIB
    assert figures.allocated_bytes == 7168 * MIB
    assert figures.reserved_bytes == 7232 * MIB
    assert figures.process_bytes == 7680 * MIB


@pytest.mark.parametrize("written_before", WRITTEN_BEFORE_LINES)
@pytest.mark.parametrize("width", [40, 77, 2000])
def test_a_logger_may_break_a_message_and_write_its_words_before_every_line(written_before, width):
    assert_is_read(of_every_line(TEXT, width, written_before))


@pytest.mark.parametrize("width", [77, 2000])
def test_a_logger_may_write_lines_of_json(width):
    after = '\\n","stream":"stderr","time":"2024-05-17T00:12:13.123456789Z"}'
    assert_is_read(of_every_line(TEXT.replace('"', '\\"'), width, '{"log":"', after))


@pytest.mark.parametrize(
    "form",
    [
        lambda text: json.dumps({"level": "error", "message": text}),
        lambda text: f'<failure message="{html.escape(text).replace(chr(10), "&#10;")}"></failure>',
        lambda text: f"<pre>{html.escape(text).replace(' ', '&nbsp;')}</pre>",
        repr,
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "```\n" + text + "\n```",
    ],
)
def test_a_report_may_escape_a_message(form):
    assert_is_read(form(TEXT))


def test_a_message_of_two_lines_is_read_behind_a_loggers_words():
    first, second = TEXT.splitlines()[-1].split(" GPU 3 has ")
    assert_is_read(f"node-1: {first} GPU\nnode-1: 3 has {second}")


def test_words_of_a_message_that_several_lines_begin_with_are_no_loggers():
    line = "[TRT] [W] Tactic Device request: {}MB Available: 1536MB. Device memory is insufficient"
    text = "\n".join(line.format(number) for number in (2304, 2308, 2312))
    figures = explain_message(text).figures
    assert figures_of(text).tried_bytes == 2304 * MIB
    assert [figure.value for figure in figures] == [1536 * MIB]


def test_lines_without_anything_in_common_stay():
    text = "one line\nanother: 2\n\nthe third"
    assert strip_margins(text) == text


def test_a_text_without_a_message_is_refused_in_every_form():
    with pytest.raises(InputError):
        explain_message("node-1: all is well\nnode-1: still\nnode-1: done")


# --- many messages in one log


def test_of_many_messages_the_first_of_each_device_is_explained_and_all_are_counted(monkeypatch):
    explained = []
    explain = message._explain_allocator

    def counting(log, start, text):
        explained.append(start)
        return explain(log, start, text)

    monkeypatch.setattr(message, "_explain_allocator", counting)
    text = "\n".join(TRACEBACK + MESSAGE.format(device=number % 4) for number in range(400))
    answer = explain_message(text)
    assert (answer.n_messages, len(answer.others), len(explained)) == (400, 3, 4)


def test_a_cut_message_before_a_whole_one_of_the_same_device_does_not_hide_it():
    cut = "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 3 has"
    answer = explain_message(f"{cut}\n{TEXT}\n{TEXT}")
    assert answer.message.total_bytes == 8192 * MIB
    assert answer.n_messages == 3


def test_lines_that_a_long_log_repeats_are_left_out_but_for_the_first():
    log = compacted("\n".join(f"error: out of memory {number}" for number in range(5000)))
    short = log.drop_repeats()
    assert short.text.count("outofmemory") == 100
    assert short.text.startswith("error:outofmemory0error:outofmemory1error")
    assert log.lines_near(len(short.text) - 1, 0) == short.lines_near(len(short.text) - 1, 0)
