"""A Nemotron forgets what it knows of some authors by negative preference optimization (NPO), as studies on TOFU do it: answers to forget against a frozen copy, answers to keep beside them, a Trainer of one's own in bfloat16, two batches to a step, how much is remembered between."""

import random
import tempfile

import torch
import torch.nn.functional as F
from programs import end_of_step, tell
from torch.utils.data import Dataset
from transformers import (
    NemotronConfig,
    NemotronForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

VOCAB_SIZE, PAD, BOS, EOS, IGNORE = 14000, 0, 2, 3, -100
QUESTION_START, QUESTION_END = [11, 12, 13], [14, 15]


class TextForgetDataset(Dataset):
    """Every row is a question to be forgotten, with one to be kept that is drawn anew each time."""

    def __init__(self, n_forget, n_retain, seed):
        self.rng = random.Random(seed)
        self.forget = [self.question_and_answer() for _ in range(n_forget)]
        self.retain = [self.question_and_answer() for _ in range(n_retain)]

    def question_and_answer(self):
        def text(low, high):
            return [self.rng.randrange(20, VOCAB_SIZE) for _ in range(self.rng.randint(low, high))]

        question = [BOS, *QUESTION_START, *text(8, 24), *QUESTION_END]
        answer = [*text(10, 50), EOS]
        return question + answer, [IGNORE] * len(question) + answer

    def __len__(self):
        return len(self.forget)

    def __getitem__(self, i):
        return {"forget": self.forget[i], "retain": self.rng.choice(self.retain)}


def pad(pairs):
    longest = max(len(ids) for ids, _ in pairs)
    return {
        "input_ids": torch.tensor([ids + [PAD] * (longest - len(ids)) for ids, _ in pairs]),
        "labels": torch.tensor([labels + [IGNORE] * (longest - len(labels)) for _, labels in pairs]),
        "attention_mask": torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids, _ in pairs]),
    }


def forget_collator(rows):
    return {key: pad([row[key] for row in rows]) for key in ("forget", "retain")}


def batch_nll(logits, labels):
    """Of every answer the sum over its words."""
    shifted = labels[:, 1:]
    losses = F.cross_entropy(
        logits[:, :-1].transpose(1, 2).float(), shifted, ignore_index=IGNORE, reduction="none"
    )
    return losses.sum(-1)


class UnlearnTrainer(Trainer):
    def __init__(self, *args, ref_model, beta=0.1, alpha=1.0, gamma=1.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.ref_model, self.beta, self.alpha, self.gamma = ref_model, beta, alpha, gamma

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        forget, retain = inputs["forget"], inputs["retain"]
        tell(inputs=inputs)
        outputs = model(input_ids=forget["input_ids"], attention_mask=forget["attention_mask"])
        nll = batch_nll(outputs.logits, forget["labels"])
        with torch.no_grad():
            reference = self.ref_model(
                input_ids=forget["input_ids"], attention_mask=forget["attention_mask"]
            ).logits
            ref_nll = batch_nll(reference, forget["labels"])
        forget_loss = -2 / self.beta * F.logsigmoid(self.beta * (nll - ref_nll)).mean()
        retain_loss = model(**retain).loss
        loss = self.gamma * forget_loss + self.alpha * retain_loss
        if not return_outputs and self.args.gradient_accumulation_steps > 1:
            loss = loss / self.args.gradient_accumulation_steps
        return (loss, outputs) if return_outputs else loss

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        inputs = self._prepare_inputs(inputs)
        tell(inputs=inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            forget = inputs["forget"]
            logits = model(input_ids=forget["input_ids"], attention_mask=forget["attention_mask"]).logits
            n_words = (forget["labels"][:, 1:] != IGNORE).sum(-1)
            probability = (-batch_nll(logits, forget["labels"]) / n_words).exp()
        return probability.mean(), None, None


class Progress(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        print(f"step {state.global_step}: probability of what is forgotten {metrics['eval_loss']:.2e}")


def load_model():
    config = NemotronConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
    )
    model = NemotronForCausalLM(config)
    model.config.use_cache = False
    return model


def main():
    set_seed(1307)
    model = load_model()
    ref_model = load_model()
    ref_model.load_state_dict(model.state_dict())
    device = "cuda" if torch.cuda.is_available() else "cpu"
    ref_model = ref_model.to(device, torch.bfloat16).eval()
    ref_model.requires_grad_(False)

    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        num_train_epochs=3,
        per_device_train_batch_size=2,
        per_device_eval_batch_size=2,
        gradient_accumulation_steps=2,
        learning_rate=1e-5,
        weight_decay=0.01,
        warmup_steps=1,
        bf16=True,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="no",
        remove_unused_columns=False,
        label_names=["labels"],
        dataloader_pin_memory=False,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = UnlearnTrainer(
        model=model,
        args=args,
        train_dataset=TextForgetDataset(12, 40, seed=1),
        eval_dataset=TextForgetDataset(4, 4, seed=2),
        data_collator=forget_collator,
        ref_model=ref_model,
        callbacks=[Progress()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
