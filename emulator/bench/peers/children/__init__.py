"""Programs that run in the interpreter where a peer is installed; they import nothing of ours."""
