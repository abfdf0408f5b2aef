"""Published figures of deployments, held against the arithmetic. What does not meet is said, with likely reasons."""

from dataclasses import dataclass

from evalsvc.capacity.model import Model, read_model
from evalsvc.capacity.sharing import Devices, place
from evalsvc.engine.precision import parse_plan

GB, GIB = 10**9, 2**30
MET = 0.03
"""Relative difference up to which a figure counts as met: what rounding to two digits can make of it."""


@dataclass(frozen=True)
class Held:
    """One published figure beside the arithmetic's.

    Attributes:
        what: The figure, and the arithmetic's assumptions.
        published: As published.
        arithmetic: The arithmetic's own.
        unit: Of both.
        source: Who published it.
        reasons: Why they can differ; said where they do.
    """

    what: str
    published: float
    arithmetic: float
    unit: str
    source: str
    reasons: str

    @property
    def difference(self) -> float:
        """Of the arithmetic's figure from the published one, a proportion of the latter."""
        return self.arithmetic / self.published - 1

    @property
    def met(self) -> bool:
        """Whether they agree within `MET`."""
        return abs(self.difference) <= MET


REPORT = "reported without model, formats or memory beside them; what is assumed is ours"
VLLM = "vLLM recipe of Kimi K2 Thinking, github.com/vllm-project/recipes/pull/115"
_KV8, _KV16 = "kv=fp8:uncalibrated", "kv=bf16"
_ROOM = "activations, graphs and libraries take another share than the tenth assumed, a draft model takes its own"


def held_against() -> list[Held]:
    """Every published figure that this arithmetic is held against."""
    eight = Devices(count=8, memory_bytes=141 * GB)
    kimi, glm = read_model("kimi-k2"), read_model("glm-5")
    bytes16, bytes8 = (_kv_bytes(kimi, kv, eight) for kv in (_KV16, _KV8))
    four = Devices(count=8, memory_bytes=141 * GB, packs="experts")
    tokens = [place(kimi, parse_plan(f"w=int4:g32,{kv}").decode, four).tokens for kv in (_KV16, _KV8)]
    weights = [place(glm, parse_plan(f"w={w}").decode, d).weights_bytes for w, d in (("fp8", eight), ("int4", four))]
    glm8 = _kv_bytes(glm, _KV8, eight)
    on_int4 = "Kimi K2, INT4 experts in groups of 32, 8 x 141 GB"
    return [
        Held("KV of Kimi K2 in bf16 in 46.80 GiB a device", 715_072, 46.80 * GIB / bytes16, "tokens", VLLM, ""),
        Held("FP8 over bf16 KV, one scale a tensor", 1.37e6 / 686e3, bytes16 / bytes8, "x tokens", REPORT, ""),
        Held(f"{on_int4}: tokens with bf16 KV", 686e3, tokens[0], "tokens", REPORT, _ROOM),
        Held(f"{on_int4}: tokens with FP8 KV", 1.37e6, tokens[1], "tokens", REPORT, _ROOM),
        Held(
            "GLM 5 in FP8, weights a device of eight, read as GiB",
            88.0,
            weights[0] / GIB,
            "GiB",
            REPORT,
            "which matrices stay in bf16, block in place of channel scales, a layer for drafts",
        ),
        Held(
            "GLM 5 with INT4 experts in groups of 128, the rest bf16, weights a device of eight, read as GiB",
            52.0,
            weights[1] / GIB,
            "GiB",
            REPORT,
            "which matrices are packed, the group, whether a zero is stored beside each scale",
        ),
        Held(
            "tokens that 36 GiB hold, GLM 5 with FP8 KV and index keys",
            1.18e6,
            36 * GIB / glm8,
            "tokens",
            REPORT,
            f"1.18 million tokens in 36 GiB are {36 * GIB / 1.18e6:,.0f} bytes a token and device; GLM 5's latents "
            f"alone are {78 * 576:,}, with index keys {glm8:,}: tokens that are shared out over devices and not held "
            "by each, or fewer bytes than FP8 latents, would explain it; or it is about another model",
        ),
        Held(
            "tokens that 36 GiB hold, Kimi K2 with FP8 KV",
            1.18e6,
            36 * GIB / bytes8,
            "tokens",
            REPORT,
            f"Kimi K2 keeps {bytes8:,} bytes a token and device; 1.18 million would take "
            f"{1.18e6 * bytes8 / GIB:.1f} GiB: the space may be counted with what else became free",
        ),
    ]


def _kv_bytes(model: Model, kv: str, devices: Devices) -> int:
    return place(model, parse_plan(kv).decode, devices).kv_bytes_per_token
