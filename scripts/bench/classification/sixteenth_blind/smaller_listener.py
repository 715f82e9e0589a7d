"""Whisper is distilled into two decoder layers on pseudo-labels: accelerate in bf16, a frozen encoder shared with the teacher, two accumulated batches."""

import copy

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from datasets import Dataset
from programs import end_of_step
from torch import nn
from torch.utils.data import DataLoader
from transformers import (
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    get_scheduler,
)
from transformers.modeling_outputs import BaseModelOutput

SECONDS = 10
MAX_LABELS = 96
START, END, PAD = 7000, 7001, 7001


def recordings(size, seed):
    """Shouts and murmurs instead of a corpus, with the transcripts that the teacher wrote for them."""
    rng = np.random.default_rng(seed)
    time = np.arange(SECONDS * 16000) / 16000
    for _ in range(size):
        pitch = rng.uniform(90, 240)
        audio = sum(np.sin(2 * np.pi * pitch * k * time) / k for k in range(1, 6))
        audio = audio * (rng.random(len(time) // 1600).repeat(1600) > 0.3) + 0.05 * rng.standard_normal(
            len(time)
        )
        ids = rng.integers(0, 7000, rng.integers(40, MAX_LABELS - 2)).tolist()
        yield {"audio": audio.astype(np.float32), "text_ids": [START, *ids, END]}


def collate(examples):
    features = torch.tensor(
        np.array([example["input_features"] for example in examples]), dtype=torch.float32
    )
    labels = torch.full((len(examples), MAX_LABELS), -100)
    for row, example in enumerate(examples):
        ids = example["labels"][1:]
        labels[row, : len(ids)] = torch.tensor(ids)
    return {"input_features": features, "labels": labels}


def make_student(teacher, decoder_layers):
    config = copy.deepcopy(teacher.config)
    config.decoder_layers = decoder_layers
    student = WhisperForConditionalGeneration(config)
    student.model.encoder.load_state_dict(teacher.model.encoder.state_dict())
    student.model.decoder.load_state_dict(teacher.model.decoder.state_dict(), strict=False)
    kept = np.linspace(0, teacher.config.decoder_layers - 1, decoder_layers, dtype=int)
    for new, old in enumerate(kept):
        student.model.decoder.layers[new].load_state_dict(teacher.model.decoder.layers[old].state_dict())
    return student


def kl_divergence(teacher_probabilities, student_log_probabilities, labels):
    divergence = nn.functional.kl_div(student_log_probabilities, teacher_probabilities, reduction="none")
    mask = (labels >= 0).unsqueeze(-1)
    return (divergence * mask).sum() / mask.sum()


def main():
    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
    set_seed(17)

    extractor = WhisperFeatureExtractor(feature_size=80, chunk_length=SECONDS)

    def prepare(example):
        features = extractor(example["audio"], sampling_rate=16000).input_features[0]
        return {"input_features": features, "labels": example["text_ids"]}

    def load(size, seed):
        raw = Dataset.from_list(list(recordings(size, seed)))
        return raw.map(prepare, remove_columns=raw.column_names).with_format("numpy")

    train_loader = DataLoader(load(24, 1), batch_size=2, shuffle=True, collate_fn=collate)
    dev_loader = DataLoader(load(4, 2), batch_size=2, collate_fn=collate)

    config = WhisperConfig(
        vocab_size=7040,
        d_model=384,
        encoder_layers=4,
        decoder_layers=6,
        encoder_attention_heads=6,
        decoder_attention_heads=6,
        encoder_ffn_dim=1536,
        decoder_ffn_dim=1536,
        max_source_positions=SECONDS * 50,
        max_target_positions=128,
        decoder_start_token_id=START,
        pad_token_id=PAD,
        bos_token_id=END,
        eos_token_id=END,
        begin_suppress_tokens=None,
    )
    teacher = WhisperForConditionalGeneration(config)
    student = make_student(teacher, decoder_layers=2)
    teacher = teacher.to(torch.bfloat16)
    teacher.eval()

    student.freeze_encoder()
    student.model.decoder.embed_positions.requires_grad_(False)
    no_decay = ("bias", "layer_norm", "layernorm")
    named = [(name, p) for name, p in student.named_parameters() if p.requires_grad]
    groups = [
        {"params": [p for n, p in named if not any(part in n for part in no_decay)], "weight_decay": 0.01},
        {"params": [p for n, p in named if any(part in n for part in no_decay)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.98))
    scheduler = get_scheduler("constant_with_warmup", optimizer, num_warmup_steps=50)

    student, teacher, optimizer, scheduler, train_loader, dev_loader = accelerator.prepare(
        student, teacher, optimizer, scheduler, train_loader, dev_loader
    )

    def losses(batch, temperature):
        outputs = student(**batch, use_cache=False)
        with torch.no_grad():
            encoded = BaseModelOutput(outputs.encoder_last_hidden_state.to(torch.bfloat16))
            taught = teacher(encoder_outputs=encoded, labels=batch["labels"], use_cache=False)
        target = nn.functional.softmax(taught.logits / temperature, dim=-1)
        predicted = nn.functional.log_softmax(outputs.logits / temperature, dim=-1)
        kl = kl_divergence(target, predicted, batch["labels"]) * temperature**2
        return 0.8 * outputs.loss + kl, {"ce": outputs.loss, "kl": kl}

    step = 0
    for epoch in range(2):
        student.train()
        for batch in train_loader:
            with accelerator.accumulate(student):
                loss, metrics = losses(batch, temperature=2.0)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(student.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()

            if accelerator.sync_gradients:
                step += 1
                accelerator.print(
                    f"step {step} " + " ".join(f"{k} {v.item():.3f}" for k, v in metrics.items())
                )
                if step % 2 == 0:
                    accelerator.save_state(f"checkpoint-{step}")
                end_of_step(inputs=batch, activations=[loss, metrics])

        student.eval()
        totals = []
        for batch in dev_loader:
            with torch.no_grad():
                _, metrics = losses(batch, temperature=1.0)
            totals.append(accelerator.gather_for_metrics(metrics["kl"]))
        ids = accelerator.unwrap_model(student).generate(batch["input_features"], max_new_tokens=24)
        accelerator.print(
            f"epoch {epoch} kl {torch.stack(totals).mean().item():.3f}, {tuple(ids.shape)} tokens"
        )


if __name__ == "__main__":
    main()
