//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use super::sources::{FlagValue, LoadRequest};

/// The command line.
#[derive(Debug, Parser)]
#[command(
    name = "perigee",
    version,
    about = "Serves the Kimi K2 family of models over an OpenAI-compatible API",
    after_help = "Exit codes: 0 done, 1 failed, 2 wrong use or wrong settings."
)]
pub struct CommandLine {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Load a model and serve it.
    Serve(SettingsArgs),
    /// Look at settings.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Ask a running server whether it is ready; exit 0 if it is, 1 if not.
    Health(HealthArgs),
    /// Measures prefill and decode of a model through the engine, against this machine's memory bandwidth.
    Bench(BenchArgs),
    /// Print the version.
    Version,
    /// Say what a checkpoint is: sizes, formats, what is missing; exit 1 if it could not be served.
    Inspect(InspectArgs),
    /// Say how a checkpoint would lie on a set of devices: bytes, KV tokens, floors; exit 1 if it does not fit.
    Plan(PlanArgs),
    /// Make a quantized checkpoint folder of another; an interrupted run is taken up by the same command.
    Quantize(QuantizeArgs),
}

/// What to do with settings.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print every value and where it came from; secrets are masked.
    Show {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        /// Which settings.
        #[command(flatten)]
        settings: SettingsArgs,
    },
    /// Report everything that is wrong; exit 2 if anything is.
    Check(SettingsArgs),
    /// Print the JSON Schema of the site file.
    Schema,
    /// Print the site file with every key commented out.
    Template,
    /// List the profiles there are.
    Profiles(SettingsArgs),
}

/// Flags that change settings; they are stronger than the environment and all files.
#[derive(Debug, Clone, Default, Args)]
pub struct SettingsArgs {
    /// Site file [default: config/perigee.toml if it exists; env: PERIGEE_CONFIG].
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Profile: profiles/NAME.toml beside the site file, or a built-in one [env: PERIGEE_PROFILE].
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
    /// Checkpoint folder (model.path); without it the embedded model is served.
    #[arg(long, value_name = "DIR")]
    pub model: Option<String>,
    /// Address to listen on (server.host).
    #[arg(long)]
    pub host: Option<String>,
    /// Port to listen on, 0 = any free one (server.port).
    #[arg(long)]
    pub port: Option<String>,
    /// Any setting; may be given several times.
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE", value_parser = parse_set)]
    pub set: Vec<(String, String)>,
}

/// How to ask.
#[derive(Debug, Args)]
pub struct HealthArgs {
    /// What to ask, http only [default: /health/ready at the configured address].
    #[arg(long)]
    pub url: Option<String>,
    /// Longest wait for the answer, seconds.
    #[arg(long, default_value_t = 2.0)]
    pub timeout: f64,
    /// Which settings.
    #[command(flatten)]
    pub settings: SettingsArgs,
}

/// What to measure.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Prompt tokens of the prefill measurement.
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    pub prefill: u32,
    /// Reply tokens of the decode measurement.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    pub decode: u32,
    /// Context tokens before the first decoded token.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub depth: u32,
    /// Sequences that decode at once.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub concurrency: u32,
    /// Repetitions, after one warm-up.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
    /// Settings.
    #[command(flatten)]
    pub settings: SettingsArgs,
}

/// What to look at.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// Checkpoint folder.
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
    /// Also read every block scale: how they spread, which are NaN or negative. Takes as long as reading a ninth of the files.
    #[arg(long)]
    pub scales: bool,
}

