"""Text and messages to token ids and back, as lm-eval and transformers do it."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence, Set
from functools import cached_property
from typing import Any

from transformers import PreTrainedTokenizerBase

from evalsvc.errors import EngineError

from .requests import Messages

EndIds = int | list[int] | None


class Text:
    """One model's tokenizer.

    Attributes:
        tokenizer: transformers' own.
        eos_ids: Union of the ids that generation_config, config and tokenizer call end of sequence.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, config_eos: EndIds = None, generation_eos: EndIds = None):
        self.tokenizer = tokenizer
        ids = [config_eos, tokenizer.eos_token_id, generation_eos]
        flat = [i for entry in ids for i in (entry if isinstance(entry, list) else [entry])]
        self.eos_ids = frozenset(i for i in flat if i is not None)

    def encode(self, prompt: str | Sequence[int] | Messages, tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """Ids of a prompt; a beginning-of-sequence token that the text already spells is not doubled.

        Args:
            prompt: Text, ids or messages.
            tools: As in `render`; for messages alone.

        Raises:
            EngineError: Text that is not Unicode (half a surrogate pair), messages that `render` refuses, or tools
                without messages.
        """
        messages = not isinstance(prompt, str) and (
            isinstance(prompt, Mapping) or any(isinstance(entry, Mapping) for entry in prompt)
        )
        if tools and not messages:
            raise EngineError("tools go with messages: a prompt of text or token ids shows what it shows")
        if isinstance(prompt, str):
            _check_unicode(prompt)
            bos = self.tokenizer.bos_token
            spelt = isinstance(bos, str) and bos and prompt.startswith(bos)
            return self.tokenizer.encode(prompt, add_special_tokens=not spelt)
        if messages:
            return self.render(prompt, tools or None)  # pyright: ignore[reportArgumentType]
        return list(prompt)  # pyright: ignore[reportReturnType]

    def render(self, messages: Messages, tools: Sequence[Mapping[str, Any]] | None = None) -> list[int]:
        """Ids of a conversation in the model's chat template, up to where the assistant's answer begins.

        The template alone says where a beginning-of-sequence token stands: none is added to it.

        Args:
            messages: As of `write`.
            tools: As of `write`.

        Raises:
            EngineError: As `write`.
        """
        return self.encode_plain(self.write(messages, tools))

    def write(self, messages: Messages, tools: Sequence[Mapping[str, Any]] | None = None) -> str:
        """A conversation as the model's chat template writes it, up to where the assistant's answer begins.

        Args:
            messages: Each with a `role` and a `content`. The last one is not the assistant's, unless it says
                `"prefix": True`: then the answer goes on from it.
            tools: JSON schemas of functions, for templates that know them.

        Raises:
            EngineError: No chat template, a message of another form, or one that the template refuses.
        """
        template = self._template()
        if tools and "tools" not in template:
            raise EngineError(f"{self._name}: its chat template takes no tools; leave them out")
        plain, begun = _checked(messages)
        try:
            text = self.tokenizer.apply_chat_template(
                plain,
                tools=None if tools is None else [dict(tool) for tool in tools],
                chat_template=template,
                add_generation_prompt=not begun,
                continue_final_message=begun,
                tokenize=False,
            )
        except Exception as error:  # a template is a program: whatever it raises is its word on these messages
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise EngineError(f"{self._name}: its chat template refuses the messages ({reason})") from None
        assert isinstance(text, str)
        _check_unicode(text, "the conversation")
        return text

    def leading_bos(self, prompt: str | Sequence[int] | Messages, tools: Sequence[Mapping[str, Any]] = ()) -> int:
        """Beginning-of-sequence tokens at the start of a prompt as `encode` makes it; only the start is encoded.

        Raises:
            EngineError: As `encode`.
        """
        bos, spelt = self.tokenizer.bos_token_id, self.tokenizer.bos_token
        if not isinstance(prompt, str) and any(isinstance(entry, Mapping) for entry in prompt):
            text = self.write(prompt, tools or None)  # pyright: ignore[reportArgumentType]
            ids = self.encode_plain(text[: _start(spelt)])
        else:
            ids = self.encode(prompt[: _start(spelt)] if isinstance(prompt, str) else prompt)
        return next((place for place, token in enumerate(ids) if token != bos), len(ids))

    @cached_property
    def adds_bos(self) -> bool | None:
        """Whether a plain text begins with a beginning-of-sequence token; None where the tokenizer knows none."""
        bos = self.tokenizer.bos_token_id
        return None if bos is None else self.tokenizer.encode("a")[:1] == [bos]

    @property
    def prefix_id(self) -> int:
        """What a text without context follows, as in lm-eval: beginning of sequence, else its end.

        Raises:
            EngineError: The tokenizer names neither.
        """
        bos = self.tokenizer.bos_token_id
        found = self.tokenizer.eos_token_id if bos is None else bos
        if found is None:
            raise EngineError("the tokenizer names neither a beginning nor an end of sequence: give a context")
        return int(found)  # pyright: ignore[reportArgumentType]

    def encode_plain(self, text: str) -> list[int]:
        """Ids of a text, without the special tokens that a prompt begins with."""
        _check_unicode(text)
        return self.tokenizer.encode(text, add_special_tokens=False)

    def encode_pair(
        self, context: str | Sequence[int] | Messages, continuation: str | Sequence[int]
    ) -> tuple[list[int], list[int]]:
        """Ids of a context and of its continuation, split as lm-eval's `TemplateLM._encode_pair` splits them.

        Spaces at the end of the context move to the continuation; the two are encoded together and cut after the
        context's own length. Without context a text follows `prefix_id`, once.
        """
        if isinstance(continuation, str) and isinstance(context, Sequence):
            if not isinstance(context, str) and any(isinstance(entry, Mapping) for entry in context):
                return _split(self.write(context), continuation, self.encode_plain)  # pyright: ignore[reportArgumentType]
            if context == "":
                ids = self.encode_plain(continuation)
                return ([self.prefix_id], ids[1:] if ids[:1] == [self.prefix_id] else ids)
        if not isinstance(context, str) or not isinstance(continuation, str):
            if isinstance(context, str) or isinstance(continuation, str):
                raise EngineError("a context and its continuations are either all text or all token ids")
            return list(context), list(continuation)  # pyright: ignore[reportReturnType]
        return _split(context, continuation, self.encode)

    def plain(self, ids: Sequence[int]) -> str:
        """What ids spell by themselves, special tokens left out."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)  # pyright: ignore[reportReturnType]

    def decode(self, last_prompt_id: int, ids: Sequence[int]) -> str:
        """Text of generated ids, special tokens left out, a leading space kept.

        The last prompt token is decoded along, since tokenizers of the sentencepiece kind drop the space at the start.
        """
        base, whole = self.plain([last_prompt_id]), self.plain([last_prompt_id, *ids])
        if whole.startswith(base):
            return whole[len(base) :]
        return self.plain(ids)

    def spelt(self, ids: Sequence[int]) -> str:
        """What ids spell by themselves, special tokens included."""
        return self.tokenizer.decode(  # pyright: ignore[reportReturnType]
            list(ids),
            skip_special_tokens=False,
            clean_up_tokenization_spaces=False,
            spaces_between_special_tokens=False,
        )

    def apart(self, ids: Set[int]) -> dict[int, str]:
        """What each id spells behind other text, special tokens included."""
        for token in ids - self._apart.keys():
            once, twice = self.spelt([token]), self.spelt([token, token])
            self._apart[token] = twice[len(once) :] if twice.startswith(once) else once
        return {token: self._apart[token] for token in ids}

    @cached_property
    def _apart(self) -> dict[int, str]:
        return {}

    @cached_property
    def special_tokens(self) -> dict[int, str]:
        """What the tokens that `plain` leaves out look like."""
        return {i: token.content for i, token in self.tokenizer.added_tokens_decoder.items() if token.special}

    def piece(self, token: int) -> str | None:
        """How the vocabulary spells one token; None for one that `plain` leaves out."""
        if token in self.special_tokens:
            return None
        return self.tokenizer.convert_ids_to_tokens(token)  # pyright: ignore[reportReturnType]

    @cached_property
    def decodes_locally(self) -> bool:
        """Whether a token's text depends on the tokens just before it alone, and changes none but an open character.

        Known of the usual decoders (bytes, sentencepiece with and without byte tokens, WordPiece);
        False for every other.
        """
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            return False
        if backend.decoder is None:
            return True
        tree = json.loads(backend.decoder.__getstate__())
        joined = False
        for step in tree["decoders"] if tree["type"] == "Sequence" else [tree]:
            if not _is_local(step, joined):
                return False
            joined = joined or step["type"] in ("Fuse", "ByteLevel")
        return True

    @property
    def _name(self) -> str:
        return f"model {self.tokenizer.name_or_path or 'without a name'}"

    def _template(self) -> str:
        templates = getattr(self.tokenizer, "chat_template", None)
        if isinstance(templates, Mapping):
            templates = templates.get("default")
        if not templates:
            raise EngineError(
                f"{self._name} has no chat template; give the prompt as text or token ids, "
                "or put a chat_template.jinja beside its tokenizer"
            )
        return templates


def _split(context: str, continuation: str, encode: Callable[[str], list[int]]) -> tuple[list[int], list[int]]:
    kept = context.rstrip()
    ids = encode(kept)
    return ids, encode(context + continuation)[len(ids) :]


def _start(bos: Any) -> int:
    """Characters that hold a few spellings of the beginning-of-sequence token and some more."""
    return 16 + 8 * len(str(bos or ""))


def foreign_id(ids: Sequence[int], vocabulary: int) -> str | None:
    """What is wrong with the first id that a model of `vocabulary` tokens does not know; None when all are its own."""
    for i in ids:
        if not isinstance(i, int) or not 0 <= i < vocabulary:
            return f"token id {i!r} is not one of the model's 0 to {vocabulary - 1}"
    return None


def hash_ids(ids: Sequence[int]) -> str:
    """sha256 of token ids."""
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()


def _check_unicode(text: str, what: str = "the text") -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise EngineError(f"{what} holds half a surrogate pair at character {error.start}") from None


def _checked(messages: Messages) -> tuple[list[dict[str, Any]], bool]:
    """Copies of messages of the right form, and whether the last one is an answer to go on from."""
    if isinstance(messages, Mapping):
        raise EngineError("one message is not a conversation; give a list of messages")
    if not messages:
        raise EngineError("the conversation has no message")
    for number, message in enumerate(messages, 1):
        place = f"message {number} of {len(messages)}"
        if not isinstance(message, Mapping):
            raise EngineError(f"{place} is {message!r}; token ids and messages do not mix")
        if not isinstance(message.get("role"), str):
            raise EngineError(f"{place} has no role")
        content = message.get("content")
        if content is None and not message.get("tool_calls"):
            raise EngineError(f"{place} has no content")
        if isinstance(content, str):
            _check_unicode(content, place)
    plain = [dict(message) for message in messages]
    begun = plain[-1].pop("prefix", False) is True
    if begun and (plain[-1]["role"] != "assistant" or not isinstance(plain[-1].get("content"), str)):
        raise EngineError("the last message says `prefix`, and is no text of the assistant's")
    if plain[-1]["role"] == "assistant" and not begun:
        raise EngineError(
            "the last message is the assistant's; end with another's message, or give it `\"prefix\": True` "
            "for an answer that goes on from it"
        )
    return plain, begun


def _is_local(step: dict[str, Any], joined: bool) -> bool:
    """Whether one step of a decoder keeps the text of distant tokens apart; `joined` when it sees the whole text."""
    match step["type"]:
        case "Replace":
            return len(step["pattern"].get("String", "")) == 1
        case "Strip":
            return not joined or step["stop"] == 0
        case "Metaspace" | "ByteFallback" | "WordPiece" | "ByteLevel":
            return not joined
        case kind:
            return kind == "Fuse"
