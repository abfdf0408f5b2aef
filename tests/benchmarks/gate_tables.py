"""The figures of `gates` as tables: for a terminal, and as markdown for the README and RESULTS.md."""

from collections.abc import Iterator

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

WORDS = ("PASS", "INCONCLUSIVE", "REGRESSED")
HEADINGS = {
    "a": "above 1 point",
    "b": "unpaired z",
    "t": "TensorRT-LLM",
    "e": "95 % interval",
    "c": "evalsvc",
    "h": "sequential (items)",
    "h10": "looks of 10 (items)",
}


def describe(cell: dict) -> str:
    """A clustered cell in words."""
    return f"{cell['clusters']}, f {100 * cell['f']:.0f} %, {cell['model']}, correlation {cell['rho']:.1f}"


def print_tables(found: dict, console: Console) -> None:
    """Everything, with a mark at each cell."""
    limit = found["limit"]
    title = f"% REGRESSED / % PASS, {found['runs']} repetitions, margin 1 point"
    agrees = any("apart" in cell for cell in found["grid"])
    shown = ("f", "n", "drop", *HEADINGS, "wrong", *(["c, h10 as published"] if agrees else []))
    table = Table(*shown, title=title, box=SIMPLE, padding=(0, 0))
    for cell in found["grid"]:
        wrong = ", ".join(_marked(error, limit) for error in cell["wrong"].values())
        as_published = ", ".join("no" if name in cell.get("apart", ()) else "yes" for name in ("c", "h10"))
        table.add_row(*_place(cell), *_rates(cell, HEADINGS), wrong, *([as_published] if agrees else []))
    console.print(table)
    title = f"clusters, % wrong: {100 * limit:.1f} allowed where promised (rho to .1); ! is above, promised or not"
    table = Table(
        "clusters", "f", "alike", "rho", "false alarm", "false PASS", "PASS, no drop", title=title, box=SIMPLE
    )
    for cell in found["clustered"]:
        errors = [_marked(cell[error], limit) for error in ("false alarm", "false PASS")]
        start = (cell["clusters"], f"{100 * cell['f']:.0f} %", cell["model"], f"{cell['rho']:.1f}")
        table.add_row(*start, *errors, f"{100 * cell['PASS at no drop']:.0f}")
    console.print(table)
    console.print(f"ten undamaged suites with early stops and Holm: {100 * found['family']:.1f} % flag any")
    for cell in found["releases"]:
        said = ", ".join(f"{word} {100 * cell[word]:.0f} %" for word in WORDS)
        console.print(f"release, {cell['damage']}, policy {cell['policy']}: {said}")


def _marked(error: float, limit: float) -> str:
    return f"{100 * error:.1f}{'' if error <= limit else ' !'}"


def _place(cell: dict) -> list[str]:
    return [f"{100 * cell['f']:.0f} %", f"{cell['n']:,}", f"{100 * cell['drop']:.1f}"]


def _rates(cell: dict, names: list[str] | dict[str, str]) -> Iterator[str]:
    for name in names:
        items = f" ({cell[f'items, {name}'][0]:,.0f})" if f"items, {name}" in cell else ""
        yield "/".join(f"{100 * rate:.0f}" for rate in cell[name]) + items


def markdown(found: dict, file: str) -> Iterator[str]:
    """Tables of the README (three drops, one form of the sequential design) or of RESULTS.md (everything)."""
    full = file == "results"
    names = [name for name in HEADINGS if full or name != "h10"]
    yield from _header("flips", "items", "true drop", *(HEADINGS[name] for name in names), *(["wrong"] if full else []))
    for cell in found["grid"]:
        if full or cell["drop"] in (0.0, 0.01, 0.02):
            wrong = [", ".join(f"{100 * error:.1f}" for error in cell["wrong"].values())] if full else []
            yield _line(*_place(cell), *_rates(cell, names), *wrong)
    if full:
        yield ""
        yield from _clusters(found["clustered"], found["limit"])
        yield ""
        yield from _header("release of ten suites", "policy", *WORDS)
        for cell in found["releases"]:
            yield _line(cell["damage"], cell["policy"], *(f"{100 * cell[word]:.1f}" for word in WORDS))
        yield ""
        yield f"Ten undamaged suites with early stops and Holm: {100 * found['family']:.1f} % flag any."


def _clusters(cells: list[dict], limit: float) -> Iterator[str]:
    kinds = list(dict.fromkeys((cell["model"], cell["rho"]) for cell in cells))
    yield from _header("clusters", "flips", *(f"{model} {rho:.1f}" if rho else model for model, rho in kinds))
    for place in dict.fromkeys((cell["clusters"], cell["f"]) for cell in cells):
        by_kind = {(c["model"], c["rho"]): c for c in cells if (c["clusters"], c["f"]) == place}
        row = []
        for cell in (by_kind.get(kind) for kind in kinds):
            bold = "**" if cell and max(cell["false alarm"], cell["false PASS"]) > limit else ""
            names = ("false alarm", "false PASS", "PASS at no drop")
            row.append(bold + " / ".join(f"{100 * cell[name]:.1f}" for name in names) + bold if cell else "")
        yield _line(place[0], f"{100 * place[1]:.0f} %", *row)


def _header(*names: str) -> Iterator[str]:
    yield _line(*names)
    yield _line(*["---"] * len(names))


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
