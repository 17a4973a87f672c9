//! `perigee top`: the state of a running server in a terminal, by its health route and its metrics.
//!
//! `scrape` asks, `exposition` reads a page, `watch` keeps the last minutes, `panels` and
//! `notices` have the figures, `view` draws them and `plain` prints them. This file has the loop: keys,
//! signals, time.

mod exposition;
mod format;
mod histogram;
mod notice;
mod notices;
mod panels;
mod plain;
mod scrape;
#[cfg(test)]
mod test_server;
mod view;
mod watch;

use std::fs;
use std::io::{self, IsTerminal};
use std::pin::pin;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use self::notices::notices;
use self::scrape::Target;
use self::view::Screen;
use self::watch::{Link, Watch};
use super::client::Address;
use super::commands::{load_settings, print};
use super::trust::Trust;
use crate::config::Loaded;
use crate::config::args::TopArgs;
use perigee_telemetry::LogColor;

/// The screen is drawn at least this often: times on it pass.
const TICK: Duration = Duration::from_secs(1);
/// Most events of the terminal that wait.
const MAX_EVENTS: usize = 64;

/// Watches until a key or a signal ends it; without a terminal, or with `--once`, prints one snapshot. Exit code 1 if the server cannot be
/// asked for one.
pub(super) fn top(args: &TopArgs) -> ExitCode {
    let loaded = match load_settings(&args.settings) {
        Ok(loaded) => loaded,
        Err(code) => return code,
    };
    let target = match target(args, &loaded) {
        Ok(target) => target,
        Err(problem) => return fail(&problem),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error.to_string()),
    };
    let watch = Watch::new(target.url(), args.interval);
    let live = !args.once && io::stdout().is_terminal() && io::stdin().is_terminal();
    let code = runtime.block_on(async {
        if live {
            let color = loaded.settings.telemetry.log_color != LogColor::Never;
            show(&target, watch, color).await
        } else {
            once(&target, watch).await
        }
    });
    runtime.shutdown_background(); // A name that is still being looked up would be waited for.
    code
}

fn fail(problem: &str) -> ExitCode {
    eprintln!("perigee: {problem}");
    ExitCode::FAILURE
}

/// The server to ask, and the key for it.
fn target(args: &TopArgs, loaded: &Loaded) -> Result<Target, String> {
    let server = &loaded.settings.server;
    let key = match &args.key_file {
        Some(path) => {
            let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
            let key = text.lines().map(str::trim).find(|line| !line.is_empty());
            Some(key.ok_or_else(|| format!("{}: the file is empty", path.display()))?.to_owned())
        }
        None => None,
    };
    match &args.url {
        Some(url) => Target::of_url(url, key, Trust::of(args.ca.as_deref())?)
            .map_err(|problem| format!("--url {url}: {problem}")),
        None => {
            // Elsewhere the key could reach somebody else.
            let trust = if server.is_exposed() && !server.is_everywhere() {
                Trust::of(args.ca.as_deref())?
            } else {
                Trust::Anyone
            };
            Ok(Target { address: Address::configured(server, trust), prefix: String::new(), key })
        }
    }
}

/// Two scrapes, an interval apart, as text.
async fn once(target: &Target, mut watch: Watch) -> ExitCode {
    let began = Instant::now();
    for remaining in [1, 0] {
        watch.record(began.elapsed(), target.scrape().await);
        if let Link::Lost { problem, .. } = &watch.link {
            return fail(&format!("{}: {}", watch.url, problem.text));
        }
        if remaining > 0 {
            sleep(watch.interval).await;
        }
    }
    let notices = notices(&watch, began.elapsed().as_secs_f64());
    print(&plain::snapshot(&watch, &notices))
}

/// Watches on the terminal, which is as it was afterwards: also after a panic, for which `ratatui` sets a hook.
async fn show(target: &Target, watch: Watch, color: bool) -> ExitCode {
    let ended = async {
        let ended = ended()?;
        let mut terminal = ratatui::try_init()?;
        Loop { watch, color, began: Instant::now(), frozen: None, help: false }
            .run(target, &mut terminal, ended)
            .await
    }
    .await;
    ratatui::restore();
    match ended {
        Ok(code) => code,
        Err(error) => fail(&format!("the terminal: {error}")),
    }
}

/// Ends with the exit code of a program that a signal ends.
fn ended() -> io::Result<impl Future<Output = ExitCode>> {
    let mut hangup = signal(SignalKind::hangup())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        let number = tokio::select! {
            _ = hangup.recv() => 1,
            _ = interrupt.recv() => 2,
            _ = terminate.recv() => 15,
        };
        ExitCode::from(128 + number)
    })
}

/// The live screen.
struct Loop {
    watch: Watch,
    color: bool,
    began: Instant,
    /// What is shown while the display is paused; scraping goes on.
    frozen: Option<(Watch, Duration)>,
    help: bool,
}

