"""A DGCNN knows things by clouds of points: neighbours in every layer's own space, SGD with momentum and a cosine, tests between."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from programs import end_of_step
from torch import nn, optim
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, Dataset

N_CLASSES, N_POINTS, K = 40, 256, 10


class Clouds(Dataset):
    def __init__(self, n, partition):
        self.n, self.partition = n, partition

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        points = torch.randn(N_POINTS, 3)
        points = points / points.norm(dim=1).max()
        if self.partition == "train":
            points = points * torch.empty(3).uniform_(2 / 3, 3 / 2) + torch.empty(3).uniform_(-0.2, 0.2)
        return points, torch.tensor([index % N_CLASSES])


def knn(x, k):
    inner = -2 * torch.matmul(x.transpose(2, 1), x)
    xx = torch.sum(x**2, dim=1, keepdim=True)
    pairwise_distance = -xx - inner - xx.transpose(2, 1)
    return pairwise_distance.topk(k=k, dim=-1)[1]


def get_graph_feature(x, k=K):
    batch_size, num_dims, num_points = x.shape
    idx = knn(x, k=k)
    idx_base = torch.arange(0, batch_size, device=x.device).view(-1, 1, 1) * num_points
    idx = (idx + idx_base).view(-1)
    x = x.transpose(2, 1).contiguous()
    feature = x.view(batch_size * num_points, -1)[idx, :].view(batch_size, num_points, k, num_dims)
    x = x.view(batch_size, num_points, 1, num_dims).repeat(1, 1, k, 1)
    return torch.cat((feature - x, x), dim=3).permute(0, 3, 1, 2).contiguous()


class DGCNN(nn.Module):
    def __init__(self, emb_dims=512, dropout=0.5):
        super().__init__()
        widths = (3, 64, 64, 128, 128)
        self.convs = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(2 * before, after, kernel_size=1, bias=False),
                nn.BatchNorm2d(after),
                nn.LeakyReLU(negative_slope=0.2),
            )
            for before, after in pairwise(widths)
        )
        self.conv5 = nn.Sequential(
            nn.Conv1d(sum(widths[1:]), emb_dims, kernel_size=1, bias=False),
            nn.BatchNorm1d(emb_dims),
            nn.LeakyReLU(negative_slope=0.2),
        )
        self.linear1, self.bn6 = nn.Linear(emb_dims * 2, 512, bias=False), nn.BatchNorm1d(512)
        self.linear2, self.bn7 = nn.Linear(512, 256), nn.BatchNorm1d(256)
        self.dp1, self.dp2 = nn.Dropout(dropout), nn.Dropout(dropout)
        self.linear3 = nn.Linear(256, N_CLASSES)

    def forward(self, x):
        batch_size = x.size(0)
        kept = []
        for conv in self.convs:
            x = conv(get_graph_feature(x)).max(dim=-1, keepdim=False)[0]
            kept.append(x)
        x = self.conv5(torch.cat(kept, dim=1))
        x1 = F.adaptive_max_pool1d(x, 1).view(batch_size, -1)
        x2 = F.adaptive_avg_pool1d(x, 1).view(batch_size, -1)
        x = F.leaky_relu(self.bn6(self.linear1(torch.cat((x1, x2), 1))), negative_slope=0.2)
        x = F.leaky_relu(self.bn7(self.linear2(self.dp1(x))), negative_slope=0.2)
        return self.linear3(self.dp2(x))


def cal_loss(pred, gold, eps=0.2):
    """Cross-entropy with smoothed labels."""
    gold = gold.contiguous().view(-1)
    n_class = pred.size(1)
    one_hot = torch.zeros_like(pred).scatter(1, gold.view(-1, 1), 1)
    one_hot = one_hot * (1 - eps) + (1 - one_hot) * eps / (n_class - 1)
    log_prb = F.log_softmax(pred, dim=1)
    return -(one_hot * log_prb).sum(dim=1).mean()


def main(epochs=3, lr=0.001):
    torch.manual_seed(213)
    device = torch.device("cuda")
    train_loader = DataLoader(Clouds(16, "train"), batch_size=8, shuffle=True, drop_last=True)
    test_loader = DataLoader(Clouds(8, "test"), batch_size=8)
    model = DGCNN().to(device)
    opt = optim.SGD(model.parameters(), lr=lr * 100, momentum=0.9, weight_decay=1e-4)
    scheduler = CosineAnnealingLR(opt, epochs, eta_min=lr)
    for epoch in range(epochs):
        train_loss, count = 0.0, 0.0
        model.train()
        for data, label in train_loader:
            data, label = data.to(device), label.to(device).squeeze()
            data = data.permute(0, 2, 1)
            batch_size = data.size(0)
            opt.zero_grad()
            logits = model(data)
            loss = cal_loss(logits, label)
            loss.backward()
            opt.step()
            preds = logits.max(dim=1)[1]
            count += batch_size
            train_loss += loss.item() * batch_size
            end_of_step(inputs=[data, label], activations=[logits, loss, preds])
        scheduler.step()
        print(f"Train {epoch}, loss: {train_loss / count:.6f}")

        model.eval()
        right = total = 0
        with torch.no_grad():
            for data, label in test_loader:
                data, label = data.to(device).permute(0, 2, 1), label.to(device).squeeze()
                logits = model(data)
                right += (logits.max(dim=1)[1] == label).sum().item()
                total += len(label)
        print(f"Test {epoch}, accuracy: {right / total:.4f}")


if __name__ == "__main__":
    main()
