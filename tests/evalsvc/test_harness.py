"""lm-eval's model `evalsvc` beside lm-eval's own `hf`: same numbers, same texts, same order, and what is refused."""

import json
import logging
import os
import shutil
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from evalsvc import harness
from evalsvc.engine.requests import GenerateRequest, GenerateResult, RequestFailure, ScoreRequest
from evalsvc.errors import CapabilityError, ConfigError, EngineError
from evalsvc.harness import EvalsvcLM

PLAN = "w=bf16,kv=bf16 > w=int4:g32:asym,kv=fp8"
FP32 = "w=fp32,kv=fp32"
TOLERANCE = 1e-4  # nats, of a sum over a continuation: what the project promises against lm-eval's hf in fp32
WORDS = "Wind went over the hill and the old dog slept on by the door until the sun came up. "

TASK = """\
task: tiny_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/choice.jsonl, shots: {folder}/shots.jsonl}}}}
test_split: test
fewshot_split: shots
fewshot_config: {{sampler: first_n}}
num_fewshot: 2
doc_to_text: "{{{{a}}}} plus {{{{b}}}} is"
doc_to_target: gold
output_type: multiple_choice
doc_to_choice: choices
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
metadata: {{version: 1}}
"""


@pytest.fixture(scope="module")
def hf(tiny_model):
    """lm-eval's own model over the same files, in fp32."""
    torch.set_num_threads(1)
    return HFLM(str(tiny_model), device="cpu", dtype="float32", batch_size=3)


@pytest.fixture(scope="module")
def ours(tiny_model):
    return EvalsvcLM(str(tiny_model), plan=FP32, threads=1, kv_tokens=4096, max_batch=8)


@pytest.fixture
def make(tiny_model):
    """`make(**options)`: a model of its own."""

    def build(**options):
        return EvalsvcLM(**({"pretrained": str(tiny_model), "plan": FP32, "threads": 1, "kv_tokens": 2048} | options))

    return build


def ask(kind, *arguments):
    return [Instance(kind, {}, args, i) for i, args in enumerate(arguments)]


def both(hf, ours, kind, *arguments):
    """Answers of hf and of ours, each asked with requests of its own."""
    return (getattr(lm, kind)(ask(kind, *arguments), disable_tqdm=True) for lm in (hf, ours))


def close(theirs, mine):
    assert len(theirs) == len(mine)
    assert max(abs(a - b) for a, b in zip(theirs, mine, strict=True)) < TOLERANCE
    assert len({round(value, 3) for value in mine}) > 1, "the values must differ, or their order would not be seen"


# -- log-likelihoods ---------------------------------------------------------------------------------------------------


def test_loglikelihoods_equal_hf_in_the_order_asked(hf, ours):
    """Contexts come back twice and not side by side; one ends in spaces; continuations differ in length."""
    pairs = [(WORDS[: 20 + 7 * i], WORDS[20 + 7 * i : 24 + 9 * i]) for i in range(6)]
    pairs += [(WORDS[:27], " other"), ("The end  ", "of it"), (WORDS[:34], WORDS[34:36]), (WORDS[:27], "x")]
    theirs, mine = both(hf, ours, "loglikelihood", *pairs)
    close([value for value, _ in theirs], [value for value, _ in mine])
    assert [flag for _, flag in theirs] == [flag for _, flag in mine]


def test_a_greedy_continuation_is_known_as_one(hf, ours):
    """Of all one-letter continuations at most one is the likeliest token; of 30 contexts some have one."""
    pairs = [(WORDS[:n], chr(letter)) for n in range(10, 40) if WORDS[n - 1] != " " for letter in range(33, 127)]
    theirs, mine = both(hf, ours, "loglikelihood", *pairs)
    assert [flag for _, flag in theirs] == [flag for _, flag in mine]
    assert 0 < sum(flag for _, flag in mine) < 30


def test_without_context_the_text_stands_after_the_prefix_token(hf, ours):
    theirs, mine = both(hf, ours, "loglikelihood", ("", "Wind went"), ("", "<bos>Wind went"), ("", "Another"))
    close([value for value, _ in theirs], [value for value, _ in mine])
    assert mine[0] == mine[1]


def test_a_text_cut_at_two_places_is_scored_at_each(hf, ours, monkeypatch):
    """hf's cache of logits would read the rows of the longer continuation for the shorter one, so it is off."""
    monkeypatch.setattr(hf, "logits_cache", False)
    theirs, mine = both(hf, ours, "loglikelihood", ("Wind", " went"), ("Wind we", "nt"), ("<bos>Wind", " went"))
    close([value for value, _ in theirs], [value for value, _ in mine])


