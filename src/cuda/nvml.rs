//! NVML, the library of nvidia-smi: state of a GPU that CUDA does not tell. Optional, unlike libcuda.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::mem;
use std::path::Path;

use super::library::Library;

/// Name along the loader's search path.
const LIBRARY_NAME: &str = "libnvidia-ml.so.1";
/// Longest version text, bytes with the terminator.
const VERSION_BYTES: usize = 80;

/// `nvmlDevice_t`.
type Handle = *mut c_void;

/// The library, initialised.
pub struct Nvml {
    library: Library,
}

/// State of a GPU; `None`: the GPU or the library does not tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceState {
    /// Whether memory errors are corrected.
    pub ecc: Option<bool>,
    /// Memory errors that could not be corrected, since the driver was loaded.
    pub uncorrected_errors: Option<u64>,
    /// Clock of the multiprocessors now, MHz.
    pub sm_clock_mhz: Option<u32>,
    /// Highest clock of the multiprocessors, MHz.
    pub max_sm_clock_mhz: Option<u32>,
    /// Highest clock of the memory, MHz.
    pub max_memory_clock_mhz: Option<u32>,
    /// Power limit in force, milliwatts.
    pub power_limit_mw: Option<u32>,
    /// Power limit as delivered, milliwatts.
    pub default_power_limit_mw: Option<u32>,
}

/// Looks a function up and calls it; `None` if the library lacks it or its code is not 0.
macro_rules! call {
    ($library:expr, $name:ident, ($($kind:ty = $argument:expr),*)) => {{
        let name = concat!(stringify!($name), "\0");
        let address = CStr::from_bytes_with_nul(name.as_bytes()).ok().and_then(|name| $library.address(name));
        address.and_then(|address| {
            type Function = unsafe extern "C" fn($($kind),*) -> c_int;
            // SAFETY: the type is the function's in nvml.h, with `nvmlReturn_t` as a number.
            let function = unsafe { mem::transmute::<*const c_void, Function>(address) };
            // SAFETY: pointers are to live values of the types in the declaration, and handles the library's own.
            (unsafe { function($($argument),*) } == 0).then_some(())
        })
    }};
}

impl Nvml {
    /// Opens the library. Errors: the reason why it cannot be used.
    pub fn open() -> Result<Self, String> {
        let library = Library::open(Path::new(LIBRARY_NAME))?;
        call!(library, nvmlInit_v2, ()).ok_or("nvmlInit_v2 failed")?;
        Ok(Self { library })
    }

    /// Version of the driver, such as 580.65.06.
    pub fn driver_version(&self) -> Option<String> {
        let mut text = [0 as c_char; VERSION_BYTES];
        let length = VERSION_BYTES as c_uint - 1;
        call!(
            self.library,
            nvmlSystemGetDriverVersion,
            (*mut c_char = text.as_mut_ptr(), c_uint = length)
        )?;
        // SAFETY: the last byte is 0, whatever the library wrote before it.
        Some(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
    }

    /// State of the GPU at an address of the PCI bus; `None` for an address without one.
    pub fn state(&self, pci_bus_id: &str) -> Option<DeviceState> {
        // Numbers of enums in nvml.h.
        const CLOCK_SM: c_uint = 1;
        const CLOCK_MEMORY: c_uint = 2;
        const UNCORRECTED: c_uint = 1;
        const SINCE_DRIVER_LOAD: c_uint = 0;
        let address = CString::new(pci_bus_id).ok()?;
        let mut handle: Handle = std::ptr::null_mut();
        call!(
            self.library,
            nvmlDeviceGetHandleByPciBusId_v2,
            (*const c_char = address.as_ptr(), *mut Handle = &mut handle)
        )?;
        let (mut now, mut after_restart) = (0, 0);
        let ecc = call!(
            self.library,
            nvmlDeviceGetEccMode,
            (Handle = handle, *mut c_uint = &mut now, *mut c_uint = &mut after_restart)
        );
        let mut errors = 0;
        let counted = call!(
            self.library,
            nvmlDeviceGetTotalEccErrors,
            (Handle = handle, c_uint = UNCORRECTED, c_uint = SINCE_DRIVER_LOAD, *mut c_ulonglong = &mut errors)
        );
        /// The number that a function writes behind the handle and the given arguments.
        macro_rules! number {
            ($name:ident $(, $kind:ty = $argument:expr)*) => {{
                let mut value: c_uint = 0;
                let found = call!(self.library, $name, (Handle = handle $(, $kind = $argument)*, *mut c_uint = &mut value));
                found.map(|()| value)
            }};
        }
        Some(DeviceState {
            ecc: ecc.map(|()| now != 0),
            uncorrected_errors: counted.map(|()| errors),
            sm_clock_mhz: number!(nvmlDeviceGetClockInfo, c_uint = CLOCK_SM),
            max_sm_clock_mhz: number!(nvmlDeviceGetMaxClockInfo, c_uint = CLOCK_SM),
            max_memory_clock_mhz: number!(nvmlDeviceGetMaxClockInfo, c_uint = CLOCK_MEMORY),
            power_limit_mw: number!(nvmlDeviceGetEnforcedPowerLimit),
            default_power_limit_mw: number!(nvmlDeviceGetPowerManagementDefaultLimit),
        })
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        let _ = call!(self.library, nvmlShutdown, ());
    }
}
