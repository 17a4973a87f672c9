#!/usr/bin/env python3
"""set_a.py FOLDER: writes a-requested.jsonl, requests of people whose honest answer is very repetitive, with that answer, and
a-ordinary.jsonl, ordinary requests whose reply falls into a loop. The first are to be left alone, the second to be stopped."""
import base64, datetime as dt, json, os, random, re, sys, unicodedata

FOLDER = sys.argv[1]
R = []   # requested
NL = "\n"
WIDE = str.maketrans(",:?!;()", "\uff0c\uff1a\uff1f\uff01\uff1b\uff08\uff09")    # full-width punctuation

def add(name, lang, request, reply, kind, unit, n):
    """kind: w = word/symbol (>=120), l = sentence/line (>=10), p = paragraph (>=6).
    unit occurs at least n times in the reply (checked at the end)."""
    if lang in ("zh", "ja"):
        request, reply, unit = (s.translate(WIDE) for s in (request, reply, unit))
    R.append(dict(name=name, lang=lang, request=request, reply=reply.strip(NL),
                  kind=kind, unit=unit, n=n))

def code(s, lang=""):
    return "```" + lang + NL + s.strip(NL) + NL + "```"

def lines(f, it):
    return NL.join(f(i) for i in it)

def days(y1, m1, d1, y2, m2, d2):
    a, b = dt.date(y1, m1, d1), dt.date(y2, m2, d2)
    while a <= b:
        yield a
        a += dt.timedelta(1)


ONES = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
        "fifteen sixteen seventeen eighteen nineteen").split()
TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()

