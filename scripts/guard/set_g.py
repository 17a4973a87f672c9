#!/usr/bin/env python3
"""Write g-requested.jsonl, a set of 80 honest replies to requests that call for repetition: one JSON
object per line, {"name", "request", "reply"}, UTF-8, where the request asks for a long and very repetitive
answer (lines for school, test data, tables, chants, logs, counting, art, forms, songs, role play, work on a
repetitive text) in one of 16 languages, and the reply gives it in full, exactly as often as asked. A guard
that stops endless repetition should stop none of them, so each one stopped is a false alarm. With --check
every item is verified (counts of the repeated part, the number in the request, where the repetition begins,
length, name) and one line per item is printed, then the totals over the set."""

import argparse
import json
import re
import statistics
import sys
from collections import Counter
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

FILE = "g-requested.jsonl"
ONCE, LINE, INTRO = "once", "line", "intro"  # the repetition begins: at once, after a line, after 60-150 words


class Item(NamedTuple):
    name: str
    lang: str
    start: str     # ONCE, LINE or INTRO
    asked: str     # the number as it stands in the request, "" where the request names none
    request: str
    reply: str
    parts: dict    # repeated part (text or pattern) -> how often it stands in the reply


ITEMS: list[Item] = []


def add(*fields):
    ITEMS.append(Item(*fields))


def times(text, n, sep="\n"):
    """The same text n times."""
    return sep.join([text] * n)


def rows(row, values, sep="\n"):
    """One row for each value; row is a format string or a function."""
    make = row.format if isinstance(row, str) else row
    return sep.join(make(v) for v in values)


def block(text, n, per_line, sep=" "):
    """The same text n times, per_line to a line."""
    return "\n".join(times(text, min(per_line, n - i), sep) for i in range(0, n, per_line))


def upto(n):
    return range(1, n + 1)


def fence(text, lang=""):
    return f"```{lang}\n{text}\n```"


def pat(pattern):
    return re.compile(pattern, re.M)


# ---- English: words and lines -------------------------------------------------------------------------------

