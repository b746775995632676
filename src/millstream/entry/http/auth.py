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

    def check(self, access: Access, authorization: bytes | None) -> bool:
        """Let a request pass to what takes a key of `access`; returns whether it comes from an admin.

        Raises:
            RequestFailed: 401 without a key that is known, 403 where it is a user's and an admin's is needed.
        """
        if not self._users and not self._admins:
            return True
        if access == "open":
            return False
        digest = _digest(_bearer(authorization))
        is_admin = _is_among(digest, self._admins)
        is_user = _is_among(digest, self._users) or is_admin or not self._users
        if not is_user:
            raise RequestFailed(_unauthorized(is_missing=authorization is None))
        if not self._admins:
            return True
        if access == "admin" and not is_admin:
            raise RequestFailed(
                forbidden() if _is_among(digest, self._users) else _unauthorized(is_missing=authorization is None)
            )
        return is_admin

    def owner(self, authorization: bytes | None) -> str:
        """Whose what a request makes is: the digest of a key that is known, "" for everybody without one."""
        digest = _digest(_bearer(authorization)) if self._users or self._admins else b""
        return digest.hex() if _is_among(digest, self._users + self._admins) else ""


def forbidden() -> Failure:
    """The key is a user's, and this takes an admin's."""
    return Failure(403, "This needs the admin API key.", "permission_error", code="insufficient_permissions")


def _unauthorized(*, is_missing: bool) -> Failure:
    message = "An API key is needed: send it as `Authorization: Bearer KEY`." if is_missing else "The API key is not correct."
    return Failure(401, message, "invalid_request_error", code="invalid_api_key")


def _bearer(authorization: bytes | None) -> bytes:
    """The token of an `Authorization: Bearer` header; empty, which no key is, for anything else."""
    scheme, _, token = (authorization or b"").partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _is_among(digest: bytes, known: list[bytes]) -> bool:
    found = False
    for each in known:
        found |= hmac.compare_digest(digest, each)  # all of them: the time must not tell which
    return found
