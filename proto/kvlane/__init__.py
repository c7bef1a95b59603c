"""What both ends of kvlane keep: errors, limits, keys, capsules, verbs and the control API."""
