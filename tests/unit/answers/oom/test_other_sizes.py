"""Sizes in a text that none of its figures is: told in the words that stand around them."""

import pytest

from snapconv.answers.oom.message import explain_message
from snapconv.writers.text.oom_message import message_lines

MESSAGE = (
    "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 8.00 GiB of "
    "which 512.00 MiB is free. Of the allocated memory 6.50 GiB is allocated by PyTorch, with "
    "256.00 MiB allocated in private pools (e.g., CUDA Graphs), and 300.00 MiB is reserved by "
    "PyTorch but unallocated."
)


@pytest.mark.parametrize(
    ("before", "words"),
    [
        (
            ("model takes 5.20GiB; the cache takes 1.10 GB"),
            "model takes 5.20GiB; the cache takes 1.10 GB",
        ),
        ("one call takes 300-450 MB of it", "one call takes 300-450 MB of it"),
        ("arena of 268435456 bytes, 4,096 KB a page", "arena of 268435456 bytes, 4,096 KB a page"),
        ("INFO 02-26 09:54:05 [worker.py:267] cache: 3.5 GB", "cache: 3.5 GB"),
        (
            "Available mamba: 760 (available_size=57, kv pages: 703)",
            "Available mamba: 760 (available_size=57, kv pages: 703)",
        ),
        # As XLA writes them.
        (
            "Attempting to allocate 196.00M. There are 60.94M free.",
            "Attempting to allocate 196.00M. There are 60.94M free.",
        ),
        # As programs print what they use.
        ("Max VRAM used since start:  3.67G", "Max VRAM used since start: 3.67G"),
        ("now: CPU 2557, GPU 3889 (MiB)", "now: CPU 2557, GPU 3889 (MiB)"),
        ("InUse:    6036292612", "InUse: 6036292612"),
        # The end of a line may cut a unit.
        ("the cache holds 2.90 Gi", "the cache holds 2.90 Gi"),
        # The words around sizes far into a line.
        ("a " * 40 + "pool of 5 GB is " + "b " * 40, f"… {'a ' * 21}pool of 5 GB is {'b ' * 11}…"),
        # Of a long line, the first sizes.
        ("x" * 30 + " " + "77.50 GB " * 50, f"{'x' * 30} {'77.50 GB ' * 23}…"),
    ],
)
def test_sizes_near_a_message_that_it_does_not_have_are_told(before, words):
    found = explain_message(f"{before}\n{MESSAGE}")
    assert found.beside[:1] == (words,)
    assert f"    {words}" in tuple(message_lines(found))


@pytest.mark.parametrize(
    "before",
    [
        # The figures themselves: requested, free, with and without the private pools, unallocated.
        "needs 1.00 GiB, 0.5 GiB free, 6.50 GiB, 6.25 GiB, 300 MiB",
        # Rates, names, and what torch writes where no limit was set.
        "copied at 4.50 GB/s",
        # What a copy counts.
        "52428800 bytes (52 MB) copied, 0.459204 s, 114 MB/s",
        "83886080 bytes (84 MB, 80 MiB) copied, 0.05 s, 1.6 GB/s",
        "epoch 3.67G, memory format v1.50Gb",
        "model-70GB.safetensors, v1.5GB",
        "limit 17179869184.00 GiB",
        # Neither the number of a process, nor a time.
        "pid=1990324 at 1725275976.929061, 2024-09-02 11:20:03.308702, host:2999605:3004403 [0]",
        # Times in JSON, and what a program counts.
        '{"level":30,"time":1779896931963,"pid":92,"responseTime":560.4734540004283}',
        "#entity: 4594149, #triplet: 20614279",
        # Far from the message.
        "cache takes 3.00 GiB\n" + "step\n" * 20,
    ],
)
def test_what_is_known_or_no_size_is_not_told_again(before):
    assert explain_message(f"{before}\n{MESSAGE}").beside == ()


def test_sizes_are_told_from_twenty_lines_before_a_message_on():
    text = "cache takes 3.00 GiB\n" + "step\n" * 19
    assert explain_message(f"{text}{MESSAGE}").beside == ("cache takes 3.00 GiB",)


def test_the_first_sizes_are_told_each_once_of_many_lines():
    lines = [f"layer {number} takes {number}.00 GB" for number in range(11, 23)]
    found = explain_message("\n".join([MESSAGE, lines[0], *lines]))
    assert found.beside == tuple(lines[:10])


def test_nothing_that_a_terminal_obeys_is_printed():
    found = explain_message(f"pool \x1b[31m\x9b31mof 3.00 GB\n{MESSAGE}")
    assert "    pool \\x9b31mof 3.00 GB" in tuple(message_lines(found))
