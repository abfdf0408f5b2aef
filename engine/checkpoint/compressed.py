"""Which tensors of compressed-tensors' files belong together: `X.weight_packed` or `X.weight`, `X.weight_scale`, …

`weight_shape` is the matrix's, whose inputs need not fill a word. Scales of inputs, and of keys and values, are left
where they are: how activations are held is the plan's.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from evalsvc.errors import EngineError

from .base import StoredTensor
from .compressed_config import MXFP4, NVFP4, PACKED, CompressedConfig, Group
from .compressed_matrices import WORD, Codes, Nvfp4, whole
from .compressed_mxfp4 import Mxfp4

CODES = (".weight_packed", ".weight")
WHOLE = ".weight"
SIDES = tuple(f".weight_{what}" for what in ("scale", "zero_point", "shape", "global_scale", "g_idx"))
SCALE, ZERO, SHAPE, GLOBAL, ORDER = SIDES
LEFT_OUT = (".input_scale", ".input_zero_point", ".input_global_scale")
KEYS_AND_VALUES = tuple(f".{of}_{what}" for of in ("q", "k", "v", "output") for what in ("scale", "zero_point"))


def join(config: CompressedConfig, name: str, codes: StoredTensor, sides: Mapping[str, StoredTensor]) -> StoredTensor:
    """The matrix that codes and what goes with them stand for.

    Args:
        config: The quantization_config.
        name: Of the matrix.
        codes: Under either name.
        sides: By ending.

    Raises:
        EngineError: Tensors that are missing or do not belong together.
    """
    group = config.group_of(name.removesuffix(WHOLE))
    if group is None:
        reason = f"tensor {codes.name} is quantized, and the quantization_config of config.json has no group for it"
        raise EngineError(f"model {codes.file}: {reason}; fetch the model again")
    needed = [SCALE, *{PACKED: [SHAPE], NVFP4: [GLOBAL]}.get(group.format, []), *([] if group.symmetric else [ZERO])]
    needed += [ORDER] if group.ordered else []
    for side in needed:
        if side not in sides:
            raise EngineError(f"model {codes.file}: tensor {codes.name} has no {side} beside it; fetch the model again")
    held = _matrix(group, name, codes, sides)
    if held is None or not held.fits():
        found = ", ".join(f"{t.name.rpartition('.')[2]} {tuple(t.shape)}" for t in (codes, *sides.values()))
        reason = f"tensor {codes.name} is no {group}, which config.json says it is ({found})"
        raise EngineError(f"model {codes.file}: {reason}; fetch the model again")
    return held


def _matrix(
    group: Group, name: str, codes: StoredTensor, sides: Mapping[str, StoredTensor]
) -> Codes | Nvfp4 | Mxfp4 | None:
    """None where the codes cannot be the group's."""
    of_words = group.format in (PACKED, NVFP4, MXFP4)
    if not codes.name.endswith(CODES[0] if of_words else WHOLE) or len(codes.shape) != 2:
        return None
    if group.symmetric and ZERO in sides and bool(whole(sides[ZERO]).any()):
        return None
    out, inputs = codes.shape
    if group.format == NVFP4:
        return Nvfp4(codes.file, name, (out, 2 * inputs), torch.bfloat16, group, codes, sides[SCALE], sides[GLOBAL])
    if group.format == MXFP4:
        return Mxfp4(codes.file, name, (out, 2 * inputs), torch.bfloat16, group, codes, sides[SCALE])
    if group.format == PACKED:
        shape = whole(sides[SHAPE]).flatten().tolist()
        if len(shape) != 2 or shape[0] != out or inputs != -(-shape[1] * group.bits // WORD):
            return None
        inputs = int(shape[1])
    scale = sides[SCALE]
    order = _order(group, sides[ORDER], inputs) if ORDER in sides else None
    return Codes(codes.file, name, (out, inputs), scale.dtype, group, codes, scale, sides.get(ZERO), order)


def _order(group: Group, stored: StoredTensor, inputs: int) -> Tensor | None:
    """The group of each input where the file has others than the order of inputs gives; -1 stands for that order.

    Raises:
        EngineError: Groups that there are not or of other sizes, or another order that config.json does not speak of.
    """
    held, size = whole(stored).long(), group.size or inputs
    if held.shape != (inputs,) or int(held.max()) >= inputs // size:
        reason = f"tensor {stored.name} does not name a group for each of {inputs} inputs"
        raise EngineError(f"model {stored.file}: {reason}; fetch the model again")
    if bool((held < 0).any()) or torch.equal(held, torch.arange(inputs) // size):
        return None
    if int(held.bincount().max()) > size:
        reason = f"tensor {stored.name} puts more than {size} inputs into a group, so that another has too few"
        raise EngineError(f"model {stored.file}: {reason}; fetch the model again")
    if not group.ordered:
        reason = f"tensor {stored.name} has inputs in another order, of which config.json says nothing (actorder)"
        raise EngineError(f"model {stored.file}: {reason}; fetch the model again")
    return held.clone()
