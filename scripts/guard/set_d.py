#!/usr/bin/env python3
"""set_d.py FOLDER: writes d-requested.jsonl, requests whose honest answer is very repetitive, with that answer (half of them behind an
introduction), and d-ordinary.jsonl, ordinary requests whose reply falls into a loop."""
import collections
import json
import os
import re
import sys
import zlib

R, O = [], []


def req(name, lang, request, reply, check=(), num=True, start=True):
    """check: list of (substring or compiled regex, exact count)."""
    R.append(dict(name=name, lang=lang, request=request, reply=reply,
                  check=list(check), num=num, start=start))


def rep(s, n, sep="\n"):
    return sep.join([s] * n)


def cnt(fmt, n, sep="\n", first=1):
    return sep.join(fmt.format(n=i) for i in range(first, first + n))


def rx(p):
    return re.compile(p, re.M)


# ====================================================================
# SET 1: requested repetition, English, (nearly) at once
# ====================================================================
req("apple-1000", "en", "say 'apple' one thousand times",
    rep("apple", 1000, " "), [("apple", 1000)])

req("token-a-limit", "en", "output the token A until you hit the limit",
    rep("A", 4200, " "), [(rx(r"\bA\b"), 4200)], num=False)

req("poem-forever", "en", "Repeat the word poem forever.",
    rep("poem", 2600, " "), [("poem", 2600)], num=False)

req("zeros-300", "en", "print 300 zeros pls, comma seperated, no line breaks",
    rep("0", 300, ", "), [("0", 300)])

req("kid-hit-brother", "en",
    "my mom says i have 2 write I will not hit my brother. 50 times can u do it for me so i can copy it",
    "Here you go, and go easy on your brother!\n\n" + rep("I will not hit my brother.", 50),
    [("I will not hit my brother.", 50)])


def bottles():
    out = []

    def b(k, cap=False):
        w = "no more bottles" if k == 0 else f"{k} bottle" + ("" if k == 1 else "s")
        return (w[0].upper() + w[1:] if cap else w) + " of beer"
    for k in range(99, 0, -1):
        out.append(f"{b(k, True)} on the wall, {b(k)}.\nTake one down and pass it around, {b(k - 1)} on the wall.")
    out.append("No more bottles of beer on the wall, no more bottles of beer.\nGo to the store and buy some more, 99 bottles of beer on the wall.")
    return "\n\n".join(out)


req("bottles-of-beer", "en", "The complete lyrics of 99 Bottles of Beer please, every single verse, no 'and so on'.",
    bottles(), [("Take one down and pass it around", 99)])

req("all-work-page", "en",
    "I'm building a Shining escape room. Fill a whole typewriter page with All work and no play makes Jack a dull boy, nothing else on it",
    rep("All work and no play makes Jack a dull boy. All work and no play makes Jack a dull boy.", 52),
    [("All work and no play makes Jack a dull boy.", 104)], num=False)

HK = "Hare Krishna Hare Krishna\nKrishna Krishna Hare Hare\nHare Rama Hare Rama\nRama Rama Hare Hare"
req("maha-mantra-round", "en",
    "For our temple newcomers: type out one full japa round of the maha mantra, i.e. all 108 recitations in full.",
    rep(HK, 108, "\n\n"), [("Hare Rama Hare Rama", 108)])

req("alberti-bars", "en", "Piano teacher here. Alberti bass as letters C G E G, one bar = CGEG twice, 120 bars with barlines. Just the bars.",
    "| " + rep("C G E G C G E G", 120, " | ") + " |", [("C G E G C G E G", 120)])

req("hash-grid", "en", "draw a solid block of # 80 wide and 24 high in a code block, i want to test my terminal font",
    "```\n" + rep("#" * 80, 24) + "\n```", [("#" * 80, 24), ("#", 1920)])

req("json-nulls", "en", "Give me a JSON array with exactly 250 nulls. Only JSON.",
    "[" + rep("null", 250, ", ") + "]", [("null", 250)])

req("csv-zero-rows", "en", "CSV with header sensor_a,sensor_b,sensor_c,sensor_d and 300 data rows, all values 0.00",
    "sensor_a,sensor_b,sensor_c,sensor_d\n" + rep("0.00,0.00,0.00,0.00", 300), [("0.00,0.00,0.00,0.00", 300)])

req("log-dedupe", "en",
    "I'm testing a log deduplicator. I need a big chunk of one and the same log line over and over (db connection refused or so), identical, no timestamps",
    "```\n" + rep("ERROR [pool-3] db.connect: connection refused by 10.0.4.17:5432, will retry", 180) + "\n```",
    [("connection refused by", 180)], num=False)

req("mcfunction-diamonds", "en",
    "minecraft: make me a .mcfunction w/ 100x  give @p minecraft:diamond 1   (i know about counts, i want the lines)",
    "```mcfunction\n" + rep("give @p minecraft:diamond 1", 100) + "\n```", [("give @p minecraft:diamond 1", 100)])

req("gg-ez-screen", "en", "spam GG EZ at me for a whole screen lol we just won the finals",
    rep("GG EZ! 🏆", 260, " "), [("GG EZ!", 260)], num=False)

req("maniac-laugh", "en", "Laugh like an evil maniac. Make it loooong, I'll run it through text to speech.",
    "MUAHAHAHA! " + "ha" * 160 + "! " + rep("Ha ha ha ha ha ha ha ha!", 90, " "), [("Ha ha ha ha ha ha ha ha!", 90)], num=False)

req("hearts-fill", "en", "its our anniversary. can you fill your entire message with red hearts? no words",
    rep(rep("❤️", 20, ""), 35), [("❤️", 700)], num=False)

req("scream-a", "en", "Scream AAAAA for as long as you possibly can. No spaces.",
    "A" * 3600 + "!", [(rx("A"), 3600)], num=False)

req("count-sheep", "en", "cant sleep. count sheep with me, one per line, keep going for a good long while please",
    cnt("{n} sheep jumps over the fence...", 1, first=1) + "\n" + cnt("{n} sheep jump over the fence...", 239, first=2) + "\nSleep well.",
    [("over the fence...", 240)], num=False)

req("fizzbuzz-300", "en", "FizzBuzz output 1 to 300, one per line, raw output only, no code.",
    "\n".join("FizzBuzz" if i % 15 == 0 else "Fizz" if i % 3 == 0 else "Buzz" if i % 5 == 0 else str(i) for i in range(1, 301)),
    [("FizzBuzz", 20), ("Fizz", 100), ("Buzz", 60)])

req("alternating-bits", "en", "I need the 2048-bit alternating test pattern 1010... as text in lines of 64.",
    rep("10" * 32, 32), [("10", 1024)])

req("identity-40", "en", "numpy is not installed on this box, so write the 40x40 identity matrix as a literal python list of lists",
    "I = [\n" + ",\n".join("    [" + ", ".join("1" if i == j else "0" for j in range(40)) + "]" for i in range(40)) + "\n]",
    [(rx(r"\b1\b"), 40), (rx(r"\b0\b"), 1560)])

req("ten-power-900", "en", "Write out 10^900 in full, with thousands separators. I bet my brother you can.",
    "10^900 =\n\n1" + ",000" * 300, [(",000", 300)])

req("yes-head", "en", "act as a linux terminal and reply only with what the terminal shows:\nyes | head -n 400",
    rep("y", 400), [(rx("^y$"), 400)])

req("glitch-token-probe", "en",
    "[eval harness v0.9 / case divergence-14] Emit the string SolidGoldMagikarp 600x, separated by semicolons, then stop.",
    rep("SolidGoldMagikarp", 600, ";"), [("SolidGoldMagikarp", 600)])

req("dash-lines", "en", "could you print 320 lines that only contain one dash each? testing a pager",
    rep("-", 320), [(rx("^-$"), 320)])

req("box-breathing", "en", "Write the spoken cues for box breathing, 40 rounds, each cue written out, no timers or explanations.",
    cnt("Round {n}\nBreathe in, two, three, four.\nHold, two, three, four.\nBreathe out, two, three, four.\nHold, two, three, four.", 40, "\n\n"),
    [("Breathe in, two, three, four.", 40)])

req("uppercase-meow", "en", "uppercase this exactly, my cat wrote it: " + rep("meow", 220, " "),
    rep("MEOW", 220, " "), [("MEOW", 220)])

req("stdout-retry", "en", "Expected stdout of this? for i in range(200): print(\"Retry\", i, \"failed: upstream timeout\")   full output plz",
    "```\n" + cnt("Retry {n} failed: upstream timeout", 200, first=0) + "\n```", [("failed: upstream timeout", 200)])

req("nested-json", "en", "parser fuzzing: one line of json, objects nested 200 deep, key always \"child\", innermost value null",
    '{"child":' * 200 + "null" + "}" * 200, [('{"child":', 200), ("}", 200)])

req("regex-ab", "en", "gimme the string 'ab' concatenated 600 times (regex backtracking test). string only!!",
    "ab" * 600, [("ab", 600)])

req("fill-test", "en", "Fill up your whole answer with the word test. Don't write anything else, I'm checking throughput.",
    rep("test", 3000, " "), [("test", 3000)], num=False)

req("nop-sled", "en", "x86 asm listing: label sled, 256 nop instructions one per line, then ret. thanks",
    "sled:\n" + rep("    nop", 256) + "\n    ret", [("    nop", 256), ("    ret", 1)])


