"""The software NIC: one transport engine on one link, driven by whoever uses it."""
