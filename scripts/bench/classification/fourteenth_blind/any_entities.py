"""A GLiNER learns to find entities of types that are named in the input, as its notebook for fine-tuning does it: spans of a DeBERTa's words against the types, focal loss, its own Trainer with a faster rate for all that is not the encoder, types drawn anew for every batch, bfloat16, a loss of others between."""

import random

import torch
from gliner import GLiNER, GLiNERConfig
from gliner.training import Trainer, TrainingArguments
from programs import end_of_step, tell
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import DebertaV2Config, DebertaV2Model, PreTrainedTokenizerFast, TrainerCallback, set_seed

ENCODER = "deberta-v3-small"
TYPES = (
    "person,organization,city,country,date,drug,disease,gene,product,price,film,book,song,sports team,athlete,"
    "politician,law,court,software,programming language,chemical,species,vehicle,weapon,award,event"
).split(",")


class Texts:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        syllables = [
            c + v for c in ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "th") for v in "aeiou"
        ]
        self.words = ["".join(self.rng.choices(syllables, k=self.rng.randint(1, 4))) for _ in range(5000)]
        self.names = {kind: [word.title() for word in self.rng.sample(self.words, 60)] for kind in TYPES}

    def example(self):
        tokens, ner = [], []
        for _ in range(self.rng.randint(2, 6)):
            tokens += self.rng.choices(self.words, k=self.rng.randint(3, 9))
            kind = self.rng.choice(TYPES)
            name = self.rng.choices(self.names[kind], k=self.rng.randint(1, 3))
            ner.append([len(tokens), len(tokens) + len(name) - 1, kind])
            tokens += name
        return {"tokenized_text": [*tokens, "."], "ner": ner}

    def examples(self, n):
        return [self.example() for _ in range(n)]


def save_encoder(texts):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    tokenizer.train_from_iterator(
        (" ".join(row["tokenized_text"]) for row in texts),
        trainers.UnigramTrainer(
            vocab_size=5000, special_tokens=special, unk_token="[UNK]", show_progress=False
        ),
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        unk_token="[UNK]",
        mask_token="[MASK]",
        model_max_length=512,
        model_input_names=["input_ids", "attention_mask"],
    ).save_pretrained(ENCODER)
    config = DebertaV2Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=320,
        num_hidden_layers=4,
        num_attention_heads=5,
        intermediate_size=1280,
        max_position_embeddings=512,
        relative_attention=True,
        position_buckets=128,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
        type_vocab_size=0,
        position_biased_input=False,
    )
    DebertaV2Model(config).save_pretrained(ENCODER)


class EntityTrainer(Trainer):
    def compute_loss(self, model, inputs, *args, **kwargs):
        tell(inputs=inputs)
        return super().compute_loss(model, inputs, *args, **kwargs)


class StepCallback(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


def main():
    set_seed(21)
    texts = Texts(seed=8)
    train_dataset, eval_dataset = texts.examples(96), texts.examples(8)
    save_encoder(train_dataset)
    device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
    config = GLiNERConfig(
        model_name=ENCODER,
        name="span level gliner",
        max_width=10,
        hidden_size=320,
        dropout=0.3,
        subtoken_pooling="first",
        span_mode="markerV0",
        max_types=16,
        max_len=256,
        num_rnn_layers=1,
    )
    model = GLiNER.from_config(config)
    model.to(device)
    training_args = TrainingArguments(
        output_dir="models",
        learning_rate=5e-6,
        weight_decay=0.01,
        others_lr=1e-5,
        others_weight_decay=0.01,
        focal_loss_alpha=0.75,
        focal_loss_gamma=2,
        lr_scheduler_type="linear",
        warmup_ratio=0.1,
        per_device_train_batch_size=6,
        per_device_eval_batch_size=8,
        max_steps=8,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="no",
        logging_steps=1,
        bf16=True,
        dataloader_num_workers=0,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = EntityTrainer(
        model=model,
        args=training_args,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        processing_class=model.data_processor.transformer_tokenizer,
        data_collator=model._create_data_collator(),
        callbacks=[StepCallback()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
