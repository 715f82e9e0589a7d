"""A recommender guesses the next item of a session: self-attention over what was seen, one wrong item for each right one."""

import torch
from programs import end_of_step
from torch import nn
from torch.utils.data import DataLoader, Dataset

N_ITEMS, LONGEST = 12000, 50


class Sessions(Dataset):
    """What was seen, what came next at each place, and an item that did not; 0 is padding."""

    def __init__(self, n):
        self.sessions = [torch.randint(1, N_ITEMS, (int(k),)) for k in torch.randint(6, 60, (n,))]

    def __len__(self):
        return len(self.sessions)

    def __getitem__(self, index):
        items = self.sessions[index][-LONGEST - 1 :]
        seen, following, wrong = (torch.zeros(LONGEST, dtype=torch.long) for _ in range(3))
        n = len(items) - 1
        seen[-n:], following[-n:] = items[:-1], items[1:]
        wrong[-n:] = torch.randint(1, N_ITEMS, (n,))
        return seen, following, wrong


class SASRec(nn.Module):
    def __init__(self, width=96, n_layers=2, n_heads=2, dropout=0.2):
        super().__init__()
        self.item_emb = nn.Embedding(N_ITEMS, width, padding_idx=0)
        self.pos_emb = nn.Embedding(LONGEST, width)
        self.dropout = nn.Dropout(dropout)
        layer = nn.TransformerEncoderLayer(
            width, n_heads, width * 2, dropout, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, n_layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        mask = torch.triu(torch.ones(LONGEST, LONGEST, dtype=torch.bool), diagonal=1)
        self.register_buffer("mask", mask, persistent=False)

    def encode(self, seen):
        places = torch.arange(seen.shape[1], device=seen.device)
        x = self.item_emb(seen) * self.item_emb.embedding_dim**0.5 + self.pos_emb(places)
        return self.norm(self.encoder(self.dropout(x), mask=self.mask))

    def forward(self, seen, following, wrong):
        x = self.encode(seen)
        return (x * self.item_emb(following)).sum(-1), (x * self.item_emb(wrong)).sum(-1)

    @torch.no_grad()
    def recommend(self, seen, k=10):
        scores = self.encode(seen)[:, -1] @ self.item_emb.weight.T
        return scores.scatter(1, seen, float("-inf")).topk(k).indices


def train(n_epochs=2, device="cuda"):
    torch.manual_seed(87)
    model = SASRec().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98), foreach=False)
    criterion = nn.BCEWithLogitsLoss()
    loader = DataLoader(Sessions(384), batch_size=128, shuffle=True)
    for epoch in range(n_epochs):
        model.train()
        for batch in loader:
            seen, following, wrong = (part.to(device) for part in batch)
            right, other = model(seen, following, wrong)
            counted = following != 0
            optimizer.zero_grad(set_to_none=False)
            loss = criterion(right[counted], torch.ones_like(right[counted]))
            loss += criterion(other[counted], torch.zeros_like(other[counted]))
            loss.backward()
            optimizer.step()
            end_of_step(inputs=[seen, following, wrong, counted], activations=[right, other, loss])
        model.eval()
        hits = (model.recommend(seen) == following[:, -1:]).any(1).float().mean()
        print(f"epoch {epoch}: loss {loss.item():.4f}, hits {hits.item():.4f}")


if __name__ == "__main__":
    train()
