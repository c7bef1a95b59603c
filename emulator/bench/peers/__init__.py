"""Other stores, each behind the fastest honest client that we know how to write."""
