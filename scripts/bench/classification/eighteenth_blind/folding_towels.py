"""An Action Chunking Transformer (ACT) is cloned from teleoperated towel folding: two cameras, a ResNet-18, a CVAE, AdamW with a slower backbone, bfloat16 autocast."""

import math

import torch
import torch.nn.functional as F
import torchvision
from programs import end_of_step
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.models._utils import IntermediateLayerGetter
from torchvision.ops.misc import FrozenBatchNorm2d

device = torch.device("cuda")
torch.manual_seed(1000)

STATE = ACTION = 14
CHUNK = 50
CAMERAS = ("top", "wrist")
SIZE = (96, 128)


class Episodes(Dataset):
    """Frames of teleoperated episodes, each with the chunk of actions that followed."""

    def __init__(self, episodes=6, length=80):
        self.length = length
        time = torch.linspace(0, 6, length)
        phases = torch.rand(episodes, ACTION, 1) * math.tau
        self.actions = torch.sin(time + phases).transpose(1, 2)
        self.frames = torch.randint(0, 256, (episodes, len(CAMERAS), 3, *SIZE), dtype=torch.uint8)

    def __len__(self):
        return len(self.actions) * self.length

    def __getitem__(self, index):
        episode, start = divmod(index, self.length)
        actions = self.actions[episode, start : start + CHUNK]
        missing = CHUNK - len(actions)
        item = {
            "observation.state": self.actions[episode, max(start - 1, 0)],
            "action": F.pad(actions, (0, 0, 0, missing)),
            "action_is_pad": torch.arange(CHUNK) >= CHUNK - missing,
        }
        for number, camera in enumerate(CAMERAS):
            item[f"observation.images.{camera}"] = self.frames[episode, number].float() / 255
        return item


