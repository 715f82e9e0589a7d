"""An audio spectrogram transformer hears several events at once: spectra are made and masked on the device, in half precision."""

import torch
from programs import end_of_step
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import ASTConfig, ASTForAudioClassification


class Sounds(Dataset):
    def __init__(self, n, n_classes):
        self.n, self.n_classes = n, n_classes

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return torch.randn(16000), (torch.rand(self.n_classes) < 0.05).float()


class MelSpectrogram(nn.Module):
    def __init__(self, n_fft=400, hop=160, n_mels=64):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.hann_window(n_fft))
        self.register_buffer("filters", torch.rand(n_fft // 2 + 1, n_mels))

    def forward(self, wave):
        spectrum = torch.stft(wave, self.n_fft, self.hop, window=self.window, return_complex=True)
        mel = (spectrum.abs().square().transpose(1, 2) @ self.filters).clamp(min=1e-10).log()
        return (mel - mel.mean((1, 2), keepdim=True)) / (2 * mel.std((1, 2), keepdim=True))


def spec_augment(mel, n_times=16, n_bands=8):
    mel = mel.clone()
    start = int(torch.randint(0, mel.shape[1] - n_times, ()))
    mel[:, start : start + n_times] = 0
    start = int(torch.randint(0, mel.shape[2] - n_bands, ()))
    mel[:, :, start : start + n_bands] = 0
    return mel


def main(n_classes=80, device="cuda"):
    torch.manual_seed(86)
    config = ASTConfig(
        hidden_size=216,
        num_hidden_layers=5,
        num_attention_heads=6,
        intermediate_size=864,
        patch_size=16,
        frequency_stride=10,
        time_stride=10,
        max_length=101,
        num_mel_bins=64,
        num_labels=n_classes,
    )
    model, features = ASTForAudioClassification(config).to(device), MelSpectrogram().to(device)
    head = [p for n, p in model.named_parameters() if n.startswith("classifier")]
    body = [p for n, p in model.named_parameters() if not n.startswith("classifier")]
    optimizer = torch.optim.Adam(
        [{"params": body, "lr": 1e-5}, {"params": head, "lr": 1e-3}], weight_decay=5e-7
    )
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4], gamma=0.5)
    scaler = torch.amp.GradScaler()
    criterion = nn.BCEWithLogitsLoss()
    loader = DataLoader(Sounds(60, n_classes), batch_size=10, pin_memory=False)
    model.train()
    for wave, events in loader:
        wave, events = wave.to(device), events.to(device)
        with torch.no_grad():
            mel = spec_augment(features(wave))
        with torch.autocast(device_type="cuda", dtype=torch.float16):
            logits = model(input_values=mel).logits
            loss = criterion(logits, events)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        print(loss.item(), scaler.get_scale())
        end_of_step(inputs=[wave, events, mel], activations=[logits, loss])


if __name__ == "__main__":
    main()
