"""One model as its config.json tells it: its parts, and what a token's keys and values take in each layer."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evalsvc.capacity.parts import (
    Dense,
    Layers,
    Part,
    Shape,
    attention,
    experts,
    frame,
    indexer,
    latent_attention,
    mlp,
    shared_expert,
)
from evalsvc.capacity.stored import Stored
from evalsvc.engine.checkpoint.compressed_config import quantization_of
from evalsvc.engine.checkpoint.gptq_config import BESIDE, with_beside
from evalsvc.errors import CapabilityError, ConfigError

DENSE: Mapping[str, Dense] = {
    "arcee": Dense(gated=False, mlp_bias="mlp_bias", qkv_bias="attention_bias", o_bias="attention_bias"),
    "cohere": Dense(norms=1, tied=True, qk_norm="use_qk_norm:full", qkv_bias="attention_bias", o_bias="attention_bias"),
    "cohere2": Dense(norms=1, tied=True, qkv_bias="attention_bias", o_bias="attention_bias"),
    "cwm": Dense(),
    "ernie4_5": Dense(tied=True, qkv_bias="use_bias", o_bias="use_bias", mlp_bias="use_bias"),
    "exaone4": Dense(qk_norm="head"),
    "gemma": Dense(tied=True, qkv_bias="attention_bias", o_bias="attention_bias"),
    "gemma2": Dense(norms=4, tied=True, qkv_bias="attention_bias", o_bias="attention_bias"),
    "gemma3_text": Dense(norms=4, tied=True, qk_norm="head", qkv_bias="attention_bias", o_bias="attention_bias"),
    "glm": Dense(qkv_bias="attention_bias"),
    "glm4": Dense(norms=4, qkv_bias="attention_bias"),
    "granite": Dense(qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias="mlp_bias", tied=True),
    "helium": Dense(qkv_bias="attention_bias"),
    "hunyuan_v1_dense": Dense(qk_norm="head", qkv_bias="attention_bias", o_bias="attention_bias"),
    "jais2": Dense(
        gated=False, norm_bias=True, qkv_bias="!attention_bias", o_bias="!attention_bias", mlp_bias="!mlp_bias"
    ),
    "llama": Dense(qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias="mlp_bias"),
    "ministral": Dense(),
    "ministral3": Dense(),
    "mistral": Dense(),
    "nanochat": Dense(gated=False, weightless=True, qkv_bias="attention_bias", o_bias="attention_bias"),
    "nemotron": Dense(
        gated=False, norm_bias=True, qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias="mlp_bias"
    ),
    "olmo": Dense(weightless=True, qkv_bias="attention_bias", o_bias="attention_bias"),
    "olmo2": Dense(qk_norm="full", qkv_bias="attention_bias", o_bias="attention_bias"),
    "olmo3": Dense(qk_norm="full", qkv_bias="attention_bias", o_bias="attention_bias"),
    "phi": Dense(
        norms=1,
        norm_bias=True,
        gated=False,
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        head_bias=True,
        qk_norm="qk_layernorm:head",
        qk_bias=True,
    ),
    "phi3": Dense(),
    "qwen2": Dense(qkv_bias=True),
    "qwen3": Dense(qk_norm="head", qkv_bias="attention_bias", o_bias="attention_bias"),
    "seed_oss": Dense(qkv_bias="!attention_bias", o_bias="attention_out_bias", mlp_bias="mlp_bias"),
    "smollm3": Dense(tied=True, qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias="mlp_bias"),
    "starcoder2": Dense(
        gated=False, norm_bias=True, qkv_bias="!use_bias", o_bias="!use_bias", mlp_bias="!use_bias", tied=True
    ),
    "vaultgemma": Dense(norms=2, tied=True, qkv_bias="attention_bias", o_bias="attention_bias"),
}
MIXTURES: Mapping[str, Dense] = {
    "glm4_moe": Dense(qkv_bias="attention_bias", qk_norm="use_qk_norm:head"),
    "gpt_oss": Dense(qkv_bias="!attention_bias", o_bias="!attention_bias"),
    "minimax_m2": Dense(qk_norm="full"),
    "mixtral": Dense(),
    "qwen2_moe": Dense(qkv_bias="!qkv_bias"),
    "qwen3_moe": Dense(qk_norm="head", qkv_bias="attention_bias", o_bias="attention_bias"),
}
LATENT = ("deepseek_v3", "kimi_k2", "deepseek_v32", "glm_moe_dsa")
SPARSE_LATENT = ("deepseek_v32", "glm_moe_dsa")
KNOWN = tuple(sorted({*DENSE, *MIXTURES, *LATENT}))
RENAMED = ("glm", "glm4", "gpt_oss", "minimax_m2", "mixtral", "nanochat", "phi", "phi3", "starcoder2")
"""Model types whose files name matrices otherwise than `Part.leaves`, or hold several of them in one."""
_NESTED = "text_config"
_EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts")
_LAYERS = {
    # The last two are one: transformers before 5.24 writes the second.
    "layer_types": ("full_attention", "sliding_attention", "indexed_attention", "deepseek_sparse_attention"),
    "mlp_layer_types": ("dense", "sparse"),
    "indexer_types": ("full", "shared"),
}
_ABOVE_0 = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
_COUNTS = (
    *("num_key_value_heads", "head_dim", "moe_intermediate_size", "shared_expert_intermediate_size"),
    *("n_routed_experts", "num_local_experts", "num_experts", "num_experts_per_tok", "n_shared_experts"),
    *("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"),
    *("index_n_heads", "index_head_dim", "sliding_window", "first_k_dense_replace"),
)


@dataclass(frozen=True)
class LayerKV:
    """What one layer keeps of a token.

    Attributes:
        kv_heads: Heads of keys and values; 0 where a latent is kept.
        head_dim: Numbers of each.
        rank: Numbers of the latent, `rope` those of the rope key beside it; 0 without latent attention.
        index: Numbers of the key that sparse attention chooses by.
        window: Tokens that are kept at most; None: all.
    """

    kv_heads: int = 0
    head_dim: int = 0
    rank: int = 0
    rope: int = 0
    index: int = 0
    window: int | None = None


@dataclass(frozen=True)
class Model:
    """A model to be placed.

    Attributes:
        name: Of the file.
        kind: `model_type`.
        parts: All tensors.
        kv: By layer.
        experts_per_token: Routed experts that a token takes; 0 without any.
        experts: Routed experts of a layer.
        stored: What its files hold each linear in.
        layers: Numbers of the layers that a part is `on`.
    """

    name: str
    kind: str
    parts: tuple[Part, ...]
    kv: tuple[LayerKV, ...]
    experts: int = 0
    experts_per_token: int = 0
    stored: Stored | None = None
    layers: Mapping[Layers, tuple[int, ...]] = field(default_factory=dict)

    @property
    def parameters(self) -> int:
        """Numbers in all tensors."""
        return sum(part.elements for part in self.parts)

    @property
    def active(self) -> int:
        """Numbers that one token's forward reads."""
        routed = sum(part.elements for part in self.parts if part.role == "expert")
        taken = routed * self.experts_per_token // self.experts if self.experts else 0
        return self.parameters - routed + taken


