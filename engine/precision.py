"""Formats, stages and plans: parsing them and printing them. No torch here.

Plan text is `w=FORMAT,kv=FORMAT > w=FORMAT,kv=FORMAT` (prefill `>` decode; one half alone means both). A format takes
options after colons, in any order; the canonical text has every default expanded and is what is hashed and stored.
"""

from dataclasses import dataclass, replace
from typing import Literal

from evalsvc.errors import ConfigError

STORED = "stored"
INT4_GROUPS = (32, 64, 128)
FP8_BLOCK = 128
NVFP4_BLOCK = 16
LATENT_TILE = 128
KVScale = Literal[
    "",
    "token-head",
    "latent128",
    "tensor:calibrated",
    "tensor:given",
    "tensor:uncalibrated",
    "head:calibrated",
    "head:given",
]
DYNAMIC_SCALES = ("token-head", "latent128")
FACTORS = ("prefill.weights", "prefill.kv", "decode.weights", "decode.kv")


@dataclass(frozen=True)
class WeightFormat:
    """How the linears' weights are held.

    Attributes:
        kind: Element type of the packed form. `stored`: of each matrix its checkpoint's own, activations included.
        activations: `w8a8` and `w4a4` quantize activations as each token comes, `w8a16` and `w4a16` store only.
            Meaningful for fp8, int8 and nvfp4.
        group: Inputs along K that share one scale, for int4, for fp8 in blocks of 128 x 128 and for nvfp4; 0: all.
        symmetric: Whether int4 has no offset.
        lm_head: Whether the lm_head is quantized too; embeddings and norms never are.
    """

    kind: Literal["fp32", "bf16", "fp8", "int8", "int4", "nvfp4", "stored"] = "bf16"
    activations: Literal["", "w8a8", "w8a16", "w4a4", "w4a16"] = ""
    group: int = 0
    symmetric: bool = True
    lm_head: bool = False

    def __str__(self) -> str:
        parts = [self.stored]
        if self.activations:
            parts = [self.kind, self.activations]
            parts += [per for per in (self._weight_scale, self._activation_scale) if per]
        return ":".join([*parts, "lm_head"] if self.lm_head else parts)

    @property
    def stored(self) -> str:
        """What the packed form alone says: the format without activations and lm_head."""
        if self.kind == "int4":
            return f"int4:g{self.group}:{'sym' if self.symmetric else 'asym'}"
        return f"{self.kind}:{self._weight_scale}" if self._weight_scale else self.kind

    @property
    def _weight_scale(self) -> str:
        if self.kind not in ("fp8", "int8"):
            return ""
        return f"block{self.group}" if self.group else "channel"

    @property
    def _activation_scale(self) -> str:
        if self.activations not in ("w8a8", "w4a4"):
            return ""
        return f"group{self.group}" if self.kind == "fp8" and self.group else "token"

    @property
    def storage_only(self) -> "WeightFormat":
        """The same packed form with activations as they come."""
        stored = {"w8a8": "w8a16", "w4a4": "w4a16"}.get(self.activations, self.activations)
        return replace(self, activations=stored)

    @property
    def product(self) -> str:
        """Which product runs: the format's own where activations are quantized, else that of the compute type."""
        if self.activations in ("w8a8", "w4a4"):
            block = f"_block{self.group}" if self.kind == "fp8" and self.group else ""
            return f"{self.kind}{block}_{self.activations}"
        return "fp32" if self.kind == "fp32" else "bf16"

    @property
    def kernel(self) -> str:
        """Which product of the packed form there is where kernels run as Triton; empty for what is not packed."""
        if self.kind in ("fp32", "bf16"):
            return ""
        block = f"_block{self.group}" if self.kind == "fp8" and self.group else ""
        return f"{self.kind}{block}_{self.activations or 'w4a16'}"

    def format_bytes(self, out: int, inputs: int) -> int:
        """Bytes of a matrix of shape (out, in) in the packed form, scales included.

        Raises:
            ConfigError: Only the checkpoint says how a matrix is held.
        """
        values = out * inputs
        if self.kind == STORED:
            raise ConfigError(f"w={self}: a matrix has no size before its checkpoint says how it is stored")
        if self.kind == "int4":
            return values // 2 + (2 if self.symmetric else 4) * values // self.group
        if self.kind == "nvfp4":
            return values // 2 + values // self.group + 4
        if self.kind in ("fp8", "int8"):
            blocks = -(-out // self.group) * -(-inputs // self.group) if self.group else out
            return values + 4 * blocks
        return values * (4 if self.kind == "fp32" else 2)


@dataclass(frozen=True)
class KVFormat:
    """How keys and values are held in pages.

    Attributes:
        kind: Element type of the pages; fp8 and int8 elements are codes that a scale multiplies.
        scale: Whose elements share a scale, and where it comes from. `token-head` is dynamic: one fp32 per token and
            head. So is `latent128`, for latent attention: one fp32 per token and 128 numbers of its latent, the rope
            key in bf16. The others are fixed before the first token, keys and values apart, one for a layer
            (`tensor`) or for each head of a layer (`head`): `calibrated` on prompts, `given` in a file, or
            `uncalibrated` (1.0). Empty for fp32 and bf16.
    """

    kind: Literal["fp32", "bf16", "fp8", "int8"] = "bf16"
    scale: KVScale = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.scale}" if self.scale else self.kind

    @property
    def per(self) -> str:
        """Whose elements share a scale: `token-head`, `latent128`, `tensor`, `head` or nobody's."""
        return self.scale.partition(":")[0]

    @property
    def origin(self) -> str:
        """Where scales come from: `dynamic`, `calibrated`, `given`, `uncalibrated`, or empty without scales."""
        return "dynamic" if self.scale in DYNAMIC_SCALES else self.scale.partition(":")[2]

    @property
    def calibrated(self) -> bool:
        """Whether scales come from calibration prompts."""
        return self.origin == "calibrated"

    @property
    def given(self) -> bool:
        """Whether scales come from a file of scales."""
        return self.origin == "given"


