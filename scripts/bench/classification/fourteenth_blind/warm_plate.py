"""How a plate with an unknown conductivity warms up is learned by DeepXDE: second derivatives in time and space, measured points, collocation points that are drawn again, SOAP with a decaying rate, then a picture of the error."""

import os

os.environ["DDE_BACKEND"] = "pytorch"

import deepxde as dde
import numpy as np
import torch
from programs import end_of_step
from pytorch_optimizer import SOAP


def exact(x):
    return np.exp(-0.8 * x[:, 2:3]) * np.sin(np.pi * x[:, 0:1]) * np.sin(np.pi * x[:, 1:2])


class EndOfStep(dde.callbacks.Callback):
    def on_batch_end(self):
        end_of_step(weights=conductivity)


conductivity = dde.Variable(0.1)


def equation(x, u):
    u_t = dde.grad.jacobian(u, x, i=0, j=2)
    u_xx = dde.grad.hessian(u, x, i=0, j=0)
    u_yy = dde.grad.hessian(u, x, i=1, j=1)
    source = (
        (2 * 0.05 * np.pi**2 - 0.8)
        * torch.exp(-0.8 * x[:, 2:3])
        * torch.sin(np.pi * x[:, 0:1])
        * torch.sin(np.pi * x[:, 1:2])
    )
    return u_t - conductivity * (u_xx + u_yy) - source


def main():
    dde.config.set_random_seed(1)
    plate = dde.geometry.Rectangle([0, 0], [1, 1])
    domain = dde.geometry.GeometryXTime(plate, dde.geometry.TimeDomain(0, 1))
    measured = np.random.rand(128, 3).astype(np.float32)
    conditions = [
        dde.icbc.DirichletBC(domain, lambda x: 0.0, lambda _, on_boundary: on_boundary),
        dde.icbc.IC(domain, exact, lambda _, on_initial: on_initial),
        dde.icbc.PointSetBC(measured, exact(measured), component=0),
    ]
    data = dde.data.TimePDE(
        domain,
        equation,
        conditions,
        num_domain=1000,
        num_boundary=128,
        num_initial=128,
        anchors=measured,
        num_test=512,
        solution=exact,
    )
    net = dde.nn.FNN([7] + [256] * 4 + [1], "tanh", "Glorot normal")
    net.apply_feature_transform(
        lambda x: torch.cat([x, torch.sin(np.pi * x[:, :2]), torch.cos(np.pi * x[:, :2])], dim=1)
    )
    model = dde.Model(data, net)
    optimizer = SOAP(
        [*net.parameters(), conductivity],
        lr=3e-3,
        betas=(0.95, 0.95),
        precondition_frequency=2,
        weight_decay=0.0,
    )
    model.compile(
        optimizer, metrics=["l2 relative error"], loss_weights=[1, 10, 10, 100], decay=("step", 1000, 0.9)
    )
    resample = dde.callbacks.PDEPointResampler(period=2)
    model.train(iterations=4, display_every=2, callbacks=[resample, EndOfStep()], model_save_path="plate")


if __name__ == "__main__":
    main()
