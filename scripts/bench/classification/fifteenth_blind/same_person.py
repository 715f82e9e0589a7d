"""Person re-identification with a bottleneck head: cross entropy, triplets against a memory of past embeddings, and a centre loss."""

import random
from collections import defaultdict

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision
from programs import end_of_step, tell
from pytorch_metric_learning import distances, losses, miners
from torch.utils.data import DataLoader, Dataset, Sampler
from torchvision.transforms import v2

DEVICE = "cuda"
N_PEOPLE, SHOTS, SIZE = 120, 6, (128, 64)
P, K = 4, 4
EPOCHS, WARMUP, LR = 60, 10, 3.5e-4
FROZEN_STEPS = 1


class Pedestrians(Dataset):
    """Crops of a person detector seen by several cameras."""

    def __init__(self, people: range, shots: int, train: bool) -> None:
        self.items = [(person, camera) for person in people for camera in range(shots)]
        steps = [v2.ToImage(), v2.Resize(SIZE, antialias=True)]
        if train:
            steps += [v2.RandomHorizontalFlip(), v2.Pad(8), v2.RandomCrop(SIZE)]
        steps += [
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
        if train:
            steps += [v2.RandomErasing(p=0.5)]
        self.transform = v2.Compose(steps)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index):
        person, camera = self.items[index]
        rng = np.random.default_rng(person)
        colours = rng.integers(30, 220, (3, 3))
        picture = np.repeat(np.repeat(colours[:, None], 64, axis=1), 32, axis=0).astype(np.int16)
        noise = np.random.default_rng(person * 100 + camera).integers(-25, 25, picture.shape)
        return self.transform((picture + noise).clip(0, 255).astype(np.uint8)), person, camera


class PKSampler(Sampler):
    """P people with K pictures of each."""

    def __init__(self, items, p: int, k: int, n_batches: int) -> None:
        self.by_person = defaultdict(list)
        for index, (person, _) in enumerate(items):
            self.by_person[person].append(index)
        self.p, self.k, self.n_batches = p, k, n_batches

    def __len__(self) -> int:
        return self.n_batches

    def __iter__(self):
        for _ in range(self.n_batches):
            people = random.sample(list(self.by_person), self.p)
            yield [index for person in people for index in random.sample(self.by_person[person], self.k)]


class ReIdNet(nn.Module):
    def __init__(self, n_people: int, dim: int = 512) -> None:
        super().__init__()
        trunk = torchvision.models.resnet18(weights=None)
        trunk.layer4[0].conv1.stride = (1, 1)
        trunk.layer4[0].downsample[0].stride = (1, 1)
        self.stem = nn.Sequential(trunk.conv1, trunk.bn1, trunk.relu, trunk.maxpool)
        self.stages = nn.Sequential(trunk.layer1, trunk.layer2, trunk.layer3, trunk.layer4)
        self.bottleneck = nn.BatchNorm1d(dim)
        self.bottleneck.bias.requires_grad_(False)
        self.classifier = nn.Linear(dim, n_people, bias=False)
        nn.init.normal_(self.classifier.weight, std=0.001)

    def forward(self, image):
        feature = F.adaptive_avg_pool2d(self.stages(self.stem(image)), 1).flatten(1)
        normed = self.bottleneck(feature)
        if not self.training:
            return F.normalize(normed)
        return self.classifier(normed), feature


class CenterLoss(nn.Module):
    def __init__(self, n_people: int, dim: int = 512) -> None:
        super().__init__()
        self.centers = nn.Parameter(torch.randn(n_people, dim))

    def forward(self, feature, person):
        return (feature - self.centers[person]).pow(2).sum(1).clamp(1e-12, 1e12).mean()


def warmup(epoch: int) -> float:
    factor = min(1.0, 0.1 + 0.9 * epoch / WARMUP)
    return factor * (0.1 ** sum(epoch >= milestone for milestone in (30, 50)))


@torch.no_grad()
def mean_average_precision(model, loader) -> float:
    model.eval()
    features, people, cameras = [], [], []
    for image, person, camera in loader:
        image = image.to(DEVICE, memory_format=torch.channels_last)
        tell(inputs=[image])
        features.append(model(image) + model(image.flip(3)))
        people.append(person), cameras.append(camera)
    features, people, cameras = F.normalize(torch.cat(features)), torch.cat(people), torch.cat(cameras)
    distance = torch.cdist(features, features).cpu()
    scores = []
    for query in range(len(people)):
        order = distance[query].argsort()
        order = order[~((people[order] == people[query]) & (cameras[order] == cameras[query]))]
        hits = (people[order] == people[query]).float()
        precision = hits.cumsum(0) / torch.arange(1, len(hits) + 1)
        scores.append(((precision * hits).sum() / hits.sum()).item())
    return float(np.mean(scores))


def main() -> None:
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    data = Pedestrians(range(N_PEOPLE), SHOTS, train=True)
    loader = DataLoader(data, batch_sampler=PKSampler(data.items, P, K, n_batches=2))
    gallery = DataLoader(Pedestrians(range(1000, 1006), 4, train=False), batch_size=12)

    model = ReIdNet(N_PEOPLE).to(DEVICE, memory_format=torch.channels_last)
    center = CenterLoss(N_PEOPLE).to(DEVICE)
    identity = nn.CrossEntropyLoss(label_smoothing=0.1)
    triplet = losses.CrossBatchMemory(
        losses.TripletMarginLoss(margin=0.3, distance=distances.LpDistance(normalize_embeddings=False)),
        embedding_size=512,
        memory_size=256,
        miner=miners.BatchHardMiner(),
    ).to(DEVICE)

    decay, plain = [], []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            (plain if parameter.ndim == 1 else decay).append(parameter)
    optimizer = torch.optim.Adam(
        [{"params": decay, "weight_decay": 5e-4}, {"params": plain, "weight_decay": 0.0}], lr=LR, amsgrad=True
    )
    center_optimizer = torch.optim.SGD(center.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup)

    step = 0
    for epoch in range(EPOCHS):
        model.train()
        for image, person, _ in loader:
            trunk_trains = step >= FROZEN_STEPS
            model.stem.requires_grad_(trunk_trains), model.stages.requires_grad_(trunk_trains)

            image = image.to(DEVICE, memory_format=torch.channels_last)
            person = person.to(DEVICE)
            logits, feature = model(image)
            loss_id = identity(logits, person)
            loss_triplet = triplet(feature, person)
            loss_center = center(feature, person)
            loss = loss_id + loss_triplet + 5e-4 * loss_center

            optimizer.zero_grad()
            center_optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            for parameter in center.parameters():
                parameter.grad.mul_(1 / 5e-4)
            center_optimizer.step()
            step += 1
            accuracy = (logits.argmax(1) == person).float().mean().item()
            end_of_step(
                inputs=[image, person],
                activations=[logits, feature, loss_id, loss_triplet, loss_center, loss],
            )
        schedule.step()
        print(
            f"epoch {epoch} loss {loss.item():.3f} accuracy {accuracy:.2f} mAP {mean_average_precision(model, gallery):.3f}"
        )


if __name__ == "__main__":
    main()
