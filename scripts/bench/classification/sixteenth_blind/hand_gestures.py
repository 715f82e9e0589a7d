"""Fine-tuning of a V-JEPA 2 on clips of hand gestures with the Trainer: mostly frozen encoder, bfloat16, checkpointed layers, Adafactor, accumulation."""

import numpy as np
import torch
from programs import end_of_step, tell
from torch.utils.data import Dataset
from transformers import (
    Trainer,
    TrainerCallback,
    TrainingArguments,
    VJEPA2Config,
    VJEPA2ForVideoClassification,
    VJEPA2VideoProcessor,
    set_seed,
)

GESTURES = [
    "swiping left", "swiping right", "swiping up", "swiping down", "thumb up", "thumb down", "stop sign",
    "drumming fingers", "zooming in", "zooming out", "rolling forward", "rolling backward", "shaking", "no gesture",
]  # fmt: skip
FRAMES = 16
UNFROZEN_LAYERS = 2

set_seed(17)


class Gestures(Dataset):
    def __init__(self, n, seed):
        self.n, self.seed = n, seed

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        random = np.random.default_rng((self.seed, index))
        label = int(random.integers(len(GESTURES)))
        video = random.integers(0, 60, (FRAMES, 3, 120, 160), dtype=np.uint8)
        for frame in range(FRAMES):
            left = (20 + label * 3 + frame * 4) % 120
            video[frame, :, 40:80, left : left + 30] += 150
        return {"video": video, "labels": label}


processor = VJEPA2VideoProcessor(crop_size={"height": 112, "width": 112}, size={"shortest_edge": 128})


def collate(examples):
    pixels = processor(
        [torch.from_numpy(example["video"]) for example in examples], return_tensors="pt"
    ).pixel_values_videos
    return {
        "pixel_values_videos": pixels,
        "labels": torch.tensor([example["labels"] for example in examples]),
    }


def compute_metrics(prediction):
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


class StepEnds(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


class VideoTrainer(Trainer):
    def compute_loss(self, model, inputs, **kwargs):
        tell(inputs=inputs)
        return super().compute_loss(model, inputs, **kwargs)


model = VJEPA2ForVideoClassification(
    VJEPA2Config(
        crop_size=112,
        frames_per_clip=FRAMES,
        hidden_size=384,
        num_attention_heads=6,
        num_hidden_layers=6,
        num_pooler_layers=2,
        pred_hidden_size=192,
        pred_num_attention_heads=6,
        pred_num_hidden_layers=3,
        num_labels=len(GESTURES),
        id2label=dict(enumerate(GESTURES)),
        label2id={name: index for index, name in enumerate(GESTURES)},
    )
)
for parameter in model.vjepa2.parameters():
    parameter.requires_grad = False
for layer in model.vjepa2.encoder.layer[-UNFROZEN_LAYERS:]:
    for parameter in layer.parameters():
        parameter.requires_grad = True

arguments = TrainingArguments(
    output_dir="gestures",
    per_device_train_batch_size=2,
    per_device_eval_batch_size=2,
    gradient_accumulation_steps=2,
    bf16=True,
    gradient_checkpointing=True,
    optim="adafactor",
    learning_rate=1e-4,
    weight_decay=0.01,
    lr_scheduler_type="cosine_with_min_lr",
    lr_scheduler_kwargs={"min_lr": 1e-6},
    warmup_steps=2,
    max_steps=40,
    eval_strategy="steps",
    eval_steps=2,
    save_strategy="no",
    logging_steps=1,
    remove_unused_columns=False,
    dataloader_num_workers=0,
    report_to="none",
    disable_tqdm=True,
)
trainer = VideoTrainer(
    model=model,
    args=arguments,
    data_collator=collate,
    train_dataset=Gestures(64, seed=0),
    eval_dataset=Gestures(4, seed=1),
    compute_metrics=compute_metrics,
    callbacks=[StepEnds()],
)
trainer.train()
