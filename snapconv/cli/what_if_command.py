"""``snapconv what-if``: the same run under other settings of the allocator, or on another card."""

from pathlib import Path
from typing import Annotated

import typer

from snapconv.cli.answers import Answer, answer_by_device, question, read_session
from snapconv.cli.arguments import PathOptions, parsed, size_of
from snapconv.cli.terminal import progress_bar
from snapconv.units import device_kind, device_name

_MOST_SCALE = 10_000

_Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--setting",
        metavar="KEY:VALUE,…",
        help="Try these in place of the file's own, written as in PYTORCH_CUDA_ALLOC_CONF. May be repeated: "
        "each is an alternative.",
    ),
]
_Capacity = Annotated[
    str | None,
    typer.Option(
        "--capacity",
        metavar="SIZE",
        help="What torch can have of the device, such as 38GiB. Default: as much as it likes, or, where a "
        "request failed, what it had then.",
    ),
]
_Card = Annotated[
    str | None,
    typer.Option(
        "--card",
        metavar="SIZE",
        help="A card's whole memory, such as 40GiB: what lies outside of torch is subtracted, as a capture "
        "in which a request failed shows it; else 1 GiB.",
    ),
]
_BatchScale = Annotated[
    float | None,
    typer.Option(
        "--batch-scale", metavar="X", help="Estimate X times the batch size: by category, what grows with it."
    ),
]
_Search = Annotated[
    bool, typer.Option("--search", help="Try the sensible settings, and rank them by what they reserve.")
]


@question
def what_if(
    snapshot: Path,
    *,
    setting: _Settings = None,
    search: _Search = False,
    capacity: _Capacity = None,
    card: _Card = None,
    batch_scale: _BatchScale = None,
    device: str | None = None,
    read: PathOptions,
) -> Answer:
    """Try other allocator settings, or another card, by a replay.

    The trace is replayed through a model of torch's allocator. For each: the peaks of reserved and allocated
    memory, and where it runs out.
    """
    from snapconv.answers.what_if.setting_trials import Request, read_setting
    from snapconv.writers.text.what_if import what_if_lines

    if not (setting or search or capacity or card or batch_scale is not None):
        raise typer.BadParameter(
            "say what to try: --setting, --search, --capacity, --card or --batch-scale", param_hint="what-if"
        )
    if capacity is not None and card is not None:
        raise typer.BadParameter("give --capacity or --card, not both", param_hint="--card")
    if batch_scale is not None and not 0 < batch_scale < _MOST_SCALE:
        raise typer.BadParameter(
            f"expected more than 0 and less than {_MOST_SCALE}", param_hint="--batch-scale"
        )
    request = Request(
        tuple(parsed(text, read_setting, "--setting") for text in setting or ()),
        search,
        size_of(capacity, "--capacity"),
        size_of(card, "--card"),
    )
    session, scale = read_session(snapshot, read, device=device), 1.0 if batch_scale is None else batch_scale
    with progress_bar(shown=True) as progress:
        trials = session.what_if(request, batch_scale=scale, progress=progress)
    found = []
    for analysis, tried in zip(session.devices, trials, strict=True):
        number = analysis.device.device
        unknown = "pinned host memory has an allocator of its own, which is not modelled"
        values = {"device": number, "kind": device_kind(number), "unknown": unknown}
        lines = what_if_lines(tried) if tried else [f"{device_name(number)}  {unknown}"]
        found.append((tried.to_json() if tried else values, lines))
    return answer_by_device(session, found)
