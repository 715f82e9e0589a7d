"""A help centre finds passages for questions with sentence-transformers: vectors of all passages that an earlier job stored lie on the device, questions are encoded by a MiniLM in batches, the nearest passages are read again by a cross-encoder in bfloat16, a new passage joins the index now and then."""

import random

import numpy as np
import torch
from programs import end_of_step, tell
from sentence_transformers import CrossEncoder, SentenceTransformer, models, util
from tokenizers import BertWordPieceTokenizer
from transformers import BertConfig, BertForSequenceClassification, BertModel, BertTokenizerFast, set_seed

N_PASSAGES, DIMENSION, TOP_K = 14000, 384, 16
VERBS = "reset change cancel restore connect update install remove export share".split()
NOUNS = "password account invoice router printer subscription calendar backup license profile address folder".split()
DETAILS = (
    "after the update|on my phone|for a team|without admin rights|in the browser|from another country".split(
        "|"
    )
)


def question(rng):
    return f"How do I {rng.choice(VERBS)} the {rng.choice(NOUNS)} {rng.choice(DETAILS)}?"


def passage(rng):
    steps = [
        f"{rng.choice(VERBS).capitalize()} the {rng.choice(NOUNS)} {rng.choice(DETAILS)}, then {rng.choice(VERBS)} "
        f"its {rng.choice(NOUNS)}."
        for _ in range(rng.randint(2, 5))
    ]
    return " ".join(steps)


def save_models_and_index(rng, passages):
    """What was trained and computed before."""
    tokenizer = BertWordPieceTokenizer()
    tokenizer.train_from_iterator(passages[:500], vocab_size=3000, show_progress=False)
    tokenizer.save_model(".")
    tokenizer = BertTokenizerFast(vocab="vocab.txt", model_max_length=256)
    size = dict(vocab_size=30522, hidden_size=DIMENSION, num_attention_heads=12, intermediate_size=1536)
    tokenizer.save_pretrained("all-minilm")
    BertModel(BertConfig(num_hidden_layers=4, **size)).save_pretrained("all-minilm")
    tokenizer.save_pretrained("ms-marco-minilm")
    BertForSequenceClassification(BertConfig(num_hidden_layers=4, num_labels=1, **size)).save_pretrained(
        "ms-marco-minilm"
    )
    vectors = np.random.default_rng(0).normal(size=(len(passages), DIMENSION)).astype(np.float32)
    np.save("passages.npy", vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


class HelpCenter:
    def __init__(self, passages, device):
        transformer = models.Transformer("all-minilm", max_seq_length=128)
        pooling = models.Pooling(transformer.get_embedding_dimension(), pooling_mode="mean")
        self.bi_encoder = SentenceTransformer(
            modules=[transformer, pooling, models.Normalize()], device=device
        )
        self.cross_encoder = CrossEncoder(
            "ms-marco-minilm", max_length=192, device=device, model_kwargs={"dtype": torch.bfloat16}
        )
        self.passages = list(passages)
        self.index = torch.from_numpy(np.load("passages.npy")).to(device)

    def add(self, passages):
        vectors = self.bi_encoder.encode(passages, convert_to_tensor=True, show_progress_bar=False)
        self.index = torch.cat([self.index, vectors])
        self.passages += passages

    def answer(self, questions):
        query_embeddings = self.bi_encoder.encode(
            questions, batch_size=16, convert_to_tensor=True, show_progress_bar=False
        )
        hits = util.semantic_search(query_embeddings, self.index, top_k=TOP_K, query_chunk_size=32)
        tell(activations=query_embeddings)
        found = []
        for text, candidates in zip(questions, hits):
            texts = [self.passages[hit["corpus_id"]] for hit in candidates]
            scores = self.cross_encoder.predict([(text, other) for other in texts], batch_size=16)
            found.append(texts[int(np.argmax(scores))])
        return found


def main():
    set_seed(6)
    rng = random.Random(6)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    passages = [passage(rng) for _ in range(N_PASSAGES)]
    save_models_and_index(rng, passages)
    center = HelpCenter(passages, device)
    for encoder in (center.bi_encoder, center.cross_encoder):
        encoder[0].register_forward_pre_hook(lambda module, args: tell(inputs=args))
    for request in range(4):
        questions = [question(rng) for _ in range(rng.randint(6, 10))]
        found = center.answer(questions)
        print(f"request {request}: {len(found)} answers, {found[0][:40]}")
        if request == 1:
            center.add([passage(rng) for _ in range(24)])
        end_of_step(inputs=center.index)


if __name__ == "__main__":
    main()
