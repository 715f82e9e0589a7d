"""A MobileNet learns which disease a leaf has from a ViT that knows: a Trainer of one's own, soft answers at a temperature, evaluation between."""

import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from programs import end_of_step
from torch.utils.data import Dataset
from transformers import (
    DefaultDataCollator,
    MobileNetV2Config,
    MobileNetV2ForImageClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
    set_seed,
)

N_LABELS, SIZE = 38, 96


class Leaves(Dataset):
    def __init__(self, n, seed):
        generator = torch.Generator().manual_seed(seed)
        self.images = torch.randn(n, 3, SIZE, SIZE, generator=generator)
        self.labels = torch.randint(N_LABELS, (n,), generator=generator).tolist()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"pixel_values": self.images[index], "labels": self.labels[index]}


class ImageDistilTrainer(Trainer):
    def __init__(self, teacher_model=None, student_model=None, temperature=None, lambda_param=None, **kwargs):
        super().__init__(model=student_model, **kwargs)
        self.teacher = teacher_model
        self.student = student_model
        self.loss_function = nn.KLDivLoss(reduction="batchmean")
        self.teacher.to(self.args.device)
        self.teacher.eval()
        self.temperature = temperature
        self.lambda_param = lambda_param

    def compute_loss(self, student, inputs, return_outputs=False, **kwargs):
        student_output = self.student(**inputs)
        with torch.no_grad():
            teacher_output = self.teacher(**inputs)
        soft_teacher = F.softmax(teacher_output.logits / self.temperature, dim=-1)
        soft_student = F.log_softmax(student_output.logits / self.temperature, dim=-1)
        distillation_loss = self.loss_function(soft_student, soft_teacher) * (self.temperature**2)
        student_target_loss = student_output.loss
        loss = (1.0 - self.lambda_param) * student_target_loss + self.lambda_param * distillation_loss
        return (loss, student_output) if return_outputs else loss


class Steps(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


def compute_metrics(eval_pred):
    predictions, labels = eval_pred
    return {"accuracy": float((predictions.argmax(axis=1) == labels).mean())}


def main():
    set_seed(309)
    teacher_model = ViTForImageClassification(
        ViTConfig(
            image_size=SIZE,
            patch_size=16,
            hidden_size=288,
            num_hidden_layers=6,
            num_attention_heads=6,
            intermediate_size=1152,
            num_labels=N_LABELS,
        )
    )
    student_config = MobileNetV2Config(image_size=SIZE, depth_multiplier=1.0, num_labels=N_LABELS)
    student_model = MobileNetV2ForImageClassification(student_config)
    training_args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        max_steps=4,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        fp16=torch.cuda.is_available(),
        logging_strategy="steps",
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="no",
        learning_rate=5e-4,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = ImageDistilTrainer(
        student_model=student_model,
        teacher_model=teacher_model,
        args=training_args,
        train_dataset=Leaves(64, seed=1),
        eval_dataset=Leaves(8, seed=2),
        data_collator=DefaultDataCollator(),
        compute_metrics=compute_metrics,
        temperature=5,
        lambda_param=0.5,
        callbacks=[Steps()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
