"""Training of MONAI's 3-D RetinaNet on lung nodules in CT: ATSS matching, hard negatives, SGD with Nesterov, bf16 and sliding-window validation."""

import torch
from monai.apps.detection.networks.retinanet_detector import RetinaNetDetector
from monai.apps.detection.networks.retinanet_network import RetinaNet, resnet_fpn_feature_extractor
from monai.apps.detection.utils.anchor_utils import AnchorGeneratorWithAnchorShape
from monai.data import DataLoader
from monai.data.utils import no_collation
from monai.networks.nets import resnet
from monai.utils import set_determinism
from programs import end_of_step
from torch.utils.data import Dataset

set_determinism(12)
device = torch.device("cuda")
PATCH = (48, 48, 24)


class Nodules(Dataset):
    def __init__(self, n, size):
        self.n, self.size = n, size

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        volume = torch.rand(1, *self.size, generator=generator) * 0.3
        boxes = []
        for _ in range(1 + index % 3):
            side = torch.randint(6, 14, (3,), generator=generator)
            start = (torch.rand(3, generator=generator) * (torch.tensor(self.size) - side)).long()
            end = start + side
            volume[0, start[0] : end[0], start[1] : end[1], start[2] : end[2]] += 0.6
            boxes.append(torch.cat([start, end]))
        boxes = torch.stack(boxes).float()
        return {"image": volume.clamp(0, 1), "box": boxes, "label": torch.zeros(len(boxes), dtype=torch.long)}


train_loader = DataLoader(
    Nodules(24, PATCH), batch_size=2, shuffle=True, num_workers=0, collate_fn=no_collation
)
val_loader = DataLoader(Nodules(1, (64, 64, 24)), batch_size=1, num_workers=0, collate_fn=no_collation)

anchors = AnchorGeneratorWithAnchorShape(
    feature_map_scales=[1, 2, 4], base_anchor_shapes=[[6, 8, 4], [8, 6, 5], [10, 10, 6]]
)
backbone = resnet.ResNet(
    block=resnet.ResNetBottleneck,
    layers=[2, 2, 2, 1],
    block_inplanes=(32, 64, 128, 256),
    n_input_channels=1,
    conv1_t_stride=[2, 2, 1],
    conv1_t_size=[7, 7, 7],
)
features = resnet_fpn_feature_extractor(
    backbone=backbone,
    spatial_dims=3,
    pretrained_backbone=False,
    trainable_backbone_layers=None,
    returned_layers=[1, 2],
)
network = RetinaNet(
    spatial_dims=3,
    num_classes=1,
    num_anchors=3,
    feature_extractor=features,
    size_divisible=[16, 16, 8],
)
detector = RetinaNetDetector(network=network, anchor_generator=anchors, debug=False).to(device)
detector.set_atss_matcher(num_candidates=4, center_in_gt=False)
detector.set_hard_negative_sampler(batch_size_per_image=64, positive_fraction=0.3, pool_size=20, min_neg=16)
detector.set_target_keys(box_key="box", label_key="label")
detector.set_box_selector_parameters(
    score_thresh=0.02, topk_candidates_per_level=1000, nms_thresh=0.22, detections_per_img=100
)
detector.set_sliding_window_inferer(
    roi_size=PATCH, overlap=0.25, sw_batch_size=1, mode="constant", device="cpu"
)

optimizer = torch.optim.SGD(
    detector.network.parameters(), 1e-2, momentum=0.9, weight_decay=3e-5, nesterov=True
)
warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=2)
decay = torch.optim.lr_scheduler.StepLR(optimizer, step_size=150, gamma=0.1)
scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, decay], milestones=[2])

step = 0
for epoch in range(2):
    detector.train()
    for batch in train_loader:
        images = [item["image"].to(device) for item in batch]
        targets = [{"label": item["label"].to(device), "box": item["box"].to(device)} for item in batch]
        for parameter in detector.network.parameters():
            parameter.grad = None
        with torch.autocast("cuda", dtype=torch.bfloat16):
            outputs = detector(images, targets)
            loss = outputs[detector.cls_key] + outputs[detector.box_reg_key]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(detector.network.parameters(), 10.0)
        optimizer.step()
        step += 1
        print(f"step {step} loss {loss.detach().item():.4f} cls {outputs[detector.cls_key].item():.4f}")
        end_of_step(inputs=[images, targets], activations=[outputs, loss])
    scheduler.step()

    detector.eval()
    with torch.no_grad():
        for batch in val_loader:
            images = [item["image"].to(device) for item in batch]
            found = detector(images, use_inferer=True)
            print("boxes", len(found[0]["box"]))
