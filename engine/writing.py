"""An answer's text while it grows: what is written so far, whether a stop string ended it, what may be shown already.

The text after k tokens is `Text.decode` of those k, cut before the earliest stop string. Decoding all of them at every
token would cost k each; instead a window of the last tokens is decoded, and the text before it kept. That is the same
text for decoders of which `Text.decodes_locally` knows that

- a token's text depends on what stands before it only through whether any text does, through an open run of byte tokens
  (`<0xE2>`: the run is read as a whole), or through at most three bytes of an open character;
- later tokens change no earlier text but an open run of byte tokens, and one U+FFFD at the end, an open character.

So a window may begin anywhere when its context, the part of it whose text is kept already, spells four characters (then
whatever was open where it begins has ended in it), and ends outside a run of byte tokens, its last U+FFFD taken off.
A run of byte tokens is decoded as a whole each time, and so is the whole answer of any other decoder.
"""

from collections.abc import Collection, Sequence

from .text import Text

OPEN = "\ufffd"
REACH = 8
"""Tokens of context in a window; it moves when as many new ones follow."""


class Writer:
    """One growing answer.

    Attributes:
        ended: Whether an end-of-sequence id, a stop string or `finish` has ended it.
    """

    def __init__(
        self,
        text: Text,
        last_prompt_id: int,
        stop: Sequence[str] = (),
        eos_ids: Collection[int] = (),
        keep_special: bool = False,
    ):
        """
        Args:
            text: The tokenizer.
            last_prompt_id: Decoded along, as in `Text.decode`.
            stop: None of them empty. One that spells a special token matches that token.
            eos_ids: Tokens that end the answer and are no part of it.
            keep_special: Whether other special tokens are part of its text.
        """
        self._tokenizer = text
        self._keep_special = keep_special
        self._plain = text.spelt if keep_special else text.plain
        self._stop = tuple(stop)
        self._eos = eos_ids
        self.ended = False
        self._ids = [last_prompt_id]
        self._written = 1
        # ids[_start:] decode to _context + _tail, and the answer is _kept + _tail
        self._start = 0
        self._context = self._plain([last_prompt_id])
        self._kept = ""
        self._tail = ""
        self._byte_run = False
        self._final = 0
        self._shown = 0
        special = text.special_tokens if self._stop and not keep_special else {}
        self._special_stop = tuple(s for s in self._stop if any(content in s for content in special.values()))
        self._special = special if self._special_stop else {}
        self._marks: list[tuple[int, str]] = []
        self._longest = max(map(len, self._stop), default=1)

    @property
    def text(self) -> str:
        """The answer so far, cut before the earliest stop string."""
        self._write()
        return self._kept + self._tail

    def push(self, token: int) -> bool:
        """Takes the next token; True when it has ended the answer."""
        if self.ended:
            raise ValueError("the answer has ended")
        self.ended = token in self._eos
        if not self.ended:
            self._ids.append(token)
            piece = self._tokenizer.piece(token)
            if piece is not None:
                self._byte_run = piece.startswith("<0x") and piece.endswith(">")
            elif self._keep_special:
                self._byte_run = False
        if not self._stop:
            return self.ended
        self._decode()
        if token in self._special:
            self._marks.append((len(self._kept) + len(self._tail), self._special[token]))
        cut = self._find_stop()
        if cut is not None:
            whole = self._kept + self._tail
            self._kept, self._tail, self.ended = whole[:cut], "", True
        elif not self.ended:
            self._move()
        return self.ended

    def settled(self) -> str:
        """The text since the last call that no token can change any more, and that begins no stop string.

        After the end, all that remains.
        """
        self._write()
        end = len(self._kept) + len(self._tail) if self.ended else self._final - self._held_back()
        start, self._shown = self._shown, end
        return self._slice(start)[: end - start]

    def finish(self) -> str:
        """Ends the answer where it stands; its whole text."""
        self.ended = True
        return self.text

    def _slice(self, start: int) -> str:
        """The text from a character on."""
        kept = len(self._kept)
        return self._kept[start:] + self._tail if start < kept else self._tail[start - kept :]

    def _write(self) -> None:
        if self._written < len(self._ids):
            self._decode()
            self._move()

    def _decode(self) -> None:
        """Brings the text up to the last token."""
        if self._written == len(self._ids):
            return
        self._written = len(self._ids)
        whole = self._plain(self._ids[self._start :])
        if self._start or whole.startswith(self._context):
            self._tail = whole[len(self._context) :]
        else:
            self._tail = self._plain(self._ids[1:])
        if self._tokenizer.decodes_locally and not self._byte_run:
            self._final = len(self._kept) + len(self._tail) - self._tail.endswith(OPEN)

    def _move(self) -> None:
        """Keeps the text so far and moves the window's start, where that is safe."""
        if self._byte_run or not self._tokenizer.decodes_locally or len(self._ids) - self._start < 2 * REACH:
            return
        context = self._plain(self._ids[-REACH:])
        if len(context) < 4:
            return
        open_ = int(context.endswith(OPEN))
        kept = len(self._tail) - open_
        self._start = len(self._ids) - REACH
        self._context = context[: len(context) - open_]
        self._kept, self._tail = self._kept + self._tail[:kept], self._tail[kept:]

    def _find_stop(self) -> int | None:
        """Where the earliest stop string begins. What was kept before this token has been searched."""
        start = max(0, len(self._kept) - self._longest + 1)
        text = self._slice(start)
        found = [start + at for at in (text.find(s) for s in self._stop) if at >= 0]
        if self._special_stop:
            spelt, places = self._spell(start)
            found += [places[at] for at in (spelt.find(s) for s in self._special_stop) if at >= 0]
        return min(found, default=None)

    def _spell(self, start: int) -> tuple[str, list[int]]:
        """The text from a character on with special tokens in it, and the place in the text of each character of it."""
        text = self._slice(start)
        spelt, places = "", []
        at = 0
        for place, content in [*((p, c) for p, c in self._marks if p >= start), (start + len(text), "")]:
            spelt += text[at : place - start] + content
            places += [*range(start + at, place), *[place] * len(content)]
            at = place - start
        return spelt, places

    def _held_back(self) -> int:
        """How many of the final characters could still begin a stop string."""
        start = max(0, self._final - self._longest + 1)
        text = self._slice(start)[: self._final - start]
        held = max((_overlap(text, s) for s in self._stop), default=0)
        if self._special_stop:
            spelt, places = self._spell(start)
            spelt = spelt[: sum(place < self._final for place in places)]
            begun = max(_overlap(spelt, s) for s in self._special_stop)
            if begun:
                held = max(held, self._final - places[len(spelt) - begun])
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of the text that begins the stop string without being all of it."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