SHIPPED = Path(__file__).parent / "models"


def shipped() -> list[str]:
    """Names of the configurations that ship, written from what was published of these models."""
    return sorted(path.stem for path in SHIPPED.glob("*.json"))


def read_model(named: str | Path) -> Model:
    """Reads a config.json, or one that ships.

    Args:
        named: A file, a folder that holds a config.json, or one of `shipped()`.

    Raises:
        ConfigError: No such file, or no JSON object of a model.
        CapabilityError: A model type whose tensors are not known here.
    """
    path = Path(named)
    if path.is_dir():
        path = path / "config.json"
    if str(named) in shipped() and not path.exists():
        path = SHIPPED / f"{named}.json"
    config, beside = _read(path), path.with_name(BESIDE)
    if path.name == "config.json" and quantization_of(config) is None and beside.is_file():
        config = with_beside(config, _read(beside))
    return model_of(config, str(named))


def _read(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"--config {path}: cannot be read ({error.strerror}); give a config.json, or one of {', '.join(shipped())}"
        ) from None
    except ValueError as error:
        raise ConfigError(f"--config {path}: is no JSON ({error})") from None
    if not isinstance(config, dict):
        raise ConfigError(f"--config {path}: is no JSON object; give a model's config.json")
    return config


def model_of(config: Mapping[str, Any], name: str) -> Model:
    """As `read_model`, of what such a file holds; of a multimodal one its language model."""
    stored = Stored(config, name)
    if isinstance(config.get(_NESTED), Mapping):
        config = config[_NESTED]
    kind = config.get("model_type")
    if kind is None:
        raise ConfigError(f"{name}: has no model_type; give a model's config.json, as it lies beside its weights")
    if kind not in KNOWN:
        raise CapabilityError(f"{name}: the tensors of model type {kind!r} are not known; known: {', '.join(KNOWN)}")
    _refuse_odd_counts(config, name)
    _refuse_contradictions(config, name)
    _refuse_odd_layers(config, name)
    try:
        shape = Shape.of(config)
        if kind in LATENT:
            parts, kv = tuple(_latent(config, shape)), _latent_kv(config, shape)
        else:
            parts, kv = tuple(_usual(config, shape)), _heads_kv(config, shape)
        counts = (_experts(config), config.get("num_experts_per_tok") or 0) if _experts(config) else (0, 0)
    except KeyError as error:
        raise ConfigError(f"{name}: {error.args[0]!r} is missing, which {kind} needs") from None
    except TypeError as error:
        raise ConfigError(f"{name}: holds a value of another kind than {kind} needs ({error})") from None
    return Model(name, str(kind), parts, kv, *counts, stored=stored, layers=_layers(config, shape.layers))


