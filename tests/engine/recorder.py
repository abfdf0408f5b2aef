"""A graph that is not there: on capture a forward runs and is written down, on replay it runs again and is the same.

Written down are every operation and every launch of a kernel, with the addresses of tensors that were there before, and
with all numbers. A GPU would launch at a replay what it launched at the capture: the same addresses, the same numbers,
no word from the host. So a replay whose record is another one is wrong, and so is a forward that asks a tensor for its
numbers, makes one of the host's, or of a size that its numbers decide.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from evalsvc.engine.graphs import Forward, Inputs, Outputs, Replay
from evalsvc.kernels.experts import check_counts
from evalsvc.kernels.jit import Kernel

ASKS = ("item", "_local_scalar_dense", "is_nonzero", "equal", "allclose")
SIZES = ("nonzero", "nonzero_numpy", "argwhere", "masked_select", "_unique2", "unique_dim", "unique_consecutive")
ASKING = {f"aten::{name}": "asks for a number" for name in ASKS}  # in inference mode `item` arrives as itself
ASKING |= {f"aten::{name}": "makes a size of numbers" for name in SIZES}
ASKING["aten::lift_fresh"] = "brings numbers of the host"
METHODS = ("cpu", "item", "numpy", "tolist")


class Recorder:
    """Captures in place of a GPU.

    Attributes:
        wrong: What a GPU would refuse, or would do otherwise.
        outside: By address the storages of a forward that were there before it.
        warm: Whether a forward has run, which may lay weights out.
    """

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.outside: dict[int, tuple[int, ...]] = {}
        self.warm = False

    def capture(self, forward: Forward, buffers: Inputs, memory: object = None) -> Replay:
        """In place of `graphs.capture_cuda`."""
        if not self.warm:
            _watched(forward, buffers, computing=False)
            self.warm = True
        first, result = self._record(forward, buffers, computing=False)

        def run() -> None:
            again, outputs = self._record(forward, buffers, computing=True)
            others = [f"{b}, captured as {a}" for a, b in zip(first, again, strict=False) if a != b]
            self.wrong += others[:1] if len(first) == len(again) else [f"{len(again)} operations of {len(first)}"]
            result.logits.copy_(outputs.logits)
            if result.found is not None:
                assert outputs.found is not None
                result.found.copy_(outputs.found)

        for part in (result.logits, result.found):
            if part is not None:
                part.zero_()
        return Replay(run, result)

    def _record(self, forward: Forward, buffers: Inputs, computing: bool) -> tuple[list[tuple[Any, ...]], Outputs]:
        record, result = _watched(forward, buffers, computing)
        self.wrong += record.wrong
        self.outside |= record.outside
        return record.lines, result


def _watched(forward: Forward, buffers: Inputs, computing: bool) -> tuple["_Record", Outputs]:
    """A run that is written down; a capture computes nothing: no kernel runs in it."""
    record = _Record(computing)
    with record, record.watching():
        return record, forward(buffers)


def _on_a_processor_alone() -> bool:
    """Whether the caller is `kernels.experts.check_counts`, which asks for a number only where no GPU is."""
    frame = sys._getframe()
    while frame is not None and frame.f_code is not check_counts.__code__:
        frame = frame.f_back
    return frame is not None


class _Record(TorchDispatchMode):
    """One run of a forward."""

    def __init__(self, computing: bool) -> None:
        super().__init__()
        self.computing = computing
        self.lines: list[tuple[Any, ...]] = []
        self.wrong: list[str] = []
        self.outside: dict[int, tuple[int, ...]] = {}
        self._made: dict[int, Tensor] = {}  # by address of storages; held, or an address would be used again
        self._launching = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self._launching or _on_a_processor_alone():
            return result
        name, given = func._schema.name, tree_flatten((args, kwargs))[0]
        known = {t.untyped_storage().data_ptr() for t in given if isinstance(t, Tensor)}
        self.lines.append((name, *map(self._told, given)))
        masks = [t for t in given[1:] if isinstance(t, Tensor) and t.dtype == torch.bool]
        if name in ASKING or (name.startswith("aten::index") and masks):
            self.wrong.append(f"{name} {ASKING.get(name, 'makes a size of numbers')}")
        for tensor in tree_flatten(result)[0]:
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in known:
                self._made[tensor.untyped_storage().data_ptr()] = tensor
        return result

    def _told(self, given: Any) -> Any:
        """As it is written down: numbers as they are, what was there before by its address, all else by its shape."""
        if not isinstance(given, Tensor):
            return "nan" if given != given else given
        address = given.untyped_storage().data_ptr()
        if address in self._made or not given.numel():
            return tuple(given.shape), given.dtype
        self.outside[address] = tuple(given.shape)
        return tuple(given.shape), given.dtype, given.data_ptr()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Tensors' own ways to the host are refused inside, and launches written down."""
        interpret, record = Kernel._interpret, self

        def launch(kernel: Kernel, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
            record.lines.append((kernel.__name__, grid, *map(record._told, args), *options.items()))
            record._launching = True
            try:
                if record.computing:
                    interpret(kernel, grid, *args, **options)
            finally:
                record._launching = False

        def refused(name: str) -> Any:
            real = getattr(torch.Tensor, name)

            def asked(tensor: Tensor, *args: Any, **options: Any) -> Any:
                if not record._launching:
                    record.wrong.append(f"Tensor.{name} asks for numbers")
                return real(tensor, *args, **options)

            return asked

        try:
            Kernel._interpret = launch
            for name in METHODS:
                setattr(torch.Tensor, name, refused(name))
            yield
        finally:
            Kernel._interpret = interpret
            for name in METHODS:
                if name in vars(torch.Tensor):
                    delattr(torch.Tensor, name)
