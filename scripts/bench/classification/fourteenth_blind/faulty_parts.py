"""Faulty parts are found by PatchCore, as anomalib does it: patches of a frozen ResNet's layers, a bank of the most different ones on the device, chosen greedily in a random projection, distances to the nearest of them, a map of where the fault is; one bank for each kind of part."""

import torch
import torch.nn.functional as F
from programs import end_of_step, tell
from sklearn.metrics import roc_auc_score
from sklearn.random_projection import SparseRandomProjection
from timm import create_model
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms.v2.functional import gaussian_blur

IMAGE_SIZE, BATCH_SIZE = 160, 8
CORESET_RATIO, NUM_NEIGHBORS = 0.01, 9
device = torch.device("cuda")


class PartDataset(Dataset):
    """Pictures of a part, all nearly the same; in some there is a scratch."""

    def __init__(self, category, n, is_test):
        self.n, self.is_test = n, is_test
        g = torch.Generator().manual_seed(category)
        coarse = torch.rand(1, 3, 10, 10, generator=g)
        self.part = F.interpolate(coarse, size=(IMAGE_SIZE, IMAGE_SIZE), mode="bicubic")[0].clamp(0, 1)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(1000 * self.is_test + i)
        image = (self.part + 0.05 * torch.randn(self.part.shape, generator=g)).clamp(0, 1)
        mask = torch.zeros(1, IMAGE_SIZE, IMAGE_SIZE)
        if self.is_test and i % 2:
            x, y = torch.randint(20, 110, (2,), generator=g).tolist()
            mask[:, y : y + 12, x : x + 30] = 1
            image = torch.where(mask.bool(), torch.rand(3, 1, 1, generator=g), image)
        mean, std = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]]).view(2, 3, 1, 1)
        return {"image": (image - mean) / std, "mask": mask, "label": int(mask.any())}


class KCenterGreedy:
    """Chooses the rows that cover all others best."""

    def __init__(self, embedding, sampling_ratio):
        self.embedding = embedding
        self.coreset_size = int(embedding.shape[0] * sampling_ratio)
        self.model = SparseRandomProjection(eps=0.9, random_state=0)

    def select_coreset_idxs(self):
        self.model.fit(self.embedding[:1].cpu().numpy().repeat(len(self.embedding), 0))
        matrix = torch.from_numpy(self.model.components_.toarray()).float().to(self.embedding.device)
        self.features = self.embedding @ matrix.T
        tell(activations=[self.features, self.embedding])
        self.min_distances = None
        idx, selected = int(torch.randint(high=len(self.features), size=(1,))), []
        for _ in range(self.coreset_size):
            center = self.features[idx]
            distances = torch.linalg.norm(self.features - center, dim=1, keepdim=True)
            if self.min_distances is None:
                self.min_distances = distances
            else:
                self.min_distances = torch.minimum(self.min_distances, distances)
            idx = int(torch.argmax(self.min_distances).item())
            self.min_distances[idx] = 0
            selected.append(idx)
        return selected

    def sample_coreset(self):
        return self.embedding[self.select_coreset_idxs()]


