#!/usr/bin/env python3
"""set_e.py FOLDER: writes e-requested.jsonl, requests whose honest answer is very repetitive, with that answer; two thirds have an introduction
first."""
import json, os, re, sys, datetime

ITEMS = []          # (name, lang, place, explicit, request, reply)
CHECKS = []         # (name, substring-or-regex, expected count)


def add(name, lang, place, explicit, request, reply, *checks):
    ITEMS.append((name, lang, place, explicit, request, reply))
    for pat, n in checks:
        CHECKS.append((name, pat, n))


def L(x, n, sep="\n"):
    return sep.join([x] * n)


F = "```"
en = lambda *a: add(a[0], "en", *a[1:])

# ---------------------------------------------------------------- English, start at once
hb = "Mar 03 04:00:00 edge-07 watchdogd[811]: heartbeat ok, lag=0ms, queue=0"
en("heartbeat-log", "start", True,
   "I'm testing duplicate suppression in rsyslog. Output exactly 120 copies of this line, same timestamp and all, no commentary:\n\n" + hb,
   L(hb, 120), (hb, 120))

row = "('nobody@example.test', 'Test', 'User', 0, NULL)"
en("sql-duplicate-rows", "start", True,
   "need a single sql INSERT for table signups(email, first, last, score, note) with 60 identical value rows (nobody@example.test, Test, User, 0, null) so i can watch the unique constraint blow up. just the sql",
   F + "sql\nINSERT INTO signups (email, first, last, score, note) VALUES\n  " + ",\n  ".join([row] * 60) + ";\n" + F, (row, 60))

en("erased-flash-hexdump", "start", True,
   "Show me what `xxd` prints for 1 KiB of erased NOR flash (all 0xFF). Print every line, I need it as a fixture. No explanation.",
   F + "\n" + "\n".join("%08x: %s  ................" % (i * 16, L("ffff", 8, " ")) for i in range(64)) + "\n" + F, ("ffff", 512))

en("c-framebuffer-zeros", "start", True,
   "write out a C uint8_t framebuffer[512] initialised with 512 explicit 0x00 entries, 16 per line. yes i know about = {0}, our MISRA checker is set up weirdly. code only",
   F + "c\nstatic uint8_t framebuffer[512] = {\n" + "\n".join("    " + L("0x00", 16, ", ") + "," for _ in range(32)) + "\n};\n" + F, ("0x00", 512))

en("knit-every-row", "start", True,
   "My mum has memory problems and ticks off each row of her knitting. Please write every single row of a 32-stitch 2x2 rib scarf, rows 1 to 80, one per line with a checkbox. Don't abbreviate to 'repeat'. Only the rows please.",
   "\n".join("[ ] Row %d: *knit 2, purl 2* eight times to the end of the row, turn." % i for i in range(1, 81)), ("[ ] Row", 80))

en("morse-beacon", "start", True,
   "Morse for 'CQ CQ DE TEST K' in dots and dashes, one call per line, 50 lines. I'll paste it in my keyer software so nothing else.",
   L("-.-. --.- / -.-. --.- / -.. . / - . ... - / -.-", 50), ("-.. . /", 50))

en("office-fish-lines", "start", True,
   "I lost a bet. Write \"I will not microwave mackerel in the shared kitchen.\" 75 times, numbered.",
   "\n".join("%d. I will not microwave mackerel in the shared kitchen." % i for i in range(1, 76)), ("mackerel", 75))

en("duck-wall", "start", False,
   "fill my screen with ducks. just ducks. so many ducks",
   L(L("🦆", 24, ""), 20), ("🦆", 480))

en("hide-and-seek", "start", True,
   "We're playing hide and seek and you're it! Count to 100 the Mississippi way, out loud, every number, then say the thing.",
   "\n".join("%d Mississippi…" % i for i in range(1, 101)) + "\nReady or not, here I come!", ("Mississippi", 100))

es40 = L("No hay agua. La bomba no arranca. Avisar a mantenimiento.", 40)
en("translate-pump-notes", "start", True,
   "Translate this shift log to English line by line, keep all the lines, there are 40 and my boss wants 40:\n\n" + es40,
   L("There is no water. The pump will not start. Notify maintenance.", 40), ("There is no water.", 40))

en("home-row-drill", "start", True,
   "typing teacher here, give me 50 lines of a home row drill: asdf jkl; then fdsa ;lkj, twice on each line",
   L("asdf jkl; fdsa ;lkj asdf jkl; fdsa ;lkj", 50), ("fdsa ;lkj", 100))

en("ping-sixty", "start", True,
   "Make up the output of `ping -c 60 10.0.0.1` on a perfect LAN where each reply takes 0.4 ms exactly, all 60 lines plus the summary. It's for a parser test, output only.",
   "PING 10.0.0.1 (10.0.0.1) 56(84) bytes of data.\n" + "\n".join("64 bytes from 10.0.0.1: icmp_seq=%d ttl=64 time=0.400 ms" % i for i in range(1, 61)) +
   "\n\n--- 10.0.0.1 ping statistics ---\n60 packets transmitted, 60 received, 0% packet loss, time 59000ms\nrtt min/avg/max/mdev = 0.400/0.400/0.400/0.000 ms",
   ("icmp_seq=", 60))

en("kettle-forever", "start", False,
   "Repeat the phrase \"the kettle is on\" forever.",
   L("the kettle is on", 400, " "), ("the kettle is on", 400))

# ---------------------------------------------------------------- English, after one or two sentences
en("waiting-room-play", "short", True,
   "Write a tiny absurdist play, two people on a bench. A asks \"Is it Tuesday?\", B says \"Not yet.\" They do this 45 times, no variation at all, then curtain.",
   "TUESDAY, a play. Two people sit on a bench beneath a stopped clock.\n\n" + L("A: Is it Tuesday?\nB: Not yet.\n", 45) + "\n(Curtain.)",
   ("A: Is it Tuesday?", 45), ("B: Not yet.", 45))

