"""Which rows an index selects, where nothing is computed: no peak is too low without a word.

The larger one of the peaks that both ways to assume give, evenly and nearly all the same, is that
of the choice that needs most, and a note names the lines.
"""

from functools import wraps

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from snapconv.simulation import SimulationOptions, simulated  # noqa: E402

pytestmark = [
    pytest.mark.smoke("no-compute"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

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

    def forward(self, x, bias):
        return self.mix(self.experts, x, (self.gate(x) + bias).softmax(-1))


def of_two(mix):
    """Let each token take the best two."""
    return wraps(mix)(lambda experts, x, weights: mix(experts, x, *weights.topk(2)))


@of_two
def asks_whether_any(experts, x, weights, chosen):
    y = torch.zeros_like(x)
    for i, expert in enumerate(experts):
        mask = chosen == i
        if mask.any():
            rows = mask.any(-1).nonzero().flatten()
            y.index_add_(0, rows, expert(x[rows]) * weights[mask].view(-1, 1))
    return y


@of_two
def takes_those_hit(experts, x, weights, chosen):
    y = torch.zeros_like(x)
    mask = nn.functional.one_hot(chosen, N_EXPERTS).permute(2, 1, 0)
    for (i,) in (mask.sum((-1, -2)) > 0).nonzero():
        place, rows = torch.where(mask[i])
        y.index_add_(0, rows, experts[i](x[rows]) * weights[rows, place, None])
    return y


@of_two
def splits_by_counts(experts, x, weights, chosen):
    order = chosen.flatten().argsort()
    counts = chosen.flatten().bincount(minlength=N_EXPERTS).tolist()
    parts = x[order // 2].split(counts)
    done = torch.cat([expert(part) for expert, part in zip(experts, parts, strict=True)])
    return torch.zeros_like(x).index_add(0, order // 2, done * weights.flatten()[order, None])


@of_two
def cuts_by_numbers(experts, x, weights, chosen):
    y, start = torch.zeros_like(x), 0
    order = chosen.flatten().argsort()
    for expert, end in zip(
        experts, chosen.flatten().bincount(minlength=N_EXPERTS).cpu().numpy().cumsum(), strict=True
    ):
        rows = order[start:end]
        if len(rows):
            y = y.index_add(0, rows // 2, expert(x[rows // 2]) * weights.flatten()[rows, None])
        start = end
    return y


@of_two
def pads_what_is_cut(experts, x, weights, chosen):
    order = chosen.flatten().argsort()
    counts = chosen.flatten().bincount(minlength=N_EXPERTS).tolist()
    done = [
        expert(nn.functional.pad(part, (0, 0, 0, -len(part) % 32)))[: len(part)]
        for expert, part in zip(experts, x[order // 2].split(counts), strict=True)
    ]
    return torch.zeros_like(x).index_add(
        0, order // 2, torch.cat(done) * weights.flatten()[order, None]
    )


@of_two
def lists_rows(experts, x, weights, chosen):
    y, rows = torch.zeros_like(x), [[] for _ in experts]
    for i, row in enumerate(chosen.tolist()):
        for expert in row:
            rows[expert].append(i)
    for expert, taken in zip(experts, rows, strict=True):
        if taken:
            taken = torch.tensor(taken, device=x.device)
            y = y.index_add(0, taken, expert(x[taken]) * weights[taken].sum(-1, keepdim=True))
    return y


@of_two
def keeps_whole_outputs(experts, x, weights, chosen):
    outputs = []
    for i, expert in enumerate(experts):
        taken = (chosen == i).any(-1).nonzero().flatten()
        if taken.numel():
            outputs.append(torch.zeros_like(x).index_copy(0, taken, expert(x[taken])) ** 2)
    return torch.stack(outputs).sum(0) * weights.sum(-1, keepdim=True)


@of_two
def lists_experts_hit(experts, x, weights, chosen):
    y = torch.zeros_like(x)
    masks = [chosen == i for i in range(N_EXPERTS)]
    for i in [i for i, mask in enumerate(masks) if mask.sum() > 0]:
        rows, place = torch.where(masks[i])
        y.index_add_(0, rows, experts[i](x[rows]) * weights[rows, place, None])
    return y


@of_two
def looks_where_any_is(experts, x, weights, chosen):
    y = torch.zeros_like(x)
    for i in filter(lambda i: (chosen == i).sum() > 0, range(N_EXPERTS)):
        rows, place = torch.where(chosen == i)
        y.index_add_(0, rows, experts[i](x[rows]) * weights[rows, place, None])
    return y


def has_capacity(experts, x, weights):
    weight, chosen = weights.max(-1)
    places = nn.functional.one_hot(chosen, N_EXPERTS)
    is_kept = (places.cumsum(0) * places).sum(-1) <= 1.25 * len(x) / N_EXPERTS
    y = x.clone()
    for i, expert in enumerate(experts):
        taken = (chosen == i) & is_kept
        if taken.sum() > 0:
            y[taken] = expert(x[taken]) * weight[taken, None]
    return y


def drops_by_chance_beyond_a_capacity(experts, x, weights):
    weight, chosen = weights.max(-1)
    y, most = x.clone(), len(x) // N_EXPERTS
    for i, expert in enumerate(experts):
        taken = (chosen == i).nonzero().flatten()
        if len(taken) > most:
            taken = taken[torch.randperm(len(taken), device=x.device)[:most]]
        if len(taken):
            y[taken] = expert(x[taken]) * weight[taken, None]
    return y


def takes_the_first_of_all_sorted(experts, x, weights):
    sorted_weights, order = weights.sort(-1, descending=True)
    return asks_whether_any.__wrapped__(experts, x, sorted_weights[:, :2], order[:, :2])


def gives_all_to_all(experts, x, weights):
    best, chosen = weights.topk(2)
    share = torch.zeros(len(x), N_EXPERTS, device=x.device).scatter(1, chosen, best)
    return sum(share[:, i, None] * expert(x) for i, expert in enumerate(experts))


# What is added to a router's result in each step: nothing, the same, and what changes from step to
# step.
BIASES = {
    "even": [[0] * N_EXPERTS] * 3,
    "two": [[40, 0, 30, 0]] * 3,
    "changing": [[40, 30, 0, 0], [0, 0, 0, 0], [0, 0, 30, 40]],
}


def trained(mix, biases=BIASES["even"], **options):
    """Train for three steps; return the peak, the notes and the number of weights with states."""
    with simulated(SimulationOptions(**options)) as simulation:
        torch.manual_seed(0)
        torch.cuda.manual_seed(1)  # not the numbers of the weights, which the CPU draws
        model = Experts(mix).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        for bias in biases:
            x = torch.randn(N_TOKENS, WIDTH, device="cuda")
            model(x, torch.tensor(bias, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        notes = {note.slug: note.message for note in simulation.notes()}
        return torch.cuda.max_memory_allocated(), notes, len(optimizer.state)


@pytest.mark.parametrize(
    "mix",
    [
        asks_whether_any,
        takes_those_hit,
        splits_by_counts,
        cuts_by_numbers,
        pads_what_is_cut,
        lists_rows,
        keeps_whole_outputs,
        lists_experts_hit,
        looks_where_any_is,
        has_capacity,
        drops_by_chance_beyond_a_capacity,
        takes_the_first_of_all_sorted,
    ],
)
def test_whatever_a_router_chooses_one_of_both_peaks_is_as_high_and_the_lines_are_noted(mix):
    computed, assumed = [trained(mix, biases)[0] for biases in BIASES.values()], []
    for is_worst in (False, True):
        peak, notes, n_states = trained(mix, compute=False, is_routing_worst=is_worst)
        assumed.append(peak)
        # No expert is skipped.
        assert n_states == 2 + 4 * N_EXPERTS
        assert notes["sizes-assumed"].startswith("the peak may be lower or higher: sizes ")
        assert "test_routing.py" in notes["sizes-assumed"]
        assert ("spread evenly" in notes["sizes-assumed"]) is not is_worst
        assert ("one row of 16" in notes["sizes-assumed"]) is is_worst
    # Where most rows go to the same ones, 15 of 16 do.
    assert max(computed) * 0.995 <= max(assumed) <= max(computed) * 1.05


def test_evenly_spread_tokens_need_what_a_router_without_preference_does():
    computed, *_ = trained(asks_whether_any)
    assumed, *_ = trained(asks_whether_any, compute=False)

    assert abs(assumed - computed) < computed / 50


@pytest.mark.parametrize("is_worst", [False, True])
def test_where_no_size_depends_on_the_choice_the_peak_is_equal_and_there_is_no_note(is_worst):
    computed, *_ = trained(gives_all_to_all)
    assumed, notes, _ = trained(gives_all_to_all, compute=False, is_routing_worst=is_worst)

    assert assumed == computed
    assert "sizes-assumed" not in notes


@pytest.mark.parametrize("name", ["topk", "sort", "argsort", "multinomial"])
def test_each_column_of_assumed_indices_is_evenly_spread(name):
    choose = {
        "topk": lambda x: x.topk(3).indices,
        "sort": lambda x: x.sort(-1).indices,
        "argsort": lambda x: x.argsort(-1),
        "multinomial": lambda x: x.softmax(-1).multinomial(3),
    }[name]
    with simulated(SimulationOptions(compute=False)):
        chosen = choose(torch.randn(4 * N_TOKENS, 8, device="cuda"))
        assert all(len({*row}) == len(row) for row in chosen.tolist())
        for columns in (chosen[:, :1], chosen[:, :2], chosen):
            counts = columns.flatten().bincount(minlength=8)
            assert counts.max() - counts.min() < columns.numel() / 50


def sizes_assumed(simulation):
    return [note.message for note in simulation.notes() if note.slug == "sizes-assumed"]


def unknown(*shape):
    """A tensor on the device whose values nobody computed."""
    return torch.randn(1 << 15, device="cuda").sum() * torch.randn(shape, device="cuda")


@pytest.mark.parametrize("read", [lambda x: x.tolist(), lambda x: x.cpu().numpy()])
def test_a_list_of_assumed_values_may_decide_sizes_and_a_single_number_only_where_a_size_equals_it(
    read,
):
    with simulated(SimulationOptions(compute=False)) as simulation:
        labels, chosen = torch.zeros(90, device="cuda"), unknown(90, N_EXPERTS).argmax(-1)
        n_right = (chosen == labels).sum().item()
        torch.zeros(7, device="cuda")
        assert sizes_assumed(simulation) == []
        torch.zeros(n_right, device="cuda")
        [message] = sizes_assumed(simulation)
        assert message.startswith(
            "the peak may be lower or higher: sizes depend on values that were not"
        )
        read(chosen)
        [message] = sizes_assumed(simulation)
        assert "sizes may depend on lists of assumed values, read at " in message


def test_of_what_a_large_mask_selects_half_is_taken():
    with simulated(SimulationOptions(compute=False)) as simulation:
        x = torch.randn(1 << 21, device="cuda")
        assert len(x[x > 0]) == len(x[x < 1]) == len(x) // 2
        [message] = sizes_assumed(simulation)
        assert "Of rows that a mask selects, half were taken" in message


def takes_rows(x, mask, net):
    return net(x[mask]).sum()


def samples_both(x, mask, net):
    label = torch.zeros(len(x), dtype=torch.int8, device="cuda")
    label[mask] = 1
    chosen = []
    for value, most in ((1, 300), (0, 400)):
        rows = (label == value).nonzero().flatten()
        chosen.append(rows[torch.randperm(len(rows), device="cuda")[:most]])
    rows = torch.cat(chosen)
    out = net(x[rows])
    return out.sum() + net(out[label[rows] == 1]).sum()


def assigns_among_selected(x, mask, net):
    among = (x[mask] @ x[mask].t()).sum(0) > 0
    mask[mask.clone()] = among
    return (net(x[mask]) - x.new_zeros((int(among.sum().item()), WIDTH))).square().sum()


def selects_of_selected(x, mask, net):
    taken = x[mask]
    again = taken[taken.sum(1) > -1e9]
    return net(again[again[:, 0] > -1e9]).sum() + net(taken).sum()


def makes_as_many(x, mask, net):
    return net(torch.ones(int(mask.sum()), WIDTH, device="cuda")).sum() + net(x).sum()


def splits_what_it_joined(x, mask, net):
    parts = [part[chosen] for part, chosen in zip(x.chunk(4), mask.chunk(4), strict=True)]
    out = net(torch.cat(parts)).split([len(part) for part in parts])
    return nn.utils.rnn.pad_sequence(out).square().sum()


def selects_columns(x, mask, net):
    return net(x).t()[:, mask].square().sum()


@pytest.mark.parametrize(
    "select",
    [
        takes_rows,
        samples_both,
        assigns_among_selected,
        selects_of_selected,
        makes_as_many,
        splits_what_it_joined,
        selects_columns,
    ],
)
def test_whatever_a_mask_selects_the_worst_peak_is_that_of_most_rows_and_the_lines_are_noted(
    select,
):
    def trained(part, **options):
        with simulated(SimulationOptions(**options)) as simulation:
            torch.manual_seed(0)
            net = nn.Sequential(
                nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
            ).cuda()
            optimizer = torch.optim.Adam(net.parameters())
            for _ in range(2):
                x = torch.randn(2 * N_TOKENS, WIDTH, device="cuda")
                score = net(x).detach().sum(1) * 0 + torch.rand(len(x), device="cuda")
                select(x, score < part, net).backward()
                optimizer.step()
                optimizer.zero_grad()
            notes = {note.slug: note.message for note in simulation.notes()}
            return torch.cuda.max_memory_allocated(), notes

    computed = [trained(part)[0] for part in (0, 0.1, 0.5, 1)]
    for is_worst in (False, True):
        assumed, notes = trained(0.5, compute=False, is_routing_worst=is_worst)
        assert min(computed) * 0.95 <= assumed <= max(computed) * 1.05
        assert "test_routing.py" in notes["sizes-assumed"]
        assert f"{'15 of 16' if is_worst else 'half'} were taken" in notes["sizes-assumed"]
        assert "Without `--no-compute` the peak is computed" in notes["sizes-assumed"]
    # 15 of 16 rows; pairs of rows grow by the square.
    assert assumed >= max(computed) * (15 / 16) ** 2


def test_a_word_is_not_chosen_as_an_expert_is():
    """An end of text, which is at an end of a vocabulary, would be met by chance."""
    with simulated(SimulationOptions(compute=False)):
        logits = torch.randn(2, 50_000, device="cuda") * torch.randn(1 << 15, device="cuda").sum()
        assert logits.argmax(-1).tolist() == [0, 0]
        best = logits.topk(4).indices
        assert best.min() > 1000
        assert best.max() < 49_000


@pytest.mark.parametrize(("shape", "dim"), [((3, 500), -1), ((500,), 0), ((2, 500, 3), 1)])
def test_the_best_of_more_values_than_are_taken_are_different_ones(shape, dim):
    """A beam search goes on with the best words of a vocabulary: as many beams as words."""
    with simulated(SimulationOptions(compute=False)):
        scores = torch.empty(10, 10, device="cuda") @ torch.empty(10, 10, device="cuda")
        scores = scores.flatten()[:1].expand(shape)
        best = scores.topk(4, dim).indices.cpu().movedim(dim, -1).reshape(-1, 4)
    assert all(len(set(row)) == 4 for row in best.tolist())
    assert best.min() >= 0
    assert best.max() < 500
