"""Pages of keys and values in one format."""

import hashlib
import json
from dataclasses import dataclass

import torch
from torch import Tensor

from evalsvc.errors import EngineError
from evalsvc.kernels.dispatch import form
from evalsvc.kernels.fp8 import as_bytes, dequantize_e4m3
from evalsvc.kernels.int8 import INT8_NAN, dequantize_int8
from evalsvc.kernels.kv_write import kv_encode, kv_write, write_tokens

from ..precision import KVFormat
from ..sizes import check_heads_format
from .guard import GuardedPages
from .pages import PAGE, PoolFull, Sequence

__all__ = ["PAGE", "KVPool", "PoolFull", "Scales", "Sequence"]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn, "int8": torch.int8}


@dataclass(frozen=True)
class Scales:
    """Fixed scales of a pool.

    Attributes:
        k: Shape: (layers,) or (layers, kv_heads), fp32. `v` alike.
    """

    k: Tensor
    v: Tensor

    def sha256(self) -> str:
        """Hash of the fp32 values."""
        return hashlib.sha256(json.dumps([self.k.tolist(), self.v.tolist()]).encode()).hexdigest()


def fill_nan(tensor: Tensor) -> None:
    """Makes every element NaN, or the code that is read as NaN."""
    if tensor.dtype == torch.float8_e4m3fn:
        tensor.view(torch.uint8).fill_(0x7F)
    else:
        tensor.fill_(INT8_NAN if tensor.dtype == torch.int8 else torch.nan)


