"""KV formats by the kind of attention, and the bytes that a token takes in them, from shapes alone.

No torch: models that nobody loads here have them, too.
"""

from dataclasses import dataclass

from evalsvc.errors import CapabilityError

from .precision import LATENT_TILE, KVFormat

PLAIN_BYTES = {"fp32": 4, "bf16": 2}
_FP32, _BF16 = 4, 2
SERVED_LATENT_FORMATS = (
    "fp32",
    "bf16",
    "fp8:latent128",
    "fp8:tensor:calibrated",
    "fp8:tensor:given",
    "fp8:tensor:uncalibrated",
)


def check_heads_format(fmt: KVFormat) -> None:
    """Refuses what keys and values of heads are not held in.

    Raises:
        CapabilityError: A format of latents.
    """
    if fmt.per == "latent128":
        raise CapabilityError(f"kv={fmt} is for latent attention; this model keeps keys and values of heads")


def check_latent_format(fmt: KVFormat, rank: int) -> None:
    """Refuses what latents are not held in.

    Raises:
        CapabilityError: A format of keys and values of heads, or tiles that do not divide the latent.
    """
    if str(fmt) not in SERVED_LATENT_FORMATS:
        served = ", ".join(SERVED_LATENT_FORMATS)
        raise CapabilityError(f"kv={fmt} is not for latent attention, which keeps no keys of heads; use {served}")
    if fmt.per == "latent128" and rank % LATENT_TILE:
        raise CapabilityError(f"kv={fmt}: tiles of {LATENT_TILE} do not divide a latent of {rank} (kv_lora_rank)")


def heads_bytes(kv_heads: int, head_dim: int, fmt: KVFormat) -> int:
    """Bytes of one token's keys and values in one layer, dynamic scales included."""
    scales = 2 * kv_heads * _FP32 if fmt.per == "token-head" else 0
    return 2 * kv_heads * head_dim * _kv_bytes(fmt) + scales


def latent_bytes(rank: int, rope: int, fmt: KVFormat) -> int:
    """Bytes of one token's latent and rope key in one layer.

    `latent128`: the latent in fp8 tiles of 128 with an fp32 scale each, the rope key in bf16.
    """
    if fmt.per == "latent128":
        return rank + -(-rank // LATENT_TILE) * _FP32 + rope * _BF16
    return (rank + rope) * _kv_bytes(fmt)


def index_bytes(dim: int, fmt: KVFormat) -> int:
    """Bytes of one token's index key in one layer: of a quantized format fp8 with an fp32 scale."""
    return dim * PLAIN_BYTES[fmt.kind] if fmt.kind in PLAIN_BYTES else dim + _FP32


@dataclass(frozen=True)
class LatentShape:
    """What latent attention keeps of one token.

    Attributes:
        layers: Layers, each with a latent and a rope key.
        rank: Numbers of a latent, `rope` those of a rope key.
        index: Numbers of an index key; 0 without sparse attention.
        index_layers: Layers that have one.
    """

    layers: int
    rank: int
    rope: int
    index: int = 0
    index_layers: tuple[int, ...] = ()

    def token_bytes(self, fmt: KVFormat) -> int:
        """Bytes of one token over all layers, dynamic scales included."""
        index = len(self.index_layers) * index_bytes(self.index, fmt)
        return self.layers * latent_bytes(self.rank, self.rope, fmt) + index


def _kv_bytes(fmt: KVFormat) -> int:
    return PLAIN_BYTES.get(fmt.kind, 1)
