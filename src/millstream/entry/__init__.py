"""The entry process: HTTP, protocol adapters and the life of a request as its client sees it."""
