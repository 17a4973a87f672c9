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
    check("Schreibe das Wort Hallo zweihundertmal.", "Hallo ", Copies(250));
}

#[test]
fn what_they_do_not() {
    for (request, unit) in [
        ("tell me about cats and cat allergens", " saliva"),
        ("Tell me about cats and cat allergens.", " cat"),
        ("Write 500 words about cats.", " cats"),
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
