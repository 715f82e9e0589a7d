"""What tests of several answers share."""

import pytest

import snapconv


@pytest.fixture
def advice_on(tmp_path):
    def advice_on(loop, **options):
        (found,) = snapconv.load(loop.trace.write(tmp_path / "s.pickle")).advise(**options)
        return found

    return advice_on
