"""A table that lies on the device as a whole is learned by an estimator with fit and predict, which keeps its best weights."""

import copy

import torch
from programs import end_of_step
from torch import nn


class Columns(nn.Module):
    def __init__(self, sizes, n_numeric, width=16, hidden=(512, 512, 256), dropout=0.1):
        super().__init__()
        self.embeds = nn.ModuleList([nn.Embedding(size, width) for size in sizes])
        self.bn_numeric = nn.BatchNorm1d(n_numeric)
        layers, n = [], width * len(sizes) + n_numeric
        for n_out in hidden:
            layers += [
                nn.Linear(n, n_out),
                nn.ReLU(inplace=True),
                nn.BatchNorm1d(n_out),
                nn.Dropout(dropout),
            ]
            n = n_out
        self.layers = nn.Sequential(*layers, nn.Linear(n, 1))

    def forward(self, categorical, numeric):
        x = [embed(categorical[:, i]) for i, embed in enumerate(self.embeds)]
        x = torch.cat([*x, self.bn_numeric(numeric)], 1)
        return self.layers(x).squeeze(1)


class Regressor:
    def __init__(self, sizes, batch_size=1024, max_epochs=10, patience=3, lr=1e-3, device="cuda"):
        self.sizes, self.batch_size = sizes, batch_size
        self.max_epochs, self.patience = max_epochs, patience
        self.lr, self.device = lr, device
        self.history = []

    def fit(self, X_cat, X_num, y, eval_set):
        self.model_ = Columns(self.sizes, X_num.shape[1]).to(self.device)
        self.optimizer_ = torch.optim.Adam(self.model_.parameters(), lr=self.lr, weight_decay=1e-5)
        X_cat, X_num, y = X_cat.to(self.device), X_num.to(self.device), y.to(self.device)
        V_cat, V_num, v = (part.to(self.device) for part in eval_set)
        everything = [X_cat, X_num, y, V_cat, V_num, v]
        best, waited, self.best_state_ = float("inf"), 0, {}
        for _ in range(self.max_epochs):
            self.model_.train()
            order = torch.randperm(len(y), device=self.device)
            for start in range(0, len(y), self.batch_size):
                index = order[start : start + self.batch_size]
                loss = self._train_on(X_cat[index], X_num[index], y[index])
                end_of_step(
                    inputs=[everything, order], activations=[loss], weights=self.best_state_
                )
            self.history.append(
                (self.predict_on_device(V_cat, V_num) - v).pow(2).mean().sqrt().item()
            )
            if self.history[-1] < best:
                best, waited = self.history[-1], 0
                self.best_state_ = copy.deepcopy(self.model_.state_dict())
            else:
                waited += 1
                if waited == self.patience:
                    break
        self.model_.load_state_dict(self.best_state_)
        return self

    def _train_on(self, categorical, numeric, wanted):
        loss = nn.functional.smooth_l1_loss(self.model_(categorical, numeric), wanted)
        self.optimizer_.zero_grad()
        loss.backward()
        self.optimizer_.step()
        return loss.detach()

    @torch.no_grad()
    def predict_on_device(self, X_cat, X_num):
        self.model_.eval()
        parts = zip(X_cat.split(self.batch_size), X_num.split(self.batch_size))
        return torch.cat([self.model_(*part) for part in parts])


SIZES = (9000, 3000, 400, 31, 7)


def table(n):
    categorical = torch.stack([torch.randint(0, size, (n,)) for size in SIZES], 1)
    return categorical, torch.randn(n, 26), torch.randn(n)


torch.manual_seed(70)
print(Regressor(SIZES).fit(*table(2048), eval_set=table(1024)).history)
