"""An Autoformer forecasts how full roads are: the Trainer, embeddings of sensors, lags and hours, two batches to a step, forecasts drawn at the end of an evaluation."""

import tempfile

import numpy as np
import torch
from programs import end_of_step
from torch.utils.data import Dataset
from transformers import (
    AutoformerConfig,
    AutoformerForPrediction,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

N_SENSORS, HISTORY, CONTEXT, HORIZON, LAGS = 120, 600, 96, 24, [1, 2, 3, 23, 24, 25]


def occupancy(rng):
    """A share of time at which there is a car, hour by hour and sensor by sensor."""
    t = np.arange(HISTORY)[None]
    level = rng.uniform(0.02, 0.12, size=(N_SENSORS, 1))
    rush = np.exp(-(((t % 24) - 8) ** 2) / 6) + np.exp(-(((t % 24) - 17) ** 2) / 8)
    weekend = np.where(t // 24 % 7 >= 5, 0.5, 1.0)
    return (level * (0.3 + rush * weekend) * rng.uniform(0.8, 1.2, size=(N_SENSORS, HISTORY))).astype(
        np.float32
    )


class InstanceSplitter(Dataset):
    """Windows at random places, with what is known of their hours."""

    def __init__(self, series, n, last=False, seed=0):
        self.series, self.n, self.last = series, n, last
        self.rng = np.random.default_rng(seed)
        hours = np.arange(HISTORY)
        hour, day = hours % 24 / 23 - 0.5, hours // 24 % 7 / 6 - 0.5
        age = np.log10(2.0 + hours)
        self.features = np.stack((hour, day, age), axis=1).astype(np.float32)
        self.past = CONTEXT + max(LAGS)

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        sensor = index % N_SENSORS
        end = HISTORY - HORIZON if self.last else int(self.rng.integers(self.past, HISTORY - 2 * HORIZON))
        before, after = slice(end - self.past, end), slice(end, end + HORIZON)
        return {
            "static_categorical_features": torch.tensor([sensor]),
            "past_values": torch.from_numpy(self.series[sensor, before]),
            "past_time_features": torch.from_numpy(self.features[before]),
            "past_observed_mask": torch.ones(self.past),
            "future_values": torch.from_numpy(self.series[sensor, after]),
            "future_time_features": torch.from_numpy(self.features[after]),
        }


class Forecaster(Trainer):
    """After the loss of an evaluation, what comes is drawn for the first windows and compared."""

    def evaluate(self, eval_dataset=None, *args, **kwargs):
        metrics = super().evaluate(eval_dataset, *args, **kwargs)
        batch = next(iter(self.get_eval_dataloader(eval_dataset)))
        batch = self._prepare_inputs(batch)
        truth = batch.pop("future_values")
        with torch.no_grad():
            drawn = self.model.generate(**batch).sequences
        median = drawn.median(dim=1).values
        naive = batch["past_values"][:, -24:].sub(batch["past_values"][:, -48:-24]).abs().mean()
        mase = (median - truth).abs().mean() / naive
        print(f"MASE {mase.item():.3f}")
        return metrics


class Steps(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


def main():
    set_seed(906)
    series = occupancy(np.random.default_rng(906))
    config = AutoformerConfig(
        prediction_length=HORIZON,
        context_length=CONTEXT,
        lags_sequence=LAGS,
        num_time_features=3,
        num_static_categorical_features=1,
        cardinality=[N_SENSORS],
        embedding_dimension=[16],
        d_model=320,
        encoder_layers=2,
        decoder_layers=1,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=1280,
        decoder_ffn_dim=1280,
        moving_average=25,
        autocorrelation_factor=3,
        num_parallel_samples=4,
        scaling="mean",
    )
    model = AutoformerForPrediction(config)
    print(f"{model.num_parameters():,} parameters")
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        gradient_accumulation_steps=2,
        max_steps=6,
        learning_rate=6e-4,
        weight_decay=0.1,
        adam_beta2=0.95,
        max_grad_norm=0.5,
        lr_scheduler_type="cosine",
        warmup_steps=1,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="no",
        logging_steps=1,
        prediction_loss_only=True,
        label_names=["future_values"],
        dataloader_drop_last=True,
        remove_unused_columns=False,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Forecaster(
        model=model,
        args=args,
        train_dataset=InstanceSplitter(series, 240, seed=1),
        eval_dataset=InstanceSplitter(series, 8, last=True),
        callbacks=[Steps()],
    )
    trainer.train()
    print(trainer.evaluate())


if __name__ == "__main__":
    main()
