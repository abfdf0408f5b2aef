"""Small files as others write them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DATE = "2026-11-30T01-15-25.614686"


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str | bytes], Path]:
    """`write(name, content)`: a file in the test's folder, byte for byte."""

    def call(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return call


def chosen_row(doc_id: int, logprobs: list[float], gold: int, **changes: Any) -> dict[str, Any]:
    """A multiple-choice row in lm-eval's form."""
    prompt = changes.pop("prompt", f"What is {doc_id}?")
    best = max(range(len(logprobs)), key=logprobs.__getitem__)
    return {
        "doc_id": doc_id,
        "doc": {"n": doc_id},
        "target": str(gold),
        "arguments": {f"gen_args_{k}": {"arg_0": prompt, "arg_1": f" {k}"} for k in range(len(logprobs))},
        "resps": [[[str(value), "False"]] for value in logprobs],
        "filtered_resps": [[str(value), "False"] for value in logprobs],
        "filter": "none",
        "metrics": ["acc", "acc_norm"],
        "doc_hash": f"d{doc_id}",
        "prompt_hash": f"p{prompt}",
        "target_hash": f"t{gold}",
        "acc": float(best == gold),
        "acc_norm": 1.0,
    } | changes


def written_row(doc_id: int, text: str, right: float, filter_: str = "strict", **changes: Any) -> dict[str, Any]:
    """A generated row in lm-eval's form."""
    settings = {"until": ["\n"], "max_gen_toks": 64, "do_sample": False}
    return {
        "doc_id": doc_id,
        "doc": {"n": doc_id},
        "target": "4",
        "arguments": {"gen_args_0": {"arg_0": f"Q{doc_id}", "arg_1": settings}},
        "resps": [[text]],
        "filtered_resps": [text],
        "filter": filter_,
        "metrics": ["exact_match"],
        "doc_hash": f"d{doc_id}",
        "prompt_hash": f"p{doc_id}",
        "target_hash": "t4",
        "exact_match": right,
    } | changes


@pytest.fixture
def samples_file(write) -> Callable[..., Path]:
    """`samples_file(folder, task, rows, date=...)`: a file under the name that lm-eval gives it."""

    def call(folder: str, task: str, rows: list[dict[str, Any]], date: str = DATE) -> Path:
        return write(f"{folder}/samples_{task}_{date}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))

    return call
