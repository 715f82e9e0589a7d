"""A GPT-2 answers prompts one after the other: greedy decoding by hand, with the cache that the model returns."""

import torch
from programs import end_of_step, tell
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel

torch.manual_seed(14)
config = GPT2Config(vocab_size=5000, n_positions=256, n_embd=320, n_layer=6, n_head=8)
model = GPT2LMHeadModel(config).to("cuda").eval()


@torch.no_grad()
def answer(prompt, n_words):
    cache = DynamicCache(config=config)
    words = prompt
    for _ in range(n_words):
        outputs = model(input_ids=words, past_key_values=cache, use_cache=True)
        tell(caches=[(layer.keys, layer.values) for layer in cache.layers])
        words = outputs.logits[:, -1].argmax(-1, keepdim=True)
        yield words, cache


for _ in range(4):
    prompt = torch.randint(0, 5000, (4, 96)).to("cuda")
    said = []
    for word, cache in answer(prompt, 12):
        said.append(word)
    end_of_step(
        inputs=[prompt],
        activations=said,
        caches=[(layer.keys, layer.values) for layer in cache.layers],
    )
