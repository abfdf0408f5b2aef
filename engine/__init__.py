"""The embedded engine: one model served under precision plans, prefill and decode chosen separately.

Names are resolved lazily, so that plans and requests can be read without torch.
"""

from importlib import import_module

_HOMES = {
    "PrecisionPlan": "precision",
    "StagePlan": "precision",
    "parse_plan": "precision",
    "GenerateRequest": "requests",
    "GenerateResult": "requests",
    "ScoreRequest": "requests",
    "ScoreResult": "requests",
    "RollingRequest": "requests",
    "TextPiece": "requests",
    "RequestFailure": "requests",
    "Engine": "engine",
}
__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str):
    if name in _HOMES:
        return getattr(import_module(f"evalsvc.engine.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'evalsvc.engine' has no attribute {name!r}")
