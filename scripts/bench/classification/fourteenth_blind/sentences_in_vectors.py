"""An MPNet learns vectors of sentences with the SentenceTransformerTrainer: pairs of questions and answers by a ranking loss with other answers of the batch as wrong ones, scored pairs by CoSENT, batches of both by turns in bfloat16, two batches to a step, correlations of held-out pairs between."""

import random

from datasets import Dataset
from programs import end_of_step, tell
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    losses,
    models,
)
from sentence_transformers.evaluation import EmbeddingSimilarityEvaluator
from sentence_transformers.training_args import BatchSamplers, MultiDatasetBatchSamplers
from tokenizers import Tokenizer, pre_tokenizers, processors, trainers
from tokenizers import models as tokenizer_models
from transformers import MPNetConfig, MPNetModel, PreTrainedTokenizerFast, TrainerCallback, set_seed

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


class Language:
    """Sentences about topics; every topic has words of its own."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        syllables = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]
        words = ["".join(self.rng.choices(syllables, k=self.rng.randint(2, 4))) for _ in range(9000)]
        self.common, self.topics = words[:1000], [words[1000 + i * 100 : 1100 + i * 100] for i in range(80)]

    def sentence(self, topic, low, high):
        n = self.rng.randint(low, high)
        return " ".join(
            self.rng.choice(self.topics[topic] if self.rng.random() < 0.5 else self.common) for _ in range(n)
        )

    def questions_and_answers(self, n):
        topics = [self.rng.randrange(80) for _ in range(n)]
        return Dataset.from_dict(
            {
                "question": [self.sentence(topic, 5, 14) for topic in topics],
                "answer": [self.sentence(topic, 20, 70) for topic in topics],
            }
        )

    def scored_pairs(self, n):
        rows = {"sentence1": [], "sentence2": [], "score": []}
        for _ in range(n):
            topic, score = self.rng.randrange(80), self.rng.random()
            other = topic if score > 0.5 else self.rng.randrange(80)
            rows["sentence1"].append(self.sentence(topic, 6, 24))
            rows["sentence2"].append(self.sentence(other, 6, 24))
            rows["score"].append(score)
        return Dataset.from_dict(rows)


def save_base_model(path, texts):
    tokenizer = Tokenizer(tokenizer_models.WordPiece(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(
        texts, trainers.WordPieceTrainer(vocab_size=7000, special_tokens=SPECIAL, show_progress=False)
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        cls_token="<s>",
        pad_token="<pad>",
        eos_token="</s>",
        sep_token="</s>",
        unk_token="<unk>",
        mask_token="<mask>",
        model_max_length=128,
        model_input_names=["input_ids", "attention_mask"],
    ).save_pretrained(path)
    config = MPNetConfig(
        vocab_size=7000,
        hidden_size=384,
        num_hidden_layers=5,
        num_attention_heads=6,
        intermediate_size=1536,
        max_position_embeddings=132,
    )
    MPNetModel(config).save_pretrained(path)


class PairsTrainer(SentenceTransformerTrainer):
    def compute_loss(self, model, inputs, *args, **kwargs):
        tell(inputs=inputs)
        return super().compute_loss(model, inputs, *args, **kwargs)


class StepCallback(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


def main():
    set_seed(12)
    language = Language(seed=4)
    answers, scores = language.questions_and_answers(160), language.scored_pairs(160)
    held_out = language.scored_pairs(24)
    save_base_model("mpnet-small", [*answers["question"], *answers["answer"], *scores["sentence1"]])

    word_embedding_model = models.Transformer("mpnet-small", max_seq_length=64)
    pooling_model = models.Pooling(word_embedding_model.get_embedding_dimension(), pooling_mode="mean")
    model = SentenceTransformer(modules=[word_embedding_model, pooling_model, models.Normalize()])

    evaluator = EmbeddingSimilarityEvaluator(
        held_out["sentence1"], held_out["sentence2"], held_out["score"], batch_size=8, name="held-out"
    )
    args = SentenceTransformerTrainingArguments(
        output_dir="mpnet-answers",
        max_steps=8,
        per_device_train_batch_size=12,
        per_device_eval_batch_size=16,
        gradient_accumulation_steps=2,
        learning_rate=2e-5,
        warmup_steps=0.1,
        bf16=True,
        batch_sampler=BatchSamplers.NO_DUPLICATES,
        multi_dataset_batch_sampler=MultiDatasetBatchSamplers.ROUND_ROBIN,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="no",
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = PairsTrainer(
        model=model,
        args=args,
        train_dataset={"answers": answers, "scores": scores},
        loss={
            "answers": losses.MultipleNegativesRankingLoss(model),
            "scores": losses.CoSENTLoss(model),
        },
        evaluator=evaluator,
        callbacks=[StepCallback()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
