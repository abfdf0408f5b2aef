"""Fixed scales of a KV format: calibrated on prompts, or given in a file.

    scale = max|x| / largest code    over all tokens of the calibration prompts, keys and values apart,
                                     for each layer (`tensor`) or for each head of each layer (`head`)

The prompts run through the arm's prefill weights with KV held in bf16. The magnitudes are kept in a cache file under
everything that they depend on; one calibration serves every format.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from evalsvc.errors import ConfigError, EngineError
from evalsvc.kernels.fp8 import E4M3_MAX, amax_scale
from evalsvc.kernels.int8 import INT8_MAX

from .checkpoint.kv_scales import stored_scales
from .kv.pool import Scales
from .layout import Layout
from .precision import KVFormat, StagePlan
from .stage import PrefillStage
from .weights import WeightSet


def read_prompts(path: Path) -> list[str]:
    """Calibration prompts, one JSON object with the key `prompt` a line.

    Raises:
        ConfigError: Missing file, broken line, or no prompt; names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"calibration {path}: cannot be read ({error})") from None
    prompts = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            prompt = json.loads(line)["prompt"]
        except (ValueError, KeyError, TypeError, RecursionError):
            prompt = None
        if not isinstance(prompt, str) or not prompt:
            raise ConfigError(f'calibration {path}:{number}: expected {{"prompt": "text"}}')
        prompts.append(prompt)
    if not prompts:
        raise ConfigError(f"calibration {path}: holds no prompt")
    return prompts


def calibrate(weights: WeightSet, prompts: Sequence[list[int]]) -> Tensor:
    """Runs token ids through prefill and returns the largest magnitudes.

    Returns:
        Of keys, then of values. Shape: (2, layers, kv_heads), fp32.

    Raises:
        EngineError: Some key or value is not finite.
    """
    longest = sum(-(-len(ids) // 16) * 16 for ids in prompts)
    stage = PrefillStage(weights, StagePlan(weights.fmt, KVFormat("bf16")), longest)
    amax = stage.pool.amax = torch.zeros(2, weights.layout.layers, weights.layout.kv_heads)
    stage.prefill(prompts, logits=False)
    if not bool(amax.isfinite().all()):
        raise EngineError("calibration met NaN or infinity in keys or values")
    return amax


def scales_from(amax: Tensor, fmt: KVFormat) -> Scales:
    """Scales of a calibrated format.

    Args:
        amax: As `calibrate` returns it.
        fmt: Says the largest code, and whether heads share a scale.
    """
    shared = amax.amax(dim=2) if fmt.per == "tensor" else amax
    k, v = amax_scale(shared, {"fp8": E4M3_MAX, "int8": INT8_MAX}[fmt.kind])
    return Scales(k, v)


def read_scales(path: Path, fmt: KVFormat, layout: Layout) -> Scales:
    """Scales of a given format: `{"k": [...], "v": [...]}`, a number or a list of one per KV head for each layer.

    They are in a JSON file or, where the path is a directory, in the files of a checkpoint (`checkpoint.kv_scales`).
    What is read from a page is its code times the scale. A latent is key and value at once: there both are equal.

    Raises:
        ConfigError: A file that cannot be read, or numbers that are no scales of this format and this model.
    """
    where = f"scales {path}"
    try:
        held = stored_scales(path, fmt) if path.is_dir() else json.loads(path.read_text(encoding="utf-8-sig"))
        parts = [torch.tensor(held[part], dtype=torch.float32) for part in ("k", "v")]
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{where}: cannot be read ({error})") from None
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        raise ConfigError(f'{where}: expected {{"k": [...], "v": [...]}} with the scales of each layer') from None
    layers, kv_heads = layout.layers, layout.kv_heads
    unknown = set(held) - {"k", "v"}
    if unknown:
        raise ConfigError(f"{where}: unknown key {min(unknown)!r}; known: 'k' and 'v'")
    per_head = fmt.per == "head"
    wanted = (layers, kv_heads) if per_head else (layers,)
    for part, scale in zip("kv", parts, strict=True):
        if scale.shape != wanted:
            each = f"a list of {kv_heads} numbers, one a KV head" if per_head else "one number"
            raise ConfigError(f"{where}: {part!r} must hold {each}, for each of {layers} layers: kv={fmt} asks that")
        if not bool((scale.isfinite() & (scale > 0)).all()):
            raise ConfigError(f"{where}: {part!r} holds a scale that is not a positive fp32 number")
    if layout.latent is not None and not torch.equal(*parts):
        raise ConfigError(f"{where}: a latent is key and value at once; give 'v' the scales of 'k'")
    return Scales(*parts)


def load_amax(path: Path) -> Tensor | None:
    """Magnitudes from a cache file; None when it is missing or damaged."""
    try:
        held = json.loads(path.read_text())
        amax = torch.stack([torch.tensor(held[part], dtype=torch.float32) for part in ("k", "v")])
    except (OSError, ValueError, KeyError, TypeError, RuntimeError):
        return None
    return amax if amax.ndim == 3 else None


def save_amax(path: Path, amax: Tensor) -> None:
    """Writes a cache file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.part")
    temporary.write_text(json.dumps({"k": amax[0].tolist(), "v": amax[1].tolist()}))
    temporary.replace(path)
