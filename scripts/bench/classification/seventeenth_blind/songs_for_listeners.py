"""LightGCN recommends songs to listeners from the whole graph of plays: BPR loss, Adam, recall at 20."""

import torch
from programs import end_of_step
from torch.utils.data import DataLoader
from torch_geometric.data import Data
from torch_geometric.nn import LightGCN
from torch_geometric.utils import degree

torch.manual_seed(8)
device = torch.device("cuda")
num_users, num_songs, num_plays, batch_size, k = 6000, 4000, 90_000, 8192, 20

users = torch.randint(0, num_users, (num_plays,))
songs = (num_songs * torch.rand(num_plays) ** 2).long() + num_users
plays = torch.stack([users, songs])
held_out = torch.rand(num_plays) < 0.1
edge_label_index = plays[:, held_out]
train_plays = plays[:, ~held_out]
data = Data(
    num_nodes=num_users + num_songs,
    edge_index=torch.cat([train_plays, train_plays.flip(0)], dim=1),
    edge_label_index=edge_label_index,
).to(device)

mask = data.edge_index[0] < data.edge_index[1]
train_edge_label_index = data.edge_index[:, mask]
train_loader = DataLoader(range(train_edge_label_index.size(1)), shuffle=True, batch_size=batch_size)

model = LightGCN(num_nodes=data.num_nodes, embedding_dim=64, num_layers=3).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
dataset = [data.edge_index, data.edge_label_index, mask, train_edge_label_index]


@torch.no_grad()
def test():
    emb = model.get_embedding(data.edge_index)
    user_emb, song_emb = emb[:num_users], emb[num_users:]
    hits = total = 0
    for start in range(0, num_users, 2048):
        end = min(start + 2048, num_users)
        logits = user_emb[start:end] @ song_emb.t()
        seen = (train_edge_label_index[0] >= start) & (train_edge_label_index[0] < end)
        logits[train_edge_label_index[0, seen] - start, train_edge_label_index[1, seen] - num_users] = float(
            "-inf"
        )
        truth = torch.zeros_like(logits, dtype=torch.bool)
        wanted = (data.edge_label_index[0] >= start) & (data.edge_label_index[0] < end)
        truth[data.edge_label_index[0, wanted] - start, data.edge_label_index[1, wanted] - num_users] = True
        count = degree(data.edge_label_index[0, wanted] - start, num_nodes=end - start)
        top = logits.topk(k, dim=-1).indices
        found = truth.gather(1, top).sum(dim=-1)
        hits += float((found / count.clamp(min=1e-6)).sum())
        total += int((count > 0).sum())
    return hits / total


step = 0
for epoch in range(2):
    total_loss = total_examples = 0
    for index in train_loader:
        index = index.to(device)
        pos_edge_label_index = train_edge_label_index[:, index]
        neg_edge_label_index = torch.stack(
            [
                pos_edge_label_index[0],
                torch.randint(num_users, num_users + num_songs, (index.numel(),), device=device),
            ],
            dim=0,
        )
        edge_label_index = torch.cat([pos_edge_label_index, neg_edge_label_index], dim=1)

        optimizer.zero_grad()
        pos_rank, neg_rank = model(data.edge_index, edge_label_index).chunk(2)
        loss = model.recommendation_loss(
            pos_rank, neg_rank, node_id=edge_label_index.unique(), lambda_reg=1e-4
        )
        loss.backward()
        optimizer.step()

        total_loss += float(loss) * pos_rank.numel()
        total_examples += pos_rank.numel()
        step += 1
        if step % 2 == 0:
            print(f"step {step} loss {total_loss / total_examples:.4f} recall {test():.4f}")
        end_of_step(
            inputs=[dataset, index, pos_edge_label_index, neg_edge_label_index, edge_label_index],
            activations=[pos_rank, neg_rank, loss],
        )
