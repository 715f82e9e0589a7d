"""The line of a launcher -> the job that it would start, read by the launcher's own parser.

It runs as a process of its own, ``python -m snapconv.recorder.program.launch_reading FILE NAME
ARGS``, since launchers import torch, and writes JSON. Nothing is started.
"""

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from snapconv.json_text import write_json

Values = dict[str, Any]

# Replaced by the numbers of the rank that is recorded.
LOCAL_RANK, NODE_RANK = "{local_rank}", "{node_rank}"
# The number of a rank's device as an argument of the program, under the name of each launcher.
_TORCH_ARGUMENT, _DEEPSPEED_ARGUMENT = (
    f"--local-rank={LOCAL_RANK}",
    f"--local_rank={LOCAL_RANK}",
)


class Refused(Exception):
    """The line leaves open which job it starts; the text is the reason and the remedy."""


def _job(
    parsed: Namespace,
    n_nodes: int,
    n_ranks_per_node: int,
    *,
    script: str = "training_script",
    added: Sequence[str] = (),
    environment: "dict[str, str] | None" = None,
) -> Values:
    if n_nodes < 1 or n_ranks_per_node < 1:
        raise Refused(f"{n_nodes} nodes of {n_ranks_per_node} processes are no job")
    return {
        "n_ranks": n_nodes * n_ranks_per_node,
        "n_ranks_per_node": n_ranks_per_node,
        "program": getattr(parsed, script),
        "added_args": list(added),
        "args": getattr(parsed, f"{script}_args"),
        "is_module": parsed.module,
        "environment": environment or {},
    }


def _torchrun(args: Sequence[str]) -> Values:
    from torch.distributed import run

    return _torch_job(run.parse_args(args))


def _torch_launch(args: Sequence[str]) -> Values:
    from torch.distributed import launch

    parsed = launch.parse_args(args)
    return _torch_job(parsed, () if parsed.use_env else (_TORCH_ARGUMENT,))


def _torch_job(parsed: Namespace, added: Sequence[str] = ()) -> Values:
    from torch.distributed import run

    least_nodes, n_nodes = run.parse_min_max_nnodes(parsed.nnodes)
    if least_nodes != n_nodes:
        raise Refused(f"--nnodes {parsed.nnodes} is a range: give the number of nodes")
    try:
        n_ranks_per_node = int(parsed.nproc_per_node)
    except ValueError:
        raise Refused(
            f"--nproc-per-node {parsed.nproc_per_node} depends on the machine that starts it: "
            "give the number of GPUs of a node"
        ) from None
    if parsed.no_python and not _is_python(parsed.training_script):
        raise Refused(
            f"--no-python starts {parsed.training_script}, which is no Python program: give the "
            "script that it starts"
        )
    return _job(parsed, n_nodes, n_ranks_per_node, added=added)


def _is_python(program: str) -> bool:
    """Return whether a line begins with a script in Python, or with Python itself."""
    return program.endswith(".py") or Path(program).name.startswith("python")


def _accelerate(args: Sequence[str]) -> Values:
    """Read a line of ``accelerate launch``: its options, and its file of settings where it has one.

    Its own functions for each kind of job set the environment, from which scripts build theirs.
    """
    import torch
    from accelerate.commands import launch

    # The machine that starts the job has GPUs, of which accelerate counts more than one.
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 2
    torch.cuda.is_bf16_supported = lambda *_, **__: True
    parsed = launch.launch_command_parser().parse_args(list(args))
    settings = parsed.config_file or launch.default_config_file
    if parsed.num_processes is None and not Path(settings).is_file():
        raise Refused("it would count the GPUs of this machine: give --num_processes")
    jobs: list[Values] = []
    for kind, prepare in _ACCELERATE.items():
        read = partial(_accelerate_job, getattr(launch, prepare), jobs)
        setattr(launch, f"{kind}_launcher", read)
    for kind in ("tpu", "tpu_pod", "sagemaker"):
        setattr(launch, f"{kind}_launcher", _no_job)
    launch.launch_command(parsed)
    return jobs[0]


