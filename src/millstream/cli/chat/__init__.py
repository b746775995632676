"""`millstream chat`: a conversation with any OpenAI server, in the terminal."""
