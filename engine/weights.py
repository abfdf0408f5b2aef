"""One model's weights in one format: read tensor by tensor into an empty definition, packed as they come.

Embeddings, norms and lm_head stay at the compute type and are shared by every weights format of that type.
"""

import gc

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from evalsvc.errors import EngineError

from .checkpoint.directory import Checkpoint
from .layout import layout_of
from .linear import PlanLinear
from .model import empty_model
from .precision import WeightFormat
from .rope import fill_buffers


class WeightSet:
    """One model's weights in one format, ready to run.

    Attributes:
        fmt: The format of its linears.
        dtype: Compute type: fp32 for fp32 weights, bf16 otherwise.
        model: The transformers model.
        layout: What its attention asks of the pages.
        linears: Name to layer, lm_head excluded.
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
        self._fill(checkpoint, shared.setdefault(self.dtype, {}))
        self.model.eval().requires_grad_(False)
        gc.collect()

    def _fill(self, checkpoint: Checkpoint, shared: dict[str, Tensor]) -> None:
        linear_of = {f"{name}.weight": name for name, m in self.model.named_modules() if isinstance(m, nn.Linear)}
        expected = {name: parameter.shape for name, parameter in self.model.named_parameters(remove_duplicate=False)}
        biases: dict[str, Tensor] = {}
        weights: dict[str, Tensor] = {}
        seen: set[str] = set()
        for name, tensor in checkpoint.tensors():
            if name not in expected:
                raise EngineError(f"model {checkpoint.path}: unexpected tensor {name}")
            if tensor.shape != expected[name]:
                raise EngineError(
                    f"model {checkpoint.path}: tensor {name} has shape {tuple(tensor.shape)}, "
                    f"config.json asks {tuple(expected[name])}"
                )
            seen.add(name)
            layer = linear_of.get(name)
            owner, _, leaf = name.rpartition(".")
            if layer is not None and layer != "lm_head":
                weights[layer] = tensor
            elif leaf == "bias" and f"{owner}.weight" in linear_of and owner != "lm_head":
                biases[owner] = tensor
            else:
                if name not in shared:
                    shared[name] = tensor.to(self.dtype).clone()
                self._set(name, shared[name])
        self._tie(expected, seen, checkpoint)
        for layer in list(weights):
            fmt_layer = PlanLinear(weights.pop(layer), biases.get(layer), self.fmt, layer)
            self.model.set_submodule(layer, fmt_layer)
            self.linears[layer] = fmt_layer
        fill_buffers(self.model, self.max_length)
        left = [n for n, t in (*self.model.named_parameters(), *self.model.named_buffers()) if t.is_meta]
        if left:
            raise EngineError(f"model {checkpoint.path}: {left[0]} was never filled")

    def _tie(self, expected: dict, seen: set[str], checkpoint: Checkpoint) -> None:
        missing = sorted(set(expected) - seen)
        if self.model.config.get_text_config().tie_word_embeddings and "lm_head.weight" in missing:
            self.model.tie_weights()
            missing.remove("lm_head.weight")
        if missing:
            raise EngineError(f"model {checkpoint.path}: tensor {missing[0]} is missing ({len(missing)} in all)")

    def _set(self, name: str, tensor: Tensor) -> None:
        owner, _, leaf = name.rpartition(".")
        setattr(self.model.get_submodule(owner), leaf, nn.Parameter(tensor, requires_grad=False))

    def shared_tensors(self) -> list[Tensor]:
        """Embeddings, norms and lm_head, each once."""
        return list({p.data_ptr(): p for p in self.model.parameters()}.values())
