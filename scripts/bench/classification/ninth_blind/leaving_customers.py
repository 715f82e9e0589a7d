"""Which customers leave is learned from a table by a TabNet: sparse masks by a function of its own, ghost batches, fit with early stopping, the importance of columns."""

import copy

import numpy as np
import torch
import torch.nn.functional as F
from programs import end_of_step
from torch import nn
from torch.autograd import Function
from torch.utils.data import DataLoader, TensorDataset

CARDINALITIES, N_NUMERIC, EMB_DIM = (7, 24, 310, 52), 180, 8


class SparsemaxFunction(Function):
    @staticmethod
    def forward(ctx, input, dim=-1):
        input = input - input.max(dim=dim, keepdim=True)[0]
        srt, _ = torch.sort(input, descending=True, dim=dim)
        cumsum = srt.cumsum(dim) - 1
        rhos = torch.arange(1, input.size(dim) + 1, device=input.device, dtype=input.dtype)
        support_size = (rhos * srt > cumsum).sum(dim=dim).unsqueeze(dim)
        tau = cumsum.gather(dim, support_size - 1) / support_size.to(input.dtype)
        output = torch.clamp(input - tau, min=0)
        ctx.save_for_backward(support_size, output)
        ctx.dim = dim
        return output

    @staticmethod
    def backward(ctx, grad_output):
        support_size, output = ctx.saved_tensors
        grad_input = grad_output.clone()
        grad_input[output == 0] = 0
        v_hat = grad_input.sum(dim=ctx.dim) / support_size.to(output.dtype).squeeze(ctx.dim)
        return torch.where(output != 0, grad_input - v_hat.unsqueeze(ctx.dim), grad_input), None


class GBN(nn.Module):
    """Ghost batch normalization."""

    def __init__(self, input_dim, virtual_batch_size=128, momentum=0.02):
        super().__init__()
        self.virtual_batch_size = virtual_batch_size
        self.bn = nn.BatchNorm1d(input_dim, momentum=momentum)

    def forward(self, x):
        chunks = x.chunk(int(np.ceil(x.shape[0] / self.virtual_batch_size)), 0)
        return torch.cat([self.bn(x_) for x_ in chunks], dim=0)


class GLULayer(nn.Module):
    def __init__(self, input_dim, output_dim, fc=None):
        super().__init__()
        self.fc = fc or nn.Linear(input_dim, 2 * output_dim, bias=False)
        self.bn = GBN(2 * output_dim)
        self.output_dim = output_dim

    def forward(self, x):
        x = self.bn(self.fc(x))
        return x[:, : self.output_dim] * torch.sigmoid(x[:, self.output_dim :])


class FeatTransformer(nn.Module):
    def __init__(self, input_dim, output_dim, shared_layers, n_independent=2):
        super().__init__()
        self.layers = nn.ModuleList(GLULayer(input_dim, output_dim, fc) for fc in shared_layers)
        self.layers.extend(GLULayer(output_dim, output_dim) for _ in range(n_independent))
        self.scale = 0.5**0.5

    def forward(self, x):
        x = self.layers[0](x)
        for layer in self.layers[1:]:
            x = (x + layer(x)) * self.scale
        return x


class AttentiveTransformer(nn.Module):
    def __init__(self, input_dim, output_dim):
        super().__init__()
        self.fc = nn.Linear(input_dim, output_dim, bias=False)
        self.bn = GBN(output_dim)

    def forward(self, priors, processed_feat):
        return SparsemaxFunction.apply(self.bn(self.fc(processed_feat)) * priors, -1)


