//! The boot walk of `perigee serve`: configuration → listener → checkpoint → text → memory plan → weights → warm-up → ready. Its
//! end: a signal begins a drain; a dead engine ends the process with its reason.

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::engine::{EngineOptions, EngineProgress, StartedEngine, start_engine};

use super::progress::Progress;
use super::signals::Signals;
use crate::api::{Api, ModelCard};
use crate::config::{Loaded, Settings};
use crate::engine::EngineHandle;
use crate::generate::{Generator, ModelText, SamplingDefaults, SamplingPolicy};
use crate::model::Blueprint;
use crate::model::checkpoint::Checkpoint;
use crate::nano;
use crate::sampling::rules::Rules;
use crate::server::{Drained, Readiness, Server};
use crate::telemetry::{self, EngineInfo, Metrics};
use crate::text::{ChatTemplate, Family, Tokenizer};

/// Any error of a boot stage; its chain of sources is printed whole.
pub(crate) type BootError = Box<dyn Error + Send + Sync>;

/// Exit code of a shutdown whose drain timed out before all requests had finished.
const EXIT_CUT: u8 = 3;

/// Threads for HTTP and text; the engine has its own.
const MAX_ASYNC_THREADS: usize = 4;

/// `perigee serve`, from loaded settings to the exit code.
pub(crate) fn serve(loaded: &Loaded) -> ExitCode {
    let begun = Instant::now();
    telemetry::heap::set_up();
    if let Err(error) = telemetry::init(&loaded.settings.telemetry) {
        eprintln!("perigee: {error}");
        return ExitCode::FAILURE;
    }
    loaded.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    loaded.origins.iter().for_each(|(key, origin)| tracing::debug!(%key, %origin, "setting"));
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get()).min(MAX_ASYNC_THREADS);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build();
    let outcome = match runtime {
        Ok(runtime) => {
            let outcome = runtime.block_on(run(&loaded.settings, begun));
            runtime.shutdown_background();
            outcome
        }
        Err(error) => Err(error.into()),
    };
    match outcome {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(EXIT_CUT),
        Err(error) => {
            tracing::error!("{}", chain(&*error));
            ExitCode::FAILURE
        }
    }
}

/// Listens, boots behind the listener, serves until a signal or the engine's death. Returns the
/// number of requests that the drain cut off.
async fn run(settings: &Settings, begun: Instant) -> Result<usize, BootError> {
    let mut signals = Signals::new()?;
    let names = served_names(settings);
    let metrics = Arc::new(Metrics::new(&names[0], settings.telemetry.vllm_names));
    let server = Server::start(settings.server.clone(), metrics.clone()).await?;
    tracing::info!(
        at = server.url(),
        model = names[0],
        "booting: health is answered, requests are refused until this log says ready"
    );
    note_exposure(settings, &server);
    let booting = {
        let (settings, metrics, readiness) = (settings.clone(), metrics.clone(), server.readiness());
        tokio::task::spawn_blocking(move || boot(&settings, names, &metrics, &readiness))
    };
    let booted = tokio::select! {
        booted = booting => booted?,
        () = signals.next() => return Ok(0),
    };
    let Booted { api, engine } = match booted {
        Ok(booted) => booted,
        Err(error) => {
            server.readiness().failed(&chain(&*error));
            return Err(error);
        }
    };
    server.open(api);
    let took = begun.elapsed();
    server.readiness().stages().into_iter().for_each(|(stage, took)| metrics.record_boot_stage(stage, took));
    metrics.set_boot_time(took);
    tracing::info!(seconds = format!("{:.3}", took.as_secs_f64()), url = server.url(), "ready");
    serve_until_end(server, engine, signals).await
}

async fn serve_until_end(
    server: Server,
    engine: StartedEngine,
    mut signals: Signals,
) -> Result<usize, BootError> {
    let StartedEngine { handle, thread } = engine;
    let mut ended = tokio::task::spawn_blocking(move || thread.join());
    tokio::select! {
        () = signals.next() => {}
        end = &mut ended => {
            let error = death(&handle, end?);
            // The engine's requests have ended with it; the drain delivers their errors to the clients.
            server.drain().await;
            return Err(error);
        }
    }
    tracing::info!("draining: no new requests, running ones finish");
    let end = async {
        let drained = server.drain().await;
        handle.shutdown();
        (drained, ended.await)
    };
    let (Drained { cut, took }, end) = tokio::select! {
        end = end => end,
        () = signals.next() => return Err("second signal: ended without draining".into()),
    };
    let seconds = format!("{:.3}", took.as_secs_f64());
    match end? {
        Ok(Ok(())) if cut == 0 => tracing::info!(seconds, "drained"),
        Ok(Ok(())) => tracing::warn!(
            cut,
            seconds,
            "server.drain_timeout_s was over: requests that still ran were answered with an error"
        ),
        end => return Err(death(&handle, end)),
    }
    Ok(cut)
}

