"""YAML files read safely into models; what is wrong is said with its line, or its key and the nearest right one."""

import difflib
import hashlib
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from chargeback.errors import ConfigError


class Origin(BaseModel):
    """A file that was read: its path, SHA-256 and size, for the manifest."""

    path: Path
    sha256: str
    bytes: int


M = TypeVar("M", bound=BaseModel)
MAX_YAML_BYTES = 16 * 2**20


class _Loader(yaml.SafeLoader):
    """Safe YAML that refuses a key written twice, and aliases, which can make a small file endless."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.constructor.ConstructorError(None, None, "aliases are not read; write the value out", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            name = self.construct_object(key, deep=True)
            if not isinstance(name, str | int | float | bool | date | type(None)):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a plain value", key.start_mark)
            if name in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {name!r} is written twice", key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path, what: str) -> tuple[Mapping[str, Any], str, int]:
    """The mapping in a YAML file, the file's SHA-256 and size. Raises `ConfigError` with line and column."""
    try:
        if path.stat().st_size > MAX_YAML_BYTES:
            raise ConfigError(f"{path}: a {what} of over {MAX_YAML_BYTES >> 20} MiB", "this is not the right file")
        raw = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such {what}", "chargeback init writes one to start from") from None
    except OSError as e:
        raise ConfigError(f"{path}: cannot be read: {e.strerror}", "check the path and its permissions") from None
    try:
        data = yaml.load(raw, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as e:
        mark = getattr(e, "problem_mark", None)
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        reason = getattr(e, "problem", None) or getattr(e, "reason", None) or "not valid YAML"
        raise ConfigError(f"{path}{where}: {reason}", "correct the YAML there") from None
    if not isinstance(data, dict) or not all(isinstance(k, str) for k in data):
        raise ConfigError(f"{path}: not a {what}", "the file must hold keys with values")
    return data, hashlib.sha256(raw).hexdigest(), len(raw)


def parse(model: type[M], data: Any, path: Path) -> M:
    """`data` as a `model`; all that is wrong in one `ConfigError`, each with its key's path."""
    try:
        return model.model_validate(data)
    except ValidationError as e:
        lines = [_sentence(model, dict(error)) for error in e.errors()]
        more = "" if len(lines) == 1 else f" (and {len(lines) - 1} more: {'; '.join(lines[1:6])})"
        raise ConfigError(f"{path}: {lines[0]}{more}", "see docs/configuration.md for every key") from None


def _sentence(model: type[BaseModel], error: dict[str, Any]) -> str:
    where = ".".join(str(p) for p in error["loc"] if not str(p).startswith(("function-", "tuple[", "literal[")))
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(error["loc"][-1]), _known_keys(model, error["loc"][:-1]), 1, 0.5)
        return f"unknown key {where}" + (f"; did you mean {near[0]}?" if near else "")
    if error["type"] == "missing":
        return f"{where} is missing"
    message = str(error["msg"]).removeprefix("Value error, ")
    return f"{where}: {message}" if where else message


def _known_keys(model: type[BaseModel], loc: tuple[Any, ...]) -> list[str]:
    """Keys of the models that may stand at `loc`; numbers, names of a mapping and of a union's arm are passed over."""
    here = [model]
    for step in loc:
        below = [m for h in here if (f := _field(h, step)) for m in _models_in(f.annotation)]
        here = below or here
    return sorted({f.alias or n for h in here for n, f in h.model_fields.items()})


def _field(model: type[BaseModel], key: Any) -> FieldInfo | None:
    return next((f for n, f in model.model_fields.items() if key in (n, f.alias)), None)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for a in getattr(annotation, "__args__", ()) for m in _models_in(a)]
