"""What of an lm-eval task is served, and how its generations are made."""

from dataclasses import dataclass
from typing import Any

from evalsvc.errors import CapabilityError, ConfigError

OUTPUT_TYPES = ("multiple_choice", "loglikelihood", "loglikelihood_rolling", "generate_until")
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
WITHOUT_EFFECT = {"num_beams": 1, "num_return_sequences": 1}
SEVERAL_ANSWERS = ("take_first_k", "majority_vote", "custom")  # filters that may look at all repeats together


@dataclass(frozen=True)
class Generation:
    """How an answer is written.

    Attributes:
        stop: Strings that end it.
        max_tokens: Most new tokens.
        sampling: Settings of `GenerateRequest`; empty where it is greedy.
    """

    stop: tuple[str, ...]
    max_tokens: int
    sampling: dict[str, Any]

    @property
    def drawn(self) -> bool:
        """Whether another draw may give another answer."""
        return bool(self.sampling.get("temperature"))


def check_served(task: Any, where: str) -> None:
    """Refuses by name what would be answered or scored otherwise than lm-eval would.

    Raises:
        CapabilityError: Naming the key and its value.
        ConfigError: Settings of generation that cannot be used.
    """
    from lm_eval.api.task import ConfigurableTask

    if not isinstance(task, ConfigurableTask):
        raise CapabilityError(
            f"{where}: a task of {type(task).__name__}, which is no ConfigurableTask of lm-eval's, is not served"
        )
    output = task.OUTPUT_TYPE
    if output not in OUTPUT_TYPES:
        raise CapabilityError(f"{where}: output_type {output} is not served, only {', '.join(OUTPUT_TYPES)}")
    if getattr(task, "MULTIMODAL", False):
        raise CapabilityError(f"{where}: doc_to_image or doc_to_audio is not served")
    if task.config.unsafe_code:
        raise CapabilityError(f"{where}: unsafe_code is not served: it runs what the model wrote")
    if type(task.config.repeats) is not int or task.config.repeats < 1:
        raise ConfigError(f"{where}: repeats {task.config.repeats!r} is not a number from 1")
    if output == "generate_until":
        unknown = [metric for metric, function in task._metric_fn_list.items() if function is None]
        if unknown and task.config.process_results is None:
            raise ConfigError(f"{where}: lm-eval has no metric {unknown[0]!r} and cannot fetch one of that name")
        generation_of(task.config.generation_kwargs or {}, where)


def reads_all_repeats(task: Any) -> bool:
    """Whether a filter or metric looks at all repeats of a document together (majority votes, pass@k)."""
    listed = task.config.filter_list
    names = [[step["function"] for step in entry["filter"]] for entry in listed or ()]
    return any("take_first" not in steps or set(steps) & set(SEVERAL_ANSWERS) for steps in names)


def generation_of(given: dict[str, Any], where: str = "", *, most: int | None = None) -> Generation:
    """What lm-eval's `generation_kwargs` ask for.

    Args:
        given: The settings.
        where: Begins every complaint.
        most: New tokens where they set no limit; lm-eval's own default by default.

    Raises:
        ConfigError: A stop string, the limit or a setting cannot be used.
        CapabilityError: A setting that is not served.
    """
    from lm_eval.defaults import DEFAULT_MAX_GEN_TOKS
    from lm_eval.models.utils import normalize_gen_kwargs

    said = f"{where}: generation_kwargs" if where else "generation_kwargs"
    try:
        options: dict[str, Any] = dict(normalize_gen_kwargs(given, most or DEFAULT_MAX_GEN_TOKS))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{said} max_gen_toks or temperature is no number ({error})") from error
    limit, until, drawn = options.pop("max_gen_toks"), options.pop("until", []), options.pop("do_sample")
    sampling = {name: options.pop(name) for name in SAMPLING if options.get(name) is not None}
    for name, value in sampling.items():
        if type(value) not in (int, float):
            raise ConfigError(f"{said} {name}: {value!r} is not a number")
    for name, value in options.items():
        if value is not None and WITHOUT_EFFECT.get(name, ...) != value:
            raise CapabilityError(f"{said} {name}: {value!r} is not served")
    if not all(isinstance(text, str) and text for text in until):
        raise ConfigError(f"{said} until: {until!r} is not a list of strings, none of them empty")
    if limit < 1:
        raise ConfigError(f"{said} max_gen_toks: {limit!r} is not a number of tokens")
    if drawn and not sampling.get("temperature"):
        raise ConfigError(f"{said} do_sample: true needs a temperature above 0")
    if not drawn:
        sampling = {name: value for name, value in sampling.items() if name == "repetition_penalty" and value != 1}
    return Generation(tuple(until), limit, sampling)
