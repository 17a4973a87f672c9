"""Drives the page at / of a server of this repository in headless Chromium: check.py BINARY [--screenshots DIR] [NAME...]."""

import argparse
import concurrent.futures
import contextlib
import inspect
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import selenium_axe_python
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from browser import Page
from server import Server

VIEWS = ("load", "playground", "settings")
PORT = "Which port does Perigee listen on?"
# Failed requests in the words of Chromium.
REFUSED = "status of 400"
LOCKED = "status of 401"
FORBIDDEN = "status of 403"
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
                ? Promise.resolve(new Response(JSON.stringify(report), { status: 503 })) : window.asked.call(window, url, ...rest));
            document.dispatchEvent(new Event('visibilitychange'));""", report)
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
    page.until("the refusal is counted", lambda: int(figures(page, "Errors and refusals").get("4xx", 0)) >= 1)
    assert "400 × " in page.run("return [...document.querySelectorAll('.chart .hint')].map((note) => note.textContent).join('|')")


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
    assert page.text("#charts-note").endswith(", 2 s ago."), page.text("#charts-note")
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
    shown = turn.find_element("css selector", ".content").text
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
    assert thought and thought not in turn.find_element("css selector", ".content").text
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
    page.until("the reply begins", lambda: len(page.text(".turn.assistant .content")) > 10)
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


def check_errors_before_the_page_was_opened(server):
    for _ in range(3):
        with contextlib.suppress(urllib.error.HTTPError):
            server.get("/v1/no-such-path")
    with Page(server.url) as page:
        # The first figures already tell of them: nothing is claimed that the page cannot know.
        page.until("there are figures", lambda: figures(page, "Requests")["running"] != "–")
        assert int(figures(page, "Errors and refusals")["4xx"]) >= 3, figures(page, "Errors and refusals")
        assert page.all(".vitals .warn") and page.all(".chart b.warn"), "errors have no colour"
        drawn = page.run("""
            const texts = []; const write = CanvasRenderingContext2D.prototype.fillText;
            CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) { texts.push(text); return write.call(this, text, ...rest); };
            dispatchEvent(new Event('hashchange')); CanvasRenderingContext2D.prototype.fillText = write; return texts;""")
        assert "start" in [text.strip() for text in drawn], "the start of the server is not marked"
        idle = [text for text in drawn if text.startswith("no loop found")]
        assert idle and "since the start, " in idle[0], drawn
        assert not [text for text in drawn if text.startswith("none ")], drawn
        assert "4xx since start" in page.text("#vitals")
        # Every chart has its alert, where there is one.
        assert "PerigeeSlowFirstToken" in page.text("#charts")
        check_quiet(page)


def check_latencies_have_decades(server, page):
    page.until_known()
    labels = page.run("""
        const { Board } = await import('/page/chart.js'); const { PANELS } = await import('/page/panels.js');
        const charts = new Board(PANELS, document.createElement('div'), document.createElement('p'));
        const { labels, place } = charts.chart('Time to first token').axis([0.000372, 0.088]);
        return [labels, place(0.000372), place(0.088), place(0)];""")
    assert labels[0] == [1e-4, 1e-3, 1e-2, 1e-1] and 0.15 < labels[1] < 0.25 and labels[2] > 0.9 and labels[3] == 0, labels


# What a model may write to act on the page or to stop it.
HOSTILE = [
    "<script>window.hacked = 1</script>", "<img src=x onerror=window.hacked=1>", "![x](http://127.0.0.1:1/x.png)",
    "[a](javascript:window.hacked=1)", "[a](JaVaScRiPt:window.hacked=1)", "[a](data:text/html,<script>window.hacked=1</script>)",
    "[a]( vbscript:x)", "[a](java\nscript:x)", "[a](//127.0.0.1:1/x)", "[a](file:///etc/passwd)", "<a href=javascript:x>a</a>",
    "<javascript:window.hacked=1>", "```html\n<script>window.hacked = 1</script>\n```", "| <img src=x onerror=window.hacked=1> |\n|---|\n| <svg onload=window.hacked=1> |",
    "- <iframe src=http://127.0.0.1:1/></iframe>", "> <style>body{display:none}</style>", "[x](https://example.org\" onclick=\"window.hacked=1)",
    "<details open ontoggle=window.hacked=1>", "&lt;script&gt;", "# <h1>x</h1>",
]
MEGABYTE = 1_000_000
# Units of texts that are a megabyte long; `None`: made below.
LONG = {
    "one line": "a", "stars": "*", "stars and letters": "*a ", "open brackets": "[", "brackets": "[a](", "empty links": "[](", "titles": '[](a "',
    "backquotes": "`a", "growing backquotes": None, "escapes": "\\", "spaces": " ", "bars": "|", "hashes": "# ", "quotes": "> ", "blank lines": "\n",
    "lists": "- a\n", "nested lists": None, "table rows": None, "paragraphs": "a\n\n", "fences": "```\n", "links": "https://a.example/b ",
    "dots behind a link": None, "emphasis in words": "a_b*c~~", "tilde fence and backquote": None, "spaces behind a fence": None,
    "spaces before a delimiter": None, "addresses that are none": "http://%",
}


def long_text(name):
    unit = LONG[name]
    if unit:
        return unit * (MEGABYTE // len(unit))
    return {
        "growing backquotes": "".join("a" + "`" * (1 + i % 900) for i in range(2200)),
        "nested lists": "\n".join("  " * (i % 200) + "- a" for i in range(5000)) + "\n" + "- " * 200_000,
        "table rows": "|" + "a|" * 30 + "\n|" + "-|" * 30 + "\n" + "|\n" * 100_000 + "|a|b|\n" * 80_000,
        "dots behind a link": ("https://a.example/" + "." * 1900 + "a ") * 500,
        "tilde fence and backquote": "~" * (MEGABYTE - 1) + "`", "spaces behind a fence": "```" + " " * MEGABYTE + "`",
        "spaces before a delimiter": "a|b\n" + " " * MEGABYTE + "x-|",
    }[name]


def check_hostile_markdown_is_inert(server, page):
    page.until_known()
    page.view("playground")
    found = page.run("""
        const { Markdown } = await import('/page/markdown.js');
        const place = document.querySelector('#turns');
        new Markdown(place).set(arguments[0]);
        const allowed = new Set(['A', 'BLOCKQUOTE', 'BUTTON', 'CODE', 'DEL', 'DIV', 'EM', 'H4', 'HR', 'LI', 'OL', 'P', 'PRE', 'SPAN', 'STRONG', 'TABLE', 'TBODY', 'TD', 'TH', 'THEAD', 'TR', 'UL']);
        const all = [...place.querySelectorAll('*')];
        return {
          strangers: all.map((e) => e.tagName).filter((name) => !allowed.has(name)),
          handlers: all.flatMap((e) => [...e.attributes]).map((a) => a.name).filter((name) => name.startsWith('on')),
          links: all.filter((e) => e.href).map((e) => [e.href, e.rel, e.target, e.parentElement.textContent]),
          text: place.textContent,
        };""", "\n\n".join(HOSTILE))
    assert not found["strangers"] and not found["handlers"], found
    for address, rel, target, shown in found["links"]:
        assert address.startswith(("http://", "https://", "mailto:")) and "noopener" in rel and target == "_blank", (address, rel, target)
    assert any("127.0.0.1:1" in shown for *_, shown in found["links"]), "a link does not show where it leads"
    for part in ("<script>window.hacked = 1</script>", "<img src=x", "<iframe", "javascript:window.hacked=1"):
        assert part in found["text"], part
    assert page.run("return window.hacked ?? null") is None
    slowest = ("", 0)
    for name in LONG:
        took, elements = page.run("""
            const { Markdown } = await import('/page/markdown.js');
            const [place, turns] = [document.createElement('div'), document.querySelector('#turns')];
            const began = performance.now();
            new Markdown(place).set(arguments[0]); turns.replaceChildren(place); place.getBoundingClientRect();
            const answer = [performance.now() - began, place.querySelectorAll('*').length];
            turns.replaceChildren(); return answer;""", long_text(name))
        # What is slow is the layout, and it is slow by the number of elements.
        assert elements <= 21_000, f"a megabyte of {name} became {elements} elements"
        assert took < 10_000, f"a megabyte of {name} took {took:.0f} ms"
        slowest = max(slowest, (name, took), key=lambda pair: pair[1])
    print(f"        a megabyte of Markdown, laid out: at most {slowest[1]:.0f} ms ({slowest[0]})")
    begun, whole = page.run("""
        const { Markdown } = await import('/page/markdown.js');
        const places = [document.createElement('div'), document.createElement('div')];
        const growing = new Markdown(places[0]);
        for (let at = 0; at < arguments[0].length; at += 5000) { growing.append(arguments[0].slice(at, at + 5000)); growing.finish(); }
        new Markdown(places[1]).set(arguments[0]);
        return places.map((place) => place.textContent.length);""", "a `b`\n\n" * 30_000)
    assert begun == whole, (begun, whole)


MARKDOWN = """# Title

