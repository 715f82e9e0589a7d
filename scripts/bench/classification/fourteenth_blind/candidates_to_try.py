"""Recipes are sought by Bayesian optimization with BoTorch: a Gaussian process in double precision that is fitted by L-BFGS, an acquisition from samples, restarts that climb together, four candidates a round."""

import warnings

import torch
from botorch import fit_gpytorch_mll
from botorch.acquisition import qLogNoisyExpectedImprovement
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import GammaPrior
from linear_operator.operators import LinearOperator
from programs import end_of_step, tell

warnings.filterwarnings("ignore")
DIMENSIONS, N_BEFORE = 10, 700


def measure(x):
    """Ackley's function with noise, of which less is better."""
    z = 30 * x - 10
    value = (
        -20 * torch.exp(-0.2 * z.pow(2).mean(-1).sqrt())
        - torch.exp(torch.cos(2 * torch.pi * z).mean(-1))
        + 20
        + torch.e
    )
    return -value.unsqueeze(-1) + 0.05 * torch.randn(*x.shape[:-1], 1, dtype=x.dtype, device=x.device)


def fitted(x, y, state):
    covariance = ScaleKernel(
        MaternKernel(nu=2.5, ard_num_dims=DIMENSIONS, lengthscale_prior=GammaPrior(3.0, 6.0)),
        outputscale_prior=GammaPrior(2.0, 0.15),
    )
    model = SingleTaskGP(
        x, y, covar_module=covariance, input_transform=Normalize(DIMENSIONS), outcome_transform=Standardize(1)
    ).to(device=x.device, dtype=x.dtype)
    if state is not None:
        model.load_state_dict(state)
    fit_gpytorch_mll(
        ExactMarginalLogLikelihood(model.likelihood, model), optimizer_kwargs={"options": {"maxiter": 5}}
    )
    return model


def predictions_kept(held):
    """All that a model's strategy of prediction has computed from what was measured."""
    if isinstance(held, torch.Tensor):
        return [held]
    if isinstance(held, dict):
        return predictions_kept(list(held.values()))
    if isinstance(held, (list, tuple)):
        return [found for each in held for found in predictions_kept(each)]
    inner = [
        getattr(held, "_args", ()),
        list(getattr(held, "_kwargs", {}).values()),
        getattr(held, "_memoize_cache", {}),
    ]
    return predictions_kept(inner) if isinstance(held, LinearOperator) else []


def main():
    torch.manual_seed(0)
    tkwargs = {"dtype": torch.double, "device": torch.device("cuda")}
    bounds = torch.stack([torch.zeros(DIMENSIONS, **tkwargs), torch.ones(DIMENSIONS, **tkwargs)])
    x = torch.rand(N_BEFORE, DIMENSIONS, **tkwargs)
    y = measure(x)
    best_seen, state = [y.max().item()], None
    for round_number in range(4):
        model = fitted(x, y, state)
        sampler = SobolQMCNormalSampler(torch.Size([64]), seed=round_number)
        acquisition = qLogNoisyExpectedImprovement(
            model=model, X_baseline=x, sampler=sampler, prune_baseline=True, cache_root=True
        )
        candidates, value = optimize_acqf(
            acquisition,
            bounds,
            q=4,
            num_restarts=6,
            raw_samples=64,
            options={"batch_limit": 6, "maxiter": 3, "init_batch_limit": 64},
        )
        candidates = candidates.detach()
        strategy = model.prediction_strategy
        kept = predictions_kept([strategy._memoize_cache, strategy.lik_train_train_covar])
        tell(inputs=[x, y, model.train_inputs, model.train_targets], activations=kept)
        x, y = torch.cat([x, candidates]), torch.cat([y, measure(candidates)])
        state = model.state_dict()
        best_seen.append(y.max().item())
        print(f"round {round_number}: best {best_seen[-1]:.3f}, acquisition {value.max().item():.3f}")
        end_of_step(inputs=[x, y, bounds], weights=state, activations=[candidates, value])


if __name__ == "__main__":
    main()
