"""Where an engine computes: the processor, or a GPU that torch sees."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from evalsvc.errors import CapabilityError, ConfigError, EngineError


def resolve(device: str) -> torch.device:
    """The device that a word names.

    Args:
        device: `cpu`, `cuda`, `cuda:N`, or `auto`: the processor, until the kernels have been run on a GPU.

    Raises:
        ConfigError: Another word.
        CapabilityError: A GPU that is not there.
    """
    if device in ("auto", "cpu"):
        return torch.device("cpu")
    if not isinstance(device, str) or re.fullmatch(r"cuda(:\d+)?", device) is None:
        raise ConfigError(f"device is {device!r}; it must be auto, cpu, cuda, or cuda:N")
    if not torch.cuda.is_available():
        raise CapabilityError(f"device {device!r} is not here: torch {torch.__version__} sees no GPU; use cpu")
    found = torch.device("cuda", int(device[5:] or 0))
    if found.index >= torch.cuda.device_count():
        raise CapabilityError(f"device {device!r} is not here: torch sees {torch.cuda.device_count()} GPUs")
    return found


def described(device: torch.device) -> str:
    """The class of a device, as figures and fingerprints name it."""
    if device.type == "cuda":
        return f"cuda:{torch.cuda.get_device_name(device)}"
    return f"cpu:{torch.backends.cpu.get_cpu_capability()}"


@contextmanager
def on(device: torch.device) -> Iterator[None]:
    """Tensors that are made inside the block without a device are made there, and kernels and captures run there.

    The processor needs nothing said.
    """
    if device.type == "cpu":
        yield
        return
    with torch.cuda.device(device), torch.device(device):
        yield


@contextmanager
def room_for(what: str, remedy: str) -> Iterator[None]:
    """Says of memory that cannot be had what it was for.

    Args:
        what: Begins the sentence.
        remedy: Ends it.

    Raises:
        EngineError: Something inside the block does not fit into memory.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # on a processor torch has no class of its own for it
        named = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not named and "can't allocate memory" not in str(error):
            raise
        raise EngineError(f"{what} does not fit into memory; {remedy}") from error


def finish(device: torch.device) -> None:
    """Waits until a GPU has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
