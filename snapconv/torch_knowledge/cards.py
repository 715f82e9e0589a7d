"""Cards by name: the memory that CUDA or ROCm reports of each, which is less than its name says.

Each size was printed on such a card ("GPU 0 has a total capacity of …"), and is from the public
report named beside it. Cards of one name differ by some MiB with the driver and with ECC: the
smallest size that was found stands here, so that what fits here fits there.
"""

import re
from dataclasses import dataclass

_GIB = 1 << 30
# A CUDA context and libraries on devices of 2016 to 2026: 0.3 to 1.5 GiB.
USUAL_OUTSIDE_BYTES = _GIB
# One communicator of NCCL, measured on four A100 with NVLink: 0.5 to 0.7 GiB (NVIDIA/nccl issue
# 964); of RCCL about 1 GiB (Lumi-supercomputer/LUMI-AI-Guide issue 111). Each further one takes
# about as much.
USUAL_NCCL_BYTES = _GIB
_MEMORY = re.compile(r"-\d+GB")


@dataclass(frozen=True, slots=True)
class Card:
    """A card's name, its whole memory as CUDA or ROCm reports it, and the public report of that."""

    name: str
    total_gib: float
    source: str

    @property
    def total_bytes(self) -> int:
        """The whole memory in bytes."""
        return int(self.total_gib * _GIB)


_ROWS = (
    Card("T4", 14.75, "hpcaitech/Open-Sora issue 697"),
    Card("V100-32GB", 31.75, "hiyouga/LlamaFactory issue 182"),
    Card("P40", 22.38, "LinkSoul-AI/Chinese-Llama-2-7b issue 56"),
    Card("A10", 21.99, "zai-org/CogVLM issue 236"),
    Card("A30", 23.53, "google/RB-Modulation issue 5"),
    Card("A100-40GB", 39.50, "TianheWu/CoSeR issue 10"),
    Card("A100-80GB", 79.25, "levihsu/OOTDiffusion issue 235"),
    Card("L40", 44.40, "QwenLM/Qwen3-VL issue 2097"),
    Card("L40S", 44.42, "stepfun-ai/Step-Video-T2V issue 8"),
    Card("H100", 79.11, "vllm-project/vllm issue 27508, the 80 GB card"),
    Card("H200", 139.80, "logs of eight-card servers in several public repositories"),
    Card("B200", 178.35, "pytorch/ao pull request 4002"),
    Card("MI300X", 191.98, "ROCm/legacy-rocm-build issue 4414 (201,310,208 KB)"),
    Card("RTX-3070", 7.78, "akshitac8/OW-DETR issue 46"),
    Card("RTX-3090", 23.70, "GaoLii/DSP issue 10"),
    Card("RTX-4060", 7.75, "ESRSchao/EdgeRegNet issue 2"),
    Card("RTX-4090", 23.61, "pinokiofactory/flux-webui issue 11"),
    Card("RTX-5090", 31.37, "Wan-Video/Wan2.1 issue 465"),
    Card("RTX-A4000", 15.61, "DengKaiCQ/VGGT-Long issue 6"),
    Card("RTX-6000-Ada", 44.43, "DINGYANB/MTVCrafter issue 21"),
)
# Words before a card's name that tell nothing more.
_MAKERS = ("NVIDIA", "AMD", "GEFORCE", "TESLA", "INSTINCT")


def named_cards() -> tuple[str, ...]:
    """Return the names of all cards."""
    return tuple(row.name for row in _ROWS)


def find_card(text: str) -> Card | None:
    """Find a card by its name as people write it: ``H100``, ``rtx 4090``, ``NVIDIA A100-80GB``.

    Returns None for any other text. Raises ValueError for a name of several cards, such as A100.
    """
    rows = [row for row in _ROWS if _plain(text) in _short_names(row.name)]
    if len(rows) > 1:
        raise ValueError(
            f"{text} has several sizes: give {' or '.join(row.name for row in rows)}"
        )
    return rows[0] if rows else None


def _short_names(name: str) -> tuple[str, ...]:
    """Return what people call a card: by its name, without RTX, or without its memory."""
    plain = _plain(name)
    return plain, plain.removeprefix("RTX"), _plain(_MEMORY.sub("", name))


def _plain(text: str) -> str:
    words = text.upper().replace("-", " ").replace("_", " ").split()
    return "".join(word for word in words if word not in _MAKERS)
