"""Cards by name: the memory that CUDA or ROCm reports of each, which is less than its name says.

Each size was printed on such a card ("GPU 0 has a total capacity of …"), and is from the public report named
beside it. Cards of one name differ by some MiB with the driver and with ECC: the smallest size that was found
stands here, so that what fits here fits there.
"""

from dataclasses import dataclass
from typing import NamedTuple

_GIB = 1 << 30


class _Row(NamedTuple):
    name: str
    total_gib: float
    source: str


_ROWS = (
    _Row("T4", 14.75, "hpcaitech/Open-Sora issue 697"),
    _Row("V100-32GB", 31.75, "hiyouga/LlamaFactory issue 182"),
    _Row("P40", 22.38, "LinkSoul-AI/Chinese-Llama-2-7b issue 56"),
    _Row("A10", 21.99, "zai-org/CogVLM issue 236"),
    _Row("A30", 23.53, "google/RB-Modulation issue 5"),
    _Row("A100-40GB", 39.50, "TianheWu/CoSeR issue 10"),
    _Row("A100-80GB", 79.25, "levihsu/OOTDiffusion issue 235"),
    _Row("L40", 44.40, "QwenLM/Qwen3-VL issue 2097"),
    _Row("L40S", 44.42, "stepfun-ai/Step-Video-T2V issue 8"),
    _Row("H100", 79.11, "vllm-project/vllm issue 27508, the 80 GB card"),
    _Row("H200", 139.80, "logs of eight-card servers in several public repositories"),
    _Row("B200", 178.35, "pytorch/ao pull request 4002"),
    _Row("MI300X", 191.98, "ROCm/legacy-rocm-build issue 4414 (201,310,208 KB)"),
    _Row("RTX-3070", 7.78, "akshitac8/OW-DETR issue 46"),
    _Row("RTX-3090", 23.70, "GaoLii/DSP issue 10"),
    _Row("RTX-4060", 7.75, "ESRSchao/EdgeRegNet issue 2"),
    _Row("RTX-4090", 23.61, "pinokiofactory/flux-webui issue 11"),
    _Row("RTX-5090", 31.37, "Wan-Video/Wan2.1 issue 465"),
    _Row("RTX-A4000", 15.61, "DengKaiCQ/VGGT-Long issue 6"),
    _Row("RTX-6000-Ada", 44.43, "DINGYANB/MTVCrafter issue 21"),
)
# Words before a card's name that tell nothing more.
_MAKERS = ("NVIDIA", "AMD", "GEFORCE", "TESLA", "INSTINCT")


@dataclass(frozen=True, slots=True)
class Card:
    """A card's name, and its whole memory in bytes as CUDA or ROCm reports it."""

    name: str
    total_bytes: int


def named_cards() -> tuple[str, ...]:
    """Return the names of all cards."""
    return tuple(row.name for row in _ROWS)


def find_card(text: str) -> Card | None:
    """Find a card by its name as people write it: ``H100``, ``rtx 4090``, ``NVIDIA A100-80GB``.

    Returns None for any other text. Raises ValueError for a name of several cards, such as A100.
    """
    name = _plain(text)
    if not name:
        return None
    rows = [row for row in _ROWS if _plain(row.name) == name]
    rows = rows or [row for row in _ROWS if _plain(row.name).removeprefix("RTX") == name]
    if not rows:
        rows = [row for row in _ROWS if _plain(row.name).startswith(name) and row.name.endswith("GB")]
    if len(rows) > 1:
        raise ValueError(f"{text} has several sizes: give {' or '.join(row.name for row in rows)}")
    return Card(rows[0].name, int(rows[0].total_gib * _GIB)) if rows else None


def _plain(text: str) -> str:
    words = text.upper().replace("-", " ").replace("_", " ").split()
    return "".join(word for word in words if word not in _MAKERS)