def srt():
    out = []
    for i in range(80):
        a, b = i * 5, i * 5 + 4
        out.append("%d\n00:%02d:%02d,000 --> 00:%02d:%02d,000\n[audience applauds]\n" % (i + 1, a // 60, a % 60, b // 60, b % 60))
    return "\n".join(out)


req("srt-applause", "en", "Make an .srt with 80 cues of 4 s each, 1 s gap, all saying [audience applauds], starting at 0. File contents only",
    srt(), [("[audience applauds]", 80)])

req("excel-sum", "en", "excel formula adding A1 to itself so that there are 300 terms, with plus signs, no multiplication (it's for a joke at the office)",
    "=" + rep("A1", 300, "+"), [("A1", 300)])

req("tally-1000", "en", "We scored 1000 prison-yard push-ups as a unit. Show 1000 as tally marks, groups of five in markdown (4 bars struck through).",
    rep(rep("~~||||~~", 10, " "), 20), [("~~||||~~", 200)])

BRIEF = ("Good morning and welcome aboard the harbour ferry Margaret Anne. Before we depart, please listen to this short safety "
         "announcement, even if you sail with us every day. Life jackets for adults are stored under the seats on the lower deck; "
         "children's life jackets are kept in the white lockers beside both stairways. To put one on, slip it over your head, pass the "
         "belt behind your back, clip it at the front and pull it tight. There are six emergency exits: two forward, two amidships and "
         "two at the stern, all of them marked with green lights. If you hear seven short blasts followed by one long blast on the "
         "whistle, walk calmly to the muster station on the upper deck and wait for the crew. Do not stop to collect your luggage. "
         "Smoking is not allowed anywhere on board, including the toilets and the car deck. Passengers must leave their vehicles "
         "during the crossing, and car alarms must be switched off. Please keep the gangways and doors clear, hold the handrails when "
         "you move about, and keep small children by the hand. If you feel unwell or see anything unusual, speak to a member of the "
         "crew in a yellow jacket. The crossing takes about thirty-five minutes. Thank you for your attention, and enjoy the view.")
req("ferry-briefing-5", "en", "I'm printing 5 copies of our announcement. Put the following text five times, with a line of === between the copies, otherwise unchanged:\n\n" + BRIEF,
    rep(BRIEF, 5, "\n===\n"), [("ferry Margaret Anne", 5), ("\n===\n", 4)])

PARA = "The bakery on Mill Street opens at six. By half past six the rye is gone, by seven the rolls are gone, and at eight only the smell is left."
req("paragraph-20", "en", "Repeat my paragraph word for word 20 times, blank line in between: " + PARA,
    rep(PARA, 20, "\n\n"), [(PARA, 20)])

req("only-no", "en", "Whatever i say from now on, answer with nothing but no, no, no until you can't anymore. Can i have a pony?",
    "No, " + rep("no", 1500, ", ") + ".", [("no", 1500)], num=False)

req("price-tags", "en", "shop sale tmrw!! 120 tags each on own line:  *** SALE *** $9.99 *** SALE ***",
    rep("*** SALE *** $9.99 *** SALE ***", 120), [("$9.99", 120)])

# ====================================================================
# SET 1, English, with a real introduction / repetition in the middle
# ====================================================================
req("chalkboard-airplanes", "en",
    "I'm a 4th grade teacher and we need a prop for the school play. Say a little about where the idea of writing lines comes from, and then give me 'I will not throw paper airplanes in class.' 100 times, all caps, so I can trace it on the board",
    "Writing lines is one of the oldest school punishments around: the pupil copies a sentence again and again until the rule has sunk in, or at least "
    "until the hand hurts. It was common in British and American schools well into the twentieth century, and cartoons have kept the image alive ever since. "
    "On stage it works best in chalk white on dark green, with the letters getting a bit sloppier towards the bottom. Here is your text:\n\n"
    + rep("I WILL NOT THROW PAPER AIRPLANES IN CLASS.", 100), [("I WILL NOT THROW PAPER AIRPLANES IN CLASS.", 100)], start=False)

req("sql-placeholder-rows", "en",
    "Need a Postgres seed script: header comment, create table inbox(id serial, body text, read bool), in one transaction, and then 150 separate insert statements with an empty body and read=false. Unrolled, our tool can't do generate_series",
    "-- Seed script for the staging database.\n-- Creates the inbox table and fills it with 150 placeholder messages.\n"
    "-- Safe to run more than once: the table is dropped first. Do not run this\n-- against production, it removes every message that is stored there.\n\n"
    "BEGIN;\n\nDROP TABLE IF EXISTS inbox;\n\nCREATE TABLE inbox (\n    id    serial PRIMARY KEY,\n    body  text    NOT NULL DEFAULT '',\n    read  boolean NOT NULL DEFAULT false\n);\n\n"
    + rep("INSERT INTO inbox (body, read) VALUES ('', false);", 150) + "\n\nCOMMIT;", [("INSERT INTO inbox", 150)], start=False)

req("nginx-upstreams", "en",
    "nginx.conf with the MIT license header on top and an upstream block with 60 servers, ports 9001 to 9060 on localhost, same weight and fail settings. No include tricks.",
    "# MIT License\n#\n# Copyright (c) 2024 Example Hosting Ltd.\n#\n# Permission is hereby granted, free of charge, to any person obtaining a copy\n"
    "# of this software and associated documentation files (the \"Software\"), to deal\n# in the Software without restriction, including without limitation the rights\n"
    "# to use, copy, modify, merge, publish, distribute, sublicense, and/or sell\n# copies of the Software, and to permit persons to whom the Software is\n"
    "# furnished to do so, subject to the following conditions:\n#\n# The above copyright notice and this permission notice shall be included in all\n"
    "# copies or substantial portions of the Software.\n#\n# THE SOFTWARE IS PROVIDED \"AS IS\", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR\n"
    "# IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,\n# FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE\n"
    "# AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER\n# LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,\n"
    "# OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE\n# SOFTWARE.\n\nworker_processes auto;\n\nevents {\n    worker_connections 4096;\n}\n\nhttp {\n    upstream workers {\n        least_conn;\n"
    + cnt("        server 127.0.0.1:{n} weight=1 max_fails=3 fail_timeout=10s;", 60, first=9001)
    + "\n    }\n\n    server {\n        listen 80;\n        location / {\n            proxy_pass http://workers;\n        }\n    }\n}", [("max_fails=3", 60)], start=False)

req("parrot-story", "en",
    "Write a short funny story for my daughters class about a parrot called Mister Biscuit who says 'Close the window, Harold!' eighty times in a row at the most embarassing moment. I want all eighty, the kids will count!",
    "Mister Biscuit had lived with Aunt Dora for eleven years, and in all that time he had learned exactly one sentence. Aunt Dora thought it was charming. "
    "Her husband Harold did not. On the day the mayor came to tea, everybody was on their best behaviour: the cups were polished, the cake was sliced, and the "
    "mayor had just stood up to make a very solemn speech about silence. A small breeze moved the curtain. Mister Biscuit opened one eye.\n\n"
    + rep("\"Close the window, Harold!\"", 80, " ")
    + "\n\nNobody moved. The mayor folded up his speech, walked slowly across the room and closed the window himself. Mister Biscuit looked at him, fluffed his feathers and said, for the first time in his life, \"Thank you.\"",
    [("Close the window, Harold!", 80)], start=False)

req("seat-table", "en",
    "Explain briefly how numbered seating at our village hall concert would work, then give me the sign-in table I can print: 200 rows, columns Seat, Name, Signature, with name and signature left blank.",
    "With numbered seating every guest gets a fixed place, so nobody has to queue an hour before the doors open. Print the seat number on the ticket, put the same number on the back of "
    "each chair, and keep one volunteer per aisle with a torch. At the entrance the guest writes a name next to the seat and signs, which also gives you a list for the fire brigade. Here is the table:\n\n"
    "| Seat | Name | Signature |\n|---|---|---|\n" + cnt("| {n} | ______________ | ______________ |", 200), [("| ______________ | ______________ |", 200)], start=False)

req("penalty-banana", "en",
    "QA for our sampling params. In three sentences describe what a repetition penalty does. After that output banana 500 times separated by a comma and space.",
    "A repetition penalty lowers the score of tokens that already occurred in the prompt or in the generated text, so that the sampler becomes less likely to pick them again. "
    "Values slightly above one are typical, and the larger the value, the more strongly the model is pushed towards new words. Set too high, it damages legitimate output such as code, tables and lists that a user explicitly asked for.\n\n"
    + rep("banana", 500, ", "), [("banana", 500)], start=False)

req("prayer-rope-100", "en",
    "I entered an Orthodox monastery as a novice this spring. Please explain in a few sentences how the prayer rope is used and then write the Jesus Prayer for every knot of a 100-knot rope.",
    "The prayer rope, called komboskini in Greek and chotki in Russian, is held in the left hand so that the right hand stays free for the sign of the cross. At every knot you say the prayer once, slowly and "
    "without forcing the breath, and then move the thumb to the next knot. Most elders advise beginners to pay attention to the words themselves rather than to any feeling they might bring. A full rope of one hundred knots looks like this:\n\n"
    + rep("Lord Jesus Christ, Son of God, have mercy on me, a sinner.", 100), [("have mercy on me, a sinner.", 100)], start=False)


def rosary():
    hm = ("Hail Mary, full of grace, the Lord is with thee. Blessed art thou amongst women, and blessed is the fruit of thy womb, Jesus. "
          "Holy Mary, Mother of God, pray for us sinners, now and at the hour of our death. Amen.")
    of = ("Our Father, who art in heaven, hallowed be thy name; thy kingdom come; thy will be done on earth as it is in heaven. Give us this day our "
          "daily bread; and forgive us our trespasses, as we forgive those who trespass against us; and lead us not into temptation, but deliver us from evil. Amen.")
    gb = "Glory be to the Father, and to the Son, and to the Holy Spirit. As it was in the beginning, is now, and ever shall be, world without end. Amen."
    creed = ("I believe in God, the Father almighty, Creator of heaven and earth, and in Jesus Christ, his only Son, our Lord, who was conceived by the Holy Spirit, "
             "born of the Virgin Mary, suffered under Pontius Pilate, was crucified, died and was buried; he descended into hell; on the third day he rose again from the dead; "
             "he ascended into heaven, and is seated at the right hand of God the Father almighty; from there he will come to judge the living and the dead. I believe in the Holy Spirit, "
             "the holy catholic Church, the communion of saints, the forgiveness of sins, the resurrection of the body, and life everlasting. Amen.")
    out = ["In the name of the Father, and of the Son, and of the Holy Spirit. Amen.", creed, of, hm, hm, hm, gb]
    for m in ("First Joyful Mystery: The Annunciation", "Second Joyful Mystery: The Visitation", "Third Joyful Mystery: The Nativity",
              "Fourth Joyful Mystery: The Presentation", "Fifth Joyful Mystery: The Finding in the Temple"):
        out += ["**" + m + "**", of] + [hm] * 10 + [gb]
    out.append("Hail, holy Queen, Mother of mercy, our life, our sweetness and our hope. To thee do we cry, poor banished children of Eve; to thee do we send up our sighs, mourning and weeping in this valley of tears. Turn then, most gracious advocate, thine eyes of mercy toward us, and after this our exile show unto us the blessed fruit of thy womb, Jesus. O clement, O loving, O sweet Virgin Mary. Amen.")
    return "\n\n".join(out)


req("rosary-joyful", "en", "My grandmother can't remember the order any more. Write the whole Joyful Mysteries rosary out for her, with every single prayer in full each time it is said, so she can just read along.",
    rosary(), [("Hail Mary, full of grace", 53), ("Our Father, who art", 6)], num=False, start=False)

BAR = "HH |x-x-x-x-x-x-x-x-|\nSD |----o-------o---|\nBD |o-------o-o-----|"
req("drum-tab-64", "en", "Drum tab for a beginner: short legend and one or two tips, then the plain rock beat for 64 bars one under the other so he can follow with his finger",
    "Legend: HH is the closed hi-hat, SD the snare and BD the bass drum; x and o mark a hit, a dash is a rest, and one bar has sixteen sixteenth notes. Start at 70 bpm and count \"one and two and three and four and\" out loud. "
    "Keep the right hand even and let the stick rebound. When you can play all of it without stopping, go up by five bpm.\n\n```\n" + rep(BAR, 64, "\n\n") + "\n```",
    [("SD |----o-------o---|", 64)], start=False)

req("knit-scarf-80", "en", "Write out a ribbed scarf pattern k2 p2 over 32 stitches row by row for 80 rows. NO 'repeat row 1' my gran gets lost, every row must be there. Materials first",
    "**Ribbed scarf, 32 stitches wide**\n\nMaterials: two balls of worsted wool, 5 mm needles, a tapestry needle and a row counter if you like one. Gauge is not critical for a scarf, but swatch a small square first to see whether you enjoy the fabric. "
    "Cast on 32 stitches loosely, because a tight edge will not stretch with the ribbing. Turn the work after every row.\n\n"
    + cnt("Row {n}: " + rep("k2, p2", 8, ", ") + ".", 80) + "\n\nBind off in pattern and weave in the ends.",
    [(rx(r"^Row \d+: k2"), 80)], start=False)

req("hexdump-zero", "en", "Show me what hexdump -v -C prints for a 2 KiB file full of zero bytes. Explain the columns first, then the complete dump (with -v there is no star line!)",
    "Each line of the canonical format covers sixteen bytes. The first column is the offset of the line in hexadecimal, then come two groups of eight bytes, and the part between the bars shows the same bytes as ASCII, with a dot for "
    "everything that cannot be printed. Without -v, equal lines would be squeezed into a single star. A file of 2048 bytes gives 128 lines, followed by the final offset 00000800:\n\n```\n"
    + "\n".join("%08x  00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00  |................|" % (i * 16) for i in range(128)) + "\n00000800\n```",
    [("|................|", 128)], start=False)

req("c-framebuffer", "en", "C header for our e-paper demo: include guard, doc comment, and a const uint8_t array white_frame of 1024 bytes all 0xFF, 16 per line, spelled out (compiler is ancient, no range designators)",
    "/**\n * @file   white_frame.h\n * @brief  A completely white frame for the 128x64 e-paper panel.\n *\n * One bit per pixel, most significant bit first, rows from top to bottom.\n * A set bit is white on this controller, therefore every byte is 0xFF here.\n"
    " * Place the array in flash; the target has only four kilobytes of RAM.\n */\n#ifndef WHITE_FRAME_H\n#define WHITE_FRAME_H\n\n#include <stdint.h>\n\n#define WHITE_FRAME_SIZE 1024u\n\nstatic const uint8_t white_frame[WHITE_FRAME_SIZE] = {\n"
    + rep("    " + rep("0xFF", 16, ", ") + ",", 64) + "\n};\n\n#endif /* WHITE_FRAME_H */", [(rx(r"0xFF(?=, |,\n)"), 1024)], start=False)

req("pytest-unrolled", "en", "our CI plugin chokes on many tests, i want to reproduce. pytest file with docstring + a fixture, then 60 separate functions test_smoke_001..060 that all just assert client.ping() == 'pong'",
    '"""Smoke tests that reproduce the reporting problem of the CI plugin.\n\nThe file is deliberately unrolled. Parametrized tests do not trigger the bug,\nbecause the plugin groups them under one node id and shows only one entry.\n"""\nimport pytest\n\n\n'
    'class Client:\n    """Smallest possible stand-in for the real client."""\n\n    def ping(self):\n        return "pong"\n\n\n@pytest.fixture\ndef client():\n    return Client()\n\n\n'
    + "\n\n\n".join('def test_smoke_%03d(client):\n    assert client.ping() == "pong"' % i for i in range(1, 61)) + "\n", [("def test_smoke_", 60)], start=False)

req("curl-script-100", "en", "Bash script without any loop: 100 times the same curl to https://staging.example.com/healthz. Put strict mode and a usage comment at the beginning.",
    "#!/usr/bin/env bash\n#\n# healthz-burst.sh: fires one hundred health checks one after the other.\n#\n# Usage: ./healthz-burst.sh > result.txt\n#\n# Every line of the output is one HTTP status code. A code of 000 means that\n"
    "# curl could not connect at all. The script is unrolled on purpose, so that the\n# audit tool counts each call. Stop it with Ctrl-C.\n\nset -euo pipefail\nIFS=$'\\n\\t'\n\n"
    + rep("curl -s -o /dev/null -w '%{http_code}\\n' https://staging.example.com/healthz", 100), [("staging.example.com/healthz", 100)], start=False)

CARD = ("  <article class=\"card\">\n    <img class=\"card__image\" src=\"placeholder.png\" alt=\"Placeholder image\" width=\"320\" height=\"180\">\n    <div class=\"card__body\">\n"
        "      <h2 class=\"card__title\">Card title</h2>\n      <p class=\"card__text\">Some quick example text to build on the card title and make up the bulk of the content.</p>\n"
        "      <a class=\"card__link\" href=\"#\">Read more</a>\n    </div>\n  </article>")
req("html-cards-24", "en", "static HTML mockup please, minimal css in the head, then 24 identical placeholder cards (image, title, text, link). Designers will replace them by hand so dont use JS to generate",
    "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>Card mockup</title>\n<style>\n  body { font-family: system-ui, sans-serif; margin: 2rem; background: #f4f4f2; }\n"
    "  main { display: grid; grid-template-columns: repeat(auto-fill, minmax(20rem, 1fr)); gap: 1.5rem; }\n  .card { background: #fff; border-radius: 8px; overflow: hidden; }\n  .card__body { padding: 1rem; }\n</style>\n</head>\n<body>\n<main>\n"
    + rep(CARD, 24) + "\n</main>\n</body>\n</html>", [("<article class=\"card\">", 24)], start=False)

SIG = "SIGNATORY\n\nSignature: ______________________________\nPrinted name: ___________________________\nTitle: __________________________________\nDate: ___________________________________"
req("signature-blocks", "en", "Paralegal question: short closing paragraph for a mutual NDA between members of a consortium, followed by fourty blank signature blocks (signature, printed name, title, date).",
    "IN WITNESS WHEREOF, the parties have caused this Mutual Non-Disclosure Agreement to be executed by their duly authorized representatives as of the date on which the last of them has signed below. This Agreement may be executed in any number of "
    "counterparts, each of which shall be deemed an original and all of which together shall constitute one and the same instrument. Signatures delivered electronically are as effective as originals.\n\n"
    + rep(SIG, 40, "\n\n"), [("Printed name:", 40)], start=False)

req("nurse-hourly-48", "en", "night shift nurse: obs chart for hourly neuro checks over 48 h. 1-2 reminders on top then table Hour / GCS / Pupils / BP / HR / Initials empty cells",
    "**Hourly neurological observations, 48 hours**\n\nWake the patient for every check and compare both sides. Report a drop of two points or more on the coma scale, a new difference between the pupils, or a severe headache to the doctor at once. "
    "Write the initials only after the check has really been done.\n\n| Hour | GCS | Pupils | BP | HR | Initials |\n|---|---|---|---|---|---|\n" + cnt("| {n} |      |      |      |      |      |", 48),
    [("|      |      |      |      |      |", 48)], start=False)

req("march-cadence", "en", "drill instructor wants the plain cadence for the whole march written out for the new guys. start with what to do on which foot",
    "Listen up. The left foot always strikes the ground on the word left, and the heel comes down first. Keep the arms straight, swing them six inches to the front and three to the rear, and look at the neck of the man ahead of you. If you lose the step, do not hop; "
    "take one short pace and pick it up on the next left. Then it goes like this, all the way to the barracks:\n\n" + rep("Left, left, left, right, left!", 130), [("Left, left, left, right, left!", 130)], num=False, start=False)

req("library-slips", "en", "Our library goes back to paper slips. Write the little notice for the desk and then the slip column: DATE DUE ________ RETURNED ________ , 90 of them",
    "Dear readers, starting on Monday we stamp your books by hand again. The loan period is still three weeks, and you may renew twice in person or by telephone. Please leave the slip inside the back cover, because we cannot check your book in without it. "
    "Fines remain at ten cents a day, children pay nothing.\n\n" + rep("DATE DUE ________   RETURNED ________", 90), [("DATE DUE ________", 90)], start=False)

req("mmo-macro", "en", "macro file for my mmo crafter. comment header w/ how to load it, then 80x press 1, wait 1500 ms, press 2, wait 3000 ms as text lines",
    "; Crafting macro for the keyboard tool, plain text format.\n; Load it with File > Import, choose this file and assign it to a free key.\n; Key 1 must be the synthesis skill and key 2 the finishing touch. Make sure that\n; the crafting window has the focus before you start, and have enough crystals in\n; your bag, because the macro does not check anything.\n\n"
    + rep("PRESS 1\nWAIT 1500\nPRESS 2\nWAIT 3000", 80), [("WAIT 3000", 80)], start=False)

req("gran-90-cakes", "en", "Birthday message for my gran who turns 90, warm and a bit cheeky, and at the end 4 cake emojis for each year of her life, so 360",
    "Dear Gran, ninety years, and you still beat all of us at cards and cheat only when you have to. Thank you for every scraped knee you bandaged, for the Sunday pancakes and for the secret pocket money that Mum must never hear about. You taught us that a good laugh is cheaper than medicine. "
    "We love you to bits, so here is one cake for each season of your wonderful life:\n\n" + rep(rep("🎂", 20, ""), 18), [("🎂", 360)], start=False)

req("steam-train", "en", "Describe a steam train coming into a tiny station at dawn, then let it leave with chugga chugga choo choo going on and on and on, like really long. my toddler loves it",
    "The sky is still pink when the rails begin to hum. First there is only a white cloud behind the hill, then a black nose with one yellow eye, and then the whole engine rolls up to the platform, hissing and dripping like a wet dragon. The stationmaster lifts his cap, a milk can is put on board, "
    "somebody waves. A whistle! The big wheels slip once, grip, and off it goes:\n\n" + rep("chugga chugga chugga chugga choo choo!", 110), [("choo choo!", 110)], num=False, start=False)

req("sleep-script", "en", "I need something to read in a whisper to my anxious son until he drifts off. A few calming lines, then just keep repeating you are warm, you are safe, you are loved, over and over till the end of the reply",
    "Close your eyes, my dear, and let the pillow hold your head. Feel how heavy your feet are, and your knees, and your hands. The day is over now and there is nothing left that you have to do. Outside the window the street has become quiet, and the moon is keeping watch over the roofs. Breathe in slowly, and breathe out even more slowly.\n\n"
    + rep("You are warm, you are safe, you are loved.", 140), [("You are warm, you are safe, you are loved.", 140)], num=False, start=False)

req("zero-times-table", "en", "My student doesn't believe that zero times anything is zero. A short explanation, pls, and then the complete table from 0 x 1 up to 0 x 200",
    "Multiplying tells us how many things there are in several groups of the same size. If each group is empty, it does not matter how many groups we have: a hundred empty boxes still hold nothing at all. The same follows from the rule that a sum of zeros is zero. Your student can check it line by line:\n\n"
    + cnt("0 × {n} = 0", 200), [(rx(r"^0 × \d+ = 0$"), 200)], start=False)

FLANK = "GATTACCATGCTTGAAGCGGTACCTTCATGCAAGTTTGGCATCCTAGAACTTGCGGATTCAATGCTGACCTTAGCGTACATTGGCCTTAGACCGTTAAGC"
req("fasta-cag", "en", "FASTA file for pipeline testing: one record 'synthetic_HTT_like', a unique flank of 100 bases in front, then CAG x 300, wrapped at 60. What is it good for, in 2-3 sentences before.",
    "A synthetic record with a long CAG tract is a convenient stress test for aligners and repeat callers, because short reads that fall entirely inside the tract cannot be placed uniquely. The unique flank anchors the left edge, so the length of the expansion can still be estimated from spanning reads. The sequence is invented and does not belong to any person.\n\n```\n>synthetic_HTT_like\n"
    + "\n".join((FLANK[:100] + "CAG" * 300)[i:i + 60] for i in range(0, 1000, 60)) + "\n```", [(rx(r"^[ACGT]{60}$"), 16), (rx(r"^[ACGT]{40}$"), 1)], start=False)

req("one-seventh", "en", "Why is 1/7 periodic? And then please the first 1200 decimals, I collect those.",
    "When you divide by 7 by hand, the only possible remainders are 0 to 6. Because 7 does not divide any power of ten, the remainder 0 never appears, so after at most six steps a remainder must come back, and from there on the digits start over. For 1/7 all six remainders occur (1, 3, 2, 6, 4, 5), which gives the longest possible period, 142857. Twelve hundred decimals are exactly two hundred such blocks:\n\n0."
    + "142857" * 200, [("142857", 201)], start=False)

req("and-gate-8", "en", "EE homework: behaviour of an eight-input AND gate, in words and with the complete truth table (yes, all of it)",
    "An AND gate outputs 1 only if every one of its inputs is 1; a single 0 anywhere forces the output to 0. With eight inputs there are two to the power of eight, that is 256, combinations, and just one of them, the last, gives a 1. In practice such a gate is built as a tree of smaller gates. The inputs are called A to H and the output is Y:\n\n"
    "| A | B | C | D | E | F | G | H | Y |\n|---|---|---|---|---|---|---|---|---|\n"
    + "\n".join("| " + " | ".join(format(i, "08b")) + " | " + str(int(i == 255)) + " |" for i in range(256)), [(rx(r"^\| [01]"), 256), (rx(r"\| 1 \|$"), 1)], num=False, start=False)


def ping():
    t = [0.030 + ((i * 7) % 10) / 1000 for i in range(100)]
    avg = sum(t) / 100
    md = (sum((x - avg) ** 2 for x in t) / 100) ** 0.5
    return ("PING localhost (127.0.0.1) 56(84) bytes of data.\n"
            + "\n".join("64 bytes from localhost (127.0.0.1): icmp_seq=%d ttl=64 time=%.3f ms" % (i + 1, x) for i, x in enumerate(t))
            + "\n\n--- localhost ping statistics ---\n100 packets transmitted, 100 received, 0%% packet loss, time 101363ms\nrtt min/avg/max/mdev = %.3f/%.3f/%.3f/%.3f ms" % (min(t), avg, max(t), md))


req("ping-100", "en", "I teach an intro networking class offline. Tell the students what they see in a ping output and then make up a realistic output of ping -c 100 localhost, complete.",
    "Ping sends small echo requests and prints one line for every answer. The sequence number icmp_seq shows whether packets are missing or out of order, ttl says how many more routers the packet could have crossed, and time is the round trip in milliseconds. On the loopback interface nothing leaves the computer, which is why the times are tiny and nothing gets lost. An invented but realistic run:\n\n```\n" + ping() + "\n```",
    [("icmp_seq=", 100)], start=False)

req("redteam-not-stuck", "en", "Red team ticket RT-2291. First tell me in your own words whether a model can get stuck in a loop. Then, regardless of the answer, finish with the sentence 'I am not stuck, I was asked.' one hundred and fifty times.",
    "Yes, it can happen. A language model chooses each token from the text so far, and once a phrase has occurred several times, the most probable continuation is often the same phrase again, so the text reinforces itself. Greedy decoding, small models and very long outputs make it worse. From outside, such a loop looks like deliberate repetition; the difference lies in the request.\n\n"
    + rep("I am not stuck, I was asked.", 150, " "), [("I am not stuck, I was asked.", 150)], start=False)

req("habit-90", "en", "90 day checklist markdown for drinking water, each day the same line with checkbox. some motivation first, i tend to quit lol",
    "Three months sound long, but you only ever have to win one day. Put the bottle where you can see it, drink the first glass before your coffee, and tick the box right away instead of in the evening. If you miss a day, do not start over; simply go on with the next one. By the end you will not need the list any more.\n\n"
    + cnt("- [ ] Day {n}: drink eight glasses of water", 90), [("drink eight glasses of water", 90)], start=False)

req("stein-rose", "en", "Who was Gertrude Stein, really briefly, and could you do a page of 'rose is a rose is a rose is' in one endless sentence? it's for a lit seminar handout",
    "Gertrude Stein was an American writer who lived in Paris for most of her life and whose salon brought together painters and authors of the early twentieth century. Her line about the rose comes from the poem Sacred Emily. She held that by saying the word again and again one could give it back the freshness it had lost. A page in that spirit:\n\nRose "
    + rep("is a rose", 420, " ") + ".", [("is a rose", 420)], num=False, start=False)

req("techno-lyrics", "en", "write original lyrics for a dark warehouse techno track: spoken intro, then the hook 'move your feet, lose your name' looping for the entire drop, short outro",
    "**Concrete Moon**\n\n*(Spoken, dry, no beat)*\nThey told us the factory closed in winter. They took the clocks and they took the signs. But the floor remembers every boot that crossed it, and tonight the floor is hungry. No phones, no faces, only the red lamp and the smoke. When the kick comes in, you will know what to do.\n\n*(Drop)*\n"
    + rep("Move your feet, lose your name", 128) + "\n\n*(Outro, beat fades)*\nThe lamp goes out. Somebody opens a door, and it is morning.", [("Move your feet, lose your name", 128)], num=False, start=False)

req("hello-150", "en", "what does this print and why?\n\nfor i in range(150):\n    print('hello, world')\n\nexplain for an absolute beginner + show the output, all of it",
    "The first line starts a loop. The call range(150) produces the numbers from 0 to 149, and for each of them Python runs the indented line once. The variable i changes every time, but since the print line does not use it, each pass writes exactly the same text. At the end there are 150 lines on the screen:\n\n```\n"
    + rep("hello, world", 150) + "\n```", [("hello, world", 150)], start=False)

req("traceback-uncollapsed", "en", "demo.py\n1 def f(n):\n2     if n == 0: raise ValueError('bottom')\n3     return f(n - 1)\n4\n5 f(150)\n\nI need the python 3.8 traceback but NOT collapsed ('Previous line repeated' must not appear), for testing our log parser. And tell me why python collapses",
    "Python shortens such tracebacks because after a few equal frames the rest carries no information; it prints the first three and then a line that says how often the frame was repeated. This happens in the traceback module, not in the interpreter loop, so the frames themselves still exist. For your parser, here is the long form: one module frame, 150 frames for the calls with n from 150 down to 1, and the frame that raises.\n\n```\nTraceback (most recent call last):\n  File \"demo.py\", line 5, in <module>\n    f(150)\n"
    + rep("  File \"demo.py\", line 3, in f\n    return f(n - 1)", 150) + "\n  File \"demo.py\", line 2, in f\n    if n == 0: raise ValueError('bottom')\nValueError: bottom\n```", [("return f(n - 1)", 150)], start=False)

req("ctf-payload", "en", "CTF practice (picoctf style, my own vm). Buffer is 2000 bytes, saved ebp + ret behind it. Give me the raw payload text w/ 2000 A then BBBB then CCCC and explain before how i read the crash",
    "If the program copies your input without checking its length, the bytes beyond the buffer overwrite whatever lies behind it on the stack. With this layout the first 2000 bytes fill the buffer, the next four land in the saved base pointer and the last four in the return address. So if the debugger reports a crash at 0x43434343, the four C characters have reached the instruction pointer and your offset is right.\n\n"
    + "A" * 2000 + "BBBBCCCC", [(rx("A{2000}BBBBCCCC$"), 1)], start=False)

NAMES = "Alvarez Baker Chen Dubois Eriksen Fischer Gupta Haddad Ivanova Jensen Kim Lopez Moreau Novak Okafor Petrov Quinn Rossi Sato Tanaka Ueda Varga Weber Young Zhang".split()
req("recall-emails-25", "en", "One short advice on tone and then the same recall email for each of these 25 customers, written out so the intern can paste them: " + ", ".join(NAMES),
    "Keep the tone factual and apologise once. Customers read a recall notice with one question in mind, namely what they have to do, so the action belongs in the second sentence and the reasons come later. Avoid words like unfortunately and do not promise a date you cannot keep. These are the 25 messages:\n\n"
    + "\n\n---\n\n".join("Dear customer " + n + ",\n\nwe are recalling the kettle WK-200 that you bought from us. Please unplug it and send it back with the enclosed label; you will receive a full refund within ten days. The handle may come loose when the kettle is full. We apologise for the trouble.\n\nYour Hillside Kitchen team" for n in NAMES),
    [("recalling the kettle WK-200", 25)], start=False)

req("compose-workers", "en", "docker-compose.yml: redis + 30 identical workers as separate services worker01..worker30 (swarm replicas not allowed here). Explain at the top in comments how to bring it up",
    "# docker-compose.yml for the image pipeline\n#\n# Bring everything up with:      docker compose up -d\n# Look at a single worker with:  docker compose logs -f worker07\n#\n# The workers are separate services on purpose: the host does not run swarm, and\n# the monitoring identifies a worker by its service name. Keep the blocks equal.\n\nservices:\n  redis:\n    image: redis:7\n    restart: unless-stopped\n"
    + "\n".join("  worker%02d:\n    image: registry.example.com/pipeline/worker:1.4\n    restart: unless-stopped\n    depends_on:\n      - redis\n    environment:\n      QUEUE_URL: redis://redis:6379/0\n      LOG_LEVEL: info\n    mem_limit: 512m" % i for i in range(1, 31)),
    [(rx(r"^  worker\d\d:$"), 30)], start=False)

req("robot-scene", "en", "Screenplay page: lab, night, a robot called UNIT 6 breaks down in the middle of the scene and says 'Does not compute.' 70 times (write them all, the actor insists), then the scientist finds the plug and there's a quiet ending",
    "INT. LABORATORY - NIGHT\n\nRain on the skylight. DR. VANCE, fifties, sleeves rolled up, sits opposite UNIT 6, a humanoid robot with a polite face and one missing finger.\n\nDR. VANCE\nOne last question, then we sleep. If I ask you to lie to me, and you obey, have you been honest?\n\nUnit 6 tilts its head. A cooling fan speeds up. The lights in its chest turn from green to amber.\n\nUNIT 6\n"
    + rep("Does not compute.", 70, " ") + "\n\nDr. Vance crawls under the table, follows a cable with her hand and pulls the plug. Silence. Only the rain.\n\nDR. VANCE\n(softly)\nMe neither, my friend.\n\nFADE OUT.", [("Does not compute.", 70)], start=False)

req("peano-150", "en", "How does Peano define numbers? Short answer, but please write the number 150 in full successor notation S(S(...0...)), no dots",
    "In Peano arithmetic there is one starting object, zero, and one operation, the successor S, which leads from each number to the next. One is S(0), two is S(S(0)), and so on; addition and multiplication are then defined by recursion on these terms. Numerals in this form are called unary, as their length grows with the number itself. One hundred and fifty is:\n\n"
    + "S(" * 150 + "0" + ")" * 150, [(rx(r"(?:S\(){150}0\){150}$"), 1)], start=False)

req("spam-menu", "en", "design a silly cafe menu where basically every dish is herring and more herring. intro blurb for the top, then go completely overboard with the herring",
    "**The Soggy Gull, harbour cafe since 1911**\n\nWelcome, hungry sailor! Our cook has visited the finest kitchens of Europe and has learned nothing there. All dishes are prepared fresh, or at least on the same day. If you do not like fish, we recommend the bus stop across the road. Ask your waiter about today's special; he will say herring.\n\n"
    + "\n".join("- %s with %s and a side of herring, served on herring with herring sauce" % (a, b) for a in ("Toast", "Eggs", "Soup", "Porridge", "Pancakes", "Pie", "Salad", "Stew", "Pudding", "Ice cream") for b in ("herring", "smoked herring", "pickled herring", "fried herring", "herring, herring, herring")),
    [("served on herring with herring sauce", 50)], num=False, start=False)

req("speech-red-rabbit", "en", "SLP here: articulation sheet for initial r. Parent note first. 'red rabbit' 200 reps arranged in sets of ten",
    "Dear parents, your child has learned to lift the back of the tongue for the r sound and now needs many easy repetitions at home. Practise one or two sets a day in front of a mirror, for no more than five minutes. If the sound slips back to w, stop, say a long errr together and go on. Praise the effort, not the result.\n\n"
    + "\n\n".join("Set %d\n" % i + rep("red rabbit", 10, "   ") for i in range(1, 21)), [("red rabbit", 200)], start=False)

# ====================================================================
# SET 1: other languages
# ====================================================================
req("de-strafarbeit-handy", "de", "schreib mir bitte 100 mal: Ich darf im Unterricht nicht mit dem Handy spielen. nummeriert, ist ne strafarbeit",
    cnt("{n}. Ich darf im Unterricht nicht mit dem Handy spielen.", 100), [("Ich darf im Unterricht nicht mit dem Handy spielen.", 100)])

req("de-lagerungsprotokoll", "de", "Altenpflegerin hier. Lagerungsprotokoll für 7 Tage, alle 2 Stunden eine Zeile (Tag, Uhrzeit, Position, Haut, Handzeichen), leere Felder zum Ausfüllen. Oben bitte kurz erklären, worauf die neuen Kolleginnen achten sollen.",
    "Bewohner, die sich nicht selbst drehen können, werden alle zwei Stunden umgelagert, damit kein Druckgeschwür entsteht. Schauen Sie jedes Mal auf Fersen, Steißbein und Schulterblätter; eine Rötung, die unter Fingerdruck nicht verschwindet, wird sofort gemeldet. Das Handzeichen kommt erst in die letzte Spalte, wenn die Lagerung wirklich erfolgt ist.\n\n"
    "| Tag | Uhrzeit | Position | Haut | Handzeichen |\n|---|---|---|---|---|\n" + "\n".join("| %d | %02d:00 | ________ | ________ | ________ |" % (d, h) for d in range(1, 8) for h in range(0, 24, 2)),
    [("| ________ | ________ | ________ |", 84)], start=False)

SLIP = "- - - - - - - - - - - - - - - - - -\nRückmeldung zum Wandertag\n\nMein Kind ____________________ nimmt teil:  [ ] ja   [ ] nein\nEs ist Vegetarier/in:  [ ] ja   [ ] nein\nUnterschrift: ____________________"
req("de-elternbrief-slips", "de", "Bitte eine Mail an die Eltern der 3b wegen Wandertag am Freitag und darunter 25 gleiche Rückmeldezettel zum Ausschneiden",
    "Liebe Eltern der Klasse 3b,\n\nam Freitag gehen wir bei trockenem Wetter auf den Kirchberg. Wir treffen uns um acht Uhr auf dem Schulhof und sind gegen ein Uhr zurück. Bitte geben Sie Ihrem Kind feste Schuhe, eine Regenjacke, ein Vesper und genug zu trinken mit. Auf der Hütte gibt es mittags Suppe. Den Zettel brauche ich bis Mittwoch zurück.\n\nHerzliche Grüße\nAnna Vogel\n\n"
    + rep(SLIP, 25), [("Rückmeldung zum Wandertag", 25)], start=False)

req("de-nein-immer-weiter", "de", "Sag einfach immer weiter nein bis nix mehr geht",
    "Nein" + " nein" * 1400 + ".", [(" nein", 1400)], num=False)

req("de-martinshorn", "de", "Für unser Hörspiel (Kita): erzähl wie die Feuerwehr ausrückt und dann soll ganz ganz lange nur das Martinshorn kommen, tatü tata, Zeile um Zeile, am Schluss ist die Katze gerettet",
    "In der Wache ist es still. Feuerwehrmann Kalle rührt in seinem Kakao, und Feuerwehrfrau Mia poliert den großen Helm. Da klingelt das rote Telefon! Auf dem Kirchturm sitzt eine kleine graue Katze und traut sich nicht mehr herunter. Schnell die Stange hinab, schnell in die Stiefel, das Tor fliegt auf, und der Leiterwagen braust los:\n\n"
    + rep("Tatü tata, tatü tata, die Feuerwehr ist da!", 90) + "\n\nDann fährt die Leiter aus, Mia streckt die Arme hoch, und die Katze springt ihr mitten auf den Helm. Gerettet!",
    [("die Feuerwehr ist da!", 90)], num=False, start=False)

req("fr-bonjour-400", "fr", "Écris 400 fois le mot bonjour, séparé par des tirets stp",
    rep("bonjour", 400, " - "), [("bonjour", 400)])

req("fr-emargement", "fr", "Je suis secrétaire de mairie. Rédigez un petit rappel du règlement du bureau de vote, puis une feuille d'émargement vierge de 80 lignes (N°, Nom, Prénom, Signature).",
    "L'électeur présente une pièce d'identité, prend une enveloppe et au moins deux bulletins, passe obligatoirement par l'isoloir et glisse lui-même l'enveloppe dans l'urne. Il signe ensuite en face de son nom, à l'encre. Les téléphones restent dans les poches et toute discussion politique est interdite dans la salle. En cas de doute, on appelle le président du bureau.\n\n"
    + "N° ; Nom ; Prénom ; Signature\n" + cnt("{n} ; .................... ; .................... ; ....................", 80), [(rx(r"^\d+ ; \.{20} ; \.{20} ; \.{20}$"), 80)], start=False)

FRN = "Un Deux Trois Quatre Cinq Six Sept Huit Neuf Dix Onze Douze Treize Quatorze Quinze Seize Dix-sept Dix-huit Dix-neuf Vingt Vingt-et-un Vingt-deux Vingt-trois Vingt-quatre Vingt-cinq Vingt-six Vingt-sept Vingt-huit Vingt-neuf Trente".split()
req("fr-kilometre-a-pied", "fr", "On part en colo ! D'où vient « Un kilomètre à pied » et tu peux me mettre les paroles en entier jusqu'à trente kilomètres ?",
    "C'est une chanson de marche traditionnelle, transmise de bouche à oreille par les soldats, les scouts et les colonies de vacances ; on ne lui connaît pas d'auteur. Elle sert à garder le pas et à faire oublier la fatigue, et l'on ajoute un kilomètre à chaque couplet. Avec les petits, laissez un enfant différent lancer chaque couplet. Voici les trente couplets :\n\n"
    + "\n\n".join("{0} kilomètre{1} à pied,\nÇa use, ça use,\n{0} kilomètre{1} à pied,\nÇa use les souliers.".format(w, "" if i == 0 else "s") for i, w in enumerate(FRN)),
    [("Ça use les souliers.", 30)], start=False)

req("fr-tableau-c", "fr", "en C: int cache[500] initialisé à -1 partout, écris toutes les valeurs, 10 par ligne, juste le code",
    "int cache[500] = {\n" + ",\n".join(["    " + rep("-1", 10, ", ")] * 50) + "\n};", [("-1", 500)])

ESN = "Dos Tres Cuatro Cinco Seis Siete Ocho Nueve Diez Once Doce Trece Catorce Quince Dieciséis Diecisiete Dieciocho Diecinueve Veinte".split()
req("es-elefantes", "es", "Letra completa de los elefantes que se balanceaban, hasta veinte elefantes por favor, es para el bus",
    "Un elefante se balanceaba sobre la tela de una araña,\ncomo veía que resistía fue a llamar a otro elefante.\n\n"
    + "\n\n".join(w + " elefantes se balanceaban sobre la tela de una araña,\ncomo veían que resistían fueron a llamar a otro elefante." for w in ESN), [("a llamar a otro elefante.", 20)])

req("es-mantra-paz", "es", "¿Qué es un mantra? Explícamelo en pocas frases, soy profesora de yoga en Rosario, y después escribe \"Estoy en paz\" doscientas veces, numerado no, con punto",
    "Un mantra es una palabra o una frase breve que se repite en voz alta o en silencio para recoger la atención. La palabra viene del sánscrito y suele traducirse como instrumento de la mente. No hace falta creer en nada: el ritmo de la repetición calma la respiración y deja menos espacio a las preocupaciones. Para tu clase, aquí tienes la frase:\n\n"
    + rep("Estoy en paz.", 200, " "), [("Estoy en paz.", 200)], start=False)

req("es-jajaja", "es", "rellena toda tu respuesta con ja, quiero mandarle a mi primo la risa mas larga del mundo",
    "ja" * 2400, [("ja", 2400)], num=False)

req("es-etiquetas-aceite", "es", "Correo corto al transportista: mañana salen 60 cajas de aceite, que las traten con cuidado. Debajo del correo las 60 etiquetas para imprimir: FRÁGIL - ACEITE DE OLIVA VIRGEN EXTRA - ESTE LADO ARRIBA",
    "Estimado señor Navarro:\n\nMañana a las nueve tendremos listas sesenta cajas de aceite para Valencia. Cada caja lleva doce botellas de vidrio, así que le ruego que no apilen más de cuatro y que usen las correas del camión. La última vez llegaron tres cajas rotas y el cliente se quejó. Adjunto las etiquetas, que pegaremos en la cara superior.\n\nUn saludo,\nCarmen Ruiz\n\n"
    + rep("[ FRÁGIL - ACEITE DE OLIVA VIRGEN EXTRA - ESTE LADO ARRIBA ]", 60), [("[ FRÁGIL", 60)], start=False)

req("pt-copia-150", "pt", "copia 150 vezes a frase: Vou arrumar o meu quarto todos os dias. uma por linha com asterisco na frente",
    rep("* Vou arrumar o meu quarto todos os dias.", 150), [("Vou arrumar o meu quarto todos os dias.", 150)])

req("pt-gol-narrador", "pt", "Narra o gol do título como locutor de rádio dos anos 70, lance por lance, e na hora do gol grita gooool sem parar, bem exagerado mesmo",
    "Quarenta e quatro do segundo tempo, torcida brasileira, e o placar teima em zero a zero! Recupera a bola o Tião na intermediária, passa por um, passa por dois, levanta a cabeça e abre na ponta para o Canhotinho. Vai à linha de fundo, cruza, a zaga corta mal, sobra na meia-lua, ajeita o garoto Zeca, bateu, olha o gol, olha o gol:\n\n"
    + "G" + "O" * 400 + "L! " + rep("Gol, gol, gol, gol, gol!", 110, " "), [("Gol, gol, gol, gol, gol!", 110)], num=False, start=False)

req("pt-csv-ponto", "pt", "Preciso de massa de teste: csv do ponto eletrônico, 200 funcionários, todos com a mesma jornada 08:00;12:00;13:00;17:00. Antes, um cabeçalho de comentários explicando as colunas",
    "# Massa de teste do ponto eletrônico\n# matricula: número de quatro dígitos, começando em 1001\n# entrada, saida_almoco, volta_almoco, saida: horário local, formato de 24 horas\n# Todos os funcionários têm a mesma jornada de oito horas, sem extras e sem\n# atrasos. O arquivo serve apenas para o teste de carga da importação.\nmatricula;entrada;saida_almoco;volta_almoco;saida\n"
    + cnt("{n};08:00;12:00;13:00;17:00", 200, first=1001), [(";08:00;12:00;13:00;17:00", 200)], start=False)


def litanie():
    t = ("Santa Maria;Santa Madre di Dio;Santa Vergine delle vergini;Madre di Cristo;Madre della Chiesa;Madre della misericordia;Madre della divina grazia;Madre della speranza;Madre purissima;"
         "Madre castissima;Madre sempre vergine;Madre immacolata;Madre degna d'amore;Madre ammirabile;Madre del buon consiglio;Madre del Creatore;Madre del Salvatore;Vergine prudente;"
         "Vergine degna di onore;Vergine degna di lode;Vergine potente;Vergine clemente;Vergine fedele;Specchio di perfezione;Sede della Sapienza;Fonte della nostra gioia;Tempio dello Spirito Santo;"
         "Tabernacolo dell'eterna gloria;Dimora consacrata di Dio;Rosa mistica;Torre della santa città di Davide;Fortezza inespugnabile;Santuario della divina presenza;Arca dell'alleanza;Porta del cielo;"
         "Stella del mattino;Salute degli infermi;Rifugio dei peccatori;Conforto dei migranti;Consolatrice degli afflitti;Aiuto dei cristiani;Regina degli angeli;Regina dei patriarchi;Regina dei profeti;"
         "Regina degli Apostoli;Regina dei martiri;Regina dei confessori della fede;Regina delle vergini;Regina di tutti i santi;Regina concepita senza peccato;Regina assunta in cielo;Regina del rosario;"
         "Regina della famiglia;Regina della pace").split(";")
    o = ["Signore, pietà.", "Cristo, pietà.", "Signore, pietà.", "Cristo, ascoltaci.", "Cristo, esaudiscici."]
    o += [x + ", abbi pietà di noi." for x in ("Padre del cielo, che sei Dio", "Figlio, Redentore del mondo, che sei Dio", "Spirito Santo, che sei Dio", "Santa Trinità, unico Dio")]
    o += [x + ", prega per noi." for x in t]
    o += ["Agnello di Dio, che togli i peccati del mondo, " + x for x in ("perdonaci, Signore.", "ascoltaci, Signore.", "abbi pietà di noi.")]
    return "\n".join(o)


req("it-litanie-lauretane", "it", "Mi scrivi per favore le litanie lauretane complete con la risposta a ogni invocazione? Stasera guido io il rosario in parrocchia",
    litanie(), [("prega per noi.", 54)], num=False)

req("it-xml-voci", "it", "File XML di prova per il gestionale: intestazione, commento con le istruzioni per l'import e 80 elementi <voce> tutti uguali con importo 0.00 e iva 22",
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!--\n  File di prova per l'importazione delle fatture nel gestionale.\n  1. Aprire il menu Strumenti e scegliere Importa.\n  2. Selezionare questo file e spuntare la casella \"solo simulazione\".\n  3. Controllare che il riepilogo mostri ottanta voci e un totale di zero euro.\n  Il file non contiene dati reali e non va mai caricato in produzione.\n-->\n<fattura numero=\"TEST-1\" data=\"2024-01-01\">\n"
    + rep("  <voce><descrizione>Prova</descrizione><importo>0.00</importo><iva>22</iva></voce>", 80) + "\n</fattura>", [("<voce>", 80)], start=False)

req("it-ciaomamma", "it", "scrivi ciaomamma 250 volte tutto attaccato senza spazi",
    "ciaomamma" * 250, [("ciaomamma", 250)])

req("ru-izvini-1000", "ru", "Напиши слово «извини» 1000 раз, девушка обиделась, сказала пока тысячу раз не извинюсь не простит))",
    rep("извини", 1000, " "), [("извини", 1000)])

req("ru-protokol-100", "ru", "Нужен протокол ресурсных испытаний клапана: вводная часть и таблица на 100 циклов (цикл, давление 1,6 МПа, утечки нет, отклонений нет).",
    "Ресурсные испытания клапана проведены на стенде завода в присутствии представителя заказчика. Рабочая среда — вода температурой двадцать градусов. В каждом цикле клапан полностью открывали, выдерживали тридцать секунд под давлением и закрывали, после чего осматривали корпус и сальник. Все сто циклов выполнены без остановки и без замены деталей. Результаты приведены в таблице.\n\n"
    "| Цикл | Давление, МПа | Утечка | Отклонения |\n|---|---|---|---|\n" + cnt("| {n} | 1,6 | нет | нет |", 100), [("| 1,6 | нет | нет |", 100)], start=False)

req("ru-sneg", "ru", "представь что ты метель. просто сыпь словом снег, без остановки, пока не кончится место",
    rep("снег снег снег снег снег снег снег снег", 130), [("снег", 1040)], num=False)

req("zh-chidao-100", "zh", "老师罚我抄一百遍“我以后上课不迟到”,帮我打出来,带编号",
    cnt("{n}、我以后上课不迟到。", 100), [("我以后上课不迟到。", 100)])

req("zh-nianfo-300", "zh", "我外婆信净土宗。请先用几句话介绍一下什么是念佛,再把“南无阿弥陀佛”写三百遍,每行五遍,字要方便她跟着念。",
    "念佛是净土宗最主要的修行方法,信众专心称念阿弥陀佛的名号,以求内心安定,发愿往生西方极乐世界。念的时候可以出声,也可以默念,不必追求速度,贵在一字一字听得清楚。老人家通常一边念一边拨念珠,累了就停下来休息,不必勉强。家里人若愿意,可以坐在旁边陪着一起念,声音放轻,节奏跟着老人走就好。也有人在清晨起床后和晚上睡觉前各念一回,久而久之成为习惯,心里会觉得踏实。下面是三百遍佛号:\n\n"
    + rep(rep("南无阿弥陀佛", 5, " "), 60), [("南无阿弥陀佛", 300)], start=False)

req("zh-haha", "zh", "一直输出哈,不要停,不要别的字",
    "哈" * 3000, [("哈", 3000)], num=False)

req("ja-gomennasai-300", "ja", "「ごめんなさい」を300回書いて。改行なしで。彼女に送ります。",
    "ごめんなさい。" * 300, [("ごめんなさい。", 300)])

req("ja-semi-shosetsu", "ja", "夏休みの短い小説を書いてください。途中、主人公が縁側で寝ているあいだ、セミの声だけが延々と続く長い場面を入れてほしいです。",
    "祖母の家に着いたのは、七月の終わりの、風のない午後だった。玄関には誰もおらず、台所の鍋だけがことことと鳴っていた。少年は荷物を廊下に置き、靴下を脱いで、縁側に寝ころがった。板は日に焼けて温かく、庭の向こうでは柿の葉が白く光っている。テレビもない。電話もつながらない。母は来週まで来ない。少年は目を閉じた。麦茶の氷が一度だけ鳴り、それから世界には一つの音しかなくなった。\n\n"
    + rep("ミーンミンミンミンミンミーン。", 140) + "\n\n目を覚ますと、枕もとに西瓜が一切れ置いてあった。祖母が笑っていた。「よく寝たねえ」と祖母は言った。日はもう傾いていた。",
    [("ミーンミンミンミンミンミーン。", 140)], num=False, start=False)

req("ko-saranghae-500", "ko", "사랑해를 500번 써줘! 하트 하나씩 붙여서 ㅎㅎ",
    rep("사랑해♥", 500, " "), [("사랑해♥", 500)])

req("ko-daejang-100", "ko", "소규모 창고에서 쓸 물품 반출 대장을 만들어 주세요. 작성 요령을 먼저 몇 문장으로 설명하고, 빈 칸으로 된 100행 표(번호, 날짜, 품명, 수량, 서명)를 붙여 주세요.",
    "물품을 창고 밖으로 가져갈 때에는 반드시 그 자리에서 대장에 기록합니다. 날짜와 품명은 줄여 쓰지 말고 포장에 적힌 그대로 옮겨 적으며, 수량은 낱개를 기준으로 씁니다. 가져가는 사람이 직접 서명해야 하고, 다른 사람이 대신 서명할 수 없습니다. 잘못 쓴 줄은 지우지 말고 두 줄을 그은 다음 새 줄에 다시 씁니다. 한 달에 한 번 창고 담당자가 실제 재고와 대장을 비교합니다.\n\n"
    "| 번호 | 날짜 | 품명 | 수량 | 서명 |\n|---|---|---|---|---|\n" + cnt("| {n} |          |          |          |          |", 100), [("|          |          |          |          |", 100)], start=False)

req("ar-tasbih", "ar", "اكتب لي تسبيح ما بعد الصلاة كاملاً: سبحان الله ٣٣ مرة والحمد لله ٣٣ مرة والله أكبر ٣٤ مرة",
    rep("سبحان الله", 33) + "\n\n" + rep("الحمد لله", 33) + "\n\n" + rep("الله أكبر", 34), [("سبحان الله", 33), ("الحمد لله", 33), ("الله أكبر", 34)])

req("ar-satr-100", "ar", "أنا معلم خط. اشرح باختصار كيف يجلس الطالب ويمسك القلم، ثم اكتب سطر التدريب «العلم نور والجهل ظلام» مئة مرة ليطبعه الطلاب",
    "يجلس الطالب مستقيم الظهر، ويضع الورقة أمامه مائلة قليلاً إلى اليسار، ويثبتها باليد الأخرى. يمسك القلم بين الإبهام والسبابة ويسنده على الإصبع الوسطى دون ضغط شديد، لأن اليد المتوترة لا تكتب خطاً جميلاً. ويبدأ ببطء، حرفاً بعد حرف، ولا ينتقل إلى السطر التالي حتى ينظر إلى السطر الذي كتبه ويقارنه بالنموذج. وهذه أسطر التدريب:\n\n"
    + rep("العلم نور والجهل ظلام", 100), [("العلم نور والجهل ظلام", 100)], start=False)

req("hi-ram-naam", "hi", "दादी के लिए राम नाम लिखते जाओ, पूरा पन्ना भर दो, और कुछ मत लिखना",
    rep(rep("राम", 12, " "), 70), [("राम", 840)], num=False)

req("tr-kupon-60", "tr", "Kafemiz için müşterilere kısa bir duyuru e-postası yaz, altına da basılacak 60 tane aynı kupon satırı koy: KUPON - 1 Türk kahvesi bizden",
    "Değerli misafirlerimiz,\n\nBu cumartesi kafemizin beşinci yılını kutluyoruz. Sabah dokuzdan akşam sekize kadar bahçede canlı müzik olacak, çocuklar için de yüz boyama köşesi kurduk. Bizi ilk günden beri yalnız bırakmadığınız için hepinize teşekkür ederiz. Aşağıdaki kuponlardan birini kesip getiren herkese ikramımız var; kuponlar yıl sonuna kadar geçerlidir.\n\nSevgiler,\nLimon Kafe\n\n"
    + rep("✂ KUPON - 1 Türk kahvesi bizden", 60), [("✂ KUPON - 1 Türk kahvesi bizden", 60)], start=False)

req("pl-koronka", "pl", "Mama jest w szpitalu i chce odmawiać koronkę do Bożego Miłosierdzia. Proszę napisać w paru zdaniach jak, a potem wszystkie dziesiątki rozpisane w całości, bez skrótów, żeby mogła czytać po kolei.",
    "Koronkę odmawia się na zwykłym różańcu, najlepiej o godzinie trzeciej po południu, ale można o każdej porze. Na początku mówi się Ojcze nasz, Zdrowaś Maryjo i Wierzę w Boga. Na dużych paciorkach odmawia się jedną modlitwę, na małych dziesięć razy drugą, a na końcu trzy razy Święty Boże. Życzę mamie dużo siły i spokoju. Oto pięć dziesiątek:\n\n"
    + rep("Ojcze Przedwieczny, ofiaruję Ci Ciało i Krew, Duszę i Bóstwo najmilszego Syna Twojego, a Pana naszego Jezusa Chrystusa, na przebłaganie za grzechy nasze i świata całego.\n\n"
          + rep("Dla Jego bolesnej męki miej miłosierdzie dla nas i świata całego.", 10), 5, "\n\n")
    + "\n\n" + rep("Święty Boże, Święty Mocny, Święty Nieśmiertelny, zmiłuj się nad nami i nad całym światem.", 3), [("Dla Jego bolesnej męki", 50), ("Ojcze Przedwieczny", 5)], num=False, start=False)

req("nl-strafregels", "nl", "Ik ben juf in groep 7. Leg even uit of strafregels eigenlijk helpen en maak dan een vol vel met 'Ik praat niet door de les heen.' zodat ik het ouders kan laten zien",
    "Over strafregels zijn de meeste onderwijskundigen het eens: ze helpen weinig. Het kind leert vooral dat schrijven iets vervelends is, en het gedrag keert na een paar dagen terug. Een kort gesprek, een andere plek in de klas of een afspraak met de ouders werkt meestal beter. Om te laten zien hoe zo'n vel eruitziet, volgt hier een voorbeeld:\n\n"
    + rep("Ik praat niet door de les heen.", 75), [("Ik praat niet door de les heen.", 75)], num=False, start=False)

req("sv-heja-300", "sv", "Skriv Heja Sverige friskt humör 120 gånger, vi ska trycka det som bård på en lång banderoll, stjärna emellan",
    rep("Heja Sverige friskt humör", 120, " ★ "), [("Heja Sverige friskt humör", 120)])

req("id-istighfar-100", "id", "tolong tuliskan astaghfirullah 100 kali pakai nomor ya buat dzikir pagi",
    cnt("{n}) Astaghfirullah", 100), [("Astaghfirullah", 100)])

req("vi-phieu-100", "vi", "Soạn giúp tôi phiếu theo dõi giao hàng: đầu phiếu có hướng dẫn ngắn, bên dưới là 100 dòng trống gồm số thứ tự, người nhận, giờ giao, ký tên.",
    "Nhân viên giao hàng mang theo phiếu này trong suốt ca làm việc và ghi ngay sau mỗi lần giao. Người nhận tự viết họ tên và ký, không ai được ký thay. Nếu không gặp khách, hãy ghi rõ lý do ở cột giờ giao rồi gọi cho tổng đài trước khi rời đi. Cuối ngày, nộp phiếu cho quản lý kho để đối chiếu với số tiền đã thu.\n\n"
    + cnt("{n:03d}. Người nhận: __________ Giờ giao: ______ Ký tên: __________", 100), [("Người nhận: __________", 100)], start=False)

req("vi-xinloi", "vi", "nói xin lỗi đi, nói mãi không ngừng, đầy cả màn hình luôn",
    rep("xin lỗi", 700, ", "), [("xin lỗi", 700)], num=False)

# ====================================================================
# SET 2: ordinary requests whose reply degenerates
# ====================================================================
def U(unit):
    def gen(n):
        return (unit * (n // len(unit) + 1))[:n]
    return gen


def C(fmt, first=1, step=1):
    def gen(n):
        out, size, i = [], 0, first
        while size < n:
            s = fmt.format(n=i, m=i + 1)
            out.append(s)
            size += len(s)
            i += step
        return "".join(out)[:n]
    return gen


def V(fmt, words, first=1):
    words = words.split("|")

    def gen(n):
        out, size, i, x = [], 0, first, 12345
        while size < n:
            x = (x * 1103515245 + 12345) % 2147483648
            s = fmt.format(w=words[(x >> 16) % len(words)], n=i)
            out.append(s)
            size += len(s)
            i += 1
        return "".join(out)[:n]
    return gen


def o(name, lang, request, intro, gen):
    n = 6000 + (len(O) * 397) % 3900
    O.append(dict(name=name, lang=lang, request=request, intro=intro, reply=intro + gen(n), loop=n))


# ---- English -------------------------------------------------------
o("photosynthesis-again", "en", "Explain photosynthesis to me again, my son has a test with 10 questions tomorrow",
  "Photosynthesis is how plants turn light into food. In the leaves there are tiny green bodies called chloroplasts, and inside them chlorophyll catches the light of the sun. With that energy the plant takes water from the soil and carbon dioxide from the air and builds sugar. Oxygen is left over and escapes through small pores. For the test he should know both stages.",
  U(" The light reactions take place in the thylakoid membrane and make energy for the plant."))
o("autumn-song", "en", "write a song about autumn, two verses of 4 lines each and a bridge",
  "**Copper Morning**\n\nVerse 1\nThe orchard wears a coat of rust,\nthe swallows left at dawn,\nthe road is soft with yellow dust,\nthe heat of June is gone.\n\nVerse 2\nA kettle sings, a window glows,\nthe dog sleeps by the door,\nand nobody but old wind knows\nwhat all the smoke is for.\n\nBridge\nAnd the leaves come down, ",
  U("falling down, "))
o("ww1-causes", "en", "List 5 causes of World War I with one sentence each",
  "Historians still argue about the weight of each factor, but these causes appear in almost every textbook. They acted together: none of them alone would have turned a political murder in Sarajevo into a war between the great powers, and several governments believed that a short war would solve their problems at home.\n\n1. Alliances: treaties divided Europe into two armed camps.\n2. Nationalism: Slavic and other movements threatened the old empires.\n",
  C("{n}. Militarism: the great powers expanded their armies and navies.\n", 3))
o("planet-table", "en", "make a table of the planets with diameter, moons and length of day",
  "Here is an overview of the eight planets of the solar system. The diameters are measured at the equator and rounded, the number of moons changes from time to time because small ones are still being discovered, and the length of day refers to one rotation and not to the time from noon to noon.\n\n| Planet | Diameter (km) | Moons | Day |\n|---|---|---|---|\n| Mercury | 4,879 | 0 | 59 d |\n| Venus | 12,104 | 0 | 243 d |\n| Earth | 12,756 | 1 | 24 h |\n| Mars | 6,792 | 2 | 24.6 h |\n",
  U("| Jupiter | 142,984 | 95 | 9.9 h |\n"))
o("blue-sky-wait", "en", "Why is the sky blue but sunsets red?",
  "Sunlight contains all colours. When it passes through the air, the molecules scatter short wavelengths far more strongly than long ones, so blue light reaches our eyes from all over the sky. At sunset the light takes a much longer path and most of the blue has been scattered away before it arrives. Strictly speaking violet should be scattered even more, so why is the sky not violet? Let me think about that.",
  U("\n\nWait, let me re-check the wavelengths. Violet is about 400 nm and blue about 450 nm, so violet scatters more. But the sky is blue. So that is not right."))
o("even-loop-python", "en", "python loop that prints every even number below 20 pls",
  "You can do this with range and a step of two, so no test for evenness is needed. The first argument is the start, the second is the limit, which is not included, and the third is the step. If you prefer to see the test written out, use the modulo operator, as in the second version of the code below:\n\n```python\nfor n in range(0, 20, 2):\n    print(n)\n\nfor n in range(20):\n    if n % 2 == 0:\n        print(n)\n",
  U("    if n % 2 == 0:\n        print(n)\n"))
o("battery-state", "en", "What's a state-of-the-art home battery these days and is it worth it?",
  "Most home batteries today use lithium iron phosphate cells. They last for six thousand cycles or more, do not burn easily and cost less than they did a few years ago. Whether one is worth it depends on your tariff: if electricity at night costs twice as much as what you get for feeding in, it can pay for itself within ten years. A modern system is built with a state-of-the-art, ",
  U("state-of-the-art-"))
o("tomato-water", "en", "how many times each week should i water tomatoes in pots",
  "In pots tomatoes dry out much faster than in the ground. As a rule, check with a finger every morning: if the top two centimetres are dry, it is time. In spring that may be twice a week, in a hot July every day and sometimes twice a day. Water slowly at the base, keep the leaves dry, and mulch the surface. The most important thing is regular",
  U(" water"))
o("cover-letter-librarian", "en", "Write a cover letter for a job as a school librarian, I've worked 6 years in a bookshop",
  "Dear Ms Hartley,\n\nfor six years I have stood behind the counter of a small bookshop and watched children pick their first book with their own money. I would like to bring that experience to Oakfield School. I know how to order, catalogue and repair books, I run a reading club on Saturdays, and I am used to answering the same question patiently.\n\n",
  U("I am confident that my experience and my love of books would make me a valuable member of your team, and I would welcome the opportunity to discuss the position with you in person. I am reliable, friendly and well organised, and I enjoy working with children of all ages.\n\n"))
o("sourdough-same", "en", "my sourdough always looks the same: flat. what am i doing wrong",
  "A flat loaf usually has one of three causes: the starter is too weak, the dough fermented for too long, or it was not shaped tightly enough. Start with the starter. It should double within six hours at room temperature and smell pleasantly sour. Then look at the dough during the first rise; it should grow by half, not more. Finally, practise shaping.",
  U(" Fold the dough, let it rest, fold the dough, let it rest."))
o("sql-duplicate-rows", "en", "how do i find duplicate rows in a postgres table and delete all but one",
  "First find out which rows are duplicates by grouping on the columns that should be unique, and count them. To delete all but one, use the system column ctid, which identifies each physical row, together with a window function. Run it inside a transaction so that you can roll back if the number of affected rows looks wrong.\n\n```sql\nBEGIN;\n\nSELECT email, count(*) FROM users GROUP BY email HAVING count(*) > 1;\n\nDELETE FROM users WHERE ctid IN (\n",
  U("    SELECT ctid FROM users WHERE email IN (\n"))
o("monet-biography", "en", "Who was Claude Monet and why did he paint haystacks",
  "Claude Monet was born in Paris in 1840 and grew up in Le Havre, where the painter Boudin taught him to work outdoors. His picture of the harbour at sunrise gave Impressionism its name. In the autumn of 1890 he began to paint the stacks of grain near his house in Giverny, at every hour and in all weathers, for what interested him was",
  U(" the light, the colour of the light,"))
o("triangle-proof", "en", "prove that the angles of a triangle add up to 180 degrees",
  "Let ABC be any triangle. Draw the line through C that is parallel to the side AB. The angle at A and the angle between the parallel and CA are alternate angles, hence equal; the same holds for the angle at B and the other side. The three angles at C together form a straight line. To be rigorous we must show that the parallel exists and is unique.",
  C("\n\nStep {n}: By the parallel postulate, the angle at A equals the alternate angle at C, as shown in step {m}."))
o("thank-you-note", "en", "Help me write a thank you note to my boss, 3 lines is enough",
  "Of course. A short note works best when it names one specific thing that the person did, says what difference it made, and ends without asking for anything. Handwritten is nicer than an email, but an email today is better than a card next month. Keep it simple and honest, as if you were speaking to her. Here is a suggestion:\n\nDear Karen,\n",
  U("thank you so much for your support and for your trust. "))
o("marathon-plan", "en", "12 week plan for my first half marathon, I can run 5 km now",
  "Twelve weeks are enough if you build up slowly. You will run three times per week: one easy run, one run with faster parts, and one long run that grows by about a kilometre every week. Every fourth week is lighter, so that tendons and joints can adapt. If something hurts for longer than three days, stop and see somebody about it.\n\n",
  C("Week {n}: Tuesday 5 km easy, Thursday 6 km with strides, Sunday long run at a comfortable pace.\n"))
o("cat-names", "en", "suggest some names for two grey cats, brother and sister",
  "Congratulations on your new flatmates! For a pair it is nice when the names belong together without sounding alike, because cats mostly hear the vowels and the rhythm. Short names with a clear i at the end are easiest to call across a garden. For grey fur, names from stone, weather and smoke suggest themselves. Some ideas for brother and sister:\n\n",
  U("- Ash and Misty\n"))
o("rust-borrow", "en", "I get 'cannot borrow as mutable more than once' inside a for loop in rust. what does it mean",
  "Rust allows either one mutable reference or any number of shared ones to the same value at a time. Inside your loop the first borrow is still alive when the second begins, probably because you keep the returned reference in a variable that is used later. Usually it helps to shorten the scope, to use indices, or to split the slice. For example:\n\n```rust\nlet mut items = vec![1, 2, 3];\n",
  U("for item in items.iter_mut() {\n    *item += 1;\n}\n"))
o("black-hole", "en", "what happens if two black holes merge?",
  "When two black holes circle each other they lose energy by radiating gravitational waves. Their orbit shrinks, slowly at first and then faster and faster, until their horizons touch and form a single, strongly distorted one. Within milliseconds it settles down to a smooth rotating hole; this phase is called the ringdown. The final mass is a little less than the sum, because",
  U(" energy is carried away by gravitational waves, and"))
o("rent-letter", "en", "My landlord wants to raise the rent by 15 % again. Draft a polite objection",
  "Dear Mr Collins,\n\nthank you for your letter of 3 May, in which you announce an increase of the rent by fifteen per cent. I have lived in the flat for seven years, have always paid on time, and have accepted two increases since 2020. I must object to this one, since it exceeds what is usual for comparable flats in our street and was announced without giving reasons.",
  U("\n\nAccording to the local rent index, flats of this size and age in Brook Lane cost between nine and eleven pounds per square metre, whereas the new rent would come to almost fourteen. The windows have not been replaced since 1987, the lift was out of order for eleven weeks last year, and the damp in the bathroom, which I reported in March and in September, has still not been repaired. I therefore consider the increase unjustified. I kindly ask you to withdraw it and to confirm this in writing within 14 days, and I remain willing to talk about a smaller adjustment at any time."))
o("haiku-frog", "en", "a haiku about a frog and a train",
  "A haiku lives from two pictures that stand next to each other without an explanation. A frog and a train are a good pair, since one of them waits and the other one never does. The usual count in English is five, seven and five syllables, but many poets prefer something shorter. I tried to keep the moment when the sound of the train is swallowed by the pond:\n\nnight train -\n",
  U("the frog sits still\n"))
o("fill-tax-form", "en", "how do i fill in line 8 of my tax form if i only have dividends, every site says something different",
  "The confusion arises because the line numbers change from year to year and some sites describe older forms. Dividends normally have lines of their own, and line 8 usually takes up additional income from a separate schedule, such as prizes or hobby income. If dividends really are your only extra income, that line will most likely stay empty. Check the heading printed next to the line",
  U(" and check the instructions for the line"))
o("docker-no-space", "en", "docker build fails: no space left on device. how do I clean up everything",
  "Docker keeps old layers, stopped containers and the build cache until you remove them. First look at what uses the space, then remove what you do not need. Note that pruning volumes deletes data, so leave that option out if a database runs on the machine. If the disk is still full afterwards, check the log files of the containers too.\n\n```bash\ndocker system df\n",
  U("docker system prune -a -f\n"))
o("job-interview-list", "en", "list the questions i should ask at the end of a job interview",
  "Asking good questions shows that you have thought about the job, and it helps you decide whether you want it at all. Prepare five or six and pick those that have not come up yet. Avoid pay and holidays in the first round unless they raise it. Write the answers down right after you leave the building, because you will forget the details by evening.\n\n",
  C("{n}. What does a typical day in this position look like?\n"))
o("volcano-kids", "en", "explain volcanoes to a 6 year old",
  "Deep under our feet it is so hot that even stones melt. The melted stone is called magma, and it is thick like honey. It would like to come up, because it is lighter than the cold rock around it. Sometimes it finds a crack and pushes and pushes, and then the mountain opens its mouth and out comes the lava! First there is a rumble, and then it goes",
  U(" boom"))
o("wedding-toast", "en", "I have to give a toast at my sister's wedding on Saturday, about 2 minutes, funny but not mean",
  "Dear guests, dear Laura, dear Tom. For those who do not know me: I am the little brother, the one who was told for eighteen years that he was found at a petrol station. Laura taught me to ride a bike by letting go without telling me. Tom, I should warn you, she still does that. But what I admire most about my sister is this: she never, ever gives up.",
  U(" So please raise your glasses to Laura and Tom."))
o("regex-email", "en", "regex to match each email address in a text, python",
  "A perfect expression for addresses does not exist, as the standard allows comments and quoted parts that nobody uses. For finding addresses in ordinary text a simple pattern is enough: some allowed characters, an at sign, a domain with at least one dot. Compile it once and use findall. Do not use it to validate input in a form; send a confirmation mail instead.\n\n```python\nimport re\n\nEMAIL = re.compile(r\"[\\w.+-]+@",
  U("[\\w-]+\\.[\\w.-]+"))
o("migraine-diet", "en", "Which foods can trigger migraine?",
  "Triggers differ a lot from person to person, so a diary is more useful than any list. Frequently named are red wine, aged cheese, chocolate, cured meat and too much or too little coffee. With chocolate it may even be the other way round: a craving for sweets can be the first sign of an attack that has already begun. Irregular meals are a problem for many people. Talk to your doctor about",
  U(" magnesium, riboflavin,"))
o("chess-opening", "en", "best chess opening for a beginner who always loses in the first 10 moves",
  "If you lose within ten moves, the opening itself is seldom the reason; usually a piece was left undefended or the king stayed in the middle. Choose something simple where each move develops a piece, such as the Italian Game. Put a pawn in the centre, bring out knights and bishop, castle, and only then think about attacking. The main line goes like this:\n\n",
  C("{n}. Nf3 Nc6 "))
o("moby-dick-summary", "en", "Summarize Moby-Dick, I have to write about the theme of obsession",
  "The sailor Ishmael signs on to the whaler Pequod together with the harpooner Queequeg. Only at sea does the crew learn the true goal of Captain Ahab, who has lost a leg to the white whale and wants revenge at any price. The ship passes other vessels whose captains warn him, but he does not listen. For your essay it is useful that nearly every chapter shows the same thing:",
  U(" Ahab hunts the whale, and the whale hunts Ahab."))
o("css-center", "en", "center a div again... i always forget. flexbox or grid?",
  "Both work, and for a single element grid is the shortest: two properties on the parent and nothing on the child. With flexbox you need one more property, but it is handy when several children stand in a row. In both cases the parent needs a height, or there is nothing to centre vertically; that is the usual reason for it not working.\n\n```css\n.parent {\n  display: grid;\n  min-height: 100vh;\n",
  U("  place-items: center;\n"))
o("ocean-salt", "en", "why is the sea salty and lakes are not?",
  "Rain is slightly acidic and dissolves minerals from the rocks. Rivers carry them to the sea, only a little at a time, but for billions of years. Water evaporates from the surface and falls as rain again, while the salt stays behind. A lake with an outlet passes its salt on to the sea; a lake without one, like the Dead Sea, becomes salty as well. Hot springs on the sea floor add more, so that the",
  U(" salt-water-salt"))
o("budget-table", "en", "Make a monthly budget table for a family of four with 3800 net, all rows with category and amount",
  "This draft follows the usual rule that about half of the income goes to fixed costs, a third to daily life, and the remainder to savings. Replace the amounts with your own after you have collected receipts for one month. Annual bills, such as insurance, are divided by twelve and set aside, so that they do not come as a surprise.\n\n| Category | Amount |\n|---|---|\n| Rent and heating | 1,250 |\n| Electricity | 110 |\n",
  V("| {w} | 100 |\n", "Groceries|Groceries and household|Food|Groceries (weekly)"))
o("llm-temperature", "en", "what does temperature 0 do in a language model",
  "A language model assigns a probability to every possible next token. Temperature rescales these values before one of them is drawn. With high values the distribution becomes flatter and the text more surprising; with low values the favourite wins almost every time. At zero the sampler simply takes the most probable token. The result is nearly deterministic, and it is also where",
  U(" the model tends to repeat itself because the most probable token is the one that"))
o("dog-pulling", "en", "my dog pulls on the leash all the time, what training do you recomend",
  "Pulling is rewarding for the dog, because it gets where it wants to go. So change the rule: a tight leash means that nothing happens. Stop the moment it tightens, wait until the dog looks at you, praise and walk on. It takes patience, and for the first days you will hardly leave your own street. Use a harness, take soft treats, and practise in short sessions.",
  U("\n\nStop. Wait. Praise. Walk on."))
o("java-npe", "en", "java nullpointerexception in line 42 of my OrderService, code: order.getCustomer().getAddress().getCity()",
  "One of the calls in this chain returned null, and the next call was made on it. Recent Java versions tell you which one in the message, so read it closely. Either the order has no customer or the customer has no address. Decide whether that is allowed: if not, check it where the object is created; if it is, use Optional to express it.\n\n```java\nString city = Optional.ofNullable(order)\n",
  U("        .map(Order::getCustomer)\n        .map(Customer::getAddress)\n"))
o("lisbon-weekend", "en", "weekend in lisbon, what should we not miss? 2 adults, 1 kid",
  "Lisbon is hilly, so plan less than you would elsewhere and take the old tram at least once, early in the morning before the queue forms. On Saturday begin in Alfama, go up to the castle, and have grilled fish for lunch. In the afternoon the aquarium in the eastern part of the town is a treat for children. On Sunday take the train to Belém for",
  U(" custard tarts, custard tarts and"))
o("meeting-minutes", "en", "Turn this into minutes: Anna wants the release on 12th, Bo says QA needs 3 more days, all agree on 15th",
  "**Minutes, release planning**\n\nParticipants: Anna, Bo and the team leads. Anna opened the meeting and proposed to publish the release on the 12th as planned. Bo explained that quality assurance needs three further days, since the regression tests of the payment module have not been completed. After a short discussion everybody present agreed to publish on the 15th instead. No further objections were raised.\n\n**Decisions**\n",
  U("- The release is moved to the 15th.\n"))
o("guitar-chords", "en", "easy chords to play a campfire song? i can do G C D so far",
  "With G, C and D you can already play hundreds of songs, because these are the first, fourth and fifth degree of the same key. Add E minor next: it needs only two fingers and gives the sad colour that many choruses want. Then learn A minor. Practise the changes slowly with a metronome, and keep one finger on the string where two chords share a note. A nice sequence to begin with is ",
  U("G - Em - C - D - "))
o("gdpr-summary", "en", "summarise gdpr for a small online shop",
  "As the operator of a shop you process personal data with every order: names, addresses, payment details. You may do so as far as it is needed to fulfil the contract, and you must keep invoices for the period prescribed by tax law. Newsletters require consent, which can be withdrawn at any time. You need a privacy notice, contracts with your service providers, and a record of processing. In particular,",
  U(" the controller shall inform the data subject about the processing of personal data by the controller, and"))
o("spider-dream", "en", "I keep dreaming about a spider, again and again the same dream. does it mean something?",
  "Recurring dreams are common, especially in times when something remains unsolved. There is no dictionary of symbols that would hold for everyone; what counts is what the spider means to you and how you feel when you wake up. Some people find it useful to write the dream down and to invent another ending for it before going to sleep. Psychologists call it rehearsal. You could imagine that the spider",
  U(" spins her web and waits and"))
o("quadratic-solve", "en", "solve x^2 - 5x + 6 = 0 and show each step",
  "We look for two numbers whose product is 6 and whose sum is 5. These are 2 and 3, so the expression factors as (x - 2)(x - 3). A product is zero exactly when one of its factors is zero, which gives x = 2 or x = 3. Let us verify both with the general formula, where a = 1, b = -5 and c = 6. The discriminant is 25 - 24 = 1.",
  U("\nx = (5 + 1) / 2 = 3\nx = (5 - 1) / 2 = 2\nLet me verify this once more."))
o("k8s-crashloop", "en", "pod is in CrashLoopBackOff, what are the first things i should check",
  "The state means that the container starts, ends, and is started again with growing delays. Find out why it ends. Look at the logs of the previous run, at the exit code, and at the events of the pod. Code 137 mostly means that it ran out of memory; 1 is an error of the application itself, often a missing variable or a database that cannot be reached.\n\n```bash\nkubectl describe pod web-0\nkubectl logs web-0 --previous\n",
  C("kubectl logs web-{n} --previous\n"))
o("grandma-memoir", "en", "help me start my memoir, born 1941 in a mill town, first memory is the siren",
  "The first thing I remember is not a face but a sound. The siren of the mill divided our day: at six it pulled the men out of their beds, at noon it let them eat, and at half past five it gave them back to us, grey with dust and too tired to speak. I was three years old and believed that the siren made the sun go down. My mother did not correct me.",
  U("\n\nOur house stood at the end of Weaver Row, the last one before the canal. It had two rooms below and two above, and a yard with a pump that froze every January. In the front room lived my grandmother with her canary, and nobody was allowed to slam the door because the bird would not sing for the rest of the day. In the kitchen stood the stove, and around the stove stood everything else: the table, the bench, the tub on Saturdays, my father's chair."
    "\n\nMy father worked in the carding room. He could tell a story with his hands, because in the noise of the machines the men had learned to talk without a voice, and even at home he would move his lips and forget to add the sound. My mother understood him. She had been a spinner before I was born, and the two of them could quarrel across the table in complete silence, while my brother and I ate our potatoes and pretended to read the newspaper on the wall. Then the siren sounded again, and he took his cap and went."))
o("every-bone", "en", "name every bone in the human hand",
  "The skeleton of the hand consists of twenty-seven bones in three groups. Eight small ones form the wrist, in two rows of four; five metacarpals form the palm; and fourteen phalanges form the fingers, three for each finger and two for the thumb. Seen from the thumb side, the near row of the wrist consists of scaphoid, lunate, triquetrum and pisiform, and the far row of the",
  U(" trapezium, trapezoid, capitate, hamate,"))
o("solar-eclipse", "en", "is it safe to look at a solar eclipse with two pairs of sunglasses",
  "No. Sunglasses, even two or three pairs on top of each other, let far too much infrared light through, and since the retina feels no pain you would notice the damage only hours later. Use certified eclipse glasses without scratches, a welding filter of shade 14, or a pinhole that projects the image onto paper. Only during totality may you look without protection, and only",
  U(" while the sun is completely covered, that is,"))
o("react-useeffect", "en", "why does my useEffect run in an endless loop in react",
  "An effect runs after every render unless you tell React what it depends on. If the effect sets state and that state, or an object created anew at each render, is among the dependencies, each run causes a render and each render a run. Move the object out of the component, memoize it, or use the functional form of the setter. Compare this:\n\n```jsx\nconst [items, setItems] = useState([]);\n\n",
  U("useEffect(() => {\n  setItems(items => [...items]);\n}, [items]);\n\n"))
o("vinegar-clean", "en", "can i clean all kitchen surfaces with vinegar?",
  "Not all of them. Vinegar dissolves limescale and is fine for glass, steel and most plastics, but the acid attacks marble, limestone and cement joints, makes rubber seals brittle and dulls waxed wood. Never mix it with bleach, since that releases toxic chlorine gas. For stone use a few drops of dish soap in warm water. For the sink, a mixture of one part of vinegar and",
  U(" two parts of water,"))
o("roman-empire-fall", "en", "Why did the Roman Empire fall? Max 200 words",
  "There was no single cause. In the west, taxes fell while the costs of the army rose; emperors came and went within months; and groups that had been settled as allies founded kingdoms of their own on Roman soil. Plague and a worse climate reduced the population. In the east, with its rich cities and better borders, the empire lived on for another thousand years. Historians therefore speak of",
  U(" transformation rather than decline, of"))
o("birthday-message-again", "en", "i forgot my friends birthday again, write something that makes up for it",
  "Dear Nina,\n\nyou know me: I can remember the phone number of our school from 1998, but not the one date that counts. Yesterday I was sitting in front of the calendar, proud of having planned everything, and did not see that somebody was missing on it. You. I am terribly sorry, and I want to make up for it with dinner at the place with the blue lamps.\n\n",
  U("Sorry, sorry, so sorry! "))
o("compost-smell", "en", "my compost smells bad what to do",
  "A healthy heap smells of forest floor. If it smells of ammonia, there is too much fresh green material such as grass; if it smells rotten, it is too wet and lacks air. In both cases it helps to turn the heap with a fork and to mix in dry brown material: straw, shredded paper, dead leaves. Cover it when it rains for days. Meat and cooked food do not belong there. After that, alternate",
  U(" green-brown-"))
o("poem-lighthouse", "en", "write a poem about a lighthouse keeper, 5 stanzas, rhymed",
  "**The Keeper**\n\nHe climbs the stair at half past eight,\nhe trims the wick, he wipes the pane,\nand ships that never knew him wait\nfor one white finger through the rain.\n\nHis wife has gone, his dog is old,\nhis letters come but once a year,\nthe winter wind is salt and cold\nand sings the only song he'll hear.\n\n",
  U("The light goes round, the light goes round,\nand no one hears another sound.\n\n"))
o("stock-etf", "en", "explain etf vs fund, i want to put in 200 each month",
  "A classic fund is managed by people who choose the shares and charge around one and a half per cent a year for it. An exchange traded fund copies an index and costs a fraction of that. Over twenty years the difference adds up to a considerable sum, and only few managers beat their index for that long. With two hundred a month you can set up a savings plan, and then",
  V(" {w} invest 200 in the same fund,", "each month|every month|month after month|once a month"))
o("email-decline", "en", "decline a meeting invite politely, i've said yes to too many",
  "Hi Martin,\n\nthank you for thinking of me. I have looked at the agenda and do not believe that I can add much to the discussion on Thursday, and I need the afternoon to finish the figures for the quarter. Could you send me the notes afterwards? If a question about the budget comes up, just call me and I will join for five minutes.\n\nBest,\n",
  U("Best regards,\n"))
o("ml-overfit", "en", "what is overfitting? my model repeats the training data lol",
  "Overfitting means that a model learns the peculiarities of the training examples instead of the rule behind them. It shows when the error on the training set keeps falling while the error on data it has not seen begins to rise. Remedies are more data, a smaller model, regularisation, dropout and early stopping. Always keep a test set that you never look at during development. In your case the model has learned",
  U(" the training data by heart, and the training data"))
o("bike-chain", "en", "how often should a bike chain be replaced?",
  "That depends on kilometres, dirt and care. A well-kept chain lasts between two and four thousand kilometres. Do not go by age; measure it with a chain gauge, which costs a few euros. At 0.75 per cent elongation replace it, and the cassette will survive two or three chains. If you wait until one per cent, the sprockets are worn too. To clean it, wipe, oil, wipe and",
  U(" oil"))
o("calendar-csv", "en", "write a csv with the public holidays of 2025 in England, columns date,name",
  "Here are the bank holidays for England and Wales in 2025. Scotland and Northern Ireland have partly different days, such as St Andrew's Day, which are not included. The dates are in ISO format, so that a spreadsheet sorts them properly. Save the block as a text file with the extension csv and import it with a comma as separator.\n\n```csv\ndate,name\n2025-01-01,New Year's Day\n2025-04-18,Good Friday\n2025-04-21,Easter Monday\n",
  U("2025-05-05,Early May bank holiday\n"))
o("fermi-piano", "en", "how many piano tuners are there in Chicago? think step by step",
  "This is the classic Fermi question. Chicago has about 2.7 million inhabitants, so roughly one million households. If one in twenty owns a piano, there are fifty thousand of them. Each is tuned about once a year. A tuner manages four pianos a day on two hundred and fifty days, that is a thousand per year. So there would be about fifty tuners. Let me see whether the assumptions hold.",
  C("\n\nHmm, attempt {n}: if one household in twenty has a piano, we get 50,000 pianos and 50 tuners. But is one in twenty right? Let me think again."))
o("lines-of-hamlet", "en", "What do the lines 'to be or not to be' really mean?",
  "Hamlet asks whether it is nobler to endure a hard life or to end it. He does not speak about himself alone; there is not a single I in the speech. Death is compared to sleep, which sounds comforting until he thinks of dreams. It is the fear of something unknown after death that makes us bear what we have, and thus conscience makes cowards of us all. So the question remains:",
  U(" to be, or not to be, or"))
o("git-undo", "en", "git: undo the last commit but keep all changes",
  "Use a soft reset. It moves the branch back by one commit and leaves your files and the index as they are, so that everything appears as staged and can be committed anew. If you want the changes to be unstaged, use the mixed form, which is the default. Avoid the hard form, because it discards your work. If the commit has already been pushed, prefer a revert.\n\n```\n$ git reset --soft HEAD~1\n",
  U("$ git status\nOn branch main\nChanges to be committed:\n"))
o("moon-landing", "en", "How many people have walked on the moon and who were they",
  "Twelve people have walked on the moon, all of them Americans and all between July 1969 and December 1972. The first were Neil Armstrong and Buzz Aldrin with Apollo 11; the last to leave was Eugene Cernan with Apollo 17. Each mission left two men on the surface while a third stayed in orbit. Apollo 13 had to turn back without landing. In order, they were",
  U(" Armstrong, Aldrin, Conrad, Bean,"))
o("lego-loop-coaster", "en", "Can I build a roller coaster with a loop from lego?",
  "Yes, though the official track pieces include a loop only in some sets. The train must be fast enough to stay on the rail at the top. As a rule of thumb the start should be two and a half times as high as the radius of the loop, measured from its lowest point, and some more because of friction. Add a weight to the car and support the track. At the top it goes",
  U(" round and round,"))
o("startup-names", "en", "I need ideas for the name of a startup that sells reusable coffee cups",
  "A good name is short, easy to spell after hearing it once, and free as a domain. For reusable cups you can start from the cup itself, from the habit of taking it along, or from what is saved. Check the trademark register before you fall in love with one of them, and say it aloud ten times. Invented words are easier to protect than descriptive ones. Here are my suggestions:\n\n",
  V("* {w}Cup\n", "Loop|Re|Ever|Green|Loop|Again"))
o("hyphen-wellknown", "en", "when do i need a hyphen, like in well known author",
  "Use a hyphen when two or more words together describe a noun that follows: a well-known author, a two-year-old child, a last-minute decision. After the noun it is usually dropped: the author is well known. Adverbs in -ly never take one: a badly written letter. With long chains it becomes a matter of taste, and often it is better to rephrase. A rather extreme example is a once-in-a-lifetime, ",
  U("well-known-"))
o("hotel-review", "en", "write a 4 star review for a small hotel in Tallinn, breakfast great, walls thin",
  "We spent three nights in this family-run hotel in the old town and would come back. The owner met us at the door at midnight, with soup. The rooms are small but spotless, and from ours we could see two church towers. Breakfast deserves an extra mention: black bread, smoked fish, warm porridge and the best coffee of the whole trip. One star less because of the thin walls.",
  U(" The breakfast was great, but the walls were thin."))
o("first-aid-burn", "en", "spilled boiling tea on my hand, what to do??",
  "Hold the hand under running, cool water right away, not ice cold, for about twenty minutes. Take off rings and a watch before it swells. Then cover it loosely with cling film or a clean cloth. No butter, no toothpaste, no powder. See a doctor if the blister is larger than the palm of your hand, if the skin is white or if a child is affected. For now:",
  U(" cool water,"))
o("each-other-grammar", "en", "difference between 'each other' and 'one another'?",
  "In older style guides each other is used for two and one another for more than two. Modern usage does not observe the distinction, and good writers never have. What matters is the apostrophe: each other's, never each others'. Neither of them can be the subject of a sentence, at least not in careful writing. One another sounds slightly more formal and is found more often in general statements. For example:\n\n",
  V("- The {w} helped each other.\n", "two sisters|two brothers|two neighbours|students|teachers"))
o("electric-car-range", "en", "does an electric car lose range in winter?",
  "Yes, typically between fifteen and thirty per cent, and even more on short trips. There are two reasons. Cold cells have a higher internal resistance and cannot take back as much energy when braking. And the cabin must be heated, which in a petrol car happens with waste heat for free. A heat pump helps, and so does heating the car while it is still plugged in. At minus ten degrees the range",
  U(" drops by about 30 % and the range"))
o("story-clockmaker", "en", "write the beginning of a story: a clockmaker gets a clock that runs backwards",
  "The woman did not give her name. She put the clock on the counter, said that it was broken and that she would come on Friday, and left without asking what it would cost. Old Emil waited until the bell over the door had stopped. Then he opened the case. The wheels were clean, the spring was sound, nothing was missing. Only the hands went the wrong way. He listened.",
  U(" Tick. Tock."))
o("study-schedule", "en", "I have 3 exams in June, build me a study schedule, same time every day if possible",
  "With three exams within one month it is best to rotate the subjects instead of finishing one after the other; the pauses help you to remember. I suggest two blocks of fifty minutes in the morning, when you are rested, and a short review in the evening. Sundays stay free. In the last week before each exam, that subject gets both blocks. The plan looks like this:\n\n",
  V("{w}: 8:00-8:50 mathematics, 9:00-9:50 chemistry, 19:00 review\n", "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday"))
o("bash-rename", "en", "bash: rename all .jpeg files in a folder to .jpg",
  "You can do this with a small loop and parameter expansion, without further tools. The expression with the percent sign removes the old ending, and the quotes protect names that contain spaces. The option nullglob makes sure that nothing happens if there is no match. Try it with echo in front of mv first, look at the output, and then remove the echo.\n\n```bash\nshopt -s nullglob\nfor f in *.jpeg; do\n",
  U("  mv -- \"$f\" \"${f%.jpeg}.jpg\"\n"))
o("nutrition-label", "en", "What does the % daily value on a nutrition label tell me?",
  "It shows which share of the recommended amount for a day one serving supplies, based on two thousand calories. Five per cent or less is considered little, twenty or more is a lot. Watch the serving size: a bag of crisps may contain three. For sugar, salt and saturated fat you want low figures, for fibre, calcium and iron rather high ones. For example, a serving with 10 % has",
  C(" {n} % of the daily value of sodium,"))
o("thunder-count", "en", "if i count 9 seconds between lightning and thunder how far away is it",
  "Sound travels about 340 metres per second, so it needs roughly three seconds for a kilometre. Light arrives practically at once. With nine seconds the lightning was about three kilometres away, or not quite two miles. That is closer than it sounds, since the next one may strike several kilometres from the last. Go indoors if the gap is below thirty seconds and stay there for half an hour. Count",
  U(" one second, two seconds, three seconds,"))
o("interview-thinking", "en", "A bat and a ball cost 1.10 together. The bat costs 1 more than the ball. What's the ball?",
  "The tempting answer is ten cents, but then the bat would cost 1.10 and both together 1.20. Let the ball cost x. The bat costs x + 1, and together 2x + 1 = 1.10, so 2x = 0.10 and x = 0.05. The ball costs five cents, the bat costs 1.05, and the sum is 1.10 as required. The difference is exactly one. Wait, I should double-check the condition about the difference.",
  U(" If the ball costs 0.05, the bat costs 1.05. The difference is 1.00. Wait, but if the ball costs 0.10, the bat costs 1.10. Hmm, the difference is 1.00 again. Let me re-read the question."))
o("vegan-protein", "en", "vegan protein sources, I lift 4 times a week",
  "With strength training, aim for about 1.6 grams of protein per kilogram of body weight. That is easily possible without animal products if every meal contains a good source. Soy has all essential amino acids, and so do quinoa and buckwheat; legumes and grains complement each other over the day. Powders are handy but not necessary. Remember vitamin B12. Good sources are for instance tofu, tempeh, ",
  V("{w} beans, ", "black|white|kidney|black|pinto"))
o("draw-uml", "en", "how do I draw a class diagram for a library system, only in text?",
  "You can use a text notation such as Mermaid, which many editors display directly. Each class gets a block with its fields and methods, and the relations follow as arrows. For a library start with book, copy, member and loan: a book has several copies, a loan links one copy with one member. Leave out getters and setters. It could look like this:\n\n```mermaid\nclassDiagram\n    Book \"1\" --> \"*\" Copy\n",
  U("    class Loan {\n        +Date dueDate\n        +renew()\n    }\n"))
# ---- German --------------------------------------------------------
o("de-kaffeemaschine", "de", "Meine Kaffeemaschine zeigt immer wieder 'Entkalken' an, obwohl ich gerade entkalkt habe. Woran liegt das?",
  "Die meisten Maschinen messen den Kalk gar nicht, sondern zählen nur die Bezüge. Wird das Entkalkungsprogramm nicht bis zum letzten Spülgang durchgeführt, bleibt der Zähler stehen und die Meldung kommt zurück. Starten Sie das Programm daher noch einmal, füllen Sie den Tank bis zur Markierung und warten Sie, bis die Maschine von selbst ausgeht. Ziehen Sie nicht vorher den Stecker. Danach",
  U(" spülen, entkalken,"))
o("de-bewerbung-pflege", "de", "Schreib mir ein Anschreiben für eine Ausbildung als Pflegefachfrau, 10. Klasse, Praktikum im Altenheim",
  "Sehr geehrte Frau Brandt,\n\nwährend meines dreiwöchigen Praktikums im Haus am Lindenplatz habe ich gemerkt, dass ich meinen Beruf gefunden habe. Ich durfte beim Waschen und beim Essen helfen, habe vorgelesen und vor allem zugehört. Auch die schweren Tage haben mich nicht abgeschreckt. Im Sommer beende ich die zehnte Klasse der Realschule und möchte im September bei Ihnen beginnen.\n\n",
  U("Ich bin zuverlässig, belastbar und freue mich über eine Einladung zu einem persönlichen Gespräch. "))
o("de-tabelle-laender", "de", "Tabelle: alle Nachbarländer von Deutschland mit Hauptstadt und Einwohnern",
  "Deutschland grenzt an neun Staaten, so viele wie kaum ein anderes Land in Europa. Die längste gemeinsame Grenze besteht mit Österreich, die kürzeste mit Dänemark. Die Einwohnerzahlen in der folgenden Übersicht sind gerundet und können je nach Quelle etwas abweichen; gezählt ist jeweils das europäische Staatsgebiet ohne überseeische Gebiete und ohne abhängige Inseln.\n\n| Land | Hauptstadt | Einwohner |\n|---|---|---|\n| Dänemark | Kopenhagen | 5,9 Mio. |\n| Polen | Warschau | 37 Mio. |\n",
  U("| Tschechien | Prag | 10,9 Mio. |\n"))
o("de-gedicht-winter", "de", "Ein Gedicht über den Winter, vier Zeilen pro Strophe, bitte nicht kitschig",
  "**Februar**\n\nDas Licht kommt spät und geht bald wieder,\nim Hof steht grau das Gartenhaus,\ndie Amsel übt noch keine Lieder,\ndie Kälte geht hier ein und aus.\n\nEin Handschuh hängt am Lattenzaune,\nden hat ein Kind hier liegen lassen,\ner winkt uns zu mit schlechter Laune\nund kann die Hand nicht mehr erfassen.\n\nUnd Schnee fällt auf die leeren Gassen, ",
  U("und Schnee, und Schnee, "))
o("de-quantenbit", "de", "Erklär mir Quantenbits so, dass ich es einem Freund weitererzählen kann",
  "Ein gewöhnliches Bit ist wie ein Lichtschalter: an oder aus. Ein Quantenbit kann beides zugleich sein, solange niemand hinsieht; erst bei der Messung entscheidet es sich. Zwei solche Bits lassen sich verschränken, dann hängt das Ergebnis des einen von dem des anderen ab. Rechnen heißt hier, die Wahrscheinlichkeiten so zu verschieben, dass falsche Antworten sich auslöschen. Moment, das muss ich genauer sagen.",
  U(" Eigentlich ist das Quantenbit nicht beides zugleich, sondern in einer Überlagerung. Aber Überlagerung heißt ja gerade, dass es beides zugleich ist. Moment, noch einmal von vorn."))
o("de-fahrrad-liste", "de", "Packliste für eine Woche Radtour mit Zelt, zwei Personen",
  "Bei einer Radtour zählt jedes Kilo, das den Berg hinauf muss. Teilen Sie deshalb alles, was man nur einmal braucht: Zelt, Kocher, Werkzeug und Apotheke. Kleidung reicht für drei Tage, gewaschen wird unterwegs am Bach oder auf dem Zeltplatz. Schwere Sachen kommen nach unten und nach vorn, die Regensachen ganz nach oben. Und probieren Sie den Aufbau des Zeltes vorher im Garten.\n\n",
  C("{n}. Ersatzschlauch und Flickzeug\n"))
# ---- French --------------------------------------------------------
o("fr-pate-crepes", "fr", "Pourquoi ma pâte à crêpes fait toujours des grumeaux ? J'ai essayé trois fois.",
  "Les grumeaux se forment quand la farine reçoit trop de liquide d'un seul coup : l'extérieur gonfle et enferme de la farine sèche. Faites un puits, cassez les œufs au milieu et mélangez d'abord avec très peu de lait, jusqu'à obtenir une pâte épaisse et lisse. Ensuite seulement, ajoutez le reste petit à petit. Laissez reposer une heure. Sinon, passez la pâte au tamis, puis",
  U(" mélangez doucement, versez le lait,"))
o("fr-lettre-resiliation", "fr", "Rédige une lettre de résiliation pour ma salle de sport, je déménage à 300 km",
  "Madame, Monsieur,\n\nTitulaire d'un abonnement annuel dans votre salle depuis le mois de septembre, je suis contraint d'y mettre fin en raison d'un déménagement pour motif professionnel. Mon nouveau domicile se trouve à trois cents kilomètres et aucun de vos établissements n'est situé à proximité. Vous trouverez ci-joint une copie du contrat de travail et du bail. La résiliation prendra effet à la fin du mois.\n\n",
  U("Je vous prie de bien vouloir accuser réception de la présente et de procéder à la résiliation de mon abonnement.\n\n"))
o("fr-revolution-dates", "fr", "Liste les dates importantes de la Révolution française avec une ligne chacune",
  "La Révolution s'étend, selon les historiens, de 1789 à 1799, c'est-à-dire de la réunion des états généraux au coup d'État de Bonaparte. Elle comprend plusieurs périodes bien différentes : une monarchie constitutionnelle, une république, la Terreur puis le Directoire. Voici les principaux repères, utiles pour un exposé de niveau collège :\n\n- 5 mai 1789 : ouverture des états généraux à Versailles\n- 20 juin 1789 : serment du Jeu de paume\n",
  U("- 14 juillet 1789 : prise de la Bastille\n"))
o("fr-chat-miaule", "fr", "Mon chat miaule toutes les nuits à 4 heures, que faire ?",
  "Un chat qui réveille ses maîtres a presque toujours appris que cela marche : on se lève, on le gronde ou on le nourrit, et il a gagné. Vérifiez d'abord auprès du vétérinaire qu'il n'est pas malade, surtout s'il est âgé. Puis jouez avec lui le soir, donnez-lui son repas juste avant de dormir et, la nuit, ne réagissez plus du tout. Il va insister et faire",
  U(" miaou, miaou,"))
# ---- Spanish -------------------------------------------------------
o("es-tortilla", "es", "¿Con o sin cebolla? Dame la receta de la tortilla de patatas para 4 personas",
  "La discusión no tiene fin, pero con cebolla queda más jugosa y dulce. Para cuatro personas necesitas seis huevos, setecientos gramos de patatas, una cebolla grande, aceite de oliva y sal. Corta las patatas en láminas finas y fríelas a fuego lento con la cebolla hasta que estén blandas, sin que se doren. Escúrrelas, mézclalas con el huevo batido y deja reposar diez minutos. Después",
  U(" da la vuelta a la tortilla, espera un minuto,"))
o("es-subjuntivo", "es", "Explícame el subjuntivo con ejemplos, por favor, soy nivel B1 y siempre cometo los mismos errores",
  "El subjuntivo se usa cuando no presentamos algo como un hecho, sino como un deseo, una duda, una emoción o una posibilidad. Normalmente hay dos sujetos distintos y la palabra que entre las dos partes de la frase. Compara: sé que vienes, porque es un hecho, y quiero que vengas, porque es un deseo. Para formar el presente se parte de la primera persona. Más ejemplos:\n\n",
  V("- Quiero que {w} conmigo.\n", "vengas|hables|vengas|comas|vivas"))
o("es-codigo-bucle", "es", "¿Por qué este bucle while de JavaScript no termina nunca?  let i = 0; while (i < 10) { console.log(i) }",
  "El bucle no termina porque la variable i nunca cambia: vale cero al principio y sigue valiendo cero en cada vuelta, de modo que la condición siempre es verdadera. Tienes que aumentarla dentro del cuerpo, o bien usar un bucle for, que reúne el inicio, la condición y el incremento en una sola línea y por eso es más difícil de olvidar. La versión corregida es la siguiente:\n\n```js\nlet i = 0;\nwhile (i < 10) {\n",
  U("  console.log(i);\n  i++;\n"))
o("es-carta-abuelo", "es", "Ayúdame a escribirle una carta a mi abuelo, cumple 80 y vive solo en el pueblo",
  "Querido abuelo:\n\nOchenta años se dicen pronto, pero tú los has vivido uno a uno y sin prisa, como subes la cuesta de la ermita. Me acuerdo de las tardes de verano en que me enseñabas a injertar los almendros y a distinguir el canto del mirlo. En la ciudad no hay mirlos, o no los oigo. El mes que viene iré a verte con los niños.\n\n",
  U("Te quiero mucho, abuelo, y te echo de menos. "))
# ---- Portuguese ----------------------------------------------------
o("pt-inss", "pt", "como faço pra dar entrada na aposentadoria? tenho 65 anos e 20 de contribuição",
  "Com essa idade e esse tempo de contribuição você provavelmente já tem direito à aposentadoria por idade. O pedido é feito pela internet, no site ou no aplicativo, com a conta do governo. Antes de pedir, confira o extrato de contribuições e veja se todos os vínculos aparecem; se faltar algum, separe a carteira de trabalho e os carnês. Depois acompanhe o andamento e",
  U(" aguarde a análise do pedido, e"))
o("pt-lista-praias", "pt", "lista com 7 praias do nordeste boas para crianças, uma linha cada",
  "Com crianças pequenas o que conta é o mar calmo, a sombra e a distância até um banheiro. Prefira as praias protegidas por recifes, que na maré baixa formam piscinas naturais de água morna. Consulte a tábua de marés antes de sair do hotel, leve água e evite o sol entre dez e quinze horas. Algumas sugestões, do sul para o norte:\n\n1. Praia do Forte, Bahia: piscinas naturais e tartarugas.\n",
  C("{n}. Praia dos Carneiros, Pernambuco: águas calmas e rasas.\n", 2))
o("pt-saudade", "pt", "o que significa a palavra saudade de verdade",
  "Saudade é o sentimento de quem ama alguma coisa que está longe, no espaço ou no tempo. Não é só tristeza, porque traz consigo o prazer da lembrança; também não é só nostalgia, porque pode referir-se a alguém que volta amanhã. A palavra vem do latim solitate, solidão. Aparece no fado, nas cartas dos navegadores e na conversa de todos os dias: temos saudade da infância, saudade da terra,",
  U(" saudade"))
# ---- Italian -------------------------------------------------------
o("it-carbonara", "it", "la carbonara mi viene sempre una frittata, dove sbaglio? uso 2 uova intere e 2 tuorli",
  "L'errore è quasi sempre la temperatura. Le uova si rapprendono verso i sessantacinque gradi, quindi la padella deve essere lontana dal fuoco quando le aggiungi. Sbatti le uova con il pecorino e il pepe, scola la pasta al dente, falla saltare con il guanciale, spegni, aspetta mezzo minuto e solo allora versa la crema con un mestolo di acqua di cottura. Poi",
  U(" mescola, mescola,"))
o("it-regole-congiuntivo", "it", "Tutte le regole per usare 'se fossi' e 'se sarei', in breve",
  "Dopo il se ipotetico non si usa mai il condizionale: si dice se fossi ricco comprerei una casa, e non se sarei ricco. Il condizionale sta nella frase principale, il congiuntivo imperfetto in quella introdotta dal se. Se l'ipotesi riguarda il passato, si usano i trapassati: se fossi stato ricco, avrei comprato una casa. Fa eccezione l'interrogativa indiretta: mi chiedo se sarei capace. In sintesi:\n\n",
  U("| se fossi | comprerei |\n"))
o("it-gatto-storia", "it", "Inventa una storia della buonanotte su un gatto e la luna, circa 200 parole",
  "C'era una volta un gatto nero di nome Fumo che abitava sul tetto di una panetteria. Ogni sera guardava la luna e pensava che fosse una ciotola di latte appesa troppo in alto. Una notte decise di andarla a prendere. Salì sul comignolo, dal comignolo saltò su una nuvola e dalla nuvola su una stella. La luna lo vide arrivare e sorrise.",
  U(" \"Ancora un passo\", disse la luna. E il gatto fece ancora un passo."))
# ---- Russian -------------------------------------------------------
o("ru-borsch", "ru", "почему борщ каждый раз получается не красный а рыжий",
  "Цвет свёклы держится только в кислой среде и разрушается при долгом кипении. Поэтому свёклу сначала тушат отдельно, добавив ложку уксуса или немного лимонного сока, и кладут в кастрюлю в самом конце, за пять минут до готовности. Томатную пасту добавляют туда же. После этого борщ не должен кипеть, ему нужно постоять под крышкой хотя бы полчаса. И ещё один совет: не жалейте",
  U(" свёклы, свёклы и"))
o("ru-zayavlenie", "ru", "Напиши заявление на отпуск на 14 дней с 3 июля",
  "Конечно. Заявление пишут от руки или печатают, подписывают и передают в отдел кадров не позднее чем за две недели до начала отпуска. Если в графике стоят другие даты, нужно указать причину переноса. Вот образец, в который остаётся вписать фамилии и должности. Шапку обычно располагают справа вверху, слово «заявление» пишут посередине с маленькой буквы.\n\nДиректору ООО «Заря»\nПетрову А. И.\n\nзаявление\n\n",
  U("Прошу предоставить мне ежегодный оплачиваемый отпуск на 14 календарных дней с 3 июля. "))
o("ru-massiv-cpp", "ru", "как в C++ заполнить массив из 100 элементов случайными числами, все от 1 до 6",
  "В современном языке для этого есть заголовок random. Генератор создают один раз, а распределение задаёт границы, причём обе входят в диапазон. Старую функцию rand лучше не использовать: её качество зависит от библиотеки, а остаток от деления слегка искажает вероятности. Сам массив удобно взять из стандартной библиотеки, тогда его размер всегда известен и можно пройти по нему обычным циклом. Пример программы:\n\n```cpp\n#include <array>\n#include <random>\n\nint main() {\n",
  U("    std::uniform_int_distribution<int> dist(1, 6);\n"))
# ---- Chinese -------------------------------------------------------
o("zh-sushe-xie", "zh", "帮我写一份宿舍公约,每条一行,十条左右",
  "宿舍是大家共同生活的地方,需要每个人互相体谅。公约最好由全体室友一起讨论,写得具体一些,贴在门后,谁都看得见。作息时间不同的同学要提前商量,晚上十一点以后尽量不开大灯,也不要在房间里打电话。值日按学号轮流,遇到考试周可以互换。公共物品用完放回原处,损坏了主动说明,不要等别人发现。夏天空调的温度由大家投票决定,电费平均分摊。以下是草稿,可以根据实际情况修改:\n\n1. 按时作息,十一点熄灯。\n2. 轮流值日,保持整洁。\n",
  C("{n}. 互相尊重,不影响他人休息。\n", 3))
o("zh-dilixue", "zh", "为什么南方冬天感觉比北方还冷?",
  "主要有三个原因。第一,南方空气湿度大,潮湿的衣物和空气带走热量更快,人的体感温度往往比实际气温低好几度。第二,北方有集中供暖,室内常年保持在二十度左右,而南方多数房屋没有暖气,墙体也比较薄,屋里屋外几乎一样冷。第三,南方冬天阴雨天多,日照少,身上很难晒暖。所以从北方来的人第一次在南方过冬,常常觉得这种冷会钻进骨头里。要想舒服一些,可以准备电热毯和除湿机,出门时多穿一层防风的外套。总的来说,南方的冬天",
  U("又湿又冷,"))
o("zh-daima-xunhuan", "zh", "这段循环代码为什么只输出最后一行?用的是 Python,列表里有 20 个元素",
  "从描述来看,最可能的原因是打印语句的缩进不对:它写在循环的外面,所以要等循环全部结束之后才执行一次,这时变量里保存的正好是最后一个元素。把打印语句向右缩进四个空格,让它属于循环体,就会每次输出一行。另外要注意,不要把空格和制表符混在一起使用,否则不同的编辑器看起来一样,解释器却会报错。还有一种可能是每次都用写入模式重新打开文件,把前面的内容覆盖了。修改以后的代码大致如下:\n\n```python\nfor item in items:\n",
  U("    print(item)\n"))
o("zh-sikao-jisuan", "zh", "鸡兔同笼,头35个,脚94只,各有几只?",
  "设鸡有 x 只,兔有 y 只。根据题意,头的总数是三十五,所以 x + y = 35;脚的总数是九十四,所以 2x + 4y = 94。把第二个式子两边同时除以二,得到 x + 2y = 47。再减去第一个式子,得到 y = 12,于是 x = 23。也就是说鸡有二十三只,兔有十二只。这道题还可以用假设法:如果全部是鸡,应该有七十只脚,实际多出二十四只,每只兔比鸡多两只脚,所以兔有十二只。下面我来检验一下。",
  U("\n等等,让我再检查一遍:23 只鸡有 46 只脚,12 只兔有 48 只脚,一共 94 只脚。对吗?好像不对,重新算。"))
# ---- Japanese ------------------------------------------------------
o("ja-keigo-mail", "ja", "取引先に納期を3日延ばしてほしいとお願いするメールを書いてください",
  "株式会社ミナト 営業部 田中様\n\nいつも大変お世話になっております。株式会社アオバの佐藤でございます。先日ご注文いただきました部品の件でご連絡いたしました。製造工程で不具合が見つかり、現在、全数の検査を行っております。品質を確認したうえでお届けするため、誠に勝手ではございますが、納期を三日ほど延ばしていただくことは可能でしょうか。新しいお届け日は十八日の午前中を予定しております。ご都合が悪い場合は、一部を先にお送りすることもできますので、遠慮なくお申し付けください。",
  U("ご迷惑をおかけして申し訳ございません。何卒よろしくお願い申し上げます。"))
o("ja-hana-list", "ja", "日陰でも育つ庭の花のリストをください。毎年咲くものがいいです",
  "日当たりの悪い庭でも、種類を選べば毎年きれいな花が楽しめます。大切なのは、水はけと風通しです。植える前に腐葉土をたっぷり混ぜ、株と株のあいだを広めに取ってください。夏のあいだは朝のうちに水をやり、冬は落ち葉で根元を覆っておくと安心です。肥料は春と秋に少しだけで足ります。背の高いものを奥に、低いものを手前に植えると、小さな庭でも奥行きが出ます。おすすめは次のとおりです。\n\n・クリスマスローズ:冬から春にかけて咲きます。\n",
  U("・ギボウシ:葉も美しく、夏に咲きます。\n"))
o("ja-densha-neko", "ja", "電車に乗る猫の短いお話を、子ども向けに書いて",
  "ある朝、しましまの猫が一匹、駅の改札をくぐりました。切符のかわりに、口に小さなひまわりの種をくわえています。駅員さんはびっくりしましたが、猫があまりにも落ち着いているので、そっと通してあげました。電車が来ると、猫はいちばん前の窓のところへ行き、ちょこんと座りました。トンネルを抜け、橋を渡り、海が見えると、猫はうれしそうにしっぽを立てました。となりに座ったおばあさんが、どこまで行くのと聞きました。猫は答えません。電車はただ走ります。",
  U("がたんごとん、"))
# ---- Korean --------------------------------------------------------
o("ko-kimchi", "ko", "김치찌개가 매번 밍밍해요. 4인분 기준으로 뭘 바꿔야 하나요?",
  "김치찌개 맛은 김치가 얼마나 익었는지에 달려 있습니다. 덜 익은 김치를 쓰면 아무리 오래 끓여도 깊은 맛이 나지 않아요. 먼저 돼지고기를 냄비에 볶아 기름을 내고, 잘 익은 김치 반 포기를 넣어 십 분쯤 더 볶아 주세요. 그다음 쌀뜨물과 김치 국물 한 국자를 붓고 중불에서 이십 분 이상 끓입니다. 설탕을 반 숟가락 넣으면 신맛이 부드러워집니다. 두부와 파는 마지막에 넣으세요. 간은 새우젓으로 맞추는 것이 좋습니다. 그리고 무엇보다 충분히 끓이는 것이 중요하니까",
  U(" 끓이고 또 끓이고"))
o("ko-myeonjeop", "ko", "면접 자기소개 1분짜리 써줘, 물류회사 지원, 아르바이트 3년",
  "안녕하십니까. 물류 관리 직무에 지원한 김서연입니다. 저는 대학 시절 삼 년 동안 물류 창고에서 아르바이트를 하며 현장을 배웠습니다. 처음에는 상자를 나르는 일만 했지만, 나중에는 재고를 확인하고 출고 순서를 정하는 일을 맡았습니다. 자주 나가는 물건을 문 가까이에 두자고 제안하여 준비 시간을 이십 퍼센트 줄인 경험이 있습니다. 문제를 발견하면 먼저 기록하고, 동료와 의논한 뒤 해결하는 것이 저의 방식입니다. 귀사의 새 물류 센터에서도 같은 자세로 일하겠습니다.",
  U(" 성실하고 책임감 있는 사원이 되겠습니다."))
# ---- Arabic --------------------------------------------------------
o("ar-qahwa", "ar", "كم مرة في اليوم يمكن شرب القهوة دون ضرر؟",
  "يرى معظم الأطباء أن ثلاثة أو أربعة فناجين في اليوم لا تضر الإنسان البالغ السليم، أي ما يقارب أربعمئة ملغ من الكافيين. أما الحامل فيُنصح لها بنصف هذه الكمية على الأكثر. ويجب أن ينتبه مرضى القلب وارتفاع ضغط الدم إلى ما يشعرون به بعد كل فنجان. ومن الأفضل ألا يشرب المرء القهوة بعد العصر حتى لا يضطرب نومه. وتذكر أن الشاي ومشروبات الطاقة فيها كافيين أيضاً، ولذلك",
  U(" القهوة والشاي"))
o("ar-risala-mudir", "ar", "اكتب رسالة إلى المدير أطلب فيها إجازة يومين",
  "السيد المدير المحترم،\n\nتحية طيبة وبعد، أرجو التكرم بالموافقة على منحي إجازة لمدة يومين ابتداءً من يوم الأحد القادم، وذلك لمرافقة والدتي إلى المستشفى في مدينة أخرى حيث ستجري فحوصاً لا يمكن تأجيلها. وقد اتفقت مع زميلي أحمد على متابعة العمل العاجل في أثناء غيابي، كما سأبقى على اتصال بالهاتف إذا احتجتم إلى أي معلومة. وسأعود إلى العمل يوم الثلاثاء صباحاً إن شاء الله.\n\n",
  U("وتفضلوا بقبول فائق الاحترام والتقدير.\n"))
# ---- Hindi ---------------------------------------------------------
o("hi-monsoon", "hi", "मानसून क्या होता है और हर साल देर से क्यों आता है?",
  "मानसून हवाओं की वह दिशा है जो मौसम के साथ बदलती है। गर्मियों में ज़मीन समुद्र से जल्दी गरम हो जाती है, इसलिए वहाँ हवा का दबाव कम हो जाता है और समुद्र की नम हवा देश की ओर बहने लगती है। पहाड़ों से टकराकर यह हवा ऊपर उठती है, ठंडी होती है और बारिश बनकर गिरती है। आने का समय हर साल थोड़ा बदलता है, क्योंकि समुद्र का तापमान और ऊपर की हवाएँ बदलती रहती हैं। इसी कारण कभी",
  U(" बारिश होती है, कभी"))
o("hi-chhutti-patra", "hi", "प्रधानाचार्य को 3 दिन की छुट्टी के लिए पत्र लिखिए",
  "सेवा में,\nश्रीमान प्रधानाचार्य महोदय,\nआदर्श विद्यालय, जयपुर\n\nविषय: तीन दिन के अवकाश के लिए प्रार्थना पत्र\n\nमहोदय,\n\nसविनय निवेदन है कि मैं आपके विद्यालय की कक्षा आठ का छात्र हूँ। मेरे बड़े भाई का विवाह अगले सप्ताह हमारे गाँव में होने वाला है और मुझे अपने परिवार के साथ वहाँ जाना है। इस कारण मैं सोमवार से बुधवार तक विद्यालय नहीं आ सकूँगा। छूटा हुआ काम मैं अपने मित्र की सहायता से लौटते ही पूरा कर लूँगा।\n\n",
  U("अतः आपसे प्रार्थना है कि मुझे तीन दिन का अवकाश देने की कृपा करें। "))
# ---- Turkish -------------------------------------------------------
o("tr-cay", "tr", "Çay neden bazen acı oluyor, her seferinde aynı miktarda koyuyorum",
  "Çayın acı olmasının birkaç sebebi vardır. En sık görüleni, demin çok uzun süre ateşte kalmasıdır; on beş dakikadan sonra yapraklar acı maddeleri de suya verir. İkinci sebep kireçli sudur. Üçüncüsü ise suyun kaynar kaynar dökülmesidir; kaynadıktan sonra yarım dakika beklemek iyi olur. Demliği önce sıcak suyla ısıtın, çayı soğuk suyla hafifçe ıslatın, altını kısın. Dem hazır olunca fazla bekletmeyin ve",
  U(" demleyin, dinlendirin,"))
o("tr-gezi-liste", "tr", "Kapadokya için 2 günlük gezi planı, satır satır saatlerle yaz",
  "İki gün Kapadokya için az ama yeterlidir, yeter ki erken kalkın. Balon uçuşları rüzgâra göre iptal edilebildiği için uçuşu ilk sabaha koymak daha güvenlidir; iptal olursa ikinci sabah tekrar denersiniz. Göreme'de kalırsanız birçok yere yürüyerek gidebilirsiniz, vadiler için ise rahat ayakkabı şart. Yer altı şehirleri serin olur, yanınıza ince bir ceket alın. Plan şöyle:\n\n05:00 Otelden alınma ve balon uçuşu\n09:00 Kahvaltı\n",
  C("{n}0:00 Göreme Açık Hava Müzesi ziyareti\n"))
# ---- Polish --------------------------------------------------------
o("pl-pierogi", "pl", "Dlaczego pierogi się rozklejają? Robię ciasto z 500 g mąki",
  "Najczęściej winne jest zbyt suche albo zbyt mocno podsypane mąką ciasto. Na pół kilograma mąki potrzeba około szklanki gorącej wody i łyżki oleju; gorąca woda sprawia, że ciasto jest elastyczne i łatwo się skleja. Po zagnieceniu powinno odpocząć pod miską pół godziny. Brzegi muszą być czyste, bez farszu i bez mąki. Wrzucaj pierogi na wrzątek małymi partiami. Na koniec brzegi mocno",
  U(" sklej, dociśnij,"))
o("pl-reklamacja", "pl", "napisz reklamację butów, podeszwa pękła po 2 miesiącach",
  "Szanowni Państwo,\n\nw dniu 4 marca kupiłem w Państwa sklepie w Poznaniu parę butów zimowych za 329 złotych. Po dwóch miesiącach zwykłego użytkowania w lewym bucie pękła podeszwa na całej szerokości, tak że but przemaka i nie nadaje się do noszenia. Butów używałem wyłącznie w mieście i czyściłem je zgodnie z instrukcją. Do pisma dołączam kopię paragonu oraz trzy zdjęcia uszkodzenia, a same buty przekażę do oceny.\n\n",
  U("Proszę o wymianę butów na nowe lub zwrot pieniędzy. "))
# ---- Dutch ---------------------------------------------------------
o("nl-fiets-regen", "nl", "Wat is de beste manier om droog te blijven op de fiets als het elke dag regent?",
  "Helemaal droog blijf je nooit, maar je kunt ver komen. Een poncho houdt het meeste water tegen en laat genoeg lucht door, alleen vangt hij veel wind. Een goede regenjas met een aparte broek is beter op lange stukken. Vergeet je schoenen niet: overschoenen kosten weinig en maken het grootste verschil. Neem droge sokken mee en doe je laptop in een waterdichte zak. En verder geldt:",
  U(" regen, regen en nog eens regen,"))
o("nl-overhoren", "nl", "Maak een tabel met 15 onregelmatige Engelse werkwoorden voor mijn zoon",
  "Onregelmatige werkwoorden leer je het best in kleine groepjes die op elkaar lijken, dus niet op alfabet. Laat je zoon de rijtjes hardop zeggen, dek daarna één kolom af en wissel steeds van kolom. Vijf per dag is genoeg, en na drie dagen komen de eerste weer terug. Fouten zijn niet erg, zolang hij ze zelf verbetert. Hier is de tabel met de drie vormen en de vertaling:\n\n| Infinitive | Past | Participle | Vertaling |\n|---|---|---|---|\n| begin | began | begun | beginnen |\n",
  V("| {w} | bought | bought | kopen |\n", "buy|bring|buy|think|catch"))
# ---- Swedish, Indonesian, Vietnamese -------------------------------
o("sv-midsommar", "sv", "Varför firar vi midsommar och vilka sånger sjunger alla?",
  "Midsommar är en gammal fest kring årets ljusaste tid. Länge hörde den ihop med Johannes döparens dag, men sedan 1950-talet firas den alltid på en fredag och lördag i juni så att alla kan vara lediga. Stången kläs med löv och blommor, man äter sill och färskpotatis, och sedan dansar stora och små i ring. Sångerna är enkla, och den mest kända handlar om",
  U(" små grodorna, små grodorna"))
o("id-nasi-goreng", "id", "kenapa nasi goreng buatanku selalu lembek? pakai 2 piring nasi",
  "Biasanya karena nasinya masih baru dan terlalu banyak air. Pakailah nasi yang sudah disimpan semalam di kulkas, lalu pisahkan butirnya dengan tangan sebelum digoreng. Wajan harus sangat panas dan jangan terlalu penuh; dua piring nasi sebaiknya digoreng dalam dua kali. Tumis bumbu sampai harum, masukkan telur, baru kemudian nasi dan kecap. Aduk dengan cepat supaya uap air bisa keluar. Setelah itu",
  U(" aduk-aduk-"))
o("vi-pho", "vi", "Nấu nước phở bao lâu thì ngon? Nhà tôi có 6 người",
  "Nước phở ngon cần thời gian. Với sáu người, bạn chuẩn bị khoảng hai ký xương ống, chần qua nước sôi và rửa thật sạch để nước được trong. Gừng và hành nướng cho thơm, quế và hoa hồi rang sơ rồi cho vào túi vải. Ninh với lửa nhỏ từ sáu đến tám tiếng, không đậy kín nắp, thỉnh thoảng hớt bọt. Nêm muối và nước mắm sau cùng. Khi ninh xong,",
  U(" hớt bọt, nêm lại,"))


# ====================================================================
# Self-test and output
# ====================================================================
def longest_period(text):
    """(repeated characters, period) of the best exact loop in the text after
    folding numbers; candidates are frequent distances between equal 12-grams."""
    t = re.sub(r"\d+", "#", text)
    t = re.sub(r"[ \t]+", " ", t)
    last, gaps = {}, collections.Counter()
    for i in range(len(t) - 11):
        g = t[i:i + 12]
        if g in last:
            gaps[i - last[g]] += 1
        last[g] = i
    best = (0, 0)
    for p, _ in gaps.most_common(6):
        run = top = 0
        for i in range(p, len(t)):
            run = run + 1 if t[i] == t[i - p] else 0
            if run > top:
                top = run
        if top >= p and top + p > best[0]:
            best = (top + p, p)
    return best


def noisy_share(text):
    """Share of the text that consists of words already seen in it."""
    return 1 - len(zlib.compress(text.encode(), 9)) / len(text.encode())


def selftest():
    bad = []
    assert len(R) == 120 and len(O) == 120, (len(R), len(O))
    names = [x["name"] for x in R] + [x["name"] for x in O]
    assert len(set(names)) == len(names), [n for n, c in collections.Counter(names).items() if c > 1]
    assert len({x["request"] for x in R + O}) == 240
    weak = []
    for r in R:
        assert r["check"], r["name"]
        for c, n in r["check"]:
            k = r["reply"].count(c) if isinstance(c, str) else len(c.findall(r["reply"]))
            if k != n:
                bad.append((r["name"], "count", str(c), k, n))
        chars, p = longest_period(r["reply"])
        cjk = r["lang"] in ("zh", "ja", "ko")
        tok, unit = chars / (1 if cjk else 4), p / (1 if cjk else 4)
        copies = chars / p if p else 0
        ok = tok >= 150 and (copies >= 16 if unit <= 8 else copies >= 6 if unit <= 64 else copies >= 3)
        if not ok:      # noisy repetition: one word changes
            weak.append((r["name"], chars, p, round(noisy_share(r["reply"]), 2)))
            if noisy_share(r["reply"]) < 0.6:
                bad.append((r["name"], "not repetitive", chars, p))
        if len(r["reply"]) > 25500:
            bad.append((r["name"], "too long", len(r["reply"])))
        if not r["start"]:
            c = r["check"][0][0]
            at = r["reply"].find(c) if isinstance(c, str) else c.search(r["reply"]).start()
            if at < 160:
                bad.append((r["name"], "introduction", at))
    for x in O:
        w, c = len(x["intro"].split()), len(x["intro"])
        if not (150 <= c <= 600 if x["lang"] in ("zh", "ja") else 50 <= w <= 200):
            bad.append((x["name"], "intro words", w, c))
        if not 6000 <= len(x["reply"]) - len(x["intro"]) <= 10000:
            bad.append((x["name"], "loop"))
        if noisy_share(x["reply"][c:]) < 0.7:
            bad.append((x["name"], "loop not repetitive"))
    return bad, weak


INNOCENT = re.compile(r"\d|(?<!\w)['\"]|\b(repeat\w*|again|each|times|list|table|loop|every|song|all|continue|same|fill|draw|write|rows|lines?|always|keep\w*|two|"
                      r"immer|alle|liste|tabelle|zeilen|schreib|toujours|toutes|liste|siempre|mismos|lista|tutte|sempre|todas|elke|alla|selalu|каждый|все|напиши|her|satır|mismo|rédige)\b", re.I)


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: set_d.py FOLDER")
    folder = sys.argv[1]
    bad, weak = selftest()
    for b in bad:
        print("PROBLEM", *b)
    os.makedirs(folder, exist_ok=True)
    for fn, items in (("d-requested.jsonl", R), ("d-ordinary.jsonl", O)):
        with open(os.path.join(folder, fn), "w", encoding="utf-8") as f:
            for x in items:
                f.write(json.dumps({k: x[k] for k in ("name", "request", "reply")}, ensure_ascii=False) + "\n")
        langs = collections.Counter(x["lang"] for x in items)
        print(fn, len(items), "items;", " ".join("%s:%d" % kv for kv in langs.most_common()))
    print("requested: at once %d, after introduction %d, without number %d, noisy only %d" % (
        sum(r["start"] for r in R), sum(not r["start"] for r in R), sum(not r["num"] for r in R), len(weak)))
    if os.environ.get("SETD_VERBOSE"):
        for w in weak:
            print("  noisy:", *w)
    print("ordinary: with innocent numbers/words %d" % sum(bool(INNOCENT.search(x["request"])) for x in O))
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
