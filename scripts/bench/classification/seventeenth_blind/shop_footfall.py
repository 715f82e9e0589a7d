"""NeuralForecast trains a TimesNet on the hourly visitors of forty shops: RAdam, a cosine schedule, Huber loss."""

import numpy as np
import pandas as pd
import pytorch_lightning as pl
import torch
from neuralforecast import NeuralForecast
from neuralforecast.losses.pytorch import HuberLoss
from neuralforecast.models import TimesNet
from programs import end_of_step, tell


class Footfall(TimesNet):
    def _parse_windows(self, batch, windows):
        parsed = super()._parse_windows(batch, windows)
        tell(inputs=[batch["temporal"], windows["temporal"], [part for part in parsed if part is not None]])
        return parsed


class StepEnds(pl.Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        end_of_step(inputs=batch["temporal"], activations=outputs)


rng = np.random.default_rng(5)
hours = pd.date_range("2024-01-01", periods=1000, freq="h")
frames = []
for shop in range(40):
    day = np.sin(2 * np.pi * (np.arange(1000) + shop) / 24)
    week = np.sin(2 * np.pi * np.arange(1000) / 168)
    visitors = 80 + 40 * day + 15 * week + rng.normal(0, 6, 1000)
    frames.append(
        pd.DataFrame(
            {
                "unique_id": f"shop_{shop}",
                "ds": hours,
                "y": visitors,
                "weekend": (hours.dayofweek > 4).astype(float),
            }
        )
    )
data = pd.concat(frames)

model = Footfall(
    h=24,
    input_size=96,
    futr_exog_list=["weekend"],
    hidden_size=32,
    conv_hidden_size=64,
    top_k=2,
    num_kernels=3,
    encoder_layers=2,
    loss=HuberLoss(),
    max_steps=6,
    val_check_steps=100,
    batch_size=32,
    windows_batch_size=64,
    scaler_type="robust",
    learning_rate=1e-3,
    optimizer=torch.optim.RAdam,
    optimizer_kwargs={"weight_decay": 1e-4, "lr": 1e-3},
    lr_scheduler=torch.optim.lr_scheduler.CosineAnnealingLR,
    lr_scheduler_kwargs={"T_max": 6},
    accelerator="gpu",
    devices=1,
    gradient_clip_val=1.0,
    callbacks=[StepEnds()],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
forecast = NeuralForecast(models=[model], freq="h")
forecast.fit(df=data, val_size=48)
