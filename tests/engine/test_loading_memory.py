"""What loading costs in memory, measured from outside: models of a few hundred megabytes in several files."""

import json
import re
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

# Each load is a fork of a process that has everything imported and warm.
PROBE = """
import os, sys, torch
torch.set_num_threads(1)
from evalsvc.engine.checkpoint.open import open_checkpoint
from evalsvc.engine.precision import parse_plan
from evalsvc.engine.weights import WeightSet

def load(folder, plan):
    return WeightSet(open_checkpoint(folder), parse_plan(plan).prefill.weights, {})

for folder in sys.argv[1:]:
    load(folder, "w=int4:g32")
while line := sys.stdin.readline():
    if child := os.fork():
        os.waitpid(child, 0)
        print("gone", flush=True)
        continue
    print(os.getpid(), flush=True)
    sys.stdin.readline()
    held = load(*line.split())
    matrices = [t for m in held.matrices().values() for t in (*m.packed_tensors(), m.weight)]
    print(sum({t.data_ptr(): t.nbytes for t in (*matrices, *held.other_tensors())}.values()), flush=True)
    sys.stdin.readline()
    os._exit(0)
"""
DENSE_PLANS = ["w=bf16", "w=int4:g32:asym", "w=fp8:block128:lm_head", "w=int8", "w=nvfp4"]
IN_FOUR_BITS = ("packed", "awq", "gptq")
MIXTURE_PLANS = ["w=bf16", "w=int4:g32", "w=fp8"]
HIDDEN, WIDTH, EXPERTS = 1024, 1024, 16
ONE_EXPERT = 3 * HIDDEN * WIDTH * 2  # bytes in bf16


class Load(NamedTuple):
    """Anonymous bytes, over those before the load."""

    peak: int
    after: int
    stays: int


