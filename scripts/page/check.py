"""Drives the page at / of a server of this repository in headless Chromium: check.py BINARY [--screenshots DIR] [NAME...]."""

import argparse
import inspect
import json
import os
import pathlib
import subprocess
import sys
import threading
import time
import traceback
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from browser import Page
from server import Server

VIEWS = ("load", "playground", "settings")
PORT = "Which port does Perigee listen on?"
# Failed requests in the words of Chromium.
REFUSED = "status of 400"
LOCKED = "status of 401"
GONE = ("net::ERR_", "status of 503")


def figures(page, title):
    """The values beside a chart's title, by series."""
    items = page.run("""
        const chart = [...document.querySelectorAll('.chart')].find((c) => c.querySelector('h2').firstChild.data === arguments[0]);
        return [...chart.querySelectorAll('li')].map((item) => [item.childNodes[1]?.data?.trim() ?? '', item.querySelector('b').textContent]);
        """, title)
    return dict(items)


def check_what_is_served(server):
    kinds = {"": "text/html; charset=utf-8", "page/style.css": "text/css; charset=utf-8", "page/app.js": "text/javascript; charset=utf-8"}
    for path, kind in kinds.items():
        with urllib.request.urlopen(f"{server.url}/{path}") as answer:
            policy = answer.headers["content-security-policy"] or ""
            assert answer.headers["content-type"] == kind, (path, answer.headers["content-type"])
            assert "default-src 'self'" in policy and "unsafe" not in policy, (path, policy)


def check_status_and_facts(server, page):
    page.until_state("ready")
    page.until_known()
    facts = page.text("#facts")
    for part in ("up ", "cpu", "context 8,192", "KV ", "version "):
        assert part in facts, (part, facts)
    assert "its embedded toy model, perigee-nano." in page.text("#embedded")
    assert page.find("#outage").is_displayed() is False and page.find("#key-form").is_displayed() is False


def check_states_that_are_not_ready(server, page):
    """A boot of the embedded model is too short to be watched: the page gets reports as `/health/ready` gives them."""
    page.until_known()
    stages = [{"stage": "checkpoint", "done": True, "percent": 100, "seconds": 0.1}, {"stage": "weights", "done": False, "percent": 40, "seconds": 12.0}]
    for report, state, words in (
        ({"status": "starting", "stage": "weights", "percent": 40, "seconds": 12.1, "stages": stages}, "starting", "weights  40 %, 12 s"),
        ({"status": "failed", "reason": "no memory"}, "boot failed", "no memory"),
        ({"status": "leaving"}, "draining", "still answered"),
        ({"status": "draining"}, "draining", "new requests are refused"),
        ({"status": "engine_stuck", "running": 3}, "engine stuck", "3 requests run"),
        ({"status": "engine_stopped"}, "engine stopped", "engine stopped"),
    ):
        page.run("""const [report] = arguments; window.asked ??= window.fetch;
            window.fetch = (url, ...rest) => (String(url).endsWith('health/ready')
                ? Promise.resolve(new Response(JSON.stringify(report), { status: 503 })) : window.asked.call(window, url, ...rest));""", report)
        page.until_state(state)
        page.until(f"{state} is explained with {words!r}", lambda: words in page.text("#outage"))
    page.run("window.fetch = window.asked")
    page.until_state("ready")


def check_charts_show_what_goes_on(server, page):
    assert len(page.all(".chart canvas")) == 12
    page.until("an idle chart says so", lambda: "no first token" in page.run("""
        const texts = []; const write = CanvasRenderingContext2D.prototype.fillText;
        CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) { texts.push(text); return write.call(this, text, ...rest); };
        dispatchEvent(new Event('hashchange')); CanvasRenderingContext2D.prototype.fillText = write; return texts.join('|')""")
               or figures(page, "Time to first token")["p50"] != "–")
    # Longer than a block of the KV cache, or nothing of it would be cached.
    content = PORT + " Please." * 100
    ask = lambda **more: server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": content}], "max_tokens": 200} | more)
    end = time.monotonic() + 8

    def load():
        while time.monotonic() < end:
            ask(ignore_eos=True)

    threads = [threading.Thread(target=load) for _ in range(3)]
    [thread.start() for thread in threads]
    page.until("sequences run", lambda: figures(page, "Requests")["running"] not in ("0", "–"))
    page.until("tokens are generated", lambda: figures(page, "Generation")["generated"] not in ("0", "–"))
    for title in ("Time to first token", "Inter-token latency", "Engine step"):
        page.until(f"{title} has quantiles", lambda: "–" not in figures(page, title).values())
    page.until("prompts hit the cache", lambda: figures(page, "Prefix cache hits")["hit rate"] not in ("–", "0 %"))
    page.until("finished sequences are counted", lambda: "length" in figures(page, "Finished"))
    [thread.join() for thread in threads]
    try:
        ask(temperature=9)
    except urllib.error.HTTPError as error:
        assert error.code == 400
    page.until("the refusal is counted", lambda: "400" in figures(page, "Errors and refusals"))


