"""Matrices and vectors of a model, from its configuration: what a plan packs, what it leaves, how devices share it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Role = Literal["column", "row", "kv", "expert", "shared", "head", "embedding", "plain"]
Layers = Literal["all", "plain", "routed", "choosing"]


@dataclass(frozen=True)
class Part:
    """Equal tensors.

    Attributes:
        name: What it is called in text.
        role: How devices share it (`sharing.py`): by rows, by columns, by KV heads, by experts; `shared` matrices and
            `plain` tensors (norms, biases, routers) are on every device, embedding and head go by vocabulary.
        out: Rows; of a vector its length, with `inputs` 1.
        inputs: Columns.
        count: How many there are.
        unit: Rows that stay on one device: a head's.
        of_layer: Experts of one layer.
        across: Whether an expert is cut by columns.
        fp32: Whether it is held in fp32 under every plan, as the model has it.
        leaves: Of what a plan packs the modules' names within a layer, an expert's number as `*`.
        on: Which layers have them: all, those without experts, those with, those that choose their keys.
    """

    name: str
    role: Role
    out: int
    inputs: int = 1
    count: int = 1
    unit: int = 1
    of_layer: int = 1
    across: bool = False
    fp32: bool = False
    leaves: tuple[str, ...] = ()
    on: Layers = "all"

    @property
    def elements(self) -> int:
        """Numbers in all of them."""
        return self.out * self.inputs * self.count

    @property
    def packed(self) -> bool:
        """Whether a plan's weights format holds it; embeddings, head and plain tensors stay as they are."""
        return self.role in ("column", "row", "kv", "expert", "shared")


@dataclass(frozen=True)
class Dense:
    """How a model type departs from plain llama: RMS norms, no biases, a gated MLP.

    Attributes:
        norms: Norms of a layer, each of hidden size.
        norm_bias: Whether norms have a bias.
        weightless: Norms without any parameter.
        final_norm: Whether there is one after the last layer.
        qkv_bias: Whether query, key and value have biases; a name: the configuration's key. `o_bias`, `mlp_bias` alike.
        gated: Whether the MLP has a gate beside the way up.
        qk_norm: What norms of query and key are as long as: a `head`, or all heads (`full`). After `KEY:` only where
            that key of the configuration is set.
        qk_bias: Whether they have biases.
        tied: Whether the head is the embedding where the configuration is silent.
        head_bias: Whether the head has a bias.
    """

    norms: int = 2
    norm_bias: bool | str = False
    weightless: bool = False
    final_norm: bool = True
    qkv_bias: bool | str = False
    o_bias: bool | str = False
    gated: bool = True
    mlp_bias: bool | str = False
    qk_norm: str = ""
    qk_bias: bool = False
    tied: bool = False
    head_bias: bool = False


