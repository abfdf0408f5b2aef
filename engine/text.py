"""Text to token ids and back, as lm-eval and transformers do it."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from transformers import AutoTokenizer, GenerationConfig

from evalsvc.errors import EngineError


class Text:
    """One model's tokenizer.

    Attributes:
        eos_ids: Union of the ids that generation_config, config and tokenizer call end of sequence.
    """

    def __init__(self, path: Path, config_eos: int | list[int] | None):
        try:
            self.tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
            generation = (path / "generation_config.json").is_file() and GenerationConfig.from_pretrained(path)
        except Exception as error:  # tokenizers raises bare Exception for a file of the wrong form
            reason = str(error).partition("\n")[0]
            raise EngineError(f"model {path}: the tokenizer cannot be loaded ({reason}); fetch it again") from None
        ids = [config_eos, self.tokenizer.eos_token_id, generation.eos_token_id if generation else None]
        flat = [i for entry in ids for i in (entry if isinstance(entry, list) else [entry])]
        self.eos_ids = frozenset(i for i in flat if i is not None)

    def encode(self, prompt: str | Sequence[int]) -> list[int]:
        """Ids of a prompt; a beginning-of-sequence token that the text already spells is not doubled.

        Raises:
            EngineError: Text that is not Unicode (half a surrogate pair).
        """
        if not isinstance(prompt, str):
            return list(prompt)
        try:
            prompt.encode()
        except UnicodeEncodeError as error:
            raise EngineError(f"the text holds half a surrogate pair at character {error.start}") from None
        bos = self.tokenizer.bos_token
        return self.tokenizer.encode(prompt, add_special_tokens=not (bos and prompt.startswith(bos)))

    def encode_pair(
        self, context: str | Sequence[int], continuation: str | Sequence[int]
    ) -> tuple[list[int], list[int]]:
        """Ids of a context and of its continuation, split as lm-eval's `TemplateLM._encode_pair` splits them.

        Spaces at the end of the context move to the continuation; the two are encoded together and cut after the
        context's own length.
        """
        if not isinstance(context, str) or not isinstance(continuation, str):
            if isinstance(context, str) or isinstance(continuation, str):
                raise EngineError("a context and its continuations are either all text or all token ids")
            return list(context), list(continuation)
        kept = context.rstrip()
        moved = context[len(kept) :] + continuation
        ids = self.encode(kept)
        return ids, self.encode(kept + moved)[len(ids) :]

    def shared_tokens(self, ids: Sequence[int], prefix: str) -> int:
        """How many leading ids are the encoding of a shared prefix; always leaves one id to compute."""
        if not prefix:
            return 0
        count = 0
        for mine, theirs in zip(ids[:-1], self.encode(prefix), strict=False):
            if mine != theirs:
                break
            count += 1
        return count

    def decode(self, last_prompt_id: int, ids: Sequence[int]) -> str:
        """Text of generated ids, special tokens left out, a leading space kept.

        The last prompt token is decoded along, since tokenizers of the sentencepiece kind drop the space at the start.
        """
        options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        base: str = self.tokenizer.decode([last_prompt_id], **options)  # pyright: ignore[reportAssignmentType]
        whole: str = self.tokenizer.decode([last_prompt_id, *ids], **options)  # pyright: ignore[reportAssignmentType]
        if whole.startswith(base):
            return whole[len(base) :]
        return self.tokenizer.decode(list(ids), **options)  # pyright: ignore[reportReturnType]


def cut_at_stop(text: str, stop: Sequence[str]) -> str | None:
    """The text before the earliest stop string, or None when it holds none."""
    found = [at for at in (text.find(s) for s in stop) if at >= 0]
    return text[: min(found)] if found else None


def foreign_id(ids: Sequence[int], vocabulary: int) -> str | None:
    """What is wrong with the first id that a model of `vocabulary` tokens does not know; None when all are its own."""
    for i in ids:
        if not isinstance(i, int) or not 0 <= i < vocabulary:
            return f"token id {i!r} is not one of the model's 0 to {vocabulary - 1}"
    return None


def hash_ids(ids: Sequence[int]) -> str:
    """sha256 of token ids."""
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()
