"""Panoramas of overlapping drone photographs with kornia: LoFTR matches, RANSAC homographies, warped and blended."""

import kornia as K
import kornia.feature as KF
import torch
from kornia.contrib import ImageStitcher
from kornia.feature.loftr.loftr import default_cfg
from programs import end_of_step

torch.manual_seed(3)
device = "cuda"

config = dict(default_cfg)
config["match_coarse"] = dict(default_cfg["match_coarse"], thr=0.0)
matcher = KF.LoFTR(pretrained=None, config=config)
stitcher = ImageStitcher(matcher, estimator="ransac").to(device).eval()


def flights(n, height=192, width=256, shift=96):
    """Each flight: three photographs, each moved to the right by some metres."""
    for number in range(n):
        generator = torch.Generator().manual_seed(number)
        ground = torch.rand(1, 3, height // 8, (width + 2 * shift) // 8, generator=generator)
        ground = torch.nn.functional.interpolate(ground, (height, width + 2 * shift), mode="bicubic").clamp(
            0, 1
        )
        yield [(ground[..., i * shift : i * shift + width] * 255).to(torch.uint8) for i in range(3)]


for number, photographs in enumerate(flights(4)):
    photographs = [photograph.to(device).float() / 255 for photograph in photographs]
    photographs = [K.enhance.normalize_min_max(photograph) for photograph in photographs]
    with torch.inference_mode():
        panorama = stitcher(*photographs)
    picture = K.tensor_to_image((panorama.clamp(0, 1) * 255).to(torch.uint8).cpu())
    print(f"flight {number}: {picture.shape}")
    end_of_step(inputs=photographs)
