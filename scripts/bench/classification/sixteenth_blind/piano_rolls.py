"""Transcription of piano recordings with Onsets and Frames: log-mel spectra on the GPU, convolutions and LSTMs, Adam, clipped."""

import numpy as np
import torch
import torch.nn.functional as F
import torchaudio
from programs import end_of_step, tell
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, Dataset

SAMPLE_RATE = 16000
HOP_LENGTH = 512
N_MELS = 229
N_KEYS = 88
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

iterations = 50000
validation_interval = 500
checkpoint_interval = 1000
batch_size = 3
sequence_length = 128 * HOP_LENGTH
model_complexity = 24
learning_rate = 6e-4
clip_gradient_norm = 3

torch.manual_seed(42)
np.random.seed(42)


class PianoRollDataset(Dataset):
    """Recordings in memory as 16-bit samples, with one label per key and hop: 3 onset, 2 held, 1 released."""

    def __init__(self, n_recordings, sequence_length, device, seed=42):
        self.sequence_length = sequence_length
        self.device = device
        self.random = np.random.RandomState(seed)
        self.data = [self.load(60 * HOP_LENGTH * 10 + 1000 * i) for i in range(n_recordings)]

    def load(self, n_samples):
        n_steps = (n_samples - 1) // HOP_LENGTH + 1
        label = torch.zeros(n_steps, N_KEYS, dtype=torch.uint8)
        velocity = torch.zeros(n_steps, N_KEYS, dtype=torch.uint8)
        time = torch.arange(n_samples) / SAMPLE_RATE
        audio = torch.zeros(n_samples)
        for _ in range(40):
            key, begin = self.random.randint(N_KEYS), self.random.randint(n_steps - 12)
            end = begin + self.random.randint(4, 12)
            label[begin, key], label[begin + 1 : end, key], label[end, key] = 3, 2, 1
            velocity[begin:end, key] = self.random.randint(30, 110)
            tone = slice(begin * HOP_LENGTH, end * HOP_LENGTH)
            audio[tone] += 0.1 * torch.sin(2 * np.pi * 27.5 * 2 ** (key / 12) * time[tone])
        return dict(audio=(audio.clamp(-1, 1) * 32767).short(), label=label, velocity=velocity)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        data = self.data[index]
        step_begin = self.random.randint(len(data["audio"]) - self.sequence_length) // HOP_LENGTH
        n_steps = self.sequence_length // HOP_LENGTH
        begin = step_begin * HOP_LENGTH
        result = {
            "audio": data["audio"][begin : begin + self.sequence_length]
            .to(self.device)
            .float()
            .div_(32768.0),
            "label": data["label"][step_begin : step_begin + n_steps].to(self.device),
            "velocity": data["velocity"][step_begin : step_begin + n_steps].to(self.device),
        }
        result["onset"] = (result["label"] == 3).float()
        result["frame"] = (result["label"] > 1).float()
        result["velocity"] = result["velocity"].float().div_(128.0)
        return result


