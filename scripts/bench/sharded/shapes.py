"""The bytes that the first rank of a sharded Llama needs, from its shapes alone: nothing is run.

    python scripts/bench/sharded/shapes.py SIZE N_RANKS [MICRO_BATCH]

The model is transformers' own, in bfloat16, each layer computed again in backward, a root group of
embedding, head and last norm, which stays gathered from forward to backward. Two moments compete:
the backward of the loss, and that of a layer, when the gradients of its gated projection are there.
Sources: what autograd keeps of each operation of the model's file, and what FSDP2 holds at a time:
in backward, one layer and the next one gathered, and one layer's input of the reduction.
"""

import sys

from llama import LENGTH, SHAPES, Shape

_BF16, _FP32, _INT64 = 2, 4, 8
# AdamW has two states of each weight.
_STATES = 2

Terms = dict[str, int]


def n_layer_values(shape: Shape) -> int:
    """Count the weights of a layer: attention, gated projection, two norms."""
    n_keys = shape.width // shape.n_heads * shape.n_key_heads
    attention = 2 * shape.width * (shape.width + n_keys)
    return attention + 3 * shape.width * shape.n_inner + 2 * shape.width


def n_root_values(shape: Shape) -> int:
    """Count the weights of the embedding, the head and the last norm."""
    return (2 * shape.n_words + 1) * shape.width


def shard_bytes(shape: Shape, n_ranks: int) -> int:
    """Return the weights of the first rank: its share of the rows, rounded up."""
    n_keys = shape.width // shape.n_heads * shape.n_key_heads
    width, n_inner = shape.width, shape.n_inner
    # Rows, and values of a row.
    layer = [(width, width)] * 2 + [(n_keys, width)] * 2
    layer += [(n_inner, width)] * 2 + [(width, n_inner)] + [(width, 1)] * 2
    root = [(shape.n_words, width)] * 2 + [(width, 1)]
    n_values = sum(-(-rows // n_ranks) * n for rows, n in layer * shape.n_layers + root)
    return n_values * _BF16


def peak_terms(shape: Shape, n_ranks: int, micro_batch: int = 1) -> Terms:
    """Return the terms of the moment that needs most."""
    n_tokens = micro_batch * LENGTH
    shard = shard_bytes(shape, n_ranks)
    always = {
        "weights": shard,
        "optimizer states": _STATES * shard,
        "gathered root": n_root_values(shape) * _BF16,
        "tables of positions": 2 * LENGTH * shape.width // shape.n_heads * _BF16,
        "tokens and labels": 2 * n_tokens * _INT64,
    }
    moments = [_loss(shape, n_tokens)]
    moments += [_layer(shape, n_ranks, n_tokens, index) for index in range(shape.n_layers - 1)]
    return always | max(moments, key=lambda terms: sum(terms.values()))


def _loss(shape: Shape, n_tokens: int) -> Terms:
    """Return the terms in backward of the softmax: its result, and both gradients."""
    hidden = n_tokens * shape.width
    return {
        "logits in float32, three times": 3 * n_tokens * shape.n_words * _FP32,
        "inputs of all layers": shape.n_layers * hidden * _BF16,
        "last norm": _norm_bytes(shape, n_tokens),
        "last layer, gathered": n_layer_values(shape) * _BF16,
    }


def _layer(shape: Shape, n_ranks: int, n_tokens: int, index: int) -> Terms:
    """Return the terms in backward of a layer behind which another one was reduced."""
    hidden, inner = (n_tokens * width * _BF16 for width in (shape.width, shape.n_inner))
    keys = hidden // shape.n_heads * shape.n_key_heads
    layer = n_layer_values(shape) * _BF16
    return {
        "gradient of the head": shape.n_words * shape.width * _BF16,
        "gradients of this rank": (shape.n_layers - 1 - index) * -(-layer // n_ranks),
        "this layer and the next, gathered": 2 * layer,
        "input of the last reduction": layer,
        "gradients of the gated projection": 3 * shape.width * shape.n_inner * _BF16,
        "inputs of layers": (index + 1) * hidden,
        "two norms": 2 * _norm_bytes(shape, n_tokens),
        # Queries, keys and values, the result, and its sums of exponents.
        "attention": 2 * hidden + 2 * keys + n_tokens * shape.n_heads * _FP32,
        "gradients of activations": inner + 3 * hidden,
    }


def _norm_bytes(shape: Shape, n_tokens: int) -> int:
    """Return what a norm keeps: its input in float32, the root of each token, and two results."""
    return n_tokens * (shape.width * (_FP32 + 2 * _BF16) + _FP32)


def main() -> None:
    size, n_ranks, *micro_batch = sys.argv[1:]
    terms = peak_terms(SHAPES[size], int(n_ranks), *map(int, micro_batch))
    for name, n_bytes in terms.items():
        print(f"{n_bytes:>16,}  {name}")
    print(f"{sum(terms.values()):>16,}  the peak")


if __name__ == "__main__":
    main()
