"""The HTTP session below `PrometheusConnect`: time-outs, credentials, long queries, and errors with a name.

What is worth another try is raised as `Again`, what may work for a smaller question as `Busy`; `retrying` does the
former. No message holds a secret: texts of servers and libraries are shown only after `Session.redacted`.
"""

import base64
import re
import threading
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlencode, urlsplit, urlunsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase

from chargeback.config import PrometheusConfig
from chargeback.errors import ChargebackError, ConfigError, DataError, SourceUnreachable
from chargeback.sources.replies import decode

LONGEST_URL = 8000
ATTEMPTS = 4
LONGEST_WAIT = 30.0
_CHUNK = 1 << 20
_SHORTEST_SECRET = 4
_SHOWN = 300
_FORMS = ("/api/v1/query", "/api/v1/query_range")
_LIMITS = re.compile("exceeded maximum resolution|too many (points|samples)|exceeds? the limit", re.IGNORECASE)
_LOOPBACK = re.compile(r"localhost|127\.[0-9.]+|::1")
T = TypeVar("T")


class Again(Exception):
    """The same question may be answered when asked again."""

    def __init__(self, error: ChargebackError, wait: float = 0.0, attempts: int = ATTEMPTS) -> None:
        super().__init__(error.message)
        self.error = error
        self.wait = wait
        self.attempts = attempts


class Busy(Again):
    """A question for less may be answered; `patience` more tries with the same one come first.

    `passing` says that the size of the question need not be the reason.
    """

    def __init__(
        self,
        error: ChargebackError,
        wait: float = 0.0,
        attempts: int = ATTEMPTS,
        patience: int = 0,
        passing: bool = False,
    ) -> None:
        super().__init__(error, wait, attempts)
        self.patience = patience
        self.passing = passing


class Refused(Exception):
    """The server knows no such path or parameter; `status` is HTTP's."""

    def __init__(self, error: ChargebackError, status: int) -> None:
        super().__init__(error.message)
        self.error = error
        self.status = status


def retrying(call: Callable[[], T], wait: Callable[[float], None], backoff: float, smaller: bool = False) -> T:
    """What `call` gives, asked again with back-off where that may help.

    With `smaller`, `Busy` comes through so that the caller can ask for less. Raises `ChargebackError` otherwise.
    """
    tried = 0
    while True:
        try:
            return call()
        except Refused as e:
            raise e.error from None
        except Again as e:
            tried += 1
            if isinstance(e, Busy) and smaller and tried > e.patience:
                raise
            if tried >= e.attempts:
                raise e.error from None
            pause = max(e.wait, backoff * 2.0 ** (tried - 1))
        wait(min(pause, LONGEST_WAIT))


