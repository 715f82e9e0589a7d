"""What somebody does is told from a sensor on the wrist by an InceptionTime: an engine of Ignite in half precision with a scaler, AdEMAMix, an average of the weights that is validated, a warm-up before a cosine."""

import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import (
    EMAHandler,
    EarlyStopping,
    ModelCheckpoint,
    TerminateOnNan,
    create_lr_scheduler_with_warmup,
)
from ignite.handlers.param_scheduler import CosineAnnealingScheduler
from ignite.metrics import Accuracy, Loss, RunningAverage
from programs import end_of_step, tell
from pytorch_optimizer import AdEMAMix
from torch import nn
from torch.amp import GradScaler
from torch.utils.data import DataLoader, TensorDataset

N_CHANNELS, LENGTH, N_CLASSES = 6, 128, 12


class Inception(nn.Module):
    def __init__(self, channels, n_filters, kernels=(39, 19, 9), bottleneck=32):
        super().__init__()
        self.bottleneck = nn.Conv1d(channels, bottleneck, 1, bias=False)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(bottleneck, n_filters, k, padding=k // 2, bias=False) for k in kernels
        )
        self.pooled = nn.Sequential(nn.MaxPool1d(3, 1, 1), nn.Conv1d(channels, n_filters, 1, bias=False))
        self.norm = nn.BatchNorm1d(n_filters * (len(kernels) + 1))

    def forward(self, x):
        narrow = self.bottleneck(x)
        return torch.relu(
            self.norm(torch.cat([conv(narrow) for conv in self.convolutions] + [self.pooled(x)], dim=1))
        )


class InceptionTime(nn.Module):
    def __init__(self, n_filters=32, depth=6):
        super().__init__()
        width = 4 * n_filters
        self.blocks = nn.ModuleList(Inception(width if i else N_CHANNELS, n_filters) for i in range(depth))
        ends = [N_CHANNELS] + [width] * (depth // 3 - 1)
        self.shortcuts = nn.ModuleList(
            nn.Sequential(nn.Conv1d(c, width, 1, bias=False), nn.BatchNorm1d(width)) for c in ends
        )
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(width, N_CLASSES))

    def forward(self, x):
        before = x
        for i, block in enumerate(self.blocks):
            x = block(x)
            if i % 3 == 2:
                x = torch.relu(x + self.shortcuts[i // 3](before))
                before = x
        return self.head(x.mean(dim=-1))


def windows(n):
    labels = torch.randint(N_CLASSES, (n,))
    time = torch.arange(LENGTH) / 50
    rate = 0.3 + 0.4 * labels[:, None, None] + 0.05 * torch.randn(n, N_CHANNELS, 1)
    return TensorDataset(
        torch.sin(2 * torch.pi * rate * time) + 0.5 * torch.randn(n, N_CHANNELS, LENGTH), labels
    )


def prepare_batch(batch, device, non_blocking):
    x, y = (each.to(device, non_blocking=non_blocking) for each in batch)
    tell(inputs=[x, y])
    return x, y


def main():
    torch.manual_seed(0)
    device = "cuda"
    train_loader = DataLoader(windows(32 * 6), batch_size=32, shuffle=True, pin_memory=True)
    val_loader = DataLoader(windows(64), batch_size=64)
    model = InceptionTime().to(device)
    optimizer = AdEMAMix(model.parameters(), lr=1e-3, betas=(0.9, 0.999, 0.9999), weight_decay=0.02)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1).to(device)
    scaler = GradScaler("cuda")

    trainer = create_supervised_trainer(
        model,
        optimizer,
        criterion,
        device,
        non_blocking=True,
        prepare_batch=prepare_batch,
        amp_mode="amp",
        scaler=scaler,
    )
    cosine = CosineAnnealingScheduler(optimizer, "lr", 1e-3, 1e-5, len(train_loader) * 4)
    trainer.add_event_handler(
        Events.ITERATION_STARTED,
        create_lr_scheduler_with_warmup(cosine, warmup_start_value=1e-5, warmup_duration=4),
    )
    trainer.add_event_handler(Events.ITERATION_COMPLETED, TerminateOnNan())
    RunningAverage(output_transform=lambda loss: loss).attach(trainer, "loss")

    ema = EMAHandler(model, momentum=0.002)
    ema.attach(trainer, name="momentum", event=Events.ITERATION_COMPLETED)

    metrics = {"accuracy": Accuracy(device=device), "loss": Loss(criterion, device=device)}
    evaluator = create_supervised_evaluator(
        ema.ema_model, metrics, device, prepare_batch=prepare_batch, amp_mode="amp"
    )
    score = lambda engine: engine.state.metrics["accuracy"]  # noqa: E731
    evaluator.add_event_handler(
        Events.COMPLETED,
        ModelCheckpoint("wrist", "best", n_saved=1, score_function=score, require_empty=False),
        {"model": ema.ema_model},
    )
    evaluator.add_event_handler(Events.COMPLETED, EarlyStopping(10, score, trainer))

    @trainer.on(Events.ITERATION_COMPLETED(every=2))
    def validate(engine):
        evaluator.run(val_loader)
        found = evaluator.state.metrics
        print(
            f"iteration {engine.state.iteration}: loss {engine.state.metrics.get('loss', 0):.3f}, accuracy {found['accuracy']:.3f}"
        )

    @trainer.on(Events.ITERATION_COMPLETED)
    def finish(engine):
        end_of_step()

    trainer.run(train_loader, max_epochs=2)


if __name__ == "__main__":
    main()
