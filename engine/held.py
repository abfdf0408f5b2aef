"""What a pool really holds, told from its tensors."""

from typing import Any

import torch
from torch import Tensor

from .kv.latent_pool import LatentPool
from .kv.pool import KVPool, Scales
from .precision import LATENT_TILE


def kv_facts(pool: KVPool | LatentPool) -> dict[str, Any]:
    """Types, scales and shapes of what a token's pages hold."""
    scales = fixed_scales(pool)
    main, scale = (pool.latent, pool.scale) if isinstance(pool, LatentPool) else (pool.k, pool.k_scale)
    facts: dict[str, Any] = {
        "dtype": dtype_name(main.dtype),
        "scale_per": scale_per(pool),
        "scale_dtype": None if scale is None else dtype_name(scale.dtype),
        "scale_range": None if scales is None else _range(scales),
        "scales_sha256": None if scales is None else scales.sha256(),
        "k_read_factor": pool.k_read_factor,
    }
    if isinstance(pool, LatentPool):
        facts["latent"] = _latent_facts(pool)
    return facts


def fixed_scales(pool: KVPool | LatentPool) -> Scales | None:
    """The scales that the pool writes and reads with, where they are fixed."""
    if isinstance(pool, LatentPool):
        return None if pool.scale is None or pool.scale.ndim > 1 else Scales(pool.scale, pool.scale)
    if pool.k_scale is None or pool.v_scale is None or scale_per(pool) == "token-head":
        return None
    return Scales(pool.k_scale, pool.v_scale)


def scale_per(pool: KVPool | LatentPool) -> str:
    """Whose elements share a scale, by the shape of the tensors that hold it."""
    if isinstance(pool, LatentPool):
        layers, slots, rank = pool.latent.shape
        known = {(): "", (layers,): "tensor", (layers, slots, rank // LATENT_TILE): "latent128"}
        return known.get(() if pool.scale is None else tuple(pool.scale.shape), "unknown")
    shapes = {() if scale is None else tuple(scale.shape) for scale in (pool.k_scale, pool.v_scale)}
    layers, slots, kv_heads, _ = pool.k.shape
    known = {(): "", (layers,): "tensor", (layers, kv_heads): "head", (layers, slots, kv_heads): "token-head"}
    return known.get(shapes.pop(), "unknown") if len(shapes) == 1 else "unknown"


def dtype_name(dtype: torch.dtype) -> str:
    """Without torch's name."""
    return str(dtype).removeprefix("torch.")


def _latent_facts(pool: LatentPool) -> dict[str, Any]:
    none = torch.empty(0, 0, 0)
    index = none if pool.index is None else pool.index
    return {
        "layers": len(pool.latent),
        "rank": pool.latent.shape[2],
        "rope": pool.rope.shape[2],
        "rope_dtype": dtype_name(pool.rope.dtype),
        "index": index.shape[2],
        "index_layers": len(index),
        "index_dtype": None if pool.index is None else dtype_name(index.dtype),
    }


def _range(scales: Scales) -> list[float]:
    both: Tensor = torch.cat([scales.k.flatten(), scales.v.flatten()])
    return [float(both.min()), float(both.max())]
