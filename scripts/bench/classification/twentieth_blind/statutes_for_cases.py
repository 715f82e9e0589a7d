"""MonoT5 learns which statutes matter to a case, by the words true and false: Lightning in bf16-mixed, Adafactor with relative steps, MRR validated."""

import lightning as L
import torch
import torch.nn.functional as F
from programs import end_of_step, tell
from torch.utils.data import DataLoader, Dataset
from transformers import T5Config, T5ForConditionalGeneration
from transformers.optimization import Adafactor, AdafactorSchedule

L.seed_everything(3, verbose=False)
TRUE, FALSE = 1176, 6136


class CasesAndStatutes(Dataset):
    def __init__(self, cases, per_case):
        self.items = []
        for case in range(cases):
            for k in range(per_case):
                length = int(torch.randint(50, 110, ()))
                self.items.append((torch.randint(3, 6000, (length,)), int(k == 0)))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def collate(items):
    ids = torch.nn.utils.rnn.pad_sequence([i for i, _ in items], batch_first=True, padding_value=0)
    relevant = torch.tensor([r for _, r in items])
    words = torch.where(relevant == 1, TRUE, FALSE)
    return {
        "input_ids": ids,
        "attention_mask": (ids != 0).long(),
        "labels": torch.stack([words, torch.ones_like(words)], 1),
    }


class MonoT5(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.t5 = T5ForConditionalGeneration(
            T5Config(
                vocab_size=6400,
                d_model=320,
                d_ff=1280,
                d_kv=40,
                num_heads=8,
                num_layers=3,
                num_decoder_layers=3,
                dropout_rate=0.1,
                decoder_start_token_id=0,
                use_cache=False,
            )
        )

    def training_step(self, batch, _):
        tell(inputs=batch)
        loss = self.t5(**batch).loss
        self.log("loss", loss, prog_bar=False)
        return loss

    def validation_step(self, batch, _):
        tell(inputs=batch)
        start = torch.zeros(len(batch["input_ids"]), 1, dtype=torch.long, device=self.device)
        logits = self.t5(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], decoder_input_ids=start
        ).logits[:, 0]
        score = F.log_softmax(logits[:, [FALSE, TRUE]].float(), -1)[:, 1]
        rank = (score > score[0]).sum() + 1
        self.log("mrr", 1.0 / rank.float(), batch_size=1)

    def configure_optimizers(self):
        optimizer = Adafactor(
            self.parameters(),
            scale_parameter=True,
            relative_step=True,
            warmup_init=True,
            lr=None,
            weight_decay=5e-5,
        )
        return [optimizer], [{"scheduler": AdafactorSchedule(optimizer), "interval": "step"}]


class StepEnds(L.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        end_of_step(inputs=batch, activations=outputs)


trainer = L.Trainer(
    accelerator="gpu",
    devices=1,
    precision="bf16-mixed",
    callbacks=[StepEnds()],
    max_epochs=1,
    val_check_interval=2,
    limit_val_batches=2,
    num_sanity_val_steps=0,
    gradient_clip_val=1.0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
train = DataLoader(CasesAndStatutes(24, 4), batch_size=8, shuffle=True, collate_fn=collate)
valid = DataLoader(CasesAndStatutes(6, 8), batch_size=8, collate_fn=collate)
trainer.fit(MonoT5(), train, valid)
