"""Synthetic multi-turn chat, for replaying where no trace is at hand. Seeded, endless.

The shape follows what is published, and measurements on the public conversation trace
that accompanies Mooncake (Qin et al., FAST 2025; 12,031 requests, blocks of 512 tokens):

* Turns. 73 % of ShareGPT's conversations go beyond one turn (CachedAttention, Gao et al.,
  USENIX ATC 2024). After every answer the user therefore stays with probability 0.73,
  which makes 3.7 turns on average. (WildChat, Zhao et al., ICLR 2024, has over 2.5
  million turns in 1 million conversations.)
* Gap between turns. Within a kind of request the time to reuse is close to exponential,
  and in consumer chat 80 % of reuses come within ten minutes ("KVCache Cache in the
  Wild", Wang et al., arXiv 2506.02634): an exponential gap with mean 10 min / ln 5.
* Lengths, log-normal, fitted to median and 90th percentile of the Mooncake trace: first
  texts 4,752 and 25,047 tokens (a request that shares at most the first block with any
  before it), answers 350 and 597 tokens.
* Rate. 3.4 requests a second, as there.

Chosen, not published: the later texts of a user (median 480 tokens: in the trace a later
prompt has a median of 829 tokens that are new, of which an answer is about 350), and the
system prompts. In the Mooncake trace every request begins with one and the same block; here
three conversations in four begin with one of a few system prompts, the first of them
the most popular, so that sharing between users is there but not total.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvlane.trace import Request

BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class LogNormal:
    """A length in tokens, by its median and 90th percentile."""

    median: float
    p90: float

    def sample(self, rng: random.Random) -> int:
        """At least one token."""
        sigma = math.log(self.p90 / self.median) / 1.2815515655446004  # normal's 90th percentile
        return max(1, round(self.median * math.exp(rng.gauss(0.0, sigma))))


@dataclass(frozen=True, slots=True)
class ChatShape:
    """Parameters of the workload; the module's text says where each comes from."""

    conversations_per_s: float = 3.4 * 0.27
    another_turn_probability: float = 0.73
    gap_mean_s: float = 600 / math.log(5)
    first_text: LogNormal = LogNormal(4752, 25047)
    later_text: LogNormal = LogNormal(480, 3600)
    answer: LogNormal = LogNormal(350, 597)
    system_prompt_tokens: tuple[int, ...] = (2048, 1200, 6000, 700)
    """Of each system prompt; the k-th is chosen in proportion to 1 / k."""
    system_prompt_probability: float = 0.75
    max_context_tokens: int = 131072
    """A conversation ends before its prompt outgrows this."""


@dataclass(slots=True)
class _Conversation:
    """What a conversation has said so far."""

    blocks: list[int]
    """Names of the full blocks that are fixed: a later prompt begins with them."""
    tokens: int
    """Of everything before the user's next text."""
    next_text_tokens: int


@dataclass(slots=True)
class _Names:
    """Hands out block names, each once."""

    used: int = 0

    def take(self, count: int) -> list[int]:
        first = self.used
        self.used += count
        return list(range(first, self.used))


@dataclass(slots=True)
class _Chat:
    shape: ChatShape
    rng: random.Random
    names: _Names = field(default_factory=_Names)
    system_prompts: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for tokens in self.shape.system_prompt_tokens:
            self.system_prompts.append(self.names.take(tokens // BLOCK_TOKENS))

    def begin(self) -> _Conversation:
        """A new conversation, with a shared system prompt or without."""
        shape, rng = self.shape, self.rng
        blocks: list[int] = []
        tokens = 0
        if self.system_prompts and rng.random() < shape.system_prompt_probability:
            weights = [1 / rank for rank in range(1, len(self.system_prompts) + 1)]
            chosen = rng.choices(range(len(weights)), weights)[0]
            blocks = list(self.system_prompts[chosen])
            tokens = shape.system_prompt_tokens[chosen]
        return _Conversation(blocks, tokens, shape.first_text.sample(rng))

    def speak(self, conversation: _Conversation, timestamp_ms: float) -> Request | None:
        """The user's next prompt; None when it would not fit the model's context."""
        prompt_tokens = conversation.tokens + conversation.next_text_tokens
        if prompt_tokens > self.shape.max_context_tokens:
            return None
        full, tail = divmod(prompt_tokens, BLOCK_TOKENS)
        conversation.blocks += self.names.take(full - len(conversation.blocks))
        # A partial last block is named too, but the next prompt will fill it otherwise.
        block_ids = (*conversation.blocks, *self.names.take(1 if tail else 0))
        answer_tokens = self.shape.answer.sample(self.rng)
        conversation.tokens = prompt_tokens + answer_tokens
        conversation.next_text_tokens = self.shape.later_text.sample(self.rng)
        return Request(timestamp_ms, prompt_tokens, answer_tokens, block_ids)


def chat_requests(seed: int, shape: ChatShape | None = None) -> Iterator[Request]:
    """Endless requests in order of time; equal for equal seed and shape."""
    shape = shape or ChatShape()
    rng = random.Random(seed)
    chat = _Chat(shape, rng)
    order = 0
    waiting: list[tuple[float, int, _Conversation]] = []
    next_start_ms = 0.0
    while True:
        while not waiting or next_start_ms <= waiting[0][0]:
            heapq.heappush(waiting, (next_start_ms, order, chat.begin()))
            order += 1
            next_start_ms += rng.expovariate(shape.conversations_per_s) * 1000
        now_ms, number, conversation = heapq.heappop(waiting)
        request = chat.speak(conversation, now_ms)
        if request is None:
            continue
        if rng.random() < shape.another_turn_probability:
            gap_ms = rng.expovariate(1 / shape.gap_mean_s) * 1000
            heapq.heappush(waiting, (now_ms + gap_ms, number, conversation))
        yield request
