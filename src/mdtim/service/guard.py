"""What stands before every request: who may ask, how much may be sent, what browsers may do."""

from __future__ import annotations

import hmac
import json
import logging
from urllib.parse import urlsplit

from fastapi import HTTPException
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mdtim.service.metrics import Metrics
from mdtim.service.settings import LOOPBACK, ServiceSettings

logger = logging.getLogger("mdtim.service")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
"""Those that are counted by name: a caller may make up any number of others."""
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
REPORT_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data: blob:; font-src data:; frame-ancestors 'none'"
)
"""A report carries its scripts inside it, and may do nothing but run them: it has no origin."""


class Guard:
    """Checks every request, limits its body, and adds headers to every answer."""

    def __init__(self, app: ASGIApp, settings: ServiceSettings, metrics: Metrics) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        has_begun = False

        async def send_guarded(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                route = getattr(scope.get("route"), "path", "none")
                method = scope["method"] if scope["method"] in METHODS else "other"
                self._metrics.requests.labels(method, route, message["status"]).inc()
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await _answer(send_guarded, *refusal)
            return
        try:
            await self._app(scope, self._limited(receive), send_guarded)
        except Exception:
            logger.exception("a fault while answering")
            if has_begun:
                raise
            await _answer(send_guarded, 500, "a fault inside the service; its log says more")

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers, settings = Headers(scope=scope), self._settings
        host = headers.get("host", "")
        # Another site's page must not reach a service on loopback, by its own name or by ours.
        if settings.is_local and _name(host) not in LOOPBACK:
            return 400, "the service answers to localhost only"
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            return 403, "requests from pages of other sites are refused"
        if settings.token is not None and _needs_token(scope["path"]):
            given = headers.get("authorization", "").encode()
            if not hmac.compare_digest(given, f"Bearer {settings.token}".encode()):
                return 401, "this service asks for a token: send Authorization: Bearer ..."
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > settings.limits.upload_bytes:
            return 413, self._too_large()
        return None

    def _limited(self, receive: Receive) -> Receive:
        """Count what arrives: the declared length may be a lie, or missing."""
        left = self._settings.limits.upload_bytes

        async def receive_limited() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(413, self._too_large())
            return message

        return receive_limited

    def _too_large(self) -> str:
        limit = self._settings.limits.upload_bytes
        return f"the upload is larger than {limit:,} bytes; compress or split the table"


def _name(host: str) -> str | None:
    """Name in a Host header, without its port; None where there is none."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _needs_token(path: str) -> bool:
    """The page and its files are the same for everyone; so is the pulse."""
    return path.startswith("/v1/") or path == "/metrics"


async def _answer(send: Send, status: int, sentence: str) -> None:
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    body = json.dumps({"detail": sentence}).encode()
    await send({"type": "http.response.body", "body": body})
