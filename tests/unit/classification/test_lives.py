"""What blocks are, by the lives that they have: see ``job_of`` for how a life is written."""

import re

import pytest

from tests.classified_jobs import classified, job_of

# What a life shows; the life; a word for every block of it, older ones first: "?" is any, "…" any
# others.
LIVES = """
# --- made by the program

what the program makes before any backward is no gradient
    alloc MAIN, does FORWARD, does ENGINE, free ZERO_GRAD -> input
what is not as often as gradients of its size is no weight
    3 x (alloc LOAD), does FORWARD, alloc ENGINE a, alloc ENGINE b, free a ZERO_GRAD,
        free b ZERO_GRAD -> input x3 gradient x2
beside the weights of a module a gradient of its size makes no weight of a kept tensor
    alloc APPLY +7000, alloc LOAD, does FORWARD, alloc ENGINE a, free a ZERO_GRAD -> weight input gradient
a batch of the size of a weight that has its gradient is none
    alloc APPLY, alloc LOAD, does FORWARD, alloc ENGINE a, free a ZERO_GRAD -> weight input gradient
several tensors of one line as large as weights are no batch
    2 x (alloc APPLY), alloc LOAD a, alloc LOAD, does FORWARD, free a MAIN -> ? ? unknown x2
several of a line that are as large as a weight are no batches
    alloc APPLY, alloc LOAD a, alloc LOAD b, does FORWARD, free a MAIN, free b MAIN -> ? unknown x2
or twice as large, as copies in full precision
    alloc APPLY, alloc LOAD a +7000, alloc LOAD b +7000, does FORWARD, free a MAIN,
        free b MAIN -> ? unknown x2
and of another size they are
    alloc APPLY, alloc LOAD a +14000, alloc LOAD b +14000, does FORWARD, free a MAIN,
        free b MAIN -> ? input x2
or put together of rows
    alloc APPLY, alloc INDEX a, alloc INDEX b, does FORWARD, free a MAIN, free b MAIN -> ? input x2
one of a line before the trace may be a batch
    older APPLY, older LOAD, does FORWARD -> ? input
though weights have no frames
    older NO_FRAMES, older LOAD, does FORWARD -> ? input
several are no batches
    older APPLY, older LOAD, older LOAD, does FORWARD -> ? unknown x2
several beside weights without frames neither
    older NO_FRAMES, older LOAD, older LOAD, does FORWARD -> ? unknown x2
a line that makes one before the trace and one in it makes batches
    alloc APPLY +7000, alloc APPLY, older LOAD, alloc LOAD, does FORWARD -> input ? ? input
beside an optimizer of torch what is as large as weights is no state
    alloc APPLY, does FORWARD ENGINE STEP, alloc ZEROS, alloc ZEROS -> weight unknown x2
what is held of what was computed outside of modules is a batch
    older DIVIDE, does FORWARD ENGINE -> input
also where a loss alone follows
    older DIVIDE, does LOSS ENGINE -> input
what a line makes anew and frees is a batch though an earlier iteration made the last
    does FORWARD ENGINE STEP, alloc LOAD a, does FORWARD ENGINE STEP, free a MAIN, alloc LOAD,
        2 x (does FORWARD ENGINE STEP) -> input x2
batches of several lengths are made by a line in turn and freed
    4 x (alloc COPY a, does FORWARD ENGINE, free a MAIN, alloc COPY a +1000, does FORWARD ENGINE,
        free a MAIN), alloc COPY, does FORWARD -> input x9
what a line makes after backward in bulk and not by filling may be anything
    alloc APPLY, does FORWARD, does ENGINE, alloc LOAD, alloc LOAD -> weight unknown x2
of what a line makes after backward one alone is no list of states
    alloc APPLY, does FORWARD, does ENGINE, alloc ZEROS -> weight unknown
what is loaded between a module and its backward is no result of functions
    does FORWARD ENGINE STEP FORWARD ZERO_GRAD, alloc MAIN, alloc LOAD, free RELEASE, does STEP,
        free MAIN -> activation unknown
what a line computes for one weight may be a batch of the graph
    alloc APPLY, alloc LOAD a, does FORWARD ENGINE, free a RELEASE -> ? input
what it computes for every weight is none
    2 x (alloc APPLY), alloc LOAD a, alloc LOAD b, does FORWARD ENGINE, free a RELEASE,
        free b RELEASE -> ? ? activation x2

# --- made or freed in forward

what forward frees first was there in forward
    alloc LOAD, free FORWARD -> unknown
what is made between modules as another was is no batch of a later forward
    does FORWARD, alloc LOAD, does FORWARD, alloc LOAD, does ENGINE, does FORWARD, free MAIN,
        free MAIN -> activation x2
a cache of keys and values is no activation where nothing is trained
    alloc CACHE_UPDATE, does FORWARD, does MAIN, free MAIN, does FORWARD -> kv_cache
and where a backward follows it is one
    alloc CACHE_UPDATE, does FORWARD, does ENGINE, free MAIN -> activation
what a module made before the trace is an activation, though no backward follows
    older FORWARD, does FORWARD -> activation
what is freed with the last result of its line was passed on
    3 x (alloc FORWARD), 3 x (free FORWARD), does MAIN -> temporary x3
where no backward follows nothing shows that a forward had made it
    older NO_FRAMES, free FORWARD -> unknown
a second forward frees what was there before it
    older NO_FRAMES, does FORWARD, does ENGINE, does FORWARD, free FORWARD, does ENGINE -> unknown
what a module keeps from step to step is no temporary of a lost forward
    older NO_FRAMES, does LOAD FORWARD, free FORWARD, does ENGINE -> unknown
where checkpoints compute again what the engine frees may have been kept
    older NO_FRAMES, free ENGINE, does RELEASE FORWARD RECOMPUTE -> unknown
a criterion is no module that a batch is made for
    3 x (alloc MATMUL a, alloc CRITERION b +1, free b RELEASE, free a RELEASE,
        does ENGINE) -> activation ? activation ? activation ?
what a variable holds until a later forward is an activation
    alloc FORWARD, does ENGINE, alloc FORWARD, free MAIN, does ENGINE -> activation x2
what forward itself frees is temporary
    alloc FORWARD, free FORWARD, does FORWARD ENGINE -> temporary
though a graph held it
    alloc FORWARD, free DESTROYED_IN_FORWARD, does FORWARD ENGINE -> temporary
what a graph held after its forward is an activation
    alloc FORWARD, does FORWARD, free DESTROYED, does ENGINE -> activation
without a backward too
    alloc FORWARD, does FORWARD, free DESTROYED, does FORWARD -> activation
at the end of the trace too
    alloc FORWARD, does FORWARD, free DESTROYED -> activation
rows of data that are put together after a forward without a graph are a batch
    does FORWARD, alloc INDEX a, alloc FORWARD b other, does LOSS ENGINE, free b RELEASE, free a MAIN -> input
but not between the modules of one graph
    does FORWARD, alloc FORWARD c other, alloc INDEX a, alloc FORWARD b other, does LOSS ENGINE,
        free c RELEASE, free b RELEASE, free a MAIN -> activation
nor what is computed of what the first forward made
    does FORWARD, alloc LOAD a, alloc FORWARD b other, does LOSS ENGINE, free b RELEASE,
        free a MAIN -> activation
what is as large as the batch after a teacher ran is the batch mixed
    2 x (alloc COPY a, does LAYER, alloc LOAD b, alloc FORWARD c other, does LOSS ENGINE, free c RELEASE,
        free b MAIN, free a MAIN) -> input x4
what a line keeps of a forward without a graph is no batch
    does COPY FORWARD, alloc LOAD, alloc FORWARD b other, does LOSS ENGINE, free b RELEASE -> activation

# --- made or freed in backward

what a checkpoint computes again is no gradient, whatever frees it
    does FORWARD, alloc RECOMPUTED, does STEP, free ZERO_GRAD -> unknown
a compiled backward makes gradients though its lines are those of forward
    does FORWARD, alloc COMPILED, does STEP, free ZERO_GRAD -> gradient
also without a step
    does FORWARD, alloc COMPILED, free ZERO_GRAD -> gradient
what outlives backward but not the next forward is a gradient if a weight is as large
    alloc APPLY, alloc ENGINE, alloc ENGINE +1, does ENGINE FORWARD STEP -> weight gradient unknown
the results of another backward are decided by themselves
    alloc ENGINE a +1, does FORWARD, alloc ENGINE, does FORWARD ENGINE, free a ENGINE -> ? unknown
a gradient that a later call adds to was not kept for it
    does FORWARD ENGINE, alloc ENGINE a, alloc MAIN b other, does ENGINE, drop a ADD_TO_GRADIENT,
        does ENGINE -> temporary
what happened before it was made is no later call
    does FORWARD ENGINE, alloc MAIN b other, alloc ENGINE a, does ENGINE, free a ENGINE, alloc MAIN c other,
        does ENGINE -> temporary
what the engine frees within backward after a step in a hook is temporary
    older NO_FRAMES w, does FORWARD, alloc ENGINE a, does HOOK_STEP, drop a ENGINE, does ENGINE -> ? temporary
what a function of autograd frees there too
    older NO_FRAMES w, does FORWARD, alloc ENGINE a, does HOOK_STEP, drop a CUSTOM_BACKWARD,
        does ENGINE -> ? temporary
what a hook makes itself is temporary
    older NO_FRAMES w, does FORWARD, alloc HOOK a, does HOOK_STEP, drop a HOOK, does ENGINE -> ? temporary
what backward frees after a step in a hook is of the same backward
    older NO_FRAMES w, does FORWARD, alloc ENGINE a, does HOOK_STEP ENGINE, free a MAIN,
        does ENGINE -> ? temporary
after a step of the program another backward runs, and what lived until then was a gradient
    older NO_FRAMES w, does FORWARD, alloc ENGINE a, does STEP ENGINE, free a MAIN, does ENGINE -> ? gradient
what is placed in backward is no weight
    does FORWARD, alloc APPLY_IN_BACKWARD, does ENGINE STEP -> unknown

# --- made or freed in a step

what a step makes is its own even if the engine frees it
    alloc STEP, free RELEASE -> optimizer_state
what an annotated step makes too
    begin step, alloc MAIN, end step, does FORWARD, does ENGINE, free RELEASE -> optimizer_state
an annotated step goes before a stack of placement
    begin step, alloc APPLY, alloc LOAD, end step -> optimizer_state x2
with stacks of frees a state that is freed soon after the step is still one
    does FORWARD, alloc STEP, free MAIN, does FORWARD -> optimizer_state
what the program frees outside of steps is no former state
    older NO_FRAMES, alloc STEP, does STEP, free MAIN -> unknown optimizer_state
what zero_grad frees is no former state, but a gradient
    older NO_FRAMES, alloc STEP, does STEP, free ZERO_GRAD -> gradient optimizer_state
weights that are placed and never used are weights
    alloc APPLY -> weight
weights that the first forward frees were used in it
    alloc APPLY, free FORWARD -> weight
what is freed before the first forward was none
    alloc APPLY, free MAIN, does FORWARD -> temporary
a step that makes no state replaces none
    older NO_FRAMES, older STEP, does FORWARD, does STEP, free STEP -> unknown optimizer_state
what an optimizer had made before the trace is a state
    older STEP, does FORWARD -> optimizer_state
what a step makes and keeps until the next step is a state
    alloc STEP, does STEP, does FORWARD, does STEP, free STEP -> optimizer_state
a state of an optimizer that is built is there when backward begins
    alloc BUILD_OPTIMIZER, free MAIN, does FORWARD ENGINE, alloc BUILD_OPTIMIZER, does FORWARD ENGINE,
        free MAIN -> temporary optimizer_state
what a later step frees was not made in the one that the trace begins in
    older NO_FRAMES, does STEP, does FORWARD, does ENGINE, does STEP, free STEP -> unknown

# --- by what freed it

what freed it goes before who made it
    alloc APPLY, free RELEASE, alloc COPY, free RELEASE -> activation x2
what modules made is no gradient though it is freed in zero_grad
    alloc FORWARD, free ZERO_GRAD -> temporary
what was there is a gradient where zero_grad frees it, and no batch
    older LOAD, does FORWARD, does ENGINE, free ZERO_GRAD -> gradient
where batches and activations of a size are freed a preexisting one may be either
    older NO_FRAMES, free RELEASE, does ENGINE STEP, alloc COPY, alloc FORWARD, free RELEASE,
        free RELEASE -> activation input activation

# --- by what else a line frees or makes

a line that gives a variable a new value shows what the former one was
    older NO_FRAMES a, alloc LOAD, drop a LOAD, does FORWARD ENGINE -> input ?
a line that frees and makes nothing does not hide what another one replaced
    older DROP d other, older NO_FRAMES a, older NO_FRAMES b, alloc LOAD, drop b DROP, drop a LOAD,
        does FORWARD ENGINE -> input ? ?
whichever comes first in the file
    older LOAD d other, older NO_FRAMES a, older NO_FRAMES b, alloc LOAD, drop b DROP, drop a LOAD,
        does FORWARD ENGINE -> input ? ?
each former value is what the next one of its size is: a batch, and a result of a module
    older NO_FRAMES a, older NO_FRAMES b +1, 2 x (alloc LOAD c, drop a LOAD, alloc LOAD_IN_FORWARD d +1,
        drop b LOAD_IN_FORWARD, does FORWARD ENGINE, alloc LOAD a, drop c LOAD, alloc LOAD_IN_FORWARD b +1,
        drop d LOAD_IN_FORWARD, does FORWARD ENGINE) -> input activation input activation input activation …
a value that is made later takes no place
    older NO_FRAMES, drop LOAD, alloc LOAD, does FORWARD ENGINE -> unknown input
a value that was freed first takes no place
    older NO_FRAMES a, alloc LOAD b, does FORWARD, free b MAIN, drop a LOAD, does FORWARD ENGINE -> unknown ?
of what a line makes the new value is the youngest that it has not freed
    older NO_FRAMES a, alloc FORWARD b, drop a MAIN, does ENGINE -> activation ?
what a call makes and frees is passed over
    older NO_FRAMES a, alloc FORWARD b, 31 x (alloc FORWARD c, free c FORWARD), drop a MAIN,
        does ENGINE -> activation …
but not more of it
    older NO_FRAMES a, alloc FORWARD b, 32 x (alloc FORWARD c, free c FORWARD), drop a MAIN,
        does ENGINE -> unknown …
a line that frees several kinds is no evidence of preexisting blocks
    older NO_FRAMES c +1, alloc LOAD a, alloc FORWARD b, does ENGINE, free a MAIN, free b MAIN,
        free c MAIN -> unknown input activation
a temporary of its line is not older than those of the line get
    older NO_FRAMES a, does FORWARD ENGINE MAIN, free a MAIN -> unknown
what a line frees soon after the beginning is as temporary as what else it frees
    older NO_FRAMES a +1, alloc LOAD b, free a MAIN, does LOAD LOAD, free b MAIN,
        does FORWARD ENGINE -> temporary x2
it lives for no more events than others of its line
    older NO_FRAMES a, alloc APPLY b other, free a LOAD, does LOAD FORWARD ENGINE -> temporary
or it may be anything
    older NO_FRAMES a, alloc APPLY b other, alloc APPLY c other, free a LOAD,
        does LOAD FORWARD ENGINE -> unknown
only what was there before the trace is what replaced it
    2 x (alloc APPLY), alloc LOAD a, alloc LOAD, does FORWARD ENGINE, alloc COPY, drop a COPY,
        does FORWARD ENGINE -> ? ? unknown x2 input
a new value of another size replaced nothing
    older NO_FRAMES a, older NO_FRAMES b +1, alloc LOAD, drop a LOAD, drop b LOAD,
        does FORWARD ENGINE -> input unknown input
what a line frees of batches is one however late
    older NO_FRAMES b +1, does FORWARD ENGINE FORWARD ENGINE, alloc COPY a, does FORWARD, free a MAIN,
        free b MAIN -> input ?
what was there as long replaced nothing
    older LOAD, older NO_FRAMES a, drop a LOAD, does FORWARD ENGINE -> input unknown

# --- in recordings without stacks of frees, or without frames of C++

without stacks of frees no line shows what a former value was
    older LOAD a, older LOAD b, alloc LOAD, free a, free b, alloc FORWARD c +1, free c, alloc ENGINE d +1,
        free d -> unknown x2 input ? ?
without stacks of frees a step still frees its temporaries
    passes FORWARD ENGINE, alloc STEP a, free a, passes FORWARD -> temporary
without stacks of frees a batch is made before the first forward that keeps anything
    passes FORWARD, alloc INDEX a, alloc FORWARD b other, passes LOSS ENGINE, free b, free a -> input
without stacks of frees what is freed before the step is no gradient
    alloc APPLY, passes FORWARD, alloc ENGINE a, free a, alloc STEP b other -> weight temporary
without stacks of frees what is freed where no step follows, as after an overflow, may be a gradient
    alloc APPLY, passes FORWARD, alloc ENGINE a, passes ENGINE, free a, begin zero_grad, passes MAIN,
        end zero_grad -> weight gradient
without stacks of frees what the step still finds is a gradient
    alloc APPLY, passes FORWARD, alloc ENGINE a, alloc STEP b other, free a -> weight gradient
without stacks of frees a step that allocates nothing still leaves gradients
    alloc APPLY, 2 x (alloc FORWARD a other, alloc ENGINE b, free a, free b) -> weight gradient x2
without frames of C++ a batch may be as large as what was a weight
    alloc APPLY, free MAIN, alloc LOAD, does FORWARD, free MAIN -> ? input
without frames of C++ what is as large as a weight is no input
    alloc APPLY, alloc FORWARD, alloc LOSS other, alloc LOAD, does FORWARD, alloc LOAD a,
        does FORWARD, free a MAIN -> weight activation unknown x2
without frames of C++ what is as large as an activation may be an input
    alloc FORWARD, alloc LOSS other, alloc LOAD a, does FORWARD, free a MAIN -> activation input
without frames of C++ what is made before the first graph is an input too, after a module without weights
    does LAYER NO_FRAMES STEP FORWARD, alloc LOAD a, alloc FORWARD b other, does FORWARD, free b NO_FRAMES,
        does NO_FRAMES, free a MAIN -> input
but not after a layer
    does LAYER NO_FRAMES STEP LAYER, alloc LOAD a, alloc FORWARD b other, does FORWARD, free b NO_FRAMES,
        does NO_FRAMES, free a MAIN -> unknown
nor in the first iteration
    does FORWARD, alloc LOAD a, alloc FORWARD b other, does FORWARD, free b NO_FRAMES, does NO_FRAMES,
        free a MAIN -> unknown
with stacks of Python what goes before backward frees anything of its own stays open
    older NO_FRAMES a, older NO_FRAMES b, free a NO_FRAMES, does NO_FRAMES, free b NO_FRAMES,
        does STEP FORWARD -> unknown activation
"""


def cases():
    for lines in re.findall(r"^(\w.*)\n((?: .*\n)+)", LIVES, re.MULTILINE):
        name, life = (" ".join(text.split()) for text in lines)
        yield pytest.param(*life.split(" -> "), id=name)


@pytest.mark.parametrize(("life", "expected"), list(cases()))
def test_in(life, expected, tmp_path):
    words = []
    for word in expected.split():
        words += words[-1:] * (int(word[1:]) - 1) if word[1:].isdigit() else [word]
    found = [
        category.label
        for category, *_ in classified(job_of(life), tmp_path / "snapshot.pickle", None)
    ]
    if words[-1] == "…":
        del words[-1], found[len(words) :]
    assert words == [
        "?" if word == "?" else label for label, word in zip(found, words, strict=True)
    ]