class ConvStack(nn.Module):
    def __init__(self, n_features, out_features):
        super().__init__()
        self.cnn = nn.Sequential(
            nn.Conv2d(1, out_features // 16, 3, padding=1),
            nn.BatchNorm2d(out_features // 16),
            nn.ReLU(),
            nn.Conv2d(out_features // 16, out_features // 16, 3, padding=1),
            nn.BatchNorm2d(out_features // 16),
            nn.ReLU(),
            nn.MaxPool2d((1, 2)),
            nn.Dropout(0.25),
            nn.Conv2d(out_features // 16, out_features // 8, 3, padding=1),
            nn.BatchNorm2d(out_features // 8),
            nn.ReLU(),
            nn.MaxPool2d((1, 2)),
            nn.Dropout(0.25),
        )
        self.fc = nn.Sequential(
            nn.Linear(out_features // 8 * (n_features // 4), out_features), nn.Dropout(0.5)
        )

    def forward(self, mel):
        x = self.cnn(mel.unsqueeze(1))
        return self.fc(x.transpose(1, 2).flatten(-2))


class OnsetsAndFrames(nn.Module):
    def __init__(self, n_features, n_keys, complexity):
        super().__init__()
        size = complexity * 16
        self.onset_conv = ConvStack(n_features, size)
        self.onset_rnn = nn.LSTM(size, size // 2, batch_first=True, bidirectional=True)
        self.onset_out = nn.Linear(size, n_keys)
        self.frame_conv = ConvStack(n_features, size)
        self.frame_out = nn.Linear(size, n_keys)
        self.combined_rnn = nn.LSTM(n_keys * 2, size // 2, batch_first=True, bidirectional=True)
        self.combined_out = nn.Linear(size, n_keys)
        self.velocity_conv = ConvStack(n_features, size // 2)
        self.velocity_out = nn.Linear(size // 2, n_keys)

    def forward(self, mel):
        onset = torch.sigmoid(self.onset_out(self.onset_rnn(self.onset_conv(mel))[0]))
        activation = torch.sigmoid(self.frame_out(self.frame_conv(mel)))
        combined = torch.cat([onset.detach(), activation], dim=-1)
        frame = torch.sigmoid(self.combined_out(self.combined_rnn(combined)[0]))
        velocity = self.velocity_out(self.velocity_conv(mel))
        return onset, frame, velocity

    def run_on_batch(self, batch, melspectrogram):
        mel = melspectrogram(batch["audio"][:, :-1]).clamp(min=1e-5).log().transpose(-1, -2)
        onset, frame, velocity = self(mel[:, : batch["label"].shape[1]])
        predictions = {"onset": onset, "frame": frame, "velocity": velocity}
        losses = {
            "loss/onset": F.binary_cross_entropy(onset, batch["onset"]),
            "loss/frame": F.binary_cross_entropy(frame, batch["frame"]),
            "loss/velocity": self.velocity_loss(velocity, batch["velocity"], batch["onset"]),
        }
        return predictions, losses

    @staticmethod
    def velocity_loss(predicted, target, onset):
        denominator = onset.sum()
        if denominator.item() == 0:
            return denominator
        return (onset * (target - predicted) ** 2).sum() / denominator


def cycle(iterable):
    while True:
        yield from iterable


def evaluate(data, model, melspectrogram):
    scores = []
    for example in data:
        batch = {name: value.unsqueeze(0) for name, value in example.items()}
        tell(inputs=batch)
        predictions, losses = model.run_on_batch(batch, melspectrogram)
        found, wanted = predictions["frame"] > 0.5, batch["frame"] > 0.5
        hits = (found & wanted).sum().item()
        scores.append(
            (2 * hits / max(1, found.sum().item() + wanted.sum().item()), losses["loss/frame"].item())
        )
    return np.mean(scores, axis=0)


training = PianoRollDataset(12, sequence_length, DEVICE)
validation = PianoRollDataset(2, sequence_length, DEVICE, seed=7)
loader = DataLoader(training, batch_size, shuffle=True, drop_last=True)

melspectrogram = torchaudio.transforms.MelSpectrogram(
    SAMPLE_RATE, n_fft=2048, hop_length=HOP_LENGTH, f_min=30, f_max=SAMPLE_RATE // 2, n_mels=N_MELS, power=1.0
).to(DEVICE)
model = OnsetsAndFrames(N_MELS, N_KEYS, model_complexity).to(DEVICE)
optimizer = torch.optim.Adam(model.parameters(), learning_rate)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10000, gamma=0.98)

for i, batch in zip(range(iterations), cycle(loader)):
    if i % validation_interval == 0:
        model.eval()
        with torch.no_grad():
            f1, frame_loss = evaluate(validation, model, melspectrogram)
        print(f"{i}: validation f1 {f1:.3f}, frame loss {frame_loss:.3f}")
        model.train()

    predictions, losses = model.run_on_batch(batch, melspectrogram)
    loss = sum(losses.values())
    optimizer.zero_grad()
    loss.backward()
    clip_grad_norm_(model.parameters(), clip_gradient_norm)
    optimizer.step()
    scheduler.step()
    if i % 10 == 0:
        print(i, {name: round(value.item(), 4) for name, value in losses.items()})
    if i % checkpoint_interval == checkpoint_interval - 1:
        torch.save(model.state_dict(), f"model-{i + 1}.pt")
    end_of_step(inputs=batch, activations=[predictions, losses, loss])
