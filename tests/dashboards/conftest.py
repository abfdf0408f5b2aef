"""A small finished experiment: a baseline, honest candidates, one with a planted fault, hostile answers, an A/A."""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from evalsvc.dashboards.launch import APP
from evalsvc.demo.history import write_history
from evalsvc.gate import check_aa, decide_gate
from evalsvc.policy import Policy
from evalsvc.store import queries, writer
from evalsvc.store.job_tables import ExecutionRow, ScheduleRow
from evalsvc.store.records import NewSample, NewScore
from evalsvc.store.session import Store, open_store
from evalsvc.verdict.divergence import summary
from tests.evalsvc import by_hand

HOSTILE = {
    "script": "<script>document.title='owned'</script><img src=x onerror=alert(1)>",
    "markdown": "# Heading\n**bold** [link](https://example.org) $x^2$ :red[red]",
    "separators": "one\u2028two\u202ethree\x00four",
    "long": "x" * 200_000,
}
SCRIPT = "<script>document.title='owned'</script>"
MARKDOWN = "It cost $12 last year and $15 now; *a* _b_ # c ~d~ :red[x] <b>y</b>"
HUGE = "<b>\u202e" + "x" * 1_000_000
POLICY = Policy(name="test", margin_points=5.0, guard_points=15.0)
# suite, family, stages that score it, items
FAMILIES = (
    ("tasks", "addition", ("prefill", "decode"), 24),
    ("tasks", "copying", ("",), 26),
    ("tools", "choose", ("",), 26),
    ("tools", "refrain", ("",), 24),
    ("formats", "json", ("",), 24),
    ("formats", "marker", ("",), 24),
)
# name -> (prefill weights, prefill KV, decode weights, decode KV)
PLANS = {
    "base": ("bf16", "bf16", "bf16", "bf16"),
    "fp8-weights": ("fp8:w8a8:channel:token", "bf16", "fp8:w8a8:channel:token", "bf16"),
    "kv-fp8-decode": ("bf16", "bf16", "bf16", "fp8:token-head"),
    "int4-asym": ("int4:g32:asym", "bf16", "int4:g32:asym", "bf16"),
    "int4-sym-decode": ("bf16", "bf16", "int4:g32:sym", "bf16"),
    "kv-damaged": ("bf16", "bf16", "bf16", "fp8:tensor:calibrated"),
}
# name -> every how many items one is lost, one is gained
LOSSES = {"fp8-weights": (0, 60), "kv-fp8-decode": (0, 55), "int4-asym": (17, 26), "int4-sym-decode": (3, 0)}


@pytest.fixture(autouse=True)
def own_main() -> Iterator[None]:
    """A page under AppTest takes the place of `__main__`, which every process that a later test spawns would run."""
    main = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = main


