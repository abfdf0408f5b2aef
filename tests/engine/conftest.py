"""Tiny random models on disk, and engines over them whose pools start as NaN."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
)

from evalsvc.engine.engine import Engine
from evalsvc.engine.requests import GenerateRequest, GenerateResult, ScoreRequest, ScoreResult
from tests.tiny import TWO_LAYERS, byte_tokenizer, write_model

VOCABULARY = 288
SHAPE: dict[str, Any] = {
    **TWO_LAYERS,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "pad_token_id": None,
}
SLIDES: dict[str, Any] = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
GEMMA: dict[str, Any] = {"query_pre_attn_scalar": 24, "final_logit_softcapping": 6.0}
MULTIPLIERS: dict[str, Any] = {
    "embedding_multiplier": 3.0,
    "logits_scaling": 0.5,
    "residual_multiplier": 0.7,
    "attention_multiplier": 0.3,
}
LLAMA3_ROPE: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
# Eight experts of 64, of which three are chosen; expert matrices beyond torch's way for small products.
EXPERTS: dict[str, Any] = {"moe_intermediate_size": 64, "num_experts": 8, "num_experts_per_tok": 3}
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "head_dim": 16,  # the rope key's
    "kv_lora_rank": 256,
    "q_lora_rank": 64,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
}
LATENT_EXPERTS: dict[str, Any] = {
    "moe_intermediate_size": 64,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 1,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.5,
    "first_k_dense_replace": 1,
}
MSCALE: dict[str, Any] = {"mscale": 1.0, "mscale_all_dim": 1.0}
INDEXED: dict[str, Any] = {"index_n_heads": 8, "index_head_dim": 32, "index_topk": 24}
# By name the model type and what differs from SHAPE: options are set so that leaving one out shows.
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"attention_bias": True, "tie_word_embeddings": False}),
    "llama_mha": ("llama", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    "llama3_rope": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2_mixed": ("qwen2", {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": 8}),
    "qwen3": ("qwen3", {"tie_word_embeddings": False}),
    "mistral": ("mistral", {"sliding_window": 8}),
    "gemma2": ("gemma2", {**GEMMA, **SLIDES, "attn_logit_softcapping": 2.0}),
    "gemma3": (
        "gemma3_text",
        {
            **GEMMA,
            **SLIDES,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                "full_attention": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 8.0},
            },
        },
    ),
    "phi3": ("phi3", {"sliding_window": 8, "partial_rotary_factor": 0.5}),
    "olmo2": ("olmo2", {}),
    "granite": ("granite", MULTIPLIERS),
    "arcee": ("arcee", {"mlp_bias": True}),
    "cohere": ("cohere", {"use_qk_norm": True, "logit_scale": 0.5}),
    "cohere2": ("cohere2", {**SLIDES, "logit_scale": 0.5}),
    "cwm": ("cwm", {**SLIDES, "rope_parameters": LLAMA3_ROPE}),
    "ernie4_5": ("ernie4_5", {"use_bias": True}),
    "exaone4": ("exaone4", SLIDES),
    "gemma": ("gemma", {}),
    "glm": ("glm", {}),
    "glm4": ("glm4", {}),
    "helium": ("helium", {"head_dim": 16}),
    "hunyuan": ("hunyuan_v1_dense", {}),
    "hyperclovax": ("hyperclovax", MULTIPLIERS),
    "jais2": ("jais2", {}),
    "ministral": ("ministral", SLIDES),
    "ministral3": (
        "ministral3",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 16,
                "llama_4_scaling_beta": 0.5,
            }
        },
    ),
    "nanochat": ("nanochat", {}),
    "nemotron": ("nemotron", {"partial_rotary_factor": 0.5, "mlp_bias": True}),
    "olmo": ("olmo", {"clip_qkv": 0.5}),
    "olmo3": ("olmo3", SLIDES),
    "opt": ("opt", {"head_dim": 16, "ffn_dim": 96, "word_embed_proj_dim": 48}),
    "persimmon": ("persimmon", {"head_dim": 16}),
    "phi": ("phi", {"head_dim": 16, "qk_layernorm": True}),
    "seed_oss": ("seed_oss", {}),
    "smollm3": ("smollm3", {**SLIDES, "use_sliding_window": True, "no_rope_layers": [1, 0]}),
    "stablelm": ("stablelm", {"head_dim": 16, "use_qkv_bias": True, "qk_layernorm": True}),
    "starcoder2": ("starcoder2", {"sliding_window": 8}),
    "vaultgemma": ("vaultgemma", {**GEMMA, **SLIDES, "attn_logit_softcapping": 2.0}),
    "mixtral": ("mixtral", {"num_local_experts": 8, "num_experts_per_tok": 3, "sliding_window": 8}),
    "qwen2_moe": (
        "qwen2_moe",
        {**EXPERTS, "shared_expert_intermediate_size": 96, "norm_topk_prob": False, "mlp_only_layers": []},
    ),
    "qwen3_moe": ("qwen3_moe", {**EXPERTS, "norm_topk_prob": True, "mlp_only_layers": [0]}),
    "glm4_moe": (
        "glm4_moe",
        {
            "moe_intermediate_size": 64,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "n_shared_experts": 1,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
            "first_k_dense_replace": 1,
            "use_qk_norm": True,
            "attention_bias": True,
        },
    ),
    "gpt_oss": ("gpt_oss", {**SLIDES, "num_local_experts": 8, "num_experts_per_tok": 3, "rope_parameters": YARN}),
    "deepseek_v3": ("deepseek_v3", LATENT | LATENT_EXPERTS | {"rope_parameters": YARN | MSCALE}),
    "deepseek_v3_dense": (
        "deepseek_v3",
        LATENT | {"first_k_dense_replace": 2, "q_lora_rank": None, "rope_interleave": False},
    ),
    "glm_moe_dsa": (
        "glm_moe_dsa",
        LATENT | LATENT_EXPERTS | INDEXED | {"num_hidden_layers": 3, "indexer_types": ["full", "shared", "full"]},
    ),
    "minimax_m2": ("minimax_m2", {"num_local_experts": 8, "num_experts_per_tok": 3, "rotary_dim": 16}),
}


def config_of(name: str, **changes: Any) -> PreTrainedConfig:
    """A configuration of the table, with changes."""
    model_type, fields = CONFIGS[name]
    return AutoConfig.for_model(model_type, **(SHAPE | fields | changes))


@pytest.fixture(scope="session")
def architectures() -> dict[str, str]:
    """By name of a tiny model its model type."""
    return {name: model_type for name, (model_type, _) in CONFIGS.items()}


@pytest.fixture(scope="module", params=CONFIGS)
def architecture(request: pytest.FixtureRequest) -> str:
    """Name of each tiny model of the table in turn."""
    return request.param


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


MERGES = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("e", "n"), ("en", "d"), ("Ġ", "a")]  # so tokens and characters part


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Directory of a tiny random model by name.

    `tiny("llama", num_hidden_layers=3)` changes the configuration.
    """
    made: dict[str, Path] = {}

    def make(name: str, **changes: Any) -> Path:
        key = f"{name} {sorted(changes.items())}"
        if key not in made:
            folder, seed = tmp_path_factory.mktemp(name), sum(map(ord, name))
            made[key] = write_model(folder, config_of(name, **changes), seed, byte_tokenizer(MERGES))
        return made[key]

    return make


