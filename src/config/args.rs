//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Parser, Subcommand};

use super::coerce::parse_tokens;
use super::device::ActivationsChoice;
use super::sources::{FlagValue, LoadRequest};
use super::vllm_flags::VllmFlags;

/// The command line.
#[derive(Debug, Parser)]
#[command(
    name = "perigee",
    version,
    about = "Serves the Kimi K2 family of models over an OpenAI-compatible API",
    after_help = "Exit codes: 0 done, 1 failed, 2 wrong use or wrong settings, 3 a shutdown cut requests off, 4 a step \
                  that never ended."
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
    /// Watch a running server in the terminal: requests, tokens per second, latencies, cache; without a terminal print them once.
    /// Exit 1 if it cannot be asked.
    Top(TopArgs),
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
    /// Write a checkpoint without the experts that a plan or a criterion drops.
    Prune(PruneArgs),
    /// Prove a pruned or quantized folder against its source; exit 1 if anything is wrong.
    Audit(AuditArgs),
    /// Collect how much each expert contributes on a text, for `prune`.
    Saliency(SaliencyArgs),
    /// Print the prompt and the token ids of a chat request.
    Render(RenderArgs),
    /// Take a raw reply apart: reasoning, answer, tool calls.
    Parse(ParseArgs),
    /// Compare two checkpoints on a text: perplexity, KL, top-1 agreement, error per layer.
    Compare(CompareArgs),
    /// Compile kernels for GPUs.
    #[command(subcommand)]
    Kernels(KernelsCommand),
    /// Time the variants of kernels for a model on this machine's GPU, after checking that they agree; exit 1 without a
    /// GPU, or if a product has no variant that is right there.
    Tune(TuneArgs),
    /// Check the configuration, this machine and the model folder, and say what to do; exit 1 if something is broken.
    Doctor(DoctorArgs),
}

/// What to check.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print JSON instead of lines.
    #[arg(long)]
    pub json: bool,
    /// Settings and the model.
    #[command(flatten)]
    pub settings: SettingsArgs,
}

/// What to tune.
#[derive(Debug, Args)]
pub struct TuneArgs {
    /// Tune nothing; say why the ops with OP in their names have the variants that they have, from what is stored in the
    /// kernel cache. Needs no GPU.
    #[arg(long, value_name = "OP")]
    pub explain: Option<String>,
    /// Settings and the model.
    #[command(flatten)]
    pub settings: ModelArgs,
}

/// What to do with kernels.
#[derive(Debug, Subcommand)]
pub enum KernelsCommand {
    /// Compile kernels into the cache directory; needs NVRTC, and no GPU. Exit 1 if a kernel does not compile or cannot be
    /// stored.
    Build(KernelsBuildArgs),
    /// List the kernels, their functions and architectures.
    List,
}