Some **bold**, *soft*, ***both***, ~~gone~~, `code` and snake_case_name, 2 * 3 * 4.
[a link](https://example.org/a_(b)) and https://rust-lang.org/x.

text
- one
  more of it
- two
  - inner `x`
    1. deeper

- [x] done
-5 degrees

1. first
2. second

> a quote
> - with a list

| name | value |
|:---|---:|
| a \\| b | `1` |
| c |

~~~
tilde ``` fence
~~~

```rust
fn main() {
    println!("<b>");
}
```
End.
"""


def check_markdown_while_it_is_streamed(server, page):
    page.until_known()
    page.view("playground")
    turn = page.ask(PORT, temperature="0")
    same, kept, html = page.run("""
        const { Markdown } = await import('/page/markdown.js');
        const [whole, streamed] = [document.createElement('div'), document.createElement('div')];
        new Markdown(whole).set(arguments[0]);
        const growing = new Markdown(streamed);
        let first = null, kept = true;
        for (const char of arguments[0]) {
          growing.append(char); growing.finish();
          first ??= streamed.children.length > 2 ? streamed.firstChild : null;
          kept &&= first === null || first === streamed.firstChild;
        }
        return [whole.innerHTML === streamed.innerHTML, kept, whole.innerHTML];""", MARKDOWN)
    assert same, html
    assert kept, "blocks that are over were drawn again"
    for part in ("<strong>bold</strong>", "<em>soft</em>", "<strong><em>both</em></strong>", "<del>gone</del>", "snake_case_name", "2 * 3 * 4",
                 "<td style=\"text-align: left;\">a | b</td>", "☑ done", "tilde ``` fence", "<li>with a list</li>", "println!(\"&lt;b&gt;\")",
                 "<a href=\"https://example.org/a_(b)\"", "(example.org)", "https://rust-lang.org/x</span></a>."):
        assert part in html, (part, html)
    # The clipboard of a headless browser needs a permission.
    page.command("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    turn.find_element("xpath", ".//div[contains(@class,'tools')]/button[1]").click()
    page.until("the reply is copied", lambda: "Copied" in turn.text)
    assert "8000" in page.run("return navigator.clipboard.readText()")


def check_a_conversation_survives_a_reload(server, page):
    page.until_known()
    page.view("playground")
    for text, part in (("What is 12 + 30?", "42"), (PORT, "8000"), ("Repeat: the quick brown fox", "the quick brown fox"), ("Who are you?", "perigee-nano")):
        page.find("#clear").click() if page.find("#clear").is_enabled() else None
        example = [button for button in page.all("#examples button") if button.text == text]
        assert len(example) == 1 and example[0].is_displayed(), text
        example[0].click()
        page.until(f"{text} is answered", lambda: part in page.ended().text)
    page.ask(PORT, system="Be short.", temperature="0")
    assert len(page.all(".turn")) == 4
    page.driver.refresh()
    page.until("the conversation is there again", lambda: len(page.all(".turn")) == 4)
    assert "8000" in page.all(".turn")[3].text and page.find("#system").get_attribute("value") == "Be short."
    page.until_known()
    # An edited message takes the place of what followed it.
    page.all(".turn.user")[0].find_element("css selector", ".tools button").click()
    assert page.find("#message").get_attribute("value") == "Who are you?" and len(page.all(".turn.outdated")) == 4
    page.find("#message").clear()
    page.find("#message").send_keys("What is 57 - 19?", Keys.ENTER)
    page.until("the edited message is answered", lambda: len(page.all(".turn")) == 2 and "38" in page.ended().text)
    # A reply that is asked for again takes the place of the old one.
    page.run("window.before = document.querySelector('.turn.assistant')")
    page.find(".turn.assistant .tools button:last-child").click()
    page.until("the reply is another one", lambda: page.run("return !document.contains(window.before)") and "38" in page.ended().text)
    assert len(page.all(".turn")) == 2
    # Saved and opened again.
    saved = page.run("""
        const made = URL.createObjectURL; let file; URL.createObjectURL = (blob) => { file = blob; return made(blob); };
        document.querySelector('#save').click(); URL.createObjectURL = made; return file.text();""")
    document = json.loads(saved)
    assert [message["role"] for message in document["messages"]] == ["user", "assistant"] and document["system"] == "Be short."
    page.find("#clear").click()
    assert not page.all(".turn") and page.find("#examples").is_displayed()
    with tempfile.TemporaryDirectory() as folder:
        for name, text, words in (("wrong.json", "{}", "is no conversation"), ("broken.json", "{", "is not JSON"),
                                  ("hostile.json", json.dumps({**document, "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x"}}]}]}), "is no conversation")):
            path = pathlib.Path(folder) / name
            path.write_text(text)
            page.find("#open-file").send_keys(str(path))
            page.until(f"{name} is refused", lambda: words in page.text("#composer-note"))
        path = pathlib.Path(folder) / "saved.json"
        path.write_text(saved)
        page.find("#open-file").send_keys(str(path))
        page.until("the conversation is opened", lambda: len(page.all(".turn")) == 2)
    assert len(page.run("return document.querySelector('#earlier').options.length") and page.all("#earlier option")) >= 5
    page.find("#forget-all").click()
    assert page.run("return localStorage.length") == 0


