"""The JSON of every command -> its JSON Schema (draft 2020-12), as docs/reference/schemas has it.

Keys come from the catalogue, or from the dataclass that the command prints. A schema allows further
keys, since any version may add some.
"""

import json
import typing
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from scripts.docs import catalogs
from scripts.docs.reference_pages import DOCUMENTS
from snapconv.cli.terminal import JSON_VERSION

_Schema = dict[str, Any]
_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_TYPES = {int: "integer", str: "string", bool: "boolean", float: "number", type(None): "null"}
# What every device's object has beside the answer.
_OF_DEVICE: _Schema = {
    "device": {"type": "integer", "description": "its ordinal; -1: pinned host memory"},
    "kind": {"type": "string"},
    "failed": {"type": "boolean", "description": "whether a request failed for want of memory"},
}
# `oom` prints a device's failure with the tried remedies in a key of it, or the text of a message.
_REMEDIES = "Remedies"
COMMANDS = (*DOCUMENTS, *catalogs.json_keys())


def schema_text(command: str) -> str:
    """Return the schema of a command's document as text."""
    return json.dumps(json_schema(command), indent=2, ensure_ascii=False) + "\n"


def schema_links() -> str:
    """Return links to all schemas."""
    return ",\n".join(f"[`{name}`](schemas/{name}.json)" for name in COMMANDS) + "."


def json_schema(command: str) -> _Schema:
    """Return the schema of a command's document."""
    catalogue = catalogs.json_keys()
    if command in catalogue:
        schema = _catalogue_schema(catalogue[command])
    else:
        schema = _answer_schema(DOCUMENTS[command])
    properties = {"json_version": {"const": JSON_VERSION}, **schema["properties"]}
    title = f"snapconv {command} --json"
    document = schema | _object(properties) | {"required": ["json_version"]}
    return {"$schema": _DRAFT, "title": title, **document}


# --- from the catalogue


def _catalogue_schema(keys: Sequence[catalogs.JsonKey]) -> _Schema:
    root: _Schema = {}
    for key in keys:
        node = root
        for name in key.path.split("."):
            n_arrays = name.count("[]")
            node = _below(node, name.replace("[]", ""))
            for _ in range(n_arrays):
                node = node.setdefault("items", {})
        node |= _type_of_words(key.type) | {"description": key.meaning}
    return root


def _below(node: _Schema, name: str) -> _Schema:
    """Return the schema of a key; ``*`` stands for all names."""
    if name == "*":
        below: _Schema = node.setdefault("additionalProperties", {})
    else:
        below = node.setdefault("properties", {}).setdefault(name, {})
    return below


def _type_of_words(words: str) -> _Schema:
    """Return the schema of a type as the catalogue has it: ``array of integers or null``."""
    kinds = []
    schema: _Schema = {}
    for word in words.split(" or "):
        kind, _, items = word.partition(" of ")
        kinds.append(kind)
        if items:
            schema["items"] = {"type": items.removesuffix("s")}
    return {"type": kinds[0] if len(kinds) == 1 else kinds, **schema}


# --- from dataclasses


def _answer_schema(shapes: Sequence[type]) -> _Schema:
    shape, *others = shapes
    definitions: dict[str, _Schema] = {}
    device = _OF_DEVICE | _properties(shape, definitions)
    alone: _Schema = {}
    for other in others:
        if other.__name__ == _REMEDIES:
            device["remedies"] = _schema_of(other | None, definitions)
        else:  # the document is this alone
            alone |= _properties(other, definitions)
    devices = {"type": "array", "items": _object(device)}
    return {"properties": {"devices": devices, **alone}, "$defs": definitions}


def _properties(shape: Any, definitions: dict[str, _Schema]) -> _Schema:
    hints = typing.get_type_hints(shape)
    shown = [field.name for field in fields(shape) if field.metadata.get("json", True)]
    return {name: _schema_of(hints[name], definitions) for name in shown}


def _object(properties: _Schema) -> _Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _schema_of(hint: Any, definitions: dict[str, _Schema]) -> _Schema:
    """Return the schema of a type; a dataclass, which may have itself in it, is a definition."""
    parts = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if origin is tuple:
        return _array(parts, definitions)
    if origin is dict:
        values = _schema_of(parts[1], definitions)
        return {"type": "object", "additionalProperties": values}
    if parts:
        return {"anyOf": [_schema_of(part, definitions) for part in parts]}
    if is_dataclass(hint):
        name = hint.__name__  # type: ignore[union-attr]
        if name not in definitions:
            definitions[name] = {}
            definitions[name] |= _object(_properties(hint, definitions))
        return {"$ref": f"#/$defs/{name}"}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"enum": [member.value for member in hint]}
    return {"type": _TYPES[hint]} if hint in _TYPES else {}


def _array(parts: Sequence[Any], definitions: dict[str, _Schema]) -> _Schema:
    """Return the schema of a tuple: of one type, or of one for each place."""
    if len(parts) == 1 or Ellipsis in parts:
        return {"type": "array", "items": _schema_of(parts[0], definitions)}
    places = [_schema_of(part, definitions) for part in parts]
    return {"type": "array", "prefixItems": places, "minItems": len(places)}