/// Which kernels to compile.
#[derive(Debug, Args)]
pub struct KernelsBuildArgs {
    /// Architectures, separated by commas; all; or native = those of this machine's GPUs.
    #[arg(long, value_name = "LIST", default_value = "all")]
    pub arch: String,
    /// Cache directory, made if it is absent (kernels.cache_dir).
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Option<String>,
    /// Kernels compiled at once, 0 = one per core. A compilation takes some hundred megabytes.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1024))]
    pub threads: u32,
    /// Sources.
    #[command(flatten)]
    pub sources: SourceArgs,
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
    /// Report everything that is wrong, what this machine lacks included, and what is risky; exit 2 if anything is wrong.
    Check {
        /// Leave this machine out: no GPU, model or draft is looked for. For settings that another machine serves with.
        #[arg(long)]
        settings_only: bool,
        /// Which settings.
        #[command(flatten)]
        settings: SettingsArgs,
    },
    /// Print the JSON Schema of the site file.
    Schema,
    /// Print the site file with every key commented out.
    Template,
    /// List the profiles there are.
    Profiles {
        /// Site file whose folder has the profiles [default: config/perigee.toml; env:
        /// PERIGEE_CONFIG].
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
}

/// Where settings come from, for commands to which no single one has a flag of its own.
#[derive(Debug, Clone, Default, Args)]
pub struct SourceArgs {
    /// Site file [default: config/perigee.toml if it exists; env: PERIGEE_CONFIG].
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Profile: profiles/NAME.toml beside the site file, or a built-in one [env: PERIGEE_PROFILE].
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
    /// Any setting; may be given several times.
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE", value_parser = parse_set)]
    pub set: Vec<(String, String)>,
}

/// Flags that change settings; they are stronger than the environment and all files.
#[derive(Debug, Clone, Default, Args)]
pub struct SettingsArgs {
    /// Settings and the model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Address.
    #[command(flatten)]
    pub address: AddressArgs,
    /// Flags of vLLM.
    #[command(flatten)]
    pub vllm: VllmFlags,
}

/// Settings of commands that use a model and listen nowhere.
#[derive(Debug, Clone, Default, Args)]
pub struct ModelArgs {
    /// Sources.
    #[command(flatten)]
    pub sources: SourceArgs,
    /// Checkpoint folder (model.path); without it the embedded model is used.
    #[arg(long, value_name = "DIR")]
    pub model: Option<String>,
}

/// Where a server listens.
#[derive(Debug, Clone, Default, Args)]
pub struct AddressArgs {
    /// Address to listen on (server.host).
    #[arg(long)]
    pub host: Option<String>,
    /// Port to listen on, 0 = any free one (server.port).
    #[arg(long)]
    pub port: Option<String>,
}

/// Settings of commands that ask a running server.
#[derive(Debug, Clone, Default, Args)]
pub struct AskArgs {
    /// Sources.
    #[command(flatten)]
    pub sources: SourceArgs,
    /// Address that the server listens on (server.host).
    #[arg(long)]
    pub host: Option<String>,
    /// Port that the server listens on (server.port).
    #[arg(long)]
    pub port: Option<String>,
}

/// How to ask.
#[derive(Debug, Args)]
pub struct HealthArgs {
    /// What to ask [default: /health/ready at the configured address, whatever its certificate is].
    #[arg(long)]
    pub url: Option<String>,
    /// PEM file with CAs, or with the server's own certificate, that an https URL is held against [default: the public CAs].
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Longest wait for the answer, seconds.
    #[arg(long, default_value_t = 2.0)]
    pub timeout: f64,
    /// Which settings.
    #[command(flatten)]
    pub settings: AskArgs,
}

/// What to watch.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Server; paths of a client's base URL such as /v1 may stay [default: the configured address].
    #[arg(long)]
    pub url: Option<String>,
    /// PEM file with CAs, or with the server's own certificate, that a server with TLS is held against [default: the public
    /// CAs; any certificate of this machine's own server].
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// File whose first line is the key for a server that asks for one.
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Time between two looks, 100ms to 60s.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_interval)]
    pub interval: Duration,
    /// Print one snapshot of two looks as plain text.
    #[arg(long)]
    pub once: bool,
    /// Which settings.
    #[command(flatten)]
    pub settings: AskArgs,
}

/// A time such as 500ms, 2s or 0.5, which is in seconds.
fn parse_interval(text: &str) -> Result<Duration, String> {
    let (number, unit) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(number), _) => (number, 1e-3),
        (None, Some(number)) => (number, 1.0),
        (None, None) => (text, 1.0),
    };
    let seconds = number.trim().parse::<f64>().ok().map(|number| number * unit);
    let seconds = seconds.filter(|seconds| (0.1..=60.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "must be from 100ms to 60s".into())
}

/// What to measure.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    /// Something else than the engine.
    #[command(subcommand)]
    pub command: Option<BenchCommand>,
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
    /// Compare replies with and without drafts instead: tokens per second, acceptance, equality. FILE has a JSON object per line, a
    /// chat request or {"prompt": text} with control tokens in it; a few prompts are built in. Replies have up to --decode tokens.
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    pub speculation: Option<Option<PathBuf>>,
    /// Predict the replies that --speculation compares, with this share of their tokens right: what drafts of such a quality are worth.
    #[arg(long, value_name = "SHARE", requires = "speculation", value_parser = share)]
    pub replay: Option<f64>,
    /// Temperature of the replies that --speculation compares.
    #[arg(long, default_value_t = 0.0, requires = "speculation")]
    pub temperature: f32,
    /// Repetitions, after one warm-up.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// Add the time of every kernel of a GPU, in recorded steps (decode) and in others. Events between the kernels and a wait behind
    /// each step make the other figures worse.
    #[arg(long, conflicts_with = "speculation")]
    pub kernel_times: bool,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
    /// Settings.
    #[command(flatten)]
    pub settings: ModelArgs,
}

