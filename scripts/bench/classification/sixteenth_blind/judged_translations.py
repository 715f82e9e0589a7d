"""A COMET metric is trained to predict human scores of translations: XLM-R with layerwise rates, Lightning, 16-mixed."""

import logging
import random
import warnings
from pathlib import Path

import pandas as pd
import pytorch_lightning as pl
from comet.encoders import str2encoder
from comet.encoders.xlmr import XLMREncoder
from comet.models import RegressionMetric
from programs import end_of_step, tell
from pytorch_lightning.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import XLMRobertaConfig, XLMRobertaTokenizerFast

warnings.filterwarnings("ignore")
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
pl.seed_everything(3)

SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "er", "il", "on", "us")]


def sentence(rng, low=8, high=20):
    return " ".join(
        "".join(rng.choices(SYLLABLES, k=rng.randint(1, 4))) for _ in range(rng.randint(low, high))
    )


def worsened(rng, text, share):
    return " ".join(sentence(rng, 1, 1) if rng.random() < share else word for word in text.split())


def write_scores(path, rows, seed):
    rng = random.Random(seed)
    table = []
    for _ in range(rows):
        reference = sentence(rng)
        share = rng.random()
        table.append((sentence(rng), worsened(rng, reference, share), reference, round(1 - share, 3)))
    pd.DataFrame(table, columns=["src", "mt", "ref", "score"]).to_csv(path, index=False)


def small_xlmr(folder):
    rng = random.Random(0)
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer.train_from_iterator(
        (sentence(rng) for _ in range(400)),
        trainers.UnigramTrainer(
            vocab_size=6000, special_tokens=special, unk_token="<unk>", show_progress=False
        ),
    )
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    XLMRobertaTokenizerFast(tokenizer_object=tokenizer, model_max_length=256).save_pretrained(folder)
    XLMRobertaConfig(
        vocab_size=12000,
        hidden_size=320,
        num_hidden_layers=4,
        num_attention_heads=5,
        intermediate_size=1280,
        max_position_embeddings=258,
        type_vocab_size=1,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
    ).save_pretrained(folder)


class Encoder(XLMREncoder):
    """The encoder of COMET for transformers 5, whose tuple has no place for a missing pooler."""

    @classmethod
    def from_pretrained(cls, pretrained_model, load_pretrained_weights=True, local_files_only=False):
        return cls(pretrained_model, load_pretrained_weights, local_files_only)

    def forward(self, input_ids, attention_mask, **kwargs):
        output = self.model(input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=True)
        return {
            "sentemb": output.last_hidden_state[:, 0, :],
            "wordemb": output.last_hidden_state,
            "all_layers": output.hidden_states,
            "attention_mask": attention_mask,
        }


str2encoder["XLM-RoBERTa"] = Encoder


class Progress(pl.Callback):
    def __init__(self, accumulate):
        self.accumulate = accumulate

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        tell(inputs=[batch[0], batch[1].score])

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if (batch_idx + 1) % self.accumulate == 0:
            end_of_step(inputs=[batch[0], batch[1].score], activations=[outputs["loss"]])


def main():
    data = Path("data")
    data.mkdir(exist_ok=True)
    write_scores(data / "train.csv", 24, 1)
    write_scores(data / "dev.csv", 8, 2)
    small_xlmr("xlmr-small")

    model = RegressionMetric(
        nr_frozen_epochs=0.3,
        keep_embeddings_frozen=True,
        optimizer="AdamW",
        warmup_steps=0,
        encoder_learning_rate=1e-5,
        learning_rate=3e-5,
        layerwise_decay=0.95,
        encoder_model="XLM-RoBERTa",
        pretrained_model="./xlmr-small",
        pool="avg",
        layer="mix",
        layer_transformation="sparsemax",
        layer_norm=False,
        dropout=0.1,
        batch_size=4,
        train_data=[str(data / "train.csv")],
        validation_data=[str(data / "dev.csv")],
        hidden_sizes=[768, 384],
        load_pretrained_weights=False,
        local_files_only=True,
    )
    trainer = pl.Trainer(
        accelerator="gpu",
        devices=1,
        precision="16-mixed",
        max_epochs=2,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        log_every_n_steps=2,
        num_sanity_val_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=CSVLogger("logs"),
        callbacks=[
            ModelCheckpoint(monitor="val_kendall", mode="max", save_weights_only=True),
            EarlyStopping(monitor="val_kendall", mode="max", patience=2),
            LearningRateMonitor(logging_interval="step"),
            Progress(2),
        ],
    )
    trainer.fit(model)


if __name__ == "__main__":
    main()
