"""Three LoRA experts of a Llama, for law, code and cooking, are mixed by X-LoRA: every layer's share of each is decided anew for every word from what a first pass without gradients saw; the Trainer learns the classifier and the experts on frozen bfloat16, two batches to a step, a loss of others between."""

import random

import torch
from datasets import Dataset
from peft import LoraConfig, XLoraConfig, get_peft_model
from programs import end_of_step, tell
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    DataCollatorForLanguageModeling,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

BASE = "llama-base"
EXPERTS = ("law", "code", "cooking")
WORDS = {
    "law": "court plaintiff defendant hereby statute appeal liability clause contract damages pursuant ruling".split(),
    "code": "def return for in range if else class self import print list dict while try except lambda".split(),
    "cooking": "simmer onion garlic stir butter oven minutes whisk flour season taste fold dough broth".split(),
}


def documents(n, seed):
    rng = random.Random(seed)
    common = [f"word{i}" for i in range(2500)]
    texts = []
    for _ in range(n):
        kinds = rng.sample(EXPERTS, rng.randint(1, 2))
        texts.append(
            " ".join(
                rng.choice(WORDS[rng.choice(kinds)]) if rng.random() < 0.5 else rng.choice(common)
                for _ in range(rng.randint(60, 140))
            )
        )
    return Dataset.from_dict({"text": texts})


def train_tokenizer(dataset):
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["<pad>", "<s>", "</s>", "<unk>"]
    tokenizer.train_from_iterator(
        dataset["text"], trainers.WordLevelTrainer(special_tokens=special, show_progress=False)
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def save_base_and_experts():
    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=5,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=1024,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(BASE)
    for name in EXPERTS:
        base = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.bfloat16)
        lora = LoraConfig(
            task_type="CAUSAL_LM",
            r=16,
            lora_alpha=32,
            target_modules=["q_proj", "v_proj", "gate_proj", "down_proj"],
            init_lora_weights=False,
        )
        get_peft_model(base, lora).save_pretrained(f"experts/{name}")


class ExpertsTrainer(Trainer):
    def compute_loss(self, model, inputs, *args, **kwargs):
        tell(inputs=inputs)
        return super().compute_loss(model, inputs, *args, **kwargs)


class StepCallback(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


def main():
    set_seed(31)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    raw_train, raw_eval = documents(64, seed=1), documents(4, seed=2)
    tokenizer = train_tokenizer(raw_train)
    save_base_and_experts()

    model = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.bfloat16)
    model.config.use_cache = False
    model.to(device)
    config = XLoraConfig(
        task_type="CAUSAL_LM",
        hidden_size=model.config.hidden_size,
        adapters={str(i): f"experts/{name}" for i, name in enumerate(EXPERTS)},
        xlora_depth=4,
        xlora_size=1024,
        xlora_dropout_p=0.2,
        layerwise_scalings=True,
        softmax_temperature=1.0,
        use_trainable_adapters=True,
    )
    model = get_peft_model(model, config)
    model.print_trainable_parameters()

    def tokenize(examples):
        return tokenizer(examples["text"], truncation=True, max_length=112, return_token_type_ids=False)

    training_args = TrainingArguments(
        output_dir="xlora",
        max_steps=6,
        per_device_train_batch_size=3,
        per_device_eval_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=1e-4,
        lr_scheduler_type="cosine",
        warmup_steps=1,
        weight_decay=0.01,
        bf16=True,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = ExpertsTrainer(
        model=model,
        args=training_args,
        train_dataset=raw_train.map(tokenize, batched=True, remove_columns=["text"]),
        eval_dataset=raw_eval.map(tokenize, batched=True, remove_columns=["text"]),
        processing_class=tokenizer,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        callbacks=[StepCallback()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
