"""A MobileNetV4 learns mushrooms from labels and from a frozen ResNet, as timm's own script trains with a distillation task: batches fetched ahead on another stream, mixed and erased on the device, channels last, bfloat16, LAMB, two batches to a step, an EMA that is validated."""

import random
from collections import OrderedDict
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import timm
import torch
from PIL import Image
from programs import end_of_step, tell
from timm import utils
from timm.data import FastCollateMixup, create_dataset, create_loader, resolve_data_config
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.task import LogitDistillationTask

NUM_CLASSES = 24
BATCH_SIZE = 18
GRAD_ACCUM_STEPS = 2
EPOCHS = 2
CLIP_GRAD = 1.0
device = torch.device("cuda")


def write_folder(root, per_class, seed):
    rng = np.random.default_rng(seed)
    for label in range(NUM_CLASSES):
        folder = Path(root) / f"species_{label:02d}"
        folder.mkdir(parents=True, exist_ok=True)
        for i in range(per_class):
            pixels = rng.integers(0, 256, (7, 7, 3), dtype=np.uint8)
            Image.fromarray(pixels).resize((150, 140), Image.Resampling.BICUBIC).save(folder / f"{i}.jpg")


def create_loaders(data_config):
    train_set = create_dataset("", root="data/train", is_training=True)
    eval_set = create_dataset("", root="data/val", is_training=False)
    mixup = FastCollateMixup(
        mixup_alpha=0.2,
        cutmix_alpha=1.0,
        prob=1.0,
        switch_prob=0.5,
        label_smoothing=0.1,
        num_classes=NUM_CLASSES,
    )
    train_loader = create_loader(
        train_set,
        input_size=data_config["input_size"],
        batch_size=BATCH_SIZE,
        is_training=True,
        re_prob=0.25,
        re_mode="pixel",
        auto_augment="rand-m9-mstd0.5-inc1",
        interpolation="random",
        mean=data_config["mean"],
        std=data_config["std"],
        num_workers=1,
        collate_fn=mixup,
        device=device,
    )
    train_loader.random_erasing = WatchedErasing(train_loader.random_erasing)
    eval_loader = create_loader(
        eval_set,
        input_size=data_config["input_size"],
        batch_size=BATCH_SIZE * 2,
        is_training=False,
        interpolation=data_config["interpolation"],
        mean=data_config["mean"],
        std=data_config["std"],
        num_workers=1,
        crop_pct=data_config["crop_pct"],
        device=device,
    )
    return train_loader, eval_loader


class WatchedErasing:
    """Sees every batch as it is fetched."""

    def __init__(self, erasing):
        self.erasing = erasing

    def __call__(self, input):
        input = self.erasing(input)
        tell(inputs=input)
        return input


def train_one_epoch(epoch, task, loader, optimizer, lr_scheduler, amp_autocast, num_updates):
    task.train()
    losses_m, kd_m = utils.AverageMeter(), utils.AverageMeter()
    model = task.get_trainable_module()
    updates_per_epoch = (len(loader) + GRAD_ACCUM_STEPS - 1) // GRAD_ACCUM_STEPS
    optimizer.zero_grad()
    for batch_idx, (input, target) in enumerate(loader):
        input = input.contiguous(memory_format=torch.channels_last)
        with amp_autocast():
            result = task(input, target)
            loss = result["loss"] / GRAD_ACCUM_STEPS
        loss.backward()
        losses_m.update(loss.item() * GRAD_ACCUM_STEPS, input.size(0))
        kd_m.update(result["kd_loss"].item(), input.size(0))
        if (batch_idx + 1) % GRAD_ACCUM_STEPS and batch_idx != len(loader) - 1:
            continue
        utils.dispatch_clip_grad(task.get_clip_parameters(), value=CLIP_GRAD, mode="norm")
        optimizer.step()
        optimizer.zero_grad()
        num_updates += 1
        task.update_ema(step=num_updates)
        lr_scheduler.step_update(num_updates=num_updates, metric=losses_m.avg)
        lr = sum(group["lr"] for group in optimizer.param_groups) / len(optimizer.param_groups)
        print(
            f"Train: {epoch} [{num_updates}/{updates_per_epoch * EPOCHS}] "
            f"Loss: {losses_m.val:.3g} KD: {kd_m.val:.3g} LR: {lr:.3e}"
        )
        end_of_step(inputs=[input, target], activations=[result, loss])
    if hasattr(optimizer, "sync_lookahead"):
        optimizer.sync_lookahead()
    model.train()
    return num_updates, OrderedDict([("loss", losses_m.avg), ("kd", kd_m.avg)])


