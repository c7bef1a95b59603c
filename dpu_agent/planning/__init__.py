"""What a trace would gain from a cache: policies and capacities in virtual time."""
