"""A SigLIP sees a batch that would not fit: vectors of all first, their gradients are kept, then every part runs again (GradCache)."""

import math
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from programs import end_of_step
from torch import nn
from torch.utils.checkpoint import get_device_states, set_device_states
from torch.utils.data import DataLoader, Dataset
from transformers import SiglipConfig, SiglipTextConfig, SiglipVisionConfig
from transformers.models.siglip import SiglipModel

BATCH, CHUNK, SIZE, LENGTH, VOCABULARY = 12, 4, 64, 24, 14000


class RandContext:
    """The second forward of a part draws the same random numbers as the first."""

    def __init__(self, *tensors):
        self.fwd_cpu_state = torch.get_rng_state()
        self.fwd_gpu_devices, self.fwd_gpu_states = get_device_states(*tensors)

    def __enter__(self):
        self._fork = torch.random.fork_rng(devices=self.fwd_gpu_devices, enabled=True)
        self._fork.__enter__()
        torch.set_rng_state(self.fwd_cpu_state)
        set_device_states(self.fwd_gpu_devices, self.fwd_gpu_states)

    def __exit__(self, *exc):
        self._fork.__exit__(*exc)


class Pairs(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        n_words = int(torch.randint(5, LENGTH, ()))
        words = torch.ones(LENGTH, dtype=torch.long)  # SigLIP pads with its last word and attends to all
        words[:n_words] = torch.randint(5, VOCABULARY, (n_words,))
        return torch.rand(3, SIZE, SIZE) * 2 - 1, words


def build_model():
    text = SiglipTextConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=LENGTH,
        projection_size=256,
        attention_dropout=0.1,
    )
    vision = SiglipVisionConfig(
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=4,
        image_size=SIZE,
        patch_size=16,
        attention_dropout=0.1,
    )
    return SiglipModel(SiglipConfig(text_config=text.to_dict(), vision_config=vision.to_dict()))


class GradCache:
    def __init__(self, model, chunk_size, device):
        self.model, self.chunk_size, self.device = model, chunk_size, device

    def embed(self, kind, chunk):
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            if kind == "image":
                pooled = self.model.vision_model(pixel_values=chunk).pooler_output
            else:
                pooled = self.model.text_model(input_ids=chunk).pooler_output
        return F.normalize(pooled.float(), dim=-1)

    def forward_no_grad(self, kind, inputs):
        states, found = [], []
        with torch.no_grad():
            for chunk in inputs.split(self.chunk_size):
                states.append(RandContext(chunk))
                found.append(self.embed(kind, chunk))
        return torch.cat(found), states

    def build_cache(self, images, texts):
        """The loss of the whole batch, and its gradients by the vectors alone (and by scale and bias)."""
        images, texts = images.detach().requires_grad_(), texts.detach().requires_grad_()
        logits = texts @ images.t() * self.model.logit_scale.exp() + self.model.logit_bias
        signs = 2 * torch.eye(len(logits), device=logits.device) - 1
        loss = -F.logsigmoid(signs * logits).sum(dim=-1).mean()
        loss.backward()
        return loss.detach(), images.grad, texts.grad

    def forward_backward(self, kind, inputs, cached, states):
        chunks = zip(inputs.split(self.chunk_size), cached.split(self.chunk_size), states)
        for chunk, gradient, state in chunks:
            with state or nullcontext():
                found = self.embed(kind, chunk)
            surrogate = torch.dot(found.flatten(), gradient.flatten())
            surrogate.backward()

    def __call__(self, images, texts):
        image_vectors, image_states = self.forward_no_grad("image", images)
        text_vectors, text_states = self.forward_no_grad("text", texts)
        loss, image_cache, text_cache = self.build_cache(image_vectors, text_vectors)
        self.forward_backward("image", images, image_cache, image_states)
        self.forward_backward("text", texts, text_cache, text_states)
        return loss


def main(steps=5, lr=1e-3, warmup=2):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(408)
    model = build_model().to(device).train()
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=lr,
        betas=(0.9, 0.95),
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / warmup, 0.5 * (1 + math.cos(math.pi * step / steps))),
    )
    step_of = GradCache(model, CHUNK, device)
    loader = DataLoader(Pairs(BATCH * steps), batch_size=BATCH, drop_last=True)
    for step, (images, texts) in enumerate(loader):
        images, texts = images.to(device), texts.to(device)
        optimizer.zero_grad(set_to_none=True)
        loss = step_of(images, texts)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        print(f"{step}: loss {loss.item():.4f}, norm {norm.item():.3f}")
        end_of_step(inputs=[images, texts], activations=loss)


if __name__ == "__main__":
    main()
