"""A ViTPose finds joints: heat maps with weights, rates that fall from layer to layer, gradients that are cleared."""

import torch
from programs import end_of_step
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import VitPoseBackboneConfig, VitPoseConfig, VitPoseForPoseEstimation

N_JOINTS, HEIGHT, WIDTH = 17, 128, 96


class People(Dataset):
    def __init__(self, n, sigma=2.0):
        self.n, self.sigma = n, sigma
        y, x = torch.meshgrid(torch.arange(HEIGHT // 4), torch.arange(WIDTH // 4), indexing="ij")
        self.grid = torch.stack((x, y)).float()

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        joints = torch.rand(N_JOINTS, 2) * torch.tensor([WIDTH // 4 - 1, HEIGHT // 4 - 1])
        distance = ((self.grid - joints[:, :, None, None]) ** 2).sum(1)
        target = torch.exp(-distance / (2 * self.sigma**2))
        visible = (torch.rand(N_JOINTS, 1) > 0.2).float()
        return torch.randn(3, HEIGHT, WIDTH), target, visible


class JointsMSELoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.criterion = nn.MSELoss(reduction="mean")

    def forward(self, output, target, target_weight):
        batch_size, n_joints = output.shape[:2]
        pred = output.reshape(batch_size, n_joints, -1).split(1, 1)
        gt = target.reshape(batch_size, n_joints, -1).split(1, 1)
        loss = 0
        for idx in range(n_joints):
            weight = target_weight[:, idx]
            loss += 0.5 * self.criterion(pred[idx].squeeze(1).mul(weight), gt[idx].squeeze(1).mul(weight))
        return loss / n_joints


def build_model():
    backbone = VitPoseBackboneConfig(
        image_size=[HEIGHT, WIDTH],
        patch_size=[16, 16],
        hidden_size=240,
        num_hidden_layers=8,
        num_attention_heads=6,
        mlp_ratio=4,
        out_indices=[8],
    )
    config = VitPoseConfig(backbone_config=backbone, use_simple_decoder=False, num_labels=N_JOINTS)
    return VitPoseForPoseEstimation(config)


def layer_wise_groups(model, lr, decay=0.8, n_layers=8, weight_decay=0.1):
    groups = {}
    for name, param in model.named_parameters():
        if "backbone.encoder.layer." in name or "backbone.layers." in name:
            number = int(next(part for part in name.split(".") if part.isdigit())) + 1
        else:
            number = 0 if "embeddings" in name else n_layers + 1
        is_decayed = param.ndim > 1 and "position" not in name
        group = groups.setdefault(
            (number, is_decayed),
            {
                "params": [],
                "lr": lr * decay ** (n_layers + 1 - number),
                "weight_decay": weight_decay * is_decayed,
            },
        )
        group["params"].append(param)
    return list(groups.values())


@torch.no_grad()
def accuracy(output, target, threshold=0.5):
    width = output.shape[-1]
    found, true = output.flatten(2).argmax(-1), target.flatten(2).argmax(-1)
    difference = torch.stack((found % width - true % width, found // width - true // width)).float()
    return (difference.norm(dim=0) / (width / 10) < threshold).float().mean()


def main():
    torch.manual_seed(111)
    model = build_model().cuda()
    criterion = JointsMSELoss().cuda()
    optimizer = torch.optim.AdamW(layer_wise_groups(model, 5e-4), betas=(0.9, 0.999))
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.001, total_iters=500)
    loader = DataLoader(People(96), batch_size=12, shuffle=True, drop_last=True)
    model.train()
    for i, (image, target, target_weight) in enumerate(loader):
        image = image.cuda(non_blocking=True)
        target, target_weight = target.cuda(non_blocking=True), target_weight.cuda(non_blocking=True)
        output = model(image).heatmaps
        loss = criterion(output, target, target_weight)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0, norm_type=2)
        optimizer.step()
        warm_up.step()
        acc = accuracy(output, target)
        print(f"[{i}/{len(loader)}] loss {loss.item():.5f}, accuracy {acc.item():.3f}")
        end_of_step(inputs=[image, target, target_weight], activations=[output, loss])
        if i == 5:
            break


if __name__ == "__main__":
    main()
