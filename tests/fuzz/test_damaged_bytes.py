"""Damaged files: nothing but SnapconvError escapes, nothing is imported, nothing takes long."""

import gzip
import pickletools
import random
import sys
import time
from collections import Counter

import pytest

from snapconv.errors import UnsafePickleError
from snapconv.snapshot.load import load_snapshot
from tests.builders import write_anew
from tests.drawn_inputs import SEED, drawn
from tests.fuzz.corpus import CONTAINERS, PICKLED, PLAIN, html, verdict, zipped

N_CASES = drawn(200)
MAX_SECONDS = 5
# Counts and lengths at which something changes sign or width, little-endian as in pickles.
EXTREMES = [
    n.to_bytes(width, "little")
    for width in (1, 2, 4, 8)
    for n in (0, (1 << 8 * width - 1) - 1, (1 << 8 * width) - 1)
]
OPCODES = b"()]}.012NKMJX\x8c\x85\x86\x87\x88\x8a\x8b\x8f\x90\x94\x95hjqrstueadlcRbo\x80\x81\x93"


def mutate(content: bytes, rng: random.Random) -> bytes:
    """Damage a file in one to four places."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(data) + 1)
        span = slice(at, at + rng.choice((1, 2, 4, 8, 50, 400)))
        match rng.randrange(9):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(data):
                data[at] = rng.choice(OPCODES)
            case 2:
                data[at:at] = rng.choice(OPCODES).to_bytes(1, "little") * rng.choice((1, 2, 1000))
            case 3:
                data[at:at] = rng.randbytes(rng.choice((1, 4, 30)))
            case 4:
                del data[span]
            case 5:
                data[at:at] = data[span] * rng.choice((1, 3))
            case 6:
                extreme = rng.choice(EXTREMES)
                data[at : at + len(extreme)] = extreme
            case 7:
                other = rng.choice(list(PLAIN.values()))
                data[at:] = other[rng.randrange(len(other)) :]
            case 8:
                del data[at:]
    return bytes(data)


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_damaged_file_is_read_or_refused_in_our_own_words(name, tmp_path):
    rng = random.Random(name + SEED)
    path = tmp_path / "x"
    assert verdict(path, CONTAINERS[name]) == "read"
    assert (
        verdict(path, PICKLED[:-1]) == "TruncatedFileError"
    )  # loads what reads again what the core refuses
    modules, verdicts = set(sys.modules), Counter()
    for number in range(N_CASES):
        content = mutate(CONTAINERS[name], rng)
        # What is packed is damaged before it is packed, too: else hardly anything gets beyond the
        # checksum.
        if name == "gzip" and number % 2:
            content = gzip.compress(mutate(PLAIN["protocol-4"], rng), 1)
        elif name == "zip" and number % 4:
            content = zipped(mutate(PLAIN["protocol-4"], rng))
        elif name == "html" and number % 2:
            content = html(mutate(PLAIN["protocol-4"], rng))
        started = time.process_time()
        verdicts[verdict(path, content)] += 1
        assert time.process_time() - started < MAX_SECONDS, f"case {number}"
    assert set(sys.modules) == modules
    # The damage is worth the name, and not so heavy that nothing is read any more.
    assert verdicts["read"]
    assert verdicts.total() - verdicts["read"] > N_CASES // 10


def test_a_file_cut_at_any_byte_is_refused(tmp_path):
    path = tmp_path / "x"
    for name in ("protocol-4", "cpp-writer", "json"):
        content = PLAIN[name]
        for n_bytes in range(0, len(content), max(len(content) // 80, 1)):
            assert verdict(path, content[:n_bytes]) == "TruncatedFileError"


# Ways to ask a pickle for a module that leaves a mark when it is imported.
WAYS = (
    b"csnapconv_canary\nx\n",
    b"(isnapconv_canary\nx\n",
    b"\x8c\x0fsnapconv_canary\x8c\x01x\x93",
    b"\x8c\x0fsnapconv_canary\x94\x8c\x01x\x94\x30\x30h\x00h\x01\x93",
    b"csnapconv_canary\nx\n(tR",
    b"cbuiltins\n__import__\n\x8c\x0fsnapconv_canary\x85R",
    b"cbuiltins\nexec\n\x8c\x16import snapconv_canary\x85R",
)


class TestCanary:
    @pytest.fixture
    def mark(self, tmp_path, monkeypatch):
        mark = tmp_path / "imported"
        (tmp_path / "snapconv_canary.py").write_text(
            f"open({str(mark)!r}, 'w').close()\n", encoding="utf-8"
        )
        monkeypatch.syspath_prepend(tmp_path)
        yield mark
        assert not mark.exists()
        assert "snapconv_canary" not in sys.modules

    @pytest.mark.parametrize("way", WAYS, ids=lambda way: repr(way)[:30])
    @pytest.mark.parametrize(
        "name", ["protocol-2", "protocol-4", "protocol-5", "cpp-writer", "torch-2.0"]
    )
    def test_code_at_any_place_of_a_snapshot_is_refused_and_not_run(
        self, mark, tmp_path, name, way
    ):
        content = PLAIN[name]
        places = [position for _, _, position in pickletools.genops(content)][1:]
        path = tmp_path / "x.pickle"
        for place in places[:: max(len(places) // 25, 1)] + places[-1:]:
            write_anew(path, content[:place] + way + content[place:])
            with pytest.raises(
                UnsafePickleError, match=f"at byte {place + way.index(first_opcode(way))}"
            ):
                load_snapshot(path)

    def test_code_in_a_damaged_file_is_never_run(self, mark, tmp_path):
        rng = random.Random(f"1{SEED}")
        path = tmp_path / "x.pickle"
        for _ in range(N_CASES):
            data = bytearray(mutate(PLAIN["protocol-4"], rng))
            for _ in range(3):
                at = rng.randrange(len(data) + 1)
                data[at:at] = rng.choice(WAYS)
            verdict(path, bytes(data))


def first_opcode(way: bytes) -> bytes:
    """The refused opcode of one way."""
    return next(opcode for opcode in (b"csnap", b"isnap", b"cbuiltins", b"\x93") if opcode in way)