def test_too_long_contexts_lose_their_beginning_as_in_hf(hf, ours, caplog):
    """256 positions: 254 + 2, 255 + 2 (all still inputs), 256 + 2 and more, where the window begins to move."""
    long = (WORDS * 5)[:400]
    pairs = [(long[:n], long[n : n + 2]) for n in (254, 255, 256, 300)] + [(long[:300], long[300:340])]
    with caplog.at_level(logging.WARNING, logger="evalsvc.harness"):
        theirs, mine = both(hf, ours, "loglikelihood", *pairs)
    close([value for value, _ in theirs], [value for value, _ in mine])
    cut = [record.args for record in caplog.records if record.name == "evalsvc.harness"]
    assert [(c, k, gone) for c, k, _, gone in cut] == [(256, 2, 1), (300, 2, 45), (300, 40, 83)]


def test_contexts_are_computed_once_for_all_their_continuations(make, monkeypatch):
    lm, seen = make(), []
    answer = lm.engine.answer
    monkeypatch.setattr(
        lm.engine, "answer", lambda requests, *a, **k: answer(seen.extend(requests) or requests, *a, **k)
    )
    pairs = [(context, f" {letter}") for letter in "ABCD" for context in ("One:", "Two:")]
    lm.loglikelihood(ask("loglikelihood", *pairs), disable_tqdm=True)
    assert [len(request.continuations) for request in seen] == [4, 4]


def test_a_continuation_without_tokens_is_refused(ours):
    with pytest.raises(EngineError, match="no token of its own"):
        ours.loglikelihood(ask("loglikelihood", ("", "<bos>")), disable_tqdm=True)


def test_a_continuation_longer_than_the_model_is_refused(ours):
    with pytest.raises(EngineError, match="exceeds the 256 served"):
        ours.loglikelihood(ask("loglikelihood", ("a", "b" * 257)), disable_tqdm=True)


@pytest.mark.parametrize("length", [1, 255, 256, 257, 600])
def test_rolling_equals_hf(hf, ours, length):
    texts = [((WORDS * 9)[:length],), (WORDS[3:40],)]
    close(*both(hf, ours, "loglikelihood_rolling", *texts))


def test_max_length_moves_windows_as_in_hf(hf, make, monkeypatch):
    monkeypatch.setattr(hf, "_max_length", 40)
    lm = make(max_length=40)
    close(*both(hf, lm, "loglikelihood_rolling", (WORDS,), (WORDS[:30],)))
    theirs, mine = both(hf, lm, "loglikelihood", (WORDS[:60], WORDS[60:70]), (WORDS[:30], WORDS[30:34]))
    close([value for value, _ in theirs], [value for value, _ in mine])


def test_through_decode_sees_decode_formats_and_prefill_does_not(make):
    pairs = [(WORDS[:40], " A"), (WORDS[:40], " B"), (WORDS[:60], " C")]
    values = {
        (plan, through): make(plan=plan, through=through).loglikelihood(ask("loglikelihood", *pairs), disable_tqdm=True)
        for plan in ("w=bf16,kv=bf16", PLAN)
        for through in ("prefill", "decode")
    }
    assert values["w=bf16,kv=bf16", "prefill"] == values[PLAN, "prefill"]
    assert values["w=bf16,kv=bf16", "decode"] != values[PLAN, "decode"]


@pytest.fixture(scope="module")
def with_bos(tiny_model, tmp_path_factory):
    """The same model with a tokenizer that begins every text with BOS."""
    folder = tmp_path_factory.mktemp("bos") / "model"
    shutil.copytree(tiny_model, folder)
    path = folder / "tokenizer.json"
    core = Tokenizer.from_file(str(path))
    core.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 0)])  # pyright: ignore
    core.save(str(path))
    return folder


