"""What people train with, unmodified: each program's capture against what the program counts of itself."""

# Notes that say what a recording without a GPU is, and nothing about a fault.
EXPECTED_NOTES = {"simulated", "simulated-times", "no-timing", "ended-early"}
# The part of the phases that the timed operations must account for.
LEAST_COVERAGE = 0.6
MOST_UNKNOWN = 0.005


def test_a_recorded_program_ends_as_it_would_alone(recorded):
    assert "Traceback" not in recorded.run.err, recorded.run.said


def test_no_note_is_about_a_fault(recorded):
    notes = {note["slug"] for note in recorded.memory["notes"]}
    assert notes - EXPECTED_NOTES == set()


def test_every_parameter_is_a_weight_of_its_own_bytes(recorded, counted):
    (row,) = recorded.query("SELECT count(*), sum(size_bytes) FROM weight_entries")
    assert counted["elsewhere"] == 0
    assert row == (counted["weights"]["n"], counted["weights"]["bytes"])


def test_gradients_are_those_that_the_program_holds(recorded, counted):
    (row,) = recorded.query("SELECT sum(grad_size_bytes > 0), sum(grad_size_bytes) FROM weight_entries")
    assert row == (counted["gradients"]["n"], counted["gradients"]["bytes"])


def test_optimizer_state_is_that_of_the_optimizers(recorded, counted):
    at_peak = recorded.at_peak("optimizer_state")
    wanted = counted["optimizer_state"]
    assert (at_peak["n_allocations"], at_peak["requested_bytes"]) == (wanted["n"], wanted["bytes"])


def test_weights_at_the_peak_are_parameters_and_buffers(recorded, counted):
    held = [counted["weights"], counted["buffers"]]
    assert recorded.at_peak("weight")["requested_bytes"] == sum(kind["bytes"] for kind in held)


def test_blocks_are_the_rounded_requests(recorded, counted):
    """A block may be larger than its rounded request, by the megabyte that is too little to split off."""
    held = [counted["weights"], counted["buffers"]]
    rounded = sum(kind["rounded"] for kind in held)
    assert rounded <= recorded.at_peak("weight")["block_bytes"] <= rounded * 1.2 + (1 << 20)


def test_the_peak_is_that_of_the_program(recorded, counted):
    assert recorded.peak_bytes == counted["peak"]


def test_what_is_unknown_is_little(recorded):
    unknown = recorded.at_peak("unknown")
    assert unknown["block_bytes"] <= MOST_UNKNOWN * recorded.peak_bytes, unknown


def test_no_compute_has_the_peak_of_computing(recordings, program):
    computed, shapes = (recordings(program, mode) for mode in ("compute", "no-compute"))
    assert shapes.run.code == 0, shapes.run.said
    assert shapes.peak_bytes == computed.peak_bytes


def test_operations_account_for_forward_and_backward(recordings, program):
    times = recordings(program, "compute").times
    assert times is not None
    timed = times["iterations"]
    assert timed
    assert min(one["forward_coverage"] for one in timed) >= LEAST_COVERAGE
    assert min(one["backward_coverage"] for one in timed) >= LEAST_COVERAGE
