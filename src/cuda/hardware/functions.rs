//! The functions of libcuda that the backend calls, looked up once, and the errors that they return.
//!
//! Result codes are numbers: a later driver returns codes that the enum of this version lacks.

use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};
use std::mem;

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphExec, CUlaunchConfig, CUmodule,
    CUstream,
};

use super::super::DriverError;
use super::super::library::Library;

/// `CUDA_ERROR_INVALID_VALUE`: an argument that the driver, or a check before it, refuses.
pub(super) const INVALID_VALUE: c_int = 1;
/// `CUDA_ERROR_INVALID_IMAGE`.
pub(super) const INVALID_IMAGE: c_int = 200;
/// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`: a call that cannot be recorded.
pub(super) const CAPTURE_UNSUPPORTED: c_int = 900;

/// Declares the functions of the library: name, parameters. Each becomes a field, the address, and a method of the
/// same name, which turns a result code other than 0 into an error.
macro_rules! functions {
    ($($name:ident($($parameter:ident: $kind:ty),*);)*) => {
        /// Addresses of the functions.
        #[allow(non_snake_case)]
        pub(super) struct Functions {
            $($name: unsafe extern "C" fn($($kind),*) -> c_int,)*
        }

        /// Each method is unsafe as its function in cuda.h: pointers are valid, handles alive, and the context of the
        /// objects is current where the function needs one.
        #[allow(non_snake_case)]
        #[allow(dead_code)] // texts of errors are asked for by address: the methods would ask again for the text of an error
        impl Functions {
            /// Looks all functions up. Errors: no library, or the name of a missing function.
            pub(super) fn find() -> Result<Self, DriverError> {
                let library = Library::of_driver().map_err(|reason| missing("dlopen", &reason))?;
                let find = |name: &'static str, name_c: &str| {
                    let name_c = CStr::from_bytes_with_nul(name_c.as_bytes()).ok();
                    name_c
                        .and_then(|name| library.address(name))
                        .ok_or_else(|| missing(name, "the driver lacks it; install driver 580 or later"))
                };
                Ok(Self {
                    $($name: {
                        let address = find(stringify!($name), concat!(stringify!($name), "\0"))?;
                        // SAFETY: the library is never closed, and the type is that of cuda.h with the result code as a
                        // number.
                        unsafe { mem::transmute::<*const c_void, unsafe extern "C" fn($($kind),*) -> c_int>(address) }
                    },)*
                })
            }

            $(pub(super) unsafe fn $name(&self, $($parameter: $kind),*) -> Result<(), DriverError> {
                // SAFETY: the caller's.
                match unsafe { (self.$name)($($parameter),*) } {
                    0 => Ok(()),
                    code => Err(self.error(stringify!($name), code)),
                }
            })*
        }
    };
}