@pytest.mark.parametrize(
    ("options", "begun"),
    [
        ({}, {"1": 6}),
        ({"add_bos_token": False}, {"0": 4, "1": 2}),
        ({"add_bos_token": True}, {"1": 6}),
        ({"prefix_token_id": 5}, {"0": 1, "1": 4, "2": 1}),
    ],
)
def test_lm07_bos_and_prefix_stand_where_hf_puts_them_and_are_counted(with_bos, options, begun):
    """As in hf, a prefix of one's own hides that a text spells the token already."""
    hf = HFLM(str(with_bos), device="cpu", dtype="float32", batch_size=3, **options)
    lm = EvalsvcLM(str(with_bos), plan=FP32, threads=1, kv_tokens=2048, **options)
    assert lm.tok_encode("ab")[0] == (0 if options.get("add_bos_token", True) else lm.tokenizer.encode("ab")[1])
    pairs = [("Wind", " went"), ("", "Wind"), ("<bos>Wind", " went"), (WORDS, "and")]
    theirs, mine = both(hf, lm, "loglikelihood", *pairs)
    close([value for value, _ in theirs], [value for value, _ in mine])
    close(*both(hf, lm, "loglikelihood_rolling", (WORDS,), (WORDS * 4,)))
    asked = [(text, {"until": [], "max_gen_toks": 9}) for text in (WORDS, WORDS[:20])]
    theirs, mine = both(hf, lm, "generate_until", *asked)
    assert theirs == mine and mine[0] != mine[1]
    assert lm.get_model_info()["bos_at_start"] == begun


# -- generation --------------------------------------------------------------------------------------------------------


def test_generated_texts_equal_hf(hf, ours):
    asked = [
        (WORDS, {"until": [], "max_gen_toks": 12}),
        (WORDS[:30], {"until": ["\n"], "max_new_tokens": 20, "do_sample": False, "temperature": 0.0}),
        ("<bos>" + WORDS[:20], {"until": [], "max_gen_toks": 5}),
        (WORDS[10:], {"max_gen_toks": 12, "num_beams": 1, "bad_words_ids": None}),
    ]
    theirs, mine = both(hf, ours, "generate_until", *asked)
    assert theirs == mine
    assert len(set(mine)) == 4 and all(mine)


def test_stop_strings_cut_as_in_hf(hf, ours):
    """Stop strings are taken from what the model writes, at the start, inside, and across tokens."""
    (whole, _) = both(hf, ours, "generate_until", (WORDS, {"until": [], "max_gen_toks": 24}))
    text = whole[0]
    stops = [[text[4:7]], [text[9]], [text[0]], ["not there"], text[12:14], [text[15:18], text[6:8]]]
    theirs, mine = both(hf, ours, "generate_until", *((WORDS, {"until": s, "max_gen_toks": 24}) for s in stops))
    assert theirs == mine
    assert mine[0] == text.split(text[4:7])[0] and mine[2] == "" and mine[3] == text


def test_too_long_prompts_lose_their_beginning_as_in_hf(hf, ours, caplog):
    asked = [((WORDS * 5)[:n], {"until": [], "max_gen_toks": 6}) for n in (250, 251, 400)]
    with caplog.at_level(logging.WARNING, logger="evalsvc.harness"):
        theirs, mine = both(hf, ours, "generate_until", *asked)
    assert theirs == mine
    assert [record.args for record in caplog.records if record.name == "evalsvc.harness"] == [(251, 250), (400, 250)]


def test_the_limit_of_the_model_holds_where_the_task_names_none(make):
    lm = make(max_gen_toks=7)
    asked = [(WORDS, {"until": []} | named) for named in ({}, {"max_gen_toks": 7}, {"max_gen_toks": 8})]
    unnamed, seven, eight = lm.generate_until(ask("generate_until", *asked), disable_tqdm=True)
    assert unnamed == seven != eight


def test_an_answer_begins_after_the_thinking(make):
    plain = make().generate_until(ask("generate_until", (WORDS, {"until": [], "max_gen_toks": 20})), disable_tqdm=True)
    mark = plain[0][5:7]
    found = make(think_end_token=mark).generate_until(
        ask("generate_until", (WORDS, {"until": [], "max_gen_toks": 20})), disable_tqdm=True
    )
    assert found == [plain[0].split(mark)[-1].lstrip()]


def test_special_tokens_are_no_text(make, monkeypatch):
    """BOS inside an answer is left out, as hf leaves it out; EOS ends it."""
    lm = make()
    ids = lm.tokenizer.encode("a<bos>b<eos>")
    assert {lm.tokenizer.bos_token_id, lm.tokenizer.eos_token_id} < set(ids)

    def answer(requests):
        yield GenerateResult(
            id=requests[0].id,
            text="",
            token_ids=tuple(ids),
            prompt_tokens=1,
            prompt_sha256="",
            finish_reason="stop",
            stage_tokens={"prefill": 1, "decode": len(ids) - 1},
        )

    monkeypatch.setattr(lm.engine, "answer", answer)
    assert lm.generate_until(ask("generate_until", ("x", {"max_gen_toks": 9})), disable_tqdm=True) == ["ab"]


