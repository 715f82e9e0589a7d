"""A small service draws clips for prompts with the Wan pipeline of diffusers: a transformer in bfloat16 and an autoencoder in full precision that decodes frame by frame, guidance in two passes, UniPC, previews of latents on the way, several clips for some prompts."""

import time

import numpy as np
import torch
from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanPipeline, WanTransformer3DModel
from programs import end_of_step, tell
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, UMT5Config, UMT5EncoderModel

WORDS = "a an the cat dog boat horse on in over under runs sleeps sails jumps through snow sea field city at night dawn bright blurred static ugly worst quality slow camera pans left right".split()
REQUESTS = [
    {"prompt": "a cat runs through the snow at dawn", "num_frames": 5, "seed": 1},
    {"prompt": "a boat sails over the sea, camera pans left", "num_frames": 9, "seed": 2},
    {"prompt": "a horse jumps in a field", "num_frames": 5, "seed": 3, "num_videos_per_prompt": 2},
]
NEGATIVE = "bright, static, blurred, worst quality, ugly"
device = torch.device("cuda")


def build_tokenizer():
    vocabulary = {word: i for i, word in enumerate(["<pad>", "</s>", "<unk>", ",", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=512,
    )


def build_pipeline():
    text_encoder = UMT5EncoderModel(
        UMT5Config(
            vocab_size=8192,
            d_model=512,
            d_kv=64,
            d_ff=1024,
            num_layers=4,
            num_heads=8,
            relative_attention_num_buckets=32,
            feed_forward_proj="gated-gelu",
        )
    )
    transformer = WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=6,
        attention_head_dim=64,
        in_channels=16,
        out_channels=16,
        text_dim=512,
        freq_dim=256,
        ffn_dim=1536,
        num_layers=5,
    )
    vae = AutoencoderKLWan(base_dim=24, z_dim=16, num_res_blocks=1)
    pipe = WanPipeline(
        tokenizer=build_tokenizer(),
        text_encoder=text_encoder.to(torch.bfloat16),
        vae=vae.to(torch.float32),
        scheduler=UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
        ),
        transformer=transformer.to(torch.bfloat16),
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe.to(device)


def on_step_end(pipe, step, timestep, callback_kwargs):
    """A rough preview now and then: the first channels of the frame in the middle."""
    latents = callback_kwargs["latents"]
    tell(inputs=[latents, callback_kwargs["prompt_embeds"], callback_kwargs["negative_prompt_embeds"]])
    if step % 2 == 1:
        frame = latents[0, :3, latents.shape[2] // 2].float()
        np.save("preview.npy", ((frame - frame.min()) / (frame.max() - frame.min() + 1e-6)).cpu().numpy())
    return callback_kwargs


def answer(pipe, request):
    generator = torch.Generator(device=device).manual_seed(request["seed"])
    start = time.time()
    output = pipe(
        prompt=request["prompt"],
        negative_prompt=NEGATIVE,
        height=80,
        width=112,
        num_frames=request["num_frames"],
        num_videos_per_prompt=request.get("num_videos_per_prompt", 1),
        num_inference_steps=3,
        guidance_scale=5.0,
        max_sequence_length=128,
        generator=generator,
        callback_on_step_end=on_step_end,
        callback_on_step_end_tensor_inputs=["latents", "prompt_embeds", "negative_prompt_embeds"],
        output_type="np",
    ).frames
    print(f"{request['prompt']}: {output.shape} in {time.time() - start:.1f} s")
    return output


def main():
    torch.manual_seed(0)
    pipe = build_pipeline()
    for i, request in enumerate(REQUESTS):
        frames = answer(pipe, request)
        np.savez_compressed(f"clip_{i}.npz", frames=(frames * 255).round().astype(np.uint8))
        end_of_step()


if __name__ == "__main__":
    main()
