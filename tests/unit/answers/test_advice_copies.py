"""Advice on copies: of weights, of batches before their step, of gradients and of gathered shards."""

from tests.builders import MIB, frame
from tests.unit.answers.test_advice import ENGINE, STEP, TORCH, Loop, at, layer

WEIGHTS = [MIB * (1 + i % 4) for i in range(10)]
PLACED = [frame("_apply", f"{TORCH}/nn/modules/module.py"), *at(5)]
LOADED = [frame("restore_location", f"{TORCH}/serialization.py"), *at(8)]
CLONED = [frame("at::_ops::clone::call(at::Tensor const&)", "??"), *at(41)]
COPIED = [frame("at::_ops::_to_copy::call(at::Tensor const&)", "??"), *at(9)]


def place(loop):
    for size in WEIGHTS:
        loop.alloc(size, PLACED)


def train_step(loop, *, size=4 * MIB, gradients=WEIGHTS):
    saved = [loop.alloc(size, at(20, *layer(i))) for i in range(2)]
    made = [loop.alloc(n_bytes, ENGINE) for n_bytes in gradients]
    for addr in saved:
        loop.trace.free(addr, frames=ENGINE)
    loop.trace.alloc(512, frames=STEP).free(frames=STEP)
    for addr in made:
        loop.trace.free(addr, frames=[frame("zero_grad", f"{TORCH}/optim/optimizer.py"), *at(31)])


def validate(loop):
    for i in range(2):
        addr = loop.alloc(4 * MIB, at(35, *layer(i)))
        loop.trace.free(addr, frames=at(35, *layer(i)))


def states(loop):
    """States as the first step of Adam makes them."""
    for size in WEIGHTS * 2:
        loop.alloc(size, [frame("_init_group", f"{TORCH}/optim/adam.py"), *at(30)])


