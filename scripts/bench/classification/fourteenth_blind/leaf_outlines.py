"""A YOLO11 learns to outline leaves by Ultralytics: its own trainer with mosaics, a warm-up of rate and momentum, groups for weights, norms and biases, an average of the weights that is validated and saved after every epoch."""

import os
from pathlib import Path
from unittest.mock import patch

import cv2
import numpy as np
import yaml
from programs import end_of_step
from ultralytics import YOLO
from ultralytics.models.yolo.segment import SegmentationTrainer

ROOT = Path("leaves").resolve()
NAMES = ["oak", "maple", "birch"]


def draw(rng, size=192):
    """A picture of some leaves, and a line of the label file for each."""
    image = np.full((size, size, 3), rng.integers(90, 200, 3), np.uint8)
    image = np.clip(image + rng.normal(0, 12, image.shape), 0, 255).astype(np.uint8)
    lines = []
    for _ in range(rng.integers(2, 6)):
        kind = int(rng.integers(len(NAMES)))
        centre, radius = rng.uniform(0.2, 0.8, 2) * size, rng.uniform(0.08, 0.2) * size
        angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)
        lobes = 1 + 0.3 * np.cos(angles * (3 + kind))
        outline = centre + radius * lobes[:, None] * np.stack([np.cos(angles), np.sin(angles)], 1)
        outline = outline.clip(0, size - 1)
        cv2.fillPoly(image, [outline.astype(np.int32)], (20, int(rng.integers(90, 220)), 60 * kind))
        lines.append(f"{kind} " + " ".join(f"{v:.5f}" for v in (outline / size).ravel()))
    return image, lines


def write_dataset():
    rng = np.random.default_rng(3)
    for split, n in (("train", 12), ("val", 4)):
        (ROOT / "images" / split).mkdir(parents=True)
        (ROOT / "labels" / split).mkdir(parents=True)
        for i in range(n):
            image, lines = draw(rng)
            cv2.imwrite(str(ROOT / "images" / split / f"{i:03d}.jpg"), image)
            (ROOT / "labels" / split / f"{i:03d}.txt").write_text("\n".join(lines))
    data = {"path": str(ROOT), "train": "images/train", "val": "images/val", "names": dict(enumerate(NAMES))}
    Path("leaves.yaml").write_text(yaml.safe_dump(data))


class LeafTrainer(SegmentationTrainer):
    """Remembers the batch for the callback."""

    def preprocess_batch(self, batch):
        self.batch = super().preprocess_batch(batch)
        return self.batch


def on_train_batch_end(trainer):
    end_of_step(inputs=trainer.batch, activations=[trainer.loss, trainer.loss_items, trainer.tloss])


def main():
    write_dataset()
    model = YOLO("yolo11n-seg.yaml")
    model.add_callback("on_train_batch_end", on_train_batch_end)
    with patch.dict(os.environ):  # the trainer clears variables at its end
        model.train(
            trainer=LeafTrainer,
            data="leaves.yaml",
            epochs=3,
            imgsz=160,
            batch=6,
            device=0,
            workers=0,
            optimizer="SGD",
            lr0=0.01,
            cos_lr=True,
            close_mosaic=1,
            amp=False,
            plots=False,
            pretrained=False,
            verbose=False,
            project="runs",
            name="leaves",
        )


if __name__ == "__main__":
    main()
