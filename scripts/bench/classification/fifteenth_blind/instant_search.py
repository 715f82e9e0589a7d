"""Static word vectors for instant search, as in the tutorial of sentence-transformers: a bag of embeddings and nothing else, learned from questions with answers and from titles with abstracts in turn, in-batch negatives at several truncated widths, large batches without duplicates, a rate of 0.2 with warm-up, bfloat16, ranking measured on the way."""

import random

from datasets import Dataset, DatasetDict
from programs import end_of_step, tell
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.evaluation import InformationRetrievalEvaluator
from sentence_transformers.losses import MatryoshkaLoss, MultipleNegativesRankingLoss
from sentence_transformers.models import StaticEmbedding
from sentence_transformers.training_args import BatchSamplers, MultiDatasetBatchSamplers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import TrainerCallback, set_seed


def make_words(n):
    rng = random.Random(0)
    syllables = [
        c + v
        for c in ("b", "ch", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "st", "t", "v")
        for v in "aeiou"
    ]
    return ["".join(rng.choices(syllables, k=rng.randint(1, 5))) for _ in range(n)]


WORDS = make_words(40000)


def write_pairs(n, seed, columns, lengths):
    rng = random.Random(seed)
    rows = {column: [] for column in columns}
    for _ in range(n):
        topic = rng.sample(WORDS, 6)
        for column, length in zip(columns, lengths, strict=True):
            words = rng.sample(topic, 4) + [
                WORDS[int(rng.paretovariate(0.6)) % len(WORDS)] for _ in range(rng.randint(*length))
            ]
            rng.shuffle(words)
            rows[column].append(" ".join(words))
    return Dataset.from_dict(rows)


def train_tokenizer(texts):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(
        texts,
        trainers.WordPieceTrainer(vocab_size=12000, special_tokens=["[PAD]", "[UNK]"], show_progress=False),
    )
    return tokenizer


class SearchTrainer(SentenceTransformerTrainer):
    def compute_loss(self, model, inputs, *args, **kwargs):
        tell(inputs=inputs)
        return super().compute_loss(model, inputs, *args, **kwargs)


class StepCallback(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


def search_evaluator(pairs):
    queries = {f"q{i}": text for i, text in enumerate(pairs["question"])}
    corpus = {f"d{i}": text for i, text in enumerate(pairs["answer"])}
    relevant = {f"q{i}": {f"d{i}"} for i in range(len(queries))}
    return InformationRetrievalEvaluator(
        queries, corpus, relevant, name="nano", batch_size=256, mrr_at_k=[10], ndcg_at_k=[10]
    )


def main():
    set_seed(12)
    train_dataset = DatasetDict(
        {
            "gooaq": write_pairs(2048, 1, ("question", "answer"), ((3, 8), (20, 50))),
            "s2orc": write_pairs(1024, 2, ("title", "abstract"), ((4, 10), (60, 140))),
        }
    )
    eval_pairs = write_pairs(256, 3, ("question", "answer"), ((3, 8), (20, 50)))
    tokenizer = train_tokenizer(WORDS)

    static_embedding = StaticEmbedding(tokenizer, embedding_dim=768)
    model = SentenceTransformer(modules=[static_embedding], device="cuda")
    loss = MatryoshkaLoss(
        model, MultipleNegativesRankingLoss(model), matryoshka_dims=[32, 64, 128, 256, 512, 768]
    )

    args = SentenceTransformerTrainingArguments(
        output_dir="models/static-retrieval",
        num_train_epochs=1,
        per_device_train_batch_size=512,
        per_device_eval_batch_size=512,
        learning_rate=2e-1,
        warmup_steps=0.1,
        bf16=True,
        batch_sampler=BatchSamplers.NO_DUPLICATES,
        multi_dataset_batch_sampler=MultiDatasetBatchSamplers.PROPORTIONAL,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="no",
        logging_steps=1,
        logging_first_step=True,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = SearchTrainer(
        model=model,
        args=args,
        train_dataset=train_dataset,
        loss=loss,
        evaluator=search_evaluator(eval_pairs),
        callbacks=[StepCallback()],
    )
    trainer.train()
    model.save_pretrained("models/static-retrieval/final")


if __name__ == "__main__":
    main()