def check_gpus_have_a_line_each(server, page):
    """The server has none: the page gets a figure of the metrics page more."""
    page.until_known()
    assert page.find("#gpus").is_displayed() is False
    page.run("""const asked = window.fetch; let polls = 0;
        const figures = (rank) => Object.entries({ gpu_utilization_ratio: 0.93, gpu_memory_used_bytes: 128.5 * 2 ** 30, gpu_memory_bytes: 141 * 2 ** 30,
            gpu_power_watts: 612.4, gpu_power_limit_watts: 700, gpu_sm_clock_hertz: 1.98e9, gpu_ecc_uncorrected_errors_total: 0,
            rank_exchange_seconds_total: polls }).map(([name, value]) => `perigee_${name}{rank="${rank}"} ${value}\n`).join('')
            + `perigee_gpu_info{name="Made-up",pci_bus_id="0000:01:00.0",rank="${rank}"} 1\n`
            + `perigee_gpu_throttled{rank="${rank}",reason="power_cap"} ${rank}\nperigee_gpu_throttled{rank="${rank}",reason="thermal"} 0\n`;
        window.fetch = async (url, ...rest) => {
            const answer = await asked.call(window, url, ...rest);
            if (!String(url).endsWith('metrics')) return answer;
            polls += 1;
            // Another process, so that nothing is compared with what the server counted before.
            const text = (await answer.text()).replace(/^perigee_step_seconds_sum .*$/m, `perigee_step_seconds_sum ${polls * 4}`)
                .replace(/^process_start_time_seconds .*$/m, 'process_start_time_seconds 1');
            return new Response(text + figures(0) + figures(1), { headers: answer.headers });
        };""")
    page.until("both GPUs are there", lambda: page.text("#gpus").count("exchanges 25 % of steps") == 2)
    lines = [item.text for item in page.all("#gpus li")]
    for part in ("GPU 0", "93 % busy", "128.5 of 141.0 GiB", "612 of 700 W", "1980 MHz"):
        assert part in lines[0], (part, lines)
    assert "power_cap" not in lines[0] and "power_cap" in lines[1] and "thermal" not in lines[1] and "°C" not in lines[0], lines


def check_the_readout_follows_pointer_and_keys(server, page):
    page.until_known()
    canvas = page.find(".chart canvas")
    ActionChains(page.driver).move_to_element_with_offset(canvas, 30, 0).perform()
    page.until("the time under the pointer is shown", lambda: page.text("#charts-note").startswith("At "))
    ActionChains(page.driver).move_to_element(page.find("#model")).perform()
    page.until("the readout ends", lambda: page.text("#charts-note").startswith("Bars"))
    page.find("#charts").send_keys(Keys.ARROW_LEFT)
    assert page.text("#charts-note").endswith("3 s ago."), page.text("#charts-note")
    page.keys(Keys.ESCAPE)
    assert page.text("#charts-note").startswith("Bars")


def check_a_hidden_page_asks_nothing(server, page):
    page.until_known()
    hide = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true}); document.dispatchEvent(new Event('visibilitychange'))"
    page.run(hide % "true")
    time.sleep(1)
    page.run("performance.clearResourceTimings()")
    asked = lambda: page.run("return performance.getEntriesByType('resource').length")
    time.sleep(4)
    assert asked() == 0, f"{asked()} requests while hidden"
    page.run(hide % "false")
    page.until("the page asks again", lambda: asked() >= 2)


