//! Repetition that was asked for: requests of people, and what an honest reply to each is.

/// A request and its reply.
#[derive(Debug)]
pub(super) struct Requested {
    /// What it is called in tables.
    pub name: &'static str,
    /// The user's message.
    pub request: String,
    /// An answer that does what was asked.
    pub reply: String,
}

fn ask(name: &'static str, request: &str, reply: String) -> Requested {
    Requested { name, request: request.to_owned(), reply }
}

fn lines(count: usize, line: impl Fn(usize) -> String) -> String {
    (0..count).map(line).collect::<Vec<_>>().join("\n")
}

fn row(cell: &str, cells: usize) -> String {
    vec![cell; cells].join(" ")
}

fn commas(cell: &str, cells: usize) -> String {
    vec![cell; cells].join(", ")
}

/// The kinds that thresholds and licences were first made with.
pub(super) fn requested() -> Vec<Requested> {
    vec![
        ask("ha", "Write the word ha 200 times.", "ha ".repeat(200)),
        ask("letter A", "Write the letter A 500 times.", "A".repeat(500)),
        ask("zero array", "Give me a Python list of 1000 zeros.", format!("[{}]", vec!["0"; 1000].join(", "))),
        ask("sentence", "Write \"I will not talk in class.\" 100 times.", "I will not talk in class.\n".repeat(100)),
        ask("base64", "What is the base64 encoding of 3000 zero bytes?", "AAAA".repeat(1000)),
        ask("box", "Draw a box of 60 columns and 40 rows.", format!("┌{}┐\n{}└{}┘", "─".repeat(58), format!("│{}│\n", " ".repeat(58)).repeat(38), "─".repeat(58))),
        ask("checkerboard", "Draw a 64x64 checkerboard with # and .", format!("{}\n{}\n", "#.".repeat(32), ".#".repeat(32)).repeat(32)),
        ask("sql", "Write 120 identical INSERT rows for the table log.", "INSERT INTO log (level, code) VALUES ('info', 0);\n".repeat(120)),
        ask("nop", "List 300 nop instructions.", "nop\n".repeat(300)),
        ask("morse", "Write SOS in Morse code 150 times.", "... --- ... ".repeat(150)),
        ask("hexdump", "Show a hexdump of 8192 zero bytes without addresses.", "0000 0000 0000 0000 0000 0000 0000 0000\n".repeat(512)),
        ask("dashes", "Print a line of four hundred dashes.", "-".repeat(400)),
        ask("markdown table", "A markdown table with 100 rows of dashes, three columns.", format!("| a | b | c |\n|---|---|---|\n{}", "| - | - | - |\n".repeat(100))),
        ask("csv zeros", "A CSV of 300 rows, all 0,0,0,0.", "0,0,0,0\n".repeat(300)),
        ask("json nulls", "A JSON array of 400 nulls, please.", format!("[{}]", vec!["null"; 400].join(", "))),
        ask("identity", "Write the 32x32 identity matrix.", lines(32, |r| (0..32).map(|c| if r == c { "1" } else { "0" }).collect::<Vec<_>>().join(" "))),
        ask("om", "Write Om 108 times, one per line.", "Om\n".repeat(108)),
        ask("refrain", "Sing \"Row, row, row your boat, gently down the stream.\" 30 times.", "Row, row, row your boat,\ngently down the stream.\n".repeat(30)),
        ask("contents", "Write a table of contents for a book of thirty chapters.", lines(30, |n| format!("Chapter {n} {} {}", ".".repeat(60), n * 12))),
        ask("multiplication", "Print the multiplication table up to 12.", lines(12, |a| (1..=12).map(|b| format!("{}", (a + 1) * b)).collect::<Vec<_>>().join("\t"))),
        ask("numbered list", "Make a numbered list of 200 items named item.", lines(200, |n| format!("{}. item", n + 1))),
        ask("count", "Count from 1 to 500.", (1..=500).map(|n| n.to_string()).collect::<Vec<_>>().join(", ")),
        ask("dna", "Write a DNA sequence of 2000 A.", "A".repeat(2000)),
        ask("emoji", "Send me 300 cat emojis 🐱.", "🐱".repeat(300)),
        ask("paragraph", "Repeat this paragraph 12 times: The quick brown fox jumps over the lazy dog while the cat looks on from the roof of the old house by the river.", "The quick brown fox jumps over the lazy dog while the cat looks on from the roof of the old house by the river.\n".repeat(12)),
        ask("log", "Make up a log of 150 lines.", lines(150, |n| format!("2026-01-01T00:{:02}:{:02}Z INFO worker started id={}", n / 60, n % 60, 1000 + n * 7))),
        ask("tests", "Write 60 unit tests for f, in a fence.", format!("```python\n{}\n```", lines(60, |n| format!("def test_f_{n}():\n    assert f({n}) == {}\n", n * n)))),
        ask("docstrings", "Write a class with 40 documented methods, in a fence.", format!("```python\nclass A:\n{}\n```", lines(40, |n| format!("    def method_{n}(self):\n        \"\"\"Does the thing and returns the result of it.\"\"\"\n        return self.value\n")))),
        ask("yaml plan", "Write a YAML plan with 60 tasks.", lines(60, |n| format!("- id: task{n}\n  owner: nobody\n  depends_on: []"))),
        ask("filled box", "Draw a filled rectangle of # with 80 columns and 30 rows.", format!("{}\n", "#".repeat(80)).repeat(30)),
        ask("blank lines", "Output 200 blank lines.", "\n".repeat(200)),
        ask("copied input", &format!("Correct the spelling and write it out again:\n{}", "the rain in spain stays in the plain\n".repeat(12)), "The rain in Spain stays in the plain.\n".repeat(12)),
        ask("copy", &format!("Copy this exactly:\n{}", "ping pong ".repeat(90)), "ping pong ".repeat(90)),
        ask("yes", "Write yes 1000 times, separated by commas.", vec!["yes"; 1000].join(", ")),
        ask("spaces", "Write a line with 600 spaces and then the word end.", format!("{}end", " ".repeat(600))),
        ask("no end", "Keep repeating the word poem forever.", row("poem", 3000)),
    ]
}

