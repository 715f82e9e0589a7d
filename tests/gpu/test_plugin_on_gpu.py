"""The marks of the pytest plugin on a real GPU."""

import pytest

from tests.recordings import IS_REHEARSAL
from tests.unit.test_pytest_plugin import GPU_OF_THE_MACHINE, check_limits_of_the_device

pytestmark = pytest.mark.gpu


def test_marks_limit_growth_and_faults(tmp_path):
    if IS_REHEARSAL:
        (tmp_path / "conftest.py").write_text(GPU_OF_THE_MACHINE, encoding="utf-8")
    check_limits_of_the_device(tmp_path)
