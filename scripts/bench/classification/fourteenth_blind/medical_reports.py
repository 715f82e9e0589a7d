"""An OLMo 2 is fully fine-tuned on medical reports with AdaLomo under the Trainer: weights are updated in backward as soon as their gradient is there, all in bfloat16, checkpoints, texts of one length packed together, perplexity between."""

import math
import random
from itertools import chain

import torch
from datasets import Dataset
from programs import end_of_step, tell
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    Olmo2Config,
    Olmo2ForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
    set_seed,
)

BLOCK_SIZE = 192
FINDINGS = (
    "opacity effusion nodule fracture edema stenosis lesion thickening calcification atelectasis cyst".split()
)
PLACES = "left upper lobe|right lower lobe|mediastinum|distal radius|third rib|liver|pancreas|left kidney|spine".split(
    "|"
)
SIZES = "small moderate large subtle extensive minimal diffuse focal".split()
ADVICE = (
    "follow-up in six months|no further imaging|clinical correlation|biopsy|contrast-enhanced study".split(
        "|"
    )
)


def reports(n, seed):
    rng = random.Random(seed)
    texts = []
    for i in range(n):
        lines = [
            f"Patient {rng.randint(10000, 99999)}, age {rng.randint(18, 95)}. Comparison: {rng.randint(2009, 2024)}."
        ]
        for _ in range(rng.randint(3, 9)):
            lines.append(
                f"There is a {rng.choice(SIZES)} {rng.choice(FINDINGS)} of {rng.randint(2, 60)} mm in the "
                f"{rng.choice(PLACES)}, {rng.choice(['stable', 'new', 'larger than before', 'resolving'])}."
            )
        lines.append(f"Impression: {rng.choice(FINDINGS)}. Recommended: {rng.choice(ADVICE)}.")
        texts.append("\n".join(lines))
    return Dataset.from_dict({"text": texts})


def train_tokenizer(dataset):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(
        dataset["text"],
        trainers.BpeTrainer(
            vocab_size=3000,
            special_tokens=["<|endoftext|>", "<|padding|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|endoftext|>",
        pad_token="<|padding|>",
        model_max_length=100_000,
    )


class ReportTrainer(Trainer):
    def compute_loss(self, model, inputs, *args, **kwargs):
        tell(inputs=inputs)
        return super().compute_loss(model, inputs, *args, **kwargs)


class StepCallback(TrainerCallback):
    def on_step_end(self, args, state, control, optimizer=None, **kwargs):
        lomo = optimizer.optimizer
        end_of_step(states=[lomo.exp_avg_sq, lomo.exp_avg_sq_row, lomo.exp_avg_sq_col])

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        print(f"step {state.global_step}: perplexity {math.exp(metrics['eval_loss']):.1f}")


def main():
    set_seed(11)
    raw_train, raw_eval = reports(160, seed=1), reports(16, seed=2)
    tokenizer = train_tokenizer(raw_train)

    def group_texts(examples):
        ids = list(
            chain(*(tokenizer(text)["input_ids"] + [tokenizer.eos_token_id] for text in examples["text"]))
        )
        blocks = [ids[i : i + BLOCK_SIZE] for i in range(0, len(ids) - BLOCK_SIZE + 1, BLOCK_SIZE)]
        return {"input_ids": blocks, "labels": [block.copy() for block in blocks]}

    train_dataset = raw_train.map(group_texts, batched=True, remove_columns=["text"])
    eval_dataset = raw_eval.map(group_texts, batched=True, remove_columns=["text"])

    config = Olmo2Config(
        vocab_size=8192,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=7,
        num_attention_heads=12,
        num_key_value_heads=12,
        max_position_embeddings=1024,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    model = Olmo2ForCausalLM(config).to(torch.bfloat16)
    training_args = TrainingArguments(
        output_dir="olmo2-reports",
        max_steps=6,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        gradient_checkpointing=True,
        optim="adalomo",
        learning_rate=5e-4,
        lr_scheduler_type="cosine",
        warmup_steps=1,
        max_grad_norm=0.0,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = ReportTrainer(
        model=model,
        args=training_args,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset.select(range(min(4, len(eval_dataset)))),
        processing_class=tokenizer,
        data_collator=default_data_collator,
        callbacks=[StepCallback()],
    )
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter: tell(gradients=parameter.grad))
    trainer.train()


if __name__ == "__main__":
    main()
