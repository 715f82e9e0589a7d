"""Animals that were clicked on are followed through clips by a SAM 2 in bfloat16, as the guide of transformers does it: a session keeps frames, memories of what was seen and pointers to things on the device, a further click corrects in the middle, masks go to the host."""

import numpy as np
import torch
from programs import end_of_step, tell
from transformers import (
    Sam2HieraDetConfig,
    Sam2ImageProcessor,
    Sam2VideoConfig,
    Sam2VideoMaskDecoderConfig,
    Sam2VideoModel,
    Sam2VideoProcessor,
    Sam2VideoPromptEncoderConfig,
    Sam2VideoVideoProcessor,
    Sam2VisionConfig,
)

SIZE = 256
DTYPE = torch.bfloat16
device = torch.device("cuda")


def build():
    backbone = Sam2HieraDetConfig(
        image_size=[SIZE, SIZE],
        hidden_size=96,
        num_attention_heads=1,
        blocks_per_stage=[1, 2, 4, 1],
        embed_dim_per_stage=[96, 192, 384, 768],
        num_attention_heads_per_stage=[1, 2, 4, 8],
        window_size_per_stage=[8, 4, 8, 4],
        global_attention_blocks=[4, 6],
        window_positional_embedding_background_size=[7, 7],
    )
    vision = Sam2VisionConfig(
        backbone_config=backbone,
        backbone_channel_list=[768, 384, 192, 96],
        backbone_feature_sizes=[[SIZE // 4] * 2, [SIZE // 8] * 2, [SIZE // 16] * 2],
    )
    config = Sam2VideoConfig(
        vision_config=vision,
        prompt_encoder_config=Sam2VideoPromptEncoderConfig(image_size=SIZE),
        mask_decoder_config=Sam2VideoMaskDecoderConfig(),
        image_size=SIZE,
        memory_attention_num_layers=2,
        memory_attention_feed_forward_hidden_size=1024,
        memory_attention_rope_feat_sizes=[SIZE // 16] * 2,
    )
    size, mask_size = {"height": SIZE, "width": SIZE}, {"height": SIZE // 4, "width": SIZE // 4}
    processor = Sam2VideoProcessor(
        image_processor=Sam2ImageProcessor(size=size, mask_size=mask_size),
        video_processor=Sam2VideoVideoProcessor(size=size),
        target_size=SIZE,
    )
    return Sam2VideoModel(config), processor


def clip(n_frames, seed, height=180, width=240):
    """Two animals, here discs, that move over a noisy ground; and where they are at first."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    start = rng.uniform(0.3, 0.7, (2, 2)) * [width, height]
    speed = rng.uniform(-6, 6, (2, 2))
    frames = []
    for t in range(n_frames):
        frame = rng.integers(60, 120, (height, width, 3), dtype=np.uint8)
        for i, (cx, cy) in enumerate(start + speed * t):
            frame[(x - cx) ** 2 + (y - cy) ** 2 < 22**2] = (200, 160, 80 + 90 * i)
        frames.append(frame)
    return frames, start.round().astype(int).tolist()


def held(session):
    """What a session keeps on the device: frames, and what the model said of them."""
    outputs = [session.output_dict_per_obj, session.cache._vision_features]
    return list(session.processed_frames.values()), outputs


@torch.inference_mode()
def follow(model, processor, frames, clicks):
    session = processor.init_video_session(video=frames, inference_device=device, dtype=DTYPE)
    processor.add_inputs_to_inference_session(
        inference_session=session,
        frame_idx=0,
        obj_ids=list(range(1, len(clicks) + 1)),
        input_points=[[[click] for click in clicks]],
        input_labels=[[[1] for _ in clicks]],
    )
    model(inference_session=session, frame_idx=0)
    segments = {}
    for correct_at in (None, len(frames) // 2):
        if correct_at is not None:
            processor.add_inputs_to_inference_session(
                inference_session=session,
                frame_idx=correct_at,
                obj_ids=1,
                input_points=[[[[clicks[0][0] + 5, clicks[0][1] + 5]]]],
                input_labels=[[[1]]],
            )
            model(inference_session=session, frame_idx=correct_at)
        for output in model.propagate_in_video_iterator(session, start_frame_idx=correct_at or 0):
            kept, outputs = held(session)
            tell(inputs=kept, activations=[outputs, output.pred_masks])
            size = [[session.video_height, session.video_width]]
            (masks,) = processor.post_process_masks([output.pred_masks], original_sizes=size, binarize=True)
            tell(activations=masks)
            segments[output.frame_idx] = masks.cpu().numpy()
    return session, segments


def main():
    torch.manual_seed(0)
    model, processor = build()
    model = model.to(device, dtype=DTYPE).eval()
    for number, n_frames in enumerate((3, 3, 4, 3)):
        frames, clicks = clip(n_frames, seed=number)
        session, segments = follow(model, processor, frames, clicks)
        area = np.mean([masks.mean() for masks in segments.values()])
        print(f"clip {number}: {len(segments)} frames, masks cover {area:.1%}")
        np.savez_compressed(f"clip_{number}.npz", **{f"{k:05d}": v for k, v in segments.items()})
        kept, outputs = held(session)
        end_of_step(inputs=kept, activations=outputs)


if __name__ == "__main__":
    main()