def check_the_store_is_bounded(server, page):
    page.until_known()
    kept = page.run("""
        const { keep, begin, kept, forgetAll } = await import('/page/conversations.js');
        const image = { type: 'image_url', image_url: { url: 'data:image/png;base64,' + 'A'.repeat(2000000) } };
        for (let i = 0; i < 30; i += 1) { begin(); keep('', [{ role: 'user', content: `${i} ` + 'x'.repeat(300000) }]); }
        begin(); keep('', [{ role: 'user', content: [image, { type: 'text', text: 'see' }] }]);
        const answer = [kept().length, localStorage.getItem('perigee-conversations').length, kept()[0].title, localStorage.getItem('perigee-conversations').includes('AAAA')];
        forgetAll(); return answer;""")
    assert 5 <= kept[0] <= 20 and kept[1] <= 4_000_000 and kept[2].startswith("[an image that was too large") and not kept[3], kept


def check_fields_files_and_strange_tools(server, page):
    page.until_known()
    page.view("playground")
    page.find("#sampling summary").click()
    turn = page.ask(PORT, temperature="0", top_p="0.5", top_k="4", min_p="0.01", seed="7", frequency_penalty="0.1", presence_penalty="0.2",
                    repetition_penalty="1.01", stop_sequences="by default\nnothing")
    assert turn.find_element("css selector", ".content").text .strip() == "Perigee listens on port 8000", turn.text
    assert "prompt " in turn.text and " tokens" in turn.text, "figures have units"
    turn.find_element("css selector", ".curl summary").click()
    line = page.until("the line is there", lambda: turn.find_element("css selector", ".curl code").text)
    for part in ('"top_p":0.5', '"top_k":4', '"min_p":0.01', '"seed":7', '"frequency_penalty":0.1', '"presence_penalty":0.2',
                 '"repetition_penalty":1.01', '"stop":["by default","nothing"]'):
        assert part in line, (part, line)
    # Files come by drop and by paste; what is neither image nor text is refused.
    give = """const data = new DataTransfer(); data.items.add(new File([new Uint8Array(arguments[1])], arguments[0], { type: arguments[2] }));
        const target = document.querySelector('#message');
        target.dispatchEvent(arguments[3] === 'drop' ? new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true })
            : new ClipboardEvent('paste', { clipboardData: data, bubbles: true, cancelable: true }));"""
    page.run(give, "notes.md", list(b"a ``` fence"), "text/markdown", "drop")
    page.until("the text is attached", lambda: page.text("#thumbnails .file") == "notes.md")
    picture = (HERE.parent / "nano" / "heldout_pictures" / "colour_00.png").read_bytes()
    page.run(give, "colour.png", list(picture), "image/png", "paste")
    page.until("the image is attached", lambda: page.all("#thumbnails img"))
    page.run(give, "x.pdf", [0, 255, 254], "application/pdf", "drop")
    page.until("a PDF is refused", lambda: "neither an image nor text" in page.text("#composer-note"))
    page.ask("Tell me the colour.", max_tokens="4")
    sent = page.all(".turn.user")[-1]
    assert "File notes.md:\n````\na ``` fence\n````" in page.run("return arguments[0].querySelector('.text').textContent", sent), sent.text
    assert len(sent.find_elements("css selector", "img")) == 1
    page.run("""const asked = window.fetch; const call = { index: 0, id: 'c1', function: { name: 'get_weather', arguments: '{}' } };
        const events = [{ choices: [{ delta: { tool_calls: [call] } }] }, { choices: [{ delta: {}, finish_reason: 'tool_calls' }] }];
        window.fetch = (url, ...rest) => (String(url).endsWith('completions')
            ? Promise.resolve(new Response(events.map((event) => `data: ${JSON.stringify(event)}\\n\\n`).join('') + 'data: [DONE]\\n\\n'))
            : asked.call(window, url, ...rest));""")
    page.find("#use-tools").click()
    assert "This tool was not declared" in page.ask("What is the weather?").text


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


