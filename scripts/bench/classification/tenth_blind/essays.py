"""A DeBERTa grades essays as on Kaggle: means over words, rates that fall from layer to layer, a scaler, and weights that are moved against it (AWP) for a second backward."""

import numpy as np
import torch
from programs import end_of_step, tell
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import DebertaV2Config, DebertaV2Model, get_cosine_schedule_with_warmup


class CFG:
    apex, epochs, batch_size, max_len = True, 3, 4, 160
    encoder_lr, decoder_lr, llrd = 2e-5, 2e-4, 0.9
    weight_decay, max_grad_norm = 0.01, 1000
    target_cols = ("cohesion", "syntax", "vocabulary", "phraseology", "grammar", "conventions")
    nth_awp_start_step, adv_lr, adv_eps = 1, 1e-4, 1e-2
    vocab_size, pad, seed = 16000, 0, 1007


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class TrainDataset(Dataset):
    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        self.texts = [rng.integers(5, CFG.vocab_size, int(rng.integers(60, CFG.max_len))) for _ in range(n)]
        self.labels = rng.integers(2, 11, (n, len(CFG.target_cols))) / 2

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, item):
        text = self.texts[item]
        input_ids = torch.full((CFG.max_len,), CFG.pad)
        input_ids[: len(text)] = torch.from_numpy(text)
        inputs = {"input_ids": input_ids, "attention_mask": (input_ids != CFG.pad).long()}
        return inputs, torch.tensor(self.labels[item], dtype=torch.float)


def collate(inputs):
    mask_len = int(inputs["attention_mask"].sum(axis=1).max())
    return {k: v[:, :mask_len] for k, v in inputs.items()}


class MeanPooling(nn.Module):
    def forward(self, last_hidden_state, attention_mask):
        mask = attention_mask.unsqueeze(-1).expand(last_hidden_state.size()).float()
        return torch.sum(last_hidden_state * mask, 1) / torch.clamp(mask.sum(1), min=1e-9)


class CustomModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = DebertaV2Config(
            vocab_size=CFG.vocab_size,
            hidden_size=256,
            num_hidden_layers=5,
            num_attention_heads=4,
            intermediate_size=1024,
            max_position_embeddings=CFG.max_len,
            relative_attention=True,
            position_buckets=32,
            share_att_key=True,
            pos_att_type=["p2c", "c2p"],
            position_biased_input=False,
        )
        self.model = DebertaV2Model(self.config)
        self.pool = MeanPooling()
        self.fc = nn.Linear(256, len(CFG.target_cols))

    def forward(self, inputs):
        return self.fc(self.pool(self.model(**inputs)[0], inputs["attention_mask"]))


class AWP:
    def __init__(self, model, criterion, optimizer, scaler, adv_param="weight"):
        self.model, self.criterion, self.optimizer, self.scaler = model, criterion, optimizer, scaler
        self.adv_param = adv_param
        self.backup, self.backup_eps = {}, {}

    def attack_backward(self, inputs, labels):
        self._save()
        self._attack_step()
        with torch.autocast(device.type, dtype=torch.float16, enabled=CFG.apex):
            y_preds = self.model(inputs)
            adv_loss = self.criterion(y_preds, labels)
        self.optimizer.zero_grad()
        self.scaler.scale(adv_loss).backward()
        tell(
            weights=[self.backup, self.backup_eps, list(self.model.parameters())],
            activations=[y_preds, adv_loss],
        )
        self._restore()

    def _attacked(self):
        for name, param in self.model.named_parameters():
            if param.requires_grad and param.grad is not None and self.adv_param in name:
                yield name, param

    def _attack_step(self):
        e = 1e-6
        for name, param in self._attacked():
            norm1 = torch.norm(param.grad)
            norm2 = torch.norm(param.data.detach())
            if norm1 != 0 and not torch.isnan(norm1):
                r_at = CFG.adv_lr * param.grad / (norm1 + e) * (norm2 + e)
                param.data.add_(r_at)
                low, high = self.backup_eps[name]
                param.data = torch.min(torch.max(param.data, low), high)

    def _save(self):
        for name, param in self._attacked():
            self.backup[name] = param.data.clone()
            grad_eps = CFG.adv_eps * param.abs().detach()
            self.backup_eps[name] = (self.backup[name] - grad_eps, self.backup[name] + grad_eps)

    def _restore(self):
        for name, param in self.model.named_parameters():
            if name in self.backup:
                param.data = self.backup[name]
        self.backup, self.backup_eps = {}, {}


def get_optimizer_params(model):
    groups = [{"params": model.fc.parameters(), "lr": CFG.decoder_lr, "weight_decay": 0.0}]
    layers = [model.model.embeddings, *model.model.encoder.layer]
    lr = CFG.encoder_lr
    for layer in reversed(layers):
        groups.append({"params": layer.parameters(), "lr": lr, "weight_decay": CFG.weight_decay})
        lr *= CFG.llrd
    rest = [p for n, p in model.model.encoder.named_parameters() if not n.startswith("layer.")]
    groups.append({"params": rest, "lr": CFG.encoder_lr, "weight_decay": 0.0})
    return groups


def train_fn(train_loader, model, criterion, optimizer, epoch, scheduler, scaler, awp):
    model.train()
    for step, (inputs, labels) in enumerate(train_loader):
        inputs = {k: v.to(device) for k, v in collate(inputs).items()}
        labels = labels.to(device)
        with torch.autocast(device.type, dtype=torch.float16, enabled=CFG.apex):
            y_preds = model(inputs)
            loss = criterion(y_preds, labels)
        scaler.scale(loss).backward()
        if epoch * len(train_loader) + step >= CFG.nth_awp_start_step:
            awp.attack_backward(inputs, labels)
        scaler.unscale_(optimizer)
        grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CFG.max_grad_norm)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scheduler.step()
        print(f"Epoch: [{epoch + 1}][{step}] Loss: {loss.item():.4f} Grad: {grad_norm:.4f}")
        kept = list(model.parameters())  # AWP has put others in their place
        end_of_step(inputs=[inputs, labels], activations=[y_preds, loss], weights=kept)


@torch.no_grad()
def valid_fn(valid_loader, model):
    model.eval()
    errors = []
    for inputs, labels in valid_loader:
        inputs = {k: v.to(device) for k, v in collate(inputs).items()}
        errors.append(model(inputs).to("cpu").numpy() - labels.numpy())
    return float(np.sqrt((np.concatenate(errors) ** 2).mean(axis=0)).mean())


torch.manual_seed(CFG.seed)
model = CustomModel().to(device)
optimizer = torch.optim.AdamW(get_optimizer_params(model), lr=CFG.encoder_lr, eps=1e-6, betas=(0.9, 0.999))
train_loader = DataLoader(TrainDataset(8, 1), CFG.batch_size, shuffle=True, drop_last=True)
valid_loader = DataLoader(TrainDataset(4, 2), CFG.batch_size)
scheduler = get_cosine_schedule_with_warmup(optimizer, 0, len(train_loader) * CFG.epochs)
criterion = nn.SmoothL1Loss(reduction="mean")
scaler = torch.amp.GradScaler(device.type, enabled=CFG.apex)
awp = AWP(model, criterion, optimizer, scaler)
for epoch in range(CFG.epochs):
    train_fn(train_loader, model, criterion, optimizer, epoch, scheduler, scaler, awp)
    score = valid_fn(valid_loader, model)
    print(f"Epoch {epoch + 1} - MCRMSE: {score:.4f}")
