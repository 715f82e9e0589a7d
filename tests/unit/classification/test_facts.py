"""Every fact, on the smallest job that it decides; then which fact goes first."""

import re

import pytest

from snapconv.classification.categories import Category, Evidence
from snapconv.classification.classify import REASONS
from snapconv.classification.decisions import Fact
from snapconv.classification.facts import FACTS, LATER
from snapconv.torch_knowledge.frame_patterns import FRAME_RULES, Role
from tests.classified_jobs import (
    APPLY,
    DESTROYED,
    ENGINE,
    FORWARD,
    LOAD,
    MAIN,
    NO_FRAMES,
    OTHER,
    RECOMPUTE,
    RELEASE,
    SITE,
    STEP,
    SUBJECT,
    TORCH,
    Job,
    categories,
    classified,
    cpp,
    frames,
    job_of,
)

WEIGHT, GRADIENT, STATE = Category.WEIGHT, Category.GRADIENT, Category.OPTIMIZER_STATE
ACTIVATION, INPUT, TEMPORARY = Category.ACTIVATION, Category.INPUT, Category.TEMPORARY
WORKSPACE, COMMUNICATION = Category.WORKSPACE, Category.COMMUNICATION
ANNOTATION, FREE_SITE, FRAMES = Evidence.ANNOTATION, Evidence.FREE_SITE, Evidence.FRAMES
LIFETIME, SIZES = Evidence.LIFETIME, Evidence.SIZES
MADE_BY = {
    "cublas-workspace": (cpp("at::cuda::getCurrentCUDABlasHandle()"), WORKSPACE),
    "cudnn-workspace": (cpp("at::native::run_conv_plan(cudnnContext*)"), WORKSPACE),
    "process-group": (cpp("c10d::ProcessGroupNCCL::allreduce(int)"), COMMUNICATION),
    "collective": (("all_gather", f"{TORCH}/distributed/distributed_c10d.py"), COMMUNICATION),
    "gradient-bucket": (("setup_buckets", "/w/deepspeed/runtime/zero/stage3.py"), COMMUNICATION),
    "replica": (("replicate", f"{TORCH}/nn/parallel/replicate.py"), WEIGHT),
    "scattered": (("scatter_kwargs", f"{TORCH}/nn/parallel/scatter_gather.py"), INPUT),
    "named-weights": (("init_all_weights", "/w/engine/opt.py"), WEIGHT),
    "diffusers-average": (("__init__", f"{SITE}/diffusers/training_utils.py"), WEIGHT),
    "named-cache": (("allocate_kv_cache", "/w/engine/opt.py"), Category.KV_CACHE),
    "module-apply": (("_apply", f"{TORCH}/nn/modules/module.py"), WEIGHT),
    "module-init": (("__init__", f"{TORCH}/nn/modules/linear.py"), WEIGHT),
    "parameter-new": (("__new__", f"{TORCH}/nn/parameter.py"), WEIGHT),
    "checkpoint-load": (("load_file", f"{SITE}/safetensors/torch.py"), WEIGHT),
    "weights-cast": (("cast_training_params", f"{SITE}/diffusers/training_utils.py"), WEIGHT),
    "torch-load": (("persistent_load", f"{TORCH}/serialization.py"), WEIGHT),
    "serving-weights": (("create_weights", f"{SITE}/vllm/model_executor/layers/linear.py"), WEIGHT),
    "serving-cache": (
        ("_allocate_kv_cache", f"{SITE}/vllm/worker/cache_engine.py"),
        Category.KV_CACHE,
    ),
    "paged-cache": (
        ("__init__", f"{SITE}/transformers/generation/continuous_batching/cache.py"),
        Category.KV_CACHE,
    ),
    "optimizer-init": (("__init__", f"{TORCH}/optim/adagrad.py"), STATE),
    "fsdp-parameters": (("flatten_tensors", f"{TORCH}/distributed/fsdp/_flat_param.py"), WEIGHT),
}
OLDER = {
    "optimizer-file": ("_init_group", f"{TORCH}/optim/adam.py"),
    "optimizer-wrapper": ("wrapper", f"{TORCH}/optim/optimizer.py"),
    "optimizer-other": ("step", f"{SITE}/deepspeed/runtime/zero/stage3.py"),
}


