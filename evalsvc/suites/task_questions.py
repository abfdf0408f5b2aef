"""A document of an lm-eval task as it is asked: lm-eval's own prompt and requests, in the engine's words."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from evalsvc.engine.requests import GenerateRequest, RollingRequest, ScoreRequest
from evalsvc.errors import CapabilityError, ConfigError
from evalsvc.suites.base import Asked
from evalsvc.suites.task_build import FEWSHOT_SEED
from evalsvc.suites.task_check import generation_of


@dataclass(frozen=True, kw_only=True)
class Asking:
    """How documents become prompts; keys of a suite in an experiment file.

    Attributes:
        num_fewshot: Examples before each document, in place of what the task says.
        chat: Prompts are conversations.
        multiturn: In a conversation each example is a turn of its own.
        system: Stands before everything else.
        draws: Sets of examples to draw.
    """

    num_fewshot: int | None = None
    chat: bool = False
    multiturn: bool = True
    system: str | None = None
    draws: int | None = None


class Conversation(str):
    """What lm-eval takes for a prompt's text: messages that the target will render.

    Attributes:
        messages: The conversation; an assistant's message at its end is what the answer goes on from.
    """

    messages: tuple[Mapping[str, Any], ...]

    @classmethod
    def of(cls, history: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> "Conversation":
        """Stands in for a model's `apply_chat_template`."""
        messages = [dict(message) for message in history]
        if not add_generation_prompt:
            messages[-1]["prefix"] = True
        self = cls(json.dumps(messages, ensure_ascii=False))
        self.messages = tuple(messages)
        return self


class Draw:
    """One set of few-shot examples for all documents, in place of a task's sampler.

    The pool is shuffled once; each document gets the first examples that are not itself.

    Attributes:
        seed: Of the shuffle.
        document: What is asked now.
    """

    def __init__(self, pool: Sequence[Any], seed: int) -> None:
        self.seed, self.document = seed, None
        self._order = Random(seed).sample(list(pool), len(pool))

    def sample(self, n: int, eval_doc: Any = None, df: Any = None, **_: Any) -> list[Any]:
        """As lm-eval calls its samplers. Raises ConfigError where the pool is too small."""
        found = [example for example in self._order if example != self.document][:n]
        if len(found) < n:
            raise ConfigError(f"the pool holds {len(found)} examples beside the document, and num_fewshot is {n}")
        return found


@dataclass(frozen=True)
class Question:
    """One document of one task with its prompt; the payload of an item.

    Attributes:
        context: lm-eval's prompt; a list where each choice has its own.
        chat: Whether it is a conversation.
        seed: Of its set of few-shot examples; None where the task's own sampler drew them.
        answers: How many answers are scored together.
    """

    task: Any
    doc_id: int
    doc: Any
    context: Any
    chat: bool
    seed: int | None
    answers: int

    def instances(self) -> list[Any]:
        """lm-eval's requests."""
        made = self.task.construct_requests(
            doc=self.doc,
            ctx=self.context,
            metadata=(self.task.task_name, self.doc_id, self.task.config.repeats),
            apply_chat_template=self.chat,
            chat_template=Conversation.of if self.chat else None,
        )
        return made if isinstance(made, list) else [made]

    def request(self, item_id: str) -> Asked:
        """All of lm-eval's requests as one.

        Raises:
            CapabilityError: Requests that cannot be asked as one, or a task that takes a conversation for text.
        """
        made = self.instances()
        where = f"task {self.task.task_name!r}: document {self.doc_id}"
        kinds = {instance.request_type for instance in made}
        if len(kinds) > 1 or (kinds != {"loglikelihood"} and len(made) > 1):
            raise CapabilityError(f"{where} asks {len(made)} times ({', '.join(sorted(kinds))}), which is not served")
        if kinds == {"loglikelihood_rolling"}:
            return RollingRequest(id=item_id, text=made[0].args[0])
        prompts = [self._prompt(instance.args[0], where) for instance in made]
        if kinds == {"generate_until"}:
            if not prompts[0]:
                raise CapabilityError(f"{where} has an empty prompt")
            how = generation_of(made[0].args[1], where)
            return GenerateRequest(
                id=item_id, prompt=prompts[0], max_tokens=how.max_tokens, stop=how.stop, **how.sampling
            )
        same = all(prompt == prompts[0] for prompt in prompts)
        return ScoreRequest(
            id=item_id,
            context=prompts[0],
            contexts=() if same else tuple(prompts),
            continuations=tuple(instance.args[1] for instance in made),
        )

    def _prompt(self, context: Any, where: str) -> Any:
        if isinstance(context, Conversation):
            return context.messages
        if self.chat and context:
            raise CapabilityError(f"{where}: the task writes into its prompt, so no chat template can be applied")
        return context


def render(task: Any, asking: Asking, answers: int) -> Iterator[Question]:
    """All documents in their order: lm-eval's default sampler draws examples document after document.

    With draws, documents take turns with them.

    Raises:
        ConfigError: Too few examples to draw from.
    """
    sets = _draws(task, asking.draws)
    for position, (doc_id, doc) in enumerate(task.doc_iterator()):
        draw = sets[position % len(sets)] if sets else None
        if draw is not None:
            draw.document, task.sampler = doc, draw
        template: Callable[..., Any] | None = Conversation.of if asking.chat else None
        context = task.fewshot_context(
            doc,
            num_fewshot=task.config.num_fewshot or 0,
            system_instruction=asking.system,
            apply_chat_template=asking.chat,
            fewshot_as_multiturn=asking.multiturn,
            chat_template=template,
            gen_prefix=task.doc_to_prefix(doc),
        )
        yield Question(task, doc_id, doc, context, asking.chat, draw.seed if draw else None, answers)


def _draws(task: Any, draws: int | None) -> list[Draw]:
    if draws is None or not task.config.num_fewshot:
        return []
    pool = list(task.fewshot_docs() or ())
    return [Draw(pool, FEWSHOT_SEED + number) for number in range(draws)]
