"""Inference only: a Llama answers a few prompts, greedily, with its cache of keys and values."""

import torch
from own_count import print_count
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(11)

model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=4096,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
)
model = model.half().to("cuda").eval()
prompts = torch.randint(2, 4096, (8, 200)).to("cuda")

with torch.inference_mode():
    answer = model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=24,
        do_sample=False,
        return_dict_in_generate=True,
    )

cache = answer.past_key_values
print(answer.sequences.shape)
print_count(model, kv_cache=[(layer.keys, layer.values) for layer in cache.layers])