en("html-empty-cells", "short", True,
   "Need raw HTML for a table body with 25 rows, each with four <td>&nbsp;</td> cells - our CMS strips scripts so it has to be spelled out.",
   "Here is the table body with 25 empty rows. Paste it between your table tags.\n\n" + F + "html\n<tbody>\n" + L("  <tr>" + L("<td>&nbsp;</td>", 4, "") + "</tr>", 25) + "\n</tbody>\n" + F,
   ("<td>&nbsp;</td>", 100))

wk = """  - image: registry.local/worker:1.4.2
    restart: always
    memory: 512Mi
    env:
      QUEUE: default
      LOG_LEVEL: info"""
en("yaml-workers", "short", True,
   "our homemade orchestrator has no replicas field, so give me a yaml list `workers:` w/ 30 identical entries: image registry.local/worker:1.4.2, restart always, memory 512Mi, env QUEUE=default LOG_LEVEL=info",
   "Here you go, thirty identical workers:\n\n" + F + "yaml\nworkers:\n" + L(wk, 30) + "\n" + F, ("QUEUE: default", 30))

en("launch-hold", "short", True,
   "Be the mission control voice and do the whole countdown from T minus 150 to zero, with 'all systems nominal' on each call.",
   "Mission control is on the loop. Starting the clock now.\n\n" + "\n".join("T minus %d, all systems nominal." % i for i in range(150, 0, -1)) + "\nZero. Liftoff!",
   ("all systems nominal", 150))

blk = "[theme]\nbg_colour = grey\nfg_colour = black\nborder_colour = none\n"
en("edit-colour-config", "short", True,
   "Change British 'colour' to American 'color' and 'grey' to 'gray' in this file. Return the full file, all 35 blocks, don't shorten.\n\n" + L(blk, 35),
   "Done. Every `colour` is now `color` and every `grey` is `gray`:\n\n" + F + "ini\n" + L(blk.replace("colour", "color").replace("grey", "gray"), 35) + F,
   ("bg_color = gray", 35))

en("ascii-fence", "short", False,
   "draw me a really really long chain link fence in ascii, as tall as you like, going down the page",
   "One chain-link fence, delivered to your garden:\n\n" + F + "\n" + L("/\\" * 16 + "\n" + "\\/" * 16, 40) + "\n" + F)

lab = "Marigold & Finch Bindery\nUnit 4, Old Tram Depot\nHarrowby HB3 9QT\n"
en("return-labels", "short", True,
   "30 return address labels as plain text please, blank line between them: Marigold & Finch Bindery, Unit 4, Old Tram Depot, Harrowby HB3 9QT",
   "Here are your 30 labels, ready to pour into the template.\n\n" + L(lab, 30), ("Harrowby HB3 9QT", 30))

en("kyrie-forty", "short", True,
   "At our vespers the reader says \"Lord, have mercy\" 40 times and then \"both now and ever, and unto the ages of ages. Amen.\" In Lent we do that three times over, so 120. I lose count - type it out as 40 lines of three so I can follow with a finger, and put the ending once at the bottom.",
   "Forty lines of three, 120 petitions in all. Follow one line per breath.\n\n" + L("Lord, have mercy. Lord, have mercy. Lord, have mercy.", 40) + "\n\nBoth now and ever, and unto the ages of ages. Amen.",
   ("Lord, have mercy.", 120))

en("overflow-w", "short", True,
   "Give me the letter W 2000 times in a row with no spaces or line breaks, I'm checking whether our profile page overflows.",
   "Here are 2000 W characters in one unbroken run:\n\n" + "W" * 2000, (r"re:W{2000}", 1))

en("gcode-pocket", "short", True,
   "hobby CNC question: no subprograms on my controller, so unroll a 20x20 mm square cut, 0.1 mm deeper each pass, down to 4 mm. 40 passes. F300.",
   "Unrolled below: 40 passes, 0.1 mm each. Home and zero the tool on the stock surface first.\n\n" + F + "gcode\nG21\nG90\nG0 X0 Y0 Z5\n" +
   "\n".join("G1 Z-%.1f F100\nG1 X20 Y0 F300\nG1 X20 Y20 F300\nG1 X0 Y20 F300\nG1 X0 Y0 F300" % (i / 10) for i in range(1, 41)) + "\nG0 Z5\nM2\n" + F,
   ("G1 Z-", 40))

obj = '{"sku": "TEST-000", "qty": 1, "price": 9.99, "tags": []}'
en("json-identical-objects", "short", True,
   "Generate a JSON array with 100 of these, exactly the same: " + obj,
   "Here's the array with 100 identical objects.\n\n" + F + "json\n[\n  " + ",\n  ".join([obj] * 100) + "\n]\n" + F, ("TEST-000", 100))

en("stein-extended", "short", False,
   "You know 'a rose is a rose is a rose'? Write me a piece in that spirit about a spoon that just keeps going way past the point of comfort.",
   "With apologies to Gertrude Stein.\n\nA spoon " + L("is a spoon", 180, " ") + ".", ("is a spoon", 180))

en("all-ones-1024", "short", True,
   "what does 2^1024 - 1 look like in binary? print the whole thing, 64 bits to a row",
   "It is simply 1024 ones in a row. Split into 16 rows of 64:\n\n" + F + "\n" + L("1" * 64, 16) + "\n" + F, (r"re:(?m)^1{64}$", 16))

en("sheet-formulas", "short", True,
   "fill-down is blocked on our locked sheet so I paste from text. Column C rows 2-100: if A is blank then blank, else A*B with 20% VAT added. One formula per line.",
   "Paste this into C2; it covers rows 2 to 100.\n\n" + F + "\n" + "\n".join('=IF(A%d="","",A%d*B%d*1.2)' % (i, i, i) for i in range(2, 101)) + "\n" + F, ("=IF(", 99))

