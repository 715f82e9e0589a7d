"""What kinds of cells a tissue has is learned from counts of their genes, as scVI does it: an autoencoder with batches of the laboratory as conditions, zero-inflated counts, sparse rows that become dense on the device, Lightning, a divergence that is warmed up."""

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import EarlyStopping
from programs import end_of_step
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler

GENES, LABORATORIES, BATCH = 3000, 6, 128


class AnnDataset(Dataset):
    """Counts of cells by genes, most of which are zero: rows are taken all at once and stay sparse."""

    def __init__(self, n_cells, seed):
        g = torch.Generator().manual_seed(seed)
        kinds = torch.rand(8, GENES, generator=g).pow(6) * 4
        means = kinds[torch.randint(8, (n_cells,), generator=g)]
        self.counts = torch.poisson(means, generator=g)
        self.laboratory = torch.randint(LABORATORIES, (n_cells, 1), generator=g)

    def __len__(self):
        return len(self.counts)

    def __getitem__(self, indices):
        return {"X": self.counts[indices].to_sparse_coo(), "batch": self.laboratory[indices]}

    def loader(self, shuffle):
        order = RandomSampler(self) if shuffle else SequentialSampler(self)
        return DataLoader(self, sampler=BatchSampler(order, BATCH, drop_last=shuffle), batch_size=None)


def log_zinb_positive(x, mu, theta, pi, eps=1e-8):
    """The logarithm of the likelihood of counts under a zero-inflated negative binomial."""
    softplus_pi = F.softplus(-pi)
    log_theta_mu_eps = torch.log(theta + mu + eps)
    pi_theta_log = -pi + theta * (torch.log(theta + eps) - log_theta_mu_eps)
    case_zero = F.softplus(pi_theta_log) - softplus_pi
    case_non_zero = (
        -softplus_pi
        + pi_theta_log
        + x * (torch.log(mu + eps) - log_theta_mu_eps)
        + torch.lgamma(x + theta)
        - torch.lgamma(theta)
        - torch.lgamma(x + 1)
    )
    return torch.where(x < eps, case_zero, case_non_zero)


class FCLayers(nn.Module):
    """Every layer is told again which laboratory it was."""

    def __init__(self, n_in, n_out, n_layers, n_hidden, n_cat, dropout=0.1):
        super().__init__()
        dims, self.n_cat = [n_in] + (n_layers - 1) * [n_hidden] + [n_out], n_cat
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.Linear(a + n_cat, b),
                nn.BatchNorm1d(b, momentum=0.01, eps=1e-3),
                nn.ReLU(),
                nn.Dropout(dropout),
            )
            for a, b in zip(dims[:-1], dims[1:])  # noqa: RUF007
        )

    def forward(self, x, cat):
        onehot = F.one_hot(cat.squeeze(-1), self.n_cat).float()
        for layer in self.layers:
            x = layer(torch.cat([x, onehot], dim=-1))
        return x


class VAE(nn.Module):
    def __init__(self, n_hidden=512, n_latent=20, n_layers=2):
        super().__init__()
        self.px_r = nn.Parameter(torch.randn(GENES))
        self.z_encoder = FCLayers(GENES, n_hidden, n_layers, n_hidden, LABORATORIES)
        self.z_mean, self.z_var = nn.Linear(n_hidden, n_latent), nn.Linear(n_hidden, n_latent)
        self.decoder = FCLayers(n_latent, n_hidden, n_layers, n_hidden, LABORATORIES, dropout=0.0)
        self.px_scale = nn.Sequential(nn.Linear(n_hidden, GENES), nn.Softmax(dim=-1))
        self.px_dropout = nn.Linear(n_hidden, GENES)

    def inference(self, x, batch_index):
        q = self.z_encoder(torch.log1p(x), batch_index)
        return Normal(self.z_mean(q), torch.exp(self.z_var(q)).sqrt() + 1e-4)

    def generative(self, z, library, batch_index):
        px = self.decoder(z, batch_index)
        return torch.exp(library) * self.px_scale(px), torch.exp(self.px_r), self.px_dropout(px)

    def forward(self, x, batch_index):
        library = torch.log(x.sum(1, keepdim=True).clamp(min=1))
        qz = self.inference(x, batch_index)
        rate, theta, dropout = self.generative(qz.rsample(), library, batch_index)
        reconst_loss = -log_zinb_positive(x, rate, theta, dropout).sum(dim=-1)
        kl = kl_divergence(qz, Normal(torch.zeros_like(qz.loc), torch.ones_like(qz.scale))).sum(dim=1)
        return qz, reconst_loss, kl


class TrainingPlan(pl.LightningModule):
    def __init__(self, module, lr=1e-3, weight_decay=1e-6, n_epochs_kl_warmup=4):
        super().__init__()
        self.save_hyperparameters(ignore="module")
        self.module = module

    @property
    def kl_weight(self):
        return min(1.0, self.current_epoch / self.hparams.n_epochs_kl_warmup)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return {"X": batch["X"].to_dense(), "batch": batch["batch"]}

    def training_step(self, batch, batch_idx):
        _, reconst_loss, kl = self.module(batch["X"], batch["batch"])
        loss = torch.mean(reconst_loss + self.kl_weight * kl)
        self.log("train_loss", loss, on_epoch=True, batch_size=BATCH, prog_bar=True)
        self.log("kl_local_train", kl.mean(), on_step=False, on_epoch=True, batch_size=BATCH)
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        end_of_step(inputs=batch, activations=outputs)

    def validation_step(self, batch, batch_idx):
        _, reconst_loss, kl = self.module(batch["X"], batch["batch"])
        self.log("elbo_validation", (reconst_loss + kl).mean(), batch_size=BATCH)

    def predict_step(self, batch, batch_idx):
        return self.module.inference(batch["X"], batch["batch"]).loc

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(
            self.parameters(), lr=self.hparams.lr, eps=0.01, weight_decay=self.hparams.weight_decay
        )
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=3, factor=0.6)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "monitor": "elbo_validation"},
        }


if __name__ == "__main__":
    pl.seed_everything(1107, verbose=False)
    plan = TrainingPlan(VAE())
    trainer = pl.Trainer(
        accelerator="auto",
        devices=1,
        max_epochs=5,
        num_sanity_val_steps=0,
        callbacks=[EarlyStopping("elbo_validation", patience=5)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    train_set, validation_set = AnnDataset(2 * BATCH, seed=1), AnnDataset(BATCH, seed=2)
    trainer.fit(plan, train_set.loader(shuffle=True), validation_set.loader(shuffle=False))
    latent = torch.cat(trainer.predict(plan, train_set.loader(shuffle=False)))
    print(f"cells in the latent space: {tuple(latent.shape)}")
