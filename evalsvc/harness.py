"""The embedded engine as lm-eval's model `evalsvc`: `python -m evalsvc.harness run --model evalsvc --tasks ...`.

lm-eval finds models in a fixed mapping, so this module adds itself to lm-eval's registry when it is imported; its
`main` is lm-eval's own command line.

What goes to the engine is what lm-eval's `hf` model gives to transformers: the same ids, windows and truncation.
"""

import hashlib
import json
import logging
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, cast, get_args

import jinja2
import lm_eval.models  # noqa: F401  (fills the registry, which is left alone once it holds anything)
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import model_registry
from lm_eval.models.utils import (
    handle_stop_sequences,
    postprocess_generated_text,
    resolve_max_length,
)
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from evalsvc.engine.requests import (
    Answer,
    GenerateRequest,
    GenerateResult,
    Request,
    RequestFailure,
    ScoreRequest,
    ScoreResult,
    StageName,
)
from evalsvc.errors import ConfigError, EngineError, EvalsvcError
from evalsvc.model_args import check_name, prepared, split_options
from evalsvc.suites.task_check import generation_of

NAME = "evalsvc"
CACHE_OWNER = "evalsvc model"  # key in lm-eval's cache of answers, beside its hashes of requests
log = logging.getLogger(__name__)


