"""POMO learns to route vans that deliver parcels (CVRP) with RL4CO's trainer: float32, Adam, clipped gradients."""

import lightning.pytorch as pl
import torch
from programs import end_of_step
from rl4co.envs import CVRPEnv
from rl4co.models import POMO
from rl4co.utils import RL4COTrainer

torch.manual_seed(21)


class StepEnds(pl.Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        end_of_step(inputs=list(batch.values()), activations=outputs)


env = CVRPEnv(generator_params={"num_loc": 12})
model = POMO(
    env,
    policy_kwargs={"embed_dim": 128, "num_encoder_layers": 4, "num_heads": 8, "feedforward_hidden": 512},
    batch_size=16,
    val_batch_size=8,
    train_data_size=16 * 4,
    val_data_size=8,
    test_data_size=8,
    optimizer="Adam",
    optimizer_kwargs={"lr": 1e-4, "weight_decay": 1e-6},
    lr_scheduler="MultiStepLR",
    lr_scheduler_kwargs={"milestones": [80, 95], "gamma": 0.1},
)
trainer = RL4COTrainer(
    max_epochs=1,
    accelerator="gpu",
    devices=1,
    precision="32-true",
    logger=None,
    callbacks=[StepEnds()],
    enable_progress_bar=False,
    enable_model_summary=False,
    num_sanity_val_steps=0,
)
trainer.fit(model)
