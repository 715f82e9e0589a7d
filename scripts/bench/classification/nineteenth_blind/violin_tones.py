"""A DDSP autoencoder learns the sound of a violin: recordings on the GPU, a GRU steers harmonics, filtered noise and a reverb, a multi-scale spectral loss, SOAP, exponential decay, float32."""

import math

import torch
import torchaudio
from programs import end_of_step
from pytorch_optimizer import SOAP
from torch import nn
from torch.nn import functional as F

RATE, BLOCK, SECONDS = 16000, 160, 1
FRAMES = RATE * SECONDS // BLOCK
device = "cuda"


def recordings(n):
    """Bowed notes with vibrato: the wave, and pitch and loudness at every block."""
    time = torch.arange(RATE * SECONDS) / RATE
    pitch = (
        196
        * 2 ** (torch.randint(0, 30, (n, 1)) / 12)
        * (1 + 0.006 * torch.sin(2 * math.pi * 5.5 * time + torch.rand(n, 1)))
    )
    phase = 2 * math.pi * pitch.cumsum(1) / RATE
    wave = sum(torch.sin(k * phase) * 0.6**k for k in range(1, 9))
    envelope = (time / 0.08).clamp(max=1) * torch.exp(-0.4 * time)
    wave = 0.5 * wave * envelope + 0.003 * torch.randn(n, len(time))
    loudness = wave.unfold(1, BLOCK, BLOCK).pow(2).mean(-1).add(1e-7).log()
    return wave, pitch[:, ::BLOCK].contiguous(), loudness


def mlp(inside, hidden, layers=3):
    parts = []
    for n in range(layers):
        parts += [nn.Linear(inside if n == 0 else hidden, hidden), nn.LayerNorm(hidden), nn.LeakyReLU()]
    return nn.Sequential(*parts)


class Encoder(nn.Module):
    """What is neither pitch nor loudness, from MFCCs."""

    def __init__(self, hidden=256, size=16):
        super().__init__()
        self.mfcc = torchaudio.transforms.MFCC(
            RATE, n_mfcc=30, melkwargs={"n_fft": 1024, "hop_length": 256, "n_mels": 64, "f_min": 20.0}
        )
        self.norm = nn.InstanceNorm1d(30, affine=True)
        self.gru = nn.GRU(30, hidden, batch_first=True)
        self.out = nn.Linear(hidden, size)

    def forward(self, wave):
        x = self.norm(self.mfcc(wave)).transpose(1, 2)
        z = self.out(self.gru(x)[0])
        return F.interpolate(z.transpose(1, 2), size=FRAMES, mode="linear").transpose(1, 2)


class Decoder(nn.Module):
    def __init__(self, hidden=384, harmonics=50, bands=65, size=16):
        super().__init__()
        self.pitch, self.loudness, self.rest = mlp(1, hidden), mlp(1, hidden), mlp(size, hidden)
        self.gru = nn.GRU(3 * hidden, hidden, batch_first=True)
        self.mixed = mlp(hidden + 2, hidden)
        self.harmonics = nn.Linear(hidden, harmonics + 1)
        self.noise = nn.Linear(hidden, bands)

    def forward(self, pitch, loudness, z):
        x = torch.cat([self.pitch(pitch), self.loudness(loudness), self.rest(z)], -1)
        x = torch.cat([self.gru(x)[0], pitch, loudness], -1)
        x = self.mixed(x)
        return scaled(self.harmonics(x)), scaled(self.noise(x) - 5)


def scaled(x):
    return 2 * torch.sigmoid(x) ** math.log(10) + 1e-7


class Harmonics(nn.Module):
    def forward(self, amplitudes, pitch):
        total, shares = amplitudes[..., :1], amplitudes[..., 1:]
        count = torch.arange(1, shares.shape[-1] + 1, device=pitch.device)
        shares = shares * (pitch * count < RATE / 2).float()
        shares = total * shares / (shares.sum(-1, keepdim=True) + 1e-7)
        shares = F.interpolate(shares.transpose(1, 2), scale_factor=BLOCK, mode="linear").transpose(1, 2)
        pitch = F.interpolate(pitch.transpose(1, 2), scale_factor=BLOCK, mode="linear").transpose(1, 2)
        phase = torch.cumsum(2 * math.pi * pitch / RATE, 1)
        return (torch.sin(phase * count) * shares).sum(-1)


