"""A Mask R-CNN finds pedestrians and their outlines as torchvision's reference scripts train it: a MobileNet with a pyramid, pictures of unequal sizes, SGD with momentum, a linear warm-up within the first epoch, predictions moved to the host between."""

import math
import time

import torch
from programs import end_of_step
from torch.utils.data import DataLoader, Dataset
from torchvision import tv_tensors
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import mobilenet_backbone
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNPredictor
from torchvision.ops import masks_to_boxes
from torchvision.transforms import v2 as T

BATCH_SIZE = 2
EPOCHS = 2


class StreetDataset(Dataset):
    """Pictures of streets in which ellipses stand for people."""

    def __init__(self, n, transforms, seed):
        self.n, self.transforms, self.seed = n, transforms, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 1000 + i)
        height = int(torch.randint(150, 200, (), generator=g))
        width = int(torch.randint(180, 240, (), generator=g))
        image = torch.randint(0, 256, (3, height, width), generator=g, dtype=torch.uint8)
        y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        masks = []
        for _ in range(int(torch.randint(1, 5, (), generator=g))):
            cy, cx = (torch.rand(2, generator=g) * 0.6 + 0.2) * torch.tensor([height, width])
            ry, rx = 24 + 20 * torch.rand((), generator=g), 8 + 8 * torch.rand((), generator=g)
            masks.append(((y - cy) / ry) ** 2 + ((x - cx) / rx) ** 2 < 1)
            image[:, masks[-1]] = torch.randint(0, 256, (3, 1), generator=g, dtype=torch.uint8)
        masks = torch.stack(masks)
        boxes = masks_to_boxes(masks)
        target = {
            "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(height, width)),
            "masks": tv_tensors.Mask(masks.to(torch.uint8)),
            "labels": torch.ones(len(boxes), dtype=torch.int64),
            "image_id": i,
            "area": (boxes[:, 3] - boxes[:, 1]) * (boxes[:, 2] - boxes[:, 0]),
            "iscrowd": torch.zeros(len(boxes), dtype=torch.int64),
        }
        return self.transforms(tv_tensors.Image(image), target)


def get_transform(train):
    transforms = [T.RandomHorizontalFlip(0.5), T.RandomPhotometricDistort()] if train else []
    transforms += [T.ToDtype(torch.float, scale=True), T.ToPureTensor()]
    return T.Compose(transforms)


def collate_fn(batch):
    return tuple(zip(*batch))


def get_model(num_classes):
    backbone = mobilenet_backbone("mobilenet_v3_large", weights=None, fpn=True, trainable_layers=6)
    backbone.out_channels = 256
    anchors = AnchorGenerator(((16, 32, 64, 128),) * 3, ((0.5, 1.0, 2.0),) * 3)
    return MaskRCNN(
        backbone,
        min_size=160,
        max_size=256,
        rpn_anchor_generator=anchors,
        rpn_pre_nms_top_n_train=600,
        rpn_post_nms_top_n_train=300,
        rpn_pre_nms_top_n_test=300,
        rpn_post_nms_top_n_test=100,
        box_head=TwoMLPHead(256 * 7 * 7, 256),
        box_predictor=FastRCNNPredictor(256, num_classes),
        mask_predictor=MaskRCNNPredictor(256, 256, num_classes),
        box_batch_size_per_image=64,
        box_detections_per_img=20,
    )


def train_one_epoch(model, optimizer, data_loader, device, epoch, print_freq):
    model.train()
    warmup = None
    if epoch == 0:
        iters = min(1000, len(data_loader) - 1)
        warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1.0 / 1000, total_iters=iters)
    for i, (images, targets) in enumerate(data_loader):
        images = [image.to(device) for image in images]
        targets = [
            {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in t.items()} for t in targets
        ]
        loss_dict = model(images, targets)
        losses = sum(loss for loss in loss_dict.values())
        loss_value = losses.item()
        if not math.isfinite(loss_value):
            raise SystemExit(f"Loss is {loss_value}, stopping training")
        optimizer.zero_grad()
        losses.backward()
        optimizer.step()
        if warmup is not None:
            warmup.step()
        if i % print_freq == 0:
            meters = "  ".join(f"{k}: {v.item():.4f}" for k, v in loss_dict.items())
            print(f"Epoch: [{epoch}]  [{i}/{len(data_loader)}]  loss: {loss_value:.4f}  {meters}")
        end_of_step(inputs=[images, targets], activations=[loss_dict, losses])


@torch.inference_mode()
def evaluate(model, data_loader, device):
    model.eval()
    found, start = [], time.time()
    for images, targets in data_loader:
        images = [image.to(device) for image in images]
        outputs = model(images)
        outputs = [{k: v.cpu() for k, v in t.items()} for t in outputs]
        found += [(t["image_id"], len(o["boxes"])) for t, o in zip(targets, outputs, strict=True)]
    print(f"Test: {sum(n for _, n in found)} boxes in {len(found)} pictures, {time.time() - start:.1f} s")


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    train_set = StreetDataset(4, get_transform(train=True), seed=1)
    test_set = StreetDataset(4, get_transform(train=False), seed=2)
    train_loader = DataLoader(train_set, BATCH_SIZE, shuffle=True, collate_fn=collate_fn)
    test_loader = DataLoader(test_set, 1, shuffle=False, collate_fn=collate_fn)
    model = get_model(num_classes=2)
    model.to(device)
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(params, lr=0.005, momentum=0.9, weight_decay=0.0005)
    lr_scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.1)
    for epoch in range(EPOCHS):
        train_one_epoch(model, optimizer, train_loader, device, epoch, print_freq=1)
        lr_scheduler.step()
        checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        torch.save(checkpoint, f"model_{epoch}.pth")
        evaluate(model, test_loader, device=device)


if __name__ == "__main__":
    main()