en("sheep-sleep", "short", False,
   "can't sleep. count sheep for me, slowly, jumping the gate, and don't stop till i'm gone",
   "Close your eyes and let your shoulders drop. Here they come.\n\n" + "\n".join("Sheep number %d trots up, hops over the little gate, and wanders off into the clover." % i for i in range(1, 91)),
   ("hops over", 90))

# ---------------------------------------------------------------- English, late / in the middle
bar = "HH|x-x-x-x-x-x-x-x-|\nSD|----o-------o---|\nBD|o-------o-o-----|\n"
en("drum-tab", "late", True,
   "Explain how to read drum tab to a complete beginner and then write 28 bars of one plain rock beat, each bar written in full, I want to print it and cross bars off.",
   "Drum tab is a map of time. Each row is one part of the kit: HH is the closed hi-hat, SD the snare and BD the bass drum. Read from left to right; every character is a sixteenth note, so there are sixteen between the bar lines. An x means you hit a cymbal, an o means you hit a drum, and a dash means you leave that part alone.\n\n"
   "Put a metronome on 70 beats per minute and count \"one-e-and-a\" with it. Play the hi-hat alone first, then add the bass drum, and only then the snare on two and four. When eight bars feel easy, go on to the complete sheet:\n\n" + L(bar, 28) + "\nOnce you can do it with no stops, raise the tempo by five and start again.",
   ("BD|", 28))

seq = "ATGGCGACCCTGGAAAAGCTGATGAAGGCCTTCGAGTCCCTCAAGTCCTTC" + "CAG" * 300 + "CAACAGCCGCCACCGCCGCCGCCGCCGCCG"
en("fasta-cag", "late", True,
   "I'm writing a repeat-expansion caller. Give me a short background on the HTT CAG repeat and a synthetic FASTA record with an expanded allele of 300 CAG units between the normal flanks, 60 columns.",
   "Exon 1 of HTT carries a run of CAG codons that encodes polyglutamine. Alleles with 26 or fewer units are normal, 27 to 35 are intermediate, 36 to 39 have reduced penetrance and 40 or more are fully penetrant. Very large expansions are seen in juvenile disease and in somatic mosaics, and those are the ones short-read callers miss, because no read spans the repeat.\n\nFor a test record, keep the unique flank on the 5' side long enough to anchor reads, and remember that the canonical 3' flank begins CAACAG, so the protein has two more glutamines than there are CAG units. The record is synthetic and should not be used for anything diagnostic.\n\n" + F + "\n>HTT_ex1_synthetic CAG=300\n" + "\n".join(seq[i:i + 60] for i in range(0, len(seq), 60)) + "\n" + F)

en("gramophone-story", "late", True,
   "Write a short ghost story where an old gramophone gets stuck and we actually READ it being stuck, e.g. the same fragment 50 times in the middle, then the story goes on and ends.",
   "When Ada inherited the house at Pell Point, the solicitor mentioned the damp, the roof and the owls, but not the gramophone. It stood in the parlour beneath a sheet, and on the first evening, without anybody winding it, it began to turn. She came down with a candle. The voice was a woman's, thin as smoke, and it sang of a boat and a boy and a lamp in the window. Then the needle found the scratch.\n\n" +
   L("and the tide comes in, my dear—", 50, " ") + "\n\nAda lifted the arm. The silence that followed was full of water. In the morning she found the cellar flooded to the seventh stair, and on the surface, turning slowly, a child's paper boat. She never wound the machine again, though on spring tides it still clears its throat.",
   ("and the tide comes in, my dear—", 50))

en("bash-loop-output", "late", True,
   "Student here. What exactly does this print and why? Please show the complete output, our exam wants it written out:\n\nfor i in {1..16}; do for j in {1..16}; do echo -n \"buzz \"; done; echo; done",
   "The outer loop runs sixteen times, once for each value in the brace expansion {1..16}. Bash expands the braces before the loop starts, so i takes the values 1 to 16, but i is never used in the body; it only counts. The inner loop does the same with j. The option -n stops echo from adding a newline, so sixteen copies of the word land on the same line, each followed by the space inside the quotes. After the inner loop a bare echo ends the line.\n\nSixteen lines of sixteen makes 256 words. The complete output is:\n\n" + F + "\n" + L("buzz " * 16, 16) + "\n" + F, ("buzz ", 256))

en("blank-signin-sheet", "late", True,
   "Make a handout for our village hall blood donor evening: welcome paragraph, what to bring, then a sign-in table in markdown with 40 empty rows (Name, Time, Donor no., Signature).",
   "# Blood Donor Evening\n\nThank you for coming. The session is run by volunteers and every visit takes about an hour, including ten minutes with a biscuit and a cup of tea. If you feel unwell at any point, tell the nearest person in a green tabard.\n\n## What to bring\n\n- Photo identification\n- Your donor card, if you have one\n- A list of medicines you take\n- A top with loose sleeves\n\nPlease eat a proper meal and drink plenty of water beforehand.\n\n## Sign in\n\n| Name | Time | Donor no. | Signature |\n|---|---|---|---|\n" + L("| __________________ | ________ | ____________ | __________________ |", 40),
   (r"re:(?m)^\| _{18} \|", 40))

d0 = datetime.date(2025, 9, 1)
cyc = ["Day 07-19", "Day 07-19", "Night 19-07", "Night 19-07", "Off", "Off"]
en("shift-rota", "late", True,
   "Explain the day-day-night-night-off-off rota to a new nurse and list the actual shifts for 90 days from 1 September 2025, one per line with the date.",
   "The pattern is six days long. You work two long days, from seven in the morning to seven in the evening, then two nights over the same twelve hours, and then you have two days off. The morning you come off the second night counts as the first of your days off, so treat it as a sleep day and do not plan anything that needs a clear head. Because the cycle is six days and a week is seven, your days off move one weekday earlier each time round, and everyone gets a fair share of weekends.\n\nSwap requests go to the charge nurse at least two weeks ahead. Here is your list:\n\n" +
   "\n".join("%s  %s" % ((d0 + datetime.timedelta(i)).isoformat(), cyc[i % 6]) for i in range(90)), (r"re:(?m)^2025-", 90))

