//! The ledger over restarts, rotations, and a disk that fails.

use std::fs;
use std::path::Path;

use super::*;
use crate::generate::Usage as Counts;

fn config(folder: &Path) -> LedgerConfig {
    LedgerConfig { directory: Some(folder.to_owned()), ..LedgerConfig::default() }
}

fn open(config: &LedgerConfig) -> Arc<Ledger> {
    let metrics = Arc::new(Metrics::new("m", false));
    Ledger::open(config, metrics).unwrap().unwrap()
}

fn told(prompt: usize, reply: usize) -> Summary {
    let usage = Counts {
        prompt_tokens: prompt,
        cached_tokens: prompt / 2,
        completion_tokens: reply,
        reasoning_tokens: 1,
        ..Counts::default()
    };
    Summary { usage, finish: "stop", ..Summary::default() }
}

fn end(entry: Entry, status: u16, summary: &Summary) {
    entry.end(status, summary.finish, summary, Duration::from_millis(5));
}

fn rows(ledger: &Ledger, query: &str) -> serde_json::Value {
    serde_json::to_value(ledger.sum(Query::read(Some(query)).unwrap()).unwrap()).unwrap()
}

/// Ends a process as SIGKILL does: nothing is closed.
fn kill(ledger: Arc<Ledger>) {
    // The lock goes with the process.
    ledger.state().files.unlock();
    std::mem::forget(ledger);
}

#[test]
fn what_clients_were_told_is_there_after_a_kill_and_the_rest_is_cut() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(&config(folder.path()));
    end(ledger.begin("r1", Some("a"), "/v1/messages"), 200, &told(10, 3));
    end(ledger.begin("r2", None, "/v1/messages"), 500, &told(2, 0));
    let _running = ledger.begin("r3", Some("a"), "/v1/messages");
    kill(ledger);
    let ledger = open(&config(folder.path()));
    let usage = rows(&ledger, "");
    assert_eq!(usage["total"]["requests"], 2);
    assert_eq!(usage["rows"][0]["client"], serde_json::Value::Null);
    assert_eq!(usage["rows"][0]["failed_requests"], 1);
    let a = &usage["rows"][1];
    assert_eq!((&a["client"], &a["cut_requests"], &a["prompt_tokens"]), (&"a".into(), &1.into(), &10.into()));
    assert_eq!(
        (&a["completion_tokens"], &a["reasoning_tokens"], &a["cached_tokens"]),
        (&3.into(), &1.into(), &5.into())
    );
    // Numbers go on, and what is cut is cut once.
    assert_eq!(ledger.begin("r4", None, "/v1/messages").number, 4);
    kill(ledger);
    assert_eq!(rows(&open(&config(folder.path())), "")["total"]["cut_requests"], 2);
}

#[test]
fn a_torn_line_costs_itself_alone() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(&config(folder.path()));
    end(ledger.begin("r1", Some("a"), "/v1/messages"), 200, &told(10, 3));
    kill(ledger);
    let path = folder.path().join("usage-000001.jsonl");
    let whole = fs::read(&path).unwrap();
    // The last line loses its second half, as after a loss of power.
    fs::write(&path, &whole[..whole.len() - 40]).unwrap();
    let ledger = open(&config(folder.path()));
    end(ledger.begin("r2", Some("a"), "/v1/messages"), 200, &told(1, 1));
    let usage = rows(&ledger, "");
    assert_eq!(usage["unreadable_lines"], 1);
    assert_eq!((&usage["total"]["requests"], &usage["total"]["cut_requests"]), (&1.into(), &1.into()));
}

