"""A CLIP is trained on pictures of birds and their captions by the main program of open_clip: vectors of two batches are cached before the step, bfloat16 by autocast, checkpointed layers, a cosine rate, retrieval between epochs."""

import csv
import json
import random
from pathlib import Path

import numpy as np
import open_clip
import open_clip_train.main
from PIL import Image
from programs import end_of_step, tell

ACCUM_FREQ = 2
MODEL = {
    "embed_dim": 256,
    "vision_cfg": {"image_size": 112, "layers": 4, "width": 256, "head_width": 64, "patch_size": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 128, "heads": 4, "layers": 3},
}
COLOURS = ["red", "blue", "brown", "black", "yellow", "grey", "white"]
PLACES = ["on a branch", "in the snow", "over a lake", "beside its nest", "in a gloved hand"]


def write_csv(path, folder, n, seed):
    rng, random_ = np.random.default_rng(seed), random.Random(seed)
    folder.mkdir(exist_ok=True)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["filepath", "title"])
        for i in range(n):
            pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            image = folder / f"{seed}_{i:03d}.jpg"
            Image.fromarray(pixels).resize((160, 130), Image.Resampling.BICUBIC).save(image)
            writer.writerow([image, f"a {random_.choice(COLOURS)} bird {random_.choice(PLACES)}"])


class CountedLoader:
    """A loader that knows when enough batches for a step were used."""

    def __init__(self, loader):
        self.loader = loader
        self.num_samples, self.num_batches = loader.num_samples, loader.num_batches

    def __iter__(self):
        for i, batch in enumerate(self.loader):
            yield batch
            if (i + 1) % ACCUM_FREQ == 0:
                end_of_step()


def patch_main():
    get_data, create = open_clip_train.main.get_data, open_clip_train.main.create_model_and_transforms

    def get_counted_data(*args, **kwargs):
        data = get_data(*args, **kwargs)
        data["train"].dataloader = CountedLoader(data["train"].dataloader)
        return data

    def create_watched(*args, **kwargs):
        model, *transforms = create(*args, **kwargs)
        model.register_forward_pre_hook(lambda module, args: tell(inputs=args))
        return model, *transforms

    open_clip_train.main.get_data = get_counted_data
    open_clip_train.main.create_model_and_transforms = create_watched


def main():
    Path("bird-vit.json").write_text(json.dumps(MODEL))
    open_clip.add_model_config("bird-vit.json")
    write_csv("train.csv", Path("images"), 32, seed=1)
    write_csv("val.csv", Path("images"), 12, seed=2)
    patch_main()
    open_clip_train.main.main(
        [
            "--model=bird-vit",
            "--train-data=train.csv",
            "--val-data=val.csv",
            "--dataset-type=csv",
            "--csv-separator=,",
            "--batch-size=8",
            f"--accum-freq={ACCUM_FREQ}",
            "--precision=amp_bf16",
            "--grad-checkpointing",
            "--grad-clip-norm=1.0",
            "--lr=5e-4",
            "--wd=0.1",
            "--warmup=4",
            "--epochs=2",
            "--workers=0",
            "--logs=logs",
            "--name=birds",
            "--save-frequency=1",
            "--log-every-n-steps=1",
            "--aug-cfg",
            "scale=(0.5,1.0)",
        ]
    )


if __name__ == "__main__":
    main()