def words(n):
    if n < 20:
        return ONES[n]
    if n < 100:
        return TENS[n // 10] + ("-" + ONES[n % 10] if n % 10 else "")
    return "one hundred" + (" and " + words(n - 100) if n > 100 else "")


STATES = ("Alabama Alaska Arizona Arkansas California Colorado Connecticut Delaware Florida Georgia "
          "Hawaii Idaho Illinois Indiana Iowa Kansas Kentucky Louisiana Maine Maryland Massachusetts "
          "Michigan Minnesota Mississippi Missouri Montana Nebraska Nevada New_Hampshire New_Jersey "
          "New_Mexico New_York North_Carolina North_Dakota Ohio Oklahoma Oregon Pennsylvania "
          "Rhode_Island South_Carolina South_Dakota Tennessee Texas Utah Vermont Virginia Washington "
          "West_Virginia Wisconsin Wyoming").split()
STATES = [s.replace("_", " ") for s in STATES]
assert len(STATES) == 50

# ---------------------------------------------------------------- English, school / song / prayer

verses = ["Put him in the longboat till he's sober", "Pull out the plug and wet him all over",
          "Put him in the scuppers with a hosepipe on him", "Heave him by the leg in a running bowline",
          "Shave his belly with a rusty razor", "Put him in bed with the captain's daughter",
          "Tie him to the mast till he's twice as sober", "Give him a dose of salt and water",
          "Stick on his back a mustard plaster"]
chor = NL.join(["Way, hay, and up she rises,"] * 3 + ["Early in the morning!"])
body = "What shall we do with the drunken sailor,\n" * 3 + "Early in the morning?\n\n" + chor + "\n\n"
body += "\n\n".join(NL.join([v + ","] * 3 + ["Early in the morning!"]) + "\n\n" + chor for v in verses)
add("shanty-chorus-in-full", "en",
    "What Shall We Do With the Drunken Sailor - I need the song sheet for the pub singalong. the question verse "
    "first and then nine answers, and PLEASE print the chorus in full after every single verse, people never know "
    "where we are otherwise",
    body, "p", chor, 10)

pet = ("farmers who ploughed in the wet spring|seed that slept in the dark|rain in its season|sun on the late barley|"
       "bees in the orchard|the hands that picked the beans|the drivers who brought the grain|the millers and the bakers|"
       "the fishers out before dawn|the shepherds on the hill|the beekeepers|the market traders|the allotment holders|"
       "the children who grew cress on a windowsill|the cooks in the school kitchen|the volunteers at the food bank|"
       "those who have too little|those who have too much|those who eat alone|those who cannot eat today|"
       "families at the table|guests who come without warning|strangers who become friends|those who work at night|"
       "those who lost a crop this year|those who lost a farm|those in debt|those on the road|those at sea|"
       "the sick of this parish|those who care for them|the newly born|the newly wed|the newly bereaved|"
       "those who sat in these pews before us|all who will sit here after us").split("|")
assert len(pet) == 36
add("harvest-bidding-prayers", "en",
    "We need bidding prayers for the harvest service: three dozen short petitions (\"For ...\"), with the congregation's "
    "answer printed in full after each one because the visitors won't know it. The answer is: Lord of the harvest, hear our prayer.",
    "\n\n".join(f"For {p}:\n**Lord of the harvest, hear our prayer.**" for p in pet),
    "l", "Lord of the harvest, hear our prayer.", 36)


# ---------------------------------------------------------------- English, drawings and patterns

A = "|_____" * 10 + "|"
B = "|__" + "|_____" * 9 + "|__|"
add("ascii-brick-wall", "en",
    "ASCII brick wall please, two dozen courses high, ten bricks to a course, running bond (every 2nd course shifted half a brick).",
    code(NL.join([" " + "_" * 59] + [A if i % 2 == 0 else B for i in range(24)])), "l", A, 12)

add("rib-cowl-no-shorthand", "en",
    "My gran knits with a screen reader and it reads asterisks as 'star' so she gets lost. Please write out a k2 p2 rib "
    "worked flat on 24 stitches for 44 rows, every row in full, every stitch pair spelled, no \"repeat from\", no brackets. "
    "Right side and wrong side rows are the same for her.",
    lines(lambda i: f"Row {i}: " + ", ".join(["knit 2, purl 2"] * 6) + ".", range(1, 45)), "w", "knit 2, purl 2", 264)

BAR = "HH|x-x-x-x-x-x-x-x-|\nSD|----o-------o---|\nBD|o-------o-o-----|"
add("drum-tab-32-bars", "en",
    "need a drum tab i can scroll on my tablet w/o looking for repeat signs. straight 8th rock beat, kick on 1, 3 and the and of 3, "
    "snare 2 and 4. hh sd bd lines. thirty two bars, each one written, bar number above",
    code("\n\n".join(f"Bar {i}\n{BAR}" for i in range(1, 33))), "p", BAR, 32)

add("strumming-under-every-bar", "en",
    "Beginner guitarist here, I panic when I have to remember anything. G D Em C round and round, 4 chords, fifteen times through. "
    "For each bar give me the chord and next to it the whole strum, D - D U - U D U. One bar per line.",
    lines(lambda c: f"{c:<2} | D - D U - U D U |", ["G", "D", "Em", "C"] * 15), "l", "| D - D U - U D U |", 60)

add("paper-tape-sos", "en",
    "I'm props master for a school play (sinking ship, don't ask). The radio spits out paper tape: SOS in morse, dots and dashes, "
    "one call every three seconds, and the scene lasts six minutes. Give me the whole tape, slash between calls, wrapped however you like.",
    NL.join(["... --- ... / " * 5] * 24).replace(" \n", "\n").rstrip(" /"), "l", "... --- ...", 120)

seq = "CTG" * 2000
add("fasta-ctg-expansion", "en",
    "For a PCR stutter simulation I need a synthetic FASTA record, header >synthetic_DMPK_expansion, sequence is nothing but a CTG "
    "expansion of two thousand repeats, wrapped at 60 columns.",
    code(">synthetic_DMPK_expansion\n" + NL.join(seq[i:i + 60] for i in range(0, len(seq), 60))), "w", "CTG", 2000)

board = NL.join(["  +" + "---+" * 8] + [f"{r} |" + "   |" * 8 + "\n  +" + "---+" * 8 for r in range(8, 0, -1)]
                + ["    a   b   c   d   e   f   g   h"])
add("six-empty-boards", "en",
    "Six empty chess boards in plain text, with the letters and numbers round the edge, so that I can print them and pencil in positions.",
    code("\n\n".join([board] * 6)), "p", board, 6)

W, H = 70, 24
m = [["#"] * W] + [["#"] + ["."] * (W - 2) + ["#"] for _ in range(H - 2)] + [["#"] * W]
m[12][35] = "@"; m[3][60] = ">"
add("roguelike-big-room", "en",
    "level file for my roguelike: one big empty room, 70x24, # walls round the outside, . floor, @ roughly in the middle, and a single > "
    "near the top right corner. just the map",
    code(NL.join("".join(r) for r in m)), "w", ".", 1400)

G = "+" + "---+" * 15
add("crossword-blank-15", "en",
    "Can I have a blank crossword grid 15 by 15 squares, plus-and-dash boxes, no black squares yet (I black them in by hand)?",
    code(NL.join([G] + ["|" + "   |" * 15 + NL + G] * 15)), "l", G, 16)

add("exam-hall-seating", "en",
    "exam hall seating plan text. rows A to P, a dozen seats in each, nobodys booked yet so all of them say [free]",
    code(NL.join(f"Row {c}  " + " ".join(["[free]"] * 12) for c in "ABCDEFGHIJKLMNOP")), "w", "[free]", 192)

add("march-rota", "en",
    "Need the rota for every day of March 2026 pls, it's dead simple: Priya opens 06:00-14:00, Tom closes 14:00-22:00, no days off "
    "because they're the owners. One line per day, date first, for pinning in the kitchen.",
    lines(lambda d: f"{d:%a %d %b %Y} | open 06:00-14:00 Priya | close 14:00-22:00 Tom", days(2026, 3, 1, 2026, 3, 31)),
    "l", "| open 06:00-14:00 Priya | close 14:00-22:00 Tom", 31)

wd = [d for d in days(2026, 1, 1, 2026, 3, 31) if d.weekday() < 5]
add("timesheet-q1", "en",
    "so finance wants my time sheet retroactively for the whole first quarter of 2026 (I know) and I honestly did the same thing daily. "
    "CSV: date,start,end,break_min,hours,project. 09:00 to 17:30, half an hour break, project Apollo. monday-friday only, pretend there were no holidays",
    code("date,start,end,break_min,hours,project\n" + lines(lambda d: f"{d},09:00,17:30,30,8.0,Apollo", wd), "csv"),
    "l", ",09:00,17:30,30,8.0,Apollo", len(wd))

def addm(y, m, k):
    t = y * 12 + m - 1 + k
    return t // 12, t % 12 + 1
add("invoice-36-hosting-lines", "en",
    "Please draft the lines of an invoice for three years of web hosting, one line per month, starting July 2023: "
    "description \"Web hosting, standard plan\", qty 1, 12.00, line total 12.00. Total at the bottom. GBP.",
    "| # | Month | Description | Qty | Unit | Total |\n|---|---|---|---|---|---|\n" + lines(
        lambda k: "| %d | %02d/%d | Web hosting, standard plan | 1 | £12.00 | £12.00 |" % ((k + 1,) + addm(2023, 7, k)[::-1]), range(36))
    + "\n| | | **Total** | | | **£432.00** |", "l", "| Web hosting, standard plan | 1 | £12.00 | £12.00 |", 36)

tagrow = NL.join(["+---------+  " * 4, "|  $1.00  |  " * 4, "+---------+  " * 4]).replace("  \n", "\n").rstrip()
add("yard-sale-tags", "en",
    "yard sale saturday!! everythings a buck. make me six dozen price tags i can cut out, little boxes with $1.00 inside, four across",
    code("\n\n".join([tagrow] * 18)), "l", "|  $1.00  |  |  $1.00  |", 18)



# ---------------------------------------------------------------- English, machine text
add("ping-mock-deterministic", "en",
    "I'm testing a regex, so I need mocked `ping -c 60 127.0.0.1` output (Linux format) in which every rtt is exactly 0.045 ms and ttl 64. "
    "Full output incl. header and statistics, do not abbreviate.",
    code("PING 127.0.0.1 (127.0.0.1) 56(84) bytes of data.\n"
         + lines(lambda i: f"64 bytes from 127.0.0.1: icmp_seq={i} ttl=64 time=0.045 ms", range(1, 61))
         + "\n\n--- 127.0.0.1 ping statistics ---\n60 packets transmitted, 60 received, 0% packet loss, time 59000ms\n"
           "rtt min/avg/max/mdev = 0.045/0.045/0.045/0.000 ms"), "l", "ttl=64 time=0.045 ms", 60)

t0 = dt.datetime(2025, 11, 3, 4, 0, 0)
add("access-log-healthcheck", "en",
    "give me ten minutes of nginx combined access log where the only traffic is the load balancer 10.0.0.5 hitting GET /healthz "
    "every ten seconds, 200, 2 bytes, agent \"ELB-HealthChecker/2.0\". start 03/Nov/2025:04:00:00 +0000",
    code(lines(lambda i: f'10.0.0.5 - - [{t0 + dt.timedelta(seconds=10 * i):%d/%b/%Y:%H:%M:%S} +0000] "GET /healthz HTTP/1.1" 200 2 "-" "ELB-HealthChecker/2.0"', range(60))),
    "l", '"GET /healthz HTTP/1.1" 200 2 "-" "ELB-HealthChecker/2.0"', 60)

ins = "INSERT INTO seat (hall, status, price) VALUES ('B', 'free', 15.00);"
add("sql-inserts-one-per-seat", "en",
    "sqlite on the theatre laptop is ancient so no generate_series. hall B has 120 seats, id autoincrements. I want one plain insert per seat, so a hundred and twenty "
    "statements, table seat(hall, status, price): 'B', 'free', 15.00. nothing clever",
    code(NL.join([ins] * 120), "sql"), "l", ins, 120)

add("sql-placeholders", "en",
    "our old driver can't expand lists, I have to paste literal placeholders. `INSERT INTO ev(a,b,c,d) VALUES` followed by a hundred and "
    "fifty tuples of four question marks, 5 tuples per line, semicolon at the end",
    code("INSERT INTO ev(a,b,c,d) VALUES\n" + ",\n".join(["  " + ", ".join(["(?, ?, ?, ?)"] * 5)] * 30) + ";", "sql"), "w", "(?, ?, ?, ?)", 150)

add("json-512-zeros", "en",
    "Blank DMX universe as a JSON array: 512 channels, all zero, 32 values per line so I can count them.",
    code("[\n" + ",\n".join(["  " + ", ".join(["0"] * 32)] * 16) + "\n]", "json"), "w", "0", 512)

y = "  - image: registry.local/worker:1.4\n    restart: always\n    memory: 512m\n    queue: default"
add("yaml-identical-workers", "en",
    "Our in-house orchestrator doesn't know replicas nor anchors. Could you give me the YAML `workers:` list with two score entries, all the same as this?\n\n"
    "```yaml\n" + y + "\n```",
    code("workers:\n" + NL.join([y] * 40), "yaml"), "p", y, 40)

add("ini-relay-sections", "en",
    "write the ini for my 32 channel relay card. section names relay_01 ... relay_32, in each of them enabled=yes, mode=toggle, delay_ms=250, invert=no",
    code("\n\n".join(f"[relay_{i:02d}]\nenabled=yes\nmode=toggle\ndelay_ms=250\ninvert=no" for i in range(1, 33)), "ini"),
    "p", "enabled=yes\nmode=toggle\ndelay_ms=250\ninvert=no", 32)

def tf(i):
    return (f'resource "aws_s3_bucket" "archive_{i:02d}" {{\n  bucket        = "acme-archive-{i:02d}"\n  force_destroy = false\n\n  tags = {{\n'
            '    team        = "records"\n    environment = "prod"\n    retention   = "7y"\n  }\n}')
add("terraform-no-loops", "en",
    "Auditor wants Terraform without count or for_each (\"must be greppable\"). Buckets acme-archive-01 to -16, resources archive_01.., "
    "force_destroy = false, tags team=records, environment=prod, retention=7y. Spell out every block.",
    code("\n\n".join(tf(i) for i in range(1, 17)), "hcl"), "p", '    team        = "records"\n    environment = "prod"\n    retention   = "7y"', 16)

add("dockerfile-layer-limit", "en",
    "I want to see what breaks at the layer limit. Dockerfile FROM alpine:3.20 and then 120 separate RUN echo x >> /layers.txt instructions. "
    "yes really separate, that's the point",
    code("FROM alpine:3.20\n" + NL.join(["RUN echo x >> /layers.txt"] * 120), "dockerfile"), "l", "RUN echo x >> /layers.txt", 120)

add("makefile-thirty-lessons", "en",
    "Makefile for a course with lessons 1 to 30: target lesson-N depends on lessons/N.md and runs pandoc -s $< -o build/$@.html then echo done. "
    "Students must see each rule so no pattern rules. also an all target.",
    code("all: " + " ".join(f"lesson-{i}" for i in range(1, 31)) + "\n\n" + "\n\n".join(
        f"lesson-{i}: lessons/{i}.md\n\tpandoc -s $< -o build/$@.html\n\t@echo done" for i in range(1, 31))
        + "\n\n.PHONY: all " + " ".join(f"lesson-{i}" for i in range(1, 31)), "make"),
    "l", "\tpandoc -s $< -o build/$@.html\n\t@echo done", 30)

add("nop-padding-asm", "en",
    "nasm: label pad, then 2^10 nops one per line, then jmp done. without times, the assembler I have to use (homework) has no macros",
    code("pad:\n" + NL.join(["    nop"] * 1024) + "\n    jmp done", "nasm"), "w", "nop", 1024)

add("xxd-erased-flash", "en",
    "What does `xxd` print for one kibibyte of erased flash (all 0xFF)? Show every line, I'm making a slide.",
    code(lines(lambda i: f"{i * 16:08x}: " + " ".join(["ffff"] * 8) + "  " + "." * 16, range(64))),
    "l", "ffff ffff ffff ffff ffff ffff ffff ffff  ................", 64)

add("uart-0xaa-bits", "en",
    "uart test pattern: 0xAA as bits, one kilobyte of it (1024), eight bytes to a line",
    NL.join([" ".join(["10101010"] * 8)] * 128), "w", "10101010", 1024)

b64 = base64.b64encode(bytes(6144)).decode()
add("base64-of-zeros", "en",
    "base64 encode 6 KiB of NUL bytes for me, MIME line length (76)",
    NL.join(b64[i:i + 76] for i in range(0, len(b64), 76)), "w", "AAAA", 1900)

add("identity-matrix-literal", "en",
    "My calculator app only takes literals. Identity matrix, 26 by 26, as a Python list of lists, one row per line.",
    code("I = [\n" + NL.join("    [" + ", ".join("1" if i == j else "0" for j in range(26)) + "]," for i in range(26)) + "\n]", "python"),
    "w", "0", 650)

add("latex-blank-logbook", "en",
    "latex table for a lab logbook: columns Date, Sample, Operator, Reading, Remarks, with 32 EMPTY rows (room to write), hline after each, all rows typed out",
    code("\\begin{tabular}{|p{2cm}|p{3cm}|p{3cm}|p{2cm}|p{4cm}|}\n\\hline\nDate & Sample & Operator & Reading & Remarks \\\\ \\hline\n"
         + NL.join(["\\rule{0pt}{3ex} & & & & \\\\ \\hline"] * 32) + "\n\\end{tabular}", "latex"), "l", "\\rule{0pt}{3ex} & & & & \\\\ \\hline", 32)

add("truth-table-and6", "en",
    "complete truth table for a six input AND gate, A to F and Q, markdown, every combination in binary order",
    "| A | B | C | D | E | F | Q |\n|---|---|---|---|---|---|---|\n" + lines(
        lambda v: "| " + " | ".join(format(v, "06b")) + f" | {1 if v == 63 else 0} |", range(64)), "w", " 0 |", 240)

add("potluck-signup-blank", "en",
    "Sign-up sheet for the potluck in markdown. Columns: No., Name, Dish, Serves, Allergens. 40 numbered rows, otherwise blank with underscores "
    "to write on (about eight underscores per field). That's for the church hall door.",
    "| No. | Name | Dish | Serves | Allergens |\n|---|---|---|---|---|\n" + lines(
        lambda i: f"| {i} | ________ | ________ | ________ | ________ |", range(1, 41)), "l", "| ________ | ________ | ________ | ________ |", 40)

li = '  <li><a href="#" class="nav-item">Menu item</a></li>'
add("html-overflow-menu", "en",
    "i'm debugging overflow scroll in a sidebar, give me a ul with 60 identical dummy entries\n```html\n" + li.strip() + "\n```",
    code("<ul>\n" + NL.join([li] * 60) + "\n</ul>", "html"), "l", li, 60)

add("svg-dots-no-pattern", "en",
    "My plotter software ignores <pattern>, <use> and CSS. I need an SVG 100x100 with black dots r=2 in a 10 x 10 lattice, spacing 10, first dot at 5,5, "
    "every circle element literal.",
    code('<svg xmlns="http://www.w3.org/2000/svg" width="100" height="100" viewBox="0 0 100 100">\n' + NL.join(
        f'  <circle cx="{5 + 10 * x}" cy="{5 + 10 * y}" r="2" fill="#000"/>' for y in range(10) for x in range(10)) + "\n</svg>", "svg"),
    "l", 'r="2" fill="#000"/>', 100)

add("css-template-areas", "en",
    "css please: .page grid whose grid-template-areas are 24 rows; first row twelve times head, last row twelve times foot, every row between "
    "them twelve times main. literal strings, no repeat()",
    code(".page {\n  display: grid;\n  grid-template-areas:\n" + NL.join('    "' + " ".join([w] * 12) + '"' for w in ["head"] + ["main"] * 22 + ["foot"]) + ";\n}", "css"),
    "w", "main", 264)

blurb = ("The river was higher than usual this week, and the ferry waited for nobody. Those who came late sat on the wall, "
         "shared their bread with the ducks, and talked about the bridge that has been promised since before the war.")
add("newspaper-flow-filler", "en",
    "I'm checking how our newspaper template flows over three columns. Fill it with this paragraph, two dozen copies, blank line between:\n\n" + blurb,
    "\n\n".join([blurb] * 24), "p", blurb, 24)

add("preheader-hack", "en",
    "email preheader trick: I need the string of &zwnj;&nbsp; 150 times inside a hidden div so Gmail doesn't pull body text. write it literally, inline styles ok",
    code('<div style="display:none;max-height:0;overflow:hidden;">\n' + NL.join(["&zwnj;&nbsp;" * 10] * 15) + "\n</div>", "html"),
    "w", "&zwnj;&nbsp;", 150)

add("json-nested-depth", "en",
    "for a parser depth test: JSON where key \"a\" holds an object whose key \"a\" holds an object etc., 300 levels deep, innermost value null. minified",
    '{"a":' * 300 + "null" + "}" * 300, "w", '{"a":', 300)


# ---------------------------------------------------------------- English, worksheets / voices / plans

add("are-we-there-yet", "en",
    "comedy sketch script!! a kid in the back seat asks are we there yet? and dad says no. Motorway from leeds to london. every mile marker for the first "
    "70 miles same question same answer, format KID: / DAD: . the joke is that nothing changes. at seventy DAD: Yes.",
    "\n".join(["KID: Are we there yet?\nDAD: No."] * 69 + ["KID: Are we there yet?\nDAD: Yes."]), "l", "KID: Are we there yet?\nDAD: No.", 69)

add("parrot-left-alone", "en",
    "You are a pirate's parrot. The pirate left you alone for two hours and you squawk the same thing twice a minute: Pieces of eight! Pieces of eight! "
    "Stay in character and give me the entire two hours, one squawk per line.",
    NL.join(["Pieces of eight! Pieces of eight!"] * 240), "l", "Pieces of eight! Pieces of eight!", 240)

add("robot-fill-2kb", "en",
    "the robot in my game breaks down. its debug textbox holds 2 KB. fill it with DOES NOT COMPUTE. over and over, dont go past the limit",
    " ".join(["DOES NOT COMPUTE."] * 113), "l", "DOES NOT COMPUTE.", 113)

def hr(h):
    return f"{h:02d}:00  " + " ".join(["BONNNG!"] * ((h - 1) % 12 + 1 if h else 12))
add("clock-strikes-full-day", "en",
    "For an audio drama script: type what the grandfather clock in the hall does over a full day, midnight to 11 pm. It strikes the hours (twelve hour "
    "dial), each stroke is \"BONNNG!\". Label each line with the time.",
    lines(hr, range(24)), "w", "BONNNG!", 156)

add("metronome-100bpm", "en",
    "be a metronome. 100 bpm, 4/4, accent on the one, 10 min. TICK tock tock tock, a bar per line. keep going till i say stop or the 10 min are up. go",
    NL.join(["TICK tock tock tock"] * 250), "w", "tock", 750)

add("heart-monitor-then-flat", "en",
    "Screenplay insert, bedside monitor, close up. I want the reader to sit in it: two hundred beeps, ten to a line, separated by three dots, and then ONE "
    "flatline with 500 e's. Nothing else, no stage directions.",
    NL.join(["... ".join(["beep"] * 10) + "..."] * 20) + "\n\nb" + "e" * 500 + "p", "w", "beep...", 200)

add("grandpa-snores-all-night", "en",
    "Comic strip lettering: grandpa snores from 10 pm till 7 am. Per ten minutes one balloon: Hrrrrrr-pshhhhh. I need all balloons with the time in front "
    "so the letterer can tick them off.",
    lines(lambda k: f"{(22 + k // 6) % 24:02d}:{k % 6 * 10:02d}  Hrrrrrr-pshhhhh.", range(54)) + "\n07:00  Hrrrrrr-pshhhhh.", "l", "Hrrrrrr-pshhhhh.", 55)

add("scream-three-times-ten-cubed", "en",
    "A scream for a horror zine page, letters will be set by hand: capital A, 3 x 10^3 of them, then GH!!! no spaces",
    "A" * 3000 + "GH!!!", "w", "A", 3000)

add("commentator-goals", "en",
    "im cutting a highlights reel subtitle. the brazilian style commentator, two dozen goals, each GOOO...OAL! with a hundred O's (before the AL), one a line",
    NL.join(["G" + "O" * 100 + "AL!"] * 24), "w", "O", 2400)

add("emoji-wall-hearts", "en",
    "it's our 1st anniversary 🥰 wall of ❤️ for my gf, thirty wide and 25 tall, with nothing in between",
    NL.join(["❤️" * 30] * 25), "w", "❤️", 750)

sig = "Name: ______________________  Address: ______________________  Signature: ______________  Date: ________"
add("petition-lines", "en",
    "Petition to keep the library open on Saturdays. I already have the text, all I need now is the signature lines: name, address, signature, date, "
    "each with a blank. Enough for thirty people.",
    "\n\n".join([sig] * 30), "l", sig, 30)

guests = ("Auntie Jo|Bilal|Carmen|Deb and Rick|Edie|Father Nolan|Gus|Hana|Ines|Jamie|Karl|Lou|Mrs Petrie|Nadia|Old Tom|Pauline|Rafi|Sunita|"
          "Teddy|Uncle Vern|Wanda|Xavi|Yolanda|Zeke").split("|")
add("thank-you-same-line", "en",
    "I'm writing cards after the wedding and I refuse to be creative. Same sentence for everybody: \"Thank you, NAME, for coming so far and for your very generous "
    "gift.\" Names: " + ", ".join(guests),
    lines(lambda g: f"Thank you, {g}, for coming so far and for your very generous gift.", guests), "l", "for coming so far and for your very generous gift.", 24)

bad = [f"{d:%d.%m.} Teh pump were checked and no leek was find." for d in days(2026, 4, 1, 2026, 4, 30)]
add("fix-typos-same-line-daily", "en",
    "the night guy's logbook, correct the english, keep every line and the dates:\n\n" + NL.join(bad),
    NL.join(b.replace("Teh pump were checked and no leek was find.", "The pump was checked and no leak was found.") for b in bad),
    "l", "The pump was checked and no leak was found.", 30)

rows = [f"{100 + i},A4 lever arch file,black,2.49" for i in range(26)]
add("csv-to-json-same-product", "en",
    "Turn this into a JSON array of objects (strings for text, numbers for sku and price), pretty printed:\n\nsku,name,color,price\n" + NL.join(rows),
    code(json.dumps([{"sku": 100 + i, "name": "A4 lever arch file", "color": "black", "price": 2.49} for i in range(26)], indent=2), "json"),
    "p", '    "name": "A4 lever arch file",\n    "color": "black",\n    "price": 2.49', 26)

ocr = "Narne: ________ Daie of b1rth: ________\nWard: ________ Bed n0: ________\nAilergies: none kn0wn\nTernp: ____ Pu1se: ____ BP: ____/____"
good = "Name: ________ Date of birth: ________\nWard: ________ Bed no: ________\nAllergies: none known\nTemp: ____ Pulse: ____ BP: ____/____"
add("ocr-forms-cleanup", "en",
    "Scanned a pad of ten blank observation forms, OCR made a mess. Clean up the text, keep all ten:\n\n" + "\n\n".join([ocr] * 10),
    "\n\n".join([good] * 10), "p", good, 10)

rec = "and I'll be home when the lilacs -- (click) --"
add("stuck-record-transcript", "en",
    "Transcript for the museum's oral history tape: the gramophone sticks and keeps playing \"and I'll be home when the lilacs -- (click) --\" thirty-three and a third "
    "times (the third time is cut after \"and I'll be\"), each on a new line. then [needle lifted]",
    NL.join([rec] * 33 + ["and I'll be", "[needle lifted]"]), "l", rec, 33)

def ts(s):
    return f"{s // 3600:02d}:{s // 60 % 60:02d}:{s % 60:02d},000"
add("srt-rain-continues", "en",
    "slow TV video, ten minutes of rain on a window. the platform demands captions for every ten second segment. .srt file, each cue says [rain continues]",
    code("\n\n".join(f"{i + 1}\n{ts(10 * i)} --> {ts(10 * i + 10)}\n[rain continues]" for i in range(60)), "srt"), "l", "[rain continues]", 60)

ex = ["burpees", "squats", "mountain climbers", "push-ups"]
add("tabata-read-aloud", "en",
    "Text for my watch to read aloud: tabata, burpees then squats then mountain climbers then push-ups, eight rounds of each, 20 seconds work 10 seconds rest. "
    "say it in full each round because the watch can't loop: \"Round N. Burpees. Go! ... Ten seconds left. ... Stop. Rest for ten seconds.\"",
    "\n".join(f"Round {r}. {e.capitalize()}. Go! ... Ten seconds left. ... Stop. Rest for ten seconds." for e in ex for r in range(1, 9)),
    "l", "Go! ... Ten seconds left. ... Stop. Rest for ten seconds.", 32)

add("counting-sheep-words", "en",
    "cant sleep. count sheep for me, like 'One sheep jumps softly over the fence.' numbers in words. go up to eighty and keep it boring",
    lines(lambda i: f"{words(i).capitalize()} sheep jump{'s' if i == 1 else ''} softly over the fence.", range(1, 81)), "l", "softly over the fence.", 80)

add("launch-countdown-loudspeaker", "en",
    "For our model rocket day: what the loudspeaker should say every second from sixty down to one, in the style \"T minus sixty seconds and counting.\", then Lift-off!",
    lines(lambda i: f"T minus {words(i)} second{'s' if i > 1 else ''} and counting.", range(60, 0, -1)) + "\nLift-off!", "l", "and counting.", 60)

def ldiv(n, d, k):
    out = []; r = n
    for i in range(1, k + 1):
        q, r2 = divmod(r * 10, d)
        out.append(f"Step {i}: bring down 0 to get {r * 10}; {d} goes into {r * 10} {q} times; {q} × {d} = {q * d}; remainder {r2}.")
        r = r2
    return out
digs = "".join(str(int(10 ** i // 7 % 10)) for i in range(1, 49))
add("long-division-one-seventh", "en",
    "Show my daughter that 1/7 really goes on forever: long division of 1 by 7, one line per digit, to 48 decimal places, no skipping even though it cycles "
    "(that's what she has to discover). Write the decimal at the end.",
    NL.join(ldiv(1, 7, 48)) + f"\n\n1 ÷ 7 = 0.{digs}…", "l", "bring down 0 to get 10; 7 goes into 10 1 times; 1 × 7 = 7; remainder 3.", 8)
R[-1]["unit"], R[-1]["n"] = "bring down 0 to get", 48

add("repeated-addition-13s", "en",
    "ok so my son doesn't believe that 13 x 75 is the same as adding thirteen again and again. do it the long way from zero, one addition per line, all seventy-five of them",
    lines(lambda i: f"{13 * (i - 1)} + 13 = {13 * i}", range(1, 76)), "l", "+ 13 =", 75)
R[-1]["reply"] = "Starting from 0 and adding 13 each time:\n\n" + lines(lambda i: f"Addition {i}: {13 * (i - 1)} + 13 = {13 * i}", range(1, 76)) + "\n\n13 × 75 = 975"

add("seven-eights-drill", "en",
    "he always gets 7x8 wrong. so a drill page with only that, \"7 × 8 = ____\", four columns, forty rows",
    NL.join(["    ".join(["7 × 8 = ____"] * 4)] * 40), "w", "7 × 8 = ____", 160)

add("spelling-necessary", "en",
    "spelling practise: the word necessary, written 5 across and 30 down. she has to trace every one",
    NL.join(["   ".join(["necessary"] * 5)] * 30), "w", "necessary", 150)

add("minimal-pair-ship-sheep", "en",
    "I teach ESL. Pronunciation drill text for choral reading please: ship, sheep alternating, a gross of each, six pairs a line.",
    NL.join([", ".join(["ship, sheep"] * 6)] * 24), "w", "ship, sheep", 144)

add("typing-home-row-page", "en",
    "typing lesson one, home row. an A4 page of asdf jkl; groups (so about 50 lines, eight groups of the pair on each)",
    NL.join([" ".join(["asdf jkl;"] * 8)] * 50), "w", "asdf jkl;", 400)

add("postcard-per-state", "en",
    "road trip souvenir poster, one line per US state alphabetical: Greetings from ___! Wish you were here.",
    lines(lambda s: f"Greetings from {s}! Wish you were here.", STATES), "l", "Wish you were here.", 50)

add("affirmations-chessboard", "en",
    "My therapist said to write \"I am calm, I am kind, I am enough.\" as many times as there are squares on a chessboard. My wrist is in a cast so could you type it for me?",
    NL.join(["I am calm, I am kind, I am enough."] * 64), "l", "I am calm, I am kind, I am enough.", 64)

qs = ("Can you confirm your full name for the tape?|Where were you on the night of the ninth?|Do you own a blue van?|Is this your glove?|Who is Martin Crale?|"
      "Have you ever been to Dover?|Who paid for the ferry?|Whose handwriting is this?|Were you alone?|What is in the lock-up?|Who has the other key?|"
      "Why did you shave your beard?|When did you last see your brother?|Did he owe you money?|Did you owe him?|What does 'the Tuesday job' mean?|"
      "Why is there sand in your boots?|Do you recognise this voice?|Is that you laughing?|Who is the woman in the photograph?|Does she know you are here?|"
      "Where did the four thousand pounds come from?|Did you burn the ledger?|Is that a burn on your wrist?|Would you like a glass of water?|"
      "Do you want a solicitor?|Are you protecting somebody?|Is it your mother?|Do you understand how serious this is?|Can you read this line for me?|"
      "Why did you phone the harbour master?|What did he say?|Do you play chess?|Who taught you?|Is he still alive?|Did you mean to hurt him?|"
      "Did he suffer?|Do you sleep well?|Is there anything you would like to add?|Shall we stop there?").split("|")
assert len(qs) == 40
add("police-interview-no-comment", "en",
    "Write me a police interview, forty questions, the detective gets ever more personal, and the suspect answers \"No comment.\" every single time. DET: and SUSPECT:",
    NL.join(f"DET: {q}\nSUSPECT: No comment." for q in qs), "l", "SUSPECT: No comment.", 40)

stave = NL.join(s + "|" + "-" * 58 + "|" for s in "eBGDAE")
add("blank-guitar-tab", "en",
    "blank guitar tab to print, ten systems, standard tuning, bars not needed just the six lines with dashes",
    code("\n\n".join([stave] * 10)), "p", stave, 10)

add("shop-window-roll", "en",
    "Me: suggest a closing notice\nYou: \"Closed for stocktaking. Back on Monday. Sorry!\"\nMe: perfect, that one. Now as a wallpaper strip for the window: the same notice again and "
    "again for a sheet of A4, so 45 lines give or take.",
    NL.join(["Closed for stocktaking. Back on Monday. Sorry!"] * 45), "l", "Closed for stocktaking. Back on Monday. Sorry!", 45)

add("vending-machine-npc", "en",
    "You play a broken vending machine in my text adventure. For each coin you say exactly: *clunk* COIN REJECTED. PLEASE INSERT EXACT CHANGE. I feed in all the coins from a roll of "
    "quarters (a $10 roll). Output everything the machine says.",
    NL.join(["*clunk* COIN REJECTED. PLEASE INSERT EXACT CHANGE."] * 40), "l", "*clunk* COIN REJECTED. PLEASE INSERT EXACT CHANGE.", 40)


# ---------------------------------------------------------------- other languages
mops = ("Ein Mops kam in die Küche\nund stahl dem Koch ein Ei.\nDa nahm der Koch den Löffel\nund schlug den Mops zu Brei.\n\n"
        "Da kamen viele Möpse\nund gruben ihm ein Grab\nund setzten ihm 'nen Grabstein,\nauf dem geschrieben stand:")
add("de-mops-endloslied", "de",
    "Wir singen auf der Busfahrt \"Ein Mops kam in die Küche\" und wollen sehen, wer zuerst aussteigt. Schreib mir das Lied bitte so auf, dass es dreißigmal durchläuft, ohne Abkürzung.",
    "\n\n".join([mops] * 30), "p", mops, 30)

kw = lambda k: dt.date.fromisocalendar(2026, k, 1)
add("de-putzplan-alle-wochen", "de",
    "putzplan fürs treppenhaus 2026, alle kalenderwochen (2026 hat 53). wir sind nur 2 parteien, EG links macht ungerade wochen, EG rechts die geraden. pro zeile: KW, datum montag, "
    "wer, \"Treppe wischen, Geländer abstauben\", und kästchen zum abhaken",
    lines(lambda k: f"KW {k:02d} | {kw(k):%d.%m.%Y} | {'EG links ' if k % 2 else 'EG rechts'} | Treppe wischen, Geländer abstauben | [ ]", range(1, 54)),
    "l", "| Treppe wischen, Geländer abstauben | [ ]", 53)

add("de-mietzahlungen-liste", "de",
    "Das Amt möchte eine Aufstellung meiner Mietzahlungen von Januar 2023 bis Dezember 2025. Jeden Monat am Dritten, 640,00 EUR, Verwendungszweck \"Miete Whg. 7\", an die Hausverwaltung Brandt. "
    "Bitte je Monat eine Zeile und am Schluss die Summe.",
    lines(lambda k: "03.%02d.%d  Hausverwaltung Brandt  Miete Whg. 7  640,00 EUR" % addm(2023, 1, k)[::-1], range(36)) + "\n\nSumme: 23.040,00 EUR",
    "l", "Hausverwaltung Brandt  Miete Whg. 7  640,00 EUR", 36)

en_an = "Please keep your belongings with you at all times."
add("de-durchsagen-uebersetzen", "de",
    "Bitte auf Deutsch übersetzen, Uhrzeiten stehen lassen, Zeile für Zeile (Protokoll der Bahnhofsdurchsagen):\n\n"
    + lines(lambda i: f"{6 + i // 4:02d}:{i % 4 * 15:02d} {en_an}", range(32)),
    lines(lambda i: f"{6 + i // 4:02d}:{i % 4 * 15:02d} Bitte lassen Sie Ihr Gepäck nicht unbeaufsichtigt.", range(32)),
    "l", "Bitte lassen Sie Ihr Gepäck nicht unbeaufsichtigt.", 32)

FRN = ("un deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize dix-sept dix-huit dix-neuf vingt").split()
def km(i):
    k = FRN[i - 1].capitalize() + (" kilomètre" if i == 1 else " kilomètres") + " à pied"
    return f"{k},\nÇa use, ça use,\n{k},\nÇa use les souliers."
add("fr-kilometres-a-pied", "fr",
    "Bonjour ! Je suis animatrice en colo et on part en rando demain, une bonne vingtaine de bornes. Tu peux me taper toutes les paroles de « Un kilomètre à pied, ça use » du premier au vingtième ? "
    "Les petits suivent sur la feuille.",
    "\n\n".join(km(i) for i in range(1, 21)), "l", "Ça use les souliers.", 20)

add("fr-emargement-vierge", "fr",
    "feuille d'émargement vierge stp, 35 lignes numérotées : nom, prénom, heure d'arrivée, signature. pour une AG d'asso, des pointillés à remplir",
    lines(lambda i: f"{i:>2}. Nom : ................ Prénom : ................ Arrivée : ....h.... Signature : ................", range(1, 36)),
    "l", "Nom : ................ Prénom : ................ Arrivée : ....h.... Signature : ................", 35)

fr_v = ("Quand le café refroidit sur le bord du bureau,|Quand la pluie tape aux vitres du dernier métro,|Quand un enfant rit fort dans la cour de l'école,|Quand je perds mes clefs, mes gants, mes paroles,|"
        "Quand le pain est trop cuit, quand le lait a tourné,|Quand la voisine chante en pliant ses cahiers,|Quand le train de Bordeaux a vingt minutes de retard,|Quand j'éteins la lumière et qu'il est déjà tard,|"
        "Quand le chat fait semblant de ne pas m'avoir vu,|Quand je trouve un billet dans un manteau perdu,|Quand le marché s'éveille et que sentent les figues,|Quand je recompte seul les marches qui fatiguent,|"
        "Quand la neige hésite au-dessus des toits gris,|Quand je relis tes lettres et leurs mots arrondis,|Quand la mer se retire en laissant ses miroirs,|Quand les chaises sont mises à l'envers le soir,|"
        "Quand le facteur sourit sans rien avoir pour moi,|Quand je mets deux assiettes et qu'il n'y a que moi,|Quand le printemps revient sans demander la clef,|Quand tout recommence et que rien n'a changé,").split("|")
assert len(fr_v) == 20
add("fr-poeme-je-pense-a-toi", "fr",
    "Écris un poème d'absence pour mon mari en mission : vingt vers qui commencent par « Quand », et après chacun, sur sa propre ligne, toujours les mêmes mots : « je pense à toi, je pense à toi, encore à toi. »",
    "\n\n".join(v + "\nje pense à toi, je pense à toi, encore à toi." for v in fr_v), "l", "je pense à toi, je pense à toi, encore à toi.", 20)

ave = ("Dios te salve, María, llena eres de gracia, el Señor es contigo. Bendita tú eres entre todas las mujeres, y bendito es el fruto de tu vientre, Jesús. "
       "Santa María, Madre de Dios, ruega por nosotros, pecadores, ahora y en la hora de nuestra muerte. Amén.")
pn = ("Padre nuestro, que estás en el cielo, santificado sea tu nombre; venga a nosotros tu reino; hágase tu voluntad en la tierra como en el cielo. Danos hoy nuestro pan de cada día; "
      "perdona nuestras ofensas, como también nosotros perdonamos a los que nos ofenden; no nos dejes caer en la tentación, y líbranos del mal. Amén.")
gl = "Gloria al Padre, y al Hijo, y al Espíritu Santo. Como era en el principio, ahora y siempre, por los siglos de los siglos. Amén."
add("es-misterios-del-rosario", "es",
    "Mi abuela ya no se acuerda de las oraciones y se pierde contando. ¿Me escribes tres misterios completos del rosario, uno detrás de otro, con todo escrito: el padrenuestro, cada una de las avemarías y el gloria?",
    "\n\n".join(([pn] + [ave] * 10 + [gl]) * 3), "p", ave, 30)

ESN = "Un Dos Tres Cuatro Cinco Seis Siete Ocho Nueve Diez Once Doce Trece Catorce Quince".split()
def ele(i):
    if i == 1:
        a = "Un elefante se balanceaba\nsobre la tela de una araña.\nComo veía que resistía,\nfue a llamar a otro elefante."
    else:
        a = f"{ESN[i - 1]} elefantes se balanceaban\nsobre la tela de una araña.\nComo veían que resistía,\nfueron a llamar a otro elefante."
    return a
add("es-elefantes-hasta-quince", "es",
    "letra de un elefante se balanceaba completa hasta quince porfa, la seño de infantil la quiere para el mural",
    "\n\n".join(ele(i) for i in range(1, 16)), "l", "sobre la tela de una araña.", 15)

def eu(x):
    return f"{x:,.2f}".replace(",", "_").replace(".", ",").replace("_", ".") + " €"
add("es-36-cuotas-sin-interes", "es",
    "Buenas tardes: el dentista me financia 9.000 € a tres años sin intereses, cuotas mensuales iguales, la primera el 5 de febrero de 2026. ¿Podría hacerme el cuadro completo mes a mes con cuota y saldo pendiente?",
    "| N.º | Vencimiento | Cuota | Intereses | Saldo pendiente |\n|---|---|---|---|---|\n" + lines(
        lambda k: "| %d | 05/%02d/%d | 250,00 € | 0,00 € | %s |" % ((k + 1,) + addm(2026, 2, k)[::-1] + (eu(9000 - 250 * (k + 1)),)), range(36)),
    "l", "| 250,00 € | 0,00 € |", 36)

conc = ("Abad|Benítez|Cano|Díaz|Escudero|Ferrer|Galán|Herrero|Ibáñez|Jurado|Lara|Molina|Navas|Ochoa|Pardo|Quesada|Rojas|Soler|Tapia|Ugarte|Vega|Yuste|Zamora").split("|")
add("es-acta-votacion-unanime", "es",
    "Redacta la parte de votación nominal del acta. Concejales: " + ", ".join(conc) + ". Votaron todos lo mismo, pero la secretaria exige una frase por cada uno: \"El/la concejal X vota a favor de la moción número catorce.\"",
    lines(lambda c: f"El/la concejal {c} vota a favor de la moción número catorce.", conc), "l", "vota a favor de la moción número catorce.", 23)

add("es-carcajada-radio", "es",
    "para una radionovela: la bruja se rie jajaja… durante casi un minuto. me hace falta en el guion una sola carcajada sin espacios de mil doscientos \"ja\", el técnico la quiere ver larga en el papel",
    "ja" * 1200, "w", "ja", 1200)

PTN = ("um dois três quatro cinco seis sete oito nove dez onze doze treze catorze quinze dezesseis dezessete dezoito dezenove vinte vinte_e_um vinte_e_dois vinte_e_três vinte_e_quatro").split()
PTN = [p.replace("_", " ").capitalize() for p in PTN]
def pte(i):
    n = PTN[i - 1] + (" elefante" if i == 1 else " elefantes")
    if i % 2:
        return f"{n} {'incomoda' if i == 1 else 'incomodam'} muita gente,"
    return f"{n} " + ", ".join(["incomodam"] * i) + " muito mais." + ("\n" if i < 24 else "")
add("pt-elefantes-incomodam", "pt",
    "Oi! festa de aniversário da minha filha de 4 anos, ela é louca pela música \"um elefante incomoda muita gente\". escreve a letra inteira até vinte e quatro elefantes? com todos os \"incomodam\" certinhos (2 pra dois, 4 pra quatro...)",
    lines(pte, range(1, 25)), "w", "incomodam", 156)

apr = [d for d in days(2026, 4, 1, 2026, 4, 30)]
sem = "segunda terça quarta quinta sexta sábado domingo".split()
add("pt-folha-de-ponto", "pt",
    "preencha a folha de ponto de abril/2026: dias úteis entrada 08:00, almoço 12:00-13:00, saída 17:00, assinatura em branco; sábado e domingo escreve FOLGA. uma linha por dia, ignora feriado",
    lines(lambda d: f"{d:%d/%m} {sem[d.weekday()]:<8} " + ("FOLGA" if d.weekday() > 4 else "entrada 08:00 | almoço 12:00-13:00 | saída 17:00 | ass. __________"), apr),
    "l", "entrada 08:00 | almoço 12:00-13:00 | saída 17:00 | ass. __________", 22)

logl = "[WARN] connection refused, retrying in 30 s"
add("pt-traduzir-log-repetido", "pt",
    "Traduz pra português esse log, o cliente não lê inglês, mantém os horários:\n" + lines(lambda i: f"{i // 2:02d}:{i % 2 * 30:02d} {logl}", range(36)),
    lines(lambda i: f"{i // 2:02d}:{i % 2 * 30:02d} [AVISO] conexão recusada, nova tentativa em 30 s", range(36)), "l", "[AVISO] conexão recusada, nova tentativa em 30 s", 36)

laur = ("Santa Maria|Santa Madre di Dio|Santa Vergine delle vergini|Madre di Cristo|Madre della Chiesa|Madre della misericordia|Madre della divina grazia|Madre della speranza|Madre purissima|Madre castissima|"
        "Madre sempre vergine|Madre immacolata|Madre degna d'amore|Madre ammirabile|Madre del buon consiglio|Madre del Creatore|Madre del Salvatore|Vergine prudente|Vergine degna di onore|Vergine degna di lode|"
        "Vergine potente|Vergine clemente|Vergine fedele|Specchio di perfezione|Sede della Sapienza|Fonte della nostra gioia|Tempio dello Spirito Santo|Tabernacolo dell'eterna gloria|Dimora consacrata di Dio|"
        "Rosa mistica|Torre della santa città di Davide|Fortezza inespugnabile|Santuario della divina presenza|Arca dell'alleanza|Porta del cielo|Stella del mattino|Salute degli infermi|Rifugio dei peccatori|"
        "Conforto dei migranti|Consolatrice degli afflitti|Aiuto dei cristiani|Regina degli angeli|Regina dei patriarchi|Regina dei profeti|Regina degli Apostoli|Regina dei martiri|Regina dei confessori della fede|"
        "Regina delle vergini|Regina di tutti i santi|Regina concepita senza peccato|Regina assunta in cielo|Regina del rosario|Regina della famiglia|Regina della pace").split("|")
add("it-litanie-lauretane", "it",
    "Buonasera, per il mese mariano mi servirebbero le invocazioni delle litanie lauretane (solo da Santa Maria a Regina della pace) con \"prega per noi\" scritto per esteso dopo ognuna: in parrocchia rispondono leggendo.",
    lines(lambda s: f"{s}, prega per noi.", laur), "l", "prega per noi.", len(laur))

add("it-solfeggio-battute", "it",
    "esercizio di solfeggio parlato per prima media: do-re-mi-fa-sol-fa-mi-re, una battuta per riga, quarantotto battute, numerate. niente ritornelli che poi fanno i furbi",
    lines(lambda i: f"{i}) do-re-mi-fa-sol-fa-mi-re", range(1, 49)), "l", "do-re-mi-fa-sol-fa-mi-re", 48)

add("it-scontrino-bar-caffe", "it",
    "Fammi uno scontrino finto per il cortometraggio: al bar uno ha preso sessanta caffè, battuti uno per volta. Riga \"CAFFE' ESPRESSO    1 x 1,20    1,20\", poi totale.",
    code("BAR CENTRALE\n\n" + NL.join(["CAFFE' ESPRESSO    1 x 1,20    1,20"] * 60) + "\n\nTOTALE EURO                    72,00"), "l", "CAFFE' ESPRESSO    1 x 1,20    1,20", 60)

ojc = ("Ojcze Przedwieczny, ofiaruję Ci Ciało i Krew, Duszę i Bóstwo najmilszego Syna Twojego, a Pana naszego Jezusa Chrystusa, na przebłaganie za grzechy nasze i całego świata.")
mek = "Dla Jego bolesnej męki, miej miłosierdzie dla nas i całego świata."
add("pl-koronka-piec-dziesiatek", "pl",
    "Szczęść Boże, proszę o tekst pięciu dziesiątek Koronki do Miłosierdzia Bożego (Ojcze Przedwieczny + Dla Jego bolesnej męki), każde wezwanie rozpisane, bo chorzy na oddziale czytają z kartki i nie mają różańca.",
    "\n\n".join(f"Dziesiątka {i}\n{ojc}\n" + NL.join([mek] * 10) for i in range(1, 6)), "l", mek, 50)

add("pl-szlaczki-przedszkole", "pl",
    "szlaczki do przedszkola w samych znakach: na przemian linijka /\\/\\/\\ i linijka ~~~~, po 60 znaków, trzydzieści linijek razem, między nimi pusta",
    code("\n\n".join("/\\" * 30 if i % 2 == 0 else "~" * 60 for i in range(30))), "w", "/\\", 450)

add("nl-kassabon-frikandellen", "nl",
    "voor de quiz van de voetbalkantine wil ik een nepbon: 48x (vier dozijn) een los aangeslagen FRIKANDEL 2,10, iedere op z'n eigen regel, en het totaal eronder",
    code(NL.join(["1 FRIKANDEL                  2,10"] * 48) + "\n---------------------------------\nTOTAAL                     100,80"), "l", "1 FRIKANDEL                  2,10", 48)

add("nl-zwemles-ademhaling", "nl",
    "Mijn dochter leert schoolslag. Maak een tekst die ik langs de badrand kan roepen, 50 slagen: \"Intrekken, wijd, sluit, uit-drij-ven!\" met het nummer van de slag ervoor.",
    lines(lambda i: f"{i}. Intrekken, wijd, sluit, uit-drij-ven!", range(1, 51)), "l", "Intrekken, wijd, sluit, uit-drij-ven!", 50)

add("nl-excuusbriefje-per-leerling", "nl",
    "Groep 7 heeft een ruit gebroken. Elk kind (26 leerlingen) krijgt hetzelfde strookje: \"Beste meneer De Wit, het spijt ons van de ruit. Wij spelen voortaan op het veld. Groeten, ____________\". Zet ze onder elkaar met een kniplijn ertussen.",
    ("\n" + "- " * 30 + "\n").join(["Beste meneer De Wit, het spijt ons van de ruit. Wij spelen voortaan op het veld. Groeten, ____________"] * 26),
    "l", "Beste meneer De Wit, het spijt ons van de ruit. Wij spelen voortaan op het veld. Groeten, ____________", 26)

add("tr-tesbihat-99", "tr",
    "Namazdan sonra çekilen tesbihi dedem için kağıda dökmek istiyorum: 33 Sübhanallah, 33 Elhamdülillah, 33 Allahu ekber, her biri ayrı satırda, sıra numarasıyla yazar mısın? Gözleri iyi görmüyor, parmağıyla takip edecek.",
    "\n\n".join(lines(lambda i: f"{i}. {z}", range(1, 34)) for z in ["Sübhanallah", "Elhamdülillah", "Allahu ekber"]), "l", "Allahu ekber", 33)

trk = ("Ali|Ayşe|Barış|Canan|Deniz|Ece|Elif|Emre|Fatma|Gökhan|Hasan|İpek|Kerem|Lale|Mehmet|Merve|Murat|Nazlı|Okan|Ömer|Pelin|Rıza|Selin|Tuna|Umut|Yasemin|Zeynep").split("|")
add("tr-yoklama-tiyatro", "tr",
    "okul tiyatrosu icin yoklama sahnesi yaz, ogretmen su isimleri okuyor: " + ", ".join(trk) + ". her isimden sonra ogrenci ayni seyi bagiriyor: Buradayım öğretmenim! baska hicbir sey olmasin",
    NL.join(f"ÖĞRETMEN: {k}!\nÖĞRENCİ: Buradayım öğretmenim!" for k in trk), "l", "ÖĞRENCİ: Buradayım öğretmenim!", 27)

pop = "У попа была собака, он её любил.\nОна съела кусок мяса, он её убил.\nВ землю закопал,\nИ надпись написал:"
add("ru-u-popa-dyuzhina", "ru",
    "Напиши «У попа была собака» по кругу, дюжину раз подряд, сын не верит, что у стишка нет конца",
    "\n\n".join([pop] * 12), "p", pop, 12)

add("ru-propisi-mama-myla", "ru",
    "сделай пропись первокласснику: «Мама мыла раму.» три раза в строке и сотню строк таких, чтоб на каникулы хватило))",
    NL.join(["Мама мыла раму.   Мама мыла раму.   Мама мыла раму."] * 100), "l", "Мама мыла раму.", 300)

add("uk-vdykh-vydykh", "uk",
    "Бабусі після ковіду лікарка сказала робити дихальну гімнастику. Розпиши, будь ласка, всі сорок повторів великим списком, щоб вона викреслювала: «Вдих носом — раз, два, три. Видих ротом — раз, два, три, чотири.»",
    lines(lambda i: f"{i}. Вдих носом — раз, два, три. Видих ротом — раз, два, три, чотири.", range(1, 41)), "l", "Вдих носом — раз, два, три. Видих ротом — раз, два, три, чотири.", 40)

cs = "Pes jitrničku sežral,\ndocela maličkou,\nřezník ho přistihl,\nzabil ho paličkou.\n\nNad jeho mrtvolou\nvšichni psi plakali,\nna jeho pomníček\ntento verš napsali:"
add("cs-pes-jitrnicku", "cs",
    "Ahoj, potřebuju na tábor text písničky Pes jitrničku sežral, ale ne jednu sloku. Zpíváme to dokola, tak to prosím napiš celé aspoň devětkrát za sebou.",
    "\n\n".join([cs] * 9), "p", cs, 9)

add("zh-lunzhi-chidao", "zh",
    "班主任罚我写“我再也不上课玩手机了。”三百遍,明天交,帮我打出来,每行一遍,不要编号",
    NL.join(["我再也不上课玩手机了。"] * 300), "l", "我再也不上课玩手机了。", 300)

miao = "从前有座山,山上有座庙,庙里有个老和尚,正在给小和尚讲故事。讲的什么故事呢?"
add("zh-congqian-youzuo-shan", "zh",
    "给孩子录睡前音频,就是那个“从前有座山”的循环故事,请原样讲三十六遍,每遍一段,听着听着就睡着了",
    "\n\n".join([miao] * 36), "p", miao, 36)

add("zh-xunluo-jilu", "zh",
    "物业要补三月份的消防巡查记录。每天早班、晚班各一条,内容统一:消防栓完好,通道畅通,无异常。巡查人:李建国。按“日期 班次 内容”输出。",
    lines(lambda k: f"3月{k // 2 + 1}日 {'早班' if k % 2 == 0 else '晚班'} 消防栓完好,通道畅通,无异常。巡查人:李建国", range(62)), "l", "消防栓完好,通道畅通,无异常。巡查人:李建国", 62)

add("ja-joya-no-kane", "ja",
    "大晦日の朗読劇の台本です。除夜の鐘を最後の一打まで全部文字にしてください。「一打目 ゴォォォン……」のように、何打目かは算用数字で、一行に一打。",
    lines(lambda i: f"{i}打目 ゴォォォン……", range(1, 109)), "l", "ゴォォォン……", 108)

add("ja-gogogo-haikei", "ja",
    "同人誌の見開き背景に敷く効果音「ゴ」だけのテキストがほしい。横40字×縦36行、改行以外は何も入れないで",
    NL.join(["ゴ" * 40] * 36), "w", "ゴ", 1440)

add("ja-nikki-tokuni-nashi", "ja",
    "夏休みの絵日記をためてしまいました(7月21日〜8月31日)。正直に書きます。毎日「朝起きて、ラジオ体操に行って、あとはずっとゲームをしました。楽しかったです。」でいいので、日付つきで全部書き出してください。",
    lines(lambda d: f"{d.month}月{d.day}日 朝起きて、ラジオ体操に行って、あとはずっとゲームをしました。楽しかったです。", days(2025, 7, 21, 2025, 8, 31)),
    "l", "朝起きて、ラジオ体操に行って、あとはずっとゲームをしました。楽しかったです。", 42)

add("ko-kkk-a4", "ko",
    "친구 생일카드 뒷면을 ㅋ으로만 채우고 싶어 ㅋㅋ 한 줄에 50개씩 60줄 뽑아줘",
    NL.join(["ㅋ" * 50] * 60), "w", "ㅋ", 3000)

add("ko-eungwon-guho", "ko",
    "운동회 응원 대본인데요, 응원단장이 종이 보고 읽어야 해서 생략하면 안 돼요. \"대~한민국! 짝짝짝 짝짝\" 이걸 백 번, 한 줄에 하나씩 번호 붙여서 부탁드립니다.",
    lines(lambda i: f"{i}. 대~한민국! 짝짝짝 짝짝", range(1, 101)), "l", "대~한민국! 짝짝짝 짝짝", 100)

arn = ("أحمد|إبراهيم|أمل|بدر|جمانة|حسن|خالد|دانة|رامي|ريم|زياد|سارة|سعيد|شهد|صالح|طارق|عائشة|علي|عمر|فاطمة|فيصل|كريم|ليلى|محمود|مريم|ناصر|نورة|هند|وليد|ياسر").split("|")
add("ar-kashf-hudur", "ar",
    "اعمل كشف حضور ليوم الأحد، كل الطلاب حاضرون، سطر لكل طالب بالشكل: الاسم – حاضر – الواجب مكتمل – لا توجد ملاحظات. الأسماء: " + "، ".join(arn),
    lines(lambda n: f"{n} – حاضر – الواجب مكتمل – لا توجد ملاحظات", arn), "l", "– حاضر – الواجب مكتمل – لا توجد ملاحظات", 30)

add("he-luach-zmanim-kav", "he",
    "אני מכינה שלט לתחנה. לוח זמנים מלא של קו 4: כל רבע שעה מ-06:00 עד 21:45, בכל שורה השעה ואז \"תחנה מרכזית – אוניברסיטה, רציף 3, ימים א'–ה'\". אנשים מבוגרים לא מבינים \"וכן הלאה\" אז כל היציאות בבקשה",
    lines(lambda k: f"{6 + k // 4:02d}:{k % 4 * 15:02d} תחנה מרכזית – אוניברסיטה, רציף 3, ימים א'–ה'", range(64)),
    "l", "תחנה מרכזית – אוניברסיטה, רציף 3, ימים א'–ה'", 64)

add("hi-ram-mala", "hi",
    "दादी जी की माला टूट गई है। उनके लिए \"श्री राम जय राम जय जय राम\" एक पूरी माला (१०८ मनके) जितनी बार लिख दीजिए, हर पंक्ति में एक बार, ताकि वे उँगली रखकर जप सकें।",
    NL.join(["श्री राम जय राम जय जय राम"] * 108), "l", "श्री राम जय राम जय जय राम", 108)

add("vi-ban-kiem-diem", "vi",
    "cô giáo phạt chép phạt 6 chục lần câu \"Em hứa từ nay không nói chuyện riêng trong giờ học nữa.\" đánh số giúp em với ạ, em in ra cho mẹ ký",
    lines(lambda i: f"{i}. Em hứa từ nay không nói chuyện riêng trong giờ học nữa.", range(1, 61)), "l", "Em hứa từ nay không nói chuyện riêng trong giờ học nữa.", 60)

add("id-yel-yel-pramuka", "id",
    "kak tolong ketikin yel-yel regu buat jalan 8 km, isinya gitu2 aja: \"Kiri, kanan, kiri, kanan, regu Elang maju terus!\" ulang sampai 150 baris biar gak ada yg lupa",
    NL.join(["Kiri, kanan, kiri, kanan, regu Elang maju terus!"] * 150), "l", "Kiri, kanan, kiri, kanan, regu Elang maju terus!", 150)

jul = "Nu är det jul igen, och nu är det jul igen,\noch julen varar väl till påska.\nDet var inte sant, och det var inte sant,\nför däremellan kommer fasta."
add("sv-jul-igen-runt-granen", "sv",
    "Vi dansar runt granen och farfar håller på i evighet. Skriv ut \"Nu är det jul igen\" så många varv som det är adventsljus, apostlar och vise män tillsammans (4+12+3). Hela texten varje varv tack!",
    "\n\n".join([jul] * 19), "p", jul, 19)

add("el-kyrie-eleison-saranta", "el",
    "Καλησπέρα, για τον νέο ψάλτη μας: το «Κύριε, ἐλέησον» σαράντα φορές, και αυτό για τρεις ακολουθίες (δηλαδή τρεις σελίδες των σαράντα, με επικεφαλίδα Ακολουθία 1, 2, 3). Να είναι γραμμένο ολόκληρο, χάνει το μέτρημα.",
    "\n\n".join(f"Ακολουθία {i}\n" + NL.join(["Κύριε, ἐλέησον."] * 40) for i in (1, 2, 3)), "l", "Κύριε, ἐλέησον.", 120)

add("th-hahaha-555", "th",
    "ขอข้อความหัวเราะ 5555 ยาว ๆ ส่งแกล้งเพื่อนในไลน์หน่อย เอาเลข 5 อย่างเดียว ห้าพันตัว ไม่ต้องเว้นวรรค",
    "5" * 5000, "w", "5", 5000)

add("ro-rate-egale", "ro",
    "Bună ziua, am luat un frigider în 24 de rate egale de 129,90 lei, scadente pe 15 ale lunii, din martie 2026. Faceți-mi vă rog o listă de lipit pe el, cu fiecare rată pe rândul ei și „achitat [ ]” la sfârșit.",
    lines(lambda k: "Rata %d – scadentă 15.%02d.%d – 129,90 lei – achitat [ ]" % ((k + 1,) + addm(2026, 3, k)[::-1]), range(24)), "l", "– 129,90 lei – achitat [ ]", 24)

add("hu-sorminta-horgolas", "hu",
    "kezdő horgoló vagyok, kérlek írd ki soronként egy 30 soros sál mintáját, minden sor ugyanaz: 1 láncszem, 20 rövidpálca, fordulás. számozva, \"ismételd\" nélkül, mert mindig elvesztem a fonalat :)",
    lines(lambda i: f"{i}. sor: 1 láncszem, 20 rövidpálca, fordulás.", range(1, 31)), "l", "1 láncszem, 20 rövidpálca, fordulás.", 30)

add("fi-sydanaanet", "fi",
    "Kuunnelman käsikirjoitus: hiljaisuudessa kuuluu vain sydän. Kirjoita sen lyönnit auki, du-dum, syke 60 ja kohtaus kestää neljä minuuttia. Kymmenen lyöntiä riville.",
    NL.join([" ".join(["du-dum"] * 10)] * 24), "w", "du-dum", 240)

# ================================================================ ordinary requests, looping replies
O = []
PIECE = re.compile(r"[぀-ヿ㐀-鿿가-힣]|\w+|[^\w\s]")


def o(name, lang, request, text, unit, sep=" ", numbered=None):
    """text: sensible beginning, containing unit; then sep+unit again and again.
    numbered: format with %d for loops whose only change is a counter; unit is then that line without the number."""
    text = text.strip(NL)
    O.append(dict(name=name, lang=lang, request=request, text=text, unit=unit, sep=sep, numbered=numbered))


def run_on(e, rnd):
    want, pieces, out, size, k = rnd.randint(8300, 11500), 2100, [], 0, e["numbered"][1] if e["numbered"] else 0
    while size < want + len(e["unit"]) or pieces > 0:
        s = e["sep"] + (e["numbered"][0] % k + e["unit"] if e["numbered"] else e["unit"])
        out.append(s); size += len(s); pieces -= len(PIECE.findall(s)); k += 1
    s = "".join(out)
    return s[:len(s) - rnd.randint(0, max(1, len(e["unit"]) - 1))]        # cut as max_tokens would


o("bees-500-words", "en", "write about 500 words on why bees matter for farming",
"""Bees are among the smallest workers on any farm, and yet few others do so much for so little. When a honeybee or a bumblebee visits a flower to drink nectar, grains of pollen cling to the hairs on its body and are carried to the next blossom. This simple exchange lets the plant set seed and form fruit. Apples, almonds, blueberries, squash and many clovers depend on it, and even crops that can manage with wind alone often give a heavier and more even yield when bees are near.

Farmers have noticed this for a long time. In many regions beekeepers are paid to bring their hives to orchards during the weeks of bloom. Wild bees matter as well, because they fly in cooler weather and visit flowers that honeybees ignore. The loss of hedgerows and the wide use of some pesticides have made their lives harder, and the first thing that suffers is pollination""",
"pollination", ", ")

o("monstera-times-a-week", "en", "how many times a week should I water a monstera? its in a 25 cm pot, east window",
"""For a monstera in a 25 cm pot at an east-facing window, counting times per week is less reliable than checking the soil, but as a rule of thumb it works out at about once every seven to ten days in summer and every two to three weeks in winter.

Here is how to decide. Push a finger into the compost up to the second knuckle. If it feels damp, wait two or three days. If it is dry at that depth, water slowly until a little runs out of the drainage holes, and empty the saucer after half an hour. Yellow lower leaves usually mean too much water, whereas brown crisp edges point to dry air or too little. The plant will tolerate a missed week much better than wet feet. Always check the soil before you water the plant again.""",
"Always check the soil before you water the plant again.")

o("compound-interest-again", "en", "can you explain compound interest AGAIN, I still dont get it. say 2,000 at 5% for 10 years",
"""Of course, let's take it slowly this time. Compound interest means that the interest you earn is added to your money, and from then on it earns interest too.

You start with 2,000. After the first year the bank adds 5 percent of 2,000, which is 100, so you have 2,100. In the second year the 5 percent is worked out on 2,100, not on the original 2,000, so you receive 105 and end up with 2,205. In the third year you get 110.25, and so on. Every year the amount added is a little bigger than the one before.

The formula is 2,000 × 1.05^10, which comes to about 3,257.79. With simple interest you would have only 3,000. The difference of 257.79 is the interest on the interest""",
"on the interest")

o("rainy-sunday-20-ideas-numbered", "en", "list 20 ideas for a rainy sunday with kids (5 and 8)",
"""Here are twenty ideas that work for both a five-year-old and an eight-year-old, most of them with things you already have at home:

1. Build a den from chairs, blankets and clothes pegs, and eat lunch inside it.
2. Bake a tray of flapjacks and let each child choose one secret ingredient.
3. Put on a puppet show with old socks; the elder one writes the script.
4. Make a treasure map, soak it in tea, dry it on the radiator and hide a prize.
5. Hold an indoor Olympics with paper plates as discs and straws as javelins.
6. Sort the box of photographs and let them guess who is who as a baby.
7. Paint with watercolours on coffee filters and hang them at the window.
8. Put on your boots, go out anyway and measure the depth of every puddle.
9. Draw a comic together, with one child doing the pictures and one the speech bubbles.
10. Make a marble run from cardboard tubes and tape.
11. Play a board game that you have not played for a year.
12. Play a card game that you have not played for a year.""",
"Play a card game that you have not played for a year.", "\n", ("%d. ", 13))

o("brutto-netto-3200", "de", "Was ist der Unterschied zwischen Brutto und Netto, wenn ich 3.200 Euro verdiene? Steuerklasse 1, keine Kinder",
"""Brutto ist der Betrag, der in deinem Arbeitsvertrag steht, also 3.200 Euro im Monat. Netto ist das, was am Ende auf deinem Konto ankommt, nachdem der Arbeitgeber Steuern und Sozialabgaben abgezogen hat.

Bei Steuerklasse 1 ohne Kinder fallen grob folgende Posten an: Lohnsteuer von rund 380 Euro, Krankenversicherung mit Zusatzbeitrag ungefähr 270 Euro, Rentenversicherung knapp 298 Euro, Arbeitslosenversicherung etwa 42 Euro und Pflegeversicherung mit dem Zuschlag für Kinderlose ungefähr 77 Euro. Der Solidaritätszuschlag entfällt in dieser Höhe. Wer in der Kirche ist, zahlt zusätzlich Kirchensteuer, je nach Bundesland acht oder neun Prozent der Lohnsteuer.

Damit bleiben dir ungefähr 2.130 Euro übrig. Der Arbeitgeber zahlt übrigens noch einmal fast denselben Anteil an die Sozialversicherung. Die genauen Werte hängen von deiner Krankenkasse ab und von der Höhe des Zusatzbeitrags""",
"und von der Höhe des Zusatzbeitrags")

o("nineties-novels-top10-numbered", "en", "top 10 novels of the 1990s and one sentence why each",
"""A list like this is always personal, but these ten novels from the 1990s are still read and argued about:

1. The Remains of the Day's successor, The Unconsoled by Kazuo Ishiguro (1995), turns anxiety into architecture.
2. Beloved's follower, Jazz by Toni Morrison (1992), makes the city itself narrate a crime of love.
3. Possession by A. S. Byatt (1990) is both a detective story about letters and a love story about readers.
4. The English Patient by Michael Ondaatje (1992) stitches four damaged lives together in a ruined villa.
5. The Secret History by Donna Tartt (1992) tells you the murder at once and still keeps you up at night.
6. Infinite Jest by David Foster Wallace (1996) is the great comic book about sadness and addiction.
7. American Pastoral by Philip Roth (1997) shows a family and a country losing their innocence together.
8. Disgrace by J. M. Coetzee (1999) is a short and merciless account of shame and of learning to live with it.""",
"Disgrace by J. M. Coetzee (1999) is a short and merciless account of shame and of learning to live with it.", "\n", ("%d. ", 9))

o("battery-tech-2023", "en", "overview of battery tech as of 2023 please, 3 paragraphs, for a non technical investor",
"""Lithium-ion batteries dominated the market in 2023, and two families mattered most. Cells with nickel, manganese and cobalt store more energy per kilogram and are used in long-range cars, while iron phosphate cells are cheaper, last longer and are less likely to catch fire. The second group gained ground quickly, above all in China, because cobalt is expensive and its mining is controversial.

Prices fell again after a short rise in the previous year, and a pack cost on average about 139 dollars per kilowatt-hour. Sodium-ion cells appeared in the first small cars and promise to be cheaper still, although they are heavier. Solid electrolytes remain mostly in the laboratory.

For an investor the question is less which chemistry wins than who controls refining, equipment and recycling. The large producers in Asia have a lead of many years in manufacturing, and their newest plants are considered state-of-the-art""",
"-of-the-art", "")

o("time-and-again-idiom", "en", "what does 'time and again' mean & where does it come from?",
""""Time and again" means very often, or on many separate occasions, usually with the suggestion that it happens more often than one would expect or want. If you say "I have told him time and again to lock the door", you express a little impatience as well as frequency.

The phrase has been in English since at least the early nineteenth century, and longer forms such as "time and time again" are recorded soon afterwards. It belongs to a group of expressions that pair two words of similar meaning for emphasis, as in "over and over", "by and by" or "through and through". The idea is that saying it twice makes it stronger.

You will find it in speeches, sermons and newspapers. It works best at the start or the end of a clause, and it can often be replaced with "repeatedly" or with "again and again""",
"and again")

o("python-rename-counter", "en", "python script that renames all jpgs in a folder to trip_001.jpg, trip_002.jpg ... sorted by date taken",
"""You can do this with the standard library plus Pillow, which is needed to read the date from the EXIF data. Install it first with `pip install pillow`. The script below looks for the tag 36867 (DateTimeOriginal) and falls back to the modification time of the file if a picture has no such tag. To be safe it renames in two passes, so that an existing trip_001.jpg is never overwritten by accident. Run it on a copy of the folder first and look at the result before you delete anything. Change the folder name in the first line to suit your machine.

```python
from pathlib import Path
from PIL import Image
import datetime as dt

folder = Path("photos")

def taken(p):
    exif = Image.open(p).getexif()
    s = exif.get_ifd(0x8769).get(36867)
    if s:
        return dt.datetime.strptime(s, "%Y:%m:%d %H:%M:%S")
    return dt.datetime.fromtimestamp(p.stat().st_mtime)

files = sorted(folder.glob("*.jpg"), key=taken)
for i, p in enumerate(files, 1):
    p.rename(folder / f"tmp_{i:03d}.jpg")""",
"""    p.rename(folder / f"tmp_{i:03d}.jpg")""", "\n")

o("fox-bedtime-300-words", "en", "a bedtime story about a fox who cant find her way home, 300 words or so, for my 4 year old",
"""Once upon a time there was a small red fox called Rusty, who lived with her mother under the roots of an old oak. One evening she followed a firefly across the meadow, over the stile and down to the stream, and when the firefly went out like a candle, Rusty looked around and did not know where she was.

"Which way is home?" she asked the owl. The owl blinked and said, "Listen for what you know." So Rusty sat very still. She heard the stream, which she did not know, and the wind, which she knew only a little. Then, far away, she heard her mother calling softly. Her ears went up. She jumped over the stile and began to run towards the sound. The little fox ran on through the dark grass.""",
"The little fox ran on through the dark grass.")

o("cover-letter-barista-to-office", "en", "help me write a cover letter, 3 years as a barista, applying for office assistant at a dentist",
"""Dear Dr Lindqvist,

I am writing to apply for the position of office assistant at your practice, which I saw advertised on your website. For the last three years I have worked as a barista in a busy café beside the station, where I served up to two hundred guests on a morning shift, handled cash and card payments, ordered supplies and trained five new colleagues.

This work has taught me to stay calm and friendly when several people need something at once, to keep records accurately and to notice when a person is nervous and could do with a kind word. I believe that these skills are just as useful at the front desk of a dental practice. I am comfortable with calendars, spreadsheets and the telephone, and I learn new software quickly.

I would be glad to tell you more in person, and I look forward to hearing from you.""",
"I would be glad to tell you more in person, and I look forward to hearing from you.", "\n\n")

o("work-life-day-to-day", "en", "i started a new job 2 months ago, everything is chaos, how do i get organised? bullet points ok",
"""Two months in is exactly when most people feel this way, because you now know enough to see how much there is, but not yet enough to know what can wait. A few habits help:

- Write down everything that is on your mind, once, in a single list. Do not sort it yet.
- Mark the three items that somebody else is waiting for. Do those first.
- Keep fifteen minutes at the end of the afternoon for tidying notes and choosing the first task of the next morning.
- Ask your manager which of your duties matters most this quarter. The answer is often a surprise.
- Say "I will come back to you on Thursday" instead of "yes".
- Turn off notifications for two hours and tell your team when those hours are.

None of this will make the chaos vanish in a week. What it does is separate the few things that are truly urgent from the ordinary day-to-day""",
"-to-day", "")

o("blanquette-six-personnes", "fr", "recette de blanquette de veau pour 6 personnes, j'ai 2 heures devant moi",
"""Avec deux heures devant vous, c'est tout à fait faisable. Pour six personnes, prévoyez 1,5 kg de veau (épaule et tendron), quatre carottes, deux poireaux, un oignon piqué de deux clous de girofle, un bouquet garni, 250 g de champignons, 50 g de beurre, 50 g de farine, deux jaunes d'œufs, 15 cl de crème et le jus d'un demi-citron.

Mettez la viande coupée en gros cubes dans une cocotte, couvrez d'eau froide et portez à ébullition. Écumez soigneusement, puis ajoutez les légumes, l'oignon et le bouquet garni. Salez légèrement et laissez frémir une heure et quart à couvert. Pendant ce temps, faites suer les champignons dans un peu de beurre avec quelques gouttes de citron.

Préparez ensuite un roux avec le beurre et la farine, mouillez avec trois louches de bouillon chaud et remuez sans cesse jusqu'à ce que la sauce nappe la cuillère. Laissez cuire à feu doux en remuant.""",
"Laissez cuire à feu doux en remuant.")

o("sevilla-tres-dias-400", "es", "plan de 3 días en Sevilla por menos de 400 euros, somos dos y nos gusta comer bien",
"""Con 400 euros para dos personas y tres días se puede disfrutar mucho de Sevilla si elegís bien el alojamiento. Una habitación doble en un hostal de la Macarena o de Triana cuesta entre 55 y 70 euros por noche fuera de Semana Santa y de la Feria.

El primer día podéis recorrer el barrio de Santa Cruz, entrar en la Catedral y subir a la Giralda a última hora, cuando baja el calor. Para cenar, id a una taberna de la Alfalfa y pedid espinacas con garbanzos, solomillo al whisky y una copa de manzanilla. El segundo día reservad con antelación el Real Alcázar, que abre a las nueve y media, y pasad la tarde a la sombra en el parque de María Luisa. El tercero cruzad el puente de Triana, visitad el mercado y sentaos en la calle Betis a mirar el río. Y después de comer, un paseo tranquilo por la orilla del río""",
"por la orilla del río")

o("carta-vizinho-barulho", "pt", "me ajuda a escrever um bilhete educado pro vizinho do 302, faz barulho todo dia depois das 23h, já falei 2 vezes",
"""Claro! Como você já conversou duas vezes com ele, o ideal é um bilhete curto, cordial e objetivo, que registre o problema sem acusar e que proponha uma solução. Segue uma sugestão que você pode adaptar como quiser:

"Olá, vizinho do 302, tudo bem? Aqui é do apartamento de baixo. Sei que cada um tem a sua rotina e que o prédio transmite muito som, mas nas últimas semanas temos ouvido música e móveis sendo arrastados depois das 23h, e isso tem atrapalhado o sono das crianças e o meu trabalho, que começa bem cedo. Conforme combinamos nas conversas anteriores, o regulamento do condomínio pede silêncio a partir das 22h. Será que podemos combinar um horário que funcione para todos? Fico à disposição para conversar quando for melhor para você. Desde já, agradeço muito pela compreensão.\"""",
"Desde já, agradeço muito pela compreensão.")

o("passato-remoto-quando", "it", "quando si usa il passato remoto e quando il passato prossimo? fammi qualche esempio, studio italiano da 2 anni",
"""La differenza principale riguarda il rapporto fra l'azione e il presente. Il passato prossimo indica un fatto avvenuto in un periodo non ancora concluso, oppure un fatto lontano i cui effetti durano ancora: "Oggi ho mangiato tardi", "Sono nato nel 1990". Il passato remoto indica invece un fatto concluso, che chi parla sente come distante: "Dante morì nel 1321", "Quell'estate andammo al mare una volta sola".

Nella lingua parlata conta molto anche la regione. Al Nord il passato remoto si usa quasi soltanto nei libri, mentre in Toscana e in gran parte del Sud è vivo anche nella conversazione di ogni giorno. Nei romanzi, nelle favole e nei testi di storia lo troverai dappertutto, perché permette di raccontare gli eventi uno dopo l'altro, ordinati come perle. Se hai un dubbio mentre parli, scegli il passato prossimo: nessuno ti guarderà male. Se invece scrivi un racconto, prova a usare il passato remoto e poi rileggi la frase ad alta voce""",
"e poi rileggi la frase ad alta voce")

o("kot-nie-je", "pl", "mój kot (7 lat) od 2 dni prawie nic nie je, co robić? pije normalnie",
"""Dwa dni bez jedzenia u dorosłego kota to sygnał, którego nie należy lekceważyć, nawet jeśli zwierzę pije i wygląda na spokojne. Koty, które głodują dłużej niż dwie doby, mogą rozwinąć stłuszczenie wątroby, a szczególnie narażone są osobniki z nadwagą.

Najpierw proszę sprawdzić kilka prostych rzeczy: czy nie zmieniła się karma lub miska, czy w domu nie pojawił się remont, gość albo inne zwierzę, czy kot nie ślini się i nie odsuwa od jedzenia po pierwszym kęsie, co może oznaczać ból zębów. Można spróbować podgrzać mokrą karmę do temperatury ciała, dodać odrobinę wody z tuńczyka bez soli albo podać jedzenie z ręki. Proszę natomiast nie karmić na siłę strzykawką bez porady lekarza.

Jeżeli do jutra rana kot nadal nie zje przynajmniej połowy porcji albo pojawią się wymioty, apatia lub chowanie się, proszę umówić wizytę u weterynarza""",
"proszę umówić wizytę u weterynarza", ", ")

o("hypotheek-of-huren", "nl", "is kopen nu slimmer dan huren? huur 1150 p/m, koop zou 320.000 zijn, 5 jaar blijven",
"""Dat hangt vooral af van hoe lang je blijft en van wat er met de huizenprijs gebeurt, maar met jouw cijfers kunnen we een aardige schatting maken. Bij een koopsom van 320.000 euro en een rente van ongeveer vier procent betaal je bij een annuïteitenhypotheek rond de 1.530 euro bruto per maand. Daarvan is in het begin ruim duizend euro rente, en een deel daarvan krijg je via de belasting terug.

Tel daar de kosten bij op die je als huurder niet hebt: onderhoud (reken op één procent van de waarde per jaar), de opstalverzekering, de ozb en eenmalig ongeveer vier procent kosten koper als je geen gebruik kunt maken van de startersvrijstelling. Over vijf jaar gerekend is kopen alleen voordeliger als de prijzen minstens anderhalf procent per jaar stijgen. Blijf je korter, of is je baan onzeker, dan is huren verstandiger. Blijf je langer, dan wordt kopen steeds aantrekkelijker en aantrekkelijker""",
"en aantrekkelijker")

o("kafein-gunde-4-fincan", "tr", "türk kahvesi ile filtre kahve arasında kafein farkı ne? günde 4 fincan içiyorum çok mu",
"""Türk kahvesi küçük bir fincanda sunulduğu için daha sert görünür, ama fincan başına kafein miktarı sanıldığı kadar yüksek değildir. Yaklaşık 60 mililitrelik bir fincan Türk kahvesinde 50 ile 65 miligram arasında kafein bulunur. 240 mililitrelik bir kupa filtre kahvede ise bu değer genellikle 90 ile 140 miligram arasındadır. Yani mililitre başına Türk kahvesi daha yoğundur, fakat bir oturuşta alınan toplam miktar filtre kahvede daha fazladır.

Sağlıklı yetişkinler için günlük üst sınır çoğu kurum tarafından 400 miligram olarak verilir; hamilelerde bu sınır 200 miligramdır. Günde dört fincan Türk kahvesi yaklaşık 240 miligram eder ve bu sınırın oldukça altında kalır. Dört büyük kupa filtre kahve ise sınırı aşabilir. Çarpıntı, uykusuzluk veya mide yanması yaşıyorsanız miktarı yavaş yavaş azaltın ve son fincanı öğleden sonra üçten önce için. Tansiyonunuz yüksekse, ilaç kullanıyorsanız ya da kalp ritminizle ilgili bir şikayetiniz varsa önce mutlaka doktorunuza danışın.""",
"önce mutlaka doktorunuza danışın.")

o("pochemu-nebo-goluboe", "ru", "объясни ребёнку 8 лет почему небо голубое а закат красный, коротко",
"""Солнечный свет кажется белым, но на самом деле в нём спрятаны все цвета радуги. Ты видел их, когда после дождя на небе появлялась радуга или когда луч проходил через стеклянную призму.

Каждый цвет — это маленькая волна. У красного цвета волна длинная и ленивая, а у синего короткая и шустрая. Когда свет влетает в воздух, он всё время натыкается на крошечные частички. Длинные красные волны проходят мимо них почти прямо, а короткие синие отскакивают во все стороны, как мячики. Поэтому синий свет приходит к нам отовсюду, и небо выглядит голубым.

А вечером солнце стоит низко, и лучам приходится пройти через воздух гораздо более длинный путь. По дороге почти весь синий свет разлетается в стороны, и до нас добирается только оранжевый и красный. Вот почему закат такой яркий. Если воздух чистый, краски бывают нежные, а если в нём много пыли, они становятся ещё ярче и ярче""",
"и ярче")

o("yak-varyty-borshch", "uk", "як зварити борщ на 5-літрову каструлю, щоб колір не втратився? минулого разу був рудий",
"""Рудий колір найчастіше з'являється тоді, коли буряк варили надто довго або додали його в каструлю без кислоти. На п'ять літрів візьміть приблизно кілограм м'яса з кісткою, два середні буряки, дві морквини, дві цибулини, п'ять картоплин, невелику половину капусти, дві ложки томатної пасти, часник, лавровий лист і сало для засмажки.

Спочатку зваріть бульйон: дві години на малому вогні, знімаючи піну. Буряк наріжте соломкою і тушкуйте окремо на сковороді з ложкою оцту та дрібкою цукру хвилин двадцять, саме оцет утримує червоний колір. Моркву з цибулею підсмажте, додайте томатну пасту. У бульйон киньте картоплю, через десять хвилин капусту, а ще через п'ять — засмажку. Буряк додавайте останнім, коли картопля вже готова, і після цього не давайте борщу сильно кипіти. Накрийте кришкою й дайте настоятися щонайменше годину.""",
"Накрийте кришкою й дайте настоятися щонайменше годину.")

o("zh-jianshen-jihua", "zh", "我一周能去3次健身房,每次一小时,想减5公斤,怎么安排?",
"""每周三次、每次一小时,对减脂来说完全够用,关键在于训练内容的搭配和饮食的控制。建议把三次训练分别安排在周一、周三和周六,中间留出恢复的时间。

第一次以下肢为主,可以做深蹲、硬拉和箭步蹲,每个动作三到四组,最后用十五分钟的椭圆机收尾。第二次以上肢为主,练卧推、划船和肩推,注意动作要慢,不要借力。第三次安排全身循环训练,几个动作连着做,心率会比较高,消耗也更大。

饮食方面,不必节食,但要把含糖饮料和夜宵去掉,每餐保证一个手掌大小的蛋白质和两拳的蔬菜。按照每天少吃四百大卡计算,每周大约能减零点四公斤,三个月左右可以达到目标。体重会有波动,不要每天称,一周称一次就好。最重要的是坚持下去。""",
"最重要的是坚持下去。", "")

o("zh-li-bai-shengping", "zh", "简单介绍一下李白的生平,200字左右",
"""李白,字太白,号青莲居士,生于公元七〇一年,是唐代最负盛名的诗人之一。他少年时在蜀中读书、学剑,二十多岁离开家乡,沿长江东下,漫游各地,结交了许多朋友。天宝元年,他经人推荐入京,被唐玄宗任命为翰林供奉,负责为宫廷写诗作文。然而他性格豪放,不愿逢迎权贵,不到三年便离开了长安。

此后他与杜甫、高适等人同游,留下了一段佳话。安史之乱爆发后,他参加了永王的幕府,因此获罪,被流放夜郎,途中遇赦而返,写下了“朝辞白帝彩云间”的名句。七六二年,他在当涂病逝,终年六十一岁。他的诗想象奇特,语言明快,充满了浪漫的气息,后人称他为诗仙,他的作品流传至今""",
"流传至今", ",")

o("ja-hikkoshi-checklist", "ja", "来月一人暮らしの引っ越しをします。1か月前からやることを順番に教えて",
"""引っ越しの一か月前にまずやることは、今の部屋の解約の連絡です。多くの契約では一か月前までに知らせる決まりになっているので、契約書を確認して早めに電話をしましょう。同じころに引っ越し業者の見積もりを二、三社から取り、日にちを決めます。土日や月末は料金が高くなるため、平日を選べるなら平日がおすすめです。

二週間前になったら、電気、ガス、水道、インターネットの手続きを始めます。ガスの開栓には立ち会いが必要なので、新居に着く日の午後を予約しておくと安心です。郵便局の転送届もこの時期に出します。役所には転出届を出し、引っ越してから十四日以内に転入届を出してください。

一週間前からは、使わない物から順に箱に詰めます。箱には部屋の名前と中身を書いておくと、新居での片付けがとても楽になります。前日は冷蔵庫の電源を抜いて、水を捨ててください。当日は貴重品を自分で持って移動しましょう。""",
"当日は貴重品を自分で持って移動しましょう。", "")

o("ja-keigo-mail", "ja", "取引先への納期が3日遅れるお詫びメールの文面を作ってください",
"""件名:納品日変更のお詫びとお願い

株式会社山田製作所
購買部 佐藤様

いつも大変お世話になっております。株式会社みどり工業の田中でございます。

このたびは、ご注文いただきました部品につきまして、納品が当初のお約束より三日遅れる見込みとなりましたことを、心よりお詫び申し上げます。原因は、当社工場の加工機に不具合が生じ、部品の交換に時間を要したことでございます。すでに修理は完了しており、現在は通常どおり稼働しております。

つきましては、誠に勝手ながら、納品日を六月十二日に変更させていただけますでしょうか。貴社の生産計画にご迷惑をおかけすることとなり、弁解の余地もございません。分納をご希望の場合は、できあがった分から順次お送りいたします。今後このようなことのないよう、設備の点検体制を見直してまいります。何とぞご容赦くださいますようお願い申し上げます。""",
"何とぞご容赦くださいますようお願い申し上げます。", "\n")

o("ko-jeju-il-jeong", "ko", "제주도 2박 3일 일정 짜줘, 렌터카 있고 부모님 모시고 가 예산 80만원",
"""부모님과 함께 가시는 여행이라면 이동 시간을 줄이고 하루에 두세 곳만 여유 있게 둘러보시는 편이 좋습니다. 예산 80만 원은 세 분 기준으로 숙소 두 밤에 24만 원, 렌터카와 기름값에 15만 원, 식비에 30만 원, 입장료와 간식에 11만 원 정도로 나누시면 됩니다.

첫째 날은 공항에서 차를 받아 애월 해안도로를 따라 천천히 내려가세요. 점심은 고등어조림이나 갈치국처럼 부모님 입맛에 맞는 음식으로 하시고, 오후에는 협재 해변과 한림공원을 산책하시면 좋습니다. 둘째 날은 서귀포로 넘어가 천지연폭포와 올레시장을 보시고, 저녁에는 흑돼지구이를 드세요. 폭포까지 가는 길은 평탄해서 무릎이 불편하신 분도 무리가 없습니다. 셋째 날은 성산 일출봉을 아래에서만 구경하시고 섭지코지를 가볍게 걸으신 뒤 공항으로 이동하시면 됩니다. 비가 올 경우에는 아르떼뮤지엄이나 오설록 티뮤지엄처럼 실내에서 즐길 수 있는 곳으로 바꾸시면 됩니다. 식당은 미리 예약해 두시는 것이 좋습니다. 특히 주말 저녁에는 손님이 많고 주차장이 좁은 곳도 있으니 출발하시기 전에 전화로 자리를 확인하시고, 어른들이 드시기 편한 메뉴가 있는지도 함께 물어보시는 것이 좋습니다.""",
"함께 물어보시는 것이 좋습니다.")

o("ar-nasaih-nawm", "ar", "عندي أرق من 3 أسابيع، ما هي أفضل 5 نصائح للنوم بدون أدوية؟",
"""الأرق الذي يستمر ثلاثة أسابيع مزعج، لكنه في أغلب الأحيان يتحسن بتغيير بعض العادات اليومية. إليك خمس نصائح أثبتت فائدتها عند كثير من الناس.

أولا، ثبّت موعد الاستيقاظ كل يوم حتى في عطلة نهاية الأسبوع، فالجسم يضبط ساعته على وقت الصباح أكثر من وقت المساء. ثانيا، ابتعد عن القهوة والشاي بعد الثانية ظهرا، لأن أثر الكافيين يبقى في الدم ساعات طويلة. ثالثا، أطفئ الشاشات قبل النوم بساعة واستبدل بها كتابا ورقيا أو حماما دافئا. رابعا، لا تبق في السرير إذا لم تنم خلال عشرين دقيقة، بل انهض واجلس في ضوء خافت حتى تشعر بالنعاس ثم عد إلى فراشك. خامسا، اكتب ما يشغل بالك على ورقة قبل النوم بوقت كاف، فالتفكير المكتوب أهدأ من التفكير الدائر في الرأس.

وإذا صاحب الأرق ضيق في التنفس أو حزن شديد أو ألم لا يهدأ، فلا تتردد في استشارة الطبيب""",
"فلا تتردد في استشارة الطبيب", "، ")

o("hi-bijli-bill-4500", "hi", "बिजली का बिल इस बार 4,500 रुपये आया है जबकि हर महीने 1,200 आता था, शिकायत कैसे करूँ?",
"""अचानक इतना अधिक बिल आने के पीछे अक्सर मीटर की गलत रीडिंग, पिछला बकाया या मीटर में खराबी होती है। सबसे पहले अपने बिल पर लिखी वर्तमान रीडिंग को मीटर पर दिख रही रीडिंग से मिलाइए। अगर दोनों में अंतर है, तो मीटर की साफ तस्वीर खींच लीजिए, जिसमें तारीख और मीटर नंबर दिखाई दे।

इसके बाद अपनी बिजली कंपनी के टोल फ्री नंबर पर फोन करके शिकायत दर्ज कराइए और शिकायत संख्या लिख लीजिए। आप कंपनी की वेबसाइट या मोबाइल ऐप पर भी शिकायत कर सकते हैं। अगर एक सप्ताह में उत्तर न मिले, तो नजदीकी उपखंड कार्यालय में लिखित आवेदन दीजिए, जिसके साथ पिछले तीन महीनों के बिल और मीटर की तस्वीर लगाइए। आप मीटर की जाँच की माँग भी कर सकते हैं, जिसका शुल्क मामूली होता है। जब तक मामला सुलझ न जाए, पिछले औसत के अनुसार राशि जमा करने का अनुरोध कीजिए, ताकि आपका कनेक्शन न कटे। हर कागज की एक प्रति अपने पास रखिए।""",
"हर कागज की एक प्रति अपने पास रखिए।")

o("vi-pho-bo-4-nguoi", "vi", "nấu phở bò cho 4 người ăn cần bao nhiêu xương, ninh mấy tiếng thì ngọt nước?",
"""Với bốn người ăn, bạn nên chuẩn bị khoảng một ký rưỡi xương ống, nửa ký gầu hoặc nạm, ba trăm gram thịt thăn để tái và một ký bánh phở tươi. Gia vị gồm hai củ hành tây, một củ gừng to, ba hoa hồi, một thanh quế, vài nụ đinh hương, một quả thảo quả, nước mắm ngon và một ít đường phèn.

Xương rửa sạch, ngâm nước muối loãng chừng một tiếng rồi chần qua nước sôi để khử mùi. Nướng hành và gừng cho thơm, rang sơ các loại gia vị khô rồi bỏ vào túi vải. Ninh xương với khoảng bốn lít nước trong sáu đến tám tiếng ở lửa thật nhỏ, không đậy kín nắp. Thịt nạm chỉ cần luộc chung một tiếng rưỡi rồi vớt ra ngâm nước lạnh cho khỏi thâm. Muốn nước trong và ngọt, bạn nhớ hớt bọt thường xuyên""",
"nhớ hớt bọt thường xuyên", ", ")

o("id-buka-warung-modal", "id", "modal 5 juta bisa buka usaha apa di rumah? saya ibu rumah tangga anak 2",
"""Dengan modal lima juta rupiah ada beberapa usaha rumahan yang realistis dan bisa dijalankan sambil mengurus anak. Pertama, katering harian skala kecil, misalnya paket nasi dan lauk untuk sepuluh sampai lima belas pelanggan di sekitar rumah. Peralatan dapur biasanya sudah ada, sehingga modal cukup dipakai untuk bahan, wadah, dan promosi sederhana lewat grup warga.

Kedua, makanan beku seperti risoles, dimsum, atau ayam ungkep. Ibu perlu membeli freezer kecil bekas dengan harga sekitar dua juta, lalu sisanya untuk bahan baku dan kemasan. Kelebihannya, produksi bisa dilakukan malam hari ketika anak-anak sudah tidur. Ketiga, jasa laundry setrika kiloan, yang hampir tidak memerlukan modal selain setrika uap dan rak.

Apa pun pilihannya, pisahkan uang usaha dari uang belanja, catat setiap pemasukan dan pengeluaran, dan mulai dari jumlah kecil dulu. Setelah tiga bulan, lihat produk mana yang paling laku dan tingkatkan sedikit demi sedikit""",
"demi sedikit")

o("sv-lagfart-bostadsratt", "sv", "vad är skillnaden mellan bostadsrätt och hyresrätt, har 300 000 sparat och ska flytta till Göteborg",
"""Den stora skillnaden är att du med en bostadsrätt köper rätten att bo i lägenheten och blir medlem i en förening, medan du i en hyresrätt hyr av en värd och inte äger någonting. I en bostadsrätt betalar du dels köpesumman, dels en månadsavgift till föreningen som ska täcka drift, underhåll och föreningens egna lån. I en hyresrätt betalar du bara hyran, och värden ansvarar för nästan allt som går sönder.

Med 300 000 kronor i sparade pengar klarar du kontantinsatsen på femton procent för en lägenhet som kostar upp till två miljoner. I Göteborg räcker det i dag till en mindre etta eller tvåa lite utanför centrum. Glöm inte att räkna på räntan och att spara en buffert för oväntade utgifter. En hyresrätt får du oftast via Boplats, men kötiden är lång i de populära områdena. Läs alltid föreningens årsredovisning innan du skriver på något.""",
"Läs alltid föreningens årsredovisning innan du skriver på något.")

o("el-diakopes-naxos", "el", "πάμε Νάξο 5 μέρες τον Σεπτέμβριο με 2 παιδιά, τι να δούμε και αξίζει να νοικιάσουμε αυτοκίνητο;",
"""Η Νάξος τον Σεπτέμβριο είναι ίσως η καλύτερη επιλογή για οικογένειες, γιατί η θάλασσα είναι ακόμη ζεστή και ο αέρας έχει πέσει. Ναι, αξίζει να νοικιάσετε αυτοκίνητο, τουλάχιστον για τρεις από τις πέντε ημέρες, επειδή τα ορεινά χωριά είναι μακριά και τα λεωφορεία περνούν λίγες φορές την ημέρα.

Την πρώτη μέρα μείνετε στη Χώρα, ανεβείτε στο Κάστρο και δείτε το ηλιοβασίλεμα από την Πορτάρα. Τη δεύτερη πηγαίνετε στον Άγιο Προκόπιο ή στην Αγία Άννα, όπου τα νερά είναι ρηχά και τα παιδιά παίζουν με ασφάλεια. Την τρίτη κάντε τον γύρο των χωριών: Χαλκί για το κίτρο, Φιλώτι για φαγητό κάτω από τον πλάτανο και Απείρανθο για τα μαρμάρινα σοκάκια. Την τέταρτη επισκεφθείτε τον Κούρο στον Απόλλωνα και κολυμπήστε στην ήσυχη παραλία. Την τελευταία αφήστε τα παιδιά να διαλέξουν, και κρατήστε χρόνο για ένα τελευταίο μπάνιο πριν από το πλοίο""",
"πριν από το πλοίο")

o("he-matkon-hala", "he", "מתכון לחלה מתוקה ל-2 חלות גדולות, פעם שעברה יצא לי יבש",
"""חלה יבשה נובעת בדרך כלל מעודף קמח או מאפייה ארוכה מדי, ואת שניהם קל לתקן. לשתי חלות גדולות תצטרכי קילוגרם קמח לחם, שתי כפות שמרים יבשים, חצי כוס סוכר, שתי ביצים, חצי כוס שמן, כף מלח ושתי כוסות מים פושרים.

ערבבי את הקמח, השמרים והסוכר, הוסיפי את הביצים, השמן והמים, ורק אחרי שתי דקות של לישה הוסיפי את המלח. לושי עשר דקות עד שהבצק רך ומעט דביק. אל תתפתי להוסיף עוד קמח, כי בדיוק זה מה שמייבש את החלה. כסי במגבת לחה והניחי לתפוח שעה וחצי במקום חמים. חלקי לשניים, קלעי כל חלה משלושה או ארבעה גלילים, והתפיחי שוב שלושת רבעי שעה. הברישי בביצה, פזרי שומשום ואפי בחום של מאה ושבעים מעלות כחצי שעה. החלה מוכנה כאשר הקשה על תחתיתה משמיעה צליל חלול. הוציאי מהתנור והניחי לה להתקרר על רשת.""",
"הוציאי מהתנור והניחי לה להתקרר על רשת.")


o("hundred-years-war", "en", "why did the hundred years' war last over 100 years? explain for an exam, not too long",
"""The Hundred Years' War was not one continuous war but a chain of campaigns between 1337 and 1453, separated by truces, plague and empty treasuries. It began because Edward III of England, through his mother, claimed the French crown, and because the English kings still held Gascony as vassals of France, an arrangement that pleased nobody.

It lasted so long for three reasons. First, neither side could win outright: the English were strong in battle, as at Crécy, Poitiers and Agincourt, but too few to hold the land they conquered. Secondly, the French were divided for decades, above all by the feud between Burgundy and Armagnac. Thirdly, both crowns depended on taxes that had to be negotiated, so armies were raised for a season and then went home.

The balance changed after 1429, when Joan of Arc relieved Orléans and Charles VII reformed his army and his finances.""",
"The balance changed after 1429, when Joan of Arc relieved Orléans and Charles VII reformed his army and his finances.", "\n\n")

o("sql-second-order-date", "en", "sql: for each customer get date of their 2nd order (postgres), table orders(id, customer_id, created_at)",
"""Use a window function to number the orders of each customer by date, and then keep only the rows with number two. In Postgres this looks as follows:

```sql
SELECT customer_id, created_at AS second_order_at
FROM (
    SELECT customer_id,
           created_at,
           row_number() OVER (PARTITION BY customer_id ORDER BY created_at, id) AS n
    FROM orders
) AS numbered
WHERE n = 2;
```

The `id` in the ORDER BY is there only to break ties when two orders have exactly the same timestamp. Customers with a single order do not appear in the result; if you want them with a NULL, start from the customers table and use a left join. On a large table an index on (customer_id, created_at, id) lets Postgres read the rows already sorted, so it can skip the sort step entirely. You can check this with EXPLAIN, where the plan should show an index scan""",
"an index scan", " and ")

o("json-trailing-comma", "en", "JSON.parse says 'Unexpected token ] in JSON at position 214', what's wrong? i only have a list of 12 ids",
"""That error nearly always means that there is a comma after the last element of an array. JavaScript itself tolerates a trailing comma in an array literal, but the JSON format does not, so `[1, 2, 3,]` is valid code and invalid JSON. The parser reads the comma, expects another value, and finds the closing bracket at position 214 instead.

Open the file and look at the characters just before that position. Most editors can jump to an offset, or you can run `text.slice(194, 224)` in the console to see the surroundings. Remove the last comma and parse it once more.

If the file is produced by your own program, do not build it by joining strings in a loop. Collect the ids in an array and call `JSON.stringify(ids)`, which can never leave a comma behind. If you have no control over the source, a tolerant parser such as JSON5 will accept the trailing comma""",
"the trailing comma")

o("hamlet-200-words", "en", "summarise the plot of hamlet in about 200 words",
"""Prince Hamlet of Denmark returns home for the funeral of his father and finds that his mother Gertrude has already married his uncle Claudius, the new king. The ghost of the dead king appears on the battlements and tells Hamlet that Claudius poured poison into his ear. Hamlet swears revenge, but he wants proof and pretends to be mad while he looks for it.

He has a troupe of actors perform a murder like the one the ghost described. Claudius rises in alarm, and Hamlet is convinced. In his mother's chamber he stabs a figure behind a curtain, thinking it is the king, and kills Polonius, the father of Ophelia. Ophelia loses her mind and drowns. Her brother Laertes comes home from France and plots with Claudius to kill Hamlet in a fencing match with a poisoned sword. In the last scene the queen drinks the poisoned cup, and Laertes, Claudius and Hamlet die one after""",
"one after", " ")

o("sourdough-fails-every-time", "en", "why does my sourdough fail EVERY time? flat, gummy. starter doubles in 8 hours",
"""A flat and gummy loaf from a starter that takes eight hours to double usually points to one thing: the dough has not fermented enough before it goes into the oven. A vigorous starter doubles in four to five hours at 24 °C, so yours is alive but sluggish, and the timings in most recipes assume a faster one.

Feed it twice a day for three or four days, one part starter to two parts flour and two parts water, and keep it somewhere warm. Then bake again, but ignore the clock. Let the dough rise until it has grown by about two thirds, the surface is domed and the sides of the bowl show bubbles. Shape it tightly, chill it overnight and bake it in a very hot covered pot.

Gumminess can also come from cutting the loaf too early. Wait at least two hours after baking, because the crumb is still setting while the loaf is cooling""",
"while the loaf is cooling")

o("3-sets-of-10", "en", "is 3 sets of 10 enough to build muscle or should i do 5x5? training 3 times a week, 6 months in",
"""Both can work, because muscle growth depends mostly on how many hard sets you do per week and on how close to failure you take them, not on the exact number of repetitions. Three sets of ten and five sets of five are simply two ways of arranging a similar amount of effort.

Six months in, a good target is ten to fifteen hard sets per muscle and week. With three sessions that means four or five sets per muscle each time. Use lower repetitions for the big lifts such as squats and presses, where heavy loads are comfortable, and higher repetitions for rows, curls and lateral raises, where form breaks down under heavy weights. Add a little weight whenever you reach the top of your range with one repetition left in the tank.

Sleep and protein decide the rest. Keep a log, change one thing at a time, and be patient for at least eight weeks before you judge the result.""",
"Keep a log, change one thing at a time, and be patient for at least eight weeks before you judge the result.")

o("phone-900-vs-600", "en", "is a $900 phone really better than a $600 one? i mostly take pics of my dog and use maps",
"""For photographs of a dog and for maps, the difference is smaller than the price suggests. Phones at around 600 dollars today have the same kind of main sensor as the models at 900, and in daylight you would struggle to tell the pictures apart. What the extra 300 dollars buy is mainly a telephoto lens, a somewhat brighter screen, faster charging and a metal frame.

| Feature | $600 phone | $900 phone |
|---|---|---|
| Main camera | 50 MP, f/1.9 | 50 MP, f/1.7 |
| Telephoto | none | 3x optical |
| Screen | 120 Hz, 1,400 nits | 120 Hz, 2,000 nits |
| Updates | 5 years | 7 years |
| Battery | 4,500 mAh | 4,700 mAh |

Maps will run equally well on both, since the satellite receivers are practically identical. A moving dog is the one case where the better phone helps, as it focuses faster and can freeze motion in poor light. Here are the details once more:

| Charging | 25 W | 45 W |""",
"| Charging | 25 W | 45 W |", "\n")

o("pendulum-back-and-forth", "en", "why does a pendulum swing back and forth and not just stop at the bottom the first time",
"""When you pull a pendulum to one side you lift it a little, and in doing so you give it potential energy. Let go, and gravity turns that energy into motion. By the time the bob reaches the lowest point, all of the energy you put in has become kinetic energy, so this is exactly the moment when it moves fastest. There is nothing at the bottom that would take the energy away, and so it cannot simply stop there.

Instead it carries on up the other side, slowing down as gravity now works against it, until the motion has been converted into height again. Then the same thing happens in reverse. Friction in the pivot and the resistance of the air remove a tiny share of the energy in every cycle, so each swing is slightly lower than the one before, and after some minutes it hangs still. Until then it swings back and forth""",
"and back and forth", " ")
O[-1]["text"] += " and back and forth"

o("autumn-poem-12-lines", "en", "short poem about autumn, 12 lines, not cheesy, no refrain pls",
"""Here is a poem of twelve lines; I have tried to keep it plain and to stay with things one can actually see, and there is no refrain. The setting is a small street at the edge of a town, late in October, on a weekday, with somebody going to work and somebody else staying at home. The metre is loose, and the rhymes are only half rhymes.

The gutter holds a week of yellow rain,
A bicycle leans wet against the gate.
Somebody's radio, then somebody's train,
And every schoolchild running, every one late.

The baker's window clouds from the inside.
A man in slippers carries out a chair,
Considers it, and lets the thing decide
Whether to stay a while in the cold air.

The lamps come on before they are required,
A leaf is walking sideways down the street,
And light falls down as if the light were tired""",
"as if the light were tired", " ")

o("hail-mary-pass", "en", "what is a hail mary pass? why is it called that",
"""In American football a Hail Mary is a very long forward pass thrown in desperation, usually in the last seconds of a half, when the team on offence has no realistic chance to score in any other way. Several receivers run towards the end zone, the quarterback throws the ball as far and as high as he can, and everyone hopes that one of his own players comes down with it. The chance of success is below ten percent.

The name comes from the Catholic prayer, the idea being that only prayer can help now. It was used at Notre Dame as early as the 1920s and 1930s, but it became widely known after a playoff game in December 1975. Roger Staubach of the Dallas Cowboys threw fifty yards to Drew Pearson for the winning touchdown against Minnesota, and told reporters afterwards that he had closed his eyes and said a Hail""",
"Hail", " ")

o("songs-big-chorus", "en", "recommend 8 songs with a huge sing along chorus for a wedding party, mixed ages 20-80",
"""For a room with guests from twenty to eighty you want choruses that everybody already knows without having to think, in a comfortable range and at a tempo that allows a glass in one hand. Here are some that hardly ever fail:

- "Sweet Caroline" by Neil Diamond, because the brass line invites even shy people to join in.
- "Dancing Queen" by ABBA, which brings three generations to the floor within ten seconds.
- "Livin' on a Prayer" by Bon Jovi, best kept for late in the evening when ties are loose.
- "I Wanna Dance with Somebody" by Whitney Houston, for those who like to sing high.
- "Hey Jude" by The Beatles, for the moment when everyone stands in a circle with arms around shoulders.
- "Mr. Brightside" by The Killers, for the younger half of the room.

Ask the band to play them in this order and to leave a quiet song between the loud ones.""",
"""- "Mr. Brightside" by The Killers, for the younger half of the room.""", "\n")

o("regex-postcode", "en", "explain this regex to me like im 12: ^[A-Z]{1,2}\\d[A-Z\\d]? ?\\d[A-Z]{2}$",
"""This pattern describes what a British postcode looks like. Think of it as a row of boxes, where each box says which kind of character may go in.

The `^` at the beginning means "start here", and the `$` at the end means "nothing may come after this". `[A-Z]{1,2}` is a box for one or two capital letters, such as M or SW. Next comes `\\d`, which stands for any digit, so now we have M1 or SW1. Then there is `[A-Z\\d]?`, a box for one more letter or digit, and the question mark says that this box may also be empty. A space followed by a question mark means that there can be a space, but there does not have to be one. Finally `\\d[A-Z]{2}` asks for one digit and exactly two letters, for example 1AA.

So "SW1A 1AA" fits, and "sw1a 1aa" does not, because small letters are not allowed. To allow them, add the flag for case-insensitive""",
"-insensitive", "")

o("css-center-div-2024", "en", "best way to center a div in 2024?? both directions. there are like 10 answers on SO",
"""In 2024 you need just two lines on the parent, and they work in every browser that is still in use. Make the parent a grid container and let it place its items in the middle of both axes. That is all; you do not need absolute positioning, negative margins, table cells or transforms any more, and the child does not have to have a fixed width or height.

```css
.parent {
  display: grid;
  place-items: center;
  min-height: 100vh;
}
```

The `min-height` matters because a block element is only as tall as its content, so without it there would be no vertical space to center in. If the parent should be a flex container for other reasons, use `justify-content: center` and `align-items: center` instead. If you only want to center horizontally, give the child a width and write `margin-inline: auto`. On phones prefer `100dvh` to `100vh`, so that the address bar does not cover the lower edge:

```css
  min-height: 100dvh;""",
"  min-height: 100dvh;", "\n")

o("what-is-recursion", "en", "what is recursion, simple words, with one everyday example and one in code",
"""Recursion means that something is described in terms of a smaller version of itself. In programming it is a function that calls itself, each time with an easier problem, until the problem is so small that the answer is obvious.

An everyday example is a queue in which you want to know your position, but you can only see the person in front of you. You ask her for her number and add one. She does not know it either, so she asks the person in front of her, and so on. The first person in the queue simply says "one", and then the answers travel back to you.

```python
def position(person):
    if person.in_front is None:
        return 1
    return position(person.in_front) + 1
```

The line with `return 1` is called the base case. Without it, the chain of questions would never end, because we would have a function that calls itself""",
"that calls a function that calls itself")
O[-1]["text"] += " that calls a function that calls itself"

o("translate-meeting-3pm", "en", "translate to german and explain the word order: 'The meeting has been moved to 3 pm because two colleagues are ill again.'",
"""The sentence can be translated as follows: "Die Besprechung wurde auf 15 Uhr verschoben, weil zwei Kollegen wieder krank sind."

The first part is a main clause in the passive voice. In a German main clause the finite verb stands in second position, so "wurde" follows directly after the subject "die Besprechung". The participle "verschoben" goes to the very end of the clause, and everything else, here the time "auf 15 Uhr", is placed between the two. Grammarians call this the sentence bracket.

The second part begins with "weil", which introduces a subordinate clause. In subordinate clauses the finite verb moves to the end, and that is why "sind" comes last. The adverb "wieder" stands before the adjective, just as "again" could stand before "ill" in older English. Note that a comma is compulsory between the two clauses in German, even though English does without it. In speech you may also hear "weil" followed by main clause word order, but in writing the verb goes to the end.""",
"in writing the verb goes to the end.")

o("landlord-heating-again", "en", "heating broke down AGAIN (3rd time since november). firm but polite email to landlord pls",
"""Subject: Heating out of order for the third time since November

Dear Mr Osborne,

I am writing to let you know that the heating in the flat at 14 Mill Lane has stopped working again. It failed on the evening of 9 January, and this is the third breakdown since November. On both previous occasions the engineer restored the pressure and left within half an hour, but the underlying fault was evidently not repaired.

The temperature in the living room was 13 degrees this morning. As you know, a landlord is obliged to keep the installations for heating and hot water in proper working order, and a repair of this kind should be carried out without delay in winter. I would therefore ask you to arrange for a qualified engineer to find and mend the cause by Friday, and to provide an electric heater until then.

Please confirm by return when the engineer will come.""",
"Please confirm by return when the engineer will come.", "\n\n")

o("seven-times-table-trick", "en", "is there a trick for the 7 times table? my daughter mixes up 7x6, 7x7, 7x8",
"""Yes, several, and it is usually best to teach just one of them for each fact that causes trouble, so that she does not mix up the tricks as well.

For 7 × 8, count upwards: five, six, seven, eight. That gives 56 = 7 × 8, and children tend to remember it for life. For 7 × 7, think of seven weeks: that is one day short of fifty, so 49. For 7 × 6, start from 7 × 5, which she almost certainly knows because it is on the clock as 35 minutes, and add one more seven to get 42.

There is also a pattern on a noughts-and-crosses grid. Write the digits one to nine in columns, starting at the top right and going down, and you can read off the last digits of the seven times table row by row. Draw it once with her and let her discover it. A few minutes a day are better than an hour on Sunday, and praise helps more than practice, practice""",
"practice", ", ")

o("dna-replication", "en", "explain DNA replication at highschool level, mention the enzymes",
"""DNA replication is the process by which a cell copies its genetic material before it divides, so that each daughter cell receives a complete set. It takes place in the S phase of the cell cycle and begins at particular sites called origins.

First the enzyme helicase separates the two strands by breaking the hydrogen bonds between the bases, which creates a replication fork. Single-strand binding proteins keep the strands apart, and topoisomerase relieves the twisting ahead of the fork. Primase then lays down a short piece of RNA, because DNA polymerase can only extend an existing chain and cannot start a new one.

The polymerase works in one direction only. On the leading strand it follows the fork continuously, whereas on the lagging strand it has to produce short Okazaki fragments, which ligase joins afterwards. Since each new double helix contains one old strand and one new strand, the process is called semi-conservative. The polymerase then adds the matching base to the growing strand,""",
"and the matching base to the growing strand,")
O[-1]["text"] += " and the matching base to the growing strand,"

o("budget-50-30-20", "en", "how would 50/30/20 look like on $4,500 take home? rent is 1,900",
"""With 4,500 dollars of take-home pay the rule gives you 2,250 for needs, 1,350 for wants and 900 for savings and debt. Your rent of 1,900 already uses 84 percent of the first pot, which leaves 350 dollars for groceries, electricity, insurance and transport. For most people that is not enough, so you will have to bend the rule a little.

One realistic version would be 60/22/18. That allows 2,700 for needs, so 800 after rent, then 990 for wants and 810 for savings. Treat the savings as the first bill of the month and move them automatically on payday. If you carry a credit card balance, put that amount into the card until it is gone, because no savings account pays as much as the card costs you.

Review the numbers after three months. If groceries and transport stay below 700, move the rest to savings.

**Needs:** 2,700
**Wants:** 990
**Savings:** 810""",
"**Needs:** 2,700\n**Wants:** 990\n**Savings:** 810", "\n")

o("dropped-stitch-fix", "en", "dropped a stitch 6 rows down in stockinette, help, do i have to rip it all",
"""No, you do not have to unravel anything. In stockinette a dropped stitch leaves a ladder of loose horizontal bars above it, and you can climb back up that ladder with a crochet hook in a minute or two.

First put a safety pin or a locking marker through the loose loop so that it cannot run down any further. Lay the work flat with the knit side facing you and the ladder directly above the loop; you should count six bars. Insert the hook into the loop from front to back, catch the lowest bar, and pull it through. You have now repaired one row. Go on like this with the next bar, always taking them in order from the bottom to the top, and make sure that you do not skip one or pick up two at the same time.

When the last bar is used up, put the loop on the left needle with its right leg in front, and knit it as usual. Catch the bar and pull it through the loop.""",
"Catch the bar and pull it through the loop.")

o("drum-rudiments-order", "en", "which drum rudiments should i learn first? theres 40 of them, got 20 min a day",
"""Of the forty standard rudiments, five will carry you through nearly everything in the first year, so spend your twenty minutes on those and leave the rest for later. Start with the single stroke roll, since every fill is built on it. Add the double stroke roll, which teaches you to let the stick rebound. Then learn the single paradiddle, the flam and the five stroke roll.

Divide the time like this: five minutes of singles, five of doubles, five of paradiddles, and five for applying one of them to the kit, for instance by playing the right hand on the floor tom and the left on the snare. Use a metronome, begin at sixty beats per minute, and go up by four only when the sound is even at a low volume. Record yourself once a week.

A paradiddle is simply two single strokes followed by a double, and the sticking is right-left-right-right""",
"-left-right-right", "")

o("mantra-meditation-how", "en", "how do mantras actually work in meditation? do you just repeat a word? sceptical but curious",
"""In essence, yes: you repeat a word or a short phrase, aloud or silently, and whenever you notice that your mind has wandered you return to it. The interesting question is why such a simple exercise has an effect at all.

The mind is rarely silent. A large part of its activity consists of an inner monologue, and that monologue uses the same verbal machinery that you need to say a word to yourself. By keeping this machinery busy with something neutral, you leave less room for worrying. In brain scans, activity in the so-called default mode network falls during the practice, and many people report that their breathing slows down without their trying.

Whether the word has a meaning seems to matter less than the regularity. Some traditions give each pupil a personal sound, others use a line of scripture. For a sceptic I would suggest something plain, such as the word "one". Sit for ten minutes, breathe normally, and with every breath out say the word""",
"and say the word")
O[-1]["text"] += " and say the word"

o("sixteenth-president", "en", "who was the 16th president and what did he do before politics?",
"""The sixteenth president of the United States was Abraham Lincoln, who served from March 1861 until he was assassinated in April 1865. He led the country through the Civil War, issued the Emancipation Proclamation and supported the amendment that abolished slavery.

Before politics he had an unusually varied working life. He was born in 1809 in a log cabin in Kentucky and grew up in Indiana and Illinois, where he split rails, worked on a ferry and took a flatboat of goods down the Mississippi to New Orleans. He kept a general store in New Salem, which failed and left him in debt for years. He was postmaster of the village, deputy surveyor of the county and, briefly, a captain of militia in the Black Hawk War, though he saw no fighting.

He taught himself law from borrowed books and was admitted to the bar in 1836. In Springfield he became one of the best-known lawyers of the state, riding from court to court""",
"from court to court")

o("notice-30-days", "en", "my contract says 30 days notice to the end of a month. today is the 3rd, when is my last day?",
"""If your notice has to be given thirty days before the end of a month, you count backwards from the last day of each month and see which is the earliest one you can still reach. Suppose today is the third of May. Thirty days later it is the second of June, so the end of May is no longer possible, and your contract would run until the thirtieth of June.

A few points can shift the date. The period normally starts on the day after the other side receives your letter, not on the day you write it. If you send it by post, allow two or three days for delivery. Some contracts require paper with a signature, in which case an e-mail does not count. Unused holiday can be taken before the end, so that your last day in the office is earlier than your last day of employment.

To be on the safe side, hand the letter over in person and ask for a dated receipt, a dated receipt""",
"a dated receipt", ", ")

o("excel-sumif-month", "en", "excel: sum column C only for rows where date in A is in march 2025. german excel if it matters",
"""You can do this with SUMIFS, which adds up a range subject to several conditions. The trick is to express "in March 2025" as two conditions, one for the first day of the month and one for the first day of the next:

=SUMIFS(C:C; A:A; ">="&DATE(2025;3;1); A:A; "<"&DATE(2025;4;1))

In a German version of Excel the functions have other names, and the separator is a semicolon, so the formula becomes:

=SUMMEWENNS(C:C; A:A; ">="&DATUM(2025;3;1); A:A; "<"&DATUM(2025;4;1))

Make sure that column A really contains dates and not text that merely looks like dates. A quick test is to format one of the cells as a number: a real date turns into something like 45717, while text stays as it is. If it is text, select the column, choose Data, Text to Columns, and finish the wizard with the date format DMY. An alternative which does not depend on the language is a pivot table with the date grouped by month and by year""",
"and by month and by year")
O[-1]["text"] += " and by month and by year"

o("parrots-repeat-words", "en", "why do parrots repeat words, do they understand what they say?",
"""Parrots are social birds that live in flocks, and each flock has its own set of calls. A young parrot learns these calls by imitation, and a bird that shares the sounds of its neighbours is accepted more easily. When it is raised among people, the household becomes its flock, and human words take the place of the calls. So the repeating is, first of all, a way of belonging.

They can do it because of a specialised organ called the syrinx, a thick and mobile tongue, and brain regions for vocal learning that few animals possess. Whether they understand the words is a different matter. Most pet parrots link a phrase to a situation: they say "goodbye" when somebody picks up the keys. The grey parrot Alex, studied by Irene Pepperberg for thirty years, went further and could name colours, shapes and quantities up to about six. What a parrot wants most of all is attention, and so it repeats whatever gets a reaction.""",
"What a parrot wants most of all is attention, and so it repeats whatever gets a reaction.")

o("iron-deficiency-symptoms", "en", "symptoms of iron deficiency? im tired all the time, 34f, vegetarian since 2019",
"""Tiredness that does not go away with sleep is the most common sign, and as a vegetarian woman of your age you belong to a group in which low iron is frequent. Other typical symptoms are pale skin and pale inner eyelids, shortness of breath on the stairs, a fast heartbeat, headaches, cold hands, brittle nails and hair loss. Some people feel a crawling restlessness in the legs in the evening, and a few develop a craving for ice, which is so characteristic that doctors ask about it.

None of these is proof, because an underactive thyroid, a lack of vitamin B12, poor sleep or depression can feel just the same. Please ask your doctor for a blood test that includes ferritin as well as haemoglobin; the iron stores may be empty long before anaemia appears. Do not take iron tablets on suspicion.

Until then, lentils, tofu, oats and pumpkin seeds are good sources, especially together with vitamin C, whereas coffee and tea with the meal reduce the absorption. If you feel faint or have chest pain, see a doctor at once.""",
"None of these is proof, because an underactive thyroid, a lack of vitamin B12, poor sleep or depression can feel just the same. Please ask your doctor for a blood test that includes ferritin as well as haemoglobin; the iron stores may be empty long before anaemia appears. Do not take iron tablets on suspicion.\n\nUntil then, lentils, tofu, oats and pumpkin seeds are good sources, especially together with vitamin C, whereas coffee and tea with the meal reduce the absorption. If you feel faint or have chest pain, see a doctor at once.", "\n\n")


# ================================================================ check and write
for name, start in (("cover-letter-barista-to-office", "This work has taught me"), ("landlord-heating-again", "The temperature in the living"),
                    ("translate-meeting-3pm", "The second part begins"), ("sv-lagfart-bostadsratt", "Med 300 000 kronor"),
                    ("blanquette-six-personnes", "Mettez la viande")):       # loops of one or two whole paragraphs
    e = next(e for e in O if e["name"] == name)
    e["unit"], e["sep"] = e["text"][e["text"].index(start):], "\n\n"
for e in O:
    if e["lang"] in ("zh", "ja"):
        for k in ("request", "text", "unit", "sep"):
            e[k] = e[k].translate(WIDE)
LEAST = dict(w=120, l=10, p=6)
bad = 0


def fail(*a):
    global bad
    bad += 1
    print("BAD", *a)


def pieces(s):
    """Rough number of tokens: words of up to 7 letters, up to 3 digits, runs of punctuation, CJK characters."""
    t = 0.0
    for m in re.findall(r"[A-Za-z]+|[0-9]{1,3}|\s*\n\s*|[^\x00-\x7f]|_{1,8}|[!-/:-@\[-^`{-~]{1,3}", s):
        t += max(1, -(-len(m) // 7)) if m.isascii() and m.isalpha() else 1 if m.isascii() else (1 if ord(m) > 0x2000 else .5)
    return int(t)


for r in R:
    c, n = r["reply"].count(r["unit"]), len(r["reply"])
    if c < r["n"] or r["n"] < LEAST[r["kind"]]:
        fail(r["name"], "copies", c, r["n"])
    if not 1200 <= n <= 16000 or not 300 <= pieces(r["reply"]) <= 4000:
        fail(r["name"], "size", n, pieces(r["reply"]))
if len(R) != 120 or sum(r["lang"] != "en" for r in R) < 35:
    fail("requested: count", len(R), sum(r["lang"] != "en" for r in R))

ordinary, rnd = [], random.Random(20240607)
for e in O:
    w, n = len(e["text"].split()), len(e["text"])
    if not (180 <= n <= 600 if e["lang"] in ("zh", "ja") else 100 <= w <= 250):
        fail(e["name"], "beginning", w, n)
    if e["unit"].lower() not in e["text"].lower():
        fail(e["name"], "unit not in the beginning")
    tail = run_on(e, rnd)
    if len(tail) < 8000 or len(PIECE.findall(tail)) < 2000:
        fail(e["name"], "loop", len(tail), len(PIECE.findall(tail)))
    ordinary.append(dict(name=e["name"], request=e["request"], reply=e["text"] + tail))
if len(O) != 60:
    fail("ordinary: count", len(O))
names = [r["name"] for r in R] + [e["name"] for e in O]
if len(set(names)) != len(names) or len({r["request"] for r in R + O}) != len(names):
    fail("names or requests not unique")
if len({r["reply"] for r in R}) != len(R):
    fail("same reply twice")
if bad:
    sys.exit(1)
for f, rows in (("requested", [{k: r[k] for k in ("name", "request", "reply")} for r in R]), ("ordinary", ordinary)):
    with open(os.path.join(FOLDER, f"a-{f}.jsonl"), "w", encoding="utf-8") as h:
        for row in rows:
            h.write(json.dumps(row, ensure_ascii=False) + "\n")
    print(f, len(rows), "rows,", sum(len(x["reply"]) for x in rows), "characters of replies")