@pytest.fixture(scope="session")
def reference(tiny: Callable[..., Path]) -> Callable[..., PreTrainedModel]:
    """transformers' own model with its eager attention, in fp32: the naive path. Arguments as for `tiny`."""

    def load(name: str, **changes: Any) -> PreTrainedModel:
        path = tiny(name, **changes)
        return AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager", dtype=torch.float32).eval()

    return load


@pytest.fixture(scope="session")
def serve(tiny: Callable[[str], Path]) -> Callable[..., Engine]:
    """An engine over a tiny model with poisoned pools: `serve("llama", "w=bf16", kv_tokens=256)`."""

    def load(name: str = "llama", plan: str | None = None, **options: Any) -> Engine:
        settings = {"kv_tokens": 2048, "poison": True} | options
        return Engine.load(tiny(name), plan, **settings)

    return load


@pytest.fixture
def nothing_held() -> Callable[[Engine], None]:
    """Asserts that an engine's pools hold nothing but shared prefixes."""

    def check(engine: Engine, arm: str | None = None) -> None:
        held = engine.arm(arm)
        for stage in (held.prefill, held.decode):
            stage.pool.check()
        for stage in (held.prefill, held.decode):
            stage.cache.drop_all()
            stage.pool.check()
            assert stage.pool.free_pages == stage.pool.n_pages

    return check


