"""Viscosity is found from a few measurements of a flow (a PINN): the equations are derivatives of the network, unknown numbers are learned with it, L-BFGS with a line search, points drawn anew now and then."""

import math

import torch
import torch.nn as nn
from programs import end_of_step

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

N_DATA, N_COLLOCATION, N_TEST = 200, 300, 500
LOWER, UPPER = torch.tensor([1.0, -2.0, 0.0]), torch.tensor([8.0, 2.0, 7.0])
RHO, NU = 1.0, 0.01


def vortices(xyt):
    """Decaying vortices that drift, which solve the equations: what was measured is taken from here."""
    x, y, t = xyt.unbind(1)
    fade = torch.exp(-2 * NU * t)
    u = 1 - torch.cos(x - t) * torch.sin(y) * fade
    v = torch.sin(x - t) * torch.cos(y) * fade
    p = -0.25 * (torch.cos(2 * (x - t)) + torch.cos(2 * y)) * fade**2
    return torch.stack([u, v, p], dim=1)


def points(n):
    sobol = torch.quasirandom.SobolEngine(3, scramble=True)
    return LOWER + (UPPER - LOWER) * sobol.draw(n)


class FourierFeatures(nn.Module):
    def __init__(self, n_in, n_features, scale=1.0):
        super().__init__()
        self.register_buffer("B", torch.randn(n_in, n_features) * scale)

    def forward(self, x):
        projected = 2 * math.pi * x @ self.B
        return torch.cat([projected.sin(), projected.cos()], dim=1)


class Net(nn.Module):
    def __init__(self, width=448, depth=4, features=128):
        super().__init__()
        self.register_buffer("lb", LOWER.clone())
        self.register_buffer("ub", UPPER.clone())
        self.features = FourierFeatures(3, features, scale=0.3)
        layers, n = [], 2 * features
        for _ in range(depth):
            layers += [nn.Linear(n, width), nn.Tanh()]
            n = width
        self.layers = nn.Sequential(*layers, nn.Linear(n, 2))
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                nn.init.xavier_normal_(layer.weight)
                nn.init.zeros_(layer.bias)

    def forward(self, x, y, t):
        xyt = torch.cat([x, y, t], dim=1)
        return self.layers(self.features(2 * (xyt - self.lb) / (self.ub - self.lb) - 1))


def grad(outputs, inputs):
    return torch.autograd.grad(outputs, inputs, torch.ones_like(outputs), create_graph=True)[0]


class PhysicsInformedNN:
    def __init__(self, n_data=N_DATA, n_collocation=N_COLLOCATION):
        self.net = Net().to(device)
        # One is multiplied with the convection, the other one with what diffuses.
        self.lambda_1 = nn.Parameter(torch.zeros(1, device=device))
        self.lambda_2 = nn.Parameter(torch.zeros(1, device=device))
        self.net.register_parameter("lambda_1", self.lambda_1)
        self.net.register_parameter("lambda_2", self.lambda_2)

        measured = points(n_data)
        wanted = vortices(measured)[:, :2]
        self.x, self.y, self.t = (column.to(device) for column in measured.split(1, dim=1))
        self.u, self.v = ((w + 0.01 * torch.randn_like(w)).to(device) for w in wanted.split(1, dim=1))
        self.n_collocation = n_collocation
        self.resample()

        self.optimizer = torch.optim.LBFGS(
            self.net.parameters(),
            lr=1.0,
            max_iter=2,
            max_eval=3,
            history_size=10,
            tolerance_grad=1e-9,
            tolerance_change=1e-12,
            line_search_fn="strong_wolfe",
        )
        self.iter = 0

    def resample(self):
        columns = points(self.n_collocation).to(device).split(1, dim=1)
        self.collocation = [column.clone().requires_grad_() for column in columns]

    def net_flow(self, x, y, t):
        """From a stream function, so that what flows in flows out."""
        psi, p = self.net(x, y, t).split(1, dim=1)
        return grad(psi, y), -grad(psi, x), p

    def residuals(self, x, y, t):
        u, v, p = self.net_flow(x, y, t)
        u_x, u_y, u_t = (grad(u, axis) for axis in (x, y, t))
        v_x, v_y, v_t = (grad(v, axis) for axis in (x, y, t))
        p_x, p_y = grad(p, x), grad(p, y)
        laplace_u, laplace_v = grad(u_x, x) + grad(u_y, y), grad(v_x, x) + grad(v_y, y)
        f_u = u_t + self.lambda_1 * (u * u_x + v * u_y) + p_x / RHO - self.lambda_2 * laplace_u
        f_v = v_t + self.lambda_1 * (u * v_x + v * v_y) + p_y / RHO - self.lambda_2 * laplace_v
        return f_u, f_v

    def loss_func(self):
        self.optimizer.zero_grad()
        x, y, t = (column.clone().requires_grad_() for column in (self.x, self.y, self.t))
        u_pred, v_pred, _ = self.net_flow(x, y, t)
        f_u, f_v = self.residuals(*self.collocation)
        loss_data = (self.u - u_pred).pow(2).mean() + (self.v - v_pred).pow(2).mean()
        loss_equations = f_u.pow(2).mean() + f_v.pow(2).mean()
        loss = loss_data + loss_equations
        loss.backward()
        self.iter += 1
        self.parts = loss_data.item(), loss_equations.item()
        return loss

    def train(self, steps, resample_every=2):
        self.net.train()
        for step in range(steps):
            loss = self.optimizer.step(self.loss_func)
            print(
                f"{step} (evaluation {self.iter}): {loss.item():.3e}, data {self.parts[0]:.3e}, "
                f"equations {self.parts[1]:.3e}, l1 {self.lambda_1.item():.4f}, l2 {self.lambda_2.item():.5f}"
            )
            end_of_step(
                inputs=[self.x, self.y, self.t, self.u, self.v, self.collocation],
                states=[*self.optimizer.state.values()],
                activations=[loss],
                gradients=[axis.grad for axis in self.collocation if axis.grad is not None],
            )
            if (step + 1) % resample_every == 0:
                self.test()
                self.resample()

    def test(self):
        xyt = points(N_TEST)
        exact = vortices(xyt).to(device)
        x, y, t = (column.to(device).requires_grad_() for column in xyt.split(1, dim=1))
        u, v, _ = (part.detach() for part in self.net_flow(x, y, t))
        error_u, error_v = (
            (torch.linalg.norm(found[:, 0] - exact[:, i]) / torch.linalg.norm(exact[:, i])).item()
            for i, found in enumerate((u, v))
        )
        print(
            f"relative errors: u {error_u:.3f}, v {error_v:.3f}; of nu {abs(self.lambda_2.item() / NU - 1):.1%}"
        )


if __name__ == "__main__":
    torch.manual_seed(1008)
    PhysicsInformedNN().train(steps=8)
