"""What sequences leave for others that begin alike.

Slots of keys and values are shared token by token, by a radix tree (Zheng et al., SGLang, 2024).
A state of recurrent layers is that of one length, so of their sequences forks are kept, as
checkpoints.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any

from edgespec.runtime.sequences.pool import KVPool, TokenSequence
from edgespec.runtime.sequences.recurrent import CHECKPOINTS


@dataclass(eq=False, slots=True)
class _Node:
    """Tokens that follow those of the node above, and the slots of their rows.

    Attributes:
        tokens: at least one, but for roots.
        slots: of these tokens; the tree has a reference to each.
        parent: the node above; None for a root.
        used: when it was last used, as a count of uses.
        children: by their first tokens.
    """

    tokens: list[int]
    slots: list[int]
    parent: _Node | None
    used: int = 0
    children: dict[int, _Node] = field(default_factory=dict)


class PrefixTree:
    """The slots of one pool's sequences by their tokens, of running and of ended ones.

    When the pool is short of slots, it evicts those that no sequence has, the end of the least
    recently used sequence first. Slots of a beginning are never free before those behind it.

    Args:
        pool: the pool, of a model without recurrent layers.
    """

    def __init__(self, pool: KVPool) -> None:
        self._pool = pool
        self._roots: dict[str, _Node] = {}  # by the salts of sequences
        self._uses = count(1)
        self._kept: dict[TokenSequence, None] = {}  # the least recently used first
        pool.evict = self.evict

    def extend(self, sequence: TokenSequence, most: int) -> int:
        """Lets a sequence share what is known of its tokens behind those that were read.

        Args:
            sequence: a sequence of the pool; what it has read was added.
            most: largest number of tokens that it may have read afterwards.

        Returns:
            The number of tokens that it shares now in addition.
        """
        before = sequence.length
        root = self._roots.get(sequence.salt)
        shared = [] if root is None else self._find(root, sequence.keys[:most])[1][before:]
        self._pool.share(shared)
        sequence.append(shared)
        return len(shared)

    def add(self, sequence: TokenSequence, checkpoint: int = 0) -> None:
        """Makes known what a sequence has read; it may go on.

        What was known already it shares from now on: its own rows have the same bits.

        Args:
            sequence: a sequence of the pool.
            checkpoint: number of its first tokens that recurrent layers are to know; see
                `Checkpoints`. Of no use here.
        """
        tokens = sequence.keys[: sequence.length]
        slots = sequence.slots.tolist()
        root = self._roots.setdefault(sequence.salt, _Node([], [], None))
        node, known = self._find(root, tokens)
        if known != slots[: len(known)]:
            self._pool.share(known)
            sequence.exchange(known)
        tokens = tokens[len(known) :]
        slots = slots[len(known) :]
        if not tokens:
            return
        self._pool.share(slots)
        if node.children or node is root:
            node.children[tokens[0]] = _Node(tokens, slots, node, next(self._uses))
        else:
            node.tokens += tokens
            node.slots += slots

    def keep(self, kept: TokenSequence, sequence: TokenSequence) -> None:
        """Lets one sequence become what another has read, to be evicted behind what nobody has.

        Args:
            kept: becomes the other; when it is evicted, its length becomes 0.
            sequence: the other, which was added.
        """
        self.drop(kept)
        self._kept[kept] = None  # first, since `reset` must know of all that has slots
        kept.tokens = sequence.keys[: sequence.length]
        kept.salt = sequence.salt
        self.extend(kept, sequence.length)

    def drop(self, kept: TokenSequence) -> None:
        """Frees what `keep` has kept."""
        kept.free()
        self._kept.pop(kept, None)

    def evict(self, wanted: int) -> None:
        """Frees at least so many slots, if the tree has so many that no running sequence has."""
        wanted -= self._trim(wanted)
        while wanted > 0 and self._kept:
            self.drop(next(iter(self._kept)))
            wanted -= self._trim(wanted)

    def clear(self) -> None:
        """Frees all slots that no sequence has."""
        self._trim(self._pool.capacity)

    def reset(self) -> None:
        """Forgets all slots, which the pool has given to others."""
        for kept in self._kept:
            kept.reset()
        self._kept.clear()
        self._roots.clear()

    def _find(self, node: _Node, tokens: list[int]) -> tuple[_Node, list[int]]:
        """Returns the node below a root where the longest known beginning ends, and its slots."""
        slots = list[int]()
        while (begin := len(slots)) < len(tokens) and tokens[begin] in node.children:
            child = node.children[tokens[begin]]
            same = common_length(child.tokens, tokens[begin : begin + len(child.tokens)])
            node = child if same == len(child.tokens) else self._split(child, same)
            node.used = next(self._uses)
            slots += node.slots
        return node, slots

    def _split(self, node: _Node, length: int) -> _Node:
        """Puts a node's first tokens into a new one above it, and returns that."""
        assert node.parent is not None, "the root has no tokens"
        above = _Node(node.tokens[:length], node.slots[:length], node.parent)
        node.parent.children[node.tokens[0]] = above
        node.tokens = node.tokens[length:]
        node.slots = node.slots[length:]
        node.parent = above
        above.children[node.tokens[0]] = node
        return above

    def _trim(self, wanted: int) -> int:
        """Frees at most so many slots that no sequence has; returns their number."""
        leaves = [(node.used, node) for node in self._nodes() if not node.children]
        heapify(leaves)  # no two were used at once
        freed = 0
        while leaves and freed < wanted:
            node = heappop(leaves)[1]
            kept = len(node.slots)
            least = max(0, kept - (wanted - freed))
            while kept > least and self._pool.references(node.slots[kept - 1]) == 1:
                kept -= 1
            self._pool.free(node.slots[kept:])
            freed += len(node.slots) - kept
            if kept:
                del node.tokens[kept:], node.slots[kept:]
                continue
            parent = node.parent
            assert parent is not None, "the root is no leaf"
            del parent.children[node.tokens[0]]
            if not parent.children and parent.parent is not None:
                heappush(leaves, (parent.used, parent))
        self._roots = {salt: root for salt, root in self._roots.items() if root.children}
        return freed

    def _nodes(self) -> Iterator[_Node]:
        """Yields all nodes but the roots."""
        waiting = [node for root in self._roots.values() for node in root.children.values()]
        while waiting:
            node = waiting.pop()
            waiting += node.children.values()
            yield node