def jobs_of_frame_rules():
    """Jobs in which a frame alone decides: slug, job, category, evidence."""
    for slug, (frame, category) in MADE_BY.items():
        job = Job()
        job.alloc(frames(frame) + MAIN)
        yield slug, job, category, FRAMES
    for slug, frame in OLDER.items():
        job = Job()
        job.older(frames(frame) + MAIN)
        yield slug, job, STATE, FRAMES
    for slug, stack in (("release-variables", RELEASE), ("node-destroyed", DESTROYED)):
        job = Job()
        job.free(job.alloc(FORWARD), stack)
        yield slug, job, ACTIVATION, FREE_SITE
    job = Job()
    job.free(job.alloc(FORWARD), frames(("__exit__", f"{TORCH}/amp/autocast_mode.py")) + MAIN)
    yield "autocast-exit", job, WEIGHT, FREE_SITE
    job = Job()
    job.does(FORWARD, ENGINE)
    job.free(job.alloc(RECOMPUTE), ENGINE)
    yield "recompute", job, ACTIVATION, FRAMES


@pytest.mark.parametrize("name", ["load_weights", "init_cache"])
def test_what_a_function_frees_again_is_not_what_it_is_named_after(name, found):
    named = frames((name, "/w/engine/opt.py")) + MAIN
    job = Job()
    job.free(job.alloc(named), named)
    assert categories(found(job))[0] not in (WEIGHT, Category.KV_CACHE)


@pytest.mark.parametrize("shown", [ENGINE, STEP], ids=["backward", "a step"])
def test_where_something_is_trained_a_cache_may_be_of_data(shown, found):
    job = Job()
    job.alloc(frames(("init_cache", "/w/engine/data.py")) + MAIN)
    job.does(FORWARD, shown)
    assert categories(found(job))[0] is not Category.KV_CACHE


def test_beside_states_of_an_optimizer_a_cache_may_be_of_data_though_no_step_is_seen(found):
    job = Job()
    job.older(frames(("init_cache", "/w/engine/data.py")) + MAIN)
    job.older(STEP, OTHER)
    job.does(MAIN)
    assert categories(found(job)) == [Category.UNKNOWN]


@pytest.mark.parametrize(
    "name", ["init_optimizer_params", "load_class_weights", "make_sample_weights"]
)
def test_a_function_may_be_named_after_weights_that_are_no_models(name, found):
    job = Job()
    job.alloc(frames((name, "/w/engine/opt.py")) + MAIN)
    assert categories(found(job)) != [WEIGHT]


