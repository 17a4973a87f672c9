//! Subcommands that need no model: settings, health, version.

use std::io::{self, Write};
use std::process::ExitCode;

use crate::boot;
use crate::config::args::{ConfigCommand, RequestSettings, SourceArgs};
use crate::config::{self, Checked, ConfigErrors, Environment, Loaded};

/// Exit code of wrong use or wrong settings.
pub(super) const EXIT_USAGE: u8 = 2;

/// Loads the settings; prints their errors.
pub(super) fn load_settings(args: &impl RequestSettings) -> Result<Loaded, ExitCode> {
    config::load(&args.request(), &Environment::from_process()).map_err(|errors| wrong_settings(&errors))
}

/// [`load_settings`] for a server on this machine: what it lacks is an error too.
pub(super) fn load_for_this_machine(args: &impl RequestSettings) -> Result<Loaded, ExitCode> {
    check_settings(args).into_result().map_err(|errors| wrong_settings(&errors))
}

/// Prints what is wrong with settings.
fn wrong_settings(errors: &ConfigErrors) -> ExitCode {
    eprintln!("perigee: {errors}");
    ExitCode::from(EXIT_USAGE)
}

/// The settings, and everything wrong with them on this machine.
pub(super) fn check_settings(args: &impl RequestSettings) -> Checked {
    config::check(&args.request(), &Environment::from_process(), &boot::shortcomings)
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
        ConfigCommand::Check { settings_only, settings } => {
            let checked = match settings_only {
                true => config::check(&settings.request(), &Environment::from_process(), &|_| Vec::new()),
                false => check_settings(settings),
            };
            checked.loaded.iter().for_each(warn);
            match checked.into_result() {
                Ok(_) if *settings_only => print("the settings are valid\n"),
                Ok(_) => {
                    print("the settings are valid, and this machine has the devices and folders they name\n")
                }
                Err(errors) => wrong_settings(&errors),
            }
        }
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
        eprintln!("perigee: warning: {warning}");
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
