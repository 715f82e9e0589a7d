"""Lightning 2 with what people switch on: bf16-mixed, accumulation, a checkpoint at the end, two optimizers' worth of groups."""

import lightning.pytorch as pl
import torch
from own_count import print_count
from torch import nn


class TextModel(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(1000, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3)
        self.out = nn.Linear(128, 1000)

    def forward(self, tokens):
        return self.out(self.encoder(self.embed(tokens)))

    def training_step(self, batch, _):
        logits = self(batch[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        decay = [p for p in self.parameters() if p.ndim > 1]
        rest = [p for p in self.parameters() if p.ndim <= 1]
        return torch.optim.AdamW(
            [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        )


class Counting(pl.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if (batch_idx + 1) % 2 == 0:
            print_count(module, trainer.optimizers, is_autocast=True)


class Tokens(pl.LightningDataModule):
    def train_dataloader(self):
        torch.manual_seed(0)
        return torch.utils.data.DataLoader(torch.randint(0, 1000, (80, 65)), batch_size=8)


pl.seed_everything(0, verbose=False)
trainer = pl.Trainer(
    accelerator="cuda",
    devices=[0],
    max_steps=5,
    precision="bf16-mixed",
    accumulate_grad_batches=2,
    callbacks=[Counting()],
    logger=False,
    default_root_dir="lightning-out",
    enable_progress_bar=False,
    enable_model_summary=True,
)
trainer.fit(TextModel(), datamodule=Tokens())
