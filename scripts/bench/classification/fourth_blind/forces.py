"""A potential of molecules: forces are the gradient of the energy, both are learned, and an average of the weights is kept."""

import torch
import torch.nn.functional as F
from programs import end_of_step
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader

CUTOFF = 3.0


def shifted_softplus(x):
    return F.softplus(x) - 0.6931


class Interaction(nn.Module):
    def __init__(self, width, n_radial):
        super().__init__()
        self.filter = nn.ModuleList([nn.Linear(n_radial, width), nn.Linear(width, width)])
        self.into, self.mix, self.out = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x, edges, radial, envelope):
        here, there = edges
        weight = self.filter[1](shifted_softplus(self.filter[0](radial))) * envelope
        gathered = torch.zeros_like(x).index_add(0, here, self.into(x)[there] * weight)
        return x + self.out(shifted_softplus(self.mix(gathered)))


class SchNet(nn.Module):
    def __init__(self, width=128, n_radial=40, n_interactions=3):
        super().__init__()
        self.embedding = nn.Embedding(20, width)
        self.register_buffer("centers", torch.linspace(0, CUTOFF, n_radial))
        self.interactions = nn.ModuleList(Interaction(width, n_radial) for _ in range(n_interactions))
        self.head1, self.head2 = nn.Linear(width, width // 2), nn.Linear(width // 2, 1)

    def forward(self, z, positions, edges, molecule, n_molecules):
        distance = (positions[edges[0]] - positions[edges[1]]).norm(dim=1, keepdim=True)
        radial = torch.exp(-10 * (distance - self.centers).square())
        envelope = 0.5 * (torch.cos(distance * torch.pi / CUTOFF) + 1)
        x = self.embedding(z)
        for interaction in self.interactions:
            x = interaction(x, edges, radial, envelope)
        of_atoms = self.head2(shifted_softplus(self.head1(x))).squeeze(1)
        return torch.zeros(n_molecules, device=x.device).index_add(0, molecule, of_atoms)


def molecule():
    n = int(torch.randint(9, 24, ()))
    return {"z": torch.randint(1, 20, (n,)), "positions": 2 * torch.randn(n, 3), "forces": torch.randn(n, 3)}


def collate(rows):
    edges, start = [], 0
    for row in rows:
        near = torch.cdist(row["positions"], row["positions"]) < CUTOFF
        edges.append(near.fill_diagonal_(False).nonzero().T + start)
        start += len(row["z"])
    batch = {key: torch.cat([row[key] for row in rows]) for key in ("z", "positions", "forces")}
    counts = torch.tensor([len(row["z"]) for row in rows])
    batch["molecule"] = torch.arange(len(rows)).repeat_interleave(counts)
    return batch | {"edges": torch.cat(edges, 1), "energy": torch.randn(len(rows))}


torch.manual_seed(95)
device = "cuda"
model = SchNet().to(device)
ema_model = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.995))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, amsgrad=True)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.8, patience=2)
loader = DataLoader([molecule() for _ in range(96)], batch_size=16, shuffle=True, collate_fn=collate)
for batch in loader:
    batch = {key: value.to(device) for key, value in batch.items()}
    positions = batch["positions"].requires_grad_()
    energy = model(batch["z"], positions, batch["edges"], batch["molecule"], len(batch["energy"]))
    forces = -torch.autograd.grad(energy.sum(), positions, create_graph=True)[0]
    loss = 0.01 * F.mse_loss(energy, batch["energy"]) + 0.99 * F.mse_loss(forces, batch["forces"])
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    optimizer.step()
    ema_model.update_parameters(model)
    scheduler.step(loss.item())
    print(loss.item(), optimizer.param_groups[0]["lr"])
    end_of_step(
        inputs=batch,
        activations=[energy, forces, loss],
        weights=[*ema_model.parameters(), *ema_model.buffers()],
    )
