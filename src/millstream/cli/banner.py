"""What `millstream serve` prints once it is ready: where it is and how to talk to it."""

from __future__ import annotations

from millstream.messages import EngineInfo


def ready_banner(url: str, model: str, engine: EngineInfo, *, needs_key: bool = False) -> str:
    """The text for a server of `model` that listens at `url`. A key itself is never printed."""
    header = " -H 'Authorization: Bearer KEY'" if needs_key else ""
    key = "KEY" if needs_key else "none"
    kv_tokens = engine.num_pages * engine.page_size
    return f"""
Millstream is ready: {url}
  model {model} ({engine.executor}), {engine.context_length} tokens of context, KV for {kv_tokens} tokens

  curl {url}/v1/chat/completions -H 'Content-Type: application/json'{header} \\
    -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Say hello"}}], "temperature": 0}}'

  from openai import OpenAI
  client = OpenAI(base_url="{url}/v1", api_key="{key}")
  for chunk in client.chat.completions.create(
      model="{model}", messages=[{{"role": "user", "content": "Say hello"}}], temperature=0, stream=True
  ):
      print(chunk.choices[0].delta.content or "", end="")

Stop with Ctrl-C.
"""