# A life (see ``job_of``), and what decides on one of its blocks: the reason, category and evidence.
LIFE_TEXT = """
alloc ENGINE, begin zero_grad, free MAIN, end zero_grad -> freed-in-zero-grad gradient annotation
alloc ENGINE, free ZERO_GRAD -> freed-in-zero-grad gradient free_site
does ENGINE, alloc MAIN, does STEP, free ZERO_GRAD -> freed-in-zero-grad gradient free_site
older NO_FRAMES, free ZERO_GRAD -> freed-in-zero-grad gradient free_site
older NO_FRAMES, begin zero_grad, free MAIN, end zero_grad -> freed-in-zero-grad gradient annotation
older NO_FRAMES, free RELEASE_IN_ZERO_GRAD -> graph-of-a-gradient unknown none
alloc ENGINE, does STEP, free RELEASE_IN_ZERO_GRAD -> kept-by-a-gradient gradient free_site
alloc FORWARD, alloc MAIN, does FORWARD, does ENGINE, free RELEASE,
    free LEAF_DROPPED -> dropped-with-its-accumulation input free_site
alloc ENGINE, does STEP, free LEAF_DROPPED -> dropped-with-its-accumulation gradient free_site
begin step, alloc MAIN, end step -> made-in-step-and-kept optimizer_state annotation
alloc STEP, does STEP, does FORWARD -> made-in-step-and-kept optimizer_state frames
alloc STEP, does STEP, does FORWARD, free MAIN -> made-in-step-and-kept optimizer_state frames
begin step, alloc MAIN, free MAIN, end step -> made-in-step-and-freed temporary annotation
alloc STEP, free STEP -> made-in-step-and-freed temporary frames
older NO_FRAMES, alloc STEP, free STEP -> replaced-in-step optimizer_state lifetime
alloc APPLY, free FORWARD -> module-apply weight frames
alloc ENGINE, free ENGINE -> freed-within-backward temporary lifetime
does ENGINE, alloc RECOMPUTE, free RECOMPUTE -> freed-within-backward temporary lifetime
does ENGINE, alloc RECOMPUTE, free NESTED -> recompute activation frames
does ENGINE, alloc NESTED, free ENGINE -> freed-within-backward temporary lifetime
alloc APPLY, does FORWARD, alloc ENGINE, does STEP -> kept-after-backward gradient lifetime
older NO_FRAMES, does FORWARD, alloc ENGINE -> kept-after-backward gradient lifetime
older APPLY, older ENGINE -> kept-after-backward gradient lifetime
alloc COPY, does FORWARD, free MAIN -> made-outside-modules-used-in-forward input frames
alloc LOAD, does FORWARD, does ENGINE, free RELEASE -> made-outside-modules-used-in-forward input lifetime
alloc LOSS, alloc LOAD, does FORWARD, does ENGINE, free RELEASE,
    free RELEASE -> made-outside-modules-used-in-forward input lifetime
alloc LOAD, does FORWARD, free MAIN -> made-outside-modules-used-in-forward input lifetime
alloc COPY, does FORWARD -> made-outside-modules-used-in-forward input lifetime
alloc LOAD, does FORWARD -> made-outside-modules-used-in-forward input lifetime
older LOAD, does FORWARD -> made-outside-modules-used-in-forward input lifetime
older NO_FRAMES, alloc COPY, does FORWARD, free MAIN,
    free MAIN -> freed-by-line-of-one-category input free_site
# A size alone does not show what a block was replaced by.
older NO_FRAMES, alloc COPY, free MAIN, does FORWARD -> none unknown none
older NO_FRAMES, alloc COPY, free STEP, does FORWARD -> none unknown none
older NO_FRAMES, alloc COPY, begin step, free MAIN, end step, does FORWARD -> none unknown none
alloc FORWARD, free ENGINE -> freed-by-backward activation free_site
older NO_FRAMES, does FORWARD, does ENGINE, free ENGINE -> freed-by-backward activation free_site
older NO_FRAMES, does FORWARD, does ENGINE, free COMPILED -> freed-by-backward activation free_site
alloc LOSS, free ENGINE -> freed-by-backward activation free_site
alloc MAIN, does ENGINE, free ENGINE -> freed-by-backward activation free_site
alloc FORWARD, does ENGINE, free MAIN -> kept-into-backward activation lifetime
older FORWARD, does FORWARD, does ENGINE -> kept-into-backward activation lifetime
# No backward keeps what forward has made for the one before.
older FORWARD, does FORWARD, does ENGINE, does FORWARD,
    does ENGINE -> persistent-since-before-the-recording unknown none
does FORWARD, alloc MAIN, does LOSS, does ENGINE, free MAIN -> kept-into-backward activation lifetime
does FORWARD, alloc MAIN, does ZERO_GRAD, does ENGINE, free MAIN -> kept-into-backward activation lifetime
alloc LOAD, does FORWARD, alloc LOAD, does ENGINE, free MAIN, free MAIN,
    does FORWARD -> kept-into-backward activation lifetime
does FORWARD, alloc LOAD, does ENGINE, does FORWARD, free MAIN -> kept-into-backward activation lifetime
does FORWARD, alloc MAIN, does LOSS, free MAIN, does ENGINE -> freed-before-backward temporary lifetime
alloc FORWARD, free FORWARD, alloc FORWARD, free FORWARD,
    alloc CACHE_UPDATE -> cache-that-grew kv_cache frames
older CACHE_UPDATE, does FORWARD -> cache-that-grew kv_cache frames
does FORWARD, alloc REORDER_CACHE, does FORWARD, free REORDER_CACHE -> cache-that-grew kv_cache frames
alloc CACHE_UPDATE, free FORWARD, does MAIN -> freed-before-backward temporary lifetime
alloc CACHE_UPDATE, does ENGINE, free ENGINE -> freed-by-backward activation free_site
does FORWARD, does ENGINE, does STEP,
    alloc CACHE_UPDATE -> made-in-forward-and-live-at-dump activation lifetime
alloc FORWARD, alloc FORWARD, alloc FORWARD, does MAIN, free MAIN -> freed-before-backward temporary lifetime
alloc FORWARD, alloc LOSS -> made-in-forward-and-live-at-dump activation lifetime
alloc FORWARD, free FORWARD, does ENGINE -> freed-before-backward temporary lifetime
alloc FORWARD, alloc FORWARD, alloc FORWARD, free FORWARD,
    does MAIN -> freed-before-backward temporary lifetime
alloc LOAD, free LOAD, does FORWARD -> freed-soon-outside-modules temporary lifetime
alloc LOAD -> none unknown none
"""
LIVES = [
    (life, slug, Category[category.upper()], Evidence[evidence.upper()])
    for life, slug, category, evidence in re.findall(
        r"^(\w.*) -> (\S+) (\w+) (\w+)$", LIFE_TEXT.replace("\n   ", ""), re.MULTILINE
    )
]