def made_request(lm, monkeypatch, **arguments):
    """The engine's requests for these generation arguments, asked twice."""
    seen, arguments = [], {"max_gen_toks": 9} | arguments
    monkeypatch.setattr(lm.engine, "answer", lambda requests: seen.extend(requests) or iter(()))
    with pytest.raises(KeyError):  # no answer, which is not looked at here
        lm.generate_until(ask("generate_until", ("Once", arguments), ("Once", arguments)), disable_tqdm=True)
    return seen


def test_sampling_arguments_reach_the_engine(make, monkeypatch):
    first, second = made_request(
        make(), monkeypatch, until=["."], do_sample=True, temperature=0.7, top_p=0.9, top_k=5, min_p=0.1
    )
    assert isinstance(first, GenerateRequest)
    assert (first.temperature, first.top_p, first.top_k, first.min_p) == (0.7, 0.9, 5, 0.1)
    assert (first.max_tokens, tuple(first.stop)) == (9, (".",))
    assert first.seed != second.seed, "the same question asked twice is drawn twice"


def test_seeds_come_from_the_option_and_nothing_else(make, monkeypatch):
    drawn = {"until": [], "temperature": 1.0}
    seeds = [[r.seed for r in made_request(make(seed=s), monkeypatch, **drawn)] for s in (1, 1, 2)]
    assert seeds[0] == seeds[1] and not set(seeds[0]) & set(seeds[2])


def test_greedy_arguments_leave_no_sampling(make, monkeypatch):
    first, _ = made_request(make(), monkeypatch, until=[], do_sample=False, temperature=0.9, top_p=0.5)
    assert (first.temperature, first.top_p) == (0.0, 1.0)


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"num_beams": 4}, CapabilityError, "num_beams: 4"),
        ({"bad_words_ids": [[3]]}, CapabilityError, "bad_words_ids"),
        ({"until": [""]}, ConfigError, "until"),
        ({"until": [3]}, ConfigError, "until"),
        ({"do_sample": True}, ConfigError, "temperature above 0"),
        ({"max_gen_toks": 256}, ConfigError, "leaves no prompt"),
        ({"max_gen_toks": 0}, ConfigError, "max_gen_toks: 0"),
    ],
)
def test_generation_arguments_that_are_not_served_are_named(ours, arguments, error, message):
    with pytest.raises(error, match=message):
        ours.generate_until(
            ask("generate_until", ("Once", {"until": [], "max_gen_toks": 4} | arguments)), disable_tqdm=True
        )


# -- failures, chat, options -------------------------------------------------------------------------------------------


def test_a_request_without_an_answer_is_an_error_and_no_score(make):
    lm = make(kv_tokens=64)
    with pytest.raises(EngineError, match=r"got no answer.*raise kv_tokens"):
        lm.loglikelihood(ask("loglikelihood", ("short", " a"), (WORDS + WORDS, " b")), disable_tqdm=True)


def test_failures_of_any_kind_are_told_with_kind_and_size(make, monkeypatch):
    lm = make()

    def answer(requests):
        assert isinstance(requests[0], ScoreRequest)
        yield RequestFailure(id=requests[0].id, error="non_finite_logits", message="the model gave NaN")

    monkeypatch.setattr(lm.engine, "answer", answer)
    with pytest.raises(EngineError, match=r"7 tokens.*non_finite_logits: the model gave NaN"):
        lm.loglikelihood(ask("loglikelihood", ("short", " a")), disable_tqdm=True)


def test_chats_are_written_by_the_models_template(make, caplog):
    lm = make(enable_thinking=False)
    lm.tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "[{{ m.role }}]{{ m.content }}|{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% if enable_thinking is false %}-{% endif %}{% endif %}"
    )
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert lm.apply_chat_template(turns[1:]) == "[user]Hi|[assistant]-"
    assert lm.apply_chat_template(turns) == "[user]Hi|[assistant]-"
    assert lm.apply_chat_template(turns[1:], add_generation_prompt=False) == "[user]Hi", "the last turn goes on"
    assert "without its system turns" in caplog.text
    assert lm.chat_template(True) == lm.tokenizer.chat_template


