"""The categories of memory -> lines of text, one each."""

from collections.abc import Iterator

from snapconv.answers.peak import CategoryTotal
from snapconv.units import format_bytes, format_share


def category_lines(categories: tuple[CategoryTotal, ...], whole: int) -> Iterator[str]:
    """The categories that have memory, largest first, with their shares."""
    nonzero = [total for total in categories if total.n_allocations]
    for total in sorted(nonzero, key=lambda total: -total.block_bytes):
        size, share = format_bytes(total.block_bytes, like=whole), format_share(total.block_bytes, whole)
        allocations = "allocation" if total.n_allocations == 1 else "allocations"
        models = f": {total.n_models} models of equal sizes" if total.n_models else ""
        yield f"  {total.category:<16}{size:>13}{share:>9}{total.n_allocations:>9} {allocations}{models}"
