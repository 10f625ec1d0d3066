"""Takes the pictures of this folder from a running practice box: all pages, both themes, both widths, real practice data.

    make demo                                          # in one terminal; wait for its report
    .venv/bin/python docs/images/take.py LINK          # in another, with the sign-in link that it prints

It presses the buttons that a person would press: a reset of the box, an integrity check, plans of every sort, a redeploy, a roll back, a recipe that
becomes a channel, a guard that is broken (in the practice box's model folder) and applied, a sweep three times over, a redeploy whose
packages do not agree, and a scan and a purge of leftovers.
Takes about ten minutes.
"""

from __future__ import annotations

import base64
import json
import re
import sys
import time
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

HERE = Path(__file__).parent
ARGS = ["--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-gpu"]
WEBP = """async (png) => { const image = new Image(); image.src = 'data:image/png;base64,' + png; await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height); canvas.getContext('2d').drawImage(image, 0, 0);
  const blob = await canvas.convertToBlob({ type: 'image/webp', quality: 0.75 }); const bytes = new Uint8Array(await blob.arrayBuffer());
  let text = ''; for (const byte of bytes) text += String.fromCharCode(byte); return btoa(text); }"""
CRASH = """(APIServer pid=611582) INFO 03-02 04:11:01 [api_server.py:1346] vLLM API server version 0.16.0rc2.dev344
(Worker_TP0 pid=611710) ERROR 03-02 04:11:28 [multiproc_executor.py:751] Traceback (most recent call last):
(Worker_TP0 pid=611710) ERROR 03-02 04:11:28 [multiproc_executor.py:751]   File ".../site-packages/flashinfer/jit/env.py", line 1456
(Worker_TP0 pid=611710) ERROR 03-02 04:11:28 [multiproc_executor.py:751]     raise RuntimeError(
(Worker_TP0 pid=611710) ERROR 03-02 04:11:28 [multiproc_executor.py:751] RuntimeError: flashinfer-cubin version (0.6.3) does not match flashinfer \
version (0.6.4). Please install the same version of both packages.
(EngineCore_DP0 pid=611650) ERROR 03-02 04:11:31 [core.py:946] EngineCore failed to start.
(APIServer pid=611582) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""


class Camera:
    """One browser window, and a second one that turns its pictures into WebP."""

    def __init__(self, browser: Browser) -> None:
        self.page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        self.dark_room = browser.new_context().new_page()

    def take(self, name: str, *, full: bool = True) -> None:
        for theme, width in (("light", 1440), ("dark", 1440), ("dark", 390), ("light", 390)):
            self.page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
            self.page.set_viewport_size({"width": width, "height": 900 if width > 400 else 844})
            self.page.wait_for_timeout(350)
            png = base64.b64encode(self.page.screenshot(full_page=full)).decode()
            file = HERE / f"{name}{'-390' if width == 390 else ''}{'-dark' if theme == 'dark' else ''}.webp"
            file.write_bytes(base64.b64decode(self.dark_room.evaluate(WEBP, png)))
        self.page.emulate_media(color_scheme="light")
        self.page.set_viewport_size({"width": 1440, "height": 900})

    def go(self, address: str) -> None:
        self.page.goto(address)
        self.page.wait_for_timeout(1200)

    def until(self, expression: str, seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while not self.page.evaluate(f"Boolean({expression})"):
            if time.monotonic() > end:
                raise SystemExit(f"not within {seconds} s: {expression}")
            self.page.wait_for_timeout(100)


ENDED = "'final' in document.body.dataset"


def take_all(camera: Camera, link: str) -> None:
    page: Page = camera.page
    base = link.split("/sign-in/")[0]
    service = f"{base}/services/practice/kimi-k25/"
    page.goto(f"{base}/sign-in/")
    camera.take("sign-in")
    page.goto(link)
    page.click("text=Sign in to Roundhouse")
    for name, path in (("fleet", "/"), ("node", "/nodes/practice/"), ("services", "/services/"), ("service", "/services/practice/kimi-k25/"),
                       ("jobs", "/jobs/")):
        camera.go(base + path)
        if name == "fleet":
            page.wait_for_timeout(3000)
        camera.take(name)
    page.goto(f"{base}/benchmarks/")
    page.click("tbody a >> nth=0")
    camera.until("document.querySelector('#throughput .main-svg')")
    camera.take("benchmark-run")
    camera.go(f"{base}/jobs/?type=redeploy")
    page.click("tbody a >> nth=0")
    camera.until("document.querySelector('#throughput .main-svg')")
    camera.take("job-report")
    camera.go(f"{base}/diagnose/")
    page.fill("#text", CRASH)
    page.select_option("#about", index=1)
    page.click("button >> text=Find the decisive line")
    camera.take("diagnose")
    take_settings(camera, service)
    take_measuring(camera, base, service)

    camera.go(base)
    page.click("text=Reset practice box…")
    page.wait_for_selector("dialog[open]")
    camera.take("dialog", full=False)
    page.click("dialog >> text=Reset the practice box >> nth=-1")
    page.wait_for_url(re.compile("/jobs/"))
    camera.until(ENDED)

    camera.go(service)
    page.click("header >> text=Redeploy…")
    page.wait_for_url(re.compile("/plans/"))
    camera.until("document.querySelector('[name=plan_hash]')")
    camera.take("plan")
    plan = page.url
    take_edits(camera, service)
    camera.go(plan)
    page.click("form[action*='redeploy'] button:not([type])")
    page.wait_for_url(re.compile("/jobs/"))
    camera.until("document.querySelector('[data-phase=load] .state-run')")
    camera.take("job-warmup")
    camera.until("document.querySelectorAll('[data-level] .state-ok').length > 1 && document.getElementById('live')?.data?.[0].x.length > 1")
    camera.take("job-sweep")
    camera.until(ENDED)
    take_kept(camera, service)

    camera.go(service)
    page.click("text=Reset practice box…")
    page.wait_for_selector("dialog[open]")
    page.click("dialog >> text=Reset the practice box >> nth=-1")
    page.wait_for_url(re.compile("/jobs/"))
    camera.until(ENDED)
    camera.go(service)
    page.click("text=Plan a redeploy with other choices")
    page.select_option("#channel", "practice")
    page.select_option("#coupling", "off")
    page.click("text=Make this plan")
    page.wait_for_url(re.compile("/plans/"))
    camera.until("document.querySelector('[name=plan_hash]')")
    camera.take("plan-coupling-off")
    page.click("form[action*='redeploy'] button:not([type])")
    page.wait_for_url(re.compile("/jobs/"))
    camera.until(ENDED, 180)
    page.wait_for_timeout(8000)
    camera.take("job-failed")
    camera.go(base)
    camera.take("fleet-needs-you")
    take_cleanup(camera, base)


def take_cleanup(camera: Camera, base: str) -> None:
    """A scan of the practice box, its preview, the question, and the manifest of what went. The redeploy before it failed, so nothing was purged."""
    page = camera.page
    camera.go(f"{base}/cleanup/practice/")
    page.click("text=Scan practice")
    page.wait_for_selector("tbody[data-kind=debug-tensor] input:checked")
    camera.take("cleanup-node")
    camera.go(f"{base}/cleanup/")
    camera.take("cleanup")
    camera.go(f"{base}/cleanup/practice/")
    page.click("[data-review]")
    page.wait_for_selector("dialog[open]")
    camera.take("cleanup-question", full=False)
    page.click("dialog >> text=for good >> nth=-1")
    page.wait_for_url(re.compile("/jobs/"))
    camera.until(ENDED)
    camera.go(f"{base}/cleanup/manifests/{page.url.split('/jobs/')[1].split('/')[0]}/")
    camera.until("!document.body.dataset.manifestOf && document.querySelector('#list')")
    camera.take("manifest", full=False)


def take_measuring(camera: Camera, base: str, service: str) -> None:
    """A sweep asked for in its form, three times over; its runs in the list, beside the published figures, over time; and where files come in."""
    page = camera.page
    camera.go(f"{service}sweep/")
    camera.take("sweep-form")
    page.check("input[name=preset][value=quick]")
    page.fill("#levels", "1, 8, 32, 128")
    page.fill("#repeats", "3")
    page.fill("#level_seconds", "12")
    page.click("button[value=start]")
    page.wait_for_url(re.compile("/jobs/"))
    camera.until(ENDED, 600)
    camera.go(f"{base}/benchmarks/")
    camera.take("benchmarks")
    page.check("input[name=run][aria-label*='Published figures']")
    for run in page.locator("input[name=run][aria-label*='kimi-k25']").all()[:4]:
        run.check()
    page.click("[data-chosen-go]")
    page.wait_for_url(re.compile("side="))
    page.wait_for_timeout(1500)
    camera.take("compare")
    camera.go(f"{service}trend/")
    camera.take("trend")
    camera.go(f"{base}/benchmarks/import/")
    camera.take("import")


def take_settings(camera: Camera, service: str) -> None:
    """Launch settings changed in their form, and the smoke suite with what was last answered."""
    page = camera.page
    camera.go(f"{service}launch/")
    page.fill("#flags", page.input_value("#flags").replace("131072", "65536") + "\n--enable-prefix-caching")
    page.fill("[name=new-name] >> nth=0", "NCCL_DEBUG")
    page.fill("[name=new-value] >> nth=0", "WARN")
    page.fill("[name=new-name] >> nth=1", "HF_TOKEN")
    page.fill("[name=new-value] >> nth=1", "a token of nobody")
    camera.take("launch")
    page.click("button >> text=Preview the difference >> nth=-1")
    page.wait_for_selector("text=Nothing is saved yet")
    camera.take("launch-difference")
    page.click("text=Save these settings")
    page.wait_for_url(re.compile("/jobs/"))
    camera.until(ENDED)
    camera.go(page.url)
    camera.take("job-settings")
    camera.go(f"{service}smoke/")
    page.click("text=Ask them now")
    page.wait_for_url(re.compile("/jobs/"))
    camera.until(ENDED)
    camera.go(f"{service}smoke/")
    page.click(".asked summary >> nth=1")
    if not page.locator("#question-1[open]").count():
        page.click("#question-1 > summary")
    page.fill("#q1-name", "polite")
    page.fill("#q1-prompt", "Ask for the salt, in one sentence.")
    page.select_option("#q1-kind", "matches")
    page.fill("#q1-expect", "(?i)please|could you")
    page.evaluate("scrollTo(0, 0)")
    camera.take("smoke-suite")


def take_edits(camera: Camera, service: str) -> None:
    """What was edited by hand: the check, both ways out, and a plan for which there is no solution. The box has just been reset."""
    page = camera.page
    camera.go(f"{service}environment/")
    camera.take("packages")
    camera.go(f"{service}integrity/")
    page.click("text=Check every file")
    page.wait_for_url(re.compile("/jobs/"))
    camera.until(ENDED)
    camera.go(f"{service}integrity/")
    camera.take("integrity")
    page.click("text=Plan to restore just the changed files")
    page.wait_for_url(re.compile("/plans/"))
    camera.until("document.querySelector('[name=plan_hash]')")
    page.click("text=Show differences")
    camera.take("plan-restore")
    camera.go(service)
    page.click("text=Plan a redeploy with other choices")
    page.fill("#version", "9.9.9")
    page.click("text=Make this plan")
    page.wait_for_url(re.compile("/plans/"))
    camera.until(ENDED)
    camera.go(page.url)
    camera.take("plan-no-solution")


def take_kept(camera: Camera, service: str) -> None:
    """What a redeploy leaves: patches on the shelf, releases to roll back to, a recipe; then channels, and a guard that does not hold."""
    page = camera.page
    base = service.split("/services/")[0]
    camera.go(f"{service}shelf/")
    camera.take("shelf")
    page.click("main a[href*='/shelf/'] >> text=deepseek_v2.py")
    page.wait_for_timeout(600)
    camera.take("patch")
    camera.go(service)
    page.wait_for_selector("text=Save a recipe…")
    page.click("text=Save a recipe…")
    page.wait_for_selector("dialog[open]")
    page.fill("dialog [name=label]", "after the night of 2 March")
    page.click("dialog >> text=Save the recipe")
    page.wait_for_url(re.compile("/jobs/"))
    camera.until(ENDED)
    camera.go(page.url)
    camera.take("job-recipe")
    recipe = page.request.get(f"{page.url.split('?')[0]}recipe.json").body()

    camera.go(f"{base}/settings/channels/new/")
    camera.take("channel-presets")
    camera.go(f"{base}/settings/channels/new/nightly/")
    page.fill("[name=name]", "nightly")
    page.fill("[name=variant]", "cuda 12.9")
    page.click("form >> text=Add the channel")
    page.wait_for_selector("[role=alert]")
    camera.take("channel-wrong")
    page.fill("[name=variant]", "cu129")
    page.click("form >> text=Add the channel")
    page.wait_for_selector("text=Channel nightly is there")
    camera.take("channel")
    camera.go(f"{base}/settings/channels/new/recipe/")
    page.fill("[name=name]", "last-good")
    page.set_input_files("[name=recipe]", {"name": "recipe.json", "mimeType": "application/json", "buffer": recipe})
    page.click("form >> text=Add the channel")
    page.wait_for_selector("text=Channel last-good is there")
    camera.go(f"{base}/settings/")
    camera.take("settings")

    camera.go(service)
    config = Path(page.inner_text("dt:has-text('Model folder') + dd").strip()) / "config.json"
    told = json.loads(config.read_text())
    told.setdefault("quantization_config", {})["kv_cache_scheme"] = {"num_bits": 8, "type": "float"}
    config.write_text(json.dumps(told, indent=2) + "\n")
    end = time.monotonic() + 90
    while not (page.locator("text=Apply…").count() and page.locator("text=config.json was changed").count()):  # the agent looks twice a minute
        if time.monotonic() > end:
            raise SystemExit("the agent has not seen the broken guard within 90 s")
        page.wait_for_timeout(2000)
        page.reload()
    camera.take("service-guard")
    page.click("text=Apply…")
    page.wait_for_selector("dialog[open]")
    page.click("dialog >> button.btn-primary")
    page.wait_for_url(re.compile("/jobs/"))
    camera.until(ENDED)
    camera.go(page.url)
    camera.take("job-guards")

    camera.go(service)
    page.click("text=Roll back… >> nth=0")
    page.wait_for_selector("dialog[open]")
    camera.take("rollback", full=False)
    page.click("dialog >> button.btn-primary")
    page.wait_for_url(re.compile("/jobs/"))
    camera.until(ENDED)
    camera.go(page.url)
    camera.take("job-rollback")


def main() -> None:
    if len(sys.argv) != 2 or "/sign-in/" not in sys.argv[1]:
        raise SystemExit(__doc__)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", chromium_sandbox=False, args=ARGS)
        take_all(Camera(browser), sys.argv[1])
        browser.close()


if __name__ == "__main__":
    main()
