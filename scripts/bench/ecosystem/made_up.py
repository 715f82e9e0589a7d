"""Made-up data sets of the layouts that drawn programs read, so that none of them downloads one.

Each kind has a function below, as in ``noise``, whose kinds a row may name too. Libraries that the
programs bring are imported by their names, where they are there.
"""

import gzip
import json
import pickle
import struct
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from scripts.bench.ecosystem import noise
from scripts.bench.ecosystem.noise import Noise

N_IMAGES = 512
N_NODES, N_TERMS, N_TOPICS = 1000, 64, 7
# x-transformers' kin split their bytes at 90 million.
N_BYTES = 95_000_000

Chance = np.random.Generator


def write_files(path: Path, row: Noise, seed: int) -> None:
    """Write what a row of ``files`` asks for, as a file or folder at a path."""
    if row["kind"] not in KINDS:
        noise.write_noise(path, row, seed)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    KINDS[row["kind"]](path, row, np.random.default_rng(seed))


def _digits(path: Path, row: Noise, chance: Chance) -> None:
    """Write the four files of MNIST, of bytes behind a head of sizes."""
    path.mkdir(parents=True)
    for split in ("train", "t10k"):
        images = chance.integers(256, size=(N_IMAGES, 28, 28), dtype=np.uint8)
        labels = (np.arange(N_IMAGES) % 10).astype(np.uint8)
        for name, values in (("images-idx3", images), ("labels-idx1", labels)):
            head = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
            (path / f"{split}-{name}-ubyte").write_bytes(head + values.tobytes())


def _photographs(path: Path, row: Noise, chance: Chance) -> None:
    """Write the pickles of CIFAR-10 or CIFAR-100."""
    path.mkdir(parents=True)
    n_classes = row["classes"]
    batches = ["test_batch", *(f"data_batch_{number}" for number in range(1, 6))]
    label, names, meta = "labels", batches, "batches.meta"
    if n_classes == 100:
        label, names, meta = "fine_labels", ["train", "test"], "meta"
    for name in names:
        images = chance.integers(256, size=(N_IMAGES, 3072), dtype=np.uint8)
        labels = [number % n_classes for number in range(N_IMAGES)]
        (path / name).write_bytes(pickle.dumps({"data": images, label: labels}))
    kinds = [f"kind {number}" for number in range(n_classes)]
    (path / meta).write_bytes(pickle.dumps({"label_names": kinds, "fine_label_names": kinds}))


def _pictures(path: Path, row: Noise, chance: Chance) -> None:
    """Write pictures of two classes in folders; with captions, in one folder with a table."""
    image = import_module("PIL.Image")
    lines = []
    for number in range(64):
        name = f"{number}.png" if row.get("captions") else f"class {number % 2}/{number}.png"
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        image.fromarray(chance.integers(256, size=(64, 64, 3), dtype=np.uint8)).save(path / name)
        lines.append(json.dumps({"file_name": name, "text": f"w{number} w1"}))
    if row.get("captions"):
        (path / "metadata.jsonl").write_text("\n".join(lines), encoding="utf-8")


def _points(path: Path, row: Noise, chance: Chance) -> None:
    """Write shapes of ShapeNet's layout: points, and the part that each belongs to."""
    names = [f"shape{number}" for number in range(24)]
    folder = path / "03001627"
    for part in (folder / "points", folder / "points_label", path / "train_test_split"):
        part.mkdir(parents=True)
    (path / "synsetoffset2category.txt").write_text("Chair\t03001627\n", encoding="utf-8")
    for name in names:
        np.savetxt(folder / "points" / f"{name}.pts", chance.normal(size=(600, 3)))
        parts = chance.integers(1, 5, size=600)
        np.savetxt(folder / "points_label" / f"{name}.seg", parts, fmt="%d")
    listed = json.dumps([f"shape_data/03001627/{name}" for name in names])
    for split in ("train", "val", "test"):
        file = path / "train_test_split" / f"shuffled_{split}_file_list.json"
        file.write_text(listed, encoding="utf-8")


def _citations(path: Path, row: Noise, chance: Chance) -> None:
    """Write Planetoid's files of Cora: terms and topic of each paper, and which cites which."""
    path.mkdir(parents=True)
    present = chance.random((N_NODES, N_TERMS)) < 0.2
    terms = import_module("scipy.sparse").csr_matrix(present.astype(np.float32))
    topics = np.eye(N_TOPICS, dtype=np.int32)[np.arange(N_NODES) % N_TOPICS]
    n_train, n_known = 140, 800
    cited = {
        paper: [*chance.integers(N_NODES, size=4).tolist(), (paper + 1) % N_NODES]
        for paper in range(N_NODES)
    }
    parts = {"": slice(n_train), "t": slice(n_known, None), "all": slice(n_known)}
    values: dict[str, Any] = {"graph": cited}
    for name, part in parts.items():
        values |= {f"{name}x": terms[part], f"{name}y": topics[part]}
    for name, value in values.items():
        (path / f"ind.cora.{name}").write_bytes(pickle.dumps(value))
    tested = "\n".join(map(str, range(n_known, N_NODES)))
    (path / "ind.cora.test.index").write_text(tested, encoding="utf-8")


