"""The attention model of rl4co for vehicle routes with time windows: REINFORCE against greedy rollouts of the best policy after a first epoch of warming up, bfloat16."""

import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from programs import end_of_step
from rl4co.envs import CVRPTWEnv
from rl4co.models.zoo import AttentionModel
from rl4co.utils.trainer import RL4COTrainer

torch.manual_seed(12)


class StepEnds(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        end_of_step(inputs=list(batch.values()), activations=outputs)


env = CVRPTWEnv(generator_params={"num_loc": 10})
model = AttentionModel(
    env,
    baseline="rollout",
    policy_kwargs={"embed_dim": 128, "num_encoder_layers": 3, "num_heads": 8},
    batch_size=128,
    val_batch_size=512,
    train_data_size=512,
    val_data_size=256,
    test_data_size=256,
    optimizer="Adam",
    optimizer_kwargs={"lr": 1e-4},
    lr_scheduler="MultiStepLR",
)
trainer = RL4COTrainer(
    max_epochs=3,
    accelerator="gpu",
    devices=1,
    precision="bf16-mixed",
    gradient_clip_val=1.0,
    logger=False,
    callbacks=[
        StepEnds(),
        ModelCheckpoint(dirpath="checkpoints", save_last=True, monitor="val/reward", mode="max"),
    ],
    enable_progress_bar=False,
    enable_model_summary=False,
    num_sanity_val_steps=0,
)
trainer.fit(model)
