"""TiDE of pytorch-forecasting forecasts the hourly hires of bicycles at a city's docks: Lightning, float32, Ranger, clipped, MAE."""

import lightning.pytorch as pl
import numpy as np
import pandas as pd
from lightning.pytorch.callbacks import Callback, EarlyStopping, LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger
from programs import end_of_step
from pytorch_forecasting import MAE, TiDEModel, TimeSeriesDataSet
from pytorch_forecasting.data import GroupNormalizer

LOOKBACK, HORIZON = 336, 72


def hires(docks=24, hours=24 * 35):
    rng = np.random.default_rng(5)
    hour = np.arange(hours)
    stamps = pd.date_range("2024-03-01", periods=hours, freq="h")
    temperature = 12 + 8 * np.sin(2 * np.pi * hour / 24 - 2) + rng.normal(0, 1.5, hours).cumsum() * 0.05
    rain = np.maximum(rng.normal(-1, 1.5, hours), 0)
    frames = []
    for dock in range(docks):
        level = rng.lognormal(2.5, 0.6)
        commute = np.exp(-((hour % 24 - 8) ** 2) / 6) + np.exp(-((hour % 24 - 17.5) ** 2) / 8)
        rate = level * (0.2 + commute * np.where(stamps.day_of_week < 5, 1.0, 0.4)) * np.exp(-0.2 * rain)
        frames.append(
            pd.DataFrame(
                {
                    "dock": f"dock-{dock:03d}",
                    "district": f"district-{dock % 9}",
                    "time_idx": hour,
                    "hires": rng.poisson(rate).astype(np.float32),
                    "temperature": temperature,
                    "rain": rain,
                    "hour": stamps.hour.astype(str),
                    "weekday": stamps.day_of_week.astype(str),
                    "elevation": rng.uniform(0, 120),
                    "slots": float(rng.integers(10, 40)),
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


class Steps(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_index):
        end_of_step(inputs=batch, activations=outputs)


def main():
    pl.seed_everything(5, verbose=False)
    table = hires()
    cutoff = table["time_idx"].max() - HORIZON
    training = TimeSeriesDataSet(
        table[table["time_idx"] <= cutoff],
        time_idx="time_idx",
        target="hires",
        group_ids=["dock"],
        min_encoder_length=LOOKBACK,
        max_encoder_length=LOOKBACK,
        min_prediction_length=HORIZON,
        max_prediction_length=HORIZON,
        static_categoricals=["dock", "district"],
        static_reals=["elevation", "slots"],
        time_varying_known_categoricals=["hour", "weekday"],
        time_varying_known_reals=["temperature", "rain"],
        time_varying_unknown_reals=["hires"],
        target_normalizer=GroupNormalizer(groups=["dock"], transformation="softplus"),
    )
    validation = TimeSeriesDataSet.from_dataset(training, table, predict=True, stop_randomization=True)
    train_loader = training.to_dataloader(train=True, batch_size=256, num_workers=0)
    validation_loader = validation.to_dataloader(train=False, batch_size=256, num_workers=0)

    model = TiDEModel.from_dataset(
        training,
        hidden_size=384,
        num_encoder_layers=2,
        num_decoder_layers=2,
        decoder_output_dim=24,
        temporal_width_future=8,
        temporal_hidden_size_future=64,
        temporal_decoder_hidden=128,
        use_layer_norm=True,
        dropout=0.2,
        learning_rate=1e-3,
        weight_decay=1e-4,
        optimizer="ranger",
        reduce_on_plateau_patience=4,
        loss=MAE(),
        log_interval=10,
    )
    trainer = pl.Trainer(
        accelerator="gpu",
        devices=1,
        max_epochs=20,
        limit_train_batches=40,
        gradient_clip_val=0.5,
        num_sanity_val_steps=1,
        callbacks=[EarlyStopping("val_loss", patience=5), LearningRateMonitor(), Steps()],
        logger=CSVLogger("logs"),
        log_every_n_steps=10,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(model, train_loader, validation_loader)


if __name__ == "__main__":
    main()
