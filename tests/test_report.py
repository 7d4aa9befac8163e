"""The report: one page that needs nothing else, with headings, texts for its figures, and the right numbers."""

import base64
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import torch

from deepbasis import DeepBasisRegressor, InputError
from deepbasis.errors import per_cent
from deepbasis.explain import Sample
from deepbasis.fitting.distribution import PredictiveDistribution
from deepbasis.gp.counts import Counts
from deepbasis.report import numbers
from deepbasis.report.page import report
from support.classifiers import small_classifier, three, two
from support.command import assert_one_line, good, run
from support.regressors import mixed, small

pytestmark = pytest.mark.usefixtures("one_thread")
SCRIPT = "<script>alert(1)</script>"


class Page(HTMLParser):
    """Every tag with its attributes; the text of headings and of all cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}>"

    def handle_data(self, data):
        if data.strip() and self.open:
            self.texts.append((self.open[-1], data))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def text(self, tag: str) -> list[str]:
        return [text for name, text in self.texts if name == tag]


@pytest.fixture(scope="module")
def model() -> DeepBasisRegressor:
    X, y = mixed(90)
    return small(epochs=3).fit(X.rename(columns={"size": SCRIPT}), pd.Series(y, name="a & b"))


@pytest.fixture(scope="module")
def written(model) -> str:
    X, y = mixed(60, seed=1)
    return report(model.fitted_, Sample.of(model.fitted_, X.rename(columns={"size": SCRIPT}), y), table="t.csv")


def test_it_is_well_formed_and_says_what_it_is_about(written):
    page = Page(written)
    assert page.open == []
    assert page.text("title") == page.text("h1") == ["How well a & b is predicted"]
    assert page.text("h2") == ["Scores", "Calibration", "Errors", "Columns", "Unusual rows", "The fit"]
    assert page.all("html")[0]["lang"] == "en"
    assert any(one.get("name") == "viewport" for one in page.all("meta"))


def test_it_needs_nothing_else(written):
    page = Page(written)
    assert {name for name, _ in page.tags} & {"script", "link", "iframe", "object"} == set()
    assert all((one["src"] or "").startswith("data:image/svg+xml;base64,") for one in page.all("img"))
    assert not any("href" in attributes or "onclick" in attributes for _, attributes in page.tags)
    assert "url(" not in written
    for one in page.all("img"):
        picture = base64.b64decode((one["src"] or "").partition(",")[2]).decode()
        ElementTree.fromstring(picture)
        outside = set(re.findall(r"(?:href|src)=\"(?!#|data:)([^\"]*)", picture))
        assert outside == set()


def test_who_does_not_see_it_can_read_it(written):
    page = Page(written)
    assert len(page.all("img")) == 6 + 5  # and the effects of the columns that move anything
    assert all(len(one["alt"] or "") > 30 for one in page.all("img"))
    assert all("scope" in one for one in page.all("th"))
    assert len(page.text("caption")) == len(page.all("table")) == 3
    names = {one.get("id") for one in page.all("h2")}
    assert {one["aria-labelledby"] for one in page.all("section")} == names


def test_names_are_text_and_nothing_else(written):
    assert SCRIPT not in written
    assert SCRIPT in "".join(Page(written).text("th"))


def contrast(one: str, other: str) -> float:
    """WCAG 2."""

    def luminance(colour: str) -> float:
        digits = colour.lstrip("#")
        digits = "".join(2 * c for c in digits) if len(digits) == 3 else digits
        levels = np.array([int(digits[k : k + 2], 16) / 255 for k in (0, 2, 4)])
        linear = np.where(levels <= 0.04045, levels / 12.92, ((levels + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def test_text_stands_out_in_light_and_in_dark(written):
    schemes = re.findall(r":root\{([^}]*)\}", written)
    assert len(schemes) == 2
    for scheme in schemes:
        colours = dict(re.findall(r"--(\w+):(#\w+)", scheme))
        assert contrast(colours["ink"], colours["paper"]) > 7
        assert contrast(colours["soft"], colours["paper"]) > 4.5


def test_its_numbers_are_those_of_evaluate(model, written):
    X, y = mixed(60, seed=1)
    expected = model.evaluate(X.rename(columns={"size": SCRIPT}), y)
    cells = Page(written).text("td")
    for key in ("mae", "rmse", "nll", "crps", "coverage_95"):
        assert f"{expected[key]:.4g}" in cells


def test_the_same_model_and_rows_give_the_same_page(model, written):
    X, y = mixed(60, seed=1)
    again = Sample.of(model.fitted_, X.rename(columns={"size": SCRIPT}), y)
    assert report(model.fitted_, again, table="t.csv") == written


@pytest.mark.parametrize("table", [two, three])
def test_classes_have_a_report_too(table):
    X, y = table()
    names = np.array([SCRIPT, "b & c", "d"])[np.unique(y, return_inverse=True)[1]]
    model = small_classifier(members=1).fit(X, pd.Series(names, name="food"))
    written = report(model.fitted_, Sample.of(model.fitted_, X, names, rows=len(y)))
    page, p = Page(written), model.predict_proba(X)
    assert page.open == []
    assert page.text("h1") == ["How well food is predicted"]
    assert page.text("h2") == ["Scores", "Calibration", "Errors", "Columns", "Unusual rows", "The fit"]
    assert len(page.all("img")) == 5 + X.shape[1]
    assert all(len(one["alt"] or "") > 30 for one in page.all("img"))
    assert SCRIPT not in written
    cells = page.text("td")
    for key, value in model.evaluate(X, names).items():
        assert f"{value:.4g}" in cells, key
    own = p[np.arange(len(y)), np.searchsorted(model.classes_, names)]
    assert page.text("th")[page.text("th").index("novelty") + 1] == str(own.argmin())
    for name, told in zip(model.classes_, p.mean(0), strict=True):  # rows, share, mean probability, found
        mine, found = names == name, np.mean(model.predict(X)[names == name] == name)
        assert " ".join([str(mine.sum()), *(per_cent(one, 1) for one in (mine.mean(), told, found))]) in " ".join(cells)


def test_without_targets_there_is_none(model):
    X, _ = mixed(60, seed=1)
    with pytest.raises(InputError, match="compares predictions with targets"):
        report(model.fitted_, Sample.of(model.fitted_, X.rename(columns={"size": SCRIPT})))


def test_unusual_rows_are_those_of_the_table():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"x": rng.normal(size=300)})
    y = X["x"] + 0.1 * rng.normal(size=300)
    model = small(members=1, epochs=30).fit(X, y)
    y.iloc[120] += 50.0
    page = Page(report(model.fitted_, Sample.of(model.fitted_, X, y, rows=100)))
    assert page.text("th")[page.text("th").index("novelty") + 1] == "120"
    assert f"{model.predict_novelty(X[120:121])[0]:.2g}" in page.text("td")


@pytest.mark.slow
@pytest.mark.parametrize("target", ["count", "warp"])
def test_transformed_targets_have_a_report_too(tmp_path, target):
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"x": rng.uniform(0, 2, 80)})
    y = pd.Series(rng.poisson(np.exp(X["x"])).astype(float), name="visits")
    small(members=1, epochs=5, target=target).fit(X, y).save(tmp_path / "m")
    X.assign(visits=y).to_csv(tmp_path / "t.csv", index=False)
    told = good("report", str(tmp_path / "m"), str(tmp_path / "t.csv"), "--out", str(tmp_path / "r.html"))
    assert told.stdout == f"The report is in {tmp_path / 'r.html'}\n"
    assert "visits" in Page((tmp_path / "r.html").read_text(encoding="utf-8")).text("h1")[0]


def test_a_perfect_forecast_of_counts_is_flat(model):
    """The steps of its cdf are not the fault of the model."""
    n = 4_000
    mean = torch.zeros(1, n, dtype=torch.float64)
    dist = PredictiveDistribution(Counts(mean, torch.full_like(mean, 1e-12), torch.zeros_like(mean)))
    y = np.random.default_rng(0).poisson(1.0, n).astype(float)
    X, _ = mixed(60, seed=1)
    sample = Sample.of(model.fitted_, X.rename(columns={"size": SCRIPT}))
    alone = " ".join(numbers.calibration(model.fitted_, dist, y, sample))
    assert float(re.findall(r"at most ([\d.]+) from the diagonal", alone)[0]) <= 0.03
    tenths = re.findall(r"(\d+) % of the rows in the lowest tenth, (\d+) % in the highest", alone)[0]
    assert all(8 <= int(tenth) <= 12 for tenth in tenths)  # three standard errors are 1.4


def test_bad_input_is_one_line(model, tmp_path):
    model.save(tmp_path / "m")
    X, _ = mixed(60, seed=1)
    X.rename(columns={"size": SCRIPT}).to_parquet(tmp_path / "t.parquet")
    words = ["report", str(tmp_path / "m"), str(tmp_path / "t.parquet"), "--out"]
    assert_one_line(run(*words, str(tmp_path / "r.pdf")), ["must end in .html"])
    assert_one_line(run(*words, str(tmp_path / "r.html")), ["has no column 'a & b'"])
    assert not (tmp_path / "r.html").exists()