functions! {
    cuGetErrorName(code: c_int, text: *mut *const c_char);
    cuGetErrorString(code: c_int, text: *mut *const c_char);
    cuInit(flags: c_uint);
    cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint, device: CUdevice);
    cuDeviceGetPCIBusId(text: *mut c_char, length: c_int, device: CUdevice);
    cuDeviceCanAccessPeer(can: *mut c_int, device: CUdevice, peer: CUdevice);
    cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    cuCtxSetCurrent(context: CUcontext);
    cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint);
    cuStreamCreate(stream: *mut CUstream, flags: c_uint);
    cuStreamDestroy_v2(stream: CUstream);
    cuStreamSynchronize(stream: CUstream);
    cuStreamBeginCapture_v2(stream: CUstream, mode: c_uint);
    cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
    cuEventCreate(event: *mut CUevent, flags: c_uint);
    cuEventDestroy_v2(event: CUevent);
    cuEventRecord(event: CUevent, stream: CUstream);
    cuEventRecordWithFlags(event: CUevent, stream: CUstream, flags: c_uint);
    cuEventQuery(event: CUevent);
    cuEventSynchronize(event: CUevent);
    cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);
    cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize);
    cuMemFree_v2(address: CUdeviceptr);
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuMemHostAlloc(pointer: *mut *mut c_void, bytes: usize, flags: c_uint);
    cuMemFreeHost(pointer: *mut c_void);
    cuMemsetD8Async(address: CUdeviceptr, value: c_uchar, bytes: usize, stream: CUstream);
    cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
    cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
    cuMemcpyPeerAsync(to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext, bytes: usize, stream: CUstream);
    cuModuleLoadData(module: *mut CUmodule, image: *const c_void);
    cuModuleUnload(module: CUmodule);
    cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    cuFuncGetAttribute(value: *mut c_int, attribute: c_uint, function: CUfunction);
    cuFuncSetAttribute(function: CUfunction, attribute: c_uint, value: c_int);
    cuFuncGetParamInfo(function: CUfunction, index: usize, offset: *mut usize, bytes: *mut usize);
    cuFuncLoad(function: CUfunction);
    cuOccupancyMaxActiveClusters(clusters: *mut c_int, function: CUfunction, config: *const CUlaunchConfig);
    cuLaunchKernelEx(config: *const CUlaunchConfig, function: CUfunction, parameters: *mut *mut c_void, extra: *mut *mut c_void);
    cuGraphInstantiateWithFlags(executable: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong);
    cuGraphDestroy(graph: CUgraph);
    cuGraphExecDestroy(executable: CUgraphExec);
    cuGraphUpload(executable: CUgraphExec, stream: CUstream);
    cuGraphLaunch(executable: CUgraphExec, stream: CUstream);
}

impl Functions {
    /// The error of a code.
    pub(super) fn error(&self, call: &'static str, code: c_int) -> DriverError {
        let text = |function: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int| {
            let mut text = std::ptr::null();
            // SAFETY: the pointer is writable. For a code that the driver lacks it is set to null, or left alone.
            let found = unsafe { function(code, &mut text) } == 0 && !text.is_null();
            // SAFETY: a constant C string of the library.
            found.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        let text = match (text(self.cuGetErrorName), text(self.cuGetErrorString)) {
            (Some(name), Some(meaning)) => format!("{name} ({meaning})"),
            (Some(text), None) | (None, Some(text)) => text,
            (None, None) => "the driver has no text for this code".into(),
        };
        DriverError { call, code, text, fatal: is_fatal(code) }
    }
}

/// An error that is found before the driver is called.
pub(super) fn refusal(call: &'static str, code: c_int, text: impl Into<String>) -> DriverError {
    DriverError { call, code, text: text.into(), fatal: false }
}

fn missing(call: &'static str, text: &str) -> DriverError {
    DriverError { call, code: 0, text: text.into(), fatal: true }
}

/// Whether every later call on the context fails: for these codes cuda.h says that the context cannot be used, that
/// the process is in an inconsistent state, or that the context is gone. All other codes refuse one call.
fn is_fatal(code: c_int) -> bool {
    matches!(
        code,
        4       // deinitialized: the driver shuts down with the process
        | 201   // invalid context: current is none, or one that was destroyed
        | 214   // uncorrectable ECC error
        | 220   // uncorrectable NVLink error
        | 226   // contained memory error: the process has to end
        | 700   // illegal address
        | 702   // launch timeout
        | 709   // context is destroyed
        | 710   // assertion of a kernel
        | 714   // hardware stack error
        | 715   // illegal instruction
        | 716   // misaligned address
        | 717   // invalid address space
        | 718   // invalid program counter
        | 719   // launch failed
        | 721   // a kernel ended without freeing its tensor memory
        | 805   // no connection to the MPS server
        | 806   // the MPS server failed
        | 810   // the MPS server ended this client
        | 911   // error of an external device that the GPU waited for
        | 999 // unknown
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_that_refuse_one_call_leave_the_context_usable() {
        for code in [1, 2, 100, 200, 209, 400, 500, 600, 701, 704, 711, 720, 801, 900, 901, 908] {
            assert!(!is_fatal(code), "{code}");
        }
        for code in [214, 700, 702, 710, 715, 716, 719, 999] {
            assert!(is_fatal(code), "{code}");
        }
    }
}