/// What to plan.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// Checkpoint folder, or a config.json alone.
    #[arg(value_name = "FOLDER|config.json")]
    pub model: PathBuf,
    /// Devices as NUMBERxDEVICE: rtx-pro-6000, h200, b200, b300, or a size such as 96GB.
    #[arg(long, value_name = "NxDEVICE")]
    pub devices: String,
    /// Format of the routed experts [default: as stored; bf16 for a config.json alone]: nvfp4, mxfp4, int4-g32, fp8, bf16.
    #[arg(long)]
    pub format: Option<String>,
    /// Routed experts per layer, for a checkpoint that is to be pruned [default: config.json's].
    #[arg(long, value_name = "N")]
    pub experts: Option<usize>,
    /// Element type of the KV cache: fp8 or bf16.
    #[arg(long, default_value = "fp8")]
    pub kv: String,
    /// Longest context, tokens [default: config.json's].
    #[arg(long, value_name = "N")]
    pub max_model_len: Option<usize>,
    /// Tokens of the largest step, which size the workspace.
    #[arg(long, value_name = "N", default_value_t = 2048)]
    pub max_num_batched_tokens: usize,
    /// Sequences at once, which size the logits.
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub max_num_seqs: usize,
    /// Share of a device's memory that is used; the rest is left to the driver, the runtime and fragmentation.
    #[arg(long, value_name = "SHARE", default_value_t = 0.9)]
    pub utilisation: f64,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// What to quantize, and how.
#[derive(Debug, Args)]
pub struct QuantizeArgs {
    /// Checkpoint folder: BF16, F16, F32, FP8 or INT4 (group 32) weights.
    #[arg(value_name = "SOURCE")]
    pub source: PathBuf,
    /// Folder to make; empty, absent, or left by an interrupted run of the same command.
    #[arg(value_name = "TARGET")]
    pub target: PathBuf,
    /// Format of the packed modules: nvfp4, mxfp4, int4-g32 or fp8.
    #[arg(long)]
    pub format: String,
    /// How NVFP4 block scales are chosen: max, or sweep (least squared error of 126 candidates; slower) [default: max].
    #[arg(long)]
    pub scales: Option<String>,
    /// What is packed: experts, experts+shared or all-but-attention [default: experts].
    #[arg(long)]
    pub modules: Option<String>,
    /// Names and configuration: modelopt or compressed-tensors (nvfp4), quark or compressed-tensors (mxfp4), compressed-tensors
    /// (int4-g32), deepseek (fp8) [default: the first].
    #[arg(long)]
    pub dialect: Option<String>,
    /// Worker threads, 0 = one per core.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1024))]
    pub threads: u32,
    /// Print the report as JSON instead of a table.
    #[arg(long)]
    pub json: bool,
}

impl SettingsArgs {
    /// What the flags say.
    pub fn request(&self) -> LoadRequest {
        let mut flags = Vec::new();
        let named = [
            ("--model", "model.path", &self.model),
            ("--host", "server.host", &self.host),
            ("--port", "server.port", &self.port),
        ];
        // `--set` is first: of two flags for one key the one with the plainer name is stronger.
        for (key, value) in &self.set {
            flags.push(FlagValue { key: key.clone(), value: value.clone(), flag: format!("--set {key}") });
        }
        for (flag, key, value) in named {
            if let Some(value) = value {
                flags.push(FlagValue { key: key.into(), value: value.clone(), flag: flag.into() });
            }
        }
        LoadRequest { config: self.config.clone(), profile: self.profile.clone(), flags }
    }
}

/// `section.key=value`.
fn parse_set(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if key.trim().contains('.') => {
            Ok((key.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err("expected section.key=value, for example server.port=9000".into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn flags_become_settings() {
        let line = CommandLine::try_parse_from([
            "perigee",
            "serve",
            "--port",
            "0",
            "--model",
            "/m",
            "--set",
            "server.port=1",
            "--set",
            "device.threads = 2",
        ]);
        let Command::Serve(settings) = line.unwrap().command else { panic!("not serve") };
        let flags: Vec<_> = settings.request().flags.into_iter().map(|f| (f.key, f.value, f.flag)).collect();
        let expected = [
            ("server.port", "1", "--set server.port"),
            ("device.threads", "2", "--set device.threads"),
            ("model.path", "/m", "--model"),
            ("server.port", "0", "--port"),
        ];
        assert_eq!(flags, expected.map(|(k, v, f)| (k.to_owned(), v.to_owned(), f.to_owned())));
    }

    #[test]
    fn wrong_use_is_refused() {
        for line in
            [&["perigee"][..], &["perigee", "serve", "--set", "port=1"], &["perigee", "serve", "--prot", "1"]]
        {
            assert!(CommandLine::try_parse_from(line).is_err(), "{line:?}");
        }
    }
}
