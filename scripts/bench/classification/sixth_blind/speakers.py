"""A WavLM learns x-vectors that identify speakers: Lightning, bfloat16, two batches to a step, frozen convolutions."""

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from programs import end_of_step
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import BinaryAUROC
from transformers import WavLMConfig, WavLMForXVector

N_SPEAKERS, RATE = 120, 16000


class Recordings(Dataset):
    def __init__(self, n, seconds=1.0):
        self.n, self.length = n, int(seconds * RATE)

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        waveform = torch.randn(self.length) * 0.1
        return {"input_values": waveform, "labels": index // 2 % N_SPEAKERS}


class SpeakerRecognition(L.LightningModule):
    def __init__(self, lr=1e-4):
        super().__init__()
        self.save_hyperparameters()
        config = WavLMConfig(
            hidden_size=192,
            num_hidden_layers=6,
            num_attention_heads=4,
            intermediate_size=768,
            conv_dim=(128,) * 7,
            num_conv_pos_embeddings=64,
            num_conv_pos_embedding_groups=16,
            tdnn_dim=(192, 192, 192, 192, 576),
            xvector_output_dim=192,
            num_labels=N_SPEAKERS,
            layerdrop=0.0,
            mask_time_length=4,
            apply_spec_augment=True,
        )
        self.model = WavLMForXVector(config)
        self.model.freeze_feature_encoder()
        self.auroc = BinaryAUROC()

    def training_step(self, batch, batch_idx):
        output = self.model(**batch)
        self.log("train_loss", output.loss, prog_bar=True)
        return output.loss

    def validation_step(self, batch, batch_idx):
        output = self.model(**batch)
        found = torch.nn.functional.normalize(output.embeddings.float(), dim=1)
        first, second = torch.triu_indices(len(found), len(found), offset=1, device=self.device)
        is_same = batch["labels"][first] == batch["labels"][second]
        self.auroc.update((found[first] * found[second]).sum(1), is_same.long())
        self.log("val_loss", output.loss)
        self.log("val_auroc", self.auroc, on_epoch=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(
            (p for p in self.parameters() if p.requires_grad), lr=self.hparams.lr, weight_decay=0.01
        )
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=self.hparams.lr, total_steps=self.trainer.estimated_stepping_batches
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Steps(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            end_of_step(inputs=batch, activations=outputs)


def main():
    L.seed_everything(209, verbose=False)
    trainer = L.Trainer(
        accelerator="gpu",
        devices=1,
        precision="bf16-mixed",
        max_epochs=3,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        callbacks=[Steps()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    train_loader = DataLoader(Recordings(24), batch_size=6, shuffle=True, drop_last=True)
    trainer.fit(SpeakerRecognition(), train_loader, DataLoader(Recordings(8), batch_size=4))


if __name__ == "__main__":
    main()