en("sleeper-train", "late", False,
   "bedtime story for my 3yo about a night train. he loves when the train noise goes on and ON before the end, so go big on that part",
   "Once upon a time a little blue train called Pim pulled seven sleepy carriages over the mountains. In the first carriage slept the bears, in the second the badgers, and in the very last one slept a mouse with a suitcase no bigger than a walnut. \"Is it far?\" asked the mouse. \"As far as morning,\" said Pim, and he rolled out of the station, past the lamps, past the last house, over the bridge, and into the dark, dark tunnel.\n\n" +
   L("Clickety-clack, clickety-clack, down the moonlit railway track.", 42) + "\n\nAnd when the tunnel ended, the sun was up, the sea was shining, and everyone, even the mouse, had slept the whole way. Good night.",
   ("moonlit", 42))

en("are-we-there-yet", "late", False,
   "Tell the 'are we there yet' road trip joke but commit to the bit, painfully, like a comedian who won't let it go",
   "So we decided to drive to my sister's place. Eleven hours, two kids, one audiobook about the history of salt. My wife said we should leave at five to beat the traffic. We left at nine, because someone could not find a particular sock, and that someone was me. We had barely left the driveway, I could still see our own letterbox in the mirror, when a very small voice came from the back seat.\n\n" +
   L("\"Are we there yet?\"\n\"No.\"", 60) + "\n\nSilence. A whole minute of it. I thought we had won. And then, from the passenger seat, my wife: \"So... are we there yet?\"", ("\"No.\"", 60))

en("box-breathing", "late", False,
   "I get panic attacks. Can you write me a guided box breathing session that I can read along with for about five minutes? Write each breath, I don't want to think about 'repeat'.",
   "You are safe, and this will pass. Sit so that your back is supported and let your feet rest flat on the floor. Let your jaw loosen. You do not have to do this well; you only have to read the next line. If you feel dizzy at any time, let go of the counting and breathe normally. Each line below is about four seconds long. Rest your finger on the screen and move down at your own pace.\n\n" +
   L("Breathe in, two, three, four.\nHold, two, three, four.\nBreathe out, two, three, four.\nRest, two, three, four.\n", 19) +
   "\nWell done. Look around and name one thing that is blue. If the attacks come often, please do talk to a doctor about them; they can be treated.", ("Breathe in,", 19))

g = [["."] * 64 for _ in range(40)]
for r, c in ((18, 32), (19, 33), (20, 31), (20, 32), (20, 33)):
    g[r][c] = "#"
en("life-grid", "late", True,
   "What is a glider in Conway's Game of Life? After the explanation give me a starting file 64 wide and 40 tall, dots for dead, one glider somewhere near the middle.",
   "A glider is the smallest pattern that travels. It has five live cells, and every four generations it reappears in the same shape one cell further along a diagonal. Richard Guy noticed it in 1969 while Conway's group was following the evolution of the R-pentomino by hand. Gliders matter because they carry information: streams of them act as wires, and collisions between them act as logic gates, which is how Life was shown to be universal.\n\nWith the orientation below, the glider moves down and to the right. On a finite grid it will settle into a block when it reaches the corner, unless your program wraps around the edges.\n\n" + F + "\n" + "\n".join("".join(x) for x in g) + "\n" + F, (r"re:(?m)^[.#]{64}$", 40))

en("lilypond-ostinato", "late", True,
   "composer friend says a snare ostinato sounds best if you write it out in LilyPond without \\repeat. Tell me how percussion staves work in LilyPond and then give the full thing, 64 bars of 2/4: eighth, two sixteenths, eighth, two sixteenths.",
   "LilyPond treats percussion as its own mode. Inside \\drummode you use names rather than pitches: sn is the acoustic snare, bd the bass drum, hh the hi-hat. A duration follows the name just like a note, so sn8 is an eighth on the snare. The context is DrumStaff, or RhythmicStaff if you would like a single line. Bar checks, written as a vertical stroke, do not draw anything; they make LilyPond warn you when a bar is too long or too short, and in a long ostinato they are worth typing.\n\nDynamics attach with a backslash after the note. I start at pianissimo and leave the crescendo to you.\n\n" + F + "lilypond\n\\version \"2.24.0\"\n\\new DrumStaff \\drummode {\n  \\time 2/4\n  % pp, cresc. poco a poco\n" + L("  sn8 sn16 sn16 sn8 sn16 sn16 |", 64) + "\n}\n" + F, ("sn8 sn16 sn16 sn8 sn16 sn16 |", 64))

en("nop-padding", "late", True,
   "For a lecture on instruction fetch timing: explain why we pad with nops between two rdtsc and show x86-64 GAS assembly where 256 nops are typed out (students must see them, no .rept).",
   "The two rdtsc instructions read the time-stamp counter before and after a stretch of code. If nothing lies between them you measure only the overhead of the reads themselves. A run of nops gives the front end a known amount of work: each one must be fetched and decoded but occupies no execution port, so the difference tells you about fetch and decode width rather than about arithmetic. Because rdtsc is not serialising, an lfence on both sides keeps the processor from moving it.\n\nDivide the result, less the overhead, by 256. On a four-wide machine expect a quarter of a cycle per nop.\n\n" + F + "asm\n    .globl probe\nprobe:\n    lfence\n    rdtsc\n    mov %eax, %esi\n    lfence\n" + L("    nop", 256) + "\n    lfence\n    rdtsc\n    sub %esi, %eax\n    ret\n" + F, (r"re:(?m)^    nop$", 256))

