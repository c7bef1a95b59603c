"""How threads take turns at driving a device that has no thread of its own."""
