"""Why a DenseNet says what it says of X-rays is explained by Captum: integrated gradients in small batches, GradientSHAP, Grad-CAM of the last block, hidden patches, and how far the answers change when noise is added."""

import torch
from captum.attr import (
    GradientShap,
    IntegratedGradients,
    LayerAttribution,
    LayerGradCam,
    NoiseTunnel,
    Occlusion,
    Saliency,
)
from captum.metrics import infidelity
from programs import end_of_step, tell
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision.models import DenseNet

FINDINGS = ["atelectasis", "effusion", "nodule", "pneumonia", "edema", "fibrosis", "hernia", "mass"]
SIZE = 96


def xrays(n):
    pictures = torch.randn(n, 1, SIZE // 8, SIZE // 8)
    pictures = nn.functional.interpolate(pictures, size=(SIZE, SIZE), mode="bicubic") + 0.1 * torch.randn(
        n, 1, SIZE, SIZE
    )
    return TensorDataset(pictures.repeat(1, 3, 1, 1), torch.randint(2, (n, len(FINDINGS))).float())


def noise(inputs):
    moved = 0.02 * torch.randn_like(inputs)
    return moved, inputs - moved


def heat(attributed):
    """One number for every point, which sum to one."""
    strength = attributed.abs().sum(1).flatten(1)
    return strength / strength.sum(1, keepdim=True).clamp_min(1e-9)


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = (
        DenseNet(growth_rate=16, block_config=(4, 6, 8, 6), num_init_features=32, num_classes=len(FINDINGS))
        .to(device)
        .eval()
    )
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False

    def logits(pictures):
        tell(inputs=pictures)
        return model(pictures)

    gradients, shap = IntegratedGradients(logits), GradientShap(logits)
    smooth, hidden = NoiseTunnel(Saliency(logits)), Occlusion(logits)
    camera = LayerGradCam(model, model.features.denseblock4)
    loader = DataLoader(xrays(24), batch_size=6)
    background = torch.stack([loader.dataset[i][0] for i in range(18, 24)]).to(device)

    agreement = []
    for i, (pictures, _) in enumerate(loader):
        pictures = pictures.to(device)
        with torch.no_grad():
            chances = torch.sigmoid(model(pictures))
        found = chances.argmax(dim=1)

        by_path, gap = gradients.attribute(
            pictures,
            baselines=torch.zeros_like(pictures),
            target=found,
            n_steps=8,
            internal_batch_size=24,
            return_convergence_delta=True,
        )
        unfaithful = infidelity(logits, noise, pictures, by_path, target=found, n_perturb_samples=2)
        maps = [heat(by_path)]
        del by_path
        maps.append(
            heat(shap.attribute(pictures, baselines=background, n_samples=3, stdevs=0.05, target=found))
        )
        maps.append(
            heat(smooth.attribute(pictures, nt_type="smoothgrad_sq", nt_samples=3, stdevs=0.1, target=found))
        )
        coarse = camera.attribute(pictures, target=found, relu_attributions=True)
        maps.append(heat(LayerAttribution.interpolate(coarse, (SIZE, SIZE), "bilinear")))
        with torch.no_grad():
            occluded = hidden.attribute(
                pictures,
                target=found,
                sliding_window_shapes=(3, 32, 32),
                strides=(3, 32, 32),
                perturbations_per_eval=3,
            )
        maps.append(heat(occluded))
        del occluded
        maps = torch.stack(maps)
        agreement.append(torch.corrcoef(maps.mean(1)).mean().item())
        torch.save({"pictures": pictures.cpu(), "maps": maps.cpu(), "found": found.cpu()}, f"reasons_{i}.pt")
        print(
            f"batch {i}: gap {gap.abs().mean().item():.4f}, infidelity {unfaithful.mean().item():.5f}, agreement {agreement[-1]:.3f}"
        )
        end_of_step(
            inputs=[pictures, background],
            activations=[chances, found, gap, coarse, unfaithful, maps],
        )


if __name__ == "__main__":
    main()
