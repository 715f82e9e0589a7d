import gc

import pytest

from snapconv.garbage_collector import collector_off


def test_the_collector_is_off_meanwhile_and_on_again_also_after_an_error():
    with collector_off():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ImportError), collector_off():
        import snapconv.no_such_module  # type: ignore[import-not-found] # noqa: F401 # this is the point
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off():
    gc.disable()
    try:
        with collector_off():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
