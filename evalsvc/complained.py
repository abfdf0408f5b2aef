"""Where a complaint of pydantic lies in what a person wrote, and what may stand there."""

import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

Place = tuple[int | str, ...]


@dataclass(frozen=True)
class Spot:
    """Where a complaint of pydantic lies: its place, what may stand there, and the field that it fills, if any."""

    place: Place
    kinds: tuple[Any, ...]
    field: FieldInfo | None


def placed(detail: ErrorDetails) -> ErrorDetails:
    """A complaint of our own that names a key further inside is moved there."""
    further = getattr(detail.get("ctx", {}).get("error"), "loc", ())
    return {**detail, "loc": (*detail["loc"], *further)}


def spot_of(model: type[BaseModel], detail: ErrorDetails) -> Spot:
    """Follows a location of pydantic, which holds tags and names of alternatives that nobody wrote."""
    kinds: tuple[Any, ...] = (model,)
    place, field = [], None
    for part in detail["loc"]:
        models = [kind for kind in kinds if is_model(kind)]
        tagged = [kind for kind in models if part in tags(kind)] if len(models) > 1 else []
        inner = tagged or [one for kind in kinds for one in _inside(kind, part)]
        if not tagged and inner:
            place.append(part)
            owner = next((kind for kind in models if part in kind.model_fields), None)
            field = None if owner is None else owner.model_fields[str(part)]
        kinds = tuple(member for one in inner for member in members(one)) or kinds
    if detail["type"] in ("extra_forbidden", "missing", "invalid_key") and (
        not place or place[-1] != detail["loc"][-1]
    ):
        place.append(detail["loc"][-1])
    return Spot(tuple(place), kinds, field)


def _inside(kind: Any, part: int | str) -> list[Any]:
    """What may stand under a key or index of one kind; nothing where it has no such."""
    if is_model(kind):
        return [kind.model_fields[part].annotation] if part in kind.model_fields else []
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is dict and part != "[key]":
        return [arguments[1]]
    return [arguments[0]] if origin in (list, tuple) and isinstance(part, int) else []


def members(annotation: Any) -> Iterator[Any]:
    """The alternatives of an annotation, without what only narrows them."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from members(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for one in get_args(annotation):
            yield from members(one)
    elif annotation is not type(None):
        yield annotation


def is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def tags(kind: Any) -> tuple[Any, ...]:
    """Values of a model's `kind`, by which a union finds it."""
    if not is_model(kind) or "kind" not in kind.model_fields:
        return ()
    annotation = kind.model_fields["kind"].annotation
    return get_args(annotation) if get_origin(annotation) is Literal else ()
