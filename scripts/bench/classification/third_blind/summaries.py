"""A BART learns to summarize under autocast, and writes summaries of a few texts after every step."""

import torch
from programs import end_of_step, tell
from torch import nn
from transformers import BartConfig, BartForConditionalGeneration, DynamicCache, EncoderDecoderCache
from transformers.generation.logits_process import LogitsProcessor, LogitsProcessorList

torch.manual_seed(66)
device = torch.device("cuda:0")

config = BartConfig(
    vocab_size=4000,
    d_model=256,
    encoder_layers=3,
    decoder_layers=3,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=768,
    decoder_ffn_dim=768,
    max_position_embeddings=256,
    forced_eos_token_id=None,
)
model = BartForConditionalGeneration(config).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-5, betas=(0.9, 0.98), eps=1e-9)
scheduler = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda step: min((step + 1) ** -0.5, (step + 1) * 4**-1.5)
)
criterion = nn.CrossEntropyLoss(ignore_index=config.pad_token_id, label_smoothing=0.1)


class TellCache(LogitsProcessor):
    """Changes nothing: it is where the benchmark learns which tensors are keys and values."""

    def __init__(self, cache):
        self.cache = cache

    def __call__(self, input_ids, scores):
        parts = (self.cache.self_attention_cache, self.cache.cross_attention_cache)
        tell(caches=[(layer.keys, layer.values) for part in parts for layer in part.layers])
        return scores


def write_summaries(texts):
    model.eval()
    cache = EncoderDecoderCache(DynamicCache(config=config), DynamicCache(config=config))
    written = model.generate(
        texts,
        max_new_tokens=8,
        num_beams=1,
        do_sample=False,
        past_key_values=cache,
        logits_processor=LogitsProcessorList([TellCache(cache)]),
    )
    model.train()
    return written.tolist()


model.train()
for step in range(4):
    texts = torch.randint(4, 4000, (6, 160), device=device)
    summaries = torch.randint(4, 4000, (6, 41), device=device)
    optimizer.zero_grad()
    with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
        logits = model(
            input_ids=texts, attention_mask=texts.ne(1).long(), decoder_input_ids=summaries[:, :-1]
        ).logits
        loss = criterion(logits.reshape(-1, config.vocab_size), summaries[:, 1:].reshape(-1))
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    scheduler.step()
    print(step, loss.item(), write_summaries(texts[:4])[0])
    end_of_step(inputs=[texts, summaries], activations=[logits, loss])
