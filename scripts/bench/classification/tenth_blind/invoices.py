"""A Donut reads invoices into JSON without any OCR: a Swin before a BART decoder, Lightning in half precision, two batches to a step, answers drawn at every validation."""

import random
import re

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import CSVLogger
from programs import end_of_step, tell
from torch.utils.data import DataLoader, Dataset
from transformers import (
    DonutSwinConfig,
    DonutSwinModel,
    MBartConfig,
    MBartForCausalLM,
    VisionEncoderDecoderModel,
)

IMAGE_SIZE = (160, 128)
MAX_LENGTH, VOCABULARY = 64, 14000
BOS, PAD, EOS, UNK = 0, 1, 2, 3
TASK_START = 13000  # "<s_invoice>"
FIELDS = {"seller": 13001, "date": 13002, "item": 13003, "price": 13004, "total": 13005}
CLOSED = 500


class DonutDataset(Dataset):
    """A page, and its fields as a sequence of tokens: <s_total> … </s_total>."""

    def __init__(self, n, split):
        self.rng = random.Random(split)
        self.split = split
        self.sequences = [self.json2token() for _ in range(n)]

    def json2token(self):
        tokens = []
        for start in FIELDS.values():
            words = [self.rng.randrange(4, TASK_START) for _ in range(self.rng.randint(1, 8))]
            tokens += [start, *words, start + CLOSED]
        return tokens

    def __len__(self):
        return len(self.sequences)

    def __getitem__(self, idx):
        page = torch.rand(3, *IMAGE_SIZE).round()
        pixel_values = (page - 0.5) / 0.5
        ids = [TASK_START, *self.sequences[idx], EOS][:MAX_LENGTH]
        input_ids = torch.tensor(ids + [PAD] * (MAX_LENGTH - len(ids)))
        labels = input_ids.clone()
        labels[labels == PAD] = -100
        return pixel_values, labels, " ".join(map(str, self.sequences[idx]))


def edit_distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


def build_model():
    encoder = DonutSwinModel(
        DonutSwinConfig(
            image_size=IMAGE_SIZE,
            patch_size=4,
            embed_dim=40,
            depths=[1, 1, 2, 1],
            num_heads=[2, 4, 8, 16],
            window_size=4,
        )
    )
    decoder = MBartForCausalLM(
        MBartConfig(
            vocab_size=VOCABULARY,
            d_model=256,
            decoder_layers=3,
            decoder_attention_heads=8,
            decoder_ffn_dim=1024,
            max_position_embeddings=MAX_LENGTH,
            is_decoder=True,
            add_cross_attention=True,
            add_final_layer_norm=True,
            scale_embedding=True,
            bos_token_id=BOS,
            pad_token_id=PAD,
            eos_token_id=EOS,
        )
    )
    model = VisionEncoderDecoderModel(encoder=encoder, decoder=decoder)
    model.config.pad_token_id = PAD
    model.config.decoder_start_token_id = TASK_START
    return model


class DonutModelPLModule(pl.LightningModule):
    def __init__(self, config, model):
        super().__init__()
        self.config = config
        self.model = model

    def training_step(self, batch, batch_idx):
        pixel_values, labels, _ = batch
        outputs = self.model(pixel_values, labels=labels)
        self.log("train_loss", outputs.loss, batch_size=len(labels))
        return outputs.loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        report = tell if (batch_idx + 1) % self.config["accumulate_grad_batches"] else end_of_step
        report(inputs=batch[:2], activations=outputs)

    def validation_step(self, batch, batch_idx):
        pixel_values, labels, answers = batch
        decoder_input_ids = torch.full((len(labels), 1), TASK_START, device=self.device)
        hook = self.model.register_forward_hook(self.tell_of_cache)
        outputs = self.model.generate(
            pixel_values,
            decoder_input_ids=decoder_input_ids,
            max_length=10,
            pad_token_id=PAD,
            eos_token_id=EOS,
            use_cache=True,
            num_beams=1,
            bad_words_ids=[[UNK]],
            return_dict_in_generate=True,
        )
        hook.remove()
        scores = []
        for sequence, answer in zip(outputs.sequences.tolist(), answers):
            pred = " ".join(str(t) for t in sequence if t not in (PAD, EOS))
            pred = re.sub(rf"^{TASK_START} ?", "", pred).split()
            answer = answer.split()
            scores.append(edit_distance(pred, answer) / max(len(pred), len(answer)))
        self.log("val_edit_distance", sum(scores) / len(scores), batch_size=len(scores))

    @staticmethod
    def tell_of_cache(module, args, output):
        cache = output.past_key_values
        parts = (cache.self_attention_cache, cache.cross_attention_cache)
        tell(caches=[(layer.keys, layer.values) for part in parts for layer in part.layers])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.config["lr"])

    def train_dataloader(self):
        return DataLoader(DonutDataset(8, "train"), batch_size=self.config["train_batch_size"], shuffle=True)

    def val_dataloader(self):
        return DataLoader(DonutDataset(2, "validation"), batch_size=self.config["val_batch_sizes"])


if __name__ == "__main__":
    pl.seed_everything(1005)
    config = {
        "max_epochs": 4,
        "gradient_clip_val": 1.0,
        "accumulate_grad_batches": 2,
        "lr": 3e-5,
        "train_batch_size": 2,
        "val_batch_sizes": 1,
    }
    trainer = pl.Trainer(
        accelerator="gpu" if torch.cuda.is_available() else "cpu",
        devices=1,
        max_epochs=config["max_epochs"],
        gradient_clip_val=config["gradient_clip_val"],
        accumulate_grad_batches=config["accumulate_grad_batches"],
        precision="16-mixed" if torch.cuda.is_available() else "32-true",
        num_sanity_val_steps=0,
        logger=CSVLogger("logs"),
        log_every_n_steps=1,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(DonutModelPLModule(config, build_model()))
