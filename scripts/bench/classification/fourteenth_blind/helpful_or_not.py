"""A Mistral learns which of two answers is more helpful with TRL's DPOTrainer, as in the recipes of Zephyr: it is loaded in bfloat16 from a folder, the trainer loads a second one as its reference, the loss of the better answer is added, two batches to a step, accuracy of rewards between."""

import random

from datasets import Dataset
from programs import end_of_step, tell
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import MistralConfig, MistralForCausalLM, PreTrainedTokenizerFast, TrainerCallback, set_seed
from trl import DPOConfig, DPOTrainer
from trl.kernels import chunked_logprob

# no Triton on this machine: TRL projects to the vocabulary with what every torch has
chunked_logprob._TRITON_AVAILABLE = chunked_logprob._MM_OUT_DTYPE = False

MODEL_PATH = "mistral-sft"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content'] + eos_token + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
THINGS = "printer router laptop bicycle boiler camera fridge phone window garden car roof guitar".split()
PROBLEMS = "is broken|makes a noise|does not start|is too slow|leaks|needs a new part|smells strange".split(
    "|"
)
ADVICE = "unplug|clean|measure|replace|check|tighten|update|restart|inspect|call about|photograph".split("|")
PARTS = "cable|filter|battery|screw|sensor|hinge|cover|valve|lens|chain|manual|switch".split("|")


def prompt(rng):
    return (
        f"My {rng.choice(THINGS)} {rng.choice(PROBLEMS)} since the {rng.choice(PARTS)} broke, what can I do?"
    )


def helpful(rng):
    steps = [
        f"{i + 1}. {rng.choice(ADVICE).capitalize()} the {rng.choice(PARTS)} of the {rng.choice(THINGS)} "
        f"and {rng.choice(ADVICE)} its {rng.choice(PARTS)}."
        for i in range(rng.randint(2, 4))
    ]
    return "Sorry to hear that! Try this:\n" + "\n".join(steps)


def unhelpful(rng):
    return f"No idea. Maybe {rng.choice(ADVICE)} the {rng.choice(PARTS)}" + rng.choice(
        [".", " or buy a new one."]
    )


def preferences(n, seed):
    rng = random.Random(seed)
    return Dataset.from_list(
        [
            {
                "prompt": [{"role": "user", "content": prompt(rng)}],
                "chosen": [{"role": "assistant", "content": helpful(rng)}],
                "rejected": [{"role": "assistant", "content": unhelpful(rng)}],
            }
            for _ in range(n)
        ]
    )


def prepare_sft_model(dataset):
    """What an earlier run of supervised fine-tuning left behind."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(
        [row[key][0]["content"] for row in dataset for key in ("prompt", "chosen", "rejected")],
        trainers.BpeTrainer(
            vocab_size=6000, special_tokens=["<unk>", "<s>", "</s>", "<pad>"], show_progress=False
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        chat_template=CHAT_TEMPLATE,
    )
    config = MistralConfig(
        vocab_size=6000,
        hidden_size=448,
        intermediate_size=1280,
        num_hidden_layers=5,
        num_attention_heads=7,
        num_key_value_heads=1,
        max_position_embeddings=1024,
        sliding_window=None,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    MistralForCausalLM(config).save_pretrained(MODEL_PATH)
    tokenizer.save_pretrained(MODEL_PATH)


class PreferenceTrainer(DPOTrainer):
    def compute_loss(self, model, inputs, *args, **kwargs):
        tell(inputs=inputs)
        return super().compute_loss(model, inputs, *args, **kwargs)


class StepCallback(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


def main():
    set_seed(7)
    train_dataset, eval_dataset = preferences(48, seed=1), preferences(4, seed=2)
    prepare_sft_model(train_dataset)
    training_args = DPOConfig(
        output_dir="mistral-dpo",
        model_init_kwargs={"dtype": "bfloat16"},
        beta=0.1,
        loss_type=["sigmoid", "sft"],
        loss_weights=[1.0, 0.2],
        max_steps=6,
        per_device_train_batch_size=2,
        per_device_eval_batch_size=2,
        gradient_accumulation_steps=2,
        gradient_checkpointing=False,
        learning_rate=5e-7,
        lr_scheduler_type="cosine",
        warmup_steps=0.1,
        bf16=True,
        max_length=256,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = PreferenceTrainer(
        model=MODEL_PATH,
        args=training_args,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        callbacks=[StepCallback()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
