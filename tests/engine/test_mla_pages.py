"""Latent attention by Triton's kernels, interpreted, from pages to logits: beside transformers' own forward."""

import pytest
import torch

from evalsvc.engine.batch import Chunk
from evalsvc.engine.engine import Engine
from evalsvc.engine.kv.handoff import handoff

pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("EVALSVC_KERNELS", "triton")


@pytest.mark.parametrize(("name", "topk"), [("glm_moe_dsa", 24), ("deepseek_v3", None)])
def test_logits_are_transformers_own(tiny, reference, ids, name, topk):
    """Two prompts in two chunks each, one below and one above topk; then two steps of decode beside each other."""
    stages = Engine.load(tiny(name), "w=fp32,kv=fp32", kv_tokens=512, poison=True).arm()
    prompts = [ids(45, 1), ids(19, 2)]
    sequences, logits = stages.prefill.prefill([p[:-2] for p in prompts], chunk=26)
    found = [[row] for row in logits]
    sequences = [handoff(stages.prefill.pool, s, stages.decode.pool) for s in sequences]
    for place in (-2, -1):
        rows = stages.decode.step(sequences, [p[place] for p in prompts])
        for kept, row in zip(found, rows, strict=True):
            kept.append(row)
    for prompt, rows in zip(prompts, found, strict=True):
        with torch.no_grad():
            wanted = reference(name)(torch.tensor([prompt])).logits[0, -3:]
        assert (torch.stack(rows) - wanted).abs().max() <= 1e-4
