//! The boot walk, one line per station: configuration → listener → checkpoint → text → memory plan
//! → weights → warm-up → ready. On the way out a signal drains the server, and a failed engine ends
//! the process with its reason.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::runtime::{self, Handle, Runtime};

use super::engine::{EngineOptions, EngineProgress, GivenDevices, StartedEngine, start_engine};
use super::error::{BootError, chain};
use super::open_files;
use super::progress::Progress;
use super::reload::{Load, Reloader};
use super::sampling_defaults::{ModelDefaults, sampling_defaults};
use super::self_test::self_test;
use super::signals::{Ending, Signals, survive_file_size_limit};
use super::stations::{load_sight, load_text, open_checkpoint, read_blueprint};
use super::watchdog;
use crate::config::{Loaded, Settings};
use crate::nano;
use perigee_engine::EngineHandle;
use perigee_engine::kv_events::{self, Publisher, Sockets};
use perigee_http::api::{Api, ModelCard};
use perigee_http::generate::Generator;
use perigee_http::server::{Drained, Endpoint, Ledger, Readiness, RemoteImages, Server, Traces};
use perigee_telemetry::{EngineInfo, LogControl, Metrics};

/// Exit code of a shutdown whose drain timed out before all requests had finished.
const EXIT_CUT: u8 = 3;
/// Exit code of a server whose engine was stuck.
const EXIT_STUCK: u8 = 4;

/// Threads for HTTP and text; the engine has its own.
const MAX_ASYNC_THREADS: usize = 4;
/// Longest wait, at the end, for the collector of traces.
const TRACE_FLUSH_LIMIT: Duration = Duration::from_secs(3);

/// `perigee serve`, from loaded settings to the exit code, on `devices` in place of the settings' if there are any. `load` reads the
/// settings anew.
pub(crate) fn serve(loaded: Loaded, load: Load, devices: Option<GivenDevices>) -> ExitCode {
    let begun = Instant::now();
    perigee_telemetry::heap::set_up();
    let begin =
        || Ok::<_, BootError>((start_runtime()?, perigee_telemetry::init(&loaded.settings.telemetry)?));
    let (runtime, logs) = match begin() {
        Ok(parts) => parts,
        Err(error) => {
            eprintln!("perigee: {error}");
            return ExitCode::FAILURE;
        }
    };
    loaded.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    loaded.origins.iter().for_each(|(key, origin)| tracing::debug!(%key, %origin, "setting"));
    open_files::raise_limit(loaded.settings.server.max_connections);
    let outcome = runtime.block_on(run(loaded, load, devices, logs, begun));
    runtime.shutdown_background();
    match outcome {
        Ok(End::Drained) => ExitCode::SUCCESS,
        Ok(End::Cut) => ExitCode::from(EXIT_CUT),
        Ok(End::Forced) => ExitCode::FAILURE,
        Ok(End::Stuck) => ExitCode::from(EXIT_STUCK),
        Err(error) => {
            tracing::error!("{}", chain(&*error));
            ExitCode::FAILURE
        }
    }
}

/// The runtime of HTTP and text.
fn start_runtime() -> std::io::Result<Runtime> {
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get()).min(MAX_ASYNC_THREADS);
    let runtime = runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    // Before the first line of the log.
    runtime.block_on(async { survive_file_size_limit() })?;
    Ok(runtime)
}

/// How serving ended.
enum End {
    /// Every request had its answer.
    Drained,
    /// Requests were ended with an error because the drain's time was over.
    Cut,
    /// A further signal ended what was left of the drain.
    Forced,
    /// A step never ended.
    Stuck,
}

