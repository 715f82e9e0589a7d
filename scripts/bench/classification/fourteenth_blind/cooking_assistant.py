"""A Qwen3 learns to talk about cooking with TRL's SFTTrainer: conversations through a chat template of which the assistant's turns alone count, bfloat16 autocast with checkpoints, two batches to a step, held-out conversations between."""

import random

from datasets import Dataset
from programs import end_of_step, tell
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, TrainerCallback, set_seed
from trl import SFTConfig, SFTTrainer
from trl.kernels import chunked_logprob

# no Triton on this machine: TRL projects to the vocabulary with what every torch has
chunked_logprob._TRITON_AVAILABLE = chunked_logprob._MM_OUT_DTYPE = False

CHAT_TEMPLATE = """{%- for message in messages -%}
{{ '<|im_start|>' + message['role'] + '\n' }}
{%- if message['role'] == 'assistant' -%}
{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}
{%- else -%}
{{ message['content'] + '<|im_end|>\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"""

FOODS = "onions carrots lentils rice beef tofu spinach potatoes chickpeas salmon mushrooms noodles".split()
WAYS = "roast fry steam braise grill bake poach simmer marinate caramelize".split()
TIMES = "ten fifteen twenty thirty forty sixty ninety".split()
SPICES = "cumin paprika thyme ginger garlic coriander turmeric basil rosemary".split()


def question(rng):
    return rng.choice(
        [
            f"How long do I {rng.choice(WAYS)} {rng.choice(FOODS)} with {rng.choice(FOODS)}?",
            f"What can I cook from {rng.choice(FOODS)}, {rng.choice(FOODS)} and some {rng.choice(SPICES)}?",
            f"Can I replace {rng.choice(SPICES)} by {rng.choice(SPICES)}?",
        ]
    )


def answer(rng):
    steps = [
        f"{rng.choice(WAYS).title()} the {rng.choice(FOODS)} for {rng.choice(TIMES)} minutes, "
        f"then add a spoon of {rng.choice(SPICES)}."
        for _ in range(rng.randint(2, 5))
    ]
    return " ".join(steps)


def conversations(n, seed):
    rng = random.Random(seed)
    rows = []
    for _ in range(n):
        messages = [{"role": "system", "content": "You are a friendly cook who answers briefly."}]
        for _ in range(rng.randint(1, 2)):
            messages.append({"role": "user", "content": question(rng)})
            messages.append({"role": "assistant", "content": answer(rng)})
        rows.append({"messages": messages})
    return Dataset.from_list(rows)


def train_tokenizer(dataset):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=6000,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((m["content"] for row in dataset for m in row["messages"]), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        chat_template=CHAT_TEMPLATE,
    )


class ChatTrainer(SFTTrainer):
    def compute_loss(self, model, inputs, *args, **kwargs):
        tell(inputs=inputs)
        return super().compute_loss(model, inputs, *args, **kwargs)


class StepCallback(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


def main():
    set_seed(42)
    train_dataset, eval_dataset = conversations(64, seed=1), conversations(4, seed=2)
    tokenizer = train_tokenizer(train_dataset)
    config = Qwen3Config(
        vocab_size=6000,
        hidden_size=448,
        intermediate_size=1280,
        num_hidden_layers=5,
        num_attention_heads=7,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config)
    training_args = SFTConfig(
        output_dir="qwen3-cook",
        max_steps=6,
        per_device_train_batch_size=2,
        per_device_eval_batch_size=2,
        gradient_accumulation_steps=2,
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        learning_rate=2e-5,
        lr_scheduler_type="cosine",
        warmup_steps=1,
        bf16=True,
        assistant_only_loss=True,
        max_length=256,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = ChatTrainer(
        model=model,
        args=training_args,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        processing_class=tokenizer,
        callbacks=[StepCallback()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
