"""A GGUF file's tokenizer, built from its fields.

A vocabulary alone does not say how text is cut before its merges apply; the field `tokenizer.ggml.pre` does, and a
tokenizer that does not follow it gives other ids for runs of spaces before digits, and the like. So each value of it is
served by name or refused.
"""

from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from evalsvc.errors import CapabilityError, EngineError

from .gguf_header import GgufHeader

_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4
_SPACE = "\u2581"
_LLAMA3 = ("llama3", "llama-v3", "llama-bpe")
_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DIGIT_BY_DIGIT = ("smollm", "starcoder", "refact", "command-r", "codeshell")
_ROLES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def build_tokenizer(header: GgufHeader) -> Any:
    """The tokenizer that a file's fields describe: a transformers `PreTrainedTokenizerFast`.

    Raises:
        CapabilityError: A kind of tokenizer that would not be built exactly.
        EngineError: Fields that are missing or contradict each other.
    """
    from transformers import PreTrainedTokenizerFast

    kind = header.fields.get("tokenizer.ggml.model")
    builders = {"gpt2": _byte_level, "llama": _sentencepiece}
    if kind not in builders:
        raise CapabilityError(_refusal(header, f"of kind {kind!r}", ", ".join(builders)))
    vocabulary = {token: i for i, token in enumerate(_array(header, "tokens"))}
    if len(vocabulary) != len(_array(header, "tokens")):
        raise CapabilityError(f"model {header.path}: its vocabulary spells two tokens alike, which is not served")
    roles = {name: _token(header, role) for name, role in _ROLES.items()}
    try:
        core = builders[kind](header, vocabulary)
        _add_whole_tokens(core, header)
        core.post_processor = _ends(header, roles)  # pyright: ignore[reportAttributeAccessIssue]
    except (EngineError, CapabilityError):
        raise
    except Exception as error:  # tokenizers raises bare Exception, for example for a merge of unknown tokens
        raise EngineError(f"model {header.path}: its tokenizer cannot be built ({error}); fetch it again") from None
    template = header.fields.get("tokenizer.chat_template")
    return PreTrainedTokenizerFast(tokenizer_object=core, chat_template=template, **roles)


def _byte_level(header: GgufHeader, vocabulary: dict[str, int]) -> Tokenizer:
    pre = header.fields.get("tokenizer.ggml.pre")
    merges = [tuple(merge.split(" ")) for merge in _array(header, "merges")]
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre in _LLAMA3))  # pyright: ignore
    if pre == "gpt-2":
        cut = pre_tokenizers.ByteLevel(add_prefix_space=False)
    elif pre in _DIGIT_BY_DIGIT:
        digits = pre_tokenizers.Digits(individual_digits=True)
        cut = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    elif pre in _LLAMA3:
        words = pre_tokenizers.Split(Regex(_LLAMA3_WORDS), behavior="isolated")
        rest = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        cut = pre_tokenizers.Sequence([words, rest])
    else:
        raise CapabilityError(_refusal(header, f"cut by {pre!r}", ", ".join(("gpt-2", *_DIGIT_BY_DIGIT, *_LLAMA3))))
    core.pre_tokenizer = cut  # pyright: ignore[reportAttributeAccessIssue]
    core.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    return core


def _sentencepiece(header: GgufHeader, vocabulary: dict[str, int]) -> Tokenizer:
    """sentencepiece's BPE: of all neighbours whose union is a normal token, those of the best score join first.

    Where the file asks for a space before text, whole tokens begin a new text, as they do in the format's own runtime.
    """
    if header.fields.get("tokenizer.ggml.precompiled_charsmap"):
        raise CapabilityError(_refusal(header, "with a table of characters", "sentencepiece without one"))
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=_merges(header), byte_fallback=True, fuse_unk=True))
    normalizer: Any = normalizers.Replace(" ", _SPACE)
    steps: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if _space_before_text(header):
        normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), normalizer])
        steps.append(decoders.Strip(" ", 1, 0))
    core.normalizer = normalizer  # pyright: ignore[reportAttributeAccessIssue]
    core.decoder = decoders.Sequence(steps)  # pyright: ignore[reportAttributeAccessIssue]
    return core


def _space_before_text(header: GgufHeader) -> bool:
    spm = header.fields.get("tokenizer.ggml.model") == "llama"
    return spm and bool(header.fields.get("tokenizer.ggml.add_space_prefix", True))


def _merges(header: GgufHeader) -> list[tuple[str, str]]:
    tokens, scores, kinds = (_array(header, key) for key in ("tokens", "scores", "token_type"))
    normal = {token for token, kind in zip(tokens, kinds, strict=True) if kind == _NORMAL}
    best_first = sorted(range(len(tokens)), key=lambda i: -scores[i])
    return [
        (token[:at], token[at:])
        for token in (tokens[i] for i in best_first if tokens[i] in normal)
        for at in range(1, len(token))
        if token[:at] in normal and token[at:] in normal
    ]


def _add_whole_tokens(core: Tokenizer, header: GgufHeader) -> None:
    """Tokens that are found in text as wholes: control tokens, and those that the vocabulary's maker defined."""
    tokens = _array(header, "tokens")
    kinds: Sequence[int] = header.fields.get("tokenizer.ggml.token_type", [_NORMAL] * len(tokens))
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    defined = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _USER_DEFINED]
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    plain = not _space_before_text(header)  # then a run of spaces is found however the text spells it
    core.add_tokens([AddedToken(token, special=False, normalized=plain and " " in token) for token in defined])


def _ends(header: GgufHeader, roles: dict[str, str | None]) -> processors.TemplateProcessing:
    spm_or_llama3 = "tokenizer.ggml.scores" in header.fields or header.fields.get("tokenizer.ggml.pre") in _LLAMA3
    parts, used = ["$A"], []
    for role, default, at in (("bos", spm_or_llama3, 0), ("eos", False, 1)):
        if header.fields.get(f"tokenizer.ggml.add_{role}_token", default):
            token, i = roles[f"{role}_token"], header.token_id(role)
            if token is None or i is None:
                raise EngineError(f"model {header.path}: its tokenizer is to add a {role} token and has none")
            parts.insert(at * len(parts), token)
            used.append((token, i))
    return processors.TemplateProcessing(single=parts, special_tokens=used)


def _array(header: GgufHeader, key: str) -> list:
    held = header.fields.get(f"tokenizer.ggml.{key}")
    if not isinstance(held, list):
        raise EngineError(f"model {header.path}: field tokenizer.ggml.{key} is missing or no list; fetch it again")
    return held


def _token(header: GgufHeader, role: str) -> str | None:
    i, tokens = header.token_id(role), _array(header, "tokens")
    if i is None:
        return None
    if not 0 <= i < len(tokens):
        raise EngineError(f"model {header.path}: its {role} token {i} is not one of its {len(tokens)} tokens")
    return tokens[i]


def _refusal(header: GgufHeader, what: str, served: str) -> str:
    return (
        f"model {header.path}: a GGUF tokenizer {what} is not built exactly and so not served; served: {served}; "
        "give the model as a directory with its own tokenizer.json"
    )
