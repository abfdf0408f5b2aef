"""Latent attention: a definition's own projections around pages of latents.

transformers expands latents to keys and values before its attention function sees them. What such a deployment keeps,
and quantizes, is the latent, so this module takes the place of the definition's: it writes latents and rope keys, and
reads them expanded in prefill and absorbed in decode. Both forms are made of one decoded copy of kv_b_proj; it is the
one linear whose activations no format quantizes, since absorbed it has none of its own. `mla_pages.py` has the forms
that kernels for GPUs compute.
"""

import sys
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from evalsvc.errors import CapabilityError
from evalsvc.kernels.latent_attention import absorb, expanded_attention, latent_attention, release
from evalsvc.kernels.sparse_index import Selection, select_keys

from . import mla_pages
from .attention import Step, current_step
from .kv.latent_pool import LatentPool
from .layout import PROBE_NAME, note_latent

LATENT_MODEL_TYPES = ("deepseek_v3", "glm_moe_dsa")
UP = "kv_b_proj"
Chosen = Selection | Tensor | None
"""Keys that queries read: by tiles, or positions where kernels read pages; None: all."""
_CHILDREN = ("q_proj", "q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm", UP, "o_proj")


class LatentAttention(nn.Module):
    """In place of a definition's attention, over the same parameters under the same names.

    Attributes:
        layer_idx: Number of the layer.
        indexer: The definition's, which chooses keys; None where attention is dense, or uses another layer's choice.
        sparse: Whether attention is sparse.
    """

    indexer: Any
    q_proj: Any
    q_a_proj: Any
    q_a_layernorm: Any
    q_b_proj: Any
    kv_a_proj_with_mqa: Any
    kv_a_layernorm: Any
    kv_b_proj: Any
    o_proj: Any

    def __init__(self, definition: Any):
        super().__init__()
        self.config, self.layer_idx, self.scaling = definition.config, definition.layer_idx, definition.scaling
        self.heads, self.rank = definition.num_heads, definition.kv_lora_rank
        self.nope, self.rope, self.width = (
            definition.qk_nope_head_dim,
            definition.qk_rope_head_dim,
            definition.v_head_dim,
        )
        for name in (*_CHILDREN, "indexer"):
            setattr(self, name, getattr(definition, name, None))
        self.sparse = hasattr(definition, "indexer")
        functions = sys.modules[type(definition).__module__]
        interleaved = getattr(self.config, "rope_interleave", True)
        self._rotate = getattr(functions, f"apply_rotary_pos_emb{'_interleave' if interleaved else ''}")

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        prev_topk_indices: Chosen = None,
        **_: object,
    ) -> tuple[Tensor, None] | tuple[Tensor, None, Chosen]:
        """As the definition's: a packed batch's hidden states, and the keys that another layer chose.

        Args:
            hidden_states: Shape: (1, tokens, hidden).
            position_embeddings: Cosines and sines. Shape of each: (1, tokens, rope).
            attention_mask: None.
            prev_topk_indices: What the layer before returned.

        Returns:
            Shape: (1, tokens, hidden), no weights, and of sparse attention the keys that were read.

        Raises:
            CapabilityError: The model asks for arithmetic that pages do not serve.
        """
        if attention_mask is not None:
            raise CapabilityError(f"layer {self.layer_idx} passes an attention mask: only causal attention is served")
        resid = hidden_states if self.q_a_proj is None else self.q_a_layernorm(self.q_a_proj(hidden_states))
        query = (self.q_proj if self.q_a_proj is None else self.q_b_proj)(resid)
        q_nope, q_rope = query.unflatten(-1, (self.heads, -1)).split([self.nope, self.rope], dim=-1)
        latent, rope = self.kv_a_proj_with_mqa(hidden_states).split([self.rank, self.rope], dim=-1)
        latent = self.kv_a_layernorm(latent)
        q_rope, rope = self._rotate(q_rope, rope[:, :, None], *position_embeddings, unsqueeze_dim=2)
        index = None if self.indexer is None else self._index(hidden_states, resid, position_embeddings)
        kept = latent[0], rope[0, :, 0], None if index is None else index[1]
        if self.config._attn_implementation == PROBE_NAME:
            note_latent(self.layer_idx, self.heads, *kept)
            out, chosen = query.new_zeros(*query.shape[1:2], self.heads, self.width), None
        else:
            step = current_step()
            pool = step.pool
            assert isinstance(pool, LatentPool)
            step.enter(self.layer_idx)
            pool.observe(self.layer_idx, *kept[:2])
            pool.write(self.layer_idx, step.slots, *kept, stamps=step.stamps)
            if step.check is not None and step.by_pages is None:
                step.check.layer(self.layer_idx)
            chosen = prev_topk_indices if index is None else self._choose(step, pool, index[0], index[2])
            out = self._attend(step, pool, q_nope[0], q_rope[0], chosen)
        result = self.o_proj(out.flatten(1)[None])
        return (result, None, chosen) if self.sparse else (result, None)

    def _attend(self, step: Step, pool: LatentPool, q_nope: Tensor, q_rope: Tensor, chosen: Chosen) -> Tensor:
        layer = self.layer_idx
        up = self.kv_b_proj.weight.view(self.heads, self.nope + self.width, self.rank)
        if step.by_pages is not None:
            assert not isinstance(chosen, Selection)
            form = step.absorbs or self.sparse, chosen, chosen is not None and self.indexer is not None
            return mla_pages.attend(step, pool, layer, q_nope, q_rope, up, self.scaling, *form)
        assert not isinstance(chosen, Tensor)
        pages = pool.latent[layer], pool.rope[layer], pool.read_scale(layer)
        if not step.absorbs:
            return expanded_attention(q_nope, q_rope, *pages, up, step.tiles, self.scaling, chosen)
        sums = latent_attention(absorb(q_nope, up), q_rope, *pages, step.tiles, self.scaling, chosen)
        return release(sums, up, self.nope)

    def _index(
        self, hidden: Tensor, resid: Tensor, position_embeddings: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Index queries, the first numbers of a head rotated, index keys, and the weights of heads.

        Shapes: (tokens, index_heads, index_dim), (tokens, index_dim), (tokens, index_heads).
        """
        indexer = self.indexer
        q = indexer.wq_b(resid).unflatten(-1, (indexer.n_heads, -1))
        k = indexer.k_norm(indexer.wk(hidden))[:, :, None]
        (q_rope, q_pass), (k_rope, k_pass) = (x.split([self.rope, x.shape[-1] - self.rope], dim=-1) for x in (q, k))
        q_rope, k_rope = self._rotate(q_rope, k_rope, *position_embeddings, unsqueeze_dim=2)
        weights = indexer.weights_proj(hidden[0].to(indexer.weights_proj.weight.dtype)).float() * indexer.n_heads**-0.5
        q, k = torch.cat([q_rope, q_pass], dim=-1), torch.cat([k_rope, k_pass], dim=-1)
        return q[0], k[0, :, 0], weights

    def _choose(self, step: Step, pool: LatentPool, q: Tensor, weights: Tensor) -> Chosen:
        scale, topk = self.indexer.softmax_scale, self.indexer.index_topk
        if step.by_pages is not None:
            return mla_pages.choose(step, pool, self.layer_idx, q, weights, scale, topk)
        keys, key_scale = pool.index_of(self.layer_idx)
        return select_keys(q, weights, keys, key_scale, step.tiles, scale, topk)


def check_latent_config(config: Any) -> None:
    """Refuses what such a configuration can ask and transformers' definition leaves out without a word.

    Raises:
        CapabilityError: Experts chosen in another way than the definition's.
    """
    if config.model_type not in LATENT_MODEL_TYPES:
        return
    for field, served in (("scoring_func", "sigmoid"), ("topk_method", "noaux_tc")):
        asked = getattr(config, field, served)
        if asked != served:
            raise CapabilityError(f"experts chosen by {field}: {asked}; served: {served}")


def keep_latents(model: PreTrainedModel) -> None:
    """Puts `LatentAttention` in the place of every attention of a model type that is served with latents."""
    if model.config.model_type not in LATENT_MODEL_TYPES:
        return
    for name, module in list(model.named_modules()):
        if hasattr(module, UP):
            model.set_submodule(name, LatentAttention(module))
