"""Patients that never were are drawn from a table by a CTGAN: modes of every number, conditions by column, a critic that sees ten rows at once, a penalty of its gradient, rows sampled between."""

import numpy as np
import torch
from programs import end_of_step, tell
from torch import nn
from torch.nn import functional as F

N_NUMERIC, N_MODES = 14, 10
CATEGORIES = [2, 2, 5, 9, 16, 24, 51, 72, 118, 240, 420]


class Discriminator(nn.Module):
    def __init__(self, input_dim, discriminator_dim, pac=10):
        super().__init__()
        self.pac, self.pacdim = pac, input_dim * pac
        seq, dim = [], self.pacdim
        for item in discriminator_dim:
            seq += [nn.Linear(dim, item), nn.LeakyReLU(0.2), nn.Dropout(0.5)]
            dim = item
        self.seq = nn.Sequential(*seq, nn.Linear(dim, 1))

    def calc_gradient_penalty(self, real_data, fake_data, device="cpu", lambda_=10):
        alpha = torch.rand(real_data.size(0) // self.pac, 1, 1, device=device)
        alpha = alpha.repeat(1, self.pac, real_data.size(1)).view(-1, real_data.size(1))
        interpolates = alpha * real_data + ((1 - alpha) * fake_data)
        disc_interpolates = self(interpolates)
        gradients = torch.autograd.grad(
            outputs=disc_interpolates,
            inputs=interpolates,
            grad_outputs=torch.ones(disc_interpolates.size(), device=device),
            create_graph=True,
            retain_graph=True,
        )[0]
        gradients_view = gradients.view(-1, self.pacdim).norm(2, dim=1) - 1
        return (gradients_view**2).mean() * lambda_

    def forward(self, input_):
        return self.seq(input_.view(-1, self.pacdim))


class Residual(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.fc, self.bn, self.relu = nn.Linear(i, o), nn.BatchNorm1d(o), nn.ReLU()

    def forward(self, input_):
        return torch.cat([self.relu(self.bn(self.fc(input_))), input_], dim=1)


class Generator(nn.Module):
    def __init__(self, embedding_dim, generator_dim, data_dim):
        super().__init__()
        dim, seq = embedding_dim, []
        for item in generator_dim:
            seq += [Residual(dim, item)]
            dim += item
        self.seq = nn.Sequential(*seq, nn.Linear(dim, data_dim))

    def forward(self, input_):
        return self.seq(input_)


class DataSampler:
    def __init__(self, categories, rng):
        self.rng, self.offsets = rng, np.cumsum([0, *CATEGORIES])
        self.rows = [
            [np.flatnonzero(column == c) for c in range(n)] for column, n in zip(categories.T, CATEGORIES)
        ]
        counts = [np.array([len(r) for r in rows]) for rows in self.rows]
        self.probabilities = [np.log(c + 1) / np.log(c + 1).sum() for c in counts]

    def sample_condvec(self, batch):
        column = self.rng.integers(len(CATEGORIES), size=batch)
        value = np.array([self.rng.choice(CATEGORIES[c], p=self.probabilities[c]) for c in column])
        cond = np.zeros((batch, self.offsets[-1]), "float32")
        mask = np.zeros((batch, len(CATEGORIES)), "float32")
        cond[np.arange(batch), self.offsets[column] + value] = 1
        mask[np.arange(batch), column] = 1
        return cond, mask, column, value

    def sample_rows(self, column, value):
        return np.array([self.rng.choice(self.rows[c][v]) for c, v in zip(column, value)])


class CTGAN:
    def __init__(self, embedding_dim=128, dims=(512, 512), lr=2e-4, decay=1e-6, batch_size=500, pac=10):
        self.embedding_dim, self.dims, self.lr, self.decay = embedding_dim, dims, lr, decay
        self.batch_size, self.pac = batch_size, pac
        self.device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")

    def apply_activate(self, data):
        parts, st = [], 0
        for size in [1, N_MODES] * N_NUMERIC + CATEGORIES:
            part = data[:, st : st + size]
            parts.append(torch.tanh(part) if size == 1 else F.gumbel_softmax(part, tau=0.2))
            st += size
        return torch.cat(parts, dim=1)

    def cond_loss(self, data, c, m):
        loss, st, st_c = [], N_NUMERIC * (1 + N_MODES), 0
        for size in CATEGORIES:
            wanted = c[:, st_c : st_c + size].argmax(dim=1)
            loss.append(F.cross_entropy(data[:, st : st + size], wanted, reduction="none"))
            st, st_c = st + size, st_c + size
        return (torch.stack(loss, dim=1) * m).sum() / data.size(0)

    def fit(self, train_data, categories, epochs):
        rng = np.random.default_rng(1006)
        sampler, (n, data_dim) = DataSampler(categories, rng), train_data.shape
        cond_dim, device = sum(CATEGORIES), self.device
        self.generator = Generator(self.embedding_dim + cond_dim, self.dims, data_dim).to(device)
        discriminator = Discriminator(data_dim + cond_dim, self.dims, pac=self.pac).to(device)
        adam = {"lr": self.lr, "betas": (0.5, 0.9)}
        optimizerG = torch.optim.Adam(self.generator.parameters(), **adam, weight_decay=self.decay)
        optimizerD = torch.optim.Adam(discriminator.parameters(), **adam, weight_decay=self.decay)
        mean = torch.zeros(self.batch_size, self.embedding_dim, device=device)
        std = mean + 1
        for i in range(epochs):
            for _ in range(max(n // self.batch_size, 1)):
                fakez = torch.normal(mean=mean, std=std)
                c1, m1, column, value = sampler.sample_condvec(self.batch_size)
                c1, m1 = torch.from_numpy(c1).to(device), torch.from_numpy(m1).to(device)
                fakez = torch.cat([fakez, c1], dim=1)
                perm = rng.permutation(self.batch_size)
                real = torch.from_numpy(train_data[sampler.sample_rows(column[perm], value[perm])]).to(device)
                c2 = c1[perm]
                fakeact = self.apply_activate(self.generator(fakez))
                fake_cat, real_cat = torch.cat([fakeact, c1], dim=1), torch.cat([real, c2], dim=1)
                y_fake, y_real = discriminator(fake_cat), discriminator(real_cat)
                pen = discriminator.calc_gradient_penalty(real_cat, fake_cat, device)
                loss_d = -(torch.mean(y_real) - torch.mean(y_fake))
                optimizerD.zero_grad(set_to_none=False)
                pen.backward(retain_graph=True)
                loss_d.backward()
                optimizerD.step()
                tell(inputs=[fakez, c1, m1], activations=[fakeact, fake_cat, y_fake])

                fakez = torch.normal(mean=mean, std=std)
                c1, m1, _, _ = sampler.sample_condvec(self.batch_size)
                c1, m1 = torch.from_numpy(c1).to(device), torch.from_numpy(m1).to(device)
                fakez = torch.cat([fakez, c1], dim=1)
                fake = self.generator(fakez)
                fakeact = self.apply_activate(fake)
                y_fake = discriminator(torch.cat([fakeact, c1], dim=1))
                loss_g = -torch.mean(y_fake) + self.cond_loss(fake, c1, m1)
                optimizerG.zero_grad(set_to_none=False)
                loss_g.backward()
                optimizerG.step()
                end_of_step(
                    inputs=[mean, std, fakez, c1, m1, real, c2, real_cat],
                    activations=[fake, fakeact, fake_cat, y_fake, y_real, pen, loss_d, loss_g],
                )
            off = np.abs(self.sample(700, sampler).mean(0) - train_data.mean(0)).mean()
            print(f"{i}: generator {loss_g.item():.3f}, critic {loss_d.item():.3f}, columns off by {off:.3f}")

    @torch.no_grad()
    def sample(self, n, sampler):
        data = []
        for _ in range(-(-n // self.batch_size)):
            cond = torch.from_numpy(sampler.sample_condvec(self.batch_size)[0]).to(self.device)
            z = torch.randn(self.batch_size, self.embedding_dim, device=self.device)
            data.append(self.apply_activate(self.generator(torch.cat([z, cond], dim=1))).cpu().numpy())
        return np.concatenate(data)[:n]


def patients(n, rng):
    """The table as it is after its transformer: a number and its mode, then one column for every category."""
    columns = [np.concatenate([np.arange(c), rng.geometric(0.3, n - c) % c]) for c in CATEGORIES]
    categories = np.stack(columns, axis=1)
    numbers = rng.uniform(-1, 1, (n, N_NUMERIC, 1))
    modes = np.eye(N_MODES)[rng.integers(N_MODES, size=(n, N_NUMERIC))]
    numeric = np.concatenate([numbers, modes], axis=2).reshape(n, -1)
    onehot = [np.eye(c)[column] for c, column in zip(CATEGORIES, categories.T)]
    return np.concatenate([numeric, *onehot], axis=1).astype("float32"), categories


if __name__ == "__main__":
    torch.manual_seed(1006)
    CTGAN().fit(*patients(1000, np.random.default_rng(1)), epochs=4)