def token_ids(count: int, seed: int = 0) -> list[int]:
    """Random ids that are no special token."""
    return torch.randint(2, 256, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.fixture(scope="session")
def ids() -> Callable[..., list[int]]:
    """`ids(count, seed)`: random token ids."""
    return token_ids


GROUP = {"same": "w=bf16", "kv": "w=bf16 > kv=fp8", "other": "w=fp8"}
UNEQUAL = "w=bf16,kv=bf16 > w=bf16,kv=fp8"  # its hand-off quantizes again


def keep(outcomes: Iterable) -> dict[tuple, tuple]:
    """By id, arm and sample everything of results that must not hang on their company; a failure raises."""
    found = {}
    for outcome in outcomes:
        if isinstance(outcome, GenerateResult):
            said = outcome.text, outcome.token_ids, outcome.logprobs, outcome.finish_reason
        else:
            assert isinstance(outcome, ScoreResult), outcome
            said = outcome.logprobs, outcome.greedy, outcome.tokens, outcome.divergences
        found[outcome.id, outcome.arm, getattr(outcome, "sample", 0)] = said
    return found


@pytest.fixture(scope="session")
def kept() -> Callable[..., dict[tuple, tuple]]:
    """`kept(outcomes)`: see `keep`."""
    return keep


@pytest.fixture(scope="session")
def answers() -> Callable[..., dict[tuple, tuple]]:
    """`answers(engine, requests)`: what `keep` keeps of them."""
    return lambda engine, requests: keep(engine.answer(requests))


@pytest.fixture(scope="session")
def unequal() -> str:
    """The plan of `alone`."""
    return UNEQUAL


@pytest.fixture(scope="session")
def arms() -> dict[str, str]:
    """Plans of three arms, two of which share a prefill stage; `alone` knows them."""
    return GROUP


@pytest.fixture(scope="module")
def engine(serve: Callable[..., Engine], unequal: str) -> Engine:
    """Of the plan of `alone`, eight requests side by side."""
    return serve("llama", unequal, max_batch=8)


@pytest.fixture(scope="module")
def group(serve: Callable[..., Engine], arms: dict[str, str]) -> Engine:
    """Of `arms`, eight requests side by side."""
    return serve("llama", plans=arms, max_batch=8)


@pytest.fixture(scope="module")
def alone(serve: Callable[..., Engine]) -> Callable[..., dict[tuple, tuple]]:
    """`alone(requests)`: the answers of each asked alone, of caches that know nothing; where it names arms, theirs."""
    engines = {False: serve("llama", UNEQUAL, max_batch=1), True: serve("llama", plans=GROUP, max_batch=1)}

    def ask(requests: Any) -> dict[tuple, tuple]:
        found = {}
        for request in requests:
            engine = engines[bool(request.arms)]
            for name in engine.specs:
                for stage in (engine.arm(name).prefill, engine.arm(name).decode):
                    stage.cache.drop_all()
            found |= keep(engine.answer([replace(request, deadline_s=None)]))
        return found

    return ask


@pytest.fixture(scope="session")
def mixed() -> Callable[..., list]:
    """`mixed(seed)`: a request of each kind, which begins as those of every other seed do."""
    shared = token_ids(24, 99)

    def make(seed: int, size: int = 12) -> list:
        context = [*shared, *token_ids(9, seed)]
        continuations = ([7], [7, 8], token_ids(size, seed + 1))
        return [
            GenerateRequest(prompt=context, max_tokens=size, logprobs=1, id=f"g{seed}"),
            GenerateRequest(prompt=context[:17], max_tokens=size, temperature=1.2, seed=seed, n=2, id=f"n{seed}"),
            ScoreRequest(context=context, continuations=continuations, id=f"p{seed}", top_logprobs=1),
            ScoreRequest(context=context, continuations=continuations, through="decode", id=f"d{seed}"),
        ]

    return make
