"""The web application: predictions, learning, forgetting, health, metrics, and the page. No logic of learning here.

Reading needs no token. Changing needs the bearer token if the service has one; without one only requests that come
from this machine and from the service's own page are obeyed, so that no web site can teach a local model.
"""

import asyncio
import hmac
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from torch import Tensor

from nocl.app.classifier import Classifier
from nocl.app.modelfile import check_name
from nocl.app.serve.limits import Limits
from nocl.app.serve.metrics import Metrics
from nocl.app.serve.store import Store
from nocl.app.serve.uploads import read_upload
from nocl.app.serve.workers import ClosedError, FullError, Lesson, Prediction, Worker, predictor, teacher
from nocl.learner import NotFittedError
from nocl.plumbing.version import __version__

LOOPBACK = ("127.0.0.1", "localhost", "::1", "testserver")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' blob: data:; media-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/docs": ("docs.html", "text/html; charset=utf-8"),
    "/docs.js": ("docs.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


def build(store: Store, *, token: str | None = None, limits: Limits | None = None) -> FastAPI:
    """The application around an open store. It closes the store when it stops."""
    service = Service(store, token, limits or Limits())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.close)

    app = FastAPI(
        title="nocl", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan,
        description="Predict and teach a model that keeps no images.",
    )  # fmt: skip
    app.middleware("http")(service.around)
    changes = [Depends(service.may_change)]
    app.get("/healthz", summary="Whether the service works")(service.healthz)
    app.get("/classes", summary="The classes and what is kept of them")(service.classes)
    app.get("/metrics", summary="Counters for Prometheus", response_class=Response)(service.metrics_text)
    app.post("/predict", summary="Top classes of pictures", openapi_extra=_form())(service.predict)
    app.post("/learn", summary="Learn pictures of one class", openapi_extra=_form("label"), dependencies=changes)(
        service.learn
    )
    app.delete("/classes/{name:path}", summary="Forget a class", dependencies=changes)(service.forget)
    for path, (name, kind) in _PAGE.items():
        app.get(path, include_in_schema=False)(_file(name, kind))
    for error in (FullError, ClosedError, NotFittedError, OSError):
        app.exception_handler(error)(_answer_for)
    return app


