"""Depth of photographed rooms with a Marigold diffusion pipeline: an ensemble per photo, LCM steps, batches, uncertainty, bfloat16."""

import json

import numpy as np
import torch
from diffusers import AutoencoderKL, LCMScheduler, MarigoldDepthPipeline, UNet2DConditionModel
from PIL import Image
from programs import end_of_step
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

RESOLUTION = 256
ENSEMBLE = 3
BATCH = 2

torch.manual_seed(21)


def empty_prompt_tokenizer():
    vocabulary = {token: index for index, token in enumerate(["<|startoftext|>", "<|endoftext|>", "a</w>"])}
    with open("vocab.json", "w") as file:
        json.dump(vocabulary, file)
    with open("merges.txt", "w") as file:
        file.write("#version: 0.2\n")
    return CLIPTokenizer("vocab.json", "merges.txt", model_max_length=77)


def build_pipeline():
    unet = UNet2DConditionModel(
        sample_size=RESOLUTION // 8,
        in_channels=8,
        out_channels=4,
        block_out_channels=(64, 128, 256, 256),
        layers_per_block=1,
        attention_head_dim=(2, 4, 8, 8),
        cross_attention_dim=256,
        use_linear_projection=True,
    )
    vae = AutoencoderKL(
        in_channels=3,
        out_channels=3,
        latent_channels=4,
        block_out_channels=(32, 64, 128, 128),
        layers_per_block=1,
        down_block_types=["DownEncoderBlock2D"] * 4,
        up_block_types=["UpDecoderBlock2D"] * 4,
        norm_num_groups=16,
        sample_size=RESOLUTION,
    )
    text_encoder = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=3,
            hidden_size=256,
            intermediate_size=1024,
            num_hidden_layers=4,
            num_attention_heads=4,
            bos_token_id=0,
            eos_token_id=1,
            pad_token_id=1,
        )
    )
    return MarigoldDepthPipeline(
        unet=unet,
        vae=vae,
        scheduler=LCMScheduler(beta_start=0.00085, beta_end=0.012, prediction_type="v_prediction"),
        text_encoder=text_encoder,
        tokenizer=empty_prompt_tokenizer(),
        prediction_type="depth",
        scale_invariant=True,
        shift_invariant=True,
        default_denoising_steps=2,
        default_processing_resolution=RESOLUTION,
    )


def photos(n):
    random = np.random.default_rng(4)
    for _ in range(n):
        coarse = random.integers(0, 255, (6, 8, 3), dtype=np.uint8)
        yield Image.fromarray(coarse).resize((480, 360), Image.BICUBIC)


pipe = build_pipeline().to("cuda", torch.bfloat16)
pipe.set_progress_bar_config(disable=True)

for number, photo in enumerate(photos(8)):
    generator = torch.Generator(device="cuda").manual_seed(2024)
    result = pipe(
        photo,
        ensemble_size=ENSEMBLE,
        batch_size=BATCH,
        generator=generator,
        ensembling_kwargs={"reduction": "median", "max_iter": 1, "max_res": 128},
        output_uncertainty=True,
    )
    pipe.image_processor.visualize_depth(result.prediction)[0].save(f"room_{number}_depth.png")
    depth = (result.prediction[0, ..., 0] * (2**16 - 1)).astype(np.uint16)
    Image.fromarray(depth).save(f"room_{number}_depth_16bit.png")
    pipe.image_processor.visualize_uncertainty(result.uncertainty)[0].save(f"room_{number}_uncertainty.png")
    print(
        f"room {number}: mean depth {result.prediction.mean():.3f}, uncertainty {result.uncertainty.mean():.3f}"
    )
    end_of_step()