#[test]
fn files_rotate_and_each_is_read_without_those_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let small = LedgerConfig { file_bytes: 2000, max_bytes: 6000, ..config(folder.path()) };
    let ledger = open(&small);
    let _running = ledger.begin("long", Some("a"), "/v1/messages");
    for _ in 0..50 {
        end(ledger.begin("r", Some("a"), "/v1/messages"), 200, &told(10, 3));
    }
    let now = SystemTime::now();
    assert_eq!((ledger.spent("a", now).month, ledger.spent("b", now).day), (650, 0));
    let files = files::paths(folder.path()).unwrap();
    let bytes: u64 = files.iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    assert!((2..=4).contains(&files.len()) && bytes <= 9000, "{} files, {bytes} bytes", files.len());
    assert!(!files[0].ends_with("usage-000001.jsonl"), "the oldest are gone");
    kill(ledger);
    let ledger = open(&small);
    // Neither the request from before these files nor what was used is forgotten.
    assert_eq!(rows(&ledger, "client=a")["total"]["cut_requests"], 1);
    assert_eq!(ledger.spent("a", now).month, 650);
    assert_eq!(ledger.state().next, 52);
}

#[test]
fn periods_and_times_choose_lines() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(&config(folder.path()));
    for (number, at) in
        [(1, "2026-11-30T23:59:59.999Z"), (2, "2026-12-01T00:00:00.000Z"), (3, "2026-12-01T09:00:00.000Z")]
    {
        let opened = Opened {
            number,
            at: at.into(),
            id: "r".into(),
            client: Some("a".into()),
            route: "/v1/messages".into(),
        };
        let tokens = Tokens { prompt_tokens: 1, ..Tokens::default() };
        let ended =
            Ended { opened, request_id: None, status: 200, finish: "stop".into(), tokens, seconds: 0.1 };
        ledger.write(&mut ledger.state(), Line::End(ended));
    }
    let periods = |query: &str| {
        let usage = rows(&ledger, query);
        let rows = usage["rows"].as_array().unwrap().iter();
        rows.map(|row| {
            (row["period"].as_str().unwrap_or("all").to_owned(), row["requests"].as_u64().unwrap())
        })
        .collect::<Vec<_>>()
    };
    assert_eq!(periods("by=month"), [("2026-11".into(), 1), ("2026-12".into(), 2)]);
    assert_eq!(
        periods("from=2026-12-01&by=hour"),
        [("2026-12-01T00".into(), 1), ("2026-12-01T09".into(), 1)]
    );
    assert_eq!(periods("from=2026-11&to=2026-12-01T09%3A00%3A00Z"), [("all".into(), 2)]);
    assert_eq!(periods("client=b"), []);
    for (query, field) in [("by=year", "by"), ("from=yesterday", "from"), ("user=a", "user")] {
        assert_eq!(Query::read(Some(query)).unwrap_err().param.as_deref(), Some(field));
    }
}

#[test]
fn one_process_writes_a_ledger_and_others_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let _held = open(&config(folder.path()));
    let error = Ledger::open(&config(folder.path()), Arc::new(Metrics::new("m", false))).unwrap_err();
    assert!(error.to_string().contains("another process writes the ledger"), "{error}");
    let other = tempfile::tempdir().unwrap();
    fs::write(other.path().join("usage-000001.jsonl"), "{}\n").unwrap();
    let error = Ledger::open(&config(other.path()), Arc::new(Metrics::new("m", false))).unwrap_err();
    assert!(error.to_string().contains("does not begin as a ledger"), "{error}");
}

/// `/dev/full` takes no byte.
#[test]
fn a_full_disk_costs_no_request_and_its_lines_wait() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(&config(folder.path()));
    let full = fs::OpenOptions::new().append(true).open("/dev/full").unwrap();
    let file = std::mem::replace(ledger.state().files.file_mut(), full);
    end(ledger.begin("r1", Some("a"), "/v1/messages"), 200, &told(10, 3));
    assert_eq!(rows(&ledger, "")["total"]["requests"], 0);
    *ledger.state().files.file_mut() = file;
    end(ledger.begin("r2", Some("a"), "/v1/messages"), 200, &told(10, 3));
    let usage = rows(&ledger, "");
    assert_eq!((&usage["total"]["requests"], &usage["unreadable_lines"]), (&2.into(), &0.into()));
    assert_eq!(ledger.spent("a", SystemTime::now()).day, 26);
}
