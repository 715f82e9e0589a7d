"""LLaVA-NeXT-Video describes clips of security cameras: batches of sampled frames, two sampled answers each, bfloat16."""

import torch
from programs import end_of_step
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaNextVideoConfig,
    LlavaNextVideoForConditionalGeneration,
)

torch.manual_seed(17)
device = "cuda"
VIDEO, PAD, FRAMES, PER_FRAME = 5999, 0, 12, 16

config = LlavaNextVideoConfig(
    vision_config=CLIPVisionConfig(
        hidden_size=512,
        intermediate_size=2048,
        num_hidden_layers=4,
        num_attention_heads=8,
        image_size=112,
        patch_size=14,
    ),
    text_config=LlamaConfig(
        vocab_size=6000,
        hidden_size=640,
        intermediate_size=1728,
        num_hidden_layers=5,
        num_attention_heads=10,
        num_key_value_heads=10,
        max_position_embeddings=1024,
        pad_token_id=PAD,
        bos_token_id=1,
        eos_token_id=2,
    ),
    image_token_index=5998,
    video_token_index=VIDEO,
)
model = LlavaNextVideoForConditionalGeneration(config).to(device, dtype=torch.bfloat16).eval()


def clips(n_batches, batch_size=2):
    for _ in range(n_batches):
        footage = torch.randint(0, 256, (batch_size, 90, 112, 112, 3), dtype=torch.uint8)
        picked = footage[:, torch.linspace(0, 89, FRAMES).long()]
        pixels = (picked.permute(0, 1, 4, 2, 3).float() / 255 - 0.45) / 0.27
        prompts = [torch.randint(3, 5900, (int(torch.randint(14, 30, (1,))),)) for _ in range(batch_size)]
        longest = max(map(len, prompts))
        ids = torch.full((batch_size, longest + FRAMES * PER_FRAME), PAD)
        for row, prompt in enumerate(prompts):
            text = torch.cat([torch.full((FRAMES * PER_FRAME,), VIDEO), prompt])
            ids[row, -len(text) :] = text
        yield {
            "input_ids": ids,
            "attention_mask": (ids != PAD).long(),
            "pixel_values_videos": pixels.to(torch.bfloat16),
        }


for number, batch in enumerate(clips(4)):
    batch = {name: value.to(device) for name, value in batch.items()}
    with torch.inference_mode():
        answers = model.generate(
            **batch,
            do_sample=True,
            temperature=0.7,
            top_p=0.9,
            num_return_sequences=2,
            max_new_tokens=16,
            use_cache=True,
            return_dict_in_generate=True,
        )
    new = answers.sequences[:, batch["input_ids"].shape[1] :].cpu()
    print(f"clips {number}: {tuple(new.shape)}")
    end_of_step(inputs=[batch], caches=[(layer.keys, layer.values) for layer in answers.cache.layers])
