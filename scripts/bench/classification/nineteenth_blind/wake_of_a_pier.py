"""Viscosity and density of the water behind a bridge pier are found from velocity probes: an inverse PINN of DeepXDE for Navier-Stokes, trained with SOAP."""

import os

os.environ["DDE_BACKEND"] = "pytorch"

import deepxde as dde
import numpy as np
import torch  # noqa: F401
from programs import end_of_step, tell
from pytorch_optimizer import SOAP

dde.config.set_random_seed(7)
rng = np.random.default_rng(7)

viscosity = dde.Variable(0.1)
density = dde.Variable(0.5)


def navier_stokes(x, y):
    u, v, p = y[:, 0:1], y[:, 1:2], y[:, 2:3]  # noqa: F841
    du_x = dde.grad.jacobian(y, x, i=0, j=0)
    du_y = dde.grad.jacobian(y, x, i=0, j=1)
    du_t = dde.grad.jacobian(y, x, i=0, j=2)
    dv_x = dde.grad.jacobian(y, x, i=1, j=0)
    dv_y = dde.grad.jacobian(y, x, i=1, j=1)
    dv_t = dde.grad.jacobian(y, x, i=1, j=2)
    dp_x = dde.grad.jacobian(y, x, i=2, j=0)
    dp_y = dde.grad.jacobian(y, x, i=2, j=1)
    du_xx = dde.grad.hessian(y, x, component=0, i=0, j=0)
    du_yy = dde.grad.hessian(y, x, component=0, i=1, j=1)
    dv_xx = dde.grad.hessian(y, x, component=1, i=0, j=0)
    dv_yy = dde.grad.hessian(y, x, component=1, i=1, j=1)
    momentum_x = density * (du_t + u * du_x + v * du_y) + dp_x - viscosity * (du_xx + du_yy)
    momentum_y = density * (dv_t + u * dv_x + v * dv_y) + dp_y - viscosity * (dv_xx + dv_yy)
    return [momentum_x, momentum_y, du_x + dv_y]


def probes(n):
    """Velocities measured downstream of the pier: a vortex street with a little noise."""
    x, y, t = rng.uniform(1, 8, n), rng.uniform(-2, 2, n), rng.uniform(0, 7, n)
    phase = 2 * np.pi * (x / 4.5 - 0.18 * t)
    u = 1 - 0.4 * np.exp(-(y**2)) + 0.2 * np.cos(phase) * y * np.exp(-(y**2))
    v = 0.35 * np.sin(phase) * np.exp(-(y**2) / 2)
    noise = 0.01 * rng.standard_normal((2, n))
    return np.stack([x, y, t], 1).astype("float32"), (u + noise[0])[:, None], (v + noise[1])[:, None]


class Wake(dde.nn.FNN):
    def forward(self, inputs):
        tell(inputs=inputs)
        return super().forward(inputs)


class Progress(dde.callbacks.Callback):
    def on_batch_end(self):
        print(f"viscosity {viscosity.item():.4f} density {density.item():.4f}")
        end_of_step(
            inputs=[observed_u.values, observed_v.values],
            weights=[viscosity, density],
            gradients=[viscosity.grad, density.grad],
        )


area = dde.geometry.Rectangle([1, -2], [8, 2])
domain = dde.geometry.GeometryXTime(area, dde.geometry.TimeDomain(0, 7))
points, u_seen, v_seen = probes(1000)
observed_u = dde.icbc.PointSetBC(points, u_seen, component=0)
observed_v = dde.icbc.PointSetBC(points, v_seen, component=1)
data = dde.data.TimePDE(
    domain,
    navier_stokes,
    [observed_u, observed_v],
    num_domain=1400,
    num_boundary=200,
    num_initial=100,
    anchors=points,
    num_test=800,
)

net = Wake([3] + [72] * 6 + [3], "tanh", "Glorot uniform")
optimizer = SOAP(
    list(net.parameters()) + [viscosity, density],
    lr=3e-3,
    betas=(0.95, 0.95),
    weight_decay=0.0,
    precondition_frequency=2,
)
model = dde.Model(data, net)
model.compile(
    optimizer,
    decay=("step", 2000, 0.5),
    loss_weights=[1, 1, 1, 20, 20],
    external_trainable_variables=[viscosity, density],
)
model.train(iterations=6, display_every=1000, callbacks=[Progress()], verbose=0)
