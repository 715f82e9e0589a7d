"""A picture is painted by blurred spots, which are doubled and removed as it is learned, their moments with them."""

import torch
from programs import end_of_step
from torch import nn

torch.manual_seed(74)
device = "cuda"
SIZE, BUDGET = 40, 2000
RATES = {"xy": 2e-2, "scale": 5e-3, "angle": 1e-2, "color": 2.5e-2, "opacity": 5e-2}


class Spots:
    def __init__(self, n):
        values = {
            "xy": torch.rand(n, 2) * 2 - 1,
            "scale": torch.full((n, 2), -2.5),
            "angle": torch.rand(n, 1) * 3.1416,
            "color": torch.rand(n, 3),
            "opacity": torch.zeros(n, 1),
        }
        self.values = {name: nn.Parameter(value.to(device)) for name, value in values.items()}
        groups = [{"params": [p], "lr": RATES[name], "name": name} for name, p in self.values.items()]
        self.optimizer = torch.optim.Adam(groups, lr=0.0, eps=1e-15)
        self.reset()

    def reset(self):
        n = len(self.values["xy"])
        self.moved = torch.zeros(n, 1, device=device)
        self.n_seen = torch.zeros(n, 1, device=device)

    @torch.no_grad()
    def watch(self):
        self.moved += self.values["xy"].grad.norm(dim=-1, keepdim=True)
        self.n_seen += 1

    @torch.no_grad()
    def densify_and_prune(self):
        mean = self.moved / self.n_seen
        torn = (mean > mean.median()).squeeze(1)
        kept = (self.values["opacity"] > -4).squeeze(1)
        for group in self.optimizer.param_groups:
            (old,) = group["params"]
            state = self.optimizer.state.pop(old)
            copies = old[torn]
            if group["name"] == "scale":
                copies = copies - 0.5
            new = nn.Parameter(torch.cat([old[kept], copies])[:BUDGET])
            for moment in ("exp_avg", "exp_avg_sq"):
                state[moment] = torch.cat([state[moment][kept], torch.zeros_like(copies)])[:BUDGET]
            group["params"] = [new]
            self.optimizer.state[new] = state
            self.values[group["name"]] = new
        self.reset()

    def states(self):
        moments = [state[m] for state in self.optimizer.state.values() for m in ("exp_avg", "exp_avg_sq")]
        return [*moments, self.moved, self.n_seen]


def render(values, pixels):
    sine, cosine = values["angle"].sin(), values["angle"].cos()
    away = pixels[:, None] - values["xy"]
    along = away[..., :1] * cosine + away[..., 1:] * sine
    across = away[..., 1:] * cosine - away[..., :1] * sine
    far = torch.cat([along, across], -1) / values["scale"].exp()
    alpha = values["opacity"].sigmoid().T * torch.exp(-0.5 * far.square().sum(-1))
    alpha = alpha.clamp(max=0.99)
    through = torch.cumprod(1 - alpha, dim=1)
    weights = alpha * torch.cat([torch.ones_like(through[:, :1]), through[:, :-1]], dim=1)
    return weights @ values["color"].sigmoid()


picture = torch.rand(SIZE * SIZE, 3).to(device)
line = torch.linspace(-1, 1, SIZE, device=device)
pixels = torch.cartesian_prod(line, line)
spots = Spots(700)
for step in range(6):
    seen = torch.randperm(SIZE * SIZE, device=device)[:1000]
    painted = render(spots.values, pixels[seen])
    loss = (painted - picture[seen]).abs().mean() + 0.1 * (painted - picture[seen]).square().mean()
    loss.backward()
    spots.watch()
    spots.optimizer.step()
    spots.optimizer.zero_grad(set_to_none=True)
    if step % 2 == 1:
        spots.densify_and_prune()
    print(step, len(spots.values["xy"]), loss.item())
    end_of_step(
        inputs=[picture, line, pixels, seen],
        activations=[painted, loss],
        states=spots.states(),
        weights=spots.values,
    )
