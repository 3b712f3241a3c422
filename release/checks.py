"""Every check of what is deployed: a name, and a function that returns what is wrong, a line each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from release import chart_check, examples_check, infrastructure, monitoring

Check = Callable[[], list[str]]

CHECKS: Mapping[str, Check] = {
    "chart": chart_check.problems,
    "examples": examples_check.problems,
    "infrastructure": infrastructure.problems,
    "monitoring": monitoring.problems,
}
