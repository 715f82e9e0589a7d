"""A text that takes too long to read ends in an error that says what to do."""

import pytest

from snapconv.cli.time_limit import time_limit
from snapconv.errors import InputError


def test_a_limit_passes_until_its_time_is_over():
    time_limit("less of it", seconds=60)()
    with pytest.raises(InputError, match="not read to its end in -1 s; pass less of it: tail LOG"):
        time_limit("tail LOG", seconds=-1)()


def test_a_log_that_takes_too_long_is_refused_with_the_command_for_less(
    snapconv, tmp_path, monkeypatch
):
    monkeypatch.setitem(time_limit.__kwdefaults__, "seconds", -1.0)
    path = tmp_path / "job.log"
    path.write_text("CUDA out of memory. Tried to allocate 2.00 GiB\n")
    done = snapconv("oom", "--message", path)
    assert (done.code, done.out) == (3, "")
    assert "tail -c 1000000 LOG | snapconv oom --message -" in done.err