/// Listens, boots behind the listener, serves until a signal or the engine's failure.
async fn run(
    loaded: Loaded,
    load: Load,
    devices: Option<GivenDevices>,
    logs: LogControl,
    begun: Instant,
) -> Result<End, BootError> {
    let mut signals = Signals::new()?;
    let settings = &loaded.settings.clone();
    let names = served_names(settings);
    let metrics = Metrics::new(&names[0], settings.telemetry.vllm_names);
    let metrics = Arc::new(
        match settings.telemetry.vllm_legacy_names {
            true => metrics.with_legacy_names(&names[0]),
            false => metrics,
        }
        .with_stuck_after(settings.scheduler.step_timeout())
        .with_objectives(settings.slo.clone()),
    );
    let server = Server::start(settings.server.clone(), metrics.clone()).await?;
    // Before the weights: what is refused here costs no time of loading.
    let sockets = kv_events::listen(&settings.kv_events).await?;
    if let Some(ledger) = Ledger::open(&settings.usage, metrics.clone())? {
        server.set_ledger(ledger);
    }
    let traces = start_traces(settings, &names[0], &metrics);
    traces.iter().for_each(|traces| server.set_traces(traces.clone()));
    let reloader = Arc::new(Reloader::new(load, loaded, server.control(), logs));
    server.set_operator(reloader.clone());
    tracing::info!(
        at = server.url(),
        model = names[0],
        "booting: health is answered, requests are refused until this log says ready"
    );
    note_public_pages(settings);
    note_embedded(settings, &names[0]);
    let booting = {
        let (settings, metrics, readiness) = (settings.clone(), metrics.clone(), server.readiness());
        tokio::task::spawn_blocking(move || boot(&settings, devices, names, sockets, &metrics, &readiness))
    };
    let booted = tokio::select! {
        booted = booting => booted?,
        _ = signals.end() => return Ok(End::Drained),
    };
    let Booted { api, model, engine, publisher } = match booted {
        Ok(booted) => booted,
        Err(error) => {
            server.readiness().failed(&chain(&*error));
            return Err(error);
        }
    };
    server.open(api);
    reloader.set_model(model);
    signals.reload_with(reloader);
    let took = begun.elapsed();
    server.readiness().stages().into_iter().for_each(|(stage, took)| metrics.record_boot_stage(stage, took));
    metrics.set_boot_time(took);
    tracing::info!(seconds = format!("{:.3}", took.as_secs_f64()), url = server.url(), "ready");
    let end = tokio::select! {
        end = serve_until_end(server, engine, signals) => end,
        // Nothing waits for the engine's thread, which never ends.
        () = watchdog::stuck(&metrics, settings.scheduler.step_timeout()) => return Ok(End::Stuck),
    };
    match end {
        Err(_) => watchdog::log_flight(&metrics),
        // Neither a collector of traces nor the engine's thread is waited for.
        Ok(End::Forced) => return end,
        Ok(_) => {}
    }
    if let Some(traces) = traces {
        traces.flush(TRACE_FLUSH_LIMIT).await;
    }
    // The engine has ended, and with it what was cached.
    if let Some(publisher) = publisher {
        publisher.ended().await;
    }
    end
}

/// Starts the export of traces, if the settings name a collector.
fn start_traces(settings: &Settings, model: &str, metrics: &Arc<Metrics>) -> Option<Arc<Traces>> {
    let endpoint: Endpoint = settings.telemetry.otlp_endpoint.parse().ok()?;
    tracing::info!(to = %endpoint, "traces of requests are exported");
    Some(Arc::new(Traces::start(endpoint, settings.telemetry.trace_sample_ratio, model, metrics.clone())))
}

async fn serve_until_end(
    server: Server,
    engine: StartedEngine,
    mut signals: Signals,
) -> Result<End, BootError> {
    let StartedEngine { handle, thread } = engine;
    let mut ended = tokio::task::spawn_blocking(move || thread.join());
    let leave = async {
        let ending = tokio::select! {
            ending = signals.end() => ending,
            () = server.unused() => {
                tracing::info!("no request of the model for server.idle_exit_s: the server ends");
                Ending::now()
            }
        };
        tokio::select! {
            () = server.leave() => (ending, false),
            () = signals.force(ending) => (ending, true),
        }
    };
    let (ending, mut forced) = tokio::select! {
        left = leave => left,
        end = &mut ended => {
            let error = death(&handle, end?);
            // The engine's requests ended with it; the drain lets their clients read the error.
            server.drain().await;
            return Err(error);
        }
    };
    tracing::info!("draining: no new requests, running ones finish");
    let hurry = async {
        if !forced {
            signals.force(ending).await;
            forced = true;
        }
    };
    let Drained { cut, took } = server.drain_until(hurry).await;
    handle.shutdown();
    if !forced {
        tokio::select! {
            end = &mut ended => return drained(cut, took, &handle, end?),
            () = signals.force(ending) => {}
        }
    }
    let requests = if cut == 1 { "request was" } else { "requests were" };
    tracing::error!("second signal: {cut} {requests} ended with an error, and the drain is not waited for");
    Ok(End::Forced)
}

/// How a drain ended that nothing forced, behind which the engine ended.
fn drained(
    cut: usize,
    took: Duration,
    handle: &EngineHandle,
    end: std::thread::Result<Result<(), String>>,
) -> Result<End, BootError> {
    let seconds = format!("{:.3}", took.as_secs_f64());
    match end {
        Ok(Ok(())) if cut == 0 => tracing::info!(seconds, "drained"),
        Ok(Ok(())) => tracing::warn!(
            cut,
            seconds,
            "server.drain_timeout_s was over: requests that still ran were answered with an error"
        ),
        end => return Err(death(handle, end)),
    }
    Ok(if cut == 0 { End::Drained } else { End::Cut })
}

/// Logs that some pages need no key where requests do.
fn note_public_pages(settings: &Settings) {
    if !settings.server.api_keys.is_empty() && settings.server.public_pages {
        tracing::info!(
            "/metrics, /version, /docs and /openapi.json need no key; server.public_pages = false changes that"
        );
    }
}

