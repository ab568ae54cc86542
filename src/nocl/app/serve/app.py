"""The web application: predictions, learning, forgetting, health, metrics, and the page.

Permissions are checked in :mod:`nocl.app.serve.door`. A change may have an ``Idempotency-Key`` header: if it is sent
again with the same key, it gets the first answer and is not done again, also after a restart.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from nocl.app.naming import check_name
from nocl.app.serve.confusions import Confusions
from nocl.app.serve.door import Door
from nocl.app.serve.journal import FailedDiskError
from nocl.app.serve.limits import Limits
from nocl.app.serve.metrics import Metrics
from nocl.app.serve.store import OtherRequestError, Receipt, Store
from nocl.app.serve.uploads import Uploads
from nocl.app.serve.whole import OnDevice, WholeModel, key_of
from nocl.app.serve.workers import (
    Batch,
    ClosedError,
    Frame,
    FullError,
    Lesson,
    Prediction,
    ReplacedError,
    Worker,
    predictor,
    teacher,
)
from nocl.learner import NotFittedError
from nocl.plumbing.version import __version__

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
_ERRORS = {
    401: "the token is missing or wrong",
    403: "asked from another site or machine",
    404: "there is no such class",
    408: "the upload took too long",
    409: "not possible with the model as it is",
    413: "too large, or too many pictures",
    415: "not multipart/form-data",
    422: "a picture, a name or a field is wrong; nothing was done",
    429: "busy; try again later",
    503: "the service is stopping, or its disk failed",
    507: "the disk is full; nothing was learned",
}
_SCRIPT = "text/javascript; charset=utf-8"
_PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    **{f"/{name}.js": (f"{name}.js", _SCRIPT) for name in ("page", "words", "service", "pictures", "camera", "device")},
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/docs": ("docs.html", "text/html; charset=utf-8"),
    "/docs.js": ("docs.js", _SCRIPT),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


def build(
    store: Store,
    *,
    token: str | None = None,
    limits: Limits | None = None,
    private: bool = False,
    names: Sequence[str] = (),
    onnxruntime_web: Path | None = None,
) -> FastAPI:
    """The application around an open store. It closes the store when it stops.

    With ``private``, reading needs the token too. ``names`` are further host names of the service.
    ``onnxruntime_web`` is the folder of that npm package's ``dist``; with it the page can recognise on the device.
    """
    door = Door(token, private=private, names=names)
    service = Service(store, door, limits or Limits(), on_device=onnxruntime_web is not None)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.close)

    app = FastAPI(
        title="nocl", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan,
        description="Predict and teach a model that keeps no images.",
    )  # fmt: skip
    app.middleware("http")(service.around)
    _add_routes(app, service)
    if onnxruntime_web is not None:
        device, reads = OnDevice(store, onnxruntime_web), [Depends(door.may_read)]
        app.get("/model.onnx", include_in_schema=False, dependencies=reads)(device.model)
        app.get("/ort/{name}", include_in_schema=False)(device.runtime)
    for path, (name, kind) in _PAGE.items():
        app.get(path, include_in_schema=False)(_file(name, kind))
    for error in (FullError, ClosedError, NotFittedError, ReplacedError, OtherRequestError, OSError):
        app.exception_handler(error)(_answer_for)
    app.exception_handler(ClientDisconnect)(_nobody_waits)
    return app


def _add_routes(app: FastAPI, service: "Service") -> None:
    """The interface, each route with the errors it may answer."""

    def route(
        verb: str, path: str, summary: str, does: Callable[..., Any], errors: str = "", *, open_: bool = False,
        query: tuple[str, ...] = (), form: tuple[str, ...] | None = None, **more: Any,
    ) -> None:  # fmt: skip
        door = service.door
        guard = [] if open_ else [Depends(door.may_change if "401" in errors else door.may_read)]
        responses: dict[int | str, dict[str, Any]] = {int(code): _error(int(code)) for code in errors.split()}
        app.add_api_route(
            path, does, methods=[verb], summary=summary, responses=responses,
            dependencies=[*guard, Depends(_only(query))], openapi_extra=None if form is None else _form(*form), **more,
        )  # fmt: skip

    whole, change, picture = service.whole, "401 403 429 503 507", "408 413 415 422 429"
    route("GET", "/healthz", "Whether the service works and can write", service.healthz, open_=True)
    route("GET", "/classes", "The classes and what is kept of them", service.classes)
    route("GET", "/metrics", "Counters for Prometheus", service.metrics_text, response_class=Response)
    route(
        "POST",
        "/predict",
        "Top classes of pictures",
        service.predict,
        f"409 {picture}",
        query=("top", "reject"),
        form=(),
    )
    route(
        "POST",
        "/learn",
        "Learn pictures of one class",
        service.learn,
        f"{change} 409 {picture}",
        form=("label", "instead_of"),
    )
    route("DELETE", "/classes/{name:path}", "Forget a class", service.forget, f"404 {change}")
    route("POST", "/undo", "Take the last change back", whole.undo, f"409 {change}")
    route("GET", "/model", "Download the model", whole.download, "401 403 429 503", response_class=Response)
    route("PUT", "/model", "Open another model", whole.open, f"408 413 422 {change}")
    route("DELETE", "/model", "Start with an empty model", whole.empty, change)


class Service:
    """What the routes do."""

    def __init__(self, store: Store, door: Door, limits: Limits, *, on_device: bool = False) -> None:
        self.store, self.door, self.limits, self.metrics = store, door, limits, Metrics()
        self.confusions, self._on_device = Confusions(), on_device
        self._uploads = Uploads(limits)
        self._predict: Worker[Batch, Prediction] = predictor(
            store, waiting=limits.waiting_images, together=limits.together
        )
        self._learn: Worker[Lesson, Receipt] = teacher(
            store, waiting=limits.waiting_learnings, together=limits.together, max_classes=limits.classes
        )
        self.whole = WholeModel(store, self._learn, limits)

    def close(self) -> None:
        """Finish waiting requests, write the model, release its lock."""
        self._predict.close()
        self._learn.close()
        self.store.close()

    # --- routes -----------------------------------------------------------------------------------------------

    async def healthz(self) -> JSONResponse:
        """503 and the reason while the disk cannot be written."""
        trouble = self.store.trouble
        answer: dict[str, Any] = {"status": "ok" if trouble is None else "failing", "version": __version__}
        if not self.door.private:
            answer["classes"] = len(self.store.model.class_names)
        if trouble is not None:
            answer["trouble"] = trouble
        return JSONResponse(answer, 200 if trouble is None else 503)

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
            "network": model.backbone,
            "size": model.size,
            "short_side": model.short_side,
            "undo": self.store.before is not None,
            "confused": self.confusions.pairs(model.class_names),
            "on_device": self._on_device,
            "calibrated": model.calibration_.images > 0,
            "needs_token": self.door.needs_token,
            "limits": {"images": self.limits.images, "body_bytes": self.limits.body_bytes},
            "privacy": privacy,
        }

    async def metrics_text(self) -> Response:
        text = self.metrics.text(self.store.model, self._predict.load, self._learn.load)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def predict(
        self,
        request: Request,
        top: Annotated[int, Query(ge=1, le=100, description="how many classes to name")] = 5,
        reject: Annotated[
            float | None, Query(ge=0, lt=1, description="share of known pictures that may be refused by mistake")
        ] = None,
    ) -> dict[str, Any]:
        """The likeliest classes of each picture, with probabilities; ``none_of_these`` where it looks like no class."""
        async with self._uploads.read(request, self._wanted) as upload:
            batch = Batch(upload.images, upload.frame)
            answer = await asyncio.wrap_future(self._predict.submit(batch, len(batch.images)))
        self.metrics.predicted.inc(len(batch.images))
        return {"predictions": _shown(answer, top, reject)}

    async def learn(self, request: Request) -> dict[str, Any]:
        """Learn the pictures; when this answers, what was learned is on disk."""
        async with self._uploads.read(request, self._wanted) as upload:
            try:
                name = check_name((upload.label or "").strip())
            except ValueError as error:
                raise HTTPException(422, str(error)) from error
            key, count = key_of(request, "learn", name, upload.digest), len(upload.images)
            lesson = Lesson(name, upload.images, key, frame=upload.frame)
            receipt = await asyncio.wrap_future(self._learn.submit(lesson, count))
        if not receipt.repeated:
            self.metrics.learned.inc(count)
            if upload.instead_of is not None:
                self.confusions.add(name, upload.instead_of)
        return {"label": name, **receipt.values}

    async def forget(self, request: Request, name: str) -> dict[str, Any]:
        """Remove the class from the model and from the files on disk."""
        try:
            lesson = Lesson(name, None, key_of(request, "forget", name))
            receipt = await asyncio.wrap_future(self._learn.submit(lesson, 1))
        except KeyError as error:
            raise HTTPException(404, f"no class {name!r}") from error
        if not receipt.repeated:
            self.metrics.forgotten.inc()
        return {"forgotten": name, **receipt.values}

    def _wanted(self) -> Frame:
        return Frame.of(self.store.model)

    # --- around every route -----------------------------------------------------------------------------------

    async def around(self, request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        """The host's name, security headers and metrics."""
        start = time.perf_counter()
        response = self.door.wrong_host(request) or await call_next(request)
        response.headers.update(HEADERS)
        if self._on_device:  # the runtime compiles its own module, and nothing else is allowed to
            policy = HEADERS["Content-Security-Policy"].replace(
                "script-src 'self'", "script-src 'self' 'wasm-unsafe-eval'"
            )
            response.headers["Content-Security-Policy"] = policy
        route = request.scope.get("route")
        path = getattr(route, "path", "other")
        self.metrics.requests.labels(path, str(response.status_code)).inc()
        self.metrics.seconds.labels(path).observe(time.perf_counter() - start)
        return response


