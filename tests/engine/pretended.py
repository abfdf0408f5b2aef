"""A device that is not there: tensors are marked instead of moved, and an operation on marked and unmarked ones fails.

So does one on numbers in fp8 that torch may lack on GPUs: there they are moved, viewed, cast and joined, and no more. A
launch of a kernel, which the interpreter runs, is given marked tensors alone.

What is made in a block of `devices.on` without a device, and what is computed of it, is marked, by its storage. An
unmarked tensor may be copied into a marked one, be a number, or index it: torch allows that between devices, too.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from evalsvc.kernels.jit import Kernel

FP8 = ("view", "slice", "select", "unsqueeze", "squeeze", "expand", "t", "transpose", "detach", "alias", "copy_")
FP8 += (
    "_to_copy",
    "clone",
    "cat",
    "stack",
    "empty_like",
    "new_empty",
    "lift_fresh",
    "flatten",
    "unflatten",
    "unbind",
    "to",
)
COPIES = {"aten::copy_", "aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}


class Pretended(TorchDispatchMode):
    """Marks storages, and collects operations that a GPU would refuse.

    Attributes:
        wrong: Operations on tensors of two devices.
        seen: How many there were on marked ones.
        launches: Of kernels.
    """

    def __init__(self) -> None:
        super().__init__()
        self.inside = 0
        self.launches = 0
        self._launching = False
        self.wrong: list[str] = []
        self.seen = 0
        self._marked: dict[int, Tensor] = {}  # by address; held, or an address would be used again

    @contextmanager
    def on(self, device: torch.device) -> Iterator[None]:
        """In place of `devices.on`."""
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    def launching(self) -> Callable[..., None]:
        """In place of `Kernel._interpret`."""
        interpret = Kernel._interpret

        def launch(kernel: Kernel, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
            given = [a for a in args if isinstance(a, Tensor) and a.numel()]
            loose = [tuple(tensor.shape) for tensor in given if not self.is_marked(tensor)]
            if loose:
                self.wrong.append(f"{kernel.__name__} of {loose}")
            self.launches += 1
            self._launching = True
            try:
                interpret(kernel, grid, *args, **options)
            finally:
                self._launching = False

        return launch

    def is_marked(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._marked

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._launching:
            return func(*args, **kwargs)
        given = [a for a in tree_flatten((args, kwargs))[0] if isinstance(a, Tensor) and a.numel() and not a.is_meta]
        marks = [self.is_marked(tensor) for tensor in given]
        result = func(*args, **kwargs)
        name = func._schema.name
        loose = [tuple(t.shape) for t, marked in zip(given, marks, strict=True) if not marked and t.ndim]
        if any(marks):
            self.seen += 1
            if loose and name not in COPIES:
                self.wrong.append(f"{name} of {loose}")
            narrow = any(tensor.dtype == torch.float8_e4m3fn for tensor in given)
            if narrow and name.removeprefix("aten::") not in FP8:
                self.wrong.append(f"{name} of fp8")
        made = name == "aten::lift_fresh" or not given
        if any(marks) or (made and self.inside):
            for tensor in tree_flatten(result)[0]:
                if isinstance(tensor, Tensor) and tensor.numel() and not tensor.is_meta:
                    self._marked[tensor.untyped_storage().data_ptr()] = tensor
        return result
