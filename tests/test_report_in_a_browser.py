"""The report in a real browser: nothing overflows, every figure is drawn, no complaints, light and dark."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from deepbasis.explain import Sample
from deepbasis.report.page import report
from support.classifiers import small_classifier
from support.regressors import mixed, small

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here: apt-get install chromium"),
]

MEASURE = """<script>
addEventListener("load", () => {
  const pictures = [...document.images];
  parent.postMessage([
    innerWidth, document.documentElement.scrollWidth - innerWidth, pictures.length,
    pictures.filter(p => p.naturalWidth > 0).length, Math.min(...pictures.map(p => 100 * p.width / p.naturalWidth)) | 0,
  ], "*");
});
</script>"""
# A window of a browser is never narrower than 500 pixels; a frame in it may be.
FRAME = """<!doctype html><body style="margin:0">
<iframe src="{page}" style="border:0;width:{width}px;height:1400px"></iframe>
<script>addEventListener("message", e => {{ document.body.dataset.found = JSON.stringify(e.data) }})</script></body>"""


@pytest.fixture(scope="module", params=["numbers", "classes"])
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    X, y = mixed(120)
    model = small(epochs=20)
    if request.param == "classes":
        model, y = small_classifier(epochs=20), np.where(y > 1, "a class with a long name", "another")
    model.fit(X, y)
    text = report(model.fitted_, Sample.of(model.fitted_, X, y))
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(text.replace("</body>", f"{MEASURE}</body>"), encoding="utf-8")
    return path


def browse(page: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    profile = page.parent / "profile"
    fixed = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", f"--user-data-dir={profile}"]
    quiet = ["--disable-background-networking", "--no-first-run", "--hide-scrollbars"]
    words = [str(CHROMIUM), *fixed, *quiet, *arguments, page.as_uri()]
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)


@pytest.mark.parametrize("width", [390, 1200], ids=["phone", "desk"])
def test_nothing_overflows_and_every_figure_is_drawn(page, width):
    frame = page.parent / f"frame_{width}.html"
    frame.write_text(FRAME.format(page=page.name, width=width), encoding="utf-8")
    done = browse(frame, "--window-size=1300,1400", "--dump-dom", "--virtual-time-budget=10000")
    found = re.search(r'data-found="\[([-\d,]+)\]"', done.stdout)
    assert found is not None, done.stdout[-500:]
    inner, too_wide, pictures, drawn, shrunk = map(int, found[1].split(","))
    assert inner == width
    assert too_wide <= 0
    assert pictures == drawn >= 5
    assert shrunk >= 70  # per cent: a label of 10 points is then 9 pixels high
    assert "CONSOLE" not in done.stderr


@pytest.mark.parametrize(("scheme", "dark"), [("1", False), ("0", True)], ids=["light", "dark"])
def test_it_follows_light_and_dark(page, scheme, dark, tmp_path):
    picture = tmp_path / "page.png"
    browse(page, "--window-size=800,4500", f"--screenshot={picture}", f"--blink-settings=preferredColorScheme={scheme}")
    with Image.open(picture) as image:
        brightness = np.asarray(image.convert("L"), dtype=float)
    assert (np.median(brightness) < 60) == dark
    ink = brightness > 200 if dark else brightness < 60  # text and figures
    assert 0.001 < ink.mean() < 0.2
