"""From the best candidate, as it was trained, to a `Fitted`."""

from collections.abc import Sequence

from deepbasis.fitting.fitted import Fitted
from deepbasis.fitting.novelty import Novelty
from deepbasis.fitting.plan import Plan
from deepbasis.fitting.spec import Spec
from deepbasis.fitting.train import Trained
from deepbasis.tables.preprocessing import Preprocessor
from deepbasis.tables.scaler import TargetScaler

INTERRUPTED_FIT = "the fit was interrupted: this is the best so far"


def finished(
    spec: Spec,
    plan: Plan,
    best: Trained,
    preprocessor: Preprocessor,
    target: TargetScaler,
    novelty: Novelty,
    scores: dict[str, float],
    rows: int,
    warnings: Sequence[str],
) -> Fitted:
    interrupted = [INTERRUPTED_FIT] * best.interrupted
    member = best.outcomes[0].member
    return Fitted(
        spec=spec,
        plan=plan,
        chosen=plan.candidates.index(best.candidate),
        architecture=best.architecture,
        preprocessor=preprocessor,
        target=target,
        models=best.models,
        calibration=best.calibration,
        novelty=novelty,
        alpha=member.alpha,
        beta=member.beta,
        history=tuple({name: v.numpy() for name, v in one.history.items()} for one in best.outcomes),
        validation=scores,
        rows=rows,
        device=best.device,
        interrupted=best.interrupted,
        warnings=tuple(text for text in (*plan.warnings, *interrupted, *warnings) if text),
    )