def check_a_streamed_reply(server, page):
    page.until_known()
    page.view("playground")
    turn = page.ask(PORT, temperature="0")
    assert "8000" in turn.text, turn.text
    for part in ("finish stop", "first token", "in all", "prompt ", "reply "):
        assert part in turn.text, (part, turn.text)
    assert page.text("#announcement").startswith("Reply ended: stop"), page.text("#announcement")
    assert page.focused() == "message"


def check_the_curl_line_sends_the_same(server, page):
    page.until_known()
    page.view("playground")
    hard = """it's "quoted" $HOME `id` \\ ! é <b>&</b>"""
    turn = page.ask(hard, temperature="0", max_tokens="8")
    shown = turn.find_element("css selector", "p.text:not(.reasoning *)").text
    turn.find_element("css selector", ".curl summary").click()
    line = page.until("the line is there", lambda: turn.find_element("css selector", ".curl code").text)
    if subprocess.run(["bash", "-c", "command -v curl"], capture_output=True).returncode:
        print("        curl is not installed: its line was not run")
        return
    answer = subprocess.run(["bash", "-c", line + " -sS"], capture_output=True, text=True, timeout=60)
    chunks = [json.loads(data[6:]) for data in answer.stdout.splitlines() if data.startswith("data: {")]
    text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    assert text.strip() == shown.strip() and chunks, (line, answer.stderr, text, shown)
    assert json.dumps(hard, ensure_ascii=False).replace("'", "'\\''") in line, line


def check_reasoning_stands_apart(server, page):
    page.until_known()
    page.view("playground")
    turn = page.ask("What is 12 + 30?", temperature="0", thinking="on")
    thought = turn.find_element("css selector", ".reasoning p").text
    assert thought and thought not in turn.find_element("css selector", "p.text:not(.reasoning *)").text
    turn.find_element("css selector", ".reasoning summary").click()
    assert not turn.find_element("css selector", ".reasoning p").is_displayed()
    assert "42" in turn.text and "reasoning)" in turn.text, turn.text


def check_stop(server, page):
    page.until_known()
    page.view("playground")
    page.find("#use-more").click()
    page.fill("#more", json.dumps({"ignore_eos": True, "min_tokens": 3000, "max_tokens": 4000, "speculation": False, "repetition_guard": "off"}))
    page.fill("#message", PORT)
    page.find("#message").send_keys(Keys.ENTER)
    page.until("the reply begins", lambda: len(page.text(".turn.assistant p.text:not(.reasoning *)")) > 10)
    page.find("#stop").click()
    turn = page.ended()
    assert "stopped here" in turn.text and page.find("#send").is_displayed(), turn.text
    server.until(lambda: server.gauge("vllm:num_requests_running") == 0, "the sequence ends")


def check_a_tool_round_by_keyboard_alone(server, page):
    page.until_known()
    reach(page, "tab-playground", Keys.TAB)
    page.keys(Keys.ENTER)
    reach(page, "temperature", Keys.TAB)
    page.keys("0")
    reach(page, "use-tools", Keys.TAB)
    page.keys(Keys.SPACE)
    reach(page, "message", Keys.TAB)
    page.keys("I want Greek food in Mexico.", Keys.ENTER)
    page.ended()
    assert page.text(".call h4") == "calls find_restaurant", page.text(".call h4")
    assert json.loads(page.text(".call code:not(h4 *)")) == {"city": "Mexico", "cuisine": "Greek"}
    page.until("the call is announced", lambda: "find_restaurant" in page.text("#announcement"))
    page.keys("and now?", Keys.ENTER)
    assert "Result" in page.run("return document.activeElement.parentElement.textContent"), "the focus is not on the result"
    page.keys('{"status": "done"}', Keys.TAB)
    assert page.focused() == "Send result", page.focused()
    page.keys(Keys.ENTER)
    page.until("the round goes on", lambda: len(page.all(".turn.assistant")) == 2)
    assert "done" in page.ended().text


def check_structured_output(server, page):
    page.until_known()
    page.view("playground")
    page.find("#use-schema").click()
    turn = page.ask("Make a JSON object with name Ada and age 36.", temperature="0")
    text = turn.find_element("css selector", "pre").text
    assert text.splitlines()[1] == '  "name": "Ada",' and json.loads(text)["age"] == 36, text
    page.fill("#schema", "{")
    page.fill("#message", "x")
    page.find("#message").send_keys(Keys.ENTER)
    assert page.text("#schema-error") and page.focused() == "schema" and len(page.all(".turn")) == 2


