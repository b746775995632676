"""Objects of the official clients' own models, with nothing in them that those models do not name."""

from __future__ import annotations

from typing import Any

import pydantic


def known(value: Any) -> Any:
    """`value`, a model of a client's: it and all in it have no field that the client's types do not name."""
    if isinstance(value, pydantic.BaseModel):
        assert not value.model_extra, (type(value), value.model_extra)
        for name in value.model_fields_set:
            known(getattr(value, name))
    elif isinstance(value, list):
        for item in value:
            known(item)
    return value
