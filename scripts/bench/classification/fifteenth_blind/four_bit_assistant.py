"""Quantization-aware fine-tuning of a Qwen3 for phones with torchao: linears feel int4 weights and int8 activations, the embedding int8, in bfloat16, packed dialogues, cross entropy in chunks, AdamW on the CPU behind an offloading optimizer, fake quantization off in the first step, two batches to a step."""

import math
import random
import time

import torch
import torch.nn.functional as F
from programs import end_of_step
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchao.optim import CPUOffloadOptimizer
from torchao.quantization import Int8DynamicActivationIntxWeightConfig, IntxWeightOnlyConfig, quantize_
from torchao.quantization.granularity import PerAxis, PerGroup
from torchao.quantization.qat import FakeQuantizedEmbedding, FakeQuantizedLinear, QATConfig
from transformers import Qwen3Config, Qwen3ForCausalLM

VOCAB, MAX_SEQ_LEN = 12000, 224
IM_START, IM_END, USER, ASSISTANT = 1, 2, 3, 4
CROSS_ENTROPY_IGNORE_IDX = -100


class PackedDialogues(Dataset):
    """Dialogues one after the other in rows of one length; users' words are not learned."""

    def __init__(self, n_dialogues, seed):
        rng = random.Random(seed)
        tokens, labels = [], []
        for _ in range(n_dialogues):
            topic = rng.sample(range(10, VOCAB), 24)
            for _ in range(rng.randint(1, 4)):
                question, answer = (
                    rng.choices(topic, k=rng.randint(6, 20)),
                    rng.choices(topic, k=rng.randint(15, 60)),
                )
                tokens += [IM_START, USER, *question, IM_END, IM_START, ASSISTANT, *answer, IM_END]
                labels += [CROSS_ENTROPY_IGNORE_IDX] * (len(question) + 5) + [*answer, IM_END]
        n = len(tokens) // MAX_SEQ_LEN
        self.tokens = torch.tensor(tokens[: n * MAX_SEQ_LEN]).view(n, MAX_SEQ_LEN)
        self.labels = torch.tensor(labels[: n * MAX_SEQ_LEN]).view(n, MAX_SEQ_LEN)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"tokens": self.tokens[index], "labels": self.labels[index]}


class ChunkedCrossEntropy(nn.Module):
    def __init__(self, num_output_chunks=8):
        super().__init__()
        self.num_output_chunks = num_output_chunks

    def forward(self, logits, labels):
        total_elements = (labels != CROSS_ENTROPY_IGNORE_IDX).sum()
        total_loss = 0.0
        for logits_chunk, labels_chunk in zip(
            logits.chunk(self.num_output_chunks, dim=1),
            labels.chunk(self.num_output_chunks, dim=1),
            strict=True,
        ):
            total_loss += F.cross_entropy(
                logits_chunk.flatten(0, 1).float(),
                labels_chunk.flatten(),
                reduction="sum",
                ignore_index=CROSS_ENTROPY_IGNORE_IDX,
            )
        return total_loss / total_elements


def switch_fake_quant(model, enabled):
    for module in model.modules():
        if isinstance(module, FakeQuantizedLinear):
            module.activation_fake_quantizer.enabled = enabled
            module.weight_fake_quantizer.enabled = enabled
        elif isinstance(module, FakeQuantizedEmbedding):
            module.weight_fake_quantizer.enabled = enabled


class QATRecipe:
    def __init__(
        self, batch_size=2, gradient_accumulation_steps=2, fake_quant_after_n_steps=1, max_steps=6, lr=2e-5
    ):
        torch.manual_seed(0)
        self.device = torch.device("cuda")
        self.accumulation, self.fake_quant_after, self.max_steps = (
            gradient_accumulation_steps,
            fake_quant_after_n_steps,
            max_steps,
        )
        config = Qwen3Config(
            vocab_size=VOCAB,
            hidden_size=512,
            intermediate_size=1536,
            num_hidden_layers=4,
            num_attention_heads=8,
            num_key_value_heads=4,
            head_dim=64,
            max_position_embeddings=1024,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=IM_END,
        )
        model = Qwen3ForCausalLM(config).to(torch.bfloat16)
        self.linear_config = Int8DynamicActivationIntxWeightConfig(
            weight_dtype=torch.int4, weight_granularity=PerGroup(32)
        )
        self.embedding_config = IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=PerAxis(0))
        quantize_(model, QATConfig(self.linear_config, step="prepare"))
        quantize_(
            model,
            QATConfig(self.embedding_config, step="prepare"),
            filter_fn=lambda m, _: isinstance(m, nn.Embedding),
        )
        self.model = model.to(self.device)
        self.optimizer = CPUOffloadOptimizer(
            self.model.parameters(), torch.optim.AdamW, lr=lr, weight_decay=0.01, fused=True
        )
        self.lr = lr
        self.loss_fn = ChunkedCrossEntropy()
        self.loader = DataLoader(
            PackedDialogues(120, seed=3), batch_size, shuffle=True, drop_last=True, pin_memory=True
        )

    def set_lr(self, step, warmup=2):
        scale = (
            step / warmup
            if step < warmup
            else 0.5 * (1 + math.cos(math.pi * (step - warmup) / (self.max_steps - warmup)))
        )
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * scale

    def train(self):
        self.model.train()
        switch_fake_quant(self.model, False)
        step, running_loss, t0 = 0, 0.0, time.perf_counter()
        for index, batch in enumerate(self.loader):
            batch = {key: value.to(self.device, non_blocking=True) for key, value in batch.items()}
            if step == self.fake_quant_after and index % self.accumulation == 0:
                switch_fake_quant(self.model, True)
            labels = torch.hstack(
                (
                    batch["labels"][..., 1:],
                    torch.full_like(batch["labels"][..., :1], CROSS_ENTROPY_IGNORE_IDX),
                )
            )
            logits = self.model(batch["tokens"], use_cache=False).logits
            loss = self.loss_fn(logits, labels)
            del logits
            loss = loss / self.accumulation
            running_loss += loss.detach()
            loss.backward()
            if (index + 1) % self.accumulation:
                continue
            self.set_lr(step + 1)
            self.optimizer.step()
            self.optimizer.zero_grad()
            step += 1
            print(f"step {step} loss {running_loss.item():.3f} {time.perf_counter() - t0:.1f} s")
            end_of_step(inputs=[batch, labels], activations=[loss, running_loss])
            running_loss, t0 = 0.0, time.perf_counter()
            if step == self.max_steps:
                return

    def save(self, path="qat.pt"):
        self.model.cpu()
        quantize_(
            self.model,
            QATConfig(self.embedding_config, step="convert"),
            filter_fn=lambda m, _: isinstance(m, FakeQuantizedEmbedding),
        )
        quantize_(self.model, QATConfig(self.linear_config, step="convert"))
        torch.save(self.model.state_dict(), path)


if __name__ == "__main__":
    recipe = QATRecipe()
    recipe.train()
    recipe.save()
