"""A Swin2SR makes pictures four times as large: Lightning, two batches to a step, a slow average of the weights, PSNR."""

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from programs import end_of_step
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics.image import PeakSignalNoiseRatio
from transformers import Swin2SRConfig, Swin2SRForImageSuperResolution

SCALE = 4


class CharbonnierLoss(nn.Module):
    def __init__(self, eps=1e-9):
        super().__init__()
        self.eps = eps

    def forward(self, x, y):
        return torch.sqrt((x - y) ** 2 + self.eps).mean()


class Pairs(Dataset):
    def __init__(self, n, size=24):
        self.n, self.size = n, size

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        large = torch.rand(1, 3, self.size * SCALE, self.size * SCALE, generator=generator)
        small = nn.functional.interpolate(large, scale_factor=1 / SCALE, mode="bicubic", antialias=True)
        return {"lq": small[0].clamp(0, 1), "gt": large[0]}


class SuperResolution(L.LightningModule):
    def __init__(self, lr=2e-4, ema_decay=0.999):
        super().__init__()
        self.save_hyperparameters()
        config = Swin2SRConfig(
            image_size=24,
            embed_dim=60,
            depths=[2, 2, 2, 2],
            num_heads=[4, 4, 4, 4],
            window_size=8,
            mlp_ratio=2.0,
            upscale=SCALE,
            upsampler="pixelshuffle",
        )
        self.net = Swin2SRForImageSuperResolution(config)
        self.net_ema = torch.optim.swa_utils.AveragedModel(
            self.net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(ema_decay)
        )
        self.criterion = CharbonnierLoss()
        self.psnr = PeakSignalNoiseRatio(data_range=1.0)

    def training_step(self, batch, batch_idx):
        output = self.net(batch["lq"]).reconstruction
        loss = self.criterion(output, batch["gt"])
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if (batch_idx + 1) % self.trainer.accumulate_grad_batches == 0:
            self.net_ema.update_parameters(self.net)

    def validation_step(self, batch, batch_idx):
        output = self.net_ema(batch["lq"]).reconstruction.clamp(0, 1)
        self.psnr(output, batch["gt"])
        self.log("val_psnr", self.psnr, on_epoch=True)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.net.parameters(), lr=self.hparams.lr, betas=(0.9, 0.99))
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[250, 400], gamma=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Steps(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            end_of_step(inputs=batch, weights=module.net_ema.state_dict())


def main():
    L.seed_everything(106, verbose=False)
    trainer = L.Trainer(
        accelerator="gpu",
        devices=1,
        max_epochs=2,
        accumulate_grad_batches=2,
        gradient_clip_val=0.5,
        val_check_interval=4,
        num_sanity_val_steps=1,
        callbacks=[Steps()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    train_loader = DataLoader(Pairs(48), batch_size=6, shuffle=True, drop_last=True)
    trainer.fit(SuperResolution(), train_loader, DataLoader(Pairs(4), batch_size=2))


if __name__ == "__main__":
    main()
