"""Caveats of a run: missing answers, fallbacks, loaded workers and assumptions."""

from __future__ import annotations

from typing import Final

from gatewise.formats import count, listed, percent
from gatewise_sim.report.document import Report

#: Utilisation of the workers above which a little more load makes queues grow without bound.
_HIGH_UTILISATION: Final = 0.85
#: Utilisation and share of fallbacks from which on the workers have more load than they can serve.
_FULL_UTILISATION: Final = 0.995
_MIN_OVERLOAD_SHARE: Final = 0.01
#: Description of each service time.
_TIMING_NAMES: Final = {
    "edge_ms": "the time of a stage",
    "run_us": "the time of a run of the high-cost model",
    "instance_us": "the time of an instance in a run",
    "message_us": "a worker's time for a message",
    "broker_us": "the broker's time for a message",
    "hop_ms": "the time between broker and worker",
}


def list_caveats(report: Report) -> list[str]:
    """List the caveats of the summary, the most serious first."""
    return [
        *_list_missing_answers(report),
        *report.troubles,
        *_explain_fallbacks(report),
        *_list_loaded_workers(report),
        *_list_assumptions(report),
        *report.notes,
    ]


def _list_missing_answers(report: Report) -> list[str]:
    sentences = []
    for policy in report.policies:
        answers = policy.answers
        if answers.lost:
            sentences.append(
                f"{policy.name}: {count(answers.lost)} of {count(policy.instances)} instances have "
                "no answer, which counts as wrong."
            )
        if answers.error:
            sentences.append(
                f"{policy.name}: {count(answers.error)} instances could not be answered, "
                "because values were missing that the stages need."
            )
    return sentences


def _explain_fallbacks(report: Report) -> list[str]:
    """Explain the system's fallbacks in one sentence, if there are any."""
    system = report.system
    if not (system.answers.fallback and system.instances):
        return []
    reference = " (see the run over time)" if report.faults else ""
    # instances without an answer have the reason `value` as well
    n_local = round(
        system.reasons.get("value", 0.0)
        + system.reasons.get("offload-limit", 0.0)
        - system.answers.error
    )
    causes = []
    if system.answers.fallback > n_local:
        causes.append("the cloud was not reached, refused, or did not answer in time")
    if n_local > 0:
        causes.append(
            f"{count(n_local)} of them had missing values or exceeded the limit of offloads"
        )
    fallback_share = percent(system.answers.fallback / system.instances, 2)
    return [
        f"{fallback_share} of the answers are fallbacks{reference}: {', and '.join(causes)}, so "
        "the device gave its own answer."
    ]


def _list_loaded_workers(report: Report) -> list[str]:
    """Name the policies with workers that are busy most of the time."""
    sentences = []
    for policy in report.policies:
        utilisation = policy.utilisation or 0.0
        if policy.key in ("system", "cloud_only") and utilisation > _HIGH_UTILISATION:
            fallback_share = policy.answers.fallback / max(policy.instances, 1)
            consequence = (
                f"which is more than they can do: {percent(fallback_share)} of the answers are "
                "fallbacks."
                if utilisation > _FULL_UTILISATION and fallback_share > _MIN_OVERLOAD_SHARE
                else "with a little more load their queues would grow."
            )
            sentences.append(
                f"{policy.name}: the workers are busy {percent(utilisation, 0)} of the time; "
                f"{consequence}"
            )
    return sentences


def _list_assumptions(report: Report) -> list[str]:
    """Describe missing labels, assumed times, scaled fleets and simulated baselines."""
    sentences = []
    system = report.system
    if not report.has_labels:
        sentences.append(
            "The rows have no labels (--target names their column), so the report has no accuracy "
            "and no oracle."
        )
    if report.timings.assumed:
        names = [_TIMING_NAMES.get(name, name) for name in report.timings.assumed]
        sentences.append(f"Assumed, not measured on this machine: {listed(names)}.")
    if system.scale > 1.0:
        sentences.append(
            f"Simulated {system.sampling}. The figures are estimates with "
            f"{percent(report.confidence_level, 0)} confidence intervals."
        )
    if any(policy.engine != report.engine for policy in report.policies):
        sentences.append(
            "Only Gatewise was run live; the baselines are simulated with the same instances."
        )
    return sentences
