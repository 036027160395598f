"""Why not all is well: what workers say, what they do not reach, and the alerts that hold now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from streams_app.console.pages.model import Problem
from streams_app.console.pages.paths import OF_ALERTS, WORKERS_PATH, fold_path, store_path
from streams_app.console.pages.topic import topic_path
from streams_app.console.reading.alerts import Alert, Facts, alerts_of
from streams_app.console.reading.console_reader import ServerState
from streams_app.console.reading.history import History
from streams_app.formatting import counted
from streams_app.requirements.components import dead_letter_topics
from streams_app.requirements.declarations import Declarations

ABOUT_DEAD_LETTERS: Final = ("DeadLetters", "ReadStoreDeadLetters", "SubscriberErrors")


def link_of(alert: Alert, declarations: Declarations) -> str:
    """Return the path of the page that shows more of an alert; empty if there is none."""
    if alert.rule in ABOUT_DEAD_LETTERS:
        topic = dead_letter_topics(declarations.workload).get((alert.kind, alert.about))
        return "" if topic is None else topic_path(topic)
    if path := OF_ALERTS.get(alert.kind):
        return path(alert.about)
    names = {fold.name for fold in declarations.settings.folds}
    return fold_path(alert.about) if alert.kind in ("fold", "name", "reader") and alert.about in names else ""


def problems_of(
    declarations: Declarations, workers: Sequence[ServerState], history: History, now_ms: int
) -> Iterator[Problem]:  # fmt: skip
    """Yield why not all is well: workers that do not answer or are not ready, their remarks, and alerts that hold."""
    answering = [worker for worker in workers if not worker.fault]
    if workers and not answering:
        what = "No worker answers: nothing is folded" if declarations.settings.folds else "No worker answers"
        yield Problem("critical", what, WORKERS_PATH, "NoWorker")
    elif not workers:
        yield Problem("critical", "No worker is named: http.port is 0, so console.workers must say where workers are", "")
    for worker in workers:
        if worker.fault:
            yield Problem("critical", f"The worker at {worker.url} {worker.fault}", WORKERS_PATH, "WorkerDown")
        elif not worker.health.is_ready:
            reasons = worker.health.reasons or (worker.health.fault or "it does not say why",)
            yield from (Problem("critical", f"The worker at {worker.url} is not ready: {why}", WORKERS_PATH, "WorkerNotReady")
                        for why in reasons)  # fmt: skip
    away = list(_away(answering))
    remarks = dict.fromkeys(remark for worker in answering for remark in worker.health.remarks)
    for remark in remarks:
        if not any(_sentence(remark) in problem.text for problem in away):
            yield Problem("warning", _sentence(remark), link_of_remark(remark, declarations))
    yield from away
    for alert in alerts_of(Facts(history, [worker.samples for worker in answering], now_ms)):
        yield Problem(alert.severity, alert.text, link_of(alert, declarations), alert.rule)


def _away(workers: Sequence[ServerState]) -> Iterator[Problem]:
    for worker in workers:
        away = [component for component, is_up in worker.samples.by("up", "component").items() if not is_up]
        for component in away:
            name, store = {"kafka": "Kafka", "redis": "Redis"}.get(component, ""), component.removeprefix("read_store.")
            if not name:
                text = f"The read store {store} does not answer the worker at {worker.url}, whose log has the reason"
                if why := next((one for one in worker.health.remarks if one.startswith(f"read store {store} ")), ""):
                    text = f"{_sentence(why)} (the worker at {worker.url})"
                yield Problem("critical", text, store_path(store), "ReadStoreAway")
            elif not any(reason.startswith(name) for reason in worker.health.reasons):  # which say the same, and since when
                yield Problem("critical", f"{name} does not answer the worker at {worker.url}", WORKERS_PATH)
        for cause, is_refusing in worker.samples.by("redis_refuses_writes", "cause").items():
            if is_refusing:
                yield Problem("critical", f"Redis answers and refuses writes: {cause}", WORKERS_PATH, "RedisRefusesWrites")


def link_of_remark(remark: str, declarations: Declarations) -> str:
    """Return the page of the component with which a remark begins; otherwise that of the workers."""
    settings = declarations.settings
    named = {
        "subscriber": [one.subscriber.name for one in declarations.workload.subscriptions],
        "read store": [one.name for one in settings.read_stores],
        "live view": [one.name for one in settings.live_of_topics],
        "journal": [one.name for one in settings.journals],
    }
    for kind, names in named.items():
        name = remark.removeprefix(f"{kind} ").partition(" ")[0].rstrip(":")
        if remark.startswith(f"{kind} ") and name in names:
            return OF_ALERTS[kind.rpartition(" ")[2]](name)
    return WORKERS_PATH


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def sentence_of(problems: Sequence[Problem], workers: Sequence[ServerState]) -> str:
    """Return the sentence at the top of the page."""
    if not problems:
        return "All is well."
    critical = sum(problem.severity == "critical" for problem in problems)
    if not critical:
        return f"All runs, with {counted(len(problems), 'remark')}."
    if workers and all(worker.fault for worker in workers):
        return "No worker answers."
    rest = len(problems) - critical
    more = f" and {counted(rest, 'remark')}" if rest else ""
    return f"{counted(critical, 'problem')}{more}."
