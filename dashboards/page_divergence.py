"""Page 5: how far are the arms' words from the baseline's, before any answer is right or wrong."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from evalsvc.dashboards import charts_divergence, frames, markup
from evalsvc.dashboards.reads import RunView
from evalsvc.dashboards.show import show_table
from evalsvc.store.session import Store

_NAMES = {
    "prefill": "fixed text, prefill",
    "decode": "fixed text, decode",
    "answers_prefill": "own answers, prefill",
    "answers_decode": "own answers, decode",
}
_SAME = {"same top 1, %": st.column_config.NumberColumn("same top 1, %", format="%.2f")}
_KEPT = {"mean": "kl_mean", "median": "kl_median", "p99": "kl_p99", "p999": "kl_p999", "largest": "kl_max"}


def show(store: Store, view: RunView) -> None:
    """Quantiles of KL of every arm and stage, then the chosen candidate's along the text, each with its tokens."""
    del store
    st.html(markup.header(view, "Divergence", view.own_baseline))
    lines = [line for candidate in view.candidates for line in _lines(candidate.arm.name, candidate.arm.probe or {})]
    if not lines:
        st.info(
            "No KL is stored of this run's arms. A run on the embedded engine measures it where its experiment names "
            "a `probe:`; recorded outputs and endpoints have none."
        )
        return
    frame = pd.DataFrame(lines)
    drawn = frame.loc[(frame["mean"] > 0) & (frame["largest"] > 0)]
    if drawn.empty:
        st.info("Every arm's next-token distributions equal the baseline's: nothing to draw on a log axis.")
    else:
        st.altair_chart(charts_divergence.quantiles(drawn))
    st.html(
        markup.quiet(
            "KL of the next token from the baseline's distribution to the arm's, in nats. Dot: mean; ring: median; "
            "ticks, small to tall: 99 %, 99.9 %, largest. Fixed text: the same for all arms; own answers: along what "
            "the baseline wrote. Of fewer than 1,000 tokens the 99.9 % value is the largest one. A KL of 0 has no mark."
        )
    )
    _table(frame)
    _along(view)


def _table(frame: pd.DataFrame) -> None:
    titles = {"mean": "mean KL, nats", "median": "median", "p99": "99 %", "p999": "99.9 %", "largest": "largest"}
    show_table(
        pd.DataFrame(
            {
                "arm": frames.text_column(frame["arm"].tolist()),
                "where": frames.text_column(frame["where"].tolist()),
                **{title: frames.number_column(frame[name].tolist()) for name, title in titles.items()},
                "same top 1, %": frames.number_column(frame["same"].tolist()),
                "tokens n": frames.number_column(frame["tokens"].tolist()),
            }
        ),
        {title: st.column_config.NumberColumn(title, format="%.3g") for title in titles.values()} | _SAME,
    )
    if any(median != median for median in frame["median"].tolist()):
        st.caption("An empty quantile was not stored: the run is of an earlier version. A new run stores it.")


def _along(view: RunView) -> None:
    if view.chosen is None:
        return
    st.html(markup.title("Along the text", "Of the chosen candidate, by the token's place: does it drift?"))
    st.html(markup.candidate_head(view.chosen))
    if view.chosen.arm.address == view.own_baseline:
        st.info("This arm is the run's own baseline: the other arms' tokens are compared with its own.")
        return
    frame = along_frame(view.chosen.arm.probe or {})
    if frame.empty:
        st.info("No places are stored of this candidate's tokens. A new run on the embedded engine stores them.")
        return
    left, right = st.columns(2)
    with left:
        if any(mean > 0 for mean in frame["mean"].tolist()):
            st.altair_chart(charts_divergence.along(frame, "mean", "mean KL, nats (log)", log=True))
        else:
            st.info("Its distributions equal the baseline's at every place.")
    with right:
        st.altair_chart(charts_divergence.along(frame, "same", "same likeliest token, % (not from 0)", log=False))
    sizes: dict[str, int] = {}
    for where, tokens in zip(frame["where"].tolist(), frame["tokens"].tolist(), strict=True):
        sizes[where] = sizes.get(where, 0) + int(tokens)
    counted = "; ".join(f"{where} n {n:,} tokens" for where, n in sizes.items())
    st.html(markup.quiet(f"{counted}; n of each range of places in the table. A KL of 0 has no mark."))
    show_table(
        pd.DataFrame(
            {
                "where": frames.text_column(frame["where"].tolist()),
                "tokens": frames.text_column(frame["place"].tolist()),
                "mean KL, nats": frames.number_column(frame["mean"].tolist()),
                "99 %": frames.number_column(frame["p99"].tolist()),
                "same top 1, %": frames.number_column(frame["same"].tolist()),
                "tokens n": frames.number_column(frame["tokens"].tolist()),
            }
        ),
        {name: st.column_config.NumberColumn(name, format="%.3g") for name in ("mean KL, nats", "99 %")} | _SAME,
    )


def along_frame(probe: Mapping[str, Any]) -> pd.DataFrame:
    """One line a text, stage and range of places: `where`, `place`, `start`, `mean`, `p99`, `same` (%), `tokens`."""
    lines = [
        {
            "where": _NAMES.get(key, frames.cell(key)),
            "place": f"{part['start'] + 1}-{part['end']}",
            "start": part["start"],
            "mean": part["kl_mean"],
            "p99": part["kl_p99"],
            "same": 100 * part["same_top1"],
            "tokens": part["tokens"],
        }
        for key, found in probe.items()
        for part in found.get("along", ())
    ]
    return pd.DataFrame(lines, columns=["where", "place", "start", "mean", "p99", "same", "tokens"])


def _lines(arm: str, probe: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
    lines = []
    for key, found in probe.items():
        where = _NAMES.get(key, frames.cell(key))
        row = f"{frames.cell(arm)} · {where}"
        same = found.get("same_top1")
        lines.append(
            {
                "arm": arm,
                "where": where,
                "row": row,
                **{name: _number(found.get(stored)) for name, stored in _KEPT.items()},
                "same": None if same is None else 100 * same,
                "tokens": found.get("tokens") or 0,
                "text": f"n {found.get('tokens') or 0:,} tokens · {row}",
            }
        )
    return lines


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)
