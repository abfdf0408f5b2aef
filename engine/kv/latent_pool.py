"""Pages of latents and rope keys in one format, and of index keys where attention is sparse.

bf16, fp32:   every number in that type
fp8, tensor:  latent and rope key of a layer are e4m3 codes under one fixed scale, as attention reads them as one key
latent128:    e4m3 codes of a latent with one fp32 scale for each tile of 128, the rope key in bf16
index keys:   in the format's type where it is plain; of both fp8 formats e4m3 codes with an fp32 scale a key
"""

import torch
from torch import Tensor

from evalsvc.errors import EngineError
from evalsvc.kernels.fp8 import as_bytes, dequantize_e4m3
from evalsvc.kernels.kv_write import kv_encode, kv_write
from evalsvc.kernels.latent_attention import read_rows

from ..precision import LATENT_TILE, KVFormat
from ..sizes import LatentShape, check_latent_format
from .guard import GuardedPages
from .pool import DTYPES, Scales, fill_nan


class LatentPool(GuardedPages):
    """What latent attention keeps, of one stage.

    Attributes:
        latent: Shape: (layers, slots, rank).
        rope: Shape: (layers, slots, rope).
        index: Shape: (index layers, slots, index); None without sparse attention.
        scale: None; of a tensor's format (layers,); of tiles (layers, slots, tiles). fp32.
        index_scale: None, or (index layers, slots, 1). fp32.
        k_read_factor: Multiplied into the scale where pages are read: 1.0, or an injected fault. A latent is key and
            value at once, so it reaches both.
        amax: See `observe`.
    """

    def __init__(
        self,
        fmt: KVFormat,
        shape: LatentShape,
        tokens: int,
        scales: Scales | None = None,
        k_read_factor: float = 1.0,
        poison: bool = False,
        integrity: str = "off",
        spare: int = 0,
    ):
        """Makes an empty pool; args as in `KVPool`.

        Raises:
            CapabilityError: See `check_latent_format`.
            EngineError: Scales of another shape, missing or superfluous.
        """
        check_latent_format(fmt, shape.rank)
        if (fmt.calibrated or fmt.given) != (scales is not None):
            raise EngineError(f"kv={fmt}: scales must be there exactly when the format is calibrated or given")
        super().__init__(tokens, spare=spare)
        self.fmt, self.shape, self.k_read_factor = fmt, shape, k_read_factor
        slots, dtype = self.n_slots, DTYPES[fmt.kind]
        tiled = fmt.per == "latent128"
        self.latent = torch.empty(shape.layers, slots, shape.rank, dtype=dtype)
        self.rope = torch.empty(shape.layers, slots, shape.rope, dtype=torch.bfloat16 if tiled else dtype)
        self.scale = self._scale_tensor(scales)
        indexed = len(shape.index_layers), slots
        self.index = torch.empty(*indexed, shape.index, dtype=dtype) if shape.index else None
        self.index_scale = torch.empty(*indexed, 1) if shape.index and fmt.scale else None
        self.amax: Tensor | None = None
        if poison:
            self.poison()
        self.set_guard(integrity, shape.layers)

    def _scale_tensor(self, scales: Scales | None) -> Tensor | None:
        if not self.fmt.scale:
            return None
        layers = self.shape.layers
        if self.fmt.per == "latent128":
            return torch.empty(layers, self.n_slots, self.shape.rank // LATENT_TILE)
        if scales is None:
            return torch.ones(layers)
        if scales.k.shape != (layers,) or not torch.equal(scales.k, scales.v):
            raise EngineError(f"kv={self.fmt}: a latent has one scale a layer, as key and as value")
        return scales.k.clone().to(self.latent.device)

    def poison(self) -> None:
        """Fills everything with NaN, so that reading what nobody wrote is seen."""
        for tensor in self._tensors():
            fill_nan(tensor)

    # -- what attention uses -------------------------------------------------------------------------------------------

    def write_scale(self, layer: int) -> Tensor | None:
        """Scale for storing one layer: None, a scalar, or (slots, tiles) to be filled."""
        return None if self.scale is None else self.scale[layer]

    def read_scale(self, layer: int) -> Tensor | None:
        """Scale for reading one layer. An injected factor of 1.0 leaves every bit."""
        scale = self.write_scale(layer)
        return scale if scale is None or self.k_read_factor == 1.0 else scale * self.k_read_factor

    def index_of(self, layer: int) -> tuple[Tensor, Tensor | None]:
        """Index keys of a layer that has some, (slots, index), and their scales, (slots,) or None."""
        assert self.index is not None
        place = self.shape.index_layers.index(layer)
        return self.index[place], None if self.index_scale is None else self.index_scale[place, :, 0]

    def observe(self, layer: int, latent: Tensor, rope: Tensor) -> None:
        """Keeps the largest magnitude of latents and rope keys while a calibration asks: `amax`, (2, layers, 1).

        Args:
            layer: Whose.
            latent: Shape: (tokens, rank).
            rope: Shape: (tokens, rope).
        """
        if self.amax is not None:
            largest = torch.maximum(latent.abs().amax(), rope.abs().amax()).float()
            self.amax[:, layer] = torch.maximum(self.amax[:, layer], largest)

    def write(
        self,
        layer: int,
        slots: Tensor,
        latent: Tensor,
        rope: Tensor,
        index: Tensor | None = None,
        stamps: Tensor | None = None,
    ) -> None:
        """Stores tokens, and whose they are.

        Args:
            layer: Whose.
            slots: Shape: (tokens,).
            latent: Shape: (tokens, rank).
            rope: Shape: (tokens, rope).
            index: Shape: (tokens, index), of a layer that has index keys.
            stamps: Tag and position of each token; None: nobody's. Shape: (tokens, 2), int32.
        """
        scale, tiles = self.write_scale(layer), self._tiles
        kv_write(self.latent[layer].unflatten(-1, (tiles, -1)), scale, slots, latent.unflatten(-1, (tiles, -1)))
        kv_write(self.rope[layer][:, None], scale if self._rope_coded else None, slots, rope[:, None])
        if index is not None:
            keys, _ = self.index_of(layer)
            place = self.shape.index_layers.index(layer)
            scales = None if self.index_scale is None else self.index_scale[place]
            kv_write(keys[:, None], scales, slots, index[:, None])
        if self.guard is not None and stamps is not None:
            self.guard.seal(layer, slots, stamps)

    def encode(self, layer: int, latent: Tensor, rope: Tensor, index: Tensor | None = None) -> list[Tensor]:
        """What `write` would store of tokens, as `rows` gives it."""
        scale = self.write_scale(layer)
        codes, tile_scale = kv_encode(self.latent.dtype, scale, latent.unflatten(-1, (self._tiles, -1)))
        rope_codes, _ = kv_encode(self.rope.dtype, scale if self._rope_coded else None, rope[:, None])
        numbers, scales = [codes.flatten(1), rope_codes.flatten(1)], [] if tile_scale is None else [tile_scale]
        if index is not None:
            keys, _ = self.index_of(layer)
            of_index = None if self.index_scale is None else self.index_scale[self.shape.index_layers.index(layer)]
            index_codes, index_scale = kv_encode(keys.dtype, of_index, index[:, None])
            numbers.append(index_codes.flatten(1))
            scales += [] if index_scale is None else [index_scale]
        return [as_bytes(part) for part in numbers] + scales

    def layer_tensors(self, layer: int) -> tuple[list[Tensor], list[Tensor]]:
        """Numbers and scales of one layer; index keys only where it has some."""
        numbers, scales = [self.latent[layer], self.rope[layer]], []
        if self.scale is not None and self.fmt.per == "latent128":
            scales.append(self.scale[layer])
        if self.index is not None and layer in self.shape.index_layers:
            place = self.shape.index_layers.index(layer)
            numbers.append(self.index[place])
            scales += [] if self.index_scale is None else [self.index_scale[place]]
        return [as_bytes(part) for part in numbers], scales

    def shared_scales(self, layer: int) -> list[Tensor]:
        """The layer's own scale, as it is written with."""
        return [scale[layer] for scale in self.fixed_scales()]

    @property
    def _tiles(self) -> int:
        """Scales of one latent."""
        return self.scale.shape[2] if self.scale is not None and self.fmt.per == "latent128" else 1

    @property
    def _rope_coded(self) -> bool:
        return self.rope.dtype == torch.float8_e4m3fn

    def copy_slots(self, source: list[int], target: list[int]) -> None:
        """Copies what is stored, scales included."""
        for tensor in self.stored():
            tensor[:, target] = tensor[:, source]

    # -- contents ------------------------------------------------------------------------------------------------------

    def _tensors(self) -> list[Tensor]:
        """Every tensor with a slot dimension."""
        tiles = self.scale if self.fmt.per == "latent128" else None
        tensors = (self.latent, self.rope, tiles, self.index, self.index_scale)
        return [tensor for tensor in tensors if tensor is not None]

    def stored(self) -> list[Tensor]:
        """Every tensor with a slot dimension, as bytes where fp8. Shape: (layers, slots, ...)."""
        return [as_bytes(tensor) for tensor in self._tensors()]

    def fixed_scales(self) -> tuple[Tensor, ...]:
        """Scales that were there before the first token."""
        return () if self.scale is None or self.fmt.per == "latent128" else (self.scale,)

    def read(self, layer: int, slots: list[int] | Tensor) -> tuple[Tensor, ...]:
        """Latents and rope keys of some slots as stored, and index keys where the layer has some; fp32.

        Shape of each: (tokens, numbers).
        """
        slots = torch.as_tensor(slots, dtype=torch.long)
        found = read_rows(self.latent[layer], self.rope[layer], self.write_scale(layer), slots, torch.float32)
        if layer not in self.shape.index_layers:
            return found
        keys, scale = self.index_of(layer)
        picked = as_bytes(keys)[slots]
        if scale is None:
            return *found, picked.float()
        return *found, dequantize_e4m3(picked.view(torch.float8_e4m3fn)) * scale[slots][:, None]

    def bytes_per_token(self) -> float:
        """Format bytes that one token occupies over all layers."""
        return sum(t[:, :1].numel() * t.element_size() for t in self._tensors())

    def resident_bytes(self) -> int:
        """Bytes that this process holds for the pool."""
        return sum(t.numel() * t.element_size() for t in (*self._tensors(), *self.fixed_scales()))
