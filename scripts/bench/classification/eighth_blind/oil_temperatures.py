"""A PatchTSMixer forecasts how hot the oil of a transformer gets: the Trainer, scaled series, one cycle of rates, it stops when it gets no better."""

import tempfile

import numpy as np
import torch
from programs import end_of_step
from torch.utils.data import Dataset
from transformers import (
    EarlyStoppingCallback,
    PatchTSMixerConfig,
    PatchTSMixerForPrediction,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

COLUMNS = ("HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT")
CONTEXT, HORIZON, PATCH = 512, 96, 16


def hours(n, rng):
    """Loads and the temperature, hour by hour, with days and weeks in them."""
    t = np.arange(n)[:, None]
    phase = rng.uniform(0, 2 * np.pi, size=(1, len(COLUMNS)))
    day, week = np.sin(2 * np.pi * t / 24 + phase), np.sin(2 * np.pi * t / 168 + phase)
    return (day + 0.5 * week + rng.normal(0, 0.2, size=(n, len(COLUMNS)))).astype(np.float32)


class ForecastDFDataset(Dataset):
    def __init__(self, series, stride=1):
        self.series, self.stride = series, stride

    def __len__(self):
        return (len(self.series) - CONTEXT - HORIZON) // self.stride + 1

    def __getitem__(self, index):
        start = index * self.stride
        past = self.series[start : start + CONTEXT]
        future = self.series[start + CONTEXT : start + CONTEXT + HORIZON]
        return {
            "past_values": torch.from_numpy(past),
            "future_values": torch.from_numpy(future),
            "past_observed_mask": torch.ones(CONTEXT, len(COLUMNS), dtype=torch.bool),
        }


class Steps(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


def main(batch_size=8, learning_rate=1e-4, max_steps=6):
    set_seed(407)
    series = hours(1400, np.random.default_rng(407))
    n_train = 900
    mean, std = series[:n_train].mean(axis=0), series[:n_train].std(axis=0)
    series = (series - mean) / std
    train_dataset = ForecastDFDataset(series[:n_train])
    valid_dataset = ForecastDFDataset(series[n_train - CONTEXT :], stride=20)

    config = PatchTSMixerConfig(
        context_length=CONTEXT,
        prediction_length=HORIZON,
        patch_length=PATCH,
        patch_stride=PATCH,
        num_input_channels=len(COLUMNS),
        d_model=256,
        num_layers=6,
        expansion_factor=3,
        dropout=0.2,
        head_dropout=0.2,
        mode="common_channel",
        gated_attn=True,
        scaling="std",
    )
    model = PatchTSMixerForPrediction(config)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")

    train_args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        learning_rate=learning_rate,
        max_steps=max_steps,
        per_device_train_batch_size=batch_size,
        per_device_eval_batch_size=batch_size,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=2,
        save_total_limit=1,
        save_only_model=True,
        logging_strategy="steps",
        logging_steps=1,
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        greater_is_better=False,
        label_names=["future_values"],
        report_to=[],
        disable_tqdm=True,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate * 10, total_steps=max_steps + 1)
    trainer = Trainer(
        model=model,
        args=train_args,
        train_dataset=train_dataset,
        eval_dataset=valid_dataset,
        callbacks=[
            EarlyStoppingCallback(early_stopping_patience=5, early_stopping_threshold=0.001),
            Steps(),
        ],
        optimizers=(optimizer, scheduler),
    )
    trainer.train()
    print(trainer.evaluate(valid_dataset))


if __name__ == "__main__":
    main()