def validate(model, loader, amp_autocast):
    top1_m, top5_m = utils.AverageMeter(), utils.AverageMeter()
    model.eval()
    with torch.inference_mode():
        for input, target in loader:
            input = input.contiguous(memory_format=torch.channels_last)
            with amp_autocast():
                output = model(input)
            acc1, acc5 = utils.accuracy(output, target, topk=(1, 5))
            torch.cuda.synchronize()
            top1_m.update(acc1.item(), output.size(0))
            top5_m.update(acc5.item(), output.size(0))
    return OrderedDict([("top1", top1_m.avg), ("top5", top5_m.avg)])


def main():
    utils.random_seed(42, 0)
    random.seed(42)
    write_folder("data/train", 3, seed=1)
    write_folder("data/val", 1, seed=2)

    model = timm.create_model(
        "mobilenetv4_conv_small", num_classes=NUM_CLASSES, drop_rate=0.2, drop_path_rate=0.05
    )
    teacher = timm.create_model("resnet26d", num_classes=NUM_CLASSES)
    data_config = resolve_data_config({"input_size": (3, 128, 128)}, model=model)
    model.to(device=device, memory_format=torch.channels_last)
    teacher.to(device=device, memory_format=torch.channels_last)
    print(f"{model.__class__.__name__}: {sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters")

    optimizer = create_optimizer_v2(model, opt="lamb", lr=4e-3, weight_decay=0.02, filter_bias_and_bn=True)
    amp_autocast = partial(torch.autocast, device_type=device.type, dtype=torch.bfloat16)
    task = LogitDistillationTask(
        student_model=model,
        teacher_model=teacher,
        criterion=SoftTargetCrossEntropy(),
        distill_loss_weight=1.0,
        temperature=2.0,
        device=device,
    )
    for parameter in teacher.parameters():
        parameter.requires_grad_(False)
    task.setup_ema(decay=0.9998, use_warmup=True)

    train_loader, eval_loader = create_loaders(data_config)
    lr_scheduler, num_epochs = create_scheduler_v2(
        optimizer,
        sched="cosine",
        num_epochs=EPOCHS,
        warmup_epochs=1,
        warmup_lr=1e-5,
        min_lr=1e-6,
        step_on_epochs=False,
        updates_per_epoch=(len(train_loader) + GRAD_ACCUM_STEPS - 1) // GRAD_ACCUM_STEPS,
    )
    saver = utils.CheckpointSaver(model=model, optimizer=optimizer, checkpoint_dir=".", max_history=2)
    num_updates = 0
    for epoch in range(EPOCHS):
        with suppress(KeyboardInterrupt):
            num_updates, train_metrics = train_one_epoch(
                epoch, task, train_loader, optimizer, lr_scheduler, amp_autocast, num_updates
            )
        eval_metrics = validate(task.get_eval_model(), eval_loader, amp_autocast)
        ema_metrics = validate(task.get_eval_model(ema=True), eval_loader, amp_autocast)
        print(f"epoch {epoch}: {dict(train_metrics)} {dict(eval_metrics)} EMA {dict(ema_metrics)}")
        lr_scheduler.step(epoch + 1, eval_metrics["top1"])
        saver.save_checkpoint(epoch, metric=ema_metrics["top1"])


if __name__ == "__main__":
    main()
