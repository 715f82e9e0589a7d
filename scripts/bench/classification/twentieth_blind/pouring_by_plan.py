"""A robot pours by model-predictive path integral control: an ensemble of learned recurrent dynamics in bfloat16 rolls out a thousand plans for every control step, on what a camera network sees."""

import torch
import torchvision
from programs import end_of_step
from torch import nn

torch.manual_seed(8)
device, dtype = "cuda", torch.bfloat16
horizon, plans, actions, members = 8, 1024, 7, 4


class Dynamics(nn.Module):
    """Latent dynamics: a GRU cell with a decoder of changes and a head for the cost."""

    def __init__(self, latent=128, hidden=384):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(latent + actions, hidden), nn.LayerNorm(hidden), nn.SiLU())
        self.cell = nn.GRUCell(hidden, hidden)
        self.change = nn.Sequential(nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, latent))
        self.cost = nn.Sequential(nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 1))

    def forward(self, z, action, h):
        h = self.cell(self.embed(torch.cat([z, action], -1)), h)
        return z + self.change(h), self.cost(h).squeeze(-1).float(), h


class Planner:
    def __init__(self, models, temperature=0.5, noise=0.4, beta=0.7):
        self.models, self.temperature, self.noise, self.beta = models, temperature, noise, beta
        self.mean = torch.zeros(horizon, actions, device=device)

    @torch.inference_mode()
    def act(self, z):
        noise = torch.randn(plans, horizon, actions, device=device) * self.noise
        for t in range(1, horizon):
            noise[:, t] = self.beta * noise[:, t - 1] + (1 - self.beta) * noise[:, t]
        candidates = (self.mean + noise).clamp(-1, 1)
        costs = []
        for model in self.models:
            state = z.expand(plans, -1)
            h = torch.zeros(plans, model.cell.hidden_size, device=device, dtype=dtype)
            total = torch.zeros(plans, device=device)
            for t in range(horizon):
                state, cost, h = model(state, candidates[:, t].to(dtype), h)
                total += cost
            costs.append(total)
        costs = torch.stack(costs)
        score = costs.mean(0) + 0.5 * costs.std(0)
        weights = torch.softmax(-(score - score.min()) / self.temperature, 0)
        plan = (weights[:, None, None] * candidates).sum(0)
        self.mean = torch.cat([plan[1:], plan[-1:]])
        return plan[0].cpu(), score.min().item()


camera = torchvision.models.regnet_y_400mf(weights=None)
camera.fc = nn.Linear(camera.fc.in_features, 128)
camera = camera.to(device, dtype).eval()
ensemble = [Dynamics().to(device, dtype).eval() for _ in range(members)]
planner = Planner(ensemble)
normalize = torchvision.transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])

for step in range(4):
    frames = torch.randint(0, 256, (2, 3, 224, 224), dtype=torch.uint8)
    pictures = normalize(frames.to(device).to(dtype) / 255)
    with torch.inference_mode():
        z = camera(pictures).mean(0, keepdim=True)
    action, cost = planner.act(z)
    print(step, round(cost, 3), action.norm().item())
    end_of_step(inputs=[pictures])
