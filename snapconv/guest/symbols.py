"""The names of C++ functions in torch's stacks."""

import os
from functools import cache

_CHOICE = "TORCH_SYMBOLIZE_MODE"


@cache
def name_every_function() -> None:
    """Let torch name C++ functions by its symbolizer ``fast``, unless one is chosen already.

    Of the other two, ``dladdr`` knows exported functions only, and ``addr2line`` starts another
    program for each library, which takes long. The environment or an earlier stack may have chosen.
    torch reads the variable at the first stack that it symbolizes, which is one of ours here; the
    program never sees it. A torch that does not support the word raises an error, and reads the
    variable again at the next stack.
    """
    import torch

    if _CHOICE in os.environ:
        return
    profiler = torch._C._profiler
    os.environ[_CHOICE] = "fast"
    try:
        # C++ frames alone (python, script, cpp): they need the symbolizer.
        profiler.symbolize_tracebacks([profiler.gather_traceback(False, False, True)])
    except RuntimeError:
        pass
    finally:
        del os.environ[_CHOICE]