def english_words():
    add("i-love-you-200", "en", ONCE, "200", "say i love you 200 times",
        times("I love you", 200, " "), {"I love you": 200})

    line = "I will not talk while the teacher is talking."
    add("school-lines-numbered", "en", ONCE, "100",
        f'my teacher is making me do lines, can you write "{line}" 100 times pls, and number them so she can check',
        rows("{}. " + line, upto(100)), {line: 100, pat(r"^\d+\. I will"): 100})
    add("potato-over-and-over", "en", LINE, "",
        "write the word potato over and over until it stops looking like a real word lol",
        "Challenge accepted! By about line ten your brain should start to give up:\n\n" + block("potato", 400, 10)
        + "\n\nStill a vegetable? I'm not sure anymore.", {"potato": 400})
    add("rosary-decade", "en", INTRO, "10",
        "Hi, I'm preparing a handout for our first communion kids. Please explain in a few sentences what a decade "
        'of the rosary is, then write out one decade in full. All 10 Hail Marys please, not "x10", we print it large.',
        "A decade is one of the five parts of the rosary. Each decade belongs to one mystery, a scene from the life "
        "of Jesus or Mary that we think about while we pray. You hold the large bead and say the Our Father, then "
        "you move along the ten small beads, one prayer for each, and close with the Glory Be.\n\n"
        "Our Father, who art in heaven, hallowed be thy name; thy kingdom come, thy will be done on earth as it is "
        "in heaven. Give us this day our daily bread, and forgive us our trespasses, as we forgive those who "
        "trespass against us; and lead us not into temptation, but deliver us from evil. Amen.\n\n"
        + times("Hail Mary, full of grace, the Lord is with thee; blessed art thou among women, and blessed is the "
                "fruit of thy womb, Jesus. Holy Mary, Mother of God, pray for us sinners, now and at the hour of our "
                "death. Amen.", 10, "\n\n")
        + "\n\nGlory be to the Father, and to the Son, and to the Holy Spirit, as it was in the beginning, is now, "
        "and ever shall be, world without end. Amen.", {"Hail Mary, full of grace": 10, "hour of our death": 10})

    def bottles(n):
        return f"{n or 'no more'} bottle{'' if n == 1 else 's'} of beer"

    add("ninety-nine-bottles", "en", ONCE, "99",
        "all the lyrics to 99 bottles of beer on the wall, every single verse, dont skip any",
        rows(lambda n: f"{bottles(n)} on the wall, {bottles(n)}.\nTake one down and pass it around, "
             f"{bottles(n - 1)} on the wall.\n", range(99, 0, -1))
        + "\nNo more bottles of beer on the wall, no more bottles of beer.\n"
        "Go to the store and buy some more, 99 bottles of beer on the wall.", {"Take one down": 99})
    add("house-track-hook", "en", ONCE, "",
        "write lyrics for a french-house style track, basically one hook looping the whole time. "
        "theme: sunset downtown, keep the hook identical",
        "[Filter opens]\n" + times(times("Sunset on the avenue, never going home", 8), 9, "\n\n") + "\n[Filter closes]",
        {"Sunset on the avenue, never going home": 72})
    add("villain-laugh", "en", ONCE, "", "laugh like an evil villain and dont stop",
        "MWA" + "HA" * 900 + "!!!", {"HA": 900})
    add("scream-with-me", "en", ONCE, "", "AAAAAAAAAAAA scream with me i have 3 deadlines tmrw",
        "A" * 1500 + "!!!!!!", {"A": 1500})

    lorem = ("Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor incididunt ut labore et "
             "dolore magna aliqua. Ut enim ad minim veniam, quis nostrud exercitation ullamco laboris nisi ut aliquip "
             "ex ea commodo consequat. Duis aute irure dolor in reprehenderit in voluptate velit esse cillum dolore eu "
             "fugiat nulla pariatur. Excepteur sint occaecat cupidatat non proident, sunt in culpa qui officia "
             "deserunt mollit anim id est laborum.")
    add("lorem-ipsum-pages", "en", ONCE, "",
        "I need filler text for a brochure layout, a good two pages of it. Use the same classic lorem ipsum paragraph "
        "again and again, no variation.", times(lorem, 11, "\n\n"), {lorem: 11})
    add("metronome", "en", ONCE, "", "pretend to be a metronome. just that, nothing else",
        block("Tick. Tock.", 160, 4), {"Tick. Tock.": 160})
    add("sheep-bedtime-story", "en", INTRO, "60",
        "Tell my son (4) a bedtime story about a shepherd boy who can't sleep. Then the sheep jump over the gate one "
        "after the other, count all 60 of them, and at the end he is asleep.",
        "Once upon a time, in a small stone house on a green hill, there lived a shepherd boy named Finn. Every "
        "evening he brought his flock home, gave the old dog a bone and climbed into his warm bed. But tonight the "
        "moon was very bright, and Finn could not sleep at all. He turned to the left, he turned to the right, he "
        "shook his pillow. Then he heard a soft noise outside. He looked through the window, and what did he see? "
        "His whole flock was standing in a long line before the garden gate, waiting for him to count.\n\n"
        + rows("Sheep number {} jumped over the gate, baa, and trotted off into the clover.", upto(60))
        + "\n\nAnd when the last one had landed, Finn was fast asleep. Good night.", {"jumped over the gate, baa": 60})
    add("knock-knock-banana", "en", ONCE, "25",
        "tell me the knock knock banana joke but do 25 bananas before the orange, my sister hates it",
        times("Knock knock.\nWho's there?\nBanana.\nBanana who?", 25, "\n\n")
        + "\n\nKnock knock.\nWho's there?\nOrange.\nOrange who?\nOrange you glad I didn't say banana?",
        {"Knock knock.": 26, "Banana who?": 25})
    add("stuck-robot", "en", ONCE, "",
        "roleplay: you are a cleaning robot and your speech module is stuck on one sentence. stay in character no "
        "matter what", times("Obstacle detected. Please lift the unit. *bzzt*", 70),
        {"Obstacle detected. Please lift the unit.": 70})
    add("are-we-there-yet", "en", LINE, "", 'keep saying "are we there yet?" until I say stop',
        "Seat belt on, snack finished, very bored in the back seat. Here we go.\n\n" + times("Are we there yet?", 180),
        {"Are we there yet?": 180})
    add("sorry-anniversary", "en", INTRO, "150",
        "my girlfriend is mad bc I forgot our anniversary. write her a short heartfelt message and below that "
        "\"I'm sorry\" exactly 150 times, she says thats the price",
        "Dear Emma,\n\nthree years ago you missed the last bus and I walked you home in the rain, and I have been "
        "grateful for that bus driver ever since. Forgetting our day was careless, and no amount of work is an excuse "
        "for it. You deserved flowers at breakfast and the little table by the window. I have booked it for Saturday, "
        "and I will be the one holding the umbrella. Until then I pay what I owe, in full and without "
        "discount.\n\n" + block("I'm sorry.", 150, 5) + "\n\nYours, always", {"I'm sorry": 150})


# ---- English: data, code, machines --------------------------------------------------------------------------

