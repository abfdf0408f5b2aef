"""Where an engine computes; that nothing is made elsewhere on the way is tested with a device that is pretended."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from evalsvc.engine import arms, devices, loop, stage
from evalsvc.engine.engine import Engine
from evalsvc.engine.requests import GenerateRequest, RequestFailure, ScoreRequest
from evalsvc.errors import CapabilityError, ConfigError, EngineError
from evalsvc.kernels.jit import Kernel

from .pretended import Pretended


def test_words_that_name_a_device():
    assert devices.resolve("auto") == devices.resolve("cpu") == torch.device("cpu")
    assert devices.described(torch.device("cpu")).startswith("cpu:")
    for word in ("gpu", "cuda:", "cuda:x", "mps", "", "CUDA"):
        with pytest.raises(ConfigError, match="it must be auto, cpu, cuda, or cuda:N"):
            devices.resolve(word)


def test_a_gpu_that_is_not_there_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(CapabilityError, match=r"device 'cuda' is not here: torch .* sees no GPU; use cpu"):
        devices.resolve("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert devices.resolve("cuda:1") == torch.device("cuda:1") and devices.resolve("cuda") == torch.device("cuda:0")
    with pytest.raises(CapabilityError, match="torch sees 2 GPUs"):
        devices.resolve("cuda:2")


def test_a_pool_that_memory_cannot_hold_is_said_with_its_size(tiny):
    vast = Engine.load(tiny("llama"), "kv=fp8", kv_tokens=2**60)
    words = f"a prefill pool of {2**60:,} tokens in kv=fp8:token-head does not fit into memory"
    with pytest.raises(EngineError, match=f"{words}; give a smaller kv_tokens"):
        vast.logits([5])


def test_memory_that_cannot_be_had_is_known_by_each_of_its_errors():
    """A processor's has no class of its own, and other errors stay what they are."""
    with pytest.raises(EngineError, match="it does not fit into memory; stop"), devices.room_for("it", "stop"):
        torch.empty(2**50, dtype=torch.uint8)
    with pytest.raises(EngineError, match="it does not fit into memory; stop"), devices.room_for("it", "stop"):
        raise torch.OutOfMemoryError("CUDA out of memory")
    with pytest.raises(RuntimeError, match="shapes"), devices.room_for("it", "stop"):
        raise RuntimeError("shapes")


def test_kernels_are_launched_where_the_tensors_are_made(monkeypatch):
    current = []

    @contextmanager
    def device(asked):
        current.append(asked)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "device", device)
    with devices.on(torch.device("cuda:1")):
        assert current == [torch.device("cuda:1")] and torch.get_default_device() == torch.device("cuda:1")
    assert current == [] and torch.get_default_device() == torch.device("cpu")


@pytest.fixture
def pretended(monkeypatch):
    made = Pretended()
    for module in (arms, loop, stage):
        monkeypatch.setattr(module, "on", made.on)
    return made


ASK = [
    GenerateRequest(prompt="hello", max_tokens=4, n=2),
    ScoreRequest(context="hello there", continuations=(" you", " me")),
    ScoreRequest(context="hello there", continuations=(" you",), through="decode", top_logprobs=3),
]


@pytest.mark.parametrize(
    ("name", "plan", "integrity"),
    [
        ("llama", "w=bf16,kv=bf16", "tags"),
        ("llama", "w=int4:g32 > w=fp8,kv=fp8", "tags"),
        ("llama", "w=fp8:block128,kv=int8 > w=nvfp4,kv=bf16", "off"),
        ("gemma2", "w=int8 > w=fp8:w8a16,kv=int8", "tags"),
        ("qwen3_moe", "w=int4:g32:asym", "tags"),
        ("llama", "w=bf16,kv=fp8 > w=bf16,kv=fp8:uncalibrated", "content"),
        ("deepseek_v3", "w=fp8,kv=fp8:uncalibrated > w=bf16,kv=fp8:latent128", "tags"),
        ("glm_moe_dsa", "w=bf16,kv=fp8:latent128 > w=int4:g32,kv=bf16", "content"),
        ("gpt_oss", "w=nvfp4 > w=int8,kv=int8", "tags"),
    ],
)
def test_every_tensor_of_a_request_is_made_where_the_engine_computes(serve, pretended, name, plan, integrity):
    with pretended:
        served = serve(name, plan, integrity=integrity)
        results = list(served.answer(ASK))
    assert not any(isinstance(result, RequestFailure) for result in results) and len(results) == 4
    assert pretended.seen > 1000
    assert pretended.wrong == []


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("llama", "w=int4:g32 > w=fp8,kv=fp8"),
        pytest.param("qwen3_moe", "w=fp8 > w=nvfp4,kv=int8", marks=pytest.mark.slow),
        pytest.param("deepseek_v3", "w=int8,kv=fp8:latent128", marks=pytest.mark.slow),
        pytest.param("glm_moe_dsa", "w=bf16,kv=fp8:latent128 > w=fp8:block128,kv=bf16", marks=pytest.mark.slow),
    ],
)
def test_kernels_are_given_what_lies_where_the_engine_computes(serve, pretended, monkeypatch, name, plan):
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("EVALSVC_KERNELS", "triton")
    monkeypatch.setattr(Kernel, "_interpret", pretended.launching())
    with pretended:
        results = list(serve(name, plan, kv_tokens=512).answer([replace(ASK[0], max_tokens=2), ASK[2]]))
    assert not any(isinstance(result, RequestFailure) for result in results) and len(results) == 3
    assert pretended.launches > 20 and pretended.wrong == []


def test_a_tensor_of_another_device_would_be_seen(pretended):
    with pretended:
        with pretended.on(torch.device("cpu")):
            here, listed = torch.zeros(3), torch.tensor([1.0, 2.0, 3.0])
        there = torch.ones(3)
        here + listed
        here.copy_(there)
        assert pretended.wrong == []
        here + there
        torch.stack([listed[1:], there[1:]])
        here.to(torch.float8_e4m3fn)[torch.tensor([0, 1])]
    assert pretended.wrong == ["aten::add of [(3,)]", "aten::stack of [(2,)]", "aten::index of fp8"]