class Service:
    """What the routes do."""

    def __init__(self, store: Store, token: str | None, limits: Limits) -> None:
        self.store, self.limits, self.metrics = store, limits, Metrics()
        self._token = None if token is None else token.encode()
        self._predict: Worker[Tensor, Prediction] = predictor(
            store, waiting=limits.waiting_images, together=limits.together
        )
        self._learn: Worker[Lesson, Classifier] = teacher(
            store, waiting=limits.waiting_learnings, together=limits.together, max_classes=limits.classes
        )

    def close(self) -> None:
        """Finish what waits, write the model, let go of it."""
        self._predict.close()
        self._learn.close()
        self.store.close()

    # --- routes -----------------------------------------------------------------------------------------------

    async def healthz(self) -> dict[str, Any]:
        return {"status": "ok", "version": __version__, "classes": len(self.store.model.class_names)}

    async def classes(self) -> dict[str, Any]:
        """Counts and bytes of every class, and the privacy statement of the model."""
        model = self.store.model
        privacy = model.privacy()
        return {
            "classes": [
                {"name": name, "images_learned": count, "bytes": privacy["bytes_per_class"]}
                for name, count in model.counts_.items()
            ],
            "method": model.method,
            "calibrated": model.calibration_.images > 0,
            "needs_token": self._token is not None,
            "limits": {"images": self.limits.images, "body_bytes": self.limits.body_bytes},
            "privacy": privacy,
        }

    async def metrics_text(self) -> Response:
        text = self.metrics.text(self.store.model, self._predict.load, self._learn.load)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def predict(self, request: Request, top: int = 5) -> dict[str, Any]:
        """The likeliest classes of each picture, with probabilities."""
        upload = await read_upload(request, self.limits, self.store.model.size, self.store.model.fit_to_size)
        answer = await asyncio.wrap_future(self._predict.submit(upload.images, len(upload.images)))
        self.metrics.predicted.inc(len(upload.images))
        return {"predictions": _shown(answer, min(max(top, 1), 100))}

    async def learn(self, request: Request) -> dict[str, Any]:
        """Learn the pictures; when this answers, what was learned is on disk."""
        upload = await read_upload(request, self.limits, self.store.model.size, self.store.model.fit_to_size)
        try:
            name = check_name((upload.label or "").strip())
        except ValueError as error:
            raise HTTPException(422, str(error)) from error
        model = await asyncio.wrap_future(self._learn.submit(Lesson(name, upload.images), 1))
        self.metrics.learned.inc(len(upload.images))
        return {
            "label": name,
            "learned": len(upload.images),
            "count": model.counts_.get(name, 0),
            "classes": len(model.class_names),
            "sequence": model.sequence_,
        }

    async def forget(self, name: str) -> dict[str, Any]:
        """Remove the class from the model and from the files on disk."""
        try:
            model = await asyncio.wrap_future(self._learn.submit(Lesson(name, None), 1))
        except KeyError as error:
            raise HTTPException(404, f"no class {name!r}") from error
        self.metrics.forgotten.inc()
        return {
            "forgotten": name,
            "classes": len(model.class_names),
            "exactly": model.learner_.forgets_exactly,
        }

    # --- around every route -----------------------------------------------------------------------------------

    def may_change(self, request: Request) -> None:
        """Refuse a change without the token, or, where there is none, from anywhere but our own page."""
        if self._token is not None:
            kind, _, given = request.headers.get("authorization", "").partition(" ")
            if kind.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self._token):
                raise HTTPException(401, "changes need the right token", headers={"WWW-Authenticate": "Bearer"})
            return
        if urlsplit(f"//{request.headers.get('host', '')}").hostname not in LOOPBACK:
            raise HTTPException(403, "without a token only this machine may change the model")
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
            raise HTTPException(403, "changes from other sites are refused")

    async def around(self, request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        """Security headers and metrics."""
        start = time.perf_counter()
        response = await call_next(request)
        response.headers.update(HEADERS)
        route = request.scope.get("route")
        path = getattr(route, "path", "other")
        self.metrics.requests.labels(path, str(response.status_code)).inc()
        self.metrics.seconds.labels(path).observe(time.perf_counter() - start)
        return response


def _shown(answer: Prediction, top: int) -> list[dict[str, Any]]:
    model, names = answer.model, answer.model.class_names
    probabilities = model.calibration_.probabilities(answer.scores)
    best, columns = probabilities.topk(min(top, len(names)), dim=1)
    refused = [None] * len(best)
    if model.calibration_.reached:
        refused = model.refused(answer.scores, True).tolist()
    return [
        {
            "label": names[row_columns[0]],
            "none_of_these": unsure,
            "top": [{"label": names[c], "probability": round(p, 6)} for p, c in zip(row_best, row_columns)],
        }
        for row_best, row_columns, unsure in zip(best.tolist(), columns.tolist(), refused)
    ]


async def _answer_for(_: Request, error: Exception) -> JSONResponse:
    if isinstance(error, FullError):
        return JSONResponse({"detail": f"busy: {error}"}, 429, {"Retry-After": "1"})
    if isinstance(error, NotFittedError):
        return JSONResponse({"detail": str(error)}, 409)
    if isinstance(error, ClosedError):
        return JSONResponse({"detail": str(error)}, 503, {"Retry-After": "5"})
    return JSONResponse({"detail": f"nothing was learned: {error.strerror or error}"}, 507)  # type: ignore[attr-defined]


def _file(name: str, kind: str) -> Callable[[], Awaitable[Response]]:
    content = (files("nocl.app.serve") / "page" / name).read_bytes()

    async def send() -> Response:
        return Response(content, media_type=kind)

    return send


def _form(*extra: str) -> dict[str, Any]:
    """The request body for OpenAPI: the form is read by hand, under limits."""
    properties: dict[str, Any] = {
        "images": {"type": "array", "items": {"type": "string", "format": "binary"}, "description": "picture files"}
    }
    properties |= {name: {"type": "string"} for name in extra}
    schema = {"type": "object", "required": ["images", *extra], "properties": properties}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}
