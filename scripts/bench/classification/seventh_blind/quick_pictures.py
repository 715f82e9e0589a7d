"""Small pictures are learned as fast as can be: all of them lie on the device as bytes, are cropped and flipped there, a half-precision net, Nesterov, a lookahead."""

import torch
import torch.nn.functional as F
from programs import end_of_step
from torch import nn

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
DTYPE = torch.half if torch.cuda.is_available() else torch.float
HYP = {"batch_size": 64, "lr": 11.5, "momentum": 0.85, "weight_decay": 0.0153, "bias_scaler": 64.0}
WIDTHS = {"block1": 64, "block2": 192, "block3": 256}


def batch_flip_lr(images):
    flip_mask = (torch.rand(len(images), device=images.device) < 0.5).view(-1, 1, 1, 1)
    return torch.where(flip_mask, images.flip(-1), images)


def batch_crop(images, crop_size):
    r = (images.size(-1) - crop_size) // 2
    shifts = torch.randint(-r, r + 1, size=(len(images), 2), device=images.device)
    images_out = torch.empty((len(images), 3, crop_size, crop_size), device=images.device, dtype=images.dtype)
    images_tmp = torch.empty(
        (len(images), 3, crop_size, crop_size + 2 * r), device=images.device, dtype=images.dtype
    )
    for s in range(-r, r + 1):
        mask = shifts[:, 0] == s
        images_tmp[mask] = images[mask, :, r + s : r + s + crop_size, :]
    for s in range(-r, r + 1):
        mask = shifts[:, 1] == s
        images_out[mask] = images_tmp[mask, :, :, r + s : r + s + crop_size]
    return images_out


class CifarLoader:
    def __init__(self, n, device, train, batch_size):
        self.images = (torch.rand(n, 3, 32, 32) * 255).byte().to(device)
        self.labels = torch.randint(100, (n,)).to(device)
        self.mean = torch.tensor(MEAN, device=device).view(1, 3, 1, 1).to(DTYPE)
        self.std = torch.tensor(STD, device=device).view(1, 3, 1, 1).to(DTYPE)
        self.train, self.batch_size, self.proc_images = train, batch_size, {}
        self.epoch_images = self.indices = None

    def __iter__(self):
        if not self.proc_images:
            normed = (self.images.to(DTYPE) / 255).sub_(self.mean).div_(self.std)
            normed = normed.to(memory_format=torch.channels_last)
            if self.train:
                self.proc_images["pad"] = F.pad(normed, (2,) * 4, "reflect")
            else:
                self.proc_images["norm"] = normed
        images = self.proc_images["pad" if self.train else "norm"]
        if self.train:
            images = batch_flip_lr(batch_crop(images, 32))
        self.epoch_images = images
        order = torch.randperm if self.train else torch.arange
        self.indices = order(len(images), device=images.device)
        for i in range(len(images) // self.batch_size):
            idxs = self.indices[i * self.batch_size : (i + 1) * self.batch_size]
            yield images[idxs], self.labels[idxs]

    def held(self):
        found = [self.images, self.labels, self.mean, self.std, self.proc_images]
        return found if self.indices is None else [*found, self.epoch_images, self.indices]


class BatchNorm(nn.BatchNorm2d):
    def __init__(self, num_features, momentum=0.6, eps=1e-12):
        super().__init__(num_features, eps=eps, momentum=1 - momentum)
        self.weight.requires_grad = False


class ConvGroup(nn.Module):
    def __init__(self, channels_in, channels_out):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, padding="same", bias=False)
        self.pool = nn.MaxPool2d(2)
        self.norm1 = BatchNorm(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding="same", bias=False)
        self.norm2 = BatchNorm(channels_out)
        self.activ = nn.GELU()

    def forward(self, x):
        x = self.activ(self.norm1(self.pool(self.conv1(x))))
        return self.activ(self.norm2(self.conv2(x)))


class CifarNet(nn.Module):
    def __init__(self):
        super().__init__()
        whiten_width = 2 * 3 * 2**2
        self.whiten = nn.Conv2d(3, whiten_width, 2, padding=0, bias=True)
        self.whiten.weight.requires_grad = False
        self.layers = nn.Sequential(
            nn.GELU(),
            ConvGroup(whiten_width, WIDTHS["block1"]),
            ConvGroup(WIDTHS["block1"], WIDTHS["block2"]),
            ConvGroup(WIDTHS["block2"], WIDTHS["block3"]),
            nn.MaxPool2d(3),
        )
        self.head = nn.Linear(WIDTHS["block3"], 100, bias=False)

    def forward(self, x):
        return self.head(self.layers(self.whiten(x)).flatten(1)) / 9


class LookaheadState:
    def __init__(self, net):
        self.net_ema = {k: v.clone() for k, v in net.state_dict().items()}

    def update(self, net, decay):
        for ema_param, net_param in zip(self.net_ema.values(), net.state_dict().values()):
            if net_param.dtype in (torch.half, torch.float):
                ema_param.lerp_(net_param, 1 - decay)
                net_param.copy_(ema_param)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    right = sum((model(x) + model(x.flip(-1))).argmax(1).eq(y).float().mean() for x, y in loader)
    return right.item() / (len(loader.images) // loader.batch_size)


def main(device, epochs=2):
    batch_size, total = HYP["batch_size"], 20
    kilostep_scale = 1024 * (1 + 1 / (1 - HYP["momentum"]))
    lr = HYP["lr"] / kilostep_scale
    wd = HYP["weight_decay"] * batch_size / kilostep_scale
    train_loader = CifarLoader(512, device, train=True, batch_size=batch_size)
    test_loader = CifarLoader(128, device, train=False, batch_size=batch_size)
    model = CifarNet().to(device).to(DTYPE).to(memory_format=torch.channels_last)
    for mod in model.modules():
        if isinstance(mod, BatchNorm):
            mod.float()
    norm_biases = [p for k, p in model.named_parameters() if "norm" in k and p.requires_grad]
    other_params = [p for k, p in model.named_parameters() if "norm" not in k and p.requires_grad]
    param_configs = [
        {"params": norm_biases, "lr": lr * HYP["bias_scaler"], "weight_decay": wd / lr / HYP["bias_scaler"]},
        {"params": other_params, "lr": lr, "weight_decay": wd / lr},
    ]
    optimizer = torch.optim.SGD(param_configs, momentum=HYP["momentum"], nesterov=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: max(0.07, 1 - i / total))
    loss_fn = nn.CrossEntropyLoss(label_smoothing=0.2, reduction="none")
    lookahead_state = LookaheadState(model)
    step = 0
    for epoch in range(epochs):
        model.train()
        for inputs, labels in train_loader:
            outputs = model(inputs)
            loss = loss_fn(outputs, labels).sum()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            scheduler.step()
            step += 1
            if step % 5 == 0:
                lookahead_state.update(model, decay=0.95**5)
            end_of_step(
                inputs=[inputs, labels, train_loader.held(), test_loader.held()],
                activations=[outputs, loss],
                weights=lookahead_state.net_ema,
            )
        print(f"epoch {epoch}: loss {loss.item() / batch_size:.3f}, right {evaluate(model, test_loader):.4f}")


if __name__ == "__main__":
    torch.manual_seed(312)
    main("cuda" if torch.cuda.is_available() else "cpu")
