//! Whether this machine has a driver of NVIDIA, and which devices.
//!
//! cudarc panics where its library or a function of it is missing, and its result codes are an enum without the codes
//! of later drivers. The probe therefore opens the library, looks every function up by name, and takes codes as numbers.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::mem;

use cudarc::driver::sys::CUdevice_attribute as Attribute;

use super::Arch;
use super::library::Library;

/// Oldest driver that loads CUBINs of CUDA 13, as `cuDriverGetVersion` gives it.
const MIN_VERSION: c_int = 13_000;
/// Longest device name, bytes with the terminator.
const NAME_BYTES: usize = 256;

/// The installed driver and its devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installation {
    /// Newest version of CUDA that the driver knows: major, minor.
    pub version: (u32, u32),
    /// Devices by ordinal, at least one.
    pub devices: Vec<Device>,
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Number of the device for the driver, after CUDA_VISIBLE_DEVICES.
    pub ordinal: u32,
    /// Name of the product.
    pub name: String,
    /// UUID as `nvidia-smi -L` writes it; `None`: the driver does not tell.
    pub uuid: Option<String>,
    /// Compute capability: major, minor.
    pub capability: (u32, u32),
    /// Memory, bytes.
    pub memory_bytes: u64,
}

impl Device {
    /// Target of its kernels; `None` for a chip without kernels.
    pub fn arch(&self) -> Option<Arch> {
        Arch::of_capability(self.capability.0, self.capability.1)
    }

    /// Whether an operator means it: its number, or the beginning of its UUID.
    pub fn is_called(&self, name: &str) -> bool {
        match name.parse::<u32>() {
            Ok(ordinal) => ordinal == self.ordinal,
            Err(_) => {
                let begins = |uuid: &String| {
                    uuid.get(..name.len()).is_some_and(|uuid| uuid.eq_ignore_ascii_case(name))
                };
                name.len() > UUID_PREFIX.len() && self.uuid.as_ref().is_some_and(begins)
            }
        }
    }
}

/// Beginning of every UUID.
const UUID_PREFIX: &str = "GPU-";

/// A UUID as `nvidia-smi -L` writes it.
fn uuid_text(bytes: [u8; 16]) -> String {
    let mut text = UUID_PREFIX.to_owned();
    for (at, byte) in bytes.iter().enumerate() {
        let dash = if [4, 6, 8, 10].contains(&at) { "-" } else { "" };
        text += &format!("{dash}{byte:02x}");
    }
    text
}

/// Reason why no GPU can be used, with the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// libcuda is not installed.
    #[error(
        "no NVIDIA driver: the loader does not find libcuda.so.1; install the driver, or start the container with \
         --gpus all"
    )]
    NoDriver,
    /// libcuda lacks a function.
    #[error("the NVIDIA driver has no {0}; install driver 580 or later")]
    MissingFunction(&'static str),
    /// The driver is older than the CUBINs.
    #[error("the NVIDIA driver knows CUDA {0}.{1}, kernels need 13.0; install driver 580 or later")]
    TooOld(u32, u32),
    /// A call failed.
    #[error("{call} of the NVIDIA driver failed with code {code}{}", remedy(*code))]
    Call {
        /// Name of the function.
        call: &'static str,
        /// `CUresult`.
        code: i32,
    },
    /// The driver has no device.
    #[error("the NVIDIA driver has no device; {NO_DEVICE_REMEDY}")]
    NoDevice,
}

const NO_DEVICE_REMEDY: &str = "check nvidia-smi, CUDA_VISIBLE_DEVICES, and the container's --gpus";

/// What to do about a code of `cuInit`.
fn remedy(code: i32) -> impl fmt::Display {
    // Numbers of `CUresult` in cuda.h.
    let text = match code {
        34 => "a stub library is loaded; take the toolkit's lib/stubs folder out of LD_LIBRARY_PATH",
        100 => return format!(" (no device); {NO_DEVICE_REMEDY}"),
        802 => "system not ready; start nvidia-fabricmanager, which NVSwitch machines need",
        803 => "driver and its library differ in version; restart the machine after the update",
        804 => "the compatibility package does not fit this driver; remove cuda-compat from LD_LIBRARY_PATH",
        _ => "see nvidia-smi and the kernel's log",
    };
    format!(" ({text})")
}