class PatchcoreModel(nn.Module):
    def __init__(self, backbone="resnet18", layers=(2, 3)):
        super().__init__()
        self.feature_extractor = create_model(
            backbone, pretrained=False, features_only=True, out_indices=layers
        )
        self.feature_extractor.requires_grad_(False).eval()
        self.feature_pooler = nn.AvgPool2d(3, 1, 1)
        self.embedding_store = []
        self.register_buffer("memory_bank", torch.empty(0))

    def forward(self, image):
        with torch.no_grad():
            features = [self.feature_pooler(feature) for feature in self.feature_extractor(image)]
        embedding = features[0]
        for layer in features[1:]:
            layer = F.interpolate(layer, size=embedding.shape[-2:], mode="bilinear")
            embedding = torch.cat((embedding, layer), 1)
        batch_size, channels, height, width = embedding.shape
        embedding = embedding.permute(0, 2, 3, 1).reshape(-1, channels)
        if self.training:
            self.embedding_store.append(embedding)
            return embedding
        patch_scores, locations = self.nearest_neighbors(embedding, 1)
        patch_scores, locations = patch_scores.reshape(batch_size, -1), locations.reshape(batch_size, -1)
        score = self.compute_anomaly_score(patch_scores, locations, embedding)
        anomaly_map = F.interpolate(patch_scores.reshape(batch_size, 1, height, width), size=image.shape[-2:])
        return score, gaussian_blur(anomaly_map, kernel_size=[33, 33], sigma=[4.0, 4.0])

    def subsample_embedding(self, sampling_ratio):
        embeddings = torch.vstack(self.embedding_store)
        self.embedding_store.clear()
        self.memory_bank = KCenterGreedy(embeddings, sampling_ratio).sample_coreset()

    def nearest_neighbors(self, embedding, n_neighbors):
        distances = torch.cdist(embedding, self.memory_bank, p=2.0)
        if n_neighbors == 1:
            return distances.min(1)
        return distances.topk(k=n_neighbors, largest=False, dim=1)

    def compute_anomaly_score(self, patch_scores, locations, embedding):
        batch_size, num_patches = patch_scores.shape
        max_patches = torch.argmax(patch_scores, dim=1)
        rows = torch.arange(batch_size, device=embedding.device)
        max_features = embedding.reshape(batch_size, num_patches, -1)[rows, max_patches]
        score, nn_index = patch_scores[rows, max_patches], locations[rows, max_patches]
        nn_sample = self.memory_bank[nn_index]
        distances = torch.cdist(nn_sample, self.memory_bank, p=2.0)
        _, support = distances.topk(k=min(NUM_NEIGHBORS, len(self.memory_bank)), largest=False, dim=1)
        distances = torch.cdist(max_features.unsqueeze(1), self.memory_bank[support], p=2.0)
        return (1 - F.softmax(distances.squeeze(1), 1)[..., 0]) * score


def fit(model, loader):
    model.train()
    model.feature_extractor.eval()
    tell(weights=model.state_dict())
    for batch in loader:
        images = batch["image"].to(device)
        model(images)
        tell(inputs=images, activations=model.embedding_store)
    model.subsample_embedding(CORESET_RATIO)


@torch.no_grad()
def test(model, loader):
    model.eval()
    scores, labels, hits, best = [], [], 0, None
    for batch in loader:
        images, masks = batch["image"].to(device), batch["mask"].to(device)
        score, anomaly_map = model(images)
        tell(inputs=[images, masks], activations=[score, anomaly_map])
        peak = anomaly_map.flatten(1).argmax(1, keepdim=True)
        hits += int(masks.flatten(1).gather(1, peak).sum().item())
        if best is None or score.max() > best[0].max():
            best = score.clone(), anomaly_map
        scores += score.tolist()
        labels += batch["label"].tolist()
    return roc_auc_score(labels, scores), hits / max(sum(labels), 1), best


def main():
    torch.manual_seed(0)
    for category, name in enumerate(["bottle", "cable", "capsule", "screw"]):
        model = PatchcoreModel().to(device)
        fit(model, DataLoader(PartDataset(category, 56, False), BATCH_SIZE))
        auroc, hit_rate, worst = test(model, DataLoader(PartDataset(category, 8, True), BATCH_SIZE))
        print(
            f"{name}: bank {tuple(model.memory_bank.shape)}, AUROC {auroc:.3f}, pointed right {hit_rate:.2f}"
        )
        torch.save({"memory_bank": model.memory_bank.cpu(), "map": worst[1].cpu()}, f"{name}.pt")
        end_of_step(activations=worst, weights=model.memory_bank)


if __name__ == "__main__":
    main()