# The roles that decide by themselves.
DECIDING = {
    *(Role.WORKSPACE, Role.COMMUNICATION, Role.CACHE, Role.RELEASE, Role.REPLICA, Role.SCATTERED),
    *(Role.OPTIMIZER, Role.PLACEMENT, Role.RECOMPUTE, Role.STATES),
    *(Role.NAMED_WEIGHTS, Role.NAMED_CACHE, Role.UNCACHED),
}
FRAME_JOBS = {slug: rest for slug, *rest in jobs_of_frame_rules()}


@pytest.mark.parametrize("slug", FRAME_JOBS)
def test_a_frame_decides(slug, found):
    job, category, evidence = FRAME_JOBS[slug]
    assert found(job) == [(category, evidence, slug)]


@pytest.mark.parametrize(
    ("life", "slug", "category", "evidence"), LIVES, ids=[row[0] for row in LIVES]
)
def test_a_life_decides(life, slug, category, evidence, found):
    assert (category, evidence, slug) in found(job_of(life))


# What is decided by when something was made and freed, rather than by who did it or by its size.
BY_PHASES = {
    *("made-outside-modules-used-in-forward", "freed-soon-outside-modules"),
    *("made-in-step-and-kept", "made-in-step-and-freed", "replaced-in-step"),
    *("freed-within-backward", "kept-after-backward", "freed-by-backward", "kept-into-backward"),
    *("freed-before-backward", "made-in-forward-and-live-at-dump", "cache-that-grew"),
}


@pytest.mark.parametrize(
    ("life", "slug", "category", "evidence"), LIVES, ids=[row[0] for row in LIVES]
)
def test_where_a_recorder_marked_the_phases_what_is_decided_by_them_is_recorded(
    life, slug, category, evidence, tmp_path
):
    rows = classified(job_of(life), tmp_path / "snapshot.pickle", has_marked_phases=True)
    expected = Evidence.METADATA if slug in BY_PHASES else evidence
    assert (category, expected, slug) in rows