class Session(requests.Session):
    """A session for one server. `warn` takes every warning of a reply."""

    def __init__(self, config: PrometheusConfig, warn: Callable[[str], None]) -> None:
        super().__init__()
        self._config = config
        self._warn = warn
        self._slots = threading.BoundedSemaphore(config.concurrency)
        self.url, user = _without_user(config.url)
        self.auth = self._credentials = _Credentials(config, user)
        # packing costs a server many times what loopback does; `headers` can ask for either
        encoding = "identity" if _LOOPBACK.fullmatch(urlsplit(self.url).hostname or "") else "gzip"
        ours = {"User-Agent": "chargeback", "Accept": "application/json", "Accept-Encoding": encoding}
        self.headers.update({**ours, **config.headers})
        for name in ("ca_file", "cert_file", "key_file"):
            if (path := getattr(config, name)) and not path.is_file():
                raise ConfigError(f"source.prometheus.{name}: no file {path}", "correct the path")
        if config.ca_file:
            self.verify = str(config.ca_file)
        if config.cert_file:
            self.cert = (str(config.cert_file), str(config.key_file)) if config.key_file else str(config.cert_file)

    def mount_pool(self) -> None:
        """One connection for each request at once, and no retries below ours."""
        self.mount(self.url, HTTPAdapter(pool_connections=1, pool_maxsize=self._config.concurrency, max_retries=0))

    def redacted(self, text: str) -> str:
        """`text` on one line, shortened, without anything that the configuration keeps secret."""
        secrets = {*self._config.headers.values(), *self._credentials.seen}
        for secret in sorted((s for s in secrets if len(s) >= _SHORTEST_SECRET), key=len, reverse=True):
            text = text.replace(secret, "***")
        text = re.sub(r"(?i)\b(bearer|basic) [A-Za-z0-9._~+/=-]{8,}", r"\1 ***", " ".join(text.split()))
        return text[:_SHOWN] + ("..." if len(text) > _SHOWN else "")

    def request(self, method: str, url: str, params: Any = None, **options: Any) -> "Reply":  # type: ignore[override]
        """One request, read to its end within the time-out, with the configured parameters added.

        Long queries go as a form in the body. Raises `Again`, `Busy`, `Refused` or `ChargebackError`.
        """
        asked = {**self._config.params, **(params or {})}
        # without `verify` here REQUESTS_CA_BUNDLE would win over the configured file
        options |= {"timeout": self._config.timeout, "allow_redirects": False, "stream": True, "verify": self.verify}
        if url.endswith(_FORMS):
            asked.setdefault("timeout", f"{self._config.timeout:g}")  # so that the server gives up when we do
            if len(url) + len(urlencode(asked, doseq=True)) > LONGEST_URL:
                method, asked, options["data"] = "POST", {}, asked
        try:
            with self._slots:
                deadline = time.monotonic() + self._config.timeout
                response = super().request(method, url, params=asked, **options)
                body = self._read(response, deadline)
        except (requests.exceptions.SSLError, urllib3.exceptions.SSLError) as e:
            raise SourceUnreachable(
                f"{self.url}: TLS failed: {_cause(e)}",
                "check source.prometheus.ca_file, cert_file and key_file, and that the URL names the right host",
            ) from None
        except requests.exceptions.ConnectTimeout:
            raise Again(self._unreachable("no connection within the time-out"), attempts=2) from None
        except (requests.exceptions.Timeout, urllib3.exceptions.TimeoutError):
            raise self._late() from None
        except requests.exceptions.ProxyError as e:
            raise Again(self._unreachable(f"the proxy does not let us through ({_cause(e)})")) from None
        except (requests.exceptions.ConnectionError, requests.exceptions.ChunkedEncodingError) as e:
            raise Again(self._unreachable(_cause(e))) from None
        except (requests.exceptions.ContentDecodingError, urllib3.exceptions.HTTPError) as e:
            raise Again(self._unreachable(f"the reply was cut short ({_cause(e)})")) from None
        except (requests.exceptions.RequestException, ValueError, OSError) as e:
            raise ConfigError(
                f"source.prometheus: no request can be made ({type(e).__name__})",
                "check url, headers, certificate files and the proxy variables of the environment",
            ) from None
        self._check(response, body)
        return Reply(self, body)

    def warn(self, text: str) -> None:
        """Takes a warning of a reply."""
        self._warn(self.redacted(text))

    def _read(self, response: requests.Response, deadline: float) -> bytes:
        """The whole body: a server that sends on and on, but slowly, is out of time as well."""
        parts = []
        try:
            while part := response.raw.read1(_CHUNK, decode_content=True):
                parts.append(part)
                if time.monotonic() > deadline:
                    raise self._late()
        finally:
            response.close()
        return b"".join(parts)

    def _late(self) -> Busy:
        seconds = f"{self._config.timeout:g} s"
        return Busy(
            self._unreachable(f"no whole answer within {seconds}", "raise source.prometheus.timeout"), attempts=2
        )

    def _unreachable(self, what: str, hint: str = "") -> SourceUnreachable:
        return SourceUnreachable(f"{self.url}: {what}", hint or "check source.prometheus.url, and that the server runs")

    def _check(self, response: requests.Response, body: bytes) -> None:
        """Raises for a status that is not success."""
        status = response.status_code
        if 200 <= status < 300:
            return
        said = f"HTTP {status}"
        if text := self.redacted(_error_text(body)):
            said += f": {text}"
        wait = _retry_after(response.headers)
        if 300 <= status < 400:
            target, _ = _without_user(response.headers.get("Location", ""))
            target = urlunsplit(urlsplit(target)._replace(query="", fragment=""))
            raise self._unreachable(
                f"sends us on to {self.redacted(target) or 'another place'} (HTTP {status}), perhaps to a login page",
                "give the address that answers itself, and source.prometheus credentials if it needs them",
            )
        if status in (401, 403):
            error = self._unreachable(
                f"refuses us ({said})",
                "give bearer_token_file, basic_auth, cert_file or headers in source.prometheus that may query",
            )
            raise Refused(error, status)
        if status == 407:
            raise self._unreachable("the proxy refuses us (HTTP 407)", "give the proxy's credentials in HTTPS_PROXY")
        if status in (413, 414, 431):
            raise DataError(f"{self.url}: the question is too long ({said})", "raise the limit of the proxy before it")
        if status == 422 or (status == 400 and _LIMITS.search(said)):
            raise Busy(self._too_much(said), attempts=1)
        if status in (400, 404, 405, 410, 501):
            if status == 400 and body.lstrip()[:1] == b"{":
                raise Refused(DataError(f"{self.url}: the server refuses a query ({said})", _BUG), status)
            raise Refused(
                self._unreachable(
                    f"has no Prometheus API there ({said})", "check source.prometheus.url and its path prefix"
                ),
                status,
            )
        if status in (503, 504):
            passing = status == 503
            raise Busy(self._unreachable(said, "try again later"), wait, patience=int(passing), passing=passing)
        if status in (408, 425, 429) or status >= 500:
            raise Again(self._unreachable(said, "try again later"), wait)
        raise self._unreachable(said)

    def _too_much(self, said: str) -> DataError:
        return DataError(
            f"{self.url}: the server refuses even the smallest slice ({said})",
            "raise its --query.max-samples (VictoriaMetrics: -search.maxSamplesPerQuery), or shard the collection",
        )

    def failed(self, kind: str, text: str) -> Exception:
        """What to raise for an answer that says `status: error` within a 200."""
        said = f"{kind}: {self.redacted(text)}"
        if kind in ("timeout", "canceled", "503", "504"):
            return Busy(self._unreachable(said, "try again later"), patience=1)
        if kind in ("execution", "422") or _LIMITS.search(text):
            return Busy(self._too_much(said), attempts=1)
        if kind in ("bad_data", "400"):
            return Refused(DataError(f"{self.url}: the server refuses a query ({said})", _BUG), 400)
        return Again(self._unreachable(said, "try again later"))

    def broken(self, why: str) -> Again:
        """What to raise for a body that is not what was asked for."""
        return Again(self._unreachable(f"the reply is no whole answer ({self.redacted(why)})", "try again later"))

    def html(self) -> SourceUnreachable:
        """What to raise for a web page in place of an answer."""
        return self._unreachable(
            "answers with a web page, perhaps of a login proxy",
            "give the address of the API itself, and source.prometheus credentials if it needs them",
        )


