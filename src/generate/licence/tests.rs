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
