"""A StableLM is pretrained with little memory: GaLore by hand, moments of gradients that are projected to a low rank, bfloat16 throughout."""

import math

import torch
from programs import end_of_step, tell
from torch.utils.data import DataLoader, IterableDataset
from transformers import StableLmConfig, StableLmForCausalLM, get_cosine_schedule_with_warmup

VOCABULARY, LENGTH = 16000, 128


class GaLoreProjector:
    """Keeps one side of the SVD of a gradient, and renews it now and then."""

    def __init__(self, rank, update_proj_gap, scale):
        self.rank, self.update_proj_gap, self.scale = rank, update_proj_gap, scale
        self.ortho_matrix = None

    def project(self, grad, n_iter):
        is_tall = grad.shape[0] >= grad.shape[1]
        if self.ortho_matrix is None or n_iter % self.update_proj_gap == 0:
            u, _, vh = torch.linalg.svd(grad.float(), full_matrices=False)
            kept = vh[: self.rank] if is_tall else u[:, : self.rank]
            self.ortho_matrix = kept.to(grad.dtype).contiguous()
        return grad @ self.ortho_matrix.t() if is_tall else self.ortho_matrix.t() @ grad

    def project_back(self, low_rank_grad):
        is_tall = low_rank_grad.shape[1] == self.rank and self.ortho_matrix.shape[0] == self.rank
        full = low_rank_grad @ self.ortho_matrix if is_tall else self.ortho_matrix @ low_rank_grad
        return full * self.scale


class GaLoreAdamW(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad, state = p.grad, self.state[p]
                state.setdefault("step", 0)
                if "rank" in group:
                    if "projector" not in state:
                        state["projector"] = GaLoreProjector(
                            group["rank"], group["update_proj_gap"], group["scale"]
                        )
                    grad = state["projector"].project(grad, state["step"])
                if "exp_avg" not in state:
                    state["exp_avg"] = torch.zeros_like(grad)
                    state["exp_avg_sq"] = torch.zeros_like(grad)
                exp_avg, exp_avg_sq = state["exp_avg"], state["exp_avg_sq"]
                state["step"] += 1
                exp_avg.mul_(beta1).add_(grad, alpha=1.0 - beta1)
                exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1.0 - beta2)
                denom = exp_avg_sq.sqrt().add_(group["eps"])
                step_size = (
                    group["lr"] * math.sqrt(1.0 - beta2 ** state["step"]) / (1.0 - beta1 ** state["step"])
                )
                norm_grad = exp_avg / denom
                if "rank" in group:
                    norm_grad = state["projector"].project_back(norm_grad)
                p.add_(norm_grad, alpha=-step_size)
                if group["weight_decay"] > 0.0:
                    p.add_(p, alpha=-group["lr"] * group["weight_decay"])


class Packed(IterableDataset):
    def __iter__(self):
        while True:
            yield {"input_ids": torch.randint(3, VOCABULARY, (LENGTH,))}


@torch.no_grad()
def evaluate_model(model, loader, device, n_batches=2):
    model.eval()
    total = 0.0
    for number, batch in enumerate(loader):
        if number == n_batches:
            break
        batch = {k: v.to(device) for k, v in batch.items()}
        total += model(**batch, labels=batch["input_ids"]).loss.item()
    model.train()
    return total / n_batches


def main(num_training_steps=4, gradient_accumulation=2):
    torch.manual_seed(315)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    config = StableLmConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=5,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=512,
        use_cache=False,
    )
    model = StableLmForCausalLM(config).to(device=device, dtype=torch.bfloat16)
    galore_params = [
        module.weight
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and any(key in name for key in ("attn", "mlp"))
    ]
    ids = {id(p) for p in galore_params}
    param_groups = [
        {"params": [p for p in model.parameters() if id(p) not in ids]},
        {"params": galore_params, "rank": 64, "update_proj_gap": 4, "scale": 0.25},
    ]
    optimizer = GaLoreAdamW(param_groups, lr=1e-2)
    scheduler = get_cosine_schedule_with_warmup(optimizer, 1, 100)
    loader = DataLoader(Packed(), batch_size=2)
    update_step = 0
    for global_step, batch in enumerate(loader, start=1):
        batch = {k: v.to(device) for k, v in batch.items()}
        labels = batch["input_ids"].clone()
        loss = model(**batch, labels=labels).loss
        (loss / gradient_accumulation).backward()
        if global_step % gradient_accumulation != 0:
            tell(inputs=[batch, labels], activations=[loss])
            continue
        torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        update_step += 1
        print(f"update {update_step}: loss {loss.item():.4f}")
        kept = [optimizer.state[p]["projector"].ortho_matrix for p in galore_params]
        end_of_step(inputs=[batch, labels], states=kept, activations=[loss])
        if update_step % 3 == 0:
            print("eval", evaluate_model(model, loader, device))
        if update_step == num_training_steps:
            break


if __name__ == "__main__":
    main()
