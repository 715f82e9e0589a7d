"""Hourly loads of many customers are forecast by N-HiTS of neuralforecast: quantiles, calendar and temperature, robustly scaled windows drawn on the device, validation now and then."""

import logging

import numpy as np
import pandas as pd
import torch
from neuralforecast import NeuralForecast
from neuralforecast.losses.pytorch import MQLoss
from neuralforecast.models import NHITS
from programs import end_of_step, tell
from pytorch_lightning.callbacks import Callback, LearningRateMonitor, ModelCheckpoint

VALIDATE_EVERY = 2
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)


class ToldNHITS(NHITS):
    def _create_windows(self, batch, step):
        created = super()._create_windows(batch, step)
        tell(inputs=[batch, created])
        return created

    def _sample_windows(self, *args, **kwargs):
        windows = super()._sample_windows(*args, **kwargs)
        tell(inputs=windows)
        return windows


class EndOfStep(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.global_step % VALIDATE_EVERY:
            end_of_step(inputs=batch)

    def on_validation_end(self, trainer, module):
        if not trainer.sanity_checking:
            end_of_step()


def loads(n_customers=48, n_hours=24 * 40):
    rng = np.random.default_rng(0)
    hours = pd.date_range("2024-01-01", periods=n_hours, freq="h")
    frames = []
    for customer in range(n_customers):
        temperature = (
            10
            + 8 * np.sin(2 * np.pi * np.arange(n_hours) / 24 + rng.normal(0, 0.3))
            + rng.normal(0, 1, n_hours)
        )
        load = rng.uniform(20, 200) * (
            1 + 0.3 * np.sin(2 * np.pi * np.arange(n_hours) / 24) + 0.01 * temperature
        )
        frames.append(
            pd.DataFrame(
                {
                    "unique_id": f"c{customer:03d}",
                    "ds": hours,
                    "y": (load + rng.normal(0, 5, n_hours)).astype(np.float32),
                    "temperature": temperature.astype(np.float32),
                    "hour": (hours.hour / 23 - 0.5).astype(np.float32),
                    "weekday": (hours.day_of_week / 6 - 0.5).astype(np.float32),
                }
            )
        )
    static = pd.DataFrame(
        {"unique_id": [f"c{i:03d}" for i in range(n_customers)], "business": rng.integers(0, 2, n_customers)}
    )
    return pd.concat(frames, ignore_index=True), static


def main():
    frame, static = loads()
    model = ToldNHITS(
        h=24,
        input_size=96,
        hist_exog_list=["temperature"],
        futr_exog_list=["hour", "weekday"],
        stat_exog_list=["business"],
        loss=MQLoss(level=[80, 95]),
        scaler_type="robust",
        mlp_units=[[512, 512]] * 3,
        n_pool_kernel_size=[8, 4, 1],
        n_freq_downsample=[12, 4, 1],
        dropout_prob_theta=0.1,
        batch_size=16,
        windows_batch_size=512,
        inference_windows_batch_size=1024,
        step_size=4,
        learning_rate=1e-3,
        max_steps=8,
        val_check_steps=VALIDATE_EVERY,
        early_stop_patience_steps=3,
        optimizer=torch.optim.AdamW,
        optimizer_kwargs={"weight_decay": 1e-4},
        accelerator="gpu",
        devices=1,
        gradient_clip_val=1.0,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=True,
        callbacks=[ModelCheckpoint(dirpath="loads", save_last=True), LearningRateMonitor(), EndOfStep()],
    )
    forecaster = NeuralForecast(models=[model], freq="h")
    forecaster.fit(df=frame, static_df=static, val_size=48)


if __name__ == "__main__":
    main()
