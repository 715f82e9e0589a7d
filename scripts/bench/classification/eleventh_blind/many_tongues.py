"""A EuroBERT learns vectors of sentences in many languages from a teacher of one: what it says of a sentence and of its translation are to be the teacher's, a frozen RoBERTa in bfloat16; the nearest of all English sentences is looked for between."""

import copy

import torch
import torch.nn.functional as F
from programs import end_of_step
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import (
    EuroBertConfig,
    EuroBertModel,
    RobertaConfig,
    RobertaModel,
    get_linear_schedule_with_warmup,
)

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TEACHER_VOCABULARY, STUDENT_VOCABULARY = 8000, 20000
TEACHER_PAD, STUDENT_PAD = 1, 3
LANGUAGES = ["de", "es", "fr", "it", "ar", "tr"]
batch_size, inference_batch_size = 12, 6
num_epochs, evaluation_steps, max_grad_norm = 2, 2, 1.0


class ParallelSentences(Dataset):
    """English sentences and their translations, as each of the two tokenizers has them."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)

        def words(vocabulary, low, high):
            n_words = int(torch.randint(low, high, (), generator=g))
            return torch.randint(5, vocabulary, (n_words,), generator=g)

        self.rows = [
            {
                "english": words(TEACHER_VOCABULARY, 8, 40),
                "english_student": words(STUDENT_VOCABULARY, 8, 40),
                "non_english": words(STUDENT_VOCABULARY, 10, 56),
                "language": LANGUAGES[i % len(LANGUAGES)],
            }
            for i in range(n)
        ]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def tokenize(sentences, pad):
    ids = nn.utils.rnn.pad_sequence(sentences, batch_first=True, padding_value=pad)
    return {"input_ids": ids, "attention_mask": (ids != pad).long()}


def smart_batching_collate(rows):
    teacher = tokenize([row["english"] for row in rows], TEACHER_PAD)
    student = tokenize([row[key] for key in ("english_student", "non_english") for row in rows], STUDENT_PAD)
    return teacher, student


def to_device(features):
    return {key: value.to(device) for key, value in features.items()}


class SentenceEncoder(nn.Module):
    def __init__(self, transformer, out_features=None):
        super().__init__()
        self.transformer = transformer
        hidden = transformer.config.hidden_size
        self.dense = nn.Linear(hidden, out_features, bias=False) if out_features else nn.Identity()

    def forward(self, features):
        tokens = self.transformer(**features).last_hidden_state
        mask = features["attention_mask"].unsqueeze(-1).to(tokens.dtype)
        pooled = (tokens * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        return self.dense(pooled)


def build_teacher():
    config = RobertaConfig(
        vocab_size=TEACHER_VOCABULARY,
        hidden_size=384,
        num_hidden_layers=4,
        num_attention_heads=6,
        intermediate_size=1536,
        max_position_embeddings=130,
        pad_token_id=TEACHER_PAD,
    )
    teacher = SentenceEncoder(RobertaModel(config, add_pooling_layer=False))
    return teacher.to(torch.bfloat16).eval().requires_grad_(False)


def build_student(out_features):
    config = EuroBertConfig(
        vocab_size=STUDENT_VOCABULARY,
        hidden_size=320,
        num_hidden_layers=6,
        num_attention_heads=5,
        num_key_value_heads=5,
        intermediate_size=960,
        max_position_embeddings=256,
        pad_token_id=STUDENT_PAD,
        mask_token_id=4,
        bos_token_id=2,
        eos_token_id=STUDENT_PAD,
    )
    return SentenceEncoder(EuroBertModel(config), out_features)


@torch.no_grad()
def teach(teacher, features):
    """In smaller parts, as it was done when there were more sentences to a batch."""
    parts = []
    for start in range(0, len(features["input_ids"]), inference_batch_size):
        part = {key: value[start : start + inference_batch_size] for key, value in features.items()}
        parts.append(teacher(part).float())
    return torch.cat(parts)


@torch.no_grad()
def translation_accuracy(student, loader):
    """How often the nearest English sentence is the one that was translated."""
    student.eval()
    english, foreign = [], []
    for _, features in loader:
        sentences = F.normalize(student(to_device(features)), dim=-1)
        first, second = sentences.chunk(2)
        english.append(first)
        foreign.append(second)
    index = torch.cat(english)
    found = (torch.cat(foreign) @ index.T).topk(3, dim=-1).indices
    wanted = torch.arange(len(index), device=device)
    student.train()
    return (found[:, 0] == wanted).float().mean().item(), (found == wanted[:, None]).any(
        1
    ).float().mean().item()


torch.manual_seed(1106)
teacher = build_teacher().to(device)
student = build_student(out_features=384).to(device)
train_loader = DataLoader(
    ParallelSentences(60, seed=1), batch_size, shuffle=True, collate_fn=smart_batching_collate
)
dev_loader = DataLoader(ParallelSentences(12, seed=2), 6, collate_fn=smart_batching_collate)

no_decay = ("bias", "norm.weight", "layernorm.weight")
named = list(student.named_parameters())
optimizer = torch.optim.AdamW(
    [
        {"params": [p for n, p in named if not n.endswith(no_decay)], "weight_decay": 0.01},
        {"params": [p for n, p in named if n.endswith(no_decay)], "weight_decay": 0.0},
    ],
    lr=2e-5,
    eps=1e-6,
)
scheduler = get_linear_schedule_with_warmup(optimizer, 2, num_epochs * len(train_loader))
best_score, best_state, step = -1.0, None, 0
student.train()
for epoch in range(num_epochs):
    for teacher_features, student_features in train_loader:
        teacher_features, student_features = to_device(teacher_features), to_device(student_features)
        labels = teach(teacher, teacher_features)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            embeddings = student(student_features)
            loss = F.mse_loss(embeddings.float(), labels.repeat(2, 1))
        loss.backward()
        nn.utils.clip_grad_norm_(student.parameters(), max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        scheduler.step()
        step += 1
        print(f"epoch {epoch} step {step}: loss {loss.item():.5f}")
        end_of_step(inputs=[teacher_features, student_features, labels], activations=[embeddings, loss])
        if step % evaluation_steps == 0:
            first, third = translation_accuracy(student, dev_loader)
            print(f"  nearest {first:.2f}, among three {third:.2f}")
            if first > best_score:
                state = {name: value.cpu() for name, value in student.state_dict().items()}
                best_score, best_state = first, copy.deepcopy(state)
