//! The built binary, from its command line to its exit code: golden checkpoints and the embedded model over HTTP.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::client::Client;
use crate::golden::{GoldenPrompt, golden_folder, golden_prompts};

/// A running `perigee serve`; killed when dropped, so that a failing test leaves nothing behind.
pub(crate) struct Served {
    process: Child,
    pub(crate) addr: SocketAddr,
}

impl Served {
    /// Starts the binary on a free port and waits for its line that says `ready`.
    pub(crate) fn start(model: Option<&Path>, settings: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_perigee"));
        command.args([
            "serve",
            "--port",
            "0",
            "--set",
            "telemetry.log_format=json",
            "--set",
            "kv_cache.memory_bytes=64MiB",
        ]);
        if let Some(model) = model {
            command.arg("--model").arg(model);
        }
        for setting in settings {
            command.args(["--set", setting]);
        }
        // Neither the caller's settings nor a site file of the folder tests run in.
        for (name, _) in
            std::env::vars().filter(|(name, _)| name.starts_with("PERIGEE_") || name == "RUST_LOG")
        {
            command.env_remove(name);
        }
        command.current_dir(std::env::temp_dir()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("the binary starts");
        let mut lines = BufReader::new(process.stderr.take().expect("stderr is a pipe")).lines();
        let mut log = Vec::new();
        let addr = loop {
            let Some(line) = lines.next() else { panic!("no ready line:\n{}", log.join("\n")) };
            let line = line.expect("UTF-8");
            let value: Value = serde_json::from_str(&line).unwrap_or(Value::Null);
            if value["message"] == "ready" {
                let url = value["url"].as_str().expect("a URL");
                break url.trim_start_matches("http://").parse().expect("an address");
            }
            log.push(line);
        };
        // The pipe is read to its end, or the server would block on a full one.
        std::thread::spawn(move || lines.for_each(drop));
        Self { process, addr }
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Value {
        let response = Client::connect(self.addr).await.post(path, &body.to_string()).await;
        assert_eq!(response.status, 200, "{}", response.text());
        response.json()
    }

    /// SIGTERM; the exit code.
    pub(crate) fn terminate(mut self) -> Option<i32> {
        let status = Command::new("kill").args(["-TERM", &self.process.id().to_string()]).status();
        assert!(status.expect("kill runs").success());
        self.process.wait().expect("the process ends").code()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Log-softmax of a row of golden logits.
pub(crate) fn log_softmax(row: &[f32]) -> Vec<f64> {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
    let sum: f64 = row.iter().map(|v| (f64::from(*v) - max).exp()).sum();
    row.iter().map(|v| f64::from(*v) - max - sum.ln()).collect()
}

/// Echoed logprobs against the golden logits of the row before each token; greedy continuations.
async fn check_golden(served: &Served, name: &str, prompt: &GoldenPrompt, tolerance: f64) {
    let vocab = prompt.logits.len() / prompt.token_ids.len();
    let body = json!({
        "prompt": prompt.token_ids, "max_tokens": 24, "temperature": 0, "echo": true, "logprobs": 3, "ignore_eos": true,
        "return_token_ids": true, "return_tokens_as_token_ids": true
    });
    let reply = served.post("/v1/completions", &body).await;
    let choice = &reply["choices"][0];
    let ids: Vec<u32> = serde_json::from_value(choice["token_ids"].clone()).unwrap();
    assert_eq!(ids, prompt.greedy, "{name}: greedy continuation");
    let logprobs = choice["logprobs"]["token_logprobs"].as_array().expect("logprobs");
    assert_eq!(logprobs.len(), prompt.token_ids.len() + 24);
    assert!(logprobs[0].is_null());
    for position in 1..prompt.token_ids.len() {
        let golden = log_softmax(&prompt.logits[(position - 1) * vocab..position * vocab]);
        let expected = golden[prompt.token_ids[position] as usize];
        let got = logprobs[position].as_f64().expect("a number");
        assert!(
            (got - expected).abs() <= tolerance,
            "{name} position {position}: {got}, expected {expected}"
        );
    }
}

#[test]
fn golden_checkpoints_over_http() {
    for name in ["kimi", "thinking", "moonlight", "grouped"] {
        let served = Served::start(Some(&golden_folder(name)), &[]);
        runtime().block_on(async {
            for prompt in golden_prompts(name) {
                check_golden(&served, name, &prompt, 1e-3).await;
            }
        });
        assert_eq!(served.terminate(), Some(0), "{name}: exit code after SIGTERM");
    }
}

#[test]
fn many_streams_lose_nothing_and_leak_nothing() {
    const STREAMS: u32 = 256;
    const TOKENS: usize = 128;
    let served = Served::start(None, &[]);
    let body = |i: u32| {
        let prompt: Vec<u32> = (0..10 + i % 50).map(|k| (i * 7 + k) % 1000).collect();
        json!({
            "prompt": prompt, "max_tokens": TOKENS, "temperature": 1, "seed": i, "ignore_eos": true, "stream": true,
            "return_token_ids": true, "stream_options": {"include_usage": true}
        })
    };
    let stream = |i: u32, addr: SocketAddr| async move {
        let response = Client::connect(addr).await.post("/v1/completions", &body(i).to_string()).await;
        let events = response.events();
        assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
        let chunks: Vec<Value> =
            events[..events.len() - 1].iter().map(|event| serde_json::from_str(event).unwrap()).collect();
        let usage = &chunks.last().unwrap()["usage"];
        assert_eq!(usage["completion_tokens"], TOKENS, "stream {i}");
        let ids: Vec<u64> = chunks
            .iter()
            .flat_map(|chunk| chunk["choices"].as_array().unwrap())
            .flat_map(|choice| choice["token_ids"].as_array().cloned().unwrap_or_default())
            .map(|id| id.as_u64().unwrap())
            .collect();
        assert_eq!(ids.len(), TOKENS, "stream {i}");
        ids
    };
    let addr = served.addr;
    runtime().block_on(async {
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async {
                let tasks: Vec<_> = (0..STREAMS).map(|i| tokio::task::spawn_local(stream(i, addr))).collect();
                let mut together = Vec::new();
                for task in tasks {
                    together.push(task.await.unwrap());
                }
                for i in (0..STREAMS).step_by(64) {
                    assert_eq!(stream(i, addr).await, together[i as usize], "stream {i} alone");
                }
            })
            .await;
        let metrics = Client::connect(addr).await.get("/metrics").await;
        let used = metrics.text().lines().find(|line| line.starts_with("perigee_kv_blocks{state=\"used\"}"));
        assert_eq!(used.map(|line| line.ends_with(" 0")), Some(true), "{used:?}");
    });
    assert_eq!(served.terminate(), Some(0));
}

#[test]
fn the_readme_question_gets_its_answer() {
    let served = Served::start(None, &[]);
    let body = json!({"messages": [{"role": "user", "content": "Which port does Perigee listen on?"}], "temperature": 0});
    let reply = runtime().block_on(served.post("/v1/chat/completions", &body));
    let content = reply["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(content.contains("8000"), "{content}");
    assert_eq!(reply["choices"][0]["finish_reason"], "stop");
    assert_eq!(served.terminate(), Some(0));
}

/// What the served document shows as an example works as it stands.
#[test]
fn the_examples_of_the_document_are_answered() {
    let served = Served::start(None, &[]);
    runtime().block_on(async {
        let document = Client::connect(served.addr).await.get("/openapi.json").await.json();
        let mut asked = 0;
        for (path, item) in document["paths"].as_object().unwrap() {
            if let Some(body) = item["post"].get("requestBody") {
                served.post(path, &body["content"]["application/json"]["example"]).await;
                asked += 1;
            }
        }
        assert_eq!(asked, 8);
    });
    assert_eq!(served.terminate(), Some(0));
}

#[test]
fn a_folder_that_is_no_checkpoint_is_a_clear_error() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_perigee"))
        .args(["serve", "--port", "0", "--model"])
        .arg(folder.path())
        .current_dir(std::env::temp_dir())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(log.contains("model.safetensors"), "{log}");
}
