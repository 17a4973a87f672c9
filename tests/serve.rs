//! The built binary, from its command line to its exit code: golden checkpoints and the embedded model over HTTP.

use std::io::{BufRead, BufReader, Lines};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread::JoinHandle;

use serde_json::{Value, json};

use crate::client::Client;
use crate::golden::{GoldenPrompt, golden_folder, golden_prompts};

/// A running `perigee serve`; killed when dropped, so that a failing test leaves nothing behind.
pub(crate) struct Served {
    process: Child,
    pub(crate) addr: SocketAddr,
    /// Its log up to the line that says `ready`.
    pub(crate) booted: Vec<String>,
    /// Reads the log to its end, or the server would block on a full pipe.
    log: Option<JoinHandle<String>>,
}

type LogLines = Lines<BufReader<ChildStderr>>;

impl Served {
    /// Starts the binary on a free port and waits for its line that says `ready`.
    pub(crate) fn start(model: Option<&Path>, settings: &[&str]) -> Self {
        Self::start_read(model, settings, &[])
    }

    fn start_read(model: Option<&Path>, settings: &[&str], arguments: &[&str]) -> Self {
        let (mut served, log, lines) = Self::start_unread_with(model, settings, arguments);
        served.log = Some(std::thread::spawn(move || {
            let rest = lines.map_while(Result::ok);
            log.into_iter().chain(rest).map(|line| line + "\n").collect()
        }));
        served
    }

    /// The embedded model with other arguments.
    pub(crate) fn start_with(arguments: &[&str]) -> Self {
        Self::start_read(None, &[], arguments)
    }

    /// The same, and nobody reads on in its log.
    fn start_unread(model: Option<&Path>, settings: &[&str]) -> (Self, Vec<String>, LogLines) {
        Self::start_unread_with(model, settings, &[])
    }