def _layers(config: Mapping[str, Any], count: int) -> dict[Layers, tuple[int, ...]]:
    """Which layers are without experts, with, and choose their keys."""
    plain = set(range(count)) if config["model_type"] in DENSE else _plain_layers(config, count)
    return {
        "all": tuple(range(count)),
        "plain": tuple(sorted(plain)),
        "routed": tuple(layer for layer in range(count) if layer not in plain),
        "choosing": tuple(layer for layer in range(count) if _chooses(config, layer)),
    }


def _refuse_odd_counts(config: Mapping[str, Any], name: str) -> None:
    """Raises ConfigError for a size or count that is no whole number, negative, or 0 where one must be there."""
    for key in (*_ABOVE_0, *_COUNTS):
        value, least = config.get(key), int(key in _ABOVE_0)
        if key in config and (value is not None or least) and not (type(value) is int and value >= least):
            raise ConfigError(f"{name}: {key!r} is {value!r}; it must be a whole number of at least {least}")


def _refuse_contradictions(config: Mapping[str, Any], name: str) -> None:
    """Raises ConfigError for counts that no model can have together."""
    kind, heads = config["model_type"], config.get("num_attention_heads")
    groups = config.get("num_key_value_heads")
    if kind not in LATENT and groups and heads and heads % groups:
        raise ConfigError(f"{name}: 'num_key_value_heads' ({groups}) does not divide 'num_attention_heads' ({heads})")
    if heads and not config.get("head_dim") and (config.get("hidden_size") or heads) < heads:
        raise ConfigError(f"{name}: hidden_size ({config['hidden_size']}) is less than num_attention_heads ({heads})")
    if kind not in DENSE:
        routed, taken = _experts(config), config.get("num_experts_per_tok")
        if not routed:
            raise ConfigError(f"{name}: names no number of experts ({', '.join(_EXPERTS)}), which {kind} needs")
        if not taken or taken > routed:
            raise ConfigError(f"{name}: 'num_experts_per_tok' is {taken!r}; it must be from 1 to the {routed} experts")


def _refuse_odd_layers(config: Mapping[str, Any], name: str) -> None:
    """Raises CapabilityError for a kind of layer that is not known, ConfigError for a list that ends early."""
    for key, known in _LAYERS.items():
        kinds, layers = config.get(key), config.get("num_hidden_layers") or 0
        if isinstance(kinds, list):
            odd = next((held for held in kinds if held not in known), None)
            if odd is not None:
                raise CapabilityError(f"{name}: {key!r} names {odd!r}; known: {', '.join(known)}")
            if len(kinds) < layers:
                raise ConfigError(f"{name}: {key!r} names {len(kinds)} of {layers} layers")


