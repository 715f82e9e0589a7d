"""A Nemotron is pruned in depth and width and taught again by the original (as Minitron): forward KL of all logits, accelerate in bf16, two accumulated batches, AdamW, clipped, linear warm-up."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from programs import end_of_step
from torch.utils.data import DataLoader, TensorDataset
from transformers import NemotronConfig, NemotronForCausalLM, get_linear_schedule_with_warmup

set_seed(5)
VOCAB = 4000
common = dict(
    vocab_size=VOCAB,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=48,
    max_position_embeddings=256,
    hidden_size=384,
    use_cache=False,
    pad_token_id=0,
    bos_token_id=2,
    eos_token_id=3,
)
teacher = NemotronForCausalLM(NemotronConfig(intermediate_size=1536, num_hidden_layers=6, **common))
student = NemotronForCausalLM(NemotronConfig(intermediate_size=768, num_hidden_layers=4, **common))


@torch.no_grad()
def prune(teacher, student):
    student.model.embed_tokens.load_state_dict(teacher.model.embed_tokens.state_dict())
    student.model.norm.load_state_dict(teacher.model.norm.state_dict())
    student.lm_head.load_state_dict(teacher.lm_head.state_dict())
    for target, layer in zip(student.model.layers, [0, 1, 4, 5]):
        source = teacher.model.layers[layer]
        target.self_attn.load_state_dict(source.self_attn.state_dict())
        target.input_layernorm.load_state_dict(source.input_layernorm.state_dict())
        target.post_attention_layernorm.load_state_dict(source.post_attention_layernorm.state_dict())
        keep = source.mlp.down_proj.weight.norm(dim=0).topk(768).indices.sort().values
        target.mlp.up_proj.weight.copy_(source.mlp.up_proj.weight[keep])
        target.mlp.down_proj.weight.copy_(source.mlp.down_proj.weight[:, keep])


prune(teacher, student)
accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
texts = DataLoader(TensorDataset(torch.randint(4, VOCAB, (64, 112))), batch_size=3, shuffle=True)
decay = [p for p in student.parameters() if p.ndim > 1]
rest = [p for p in student.parameters() if p.ndim <= 1]
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
    lr=1e-4,
    betas=(0.9, 0.95),
)
scheduler = get_linear_schedule_with_warmup(optimizer, 2, 100)
student, optimizer, texts, scheduler = accelerator.prepare(student, optimizer, texts, scheduler)
teacher = teacher.to(accelerator.device, dtype=torch.bfloat16).eval().requires_grad_(False)

student.train()
for epoch in range(1):
    for (ids,) in texts:
        with accelerator.accumulate(student):
            with torch.no_grad():
                wanted = teacher(input_ids=ids).logits
            logits = student(input_ids=ids).logits
            loss = F.kl_div(
                F.log_softmax(logits.flatten(0, 1).float(), -1),
                F.log_softmax(wanted.flatten(0, 1).float(), -1),
                log_target=True,
                reduction="batchmean",
            )
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(student.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            print(f"kl {loss.item():.4f}")
            end_of_step(inputs=[ids], activations=[logits, loss])
