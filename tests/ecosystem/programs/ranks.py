"""Train a small model as the ranks of a library's job: ``python ranks.py KIND``."""

import importlib
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader

WIDTH, ROWS, N_BLOCKS, BATCH, N_STEPS = 128, 1024, 3, 4, 3


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, ROWS, bias=False)
        self.down = nn.Linear(ROWS, WIDTH, bias=False)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Sequential):
    """Blocks that give the transformers Trainer its loss, where they get labels."""

    def __init__(self):
        super().__init__(*[Block() for _ in range(N_BLOCKS)])

    def forward(self, x, labels=None):
        output = super().forward(x)
        return output if labels is None else {"loss": output.float().pow(2).mean()}


def accelerate(version):
    """Train with accelerate's plugin for a version of FSDP."""
    from accelerate import Accelerator
    from accelerate.utils import FullyShardedDataParallelPlugin

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=version,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["Block"],
        use_orig_params=True if version == 1 else None,
    )
    accelerator = Accelerator(fsdp_plugin=plugin)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer = accelerator.prepare(model, optimizer)
    for _ in range(N_STEPS):
        accelerator.backward(model(torch.ones(BATCH, WIDTH, device=accelerator.device)).mean())
        optimizer.step()
        optimizer.zero_grad()


def lightning(strategy):
    import lightning
    from lightning.pytorch.strategies import FSDPStrategy

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Model()

        def training_step(self, batch, _index):
            return self.model(batch).mean()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    if strategy == "fsdp":
        strategy = FSDPStrategy(auto_wrap_policy={Block})
    trainer = lightning.Trainer(
        accelerator="gpu",
        devices=8,
        strategy=strategy,
        max_steps=N_STEPS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Module(), DataLoader(torch.ones(256, WIDTH), batch_size=BATCH))


def trainer(**options):
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        "out",
        max_steps=N_STEPS,
        per_device_train_batch_size=BATCH,
        report_to=[],
        save_strategy="no",
        **options,
    )
    data = [{"x": torch.ones(WIDTH), "labels": torch.ones(1)} for _ in range(256)]
    Trainer(Model(), arguments, train_dataset=data).train()


def deepspeed(stage):
    deepspeed = importlib.import_module("deepspeed")
    model = Model()
    settings = {
        "train_micro_batch_size_per_gpu": BATCH,
        "zero_optimization": {"stage": stage, "reduce_bucket_size": 1000},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    }
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=settings
    )
    for _ in range(N_STEPS):
        engine.backward(engine(torch.ones(BATCH, WIDTH, device=engine.device)).mean())
        engine.step()


FSDP = {
    "fsdp": "full_shard",
    "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": ["Block"]},
}
ZERO = {
    "deepspeed": {
        "zero_optimization": {"stage": 3},
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
    }
}
KINDS = {
    "accelerate-fsdp1": lambda: accelerate(1),
    "accelerate-fsdp2": lambda: accelerate(2),
    "lightning-ddp": lambda: lightning("ddp"),
    "lightning-fsdp": lambda: lightning("fsdp"),
    "trainer-fsdp": lambda: trainer(**FSDP),
    "trainer-zero3": lambda: trainer(**ZERO),
    "zero1": lambda: deepspeed(1),
    "zero2": lambda: deepspeed(2),
    "zero3": lambda: deepspeed(3),
}

if __name__ == "__main__":
    KINDS[sys.argv[1]]()
