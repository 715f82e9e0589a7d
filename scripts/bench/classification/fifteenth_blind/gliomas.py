"""SegResNet on multi-modal brain scans with MONAI's trainer, its volumes cached on the GPU and its crops made there."""

import logging

import numpy as np
import torch
from monai.data import CacheDataset, ThreadDataLoader
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
from monai.losses import DiceFocalLoss
from monai.networks.nets import SegResNet
from monai.optimizers import Novograd
from monai.transforms import (
    Activationsd,
    AsDiscreted,
    Compose,
    ConvertToMultiChannelBasedOnBratsClassesd,
    CastToTyped,
    EnsureTyped,
    NormalizeIntensityd,
    RandFlipd,
    RandScaleIntensityd,
    RandShiftIntensityd,
    RandSpatialCropSamplesd,
)
from monai.utils import set_determinism
from ignite.engine import Events
from programs import end_of_step, tell

DEVICE = torch.device("cuda")
PATCH = (48, 48, 48)


def scans(n: int, seed: int) -> list[dict]:
    rng = np.random.default_rng(seed)
    shape = (72, 72, 56)
    grid = np.stack(np.meshgrid(*(np.arange(s) for s in shape), indexing="ij"))
    out = []
    for _ in range(n):
        centre = np.array([rng.uniform(20, s - 20) for s in shape]).reshape(3, 1, 1, 1)
        distance = np.sqrt(((grid - centre) ** 2).sum(0))
        label = np.zeros(shape, dtype=np.uint8)
        label[distance < 16], label[distance < 11], label[distance < 6] = 2, 3, 1
        image = rng.normal(0, 0.3, (4, *shape)) + label[None] * rng.uniform(0.2, 1, (4, 1, 1, 1)) + 1.0
        out.append({"image": image.astype(np.float32), "label": label})
    return out


def load_transforms() -> list:
    return [
        ConvertToMultiChannelBasedOnBratsClassesd(keys="label"),
        NormalizeIntensityd(keys="image", nonzero=True, channel_wise=True),
        CastToTyped(keys="label", dtype=np.float32),
        EnsureTyped(keys=("image", "label"), device=DEVICE, track_meta=False),
    ]


def main() -> None:
    logging.basicConfig(level=logging.WARNING)
    set_determinism(seed=3)
    augment = [
        RandSpatialCropSamplesd(keys=("image", "label"), roi_size=PATCH, num_samples=2, random_size=False),
        RandFlipd(keys=("image", "label"), prob=0.5, spatial_axis=0),
        RandFlipd(keys=("image", "label"), prob=0.5, spatial_axis=1),
        RandScaleIntensityd(keys="image", factors=0.1, prob=0.8),
        RandShiftIntensityd(keys="image", offsets=0.1, prob=0.8),
    ]
    train_data = CacheDataset(
        scans(3, 1), Compose(load_transforms() + augment), num_workers=0, copy_cache=False, progress=False
    )
    val_data = CacheDataset(
        scans(1, 2), Compose(load_transforms()), num_workers=0, copy_cache=False, progress=False
    )
    cached = [[item["image"], item["label"]] for data in (train_data, val_data) for item in data._cache]
    train = ThreadDataLoader(train_data, num_workers=0, batch_size=1, shuffle=True)
    val = ThreadDataLoader(val_data, num_workers=0, batch_size=1)

    model = SegResNet(
        blocks_down=(1, 2, 2, 4),
        blocks_up=(1, 1, 1),
        init_filters=8,
        in_channels=4,
        out_channels=3,
        dropout_prob=0.2,
    ).to(DEVICE)
    loss = DiceFocalLoss(smooth_nr=1e-5, smooth_dr=1e-5, squared_pred=True, to_onehot_y=False, sigmoid=True)
    optimizer = Novograd(model.parameters(), lr=1e-2, weight_decay=1e-5)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)

    evaluator = SupervisedEvaluator(
        device=DEVICE,
        val_data_loader=val,
        network=model,
        inferer=SlidingWindowInferer(roi_size=PATCH, sw_batch_size=2, overlap=0.5, mode="gaussian"),
        postprocessing=Compose(
            [Activationsd(keys="pred", sigmoid=True), AsDiscreted(keys="pred", threshold=0.5)]
        ),
        key_val_metric={
            "val_dice": MeanDice(include_background=True, output_transform=from_engine(["pred", "label"]))
        },
        val_handlers=[CheckpointSaver(save_dir="runs", save_dict={"net": model}, save_key_metric=True)],
        amp=True,
        amp_kwargs={"dtype": torch.bfloat16},
    )
    trainer = SupervisedTrainer(
        device=DEVICE,
        max_epochs=10,
        train_data_loader=train,
        network=model,
        optimizer=optimizer,
        loss_function=loss,
        inferer=SimpleInferer(),
        train_handlers=[
            LrScheduleHandler(lr_scheduler=schedule, print_lr=False),
            ValidationHandler(validator=evaluator, interval=2, epoch_level=False),
            StatsHandler(tag_name="loss", output_transform=from_engine(["loss"], first=True)),
        ],
        amp=True,
        amp_kwargs={"dtype": torch.bfloat16},
        optim_set_to_none=True,
    )

    def used(engine):
        return [[item["image"], item["label"]] for item in engine.state.output or []]

    @evaluator.on(Events.ITERATION_COMPLETED)
    def volume_ended(engine):
        tell(inputs=used(engine))

    @trainer.on(Events.ITERATION_COMPLETED)
    def step_ended(engine):
        outputs = [[item["pred"], item["loss"]] for item in engine.state.output]
        validated = [item["pred"] for item in evaluator.state.output or []]
        end_of_step(inputs=[cached, used(engine), used(evaluator)], activations=[outputs, validated])

    trainer.run()


if __name__ == "__main__":
    main()