def test_every_fact_has_a_job_that_it_decides():
    by_frames = {rule.slug for rule in FRAME_RULES if rule.role in DECIDING}
    assert set(FRAME_JOBS) == by_frames
    facts = {fact.reason.slug for fact in (*FACTS, *LATER) if isinstance(fact, Fact)}
    elsewhere = {
        "cublas-workspace-size",
        "lone-workspace-size",
        "optimized-data",
        "equal-to-optimized-data",
        "live-in-failed-backward",
        "live-in-failed-forward",
        "cache-that-lengthened",
        "cast-of-a-weight",
        "made-where-layers-are-built",
        "new-value-of-a-weight",
        "zeros-for-every-parameter",
        "full-precision-of-every-parameter",
        "kept-for-a-backward-within",
        "gradient-of-every-sample",
        "made-by-accumulation",
        "dropped-with-its-graph",
        "rows-of-batches",
        "rows-of-results",
        "joined-from-samples",
        "built-for-every-layer",
        "zeros-for-every-layer",
        "freed-with-caches",
        "copy-of-a-weight",
    }
    assert facts == {slug for _, slug, *_ in LIVES} & facts | elsewhere


def test_every_reason_of_a_life_has_a_text():
    assert {slug for _, slug, *_ in LIVES} <= REASONS.keys() | {rule.slug for rule in FRAME_RULES}


def test_what_a_closure_puts_on_the_device_is_a_batch_whatever_optimizer_calls_it(found):
    """An optimizer of another library has no frame of torch's but the one around its step."""
    step = (
        frames(
            ("step", f"{SITE}/prodigyopt/prodigy.py"), ("wrapper", f"{TORCH}/optim/optimizer.py")
        )
        + MAIN
    )
    closure = frames(("closure", "/w/proj/train.py")) + step
    of_its_own = frames(("update", f"{SITE}/prodigyopt/prodigy.py")) + step
    job = Job()
    job.alloc(APPLY, SUBJECT + 4)
    for _ in range(3):
        batch = job.alloc(LOAD[:1] + closure, SUBJECT + 1)
        saved = job.alloc(FORWARD[:-1] + closure)
        job.does(ENGINE)
        job.free(saved, RELEASE)
        job.does(ENGINE)
        job.free(batch, closure)
        job.alloc(of_its_own, SUBJECT + 2)
        job.alloc(step, SUBJECT + 3)
        job.does(STEP)
    assert categories(found(job, SUBJECT + 1)) == [INPUT] * 3
    assert categories(found(job)) == [ACTIVATION] * 3
    assert categories(found(job, SUBJECT + 2)) == categories(found(job, SUBJECT + 3)) == [STATE] * 3


def test_a_closure_in_the_file_of_the_step_is_known_by_its_name(found):
    step = frames(("step", "/w/proj/train.py"), ("wrapper", f"{TORCH}/optim/optimizer.py")) + MAIN
    job = Job()
    job.alloc(APPLY, SUBJECT + 4)
    for _ in range(3):
        for name, size in (("closure", SUBJECT + 1), ("direction", SUBJECT + 2)):
            called = frames((name, "/w/proj/train.py")) + step
            job.does(FORWARD[:-1] + frames(("closure", "/w/proj/train.py")) + step)
            job.alloc(LOAD[:1] + called, size)
        job.does(ENGINE, STEP)
    assert STATE not in categories(found(job, SUBJECT + 1))
    assert categories(found(job, SUBJECT + 2)) == [STATE] * 3


def test_an_assignment_to_grad_between_forward_and_loss_ends_no_forward(found):
    assigned = frames(cpp("THPVariable_set_grad(THPVariable*, _object*, void*)")) + MAIN
    job = Job()
    job.alloc(APPLY, SUBJECT + 1)
    gradient = job.alloc(ENGINE, SUBJECT + 1)
    for _ in range(3):
        job.does(STEP, FORWARD)
        job.free(gradient, assigned)
        result = job.alloc(MAIN)
        gradient = job.alloc(ENGINE, SUBJECT + 1)
        job.does(ENGINE)
        job.free(result, MAIN)
    assert categories(found(job)) == [ACTIVATION] * 3


