"""The proof counts tensors, and says so when they are not what the plan promises."""

import pytest
import torch

from evalsvc.engine import linear as linear_module
from evalsvc.engine.engine import Engine
from evalsvc.engine.kv import pool as pool_module
from evalsvc.engine.requests import GenerateRequest

PLANS = [
    "w=fp32,kv=fp32",
    "w=bf16,kv=bf16",
    "w=fp8,kv=fp8",
    "w=fp8:w8a16,kv=fp8:uncalibrated",
    "w=int4:g32:sym,kv=bf16 > w=int4:g32:asym,kv=fp8",
    "w=bf16,kv=bf16 > w=fp32,kv=fp8",
]
WEIGHT_BITS = {"fp32": 32, "bf16": 16, "fp8": 8, "int4": 4}
# Two layers of a tiny llama: q, k, v, o (64 -> 128, 64, 64, and back), gate, up, down (64 x 96).
ELEMENTS = 2 * (64 * 128 * 2 + 64 * 64 * 2 + 3 * 64 * 96)


def answered(engine: Engine) -> dict:
    list(engine.generate([GenerateRequest(prompt="hello", max_tokens=3)]))
    return engine.proof()


@pytest.mark.parametrize("plan", PLANS)
def test_an_honest_arm_matches_and_its_bytes_are_counted(serve, plan):
    engine = serve("llama", plan)
    proof, parsed = answered(engine), engine.arm().spec.plan
    assert proof["mismatches"] == []
    for name, stage in (("prefill", parsed.prefill), ("decode", parsed.decode)):
        weights, kv = proof[name]["weights"], proof[name]["kv"]
        bits = WEIGHT_BITS[stage.weights.kind]
        assert weights["elements"] == ELEMENTS and weights["linears"] == 14
        assert weights["code_bits"] == bits
        scales = {"fp8": 4 * 2 * (128 + 64 + 64 + 64 + 96 + 96 + 64), "int4": ELEMENTS // 32 * 2}.get(
            stage.weights.kind, 0
        )
        scales *= 1 if stage.weights.symmetric else 2
        assert weights["format_bytes"] == ELEMENTS * bits // 8 + scales
        element = {"fp32": 4, "bf16": 2, "fp8": 1}[stage.kv.kind]
        dynamic = 4 if stage.kv.scale == "token-head" else 0
        assert kv["bytes_per_token"] == 2 * 2 * 2 * (32 * element + dynamic)  # layers, K and V, heads
        assert kv["peak_tokens"] == 16
        assert proof[name]["tokens_computed"] == (5 if name == "prefill" else 2)
    assert engine.capacity(1_000_000)["decode"] == int(1_000_000 / proof["decode"]["kv"]["bytes_per_token"])


@pytest.mark.parametrize("plan", ["w=fp8", "w=fp8:w8a16", "w=int4:g32"])
def test_weights_that_fall_back_to_bf16_are_a_mismatch(serve, monkeypatch, plan):
    monkeypatch.setattr(linear_module, "quantize", lambda weight, fmt, name: weight.bfloat16())
    found = answered(serve("llama", plan))["mismatches"]
    assert any("weights are held as {'bfloat16': 14}" in m for m in found)
    assert any("16.0 bits" in m for m in found)


def test_a_product_of_the_wrong_kind_is_a_mismatch(serve, monkeypatch):
    from evalsvc.engine.precision import WeightFormat

    engine = serve("llama", "w=fp8")
    for layer in engine.arm().prefill.weights.linears.values():
        monkeypatch.setattr(layer, "fmt", WeightFormat("fp8", "w8a16"))
    assert any("products ran" in m for m in answered(engine)["mismatches"])


def test_pages_that_fall_back_to_bf16_are_a_mismatch(serve, monkeypatch):
    monkeypatch.setitem(pool_module._DTYPES, "fp8", torch.bfloat16)
    monkeypatch.setattr(pool_module.KVPool, "_scale_tensor", lambda *_: None)
    engine = serve("llama", "w=bf16 > kv=fp8", poison=False)
    found = engine.proof()["mismatches"]
    assert any("decode: KV is held as bfloat16" in m for m in found)
    assert any("decode: KV scales are" in m for m in found)
    assert not any(m.startswith("prefill") for m in found)


def test_equal_formats_share_one_tensor_and_unequal_ones_share_the_rest(serve):
    engine = serve("llama", plan=None, plans={"a": "w=int4:g32", "b": "w=int4:g32 > w=bf16", "c": "w=int4:g32,kv=fp8"})
    a, b, c = (engine.arm(name) for name in "abc")
    assert a.prefill is b.prefill and a.prefill.weights is a.decode.weights is c.decode.weights
    assert a.prefill is not c.prefill and a.decode.pool is not a.prefill.pool
    assert a.prefill.weights is not b.decode.weights
    embeddings = [s.weights.model.get_input_embeddings().weight.data_ptr() for s in (a.prefill, b.decode)]
    assert embeddings[0] == embeddings[1]


def test_a_released_arm_frees_what_no_other_holds(serve):
    import gc
    import weakref

    engine = serve("llama", plan=None, plans={"a": "w=bf16", "b": "w=int4:g32 > w=bf16"})
    engine.arm("a")
    int4 = weakref.ref(engine.arm("b").prefill.weights)
    engine.release("b")
    gc.collect()
    assert int4() is None
    assert engine.arm("a").prefill.weights is not None


def test_batches_of_another_order_have_another_hash(serve):
    engine = serve("llama", "w=bf16", max_batch=2)
    requests = [GenerateRequest(prompt=p, max_tokens=2, id=p) for p in ("abc", "defg", "h")]
    list(engine.generate(requests))
    first = engine.proof()["batches"]
    other = serve("llama", "w=bf16", max_batch=2)
    list(other.generate(requests[::-1]))
    assert first["count"] > 0 and first["sha256"] != other.proof()["batches"]["sha256"]


def test_a_product_that_reads_something_else_than_what_is_packed_is_seen(serve):
    engine = serve("llama", "w=int4:g32:sym")
    layer = next(iter(engine.arm().decode.weights.linears.values()))
    assert layer.reads_what_is_packed()
    layer.weight = layer.weight * 1.01
    assert any("read what is packed" in problem for problem in engine.proof()["mismatches"])
