"""Pix2Struct learns to read bar charts as linear tables: a plain loop in float32, Adafactor, cosine schedule, two micro-batches."""

import io
import random

import matplotlib
import torch
from programs import end_of_step
from torch.utils.data import DataLoader, Dataset
from transformers import (
    Pix2StructConfig,
    Pix2StructForConditionalGeneration,
    Pix2StructImageProcessor,
    Pix2StructProcessor,
    PreTrainedTokenizerFast,
    get_cosine_schedule_with_warmup,
)
from transformers.optimization import Adafactor

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402
from PIL import Image  # noqa: E402
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers  # noqa: E402

MAX_PATCHES = 256
MAX_TOKENS = 80
ACCUMULATE = 2
COUNTRIES = [
    "Chile",
    "Ghana",
    "Japan",
    "Malta",
    "Nepal",
    "Oman",
    "Peru",
    "Qatar",
    "Spain",
    "Togo",
    "Yemen",
    "Zambia",
]
TOPICS = ["Rainfall", "Exports", "Visitors", "Harvest", "Births", "Road deaths", "Steel output", "Rice yield"]


class Charts(Dataset):
    """Charts as they would be rendered from a statistics yearbook, with the table as the text."""

    def __init__(self, size, seed):
        rng = random.Random(seed)
        self.items = [self.draw(rng) for _ in range(size)]

    @staticmethod
    def draw(rng):
        names = rng.sample(COUNTRIES, rng.randint(4, 8))
        values = [round(rng.uniform(1, 100), 1) for _ in names]
        title = f"{rng.choice(TOPICS)} in {rng.randint(1980, 2024)}"
        figure, axes = plt.subplots(figsize=(3.2, 2.4), dpi=100)
        axes.bar(names, values, color=rng.choice(["tab:blue", "tab:orange", "tab:green"]))
        axes.set_title(title)
        axes.tick_params(axis="x", rotation=60)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", bbox_inches="tight")
        plt.close(figure)
        table = f"TITLE | {title} <0x0A> " + " <0x0A> ".join(f"{n} | {v}" for n, v in zip(names, values))
        return Image.open(buffer).convert("RGB"), table

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def make_processor(texts):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<pad>", "</s>", "<unk>"]
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=4000, special_tokens=special, show_progress=False)
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=512,
    )
    return Pix2StructProcessor(image_processor=Pix2StructImageProcessor(is_vqa=False), tokenizer=fast)


def main():
    torch.manual_seed(5)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    train_set, dev_set = Charts(24, 1), Charts(4, 2)
    processor = make_processor(text for _, text in train_set)

    def collate(batch):
        images, texts = zip(*batch)
        encoding = processor(images=list(images), return_tensors="pt", max_patches=MAX_PATCHES)
        labels = processor.tokenizer(
            list(texts), padding="max_length", truncation=True, max_length=MAX_TOKENS, return_tensors="pt"
        ).input_ids
        return {
            "flattened_patches": encoding["flattened_patches"].float(),
            "attention_mask": encoding["attention_mask"].float(),
            "labels": labels.masked_fill(labels == processor.tokenizer.pad_token_id, -100),
        }

    train_loader = DataLoader(train_set, batch_size=3, shuffle=True, collate_fn=collate)
    dev_loader = DataLoader(dev_set, batch_size=2, collate_fn=collate)

    config = Pix2StructConfig(
        text_config=dict(vocab_size=6000, hidden_size=320, d_kv=64, d_ff=896, num_layers=3, num_heads=5),
        vision_config=dict(
            hidden_size=320, d_kv=64, d_ff=896, num_hidden_layers=3, num_attention_heads=5, seq_len=1024
        ),
    )
    config.vision_config.initializer_range = 0.02
    model = Pix2StructForConditionalGeneration(config).to(device)

    optimizer = Adafactor(
        model.parameters(), lr=1e-4, scale_parameter=False, relative_step=False, weight_decay=1e-5
    )
    scheduler = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=10, num_training_steps=400)

    step = 0
    for epoch in range(2):
        model.train()
        running = 0.0
        for index, batch in enumerate(train_loader):
            batch = {name: tensor.to(device) for name, tensor in batch.items()}
            outputs = model(**batch)
            loss = outputs.loss / ACCUMULATE
            loss.backward()
            running += loss.item()
            if (index + 1) % ACCUMULATE:
                continue

            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            step += 1
            print(f"epoch {epoch} step {step} loss {running:.3f} lr {scheduler.get_last_lr()[0]:.2e}")
            running = 0.0
            end_of_step(
                inputs=batch,
                activations=[outputs.loss, outputs.logits, outputs.encoder_last_hidden_state, loss],
            )

        model.eval()
        exact = 0
        for batch in dev_loader:
            labels = batch.pop("labels")
            batch = {name: tensor.to(device) for name, tensor in batch.items()}
            with torch.no_grad():
                predicted = model.generate(**batch, max_new_tokens=24)
            texts = processor.batch_decode(predicted, skip_special_tokens=True)
            labels = labels.masked_fill(labels == -100, processor.tokenizer.pad_token_id)
            exact += sum(
                a == b for a, b in zip(texts, processor.batch_decode(labels, skip_special_tokens=True))
            )
        print(f"epoch {epoch}: {exact}/{len(dev_set)} exact tables")


if __name__ == "__main__":
    main()