class EvalsvcLM(TemplateLM):
    """One arm of one model behind lm-eval's three questions."""

    def __init__(
        self,
        pretrained: str,
        plan: str = "w=bf16,kv=bf16",
        through: StageName = "prefill",
        kv_tokens: int | None = None,
        max_batch: int | None = None,
        threads: int | None = None,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        add_bos_token: bool | None = None,
        prefix_token_id: int | None = None,
        think_end_token: str | None = None,
        enable_thinking: bool | None = None,
        seed: int = 1234,
        device: str | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        integrity: str = "tags",
        graphs: str = "auto",
    ) -> None:
        """Loads the model.

        Args:
            pretrained: Directory, hub id or GGUF file.
            plan: Formats of prefill and decode.
            through: Which stage produces scored logits; ARCHITECTURE says what each means.
            kv_tokens: Capacity of each stage's KV pool, in tokens.
            max_batch: Most requests side by side. It changes no answer.
            threads: torch's threads; None leaves them.
            max_length: Longest input, in tokens; longer ones lose their beginning. None: all that the model is made
                for, and a request that the KV pool cannot hold is an error.
            max_gen_toks: Most new tokens where a task does not say.
            add_bos_token: Whether prompts begin with the beginning-of-sequence token; the tokenizer decides when None.
            prefix_token_id: What stands before a text without context; the tokenizer's BOS or EOS when None.
            think_end_token: The answer begins after its last occurrence.
            enable_thinking: Passed to the chat template when given.
            seed: Sampled answers are drawn from this, the prompt, and how often it was asked before.
            device: As in `Engine.load`.
            batch_size: lm-eval always passes one. The engine batches continuously and does not read it.
            max_batch_size: As `max_batch`, which goes first.
            integrity: What is checked of KV pages before they are read: tags, off, content or content:first.
            graphs: As in `Engine.load`.

        Raises:
            EvalsvcError: A model, plan or option that cannot be used.
        """
        super().__init__()
        if through not in get_args(StageName):
            raise ConfigError(f"through={through!r}: it is prefill or decode")
        if threads is not None:
            import torch

            torch.set_num_threads(_positive("threads", threads))
        from evalsvc.engine.engine import Engine

        limits = {"kv_tokens": kv_tokens, "max_batch": max_batch, "max_length": max_length}
        if max_batch is None:
            limits["max_batch"] = max_batch_size
        self.max_gen_toks = _positive("max_gen_toks", max_gen_toks)
        given: dict[str, Any] = {name: _positive(name, value) for name, value in limits.items() if value is not None}
        given |= {"device": device or "auto", "integrity": integrity, "graphs": graphs}
        self.engine = Engine.load(str(pretrained), plan=plan, **given)
        self.tokenizer: Any = self.engine.text.tokenizer
        self.through: StageName = through
        self.seed = seed
        self.add_bos_token = add_bos_token
        self.custom_prefix_token_id = prefix_token_id
        self.think_end_token = think_end_token
        self.template_options = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
        own_length = resolve_max_length(self.engine.arm().prefill.weights.model.config, self.tokenizer)
        self.max_length = max_length or own_length
        self._context_ids = lru_cache(maxsize=1024)(self.tok_encode)
        self._begun: Counter[int] = Counter()
        self._whose = hashlib.sha256(
            json.dumps(
                [
                    self.engine.hashes,
                    *(str(self.engine.arm().spec.plan), through, self.max_length, self.max_gen_toks, add_bos_token),
                    *(prefix_token_id, think_end_token),
                ]
            ).encode()
        ).hexdigest()
        if batch_size not in (None, 1, "1", "auto"):
            log.warning("batch_size=%s is not read: the engine batches continuously, up to max_batch", batch_size)

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict | None = None) -> "EvalsvcLM":
        """From `name=value,name=value`; see `split_options`."""
        return cls.create_from_arg_obj(split_options(arg_string, OPTIONS), additional_config)

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict, additional_config: dict | None = None) -> "EvalsvcLM":
        """From a mapping of options.

        Raises:
            ConfigError: An option that does not exist, or none that names the model.
        """
        extra = {name: value for name, value in (additional_config or {}).items() if value is not None}
        options = {**arg_dict, **extra}
        for name in options:
            check_name(name, OPTIONS)
        if "pretrained" not in options:
            raise ConfigError("--model_args needs pretrained=DIRECTORY, a hub id or a GGUF file")
        return cls(**options)

    # -- text ----------------------------------------------------------------------------------------------------------

    @property
    def eot_token_id(self) -> int:
        """What ends a text."""
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text that has no context."""
        if self.custom_prefix_token_id is not None:
            return self.custom_prefix_token_id
        bos = self.tokenizer.bos_token_id
        return self.tokenizer.eos_token_id if bos is None else bos

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Ids of a text; a beginning-of-sequence token that it already spells is not doubled."""
        special = self.add_bos_token if add_special_tokens is None else add_special_tokens
        if add_special_tokens is None and string.startswith(self.tokenizer.decode(self.prefix_token_id)):
            special = False
        return self.tokenizer.encode(string, **({} if special is None else {"add_special_tokens": special}))

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """As the base class splits them, with a context that comes again encoded once."""
        kept = context.rstrip()
        ids = self._context_ids(kept)
        return list(ids), self.tok_encode(context + continuation)[len(ids) :]

    def _note_start(self, ids: Sequence[int]) -> None:
        """Counts the beginning-of-sequence tokens that a prompt begins with."""
        bos = self.tokenizer.bos_token_id
        self._begun[next((place for place, token in enumerate(ids) if token != bos), len(ids))] += 1

    def set_cache_hook(self, cache_hook: Any) -> None:
        """Takes lm-eval's cache of answers (`--use_cache`), which does not tell models apart, as this model's own.

        Raises:
            ConfigError: It holds answers of another model, plan or option, or answers of nobody knows whom.
        """
        kept = getattr(cache_hook, "dbdict", None)
        if kept is not None:
            owner = kept.get(CACHE_OWNER)
            if owner != self._whose and len(kept):
                whose = "another model, plan or option" if owner else "a model that nobody wrote down"
                raise ConfigError(f"the cache {kept.filename} holds answers of {whose}; give --use_cache another path")
            kept[CACHE_OWNER] = self._whose
        super().set_cache_hook(cache_hook)

    @property
    def tokenizer_name(self) -> str:
        """What lm-eval's cache of prompts is kept under."""
        digest = hashlib.sha256(json.dumps(self.engine.hashes["tokenizer"]).encode()).hexdigest()
        return f"{str(self.tokenizer.name_or_path).replace('/', '__')}__{digest[:16]}"

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A conversation as the model's template writes it, without its system turns where it refuses them."""
        options: dict[str, Any] = self.template_options | {
            "tokenize": False,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": not add_generation_prompt,
        }
        try:
            written = self.tokenizer.apply_chat_template(chat_history, **options)
        except jinja2.exceptions.TemplateError:
            log.warning("the chat template refuses this conversation; trying it without its system turns")
            rest = [turn for turn in chat_history if turn["role"] != "system"]
            written = self.tokenizer.apply_chat_template(rest, **options)
        return cast(str, written)

    # -- the three questions -------------------------------------------------------------------------------------------

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        groups: dict[tuple[int, ...], list[int]] = {}
        for i, (text, context, continuation) in enumerate(requests):
            if text is not None:  # no window of a rolling text, which begins anywhere
                self._note_start(context)
            groups.setdefault(self._window(context, continuation), []).append(i)
        asked = [
            ScoreRequest(
                context=context, continuations=[requests[i][2] for i in members], through=self.through, id=str(number)
            )
            for number, (context, members) in enumerate(groups.items())
        ]
        members = list(groups.values())
        found: dict[int, tuple[float, bool]] = {}
        for number, result in self._answers(asked, "Scoring contexts", disable_tqdm):
            assert isinstance(result, ScoreResult)
            for i, logprob, greedy in zip(members[number], result.logprobs, result.greedy, strict=True):
                found[i] = (logprob, greedy)
                if requests[i][0] is not None:
                    self.cache_hook.add_partial("loglikelihood", requests[i][0], found[i])
        return [found[i] for i in range(len(requests))]

    def _window(self, context: list[int], continuation: list[int]) -> tuple[int, ...]:
        """The context, without the beginning that does not fit; the last id of a continuation is never an input."""
        if not continuation:
            raise EngineError(f"the continuation after {self._quoted(context)} has no token of its own to score")
        room = self.max_length + 1 - len(continuation)
        if room < 1:
            raise EngineError(
                f"a continuation of {len(continuation)} tokens exceeds the {self.max_length} served; raise max_length"
            )
        if len(context) > room:
            log.warning(
                "context and continuation of %d + %d tokens exceed the %d served: %d tokens are cut off the beginning",
                len(context),
                len(continuation),
                self.max_length,
                len(context) - room,
            )
        return tuple(context[-room:])

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of whole texts, in lm-eval's windows of the model's length."""
        windows: list[tuple[tuple[str, str], list[int], list[int]]] = []
        owners: list[int] = []
        for i, request in enumerate(requests):
            ids = self.tok_encode(request.args[0])
            for pair in get_rolling_token_windows(ids, self.prefix_token_id, self.max_length, context_len=1):
                windows.append((cast(Any, None), *make_disjoint_window(pair)))
                owners.append(i)
        sums = [0.0] * len(requests)
        for i, (logprob, _) in zip(owners, self._loglikelihood_tokens(windows, disable_tqdm), strict=True):
            sums[i] += logprob
        for request, value in zip(requests, sums, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, value)
        return sums

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answers up to a stop string, the model's end of text, or the limit."""
        eos = cast(str, self.tokenizer.decode(self.eot_token_id, skip_special_tokens=False))
        repeats: Counter[str] = Counter()
        asked, stops = [], []
        for number, request in enumerate(requests):
            context, arguments = cast(tuple[str, dict], request.args)
            made, stop = self._generation(context, arguments, repeats, eos, number)
            asked.append(made)
            stops.append(stop)
        found: dict[int, str] = {}
        for number, result in self._answers(asked, "Generating", disable_tqdm):
            assert isinstance(result, GenerateResult)
            text = cast(str, self.tokenizer.decode(list(result.token_ids), skip_special_tokens=True))
            found[number] = postprocess_generated_text(text, stops[number], self.think_end_token)
            self.cache_hook.add_partial("generate_until", requests[number].args, found[number])
        return [found[number] for number in range(len(requests))]

    def _generation(
        self, context: str, arguments: dict, repeats: Counter[str], eos: str, number: int
    ) -> tuple[GenerateRequest, list[str]]:
        """The engine's request, and all strings that end its text."""
        how = generation_of(arguments, most=self.max_gen_toks)
        limit = how.max_tokens
        room = self.max_length - limit
        if room < 1:
            raise ConfigError(f"generation_kwargs max_gen_toks: {limit} leaves no prompt in {self.max_length} tokens")
        ids = self.tok_encode(context)
        self._note_start(ids)
        if len(ids) > room:
            log.warning("a prompt of %d tokens is cut to its last %d", len(ids), room)
        key = json.dumps([self.seed, context, arguments], default=str)
        repeats[key] += 1
        seed = int.from_bytes(hashlib.sha256(f"{key}{repeats[key]}".encode()).digest()[:4], "big")
        request = GenerateRequest(
            prompt=ids[-room:], max_tokens=limit, stop=how.stop, seed=seed, id=str(number), **how.sampling
        )
        return request, handle_stop_sequences(list(how.stop), eos=eos)

    def _answers(self, requests: Sequence[Request], what: str, disable_tqdm: bool) -> Iterator[tuple[int, Answer]]:
        """Results as they finish, with the number that was given as the request's id.

        Raises:
            EngineError: A request got no answer, which is never scored.
        """
        stream = self.engine.answer(requests)
        for result in tqdm(stream, total=len(requests), desc=what, disable=disable_tqdm):
            if isinstance(result, RequestFailure):
                size = self._size(requests[int(result.id)])
                remedy = "; raise kv_tokens or set max_length" if result.error in ("too_long", "pool") else ""
                raise EngineError(f"a request of {size} tokens got no answer: {result.error}: {result.message}{remedy}")
            yield int(result.id), result

    @staticmethod
    def _size(request: Request) -> int:
        if isinstance(request, ScoreRequest):
            return len(request.context) + max(map(len, request.continuations))
        return len(request.prompt) if isinstance(request, GenerateRequest) else len(request.text)

    def _quoted(self, ids: list[int]) -> str:
        return repr(self.tokenizer.decode(ids[-12:]))

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval stores beside the results: plan, hashes and the measured proof.

        Raises:
            EngineError: What was measured is not what the plan says, so the scores are not the plan's.
        """
        proof, plan = self.engine.proof(), str(self.engine.arm().spec.plan)
        if proof["mismatches"]:
            raise EngineError(f"the plan {plan} was not served: {'; '.join(proof['mismatches'])}")
        return {
            "plan": plan,
            "score_through": self.through,
            "max_length": self.max_length,
            "bos_at_start": {str(count): self._begun[count] for count in sorted(self._begun)},
            "model_hashes": self.engine.hashes,
            "proof": proof,
        }


def _positive(name: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ConfigError(f"{name}={value!r}: it is a number above 0")
    return value


OPTIONS = tuple(name for name in EvalsvcLM.__init__.__annotations__ if name != "return")


def register() -> None:
    """Makes `evalsvc` a model of lm-eval; once is enough and more does no harm."""
    if NAME not in model_registry:
        model_registry.register(NAME, target="evalsvc.harness:EvalsvcLM")


def main() -> None:
    """lm-eval's command line, with our model among its own."""
    from lm_eval.__main__ import cli_evaluate

    try:
        sys.argv[1:] = prepared(sys.argv[1:], NAME, OPTIONS)
        cli_evaluate()
    except EvalsvcError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except (ValueError, OSError) as error:
        if not _said_of_the_command_line(error):
            raise
        print(f"error: {_remedy(str(error))}", file=sys.stderr)
        sys.exit(ConfigError.exit_code)


def _said_of_the_command_line(error: BaseException) -> bool:
    """Whether lm-eval complains about what it was asked to do, of which nothing has begun."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and frames[-1].f_globals.get("__name__", "").startswith("lm_eval.config.")


def _remedy(complaint: str) -> str:
    """lm-eval's complaint in one line, and where a task is unknown, what to do."""
    line = " ".join(complaint.split())
    unknown = line.removeprefix("Tasks not found: ")
    if unknown == line:
        return line
    return (
        f"--tasks: lm-eval knows no {unknown}; `python -m evalsvc.harness ls tasks` lists what it ships, "
        "and the folder of a task file of yours goes with --include_path"
    )


register()

if __name__ == "__main__":
    main()
