"""SAM is fine-tuned to cut cells out of pictures, given a box: only its mask decoder learns."""

import torch
import torch.nn.functional as F
from programs import end_of_step
from torch.utils.data import DataLoader, Dataset
from transformers import SamConfig, SamModel

SIZE = 128


class Cells(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        image = torch.randn(3, SIZE, SIZE)
        left, top = torch.randint(0, SIZE // 2, (2,)).tolist()
        right, bottom = left + SIZE // 3, top + SIZE // 3
        mask = torch.zeros(SIZE // 2, SIZE // 2)
        mask[top // 2 : bottom // 2, left // 2 : right // 2] = 1
        box = torch.tensor([[left, top, right, bottom]], dtype=torch.float32)
        return {"pixel_values": image, "input_boxes": box, "ground_truth_mask": mask}


def dice_ce_loss(logits, masks):
    probs = logits.sigmoid().flatten(1)
    masks = masks.flatten(1)
    dice = 1 - (2 * (probs * masks).sum(1) + 1) / (probs.sum(1) + masks.sum(1) + 1)
    return dice.mean() + F.binary_cross_entropy_with_logits(logits.flatten(1), masks)


torch.manual_seed(84)
config = SamConfig(
    vision_config={
        "hidden_size": 192,
        "output_channels": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "image_size": SIZE,
        "patch_size": 8,
        "mlp_dim": 768,
        "window_size": 7,
        "global_attn_indexes": [1, 3],
        "num_pos_feats": 48,
    },
    prompt_encoder_config={"hidden_size": 96, "image_size": SIZE, "patch_size": 8},
    mask_decoder_config={
        "hidden_size": 96,
        "mlp_dim": 768,
        "num_attention_heads": 4,
        "iou_head_hidden_dim": 96,
    },
)
model = SamModel(config)
for name, parameter in model.named_parameters():
    if name.startswith(("vision_encoder", "prompt_encoder")):
        parameter.requires_grad_(False)

device = "cuda" if torch.cuda.is_available() else "cpu"
model.to(device)
model.train()
loader = DataLoader(Cells(), batch_size=4, shuffle=True, drop_last=True)
optimizer = torch.optim.Adam(model.mask_decoder.parameters(), lr=1e-5, weight_decay=0)

for epoch in range(1):
    epoch_losses = []
    for batch in loader:
        outputs = model(
            pixel_values=batch["pixel_values"].to(device),
            input_boxes=batch["input_boxes"].to(device),
            multimask_output=False,
        )
        predicted = outputs.pred_masks.squeeze(1).squeeze(1)
        wanted = batch["ground_truth_mask"].float().to(device)
        loss = dice_ce_loss(predicted, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        epoch_losses.append(loss.item())
        end_of_step(inputs=[wanted], activations=[outputs.pred_masks, outputs.iou_scores, predicted, loss])
    print(f"epoch {epoch}: {sum(epoch_losses) / len(epoch_losses):.3f}")
