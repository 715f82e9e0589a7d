"""An UperNet labels street scenes: a ConvNeXt behind it, SGD with momentum and a polynomial rate, mean IoU between."""

import torch
from programs import end_of_step
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import MulticlassJaccardIndex
from transformers import ConvNextConfig, UperNetConfig, UperNetForSemanticSegmentation

N_CLASSES, IGNORED = 19, 255


class Streets(Dataset):
    def __init__(self, n, size=128, flip=True):
        self.n, self.size, self.flip = n, size, flip

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        image = torch.randn(3, self.size, self.size, generator=generator)
        label = torch.randint(N_CLASSES, (self.size // 16, self.size // 16), generator=generator)
        label = label.repeat_interleave(16, 0).repeat_interleave(16, 1)
        label[:2] = IGNORED
        if self.flip and torch.rand(()) < 0.5:
            image, label = image.flip(-1), label.flip(-1)
        return image, label


def build_model():
    backbone = ConvNextConfig(
        depths=[2, 2, 4, 2],
        hidden_sizes=[40, 80, 160, 320],
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )
    config = UperNetConfig(
        backbone_config=backbone,
        hidden_size=96,
        auxiliary_in_channels=160,
        auxiliary_channels=64,
        num_labels=N_CLASSES,
        loss_ignore_index=IGNORED,
    )
    return UperNetForSemanticSegmentation(config)


def evaluate(model, loader, metric):
    model.eval()
    metric.reset()
    with torch.no_grad():
        for images, labels in loader:
            images, labels = images.cuda(), labels.cuda()
            logits = model(images).logits
            metric.update(logits.argmax(1), labels)
    model.train()
    return metric.compute().item()


def main(max_iters=6, eval_every=2, base_lr=0.01):
    torch.manual_seed(105)
    torch.backends.cudnn.benchmark = True
    model = build_model().cuda()
    train_loader = DataLoader(Streets(64), batch_size=4, shuffle=True, drop_last=True)
    val_loader = DataLoader(Streets(4, flip=False), batch_size=2)
    metric = MulticlassJaccardIndex(N_CLASSES, ignore_index=IGNORED).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=base_lr, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=160, power=0.9)
    model.train()
    iteration = 0
    while iteration < max_iters:
        for images, labels in train_loader:
            images = images.cuda(non_blocking=True)
            labels = labels.cuda(non_blocking=True)
            outputs = model(pixel_values=images, labels=labels)
            optimizer.zero_grad()
            outputs.loss.backward()
            optimizer.step()
            scheduler.step()
            iteration += 1
            print(
                f"[{iteration}/{max_iters}] loss {outputs.loss.item():.4f} lr {scheduler.get_last_lr()[0]:.5f}"
            )
            if iteration % eval_every == 0:
                print(f"mIoU {evaluate(model, val_loader, metric):.4f}")
            end_of_step(inputs=[images, labels])
            if iteration == max_iters:
                break


if __name__ == "__main__":
    main()