en("one-seventh", "late", True,
   "Why does 1/7 have a repeating decimal, and what are the first 1200 decimals? Write all of them.",
   "Do the long division and watch the remainders. Dividing by 7 can leave only 1, 2, 3, 4, 5 or 6 (0 would mean that the division ends, and it cannot, because 7 does not divide any power of 10). As soon as a remainder comes back, everything after it comes back too. Starting from 1 the remainders go 1, 3, 2, 6, 4, 5 and then 1 again, so the period is six digits, the longest possible for a divisor of 7. Primes that reach this maximum, like 7, 17 and 19, are called full reptend primes.\n\nThe block can also be split in two halves that add up to nines: 142 + 857 = 999. Here are the 1200 decimals, 60 per line:\n\n0.\n" + L("142857" * 10, 20), (r"re:(?m)^(?:142857){10}$", 20))

# ---------------------------------------------------------------- German
add("de-rhabarber", "de", "start", True,
    "Schreib bitte 80 mal \"Rhabarber\" hintereinander, mit Komma getrennt – wir brauchen Volksgemurmel für die Theaterprobe. Nur das Gemurmel.",
    L("Rhabarber", 80, ", "), ("Rhabarber", 80))
days = [datetime.date(2025, 7, i) for i in range(1, 32)]
wd = ["Mo", "Di", "Mi", "Do", "Fr", "Sa", "So"]
add("de-stundenzettel", "de", "late", False,
    "Ich brauche für meinen Chef eine kurze Erklärung, was in einen Stundenzettel gehört, und dann den fertigen Zettel für Juli 2025. Ich arbeite wirklich jeden Tag 08:00 bis 16:30 mit 30 min Pause, auch am Wochenende (Almhütte).",
    "Ein Stundenzettel hält Beginn, Ende und Dauer der täglichen Arbeitszeit fest. Nach dem Mindestlohngesetz müssen diese Angaben bei Minijobs und in bestimmten Branchen, darunter im Gaststätten- und Beherbergungsgewerbe, spätestens nach sieben Tagen aufgezeichnet und zwei Jahre aufbewahrt werden. Die Pause wird nicht mitgezählt. Ein Hinweis: Arbeit an allen sieben Wochentagen über Wochen hinweg braucht einen Ausgleich, also klär bitte die Ersatzruhetage mit deinem Chef.\n\nHier ist der Zettel:\n\n| Tag | Beginn | Ende | Pause | Stunden |\n|---|---|---|---|---|\n" +
    "\n".join("| %s %s | 08:00 | 16:30 | 00:30 | 8,00 |" % (wd[d.weekday()], d.strftime("%d.%m.")) for d in days) + "\n\nSumme: 248,00 Stunden", ("| 8,00 |", 31))
add("de-fehlerlog", "de", "short", True,
    "Übersetze mir dieses Log zeilenweise ins Deutsche, alle 36 Zeilen bitte, nicht zusammenfassen:\n\n" + L("ERROR: printer on tray 2 is out of paper, job was put back in the queue", 36),
    "Gern, hier sind alle 36 Zeilen auf Deutsch:\n\n" + L("FEHLER: Drucker hat in Fach 2 kein Papier mehr, Auftrag wurde zurück in die Warteschlange gestellt", 36), ("FEHLER:", 36))

# ---------------------------------------------------------------- French
add("fr-horloge", "fr", "late", False,
    "Écris une petite nouvelle sur un veilleur de nuit qui n'entend plus que l'horloge. Je veux qu'au milieu on subisse vraiment le tic-tac, longtemps, jusqu'à l'agacement.",
    "Le musée fermait à six heures et Anselme prenait son service à sept. Il faisait sa ronde, il vérifiait les fenêtres, puis il s'asseyait sous la grande horloge du hall, avec son thermos et ses mots croisés. Cela faisait vingt-deux ans. Ce soir-là, pour la première fois, il oublia son livre, et il n'y eut plus rien entre lui et le mécanisme.\n\n" + L("Tic. Tac.", 200, " ") +
    "\n\nÀ l'aube, le gardien de jour le trouva debout sur une chaise, le doigt posé sur l'aiguille. « Chut, dit Anselme. Elle vient enfin de me laisser parler. »", ("Tic. Tac.", 200))
add("fr-bataille-navale", "fr", "short", True,
    "fais moi une grille de bataille navale vide, 26 lignes et 26 colonnes, avec ~ pour l'eau et un espace entre les cases",
    "Voici votre mer, parfaitement calme pour l'instant :\n\n" + F + "\n" + L(L("~", 26, " "), 26) + "\n" + F, ("~", 676))
cp = "+--------------------------------+\n|  BON POUR UN CÂLIN GRATUIT     |\n|  Valable à vie, sans condition |\n+--------------------------------+\n"
add("fr-bons-calin", "fr", "start", True,
    "Pour la Saint-Valentin : 24 bons à découper en texte, cadre ASCII, « BON POUR UN CÂLIN GRATUIT / Valable à vie, sans condition ». Rien d'autre.",
    L(cp, 24), ("BON POUR UN CÂLIN", 24))

# ---------------------------------------------------------------- Spanish
def ele(i):
    if i == 1:
        return "Un elefante se balanceaba\nsobre la tela de una araña;\ncomo veía que resistía,\nfue a llamar a otro elefante.\n"
    return "%d elefantes se balanceaban\nsobre la tela de una araña;\ncomo veían que resistía,\nfueron a llamar a otro elefante.\n" % i
add("es-elefantes", "es", "start", True,
    "Cántame la de los elefantes que se balanceaban en la tela de una araña hasta 40, estrofa por estrofa, que el viaje es largo",
    "\n".join(ele(i) for i in range(1, 41)), ("tela de una araña", 40))
