"""The ``kvlane`` command."""