class Checkpoints:
    """Forks of one pool's sequences, from which others go on; with the methods of `PrefixTree`.

    Others begin with a fork as a whole or not at all. Where there are more than memory was planned
    for, or the pool is short of slots, the least recently used ones are dropped, and last of all
    those that `keep` has.

    Args:
        pool: the pool, of a model with recurrent layers.
    """

    def __init__(self, pool: KVPool) -> None:
        self._pool = pool
        # Whether `keep` has them; the last used one last.
        self._forks = OrderedDict[TokenSequence, bool]()
        pool.evict = self.evict

    def extend(self, sequence: TokenSequence, most: int) -> int:
        """See `PrefixTree`: lets a sequence become the longest fork that it begins like."""
        before = sequence.length
        keys = sequence.keys
        for fork in sorted(self._forks, key=lambda fork: -fork.length):
            alike = fork.salt == sequence.salt and fork.keys == keys[: fork.length]
            if alike and before < fork.length <= most:
                self._use(fork)
                sequence.become(fork, fork.length)
                break
        return sequence.length - before

    def add(self, sequence: TokenSequence, checkpoint: int = 0) -> None:
        """See `PrefixTree`: keeps a fork of so many tokens, if any."""
        if not checkpoint:
            return
        mine = sequence.salt, sequence.keys[:checkpoint]
        same = next((fork for fork in self._forks if (fork.salt, fork.keys) == mine), None)
        if same is None:
            self._hold(sequence.fork(checkpoint), False)
        else:
            self._use(same)

    def keep(self, kept: TokenSequence, sequence: TokenSequence) -> None:
        """See `PrefixTree`."""
        self.drop(kept)
        self._forks[kept] = True  # first, as there
        kept.tokens = sequence.keys[: sequence.length]
        kept.salt = sequence.salt
        kept.become(sequence, sequence.length)
        for fork in [fork for fork, of_session in self._forks.items() if not of_session]:
            if (fork.salt, fork.keys) == (kept.salt, kept.tokens):  # this one replaces it
                self.drop(fork)
        self._hold(kept, True)

    def drop(self, kept: TokenSequence) -> None:
        """See `PrefixTree`."""
        kept.free()
        self._forks.pop(kept, None)

    def evict(self, wanted: int) -> None:
        """See `PrefixTree`."""
        most = self._pool.used - wanted
        for fork in self._by_use():
            if self._pool.used <= most:
                break
            self.drop(fork)

    def clear(self) -> None:
        """Drops all that is not kept."""
        for fork in [fork for fork, kept in self._forks.items() if not kept]:
            self.drop(fork)

    def reset(self) -> None:
        """See `PrefixTree`."""
        for fork in self._forks:
            fork.reset()
        self._forks.clear()

    def _use(self, fork: TokenSequence) -> None:
        self._forks.move_to_end(fork)

    def _hold(self, fork: TokenSequence, kept: bool) -> None:
        if fork.length:
            self._forks[fork] = kept
        else:
            self._forks.pop(fork, None)
        if len(self._forks) > CHECKPOINTS:
            self.drop(self._by_use()[0])

    def _by_use(self) -> list[TokenSequence]:
        """Returns the forks in the order in which they may be dropped."""
        return sorted(self._forks, key=self._forks.__getitem__)  # those that are kept last


def common_length(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Returns the length of the common beginning of two texts or lists of tokens."""
    if one == other:
        return len(one)
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
