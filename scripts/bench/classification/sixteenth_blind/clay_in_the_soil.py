"""TabM with piecewise-linear embeddings on infrared spectra of soil: Muon and AdamW, bfloat16 autocast, all rows on the device, early stopping with the best weights kept."""

import copy
import math

import torch
import torch.nn.functional as F
from programs import end_of_step
from rtdl_num_embeddings import PiecewiseLinearEmbeddings, compute_bins
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import QuantileTransformer
from tabm import TabM

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

# Data: 48 principal bands, horizon and land use, clay content.
rows = 9000
x_num = torch.randn(rows, 48).cumsum(1) / 3
x_cat = torch.stack([torch.randint(0, 5, (rows,)), torch.randint(0, 11, (rows,))], dim=1)
y = (x_num[:, 3] * x_num[:, 20]).tanh() + 0.3 * x_cat[:, 0] + 0.1 * torch.randn(rows)

train_idx, val_idx = train_test_split(range(rows), train_size=0.8, random_state=0)
scaler = QuantileTransformer(n_quantiles=500, output_distribution="normal", subsample=10**9)
scaler.fit(x_num[train_idx].numpy())
x_num = torch.as_tensor(scaler.transform(x_num.numpy()), dtype=torch.float32)
mean, std = y[train_idx].mean(), y[train_idx].std()
y = (y - mean) / std

data = {
    part: {"x_num": x_num[idx].to(device), "x_cat": x_cat[idx].to(device), "y": y[idx].to(device)}
    for part, idx in (("train", train_idx), ("val", val_idx))
}

model = TabM.make(
    n_num_features=48,
    cat_cardinalities=[5, 11],
    d_out=1,
    k=24,
    d_block=384,
    num_embeddings=PiecewiseLinearEmbeddings(
        compute_bins(x_num[train_idx], n_bins=32), d_embedding=12, activation=False, version="B"
    ),
).to(device)

matrices = [
    p for n, p in model.named_parameters() if p.ndim == 2 and "backbone" in n and n.endswith("weight")
]
matrix_ids = {id(p) for p in matrices}
others = [p for p in model.parameters() if id(p) not in matrix_ids]
optimizers = [
    torch.optim.Muon(matrices, lr=2e-3, weight_decay=3e-4, momentum=0.95),
    torch.optim.AdamW(others, lr=2e-3, weight_decay=3e-4),
]

batch_size = 256
epoch_size = math.ceil(len(train_idx) / batch_size)


def apply_model(part, idx):
    with torch.autocast(device.type, dtype=torch.bfloat16):
        return model(data[part]["x_num"][idx], data[part]["x_cat"][idx]).squeeze(-1).float()


def loss_fn(prediction, target):
    # The k members are trained independently: the mean of their losses.
    return F.mse_loss(prediction.flatten(0, 1), target.repeat_interleave(model.k))


@torch.inference_mode()
def evaluate(part):
    model.eval()
    prediction = torch.cat(
        [apply_model(part, idx) for idx in torch.arange(len(data[part]["y"]), device=device).split(1024)]
    ).mean(1)
    return float(F.mse_loss(prediction, data[part]["y"]).sqrt() * std)


best = {"rmse": math.inf, "step": -1, "model": copy.deepcopy(model.state_dict())}
patience, remaining = 16, 16
step = 0
for epoch in range(100):
    for idx in torch.randperm(len(data["train"]["y"]), device=device).split(batch_size):
        model.train()
        for optimizer in optimizers:
            optimizer.zero_grad()
        prediction = apply_model("train", idx)
        loss = loss_fn(prediction, data["train"]["y"][idx])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        step += 1

        if step % 2 == 0:
            rmse = evaluate("val")
            if rmse < best["rmse"]:
                best = {"rmse": rmse, "step": step, "model": copy.deepcopy(model.state_dict())}
                remaining = patience
            else:
                remaining -= 1
            print(f"step {step}: loss {loss.item():.4f}, rmse {rmse:.4f}, best {best['rmse']:.4f}")
        end_of_step(inputs=[data, idx], weights=[best["model"]], activations=[prediction, loss])
        if remaining < 0:
            break
    if remaining < 0:
        break
model.load_state_dict(best["model"])
