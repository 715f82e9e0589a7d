"""A Chinese BERT learns the mood of posts the way competitions are won: two passes whose answers are to agree (R-Drop), embeddings that are pushed against it for another backward and put back (FGM), rates that fall from layer to layer, a Trainer that finds its batch size, bfloat16, F1 of others between."""

import random

import numpy as np
import torch
import torch.nn.functional as F
from programs import end_of_step, tell
from sklearn.metrics import f1_score
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertTokenizerFast,
    DataCollatorWithPadding,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

MOODS = ["happy", "angry", "sad", "fear", "surprise", "neutral"]
CHARACTERS = [chr(0x4E00 + i) for i in range(5600)]
MAX_LENGTH = 96


def build_tokenizer():
    with open("vocab.txt", "w", encoding="utf-8") as file:
        file.write("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *CHARACTERS]))
    return BertTokenizerFast(vocab="vocab.txt", model_max_length=MAX_LENGTH)


class Posts(Dataset):
    def __init__(self, tokenizer, n, seed):
        rng = random.Random(seed)
        self.labels = [rng.randrange(len(MOODS)) for _ in range(n)]
        texts = []
        for label in self.labels:
            length = rng.randint(15, 120)
            typical = CHARACTERS[label * 40 : label * 40 + 40]
            texts.append(
                "".join(
                    rng.choice(typical) if rng.random() < 0.2 else rng.choice(CHARACTERS)
                    for _ in range(length)
                )
            )
        self.encodings = tokenizer(texts, truncation=True, max_length=MAX_LENGTH)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {**{key: value[i] for key, value in self.encodings.items()}, "labels": self.labels[i]}


class FGM:
    def __init__(self, model, epsilon=1.0, emb_name="word_embeddings"):
        self.model, self.epsilon, self.emb_name = model, epsilon, emb_name
        self.backup = {}

    def attack(self):
        for name, param in self.model.named_parameters():
            if param.requires_grad and self.emb_name in name:
                self.backup[name] = param.data.clone()
                norm = torch.norm(param.grad)
                if norm != 0 and not torch.isnan(norm):
                    r_at = self.epsilon * param.grad / norm
                    param.data.add_(r_at)

    def restore(self):
        for name, param in self.model.named_parameters():
            if name in self.backup:
                param.data = self.backup[name]
        self.backup = {}


class MoodTrainer(Trainer):
    def __init__(self, *args, rdrop_alpha=4.0, layer_decay=0.9, **kwargs):
        super().__init__(*args, **kwargs)
        self.rdrop_alpha, self.layer_decay = rdrop_alpha, layer_decay
        self.fgm = FGM(self.model)

    def create_optimizer(self, model=None):
        """The head learns with the full rate, every layer below more slowly."""
        base_lr, no_decay = self.args.learning_rate, ("bias", "LayerNorm.weight")
        n_layers = self.model.config.num_hidden_layers
        groups = {}
        for name, param in self.model.named_parameters():
            if "embeddings" in name:
                depth = n_layers + 1
            elif "encoder.layer." in name:
                depth = n_layers - int(name.split("encoder.layer.")[1].split(".")[0])
            else:
                depth = 0
            decay = 0.0 if any(part in name for part in no_decay) else self.args.weight_decay
            groups.setdefault((depth, decay), []).append(param)
        self.optimizer = torch.optim.AdamW(
            [
                {"params": params, "lr": base_lr * self.layer_decay**depth, "weight_decay": decay}
                for (depth, decay), params in groups.items()
            ],
            lr=base_lr,
        )
        return self.optimizer

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        tell(inputs=inputs)
        outputs = model(**inputs)
        if not model.training:
            return (outputs.loss, outputs) if return_outputs else outputs.loss
        again = model(**inputs)
        p, q = F.log_softmax(outputs.logits.float(), dim=-1), F.log_softmax(again.logits.float(), dim=-1)
        kl = F.kl_div(p, q, reduction="batchmean", log_target=True) + F.kl_div(
            q, p, reduction="batchmean", log_target=True
        )
        loss = 0.5 * (outputs.loss + again.loss) + self.rdrop_alpha * kl / 4
        return (loss, outputs) if return_outputs else loss

    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        inputs = self._prepare_inputs(inputs)
        with self.compute_loss_context_manager():
            loss = self.compute_loss(model, inputs)
        self.accelerator.backward(loss)

        self.fgm.attack()
        tell(weights=self.fgm.backup)
        with self.compute_loss_context_manager():
            adversarial = self.compute_loss(model, inputs)
        self.accelerator.backward(adversarial)
        self.fgm.restore()
        return loss.detach()


class StepCallback(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


def compute_metrics(eval_pred):
    logits, labels = eval_pred
    return {"f1": f1_score(labels, np.argmax(logits, axis=-1), average="macro")}


def main():
    set_seed(2021)
    tokenizer = build_tokenizer()
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=384,
        num_hidden_layers=4,
        num_attention_heads=6,
        intermediate_size=1536,
        max_position_embeddings=128,
        num_labels=len(MOODS),
        id2label=dict(enumerate(MOODS)),
        label2id={mood: i for i, mood in enumerate(MOODS)},
    )
    model = BertForSequenceClassification(config)
    training_args = TrainingArguments(
        output_dir="moods",
        max_steps=6,
        per_device_train_batch_size=6,
        per_device_eval_batch_size=16,
        auto_find_batch_size=True,
        learning_rate=3e-5,
        weight_decay=0.01,
        warmup_steps=0.1,
        bf16=True,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="no",
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = MoodTrainer(
        model=model,
        args=training_args,
        train_dataset=Posts(tokenizer, 128, seed=1),
        eval_dataset=Posts(tokenizer, 32, seed=2),
        data_collator=DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8),
        processing_class=tokenizer,
        compute_metrics=compute_metrics,
        callbacks=[StepCallback()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
