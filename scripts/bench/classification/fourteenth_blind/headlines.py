"""A T5 v1.1 learns to write headlines with the Seq2SeqTrainer, as the summarization script of transformers does it: smoothed labels, Adafactor with a constant rate, articles of similar length together, two batches to a step, headlines by beam search and word overlap between."""

import random

import numpy as np
from datasets import Dataset
from programs import end_of_step, tell
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    DataCollatorForSeq2Seq,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    TrainerCallback,
    set_seed,
)

MAX_SOURCE_LENGTH, MAX_TARGET_LENGTH = 160, 32
PREFIX = "summarize: "


def write_articles(n, seed):
    rng = random.Random(seed)
    syllables = [
        c + v
        for c in ("b", "br", "c", "d", "f", "g", "l", "m", "n", "p", "r", "s", "sh", "t", "w")
        for v in "aeiou"
    ]
    lexicon = random.Random(0)
    words = ["".join(lexicon.choices(syllables, k=lexicon.randint(1, 4))) for _ in range(6000)]
    rows = {"article": [], "headline": []}
    for _ in range(n):
        topic = rng.sample(words, 12)
        sentences = []
        for _ in range(rng.randint(3, 14)):
            sentences.append(
                " ".join(rng.choices(words, k=rng.randint(4, 9)) + rng.sample(topic, 4)).capitalize() + "."
            )
        rows["article"].append(" ".join(sentences))
        rows["headline"].append(" ".join(rng.sample(topic, rng.randint(4, 10))).capitalize())
    return Dataset.from_dict(rows)


def train_tokenizer(texts):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(
        texts,
        trainers.UnigramTrainer(
            vocab_size=6000, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
        ),
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=512,
        model_input_names=["input_ids", "attention_mask"],
    )


class HeadlineTrainer(Seq2SeqTrainer):
    def compute_loss(self, model, inputs, *args, **kwargs):
        tell(inputs=inputs)
        return super().compute_loss(model, inputs, *args, **kwargs)

    def prediction_step(self, model, inputs, *args, **kwargs):
        inputs = self._prepare_inputs(inputs)
        tell(inputs=inputs)
        return super().prediction_step(model, inputs, *args, **kwargs)


class StepCallback(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


def tell_of_cache(module, args, output):
    cache = output.past_key_values
    if cache is not None and not module.training:
        layers = [*cache.self_attention_cache.layers, *cache.cross_attention_cache.layers]
        tell(caches=[(layer.keys, layer.values) for layer in layers if layer.is_initialized])


def main():
    set_seed(42)
    raw_train, raw_eval = write_articles(96, seed=1), write_articles(4, seed=2)
    tokenizer = train_tokenizer([*raw_train["article"], *raw_train["headline"]])

    def preprocess_function(examples):
        model_inputs = tokenizer(
            [PREFIX + article for article in examples["article"]],
            max_length=MAX_SOURCE_LENGTH,
            truncation=True,
        )
        labels = tokenizer(text_target=examples["headline"], max_length=MAX_TARGET_LENGTH, truncation=True)
        model_inputs["labels"] = labels["input_ids"]
        return model_inputs

    columns = raw_train.column_names
    train_dataset = raw_train.map(preprocess_function, batched=True, remove_columns=columns)
    eval_dataset = raw_eval.map(preprocess_function, batched=True, remove_columns=columns)

    config = T5Config(
        vocab_size=6016,
        d_model=320,
        d_kv=64,
        d_ff=896,
        num_layers=4,
        num_decoder_layers=4,
        num_heads=5,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        dropout_rate=0.1,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.pad_token_id,
    )
    model = T5ForConditionalGeneration(config)
    model.register_forward_hook(tell_of_cache)
    data_collator = DataCollatorForSeq2Seq(
        tokenizer, model=model, label_pad_token_id=-100, pad_to_multiple_of=8
    )

    def compute_metrics(eval_preds):
        preds, labels = eval_preds
        preds = np.where(preds != -100, preds, tokenizer.pad_token_id)
        labels = np.where(labels != -100, labels, tokenizer.pad_token_id)
        preds = tokenizer.batch_decode(preds, skip_special_tokens=True)
        labels = tokenizer.batch_decode(labels, skip_special_tokens=True)
        shared = [
            len(set(p.split()) & set(t.split())) / max(len(t.split()), 1) for p, t in zip(preds, labels)
        ]
        return {"recall_of_words": float(np.mean(shared))}

    training_args = Seq2SeqTrainingArguments(
        output_dir="t5-headlines",
        max_steps=6,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        optim="adafactor",
        label_smoothing_factor=0.1,
        train_sampling_strategy="group_by_length",
        predict_with_generate=True,
        generation_max_length=14,
        generation_num_beams=3,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="no",
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = HeadlineTrainer(
        model=model,
        args=training_args,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        processing_class=tokenizer,
        data_collator=data_collator,
        compute_metrics=compute_metrics,
        callbacks=[StepCallback()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
