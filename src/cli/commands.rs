//! Subcommands that need no model: settings, health, version.

use std::io::{self, Write};
use std::process::ExitCode;

use crate::config::args::{ConfigCommand, RequestSettings, SourceArgs};
use crate::config::{self, Environment, Loaded};

/// Exit code of wrong use or wrong settings.
pub(super) const EXIT_USAGE: u8 = 2;

/// Loads the settings; prints their errors.
pub(super) fn load_settings(args: &impl RequestSettings) -> Result<Loaded, ExitCode> {
    config::load(&args.request(), &Environment::from_process()).map_err(|errors| {
        eprintln!("perigee: {errors}");
        ExitCode::from(EXIT_USAGE)
    })
}

/// `perigee config ...`.
pub(super) fn config(command: &ConfigCommand) -> ExitCode {
    match command {
        ConfigCommand::Show { json, settings } => match load_settings(settings) {
            Ok(loaded) => {
                warn(&loaded);
                if *json {
                    print_json(&config::show_json(&loaded))
                } else {
                    print(&config::show_table(&loaded))
                }
            }
            Err(code) => code,
        },
        ConfigCommand::Check(settings) => match load_settings(settings) {
            Ok(loaded) => {
                warn(&loaded);
                print("the settings are valid\n")
            }
            Err(code) => code,
        },
        ConfigCommand::Schema => print_json(&config::json_schema()),
        ConfigCommand::Template => print(&config::reference_toml()),
        ConfigCommand::Profiles { config } => {
            let sources = SourceArgs { config: config.clone(), ..SourceArgs::default() };
            match load_settings(&sources) {
                Ok(loaded) => print(&profile_table(&loaded)),
                Err(code) => code,
            }
        }
    }
}

/// `perigee version`.
pub(super) fn version() -> ExitCode {
    print(concat!("perigee ", env!("CARGO_PKG_VERSION"), "\n"))
}

/// Prints warnings about settings.
fn warn(loaded: &Loaded) {
    for warning in &loaded.warnings {
        eprintln!("perigee: {warning}");
    }
}

fn profile_table(loaded: &Loaded) -> String {
    let profiles = config::list_profiles(&loaded.profile_dir);
    let width = profiles.iter().map(|p| p.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for profile in profiles {
        let place = profile.path.map_or_else(|| "built in".to_owned(), |path| path.display().to_string());
        text.push_str(&format!("{:width$}  {} ({place})\n", profile.name, profile.description));
    }
    text
}

pub(super) fn print_json(value: &serde_json::Value) -> ExitCode {
    print(&format!("{value:#}\n"))
}

/// Writes to stdout. A reader that closes its end (`| head`) is no error.
pub(super) fn print(text: &str) -> ExitCode {
    match io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("perigee: cannot write: {e}");
            ExitCode::FAILURE
        }
    }
}
