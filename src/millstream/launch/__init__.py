"""The supervisor: starts the processes, watches them, replaces those that die, stops them all."""
