"""Which free segments go back to the device where its memory does not suffice: the choice, not the deed.

The rules of garbage_collect_cached_blocks, release_available_cached_blocks and release_cached_blocks in
c10/cuda/CUDACachingAllocator.cpp.
"""

from collections.abc import Iterable

from snapconv.allocator.blocks import Block, BlockPool


def release_order(pools: Iterable[BlockPool]) -> list[BlockPool]:
    """Order pools as torch empties them: large first in the default pool, small first in private ones."""
    return sorted(pools, key=lambda pool: (pool.is_private, pool.id, pool.is_small != pool.is_private))


def old_segments(pool: BlockPool, wanted: int) -> list[Block]:
    """Choose the oldest unsplit free segments of a pool until they have the bytes that are wanted.

    A block's age is the number of searches in its pool since it was freed; those of average age and more
    go at once.
    """
    whole = [block for block in pool.free_blocks() if block.is_whole_segment] if wanted > 0 else []
    total_age = sum(pool.n_searches - block.gc_base for block in whole)
    chosen: list[Block] = []
    released, n_left = 0, len(whole)
    while released < wanted and n_left:
        average = total_age / n_left
        kept = []
        for block in whole:
            age = pool.n_searches - block.gc_base
            if block.reservation is not None or age < average:
                kept.append(block)
                continue
            released += block.size
            total_age -= age
            n_left -= 1
            chosen.append(block)
        if len(kept) == len(whole):
            break
        whole = kept
    return chosen


def oversize_segments(pool: BlockPool, stream: int, *, wanted: int, limit: int) -> list[Block]:
    """Choose oversize blocks of a stream: the smallest that is enough, or the largest until they are.

    ``limit`` is max_split_size. What is chosen may have less than is wanted.
    """
    large_enough = pool.at_least(stream, wanted)
    if large_enough and large_enough[0].reservation is None:
        candidates = large_enough[:1]
    else:
        candidates = [block for block in pool.below(stream, wanted) if block.size >= limit]
    chosen: list[Block] = []
    released = 0
    # torch counts on oversize blocks being whole segments; expandable ones it skips since 2.5.
    for block in (block for block in candidates if block.reservation is None and block.is_whole_segment):
        if released >= wanted:
            break
        released += block.size
        chosen.append(block)
    return chosen