def check_an_error_is_what_the_server_said(server, page):
    page.expected = [REFUSED]
    page.until_known()
    page.view("playground")
    turn = page.ask(PORT, temperature="9")
    for part in ("`temperature`: 9 is out of range, allowed: 0 to 2", "HTTP 400", "invalid_value", "field temperature"):
        assert part in turn.text, (part, turn.text)
    assert page.find("#message").get_attribute("value") == PORT, "the message is not back in its box"
    turn = page.ask(PORT, temperature="0")
    assert len(page.all(".turn")) == 2 and "8000" in turn.text, "the failed exchange is still there"
    page.find("#use-more").click()
    page.fill("#more", '{"no_such_field": 1}')
    assert "no_such_field" in page.ask(PORT).text


def check_markup_stays_text(server, page):
    page.until_known()
    page.view("playground")
    page.ask("<img src=x onerror=alert(1)><script>alert(2)</script>", max_tokens="8")
    assert page.text(".turn.user p").startswith("<img src=x") and not page.all("#turns img, #turns script")


def check_images(server, page):
    page.until_known()
    page.view("playground")
    picture = HERE.parent / "nano" / "heldout_pictures" / "colour_00.png"
    page.find("#files").send_keys(str(picture))
    page.until("a thumbnail is shown", lambda: page.run("return document.querySelector('#thumbnails img')?.naturalWidth > 0"))
    page.find("#thumbnails button").click()
    assert not page.all("#thumbnails img")
    page.find("#files").send_keys(str(picture))
    page.until("it is attached again", lambda: page.all("#thumbnails img"))
    turn = page.ask("Tell me the colour.", temperature="0", thinking="off")
    assert "pink" in turn.text and "of images" in turn.text, turn.text
    assert len(page.all(".turn.user img")) == 1 and not page.all("#thumbnails img")


def check_turns_are_removed(server, page):
    page.until_known()
    page.view("playground")
    page.ask(PORT, max_tokens="8")
    page.ask(PORT, max_tokens="8")
    page.find("#undo").click()
    assert len(page.all(".turn")) == 2
    page.find("#clear").click()
    assert not page.all(".turn") and not page.find("#undo").is_enabled()


def check_settings(served):
    with served("scheduler.max_num_seqs=64") as server, Page(server.url, "settings") as page:
        page.until("the table is filled", lambda: len(page.all("#settings-rows tr")) > 50)
        rows = [row.text for row in page.all("#settings-rows tr")]
        ours = [row for row in rows if row.startswith("scheduler.max_num_seqs")]
        assert len(ours) == 1 and " set" in ours[0] and "64" in ours[0], ours
        first_default = next(i for i, row in enumerate(rows) if row.endswith("default"))
        assert rows.index(ours[0]) < first_default, "what was set does not come first"
        page.fill("#filter", "max_num seqs")
        shown = [row.text for row in page.all("#settings-rows tr") if row.is_displayed()]
        assert shown == ours, shown
        assert page.text("#settings-count").startswith("1 of ")
        check_quiet(page)


def check_narrow_screens_and_colours(server):
    for dark in (False, True):
        with Page(server.url, width=360, height=740, dark=dark) as page:
            page.until_known()
            for view in VIEWS:
                page.view(view)
                time.sleep(0.3)
                assert page.width_needed() <= 360, f"{view} needs {page.width_needed()} pixels"
            page.view("playground")
            page.find("#options-fold summary").click()
            for box in ("#use-tools", "#use-schema", "#use-more"):
                page.find(box).click()
            page.ask("Repeat " + "x" * 300, max_tokens="16")
            page.find(".curl summary").click()
            assert page.width_needed() <= 360, f"an open playground needs {page.width_needed()} pixels"
            for text, back, least in (("text", "page", 7), ("text", "panel", 7), ("faint", "page", 4.5), ("faint", "panel", 4.5),
                                      ("accent", "panel", 4.5), ("good", "panel", 4.5), ("busy", "panel", 4.5), ("bad", "panel", 4.5),
                                      ("bad", "bad-back", 4.5), ("on-accent", "accent", 4.5),
                                      *((f"series-{i}", "panel", 3) for i in range(6))):
                found = contrast(colour(page, text), colour(page, back))
                assert found >= least, f"{text} on {back}, dark: {dark}: contrast {found:.2f}, at least {least} is needed"
            check_quiet(page)


