"""What a stage really holds and ran, counted from its tensors, and whether that is what its plan says."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from .devices import described
from .experts import is_router
from .held import dtype_name, kv_facts
from .kv.pool import PAGE, Scales
from .matrix import stored_as
from .mla import UP
from .precision import STORED, KVFormat, PrecisionPlan, WeightFormat, parse_plan
from .sizes import LatentShape
from .stage import Stage
from .work import Work

_CODE_DTYPE = {
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp8": "float8_e4m3fn",
    "int8": "int8",
    "int4": "int32",
    "nvfp4": "uint8",
}
_CODE_BITS = {"fp32": 32, "bf16": 16, "fp8": 8, "int8": 8, "int4": 4, "nvfp4": 4}
_KV_DTYPE = {"fp32": "float32", "bf16": "bfloat16", "fp8": "float8_e4m3fn", "int8": "int8"}

GRAPHS_NOTE = "CUDA graphs were not run on a GPU"
EXPERTS_NDIM = 3  # of experts that lie stacked, and so in no format


def measure(stage: Stage, work: Work) -> dict[str, Any]:
    """Bytes, types and kernels of one stage.

    `without_quantized_activations` names the linears that a format which quantizes activations holds without doing so.

    `linears_kept_as_stored` counts those whose packed form is the checkpoint's own, rounded by nobody here;
    `linears_as_files_say` are, under `stored`, the formats that the checkpoint asks.

    Format bytes are what the plan's form occupies; resident bytes are what this process holds (on CPU a decoded copy
    for the product comes on top).

    Args:
        stage: Whose tensors are counted.
        work: What the stage computed for this arm.
    """
    matrices = stage.weights.matrices()
    linears = matrices.values()
    plan = stage.plan.weights
    asked = stage.weights.asked if plan.kind == STORED else dict.fromkeys(matrices, plan)
    as_they_come = [name for name, matrix in matrices.items() if matrix.fmt != asked[name]]
    packed = [t for layer in linears for t in layer.packed_tensors()]
    elements = sum(layer.shape[0] * layer.shape[1] for layer in linears)
    pool = stage.pool
    return {
        "weights": {
            "linears": len(linears),
            "linears_by_format": _formats(stage),
            "linears_as_files_say": dict(Counter(str(f) for f in asked.values())) if plan.kind == STORED else None,
            "elements": elements,
            "code_dtypes": dict(Counter(_dtype(layer.packed_tensors()[0]) for layer in linears)),
            "code_bits": 8 * sum(_bytes([layer.packed_tensors()[0]]) for layer in linears) / elements,
            "linears_as_triton": sum(layer.launch is not None for layer in linears),
            "linears_kept_as_stored": sum(layer.kept for layer in linears),
            "linears_reading_what_is_packed": sum(layer.reads_what_is_packed() for layer in linears),
            "format_bytes": _bytes(packed),
            "resident_bytes": _bytes(tensor for layer in linears for tensor in layer.resident()),
            "without_quantized_activations": dict(Counter(name.rpartition(".")[2] for name in as_they_come)),
            "other_bytes": _bytes(stage.weights.other_tensors()),
            "compute_dtype": dtype_name(stage.weights.dtype),
        },
        "kv": {
            **kv_facts(pool),
            "scale": pool.fmt.scale,
            "scale_origin": pool.fmt.origin,
            "bytes_per_token": pool.bytes_per_token(),
            "pool_tokens": pool.n_pages * PAGE,
            "peak_tokens": pool.peak * PAGE,
            "resident_bytes": pool.resident_bytes(),
        },
        "integrity": {
            "mode": "off" if pool.guard is None else pool.guard.mode,
            "slots_read": work.slots_read,
            "slots_checked": work.slots_checked,
            "requests_broken_off": work.faults,
            "pages_in_quarantine": len(pool.quarantined),
            "resident_bytes": 0 if pool.guard is None else pool.guard.resident_bytes(),
        },
        "device": described(stage.device),
        "graphs": _graphs(stage, work),
        "kernels": dict(work.kernels),
        "tokens_computed": work.tokens,
        "forwards": work.forwards,
        "seconds": work.seconds,
    }


def _graphs(stage: Stage, work: Work) -> dict[str, Any]:
    """What was captured of a stage's steps, buckets as (requests, pages of each), and how often one was replayed."""
    if stage.steps is None:
        return {"form": "eager", "because": stage.eager_because}
    held = stage.steps.graphs
    counts = {"captured": held.captured, "captures": held.captures, "replays": work.replays}
    return {"form": "replayed", **counts, "note": GRAPHS_NOTE}


def mismatches(
    plan: PrecisionPlan,
    injected: Mapping[str, float],
    scales: Mapping[str, Scales],
    proof: Mapping[str, Any],
    integrity: str = "tags",
) -> list[str]:
    """Where a measured proof contradicts its plan, in words; empty when it matches.

    Args:
        plan: What was asked.
        injected: Named faults that were asked.
        scales: Fixed scales that were asked, by stage.
        proof: Per stage what `measure` returned.
        integrity: The mode that was asked.
    """
    found = []
    for name, stage_plan in (("prefill", plan.prefill), ("decode", plan.decode)):
        measured = proof[name]
        factor = injected.get(f"{name}_k_scale", 1.0)
        problems = [*_weight_mismatches(stage_plan.weights, measured)]
        problems += _kv_mismatches(stage_plan.kv, factor, scales.get(name), measured["kv"])
        problems += _integrity_mismatches(integrity, measured)
        found += [f"{name}: {problem}" for problem in problems]
    return found


