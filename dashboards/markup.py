"""Pieces of HTML and their one style sheet. Every value passes through `escape`."""

from collections.abc import Mapping
from typing import Any

from evalsvc.dashboards.charts import MARKS
from evalsvc.dashboards.reads import Candidate, RunView
from evalsvc.dashboards.text import escape

# word -> (symbol, text colour, background): never colour alone.
WORDS = {
    "PASS": ("✓", "#17663a", "#e6f4ea"),
    "REGRESSED": ("▼", "#a61b1b", "#fdeaea"),
    "INCONCLUSIVE": ("?", "#8a5a00", "#fdf3dc"),
    "INVALID": ("⊘", "#4a5565", "#eceff3"),
}
_SHAPES = {"circle": "●", "triangle-down": "▼", "diamond": "◆", "cross": "✚", "square": "■", "stroke": "▬"}
NOT_DECIDED = ("·", "#5b6675", "#f5f6f8")

STYLE = """<style>
.ev { font-size: .875rem; line-height: 1.45; color: #1c2430; }
.ev-scroll { overflow-x: auto; border: 1px solid #dfe3e8; border-radius: 8px; }
.ev table { border-collapse: collapse; width: 100%; min-width: 860px; margin: 0; }
.ev th, .ev td { padding: .4rem .6rem; border: 0; border-bottom: 1px solid #edf0f3; text-align: left;
  vertical-align: middle; }
.ev thead th { font-weight: 500; color: #5b6675; font-size: .78rem; white-space: nowrap; border-bottom-color: #dfe3e8; }
.ev .num { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.ev tr.group td { background: #f5f6f8; padding-top: .6rem; padding-bottom: .6rem; border-top: 1px solid #dfe3e8; }
.ev tbody:first-of-type tr.group:first-child td { border-top: 0; }
.ev td.name, .ev-nowrap { white-space: nowrap; }
.ev td.verdict { min-width: 190px; }
.ev .ev-stick { position: sticky; left: .6rem; max-width: calc(100vw - 4.5rem); }
.ev table.tight { font-size: .8rem; }
.ev table.tight th, .ev table.tight td { padding: .35rem .42rem; }
.ev table.tight .ev-mono { font-size: .72rem; }
.ev table.overview { min-width: 0; }
.ev table.overview .ev-fault { margin-left: .4rem; }
.ev td.met { color: #5b6675; font-size: .76rem; line-height: 1.3; white-space: nowrap; }
.ev tr.pooled td.name, .ev tr.pooled td.num { font-weight: 600; }
.ev tr.family td { color: #5b6675; font-size: .82rem; padding-top: .25rem; padding-bottom: .25rem; }
.ev tr.family td:first-child { padding-left: 1.9rem; }
.ev tr.blind td { color: #6b7685; font-style: italic; }
.ev tbody:last-child tr:last-child td { border-bottom: 0; }
.ev-head { display: flex; flex-wrap: wrap; align-items: center; gap: .35rem .7rem; }
.ev-name { font-weight: 650; font-size: .95rem; }
.ev-plan, .ev-mono { font-family: ui-monospace, "Liberation Mono", Menlo, Consolas, monospace; font-size: .78rem;
  color: #5b6675; overflow-wrap: anywhere; }
.ev-quiet { color: #5b6675; font-size: .8rem; }
.ev-pill { display: inline-block; padding: .08rem .55rem; border-radius: 99px; font-weight: 600; font-size: .76rem;
  letter-spacing: .02em; white-space: nowrap; font-style: normal; }
.ev-fault { display: inline-block; margin: 1px 0; padding: .05rem .5rem; border-radius: 4px; border: 1px dashed #7a3e9d;
  color: #7a3e9d; font-weight: 600; font-size: .76rem; white-space: nowrap; }
.ev-facts { display: flex; flex-wrap: wrap; gap: .2rem 1.6rem; color: #5b6675; font-size: .86rem; }
.ev-facts b { color: #1c2430; font-weight: 600; }
.ev h2 { font-size: 1.05rem; font-weight: 650; padding: 0; margin: .6rem 0 .15rem; }
.ev h1 { font-size: 1.5rem; font-weight: 650; padding: 0; margin: 0 0 .3rem; letter-spacing: -.01em; }
.ev-brand { font-size: 1.15rem; font-weight: 700; letter-spacing: -.01em; }
.ev-note { border-left: 3px solid #c9d1da; padding: .1rem 0 .1rem .8rem; color: #3b4654; }
</style>"""


def pill(word: str | None, note: str = "") -> str:
    """A verdict as symbol, word and colour."""
    symbol, ink, ground = WORDS.get(word or "", NOT_DECIDED)
    text = escape(word or "not decided") + (f": {escape(note)}" if note else "")
    return f'<span class="ev-pill" style="color:{ink};background:{ground}">{symbol} {text}</span>'


