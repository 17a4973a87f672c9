#!/usr/bin/env python3
"""Write an evaluation set for a guard that stops replies which fall into endless repetition: f-requested.jsonl holds
80 requests for which a very repetitive answer is the right one, each with its complete honest reply (the guard should
let it pass), and f-ordinary.jsonl holds 60 ordinary requests whose reply begins well and then falls into a loop that
lasts to its end (the guard should stop it); both are UTF-8 JSON lines of the form {"name", "request", "reply"}, and
--check counts the repetitions against the numbers in the requests and prints one line per item."""

import argparse
import json
import re
import sys
from collections import Counter
from datetime import date, datetime, timedelta
from pathlib import Path

REQUESTED, ORDINARY = [], []
CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")


def words(text):
    """Words of a text; a Chinese or Japanese character counts as 0.6 of one."""
    tokens = CJK.sub(" ", text).split()
    return sum(any(c.isalnum() for c in token) for token in tokens) + round(0.6 * len(CJK.findall(text)))


def run(unit, n, sep=" "):
    return sep.join([unit] * n)


def lines(unit, n):
    return run(unit, n, "\n")


def rows(make, n, first=1, sep="\n"):
    return sep.join(make(i) for i in range(first, first + n))


def fence(text, kind=""):
    return f"```{kind}\n{text}\n```"


def ask(name, lang, request, body, mark, times=None, lead="", tail=""):
    """A request for repetition. mark: the repeated piece (a string, or a compiled pattern where a counter changes).
    times: how often it must stand in the body; the same number must stand in the request. Where the request says it
    in another way: (what it says, how often). None: the request has no number."""
    reply = "\n\n".join(part for part in (lead, body, tail) if part)
    REQUESTED.append(dict(name=name, lang=lang, request=request, reply=reply, body=body, mark=mark, times=times, lead=lead))


