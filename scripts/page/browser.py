"""A headless Chromium on the page, with what the checks ask of it."""

import json
import shutil
import time

from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

LIMIT_S = 30


class Page:
    """The page of one server; a context manager, with a browser profile of its own."""

    def __init__(self, url, view="load", width=1280, height=850, dark=False):
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium")
        # Chromium's sandbox does not start for root, and containers have a small /dev/shm.
        for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
        self.url = url
        #: Failed requests that the check expects, as parts of their messages: browsers log each of them as an error.
        self.expected = []
        self.command("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])
        self.driver.get(f"{url}/#{view}")

    def command(self, name, **parameters):
        return self.driver.execute_cdp_cmd(name, parameters)

    def run(self, script, *arguments):
        """The value of a script, which may wait: it is the body of an async function."""
        return self.driver.execute_script(f"return (async function () {{ {script}\n}}).apply(null, arguments)", *arguments)

    def find(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector):
        return self.run("return document.querySelector(arguments[0])?.textContent ?? ''", selector)

    def keys(self, *keys):
        """Typed where the focus is."""
        webdriver.ActionChains(self.driver).send_keys(*keys).perform()

    def focused(self):
        """What has the focus: its id, or its words."""
        return self.run("const e = document.activeElement; return e.id || e.textContent.trim().slice(0, 40)")

    def until(self, what, condition):
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                if found := condition():
                    return found
            except (NoSuchElementException, StaleElementReferenceException):
                pass
            assert time.monotonic() < deadline, f"within {LIMIT_S} s it did not come true: {what}"
            time.sleep(0.05)

    def until_state(self, state):
        self.until(f"the page says {state}", lambda: self.text("#state") == state)

    def until_known(self):
        self.until("the model's name is shown", lambda: self.text("#model") == "perigee-nano")

    def view(self, name):
        self.find(f"#tab-{name}").click()
        self.until(f"the view {name} is shown", lambda: self.find(f"#view-{name}").is_displayed())

    def ask(self, text, **fields):
        """Sends a message and waits for the end of its reply; the last turn. `fields`: values of inputs by their ids."""
        for name, value in fields.items():
            self.fill("#" + name.replace("_", "-"), value)
        self.fill("#message", text)
        self.find("#message").send_keys(Keys.ENTER)
        return self.ended()

    def fill(self, selector, value):
        field = self.find(selector)
        if field.tag_name != "select":
            field.clear()
        field.send_keys(value)

    def ended(self):
        """The last turn, when its reply has ended."""
        self.until("the reply ends", lambda: self.run(
            "const last = document.querySelector('.turn.assistant:last-child'); return last?.ariaBusy === 'false'"))
        return self.all(".turn")[-1]

    def width_needed(self):
        return self.run("return document.documentElement.scrollWidth")

    def complaints(self):
        """Errors and warnings of the browser's console that no check expects, and requests to anywhere else."""
        logged = [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
        found = [message for message in logged if not any(part in message for part in self.expected)]
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                target = message["params"]["request"]["url"]
                if not target.startswith((self.url + "/", "data:", "blob:")):
                    found.append(f"a request to {target}")
        return found

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.driver.quit()
