"""Who waits, for how long and why; and what a request would get if it were made now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tranche.dashboard.frame import DashboardPage
from tranche.dashboard.parts import code, memory, named_share, notes, span_since, table
from tranche.documents.blocks import Document
from tranche.documents.markup import Child, Element, element

_KINDS = (
    ("gpu_memory", "GPU memory", "such as 4Gi"),
    ("gpu", "share of a GPU", "such as 0.5"),
    ("mig_profile", "MIG profile", "such as 2g.10gb"),
    ("gpus", "whole GPUs", "such as 2"),
)
ASKED = frozenset({"kind", "amount", "isolation", "gpu_model"})
"""The fields of the form."""


def queue_page(overview: Document, said: Sequence[str], now: float) -> DashboardPage:
    """The waiters of the overview, in the order in which they are served."""
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
    live = element("div", notes(said), table("Who waits, first come first", columns, rows, "Nobody waits."))
    below = element("section", element("h2", "What would a request get now?"), ask_form({}))
    return DashboardPage("Queue", live, below=below)


def ask_page(
    fields: Mapping[str, str],
    answer: Document | None,
    trouble: str,
    labels: Mapping[str, str],
    known: Mapping[str, Document],
) -> DashboardPage:
    """The form with what was asked, and the Explanation document that answers it, or why there is none."""
    if answer is None:
        live = nothing_asked(trouble)
    else:
        live = element("div", _answered(answer, labels, known))
    return DashboardPage("What would a request get now?", live, ask_form(fields))


def nothing_asked(trouble: str) -> Element:
    """Why there is no answer: "" where nothing was asked yet."""
    if trouble:
        return element("p", trouble, class_="note")
    return element("p", "An answer takes no place in the queue, and changes nothing.", class_="muted")


def ask_form(fields: Mapping[str, str]) -> Element:
    """Asks; takes no place in the queue."""
    kinds = [
        element("option", f"{word}, {example}", value=name, selected=fields.get("kind") == name)
        for name, word, example in _KINDS
    ]
    fences = [
        element("option", each, value=each, selected=fields.get("isolation", "soft") == each)
        for each in ("hard", "soft", "none", "any")
    ]
    return element(
        "form",
        element("label", "Ask for", element("select", kinds, name="kind", id="kind")),
        element(
            "label",
            "How much",
            element("input", name="amount", id="amount", value=fields.get("amount", ""), required=True),
        ),
        element("label", "Isolation, at least", element("select", fences, name="isolation", id="isolation")),
        element(
            "label",
            "Only models with",
            element("input", name="gpu_model", id="gpu_model", value=fields.get("gpu_model", "")),
        ),
        element("button", "What would it get now?"),
        action="/ask",
        method="get",
        class_="ask",
        aria_label="Ask what a request would get now",
    )


def told_request(request: Document) -> str:
    """A request as one would type it."""
    if "gpuMemoryBytes" in request:
        asked = f"{memory(request['gpuMemoryBytes'])} of GPU memory"
    elif "migProfile" in request:
        asked = f"a slice {request['migProfile']}"
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


def _answered(answer: Document, labels: Mapping[str, str], known: Mapping[str, Document]) -> Iterator[Child]:
    yield element("p", element("strong", answer["status"]), f": {answer['message']}")
    if answer["waitersAhead"]:
        yield element("p", f"Requests that wait already and come first: {answer['waitersAhead']}.")
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
    """Who holds what would serve."""
    ids = dict.fromkeys(each for obstacle in obstacles for each in obstacle["allocationIds"])
    running = dict.fromkeys(
        f"{each['name']} ({each['pid']})" for obstacle in obstacles for each in obstacle["processes"]
    )
    found: list[Child] = [named_share(each, known) for each in ids]
    found += list(running)
    return element("ul", [element("li", each) for each in found], class_="plain") if found else None
