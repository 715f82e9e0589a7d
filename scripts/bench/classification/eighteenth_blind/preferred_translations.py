"""Contrastive preference optimization of a Gemma 2 on pairs of translations with TRL: bf16, checkpointed layers, AdamW, inverse square root."""

import random

import torch
from datasets import Dataset
from programs import end_of_step, tell
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import Gemma2Config, Gemma2ForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl.experimental.cpo import CPOConfig, CPOTrainer

random.seed(8)
torch.manual_seed(8)

SYLLABLES = [a + b + c for a in "bdfgklmnprstvz" for b in "aeiou" for c in ("", "n", "r", "s", "l")]
WORDS = ["".join(random.choices(SYLLABLES, k=random.randint(1, 4))) for _ in range(4000)]


def sentence(low, high):
    return " ".join(random.choices(WORDS, k=random.randint(low, high)))


def make_tokenizer():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=6000, special_tokens=["<pad>", "<eos>", "<bos>", "<unk>"], show_progress=False
    )
    tokenizer.train_from_iterator((sentence(10, 30) for _ in range(1000)), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>", unk_token="<unk>"
    )


def make_pairs(size):
    rows = []
    for _ in range(size):
        source = sentence(16, 40)
        rows.append(
            {
                "prompt": f"Translate this from German to English:\nGerman: {source}\nEnglish:",
                "chosen": " " + sentence(16, 40),
                "rejected": " " + sentence(16, 40),
            }
        )
    return Dataset.from_list(rows)


class Translations(CPOTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        tell(inputs=inputs)
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    @staticmethod
    def get_batch_logps(logits, labels, average_log_prob=False, is_encoder_decoder=False):
        labels = labels[:, 1:]
        mask = labels != -100
        logps = logits[:, :-1].float().log_softmax(dim=-1)
        logps = logps.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1) * mask
        return logps.sum(-1) / mask.sum(-1) if average_log_prob else logps.sum(-1)


class StepEnds(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


def main():
    tokenizer = make_tokenizer()
    model = Gemma2ForCausalLM(
        Gemma2Config(
            vocab_size=len(tokenizer),
            hidden_size=320,
            intermediate_size=1280,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=80,
            query_pre_attn_scalar=80,
            sliding_window=128,
            max_position_embeddings=512,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            attn_implementation="eager",
        )
    )
    arguments = CPOConfig(
        output_dir="cpo-gemma",
        per_device_train_batch_size=2,
        per_device_eval_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=6,
        beta=0.1,
        cpo_alpha=1.0,
        max_length=192,
        learning_rate=1e-6,
        lr_scheduler_type="inverse_sqrt",
        warmup_steps=2,
        bf16=True,
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        eval_strategy="steps",
        eval_steps=2,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        remove_unused_columns=False,
        disable_tqdm=True,
    )
    trainer = Translations(
        model=model,
        args=arguments,
        train_dataset=make_pairs(48),
        eval_dataset=make_pairs(4),
        processing_class=tokenizer,
        callbacks=[StepEnds()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
