"""The page of the forest plot: the decision's rows as numbers."""

from evalsvc.store import queries
from evalsvc.store.session import open_store


def test_compare_holds_the_decisions_rows_as_numbers(run_app, database, words_of):
    app = run_app(database, "compare", candidate="int4-sym-decode")
    assert len(app.get("vega_lite_chart")) == 1
    table = app.dataframe[0].value
    pooled = table[table["row"] == "pooled"].iloc[0]
    with open_store(database, read_only=True) as store:
        (row,) = [d for d in queries.decisions(store, 1) if d["candidate"] == "int4-sym-decode"]
    stored = row["decision"]["rows"][0]
    assert (pooled["lost b"], pooled["drop"], pooled["margin"]) == (stored["b"], stored["drop_points"], 5.0)
    assert list(table.columns).index("p") == 9  # what fits at 1280 pixels
    assert "n 148, 95 % interval" in words_of(app)
