"""Exchange rates are forecast by a TimesNet, as the Time-Series-Library trains it: periods are found by a Fourier transform, windows folded to pictures by them, half precision with a scaler, validation and early stopping by a checkpoint on disk."""

import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from programs import end_of_step
from torch.utils.data import DataLoader, Dataset

args = SimpleNamespace(
    seq_len=48,
    pred_len=24,
    enc_in=8,
    d_model=96,
    e_layers=2,
    top_k=2,
    num_kernels=4,
    dropout=0.1,
    batch_size=8,
    learning_rate=1e-4,
    use_amp=torch.cuda.is_available(),
    device=torch.device("cuda" if torch.cuda.is_available() else "cpu"),
    checkpoints=tempfile.mkdtemp(),
)


class DatasetCustom(Dataset):
    """Windows of eight currencies, with month, day, weekday and hour as numbers around zero."""

    def __init__(self, flag):
        rng = np.random.default_rng(1106)
        data = rng.normal(size=(400, args.enc_in)).cumsum(0)
        start, end = {"train": (0, 94), "val": (94, 181)}[flag]
        data = (data - data[:94].mean(0)) / data[:94].std(0)
        self.data_x = data[start:end]
        t = np.arange(start, end)
        self.data_stamp = np.stack([t // 30 % 12 / 11, t % 30 / 29, t % 7 / 6, 0 * t], axis=1) - 0.5

    def __len__(self):
        return len(self.data_x) - args.seq_len - args.pred_len + 1

    def __getitem__(self, index):
        s_end = index + args.seq_len
        r_begin, r_end = s_end - args.seq_len // 2, s_end + args.pred_len
        x, y = slice(index, s_end), slice(r_begin, r_end)
        return self.data_x[x], self.data_x[y], self.data_stamp[x], self.data_stamp[y]


class DataEmbedding(nn.Module):
    def __init__(self, c_in, d_model, dropout):
        super().__init__()
        self.value = nn.Conv1d(c_in, d_model, 3, padding=1, padding_mode="circular", bias=False)
        self.temporal = nn.Linear(4, d_model, bias=False)
        self.dropout = nn.Dropout(dropout)
        position = torch.arange(5000).float().unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2).float() * -(np.log(10000.0) / d_model))
        pe = torch.stack([torch.sin(position * div_term), torch.cos(position * div_term)], dim=2).flatten(1)
        self.register_buffer("pe", pe.unsqueeze(0))

    def forward(self, x, x_mark):
        values = self.value(x.permute(0, 2, 1)).transpose(1, 2)
        return self.dropout(values + self.temporal(x_mark) + self.pe[:, : x.size(1)])


class InceptionBlock(nn.Module):
    def __init__(self, in_channels, out_channels, num_kernels):
        super().__init__()
        self.kernels = nn.ModuleList(
            nn.Conv2d(in_channels, out_channels, kernel_size=2 * i + 1, padding=i) for i in range(num_kernels)
        )
        for conv in self.kernels:
            nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(conv.bias)

    def forward(self, x):
        return torch.stack([kernel(x) for kernel in self.kernels], dim=-1).mean(-1)


def fft_for_period(x, k):
    xf = torch.fft.rfft(x.float(), dim=1)
    frequency_list = abs(xf).mean(0).mean(-1)
    frequency_list[0] = 0
    _, top_list = torch.topk(frequency_list, k)
    top_list = top_list.detach().cpu().numpy()
    return x.shape[1] // top_list, abs(xf).mean(-1)[:, top_list]


class TimesBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            InceptionBlock(args.d_model, args.d_model, args.num_kernels),
            nn.GELU(),
            InceptionBlock(args.d_model, args.d_model, args.num_kernels),
        )

    def forward(self, x):
        B, T, N = x.size()
        period_list, period_weight = fft_for_period(x, args.top_k)
        res = []
        for period in period_list.tolist():
            padded = F.pad(x, (0, 0, 0, -T % period))
            out = padded.reshape(B, -1, period, N).permute(0, 3, 1, 2).contiguous()
            out = self.conv(out).permute(0, 2, 3, 1).reshape(B, -1, N)
            res.append(out[:, :T])
        weight = F.softmax(period_weight, dim=1)[:, None, None]
        return (torch.stack(res, dim=-1) * weight).sum(-1) + x


class TimesNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.ModuleList(TimesBlock() for _ in range(args.e_layers))
        self.enc_embedding = DataEmbedding(args.enc_in, args.d_model, args.dropout)
        self.layer_norm = nn.LayerNorm(args.d_model)
        self.predict_linear = nn.Linear(args.seq_len, args.pred_len + args.seq_len)
        self.projection = nn.Linear(args.d_model, args.enc_in)

    def forward(self, x_enc, x_mark_enc):
        means = x_enc.mean(1, keepdim=True).detach()
        x_enc = x_enc - means
        stdev = torch.sqrt(torch.var(x_enc, dim=1, keepdim=True, unbiased=False) + 1e-5)
        enc_out = self.enc_embedding(x_enc / stdev, x_mark_enc)
        enc_out = self.predict_linear(enc_out.permute(0, 2, 1)).permute(0, 2, 1)
        for block in self.model:
            enc_out = self.layer_norm(block(enc_out))
        return (self.projection(enc_out) * stdev + means)[:, -args.pred_len :]


def vali(model, loader, criterion):
    model.eval()
    total_loss = []
    with torch.no_grad():
        for batch_x, batch_y, batch_x_mark, _ in loader:
            outputs = model(batch_x.float().to(args.device), batch_x_mark.float().to(args.device))
            pred, true = outputs.detach().cpu(), batch_y[:, -args.pred_len :].float()
            total_loss.append(criterion(pred, true).item())
    model.train()
    return np.average(total_loss)


def train():
    train_loader = DataLoader(DatasetCustom("train"), args.batch_size, shuffle=True, drop_last=True)
    vali_loader = DataLoader(DatasetCustom("val"), args.batch_size, drop_last=True)
    model = TimesNet().float().to(args.device)
    model_optim = torch.optim.Adam(model.parameters(), lr=args.learning_rate)
    criterion, scaler = nn.MSELoss(), torch.amp.GradScaler(args.device.type, enabled=args.use_amp)
    best, counter, path = np.inf, 0, Path(args.checkpoints) / "checkpoint.pth"
    for epoch in range(3):
        for batch_x, batch_y, batch_x_mark, _ in train_loader:
            model_optim.zero_grad()
            batch_x, batch_y = batch_x.float().to(args.device), batch_y.float().to(args.device)
            batch_x_mark = batch_x_mark.float().to(args.device)
            with torch.autocast(args.device.type, dtype=torch.float16, enabled=args.use_amp):
                outputs = model(batch_x, batch_x_mark)
                loss = criterion(outputs, batch_y[:, -args.pred_len :])
            scaler.scale(loss).backward()
            scaler.step(model_optim)
            scaler.update()
            end_of_step(inputs=[batch_x, batch_y, batch_x_mark], activations=[outputs, loss])
        vali_loss = vali(model, vali_loader, criterion)
        print(f"Epoch: {epoch + 1} | Train Loss: {loss.item():.7f} Vali Loss: {vali_loss:.7f}")
        counter = 0 if vali_loss < best else counter + 1
        if counter == 0:
            best = vali_loss
            torch.save(model.state_dict(), path)
        if counter >= 3:
            break
        for group in model_optim.param_groups:
            group["lr"] = args.learning_rate * 0.5**epoch
    model.load_state_dict(torch.load(path))


if __name__ == "__main__":
    torch.manual_seed(1106)
    train()
