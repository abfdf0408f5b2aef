"""Matrices in mxfp4 as compressed-tensors stores them: `w = e2m1 * 2^(scale - 127)`, a scale for 32 inputs, in bf16."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..precision import WeightFormat
from .base import StoredTensor
from .compressed_config import MXFP4_BLOCK, Group
from .compressed_matrices import own_format
from .mxfp4 import BLOCK_BYTES, mxfp4_values


@dataclass(frozen=True)
class Mxfp4(StoredTensor):
    """Such a matrix, which no plan's format has.

    Attributes:
        group: How it is stored.
        codes: Shape: (out, in / 2), uint8.
        scale: Shape: (out, in / 32), uint8 or e8m0.
    """

    group: Group
    codes: StoredTensor
    scale: StoredTensor

    def fits(self) -> bool:
        """Whether types and shapes belong together."""
        out, inputs = self.shape
        known = self.codes.dtype == torch.uint8 and self.scale.dtype in (torch.uint8, torch.float8_e8m0fnu)
        return known and inputs % MXFP4_BLOCK == 0 and self.scale.shape == (out, inputs // MXFP4_BLOCK)

    def rows(self, some: slice) -> Tensor:
        """As the library decompresses them."""
        return mxfp4_values(self.codes.rows(some).unflatten(1, (-1, BLOCK_BYTES)), self.scale.rows(some))

    def own_format(self) -> WeightFormat:
        """As in `StoredTensor`."""
        return own_format(self, self.group)
