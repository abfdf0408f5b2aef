"""The two jobs as lm-eval tasks over local files, and lm-eval asked to run them with either model.

The task files are written when they are needed; documents, prompts and few-shot examples are lm-eval's own doing, so
both models are asked the same.
"""

import csv
import json
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager

from evalsvc.errors import ConfigError

from .common import Settings, Spent, clocked, spread

CHOICES = "bench_choices"
GENERATION = "bench_generation"
LETTERS = ("A", "B", "C", "D")
NEW_TOKENS = 96
GENERATED_ITEMS = 64

CHOICES_YAML = """\
task: {name}
dataset_path: csv
dataset_kwargs: {{data_files: {{test: {test}, dev: {dev}}}, cache_dir: {cache}}}
test_split: test
fewshot_split: dev
fewshot_config: {{sampler: first_n}}
num_fewshot: 5
description: "The following are multiple choice questions (with answers) about astronomy.\\n\\n"
doc_to_text: |-
  {{{{question}}}}
  A. {{{{choice0}}}}
  B. {{{{choice1}}}}
  C. {{{{choice2}}}}
  D. {{{{choice3}}}}
  Answer:
doc_to_choice: ["A", "B", "C", "D"]
doc_to_target: answer
output_type: multiple_choice
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
metadata: {{version: 1}}
"""
GENERATION_YAML = """\
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {test}, train: {dev}}}, cache_dir: {cache}}}
test_split: test
fewshot_split: train
fewshot_config: {{sampler: first_n}}
num_fewshot: 5
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_target: "{{{{answer}}}}"
output_type: generate_until
generation_kwargs: {{until: {until}, max_gen_toks: {tokens}, do_sample: false}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
metadata: {{version: 1}}
"""


@dataclass
class Asked:
    """One model's answers to some documents of a task.

    Attributes:
        spent: Inside the model's own method, from requests to answers; loading and rendering are left out.
        requests: In lm-eval's order.
        answers: In the same order.
    """

    spent: Spent
    requests: list[Instance]
    answers: list[Any]

    def by_document(self) -> dict[int, list[Any]]:
        """Answers of each document, in the order of its requests."""
        found: dict[int, list[Any]] = {}
        for request, answer in zip(self.requests, self.answers, strict=True):
            assert request.doc_id is not None
            found.setdefault(request.doc_id, []).append(answer)
        return found


@dataclass
class Listener:
    """Stands before one of a model's methods, and keeps what it is asked and what it took."""

    method: Any
    heard: list[Asked] = field(default_factory=list)

    def __call__(self, requests: list[Instance], disable_tqdm: bool = True) -> list[Any]:
        spent, answers = clocked(lambda: self.method(requests, disable_tqdm=True))
        self.heard.append(Asked(spent, list(requests), list(answers)))
        return answers


def _files(settings: Settings, folder: str, *names: str) -> list[Path]:
    paths = [settings.data / folder / name for name in names]
    for path in paths:
        if not path.is_file():
            raise ConfigError(f"{path} is not there: name the folder of the data sets with --data")
    return paths


def choices(settings: Settings) -> list[int]:
    """Writes the multiple-choice task and returns its documents' numbers: a whole subject of MMLU, 5 shots."""
    test, dev = _files(settings, "mmlu", "astronomy_test.csv", "astronomy_dev.csv")
    _write(settings, CHOICES, CHOICES_YAML.format(name=CHOICES, test=test, dev=dev, cache=settings.work / "cache"))
    with test.open(encoding="utf-8", newline="") as rows:
        return list(range(sum(1 for _ in csv.DictReader(rows))))


def generation(settings: Settings, until: list[str]) -> list[int]:
    """Writes the generation task, in the form of GSM8K with 5 shots, and returns the numbers of its documents."""
    test, dev = _files(settings, "gsm8k", "test.jsonl", "train_first16.jsonl")
    text = GENERATION_YAML.format(
        name=GENERATION,
        test=test,
        dev=dev,
        cache=settings.work / "cache",
        until=json.dumps(until),
        tokens=NEW_TOKENS,
    )
    _write(settings, GENERATION, text)
    return list(range(GENERATED_ITEMS))


def _write(settings: Settings, name: str, text: str) -> None:
    folder = settings.work / "tasks"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.yaml").write_text(text, encoding="utf-8")


def ask(settings: Settings, lm: Any, task: str, documents: list[int]) -> Asked:
    """Lets lm-eval ask a model some documents of a task."""
    method = "loglikelihood" if task == CHOICES else "generate_until"
    listener = Listener(getattr(lm, method))
    setattr(lm, method, listener)
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    evaluate: Any = simple_evaluate  # lm-eval's decorator hides what it takes
    try:
        evaluate(
            model=lm,
            tasks=[task],
            samples={task: documents},
            task_manager=TaskManager(include_path=str(settings.work / "tasks"), include_defaults=False),
            bootstrap_iters=0,
            log_samples=False,
        )
    finally:
        delattr(lm, method)
    (asked,) = listener.heard
    return asked


def hf(settings: Settings, dtype: str, batch: int, model: Any = None) -> Any:
    """lm-eval's own model over the same files; `model`, one that is loaded already, is shared."""
    from lm_eval.models import huggingface

    made: Any = huggingface.HFLM  # lm-eval's decorator hides what it takes
    if model is None:
        device = "cpu" if settings.device == "auto" else settings.device
        return made(str(settings.model), device=device, dtype=dtype, batch_size=batch)
    return made(model.model, tokenizer=model.tokenizer, batch_size=batch)


def ours(settings: Settings, plan: str, **options: Any) -> Any:
    """The engine behind lm-eval."""
    from evalsvc.harness import EvalsvcLM

    given = {"kv_tokens": 32768, "device": settings.device} | options
    return EvalsvcLM(str(settings.model), plan=plan, threads=settings.threads, **given)


def same_questions(first: Asked, second: Asked) -> None:
    """Both were asked the same, to the letter.

    Raises:
        AssertionError: They were not.
    """
    assert [(r.doc_id, r.args) for r in first.requests] == [(r.doc_id, r.args) for r in second.requests]


def hf_documents(settings: Settings, documents: list[int], usual: int, quick: int) -> list[int]:
    """The documents that lm-eval's hf is asked: spread over all, so that they are as long as all are."""
    return [documents[i] for i in spread(settings.count(usual, quick, len(documents)), len(documents))]
