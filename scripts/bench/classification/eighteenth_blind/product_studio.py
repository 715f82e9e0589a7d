"""A service that puts photographed products before new backgrounds, bfloat16, requests one by one: D-FINE finds the product, ViTMatte cuts it out, a Stable Diffusion inpainting pipeline paints around it, and all is blended on the GPU."""

import queue

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import (
    AutoencoderKL,
    DPMSolverMultistepScheduler,
    StableDiffusionInpaintPipeline,
    UNet2DConditionModel,
)
from PIL import Image
from programs import end_of_step, tell
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    DFineConfig,
    DFineForObjectDetection,
    HGNetV2Config,
    RTDetrImageProcessor,
    VitDetConfig,
    VitMatteConfig,
    VitMatteForImageMatting,
    VitMatteImageProcessor,
)

torch.manual_seed(31)
device, dtype = torch.device("cuda"), torch.bfloat16
SIDE = 256


class Studio:
    def __init__(self):
        self.finder = DFineForObjectDetection(
            DFineConfig(
                backbone_config=HGNetV2Config(
                    stem_channels=[3, 16, 16],
                    embedding_size=16,
                    depths=[1, 1, 2, 1],
                    hidden_sizes=[64, 256, 512, 1024],
                    stage_in_channels=[16, 64, 256, 512],
                    stage_mid_channels=[16, 32, 64, 128],
                    stage_out_channels=[64, 256, 512, 1024],
                    stage_num_blocks=[1, 1, 2, 1],
                    stage_numb_of_layers=[3, 3, 3, 3],
                    use_learnable_affine_block=True,
                    out_features=["stage3", "stage4"],
                ),
                encoder_in_channels=[512, 1024],
                feat_strides=[16, 32],
                encode_proj_layers=[1],
                num_feature_levels=2,
                encoder_hidden_dim=128,
                d_model=128,
                encoder_ffn_dim=512,
                decoder_ffn_dim=512,
                decoder_in_channels=[128, 128],
                decoder_n_points=[6, 6],
                decoder_layers=3,
                num_queries=100,
                hidden_expansion=0.34,
                depth_mult=0.5,
                num_labels=80,
            )
        )
        self.matter = VitMatteForImageMatting(
            VitMatteConfig(
                backbone_config=VitDetConfig(
                    hidden_size=192,
                    num_hidden_layers=6,
                    num_attention_heads=3,
                    num_channels=4,
                    image_size=SIDE,
                    pretrain_image_size=224,
                    window_size=7,
                    window_block_indices=[0, 1, 3, 4],
                    residual_block_indices=[2, 5],
                    use_relative_position_embeddings=True,
                    out_features=["stage6"],
                ),
                hidden_size=192,
                convstream_hidden_sizes=[24, 48, 96],
                fusion_hidden_sizes=[128, 64, 32, 16],
            )
        )
        self.text_encoder = CLIPTextModel(
            CLIPTextConfig(
                vocab_size=6000,
                hidden_size=256,
                intermediate_size=1024,
                num_hidden_layers=4,
                num_attention_heads=4,
                bos_token_id=5998,
                eos_token_id=5999,
                pad_token_id=5999,
            )
        )
        self.painter = StableDiffusionInpaintPipeline(
            vae=AutoencoderKL(
                down_block_types=("DownEncoderBlock2D",) * 4,
                up_block_types=("UpDecoderBlock2D",) * 4,
                block_out_channels=(16, 32, 64, 64),
                layers_per_block=1,
                norm_num_groups=8,
            ),
            text_encoder=self.text_encoder,
            tokenizer=None,
            unet=UNet2DConditionModel(
                sample_size=SIDE // 8,
                in_channels=9,
                block_out_channels=(64, 128, 256, 256),
                layers_per_block=1,
                cross_attention_dim=256,
                attention_head_dim=8,
            ),
            scheduler=DPMSolverMultistepScheduler(
                beta_start=0.00085,
                beta_end=0.012,
                beta_schedule="scaled_linear",
                use_karras_sigmas=True,
                steps_offset=1,
            ),
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
        )
        self.painter.to(device, dtype)
        self.painter.set_progress_bar_config(disable=True)
        self.finder.to(device, dtype).eval()
        self.matter.to(device, dtype).eval()
        self.find_inputs = RTDetrImageProcessor(size={"height": SIDE, "width": SIDE})
        self.matte_inputs = VitMatteImageProcessor()
        self.phrases = {}

    def words(self, prompt):
        ids = [sum(map(ord, word)) * 37 % 5998 for word in prompt.split()][:75]
        return [5998, *ids] + [5999] * (76 - len(ids))

    def embedding(self, prompt):
        if prompt not in self.phrases:
            ids = torch.tensor([self.words(prompt)], device=device)
            self.phrases[prompt] = self.text_encoder(ids)[0].cpu()
        return self.phrases[prompt].to(device)

    def box(self, photo):
        inputs = self.find_inputs(images=photo, return_tensors="pt").to(device, dtype)
        tell(inputs=inputs)
        outputs = self.finder(**inputs)
        found = self.find_inputs.post_process_object_detection(
            outputs, target_sizes=[(photo.height, photo.width)], threshold=0.0
        )[0]
        best = found["boxes"][found["scores"].argmax()].tolist()
        x0, y0 = max(0, int(best[0])), max(0, int(best[1]))
        x1, y1 = min(photo.width, int(best[2])), min(photo.height, int(best[3]))
        if x1 - x0 < 64 or y1 - y0 < 64:
            x0, y0, x1, y1 = 48, 48, photo.width - 48, photo.height - 48
        return x0, y0, x1, y1

    def matte(self, photo, box):
        x0, y0, x1, y1 = box
        trimap = np.zeros((photo.height, photo.width), np.uint8)
        trimap[max(0, y0 - 12) : y1 + 12, max(0, x0 - 12) : x1 + 12] = 128
        trimap[y0 + 24 : y1 - 24, x0 + 24 : x1 - 24] = 255
        inputs = self.matte_inputs(images=photo, trimaps=Image.fromarray(trimap), return_tensors="pt").to(
            device, dtype
        )
        tell(inputs=inputs)
        alphas = self.matter(**inputs).alphas[:, :, : photo.height, : photo.width].float()
        given = torch.from_numpy(trimap).to(device)[None, None]
        alphas = torch.where(given == 255, 1.0, torch.where(given == 0, 0.0, alphas))
        tell(inputs=given)
        return alphas

    @torch.inference_mode()
    def serve(self, photo, prompt, variants, seed):
        alpha = self.matte(photo, self.box(photo))
        picture = torch.from_numpy(np.asarray(photo).copy()).to(device).permute(2, 0, 1)[None].float() / 255
        grown = F.max_pool2d(alpha, 5, stride=1, padding=2)
        mask = (grown < 0.5).float()
        prompt_embeds = self.embedding(prompt)
        negative_embeds = self.embedding("blurry low quality text watermark")
        painted = self.painter(
            prompt_embeds=prompt_embeds,
            negative_prompt_embeds=negative_embeds,
            image=picture * 2 - 1,
            mask_image=mask,
            height=SIDE,
            width=SIDE,
            num_inference_steps=4,
            guidance_scale=6.5,
            num_images_per_prompt=variants,
            generator=torch.Generator().manual_seed(seed),
            output_type="pt",
        ).images
        blended = alpha * picture + (1 - alpha) * painted.float()
        answer = (blended.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
        tell(inputs=[picture, prompt_embeds, negative_embeds])
        return [Image.fromarray(array) for array in answer]


def requests():
    """What the shops send."""
    waiting = queue.Queue()
    scenes = [
        "a marble kitchen counter in morning light",
        "mossy rocks by a stream",
        "a plain pastel studio",
        "an oak desk",
    ]
    for number in range(8):
        rng = np.random.default_rng(number)
        backdrop = Image.fromarray(rng.integers(120, 220, (8, 8, 3), dtype=np.uint8)).resize(
            (SIDE, SIDE), Image.BICUBIC
        )
        product = Image.fromarray(rng.integers(0, 140, (6, 6, 3), dtype=np.uint8)).resize((120, 140))
        backdrop.paste(product, (int(rng.integers(30, 100)), int(rng.integers(30, 90))))
        waiting.put((backdrop, scenes[number % 4], 1 + number % 3, number))
    return waiting


studio = Studio()
waiting = requests()
while not waiting.empty():
    photo, prompt, variants, seed = waiting.get()
    for index, image in enumerate(studio.serve(photo, prompt, variants, seed)):
        image.save(f"answer_{seed}_{index}.png")
    end_of_step()
