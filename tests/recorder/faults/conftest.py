"""Runs of ``snapconv record --simulate`` in this process, as the tests of driving have them."""

from tests.recorder.driving.conftest import run  # noqa: F401  # a fixture
