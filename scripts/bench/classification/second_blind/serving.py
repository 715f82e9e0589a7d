"""A Llama in bfloat16 serves requests from a static cache that is reset between them."""

import torch
from programs import end_of_step
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

torch.manual_seed(15)
config = LlamaConfig(
    vocab_size=6000,
    hidden_size=384,
    intermediate_size=1024,
    num_hidden_layers=5,
    num_attention_heads=6,
    num_key_value_heads=2,
    max_position_embeddings=512,
)
model = LlamaForCausalLM(config).to(device="cuda", dtype=torch.bfloat16).eval()
cache = StaticCache(config=config, max_cache_len=320)


@torch.inference_mode()
def complete(request, n_words):
    cache.reset()
    n_given = request.shape[1]
    outputs = model(request, past_key_values=cache, cache_position=torch.arange(n_given, device="cuda"))
    word = outputs.logits[:, -1:].argmax(-1)
    words = [word]
    for place in range(n_given, n_given + n_words - 1):
        outputs = model(word, past_key_values=cache, cache_position=torch.tensor([place], device="cuda"))
        word = outputs.logits[:, -1:].argmax(-1)
        words.append(word)
    return torch.cat(words, dim=1)


for _ in range(4):
    request = torch.randint(0, 6000, (8, 128), device="cuda")
    reply = complete(request, 8)
    print(reply.tolist()[0][:4])
    end_of_step(inputs=[request], caches=[(layer.keys, layer.values) for layer in cache.layers])
