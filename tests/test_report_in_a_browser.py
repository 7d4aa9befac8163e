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
  document.body.dataset.found = JSON.stringify([
    document.documentElement.scrollWidth - innerWidth, pictures.length, pictures.filter(p => p.naturalWidth > 0).length,
  ]);
});
</script>"""


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
    done = browse(page, f"--window-size={width},1400", "--dump-dom")
    found = re.search(r'data-found="\[([-\d]+),(\d+),(\d+)\]"', done.stdout)
    assert found is not None, done.stdout[-500:]
    too_wide, pictures, drawn = map(int, found.groups())
    assert too_wide <= 0
    assert pictures == drawn >= 5
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
