"""Metrics over HTTP: any scraper gets the page, and none is in the way of another or of the end."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

import pytest

from dpu_agent.metrics import server as module
from dpu_agent.metrics.figures import AgentFigures
from dpu_agent.metrics.server import MetricsServer
from kvlane.errors import ConfigError
from tests.support.metrics_page import SCRAPE_TIMEOUT_S, scrape
from tests.support.snapshots import BUSY


@contextlib.contextmanager
def serving(
    figures: Callable[[], AgentFigures] = lambda: BUSY, listen: str = "127.0.0.1:0"
) -> Iterator[MetricsServer]:
    server = MetricsServer(listen, figures)
    try:
        yield server
    finally:
        server.close()


def connect(server: MetricsServer) -> socket.socket:
    host, _, port = server.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=SCRAPE_TIMEOUT_S)


def get(server: MetricsServer, path: str = "/metrics", **headers: str) -> tuple[str, str]:
    request = urllib.request.Request(f"http://{server.address}{path}", headers=headers)
    with urllib.request.urlopen(request, timeout=SCRAPE_TIMEOUT_S) as response:
        return response.headers["Content-Type"], response.read().decode()


def test_a_scrape_gets_the_agent_and_its_process() -> None:
    with serving() as server:
        page = scrape(server.address)
    assert page.value("kvlane_nic_events_total", counter="rx_frames") == 7
    assert page.value("process_resident_memory_bytes") > 0
    assert page.value("process_start_time_seconds") > 0
    assert page.label_values("python_info", "implementation")


def test_both_formats_are_spoken() -> None:
    with serving() as server:
        plain, _ = get(server)
        assert plain.startswith("text/plain")
        kind, text = get(server, Accept="application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")


def test_metrics_are_chosen_by_name() -> None:
    with serving() as server:
        _, text = get(server, "/metrics?name[]=kvlane_sessions")
    assert [line for line in text.splitlines() if not line.startswith("#")] == [
        "kvlane_sessions 0.0"
    ]


def test_other_methods_change_nothing() -> None:
    with serving() as server:
        request = urllib.request.Request(f"http://{server.address}/", data=b"x", method="POST")
        with pytest.raises(urllib.error.HTTPError, match="405"):
            urllib.request.urlopen(request, timeout=SCRAPE_TIMEOUT_S)
        assert scrape(server.address).samples


def test_it_listens_over_ipv6_too() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with serving(listen="[::1]:0") as server:
        assert server.address.startswith("[::1]:")
        assert scrape(server.address).samples


def test_a_port_that_is_taken_is_said() -> None:
    with serving() as first, pytest.raises(ConfigError, match="choose another"):
        MetricsServer(first.address, lambda: BUSY)


def test_an_address_of_another_machine_is_said() -> None:
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1"):
        MetricsServer("192.0.2.1:0", lambda: BUSY)


def test_scrapers_that_do_not_read_keep_nobody_waiting() -> None:
    with serving() as server, contextlib.ExitStack() as slow:
        for _ in range(module._MOST_SCRAPES - 1):
            idle = slow.enter_context(connect(server))
            idle.sendall(b"GET /metrics HTTP/1.0\r\n")
        assert scrape(server.address).samples


def test_too_many_connections_are_closed_and_make_room_again() -> None:
    with serving() as server:
        with contextlib.ExitStack() as all_of_them:
            for _ in range(module._MOST_SCRAPES):
                idle = all_of_them.enter_context(connect(server))
                idle.sendall(b"GET")
            extra = all_of_them.enter_context(connect(server))
            with contextlib.suppress(ConnectionError):
                assert extra.recv(1) == b""
        for _ in range(1000):
            try:
                assert scrape(server.address).samples
                break
            except (urllib.error.URLError, ConnectionError):
                continue
        else:
            pytest.fail("no connection was let in again")


def test_who_is_silent_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module._Handler, "timeout", 0.01)
    with serving() as server, connect(server) as silent:
        assert silent.recv(1) == b""


def test_a_failure_is_logged_and_the_next_scrape_served(caplog: pytest.LogCaptureFixture) -> None:
    failures = [RuntimeError("no figures")]

    def figures() -> AgentFigures:
        if failures:
            raise failures.pop()
        return BUSY

    with serving(figures) as server, caplog.at_level(logging.ERROR):
        with pytest.raises(urllib.error.HTTPError, match="500"):
            scrape(server.address)
        assert "no figures" in caplog.text
        assert scrape(server.address).samples


def test_the_end_waits_for_a_snapshot_and_for_no_scraper() -> None:
    inside, let_go, closed = threading.Event(), threading.Event(), threading.Event()
    asked: list[int] = []

    def figures() -> AgentFigures:
        asked.append(1)
        inside.set()
        assert let_go.wait(SCRAPE_TIMEOUT_S)
        return BUSY

    server = MetricsServer("127.0.0.1:0", figures)

    def end() -> None:
        server.close()
        closed.set()

    with connect(server) as scraper:
        scraper.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert inside.wait(SCRAPE_TIMEOUT_S)
        ending = threading.Thread(target=end)
        ending.start()
        assert not closed.wait(0.3)
        let_go.set()
        assert closed.wait(SCRAPE_TIMEOUT_S)
        ending.join()
    assert len(asked) == 1