def _experts(config: Mapping[str, Any]) -> int:
    return next((config[name] for name in _EXPERTS if config.get(name)), 0)


def _usual(config: Mapping[str, Any], shape: Shape) -> Iterator[Part]:
    kind = config["model_type"]
    dense = DENSE.get(kind) or MIXTURES[kind]
    yield from frame(config, shape, dense)
    yield from attention(config, shape, dense, shape.layers)
    if kind in DENSE:
        yield from mlp(config, shape, dense, shape.layers)
    else:
        yield from _mixture(config, shape, dense)


def _mixture(config: Mapping[str, Any], shape: Shape, dense: Dense) -> Iterator[Part]:
    kind = config["model_type"]
    plain = len(_plain_layers(config, shape.layers))
    routed, count = shape.layers - plain, _experts(config)
    width = config.get("moe_intermediate_size") or shape.intermediate
    if plain:
        yield from mlp(config, shape, dense, plain)
    yield from experts(shape, count, width, routed, interleaved=kind == "gpt_oss", fp32=kind == "glm4_moe")
    if kind == "gpt_oss":
        yield Part("sinks", "plain", shape.heads, 1, shape.layers)
    if kind == "qwen2_moe":
        yield from shared_expert(shape, config["shared_expert_intermediate_size"], routed, "shared_expert")
        yield Part("shared experts", "plain", 1, shape.hidden, routed)  # how much of them is added
    if kind in ("glm4_moe", "minimax_m2"):
        yield Part("routers", "plain", count, 1, routed, fp32=True)  # correction biases
    if kind == "glm4_moe":
        yield from shared_expert(shape, width * config["n_shared_experts"], routed)


def _plain_layers(config: Mapping[str, Any], layers: int) -> set[int]:
    """Layers with a dense MLP in place of experts."""
    kinds = config.get("mlp_layer_types")
    if kinds:
        return {layer for layer, kind in enumerate(kinds[:layers]) if kind == "dense"}
    if "first_k_dense_replace" in config:
        return set(range(min(layers, config["first_k_dense_replace"])))
    step, dense = config.get("decoder_sparse_step") or 1, set(config.get("mlp_only_layers") or ())
    return {layer for layer in range(layers) if layer in dense or (layer + 1) % step != 0}


def _latent(config: Mapping[str, Any], shape: Shape) -> Iterator[Part]:
    plain = len(_plain_layers(config, shape.layers))
    routed, count, width = shape.layers - plain, config["n_routed_experts"], config["moe_intermediate_size"]
    yield from frame(config, shape, Dense())
    yield from latent_attention(config, shape)
    if config["model_type"] in SPARSE_LATENT:
        yield from indexer(config, shape, sum(_chooses(config, layer) for layer in range(shape.layers)))
    yield from mlp(config, shape, Dense(), plain)
    yield from experts(shape, count, width, routed, fp32=True)
    yield Part("routers", "plain", count, 1, routed, fp32=True)  # correction biases
    yield from shared_expert(shape, width * config["n_shared_experts"], routed)


def _chooses(config: Mapping[str, Any], layer: int) -> bool:
    """Whether a layer of sparse attention has an indexer of its own."""
    kinds = config.get("indexer_types")
    return kinds is None or kinds[layer] == "full"


def _latent_kv(config: Mapping[str, Any], shape: Shape) -> tuple[LayerKV, ...]:
    sparse = config["model_type"] in SPARSE_LATENT
    return tuple(
        LayerKV(
            rank=config["kv_lora_rank"],
            rope=config["qk_rope_head_dim"],
            index=config["index_head_dim"] if sparse and _chooses(config, layer) else 0,
        )
        for layer in range(shape.layers)
    )


def _heads_kv(config: Mapping[str, Any], shape: Shape) -> tuple[LayerKV, ...]:
    return tuple(
        LayerKV(shape.kv_heads, shape.head_dim, window=_window(config, layer)) for layer in range(shape.layers)
    )


def _window(config: Mapping[str, Any], layer: int) -> int | None:
    """Keys that a layer reads; None: all."""
    window, kinds = config.get("sliding_window"), config.get("layer_types")
    if kinds is not None:
        return window if kinds[layer] == "sliding_attention" else None
    return window if config.get("use_sliding_window", True) else None
