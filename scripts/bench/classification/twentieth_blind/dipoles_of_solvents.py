"""PyG's SchNet learns the dipole moments of solvent molecules: distances of all pairs within 6 angstroms, AdamW, a plateau schedule, clipped, an EMA of torch-ema that is validated."""

import torch
from programs import end_of_step
from torch_ema import ExponentialMovingAverage
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import SchNet

torch.manual_seed(12)
device = "cuda"


def molecule():
    k = int(torch.randint(8, 19, (1,)))
    z = torch.tensor([1, 6, 7, 8])[
        torch.multinomial(torch.tensor([0.5, 0.35, 0.07, 0.08]), k, replacement=True)
    ]
    pos = torch.randn(k, 3).mul(0.85).cumsum(0)
    distance = torch.cdist(pos, pos)
    edges = ((distance < 6.0) & ~torch.eye(k, dtype=torch.bool)).nonzero().t().contiguous()
    charge = (z - z.float().mean()) / 10
    return Data(z=z, pos=pos, edge_index=edges, y=(charge[:, None] * pos).sum(0).norm().view(1, 1))


class Precomputed:
    """The pairs come with the batch; only their lengths are computed."""

    def __call__(self, pos, batch):
        i, j = self.edge_index
        return self.edge_index, (pos[i] - pos[j]).norm(dim=-1)


pairs = Precomputed()
model = SchNet(
    hidden_channels=128,
    num_filters=128,
    num_interactions=4,
    num_gaussians=50,
    cutoff=6.0,
    interaction_graph=pairs,
    dipole=True,
).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=1e-5)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.7, patience=5, min_lr=1e-5)
ema = ExponentialMovingAverage(model.parameters(), decay=0.99)
train = DataLoader([molecule() for _ in range(72)], batch_size=24, shuffle=True)
valid = DataLoader([molecule() for _ in range(32)], batch_size=16)


def predict(data):
    pairs.edge_index = data.edge_index
    return model(data.z, data.pos, data.batch)


@torch.no_grad()
def validate():
    model.eval()
    with ema.average_parameters():
        error = 0.0
        for data in valid:
            data = data.to(device)
            error += (predict(data) - data.y).abs().sum().item()
    return error / len(valid.dataset)


step = 0
for epoch in range(2):
    for data in train:
        model.train()
        data = data.to(device)
        optimizer.zero_grad()
        out = predict(data)
        loss = torch.nn.functional.mse_loss(out, data.y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        ema.update()
        step += 1
        if step % 2 == 0:
            mae = validate()
            scheduler.step(mae)
            print(f"{step} {loss.item():.4f} {mae:.4f}")
        end_of_step(
            inputs=[data.z, data.pos, data.edge_index, data.y, data.batch, data.ptr],
            activations=[out, loss],
            weights=[ema.shadow_params, ema.collected_params or []],
        )
