"""Decode steps from fixed buffers beside eager ones, both by Triton's kernels in the interpreter; a graph is pretended.

On a GPU a capture is real; here `Recorder` holds a replay to what a graph can do.
"""

import pytest
import torch

from evalsvc.engine import engine as engine_module
from evalsvc.engine import graphs
from evalsvc.engine.batch import Chunk
from evalsvc.engine.graphs import Inputs, Outputs
from evalsvc.engine.kv.handoff import handoff
from evalsvc.engine.kv.pages import PAGE, PoolFull, Sequence
from evalsvc.engine.replay import inputs
from evalsvc.engine.requests import GenerateRequest, ScoreRequest
from evalsvc.errors import EngineError

from .recorder import Recorder

pytest.importorskip("triton")

LENGTHS = (15, 3, 31)
COMPANY = ((0, 1, 2), (1,), (1, 0), (2, 0))  # second tokens of the first and of the third begin a page
CHOICE = "index_ranks.triton"
PLANS = [
    ("llama", "w=bf16 > w=bf16,kv=fp8"),
    ("gemma2", "w=bf16 > w=bf16,kv=int8"),
    ("llama", "w=bf16 > w=nvfp4"),
    pytest.param("deepseek_v3_dense", "w=bf16", marks=pytest.mark.slow),
    pytest.param("gpt_oss", "w=bf16 > w=int4:g32", marks=pytest.mark.slow),
    pytest.param("glm_moe_dsa", "w=bf16 > w=int4:g32,kv=fp8:latent128", marks=pytest.mark.slow),
    *(
        pytest.param(name, f"w=bf16 > {weights}", marks=pytest.mark.slow)
        for name in ("llama", "qwen3_moe")
        for weights in ("w=fp8", "w=fp8:block128", "w=fp8:w8a16", "w=int8", "w=int4:g32", "w=nvfp4")
    ),
]


@pytest.fixture
def recorder(monkeypatch):
    """Stands for a GPU's captures from now on; buckets are two pages wide and more."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("EVALSVC_KERNELS", "triton")
    monkeypatch.setattr(graphs, "NARROWEST", 2)
    made = Recorder()
    monkeypatch.setattr(engine_module, "capture_for", lambda device, word: made.capture if word == "auto" else None)
    return made


def decoding(serve, ids, name, plan, word, **options):
    """A decode stage, and sequences that were handed to it, computed in torch."""
    arm = serve(name, plan, graphs=word, **({"kv_tokens": 160} | options)).arm()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EVALSVC_KERNELS", "torch")
        sequences, _ = arm.prefill.prefill([ids(n, n) for n in LENGTHS], logits=False)
    return arm.decode, [handoff(arm.prefill.pool, sequence, arm.decode.pool) for sequence in sequences]


def outside(stage, steps):
    """Storages that a stage's steps may read: what is watched, and buffers."""
    held = [*steps._watched(), *(t for b in steps.graphs._buffers.values() for t in vars(b).values())]
    return {tensor.untyped_storage().data_ptr() for tensor in held}


def test_what_a_step_brings_is_made_where_the_engine_computes():
    chunks = [Chunk(Sequence([4, 5], 18, [7, 8]), [3]), Chunk(Sequence([6], 2, [9]), [2])]
    given = inputs(chunks, [81, 97])
    assert [part.tolist() for part in vars(given).values()] == [
        [3, 2], [17, 1], [81, 97], [18, 2], [[4, 5], [6, -1]], [[7, 8], [9, 0]],
    ]  # fmt: skip
    with torch.device("meta"):
        assert all(part.is_meta for part in vars(inputs(chunks, [81, 97])).values())


