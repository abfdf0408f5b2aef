"""Bytes that a token takes in KV formats, from shapes alone. No torch: models that nobody loads here have them, too."""

from .precision import KVFormat

PLAIN_BYTES = {"fp32": 4, "bf16": 2}
LATENT_TILE = 128
_FP32, _BF16 = 4, 2


def heads_bytes(kv_heads: int, head_dim: int, fmt: KVFormat) -> int:
    """Bytes of one token's keys and values in one layer, dynamic scales included."""
    scales = 2 * kv_heads * _FP32 if fmt.per == "token-head" else 0
    return 2 * kv_heads * head_dim * _kv_bytes(fmt) + scales


def latent_bytes(rank: int, rope: int, fmt: KVFormat) -> int:
    """Bytes of one token's latent and rope key in one layer.

    `latent128`: the latent in fp8 tiles of 128 with an fp32 scale each, the rope key in bf16.
    """
    if "latent128" in fmt.scale:
        return rank + -(-rank // LATENT_TILE) * _FP32 + rope * _BF16
    scales = _FP32 if fmt.per == "token-head" else 0
    return (rank + rope) * _kv_bytes(fmt) + scales


def _kv_bytes(fmt: KVFormat) -> int:
    return PLAIN_BYTES.get(fmt.kind, 1)
