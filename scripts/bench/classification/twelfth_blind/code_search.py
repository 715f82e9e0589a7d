"""A StarCoder 2 learns vectors of questions and of code that answers them, as language models become embedders: the last word's state, hard negatives beside those of the batch, LoRA on frozen bfloat16, checkpoints, an index that is searched between."""

import torch
import torch.nn.functional as F
from peft import LoraConfig, TaskType, get_peft_model
from programs import end_of_step
from torch.utils.data import DataLoader, Dataset
from transformers import Starcoder2Config, Starcoder2Model, get_linear_schedule_with_warmup

CONFIG = {
    "vocab_size": 32000,
    "query_max_len": 32,
    "passage_max_len": 40,
    "train_group_size": 3,  # the right one and two hard negatives
    "batch_size": 3,
    "temperature": 0.02,
    "learning_rate": 1e-4,
    "warmup_steps": 2,
    "epochs": 2,
    "eval_steps": 2,
    "lora_r": 16,
    "lora_alpha": 64,
}
EOS, PAD = 0, 1
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


class TrainDatasetForEmbedding(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)

        def text(low, high):
            n_words = int(torch.randint(low, high, (), generator=g))
            return torch.randint(200, CONFIG["vocab_size"], (n_words,), generator=g).tolist()

        instruction = list(range(20, 31))
        self.rows = [
            (
                instruction + text(5, 24),
                [text(16, 60) for _ in range(CONFIG["train_group_size"])],
            )
            for _ in range(n)
        ]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def tokenize(texts, max_length):
    """Cut, ended by EOS, and padded at the left: the last word is the last column."""
    texts = [[*text[: max_length - 1], EOS] for text in texts]
    longest = max(map(len, texts))
    return {
        "input_ids": torch.tensor([[PAD] * (longest - len(t)) + t for t in texts]),
        "attention_mask": torch.tensor([[0] * (longest - len(t)) + [1] * len(t) for t in texts]),
    }


def collate(rows):
    queries = tokenize([query for query, _ in rows], CONFIG["query_max_len"])
    passages = tokenize([p for _, group in rows for p in group], CONFIG["passage_max_len"])
    return queries, passages


def to_device(features):
    return {key: value.to(device, non_blocking=True) for key, value in features.items()}


class BiEncoder(torch.nn.Module):
    def __init__(self, backbone, temperature):
        super().__init__()
        self.backbone, self.temperature = backbone, temperature

    def encode(self, features):
        hidden = self.backbone(**features, use_cache=False).last_hidden_state
        return F.normalize(hidden[:, -1].float(), dim=-1)

    def forward(self, queries, passages):
        q, p = self.encode(queries), self.encode(passages)
        scores = q @ p.T / self.temperature
        target = torch.arange(len(q), device=q.device) * (len(p) // len(q))
        return F.cross_entropy(scores, target), scores


def build():
    config = Starcoder2Config(
        vocab_size=CONFIG["vocab_size"],
        hidden_size=320,
        intermediate_size=1280,
        num_hidden_layers=5,
        num_attention_heads=5,
        num_key_value_heads=1,
        max_position_embeddings=256,
        sliding_window=None,
        residual_dropout=0.0,
        embedding_dropout=0.0,
        attention_dropout=0.0,
        bos_token_id=EOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    backbone = Starcoder2Model(config).to(torch.bfloat16)
    backbone.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    backbone.enable_input_require_grads()
    backbone = get_peft_model(
        backbone,
        LoraConfig(
            task_type=TaskType.FEATURE_EXTRACTION,
            r=CONFIG["lora_r"],
            lora_alpha=CONFIG["lora_alpha"],
            lora_dropout=0.1,
            target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "c_fc", "c_proj"],
        ),
    )
    backbone.print_trainable_parameters()
    return BiEncoder(backbone, CONFIG["temperature"])


@torch.no_grad()
def mean_reciprocal_rank(model, loader):
    """Code of all questions is the index."""
    model.eval()
    questions, index = [], []
    for queries, passages in loader:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            questions.append(model.encode(to_device(queries)))
            index.append(model.encode(to_device(passages)))
    questions, index = torch.cat(questions), torch.cat(index)
    scores = questions @ index.T
    right = torch.arange(len(questions), device=device) * CONFIG["train_group_size"]
    ranks = (scores > scores.gather(1, right[:, None])).sum(1) + 1
    model.train()
    return (1.0 / ranks).mean().item()


def main():
    torch.manual_seed(1205)
    model = build().to(device).train()
    train_loader = DataLoader(
        TrainDatasetForEmbedding(24, seed=1), CONFIG["batch_size"], shuffle=True, collate_fn=collate
    )
    dev_loader = DataLoader(TrainDatasetForEmbedding(6, seed=2), CONFIG["batch_size"], collate_fn=collate)
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=CONFIG["learning_rate"], weight_decay=0.01)
    scheduler = get_linear_schedule_with_warmup(
        optimizer, CONFIG["warmup_steps"], CONFIG["epochs"] * len(train_loader)
    )
    step = 0
    for epoch in range(CONFIG["epochs"]):
        for queries, passages in train_loader:
            queries, passages = to_device(queries), to_device(passages)
            with torch.autocast(device.type, dtype=torch.bfloat16):
                loss, scores = model(queries, passages)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trainable, 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            step += 1
            accuracy = (scores.argmax(1) == torch.arange(len(scores), device=device) * 3).float().mean()
            print(f"epoch {epoch} step {step}: loss {loss.item():.3f} accuracy {accuracy.item():.2f}")
            end_of_step(inputs=[queries, passages], activations=[loss, scores, accuracy])
            if step % CONFIG["eval_steps"] == 0:
                print(f"  MRR {mean_reciprocal_rank(model, dev_loader):.3f}")


if __name__ == "__main__":
    main()
