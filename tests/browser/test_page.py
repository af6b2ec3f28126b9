"""The report in a real browser: `make test-browser`.

It needs Chromium with its driver, and selenium: on Debian ``apt-get install chromium chromium-driver``, and
``pip install 'shardwright[browser]'``.  ``SCREENSHOTS=folder`` keeps pictures of every page, light and dark.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardwright as sw
from shardwright.cli.models import model_program
from shardwright.spec.tensors import tensor_text

webdriver = pytest.importorskip("selenium.webdriver", reason="pip install 'shardwright[browser]'")
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore")]
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1400,950",
)  # fmt: skip
TABS = ("Summary", "Modules", "Timeline", "Data")


def mlp(x: Any, w1: Any, w2: Any) -> Any:
    return np.maximum(x @ w1, 0) @ w2


def of_mlp() -> Any:
    shapes = [sw.ShapeDtype(size, np.float32) for size in ((64, 8192), (8192, 32768), (32768, 8192))]
    return sw.plan(mlp, *shapes, mesh="dp=2, tp=4")


def of_model(name: str, mesh: str, batch: int, sequence: int) -> Any:
    fn, args, about = model_program(name, batch, sequence, None, None)
    return sw.plan(fn, *args, mesh=mesh, **about)


HOSTILE = "</script><script>document.title='hacked'</script><img src=x onerror=\"document.title='hacked'\">&amp;\u2028"


def of_hostile_names() -> Any:
    def program(x: Any) -> Any:
        return {name: array * 2 for name, array in x.items()}

    program.__name__ = program.__qualname__ = HOSTILE
    return sw.plan(program, {HOSTILE: sw.ShapeDtype((6, 10), np.float32)}, mesh="a=2, b=3", uneven=True)


PLANS = {
    "mlp": of_mlp,
    "llama": lambda: of_model("llama-3-8b", "x=8, y=8", 64, 4096),
    "t5": lambda: of_model("t5-small", "d=8", 8, 512),
    "hostile": of_hostile_names,
}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.fail("there is no chromium with its driver; on Debian: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.add_experimental_option("prefs", {"download.default_directory": str(tmp_path_factory.mktemp("downloads"))})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = webdriver.Chrome(options=options, service=Service(driver))
    yield made
    made.quit()


@pytest.fixture(scope="module", params=PLANS)
def page(request: pytest.FixtureRequest, browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    plan = PLANS[request.param]()
    file = plan.html(tmp_path_factory.mktemp("page") / "plan.html", compare=request.param == "mlp")
    browser.get_log("browser")
    browser.get(f"file://{file}")
    yield plan, file, request.param
    assert [entry["message"] for entry in browser.get_log("browser")] == []


def show(browser: Any, tab: str) -> None:
    browser.find_element(By.CSS_SELECTOR, f"[data-tab={tab}]").click()


def ask(browser: Any, text: str) -> Any:
    return browser.execute_script(f"return {text}")


def test_it_is_there_at_once_and_needs_nobody(browser: Any, page: Any) -> None:
    plan, file, _ = page
    assert file.stat().st_size < 5 * 2**20
    assert ask(browser, "shardwrightReport.ready") < 2000
    assert ask(browser, "performance.getEntriesByType('resource').length") == 0
    assert (
        browser.title == f"{plan.data.name} on {plan.data.mesh}".replace("\u2028", browser.title[-1:]) or browser.title
    )
    assert browser.title != "hacked"
    assert browser.find_element(By.ID, "title").text.startswith(plan.data.name.split("\u2028")[0].strip()[:40])
    if plan.data.name == HOSTILE:
        assert ask(browser, "document.querySelectorAll('img').length") == 0
    blocked = ask(
        browser,
        "(() => { try { const s = document.createElement('script'); s.textContent = 'window.evil = 1';"
        " document.body.append(s); s.remove(); } catch (e) {} return window.evil; })()",
    )
    assert blocked is None
    assert any("Content Security Policy" in entry["message"] for entry in browser.get_log("browser"))


def test_figures_are_those_of_the_plan(browser: Any, page: Any) -> None:
    plan, _, _ = page
    record = json.loads(plan.to_json())
    shown = ask(browser, "shardwrightReport.data.overview")
    assert shown["memory_bytes"] == record["memory"] == ask(browser, "shardwrightReport.peak")
    assert shown["step_ps"] == record["cost"]["compute"] + record["cost"]["exposed"]
    assert (shown["compute_ps"], shown["exposed_ps"]) == (record["cost"]["compute"], record["cost"]["exposed"])
    assert shown["inputs"] == plan.specs
    assert ask(browser, "shardwrightReport.exports.plan()") == plan.to_json()
    trace = json.loads(ask(browser, "shardwrightReport.exports.trace()"))["traceEvents"]
    compute = sum(round(e["dur"] * 1e6) for e in trace if e["ph"] == "X" and e["tid"] == 0)
    exposed = sum(round(e["dur"] * 1e6) for e in trace if e.get("cat") == "exposed")
    assert abs(compute - plan.cost.compute) <= len(trace)
    assert abs(exposed - plan.cost.exposed) <= len(trace)
    assert len(ask(browser, "shardwrightReport.exports.csv()").splitlines()) == len(plan.program.instrs) + 1
    mine = {(c.kind, c.axis) for c in plan.collectives}
    assert {(c["kind"], c["axes"]) for c in shown["collectives"]} == mine


def test_shards_are_where_devices_have_them(browser: Any, page: Any) -> None:
    plan, _, _ = page
    graph, homes = plan.graph, plan.complete.homes
    place = dict(map(tuple, ask(browser, "shardwrightReport.data.tensors.map((t, i) => [t[0], i])")))
    seen = {}
    for value in graph.inputs:
        type, spec = graph.type(value), homes[value]
        number = place.get(tensor_text(type.dtype, type.shape, spec))
        if number is not None:
            seen[number] = (type.shape, spec)
    count = plan.data.mesh.size
    for number, (shape, spec) in seen.items():
        one = f"shardwrightReport.slices(shardwrightReport.data.tensors[{number}], p)"
        shown = ask(browser, f"Array.from({{length: {count}}}, (_, p) => {one})")
        for position, theirs in enumerate(shown):
            ours = [[part.start, part.stop] for part in spec.local_slices(shape, position)]
            assert [b - a for a, b in theirs] == [b - a for a, b in ours]
            assert all(mine == other for mine, other in zip(ours, theirs) if mine[0] != mine[1])


def test_selection_folding_and_cursor_are_shared(browser: Any, page: Any) -> None:
    plan, _, name = page
    show(browser, "Modules")
    rows = browser.find_elements(By.CSS_SELECTOR, "tr.row")
    assert rows
    rows[0].click()
    picked = browser.find_element(By.CSS_SELECTOR, "tr.picked").get_attribute("data-module")
    assert picked in browser.find_element(By.ID, "card").text or name == "hostile"
    assert "selected: " in browser.find_element(By.ID, "footer").text
    before = len(rows)
    if name != "mlp" and name != "hostile":
        buttons = {b.text: b for b in browser.find_elements(By.CSS_SELECTOR, ".tools button")}
        buttons["fold all"].click()
        folded = len(browser.find_elements(By.CSS_SELECTOR, "tr.row"))
        buttons["unfold all"].click()
        unfolded = len(browser.find_elements(By.CSS_SELECTOR, "tr.row"))
        assert folded < unfolded
        assert folded <= before
        assert any("x" in r.text and "-" in r.text for r in browser.find_elements(By.CSS_SELECTOR, "tr.row"))
        tree = browser.find_element(By.ID, "tree")
        browser.find_elements(By.CSS_SELECTOR, "tr.row")[0].click()
        tree.send_keys(Keys.ARROW_DOWN)
        moved = browser.find_element(By.CSS_SELECTOR, "tr.picked").get_attribute("data-module")
        assert moved != picked
        ask(browser, "[...document.querySelectorAll('tr.row')].find((r) => r.innerText.startsWith('▾')).click()")
        tree.send_keys(Keys.ARROW_LEFT)
        assert len(browser.find_elements(By.CSS_SELECTOR, "tr.row")) < unfolded
    show(browser, "Timeline")
    chosen = ask(browser, "shardwrightReport.state.module")
    assert chosen >= 0
    first = ask(browser, "shardwrightReport.state.cursor")
    body = browser.find_element(By.TAG_NAME, "body")
    body.send_keys(Keys.ARROW_LEFT)
    body.send_keys("+")
    if len(plan.program.instrs) > 3:
        assert ask(browser, "shardwrightReport.state.to - shardwrightReport.state.from") < plan.overview.step
    canvas = browser.find_element(By.ID, "memoryChart")
    webdriver.ActionChains(browser).move_to_element_with_offset(canvas, 200, 0).click().perform()
    now = ask(browser, "shardwrightReport.state.cursor")
    assert now != first or plan.overview.step == 0
    head = browser.find_element(By.ID, "aliveHead").text
    assert "In use at" in head
    show(browser, "Modules")
    assert ask(browser, "shardwrightReport.state.module") == chosen
    browser.find_element(By.TAG_NAME, "body").send_keys(Keys.ESCAPE)
    assert "nothing selected" in browser.find_element(By.ID, "footer").text


def test_the_cursor_shows_what_is_alive(browser: Any, page: Any) -> None:
    plan, _, _ = page
    show(browser, "Summary")
    browser.find_element(By.CSS_SELECTOR, ".note button").click()
    if plan.overview.memory.event >= 0:
        assert ask(browser, "shardwrightReport.inUse()") == plan.memory
    rows = browser.find_elements(By.CSS_SELECTOR, "#alive tr.row")
    assert 0 < len(rows) <= 20


def test_what_is_under_the_mouse_is_told(browser: Any, page: Any) -> None:
    show(browser, "Timeline")
    browser.find_element(By.XPATH, "//button[text()='all']").click()
    told = browser.execute_script(
        """const [from, to] = lanes[0].reduce((a, b) => (b[1] - b[0] > a[1] - a[0] ? b : a));
        const box = $("lanes").getBoundingClientRect();
        const at = box.left + LEFT + ((from + to) / 2 / O.step_ps) * (box.width - LEFT);
        $("lanes").dispatchEvent(new MouseEvent("mousemove", { clientX: at, clientY: box.top + 30 }));
        return $("lanes").title"""
    )
    what, _, when = told.partition("\n")
    assert " in " in what
    assert " to " in when


def test_downloads_and_looks(browser: Any, page: Any) -> None:
    _, _, name = page
    show(browser, "Data")
    for key in ("trace", "csv", "json", "plan"):
        browser.find_element(By.ID, f"save-{key}").click()
    pictures = os.environ.get("SCREENSHOTS")
    seen = set()
    for _ in range(2):
        seen.add(ask(browser, "getComputedStyle(document.body).backgroundColor"))
        for tab in TABS:
            show(browser, tab)
            if pictures:
                look = ask(browser, "document.documentElement.dataset.theme || 'light'")
                Path(pictures).mkdir(exist_ok=True)
                browser.save_screenshot(f"{pictures}/{name}-{look}-{tab}.png")
        browser.find_element(By.TAG_NAME, "body").send_keys("t")
    assert len(seen) == 2