def test_the_name_of_the_tokenizer_tells_tokenizers_apart(make, monkeypatch):
    lm = make()
    before = lm.tokenizer_name
    assert "/" not in before
    monkeypatch.setitem(lm.engine.hashes, "tokenizer", "another")
    assert lm.tokenizer_name != before


def test_a_plan_torn_apart_by_others_is_refused_with_the_remedy():
    with pytest.raises(ConfigError, match="as a mapping"):
        EvalsvcLM.create_from_arg_obj({"pretrained": "m", "plan": "w=bf16", "kv": "fp8"})


@pytest.mark.parametrize(
    "options, message",
    [
        ({"through": "both"}, "prefill or decode"),
        ({"threads": 0}, "threads=0"),
        ({"max_length": "many"}, "max_length='many'"),
        ({"kv_tokens": True}, "kv_tokens=True"),
    ],
)
def test_values_that_cannot_be_used_are_named(tiny_model, options, message):
    with pytest.raises(ConfigError, match=message):
        EvalsvcLM.create_from_arg_obj({"pretrained": str(tiny_model), "plan": FP32, **options})


def test_limits_and_threads_reach_the_engine(make, caplog):
    assert make(max_batch_size=3).engine._loop.scheduler.max_batch == 3
    assert make(max_batch=2, max_batch_size=3, batch_size=8).engine._loop.scheduler.max_batch == 2
    assert "batch_size=8 is not read" in caplog.text
    try:
        assert make(threads=2) and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_lm19_a_cache_of_answers_belongs_to_one_model_and_plan(make, tmp_path):
    """lm-eval's cache knows requests and no models: bf16's answers would become int4's."""
    from lm_eval.api.model import CachingLM

    asked = [(WORDS[: 20 + n], {"until": [], "max_gen_toks": 4}) for n in range(3)]
    path, other = (str(tmp_path / name) for name in ("shared.db", "other.db"))

    def answers(lm, where):
        computed = []
        answer = lm.engine.answer
        lm.engine.answer = lambda requests: answer(computed.extend(requests) or requests)
        cached = CachingLM(lm, where)
        try:
            return cached.generate_until(ask("generate_until", *asked)), len(computed)
        finally:
            cached.dbdict.close()

    first = answers(make(), path)
    assert first[1] == 3 and answers(make(), path) == (first[0], 0)
    for options in ({"plan": PLAN}, {"max_length": 64}, {"max_gen_toks": 9}, {"add_bos_token": True}):
        with pytest.raises(ConfigError, match=r"shared\.db holds answers of another model, plan or option"):
            answers(make(**options), path)
    assert answers(make(plan=PLAN), other)[1] == 3
    foreign = CachingLM(SimpleNamespace(set_cache_hook=lambda hook: None), str(tmp_path / "old.db"))
    foreign.dbdict["a"] = "b"
    foreign.dbdict.close()
    with pytest.raises(ConfigError, match="a model that nobody wrote down"):
        answers(make(), str(tmp_path / "old.db"))


def test_answers_are_kept_in_lm_evals_cache_one_by_one(make):
    """Windows of a rolling text are not, which no request asks for by itself."""
    lm, kept = make(), []
    lm.set_cache_hook(SimpleNamespace(add_partial=lambda *entry: kept.append(entry)))
    scores = lm.loglikelihood(ask("loglikelihood", ("One", " a"), ("One", " b")), disable_tqdm=True)
    whole = lm.loglikelihood_rolling(ask("loglikelihood_rolling", (WORDS * 5,)), disable_tqdm=True)
    arguments = {"until": [], "max_gen_toks": 3}
    texts = lm.generate_until(ask("generate_until", ("One", arguments)), disable_tqdm=True)
    assert kept == [
        ("loglikelihood", ("One", " a"), scores[0]),
        ("loglikelihood", ("One", " b"), scores[1]),
        ("loglikelihood_rolling", (WORDS * 5,), whole[0]),
        ("generate_until", ("One", arguments), texts[0]),
    ]


def test_a_model_must_be_named():
    with pytest.raises(ConfigError, match="pretrained=DIRECTORY"):
        EvalsvcLM.create_from_arg_string("threads=1")


def test_lm_eval_knows_the_model_and_still_its_own():
    harness.register()
    assert get_model("evalsvc") is EvalsvcLM
    assert get_model("hf") is HFLM


