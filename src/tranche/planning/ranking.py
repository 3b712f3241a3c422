"""The GPUs of one kind in the order in which they would serve one request, kept up to date while GPUs change.

What a GPU answers depends on its situation alone, so it is worked out once for each situation. GPUs whose answers are equally
good lie in one bucket, and so do those with like obstacles; a change moves one GPU between two buckets, however many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from tranche.planning.obstacle import Likeness
from tranche.planning.options import Option
from tranche.planning.situation import GpuKind, Situation

# What makes one option better than another, lowest first: how weak its walls are, the change, instances destroyed, bytes given,
# and the policy's cost, or of parts the bytes that are left for others.
Preference = tuple[int, int, int, int, float]
Answer = tuple[Preference, Option] | Likeness
# A GPU, by its place in the index, that went from one situation to another.
Move = tuple[int, Situation, Situation]


@dataclass(slots=True, eq=False)
class _Bucket:
    """GPUs with equally good answers. `places` has each of them, perhaps several times, and some that have left; a heap."""

    preference: Preference | None
    likeness: Likeness | None
    count: int = 0
    places: list[int] = field(default_factory=list)
    queued: bool = False


class Ranking:
    """What the GPUs of one kind answer to one request. `situations` is the index's own list, by place.

    `answer` is what a GPU in a situation answers: its best option with what is to be said for it, or what obstacles like its have
    in common.
    """

    def __init__(self, kind: GpuKind, answer: Callable[[Situation], Answer], situations: Sequence[Situation]) -> None:
        self._kind = kind
        self._answer = answer
        self._situations = situations
        self._bucket_of: dict[Situation, _Bucket] = {}
        self._option_in: dict[Situation, Option] = {}
        self._buckets: dict[Preference | Likeness, _Bucket] = {}
        self._open: list[tuple[Preference, _Bucket]] = []
        self.seen = 0
        for place, situation in enumerate(situations):
            if situation.kind is kind:
                bucket = self._bucket(situation)
                bucket.count += 1
                bucket.places.append(place)
        for bucket in self._buckets.values():
            self._queue(bucket)

    def catch_up(self, moves: Sequence[Move]) -> None:
        """Take in the moves from number `seen` on."""
        crowded: set[_Bucket] = set()
        bucket_of = self._bucket_of
        for place, before, after in moves[self.seen :]:
            left = bucket_of.get(before)
            entered = bucket_of.get(after)
            if entered is None and after.kind is self._kind:
                entered = self._bucket(after)
            if left is entered:
                continue
            if left is not None:
                left.count -= 1
            if entered is not None:
                entered.count += 1
                heappush(entered.places, place)
                self._queue(entered)
                if len(entered.places) > 2 * entered.count + 64:
                    crowded.add(entered)
        self.seen = len(moves)
        for bucket in crowded:
            bucket.places = sorted({each for each in bucket.places if self._is_in(each, bucket)})

    def best(self, number: int) -> list[tuple[Preference, int]]:
        """Up to so many GPUs that can serve the request, the best first, the lowest place first among equals."""
        self._drop_empty()
        if number == 1:
            return [(preference, self._lowest(bucket, 1)[0]) for preference, bucket in self._open[:1]]
        found: list[tuple[Preference, int]] = []
        for preference, bucket in sorted(self._open):
            if len(found) == number:
                break
            found += [(preference, place) for place in self._lowest(bucket, number - len(found))]
        return found

    def option(self, place: int) -> Option:
        """The best option of one of the GPUs that can serve the request, as on the first GPU seen in its situation."""
        return self._option_in[self._situations[place]]

    def groups(self) -> Iterator[tuple[Likeness | None, int, int]]:
        """GPUs alike: by their obstacle, or None for those that can serve the request; the lowest place, and how many."""
        serving = [bucket for bucket in self._buckets.values() if bucket.preference is not None and bucket.count]
        if serving:
            yield None, min(self._lowest(each, 1)[0] for each in serving), sum(each.count for each in serving)
        for bucket in self._buckets.values():
            if bucket.likeness is not None and bucket.count:
                yield bucket.likeness, self._lowest(bucket, 1)[0], bucket.count

    def lowest_of_groups(self, number: int) -> list[list[int]]:
        """Up to so many of the lowest places of each bucket, those that can serve the request first, best first."""
        serving = [bucket for _, bucket in sorted(self._open)]
        others = [bucket for bucket in self._buckets.values() if bucket.likeness is not None]
        return [self._lowest(bucket, number) for bucket in (*serving, *others) if bucket.count]

    def _bucket(self, situation: Situation) -> _Bucket:
        known = self._bucket_of.get(situation)
        if known is not None:
            return known
        answer = self._answer(situation)
        if isinstance(answer, Likeness):
            bucket = self._buckets.setdefault(answer, _Bucket(None, answer))
        else:
            preference, self._option_in[situation] = answer
            bucket = self._buckets.setdefault(preference, _Bucket(preference, None))
        self._bucket_of[situation] = bucket
        return bucket

    def _queue(self, bucket: _Bucket) -> None:
        if bucket.preference is not None and not bucket.queued:
            bucket.queued = True
            heappush(self._open, (bucket.preference, bucket))

    def _drop_empty(self) -> None:
        while self._open and not self._open[0][1].count:
            heappop(self._open)[1].queued = False

    def _lowest(self, bucket: _Bucket, number: int) -> list[int]:
        """Up to so many of the lowest places in the bucket, lowest first."""
        places = bucket.places
        while places and not self._is_in(places[0], bucket):
            heappop(places)
        if number == 1:
            return places[:1]
        found: list[int] = []
        while places and len(found) < number:
            place = heappop(places)
            if self._is_in(place, bucket) and place not in found[-1:]:
                found.append(place)
        for place in found:
            heappush(places, place)
        return found

    def _is_in(self, place: int, bucket: _Bucket) -> bool:
        return self._bucket_of.get(self._situations[place]) is bucket
