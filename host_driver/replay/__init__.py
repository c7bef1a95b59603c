"""The replay job: a trace of requests against an agent, every returned byte verified."""
