"""Train a Llama whose layers accelerate spreads over two devices by itself."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

CONFIGURATION = LlamaConfig(
    vocab_size=512,
    hidden_size=256,
    intermediate_size=1024,
    num_hidden_layers=8,
    num_attention_heads=4,
    num_key_value_heads=4,
    tie_word_embeddings=False,
)

if __name__ == "__main__":
    LlamaForCausalLM(CONFIGURATION).save_pretrained("tiny")
    model = LlamaForCausalLM.from_pretrained(
        "tiny", device_map="auto", max_memory={0: "20MiB", 1: "1GiB"}
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        ids = torch.randint(0, 512, (2, 16), device="cuda:0")
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
