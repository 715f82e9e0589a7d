"""A BERT learns to put the passages of a question in order with the CrossEncoderTrainer: lists of passages with grades, LambdaLoss, bfloat16, clipped gradients, nDCG of held-out lists between."""

import random

from datasets import Dataset
from programs import end_of_step, tell
from sentence_transformers.cross_encoder import (
    CrossEncoder,
    CrossEncoderTrainer,
    CrossEncoderTrainingArguments,
)
from sentence_transformers.cross_encoder.evaluation import CrossEncoderRerankingEvaluator
from sentence_transformers.cross_encoder.losses import LambdaLoss, NDCGLoss2PPScheme
from tokenizers import BertWordPieceTokenizer
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertTokenizerFast,
    TrainerCallback,
    set_seed,
)

TOPICS = 60


def make_words(rng, n):
    syllables = [
        c + v
        for c in ("b", "ch", "d", "f", "g", "k", "l", "m", "n", "p", "r", "st", "tr", "v")
        for v in "aeiou"
    ]
    return ["".join(rng.choices(syllables, k=rng.randint(2, 4))) for _ in range(n)]


def make_lists(n, passages_of, seed):
    """Questions, each with passages that answer it (2), are about the same thing (1), or about another (0)."""
    rng = random.Random(seed)
    words = make_words(random.Random(0), 8000)
    common, topics = words[:800], [words[800 + i * 120 : 920 + i * 120] for i in range(TOPICS)]

    def text(topic, low, high, share):
        return " ".join(
            rng.choice(topics[topic] if rng.random() < share else common)
            for _ in range(rng.randint(low, high))
        )

    rows = {"query": [], "docs": [], "labels": []}
    for _ in range(n):
        topic = rng.randrange(TOPICS)
        query = text(topic, 4, 10, 0.7)
        labels = [2] + [rng.choice([0, 0, 1]) for _ in range(rng.randint(*passages_of) - 1)]
        docs = []
        for label in labels:
            passage = text(topic if label else rng.randrange(TOPICS), 20, 60, 0.4)
            docs.append(f"{passage} {query}" if label == 2 else passage)
        rows["query"].append(query)
        rows["docs"].append(docs)
        rows["labels"].append(labels)
    return Dataset.from_dict(rows)


def save_base_model(path, dataset):
    tokenizer = BertWordPieceTokenizer()
    tokenizer.train_from_iterator(
        (text for row in dataset for text in [row["query"], *row["docs"]]),
        vocab_size=6000,
        show_progress=False,
    )
    tokenizer.save_model(".")
    BertTokenizerFast(vocab="vocab.txt", model_max_length=128).save_pretrained(path)
    config = BertConfig(
        vocab_size=6000,
        hidden_size=384,
        num_hidden_layers=4,
        num_attention_heads=12,
        intermediate_size=1536,
        max_position_embeddings=128,
        num_labels=1,
    )
    BertForSequenceClassification(config).save_pretrained(path)


class RankingTrainer(CrossEncoderTrainer):
    def compute_loss(self, model, inputs, *args, **kwargs):
        tell(inputs=inputs)
        return super().compute_loss(model, inputs, *args, **kwargs)


class StepCallback(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


def main():
    set_seed(5)
    train_dataset, held_out = make_lists(48, (3, 6), seed=1), make_lists(4, (5, 5), seed=2)
    save_base_model("minilm", train_dataset)
    model = CrossEncoder("minilm", num_labels=1, max_length=80)
    loss = LambdaLoss(model, weighting_scheme=NDCGLoss2PPScheme(), mini_batch_size=8)
    evaluator = CrossEncoderRerankingEvaluator(
        samples=[
            {
                "query": row["query"],
                "positive": [doc for doc, label in zip(row["docs"], row["labels"]) if label == 2],
                "negative": [doc for doc, label in zip(row["docs"], row["labels"]) if label < 2],
            }
            for row in held_out
        ],
        batch_size=12,
        name="held-out",
        show_progress_bar=False,
    )
    args = CrossEncoderTrainingArguments(
        output_dir="reranker",
        max_steps=8,
        per_device_train_batch_size=3,
        learning_rate=2e-5,
        warmup_steps=0.1,
        max_grad_norm=1.0,
        bf16=True,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="no",
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = RankingTrainer(
        model=model,
        args=args,
        train_dataset=train_dataset,
        loss=loss,
        evaluator=evaluator,
        callbacks=[StepCallback()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
