"""Organs are segmented by a U-Net that is judged at every scale: dice and cross-entropy, SGD with Nesterov."""

from itertools import pairwise

import torch
from programs import end_of_step
from torch import nn
from torch.nn.functional import interpolate, one_hot


class ConvBlock(nn.Sequential):
    def __init__(self, n_in, n_out, stride=1):
        super().__init__(
            nn.Conv2d(n_in, n_out, 3, stride, 1),
            nn.InstanceNorm2d(n_out, affine=True),
            nn.LeakyReLU(0.01, inplace=True),
            nn.Conv2d(n_out, n_out, 3, 1, 1),
            nn.InstanceNorm2d(n_out, affine=True),
            nn.LeakyReLU(0.01, inplace=True),
        )


class UNet(nn.Module):
    def __init__(self, n_in=1, n_classes=4, features=(24, 48, 96, 192)):
        super().__init__()
        sizes = [n_in, *features]
        self.encoders = nn.ModuleList(
            ConvBlock(a, b, 1 if i == 0 else 2) for i, (a, b) in enumerate(pairwise(sizes))
        )
        self.ups, self.decoders, self.heads = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for deep, shallow in zip(features[:0:-1], features[-2::-1]):
            self.ups.append(nn.ConvTranspose2d(deep, shallow, 2, 2))
            self.decoders.append(ConvBlock(2 * shallow, shallow))
            self.heads.append(nn.Conv2d(shallow, n_classes, 1))

    def forward(self, x):
        skips = []
        for encoder in self.encoders:
            x = encoder(x)
            skips.append(x)
        found = []
        for up, decoder, head, skip in zip(self.ups, self.decoders, self.heads, skips[-2::-1]):
            x = decoder(torch.cat([up(x), skip], 1))
            found.append(head(x))
        return found[::-1]


class DiceAndCrossEntropy(nn.Module):
    def __init__(self):
        super().__init__()
        self.cross_entropy = nn.CrossEntropyLoss()

    def forward(self, logits, target):
        probs = logits.softmax(1)
        truth = one_hot(target, logits.shape[1]).permute(0, 3, 1, 2).float()
        both = (probs * truth).sum((0, 2, 3))
        dice = (2 * both + 1e-5) / (probs.sum((0, 2, 3)) + truth.sum((0, 2, 3)) + 1e-5)
        return self.cross_entropy(logits, target) - dice[1:].mean()


class NetworkTrainer:
    def __init__(self, max_iterations=1000):
        self.device = torch.device("cuda", 0)
        self.network = UNet().to(self.device)
        self.loss = DiceAndCrossEntropy()
        self.optimizer = torch.optim.SGD(
            self.network.parameters(), 0.01, momentum=0.99, weight_decay=3e-5, nesterov=True
        )
        self.schedule = torch.optim.lr_scheduler.PolynomialLR(self.optimizer, max_iterations, power=0.9)

    def get_batch(self):
        return {"data": torch.randn(4, 1, 128, 128), "seg": torch.randint(0, 4, (4, 128, 128))}

    def downsampled(self, seg, outputs):
        targets = [seg]
        for output in outputs[1:]:
            small = interpolate(seg[:, None].float(), output.shape[2:], mode="nearest")
            targets.append(small[:, 0].long())
        return targets

    def run_iteration(self):
        batch = self.get_batch()
        data = batch["data"].to(self.device, non_blocking=True)
        seg = batch["seg"].to(self.device, non_blocking=True)
        self.optimizer.zero_grad()
        outputs = self.network(data)
        targets = self.downsampled(seg, outputs)
        loss = sum(self.loss(o, t) / 2**i for i, (o, t) in enumerate(zip(outputs, targets)))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 12)
        self.optimizer.step()
        self.schedule.step()
        end_of_step(inputs=[data, seg, targets], activations=[outputs, loss])
        return loss.detach().cpu().numpy()

    def train(self, n_iterations):
        self.network.train()
        return [self.run_iteration() for _ in range(n_iterations)]


torch.manual_seed(63)
print(NetworkTrainer().train(5))
