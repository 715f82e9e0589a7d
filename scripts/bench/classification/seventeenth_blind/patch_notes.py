"""Continued pretraining of a LitGPT model on patch notes with Lightning: bf16-true weights, Adam-mini, two micro-batches, warm-up and cosine, chunked loss."""

import math

import lightning as L
import torch
from adam_mini import Adam_mini
from litgpt.config import Config
from litgpt.model import GPT
from litgpt.utils import chunked_cross_entropy
from programs import end_of_step, tell
from torch.utils.data import DataLoader, Dataset

L.seed_everything(1, verbose=False)
BLOCK, VOCABULARY = 256, 8000


class PatchNotes(Dataset):
    def __init__(self, blocks):
        self.tokens = torch.randint(0, VOCABULARY, (blocks * BLOCK + 1,))

    def __len__(self):
        return (len(self.tokens) - 1) // BLOCK

    def __getitem__(self, index):
        return self.tokens[index * BLOCK : (index + 1) * BLOCK + 1]


class LitLLM(L.LightningModule):
    def __init__(self, config, warmup=10, steps=200):
        super().__init__()
        self.config, self.warmup, self.steps = config, warmup, steps
        self.model = GPT(config)

    def configure_model(self):
        self.model.max_seq_length = BLOCK

    def training_step(self, batch, batch_idx):
        tell(inputs=[batch])
        inputs, targets = batch[:, :-1].contiguous(), batch[:, 1:].contiguous()
        tell(inputs=[inputs, targets])
        logits = self.model(inputs, lm_head_chunk_size=128)
        loss = chunked_cross_entropy(logits, targets, chunk_size=0)
        self.log("train_loss", loss, prog_bar=False)
        tell(activations=[logits, loss])
        return loss

    def validation_step(self, batch, batch_idx):
        logits = self.model(batch[:, :-1])
        self.log("val_loss", chunked_cross_entropy(logits, batch[:, 1:], chunk_size=128))

    def configure_optimizers(self):
        optimizer = Adam_mini(
            named_parameters=self.named_parameters(),
            lr=3e-4,
            betas=(0.9, 0.95),
            weight_decay=0.1,
            dim=self.config.n_embd,
            n_heads=self.config.n_head,
            n_kv_heads=self.config.n_query_groups,
            verbose=False,
        )
        optimizer.attn_proj_names.add("qkv")

        def rate(step):
            if step < self.warmup:
                return (step + 1) / self.warmup
            return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - self.warmup) / (self.steps - self.warmup)))

        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class StepEnds(L.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            end_of_step()


config = Config.from_name(
    "Llama-3.2-1B",
    n_layer=4,
    n_embd=512,
    n_head=8,
    n_query_groups=4,
    head_size=64,
    intermediate_size=1408,
    padded_vocab_size=VOCABULARY,
    vocab_size=VOCABULARY,
    block_size=BLOCK,
)
module = LitLLM(config)
trainer = L.Trainer(
    accelerator="cuda",
    devices=1,
    precision="bf16-true",
    max_steps=8,
    accumulate_grad_batches=2,
    gradient_clip_val=None,
    val_check_interval=4,
    limit_val_batches=1,
    num_sanity_val_steps=0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=[StepEnds()],
)
trainer.fit(
    module,
    DataLoader(PatchNotes(64), batch_size=4, shuffle=True, num_workers=0, pin_memory=True),
    DataLoader(PatchNotes(8), batch_size=4),
)
