"""What a stage really holds and ran, counted from its tensors, and whether that is what its plan says."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from .kv.pool import PAGE
from .precision import PrecisionPlan, StagePlan
from .stage import Stage, Work

_CODE_DTYPE = {"fp32": "float32", "bf16": "bfloat16", "fp8": "float8_e4m3fn", "int4": "int32"}
_KV_DTYPE = {"fp32": "float32", "bf16": "bfloat16", "fp8": "float8_e4m3fn"}


def measure(stage: Stage, work: Work) -> dict[str, Any]:
    """Bytes, types and kernels of one stage.

    Format bytes are what the plan's form occupies; resident bytes are what this process holds (on CPU a decoded copy
    for the product comes on top).

    Args:
        stage: Whose tensors are counted.
        work: What the stage computed for this arm.
    """
    linears = stage.weights.linears.values()
    packed = [t for layer in linears for t in layer.packed_tensors()]
    elements = sum(layer.weight.numel() for layer in linears)
    pool = stage.pool
    return {
        "weights": {
            "linears": len(stage.weights.linears),
            "elements": elements,
            "code_dtypes": dict(Counter(_dtype(layer.packed_tensors()[0]) for layer in linears)),
            "code_bits": 8 * sum(_bytes([layer.packed_tensors()[0]]) for layer in linears) / elements,
            "linears_reading_what_is_packed": sum(layer.reads_what_is_packed() for layer in linears),
            "format_bytes": _bytes(packed),
            "resident_bytes": _bytes([*packed, *(layer.weight for layer in linears)]),
            "other_bytes": _bytes(stage.weights.shared_tensors()),
            "compute_dtype": _dtype_name(stage.weights.dtype),
        },
        "kv": {
            "dtype": _dtype(pool.k),
            "scale": pool.fmt.scale,
            "scale_dtype": None if pool.k_scale is None else _dtype(pool.k_scale),
            "bytes_per_token": pool.bytes_per_token(),
            "pool_tokens": pool.n_pages * PAGE,
            "peak_tokens": pool.peak * PAGE,
            "resident_bytes": pool.resident_bytes(),
            "k_read_factor": pool.k_read_factor,
        },
        "kernels": dict(work.kernels),
        "tokens_computed": work.tokens,
        "forwards": work.forwards,
        "seconds": work.seconds,
    }


def mismatches(plan: PrecisionPlan, injected: dict[str, float], proof: dict[str, Any]) -> list[str]:
    """Where a measured proof contradicts its plan, in words; empty when it matches.

    Args:
        plan: What was asked.
        injected: Named faults that were asked.
        proof: Per stage what `measure` returned.
    """
    found = []
    for name, stage_plan in (("prefill", plan.prefill), ("decode", plan.decode)):
        measured = proof[name]
        factor = injected.get(f"{name}_k_scale", 1.0)
        found += [f"{name}: {problem}" for problem in _stage_mismatches(stage_plan, factor, measured)]
    return found


def _stage_mismatches(plan: StagePlan, factor: float, measured: dict[str, Any]) -> Iterable[str]:
    weights, kv, kernels = measured["weights"], measured["kv"], measured["kernels"]
    if set(weights["code_dtypes"]) != {_CODE_DTYPE[plan.weights.kind]}:
        yield f"weights are held as {weights['code_dtypes']}, the plan says {plan.weights}"
    bits = {"fp32": 32, "bf16": 16, "fp8": 8, "int4": 4}[plan.weights.kind]
    if weights["code_bits"] != bits:
        yield f"weights take {weights['code_bits']} bits, the plan says {bits}"
    if weights["linears_reading_what_is_packed"] != weights["linears"]:
        yield f"only {weights['linears_reading_what_is_packed']} of {weights['linears']} products read what is packed"
    if kv["dtype"] != _KV_DTYPE[plan.kv.kind]:
        yield f"KV is held as {kv['dtype']}, the plan says {plan.kv}"
    if (kv["scale_dtype"] is not None) != (plan.kv.kind == "fp8") or kv["scale"] != plan.kv.scale:
        yield f"KV scales are {kv['scale'] or 'absent'}, the plan says {plan.kv}"
    if kv["k_read_factor"] != factor:
        yield f"K is read with factor {kv['k_read_factor']}, the injected fault is {factor}"
    w8a8 = plan.weights.activations == "w8a8"
    wanted = "linear.fp8_w8a8.torch" if w8a8 else f"linear.{'fp32' if plan.weights.kind == 'fp32' else 'bf16'}.torch"
    ran = {kernel for kernel in kernels if kernel.startswith("linear.")}
    if measured["tokens_computed"] and ran != {wanted}:
        yield f"products ran as {sorted(ran)}, the plan asks {wanted}"


def _bytes(tensors: Iterable[Tensor]) -> int:
    unique = {t.data_ptr(): t for t in tensors}
    return sum(t.numel() * t.element_size() for t in unique.values())


def _dtype(tensor: Tensor) -> str:
    return _dtype_name(tensor.dtype)


def _dtype_name(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")
