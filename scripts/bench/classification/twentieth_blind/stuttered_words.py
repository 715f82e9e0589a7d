"""Frames of recorded interviews are marked as blocks, repetitions or prolongations: a Data2Vec Audio with a frame head, Trainer in bf16, frozen front end, Lion, constant rate with warm-up."""

import numpy as np
import torch
from programs import end_of_step, tell
from pytorch_optimizer import Lion
from torch.utils.data import Dataset
from transformers import (
    Data2VecAudioConfig,
    Data2VecAudioForAudioFrameClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    Wav2Vec2FeatureExtractor,
    get_constant_schedule_with_warmup,
)

torch.manual_seed(3)
RATE = 16000
LABELS = ["fluent", "block", "prolongation", "repetition", "interjection"]


class Interviews(Dataset):
    def __init__(self, count, seed):
        generator = np.random.default_rng(seed)
        self.clips = [
            generator.normal(0, 0.1, int(RATE * s)).astype(np.float32)
            for s in generator.uniform(1.0, 1.8, count)
        ]
        self.seed = seed

    def __len__(self):
        return len(self.clips)

    def __getitem__(self, index):
        return {"audio": self.clips[index], "seed": self.seed + index}


config = Data2VecAudioConfig(
    hidden_size=256,
    num_hidden_layers=4,
    num_attention_heads=4,
    intermediate_size=1024,
    conv_dim=(128,) * 7,
    num_conv_pos_embeddings=5,
    conv_pos_kernel_size=19,
    num_labels=len(LABELS),
    mask_time_prob=0.05,
    layerdrop=0.0,
)
model = Data2VecAudioForAudioFrameClassification(config)
model.freeze_feature_encoder()
extractor = Wav2Vec2FeatureExtractor(sampling_rate=RATE, return_attention_mask=True)


def collate(clips):
    batch = extractor([c["audio"] for c in clips], sampling_rate=RATE, padding=True, return_tensors="pt")
    frames = int(model._get_feat_extract_output_lengths(batch["input_values"].shape[1]))
    labels = torch.randint(0, len(LABELS), (len(clips), frames))
    batch["labels"] = torch.nn.functional.one_hot(labels, len(LABELS)).float()
    return dict(batch)


class FrameTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        tell(inputs=inputs)
        return super().compute_loss(model, inputs, return_outputs=return_outputs)


class StepEnds(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=4,
    bf16=True,
    max_steps=5,
    max_grad_norm=1.0,
    save_strategy="no",
    report_to="none",
    logging_steps=1,
    disable_tqdm=True,
    remove_unused_columns=False,
)
optimizer = Lion([p for p in model.parameters() if p.requires_grad], lr=3e-5, weight_decay=0.1)
trainer = FrameTrainer(
    model=model,
    args=arguments,
    train_dataset=Interviews(32, 1),
    data_collator=collate,
    optimizers=(optimizer, get_constant_schedule_with_warmup(optimizer, 2)),
    callbacks=[StepEnds()],
)
trainer.train()
