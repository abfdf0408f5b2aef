"""Random matrices as compressed-tensors stores them, and what the library itself decompresses them to."""

from typing import Any

import torch
from compressed_tensors.compressors.base import BaseCompressor
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from torch import Tensor

from evalsvc.engine.checkpoint.open import open_checkpoint
from evalsvc.engine.precision import parse_plan
from evalsvc.engine.weights import WeightSet

BLOCK = 128
WIDE = {"hidden_size": 160, "intermediate_size": 288}  # blocks of 128 that end early, groups that fit
EXPERTS = {**WIDE, "moe_intermediate_size": 192}
KINDS = {"llama": WIDE, "qwen3_moe": EXPERTS, "deepseek_v3": EXPERTS}
PLAIN = ("norm", "embed_tokens", "lm_head", "mlp.gate.", "bias")
KIMI = ("lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*")


def scheme(form: str, targets: tuple[str, ...] = ("Linear",), **weights: Any) -> QuantizationScheme:
    """Of weights in a format."""
    return QuantizationScheme(targets=list(targets), weights=QuantizationArgs(**weights), format=form)


PACKED4 = scheme("pack-quantized", num_bits=4, strategy="group", group_size=32)
ZEROS4 = scheme("pack-quantized", num_bits=4, strategy="group", group_size=32, symmetric=False)
CHANNEL4 = scheme("pack-quantized", num_bits=4, strategy="channel")
PACKED8 = scheme("pack-quantized", num_bits=8, strategy="channel")
ZEROS8 = scheme("pack-quantized", num_bits=8, strategy="channel", symmetric=False)
TENSOR8 = scheme("pack-quantized", num_bits=8, strategy="tensor")
INT8 = scheme("int-quantized", num_bits=8, strategy="channel")
INT8_ZEROS = scheme("int-quantized", num_bits=8, strategy="channel", symmetric=False)
INT8_TENSOR = scheme("naive-quantized", num_bits=8, strategy="tensor")
INT8_GROUPS = scheme("int-quantized", num_bits=8, strategy="group", group_size=32)
FP8 = scheme("float-quantized", num_bits=8, type="float", strategy="channel")
FP8_TENSOR = scheme("float-quantized", num_bits=8, type="float", strategy="tensor")
FP8_BLOCKS = scheme("naive-quantized", num_bits=8, type="float", strategy="block", block_structure=[BLOCK, BLOCK])
FP4: dict[str, Any] = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
MX: dict[str, Any] = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}
NVFP4 = scheme("nvfp4-pack-quantized", **FP4, scale_dtype="torch.float8_e4m3fn")
MXFP4 = scheme("mxfp4-pack-quantized", **MX, scale_dtype="torch.uint8")
SCHEMES = {
    "int4:g32": PACKED4,
    "int4 zeros": ZEROS4,
    "int4 channel": CHANNEL4,
    "packed int8": PACKED8,
    "packed int8 zeros": ZEROS8,
    "packed int8 tensor": TENSOR8,
    "int8": INT8,
    "int8 zeros": INT8_ZEROS,
    "int8 tensor": INT8_TENSOR,
    "int8 groups": INT8_GROUPS,
    "fp8": FP8,
    "fp8 tensor": FP8_TENSOR,
    "fp8 blocks": FP8_BLOCKS,
    "nvfp4": NVFP4,
    "mxfp4": MXFP4,
}


def stored_as(held: QuantizationScheme, shape: tuple[int, int], seed: int = 0, dtype: Any = torch.bfloat16) -> Any:
    """Random codes that no rounding of their values gives back, and what goes with them, by local name."""
    weights = held.weights
    assert weights is not None
    generator = torch.Generator().manual_seed(seed)
    (out, inputs), bits = shape, weights.num_bits
    if held.format == "nvfp4-pack-quantized":
        scale = (1 + 300 * torch.rand(out, inputs // 16, generator=generator)).to(torch.float8_e4m3fn)
        codes = torch.randint(0, 256, (out, inputs // 2), generator=generator, dtype=torch.uint8)
        return {"weight_packed": codes, "weight_scale": scale, "weight_global_scale": torch.tensor([2345.678])}
    if held.format == "mxfp4-pack-quantized":
        scale = torch.randint(110, 130, (out, inputs // 32), generator=generator, dtype=torch.uint8)
        return {
            "weight_packed": torch.randint(0, 256, (out, inputs // 2), generator=generator, dtype=torch.uint8),
            "weight_scale": scale,
        }
    per = {
        "tensor": (1,),
        "channel": (out, 1),
        "group": (out, inputs // (weights.group_size or 1)),
        "block": (-(-out // BLOCK), -(-inputs // BLOCK)),
    }[str(weights.strategy)]
    largest = 2 ** (bits - 1) if weights.type == "int" else 300
    scale = ((0.5 + torch.rand(per, generator=generator)) / (3 * largest)).to(dtype)
    if weights.type == "float":
        codes = (torch.randn(shape, generator=generator) * 60).clamp(-300, 300).to(torch.float8_e4m3fn)
        return {"weight": codes, "weight_scale": scale}
    codes = torch.randint(-largest, largest, shape, generator=generator, dtype=torch.int8)
    packs = held.format == "pack-quantized"
    found = {"weight_packed": pack_to_int32(codes, bits)} if packs else {"weight": codes}
    found |= {"weight_scale": scale} | ({"weight_shape": torch.tensor(shape)} if packs else {})
    if not weights.symmetric:
        zero = torch.randint(-largest // 2, largest // 2, per, generator=generator, dtype=torch.int8)
        found["weight_zero_point"] = pack_to_int32(zero, bits, packed_dim=0) if packs else zero
    return found


def decompressed(held: QuantizationScheme, local: dict[str, Tensor]) -> Tensor:
    """What compressed-tensors makes of it."""
    compressor = BaseCompressor.get_value_from_registry(str(held.format))
    return compressor.decompress(local, held)["weight"].contiguous()


def config_of(*groups: QuantizationScheme, ignore: tuple[str, ...] = (), **fields: Any) -> dict[str, Any]:
    """The field of config.json as the library writes it."""
    config = QuantizationConfig(
        config_groups={f"group_{number}": group for number, group in enumerate(groups)},
        format=groups[0].format if len({group.format for group in groups}) == 1 else "mixed-precision",
        quantization_status="compressed",
        ignore=list(ignore),
    )
    return {"quantization_config": config.model_dump(mode="json") | fields}


def is_plain(name: str, experts_alone: bool) -> bool:
    return any(part in name for part in PLAIN) or (experts_alone and ".mlp.experts." not in name)


def store(held, experts_alone: bool = False):
    """What a tiny model's files hold in a scheme, of random codes."""

    def edit(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        found = {}
        for seed, (name, tensor) in enumerate(sorted(tensors.items())):
            if is_plain(name, experts_alone):
                found[name] = tensor
            else:
                local = stored_as(held, tuple(tensor.shape), seed)
                found |= {f"{name.removesuffix('.weight')}.{leaf}": part for leaf, part in local.items()}
        return found

    return edit


def plain(held, experts_alone: bool = False):
    """What the library decompresses the same to, at the type it gives."""

    def edit(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            name: tensor
            if is_plain(name, experts_alone)
            else decompressed(held, stored_as(held, tuple(tensor.shape), seed))
            for seed, (name, tensor) in enumerate(sorted(tensors.items()))
        }

    return edit


def held(path, plan: str) -> WeightSet:
    return WeightSet(open_checkpoint(path), parse_plan(plan).prefill.weights, {})
