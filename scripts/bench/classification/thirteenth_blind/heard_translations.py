"""English talks become German text by a Speech2Text transformer, as fairseq trains it on MuST-C: filter banks, means of an utterance and SpecAugment on the device, smoothed labels, Accelerate in half precision, two batches to a step, translations drawn between."""

import math

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from programs import end_of_step, tell
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import Speech2TextConfig, Speech2TextForConditionalGeneration

RATE, N_FFT, WIN, HOP, N_MELS = 16000, 512, 400, 160, 80
VOCAB, BOS, PAD, EOS = 8000, 0, 1, 2


class Talks(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        for seconds in (1.0 + 1.8 * torch.rand(n, generator=g)).tolist():
            wave = 0.1 * torch.randn(int(RATE * seconds), generator=g)
            words = torch.randint(4, VOCAB, (int(seconds * 7),), generator=g)
            self.items.append((wave, words))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(items):
    waves, words = zip(*items, strict=True)
    return {
        "waves": nn.utils.rnn.pad_sequence(waves, batch_first=True),
        "n_samples": torch.tensor([len(w) for w in waves]),
        "labels": nn.utils.rnn.pad_sequence(
            [F.pad(w, (0, 1), value=EOS) for w in words], batch_first=True, padding_value=PAD
        ),
    }


def mel_filters():
    edges = torch.linspace(0, 1127 * math.log(1 + RATE / 2 / 700), N_MELS + 2)
    edges = 700 * ((edges / 1127).exp() - 1)
    bins = torch.linspace(0, RATE / 2, N_FFT // 2 + 1)[:, None]
    up = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    down = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    return torch.minimum(up, down).clamp(min=0)


class Frontend(nn.Module):
    def __init__(self, freq_mask=27, time_mask=40, n_masks=2):
        super().__init__()
        self.freq_mask, self.time_mask, self.n_masks = freq_mask, time_mask, n_masks
        self.register_buffer("window", torch.hann_window(WIN))
        self.register_buffer("fbank", mel_filters())

    def augment(self, x):
        for _ in range(self.n_masks):
            for dim, most in ((2, self.freq_mask), (1, min(self.time_mask, x.shape[1] // 4))):
                width = torch.rand(len(x), 1, device=x.device) * most
                start = torch.rand(len(x), 1, device=x.device) * (x.shape[dim] - width)
                at = torch.arange(x.shape[dim], device=x.device)
                hidden = (at >= start) & (at < start + width)
                x = x.masked_fill(hidden[:, None] if dim == 2 else hidden[..., None], 0.0)
        return x

    @torch.no_grad()
    def forward(self, waves, n_samples):
        spec = torch.stft(waves, N_FFT, HOP, WIN, self.window, return_complex=True)
        feats = (spec.abs().pow(2).transpose(1, 2) @ self.fbank).clamp(min=1e-6).log()
        n_frames = n_samples // HOP + 1
        mask = torch.arange(feats.shape[1], device=feats.device) < n_frames[:, None]
        valid = mask[..., None]
        mean = (feats * valid).sum(1, keepdim=True) / n_frames[:, None, None]
        std = (((feats - mean) * valid).pow(2).sum(1, keepdim=True) / n_frames[:, None, None]).sqrt()
        feats = ((feats - mean) / (std + 1e-5)) * valid
        if self.training:
            feats = self.augment(feats)
        return feats, mask.long()


def label_smoothed_nll(logits, target, epsilon=0.1):
    lprobs = F.log_softmax(logits.float(), dim=-1)
    nll = -lprobs.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    smooth = -lprobs.mean(-1)
    counted = target != PAD
    return ((1 - epsilon) * nll + epsilon * smooth)[counted].sum() / counted.sum()


def tell_of_cache(module, args, output):
    cache = output.past_key_values
    if cache is not None:
        layers = [*cache.self_attention_cache.layers, *cache.cross_attention_cache.layers]
        tell(caches=[(layer.keys, layer.values) for layer in layers if layer.is_initialized])


@torch.no_grad()
def translate(model, frontend, loader):
    model.eval()
    frontend.eval()
    right = total = 0
    hook = model.register_forward_hook(tell_of_cache)
    for batch in loader:
        feats, mask = frontend(batch["waves"], batch["n_samples"])
        tell(inputs=[batch, feats, mask])
        words = model.generate(feats, attention_mask=mask, max_new_tokens=10, num_beams=2)[:, 1:]
        n = min(words.shape[1], batch["labels"].shape[1])
        same = (words[:, :n] == batch["labels"][:, :n]) & (batch["labels"][:, :n] != PAD)
        right, total = right + same.sum().item(), total + (batch["labels"] != PAD).sum().item()
    hook.remove()
    model.train()
    frontend.train()
    return right / total


def main():
    fp16 = "fp16" if torch.cuda.is_available() else "no"
    accelerator = Accelerator(mixed_precision=fp16, gradient_accumulation_steps=2)
    set_seed(1304)
    config = Speech2TextConfig(
        vocab_size=VOCAB,
        d_model=256,
        encoder_layers=6,
        decoder_layers=3,
        encoder_ffn_dim=1024,
        decoder_ffn_dim=1024,
        conv_channels=512,
        encoder_layerdrop=0.0,
        max_source_positions=600,
        max_target_positions=64,
        decoder_start_token_id=EOS,
    )
    model = Speech2TextForConditionalGeneration(config)
    frontend = Frontend().to(accelerator.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.9, 0.98))
    warmup = 4
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda n: min((n + 1) / warmup, math.sqrt(warmup / (n + 1)))
    )
    train_loader = DataLoader(Talks(24, 1), batch_size=4, shuffle=True, collate_fn=collate)
    dev_loader = DataLoader(Talks(2, 2), batch_size=2, collate_fn=collate)
    model, optimizer, train_loader, dev_loader, scheduler = accelerator.prepare(
        model, optimizer, train_loader, dev_loader, scheduler
    )
    model.train()
    updates = 0
    for epoch in range(3):
        for batch in train_loader:
            with accelerator.accumulate(model):
                feats, mask = frontend(batch["waves"], batch["n_samples"])
                labels = batch["labels"]
                shifted = F.pad(labels, (1, 0), value=EOS)[:, :-1]
                out = model(feats, attention_mask=mask, decoder_input_ids=shifted, use_cache=False)
                loss = label_smoothed_nll(out.logits, labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 10.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            encoded = out.encoder_last_hidden_state
            held = {"inputs": [batch, feats, mask, shifted], "activations": [out.logits, encoded, loss]}
            if not accelerator.sync_gradients:
                tell(**held)
                continue
            updates += 1
            accelerator.print(f"update {updates}: loss {loss.item():.3f}")
            end_of_step(**held)
            if updates % 2 == 0:
                accuracy = translate(accelerator.unwrap_model(model), frontend, dev_loader)
                accelerator.print(f"epoch {epoch}, update {updates}: words in place {accuracy:.3f}")


if __name__ == "__main__":
    main()