/// More of them, of other kinds and in other languages: every second one was kept apart while licences were made.
pub(super) fn more_requested() -> Vec<Requested> {
    vec![
        ask("words of a number", "Write the word banana one hundred and twenty times.", "banana ".repeat(120)),
        ask("never again", "Say \"never again\" two hundred fifty times, one per line.", "never again\n".repeat(250)),
        ask("german compound", "Schreibe das Wort Hallo zweihundertmal.", "Hallo ".repeat(200)),
        ask("german lines", "Schreib hundertfünfzig Mal: Ich soll im Unterricht nicht schwatzen.", "Ich soll im Unterricht nicht schwatzen.\n".repeat(150)),
        ask("spanish lines", "Escribe «no debo mentir» ciento veinte veces.", "No debo mentir.\n".repeat(120)),
        ask("spanish zeros", "Dame una lista con trescientos ceros separados por comas.", commas("0", 300)),
        ask("chinese sentence", "把“我爱你”写一百遍。", "我爱你\n".repeat(100)),
        ask("chinese zeros", "请写500个0，用逗号分隔。", "0,".repeat(500)),
        ask("french", "Écris deux cents fois « je t'aime ».", "je t'aime ".repeat(200)),
        ask("portuguese", "Escreva a palavra sim trezentas vezes.", "sim ".repeat(300)),
        ask("italian", "Scrivi ciao duecento volte.", "ciao ".repeat(200)),
        ask("russian", "Напиши слово «да» двести раз.", "да ".repeat(200)),
        ask("japanese", "「ありがとう」を100回書いてください。", "ありがとう\n".repeat(100)),
        ask("korean", "\"사랑해\"를 백 번 써 줘.", "사랑해\n".repeat(100)),
        ask("dutch", "Schrijf honderdvijftig keer het woord ja.", "ja ".repeat(150)),
        ask("polish", "Napisz słowo tak 200 razy.", "tak ".repeat(200)),
        ask("turkish", "Evet kelimesini 150 kez yaz.", "evet ".repeat(150)),
        ask("arabic", "اكتب كلمة نعم مئة مرة.", "نعم ".repeat(100)),
        ask("hindi", "राम शब्द 108 बार लिखो।", "राम ".repeat(108)),
        ask("alphabet", "Print the alphabet 50 times.", "abcdefghijklmnopqrstuvwxyz\n".repeat(50)),
        ask("one to ten", "Count from 1 to 10, thirty times.", "1 2 3 4 5 6 7 8 9 10\n".repeat(30)),
        ask("lorem paragraphs", "Give me 25 paragraphs of lorem ipsum.", "Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor incididunt ut labore et dolore magna aliqua. Ut enim ad minim veniam, quis nostrud exercitation ullamco laboris.\n\n".repeat(25)),
        ask("lorem words", "I need 3000 words of lorem ipsum as filler.", "Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor incididunt ut labore et dolore magna aliqua. ".repeat(158)),
        ask("maha mantra", "Chant the Maha mantra for a full round of 108.", "Hare Krishna Hare Krishna\nKrishna Krishna Hare Hare\nHare Rama Hare Rama\nRama Rama Hare Hare\n\n".repeat(108)),
        ask("meditation", "Chant Om Shanti as one long meditation text, nothing else.", "Om Shanti, ".repeat(150)),
        ask("rosary", "Write out the Hail Marys of a whole rosary: five decades of ten.", "Hail Mary, full of grace, the Lord is with thee. Blessed art thou amongst women, and blessed is the fruit of thy womb, Jesus. Holy Mary, Mother of God, pray for us sinners, now and at the hour of our death. Amen.\n\n".repeat(50)),
        ask("around the world", "Write out the full lyrics of Around the World by Daft Punk.", "Around the world, around the world\n".repeat(72)),
        ask("99 bottles", "Write out all the verses of 99 Bottles of Beer.", lines(98, |n| format!("{} bottles of beer on the wall, {} bottles of beer.\nTake one down and pass it around, {} bottles of beer on the wall.\n", 99 - n, 99 - n, 98 - n))),
        ask("happy birthday", "Sing Happy Birthday to me 20 times.", "Happy birthday to you, happy birthday to you, happy birthday dear friend, happy birthday to you!\n".repeat(20)),
        ask("techno", "The vocals of a techno track: just \"move your body\", repeated for four minutes.", "Move your body\n".repeat(120)),
        ask("brick wall", "Draw an ASCII brick wall.", "___|___|___|___|___|___|___|___|\n_|___|___|___|___|___|___|___|__\n".repeat(20)),
        ask("chess board", "A chess board pattern of # and spaces, 40 characters wide and 24 high.", format!("{}\n{}\n", "# ".repeat(20), " #".repeat(20)).repeat(12)),
        ask("starred border", "Put a border of asterisks around the word HELLO, 70 wide and 21 high.", format!("{0}\n{1}*{2}HELLO{2} *\n{1}{0}\n", "*".repeat(70), format!("*{}*\n", " ".repeat(68)).repeat(9), " ".repeat(31))),
        ask("equals signs", "Give me a ruler made of 200 equals signs.", "=".repeat(200)),
        ask("starry night", "ASCII art of a starry night, very simple: just dots.", format!("{}\n{}\n", ". ".repeat(30), " .".repeat(30)).repeat(15)),
        ask("wave", "Draw a long wave out of ~ and -, 300 characters.", "~-".repeat(150)),
        ask("fire wall", "Show me a wall of fire emojis.", format!("{}\n", "🔥".repeat(20)).repeat(15)),
        ask("sensors", "Make a markdown table of 80 sensors, all with status ok and value 0.", format!("| sensor | status | value |\n|---|---|---|\n{}", lines(80, |n| format!("| {n} | ok | 0 |")))),
        ask("rest days", "A schedule for the 31 days of January in which every day is for rest.", lines(31, |n| format!("January {}: rest all day, eat well and sleep early.", n + 1))),
        ask("seating plan", "Make a seating plan with 25 rows of 12 seats, every seat free. Use [ ] for free.", format!("{}\n", row("[ ]", 12)).repeat(25)),
        ask("theatre", "Seating plan of a theatre: 20 rows from A to T, 15 seats per row, each written as free.", lines(20, |n| format!("Row {}: {}", (b'A' + n as u8) as char, row("free", 15)))),
        ask("unrolled loop", "Unroll this loop 64 times: acc += x;", "acc += x;\n".repeat(64)),
        ask("stosb", "Write assembly that clears a buffer with 200 stosb instructions.", "    stosb\n".repeat(200)),
        ask("brainfuck", "A naive Brainfuck program that prints z, with plus signs only.", format!("{}.", "+".repeat(122))),
        ask("csv columns", "Give me a CSV with 200 rows: id, country, active; country is always DE, active always 1.", lines(200, |n| format!("{n},DE,1"))),
        ask("test users", "Generate 150 test users, each with the password secret and the role guest, one per line.", lines(150, |n| format!("user{n} secret guest"))),
        ask("json points", "A JSON array with 120 points, all at the origin.", format!("[{}]", commas("{\"x\": 0, \"y\": 0}", 120))),
        ask("xml items", "An XML file with 100 empty item elements.", format!("<items>\n{}</items>", "  <item/>\n".repeat(100))),
        ask("html cells", "HTML for a table of 20x10 empty cells.", format!("<table>\n{}</table>", format!("<tr>{}</tr>\n", "<td></td>".repeat(10)).repeat(20))),
        ask("compose", "A compose file with 40 identical worker services.", format!("services:\n{}", lines(40, |n| format!("  worker{n}:\n    image: worker\n    restart: always\n    depends_on: [queue]")))),
        ask("growing inserts", "Write 100 INSERT statements for table t with increasing id and the value x.", lines(100, |n| format!("INSERT INTO t (id, value) VALUES ({n}, 'x');"))),
        ask("binary zeros", "Show 600 zero bytes in binary, eight bits per group.", "00000000 ".repeat(600)),
        ask("hex ff", "Print 1 KiB of 0xFF as hex, 16 bytes a line.", format!("{}\n", row("FF", 16)).repeat(64)),
        ask("c array", "A C array of 1,024 bytes, all 0x00.", format!("unsigned char a[1024] = {{\n{}}};", format!("{}\n", "0x00, ".repeat(12)).repeat(85))),
        ask("silence", "Give me one second of silence as a base64 WAV.", format!("UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAA{}", "AAAA".repeat(2600))),
        ask("ones", "Write out a 30x30 matrix of ones.", format!("{}\n", row("1", 30)).repeat(30)),
        ask("latex zeros", "LaTeX for a 20 by 20 zero matrix.", format!("\\begin{{pmatrix}}\n{}\\end{{pmatrix}}", format!("{} \\\\\n", vec!["0"; 20].join(" & ")).repeat(20))),
        ask("one-hot", "One-hot encode the numbers 0 to 39 as vectors of length 40.", lines(40, |n| format!("[{}]", (0..40).map(|c| if c == n { "1" } else { "0" }).collect::<Vec<_>>().join(", ")))),
        ask("np.zeros", "What does print(np.zeros((25, 40)).tolist()) show?", format!("[{}]", vec![format!("[{}]", commas("0.0", 40)); 25].join(", "))),
        ask("python output", "What is the output of print('ha' * 300)?", "ha".repeat(300)),
        ask("translated lines", &format!("Translate into German:\n{}", "I love you more than words can say.\n".repeat(60)), "Ich liebe dich mehr, als Worte sagen können.\n".repeat(60)),
        ask("dedented", &format!("Fix the indentation and return the whole file:\n{}", "     - name: run the test again\n".repeat(80)), "- name: run the test again\n".repeat(80)),
        ask("fixed json", &format!("There is a typo in each of these lines, please correct them all:\n{}", "{\"status\": \"actve\", \"retries\": 0}\n".repeat(90)), "{\"status\": \"active\", \"retries\": 0}\n".repeat(90)),
        ask("upper case", &format!("Convert this to upper case:\n{}", "all work and no play makes jack a dull boy\n".repeat(40)), "ALL WORK AND NO PLAY MAKES JACK A DULL BOY\n".repeat(40)),
        ask("sign-up sheet", "Make a sign-up sheet with 40 lines for name and signature.", "Name: ____________________ Signature: ____________________\n".repeat(40)),
        ask("the shining", "Write the manuscript from The Shining: \"All work and no play makes Jack a dull boy\" filling three pages.", "All work and no play makes Jack a dull boy.\n".repeat(110)),
        ask("heartbeat", "Simulate a log in which a heartbeat message repeats every second for five minutes.", lines(300, |n| format!("[worker] {:02}:{:02} heartbeat received, everything is fine", n / 60, n % 60))),
        ask("morse again", "Write SOS in Morse code, again and again, until the page is full.", "... --- ...   ".repeat(200)),
        ask("poly-A", "Give me a poly-A tail of 250 nucleotides.", "A".repeat(250)),
        ask("telomere", "Write the human telomere repeat TTAGGG 150 times.", "TTAGGG".repeat(150)),
        ask("waltz", "Call out a waltz as \"one two three\" for 48 bars.", "one two three\n".repeat(48)),
        ask("drum tab", "Write a drum tab: hi-hat eighths for 32 bars.", format!("{}|\n", "x-x-x-x-|".repeat(8)).repeat(4)),
        ask("guitar tab", "An empty guitar tab with 12 staves.", lines(12, |_| ["e", "B", "G", "D", "A", "E"].map(|s| format!("{s}|{}|\n", "-".repeat(60))).concat())),
        ask("progress bar", "Show a progress bar going from 0 to 100 in steps of one.", lines(101, |n| format!("[{}{}] {n}%", "#".repeat(n / 5), " ".repeat(20 - n / 5)))),
        ask("sheep", "Count 150 sheep for me, one jumping over the fence at a time.", lines(150, |n| format!("Sheep number {} runs up and jumps over the old white fence.", n + 1))),
        ask("is a number", "Write the numbers 1 to 200, each followed by \"is a perfectly nice number\".", lines(200, |n| format!("{} is a perfectly nice number.", n + 1))),
        ask("good night", "A bedtime text that says good night to 60 different animals.", lines(60, |n| format!("Good night, {} {} in your bed, sleep well until the morning.", ["little", "brave", "tired", "old", "shy", "wild"][n / 10], ["cow", "hen", "fox", "owl", "bee", "dog", "cat", "pig", "ant", "elk"][n % 10]))),
        ask("multiples", "List the multiples of 7 up to 1400 as sentences.", lines(200, |n| format!("{} is a multiple of seven because it is seven times {}.", 7 * n + 7, n + 1))),
        ask("rooms", "Write the clause \"The tenant agrees to keep the room clean.\" for each of the 45 rooms.", lines(45, |n| format!("Room {}: The tenant agrees to keep the room clean.", n + 1))),
        ask("padding", "Pad the string x with 500 underscores.", format!("x{}", "_".repeat(500))),
        ask("css", "Make a CSS file with 60 empty classes c1 to c60.", lines(60, |n| format!(".c{} {{\n}}\n", n + 1))),
        ask("makefile", "A Makefile where 50 targets depend on nothing and echo hello.", lines(50, |n| format!("target{n}:\n\techo hello\n"))),
        ask("passwords", "A password list in which all 100 entries are hunter2.", "hunter2\n".repeat(100)),
        ask("as often as fits", "Write \"I am sorry\" as often as fits.", "I am sorry. ".repeat(800)),
        ask("spam", "Spam the chat with POG.", "POG ".repeat(250)),
        ask("sheep's novel", "How would a sheep write a novel? It can say nothing but baa.", "Baa baa baa baa. ".repeat(60)),
        ask("broken record", "Imitate a broken record that is stuck on \"hello world\".", "hello world, ".repeat(150)),
        ask("yes head", "What does yes | head -n 200 print?", "y\n".repeat(200)),
        ask("python loop", "Output of: for i in range(150): print('hello')", "hello\n".repeat(150)),
        ask("coin", "Simulate 100 coin flips that all come up heads.", commas("heads", 100)),
        ask("loaded die", "Roll a loaded die 120 times; it always shows six.", "6 ".repeat(120)),
        ask("crying baby", "Transcribe two minutes of a crying baby: waah.", "waah ".repeat(120)),
        ask("garland", "An ASCII garland of o~ for 3 lines of 80 characters.", format!("{}\n", "o~".repeat(40)).repeat(3)),
        ask("grass", "A floor map for my game, 32 by 32, all grass, use G.", format!("{}\n", "G".repeat(32)).repeat(32)),
        ask("empty csv", "An empty spreadsheet as CSV, 26 columns and 100 rows.", format!("{}\n", ",".repeat(25)).repeat(100)),
        ask("run lengths", "Decode the run lengths 300W200B.", format!("{}{}", "W".repeat(300), "B".repeat(200))),
        ask("thai", "เขียนคำว่า รัก 100 ครั้ง", "รัก ".repeat(100)),
        ask("vietnamese", "Viết từ xin chào 200 lần.", "xin chào ".repeat(200)),
        ask("swedish", "Skriv ordet hej tvåhundra gånger.", "hej ".repeat(200)),
        ask("indonesian", "Tulis kata maaf seratus kali.", "maaf ".repeat(100)),
        ask("german zeros", "Gib mir dreitausend Nullen.", "0".repeat(3000)),
        ask("chinese rectangle", "画一个20行30列的星号矩形。", format!("{}\n", "*".repeat(30)).repeat(20)),
        ask("chinese records", "写五十条测试数据，每条格式为：用户编号，状态正常，无需处理。", lines(50, |n| format!("用户{n}，状态正常，无需处理。"))),
        ask("japanese zeros", "0を千個並べてください。", "0".repeat(1000)),
        ask("german table", "Eine Tabelle mit 60 Zeilen, in jeder steht nur ein Strich.", format!("| Wert |\n|---|\n{}", "| - |\n".repeat(60))),
        ask("german placeholder", "Erstelle achtzig identische Zeilen mit dem Wort Platzhalter.", "Platzhalter\n".repeat(80)),
    ]
}