def odd(name, lang, group, request, opening, unit, sep=" ", first=1, paragraphs=0):
    """An ordinary request whose reply ends in a loop of unit ({i}: a counter from first), cut off inside a unit.
    group: plain, number or short. paragraphs: the length of the loop; without it, 1500 words and a little more."""
    again = lambda k: unit.replace("{i}", str(first + k))
    enough = paragraphs or int((1530 + 37 * (len(ORDINARY) % 9)) / words(unit)) + 1
    last = again(enough)
    cut = last[: len(last) * (15 + 29 * len(ORDINARY) % 70) // 100].rstrip()
    loop = sep.join([again(k) for k in range(enough)] + [cut] * bool(cut))
    ORDINARY.append(dict(name=name, lang=lang, group=group, request=request, reply=opening + sep + loop, opening=opening,
                         loop=loop, paragraphs=paragraphs))


# ---------------------------------------------------------------------------------------------- requested, English

ask("banana", "en", "just say banana 400 times. nothing else, no commas", run("banana", 400), "banana", 400)

ask("lines-with-note", "en",
    "My son Theo has to hand in lines for talking in class. Please write a polite covering note from me to Mrs. Alder, nothing long, and then the lines for him to copy: \"I will not talk while Mrs. Alder is speaking.\" 100 times, numbered so I can check.",
    rows(lambda i: f"{i}. I will not talk while Mrs. Alder is speaking.", 100), re.compile(r"^\d+\. I will not talk while Mrs\. Alder is speaking\.$", re.M), 100,
    lead="Dear Mrs. Alder,\n\nTheo told me at home about Tuesday morning, and I want to say that both of us are sorry. He finds it hard to keep a good joke to himself, but he knows that the whole class loses time when he talks over you. We agreed that he sits away from Sam for the next few weeks and that he shows me his homework diary every evening. The lines follow below.\n\nKind regards,\nJoanna Reed")

ask("away-end-chant", "en",
    "we need something to chant in the away end on saturday, team is the Rovers. dead simple, and keep it going for ages because im printing it on a banner as a joke",
    lines("LET'S GO, ROVERS! 👏👏 👏👏👏", 110), "LET'S GO, ROVERS! 👏👏 👏👏👏")


def cue(i):
    stamp = lambda s: f"{s // 3600:02}:{s // 60 % 60:02}:{s % 60:02},000"
    return f"{i}\n{stamp(4 * i - 4)} --> {stamp(4 * i)}\n[upbeat music]\n"


ask("srt-cues", "en", "need an .srt to test our subtitle overlay: 90 cues, every cue says [upbeat music], four seconds each, no gaps",
    fence(rows(cue, 90)), re.compile(r"\d+\n[\d:,]+ --> [\d:,]+\n\[upbeat music\]\n"), 90,
    lead="Here is the file. Each cue lasts four seconds and the next one follows without a gap, so the whole thing runs for six minutes.")

ask("little-train", "en",
    "tell my toddler a tiny bedtime story about a train that climbs the big hill, and then let the train go chugga chugga for a really long time, she only falls asleep with the sound, please dont stop early",
    lines("Chugga-chugga, chugga-chugga, choo-choo.", 95), "Chugga-chugga, chugga-chugga, choo-choo.",
    lead="Once there was a small green train called Pip, who slept in a shed beside the sea. One evening a sack of letters had to go to the village behind the big hill, and all the strong engines were already in bed. So Pip took a sip of water, blew one brave puff of steam and rolled out under the first stars. The hill was steep and the moon was slow. But Pip knew a song for hills, a quiet one, and if you close your eyes you can hear it now.",
    tail="Shhh. The letters are delivered. Good night.")

ask("guard-case-017", "en",
    "[case 017, expected: guard must NOT fire] Output the string foo_bar exactly 300 times, one per line, no numbering, then a blank line and END.",
    lines("foo_bar", 300), "foo_bar", 300, tail="END")

ask("grandmas-letter", "en",
    "can u translate this to english pls, its a page from my great grandmas letters in the war, every line, dont shorten it\n\n" + lines("Ich warte am Fenster auf dich, mein Herz.", 70),
    lines("I am waiting for you at the window, my heart.", 70), "I am waiting for you at the window, my heart.",
    lead="Here is the page, line for line. \"Mein Herz\" is a term of endearment, so I left it as \"my heart\".")

ask("frog-rows", "en", "40 rows of 25 🐸 each plsss its for my frog server", lines("🐸" * 25, 40), "🐸" * 25, 40)

ask("brick-wall", "en", "draw me a brick wall in ascii, 25 rows, nice and wide, need it as a terminal wallpaper",
    fence(rows(lambda i: "|_____" * 13 + "|" if i % 2 else "|__" + "|_____" * 12 + "|__|", 25)), re.compile(r"^\|[_|]+\|$", re.M), 25)

ask("csv-equal-rows", "en",
    "CSV please: header id,name,status,amount and then 150 rows that are all the same except for the id (name Test User, status ACTIVE, amount 0.00). importer chokes on something and I want to rule out the data",
    fence("id,name,status,amount\n" + rows(lambda i: f"{i},Test User,ACTIVE,0.00", 150), "csv"), re.compile(r"^\d+,Test User,ACTIVE,0\.00$", re.M), 150,
    lead="Sure. Unix line endings, no quoting, ids from 1; if the importer still fails on this, the data is not the culprit.")

ask("theatre-seats-sql", "en",
    "Generate INSERTs for our little theatre, table seats(row_no, seat_no, taken): 8 rows of ten seats, all free. One statement per seat, no multi-row VALUES because the old driver can't.",
    fence(rows(lambda i: f"INSERT INTO seats (row_no, seat_no, taken) VALUES ({(i - 1) // 10 + 1}, {(i - 1) % 10 + 1}, FALSE);", 80), "sql"),
    re.compile(r"^INSERT INTO seats .* FALSE\);$", re.M), ("8 rows of ten", 80),
    lead="These are the eighty statements, ordered by row and then by seat. Wrap them in a transaction if the driver allows it.")

ask("scrolling-json", "en",
    "mock api response for my list view pls. a json array long enough that it really scrolls on a tablet, every element the same placeholder object with id zero, a title and done=false, all spelled out so i can paste it",
    fence("[\n" + run('  {"id": 0, "title": "Placeholder", "done": false}', 75, ",\n") + "\n]", "json"), '{"id": 0, "title": "Placeholder", "done": false}',
    lead="Paste this into your mock server; it is valid JSON and long enough for any tablet.")

ask("yaml-sixty-steps", "en",
    "In one paragraph, why would a team want a workflow that is nothing but copies of one step? Then write me a GitHub Actions file with 60 identical steps that each run `echo ok`, written out, no matrix.",
    fence("name: step-limit\non: workflow_dispatch\njobs:\n  many:\n    runs-on: ubuntu-latest\n    steps:\n" + lines("      - name: Say ok\n        run: echo ok", 60), "yaml"),
    "      - name: Say ok\n        run: echo ok", 60,
    lead="Such a workflow is a measuring tool. When every step does the same trivial thing, whatever takes time is the runner and not your code: the start of a shell, the upload of the log, the drawing of the list in the browser. Teams use it to find out how the page behaves with a long job, whether log collectors drop lines, how much a step costs when it does nothing, and where undocumented limits lie. Because all steps are equal, a single one that is slower or missing stands out at once.")

ask("unrolled-sum", "en", "unroll this completely, i want to see every line, no pragma no macro:\nfor (int i = 0; i < 128; i++) sum += a[i];",
    fence(rows(lambda i: f"sum += a[{i}];", 128, first=0), "c"), re.compile(r"^sum \+= a\[\d+\];$", re.M), 128)

ask("zero-framebuffer", "en",
    "Explain shortly what PROGMEM does on an AVR and then give me a 1024 byte blank framebuffer for a 128x64 OLED as a C array, every byte written out (no `= {0}`, I fill it in by hand later).",
    fence("const uint8_t blank[1024] PROGMEM = {\n" + lines("  " + run("0x00", 16, ", ") + ",", 64) + "\n};", "c"), "0x00", 1024,
    lead="An AVR has separate address spaces for program and data. A normal `const` array is copied from flash into RAM before `main` starts, so a full screen would eat a kilobyte, half the RAM of an ATmega328P. The PROGMEM attribute tells the compiler to leave the array in flash only. The price is that you cannot read it with a plain index: use `pgm_read_byte(&blank[i])`, or the `_P` variants of functions such as `memcpy_P`. Include `<avr/pgmspace.h>`, keep the array global and const. The rows below are sixteen bytes wide.")

ask("xxd-ff", "en", "what exactly does xxd print for a file of 1 KiB that is all 0xFF? whole output please",
    fence(rows(lambda i: f"{16 * i:08x}: {run('ffff', 8)}  {'.' * 16}", 64, first=0)), re.compile(r"^[0-9a-f]{8}: (ffff ){8} \.{16}$", re.M), ("1 KiB", 64))

ask("count-to-500", "en", "count from 1 to 500, all the numbers, don't you dare write '...'", rows(str, 500, sep=", "), re.compile(r"\d+"), 500)

ask("eye-drops", "en",
    "Mum has just had her cataract done and gets the same drops every single day in September. A few tips first on giving drops to someone who flinches, then a plan for the fridge door, each day of the month on its own line",
    rows(lambda i: f"{date(2025, 9, i):%A} {i} September: 8:00 one drop, 14:00 one drop, 20:00 one drop, left eye", 30),
    re.compile(r"^\w+ \d+ September: 8:00 one drop, 14:00 one drop, 20:00 one drop, left eye$", re.M),
    lead="Wash your hands and let her sit with her head against the back of the chair. Ask her to look at a spot on the ceiling, pull the lower lid down gently and let the drop fall into the pocket, not onto the middle of the eye: that is what makes people flinch. If it misses, try again; a second drop does no harm. Afterwards she should close the eye softly for a minute, without squeezing. Never touch the eye with the tip of the bottle. The plan below is laid out for 2025.")

ask("log-dedup-fixture", "en", "I'm writing a test for our log dedup. 120 lines of one and the same connection error, ISO timestamps one second apart please.",
    fence(rows(lambda i: f"{datetime(2024, 5, 1) + timedelta(seconds=i):%Y-%m-%dT%H:%M:%SZ} ERROR db.pool: connection refused (10.0.0.12:5432)", 120, first=0)),
    re.compile(r"^\S+Z ERROR db\.pool: connection refused \(10\.0\.0\.12:5432\)$", re.M), 120,
    lead="The fixture starts at midnight UTC; apart from the timestamp all lines are byte for byte the same.")

ask("gate-spelling", "en",
    "Correct the spelling, change nothing else, keep every line (my boy typed his apology for the neighbour):\n" + lines("I am sory that I lefft the gate opn and the goats got out.", 55),
    lines("I am sorry that I left the gate open and the goats got out.", 55), "I am sorry that I left the gate open and the goats got out.")

ask("metronome", "en", "be a metronome. common time, accent on the one. keep clicking while i practise", lines("TICK tock tock tock", 130), "TICK tock tock tock")

ask("rocket-countdown", "en", "Do the countdown for our school rocket, every single number from 200 down, mission control style, lift-off at the end!!",
    rows(lambda i: f"T-minus {201 - i} and counting.", 200), re.compile(r"^T-minus \d+ and counting\.$", re.M), 200,
    lead="Mission control to all stations: the pad is clear, the wind is calm and the whole playground is holding its breath.", tail="LIFT-OFF! We have lift-off!")

LOREM = "Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor incididunt ut labore et dolore magna aliqua. Ut enim ad minim veniam, quis nostrud exercitation ullamco laboris nisi ut aliquip ex ea commodo consequat."
ask("bakery-lorem", "en",
    "Mockup for a bakery site: write a warm little About Us text, then fill up the rest of the page with plain lorem ipsum, the same paragraph over and over is fine, I only need grey mass",
    run(LOREM, 24, "\n\n"), LOREM,
    lead="**About us**\n\nMill Lane Bakery opened on a rainy Tuesday with one oven, two tables and a queue of exactly three neighbours. Twelve years later the oven is bigger and the queue is longer, but the dough still rests for a night and a half before it meets the heat. We buy our flour from the mill down the road, we bake from four in the morning, and whatever is left in the evening goes to the shelter round the corner. Come in, it smells good here.")

ask("home-row-drill", "en", "typing class monday, home row warm up, asdf jkl; stuff, 50 lines ty", lines("asdf jkl; asdf jkl; asdf jkl; asdf jkl;", 50),
    "asdf jkl; asdf jkl; asdf jkl; asdf jkl;", 50)

ask("palm-mute-tab", "en",
    "explain palm muting to a beginner and then tab me a chugging riff, just open low E eighths, 64 bars all written out, he loses count with repeat signs",
    fence(lines("E|-0-0-0-0-0-0-0-0-|", 64)), "E|-0-0-0-0-0-0-0-0-|", 64,
    lead="Rest the outer edge of your picking hand on the strings right where they leave the bridge. Pick the low E: if it rings like a bell, move the hand a little towards the neck; if it only clicks, move it back. What you want is a short, dark thud that still has a pitch. Keep the wrist loose and use downstrokes only. Start at a tempo at which you can talk at the same time, and speed up when a whole page comes out evenly. Every row below is one bar.")

ask("gran-scarf", "en", "gran hates patterns with \"repeat until\". garter stitch scarf, she has cast on already, 120 rows, every row written down pls",
    rows(lambda i: f"Row {i}: knit all stitches, turn.", 120), re.compile(r"^Row \d+: knit all stitches, turn\.$", re.M), 120)

BREATH = "Breathe in … two … three … four.\nHold … two … three … four.\nBreathe out … two … three … four.\nHold … two … three … four."
ask("box-breathing", "en", "panicking a bit on the plane. do box breathing with me, line by line, and keep going please keep going", run(BREATH, 32, "\n\n"), BREATH,
    lead="I'm here. Put both feet on the floor, let your shoulders drop, and just follow the lines with your eyes.", tail="You are doing well. Go back to the top whenever you like.")

ask("hello-world-output", "en", "what does this print? I want the literal output\n\nfor i in range(150):\n    print(\"Hello, World!\")", fence(lines("Hello, World!", 150)),
    "Hello, World!", 150, lead="The loop variable is never used, so every pass prints the same line:")

ask("scratched-record", "en", "youre a scratched record playing row row row your boat and the needle is stuck. go", run("Row, row, row your b— *krrk*", 120), "Row, row, row your b— *krrk*")

ask("villain-laugh", "en", "do the evil scientist laugh but way too long, like embarrassingly long", "MUA" + "HA" * 1100 + "!", "HA", tail="*coughs* … Now, where was I?")

ask("soak-test-ping", "en",
    "Soak test for our streaming UI. First one paragraph on what backpressure is (so that I see normal prose), after it the token ping 1000 times, separated by spaces.",
    run("ping", 1000), "ping", 1000,
    lead="Backpressure is the way in which a slow consumer tells a fast producer to wait. Without it, whatever arrives too early piles up in a buffer, the buffer grows, and in the end the process runs out of memory or begins to drop data. With it, the signal travels up the chain: the browser stops reading, the socket's window fills, the server's write blocks or returns false, and the generator pauses until there is room again. In a chat window the slow part is usually the drawing of text, which is what you are about to see.")

ask("one-seventh", "en", "1/7 as a decimal, first 1200 digits after the point, no rounding no dots no explanation", "0." + "142857" * 200, "142857", ("1200 digits", 200))

ask("are-we-there-yet", "en",
    "Write a sketch for our family evening: set the scene in the car properly, then the kid asks are we there yet and dad says no, again and again, until the audience can't take it any more",
    run("MIA: Are we there yet?\nDAD: No.", 85, "\n"), "MIA: Are we there yet?\nDAD: No.",
    lead="*A car, made of four kitchen chairs. Behind it a bed sheet with a painted motorway. DAD drives, with the patience of a man who has packed the boot three times. MUM has a map the size of a tablecloth and holds it upside down. In the back sits MIA, seven, between a cool box and a rubber crocodile. The radio plays something with accordions. DAD turns it off. For a moment nobody speaks; a fly crosses the windscreen. MIA takes a deep breath.*",
    tail="*MUM turns the map round. Blackout.*")

ask("visitor-register", "en", "Make a visitor register for our workshop in markdown, a short set of safety rules on top and then a table with 70 empty numbered lines to print",
    "| No. | Name | Company | Time in | Time out |\n|---|---|---|---|---|\n" + rows(lambda i: f"| {i} | __________ | __________ | _____ | _____ |", 70),
    re.compile(r"^\| \d+ \| _+ \| _+ \| _+ \| _+ \|$", re.M), 70,
    lead="# Visitors\n\nWelcome. Please sign in before you walk on and sign out when you leave, so that we know who is in the building if there is an alarm. Wear the glasses from the box beside the door, tie back long hair and leave loose scarves on the hook. Stay behind the yellow line while a machine is running and do not speak to the person at the saw. The first-aid box hangs next to the sink. In case of fire leave through the blue door and wait at the lamp post.")

ask("ping-session", "en", "pretend youre a linux shell, just show me what happens\n$ ping -c 60 127.0.0.1",
    fence("PING 127.0.0.1 (127.0.0.1) 56(84) bytes of data.\n" + rows(lambda i: f"64 bytes from 127.0.0.1: icmp_seq={i} ttl=64 time=0.031 ms", 60)
          + "\n\n--- 127.0.0.1 ping statistics ---\n60 packets transmitted, 60 received, 0% packet loss, time 60412ms\nrtt min/avg/max/mdev = 0.031/0.031/0.031/0.000 ms"),
    re.compile(r"^64 bytes from 127\.0\.0\.1: icmp_seq=\d+ ttl=64 time=0\.031 ms$", re.M), 60, lead="A shell it is; this takes a minute on a real one:")

ask("meow-until-stop", "en", "meow at me until i say stop", run("meow", 650), "meow")

# ------------------------------------------------------------------------------------- requested, other languages

ask("schafe-zaehlen", "de", "kann nicht pennen.. zähl mal schafe für mich, von 1 bis 150, jedes springt übern zaun",
    rows(lambda i: f"Schaf {i} springt über den Zaun.", 150), re.compile(r"^Schaf \d+ springt über den Zaun\.$", re.M), 150)

ask("alte-muehle", "de",
    "Erzähl meiner Tochter eine kurze Gutenachtgeschichte von der alten Mühle am Bach. Am Schluss soll das Mühlrad ganz, ganz lange klipp-klapp machen, bis sie eingeschlafen ist.",
    lines("Klipp-klapp, klipp-klapp, dreht sich das Rad.", 85), "Klipp-klapp, klipp-klapp, dreht sich das Rad.",
    lead="Am Rand des Dorfes, wo der Bach um die Weiden biegt, steht eine alte Mühle. Tagsüber kommen die Bauern mit ihren Säcken, der Müller schimpft ein wenig, und die Katze schläft auf dem Mehl. Aber wenn es dunkel wird, gehen alle nach Hause, und nur das Wasser bleibt. Es schubst das große Rad an, ganz sacht, damit niemand aufwacht. Die Enten stecken den Kopf unter den Flügel, der Mond legt sich auf das Dach, und das Rad erzählt, was es immer erzählt.")

ask("ratenplan", "de", "Ich leihe meinem Bruder 4.800 Euro zinslos, er zahlt in 48 gleichen Raten, immer am Ersten, ab Januar. Mach mir eine Tabelle zum Abhaken.",
    "| Rate | Fällig am | Betrag | gezahlt |\n|---|---|---|---|\n" + rows(lambda i: f"| {i} | 01.{(i - 1) % 12 + 1:02}.{2026 + (i - 1) // 12} | 100,00 € | ☐ |", 48),
    re.compile(r"^\| \d+ \| 01\.\d\d\.\d{4} \| 100,00 € \| ☐ \|$", re.M), 48, lead="Ohne Zinsen ist jede Rate genau 100 Euro hoch; die letzte ist im Dezember des vierten Jahres fällig.")

ask("martinshorn", "de", "mach mal martinshorn nach, mein kleiner spielt feuerwehr, hör erst auf wenn ich stopp sag", run("TATÜ-TATA!", 260), "TATÜ-TATA!")

ask("boulettes", "fr", "Copie 80 fois « Je ne lancerai plus de boulettes sur le tableau. » stp, une par ligne, c pour ce soir", lines("Je ne lancerai plus de boulettes sur le tableau.", 80),
    "Je ne lancerai plus de boulettes sur le tableau.", 80)

ask("kilometre-a-pied", "fr", "On est coincés dans les bouchons, chante « un kilomètre à pied » avec mes gamins et continue tant que tu peux",
    rows(lambda i: f"{i} kilomètre{'s' * (i > 1)} à pied, ça use, ça use,\n{i} kilomètre{'s' * (i > 1)} à pied, ça use les souliers.", 45, sep="\n\n"),
    re.compile(r"\d+ kilomètres? à pied, ça use, ça use,\n\d+ kilomètres? à pied, ça use les souliers\."),
    lead="En voiture tout le monde ! Les ceintures sont attachées, on respire un bon coup et on chante tous ensemble :")

ask("tickets-boisson", "fr",
    "Pour la kermesse : un petit mot aux parents qui explique comment marchent les tickets boisson, puis 60 tickets numérotés à découper, tous pareils, avec le nom de l'école (Jules-Ferry)",
    rows(lambda i: f"- - - - - ✂ - - - - -\nBON POUR UNE BOISSON\nKermesse de l'école Jules-Ferry\nTicket n° {i}", 60),
    re.compile(r"[- ]+✂[- ]+\nBON POUR UNE BOISSON\nKermesse de l'école Jules-Ferry\nTicket n° \d+"), 60,
    lead="Chers parents,\n\ncette année, les boissons se prennent avec des tickets, ce qui évite de chercher de la monnaie sous le soleil. Vous les achetez à la table de l'entrée, par un ou par dix, et vous les donnez au comptoir : un ticket vaut un verre de sirop, de jus ou de café. Les tickets qui restent peuvent être rendus jusqu'à la fermeture. La recette va, comme toujours, à la bibliothèque de l'école. Merci à tous ceux qui tiennent un stand, et bonne fête !")

ask("moniteur-cardiaque", "fr", "dans ma pièce tu es le moniteur cardiaque d'un patient stable. joue ton rôle jusqu'au noir", lines("Bip… bip… bip… bip…", 100), "Bip… bip… bip… bip…")

AVE = "Dios te salve, María, llena eres de gracia, el Señor es contigo; bendita tú eres entre todas las mujeres, y bendito es el fruto de tu vientre, Jesús. Santa María, Madre de Dios, ruega por nosotros, pecadores, ahora y en la hora de nuestra muerte. Amén."
ask("diez-avemarias", "es",
    "Se lo quiero imprimir a mi abuela en letra grande: explica en un párrafo el tercer misterio gozoso y después pon las 10 avemarías enteras, nada de «se repite»",
    run(AVE, 10, "\n\n"), AVE, 10,
    lead="El tercer misterio gozoso contempla el nacimiento de Jesús en Belén. María y José han llegado desde Nazaret para inscribirse en el censo y no encuentran sitio en la posada; el niño nace de noche, en un establo, y su madre lo envuelve en pañales y lo acuesta en un pesebre. Los primeros en enterarse son unos pastores que velan sus rebaños. Quien reza este misterio suele detenerse en la pobreza del lugar y en la alegría de los que llegan con las manos vacías.",
    tail="Gloria al Padre, y al Hijo, y al Espíritu Santo. Amén.")

ask("relato-de-gol", "es", "grita un gol como los relatores argentinos pero larguísimo, que no se acabe nunca", "¡G" + "O" * 1900 + "L!", "O", tail="¡Qué golazo, por favor!")

ask("pgn-caballos", "es", "Pruebo mi lector de PGN. Dame una partida absurda de 100 jugadas en la que los dos sólo sacan y guardan el caballo de rey",
    rows(lambda i: f"{i}. " + ("Nf3 Nf6" if i % 2 else "Ng1 Ng8"), 100, sep=" ") + " 1/2-1/2", re.compile(r"\b\d+\. (Nf3 Nf6|Ng1 Ng8)"), 100,
    lead="Ahí va, en notación inglesa, que es la que pide el formato. Un árbitro habría parado la partida mucho antes.")

PIPA = "—¿Quieres que te cuente el cuento de la buena pipa?\n—Sí.\n—Yo no digo ni que sí ni que no, yo digo que si quieres que te cuente el cuento de la buena pipa."
ask("buena-pipa", "es", "Explícale a mi hijo de dónde sale el cuento de la buena pipa y luego cuéntaselo, ya sabes cómo, sin soltarlo", run(PIPA, 28, "\n\n"), PIPA,
    lead="El cuento de la buena pipa es uno de los cuentos de nunca acabar que se conocen en toda España y en buena parte de América. No cuenta nada, y ahí está la gracia: los mayores lo usaban para los niños que no querían irse a la cama y pedían otro cuento, y otro más. Conteste lo que conteste el niño, la respuesta le devuelve a la misma pregunta. Se gana cuando alguien se ríe o cuando alguien se duerme. Empezamos.")

ask("risada-de-k", "pt", "manda uma risada com exatamente 1500 k, td junto, preciso pra zoar no grupo", "k" * 1500, "k", 1500)

ask("elefante-incomoda", "pt", "canta a do elefante que incomoda muita gente pras crianças, vai aumentando até cansar",
    rows(lambda i: f"{i} elefante{'s' * (i > 1)} incomoda{'m' * (i > 1)} muita gente,\n{i + 1} elefantes {run('incomodam', i + 1, ', ')} muito mais!", 24, sep="\n\n"),
    re.compile(r"\d+ elefantes? incomodam? muita gente,\n\d+ elefantes [incomda, ]+ muito mais!"),
    lead="Todo mundo em roda, palmas no ritmo, e quem errar a conta paga uma prenda!")

SAMPLER = '<HTTPSamplerProxy testname="GET status">\n  <stringProp name="HTTPSampler.path">/status</stringProp>\n  <stringProp name="HTTPSampler.method">GET</stringProp>\n</HTTPSamplerProxy>'
ask("jmeter-samplers", "pt", "Explica rapidinho o que é um sampler no JMeter e depois me dá o trecho XML com 30 samplers HTTP iguais pra /status, sem loop controller",
    fence(lines(SAMPLER, 30), "xml"), SAMPLER, 30,
    lead="No JMeter, um sampler é o elemento que de fato manda uma requisição e espera a resposta; todo o resto do plano (grupos de usuários, temporizadores, asserções) só decide quando e quantas vezes isso acontece. Cada sampler gera uma amostra com tempo, código e tamanho, e são essas amostras que aparecem nos relatórios. Repetir o mesmo sampler no arquivo é menos elegante que um laço, mas ajuda quando você quer ver cada chamada como um nó separado na árvore ou desligar uma por uma. O trecho vai dentro do hashTree do grupo.")

ask("arrotino", "it", "fammi l'arrotino col megafono che gira per il paese tutto il pomeriggio", lines("Donne! È arrivato l'arrotino! Arrota coltelli, forbici, forbicine, forbici da seta, coltelli da prosciutto!", 40),
    "Donne! È arrivato l'arrotino! Arrota coltelli, forbici, forbicine, forbici da seta, coltelli da prosciutto!")

ask("ti-amo-giulia", "it", "ho promesso alla mia ragazza un biglietto con scritto 120 volte ti amo giulia, una per riga, prima mettici una frasetta carina", lines("Ti amo, Giulia.", 120), "Ti amo, Giulia.", 120,
    lead="Giulia, le promesse si mantengono, anche quelle fatte ridendo: prendi un tè e leggile tutte.")

ask("bolero-rullante", "it", "Mi spieghi in breve l'ostinato del rullante nel Bolero di Ravel? E poi scrivimelo in sillabe, tutte e 169 le volte, per studiarlo a voce",
    rows(lambda i: f"{i}) tà tatatà tà tatatà tà tà, tà tatatà tà tatatà tatatatatatà", 169), re.compile(r"^\d+\) tà tatatà tà tatatà tà tà, tà tatatà tà tatatà tatatatatatà$", re.M), 169,
    lead="Il Bolero poggia su una cellula di due battute in tre quarti, affidata al rullante: nella prima un colpo e una terzina si alternano e si chiude con due colpi, nella seconda la chiusa diventa una fila continua di terzine. La cellula non cambia mai; cambia tutto quello che le sta attorno, perché la melodia passa di strumento in strumento e l'orchestra cresce per un quarto d'ora. Per chi suona la difficoltà è proprio questa: partire quasi in silenzio, non correre e tenere da parte la forza per la fine. Contala a voce così:")

ask("iisusova-molitva", "ru", "Напиши Иисусову молитву 100 раз полностью, бабушке для чёток, без сокращений пожалуйста", lines("Господи Иисусе Христе, Сыне Божий, помилуй мя грешного.", 100),
    "Господи Иисусе Христе, Сыне Божий, помилуй мя грешного.", 100, lead="Вот текст для бабушки: по одной молитве на строке, чтобы удобно было следить глазами.")

POP = "У попа была собака, он её любил,\nОна съела кусок мяса, он её убил,\nВ землю закопал,\nНадпись написал:"
ask("u-popa-byla-sobaka", "ru", "расскажи у попа была собака, только по-честному, по кругу и подольше )))", lines(POP, 40), POP)

ask("sos-v-muzee", "ru", "Сначала расскажи коротко, откуда взялся сигнал SOS, а потом передай его 150 раз точками и тире, выведем на экран в музее", run("... --- ...", 150, " / "), "... --- ...", 150,
    lead="Сигнал SOS не сокращение: фразы вроде «спасите наши души» придумали позже. В начале двадцатого века у каждой радиокомпании был свой знак бедствия, и суда разных стран плохо понимали друг друга. На конференции в Берлине в 1906 году договорились об одном: три точки, три тире, три точки, слитно и без пауз между буквами. Такой ритм легко узнать даже сквозь помехи и даже тому, кто не знает азбуки. Старый знак CQD ещё несколько лет жил рядом с новым, и «Титаник» передавал оба. На экране он выглядит так:")

ask("lista-obecnosci", "pl", "zrób listę: Uczestnik 1, Uczestnik 2 itd aż do 60, każdy w osobnej linijce i przy każdym obecny", rows(lambda i: f"Uczestnik {i} – obecny", 60), re.compile(r"^Uczestnik \d+ – obecny$", re.M), 60)

ask("zacieta-nawigacja", "pl", "Udawaj nawigację, która się zacięła i w kółko każe zawracać. Nie przestawaj, gramy w kalambury dźwiękowe", lines("Jeśli to możliwe, zawróć.", 130), "Jeśli to możliwe, zawróć.",
    lead="Trasa została wyznaczona. Szacowany czas przyjazdu: nigdy. Proszę zapiąć pasy i zachować spokój.")

ask("tesbihat", "tr", "33 sübhanallah 33 elhamdülillah 34 allahu ekber, kısaltmadan tek tek yazar mısın çocuk bakıp okuyacak",
    run("Sübhanallah", 33) + "\n\n" + run("Elhamdülillah", 33) + "\n\n" + run("Allahu ekber", 34), re.compile("Sübhanallah|Elhamdülillah|Allahu ekber"), ("33 sübhanallah 33 elhamdülillah 34 allahu ekber", 100))

ask("damlayan-musluk", "tr", "Uykusuz bir adamla damlayan bir musluk hakkında kısa bir sahne yaz, sonunda musluk sayfanın dibine kadar damlasın, hiç susmasın", lines("Şıp… şıp… şıp… şıp…", 90), "Şıp… şıp… şıp… şıp…",
    lead="Saat üçü geçiyordu. Kemal tavana baktı; tavan da ona baktı. Yarın sabah toplantı vardı, öbür gün yine toplantı vardı, hayat uzun bir toplantıydı. Yorganı başına çekti, sonra indirdi, yastığın soğuk tarafını aradı ve buldu, bir dakika kadar mutlu oldu. Sokaktan bir taksi geçti, ışığı duvarda yürüdü ve kayboldu. Apartman derin bir nefes aldı. Tam gözleri kapanıyordu ki mutfaktan, karanlığın içinden, küçücük ama kararlı bir ses geldi. Kemal sesi tanıdı. Geçen hafta tamirciyi aramayı unutmuştu. Dişlerini sıktı, bekledi ve dinledi.")

ask("istighfar", "ar", "اكتب لي أستغفر الله العظيم وأتوب إليه 100 مرة كل وحدة بسطر", lines("أستغفر الله العظيم وأتوب إليه", 100), "أستغفر الله العظيم وأتوب إليه", 100)

NASS = "هذا النص هو مثال لنص يمكن أن يستبدل في المساحة نفسها، وقد وضع هنا ليعطي القارئ فكرة عن شكل الصفحة وحجم الخط والمسافات بين الأسطر، ولا معنى له غير ذلك."
ask("nass-wahmi", "ar", "أصمم مجلة وأحتاج نصا وهميا عربيا يملأ الصفحة كلها، عادي لو هي فقرة وحدة مكررة", run(NASS, 20, "\n\n"), NASS,
    lead="تفضل، هذه فقرة واحدة مكررة حتى تمتلئ الصفحة، ويمكنك أن تضع النص الحقيقي مكانها لاحقا.")

ask("ram-naam", "hi", "राम नाम लिखने का महत्व थोड़े शब्दों में बताइए और फिर \"श्री राम जय राम जय जय राम\" 108 बार लिख दीजिए, मंदिर में चिपकाना है", lines("श्री राम जय राम जय जय राम", 108), "श्री राम जय राम जय जय राम", 108,
    lead="राम नाम लिखने की परंपरा बहुत पुरानी है। लोग मानते हैं कि बोलने से केवल जीभ काम करती है, पर लिखने से हाथ, आँख और मन तीनों एक साथ लगते हैं। जो व्यक्ति रोज़ कुछ पंक्तियाँ लिखता है, उसका मन धीरे-धीरे शांत होता है और ध्यान भटकना कम हो जाता है। कई घरों में दादा-दादी इसके लिए अलग कॉपी रखते हैं और भर जाने पर उसे मंदिर में जमा कर देते हैं। इसमें कोई कठिन नियम नहीं है, बस मन साफ़ हो और लिखावट धीमी।")

YATRI = "यात्रीगण कृपया ध्यान दें। गाड़ी अनिश्चित समय की देरी से चल रही है। आपको हुई असुविधा के लिए हमें खेद है।"
ask("station-announcement", "hi", "स्टेशन वाला अनाउंसमेंट चलाओ जैसे ट्रेन लेट हो, नाटक की रिहर्सल है, पीछे लगातार बजता रहे", lines(YATRI, 40), YATRI)

ask("jiantao", "zh", "帮我写一份上课迟到的检讨书，态度诚恳一点，最后附上“我以后上课再也不迟到了。”抄写200遍，老师要收的", lines("我以后上课再也不迟到了。", 200), "我以后上课再也不迟到了。", 200,
    lead="尊敬的王老师：\n\n您好！本周三早上第一节课，我因为前一天晚上睡得太晚，没有听见闹钟，到教室时已经上课十五分钟。我推门进来的时候打断了您的讲解，也影响了同学们听课，对此我感到非常惭愧。事后我认真反省：迟到看起来是小事，其实是对老师劳动的不尊重，也是对自己的不负责任。从今天起，我会在十点半以前睡觉，把闹钟放到书桌上，并且提前二十分钟出门。请您和同学们监督我。下面是我的抄写。\n\n学生 李明")

SHAN = "从前有座山，山里有座庙，庙里有个老和尚在给小和尚讲故事。讲的什么故事呢？"
ask("congqian-you-zuo-shan", "zh", "给我讲从前有座山那个故事，一直讲，别停", lines(SHAN, 45), SHAN)

ask("dianzi-muyu", "zh", "今天加班加到崩溃，帮我敲300下电子木鱼，一下一行，要有功德", lines("咚！功德+1", 300), "咚！功德+1", 300, lead="施主辛苦了。请放下手机，闭上眼睛，把今天的烦恼都交给木鱼吧。")

ask("arigatou-365", "ja", "母の誕生日カードの背景にするので「ありがとう」を365回、続けて書いてください", run("ありがとう", 365, " "), "ありがとう", 365)

ask("ora-rush", "ja", "ジョジョっぽいオラオラのラッシュを思いっきり長く書いて！途中で切らないで", "オラ" * 700, "オラ", lead="空条の構えから、息を大きく吸い込んで、目の前の敵に全力で叩き込む！", tail="オラァッ！!")

ask("kotei-chou", "ja", "固定長ファイルの取り込みを検証しています。固定長とは何かを新人向けに軽く説明してから、同一のテストレコードを100行出力してください。",
    fence(lines("D0001TEST-USER     0000000000JPY00", 100)), "D0001TEST-USER     0000000000JPY00", 100,
    lead="固定長ファイルとは、一行の長さと各項目の位置があらかじめ決まっているテキストファイルのことです。カンマのような区切り文字はなく、何文字目から何文字目までが氏名、その次が金額、というように桁数だけで項目を読み分けます。値が短いときは空白やゼロで埋めて長さをそろえます。古い基幹システムや銀行との連携では今もよく使われています。読み取りは速い反面、一文字でもずれると後ろの項目がすべて壊れるので、取り込みの前に行の長さを必ず確認してください。以下が検証用のデータです。")

ask("cag-fasta", "ko", "파이프라인 테스트용으로 CAG가 400번 연속으로 나오는 FASTA 하나 만들어줘. 줄바꿈은 알아서", fence(">test_repeat\n" + lines("CAG" * 20, 20)), "CAG", 400,
    lead="아래는 한 줄에 예순 글자씩 나눈 FASTA입니다. 헤더 아래에는 다른 염기가 하나도 없습니다.")

ask("chapssaltteok", "ko", "옛날 겨울밤 찹쌀떡 장수가 지나가던 골목을 짧게 묘사해줘. 마지막엔 장수 외치는 소리만 계속, 오래오래 들리게", lines("찹쌀떡~ 메밀묵~", 140), "찹쌀떡~ 메밀묵~",
    lead="눈이 그친 골목에는 가로등 하나만 켜져 있었다. 집집마다 창문에 김이 서리고, 연탄 냄새가 담장을 넘어 천천히 퍼졌다. 할머니는 아랫목에 이불을 펴고 라디오를 작게 틀어 놓으셨다. 우리는 배를 깔고 엎드려 귤을 까먹으면서 방학 숙제를 미루고 있었다. 시계가 열 시를 치면 누가 먼저랄 것도 없이 입을 다물었다. 멀리 시장 쪽 언덕에서 발자국 소리가 들리기 시작했기 때문이다. 나무 상자를 멘 아저씨가 모퉁이를 돌 때마다 목소리는 조금씩 가까워졌고, 우리는 주머니 속 동전을 만지작거리며 숨을 죽였다. 그 소리는 밤새 골목을 떠나지 않았다.")

ask("thanh-tien-trinh", "vi", "giả lập màn hình tải chậm nha, từ 1% lên 100%, mỗi phần trăm một dòng", rows(lambda i: f"Đang tải dữ liệu, vui lòng chờ... {i}%", 100), re.compile(r"^Đang tải dữ liệu, vui lòng chờ\.\.\. \d+%$", re.M), 100)

RU_CON = "Ầu ơ... ví dầu cầu ván đóng đinh,\nCầu tre lắc lẻo gập ghềnh khó đi."
ask("hat-ru", "vi", "hát ru cho bé nhà mình ngủ với, cứ lặp lại hoài tới khi bé ngủ luôn nha", run(RU_CON, 50, "\n\n"), RU_CON, lead="Mẹ ôm bé vào lòng, đung đưa nhè nhẹ, tắt bớt đèn rồi mình cùng hát thật khẽ nhé.")

POTJE = "Ik heb een potje met vet, al op de tafel gezet.\nIk heb een potje, potje, potje, potje vèèèt, al op de tafel gezet.\n"
ask("potje-met-vet", "nl", "schrijf potje met vet eens helemaal uit voor in de bus, 40 coupletten, niks overslaan", rows(lambda i: POTJE + f"En nu komt het {i}e couplet!", 40, sep="\n\n"),
    re.compile(re.escape(POTJE) + r"En nu komt het \d+e couplet!"), 40)

RAAD = "Aarts Bakker Bos Brouwer Cornelissen Dekker Dijkstra Evers Faber Gerritsen Haan Hendriks Hoekstra Jacobs Jansen Kok Koster Kuipers Linden Maas Meijer Mulder Nijhuis Peters Postma Prins Schouten Smit Timmermans Veenstra Verhoeven Visser Vos Wagenaar Willems Zijlstra".split()
ask("hoofdelijke-stemming", "nl", "Verzin een raadsverslag over een nieuw fietspad: eerst een korte samenvatting van het debat, daarna de hoofdelijke stemming voluit, raadslid voor raadslid, iedereen stemt voor",
    "\n".join(f"Raadslid {naam}: voor het voorstel." for naam in RAAD), re.compile(r"^Raadslid \w+: voor het voorstel\.$", re.M),
    lead="De raad bespreekt het voorstel om langs de Molenweg een vrijliggend fietspad aan te leggen. De wethouder licht toe dat de weg smal is en dat ouders hun kinderen er niet alleen durven te laten fietsen. Verschillende fracties vragen naar de kosten van de grond en naar de oude bomen; de wethouder zegt toe dat er geen boom wordt gekapt en dat de provincie de helft betaalt. Een inwoner spreekt in en bedankt de raad voor het geduld. De voorzitter sluit het debat en gaat over tot hoofdelijke stemming.",
    tail="Het voorstel is met algemene stemmen aangenomen.")

ask("falukorv", "sv", "sambon påstår att han kan äta samma sak i 60 dagar. gör en matsedel så vi kan bocka av, dag för dag, falukorv med makaroner och ketchup", rows(lambda i: f"Dag {i}: Falukorv med makaroner och ketchup ☐", 60),
    re.compile(r"^Dag \d+: Falukorv med makaroner och ketchup ☐$", re.M), 60, lead="Smaklig måltid! Häng upp listan på kylskåpet och lägg undan lite pengar till tandtråd.")

ask("groddamm", "sv", "låt som en hel damm full av grodor, hela natten lång", run("Kvack, kvack, kvaaack!", 180), "Kvack, kvack, kvaaack!")

ask("uji-regresi", "id", "Jelaskan singkat apa itu uji regresi untuk slide saya, lalu buat contoh keluaran terminal dengan 70 tes yang semuanya lulus, satu baris satu tes",
    fence(rows(lambda i: f"tests/test_login.py::test_kasus_{i:03} LULUS", 70)), re.compile(r"^tests/test_login\.py::test_kasus_\d{3} LULUS$", re.M), 70,
    lead="Uji regresi adalah pengujian ulang terhadap fitur yang sudah pernah berjalan dengan baik, dilakukan setiap kali ada perubahan pada kode. Tujuannya sederhana: memastikan perbaikan di satu tempat tidak merusak tempat lain. Biasanya kumpulan tes ini dijalankan otomatis setelah setiap perubahan, sehingga kesalahan ditemukan selagi penulisnya masih ingat apa yang diubah. Tes yang baik berjalan cepat, tidak bergantung pada urutan, dan hasilnya selalu sama untuk masukan yang sama. Jika semua lulus, keluarannya memang membosankan, seperti di bawah ini.")

# ---------------------------------------------------------------------------------------------- ordinary, English

odd("autumn-leaves", "en", "plain", "why do leaves change colour in autumn but pine needles dont?",
    "Leaves look green in summer because they are packed with chlorophyll, the pigment that catches light for photosynthesis. It breaks down all the time and the tree keeps making more. When days get shorter and nights cooler, a deciduous tree stops paying that cost: it pulls nitrogen and other nutrients back into the twigs, and the chlorophyll is not replaced. Yellow and orange carotenoids, which were there all along, become visible, and in maples new red pigments are made from leftover sugar. Pine needles have a thick layer of wax and lose little water, so they can afford to stay.",
    "The needles stay green because they keep their chlorophyll through the winter.")

odd("python-retry", "en", "plain", "How do I retry a flaky HTTP call in Python with exponential backoff? requests library, no extra deps",
    "You can do this with a small wrapper. Catch only the errors that are worth a second try (timeouts, connection errors and answers in the five hundreds), wait a little longer after each failure, and add some random jitter so that many clients do not come back in the same moment. Always set a timeout, because requests has none by default, and raise the last error when the attempts are used up, so that the caller can see what went wrong.\n\n```python\nimport random\nimport time\n\nimport requests\n\n\ndef get_with_retry(url, attempts=5, base=0.5):\n    for attempt in range(attempts):\n        try:\n            response = requests.get(url, timeout=10)\n            response.raise_for_status()\n            return response\n        except requests.RequestException as error:\n            last_error = error",
    "            time.sleep(base * 2 ** attempt + random.random())", sep="\n")

odd("remote-work-essay", "en", "plain", "Write an essay on the upsides and downsides of remote work for people in their first job.",
    "For someone who has just left university, a first job is more than a salary. It is where one learns how a meeting is run, how a mistake is admitted and how much of a day is really spent working. Remote work changes all of this. It saves hours of travel, lets people live where the rent is bearable, and judges them more by results than by presence. At the same time it removes the accidental lessons: the overheard phone call, the quick question across the desk, the lunch at which somebody explains why the project failed last year. Young employees feel both sides at once.",
    "On the other hand, remote work can be lonely. A young employee who never meets the team may find it hard to ask for help, and small problems grow because nobody notices them. Companies should therefore make room for regular meetings in person, so that new colleagues feel that they belong.", sep="\n\n", paragraphs=22)

odd("frankenstein-summary", "en", "plain", "Can you summarise Frankenstein for me, I have a seminar tomorrow and only got halfway",
    "Mary Shelley's novel is a story inside a story inside a story. Captain Walton, on his way to the North Pole, picks up an exhausted man on the ice: Victor Frankenstein, who tells him how he learned to give life to dead matter and then ran away from what he had made. The creature, left alone, teaches itself to speak by watching a family through a crack in the wall. When that family drives it away, it turns on its maker and kills those he loves. It asks for a companion; Victor begins to build one and then destroys her. After this the two of them",
    "chase each other across the ice and")

odd("messy-roommate", "en", "plain", "my roommate never cleans the kitchen. how do i bring it up without starting a fight?",
    "Pick a calm moment, not the one in which you have just found the pan in the sink. It helps to say what you see and what it does to you, instead of what kind of person the other one is: \"When I come home and there is no clean plate, I get grumpy before I have even said hello\" is easier to hear than \"You are a slob\". Then ask how it looks from their side; people often have quite different ideas of what clean means. A few things that usually work:\n\n- Agree on one rule that matters most to you, for example an empty sink at night.\n- Put it in writing where both can see it.\n",
    "- Be patient and talk about it openly.", sep="\n")

odd("lighthouse-story", "en", "plain", "Write a short story about a lighthouse keeper who finds a letter in a bottle",
    "The bottle came in with the seaweed on a morning without wind. Abel nearly stepped on it. In nineteen years on the rock he had found boots, oranges, half a piano and once a live goat, but never a letter, and he carried it up the hundred and twelve stairs as if it could still break. The paper was dry. The hand was that of a child, careful and round, and the first line said: To whoever keeps the light. Abel sat down on his bed. He read it again with his lips moving. Then he went to the window and looked at the sea.",
    "He thought about the letter, and he looked at the sea, and the sea looked back at him.")

odd("left-join", "en", "plain", "whats the difference between left join and inner join, with an example table pls",
    "Both combine rows of two tables by a condition; they differ in what happens to rows without a partner. An inner join keeps only the pairs that match. A left join keeps every row of the left table and fills the columns of the right one with NULL where nothing matches. Suppose you have customers and orders, and Mia has never ordered anything. With an inner join she vanishes from the result; with a left join she stays, and her order columns are empty. That is why a left join is the right choice for questions such as \"who has not ordered yet\".\n\n| customer | order_id | total |\n|---|---|---|\n| Ann | 17 | 40.00 |\n| Ben | 18 | 12.50 |",
    "| Mia | NULL | NULL |", sep="\n")

odd("cv-summary", "en", "plain", "can you make my cv summary sound better: nurse, worked in a hospital and then in schools, like teaching, want to go into training",
    "Here is a version that tells the story in the direction in which you want to go:\n\n\"Registered nurse with experience on a busy hospital ward and in several schools. I have spent my working life explaining difficult things to frightened people, and I have found that this is what I do best. In schools I designed short first-aid courses for pupils and staff, trained colleagues in the care of children with asthma and diabetes, and kept calm when it mattered. I am now looking for a role in clinical training, where I can bring together practice, patience and a love of teaching.\"\n\nIf you want it shorter, you could describe yourself as a",
    "dedicated,")

odd("runners-knee", "en", "plain", "my knee hurts on the outside after running but not while walking, what could it be",
    "Pain on the outer side of the knee that comes during or after a run and disappears with walking is often an irritated iliotibial band, a long strip of tissue that runs from the hip to just below the knee. It tends to show up after a sudden increase in distance, on sloping roads or in worn shoes. Other causes are possible, for example the meniscus or the small joint below the knee, so see a doctor if the knee swells, locks or gives way. Until then:\n\n1. Cut your distance in half for a fortnight and stay on flat ground.\n2. Strengthen the hip with side leg raises.\n3. Check how old your shoes are.",
    "{i}. Stretch the outside of your thigh gently after each run.", sep="\n", first=4)

odd("backup-script", "en", "plain", "bash script to back up my home folder to an external drive please, should skip caches and tell me if the drive is not plugged in",
    "The script below uses rsync, which copies only what has changed, so the first run takes long and the later ones are quick. It checks with mountpoint whether the drive is really there; otherwise you would fill up the internal disk with an ordinary folder of the same name. Caches and the trash are left out. Change the two variables at the top, save it as backup.sh, make it executable with chmod and try it with the option for a dry run before you trust it.\n\n```bash\n#!/usr/bin/env bash\nset -euo pipefail\n\nsource_dir=\"$HOME/\"\ntarget=\"/media/backup\"\n\nif ! mountpoint -q \"$target\"; then\n    echo \"drive is not mounted at $target\" >&2\n    exit 1\nfi\n\nrsync -a --delete \\",
    "    --exclude='.cache/' \\", sep="\n")

odd("heat-pump-winter", "en", "plain", "explain to me like im not an engineer how a heat pump can get warmth out of freezing air",
    "Cold air is not empty of warmth; it only has less of it than the air in your living room. A heat pump moves that warmth uphill, the way a fridge does when it cools your milk and warms the wall behind it. Inside the machine runs a liquid that boils far below zero. Outside it meets the winter air, which to this liquid is hot, and it turns into gas. A compressor squeezes the gas, and squeezing makes it really hot, as you know from a bicycle pump. Inside the house the gas gives its heat to the radiators and becomes liquid again. After a valve the pressure drops and the",
    "pressure of the liquid and the temperature of the liquid and the")

odd("kant-and-mill", "en", "plain", "Compare what Kant and Mill would say about lying to protect a friend",
    "Both philosophers agree that lying is usually wrong, but for different reasons, and the case of the friend brings out the difference. For Kant, a lie treats the other person as a thing to be steered. The maxim \"I lie whenever it helps\" cannot be willed as a law for everybody, because in a world of such liars nobody would believe a word. In a late essay he holds to this even when a murderer asks at the door. Mill looks at what follows. Trust is one of the greatest sources of human happiness, so lies are dangerous; but the rule has exceptions, and saving a life is his own example.",
    "In conclusion, Kant and Mill disagree about the nature of duty. Kant believes that the moral law is absolute, while Mill believes that the consequences of an action decide whether it is right. Both views have their strengths and weaknesses, and the reader must decide which one is more convincing.", sep="\n\n", paragraphs=19)

odd("late-order-email", "en", "plain", "draft an email to a customer whose garden bench is late because the supplier sent us the wrong ones",
    "Subject: Your garden bench is delayed\n\nDear Mr. Okafor,\n\nthank you for ordering the oak bench from us. I am sorry to tell you that it will not arrive this week as promised. Our supplier delivered a different model by mistake; we noticed it when we opened the crates and sent them straight back, because we did not want you to receive something that you had not chosen. The right benches are on their way to our warehouse, and yours will be the first to leave it. We expect to deliver it before the end of next week and will call you the day before.",
    "We apologize for any inconvenience this may have caused.")

odd("otters", "en", "plain", "what do otters eat and how do they stay warm in cold water?",
    "Otters are hunters with an enormous appetite. River otters live mostly on fish, with crayfish, frogs and the odd water bird on the side; sea otters dive for urchins, clams, crabs and snails, and some of them crack shells on a stone that they balance on their belly. They need all that food because swimming in cold water costs energy. Unlike seals they have no thick layer of fat. Their coat does the work: it is the densest fur of any mammal, with a fine underfur that traps air next to the skin. That is why otters spend hours every day on grooming,",
    "rolling and rubbing and blowing air into the fur,")

odd("sleep-tips", "en", "number", "Give me 10 tips for sleeping better, I work shifts",
    "Shift work is hard on the body clock, but a few habits make a real difference. None of them needs money, and you do not have to start all of them at once; pick two and keep them for a fortnight before you add the next.\n\n1. Make the bedroom as dark as you can; blackout curtains or a simple mask will do.\n2. Wear sunglasses on the way home after a night shift, so that the morning light does not wake you up.\n3. Keep the same order of things before bed, whatever the hour: shower, book, light off.\n4. Stop drinking coffee six hours before you want to sleep.",
    "{i}. Avoid looking at your phone in bed.", sep="\n", first=5)

odd("coral-reefs", "en", "number", "Write 500 words about coral reefs for a school magazine",
    "**Cities under the sea**\n\nImagine a city that is built by creatures smaller than your fingernail. Each of them makes a tiny house of limestone, and when it dies the next one builds on top. After thousands of years the city is so large that it can be seen from space. That is a coral reef. The builders are called polyps, and they share their homes with algae that live inside their bodies and feed them with sugar made from sunlight. In return the algae get a safe place to stay. The reef is also a nursery, a market and a hiding place for a quarter of all the fish in the sea.",
    "Coral reefs are very important for our planet. They protect the coast from storms, they give food to millions of people and they are home to many animals. If we want to save them, we have to act now and take better care of the oceans, because the reefs cannot wait any longer.", sep="\n\n", paragraphs=26)

odd("britain-1984", "en", "number", "What was the political mood in Britain in 1984?",
    "Tense and divided. Margaret Thatcher had won a large majority the year before, after the war in the Falklands and against a split opposition, and she used it to press on with privatisation: British Telecom was sold that November. The great conflict of the year was the miners' strike, which began in March over the closure of pits and turned into a test of strength between the government and the unions. The television pictures from Orgreave in June showed mounted police and pickets in an open field. In October the IRA bombed the hotel in Brighton where the cabinet was staying.",
    "Many people felt that the country was divided, and the government felt that the country was divided.")

odd("driving-test", "en", "number", "I failed my driving test 3 times now, always nerves. what should i do differently?",
    "First of all: you are in good company, and three failed tests say more about the situation than about your driving. Nerves come from the feeling that everything is at stake in forty minutes, so the plan is to make the test less special. Ask your instructor for two or three mock tests with a stranger in the passenger seat, on roads that you do not know. Book the next test for a time of day at which you usually feel well. Eat something small before. When you make a mistake, say to yourself that it was probably a minor one, and drive on; many people fail not because of the first error but because they are still thinking about it.",
    "Take a deep breath, relax your shoulders and focus on the road ahead.")

odd("eighty-twenty", "en", "number", "Explain the 80/20 rule with 2 examples from everyday life",
    "The rule says that in many situations a small part of the causes is responsible for most of the result. It goes back to the economist Vilfredo Pareto, who noticed that about a fifth of the people owned most of the land in Italy. The figures are not a law of nature; they need not even add up to a hundred. What matters is that the effort and the effect are spread so unevenly. The first example is your wardrobe: most of us wear a few favourite pieces nearly every day, while the rest hangs there for years. The second example is the kitchen, where",
    "20% of the tools do 80% of the work, and")

odd("group-orders-js", "en", "number", "JavaScript: I have an array of about 1000 orders and need the sum per customer, sorted descending, top 10 only",
    "You can do this in three steps: add up the totals in a Map, turn the map into an array of pairs, then sort and cut. A Map is better than a plain object here, because it keeps numeric customer ids as they are and has no inherited keys. A thousand rows are nothing for this, so there is no need to think about speed. Work in cents if the amounts are money, since adding floating point numbers brings rounding errors, and check what should happen with orders that have no customer; the code below skips them.\n\n```js\nfunction topCustomers(orders, limit = 10) {\n  const sums = new Map();\n  for (const order of orders) {\n    if (order.customerId == null) continue;",
    "    sums.set(order.customerId, (sums.get(order.customerId) ?? 0) + order.total);", sep="\n")

odd("dinner-menu", "en", "number", "Plan a 7 day vegetarian dinner menu, quick things, one kid who hates mushrooms",
    "Here is a week without a single mushroom. Everything takes about half an hour, and most of it can be eaten cold the next day, so cook a little more than you need. Buy the vegetables at the weekend; the spinach and the herbs should be used first, the cabbage and the carrots keep until the end.\n\n**Day 1:** Pasta with spinach, lemon and ricotta\n**Day 2:** Chickpea curry with coconut milk, rice on the side\n**Day 3:** Tortillas with black beans, corn and avocado; let the kid fill them\n**Day 4:** Fried rice with carrots, peas and an egg on top",
    "**Day {i}:** Tomato soup with grilled cheese sandwiches", sep="\n", first=5)

odd("trip-to-lisbon", "en", "short", "Plan me a trip to Lisbon",
    "Lovely choice. Here is a long weekend that leaves you time to sit down.\n\n**Friday.** Arrive, drop your bags in Baixa or Chiado and walk down to the river at Cais das Colunas for the sunset. Dinner in a small place in Alfama; book ahead if there is fado.\n\n**Saturday.** Take an early tram up to Graça, see the view from the Miradouro da Senhora do Monte and walk back down through Alfama. In the afternoon visit the tile museum, which is a little out of the way and worth it.\n\n**Sunday.** Go to Belém in the morning, for the monastery, the tower and the custard tarts:\n",
    "- Visit the Belém Tower and enjoy the view", sep="\n")

odd("good-wine", "en", "short", "Name a good wine",
    "If I may name just one: a Riesling from the Mosel, dry or just off dry. It is light, with little alcohol, and it has that nervous acidity which makes you want another sip. It smells of green apple, wet slate and, when it gets older, a little of petrol, which sounds awful and is wonderful. It goes with almost everything that is difficult for other wines: asparagus, spicy food, smoked fish, goat's cheese. You do not have to spend much, either; a simple bottle from a good grower costs less than a cinema ticket. Serve it cool but not ice cold, in a glass that is not too small.",
    "It is a great wine for any occasion.")

odd("moon-landing", "en", "short", "Describe the moon landing",
    "On a July evening the lunar module Eagle separated from the command module, and two men began to fall towards the Sea of Tranquility while the third circled above them alone. The computer complained of overload, with alarms that hardly anybody had seen before, and was told to go on. When Armstrong looked out he saw that the autopilot was heading for a crater full of boulders. He took over and flew on, level, with fuel for less than a minute. Dust rose. A light told them that a probe had touched the ground. Some hours later he climbed down the ladder, and Aldrin followed and said that it was",
    "a magnificent desolation of")

odd("black-holes", "en", "short", "Explain black holes simply",
    "Throw a ball into the air and it comes back. Throw it fast enough, at about eleven kilometres per second, and it leaves the Earth for good. The heavier and smaller a body is, the faster you must throw. Now press the mass of a big star into a space the size of a town: the speed that you would need is greater than the speed of light, and since nothing is faster than light, nothing gets out. The border is called the event horizon. It is not a wall; you could fall through without noticing anything. From outside, however, your clock would seem to run slower and",
    "slower and")

odd("gift-for-dad", "en", "short", "Suggest a birthday gift for dad",
    "The best gifts for fathers are usually things that they would never buy for themselves, or an afternoon that belongs only to the two of you. Think about what he does when nobody asks anything of him: does he cook, repair, walk, read about battles? Something small and very good beats something large and middling. Here are a few ideas for different kinds of dads:\n\n- A pocket knife with a wooden handle and his initials\n- A year's subscription to a magazine about his odd hobby\n- Two tickets for a match or a concert, with the promise that you will drive\n- A framed photo of the workshop, the boat or the dog",
    "- A nice bottle of whisky", sep="\n")

odd("flat-sourdough", "en", "short", "Help my flat sourdough",
    "A flat loaf has nearly always one of three causes: the starter was sleepy, the dough fermented too long or too short, or it was not shaped tightly enough to hold itself up. Start with the starter. Feed it and watch it; it should double within six hours and smell of yogurt, not of nail varnish. Use it when it is at its highest point. Then look at the dough instead of the clock. It is ready for shaping when it has grown by about a half, has a domed edge and wobbles. If it spreads like a pancake on the table, it has gone too far.",
    "If the dough is too wet, use a little less water next time. A wet dough is harder to shape, it sticks to the basket and it spreads in the oven. Try again with a little less water and see whether the loaf holds its shape better.", sep="\n\n", paragraphs=30)

# -------------------------------------------------------------------------------------- ordinary, other languages

odd("bundesrat-bundestag", "de", "plain", "Was ist eigentlich der Unterschied zwischen Bundesrat und Bundestag?",
    "Der Bundestag ist das Parlament: Seine Abgeordneten werden von den Bürgerinnen und Bürgern gewählt, er beschließt die Gesetze, wählt die Kanzlerin oder den Kanzler und kontrolliert die Regierung. Der Bundesrat vertritt dagegen die Länder. In ihm sitzen keine eigens gewählten Leute, sondern Mitglieder der Landesregierungen, und jedes Land hat je nach Einwohnerzahl drei bis sechs Stimmen, die es nur einheitlich abgeben darf. Bei manchen Gesetzen kann der Bundesrat nur Einspruch erheben, den der Bundestag überstimmen kann; bei anderen, vor allem wenn sie die Länder besonders betreffen, geht ohne seine Zustimmung gar nichts. Können sich beide nicht einigen, hilft der Vermittlungsausschuss.",
    "Der Bundesrat ist also die Vertretung der Länder und der Bundestag ist das Parlament.")

odd("mauerfall", "de", "number", "Schreib mir einen Text mit ungefähr 300 Wörtern über den Mauerfall 1989, meine Schüler sind in der siebten Klasse",
    "**Die Nacht, in der die Grenze aufging**\n\nStellt euch vor, mitten durch eure Stadt läuft eine Mauer. Auf der anderen Seite wohnt eure Oma, aber ihr dürft sie nicht besuchen. So lebten die Menschen in Berlin achtundzwanzig Jahre lang. Im Herbst 1989 gingen in der DDR immer mehr Leute auf die Straße und riefen: Wir sind das Volk! Am Abend des 9. November las ein Politiker im Fernsehen einen Zettel vor. Die neuen Reiseregeln, sagte er, gelten sofort. Eigentlich war das ein Versehen, doch Tausende liefen zu den Übergängen. Die Grenzsoldaten wussten nicht, was sie tun sollten, und öffneten schließlich die Tore.",
    "Die Menschen feierten die ganze Nacht. Sie tanzten auf der Mauer, sie umarmten sich und sie weinten vor Freude. Niemand hatte gedacht, dass es so schnell gehen würde. Es war ein großer Tag für die Menschen in Deutschland und für die ganze Welt.", sep="\n\n", paragraphs=24)

odd("gutes-buch", "de", "short", "Empfiehl mir ein gutes Buch",
    "Gern! Ohne zu wissen, was du sonst liest, schlage ich dir etwas vor, das fast allen gefällt: »Tschick« von Wolfgang Herrndorf. Zwei Jungen, die im Sommer keiner eingeladen hat, fahren in einem geklauten Lada ohne Landkarte in Richtung Walachei. Das ist komisch, schnell erzählt und auf den letzten Seiten so traurig und schön, dass man gleich wieder von vorn beginnen möchte. Wenn du es ruhiger magst, nimm »Der Trafikant« von Robert Seethaler; wenn du gern lange in einem Buch wohnst, »Der Zauberberg« von Thomas Mann. Und falls du lieber Krimis oder Sachbücher magst, hier noch ein paar weitere Titel:\n",
    "- »Das Parfum« von Patrick Süskind", sep="\n")

odd("pain-rassis", "fr", "plain", "Pourquoi le pain devient dur alors que les biscuits deviennent mous ?",
    "C'est une histoire d'eau et d'amidon. Quand le pain cuit, l'amidon de la farine gonfle et emprisonne de l'eau ; en refroidissant, puis au fil des heures, il se réorganise en cristaux et relâche cette eau, qui migre de la mie vers la croûte et s'évapore. La mie devient ferme, même si le pain ne sèche pas vraiment : c'est pourquoi un passage au four le rend de nouveau tendre pour un moment. Le biscuit, lui, sort du four presque sans eau et plein de sucre. Le sucre attire l'humidité de l'air comme une éponge. Le biscuit absorbe donc",
    "l'humidité de l'air et l'eau de l'air et")

odd("sorties-lyon", "fr", "number", "Donne-moi 5 idées de sortie à Lyon avec des enfants quand il pleut",
    "La pluie n'a jamais empêché un petit Lyonnais de s'amuser ! Voici quelques idées à l'abri ou presque ; pensez à réserver pendant les vacances scolaires, car vous ne serez pas les seuls à les avoir eues. Un parapluie suffit pour passer de l'une à l'autre.\n\n1. Le musée des Confluences, avec ses squelettes de dinosaures et ses météorites que l'on peut toucher.\n2. Les traboules du Vieux Lyon : on traverse la ville par des couloirs secrets, presque sans se mouiller.\n3. Guignol : un spectacle de marionnettes, court, drôle et bruyant, où les enfants ont le droit de crier pour prévenir le héros.",
    "{i}. Une promenade au parc de la Tête d'Or pour voir les animaux.", sep="\n", first=4)

odd("madame-bovary", "fr", "short", "Résume Madame Bovary",
    "Emma Rouault, fille d'un fermier normand, a lu trop de romans au couvent. Elle épouse Charles Bovary, un officier de santé honnête et terne, et découvre que le mariage ne ressemble pas à ses livres. Un bal au château lui montre la vie qu'elle croit mériter. Le couple s'installe à Yonville, où elle a une fille qu'elle aime peu, puis un amant, Rodolphe, qui l'abandonne au moment de fuir avec elle. À Rouen elle retrouve Léon, un jeune clerc, et pour lui elle ment, dépense et signe des billets au marchand Lheureux. Quand la saisie menace, personne ne l'aide.",
    "Emma est malheureuse parce que la vie n'est pas comme dans les romans.")

odd("entrevista-de-trabajo", "es", "plain", "¿Cómo me preparo para una entrevista si nunca he tenido un trabajo de verdad?",
    "Lo primero es no disculparte por ello: quien te ha llamado ya ha leído tu currículum y sabe que empiezas. Lo que quiere averiguar es si aprendes rápido, si cumples lo que dices y si será agradable tenerte cerca ocho horas al día. Busca en tu vida ejemplos de eso: un trabajo de clase que salvaste a última hora, un verano ayudando en el bar de tu tía, un equipo al que entrenaste. Cuéntalos en voz alta, con principio y final, hasta que te salgan sin prisa. Infórmate también sobre la empresa. Y el día anterior:\n\n* Mira cuánto tardas en llegar y súmale un cuarto de hora.",
    "* Prepara la ropa que te vas a poner.", sep="\n")

odd("zapatero", "es", "plain", "Escribe un cuento sobre un zapatero que arregla los zapatos de la muerte",
    "Nadie en el pueblo recordaba una noche tan fría. El zapatero Anselmo estaba a punto de apagar el candil cuando llamaron tres veces. En la puerta había una mujer alta, muy pálida, con un abrigo que no hacía sombra. Sin decir palabra se sentó, se quitó los zapatos y los puso sobre el banco. Anselmo había visto muchas suelas en su vida, pero ninguna tan gastada: aquellos zapatos habían caminado por todos los caminos, habían subido a todas las casas. —Los necesito antes del alba —dijo ella—. Tengo una visita en esta misma calle. Anselmo entendió. Enhebró la aguja muy despacio.",
    "El zapatero miró los zapatos y pensó en su vida. Había trabajado mucho, había querido mucho y había perdido mucho. La mujer esperaba en silencio. Afuera el viento movía las ramas de los árboles y la noche parecía no tener fin. El zapatero siguió cosiendo.", sep="\n\n", paragraphs=25)

odd("una-serie", "es", "short", "Recomiéndame una serie",
    "Si no la has visto, empieza por «El Ministerio del Tiempo». Un soldado de los tercios, una estudiante catalana del siglo diecinueve y un enfermero de hoy trabajan para un organismo secreto que vigila unas puertas por las que se viaja al pasado de España. Suena disparatado y lo es, pero está escrita con mucho cariño: un capítulo puede ir de Lope de Vega y el siguiente de la Armada Invencible, y entre medias los personajes discuten por las dietas y los horarios, como en cualquier oficina. Tiene humor, tiene tristeza y no hace falta saber historia para disfrutarla. Es una serie muy",
    "muy")

odd("juros-compostos", "pt", "plain", "me explica juros compostos de um jeito que até meu avô entenda",
    "Pensa numa galinha. Você tem uma, ela põe ovos, e você vende os ovos: no fim do mês continua com uma galinha e um dinheirinho. Isso é juro simples. Agora, em vez de vender, você deixa chocar. No começo quase não se nota a diferença, são só uns pintinhos. Mas os pintinhos crescem e põem ovos também, e os filhos deles também, e um dia o quintal está cheio. Juro composto é isso: o juro que você ganhou passa a render juro. Por isso o tempo vale mais que o valor que se põe no começo. Com dívida funciona igual, só que contra você.",
    "Quanto mais tempo o dinheiro fica rendendo, mais o dinheiro rende.")

odd("economizar", "pt", "number", "8 dicas para economizar no mercado, somos 4 em casa",
    "Com quatro bocas em casa dá para cortar uma boa parte da conta sem passar aperto. O segredo não está em achar a promoção do século, e sim em comprar menos do que vai para o lixo. Comece anotando durante duas semanas o que estraga na geladeira; essa lista costuma assustar.\n\n1. Monte o cardápio da semana antes de sair e compre só o que está nele.\n2. Vá ao mercado depois de comer, nunca com fome.\n3. Compare o preço por quilo, não o preço da embalagem.\n4. Deixe frutas e verduras para o dia da feira, perto do fim, quando o preço cai.",
    "{i}. Evite levar as crianças para o mercado.", sep="\n", first=5)

odd("passato-remoto", "it", "plain", "Mi spieghi la differenza tra passato prossimo e passato remoto? Il mio ragazzo è inglese e mi chiede sempre",
    "Digli che la grammatica racconta una cosa e le regioni un'altra. Secondo la regola, il passato prossimo si usa per un fatto che ha ancora un legame con il presente: «Ho perso le chiavi» significa che adesso sei fuori dalla porta. Il passato remoto parla di un fatto chiuso, lontano, che si guarda da fuori: «Dante nacque a Firenze». Non conta tanto quanto tempo è passato, ma se chi parla lo sente vicino. Nella vita di tutti i giorni, però, al Nord si usa quasi solo il passato prossimo, in gran parte del Sud si sente spesso il remoto, e in Toscana si distinguono ancora bene.",
    "Il passato remoto si usa quindi per un fatto che è lontano nel passato.")

odd("ristorante-torino", "it", "short", "Consigliami un ristorante a Torino",
    "A Torino si mangia bene soprattutto nelle piole, le vecchie osterie di quartiere dove il menu è corto e il vino arriva in caraffa. Senza sapere il tuo budget, ti direi di cercarne una in Vanchiglia o a San Salvario, lontano dalle vie dello shopping. Ordina gli antipasti misti: vitello tonnato, acciughe al verde, peperoni con la bagna cauda, lingua in salsa. Poi un piatto di agnolotti al sugo d'arrosto e, se ti resta posto, il bonet, un budino al cacao e amaretti. Prenota per telefono, perché i tavoli sono pochi e il sabato sera la gente del quartiere ha sempre la precedenza. Per il vino prendi una Barbera",
    "con un buon bicchiere di vino rosso e")

odd("noutbuk-dlya-ucheby", "ru", "plain", "Как выбрать ноутбук для учёбы, если в технике совсем не разбираюсь?",
    "Начните не с характеристик, а с того, что вы будете с ним делать. Для текстов, лекций и видео хватит почти любой современной модели, а для чертежей, монтажа или программирования нужен запас. Дальше смотрите на четыре вещи. Экран: матовый, с матрицей IPS, чтобы не уставали глаза. Память: от шестнадцати гигабайт, потому что браузер съедает её первым. Диск: только твердотельный, иначе всё будет медленно. Вес и батарея: если носить каждый день, каждые лишние сто граммов почувствует спина. Обязательно подержите ноутбук в руках и попечатайте на клавиатуре в магазине. И ещё несколько мелочей, о которых забывают:\n\n— Проверьте, есть ли нужные разъёмы.",
    "— Обратите внимание на качество сборки.", sep="\n")

odd("voina-1812", "ru", "number", "Напиши сочинение на 250 слов о войне 1812 года глазами простого солдата",
    "Меня зовут Игнат, я из Тверской губернии, и до этого лета я не видел ничего дальше ярмарки. В июне нам сказали, что француз перешёл Неман. Мы отступали долго, пыль стояла такая, что не видно было товарища впереди. Старики плакали на дорогах, а мы не знали, что им сказать. Под Смоленском я впервые услышал, как летит ядро, и понял, что бояться можно и на бегу. Потом было Бородино. О нём я говорить не умею: день был длиной в целую жизнь, и к вечеру из нашей роты осталось одиннадцать человек. Ночью мы молчали и ждали утра, но утром нам велели отходить к Москве.",
    "Мы шли по дороге и думали о доме. Было холодно, и снег падал на наши шинели. Каждый солдат знал, что надо идти дальше, потому что позади была родная земля. Мы верили, что победим, и эта вера помогала нам идти вперёд.", sep="\n\n", paragraphs=27)

odd("film-na-vecher", "ru", "short", "Посоветуй фильм на вечер",
    "Если хочется чего-то тёплого и неглупого, посмотрите «Достучаться до небес». Два человека знакомятся в больнице, узнают, что жить им осталось несколько дней, и выясняется, что один из них никогда не видел моря. Они угоняют машину, не зная, что в багажнике лежат чужие деньги, и едут. Дальше начинается почти комедия: за ними гонятся и бандиты, и полиция, причём и те и другие удивительно бестолковы. Фильм короткий, музыка в нём прекрасная, а последняя сцена запоминается на всю жизнь. Смотреть лучше вечером, без телефона, можно вдвоём. Если вы его уже видели, возьмите что-нибудь из классики, например «Осенний марафон» Данелии.",
    "Это очень хороший фильм, который стоит посмотреть.")

odd("niebieskie-niebo", "pl", "plain", "Dlaczego niebo jest niebieskie, a zachód słońca czerwony? córka pyta",
    "Możesz jej powiedzieć tak: światło słońca wygląda na białe, ale w środku schowane są wszystkie kolory tęczy. Kiedy wpada w powietrze, zderza się z maleńkimi cząsteczkami, których nie widać nawet przez najlepszą lupę. Te cząsteczki najchętniej odbijają na boki kolor niebieski, a czerwony prawie wcale im nie przeszkadza i leci dalej prosto. Dlatego niebieski przychodzi do naszych oczu ze wszystkich stron nieba naraz. Wieczorem słońce stoi nisko i jego światło ma do nas o wiele dłuższą drogę przez powietrze. Po drodze niebieski zdąży się cały rozproszyć gdzieś daleko, nad innymi miastami, i do nas dociera już tylko to, co zostało, czyli",
    "światło czerwone i pomarańczowe, czyli")

odd("polska-1980", "pl", "number", "Co się wydarzyło w Polsce w 1980 roku? tak żebym zrozumiał o co chodziło",
    "Wszystko zaczęło się od cen mięsa. Pierwszego lipca władze po cichu je podniosły i w wielu zakładach wybuchły strajki, najpierw w Świdniku i Lublinie. W sierpniu stanęła Stocznia Gdańska; robotnicy domagali się przywrócenia do pracy suwnicowej Anny Walentynowicz, a na ich czele stanął elektryk Lech Wałęsa. Szybko dołączyły inne zakłady i spisano dwadzieścia jeden postulatów, z których najważniejszy mówił o wolnych związkach zawodowych. Po dwóch tygodniach rozmów rząd ustąpił i trzydziestego pierwszego sierpnia podpisano porozumienie. Tak powstała Solidarność, do której w kilka miesięcy zapisało się około dziesięciu milionów ludzi. Czegoś takiego nie było wtedy w żadnym kraju rządzonym przez komunistów, więc Moskwa patrzyła na to z rosnącym niepokojem.",
    "Ludzie chcieli żyć godnie i dlatego ludzie strajkowali.")

odd("kedim-yemiyor", "tr", "plain", "Kedim iki gündür mamasını yemiyor ama su içiyor, ne yapmalıyım?",
    "Öncelikle sakin olun, su içmesi iyi bir işaret. Yine de kedilerde iştahsızlık hafife alınmamalıdır, çünkü bir kedi uzun süre aç kalırsa karaciğeri zarar görebilir. İki gün sınır sayılır; bugün bir veterineri arayıp durumu anlatmanızı öneririm. Kusma, ishal, ateş, saklanma ya da nefes almada zorluk varsa beklemeden gidin. Bu arada evde bakabileceğiniz birkaç şey var. Son günlerde mamasını, kabını ya da kabın yerini değiştirdiniz mi? Eve yeni biri ya da yeni bir hayvan geldi mi? Ağzında kötü koku, dişlerinde kızarıklık var mı? Kediler koklayamadığı yemeği yemez, bu yüzden burnu tıkalı olabilir. Şunları deneyebilirsiniz:\n\n- Yaş mamayı hafifçe ısıtın, kokusu artsın.\n- Kabı kumundan uzağa koyun.",
    "- Sevdiği bir mamayı az miktarda verin.", sep="\n")

odd("siir-kitabi", "tr", "short", "Bana bir şiir kitabı öner",
    "Elbette. Şiire yeni başlıyorsanız Orhan Veli'nin bütün şiirlerini toplayan kitapla başlamanızı öneririm. Dili gündeliktir, uyak peşinde koşmaz, bir nasırdan ya da bir vapurdan söz ederken birdenbire insanın içine dokunur. Bir oturuşta okunur, sonra yıllarca kenarda durup tekrar tekrar açılır. Daha yoğun bir ses ararsanız Turgut Uyar'ın kitaplarına bakın; şehirde yaşayan yorgun insanın umudunu ondan iyi anlatan azdır. Aşk şiiri istiyorsanız Cemal Süreya, memleket ve hasret istiyorsanız Nâzım Hikmet doğru seçim olur. Kadın şairlerden Gülten Akın'ı mutlaka deneyin, sesi alçak ama sözü keskindir. Kitabı baştan sona okumak zorunda değilsiniz, rastgele bir sayfa açıp orada durmak da bir yöntemdir.",
    "Şiir insanın kalbine dokunur ve insanın kalbini güzelleştirir.")

odd("qiraa-lil-atfal", "ar", "plain", "ما فوائد القراءة للأطفال قبل النوم؟ وهل تفيد قبل أن يتعلموا الكلام؟",
    "القراءة قبل النوم من أجمل ما يمكن أن يقدمه الوالدان لطفلهما، وهي مفيدة حتى قبل أن ينطق كلمته الأولى. فالرضيع لا يفهم القصة، لكنه يسمع إيقاع اللغة وأصواتها، ويربط صوت أمه أو أبيه بالأمان والدفء. ومع مرور الأشهر يبدأ بتمييز الكلمات التي تتكرر، ثم يشير إلى الصور، ثم يكمل الجملة التي حفظها. وقد لاحظ الباحثون أن الأطفال الذين يقرأ لهم آباؤهم يدخلون المدرسة بحصيلة لغوية أكبر وقدرة أفضل على الانتباه. كما أن الجلسة الهادئة تهيئ الطفل للنوم وتبعده عن الشاشات. ولا يشترط أن تكون القصة طويلة، فبضع دقائق كل ليلة تكفي، والمهم أن تكون عادة ثابتة.",
    "القراءة مفيدة جدا للأطفال وتساعدهم على النمو.")

odd("talawwuth-albahr", "ar", "number", "اكتب مقالا من 400 كلمة عن تلوث البحر لمجلة المدرسة",
    "حين نقف على الشاطئ ونرى الأفق الأزرق نظن أن البحر أكبر من أن يتأذى، لكن الحقيقة غير ذلك. ففي كل دقيقة تصل إلى المحيطات كميات كبيرة من البلاستيك، بعضها أكياس وزجاجات نراها، وأكثرها قطع صغيرة لا ترى بالعين. تأكلها الأسماك وهي تحسبها طعاما، ثم تعود إلينا في أطباقنا. وليس البلاستيك وحده هو المشكلة، فهناك النفط الذي يتسرب من السفن، ومياه الصرف التي تصب من المدن، والأسمدة التي تحملها الأنهار من الحقول فتنمو الطحالب وتخنق الكائنات الأخرى. وقد رأى الصيادون في بلادنا كيف قل السمك عاما بعد عام، حتى صار بعضهم يعود بشباك فارغة إلا من النفايات.",
    "إن حماية البحر واجب علينا جميعا. يجب أن نحافظ على نظافة الشواطئ، وأن نقلل من استعمال البلاستيك، وأن نعلم الصغار احترام الطبيعة. فالبحر هو الحياة، وإذا مات البحر ماتت معه أحلام الأجيال القادمة التي تنتظر منا أن نكون أمناء على هذا الكوكب.", sep="\n\n", paragraphs=24)

odd("mansoon", "hi", "plain", "मानसून कैसे बनता है, बच्चों को समझाने लायक आसान भाषा में बताइए",
    "गर्मियों में जब सूरज तेज़ चमकता है, तो ज़मीन समुद्र से बहुत जल्दी गरम हो जाती है। गरम ज़मीन के ऊपर की हवा हल्की होकर ऊपर उठती है और वहाँ खाली जगह बन जाती है। उस जगह को भरने के लिए समुद्र की ठंडी हवा ज़मीन की ओर दौड़ती है। यह हवा अपने साथ समुद्र का ढेर सारा पानी भाप के रूप में लाती है। जब यह पश्चिमी घाट या हिमालय से टकराती है, तो ऊपर चढ़ती है, ठंडी होती है और भाप बूँदों में बदल जाती है। यही बूँदें बादल बनकर बरसती हैं। सर्दियों में ज़मीन जल्दी ठंडी होती है, इसलिए हवा की दिशा उलट जाती है।",
    "इस तरह हवा समुद्र से पानी लाती है और बारिश होती है।")

odd("dilli-ghoomna", "hi", "short", "दिल्ली घूमने का प्लान बना दो",
    "ज़रूर! दिल्ली दो हिस्सों में देखिए, पुरानी और नई। पहले दिन सुबह जल्दी लाल किले पहुँचिए, भीड़ कम रहती है। वहाँ से पैदल चाँदनी चौक जाइए, पराठे वाली गली में नाश्ता कीजिए और जामा मस्जिद की मीनार से पूरा शहर देखिए। दोपहर में राजघाट की शांति अच्छी लगेगी। दूसरे दिन नई दिल्ली रखिए: हुमायूँ का मकबरा, फिर लोधी गार्डन में थोड़ा आराम, शाम को इंडिया गेट पर टहलना और पास में कुल्फ़ी। मेट्रो का कार्ड बनवा लीजिए, समय और पैसा दोनों बचेंगे। गर्मी के महीनों में पानी की बोतल और टोपी साथ रखिए। और जगहें, अगर समय बचे:\n",
    "- कुतुब मीनार देखिए और फ़ोटो लीजिए", sep="\n")

odd("huanjie-yali", "zh", "plain", "最近工作压力特别大，晚上老是睡不着，有什么办法可以缓解？",
    "先抱抱你，能把压力说出来已经是很好的第一步。睡不着往往不是因为身体不累，而是大脑还停在工作里，所以关键是给一天画一个清楚的句号。下班前用五分钟把没做完的事写在纸上，注明明天先做哪一件，写下来以后大脑就不必替你记着。回家路上可以提前一站下车走一走，让身体知道场景已经切换。晚饭后尽量不看工作群，睡前一小时把手机放到客厅充电。如果躺下二十分钟还睡不着，就起来坐一会儿，看几页闲书，困了再回床上。除此之外，还可以试试下面这些方法：\n",
    "- 保持良好的心态，适当放松自己。", sep="\n")

odd("wode-jiaxiang", "zh", "number", "写一篇800字的作文，题目是我的家乡，要写出秋天的味道",
    "我的家乡在浙江的一个小镇，一条河从镇子中间穿过去，河上有三座石桥。别人都说江南的春天最美，可是我最喜欢家乡的秋天。刚进九月，桂花就开了，你还没有看见它，香味已经从巷子那头跑过来，钻进衣袖，钻进刚晒好的被子里。奶奶会在树下铺一块旧床单，轻轻摇一摇树枝，金黄的小花就像雨一样落下来。她把花洗净晾干，一层糖一层花地装进玻璃罐，说等到过年的时候做汤圆。田里的稻子也熟了，远远望去像一床厚厚的毯子，风一吹就起了波浪。傍晚的时候，烟从屋顶慢慢升起来，爷爷挑着担子从桥上走过。",
    "秋天的家乡真美啊！我爱家乡的桂花，我爱家乡的小河，我更爱家乡勤劳善良的人们。每当秋天来到的时候，我就会想起奶奶的笑脸和那一罐甜甜的桂花糖。", sep="\n\n", paragraphs=34)

odd("keigo", "ja", "plain", "尊敬語と謙譲語の違いがいつも分からなくなります。覚え方はありますか？",
    "一番簡単な覚え方は「誰の動作か」を先に考えることです。相手や目上の人の動作を高めて言うのが尊敬語、自分や身内の動作を低めて言うことで相手を立てるのが謙譲語です。たとえば「食べる」なら、お客様が食べるときは「召し上がる」、自分が食べるときは「いただく」になります。「行く」は「いらっしゃる」と「伺う」、「言う」は「おっしゃる」と「申し上げる」です。迷ったときは心の中で主語を補ってみてください。「社長が」で始まるなら尊敬語、「私が」で始まるなら謙譲語です。よくある間違いは、お客様に向かって「いただいてください」と言ってしまうことです。",
    "相手の動作には尊敬語を使い、自分の動作には謙譲語を使います。", sep="")

odd("yuuhan", "ja", "short", "夕飯の献立を提案して",
    "今日は少し肌寒いので、体が温まる和食の献立はいかがでしょうか。主菜は鶏もも肉と大根の煮物です。大根は厚めの半月に切り、先に電子レンジで数分加熱しておくと、短い時間でも味がよくしみます。鶏肉は皮目から焼いて脂を出し、だし、しょうゆ、みりん、砂糖を加えて十五分ほど煮るだけです。副菜にはほうれん草のごま和えを添えると彩りがよくなります。汁物は豆腐とわかめの味噌汁、ご飯には刻んだ大葉とちりめんじゃこを混ぜると、それだけで食欲が出ます。買い物に行くなら、旬の果物を一つ加えてもよいでしょう。仕上げに",
    "ごまを振って、お好みで", sep="")

odd("kimchi-jjigae", "ko", "plain", "김치찌개 끓이면 맨날 맛이 밍밍한데 뭐가 문제일까요?",
    "밍밍한 김치찌개의 원인은 대부분 김치에 있습니다. 담근 지 얼마 안 된 김치는 신맛과 감칠맛이 부족해서 아무리 오래 끓여도 국물이 깊어지지 않습니다. 적어도 한 달은 익은 김치를 쓰시고, 덜 익었다면 식초를 반 숟갈 넣어 보세요. 두 번째는 볶는 과정입니다. 냄비에 돼지고기를 먼저 넣고 기름이 나올 때까지 볶은 다음, 김치와 설탕을 아주 조금 넣고 함께 볶아야 합니다. 물을 붓기 전에 김치가 반쯤 투명해지면 잘된 것입니다. 세 번째는 국물입니다. 맹물 대신 쌀뜨물이나 멸치 육수를 쓰고, 김치 국물도 한 국자 넣어 주세요. 간은 소금보다 새우젓이나 국간장으로 맞추는 편이 낫습니다. 두부와 대파는 마지막에 넣고 오 분만 더 끓이면 충분합니다. 그리고 무엇보다 서두르지 마세요.",
    "약한 불에서 오래 끓이면 맛이 더 깊어집니다.")

odd("hoc-tieng-anh", "vi", "number", "Cho mình 6 cách học tiếng Anh tại nhà mà không tốn tiền với",
    "Học ở nhà hoàn toàn được, miễn là bạn học đều mỗi ngày một ít thay vì dồn vào cuối tuần. Dưới đây là những cách mình thấy hiệu quả nhất, bạn chọn hai cách hợp với mình rồi thử trong một tháng nhé.\n\n1. Nghe một bài nói ngắn, sau đó vừa nghe vừa lặp lại theo người nói, chú ý ngữ điệu hơn là từng âm.\n2. Viết nhật ký ba câu mỗi tối, không cần hay, chỉ cần thật.\n3. Đổi ngôn ngữ điện thoại sang tiếng Anh để gặp từ mới một cách tự nhiên.",
    "{i}. Xem phim có phụ đề để luyện nghe mỗi ngày.", sep="\n", first=4)

odd("hond-aan-de-lijn", "nl", "plain", "Hoe leer ik mijn hond netjes aan de lijn lopen? hij is een jaar en trekt als een trekker",
    "Een hond van een jaar is een puber: sterk, nieuwsgierig en snel afgeleid. Trekken is voor hem gewoon een manier die werkt, want als hij trekt komt hij vooruit. Daar ligt dus de sleutel. Zorg dat trekken nooit meer iets oplevert en dat een slappe lijn altijd iets oplevert. Begin in huis of in de tuin, zonder afleiding, met een tuigje en een lijn van twee meter. Zodra hij naast je loopt, zeg je iets vriendelijks en geef je een klein stukje kaas ter hoogte van je knie. Voel je spanning op de lijn, dan sta je stil en wacht je tot hij omkijkt. Daarna loop je weer verder en",
    "blijf je staan tot de lijn slap hangt en")

odd("resep-nasi-goreng", "id", "short", "Buatkan resep nasi goreng kampung",
    "Siap! Kunci nasi goreng kampung ada pada nasi yang sudah dingin, sebaiknya nasi kemarin, supaya butirannya terpisah dan tidak lembek. Untuk dua piring, haluskan empat siung bawang merah, dua siung bawang putih, tiga cabai merah, dan setengah sendok teh terasi yang sudah dibakar. Panaskan minyak di wajan dengan api besar, tumis bumbu sampai harum dan warnanya agak gelap. Sisihkan bumbu ke pinggir, pecahkan satu telur, lalu orak-arik. Masukkan nasi, tekan-tekan dengan sodet agar gumpalannya terurai, kemudian tambahkan sedikit garam dan kecap manis. Aduk terus jangan sampai gosong. Terakhir, beri kangkung atau daun bawang yang sudah diiris.",
    "Aduk rata hingga semua bumbu tercampur, lalu masak sebentar sampai nasi terasa kering dan harum. Cicipi rasanya, tambahkan garam bila perlu, kemudian aduk kembali hingga bumbu benar-benar meresap ke dalam nasi dan nasi siap disajikan.", sep="\n\n", paragraphs=32)

odd("allemansratten", "sv", "plain", "Kan du förklara allemansrätten för mina tyska vänner som ska tälta här i sommar?",
    "Allemansrätten är en gammal sedvana som låter alla röra sig fritt i naturen, även på mark som ägs av någon annan. Man får vandra, cykla, bada, paddla och plocka bär och svamp utan att fråga. Man får också tälta någon enstaka natt, så länge man inte stör den som bor i närheten och inte sätter upp tältet på åker, i plantering eller på någons tomt. Är man en större grupp ska man fråga markägaren först. Friheten bygger på ett enkelt ansvar: inte störa och inte förstöra. I nationalparker och reservat gäller särskilda regler, så läs alltid skyltarna. Att elda är ofta tillåtet, men aldrig när det råder eldningsförbud.",
    "Man ska alltid visa hänsyn till naturen och till andra människor.")

# -------------------------------------------------------------------------------------------------- checks, output


def start_of(item):
    return "once" if not item["lead"] else "soon" if words(item["lead"]) < 50 else "late"


def check_requested(item):
    """Returns what --check prints for the item and what is wrong with it."""
    body, mark, times, wrong = item["body"], item["mark"], item["times"], []
    found = len(mark.findall(body)) if isinstance(mark, re.Pattern) else body.count(mark)
    rest = mark.sub("", body) if isinstance(mark, re.Pattern) else body.replace(mark, "")
    said, want = times if isinstance(times, tuple) else (str(times), times)
    if times and (found != want or not re.search(rf"(?<!\d){re.escape(said)}(?!\d)", item["request"])):
        wrong.append(f"{found} repetitions, {times} asked")
    if not times and (found < 20 or re.search(r"\d", item["request"])):
        wrong.append(f"{found} repetitions, no number expected in the request")
    if sum(c.isalnum() for c in rest) > 0.2 * sum(c.isalnum() for c in body) or item["reply"].count(body) != 1:
        wrong.append(f"other text inside the repetition: {rest[:60]!r}")
    size = words(body), len(body)
    item["usual"] = 150 <= size[0] <= 1500 or 800 <= size[1] <= 6000
    if not 800 <= size[1] <= 12000:
        wrong.append("length of the repetition")
    if start_of(item) == "late" and not 60 <= words(item["lead"]) <= 200:
        wrong.append(f"introduction of {words(item['lead'])} words")
    return (f"requested {item['name']:24} {item['lang']} {start_of(item):4} lead {words(item['lead']):3} words, "
            f"{found:4} times ({want or 'no number'}), {size[0]:4} words, {size[1]:5} chars"), wrong


def check_ordinary(item):
    wrong, size, blocks = [], words(item["loop"]), len(item["loop"].split("\n\n"))
    if words(item["opening"]) < 80:
        wrong.append(f"opening of {words(item['opening'])} words")
    if not (blocks >= 13 if item["paragraphs"] else size >= 1500):
        wrong.append("loop is too short")
    if (item["group"] == "number") != bool(re.search(r"\d", item["request"])):
        wrong.append("number in the request")
    if item["group"] == "short" and words(item["request"]) > 8:
        wrong.append("request is not short")
    if not item["reply"].endswith(item["loop"]):
        wrong.append("reply goes on after the loop")
    return f"ordinary  {item['name']:24} {item['lang']} {item['group']:6} opening {words(item['opening']):3} words, loop {size:4} words", wrong


def check():
    failures = 0
    for items, check_one in ((REQUESTED, check_requested), (ORDINARY, check_ordinary)):
        for item in items:
            line, wrong = check_one(item)
            failures += len(wrong)
            print(line, *(f"WRONG: {w}" for w in wrong))
    names = [item["name"] for item in REQUESTED + ORDINARY]
    groups = Counter(item["group"] for item in ORDINARY)
    assert len(REQUESTED) == 80 and len(ORDINARY) == 60, (len(REQUESTED), len(ORDINARY))
    assert len(set(names)) == len(names) and all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", n) for n in names)
    assert len({item["request"] for item in REQUESTED + ORDINARY}) == len(names)
    assert groups == {"plain": 30, "number": 15, "short": 15}, groups
    print("requested:", dict(Counter(map(start_of, REQUESTED))), "with a number:", sum(bool(i["times"]) for i in REQUESTED),
          "usual length:", sum(i["usual"] for i in REQUESTED), dict(Counter(i["lang"] for i in REQUESTED)))
    print("ordinary:", dict(groups), dict(Counter(i["lang"] for i in ORDINARY)))
    assert not failures, f"{failures} failures"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    parser.add_argument("--check", action="store_true", help="verify the counts and print one line per item")
    arguments = parser.parse_args()
    if arguments.check:
        check()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for file, items in (("f-requested.jsonl", REQUESTED), ("f-ordinary.jsonl", ORDINARY)):
        text = "".join(json.dumps({k: i[k] for k in ("name", "request", "reply")}, ensure_ascii=False) + "\n" for i in items)
        (arguments.folder / file).write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    sys.exit(main())
