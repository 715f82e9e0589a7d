"""The job and the program that a launcher's line starts, as the launcher's own parser reads it."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("torch")

from snapconv.errors import EntryPointError
from snapconv.recorder.program.launch_line import is_launch, read_launch
from snapconv.recorder.program.launch_reading import LAUNCHERS, Refused
from snapconv.simulation import RankOfJob


def torchrun(line):
    return LAUNCHERS["torchrun"].read(line.split())


@pytest.mark.parametrize(
    ("line", "n_ranks", "per_node"),
    [
        ("t.py", 1, 1),
        ("--nproc-per-node 8 --nnodes 8 t.py", 64, 8),
        ("--nproc_per_node=4 --nnodes=2:2 t.py", 8, 4),
        ("--standalone --nproc-per-node=2 t.py", 2, 2),
        # The value of an option is no program, and the program's options are its own.
        ("--rdzv-conf a.py --nproc-per-node 2 t.py --nproc-per-node 16", 2, 2),
    ],
)
def test_torchruns_options_give_the_ranks_and_the_script(line, n_ranks, per_node):
    job = torchrun(line)
    assert (job["n_ranks"], job["n_ranks_per_node"], job["program"]) == (n_ranks, per_node, "t.py")
    assert job["args"] == line.split()[line.split().index("t.py") + 1 :]
    assert (job["added_args"], job["is_module"]) == ([], False)


def test_a_module_of_torchrun_is_a_module():
    job = torchrun("--nproc-per-node 2 -m pkg.train x")
    assert (job["program"], job["args"], job["is_module"]) == ("pkg.train", ["x"], True)


def test_a_variable_of_torchrun_counts_as_its_option(monkeypatch):
    monkeypatch.setenv("PET_NPROC_PER_NODE", "4")
    assert torchrun("t.py")["n_ranks"] == 4


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("--nproc-per-node auto t.py", "give the number of GPUs of a node"),
        ("--nproc-per-node gpu t.py", "give the number of GPUs of a node"),
        ("--nnodes 2:4 t.py", "give the number of nodes"),
        ("--nproc-per-node 0 t.py", "1 nodes of 0 processes are no job"),
        ("--nproc-per-node -2 t.py", "1 nodes of -2 processes are no job"),
        ("--no-python ./run.sh", "run.sh, which is no Python program"),
    ],
)
def test_a_line_that_leaves_the_job_open_is_refused_with_the_remedy(line, remedy):
    with pytest.raises(Refused, match=remedy):
        torchrun(line)


def test_the_older_launcher_passes_the_local_rank_unless_it_is_told_not_to():
    launch = LAUNCHERS["torch.distributed.launch"].read
    assert launch(["--nproc-per-node", "2", "t.py"])["added_args"] == ["--local-rank={local_rank}"]
    assert launch(["--use-env", "t.py"])["added_args"] == []


def test_a_line_that_asks_for_help_alone_starts_no_job():
    with pytest.raises(EntryPointError, match="torchrun starts no job with this line"):
        read_launch("torchrun", ["--help"], is_module=False)


def test_what_a_launcher_refuses_is_its_own_sentence():
    with pytest.raises(EntryPointError, match=r"torchrun refuses its line: .*nnodes"):
        read_launch("torchrun", ["--nnodes"], is_module=False)


def test_only_a_line_that_starts_a_job_is_one():
    assert is_launch("/opt/bin/torchrun", ["t.py"], is_module=False)
    assert is_launch("torch.distributed.run", ["t.py"], is_module=True)
    assert is_launch("accelerate", ["launch", "t.py"], is_module=False)
    assert not is_launch("accelerate", ["test"], is_module=False)
    assert not is_launch("train.py", ["torchrun"], is_module=False)


# --- accelerate and deepspeed, where they are installed

CONFIG = """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: Block
mixed_precision: bf16
num_machines: 2
num_processes: 16
main_process_ip: 10.0.0.1
main_process_port: 29501
machine_rank: 0
"""


def accelerate(*words):
    pytest.importorskip("accelerate")
    return read_launch("accelerate", ["launch", *words], is_module=False)


def test_accelerates_settings_give_the_ranks_and_the_environment_of_scripts(tmp_path):
    file = tmp_path / "fsdp.yaml"
    file.write_text(CONFIG)
    job = accelerate("--config_file", str(file), "t.py", "--lr", "1")
    assert (job.n_ranks, job.n_ranks_per_node, job.program) == (16, 8, "t.py")
    assert job.args == ("--lr", "1")
    environment = job.environment_for(None)
    assert environment["ACCELERATE_USE_FSDP"] == "true"
    assert environment["FSDP_TRANSFORMER_CLS_TO_WRAP"] == "Block"
    assert environment["ACCELERATE_MIXED_PRECISION"] == "bf16"


def test_accelerates_options_come_before_its_settings(tmp_path):
    file = tmp_path / "fsdp.yaml"
    file.write_text(CONFIG)
    job = accelerate(
        "--config_file", str(file), "--num-processes", "64", "--num_machines=8", "t.py"
    )
    assert (job.n_ranks, job.n_ranks_per_node) == (64, 8)


def test_accelerate_without_a_number_would_count_the_gpus_of_this_machine(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(EntryPointError, match="give --num_processes"):
        accelerate("t.py")
    # One process is no job: accelerate sets no rank.
    assert accelerate("--num_processes", "1", "-m", "pkg.train").n_ranks is None
    assert accelerate("--num_processes", "8", "t.py").n_ranks == 8


def deepspeed(*words):
    pytest.importorskip("deepspeed")
    return read_launch("deepspeed", words, is_module=False)


def test_deepspeed_passes_the_local_rank_and_sets_its_own_variables():
    job = deepspeed("--num_gpus", "4", "--num_nodes=2", "t.py", "--deepspeed")
    rank = RankOfJob.create(6, 8, 4)
    assert (job.n_ranks, job.n_ranks_per_node) == (8, 4)
    assert job.args_for(rank) == ["--local_rank=2", "--deepspeed"]
    assert job.environment_for(rank) == {"CROSS_RANK": "1", "CROSS_SIZE": "2", "LOCAL_SIZE": "4"}
    assert deepspeed("--num_gpus=2", "--no_local_rank", "t.py").args_for(rank) == []


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (("t.py",), "give --num_gpus"),
        (("--hostfile", "hosts", "t.py"), "no hostfile"),
        (("--include", "localhost:0,1", "t.py"), "give --num_nodes and --num_gpus"),
    ],
)
def test_deepspeed_is_refused_where_the_machines_decide(words, remedy):
    with pytest.raises(EntryPointError, match=remedy):
        deepspeed(*words)


# --- a recording

SCRIPT = """
import json, os, sys
import torch

names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
print(json.dumps([sys.argv[1:], [os.environ[name] for name in names]]))
torch.ones(1, device="cuda")
"""


def record(folder, *line, **variables):
    import os

    (folder / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "snapconv", "record", "--simulate", "--no-compute", *line]
    return subprocess.run(
        command,
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_recording_takes_its_ranks_from_torchruns_line(tmp_path):
    line = ["--ranks", "9", "--", "torchrun", "--nproc_per_node=4", "--nnodes", "4", "train.py"]
    done = record(tmp_path, *line, "--lr", "1")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [["--lr", "1"], ["9", "1", "16", "4"]]
    assert (tmp_path / "train.rank9.capture").is_dir()


def test_inside_of_a_launcher_one_rank_says_in_one_sentence_that_it_cannot_be(tmp_path):
    said = []
    for rank in "01":
        variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2"}
        done = record(tmp_path, "--world-size", "8", "train.py", **variables)
        assert (done.returncode, done.stdout) == (6, "")
        said += done.stderr.splitlines()
    (sentence,) = said
    assert sentence.startswith("error: --world-size: this process is a rank of a job already")
