//! The context of a device, and objects of the driver that are destroyed on drop.
//!
//! Invariant: every object keeps its context, so the context is released after the last of them.

use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{CUcontext, CUdevice, CUevent, CUmodule, CUstream};

use super::super::DriverError;
use super::functions::Functions;

thread_local! {
    /// Number of the context that this module made current on the thread; 0: none.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

/// Numbers contexts. An address would not do: a released context's is used again.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Whether a device has not ended its work within the patience of a context: calls that free what it uses would wait for it without
/// end, so all is left to the end of the process.
static ABANDONED: AtomicBool = AtomicBool::new(false);

/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: c_int = 600;
/// `CUDA_ERROR_LAUNCH_TIMEOUT`, which the driver gives where a display has lost its patience.
const LAUNCH_TIMEOUT: c_int = 702;
/// Between two looks at an event.
const LOOK: Duration = Duration::from_micros(50);

/// Whether what the device uses cannot be freed any more.
pub(super) fn is_abandoned() -> bool {
    ABANDONED.load(Ordering::Relaxed)
}

/// The primary context of a device.
pub(super) struct Context {
    pub(super) functions: Functions,
    pub(super) device: CUdevice,
    pub(super) handle: CUcontext,
    number: u64,
    /// Modules stay loaded as long as the context: functions and graphs that refer to them cannot outlive them.
    modules: Mutex<Vec<CUmodule>>,
    /// Longest wait for an event; without one it has no end.
    pub(super) patience: OnceLock<Duration>,
}

// SAFETY: libcuda may be called from any thread, and the handles are only passed to it.
unsafe impl Send for Context {}
// SAFETY: as above; libcuda locks what threads share.
unsafe impl Sync for Context {}

impl Context {
    /// Retains the context of a device and makes it current.
    pub(super) fn open(ordinal: u32) -> Result<Arc<Self>, DriverError> {
        let functions = Functions::find()?;
        let (mut device, mut handle) = (0, null_mut());
        // SAFETY: outputs are writable, and the device is the driver's own handle.
        unsafe {
            functions.cuInit(0)?;
            functions.cuDeviceGet(&mut device, c_int::try_from(ordinal).unwrap_or(c_int::MAX))?;
            functions.cuDevicePrimaryCtxRetain(&mut handle, device)?;
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let (modules, patience) = (Mutex::default(), OnceLock::new());
        let context = Arc::new(Self { functions, device, handle, number, modules, patience });
        context.make_current()?;
        Ok(context)
    }

    /// Makes the context current on this thread. Costs a read of a thread-local number where it already is; nothing
    /// else in the process may set the current context of a thread that drives a GPU.
    pub(super) fn make_current(&self) -> Result<(), DriverError> {
        if CURRENT.get() != self.number {
            // SAFETY: the context is retained.
            unsafe { self.functions.cuCtxSetCurrent(self.handle) }?;
            CURRENT.set(self.number);
        }
        Ok(())
    }

    /// Number for an attribute of the device.
    pub(super) fn attribute(&self, attribute: c_uint) -> Result<u32, DriverError> {
        let mut value = 0;
        // SAFETY: the value is writable.
        unsafe { self.functions.cuDeviceGetAttribute(&mut value, attribute, self.device) }?;
        Ok(value.max(0) as u32)
    }

    /// Loads a CUBIN, which is whole.
    pub(super) fn load(&self, cubin: &[u8]) -> Result<CUmodule, DriverError> {
        self.make_current()?;
        let mut module = null_mut();
        // SAFETY: the driver reads as far as the headers of the image tell.
        unsafe { self.functions.cuModuleLoadData(&mut module, cubin.as_ptr().cast()) }?;
        self.modules.lock().unwrap_or_else(PoisonError::into_inner).push(module);
        Ok(module)
    }

    /// An object that `create` makes, and that `destroy` ends on drop.
    pub(super) fn own<H: Copy>(
        self: &Arc<Self>,
        mut handle: H,
        create: impl FnOnce(&Functions, *mut H) -> Result<(), DriverError>,
        destroy: unsafe fn(&Functions, H) -> Result<(), DriverError>,
    ) -> Result<Owned<H>, DriverError> {
        self.make_current()?;
        create(&self.functions, &mut handle)?;
        Ok(Owned { handle, destroy, context: self.clone() })
    }

    /// A stream that does not wait for the default stream.
    pub(super) fn stream(self: &Arc<Self>) -> Result<Owned<CUstream>, DriverError> {
        const NON_BLOCKING: c_uint = 1;
        // SAFETY: the output is writable.
        let create = |f: &Functions, out| unsafe { f.cuStreamCreate(out, NON_BLOCKING) };
        self.own(null_mut(), create, Functions::cuStreamDestroy_v2)
    }

    /// An event without a time.
    pub(super) fn event(self: &Arc<Self>, wait: Wait) -> Result<Owned<CUevent>, DriverError> {
        const DISABLE_TIMING: c_uint = 2;
        // SAFETY: the output is writable.
        let create = |f: &Functions, out| unsafe { f.cuEventCreate(out, DISABLE_TIMING | wait as c_uint) };
        self.own(null_mut(), create, Functions::cuEventDestroy_v2)
    }

    /// An event with the time at which the device reached it.
    pub(super) fn timed_event(self: &Arc<Self>) -> Result<Owned<CUevent>, DriverError> {
        // SAFETY: the output is writable.
        let create = |f: &Functions, out| unsafe { f.cuEventCreate(out, Wait::Block as c_uint) };
        self.own(null_mut(), create, Functions::cuEventDestroy_v2)
    }

    /// Host memory that the device copies from and to without the driver's staging.
    pub(super) fn pinned(self: &Arc<Self>, bytes: usize) -> Result<Pinned, DriverError> {
        // Not write-combined: the CPU reads downloads, and stores of several threads to such memory are ordered by
        // their own rules.
        // All contexts reach it, under the address of the host.
        const PORTABLE: c_uint = 1;
        // SAFETY: the output is writable.
        let create = |f: &Functions, out| unsafe { f.cuMemHostAlloc(out, bytes, PORTABLE) };
        let memory = self.own(null_mut::<c_void>(), create, Functions::cuMemFreeHost)?;
        Ok(Pinned { memory, bytes })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if is_abandoned() {
            return;
        }
        // Errors are those of a context that is already unusable.
        let _ = self.make_current();
        let modules = self.modules.get_mut().unwrap_or_else(PoisonError::into_inner);
        for module in std::mem::take(modules) {
            // SAFETY: objects that refer to the module keep the context, so there are none.
            let _ = unsafe { self.functions.cuModuleUnload(module) };
        }
        CURRENT.set(0);
        // SAFETY: the context is retained until the second call, and not current on this thread after the first.
        unsafe {
            let _ = self.functions.cuCtxSetCurrent(null_mut());
            let _ = self.functions.cuDevicePrimaryCtxRelease_v2(self.device);
        }
    }
}

/// How the CPU waits for an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// Polls: a core for the time of the wait, and some ten microseconds less until the caller goes on. The driver
    /// yields in between where more contexts than cores exist.
    Spin = 0,
    /// Sleeps until the interrupt.
    Block = 1,
}

/// An object of the driver, destroyed on drop.
pub(super) struct Owned<H: Copy> {
    handle: H,
    destroy: unsafe fn(&Functions, H) -> Result<(), DriverError>,
    context: Arc<Context>,
}

// SAFETY: handles are numbers or addresses that only libcuda follows, from any thread.
unsafe impl<H: Copy> Send for Owned<H> {}

impl<H: Copy> Owned<H> {
    /// The driver's handle, valid as long as `self`.
    pub(super) fn handle(&self) -> H {
        self.handle
    }
}

impl<H: Copy> Drop for Owned<H> {
    fn drop(&mut self) {
        if is_abandoned() {
            return;
        }
        // Errors are those of a context that is already unusable, or of earlier work.
        let _ = self.context.make_current();
        // SAFETY: the handle is alive, and not used again.
        let _ = unsafe { (self.destroy)(&self.context.functions, self.handle) };
    }
}

impl Owned<CUstream> {
    /// Waits for all work.
    pub(super) fn synchronize(&self) -> Result<(), DriverError> {
        // SAFETY: the stream is alive.
        unsafe { self.context.functions.cuStreamSynchronize(self.handle) }
    }
}

impl Owned<CUevent> {
    /// Marks the end of the work that was enqueued so far.
    pub(super) fn record(&self, stream: &Owned<CUstream>) -> Result<(), DriverError> {
        // SAFETY: both are alive.
        unsafe { self.context.functions.cuEventRecord(self.handle, stream.handle) }
    }

    /// Adds to the recording under way that each replay marks the end of the work so far.
    pub(super) fn record_in_graph(&self, stream: &Owned<CUstream>) -> Result<(), DriverError> {
        const EXTERNAL: c_uint = 1;
        // SAFETY: both are alive; the graph keeps the driver's part of the event.
        unsafe { self.context.functions.cuEventRecordWithFlags(self.handle, stream.handle, EXTERNAL) }
    }

    /// Waits for the work before the last record; returns at once if there was none. Errors: the patience of the context is over; the
    /// device is of no use to this process then.
    pub(super) fn wait(&self) -> Result<(), DriverError> {
        let begun = Instant::now();
        while let Some(patience) = self.context.patience.get() {
            // SAFETY: the event is alive.
            match unsafe { self.context.functions.cuEventQuery(self.handle) } {
                Err(error) if error.code == NOT_READY && begun.elapsed() < *patience => thread::sleep(LOOK),
                Err(error) if error.code == NOT_READY => {
                    ABANDONED.store(true, Ordering::Relaxed);
                    let text = format!("the device has not ended its work in {} s", patience.as_secs_f64());
                    return Err(DriverError { code: LAUNCH_TIMEOUT, text, fatal: true, ..error });
                }
                result => return result,
            }
        }
        // SAFETY: the event is alive.
        unsafe { self.context.functions.cuEventSynchronize(self.handle) }
    }

    /// Milliseconds from the last record of `start` to that of this event; both have a time and have been reached.
    pub(super) fn milliseconds_since(&self, start: &Self) -> Result<f32, DriverError> {
        let mut milliseconds = 0.0;
        // SAFETY: the output is writable, and both events are alive.
        unsafe { self.context.functions.cuEventElapsedTime(&mut milliseconds, start.handle, self.handle) }?;
        Ok(milliseconds)
    }
}

/// Host memory for copies.
pub(super) struct Pinned {
    memory: Owned<*mut c_void>,
    bytes: usize,
}

impl Pinned {
    /// Size.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// First byte.
    pub(super) fn pointer(&self) -> *mut u8 {
        self.memory.handle.cast()
    }
}
