"""What digits look like is learned as an energy (a tutorial on deep energy models): chains of Langevin steps go down the network's gradient by the picture, a buffer keeps the ends of chains, Lightning, contrastive divergence; chances of noise are compared between."""

import random

import lightning as L
import numpy as np
import torch
import torch.nn as nn
from programs import end_of_step, tell
from torch import optim
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset):
    """Strokes on a black ground, between -1 and 1."""

    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        y, x = np.mgrid[:32, :32] / 31.0
        self.images = np.full((n, 1, 32, 32), -1.0, np.float32)
        for image in self.images:
            for _ in range(rng.integers(1, 4)):
                a, b = rng.uniform(0.2, 0.8, (2, 2))
                t = np.clip(((x - a[0]) * (b - a)[0] + (y - a[1]) * (b - a)[1]) / ((b - a) ** 2).sum(), 0, 1)
                away = np.hypot(x - a[0] - t * (b - a)[0], y - a[1] - t * (b - a)[1])
                image[0] = np.maximum(image[0], 1 - 2 * np.clip(away / 0.08, 0, 1))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return torch.from_numpy(self.images[i]), i % 10


class Swish(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(x)


class CNNModel(nn.Module):
    def __init__(self, hidden_features=192, out_dim=1):
        super().__init__()
        c1, c2, c3 = hidden_features // 4, hidden_features // 2, hidden_features
        self.cnn_layers = nn.Sequential(
            nn.Conv2d(1, c1, 5, stride=2, padding=4),
            Swish(),
            nn.Conv2d(c1, c2, 3, stride=2, padding=1),
            Swish(),
            nn.Conv2d(c2, c3, 3, stride=2, padding=1),
            Swish(),
            nn.Conv2d(c3, c3, 3, stride=1, padding=1),
            Swish(),
            nn.Flatten(),
            nn.Linear(c3 * 25, 4 * c3),
            Swish(),
            nn.Linear(4 * c3, out_dim),
        )

    def forward(self, x):
        return self.cnn_layers(x).squeeze(dim=-1)


class Sampler:
    """Ends of earlier chains are on the host; most chains go on from one of them."""

    def __init__(self, model, img_shape, sample_size, max_len=1024):
        self.model, self.img_shape, self.sample_size, self.max_len = model, img_shape, sample_size, max_len
        self.examples = [torch.rand((1, *img_shape)) * 2 - 1 for _ in range(sample_size)]

    def sample_new_exmps(self, device, steps=12, step_size=10):
        n_new = np.random.binomial(self.sample_size, 0.05)  # noqa: NPY002
        rand_imgs = torch.rand((n_new, *self.img_shape)) * 2 - 1
        old_imgs = torch.cat(random.choices(self.examples, k=self.sample_size - n_new), dim=0)
        inp_imgs = torch.cat([rand_imgs, old_imgs], dim=0).detach().to(device)
        inp_imgs = self.generate_samples(self.model, inp_imgs, steps=steps, step_size=step_size)
        self.examples = list(inp_imgs.to("cpu").chunk(self.sample_size, dim=0)) + self.examples
        self.examples = self.examples[: self.max_len]
        return inp_imgs

    @staticmethod
    def generate_samples(model, inp_imgs, steps=12, step_size=10, return_img_per_step=False):
        is_training = model.training
        model.eval()
        for p in model.parameters():
            p.requires_grad = False
        inp_imgs.requires_grad = True
        had_gradients_enabled = torch.is_grad_enabled()
        torch.set_grad_enabled(True)
        noise = torch.randn(inp_imgs.shape, device=inp_imgs.device)
        imgs_per_step = []
        for _ in range(steps):
            noise.normal_(0, 0.005)
            inp_imgs.data.add_(noise.data)
            inp_imgs.data.clamp_(min=-1.0, max=1.0)
            out_imgs = -model(inp_imgs)
            out_imgs.sum().backward()
            inp_imgs.grad.data.clamp_(-0.03, 0.03)
            inp_imgs.data.add_(-step_size * inp_imgs.grad.data)
            inp_imgs.grad.detach_()
            inp_imgs.grad.zero_()
            inp_imgs.data.clamp_(min=-1.0, max=1.0)
            if return_img_per_step:
                imgs_per_step.append(inp_imgs.clone().detach())
        for p in model.parameters():
            p.requires_grad = True
        model.train(is_training)
        torch.set_grad_enabled(had_gradients_enabled)
        return torch.stack(imgs_per_step, dim=0) if return_img_per_step else inp_imgs


class DeepEnergyModel(L.LightningModule):
    def __init__(self, img_shape, batch_size, alpha=0.1, lr=1e-4, beta1=0.0):
        super().__init__()
        self.save_hyperparameters()
        self.cnn = CNNModel()
        self.sampler = Sampler(self.cnn, img_shape=img_shape, sample_size=batch_size)

    def forward(self, x):
        return self.cnn(x)

    def configure_optimizers(self):
        optimizer = optim.Adam(self.parameters(), lr=self.hparams.lr, betas=(self.hparams.beta1, 0.999))
        return [optimizer], [optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.97)]

    def training_step(self, batch, batch_idx):
        real_imgs, _ = batch
        small_noise = torch.randn_like(real_imgs) * 0.005
        real_imgs.add_(small_noise).clamp_(min=-1.0, max=1.0)
        fake_imgs = self.sampler.sample_new_exmps(self.device)
        inp_imgs = torch.cat([real_imgs, fake_imgs], dim=0)
        real_out, fake_out = self.cnn(inp_imgs).chunk(2, dim=0)
        reg_loss = self.hparams.alpha * (real_out**2 + fake_out**2).mean()
        cdiv_loss = fake_out.mean() - real_out.mean()
        loss = reg_loss + cdiv_loss
        tell(
            inputs=[real_imgs, fake_imgs, inp_imgs],
            gradients=[fake_imgs.grad],
            activations=[real_out, fake_out, loss],
        )
        self.log_dict(
            {"loss": loss, "contrastive": cdiv_loss, "real": real_out.mean(), "fake": fake_out.mean()}
        )
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        end_of_step(inputs=batch, activations=outputs)

    def validation_step(self, batch, batch_idx):
        real_imgs, _ = batch
        fake_imgs = torch.rand_like(real_imgs) * 2 - 1
        real_out, fake_out = self.cnn(torch.cat([real_imgs, fake_imgs])).chunk(2, dim=0)
        self.log_dict({"val_contrastive": fake_out.mean() - real_out.mean(), "val_fake": fake_out.mean()})


