"""The times of a page: of every event, or where these take too much, of one event in 2, 4, 8 …"""

import numpy as np
import pytest

from snapconv.writers.html.column_encoding import encode_column
from snapconv.writers.html.view_device import encoded_times
from tests.unit.writers.html.test_view_rows import numbers

TIMES = np.cumsum(np.random.default_rng(3).integers(0, 5_000, 10_001)) + 1_700_000_000_000_000


def test_times_that_take_little_are_those_of_every_event_since_the_first():
    step, columns = encoded_times(TIMES, 1_000_000)
    assert (step, numbers(columns["time"]).tolist()) == (1, (TIMES - TIMES[0]).tolist())


@pytest.mark.parametrize("share", [2, 5, 30])
def test_times_that_take_much_are_those_of_one_event_in_so_many_and_of_the_last(share):
    most = len(encoded_times(TIMES, 1_000_000)[1]["time"].base64) // share
    step, columns = encoded_times(TIMES, most)
    assert len(columns["time"].base64) <= most
    more = encode_column(np.append(TIMES[: -1 : step // 2], TIMES[-1]) - TIMES[0], differences=True)
    assert (step.bit_count(), len(more.base64) > most) == (1, True)  # no coarser than it must be
    assert numbers(columns["time"]).tolist() == [
        *(TIMES[:-1:step] - TIMES[0]).tolist(),
        TIMES[-1] - TIMES[0],
    ]


@pytest.mark.parametrize("times", [None, np.zeros(0, np.int64), np.array([7])])
def test_files_of_no_times_and_of_hardly_an_event_have_what_there_is(times):
    step, columns = encoded_times(times, 0)
    assert step == 1
    assert {name: numbers(c).tolist() for name, c in columns.items()} == (
        {} if times is None else {"time": [0] * len(times)}
    )
