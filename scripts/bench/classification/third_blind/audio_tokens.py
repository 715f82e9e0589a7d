"""Sound becomes tokens of three codebooks in a row, each an average of what it stood for; spectra are compared."""

import torch
import torch.nn.functional as F
from programs import end_of_step
from torch import nn


class Codebook(nn.Module):
    def __init__(self, n_codes=512, dim=96, decay=0.99):
        super().__init__()
        self.decay = decay
        embed = torch.randn(n_codes, dim)
        self.register_buffer("embed", embed)
        self.register_buffer("embed_avg", embed.clone())
        self.register_buffer("cluster_size", torch.ones(n_codes))

    @torch.no_grad()
    def update(self, flat, codes):
        onehot = F.one_hot(codes, len(self.embed)).type(flat.dtype)
        self.cluster_size.mul_(self.decay).add_(onehot.sum(0), alpha=1 - self.decay)
        self.embed_avg.mul_(self.decay).add_(onehot.t() @ flat, alpha=1 - self.decay)
        n = self.cluster_size.sum()
        smoothed = (self.cluster_size + 1e-5) / (n + len(self.embed) * 1e-5) * n
        self.embed.copy_(self.embed_avg / smoothed.unsqueeze(1))

    def forward(self, x):
        flat = x.detach().reshape(-1, x.shape[-1])
        distance = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ self.embed.t() + self.embed.pow(2).sum(1)
        codes = distance.argmin(-1)
        quantized = F.embedding(codes, self.embed).view_as(x)
        if self.training:
            self.update(flat, codes)
        return x + (quantized - x).detach(), F.mse_loss(x, quantized.detach()), codes.view(x.shape[:-1])


class ResidualUnit(nn.Module):
    def __init__(self, n, dilation):
        super().__init__()
        self.layers = nn.Sequential(
            nn.ELU(),
            nn.Conv1d(n, n, 7, padding=3 * dilation, dilation=dilation),
            nn.ELU(),
            nn.Conv1d(n, n, 1),
        )

    def forward(self, x):
        return x + self.layers(x)


class Codec(nn.Module):
    def __init__(self, widths=(24, 48, 96), strides=(4, 5), n_codebooks=3):
        super().__init__()
        encoder, decoder = [nn.Conv1d(1, widths[0], 7, padding=3)], []
        for a, b, s in zip(widths, widths[1:], strides):
            encoder += [ResidualUnit(a, 1), ResidualUnit(a, 3), nn.ELU(), nn.Conv1d(a, b, 2 * s, s, s // 2)]
            decoder = [
                nn.ELU(),
                nn.ConvTranspose1d(b, a, 2 * s, s, (s + 1) // 2, output_padding=s % 2),
                ResidualUnit(a, 1),
                ResidualUnit(a, 3),
                *decoder,
            ]
        self.encoder = nn.Sequential(*encoder)
        self.codebooks = nn.ModuleList(Codebook(dim=widths[-1]) for _ in range(n_codebooks))
        self.decoder = nn.Sequential(*decoder, nn.ELU(), nn.Conv1d(widths[0], 1, 7, padding=3))

    def forward(self, sound):
        residual = self.encoder(sound).transpose(1, 2)
        total, commit, tokens = torch.zeros_like(residual), 0.0, []
        for codebook in self.codebooks:
            quantized, loss, codes = codebook(residual)
            residual = residual - quantized.detach()
            total = total + quantized
            commit = commit + loss
            tokens.append(codes)
        return self.decoder(total.transpose(1, 2)), commit, torch.stack(tokens, 1)


class SpectralLoss(nn.Module):
    def __init__(self, sizes=(512, 256, 128)):
        super().__init__()
        self.sizes = sizes
        for n in sizes:
            self.register_buffer(f"window_{n}", torch.hann_window(n))

    def spectrum(self, x, n):
        window = getattr(self, f"window_{n}")
        return torch.stft(x.squeeze(1), n, n // 4, window=window, return_complex=True).abs()

    def forward(self, x, y):
        loss = 0.0
        for n in self.sizes:
            a, b = self.spectrum(x, n), self.spectrum(y, n)
            loss = loss + F.l1_loss(a, b) + F.l1_loss(torch.log(a + 1e-5), torch.log(b + 1e-5))
        return loss


torch.manual_seed(73)
codec = Codec().to("cuda")
spectral = SpectralLoss().to("cuda")
optimizer = torch.optim.AdamW(codec.parameters(), lr=3e-4, betas=(0.8, 0.99))
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.999)
codec.train()
for step in range(4):
    sound = torch.randn(4, 1, 8000).to("cuda")
    again, commit, tokens = codec(sound)
    again = again[..., : sound.shape[-1]]
    loss = F.l1_loss(again, sound[..., : again.shape[-1]]) + 0.25 * commit
    loss = loss + spectral(again, sound[..., : again.shape[-1]])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    print(step, loss.item(), tokens.unique().numel())
    end_of_step(inputs=[sound], activations=[again, commit, tokens, loss])
