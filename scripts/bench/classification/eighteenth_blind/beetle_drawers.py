"""DINOv2 pretraining of a ViT on unlabelled photos of museum beetles with lightly: DINO, iBOT and KoLeo losses over multi-crop views, bf16 autocast, AdamW, scheduled momentum and weight decay."""

import numpy as np
import torch
from lightly.loss import DINOLoss, IBOTPatchLoss, KoLeoLoss
from lightly.models.modules import DINOProjectionHead, MaskedVisionTransformerTIMM
from lightly.models.utils import get_weight_decay_parameters, random_block_mask, update_momentum
from lightly.transforms.dino_transform import DINOTransform
from lightly.utils.scheduler import CosineWarmupScheduler, cosine_schedule, linear_warmup_schedule
from PIL import Image
from programs import end_of_step
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(5)
device = "cuda" if torch.cuda.is_available() else "cpu"
EPOCHS, BATCH, WIDTH, OUT = 10, 8, 192, 2048


class Beetles(Dataset):
    transform = DINOTransform(
        global_crop_size=96,
        global_crop_scale=(0.32, 1),
        local_crop_size=48,
        local_crop_scale=(0.05, 0.32),
        n_local_views=4,
    )

    def __len__(self):
        return 64

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        small = Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8))
        return self.transform(small.resize((128, 128), Image.BICUBIC))


class Branch(nn.Module):
    """A backbone with the heads for the class token and for the patches."""

    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone
        self.dino_head = DINOProjectionHead(WIDTH, 768, 256, OUT, norm_last_layer=False)
        self.ibot_head = DINOProjectionHead(WIDTH, 768, 256, OUT, norm_last_layer=False)

    def forward(self, views, mask=None):
        features = self.backbone.encode(views, mask=mask)
        return features[:, 0], features


def vit():
    return MaskedVisionTransformerTIMM(
        vit=VisionTransformer(
            img_size=96,
            patch_size=8,
            embed_dim=WIDTH,
            depth=5,
            num_heads=6,
            num_classes=0,
            init_values=1e-5,
            drop_path_rate=0.1,
            dynamic_img_size=True,
        )
    )


student = Branch(vit()).to(device)
teacher = Branch(vit()).to(device)
teacher.load_state_dict(student.state_dict())
for parameter in teacher.parameters():
    parameter.requires_grad = False
teacher.eval()

dino_loss = DINOLoss(output_dim=OUT, teacher_temp=0.04).to(device)
ibot_loss = IBOTPatchLoss(output_dim=OUT, teacher_temp=0.04).to(device)
koleo_loss = KoLeoLoss()

loader = DataLoader(Beetles(), batch_size=BATCH, shuffle=True, drop_last=True, num_workers=0)
decayed, not_decayed = get_weight_decay_parameters([student])
optimizer = torch.optim.AdamW(
    [
        {"name": "decayed", "params": decayed, "weight_decay": 0.04},
        {"name": "not_decayed", "params": not_decayed, "weight_decay": 0.0},
    ],
    lr=4e-4,
    betas=(0.9, 0.999),
)
total = EPOCHS * len(loader)
scheduler = CosineWarmupScheduler(optimizer, warmup_epochs=4, max_epochs=total)

step = 0
for epoch in range(EPOCHS):
    total_loss = 0.0
    for views in loader:
        views = [view.to(device, non_blocking=True) for view in views]
        momentum = cosine_schedule(step, total, 0.992, 1.0)
        temperature = linear_warmup_schedule(step, warmup_steps=12, start_value=0.04, end_value=0.07)
        global_views, local_views = torch.cat(views[:2]), torch.cat(views[2:])

        height, width = student.backbone.vit.patch_embed.grid_size
        mask = global_views.new_zeros((len(global_views), student.backbone.sequence_length), dtype=torch.bool)
        block_mask = random_block_mask(size=(len(global_views), height, width), device=device)
        mask[:, 1:] = block_mask.flatten(start_dim=1)

        with torch.autocast(device, dtype=torch.bfloat16):
            with torch.no_grad():
                teacher_class, teacher_features = teacher(global_views)
                teacher_dino = teacher.dino_head(teacher_class)
                teacher_ibot = teacher.ibot_head(teacher_features[mask])
            global_class, global_features = student(global_views, mask=mask)
            local_class, _ = student(local_views)
            student_global = student.dino_head(global_class)
            student_local = student.dino_head(local_class)
            student_ibot = student.ibot_head(global_features[mask])

        loss_dino = dino_loss(
            teacher_out=list(teacher_dino.float().chunk(2)),
            student_out=list(student_global.float().chunk(2))
            + list(student_local.float().chunk(len(views) - 2)),
            teacher_temp=temperature,
        )
        loss_ibot = ibot_loss(
            teacher_ibot.float(), student_ibot.float(), mask=block_mask, teacher_temp=temperature
        )
        loss_koleo = sum(koleo_loss(part.float()) for part in global_class.chunk(2))
        loss = loss_dino + loss_ibot + 0.1 * loss_koleo

        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(student.parameters(), 3.0)
        if epoch < 1:
            student.dino_head.cancel_last_layer_gradients(current_epoch=epoch)
        for group in optimizer.param_groups:
            if group["name"] == "decayed":
                group["weight_decay"] = cosine_schedule(step, total, 0.04, 0.4)
        optimizer.step()
        scheduler.step()
        update_momentum(student, teacher, m=momentum)

        total_loss += loss.item()
        step += 1
        end_of_step(
            inputs=[views, global_views, local_views, mask, block_mask],
            activations=[
                global_class,
                global_features,
                local_class,
                student_global,
                student_local,
                student_ibot,
                loss_dino,
                loss_ibot,
                loss_koleo,
                loss,
            ],
        )
    print(f"epoch {epoch}: {total_loss / len(loader):.4f}")
    torch.save(student.backbone.vit.state_dict(), "backbone.pt")
