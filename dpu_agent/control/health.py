"""What ``grpc.health.v1`` says of the agent: serving, or not while it drains."""

from __future__ import annotations

from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from kvlane.control.v1 import control_pb2

SERVICE_NAME = control_pb2.DESCRIPTOR.services_by_name["AgentService"].full_name
"""The name under which health is asked and the API is reflected."""

OVERALL = ""
"""The health protocol's name for the server as a whole."""


class AgentHealth:
    """One status under two names, the agent's service and the whole server."""

    def __init__(self) -> None:
        self._servicer = health.aio.HealthServicer()  # type: ignore[attr-defined]

    def attach(self, server: aio.Server) -> None:
        """Answer health requests on ``server``."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def set_serving(self, serving: bool) -> None:
        """Tell everybody who asks or watches."""
        response = health_pb2.HealthCheckResponse
        for name in (OVERALL, SERVICE_NAME):
            await self._servicer.set(name, response.SERVING if serving else response.NOT_SERVING)

    async def shut_down(self) -> None:
        """NOT_SERVING for good."""
        await self._servicer.enter_graceful_shutdown()
