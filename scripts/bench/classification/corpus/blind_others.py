"""An entry that was written without a look at any rule: a picture takes another one's style.

They bring optimizers of their own, and take no other, whatever a setup says.
"""

import copy
from collections import OrderedDict
from collections.abc import Sequence

import torch
from setups import Iterations, Known, Setup
from torch import nn
from torch.nn import functional

DEVICE = "cuda:0"


# --- painted


class Normalization(nn.Module):
    """Brings colours to where the network was trained."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(-1, 1, 1))

    def forward(self, img: torch.Tensor) -> torch.Tensor:
        """Shift and scale an image."""
        return (img - self.mean) / self.std


class VggFeatures(nn.Module):
    """A frozen network that hands out what is between its layers, by their names."""

    STYLE = ("relu1_1", "relu2_1", "relu3_1", "relu4_1")
    CONTENT = ("relu3_2",)

    def __init__(self, widths: Sequence[int] = (32, 64, 128, 256)) -> None:
        super().__init__()
        layers: OrderedDict[str, nn.Module] = OrderedDict(normalize=Normalization())
        n_in = 3
        for block, n_out in enumerate(widths, start=1):
            for number in range(1, 2 if block == len(widths) else 3):
                layers[f"conv{block}_{number}"] = nn.Conv2d(n_in, n_out, 3, padding=1)
                layers[f"relu{block}_{number}"] = nn.ReLU(inplace=False)
                n_in = n_out
            if block < len(widths):
                layers[f"pool{block}"] = nn.AvgPool2d(2)
        self.layers = nn.ModuleDict(layers)
        self.requires_grad_(requires_grad=False)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the feature maps that losses look at."""
        found = {}
        for name, layer in self.layers.items():
            x = layer(x)
            if name in self.STYLE or name in self.CONTENT:
                found[name] = x
        return found


class Painting(nn.Module):
    """The image that is painted, as the one parameter there is."""

    def __init__(self, start: torch.Tensor) -> None:
        super().__init__()
        self.image = nn.Parameter(start.clone())

    def forward(self) -> torch.Tensor:
        """Return it."""
        return self.image


def gram_matrix(y: torch.Tensor) -> torch.Tensor:
    """How the channels of a feature map go together."""
    b, ch, h, w = y.size()
    features = y.view(b, ch, w * h)
    return features.bmm(features.transpose(1, 2)) / (ch * h * w)


def total_variation(y: torch.Tensor) -> torch.Tensor:
    """How much neighbours differ."""
    down = (y[:, :, :-1, :] - y[:, :, 1:, :]).abs().mean()
    return down + (y[:, :, :, :-1] - y[:, :, :, 1:]).abs().mean()


def style(_setup: Setup) -> Iterations:
    """An image is changed by LBFGS until a frozen network sees one image's content in another's style."""
    content = torch.rand(1, 3, 160, 160).to(DEVICE)
    style_image = torch.rand(1, 3, 176, 144).to(DEVICE)
    cnn = copy.deepcopy(VggFeatures()).to(DEVICE).eval()
    with torch.no_grad():
        wanted = {name: y.clone() for name, y in cnn(content).items() if name in cnn.CONTENT}
        grams = {name: gram_matrix(y) for name, y in cnn(style_image).items() if name in cnn.STYLE}
    painting = Painting(content).to(DEVICE)
    optimizer = torch.optim.LBFGS(painting.parameters(), lr=1.0, max_iter=4, history_size=20)
    run = [0]

    def closure() -> torch.Tensor:
        with torch.no_grad():
            painting.image.clamp_(0, 1)
        optimizer.zero_grad()
        image = painting()
        features = cnn(image)
        style_score = sum(
            functional.mse_loss(gram_matrix(features[name]), grams[name]) for name in grams
        )
        content_score = sum(functional.mse_loss(features[name], wanted[name]) for name in wanted)
        loss = 1e6 * style_score + content_score + 10 * total_variation(image)
        loss.backward()
        run[0] += 1
        return loss

    while True:
        loss = optimizer.step(closure)
        yield Known(
            inputs=(content, style_image),
            activations=(*wanted.values(), *grams.values(), loss),
        )
