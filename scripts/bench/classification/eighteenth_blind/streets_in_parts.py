"""Panoptic fine-tuning of an EoMT on street scenes with the Trainer in float32: rates that decay by layer, masked attention annealed away, gradients clipped hard."""

import numpy as np
import torch
from programs import end_of_step, tell
from torch.utils.data import Dataset
from transformers import (
    EomtConfig,
    EomtForUniversalSegmentation,
    EomtImageProcessor,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    get_polynomial_decay_schedule_with_warmup,
    set_seed,
)

set_seed(12)
SIDE = 224
LABELS = ["road", "sidewalk", "building", "sky", "person", "rider", "car", "bus", "bicycle"]

processor = EomtImageProcessor(
    size={"shortest_edge": SIDE, "longest_edge": SIDE},
    do_split_image=False,
    do_pad=True,
    num_labels=len(LABELS),
)


class Streets(Dataset):
    """Photos with a map of segments and the class of each segment."""

    def __init__(self, length, seed):
        self.length, self.seed = length, seed

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        rng = np.random.default_rng(self.seed + index)
        segments = np.zeros((192, 256), np.uint8)
        classes = {0: 3}
        segments[60:] = 1
        classes[1] = 2
        segments[110:] = 2
        classes[2] = 0
        for number in range(3, 3 + int(rng.integers(3, 9))):
            y, x, h, w = (
                rng.integers(70, 140),
                rng.integers(0, 210),
                rng.integers(16, 50),
                rng.integers(12, 46),
            )
            segments[y : y + h, x : x + w] = number
            classes[number] = int(rng.integers(4, 9))
        image = (segments[..., None] * np.array([23, 31, 17]) + rng.integers(0, 40, (192, 256, 3))).astype(
            np.uint8
        )
        inputs = processor(
            images=image, segmentation_maps=segments, instance_id_to_semantic_id=classes, return_tensors="pt"
        )
        return {
            "pixel_values": inputs["pixel_values"][0],
            "mask_labels": inputs["mask_labels"][0],
            "class_labels": inputs["class_labels"][0],
        }


def collate(examples):
    return {
        "pixel_values": torch.stack([example["pixel_values"] for example in examples]),
        "mask_labels": [example["mask_labels"] for example in examples],
        "class_labels": [example["class_labels"] for example in examples],
    }


model = EomtForUniversalSegmentation(
    EomtConfig(
        hidden_size=256,
        num_hidden_layers=6,
        num_attention_heads=8,
        image_size=SIDE,
        patch_size=16,
        num_blocks=3,
        num_queries=50,
        train_num_points=2048,
        layerscale_value=1e-5,
        drop_path_rate=0.1,
        num_labels=len(LABELS),
    )
)

LR, DECAY = 1e-4, 0.8
groups = {}
for name, parameter in model.named_parameters():
    if name.startswith("layers."):
        depth = model.config.num_hidden_layers - int(name.split(".")[1])
    elif name.startswith("embeddings."):
        depth = model.config.num_hidden_layers + 1
    else:
        depth = 0
    decayed = parameter.ndim > 1
    group = groups.setdefault(
        (depth, decayed), {"params": [], "lr": LR * DECAY**depth, "weight_decay": 0.05 if decayed else 0.0}
    )
    group["params"].append(parameter)
optimizer = torch.optim.AdamW(list(groups.values()), lr=LR)
scheduler = get_polynomial_decay_schedule_with_warmup(optimizer, 2, 20, lr_end=0.0, power=0.9)


class Annealing(TrainerCallback):
    """The masks leave the attention block by block."""

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        blocks = model.config.num_blocks
        for block in range(blocks):
            progress = min(max((state.global_step / state.max_steps) * blocks - block, 0.0), 1.0)
            model.attn_mask_probs[block] = (1.0 - progress) ** 0.9

    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


class PanopticTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        tell(inputs=inputs)
        return super().compute_loss(model, inputs, return_outputs=return_outputs, **kwargs)


arguments = TrainingArguments(
    output_dir="eomt",
    per_device_train_batch_size=2,
    per_device_eval_batch_size=2,
    max_steps=20,
    max_grad_norm=0.01,
    eval_strategy="steps",
    eval_steps=2,
    prediction_loss_only=True,
    logging_steps=1,
    save_strategy="no",
    report_to="none",
    remove_unused_columns=False,
    disable_tqdm=True,
    label_names=["mask_labels", "class_labels"],
)
trainer = PanopticTrainer(
    model=model,
    args=arguments,
    train_dataset=Streets(24, 0),
    eval_dataset=Streets(2, 1000),
    data_collator=collate,
    optimizers=(optimizer, scheduler),
    callbacks=[Annealing()],
)
trainer.train()
