"""Extensions of vendors, as far as programs name them: the emulated device has none."""
