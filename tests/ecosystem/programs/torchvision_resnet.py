"""torchvision: a ResNet with a new head, fine-tuned on its own kind of data set; transforms on the GPU."""

import torch
from own_count import print_count
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, models
from torchvision.transforms import v2

torch.manual_seed(0)
device = torch.device("cuda")

data = datasets.FakeData(
    size=60, image_size=(3, 72, 72), num_classes=10, transform=v2.Compose([v2.ToImage(), v2.CenterCrop(64)])
)
loader = DataLoader(data, batch_size=12, shuffle=True, drop_last=True)
augment = v2.Compose(
    [
        v2.RandomHorizontalFlip(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
    ]
)

model = models.resnet18(weights=None)
for parameter in model.layer1.parameters():
    parameter.requires_grad = False
model.fc = nn.Linear(model.fc.in_features, 10)
model = model.to(device)
head = [p for name, p in model.named_parameters() if name.startswith("fc.")]
body = [p for name, p in model.named_parameters() if not name.startswith("fc.") and p.requires_grad]
optimizer = torch.optim.SGD(
    [{"params": body, "lr": 0.001}, {"params": head, "lr": 0.01}], momentum=0.9, weight_decay=1e-4
)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

model.train()
for images, labels in loader:
    images, labels = augment(images.to(device)), labels.to(device)
    optimizer.zero_grad(set_to_none=True)
    outputs = model(images)
    loss = criterion(outputs, labels)
    loss.backward()
    optimizer.step()
    print_count(model, optimizer)
    print(f"{loss.item():.3f}")
