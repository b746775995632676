"""The OpenAI protocol: requests in, responses and chunks out."""
