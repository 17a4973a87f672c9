//! Speculation as a client and an operator see it: a field of the request, counts in the usage, metrics, and the comparison
//! that `perigee bench` makes.

use std::process::Command;

use serde_json::{Value, json};

use crate::client::Client;
use crate::serve::{Served, runtime};

const PASSAGE: &str = "badger lamp seven. badger lamp seven. badger lamp seven. badger lamp seven.";

async fn ask(served: &Served, extra: Value) -> Value {
    let body = json!({"messages": [{"role": "user", "content": format!("Repeat exactly: {PASSAGE}")}],
        "max_tokens": 60, "thinking": {"type": "disabled"}});
    let body = with(&body, extra);
    let answer = Client::connect(served.addr).await.post("/v1/chat/completions", &body.to_string()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

/// The value of a sample without other labels than the model's.
fn sample(page: &str, name: &str) -> f64 {
    let line = page.lines().find(|line| line.starts_with(name) && !line.starts_with('#'));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok())
        .unwrap_or_else(|| panic!("{name} is not there"))
}

#[test]
fn usage_and_metrics_count_drafts_and_a_request_may_say_no() {
    let served = Served::start(None, &["speculation.adaptive=false"]);
    let text = |answer: &Value| answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    runtime().block_on(async {
        let plain = ask(&served, json!({"speculation": false})).await;
        let details = &plain["usage"]["completion_tokens_details"];
        assert_eq!(details.get("accepted_prediction_tokens"), None, "{details}");
        let page = Client::connect(served.addr).await.get("/metrics").await.text().to_owned();
        assert_eq!(sample(&page, "vllm:spec_decode_num_drafts_total"), 0.0);

        let drafted = ask(&served, json!({})).await;
        assert_eq!(text(&drafted), text(&plain));
        assert_eq!(drafted["usage"]["completion_tokens"], plain["usage"]["completion_tokens"]);
        let details = &drafted["usage"]["completion_tokens_details"];
        let count = |name: &str| details[name].as_u64().unwrap() as f64;
        let (accepted, rejected) = (count("accepted_prediction_tokens"), count("rejected_prediction_tokens"));
        assert!(accepted >= 5.0, "{details}");
        let page = Client::connect(served.addr).await.get("/metrics").await.text().to_owned();
        for (name, value) in [
            ("vllm:spec_decode_num_accepted_tokens_total", accepted),
            ("vllm:spec_decode_num_draft_tokens_total", accepted + rejected),
            ("perigee_speculation_accepted_tokens_total", accepted),
            ("perigee_speculation_drafted_tokens_total", accepted + rejected),
        ] {
            assert_eq!(sample(&page, name), value, "{name}");
        }
        let per_position =
            page.lines().filter(|l| l.starts_with("vllm:spec_decode_num_accepted_tokens_per_pos"));
        let sum: f64 = per_position.map(|l| l.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum();
        assert_eq!(sum, accepted);

        // What the client expects is drafted from the first token on.
        let reply = text(&plain);
        let parts = json!([{"type": "text", "text": &reply[..10]}, {"type": "text", "text": &reply[10..]}]);
        for content in [json!(reply), parts] {
            let predicted =
                ask(&served, json!({"prediction": {"type": "content", "content": content}})).await;
            assert_eq!(text(&predicted), reply);
            let details = &predicted["usage"]["completion_tokens_details"];
            let accepted = details["accepted_prediction_tokens"].as_u64().unwrap();
            let tokens = predicted["usage"]["completion_tokens"].as_u64().unwrap();
            assert!(accepted * 4 >= tokens * 3, "{accepted} of {tokens}: {details}");
        }
    });
    assert_eq!(served.terminate(), Some(0));
}

#[test]
fn drafts_are_counted_where_a_stop_string_ends_the_reply() {
    let served = Served::start(None, &["speculation.adaptive=false", "speculation.max_tokens=2"]);
    runtime().block_on(async {
        let whole = ask(&served, json!({})).await;
        let reply = whole["choices"][0]["message"]["content"].as_str().unwrap();
        // Several steps before the end.
        let stop = &reply[..reply.len() - 1];
        let prediction = json!({"type": "content", "content": reply});
        let stopped = ask(&served, json!({"prediction": prediction, "stop": stop})).await;
        assert_eq!(stopped["choices"][0]["stop_reason"], stop);
        let details = &stopped["usage"]["completion_tokens_details"];
        let accepted = details["accepted_prediction_tokens"].as_u64();
        assert!(accepted.is_some_and(|accepted| accepted >= 2), "{details}");
    });
    assert_eq!(served.terminate(), Some(0));
}

/// Field names and punctuation of a schema are drafted although no text has them.
#[test]
fn a_required_shape_is_drafted() {
    let served = Served::start(None, &["speculation.adaptive=false", "speculation.min_match=32"]);
    runtime().block_on(async {
        let fields = json!({"registered_name": {"type": "integer"}, "previous_address": {"type": "boolean"}});
        let schema = json!({"type": "object", "properties": fields, "required": ["registered_name", "previous_address"],
            "additionalProperties": false});
        let format = json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}});
        let drafted = ask(&served, format.clone()).await;
        let plain = ask(&served, with(&format, json!({"speculation": false}))).await;
        let text = |answer: &Value| answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
        assert_eq!(text(&drafted), text(&plain));
        let details = &drafted["usage"]["completion_tokens_details"];
        let accepted = details["accepted_prediction_tokens"].as_u64().unwrap();
        assert!(accepted >= 5, "{details}: {}", text(&drafted));
    });
    assert_eq!(served.terminate(), Some(0));
}

fn with(base: &Value, extra: Value) -> Value {
    let mut both = base.clone();
    both.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    both
}

#[test]
fn the_bench_compares_replies_with_and_without_drafts() {
    let bench = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_perigee"))
            .args(["bench", "--decode", "40", "--repeat", "1"])
            .args(args)
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (code, out, err) = bench(&["--json", "--concurrency", "3", "--temperature", "0.7", "--speculation"]);
    assert_eq!(code, Some(0), "{err}");
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&report["prompts"], &report["different_replies"]), (&json!(12), &json!(0)));
    let (code, out, err) =
        bench(&["--speculation", "--replay", "0.9", "--set", "speculation.adaptive=false"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("tokens per step of a sequence") && out.contains("replies that differ"), "{out}");

    let (code, _, err) = bench(&["--speculation", "--temperature=-1"]);
    assert!(code == Some(1) && err.contains("temperature"), "{err}");
    let (code, _, err) = bench(&["--speculation", "--set", "speculation.method=off"]);
    assert!(code == Some(1) && err.contains("speculation.method"), "{err}");
    let file = std::env::temp_dir().join(format!("perigee-bench-{}.jsonl", std::process::id()));
    std::fs::write(&file, "{\"prompt\": \"a\"}\n\n{\"messages\": []}\n").unwrap();
    let (code, _, err) = bench(&["--speculation", file.to_str().unwrap()]);
    assert!(code == Some(1) && err.contains("line 3"), "{err}");
    std::fs::remove_file(&file).unwrap();
}