/// A share, 0 to 1.
/// Tokens, also as `128k` and `1M`.
fn tokens(text: &str) -> Result<usize, String> {
    let tokens = parse_tokens(text).and_then(|tokens| usize::try_from(tokens).ok());
    tokens.ok_or_else(|| "expected a whole number of tokens, or one such as 128k or 1M".into())
}

fn share(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if (0.0..=1.0).contains(&value) { Ok(value) } else { Err("must be from 0 to 1".into()) }
}

/// What else can be measured.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Time the kernels of a GPU at a model's sizes, beside a copy of device memory in the same run; without --model at those of
    /// Kimi K2 with NVFP4 experts.
    Kernels(BenchKernelsArgs),
    /// Time the vision tower of the K2.5 line on the processor, with random weights: seconds and GFLOP/s of square images.
    Vision(BenchVisionArgs),
    /// Write a checkpoint of Kimi K2's shape with few layers and random weights, to measure a machine before a model is there: one dense
    /// layer of 0.4 GB and layers with experts of 9.8 GB, MLPs in NVFP4, and 4.7 GB of embeddings. Shards that are there are kept.
    Checkpoint(BenchCheckpointArgs),
}

/// What to write.
#[derive(Debug, Args)]
pub struct BenchCheckpointArgs {
    /// Folder, created if missing.
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
    /// Layers with experts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=60))]
    pub moe_layers: u32,
    /// Routed experts of a layer.
    #[arg(long, default_value_t = 384, value_parser = clap::value_parser!(u32).range(8..=384))]
    pub experts: u32,
}

/// Which images to time.
#[derive(Debug, Args)]
pub struct BenchVisionArgs {
    /// Pixels of a side.
    #[arg(long, value_delimiter = ',', default_values_t = [224, 448], value_parser = clap::value_parser!(u32).range(1..=3584))]
    pub sides: Vec<u32>,
    /// Repetitions, after one warm-up.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeat: u32,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
    /// Settings; device.threads and device.activations are used.
    #[command(flatten)]
    pub settings: SourceArgs,
}

/// Which kernels to time.
#[derive(Debug, Args)]
pub struct BenchKernelsArgs {
    /// Rows of a decode step.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 64], value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub rows: Vec<u32>,
    /// Tokens of each sequence in the cache.
    #[arg(long, default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..=262_144))]
    pub context: u32,
    /// Print the times of every variant of a product, not of the fastest one alone.
    #[arg(long)]
    pub every_variant: bool,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
    /// Settings.
    #[command(flatten)]
    pub settings: ModelArgs,
}

/// What to render.
#[derive(Debug, Args)]
pub struct RenderArgs {
    /// Body of a chat request, - = standard input.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Settings; the model's tokenizer and template are used.
    #[command(flatten)]
    pub settings: ModelArgs,
}

/// What to take apart.
#[derive(Debug, Args)]
pub struct ParseArgs {
    /// Text of a reply with its markers, - = standard input.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Declared tools: a JSON list, or a request with `tools`. Calls without a name are told by them.
    #[arg(long, value_name = "FILE")]
    pub tools: Option<PathBuf>,
    /// What the prompt left the reply to begin with.
    #[arg(long, value_enum, default_value = "auto")]
    pub start: StartArg,
    /// The reply was cut off: what is incomplete at its end does not count.
    #[arg(long)]
    pub cut: bool,
}

/// What a reply begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum StartArg {
    /// Reasoning if the text closes it before it opens it.
    Auto,
    /// The prompt opened the reasoning.
    Reasoning,
    /// The prompt closed the reasoning, or there is none.
    Answer,
}

