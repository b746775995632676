"""Millstream: an LLM serving runtime that can prove what it did."""

__version__ = "0.1.0"