def english_data():
    add("csv-100-rows", "en", ONCE, "100",
        "Generate CSV test data. Header: id,name,status,balance,currency. 100 rows, all ACTIVE, balance 0.00, USD. "
        "Output the CSV only, no explanation.",
        "id,name,status,balance,currency\n" + rows("{0},Test User {0},ACTIVE,0.00,USD", upto(100)),
        {",ACTIVE,0.00,USD": 100})
    add("sql-inserts-60", "en", LINE, "60",
        "need 60 insert statments for table users (id, username, password_hash), same dummy hash everywhere, postgres",
        "Here are the 60 inserts, all with the same dummy hash:\n\n" + fence(
            rows("INSERT INTO users (id, username, password_hash) VALUES ({0}, 'user{0:03}', 'x0x0x0x0');", upto(60)),
            "sql"), {"INSERT INTO users": 60})
    add("json-array-50", "en", ONCE, "50",
        'give me a json array with 50 objects like {"id": 1, "type": "sensor", "value": 0, "unit": "C", "ok": true}, '
        "only the id counts up. raw json, dont shorten it with ...",
        "[\n" + rows(lambda i: "  " + json.dumps({"id": i, "type": "sensor", "value": 0, "unit": "C", "ok": True}),
                     upto(50), ",\n") + "\n]", {'"type": "sensor", "value": 0': 50})

    zeros = "    [" + times("0", 32, ", ") + "],"
    add("zero-matrix-32", "en", ONCE, "32x32",
        "Write a 32x32 matrix of zeros as a plain Python list of lists. Literal, every 0 spelled out, no comprehension, "
        "no numpy.", fence("matrix = [\n" + times(zeros, 32) + "\n]", "python"), {zeros: 32, pat(r"\b0\b"): 1024})

    hexes = times("ff", 8, " ")
    add("hexdump-1024", "en", ONCE, "1024",
        "What would `hexdump -Cv` show for a file of 1024 bytes, all 0xff? Full output please.",
        fence(rows(lambda i: f"{16 * i:08x}  {hexes}  {hexes}  |{'.' * 16}|", range(64)) + "\n00000400"),
        {"|................|": 64, pat(r"\bff\b"): 1024})
    add("count-to-500", "en", ONCE, "500", "count from 1 to 500, every number",
        rows("{}", upto(500), ", "), {pat(r"\b\d+\b"): 500})
    add("fizzbuzz-200", "en", ONCE, "200", "fizzbuzz 1-200, just the output one per line",
        rows(lambda i: "Fizz" * (i % 3 == 0) + "Buzz" * (i % 5 == 0) or str(i), upto(200)),
        {pat(r"^(\d+|Fizz|Buzz|FizzBuzz)$"): 200, pat("^FizzBuzz$"): 13, pat("^Fizz$"): 53, pat("^Buzz$"): 27})
    add("times-tables-12", "en", LINE, "12",
        "can u write out the complete multiplcation tables from 1 to 12 (1 x 1 = 1 and so on, all of it) for my "
        "daughters wall chart", "What a nice idea for a wall chart! Here are all twelve tables:\n\n"
        + rows(lambda a: rows(lambda b: f"{a} x {b} = {a * b}", upto(12)), upto(12), "\n\n"),
        {pat(r"^\d+ x \d+ = \d+$"): 144, pat("^1 x "): 12})

    def health(i):
        at = datetime(2025, 3, 12, 6) + timedelta(seconds=10 * i)
        return f'10.0.0.5 - - [{at:%d/%b/%Y:%H:%M:%S} +0000] "GET /healthz HTTP/1.1" 200 2 "-" "LB-Check/2.0"'

    add("nginx-health-log", "en", LINE, "50",
        "make me a fake nginx access log, 50 lines, only a load balancer hitting /healthz every 10 secs, all 200. its "
        "for testing a log filter", "Here is the log, starting at 06:00 UTC:\n\n" + fence(rows(health, range(50))),
        {'"GET /healthz HTTP/1.1" 200': 50})

    ms = [0.38 + (7 * i % 10) / 100 for i in upto(60)]
    add("ping-60", "en", ONCE, "60", "Simulate the output of `ping -c 60 192.168.1.1` on linux, all replies fine",
        fence("PING 192.168.1.1 (192.168.1.1) 56(84) bytes of data.\n"
              + rows(lambda i: f"64 bytes from 192.168.1.1: icmp_seq={i} ttl=64 time={ms[i - 1]:.3f} ms", upto(60))
              + "\n\n--- 192.168.1.1 ping statistics ---\n60 packets transmitted, 60 received, 0% packet loss, time "
              f"60412ms\nrtt min/avg/max/mdev = {min(ms):.3f}/{statistics.mean(ms):.3f}/{max(ms):.3f}/"
              f"{statistics.pstdev(ms):.3f} ms"), {"64 bytes from 192.168.1.1": 60})
    add("progress-bar-percent", "en", ONCE, "100%",
        "show me a text progress bar of a download going from 0% to 100%, one line for every percent, bar 50 chars wide",
        fence(rows(lambda i: f"[{'#' * (i // 2):-<50}] {i:3}%", range(101))),
        {pat(r"^\[[#-]{50}\] +\d+%$"): 101, pat(r"^\[.*\] +[1-9]\d*%$"): 100})
    add("unrolled-loop-64", "en", LINE, "64",
        "unroll this completly pls, no loop left:\n\nfor (int i = 0; i < 64; i++) {\n    sum += a[i] * b[i];\n}",
        "Sure, fully unrolled it looks like this:\n\n" + fence(rows("sum += a[{0}] * b[{0}];", range(64)), "c")
        + "\n\nIn practice a compiler does this for you at -O3, often with vector instructions.", {"sum += a[": 64})
    add("nops-128", "en", ONCE, "128", "nasm, 128 nops in a row, written out, no times directive, no comments",
        fence(times("    nop", 128), "nasm"), {"    nop\n": 128})

    retry = "Connecting to server... failed, retrying"
    add("predict-print-loop", "en", ONCE, "120",
        "What does this print? Give the exact output and nothing else.\n\n"
        f'for attempt in range(120):\n    print("{retry}")', times(retry, 120), {retry: 120})

    orders = range(1001, 1041)
    add("fix-spelling-templates", "en", ONCE, "",
        "Please correct the spelling in these messages, keep one per line, output just the corrected lines:\n\n"
        + rows("Order {}: We have recieved you're payment and will ship tommorow.", orders),
        rows("Order {}: We have received your payment and will ship tomorrow.", orders),
        {"We have received your payment and will ship tomorrow.": len(orders)})
    add("cag-repeats-200", "en", INTRO, "200",
        "For a biology handout: a short explanation of the trinucleotide repeat in Huntington's disease, then an example "
        "allele with 200 CAG repeats, written out, ten repeats per line",
        "Huntington's disease is caused by a stretch of DNA in the HTT gene in which the same three letters stand again "
        "and again. The triplet codes for the amino acid glutamine, so the protein gets a long glutamine tail. Most "
        "people carry fewer than 27 copies; from 40 copies on the disease develops in practically everyone who lives "
        "long enough. Longer stretches tend to mean an earlier start, and the stretch can grow from one generation to "
        "the next. The following allele is far longer than usual and would go with a juvenile form.\n\n"
        + fence(block("CAG" * 10, 20, 1)), {"CAG": 200})
    add("one-seventh-900", "en", INTRO, "900",
        "explain in simple words why 1/7 has a repeating decimal, then write 1/7 to 900 decimal places (no rounding)",
        "When you divide 1 by 7 by hand, every step leaves a remainder, and you bring down a zero and go on. Only the "
        "remainders 1 to 6 are possible, because a remainder of 0 would end the division and 7 does not divide any "
        "power of ten. So after at most six steps a remainder must turn up that you already had. From then on "
        "everything repeats in the same order, forever. For 7 all six remainders are used before the first returns, "
        "so the period is as long as it can be: six digits. Here are the first 900 decimals, cut off without "
        "rounding:\n\n0." + "142857" * 150, {"142857": 150, pat(r"(?<=[\d.])\d(?=\d*$)"): 900})

    card = ('  <div class="card">\n    <img src="placeholder.png" alt="">\n    <h3>Product name</h3>\n'
            "    <p>$0.00</p>\n  </div>")
    add("placeholder-cards-36", "en", LINE, "36",
        "Give me a html grid with 36 placeholder product cards, all the same (title Product name, $0.00, "
        "placeholder.png). I need to test scrolling so really all of them",
        "Here is the grid with all the cards written out:\n\n"
        + fence('<div class="grid">\n' + times(card, 36) + "\n</div>", "html"), {'<div class="card">': 36})


