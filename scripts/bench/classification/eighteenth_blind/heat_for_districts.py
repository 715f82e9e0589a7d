"""NeuralForecast forecasts the heat demand of 120 districts together from the weather: a TSMixerx with quantile loss, AdamW, one cycle, clipped gradients, early stopping."""

import warnings

import lightning.pytorch as pl
import numpy as np
import pandas as pd
import torch
from neuralforecast import NeuralForecast
from neuralforecast.losses.pytorch import MQLoss
from neuralforecast.models import TSMixerx
from programs import end_of_step, tell

warnings.filterwarnings("ignore")

HOURS, DISTRICTS = 24 * 30, 120


def history():
    """Hourly demand of heat with the temperature outside, the wind and the calendar."""
    draw = np.random.default_rng(4)
    hours = pd.date_range("2025-01-01", periods=HOURS, freq="h")
    outside = 5 + 6 * np.sin(np.arange(HOURS) * 2 * np.pi / 24) + draw.normal(0, 1, HOURS).cumsum() * 0.05
    frames = []
    for district in range(DISTRICTS):
        temperature = outside + draw.normal(0, 1, HOURS)
        demand = draw.uniform(5, 40) * np.clip(20 - temperature, 0, None) + draw.normal(0, 3, HOURS)
        frames.append(
            pd.DataFrame(
                {
                    "unique_id": f"district {district:03d}",
                    "ds": hours,
                    "y": demand.astype(np.float32),
                    "temperature": temperature.astype(np.float32),
                    "wind": draw.gamma(2, 2, HOURS).astype(np.float32),
                    "hour": np.sin(hours.hour * 2 * np.pi / 24).astype(np.float32),
                    "weekend": (hours.dayofweek >= 5).astype(np.float32),
                    "flow": draw.gamma(3, 5, HOURS).astype(np.float32),
                }
            )
        )
    static = pd.DataFrame(
        {
            "unique_id": [f"district {i:03d}" for i in range(DISTRICTS)],
            "dwellings": draw.integers(100, 5000, DISTRICTS).astype(np.float32),
            "insulated": draw.random(DISTRICTS).astype(np.float32),
        }
    )
    return pd.concat(frames, ignore_index=True), static


class StepEnds(pl.Callback):
    def on_train_batch_start(self, trainer, module, batch, index):
        tell(inputs=batch)

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        end_of_step(inputs=batch, activations=outputs)


demand, districts = history()
model = TSMixerx(
    h=24,
    input_size=168,
    n_series=DISTRICTS,
    futr_exog_list=["temperature", "wind", "hour", "weekend"],
    hist_exog_list=["flow"],
    stat_exog_list=["dwellings", "insulated"],
    n_block=4,
    ff_dim=128,
    dropout=0.2,
    revin=True,
    loss=MQLoss(level=[80, 95]),
    scaler_type="standard",
    max_steps=100,
    learning_rate=1e-3,
    val_check_steps=2,
    early_stop_patience_steps=5,
    windows_batch_size=32,
    inference_windows_batch_size=32,
    optimizer=torch.optim.AdamW,
    optimizer_kwargs={"weight_decay": 1e-4},
    lr_scheduler=torch.optim.lr_scheduler.OneCycleLR,
    lr_scheduler_kwargs={"max_lr": 1e-3, "total_steps": 100},
    gradient_clip_val=1.0,
    accelerator="gpu",
    devices=1,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=[StepEnds()],
)
forecaster = NeuralForecast(models=[model], freq="h")
forecaster.fit(df=demand, static_df=districts, val_size=24 * 3)
