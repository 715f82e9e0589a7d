"""Which rows an index selects, where nothing is computed: the computed peak lies between the bounds."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from snapconv.simulation import SimulationOptions, simulated  # noqa: E402

pytestmark = [pytest.mark.smoke("no-compute"), pytest.mark.filterwarnings("ignore::DeprecationWarning")]

WIDTH, N_EXPERTS, N_TOKENS = 64, 4, 1000


class Experts(nn.Module):
    """Experts of which each token takes two; ``mix`` is how a program sends them there."""

    def __init__(self, mix):
        super().__init__()
        self.gate = nn.Linear(WIDTH, N_EXPERTS)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH))
            for _ in range(N_EXPERTS)
        )
        self.mix = mix

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(2)
        return self.mix(self.experts, x, weights, chosen)


def asks_whether_any(experts, x, weights, chosen):
    y = torch.zeros_like(x)
    for i, expert in enumerate(experts):
        mask = chosen == i
        if mask.any():
            rows = mask.any(-1).nonzero().flatten()
            y.index_add_(0, rows, expert(x[rows]) * weights[mask].view(-1, 1))
    return y


def takes_those_hit(experts, x, weights, chosen):
    y = torch.zeros_like(x)
    mask = nn.functional.one_hot(chosen, N_EXPERTS).permute(2, 1, 0)
    for (i,) in (mask.sum((-1, -2)) > 0).nonzero():
        place, rows = torch.where(mask[i])
        y.index_add_(0, rows, experts[i](x[rows]) * weights[rows, place, None])
    return y


def splits_by_counts(experts, x, weights, chosen):
    order = chosen.flatten().argsort()
    counts = chosen.flatten().bincount(minlength=N_EXPERTS).tolist()
    parts = x[order // 2].split(counts)
    done = torch.cat([expert(part) for expert, part in zip(experts, parts, strict=True)])
    return torch.zeros_like(x).index_add(0, order // 2, done * weights.flatten()[order, None])


def gives_all_to_all(experts, x, weights, chosen):
    share = torch.zeros(len(x), N_EXPERTS, device=x.device).scatter(1, chosen, weights)
    return sum(share[:, i, None] * expert(x) for i, expert in enumerate(experts))


def trained(mix, **options):
    """Train for two steps; return the peak, its bounds and the notes."""
    with simulated(SimulationOptions(**options)) as simulation:
        torch.manual_seed(0)
        model = Experts(mix).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            model(torch.randn(N_TOKENS, WIDTH, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        bounds = simulation.tracker.routing.bounds()
        return (
            torch.cuda.max_memory_allocated(),
            bounds.get(0),
            {n.slug: n.message for n in simulation.notes()},
        )


@pytest.mark.parametrize("mix", [asks_whether_any, takes_those_hit, splits_by_counts])
def test_the_computed_peak_lies_between_the_bounds(mix):
    computed, nothing, _ = trained(mix)
    assumed, (low, high), notes = trained(mix, compute=False)

    assert nothing is None
    assert low <= computed <= high
    assert low <= assumed <= high
    # What all experts save for backward is there.
    assert abs(assumed - computed) < computed / 20
    assert "assumed to be spread evenly" in notes["sizes-assumed"]
    assert "test_routing.py" in notes["sizes-assumed"]


def test_where_no_size_depends_on_the_choice_the_peak_is_equal_and_there_are_no_bounds():
    computed, _, _ = trained(gives_all_to_all)
    assumed, bounds, notes = trained(gives_all_to_all, compute=False)

    assert (assumed, bounds) == (computed, None)
    assert "sizes-assumed" not in notes


def test_the_worst_routing_gives_all_tokens_to_the_same_experts():
    balanced, (_, high), _ = trained(asks_whether_any, compute=False)
    worst, _, notes = trained(asks_whether_any, compute=False, is_routing_worst=True)

    # Less for the experts that nobody takes: their gradients and states.
    states = 3 * 2 * 4 * (2 * 4 * WIDTH * WIDTH + 5 * WIDTH)
    assert balanced < worst + states <= high + states
    assert "assumed to be the same in every row" in notes["sizes-assumed"]


def test_what_an_unknown_mask_selects_is_all_of_it_and_may_be_nothing():
    with simulated(SimulationOptions(compute=False)) as simulation:
        x = torch.randn(1 << 20, device="cuda")
        kept = x[x > 0]
        assert len(kept) == len(x)
        [(low, high)] = simulation.tracker.routing.bounds().values()
        # Without what is selected the peak is that of x and its mask.
        assert low == 5 << 20
        assert high == torch.cuda.max_memory_allocated() == 9 << 20


def test_a_word_is_not_chosen_as_an_expert_is():
    """An end of text would be met by chance."""
    with simulated(SimulationOptions(compute=False)):
        logits = torch.randn(2, 50_000, device="cuda") * torch.randn(1 << 15, device="cuda").sum()
        assert logits.argmax(-1).tolist() == [0, 0]
        assert logits.topk(4).indices.flatten().tolist() == [0] * 8
