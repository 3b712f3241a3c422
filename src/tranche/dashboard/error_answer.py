"""Why somebody gets nothing: as a page, or for programs as a document."""

from __future__ import annotations

from http import HTTPStatus

from starlette.responses import JSONResponse, Response

from tranche.dashboard.refusal_page import refusal_page
from tranche.documents.envelope import document

_FOR_PROGRAMS = "/api/"


def error_answer(path: str, status: HTTPStatus, title: str, said: str, page: str = "", *, reason: str = "") -> Response:
    """The answer to a request for that path; `page` is shown to people instead of a plain one.

    A document has a `reason`: where none is given, the status' own word, `ServiceUnavailable`.
    """
    if path.startswith(_FOR_PROGRAMS):
        word = reason or status.phrase.title().replace(" ", "").replace("-", "")
        return JSONResponse(document("Error", reason=word, status=status.value, message=said), status)
    return Response(page or refusal_page(title, said), status, media_type="text/html; charset=utf-8")