@pytest.mark.parametrize(("name", "plan"), PLANS)
def test_replayed_steps_have_every_bit_of_eager_ones_in_any_company(serve, ids, recorder, name, plan):
    (eager, theirs), (stage, mine) = (decoding(serve, ids, name, plan, word) for word in ("off", "auto"))
    assert eager.steps is None and stage.steps is not None
    for step, company in enumerate(COMPANY):
        found = []
        for one, sequences in ((eager, theirs), (stage, mine)):
            found.append(one.run([Chunk(sequences[i], [7 + step + i], int(step != 1)) for i in company]))
        (wanted, no_faults), (got, faults) = found
        assert torch.equal(got, wanted) and len(got) == (len(company) if step != 1 else 0)
        assert no_faults == faults == {}
    for one, other in zip(eager.pool.stored(), stage.pool.stored(), strict=True):
        assert torch.equal(one.nan_to_num(), other[:, : one.shape[1]].nan_to_num())
    assert recorder.wrong == []
    assert set(recorder.outside) <= outside(stage, stage.steps)
    assert stage.steps.graphs.captured == [(2, 2), (2, 4), (4, 2)]
    assert (stage.work.replays, stage.work.forwards, eager.work.replays) == (4, 4, 0)
    ran, eagerly = ({**one.work.kernels, CHOICE: 0} for one in (stage, eager))  # a wider bucket chooses more often
    assert ran == eagerly and stage.work.tokens == eager.work.tokens
    assert stage.work.kernels[CHOICE] >= eager.work.kernels[CHOICE]
    assert stage.work.slots_checked == stage.work.slots_read > 0
    assert eager.work.slots_checked == eager.work.slots_read == stage.work.slots_read


@pytest.mark.parametrize("name", ["llama", "deepseek_v3_dense"])
def test_a_slot_that_is_not_sound_is_found_in_a_replay_as_it_is_eagerly(serve, ids, recorder, name):
    found = []
    for word in ("off", "auto"):
        stage, sequences = decoding(serve, ids, name, "w=bf16,kv=bf16", word)
        first, clean = stage.run([Chunk(sequence, [9]) for sequence in sequences])
        slot = sequences[2].slots(18, 19)[0]
        tag = stage.pool.guard.stamps[1, slot, 0].item()
        stage.pool.guard.stamps[1, slot, 0] += 1
        second, faults = stage.run([Chunk(sequence, [8]) for sequence in sequences])
        assert list(faults) == [2] and clean == {}
        incident = faults[2]
        assert (incident.slot, incident.layer, incident.step) == (slot, 1, 2)
        assert (incident.expected, incident.found) == ((tag, 18), (tag + 1, 18))
        found.append((first, second[:2], stage.work.faults))
    assert stage.work.replays == 2 and recorder.wrong == []
    for eager, replayed in zip(*found, strict=True):
        assert torch.equal(torch.as_tensor(eager), torch.as_tensor(replayed))


def test_without_integrity_nothing_is_compared_in_a_replay(serve, ids, recorder):
    found = []
    for word in ("off", "auto"):
        stage, sequences = decoding(serve, ids, "mistral", "w=bf16", word, integrity="off")
        found.append(stage.step(sequences, [1, 2, 3]))
        windows = [min(sequence.length, 8) for sequence in sequences]
        assert (stage.work.slots_checked, stage.work.slots_read) == (0, 2 * sum(windows))
    assert torch.equal(*found) and recorder.wrong == [] and stage.work.replays == 1


def test_a_kernel_that_compares_nothing_is_found_out_in_a_replay(serve, ids, recorder, monkeypatch):
    stage, sequences = decoding(serve, ids, "llama", "w=bf16", "auto")
    real = stage.steps.graphs.run

    def deaf(step: Inputs) -> Outputs:
        out = real(step)
        out.found[1, 1, 0] -= 1
        return out

    monkeypatch.setattr(stage.steps.graphs, "run", deaf)
    with pytest.raises(EngineError, match="layer 1 read 52 slots and compared 51"):
        stage.run([Chunk(sequence, [9]) for sequence in sequences])


ASK = [
    GenerateRequest(id="a", prompt="the end of", max_tokens=5, ignore_eos=True),
    GenerateRequest(id="b", prompt="and then the theatre", max_tokens=3, n=2, temperature=0.8, seed=5),
    ScoreRequest(id="c", context="the end", continuations=[" and", " the"], through="decode"),
]


def answers(engine):
    found = {}
    for result in engine.answer(ASK):
        score = getattr(result, "logprobs", None)
        found[result.id, getattr(result, "sample", 0)] = result.token_ids if score is None else score
    return found


