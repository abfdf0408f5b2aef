"""Latent attention by kernels for GPUs, which read by page tables.

Where every key is read, prefill multiplies latents out and decode absorbs the matrix, as `mla.py` says. Where keys are
chosen, each query has its own, and both stages absorb: a latent that 64 heads share is read once for all of them. That
is chosen by the model alone, never by lengths: so neither a chunk nor company changes a bit of an answer.

Stamps are compared of every slot that is read, once a layer. An indexer reads the index keys of all slots that a
request has, and compares them all; in a layer that chooses nothing itself, attention compares those that were chosen.
Slots that a layer does not read are not compared there, and are not counted.
"""

from torch import Tensor

from evalsvc.kernels.index_ranks import choose_keys
from evalsvc.kernels.latent_attention import absorb, release
from evalsvc.kernels.latent_decode import latent_decode
from evalsvc.kernels.latent_prefill import latent_prefill
from evalsvc.kernels.page_table import PAGE, Guarding, PageTable

from .attention import Step
from .kv.latent_pool import LatentPool


def choose(
    step: Step, pool: LatentPool, layer: int, q: Tensor, weights: Tensor, scale: float, topk: int
) -> Tensor | None:
    """The keys that queries read, as `choose_keys` returns them; None where no page table has room for more than topk.

    Args:
        q: Index queries. Shape: (tokens, index_heads, index_dim).
        weights: Of each head's score, fp32. Shape: (tokens, index_heads).
        scale: Of a head's score.
    """
    assert step.by_pages is not None
    table, expected, _ = step.by_pages
    if table.pages.shape[1] * PAGE <= topk:
        return None
    guarding = _guarding(step, layer, table, expected, None)
    keys, key_scale = pool.index_of(layer)
    key_scale = None if key_scale is None else key_scale.contiguous()
    return choose_keys(q.contiguous(), weights.contiguous(), keys, key_scale, table, scale, topk, guarding)


def attend(
    step: Step,
    pool: LatentPool,
    layer: int,
    q_nope: Tensor,
    q_rope: Tensor,
    up: Tensor,
    scaling: float,
    absorbs: bool,
    chosen: Tensor | None,
    compared: bool,
) -> Tensor:
    """Attention of a packed batch's queries.

    Args:
        q_nope: Shape: (tokens, heads, nope).
        q_rope: Shape: (tokens, heads, rope).
        up: As in `latent_prefill`.
        scaling: Softmax scale.
        absorbs: Which form.
        chosen: As `choose` returns it.
        compared: Whether this layer's indexer has compared all slots.

    Returns:
        Shape: (tokens, heads, v).
    """
    assert step.by_pages is not None
    table, expected, _ = step.by_pages
    pages = pool.latent[layer], pool.rope[layer], pool.read_scale(layer)
    if not absorbs:
        guarding = _guarding(step, layer, table, expected, None)
        return latent_prefill(q_nope.contiguous(), q_rope.contiguous(), *pages, up, table, scaling, guarding)
    queries, most, guarding = table.by_query, None if chosen is None else chosen.shape[1], None
    if not compared:
        tags = expected if queries is table else expected[table.owners]
        guarding = _guarding(step, layer, queries, tags, most)
    query = absorb(q_nope, up).contiguous()
    sums = latent_decode(query, q_rope.contiguous(), *pages, queries, scaling, guarding, chosen)
    return release(sums, up, q_nope.shape[2])


def _guarding(step: Step, layer: int, table: PageTable, expected: Tensor, most: int | None) -> Guarding | None:
    """What a kernel compares of a layer whose queries read at most so many keys, which count as a window does."""
    assert step.by_pages is not None
    step.windows[layer] = most
    if table is not step.by_pages.table:
        step.listed.add(layer)
    return None if step.check is None else step.check.by_kernel(layer, expected, table, most)
