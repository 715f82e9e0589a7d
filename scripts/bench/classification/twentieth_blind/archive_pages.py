"""Scanned pages of a town's archive are read by GOT-OCR2 in small batches: bfloat16, greedy decoding with a cache, no repeated phrases, results written as text."""

import json

import torch
from programs import end_of_step, tell
from torch.utils.data import DataLoader, Dataset
from transformers import GotOcr2Config, GotOcr2ForConditionalGeneration

torch.manual_seed(1)
device = "cuda"
page_size = 384
image_token = 2999
tokens_per_page = (page_size // 64) ** 2


class Pages(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        page = torch.full((3, page_size, page_size), 235, dtype=torch.uint8)
        for line in range(20, page_size - 20, 14):
            page[:, line : line + 8, 30 : 30 + int(torch.randint(150, 330, (1,)))] = 40
        pixels = (page.float() / 255 - 0.48) / 0.27
        prompt = [1, 5, 9] + [image_token] * tokens_per_page + [11, 17, 23, 4]
        return {"id": index, "pixel_values": pixels, "input_ids": torch.tensor(prompt)}


config = GotOcr2Config(
    vision_config={
        "hidden_size": 256,
        "output_channels": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "image_size": page_size,
        "mlp_dim": 1024,
        "window_size": 14,
        "global_attn_indexes": [1, 3],
        "initializer_range": 0.02,
    },
    text_config={
        "model_type": "qwen2",
        "vocab_size": 3000,
        "hidden_size": 512,
        "intermediate_size": 1408,
        "num_hidden_layers": 5,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "max_position_embeddings": 1024,
    },
    image_token_index=image_token,
    image_seq_length=tokens_per_page,
)
model = GotOcr2ForConditionalGeneration(config).to(device=device, dtype=torch.bfloat16).eval()


def keys_and_values(cache):
    return [t for layer in cache.layers for t in (layer.keys, layer.values)]


model.register_forward_hook(lambda module, args, output: tell(caches=keys_and_values(output.past_key_values)))
loader = DataLoader(Pages(16), batch_size=4)

with open("pages.jsonl", "w") as out:
    for batch in loader:
        pixel_values = batch["pixel_values"].to(device, torch.bfloat16)
        input_ids = batch["input_ids"].to(device)
        attention_mask = torch.ones_like(input_ids)
        with torch.inference_mode():
            generated = model.generate(
                input_ids=input_ids,
                attention_mask=attention_mask,
                pixel_values=pixel_values,
                do_sample=False,
                max_new_tokens=14,
                no_repeat_ngram_size=8,
                eos_token_id=2,
                pad_token_id=0,
                return_dict_in_generate=True,
            )
        texts = generated.sequences[:, input_ids.shape[1] :].tolist()
        for page, text in zip(batch["id"].tolist(), texts):
            out.write(json.dumps({"page": page, "tokens": text}) + "\n")
        print(f"{len(texts)} pages read")
        end_of_step(
            inputs=[pixel_values, input_ids, attention_mask],
            caches=keys_and_values(generated.past_key_values),
        )
