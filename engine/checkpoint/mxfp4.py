"""mxfp4, as gpt_oss is published: `X_blocks` and `X_scales` of a layer's experts stand for `X`.

    w[32 b + 2 i + h] = e2m1(half h of byte i of block b, the low one first) * 2^(scale[b] - 127)

The scale is an e8m0 byte, of which 255 is NaN (OCP Microscaling Formats 1.0). A value has two significant bits and is
exact in bf16. Files hold matrices as (out, in), transformers' module holds them as (in, out).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from evalsvc.errors import CapabilityError, EngineError
from evalsvc.kernels.nvfp4 import E2M1_VALUES

from ..blocks import row_blocks
from ..precision import WeightFormat
from .base import StoredTensor

CODES, SCALES = "_blocks", "_scales"
BLOCK_BYTES = 16


def mxfp4_values(blocks: Tensor, scales: Tensor) -> Tensor:
    """Exact values in bf16; NaN where a scale is.

    Args:
        blocks: Two codes to a byte. Shape: (rows, blocks, 16), uint8.
        scales: Shape: (rows, blocks), uint8 or float8_e8m0fnu.

    Returns:
        Shape: (rows, 32 * blocks).
    """
    codes = torch.arange(256)
    table = torch.tensor([*E2M1_VALUES, *(-value for value in E2M1_VALUES)], dtype=torch.bfloat16)
    pairs = torch.stack([table[codes & 0xF], table[codes >> 4]], dim=1)
    out = torch.empty(*blocks.shape[:2], BLOCK_BYTES, 2, dtype=torch.bfloat16)
    power = scales.view(torch.float8_e8m0fnu).to(torch.bfloat16)[..., None, None]
    for rows in row_blocks((len(blocks), blocks.shape[1:].numel())):
        torch.mul(pairs[blocks[rows].int()], power[rows], out=out[rows])
    return out.flatten(1)


def join(name: str, codes: StoredTensor, sides: Mapping[str, StoredTensor]) -> StoredTensor:
    """The stack of matrices that blocks and scales stand for.

    Raises:
        EngineError: Shapes that do not belong together.
    """
    scales = sides[SCALES]
    whole = len(codes.shape) == 4 and codes.shape[3] == BLOCK_BYTES and scales.shape == codes.shape[:3]
    if not whole or codes.dtype != torch.uint8 or scales.dtype not in (torch.uint8, torch.float8_e8m0fnu):
        found = f"{codes.name} of shape {codes.shape} and {scales.name} of shape {scales.shape}"
        raise EngineError(f"model {codes.file}: {found} are no experts in mxfp4; fetch the model again")
    experts, out, blocks, _ = codes.shape
    shape = (experts, blocks * BLOCK_BYTES * 2, out)
    return _Experts(codes.file, name, shape, torch.bfloat16, codes, scales)


@dataclass(frozen=True)
class _Experts(StoredTensor):
    codes: StoredTensor
    scales: StoredTensor

    def own_format(self) -> WeightFormat:
        reason = f"tensor {self.name} is stored as mxfp4, which is no plan's format"
        raise CapabilityError(f"model {self.file}: {reason}; name a weights format in place of `stored`")

    def rows(self, some: slice) -> Tensor:
        blocks, scales = self.codes.rows(some), self.scales.rows(some)
        values = mxfp4_values(blocks.flatten(0, 1), scales.flatten(0, 1))
        return values.unflatten(0, blocks.shape[:2]).transpose(1, 2)
