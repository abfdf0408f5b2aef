"""Bytes that formats take, from shapes alone. No torch: the same arithmetic serves models that nobody here loads."""

from .precision import KVFormat, WeightFormat

PLAIN_BYTES = {"fp32": 4, "bf16": 2}
LATENT_TILE = 128
_BLOCK = 128
_FP32, _BF16 = 4, 2


def matrix_bytes(out: int, inputs: int, fmt: WeightFormat) -> int:
    """Bytes of a matrix in a format, scales included; what `quantize` packs.

    fp32 and bf16: elements. fp8 and int8: a byte each, one fp32 scale an output channel, or one a block of 128 x 128.
    int4: half a byte each, one bf16 scale a group of inputs (and a minimum where it is asymmetric). nvfp4: half a byte
    each, one e4m3 scale for 16 inputs, one fp32 for the matrix.

    Args:
        out: Rows.
        inputs: Columns.
        fmt: The format.
    """
    elements = out * inputs
    if fmt.kind in PLAIN_BYTES:
        return elements * PLAIN_BYTES[fmt.kind]
    if fmt.kind == "int4":
        return elements // 2 + out * (inputs // fmt.group) * _BF16 * (1 if fmt.symmetric else 2)
    if fmt.kind == "nvfp4":
        return elements // 2 + elements // 16 + _FP32
    if "block128" in fmt.stored:
        return elements + -(-out // _BLOCK) * -(-inputs // _BLOCK) * _FP32
    return elements + out * _FP32


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
