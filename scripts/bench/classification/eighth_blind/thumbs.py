"""A Granite learns from thumbs up and down (KTO): LoRA on frozen bfloat16, the reference is the model without it, two batches to a step."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from peft import LoraConfig, TaskType, get_peft_model
from programs import end_of_step, tell
from torch.utils.data import DataLoader, Dataset
from transformers import GraniteConfig, GraniteForCausalLM, get_scheduler

VOCABULARY, PAD, EOS, IGNORE = 14000, 0, 2, -100
BETA, DESIRABLE_WEIGHT, UNDESIRABLE_WEIGHT = 0.1, 1.0, 1.0


class Feedback(Dataset):
    """A prompt, what was answered, and what somebody thought of it."""

    def __init__(self, n):
        self.rows = []
        for _ in range(n):
            prompt = torch.randint(5, VOCABULARY, (int(torch.randint(8, 32, ())),))
            completion = torch.randint(5, VOCABULARY, (int(torch.randint(8, 40, ())),))
            self.rows.append((prompt, torch.cat((completion, torch.tensor([EOS])))))
        self.thumbs = (torch.rand(n) > 0.5).tolist()

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        prompt, completion = self.rows[i]
        return {"prompt": prompt, "completion": completion, "label": self.thumbs[i]}


def padded(pairs):
    pad = torch.nn.utils.rnn.pad_sequence
    ids = [torch.cat(pair) for pair in pairs]
    labels = [torch.cat((torch.full_like(prompt, IGNORE), completion)) for prompt, completion in pairs]
    mask = [torch.ones_like(row) for row in ids]
    return {
        "input_ids": pad(ids, batch_first=True, padding_value=PAD),
        "attention_mask": pad(mask, batch_first=True),
        "labels": pad(labels, batch_first=True, padding_value=IGNORE),
    }


def collate(rows):
    """Every prompt comes a second time with the answer of another, for the estimate of the KL."""
    prompts = [row["prompt"] for row in rows]
    completions = [row["completion"] for row in rows]
    batch = padded(list(zip(prompts, completions)))
    shifted = [completions[-1], *completions[:-1]]
    batch |= {f"KL_{key}": value for key, value in padded(list(zip(prompts, shifted))).items()}
    return batch | {"label": torch.tensor([row["label"] for row in rows])}


def get_batch_logps(logits, labels):
    labels = labels[:, 1:].clone()
    logits = logits[:, :-1, :]
    loss_mask = labels != IGNORE
    labels[labels == IGNORE] = 0
    per_token = torch.gather(logits.log_softmax(-1), dim=2, index=labels.unsqueeze(2)).squeeze(2)
    return (per_token * loss_mask).sum(-1)


def forward(model, batch, prefix=""):
    logits = model(
        batch[prefix + "input_ids"], attention_mask=batch[prefix + "attention_mask"], use_cache=False
    ).logits
    return get_batch_logps(logits.float(), batch[prefix + "labels"])


def kto_loss(policy_logps, policy_kl, reference_logps, reference_kl, label):
    kl = (policy_kl - reference_kl).mean().detach().clamp(min=0)
    logratios = policy_logps - reference_logps
    chosen = 1 - F.sigmoid(BETA * (logratios - kl))
    rejected = 1 - F.sigmoid(BETA * (kl - logratios))
    losses = torch.where(label, DESIRABLE_WEIGHT * chosen, UNDESIRABLE_WEIGHT * rejected)
    return losses.mean(), (BETA * logratios).detach(), kl


def main(max_steps=4):
    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
    set_seed(403)
    model = GraniteForCausalLM(
        GraniteConfig(
            vocab_size=VOCABULARY,
            hidden_size=320,
            intermediate_size=896,
            num_hidden_layers=5,
            num_attention_heads=5,
            num_key_value_heads=1,
            embedding_multiplier=12.0,
            logits_scaling=8.0,
            residual_multiplier=0.22,
            attention_multiplier=0.015625,
            pad_token_id=PAD,
            eos_token_id=EOS,
            tie_word_embeddings=True,
        )
    ).to(torch.bfloat16)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.enable_input_require_grads()
    peft_config = LoraConfig(
        r=16,
        lora_alpha=32,
        lora_dropout=0.05,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        task_type=TaskType.CAUSAL_LM,
    )
    model = get_peft_model(model, peft_config)
    model.print_trainable_parameters()
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=5e-6, betas=(0.9, 0.98))
    loader = DataLoader(Feedback(48), batch_size=3, shuffle=True, collate_fn=collate)
    scheduler = get_scheduler("cosine", optimizer, num_warmup_steps=1, num_training_steps=20)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    step = 0
    model.train()
    for batch in loader:
        with accelerator.accumulate(model):
            with torch.no_grad():
                with accelerator.unwrap_model(model).disable_adapter():
                    reference_logps = forward(model, batch)
                    reference_kl = forward(model, batch, "KL_")
                policy_kl = forward(model, batch, "KL_")
            policy_logps = forward(model, batch)
            loss, rewards, kl = kto_loss(
                policy_logps, policy_kl, reference_logps, reference_kl, batch["label"]
            )
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(params, 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        kept = [reference_logps, reference_kl, policy_kl, policy_logps, loss, rewards, kl]
        if not accelerator.sync_gradients:
            tell(inputs=batch, activations=kept)
            continue
        step += 1
        chosen = rewards[batch["label"]].sum().item()
        accelerator.print(f"{step}: loss {loss.item():.4f} kl {kl.item():.3f} rewards/chosen {chosen:.3f}")
        end_of_step(inputs=batch, activations=kept)
        if step == max_steps:
            break


if __name__ == "__main__":
    main()
