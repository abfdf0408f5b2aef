"""Latent attention by Triton's kernels, interpreted, from pages to logits: beside transformers' own forward."""

import pytest
import torch

from evalsvc.engine import mla_pages
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
    """Prompts in chunks, one below and one above topk; then two steps of decode beside each other."""
    stages = Engine.load(tiny(name), "w=fp32,kv=fp32", kv_tokens=512, poison=True).arm()
    prompts = [ids(36, 1), ids(12, 2)]
    sequences, logits = stages.prefill.prefill([p[:-2] for p in prompts], chunk=27)
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


@pytest.mark.parametrize("tokens", [[8], [8, 9]])  # in a chunk each query has a list of its own
def test_a_slot_is_compared_in_the_layers_that_read_it(serve, ids, monkeypatch, tokens):
    """Layers 0 and 2 have indexers, which read all slots; layer 1 reads the 24 that layer 0 chose."""
    stage, lists, real = serve("glm_moe_dsa", "w=fp32,kv=fp32", kv_tokens=512).arm().prefill, [], mla_pages.choose_keys
    monkeypatch.setattr(mla_pages, "choose_keys", lambda *given: lists.append(real(*given)) or lists[-1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EVALSVC_KERNELS", "torch")
        sequences, _ = stage.prefill([ids(40, 1), ids(33, 2)], logits=False)

    def faults(layer: int | None = None, position: int = 0) -> list[tuple]:
        """Of a step that always computes the same tokens; of the first sequence one stamp is changed."""
        slot = sequences[0].slots(position, position + 1)[0]
        if layer is not None:
            stage.pool.guard.stamps[layer, slot, 0] += 1
        found = stage.run([Chunk(sequences[0], [8]), Chunk(sequences[1], tokens)])[1]
        if layer is not None:
            stage.pool.guard.stamps[layer, slot, 0] -= 1
        for sequence, length in zip(sequences, (40, 33), strict=True):
            stage.pool.truncate(sequence, length)
        return [(chunk, one.layer, one.expected[1], one.slot == slot) for chunk, one in found.items()]

    before = stage.work.copy()
    assert faults() == []
    work, listed = stage.work.since(before), 24 * (1 + len(tokens))
    assert work.slots_read == work.slots_checked == 2 * (41 + 33 + len(tokens)) + listed
    read = lists[0][0].tolist()
    unread = next(position for position in range(40) if position not in read)
    assert len(read) == 24 and len(lists) == 2
    assert faults(1, unread) == []
    before = stage.work.copy()
    assert faults(1, read[3]) == [(0, 1, read[3], True)]
    assert stage.work.since(before).slots_checked == work.slots_checked
    assert faults(0, unread) == [(0, 0, unread, True)]
    assert faults(2, read[3]) == [(0, 2, read[3], True)]


def test_hashes_of_contents_are_compared_beside_the_kernels(serve, ids):
    stage = serve("glm_moe_dsa", "w=bf16,kv=fp8:latent128", kv_tokens=256, integrity="content").arm().prefill
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EVALSVC_KERNELS", "torch")
        sequences, _ = stage.prefill([ids(40, 1)], logits=False)
    stage.pool.latent.view(torch.uint8)[2, sequences[0].slots(5, 6)[0], 0] ^= 1
    _, faults = stage.run([Chunk(sequences[0], [8])])
    assert (faults[0].layer, faults[0].expected[1], faults[0].content) == (2, 5, True)