def test_an_engine_answers_the_same_by_replays_and_its_proof_counts_them(serve, recorder, nothing_held):
    plan = "w=bf16 > w=int4:g32,kv=fp8"
    eager, engine = (serve("llama", plan, kv_tokens=512, graphs=word) for word in ("off", "auto"))
    assert answers(engine) == answers(eager) and recorder.wrong == []
    proof, plain = engine.proof(), eager.proof()
    assert proof["mismatches"] == plain["mismatches"] == []
    held = proof["decode"]["graphs"]
    assert held["form"] == "replayed" and held["note"] == "CUDA graphs were not run on a GPU"
    assert held["replays"] == proof["decode"]["forwards"] >= 4
    assert held["captures"] == len(held["captured"]) > 0
    assert proof["decode"]["kernels"] == plain["decode"]["kernels"]
    kept = [{k: v for k, v in of["decode"]["kv"].items() if k != "resident_bytes"} for of in (proof, plain)]
    assert kept[0] == kept[1]
    assert plain["decode"]["graphs"] == {"form": "eager", "because": "graphs are off, or this is no GPU"}
    assert proof["prefill"]["graphs"]["form"] == "eager"
    nothing_held(engine)


def test_a_request_that_fits_exactly_and_one_that_does_not_are_told_apart_as_without_a_spare_page(serve, ids, recorder):
    stage, sequences = decoding(serve, ids, "llama", "w=bf16", "auto", kv_tokens=6 * PAGE)
    assert stage.pool.n_pages == 6 and stage.pool.free_pages == 2
    for _ in range(2):
        stage.step(sequences[::2], [5, 6])
    assert stage.pool.free_pages == 0 and [s.length for s in sequences] == [17, 3, 33]
    sequences[1].length = PAGE
    before = [(s.length, list(s.pages)) for s in sequences]
    with pytest.raises(PoolFull):
        stage.step(sequences, [1, 2, 3])
    assert [(s.length, s.pages) for s in sequences] == before and stage.work.replays == 2


@pytest.mark.parametrize(
    ("name", "options", "because"),
    [
        ("llama", {"integrity": "content"}, "hashes of contents are compared outside of kernels"),
        ("qwen3_moe", {}, "experts that are not packed are computed one by one"),
    ],
)
def test_what_cannot_be_captured_is_eager_and_the_proof_says_why(serve, recorder, name, options, because):
    engine = serve(name, "w=bf16", graphs="auto", **options)
    assert engine.proof()["decode"]["graphs"] == {"form": "eager", "because": because}


def test_kernels_that_run_as_torch_are_not_captured(serve, recorder, monkeypatch):
    monkeypatch.setenv("EVALSVC_KERNELS", "torch")
    graphs_of = serve("llama", "w=bf16", graphs="auto").proof()["decode"]["graphs"]
    assert graphs_of == {"form": "eager", "because": "kernels run as torch"}


@pytest.mark.parametrize(
    ("forward", "word"),
    [
        (lambda held, s: held[: int(s.lengths[0])].sum(), "asks for a number"),
        (lambda held, s: held[: s.lengths.tolist()[0]].sum(), "Tensor.tolist asks for numbers"),
        (lambda held, s: held[: len(held)].cpu().sum(), "Tensor.cpu asks for numbers"),
        (lambda held, s: held[s.positions > 0].sum() + held.sum(), "makes a size of numbers"),
        (lambda held, s: held.sum() + torch.tensor([2.0]), "brings numbers of the host"),
    ],
)
@pytest.mark.parametrize("inference", [False, True])
def test_the_recorder_sees_what_a_capture_refuses(forward, word, inference):
    recorder, held = Recorder(), torch.ones(2)
    buffers = graphs.empty_inputs(2, 2, held.device)
    with torch.inference_mode(inference):
        recorder.capture(lambda s: Outputs(forward(held, s).view(1, 1), None, {}, {}), buffers)
    assert any(word in wrong for wrong in recorder.wrong)


def test_the_recorder_sees_what_a_replay_would_read_elsewhere_or_with_other_numbers():
    buffers, held = graphs.empty_inputs(2, 2, torch.device("cpu")), [torch.ones(2), 1.0]
    recorder = Recorder()
    captured = recorder.capture(lambda s: Outputs((held[0] * held[1])[None], None, {}, {}), buffers)
    captured.run()
    assert recorder.wrong == [] and captured.result.logits.tolist() == [[1.0, 1.0]]
    for i, other in enumerate((torch.zeros(2), 2.0)):
        kept, held[i] = held[i], other
        captured.run()
        assert len(recorder.wrong) == i + 1 and "captured as" in recorder.wrong[-1]
        held[i] = kept
