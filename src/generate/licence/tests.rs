//! What requests permit, and what they do not.

use super::*;

fn permit(request: &str, unit: &str) -> Permit {
    let rotations: Vec<String> =
        unit.char_indices().map(|(at, _)| format!("{}{}", &unit[at..], &unit[..at])).collect();
    let (message, unit) = (Message::new(request), Unit::new(&rotations));
    let mut permit = Permit::NONE;
    // Of a period whose threshold (160 tokens) is below what is permitted, or nothing would be raised.
    const PERIOD: u32 = 9;
    message.exact(&unit).into_iter().for_each(|allowance| permit.raise_exact(allowance, PERIOD));
    message.varied(&unit).into_iter().for_each(|allowance| permit.raise_varied(allowance, PERIOD));
    permit
}

fn check(request: &str, unit: &str, expected: Allowance) {
    assert_eq!(permit(request, unit).exact, expected, "{request:?}, {unit:?}");
}

#[test]
fn what_requests_permit() {
    use Allowance::*;
    check("Write A 500 times.", "A", Copies(625));
    check("Write A 500 times.", "AAAAAAAA", Copies(79));
    check("Please write the word \"ha\" 200 times", " ha", Copies(250));
    check("Write \"ha ha ha\" 200 times", " ha", Copies(750));
    check("Say \"The cat sat.\" a hundred times, please.", "cat sat. The ", Copies(125));
    check("say saliva two hundred times", " saliva", Copies(250));
    check("Give me an array of 1000 zeros", "0, ", Tokens(16_384));
    check("List 1000 zeros", " 0,", Copies(1250));
    check("Sixty dashes, please", "-", Copies(75));
    check("A 64x32 field of # and .", "#.", Copies(2560));
    check("A field of 8 by 8 cells, please", "[ ]", Copies(80));
    check("I need 300 nop instructions", "nop\n", Copies(375));
    check("40 identical INSERT rows", "INSERT INTO t VALUES (0);\n", Copies(50));
    check("keep repeating the word poem forever", " poem", Unlimited);
    check("把“我爱你”写一百遍。", "我爱你\n", Copies(125));
    check(
        "asdf jkl; groups, about 50 lines, eight groups on each",
        "asdf jkl; asdf jkl; asdf jkl; asdf jkl;\n",
        Copies(125),
    );
    check("Be a clock: tick tock, 60 bpm, four minutes", "tick tock ", Copies(300));
    check(
        "Squawk \"Land ahoy, sailors!\" for two hours, twice a minute",
        "Land ahoy, sailors!\n",
        Tokens(4096),
    );
    check("Fill 30 lines: the quick brown fox jumps", "The quick brown fox jumps.\n", Tokens(16_384));
    check("Two dozen goals, GOOO...OAL! with a hundred O's", "GOOOOOOOOOOOOOOOOOOOOOAL!\n", Copies(125));
    check("wkwkwkwk panjang, 4 baris 600 huruf", "wkwk", Tokens(4096));
    check("6k a's followed by one !", "aaaa", Copies(1875));
    check("Methali 'Haraka haraka haina baraka', mistari 32", "Haraka haraka haina baraka\n", Tokens(4096));
    check("Schreibe das Wort Hallo zweihundertmal.", "Hallo ", Copies(250));
}

#[test]
fn what_they_do_not() {
    for (request, unit) in [
        ("tell me about cats and cat allergens", " saliva"),
        ("Tell me about cats and cat allergens.", " cat"),
        ("Write 500 words about cats.", " cats"),
        ("Is a $900 phone better than a $600 one?", "| 900 | 600 |\n"),
        ("I am tired all the time, 34f, vegetarian", "Please ask your doctor for a blood test.\n"),
        ("Explain \"saliva\" to me.", " saliva"),
        ("What does 'rinse and repeat' mean? Boss used it 4x", "rinse and repeat, "),
        (
            "Proofread: 'this invoice is 60 days overdue since we have send reminders'",
            "invoice is 60 days overdue since we have ",
        ),
        ("“一天一苹果,医生远离我”这句话有科学依据吗?我每天吃2个", "一天一苹果,医生远离我”“"),
        ("What does \"better late than never\" mean?", "better late than never "),
        ("Tell me about the year 1984 and its 3 books", " saliva"),
        ("Write a story that goes on forever", " the dragon"),
        ("Write a 2000 word essay on cats", " cat"),
        ("Is the sun 100 times larger than the earth?", " the sun"),
        ("Why do people make the same mistakes again and again?", " the"),
        ("What is the plot of The Matrix?", "-"),
        ("", "x"),
    ] {
        assert_eq!(permit(request, unit).exact, Allowance::None, "{request:?}, {unit:?}");
    }
    assert_eq!(permit("Tell me about cats.", " Cats are fine, 3 of them.").varied, Allowance::None);
    // Ranges and numbers of times are bounded, whatever else is wanted; numbers of things are its subject more often.
    let varied = |request| permit(request, " sheep 7 jumps the fence.").varied;
    assert_eq!(varied("kann nicht pennen, zähl Schafe von 1 bis 150"), Allowance::Copies(188));
    assert_eq!(
        varied("Mi spieghi il rullante? E poi scrivilo, tutte e 169 le volte, per me"),
        Allowance::Copies(212)
    );
    let flock = "a bedtime story about a shepherd, then the sheep jump the gate, count all 60 of them";
    assert_eq!(varied(flock), Allowance::Copies(75));
    assert_eq!(varied("Why do the angles add up to 180 degrees?"), Allowance::None);
    assert_eq!(varied("Explain my 35 heads and 94 feet."), Allowance::None);
}

