"""torch.cuda.MemPool: allocations within are in segments of the pool, which serve nothing else."""

import gc
import threading

import pytest

torch = pytest.importorskip("torch")

from snapconv.simulation import SimulationOptions, simulated  # noqa: E402

pytestmark = pytest.mark.smoke("no-compute")
MIB = 1 << 20
cuda = torch.cuda


@pytest.fixture(autouse=True, params=[True, False], ids=["compute", "no-compute"])
def _simulation(request):
    with simulated(SimulationOptions(compute=request.param, n_devices=2)):
        yield


def ones(n_mib, **options):
    return torch.ones(n_mib * MIB, dtype=torch.uint8, device="cuda", **options)


def pools():
    """The pool of each segment, with its size."""
    return sorted((raw["segment_pool_id"], raw["total_size"]) for raw in cuda.memory_snapshot())


def pool_of(tensor):
    """The pool of the segment that a tensor lies in."""
    for raw in cuda.memory_snapshot():
        if raw["address"] <= tensor.data_ptr() < raw["address"] + raw["total_size"]:
            return raw["segment_pool_id"]
    raise LookupError


def test_what_is_allocated_within_is_in_the_pool_alone():
    """Pools of a program are (0, 1), (0, 2), …; their free memory serves no other pool."""
    free_outside = ones(20)
    del free_outside
    first, second = cuda.MemPool(), cuda.MemPool()
    assert (first.id, second.id) == ((0, 1), (0, 2))
    with cuda.use_mem_pool(first):
        x = ones(20)
        with cuda.use_mem_pool(second, device=1):
            y = torch.ones(8, device="cuda:1")
    z = ones(20)

    assert [pool_of(tensor) for tensor in (x, y, z)] == [first.id, second.id, (0, 0)]
    assert pools() == [((0, 0), 20 * MIB), (first.id, 20 * MIB), (second.id, 2 * MIB)]
    assert [raw["total_size"] for raw in first.snapshot()] == [20 * MIB]
    assert cuda.memory_snapshot(first.id) == first.snapshot()


def test_a_freed_block_serves_the_pool_again_until_the_pool_is_deleted():
    pool = cuda.MemPool()
    with cuda.use_mem_pool(pool):
        x = ones(20)
    address = x.data_ptr()
    del x
    cuda.empty_cache()
    assert pools() == [(pool.id, 20 * MIB)]
    with cuda.use_mem_pool(pool):
        x = ones(20)
    assert x.data_ptr() == address

    del x, pool
    gc.collect()
    assert pools() == []


def test_a_pool_that_is_deleted_before_its_tensors_is_emptied_as_the_cache_is():
    pool = cuda.MemPool()
    with cuda.use_mem_pool(pool):
        assert pool.use_count() == 2
        x = ones(20)
    assert pool.use_count() == 1
    del pool
    gc.collect()
    assert pools() == [((0, 1), 20 * MIB)]
    del x
    assert pools() == [((0, 1), 20 * MIB)]
    cuda.empty_cache()
    assert pools() == []


def test_other_threads_and_backward_allocate_outside():
    """Backward of a GPU runs in a thread of autograd's."""
    pool = cuda.MemPool()
    others = []
    weight = torch.ones(1024, 1024, device="cuda", requires_grad=True)
    with cuda.use_mem_pool(pool):
        thread = threading.Thread(target=lambda: others.append(ones(2)))
        thread.start()
        thread.join()
        loss = (weight * 2).sum()
        loss.backward()
    assert pool_of(loss) == pool.id
    assert pool_of(others[0]) == pool_of(weight.grad) == (0, 0)


def test_a_pool_is_used_once_at_a_time():
    """The error is torch's (beginAllocateToPool in CUDACachingAllocator.cpp)."""
    pool = cuda.MemPool()
    with cuda.use_mem_pool(pool):
        with (
            pytest.raises(RuntimeError, match="already recording to mempool_id"),
            cuda.use_mem_pool(pool),
        ):
            pass
        assert pool_of(ones(2)) == pool.id
    assert pool_of(ones(2)) == (0, 0)


def test_events_have_the_pool():
    cuda.memory._record_memory_history()
    pool = cuda.MemPool()
    with cuda.use_mem_pool(pool):
        x = ones(20)
    del x, pool
    gc.collect()
    [trace, _] = cuda.memory._snapshot()["device_traces"]
    names = ["segment_alloc", "alloc", "free_requested", "free_completed", "segment_free"]
    events = [(event["action"], event["pool_id"]) for event in trace]
    assert [event for event in events if event[0] != "snapshot"] == [
        (name, (0, 1)) for name in names
    ]


def test_an_argument_without_a_model_is_refused():
    with pytest.raises(NotImplementedError, match=r"argument allocator of torch\.cuda\.MemPool"):
        cuda.MemPool(object())