@pytest.mark.parametrize(
    ("setter", "category"), [("THPVariable_set_grad", GRADIENT), ("THPVariable_set_data", INPUT)]
)
def test_zeros_that_an_assignment_to_grad_frees_were_a_gradient(setter, category, found):
    """Some loops set gradients to new zeros, and backward adds to them."""
    zeros = frames(
        cpp("at::_ops::zeros_like::call(at::Tensor const&)"), ("zero_grads", "/w/proj/train.py")
    )
    assigned = frames(
        cpp(f"{setter}(THPVariable*, _object*, void*)"), ("zero_grads", "/w/proj/train.py")
    )
    job = Job()
    job.alloc(APPLY)
    job.does(FORWARD, ENGINE, STEP)
    for _ in range(3):
        made = job.alloc(zeros + MAIN, SUBJECT + 1)
        job.does(FORWARD, ENGINE, STEP)
        job.free(made, assigned + MAIN)
    assert categories(found(job, SUBJECT + 1)) == [category] * 3


def test_what_makes_states_in_a_step_and_calls_the_closure_too_is_no_closure(found):
    step = (
        frames(("step", f"{SITE}/own/lbfgs.py"), ("wrapper", f"{TORCH}/optim/optimizer.py")) + MAIN
    )
    helper = frames(("_step", f"{SITE}/own/lbfgs.py")) + step
    closure = frames(("closure", "/w/proj/train.py")) + helper
    job = Job()
    job.alloc(APPLY, SUBJECT + 4)
    for _ in range(3):
        batch = job.alloc(LOAD[:1] + closure, SUBJECT + 1)
        saved = job.alloc(FORWARD[:-1] + closure, SUBJECT + 2)
        job.does(ENGINE)
        job.free(saved, RELEASE)
        job.does(ENGINE)
        job.free(batch, closure)
        job.alloc(helper)
        job.does(STEP)
    assert categories(found(job)) == [STATE] * 3
    assert categories(found(job, SUBJECT + 1)) == [INPUT] * 3


@pytest.mark.parametrize("outer", [STEP, MAIN], ids=["by frames", "by an annotation"])
def test_a_closure_that_a_step_calls_is_forward_and_backward(outer, found):
    job = Job()
    for _ in range(3):
        job.note("Optimizer.step#AdamW.step", "START")
        saved, of_loss = job.alloc(FORWARD + outer), job.alloc(LOAD + outer, SUBJECT + 2)
        job.does(ENGINE)
        job.free(saved, RELEASE)
        job.free(of_loss, RELEASE)
        job.does(ENGINE)
        job.alloc(outer, SUBJECT + 1)
        job.note("Optimizer.step#AdamW.step", "END")
    assert categories(found(job)) == [ACTIVATION] * 3
    assert categories(found(job, SUBJECT + 1)) == [STATE] * 3
    if outer is STEP:
        assert categories(found(job, SUBJECT + 2)) == [ACTIVATION] * 3


@pytest.mark.parametrize("stack", [None, NO_FRAMES, MAIN], ids=["none", "empty", "main"])
def test_what_has_no_evidence_stays_unknown(stack, found):
    job = Job()
    job.older(stack)
    job.alloc(stack)
    older, newer = found(job)
    assert older == (Category.UNKNOWN, Evidence.NONE, "persistent-since-before-the-recording")
    assert newer == (Category.UNKNOWN, Evidence.NONE, "none")


def test_what_the_trace_frees_was_not_kept_all_the_time(found):
    job = Job()
    block = job.older(MAIN)
    job.does(LOAD)
    job.free(block, MAIN)
    assert [reason for _, _, reason in found(job)] == ["none"]


@pytest.mark.parametrize(
    ("life", "category"),
    [
        ("does FORWARD, alloc MAIN, free ENGINE", ACTIVATION),
        ("does ENGINE, alloc COPY, free FORWARD", INPUT),
    ],
)
def test_what_the_first_event_of_a_phase_frees_has_reached_the_phase(life, category, found):
    assert categories(found(job_of(life))) == [category]


def test_a_job_without_anything_has_nothing_to_classify(found):
    assert found(Job()) == []
