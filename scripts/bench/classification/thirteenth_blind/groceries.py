"""A Florence-2 learns to find groceries on shelves, places written as words, as in the blog of Hugging Face: its eyes stay frozen, pictures are normalized on the device, a plain loop in full precision with a linear rate, boxes drawn by beams between."""

import torch
from programs import end_of_step, tell
from torch.optim import AdamW
from torch.utils.data import DataLoader, Dataset
from transformers import (
    BartConfig,
    Florence2Config,
    Florence2ForConditionalGeneration,
    Florence2VisionConfig,
    get_scheduler,
)

VOCAB_SIZE = 12000
BOS, PAD, EOS = 0, 1, 2
IMAGE_TOKEN, FIRST_LOC, N_LOCS = VOCAB_SIZE - 1, VOCAB_SIZE - 1001, 1000
PROMPT = [BOS, 574, 22486, 8720, EOS]  # <OD>
PROMPT = [word % FIRST_LOC for word in PROMPT]
RESOLUTION, N_IMAGE_TOKENS = 160, 26
BATCH_SIZE, EPOCHS = 4, 3

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
IMAGE_MEAN = torch.tensor([0.485, 0.456, 0.406], device=device)[:, None, None]
IMAGE_STD = torch.tensor([0.229, 0.224, 0.225], device=device)[:, None, None]


class ShelfDataset(Dataset):
    """Photos of shelves; what is on them is text: a name and four words for the corners."""

    def __init__(self, n, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.photos = torch.randint(256, (n, 3, RESOLUTION, RESOLUTION), generator=self.g, dtype=torch.uint8)
        self.answers = [self.describe() for _ in range(n)]

    def describe(self):
        words = []
        for _ in range(int(torch.randint(1, 6, (), generator=self.g))):
            name = torch.randint(10, 400, (2,), generator=self.g).tolist()
            corners = torch.rand(2, 2, generator=self.g).sort(dim=0).values.flatten()
            words += name + (FIRST_LOC + (corners * (N_LOCS - 1)).long()).tolist()
        return words

    def __len__(self):
        return len(self.answers)

    def __getitem__(self, i):
        return self.photos[i], self.answers[i]


def collate_fn(batch):
    photos, answers = zip(*batch, strict=True)
    input_ids = torch.tensor([[IMAGE_TOKEN] * N_IMAGE_TOKENS + PROMPT] * len(photos))
    longest = max(map(len, answers)) + 2
    labels = torch.full((len(answers), longest), -100)
    for row, words in zip(labels, answers, strict=True):
        row[: len(words) + 2] = torch.tensor([BOS, *words, EOS])
    return torch.stack(photos), input_ids, labels


def preprocess(photos):
    return (photos.to(device).float() / 255 - IMAGE_MEAN) / IMAGE_STD


def build_model():
    vision = Florence2VisionConfig(
        depths=(1, 1, 3, 1),
        embed_dim=(48, 96, 192, 384),
        num_heads=(2, 4, 8, 16),
        num_groups=(2, 4, 8, 16),
        window_size=5,
        projection_dim=320,
        max_position_embeddings=16,
        max_temporal_embeddings=10,
    )
    text = BartConfig(
        vocab_size=VOCAB_SIZE,
        d_model=320,
        encoder_layers=3,
        decoder_layers=3,
        encoder_attention_heads=5,
        decoder_attention_heads=5,
        encoder_ffn_dim=1280,
        decoder_ffn_dim=1280,
        max_position_embeddings=128,
        bos_token_id=BOS,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=EOS,
        forced_eos_token_id=None,
    )
    config = Florence2Config(
        vision_config=vision.to_dict(),
        text_config=text.to_dict(),
        image_token_id=IMAGE_TOKEN,
        bos_token_id=BOS,
        pad_token_id=PAD,
        eos_token_id=EOS,
    )
    return Florence2ForConditionalGeneration(config)


def tell_of_cache(module, args, output):
    cache = output.past_key_values
    if cache is not None:
        layers = [*cache.self_attention_cache.layers, *cache.cross_attention_cache.layers]
        tell(caches=[(layer.keys, layer.values) for layer in layers if layer.is_initialized])


def run_example(model, photo):
    """Answer for one photo as somebody would look at it."""
    pixel_values = preprocess(photo[None])
    input_ids = torch.tensor([[IMAGE_TOKEN] * N_IMAGE_TOKENS + PROMPT], device=device)
    tell(inputs=[pixel_values, input_ids])
    hook = model.register_forward_hook(tell_of_cache)
    generated_ids = model.generate(
        input_ids=input_ids,
        pixel_values=pixel_values,
        max_new_tokens=10,
        num_beams=3,
        do_sample=False,
        decoder_start_token_id=EOS,
    )
    hook.remove()
    places = [word - FIRST_LOC for word in generated_ids[0].tolist() if word >= FIRST_LOC]
    return [places[i : i + 4] for i in range(0, len(places) - 3, 4)]


def train_model(train_loader, val_loader, model, epochs=EPOCHS, lr=1e-6):
    optimizer = AdamW([p for p in model.parameters() if p.requires_grad], lr=lr)
    num_training_steps = epochs * len(train_loader)
    lr_scheduler = get_scheduler(
        name="linear", optimizer=optimizer, num_warmup_steps=0, num_training_steps=num_training_steps
    )
    for epoch in range(epochs):
        model.train()
        train_loss = 0
        for photos, input_ids, labels in train_loader:
            pixel_values = preprocess(photos)
            input_ids, labels = input_ids.to(device), labels.to(device)
            outputs = model(input_ids=input_ids, pixel_values=pixel_values, labels=labels)
            loss = outputs.loss
            loss.backward()
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
            train_loss += loss.item()
            end_of_step(
                inputs=[pixel_values, input_ids, labels, IMAGE_MEAN, IMAGE_STD],
                activations=[t for t in outputs.values() if isinstance(t, torch.Tensor)],
            )
        print(f"Average training loss: {train_loss / len(train_loader):.4f}")

        model.eval()
        val_loss = 0
        with torch.no_grad():
            for photos, input_ids, labels in val_loader:
                pixel_values = preprocess(photos)
                input_ids, labels = input_ids.to(device), labels.to(device)
                tell(inputs=[pixel_values, input_ids, labels])
                outputs = model(input_ids=input_ids, pixel_values=pixel_values, labels=labels)
                val_loss += outputs.loss.item()
            print(f"Average validation loss: {val_loss / len(val_loader):.4f}")
            print(f"epoch {epoch}: {run_example(model, val_loader.dataset[0][0])}")


torch.manual_seed(1305)
model = build_model().to(device)
for param in model.model.vision_tower.parameters():
    param.requires_grad = False
train_loader = DataLoader(ShelfDataset(8, 1), batch_size=BATCH_SIZE, shuffle=True, collate_fn=collate_fn)
val_loader = DataLoader(ShelfDataset(3, 2), batch_size=BATCH_SIZE, collate_fn=collate_fn)
train_model(train_loader, val_loader, model)