class KVPool(GuardedPages):
    """Keys and values of one stage.

    Attributes:
        k: Shape: (layers, slots, kv_heads, head_dim), the format's own type. `v` alike.
        k_read_factor: Multiplied into the K scale where pages are read: 1.0, or an injected fault.
    """

    def __init__(
        self,
        fmt: KVFormat,
        layers: int,
        kv_heads: int,
        head_dim: int,
        tokens: int,
        scales: Scales | None = None,
        k_read_factor: float = 1.0,
        poison: bool = False,
        integrity: str = "off",
        spare: int = 0,
    ):
        """Makes an empty pool.

        Args:
            fmt: Type and scale kind.
            tokens: Capacity, rounded up to whole pages.
            scales: For a calibrated or given format.
            k_read_factor: See the class.
            poison: Fill with NaN, so that reading what nobody wrote is seen.
            integrity: One of `tags.MODES`.
            spare: Pages more, which nobody ever holds.

        Raises:
            CapabilityError: A format of latents.
            EngineError: Scales of another shape, missing or superfluous.
            ConfigError: No such mode.
        """
        check_heads_format(fmt)
        if (fmt.calibrated or fmt.given) != (scales is not None):
            raise EngineError(f"kv={fmt}: scales must be there exactly when the format is calibrated or given")
        self.fmt, self.k_read_factor = fmt, k_read_factor
        super().__init__(tokens, spare=spare)
        shape = (layers, self.n_slots, kv_heads, head_dim)
        self.k, self.v = torch.empty(shape, dtype=DTYPES[fmt.kind]), torch.empty(shape, dtype=DTYPES[fmt.kind])
        self.k_scale, self.v_scale = (self._scale_tensor(part, shape[:3], scales) for part in ("k", "v"))
        if poison:
            self.poison()
        self.amax: Tensor | None = None
        self.set_guard(integrity, layers)

    def _scale_tensor(self, part: str, shape: tuple[int, ...], scales: Scales | None) -> Tensor | None:
        if not self.fmt.scale:
            return None
        if self.fmt.per == "token-head":
            return torch.empty(shape, dtype=torch.float32)
        if scales is None:
            return torch.ones(shape[0])
        given: Tensor = getattr(scales, part)
        wanted = (shape[0],) if self.fmt.per == "tensor" else (shape[0], shape[2])
        if given.shape != wanted:
            raise EngineError(f"kv={self.fmt}: {part} has scales of shape {tuple(given.shape)}, not {wanted}")
        return given.clone().to(self.k.device)

    def poison(self) -> None:
        """Fills everything with NaN, so that reading what nobody wrote is seen."""
        for tensor in (self.k, self.v):
            fill_nan(tensor)
        if self.fmt.per == "token-head":
            for scale in (self.k_scale, self.v_scale):
                scale.fill_(torch.nan)  # pyright: ignore[reportOptionalMemberAccess]

    # -- what attention uses -------------------------------------------------------------------------------------------

    def write_scale(self, part: str, layer: int) -> Tensor | None:
        """Scale for storing one layer: None, a scalar, (kv_heads,), or (slots, kv_heads) to be filled."""
        scale = getattr(self, f"{part}_scale")
        return None if scale is None else scale[layer]

    def read_scale(self, part: str, layer: int) -> Tensor | None:
        """Scale for reading one layer. An injected K factor of 1.0 leaves every bit."""
        scale = self.write_scale(part, layer)
        if part == "k" and scale is not None and self.k_read_factor != 1.0:
            return scale * self.k_read_factor
        return scale

    def observe(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Keeps each head's largest magnitudes while a calibration asks for them: `amax`, (2, layers, kv_heads).

        Args:
            layer: Whose keys.
            key: Shape: (kv_heads, tokens, head_dim). `value` alike.
        """
        if self.amax is not None:
            largest = torch.stack([key.abs().amax(dim=(1, 2)), value.abs().amax(dim=(1, 2))]).float()
            self.amax[:, layer] = torch.maximum(self.amax[:, layer], largest)

    def copy_slots(self, source: list[int], target: list[int]) -> None:
        """Copies what is stored, scales included."""
        for tensor in self.stored():
            tensor[:, target] = tensor[:, source]

    def layer_tensors(self, layer: int) -> tuple[list[Tensor], list[Tensor]]:
        """Keys and values of one layer, and their scales where each token has some."""
        tensors = [tensor[layer] for tensor in self.stored()]
        return tensors[:2], tensors[2:]

    def shared_scales(self, layer: int) -> list[Tensor]:
        """Scales that all tokens of a layer share, as they are written with."""
        return [scale[layer] for scale in self.fixed_scales()]

    # -- contents ------------------------------------------------------------------------------------------------------

    def stored(self) -> list[Tensor]:
        """Every tensor with a slot dimension, as bytes where fp8. Shape: (layers, slots, ...)."""
        tensors = [as_bytes(self.k), as_bytes(self.v)]
        if self.fmt.per == "token-head":
            tensors += [scale for scale in (self.k_scale, self.v_scale) if scale is not None]
        return tensors

    def read(self, layer: int, slots: list[int] | Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of some slots, as stored, in fp32. Shape of each: (tokens, kv_heads, head_dim)."""
        slots = torch.as_tensor(slots, dtype=torch.long)
        key, value = (self._read(as_bytes(pages)[layer, slots]) for pages in (self.k, self.v))
        if self.k_scale is None or self.v_scale is None:
            return key, value
        return key * self._of(self.k_scale[layer], slots), value * self._of(self.v_scale[layer], slots)

    def _read(self, codes: Tensor) -> Tensor:
        if self.fmt.kind == "int8":
            return dequantize_int8(codes)
        return dequantize_e4m3(codes.view(torch.float8_e4m3fn)) if self.fmt.kind == "fp8" else codes.float()

    def _of(self, scale: Tensor, slots: Tensor) -> Tensor:
        """One layer's scale as it multiplies (tokens, kv_heads, head_dim)."""
        if self.fmt.per == "token-head":
            return scale[slots][:, :, None]
        return scale[:, None] if self.fmt.per == "head" else scale

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor, stamps: Tensor | None = None) -> None:
        """Stores keys and values, and whose they are.

        Args:
            layer: Where.
            slots: Shape: (tokens,).
            key: Shape: (tokens, kv_heads, head_dim). `value` alike.
            stamps: Tag and position of each token; None: nobody's. Shape: (tokens, 2), int32.
        """
        scales = self.write_scale("k", layer), self.write_scale("v", layer)
        if form(self.k.device.type) == "triton":
            held = None if self.guard is None or stamps is None else self.guard.stamps[layer]
            new = None if held is None else stamps
            write_tokens(self.k[layer], self.v[layer], *scales, slots, key, value, held, new)
            if self.guard is None or self.guard.sums is None:
                return
        else:
            kv_write(self.k[layer], scales[0], slots, key)
            kv_write(self.v[layer], scales[1], slots, value)
        if self.guard is not None and stamps is not None:
            self.guard.seal(layer, slots, stamps)

    def encode(self, layer: int, key: Tensor, value: Tensor) -> list[Tensor]:
        """What `write` would store of keys and values, as `rows` gives it."""
        pairs = [kv_encode(self.k.dtype, self.write_scale(part, layer), x) for part, x in (("k", key), ("v", value))]
        return [as_bytes(code) for code, _ in pairs] + [scale for _, scale in pairs if scale is not None]

    def fixed_scales(self) -> tuple[Tensor, ...]:
        """Scales of keys and of values that were there before the first token."""
        fixed = () if self.fmt.per == "token-head" else (self.k_scale, self.v_scale)
        return tuple(scale for scale in fixed if scale is not None)

    def bytes_per_token(self) -> float:
        """Format bytes that one token occupies over all layers."""
        return sum(t[:, :1].numel() * t.element_size() for t in self.stored())

    def resident_bytes(self) -> int:
        """Bytes that this process holds for the pool."""
        tensors = {t.data_ptr(): t for t in (self.k, self.v, self.k_scale, self.v_scale) if t is not None}
        return sum(t.numel() * t.element_size() for t in tensors.values())
