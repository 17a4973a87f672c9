use super::*;

/// What becomes of a text in one piece, and whether it becomes the same in every cut.
fn mended(text: &str, containers: &[&str]) -> (String, ArgumentsForm) {
    let containers: Arc<[String]> = containers.iter().map(|name| (*name).to_owned()).collect();
    let run = |pieces: &mut dyn Iterator<Item = String>| {
        let (mut mend, mut out) = (Mend::new(Arc::clone(&containers)), String::new());
        pieces.for_each(|piece| mend.push(&piece, &mut out));
        let form = mend.finish(&mut out);
        (out, form)
    };
    let whole = run(&mut std::iter::once(text.to_owned()));
    assert_eq!(run(&mut text.chars().map(String::from)), whole, "{text}");
    whole
}

#[track_caller]
fn becomes(text: &str, expected: &str) {
    assert_eq!(mended(text, &["list"]), (expected.to_owned(), ArgumentsForm::Mended), "{text}");
    let _: serde_json::Map<String, serde_json::Value> = serde_json::from_str(expected).unwrap();
}

#[test]
fn an_object_of_json_passes_unchanged() {
    for text in [
        "{}",
        "{ }",
        r#"{"a": "x\n\"y\" \\ \/ \u00e9", "b" : [1, -2.5e+3, 0, {"c": [ ]}], "list": "no [", "d": null }"#,
        "{\n  \"a\": true,\n  \"b\": [\n    1 ,\n    2\n  ]\n}",
        r#"{"": "", "a": {"": {}}, "b": "C:\\dir\\"}"#,
        r#"{"q": "say \"hi\"", "r": "a\"}"}"#,
    ] {
        assert_eq!(mended(text, &["list"]), (text.to_owned(), ArgumentsForm::Sound), "{text}");
        assert_eq!(mended(&format!(" {text}\n"), &[]), (text.to_owned(), ArgumentsForm::Sound), "{text}");
    }
}