class Experiment:
    """Writes the experiment and answers what a gate would have said of it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.run_id = self._run("main", None)
        self.values = {name: self._values(name) for name in PLANS}
        self.arms = {name: self._arm(self.run_id, name) for name in PLANS}

    def finish(self) -> "Experiment":
        """Finishes the run, repeats its baseline and lets the gate decide every candidate."""
        writer.finish_run(self.store, self.run_id)
        repeat = self._run("aa", self.run_id)
        self._arm(repeat, "base")
        writer.finish_run(self.store, repeat)
        again = queries.aa_of(self.store, self.run_id)
        base, *candidates = queries.arms(self.store, self.run_id)
        assert again is not None
        aa = check_aa(queries.pairs(self.store, base, again), again.address)
        for arm in candidates:
            found = decide_gate(base, arm, queries.pairs(self.store, base, arm), POLICY, aa)
            writer.save_decision(
                self.store, base.id, arm.id, found.policy_sha256, found.verdict, found.exit_code, found.to_json()
            )
        return self

    def _run(self, kind: str, linked: int | None) -> int:
        return writer.open_run(
            self.store,
            experiment="demo",
            experiment_hash="h",
            resolved={},
            baseline="base",
            seed=7,
            kind=kind,
            linked_run_id=linked,
        )

    def _arm(self, run_id: int, name: str) -> int:
        formats = PLANS[name]
        halves = [f"w={formats[0]},kv={formats[1]}", f"w={formats[2]},kv={formats[3]}"]
        samples = [self._sample(name, key, value) for key, value in self.values[name].items()]
        arm_id = writer.open_arm(
            self.store,
            run_id,
            name=name,
            fingerprint=f"fp-{name}",
            plan=halves[0] if halves[0] == halves[1] else " > ".join(halves),
            stages={
                "prefill": {"weights": formats[0], "kv": formats[1]},
                "decode": {"weights": formats[2], "kv": formats[3]},
            },
            injected={"decode_k_scale": 0.25} if name == "kv-damaged" else {},
            details={},
            expected=len(samples),
        )
        writer.add_samples(self.store, run_id, arm_id, samples)
        far = {"kv-damaged": 5.1, "int4-sym-decode": 0.45}.get(name, 0.0016)
        probe = {}
        for stage, i in (("prefill", 0), ("decode", 2)):
            kl = 2e-9 if formats[i : i + 2] == ("bf16", "bf16") else far
            probe[stage] = {"kl_mean": kl, "kl_max": 9 * kl, "tokens": 400}  # as earlier versions stored it
            if name == "int4-asym":
                probe[stage] = summary([kl, 9 * kl] * 200, [True, False] * 200, list(range(40)) * 10)
        writer.save_probe(self.store, arm_id, probe)
        proof = {s: _proof(formats[i]) for s, i in (("prefill", 0), ("decode", 2))}
        together = [other for other, plan in PLANS.items() if plan[:2] == formats[:2] and other != name]
        proof["prefill"] |= {"seconds": 12.0, "shared_with": together}
        proof["decode"] |= {"seconds": 3.0, "shared_with": []}
        writer.finish_arm(self.store, arm_id, proof, "matched")
        return arm_id

    def _values(self, name: str) -> dict[tuple[str, str, str, int], float]:
        values: dict[tuple[str, str, str, int], float] = {}
        number = 0
        for suite, family, stages, items in FAMILIES:
            for through in stages:
                for item in range(items):
                    number += 1
                    right = number % 4 > 0
                    lost_every, gained_every = LOSSES.get(name, (0, 0))
                    if (name == "kv-damaged" and through != "prefill") or (
                        lost_every and number % lost_every == 1 and through != "prefill"
                    ):
                        right = False
                    elif gained_every and number % gained_every == 4:
                        right = True
                    values[(suite, family, through, item)] = float(right)
        return values

    def _sample(self, name: str, key: tuple[str, str, str, int], value: float) -> NewSample:
        suite, family, through, item = key
        right = f"the answer is {item + 12}"
        answer = right if value else f"well, {item}, let me think " * 3
        if name != "base" and not value and suite == "formats":
            answer = list(HOSTILE.values())[item // 4 % 4]
        return by_hand.sample(
            f"{family}-{item:03d}",
            suite=suite,
            item_hash=f"{family}{item}",
            family=family,
            cluster=f"p{item % 8}",
            metric="acc",
            scored_by="loglikelihood" if through else "generation",
            request_hash=f"{family}{item}",
            settings_hash=through,
            through=through,
            prompt=f"Question: what is {item} + 12?\nThink, then answer in one line.\nAnswer:",
            answer=answer,
            finish_reason="stop" if value else "length",
            prompt_tokens=40,
            answer_tokens=6,
            stage_tokens={"prefill": 1, "decode": 5} if through != "prefill" else {"prefill": 1},
            handed_over=through != "prefill",
            timings={"prefill_s": 0.1, "decode_s": 0.2},
            scores=(NewScore(metric="acc", filter="none", value=value, error_class=None if value else "wrong_value"),),
        )


def _proof(weights: str) -> dict[str, Any]:
    size = {"bf16": 269e6, "fp8:w8a8:channel:token": 163e6}.get(weights, 119e6)
    return {
        "weights": {"format_bytes": size, "resident_bytes": size + (0 if weights == "bf16" else 212e6)},
        "kv": {"dtype": "bfloat16", "bytes_per_token": 23040, "resident_bytes": 5e6},
        "kernels": {"linear.bf16.torch": 210},
    }


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the databases lie; every test reads them, none writes."""
    return tmp_path_factory.mktemp("dashboards")


@pytest.fixture(scope="session")
def empty_database(folder: Path) -> Path:
    path = folder / "empty.db"
    open_store(path, create=True).close()
    return path


@pytest.fixture(scope="session")
def undecided_database(folder: Path) -> Path:
    path = folder / "undecided.db"
    with open_store(path, create=True) as store:
        Experiment(store)
    return path


@pytest.fixture(scope="session")
def database(folder: Path) -> Path:
    path = folder / "demo.db"
    with open_store(path, create=True) as store:
        Experiment(store).finish()
    return path


@pytest.fixture(scope="session")
def opened_database(folder: Path) -> Path:
    """A run that has opened a candidate and not its baseline yet."""
    path = folder / "opened.db"
    with open_store(path, create=True) as store:
        by_hand.open_arm(store, by_hand.open_run(store), "early", injected={"x": 1}, expected=3)
    return path