/// Logs which requests need no key: a warning where other machines can send them.
fn note_exposure(settings: &Settings, server: &Server) {
    let server_settings = &settings.server;
    let keys = !server_settings.api_keys.is_empty();
    if server.is_exposed() && !keys {
        tracing::warn!(
            at = server.url(),
            "other machines can send requests, and no key is needed: set server.api_keys, or server.host = 127.0.0.1"
        );
    }
    if keys && server_settings.public_pages {
        tracing::info!(
            "/metrics, /version, /docs and /openapi.json need no key; server.public_pages = false changes that"
        );
    }
}

/// Result of the blocking part of the boot.
struct Booted {
    api: Api,
    engine: StartedEngine,
}

/// The stages from checkpoint to routes. Runs on a blocking thread.
fn boot(
    settings: &Settings,
    names: Vec<String>,
    metrics: &Arc<Metrics>,
    readiness: &Readiness,
) -> Result<Booted, BootError> {
    let mut progress = Progress::new(readiness);
    progress.stage("checkpoint");
    let checkpoint = open_checkpoint(settings)?;
    let blueprint = read_blueprint(&checkpoint)?;
    progress.stage("text");
    let text = load_text(settings, &checkpoint, &blueprint)?;
    let defaults = sampling_defaults(settings, &checkpoint, &blueprint, text.template.family())?;
    progress.stage("memory plan");
    let options = EngineOptions::from_settings(settings, &blueprint);
    let engine = start_engine(&checkpoint, blueprint, &options, metrics.clone(), &mut |at| {
        if let EngineProgress::Planned(plan) = &at {
            tracing::info!("memory plan\n{}", plan.table().trim_end());
        }
        progress.engine(&at);
    })?;
    progress.done();
    let facts = engine.handle.facts();
    metrics.set_engine_info(&EngineInfo {
        backend: facts.backend.into(),
        block_size: facts.block_size,
        num_blocks: facts.num_blocks,
        cache_dtype: facts.cache_dtype.into(),
        prefix_caching: options.prefix_caching,
        max_model_len: facts.max_model_len,
    });
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let card = ModelCard {
        names,
        created,
        max_model_len: facts.max_model_len,
        accept_any_name: settings.model.accept_any_name,
    };
    let timeout = settings.server.request_timeout();
    let door = Arc::new(engine.handle.clone());
    let reasoning = settings.reasoning.clone();
    let generator = Generator::new(door, text, defaults, reasoning, timeout.as_secs_f64(), metrics.clone())
        .with_guard(settings.guard.clone())
        .with_structured_output(settings.structured_output.clone());
    let generator = Arc::new(generator);
    // Runs beside the first requests: only a request with a grammar waits for the warm-up.
    let warming = generator.clone();
    std::thread::Builder::new().name("perigee-grammars".into()).spawn(move || warming.warm_up_grammars())?;
    let api = Api::new(generator, card, timeout).with_unknown_fields(settings.server.unknown_fields);
    Ok(Booted { api, engine })
}

/// Opens the folder of `model.path`, or the embedded model.
pub(crate) fn open_checkpoint(settings: &Settings) -> Result<Checkpoint, BootError> {
    match &settings.model.path {
        Some(path) => Ok(Checkpoint::open(path)?),
        None => Ok(Checkpoint::from_embedded(nano::FILES)?),
    }
}

/// Parses `config.json` into the network's sizes.
pub(crate) fn read_blueprint(checkpoint: &Checkpoint) -> Result<Blueprint, BootError> {
    let config = checkpoint.read_file("config.json")?;
    let config = config.ok_or_else(|| format!("{} has no config.json", checkpoint.source()))?;
    Ok(Blueprint::parse(&config)?)
}

