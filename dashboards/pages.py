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
    section: str
    show: Callable[[Store, RunView], None]


def _listed(title: str, path: str, icon: str, section: str, show: Callable[[Store, RunView], None]) -> Listed:
    return Listed(title=title, path=path, icon=f":material/{icon}:", section=section, show=show)


HOME = _listed("Verdict", "verdict", "gavel", "Review", page_verdicts.show)
PAGES = (
    HOME,
    _listed("Compare", "compare", "align_horizontal_center", "Review", page_compare.show),
    _listed("Flips", "flips", "swap_horiz", "Review", page_flips.show),
    _listed("Sample", "sample", "article", "Review", page_sample.show),
    _listed("History", "history", "timeline", "Review", page_history.show),
    _listed("Trade-off", "tradeoff", "balance", "Look closer", page_tradeoff.show),
    _listed("Breakdown", "breakdown", "grid_on", "Look closer", page_breakdown.show),
    _listed("Divergence", "divergence", "call_split", "Look closer", page_divergence.show),
    _listed("Attribution", "attribution", "account_tree", "Look closer", page_attribution.show),
    _listed("Power", "power", "calculate", "Plan and run", page_power.show),
    _listed("Jobs and health", "health", "monitor_heart", "Plan and run", page_health.show),
)
