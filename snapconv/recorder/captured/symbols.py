"""The names of C++ functions in torch's stacks: all of them, and not only those that its libraries export.

torch names a stack's addresses when they are requested, in one of three ways that TORCH_SYMBOLIZE_MODE
chooses (torch/csrc/profiler/unwind/unwind.cpp). By itself torch 2.15 takes ``dladdr``, which has what is
exported: of 327 functions in the stacks of one step 145 have a name. ``addr2line``, which 2.13 takes, starts
programs and needs seconds; ``fast`` reads the libraries itself, and names what ``addr2line`` names in a tenth
of the time.
"""

import os
from functools import cache

_CHOICE = "TORCH_SYMBOLIZE_MODE"


@cache
def name_every_function() -> None:
    """Have torch take ``fast``, unless the environment or an earlier stack has made the choice.

    torch reads the variable at the first stack, which is one of ours here; the program never sees it. A torch
    that does not support the word raises an error, and reads the variable again at the next stack.
    """
    import torch

    if _CHOICE in os.environ:
        return
    profiler = torch._C._profiler
    os.environ[_CHOICE] = "fast"
    try:
        profiler.symbolize_tracebacks([profiler.gather_traceback(False, False, True)])
    except RuntimeError:
        pass
    finally:
        del os.environ[_CHOICE]
