"""The control plane's server side: gRPC in front of the agent's core."""
