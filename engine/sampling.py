"""From logits to tokens: greedy, or drawn by a request's own noise.

The order and the kept sets are transformers' (`GenerationMixin._get_logits_processor`), in fp32 on one row:

1. repetition penalty: z_i / penalty where z_i >= 0, z_i * penalty where z_i < 0, for every i seen (Keskar et al. 2019),
2. temperature: z_i / T,
3. top-k: what is below the k-th largest goes (what ties with it stays),
4. top-p: in ascending order, what lies within the first 1 - top_p of the probability goes (Holtzman et al. 2020),
5. min-p: what is below min_p times the largest probability goes (Nguyen et al. 2024).

Of the tokens i that stay, argmax_i z_i + G_i is taken, where G_i = -log(-log U_i) are Gumbel variables: that is a draw
from softmax(z) (Gumbel-max). U_i is word i of a Philox counter generator keyed by (seed, sample) at counter step, so it
depends on nothing else: not on the batch, on what was drawn before, or on which tokens the filters keep. Two arms that
answer the same request meet the same noise, and so differ only where their distributions make them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np
import torch
from torch import Tensor

from .requests import GenerateRequest, TokenLogprobs

BLOCK = 64  # values of a row whose largest is looked at first
TIES = 8  # tokens read beyond those that are named, for they may tie


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn; the fields are `GenerateRequest`'s."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0

    @classmethod
    def from_request(cls, request: GenerateRequest) -> "Sampling":
        return cls(**{field.name: getattr(request, field.name) for field in fields(cls)})

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token of the model's own logits is taken."""
        return self.temperature == 0 and self.repetition_penalty == 1


@dataclass
class Choice:
    """One row's next token.

    Attributes:
        sampling: How it is drawn.
        sample: Which of the request's answers, from 0.
        step: Index of the token in the answer, from 0.
        seen: Ids of prompt and answer so far; read only when there is a repetition penalty.
    """

    sampling: Sampling
    sample: int = 0
    step: int = 0
    seen: Sequence[int] = field(default_factory=list)


def problem(sampling: Sampling) -> str | None:
    """What is wrong with the parameters, in one sentence; None when nothing is."""
    s = sampling
    checks = {
        f"temperature is {s.temperature!r}; it must be a finite number from 0": _number(s.temperature)
        and s.temperature >= 0,
        f"top_k is {s.top_k!r}; it must be a whole number from 0, where 0 keeps all": _whole(s.top_k) and s.top_k >= 0,
        f"top_p is {s.top_p!r}; it must be above 0 and at most 1": _number(s.top_p) and 0 < s.top_p <= 1,
        f"min_p is {s.min_p!r}; it must be from 0 to 1": _number(s.min_p) and 0 <= s.min_p <= 1,
        f"repetition_penalty is {s.repetition_penalty!r}; it must be a finite number above 0": _number(
            s.repetition_penalty
        )
        and s.repetition_penalty > 0,
        f"seed is {s.seed!r}; it must be a whole number from 0 to 2**64 - 1": _whole(s.seed) and 0 <= s.seed < 2**64,
    }
    return next((message for message, fine in checks.items() if not fine), None)


def choose(logits: Tensor, wants: Sequence[Choice]) -> list[int]:
    """The next token of every row; no row's depends on another's.

    Args:
        logits: Shape (rows, vocabulary), fp32, finite or -inf, at least one finite in a row.
        wants: One a row, whose sampling has no `problem`.
    """
    likeliest = logits.argmax(dim=-1).tolist()
    return [
        token if want.sampling.greedy else _draw(row, want)
        for token, row, want in zip(likeliest, logits, wants, strict=True)
    ]


def top_logprobs(row: Tensor, token: int, k: int) -> TokenLogprobs:
    """A token's log-probability under the model's own distribution, and the k likeliest tokens'.

    Args:
        row: The model's logits, shape (vocabulary,), fp32.
        token: The token that was taken.
        k: How many of the likeliest to name, descending; of equal ones the lower id comes first.
    """
    return all_top_logprobs(row[None], [token], [k])[0]


def all_top_logprobs(rows: Tensor, tokens: Sequence[int], ks: Sequence[int]) -> list[TokenLogprobs]:
    """The same of many rows at once, in a few operations for all of them.

    Args:
        rows: Logits, shape (rows, vocabulary), fp32.
        tokens: One a row.
        ks: One a row.
    """
    vocabulary = rows.shape[1]
    count = min(max(ks) + TIES, vocabulary)
    logprobs = rows.log_softmax(dim=-1)
    values, ids = largest(rows, count)
    own = torch.tensor(tokens, device=rows.device)[:, None]
    held = logprobs.gather(1, torch.cat([ids, own], dim=1)).tolist()
    found: list[TokenLogprobs] = []
    for row, (value, named, token, k) in enumerate(zip(values.tolist(), ids.tolist(), tokens, ks, strict=True)):
        k = min(k, vocabulary)
        if k > 0 and count < vocabulary and value[k - 1] == value[-1]:  # more may tie than were read
            top = _with_ties(rows[row], logprobs[row], value[-1], k)
        else:
            distinct = len({*value[: k + 1]}) == min(k + 1, count)
            order = range(k) if distinct else sorted(range(count), key=lambda i: (-value[i], named[i]))[:k]
            top = tuple((named[i], held[row][i]) for i in order)
        found.append(TokenLogprobs(token=token, logprob=held[row][-1], top=top))
    return found


