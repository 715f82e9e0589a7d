"""Counting of oil palms in large aerial photographs with SAHI: slices in batches through an RT-DETRv2, merged over the borders."""

import numpy as np
import torch
from PIL import Image
from programs import end_of_step, tell
from sahi import AutoDetectionModel
from sahi.predict import get_sliced_prediction
from transformers import RTDetrImageProcessor, RTDetrResNetConfig, RTDetrV2Config, RTDetrV2ForObjectDetection

CLASSES = ["healthy palm", "young palm", "dead palm"]
SLICE = 256
MODEL_PATH = "palm-detector"

torch.manual_seed(8)


def train_elsewhere():
    """Leaves a detector in the folder, as the training script would."""
    backbone = RTDetrResNetConfig(
        embedding_size=64,
        hidden_sizes=[64, 128, 256, 512],
        depths=[2, 2, 2, 2],
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )
    config = RTDetrV2Config(
        backbone_config=backbone,
        encoder_in_channels=[128, 256, 512],
        encoder_hidden_dim=256,
        hidden_expansion=0.5,
        decoder_layers=3,
        num_queries=150,
        id2label=dict(enumerate(CLASSES)),
        label2id={name: index for index, name in enumerate(CLASSES)},
    )
    RTDetrV2ForObjectDetection(config).save_pretrained(MODEL_PATH)
    RTDetrImageProcessor(size={"height": SLICE, "width": SLICE}).save_pretrained(MODEL_PATH)


def orthophotos(n):
    random = np.random.default_rng(12)
    for _ in range(n):
        ground = random.integers(60, 140, (20, 28, 3), dtype=np.uint8)
        yield np.asarray(Image.fromarray(ground).resize((700, 500), Image.BICUBIC))


train_elsewhere()
detector = AutoDetectionModel.from_pretrained(
    model_type="huggingface",
    model_path=MODEL_PATH,
    confidence_threshold=0.3,
    image_size=SLICE,
    device="cuda:0",
)
detector.model.eval()
detector.model.register_forward_pre_hook(lambda module, args, kwargs: tell(inputs=kwargs), with_kwargs=True)

total = 0
for number, photo in enumerate(orthophotos(6)):
    result = get_sliced_prediction(
        photo,
        detector,
        slice_height=SLICE,
        slice_width=SLICE,
        overlap_height_ratio=0.2,
        overlap_width_ratio=0.2,
        batch_size=8,
        postprocess_type="NMS",
        postprocess_match_metric="IOU",
        postprocess_match_threshold=0.5,
        verbose=0,
    )
    counts = {name: 0 for name in CLASSES}
    for found in result.object_prediction_list:
        counts[found.category.name] += 1
    total += sum(counts.values())
    print(f"photo {number}: {counts}, {total} so far")
    end_of_step()