def _weight_mismatches(plan: WeightFormat, measured: dict[str, Any]) -> Iterable[str]:
    weights, kernels = measured["weights"], measured["kernels"]
    asked = {plan: weights["linears"]}
    if plan.kind == STORED:
        asked = {parse_plan(f"w={text}").prefill.weights: n for text, n in weights["linears_as_files_say"].items()}
    dtypes, wanted = Counter[str](), Counter[str]()
    for fmt, count in asked.items():
        dtypes[_CODE_DTYPE[fmt.kind]] += count
        wanted[fmt.stored] += count
    if weights["code_dtypes"] != dict(dtypes):
        yield f"weights are held as {weights['code_dtypes']}, the plan says {plan}"
    if plan.kind == STORED:
        rounded = sum(n for fmt, n in asked.items() if fmt.kind != "bf16") - weights["linears_kept_as_stored"]
        if rounded:
            yield f"{rounded} matrices are not the checkpoint's own, the plan says {plan}"
    elif weights["code_bits"] != _CODE_BITS[plan.kind]:
        yield f"weights take {weights['code_bits']} bits, the plan says {_CODE_BITS[plan.kind]}"
    head = sum(weights["linears_by_format"].values()) > weights["linears"] if plan.kind == STORED else not plan.lm_head
    if head:
        wanted["fp32" if plan.kind == "fp32" else "bf16"] += 1
    if weights["linears_by_format"] != dict(wanted):
        yield f"linears are held as {weights['linears_by_format']}, the plan says {dict(wanted)}"
    if weights["linears_reading_what_is_packed"] != weights["linears"]:
        yield f"only {weights['linears_reading_what_is_packed']} of {weights['linears']} products read what is packed"
    others = set(weights["without_quantized_activations"]) - {UP}
    if others:
        yield f"activations of {', '.join(sorted(others))} are not quantized, the plan says {plan}"
    ran = {name for name in kernels if name.startswith("linear.")}
    triton = bool(weights["linears_as_triton"])
    forms = {f"linear.{f.kernel}.triton" if triton and f.kernel else f"linear.{f.product}.torch" for f in asked}
    if measured["tokens_computed"] and not (ran and ran <= forms):
        yield f"products ran as {sorted(ran)}, the plan asks {', '.join(sorted(forms))}"


def _kv_mismatches(plan: KVFormat, factor: float, scales: Scales | None, kv: dict[str, Any]) -> Iterable[str]:
    if kv["dtype"] != _KV_DTYPE[plan.kind]:
        yield f"KV is held as {kv['dtype']}, the plan says {plan}"
    if kv["scale_per"] != plan.per or kv["scale"] != plan.scale or (kv["scale_dtype"] == "float32") != bool(plan.per):
        yield f"KV scales are {kv['scale_per'] or 'absent'} ({kv['scale']}), the plan says {plan}"
    if scales is not None and kv["scales_sha256"] != scales.sha256():
        yield f"KV scales are not the ones {plan.origin}"
    if plan.origin == "uncalibrated" and kv["scale_range"] != [1.0, 1.0]:
        yield f"uncalibrated KV scales lie in {kv['scale_range']}, not at 1.0"
    if "latent" in kv:
        held = kv["latent"]
        indexed = tuple(range(held["index_layers"]))
        shape = LatentShape(held["layers"], held["rank"], held["rope"], held["index"], indexed)
        if kv["bytes_per_token"] != shape.token_bytes(plan):
            yield f"a token takes {kv['bytes_per_token']} bytes of KV, {plan} {shape.token_bytes(plan)}"
    if kv["k_read_factor"] != factor:
        yield f"K is read with factor {kv['k_read_factor']}, the injected fault is {factor}"


def _integrity_mismatches(asked: str, measured: dict[str, Any]) -> Iterable[str]:
    held = measured["integrity"]
    if held["mode"] != asked:
        yield f"integrity is {held['mode']}, {asked} was asked"
    if held["mode"] != "off" and measured["tokens_computed"] and not 0 < held["slots_checked"] == held["slots_read"]:
        yield f"{held['slots_checked']} of {held['slots_read']} slots that were read were checked for their tags"


def _formats(stage: Stage) -> dict[str, int]:
    """How many linears and matrices of experts are held in each format, lm_head included, as their tensors tell it."""
    held = Counter(matrix.stored for matrix in stage.weights.matrices().values())
    for name, module in stage.weights.model.named_modules():
        if isinstance(module, nn.Linear) and not is_router(name, module):
            held[stored_as(module.weight.dtype)] += 1
        held.update(stored_as(p.dtype) for p in module.parameters(recurse=False) if p.ndim == EXPERTS_NDIM)
    return dict(held)


def _bytes(tensors: Iterable[Tensor]) -> int:
    unique = {t.data_ptr(): t for t in tensors}
    return sum(t.numel() * t.element_size() for t in unique.values())


def _dtype(tensor: Tensor) -> str:
    return dtype_name(tensor.dtype)
