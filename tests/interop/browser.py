"""Chromium in a network namespace, driven by selenium: nothing but that namespace can be reached."""

import contextlib
import json
import pathlib
import tempfile

import patience
import prerequisite

try:
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
except ImportError:
    prerequisite.not_run("needs selenium: apt-get install python3-selenium")

DRIVER = "/usr/bin/chromedriver"
ARGUMENTS = (
    "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync --force-device-scale-factor=1 --hide-scrollbars"
).split()
TABBABLE = "a[href], button:not([disabled]), input, select, [tabindex='0']"


class Browser(contextlib.ExitStack):
    """A browser whose process is in the namespace; use it with the namespace entered."""

    def __init__(self, size=(1280, 900)):
        super().__init__()
        if not pathlib.Path(DRIVER).exists():
            prerequisite.not_run("needs chromium and chromium-driver")
        profile = self.enter_context(tempfile.TemporaryDirectory(prefix="uxfrm-chromium-", ignore_cleanup_errors=True))
        options = Options()
        for argument in (*ARGUMENTS, f"--user-data-dir={profile}"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(service=Service(DRIVER), options=options)
        self.callback(self.driver.quit)
        self.requested = set()
        self.size(*size)

    def command(self, name, **parameters):
        """A command of the DevTools protocol."""
        return self.driver.execute_cdp_cmd(name, parameters)

    def size(self, width, height, is_phone=False):
        self.command("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2 if is_phone else 1, mobile=is_phone)

    def scheme(self, name):
        """`light` or `dark`, as the system prefers it; without movements."""
        features = {"prefers-color-scheme": name, "prefers-reduced-motion": "reduce"}
        self.command("Emulation.setEmulatedMedia", features=[{"name": name, "value": value} for name, value in features.items()])

    def script(self, text, *arguments):
        return self.driver.execute_script(text, *arguments)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self):
        return self.script("return document.body.innerText")

    def wait_for(self, condition):
        """Waits until the condition holds for the page, which may be at work on it meanwhile."""

        def look():
            with contextlib.suppress(Exception):
                return condition()
            return None

        return patience.wait_for(look, self.text)

    def wait_for_text(self, text):
        self.wait_for(lambda: text in self.text())

    def press(self, *keys):
        self.driver.switch_to.active_element.send_keys(*keys)

    def tab(self):
        """What Tab leads to: its tag and text, and whether that can be seen to have the focus."""
        self.press(Keys.TAB)
        return self.script(
            """const it = document.activeElement, style = getComputedStyle(it);
            const box = it.getBoundingClientRect();
            return [it.tagName, it.textContent.trim() || it.name, style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2,
                    box.width > 0 && box.height > 0];"""
        )

    def complaints(self):
        """Errors and warnings of the console since the last call."""
        return [entry for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def hosts(self):
        """Origins of all requests so far."""
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                self.requested.add(message["params"]["request"]["url"])
        return {"/".join(url.split("/")[:3]) for url in self.requested if not url.startswith(("data:", "chrome:", "about:"))}

    def overflow(self):
        """Columns of pixels by which the page is wider than its window."""
        return self.script("return document.documentElement.scrollWidth - document.documentElement.clientWidth")

    def picture(self):
        """PNG of what the window shows."""
        return self.driver.get_screenshot_as_png()
