"""A Qwen2 learns to solve sums by TRL's GRPOTrainer: groups of sampled answers, rewards for the format and for the number, LoRA on queries and values, so that the reference is the model without it, two batches to a step."""

import random
import re

from datasets import Dataset
from peft import LoraConfig
from programs import end_of_step, tell
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, TrainerCallback, set_seed
from trl import GRPOConfig, GRPOTrainer
from trl.kernels import chunked_logprob

# no Triton on this machine: TRL projects to the vocabulary with what every torch has
chunked_logprob._TRITON_AVAILABLE = chunked_logprob._MM_OUT_DTYPE = False

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SYSTEM_PROMPT = (
    "Think about the question step by step between <think> and </think>, "
    "then write the number between <answer> and </answer>."
)
NAMES = "Ada Ben Chloe David Emma Farid Grace Hugo Ines Jonas".split()
GOODS = "apples books coins eggs flowers marbles pencils stamps tickets".split()


def problems(n, seed):
    rng = random.Random(seed)
    rows = []
    for _ in range(n):
        a, b, c = rng.randint(2, 60), rng.randint(2, 60), rng.randint(1, 9)
        who, other = rng.sample(NAMES, 2)
        goods = rng.choice(GOODS)
        question = (
            f"{who} has {a} {goods} and gets {b} more from {other}. Then {who} loses {c} of them. "
            f"How many {goods} does {who} have now?"
        )
        prompt = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": question}]
        rows.append({"prompt": prompt, "answer": str(a + b - c)})
    return Dataset.from_list(rows)


def train_tokenizer(dataset):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4000,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((m["content"] for row in dataset for m in row["prompt"]), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        chat_template=CHAT_TEMPLATE,
    )


def format_reward(completions, **kwargs):
    pattern = re.compile(r"^<think>.*?</think>\s*<answer>.*?</answer>$", re.DOTALL)
    return [1.0 if pattern.match(completion[0]["content"]) else 0.0 for completion in completions]


def answer_reward(completions, answer, **kwargs):
    rewards = []
    for completion, right in zip(completions, answer):
        numbers = re.findall(r"\d+", completion[0]["content"])
        rewards.append(2.0 if numbers and numbers[-1] == right else 0.5 * bool(numbers))
    return rewards


def repetition_reward(completion_ids, **kwargs):
    return [len(set(ids)) / len(ids) for ids in completion_ids]


class SumsTrainer(GRPOTrainer):
    def compute_loss(self, model, inputs, *args, **kwargs):
        tell(inputs=inputs)
        return super().compute_loss(model, inputs, *args, **kwargs)


class StepCallback(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


def tell_of_cache(module, args, output):
    if output.past_key_values is not None:
        tell(caches=[(layer.keys, layer.values) for layer in output.past_key_values.layers])


def main():
    set_seed(3)
    dataset = problems(64, seed=1)
    tokenizer = train_tokenizer(dataset)
    config = Qwen2Config(
        vocab_size=4096,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        use_sliding_window=False,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    model = Qwen2ForCausalLM(config)
    model.model.register_forward_hook(tell_of_cache)
    training_args = GRPOConfig(
        output_dir="qwen2-grpo",
        max_steps=6,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=16,
        temperature=0.9,
        beta=0.04,
        learning_rate=1e-5,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=2,
        max_grad_norm=0.2,
        gradient_checkpointing=False,
        bf16=True,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = SumsTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=[format_reward, answer_reward, repetition_reward],
        args=training_args,
        train_dataset=dataset,
        peft_config=LoraConfig(
            r=32,
            lora_alpha=64,
            lora_dropout=0.05,
            target_modules=["q_proj", "v_proj"],
            task_type="CAUSAL_LM",
        ),
        callbacks=[StepCallback()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