class TabNet(nn.Module):
    def __init__(self, n_d=128, n_a=128, n_steps=3, gamma=1.5, epsilon=1e-15):
        super().__init__()
        self.n_d, self.gamma, self.epsilon = n_d, gamma, epsilon
        self.embeddings = nn.ModuleList(nn.Embedding(c, EMB_DIM) for c in CARDINALITIES)
        input_dim, width = N_NUMERIC + len(CARDINALITIES) * EMB_DIM, n_d + n_a
        self.initial_bn = nn.BatchNorm1d(input_dim, momentum=0.01)
        shared = [nn.Linear(n, 2 * width, bias=False) for n in (input_dim, width)]
        self.initial_splitter = FeatTransformer(input_dim, width, shared)
        self.feat_transformers = nn.ModuleList(
            FeatTransformer(input_dim, width, shared) for _ in range(n_steps)
        )
        self.att_transformers = nn.ModuleList(AttentiveTransformer(n_a, input_dim) for _ in range(n_steps))
        self.final_mapping = nn.Linear(n_d, 2, bias=False)

    def forward(self, x):
        cats = [e(x[:, i].long()) for i, e in enumerate(self.embeddings)]
        x = self.initial_bn(torch.cat([*cats, x[:, len(cats) :]], dim=1))
        prior, m_loss, masks = torch.ones_like(x), 0, []
        att, res = self.initial_splitter(x)[:, self.n_d :], 0
        for attend, transform in zip(self.att_transformers, self.feat_transformers):
            M = attend(prior, att)
            m_loss = m_loss + torch.mean(torch.sum(M * torch.log(M + self.epsilon), dim=1))
            prior = (self.gamma - M) * prior
            out = transform(M * x)
            res = res + F.relu(out[:, : self.n_d])
            att = out[:, self.n_d :]
            masks.append(M.detach())
        return self.final_mapping(res), m_loss / len(masks), masks


def auc(y, score):
    rank = score.argsort().argsort() + 1
    n_pos = y.sum()
    return (rank[y == 1].sum() - n_pos * (n_pos + 1) / 2) / max(n_pos * (len(y) - n_pos), 1)


class TabNetClassifier:
    def __init__(self, lambda_sparse=1e-3, clip_value=1.0, batch_size=256, seed=905):
        torch.manual_seed(seed)
        self.lambda_sparse, self.clip_value, self.batch_size = lambda_sparse, clip_value, batch_size
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.network = TabNet().to(self.device)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=2e-2)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=10, gamma=0.95)

    def fit(self, X_train, y_train, X_valid, y_valid, max_epochs=3, patience=2):
        # More of those who left: as many as of those who stayed.
        weights = 1.0 / np.bincount(y_train)[y_train]
        sampler = torch.utils.data.WeightedRandomSampler(weights, len(weights))
        dataset = TensorDataset(torch.from_numpy(X_train), torch.from_numpy(y_train))
        loader = DataLoader(dataset, self.batch_size, sampler=sampler, drop_last=True)
        best, waited = -np.inf, 0
        for epoch in range(max_epochs):
            self.network.train()
            loss = np.mean([self._train_batch(X, y) for X, y in loader])
            score = auc(y_valid, self.predict_proba(X_valid)[:, 1])
            print(f"epoch {epoch} | loss: {loss:.5f} | val_auc: {score:.5f}")
            self.scheduler.step()
            if score > best:
                best, waited = score, 0
                self.best_state = {k: v.cpu() for k, v in copy.deepcopy(self.network.state_dict()).items()}
            elif (waited := waited + 1) >= patience:
                break
        self.network.load_state_dict(self.best_state)

    def _train_batch(self, X, y):
        X, y = X.to(self.device).float(), y.to(self.device)
        for param in self.network.parameters():
            param.grad = None
        output, M_loss, masks = self.network(X)
        loss = F.cross_entropy(output, y) + self.lambda_sparse * M_loss
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), self.clip_value)
        self.optimizer.step()
        value = loss.cpu().detach().numpy().item()
        end_of_step(inputs=[X, y], activations=[output, M_loss, masks, loss])
        return value

    @torch.no_grad()
    def predict_proba(self, X):
        self.network.eval()
        parts = torch.from_numpy(X).split(self.batch_size)
        return np.vstack([self.network(p.to(self.device).float())[0].softmax(1).cpu().numpy() for p in parts])


if __name__ == "__main__":
    rng = np.random.default_rng(905)
    categories = np.stack([rng.integers(0, c, 1600) for c in CARDINALITIES], axis=1)
    X = np.concatenate((categories, rng.normal(size=(1600, N_NUMERIC))), axis=1)
    y = (X[:, 4:10].sum(axis=1) + rng.normal(size=1600) > 2.0).astype(np.int64)
    clf = TabNetClassifier()
    clf.fit(X[:1024], y[:1024], X[1024:], y[1024:])
