"""A Gemma is aligned by odds ratios of good and bad answers (ORPO): a Trainer of one's own, Adafactor, clipped gradients."""

import tempfile

import torch
import torch.nn.functional as F
from programs import end_of_step
from torch.utils.data import Dataset
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

VOCABULARY = 12000


class Pairs(Dataset):
    """A prompt with an answer that was chosen and one that was rejected."""

    def __init__(self, n):
        self.lengths = torch.randint(12, 40, (n, 3)).tolist()

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        prompt, chosen, rejected = (torch.randint(4, VOCABULARY, (n,)) for n in self.lengths[index])
        return {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def collate(rows):
    sequences, labels = [], []
    for key in ("chosen", "rejected"):
        for row in rows:
            sequences.append(torch.cat((row["prompt"], row[key])))
            labels.append(torch.cat((torch.full_like(row["prompt"], -100), row[key])))
    pad = torch.nn.utils.rnn.pad_sequence
    input_ids = pad(sequences, batch_first=True, padding_value=0)
    return {
        "input_ids": input_ids,
        "attention_mask": (input_ids != 0).long(),
        "labels": pad(labels, batch_first=True, padding_value=-100),
    }


class ORPOTrainer(Trainer):
    beta = 0.1

    def get_batch_logps(self, logits, labels):
        labels = labels[:, 1:].clone()
        logits = logits[:, :-1]
        loss_mask = labels != -100
        labels[~loss_mask] = 0
        per_token = torch.gather(logits.log_softmax(-1), dim=2, index=labels.unsqueeze(2)).squeeze(2)
        return (per_token * loss_mask).sum(-1) / loss_mask.sum(-1)

    def odds_ratio_loss(self, chosen, rejected):
        log_odds = (chosen - rejected) - (torch.log1p(-torch.exp(chosen)) - torch.log1p(-torch.exp(rejected)))
        return self.beta * F.logsigmoid(log_odds)

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        labels = inputs["labels"]
        n_chosen = len(labels) // 2
        outputs = model(
            input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], use_cache=False
        )
        logits = outputs.logits.float()
        chosen_logits, chosen_labels = logits[:n_chosen, :-1], labels[:n_chosen, 1:]
        nll_loss = F.cross_entropy(
            chosen_logits.reshape(-1, logits.shape[-1]), chosen_labels.reshape(-1), ignore_index=-100
        )
        logps = self.get_batch_logps(logits, labels)
        loss = nll_loss - self.odds_ratio_loss(logps[:n_chosen], logps[n_chosen:]).mean()
        return (loss, outputs) if return_outputs else loss


class Steps(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


def main():
    set_seed(109)
    config = Gemma3TextConfig(
        vocab_size=VOCABULARY,
        hidden_size=192,
        intermediate_size=768,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=48,
        query_pre_attn_scalar=48,
        sliding_window=32,
        max_position_embeddings=512,
    )
    model = Gemma3ForCausalLM(config)
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        learning_rate=8e-6,
        lr_scheduler_type="linear",
        warmup_steps=1,
        max_grad_norm=1.0,
        max_steps=5,
        optim="adafactor",
        bf16=True,
        logging_steps=1,
        save_strategy="no",
        remove_unused_columns=False,
        report_to=[],
        disable_tqdm=True,
    )
    ORPOTrainer(
        model=model, args=args, train_dataset=Pairs(64), data_collator=collate, callbacks=[Steps()]
    ).train()


if __name__ == "__main__":
    main()
