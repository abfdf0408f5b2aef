"""Matrices whose codes lie in int32 words, with a scale and a zero point for each group of inputs. No torch here."""

from dataclasses import dataclass

from ..precision import INT4_GROUPS, WeightFormat


@dataclass(frozen=True)
class Words:
    """How a matrix is stored.

    Attributes:
        method: `gptq` or `awq`.
        bits: Of a code.
        size: Inputs of a group; 0: all of them.
        symmetric: Whether every zero point is the middle code.
        ordered: Whether inputs may be in another order than that of their groups; where there are several.
    """

    method: str
    bits: int
    size: int
    symmetric: bool
    ordered: bool = False

    @property
    def own_format(self) -> WeightFormat | None:
        """The plan's format that has these codes, scales and zero points; None: no plan's."""
        if self.bits == 4 and self.size in INT4_GROUPS:
            return WeightFormat("int4", group=self.size, symmetric=self.symmetric)
        if self.bits == 8 and not self.size and self.symmetric:
            return WeightFormat("int8", "w8a16")
        return None

    def __str__(self) -> str:
        per = f"a group of {self.size}" if self.size else "a channel"
        return f"{self.method} ({self.bits} bits, one scale {per}{'' if self.symmetric else ', zero points'})"
