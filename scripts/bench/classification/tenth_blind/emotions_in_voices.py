"""A data2vec hears how somebody feels: Lightning in half precision, its body frozen for an epoch and then trained more slowly than its head, attention over time, weights for rare classes."""

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import BackboneFinetuning, LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger
from programs import end_of_step
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score
from transformers import Data2VecAudioConfig, Data2VecAudioModel

SAMPLE_RATE = 16000
EMOTIONS = ["neutral", "calm", "happy", "sad", "angry", "fearful", "disgust", "surprised"]


class Ravdess(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(7)
        self.seconds = (0.9 + 0.8 * torch.rand(n, generator=g)).tolist()
        self.labels = torch.randint(len(EMOTIONS), (n,), generator=g).tolist()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, idx):
        wave = 0.1 * torch.randn(int(self.seconds[idx] * SAMPLE_RATE))
        return (wave - wave.mean()) / (wave.std() + 1e-7), self.labels[idx]


def collate(rows):
    waves, labels = zip(*rows)
    lengths = torch.tensor([len(w) for w in waves])
    values = nn.utils.rnn.pad_sequence(waves, batch_first=True)
    mask = (torch.arange(values.shape[1]) < lengths[:, None]).long()
    return {"input_values": values, "attention_mask": mask, "labels": torch.tensor(labels)}


class AttentivePooling(nn.Module):
    def __init__(self, width, hidden=128):
        super().__init__()
        self.score = nn.Sequential(nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def forward(self, x, mask):
        weights = self.score(x).squeeze(-1).float().masked_fill(~mask, float("-inf")).softmax(-1)
        weights = weights.to(x.dtype).unsqueeze(1)
        mean = (weights @ x).squeeze(1)
        var = (weights @ x.pow(2)).squeeze(1) - mean.pow(2)
        return torch.cat([mean, var.clamp(min=1e-5).sqrt()], dim=-1)


class EmotionClassifier(L.LightningModule):
    def __init__(self, lr=1e-3, weight_decay=1e-2, label_smoothing=0.1):
        super().__init__()
        self.save_hyperparameters()
        self.backbone = Data2VecAudioModel(
            Data2VecAudioConfig(
                hidden_size=320,
                num_hidden_layers=6,
                num_attention_heads=5,
                intermediate_size=1280,
                conv_dim=(192,) * 7,
                conv_pos_kernel_size=19,
                num_conv_pos_embedding_groups=16,
                num_conv_pos_embeddings=5,
                hidden_dropout=0.1,
                layerdrop=0.0,
                mask_time_prob=0.05,
                mask_time_length=5,
            )
        )
        self.pooling = AttentivePooling(320)
        self.head = nn.Sequential(
            nn.LayerNorm(640), nn.Dropout(0.2), nn.Linear(640, 256), nn.GELU(), nn.Linear(256, len(EMOTIONS))
        )
        self.register_buffer("class_weights", torch.ones(len(EMOTIONS)))
        self.val_acc = MulticlassAccuracy(len(EMOTIONS), average="macro")
        self.val_f1 = MulticlassF1Score(len(EMOTIONS))

    def on_fit_start(self):
        labels = self.trainer.datamodule.train_labels()
        counts = torch.bincount(labels, minlength=len(EMOTIONS)).clamp(min=1)
        self.class_weights.copy_(len(labels) / (len(EMOTIONS) * counts))

    def forward(self, input_values, attention_mask):
        hidden = self.backbone(input_values, attention_mask=attention_mask).last_hidden_state
        frames = self.backbone._get_feature_vector_attention_mask(hidden.shape[1], attention_mask)
        return self.head(self.pooling(hidden, frames.bool()))

    def training_step(self, batch, batch_idx):
        logits = self(batch["input_values"], batch["attention_mask"])
        loss = F.cross_entropy(
            logits, batch["labels"], self.class_weights, label_smoothing=self.hparams.label_smoothing
        )
        self.log("train_loss", loss, batch_size=len(logits))
        return loss

    def validation_step(self, batch, batch_idx):
        logits = self(batch["input_values"], batch["attention_mask"])
        self.val_acc(logits, batch["labels"])
        self.val_f1(logits, batch["labels"])
        self.log("val_loss", F.cross_entropy(logits, batch["labels"]), batch_size=len(logits))
        self.log_dict({"val_acc": self.val_acc, "val_f1": self.val_f1}, batch_size=len(logits))

    def on_train_batch_end(self, outputs, batch, batch_idx):
        end_of_step(inputs=batch, activations=outputs)

    def configure_optimizers(self):
        # The backbone comes later: BackboneFinetuning adds a group for it.
        trained = [p for p in self.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(
            trained, lr=self.hparams.lr, weight_decay=self.hparams.weight_decay, amsgrad=False
        )
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)]


class EmotionData(L.LightningDataModule):
    def __init__(self, batch_size=4):
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage=None):
        self.train_set, self.val_set = random_split(Ravdess(14), [8, 6])

    def train_labels(self):
        return torch.tensor([self.train_set.dataset.labels[i] for i in self.train_set.indices])

    def train_dataloader(self):
        return DataLoader(self.train_set, self.batch_size, shuffle=True, collate_fn=collate, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, self.batch_size, collate_fn=collate)


if __name__ == "__main__":
    L.seed_everything(1002, verbose=False)
    trainer = L.Trainer(
        accelerator="auto",
        devices=1,
        precision="16-mixed" if torch.cuda.is_available() else "32-true",
        max_epochs=3,
        callbacks=[
            BackboneFinetuning(unfreeze_backbone_at_epoch=1, backbone_initial_ratio_lr=0.1),
            LearningRateMonitor("epoch"),
        ],
        gradient_clip_val=1.0,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        logger=CSVLogger("logs"),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(EmotionClassifier(), datamodule=EmotionData())