@dataclass(frozen=True)
class StagePlan:
    """One stage's formats."""

    weights: WeightFormat = WeightFormat()
    kv: KVFormat = KVFormat()

    def __str__(self) -> str:
        return f"w={self.weights},kv={self.kv}"


@dataclass(frozen=True)
class PrecisionPlan:
    """A pair of stages."""

    prefill: StagePlan = StagePlan()
    decode: StagePlan = StagePlan()

    def __str__(self) -> str:
        return str(self.prefill) if self.prefill == self.decode else f"{self.prefill} > {self.decode}"

    def formats(self) -> dict[str, str]:
        """Canonical format of each factor."""
        return {
            "prefill.weights": str(self.prefill.weights),
            "prefill.kv": str(self.prefill.kv),
            "decode.weights": str(self.decode.weights),
            "decode.kv": str(self.decode.kv),
        }

    def differing_factors(self, other: "PrecisionPlan") -> frozenset[str]:
        """Factors in which two plans differ."""
        mine, theirs = self.formats(), other.formats()
        return frozenset(factor for factor in FACTORS if mine[factor] != theirs[factor])


def parse_plan(text: str) -> PrecisionPlan:
    """Reads plan text.

    Args:
        text: For example `w=bf16,kv=bf16 > w=int4:g32:asym,kv=fp8`.

    Raises:
        ConfigError: The text is not a plan; the message names the part and what is accepted.
    """
    halves = [half.strip() for half in text.split(">")]
    if len(halves) > 2 or not all(halves):
        raise ConfigError(f"plan {text!r}: write one stage, or `PREFILL > DECODE`")
    stages = [_parse_stage(half, text) for half in halves]
    return PrecisionPlan(stages[0], stages[-1])


def _parse_stage(half: str, text: str) -> StagePlan:
    parts: dict[str, str] = {}
    for part in half.split(","):
        key, eq, value = part.strip().partition("=")
        if key not in ("w", "kv") or not eq or not value.strip():
            raise ConfigError(f"plan {text!r}: {part.strip()!r} is neither `w=FORMAT` nor `kv=FORMAT`")
        if key in parts:
            raise ConfigError(f"plan {text!r}: {key!r} is given twice in one stage")
        parts[key] = value.strip().lower()
    return StagePlan(_parse_weights(parts.get("w", "bf16"), text), _parse_kv(parts.get("kv", "bf16"), text))


_WEIGHT_OPTIONS = {
    "fp8": ("w8a8", "w8a16", "channel", "block128", "token", "group128", "lm_head"),
    "int8": ("w8a8", "w8a16", "channel", "token", "lm_head"),
    "int4": (*(f"g{group}" for group in INT4_GROUPS), "sym", "asym", "lm_head"),
    "nvfp4": ("w4a4", "w4a16", "token", "lm_head"),
}