#[test]
fn strings_get_the_escapes_they_lack() {
    becomes("{\"a\": \"x\ny\t\u{1}\"}", r#"{"a": "x\ny\t\u0001"}"#);
    becomes(r#"{"a": "C:\Users\me"}"#, r#"{"a": "C:\\Users\\me"}"#);
    becomes(r#"{"a": "\d+\s*\.", "b": "\u12"}"#, r#"{"a": "\\d+\\s*\\.", "b": "\\u12"}"#);
    becomes("{\"a\": \"x\\\ny\"}", r#"{"a": "x\\\ny"}"#);
    becomes(r#"{"a": "C:\dir\"}"#, r#"{"a": "C:\\dir\\"}"#);
    becomes(r#"{"a": ["C:\dir\"] }"#, r#"{"a": ["C:\\dir\\"] }"#);
    becomes(r#"{"a": "echo "hi" there", "b": 1}"#, r#"{"a": "echo \"hi\" there", "b": 1}"#);
}

#[test]
fn what_is_open_is_closed() {
    becomes(r#"{"a": "ls""#, r#"{"a": "ls"}"#);
    becomes(r#"{"a": "ls"#, r#"{"a": "ls"}"#);
    becomes(r#"{"a": "ls\"#, r#"{"a": "ls\\"}"#);
    becomes(r#"{"a": [1, {"b": 2"#, r#"{"a": [1, {"b": 2}]}"#);
    becomes(r#"{"a": [1, 2}"#, r#"{"a": [1, 2]}"#);
    becomes(r#"{"a": 1, "b"#, r#"{"a": 1}"#);
    becomes(r#"{"a": 1, "b": "#, r#"{"a": 1  }"#);
    becomes(r#"{"a": tr"#, r#"{"a": true}"#);
    becomes("{", "{}");
}

#[test]
fn commas_quotes_and_words_become_those_of_json() {
    becomes(r#"{"a": 1,}"#, r#"{"a": 1}"#);
    becomes("{\"a\": [1, 2,\n],\n}", "{\"a\": [1, 2\n]\n}");
    becomes(r#"{"a": 1 "b": 2}"#, r#"{"a": 1, "b": 2}"#.replace(", ", " ,").as_str());
    becomes("{\"a\": \"x\"\n\"b\": 2}", "{\"a\": \"x\"\n,\"b\": 2}");
    becomes("{'a': 'it's \"so\"', 'b': True, 'c': None}", r#"{"a": "it's \"so\"", "b": true, "c": null}"#);
    becomes("{a: 1, b: ls -la, c: http://x/y}", r#"{"a": 1, "b": "ls -la", "c": "http://x/y"}"#);
    becomes(r#"{"a": , "b"}"#, r#"{"a": null, "b":null}"#);
    becomes(r#"{{"a": 01}}"#, r#"{"a": "01"}"#);
    becomes(r#"{"a" = 1}"#, r#"{"a" : 1}"#);
}

#[test]
fn the_object_is_taken_out_of_what_is_around_it() {
    becomes("```json\n{\"a\": 1}\n```", r#"{"a": 1}"#);
    becomes(r#""{\"a\": \"x\\n\\\"y\\\"\"}""#, r#"{"a": "x\n\"y\""}"#);
    becomes(r#""{\"a\": \"\ud83d\ude42\"""#, "{\"a\": \"\u{1f642}\"}");
    becomes(r#""{"a": 1}""#, r#"{"a": 1}"#);
    becomes(r#"{"list": "[{\"t\": \"x\"}]", "b": 1}"#, r#"{"list": [{"t": "x"}], "b": 1}"#);
    becomes(r#"{"list": "{\"t\": [1"}"#, r#"{"list": {"t": [1]}}"#);
    becomes(r#"{"a": 1} and more"#, r#"{"a": 1}"#);
    for text in ["null", "None"] {
        becomes(text, "{}");
    }
    assert_eq!(mended(" ", &[]), ("{}".to_owned(), ArgumentsForm::Sound));
    // A string where the schema wants one.
    let text = r#"{"a": "[1]", "list": "[later"}"#;
    assert_eq!(mended(text, &[]), (text.to_owned(), ArgumentsForm::Sound));
}

#[test]
fn what_is_no_object_stays() {
    for text in ["ls -la", "[1, 2]", "\"ls\"", "7", "{\"co", "```\nls\n```"] {
        assert_eq!(mended(text, &[]), (text.to_owned(), ArgumentsForm::Invalid), "{text}");
    }
}

#[test]
fn a_limit_leaves_the_arguments_open() {
    for (text, expected) in
        [(r#"{"a": "x"#, r#"{"a": "x"#), (r#"{"a": 1, "b"#, r#"{"a": 1"#), (r#"{"a"#, r#"{"a"#)]
    {
        let (mut mend, mut out) = (Mend::default(), String::new());
        mend.push(text, &mut out);
        assert_eq!((mend.cut(&mut out), &*out), (ArgumentsForm::Cut, expected));
    }
}

/// Whatever is written becomes an object of JSON or stays, in every cut.
#[test]
fn random_texts_become_json_or_stay() {
    let words = [
        "{",
        "}",
        "[",
        "]",
        "\"",
        "'",
        ",",
        ":",
        "\\",
        "\\\"",
        "\\u",
        "12",
        "-",
        "a",
        " ",
        "\n",
        "true",
        "`",
        "{\"a\": ",
        "\u{1f642}",
        "list",
        "null",
        "e1",
    ];
    let mut state = 1_u64;
    for _ in 0..20_000 {
        let mut text = String::from(if state.is_multiple_of(3) { "" } else { "{" });
        for _ in 0..state % 23 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            text.push_str(words[(state >> 33) as usize % words.len()]);
        }
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (out, form) = mended(&text, &["list", "a"]);
        let object = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&out);
        match form {
            ArgumentsForm::Invalid => assert_eq!(out, text.trim()),
            _ => assert!(object.is_ok(), "{text} -> {out} ({form:?}): {object:?}"),
        }
    }
}
