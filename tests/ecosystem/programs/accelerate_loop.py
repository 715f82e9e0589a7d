"""The loop of the accelerate documentation: four lines changed, mixed precision, accumulation."""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from own_count import print_count
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(nn.Module):
    def __init__(self, features, hidden, classes):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(features, hidden),
            nn.GELU(),
            nn.LayerNorm(hidden),
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.Dropout(0.1),
        )
        self.head = nn.Linear(hidden, classes)

    def forward(self, x):
        return self.head(self.body(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mixed_precision", default="bf16")
    parser.add_argument("--accumulation", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=1)
    args = parser.parse_args()

    accelerator = Accelerator(
        mixed_precision=args.mixed_precision, gradient_accumulation_steps=args.accumulation
    )
    set_seed(42)
    data = TensorDataset(torch.randn(768, 512), torch.randint(0, 10, (768,)))
    loader = DataLoader(data, batch_size=64, shuffle=True)
    model = Classifier(512, 1024, 10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    model.train()
    for epoch in range(args.epochs):
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(inputs), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                if accelerator.sync_gradients:
                    print_count(model, optimizer)
                optimizer.zero_grad()
        accelerator.print(f"epoch {epoch}: {accelerator.gather(loss).mean().item():.3f}")


if __name__ == "__main__":
    main()
