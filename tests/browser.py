"""A real browser without a window: what it makes of a file."""

import json
import re
import shutil
import subprocess
import tempfile
from html import escape
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
# Nothing is fetched, and nothing is asked of whoever made the browser.
QUIET = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
         "--disable-background-networking", "--disable-component-update", "--hide-scrollbars")  # fmt: skip


def browse(page, *options):
    """The document that the browser made of a file, as text, and what it said in its console."""
    browser = next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    with tempfile.TemporaryDirectory() as profile:
        own = (f"--user-data-dir={profile}", "--window-size=1300,900", "--enable-logging=stderr", "--dump-dom")
        done = subprocess.run([browser, *QUIET, *own, *options, Path(page).resolve().as_uri()],
                              capture_output=True, text=True, check=True, timeout=120)  # fmt: skip
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


MEASURE = """<!doctype html><meta charset="utf-8">
<iframe style="width:%dpx;height:%dpx;border:0" srcdoc="%s"></iframe>
<script>
const frame = document.querySelector('iframe');
frame.onload = () => {
  const page = frame.contentDocument, view = frame.contentWindow;
  const box = element => { const b = element.getBoundingClientRect(); return [b.width, b.height] };
  const all = selector => [...page.querySelectorAll(selector)];
  all('details').forEach(each => { each.open = true });
  const measured = document.createElement('pre');
  measured.id = 'measured';
  measured.textContent = JSON.stringify({
    width: page.documentElement.scrollWidth, room: view.innerWidth,
    charts: all('svg').map(box), pictures: all('img').map(each => each.naturalWidth),
    background: view.getComputedStyle(page.body).backgroundColor, text: view.getComputedStyle(page.body).color,
    smallest: Math.min(...all('svg text').filter(each => box(each)[0] > 0).map(each => box(each)[1])),
  });
  document.body.append(measured);
}
</script>"""


def measure(page, folder, *options, size):
    """Sizes and colours of what the browser laid out, every folded part open, in a frame of that size."""
    outer = folder / "measured.html"
    outer.write_text(MEASURE % (*size, escape(Path(page).read_text())))
    document, said = browse(outer, *options)
    assert said == []
    return json.loads(re.search(r'<pre id="measured">(.*?)</pre>', document, re.DOTALL)[1])