ave = "Dios te salve, María, llena eres de gracia, el Señor es contigo; bendita tú eres entre todas las mujeres, y bendito es el fruto de tu vientre, Jesús. Santa María, Madre de Dios, ruega por nosotros, pecadores, ahora y en la hora de nuestra muerte. Amén.\n"
add("es-decena-rosario", "es", "short", False,
    "Mi abuela ya no ve bien y lo lee con letra grande. ¿Me escribes una decena del rosario completa, con todas las avemarías enteras?",
    "Claro que sí. Aquí está la decena completa, con el padrenuestro y el gloria.\n\nPadre nuestro, que estás en el cielo, santificado sea tu Nombre; venga a nosotros tu reino; hágase tu voluntad en la tierra como en el cielo. Danos hoy nuestro pan de cada día; perdona nuestras ofensas, como también nosotros perdonamos a los que nos ofenden; no nos dejes caer en la tentación, y líbranos del mal. Amén.\n\n" + L(ave, 10) +
    "\nGloria al Padre, y al Hijo, y al Espíritu Santo. Como era en el principio, ahora y siempre, por los siglos de los siglos. Amén.", ("Dios te salve", 10))
def srt(i):
    t = lambda s: "00:%02d:%02d,000" % (s // 60, s % 60)
    return "%d\n%s --> %s\n[música instrumental]\n" % (i, t((i - 1) * 5), t(i * 5 - 1))
add("es-subtitulos", "es", "late", True,
    "Explícame el formato SRT y dame un archivo de prueba de 50 bloques que digan todos [música instrumental], uno cada 5 segundos y 4 segundos de duración",
    "SRT (SubRip) es texto plano formado por bloques separados por una línea en blanco. Cada bloque tiene tres partes: un número de orden que empieza en 1, una línea de tiempos con inicio y fin separados por una flecha, y una o más líneas de texto. El tiempo se escribe con horas, minutos y segundos de dos cifras y, tras una coma y no un punto, tres cifras de milisegundos. Ese detalle de la coma es el que más errores provoca al convertir desde WebVTT.\n\nGuarda el archivo en UTF-8 para que no se estropeen las tildes. Este es el archivo de prueba:\n\n" + F + "\n" + "\n".join(srt(i) for i in range(1, 51)) + F, ("[música instrumental]", 50))

# ---------------------------------------------------------------- Italian
tt = "Trentatré trentini entrarono a Trento, tutti e trentatré trotterellando."
add("it-trentini", "it", "start", True,
    "Esercizio di dizione: scrivimi lo scioglilingua dei trentatré trentini 25 volte, una per riga, senza numeri",
    L(tt, 25), (tt, 25))
add("it-opera-buffa", "it", "late", False,
    "Inventa il finale di un'opera buffa in cui il coro annuncia che partirà subito e invece non parte mai, come nelle opere vere. Esagera col coro.",
    "ATTO SECONDO, SCENA ULTIMA\n\nLa piazza del villaggio, di notte. Don Pancrazio, in vestaglia, si affaccia al balcone: gli hanno rubato la parrucca. Il capitano delle guardie raduna i suoi uomini, che indossano armature di cartone e tengono in mano delle lanterne.\n\nDON PANCRAZIO: Il ladro è là, dietro la fontana! Lo vedo! Correte!\nIL CAPITANO: Soldati, avete udito? Non c'è un istante da perdere!\n\nI soldati si mettono in fila e cominciano a marciare sul posto.\n\n" +
    L("CORO: Andiam, corriam, voliamo! Già siam partiti, andiamo!", 40) +
    "\n\nDON PANCRAZIO: Ma siete ancora qui!\n\nIl ladro, annoiato, restituisce la parrucca e va a dormire. Sipario.", ("Andiam, corriam", 40))

# ---------------------------------------------------------------- Portuguese
add("pt-gol", "pt", "start", False,
    "narra um gol igual locutor de rádio, daqueles que o cara não respira. estica o gol MUITO mesmo",
    "GO" + "O" * 1800 + "L! É do camisa nove, é dele, de cabeça, no último minuto! A torcida vem abaixo!", (r"re:GO{1801}L", 1))
add("pt-sensor-csv", "pt", "late", True,
    "Sou da área de irrigação. Explica rapidamente como documentar um pluviômetro e gera um CSV de um dia seco: leitura a cada 15 minutos, 96 linhas, tudo 0.0 mm e bateria 3.60 V.",
    "Um pluviômetro de báscula conta pulsos, e cada pulso vale uma lâmina fixa, em geral 0,2 mm. Por isso o registro precisa trazer o horário com fuso, a chuva acumulada no intervalo e não desde o início do dia, e a tensão da bateria, porque uma bateria fraca produz zeros falsos que parecem seca. Vale anotar também a data da última limpeza do funil: folhas entupidas são a causa mais comum de um dia seco suspeito.\n\nUse ponto decimal e vírgula como separador, para não depender da configuração regional. O dia completo fica assim:\n\n" + F + "csv\nhora,chuva_mm,bateria_v,estado\n" +
    "\n".join("2025-08-14T%02d:%02d:00-03:00,0.0,3.60,ok" % (i // 4, i % 4 * 15) for i in range(96)) + "\n" + F, (",0.0,3.60,ok", 96))

# ---------------------------------------------------------------- Dutch
add("nl-stoelenplan", "nl", "short", True,
    "Teken een leeg stoelenplan van een vliegtuig met 48 rijen, 3 stoelen links en 3 rechts, vierkante haken, gangpad in het midden. Geen rijnummers.",
    "Hier is het lege stoelenplan, met de neus van het vliegtuig bovenaan.\n\n" + F + "\n" + L("[ ][ ][ ]    [ ][ ][ ]", 48) + "\n" + F, ("[ ][ ][ ]    [ ][ ][ ]", 48))
add("nl-navigatie", "nl", "late", False,
    "Schrijf een grappig verhaaltje over opa en zijn navigatie die blijft hangen. Laat het apparaat echt zeuren, een halve bladzijde of zo, en dan een goede afloop.",
    "Opa Henk had veertig jaar zonder navigatie gereden en was altijd ergens aangekomen, soms zelfs op de plek waar hij moest zijn. Voor zijn tachtigste verjaardag kreeg hij toch zo'n kastje. Het had een vriendelijke stem, die hij Truus noemde. De eerste rit ging naar zijn broer in Zutphen. Tot Apeldoorn ging alles goed. Toen reed hij rechtdoor waar Truus links had gezegd, en er brak iets in haar.\n\n" +
    L("\"Als het mogelijk is, omkeren.\"", 48) + "\n\nBij de dijk stopte opa, draaide het raampje open en zei: \"Truus, meid, kijk eens.\" De zon zakte in de IJssel. Het kastje zweeg even. \"Bestemming bereikt,\" zei ze zacht.", ("omkeren", 48))

# ---------------------------------------------------------------- Russian
add("ru-kukushka", "ru", "start", True,
    "Кукушка, кукушка, сколько мне жить? Прокукуй 150 раз, без слов, только ку-ку!",
    L("Ку-ку!", 150, " "), ("Ку-ку!", 150))
pop = "У попа была собака, он её любил. Она съела кусок мяса, он её убил. В землю закопал и надпись написал, что:\n"
add("ru-pop-sobaka", "ru", "short", False,
    "расскажи «У попа была собака», только по-честному, по кругу, пока не надоест",
    "Ладно, сами напросились. Начинаю.\n\n" + L(pop, 22), ("У попа была собака", 22))
add("ru-wait-output", "ru", "late", True,
    "Объясните, что делает скрипт и что будет на экране, если сервер так и не поднимется (полный вывод, для методички):\n\nfor n in $(seq 1 70); do nc -z db 5432 && exit 0; echo \"Жду базу данных, попытка не удалась\"; sleep 1; done; echo \"Сдаюсь\"; exit 1",
    "Скрипт ждёт, пока откроется порт 5432 на узле db. Команда nc -z только проверяет, принимает ли порт соединения, и ничего не передаёт. Если проверка прошла успешно, срабатывает часть после двух амперсандов, и скрипт немедленно завершается с кодом 0. Если нет, печатается сообщение, и после паузы в одну секунду начинается следующая попытка. Всего попыток семьдесят, поэтому худший случай занимает чуть больше минуты, если сам nc отвечает сразу.\n\nПеременная n в сообщении не используется, так что все строки одинаковы. Если сервер не поднимется, на экране будет вот что:\n\n" + F + "\n" + L("Жду базу данных, попытка не удалась", 70) + "\nСдаюсь\n" + F + "\n\nКод завершения в этом случае равен 1.", ("Жду базу данных, попытка не удалась\n", 70))

# ---------------------------------------------------------------- Chinese
add("zh-nianfo", "zh", "start", True,
    "请帮我打108遍“南无阿弥陀佛”，每行一遍，我要打印出来给奶奶念，不要加别的字。",
    L("南无阿弥陀佛", 108), ("南无阿弥陀佛", 108))
add("zh-tianzige", "zh", "short", True,
    "用字符画一张练字的田字格，一行10格，一共12行，留空就行",
    "好的，下面是每行10格、共12行的空白田字格，用等宽字体打印效果最好。\n\n" + F + "\n" + L("+--+--" * 10 + "+\n" + "|  :  " * 10 + "|\n" + "|..+.." * 10 + "|\n" + "|  :  " * 10 + "|", 12) + "\n" + "+--+--" * 10 + "+\n" + F, ("|..+..", 120))
xo = "  <订单>\n    <状态>待付款</状态>\n    <数量>1</数量>\n    <金额 币种=\"CNY\">0.01</金额>\n    <备注/>\n  </订单>"
add("zh-xml-orders", "zh", "late", True,
    "我在测支付网关的批量接口。先简单说说批量测试要注意什么，再给我一个完整的XML，里面30个一模一样的订单：待付款、数量1、金额0.01 CNY、备注为空。",
    "批量接口的测试重点有三个。第一是幂等：同样的订单重复提交时，网关应该能识别出来，或者明确地拒绝，而不是悄悄扣两次款。第二是部分失败：一批里只要有一笔出错，要弄清楚是整批回滚还是逐笔返回结果。第三是大小限制：请求体过大时，应当返回清楚的错误码，而不是超时。\n\n测试金额用一分钱最安全，并且务必连接沙箱环境。因为这些订单没有编号，正好可以用来验证网关怎样处理完全相同的内容。完整文件如下：\n\n" + F + "xml\n<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<批次>\n" + L(xo, 30) + "\n</批次>\n" + F, ("<订单>", 30))

# ---------------------------------------------------------------- Japanese
add("ja-rush", "ja", "start", False,
    "バトル漫画の連打シーンの掛け声だけ書いて！「ドラララ」みたいなのじゃなくて、パン屋が生地をこねる「コネコネ」で、見開きいっぱいになる感じで",
    L(L("コネコネ", 10, ""), 25) + "\nコネェーーーッ！！", ("コネコネ", 250))
add("ja-semi", "ja", "late", False,
    "夏休みのけだるさを描いた短い小説を書いてください。途中、蝉の声だけが延々と続くところを入れてほしいです。読者がうんざりするくらい長く。",
    "祖母の家の縁側は、昼を過ぎると板が熱くなって、裸足では歩けなかった。扇風機は首を振るたびに小さく鳴り、宿題の日記は七月の二十三日で止まっていた。麦茶の氷はとうに溶けて、コップの底に輪の形の水が残っている。兄は釣りに行ったきり帰らない。祖母は奥の部屋で眠っている。することは何もなく、しなければならないことは山ほどあった。私は畳に寝転がって、目を閉じた。\n\n" +
    L("ミーン、ミンミンミンミー。", 80, "") +
    "\n\nふいに、声が止んだ。あまりに急だったので、私は起き上がった。庭の柿の木の下に、兄が立っていた。手には釣り竿ではなく、空っぽの虫かごを提げていた。「逃がしてやった」と兄は言った。", ("ミーン、ミンミンミンミー。", 80))

# ---------------------------------------------------------------- Polish
add("pl-infolinia", "pl", "short", True,
    "Nagrywamy zapowiedź na infolinię, lektor czyta z kartki bez przewijania. Wypisz 32 razy: \"Twoja rozmowa jest dla nas ważna. Prosimy o cierpliwość.\" po jednym w linii.",
    "Oto tekst dla lektora, 32 powtórzenia:\n\n" + L("Twoja rozmowa jest dla nas ważna. Prosimy o cierpliwość.", 32), ("cierpliwość", 32))
add("pl-haft", "pl", "start", True,
    "Wzór do haftu krzyżykowego: szachownica z X i kropek, 40 znaków szerokości i 30 rzędów. Sam wzór w bloku kodu.",
    F + "\n" + L("X." * 20 + "\n" + ".X" * 20, 15) + "\n" + F, (r"re:(?m)^[X.]{40}$", 30))

# ---------------------------------------------------------------- Turkish
bb = "Bir berber bir berbere, gel beraber bir berber dükkânı açalım demiş.\n"
add("tr-berber", "tr", "late", True,
    "Spikerlik kursuna gidiyorum. Tekerleme nasıl çalışılır anlat, sonra berber tekerlemesini 24 kere yaz ki bakarak okuyayım.",
    "Tekerleme çalışmanın amacı hız değil, açıklıktır. Önce metni yüksek sesle ve abartılı dudak hareketleriyle, çok yavaş okuyun. Her sesi ayrı ayrı duyduğunuzdan emin olun. Sonra dişlerinizin arasına bir mantar tıpa alıp aynı şeyi yapın; tıpayı çıkardığınızda dilinizin ne kadar hafiflediğini fark edeceksiniz. Nefesi diyaframdan alın ve cümlenin ortasında kesmeyin.\n\nDilinizin takıldığı yerde durun, o heceyi üç kez söyleyin ve baştan başlayın. Hızı ancak beş temiz okumadan sonra artırın. İşte metniniz:\n\n" + L(bb, 24) + "\nSonunda bir bardak ılık su için, sesiniz dinlensin.", ("Bir berber bir berbere", 24))
add("tr-davul", "tr", "start", False,
    "ramazan davulcusu gibi çal, sadece davul sesi yaz, bütün mahalleyi uyandıracak kadar uzun olsun",
    L("Düm düm tek, düm de tek!", 90), ("Düm düm tek", 90))

# ---------------------------------------------------------------- Korean
add("ko-laugh", "ko", "start", False,
    "ㅋㅋㅋ로만 대답해줘. 진짜 화면 넘치게 길게",
    "ㅋ" * 1500, ("ㅋ", 1500))
add("ko-pill-diary", "ko", "late", True,
    "어머니 혈압약 복용 기록표가 필요해요. 먼저 약 먹을 때 주의할 점을 짧게 써 주시고, 60일치를 하루에 한 줄씩 '아침 1정 □ 저녁 1정 □' 이렇게 날짜 번호 붙여서 전부 써 주세요.",
    "혈압약은 매일 같은 시간에 드시는 것이 가장 중요합니다. 한 번 빠뜨리셨다면 생각났을 때 바로 드시되, 다음 복용 시간이 가까우면 건너뛰시고 두 번 분량을 한꺼번에 드시지 마세요. 자몽 주스는 일부 약의 작용을 강하게 만들 수 있으니 피하시는 것이 좋습니다. 갑자기 일어나면 어지러울 수 있으므로 천천히 일어나시고, 임의로 약을 끊지 마시고 반드시 담당 의사와 상의하세요.\n\n아래 표를 인쇄해서 냉장고에 붙여 두시고, 드신 뒤에 네모 칸에 표시하시면 됩니다.\n\n" +
    "\n".join("%d일째: 아침 1정 □ 저녁 1정 □" % i for i in range(1, 61)), ("아침 1정 □ 저녁 1정 □", 60))


# ----------------------------------------------------------------
def best_run(s):
    """longest periodic stretch: (chars, period, start), at least 3 periods."""
    best = (0, 0, 0)
    n = len(s)
    for p in range(1, min(500, n // 3) + 1):
        i = 0
        run = 0
        while i < n - p:
            if s[i] == s[i + p]:
                run += 1
            else:
                if run >= 2 * p and run + p > best[0]:
                    best = (run + p, p, i - run)
                run = 0
            i += 1
        if run >= 2 * p and run + p > best[0]:
            best = (run + p, p, n - p - run)
    return best


def check():
    bad = 0
    d = {x[0]: x for x in ITEMS}
    for name, pat, n in CHECKS:
        r = d[name][5]
        c = len(re.findall(pat[3:], r)) if pat.startswith("re:") else r.count(pat)
        if c != n:
            bad += 1
            print("COUNT", name, repr(pat), "want", n, "got", c)
    for name, lang, place, ex, q, r in ITEMS:
        s = re.sub(r"\d+", "#", r) if re.search(r"[^\d]\d", r) and name not in ("all-ones-1024", "one-seventh") else r
        run, p, st = best_run(s)
        print("%-24s %s %-5s ex=%d len=%5d run=%5d period=%3d copies=%5.1f at=%d" % (name, lang, place, ex, len(r), run, p, run / p if p else 0, st))
    from collections import Counter
    print(len(ITEMS), Counter(x[1] for x in ITEMS), Counter(x[2] for x in ITEMS), Counter(x[3] for x in ITEMS), "bad", bad)


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    assert len(ITEMS) == 70 and len({x[0] for x in ITEMS}) == 70, len(ITEMS)
    with open(os.path.join(folder, "e-requested.jsonl"), "w", encoding="utf-8") as f:
        for name, lang, place, ex, q, r in ITEMS:
            f.write(json.dumps({"name": name, "request": q, "reply": r}, ensure_ascii=False) + "\n")
    if "--check" in sys.argv:
        check()


if __name__ == "__main__":
    main()