def test_a_batch_that_saves_next_to_nothing_is_not_offered(advice_on):
    loop = Loop()
    place(loop)
    loop.assign("out", 20, MIB // 16)
    assert advice_on(loop, goal_bytes=MIB).findings == ()


def loaded():
    """Training beside the weights that torch.load left."""
    loop = Loop()
    place(loop)
    for size in WEIGHTS:
        loop.alloc(size, LOADED)
    train_step(loop)
    states(loop)
    train_step(loop)
    return loop


def test_a_loaded_copy_of_the_weights_is_a_fault(advice_on):
    (fault,) = advice_on(loaded()).faults
    assert (fault.kind, fault.where.place, fault.held_bytes) == (
        "weights-copied",
        "train.py:8",
        sum(WEIGHTS),
    )
    assert 'map_location="cpu"' in fault.how[0]


def test_loaded_states_that_the_optimizer_uses_are_no_fault(advice_on):
    """A file has two of each weight's size, and no step makes any: they are states of Adam."""
    loop = Loop()
    place(loop)
    for size in WEIGHTS * 2:
        loop.alloc(size, LOADED)
    for _ in range(2):
        train_step(loop)
    assert "weights-copied" not in {fault.kind for fault in advice_on(loop).faults}


def test_clones_of_all_weights_after_a_validation_are_a_fault(advice_on):
    loop = Loop()
    place(loop)
    for _ in range(2):
        train_step(loop)
        validate(loop)
        for size in WEIGHTS:
            loop.alloc(size, CLONED)
    train_step(loop)
    (fault,) = (one for one in advice_on(loop).faults if one.kind == "weights-copied")
    assert (fault.where.place, fault.held_bytes, fault.is_certain) == (
        "train.py:41",
        2 * sum(WEIGHTS),
        False,
    )


def test_an_average_that_begins_before_the_first_step_is_no_fault(advice_on):
    loop = Loop()
    place(loop)
    validate(loop)
    for size in WEIGHTS:
        loop.alloc(size, CLONED)
    for _ in range(3):
        train_step(loop)
    assert advice_on(loop).faults == ()


def test_batches_that_wait_for_their_steps_are_a_fault(advice_on):
    loop = Loop()
    place(loop)
    batches = [loop.alloc(6 * MIB, COPIED) for _ in range(6)]
    for addr in batches:
        train_step(loop)
        loop.trace.free(addr, frames=at(32))
    (fault,) = advice_on(loop).faults
    assert (fault.kind, fault.where.place, fault.held_bytes) == (
        "batches-early",
        "train.py:9",
        30 * MIB,
    )
    assert "puts 6 batches" in fault.what


def test_three_batches_ahead_are_a_queue_and_no_fault(advice_on):
    loop = Loop()
    place(loop)
    batches = [loop.alloc(6 * MIB, COPIED) for _ in range(3)]
    for addr in batches:
        train_step(loop)
        loop.trace.free(addr, frames=at(32))
    assert advice_on(loop).faults == ()


def test_pictures_that_one_step_reads_together_are_no_fault(advice_on):
    loop = Loop()
    place(loop)
    for _ in range(3):
        pictures = [loop.alloc(6 * MIB, COPIED) for _ in range(10)]
        train_step(loop)
        for addr in pictures:
            loop.trace.free(addr, frames=at(32))
    assert advice_on(loop).faults == ()


def test_tensors_that_a_line_computes_for_later_are_no_batches(advice_on):
    loop = Loop()
    place(loop)
    made = [frame("at::_ops::contiguous::call(at::Tensor const&)", "??"), *at(9)]
    kept = [loop.alloc(6 * MIB, made) for _ in range(10)]
    for addr in kept:
        train_step(loop)
        loop.trace.free(addr, frames=at(32))
    assert "batches-early" not in {fault.kind for fault in advice_on(loop).faults}


def bucketed():
    """Training with buckets beside the gradients."""
    loop = Loop()
    place(loop)
    ddp = frame("_ddp_init_helper", f"{TORCH}/nn/parallel/distributed.py")
    loop.alloc(sum(WEIGHTS), [ddp, *at(6)])
    for _ in range(2):
        train_step(loop, size=MIB)
    return loop


def test_gradients_beside_the_buckets_of_data_parallel_training_have_a_price(advice_on):
    advice = advice_on(bucketed(), trades=True)
    assert advice.faults == ()
    (trade,) = (one for one in advice.findings if one.kind == "buckets")
    assert "gradient_as_bucket_view=True" in trade.how[0]
    # Each stays until it is copied, the largest too.
    assert advice.peak.n_bytes - trade.peak.n_bytes == sum(WEIGHTS) - max(WEIGHTS)


def gathered():
    """Steps of sharded training in which each of four modules gathers 8 MiB."""
    loop = Loop()
    gather = frame(
        "init_all_gather_outputs", f"{TORCH}/distributed/fsdp/_fully_shard/_fsdp_param.py"
    )
    for _ in range(2):
        shards, saved = [], []
        for i in range(5):
            shards.append(loop.alloc(8 * MIB if i else MIB, at(20, gather, *layer(i))))
            saved.append(loop.alloc(2 * MIB, at(20, *layer(i))))
        for weights, activation in reversed(list(zip(shards, saved, strict=True))):
            gradient = loop.alloc(2 * MIB, ENGINE)
            for addr in (activation, weights, gradient):
                loop.trace.free(addr, frames=ENGINE)
    return loop


def test_weights_that_stay_gathered_for_backward_have_a_price(advice_on):
    """Resharded, one of the modules has its weights at a time."""
    advice = advice_on(gathered(), trades=True)
    (trade,) = (one for one in advice.findings if one.kind == "unsharded")
    assert "5 modules" in trade.what
    assert advice.peak.n_bytes == (1 + 4 * 8 + 5 * 2 + 2) * MIB
    assert trade.peak.n_bytes == (1 + 8 + 5 * 2 + 2) * MIB


def saving():
    """Steps whose layers save activations for backward."""
    loop = Loop()
    for _ in range(2):
        saved = [loop.alloc(4 * MIB, at(20, *layer(i))) for i in range(8)]
        for addr in reversed(saved):
            loop.trace.free(addr, frames=ENGINE)
    return loop


def test_activations_on_the_cpu_leave_the_gpu_until_their_backward(advice_on):
    (trade,) = (
        one for one in advice_on(saving(), trades=True).findings if one.kind == "offloading"
    )
    assert trade.peak.n_bytes <= 12 * MIB
    assert "over PCIe" in trade.costs