_BUG = "check source.prometheus.params; else the server does not know a function that Prometheus 2.26 has"


class Reply(requests.Response):
    """A whole, successful answer; `json` decodes numbers by the array (`replies.decode`)."""

    def __init__(self, session: Session, body: bytes) -> None:
        super().__init__()
        self.status_code = 200
        self._content = body
        self._session = session

    def json(self, **_: Any) -> Any:
        """The document, checked to be a success with data. Raises `Again`, `Busy`, `Refused` or `ChargebackError`."""
        if self.content.lstrip()[:1] == b"<":
            raise self._session.html()
        try:
            document = decode(self.content)
        except (ValueError, RecursionError) as e:
            raise self._session.broken(f"{type(e).__name__}, {len(self.content)} bytes") from None
        if document.get("status") == "error":
            raise self._session.failed(str(document.get("errorType", "")), str(document.get("error", "")))
        if document.get("status") != "success" or "data" not in document:
            raise self._session.broken("no status and data")
        for text in document.get("warnings") or ():
            if not str(text).startswith("PromQL info"):
                self._session.warn(str(text))
        if document.get("isPartial") is True:
            self._session.warn("the answer is partial: a storage node did not answer")
        return document


class _Credentials(AuthBase):
    """Adds what lets us in; files are read at each request, so that a token may change."""

    def __init__(self, config: PrometheusConfig, user: tuple[str, str] | None) -> None:
        self._config = config
        self._user = user
        self.seen: set[str] = set()
        if config.bearer_token_file:
            self._secret(config.bearer_token_file, "bearer_token_file", ConfigError)
        if config.basic_auth:
            self._secret(config.basic_auth.password_file, "basic_auth.password_file", ConfigError)
        if user:
            self.seen.add(user[1])

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        config = self._config
        if config.bearer_token_file:
            token = self._secret(config.bearer_token_file, "bearer_token_file", SourceUnreachable)
            request.headers["Authorization"] = f"Bearer {token}"
        elif config.basic_auth:
            password = self._secret(config.basic_auth.password_file, "basic_auth.password_file", SourceUnreachable)
            request.headers["Authorization"] = self._basic(config.basic_auth.username, password)
        elif self._user:
            request.headers["Authorization"] = self._basic(*self._user)
        return request

    def _basic(self, user: str, password: str) -> str:
        coded = base64.b64encode(f"{user}:{password}".encode()).decode()
        self.seen.add(coded)
        return f"Basic {coded}"

    def _secret(self, path: Path, key: str, error: type[ChargebackError]) -> str:
        try:
            text = path.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError):
            raise error(
                f"source.prometheus.{key}: {path} cannot be read", "check the path and its permissions"
            ) from None
        if not text or not text.isprintable() or (key == "bearer_token_file" and not re.fullmatch(r"[!-~]+", text)):
            raise error(f"source.prometheus.{key}: {path} holds no such thing", "it must hold one line of text")
        self.seen.add(text)
        return text


