"""A ConvNeXt classifies images under Lightning: SGD with momentum, metrics of torchmetrics on the device."""

import lightning.pytorch as pl
import torch
from programs import end_of_step
from torch.nn import functional
from torchmetrics.classification import MulticlassAccuracy
from transformers import ConvNextConfig, ConvNextForImageClassification

torch.manual_seed(23)


class Classifier(pl.LightningModule):
    def __init__(self):
        super().__init__()
        config = ConvNextConfig(hidden_sizes=[64, 128, 256], depths=[2, 2, 2], num_stages=3, num_labels=20)
        self.model = ConvNextForImageClassification(config)
        self.accuracy = MulticlassAccuracy(20)

    def training_step(self, batch, _):
        images, labels = batch
        logits = self.model(pixel_values=images).logits
        loss = functional.cross_entropy(logits, labels)
        self.accuracy(logits, labels)
        self.log("accuracy", self.accuracy)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, nesterov=True)
        return {
            "optimizer": optimizer,
            "lr_scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10),
        }


class StepEnds(pl.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        end_of_step(inputs=batch)


data = torch.utils.data.TensorDataset(torch.rand(80, 3, 96, 96), torch.randint(0, 20, (80,)))
trainer = pl.Trainer(
    accelerator="cuda",
    devices=[0],
    max_epochs=1,
    gradient_clip_val=1.0,
    callbacks=[StepEnds()],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Classifier(), torch.utils.data.DataLoader(data, batch_size=12))