class FilteredNoise(nn.Module):
    def forward(self, bands):
        impulse = torch.fft.irfft(torch.complex(bands, torch.zeros_like(bands)))
        size = impulse.shape[-1]
        impulse = torch.roll(impulse, size // 2, -1) * torch.hann_window(size, device=bands.device)
        impulse = F.pad(impulse, (0, BLOCK))
        noise = torch.rand(*bands.shape[:2], BLOCK, device=bands.device) * 2 - 1
        noise = F.pad(noise, (0, impulse.shape[-1] - BLOCK))
        sound = torch.fft.irfft(torch.fft.rfft(noise) * torch.fft.rfft(impulse), n=impulse.shape[-1])
        return sound[..., :BLOCK].reshape(len(bands), -1)


class Reverb(nn.Module):
    def __init__(self, length=RATE // 2):
        super().__init__()
        self.impulse = nn.Parameter((torch.rand(length) * 2 - 1) * 1e-2)
        self.decay = nn.Parameter(torch.tensor(5.0))
        self.wet = nn.Parameter(torch.tensor(0.0))
        self.register_buffer("time", torch.arange(length) / RATE)

    def forward(self, wave):
        impulse = (
            self.impulse * torch.exp(-F.softplus(-self.decay) * self.time * 500) * torch.sigmoid(self.wet)
        )
        impulse = torch.cat([torch.ones_like(impulse[:1]), impulse[1:]])
        size = wave.shape[-1] + len(impulse)
        return torch.fft.irfft(torch.fft.rfft(wave, size) * torch.fft.rfft(impulse, size), size)[
            ..., : wave.shape[-1]
        ]


class Violin(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = Encoder(), Decoder()
        self.harmonics, self.noise, self.reverb = Harmonics(), FilteredNoise(), Reverb()

    def forward(self, wave, pitch, loudness):
        pitch, loudness = pitch[..., None], loudness[..., None]
        z = self.encoder(wave)
        amplitudes, bands = self.decoder((pitch / 440).log2(), loudness, z)
        return self.reverb(self.harmonics(amplitudes, pitch) + self.noise(bands))


class SpectralLoss(nn.Module):
    def __init__(self, sizes=(2048, 1024, 512, 256, 128, 64)):
        super().__init__()
        self.spectra = nn.ModuleList(
            torchaudio.transforms.Spectrogram(n, hop_length=n // 4, power=1) for n in sizes
        )

    def forward(self, made, wanted):
        loss = 0
        for spectrum in self.spectra:
            a, b = spectrum(made), spectrum(wanted)
            loss = loss + (a - b).abs().mean() + (torch.log(a + 1e-7) - torch.log(b + 1e-7)).abs().mean()
        return loss


def main():
    torch.manual_seed(1)
    waves, pitches, loudness = (x.to(device) for x in recordings(160))
    loudness = (loudness - loudness.mean()) / loudness.std()
    model = Violin().to(device)
    loss_function = SpectralLoss().to(device)
    optimizer = SOAP(
        model.parameters(), lr=1e-3, weight_decay=0.0, precondition_frequency=10, max_precondition_dim=512
    )
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98 ** (1 / 100))
    size, average = 4, None
    for step in range(2000):
        chosen = torch.randint(len(waves), (size,), device=device)
        wave, pitch, loud = waves[chosen], pitches[chosen], loudness[chosen]
        made = model(wave, pitch, loud)
        loss = loss_function(made, wave)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 3.0)
        optimizer.step()
        scheduler.step()
        average = loss.item() if average is None else 0.99 * average + 0.01 * loss.item()
        if step % 100 == 0:
            print(f"{step}: {average:.3f}")
        end_of_step(inputs=[waves, pitches, loudness, chosen, wave, pitch, loud], activations=[made, loss])


if __name__ == "__main__":
    main()
