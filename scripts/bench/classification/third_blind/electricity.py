"""Loads of many households are forecast in quantiles: an LSTM goes through windows in order and keeps its state."""

import torch
from programs import end_of_step
from torch import nn

QUANTILES = (0.1, 0.5, 0.9)


class Forecaster(nn.Module):
    def __init__(self, n_features=24, hidden_size=320, num_layers=2, horizon=12):
        super().__init__()
        self.lstm = nn.LSTM(n_features, hidden_size, num_layers, batch_first=True, dropout=0.2)
        self.head = nn.Sequential(
            nn.Linear(hidden_size, hidden_size), nn.ELU(), nn.Linear(hidden_size, horizon * len(QUANTILES))
        )

    def forward(self, x, state=None):
        out, state = self.lstm(x, state)
        return self.head(out).unflatten(-1, (-1, len(QUANTILES))), state


def quantile_loss(predicted, wanted):
    error = wanted.unsqueeze(-1) - predicted
    q = torch.tensor(QUANTILES, device=error.device)
    return torch.maximum(q * error, (q - 1) * error).mean()


def windows(series, length=48, horizon=12):
    for start in range(0, series.shape[1] - length - horizon + 1, length):
        x = series[:, start : start + length]
        y = series[:, start + 1 : start + length + horizon, 0].unfold(1, horizon, 1)
        yield x, y


def validate(model, series):
    model.eval()
    with torch.no_grad():
        state, total = None, 0.0
        for x, y in windows(series):
            predicted, state = model(x, state)
            total += quantile_loss(predicted, y).item()
    model.train()
    return total


def fit(model, training, validation, n_epochs):
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    for epoch in range(n_epochs):
        state = None
        for x, y in windows(training):
            if state is not None:
                state = tuple(part.detach() for part in state)
            optimizer.zero_grad()
            predicted, state = model(x, state)
            loss = quantile_loss(predicted, y)
            loss.backward()
            nn.utils.clip_grad_value_(model.parameters(), 0.5)
            optimizer.step()
            end_of_step(inputs=[training, validation], activations=[predicted, loss, state])
        error = validate(model, validation)
        scheduler.step(error)
        print(epoch, loss.item(), error)


torch.manual_seed(68)
fit(
    Forecaster().cuda(),
    training=torch.rand(32, 48 * 2 + 12, 24).cuda(),
    validation=torch.rand(16, 48 + 12, 24).cuda(),
    n_epochs=4,
)