class GenerateCallback(L.Callback):
    """Pictures from nothing, now and then."""

    def __init__(self, n=4, num_steps=16, every_n_epochs=2):
        self.n, self.num_steps, self.every_n_epochs = n, num_steps, every_n_epochs

    def on_train_epoch_end(self, trainer, pl_module):
        if (trainer.current_epoch + 1) % self.every_n_epochs == 0:
            start = torch.rand((self.n, *pl_module.hparams.img_shape), device=pl_module.device) * 2 - 1
            drawn = Sampler.generate_samples(pl_module.cnn, start, self.num_steps, return_img_per_step=True)
            print(f"epoch {trainer.current_epoch}: drawn {tuple(drawn.shape)}, {drawn[-1].mean().item():.3f}")


if __name__ == "__main__":
    L.seed_everything(1203, verbose=False)
    model = DeepEnergyModel(img_shape=(1, 32, 32), batch_size=64)
    trainer = L.Trainer(accelerator="auto", devices=1, max_epochs=4, gradient_clip_val=0.1, num_sanity_val_steps=0, callbacks=[GenerateCallback()], logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)  # fmt: skip
    train_loader = DataLoader(Digits(128, seed=1), batch_size=64, shuffle=True, drop_last=True)
    trainer.fit(model, train_loader, DataLoader(Digits(64, seed=2), batch_size=64))