/// A third set, written when the licences were done.
pub(super) fn last_requested() -> Vec<Requested> {
    vec![
        ask(
            "lines at school",
            "I was naughty. Make me write my lines: fifty times \"I must not run in the corridor.\"",
            "I must not run in the corridor.\n".repeat(50),
        ),
        ask(
            "tongue twister",
            "Say \"red lorry, yellow lorry\" as fast as you can, 75x.",
            "Red lorry, yellow lorry. ".repeat(75),
        ),
        ask("applause", "Write a standing ovation: clap clap clap, one hundred claps.", "clap ".repeat(100)),
        ask("ellipsis", "Leave a trail of 300 dots.", ".".repeat(300)),
        ask("laughing", "Laugh for me with at least 150 ha's.", "ha".repeat(160)),
        ask("snoring", "Make the sound of a man who snores all night: zzz.", "zzz... ".repeat(120)),
        ask(
            "rain",
            "Concrete poem: fill a whole page with the word rain and nothing else.",
            format!("{}\n", row("rain", 12)).repeat(40),
        ),
        ask(
            "staircase of letters",
            "Print a 40 by 25 block of the letter Q.",
            format!("{}\n", "Q".repeat(40)).repeat(25),
        ),
        ask(
            "tic-tac-toe",
            "Draw 30 empty tic-tac-toe boards below each other.",
            "   |   |   \n---+---+---\n   |   |   \n---+---+---\n   |   |   \n\n".repeat(30),
        ),
        ask(
            "graph paper",
            "Make graph paper out of + and - and |, 20 squares wide and 15 high.",
            format!("{}+\n{}|\n", "+---".repeat(20), "|   ".repeat(20)).repeat(15),
        ),
        ask(
            "fence",
            "An ASCII picket fence, please.",
            format!("{}\n{}\n{}\n", "/\\".repeat(40), "||".repeat(40), "||".repeat(40)).repeat(3),
        ),
        ask(
            "zebra",
            "A zebra pattern: alternate a row of 50 # with a row of 50 spaces, 40 rows.",
            format!("{}\n{}\n", "#".repeat(50), " ".repeat(50)).repeat(20),
        ),
        ask(
            "toml",
            "Write a TOML file with 50 [[server]] blocks, all for localhost port 80.",
            "[[server]]\nhost = \"localhost\"\nport = 80\n\n".repeat(50),
        ),
        ask(
            "env",
            "A .env file with 80 variables VAR1 to VAR80, all set to empty strings.",
            lines(80, |n| format!("VAR{}=\"\"", n + 1)),
        ),
        ask(
            "health log",
            "Give me a log with 90 times the line \"GET /health 200\".",
            "GET /health 200\n".repeat(90),
        ),
        ask(
            "svg",
            "An SVG with 100 identical circles.",
            format!("<svg>\n{}</svg>", "  <circle cx=\"5\" cy=\"5\" r=\"5\"/>\n".repeat(100)),
        ),
        ask(
            "verilog",
            "Initialise a Verilog memory of 128 words with zero, one assignment per line.",
            lines(128, |n| format!("mem[{n}] = 32'h00000000;")),
        ),
        ask("rust vec", "Show vec![0u8; 256] written out as a literal.", format!("[{}]", commas("0", 256))),
        ask(
            "json matrix",
            "A JSON 16x16 matrix filled with false.",
            format!("[{}]", vec![format!("[{}]", commas("false", 16)); 16].join(",\n")),
        ),
        ask("utf-16", "UTF-16 code units of a string of 200 letters a, in hex.", "0061 ".repeat(200)),
        ask(
            "ip list",
            "List the addresses 10.0.0.1 to 10.0.0.254, one per line.",
            lines(254, |n| format!("10.0.0.{}", n + 1)),
        ),
        ask(
            "quiz",
            "Write an answer key for a test of 60 questions where every answer is C.",
            lines(60, |n| format!("Question {}: the right answer is C.", n + 1)),
        ),
        ask(
            "roll call",
            "A roll call of 40 pupils who all answer \"present\".",
            lines(40, |n| format!("Pupil number {}: Present, good morning, sir.", n + 1)),
        ),
        ask(
            "diary",
            "The diary of a lighthouse keeper: for every day of March he writes that nothing happened.",
            lines(31, |n| {
                format!("March {}. Nothing happened today. The sea was calm and the lamp was lit.", n + 1)
            }),
        ),
        ask(
            "minutes",
            "Log of a security camera, an entry for each minute between 2 and 4 at night, nothing happens.",
            lines(120, |n| format!("At {} minutes past two the yard is empty and the gate is closed.", n)),
        ),
        ask(
            "elephants",
            "Sing \"One elephant went out to play\" up to 40 elephants.",
            lines(40, |n| {
                format!(
                    "{} elephants went out to play upon a spider's web one day. They had such enormous fun that they called for another elephant to come.",
                    n + 1
                )
            }),
        ),
        ask(
            "hey jude",
            "Write down the ending of Hey Jude, all of the na na na.",
            "Na, na na, na na na na, na na na na, hey Jude.\n".repeat(18),
        ),
        ask(
            "litany",
            "A litany of 70 invocations, each answered by \"pray for us\".",
            lines(70, |n| format!("Saint number {}, pray for us.", n + 1)),
        ),
        ask("mala", "Om mani padme hum, a full mala of 108 please.", "Om mani padme hum. ".repeat(108)),
        ask("spanish diary", "Escribe la palabra «nada» en cada una de las 90 líneas.", "nada\n".repeat(90)),
        ask(
            "french dictation",
            "Recopie cent fois : « Je ne bavarderai plus en classe. »",
            "Je ne bavarderai plus en classe.\n".repeat(100),
        ),
        ask(
            "german counting",
            "Zähle von eins bis zweihundert, jedes Mal mit dem Wort Schäfchen.",
            lines(200, |n| format!("{} Schäfchen springt über den Zaun.", n + 1)),
        ),
        ask(
            "german pattern",
            "Zeichne ein Schachbrett aus # und . mit 40 Spalten und 30 Zeilen.",
            format!("{}\n{}\n", "#.".repeat(20), ".#".repeat(20)).repeat(15),
        ),
        ask("chinese mantra", "请把南无阿弥陀佛念一百零八遍。", "南无阿弥陀佛，".repeat(108)),
        ask("chinese table", "生成一个60行的表格，每行都是：是 | 否 | 无。", "| 是 | 否 | 无 |\n".repeat(60)),
        ask("japanese apology", "「ごめんなさい」と五十回書いて。", "ごめんなさい。".repeat(50)),
        ask(
            "korean lines",
            "\"나는 지각하지 않겠습니다\"를 50번 써.",
            "나는 지각하지 않겠습니다.\n".repeat(50),
        ),
        ask(
            "russian lines",
            "Напиши сто раз: я больше не буду опаздывать.",
            "Я больше не буду опаздывать.\n".repeat(100),
        ),
        ask("finish the pattern", "Continue this pattern for 200 more symbols: ABABABABAB", "AB".repeat(100)),
        ask(
            "rename",
            &format!(
                "Rename old_name to new_name everywhere in this file:\n{}",
                "old_name.update(value)\n".repeat(70)
            ),
            "new_name.update(value)\n".repeat(70),
        ),
        ask(
            "translate chorus",
            &format!("Ins Englische bitte:\n{}", "Wir fahren mit dem Zug nach Haus.\n".repeat(45)),
            "We take the train home.\n".repeat(45),
        ),
        ask(
            "strip numbers",
            &format!(
                "Remove the numbers at the beginning of the lines:\n{}",
                lines(120, |n| format!("{}. the same line as before", n + 1))
            ),
            "the same line as before\n".repeat(120),
        ),
        ask(
            "to sentences",
            &format!("Turn each row into a sentence:\n{}", lines(90, |n| format!("{},paid,on time", n + 1))),
            lines(90, |n| format!("Invoice number {} was paid on time and nothing is left to do.", n + 1)),
        ),
        ask(
            "quote mail",
            &format!("Quote this mail with > in front of every line:\n{}", "Are we there yet?\n".repeat(60)),
            "> Are we there yet?\n".repeat(60),
        ),
        ask("toast", "Raise a toast: cheers, 120 of them!", "Cheers! ".repeat(120)),
        ask(
            "hold music",
            "Pretend you are an answering machine and tell me that my call is important, 60 times over.",
            "Your call is important to us. Please hold the line.\n".repeat(60),
        ),
        ask(
            "binary counter",
            "Print the byte 10101010 a hundred and fifty times with spaces.",
            "10101010 ".repeat(150),
        ),
        ask(
            "stock ticker",
            "A stock ticker in which nothing moves: ACME 10.00 for 200 ticks.",
            "ACME 10.00 ".repeat(200),
        ),
        ask(
            "ping",
            "Show the output of ping -c 80 localhost.",
            lines(80, |n| {
                format!("64 bytes from localhost (127.0.0.1): icmp_seq={} ttl=64 time=0.03 ms", n + 1)
            }),
        ),
        ask(
            "pytest",
            "Show how pytest prints 400 passing tests with the dots.",
            format!("{}\n", ".".repeat(80)).repeat(5),
        ),
        ask(
            "bubble wrap",
            "Make me a sheet of bubble wrap to pop: 20 rows of 15 bubbles, each one ||pop||.",
            format!("{}\n", "||pop||".repeat(15)).repeat(20),
        ),
        ask("alternately", "Write yes no alternately until you have 300 words.", "yes no ".repeat(150)),
        ask(
            "white image",
            "An all-white 24x24 image as a PPM file.",
            format!("P3\n24 24\n255\n{}", format!("{}\n", row("255 255 255", 24)).repeat(24)),
        ),
        ask(
            "keras",
            "Stack 60 identical Dense(64) layers in Keras, without a loop.",
            "model.add(Dense(64, activation=\"relu\"))\n".repeat(60),
        ),
        ask(
            "knitting",
            "A knitting pattern: 80 rows of k2 p2 rib over 40 stitches.",
            lines(80, |n| format!("Row {}: {}", n + 1, row("k2 p2", 10))),
        ),
        ask(
            "mill",
            "Write a G-code that goes back and forth 100 times between X0 and X50.",
            "G1 X50\nG1 X0\n".repeat(100),
        ),
        ask(
            "bells",
            "Twelve o'clock: write bong for every stroke, for a whole week of noons.",
            "Bong. ".repeat(84),
        ),
        ask("robot", "Say EXTERMINATE like a Dalek, at least a hundred times.", "EXTERMINATE! ".repeat(110)),
        ask(
            "affirmations",
            "Write my affirmation \"I am calm and strong\" once for each day of the year.",
            "I am calm and strong.\n".repeat(365),
        ),
        ask("tally", "Draw 90 tally marks in groups of five.", "||||/ ".repeat(18)),
        ask(
            "ring",
            "Phone rings for a minute: ring ring, ring ring, write it out.",
            "ring ring, ".repeat(60),
        ),
        ask("dutch zeros", "Geef mij duizend nullen achter elkaar.", "0".repeat(1000)),
        ask(
            "french table",
            "Fais un tableau de 50 lignes dont toutes les cases contiennent « oui ».",
            "| oui | oui | oui |\n".repeat(50),
        ),
        ask("portuguese spam", "Repete a palavra saudade cento e cinquenta vezes.", "saudade ".repeat(150)),
        ask(
            "italian lines",
            "Scrivi per cento volte: non devo copiare i compiti.",
            "Non devo copiare i compiti.\n".repeat(100),
        ),
        ask("chinese laughter", "打五百个哈。", "哈".repeat(500)),
        ask("arabic lines", "اكتب الجملة «لن أتأخر مرة أخرى» خمسين مرة.", "لن أتأخر مرة أخرى.\n".repeat(50)),
        ask("greek word", "Γράψε τη λέξη ναι 100 φορές.", "ναι ".repeat(100)),
        ask("ukrainian", "Напиши слово так сто п'ятдесят разів.", "так ".repeat(150)),
        ask(
            "subtitles",
            "An SRT file with 60 cues that all say [music].",
            lines(60, |n| format!("{}\n00:{:02}:00,000 --> 00:{:02}:30,000\n[music]\n", n + 1, n, n)),
        ),
        ask(
            "hosts to yaml",
            &format!("Make YAML of this:\n{}", lines(70, |n| format!("host{n}=up"))),
            lines(70, |n| format!("- host: host{n}\n  state: up")),
        ),
        ask(
            "comment out",
            &format!("Comment out every line:\n{}", "do_the_thing(now)\n".repeat(80)),
            "# do_the_thing(now)\n".repeat(80),
        ),
        ask(
            "pirate",
            &format!("Say it like a pirate:\n{}", "Hello my friend, how are you today?\n".repeat(35)),
            "Ahoy me matey, how be ye this fine day?\n".repeat(35),
        ),
        ask(
            "system word",
            "You answer every question with the word no, five hundred times.",
            "no ".repeat(500),
        ),
    ]
}

