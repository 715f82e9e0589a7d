"""Roles of stacks, from rules that test_rules.py has examples of."""

import numpy as np
import pytest

from snapconv.snapshot.stack_table import StackInterner
from snapconv.stacks.stack_roles import assign_roles
from snapconv.torch_knowledge.frame_patterns import FRAME_RULES, Role

SITE = "/opt/venv/lib/python3.11/site-packages"
USER = ("main", "/w/proj/train.py")
APPLY = ("apply", f"{SITE}/torch/autograd/function.py")
CALL = ("_call_impl", f"{SITE}/torch/nn/modules/module.py")
WORKSPACE = ("at::cuda::getCurrentCUDABlasHandle()", "??")


def stack_table(*stacks):
    """Stacks of (function, file), leaf first."""
    interner = StackInterner()
    rows = [
        [{"name": name, "filename": file, "line": 1} for name, file in stack] for stack in stacks
    ]
    interner.ids(rows, str)
    return interner.table()


def roles_of(*stacks):
    return assign_roles(stack_table(*stacks))


def test_apply_of_a_custom_function_is_backward_only_without_a_caller():
    backward, forward = (
        (("backward", "/w/proj/op.py"), APPLY),
        (("forward", "/w/proj/op.py"), APPLY, USER),
    )
    roles = roles_of(backward, forward, (*backward, ("start_thread", "??")))
    assert roles.has[Role.ENGINE].tolist() == [True, False, True]


def test_the_first_rule_of_a_role_is_the_one_on_record():
    optim = f"{SITE}/torch/optim"
    roles = roles_of([("wrapper", f"{optim}/optimizer.py"), ("step", f"{optim}/adamw.py")])
    assert FRAME_RULES[roles.rule_id[Role.OPTIMIZER, 0]].slug == "optimizer-file"


def test_a_stack_may_have_several_roles():
    roles = roles_of([WORKSPACE, CALL, USER])
    assert {role for role in Role if roles.has[role, 0]} == {Role.WORKSPACE, Role.MODULE_CALL}


def test_no_stack_has_no_role():
    roles = roles_of([CALL])
    assert roles.of(Role.MODULE_CALL, np.array([-1, 0], np.int32)).tolist() == [False, True]
    assert roles_of().of(Role.MODULE_CALL, np.array([-1], np.int32)).tolist() == [False]


def test_captured_stacks_without_frames_are_marked():
    assert roles_of([], [USER]).is_empty.tolist() == [True, False]


def test_a_frame_of_cpp_shows_that_cpp_was_recorded():
    assert roles_of([USER], [("at::empty", "??"), USER]).has_cpp
    assert not roles_of([USER], []).has_cpp
    assert not roles_of().has_cpp


@pytest.mark.parametrize("script", ["/usr/local/bin/tune", "/opt/venv/bin/pytest"])
def test_a_script_without_a_suffix_is_no_cpp(script):
    assert not roles_of([USER, ("<module>", script)], []).has_cpp
