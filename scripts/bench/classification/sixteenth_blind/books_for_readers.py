"""LightGCN trained with BPR on a bipartite graph of readers and books that stays on the device, ranked after every epoch."""

import torch
from programs import end_of_step
from torch_geometric.nn import LightGCN
from torch_geometric.utils import degree

torch.manual_seed(7)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

num_readers, num_books = 7000, 5000
num_nodes = num_readers + num_books
batch_size = 8192
k = 20


def ratings(count):
    readers = torch.randint(0, num_readers, (count,))
    popularity = torch.rand(count) ** 2
    books = (popularity * num_books).long().clamp(max=num_books - 1) + num_readers
    return torch.stack([readers, books])


train_pairs = ratings(16000)
test_pairs = ratings(4000).to(device)
edge_index = torch.cat([train_pairs, train_pairs.flip(0)], dim=1).to(device)
train_edge_label_index = train_pairs.to(device)

loader = torch.utils.data.DataLoader(
    range(train_edge_label_index.size(1)), shuffle=True, batch_size=batch_size
)

model = LightGCN(num_nodes=num_nodes, embedding_dim=96, num_layers=3).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def train(epoch):
    model.train()
    total_loss = total_examples = 0
    for index in loader:
        pos = train_edge_label_index[:, index]
        neg = torch.stack(
            [pos[0], torch.randint(num_readers, num_readers + num_books, (index.numel(),), device=device)],
            dim=0,
        )
        edge_label_index = torch.cat([pos, neg], dim=1)

        optimizer.zero_grad()
        pos_rank, neg_rank = model(edge_index, edge_label_index).chunk(2)
        loss = model.recommendation_loss(
            pos_rank, neg_rank, node_id=edge_label_index.unique(), lambda_reg=1e-4
        )
        loss.backward()
        optimizer.step()

        total_loss += float(loss) * pos_rank.numel()
        total_examples += pos_rank.numel()
        end_of_step(
            inputs=[edge_index, train_edge_label_index, test_pairs, pos, neg, edge_label_index],
            activations=[pos_rank, neg_rank, loss],
        )
    return total_loss / total_examples


@torch.no_grad()
def test():
    model.eval()
    emb = model.get_embedding(edge_index)
    reader_emb, book_emb = emb[:num_readers], emb[num_readers:]

    precision = recall = total = 0
    for start in range(0, num_readers, 1024):
        end = min(start + 1024, num_readers)
        logits = reader_emb[start:end] @ book_emb.t()

        mask = (train_edge_label_index[0] >= start) & (train_edge_label_index[0] < end)
        seen = train_edge_label_index[:, mask]
        logits[seen[0] - start, seen[1] - num_readers] = float("-inf")

        truth = torch.zeros_like(logits, dtype=torch.bool)
        mask = (test_pairs[0] >= start) & (test_pairs[0] < end)
        truth[test_pairs[0, mask] - start, test_pairs[1, mask] - num_readers] = True
        counts = degree(test_pairs[0, mask] - start, num_nodes=logits.size(0))

        top = logits.topk(k, dim=-1).indices
        hits = truth.gather(1, top)
        precision += float((hits.sum(-1) / k).sum())
        recall += float((hits.sum(-1) / counts.clamp(1e-6)).sum())
        total += int((counts > 0).sum())
    return precision / total, recall / total


for epoch in range(1, 4):
    loss = train(epoch)
    precision, recall = test()
    print(f"epoch {epoch}: loss {loss:.4f}, precision@{k} {precision:.4f}, recall@{k} {recall:.4f}")
