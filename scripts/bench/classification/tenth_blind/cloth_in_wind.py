"""A flag's next moments are learned on its mesh (MeshGraphNets): normalizers that gather on the device, noise on what is known, blocks that are computed again, two flags to a step, a rollout between."""

import argparse
import math

import torch
import torch.nn as nn
from programs import end_of_step, tell
from torch.utils.checkpoint import checkpoint

NORMAL, HANDLE = 0, 1


def grid_mesh(rows, cols):
    """Triangles of a sheet of cloth, as edges in both directions."""
    index = torch.arange(rows * cols).view(rows, cols)
    pairs = [
        torch.stack([a.flatten(), b.flatten()])
        for a, b in (
            (index[:, :-1], index[:, 1:]),
            (index[:-1], index[1:]),
            (index[:-1, :-1], index[1:, 1:]),
        )
    ]
    edges = torch.cat(pairs, dim=1)
    mesh_pos = torch.stack([index.flatten() // cols, index.flatten() % cols], dim=1).float() / rows
    node_type = torch.where(index.flatten() % cols == 0, HANDLE, NORMAL)
    return torch.cat([edges, edges.flip(0)], dim=1), mesh_pos, node_type


def trajectory(mesh_pos, n_steps, generator):
    """Waves run through the flag; only that it moves matters."""
    t = torch.arange(n_steps)[:, None].float()
    phase, speed = torch.rand(2, generator=generator) * 6
    depth = 0.2 * mesh_pos[:, 1] * torch.sin(4 * mesh_pos[:, 1] - (0.2 + 0.02 * speed) * t + phase)
    return torch.cat([mesh_pos.expand(n_steps, -1, -1), depth[..., None]], dim=-1)


class Normalizer(nn.Module):
    def __init__(self, size, max_accumulations=10**6, std_epsilon=1e-8):
        super().__init__()
        self.max_accumulations, self.std_epsilon = max_accumulations, std_epsilon
        self.register_buffer("acc_count", torch.zeros(()))
        self.register_buffer("num_acc", torch.zeros(()))
        self.register_buffer("acc_sum", torch.zeros(size))
        self.register_buffer("acc_sum_squared", torch.zeros(size))

    def forward(self, batch, accumulate=True):
        if accumulate and self.num_acc < self.max_accumulations:
            data = batch.detach()
            self.acc_sum += data.sum(0)
            self.acc_sum_squared += (data**2).sum(0)
            self.acc_count += len(data)
            self.num_acc += 1
        return (batch - self.mean()) / self.std()

    def inverse(self, normalized):
        return normalized * self.std() + self.mean()

    def mean(self):
        return self.acc_sum / self.acc_count.clamp(min=1)

    def std(self):
        variance = self.acc_sum_squared / self.acc_count.clamp(min=1) - self.mean() ** 2
        return variance.clamp(min=0).sqrt().clamp(min=self.std_epsilon)


def mlp(n_in, width, n_out, norm=True):
    layers = [nn.Linear(n_in, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, n_out)]
    return nn.Sequential(*layers, nn.LayerNorm(n_out)) if norm else nn.Sequential(*layers)


class GraphNetBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.edge_mlp, self.node_mlp = mlp(3 * width, width, width), mlp(2 * width, width, width)

    def forward(self, x, e, senders, receivers):
        e_new = self.edge_mlp(torch.cat([x[senders], x[receivers], e], dim=-1))
        gathered = torch.zeros_like(x).index_add_(0, receivers, e_new)
        return x + self.node_mlp(torch.cat([x, gathered], dim=-1)), e + e_new


class FlagModel(nn.Module):
    def __init__(self, width=160, steps=8):
        super().__init__()
        self.output_normalizer, self.node_normalizer, self.edge_normalizer = map(Normalizer, (3, 5, 7))
        self.node_encoder, self.edge_encoder = mlp(5, width, width), mlp(7, width, width)
        self.blocks = nn.ModuleList(GraphNetBlock(width) for _ in range(steps))
        self.decoder = mlp(width, width, 3, norm=False)

    def forward(self, world_pos, prev_pos, mesh_pos, node_type, edges):
        senders, receivers = edges
        kind = nn.functional.one_hot(node_type, 2).float()
        nodes = torch.cat([world_pos - prev_pos, kind], dim=-1)
        world, mesh = world_pos[senders] - world_pos[receivers], mesh_pos[senders] - mesh_pos[receivers]
        features = torch.cat(
            [world, world.norm(dim=-1, keepdim=True), mesh, mesh.norm(dim=-1, keepdim=True)], dim=-1
        )
        x = self.node_encoder(self.node_normalizer(nodes, self.training))
        e = self.edge_encoder(self.edge_normalizer(features, self.training))
        for block in self.blocks:
            if self.training:
                x, e = checkpoint(block, x, e, senders, receivers, use_reentrant=False)
            else:
                x, e = block(x, e, senders, receivers)
        return self.decoder(x)

    def predict(self, world_pos, prev_pos, *mesh):
        acceleration = self.output_normalizer.inverse(self(world_pos, prev_pos, *mesh))
        return 2 * world_pos - prev_pos + acceleration


@torch.no_grad()
def rollout(model, positions, mesh, node_type, n=5):
    model.eval()
    prev, now, error = positions[0], positions[1], 0.0
    for t in range(2, 2 + n):
        following = model.predict(now, prev, *mesh)
        following = torch.where((node_type == NORMAL)[:, None], following, positions[t])
        error += (following - positions[t]).square().mean().item()
        prev, now = now, following
    model.train()
    return math.sqrt(error / n)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--flags", type=int, default=2, help="flags whose gradients are added up")
    parser.add_argument("--noise", type=float, default=3e-3)
    parser.add_argument("--gamma", type=float, default=0.1)
    parser.add_argument("--eval_every", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(1005)
    generator = torch.Generator().manual_seed(1005)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    edges, mesh_pos, node_type = (part.to(device) for part in grid_mesh(24, 32))
    mesh = (mesh_pos, node_type, edges)
    data = [trajectory(mesh_pos.cpu(), 40, generator) for _ in range(6)]
    held_out = data.pop().to(device)
    model = FlagModel().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.1 ** (1 / 1000))
    loss_mask = (node_type == NORMAL).unsqueeze(-1)

    for step in range(args.steps):
        optimizer.zero_grad(set_to_none=True)
        for _ in range(args.flags):
            flag = data[int(torch.randint(len(data), (), generator=generator))]
            t = int(torch.randint(1, len(flag) - 1, (), generator=generator))
            prev_pos, world_pos, target = flag[t - 1 : t + 2].to(device)
            noise = torch.randn_like(world_pos) * args.noise * loss_mask
            world_pos, target = world_pos + noise, target + (1 - args.gamma) * noise
            wanted = model.output_normalizer(target - 2 * world_pos + prev_pos)
            predicted = model(world_pos, prev_pos, *mesh)
            loss = ((predicted - wanted).square().sum(-1, keepdim=True) * loss_mask).sum() / loss_mask.sum()
            (loss / args.flags).backward()
            tell(inputs=[prev_pos, world_pos, target, noise, wanted], activations=[predicted, loss])
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        end_of_step(
            inputs=[mesh, held_out, loss_mask, prev_pos, world_pos, target, noise, wanted],
            activations=[predicted, loss],
        )
        if (step + 1) % args.eval_every == 0:
            print(
                f"{step}: loss {loss.item():.4f}, of a rollout {rollout(model, held_out, mesh, node_type):.4f}"
            )


if __name__ == "__main__":
    main()
