"""What the engine asks of a checkpoint, whatever kind of file it is kept in."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from evalsvc.errors import EngineError

from ..blocks import row_blocks
from ..packed.base import Packed
from ..precision import WeightFormat


@dataclass(frozen=True)
class StoredTensor(ABC):
    """A tensor in its file, not read yet.

    Attributes:
        file: Where it is.
        name: Its name in transformers' model.
        shape: Its shape there.
        dtype: A type that holds the file's values exactly.
    """

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of its values in `dtype`."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize

    @abstractmethod
    def rows(self, some: slice) -> Tensor:
        """Some of the outermost dimension in `dtype`; may be a view of the file."""

    def read(self, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor in memory of its own, so that nothing that happens to the file later can reach an answer.

        Args:
            dtype: Rounds to it; None keeps the values exact.

        Raises:
            EngineError: It holds NaN or infinity, in the file or once rounded.
        """
        held = torch.empty(self.shape, dtype=dtype or self.dtype)
        for some in row_blocks(self.shape):
            block = self.rows(some)
            self._check_finite(block, "")
            held[some] = block
            if held.dtype != block.dtype:
                self._check_finite(held[some], f" once rounded to {str(dtype).removeprefix('torch.')}")
        return held

    def holds(self, values: Tensor) -> bool:
        """Whether these are its values, once rounded to their type: some rows at a time, nothing is kept."""
        return all(torch.equal(self.rows(some).to(values), values[some]) for some in row_blocks(self.shape))

    def packed(self, form: str, some: slice = slice(None), expert: int | None = None) -> Packed | None:
        """A matrix as the file holds it, in memory of its own, where that is the form that is asked.

        Args:
            form: Spelled as `WeightFormat.stored`.
            some: Rows of it.
            expert: Which of a stack.

        Returns:
            None: it is read and then packed.

        Raises:
            CapabilityError: The form cannot be cut there.
            EngineError: It holds NaN or infinity.
        """
        return None

    def own_format(self) -> WeightFormat:
        """The format of a plan whose codes and scales the file holds, activations included; plain numbers are bf16.

        Raises:
            CapabilityError: No plan's format has them.
        """
        return WeightFormat()

    def _check_finite(self, block: Tensor, when: str) -> None:
        if not bool(torch.stack(torch.aminmax(block)).isfinite().all()):
            raise EngineError(f"model {self.file}: tensor {self.name} holds NaN or infinity{when}")


class Checkpoint(Protocol):
    """Files of one model.

    Attributes:
        path: The directory or file.
        config: transformers' configuration, as config.json has it.
    """

    path: Path
    config: dict[str, Any]

    def hashes(self) -> dict[str, str]:
        """sha256 of what the weights are read from (`checkpoint`) and of the tokenizer (`tokenizer`)."""
        ...

    def tensors(self) -> Iterator[StoredTensor]:
        """Every tensor once, in the order in which the files hold them."""
        ...

    def tokenizer(self) -> Any:
        """The tokenizer: a transformers `PreTrainedTokenizerFast`.

        Raises:
            EngineError: It cannot be read.
            CapabilityError: Its kind would not be built exactly.
        """
        ...

    def eos_ids(self) -> frozenset[int]:
        """Ids that the files, the tokenizer aside, call end of sequence."""
        ...
