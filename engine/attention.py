"""Paged attention behind transformers' attention interface.

The pages and the tiles of the current step travel in a context variable, since some model classes drop keyword
arguments on the way to the attention function. The name is never registered as a mask function: then transformers
builds no mask at all.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from torch import Tensor, nn
from transformers import AttentionInterface

from evalsvc.errors import CapabilityError
from evalsvc.kernels.page_table import PageTable
from evalsvc.kernels.paged_attention import paged_attention
from evalsvc.kernels.tiles import Tiles

from .kv.guard import Check, Findings
from .kv.latent_pool import LatentPool
from .kv.pool import KVPool

ATTENTION_NAME = "evalsvc_paged"


class ByPages(NamedTuple):
    """How kernels for GPUs read a batch.

    Attributes:
        table: The sequences' pages.
        expected: The tags that these are to have. Shape: as the table's pages, int32.
        kernel: `paged_decode` in a stage that computes one token a sequence, else `paged_prefill`: what is in a batch
            never chooses it.
    """

    table: PageTable
    expected: Tensor
    kernel: Callable[..., Tensor]


@dataclass
class Step:
    """One packed forward.

    Attributes:
        pool: Where keys and values are written and read.
        slots: Shape: (tokens,); where each new token's keys and values go.
        tiles: Queries and the slots that they read.
        stamps: Tag and position of each new token; None where integrity is off. Shape: (tokens, 2), int32.
        check: Compares what is read; None where integrity is off.
        windows: By layer whose attention has run in this step, the sliding window that its model passed; of sparse
            attention the most keys that a query reads.
        listed: Layers whose queries read each for itself: in a chunk a slot is read once for every query.
        absorbs: Whether latent attention takes its absorbed form.
        by_pages: What kernels read by, where they run as Triton.
    """

    pool: KVPool | LatentPool
    slots: Tensor
    tiles: Tiles
    stamps: Tensor | None = None
    check: Check | Findings | None = None
    windows: dict[int, int | None] = field(default_factory=dict)
    listed: set[int] = field(default_factory=set)
    absorbs: bool = False
    by_pages: ByPages | None = None

    def enter(self, layer: int, window: int | None = None) -> None:
        """Notes that a layer's attention runs.

        Raises:
            CapabilityError: It has run in this step.
        """
        if layer in self.windows:
            raise CapabilityError(f"layer {layer} attends twice in one step: this architecture is not served")
        self.windows[layer] = window

    def slots_read(self) -> int:
        """Slots that kernels have read, over all layers, for each row that reads them."""
        assert self.by_pages is not None
        table = self.by_pages.table
        tables = ((table.by_query if layer in self.listed else table, most) for layer, most in self.windows.items())
        return sum(read.reads(most) for read, most in tables)


_step: ContextVar[Step] = ContextVar("evalsvc_step")


@contextmanager
def stepping(step: Step) -> Iterator[None]:
    """Makes `step` the one that attention serves inside the block."""
    token = _step.set(step)
    try:
        yield
    finally:
        _step.reset(token)


def current_step() -> Step:
    """The step that attention serves."""
    return _step.get()


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """transformers' attention function: writes the new keys and values, then reads them as stored.

    Args:
        query: Shape: (1, heads, tokens, head_dim); key and value with kv_heads.
        sliding_window: Keys that a query reads, its own the last; None: all up to its own.
        softcap: Bound that scores approach; None: no bound.
        s_aux: Attention sinks: a score of each head that takes weight and brings no value. Shape: (heads,).

    Returns:
        Shape: (1, tokens, heads, head_dim), and no attention weights.

    Raises:
        CapabilityError: The model asks for arithmetic that pages do not serve.
    """
    layer: int = module.layer_idx  # pyright: ignore[reportAssignmentType]
    step = _step.get()
    if attention_mask is not None:
        raise CapabilityError(f"layer {layer} passes an attention mask: only causal attention is served")
    if sliding_window is not None and sliding_window < 1:
        raise CapabilityError(f"layer {layer} passes a sliding window of {sliding_window}: it must be at least 1")
    if softcap is not None and softcap <= 0:
        raise CapabilityError(f"layer {layer} passes a soft cap of {softcap}: it must be above 0")
    step.enter(layer, sliding_window)
    pool = step.pool
    assert isinstance(pool, KVPool)
    pool.observe(layer, key[0], value[0])
    pool.write(layer, step.slots, key[0].transpose(0, 1), value[0].transpose(0, 1), step.stamps)
    if step.by_pages is not None:
        return _by_pages(step, layer, query[0].transpose(0, 1), scaling, sliding_window, softcap, s_aux)[None], None
    out = paged_attention(
        query[0].transpose(0, 1),
        pool.k[layer],
        pool.v[layer],
        pool.read_scale("k", layer),
        pool.read_scale("v", layer),
        step.tiles,
        scaling,
        sliding_window,
        softcap,
        s_aux,
        None if step.check is None else partial(step.check.layer, layer),
    )
    return out[None], None


def _by_pages(
    step: Step,
    layer: int,
    query: Tensor,
    scaling: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """As `attend`'s reading, by kernels for GPUs. Shape: (tokens, heads, head_dim)."""
    assert step.by_pages is not None and isinstance(step.pool, KVPool)
    pool, (table, expected, kernel) = step.pool, step.by_pages
    guarding = None if step.check is None else step.check.by_kernel(layer, expected, table, window)
    pages = pool.k[layer], pool.v[layer], pool.read_scale("k", layer), pool.read_scale("v", layer)
    return kernel(query.contiguous(), *pages, table, scaling, window, softcap, sinks, guarding)


AttentionInterface.register(ATTENTION_NAME, attend)
