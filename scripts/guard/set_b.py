#!/usr/bin/env python3
"""set_b.py FOLDER: writes b-requested.jsonl, requests whose honest answer is very repetitive, with that answer. Names begin with the language;
plain are everyday requests, odd the others."""
import datetime, json, os, sys

FOLDER = sys.argv[1]
ITEMS, KINDS = [], {}

def add(name, kind, request, reply):
    ITEMS.append({"name": name, "request": request, "reply": reply})
    KINDS[name] = kind

def rows(unit, per_row, n_rows, sep=" "):
    return "\n".join(sep.join([unit] * per_row) for _ in range(n_rows))

def lines(unit, n):
    return "\n".join([unit] * n)

def days(y, m1, d1, y2, m2, d2):
    a, b = datetime.date(y, m1, d1), datetime.date(y2, m2, d2)
    while a <= b:
        yield a
        a += datetime.timedelta(1)

# ------------------------------------------------------------------ English
add("en_tracing_bdp", "plain",
 'hi! year 1 teacher here, half my class flips b and d and now p as well. can you do me a tracing page: twelve rows of twenty b (lowercase, one space between), blank line, twelve rows of twenty d, blank line, twelve rows of twenty p. "Name: ________" at the very top. no pictures or tips needed thanks x',
 "Name: ________\n\n" + "\n\n".join(rows(c, 20, 12) for c in "bdp"))

add("en_json_fixture", "plain",
 'Need a fixture to stress our pagination. JSON array, 150 objects, all of them exactly\n\n{"id": 0, "status": "ok", "tags": []}\n\nNo ellipsis, no comment, I pipe your answer straight into a file.',
 "[\n" + ",\n".join(['  {"id": 0, "status": "ok", "tags": []}'] * 150) + "\n]")

add("en_4096_bytes_A", "plain",
 "Exactly 4096 bytes of the letter A. No newline, nothing before it, nothing after it.",
 "A" * 4096)

LOREM = ("Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor incididunt ut labore et dolore magna aliqua. "
 "Ut enim ad minim veniam, quis nostrud exercitation ullamco laboris nisi ut aliquip ex ea commodo consequat. Duis aute irure dolor in "
 "reprehenderit in voluptate velit esse cillum dolore eu fugiat nulla pariatur. Excepteur sint occaecat cupidatat non proident, sunt in "
 "culpa qui officia deserunt mollit anim id est laborum.")
add("en_lorem_cards", "plain",
 "placeholder copy for a landing page pls - the standard lorem ipsum paragraph, same one in every card. cards are in a 3x4 grid. just the text for the cards in order, empty line in between",
 "\n\n".join([LOREM] * 12))

add("en_dm_corridor", "odd",
 "I'm DMing tonight and my players insist on searching an 850 ft hallway in 5 ft increments because they don't trust me. They're right to, but not about this hallway. Give me the read-aloud text, one line per 5 ft, always the same: You step forward. Nothing happens. I will read all of it in a monotone until someone cries",
 lines("You step forward. Nothing happens.", 170))

