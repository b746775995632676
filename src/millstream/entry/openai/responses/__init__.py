"""OpenAI's Responses API: what it takes and answers, and the store of answers that later requests continue."""
