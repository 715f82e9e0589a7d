"""Fine-tuning of a ConvNeXt V2 on pictures of camera traps the way timm's own script does: prefetched, mixed up, accumulated, with an EMA."""

import time
from collections import OrderedDict

import numpy as np
import timm
import torch
from PIL import Image
from programs import end_of_step, tell
from timm.data import Mixup, create_loader, resolve_data_config
from timm.data.random_erasing import RandomErasing
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import AverageMeter, ModelEmaV3, accuracy, dispatch_clip_grad, freeze, random_seed
from torch.utils.data import Dataset

NUM_CLASSES = 36
IMG_SIZE = 160
BATCH_SIZE = 12
GRAD_ACCUM_STEPS = 2
EPOCHS = 20


class CameraTraps(Dataset):
    """Pictures of night and day; the transform is set by create_loader."""

    def __init__(self, length):
        self.length = length
        self.transform = None

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        random = np.random.default_rng(index)
        coarse = random.integers(0, 255, (12, 16, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((256, 192), Image.BICUBIC)
        return self.transform(image), int(random.integers(NUM_CLASSES))


class Erasing(RandomErasing):
    def __call__(self, input):
        tell(inputs=input)
        return super().__call__(input)


random_seed(42, 0)
device = torch.device("cuda")
model = timm.create_model("convnextv2_atto", pretrained=False, num_classes=NUM_CLASSES, drop_path_rate=0.1)
freeze(model, ["stem", "stages.0"])
data_config = resolve_data_config({"img_size": IMG_SIZE}, model=model)
model.to(device=device, memory_format=torch.channels_last)

optimizer = create_optimizer_v2(model, opt="nadamw", lr=5e-4, weight_decay=0.05, layer_decay=0.75)
model_ema = ModelEmaV3(model, decay=0.9998, use_warmup=True)

loader_train = create_loader(
    CameraTraps(240),
    input_size=data_config["input_size"],
    batch_size=BATCH_SIZE,
    is_training=True,
    auto_augment="rand-m9-mstd0.5-inc1",
    interpolation="random",
    mean=data_config["mean"],
    std=data_config["std"],
    num_workers=0,
    persistent_workers=False,
    device=device,
)
loader_train.random_erasing = Erasing(probability=0.25, mode="pixel", device=device)
loader_eval = create_loader(
    CameraTraps(48),
    input_size=data_config["input_size"],
    batch_size=24,
    is_training=False,
    mean=data_config["mean"],
    std=data_config["std"],
    num_workers=0,
    persistent_workers=False,
    device=device,
)
mixup_fn = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=NUM_CLASSES)
loss_fn = SoftTargetCrossEntropy().to(device)
updates_per_epoch = len(loader_train) // GRAD_ACCUM_STEPS
scheduler, num_epochs = create_scheduler_v2(
    optimizer,
    sched="cosine",
    num_epochs=EPOCHS,
    warmup_epochs=2,
    warmup_lr=1e-6,
    min_lr=1e-6,
    step_on_epochs=False,
    updates_per_epoch=updates_per_epoch,
)


def train_one_epoch(epoch):
    losses_m = AverageMeter()
    model.train()
    optimizer.zero_grad()
    num_updates = epoch * updates_per_epoch
    start = time.time()
    for batch_idx, (input, target) in enumerate(loader_train):
        need_update = (batch_idx + 1) % GRAD_ACCUM_STEPS == 0
        input, target = mixup_fn(input, target)
        tell(inputs=[input, target])
        input = input.contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            output = model(input)
            loss = loss_fn(output, target) / GRAD_ACCUM_STEPS
        loss.backward()
        losses_m.update(loss.item() * GRAD_ACCUM_STEPS, input.size(0))
        if not need_update:
            continue
        dispatch_clip_grad(model.parameters(), value=1.0, mode="norm")
        optimizer.step()
        optimizer.zero_grad()
        num_updates += 1
        model_ema.update(model, step=num_updates)
        scheduler.step_update(num_updates=num_updates, metric=losses_m.avg)
        if num_updates % 2 == 0:
            print(
                f"Train: {epoch} [{batch_idx}/{len(loader_train)}] loss {losses_m.val:.3f} ({time.time() - start:.1f} s)"
            )
        end_of_step(inputs=[input, target], activations=[output, loss])
    return OrderedDict([("loss", losses_m.avg)])


@torch.no_grad()
def validate(model):
    top1_m = AverageMeter()
    model.eval()
    for input, target in loader_eval:
        input = input.contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            output = model(input)
        top1_m.update(accuracy(output, target)[0].item(), output.size(0))
    return top1_m.avg


for epoch in range(num_epochs):
    train_metrics = train_one_epoch(epoch)
    top1, ema_top1 = validate(model), validate(model_ema)
    scheduler.step(epoch + 1, ema_top1)
    print(f"{epoch}: loss {train_metrics['loss']:.3f}, top-1 {top1:.2f}, of the EMA {ema_top1:.2f}")
    torch.save(
        {"state_dict": model.state_dict(), "state_dict_ema": model_ema.module.state_dict()}, "last.pth.tar"
    )