def sinusoids(length, dim):
    angles = torch.arange(length)[:, None] / 10000 ** (2 * (torch.arange(dim) // 2) / dim)
    table = torch.zeros(length, dim)
    table[:, 0::2], table[:, 1::2] = angles[:, 0::2].sin(), angles[:, 1::2].cos()
    return table


class PositionOfPixels(nn.Module):
    def __init__(self, half):
        super().__init__()
        self.half = half

    def forward(self, x):
        ones = torch.ones_like(x[:1, 0])
        rows, columns = ones.cumsum(1, dtype=torch.float32), ones.cumsum(2, dtype=torch.float32)
        rows = rows / (rows[:, -1:] + 1e-6) * math.tau
        columns = columns / (columns[:, :, -1:] + 1e-6) * math.tau
        frequency = 10000 ** (2 * (torch.arange(self.half, device=x.device) // 2) / self.half)
        columns, rows = columns[..., None] / frequency, rows[..., None] / frequency
        columns = torch.stack((columns[..., 0::2].sin(), columns[..., 1::2].cos()), -1).flatten(3)
        rows = torch.stack((rows[..., 0::2].sin(), rows[..., 1::2].cos()), -1).flatten(3)
        return torch.cat((rows, columns), 3).permute(0, 3, 1, 2)


class EncoderLayer(nn.Module):
    def __init__(self, dim, heads, hidden, dropout):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(dim, heads, dropout=dropout)
        self.linear1, self.linear2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.dropout, self.dropout1, self.dropout2 = (
            nn.Dropout(dropout),
            nn.Dropout(dropout),
            nn.Dropout(dropout),
        )

    def forward(self, x, positions, padding=None):
        q = k = x + positions
        x = self.norm1(x + self.dropout1(self.self_attn(q, k, value=x, key_padding_mask=padding)[0]))
        return self.norm2(x + self.dropout2(self.linear2(self.dropout(F.relu(self.linear1(x))))))


class DecoderLayer(nn.Module):
    def __init__(self, dim, heads, hidden, dropout):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(dim, heads, dropout=dropout)
        self.multihead_attn = nn.MultiheadAttention(dim, heads, dropout=dropout)
        self.linear1, self.linear2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, memory, positions, memory_positions):
        q = k = x + positions
        x = self.norm1(x + self.dropout(self.self_attn(q, k, value=x)[0]))
        attended = self.multihead_attn(x + positions, memory + memory_positions, value=memory)[0]
        x = self.norm2(x + self.dropout(attended))
        return self.norm3(x + self.dropout(self.linear2(self.dropout(F.relu(self.linear1(x))))))


class ACT(nn.Module):
    def __init__(self, dim=256, heads=8, hidden=768, layers=3, latent=32, dropout=0.1):
        super().__init__()
        self.latent = latent
        self.vae_encoder = nn.ModuleList(EncoderLayer(dim, heads, hidden, dropout) for _ in range(layers))
        self.vae_cls = nn.Embedding(1, dim)
        self.vae_state_proj, self.vae_action_proj = nn.Linear(STATE, dim), nn.Linear(ACTION, dim)
        self.vae_latent_proj = nn.Linear(dim, 2 * latent)
        self.register_buffer("vae_positions", sinusoids(2 + CHUNK, dim)[:, None])

        resnet = torchvision.models.resnet18(weights=None, norm_layer=FrozenBatchNorm2d)
        self.backbone = IntermediateLayerGetter(resnet, return_layers={"layer4": "feature_map"})
        self.image_proj = nn.Conv2d(resnet.fc.in_features, dim, kernel_size=1)
        self.image_positions = PositionOfPixels(dim // 2)
        self.state_proj, self.latent_proj = nn.Linear(STATE, dim), nn.Linear(latent, dim)
        self.token_positions = nn.Embedding(2, dim)
        self.encoder = nn.ModuleList(EncoderLayer(dim, heads, hidden, dropout) for _ in range(layers))
        self.decoder = nn.ModuleList([DecoderLayer(dim, heads, hidden, dropout)])
        self.decoder_norm = nn.LayerNorm(dim)
        self.queries = nn.Embedding(CHUNK, dim)
        self.action_head = nn.Linear(dim, ACTION)
        for module in (self.vae_encoder, self.encoder, self.decoder):
            for parameter in module.parameters():
                if parameter.dim() > 1:
                    nn.init.xavier_uniform_(parameter)

    def encode_actions(self, batch):
        state = batch["observation.state"]
        tokens = torch.cat(
            [
                self.vae_cls.weight.expand(len(state), 1, -1),
                self.vae_state_proj(state)[:, None],
                self.vae_action_proj(batch["action"]),
            ],
            1,
        ).transpose(0, 1)
        padding = F.pad(batch["action_is_pad"], (2, 0), value=False)
        for layer in self.vae_encoder:
            tokens = layer(tokens, self.vae_positions, padding)
        return self.vae_latent_proj(tokens[0]).chunk(2, -1)

    def forward(self, batch):
        state = batch["observation.state"]
        if self.training:
            mean, log_variance = self.encode_actions(batch)
            z = mean + (log_variance / 2).exp() * torch.randn_like(mean)
        else:
            mean = log_variance = None
            z = torch.zeros(len(state), self.latent, device=state.device)
        tokens = [self.latent_proj(z)[None], self.state_proj(state)[None]]
        positions = [self.token_positions.weight[:, None]]
        for camera in CAMERAS:
            features = self.backbone(batch[f"observation.images.{camera}"])["feature_map"]
            positions.append(self.image_positions(features).to(features.dtype).flatten(2).permute(2, 0, 1))
            tokens.append(self.image_proj(features).flatten(2).permute(2, 0, 1))
        tokens, positions = torch.cat(tokens), torch.cat(positions)
        for layer in self.encoder:
            tokens = layer(tokens, positions)
        queries = self.queries.weight[:, None]
        decoded = torch.zeros(CHUNK, len(state), queries.shape[-1], device=state.device, dtype=tokens.dtype)
        for layer in self.decoder:
            decoded = layer(decoded, tokens, queries, positions)
        return self.action_head(self.decoder_norm(decoded).transpose(0, 1)), mean, log_variance


data = Episodes()
loader = DataLoader(data, batch_size=4, shuffle=True, drop_last=True)
mean = torch.tensor([0.485, 0.456, 0.406], device=device)[:, None, None]
std = torch.tensor([0.229, 0.224, 0.225], device=device)[:, None, None]

policy = ACT().to(device)
policy.train()
groups = [
    {"params": [p for n, p in policy.named_parameters() if not n.startswith("backbone")]},
    {"params": [p for n, p in policy.named_parameters() if n.startswith("backbone")], "lr": 1e-5},
]
optimizer = torch.optim.AdamW(groups, lr=1e-4, weight_decay=1e-4)

step = 0
while step < 100:
    for batch in loader:
        batch = {key: value.to(device, non_blocking=True) for key, value in batch.items()}
        for camera in CAMERAS:
            key = f"observation.images.{camera}"
            batch[key] = (batch[key] - mean) / std
        with torch.autocast("cuda", dtype=torch.bfloat16):
            actions, mu, log_sigma = policy(batch)
            l1 = (
                F.l1_loss(batch["action"], actions, reduction="none") * ~batch["action_is_pad"][..., None]
            ).mean()
            kl = (-0.5 * (1 + log_sigma - mu.pow(2) - log_sigma.exp())).sum(-1).mean()
            loss = l1 + 10.0 * kl
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), 10.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 2 == 0:
            print(
                f"step {step} loss {loss.item():.3f} l1 {l1.item():.3f} kl {kl.item():.3f} grad {norm.item():.2f}"
            )
        step += 1
        end_of_step(inputs=[batch, mean, std], activations=[actions, mu, log_sigma, l1, kl, loss])
        if step >= 100:
            break
torch.save(policy.state_dict(), "act.pt")
