"""A sparse variational GP learns the inverse dynamics of a robot arm with GPyTorch: seven independent torques, NGD for the variational part, Adam with milestones for the rest."""

import gpytorch
import torch
from gpytorch.variational import (
    IndependentMultitaskVariationalStrategy,
    NaturalVariationalDistribution,
    VariationalStrategy,
)
from programs import end_of_step
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
joints, inducing = 7, 300


def recordings(n):
    q = torch.randn(n, 3 * joints)
    mix = torch.randn(3 * joints, joints, generator=torch.Generator().manual_seed(0)) / 4
    return q, torch.sin(q @ mix) + 0.3 * q[:, :joints] + 0.05 * torch.randn(n, joints)


class ArmGP(gpytorch.models.ApproximateGP):
    def __init__(self, points):
        distribution = NaturalVariationalDistribution(points.size(-2), batch_shape=torch.Size([joints]))
        strategy = IndependentMultitaskVariationalStrategy(
            VariationalStrategy(self, points, distribution, learn_inducing_locations=True), num_tasks=joints
        )
        super().__init__(strategy)
        batch = torch.Size([joints])
        self.mean_module = gpytorch.means.LinearMean(points.size(-1), batch_shape=batch)
        self.covar_module = gpytorch.kernels.ScaleKernel(
            gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=points.size(-1), batch_shape=batch),
            batch_shape=batch,
        )

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


x, y = recordings(4000)
test_x, test_y = recordings(500)
train = DataLoader(TensorDataset(x, y), batch_size=256, shuffle=True, drop_last=True)

points = x[torch.randperm(len(x))[:inducing]].repeat(joints, 1, 1)
model = ArmGP(points).cuda()
likelihood = gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks=joints, rank=0).cuda()
mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(x))
natural = gpytorch.optim.NGD(model.variational_parameters(), num_data=len(x), lr=0.1)
adam = torch.optim.Adam([{"params": model.hyperparameters()}, {"params": likelihood.parameters()}], lr=0.01)
scheduler = torch.optim.lr_scheduler.MultiStepLR(adam, milestones=[30, 45], gamma=0.1)

model.train()
likelihood.train()
for step, (bx, by) in zip(range(4), train):
    bx, by = bx.cuda(), by.cuda()
    natural.zero_grad()
    adam.zero_grad()
    output = model(bx)
    loss = -mll(output, by)
    loss.backward()
    natural.step()
    adam.step()
    scheduler.step()
    print(step, loss.item())
    if step == 1:
        model.eval()
        likelihood.eval()
        errors = []
        with torch.no_grad(), gpytorch.settings.fast_pred_var():
            for tx, ty in DataLoader(TensorDataset(test_x, test_y), batch_size=250):
                tx, ty = tx.cuda(), ty.cuda()
                errors.append((likelihood(model(tx)).mean - ty).square().mean(0).cpu())
        print("nMSE", (torch.stack(errors).mean(0) / test_y.var(0)).tolist())
        model.train()
        likelihood.train()
    end_of_step(inputs=[bx, by], activations=[loss, output.loc])