/// What to look at.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// Checkpoint folder, of a model or of an Eagle3 draft.
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
    /// With a draft: the checkpoint that it is to draft for.
    #[arg(long, value_name = "FOLDER")]
    pub target: Option<PathBuf>,
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
    /// Devices as NUMBERxDEVICE: rtx-pro-6000, l40s, a100, h20, h100, h200, b200, b300, gb200, gb300, mi355x, or a size such as
    /// 96GB.
    #[arg(long, value_name = "NxDEVICE")]
    pub devices: String,
    /// Format of the routed experts [default: as stored; bf16 for a config.json alone]: nvfp4, mxfp4, int4-g32, fp8, bf16.
    #[arg(long)]
    pub format: Option<String>,
    /// Routed experts per layer, for a checkpoint that is to be pruned [default: config.json's].
    #[arg(long, value_name = "N")]
    pub experts: Option<usize>,
    /// Profile whose settings take the place of the defaults below.
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
    /// Element type of the KV cache [default: the profile's, or fp8]: fp8 or bf16.
    #[arg(long)]
    pub kv: Option<String>,
    /// Longest context, tokens, also as 128k or 1M [default: the profile's, or config.json's].
    #[arg(long, value_name = "N", value_parser = tokens)]
    pub max_model_len: Option<usize>,
    /// Tokens of the largest step, which size the workspace [default: the profile's, or 2048].
    #[arg(long, value_name = "N", value_parser = tokens)]
    pub max_num_batched_tokens: Option<usize>,
    /// Sequences at once, which size the logits [default: the profile's, or 256].
    #[arg(long, value_name = "N")]
    pub max_num_seqs: Option<usize>,
    /// Folder of a draft model that is to run beside it.
    #[arg(long, value_name = "FOLDER")]
    pub draft: Option<PathBuf>,
    /// Share of a device's memory that is used; the rest is left to the driver's context and to others [default: the profile's,
    /// or 0.99].
    #[arg(long, value_name = "SHARE")]
    pub utilisation: Option<f64>,
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
    /// (int4-g32), deepseek (fp8 in blocks) or modelopt (fp8 per tensor) [default: the first].
    #[arg(long)]
    pub dialect: Option<String>,
    /// Scales of an FP8 KV cache: none, cast (announced, scales of 1 that are not stored) or calibrated (measured and stored) [default: none].
    #[arg(long)]
    pub kv: Option<String>,
    /// Text to measure activation scales on: .jsonl with one object with "text" per line, or plain
    /// text with blank lines between documents. The source is run on the CPU, one layer at a time
    /// in memory. May be given several times.
    #[arg(long, value_name = "FILE")]
    pub calibrate: Vec<PathBuf>,
    /// Tokens of a calibration window; longer documents are cut.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub calibrate_context: u32,
    /// Stop calibrating after this many tokens of all texts together.
    #[arg(long, value_name = "N", default_value_t = 262_144)]
    pub calibrate_tokens: u64,
    /// Markers in the calibration text, such as <|im_user|>, become control tokens.
    #[arg(long)]
    pub control_tokens: bool,
    /// Worker threads, 0 = one per core.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1024))]
    pub threads: u32,
    /// Print the report as JSON instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// What to prune.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("survivors").required(true).args(["plan", "keep"])))]
pub struct PruneArgs {
    /// Checkpoint folder to prune; it is only read.
    pub source: PathBuf,
    /// New folder; the same command again continues a run that was cut.
    pub target: PathBuf,
    /// Plan file: which experts survive.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["keep", "criterion", "saliency", "seed"])]
    pub plan: Option<PathBuf>,
    /// Experts per layer that survive, chosen by the criterion.
    #[arg(long, value_name = "N")]
    pub keep: Option<usize>,
    /// What decides: reap and frequency need --saliency, random is the baseline.
    #[arg(long, value_enum, default_value = "reap")]
    pub criterion: CriterionArg,
    /// Statistics written by `perigee saliency`, or scores of another program.
    #[arg(long, value_name = "FILE")]
    pub saliency: Option<PathBuf>,
    /// Seed of the random criterion.
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
    /// Write the plan to FILE and prune nothing; TARGET is not touched.
    #[arg(long, value_name = "FILE")]
    pub plan_only: Option<PathBuf>,
    /// Print the report as JSON.
    #[arg(long)]
    pub json: bool,
}

/// How survivors are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum CriterionArg {
    /// Mean of routing weight times norm of the expert's output.
    Reap,
    /// Times selected.
    Frequency,
    /// Draws from a seed.
    Random,
}

/// What to audit.
#[derive(Debug, Args)]
pub struct AuditArgs {
    /// Pruned or quantized folder.
    pub target: PathBuf,
    /// Folder it was made of.
    #[arg(long, value_name = "DIR")]
    pub source: PathBuf,
    /// Plan [default: expert_plan.json of the target, else told from its router rows].
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,
    /// Layer of the functional check [default: the first with experts].
    #[arg(long)]
    pub layer: Option<usize>,
    /// Random vectors of the functional check, 0 = leave it out.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(0..=4096))]
    pub tokens: u32,
    /// Print the report as JSON.
    #[arg(long)]
    pub json: bool,
}

