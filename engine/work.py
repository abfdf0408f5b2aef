"""What a stage has computed, in numbers."""

from collections import Counter
from dataclasses import dataclass, field, fields, replace


@dataclass
class Work:
    """What a stage computed.

    Attributes:
        kernels: Runs of each kernel.
        tokens: Tokens that went through the forward.
        forwards: Forwards, whatever their size.
        seconds: Wall clock inside the forwards.
        replays: Those of them that were a captured graph's.
        slots_read: Slots that attention read, over all layers. Kernels for GPUs: for each request, without what windows
            hide; of sparse attention the chosen ones for each token, but all in layers that choose, where every index
            key is read. In torch: all slots of a forward's requests, once for all that share them.
        slots_checked: Those of them whose integrity was checked.
        faults: Requests in forwards that met a slot which was not sound.
    """

    kernels: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    forwards: int = 0
    replays: int = 0
    seconds: float = 0.0
    slots_read: int = 0
    slots_checked: int = 0
    faults: int = 0

    def copy(self) -> "Work":
        """The work so far, unmoved by what follows."""
        return replace(self, kernels=self.kernels.copy())

    def since(self, start: "Work") -> "Work":
        """What came after `start`."""
        counts = [field.name for field in fields(self) if field.name != "kernels"]
        grown = {name: getattr(self, name) - getattr(start, name) for name in counts}
        return Work(self.kernels - start.kernels, **grown)
