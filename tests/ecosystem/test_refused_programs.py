"""What the simulation cannot follow is refused in one sentence that names it, and never recorded wrongly."""

import pytest

from tests.ecosystem.catalogue import MODES, ONE_PROCESS, Program
from tests.ecosystem.recorded_program import record

TWO_RANKS = {**ONE_PROCESS, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_a_program_of_two_ranks_makes_no_step_and_its_only_error_names_them(mode, tmp_path):
    program = Program("ddp-of-two", "ddp_one_process.py", environment=TWO_RANKS)
    run = record(program, mode, tmp_path / "job").run
    assert run.code != 0
    assert run.own_counts == []
    (error,) = [line for line in run.err.splitlines() if line.startswith("snapconv: error: ")]
    assert "rank" in error.lower()
