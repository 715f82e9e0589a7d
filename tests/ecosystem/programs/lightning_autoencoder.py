"""Lightning 2: an autoencoder and its Trainer on one GPU."""

import lightning as L
import torch
import torch.nn.functional as F
from own_count import print_count
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class LitAutoEncoder(L.LightningModule):
    def __init__(self, width=784, hidden=2048, code=32):
        super().__init__()
        self.save_hyperparameters()
        self.encoder = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, code))
        self.decoder = nn.Sequential(nn.Linear(code, hidden), nn.ReLU(), nn.Linear(hidden, width))

    def training_step(self, batch, batch_idx):
        (x,) = batch
        x = x.view(x.size(0), -1)
        loss = F.mse_loss(self.decoder(self.encoder(x)), x)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        (x,) = batch
        x = x.view(x.size(0), -1)
        self.log("val_loss", F.mse_loss(self.decoder(self.encoder(x)), x))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-3)
        return {
            "optimizer": optimizer,
            "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
        }

    def on_train_batch_end(self, outputs, batch, batch_idx):
        print_count(self, self.trainer.optimizers)


if __name__ == "__main__":
    L.seed_everything(1234)
    images = TensorDataset(torch.rand(384, 1, 28, 28))
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="gpu",
        devices=1,
        gradient_clip_val=0.5,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(LitAutoEncoder(), DataLoader(images, batch_size=64), DataLoader(images, batch_size=128))
