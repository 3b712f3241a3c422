"""Plans of different GPUs carried out at the same time, where what fails of one leaves the others alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tranche.core.errors import TrancheError


def carry_out_apart(plan_ids: Sequence[str], carry_out: Callable[[str], None]) -> None:
    """Carry out each of the plans; what happened on every GPU that failed is one error."""
    if len(plan_ids) == 1:
        carry_out(plan_ids[0])
        return

    def attempt(plan_id: str) -> TrancheError | None:
        try:
            carry_out(plan_id)
        except TrancheError as error:
            return error
        return None

    from concurrent.futures import ThreadPoolExecutor  # slow to import, and needed by the agent only

    with ThreadPoolExecutor(max_workers=len(plan_ids), thread_name_prefix="change") as pool:
        errors = [error for error in pool.map(attempt, plan_ids) if error is not None]
    if errors:
        raise _of_several(errors, done=len(plan_ids) - len(errors))


def _of_several(errors: Sequence[TrancheError], *, done: int) -> TrancheError:
    """What happened on each GPU that failed, and that the change is done on so many others."""
    first = errors[0]
    messages = "; ".join(error.message for error in errors)
    rest = f"; it is done on the other {done} GPUs" if done > 1 else "; it is done on the other GPU" if done else ""
    error = type(first)(f"{messages}{rest}", hint=first.hint)
    error.gpu_uuid = first.gpu_uuid
    return error