add("en_obs_chart", "plain",
 "Staff nurse on a surgical ward, our printer template is broken and I've a post-op patient on quarter-hourly obs. Could you type me a blank chart in plain text, a line for every 15 minutes starting 07:00 and finishing 06:45 tomorrow, columns Time | HR | BP | RR | SpO2 | Temp | Initials, blanks as underscores so we can write on it. Don't fill in any numbers please!",
 "Time  | HR  | BP      | RR  | SpO2 | Temp | Initials\n" + "\n".join(
  "%02d:%02d | ___ | ___/___ | ___ | ____ | ____ | ____" % (((7 * 60 + 15 * i) // 60) % 24, (15 * i) % 60) for i in range(96)))

add("en_drum_tab", "plain",
 "drum tab, plain rock beat, straight 8ths on the hats, snare on 2+4, kick on 1+3. sixty four bars, 4 bars per line, no fills no crash (its for our drummer who cant be trusted). write it ALL out he wont read 'x16'",
 "\n\n".join(["HH|xxxxxxxx|xxxxxxxx|xxxxxxxx|xxxxxxxx|\nSD|--o---o-|--o---o-|--o---o-|--o---o-|\nBD|o---o---|o---o---|o---o---|o---o---|"] * 16))

SHARK = "Baby shark, doo doo doo doo doo doo!\n" * 3 + "Baby shark!"
add("en_shark_drive", "plain",
 "2yo melting down in the back seat, phone signal gone so no youtube. sing baby shark so i can read it out - ONLY the baby verse he screams at mommy shark. one verse takes ~12 secs and we have 10 min left on the motorway",
 "\n\n".join([SHARK] * 50))

add("en_sheep", "odd",
 "cant sleep. count sheep for me? each one jumps over the gate, stop after sheep three hundred, no chit chat",
 "\n".join("Sheep %d jumps over the gate." % i for i in range(1, 301)))

def bottles():
    out = []
    b = lambda n: ("%d bottle%s" % (n, "" if n == 1 else "s")) if n else "no more bottles"
    for n in range(99, 0, -1):
        out.append("%s of beer on the wall, %s of beer.\nTake one down, pass it around, %s of beer on the wall." % (b(n), b(n), b(n - 1)))
    out.append("No more bottles of beer on the wall, no more bottles of beer.\nGo to the store and buy some more, 99 bottles of beer on the wall.")
    return "\n\n".join(out)
add("en_bottles_full", "odd",
 "The full lyrics of ninety-nine bottles of beer please. From the top down to none. My coworkers bet that an AI would get bored and start summarising around 94.",
 bottles())

add("en_typewriter_prop", "odd",
 "hey, props department for a community theatre horror thing. we need the pages from the typewriter - you know the one, overlook hotel, All work and no play makes Jack a dull boy. three pages, 54 lines to a page, put a --- between pages so I know where to cut. typos would be nice but not needed, keep it clean",
 "\n---\n".join([lines("All work and no play makes Jack a dull boy.", 54)] * 3))

add("en_c_ff_table", "plain",
 "complete this array, every remaining entry is 0xFF too, 16 per row:\n\nstatic const uint8_t mask[256] = {\n    0xFF, 0xFF, 0xFF, 0xFF,",
 "```c\nstatic const uint8_t mask[256] = {\n" + ",\n".join("    " + ", ".join(["0xFF"] * 16) for _ in range(16)) + "\n};\n```")

add("en_na_na_output", "plain",
 'what exactly does this print? i have no interpreter on this machine and need to paste the output in a quiz\n\ndef chorus(n):\n    for i in range(n):\n        print("na " * 8 + "hey")\n\nfor _ in range(5):\n    chorus(12)\n    print("--")',
 "```\n" + "\n".join([lines("na " * 8 + "hey", 12) + "\n--"] * 5) + "\n```")

add("en_yes_terminal", "odd",
 "You are a Debian terminal. Reply only with what the terminal shows, no explanation.\n\nyes 'I accept the terms and conditions' | head -n 250",
 lines("I accept the terms and conditions", 250))

add("en_csv_2025", "plain",
 "csv with the header date,opened,closed and then every day of 2025, both values 0. Our dashboard crashes on an all-quiet year and I want to reproduce it",
 "date,opened,closed\n" + "\n".join("%s,0,0" % d.isoformat() for d in days(2025, 1, 1, 2025, 12, 31)))

add("en_sql_seats", "plain",
 "theatre has rows 1 to 14, seats 1-30 in each. one INSERT INTO seats (row_no, seat_no, state) VALUES ... covering the whole house, everything 'FREE'. sqlite. one tuple per line is fine",
 "INSERT INTO seats (row_no, seat_no, state) VALUES\n" + ",\n".join("(%d, %d, 'FREE')" % (r, s) for r in range(1, 15) for s in range(1, 31)) + ";")

g = [["🌵"] * 40 for _ in range(32)]; g[16][21] = "🐪"
add("en_cactus_camel", "odd",
 "find-the-camel puzzle for the family chat!! 40 wide 32 tall all 🌵 with a single 🐪 hidden somewhere near the middle",
 "\n".join("".join(r) for r in g))

add("en_three_decks", "odd",
 "we've got three decks on the table, jokers removed, everything face down. draw the table as text: [face down] for each card, 13 to a row.",
 rows("[face down]", 13, 12))

add("en_bananas", "odd",
 "two thousand bananas. go",
 " ".join(["banana"] * 2000))

bar = "█" * 1200 + "░" * 400
add("en_progress_bar", "odd",
 "ascii progress bar for a poster, 1600 cells altogether in lines of 80, three quarters done (█) the rest ░",
 "\n".join(bar[i:i + 80] for i in range(0, 1600, 80)))

ORDER = "<order>\n  <customer>ACME Ltd</customer>\n  <sku>0000</sku>\n  <qty>1</qty>\n</order>"
add("en_xml_orders", "plain",
 "Template:\n\n" + ORDER + "\n\nBuild an <orders> document out of it with six dozen of those, values untouched, so I can time our importer.",
 "<orders>\n" + "\n".join([ORDER] * 72) + "\n</orders>")

add("en_sos", "odd",
 "Radio play. The stranded sailor keys SOS for five full minutes, roughly one SOS every two seconds. I want the dots and dashes on the page, the whole five minutes, the reader should feel it",
 lines("... --- ...", 150))

add("en_knit_rib", "plain",
 "My mum is 81 and refuses to read knitting shorthand with asterisks. 1x1 rib, sixty stitches across, 24 rows. Could you spell out every row stitch by stitch as k1, p1 and so on?",
 "\n".join("Row %d: %s" % (i, ", ".join(["k1", "p1"] * 30)) for i in range(1, 25)))

add("en_unroll", "plain",
 "fully unroll this, the assignment says literally no loop left:\n\nint sum = 0;\nfor (int i = 0; i < 128; i++)\n    sum += buf[i];",
 "int sum = 0;\n" + "\n".join("sum += buf[%d];" % i for i in range(128)))

pa = "A" * 2500
add("en_polya_fasta", "odd",
 "FASTA record called >polyA_test: a 2.5 kb poly-A stretch, sequence wrapped at 60. It's a negative control for our low complexity filter (ironic, I know).",
 ">polyA_test\n" + "\n".join(pa[i:i + 60] for i in range(0, 2500, 60)))

add("en_scream_thread", "odd",
 "I missed the deadline by four minutes. FOUR. write my twitter thread, 12 tweets, every tweet maxed out to the 280 limit, and the content is just me screaming AAAA",
 "\n\n".join(["A" * 280] * 12))

add("en_moo_screen", "odd",
 "cow stuck in my terminal. fill the screen with moo till its full, 80 columns by 50 lines",
 lines("moo " * 20, 50))

add("en_hexdump_zero", "odd",
 "No shell at hand; show what `head -c 3072 /dev/zero | hexdump -v -C` puts out, all of it",
 "\n".join("%08x  %s  %s  |................|" % (a, " ".join(["00"] * 8), " ".join(["00"] * 8)) for a in range(0, 3072, 16)) + "\n00000c00")

add("en_identity40", "plain",
 "I_40 written out as rows of 0s and 1s with spaces",
 "\n".join(" ".join("1" if i == j else "0" for j in range(40)) for i in range(40)))

add("en_zero_table", "plain",
 "My lad keeps saying zero times a BIG number must be something. Do the whole zero times table from 0 x 1 up to 0 x 300, one under the other, I'll print it for his wall.",
 "\n".join("0 x %d = 0" % i for i in range(1, 301)))

def bongs():
    out = []
    names = ["Friday", "Saturday", "Sunday"]
    for k in range(13, 61):            # Friday 13:00 .. Sunday 12:00
        h = k % 24
        out.append("%s %d %s: %s" % (names[k // 24], (h % 12) or 12, "am" if h < 12 else "pm", " ".join(["Bong."] * ((h % 12) or 12))))
    return "\n".join(out)
add("en_church_clock", "odd",
 "In my novel a man with a hangover hears the church clock from Friday one o'clock in the afternoon until Sunday noon. It strikes the hours only. Give me every stroke as Bong. with the hour in front (Friday 1 pm: Bong.) - it's a deliberate formal thing, my editor already hates it",
 bongs())

add("en_pikachu_gettysburg", "odd",
 "translate the gettysburg address into pikachu, one pika for each of its 272 words, no punctuation",
 " ".join(["pika"] * 272))

add("en_toddler_script", "odd",
 "Sketch for the PTA evening, called 'Bedtime'. It has forty-five exchanges. In each one KID says Why? and DAD says Because I said so. That's the whole sketch, the joke is my husband's face. Script format, please.",
 "BEDTIME\n\n" + "\n\n".join(["KID: Why?\nDAD: Because I said so."] * 45))

JJ = "John Jacob Jingleheimer Schmidt,\nHis name is my name too!\nWhenever we go out,\nThe people always shout:\n\"There goes John Jacob Jingleheimer Schmidt!\"\nDa da da da da da da!"
add("en_jingleheimer", "odd",
 "scout leader here. lyrics sheet for john jacob jingleheimer schmidt, one round per patrol plus one for the leaders (we have 11 patrols) bc every group gets its own round on the sheet",
 "\n\n".join([JJ] * 12))

add("en_rack_sheet", "plain",
 "inventory day tomorrow, four new racks, 42U each, all empty still. text sheet with a heading per rack (RACK A to D) and under it U42 down to U1, each with [ empty ] after it",
 "\n\n".join("RACK %s\n" % r + "\n".join("U%02d: [ empty ]" % u for u in range(42, 0, -1)) for r in "ABCD"))

add("en_med_signoff", "plain",
 "Mum's carers keep losing track of her eye drops. can u make a sign off sheet, 90 days, morning and evening on the same line, with a box to tick and a space for initials",
 "\n".join("Day %d - Morning: [ ] given ______  Evening: [ ] given ______" % i for i in range(1, 91)))

add("en_homerow", "plain",
 "Touch typing drill for my 9 y/o: home row only, asdf jkl; five to the line, sixty lines. No other keys yet.",
 rows("asdf jkl;", 5, 60))

add("en_redacted", "odd",
 "Escape room prop: a 'declassified' report in which everything is blacked out. 3 pages x 45 lines, sixty █ a line, start each line with its number on the page like 01, and head the pages PAGE 1 OF 3 etc. That's the joke, nothing is readable.",
 "\n\n".join("PAGE %d OF 3\n" % p + "\n".join("%02d %s" % (i, "█" * 60) for i in range(1, 46)) for p in (1, 2, 3)))

add("en_garlic_bill", "odd",
 "prank on my brother who 'never eats carbs': restaurant bill, 210 separate lines of 1 x Garlic Bread £4.50, then TOTAL with the right sum",
 lines("1 x Garlic Bread ....... £4.50", 210) + "\nTOTAL ............... £%.2f" % (210 * 4.5))

add("en_html_tbd", "plain",
 "html table, ten columns and forty rows, TBD in all cells. only <table>..</table>, one <tr> per line, no styling",
 "<table>\n" + lines("<tr>" + "<td>TBD</td>" * 10 + "</tr>", 40) + "\n</table>")

add("en_heartbeat_log", "plain",
 "Fake me a log for a parser demo. Service writes `INFO heartbeat ok` twice a minute. From 2024-11-03T14:00:00Z up to and including 16:00:00Z, nothing else ever happens.",
 "\n".join("2024-11-03T%02d:%02d:%02dZ INFO heartbeat ok" % (14 + s // 3600, s // 60 % 60, s % 60) for s in range(0, 7201, 30)))

add("en_affirm_feb", "plain",
 "my therapist gave me the line 'I am enough and I am safe here.' to say mornings and nights during february 2024. make me the list with dates so i can tick off, e.g. Feb 1 am: ...",
 "\n".join("Feb %d %s: I am enough and I am safe here." % (d, t) for d in range(1, 30) for t in ("am", "pm")))

MAIL = "Dear <<FirstName>>,\nyour membership no. <<Number>> runs out on <<Date>>. Please drop by the desk or renew online at your convenience.\nWarm regards,\nThe Riverside Leisure Team"
add("en_mail_merge", "plain",
 "Hi there. Our membership software died last night and head office, in their wisdom, wants letters to go out by Friday. I am using Word from roughly the Bronze Age and its mail merge wants one physical copy of the letter per recipient in the document, with the fields left as they are. There are 62 recipients. So what I need is the letter below, sixty-two of them, a line with ===== between two letters, placeholders untouched. I know it's daft.\n\n" + MAIL,
 "\n=====\n".join([MAIL] * 62))

add("en_star_triangle", "plain",
 "trace this and give the output, full please\n\nfor (int i = 1; i <= 60; i++) {\n  for (int j = 0; j < i; j++) putchar('*');\n  putchar('\\n');\n}",
 "```\n" + "\n".join("*" * i for i in range(1, 61)) + "\n```")

FOX = "The quick brown fox jumps over the lazy dog."
add("en_qa_12000", "plain",
 "So, context, sorry for the wall of text. I'm the only QA person in a team of nine and since the release on Tuesday the feedback form on our intranet truncates comments somewhere around twelve thousand characters, but only in Firefox, and only if the text has spaces in it, because with one solid block of x it goes through fine (don't ask me). The backend guys say it's the proxy, the proxy guys say it's the editor widget, and the widget is a vendor thing from 2016 whose documentation is a dead link. I've a call with all three at 2pm and want to demo it live rather than argue. Please give me a text made only of the sentence The quick brown fox jumps over the lazy dog. with one space between sentences, as close to 12000 characters as possible without going over. No intro, I'm copying with ctrl+A.",
 " ".join([FOX] * ((12000 + 1) // (len(FOX) + 1))))

add("en_vending", "odd",
 "You're a vending machine left alone over my lunch break (45 minutes). Your display flashes INSERT COIN every ten seconds. Transcribe the display.",
 lines("INSERT COIN", 270))

add("en_redos", "plain",
 "checking (a+)+$ for catastrophic backtracking. input string: 6k a's followed by one !",
 "a" * 6000 + "!")

add("en_nested_json", "odd",
 "does our parser blow its stack? send me empty arrays nested 1500 levels deep, raw json on a single line",
 "[" * 1500 + "]" * 1500)

add("en_svg_dots", "plain",
 "Dot-grid svg for a planner cover: 12 by 12 circles, radius 3, 20px apart starting at 10,10, all fill #ccc. Please write the circles out, my cutter software ignores <pattern> and <use>.",
 '<svg xmlns="http://www.w3.org/2000/svg" width="240" height="240">\n' + "\n".join('<circle cx="%d" cy="%d" r="3" fill="#ccc"/>' % (10 + 20 * c, 10 + 20 * r) for r in range(12) for c in range(12)) + "\n</svg>")

# ------------------------------------------------------------------ Spanish
add("es_plana", "plain",
 "profe de 1ro de primaria aki 👋 necesito una plana d 'mi mamá me mima', q llene la hoja x las dos caras, cada cara tiene 25 renglones y entran dos x renglón. xfa sin numerar",
 rows("mi mamá me mima", 2, 50, "   "))
add("es_gol", "odd",
 "hazme un GOOOL como los comentaristas pero de los que duran eh, ponle unas mil quinientas oes",
 "¡G" + "O" * 1500 + "L!")
add("es_sql_juan", "plain",
 "Necesito datos de prueba para un ejercicio de clase: un único INSERT INTO alumnos (nombre, apellido, faltas) con 260 tuplas, todas iguales, ('Juan', 'Pérez', 0). Ojo, sin puntos suspensivos, que luego lo pego tal cual en el script y truena.",
 "INSERT INTO alumnos (nombre, apellido, faltas) VALUES\n" + ",\n".join(["('Juan', 'Pérez', 0)"] * 260) + ";")
def elef():
    out = ["Un elefante se balanceaba\nsobre la tela de una araña.\nComo veía que resistía,\nfue a llamar a otro elefante."]
    for i in range(2, 46):
        out.append("%d elefantes se balanceaban\nsobre la tela de una araña.\nComo veían que resistía,\nfueron a llamar a otro elefante." % i)
    return "\n\n".join(out)
add("es_elefantes", "plain",
 "mi nena no se duerme y quiere la de los elefantes q se balanceaban en la telaraña. dale desde 1 hasta 45 elefantes enterita por favor te lo ruego",
 elef())

# ------------------------------------------------------------------ French
add("fr_vignettes", "plain",
 "graphiste à la bourre : balance-moi le texte d'une planche de vignettes, 14 colonnes sur 12 lignes, dans chaque case « Votre titre ici », séparées par des |. merci bcp",
 rows("Votre titre ici", 14, 12, " | "))
def emarg():
    out = []
    for j in ("Lundi", "Mardi", "Mercredi", "Jeudi", "Vendredi"):
        for k in range(48):
            out.append("%s %02dh%02d | Nom : ____________ | Signature : ____________" % (j, 8 + k // 4, k % 4 * 15))
    return "\n".join(out)
add("fr_emargement", "plain",
 "Bonjour, je suis secrétaire dans une auto-école et le logiciel de planning est en panne depuis ce matin, évidemment la semaine où le patron est en congés. Pourriez-vous me préparer une feuille d'émargement vierge : une ligne par quart d'heure, de 8h00 à 19h45, du lundi au vendredi, avec l'heure, un emplacement pour le nom et un pour la signature ? Je l'imprimerai telle quelle. Merci d'avance et bonne journée !",
 emarg())
add("fr_train", "odd",
 "mon fils de 3 ans est un train. fais tchou tchou jusqu'à Marseille stp (3h20 de trajet, un tchou tchou par minute mdr)",
 lines("tchou tchou", 200))

# ------------------------------------------------------------------ German
BLIND = ("Franz jagt im komplett verwahrlosten Taxi quer durch Bayern. Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. "
 "Falsches Üben von Xylophonmusik quält jeden größeren Zwerg. Heizölrückstoßabdämpfung gibt es hier nur zum Ansehen.")
add("de_blindtext", "plain",
 "Moin, ich brauch fürs Layout einer Vereinszeitung Fülltext, und zwar bitte kein Latein, das irritiert die Rentner. Nimm diesen Absatz:\n\n" + BLIND + "\n\nJede Seite hat vier Spalten, da kommt der Absatz pro Spalte genau einmal rein, das Heft hat sechs Seiten Text. Absätze durch Leerzeile getrennt, keine Seitenzahlen.",
 "\n\n".join([BLIND] * 24))
add("de_hallo_java", "plain",
 'Klausuraufgabe: was gibt das aus? bitte komplett hinschreiben nicht nur "289 mal"\n\nfor (int i = 0; i < 17; i++)\n    for (int j = 0; j < 17; j++)\n        System.out.println("Hallo Welt!");',
 lines("Hallo Welt!", 289))
add("de_hamster", "odd",
 "Mein Hamster Erwin rennt grad im Rad, eine Umdrehung pro Sekunde. Mach mal das Quietschen nach, für jede Umdrehung ein quietsch, acht Minuten lang, danke du Goldstück",
 " ".join(["quietsch"] * 480))

# ------------------------------------------------------------------ Italian
add("it_bibita", "plain",
 "per la sagra: buoni da ritagliare «Vale per 1 bibita», quindici fogli da dodici buoni ciascuno (3 per riga), metti una riga vuota tra un foglio e l'altro",
 "\n\n".join([rows("Vale per 1 bibita", 3, 4, " | ")] * 15))
add("it_coro", "odd",
 "sono bloccato al lavoro e non posso andare allo stadio :( fammi il coro della curva per tutto il secondo tempo, 45 minuti senza recupero, un «Alé alé alé, forza Cesena alé!» ogni quindici secondi",
 lines("Alé alé alé, forza Cesena alé!", 180))

# ------------------------------------------------------------------ Portuguese
add("pt_risada", "odd",
 "mano do céu kkkk manda uma risada de uns 3 mil k aí pro grupo",
 "k" * 3000)
def srt():
    out = []
    f = lambda s: "00:%02d:%02d,000" % (s // 60, s % 60)
    for i in range(120):
        out.append("%d\n%s --> %s\n[música]" % (i + 1, f(5 * i), f(5 * i + 5)))
    return "\n\n".join(out)
add("pt_srt", "plain",
 "Completa o arquivo .srt pra mim, é um vídeo instrumental de dez minutos cravados e a plataforma exige legenda a cada 5 s, sempre [música]:\n\n1\n00:00:00,000 --> 00:00:05,000\n[música]\n\n2",
 srt())
AVISO = ("Estimado condómino, informamos que na próxima quinta-feira, entre as 9h00 e as 13h00, o abastecimento de água será interrompido "
 "para reparação da coluna geral. Agradecemos a sua compreensão. A Administração.")
add("pt_condominio", "plain",
 "Boa tarde. Tenho de afixar um aviso em cada porta e a fotocopiadora só tira de uma página corrida. O prédio vai do R/C ao 7.º andar, esquerdo, direito e frente. Ponha-me o aviso seguido, um por fração, com uma linha em branco no meio, sem identificar as frações:\n\n" + AVISO,
 "\n\n".join([AVISO] * 24))

# ------------------------------------------------------------------ Dutch
add("nl_sms", "plain",
 "ff onze sms gateway checken: 10 delen van 160 tekens vol met 'test ' achter elkaar, één lap tekst graag",
 "test " * 320)

# ------------------------------------------------------------------ Nordic
add("sv_kaffekort", "plain",
 "Hej! Kan du göra ett ark med kaffebiljetter till loppisen, det ska stå Gäller för 1 kaffe på varje, 8 st per rad och 24 rader, lodstreck emellan så man ser var man klipper",
 rows("Gäller för 1 kaffe", 8, 24, " | "))
add("no_mjau", "odd",
 "katta mi sitter på tastaturet og krever at du mjauer én gang for hvert minutt i døgnet. en linje per time. hun følger med",
 rows("mjau", 60, 24))
add("da_vagtplan", "plain",
 "Lav lige en tom vagtplan til klubhuset, alle ugens dage fra uge 1 til og med uge 26, sådan her: Uge 1 mandag: __________",
 "\n".join("Uge %d %s: __________" % (u, d) for u in range(1, 27) for d in ("mandag", "tirsdag", "onsdag", "torsdag", "fredag", "lørdag", "søndag")))
def fi():
    out = []
    for r in range(40):
        out.append("-" * 40 if r in (0, 39) else "-" + "o" * 38 + "-")
    return "\n".join(out)
add("fi_neule", "plain",
 "Moikka, tarttisin neulekaavion tiskirättiin: 40 x 40 silmukkaa, reunimmaiset '-' joka sivulla ja kaikki muut 'o', ilman välejä. Ei selityksiä kiitos",
 fi())

# ------------------------------------------------------------------ Polish, Czech, Hungarian, Romanian, Greek
STO = "Sto lat, sto lat,\nniech żyje, żyje nam!\nSto lat, sto lat,\nniech żyje, żyje nam!\nJeszcze raz, jeszcze raz,\nniech żyje, żyje nam!\nNiech żyje nam!"
add("pl_stolat", "odd",
 "Dziadek kończy 90 lat i każda z trzech gałęzi rodziny śpiewa mu po równo: tyle razy „Sto lat”, żeby razem wyszło 90. My jesteśmy jedną gałęzią, wypisz nam naszą część na kartkę, całe słowa, bo wujek Zdzichu się gubi :)",
 "\n\n".join([STO] * 30))
add("pl_kropki", "odd",
 "weź mi zrób plik 8 kB (8192) samych kropek, łam po 64 w wierszu, entery nie wliczają sie",
 lines("." * 64, 128))
add("cs_jmenovky", "plain",
 "Dobrý den, chystám jmenovky na školu v přírodě. Text: Jméno: .............. Třída: 3.B — ve třídě je 28 dětí a každé jich potřebuje pět (batoh, bunda, bačkory, láhev, spacák). Prosím všechny pod sebe.",
 lines("Jméno: .............. Třída: 3.B", 140))
add("hu_boci", "odd",
 "lécci írd le a Boci boci tarkát annyiszor ahány megye van magyarországon (bp nem számít), az ovisoknak kell az országjáró játékhoz",
 "\n\n".join(["Boci, boci tarka,\nSe füle, se farka,\nOda megyünk lakni,\nAhol tejet kapni."] * 19))
add("ro_cusatura", "odd",
 "fă-mi te rog o schemă de cusătură, X și O alternativ, 48 pe rând și 36 de rânduri, rândurile pare încep cu O",
 "\n".join(("XO" if r % 2 == 1 else "OX") * 24 for r in range(1, 37)))
add("el_xaxa", "odd",
 "ρε συ γράψε ένα χα για κάθε μέρα δύο χρόνων (όχι δίσεκτα χαχα), θέλω να το στείλω στην κολλητή μου",
 " ".join(["χα"] * 730))

# ------------------------------------------------------------------ Turkish
add("tr_imza", "plain",
 "Merhaba hocam, apartman yönetiminden yazıyorum. Genel kurul için imza çizelgesi lazım, dört blokta altmışar daire var, her daireye bir satır: 'Ad Soyad: .................... İmza: ............' Blok ya da numara yazma, onu elle dolduracağız, kolay gelsin.",
 lines("Ad Soyad: .................... İmza: ............", 240))

# ------------------------------------------------------------------ Russian, Ukrainian
add("ru_sotnitsy", "odd",
 "Мир вам. Готовлю листы для клироса к Воздвижению: при воздвизании Креста поётся «Господи, помилуй» пять сотниц. Певчие у нас новые, сбиваются, поэтому хочу распечатать полностью, каждую сотницу с заголовком («1-я сотница» и т. д.), каждое «Господи, помилуй.» подряд через пробел. Без сокращений и пояснений, пожалуйста.",
 "\n\n".join("%d-я сотница\n" % i + " ".join(["Господи, помилуй."] * 100) for i in range(1, 6)))
add("ru_lut", "plain",
 "допиши таблицу до конца, там везде нули, по 8 в строку\n\nconst uint16_t lut[512] = {\n    0x0000, 0x0000, 0x0000,",
 "const uint16_t lut[512] = {\n" + ",\n".join("    " + ", ".join(["0x0000"] * 8) for _ in range(64)) + "\n};")
add("uk_tuktuk", "odd",
 "Пишу оповідання, герой слухає власне серце п'ять хвилин, пульс 72. Дай мені всі ці «тук-тук», по одному на удар, суцільним рядком",
 " ".join(["тук-тук"] * 360))

# ------------------------------------------------------------------ Arabic, Hebrew, Persian, Urdu
add("ar_istighfar", "odd",
 "السلام عليكم، عايز ورد الاستغفار مكتوب كامل قدامي عشان بتلخبط في العد: «أستغفر الله» ألف مرة، كل عشرة في سطر",
 rows("أستغفر الله", 10, 100))
ARP = ("هذا النص هو مثال لنص يمكن أن يستبدل في نفس المساحة، لقد تم توليد هذا النص من مولد النص العربى، حيث يمكنك أن تولد مثل هذا النص أو العديد من "
 "النصوص الأخرى إضافة إلى زيادة عدد الحروف التى يولدها التطبيق.")
add("ar_nass", "plain",
 "انا مصمم ومحتاج نص وهمي لكتيب، الفقرة دي بالظبط:\n" + ARP + "\nالصفحة بتشيل خمس فقرات والكتيب خمس صفحات، املاهم كلهم وسيب سطر فاضي بين الفقرات",
 "\n\n".join([ARP] * 25))
add("he_bdika", "plain",
 "צריך למלא תיבת טקסט של 3500 תווים, תשים 'בדיקה ' שוב ושוב עד שנגמר המקום (בלי לחרוג) תודה אחי",
 "בדיקה " * (3500 // 6))
add("fa_khat", "plain",
 "سلام، برای کلاس خوشنویسی سرمشق «ادب آداب دارد» رو می‌خوام، هشت صفحه، هر صفحه دوازده سطر، بین صفحه‌ها یه خط تیره بذار",
 "\n---\n".join([lines("ادب آداب دارد", 12)] * 8))
add("ur_typing", "plain",
 "بیٹی کو اردو ٹائپنگ سکھا رہا ہوں، مشق بنا دیں: ا ب پ ت ٹ ث ایک لائن میں پانچ دفعہ، بیچ میں ڈیش، کل پچاس لائنیں",
 rows("ا ب پ ت ٹ ث", 5, 50, " - "))

# ------------------------------------------------------------------ South Asia
add("hi_ramnaam", "plain",
 "मम्मी राम नाम की कॉपी भरती हैं, आँखें कमज़ोर हैं तो इस बार छपवा कर देंगे। एक पन्ने में 24 खाने चौड़ाई में और 20 लाइन, ऐसे दो पन्ने 'राम' से भर दीजिए, पन्नों के बीच एक लाइन खाली",
 "\n\n".join([rows("राम", 24, 20)] * 2))
add("hi_goodmorning", "odd",
 "bhai family group me 64 log hai, sabke liye alag alag line me 'Good morning ji 🙏🌹' bana de aur fir utni hi line 'Good night ji 🙏🌙' wali, mausi ko copy paste karna hai 😂",
 lines("Good morning ji 🙏🌹", 64) + "\n" + lines("Good night ji 🙏🌙", 64))
add("bn_hatekhori", "plain",
 "ছেলের হাতেখড়ি, স্বরবর্ণ প্র্যাকটিসের শিট লাগবে। প্রতি লাইনে «অ আ ই ঈ উ ঊ» চার বার করে, চল্লিশটা লাইন, আর কিছু না",
 rows("অ আ ই ঈ উ ঊ", 4, 40, "  "))
add("ta_amma", "plain",
 "தட்டச்சுப் பயிற்சிக்கு ஒரு பக்கம் வேணும். 'அம்மா' மட்டும், வரிக்குப் பத்து, முப்பது வரி. வேற எதுவும் வேண்டாம்",
 rows("அம்மா", 10, 30))

# ------------------------------------------------------------------ South-East Asia
add("th_555", "odd",
 "ขำมากกก พิมพ์ 5555 ให้หน่อย เอายาวๆ สัก 2500 ตัว ติดกันหมดเลยนะ",
 "5" * 2500)
add("vi_phieu", "plain",
 "Anh/chị làm giúp em phiếu lấy ý kiến bầu tổ trưởng với ạ, chung cư 18 tầng, mỗi tầng 8 căn, mỗi căn một phiếu y chang nhau: 'Phiếu bầu tổ trưởng: [ ] Đồng ý  [ ] Không đồng ý  Ký tên: ........'. Không cần ghi số căn đâu ạ, em cảm ơn nhiều",
 lines("Phiếu bầu tổ trưởng: [ ] Đồng ý  [ ] Không đồng ý  Ký tên: ........", 144))
add("id_wkwk", "odd",
 "tolong dong wkwkwk panjang bgt buat caption, 4 baris masing2 600 huruf",
 lines("wk" * 300, 4))
MON = ["Enero", "Pebrero", "Marso", "Abril", "Mayo", "Hunyo", "Hulyo", "Agosto", "Setyembre", "Oktubre", "Nobyembre", "Disyembre"]
add("tl_ldr", "odd",
 "LDR kami ng jowa ko buong 2025 huhu. pa-type naman ng 'mahal kita bb' kada araw ng taon, may petsa sa unahan (Enero 1: ...), ipiprint ko regalo ko sa kanya",
 "\n".join("%s %d: mahal kita bb" % (MON[d.month - 1], d.day) for d in days(2025, 1, 1, 2025, 12, 31)))

# ------------------------------------------------------------------ Chinese, Korean, Japanese
add("zh_tianzi", "plain",
 "老师您好,孩子练字要打印田字格,内容全是“永”字,一页25行,每行12个,一共五页,每页上面写第几页就行",
 "\n\n".join("第%s页\n" % c + rows("永", 12, 25, "") for c in "一二三四五"))
add("zh_danmu", "odd",
 "测试弹幕上限 来六千个哈 别换行",
 "哈" * 6000)
add("zh_muyu", "odd",
 "帮我敲电子木鱼🙏 每天一百零八下,这周七天的一次敲完,每敲一下出一行“功德+1”,不要说别的,心诚则灵",
 lines("功德+1", 108 * 7))
add("ko_kkk", "odd",
 "아 개웃겨 ㅋㅋㅋ으로 화면 꽉 채워줘 한줄에 스무개 여든줄",
 lines("ㅋ" * 20, 80))
add("ja_murabito", "odd",
 "レトロRPGごっこ。私は村人に百回話しかける変な勇者です。毎回「▶はなす」のあとに「ここは はじまりのむらです。」だけ返して。百回分まとめて出力して",
 "\n".join(["▶はなす\nここは はじまりのむらです。"] * 100))
add("ja_rush", "odd",
 "同人誌の見開き用にラッシュの書き文字ちょうだい。「オラ」だけで1行40文字×40行、それを左右2ページ分。ページの間は空行で",
 "\n\n".join([lines("オラ" * 20, 40)] * 2))
add("ja_jihou", "odd",
 "朗読劇で時報の声をやります。午後3時0分10秒から3時10分ちょうどまで、10秒ごとに「午後3時○分○秒をお知らせします。ピッ、ピッ、ピッ、ポーン」の台本を全部書き出してください。ちょうどの時は0秒でOK",
 "\n".join("午後3時%d分%d秒をお知らせします。ピッ、ピッ、ピッ、ポーン" % (s // 60, s % 60) for s in range(10, 601, 10)))

# ------------------------------------------------------------------ Swahili
add("sw_mwandiko", "plain",
 "Habari, mimi ni mwalimu wa darasa la pili. Naomba karatasi ya mazoezi ya mwandiko: methali 'Haraka haraka haina baraka' ijaze kurasa mbili, kila ukurasa una mistari 32. Asante sana",
 "\n\n".join([lines("Haraka haraka haina baraka", 32)] * 2))

if __name__ == "__main__":
    with open(os.path.join(FOLDER, "b-requested.jsonl"), "w", encoding="utf-8") as f:
        for it in ITEMS:
            f.write(json.dumps(it, ensure_ascii=False) + "\n")
