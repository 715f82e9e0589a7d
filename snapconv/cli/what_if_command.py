"""``snapconv what-if``: the same run under other settings of the allocator, or on another card."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snapconv.cli.answers import Answer, answer_by_device, question, read_session
from snapconv.cli.arguments import (
    OneDevice,
    PathOptions,
    Snapshot,
    no_pipe,
    parsed,
    size_of,
)
from snapconv.cli.terminal import progress_bar

if TYPE_CHECKING:
    from snapconv.answers.what_if.setting_trials import Request

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
        help="A card's whole memory, such as 40GiB: what lies outside of torch is subtracted.",
    ),
]
_Outside = Annotated[
    str | None,
    typer.Option(
        "--outside",
        metavar="SIZE",
        help="With --card: what the CUDA context, libraries, NCCL and other processes take. Default: as a "
        "capture in which a request failed shows it.",
    ),
]
_BatchScale = Annotated[
    float | None,
    typer.Option(
        "--batch-scale",
        metavar="X",
        help="Estimate X times the batch size: what grows with it shows in --other-batch, or follows from "
        "the categories.",
    ),
]
_OtherBatch = Annotated[
    Path | None,
    typer.Option(
        "--other-batch",
        metavar="SNAPSHOT",
        help="With --batch-scale: the same program with another batch size.",
        callback=no_pipe,
        readable=False,
    ),
]
_OtherScale = Annotated[
    float | None,
    typer.Option(
        "--other-scale",
        metavar="X",
        help="The batch size of --other-batch in those of SNAPSHOT. Default: as its allocations show it.",
    ),
]
_Search = Annotated[
    bool, typer.Option("--search", help="Try the sensible settings, and rank them by what they reserve.")
]
_Thorough = Annotated[
    bool,
    typer.Option(
        "--thorough", help="With --search: replay the whole trace, and not 200000 events around its peak."
    ),
]


@question
def what_if(
    snapshot: Snapshot,
    *,
    setting: _Settings = None,
    search: _Search = False,
    thorough: _Thorough = False,
    capacity: _Capacity = None,
    card: _Card = None,
    outside: _Outside = None,
    batch_scale: _BatchScale = None,
    other_batch: _OtherBatch = None,
    other_scale: _OtherScale = None,
    device: OneDevice = None,
    read: PathOptions,
) -> Answer:
    """Try other allocator settings, or another card, by a replay.

    The trace is replayed through a model of torch's allocator. For each: the peaks of reserved and allocated
    memory, and where it runs out.
    """
    from snapconv.answers.what_if.setting_trials import NotModelled
    from snapconv.writers.text.what_if import what_if_lines

    request = _request(
        setting or (), _memory(capacity, card, outside), search=search, batch_scale=batch_scale
    )
    if thorough and not search:
        raise typer.BadParameter("it needs --search", param_hint="--thorough")
    request = replace(request, is_thorough=thorough)
    _check_batch(batch_scale, other_batch, other_scale)
    session = read_session(snapshot, read, device=device)
    other = None if other_batch is None else read_session(other_batch, read, device=device)
    with progress_bar(shown=True) as progress:
        trials = session.what_if(
            request,
            batch_scale=1.0 if batch_scale is None else batch_scale,
            other_batch=other,
            other_scale=other_scale,
            progress=progress,
        )
    devices = [one.device.device for one in session.devices]
    found = [each or NotModelled(device) for device, each in zip(devices, trials, strict=True)]
    return answer_by_device(session, ((one.to_json(), what_if_lines(one)) for one in found))


def _request(
    settings: Sequence[str],
    memory: tuple[int | None, int | None, int | None],
    *,
    search: bool,
    batch_scale: float | None,
) -> "Request":
    from snapconv.answers.what_if.setting_trials import Request, read_setting

    if not (settings or search or any(memory) or batch_scale is not None):
        raise typer.BadParameter(
            "say what to try: --setting, --search, --capacity, --card or --batch-scale", param_hint="what-if"
        )
    checked = tuple(parsed(text, read_setting, "--setting") for text in settings)
    return Request(checked, search, *memory)


def _memory(
    capacity: str | None, card: str | None, outside: str | None
) -> tuple[int | None, int | None, int | None]:
    """Read the capacity, the card, and the memory outside of torch; None where that is not given."""
    if capacity is not None and card is not None:
        raise typer.BadParameter("give --capacity or --card, not both", param_hint="--card")
    if outside is not None and card is None:
        raise typer.BadParameter("it needs --card", param_hint="--outside")
    total, taken = size_of(card, "--card"), size_of(outside, "--outside")
    if total is not None and taken is not None and taken >= total:
        raise typer.BadParameter("it leaves nothing of the card", param_hint="--outside")
    return size_of(capacity, "--capacity"), total, taken


def _check_batch(scale: float | None, other: Path | None, other_scale: float | None) -> None:
    if scale is not None and not 0 < scale < _MOST_SCALE:
        raise typer.BadParameter(
            f"expected more than 0 and less than {_MOST_SCALE}", param_hint="--batch-scale"
        )
    if other is not None and scale is None:
        raise typer.BadParameter("it needs --batch-scale", param_hint="--other-batch")
    if other_scale is not None and (other is None or not 0 < other_scale < _MOST_SCALE or other_scale == 1):
        raise typer.BadParameter("it needs --other-batch, and is neither 0 nor 1", param_hint="--other-scale")