/// Looks a function of libcuda up and calls it; a result code other than 0 is an error.
macro_rules! call {
    ($library:expr, $name:ident, ($($kind:ty = $argument:expr),*)) => {{
        const NAME: &str = stringify!($name);
        let name = CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()).ok();
        let address = name.and_then(|name| $library.address(name)).ok_or(ProbeError::MissingFunction(NAME))?;
        // SAFETY: the type is that of cuda.h with the result code as a number.
        let function = unsafe { mem::transmute::<*const c_void, unsafe extern "C" fn($($kind),*) -> c_int>(address) };
        // SAFETY: pointers are to live values of the types in the declaration.
        match unsafe { function($($argument),*) } {
            0 => Ok(()),
            code => Err(ProbeError::Call { call: NAME, code }),
        }
    }};
}

impl Installation {
    /// Asks the driver. Takes up to a second where a GPU has to be woken up.
    pub fn probe() -> Result<Self, ProbeError> {
        let library = Library::of_driver().map_err(|_| ProbeError::NoDriver)?;
        let mut version: c_int = 0;
        call!(library, cuDriverGetVersion, (*mut c_int = &mut version))?;
        let known = (version as u32 / 1000, version as u32 % 1000 / 10);
        if version < MIN_VERSION {
            return Err(ProbeError::TooOld(known.0, known.1));
        }
        call!(library, cuInit, (c_uint = 0))?;
        let mut count: c_int = 0;
        call!(library, cuDeviceGetCount, (*mut c_int = &mut count))?;
        if count <= 0 {
            return Err(ProbeError::NoDevice);
        }
        let devices = (0..count).map(|ordinal| device(&library, ordinal)).collect::<Result<_, _>>()?;
        Ok(Self { version: known, devices })
    }
}

/// Errors: a driver without the function, which costs the name alone.
fn uuid(library: &Library, handle: c_int) -> Result<[u8; 16], ProbeError> {
    let mut uuid = [0; 16];
    call!(library, cuDeviceGetUuid_v2, (*mut [u8; 16] = &mut uuid, c_int = handle))?;
    Ok(uuid)
}

fn device(library: &Library, ordinal: c_int) -> Result<Device, ProbeError> {
    let mut handle: c_int = 0;
    call!(library, cuDeviceGet, (*mut c_int = &mut handle, c_int = ordinal))?;
    let mut name = [0 as c_char; NAME_BYTES];
    call!(
        library,
        cuDeviceGetName,
        (*mut c_char = name.as_mut_ptr(), c_int = NAME_BYTES as c_int - 1, c_int = handle)
    )?;
    let mut memory_bytes: usize = 0;
    call!(library, cuDeviceTotalMem_v2, (*mut usize = &mut memory_bytes, c_int = handle))?;
    let attribute = |attribute: Attribute| {
        let mut value: c_int = 0;
        call!(
            library,
            cuDeviceGetAttribute,
            (*mut c_int = &mut value, c_uint = attribute as c_uint, c_int = handle)
        )?;
        Ok(value.max(0) as u32)
    };
    let capability = (
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    );
    // SAFETY: the last byte is 0, whatever the driver wrote before it.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    let uuid = uuid(library, handle).ok().map(uuid_text);
    Ok(Device { ordinal: ordinal as u32, name, uuid, capability, memory_bytes: memory_bytes as u64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A driver, or the reason why there is none, on any machine; `tests/kernels.rs` probes made-up drivers.
    #[test]
    fn this_machine_is_probed_without_a_panic() {
        match Installation::probe() {
            Ok(driver) => assert!(!driver.devices.is_empty()),
            Err(error) => assert!(error.to_string().contains("driver"), "{error}"),
        }
    }

    #[test]
    fn devices_are_called_by_number_or_uuid() {
        let uuid = uuid_text(std::array::from_fn(|at| 0x5e + at as u8));
        assert_eq!(uuid, "GPU-5e5f6061-6263-6465-6667-68696a6b6c6d");
        let device = Device {
            ordinal: 12,
            name: "H200".into(),
            uuid: Some(uuid.clone()),
            capability: (9, 0),
            memory_bytes: 1,
        };
        for name in ["12", "GPU-5e5f", "gpu-5E5F", &uuid] {
            assert!(device.is_called(name), "{name}");
        }
        for name in ["1", "", "GPU-", "5e5f", "GPU-5e5e", "H200", &format!("{uuid}0")] {
            assert!(!device.is_called(name), "{name}");
        }
        assert!(!Device { uuid: None, ..device }.is_called("GPU-5e5f"));
    }

    #[test]
    fn errors_name_the_remedy() {
        for (code, expected) in [
            (34, "stubs"),
            (100, "--gpus"),
            (802, "fabricmanager"),
            (803, "restart"),
            (804, "compat"),
            (999, "nvidia-smi"),
        ] {
            let error = ProbeError::Call { call: "cuInit", code }.to_string();
            assert!(error.contains(expected) && error.contains(&code.to_string()), "{error}");
        }
    }
}