def _without_user(url: str) -> tuple[str, tuple[str, str] | None]:
    """A URL without `user:password@`, and these."""
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url, None
    user, _, host = parts.netloc.rpartition("@")
    name, _, password = user.partition(":")
    return urlunsplit(parts._replace(netloc=host)), (
        unquote(name),
        unquote(password),
    )


def _cause(error: BaseException) -> str:
    """What lies at the bottom of a library's exception, in words that hold no address or header."""
    seen: set[int] = set()
    deepest: BaseException = error
    while id(deepest) not in seen:
        seen.add(id(deepest))
        inner = [a for a in (*deepest.args, getattr(deepest, "reason", None)) if isinstance(a, BaseException)]
        following = (inner[0] if inner else None) or deepest.__cause__ or deepest.__context__
        if following is None:
            break
        deepest = following
    verify = getattr(deepest, "verify_message", "")
    if verify:
        return str(verify)
    if isinstance(deepest, OSError) and deepest.strerror:
        return deepest.strerror
    return _WORDS.get(type(deepest).__name__, type(deepest).__name__)


_WORDS = {
    "RemoteDisconnected": "the connection was closed without an answer",
    "IncompleteRead": "the connection was closed in mid-answer",
    "NameResolutionError": "the host's name is not known",
}


def _error_text(body: bytes) -> str:
    """What an error's body says: the API's `error`, or plain text; nothing of a web page."""
    text = body[: 1 << 16].decode("utf-8", "replace").strip()
    if text.startswith("<"):
        return ""
    try:
        document = decode(body)
        return str(document.get("error") or document.get("message") or "")
    except (ValueError, RecursionError):
        return text


def _retry_after(headers: Mapping[str, str]) -> float:
    """Seconds that a server asks to wait; 0 if it does not say."""
    said = headers.get("Retry-After", "")
    if re.fullmatch(r"\d{1,6}", said):
        return float(said)
    try:
        return max(0.0, parsedate_to_datetime(said).timestamp() - time.time())
    except (ValueError, TypeError):
        return 0.0
