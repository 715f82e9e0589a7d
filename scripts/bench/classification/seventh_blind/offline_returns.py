"""A Decision Transformer learns to walk from what others did: the Trainer with a model and a collator of one's own."""

import tempfile
from dataclasses import dataclass

import numpy as np
import torch
from programs import end_of_step
from torch.utils.data import Dataset
from transformers import (
    DecisionTransformerConfig,
    DecisionTransformerModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

STATE_DIM, ACT_DIM, MAX_LEN, MAX_EP_LEN, SCALE = 17, 6, 20, 1000, 1000.0


class Episodes(Dataset):
    def __init__(self, n, rng):
        self.rows = []
        for length in rng.integers(30, 200, size=n):
            self.rows.append(
                {
                    "observations": rng.normal(size=(length, STATE_DIM)),
                    "actions": rng.uniform(-1, 1, size=(length, ACT_DIM)),
                    "rewards": rng.normal(3, 1, size=length),
                    "dones": np.arange(length) == length - 1,
                }
            )

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


@dataclass
class DecisionTransformerGymDataCollator:
    dataset: Episodes
    rng: np.random.Generator

    def __post_init__(self):
        states = np.concatenate([row["observations"] for row in self.dataset.rows])
        self.state_mean, self.state_std = states.mean(axis=0), states.std(axis=0) + 1e-6
        lengths = np.array([len(row["rewards"]) for row in self.dataset.rows])
        self.p_sample = lengths / lengths.sum()

    def __call__(self, features):
        batch = {key: [] for key in ("states", "actions", "rewards", "returns_to_go", "timesteps", "mask")}
        for i in self.rng.choice(len(self.dataset), size=len(features), p=self.p_sample):
            row = self.dataset.rows[i]
            si = int(self.rng.integers(len(row["rewards"]) - 1))
            s = (row["observations"][si : si + MAX_LEN] - self.state_mean) / self.state_std
            a, r = row["actions"][si : si + MAX_LEN], row["rewards"][si : si + MAX_LEN]
            rtg = row["rewards"][si:][::-1].cumsum()[::-1][: len(r)] / SCALE
            short = MAX_LEN - len(r)
            batch["states"].append(np.pad(s, ((short, 0), (0, 0))))
            batch["actions"].append(np.pad(a, ((short, 0), (0, 0)), constant_values=-10))
            batch["rewards"].append(np.pad(r, (short, 0))[:, None])
            batch["returns_to_go"].append(np.pad(rtg, (short, 0))[:, None])
            batch["timesteps"].append(np.pad(np.arange(si, si + len(r)), (short, 0)))
            batch["mask"].append(np.arange(MAX_LEN) >= short)
        found = {key: torch.from_numpy(np.stack(rows)).float() for key, rows in batch.items()}
        found["timesteps"], found["attention_mask"] = found["timesteps"].long(), found.pop("mask")
        return found


class TrainableDT(DecisionTransformerModel):
    def forward(self, **kwargs):
        output = super().forward(**kwargs)
        action_preds = output[1]
        action_targets = kwargs["actions"]
        attention_mask = kwargs["attention_mask"]
        act_dim = action_preds.shape[2]
        action_preds = action_preds.reshape(-1, act_dim)[attention_mask.reshape(-1) > 0]
        action_targets = action_targets.reshape(-1, act_dim)[attention_mask.reshape(-1) > 0]
        loss = torch.mean((action_preds - action_targets) ** 2)
        return {"loss": loss}


class Steps(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


def main():
    set_seed(307)
    rng = np.random.default_rng(307)
    dataset = Episodes(120, rng)
    collator = DecisionTransformerGymDataCollator(dataset, rng)
    config = DecisionTransformerConfig(
        state_dim=STATE_DIM,
        act_dim=ACT_DIM,
        max_ep_len=MAX_EP_LEN,
        hidden_size=256,
        n_layer=5,
        n_head=4,
        n_inner=1024,
        n_positions=256,
        activation_function="relu",
    )
    model = TrainableDT(config)
    training_args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        remove_unused_columns=False,
        max_steps=5,
        per_device_train_batch_size=48,
        learning_rate=1e-4,
        weight_decay=1e-4,
        warmup_steps=1,
        optim="adamw_torch",
        max_grad_norm=0.25,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=model, args=training_args, train_dataset=dataset, data_collator=collator, callbacks=[Steps()]
    )
    trainer.train()


if __name__ == "__main__":
    main()
