"""GraphGPS regresses the solubility of molecules in an Ignite engine: bfloat16 autocast, AdamW, warm-up, an EMA of the model."""

import torch
import torch.nn.functional as F
from ignite.engine import Engine, Events
from ignite.handlers import EMAHandler, create_lr_scheduler_with_warmup
from ignite.handlers.param_scheduler import CosineAnnealingScheduler
from ignite.metrics import MeanAbsoluteError
from programs import end_of_step
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINEConv, GPSConv, global_add_pool
from torch_geometric.transforms import AddRandomWalkPE

torch.manual_seed(31)
device = torch.device("cuda")


def molecule():
    atoms = int(torch.randint(16, 36, ()))
    chain = torch.arange(atoms - 1)
    bonds = torch.stack([chain, chain + 1])
    rings = torch.randint(0, atoms - 5, (3,))
    bonds = torch.cat([bonds, torch.stack([rings, rings + 5])], dim=1)
    kinds = torch.randint(0, 4, (bonds.shape[1],))
    return Data(
        x=torch.randint(0, 28, (atoms,)),
        edge_index=torch.cat([bonds, bonds.flip(0)], dim=1),
        edge_attr=torch.cat([kinds, kinds]),
        y=torch.randn(1),
    )


class GPS(nn.Module):
    def __init__(self, channels=128, pe_dim=16, walk_length=20, layers=5):
        super().__init__()
        self.node_emb = nn.Embedding(28, channels - pe_dim)
        self.pe_norm = nn.BatchNorm1d(walk_length)
        self.pe_lin = nn.Linear(walk_length, pe_dim)
        self.edge_emb = nn.Embedding(4, channels)
        self.convs = nn.ModuleList()
        for _ in range(layers):
            mlp = nn.Sequential(nn.Linear(channels, channels), nn.ReLU(), nn.Linear(channels, channels))
            self.convs.append(GPSConv(channels, GINEConv(mlp), heads=4, dropout=0.1))
        self.head = nn.Sequential(nn.Linear(channels, channels // 2), nn.ReLU(), nn.Linear(channels // 2, 1))

    def forward(self, x, pe, edge_index, edge_attr, batch):
        x = torch.cat([self.node_emb(x), self.pe_lin(self.pe_norm(pe))], dim=1)
        edge_attr = self.edge_emb(edge_attr)
        for conv in self.convs:
            x = conv(x, edge_index, batch, edge_attr=edge_attr)
        return self.head(global_add_pool(x, batch)).squeeze(-1)


transform = AddRandomWalkPE(walk_length=20, attr_name="pe")
molecules = [transform(molecule()) for _ in range(320)]
train_loader = DataLoader(molecules[:256], batch_size=64, shuffle=True)
valid_loader = DataLoader(molecules[256:], batch_size=64)

model = GPS().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=1e-5)


def train_step(engine, batch):
    model.train()
    batch = batch.to(device, non_blocking=True)
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        predicted = model(batch.x, batch.pe, batch.edge_index, batch.edge_attr, batch.batch)
    loss = F.l1_loss(predicted.float(), batch.y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    engine.state.batch = batch
    return loss.item()


def valid_step(engine, batch):
    ema.ema_model.eval()
    batch = batch.to(device)
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        predicted = ema.ema_model(batch.x, batch.pe, batch.edge_index, batch.edge_attr, batch.batch)
    return predicted.float(), batch.y


trainer, evaluator = Engine(train_step), Engine(valid_step)
MeanAbsoluteError(device="cpu").attach(evaluator, "mae")
ema = EMAHandler(model, momentum=0.001)
ema.attach(trainer, name="ema_momentum", event=Events.ITERATION_COMPLETED)
cosine = CosineAnnealingScheduler(optimizer, "lr", 5e-4, 1e-6, cycle_size=40)
trainer.add_event_handler(
    Events.ITERATION_STARTED,
    create_lr_scheduler_with_warmup(
        cosine, warmup_start_value=1e-5, warmup_end_value=5e-4, warmup_duration=4
    ),
)


@trainer.on(Events.ITERATION_COMPLETED(every=2))
def validate(engine):
    evaluator.run(valid_loader)
    print(
        f"iteration {engine.state.iteration} loss {engine.state.output:.3f} mae {evaluator.state.metrics['mae']:.3f}"
    )


@trainer.on(Events.ITERATION_COMPLETED)
def step_ends(engine):
    batch = engine.state.batch
    end_of_step(inputs=[tensor for _, tensor in batch if torch.is_tensor(tensor)])


trainer.run(train_loader, max_epochs=2)
