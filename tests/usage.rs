//! The usage ledger, the limits that need it, and the audit log, through the built binary.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::client::{Client, Response};
use crate::serve::{Served, runtime};

const KEYS: &str = r#"server.api_keys=["{ name = 'a', key = 'key-a', max_tokens = 4, routes = ['/v1/completions'] }", "{ name = 'b', key = 'sha256:a30534a53b23547377ddccbd1ac85a8a84c13db43493c16e55a6abc7b0eba634' }", "{ name = 'poor', key = 'key-poor', tokens_per_day = 6 }", "{ name = 'old', key = 'key-old', expires = '2026-01-01' }"]"#;

fn serve(folder: &std::path::Path) -> Served {
    let directory = format!("usage.directory={}", folder.display());
    let settings = [KEYS, "server.admin_key=root", &directory, "server.trusted_proxies=[\"127.0.0.0/8\"]"];
    Served::start(None, &settings)
}

async fn send(served: &Served, method: &str, path: &str, key: &str, body: &str) -> Response {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\nuser-agent: bill/1\r\n\
         x-forwarded-for: 198.51.100.7\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut client = Client::connect(served.addr).await;
    client.send(head.as_bytes()).await;
    client.response().await.expect("an answer")
}

async fn usage(served: &Served, query: &str) -> Value {
    let answer = send(served, "GET", &format!("/admin/usage{query}"), "root", "").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

fn completion(max_tokens: u32) -> String {
    json!({"prompt": [1, 2, 3], "max_tokens": max_tokens, "ignore_eos": true}).to_string()
}

#[test]
fn a_killed_server_remembers_what_it_told_and_marks_the_rest_as_cut() {
    let folder = tempfile::tempdir().unwrap();
    let served = serve(folder.path());
    let mut told = BTreeMap::new();
    let runtime = runtime();
    runtime.block_on(async {
        for (index, max_tokens) in [1, 4, 2].into_iter().enumerate() {
            let answer = send(&served, "POST", "/v1/completions", "key-a", &completion(max_tokens)).await;
            told.insert(index, answer.json()["usage"]["total_tokens"].as_u64().unwrap());
        }
        // One that runs when the server goes.
        let mut client = Client::connect(served.addr).await;
        let body = json!({"prompt": [1, 2, 3], "max_tokens": 2000, "ignore_eos": true, "stream": true}).to_string();
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer key-poor\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        client.send(head.as_bytes()).await;
        client.head().await;
        served.signal("KILL");
    });
    drop(served);
    let served = serve(folder.path());
    let report = runtime.block_on(usage(&served, "?by=month"));
    let total = &report["total"];
    let tokens = total["prompt_tokens"].as_u64().unwrap() + total["completion_tokens"].as_u64().unwrap();
    assert_eq!(
        (tokens, &total["requests"], &total["cut_requests"]),
        (told.values().sum(), &json!(3), &json!(1))
    );
    assert_eq!(report["rows"][0]["client"], "a");
    // Of the one that was cut nothing is known, and nothing is charged.
    let (client, cut) = (&report["rows"][1]["client"], &report["rows"][1]["cut_requests"]);
    assert_eq!((client, cut), (&json!("poor"), &json!(1)));
}

#[test]
fn keys_have_ends_routes_budgets_and_longest_replies() {
    let folder = tempfile::tempdir().unwrap();
    let served = serve(folder.path());
    let runtime = runtime();
    let ask = |key: &str, path: &str, body: String| {
        let answer = runtime.block_on(send(&served, "POST", path, key, &body));
        (answer.status, answer.json()["error"]["code"].as_str().unwrap_or_default().to_owned(), answer)
    };
    let (status, code, _) = ask("key-old", "/v1/completions", completion(1));
    assert_eq!((status, &*code), (401, "expired_api_key"));
    let (status, code, answer) = ask("key-a", "/v1/messages", "{}".into());
    assert_eq!((status, &*code), (403, ""), "in the words of the route: {}", answer.text());
    assert!(
        answer.text().contains("does not open /v1/messages; it opens /v1/completions"),
        "{}",
        answer.text()
    );
    let (status, _, answer) = ask("key-a", "/v1/completions", completion(5));
    assert!(status == 400 && answer.text().contains("the key allows 4"), "{}", answer.text());
    let unlimited = json!({"prompt": [1, 2, 3], "ignore_eos": true}).to_string();
    assert_eq!(ask("key-a", "/v1/completions", unlimited).2.json()["usage"]["completion_tokens"], 4);
    // 3 tokens of a prompt and 3 of a reply are the day's 6.
    assert_eq!(ask("key-poor", "/v1/completions", completion(3)).0, 200);
    let (status, code, answer) = ask("key-poor", "/v1/completions", completion(1));
    assert_eq!((status, &*code), (429, "insufficient_quota"), "{}", answer.text());
    assert!(answer.header("retry-after").is_some_and(|wait| wait.parse::<u32>().unwrap() <= 86_400));
    drop(served);
    let served = serve(folder.path());
    let again = runtime.block_on(send(&served, "POST", "/v1/completions", "key-poor", &completion(1)));
    assert_eq!(again.status, 429, "a restart gives no new budget: {}", again.text());
    let metrics = runtime.block_on(send(&served, "GET", "/metrics", "root", ""));
    let line = "perigee_client_limited_total{client=\"poor\",limit=\"tokens_per_day\"} 1";
    assert!(metrics.text().contains(line), "{}", metrics.text());
}

/// A ledger begins with the server: a budget that a reload brings with one would be none.
#[test]
fn a_reload_gives_no_budget_without_a_ledger_in_force() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("site.toml");
    let write = |more: &str| {
        std::fs::write(&file, format!("[server]\nadmin_key = \"root\"\n{more}")).unwrap();
    };
    write("");
    let served = Served::start_with(&["--config", file.to_str().unwrap()]);
    let key = "api_keys = [\"{ name = 'a', key = 'k', tokens_per_day = 1 }\"]\n";
    write(&format!("{key}[usage]\ndirectory = \"{}\"\n", folder.path().display()));
    let refused = runtime().block_on(send(&served, "POST", "/admin/reload", "root", ""));
    assert_eq!(refused.status, 422);
    assert!(
        refused.text().contains("usage.directory is in force from the next start on"),
        "{}",
        refused.text()
    );
}

