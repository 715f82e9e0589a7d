"""Names of a job -> names that say nothing about it: the same name for the same thing, in the whole file.

What is public stays, since categories and operations are inferred from it: the files and functions of torch,
C++ names made of nothing but known namespaces, and the few function names that torch itself prescribes.
"""

import posixpath
import re
from collections.abc import Iterable

from snapconv.allocator.allocator_settings import TORCH_SETTING_NAMES, split_conf
from snapconv.errors import SettingError
from snapconv.snapshot.settings_table import Entries
from snapconv.stacks.paths import is_generated, is_native, is_notebook, normal

_OF_TORCH = re.compile(r"(?:^|/)(?:site|dist)-packages/(torch(?:_npu)?/[\w/.-]+\.py)$")
# What modules, autograd functions, optimizers and generated code have to call their functions.
_PRESCRIBED = frozenset(
    "forward backward step apply call closure setup_context training_step <module> <lambda> <listcomp> "
    "<dictcomp> <genexpr> __init__ __call__ __new__ __enter__ __exit__".split()
)
# A name with what it is in: `at::native::add` is of `at`, and so is everything after it.
_QUALIFIED = re.compile(r"(?:::)?[A-Za-z_]\w*(?:::~?[A-Za-z_]\w*|::\(anonymous namespace\)|::\{lambda)*")
_NAMESPACES = frozenset("at c10 c10d c10_npu torch torch_npu caffe2 std cuda".split())
_CPP_WORDS = frozenset(
    "void bool char short int long float double unsigned signed const auto decltype operator lambda "
    "anonymous namespace clone isra constprop part cold lto_priv int8_t int16_t int32_t int64_t uint8_t "
    "uint16_t uint32_t uint64_t size_t ul l".split()
)
_OF_PYTHON = re.compile(r"_?Py(?:Eval|Object|Function|Method|CFunction|Vectorcall|Run|Main|Mem|Import)?_\w+")
# Where torch's own names begin, and the user's may follow.
_OPTIMIZER = re.compile(r"(Optimizer\.(?:step|zero_grad)#)(\w+)(\.(?:step|zero_grad))")
_OF_TORCH_TEXT = re.compile(r"N/A|Torch-Compiled Region: \d+/\d+|ProfilerStep#\d+")
_OPTIMIZERS = frozenset(
    "ASGD Adadelta Adafactor Adagrad Adam AdamW Adamax LBFGS Muon NAdam RAdam RMSprop Rprop SGD "
    "SparseAdam".split()
)
_SETTING_VALUE = re.compile(r"True|False|native|cudaMallocAsync|-?[\d.]+|[\d>:,\[\].-]+")


class Redaction:
    """New names for what one file contains, numbered as they come."""

    def __init__(self) -> None:
        self._names: dict[str, dict[str, int]] = {}

    def frame(self, function: str, filename: str) -> tuple[str, str]:
        """Redact a function's name and its file's, as they may be given away."""
        path = normal(filename) and posixpath.normpath(normal(filename))  # or `torch/../NAME` were torch's
        if found := _OF_TORCH.search(path):
            return function, f"/redacted/site-packages/{found[1]}"
        if is_native(filename):
            public = function if _is_public_cpp(function) else self._numbered("native", function)
            return public, filename if filename in ("", "??") else f"{self._numbered('library', filename)}.so"
        shown = function if function in _PRESCRIBED else self._numbered("function", function)
        return shown, self._file(path)

    def text(self, text: str) -> str:
        """Redact an annotation, or any other text on an event."""
        if not text or _OF_TORCH_TEXT.fullmatch(text):
            return text
        if found := _OPTIMIZER.fullmatch(text):
            name = found[2] if found[2] in _OPTIMIZERS else self._numbered("optimizer", found[2])
            return f"{found[1]}{name}{found[3]}"
        return self._numbered("annotation", text)

    def settings(self, entries: Entries) -> Entries:
        """Redact the settings: those that torch has, with values as torch writes them."""
        return tuple(_public_settings(entries))

    def _file(self, path: str) -> str:
        if is_notebook(path):
            return f"/redacted/ipykernel_1/{self._number('cell', path)}.py"
        # What torch.compile has written is known by its folder.
        folder = "/redacted/torchinductor_redacted" if is_generated(path) else "/redacted"
        installed = "/site-packages" if re.search(r"(^|/)(site|dist)-packages/", path) else ""
        return f"{folder}{installed}/{self._numbered('file', path)}.py" if path else path

    def _numbered(self, kind: str, name: str) -> str:
        return f"{kind}_{self._number(kind, name)}" if name else name

    def _number(self, kind: str, name: str) -> int:
        names = self._names.setdefault(kind, {})
        return names.setdefault(name, len(names) + 1)


def _is_public_cpp(name: str) -> bool:
    """Whether a C++ symbol is made of nothing but known namespaces, types of C++, and Python's own names."""
    roots = (found[0].removeprefix("::").split("::")[0] for found in _QUALIFIED.finditer(name))
    qualified = [found[0] for found in _QUALIFIED.finditer(name)]
    return bool(qualified) and all(
        (root in _NAMESPACES and "::" in whole) or root in _CPP_WORDS or bool(_OF_PYTHON.fullmatch(root))
        for root, whole in zip(roots, qualified, strict=True)
    )


def _public_settings(entries: Entries) -> Iterable[tuple[str, str]]:
    for key, value in entries:
        if key in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
            yield key, _public_conf(value)
        elif key in TORCH_SETTING_NAMES and _SETTING_VALUE.fullmatch(value):
            yield key, value


def _public_conf(conf: str) -> str:
    try:
        values = split_conf(conf)
    except SettingError:  # what torch could not read either
        return ""
    public = {key: value for key, value in values.items() if key in TORCH_SETTING_NAMES}
    return ",".join(f"{key}:{value}" for key, value in public.items() if _SETTING_VALUE.fullmatch(value))
