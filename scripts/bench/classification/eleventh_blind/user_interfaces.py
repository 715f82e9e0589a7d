"""A Pix2Struct learns to say what buttons do: patches of screens in their own shape, a notebook's loop with Adafactor, bfloat16 by autocast, two batches to a step, a caption written between."""

import math

import torch
from programs import end_of_step, tell
from torch.utils.data import DataLoader, Dataset
from transformers import (
    Adafactor,
    Pix2StructConfig,
    Pix2StructForConditionalGeneration,
    get_cosine_schedule_with_warmup,
)

MAX_PATCHES, PATCH = 256, 16
VOCABULARY, PAD, EOS = 12000, 0, 1
ACCUMULATE = 2
device = "cuda" if torch.cuda.is_available() else "cpu"


class Widgets(Dataset):
    """Screens with a box drawn around what is asked about, each of its own shape."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.screens, self.captions = [], []
        for _ in range(n):
            height, width = torch.randint(180, 420, (2,), generator=g).tolist()
            screen = torch.rand(3, height, width, generator=g)
            top, left = height // 3, width // 4
            screen[:, top : top + 40, left : left + 60] *= torch.tensor([1.0, 0.2, 0.2])[:, None, None]
            self.screens.append(screen)
            length = int(torch.randint(3, 12, (), generator=g))
            self.captions.append(torch.randint(2, VOCABULARY, (length,), generator=g).tolist() + [EOS])

    def __len__(self):
        return len(self.screens)

    def __getitem__(self, i):
        return {"flattened_patches": flatten(self.screens[i]), "caption": self.captions[i]}


def flatten(image):
    """As many patches as there may be, in the shape of the screen, each after its row and column."""
    _, height, width = image.shape
    scale = math.sqrt(MAX_PATCHES * (PATCH / height) * (PATCH / width))
    rows = max(min(math.floor(scale * height / PATCH), MAX_PATCHES), 1)
    cols = max(min(math.floor(scale * width / PATCH), MAX_PATCHES), 1)
    image = torch.nn.functional.interpolate(
        image[None], (rows * PATCH, cols * PATCH), mode="bilinear", antialias=True
    )[0]
    patches = image.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH).permute(1, 2, 3, 4, 0)
    patches = patches.reshape(rows * cols, -1)
    patches = (patches - patches.mean()) / patches.std()
    row = torch.arange(1, rows + 1).repeat_interleave(cols)
    col = torch.arange(1, cols + 1).repeat(rows)
    patches = torch.cat([torch.stack([row, col], dim=1).float(), patches], dim=1)
    return torch.nn.functional.pad(patches, (0, 0, 0, MAX_PATCHES - len(patches)))


def collator(batch):
    patches = torch.stack([item["flattened_patches"] for item in batch])
    captions = [torch.tensor(item["caption"]) for item in batch]
    return {
        "flattened_patches": patches,
        "attention_mask": (patches.sum(-1) != 0).float(),
        "labels": torch.nn.utils.rnn.pad_sequence(captions, batch_first=True, padding_value=PAD),
    }


def load_model():
    vision = {
        "hidden_size": 320,
        "patch_embed_hidden_size": 3 * PATCH * PATCH,
        "d_ff": 896,
        "d_kv": 64,
        "num_hidden_layers": 5,
        "num_attention_heads": 5,
        "seq_len": MAX_PATCHES,
        "initializer_range": 0.02,
    }
    text = {
        "vocab_size": VOCABULARY,
        "hidden_size": 320,
        "d_ff": 896,
        "d_kv": 64,
        "num_layers": 4,
        "num_heads": 5,
        "encoder_hidden_size": 320,
        "decoder_start_token_id": PAD,
        "pad_token_id": PAD,
        "eos_token_id": EOS,
    }
    config = Pix2StructConfig(text_config=text, vision_config=vision)
    config.pad_token_id = config.decoder_start_token_id = PAD
    config.eos_token_id = EOS
    return Pix2StructForConditionalGeneration(config)


@torch.no_grad()
def caption(model, item, max_length=8):
    """Greedily, a word after the other; the decoder reads all of them again."""
    model.eval()
    patches = item["flattened_patches"][None].to(device)
    mask = (patches.sum(-1) != 0).float()
    encoded = model.encoder(flattened_patches=patches, attention_mask=mask)
    words = torch.full((1, 1), PAD, device=device)
    while words.shape[1] <= max_length:
        logits = model(
            encoder_outputs=encoded, attention_mask=mask, decoder_input_ids=words, use_cache=False
        ).logits
        words = torch.cat([words, logits[:, -1:].argmax(-1)], dim=1)
        if words[0, -1] == EOS:
            break
    model.train()
    return words[0, 1:].tolist()


torch.manual_seed(1104)
train_dataset, test_dataset = Widgets(24, seed=1), Widgets(2, seed=2)
train_dataloader = DataLoader(train_dataset, shuffle=True, batch_size=2, collate_fn=collator)
model = load_model().to(device)
print(f"{model.num_parameters() / 1e6:.1f}M parameters")
optimizer = Adafactor(
    model.parameters(), scale_parameter=False, relative_step=False, lr=1e-3, weight_decay=1e-5
)
scheduler = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=2, num_training_steps=20)

model.train()
step = 0
for epoch in range(2):
    print("Epoch:", epoch)
    for idx, batch in enumerate(train_dataloader, 1):
        labels = batch.pop("labels").to(device)
        flattened_patches = batch.pop("flattened_patches").to(device)
        attention_mask = batch.pop("attention_mask").to(device)

        with torch.autocast(device, dtype=torch.bfloat16):
            outputs = model(flattened_patches=flattened_patches, attention_mask=attention_mask, labels=labels)
            loss = outputs.loss / ACCUMULATE
        loss.backward()
        held = {
            "inputs": [labels, flattened_patches, attention_mask],
            "activations": [loss, outputs.loss, outputs.logits, outputs.encoder_last_hidden_state],
        }
        if idx % ACCUMULATE:
            tell(**held)
            continue

        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        step += 1
        print("Loss:", outputs.loss.item())
        end_of_step(**held)
        if step % 2 == 0:
            print("Widget:", caption(model, test_dataset[0]))
