"""A graph network with a virtual node tells what molecules do to cells: batches of graphs by hand, missing labels, Lightning with its average of weights."""

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback, EMAWeightAveraging
from programs import end_of_step
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import MultilabelAUROC

ATOM_DIMS, BOND_DIMS, N_TASKS = (119, 5, 12, 12, 10, 6, 6, 2, 2), (5, 6, 2), 12


class Molecules(Dataset):
    """Chains of atoms with some rings, as smiles2graph makes them."""

    def __init__(self, n, seed):
        random = torch.Generator().manual_seed(seed)
        self.graphs = []
        for _ in range(n):
            n_atoms = int(torch.randint(8, 36, (), generator=random))
            chain = torch.stack((torch.arange(n_atoms - 1), torch.arange(1, n_atoms)))
            rings = torch.randint(n_atoms, (2, 3), generator=random)
            edges = torch.cat((chain, rings), dim=1)
            edges = torch.cat((edges, edges.flip(0)), dim=1)
            x = torch.stack([torch.randint(d, (n_atoms,), generator=random) for d in ATOM_DIMS], dim=1)
            e = torch.stack([torch.randint(d, (edges.size(1),), generator=random) for d in BOND_DIMS], dim=1)
            y = torch.randint(2, (N_TASKS,), generator=random).float()
            y[torch.rand(N_TASKS, generator=random) < 0.2] = float("nan")
            self.graphs.append((x, edges, e, y))

    def __len__(self):
        return len(self.graphs)

    def __getitem__(self, index):
        return self.graphs[index]


def collate(graphs):
    """One large graph of many small ones."""
    xs, edges, es, ys = zip(*graphs)
    sizes = torch.tensor([len(x) for x in xs])
    starts = (sizes.cumsum(0) - sizes).tolist()
    return {
        "x": torch.cat(xs),
        "edge_index": torch.cat([edge + start for edge, start in zip(edges, starts)], dim=1),
        "edge_attr": torch.cat(es),
        "batch": torch.repeat_interleave(torch.arange(len(graphs)), sizes),
        "y": torch.stack(ys),
    }


class FeatureEncoder(nn.Module):
    def __init__(self, dims, emb_dim):
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(dim, emb_dim) for dim in dims)
        for embedding in self.embeddings:
            nn.init.xavier_uniform_(embedding.weight)

    def forward(self, x):
        return sum(embedding(x[:, i]) for i, embedding in enumerate(self.embeddings))


class GINConv(nn.Module):
    def __init__(self, emb_dim):
        super().__init__()
        self.mlp = mlp(emb_dim, emb_dim, last=False)
        self.eps = nn.Parameter(torch.zeros(1))
        self.bond_encoder = FeatureEncoder(BOND_DIMS, emb_dim)

    def forward(self, x, edge_index, edge_attr):
        source, target = edge_index
        messages = F.relu(x[source] + self.bond_encoder(edge_attr))
        summed = torch.zeros_like(x).index_add_(0, target, messages)
        return self.mlp((1 + self.eps) * x + summed)


def mlp(n_in, n_out, last=True):
    layers = [nn.Linear(n_in, 2 * n_in), nn.BatchNorm1d(2 * n_in), nn.ReLU(), nn.Linear(2 * n_in, n_out)]
    return nn.Sequential(*layers, *([nn.BatchNorm1d(n_out), nn.ReLU()] if last else []))


class GINVirtualNode(nn.Module):
    def __init__(self, n_layers=5, emb_dim=300, drop_ratio=0.5):
        super().__init__()
        self.drop_ratio = drop_ratio
        self.atom_encoder = FeatureEncoder(ATOM_DIMS, emb_dim)
        self.virtual_node = nn.Embedding(1, emb_dim)
        nn.init.zeros_(self.virtual_node.weight)
        self.convs = nn.ModuleList(GINConv(emb_dim) for _ in range(n_layers))
        self.norms = nn.ModuleList(nn.BatchNorm1d(emb_dim) for _ in range(n_layers))
        self.virtual_mlps = nn.ModuleList(mlp(emb_dim, emb_dim) for _ in range(n_layers - 1))
        self.graph_pred = nn.Linear(emb_dim, N_TASKS)

    def forward(self, x, edge_index, edge_attr, batch, n_graphs):
        virtual = self.virtual_node(torch.zeros(n_graphs, dtype=torch.long, device=x.device))
        h = self.atom_encoder(x)
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms)):
            h = h + virtual[batch]
            found = norm(conv(h, edge_index, edge_attr))
            is_last = i == len(self.convs) - 1
            found = F.dropout(found if is_last else F.relu(found), self.drop_ratio, training=self.training)
            if not is_last:
                pooled = torch.zeros_like(virtual).index_add_(0, batch, h) + virtual
                virtual = F.dropout(self.virtual_mlps[i](pooled), self.drop_ratio, training=self.training)
            h = found
        sums = h.new_zeros(n_graphs, h.size(1)).index_add_(0, batch, h)
        return self.graph_pred(sums / torch.bincount(batch, minlength=n_graphs)[:, None])


class Toxicity(L.LightningModule):
    def __init__(self, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.model = GINVirtualNode()
        self.auroc = MultilabelAUROC(num_labels=N_TASKS, ignore_index=-1, thresholds=50)

    def forward(self, batch):
        x, edges, attributes = batch["x"], batch["edge_index"], batch["edge_attr"]
        return self.model(x, edges, attributes, batch["batch"], len(batch["y"]))

    def training_step(self, batch, batch_idx):
        pred, y = self(batch), batch["y"]
        is_labeled = y == y
        loss = F.binary_cross_entropy_with_logits(pred[is_labeled], y[is_labeled])
        self.log("train_loss", loss, batch_size=len(y))
        return loss

    def validation_step(self, batch, batch_idx):
        self.auroc.update(self(batch).sigmoid(), batch["y"].nan_to_num(-1).long())
        self.log("val_auroc", self.auroc, batch_size=len(batch["y"]))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.5)]


class Averaging(EMAWeightAveraging):
    def held(self):
        return [*self._average_model.parameters(), *self._average_model.buffers()]


class Steps(Callback):
    def __init__(self, averaging):
        self.averaging = averaging

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        end_of_step(inputs=batch, activations=outputs, weights=self.averaging.held())


if __name__ == "__main__":
    L.seed_everything(406, verbose=False)
    averaging = Averaging(decay=0.99)
    trainer = L.Trainer(
        accelerator="auto",
        devices=1,
        max_epochs=3,
        gradient_clip_val=1.0,
        callbacks=[averaging, Steps(averaging)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    train_loader = DataLoader(Molecules(64, seed=1), batch_size=32, shuffle=True, collate_fn=collate)
    val_loader = DataLoader(Molecules(32, seed=2), batch_size=32, collate_fn=collate)
    trainer.fit(Toxicity(), train_loader, val_loader)