/// Logs that what answers is no checkpoint: a model folder that was forgotten looks the same from outside.
fn note_embedded(settings: &Settings, name: &str) {
    if settings.model.path.is_none() {
        tracing::warn!(
            model = name,
            "serving the embedded toy model {}: no model.path is set; --model DIR or PERIGEE_MODEL__PATH serves a checkpoint",
            nano::NAME
        );
    }
}

/// Results of the blocking part of the boot.
struct Booted {
    api: Api,
    model: ModelDefaults,
    engine: StartedEngine,
    publisher: Option<Publisher>,
}

/// The stages from checkpoint to routes. Runs on a blocking thread.
fn boot(
    settings: &Settings,
    devices: Option<GivenDevices>,
    names: Vec<String>,
    sockets: Option<Sockets>,
    metrics: &Arc<Metrics>,
    readiness: &Readiness,
) -> Result<Booted, BootError> {
    let mut progress = Progress::new(readiness);
    progress.stage("checkpoint");
    let checkpoint = open_checkpoint(settings)?;
    let blueprint = read_blueprint(&checkpoint)?;
    progress.stage("text");
    let mut text = load_text(settings, &checkpoint, &blueprint)?;
    let tower = load_sight(settings, &checkpoint, &blueprint, &mut text)?;
    let model = ModelDefaults::of(&checkpoint, &blueprint, text.template.family())?;
    let defaults = sampling_defaults(settings, &model);
    progress.stage("memory plan");
    let options = match devices {
        None => EngineOptions::from_settings(settings, &blueprint)?,
        Some(devices) => EngineOptions::on_devices(settings, &blueprint, devices),
    };
    let options = EngineOptions { tower, ..options };
    let engine = start_engine(&checkpoint, blueprint, &options, metrics.clone(), &mut |at| {
        if let EngineProgress::Planned(plan) = &at {
            // Fields for collectors, whose tables have no lines.
            tracing::info!(
                weights_bytes = plan.weights_bytes,
                workspace_bytes = plan.workspace_bytes,
                cache_bytes = plan.cache_bytes,
                cache_tokens = plan.num_blocks * plan.block_size,
                available_bytes = plan.available_bytes,
                "memory plan\n{}",
                plan.table().trim_end()
            );
        }
        progress.engine(&at);
    })?;
    let facts = engine.handle.facts();
    metrics.set_engine_info(&EngineInfo {
        backend: facts.backend.into(),
        block_size: facts.block_size,
        num_blocks: facts.num_blocks,
        cache_dtype: facts.cache_dtype.into(),
        prefix_caching: options.prefix_caching,
        max_model_len: facts.max_model_len,
    });
    let publisher = sockets.map(|sockets| tell_routers(sockets, settings, &names[0], &engine, metrics));
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let card = ModelCard {
        names,
        created,
        max_model_len: facts.max_model_len,
        accept_any_name: settings.model.accept_any_name,
        embedded: settings.model.path.is_none().then(|| nano::NAME.into()),
    };
    let timeout = settings.server.request_timeout();
    let door = Arc::new(engine.handle.clone());
    let reasoning = settings.reasoning.clone();
    let generator = Generator::new(door, text, defaults, reasoning, timeout.as_secs_f64(), metrics.clone())
        .with_guard(settings.guard.clone())
        .with_structured_output(settings.structured_output.clone());
    let remote = RemoteImages::new(&settings.vision)?;
    let generator = Arc::new(match remote {
        Some(remote) => generator.with_fetch(Arc::new(remote)),
        None => generator,
    });
    // Runs beside the first requests: only a request with a grammar would wait for it.
    let warming = generator.clone();
    std::thread::Builder::new().name("perigee-grammars".into()).spawn(move || warming.warm_up_grammars())?;
    let mut api =
        Api::new(generator, card, timeout).with_stored_responses(settings.server.stored_responses_bytes);
    api.unknown_fields = settings.server.unknown_fields;
    api.hosted_tools = settings.server.hosted_tools;
    api.body_limit = if api.generator.sees() { settings.vision.max_body_bytes } else { 0 };
    if settings.model.self_test {
        progress.stage("self-test");
        Handle::current().block_on(self_test(&api))?;
    }
    progress.done();
    Ok(Booted { api, model, engine, publisher })
}

/// Begins to publish what the prefix cache holds.
fn tell_routers(
    sockets: Sockets,
    settings: &Settings,
    model: &str,
    engine: &StartedEngine,
    metrics: &Arc<Metrics>,
) -> Publisher {
    let block_size = engine.handle.facts().block_size;
    let handle = engine.handle.clone();
    let wake = move || handle.tell_again();
    let (feed, publisher) =
        kv_events::publish(sockets, &settings.kv_events, model, block_size, metrics.clone(), wake);
    engine.handle.tell(feed);
    publisher
}

/// Names that clients may use: the operator's, else the folder's, else the embedded model's.
pub(super) fn served_names(settings: &Settings) -> Vec<String> {
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