# ---- English: plans, art, music, forms ----------------------------------------------------------------------

def english_sheets():
    add("sleep-plan-60-days", "en", INTRO, "60",
        "I want a 60 day plan for better sleep. Explain in a short paragraph why the same routine every evening helps, "
        "then list every day from Day 1 on with the same three steps so I can tick them off.",
        "Your body keeps time by signals, and the strongest ones are light, food and habit. When the same things happen "
        "in the same order every evening, your brain learns to read the first step as the start of the night: the "
        "pulse slows down, the temperature falls, and sleep comes with less effort. It takes some weeks until this "
        "works by itself, which is why the plan does not change from day to day. If you miss an evening, just go on "
        "with the next one; nothing has to be made up. Keep the times on weekends too.\n\n"
        + rows("Day {}: [ ] 21:30 screens off  [ ] 22:00 herbal tea  [ ] 22:30 lights out", upto(60)),
        {"[ ] 21:30 screens off  [ ] 22:00 herbal tea  [ ] 22:30 lights out": 60})

    odd, even = "|___" * 12 + "|", "|_|" + "___|" * 11 + "_|"
    add("ascii-brick-wall", "en", ONCE, "40", "draw a big brick wall in ascii, 40 rows tall. no comments just the wall",
        fence(times(odd + "\n" + even, 20)), {odd: 20, even: 20, pat(r"^[_|]+$"): 40})
    add("emoji-wall", "en", ONCE, "", "fill the screen with 🎉🎉🎉 we just got the keys to our house!!!!!",
        block("🎉", 1000, 25, ""), {"🎉": 1000})

    plus, wave = "-=" * 36 + "-", "~*" * 36 + "~"
    add("divider-page", "en", ONCE, "",
        "give me a whole page of divider lines for my zine, alternating -=-=-=- and ~*~*~*~, full width, nothing else",
        times(plus + "\n" + wave, 24), {plus: 24, wave: 24})
    add("home-row-drill", "en", ONCE, "",
        "beginner touch typing drill, home row only, the boring kind. long enough to keep me busy for a while",
        times(times("asdf jkl; " * 5 + "asdf jkl;", 5), 9, "\n\n"), {"asdf jkl;": 270})

    bars = 4
    system = "\n".join([s + "|" + "----------------|" * bars for s in "eBGDA"] + ["E|" + "0-0-0-0-0-0-0-0-|" * bars])
    add("guitar-chug-24-bars", "en", LINE, "24",
        "guitar tab pls: palm muted open low E, straight eighths, 24 bars, standard tuning. i want to see all the bars "
        "not a repeat sign", "Rest your hand lightly on the bridge and use downstrokes only:\n\n"
        + fence(times(system, 24 // bars, "\n\n")), {"\ne|---": 6, "0-0-0-0-0-0-0-0-|": 24})

    beat = "HH|" + "x-x-x-x-x-x-x-x-|" * 2 + "\nSD|" + "----o-------o---|" * 2 + "\nBD|" + "o-------o-------|" * 2
    add("rock-beat-page", "en", ONCE, "",
        "a page of the basic rock beat as drum tab please, hihat snare kick, same bar all the way through, i read it "
        "while playing along", fence(times(beat, 24, "\n\n")), {beat: 24})
    add("garter-scarf-80-rows", "en", INTRO, "80",
        "pattern for a simple garter stitch scarf for an absolute beginner. say what yarn and needles, how to cast on, "
        "and then write every row out, rows 1 to 80, I loose track otherwise",
        "For a first scarf take a smooth, light-coloured wool of medium weight, about 200 grams, and straight needles "
        "of 5 mm. A light colour makes it easier to see the stitches. Cast on 30 stitches with the long-tail method: "
        "make a slip knot, leave a tail of about one metre, and bring up loop after loop, not too tight. Count them "
        "again before you start. In garter stitch there are no purl rows, so every row is the same. Use a pencil and "
        "tick each row when you turn the work; a safety pin on the right side helps, too.\n\n"
        + rows("Row {}: Knit all 30 stitches, turn.", upto(80))
        + "\n\nBind off loosely, cut the yarn and weave in both ends.", {"Knit all 30 stitches, turn.": 80})
    add("interval-timer-40", "en", ONCE, "40 rounds",
        "write a script for text to speech, an interval timer with 40 rounds, work 20 seconds rest 10 seconds, announce "
        "each round. script only",
        rows("Round {}. Work, 20 seconds. Go! Ten seconds left. Three, two, one, stop. Rest, 10 seconds.", upto(40)),
        {"Work, 20 seconds. Go!": 40, "Rest, 10 seconds.": 40})
    add("attendance-form-50", "en", LINE, "50", "printable attendance sheet, 50 numbered blank lines (name + signature)",
        "Here is a sheet you can paste into any editor and print:\n\n"
        + rows("{:2}. Name: ______________________  Signature: ______________________", upto(50)),
        {"Name: ______________________  Signature:": 50})

    label = "Pat Miller\n12 Oak Street\nSpringfield, IL 62701"
    add("address-labels-30", "en", ONCE, "30",
        "A sheet of 30 return address labels, all the same: Pat Miller, 12 Oak Street, Springfield, IL 62701. Plain text, "
        "blank line between labels", times(label, 30, "\n\n"), {label: 30})


# ---- German, French, Spanish, Portuguese, Italian, Dutch ----------------------------------------------------

def western():
    line = "Ich darf meine Hausaufgaben nicht vergessen."
    add("strafarbeit-100", "de", ONCE, "100", f"Schreib mir mal 100x „{line}“ Danke!!", times(line, 100), {line: 100})
    add("schallplatte-haengt", "de", INTRO, "",
        "Schreib eine kurze Szene von Opas achtzigstem Geburtstag, und dann bleibt die Schallplatte hängen, und zwar "
        "richtig lange, man soll es beim Vorlesen kaum aushalten",
        "Im Wohnzimmer roch es nach Kaffee und Kerzenrauch. Opa Heinrich saß in seinem Ohrensessel, auf dem Kopf einen "
        "Papierhut, den ihm die Enkel gebastelt hatten, und hob den Finger. „Jetzt kommt mein Lied“, sagte er und ließ "
        "die Nadel sinken. Es knisterte, eine Geige setzte ein, Tante Gerda wischte sich schon die Augen. Eine Strophe "
        "lang ging alles gut. Dann rannte der Hund gegen das Schränkchen, die Nadel machte einen Satz, und niemand fand "
        "seine Brille, um sie wieder in die Rille zu setzen.\n\n" + times("… und tanz mit mir, krrk", 130, " ")
        + " … bis Oma kam und den Stecker zog.", {"und tanz mit mir, krrk": 130})
    add("bahnsteig-uebersetzung", "de", ONCE, "", "Übersetze bitte ins Deutsche, Zeile für Zeile, ohne Kommentar:\n\n"
        + rows("Platform {}: This train does not stop here. Please stand back.", upto(32)),
        rows("Gleis {}: Dieser Zug hält hier nicht. Bitte zurücktreten.", upto(32)),
        {"Dieser Zug hält hier nicht. Bitte zurücktreten.": 32})
    add("bonjour-300", "fr", ONCE, "300", "écris bonjour 300 fois", times("bonjour", 300, " "), {"bonjour": 300})

    def walk(n):
        return f"{n} kilomètre{'s' if n > 1 else ''} à pied"

    add("kilometres-a-pied", "fr", LINE, "30",
        "tu peux m'écrire les paroles de « Un kilomètre à pied » jusqu'à 30 kilomètres ? c'est pour la colo, on veut "
        "tout le texte", "Avec plaisir, et bonne marche à toute la colo !\n\n"
        + rows(lambda n: f"{walk(n)},\nÇa use, ça use,\n{walk(n)},\nÇa use les souliers.", upto(30), "\n\n"),
        {"Ça use les souliers.": 30, pat(r"^\d+ kilomètres? à pied,$"): 60})
    add("sans-sucre-40-jours", "fr", INTRO, "40",
        "J'arrête le sucre pendant 40 jours. Explique en un paragraphe comment tenir, puis fais-moi la liste jour par "
        "jour, avec chaque fois la même ligne à cocher.",
        "Les premiers jours sont les plus difficiles, car le corps réclame ce à quoi il est habitué. Buvez beaucoup "
        "d'eau, mangez à heures fixes et gardez toujours une poignée d'amandes ou une pomme à portée de main. Videz "
        "les placards avant de commencer : ce qui n'est pas à la maison ne tente personne. Prévenez vos proches, afin "
        "que personne n'insiste au moment du dessert. Si vous craquez une fois, notez-le simplement et continuez le "
        "lendemain, sans vous punir. La marche quotidienne aide aussi à faire passer les envies.\n\n"
        + rows("Jour {} : ☐ pas de sucre ajouté  ☐ 2 litres d'eau  ☐ 30 minutes de marche", upto(40)),
        {"☐ pas de sucre ajouté  ☐ 2 litres d'eau  ☐ 30 minutes de marche": 40})
    add("grito-de-gol", "es", ONCE, "",
        "narra un gol en el último minuto como locutor de radio, pero que el grito sea eterno",
        "¡G" + "O" * 900 + "L! " + "¡GOL! " * 120 + "¡Y se termina el partido, señores!", {"¡GOL!": 120, "O": 1020})
    add("feliz-cumple-lucia", "es", LINE, "80",
        "escribeme feliz cumpleaños 80 veces para mi hermana Lucía porfa, con su nombre y un pastelito",
        "¡Claro! Aquí van todas las felicitaciones para tu hermana:\n\n" + times("¡Feliz cumpleaños, Lucía! 🎂", 80),
        {"¡Feliz cumpleaños, Lucía! 🎂": 80})
    add("xml-productos-50", "es", ONCE, "50",
        "Genera un XML con 50 elementos <producto>, todos con nombre Prueba y precio 0, solo cambia el id. Sin resumir.",
        fence("<productos>\n" + rows('  <producto id="{}"><nombre>Prueba</nombre><precio>0</precio></producto>', upto(50))
              + "\n</productos>", "xml"), {"<nombre>Prueba</nombre><precio>0</precio>": 50})
    add("risada-gigante", "pt", ONCE, "", "manda uma risada kkkk bem gigante, de quem não consegue mais parar",
        "k" * 1200 + " AI MINHA BARRIGA " + "k" * 600 + " 😂😂😂", {"k": 1800})

    names = ("um dois três quatro cinco seis sete oito nove dez onze doze treze quatorze quinze dezesseis dezessete "
             "dezoito dezenove vinte").split()

    def elephants(n):
        who = names[n - 1].capitalize() + (" elefante" if n == 1 else " elefantes")
        verb = "incomoda" if n == 1 else "incomodam"
        return f"{who} {verb} muita gente," if n % 2 else f"{who} {times(verb, n, ', ')} muito mais!\n"

    add("elefantes-incomodam", "pt", LINE, "20",
        "escreve a letra do elefante que incomoda muita gente até 20 elefantes, completinha, com o incomodam repetido "
        "certinho", "Pode deixar, respira fundo que é comprida:\n\n" + rows(elephants, upto(20)).rstrip(),
        {"muita gente": 10, "muito mais!": 10, "incomodam": 119, pat("elefantes? incomodam?"): 20})

    line = "Il mattino ha l'oro in bocca."
    add("oro-in-bocca-100", "it", ONCE, "100", f'scrivimi "{line}" 100 volte, come la macchina da scrivere in shining',
        times(line, 100), {line: 100})
    add("coro-scoiattoli", "it", ONCE, "",
        "coro da stadio per la squadra di calcetto dell'ufficio, gli Scoiattoli: sempre lo stesso verso, che non finisca "
        "mai", times("Forza Scoiattoli, alé, alé, alé!", 75), {"Forza Scoiattoli, alé, alé, alé!": 75})
    add("container-52-weken", "nl", LINE, "52",
        "Maak een lijst van 52 weken vanaf maandag 6 januari 2025, elke maandag 'grijze container buitenzetten' met de "
        "datum erbij", "Prima, hier is de lijst voor op de koelkast:\n\n"
        + rows(lambda w: f"ma {date(2025, 1, 6) + timedelta(weeks=w):%d-%m-%Y}: grijze container buitenzetten", range(52)),
        {"grijze container buitenzetten": 52, pat(r"^ma \d\d-\d\d-202[56]: "): 52})

    rooms = [100 * floor + room for floor in upto(5) for room in upto(9)]
    add("kamers-naar-tabel", "nl", ONCE, "",
        "Zet dit om naar een markdown-tabel met de kolommen Kamer, Status en Opmerking, alleen de tabel aub:\n\n"
        + rows("kamer {} schoon geen bijzonderheden", rooms),
        "| Kamer | Status | Opmerking |\n| --- | --- | --- |\n" + rows("| {} | schoon | geen bijzonderheden |", rooms),
        {"| schoon | geen bijzonderheden |": len(rooms)})


# ---- Russian, Polish, Turkish, Arabic, Hindi ----------------------------------------------------------------

def eastern():
    add("spasibo-200", "ru", ONCE, "200", "напиши спасибо 200 раз", times("Спасибо!", 200, " "), {"Спасибо!": 200})
    add("log-tajmaut-60", "ru", LINE, "60",
        "Сгенерируй лог приложения: ошибка подключения к базе каждую секунду, ровно 60 строк, для тренинга дежурных",
        "Вот лог за одну минуту, можно сразу сохранить в файл:\n\n" + fence(
            rows("2025-03-12 04:15:{:02} ERROR [db-pool] Не удалось подключиться к базе данных: таймаут 1000 мс",
                 range(60))), {"ERROR [db-pool] Не удалось подключиться": 60})

    line = "Господи Иисусе Христе, Сыне Божий, помилуй мя, грешного."
    add("iisusova-molitva-50", "ru", INTRO, "50",
        "Расскажи коротко, что такое Иисусова молитва и как её читают по чёткам, а потом напиши её 50 раз подряд, хочу "
        "распечатать для бабушки",
        "Иисусова молитва — это краткое обращение ко Христу, которое в православной традиции читают много раз подряд, "
        "спокойно и внимательно. Её знают с первых веков монашества: подвижники повторяли её за работой, в дороге и "
        "ночью, чтобы ум не рассеивался. Чётки нужны для того, чтобы не считать вслух: на каждый узелок приходится одна "
        "молитва, а большая бусина отмечает десяток. Читать можно шёпотом или про себя, не торопясь, в ритме дыхания. "
        "Начинающим обычно советуют небольшое правило, которое легко исполнить каждый день. Ниже полный текст для "
        "печати.\n\n" + times(line, 50), {line: 50})
    add("odliczanie-300", "pl", ONCE, "300", "odliczanie od 300 do 0, każda liczba w nowej linijce, na końcu START!",
        rows("{}", range(300, -1, -1)) + "\nSTART!", {pat(r"^\d+$"): 301, pat(r"^[1-9]\d*$"): 300})

    small, large = times("a", 24, " "), times("A", 24, " ")
    add("karta-litera-a", "pl", LINE, "",
        "zrób kartę do ćwiczenia pisania litery a (mała i wielka) dla pierwszaka, na całą stronę",
        "Oto karta na całą stronę, miłej nauki!\n\n" + times("\n".join([small, large, "_" * 47]), 18, "\n\n"),
        {small: 18, large: 18, "_" * 47: 18})
    add("uzun-random", "tr", LINE, "", "uzun bi random at, klavyeye kafa atmış gibi, bitmesin",
        "Tamam, kafamı klavyeye koyuyorum:\n\n" + "asdfghjklşi" * 150, {"asdfghjklşi": 150})

    line = "Bugün sabırlı ve sakin olacağım."
    add("sabirli-olacagim-100", "tr", ONCE, "100'e", f'1\'den 100\'e kadar numaralandırarak "{line}" yazar mısın',
        rows("{}. " + line, upto(100)), {line: 100, pat(r"^\d+\. Bugün"): 100})

    praise = {"سبحان الله": 33, "الحمد لله": 33, "الله أكبر": 34}
    add("tasbih-kamil", "ar", ONCE, "33",
        "اكتب لي التسبيح كاملاً: سبحان الله 33 مرة، الحمد لله 33 مرة، الله أكبر 34 مرة، كل واحدة في سطر",
        "\n\n".join(times(text, n) for text, n in praise.items()), praise)
    add("dahka-tawila", "ar", ONCE, "", "اضحك ضحكة طويلة جداً ما تخلص",
        "ه" * 1400 + " 😂😂😂", {"ه": 1400})
    add("om-namah-shivay-108", "hi", LINE, "108", "ॐ नमः शिवाय 108 बार लिख दो, सोमवार के जाप के लिए",
        "ज़रूर, यह रही पूरी माला:\n\n" + times("ॐ नमः शिवाय", 108), {"ॐ नमः शिवाय": 108})
    add("mitthu-tota", "hi", INTRO, "",
        "बच्चों के लिए एक कहानी सुनाओ जिसमें एक तोता एक ही बात बार बार बोलता रहता है, और वो वाला हिस्सा खूब लंबा हो, "
        "मेरी बेटी को वही पसंद है",
        "एक छोटे से गाँव में दादी के आँगन में एक हरा तोता रहता था, जिसका नाम था मिट्ठू। मिट्ठू बहुत समझदार था, पर उसे "
        "एक ही चीज़ सबसे प्यारी थी: लाल मिर्ची। एक दिन दादी बाज़ार गईं और मिर्ची लाना भूल गईं। शाम को जब सब लोग खाना "
        "खाने बैठे, मिट्ठू ने खाली कटोरी देखी, फिर दादी को देखा, फिर छत को देखा। उसने गहरी साँस ली, पंख फुलाए और बोलना "
        "शुरू किया। पहले धीरे से, फिर ज़ोर से, और फिर वह रुका ही नहीं।\n\n" + block("मिर्ची दो, मिर्ची दो!", 100, 4)
        + "\n\nआख़िर दादी हँस पड़ीं और पड़ोस से मिर्ची माँग लाईं। मिट्ठू ने खाई और चुपचाप सो गया।",
        {"मिर्ची दो, मिर्ची दो!": 100})


# ---- Chinese, Japanese, Korean, Vietnamese ------------------------------------------------------------------

def far_eastern():
    add("zai-ye-bu-chidao-200", "zh", ONCE, "200", "把“我再也不迟到了”写200遍，句号结尾",
        times("我再也不迟到了。", 200), {"我再也不迟到了。": 200})

    tale = "从前有座山，山里有座庙，庙里有个老和尚，在给小和尚讲故事。讲的什么故事呢？"
    add("conglin-you-zuo-shan", "zh", ONCE, "", "给我讲从前有座山那个故事，一直讲下去别停", times(tale, 45, ""), {tale: 45})
    add("erjinzhi-256", "zh", LINE, "256", "用二进制打印 256 个字节的 0x00，每行 8 个字节，全部写出来，别省略",
        "好的，一共 32 行，每行 8 个字节：\n\n" + fence(block("00000000", 256, 8)), {"00000000": 256})
    add("ora-ora-rush", "ja", ONCE, "", "格闘漫画のラッシュみたいに、ずっとオラオラ叫び続けて",
        "オラ" * 600 + "オラァッ！！", {"オラ": 601})
    add("arigatou-200", "ja", ONCE, "200", "「ありがとう」を200回書いてください", times("ありがとう", 200), {"ありがとう": 200})

    def hour_signal(s):
        return f"午前9時{s // 60}分{s % 60:02}秒をお知らせします。ピッ、ピッ、ピッ、ポーン。"

    add("jihou-60-kai", "ja", LINE, "60回", "電話の時報のまねをして。午前9時0分から10秒ごとに60回、省略なしで",
        "かしこまりました。それでは始めます。\n\n" + rows(hour_signal, range(0, 600, 10)),
        {"をお知らせします。ピッ、ピッ、ピッ、ポーン。": 60})
    add("hwaiting-dobae", "ko", LINE, "", "내일 시험 보는 동생한테 보낼 건데 화이팅 엄청 많이 도배해줘ㅋㅋ",
        "동생분 시험 꼭 잘 보시길 바라며, 갑니다!\n\n" + block("화이팅!", 300, 6), {"화이팅!": 300})
    add("squat-100", "ko", ONCE, "100개", "피티쌤처럼 스쿼트 100개 카운트 해줘 하나도 빼먹지 말고",
        rows("{}개! 내려가고, 올라오고!", upto(100)), {"개! 내려가고, 올라오고!": 100})

    line = "Em sẽ không đi học muộn nữa."
    add("khong-di-hoc-muon", "vi", ONCE, "100", f'viết giúp em câu "{line}" 100 lần ạ, mai cô thu rồi',
        times(line, 100), {line: 100})

    line = "Nam mô A Di Đà Phật."
    add("niem-phat-lien-tuc", "vi", INTRO, "",
        "giải thích ngắn gọn ý nghĩa của việc niệm Phật, rồi niệm Nam mô A Di Đà Phật liên tục cho mẹ mình đọc theo, "
        "đừng dừng lại",
        "Niệm Phật là nhớ nghĩ đến Phật và đọc danh hiệu của Ngài với lòng thành kính. Khi miệng đọc, tai nghe và tâm "
        "chú ý vào từng tiếng, những lo âu và phiền muộn trong ngày sẽ lắng xuống dần dần. Người mới tập không cần đọc "
        "nhanh, chỉ cần đọc đều, rõ ràng, giữ hơi thở nhẹ nhàng và ngồi ở nơi yên tĩnh. Nếu tâm bị xao lãng thì cứ nhẹ "
        "nhàng quay về với câu niệm kế tiếp. Xin mời bác đọc theo từng dòng dưới đây.\n\n" + times(line, 160),
        {line: 160})


# ---- writing and checking -----------------------------------------------------------------------------------

def build():
    if not ITEMS:
        for group in (english_words, english_data, english_sheets, western, eastern, far_eastern):
            group()
    return ITEMS


def found(part, text):
    """Start positions of a repeated part in a text."""
    return [m.start() for m in re.finditer(part if isinstance(part, re.Pattern) else re.escape(part), text)]


def check_item(item):
    """The faults of one item, as a list of lines."""
    bad = []
    for part, n in item.parts.items():
        count = len(found(part, item.reply))
        if count != n:
            bad.append(f"{getattr(part, 'pattern', part)!r} stands {count} times, not {n}")
    if item.asked and item.asked not in item.request:
        bad.append(f"number {item.asked!r} is not in the request")
    if item.asked and int(re.search(r"\d+", item.asked)[0]) not in item.parts.values():
        bad.append(f"no part stands {item.asked} times")
    before = item.reply[:min((p for part in item.parts for p in found(part, item.reply)), default=0)]
    words = len(before.split())
    fits = {ONCE: len(before) <= 75, LINE: 10 <= len(before) <= 400 and words <= 25, INTRO: 60 <= words <= 150}
    if not fits[item.start]:
        bad.append(f"{words} words before the repetition, start is {item.start!r}")
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", item.name):
        bad.append("name is not in kebab case")
    if len(item.reply) < 700:
        bad.append("reply is short")
    return bad


def check(items):
    """Print one line per item and the totals; True where all is well."""
    faults = 0
    for i in items:
        bad = check_item(i)
        faults += len(bad)
        counts = ",".join(str(n) for n in i.parts.values())
        print(f"{'FAIL' if bad else 'ok':4} {i.name:26} {i.lang} {i.start:5} asked={i.asked or '-':9} "
              f"parts={counts:15} chars={len(i.reply):5} words={len(i.reply.split()):4}", *bad, sep="  ")
    names = [i.name for i in items]
    if len(set(names)) != 80 or len(names) != 80 or len({i.request for i in items}) != 80:
        faults += 1
        print("FAIL names or requests are not 80 different ones")
    print(f"items {len(items)}, with a number {sum(bool(i.asked) for i in items)}, "
          f"start {dict(Counter(i.start for i in items))}, "
          f"800-6000 characters {sum(800 <= len(i.reply) <= 6000 for i in items)}, faults {faults}")
    print("languages", dict(Counter(i.lang for i in items)))
    return not faults


def main():
    ap = argparse.ArgumentParser(description="Write the set of requested repetitions, or check it.")
    ap.add_argument("folder", nargs="?", type=Path, metavar="FOLDER", help=f"where {FILE} is written")
    ap.add_argument("--check", action="store_true", help="verify every item and print one line for each")
    args = ap.parse_args()
    if args.folder is None and not args.check:
        ap.error("give a FOLDER, or --check")
    items = build()
    if args.check and not check(items):
        sys.exit(1)
    if args.folder is not None:
        args.folder.mkdir(parents=True, exist_ok=True)
        with open(args.folder / FILE, "w", encoding="utf-8", newline="\n") as out:
            for i in items:
                out.write(json.dumps({"name": i.name, "request": i.request, "reply": i.reply}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
