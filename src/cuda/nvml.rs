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
    /// Share of the last fraction of a second in which a kernel ran, percent.
    pub utilization_percent: Option<u32>,
    /// Memory that all processes and the driver use.
    pub memory_used_bytes: Option<u64>,
    /// Memory of the GPU.
    pub memory_bytes: Option<u64>,
    /// Power drawn now, milliwatts.
    pub power_mw: Option<u32>,
    /// Temperature of the chip, degrees Celsius.
    pub temperature_c: Option<u32>,
    /// Reasons for a clock below the highest one, bits of [`DeviceState::THROTTLE_REASONS`].
    pub throttle_reasons: Option<u64>,
    /// Generation of the PCIe link now; a GPU without work lowers it.
    pub pcie_generation: Option<u32>,
    /// Highest generation that the GPU and its slot have.
    pub max_pcie_generation: Option<u32>,
    /// Lanes of the PCIe link now.
    pub pcie_lanes: Option<u32>,
    /// Most lanes that the GPU and its slot have.
    pub max_pcie_lanes: Option<u32>,
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

impl DeviceState {
    /// Bits of `nvmlClocksEventReasons` and their names. Idleness, bit 0, is no reason to look for.
    pub const THROTTLE_REASONS: [(u64, &'static str); 8] = [
        (1 << 1, "application_clocks"),
        (1 << 2, "power_cap"),
        (1 << 3, "hw_slowdown"),
        (1 << 4, "sync_boost"),
        (1 << 5, "thermal"),
        (1 << 6, "hw_thermal"),
        (1 << 7, "power_brake"),
        (1 << 8, "display_clocks"),
    ];

    /// Every reason, and whether it holds now; none where the GPU does not tell.
    pub fn throttled(&self) -> impl Iterator<Item = (&'static str, bool)> {
        let bits = self.throttle_reasons;
        bits.into_iter().flat_map(|bits| Self::THROTTLE_REASONS.map(|(bit, name)| (name, bits & bit != 0)))
    }
}

/// Critical errors of a GPU, which the kernel's log has as "Xid".
pub struct XidEvents {
    set: *mut c_void,
}

/// `nvmlUtilization_t`, percent.
#[repr(C)]
#[derive(Default)]
struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

/// `nvmlMemory_t`, bytes.
#[repr(C)]
#[derive(Default)]
struct Memory {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlEventData_t`.
#[repr(C)]
struct Event {
    device: Handle,
    kind: c_ulonglong,
    /// Number of the XID.
    number: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
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
        const TEMPERATURE_GPU: c_uint = 0;
        let handle = self.handle(pci_bus_id)?;
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
        let (mut busy, mut memory) = (Utilization::default(), Memory::default());
        let utilized = call!(
            self.library,
            nvmlDeviceGetUtilizationRates,
            (Handle = handle, *mut Utilization = &mut busy)
        );
        let sized =
            call!(self.library, nvmlDeviceGetMemoryInfo, (Handle = handle, *mut Memory = &mut memory));
        let mut reasons = 0;
        let told = call!(
            self.library,
            nvmlDeviceGetCurrentClocksEventReasons,
            (Handle = handle, *mut c_ulonglong = &mut reasons)
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
            utilization_percent: utilized.map(|()| busy.gpu),
            memory_used_bytes: sized.map(|()| memory.used),
            memory_bytes: sized.map(|()| memory.total),
            power_mw: number!(nvmlDeviceGetPowerUsage),
            temperature_c: number!(nvmlDeviceGetTemperature, c_uint = TEMPERATURE_GPU),
            throttle_reasons: told.map(|()| reasons),
            pcie_generation: number!(nvmlDeviceGetCurrPcieLinkGeneration),
            max_pcie_generation: number!(nvmlDeviceGetMaxPcieLinkGeneration),
            pcie_lanes: number!(nvmlDeviceGetCurrPcieLinkWidth),
            max_pcie_lanes: number!(nvmlDeviceGetMaxPcieLinkWidth),
            sm_clock_mhz: number!(nvmlDeviceGetClockInfo, c_uint = CLOCK_SM),
            max_sm_clock_mhz: number!(nvmlDeviceGetMaxClockInfo, c_uint = CLOCK_SM),
            max_memory_clock_mhz: number!(nvmlDeviceGetMaxClockInfo, c_uint = CLOCK_MEMORY),
            power_limit_mw: number!(nvmlDeviceGetEnforcedPowerLimit),
            default_power_limit_mw: number!(nvmlDeviceGetPowerManagementDefaultLimit),
        })
    }

    /// Begins to note the critical errors of the GPU at an address; `None`: the GPU or the library does not tell.
    pub fn xid_events(&self, pci_bus_id: &str) -> Option<XidEvents> {
        const XID: c_ulonglong = 1 << 3;
        let handle = self.handle(pci_bus_id)?;
        let mut set: *mut c_void = std::ptr::null_mut();
        call!(self.library, nvmlEventSetCreate, (*mut *mut c_void = &mut set))?;
        call!(
            self.library,
            nvmlDeviceRegisterEvents,
            (Handle = handle, c_ulonglong = XID, *mut c_void = set)
        )?;
        Some(XidEvents { set })
    }

    /// Number of the next critical error; `None`: there was no further one. Does not wait.
    pub fn next_xid(&self, events: &XidEvents) -> Option<u64> {
        let mut event =
            Event { device: std::ptr::null_mut(), kind: 0, number: 0, gpu_instance: 0, compute_instance: 0 };
        call!(
            self.library,
            nvmlEventSetWait_v2,
            (*mut c_void = events.set, *mut Event = &mut event, c_uint = 0)
        )?;
        Some(event.number)
    }

    fn handle(&self, pci_bus_id: &str) -> Option<Handle> {
        let address = CString::new(pci_bus_id).ok()?;
        let mut handle: Handle = std::ptr::null_mut();
        call!(
            self.library,
            nvmlDeviceGetHandleByPciBusId_v2,
            (*const c_char = address.as_ptr(), *mut Handle = &mut handle)
        )?;
        Some(handle)
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        let _ = call!(self.library, nvmlShutdown, ());
    }
}
