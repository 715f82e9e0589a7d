"""Kriging of copper grades from drill-hole samples with GPyTorch: an exact GP (Matern with a length per axis) fitted by Adam through conjugate gradients, then the block model."""

import gpytorch
import numpy as np
import torch
from programs import end_of_step

device = "cuda"
torch.manual_seed(0)
rng = np.random.default_rng(0)


def drill_holes(holes=70, samples=28):
    collars = rng.uniform(0, 1, size=(holes, 2))
    depths = np.linspace(0, 1, samples)
    places = np.concatenate([np.repeat(collars, samples, 0), np.tile(depths, holes)[:, None]], 1)
    places[:, :2] += 0.05 * places[:, 2:] * rng.normal(size=(holes, 2)).repeat(samples, 0)
    rock = rng.integers(0, 4, size=(holes, 1)).repeat(samples, 0) / 3.0
    grade = np.sin(6 * places[:, 0]) * np.cos(4 * places[:, 1]) + 0.5 * np.exp(-4 * (places[:, 2] - 0.4) ** 2)
    grade = grade + 0.3 * rock[:, 0] + 0.1 * rng.normal(size=len(places))
    features = np.concatenate([places, rock], 1)
    return torch.tensor(features, dtype=torch.float32), torch.tensor(grade, dtype=torch.float32)


class Kriging(gpytorch.models.ExactGP):
    def __init__(self, train_x, train_y, likelihood):
        super().__init__(train_x, train_y, likelihood)
        self.mean_module = gpytorch.means.LinearMean(train_x.shape[-1])
        self.covar_module = gpytorch.kernels.ScaleKernel(
            gpytorch.kernels.MaternKernel(
                nu=1.5,
                ard_num_dims=train_x.shape[-1],
                lengthscale_prior=gpytorch.priors.GammaPrior(3.0, 6.0),
            ),
            outputscale_prior=gpytorch.priors.GammaPrior(2.0, 0.15),
        )

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


features, grades = drill_holes()
grades = (grades - grades.mean()) / grades.std()
order = torch.randperm(len(features))
held_out, kept = order[:160], order[160:]
train_x, train_y = features[kept].to(device), grades[kept].to(device)
test_x, test_y = features[held_out].to(device), grades[held_out].to(device)

likelihood = gpytorch.likelihoods.GaussianLikelihood(
    noise_constraint=gpytorch.constraints.GreaterThan(1e-3)
).to(device)
model = Kriging(train_x, train_y, likelihood).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[40, 60], gamma=0.3)
mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)


def evaluate():
    model.eval()
    likelihood.eval()
    with torch.no_grad(), gpytorch.settings.fast_pred_var():
        predicted = likelihood(model(test_x))
        error = (predicted.mean - test_y).abs().mean().item()
        inside = ((predicted.mean - test_y).abs() < 2 * predicted.stddev).float().mean().item()
    model.train()
    likelihood.train()
    return error, inside


model.train()
likelihood.train()
with (
    gpytorch.settings.max_preconditioner_size(30),
    gpytorch.settings.cg_tolerance(1.0),
    gpytorch.settings.max_cg_iterations(300),
):
    for iteration in range(80):
        optimizer.zero_grad()
        output = model(train_x)
        loss = -mll(output, train_y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        if iteration % 2 == 0:
            error, inside = evaluate()
            noise = likelihood.noise.item()
            print(
                f"{iteration}: loss {loss.item():.3f} noise {noise:.3f} MAE {error:.3f} inside two sigma {inside:.2f}"
            )
        end_of_step(inputs=[train_x, train_y, test_x, test_y], activations=[loss, output.mean])

    model.eval()
    likelihood.eval()
    axis = torch.linspace(0, 1, 24)
    blocks = torch.cartesian_prod(axis, axis, axis)
    blocks = torch.cat([blocks, torch.full((len(blocks), 1), 0.5)], 1)
    means = []
    with torch.no_grad(), gpytorch.settings.fast_pred_var():
        for chunk in blocks.split(1024):
            means.append(model(chunk.to(device)).mean.cpu())
    torch.save(torch.cat(means), "block_model.pt")
