"""Pages of shared prefixes, kept by one prefill stage under the exact token ids."""

from .pool import KVPool, Sequence


class PrefixStore:
    """Held prefixes. Lookups compare tokens, never hashes alone.

    Attributes:
        hits: Lookups that found a prefix.
        misses: Lookups that did not.
    """

    def __init__(self, pool: KVPool):
        self._pool = pool
        self._held: dict[tuple[int, ...], Sequence] = {}
        self.hits = 0
        self.misses = 0

    def get(self, ids: tuple[int, ...]) -> Sequence | None:
        """The sequence that holds exactly these tokens; the caller forks it and leaves it as it is."""
        held = self._held.get(ids)
        if held is None:
            self.misses += 1
            return None
        self.hits += 1
        return held

    def put(self, ids: tuple[int, ...], sequence: Sequence) -> None:
        """Keeps a computed prefix; the store owns its pages from now on."""
        self._held[ids] = sequence

    def drop_all(self) -> int:
        """Gives all prefixes back and returns how many there were."""
        dropped = len(self._held)
        while self._held:
            self._pool.free(self._held.popitem()[1])
        return dropped