impl Loop {
    async fn run(
        mut self,
        target: &Target,
        terminal: &mut DefaultTerminal,
        ended: impl Future<Output = ExitCode>,
    ) -> io::Result<ExitCode> {
        let mut events = terminal_events();
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut ended = pin!(ended);
        let mut scrape = pin!(target.scrape());
        let mut asking = true;
        let mut asked = Instant::now();
        let mut next = asked;
        loop {
            self.draw(terminal)?;
            tokio::select! {
                code = &mut ended => return Ok(code),
                event = events.recv() => match event {
                    Some(Ok(Event::Key(key))) if key.kind == KeyEventKind::Press => {
                        let control = key.modifiers.contains(KeyModifiers::CONTROL);
                        match (key.code, control) {
                            (KeyCode::Char('l'), true) => terminal.clear()?,
                            (code, control) if self.press(code, control) => return Ok(ExitCode::SUCCESS),
                            _ => {}
                        }
                    }
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return Err(error),
                    None => return Err(io::ErrorKind::UnexpectedEof.into()),
                },
                outcome = &mut scrape, if asking => {
                    asking = false;
                    let answered = outcome.is_ok();
                    let wait = self.watch.record(self.began.elapsed(), outcome);
                    next = if answered { asked + wait } else { Instant::now() + wait };
                }
                () = sleep_until(next), if !asking => {
                    scrape.set(target.scrape());
                    (asking, asked) = (true, Instant::now());
                }
                _ = tick.tick() => {}
            }
        }
    }

    fn draw(&self, terminal: &mut DefaultTerminal) -> io::Result<()> {
        let (watch, now) = match &self.frozen {
            Some((watch, at)) => (watch, *at),
            None => (&self.watch, self.began.elapsed()),
        };
        let (color, paused, help) = (self.color, self.frozen.is_some(), self.help);
        let screen = Screen { watch, now, color, paused, help };
        terminal.draw(|frame| screen.draw(frame)).map(|_| ())
    }

    /// Obeys a key; returns whether the program ends.
    fn press(&mut self, key: KeyCode, control: bool) -> bool {
        match key {
            KeyCode::Char('c') if control => return true,
            _ if control => {}
            KeyCode::Char('q' | 'Q') => return true,
            KeyCode::Esc if !self.help => return true,
            KeyCode::Esc => self.help = false,
            KeyCode::Char('?' | 'h') => self.help = !self.help,
            KeyCode::Char('p' | 'P' | ' ') => {
                self.frozen = match self.frozen.take() {
                    Some(_) => None,
                    None => Some((self.watch.clone(), self.began.elapsed())),
                };
            }
            _ => {}
        }
        false
    }
}

/// Reads the terminal on a thread of its own, which lasts as long as the process: a read cannot be ended.
fn terminal_events() -> mpsc::Receiver<io::Result<Event>> {
    let (sender, receiver) = mpsc::channel(MAX_EVENTS);
    thread::spawn(move || {
        loop {
            let event = event::read();
            let failed = event.is_err();
            if sender.blocking_send(event).is_err() || failed {
                return;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::config::args::{Command, CommandLine, RequestSettings};
    use crate::config::{self, Environment};

    #[test]
    fn keys() {
        let watch = Watch::new("u".into(), TICK);
        let mut live = Loop { watch, color: false, began: Instant::now(), frozen: None, help: false };
        assert!(!live.press(KeyCode::Char('p'), false) && live.frozen.is_some());
        assert!(!live.press(KeyCode::Char(' '), false) && live.frozen.is_none());
        assert!(!live.press(KeyCode::Char('p'), true) && live.frozen.is_none());
        assert!(!live.press(KeyCode::Char('?'), false) && live.help);
        assert!(!live.press(KeyCode::Esc, false) && !live.help);
        assert!(live.press(KeyCode::Esc, false) && live.press(KeyCode::Char('q'), false));
        assert!(live.press(KeyCode::Char('c'), true) && !live.press(KeyCode::Char('c'), false));
    }

    #[test]
    fn keys_go_to_the_server_that_they_are_for() {
        let dir = tempfile::tempdir().unwrap();
        let site = dir.path().join("site.toml");
        fs::write(&site, "[server]\napi_keys = [\"of-the-file\"]\nport = 7\n").unwrap();
        let key_file = dir.path().join("key");
        fs::write(&key_file, "\nof-the-key-file\n").unwrap();
        let check = |flags: &[&str], url: &str, key: &str| {
            let line = ["perigee", "top", "--config", site.to_str().unwrap()];
            let line = CommandLine::try_parse_from(line.iter().chain(flags)).unwrap();
            let Command::Top(args) = line.command else { panic!("not top") };
            let loaded = config::load(&args.settings.request(), &Environment::of(&[])).unwrap();
            let target = target(&args, &loaded).unwrap();
            assert_eq!((target.url().as_str(), target.key.as_deref().unwrap_or("")), (url, key), "{flags:?}");
        };
        let from_file = ["--key-file", key_file.to_str().unwrap()];
        check(&[], "http://127.0.0.1:7", "");
        check(&from_file, "http://127.0.0.1:7", "of-the-key-file");
        check(&["--port", "8"], "http://127.0.0.1:8", "");
        check(&["--set", "server.unix_socket=/s"], "unix:/s", "");
        check(&["--url", "other:9"], "http://other:9", "");
        check(&["--url", "https://other"], "https://other:443", "");
        let tls = ["--set", "server.tls_certificate=c", "--set", "server.tls_key=k"];
        check(&tls, "https://127.0.0.1:7", "");
        check(&["--url", "other:9", from_file[0], from_file[1]], "http://other:9", "of-the-key-file");
    }
}
