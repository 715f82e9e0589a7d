"""Abilities of pupils and difficulties of exam items: a two-parameter item response model in Pyro, sampled with NUTS on the GPU."""

import pyro
import pyro.distributions as dist
import torch
from programs import end_of_step
from pyro.infer import MCMC, NUTS
from pyro.infer.autoguide.initialization import init_to_median
from pyro.nn import PyroModule

pyro.set_rng_seed(21)
device = torch.device("cuda")

PUPILS, ITEMS, SCHOOLS = 20000, 120, 150


def simulated_exam():
    schools = torch.randint(0, SCHOOLS, (PUPILS,))
    ability = 0.5 * torch.randn(SCHOOLS)[schools] + torch.randn(PUPILS)
    difficulty = 1.2 * torch.randn(ITEMS)
    discrimination = torch.exp(0.3 * torch.randn(ITEMS))
    logits = discrimination * (ability[:, None] - difficulty)
    return torch.bernoulli(torch.sigmoid(logits)), schools


class ItemResponse(PyroModule):
    """Two-parameter logistic model with abilities that cluster by school."""

    def __init__(self, pupils, items, schools):
        super().__init__()
        self.pupils, self.items, self.schools = pupils, items, schools

    def forward(self, answers, schools):
        zero, one = answers.new_zeros(()), answers.new_ones(())
        spread = pyro.sample("spread", dist.HalfNormal(one))
        with pyro.plate("schools", self.schools):
            school = pyro.sample("school", dist.Normal(zero, one))
        with pyro.plate("items", self.items, dim=-1):
            difficulty = pyro.sample("difficulty", dist.Normal(zero, 2 * one))
            discrimination = pyro.sample("discrimination", dist.LogNormal(zero, 0.5 * one))
        with pyro.plate("pupils", self.pupils, dim=-2):
            own = pyro.sample("ability", dist.Normal(zero, one).expand([self.pupils, 1]))
            ability = own + (spread * school)[schools].unsqueeze(-1)
            with pyro.plate("answered", self.items, dim=-1):
                logits = discrimination * (ability - difficulty)
                pyro.sample("answers", dist.Bernoulli(logits=logits), obs=answers)


answers, schools = simulated_exam()
answers, schools = answers.to(device), schools.to(device)
model = ItemResponse(PUPILS, ITEMS, SCHOOLS)
kernel = NUTS(
    model,
    step_size=0.01,
    max_tree_depth=5,
    target_accept_prob=0.8,
    init_strategy=init_to_median(num_samples=5),
)


def report(kernel, sample, stage, i):
    if i % 2 == 0:
        logged = kernel.logging()
        print(
            f"{stage} {i}: step size {logged['step size']} accept {logged['acc. prob']} spread {sample['spread'].exp().item():.3f}"
        )
    end_of_step(inputs=[answers, schools], weights=[sample], gradients=[kernel._z_grads_last])


mcmc = MCMC(kernel, num_samples=40, warmup_steps=20, hook_fn=report, disable_progbar=True)
mcmc.run(answers, schools)
posterior = mcmc.get_samples()
torch.save({name: value.mean(0).cpu() for name, value in posterior.items()}, "abilities.pt")
