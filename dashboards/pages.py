"""The list of pages, in the order in which a reviewer reads them."""

from collections.abc import Callable
from dataclasses import dataclass

from evalsvc.dashboards import page_compare, page_flips, page_sample, page_verdicts
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


HOME = Listed(title="Verdict", path="verdict", icon=":material/gavel:", section="Review", show=page_verdicts.show)
PAGES = (
    HOME,
    Listed(
        title="Compare",
        path="compare",
        icon=":material/align_horizontal_center:",
        section="Review",
        show=page_compare.show,
    ),
    Listed(title="Flips", path="flips", icon=":material/swap_horiz:", section="Review", show=page_flips.show),
    Listed(title="Sample", path="sample", icon=":material/article:", section="Review", show=page_sample.show),
)
