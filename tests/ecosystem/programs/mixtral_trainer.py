"""A mixture of experts: Mixtral with its router loss, under the Trainer."""

import torch
from own_count import print_count
from transformers import (
    MixtralConfig,
    MixtralForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

torch.manual_seed(7)

cfg = MixtralConfig(
    vocab_size=1000,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    num_local_experts=4,
    num_experts_per_tok=2,
    max_position_embeddings=128,
    output_router_logits=True,
    router_aux_loss_coef=0.02,
)


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        g = torch.Generator().manual_seed(index)
        ids = torch.randint(0, 1000, (96,), generator=g)
        return dict(input_ids=ids, labels=ids)


class Cb(TrainerCallback):
    def on_optimizer_step(self, args, state, control, model=None, optimizer=None, **kw):
        print_count(model, optimizer)


Trainer(
    MixtralForCausalLM(cfg),
    TrainingArguments(
        output_dir="moe",
        per_device_train_batch_size=4,
        max_steps=5,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        max_grad_norm=1.0,
    ),
    train_dataset=Tokens(),
    callbacks=[Cb()],
).train()
