"""Speech on the phone is freed from noise as facebook's denoiser does it: a Demucs on the wave, noises exchanged and bands cut on the device, spectra compared at three resolutions, SI-SNR of others between."""

import random

import torch
import torch.nn.functional as F
from programs import end_of_step, tell
from torch import nn
from torch.utils.data import DataLoader, Dataset

SAMPLE_RATE, SEGMENT = 16000, 0.75


class NoisyCleanSet(Dataset):
    def __init__(self, n, seed):
        self.n, self.seed, self.length = n, seed, int(SAMPLE_RATE * SEGMENT)

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        g = torch.Generator().manual_seed(1000 * self.seed + index)
        t = torch.arange(self.length) / SAMPLE_RATE
        pitch = 90 + 150 * torch.rand((), generator=g)
        clean = sum(torch.sin(2 * torch.pi * pitch * k * t) / k for k in range(1, 8))
        clean = 0.1 * clean * (torch.sin(6 * t) > 0)
        return (clean + 0.05 * torch.randn(self.length, generator=g))[None], clean[None]


class Remix(nn.Module):
    """Noises of a batch change places."""

    def forward(self, sources):
        noise, clean = sources
        perm = torch.argsort(torch.rand(noise.shape[0], device=noise.device), dim=0)
        return torch.stack([noise[perm], clean])


class BandMask(nn.Module):
    """A band of frequencies is cut out of both, by two low-pass filters."""

    def __init__(self, maxwidth=0.2, half=64):
        super().__init__()
        self.maxwidth, self.half = maxwidth, half

    def lowpass(self, wav, cutoff):
        n = torch.arange(-self.half, self.half + 1, device=wav.device)
        window = torch.hann_window(2 * self.half + 1, periodic=False, device=wav.device)
        kernel = 2 * cutoff * torch.sinc(2 * cutoff * n) * window
        return F.conv1d(wav.flatten(0, 2)[:, None], (kernel / kernel.sum())[None, None], padding=self.half)

    def forward(self, wav):
        low = random.uniform(0.02, 0.3)
        band = self.lowpass(wav, low + self.maxwidth * random.random()) - self.lowpass(wav, low)
        return wav - band.view_as(wav)


class Demucs(nn.Module):
    def __init__(self, hidden=32, depth=5, kernel_size=8, stride=4, growth=2, floor=1e-3):
        super().__init__()
        self.depth, self.kernel_size, self.stride, self.floor = depth, kernel_size, stride, floor
        self.encoder, self.decoder = nn.ModuleList(), nn.ModuleList()
        chin = chout = 1
        for index in range(depth):
            down = nn.Conv1d(chin, hidden, kernel_size, stride)
            up = nn.ConvTranspose1d(hidden, chout, kernel_size, stride)
            wider = [nn.Conv1d(hidden, hidden * 2, 1) for _ in range(2)]
            self.encoder.append(nn.Sequential(down, nn.ReLU(), wider[0], nn.GLU(1)))
            decode = [wider[1], nn.GLU(1), up] + ([nn.ReLU()] if index > 0 else [])
            self.decoder.insert(0, nn.Sequential(*decode))
            chin = chout = hidden
            hidden *= growth
        self.lstm = nn.LSTM(chin, chin, num_layers=2)
        for layer in self.modules():
            if isinstance(layer, nn.Conv1d | nn.ConvTranspose1d):
                layer.weight.data /= (layer.weight.std().detach() / 0.1) ** 0.5

    def valid_length(self, length):
        for _ in range(self.depth):
            length = max(-(-(length - self.kernel_size) // self.stride) + 1, 1)
        for _ in range(self.depth):
            length = (length - 1) * self.stride + self.kernel_size
        return int(length)

    def forward(self, mix):
        std = mix.std(dim=-1, keepdim=True)
        length = mix.shape[-1]
        x = F.pad(mix / (self.floor + std), (0, self.valid_length(length) - length))
        skips = []
        for encode in self.encoder:
            x = encode(x)
            skips.append(x)
        x = self.lstm(x.permute(2, 0, 1))[0].permute(1, 2, 0)
        for decode in self.decoder:
            skip = skips.pop(-1)
            x = decode(x + skip[..., : x.shape[-1]])
        return std * x[..., :length]


class STFTLoss(nn.Module):
    def __init__(self, fft_size, shift_size, win_length):
        super().__init__()
        self.fft_size, self.shift_size, self.win_length = fft_size, shift_size, win_length
        self.register_buffer("window", torch.hann_window(win_length))

    def magnitude(self, x):
        x = torch.stft(x, self.fft_size, self.shift_size, self.win_length, self.window, return_complex=True)
        return torch.sqrt(torch.clamp(x.real**2 + x.imag**2, min=1e-7))

    def forward(self, x, y):
        x_mag, y_mag = self.magnitude(x), self.magnitude(y)
        convergence = torch.linalg.norm(y_mag - x_mag) / torch.linalg.norm(y_mag)
        return convergence + F.l1_loss(y_mag.log(), x_mag.log())


def si_snr(estimate, clean):
    target = (estimate * clean).sum(-1, keepdim=True) * clean / clean.pow(2).sum(-1, keepdim=True)
    return 10 * torch.log10(target.pow(2).sum(-1) / (estimate - target).pow(2).sum(-1)).mean()


class Solver:
    def __init__(self, epochs=4, batch_size=4):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = Demucs().to(self.device)
        self.augment = nn.Sequential(Remix(), BandMask()).to(self.device)
        resolutions = ((1024, 120, 600), (2048, 240, 1200), (512, 50, 240))
        self.mrstft = nn.ModuleList(STFTLoss(*each) for each in resolutions).to(self.device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-4, betas=(0.9, 0.999))
        self.tr_loader = DataLoader(NoisyCleanSet(12, 1), batch_size, shuffle=True)
        self.cv_loader = DataLoader(NoisyCleanSet(2, 2), 1)
        self.epochs, self.best_state, self.best = epochs, None, -1e9

    def train(self):
        for epoch in range(self.epochs):
            self.model.train()
            loss = self._run_one_epoch()
            self.model.eval()
            with torch.no_grad():
                snr = self._evaluate()
            print(f"Epoch {epoch + 1} | loss {loss:.4f} | SI-SNR {snr:.2f}")
            if snr > self.best:
                self.best = snr
                self.best_state = {k: v.cpu().clone() for k, v in self.model.state_dict().items()}

    def _run_one_epoch(self):
        total_loss = 0
        for data in self.tr_loader:
            noisy, clean = (x.to(self.device) for x in data)
            sources = torch.stack([noisy - clean, clean])
            tell(inputs=[noisy, clean, sources])
            sources = self.augment(sources)
            noise, clean = sources
            noisy = noise + clean
            estimate = self.model(noisy)
            loss = F.l1_loss(clean, estimate)
            for stft in self.mrstft:
                loss = loss + 0.1 * stft(estimate.squeeze(1), clean.squeeze(1))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total_loss += loss.item()
            end_of_step(inputs=[noisy, sources], activations=[estimate, loss])
        return total_loss / len(self.tr_loader)

    def _evaluate(self):
        snrs = []
        for data in self.cv_loader:
            noisy, clean = (x.to(self.device) for x in data)
            snrs.append(si_snr(self.model(noisy), clean).item())
        return sum(snrs) / len(snrs)


if __name__ == "__main__":
    torch.manual_seed(1203)
    random.seed(1203)
    Solver().train()
