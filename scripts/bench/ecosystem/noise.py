"""Small data and models of noise, for programs that ask for some: each kind has a function below.

A row of a table names the kind and its sizes; a seed makes two files of one kind differ.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

N_WORDS = 500
N_LINES = 256
N_WORDS_OF_LINE = 60
SPECIAL = {"unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
# What a program asks of a metric that it loads by name, before it evaluates.
METRIC = """\
import datasets
import evaluate


class Nothing(evaluate.Metric):
    def _info(self):
        labels = {name: datasets.Value("int64") for name in ("predictions", "references")}
        return evaluate.MetricInfo(description="", citation="", features=datasets.Features(labels))

    def _compute(self, predictions, references):
        return {}
"""

Noise = dict[str, Any]


def write_noise(path: Path, noise: Noise, seed: int) -> None:
    """Write what a row of ``files`` asks for, as a file or folder at a path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    KINDS[noise["kind"]](path, noise, np.random.default_rng(seed))


def _integers(path: Path, noise: Noise, chance: np.random.Generator) -> None:
    """Write ``count`` integers of a ``dtype``, from 0 to ``below``."""
    chance.integers(noise["below"], size=noise["count"]).astype(noise["dtype"]).tofile(path)


def _text(path: Path, noise: Noise, chance: np.random.Generator) -> None:
    """Write lines of made-up words: plain text or, by its name, JSON with a column ``text``.

    ``lines`` is their number, where a program asks for more than the usual.
    """
    lines = [_sentence(chance) for _ in range(noise.get("lines", N_LINES))]
    if path.suffix in (".json", ".jsonl"):
        lines = [json.dumps({"text": line}) for line in lines]
    path.write_text("\n".join(lines), encoding="utf-8")


def _sentence_pairs(path: Path, noise: Noise, chance: np.random.Generator) -> None:
    """Write a data set of GLUE's columns, as a folder that ``load_dataset`` finds by its name."""
    path.mkdir()
    for split in ("train", "validation"):
        rows = [
            {
                "sentence1": _sentence(chance),
                "sentence2": _sentence(chance),
                "label": int(chance.integers(2)),
                "idx": index,
            }
            for index in range(N_LINES)
        ]
        lines = "\n".join(map(json.dumps, rows))
        (path / f"{split}.jsonl").write_text(lines, encoding="utf-8")
    files = [{"split": split, "path": f"{split}.jsonl"} for split in ("train", "validation")]
    configuration = {"configs": [{"config_name": noise["name"], "data_files": files}]}
    (path / "README.md").write_text(f"---\n{json.dumps(configuration)}\n---\n", encoding="utf-8")


def _metric(path: Path, noise: Noise, chance: np.random.Generator) -> None:
    path.write_text(METRIC, encoding="utf-8")


def _model(path: Path, noise: Noise, chance: np.random.Generator) -> None:
    """Write a small model with random weights, of a ``type`` of transformers, and a tokenizer."""
    import transformers

    _tokenizer(path)
    configuration = transformers.AutoConfig.for_model(
        noise["type"],
        vocab_size=len(SPECIAL) + N_WORDS,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=512,
        pad_token_id=1,
        bos_token_id=2,
        eos_token_id=3,
    )
    getattr(transformers, noise["class"])(configuration).save_pretrained(path)


def _tokenizer(path: Path) -> None:
    """Write a tokenizer with a token for each of the made-up words."""
    import tokenizers
    import transformers

    words = [*SPECIAL.values(), *(f"w{number}" for number in range(N_WORDS))]
    numbers = {word: number for number, word in enumerate(words)}
    model = tokenizers.models.WordLevel(numbers, unk_token=SPECIAL["unk_token"])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=512, **SPECIAL
    ).save_pretrained(path)


def _json(path: Path, noise: Noise, chance: np.random.Generator) -> None:
    """Write settings that a program reads, as the row has them."""
    path.write_text(json.dumps(noise["values"]), encoding="utf-8")


def _sentence(chance: np.random.Generator) -> str:
    return " ".join(f"w{number}" for number in chance.integers(N_WORDS, size=N_WORDS_OF_LINE))


KINDS: dict[str, Callable[[Path, Noise, np.random.Generator], None]] = {
    "integers": _integers,
    "text": _text,
    "sentence pairs": _sentence_pairs,
    "metric": _metric,
    "model": _model,
    "json": _json,
}
