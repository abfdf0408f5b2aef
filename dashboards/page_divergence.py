"""Page 5: how far are the arms' words from the baseline's, before any answer is right or wrong."""

import pandas as pd
import streamlit as st

from evalsvc.dashboards import charts_arms, frames, markup
from evalsvc.dashboards.reads import RunView
from evalsvc.dashboards.show import show_table
from evalsvc.store.session import Store

_NAMES = {
    "prefill": "fixed text, prefill",
    "decode": "fixed text, decode",
    "answers_prefill": "own answers, prefill",
    "answers_decode": "own answers, decode",
}


def show(store: Store, view: RunView) -> None:
    """Mean and largest KL of every arm and stage, with the tokens that they are of."""
    del store
    st.html(markup.header(view, "Divergence"))
    lines = [line for candidate in view.candidates for line in _lines(candidate.arm.name, candidate.arm.probe or {})]
    if not lines:
        st.info(
            "No KL is stored of this run's arms. A run on the embedded engine probes every arm; recorded outputs and "
            "endpoints have none."
        )
        return
    frame = pd.DataFrame(lines)
    shown = pd.DataFrame([line for line in lines if line["mean"] > 0 and line["largest"] > 0])
    if shown.empty:
        st.info("Every arm's next-token distributions equal the baseline's: nothing to draw on a log axis.")
    else:
        st.altair_chart(charts_arms.divergence(shown))
    st.html(
        markup.quiet(
            "KL of the next token from the baseline's distribution to the arm's, in nats. Dot: mean; tick: largest. "
            "Fixed text: the same for all arms; own answers: along what the baseline wrote. The run stores mean and "
            "largest over these n tokens, so other quantiles and positions are not known here."
        )
    )
    show_table(
        pd.DataFrame(
            {
                "arm": frames.text_column(frame["arm"].tolist()),
                "where": frames.text_column(frame["where"].tolist()),
                "mean KL, nats": frames.number_column(frame["mean"].tolist()),
                "largest KL, nats": frames.number_column(frame["largest"].tolist()),
                "same top 1, %": frames.number_column(frame["same"].tolist()),
                "tokens n": frames.number_column(frame["tokens"].tolist()),
            }
        )
    )


def _lines(arm: str, probe: dict) -> list[dict]:
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
                "mean": found.get("kl_mean") or 0.0,
                "largest": found.get("kl_max") or 0.0,
                "same": None if same is None else 100 * same,
                "tokens": found.get("tokens") or 0,
                "text": f"{row} · n {found.get('tokens') or 0:,} tokens",
            }
        )
    return lines
