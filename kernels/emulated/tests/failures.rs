//! What the whole server does when one of its devices fails: the process ends by itself, within its limit, and its log says why.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A server on two emulated devices, and what it has logged; killed when dropped.
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Exit code of a server on two devices of which one fails so while it answers, its log, and the time from the request to the end; `None`
/// without NVRTC.
fn end_of(failure: &str, settings: &[&str]) -> Option<(Option<i32>, String, Duration)> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/logits/kimi");
    let mut command = Command::new(env!("CARGO_BIN_EXE_emulated-serve"));
    command.args(["--emulate", "2xsm_90a", "--fail", failure, "--port", "0", "--model"]).arg(golden);
    let small = [
        "telemetry.log_format=json",
        "speculation.method=off",
        "scheduler.max_num_seqs=1",
        "scheduler.max_num_batched_tokens=16",
        "scheduler.max_model_len=256",
        "kv_cache.num_blocks=32",
    ];
    for setting in small.iter().chain(settings) {
        command.args(["--set", setting]);
    }
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("PERIGEE_") || name == "RUST_LOG") {
        command.env_remove(name);
    }
    command.current_dir(std::env::temp_dir()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut process = command.spawn().expect("the binary starts");
    let mut lines = BufReader::new(process.stderr.take().expect("stderr is a pipe")).lines();
    let mut served = Served(process);
    let mut log = String::new();
    let address = loop {
        let Some(line) = lines.next() else {
            let lacks_compiler = log.contains("NVRTC") && std::env::var_os("REQUIRE_NVRTC").is_none();
            assert!(lacks_compiler, "no ready line:\n{log}");
            return None;
        };
        let line = line.expect("UTF-8");
        log = log + &line + "\n";
        if line.contains("\"message\":\"ready\"") {
            let (_, rest) = line.split_once("http://").expect("a URL");
            break rest.split('"').next().unwrap_or_default().to_owned();
        }
    };
    let rest = std::thread::spawn(move || {
        lines.map_while(Result::ok).fold(String::new(), |log, line| log + &line + "\n")
    });
    let body = r#"{"prompt":[5,6,7,8],"max_tokens":200,"temperature":0,"ignore_eos":true,"stream":true}"#;
    let begun = Instant::now();
    let mut connection = TcpStream::connect(&address).expect("it listens");
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    connection.write_all((head + body).as_bytes()).expect("it reads");
    let mut reply = String::new();
    let _ = connection.read_to_string(&mut reply);
    let code = served.0.wait().expect("the process ends").code();
    let took = begun.elapsed();
    assert!(reply.contains("data: "), "it failed before its first token: {reply}\n{log}");
    assert!(!reply.contains("\"finish_reason\":\"length\""), "it was done before: {reply}");
    Some((code, log + &rest.join().expect("the log is read"), took))
}

/// A device error ends the process within the step.
#[test]
fn a_lost_device_ends_the_process_with_its_reason() {
    let Some((code, log, took)) = end_of("lost:1:1500", &[]) else { return };
    println!("{took:?}");
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("the device is lost"), "{log}");
}

/// A device that gives nothing to the others is named by the one that waits.
#[test]
fn a_silent_device_ends_the_process_with_rank_and_exchange() {
    let Some((code, log, took)) = end_of("silent:1:700", &[]) else { return };
    println!("{took:?}");
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("rank 0 has waited 0.05 s for rank 1 in ") && log.contains("exchange 700"), "{log}");
}

/// A call that does not return: the watchdog, which is not the step's thread, ends the process.
#[test]
fn a_device_that_hangs_ends_the_process_by_its_watchdog() {
    let Some((code, log, took)) = end_of("hangs:1:1500", &["scheduler.step_timeout_s=5"]) else { return };
    println!("{took:?}");
    assert_eq!(code, Some(4), "{log}");
    assert!(log.contains("the engine's step does not end"), "{log}");
}
