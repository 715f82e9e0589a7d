"""Band gaps of crystals with a crystal graph convolutional network: PyG's CGConv over neighbours of periodic cells, Lightning, AdamW, one cycle, clipping, averaged weights."""

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from ase import Atoms
from ase.neighborlist import neighbor_list
from lightning.pytorch.callbacks import Callback, EMAWeightAveraging
from programs import end_of_step, tell
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import CGConv, global_mean_pool
from torch_geometric.nn.models.schnet import GaussianSmearing

CUTOFF = 6.0
NEIGHBOURS = 12
ELEMENTS = np.array([3, 8, 11, 12, 13, 14, 16, 19, 20, 22, 26, 29, 30, 31, 33, 34, 38, 49, 50, 56])
RADII = 1.0 + 0.02 * ELEMENTS


def crystal(rng):
    """A distorted cell with a few species on random fractional sites, as a graph of nearest neighbours."""
    count = int(rng.integers(8, 25))
    length = (17.0 * count) ** (1 / 3)
    cell = length * (np.eye(3) + 0.08 * rng.normal(size=(3, 3)))
    species = rng.choice(len(ELEMENTS), size=3, replace=False)
    chosen = species[rng.integers(0, 3, size=count)]
    atoms = Atoms(ELEMENTS[chosen], scaled_positions=rng.random((count, 3)), cell=cell, pbc=True)
    source, target, distance = neighbor_list("ijd", atoms, CUTOFF)
    order = np.lexsort((distance, source))
    source, target, distance = source[order], target[order], distance[order]
    rank = np.arange(len(source)) - np.searchsorted(source, source)
    near = rank < NEIGHBOURS
    gap = max(0.0, 6.0 - 1.5 * RADII[chosen].mean() - 0.4 * distance[near].mean() + 0.2 * rng.normal())
    return Data(
        z=torch.from_numpy(ELEMENTS[chosen]),
        edge_index=torch.from_numpy(np.stack([target[near], source[near]])),
        distance=torch.from_numpy(distance[near]).float(),
        y=torch.tensor([gap], dtype=torch.float32),
        num_nodes=count,
    )


class Crystals(L.LightningDataModule):
    def __init__(self, batch_size=48):
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage=None):
        rng = np.random.default_rng(4)
        crystals = [crystal(rng) for _ in range(280)]
        self.train, self.valid = crystals[:240], crystals[240:]

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.valid, batch_size=self.batch_size)


class CrystalGraphs(L.LightningModule):
    def __init__(self, atom_dim=128, edge_dim=41, layers=4, hidden=256, lr=2e-3):
        super().__init__()
        self.save_hyperparameters()
        self.embedding = nn.Embedding(100, atom_dim)
        self.smearing = GaussianSmearing(0.0, CUTOFF, edge_dim)
        self.convs = nn.ModuleList(
            CGConv(atom_dim, dim=edge_dim, aggr="add", batch_norm=True) for _ in range(layers)
        )
        self.head = nn.Sequential(
            nn.Linear(atom_dim, hidden),
            nn.Softplus(),
            nn.Dropout(0.1),
            nn.Linear(hidden, hidden),
            nn.Softplus(),
            nn.Linear(hidden, 1),
        )

    def forward(self, batch):
        x = self.embedding(batch.z)
        edges = self.smearing(batch.distance)
        for conv in self.convs:
            x = F.softplus(conv(x, batch.edge_index, edges))
        return self.head(global_mean_pool(x, batch.batch, batch.num_graphs)).squeeze(-1)

    def training_step(self, batch, batch_idx):
        loss = F.huber_loss(self(batch), batch.y)
        self.log("train_loss", loss, batch_size=batch.num_graphs)
        return loss

    def validation_step(self, batch, batch_idx):
        tell(inputs=batch.to_dict())
        self.log("val_mae", F.l1_loss(self(batch), batch.y), batch_size=batch.num_graphs, prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=1e-2)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=self.hparams.lr, total_steps=self.trainer.estimated_stepping_batches
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Steps(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        end_of_step(inputs=batch.to_dict(), activations=[outputs["loss"]])


if __name__ == "__main__":
    L.seed_everything(12)
    trainer = L.Trainer(
        accelerator="gpu",
        devices=1,
        max_epochs=3,
        gradient_clip_val=5.0,
        callbacks=[EMAWeightAveraging(decay=0.99), Steps()],
        log_every_n_steps=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(CrystalGraphs(), datamodule=Crystals())
