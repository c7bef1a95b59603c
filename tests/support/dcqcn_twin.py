"""DCQCN once more, slow and obvious: a list of what is due, taken one at a time."""

from __future__ import annotations


class PlainDcqcn:
    """The reaction point with the defaults of ConnectX, in bit/s and ns."""

    def __init__(self, line_rate: int) -> None:
        self.line_rate = self.rate = self.target = line_rate
        self.alpha = 0
        self.limited = False
        self.no_cut_before = 0
        self.time_stage = self.byte_stage = 0
        self.bytes_left = 0
        self.due: dict[str, int] = {}
        """When alpha decays, when a delayed cut comes, when time increases the rate."""

    def on_notification(self, now: int) -> None:
        """A CNP at ``now``."""
        self.advance(now)
        if self.limited:
            self.alpha = (self.alpha * 1019 + 5 * 1024) // 1024
        else:
            self.limited = True
            self.rate = self.target = self.line_rate
            self.alpha = 1023
            self._start_recovery(now)
        self.due["decay"] = now + 1_000
        if now < self.no_cut_before:
            self.due["cut"] = self.no_cut_before
        else:
            self._cut(now)

    def allowed_rate(self, nbytes: int, now: int) -> int:
        """The rate for a packet that leaves at ``now``."""
        self.advance(now)
        if self.limited:
            self.bytes_left -= nbytes
            while self.limited and self.bytes_left <= 0:
                self.bytes_left += 32_767
                self.byte_stage += 1
                self._increase()
        return self.rate if self.limited else self.line_rate

    def advance(self, now: int) -> None:
        """All that is due until ``now``."""
        order = ("decay", "cut", "increase")
        while self.limited:
            what = min(self.due, key=lambda name: (self.due[name], order.index(name)))
            at = self.due[what]
            if at > now:
                return
            if what == "decay":
                self.alpha = self.alpha * 1019 // 1024
                self.due["decay"] += 1_000
                if self.alpha == 0:
                    del self.due["decay"]
            elif what == "cut":
                self._cut(at)
            else:
                self.time_stage += 1
                self.due["increase"] += 300_000
                self._increase()

    def _start_recovery(self, now: int) -> None:
        self.time_stage = self.byte_stage = 0
        self.bytes_left = 32_767
        self.due["increase"] = now + 300_000

    def _cut(self, now: int) -> None:
        if self.time_stage > 0:
            self.target = self.rate
        taken = self.rate * self.alpha // 2048
        self.rate = max(1_000_000, self.rate * 50 // 100, self.rate - taken)
        self.target = max(self.target, self.rate)
        self.due.pop("cut", None)
        self.no_cut_before = now + 4_000
        self._start_recovery(now)

    def _increase(self) -> None:
        both = min(self.time_stage, self.byte_stage)
        either = max(self.time_stage, self.byte_stage)
        if both > 1:
            self.target += 50_000_000 * (both - 1)
        elif either > 1:
            self.target += 5_000_000
        self.target = min(self.target, self.line_rate)
        self.rate = -(-(self.rate + self.target) // 2)
        if self.rate >= self.line_rate:
            self.limited = False
            self.due.clear()
