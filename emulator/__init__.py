"""A software SmartNIC that speaks RoCEv2, the links it sends over, and what tests need of both."""
