"""Which pages hold a request's keys and values, as kernels over pages read it, and what they refuse.

A page is PAGE consecutive positions of one request: position p lies in slot pages[p // PAGE] * PAGE + p % PAGE.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from evalsvc.errors import CapabilityError

PAGE = 16
QUERIES = (torch.float32, torch.bfloat16)
STORED = (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8)


@dataclass(frozen=True)
class PageTable:
    """The requests of a packed batch.

    Attributes:
        pages: Page of each PAGE positions; -1 behind a request's last. Shape: (requests, columns), int32.
        lengths: Keys that a request has, those of its queries the last. Shape: (requests,), int32.
        counts: Queries of each request, packed one request after the other.
        known: `lengths` without asking the device; None: not known.
    """

    pages: Tensor
    lengths: Tensor
    counts: tuple[int, ...]
    known: tuple[int, ...] | None = None
    _tiles: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, pages: list[list[int]], lengths: list[int], counts: list[int], device: str = "cpu") -> "PageTable":
        """A table from lists."""
        columns = max(len(row) for row in pages)
        padded = [[*row, *[-1] * (columns - len(row))] for row in pages]
        table, ends = (torch.tensor(part, dtype=torch.int32, device=device) for part in (padded, lengths))
        return cls(table, ends, tuple(counts), tuple(lengths))

    @property
    def decodes(self) -> bool:
        """Whether every request has one query."""
        return all(count == 1 for count in self.counts)

    def reads(self, window: int | None) -> int:
        """Slots that requests' queries read, those that several requests share counted for each."""
        return slots_read(self.lengths.tolist() if self.known is None else self.known, self.counts, window)

    def slots(self, request: int) -> Tensor:
        """Slots of a request's keys, in order of position. Shape: (length,)."""
        at = torch.arange(int(self.lengths[request]), device=self.pages.device)
        return self.pages[request, at // PAGE].long() * PAGE + at % PAGE

    def tiles(self, size: int) -> tuple[Tensor, Tensor]:
        """Queries in tiles of `size` that begin anew with each request.

        Returns:
            Each tile's request, and the queries of that request before it. Shape: (tiles,), int32.
        """
        if size not in self._tiles:
            found = [(i, first) for i, count in enumerate(self.counts) for first in range(0, count, size)]
            both = torch.tensor(found, dtype=torch.int32, device=self.pages.device).view(-1, 2).T.contiguous()
            self._tiles[size] = (both[0], both[1])
        return self._tiles[size]

    @cached_property
    def in_order(self) -> "PageTable":
        """The same requests over a copy of their keys, request after request, each from a page of its own on."""
        ends = self.lengths.tolist() if self.known is None else list(self.known)
        rows, first = [], 0
        for end in ends:
            rows.append(list(range(first, first - (-end // PAGE))))
            first += len(rows[-1])
        return PageTable.of(rows, ends, list(self.counts), str(self.pages.device))

    @cached_property
    def owners(self) -> Tensor:
        """Request of each query. Shape: (queries,), int64."""
        found = [i for i, count in enumerate(self.counts) for _ in range(count)]
        return torch.tensor(found, dtype=torch.long, device=self.pages.device)

    @cached_property
    def by_query(self) -> "PageTable":
        """Each query as a request of its own, whose keys are those up to its own."""
        if self.decodes:
            return self
        ends = self.lengths.tolist() if self.known is None else self.known
        of_queries = zip(ends, self.counts, strict=True)
        lengths = [end - count + i + 1 for end, count in of_queries for i in range(count)]
        last = torch.tensor(lengths, dtype=torch.int32, device=self.pages.device)
        return PageTable(self.pages[self.owners], last, (1,) * len(lengths), tuple(lengths))

    @cached_property
    def starts(self) -> Tensor:
        """Where each request's queries begin, and where the last one's end. Shape: (requests + 1,), int32."""
        ends = torch.tensor((0, *self.counts), dtype=torch.int32).cumsum(0, dtype=torch.int32)
        return ends.to(self.pages.device)


def slots_read(lengths: Sequence[int], counts: Sequence[int], window: int | None) -> int:
    """As `PageTable.reads`, of requests that have so many keys, and so many queries."""
    unseen = 0
    if window is not None:
        unseen = sum(max(n - count + 1 - window, 0) for n, count in zip(lengths, counts, strict=True))
    return sum(lengths) - unseen


@dataclass(frozen=True)
class Guarding:
    """Stamps of one layer that a kernel compares, and what it found.

    Attributes:
        stamps: Tag and position of each slot. Shape: (slots, 2), int32.
        expected: Tag of each page of the table. Shape: (requests, columns), int32.
        faults: 0 where all slots are sound, else 2^31 - 1 - the first position that is not: a maximum over what
            programs find. Shape: (requests,), int32.
        sound: Slots that were found sound. Shape: (requests,), int32.
    """

    stamps: Tensor
    expected: Tensor
    faults: Tensor
    sound: Tensor

    @classmethod
    def over(cls, stamps: Tensor, expected: Tensor) -> "Guarding":
        """With nothing found yet."""
        faults, sound = torch.zeros((2, len(expected)), dtype=torch.int32, device=stamps.device)
        return cls(stamps, expected, faults, sound)

    def compare(self, table: PageTable, window: int | None, chosen: Tensor | None = None) -> None:
        """Adds what a torch form finds: all that some query of each request reads.

        Args:
            table: The requests.
            window: As in `paged_decode`.
            chosen: As in `latent_decode`.
        """
        for i, count in enumerate(table.counts):
            slots, length = table.slots(i), int(table.lengths[i])
            oldest = 0 if window is None else max(length - count + 1 - window, 0)
            position = torch.arange(oldest, length, device=slots.device)
            if chosen is not None:
                position = chosen[i, :length].long()
            wanted = torch.stack([self.expected[i, position // PAGE], position.int()], dim=1)
            same = (self.stamps[slots[position]] == wanted).all(1)
            self.sound[i] += same.sum()
            if count and not bool(same.all()):
                first = int(position[~same][0])
                self.faults[i] = max(int(self.faults[i]), 2**31 - 1 - first)

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """In the order in which kernels take them."""
        return self.stamps, self.expected, self.faults, self.sound

    def first_bad(self) -> Tensor:
        """0 where all slots are sound, else 1 + the first position that is not. Shape: (requests,), int64."""
        return torch.where(self.faults == 0, 0, 2**31 - self.faults.long())


def refuse(kernel: str, problems: Mapping[str, bool]) -> None:
    """Refuses a launch.

    Args:
        kernel: Whose.
        problems: Sentence to whether it holds.

    Raises:
        CapabilityError: Names the kernel and the first problem.
    """
    for sentence, holds in problems.items():
        if holds:
            raise CapabilityError(f"kernel {kernel}: {sentence}")


def check_launch(
    kernel: str,
    table: PageTable,
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
    guarding: Guarding | None,
) -> None:
    """Refuses what no attention over pages computes; arguments as in `paged_decode`.

    Raises:
        CapabilityError: Names the first thing that does not go with the others.
    """
    check_pages(kernel, q, k_pages, v_pages, k_scale, v_scale)
    check_options(kernel, q, table, window, softcap, sinks)
    check_guarding(kernel, len(k_pages), table, guarding)


def check_pages(
    kernel: str, q: Tensor, k_pages: Tensor, v_pages: Tensor, k_scale: Tensor | None, v_scale: Tensor | None
) -> None:
    """Refuses what no attention over pages computes.

    Raises:
        CapabilityError: Shapes, types, devices or memory layouts that do not go together.
    """
    tensors = {"q": q, "k_pages": k_pages, "v_pages": v_pages}
    scales = {name: scale for name, scale in (("k_scale", k_scale), ("v_scale", v_scale)) if scale is not None}
    refuse(kernel, {f"{name} has {t.ndim} dimensions, not 3": t.ndim != 3 for name, t in tensors.items()})
    slots, kv_heads, head_dim = k_pages.shape
    found = {f"q is {q.dtype}; served: {', '.join(map(str, QUERIES))}": q.dtype not in QUERIES}
    found |= type_problems(k_pages, v_pages, k_scale, v_scale)
    found |= {
        f"v_pages have shape {tuple(v_pages.shape)}, k_pages {tuple(k_pages.shape)}": v_pages.shape[:2]
        != (slots, kv_heads),
        f"q has head_dim {q.shape[2]}, k_pages {head_dim}": q.shape[2] != head_dim,
        f"{q.shape[1]} heads are no multiple of {kv_heads} KV heads": q.shape[1] % kv_heads != 0,
        f"{slots} slots are no whole pages of {PAGE}": slots % PAGE != 0,
    }
    shapes = ((), (kv_heads,), (slots, kv_heads))
    for name, scale in scales.items():
        found[f"{name} has shape {tuple(scale.shape)}; served: {shapes}"] = tuple(scale.shape) not in shapes
    if len(scales) == 2:
        found["k_scale and v_scale differ in shape"] = scales["k_scale"].shape != scales["v_scale"].shape
    refuse(kernel, found | place_problems(tensors | scales, "q", q))


def type_problems(k_pages: Tensor, v_pages: Tensor, k_scale: Tensor | None, v_scale: Tensor | None) -> dict[str, bool]:
    """What `refuse` refuses of the types of pages and of their scales."""
    quantized, scales = k_pages.dtype not in QUERIES, {"k_scale": k_scale, "v_scale": v_scale}
    given = {name: scale for name, scale in scales.items() if scale is not None}
    found = {
        f"pages are {k_pages.dtype}; served: {', '.join(map(str, STORED))}": k_pages.dtype not in STORED,
        f"k_pages are {k_pages.dtype}, v_pages {v_pages.dtype}": k_pages.dtype != v_pages.dtype,
        f"{k_pages.dtype} pages need scales of keys and of values": quantized and len(given) != 2,
        f"{k_pages.dtype} pages have no scales": not quantized and len(given) != 0,
    }
    wrong = {name: scale.dtype != torch.float32 for name, scale in given.items()}
    return found | {f"{name} is {given[name].dtype}, not torch.float32": is_wrong for name, is_wrong in wrong.items()}


def place_problems(tensors: Mapping[str, Tensor], first: str, beside: Tensor) -> dict[str, bool]:
    """What `refuse` refuses of where tensors lie: on another device than the one called `first`, or not contiguous."""
    found = {}
    for name, tensor in tensors.items():
        found[f"{name} is on {tensor.device}, {first} on {beside.device}"] = tensor.device != beside.device
        found[f"{name} is not contiguous"] = not tensor.is_contiguous()
    return found


def check_options(
    kernel: str, q: Tensor, table: PageTable, window: int | None, softcap: float | None, sinks: Tensor | None
) -> None:
    """Refuses a table or options of another shape, type, device or range.

    Raises:
        CapabilityError: Names what.
    """
    found = {
        f"the page table is {table.pages.dtype} and {table.lengths.dtype}, not torch.int32": {
            table.pages.dtype,
            table.lengths.dtype,
        }
        != {torch.int32},
        f"the page table has {len(table.pages)} rows for {len(table.lengths)} lengths": table.pages.shape[:1]
        != table.lengths.shape,
        f"{len(table.counts)} requests have queries, {len(table.pages)} have pages": len(table.counts)
        != len(table.pages),
        f"{sum(table.counts)} queries are told, {len(q)} are there": sum(table.counts) != len(q),
        f"the page table is on {table.pages.device}, q on {q.device}": table.pages.device != q.device
        or table.lengths.device != q.device,
        "the page table is not contiguous": not (table.pages.is_contiguous() and table.lengths.is_contiguous()),
        f"window {window} is below 1": window is not None and window < 1,
        f"softcap {softcap} is not above 0": softcap is not None and softcap <= 0,
    }
    if sinks is not None:
        found[f"sinks have shape {tuple(sinks.shape)}, not {(q.shape[1],)}"] = sinks.shape != q.shape[1:2]
        found[f"sinks are on {sinks.device}, q on {q.device}"] = sinks.device != q.device
    refuse(kernel, found)


def check_guarding(kernel: str, slots: int, table: PageTable, guarding: Guarding | None) -> None:
    """Refuses stamps that do not go with the pages and their table.

    Raises:
        CapabilityError: Names what.
    """
    if guarding is None:
        return
    requests = (len(table.pages),)
    wanted = {"stamps": (slots, 2), "expected": table.pages.shape, "faults": requests, "sound": requests}
    found = {}
    for (name, shape), tensor in zip(wanted.items(), guarding.tensors(), strict=True):
        found[f"{name} have shape {tuple(tensor.shape)}, not {tuple(shape)}"] = tensor.shape != tuple(shape)
        found[f"{name} are {tensor.dtype}, not torch.int32"] = tensor.dtype != torch.int32
        found[f"{name} are on {tensor.device}, the page table on {table.pages.device}"] = (
            tensor.device != table.pages.device
        )
        found[f"{name} are not contiguous"] = not tensor.is_contiguous()
    refuse(kernel, found)
