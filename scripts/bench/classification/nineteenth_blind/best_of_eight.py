"""A writing service that answers by best of eight: a Gemma 3 samples eight continuations of a request, a DeBERTa reward model scores them, the best is sent; bfloat16."""

import random

import torch
from programs import end_of_step, tell
from transformers import (
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    DynamicCache,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)

random.seed(8)
torch.manual_seed(8)
device = "cuda"
SAMPLES, LONGEST, EOS, PAD = 8, 12, 1, 0

writer = Gemma3ForCausalLM(
    Gemma3TextConfig(
        vocab_size=16000,
        hidden_size=384,
        intermediate_size=1536,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=96,
        sliding_window=64,
        max_position_embeddings=1024,
        layer_types=["sliding_attention"] * 5 + ["full_attention"],
    )
)
writer = writer.to(device, torch.bfloat16).eval()
judge = DebertaV2ForSequenceClassification(
    DebertaV2Config(
        vocab_size=12000,
        hidden_size=384,
        num_hidden_layers=4,
        num_attention_heads=6,
        intermediate_size=1536,
        relative_attention=True,
        position_buckets=128,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
        max_position_embeddings=512,
        position_biased_input=False,
        type_vocab_size=0,
        num_labels=1,
    )
)
judge = judge.to(device, torch.bfloat16).eval()
warpers = LogitsProcessorList([TemperatureLogitsWarper(0.9), TopPLogitsWarper(0.95)])


def requests():
    while True:
        yield [random.randrange(4, 16000) for _ in range(random.randint(60, 120))]


@torch.inference_mode()
def sample(prompt):
    """Reads the prompt once, copies its keys and values for every sample and draws tokens until all have ended."""
    ids = torch.tensor([prompt], device=device)
    cache = DynamicCache(config=writer.config)
    logits = writer(input_ids=ids, past_key_values=cache, logits_to_keep=1).logits[:, -1]
    tell(inputs=ids, caches=[[layer.keys, layer.values] for layer in cache.layers])
    cache.batch_repeat_interleave(SAMPLES)
    logits = logits.expand(SAMPLES, -1)
    written = torch.empty(SAMPLES, 0, dtype=torch.long, device=device)
    ended = torch.zeros(SAMPLES, dtype=torch.bool, device=device)
    while True:
        token = torch.multinomial(warpers(written, logits.float()).softmax(-1), 1).squeeze(1)
        token = torch.where(ended, PAD, token)
        ended |= token == EOS
        written = torch.cat([written, token[:, None]], 1)
        tell(inputs=token, caches=[[layer.keys, layer.values] for layer in cache.layers])
        if written.shape[1] == LONGEST or ended.all().item():
            return written
        logits = writer(input_ids=token[:, None], past_key_values=cache).logits[:, -1]


def to_judge(prompt, answers):
    """Both models have tokenizers of their own; the text goes through the CPU."""
    rows = [
        [1, *(t % 11990 + 5 for t in prompt), 2, *(t % 11990 + 5 for t in answer if t != PAD), 2]
        for answer in answers
    ]
    length = max(map(len, rows))
    ids = torch.tensor([row + [0] * (length - len(row)) for row in rows])
    return {"input_ids": ids.to(device), "attention_mask": (ids != 0).long().to(device)}


for number, prompt in enumerate(requests()):
    answers = sample(prompt)
    batch = to_judge(prompt, answers.tolist())
    with torch.inference_mode():
        rewards = judge(**batch).logits.squeeze(-1).float()
    best = rewards.argmax().item()
    answer = [t for t in answers[best].tolist() if t not in (PAD, EOS)]
    print(f"request {number}: {len(prompt)} tokens in, {len(answer)} out, reward {rewards[best].item():.3f}")
    end_of_step(inputs=[batch])
    if number == 3:
        break
