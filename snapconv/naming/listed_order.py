"""The modules that dotted names make, and the orders in which a model allocates their tensors.

A list that was sorted by name has lost the order of registration: siblings then take a customary one.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

# Deeper names are no modules' paths; what is below counts as one name.
_MAX_DEPTH = 64
_NUMBERED = re.compile(r"(\d+)")

# In sorted lists the order of registration is lost. These are the orders of torch's own modules (nn/modules
# of 2.1 to 2.13) and the customs of transformers; siblings in no tuple keep the order of their names.
_TORCH_TENSORS = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
_RECURRENT = re.compile(r"(weight|bias)_(ih|hh|hr)_l(\d{1,9})(_reverse)?$")
_CUSTOMS = (
    _TORCH_TENSORS,
    ("in_proj_weight", "in_proj_bias"),
    ("q", "k", "v", "o"),
    ("q_proj", "k_proj", "v_proj", "o_proj"),
    ("q_proj", "k_proj", "v_proj", "out_proj"),
    ("query", "key", "value"),
    ("wq", "wk", "wv", "wo"),
    ("gate_proj", "up_proj", "down_proj"),
    ("gate", "up", "down"),
    ("w1", "w2", "w3"),
    ("encoder", "decoder"),
)
# Embeddings come first, and what makes the answer last.
_FIRST, _LAST = re.compile(r"emb|^wte$|^wpe$|^tok"), re.compile(r"head|classifier|^logits$|^output$")
_CUSTOMARY_PLACE = {name: place for names in _CUSTOMS for place, name in enumerate(names)}


@dataclass(slots=True)
class Module:
    """A module: the numbers of its own tensors, and the modules in it, in the order of the list."""

    path: tuple[str, ...] = ()
    own: list[int] = field(default_factory=list)
    children: dict[str, "Module"] = field(default_factory=dict)

    def tensors(self, *, is_placed: bool) -> Iterator[int]:
        """Yield all tensors, in the order in which a model allocates them.

        Module.to comes to the modules within first, then to a module's own tensors (_apply of torch 2.1 to
        2.13). A model that is built on the device has them as named_parameters: its own first.
        """
        if not is_placed:
            yield from self.own
        for child in self.children.values():
            yield from child.tensors(is_placed=is_placed)
        if is_placed:
            yield from self.own


def module_tree(names: Sequence[str], is_buffer: Sequence[bool], *, is_ordered: bool) -> Module:
    """Make the tree; where the list is sorted by name, siblings take a customary order."""
    root = Module()
    for number, name in enumerate(names):
        module = root
        for part in name.split(".", _MAX_DEPTH)[:-1]:
            module = module.children.setdefault(part, Module((*module.path, part)))
        module.own.append(number)
    _arrange(root, names, is_buffer, is_ordered=is_ordered)
    return root


def _arrange(module: Module, names: Sequence[str], is_buffer: Sequence[bool], *, is_ordered: bool) -> None:
    """Put parameters before buffers, and the siblings of a sorted list in a customary order."""
    if is_ordered:
        module.own.sort(key=lambda number: is_buffer[number])
    else:
        module.own.sort(key=lambda number: (is_buffer[number], _custom(names[number].rpartition(".")[2])))
        module.children = dict(sorted(module.children.items(), key=lambda item: _custom(item[0])))
    for child in module.children.values():
        _arrange(child, names, is_buffer, is_ordered=is_ordered)


def _custom(name: str) -> tuple[int, list[tuple[int, str]]]:
    """Return the customary place, then the name with its numbers counted, not spelled: 2 before 10."""
    if recurrent := _RECURRENT.match(name):
        kind, gate, layer, is_reverse = recurrent.groups()
        return 0, [(int(layer), ""), (len(is_reverse or ""), ""), (kind == "bias", ""), (gate != "ih", gate)]
    place = _CUSTOMARY_PLACE.get(name, len(_CUSTOMS))
    if _FIRST.search(name):
        place = -1
    elif _LAST.search(name):
        place = len(_CUSTOMS) + 1
    parts = _NUMBERED.split(name)
    return place, [(int(part) if part.isdecimal() and len(part) < 19 else -1, part) for part in parts]
