"""The program in docs/evidence.md that asks an endpoint: its answers can be imported as they are."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from evalsvc.recorded.load import Sources, load

PAGE = (Path(__file__).parents[3] / "docs" / "evidence.md").read_text(encoding="utf-8")
WEATHER = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}


class Endpoint(BaseHTTPRequestHandler):
    """Calls the tool it is offered with the question's last word; has an outage for Oslo, and words without a tool."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        city = asked["messages"][-1]["content"].split()[-1]
        if self.path != "/v1/chat/completions" or city == "Oslo":
            return self.send_error(503)
        call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": json.dumps({"city": city})}}
        named = [tool["function"]["name"] for tool in asked.get("tools", [])] == ["weather"]
        message = {"content": None, "tool_calls": [call]} if named else {"content": '{"a": 1}'}
        choice = {"message": message, "finish_reason": "tool_calls" if named else "stop"}
        body = json.dumps({"choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def called(city: str) -> dict[str, Any]:
    call = {"name": "weather", "arguments": {"city": city}}
    return {"tools": [WEATHER], "expect": {"calls": [call]}}


@pytest.mark.parametrize(
    ("cases", "right"),
    [
        ([("Rome", called("Rome")), ("Bonn", called("Ulm")), ("Oslo", called("Oslo"))], [1.0, 0.0, None]),
        ([("JSON", {"check": {"json_equals": {"a": 1}}}), ("Oslo", {"check": {"json_equals": {}}})], [1.0, None]),
    ],
)
def test_calls_and_texts_are_scored_and_an_outage_is_no_wrong_answer(tmp_path, url, cases, right):
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    (tmp_path / "ask.py").write_text(program)
    lines = [
        {"id": f"i{n}", "messages": [{"role": "user", "content": word}], **rest} for n, (word, rest) in enumerate(cases)
    ]
    (tmp_path / "cases.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for arm in ("a", "b"):
        arguments = [sys.executable, "ask.py", url, "m", "cases.jsonl", f"{arm}.jsonl"]
        subprocess.run(arguments, cwd=tmp_path, check=True, timeout=60)
    files = {arm: [tmp_path / f"{arm}.jsonl"] for arm in ("a", "b")}
    found = load(Sources(name="n", baseline="a", arms=files, plans={}, cases=tmp_path / "cases.jsonl"))
    for arm in found.arms:
        scores = [[score.value for score in sample.scores if score.metric == sample.metric] for sample in arm.samples]
        assert [found[0] if found else None for found in scores] == right
