"""Who waits, for how long and why; and what a request made now would get."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tranche.core.errors import UsageError
from tranche.core.request import Request, parse_request
from tranche.dashboard.frame import DashboardPage
from tranche.dashboard.parts import code, memory, named_share, notes, select, span_since, table
from tranche.documents.blocks import Document
from tranche.documents.markup import Child, Element, element

_KINDS = (
    ("gpu_memory", "GPU memory", "such as 4Gi"),
    ("gpu", "share of a GPU", "such as 0.5"),
    ("mig_profile", "MIG profile", "such as 2g.10gb"),
    ("gpus", "whole GPUs", "such as 2"),
)
_ASKED = frozenset({"kind", "amount", "isolation", "gpu_model"})
_ASK = "What would a request get now?"


def queue_page(overview: Document, said: Sequence[str], now: float) -> DashboardPage:
    """The waiters of the overview, in the order of service."""
    known = {each["id"]: each for each in overview["allocations"]}
    rows = [
        (
            str(each["position"]),
            _who(each),
            told_request(each["request"]),
            span_since(each["created"], now),
            element("div", element("p", each["why"]), _each_gpu(each, known)),
        )
        for each in overview["waiters"]
    ]
    columns = ("Place", "Who", "Asks for", "For", "Why")
    live = element("div", notes(said), table("Waiting requests, oldest first", columns, rows, "No request is waiting."))
    return with_ask_form(live)


def with_ask_form(live: Element) -> DashboardPage:
    """The queue's page with the form to ask."""
    return DashboardPage("Queue", live, below=element("section", element("h2", _ASK), _ask_form({})))


def ask_page(fields: Mapping[str, str], answered: Callable[[Request], Iterable[Child]]) -> DashboardPage:
    """The form with the fields asked, and the answer to their request, or why there is none."""
    if not _ASKED & fields.keys():
        said = "Asking does not queue the request or change anything."
        return DashboardPage(_ASK, element("p", said, class_="muted"), _ask_form({}))
    try:
        live = element("div", answered(_request(fields)))
    except UsageError as error:
        live = element("p", f"{error.message}. {error.hint}".strip(), class_="note")
    return DashboardPage(_ASK, live, _ask_form(fields))


def _request(fields: Mapping[str, str]) -> Request:
    kind = fields.get("kind", "")
    if kind not in (name for name, _, _ in _KINDS):
        raise UsageError("choose what to request", hint=f"one of {', '.join(sorted(name for name, _, _ in _KINDS))}")
    return parse_request(
        **{kind: fields.get("amount", "")},
        isolation=fields.get("isolation") or "soft",
        gpu_model=fields.get("gpu_model", ""),
    )


def _ask_form(fields: Mapping[str, str]) -> Element:
    kinds = {name: f"{word}, {example}" for name, word, example in _KINDS}
    levels = {each: each for each in ("hard", "soft", "none", "any")}
    kind, level = fields.get("kind", ""), fields.get("isolation", "soft")
    amount = element("input", name="amount", id="amount", value=fields.get("amount", ""), required=True)
    model = element("input", name="gpu_model", id="gpu_model", value=fields.get("gpu_model", ""))
    return element(
        "form",
        select("kind", "Ask for", kinds, kind if kind in kinds else ""),
        element("label", "How much", amount),
        select("isolation", "Isolation, at least", levels, level if level in levels else ""),
        element("label", "Only models with", model),
        element("button", "What would it get now?"),
        action="/ask",
        method="get",
        class_="ask",
        aria_label="Ask what a request would get now",
    )


def told_request(request: Document) -> str:
    """A request as a user would type it."""
    if "gpuMemoryBytes" in request:
        asked = f"{memory(request['gpuMemoryBytes'])} of GPU memory"
    elif "migProfile" in request:
        asked = f"a {request['migProfile']} slice"
    elif "gpu" in request:
        asked = f"{request['gpu']} of a GPU"
    else:
        asked = f"{request['gpus']} whole GPU{'s' if request['gpus'] != 1 else ''}"
    more = [f"{request['count']} times"] if "count" in request else []
    more += [f"on {request['gpuModel']}"] if request["gpuModel"] else []
    return ", ".join([asked, *more, f"isolation {request['isolation']}"])


def _who(waiter: Document) -> Element:
    """Command and user first; the id is for machines."""
    owner = waiter.get("owner")
    user = f" ({owner['name']})" if owner else ""
    return element("div", code(waiter["command"]), user, element("p", waiter["id"], class_="muted"))


def _each_gpu(waiter: Document, known: Mapping[str, Document]) -> Element | None:
    """What each GPU lacks, and who has it."""
    if not waiter["obstacles"]:
        return None
    rows = [
        element("li", f"GPU {each['gpuIndex']}{_more(each)}: {each['message']}", _in_the_way([each], known))
        for each in waiter["obstacles"]
    ]
    listed = element("ul", rows, class_="plain lacks")
    return element("details", element("summary", "GPU by GPU"), listed, id=f"lacks-{waiter['id']}")


def _more(obstacle: Document) -> str:
    return f" and {obstacle['moreGpus']:,} more" if "moreGpus" in obstacle else ""


def explained(answer: Document, overview: Document) -> Iterator[Child]:
    """An Explanation document."""
    labels = {gpu["uuid"]: f"GPU {gpu['index']}" for gpu in overview["gpus"]}
    known = {each["id"]: each for each in overview["allocations"]}
    yield element("p", element("strong", answer["status"]), f": {answer['message']}")
    if answer["waitersAhead"]:
        yield element("p", f"Earlier requests in the queue: {answer['waitersAhead']}.")
    if answer["steps"]:
        steps = [
            element("li", f"{labels.get(each['gpuUUID'], each['gpuUUID'])}: {each['action']}")
            for each in answer["steps"]
        ]
        yield element("h2", "What would be done")
        yield element("ol", steps)
    if answer["status"] != "Startable":
        rows = [
            (labels.get(each["uuid"], each["uuid"]), "Fits", None, None)
            if each["fits"]
            else _lacking(labels.get(each["uuid"], each["uuid"]), each["obstacle"], known)
            for each in answer["gpus"]
        ]
        yield table("What each GPU lacks", ("GPU", "Reason", "In words", "Held by"), rows, "No GPU.")
    if answer["remedies"]:
        yield element("h2", "What would help, cheapest first")
        yield element("ol", [element("li", each["message"]) for each in answer["remedies"]])
    if answer["hint"]:
        yield element("p", answer["hint"])


def _lacking(label: str, obstacle: Document, known: Mapping[str, Document]) -> Sequence[Child | None]:
    return label, obstacle["reason"], obstacle["message"], _in_the_way([obstacle], known)


def _in_the_way(obstacles: Sequence[Document], known: Mapping[str, Document]) -> Child | None:
    """Who holds what would serve the request."""
    ids = dict.fromkeys(each for obstacle in obstacles for each in obstacle["allocationIds"])
    running = dict.fromkeys(
        f"{each['name']} ({each['pid']})" for obstacle in obstacles for each in obstacle["processes"]
    )
    found: list[Child] = [named_share(each, known) for each in ids]
    found += list(running)
    return element("ul", [element("li", each) for each in found], class_="plain") if found else None
