"""A model's bytes on each of several devices, and the tokens that what is left holds.

How matrices are shared (the way of vLLM and SGLang):

- `tensor` (default): rows or columns of every attention and MLP matrix are cut over the devices; heads of keys and
  values too, and where there are fewer heads than devices, several devices hold one head. What latent attention goes
  down to its latent by is on every device, and so is the latent itself: each device holds every token.
- `data`: attention (with what it stores) is whole on every device, which has requests of its own; so tokens add up.
- Experts are cut inside (`tensor`) or given out whole (`experts=True`): the same bytes but for rounding.
- Embedding and head are cut by vocabulary; with `data` attention the embedding is whole.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from evalsvc.capacity.model import RENAMED, LayerKV, Model
from evalsvc.capacity.parts import Part
from evalsvc.engine.precision import STORED, KVFormat, StagePlan, WeightFormat
from evalsvc.engine.sizes import check_heads_format, check_latent_format, heads_bytes, index_bytes, latent_bytes
from evalsvc.errors import CapabilityError, ConfigError

BF16, FP32 = WeightFormat("bf16"), WeightFormat("fp32")
PAGE = 16  # tokens


@dataclass(frozen=True, kw_only=True)
class Devices:
    """What a model is placed on.

    Attributes:
        count: How many share it.
        memory_bytes: Of each.
        utilization: Share of it that weights and KV may take; activations, graphs and libraries have the rest.
        data_attention: Whether attention is data-parallel.
        experts: Whether experts are given out whole.
        packs: What a plan's weights format is of: `all` matrices but embedding and head, or routed `experts` alone, as
            most published INT4 checkpoints of mixtures are; the rest is bf16 then.
    """

    count: int = 1
    memory_bytes: int = 0
    utilization: float = 0.9
    data_attention: bool = False
    experts: bool = False
    packs: str = "all"


@dataclass(frozen=True, kw_only=True)
class Placed:
    """One stage on its devices.

    Attributes:
        weights: By name of part the bytes on one device.
        kv_bytes_per_token: Of one token on one device that holds it.
        windowed: Bytes of `kv_bytes_per_token` that stop growing at a layer's window, by window.
        devices: Which.
    """

    weights: dict[str, int]
    kv_bytes_per_token: int
    windowed: dict[int, int]
    devices: Devices

    @property
    def weights_bytes(self) -> int:
        """On one device."""
        return sum(self.weights.values())

    @property
    def left_bytes(self) -> int:
        """For keys and values on one device; 0 where weights do not fit."""
        return max(0, int(self.devices.memory_bytes * self.devices.utilization) - self.weights_bytes)

    @property
    def tokens(self) -> int:
        """Tokens that all devices hold together, whole pages, every layer holding all of them."""
        copies = self.devices.count if self.devices.data_attention else 1
        return copies * int(self.left_bytes // (self.kv_bytes_per_token * PAGE)) * PAGE

    def requests(self, context: int) -> int:
        """Requests of so many tokens; sliding layers hold their window alone."""
        pages = -(-context // PAGE) * PAGE
        whole = self.kv_bytes_per_token - sum(self.windowed.values())
        each = whole * pages + sum(
            size * min(pages, -(-window // PAGE) * PAGE) for window, size in self.windowed.items()
        )
        copies = self.devices.count if self.devices.data_attention else 1
        return copies * int(self.left_bytes // each)


def place(model: Model, plan: StagePlan, devices: Devices) -> Placed:
    """One stage's bytes.

    Raises:
        ConfigError: A weights format that does not fit a matrix, or devices that ask for experts which are not there.
        CapabilityError: A KV format that the model's attention does not have.
    """
    for asked, option in ((devices.packs == "experts", "--packs experts"), (devices.experts, "--experts whole")):
        if asked and not model.experts:
            raise ConfigError(f"{option}: {model.name} ({model.kind}) has no routed experts; leave it out")
    weights: Counter[str] = Counter()
    for part, fmt in _formats(model, plan.weights, devices):
        weights[part.name] += part_bytes(part, fmt, devices)
    if plan.weights.lm_head and "head" not in weights:  # tied: packed, it is a tensor of its own
        for part in [part for part in model.parts if part.role == "embedding"]:
            weights["head"] += part_bytes(replace(part, role="head"), plan.weights, devices)
    by_window: Counter[int | None] = Counter()
    for layer in model.kv:
        by_window[layer.window] += layer_bytes(layer, plan.kv, devices)
    return Placed(
        weights=dict(weights),
        kv_bytes_per_token=sum(by_window.values()),
        windowed={window: size for window, size in by_window.items() if window is not None},
        devices=devices,
    )


def _formats(model: Model, fmt: WeightFormat, devices: Devices) -> Iterator[tuple[Part, WeightFormat]]:
    """Each part and what the plan asks of it; as stored, so many of it as the files hold in each format.

    Raises:
        ConfigError: Experts alone, where the checkpoint says what is packed.
        CapabilityError: A model whose files name matrices in a way that is not known, or store them in no format.
    """
    if fmt.kind != STORED:
        yield from ((part, fmt) for part in model.parts)
        return
    if devices.packs == "experts":
        raise ConfigError("--packs experts is of a format that a plan names; under w=stored the checkpoint says")
    if model.kind in RENAMED:
        raise CapabilityError(
            f"{model.name}: how files of {model.kind} name their matrices is not known; name a format"
        )
    assert model.stored is not None
    for part in model.parts:
        if part.role == "head":
            yield part, replace(model.stored.format_of("lm_head"), lm_head=True)
        elif not part.packed:
            yield part, BF16
        else:
            names = [f"model.layers.{layer}.{leaf}" for layer in model.layers[part.on] for leaf in part.leaves]
            found = Counter(model.stored.format_of(one) for name in names for one in _each(name, part.of_layer))
            if devices.experts and any(count % part.of_layer for count in found.values()):
                raise CapabilityError(f"{model.name}: experts of one layer are stored in several formats")
            for held, count in found.items():
                yield replace(part, count=count), held


def _each(name: str, experts: int) -> Iterator[str]:
    yield from ([name.replace("*", str(expert)) for expert in range(experts)] if "*" in name else [name])


def part_bytes(part: Part, fmt: WeightFormat, devices: Devices) -> int:
    """Bytes of a part on one device.

    Raises:
        ConfigError: An int4 group that does not divide the part's columns.
    """
    chosen = part.role == "expert" if devices.packs == "experts" else part.packed
    held = fmt if chosen or (part.role == "head" and fmt.lm_head) else FP32 if part.fp32 else _plain(fmt)
    out, inputs, count = _cut(part, devices)
    if held.kind in ("int4", "nvfp4") and inputs % held.group:
        cut = f" (of {part.inputs} over {devices.count} devices)" if inputs != part.inputs else ""
        what = f"{held.stored}: groups of {held.group} do not divide the {inputs} inputs{cut} of {part.name}"
        raise ConfigError(f"{what}; take a smaller group, or give experts out whole")
    return held.format_bytes(out, inputs) * count


def _plain(fmt: WeightFormat) -> WeightFormat:
    return fmt if fmt.kind == "fp32" else BF16


def _cut(part: Part, devices: Devices) -> tuple[int, int, int]:
    """Rows, columns and count on one device."""
    n = devices.count
    whole = devices.data_attention and (part.name == "attention" or part.role == "embedding")
    if whole or part.role in ("plain", "shared"):
        return part.out, part.inputs, part.count
    if part.role == "expert" and devices.experts:
        return part.out, part.inputs, -(-part.of_layer // n) * (part.count // part.of_layer)
    if part.role == "row" or part.across:
        return part.out, -(-part.inputs // n), part.count
    return -(-part.out // (part.unit * n)) * part.unit, part.inputs, part.count


def layer_bytes(layer: LayerKV, fmt: KVFormat, devices: Devices) -> int:
    """Bytes of one token in one layer on one device that holds it.

    Raises:
        CapabilityError: A format that the engine does not hold such keys and values in.
    """
    if layer.rank:
        check_latent_format(fmt, layer.rank)
        index = index_bytes(layer.index, fmt) if layer.index else 0
        return latent_bytes(layer.rank, layer.rope, fmt) + index
    check_heads_format(fmt)
    heads = layer.kv_heads if devices.data_attention else -(-layer.kv_heads // devices.count)
    return heads_bytes(heads, layer.head_dim, fmt)


def breakdown(weights: dict[str, int], names: Iterable[str]) -> str:
    """`experts 61.2 GB, attention 3.1 GB`, largest first."""
    shown = sorted((n for n in names if weights.get(n)), key=lambda n: -weights[n])
    return ", ".join(f"{name} {weights[name] / 1e9:,.2f} GB" for name in shown)
