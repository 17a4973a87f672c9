//! How long kernels take where they run: events of the device between the launches of a step, in a recorded step too.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{CUevent, CUstream};
use serde::Serialize;

use super::super::DriverError;
use super::context::{Context, Owned};

/// Launches that are not recorded are added up after so many at the latest.
const MAX_MARKS: usize = 4096;

/// Launches and their seconds, by whether they were recorded and by the kernel's name.
type Sums = BTreeMap<(bool, Arc<str>), (u64, f64)>;

/// Times of kernels. Shared by the device and whoever reads them.
#[derive(Debug, Default)]
pub struct LaunchTimes(Mutex<Sums>);

/// Launches of one kernel.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LaunchTime {
    /// Name of the `__global__` function.
    pub kernel: String,
    /// Whether they were part of a recorded step.
    pub recorded: bool,
    /// How many there were.
    pub launches: u64,
    /// Seconds of all of them, each from the end of the launch before it.
    pub seconds: f64,
}

impl LaunchTimes {
    /// Takes what was added since the last call, by kernel.
    pub fn take(&self) -> Vec<LaunchTime> {
        let times = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        times
            .into_iter()
            .map(|((recorded, kernel), (launches, seconds))| LaunchTime {
                kernel: kernel.to_string(),
                recorded,
                launches,
                seconds,
            })
            .collect()
    }
}

/// An event behind a launch, or in front of the first of several.
struct Mark {
    event: Owned<CUevent>,
    kernel: Option<Arc<str>>,
}

/// Events behind launches in their order.
#[derive(Default)]
pub(super) struct Marks(Vec<Mark>);

impl Marks {
    /// Records an event: of a recording, or of the stream.
    fn mark(
        &mut self,
        context: &Arc<Context>,
        stream: &Owned<CUstream>,
        recording: bool,
        kernel: Option<Arc<str>>,
    ) -> Result<(), DriverError> {
        let event = context.timed_event()?;
        match recording {
            true => event.record_in_graph(stream)?,
            false => event.record(stream)?,
        }
        self.0.push(Mark { event, kernel });
        Ok(())
    }
}

/// Marks launches and adds their times up.
pub(super) struct Stopwatch {
    times: Arc<LaunchTimes>,
    /// Of launches that no sum has yet, or of the recording under way.
    marks: Marks,
}

impl Stopwatch {
    pub(super) fn new(times: Arc<LaunchTimes>) -> Self {
        Self { times, marks: Marks::default() }
    }

    /// In front of a launch; `first`: there was none right before it.
    pub(super) fn before(
        &mut self,
        context: &Arc<Context>,
        stream: &Owned<CUstream>,
        recording: bool,
        first: bool,
    ) -> Result<(), DriverError> {
        let marks = self.marks.0.len();
        if !recording && marks >= MAX_MARKS {
            self.add(stream)?;
        }
        match first || self.marks.0.is_empty() {
            true => self.marks.mark(context, stream, recording, None),
            false => Ok(()),
        }
    }

    /// Behind a launch.
    pub(super) fn behind(
        &mut self,
        context: &Arc<Context>,
        stream: &Owned<CUstream>,
        recording: bool,
        kernel: &Arc<str>,
    ) -> Result<(), DriverError> {
        self.marks.mark(context, stream, recording, Some(kernel.clone()))
    }

    /// Waits for the stream and adds the launches that were not recorded.
    pub(super) fn add(&mut self, stream: &Owned<CUstream>) -> Result<(), DriverError> {
        let marks = std::mem::take(&mut self.marks);
        self.sum(stream, &marks, false)
    }

    /// The marks of a recording that has ended.
    pub(super) fn take_recording(&mut self) -> Marks {
        std::mem::take(&mut self.marks)
    }

    /// Waits for the stream, whose last work is a recording with these marks, and adds its launches.
    pub(super) fn add_replay(&mut self, stream: &Owned<CUstream>, marks: &Marks) -> Result<(), DriverError> {
        self.sum(stream, marks, true)
    }

    fn sum(&self, stream: &Owned<CUstream>, marks: &Marks, recorded: bool) -> Result<(), DriverError> {
        if marks.0.is_empty() {
            return Ok(());
        }
        stream.synchronize()?;
        let mut times = self.times.0.lock().unwrap_or_else(PoisonError::into_inner);
        for pair in marks.0.windows(2) {
            let [before, Mark { event, kernel: Some(kernel) }] = pair else { continue };
            let seconds = f64::from(event.milliseconds_since(&before.event)?) / 1e3;
            let sum = times.entry((recorded, kernel.clone())).or_default();
            *sum = (sum.0 + 1, sum.1 + seconds);
        }
        Ok(())
    }
}
