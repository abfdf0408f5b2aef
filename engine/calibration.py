"""Scales of `kv=fp8:tensor:calibrated`: one per layer for keys and one for values.

    scale = max|x| / 448 over all tokens of the calibration prompts

The prompts run through the arm's prefill weights with KV held in bf16. What was computed once is kept in a cache file
under everything that it depends on.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

import torch

from evalsvc.errors import ConfigError, EngineError
from evalsvc.kernels.fp8 import E4M3_MAX

from .kv.pool import Scales
from .precision import KVFormat, StagePlan
from .stage import PrefillStage
from .weights import WeightSet


def read_prompts(path: Path) -> list[str]:
    """Calibration prompts, one JSON object with the key `prompt` a line.

    Raises:
        ConfigError: Missing file, broken line, or no prompt; names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"calibration {path}: cannot be read ({error})") from None
    prompts = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            prompt = json.loads(line)["prompt"]
        except (json.JSONDecodeError, KeyError, TypeError):
            prompt = None
        if not isinstance(prompt, str) or not prompt:
            raise ConfigError(f'calibration {path}:{number}: expected {{"prompt": "text"}}')
        prompts.append(prompt)
    if not prompts:
        raise ConfigError(f"calibration {path}: holds no prompt")
    return prompts


def calibrate(weights: WeightSet, prompts: Sequence[list[int]]) -> Scales:
    """Runs token ids through prefill and returns the scales."""
    longest = sum(-(-len(ids) // 16) * 16 for ids in prompts)
    stage = PrefillStage(weights, StagePlan(weights.fmt, KVFormat("bf16")), longest)
    stage.pool.amax = torch.zeros(2, stage.pool.k.shape[0])
    stage.prefill(prompts, logits=False)
    amax = stage.pool.amax
    if not bool(amax.isfinite().all()):
        raise EngineError("calibration met NaN or infinity in keys or values")
    k, v = torch.where(amax > 0, amax / E4M3_MAX, torch.ones_like(amax))
    return Scales(k, v)


def load_scales(path: Path) -> Scales | None:
    """Scales from a cache file; None when it is missing or damaged."""
    try:
        held = json.loads(path.read_text())
        return Scales(torch.tensor(held["k"]), torch.tensor(held["v"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def save_scales(path: Path, scales: Scales) -> None:
    """Writes a cache file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.part")
    temporary.write_text(json.dumps({"k": scales.k.tolist(), "v": scales.v.tolist()}))
    temporary.replace(path)


def scales_hash(scales: Scales) -> str:
    """sha256 of the scales' fp32 values."""
    return hashlib.sha256(json.dumps([scales.k.tolist(), scales.v.tolist()]).encode()).hexdigest()