def _shown(answer: Prediction, top: int, reject: float | None) -> list[dict[str, Any]]:
    model, names = answer.model, answer.model.class_names
    probabilities = model.calibration_.probabilities(answer.scores)
    best, columns = probabilities.topk(min(top, len(names)), dim=1)
    refused = [None] * len(best)
    try:
        refused = model.refused(answer.scores, True if reject is None else reject).tolist()
    except ValueError as error:
        if reject is not None:  # asked for, and this model cannot say
            raise HTTPException(409, str(error)) from error
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
    if isinstance(error, (NotFittedError, ReplacedError)):
        return JSONResponse({"detail": str(error)}, 409)
    if isinstance(error, OtherRequestError):
        return JSONResponse({"detail": str(error)}, 422)
    if isinstance(error, ClosedError):
        return JSONResponse({"detail": str(error)}, 503, {"Retry-After": "5"})
    if isinstance(error, FailedDiskError):
        said = f"{error.strerror}; the service must be restarted, then ask again (with the same Idempotency-Key)"
        return JSONResponse({"detail": said}, 503)
    return JSONResponse({"detail": f"nothing was learned: {error.strerror or error}"}, 507)  # type: ignore[attr-defined]


async def _nobody_waits(_: Request, __: Exception) -> Response:
    """For the metrics; a client that left during its upload reads no answer, and it is no error of ours."""
    return Response(status_code=499)


def _file(name: str, kind: str) -> Callable[[], Awaitable[Response]]:
    content = (files("nocl.app.serve") / "page" / name).read_bytes()

    async def send() -> Response:
        return Response(content, media_type=kind)

    return send


def _only(allowed: tuple[str, ...]) -> Callable[[Request], None]:
    """A dependency that refuses query fields which a route does not have."""

    def check(request: Request) -> None:
        unknown = sorted(set(request.query_params) - set(allowed))
        if unknown:
            known = f"known: {', '.join(allowed)}" if allowed else "there are none here"
            raise HTTPException(422, f"unknown query field {unknown[0][:80]!r}; {known}")

    return check


def _error(code: int) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"detail": {"type": "string"}}}
    return {"description": _ERRORS[code], "content": {"application/json": {"schema": schema}}}


def _form(*extra: str) -> dict[str, Any]:
    """The request body for OpenAPI: the form is read by hand, under limits."""
    properties: dict[str, Any] = {
        "images": {"type": "array", "items": {"type": "string", "format": "binary"}, "description": "picture files"}
    }
    properties |= {name: {"type": "string"} for name in extra}
    schema = {"type": "object", "required": ["images", *extra[:1]], "properties": properties}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}
