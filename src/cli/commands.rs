//! Subcommands that need no model: settings, health, version.

use std::io::{self, Write};
use std::process::ExitCode;

use crate::boot;
use crate::config::args::{ConfigCommand, RequestSettings, SourceArgs};
use crate::config::{
    self, Checked, ConfigError, ConfigErrors, Environment, LoadRequest, Loaded, ProfileSummary,
};

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

/// Loads the settings for devices that the caller gives: a machine without a GPU is no error.
pub(super) fn load_without_gpu(args: &impl RequestSettings) -> Result<Loaded, ExitCode> {
    let others = |settings: &config::Settings| {
        let found = boot::shortcomings(settings).into_iter();
        found.filter(|(section, key, _)| (*section, *key) != ("device", "backend")).collect()
    };
    let checked = config::check(&args.request(), &Environment::from_process(), &others);
    checked.into_result().map_err(|errors| wrong_settings(&errors))
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

/// The settings, and everything wrong with them on any machine.
fn check_without_machine(args: &impl RequestSettings) -> Checked {
    config::check(&args.request(), &Environment::from_process(), &|_| Vec::new())
}

/// `perigee config ...`.
pub(super) fn config(command: &ConfigCommand) -> ExitCode {
    match command {
        ConfigCommand::Show { json, settings } => {
            let checked = check_without_machine(settings);
            checked.loaded.iter().for_each(warn);
            // Values first: what is wrong with them is understood beside them.
            let printed = checked.loaded.as_ref().map(|loaded| match json {
                true => print_json(&config::show_json(loaded)),
                false => print(&config::show_table(loaded)),
            });
            match checked.into_result() {
                Ok(_) => printed.unwrap_or(ExitCode::SUCCESS),
                Err(errors) => wrong_settings(&errors),
            }
        }
        ConfigCommand::Check { settings_only, settings } => {
            let checked = match settings_only {
                true => check_without_machine(settings),
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
            let checked = check_without_machine(&sources);
            let printed =
                checked.loaded.as_ref().map(|loaded| print(&profile_table(&listed(loaded, &sources))));
            match checked.into_result() {
                Ok(_) => printed.unwrap_or(ExitCode::SUCCESS),
                Err(errors) => wrong_settings(&errors),
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

/// Whether this build serves a profile on this machine, in the order of the listing.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    /// With no more settings than there are.
    Runs,
    /// As soon as `model.path` is set.
    NeedsModel,
    /// The first reason.
    Refused(String),
}

impl Verdict {
    /// By everything that is wrong with the profile on this machine.
    fn of(errors: &[ConfigError]) -> Self {
        match errors.iter().find(|error| error.key != "model.required") {
            Some(error) => Self::Refused(ConfigError { origin: None, ..error.clone() }.to_string()),
            None if errors.is_empty() => Self::Runs,
            None => Self::NeedsModel,
        }
    }

    /// Place in the listing, and word.
    fn rank(&self) -> (u8, &'static str) {
        match self {
            Self::Runs => (0, "runs"),
            Self::NeedsModel => (1, "needs a model"),
            Self::Refused(_) => (2, "refused"),
        }
    }
}

/// Every profile, checked with the other settings of this process on this machine.
fn listed(loaded: &Loaded, sources: &SourceArgs) -> Vec<(ProfileSummary, Verdict)> {
    let environment = Environment::from_process();
    let verdict = |name: &str| {
        let request = LoadRequest { profile: Some(name.to_owned()), ..sources.request() };
        Verdict::of(&config::check(&request, &environment, &boot::shortcomings).errors)
    };
    let profiles = config::list_profiles(&loaded.profile_dir).into_iter();
    profiles
        .map(|profile| (verdict(&profile.name), profile))
        .map(|(verdict, profile)| (profile, verdict))
        .collect()
}

/// Name, verdict and description in columns, those that run first; below a refused one its reason.
fn profile_table(profiles: &[(ProfileSummary, Verdict)]) -> String {
    let width = profiles.iter().map(|(profile, _)| profile.name.len()).max().unwrap_or(0);
    let words = profiles.iter().map(|(_, verdict)| verdict.rank().1.len()).max().unwrap_or(0);
    let mut sorted: Vec<_> = profiles.iter().collect();
    sorted.sort_by_key(|(_, verdict)| verdict.rank().0);
    let mut text = String::new();
    for (profile, verdict) in sorted {
        let place =
            profile.path.as_ref().map_or_else(|| "built in".to_owned(), |path| path.display().to_string());
        let (name, word, description) = (&profile.name, verdict.rank().1, &profile.description);
        text.push_str(&format!("{name:width$}  {word:words$}  {description} ({place})\n"));
        let remedy = match verdict {
            Verdict::Runs => continue,
            Verdict::NeedsModel => "set model.path (--model DIR)",
            Verdict::Refused(reason) => reason,
        };
        text.push_str(&format!("{:width$}  {:words$}  -> {remedy}\n", "", ""));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn error(key: &str, problem: &str) -> ConfigError {
        ConfigError {
            key: key.into(),
            value: Some("4".into()),
            origin: Some("a profile".into()),
            problem: problem.into(),
        }
    }

    #[test]
    fn profiles_that_run_here_come_first_and_refusals_have_their_reason() {
        let required = error("model.required", "needs model.path");
        let profile = |name: &str, errors: &[ConfigError]| {
            let summary =
                ProfileSummary { name: name.into(), path: None, description: format!("The {name}") };
            (summary, Verdict::of(errors))
        };
        let table = profile_table(&[
            profile("big", &[required.clone(), error("device.ranks", "one GPU")]),
            profile("large", &[required]),
            profile("small", &[]),
        ]);
        let expected = "small  runs           The small (built in)\n\
                        large  needs a model  The large (built in)\n                      -> set model.path (--model DIR)\n\
                        big    refused        The big (built in)\n                      -> device.ranks = 4: one GPU\n";
        assert_eq!(table, expected);
    }
}
