"""Every method of the paper (Appendix B, "Baselines") and our own, as rows of one table. A new method is a new row."""

from dataclasses import dataclass

from deepbasis.registry import Registry


@dataclass(frozen=True)
class Method:
    backbone: str
    """"resnet", or "identity" for a shallow kernel."""
    expansion: str
    objective: str
    corrected: bool
    """Whether predictions, and the likelihood of exact training, carry the correction of Eq. 4 and 3."""
    point_weights: bool = False
    """Whether the weights are numbers, without a distribution."""

    @property
    def is_line(self) -> bool:
        """Whether the basis functions are the columns themselves and a constant: there are as many, whatever is asked
        for."""
        return self.backbone == "identity" and self.expansion == "columns"


METHODS: Registry[Method] = Registry(
    "method",
    {
        "dbk-silu": Method("resnet", "silu", "dppgp", corrected=False),
        "dbk-rbf": Method("resnet", "rbf", "dppgp", corrected=False),
        "vbll": Method("resnet", "silu", "elbo", corrected=False),
        "sv-dkl": Method("resnet", "rbf", "elbo", corrected=True),
        "pp-dkl": Method("resnet", "rbf", "ppgp", corrected=True),
        "sv-rbf": Method("identity", "rbf", "elbo", corrected=True),
        "sv-rbf-linear": Method("identity", "rbf-linear", "elbo", corrected=True),
        "linear": Method("identity", "columns", "elbo", corrected=False),
        "dbk-matern": Method("resnet", "matern", "dppgp", corrected=False),
        "dbk-fourier": Method("resnet", "fourier", "dppgp", corrected=False),
        "dbk-fourier-matern": Method("resnet", "fourier-matern", "dppgp", corrected=False),
        "dbk-bsplines": Method("resnet", "bsplines", "dppgp", corrected=False),
        "dbk-arccos": Method("resnet", "arccos", "dppgp", corrected=False),
        "dnn": Method("resnet", "none", "mse", corrected=False, point_weights=True),
    },
)
