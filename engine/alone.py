"""Prompts through one stage alone, with the logits of every token: what other implementations are held against."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .batch import Chunk
from .kv.pool import Sequence as KVSequence
from .stage import PrefillStage, Stage


def logits_alone(stage: Stage, prompts: Sequence[Sequence[int]]) -> list[Tensor]:
    """Full logits of prompts side by side, through nothing but this stage.

    Returns:
        One a prompt, fp32. Shape: (tokens, vocabulary). A decode stage decodes every token, the first one included.

    Raises:
        PoolFull: The stage's pool is held by others.
    """
    sequences = [KVSequence() for _ in prompts]
    try:
        if isinstance(stage, PrefillStage):
            rows = stage.forward([Chunk(s, ids, len(ids)) for s, ids in zip(sequences, prompts, strict=True)])
            return list(rows.split([len(ids) for ids in prompts]))
        steps: list[list[Tensor]] = [[] for _ in prompts]
        for position in range(max(len(ids) for ids in prompts)):
            live = [i for i, ids in enumerate(prompts) if position < len(ids)]
            rows = stage.forward([Chunk(sequences[i], [prompts[i][position]]) for i in live])
            for i, row in zip(live, rows, strict=True):
                steps[i].append(row)
        return [torch.stack(rows) for rows in steps]
    finally:
        for sequence in sequences:
            stage.pool.free(sequence)
