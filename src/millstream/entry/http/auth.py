"""KeyRing: which API key may do what. Asked by the app before a route is entered; knows headers, no bodies.

A key is compared by its hash, with all that are known, in a time that does not depend on it. None is ever logged or answered.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import Literal

from millstream.entry.failure import Failure, RequestFailed

Access = Literal["open", "user", "admin"]  # probes have no keys


class KeyRing:
    """User keys for all routes but probes; admin keys also for what shows or touches others' requests.

    Without user keys everybody is a user, and without admin keys every user is an admin.
    """

    def __init__(self, user_keys: Iterable[str], admin_keys: Iterable[str]) -> None:
        self._users = [_digest(key.encode()) for key in user_keys]
        self._admins = [_digest(key.encode()) for key in admin_keys]

    def check(self, access: Access, authorization: bytes | None, api_key: bytes | None = None) -> bool:
        """Let a request pass to what takes a key of `access`; returns whether it comes from an admin.

        A key is in the header `Authorization`, OpenAI's way, or `X-API-Key`, Anthropic's. Of two the better one counts.

        Raises:
            RequestFailed: 401 without a key that is known, 403 where it is a user's and an admin's is needed.
        """
        if not self._users and not self._admins:
            return True
        if access == "open":
            return False
        shown = _shown(authorization, api_key)
        is_missing = authorization is None and api_key is None
        is_admin = _is_among(shown, self._admins)
        is_user = _is_among(shown, self._users) or is_admin or not self._users
        if not is_user:
            raise RequestFailed(_unauthorized(is_missing=is_missing))
        if not self._admins:
            return True
        if access == "admin" and not is_admin:
            raise RequestFailed(forbidden() if _is_among(shown, self._users) else _unauthorized(is_missing=is_missing))
        return is_admin

    def owner(self, authorization: bytes | None, api_key: bytes | None = None) -> str:
        """Whose what a request makes is: the digest of its key, if it is known, and "" for everybody without one."""
        known = self._users + self._admins
        if not known:
            return ""
        return next((digest.hex() for digest in _shown(authorization, api_key) if _is_among([digest], known)), "")


def forbidden() -> Failure:
    """The key is a user's, and this takes an admin's."""
    return Failure(403, "This needs the admin API key.", "permission_error", code="insufficient_permissions")


def _unauthorized(*, is_missing: bool) -> Failure:
    how = "An API key is needed: send it as `Authorization: Bearer KEY` or `X-API-Key: KEY`."
    message = how if is_missing else "The API key is not correct."
    return Failure(401, message, "invalid_request_error", code="invalid_api_key")


def _shown(authorization: bytes | None, api_key: bytes | None) -> list[bytes]:
    """Digests of the keys that a request shows."""
    return [_digest(_bearer(authorization)), _digest((api_key or b"").strip())]


def _bearer(authorization: bytes | None) -> bytes:
    """The token of an `Authorization: Bearer` header; empty, which no key is, for anything else."""
    scheme, _, token = (authorization or b"").partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _is_among(shown: list[bytes], known: list[bytes]) -> bool:
    found = False
    for digest in shown:
        for each in known:
            found |= hmac.compare_digest(digest, each)  # all of them: the time must not tell which
    return found
