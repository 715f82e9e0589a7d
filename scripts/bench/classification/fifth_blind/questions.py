"""A DeBERTa learns to find answers in passages: the Trainer, bfloat16, two micro-batches to a step, evaluation between."""

import tempfile

import torch
from programs import end_of_step
from torch.utils.data import Dataset
from transformers import (
    DebertaV2Config,
    DebertaV2ForQuestionAnswering,
    EvalPrediction,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
    set_seed,
)

LONGEST, VOCABULARY = 128, 12000


class Passages(Dataset):
    """Tokens of a question and a passage, as a tokenizer gives them, and where the answer lies."""

    def __init__(self, n, seed):
        generator = torch.Generator().manual_seed(seed)
        self.features = []
        for _ in range(n):
            length = int(torch.randint(60, LONGEST, (), generator=generator))
            ids = torch.randint(5, VOCABULARY, (LONGEST,), generator=generator)
            ids[length:] = 0
            start = int(torch.randint(20, length - 4, (), generator=generator))
            self.features.append(
                {
                    "input_ids": ids,
                    "attention_mask": (torch.arange(LONGEST) < length).long(),
                    "token_type_ids": (torch.arange(LONGEST) >= 18).long(),
                    "start_positions": start,
                    "end_positions": start + 3,
                }
            )

    def __len__(self):
        return len(self.features)

    def __getitem__(self, index):
        return self.features[index]


def exact_match(prediction: EvalPrediction):
    starts, ends = (logits.argmax(-1) for logits in prediction.predictions)
    true_starts, true_ends = prediction.label_ids
    return {"exact_match": float(((starts == true_starts) & (ends == true_ends)).mean())}


class Steps(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


def main():
    set_seed(101)
    config = DebertaV2Config(
        vocab_size=VOCABULARY,
        hidden_size=192,
        num_hidden_layers=6,
        num_attention_heads=3,
        intermediate_size=768,
        max_position_embeddings=256,
        type_vocab_size=2,
        relative_attention=True,
        position_buckets=64,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
        position_biased_input=False,
        layer_norm_eps=1e-7,
    )
    model = DebertaV2ForQuestionAnswering(config)
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        gradient_accumulation_steps=2,
        learning_rate=3e-5,
        weight_decay=0.01,
        warmup_steps=1,
        max_steps=5,
        bf16=True,
        eval_strategy="steps",
        eval_steps=2,
        logging_steps=1,
        save_strategy="no",
        label_names=["start_positions", "end_positions"],
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=Passages(96, seed=1),
        eval_dataset=Passages(24, seed=2),
        data_collator=default_data_collator,
        compute_metrics=exact_match,
        callbacks=[Steps()],
    )
    trainer.train()
    print(trainer.evaluate())


if __name__ == "__main__":
    main()
