"""Grammars: what may follow next in a text of a given form. Written by clients, so nothing here trusts one."""