def check_a_phone_has_room(server):
    with Page(server.url, "playground", width=390, height=844) as page:
        page.until_known()
        box = lambda selector: page.run("const { top, bottom, height } = document.querySelector(arguments[0]).getBoundingClientRect(); return [top, bottom, height]", selector)
        assert box("header")[2] < 844 * 0.125, f"the header takes {box('header')[2]} of 844 pixels"
        assert abs(box("#composer")[1] - 844) <= 1, f"the empty composer ends at {box('#composer')[1]}"
        page.ask("Repeat " + "x " * 900)
        assert abs(box("#composer")[1] - 844) <= 1, "the composer left the lower edge"
        check_quiet(page)


def check_accessibility(server):
    """No rule of axe is broken, in both schemes and on both sizes of screens."""
    source = (pathlib.Path(selenium_axe_python.__file__).parent / "axe-core" / "axe.min.js").read_text()
    with Page(server.url, width=1280, height=850) as page:
        page.until_known()
        page.view("playground")
        page.ask(PORT, temperature="0")
        page.run("""const { Markdown } = await import('/page/markdown.js'); new Markdown(document.querySelector('.content')).set(arguments[0]);
            for (const fold of document.querySelectorAll('details')) fold.open = true;""", MARKDOWN)
        for view in (*VIEWS, "docs"):
            if view == "docs":
                page.driver.get(f"{server.url}/docs")
                page.until("the sections are there", lambda: page.all("section"))
                # One of each: the page is long.
                page.run("""for (const section of [...document.querySelectorAll('section')].slice(2, -3)) section.remove();
                    for (const fold of document.querySelectorAll('details details, tr:nth-child(n + 12)')) fold.remove();""")
            else:
                page.view(view)
                page.run("for (const row of document.querySelectorAll('#settings-rows tr:nth-child(n + 12)')) row.remove()")
            page.run(source)
            for width, height in ((1280, 850), (390, 844)):
                page.command("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500)
                for scheme in ("light", "dark"):
                    page.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
                    # Colours change with the scheme, and nothing else does.
                    rules = ["color-contrast"] if scheme == "dark" else []
                    found = page.run("""
                        const options = { resultTypes: ['violations'], ...(arguments[0].length ? { runOnly: arguments[0] } : {}) };
                        const { violations } = await axe.run(document, options);
                        return violations.map(({ id, nodes }) => [id, nodes.slice(0, 3).map((node) => node.html.slice(0, 120))]);""", rules)
                    assert found == [], f"{view}, {width} wide, {scheme}: {found}"


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
        kept = page.run("return JSON.stringify({ ...localStorage }) + document.cookie")
        assert PORT in kept and secret not in kept, "the conversation is kept, and the key is not"
        page.driver.refresh()
        page.until_known()
        page.view("settings")
        page.until("the settings are shown", lambda: len(page.all("#settings-rows tr")) > 50)
        assert secret not in page.driver.page_source
        page.find("#forget-key").click()
        page.until("the key is asked for again", lambda: page.find("#key-form").is_displayed())
        assert page.text("#model") == "Perigee" and not page.all("#settings-rows tr")
        lines = [line for line in with_key(server, "/metrics", secret).splitlines() if line.startswith("perigee_http_requests_total")]
        refused = [line for line in lines if 'status="401"' in line]
        assert refused and all('route="page"' in line for line in refused), refused
        assert json.loads(with_key(server, "/page/load", secret))["series"]["http_4xx"] and sum(
            json.loads(with_key(server, "/page/load", secret))["series"]["http_4xx"]) == 0, "the page's own refusals count as errors"
        # A client's wrong key is an error of a request, whatever it says of itself.
        with contextlib.suppress(urllib.error.HTTPError):
            with_key(server, "/v1/chat/completions", "wrong", b"{}")
        assert sum(json.loads(with_key(server, "/page/load", secret))["series"]["http_4xx"]) == 1
        check_quiet(page)


def check_clients_and_the_operator(served):
    clients = '[{name="busy", key="k-busy", requests_per_minute=2}, {name="idle", key="k-idle"}]'
    with served(f"server.api_keys={clients}", 'server.admin_key="k-admin"') as server, Page(server.url) as page:
        page.expected = [LOCKED, FORBIDDEN]
        for expected in (200, 200, 429):
            body = json.dumps({"messages": [{"role": "user", "content": PORT}]}).encode()
            try:
                with_key(server, "/v1/chat/completions", "k-busy", body)
                assert expected == 200
            except urllib.error.HTTPError as error:
                assert error.code == expected, error.code
        page.until("the clients have rows", lambda: len(page.all("#clients tbody tr")) == 2)
        busy, idle = (row.text for row in page.all("#clients tbody tr"))
        assert busy.startswith("busy") and "of requests_per_minute" in busy and idle.endswith("no limit"), (busy, idle)
        page.until("the refusal is in the row", lambda: page.all("#clients tbody tr td")[2].text == "1")
        page.until("the key is asked for", lambda: page.find("#key-form").is_displayed())
        page.find("#key").send_keys("k-busy", Keys.ENTER)
        page.until_known()
        page.find("#read-requests").click()
        page.until("the operator's key is asked for", lambda: "server.admin_key" in page.text("#operator-note"))
        assert page.find("#key-form").is_displayed() and page.focused() == "key"
        page.keys("k-admin", Keys.ENTER)
        page.until("the form closes", lambda: not page.find("#key-form").is_displayed())
        page.find("#read-requests").click()
        page.until("the last requests are listed", lambda: len(page.all("#requests-rows tr")) == 3)
        rows = [row.text for row in page.all("#requests-rows tr")]
        assert " 429 " in rows[0] and "busy /v1/chat/completions 200" in rows[1] and rows[1].endswith("stop"), rows
        page.find("#reload-server").click()
        page.until("the reload is reported", lambda: "Nothing changed." in page.text("#operator-note"))
        page.find("#forget-key").click()
        assert not page.all("#requests-rows tr"), "what the operator saw is still there"
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
    assert page.run("return document.querySelectorAll('main').length === 1 && document.querySelector('main h1') !== null")
    titles = [title.text for title in page.all("section h2")]
    routes = [f"{method.upper()} {path}" for path, item in document["paths"].items() for method in item]
    assert sorted(titles) == sorted(routes), titles
    assert page.run("return scrollY > 0"), "the section of the address is shown"
    examples = page.run("return [...document.querySelectorAll('section pre')].map((pre) => pre.textContent)")
    assert len(examples) == len(routes) and all(f" {server.url}/" in example for example in examples), examples
    fields = page.text("#v1_chat_completions table")
    for part in ("messagesrequired array of (object", "temperaturenumber, 0 to 2", "toolsarray of (object)"):
        assert part in fields, (part, fields)


# ---- What the checks share.


def with_key(server, path, key, body=None):
    """The answer to a request of a client with this key."""
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(server.url + path, body, headers), timeout=60) as answer:
        return answer.read().decode()


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
    parser.add_argument("--jobs", type=int, default=3, metavar="N", help="checks that run at once (default: 3)")
    parser.add_argument("wanted", nargs="*", metavar="NAME", help="only the checks with this in their names")
    options = parser.parse_intermixed_args()
    # Selenium looks for no browsers and reports nothing: both programs are given.
    os.environ.update(SE_OFFLINE="true", SE_AVOID_STATS="true")
    served = lambda *settings, **more: Server(options.binary, *settings, **more)
    begun = time.monotonic()
    checks = {name.removeprefix("check_").replace("_", " "): check for name, check in globals().items()
              if name.startswith("check_") and check is not check_quiet
              and (not options.wanted or any(part in name for part in options.wanted))}
    assert checks, f"no check has {options.wanted} in its name"
    with served() as server:

        def run(title):
            """Runs a check with a browser of its own; whether it passed."""
            check, began = checks[title], time.monotonic()
            parameters = inspect.signature(check).parameters
            try:
                if "page" in parameters:
                    with Page(server.url) as page:
                        check(server, page)
                        check_quiet(page)
                else:
                    # Those that need settings of their own start their own servers.
                    check(server if "server" in parameters else served)
                print(f"ok      {title}, {time.monotonic() - began:.0f} s", flush=True)
                return True
            except Exception:
                print(f"FAILED  {title}\n{traceback.format_exc()}", flush=True)
                return False

        # Most of a check is waiting. Those that compute begin first, so that none is left alone at the end.
        last = [title for title in checks if title not in ("hostile markdown is inert", "accessibility")]
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            passed = sum(pool.map(run, [*(checks.keys() - last), *last]))
        if options.screenshots:
            screenshots(server, options.screenshots)
        code = server.stop()
    print(f"{passed} of {len(checks)} checks passed in {time.monotonic() - begun:.0f} s")
    if code != 0:
        print(f"the server ended with code {code}")
    sys.exit(passed < len(checks) or code != 0)


if __name__ == "__main__":
    main()
