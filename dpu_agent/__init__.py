"""The daemon on the DPU: sessions, the capsule server, and the cache of KV blocks."""
