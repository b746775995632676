"""The server that a command talks to: `--url`, `--api-key`, `--model` and `--timeout`, declared once for all that generate.

`command_app` makes the command's own `App`: it takes no other variable of the environment, for `MILLSTREAM_MODEL` is a file for
`serve` and would be a name here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import App, Parameter

from millstream.cli.client import DEFAULT_URL, EventStream, ServerError, fetch_ok
from millstream.cli.examples import examples_text


@Parameter(name="*", show_env_var=True)
@dataclass(frozen=True, kw_only=True)
class Remote:
    """A server with the OpenAI API, ours or another."""

    url: Annotated[str, Parameter(env_var="MILLSTREAM_URL")] = DEFAULT_URL
    """Where the server is, with or without `/v1`."""
    api_key: Annotated[str | None, Parameter(env_var=("MILLSTREAM_API_KEY", "OPENAI_API_KEY"))] = None
    """A key, where the server asks for one."""
    model: str | None = None
    """What to ask for. Default: the first that the server lists."""
    timeout: Annotated[float, Parameter(name="--timeout")] = 300.0
    """Seconds without a byte after which the server is given up."""

    @property
    def base(self) -> str:
        """The URL that paths such as `/v1/models` are put behind."""
        return self.url.rstrip("/").removesuffix("/v1")

    @property
    def key(self) -> str | None:
        """The key to send: the first, where the environment names several, as it may for `serve`."""
        return next(iter((self.api_key or "").split()), None)

    def model_name(self) -> str:
        """The model to ask for.

        Raises:
            Unreachable: nobody answers at the URL.
            StartupError: the server lists no model and none was named.
        """
        if self.model is not None:
            return self.model
        listed = fetch_ok(self.base, "/v1/models", self.key).get("data")
        names = [each.get("id") for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
        if not names or not isinstance(names[0], str):
            raise ServerError(f"{self.url} lists no model.", http_status=200, hint="name one: --model")
        return names[0]

    def stream(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> EventStream:
        """POST `body`, which asks for a stream, to `path`, such as `/v1/chat/completions`.

        Raises:
            Unreachable: nobody answers at the URL.
            ServerError: an answer that is an error.
        """
        return EventStream(self.base, path, body, key=self.key, timeout_s=self.timeout, headers=headers)


def command_app(name: str, run: Callable[..., int], examples: str) -> App:
    """The command `millstream NAME`, which `run` is, with examples below its help."""
    app = App(name=name, config=(), help_epilogue=examples_text(examples))
    app.default(run)
    return app
