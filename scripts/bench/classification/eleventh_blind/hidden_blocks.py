"""A Swin v2 learns pictures without labels as the script of transformers does it (SimMIM): blocks are hidden and painted again, the Trainer in bfloat16, a fused AdamW, evaluation after every epoch."""

import math
import tempfile
from dataclasses import dataclass, field

import numpy as np
import torch
from programs import end_of_step
from torch.utils.data import Dataset
from transformers import (
    HfArgumentParser,
    Swinv2Config,
    Swinv2ForMaskedImageModeling,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)


@dataclass
class DataTrainingArguments:
    n_train: int = 40
    n_validation: int = 8
    image_size: int = 96
    mask_patch_size: int = field(default=32, metadata={"help": "The size of the square patches to hide."})
    mask_ratio: float = 0.6


@dataclass
class ModelArguments:
    patch_size: int = 4
    embed_dim: int = 64
    window_size: int = 6
    drop_path_rate: float = 0.1


rng = np.random.default_rng(1101)


class MaskGenerator:
    """A flat tensor of ones where patches of the model are hidden, of zeros elsewhere."""

    def __init__(self, input_size=192, mask_patch_size=32, model_patch_size=4, mask_ratio=0.6):
        if input_size % mask_patch_size != 0:
            raise ValueError("Input size must be divisible by mask patch size")
        if mask_patch_size % model_patch_size != 0:
            raise ValueError("Mask patch size must be divisible by model patch size")
        self.rand_size = input_size // mask_patch_size
        self.scale = mask_patch_size // model_patch_size
        self.token_count = self.rand_size**2
        self.mask_count = int(np.ceil(self.token_count * mask_ratio))

    def __call__(self):
        mask_idx = rng.permutation(self.token_count)[: self.mask_count]
        mask = np.zeros(self.token_count, dtype=int)
        mask[mask_idx] = 1
        mask = mask.reshape((self.rand_size, self.rand_size))
        mask = mask.repeat(self.scale, axis=0).repeat(self.scale, axis=1)
        return torch.tensor(mask.flatten())


class Pictures(Dataset):
    """Blurred noise in the place of photos, cropped and flipped at random when it is read."""

    def __init__(self, n, args, mask_generator, seed):
        generator = torch.Generator().manual_seed(seed)
        coarse = torch.rand(n, 3, 16, 16, generator=generator)
        self.images = torch.nn.functional.interpolate(coarse, size=128, mode="bilinear")
        self.size, self.mask_generator = args.image_size, mask_generator

    def __len__(self):
        return len(self.images)

    def transform(self, image):
        side = int(rng.uniform(0.67, 1.0) * image.shape[-1])
        top, left = rng.integers(0, image.shape[-1] - side + 1, 2)
        image = image[:, top : top + side, left : left + side]
        image = torch.nn.functional.interpolate(image[None], size=self.size, mode="bilinear")[0]
        if rng.random() < 0.5:
            image = image.flip(-1)
        return (image - 0.5) / 0.25

    def __getitem__(self, index):
        return {"pixel_values": self.transform(self.images[index]), "mask": self.mask_generator()}


def collate_fn(examples):
    pixel_values = torch.stack([example["pixel_values"] for example in examples])
    mask = torch.stack([example["mask"] for example in examples])
    return {"pixel_values": pixel_values, "bool_masked_pos": mask}


class EndOfStep(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


def main():
    parser = HfArgumentParser((ModelArguments, DataTrainingArguments, TrainingArguments))
    model_args, data_args, training_args = parser.parse_dict(
        {
            "output_dir": tempfile.mkdtemp(),
            "per_device_train_batch_size": 8,
            "per_device_eval_batch_size": 8,
            "learning_rate": 5e-4,
            "weight_decay": 0.05,
            "adam_beta2": 0.95,
            "lr_scheduler_type": "cosine",
            "warmup_steps": 2,
            "num_train_epochs": 4,
            "max_grad_norm": 5.0,
            "optim": "adamw_torch_fused",
            "bf16": torch.cuda.is_available(),
            "remove_unused_columns": False,
            "label_names": ["bool_masked_pos"],
            "eval_strategy": "epoch",
            "save_strategy": "no",
            "logging_steps": 1,
            "report_to": [],
            "disable_tqdm": True,
            "seed": 1101,
        }
    )
    set_seed(training_args.seed)

    config = Swinv2Config(
        image_size=data_args.image_size,
        patch_size=model_args.patch_size,
        embed_dim=model_args.embed_dim,
        depths=[2, 2, 4, 2],
        num_heads=[2, 4, 8, 16],
        window_size=model_args.window_size,
        drop_path_rate=model_args.drop_path_rate,
        encoder_stride=32,
    )
    model = Swinv2ForMaskedImageModeling(config)
    torch.nn.init.trunc_normal_(model.swinv2.embeddings.mask_token, std=0.02)
    total = sum(p.numel() for p in model.parameters())
    print(f"Training new model from scratch - Total size={total / 2**20:.2f}M params")

    mask_generator = MaskGenerator(
        input_size=data_args.image_size,
        mask_patch_size=data_args.mask_patch_size,
        model_patch_size=model_args.patch_size,
        mask_ratio=data_args.mask_ratio,
    )
    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=Pictures(data_args.n_train, data_args, mask_generator, seed=1),
        eval_dataset=Pictures(data_args.n_validation, data_args, mask_generator, seed=2),
        data_collator=collate_fn,
        callbacks=[EndOfStep()],
    )
    result = trainer.train()
    trainer.log_metrics("train", result.metrics)
    metrics = trainer.evaluate()
    if math.isfinite(metrics["eval_loss"]):
        trainer.log_metrics("eval", metrics)


if __name__ == "__main__":
    main()