def fault_badge(injected: dict[str, Any]) -> str:
    """The mark of an arm with a planted fault; empty for an honest arm."""
    if not injected:
        return ""
    named = ", ".join(f"{name} {value}" for name, value in injected.items())
    return f'<span class="ev-fault">⚑ injected fault: {escape(named)}</span>'


def title(text: str, explained: str) -> str:
    """A heading inside a view, with one line under it."""
    return f'{STYLE}<div class="ev"><h2>{escape(text)}</h2><div class="ev-quiet">{escape(explained)}</div></div>'


def header(view: RunView) -> str:
    """The experiment's name and the facts of the run."""
    run = view.run
    when = (
        f"finished {_minute(run.finished_at)}" if run.finished_at else f"{run.status} since {_minute(run.created_at)}"
    )
    errors = f"<span><b>{run.errors}</b> errors</span>" if run.errors else "<span>no errors</span>"
    facts = (
        f"<span>run <b>{run.id}</b></span><span>baseline <b>{escape(view.baseline.address)}</b></span>"
        f"<span>{escape(when)}</span><span><b>{len(run.arms)}</b> arms</span>"
        f"<span><b>{run.samples:,}</b> samples</span>{errors}<span>seed <b>{run.seed}</b></span>"
    )
    return f'{STYLE}<div class="ev"><h1>{escape(run.experiment)}</h1><div class="ev-facts">{facts}</div></div>'


BRAND = (
    f'{STYLE}<div class="ev"><div class="ev-brand">evalsvc</div>'
    '<div class="ev-quiet">What a precision plan costs</div></div>'
)
PAGE_STYLE = """<style>
[data-testid="stMainBlockContainer"] { padding: 3.4rem 2.5rem 4rem; max-width: 1500px; }
@media (max-width: 640px) { [data-testid="stMainBlockContainer"] { padding: 3.8rem 1rem 4rem; } }
[data-testid="stDecoration"] { display: none; }
</style>"""


def database_line(name: str) -> str:
    """Which database the page reads."""
    short = escape(name.rsplit("/", 1)[-1])
    line = f'<div class="ev-mono" title="{escape(name)}">{short}</div>'
    return f'{STYLE}<div class="ev"><div class="ev-quiet">database</div>{line}</div>'


def candidate_head(candidate: Candidate) -> str:
    """A candidate's name, mark, plan and verdict in one line."""
    arm = candidate.arm
    return (
        f'{STYLE}<div class="ev"><div class="ev-head"><span class="ev-name">{escape(arm.name)}</span>'
        f'{fault_badge(arm.injected)}{pill(candidate.word)}<span class="ev-plan">{escape(arm.plan)}</span></div></div>'
    )


def flip_head(flip: Mapping[str, Any]) -> str:
    """Which item flipped, and which way."""
    lost = flip["direction"] == "lost"
    ink, ground = (WORDS["REGRESSED"] if lost else WORDS["PASS"])[1:]
    mark = f'<span class="ev-pill" style="color:{ink};background:{ground}">{"▼ lost" if lost else "▲ gained"}</span>'
    where = f"{flip['suite']} · {flip['family']}"
    through = f'<span class="ev-quiet">through {escape(flip["through"])}</span>' if flip["through"] else ""
    return (
        f'{STYLE}<div class="ev"><div class="ev-head">{mark}<span class="ev-name">{escape(where)}</span>'
        f'<span class="ev-mono">{escape(flip["item"])}</span>{through}</div></div>'
    )


def answer_head(name: str, *, right: bool, finish: str | None, error: str | None) -> str:
    """Whose answer it is, whether it counted as right, and how it ended."""
    word = "✓ right" if right else "✗ wrong"
    facts = [word, f"finish {finish}" if finish else "", str(error or "")]
    return (
        f'{STYLE}<div class="ev"><div class="ev-head"><b>{escape(name)}</b>'
        f'<span class="ev-quiet">{escape(" · ".join(fact for fact in facts if fact))}</span></div></div>'
    )


def _minute(iso: str) -> str:
    """A stored time (ISO 8601, UTC) without its seconds."""
    return f"{iso[:10]} {iso[11:16]} UTC"


def marks_legend() -> str:
    """What the marks of the forest plot mean, once for all plots of the page."""
    entries = "".join(
        f'<span><b style="color:{colour}">{_SHAPES[shape]}</b> {word}</span>' for word, (colour, shape) in MARKS.items()
    )
    margin = "<span><b>|</b> margin of the row</span><span><b>—</b> one-sided lower to upper bound</span>"
    return f'{STYLE}<div class="ev"><div class="ev-facts">{entries}{margin}</div></div>'
