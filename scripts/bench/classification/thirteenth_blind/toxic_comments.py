"""A ConvBERT finds six kinds of toxic words in comments, as notebooks on multi-label text do it with Lightning: frozen embeddings, rare labels weigh more, half precision, two batches to a step, stochastic weight averaging, AUROC between."""

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, StochasticWeightAveraging
from lightning.pytorch.loggers import CSVLogger
from programs import end_of_step, tell
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import MultilabelAUROC
from transformers import ConvBertConfig, ConvBertModel, get_linear_schedule_with_warmup

LABEL_COLUMNS = ["toxic", "severe_toxic", "obscene", "threat", "insult", "identity_hate"]
VOCAB_SIZE, PAD, CLS, SEP = 20000, 0, 101, 102
MAX_TOKEN_COUNT = 96
BATCH_SIZE, N_EPOCHS, ACCUMULATE = 6, 3, 2


class ToxicCommentsDataset(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.comments = [
            torch.randint(200, VOCAB_SIZE, (int(length),), generator=g).tolist()
            for length in torch.randint(10, 140, (n,), generator=g)
        ]
        self.labels = (torch.rand(n, len(LABEL_COLUMNS), generator=g) < 0.3).float()

    def __len__(self):
        return len(self.comments)

    def __getitem__(self, index):
        words = [CLS, *self.comments[index][: MAX_TOKEN_COUNT - 2], SEP]
        input_ids = torch.full((MAX_TOKEN_COUNT,), PAD)
        input_ids[: len(words)] = torch.tensor(words)
        return {
            "input_ids": input_ids,
            "attention_mask": (input_ids != PAD).long(),
            "labels": self.labels[index],
        }


class ToxicCommentDataModule(pl.LightningDataModule):
    def setup(self, stage=None):
        self.train_dataset = ToxicCommentsDataset(24, seed=1)
        self.val_dataset = ToxicCommentsDataset(6, seed=2)

    def train_dataloader(self):
        return DataLoader(self.train_dataset, batch_size=BATCH_SIZE, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val_dataset, batch_size=BATCH_SIZE)


class ToxicCommentTagger(pl.LightningModule):
    def __init__(self, pos_weight, n_training_steps, n_warmup_steps, lr=3e-5):
        super().__init__()
        self.save_hyperparameters(ignore=["pos_weight"])
        config = ConvBertConfig(
            vocab_size=VOCAB_SIZE,
            embedding_size=128,
            hidden_size=384,
            intermediate_size=1536,
            num_hidden_layers=5,
            num_attention_heads=6,
            max_position_embeddings=128,
            pad_token_id=PAD,
        )
        self.bert = ConvBertModel(config)
        self.bert.embeddings.requires_grad_(False)
        self.classifier = nn.Sequential(
            nn.Dropout(0.2),
            nn.Linear(config.hidden_size, 256),
            nn.GELU(),
            nn.LayerNorm(256),
            nn.Linear(256, len(LABEL_COLUMNS)),
        )
        self.criterion = nn.BCEWithLogitsLoss(pos_weight=pos_weight)
        self.auroc = MultilabelAUROC(num_labels=len(LABEL_COLUMNS), thresholds=20)

    def forward(self, input_ids, attention_mask):
        hidden = self.bert(input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1)
        pooled = (hidden * mask).sum(1) / mask.sum(1)
        return self.classifier(pooled)

    def training_step(self, batch, batch_idx):
        logits = self(batch["input_ids"], batch["attention_mask"])
        loss = self.criterion(logits, batch["labels"])
        self.log("train_loss", loss, prog_bar=True, logger=True)
        return {"loss": loss, "predictions": logits.detach().sigmoid()}

    def on_train_batch_end(self, outputs, batch, batch_idx):
        held = {"inputs": batch, "activations": outputs}
        if (batch_idx + 1) % ACCUMULATE:
            tell(**held)
            return
        average = swa._average_model
        on_device = [p for p in average.parameters() if p.device == self.device]
        on_device += [b for b in average.buffers() if b.device == self.device]
        end_of_step(**held, weights=on_device)

    def validation_step(self, batch, batch_idx):
        logits = self(batch["input_ids"], batch["attention_mask"])
        self.log("val_loss", self.criterion(logits, batch["labels"]), prog_bar=True)
        self.auroc.update(logits.sigmoid(), batch["labels"].int())

    def on_validation_epoch_end(self):
        self.log("val_auroc", self.auroc.compute(), prog_bar=True)
        self.auroc.reset()

    def configure_optimizers(self):
        trained = [p for p in self.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=self.hparams.lr)
        scheduler = get_linear_schedule_with_warmup(
            optimizer,
            num_warmup_steps=self.hparams.n_warmup_steps,
            num_training_steps=self.hparams.n_training_steps,
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


if __name__ == "__main__":
    pl.seed_everything(1302, verbose=False)
    data_module = ToxicCommentDataModule()
    data_module.setup()
    share = data_module.train_dataset.labels.mean(0)
    steps = N_EPOCHS * len(data_module.train_dataset) // BATCH_SIZE // ACCUMULATE
    model = ToxicCommentTagger(
        pos_weight=((1 - share) / share.clamp(min=0.02)).clamp(max=10.0),
        n_training_steps=steps,
        n_warmup_steps=steps // 5,
    )
    swa = StochasticWeightAveraging(swa_lrs=1e-5, swa_epoch_start=1, annealing_epochs=1)
    trainer = pl.Trainer(
        accelerator="gpu" if torch.cuda.is_available() else "cpu",
        devices=1,
        max_epochs=N_EPOCHS,
        precision="16-mixed" if torch.cuda.is_available() else 32,
        accumulate_grad_batches=ACCUMULATE,
        gradient_clip_val=1.0,
        logger=CSVLogger("lightning_logs", name="toxic-comments"),
        callbacks=[swa, LearningRateMonitor(logging_interval="step")],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
    )
    trainer.fit(model, data_module)
