"""ByT5 learns to write Latin names in Cyrillic: an Ignite engine with its EMA handler, Adan, warm-up into a cosine, label smoothing, float32."""

import random

import torch
from ignite.engine import Engine, Events
from ignite.handlers import (
    CosineAnnealingScheduler,
    EMAHandler,
    ModelCheckpoint,
    create_lr_scheduler_with_warmup,
)
from ignite.metrics import Average, RunningAverage
from ignite.utils import convert_tensor, manual_seed
from programs import end_of_step, tell
from pytorch_optimizer import Adan
from torch import nn
from torch.utils.data import DataLoader
from transformers import (
    ByT5Tokenizer,
    DynamicCache,
    EncoderDecoderCache,
    T5Config,
    T5ForConditionalGeneration,
)

LETTERS = {
    "shch": "щ", "zh": "ж", "kh": "х", "ts": "ц", "ch": "ч", "sh": "ш", "yu": "ю", "ya": "я", "a": "а", "b": "б",
    "v": "в", "g": "г", "d": "д", "e": "е", "z": "з", "i": "и", "y": "й", "k": "к", "l": "л", "m": "м", "n": "н",
    "o": "о", "p": "п", "r": "р", "s": "с", "t": "т", "u": "у", "f": "ф",
}  # fmt: skip
CONSONANTS = [latin for latin in LETTERS if latin not in ("a", "e", "i", "o", "u", "yu", "ya")]
VOWELS = ["a", "e", "i", "o", "u", "yu", "ya"]


def names(count, seed):
    rng = random.Random(seed)
    pairs = []
    for _ in range(count):
        words = []
        for _ in range(rng.randint(1, 3)):
            word = []
            for _ in range(rng.randint(2, 5)):
                word += [rng.choice(CONSONANTS), rng.choice(VOWELS)]
            words.append([*word, rng.choice(["n", "v", "k", "ts", ""])])
        latin = " ".join("".join(word).capitalize() for word in words)
        cyrillic = " ".join("".join(LETTERS.get(part, "") for part in word).capitalize() for word in words)
        pairs.append((latin, cyrillic))
    return pairs


class BeamCache(EncoderDecoderCache):
    """Keys and values of all beams, which are put into a new order after every token."""

    def reorder_cache(self, beam_idx):
        self.show()
        super().reorder_cache(beam_idx)
        self.show()

    def show(self):
        layers = [*self.self_attention_cache.layers, *self.cross_attention_cache.layers]
        tell(caches=[(layer.keys, layer.values) for layer in layers])


def main():
    manual_seed(31)
    device = "cuda"
    tokenizer = ByT5Tokenizer()

    def collate(pairs):
        sources, targets = zip(*pairs)
        batch = tokenizer(list(sources), padding=True, return_tensors="pt")
        labels = tokenizer(list(targets), padding=True, return_tensors="pt").input_ids
        return {**batch, "labels": labels.masked_fill(labels == tokenizer.pad_token_id, -100)}

    train_loader = DataLoader(names(160, 1), batch_size=10, shuffle=True, collate_fn=collate, drop_last=True)
    dev_loader = DataLoader(names(8, 2), batch_size=8, collate_fn=collate)

    config = T5Config(
        vocab_size=384,
        d_model=288,
        d_kv=64,
        d_ff=768,
        num_layers=4,
        num_decoder_layers=2,
        num_heads=5,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        dropout_rate=0.1,
        decoder_start_token_id=0,
    )
    model = T5ForConditionalGeneration(config).to(device)
    criterion = nn.CrossEntropyLoss(ignore_index=-100, label_smoothing=0.1)
    optimizer = Adan(model.parameters(), lr=5e-4, weight_decay=0.02, weight_decouple=True)

    def update(engine, batch):
        model.train()
        batch = {name: convert_tensor(tensor, device) for name, tensor in batch.items()}
        optimizer.zero_grad()
        logits = model(**batch).logits
        loss = criterion(logits.flatten(0, 1), batch["labels"].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        engine.state.model_batch = batch
        return {"loss": loss, "logits": logits, "labels": batch["labels"]}

    trainer = Engine(update)
    scheduler = create_lr_scheduler_with_warmup(
        CosineAnnealingScheduler(optimizer, "lr", start_value=5e-4, end_value=1e-6, cycle_size=400),
        warmup_start_value=1e-6,
        warmup_duration=20,
    )
    trainer.add_event_handler(Events.ITERATION_STARTED, scheduler)
    ema = EMAHandler(model, momentum=0.001)
    ema.attach(trainer, name="ema_momentum", event=Events.ITERATION_COMPLETED)
    RunningAverage(output_transform=lambda output: output["loss"].item()).attach(trainer, "loss")

    @torch.no_grad()
    def check(engine, batch):
        ema.ema_model.eval()
        labels = batch["labels"].masked_fill(batch["labels"] == -100, tokenizer.pad_token_id)
        ids = convert_tensor(batch["input_ids"], device)
        mask = convert_tensor(batch["attention_mask"], device)
        cache = BeamCache(DynamicCache(), DynamicCache())
        written = ema.ema_model.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=16, num_beams=2, cache=cache
        )
        written = tokenizer.batch_decode(written, skip_special_tokens=True)
        gold = tokenizer.batch_decode(labels, skip_special_tokens=True)
        return sum(a == b for a, b in zip(written, gold)) / len(gold)

    evaluator = Engine(check)
    Average().attach(evaluator, "exact")

    @trainer.on(Events.ITERATION_COMPLETED(every=2))
    def validate(engine):
        evaluator.run(dev_loader)
        print(
            f"iteration {engine.state.iteration} loss {engine.state.metrics['loss']:.3f} "
            f"exact {evaluator.state.metrics['exact']:.3f} lr {optimizer.param_groups[0]['lr']:.2e}"
        )

    evaluator.add_event_handler(
        Events.COMPLETED,
        ModelCheckpoint("checkpoints", "best", n_saved=1, score_function=lambda e: e.state.metrics["exact"]),
        {"model": ema.ema_model},
    )

    @trainer.on(Events.ITERATION_COMPLETED)
    def ended(engine):
        output = engine.state.output
        end_of_step(inputs=engine.state.model_batch, activations=[output["loss"], output["logits"]])

    trainer.run(train_loader, max_epochs=2)


if __name__ == "__main__":
    main()
