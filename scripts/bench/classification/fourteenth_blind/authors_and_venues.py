"""Authors, papers and venues get vectors by walks along a metapath (MetaPath2Vec of PyTorch Geometric): one big table with sparse gradients, SparseAdam, venues guessed from authors in between."""

import torch
from programs import end_of_step
from torch_geometric.nn import MetaPath2Vec

METAPATH = [
    ("author", "writes", "paper"),
    ("paper", "published_in", "venue"),
    ("venue", "publishes", "paper"),
    ("paper", "written_by", "author"),
]
N_AUTHORS, N_PAPERS, N_VENUES, N_CLASSES = 30_000, 52_000, 400, 8


def library():
    topic_of_venue = torch.randint(N_CLASSES, (N_VENUES,))
    venue = torch.randint(N_VENUES, (N_PAPERS,))
    topic_of_paper = topic_of_venue[venue]
    topic_of_author = torch.randint(N_CLASSES, (N_AUTHORS,))
    by_topic = [torch.nonzero(topic_of_paper == topic).view(-1) for topic in range(N_CLASSES)]
    authors = torch.arange(N_AUTHORS).repeat_interleave(4)
    papers = torch.cat(
        [found[torch.randint(len(found), (4,))] for found in (by_topic[t] for t in topic_of_author.tolist())]
    )
    written = torch.stack([authors, papers])
    published = torch.stack([torch.arange(N_PAPERS), venue])
    edges = {
        METAPATH[0]: written,
        METAPATH[1]: published,
        METAPATH[2]: published.flip(0),
        METAPATH[3]: written.flip(0),
    }
    return edges, topic_of_author


@torch.no_grad()
def test(model, labels, labelled, train_ratio=0.3):
    model.eval()
    z = model("author", batch=labelled)
    y = labels[labelled]
    perm = torch.randperm(z.size(0), device=z.device)
    n_train = int(z.size(0) * train_ratio)
    train, rest = perm[:n_train], perm[n_train:]
    return model.test(z[train], y[train], z[rest], y[rest], max_iter=20)


def main():
    torch.manual_seed(12345)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    edges, topics = library()
    model = MetaPath2Vec(
        edges,
        embedding_dim=128,
        metapath=METAPATH,
        walk_length=20,
        context_size=7,
        walks_per_node=5,
        num_negative_samples=5,
        num_nodes_dict={"author": N_AUTHORS, "paper": N_PAPERS, "venue": N_VENUES},
        sparse=True,
    ).to(device)
    topics = topics.to(device)
    labelled = torch.randperm(N_AUTHORS)[:2_000].to(device)
    loader = model.loader(batch_size=16, shuffle=True, num_workers=0)
    optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=0.01)

    total = 0.0
    for step, (pos_rw, neg_rw) in enumerate(loader):
        model.train()
        pos_rw, neg_rw = pos_rw.to(device), neg_rw.to(device)
        optimizer.zero_grad()
        loss = model.loss(pos_rw, neg_rw)
        loss.backward()
        optimizer.step()
        total += loss.item()
        if step % 2 == 1:
            accuracy = test(model, topics, labelled)
            print(f"step {step}: loss {total / 2:.3f}, accuracy {accuracy:.3f}")
            total = 0.0
        end_of_step(inputs=[pos_rw, neg_rw, topics, labelled], activations=loss)
        if step == 3:
            break


if __name__ == "__main__":
    main()
