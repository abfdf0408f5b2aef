"""`evalsvc bench-serve`: tables with their device, JSON, what is typed wrongly, and `show`."""

import json

import pytest

from evalsvc.cli.bench_report import _value
from evalsvc.serving.figures import Estimate

GRID = ("--prompt-tokens", "16", "--concurrency", "1,2,max", "--new-tokens", "3", "--repeats", "2", "--most", "3")


@pytest.fixture
def bench(evalsvc, tiny_model, tmp_path):
    db = tmp_path / "runs.sqlite"

    def call(*arguments):
        plans = ("--plan", "plain=w=bf16", "--plan", "kv=bf16 > kv=fp8")
        return evalsvc("bench-serve", "--model", tiny_model, *plans, "--db", db, *GRID, *arguments)

    return call


def test_each_number_has_its_table_and_every_title_its_device(bench):
    code, out, err = bench("--price-per-hour", "2")
    titles = [line for line in out.splitlines() if line[:2] in ("1.", "2.", "3.", "4.")]
    assert code == 0 and len(titles) == 4 and all("(cpu:" in title for title in titles)
    said = " ".join(out.split())
    assert "on a CPU quantized formats are decoded to bf16" in said and "closed loop" in said
    assert "Student's t over 2 repeats" in said and "max 2" in said and "max 3" in said
    assert "plain: repeat 1 of 2, 2 cells" in err
    assert bench("--price-per-hour", "2") == (0, out, ""), "again: printed from what is stored"


@pytest.mark.parametrize(
    ("estimate", "factor", "says"),
    [
        (Estimate(0.113, -0.17, 0.396, 2), 1000.0, "113 ±283"),
        (Estimate(33.44, -16.0, 83.1, 2), 1.0, "33.4 ±50"),
        (Estimate(1234.0, 1000.0, 1234.5, 2), 1.0, "1,234 ±0.5"),
        (Estimate(0.9996, None, None, 1), 1000.0, "1,000"),
        (None, 1.0, None),
    ],
)
def test_a_figure_is_written_out_beside_half_of_its_interval(estimate, factor, says):
    assert _value(estimate, factor) == says


def test_json_holds_figures_device_and_settings(bench):
    code, out, _ = bench("--json")
    document = json.loads(out)
    assert code == 0 and document["schema"] == "evalsvc.bench-serve/1"
    assert {cell["device"][:4] for cell in document["cells"]} == {"cpu:"}
    assert document["cells"][0]["cost_per_million_tokens"] is None and document["price_per_hour"] is None
    assert document["settings"]["loop"] == "closed" and document["settings"]["repeats"] == 2
    decode = document["capacity"][1]["stages"]["decode"]
    assert decode["kv_bytes_per_token"] == 288 and decode["requests"]["16"] == 3


def test_integrity_is_part_of_what_is_measured(bench):
    """Its cost is in the figures, so arms under another mode are other arms."""
    rows = {
        mode: json.loads(bench("--json", *mode)[1]) for mode in ((), ("--integrity", "tags"), ("--integrity", "off"))
    }
    prints = [{cell["fingerprint"] for cell in document["cells"]} for document in rows.values()]
    assert prints[0] == prints[1] and not prints[0] & prints[2]


def test_no_price_no_cost(bench):
    _, out, _ = bench()
    assert "no price was given (--price-per-hour)" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "give either an experiment FILE, or --model"),
        (("x.yaml", "--model", "m"), "give either an experiment FILE, or --model"),
        (("--model", "m"), "--model needs a --plan or more"),
        (("--model", "m", "--plan", "w=fp7"), "unknown weights format"),
        (("x.yaml", "--plan", "w=bf16"), "--plan, --threads and --integrity belong to --model"),
        (("x.yaml", "--integrity", "off"), "--plan, --threads and --integrity belong to --model"),
        (("--model", "m", "--plan", "w=bf16", "--integrity", "all"), "'all' is not one of"),
        (("x.yaml", "--concurrency", "0"), "--concurrency '0'"),
        (("x.yaml", "--memory", "0"), "--memory 0: must be a number above 0"),
        (("x.yaml", "--price-per-hour", "-1"), "--price-per-hour -1"),
    ],
)
def test_what_is_typed_wrongly_is_said_in_a_sentence(evalsvc, tmp_path, arguments, says):
    code, out, err = evalsvc("bench-serve", *arguments, "--db", tmp_path / "runs.sqlite")
    assert (code, out) == (2, "") and says in err
    assert not (tmp_path / "runs.sqlite").exists()


def test_an_experiments_arms_are_measured_and_shown_beside_their_run(evalsvc, evalsvc_json, write_experiment, tmp_path):
    arms = {name: {"plan": plan} for name, plan in {"bf16": "w=bf16", "int4": "w=int4:g32"}.items()}
    arms["damaged"] = {"plan": "kv=bf16 > kv=fp8:uncalibrated", "inject": {"decode_k_scale": 0.5}}
    formats = [{"name": "formats", "kind": "formats", "cases": "formats.jsonl"}]
    path = write_experiment(tmp_path / "e", arms=arms, suites=formats, probe=None, policy=None, aa=None)
    db = tmp_path / "runs.sqlite"
    assert evalsvc("bench-serve", path, "--db", db, *GRID, "--arm", "nobody")[0] == 2
    code, out, _ = evalsvc("bench-serve", path, "--db", db, *GRID)
    assert code == 0 and "int4" in out and "damaged" not in out
    assert evalsvc("run", path, "--db", db)[0] == 0
    _, document = evalsvc_json("show", "int4", "--db", db)
    assert [cell["concurrency"] for cell in document["serving"]] == [1, 2, 3]
    assert "served on cpu:" in evalsvc("show", "int4", "--db", db)[1]
    _, document = evalsvc_json("show", "damaged", "--db", db)
    assert document["serving"] == []
