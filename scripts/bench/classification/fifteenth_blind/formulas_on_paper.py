"""Pictures of formulas become LaTeX as in LaTeX-OCR: a small ResNet and x-transformers' encoder see, its decoder writes, batches go through in three slices whose gradients add up, single precision, RAdam whose rate falls in steps, and the edit distance of greedily read formulas is logged."""

import random

import numpy as np
import torch
from einops import rearrange
from PIL import Image, ImageDraw, ImageFilter
from programs import end_of_step
from timm.layers import StdConv2dSame
from timm.models.resnetv2 import ResNetV2
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset
from x_transformers import AutoregressiveWrapper, Decoder, Encoder, TransformerWrapper

SYMBOLS = (
    r"\frac \sqrt \sum \int \alpha \beta \gamma \theta \lambda \mu \pi \sigma \omega \partial \nabla \infty \leq \geq "
    r"\cdot \times \left( \right) { } ^ _ + - = , a b c d e f g h i k l m n p q r s t u v w x y z 0 1 2 3 4 5 6 7 8 9"
).split()
PAD, BOS, EOS = 0, 1, 2
VOCAB = {symbol: i for i, symbol in enumerate(["[PAD]", "[BOS]", "[EOS]", *SYMBOLS])}
MAX_HEIGHT, MAX_WIDTH, PATCH = 64, 256, 16


class Formulas(Dataset):
    """Formulas of random symbols, drawn in a thin font, blurred, and a bit crooked."""

    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.formulas = [rng.choices(SYMBOLS, k=rng.randint(12, 46)) for _ in range(n)]
        self.rng = rng

    def __len__(self):
        return len(self.formulas)

    def draw(self, formula):
        image = Image.new("L", (MAX_WIDTH, MAX_HEIGHT), 255)
        draw, x, y = ImageDraw.Draw(image), 4, 10
        for symbol in formula:
            glyph = symbol.lstrip("\\")[:2]
            if x > MAX_WIDTH - 16:
                x, y = 4, y + 16
            draw.text((x, y + self.rng.randint(-2, 2)), glyph, fill=self.rng.randint(0, 60))
            x += 6 * len(glyph) + 3
        image = image.rotate(self.rng.uniform(-1.5, 1.5), fillcolor=255)
        return image.filter(ImageFilter.GaussianBlur(self.rng.uniform(0, 0.7)))

    def __getitem__(self, index):
        formula = self.formulas[index]
        pixels = np.asarray(self.draw(formula), dtype=np.float32) / 255
        tokens = [BOS, *(VOCAB[symbol] for symbol in formula), EOS]
        return torch.from_numpy((pixels - 0.7931) / 0.1738)[None], torch.tensor(tokens)


def collate(rows):
    images, tokens = zip(*rows, strict=True)
    return torch.stack(images), pad_sequence(tokens, batch_first=True, padding_value=PAD)


class SeeingEncoder(nn.Module):
    def __init__(self, dim, depth, heads):
        super().__init__()
        self.backbone = ResNetV2(
            layers=[2, 2, 2],
            channels=(128, 256, 256),
            stem_chs=64,
            num_classes=0,
            global_pool="",
            in_chans=1,
            preact=False,
            stem_type="same",
            conv_layer=StdConv2dSame,
        )
        self.proj = nn.Conv2d(256, dim, 1)
        self.pos_embed = nn.Parameter(torch.randn(1, MAX_HEIGHT // PATCH * (MAX_WIDTH // PATCH), dim) * 0.02)
        self.dropout = nn.Dropout(0.1)
        self.layers = Encoder(dim=dim, depth=depth, heads=heads, attn_dropout=0.1, ff_dropout=0.1)

    def forward(self, image):
        x = rearrange(self.proj(self.backbone(image)), "b c h w -> b (h w) c")
        return self.layers(self.dropout(x + self.pos_embed))


class FormulaReader(nn.Module):
    def __init__(self, dim=256, depth=3, heads=8, max_seq_len=128):
        super().__init__()
        self.encoder = SeeingEncoder(dim, depth, heads)
        decoder = TransformerWrapper(
            num_tokens=len(VOCAB),
            max_seq_len=max_seq_len,
            attn_layers=Decoder(
                dim=dim,
                depth=depth,
                heads=heads,
                cross_attend=True,
                ff_glu=True,
                attn_on_attn=False,
                use_rmsnorm=True,
                rotary_pos_emb=True,
                attn_dropout=0.1,
                ff_dropout=0.1,
            ),
        )
        self.decoder = AutoregressiveWrapper(decoder, pad_value=PAD, ignore_index=PAD)

    def forward(self, image, tokens):
        context = self.encoder(image)
        return self.decoder(tokens, context=context, mask=tokens.ne(PAD))

    @torch.no_grad()
    def generate(self, image, max_len=16):
        start = torch.full((len(image), 1), BOS, dtype=torch.long, device=image.device)
        return self.decoder.generate(
            start, max_len, eos_token=EOS, context=self.encoder(image), temperature=0.0, cache_kv=False
        )


def edit_distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1] / max(len(b), 1)


def evaluate(model, loader, device):
    model.eval()
    distances = []
    for images, tokens in loader:
        read = model.generate(images.to(device))
        for ours, truth in zip(read.tolist(), tokens.tolist(), strict=True):
            ours = ours[: ours.index(EOS)] if EOS in ours else ours
            distances.append(edit_distance(ours, truth[1 : truth.index(EOS)]))
    model.train()
    return sum(distances) / len(distances)


def main(batch_size=12, micro_batch=4, epochs=4, sample_every=2):
    torch.manual_seed(42)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train = DataLoader(
        Formulas(96, seed=1), batch_size, shuffle=True, collate_fn=collate, drop_last=True, pin_memory=True
    )
    valid = DataLoader(Formulas(4, seed=2), batch_size=4, collate_fn=collate)

    model = FormulaReader().to(device)
    opt = torch.optim.RAdam(model.parameters(), lr=5e-4, betas=(0.9, 0.999))
    scheduler = torch.optim.lr_scheduler.StepLR(opt, step_size=30, gamma=0.9995)
    step = 0
    for epoch in range(epochs):
        for images, tokens in train:
            opt.zero_grad()
            total_loss = 0.0
            for j in range(0, len(images), micro_batch):
                image = images[j : j + micro_batch].to(device, non_blocking=True)
                token = tokens[j : j + micro_batch].to(device, non_blocking=True)
                loss = model(image, token) * micro_batch / batch_size
                loss.backward()
                total_loss += loss.item()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            scheduler.step()
            step += 1
            if step % sample_every == 0:
                print(
                    f"epoch {epoch} step {step} loss {total_loss:.3f} edit distance {evaluate(model, valid, device):.3f}"
                )
            end_of_step(inputs=[image, token], activations=loss)
    torch.save({"model": model.state_dict(), "step": step}, "formulas.pth")


if __name__ == "__main__":
    main()