pub(crate) fn load_text(
    settings: &Settings,
    checkpoint: &Checkpoint,
    blueprint: &Blueprint,
) -> Result<ModelText, BootError> {
    let file = |name: &str| checkpoint.file(name).map(|bytes| bytes.into_owned());
    let tokenizer = Tokenizer::load(&file)?;
    if tokenizer.vocab_size() > blueprint.vocab_size {
        tracing::warn!(
            tokenizer = tokenizer.vocab_size(),
            embedding = blueprint.vocab_size,
            "the tokenizer knows more ids than the model; prompts that use them are refused"
        );
    }
    let template = match &settings.model.chat_template {
        Some(path) => {
            let source = std::fs::read_to_string(path)
                .map_err(|error| format!("model.chat_template {}: {error}", path.display()))?;
            ChatTemplate::from_jinja(&source, &tokenizer)?
        }
        None => ChatTemplate::load(&file, &blueprint.wrapper_type, &tokenizer)?,
    };
    Ok(ModelText { tokenizer: Arc::new(tokenizer), template })
}

/// Sampling defaults: the operator's values override the checkpoint's `generation_config.json`, which overrides the public API's
/// defaults.
pub(crate) fn sampling_defaults(
    settings: &Settings,
    checkpoint: &Checkpoint,
    blueprint: &Blueprint,
    family: Option<Family>,
) -> Result<SamplingDefaults, BootError> {
    let from_file = match checkpoint.read_file("generation_config.json")? {
        Some(bytes) => SamplingDefaults::from_generation_config(&bytes)?,
        None => SamplingDefaults::default(),
    };
    let mut defaults = match settings.sampling.use_generation_config {
        true => from_file,
        // The end tokens are facts about the model, not preferences.
        false => SamplingDefaults { eos_token_ids: from_file.eos_token_ids, ..Default::default() },
    };
    defaults.eos_token_ids.extend(&blueprint.eos_token_ids);
    let operator = &settings.sampling;
    if let Some(given) = &operator.override_generation_config {
        let real = |field, default: &mut f32| *default = given.get(field).map_or(*default, |v| v as f32);
        real("temperature", &mut defaults.temperature);
        real("top_p", &mut defaults.top_p);
        real("min_p", &mut defaults.min_p);
        real("repetition_penalty", &mut defaults.repetition_penalty);
        real("presence_penalty", &mut defaults.presence_penalty);
        real("frequency_penalty", &mut defaults.frequency_penalty);
        defaults.top_k = given.get("top_k").map_or(defaults.top_k, |k| k as u32);
        defaults.max_new_tokens = given.get("max_tokens").map(|m| m as u32).or(defaults.max_new_tokens);
    }
    let set = |value: Option<f32>, default: &mut f32| *default = value.unwrap_or(*default);
    set(operator.temperature, &mut defaults.temperature);
    set(operator.top_p, &mut defaults.top_p);
    set(operator.min_p, &mut defaults.min_p);
    set(operator.repetition_penalty, &mut defaults.repetition_penalty);
    set(operator.presence_penalty, &mut defaults.presence_penalty);
    set(operator.frequency_penalty, &mut defaults.frequency_penalty);
    defaults.top_k = operator.top_k.unwrap_or(defaults.top_k);
    defaults.max_new_tokens = operator.max_tokens.or(defaults.max_new_tokens);
    let rules = |rules: &Option<Rules>| rules.clone().unwrap_or_default();
    defaults.policy = Arc::new(SamplingPolicy {
        both: rules(&operator.policy),
        thinking: rules(&operator.thinking),
        instant: rules(&operator.instant),
    });
    let family = family.is_some_and(|family| family != Family::K2Instruct);
    defaults.thinks = operator.assume_thinking.unwrap_or(family);
    Ok(defaults)
}

/// Names that clients may use: the operator's, else the folder's, else the embedded model's.
fn served_names(settings: &Settings) -> Vec<String> {
    if !settings.model.served_name.is_empty() {
        return settings.model.served_name.clone();
    }
    let folder = settings.model.path.as_ref().map(|path| {
        let whole = path.canonicalize().unwrap_or_else(|_| path.clone());
        whole
            .file_name()
            .map_or_else(|| whole.display().to_string(), |name| name.to_string_lossy().into_owned())
    });
    vec![folder.unwrap_or_else(|| nano::NAME.into())]
}

fn death(handle: &EngineHandle, end: std::thread::Result<Result<(), String>>) -> BootError {
    let reason = match end {
        Ok(Ok(())) => "it ended by itself".to_string(),
        Ok(Err(reason)) => reason,
        Err(_) => handle.death().unwrap_or("its thread panicked").to_string(),
    };
    format!("the engine has stopped: {reason}").into()
}

/// The message of an error followed by those of its sources, each text once.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
