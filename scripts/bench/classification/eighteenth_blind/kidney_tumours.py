"""A DynUNet with deep supervision (as nnU-Net trains it) segments kidneys and their tumours in CT with MONAI's SupervisedTrainer: SGD with Nesterov, polynomial decay, bf16, a sliding-window evaluation after every epoch."""

import logging

import numpy as np
import torch
from monai.data import CacheDataset, DataLoader
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
from monai.losses import DeepSupervisionLoss, DiceCELoss
from monai.networks.nets import DynUNet
from monai.transforms import (
    Activationsd,
    AsDiscreted,
    Compose,
    EnsureChannelFirstd,
    EnsureTyped,
    RandCropByPosNegLabeld,
    RandFlipd,
    RandGaussianNoised,
    RandScaleIntensityd,
    ScaleIntensityRanged,
)
from monai.utils import set_determinism
from ignite.engine import Events
from programs import end_of_step, tell

logging.basicConfig(level=logging.WARNING)
set_determinism(seed=4)
device = torch.device("cuda")
PATCH = (48, 48, 32)
STRIDES = [[1, 1, 1], [2, 2, 2], [2, 2, 2], [2, 2, 1]]
KERNELS = [[3, 3, 3]] * 4


def case(seed):
    """A body with two kidneys, one of them with a tumour, in Hounsfield units."""
    rng = np.random.default_rng(seed)
    z, y, x = np.mgrid[0:56, 0:56, 0:36].astype(np.float32)
    image = rng.normal(-20, 30, z.shape).astype(np.float32)
    label = np.zeros(z.shape, np.uint8)
    for centre in ((16, 28, 18), (40, 28, 18)):
        centre = np.array(centre) + rng.integers(-3, 4, 3)
        inside = ((z - centre[0]) / 9) ** 2 + ((y - centre[1]) / 13) ** 2 + ((x - centre[2]) / 10) ** 2 < 1
        label[inside] = 1
        image[inside] += 160
    inside = (z - centre[0] - 5) ** 2 + (y - centre[1]) ** 2 + (x - centre[2]) ** 2 < 30
    label[inside] = 2
    image[inside] -= 60
    return {"image": image, "label": label}


keys = ["image", "label"]
loaded = [
    EnsureChannelFirstd(keys=keys, channel_dim="no_channel"),
    ScaleIntensityRanged(keys="image", a_min=-79, a_max=304, b_min=0, b_max=1, clip=True),
    EnsureTyped(keys=keys),
]
train_transforms = Compose(
    loaded
    + [
        RandCropByPosNegLabeld(keys=keys, label_key="label", spatial_size=PATCH, pos=2, neg=1, num_samples=1),
        RandFlipd(keys=keys, prob=0.5, spatial_axis=0),
        RandGaussianNoised(keys="image", prob=0.15, std=0.05),
        RandScaleIntensityd(keys="image", factors=0.3, prob=0.15),
    ]
)
train_data = CacheDataset([case(i) for i in range(4)], train_transforms, progress=False)
val_data = CacheDataset([case(100)], Compose(loaded), progress=False)
train_loader = DataLoader(train_data, batch_size=2, shuffle=True)
val_loader = DataLoader(val_data, batch_size=1)

network = DynUNet(
    spatial_dims=3,
    in_channels=1,
    out_channels=3,
    kernel_size=KERNELS,
    strides=STRIDES,
    upsample_kernel_size=STRIDES[1:],
    filters=[24, 48, 96, 192],
    norm_name="instance",
    deep_supervision=True,
    deep_supr_num=2,
).to(device)


class UnboundLoss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.loss = DeepSupervisionLoss(
            DiceCELoss(to_onehot_y=True, softmax=True, batch=True), weight_mode="exp"
        )

    def forward(self, predictions, label):
        return self.loss(list(torch.unbind(predictions, dim=1)), label)


max_epochs = 10
optimizer = torch.optim.SGD(network.parameters(), lr=1e-2, momentum=0.99, weight_decay=3e-5, nesterov=True)
scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=max_epochs, power=0.9)

post = Compose(
    [
        Activationsd(keys="pred", softmax=True),
        AsDiscreted(keys=["pred", "label"], argmax=[True, False], to_onehot=3),
    ]
)
evaluator = SupervisedEvaluator(
    device=device,
    val_data_loader=val_loader,
    network=network,
    inferer=SlidingWindowInferer(roi_size=PATCH, sw_batch_size=2, overlap=0.25, mode="gaussian"),
    postprocessing=post,
    key_val_metric={
        "val_mean_dice": MeanDice(include_background=False, output_transform=from_engine(["pred", "label"]))
    },
    val_handlers=[
        CheckpointSaver(save_dir="runs", save_dict={"network": network}, save_key_metric=True),
    ],
    amp=True,
    amp_kwargs={"dtype": torch.bfloat16},
)


trainer = SupervisedTrainer(
    device=device,
    max_epochs=max_epochs,
    train_data_loader=train_loader,
    network=network,
    optimizer=optimizer,
    loss_function=UnboundLoss(),
    inferer=SimpleInferer(),
    amp=True,
    amp_kwargs={"dtype": torch.bfloat16},
    optim_set_to_none=True,
    train_handlers=[
        LrScheduleHandler(scheduler, print_lr=False),
        ValidationHandler(validator=evaluator, interval=1, epoch_level=True),
        StatsHandler(tag_name="train_loss", output_transform=from_engine(["loss"], first=True)),
    ],
)


@trainer.on(Events.ITERATION_COMPLETED)
def finished(engine):
    output = engine.state.output
    end_of_step(
        inputs=[[item["image"], item["label"]] for item in output],
        activations=[[item["pred"], item["loss"]] for item in output],
    )


@evaluator.on(Events.ITERATION_COMPLETED)
def evaluated(engine):
    tell(inputs=[[item["image"], item["label"]] for item in engine.state.output])


trainer.run()
print("dice", evaluator.state.best_metric)
