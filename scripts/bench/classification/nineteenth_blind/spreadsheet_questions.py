"""TAPAS learns to answer questions about spreadsheets from the answers alone: a Trainer in float32, AdamW with linear warm-up, validated every other step."""

import numpy as np
import torch
from programs import end_of_step, tell
from torch.utils.data import Dataset
from transformers import (
    TapasConfig,
    TapasForQuestionAnswering,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
    set_seed,
)

LENGTH, VOCABULARY = 256, 8000


class Spreadsheets(Dataset):
    """A question and a sheet of numbers, flattened cell by cell as TAPAS wants it."""

    def __init__(self, length, seed):
        self.length, self.seed = length, seed

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        rng = np.random.default_rng(self.seed * 10007 + index)
        question = int(rng.integers(10, 24))
        columns, rows = int(rng.integers(3, 7)), int(rng.integers(6, 24))
        ids = np.zeros(LENGTH, np.int64)
        types = np.zeros((LENGTH, 7), np.int64)
        values = np.full(LENGTH, np.nan, np.float32)
        ids[0], ids[1 : 1 + question], ids[1 + question] = 101, rng.integers(1000, VOCABULARY, question), 102
        at = question + 2
        numbers = rng.integers(1, 500, (rows, columns))
        ranks = numbers.argsort(0).argsort(0) + 1
        for row in range(rows + 1):
            for column in range(columns):
                if at >= LENGTH:
                    break
                ids[at] = rng.integers(1000, VOCABULARY)
                types[at, :3] = 1, column + 1, row
                if row:
                    values[at] = numbers[row - 1, column]
                    types[at, 4] = ranks[row - 1, column]
                    types[at, 5] = rows + 1 - ranks[row - 1, column]
                at += 1
        column = int(rng.integers(columns))
        cells = (types[:, 1] == column + 1) & (types[:, 2] > 0)
        labels = np.zeros(LENGTH, np.int64)
        answer = np.nan
        if rng.random() < 0.5:
            labels[rng.choice(np.flatnonzero(cells))] = 1
        else:
            answer = float(values[cells].mean())
        return {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy((np.arange(LENGTH) < at).astype(np.int64)),
            "token_type_ids": torch.from_numpy(types),
            "labels": torch.from_numpy(labels),
            "numeric_values": torch.from_numpy(values),
            "numeric_values_scale": torch.ones(LENGTH),
            "float_answer": torch.tensor(answer, dtype=torch.float32),
        }


class TableTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        tell(inputs=inputs)
        outputs = model(**inputs)
        return (outputs.loss, outputs) if return_outputs else outputs.loss


class Steps(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


def main():
    set_seed(8)
    config = TapasConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        max_position_embeddings=LENGTH,
        num_aggregation_labels=4,
        use_answer_as_supervision=True,
        answer_loss_cutoff=0.664694,
        cell_selection_preference=0.207951,
        huber_loss_delta=0.121194,
        init_cell_selection_weights_to_zero=True,
        select_one_column=True,
        allow_empty_column_selection=False,
        temperature=0.0352513,
        max_num_rows=64,
        max_num_columns=32,
    )
    arguments = TrainingArguments(
        output_dir="tapas",
        per_device_train_batch_size=6,
        per_device_eval_batch_size=12,
        learning_rate=5e-5,
        warmup_steps=20,
        max_steps=200,
        eval_strategy="steps",
        eval_steps=2,
        prediction_loss_only=True,
        logging_steps=2,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = TableTrainer(
        model=TapasForQuestionAnswering(config),
        args=arguments,
        train_dataset=Spreadsheets(800, 1),
        eval_dataset=Spreadsheets(24, 2),
        data_collator=default_data_collator,
        callbacks=[Steps()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
