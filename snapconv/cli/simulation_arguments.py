"""The command line's options of a simulation, for ``record`` and ``watch``."""

import atexit
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from snapconv.simulation import SimulationOptions

_Simulate = Annotated[
    bool, typer.Option("--simulate", help="Record without a GPU: the unchanged script runs on the CPU.")
]
_NoCompute = Annotated[
    bool,
    typer.Option(
        "--no-compute",
        help="With --simulate: follow shapes only. Fast with a model of any size; no values, no times. Files "
        "of what was not computed are not written. Ends the script when all is recorded.",
    ),
]
_Capacity = Annotated[
    str | None,
    typer.Option(
        "--capacity",
        metavar="SIZE",
        help="With --simulate: the GPU's memory, such as 24GiB; it runs out as a GPU's would.",
    ),
]
_CublasWorkspace = Annotated[
    bool,
    typer.Option(
        "--cublas-workspace", help="With --simulate: add the workspace that cuBLAS keeps by default."
    ),
]


@dataclass(frozen=True, slots=True)
class Simulated:
    """Options of a recording without a GPU."""

    simulate: _Simulate = False
    no_compute: _NoCompute = False
    capacity: _Capacity = None
    cublas_workspace: _CublasWorkspace = False


def simulation_options(given_options: Simulated, device: int | None = None) -> "SimulationOptions | None":
    """Read the options of a simulation; None for a recording on a GPU, which has none of them."""
    from snapconv.units import parse_bytes

    capacity = given_options.capacity
    given = {
        "--no-compute": given_options.no_compute,
        "--capacity": capacity,
        "--cublas-workspace": given_options.cublas_workspace,
    }
    if not given_options.simulate:
        for name, value in given.items():
            if value:
                raise typer.BadParameter("it needs --simulate", param_hint=name)
        return None
    from snapconv.simulation import SimulationOptions

    try:
        capacity_bytes = parse_bytes(capacity) if capacity is not None else None
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--capacity") from error
    return SimulationOptions(
        compute=not given_options.no_compute,
        capacity_bytes=capacity_bytes,
        cublas_workspace=given_options.cublas_workspace,
        n_devices=(_local_rank() if device is None else device) + 1,
    )


def _local_rank() -> int:
    """Return the device that this process of a distributed job uses by custom."""
    rank = os.environ.get("LOCAL_RANK", "")
    return int(rank) if rank.isdecimal() else 0


@contextmanager
def lasting_until_exit() -> "Iterator[ExitStack]":
    """Make what is closed after the program's own functions of ``atexit``, or at once after an error.

    The first that is registered is called last.
    """
    until_exit = ExitStack()
    atexit.register(until_exit.close)
    try:
        yield until_exit
    except BaseException:
        until_exit.close()
        raise
