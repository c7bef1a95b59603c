"""The HTTP server that Prometheus scrapes, in threads of its own.

Whoever reads slowly, or not at all, has one thread of few, and not for long.
"""

from __future__ import annotations

import io
import logging
import socket
import socketserver
import threading
from collections.abc import Callable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, make_wsgi_app

from dpu_agent.metrics.collector import AgentCollector
from dpu_agent.metrics.figures import AgentFigures
from kvlane.config import parse_endpoint
from kvlane.errors import ConfigError

_PATIENCE_S = 10.0
_MOST_SCRAPES = 8
"""Connections at a time; one more is closed at once."""
_STOP_POLL_S = 0.1
_log = logging.getLogger(__name__)


class MetricsServer:
    """Serves from when it is made until it is closed."""

    def __init__(self, listen: str, figures: Callable[[], AgentFigures]) -> None:
        """``figures()`` is called from threads of this. ``ConfigError`` when nobody can listen at
        ``listen``, which is ``host:port``; port 0 takes a free one."""
        host, port = parse_endpoint(listen)
        self._collector = AgentCollector(figures)
        registry = CollectorRegistry()
        registry.register(self._collector)
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        try:
            self._server = _Server(host, port)
        except OSError as error:
            raise ConfigError(
                f"metrics cannot be served at {listen} ({error.strerror or error}); stop what is "
                f"listening there, or choose another address or port"
            ) from error
        self._server.set_app(_logged(make_wsgi_app(registry)))
        shown = f"[{host}]" if ":" in host else host
        self.address = f"{shown}:{self._server.server_port}"
        """``host:port`` as bound, so never with port 0."""
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            args=(_STOP_POLL_S,),
            name="kvlane-metrics",
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening, and ask for no figures any more."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._collector.close()


def _logged(app: Callable[..., Any]) -> Callable[..., Any]:
    """The same, with an entry in the log when it fails."""

    def call(environ: Any, start_response: Any) -> Any:
        try:
            return app(environ, start_response)
        except Exception:
            _log.exception("a scrape failed")
            raise

    return call


class _Handler(WSGIRequestHandler):
    timeout = _PATIENCE_S

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the base
        """A scrape is no news."""

    def get_stderr(self) -> io.StringIO:
        """Nor is a scraper that goes away in the middle."""
        return io.StringIO()


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True
    allow_reuse_port = False  # newer Pythons let two servers have one port, by turns

    def __init__(self, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._room = threading.BoundedSemaphore(_MOST_SCRAPES)
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        # The base would ask the name service, which may take its time, who this host is.
        socketserver.TCPServer.server_bind(self)
        host, port, *_ = self.socket.getsockname()
        self.server_name, self.server_port = host, port
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._room.release()  # there is no thread that will
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        _log.debug("a scrape was cut off", exc_info=True)
