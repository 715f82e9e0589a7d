"""Measure the cases of one package: python worker.py PACKAGE OUTPUT compute|shapes; a JSON line per result.

Cases that OUTPUT has are not measured again. Each case is announced before, so that whoever reads
OUTPUT knows which one has ended the process.
"""

import gc
import importlib
import json
import resource
import sys
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scripts.measured.optimizer_cases import CASES, PACKAGES, Case, Package
from snapconv.simulation import SimulationOptions, simulated

DTYPES = ("float32", "bfloat16")
# An optimizer that needs more on the CPU is measured by its shapes alone.
MOST_MEMORY = 16 << 30


def main() -> None:
    """Measure all cases of the package that are not in the output."""
    name, output, how = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    package = next(package for package in PACKAGES if package.name == name)
    lines = output.read_text("utf-8").splitlines() if output.exists() else []
    before = [json.loads(line) for line in lines]
    with (
        output.open("a", encoding="utf-8") as file,
        simulated(SimulationOptions(compute=how == "compute")),
    ):
        for result in results(package, before, has_limit=how == "compute"):
            file.write(json.dumps(result) + "\n")
            file.flush()


def results(
    package: Package, before: list[dict[str, Any]], *, has_limit: bool
) -> Iterator[dict[str, Any]]:
    """Return each case when it starts, and what was measured of it."""
    ended = {tuple(result["key"]) for result in before if "start" not in result}
    try:
        if package.has_torchvision:
            declare_torchvision()
        module = importlib.import_module(package.module)
    except Exception as error:  # noqa: BLE001  # whatever other people's code raises
        yield {
            "key": [package.name, "", "", ""],
            "failed": f"import: {type(error).__name__}: {error}",
        }
        return
    from scripts.measured import measuring

    gc.collect()
    gc.freeze()
    for case in cases_of(package, module):
        for dtype in DTYPES:
            key = (package.name, case.name, case.options, dtype)
            if key in ended:
                continue
            yield {"key": key, "start": True}
            try:
                measurement = measuring.measured(case, dtype, has_limit=has_limit)
            except measuring.TimedOut:
                yield {"key": key, "slow": True}
            except measuring.NotMeasured as error:
                yield {"key": key, "failed": str(error)}
            else:
                yield {"key": key, "measured": asdict(measurement), "has_values": has_limit}
    yield {"key": [package.name, "", "", ""], "ended": True}


def declare_torchvision() -> None:
    """Declare what torchvision misses where it is of another build than torch, so that it imports."""
    import torch

    names = (
        "nms",
        "qnms",
        "roi_align",
        "_roi_align_backward",
        "qroi_align",
        "roi_pool",
        "_roi_pool_backward",
    )
    others = ("ps_roi_align", "_ps_roi_align_backward", "ps_roi_pool", "_ps_roi_pool_backward")
    try:
        importlib.import_module("torchvision.extension")._assert_has_ops()
    except (ImportError, RuntimeError):
        for name in (*names, *others, "deform_conv2d", "_deform_conv2d_backward"):
            torch.library.define(f"torchvision::{name}", "(Tensor first) -> Tensor")


def cases_of(package: Package, module: Any) -> Iterator[Case]:
    """Return the package's rows, and a case of every optimizer that has none without options."""
    import torch

    rows = [case for case in CASES if case.package == package.name]
    yield from rows
    named = {case.name for case in rows if not case.options or case.replaces_default}
    known = set()
    for name, value in sorted(vars(module).items()):
        is_optimizer = isinstance(value, type) and issubclass(value, torch.optim.Optimizer)
        if not is_optimizer or value is torch.optim.Optimizer or value in known:
            continue
        known.add(value)
        if name not in package.left_out and name not in named:
            yield Case(package.name, package.module, name)


if __name__ == "__main__":
    main()
