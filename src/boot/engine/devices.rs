//! Devices of a driver that this crate does not know, given by the program that starts the engine.

use std::fmt;
use std::sync::Arc;

use super::{EngineError, EngineOptions, EngineProgress, StartedEngine};
use perigee_model::Blueprint;
use perigee_model::checkpoint::Checkpoint;
use perigee_ops::Activations;
use perigee_telemetry::Metrics;

/// Devices that an engine can be started on.
pub trait Devices: Send + Sync {
    /// Number and architecture of the devices, for logs and for the identity of KV blocks.
    fn name(&self) -> String;

    /// Builds and starts the engine, as [`super::start_on_gpus`] on backends of these devices. Blocking.
    fn start(
        &self,
        activations: Activations,
        checkpoint: &Checkpoint,
        blueprint: Blueprint,
        options: &EngineOptions,
        metrics: Arc<Metrics>,
        progress: &mut dyn FnMut(EngineProgress),
    ) -> Result<StartedEngine, EngineError>;
}

/// [`Devices`] that options and logs can share.
#[derive(Clone)]
pub struct GivenDevices(pub Arc<dyn Devices>);

impl fmt::Debug for GivenDevices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.name())
    }
}

impl PartialEq for GivenDevices {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
