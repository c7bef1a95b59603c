"""Where the agent touches threads, clocks, signals and standard streams."""
