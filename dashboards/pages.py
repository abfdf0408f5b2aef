"""The list of pages, in the order in which a reviewer reads them."""

from collections.abc import Callable
from dataclasses import dataclass

from evalsvc.dashboards import (
    page_attribution,
    page_breakdown,
    page_compare,
    page_divergence,
    page_flips,
    page_health,
    page_history,
    page_power,
    page_sample,
    page_tradeoff,
    page_verdicts,
)
from evalsvc.dashboards.reads import RunView
from evalsvc.store.session import Store


@dataclass(frozen=True, kw_only=True)
class Listed:
    """One page: its name in the menu and in the address, and what shows it."""

    title: str
    path: str
    icon: str
    show: Callable[[Store, RunView], None]


def _listed(title: str, path: str, icon: str, show: Callable[[Store, RunView], None]) -> Listed:
    return Listed(title=title, path=path, icon=f":material/{icon}:", show=show)


HOME = _listed("Verdict", "verdict", "gavel", page_verdicts.show)
PAGES = (
    HOME,
    _listed("Compare", "compare", "align_horizontal_center", page_compare.show),
    _listed("Flips", "flips", "swap_horiz", page_flips.show),
    _listed("Sample", "sample", "article", page_sample.show),
    _listed("History", "history", "timeline", page_history.show),
    _listed("Trade-off", "tradeoff", "balance", page_tradeoff.show),
    _listed("Breakdown", "breakdown", "grid_on", page_breakdown.show),
    _listed("Divergence", "divergence", "call_split", page_divergence.show),
    _listed("Attribution", "attribution", "account_tree", page_attribution.show),
    _listed("Power", "power", "calculate", page_power.show),
    _listed("Jobs and health", "health", "monitor_heart", page_health.show),
)
