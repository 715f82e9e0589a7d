"""A transformer for series forecasts how many tourists come, with its doubt: a t-distribution, lags, Accelerate, samples drawn between."""

import torch
from accelerate import Accelerator
from programs import end_of_step
from torch.optim import AdamW
from torch.utils.data import DataLoader, Dataset
from transformers import TimeSeriesTransformerConfig, TimeSeriesTransformerForPrediction

N_SERIES, PREDICTION, CONTEXT = 366, 12, 36
LAGS = [1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 23, 24, 25, 35, 36, 37]
PAST = CONTEXT + max(LAGS)


class Windows(Dataset):
    """Windows of monthly series, with the month and the age as features."""

    def __init__(self, n, length=260):
        t = torch.arange(length).float()
        season = torch.sin(t / 12 * 6.283 + torch.rand(N_SERIES, 1) * 6.283)
        self.series = torch.rand(N_SERIES, 1) * 1000 * (1.5 + season + torch.rand(N_SERIES, length))
        self.features = torch.stack(((t % 12) / 11.0 - 0.5, (2.0 + t).log10()), dim=-1)
        self.n, self.length = n, length

    def __len__(self):
        return self.n

    def __getitem__(self, _):
        which = int(torch.randint(N_SERIES, ()))
        start = int(torch.randint(self.length - PAST - PREDICTION, ()))
        middle, end = start + PAST, start + PAST + PREDICTION
        return {
            "static_categorical_features": torch.tensor([which]),
            "static_real_features": self.series[which].mean().log1p()[None],
            "past_time_features": self.features[start:middle],
            "past_values": self.series[which, start:middle],
            "past_observed_mask": (torch.rand(PAST) > 0.02).float(),
            "future_time_features": self.features[middle:end],
            "future_values": self.series[which, middle:end],
            "future_observed_mask": torch.ones(PREDICTION),
        }


config = TimeSeriesTransformerConfig(
    prediction_length=PREDICTION,
    context_length=CONTEXT,
    lags_sequence=LAGS,
    num_time_features=2,
    num_static_categorical_features=1,
    num_static_real_features=1,
    cardinality=[N_SERIES],
    embedding_dimension=[16],
    encoder_layers=3,
    decoder_layers=3,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=768,
    decoder_ffn_dim=768,
    d_model=192,
    num_parallel_samples=8,
)


def forecast(model, loader, device):
    """The mean absolute scaled error of the median of samples."""
    model.eval()
    errors = []
    for batch in loader:
        outputs = model.generate(
            static_categorical_features=batch["static_categorical_features"].to(device),
            static_real_features=batch["static_real_features"].to(device),
            past_time_features=batch["past_time_features"].to(device),
            past_values=batch["past_values"].to(device),
            future_time_features=batch["future_time_features"].to(device),
            past_observed_mask=batch["past_observed_mask"].to(device),
        )
        median = outputs.sequences.cpu().median(dim=1).values
        past = batch["past_values"].cpu()
        naive = (past[:, 12:] - past[:, :-12]).abs().mean(dim=1)
        errors.append(((median - batch["future_values"].cpu()).abs().mean(dim=1) / naive).mean())
    return torch.stack(errors).mean().item()


if __name__ == "__main__":
    torch.manual_seed(306)
    model = TimeSeriesTransformerForPrediction(config)
    train_dataloader = DataLoader(Windows(64), batch_size=32)
    test_dataloader = DataLoader(Windows(4), batch_size=4)
    accelerator = Accelerator()
    device = accelerator.device
    model.to(device)
    optimizer = AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=1e-1)
    model, optimizer, train_dataloader = accelerator.prepare(model, optimizer, train_dataloader)

    for epoch in range(3):
        model.train()
        for idx, batch in enumerate(train_dataloader):
            optimizer.zero_grad()
            outputs = model(
                static_categorical_features=batch["static_categorical_features"].to(device),
                static_real_features=batch["static_real_features"].to(device),
                past_time_features=batch["past_time_features"].to(device),
                past_values=batch["past_values"].to(device),
                future_time_features=batch["future_time_features"].to(device),
                future_values=batch["future_values"].to(device),
                past_observed_mask=batch["past_observed_mask"].to(device),
                future_observed_mask=batch["future_observed_mask"].to(device),
            )
            loss = outputs.loss
            accelerator.backward(loss)
            optimizer.step()
            print(f"epoch {epoch}, {idx}: {loss.item():.3f}")
            end_of_step(inputs=batch, activations=[loss, list(outputs.values())])
        print("MASE", forecast(accelerator.unwrap_model(model), test_dataloader, device))
