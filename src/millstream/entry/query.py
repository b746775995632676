"""Parameters behind the path, of routes that have no body."""

from __future__ import annotations

from millstream.entry.http.exchange import Exchange
from millstream.errors import RequestError


def read_query(exchange: Exchange, *names: str) -> dict[str, str]:
    """The parameters of a request that may have these.

    Raises:
        RequestError: it has another.
    """
    query = exchange.query
    unknown = next((name for name in query if name not in names), None)
    if unknown is not None:
        shown = unknown[:100]  # a client's word, of any length
        raise RequestError(f"`{shown}` is not a parameter of {exchange.path}.", param=shown, code="unknown_parameter")
    return query


def read_seconds(exchange: Exchange, name: str, *, default: float, most: float) -> float:
    """The one parameter of a request that may have `name`: a number of seconds from 0 to `most`.

    Raises:
        RequestError: it is none, or there is another parameter.
    """
    text = read_query(exchange, name).get(name)
    if text is None:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds <= most:  # NaN fails it
        raise RequestError(f"{name} is {text[:100]}; it must be from 0 to {most:g} seconds.", param=name)
    return seconds