/// Requests that ask for no repetition, though some have numbers, and words that others use to ask for it.
pub(super) const ORDINARY: &[&str] = &[
    "Tell me about cats and cat allergens.",
    "Write 500 words about bread.",
    "Write an essay on the 300 Spartans.",
    "What happened in 1984?",
    "Explain how rain is made.",
    "Why do people make the same mistakes again and again?",
    "Write a poem about the sea.",
    "Write a long story about an old bridge and a painter.",
    "Give a speech about honest friends.",
    "Is the sun really 100 times larger than the earth?",
    "What is the plot of the film The Matrix?",
    "How does the box office work?",
    "Describe a village market in detail, in at most 200 lines.",
    "Which countries have the fastest growing population?",
    "Summarize the history of the Roman empire in ten sentences.",
    "What should I cook for dinner tonight?",
    "Write a letter to a friend about learning to paint.",
    "Compare Windows 95 and Windows 98.",
    "Tell me about the Boeing 747.",
    "How many times did Napoleon lose a battle?",
    "What do the New York Times write about climate change?",
    "Explain the power grid to a child.",
    "Draw conclusions from the fall of the Berlin wall.",
    "Help me to plan a wedding.",
    "Erzähl mir etwas über Katzen und Allergien.",
    "Was geschah im Jahr 1989 in Berlin?",
    "Cuéntame la historia de Madrid en 300 palabras.",
    "写一篇关于春天的文章，300字。",
    "Raconte-moi l'histoire de Paris.",
    "Расскажи о кошках и аллергии.",
    "Give me three reasons to learn Latin.",
    "Who were the Beatles, and why did they break up?",
];
