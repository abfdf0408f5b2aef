"""One model's weights in one format: read tensor by tensor into an empty definition, packed as they come.

Embeddings, norms and lm_head stay at the compute type and are shared by every weights format of that type; an lm_head
that the format asks for is packed like any other linear. Routers are shared too, in fp32 where the model keeps them so.
A matrix that the files hold in the format is kept as it is; one that they hold in another is decoded and packed again.
Under `stored` each matrix is in the files' own format, plain numbers at the compute type.
One tensor is in memory beside what stays, and of experts one matrix of one expert.
"""

import re

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from evalsvc.errors import CapabilityError, EngineError

from .checkpoint.base import Checkpoint, StoredTensor
from .experts import PlanExperts, hold_routers
from .layout import layout_of
from .linear import PlanLinear
from .matching import HEAD, PLAIN_KINDS, expert_modules, is_tied, linear_names, matched, placed
from .matrix import PlanMatrix
from .memory import Returns, returning
from .mla import UP
from .model import empty_model
from .packed.base import Packed
from .precision import STORED, WeightFormat
from .rope import fill_buffers

ROUTERS_IN_FP32 = ("deepseek_v3", "glm4_moe", "glm_moe_dsa")  # older transformers round their weights to bf16
CORRECTION = "e_score_correction_bias"  # added to scores in fp32, whatever the compute type