/// How a text is run through a model.
#[derive(Debug, Args)]
pub struct TextPassArgs {
    /// Text: .jsonl with one object with "text" per line, or plain text with blank lines between
    /// documents.
    #[arg(long, value_name = "FILE")]
    pub text: PathBuf,
    /// Tokens of a window; longer documents are cut.
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub context: u32,
    /// Tokens of a step.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub step: u32,
    /// Stop after this many tokens.
    #[arg(long, value_name = "N")]
    pub max_tokens: Option<u64>,
    /// Markers in the text, such as <|im_user|>, become control tokens; for text that was rendered with the chat template.
    #[arg(long)]
    pub control_tokens: bool,
    /// Backend: auto = cpu where it can multiply the checkpoint's weights, else reference.
    #[arg(long, value_enum, default_value = "auto")]
    pub backend: BackendArg,
    /// Threads of the CPU backend, 0 = all cores.
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
}

/// Which backend runs an offline pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum BackendArg {
    /// The CPU backend where it can, else the reference.
    Auto,
    /// The fast CPU backend.
    Cpu,
    /// The specification.
    Reference,
}

/// What to collect.
#[derive(Debug, Args)]
pub struct SaliencyArgs {
    /// Checkpoint folder.
    pub model: PathBuf,
    /// File for the statistics [default: standard output].
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Statistics of other texts on the same checkpoint to add; may be given several times.
    #[arg(long, value_name = "FILE")]
    pub add: Vec<PathBuf>,
    /// Layers, for example 1,3-5 [default: all with routed experts].
    #[arg(long, value_name = "LIST", value_parser = parse_layers)]
    pub layers: Option<LayerList>,
    /// Text.
    #[command(flatten)]
    pub pass: TextPassArgs,
}

/// Layers as given on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerList(pub std::collections::BTreeSet<usize>);

/// What to compare.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// The yardstick.
    pub a: PathBuf,
    /// Checkpoint that is measured against it [default: the same one, with other activations].
    pub b: Option<PathBuf>,
    /// Activations of the two as in device.activations, for example bf16,nvfp4 [default: f32,f32].
    #[arg(long, value_name = "A,B", value_parser = parse_activations)]
    pub activations: Option<ActivationPair>,
    /// Relative error of hidden states above which a layer is named.
    #[arg(long, default_value_t = 0.1)]
    pub limit: f64,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Text.
    #[command(flatten)]
    pub pass: TextPassArgs,
}

/// Activations of the two sides of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActivationPair(pub ActivationsChoice, pub ActivationsChoice);

/// `bf16,nvfp4`.
fn parse_activations(text: &str) -> Result<ActivationPair, String> {
    let (a, b) =
        text.split_once(',').ok_or_else(|| format!("{text:?} is not two forms; example: bf16,nvfp4"))?;
    let form = |name: &str| ActivationsChoice::parse(name.trim());
    Ok(ActivationPair(form(a)?, form(b)?))
}

/// `1,3-5`.
fn parse_layers(text: &str) -> Result<LayerList, String> {
    const MAX: usize = 4096;
    let mut layers = std::collections::BTreeSet::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (first.trim().parse::<usize>(), last.trim().parse::<usize>()) {
            (Ok(first), Ok(last)) if first <= last && last < MAX => layers.extend(first..=last),
            _ => {
                return Err(format!(
                    "{part:?} is not a layer below {MAX} or a range of them; example: 1,3-5"
                ));
            }
        }
    }
    Ok(LayerList(layers))
}

/// Flags that say which settings a command works with.
pub trait RequestSettings {
    /// What the flags say.
    fn request(&self) -> LoadRequest;
}

impl RequestSettings for SourceArgs {
    fn request(&self) -> LoadRequest {
        let value = |(key, value): &(String, String)| FlagValue {
            key: key.clone(),
            value: value.clone(),
            flag: format!("--set {key}"),
        };
        let flags = self.set.iter().map(value).collect();
        LoadRequest { config: self.config.clone(), profile: self.profile.clone(), flags }
    }
}

impl RequestSettings for ModelArgs {
    fn request(&self) -> LoadRequest {
        self.sources.request().with("--model", "model.path", self.model.as_ref())
    }
}

impl RequestSettings for SettingsArgs {
    fn request(&self) -> LoadRequest {
        let AddressArgs { host, port } = &self.address;
        let mut request = self.model.request();
        request.flags.extend(self.vllm.0.iter().cloned());
        request.with("--host", "server.host", host.as_ref()).with("--port", "server.port", port.as_ref())
    }
}

