"""An ESM predicts the structure at every residue of a protein: Lightning, bfloat16, two batches a step, lower layers frozen."""

import lightning as L
import torch
import torch.nn.functional as F
from programs import end_of_step
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy
from transformers import EsmConfig, EsmForTokenClassification

ACCUMULATE, N_CLASSES, PADDING = 2, 8, 1


class StructureModule(L.LightningModule):
    def __init__(self, lr=5e-4, n_frozen=2):
        super().__init__()
        self.save_hyperparameters()
        config = EsmConfig(
            vocab_size=33,
            hidden_size=240,
            num_hidden_layers=6,
            num_attention_heads=12,
            intermediate_size=960,
            max_position_embeddings=300,
            position_embedding_type="rotary",
            pad_token_id=PADDING,
            mask_token_id=32,
            token_dropout=False,
            num_labels=N_CLASSES,
        )
        self.model = EsmForTokenClassification(config)
        self.model.esm.embeddings.requires_grad_(False)
        for layer in self.model.esm.encoder.layer[:n_frozen]:
            layer.requires_grad_(False)
        self.accuracy = MulticlassAccuracy(N_CLASSES, ignore_index=-100, average="micro")

    def training_step(self, batch, _):
        logits = self.model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        loss = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)
        self.accuracy(logits.flatten(0, 1), batch["labels"].flatten())
        self.log("train_loss", loss)
        self.log("train_accuracy", self.accuracy, on_step=True, on_epoch=True)
        return loss

    def configure_optimizers(self):
        trained = [p for p in self.parameters() if p.requires_grad]
        optimizer = torch.optim.NAdam(trained, lr=self.hparams.lr, weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=4)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class StepEnds(L.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if (batch_idx + 1) % ACCUMULATE == 0:
            end_of_step(inputs=batch)


def protein():
    n = int(torch.randint(90, 250, ()))
    return torch.randint(4, 24, (n,)), torch.randint(0, N_CLASSES, (n,))


def collate(rows):
    ids = pad_sequence([row[0] for row in rows], batch_first=True, padding_value=PADDING)
    labels = pad_sequence([row[1] for row in rows], batch_first=True, padding_value=-100)
    return {"input_ids": ids, "attention_mask": ids.ne(PADDING).long(), "labels": labels}


if __name__ == "__main__":
    L.seed_everything(90)
    loader = DataLoader([protein() for _ in range(72)], batch_size=6, shuffle=True, collate_fn=collate)
    trainer = L.Trainer(
        accelerator="gpu",
        devices=1,
        precision="bf16-mixed",
        max_epochs=1,
        accumulate_grad_batches=ACCUMULATE,
        gradient_clip_val=0.5,
        callbacks=[StepEnds()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(StructureModule(), loader)
