"""The programs of this folder: how each is started, and what may be expected of its recording."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

PROGRAMS_FOLDER = Path(__file__).parent / "programs"

# What torchrun sets for a job of one process.
ONE_PROCESS = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    # Two processes may run tests side by side: pytest-xdist names them gw0, gw1.
    "MASTER_PORT": str(29511 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])),
}
MODES = {"compute": ("--simulate",), "no-compute": ("--simulate", "--no-compute")}


@dataclass(frozen=True, eq=False)
class Program:
    """A program, its command line, and in what its recording differs from that of most programs."""

    name: str
    file: str
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    is_short: bool = False  # of the half that continuous integration runs
    needs: str = ""  # a package that is not everywhere
    # The step after which the snapshot was taken, counted as the program prints them.
    recorded_step: int = 2
    is_trained: bool = True
    is_compiled: bool = False  # it is recorded as eager code
    notes: frozenset[str] = (
        frozenset()
    )  # those that its recording must have, besides the usual ones
    # Tests that fail today and why, by name, as test[mode], by mode, or all. What holds again fails
    # the run.
    known_failures: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return PROGRAMS_FOLDER / self.file


PROGRAMS = (
    Program("gpt2-trainer", "gpt2_trainer.py", is_short=True),
    Program("llama-bf16", "llama_bf16.py", is_short=True),
    Program("llama-checkpointing", "llama_checkpointing.py"),
    Program("bert-classifier", "bert_classifier.py"),
    Program("t5-adafactor", "t5_adafactor.py"),
    Program("mixtral-trainer", "mixtral_trainer.py"),
    Program("whisper", "whisper_finetune.py"),
    Program("lora", "lora_peft.py", is_short=True),
    Program("generate", "generate_text.py", recorded_step=1, is_trained=False),
    Program("accelerate", "accelerate_loop.py", is_short=True),
    Program("lightning", "lightning_autoencoder.py", is_short=True),
    Program("lightning-mixed", "lightning_mixed.py"),
    Program("timm", "timm_vit.py", needs="timm"),
    Program("torchvision", "torchvision_resnet.py", needs="torchvision"),
    Program("diffusion", "diffusion_latents.py"),
    Program("nanogpt", "nanogpt/train.py", is_short=True),
    Program("nanogpt-float16", "nanogpt/train.py", ("--dtype=float16", "--dropout=0.1")),
    Program("nanogpt-compiled", "nanogpt/train.py", ("--compile=True",), is_compiled=True),
    Program("compiled-mlp", "compiled_mlp.py", is_compiled=True),
    Program("compiled-with-graphs", "compiled_mlp.py", ("reduce-overhead",), is_compiled=True),
    Program("cuda-graphs", "cuda_graphs.py"),
    Program("word-language-model", "word_language_model/main.py", is_short=True),
    Program(
        "word-language-model-gru",
        "word_language_model/main.py",
        ("--model=GRU", "--nlayers=1"),
    ),
    Program("loader-workers", "loader_workers.py", is_short=True),
    Program("dcgan", "dcgan.py"),
    Program("dqn", "dqn.py"),
    Program(
        "ddp",
        "ddp_one_process.py",
        environment=ONE_PROCESS,
        is_short=True,
        notes=frozenset({"simulated-nccl"}),
    ),
    Program(
        "fsdp2",
        "fsdp2.py",
        environment=ONE_PROCESS,
        notes=frozenset({"simulated-nccl"}),
        known_failures={
            "test_no_compute_has_the_peak_of_computing": (
                "CUDA keeps float32 statistics of a layer norm"
            )
        },
    ),
    Program(
        "fsdp1",
        "fsdp1.py",
        environment=ONE_PROCESS,
        notes=frozenset({"simulated-nccl"}),
        known_failures={
            "test_operations_account_for_forward_and_backward": "its own hooks take the rest"
        },
    ),
    Program(
        "tensor-parallel",
        "tensor_parallel.py",
        environment=ONE_PROCESS,
        notes=frozenset({"simulated-nccl"}),
    ),
    Program("save-and-reload", "save_and_reload.py"),
    Program("master-weights", "master_weights.py"),
    Program("sharpness-aware", "sharpness_aware.py"),
    Program("mean-teacher", "mean_teacher.py"),
    Program(
        "skipgram-sparse",
        "skipgram_sparse.py",
        known_failures={
            "test_gradients_are_those_that_the_program_holds": (
                "a sparse gradient's indices are not in it"
            )
        },
    ),
)
