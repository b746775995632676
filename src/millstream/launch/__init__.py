"""The supervisor: starts the three processes, watches them, stops them."""
