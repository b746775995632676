"""`millstream bench`: load for any OpenAI server, and what came of it."""
