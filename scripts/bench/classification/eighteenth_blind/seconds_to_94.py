"""A speed run on small pictures (as CIFAR-10 speed runs go): the whole data set on the GPU, a bfloat16 model in channels_last with a whitened first convolution, augmentation in batches, Muon with SGD, a Lookahead average and mirrored evaluation."""

from math import ceil

import torch
import torch.nn.functional as F
from programs import end_of_step
from torch import nn

torch.manual_seed(94)
torch.backends.cudnn.benchmark = True

MEAN = torch.tensor((0.4914, 0.4822, 0.4465), dtype=torch.bfloat16, device="cuda")
STD = torch.tensor((0.2470, 0.2435, 0.2616), dtype=torch.bfloat16, device="cuda")


def zeropower(G, steps=3, eps=1e-7):
    a, b, c = (3.4445, -4.7750, 2.0315)
    X = G.bfloat16()
    X /= X.norm() + eps
    if G.size(0) > G.size(1):
        X = X.T
    for _ in range(steps):
        A = X @ X.T
        B = b * A + c * A @ A
        X = a * X + B @ X
    if G.size(0) > G.size(1):
        X = X.T
    return X


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, momentum=0.0, nesterov=False):
        super().__init__(params, dict(lr=lr, momentum=momentum, nesterov=nesterov))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                g = p.grad
                if g is None:
                    continue
                state = self.state[p]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(g)
                buffer = state["momentum_buffer"]
                buffer.mul_(group["momentum"]).add_(g)
                g = g.add(buffer, alpha=group["momentum"]) if group["nesterov"] else buffer
                p.mul_(len(p) ** 0.5 / p.norm())
                p.add_(zeropower(g.reshape(len(g), -1)).view(g.shape), alpha=-group["lr"])


def batch_crop(images, crop_size):
    r = (images.size(-1) - crop_size) // 2
    shifts = torch.randint(-r, r + 1, size=(len(images), 2), device=images.device)
    out = torch.empty((len(images), 3, crop_size, crop_size), device=images.device, dtype=images.dtype)
    for sy in range(-r, r + 1):
        for sx in range(-r, r + 1):
            chosen = (shifts[:, 0] == sy) & (shifts[:, 1] == sx)
            out[chosen] = images[chosen, :, r + sy : r + sy + crop_size, r + sx : r + sx + crop_size]
    return out


class Pictures:
    """Everything is on the device; flipped and padded once, flipped by turns after that."""

    def __init__(self, count, train, batch_size):
        generator = torch.Generator().manual_seed(int(train))
        labels = torch.randint(0, 10, (count,), generator=generator)
        coarse = torch.rand((count, 3, 8, 8), generator=generator) * 0.5 + labels[:, None, None, None] * 0.05
        images = (F.interpolate(coarse, size=32, mode="bilinear") * 255).clamp(0, 255).to(torch.uint8)
        self.images, self.labels = images.cuda(), labels.cuda()
        self.images = (self.images.bfloat16() / 255).to(memory_format=torch.channels_last)
        self.images = (self.images - MEAN.view(1, -1, 1, 1)) / STD.view(1, -1, 1, 1)
        self.proc = {}
        self.epoch, self.batch_size, self.train = 0, batch_size, train

    def __len__(self):
        return len(self.images) // self.batch_size if self.train else ceil(len(self.images) / self.batch_size)

    def __iter__(self):
        if self.epoch == 0 and self.train:
            mask = (torch.rand(len(self.images), device=self.images.device) < 0.5).view(-1, 1, 1, 1)
            images = self.proc["norm"] = torch.where(mask, self.images.flip(-1), self.images)
            self.proc["pad"] = F.pad(images, (2,) * 4, "reflect")
        images = batch_crop(self.proc["pad"], 32) if self.train else self.images
        if self.train and self.epoch % 2 == 1:
            images = images.flip(-1)
        self.epoch += 1
        order = (torch.randperm if self.train else torch.arange)(len(images), device=images.device)
        for i in range(len(self)):
            chosen = order[i * self.batch_size : (i + 1) * self.batch_size]
            yield images[chosen], self.labels[chosen], images


class BatchNorm(nn.BatchNorm2d):
    def __init__(self, channels):
        super().__init__(channels, eps=1e-12, momentum=0.4)
        self.weight.requires_grad = False


class Conv(nn.Conv2d):
    def __init__(self, in_channels, out_channels):
        super().__init__(in_channels, out_channels, kernel_size=3, padding="same", bias=False)

    def reset_parameters(self):
        super().reset_parameters()
        nn.init.dirac_(self.weight[: self.weight.size(1)].data)