# Functions of accelerate that prepare each kind of job; a simple one is one process.
_ACCELERATE = {
    "simple": "prepare_simple_launcher_cmd_env",
    "multi_gpu": "prepare_multi_gpu_env",
    "deepspeed": "prepare_deepspeed_cmd_env",
}


def _accelerate_job(
    prepare: Callable[[Namespace], Any], jobs: list[Values], parsed: Namespace
) -> None:
    """Add the job that accelerate prepares, in place of starting it."""
    environment = prepare(parsed)
    if isinstance(environment, tuple):  # behind a command line
        environment = environment[1]
    changed = {
        name: value for name, value in environment.items() if os.environ.get(name) != value
    }
    if prepare.__name__ == _ACCELERATE["simple"]:
        job = _job(parsed, 1, 1, environment=changed)
        jobs.append({**job, "n_ranks": None, "n_ranks_per_node": None})
        return
    n_ranks, n_nodes = parsed.num_processes, parsed.num_machines or 1
    if n_ranks % n_nodes:
        raise Refused(f"{n_ranks} processes do not fill {n_nodes} machines equally")
    jobs.append(_job(parsed, n_nodes, n_ranks // n_nodes, environment=changed))


def _no_job(*_: object) -> NoReturn:
    raise Refused("it starts no job on GPUs of its own")


def _deepspeed(args: Sequence[str]) -> Values:
    from deepspeed.launcher import runner

    parsed = runner.parse_args(list(args))
    if parsed.hostfile != runner.DLTS_HOSTFILE or Path(parsed.hostfile).is_file():
        raise Refused(
            f"the hosts of {parsed.hostfile} are not looked at: give --num_nodes and --num_gpus, "
            "and no hostfile"
        )
    for name in ("include", "exclude", "autotuning", "elastic_training"):
        if getattr(parsed, name, None):  # releases lack some
            raise Refused(f"--{name} is not read: give --num_nodes and --num_gpus")
    if parsed.num_gpus <= 0:
        raise Refused("it would count the GPUs of this machine: give --num_gpus")
    n_nodes = max(parsed.num_nodes, 1)
    environment = {
        "CROSS_RANK": NODE_RANK,
        "CROSS_SIZE": str(n_nodes),
        "LOCAL_SIZE": str(parsed.num_gpus),
    }
    added = () if parsed.no_local_rank else (_DEEPSPEED_ARGUMENT,)
    parsed.user_script_args = parsed.user_args
    return _job(
        parsed,
        n_nodes,
        parsed.num_gpus,
        script="user_script",
        added=added,
        environment=environment,
    )


@dataclass(frozen=True, slots=True)
class Launcher:
    """The reader of a launcher's line, and the option by which the launcher starts a module."""

    read: Callable[[Sequence[str]], Values]
    module_option: str = "-m"


# Every launcher by the names of its program and of its module.
LAUNCHERS = {
    "torchrun": Launcher(_torchrun),
    "torch.distributed.run": Launcher(_torchrun),
    "torch.distributed.launch": Launcher(_torch_launch),
    "accelerate": Launcher(_accelerate),
    "accelerate-launch": Launcher(_accelerate),
    "accelerate.commands.launch": Launcher(_accelerate),
    "deepspeed": Launcher(_deepspeed, "--module"),
}


def main(file: str, name: str, *args: str) -> None:
    """Write the job of a line, or the reason why there is none, to a file."""
    try:
        sys.argv = [name, *args]
        values = LAUNCHERS[name].read(args)
    except Refused as refused:
        values = {"refused": str(refused)}
    except Exception as error:  # noqa: BLE001  # launchers raise anything for a wrong line
        values = {"refused": f"{type(error).__name__}: {error}"}
    Path(file).write_bytes(write_json(values))


if __name__ == "__main__":
    main(*sys.argv[1:])
