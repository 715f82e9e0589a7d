"""Magnitudes and distances of earthquakes from three-component seismograms: a 1-D XResNet of fastai with Ranger, MixUp, bfloat16 and a flat-cosine schedule."""

import numpy as np
import torch
from fastai.basics import Callback, DataLoaders, Learner
from fastai.callback.mixup import MixUp
from fastai.callback.schedule import fit_flat_cos  # noqa: F401 (patches Learner)
from fastai.callback.tracker import SaveModelCallback
from fastai.callback.training import GradientClip
from fastai.layers import Mish, ResBlock
from fastai.losses import MSELossFlat
from fastai.optimizer import ranger
from fastai.vision.models.xresnet import XResNet
from programs import end_of_step, tell
from torch.utils.data import Dataset

torch.manual_seed(9)
RATE, SECONDS = 100, 30


class Seismograms(Dataset):
    """Noise, a P wave and a later S wave; the target is the magnitude and the log of the distance."""

    def __init__(self, count, seed):
        generator = np.random.default_rng(seed)
        self.magnitude = generator.uniform(1, 6, count).astype(np.float32)
        self.distance = generator.uniform(10, 120, count).astype(np.float32)
        self.seed = seed

    def __len__(self):
        return len(self.magnitude)

    def __getitem__(self, index):
        generator = np.random.default_rng((self.seed, index))
        time = np.arange(RATE * SECONDS, dtype=np.float32) / RATE
        wave = 0.1 * generator.standard_normal((3, len(time)), np.float32)
        for speed, size, frequency in ((6.0, 1.0, 8.0), (3.5, 2.5, 4.0)):
            since = time - self.distance[index] / speed - 1
            envelope = np.where(since > 0, np.exp(-np.clip(since, 0, None) / 3), 0)
            amplitude = (
                size * self.magnitude[index] / self.distance[index] * generator.uniform(0.5, 1, (3, 1))
            )
            wave += (amplitude * envelope * np.sin(2 * np.pi * frequency * since)).astype(np.float32)
        wave = (wave - wave.mean(1, keepdims=True)) / wave.std()
        target = np.array([self.magnitude[index], np.log(self.distance[index])], np.float32)
        return torch.from_numpy(wave), torch.from_numpy(target)


class Batches(Callback):
    order = -5

    def before_batch(self):
        tell(inputs=[self.xb, self.yb])


class StepEnds(Callback):
    order = 90

    def after_batch(self):
        if not self.training:
            return
        end_of_step(
            inputs=[self.xb, self.yb, self.learn.mix_up.yb1],
            activations=[self.pred, self.loss_grad],
            states=[self.opt.opt.state, self.opt.slow_weights],
        )


def root_mean_square(prediction, target):
    return (prediction - target).pow(2).mean().sqrt()


dls = DataLoaders.from_dsets(
    Seismograms(384, 1), Seismograms(96, 2), bs=32, val_bs=64, shuffle=True, num_workers=0, device="cuda"
)
model = XResNet(ResBlock, 1, [2, 2, 2, 2], c_in=3, n_out=2, ndim=1, ks=5, widen=0.75, act_cls=Mish).to("cuda")
learner = Learner(
    dls,
    model,
    loss_func=MSELossFlat(),
    opt_func=ranger,
    metrics=root_mean_square,
    wd=1e-2,
    cbs=[MixUp(0.2), GradientClip(1.0), SaveModelCallback(fname="quakes"), Batches(), StepEnds()],
).to_bf16()
with learner.no_bar():
    learner.fit_flat_cos(2, 4e-3, pct_start=0.7)