def check_the_focus_is_seen(server, page):
    page.until_known()
    seen = set()
    for view in VIEWS:
        # A click would put the focus behind the first links.
        if view != VIEWS[0]:
            page.view(view)
        for _ in range(40):
            page.keys(Keys.TAB)
            if page.run("return document.activeElement === document.body"):
                break
            seen.add(page.focused())
            # The file input is unseen; its label shows the focus.
            outline = page.run("""const e = document.activeElement; const s = getComputedStyle(e.type === 'file' ? e.parentElement : e);
                                  return s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 1""")
            assert outline, f"{page.focused()} has the focus and no outline"
    for name in ("tab-load", "tab-playground", "tab-settings", "charts", "message", "temperature", "files", "filter", "use-tools"):
        assert name in seen, f"{name} cannot be reached with the Tab key: {sorted(seen)}"
    unnamed = page.run("""return [...document.querySelectorAll('input, textarea, select, button')]
        .filter((e) => !(e.labels?.length || e.ariaLabel || e.textContent.trim())).map((e) => e.id)""")
    assert unnamed == [], f"without a name: {unnamed}"


def check_a_key_is_asked_for(served):
    secret = "sk-page-check"
    with served(f'server.api_keys=["{secret}"]', "server.public_pages=false") as server, Page(server.url, "playground") as page:
        page.expected = [LOCKED]
        page.until("the key is asked for", lambda: page.find("#key-form").is_displayed())
        page.until_state("ready")
        assert page.focused() == "key" and page.find("#key").get_attribute("type") == "password"
        page.run("performance.clearResourceTimings()")
        time.sleep(4)
        asked = page.run("return performance.getEntriesByType('resource').map((entry) => new URL(entry.name).pathname)")
        assert set(asked) <= {"/health/ready"}, f"asked without a key: {asked}"
        page.keys("wrong", Keys.ENTER)
        page.until("a wrong key is refused", lambda: page.text("#key-error"))
        page.keys(secret, Keys.ENTER)
        page.until_known()
        assert not page.find("#key-form").is_displayed()
        page.until("the charts have figures", lambda: figures(page, "Requests")["running"] == "0")
        turn = page.ask(PORT, temperature="0")
        turn.find_element("css selector", ".curl summary").click()
        line = page.until("the curl line is there", lambda: turn.find_element("css selector", ".curl code").text)
        assert '"Authorization: Bearer $PERIGEE_API_KEY"' in line and secret not in line, line
        assert page.run("return localStorage.length + document.cookie.length") == 0
        page.driver.refresh()
        page.until_known()
        page.view("settings")
        page.until("the settings are shown", lambda: len(page.all("#settings-rows tr")) > 50)
        assert secret not in page.driver.page_source
        page.find("#forget-key").click()
        page.until("the key is asked for again", lambda: page.find("#key-form").is_displayed())
        assert page.text("#model") == "Perigee" and not page.all("#settings-rows tr")
        check_quiet(page)


def check_a_server_that_goes_and_comes_back(served):
    with served() as first, Page(first.url) as page:
        port = int(first.url.rsplit(":", 1)[1])
        page.expected = list(GONE)
        page.until_known()
        page.until("there are figures", lambda: figures(page, "Requests")["running"] == "0")
        first.process.kill()
        first.process.wait()
        page.until_state("unreachable")
        assert "does not answer" in page.text("#outage")
        page.until("old figures are gone", lambda: figures(page, "Requests")["running"] == "–")
        page.view("playground")
        assert "no connection" in page.ask(PORT).text
        with served("scheduler.max_num_seqs=32", port=port):
            page.until_state("ready")
            assert not page.find("#outage").is_displayed()
            page.until("the figures are back", lambda: figures(page, "Requests")["running"] == "0")
            assert "8000" in page.ask(PORT, temperature="0").text
            page.view("settings")
            page.until("the settings are those of the new process", lambda: any(
                row.text.startswith("scheduler.max_num_seqs") and "32" in row.text for row in page.all("#settings-rows tr.set")))
        check_quiet(page)


