"""A decoder of x-transformers learns Wikipedia byte by byte, as the repository's script for enwik8 does it: rotary positions, grouped heads of keys, gated layers, four batches to a step, clipped gradients, a loss of others and a text drawn between."""

import gzip
import random

import numpy as np
import torch
import tqdm
from programs import end_of_step, tell
from torch import optim
from torch.utils.data import DataLoader, Dataset
from x_transformers import Decoder, TransformerWrapper
from x_transformers.autoregressive_wrapper import AutoregressiveWrapper

# constants

NUM_BATCHES = int(1e5)
BATCH_SIZE = 2
GRADIENT_ACCUMULATE_EVERY = 4
LEARNING_RATE = 1e-4
VALIDATE_EVERY = 2
GENERATE_EVERY = 2
GENERATE_LENGTH = 32
SEQ_LEN = 192

# a stand-in for the first 95 million bytes of Wikipedia


def write_dump(path, n_bytes):
    rng = random.Random(0)
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(1, 9))) for _ in range(4000)]
    parts, size = [], 0
    while size < n_bytes:
        text = f"[[{rng.choice(words)}]] " + " ".join(rng.choices(words, k=rng.randint(8, 40))) + ".\n"
        parts.append(text)
        size += len(text)
    with gzip.open(path, "wb") as file:
        file.write("".join(parts).encode())


# helpers


def cycle(loader):
    while True:
        for data in loader:
            yield data


def decode_token(token):
    return str(chr(max(32, token)))


def decode_tokens(tokens):
    return "".join(list(map(decode_token, tokens)))


def tell_of_cache(module, args, output):
    logits, intermediates = output
    tell(caches=[layer.cached_kv for layer in intermediates.attn_intermediates])


class TextSamplerDataset(Dataset):
    def __init__(self, data, seq_len):
        super().__init__()
        self.data = data
        self.seq_len = seq_len

    def __getitem__(self, index):
        rand_start = torch.randint(0, self.data.size(0) - self.seq_len - 1, (1,))
        full_seq = self.data[rand_start : rand_start + self.seq_len + 1].long()
        return full_seq.cuda()

    def __len__(self):
        return self.data.size(0) // self.seq_len


def main():
    torch.manual_seed(0)
    model = TransformerWrapper(
        num_tokens=256,
        max_seq_len=SEQ_LEN,
        attn_layers=Decoder(
            dim=384,
            depth=5,
            heads=6,
            attn_kv_heads=2,
            rotary_pos_emb=True,
            ff_glu=True,
            ff_swish=True,
            use_rmsnorm=True,
        ),
    )
    model = AutoregressiveWrapper(model)
    model.cuda()

    write_dump("enwik8.gz", 400_000)
    with gzip.open("enwik8.gz") as file:
        data = np.frombuffer(file.read(400_000), dtype=np.uint8).copy()
        train_x, valid_x = np.split(data, [360_000])
        data_train, data_val = torch.from_numpy(train_x), torch.from_numpy(valid_x)

    train_dataset = TextSamplerDataset(data_train, SEQ_LEN)
    val_dataset = TextSamplerDataset(data_val, SEQ_LEN)
    train_loader = cycle(DataLoader(train_dataset, batch_size=BATCH_SIZE, drop_last=True))
    val_loader = cycle(DataLoader(val_dataset, batch_size=BATCH_SIZE, drop_last=True))

    optimizer = optim.Adam(model.parameters(), lr=LEARNING_RATE)

    for i in tqdm.tqdm(range(NUM_BATCHES), mininterval=10.0, desc="training", disable=True):
        model.train()

        for _ in range(GRADIENT_ACCUMULATE_EVERY):
            batch = next(train_loader)
            tell(inputs=batch)
            loss = model(batch)
            (loss / GRADIENT_ACCUMULATE_EVERY).backward()

        print(f"training loss: {loss.item():.4f}")
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()

        if i % VALIDATE_EVERY == 1:
            model.eval()
            with torch.no_grad():
                loss = model(next(val_loader))
                print(f"validation loss: {loss.item():.4f}")

        if i % GENERATE_EVERY == 1:
            model.eval()
            inp = random.choice(val_dataset)[:-1]
            prime = decode_tokens(inp.tolist()[:128])
            print(prime[-30:])
            hook = model.net.register_forward_hook(tell_of_cache)
            sample = model.generate(prompts=inp[:128], seq_len=GENERATE_LENGTH, cache_kv=True)
            hook.remove()
            tell(inputs=[inp, sample])
            print(decode_tokens(sample.tolist())[:30])

        end_of_step(inputs=batch, activations=loss)


if __name__ == "__main__":
    main()