impl RequestSettings for KernelsBuildArgs {
    fn request(&self) -> LoadRequest {
        self.sources.request().with("--cache-dir", "kernels.cache_dir", self.cache_dir.as_ref())
    }
}

impl RequestSettings for DoctorArgs {
    fn request(&self) -> LoadRequest {
        self.settings.request()
    }
}

impl RequestSettings for AskArgs {
    fn request(&self) -> LoadRequest {
        let request = self.sources.request();
        request.with("--host", "server.host", self.host.as_ref()).with(
            "--port",
            "server.port",
            self.port.as_ref(),
        )
    }
}

impl LoadRequest {
    /// The same with a flag. Later flags are stronger: of two for one key the one with the plainer
    /// name, which comes after `--set`.
    fn with(mut self, flag: &str, key: &str, value: Option<&String>) -> Self {
        let value = value.map(|value| FlagValue { key: key.into(), value: value.clone(), flag: flag.into() });
        self.flags.extend(value);
        self
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
            "--tensor-parallel-size",
            "2",
            "--enable-expert-parallel",
        ]);
        let Command::Serve(settings) = line.unwrap().command else { panic!("not serve") };
        let flags: Vec<_> = settings.request().flags.into_iter().map(|f| (f.key, f.value, f.flag)).collect();
        let expected = [
            ("server.port", "1", "--set server.port"),
            ("device.threads", "2", "--set device.threads"),
            ("model.path", "/m", "--model"),
            ("device.ranks", "2", "--tensor-parallel-size"),
            ("parallel.expert", "0", "--enable-expert-parallel"),
            ("server.port", "0", "--port"),
        ];
        assert_eq!(flags, expected.map(|(k, v, f)| (k.to_owned(), v.to_owned(), f.to_owned())));
    }

    #[test]
    fn flags_that_mean_nothing_are_refused() {
        let parse = |line: &str| CommandLine::try_parse_from(line.split(' ')).is_ok();
        for (line, expected) in [
            ("perigee serve --model m --host h --port 1", true),
            ("perigee config show --model m --host h --port 1", true),
            ("perigee health --host h --port 1", true),
            ("perigee health --model m", false),
            ("perigee top --url http://h:1/v1 --interval 500ms --key-file f --once", true),
            ("perigee top --host h --port 1 --interval 2", true),
            ("perigee top --interval 1h", false),
            ("perigee top --model m", false),
            ("perigee bench --model m", true),
            ("perigee bench --port 1", false),
            ("perigee bench guard --host h", false),
            ("perigee render f --model m", true),
            ("perigee render f --host h", false),
            ("perigee config profiles --config f", true),
            ("perigee config profiles --port 1", false),
        ] {
            assert_eq!(parse(line), expected, "{line}");
        }
    }

    #[test]
    fn intervals() {
        for (text, expected) in [
            ("1s", Some(1000)),
            ("500ms", Some(500)),
            ("0.5", Some(500)),
            ("2 s", Some(2000)),
            ("60", Some(60_000)),
            ("61", None),
            ("99ms", None),
            ("-1s", None),
            ("NaN", None),
            ("s", None),
            ("", None),
        ] {
            let interval = parse_interval(text).ok();
            assert_eq!(interval.map(|interval| interval.as_millis()), expected, "{text}");
        }
    }

    #[test]
    fn help_has_no_backslashes() {
        fn check(command: &mut clap::Command) {
            let help = command.render_long_help().to_string();
            assert!(!help.contains('\\'), "{help}");
            command.get_subcommands_mut().for_each(check);
        }
        check(&mut CommandLine::command());
    }

    #[test]
    fn layers_are_lists_of_ranges() {
        let layers = |text: &str| parse_layers(text).map(|l| l.0.into_iter().collect::<Vec<_>>());
        assert_eq!(layers("1, 3-5,4").unwrap(), [1, 3, 4, 5]);
        for text in ["", "a", "5-3", "1-99999999999", "-1"] {
            assert!(layers(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_prune_needs_a_plan_or_a_number() {
        let parse = |more: &[&str]| {
            CommandLine::try_parse_from(["perigee", "prune", "a", "b"].iter().chain(more)).is_ok()
        };
        assert!(
            parse(&["--plan", "p"])
                && parse(&["--keep", "3"])
                && parse(&["--keep", "3", "--criterion", "random"])
        );
        assert!(!parse(&[]) && !parse(&["--plan", "p", "--keep", "3"]) && !parse(&["--keep", "x"]));
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
