"""Eviction policies in plain Python, written from their papers: whole caches of keys.

Each takes a key and says whether it was there. Lists are dictionaries, oldest first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

Access = Callable[[int], bool]
Keys = dict[int, int]


def _oldest(keys: Keys) -> int:
    return next(iter(keys))


def _renew(keys: Keys, key: int) -> None:
    keys[key] = keys.pop(key)


def lru(capacity: int) -> Access:
    cached: Keys = {}

    def access(key: int) -> bool:
        if key in cached:
            _renew(cached, key)
            return True
        if len(cached) == capacity:
            del cached[_oldest(cached)]
        cached[key] = 0
        return False

    return access


def clock(capacity: int) -> Access:
    cached: Keys = {}

    def access(key: int) -> bool:
        if key in cached:
            cached[key] = 1
            return True
        if len(cached) == capacity:
            while cached[_oldest(cached)]:
                cached[_oldest(cached)] = 0
                _renew(cached, _oldest(cached))
            del cached[_oldest(cached)]
        cached[key] = 0
        return False

    return access


def sieve(capacity: int) -> Access:
    queue: list[int] = []
    visited: set[int] = set()
    hand = 0

    def access(key: int) -> bool:
        nonlocal hand
        if key in queue:
            visited.add(key)
            return True
        if len(queue) == capacity:
            hand %= len(queue)
            while queue[hand] in visited:
                visited.remove(queue[hand])
                hand = (hand + 1) % len(queue)
            # What was the newest leaves the hand at the end: it begins again at the oldest.
            is_newest = hand == len(queue) - 1
            del queue[hand]
            hand = 0 if is_newest else hand
        queue.append(key)
        return False

    return access


def clock_age(capacity: int, max_reads: int = 7) -> Access:
    reads: Keys = {}
    written: Keys = {}
    writes = 0

    def price(key: int) -> int:
        generations = (writes - written[key]) // capacity
        return max(generations.bit_length(), 1)

    def access(key: int) -> bool:
        nonlocal writes
        if key in reads:
            reads[key] = min(reads[key] + 1, max_reads)
            return True
        if len(reads) == capacity:
            while reads[_oldest(reads)] > 0:
                oldest = _oldest(reads)
                reads[oldest] -= price(oldest)
                _renew(reads, oldest)
            del reads[_oldest(reads)]
        reads[key] = 0
        written[key] = writes
        writes += 1
        return False

    return access


def lfu(capacity: int) -> Access:
    times: dict[int, list[int]] = {}
    now = 0

    def access(key: int) -> bool:
        nonlocal now
        now += 1
        hit = key in times
        if not hit and len(times) == capacity:
            del times[min(times, key=lambda cached: (len(times[cached]), times[cached][-1]))]
        times.setdefault(key, []).append(now)
        return hit

    return access


def lru_k(capacity: int, k: int = 2, retained_per_block: int = 4) -> Access:
    times: dict[int, list[int]] = {}
    arrived: Keys = {}
    history: dict[int, list[int]] = {}
    now = 0

    def rank(key: int) -> tuple[int, int]:
        accesses = times[key]
        return (0, arrived[key]) if len(accesses) < k else (1, accesses[-k])

    def evict() -> None:
        key = min(times, key=rank)
        accesses = times.pop(key)
        if retained_per_block:
            if len(history) == retained_per_block * capacity:
                del history[next(iter(history))]
            history[key] = accesses

    def access(key: int) -> bool:
        nonlocal now
        now += 1
        hit = key in times
        if not hit:
            known = history.pop(key, [])
            if len(times) == capacity:
                evict()
            times[key] = known
            arrived[key] = now
        times[key].append(now)
        return hit

    return access


def two_q(capacity: int) -> Access:
    a1in: Keys = {}
    a1out: Keys = {}
    am: Keys = {}
    kin, kout = int(0.25 * capacity), int(0.5 * capacity)

    def make_room() -> None:
        if len(a1in) > kin:
            evicted = _oldest(a1in)
            del a1in[evicted]
            if kout:
                if len(a1out) == kout:
                    del a1out[_oldest(a1out)]
                a1out[evicted] = 0
        else:
            del am[_oldest(am)]

    def access(key: int) -> bool:
        if key in am:
            _renew(am, key)
            return True
        if key in a1in:
            return True
        known = a1out.pop(key, None) is not None
        if len(a1in) + len(am) == capacity:
            make_room()
        (am if known else a1in)[key] = 0
        return False

    return access


def s3_fifo(capacity: int) -> Access:
    small: Keys = {}
    main: Keys = {}
    ghosts: Keys = {}
    small_size, kept = int(0.1 * capacity), int(0.9 * capacity)
    was_full = False

    def evict_from_main() -> None:
        while main[_oldest(main)]:
            main[_oldest(main)] -= 1
            _renew(main, _oldest(main))
        del main[_oldest(main)]

    def make_room() -> None:
        if len(main) <= capacity - small_size:
            while small:
                key = _oldest(small)
                reads = small.pop(key)
                if reads < 2:
                    if kept:
                        if len(ghosts) == kept:
                            del ghosts[_oldest(ghosts)]
                        ghosts[key] = 0
                    return
                main[key] = 0
        evict_from_main()

    def access(key: int) -> bool:
        nonlocal was_full
        for queue in (small, main):
            if key in queue:
                queue[key] = min(queue[key] + 1, 3)
                return True
        known = ghosts.pop(key, None) is not None
        if len(small) + len(main) == capacity:
            was_full = True
            make_room()
        filling = not was_full and len(small) >= small_size
        (main if known or filling else small)[key] = 0
        return False

    return access


def arc(capacity: int) -> Access:
    t1: Keys = {}
    t2: Keys = {}
    b1: Keys = {}
    b2: Keys = {}
    p = 0.0

    def replace(in_b2: bool) -> None:
        if t1 and (len(t1) > p or (in_b2 and len(t1) == p)):
            source, ghosts = t1, b1
        else:
            source, ghosts = (t2, b2) if t2 else (t1, b1)
        key = _oldest(source)
        del source[key]
        ghosts[key] = 0

    def make_room_for_new() -> None:
        total = len(t1) + len(t2) + len(b1) + len(b2)
        is_full = len(t1) + len(t2) == capacity
        if len(t1) + len(b1) == capacity:
            if b1:
                del b1[_oldest(b1)]
            else:
                del t1[_oldest(t1)]
                return
        elif total == 2 * capacity:
            del b2[_oldest(b2)]
        if is_full:
            replace(in_b2=False)

    def access(key: int) -> bool:
        nonlocal p
        for cached in (t1, t2):
            if key in cached:
                del cached[key]
                t2[key] = 0
                return True
        if key in b1:
            p = min(p + max(len(b2) / len(b1), 1), capacity)
            del b1[key]
            replace(in_b2=False)
            t2[key] = 0
        elif key in b2:
            p = max(p - max(len(b1) / len(b2), 1), 0)
            del b2[key]
            replace(in_b2=True)
            t2[key] = 0
        else:
            make_room_for_new()
            t1[key] = 0
        return False

    return access


def mq(capacity: int, lifetime: int = 10_000) -> Access:
    queues: list[Keys] = [{} for _ in range(8)]
    frequency: Keys = {}
    expires: Keys = {}
    ghosts: Keys = {}
    now = 0

    def enqueue(key: int, queue: int) -> None:
        queues[queue][key] = 0
        expires[key] = now + lifetime

    def adjust() -> None:
        nonlocal now
        now += 1
        for queue in range(1, 8):
            if queues[queue] and expires[_oldest(queues[queue])] < now:
                key = _oldest(queues[queue])
                del queues[queue][key]
                enqueue(key, queue - 1)

    def evict() -> None:
        queue = next(queue for queue in queues if queue)
        key = _oldest(queue)
        del queue[key]
        if len(ghosts) == 4 * capacity:
            del ghosts[_oldest(ghosts)]
        ghosts[key] = frequency.pop(key)

    def access(key: int) -> bool:
        hit = key in frequency
        if hit:
            for queue in queues:
                queue.pop(key, None)
        else:
            count = ghosts.pop(key, 0)
            if len(frequency) == capacity:
                evict()
            frequency[key] = count
        frequency[key] += 1
        enqueue(key, min(frequency[key].bit_length() - 1, 7))
        adjust()
        return hit

    return access


def w_tinylfu(capacity: int) -> Access:
    """With exact counts, which a sketch has as long as it is wide for the keys that there are."""
    window: Keys = {}
    trial: Keys = {}
    kept: Keys = {}
    counts: Keys = {}
    additions = 0
    window_size = max(capacity // 100, 1)
    kept_size = int(0.8 * (capacity - window_size))

    def count(key: int) -> None:
        nonlocal additions
        counts[key] = min(counts.get(key, 0) + 1, 15)
        additions += 1
        if additions == 10 * capacity:
            additions //= 2
            for known in counts:
                counts[known] //= 2

    def make_room() -> None:
        main = trial or kept
        candidate = _oldest(window)
        if main and counts[candidate] > counts[_oldest(main)]:
            del main[_oldest(main)]
            del window[candidate]
            trial[candidate] = 0
        else:
            del window[candidate]

    def access(key: int) -> bool:
        count(key)
        if key in window:
            _renew(window, key)
            return True
        if key in trial or key in kept:
            (trial if key in trial else kept).pop(key)
            kept[key] = 0
            if len(kept) > kept_size:
                demoted = _oldest(kept)
                del kept[demoted]
                trial[demoted] = 0
            return True
        if len(window) + len(trial) + len(kept) == capacity:
            make_room()
        window[key] = 0
        if len(window) > window_size:
            overflow = _oldest(window)
            del window[overflow]
            trial[overflow] = 0
        return False

    return access


MODELS: Mapping[str, Callable[[int], Access]] = {
    "arc": arc,
    "clock": clock,
    "clock_age": clock_age,
    "lfu": lfu,
    "lru": lru,
    "lru_k": lru_k,
    "mq": mq,
    "s3_fifo": s3_fifo,
    "sieve": sieve,
    "two_q": two_q,
    "w_tinylfu": w_tinylfu,
}
"""By the name of the policy."""
