"""Bytes from shapes are those of what the engine packs and holds."""

from itertools import product

import pytest
import torch

from evalsvc.capacity.model import model_of
from evalsvc.capacity.sharing import Devices, place
from evalsvc.engine.kv.pool import KVPool, Scales
from evalsvc.engine.precision import parse_plan
from evalsvc.engine.quantize import quantize
from evalsvc.engine.sizes import heads_bytes

WEIGHTS = [
    "fp32",
    "bf16",
    "fp8",
    "fp8:w8a16",
    "int4:g32",
    "int4:g64:asym",
    "int4:g128",
    "int4:g128:asym",
    "int8",
    "nvfp4",
    "fp8:block128",
]


@pytest.mark.parametrize("text", WEIGHTS)
@pytest.mark.parametrize("shape", [(48, 256), (130, 128)])
def test_a_matrix_takes_what_its_packed_tensors_do(text, shape):
    fmt = parse_plan(f"w={text}").decode.weights
    packed = quantize(torch.randn(shape), fmt)
    tensors = [packed] if isinstance(packed, torch.Tensor) else packed.tensors()
    assert fmt.format_bytes(*shape) == sum(t.numel() * t.element_size() for t in tensors)


@pytest.mark.parametrize("text", ["fp32", "bf16", "fp8", "int8", "fp8:uncalibrated", "fp8:head:given"])
def test_a_token_takes_what_the_pool_does(text):
    fmt = parse_plan(f"kv={text}").decode.kv
    scales = Scales(torch.ones(3, 2), torch.ones(3, 2)) if fmt.given else None
    pool = KVPool(fmt, 3, 2, 32, 16, scales)
    assert pool.bytes_per_token() == 3 * heads_bytes(2, 32, fmt)


DENSE = ["llama", "qwen2", "gemma2", "smollm3", "olmo2", "phi3"]
MIXTURES = ["mixtral", "qwen2_moe", "qwen3_moe", "glm4_moe", "gpt_oss", "minimax_m2"]
LATENT = ["deepseek_v3", "glm_moe_dsa"]
PLANS = ["w=bf16,kv=bf16", "w=int4:g32:asym,kv=fp8", "w=fp8,kv=int8", "w=int4:g32:lm_head"]
MIXED_PLANS = ["w=bf16,kv=bf16", "w=int4:g32:asym,kv=fp8", "w=fp8:block128,kv=int8", "w=nvfp4", "w=fp32,kv=fp32"]
LATENT_PLANS = ["w=bf16,kv=bf16", "w=int4:g32:asym,kv=fp8:uncalibrated", "w=fp8:block128", "w=nvfp4:lm_head"]


@pytest.mark.parametrize(
    ("name", "plan"),
    [*product(DENSE, PLANS), *product(MIXTURES, MIXED_PLANS), *product(LATENT, LATENT_PLANS)],
)
def test_a_whole_model_takes_what_the_engines_proof_counts(serve, name, plan):
    engine = serve(name, plan)
    proof = engine.proof()["decode"]
    found = place(model_of(dict(engine.checkpoint.config), name), parse_plan(plan).decode, Devices())
    assert found.weights_bytes == proof["weights"]["format_bytes"] + proof["weights"]["other_bytes"]
    assert found.kv_bytes_per_token == proof["kv"]["bytes_per_token"]
