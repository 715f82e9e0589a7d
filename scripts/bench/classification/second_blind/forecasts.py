"""Forecasts of time series by a PatchTST of transformers, NAdam, and an average of the weights to predict with."""

import torch
from programs import end_of_step
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from transformers import PatchTSTConfig, PatchTSTForPrediction

torch.manual_seed(54)
config = PatchTSTConfig(
    num_input_channels=7,
    context_length=256,
    prediction_length=48,
    patch_length=16,
    patch_stride=8,
    d_model=192,
    num_hidden_layers=4,
    num_attention_heads=6,
    ffn_dim=512,
)
model = PatchTSTForPrediction(config).to("cuda")
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3)
for step in range(4):
    past, future = torch.randn(16, 256, 7).to("cuda"), torch.randn(16, 48, 7).to("cuda")
    loss = model(past_values=past, future_values=future).loss
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    average.update_parameters(model)
    if step % 2 == 1:
        with torch.no_grad():
            error = average(past_values=past, future_values=future).loss.item()
    end_of_step(
        inputs=[past, future], activations=[loss], weights=[*average.parameters(), *average.buffers()]
    )