def _with_ties(row: Tensor, logprobs: Tensor, least: float, k: int) -> tuple[tuple[int, float], ...]:
    """The k likeliest of a row, the last of which has this logit, as many others may have."""
    among = (row >= least).nonzero().squeeze(1)
    ids = among[row[among].argsort(descending=True, stable=True)[:k]]
    return tuple(zip(ids.tolist(), logprobs[ids].tolist(), strict=True))


def largest(rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest values of each row and where they are, descending, as `Tensor.topk`; of ties any.

    On a processor topk reads a row slowly. Every one of the k largest lies in one of the k blocks with the largest
    maxima (a block outside of them has k values before it), so that only those blocks are read again.

    Args:
        rows: Shape (rows, vocabulary).
        k: From 1 to the vocabulary.
    """
    count, vocabulary = rows.shape
    blocks = vocabulary // BLOCK
    if rows.device.type != "cpu" or blocks <= 4 * k:
        top = rows.topk(k, dim=-1)
        return top.values, top.indices
    whole = rows[:, : blocks * BLOCK].reshape(count, blocks, BLOCK)
    chosen = whole.amax(dim=-1).topk(k, dim=-1).indices
    inside = chosen[..., None] * BLOCK + torch.arange(BLOCK)
    rest = torch.arange(blocks * BLOCK, vocabulary).expand(count, -1)
    places = torch.cat([inside.flatten(1), rest], dim=1)
    top = rows.gather(1, places).topk(k, dim=-1)
    return top.values, places.gather(1, top.indices)


def filtered(row: Tensor, sampling: Sampling, seen: Sequence[int] = ()) -> Tensor:
    """The row after penalty, temperature and filters; -inf where a token may not be drawn. Temperature above 0."""
    scores = _tempered(_penalized(row, sampling.repetition_penalty, seen), sampling.temperature)
    if 0 < sampling.top_k < len(scores):
        scores = scores.masked_fill(scores < scores.topk(sampling.top_k).values[-1], -torch.inf)
    if sampling.top_p < 1:
        scores = _nucleus(scores, sampling.top_p)
    if sampling.min_p > 0:
        probabilities = scores.softmax(dim=-1)
        scores = scores.masked_fill(probabilities < sampling.min_p * probabilities.max(), -torch.inf)
    return scores


def _draw(row: Tensor, want: Choice) -> int:
    row = row.float().cpu()
    if want.sampling.temperature == 0:
        return int(_penalized(row, want.sampling.repetition_penalty, want.seen).argmax())
    scores = filtered(row, want.sampling, want.seen)
    kept = (scores > -torch.inf).nonzero().squeeze(1).numpy()
    noise = gumbel(want.sampling.seed, want.sample, want.step, kept)
    return int(kept[np.argmax(scores.numpy()[kept].astype(np.float64) + noise)])


def gumbel(seed: int, sample: int, step: int, ids: np.ndarray) -> np.ndarray:
    """Gumbel noise of tokens at one step of one answer, fp64, within -3.7 and 36.8.

    Args:
        ids: Of the tokens, ascending, at least one.
    """
    key = np.array([seed, sample], dtype=np.uint64)
    counter = np.array([0, step, 0, 0], dtype=np.uint64)
    words = np.random.Philox(key=key, counter=counter).random_raw(int(ids[-1]) + 1)[ids]
    uniform = ((words >> np.uint64(12)) + 0.5) * 2.0**-52  # 52 bits, so that the largest is below 1
    return -np.log(-np.log(uniform))


def _penalized(row: Tensor, penalty: float, seen: Sequence[int]) -> Tensor:
    if penalty == 1:
        return row
    ids = torch.tensor([i for i in set(seen) if i < len(row)], dtype=torch.long, device=row.device)
    scores = row[ids]
    return row.index_put((ids,), torch.where(scores < 0, scores * penalty, scores / penalty))


def _tempered(row: Tensor, temperature: float) -> Tensor:
    """row / temperature; where that leaves fp32, the same distribution with 0 as its largest."""
    scores = row / temperature
    peak = scores.max()
    if bool(peak.isfinite()) and not bool(scores.isnan().any()):
        return scores
    wide = row.double()
    return ((wide - wide.max()) / temperature).float()


def _nucleus(scores: Tensor, top_p: float) -> Tensor:
    """Sorts values alone, far cheaper than a sort with indices; of equal ones at the border the lower ids stay."""
    values = scores.numpy()
    live = np.sort(values[values > -np.inf])
    ascending = torch.full_like(scores, -torch.inf)
    ascending[len(scores) - len(live) :] = torch.from_numpy(live)
    gone = int((ascending.softmax(dim=-1).cumsum(dim=-1)[:-1] <= 1 - top_p).sum())
    border = ascending[gone]
    stays = scores > border
    at_border = (scores == border).nonzero().squeeze(1)
    stays[at_border[: len(scores) - gone - int(stays.sum())]] = True
    return scores.masked_fill(~stays, -torch.inf)


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