@pytest.fixture(scope="module")
def measure(tiny) -> Iterator[Callable[[Path, str], Load]]:
    """`measure(folder, plan)`: anonymous memory, because pages of mapped files go when others need them."""
    command = [sys.executable, "-c", PROBE, str(tiny("llama")), str(tiny("qwen3_moe"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def say(text: str) -> None:
            stdin.write(f"{text}\n")
            stdin.flush()

        def load(folder: Path, plan: str) -> Load:
            say(f"{folder} {plan}")
            pid = int(stdout.readline())
            before, samples = anonymous_bytes(pid), []
            say("go")
            while not select.select([stdout], [], [], 0.001)[0]:
                samples.append(anonymous_bytes(pid) - before)
            stays, after = int(stdout.readline()), anonymous_bytes(pid) - before
            say("done")
            assert stdout.readline() == "gone\n"
            assert len(samples) > 50
            return Load(max(samples), after, stays)

        yield load
        stdin.close()


def anonymous_bytes(pid: int) -> int:
    found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def write(path: Path, files: int, config: Any) -> Path:
    """A random model in so many files, neighbours by name in different ones."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shapes = {}
    for name, tensor in model.state_dict().items():
        part = re.fullmatch(r"(.*\.experts)\.(gate_up_proj|down_proj)", name)
        if part is None or config.model_type == "gpt_oss":
            shapes[name] = tuple(tensor.shape)
            continue
        names = ("gate_proj", "up_proj") if part[2] == "gate_up_proj" else ("down_proj",)
        for expert in range(len(tensor)):
            shape = (tensor.shape[1] // len(names), tensor.shape[2])
            shapes |= {f"{part[1]}.{expert}.{leaf}.weight": shape for leaf in names}
    most = max(torch.Size(shape).numel() for shape in shapes.values())
    values = torch.randn(most, generator=torch.Generator().manual_seed(0)).mul_(0.02).bfloat16()
    placed = {}
    for number in range(files):
        members, file = sorted(shapes)[number::files], f"model-{number}.safetensors"
        held = {name: values[: torch.Size(shapes[name]).numel()].view(shapes[name]).clone() for name in members}
        save_file(held, path / file)
        placed |= dict.fromkeys(members, file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    config.save_pretrained(path)
    return path


def packed_expert(out: int, inputs: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """An expert's matrix as compressed-tensors packs it, in groups of 32, like Kimi K2's."""
    words = torch.randint(-(2**31), 2**31, (out, inputs // 8), generator=generator, dtype=torch.int32)
    scale = torch.rand(out, inputs // 32, generator=generator).bfloat16()
    return {"weight_packed": words, "weight_scale": scale, "weight_shape": torch.tensor([out, inputs])}


def expert_in_words(out: int, inputs: int, generator: torch.Generator, along_outputs: bool) -> dict[str, torch.Tensor]:
    """An expert's matrix as AWQ or GPTQ holds it, in groups of 32 with zero points."""
    shape = (inputs, out // 8) if along_outputs else (inputs // 8, out)
    words = torch.randint(-(2**31), 2**31, shape, generator=generator, dtype=torch.int32)
    scale = torch.rand(inputs // 32, out, generator=generator).half()
    return {
        "qweight": words,
        "scales": scale,
        "qzeros": torch.full((inputs // 32, out // 8), 0x66666666, dtype=torch.int32),
    }


def pack_experts(path: Path, kind: str) -> None:
    """Holds a model's experts in 4 bits."""
    index = path / "model.safetensors.index.json"
    placed = json.loads(index.read_text())["weight_map"]
    generator = torch.Generator().manual_seed(0)
    for file in path.glob("*.safetensors"):
        tensors = load_file(file)
        for name in [name for name in tensors if ".experts." in name]:
            out, inputs = tensors.pop(name).shape
            if kind == "packed":
                held = packed_expert(out, inputs, generator)
            else:
                held = expert_in_words(out, inputs, generator, along_outputs=kind == "awq")
            tensors |= {f"{name.removesuffix('.weight')}.{end}": tensor for end, tensor in held.items()}
        save_file(tensors, file)
        placed = {name: other for name, other in placed.items() if other != file.name}
        placed |= dict.fromkeys(tensors, file.name)
    index.write_text(json.dumps({"weight_map": placed}))
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
    asked = {
        "packed": {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        },
        "awq": {"quant_method": "awq", "bits": 4, "group_size": 32},
        "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False},
    }[kind]
    config = json.loads((path / "config.json").read_text()) | {"quantization_config": asked}
    (path / "config.json").write_text(json.dumps(config))


def largest_file(path: Path) -> int:
    return max(file.stat().st_size for file in path.glob("*.safetensors"))


@pytest.fixture(scope="module")
def dense(tmp_path_factory) -> Path:
    """A llama of 260 MB in four files, whose largest tensors are a fifth of it."""
    config = AutoConfig.for_model(
        "llama",
        hidden_size=1024,
        intermediate_size=4096,
        vocab_size=24000,
        num_hidden_layers=5,
        num_attention_heads=16,
        num_key_value_heads=4,
        head_dim=64,
        tie_word_embeddings=False,
    )
    return write(tmp_path_factory.mktemp("dense"), 4, config)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory) -> Callable[[str], Path]:
    """A mixture of 48 experts of 6 MB in 300 MB: `qwen3_moe` has its experts one by one, `gpt_oss` a layer's in one.

    `packed`, `awq` and `gptq` are a qwen3_moe whose experts are held in 4 bits.
    """
    made: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in made:
            config = AutoConfig.for_model(
                "qwen3_moe" if kind in IN_FOUR_BITS else kind,
                hidden_size=HIDDEN,
                intermediate_size=WIDTH,
                moe_intermediate_size=WIDTH,
                num_experts=EXPERTS,
                num_local_experts=EXPERTS,
                num_experts_per_tok=2,
                vocab_size=4096,
                num_hidden_layers=3,
                num_attention_heads=8,
                num_key_value_heads=2,
                head_dim=64,
                tie_word_embeddings=True,
            )
            made[kind] = write(tmp_path_factory.mktemp(kind), 12, config)
            if kind in IN_FOUR_BITS:
                pack_experts(made[kind], kind)
        return made[kind]

    return make


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory by kind is read from /proc"),
]


@pytest.mark.parametrize("plan", DENSE_PLANS)
def test_loading_never_holds_more_than_what_stays_one_file_and_a_tenth(dense, measure, plan):
    found = measure(dense, plan)
    assert 0.95 * found.stays < found.after < 1.05 * found.stays + 2**23  # what is held is what was counted
    assert found.peak < 1.1 * (found.stays + largest_file(dense))


@pytest.mark.parametrize(
    ("kind", "plan"),
    [
        *((kind, plan) for kind in ("qwen3_moe", "gpt_oss") for plan in MIXTURE_PLANS),
        *(("packed", plan) for plan in ("w=bf16", "w=int4:g32")),
        ("awq", "w=int4:g32:asym"),
        ("gptq", "w=bf16"),
    ],
)
def test_loading_a_mixture_holds_one_expert_and_one_file_over_what_stays(mixture, measure, kind, plan):
    path = mixture(kind)
    found = measure(path, plan)
    assert found.after > 0.95 * found.stays
    assert found.peak < found.stays + ONE_EXPERT + largest_file(path)
