"""Granite Speech learns to answer spoken requests: bfloat16 weights, LoRA in the language model, a projector with its own rate, a Trainer subclass."""

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from programs import end_of_step, tell
from torch.utils.data import Dataset
from transformers import (
    GraniteSpeechConfig,
    GraniteSpeechFeatureExtractor,
    GraniteSpeechForConditionalGeneration,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

VOCABULARY = 8000
AUDIO_TOKEN = VOCABULARY - 1
PAD = 0


class SpokenRequests(Dataset):
    """Recordings of a few seconds with the (tokenized) request before and the answer after."""

    def __init__(self, size, seed):
        rng = np.random.default_rng(seed)
        self.rows = []
        for _ in range(size):
            samples = int(16000 * rng.uniform(3, 6))
            self.rows.append(
                {
                    "audio": (0.1 * rng.standard_normal(samples)).astype(np.float32),
                    "prompt": rng.integers(1, VOCABULARY - 1, 18).tolist(),
                    "answer": rng.integers(1, VOCABULARY - 1, rng.integers(24, 60)).tolist(),
                }
            )

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


class Collator:
    def __init__(self, extractor):
        self.extractor = extractor

    def __call__(self, rows):
        speech = self.extractor([torch.from_numpy(row["audio"]) for row in rows])
        sequences, targets = [], []
        for row, n_audio in zip(rows, speech["audio_embed_sizes"]):
            prompt = [AUDIO_TOKEN] * n_audio + row["prompt"]
            sequences.append(torch.tensor(prompt + row["answer"]))
            targets.append(torch.tensor([-100] * len(prompt) + row["answer"]))
        pad = torch.nn.utils.rnn.pad_sequence
        return {
            "input_ids": pad(sequences, batch_first=True, padding_value=PAD),
            "attention_mask": pad([torch.ones_like(s) for s in sequences], batch_first=True),
            "labels": pad(targets, batch_first=True, padding_value=-100),
            "input_features": speech["input_features"].to(torch.bfloat16),
            "input_features_mask": speech["input_features_mask"],
        }


class SpeechTrainer(Trainer):
    """The projector is trained faster than the adapters, and its loss is logged apart from the share of right tokens."""

    def __init__(self, *args, projector_rate, **kwargs):
        super().__init__(*args, **kwargs)
        self.projector_rate = projector_rate

    def create_optimizer(self, *args, **kwargs):
        trained = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        groups = [
            {"params": [p for name, p in trained if "projector" in name], "lr": self.projector_rate},
            {"params": [p for name, p in trained if "projector" not in name], "lr": self.args.learning_rate},
        ]
        self.optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=self.args.weight_decay)
        return self.optimizer

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        tell(inputs=inputs)
        outputs = model(**inputs, use_cache=False)
        if model.training and self.state.global_step % self.args.logging_steps == 0:
            labels = inputs["labels"][:, 1:]
            right = (outputs.logits[:, :-1].argmax(-1) == labels)[labels != -100]
            self.log({"token_accuracy": right.float().mean().item()})
        return (outputs.loss, outputs) if return_outputs else outputs.loss


class StepEnds(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


def make_model():
    config = GraniteSpeechConfig(
        text_config=dict(
            model_type="granite",
            vocab_size=VOCABULARY,
            hidden_size=512,
            intermediate_size=1536,
            num_hidden_layers=6,
            num_attention_heads=8,
            num_key_value_heads=2,
            max_position_embeddings=512,
            attention_multiplier=0.125,
            embedding_multiplier=12.0,
            residual_multiplier=0.22,
            logits_scaling=8.0,
            pad_token_id=PAD,
            bos_token_id=1,
            eos_token_id=1,
        ),
        encoder_config=dict(
            input_dim=160,
            num_layers=4,
            hidden_dim=384,
            feedforward_mult=4,
            num_heads=6,
            output_dim=42,
            context_size=100,
        ),
        projector_config=dict(
            model_type="blip_2_qformer",
            hidden_size=384,
            num_hidden_layers=2,
            num_attention_heads=6,
            intermediate_size=1536,
            encoder_hidden_size=384,
            cross_attention_frequency=1,
            use_qformer_text_input=False,
            vocab_size=100,
        ),
        audio_token_index=AUDIO_TOKEN,
        has_lora_adapter=False,
        downsample_rate=5,
        window_size=15,
    )
    config.projector_config._attn_implementation = "eager"
    model = GraniteSpeechForConditionalGeneration(config).to(torch.bfloat16)
    lora = LoraConfig(
        r=16,
        lora_alpha=32,
        lora_dropout=0.05,
        target_modules=r".*language_model.*\.(q_proj|v_proj)",
        bias="none",
    )
    model = get_peft_model(model, lora)
    for name, parameter in model.named_parameters():
        if "projector" in name:
            parameter.requires_grad_(True)
    return model


def main():
    torch.manual_seed(23)
    extractor = GraniteSpeechFeatureExtractor()
    trainer = SpeechTrainer(
        model=make_model(),
        args=TrainingArguments(
            output_dir="clerk",
            per_device_train_batch_size=4,
            per_device_eval_batch_size=4,
            gradient_accumulation_steps=1,
            bf16=True,
            learning_rate=3e-5,
            weight_decay=0.01,
            warmup_steps=4,
            lr_scheduler_type="cosine",
            max_grad_norm=1.0,
            max_steps=8,
            logging_steps=2,
            eval_strategy="steps",
            eval_steps=2,
            prediction_loss_only=True,
            save_strategy="no",
            report_to="none",
            remove_unused_columns=False,
            disable_tqdm=True,
        ),
        train_dataset=SpokenRequests(48, 1),
        eval_dataset=SpokenRequests(4, 2),
        data_collator=Collator(extractor),
        callbacks=[StepEnds()],
        projector_rate=3e-4,
    )
    trainer.train()


if __name__ == "__main__":
    main()
