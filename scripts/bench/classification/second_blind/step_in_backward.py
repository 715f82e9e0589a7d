"""Every parameter is updated by a hook as soon as its gradient is there, which is freed at once (torch's tutorial)."""

import torch
from programs import end_of_step
from transformers import BertConfig, BertForSequenceClassification

torch.manual_seed(26)
config = BertConfig(
    vocab_size=4000, hidden_size=256, num_hidden_layers=5, num_attention_heads=4, intermediate_size=1024
)
model = BertForSequenceClassification(config).cuda().train()
optimizers = {parameter: torch.optim.Adam([parameter], foreach=False) for parameter in model.parameters()}


def optimizer_hook(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(optimizer_hook)

for _ in range(5):
    words = torch.randint(0, 4000, (8, 96)).cuda()
    labels = torch.randint(0, 2, (8,)).cuda()
    loss = model(input_ids=words, labels=labels).loss
    loss.backward()
    end_of_step(inputs=[words, labels], activations=[loss])
