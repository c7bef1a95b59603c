"""The control plane's listening server: the service with health and reflection beside it."""

from __future__ import annotations

from grpc import aio
from grpc_health.v1.health import SERVICE_NAME as HEALTH_SERVICE_NAME
from grpc_reflection.v1alpha import reflection

from dpu_agent.control.core import AgentCore
from dpu_agent.control.health import SERVICE_NAME, AgentHealth
from dpu_agent.control.service import AgentService
from kvlane.control.options import SERVER_OPTIONS
from kvlane.control.v1.control_pb2_grpc import add_AgentServiceServicer_to_server
from kvlane.errors import ConfigError


class ControlServer:
    """A running server; made by ``serve``."""

    def __init__(
        self, server: aio.Server, service: AgentService, health: AgentHealth, address: str
    ) -> None:
        self._server = server
        self._service = service
        self._health = health
        self.address = address
        """``host:port`` as bound, so never with port 0."""

    async def drain(self) -> int:
        """Refuse new sessions and say so in health; return how many sessions are open."""
        return await self._service.drain()

    async def stop(self, grace_s: float) -> None:
        """Take no new calls, give those under way ``grace_s`` seconds, then cut them off.

        A watch that is cut off ends its session in the core, like a host that went away.
        """
        await self._health.shut_down()
        await self._server.stop(grace_s)


async def serve(core: AgentCore, listen: str) -> ControlServer:
    """Serve ``core`` at ``listen``, which is ``host:port``; port 0 takes a free one.

    ``ConfigError`` when the address is malformed, not of this machine, or taken.
    """
    host, port = _parse_listen(listen)
    server = aio.server(options=SERVER_OPTIONS)
    health = AgentHealth()
    health.attach(server)
    await health.set_serving(True)
    service = AgentService(core, health)
    add_AgentServiceServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    reflection.enable_server_reflection(
        (SERVICE_NAME, HEALTH_SERVICE_NAME, reflection.SERVICE_NAME), server
    )
    try:
        bound = server.add_insecure_port(listen)
    except RuntimeError as error:
        raise ConfigError(
            f"cannot listen at {listen}: either port {port} is in use (stop the other agent, or "
            f"choose another port), or {host} is no address of this machine"
        ) from error
    await server.start()
    return ControlServer(server, service, health, f"{host}:{bound}")


def _parse_listen(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 0xFFFF:
        raise ConfigError(f"listen address {listen!r} must be host:port, such as 0.0.0.0:50057")
    return host, int(port)