@dataclass(frozen=True)
class Shape:
    """What attention and MLP of a configuration are made of."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Shape":
        """Reads the fields that every decoder has."""
        heads = config["num_attention_heads"]
        return cls(
            hidden=config["hidden_size"],
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            intermediate=config["intermediate_size"],
            vocabulary=config["vocab_size"],
        )


_ATTENTION, _EXPERT = "self_attn", "mlp.experts.*"


def _of(where: str, *ways: str) -> tuple[str, ...]:
    return tuple(f"{where}.{way}_proj" for way in ways)


def asked(config: Mapping[str, Any], flag: bool | str) -> bool:
    """A constant, or a key of the configuration (`!` before it: set where it is silent)."""
    if isinstance(flag, bool):
        return flag
    return bool(config.get(flag.lstrip("!"), flag.startswith("!")))


def attention(config: Mapping[str, Any], shape: Shape, dense: Dense, layers: int) -> Iterator[Part]:
    """Grouped-query attention of so many layers."""
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield Part("attention", "column", q, shape.hidden, layers, shape.head_dim, leaves=_of(_ATTENTION, "q"))
    yield Part("attention", "kv", kv, shape.hidden, 2 * layers, shape.head_dim, leaves=_of(_ATTENTION, "k", "v"))
    yield Part("attention", "row", shape.hidden, q, layers, leaves=_of(_ATTENTION, "o"))
    if asked(config, dense.qkv_bias):
        yield Part("biases", "plain", q + 2 * kv, 1, layers)
    if asked(config, dense.o_bias):
        yield Part("biases", "plain", shape.hidden, 1, layers)
    key, _, kind = dense.qk_norm.rpartition(":")
    lengths = {"head": (shape.head_dim,) * 2, "full": (q, kv)}.get(kind, ())
    for length in lengths if not key or config.get(key) else ():
        yield Part("norms", "plain", length, 1, layers * (2 if dense.qk_bias else 1))


def mlp(config: Mapping[str, Any], shape: Shape, dense: Dense, layers: int) -> Iterator[Part]:
    """The dense MLP of so many layers."""
    ways = 2 if dense.gated else 1
    up = _of("mlp", "gate", "up") if dense.gated else _of("mlp", "up")
    yield Part("MLP", "column", shape.intermediate, shape.hidden, ways * layers, leaves=up, on="plain")
    yield Part("MLP", "row", shape.hidden, shape.intermediate, layers, leaves=_of("mlp", "down"), on="plain")
    if asked(config, dense.mlp_bias):
        yield Part("biases", "plain", ways * shape.intermediate + shape.hidden, 1, layers)


def frame(config: Mapping[str, Any], shape: Shape, dense: Dense) -> Iterator[Part]:
    """Embedding, head and norms."""
    yield Part("embedding", "embedding", shape.vocabulary, shape.hidden)
    if not config.get("tie_word_embeddings", dense.tied):
        yield Part("head", "head", shape.vocabulary, shape.hidden)
    if dense.head_bias:
        yield Part("biases", "plain", shape.vocabulary)
    if not dense.weightless:
        each = 2 if asked(config, dense.norm_bias) else 1
        yield Part("norms", "plain", shape.hidden, 1, each * (dense.norms * shape.layers + dense.final_norm))


def experts(
    shape: Shape, count: int, width: int, layers: int, *, interleaved: bool = False, fp32: bool = False
) -> Iterator[Part]:
    """Routed experts of so many layers, and their router.

    Args:
        shape: Of the model.
        count: Experts of a layer.
        width: Of one.
        layers: How many have them.
        interleaved: Whether gate and up are one matrix, and all have biases.
        fp32: Whether routers are held in fp32.
    """
    if interleaved:
        yield Part("experts", "expert", 2 * width, shape.hidden, count * layers, of_layer=count)
    else:
        up = _of(_EXPERT, "gate", "up")
        yield Part("experts", "expert", width, shape.hidden, 2 * count * layers, of_layer=count, leaves=up, on="routed")
    down = () if interleaved else _of(_EXPERT, "down")
    size = (shape.hidden, width, count * layers)
    yield Part("experts", "expert", *size, of_layer=count, across=True, leaves=down, on="routed")
    yield Part("routers", "plain", count, shape.hidden, layers, fp32=fp32)
    if interleaved:
        yield Part("biases", "plain", 2 * width + shape.hidden + 1, 1, count * layers)


def shared_expert(shape: Shape, width: int, layers: int, name: str = "shared_experts") -> Iterator[Part]:
    """An expert that every token takes, of which the model says what it is called."""
    up, down = _of(f"mlp.{name}", "gate", "up"), _of(f"mlp.{name}", "down")
    yield Part("shared experts", "column", width, shape.hidden, 2 * layers, leaves=up, on="routed")
    yield Part("shared experts", "row", shape.hidden, width, layers, leaves=down, on="routed")


def latent_attention(config: Mapping[str, Any], shape: Shape) -> Iterator[Part]:
    """Latent attention: down to a latent that every device holds, up to the heads that they share."""
    rank, rope = config["kv_lora_rank"], config["qk_rope_head_dim"]
    nope, value, q_rank = config["qk_nope_head_dim"], config["v_head_dim"], config.get("q_lora_rank")
    q, layers = shape.heads * (nope + rope), shape.layers
    if q_rank is None:
        yield Part("attention", "column", q, shape.hidden, layers, leaves=_of(_ATTENTION, "q"))
    else:
        yield Part("attention", "shared", q_rank, shape.hidden, layers, leaves=_of(_ATTENTION, "q_a"))
        yield Part("norms", "plain", q_rank, 1, layers)
        yield Part("attention", "column", q, q_rank, layers, leaves=_of(_ATTENTION, "q_b"))
    down = (f"{_ATTENTION}.kv_a_proj_with_mqa",)
    yield Part("attention", "shared", rank + rope, shape.hidden, layers, leaves=down)
    yield Part("norms", "plain", rank, 1, layers)
    yield Part("attention", "column", shape.heads * (nope + value), rank, layers, leaves=_of(_ATTENTION, "kv_b"))
    yield Part("attention", "row", shape.hidden, shape.heads * value, layers, leaves=_of(_ATTENTION, "o"))
    if config.get("attention_bias"):
        yield Part("biases", "plain", (q_rank or 0) + rank + rope + shape.hidden, 1, layers)


def indexer(config: Mapping[str, Any], shape: Shape, layers: int) -> Iterator[Part]:
    """What chooses the keys of sparse latent attention, on the layers that choose for themselves."""
    heads, width = config["index_n_heads"], config["index_head_dim"]
    up, down = (f"{_ATTENTION}.indexer.wq_b",), (f"{_ATTENTION}.indexer.wk",)
    yield Part("indexer", "shared", heads * width, config["q_lora_rank"], layers, leaves=up, on="choosing")
    yield Part("indexer", "shared", width, shape.hidden, layers, leaves=down, on="choosing")
    yield Part("indexer", "plain", heads, shape.hidden, layers)
    yield Part("norms", "plain", width, 1, 2 * layers)
