"""What people train with, unmodified: each program's capture against what the program counts of itself."""

from tests.ecosystem.recorded_program import record

# Notes that say what a recording without a GPU is, and nothing about a fault.
USUAL_NOTES = {
    "simulated",
    "simulated-times",
    "no-timing",
    "ended-early",
    "values-not-computed",
    "files-not-written",
}
# The part of each phase that the timed operations must account for.
LEAST_COVERAGE = 0.6
N_MORE_TRIES = 2
MOST_UNKNOWN = 0.005


def held(counted, *kinds):
    """Sum what the program counted of some kinds, of which not every program has all: how many, and bytes."""
    found = [counted[kind] for kind in kinds if kind in counted]
    return sum(kind["n"] for kind in found), sum(kind["bytes"] for kind in found)


def test_a_recorded_program_ends_as_it_would_alone(recorded):
    assert "Traceback" not in recorded.run.err, recorded.run.said


def test_no_note_is_about_a_fault(recorded, program):
    notes = {note["slug"] for note in recorded.memory["notes"]}
    eager = {"compiled-as-eager"} if program.is_compiled else set()
    peaks = [count["peak"] for count in recorded.run.own_counts]
    # The first two steps are recorded.
    later = {"later-peak"} if max(peaks) > max(peaks[:2]) else set()
    assert notes - USUAL_NOTES == program.notes | eager | later


def test_every_parameter_is_a_weight_of_its_own_bytes(recorded, counted):
    (row,) = recorded.query("SELECT count(*), sum(size_bytes) FROM weight_entries")
    assert counted["elsewhere"] == 0
    assert row == held(counted, "weights", "masters")


def test_gradients_are_those_that_the_program_holds(recorded, counted):
    (row,) = recorded.query(
        "SELECT sum(grad_size_bytes > 0), sum(grad_size_bytes) FROM weight_entries"
    )
    assert row == held(counted, "gradients", "master_gradients")


def test_optimizer_state_is_that_of_the_optimizers(recorded, counted):
    at_peak = recorded.at_peak("optimizer_state")
    assert (at_peak["n_allocations"], at_peak["requested_bytes"]) == held(
        counted, "optimizer_state"
    )


def test_weights_at_the_peak_are_parameters_and_buffers_and_copies_of_them(recorded, counted):
    _, n_bytes = held(counted, "weights", "buffers", "copies", "masters", "casts")
    assert recorded.at_peak("weight")["requested_bytes"] == n_bytes


def test_what_is_unknown_is_little(recorded):
    unknown = recorded.at_peak("unknown")
    assert unknown["block_bytes"] <= MOST_UNKNOWN * recorded.peak_bytes, unknown


def test_the_peak_is_that_of_the_program(recordings, program, counted):
    assert recordings(program, "compute").peak_bytes == counted["peak"]


def test_no_compute_has_the_peak_of_computing(recordings, program):
    computed, shapes = (recordings(program, mode) for mode in ("compute", "no-compute"))
    assert shapes.run.code == 0, shapes.run.said
    assert shapes.peak_bytes == computed.peak_bytes


def test_operations_account_for_forward_and_backward(recordings, program, tmp_path):
    times = recordings(program, "compute").times
    if not program.is_trained:
        assert times is None
        return
    least = coverage_of(times)
    for attempt in range(
        N_MORE_TRIES
    ):  # another process on the machine can take an iteration's time
        if least < LEAST_COVERAGE:
            least = max(
                least, coverage_of(record(program, "compute", tmp_path / str(attempt)).times)
            )
    assert least >= LEAST_COVERAGE


def coverage_of(times):
    """The least part of a phase that the operations of the timed iterations account for."""
    assert times is not None
    assert times["iterations"]
    phases = ("forward_coverage", "backward_coverage")
    return min(timed[phase] for timed in times["iterations"] for phase in phases)
