"""A service that grades whole slides: tissue tiles through a bfloat16 ViT, gated attention over the slide, and nuclei outlined in overlapping tiles."""

import math
from dataclasses import dataclass

import numpy as np
import segmentation_models_pytorch as smp
import timm
import torch
import torch.nn as nn
import torch.nn.functional as F
from programs import end_of_step, tell
from torch.utils.data import DataLoader, Dataset

DEVICE = torch.device("cuda")
TILE, BATCH = 224, 16
REGION, WINDOW, STRIDE, WINDOWS_AT_ONCE = 512, 192, 128, 6


@dataclass
class Slide:
    name: str
    levels: tuple[int, int]
    seed: int

    def read_region(self, y: int, x: int, size: int) -> np.ndarray:
        rng = np.random.default_rng(self.seed * 1_000_003 + y * 1009 + x)
        stain = rng.integers(120, 235, 3)
        return (stain + rng.integers(-40, 20, (size, size, 3))).clip(0, 255).astype(np.uint8)

    def tissue(self) -> list[tuple[int, int]]:
        rows, columns = self.levels[0] // TILE, self.levels[1] // TILE
        keep = np.random.default_rng(self.seed).random((rows, columns)) < 0.6
        return [(int(r) * TILE, int(c) * TILE) for r, c in np.argwhere(keep)]


class Tiles(Dataset):
    def __init__(self, slide: Slide) -> None:
        self.slide, self.places = slide, slide.tissue()

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index):
        y, x = self.places[index]
        return torch.from_numpy(self.slide.read_region(y, x, TILE)).permute(2, 0, 1), torch.tensor([y, x])


class Normalize(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.707, 0.579, 0.704]).view(1, 3, 1, 1) * 255)
        self.register_buffer("std", torch.tensor([0.212, 0.230, 0.178]).view(1, 3, 1, 1) * 255)

    def forward(self, tiles):
        return (tiles.to(self.mean.dtype) - self.mean) / self.std


class GatedAttention(nn.Module):
    """Attention-based multiple-instance learning with one branch for each class."""

    def __init__(self, dim: int, hidden: int, n_classes: int) -> None:
        super().__init__()
        self.project = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Dropout(0.25))
        self.tanh = nn.Linear(hidden, 256)
        self.gate = nn.Linear(hidden, 256)
        self.score = nn.Linear(256, n_classes)
        self.classifiers = nn.ModuleList(nn.Linear(hidden, 1) for _ in range(n_classes))

    def forward(self, bag):
        h = self.project(bag)
        attention = self.score(torch.tanh(self.tanh(h)) * torch.sigmoid(self.gate(h))).T.softmax(dim=1)
        pooled = attention @ h
        logits = torch.cat([layer(pooled[i]) for i, layer in enumerate(self.classifiers)])
        return logits, attention


class Nuclei(nn.Module):
    """Segments a large region in overlapping windows whose borders count less."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.normalize = Normalize()
        self.net = smp.Unet(
            "resnet18", encoder_weights=None, classes=n_classes, decoder_channels=(128, 64, 32, 16, 16)
        )
        line = torch.exp(-0.5 * ((torch.arange(WINDOW) - (WINDOW - 1) / 2) / (WINDOW / 4)) ** 2)
        self.register_buffer("window", torch.outer(line, line))
        self.n_classes = n_classes

    def forward(self, region):
        _, _, height, width = region.shape
        canvas = region.new_zeros((self.n_classes, height, width), dtype=torch.float32)
        weight = region.new_zeros((1, height, width), dtype=torch.float32)
        ys = sorted({*range(0, height - WINDOW, STRIDE), height - WINDOW})
        xs = sorted({*range(0, width - WINDOW, STRIDE), width - WINDOW})
        places = [(y, x) for y in ys for x in xs]
        for start in range(0, len(places), WINDOWS_AT_ONCE):
            chosen = places[start : start + WINDOWS_AT_ONCE]
            crops = torch.cat([region[..., y : y + WINDOW, x : x + WINDOW] for y, x in chosen])
            with torch.autocast("cuda", dtype=torch.bfloat16):
                logits = self.net(self.normalize(crops))
            for probability, (y, x) in zip(logits.float().softmax(1), chosen, strict=True):
                canvas[:, y : y + WINDOW, x : x + WINDOW] += probability * self.window
                weight[:, y : y + WINDOW, x : x + WINDOW] += self.window
        return canvas / weight


class Service:
    def __init__(self) -> None:
        self.encoder = timm.create_model(
            "vit_small_patch16_224", pretrained=False, num_classes=0, depth=8, img_size=TILE, init_values=1e-5
        )
        self.encoder = nn.Sequential(Normalize(), self.encoder).to(DEVICE).bfloat16().eval()
        self.head = GatedAttention(384, 512, n_classes=5).to(DEVICE).eval()
        self.nuclei = Nuclei(n_classes=4).to(DEVICE).eval()

    @torch.inference_mode()
    def grade(self, slide: Slide) -> dict:
        loader = DataLoader(Tiles(slide), batch_size=BATCH)
        features, places = [], []
        for tiles, place in loader:
            tiles = tiles.to(DEVICE, non_blocking=True)
            tell(inputs=[tiles])
            features.append(self.encoder(tiles).float())
            places.append(place)
        bag = torch.cat(features)
        logits, attention = self.head(bag)
        grade = int(logits.argmax())
        heat = self.heatmap(slide, torch.cat(places), attention[grade])

        y, x = torch.cat(places)[attention[grade].argmax().item()].tolist()
        region = torch.from_numpy(slide.read_region(y, x, REGION)).permute(2, 0, 1)[None].to(DEVICE)
        classes = self.nuclei(region).argmax(0)
        counts = torch.bincount(classes.flatten(), minlength=4)
        answer = {
            "slide": slide.name,
            "grade": grade,
            "probabilities": logits.softmax(0).tolist(),
            "heat": heat.cpu().numpy(),
            "nuclei": (counts / classes.numel()).tolist(),
        }
        end_of_step(inputs=[tiles, region])
        return answer

    def heatmap(self, slide: Slide, places, attention):
        rows, columns = slide.levels[0] // TILE, slide.levels[1] // TILE
        heat = torch.zeros(rows, columns, device=DEVICE)
        index = (places // TILE).to(DEVICE)
        heat[index[:, 0], index[:, 1]] = attention / attention.max()
        return F.interpolate(heat[None, None], scale_factor=16, mode="bicubic", align_corners=False)[
            0, 0
        ].clamp(0, 1)


def main() -> None:
    torch.manual_seed(0)
    service = Service()
    for number, side in enumerate((1150, 1600, 1400, 1800)):
        slide = Slide(f"case_{number:03d}", (side, math.ceil(side * 1.2)), seed=number)
        answer = service.grade(slide)
        print(answer["slide"], answer["grade"], answer["heat"].mean().round(3))


if __name__ == "__main__":
    main()
