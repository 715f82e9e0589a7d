"""Small tensors on a busy computer: one thread is faster than several that wait for each other."""

import sys

import pytest


@pytest.fixture(autouse=True)
def _one_thread():
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
