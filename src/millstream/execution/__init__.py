"""Executors: what turns token ids into next tokens. The scheduler knows only `interface`; back ends load by name."""
