"""``python serve.py MODULE``: answers calls, a JSON line each, with the peer of ``MODULE``.

A request is ``{"call": name, "arguments": {...}}``; the answer is ``{"result": ...}`` or
``{"error": text}``. The end of standard input ends the peer.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any


def main() -> None:
    """Serve until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries write to standard output must not mix with the answers
    try:
        peer = importlib.import_module(sys.argv[1]).Peer()
        answers.write(json.dumps({"result": "ready"}) + "\n")
    except Exception as error:
        answers.write(json.dumps({"error": f"{type(error).__name__}: {error}"}) + "\n")
        return
    for line in sys.stdin:
        answers.write(json.dumps(_answer(peer, json.loads(line))) + "\n")
    peer.close()


def _answer(peer: Any, request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"result": getattr(peer, request["call"])(**request["arguments"])}
    except Exception as error:  # whatever it is, the other end is to know
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main()
