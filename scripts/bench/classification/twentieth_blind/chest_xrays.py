"""Fourteen findings in chest X-rays with a DenseNet-121 of torchvision in float32: weighted binary cross-entropy, Adam, a plateau schedule on the validated AUROC, flipped averages when validated."""

import torch
from programs import end_of_step
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import MultilabelAUROC
from torchvision.models import densenet121
from torchvision.transforms import v2

torch.manual_seed(21)
device = "cuda"
findings = 14


class Radiographs(Dataset):
    def __init__(self, count, transform):
        self.transform = transform
        generator = torch.Generator().manual_seed(count)
        self.pictures = torch.randint(0, 255, (count, 1, 128, 128), dtype=torch.uint8, generator=generator)
        self.labels = (torch.rand(count, findings, generator=generator) < 0.2).float()

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, index):
        return self.transform(self.pictures[index].expand(3, -1, -1)), self.labels[index]


normalize = [
    v2.ToDtype(torch.float32, scale=True),
    v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
]
train_transform = v2.Compose(
    [v2.RandomAffine(7, (0.05, 0.05)), v2.RandomCrop(112), v2.RandomHorizontalFlip(), *normalize]
)
valid_transform = v2.Compose([v2.CenterCrop(112), *normalize])
train_set = Radiographs(12, train_transform)
train_loader = DataLoader(train_set, batch_size=6, shuffle=True, drop_last=True)
valid_loader = DataLoader(Radiographs(6, valid_transform), batch_size=6)

model = densenet121(weights=None)
model.classifier = nn.Linear(model.classifier.in_features, findings)
model = model.to(device)
frequency = train_set.labels.mean(0).clamp(min=0.05)
criterion = nn.BCEWithLogitsLoss(pos_weight=((1 - frequency) / frequency).to(device)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, weight_decay=1e-5)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", factor=0.1, patience=1)
auroc = MultilabelAUROC(num_labels=findings, average="macro").to(device)

for epoch in range(3):
    model.train()
    running = 0.0
    for images, labels in train_loader:
        images, labels = images.to(device), labels.to(device)
        outputs = model(images)
        loss = criterion(outputs, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running += loss.item() * len(images)
        end_of_step(inputs=[images, labels], activations=[outputs, loss])
    model.eval()
    auroc.reset()
    with torch.inference_mode():
        for images, labels in valid_loader:
            images, labels = images.to(device), labels.to(device)
            probabilities = (model(images).sigmoid() + model(images.flip(-1)).sigmoid()) / 2
            auroc.update(probabilities, labels.int())
    score = auroc.compute().item()
    scheduler.step(score)
    print(f"epoch {epoch}: loss {running / len(train_set):.4f}, AUROC {score:.3f}")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, "last.pt")
