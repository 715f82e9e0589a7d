"""A small Llama learns to say what a big one says: the teacher is frozen in bfloat16, the student's embeddings are tied."""

import torch
import torch.nn.functional as F
from programs import end_of_step, tell
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup

VOCABULARY, ACCUMULATE, TEMPERATURE = 5000, 2, 2.0


def llama(width, depth, n_heads, *, tied):
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=width,
            intermediate_size=width * 8 // 3,
            num_hidden_layers=depth,
            num_attention_heads=n_heads,
            num_key_value_heads=n_heads // 2,
            max_position_embeddings=256,
            tie_word_embeddings=tied,
            use_cache=False,
        )
    )


def distillation_loss(of_student, of_teacher):
    log_p = F.log_softmax(of_student / TEMPERATURE, dim=-1)
    q = F.softmax(of_teacher / TEMPERATURE, dim=-1)
    return F.kl_div(log_p, q, reduction="batchmean") * TEMPERATURE**2


torch.manual_seed(93)
device = torch.device("cuda")
teacher = llama(768, 8, 12, tied=False).to(device, dtype=torch.bfloat16).eval()
for parameter in teacher.parameters():
    parameter.requires_grad = False
student = llama(288, 4, 6, tied=True).to(device)
student.train()

decayed = [p for p in student.parameters() if p.ndim > 1]
plain = [p for p in student.parameters() if p.ndim == 1]
optimizer = torch.optim.AdamW(
    [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}],
    lr=5e-4,
    betas=(0.9, 0.95),
)
scheduler = get_cosine_schedule_with_warmup(optimizer, 2, 20)
texts = [torch.randint(0, VOCABULARY, (128,)) for _ in range(48)]
loader = DataLoader(texts, batch_size=4, shuffle=True)

for i, ids in enumerate(loader):
    ids = ids.to(device)
    with torch.no_grad():
        expected = teacher(input_ids=ids).logits[:, :-1]
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = student(input_ids=ids).logits[:, :-1]
    words = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
    distilled = distillation_loss(logits.flatten(0, 1).float(), expected.flatten(0, 1).float())
    loss = (0.3 * words + 0.7 * distilled) / ACCUMULATE
    loss.backward()
    tell(inputs=[ids], activations=[expected, logits, words, distilled, loss])
    if (i + 1) % ACCUMULATE == 0:
        torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        print(f"{i}: {words.item():.3f} {distilled.item():.3f}")
        end_of_step(inputs=[ids], activations=[expected, logits, words, distilled, loss])
