"""A SmolLM3 is aligned with what people prefer by SimPO: no reference, means over words and a margin, a Trainer of one's own in bfloat16, RMSprop, two batches to a step, checkpoints."""

import tempfile
from collections import defaultdict

import torch
import torch.nn.functional as F
from programs import end_of_step, tell
from torch.utils.data import Dataset
from transformers import (
    SmolLM3Config,
    SmolLM3ForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

VOCABULARY, PAD, EOS = 16000, 0, 2


class UltraFeedback(Dataset):
    def __init__(self, n, seed):
        self.generator = torch.Generator().manual_seed(seed)
        self.rows = [
            {"prompt": self.words(10, 40), "chosen": self.words(8, 48), "rejected": self.words(16, 72)}
            for _ in range(n)
        ]

    def words(self, low, high):
        n = int(torch.randint(low, high, (), generator=self.generator))
        return torch.randint(4, VOCABULARY, (n,), generator=self.generator).tolist()

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class PreferenceCollator:
    def __call__(self, rows):
        batch = {}
        for key in ("chosen", "rejected"):
            ids = [torch.tensor(row["prompt"] + row[key] + [EOS]) for row in rows]
            labels = [torch.tensor([-100] * len(row["prompt"]) + row[key] + [EOS]) for row in rows]
            pad = torch.nn.utils.rnn.pad_sequence
            batch[f"{key}_input_ids"] = pad(ids, batch_first=True, padding_value=PAD)
            batch[f"{key}_attention_mask"] = (batch[f"{key}_input_ids"] != PAD).long()
            batch[f"{key}_labels"] = pad(labels, batch_first=True, padding_value=-100)
        return batch


def pad_to_length(tensor, length, value):
    return F.pad(tensor, (0, length - tensor.shape[1]), value=value)


class SimPOTrainer(Trainer):
    def __init__(self, *args, beta=2.0, gamma_beta_ratio=0.5, **kwargs):
        super().__init__(*args, **kwargs)
        self.beta, self.gamma_beta_ratio = beta, gamma_beta_ratio
        self._stored_metrics = defaultdict(list)

    def concatenated_inputs(self, batch):
        length = max(batch["chosen_input_ids"].shape[1], batch["rejected_input_ids"].shape[1])
        values = {"input_ids": PAD, "attention_mask": 0, "labels": -100}
        return {
            name: torch.cat(
                [pad_to_length(batch[f"{key}_{name}"], length, value) for key in ("chosen", "rejected")]
            )
            for name, value in values.items()
        }

    def get_batch_logps(self, logits, labels):
        labels = labels[:, 1:].clone()
        logits = logits[:, :-1, :]
        loss_mask = labels != -100
        labels[labels == -100] = 0
        per_token_logps = torch.gather(logits.log_softmax(-1), dim=2, index=labels.unsqueeze(2)).squeeze(2)
        return (per_token_logps * loss_mask).sum(-1) / loss_mask.sum(-1)

    def concatenated_forward(self, model, batch):
        concatenated = self.concatenated_inputs(batch)
        tell(inputs=[batch, concatenated])
        n_chosen = batch["chosen_labels"].shape[0]
        all_logits = model(
            concatenated["input_ids"], attention_mask=concatenated["attention_mask"], use_cache=False
        ).logits
        all_logps = self.get_batch_logps(all_logits.float(), concatenated["labels"])
        return all_logps[:n_chosen], all_logps[n_chosen:]

    def simpo_loss(self, policy_chosen_logps, policy_rejected_logps):
        logits = policy_chosen_logps - policy_rejected_logps - self.gamma_beta_ratio
        losses = -F.logsigmoid(self.beta * logits)
        chosen_rewards = self.beta * policy_chosen_logps.detach()
        rejected_rewards = self.beta * policy_rejected_logps.detach()
        return losses, chosen_rewards, rejected_rewards

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        chosen_logps, rejected_logps = self.concatenated_forward(model, inputs)
        losses, chosen_rewards, rejected_rewards = self.simpo_loss(chosen_logps, rejected_logps)
        prefix = "" if model.training else "eval_"
        accuracies = (chosen_rewards > rejected_rewards).float()
        self._stored_metrics[f"{prefix}rewards/chosen"].append(chosen_rewards.mean().cpu().item())
        self._stored_metrics[f"{prefix}rewards/accuracies"].append(accuracies.mean().cpu().item())
        loss = losses.mean()
        return (loss, {}) if return_outputs else loss

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            loss = self.compute_loss(model, inputs)
        return loss.detach(), None, None

    def log(self, logs, *args, **kwargs):
        for key, values in self._stored_metrics.items():
            logs[key] = sum(values) / len(values)
        self._stored_metrics.clear()
        super().log(logs, *args, **kwargs)


class StepEnd(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


def main():
    set_seed(1008)
    model = SmolLM3ForCausalLM(
        SmolLM3Config(
            vocab_size=VOCABULARY,
            hidden_size=320,
            intermediate_size=1024,
            num_hidden_layers=6,
            num_attention_heads=5,
            num_key_value_heads=1,
            max_position_embeddings=512,
            no_rope_layer_interval=4,
            pad_token_id=PAD,
            bos_token_id=1,
            eos_token_id=EOS,
            tie_word_embeddings=True,
        )
    ).to(torch.bfloat16)
    training_args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=2,
        per_device_eval_batch_size=2,
        gradient_accumulation_steps=2,
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        learning_rate=6e-7,
        lr_scheduler_type="cosine",
        warmup_steps=1,
        optim="rmsprop",
        bf16=True,
        max_steps=5,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="no",
        remove_unused_columns=False,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = SimPOTrainer(
        model=model,
        args=training_args,
        train_dataset=UltraFeedback(32, seed=1),
        eval_dataset=UltraFeedback(4, seed=2),
        data_collator=PreferenceCollator(),
        callbacks=[StepEnd()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