@pytest.fixture(scope="session")
def hostile_database(folder: Path) -> Path:
    """Hostile names, prompts, answers, error classes and messages; a decision; an error that has no score."""
    path = folder / "hostile.db"
    with open_store(path, create=True) as store:
        run_id = by_hand.open_run(store, experiment=MARKDOWN)
        for name in ("base", SCRIPT):
            stage = {"weights": "bf16", "kv": "bf16" if name == "base" else "fp8:token-head"}
            samples = [_hostile_sample(number, lost=name != "base" and number % 2 == 0) for number in range(40)]
            about = {"plan": MARKDOWN, "stages": {"prefill": stage, "decode": stage}, "details": {"note": SCRIPT}}
            arm_id = by_hand.open_arm(store, run_id, name, expected=len(samples), **about)
            writer.add_samples(store, run_id, arm_id, samples)
            writer.save_probe(store, arm_id, {MARKDOWN: {"kl_mean": 0.1, "kl_max": 1.0, "tokens": 4}})
            writer.finish_arm(store, arm_id, {SCRIPT: {"weights": {}, "kv": {}}}, "matched")
        writer.finish_run(store, run_id)
        at = "2026-11-30T01:00:00.000+00:00"
        with store.session() as session, session.begin():
            session.add(ScheduleRow(job=SCRIPT, cron="0 2 * * *", time_zone="UTC", seen_until=at))
            session.flush()
            about = {"planned_at": at, "not_before": at, "status": "failed", "message": f"{LONG} {MARKDOWN}"}
            session.add(ExecutionRow(job=SCRIPT, **about))
        base, arm = queries.arms(store, run_id)
        found = decide_gate(base, arm, queries.pairs(store, base, arm), POLICY)
        row = (base.id, arm.id, found.policy_sha256, found.verdict, found.exit_code, found.to_json())
        writer.save_decision(store, *row)
    return path


LONG = "http://example.org/" + "s" * 100


def _hostile_sample(number: int, *, lost: bool) -> NewSample:
    failed = lost and number == 38
    score = NewScore(metric="acc", filter="none", value=float(not lost), error_class=MARKDOWN if lost else None)
    return by_hand.sample(
        f"{SCRIPT}{number}",
        suite=MARKDOWN,
        item_hash=str(number),
        family=LONG if number % 8 else SCRIPT,
        metric="acc",
        status="error" if failed else "scored",
        error_class=SCRIPT if failed else None,
        error_message=MARKDOWN if failed else None,
        prompt=MARKDOWN,
        answer=HUGE if lost and number == 0 else list(HOSTILE.values())[number // 2 % 4] if lost else MARKDOWN,
        finish_reason=SCRIPT if lost else "stop",
        scores=() if failed else (score,),
    )


@pytest.fixture(scope="session")
def history_database(folder: Path) -> Path:
    """A generated history of 14 nights, its regression from the ninth on."""
    kept = folder / "history"
    kept.mkdir()
    return write_history(kept / "history.db", nights=14)


@pytest.fixture
def run_app(monkeypatch: pytest.MonkeyPatch) -> Callable[..., AppTest]:
    """Opens a page of a database, with choices in its address."""
    monkeypatch.setattr("sys.argv", ["app.py"])

    def run(database: Path | str | None, page: str = "verdict", /, **chosen: object) -> AppTest:
        if database is None:
            monkeypatch.delenv("EVALSVC_DB", raising=False)
        else:
            monkeypatch.setenv("EVALSVC_DB", str(database))
        app = AppTest.from_file(str(APP), default_timeout=60)
        for key, value in chosen.items():
            app.query_params[key] = str(value)
        return _to_page(app.run(), page)

    return run


def _to_page(app: AppTest, page: str) -> AppTest:
    """Goes to a page by its path in the address."""
    assert not app.exception, app.exception[0].message
    if page != "verdict":
        app._page_hash = next(h for h, found in app._registered_pages.items() if found.get("url_pathname") == page)
        app.run()
        assert not app.exception, app.exception[0].message
    return app


def _words_of(app: AppTest) -> str:
    """Every sentence that is no markup."""
    kinds = (app.info, app.caption, app.warning, app.error, app.code)
    return "\n".join(str(element.value) for kind in kinds for element in kind)


def _markup_of(app: AppTest) -> str:
    """Everything that the page put out as HTML."""
    elements: Any = app.get("html")
    return "\n".join(element.proto.body for element in elements)


def _choose(app: AppTest, label: str, value: str) -> AppTest:
    """Chooses in a select box by its label."""
    box = next(box for box in app.selectbox if box.label == label)
    box.select(value).run()
    assert not app.exception
    return app


@pytest.fixture(scope="session")
def choose() -> Callable[..., Any]:
    return _choose


@pytest.fixture(scope="session")
def to_page() -> Callable[..., Any]:
    return _to_page


@pytest.fixture(scope="session")
def words_of() -> Callable[..., Any]:
    return _words_of


@pytest.fixture(scope="session")
def markup_of() -> Callable[..., Any]:
    return _markup_of


@pytest.fixture(scope="session")
def large() -> ModuleType:
    """`tests.benchmarks.large`: the same database is measured and tested."""
    path = Path(__file__).parents[1] / "benchmarks" / "large.py"
    spec = importlib.util.spec_from_file_location("large", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
