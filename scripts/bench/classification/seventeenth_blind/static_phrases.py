"""Static sentence embeddings for search on small devices: an embedding bag trained with Matryoshka and in-batch negatives by the SentenceTransformerTrainer."""

import random

import torch
from datasets import Dataset
from programs import end_of_step, tell
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import MatryoshkaLoss, MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from sentence_transformers.sentence_transformer.training_args import BatchSamplers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import TrainerCallback

random.seed(8)
torch.manual_seed(8)

WORDS = [f"word{index}" for index in range(20000)]
tokenizer = Tokenizer(
    models.WordLevel({word: index for index, word in enumerate(["[UNK]", *WORDS])}, unk_token="[UNK]")
)
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()


def phrase(length):
    return " ".join(random.choices(WORDS, k=length))


pairs = Dataset.from_dict(
    {"query": [phrase(9) for _ in range(4096)], "answer": [phrase(60) for _ in range(4096)]}
)


class StepEnds(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


class SearchTrainer(SentenceTransformerTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        tell(inputs=inputs)
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)


model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=512)], device="cuda")
loss = MatryoshkaLoss(model, MultipleNegativesRankingLoss(model), matryoshka_dims=[512, 256, 128, 64, 32])
arguments = SentenceTransformerTrainingArguments(
    output_dir="static",
    per_device_train_batch_size=512,
    learning_rate=2e-1,
    warmup_steps=1,
    max_steps=6,
    bf16=True,
    optim="adamw_torch",
    batch_sampler=BatchSamplers.NO_DUPLICATES,
    logging_steps=2,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
)
SearchTrainer(model=model, args=arguments, train_dataset=pairs, loss=loss, callbacks=[StepEnds()]).train()
