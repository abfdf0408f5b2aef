"""The order in which items are asked, and where a sequential design looks: from the seed and the items alone.

Whole clusters stand together, so that a block never ends inside one.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

Place = tuple[str, str]  # suite, item id


@dataclass(frozen=True, order=True)
class Placed:
    """An item, with what says which others it flips together with.

    Attributes:
        cluster: Label inside suite and family; empty when the item stands alone.
    """

    suite: str
    family: str
    cluster: str
    item_id: str

    @property
    def place(self) -> Place:
        """Suite and item id."""
        return self.suite, self.item_id

    @property
    def unit(self) -> str:
        """Label of the unit that it belongs to: its cluster, or itself."""
        return cluster_label(self.suite, self.family, self.cluster) or "\x1e".join(self.place)


def cluster_label(suite: str, family: str, cluster: str) -> str:
    """A cluster's label among all suites; empty where there is none."""
    return "\x1f".join((suite, family, cluster)) if cluster else ""


def in_order(items: Iterable[Placed], seed: int) -> list[Placed]:
    """Each item once, shuffled by the seed, items of one cluster side by side."""
    return sorted(set(items), key=lambda item: (_draw(seed, item.unit), _draw(seed, item.item_id), item))


def _draw(seed: int, text: str) -> bytes:
    return hashlib.sha256(f"{seed}\x1d{text}".encode("utf-8", "surrogatepass")).digest()


@dataclass(frozen=True)
class Looks:
    """Where a design looks at its items.

    Attributes:
        position: Place of each planned item in the order.
        ends: Items up to each look that was taken.
        largest: By suite the items of its largest cluster.
    """

    position: Mapping[Place, int]
    ends: tuple[int, ...]
    largest: Mapping[str, int]

    @property
    def planned(self) -> int:
        """Items in all."""
        return len(self.position)

    @property
    def complete(self) -> bool:
        """Whether the last look saw all of them."""
        return bool(self.ends) and self.ends[-1] == self.planned

    def first(self, items: int) -> "Looks":
        """The looks at no more than the first so many items."""
        return replace(self, ends=tuple(end for end in self.ends if end <= items))


def plan_looks(items: Iterable[Placed], seed: int, block_items: int) -> Looks:
    """Where a design looks at these items.

    Args:
        items: All that are planned.
        seed: Of the order in which they are asked.
        block_items: Least number of items between two looks; a block never ends inside a cluster.
    """
    ordered = in_order(items, seed)
    units = Counter(item.unit for item in ordered)
    largest: dict[str, int] = {}
    for item in ordered:
        largest[item.suite] = max(largest.get(item.suite, 1), units[item.unit])
    return Looks(
        position={item.place: index for index, item in enumerate(ordered)},
        ends=tuple(_block_ends(ordered, block_items)),
        largest=largest,
    )


def _block_ends(ordered: Sequence[Placed], size: int) -> Iterator[int]:
    start = 0
    for end, item in enumerate(ordered, start=1):
        if end == len(ordered) or (end - start >= size and ordered[end].unit != item.unit):
            yield end
            start = end
