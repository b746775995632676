"""`system_fingerprint`: a word that stays the same as long as a request with a seed gives the same answer."""

from __future__ import annotations

import hashlib

import msgspec

from millstream import __version__
from millstream.config import ServerConfig
from millstream.messages import EngineInfo


def fingerprint(config: ServerConfig, engine: EngineInfo, name: str) -> str:
    """The fingerprint of a server that serves a model by `name`: equal in all its workers, and after a restart."""
    facts = [__version__, config.model, name, engine.executor, engine.vocab_size, config.kv_cache_dtype, config.threads]
    return "fp_" + hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:10]
