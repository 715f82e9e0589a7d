"""Road signs are read in a weather of which no label is known: a gradient that is turned round, two kinds of batches, a BiT, SGD."""

import math
from itertools import cycle

import torch
import torch.nn.functional as F
from programs import end_of_step
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import BitConfig, BitModel

N_CLASSES, SIZE = 43, 64


class Signs(Dataset):
    def __init__(self, n, fog):
        self.n, self.fog = n, fog

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        label = index * 7 % N_CLASSES
        image = torch.randn(3, SIZE, SIZE) * 0.3 + label / N_CLASSES
        return image * (1 - self.fog) + self.fog, label


class ReverseLayerF(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = alpha
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.neg() * ctx.alpha, None


class DANN(nn.Module):
    def __init__(self):
        super().__init__()
        config = BitConfig(
            embedding_size=64,
            hidden_sizes=[128, 256, 384, 512],
            depths=[2, 2, 2, 2],
            layer_type="preactivation",
        )
        self.feature = BitModel(config)
        self.class_classifier = nn.Sequential(
            nn.Linear(512, 256), nn.BatchNorm1d(256), nn.ReLU(True), nn.Dropout(), nn.Linear(256, N_CLASSES)
        )
        self.domain_classifier = nn.Sequential(
            nn.Linear(512, 1024),
            nn.ReLU(True),
            nn.Dropout(),
            nn.Linear(1024, 1024),
            nn.ReLU(True),
            nn.Linear(1024, 2),
        )

    def forward(self, input_data, alpha):
        feature = self.feature(input_data).pooler_output.flatten(1)
        reverse_feature = ReverseLayerF.apply(feature, alpha)
        return self.class_classifier(feature), self.domain_classifier(reverse_feature)


@torch.no_grad()
def test(model, loader, device):
    model.eval()
    n_correct = n_total = 0
    for t_img, t_label in loader:
        t_img, t_label = t_img.to(device), t_label.to(device)
        class_output, _ = model(t_img, alpha=0)
        n_correct += class_output.argmax(1).eq(t_label).sum().item()
        n_total += len(t_label)
    model.train()
    return n_correct / n_total


def main(n_epoch=2, lr=1e-2, batch_size=16):
    torch.manual_seed(316)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    source_loader = DataLoader(Signs(96, fog=0.0), batch_size=batch_size, shuffle=True, drop_last=True)
    target_loader = DataLoader(Signs(48, fog=0.6), batch_size=batch_size, shuffle=True, drop_last=True)
    test_loader = DataLoader(Signs(24, fog=0.6), batch_size=24)
    my_net = DANN().to(device)
    optimizer = torch.optim.SGD(
        [
            {"params": my_net.feature.parameters(), "lr": lr * 0.1},
            {"params": my_net.class_classifier.parameters()},
            {"params": my_net.domain_classifier.parameters()},
        ],
        lr=lr,
        momentum=0.9,
        weight_decay=1e-3,
        nesterov=True,
    )
    n_batches = 3
    total = n_epoch * n_batches
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: (1 + 10 * i / total) ** -0.75)
    my_net.train()
    for epoch in range(n_epoch):
        for i, ((s_img, s_label), (t_img, _)) in enumerate(zip(source_loader, cycle(target_loader))):
            if i == n_batches:
                break
            p = (i + epoch * n_batches) / total
            alpha = 2.0 / (1.0 + math.exp(-10 * p)) - 1

            optimizer.zero_grad()
            s_img, s_label = s_img.to(device), s_label.to(device)
            domain_label = torch.zeros(batch_size, dtype=torch.long, device=device)
            class_output, domain_output = my_net(s_img, alpha=alpha)
            err_s_label = F.cross_entropy(class_output, s_label)
            err_s_domain = F.cross_entropy(domain_output, domain_label)

            t_img = t_img.to(device)
            t_domain_label = torch.ones(batch_size, dtype=torch.long, device=device)
            t_output, t_domain_output = my_net(t_img, alpha=alpha)
            err_t_domain = F.cross_entropy(t_domain_output, t_domain_label)
            err = err_t_domain + err_s_domain + err_s_label
            err.backward()
            optimizer.step()
            scheduler.step()
            print(
                f"epoch {epoch} [{i}] label {err_s_label.item():.3f}, source {err_s_domain.item():.3f}, "
                f"target {err_t_domain.item():.3f}, alpha {alpha:.2f}"
            )
            end_of_step(
                inputs=[s_img, s_label, domain_label, t_img, t_domain_label],
                activations=[class_output, domain_output, t_domain_output, t_output]
                + [err_s_label, err_s_domain, err_t_domain, err],
            )
        print(f"epoch {epoch}: accuracy in fog {test(my_net, test_loader, device):.3f}")


if __name__ == "__main__":
    main()
