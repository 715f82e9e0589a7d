"""A UNETR cuts spleens out of CT scans as MONAI's tutorial on fast training does it: scans that are cached on the device and cropped there, the SupervisedTrainer in bfloat16, Novograd, sliding windows over whole scans by its evaluator, checkpoints by handlers."""

import logging
import sys

import numpy as np
import torch
from ignite.engine import Events
from monai.data import CacheDataset, DataLoader, list_data_collate
from monai.engines import SupervisedEvaluator, SupervisedTrainer
from monai.handlers import (
    CheckpointSaver,
    LrScheduleHandler,
    MeanDice,
    StatsHandler,
    ValidationHandler,
    from_engine,
)
from monai.inferers import SimpleInferer, SlidingWindowInferer
from monai.losses import DiceCELoss
from monai.networks.nets import UNETR
from monai.optimizers import Novograd
from monai.transforms import (
    AsDiscreted,
    Compose,
    CropForegroundd,
    EnsureChannelFirstd,
    EnsureTyped,
    RandCropByPosNegLabeld,
    RandFlipd,
    RandRotate90d,
    RandScaleIntensityd,
    RandShiftIntensityd,
    ScaleIntensityRanged,
)
from monai.utils import set_determinism
from programs import end_of_step

ROI = (48, 48, 32)
device = torch.device("cuda:0")


def scan(rng):
    """A volume in Hounsfield units with an ellipsoid in it, and its label."""
    shape = rng.integers(52, 66, 3)
    z, y, x = np.meshgrid(*(np.linspace(-1, 1, n) for n in shape), indexing="ij")
    centre, radii = rng.uniform(-0.3, 0.3, 3), rng.uniform(0.25, 0.5, 3)
    label = ((np.stack([z, y, x], -1) - centre) / radii) ** 2
    label = (label.sum(-1) < 1).astype(np.uint8)
    image = rng.normal(-20, 60, shape) + 130 * label
    return {"image": image.astype(np.float32), "label": label}


def transforms():
    keys = ["image", "label"]
    before = [
        EnsureChannelFirstd(keys=keys, channel_dim="no_channel"),
        ScaleIntensityRanged(keys="image", a_min=-57, a_max=164, b_min=0.0, b_max=1.0, clip=True),
        CropForegroundd(keys=keys, source_key="image", allow_smaller=True),
        EnsureTyped(keys=keys, device=device, track_meta=False),
    ]
    random = [
        RandCropByPosNegLabeld(
            keys=keys,
            label_key="label",
            spatial_size=ROI,
            pos=1,
            neg=1,
            num_samples=2,
            image_key="image",
            image_threshold=0,
        ),
        RandFlipd(keys=keys, prob=0.5, spatial_axis=0),
        RandRotate90d(keys=keys, prob=0.3, max_k=3),
        RandScaleIntensityd(keys="image", factors=0.1, prob=0.5),
        RandShiftIntensityd(keys="image", offsets=0.1, prob=0.5),
    ]
    return Compose(before + random), Compose(before)


def main():
    logging.basicConfig(stream=sys.stdout, level=logging.WARNING)
    set_determinism(seed=0)
    rng = np.random.default_rng(0)
    train_transform, val_transform = transforms()
    train_ds = CacheDataset(
        [scan(rng) for _ in range(4)],
        train_transform,
        cache_rate=1.0,
        num_workers=0,
        copy_cache=False,
        progress=False,
    )
    val_ds = CacheDataset(
        [scan(rng) for _ in range(1)],
        val_transform,
        cache_rate=1.0,
        num_workers=0,
        copy_cache=False,
        progress=False,
    )
    train_loader = DataLoader(
        train_ds, num_workers=0, batch_size=1, shuffle=True, collate_fn=list_data_collate
    )
    val_loader = DataLoader(val_ds, num_workers=0, batch_size=1)

    net = UNETR(
        in_channels=1,
        out_channels=2,
        img_size=ROI,
        feature_size=8,
        hidden_size=192,
        mlp_dim=768,
        num_heads=6,
        norm_name="instance",
        dropout_rate=0.0,
    ).to(device)
    loss = DiceCELoss(to_onehot_y=True, softmax=True, squared_pred=True, batch=True)
    opt = Novograd(net.parameters(), lr=1e-3, weight_decay=1e-5)
    scheduler = torch.optim.lr_scheduler.PolynomialLR(opt, total_iters=10, power=0.9)

    post = Compose(
        [
            EnsureTyped(keys=["pred", "label"]),
            AsDiscreted(keys=("pred", "label"), argmax=(True, False), to_onehot=2),
        ]
    )
    amp_kwargs = {"dtype": torch.bfloat16}
    evaluator = SupervisedEvaluator(
        device=device,
        val_data_loader=val_loader,
        network=net,
        inferer=SlidingWindowInferer(roi_size=ROI, sw_batch_size=2, overlap=0.25),
        postprocessing=post,
        key_val_metric={
            "val_mean_dice": MeanDice(
                include_background=False, output_transform=from_engine(["pred", "label"])
            )
        },
        val_handlers=[
            StatsHandler(iteration_log=False),
            CheckpointSaver(save_dir="./runs", save_dict={"net": net}, save_key_metric=True),
        ],
        amp=True,
        amp_kwargs=amp_kwargs,
    )
    trainer = SupervisedTrainer(
        device=device,
        max_epochs=3,
        train_data_loader=train_loader,
        epoch_length=2,
        network=net,
        optimizer=opt,
        loss_function=loss,
        inferer=SimpleInferer(),
        train_handlers=[
            LrScheduleHandler(lr_scheduler=scheduler, print_lr=False),
            ValidationHandler(validator=evaluator, interval=1, epoch_level=True),
            StatsHandler(tag_name="train_loss", output_transform=from_engine(["loss"], first=True)),
            CheckpointSaver(save_dir="./runs", save_dict={"net": net, "opt": opt}, save_interval=1),
        ],
        amp=True,
        amp_kwargs=amp_kwargs,
        optim_set_to_none=True,
    )

    @trainer.on(Events.ITERATION_COMPLETED)
    def iteration_completed(engine):
        states = [engine.state, evaluator.state]
        outputs = [output for state in states for output in state.output or ()]
        given = [[output["image"], output["label"]] for output in outputs]
        made = [[value for key, value in output.items() if key in ("pred", "loss")] for output in outputs]
        cached = [train_ds._cache, val_ds._cache]
        batches = [state.batch for state in states if state.batch is not None]
        end_of_step(inputs=[batches, cached, given], activations=made)

    trainer.run()


if __name__ == "__main__":
    main()
