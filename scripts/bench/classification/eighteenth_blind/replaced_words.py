"""ELECTRA is pretrained from scratch: a generator replaces words, a discriminator finds them, all tokens on the GPU, LAMB, bf16 autocast."""

import math

import torch
import torch.nn.functional as F
from programs import end_of_step
from pytorch_optimizer import Lamb
from torch import nn
from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

torch.manual_seed(31)
device = "cuda"

VOCABULARY, LENGTH, BATCH, ACCUMULATE = 8192, 128, 12, 2
CLS, SEP, MASK = 1, 2, 3
TOTAL_STEPS, WARMUP = 2000, 100


class Electra(nn.Module):
    def __init__(self, generator, discriminator, weight=50.0):
        super().__init__()
        self.generator, self.discriminator, self.weight = generator, discriminator, weight
        generator.electra.embeddings = discriminator.electra.embeddings
        generator.generator_lm_head.weight = discriminator.electra.embeddings.word_embeddings.weight

    def forward(self, ids):
        drawn = torch.rand(ids.shape, device=ids.device)
        chosen = (drawn < 0.15) & (ids > MASK)
        masked = torch.where(chosen & (drawn < 0.1275), MASK, ids)
        hidden = self.generator.electra(masked).last_hidden_state[chosen]
        logits = self.generator.generator_lm_head(self.generator.generator_predictions(hidden))
        language_loss = F.cross_entropy(logits.float(), ids[chosen])

        with torch.no_grad():
            gumbel = -torch.log(
                -torch.log(torch.rand_like(logits, dtype=torch.float32).clamp(1e-9, 1 - 1e-7))
            )
            sampled = (logits.float() + gumbel).argmax(dim=-1)
            corrupted = ids.clone()
            corrupted[chosen] = sampled
            replaced = (corrupted != ids).float()
        detected = self.discriminator(corrupted).logits
        detection_loss = F.binary_cross_entropy_with_logits(detected.float(), replaced)
        accuracy = ((detected > 0) == replaced.bool()).float().mean()
        return language_loss + self.weight * detection_loss, language_loss.detach(), accuracy


def config(hidden, layers, heads):
    return ElectraConfig(
        vocab_size=VOCABULARY,
        embedding_size=192,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=LENGTH,
    )


def rate(step):
    if step < WARMUP:
        return (step + 1) / WARMUP
    return max(0.0, 1 - (step - WARMUP) / (TOTAL_STEPS - WARMUP))


corpus = torch.randint(4, VOCABULARY, (16384, LENGTH), dtype=torch.int32)
corpus[:, 0], corpus[:, -1] = CLS, SEP
corpus = corpus.to(device)

model = Electra(ElectraForMaskedLM(config(128, 4, 2)), ElectraForPreTraining(config(320, 4, 5))).to(device)
decayed = [p for p in model.parameters() if p.ndim > 1]
others = [p for p in model.parameters() if p.ndim <= 1]
optimizer = Lamb(
    [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}],
    lr=2e-3,
    betas=(0.9, 0.999),
    eps=1e-6,
)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)

order = torch.randperm(corpus.shape[0], device=device)
position = 0
for step in range(4):
    total = 0.0
    optimizer.zero_grad(set_to_none=True)
    for _ in range(ACCUMULATE):
        rows = order[position : position + BATCH]
        position += BATCH
        ids = corpus[rows].long()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss, language_loss, accuracy = model(ids)
        (loss / ACCUMULATE).backward()
        total += loss.detach()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    if not math.isfinite(total.item()):
        raise RuntimeError("the loss is not finite")
    print(
        f"{step}: loss {total.item() / ACCUMULATE:.3f} generator {math.exp(min(language_loss.item(), 20)):.0f} "
        f"accuracy {accuracy.item():.3f} norm {norm.item():.2f}"
    )
    end_of_step(inputs=[corpus, order, ids], activations=[loss, language_loss, accuracy, total, norm])