def _molecule_graphs(path: Path, row: Noise, chance: Chance) -> None:
    """Write MUTAG's files: rings of atoms, with their kinds."""
    path.mkdir(parents=True)
    n_graphs, n_atoms = 188, 12
    bonds = []
    for graph in range(n_graphs):
        first = graph * n_atoms + 1
        ring = [(first + atom, first + (atom + 1) % n_atoms) for atom in range(n_atoms)]
        bonds += [f"{one}, {other}" for one, other in (*ring, *((b, a) for a, b in ring))]
    columns = {
        "A": bonds,
        "graph_indicator": [1 + atom // n_atoms for atom in range(n_graphs * n_atoms)],
        "graph_labels": [1 if graph % 2 else -1 for graph in range(n_graphs)],
        "node_labels": chance.integers(7, size=n_graphs * n_atoms).tolist(),
        "edge_labels": chance.integers(4, size=len(bonds)).tolist(),
    }
    for name, values in columns.items():
        text = "\n".join(map(str, values)) + "\n"
        (path / f"MUTAG_{name}.txt").write_text(text, encoding="utf-8")


def _molecules(path: Path, row: Noise, chance: Chance) -> None:
    """Write a table of chains of carbon, oxygen and nitrogen, with a number each."""
    rows = [f"{''.join(chance.choice(list('CCON'), 9))},{chance.normal():.3f}" for _ in range(200)]
    path.write_text("\n".join(["smiles,value", *rows]), encoding="utf-8")


def _messages(path: Path, row: Noise, chance: Chance) -> None:
    """Write messages with their label, spam or ham."""
    rows = [f"{('ham', 'spam')[number % 2]}\tw{number} w{number % 7} w1" for number in range(400)]
    path.write_text("\n".join(rows), encoding="utf-8")


def _scored_pairs(path: Path, row: Noise, chance: Chance) -> None:
    """Write pairs of sentences with a score, as a folder that ``load_dataset`` finds."""
    noise.write_noise(path, {"kind": "sentence pairs", "name": "default"}, 0)
    for name in ("train", "validation"):
        lines = (path / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
        scored = [
            {"sentence1": one["sentence1"], "sentence2": one["sentence2"], "score": one["label"]}
            for one in rows
        ]
        text = "\n".join(json.dumps(one | {"score": float(one["score"])}) for one in scored)
        (path / f"{name}.jsonl").write_text(text, encoding="utf-8")
    (path / "test.jsonl").write_text(text, encoding="utf-8")
    (path / "README.md").unlink()


def _sentences_in_pairs(path: Path, row: Noise, chance: Chance) -> None:
    """Write two sentences a line, a tab between them."""
    words = [f"w{number}" for number in range(200)]
    lines = [
        "\t".join(" ".join(chance.choice(words, 8)) for _ in range(2)) for _ in range(noise.N_LINES)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _picture_pairs(path: Path, row: Noise, chance: Chance) -> None:
    """Write small and large pictures of HDF5; named ones are data sets of their own."""
    with import_module("h5py").File(path, "w") as file:
        for name in ("lr", "hr"):
            images = chance.random((64, 33, 33), dtype=np.float32) * 255
            if row.get("named"):
                group = file.create_group(name)
                for number, image in enumerate(images[:4]):
                    group.create_dataset(str(number), data=image)
            else:
                file.create_dataset(name, data=images)


def _bytes(path: Path, row: Noise, chance: Chance) -> None:
    """Write a packed file of as many bytes as the programs ask for."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(chance.bytes(16_000) * (N_BYTES // 16_000 + 1))


def _lines(path: Path, row: Noise, chance: Chance) -> None:
    """Write the lines of the row: a script that calls a function of the program."""
    path.write_text("\n".join(row["lines"]) + "\n", encoding="utf-8")


def _diffusion_pipeline(path: Path, row: Noise, chance: Chance) -> None:
    """Write a small pipeline of Stable Diffusion's parts with random weights."""
    diffusers, transformers = import_module("diffusers"), import_module("transformers")
    letters = [chr(33 + number) for number in range(94)]
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    source = path / "tokenizer"
    source.mkdir(parents=True)
    numbers = json.dumps({word: number for number, word in enumerate(words)})
    (source / "vocab.json").write_text(numbers, encoding="utf-8")
    (source / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    tokenizer = transformers.CLIPTokenizer(
        str(source / "vocab.json"), str(source / "merges.txt"), model_max_length=77
    )
    text = transformers.CLIPTextConfig(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        bos_token_id=len(words) - 2,
        eos_token_id=len(words) - 1,
        pad_token_id=len(words) - 1,
    )
    diffusers.StableDiffusionPipeline(
        vae=diffusers.AutoencoderKL(
            block_out_channels=(32, 64),
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            latent_channels=4,
        ),
        text_encoder=transformers.CLIPTextModel(text),
        tokenizer=tokenizer,
        unet=diffusers.UNet2DConditionModel(
            block_out_channels=(32, 64),
            layers_per_block=1,
            sample_size=32,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            cross_attention_dim=32,
            attention_head_dim=8,
        ),
        scheduler=diffusers.DDPMScheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    ).save_pretrained(path)


KINDS: dict[str, Callable[[Path, Noise, Chance], None]] = {
    "digits": _digits,
    "photographs": _photographs,
    "pictures": _pictures,
    "points": _points,
    "citations": _citations,
    "molecule graphs": _molecule_graphs,
    "molecules": _molecules,
    "messages": _messages,
    "scored pairs": _scored_pairs,
    "sentences in pairs": _sentences_in_pairs,
    "picture pairs": _picture_pairs,
    "bytes": _bytes,
    "lines": _lines,
    "diffusion pipeline": _diffusion_pipeline,
}
