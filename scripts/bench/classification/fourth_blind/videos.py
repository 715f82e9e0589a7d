"""A VideoMAE tells what happens in short videos: accelerate in bfloat16, checkpointed layers, SGD with Nesterov."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from programs import end_of_step
from torch.utils.data import DataLoader, Dataset
from transformers import VideoMAEConfig, VideoMAEForVideoClassification


class Clips(Dataset):
    def __init__(self, n, n_classes=24):
        self.labels = torch.randint(0, n_classes, (n,))

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        frames = torch.randint(0, 256, (16, 3, 80, 80), dtype=torch.uint8)
        frames = frames[..., 8:72, 8:72].float().div(255).sub(0.45).div(0.225)
        if torch.rand(()) < 0.5:
            frames = frames.flip(-1)
        return {"pixel_values": frames, "labels": self.labels[index]}


def training_function():
    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
    set_seed(83)
    config = VideoMAEConfig(
        image_size=64,
        patch_size=8,
        num_frames=16,
        tubelet_size=2,
        hidden_size=240,
        num_hidden_layers=5,
        num_attention_heads=6,
        intermediate_size=960,
        num_labels=24,
    )
    model = VideoMAEForVideoClassification(config)
    model.gradient_checkpointing_enable()
    loader = DataLoader(Clips(64), batch_size=4, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    model.train()
    for epoch in range(1):
        for batch in loader:
            with accelerator.accumulate(model):
                outputs = model(**batch)
                loss = outputs.loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                accelerator.print(epoch, loss.item(), scheduler.get_last_lr())
                end_of_step(inputs=batch, activations=[loss, outputs.loss, outputs.logits])


if __name__ == "__main__":
    training_function()
