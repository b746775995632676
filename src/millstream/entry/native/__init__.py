"""The native API: /generate, /tokenize, /detokenize."""