    fn start_unread_with(
        model: Option<&Path>,
        settings: &[&str],
        arguments: &[&str],
    ) -> (Self, Vec<String>, LogLines) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_perigee"));
        command.args([
            "serve",
            "--port",
            "0",
            "--set",
            "telemetry.log_format=json",
            "--set",
            "kv_cache.memory_bytes=64MiB",
            // Expected replies are the CPU's, also where there is a GPU.
            "--set",
            "device.backend=cpu",
        ]);
        if let Some(model) = model {
            command.arg("--model").arg(model);
        }
        for setting in settings {
            command.args(["--set", setting]);
        }
        command.args(arguments);
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
                let address = url.trim_start_matches("http://").trim_start_matches("https://");
                break address.parse().expect("an address");
            }
            log.push(line);
        };
        (Self { process, addr, booted: log.clone(), log: None }, log, lines)
    }

    /// Of the process.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn signal(&self, name: &str) {
        let status =
            Command::new("kill").args([&format!("-{name}"), &self.process.id().to_string()]).status();
        assert!(status.expect("kill runs").success());
    }

    /// SIGTERM; the exit code and the log.
    pub(crate) fn terminate_for_log(self) -> (Option<i32>, String) {
        self.signal("TERM");
        self.wait()
    }

    /// The exit code and the log of a process that ends.
    pub(crate) fn wait(mut self) -> (Option<i32>, String) {
        let code = self.process.wait().expect("the process ends").code();
        (code, self.log.take().map_or_else(String::new, |log| log.join().expect("the log is read")))
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Value {
        let response = Client::connect(self.addr).await.post(path, &body.to_string()).await;
        assert_eq!(response.status, 200, "{}", response.text());
        response.json()
    }

    /// SIGTERM; the exit code.
    pub(crate) fn terminate(mut self) -> Option<i32> {
        self.signal("TERM");
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

/// Regression: under a customer's name the embedded model was served in silence.
#[test]
fn the_embedded_model_is_told_from_a_checkpoint() {
    let look = |model: Option<&Path>, settings: &[&str]| {
        let served = Served::start(model, settings);
        let models =
            runtime().block_on(async { Client::connect(served.addr).await.get("/v1/models").await.json() });
        let warnings: Vec<String> =
            served.booted.iter().filter(|line| line.contains("\"WARN\"")).cloned().collect();
        // Wherever it is computed, there is one line on why.
        let places = ["no GPU, computing on the CPU", "is not used: the embedded model"];
        let reasons =
            served.booted.iter().filter(|line| places.iter().any(|place| line.contains(place))).count();
        assert_eq!(served.terminate(), Some(0));
        (models["data"][0].clone(), warnings, reasons)
    };
    let name = "model.served_name=kimi-k2.6";
    let (model, warnings, reasons) = look(None, &[name, "device.backend=auto"]);
    assert_eq!((&model["id"], &model["root"]), (&json!("kimi-k2.6"), &json!("perigee-nano")));
    assert_eq!((&model["embedded"], reasons), (&json!(true), 1));
    for words in ["serving the embedded toy model perigee-nano", "model.served_name = kimi-k2.6: there is no"]
    {
        assert!(warnings.iter().any(|line| line.contains(words)), "{words}: {warnings:?}");
    }
    let (model, warnings, _) = look(Some(&golden_folder("kimi")), &[name]);
    assert_eq!((&model["root"], &model["embedded"]), (&json!("kimi-k2.6"), &json!(false)));
    assert!(warnings.iter().all(|line| !line.contains("toy model")), "{warnings:?}");
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

/// What the served document shows as an example works as it stands, and the answer is as described.
#[test]
fn the_examples_of_the_document_are_answered() {
    let served = Served::start(None, &[]);
    runtime().block_on(async {
        let document = Client::connect(served.addr).await.get("/openapi.json").await.json();
        let mut asked = 0;
        for (path, item) in document["paths"].as_object().unwrap() {
            if let Some(body) = item["post"].get("requestBody") {
                let answer = served.post(path, &body["content"]["application/json"]["example"]).await;
                let content = &item["post"]["responses"]["200"]["content"];
                let mut schema = content["application/json"]["schema"].clone();
                schema["components"] = document["components"].clone();
                assert!(jsonschema::is_valid(&schema, &answer), "{path}: {answer}");
                asked += 1;
            }
        }
        assert_eq!(asked, 14);
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
    // Nobody is told that it serves.
    assert!(
        !log.contains("listening") && log.contains("requests are refused until this log says ready"),
        "{log}"
    );
    assert!(!log.contains('{'), "a log in a pipe is text as well: {log}");
}

/// A stream that is far from its end.
async fn begin_long_stream(served: &Served) -> Client {
    let mut client = Client::connect(served.addr).await;
    let body = json!({"prompt": vec!["x"; 64], "max_tokens": 1000, "ignore_eos": true, "stream": true, "repetition_guard": "off"});
    client.start_post("/v1/completions", &body.to_string()).await;
    assert_eq!(client.head().await.expect("a head").status, 200);
    client.chunk().await.expect("a chunk").expect("not the end");
    client
}

#[test]
fn the_end_of_a_drain_is_said_by_the_stream_the_log_and_the_exit_code() {
    let served = Served::start(None, &["server.drain_timeout_s=0"]);
    let client = runtime().block_on(begin_long_stream(&served));
    let (code, log) = served.terminate_for_log();
    assert_eq!(code, Some(3), "{log}");
    let line = |wanted: &str| {
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.into_iter().find(|line| line["message"].as_str().is_some_and(|m| m.contains(wanted)))
    };
    let warning = line("server.drain_timeout_s was over").expect("a warning");
    assert_eq!((&warning["level"], &warning["cut"]), (&json!("WARN"), &json!(1)), "{log}");
    assert!(warning["seconds"].is_string());
    let finishes: Vec<Value> = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|line| line["message"] == "request")
        .map(|line| line["finish"].clone())
        .collect();
    assert_eq!(finishes, ["shutdown"]);
    assert!(!log.contains("client_left"), "{log}");
    drop(client);
}

/// Regression: a second signal cut streams without a word.
#[test]
fn a_forced_end_is_said_by_the_stream_and_the_exit_code() {
    let served = Served::start(None, &["server.drain_timeout_s=600"]);
    let last = runtime().block_on(async {
        let mut client = begin_long_stream(&served).await;
        served.signal("TERM");
        while Client::connect(served.addr).await.get("/health/startup").await.json()["status"] != "draining" {
        }
        served.signal("INT");
        let mut text = Vec::new();
        while let Some(chunk) = client.chunk().await.expect("the stream ends properly") {
            text = [text, chunk].concat();
        }
        String::from_utf8(text).unwrap()
    });
    assert!(last.contains("\"code\":\"shutdown\"") && last.ends_with("\n\ndata: [DONE]\n\n"), "{last}");
    let mut served = served;
    let code = served.process.wait().expect("the process ends").code();
    let log = served.log.take().map_or_else(String::new, |log| log.join().expect("the log is read"));
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("second signal: 1 request was ended"), "{log}");
}

#[test]
fn the_log_has_the_ids_that_clients_choose() {
    let served = Served::start(None, &[]);
    runtime().block_on(async {
        let mut client = Client::connect(served.addr).await;
        for (extra, status) in
            [(json!({}), 200), (json!({"stream": true}), 200), (json!({"max_tokens": 1 << 30}), 400)]
        {
            let mut body = json!({"prompt": "x", "max_tokens": 1, "request_id": "mine"});
            body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            assert_eq!(client.post("/v1/completions", &body.to_string()).await.status, status, "{body}");
        }
    });
    let (code, log) = served.terminate_for_log();
    assert_eq!(code, Some(0), "{log}");
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let ids: Vec<Value> =
        lines.filter(|line| line["message"] == "request").map(|line| line["request_id"].clone()).collect();
    assert_eq!(ids, ["mine", "mine", "mine"], "{log}");
}

#[test]
fn signals_that_are_no_end_drop_no_stream() {
    let served = Served::start(None, &[]);
    runtime().block_on(async {
        let mut client = begin_long_stream(&served).await;
        for signal in ["HUP", "USR1", "USR2"] {
            served.signal(signal);
            client.chunk().await.expect("the stream goes on").expect("not the end");
        }
        drop(client);
        served.post("/v1/completions", &json!({"prompt": "x", "max_tokens": 1})).await;
    });
    let (code, log) = served.terminate_for_log();
    assert_eq!(code, Some(0), "{log}");
    assert!(["SIGHUP", "SIGUSR1", "SIGUSR2"].iter().all(|name| log.contains(name)), "{log}");
}

#[test]
fn a_step_that_does_not_end_ends_the_process_with_its_last_steps_in_the_log() {
    let mut served = Served::start(None, &["scheduler.step_timeout_s=0.002"]);
    runtime().block_on(async {
        // A step of a long prompt lasts longer, a turn without a step does not; the watchdog needs to look while one does.
        let prompt: Vec<u32> = (0..2000).map(|i| 10 + i % 900).collect();
        let body = json!({"prompt": prompt, "max_tokens": 100, "ignore_eos": true}).to_string();
        while let Ok(stream) = tokio::net::TcpStream::connect(served.addr).await {
            let mut client = Client::of(stream);
            client.start_post("/v1/completions", &body).await;
            let _ = client.response().await;
        }
    });
    let code = served.process.wait().expect("the process ends").code();
    let log = served.log.take().map_or_else(String::new, |log| log.join().expect("the log is read"));
    assert_eq!(code, Some(4), "{log}");
    assert!(log.contains("scheduler.step_timeout_s") && log.contains("flight recorder: steps"), "{log}");
}

#[test]
fn a_lost_terminal_drops_no_stream() {
    let (served, _, lines) = Served::start_unread(None, &["telemetry.log_level=debug"]);
    runtime().block_on(async {
        let mut client = begin_long_stream(&served).await;
        // What goes with a terminal: its end of the log, and then the signal.
        drop(lines);
        served.signal("HUP");
        for _ in 0..3 {
            served.post("/v1/completions", &json!({"prompt": "x", "max_tokens": 1})).await;
            client.chunk().await.expect("the stream goes on").expect("not the end");
        }
    });
    assert_eq!(served.terminate(), Some(0));
}

#[test]
fn what_strangers_may_ask_is_said_at_the_start() {
    for (settings, wanted, unwanted) in [
        (&["server.host=0.0.0.0"][..], "no key is needed", "need no key;"),
        (&["server.host=0.0.0.0", "server.api_keys=[\"k\"]"], "need no key;", "no key is needed"),
        (&["server.api_keys=[\"k\"]", "server.public_pages=false"], "ready", "no key"),
        (&[], "ready", "no key"),
    ] {
        let served = Served::start(None, settings);
        let (code, log) = served.terminate_for_log();
        assert_eq!(code, Some(0));
        assert!(wanted == "ready" || log.contains(wanted), "{settings:?}: {log}");
        assert!(!log.contains(unwanted), "{settings:?}: {log}");
    }
}

#[test]
fn steps_count_every_token_of_a_request() {
    let served = Served::start(None, &["model.accept_any_name=true"]);
    runtime().block_on(async {
        let body = json!({"model": "any/name", "prompt": "A few words to begin with", "max_tokens": 7, "ignore_eos": true});
        for _ in 0..3 {
            let answer = served.post("/v1/completions", &body).await;
            assert_eq!(answer["model"], "any/name");
            assert_eq!(answer["usage"]["completion_tokens"], 7);
        }
        let page = Client::connect(served.addr).await.get("/metrics").await.text().to_owned();
        let value = |name: &str| -> f64 {
            let line = page.lines().find(|line| line.starts_with(&format!("{name}{{"))).expect(name);
            line.rsplit(' ').next().unwrap().parse().unwrap()
        };
        let all = value("vllm:prompt_tokens_total") + value("vllm:generation_tokens_total");
        assert_eq!(value("vllm:iteration_tokens_total_sum"), all);
        assert!(page.contains("kv_cache_size_tokens=") && page.contains("kv_cache_max_concurrency="), "{page}");
    });
    assert_eq!(served.terminate(), Some(0));
}

#[test]
fn an_allocation_that_fails_names_the_setting() {
    let limited = "ulimit -v 4000000; exec \"$0\" \"$@\"";
    let output = Command::new("sh")
        .args(["-c", limited, env!("CARGO_BIN_EXE_perigee"), "serve", "--port", "0"])
        .args(["--set", "kv_cache.memory_bytes=6GiB"])
        .current_dir(std::env::temp_dir())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(log.contains("kv_cache.memory_bytes"), "{log}");
}

#[test]
fn open_files_are_limited_by_the_hard_limit_alone() {
    let limited = "ulimit -Sn 128 && ulimit -Hn 512 && exec \"$0\" \"$@\"";
    for (setting, warns) in [("server.max_connections=448", false), ("server.max_connections=449", true)] {
        let mut process = Command::new("sh")
            .args(["-c", limited, env!("CARGO_BIN_EXE_perigee"), "serve", "--port", "0", "--set", setting])
            .current_dir(std::env::temp_dir())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines().map_while(Result::ok);
        let log: Vec<String> = lines.by_ref().take_while(|line| !line.contains("booting: ")).collect();
        let limits = std::fs::read_to_string(format!("/proc/{}/limits", process.id())).unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
        let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
        assert_eq!(files.split_whitespace().nth(3), Some("512"), "{files}");
        assert_eq!(log.iter().any(|line| line.contains("too few open files")), warns, "{log:?}");
    }
}

#[test]
fn a_server_on_a_unix_socket_is_asked_there() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let setting = format!("server.unix_socket={}", socket.display());
    let perigee = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_perigee"));
        command.current_dir(std::env::temp_dir());
        command
    };
    let mut process = perigee().args(["serve", "--set", &setting]).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
    let ready =
        lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("url=") && line.contains("ready")));
    assert!(ready.expect("a ready line").unwrap().contains(&format!("unix:{}", socket.display())));
    let rest = std::thread::spawn(move || lines.for_each(drop));
    let output = perigee().args(["health", "--set", &setting]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let status = Command::new("kill").args(["-TERM", &process.id().to_string()]).status();
    assert!(status.unwrap().success());
    assert_eq!(process.wait().unwrap().code(), Some(0));
    rest.join().unwrap();
    assert!(!socket.exists());
}