class WeightSet:
    """One model's weights in one format, ready to run.

    Attributes:
        fmt: The format of its linears.
        dtype: Compute type: fp32 for fp32 weights, bf16 otherwise.
        model: The transformers model.
        layout: What its attention asks of the pages.
        linears: Name to layer; lm_head is among them only when the format packs it, and a router never.
        experts: Name to the experts of a layer.
        asked: Name of a matrix to the format that it is held in: `fmt`, or the files' own.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        fmt: WeightFormat,
        shared: dict[torch.dtype, dict[str, Tensor]],
        max_length: int | None = None,
    ):
        """Reads the checkpoint into the format.

        Args:
            checkpoint: Where the tensors are.
            fmt: Format of the linears.
            shared: Per compute type the tensors that every format holds alike; filled here, reused by later sets.
            max_length: Tokens of the longest sequence that will be served, as in `fill_buffers`.
        """
        self.fmt = fmt
        self.dtype = torch.float32 if fmt.kind == "fp32" else torch.bfloat16
        self.model: PreTrainedModel = empty_model(checkpoint, self.dtype)
        self.layout = layout_of(self.model)
        self.max_length = max_length
        self.linears: dict[str, PlanLinear] = {}
        self._definitions = expert_modules(self.model)
        self.experts: dict[str, PlanExperts] = {}
        self.asked: dict[str, WeightFormat] = {}
        with returning() as returns:
            self._fill(checkpoint, shared.setdefault(self.dtype, {}), returns)
        self.model.eval().requires_grad_(False)

    def _fill(self, checkpoint: Checkpoint, shared: dict[str, Tensor], returns: Returns) -> None:
        linears = linear_names(self.model)
        wanted, stored_head = self._match(checkpoint)
        packed = linears if self.fmt.lm_head or stored_head else linears - {HEAD}
        head: StoredTensor | None = None
        biases: dict[str, Tensor] = {}
        types = {name: self._type(name, held.dtype) for name, held in self._parameters().items()}
        for name, module in self._definitions.items():
            self.experts[name] = PlanExperts(module)
            self.model.set_submodule(name, self.experts[name])
        for stored, name, module, expert, part in placed(checkpoint, self._definitions):
            owner, _, leaf = name.rpartition(".")
            returns.note(stored.nbytes)
            if name not in wanted:
                continue
            if module:
                fmt = self.asked[name] = self._format(stored)
                self.experts[module].pack(expert, part, self._read(stored, fmt), fmt, name)
            elif is_tied(self.model) and name == f"{HEAD}.weight":
                head = stored
            elif owner in packed and leaf == "weight":
                fmt = self._format(stored)
                self._pack(owner, self._read(stored, fmt), fmt)
            elif owner in packed:
                biases[owner] = stored.read(self.dtype)
            else:
                if name not in shared:
                    shared[name] = stored.read(types[name])
                self._set(name, shared[name])
        if is_tied(self.model):
            self._tie(head, checkpoint)
        for layer, bias in biases.items():
            self.linears[layer].bias = bias
        fill_buffers(self.model, self.max_length)
        hold_routers(self.model)
        left = [n for n, t in (*self.model.named_parameters(), *self.model.named_buffers()) if t.is_meta]
        if left:
            raise EngineError(f"model {checkpoint.path}: {left[0]} was never filled")

    def _match(self, checkpoint: Checkpoint) -> tuple[set[str], bool]:
        """Names of the tensors to read, and whether the head is held packed because the files have it so."""
        found: set[str] = set()
        head = False
        for stored, name, *_ in matched(checkpoint, self.model):
            found.add(name)
            if name == f"{HEAD}.weight" and not is_tied(self.model):
                head = self.fmt.kind == STORED and self._format(stored).kind not in PLAIN_KINDS
        return found, head

    def _parameters(self) -> dict[str, Tensor]:
        """What a checkpoint holds, by name: parameters, and buffers that are not made from the configuration."""
        return self.model.state_dict(keep_vars=True)

    def _type(self, name: str, defined: torch.dtype) -> torch.dtype:
        """What a tensor that no format packs is held in."""
        strict = self.model._keep_in_fp32_modules_strict or ()
        if self.model.config.model_type in ROUTERS_IN_FP32 and name.endswith("mlp.gate.weight"):
            return torch.float32
        if name.endswith(CORRECTION) or any(re.search(rf"(^|\.){re.escape(kept)}(\.|$)", name) for kept in strict):
            return torch.float32
        return defined

    def _format(self, stored: StoredTensor) -> WeightFormat:
        """What a matrix is held in."""
        return stored.own_format() if self.fmt.kind == STORED else self.fmt

    def _read(self, stored: StoredTensor, fmt: WeightFormat) -> Tensor | Packed:
        """A matrix to be packed, or its packed form where the file holds just that."""
        kept = stored.packed(fmt.stored)
        if kept is None and self.fmt.kind == STORED and fmt.kind not in PLAIN_KINDS:
            reason = f"tensor {stored.name} is {fmt.stored} with other scales than that format has"
            raise CapabilityError(f"model {stored.file}: {reason}; name a weights format in place of `{STORED}`")
        return stored.read(self.dtype if fmt.kind in PLAIN_KINDS else None) if kept is None else kept

    def _pack(self, layer: str, weight: Tensor | Packed, fmt: WeightFormat) -> None:
        expands = layer.rpartition(".")[2] == UP
        self.asked[layer] = fmt
        self.linears[layer] = PlanLinear(weight, None, fmt.storage_only if expands else fmt, layer)
        self.model.set_submodule(layer, self.linears[layer])

    def _tie(self, head: StoredTensor | None, checkpoint: Checkpoint) -> None:
        """Makes lm_head of the embedding: the same tensor, or a packed form of it."""
        embedding = self.model.get_input_embeddings().get_parameter("weight").data
        if head is not None and not head.holds(embedding):
            raise EngineError(
                f"model {checkpoint.path}: config.json ties {HEAD}.weight to the embedding, and another is held; "
                "set tie_word_embeddings to false in config.json if they are meant to differ"
            )
        if self.fmt.lm_head:
            self._pack(HEAD, embedding, self.fmt)
        else:
            self._set(f"{HEAD}.weight", embedding)

    def _set(self, name: str, tensor: Tensor) -> None:
        owner, _, leaf = name.rpartition(".")
        module = self.model.get_submodule(owner)
        if leaf in module._buffers:
            module._buffers[leaf] = tensor
        else:
            setattr(module, leaf, nn.Parameter(tensor, requires_grad=False))

    def matrices(self) -> dict[str, PlanMatrix]:
        """What is packed in the format, by name."""
        found = {name: layer.matrix for name, layer in self.linears.items()}
        for name, experts in self.experts.items():
            found |= {f"{name}.{part}": matrix for part, matrix in experts.named_matrices()}
        return found

    def shared_tensors(self) -> list[Tensor]:
        """Embeddings, norms, routers, biases of experts and an lm_head that is not packed, each once."""
        return list({t.data_ptr(): t for t in self._parameters().values()}.values())

    def asks(self) -> bool:
        """Whether a forward waits for a device to say which experts its tokens chose."""
        return any(module.asks for module in self.model.modules() if isinstance(module, PlanExperts))

    def read_tensors(self) -> list[Tensor]:
        """All that a forward reads, where it lies now."""
        held = [t for matrix in self.matrices().values() for t in matrix.resident()]
        return [*held, *self.other_tensors(), *self.model.buffers()]

    def other_tensors(self) -> list[Tensor]:
        """All that no format packs: what is shared, and the linears' biases."""
        return [*self.shared_tensors(), *(layer.bias for layer in self.linears.values() if layer.bias is not None)]