#[test]
fn a_server_without_work_ends_by_itself() {
    let served = Served::start(None, &["server.idle_exit_s=0.01"]);
    let (code, log) = served.wait();
    assert_eq!(code, Some(0));
    assert!(log.contains("no request of the model for server.idle_exit_s"), "{log}");
}

#[test]
fn a_self_test_comes_before_ready() {
    let served = Served::start(None, &["model.self_test=true"]);
    let said =
        served.booted.iter().find(|line| line.contains("\"self-test\"")).expect("a line of the self-test");
    assert!(said.contains("\"said\":"), "{said}");
}

#[test]
fn the_log_says_who_called_and_who_was_refused() {
    let folder = tempfile::tempdir().unwrap();
    let served = serve(folder.path());
    runtime().block_on(async {
        assert_eq!(send(&served, "POST", "/v1/completions", "wrong", "{}").await.status, 401);
        assert_eq!(send(&served, "POST", "/v1/completions", "key-a", &completion(1)).await.status, 200);
        assert_eq!(send(&served, "GET", "/admin/flight-recorder", "root", "").await.status, 200);
        assert_eq!(send(&served, "GET", "/admin/usage", "key-b", "").await.status, 403);
    });
    let (code, log) = served.terminate_for_log();
    assert_eq!(code, Some(0));
    let lines: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let find =
        |message: &str| lines.iter().filter(|line| line["message"] == message).cloned().collect::<Vec<_>>();
    let refused = find("key refused");
    assert_eq!((refused.len(), &refused[0]["target"]), (2, &json!("perigee::audit")));
    for line in refused.iter().chain(&find("request")).chain(&find("operator's request")) {
        let source = [&line["peer"], &line["forwarded_for"], &line["agent"]];
        assert_eq!(source, ["127.0.0.1", "198.51.100.7", "bill/1"], "{line}");
    }
    assert_eq!(
        (&refused[0]["reason"], &refused[1]["reason"]),
        (&json!("invalid_api_key"), &json!("admin_key_needed"))
    );
    assert_eq!(refused[1]["client"], "b", "a key that is known by its digest");
    assert_eq!(find("operator's request")[0]["route"], "/admin/flight-recorder");
}