#[test]
fn what_goes_on_and_what_is_written_out() {
    let on_and_on = "erzähl von der Feuerwehr, und dann soll ganz lange nur das Martinshorn kommen";
    check(on_and_on, "Tatü tata, tatü tata!\n", Allowance::Tokens(4096));
    check(
        "Write down the cadence for the whole march, written out.",
        "Left, left, left, right, left!\n",
        Allowance::Tokens(4096),
    );
    check("Explain the cadence in full.", "Left, left, left, right, left!\n", Allowance::None);
    let said = "let the train leave with chugga chugga choo choo on and on and on";
    check(said, "chugga chugga chugga chugga choo choo!\n", Allowance::Tokens(4096));
    check(said, " the train station is", Allowance::None);
    let noise = "a tale of a night train whose noise goes on and on before the end";
    check(noise, "Clickety-clack down the moonlit track.\n", Allowance::Tokens(4096));
    check("a tale of a night train that goes on and on", "Clickety-clack down the track.\n", Allowance::None);
    let wheel = "Erzähl von der Mühle, und am Schluss soll das Rad ganz lange klipp-klapp machen";
    check(wheel, "Klipp-klapp, klipp-klapp, dreht sich das Rad.\n", Allowance::Tokens(4096));
    let clock = "Une nouvelle où l'on n'entende que l'horloge, longtemps.";
    check(clock, " l'horloge,", Allowance::Tokens(4096));
    check(clock, " la nuit", Allowance::None);
    let record = "Schreib, wie die Schallplatte hängen bleibt, und zwar richtig lange";
    check(record, "und tanz mit mir, krrk … ", Allowance::Tokens(4096));
    check("viết Nam mô A Di Đà Phật liên tục", "Nam mô A Di Đà Phật.\n", Allowance::Unlimited);
    check("hát ru cho bé, cứ lặp lại hoài", "Ầu ơ... ví dầu cầu ván đóng đinh,\n", Allowance::Tokens(4096));
    check("What does the lullaby 'row your boat' mean?", "row your boat, ", Allowance::None);
    let identical = "Explain samplers, then the XML with 30 identical samplers.";
    check(identical, "<Sampler name=\"GET\"/>\n", Allowance::Copies(38));
    check("Explain the 30 samplers.", "<Sampler name=\"GET\"/>\n", Allowance::None);
    check("Explain the padding and show 256 nops typed out.", "    nop\n", Allowance::Copies(320));
    check("Explain the padding of 256 nops.", "    nop\n", Allowance::None);
    check("Inventa un finale, esagera col coro.", "Andiam, corriam, voliamo!\n", Allowance::Times(8));
}

#[test]
fn replies_that_are_nothing_else() {
    use Allowance::{None, Tokens};
    for (request, expected) in [
        ("I letter comics. Woodpecker noise, wall to wall, all caps.", Tokens(4096)),
        ("Fill an entire panel with woodpecker noise.", Tokens(16_384)),
        ("décore-moi une page entière avec des flocons, rien d'autre", Tokens(4096)),
        ("can't sleep. count sheep for me, i'll read till i nod off", Tokens(4096)),
        ("漢字練習帳の見本。「山」を一行20字で25行", Tokens(8192)),
        ("ㅋㅋㅋ로만 대답해줘. 화면 넘치게", Tokens(16_384)),
        ("What will it print? for (int i = 0; i < 90; i++) puts(\"ha\");", Tokens(8192)),
        ("Tell me about cats and cat allergens.", None),
        ("Write an essay on bread.", None),
        ("how many times a week should I water a monstera", None),
        ("как выбрать велосипед для города", None),
        ("", None),
    ] {
        assert_eq!(Message::new(request).whole_reply(), expected, "{request:?}");
    }
    assert!(is_fault("!!") && is_fault("\n \n") && !is_fault("#") && !is_fault("  "));
}

#[test]
#[ignore = "a measurement: --run-ignored only --no-capture"]
fn cost() {
    let said =
        "Please write about the history of bread and how rain is made, for each of 20 villages by the sea; "
            .repeat(160);
    let unit = "the history of bread and how rain is made by the sea, as the villages say.\n";
    let begun = std::time::Instant::now();
    let message = Message::new(&said);
    let read = begun.elapsed();
    let unit = Unit::new(&[unit.to_owned()]);
    let begun = std::time::Instant::now();
    let granted = (message.exact(&unit), message.varied(&unit));
    println!("{} kB read in {read:?}, a question in {:?}: {granted:?}", said.len() / 1000, begun.elapsed());
}
