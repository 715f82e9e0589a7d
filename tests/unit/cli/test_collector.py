"""Commands run without Python's cyclic collector, so that nothing may be kept by a cycle."""

import gc
import pickle
from contextlib import contextmanager

import pytest

from snapconv.cli.app import main
from tests.builders import MIB, TraceBuilder, frame


@contextmanager
def cycles():
    """Gather what only the collector would free."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    found = []
    try:
        yield found
        gc.collect()
        found += gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.parametrize(
    "command", ["verdict", "summary", "advise", "oom", "fragmentation", "growth", "diff"]
)
def test_no_table_of_a_device_is_kept_by_a_cycle(command, tmp_path, capsys):
    builders = [TraceBuilder(device=number).segment(20 * MIB) for number in range(3)]
    for builder in builders:
        for line in range(20):
            builder.alloc(MIB // 2, frames=[frame("step", "/home/me/train.py", line)]).free()
    path = tmp_path / "run.pickle"
    path.write_bytes(pickle.dumps(builders[0].snapshot(*builders[1:])))
    argv = [command, *[str(path)] * (2 if command == "diff" else 1)]
    main(argv)  # what is imported and made once is no matter of a command
    with cycles() as found:
        main(argv)
    kinds = {f"{type(one).__module__}.{type(one).__name__}" for one in found}
    assert {kind for kind in kinds if kind.startswith("snapconv.")} == set()