def check_below_a_prefix(served):
    with served("server.root_path=/llm") as server, Page(server.url + "/llm", "playground") as page:
        page.until_known()
        turn = page.ask(PORT, temperature="0")
        assert "8000" in turn.text
        turn.find_element("css selector", ".curl summary").click()
        line = page.until("the curl line is there", lambda: turn.find_element("css selector", ".curl code").text)
        assert f"{server.url}/llm/v1/chat/completions" in line
        check_quiet(page)


def check_the_reference_lists_every_route(server, page):
    with urllib.request.urlopen(f"{server.url}/openapi.json") as answer:
        document = json.load(answer)
    page.driver.get(f"{server.url}/docs#tokenize")
    page.until("the sections are there", lambda: page.all("section"))
    titles = [title.text for title in page.all("section h2")]
    routes = [f"{method.upper()} {path}" for path, item in document["paths"].items() for method in item]
    assert sorted(titles) == sorted(routes), titles
    assert page.run("return scrollY > 0"), "the section of the address is shown"
    fields = page.text("#v1_chat_completions table")
    for part in ("messagesrequired array of (object", "temperaturenumber, 0 to 2", "toolsarray of (object)"):
        assert part in fields, (part, fields)


# ---- What the checks share.


def reach(page, name, key):
    for _ in range(40):
        if page.focused() == name:
            return
        page.keys(key)
    raise AssertionError(f"{name} cannot be reached with the keyboard")


def colour(page, name):
    value = page.run("return getComputedStyle(document.documentElement).getPropertyValue(arguments[0])", f"--{name}").strip()
    return [int(value[i:i + 2], 16) / 255 for i in (1, 3, 5)]


def contrast(a, b):
    """WCAG 2, section 1.4.3."""
    linear = lambda c: c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
    light, dark = sorted((sum(w * linear(c) for w, c in zip((0.2126, 0.7152, 0.0722), x)) for x in (a, b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def check_quiet(page):
    complaints = page.complaints()
    assert complaints == [], complaints


def screenshots(server, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for width, height in ((1400, 900), (360, 740)):
        for dark in (False, True):
            with Page(server.url, width=width, height=height, dark=dark) as page:
                page.until_known()
                time.sleep(4)
                for view in VIEWS:
                    page.view(view)
                    if view == "playground":
                        page.ask("What is 12 + 30?", **({"thinking": "on"} if width > 500 else {}))
                    time.sleep(1)
                    page.driver.save_screenshot(str(folder / f"{view}-{width}-{'dark' if dark else 'light'}.png"))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary")
    parser.add_argument("--screenshots", type=pathlib.Path, metavar="DIR", help="writes pictures of the views there")
    parser.add_argument("wanted", nargs="*", metavar="NAME", help="only the checks with this in their names")
    options = parser.parse_intermixed_args()
    # Selenium looks for no browsers and reports nothing: both programs are given.
    os.environ.update(SE_OFFLINE="true", SE_AVOID_STATS="true")
    served = lambda *settings, **more: Server(options.binary, *settings, **more)
    failed = count = 0
    begun = time.monotonic()
    with served() as server:
        for name, check in list(globals().items()):
            title = name.removeprefix("check_").replace("_", " ")
            if not name.startswith("check_") or check is check_quiet:
                continue
            if options.wanted and not any(part in name for part in options.wanted):
                continue
            count += 1
            parameters = inspect.signature(check).parameters
            try:
                if "page" in parameters:
                    with Page(server.url) as page:
                        check(server, page)
                        check_quiet(page)
                else:
                    # Those that need settings of their own start their own servers.
                    check(server if "server" in parameters else served)
                print(f"ok      {title}", flush=True)
            except Exception:
                failed += 1
                print(f"FAILED  {title}\n{traceback.format_exc()}", flush=True)
        if options.screenshots:
            screenshots(server, options.screenshots)
        code = server.stop()
    assert count, f"no check has {options.wanted} in its name"
    print(f"{count - failed} of {count} checks passed in {time.monotonic() - begun:.0f} s")
    if code != 0:
        print(f"the server ended with code {code}")
    sys.exit(bool(failed or code))


if __name__ == "__main__":
    main()