def _parse_weights(text: str, plan: str) -> WeightFormat:
    kind, *options = text.split(":")
    if kind in ("fp32", "bf16", "stored") and options == ["lm_head"]:
        raise ConfigError(f"plan {plan!r}: {text!r}: the lm_head is held at {kind} without being asked")
    if kind in ("fp32", "bf16", "stored") and not options:
        return WeightFormat(kind)  # pyright: ignore[reportArgumentType]
    if kind not in _WEIGHT_OPTIONS:
        options = "; ".join(f"{name} has {', '.join(held)}" for name, held in _WEIGHT_OPTIONS.items())
        raise ConfigError(
            f"plan {plan!r}: unknown weights format {text!r}; use fp32, bf16, fp8, int8, int4, nvfp4 or stored, with "
            f"options after colons as in fp8:block128:w8a16: {options}"
        )
    accepted = _WEIGHT_OPTIONS[kind]
    head = "lm_head" in options
    if kind == "int4":
        group = _choose(options, accepted[: len(INT4_GROUPS)], "g128", text, plan)
        symmetry = _choose(options, ("sym", "asym"), "sym", text, plan)
        _refuse_unknown(options, {group, symmetry, "lm_head"}, text, plan, accepted)
        return WeightFormat("int4", "", int(group[1:]), symmetry == "sym", head)
    activations = _choose(options, accepted[:2], accepted[0], text, plan)
    block = kind == "fp8" and "block128" in options
    group = FP8_BLOCK if block else NVFP4_BLOCK if kind == "nvfp4" else 0
    fmt = WeightFormat(kind, activations, group, lm_head=head)  # pyright: ignore[reportArgumentType]
    _refuse_unknown(options, {*str(fmt).split(":")[1:], "lm_head"}, text, plan, accepted)
    return fmt


def _parse_kv(text: str, plan: str) -> KVFormat:
    kind, *options = text.split(":")
    if kind in ("fp32", "bf16") and not options:
        return KVFormat(kind)
    if kind in ("fp8", "int8"):
        origin = _choose(options, ("calibrated", "given", "uncalibrated"), "", text, plan)
        shared = (*DYNAMIC_SCALES, "tensor", "head")
        per = _choose(options, shared, "tensor" if origin else "token-head", text, plan)
        _refuse_unknown(options, {origin, per}, text, plan)
        _check_scale(kind, per, origin, text, plan)
        scale = f"{per}:{origin}" if origin else per
        return KVFormat(kind, scale)  # pyright: ignore[reportArgumentType]
    raise ConfigError(
        f"plan {plan!r}: unknown KV format {text!r}; use fp32, bf16, fp8, int8, or one of these two with "
        "token-head, tensor:calibrated, head:calibrated, tensor:given or head:given; for latent attention fp8:latent128"
    )


def _check_scale(kind: str, per: str, origin: str, text: str, plan: str) -> None:
    where = f"plan {plan!r}: KV {text!r}"
    if per == "latent128" and kind != "fp8":
        raise ConfigError(f"{where}: tiles of a latent are held in fp8; write `fp8:latent128`")
    if per in DYNAMIC_SCALES and origin:
        what = "tile of a latent" if per == "latent128" else "head"
        raise ConfigError(f"{where}: one scale per token and {what} is dynamic, it cannot be {origin}")
    if per not in DYNAMIC_SCALES and not origin:
        uncalibrated = " or `:uncalibrated` (scale 1.0)" if (kind, per) == ("fp8", "tensor") else ""
        raise ConfigError(f"{where} needs `:calibrated`, `:given`{uncalibrated}")
    if origin == "uncalibrated" and kind == "int8":
        raise ConfigError(
            f"{where}: int8 at scale 1.0 rounds keys and values to whole numbers; use `int8` or calibrate"
        )
    if origin == "uncalibrated" and per == "head":
        raise ConfigError(f"{where}: uncalibrated is scale 1.0 for all heads; write `{kind}:uncalibrated`")


def _choose(options, choices, default: str, text: str, plan: str) -> str:
    given = [option for option in options if option in choices]
    if len(given) > 1:
        raise ConfigError(f"plan {plan!r}: {text!r} has {' and '.join(given)}; choose one")
    return given[0] if given else default


def _refuse_unknown(options, known, text: str, plan: str, accepted=()) -> None:
    for option in options:
        if options.count(option) > 1:
            raise ConfigError(f"plan {plan!r}: {text!r} has {option!r} twice")
        if option in known and option:
            continue
        if option in accepted:
            raise ConfigError(
                f"plan {plan!r}: {text!r}: {option!r} does not go with the rest; what does: {', '.join(sorted(known))}"
            )
        hint = f"; accepted: {', '.join(accepted)}" if accepted else ""
        raise ConfigError(f"plan {plan!r}: {text!r} has an unknown option {option!r}{hint}")
