"""What `evalsvc capacity` answers: a model under plans on devices."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from evalsvc.capacity.model import Model, read_model
from evalsvc.capacity.sharing import Devices, Placed, place
from evalsvc.engine.precision import parse_plan


@dataclass(frozen=True)
class StageAnswer:
    """One stage of one plan."""

    plan: str
    stage: str
    weights: str
    kv: str
    placed: Placed


@dataclass(frozen=True)
class Answer:
    """All of them."""

    model: Model
    devices: Devices
    contexts: tuple[int, ...]
    stages: tuple[StageAnswer, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; bytes are of one device, tokens and requests of all of them."""
        model, devices = self.model, asdict(self.devices)
        return {
            "schema": "evalsvc.capacity/1",
            "model": {
                "name": model.name,
                "model_type": model.kind,
                "parameters": model.parameters,
                "active_parameters": model.active,
            },
            "devices": devices,
            "stages": [
                {
                    "plan": stage.plan,
                    "stage": stage.stage,
                    "weights_format": stage.weights,
                    "kv_format": stage.kv,
                    "weights_bytes": stage.placed.weights_bytes,
                    "weights_bytes_by_part": stage.placed.weights,
                    "kv_bytes_per_token": stage.placed.kv_bytes_per_token,
                    "left_bytes": stage.placed.left_bytes,
                    "tokens": stage.placed.tokens,
                    "requests": {str(context): stage.placed.requests(context) for context in self.contexts},
                }
                for stage in self.stages
            ],
        }


def answer(config: str, plans: Sequence[str], devices: Devices, contexts: Sequence[int]) -> Answer:
    """Places each stage of each plan on devices of its own.

    Raises:
        EvalsvcError: A configuration or plan that cannot be used.
    """
    model, stages = read_model(config), []
    for text in plans:
        plan = parse_plan(text)
        for name, stage in (("prefill", plan.prefill), ("decode", plan.decode)):
            stages.append(StageAnswer(str(plan), name, str(stage.weights), str(stage.kv), place(model, stage, devices)))
    return Answer(model, devices, tuple(contexts), tuple(stages))
