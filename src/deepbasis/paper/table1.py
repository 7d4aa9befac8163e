"""Table 1 of the paper, as printed: mean and standard deviation over five seeds."""

from types import MappingProxyType
from typing import NamedTuple

METHODS = ("dnn", "vbll", "sv-dkl", "pp-dkl", "dbk-silu", "dbk-rbf")
"""In the order of the columns below."""

METRICS = ("mae", "nll", "crps")

_PRINTED = """
mae pol .0222±.0009 .0205±.0014 .0212±.0015 .0205±.0013 .0190±.0011 .0190±.0010
mae elevators .2629±.0028 .2605±.0022 .2636±.0049 .2614±.0020 .2606±.0025 .2614±.0024
mae kin40k .0250±.0004 .0268±.0013 .0275±.0017 .0296±.0012 .0272±.0008 .0290±.0017
mae protein .3853±.0042 .3825±.0038 .3703±.0041 .4071±.0125 .4031±.0019 .3937±.0023
mae keggdirected .0392±.0015 .0388±.0009 .0391±.0014 .0392±.0018 .0386±.0018 .0382±.0010
mae slice .0109±.0002 .0133±.0028 .0139±.0023 .0123±.0010 .0122±.0009 .0123±.0020
mae keggundirected .0461±.0011 .0447±.0006 .0447±.0011 .0463±.0025 .0464±.0025 .0451±.0024
mae 3droad .2435±.0048 .2083±.0029 .2324±.0043 .2527±.0037 .2285±.0088 .2423±.0039
mae song .6072±.0007 .6067±.0008 .6062±.0010 .6034±.0028 .6029±.0004 .6036±.0015
mae buzz .1685±.0002 .1690±.0003 .1692±.0001 .1693±.0005 .1692±.0003 .1690±.0003
nll pol – -1.6801±.0168 -1.7034±.0209 -2.9551±.0851 -2.9670±.0550 -2.9807±.0648
nll elevators – .3623±.0080 .3607±.0115 .2989±.0054 .2936±.0060 .2967±.0137
nll kin40k – -1.8664±.0420 -1.8244±.0370 -2.1023±.0231 -2.1554±.0334 -2.1120±.0337
nll protein – .8231±.0048 .8262±.0100 .7445±.0182 .7406±.0200 .7416±.0081
nll keggdirected – -1.0509±.0056 -1.0407±.0141 -1.6548±.0259 -1.6479±.0322 -1.6679±.0423
nll slice – -2.1368±.3262 -2.2643±.3481 -2.4330±.1376 -2.3533±.3355 -2.4364±.2063
nll keggundirected – -.6915±.0020 -.6870±.0025 -1.7395±.0973 -1.7551±.0795 -1.7755±.1277
nll 3droad – .2193±.0112 .3276±.0207 -.0801±.0151 -.1978±.0320 -.1212±.0198
nll song – 1.1732±.0016 1.1737±.0012 1.1155±.0010 1.1126±.0010 1.1136±.0013
nll buzz – -.0231±.0009 -.0215±.0005 -.1187±.0015 -.1181±.0020 -.1202±.0014
crps pol – .0215±.0005 .0215±.0007 .0152±.0008 .0144±.0008 .0144±.0006
crps elevators – .1896±.0012 .1911±.0027 .1873±.0009 .1865±.0014 .1870±.0014
crps kin40k – .0198±.0009 .0206±.0010 .0212±.0006 .0195±.0006 .0209±.0012
crps protein – .2884±.0023 .2840±.0027 .2875±.0078 .2852±.0015 .2817±.0019
crps keggdirected – .0364±.0004 .0371±.0006 .0317±.0005 .0308±.0005 .0311±.0007
crps slice – .0099±.0021 .0103±.0017 .0091±.0007 .0090±.0006 .0091±.0015
crps keggundirected – .0508±.0002 .0507±.0002 .0380±.0015 .0376±.0008 .0368±.0012
crps 3droad – .1608±.0018 .1792±.0033 .1766±.0025 .1599±.0059 .1694±.0025
crps song – .4354±.0006 .4354±.0006 .4259±.0015 .4253±.0002 .4258±.0008
crps buzz – .1265±.0001 .1267±.0000 .1230±.0003 .1230±.0002 .1228±.0002
"""


class Printed(NamedTuple):
    mean: float
    std: float


def _parse() -> dict[tuple[str, str, str], Printed]:
    values = {}
    for line in _PRINTED.strip().splitlines():
        metric, dataset, *cells = line.split()
        for method, cell in zip(METHODS, cells, strict=True):
            if cell != "–":
                mean, std = cell.split("±")
                values[dataset, method, metric] = Printed(float(mean), float(std))
    return values


TABLE: MappingProxyType[tuple[str, str, str], Printed] = MappingProxyType(_parse())
"""(data set, method, metric) -> what the paper prints; a DNN has no NLL and no CRPS."""


def best(dataset: str, metric: str) -> float:
    """The paper's best of all methods."""
    return min(value.mean for (d, _, m), value in TABLE.items() if (d, m) == (dataset, metric))