class ConvGroup(nn.Module):
    def __init__(self, channels_in, channels_out):
        super().__init__()
        self.conv1, self.pool, self.norm1 = (
            Conv(channels_in, channels_out),
            nn.MaxPool2d(2),
            BatchNorm(channels_out),
        )
        self.conv2, self.norm2 = Conv(channels_out, channels_out), BatchNorm(channels_out)
        self.activ = nn.GELU()

    def forward(self, x):
        x = self.activ(self.norm1(self.pool(self.conv1(x))))
        return self.activ(self.norm2(self.conv2(x)))


class CifarNet(nn.Module):
    def __init__(self, widths=(64, 160, 160)):
        super().__init__()
        whitened = 2 * 3 * 2**2
        self.whiten = nn.Conv2d(3, whitened, 2, padding=0, bias=True)
        self.whiten.weight.requires_grad = False
        self.layers = nn.Sequential(
            nn.GELU(),
            ConvGroup(whitened, widths[0]),
            ConvGroup(widths[0], widths[1]),
            ConvGroup(widths[1], widths[2]),
            nn.MaxPool2d(3),
        )
        self.head = nn.Linear(widths[2], 10, bias=False)
        for module in self.modules():
            if isinstance(module, BatchNorm):
                module.float()
            else:
                module.bfloat16() if not list(module.children()) else None

    def init_whiten(self, images, eps=5e-4):
        c, (h, w) = images.shape[1], self.whiten.weight.shape[2:]
        patches = images.unfold(2, h, 1).unfold(3, w, 1).transpose(1, 3).reshape(-1, c, h, w).float()
        flat = patches.view(len(patches), -1)
        covariance = flat.T @ flat / len(flat)
        values, vectors = torch.linalg.eigh(covariance, UPLO="U")
        scaled = vectors.T.reshape(-1, c, h, w) / torch.sqrt(values.view(-1, 1, 1, 1) + eps)
        self.whiten.weight.data[:] = torch.cat((scaled, -scaled))

    def forward(self, x, whiten_bias_grad=True):
        bias = self.whiten.bias
        x = F.conv2d(x, self.whiten.weight, bias if whiten_bias_grad else bias.detach())
        x = self.layers(x).flatten(1)
        return self.head(x) / x.size(-1)


class Lookahead:
    def __init__(self, net):
        self.ema = {k: v.clone() for k, v in net.state_dict().items()}

    def update(self, net, decay):
        for name, value in net.state_dict().items():
            if value.dtype in (torch.bfloat16, torch.float32):
                self.ema[name].lerp_(value, 1 - decay)
                value.copy_(self.ema[name])


@torch.no_grad()
def evaluate(net, loader):
    net.eval()
    right = 0
    for inputs, labels, _ in loader:
        logits = 0.5 * net(inputs).clone() + 0.5 * net(inputs.flip(-1)).clone()
        right += (logits.argmax(1) == labels).sum().item()
    return right / len(loader.images)


epochs, batch_size = 8, 256
train_loader = Pictures(2 * batch_size + 100, True, batch_size)
test_loader = Pictures(400, False, 200)
model = CifarNet().cuda().to(memory_format=torch.channels_last)
model.init_whiten(train_loader.images[:256])

filters = [p for p in model.parameters() if len(p.shape) == 4 and p.requires_grad]
norm_biases = [p for n, p in model.named_parameters() if "norm" in n and p.requires_grad]
optimizer1 = torch.optim.SGD(
    [
        dict(params=[model.whiten.bias], lr=0.053, weight_decay=2e-6),
        dict(params=norm_biases, lr=0.053, weight_decay=2e-6),
        dict(params=[model.head.weight], lr=0.67, weight_decay=2e-6),
    ],
    momentum=0.85,
    nesterov=True,
    fused=True,
)
optimizer2 = Muon(filters, lr=0.24, momentum=0.6, nesterov=True)
optimizers = [optimizer1, optimizer2]
for optimizer in optimizers:
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
total = epochs * len(train_loader)
lookahead = Lookahead(model)

step = 0
for epoch in range(epochs):
    model.train()
    for inputs, labels, images in train_loader:
        outputs = model(inputs, whiten_bias_grad=epoch < 3)
        loss = F.cross_entropy(outputs, labels, label_smoothing=0.2, reduction="sum")
        loss.backward()
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * (1 - step / total)
            optimizer.step()
        model.zero_grad(set_to_none=True)
        step += 1
        if step % 2 == 0:
            lookahead.update(model, decay=0.95**2 * (step / total) ** 3)
        end_of_step(
            inputs=[
                inputs,
                labels,
                images,
                MEAN,
                STD,
                train_loader.images,
                train_loader.labels,
                train_loader.proc,
                test_loader.images,
                test_loader.labels,
            ],
            activations=[outputs, loss],
            weights=lookahead.ema,
        )
    print(f"epoch {epoch}: loss {loss.item() / batch_size:.3f}, accuracy {evaluate(model, test_loader):.3f}")
