"""What the simulation cannot follow is refused in one sentence that names it, and never recorded wrongly."""

ERROR = "snapconv: error: "


def test_a_refused_program_makes_no_step(recordings, refused, mode):
    run = recordings(refused, mode).run
    assert run.code != 0
    assert run.own_counts == []


def test_the_only_error_names_what_is_refused(recordings, refused, mode):
    run = recordings(refused, mode).run
    (error,) = [line for line in run.err.splitlines() if line.startswith(ERROR)]
    assert refused.names.lower() in error.lower()
