"""Made-up files that public programs read, beside their code in the checkouts."""

import gzip
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np

_N_WORDS, _N_LETTERS = 40_000, 60_000
# minGPT samples from "O God, O God!".
_LETTERS = "abcdefghij klmnopqrst\nOG,!"
# x-transformers splits its bytes at 90 million.
_N_BYTES = 95_000_000
# gcn trains on what comes after the first 1,500 papers.
_N_PAPERS, _N_TOPICS, _N_TERMS, _N_CITATIONS = 1700, 7, 300, 4000


def write_data(checkouts: Path) -> None:
    """Write what is not there, for every repository that is."""
    for name, write in _FILES.items():
        path = checkouts / name
        if (checkouts / name.partition("/")[0]).exists() and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path)


def _words(path: Path) -> None:
    chosen = random.Random(0)
    words = [f"w{chosen.randrange(1000)}" for _ in range(_N_WORDS)]
    lines = [" ".join(words[start : start + 20]) for start in range(0, _N_WORDS, 20)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _letters(path: Path) -> None:
    chosen = random.Random(0)
    path.write_text("".join(chosen.choices(_LETTERS, k=_N_LETTERS)), encoding="utf-8")


def _tokens(path: Path) -> None:
    np.random.default_rng(0).integers(0, 60, _N_LETTERS).astype(np.uint16).tofile(path)


def _bytes(path: Path) -> None:
    piece = random.Random(0).randbytes(16_000)
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(_N_BYTES // len(piece) + 1):
            file.write(piece)


def _papers(path: Path) -> None:
    """Write papers with terms and a topic each, and which cites which."""
    chosen = random.Random(0)
    rows = []
    for paper in range(_N_PAPERS):
        # The last term has every paper, so that none is without one.
        terms = [str(int(chosen.random() < 0.05)) for _ in range(_N_TERMS - 1)]
        rows.append([str(paper), *terms, "1", f"topic{paper % _N_TOPICS}"])
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    pairs = {
        (chosen.randrange(_N_PAPERS), chosen.randrange(_N_PAPERS)) for _ in range(_N_CITATIONS)
    }
    cites = "".join(f"{one}\t{other}\n" for one, other in sorted(pairs))
    path.with_name("cora.cites").write_text(cites, encoding="utf-8")


_FILES: dict[str, Callable[[Path], None]] = {
    "pytorch+examples/word_language_model/data/wikitext-2/train.txt": _words,
    "pytorch+examples/gcn/cora/cora.content": _papers,
    "pytorch+examples/gat/cora/cora.content": _papers,
    "yunjey+pytorch-tutorial/tutorials/02-intermediate/language_model/data/train.txt": _words,
    "karpathy+nanoGPT/data/shakespeare_char/train.bin": _tokens,
    "karpathy+nanoGPT/data/shakespeare_char/val.bin": _tokens,
    "karpathy+nanoGPT/data/openwebtext/train.bin": _tokens,
    "karpathy+minGPT/projects/chargpt/input.txt": _letters,
    "lucidrains+x-transformers/data/enwik8.gz": _bytes,
}
