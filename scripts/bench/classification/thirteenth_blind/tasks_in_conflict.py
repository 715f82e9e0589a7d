"""A RoBERTa with norms before its layers learns three tasks on short posts at once: feelings, irony and whom they are about; where the tasks' gradients conflict, each loses what goes against the others (PCGrad), a wrapper around Adam by hand, accuracies between."""

import copy
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from programs import end_of_step, tell
from torch.utils.data import DataLoader, Dataset
from transformers import RobertaPreLayerNormConfig, RobertaPreLayerNormModel

VOCAB, PAD, BOS, EOS = 12000, 1, 0, 2
TASKS = {"feeling": 4, "irony": 2, "target": 5}
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


class PCGrad:
    def __init__(self, optimizer):
        self._optim = optimizer

    def zero_grad(self):
        return self._optim.zero_grad(set_to_none=True)

    def pc_backward(self, objectives):
        """The gradient of all parameters for a list of losses."""
        grads, shapes, has_grads = self._pack_grad(objectives)
        pc_grad = self._project_conflicting(grads, has_grads)
        tell(gradients=[grads, pc_grad])
        self._set_grad(self._unflatten_grad(pc_grad, shapes[0]))

    def _project_conflicting(self, grads, has_grads):
        shared = torch.stack(has_grads).prod(0).bool()
        pc_grad = copy.deepcopy(grads)
        for g_i in pc_grad:
            random.shuffle(grads)
            for g_j in grads:
                g_i_g_j = torch.dot(g_i, g_j)
                if g_i_g_j < 0:
                    g_i -= g_i_g_j * g_j / (g_j.norm() ** 2)
        merged_grad = torch.zeros_like(grads[0])
        merged_grad[shared] = torch.stack([g[shared] for g in pc_grad]).mean(dim=0)
        merged_grad[~shared] = torch.stack([g[~shared] for g in pc_grad]).sum(dim=0)
        return merged_grad

    def _set_grad(self, grads):
        idx = 0
        for group in self._optim.param_groups:
            for p in group["params"]:
                p.grad = grads[idx]
                idx += 1

    def _pack_grad(self, objectives):
        grads, shapes, has_grads = [], [], []
        for obj in objectives:
            self._optim.zero_grad(set_to_none=True)
            obj.backward(retain_graph=True)
            grad, shape, has_grad = self._retrieve_grad()
            grads.append(torch.cat([g.flatten() for g in grad]))
            has_grads.append(torch.cat([g.flatten() for g in has_grad]))
            shapes.append(shape)
        return grads, shapes, has_grads

    @staticmethod
    def _unflatten_grad(grads, shapes):
        unflatten_grad, idx = [], 0
        for shape in shapes:
            length = int(np.prod(shape))
            unflatten_grad.append(grads[idx : idx + length].view(shape).clone())
            idx += length
        return unflatten_grad

    def _retrieve_grad(self):
        grad, shape, has_grad = [], [], []
        for group in self._optim.param_groups:
            for p in group["params"]:
                shape.append(p.shape)
                if p.grad is None:
                    grad.append(torch.zeros_like(p))
                    has_grad.append(torch.zeros_like(p))
                    continue
                grad.append(p.grad.clone())
                has_grad.append(torch.ones_like(p))
        return grad, shape, has_grad


class Posts(Dataset):
    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        self.texts = [rng.integers(10, VOCAB, rng.integers(6, 46)) for _ in range(n)]
        self.labels = {task: rng.integers(0, n_labels, n) for task, n_labels in TASKS.items()}

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        return self.texts[i], {task: labels[i] for task, labels in self.labels.items()}


def collate(rows):
    words = [torch.tensor([BOS, *text, EOS]) for text, _ in rows]
    ids = nn.utils.rnn.pad_sequence(words, batch_first=True, padding_value=PAD)
    return ids, {task: torch.tensor([int(labels[task]) for _, labels in rows]) for task in TASKS}


class MultiTaskModel(nn.Module):
    def __init__(self, hidden=256):
        super().__init__()
        config = RobertaPreLayerNormConfig(
            vocab_size=VOCAB,
            hidden_size=hidden,
            num_hidden_layers=5,
            num_attention_heads=4,
            intermediate_size=4 * hidden,
            max_position_embeddings=66,
            type_vocab_size=1,
            pad_token_id=PAD,
        )
        self.backbone = RobertaPreLayerNormModel(config, add_pooling_layer=False)
        self.heads = nn.ModuleDict(
            {
                task: nn.Sequential(
                    nn.Linear(hidden, hidden), nn.Tanh(), nn.Dropout(0.1), nn.Linear(hidden, n)
                )
                for task, n in TASKS.items()
            }
        )

    def forward(self, ids):
        hidden = self.backbone(ids, attention_mask=(ids != PAD).long()).last_hidden_state[:, 0]
        return {task: head(hidden) for task, head in self.heads.items()}


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    right = dict.fromkeys(TASKS, 0)
    for ids, labels in loader:
        logits = model(ids.to(device))
        for task in TASKS:
            right[task] += (logits[task].argmax(-1).cpu() == labels[task]).sum().item()
    model.train()
    return {task: round(n / len(loader.dataset), 3) for task, n in right.items()}


def main():
    random.seed(1308)
    torch.manual_seed(1308)
    model = MultiTaskModel().to(device)
    adam = torch.optim.Adam(model.parameters(), lr=5e-5)
    optimizer = PCGrad(adam)
    scheduler = torch.optim.lr_scheduler.StepLR(adam, step_size=4, gamma=0.5)
    train_loader = DataLoader(Posts(32, 1), batch_size=8, shuffle=True, collate_fn=collate)
    val_loader = DataLoader(Posts(8, 2), batch_size=8, collate_fn=collate)
    for epoch in range(2):
        for step, (ids, labels) in enumerate(train_loader):
            ids = ids.to(device, non_blocking=True)
            labels = {task: label.to(device, non_blocking=True) for task, label in labels.items()}
            logits = model(ids)
            losses = [F.cross_entropy(logits[task], labels[task]) for task in TASKS]
            optimizer.zero_grad()
            optimizer.pc_backward(losses)
            adam.step()
            scheduler.step()
            report = ", ".join(f"{task} {loss.item():.3f}" for task, loss in zip(TASKS, losses, strict=True))
            print(f"epoch {epoch} step {step}: {report}")
            end_of_step(
                inputs=[ids, labels],
                activations=[logits, losses],
                gradients=[p.grad for p in model.parameters()],
            )
            if step % 2 == 1:
                print(evaluate(model, val_loader))


if __name__ == "__main__":
    main()
