"""A wav2vec 2.0 is pretrained on sound without words, as the script of transformers does it: Accelerate, two batches to a step, Gumbel codes."""

import math

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from programs import end_of_step, tell
from torch.utils.data import DataLoader, Dataset
from transformers import Wav2Vec2Config, Wav2Vec2ForPreTraining, get_scheduler
from transformers.models.wav2vec2.modeling_wav2vec2 import _compute_mask_indices, _sample_negative_indices

MAX_TEMPERATURE, MIN_TEMPERATURE, DECAY = 2.0, 0.5, 0.999995


class Utterances(Dataset):
    def __init__(self, n):
        self.lengths = torch.randint(12000, 24000, (n,)).tolist()

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        wave = torch.randn(self.lengths[index])
        return {"input_values": (wave - wave.mean()) / wave.std()}


class DataCollatorForWav2Vec2Pretraining:
    """Pads the sound, and draws which moments are hidden and which others are wrong answers."""

    def __init__(self, model, mask_time_prob=0.65, mask_time_length=10):
        self.model = model
        self.mask_time_prob, self.mask_time_length = mask_time_prob, mask_time_length

    def __call__(self, features):
        waves = [f["input_values"] for f in features]
        batch = {
            "input_values": torch.nn.utils.rnn.pad_sequence(waves, batch_first=True),
            "attention_mask": torch.nn.utils.rnn.pad_sequence(
                [torch.ones(len(wave), dtype=torch.long) for wave in waves], batch_first=True
            ),
        }
        batch_size = len(waves)
        length = int(self.model._get_feat_extract_output_lengths(batch["input_values"].shape[-1]))
        sub_attention_mask = self.model._get_feature_vector_attention_mask(length, batch["attention_mask"])
        mask_time_indices = _compute_mask_indices(
            (batch_size, length),
            self.mask_time_prob,
            self.mask_time_length,
            attention_mask=sub_attention_mask,
        )
        negatives = _sample_negative_indices(
            (batch_size, length), self.model.config.num_negatives, mask_time_indices=mask_time_indices
        )
        batch["sub_attention_mask"] = sub_attention_mask
        batch["mask_time_indices"] = torch.tensor(mask_time_indices, dtype=torch.long)
        batch["sampled_negative_indices"] = torch.tensor(negatives, dtype=torch.long)
        return batch


def multiply_grads(params, c):
    for p in params:
        if p.grad is not None:
            if torch.is_tensor(c):
                c = c.to(p.grad.device)
            p.grad.data.mul_(c)


def get_grad_norm(params, scale=1):
    total_norm = 0.0
    for p in params:
        if p.grad is not None:
            param_norm = (p.grad.detach().data / scale).norm(2)
            total_norm += param_norm.item() ** 2
    return total_norm**0.5


def main(max_train_steps=5, gradient_accumulation_steps=2):
    set_seed(302)
    accelerator = Accelerator()
    config = Wav2Vec2Config(
        hidden_size=256,
        num_hidden_layers=6,
        num_attention_heads=4,
        intermediate_size=1024,
        conv_dim=(128,) * 7,
        conv_bias=True,
        feat_extract_norm="layer",
        do_stable_layer_norm=True,
        num_conv_pos_embeddings=64,
        codevector_dim=128,
        proj_codevector_dim=128,
        num_negatives=50,
        layerdrop=0.0,
    )
    model = Wav2Vec2ForPreTraining(config)
    model.gradient_checkpointing_enable()
    collator = DataCollatorForWav2Vec2Pretraining(model)
    train_dataloader = DataLoader(Utterances(40), shuffle=True, collate_fn=collator, batch_size=3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, betas=(0.9, 0.98), eps=1e-6)
    model, optimizer, train_dataloader = accelerator.prepare(model, optimizer, train_dataloader)
    lr_scheduler = get_scheduler("linear", optimizer, num_warmup_steps=2, num_training_steps=50)

    completed_steps = 0
    model.train()
    for step, batch in enumerate(train_dataloader):
        num_losses = batch["mask_time_indices"].sum()
        sub_attention_mask = batch.pop("sub_attention_mask", None)
        percent_masked = num_losses / sub_attention_mask.sum()
        outputs = model(**batch)
        loss = outputs.loss / gradient_accumulation_steps
        accelerator.backward(loss)
        multiply_grads(model.parameters(), 1 / num_losses)
        if (step + 1) % gradient_accumulation_steps:
            tell(inputs=[batch, sub_attention_mask], activations=[loss, list(outputs.values())])
            continue
        grad_norm = get_grad_norm(model.parameters())
        optimizer.step()
        optimizer.zero_grad()
        lr_scheduler.step()
        completed_steps += 1
        model.set_gumbel_temperature(max(MAX_TEMPERATURE * DECAY**completed_steps, MIN_TEMPERATURE))
        print(
            f"loss {loss.item() * gradient_accumulation_steps / num_losses.item():.3f} "
            f"constrast {outputs.contrastive_loss.item() / num_losses.item():.3f} "
            f"div {outputs.diversity_loss.item() / num_losses.item():.3f} "
            f"masked {percent_masked.item():.2f} ppl {outputs.codevector_perplexity.item():.1f} "
            f"norm {math.log10(grad_norm):.2f}"
        )
        end_of_step(
            inputs=[batch, sub_attention_mask, num_losses, percent_masked],
            activations=[loss, list(outputs.values())],
        )
        if completed_steps >= max_train_steps:
            break


if __name__ == "__main__":
    main()
