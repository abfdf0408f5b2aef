"""One model's weights in one format: read tensor by tensor into an empty definition, packed as they come.

Embeddings, norms and lm_head stay at the compute type and are shared by every weights format of that type; an lm_head
that the format asks for is packed like any other linear. One tensor is in memory beside what stays.
"""

import ctypes
import gc
import re
import sys

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from evalsvc.errors import EngineError

from .checkpoint.base import Checkpoint
from .layout import layout_of
from .linear import PlanLinear
from .matrix import PlanMatrix
from .model import empty_model
from .precision import WeightFormat
from .rope import fill_buffers

HEAD = "lm_head"
PLAIN_KINDS = ("fp32", "bf16")
DERIVED = r"rotary_emb\.inv_freq$"  # in checkpoints of older transformers; made again from the configuration


class WeightSet:
    """One model's weights in one format, ready to run.

    Attributes:
        fmt: The format of its linears.
        dtype: Compute type: fp32 for fp32 weights, bf16 otherwise.
        model: The transformers model.
        layout: What its attention asks of the pages.
        linears: Name to layer; lm_head is among them only when the format packs it.
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
        _give_memory_back()

    def _fill(self, checkpoint: Checkpoint, shared: dict[str, Tensor]) -> None:
        linears = {name for name, module in self.model.named_modules() if isinstance(module, nn.Linear)}
        packed = linears if self.fmt.lm_head else linears - {HEAD}
        wanted = self._match(checkpoint)
        head: Tensor | None = None
        biases: dict[str, Tensor] = {}
        for stored in checkpoint.tensors():
            owner, _, leaf = stored.name.rpartition(".")
            if stored.name not in wanted:
                continue
            if self._tied() and stored.name == f"{HEAD}.weight":
                head = stored.read(self.dtype)
            elif owner in packed and leaf == "weight":
                self._pack(owner, stored.read(self.dtype if self.fmt.kind in PLAIN_KINDS else None))
            elif owner in packed:
                biases[owner] = stored.read(self.dtype)
            else:
                if stored.name not in shared:
                    shared[stored.name] = stored.read(self.dtype)
                self._set(stored.name, shared[stored.name])
        if self._tied():
            self._tie(head, checkpoint)
        for layer, bias in biases.items():
            self.linears[layer].bias = bias
        fill_buffers(self.model, self.max_length)
        left = [n for n, t in (*self.model.named_parameters(), *self.model.named_buffers()) if t.is_meta]
        if left:
            raise EngineError(f"model {checkpoint.path}: {left[0]} was never filled")

    def _match(self, checkpoint: Checkpoint) -> set[str]:
        """Names of the tensors to read. The files' names and shapes are held against the model's before one is read."""
        expected = {name: tuple(p.shape) for name, p in self.model.named_parameters(remove_duplicate=False)}
        ignored = [*(self.model._keys_to_ignore_on_load_unexpected or ()), DERIVED]
        found: set[str] = set()
        for stored in checkpoint.tensors():
            if stored.name not in expected:
                if any(re.search(pattern, stored.name) for pattern in ignored):
                    continue
                raise EngineError(f"model {stored.file}: unexpected tensor {stored.name}")
            if stored.shape != expected[stored.name]:
                raise EngineError(
                    f"model {stored.file}: tensor {stored.name} has shape {stored.shape}, "
                    f"config.json asks {expected[stored.name]}"
                )
            found.add(stored.name)
        missing = sorted(set(expected) - found - ({f"{HEAD}.weight"} if self._tied() else set()))
        if missing:
            raise EngineError(f"model {checkpoint.path}: tensor {missing[0]} is missing ({len(missing)} in all)")
        return found

    def _pack(self, layer: str, weight: Tensor) -> None:
        self.linears[layer] = PlanLinear(weight, None, self.fmt, layer)
        self.model.set_submodule(layer, self.linears[layer])

    def _tied(self) -> bool:
        return bool(self.model.config.get_text_config().tie_word_embeddings)

    def _tie(self, head: Tensor | None, checkpoint: Checkpoint) -> None:
        """Makes lm_head of the embedding: the same tensor, or a packed form of it."""
        embedding = self.model.get_input_embeddings().get_parameter("weight").data
        if head is not None and not torch.equal(head, embedding):
            raise EngineError(
                f"model {checkpoint.path}: config.json ties {HEAD}.weight to the embedding, and another is held; "
                "set tie_word_embeddings to false in config.json if they are meant to differ"
            )
        if self.fmt.lm_head:
            self._pack(HEAD, embedding)
        else:
            self._set(f"{HEAD}.weight", embedding)

    def _set(self, name: str, tensor: Tensor) -> None:
        owner, _, leaf = name.rpartition(".")
        setattr(self.model.get_submodule(owner), leaf, nn.Parameter(tensor, requires_grad=False))

    def matrices(self) -> dict[str, PlanMatrix]:
        """What is packed in the format, by name."""
        return {name: layer.matrix for name, layer in self.linears.items()}

    def shared_tensors(self) -> list[Tensor]:
        """Embeddings, norms and an lm_head that is not packed, each once."""
        return list({p.data_ptr(): p for p in self.model.parameters()}.values())


def _give_memory_back() -> None:
    """Hands what loading freed back to the system; glibc keeps it otherwise, a hundred MB and more."""
    gc.collect()
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)
