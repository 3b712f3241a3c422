"""Why somebody gets nothing: as a page, or for programs as a document."""

from __future__ import annotations

from http import HTTPStatus

from starlette.responses import JSONResponse, Response

from tranche.dashboard.frame import plain_page
from tranche.documents.envelope import document

_FOR_PROGRAMS = "/api/"


def error_answer(path: str, status: HTTPStatus, title: str, said: str, page: str = "") -> Response:
    """The answer to a request for that path; `page` is shown to people instead of a plain one.

    A document has the status' own word as its `reason`: `ServiceUnavailable`.
    """
    if path.startswith(_FOR_PROGRAMS):
        reason = status.phrase.title().replace(" ", "").replace("-", "")
        return JSONResponse(document("Error", reason=reason, status=status.value, message=said), status)
    return Response(page or plain_page(title, said), status, media_type="text/html; charset=utf-8")
