"""Ultralytics' YOLO with turned boxes, trained on small satellite pictures of ships and planes with its own trainer."""

import os
from pathlib import Path

import cv2
import numpy as np
import yaml
from programs import end_of_step, tell
from ultralytics import YOLO
from ultralytics.models.yolo.obb import OBBTrainer

NAMES = ["cargo ship", "sailing boat", "plane", "container"]
SIZE = 160


def draw_split(folder: Path, split: str, n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    (folder / "images" / split).mkdir(parents=True)
    (folder / "labels" / split).mkdir(parents=True)
    for i in range(n):
        image = rng.integers(20, 70, (SIZE, SIZE, 3), dtype=np.uint8)
        image[..., 0] += 50
        lines = []
        for _ in range(rng.integers(2, 9)):
            kind = int(rng.integers(len(NAMES)))
            size = (float(rng.uniform(18, 46)), float(rng.uniform(8, 16)))
            centre = tuple(rng.uniform(30, SIZE - 30, 2).tolist())
            corners = cv2.boxPoints((centre, size, float(rng.uniform(0, 180))))
            cv2.fillPoly(image, [corners.astype(np.int32)], tuple(int(c) for c in rng.integers(110, 255, 3)))
            lines.append(" ".join([str(kind), *(f"{v:.5f}" for v in (corners / SIZE).clip(0, 1).flatten())]))
        cv2.imwrite(str(folder / "images" / split / f"{i:04d}.jpg"), image)
        (folder / "labels" / split / f"{i:04d}.txt").write_text("\n".join(lines))


class ShipTrainer(OBBTrainer):
    def preprocess_batch(self, batch):
        self.last_batch = super().preprocess_batch(batch)
        tell(inputs=self.last_batch)
        return self.last_batch


def batch_ended(trainer) -> None:
    end_of_step(inputs=trainer.last_batch, activations=[trainer.loss, trainer.loss_items, trainer.tloss])


def main() -> None:
    folder = Path("ships").resolve()
    draw_split(folder, "train", 16, seed=1)
    draw_split(folder, "val", 4, seed=2)
    config = {
        "path": str(folder),
        "train": "images/train",
        "val": "images/val",
        "names": dict(enumerate(NAMES)),
    }
    Path("ships.yaml").write_text(yaml.safe_dump(config))

    model = YOLO("yolo26n-obb.yaml")
    model.add_callback("on_train_batch_end", batch_ended)
    cublas = os.environ.get("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    try:
        model.train(
            trainer=ShipTrainer,
            data="ships.yaml",
            epochs=20,
            imgsz=SIZE,
            batch=8,
            workers=0,
            device=0,
            optimizer="MuSGD",
            lr0=0.01,
            cos_lr=True,
            warmup_epochs=1,
            degrees=180.0,
            mosaic=1.0,
            close_mosaic=5,
            fliplr=0.5,
            flipud=0.5,
            amp=False,
            freeze=2,
            plots=False,
            verbose=False,
            project="runs",
            name="ships",
        )
    finally:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = cublas  # the trainer removes it


if __name__ == "__main__":
    main()
