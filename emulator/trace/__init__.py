"""What happened, as typed events: packets on a link, and what an engine made of them."""