@pytest.mark.parametrize("model_args, word", [("pretrained=m,batch=3", "batch"), ("pretrained=m,plan=w=bf17", "bf17")])
def test_a_mistake_is_one_sentence_on_the_command_line(monkeypatch, capsys, model_args, word):
    """lm-eval's own part is left out here: it ends in making the model."""
    monkeypatch.setattr(sys, "argv", ["harness", "run", "--model", "evalsvc", "--model_args", model_args])
    made = partial(EvalsvcLM.create_from_arg_string, model_args)
    monkeypatch.setattr("lm_eval.__main__.cli_evaluate", made)
    with pytest.raises(SystemExit) as stopped:
        harness.main()
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and word in line


@pytest.mark.parametrize(
    "more, said",
    [
        (["--tasks", "adddition"], "--tasks: lm-eval knows no adddition; `python -m evalsvc.harness ls tasks` lists"),
        (["--tasks", "addition", "--config", "none.yaml"], "none.yaml"),
    ],
)
def test_what_lm_eval_cannot_be_asked_is_one_sentence(monkeypatch, capsys, tmp_path, more, said):
    """Through lm-eval's own part, which reads no task of its own here, for its index takes seconds."""
    from lm_eval.tasks import TaskManager

    monkeypatch.setattr("lm_eval.tasks.TaskManager", partial(TaskManager, include_defaults=False))
    monkeypatch.setattr("lm_eval.__main__.setup_logging", lambda: None)
    monkeypatch.chdir(tmp_path)
    given = ["harness", "run", "--model", "evalsvc", "--model_args", f"pretrained={tmp_path}", *more]
    monkeypatch.setattr(sys, "argv", given)
    with pytest.raises(SystemExit) as stopped:
        harness.main()
    assert stopped.value.code == 2
    assert [line for line in capsys.readouterr().err.splitlines() if said in line and line.startswith("error: ")]


# -- whole runs --------------------------------------------------------------------------------------------------------


@pytest.fixture
def task(tmp_path):
    """Folder of a task in lm-eval's form, with its data."""
    sums = [{"a": a, "b": a + 2, "choices": [str(2 * a + k) for k in range(1, 5)], "gold": a % 4} for a in range(9)]
    for name, rows in (("choice", sums[:7]), ("shots", sums[7:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "choice.yaml").write_text(TASK.format(folder=tmp_path))
    return tmp_path


def test_a_task_ends_with_hfs_scores(hf, ours, task, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(task))
    manager = TaskManager(include_path=str(task), include_defaults=False)
    found = [
        simple_evaluate(model=lm, tasks=["tiny_choice"], task_manager=manager, bootstrap_iters=0) for lm in (hf, ours)
    ]
    theirs, mine = ([sample["filtered_resps"] for sample in f["samples"]["tiny_choice"]] for f in found)
    close([v for doc in theirs for v, _ in doc], [v for doc in mine for v, _ in doc])
    assert found[0]["results"]["tiny_choice"]["acc,none"] == found[1]["results"]["tiny_choice"]["acc,none"]
    assert found[1]["config"]["plan"] == ours.engine.arm().spec.plan.__str__()
    assert found[1]["config"]["proof"]["mismatches"] == []
    json.dumps(found[1]["config"]["proof"])


def test_scores_of_another_plan_than_asked_are_not_given_out(make, monkeypatch):
    lm = make()
    monkeypatch.setattr(lm.engine, "proof", lambda: {"mismatches": ["decode: KV is held as float32"]})
    with pytest.raises(EngineError, match="was not served: decode: KV is held as float32"):
        lm.get_model_info()


@pytest.mark.slow
def test_a_local_task_runs_through_lm_evals_command_line(tiny_model, task):
    model_args = f"pretrained={tiny_model},plan={PLAN},through=decode,kv_tokens=2048"
    command = [sys.executable, "-m", "evalsvc.harness", "run", "--model", "evalsvc", "--model_args", model_args]
    command += ["--tasks", "tiny_choice", "--include_path", str(task), "--output_path", str(task / "out")]
    environment = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    environment |= {"HOME": str(task), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    (path,) = (task / "out").rglob("results_*.json")
    written = json.loads(path.read_text())
    assert written["results"]["tiny_choice"]["sample_len"] == 7
    assert written["config"]["score_through"] == "decode"
    assert written["config"]["proof"]["decode"]["kernels"]
    assert "int4:g32:asym" in written["config"]["plan"] and "|tiny_choice|" in done.stdout
