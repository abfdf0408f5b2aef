"""Which kernels over pages can be chosen, to compile them all without a GPU: `evalsvc.kernels.compiling`.

One scale for a tensor is read as one for each head is, from another address: it has no case of its own. Of the options
the default is compiled and all four; of queries a head of keys a few, and as many as the largest tile has where they
choose its size: in decode of bf16.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from .compiling import Signature
from .paged_launch import Sizes
from .paged_parts import BF16, BY_HEAD, BY_TOKEN, E4M3, E4M3_BYTES, FP32, INT8, NO_SCALE

POINTERS = {FP32: "*fp32", BF16: "*bf16", E4M3: "*fp8e4nv", E4M3_BYTES: "*u8", INT8: "*i8"}
"""Triton's type of pages, by how they are held."""
HEADS = {
    "head 64": (64, 64),
    "head 80": (80, 80),
    "head 128": (128, 128),
    "heads 192 and 128": (192, 128),
    "head 256": (256, 256),
}
_HELD = (
    ("bf16", BF16, None),
    ("fp32", FP32, None),
    ("e4m3", E4M3, True),
    ("e4m3 as bytes", E4M3_BYTES, False),
    ("int8", INT8, True),
    ("int8 without fp8", INT8, False),
)
_SCALES = {"scale of a head": BY_HEAD, "scale of a token and head": BY_TOKEN}
_SWITCHES = ("WINDOWED", "CAPPED", "SINKS", "GUARDED")
_OPTIONS = {"tags": ("GUARDED",), "all options": _SWITCHES}
_FEW, _MANY = 4, 64


@dataclass(frozen=True)
class Case:
    """A configuration of a kernel over pages.

    Attributes:
        name: Says which.
        kind: How pages are held; `scale` whose elements share a scale.
        group: Queries a head of keys.
        options: Of WINDOWED, CAPPED, SINKS and GUARDED those that are on.
        queries: FP32 or BF16.
        fp8: Whether it is chosen only where hardware has e4m3, or, if False, only where it has not; None: everywhere.
    """

    name: str
    kind: int
    scale: int
    group: int
    dim: int
    v_dim: int
    options: tuple[str, ...]
    queries: int
    fp8: bool | None

    @property
    def wide(self) -> bool:
        """Whether products are in fp32."""
        return FP32 in (self.kind, self.queries)

    def constants(self, sizes: Sizes) -> dict[str, Any]:
        """What is compiled in; `sizes` gives the sides of tiles."""
        switches = {name: name in self.options for name in _SWITCHES}
        half, fp32 = self.kind == E4M3 and not self.wide, self.queries == FP32
        kinds = {"KIND": self.kind, "SCALE": self.scale, "WIDE": self.wide, "HALF": half, "FP32": fp32}
        sides = sizes(self.group, self.dim, self.v_dim, self.kind, self.wide, self.fp8 is not False)
        return sides | kinds | switches | {"blocks": 1}

    def pointers(self) -> dict[str, str]:
        """Triton's types of the tensors that every kernel over pages takes."""
        number = POINTERS[self.queries]
        scale = "*fp32" if self.scale else number
        found = {"q": number, "sinks": number, "out": number, "k_scale": scale, "v_scale": scale}
        found |= {"k": POINTERS[self.kind], "v": POINTERS[self.kind]}
        return found | dict.fromkeys(("pages", "lengths", "stamps", "expected", "faults", "sound"), "*i32")


def cases(tiles_by_group: bool) -> Iterator[Case]:
    """All of them, and some of queries and pages of unlike width.

    Args:
        tiles_by_group: Whether queries a head of keys choose a tile's size, where pages are in bf16.
    """
    for held, head in product(_HELD, HEADS):
        queries = FP32 if held[1] == FP32 else BF16
        for scale in _scales(held[1]):
            yield from (_case(held, head, scale, _FEW, options, queries) for options in _OPTIONS)
            if tiles_by_group and held[1] == BF16:
                yield _case(held, head, scale, _MANY, "all options", queries)
    for held, head in product(_HELD, ("head 128", "head 256")):
        queries = BF16 if held[1] == FP32 else FP32
        yield _case(held, head, _scales(held[1])[-1], _FEW, "all options", queries)


def _scales(kind: int) -> tuple[str, ...]:
    return ("",) if kind in (FP32, BF16) else tuple(_SCALES)


def _case(held: tuple[str, int, bool | None], head: str, scale: str, group: int, options: str, queries: int) -> Case:
    word, kind, fp8 = held
    unlike = {FP32: "queries in fp32", BF16: "queries in bf16"}[queries] if (queries == FP32) != (kind == FP32) else ""
    name = ", ".join(part for part in (word, unlike, scale, head, "64 queries a key" * (group == _MANY)) if part)
    numbers = (group, *HEADS[head], _OPTIONS[options])
    return Case(f"{name}; {options}", kind, _SCALES.get(scale, NO_SCALE), *numbers, queries, fp8)


def case_signatures(
    kernel: str,
    fn: Any,
    some: Iterable[Case],
    sizes: Sizes,
    options: Callable[[dict[str, Any]], dict[str, int]],
    pointers: Mapping[str, str],
    numbers: Mapping[str, str],
    **constants: Any,
) -> list[Signature]:
    """A kernel in each of some cases.

    Args:
        kernel: Its name.
        fn: As in `Signature`.
        some: The cases.
        sizes: Sides of tiles; `options` the warps and stages that go with what is compiled in.
        pointers: Triton's types of pointers that this kernel takes beside those of all; `numbers` alike.
        constants: What is compiled in beside what is in all.
    """
    found = []
    for case in some:
        types, compiled = {**case.pointers(), **pointers}, case.constants(sizes) | constants
        signature = Signature(
            f"{kernel} {case.name}",
            fn,
            {**types, **numbers},
            compiled,
            needs_fp8=case.fp8 is True,
            lacks_fp8=case.fp8 is False,
            aligned=tuple(types),
            **options(compiled),
        )
        found.append(signature)
    return found
