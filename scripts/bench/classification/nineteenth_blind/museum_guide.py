"""A museum guide on the phone: a visitor's photo is looked up among all works by DINOv2 embeddings that stay on the GPU, and the best candidates are verified with SuperPoint and LightGlue, bfloat16 and float32."""

import time

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from programs import end_of_step, tell
from transformers import (
    BitImageProcessor,
    Dinov2Config,
    Dinov2Model,
    LightGlueConfig,
    LightGlueForKeypointMatching,
    LightGlueImageProcessor,
    SuperPointConfig,
)

torch.manual_seed(2)
rng = np.random.default_rng(2)
WORKS = 24000


def photograph(height=480, width=640):
    coarse = rng.integers(0, 256, (height // 16, width // 16, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.BICUBIC)


class Guide:
    def __init__(self, embeddings, titles, device="cuda", candidates=3):
        self.device = device
        self.candidates = candidates
        self.titles = titles
        self.embedder = (
            Dinov2Model(
                Dinov2Config(
                    hidden_size=384,
                    num_hidden_layers=12,
                    num_attention_heads=6,
                    image_size=224,
                    patch_size=14,
                )
            )
            .to(device, torch.bfloat16)
            .eval()
        )
        self.preprocess = BitImageProcessor(
            size={"shortest_edge": 256},
            crop_size={"height": 224, "width": 224},
            image_mean=[0.485, 0.456, 0.406],
            image_std=[0.229, 0.224, 0.225],
        )
        config = LightGlueConfig(
            keypoint_detector_config=SuperPointConfig(max_keypoints=384),
            descriptor_dim=256,
            num_hidden_layers=6,
            num_attention_heads=4,
        )
        self.matcher = LightGlueForKeypointMatching(config).to(device).eval()
        self.match_preprocess = LightGlueImageProcessor(size={"height": 240, "width": 320})
        self.index = F.normalize(torch.from_numpy(embeddings).to(device, torch.bfloat16), dim=-1)

    def look_up(self, photo):
        views = self.preprocess(images=[photo, photo.crop((80, 60, 560, 420))], return_tensors="pt")
        pixels = views["pixel_values"].to(self.device, torch.bfloat16)
        output = self.embedder(pixel_values=pixels)
        query = F.normalize(output.pooler_output.mean(0, keepdim=True), dim=-1)
        scores, works = (query @ self.index.T).topk(self.candidates)
        tell(inputs=pixels)
        return scores[0].tolist(), works[0].tolist()

    def verify(self, photo, works):
        found = []
        for work in works:
            reference = photograph()
            inputs = self.match_preprocess(images=[[photo, reference]], return_tensors="pt").to(self.device)
            outputs = self.matcher(**inputs)
            tell(inputs=dict(inputs))
            sizes = [[(photo.height, photo.width), (reference.height, reference.width)]]
            (matches,) = self.match_preprocess.post_process_keypoint_matching(outputs, sizes, threshold=0.0)
            ours = matches["keypoints0"].cpu().numpy().astype(np.float32)
            theirs = matches["keypoints1"].cpu().numpy().astype(np.float32)
            inliers = 0
            if len(ours) >= 4:
                _, mask = cv2.findHomography(ours, theirs, cv2.RANSAC, 4.0)
                inliers = 0 if mask is None else int(mask.sum())
            found.append((inliers, work))
        return max(found)

    @torch.inference_mode()
    def answer(self, photo):
        start = time.perf_counter()
        scores, works = self.look_up(photo)
        inliers, work = self.verify(photo, works)
        return {
            "title": self.titles[work],
            "certain": inliers > 25,
            "inliers": inliers,
            "score": scores[works.index(work)],
            "milliseconds": 1000 * (time.perf_counter() - start),
        }


embeddings = rng.standard_normal((WORKS, 384), dtype=np.float32)
guide = Guide(embeddings, [f"Inv. {1800 + n // 100}-{n % 100:02d}" for n in range(WORKS)])
for visitor in range(4):
    reply = guide.answer(photograph())
    print(f"visitor {visitor}: {reply['title']} ({reply['inliers']} inliers, {reply['milliseconds']:.0f} ms)")
    end_of_step(inputs=guide.index)
