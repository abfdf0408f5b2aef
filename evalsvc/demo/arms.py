"""What the arms of the generated history would have measured: proof, probe, and how they serve. All made up."""

from typing import Any

import numpy as np

from evalsvc.store.measurements import save
from evalsvc.store.records import Measurement
from evalsvc.store.session import Store
from evalsvc.verdict.divergence import summary

STAGES = {  # weights and KV of prefill, then of decode
    "bf16": ("bf16", "bf16", "bf16", "bf16"),
    "fp8": ("fp8:w8a8:channel:token", "bf16", "fp8:w8a8:channel:token", "bf16"),
    "fp8-prefill": ("fp8:w8a8:channel:token", "bf16", "bf16", "bf16"),
    "fp8-kv": ("bf16", "bf16", "bf16", "fp8:token-head"),
}
DEVICE = "generated"
MEMORY = 80e9
CAPABILITIES = {
    "generated answers": {"can": True, "about": "made up"},
    "log-likelihoods": {"can": False, "about": "none are made up"},
    "proof": {"can": True, "about": "made up"},
}
_PARAMETERS, _OTHER, _KV_VALUES = 8.0e9, 1.1e9, 65_536  # of weights; bytes that no format packs; values a token
_BYTES = {"bf16": 2.0, "fp8:w8a8:channel:token": 1.002, "fp8:token-head": 1.0625}
_GRID = ((512, 1), (512, 16), (512, 64))  # prompt tokens, requests at once
_SPEED = {"bf16": 1.0, "fp8": 1.55, "fp8-prefill": 1.06, "fp8-kv": 1.22}  # times the baseline's


def plan_of(name: str) -> str:
    """The arm's plan text."""
    prefill, decode = (f"w={weights},kv={kv}" for weights, kv in (STAGES[name][:2], STAGES[name][2:]))
    return prefill if prefill == decode else f"{prefill} > {decode}"


def stages_of(name: str) -> dict[str, dict[str, str]]:
    """As a run stores them."""
    first, second = STAGES[name][:2], STAGES[name][2:]
    return {
        "prefill": dict(zip(("weights", "kv"), first, strict=True)),
        "decode": dict(zip(("weights", "kv"), second, strict=True)),
    }


def proof_of(name: str, prompt_tokens: int, answer_tokens: int) -> dict[str, Any]:
    """The parts of a proof that pages show."""
    found: dict[str, Any] = {"mismatches": []}
    for stage, (weights, kv), computed in zip(
        ("prefill", "decode"), (STAGES[name][:2], STAGES[name][2:]), (prompt_tokens, answer_tokens), strict=True
    ):
        held = _BYTES[weights] * _PARAMETERS
        kernel = "linear.bf16.triton" if weights == "bf16" else "linear.fp8_w8a8.triton"
        found[stage] = {
            "weights": {
                "format_bytes": held,
                "resident_bytes": held,
                "other_bytes": _OTHER,
                "compute_dtype": "bfloat16",
                "code_dtypes": {"bfloat16" if weights == "bf16" else "float8_e4m3fn": 224},
            },
            "kv": {
                "dtype": "bfloat16" if kv == "bf16" else "float8_e4m3fn",
                "bytes_per_token": _BYTES[kv] * _KV_VALUES,
                "resident_bytes": _BYTES[kv] * _KV_VALUES * 131_072,
            },
            "kernels": {kernel: 224 * 60, "paged_attention.triton": 32 * 60},
            "tokens_computed": computed,
            "seconds": 600.0 / _SPEED[name] if stage == "decode" else 300.0,
            "shared_with": [],
        }
    return found


def probe_of(name: str, *, changed: bool) -> dict[str, Any]:
    """KL of 24 texts of 48 tokens; in decode it grows along the text where something changed."""
    rng = np.random.default_rng(5)
    places = np.tile(np.arange(48), 24)
    found = {}
    for stage, held in zip(("prefill", "decode"), (STAGES[name][:2], STAGES[name][2:]), strict=True):
        broken = changed and stage == "decode"
        far = 0.2 if broken else 0.004 * sum(part != "bf16" for part in held)
        growing = 1 + places / 12 if broken else np.ones(places.size)
        kl = far * growing * rng.exponential(size=places.size) ** 2
        found[stage] = summary(kl.tolist(), (kl <= 12 * far).tolist(), places.tolist())
    return found


def measure(store: Store, name: str, fingerprint: str) -> None:
    """Stores serving figures of an arm in three cells, three repeats each, its capacity and its price."""
    rng = np.random.default_rng(sum(map(ord, fingerprint)))
    about: dict[str, Any] = {"fingerprint": fingerprint, "arm": name, "plan": plan_of(name), "device": DEVICE}
    about |= {"settings_hash": "generated", "settings": {"memory_bytes": MEMORY}}
    for prompt, at_once in _GRID:
        for repeat in range(3):
            speed = _SPEED[name] * (1 + 0.02 * rng.standard_normal())
            gap = (0.011 + 0.00012 * at_once) / speed
            whole = [0.05 + 128 * gap * (1 + 0.05 * rng.random()) for _ in range(2 * at_once)]
            figures = {
                "ttft_s": [0.05 + 0.001 * at_once] * (2 * at_once),
                "itl_s": [gap] * 8,
                "e2e_s": whole,
                "prompt_tokens": prompt * 2 * at_once,
                "generated_tokens": 128 * 2 * at_once,
                "wall_s": 2 * max(whole),
            }
            cell: dict[str, Any] = {"prompt_tokens": prompt, "concurrency": at_once, "repeat": repeat}
            save(store, Measurement(**about, kind="serving", figures=figures, **cell))
    room = {
        stage: {
            "weights_bytes": int(_BYTES[weights] * _PARAMETERS),
            "other_bytes": int(_OTHER),
            "kv_bytes_per_token": _BYTES[kv] * _KV_VALUES,
            "pool_tokens": 131_072,
        }
        for stage, weights, kv in (("prefill", *STAGES[name][:2]), ("decode", *STAGES[name][2:]))
    }
    save(store, Measurement(**about, kind="capacity", figures=room))
    save(store, Measurement(**about, kind="price", figures={"per_hour": 2.5}))
