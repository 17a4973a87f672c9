//! A shared library opened at run time, its functions looked up by name.

use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// An open library. It is never closed: functions of it stay valid for the rest of the process.
#[derive(Debug)]
pub(super) struct Library {
    /// Handle of `dlopen`, as a number, which any thread may use.
    handle: usize,
}

impl Library {
    /// Opens libcuda by the name that a driver installs. A toolkit's `lib/stubs` has the name without a version: it may be on the
    /// loader's path in front of the driver's folder.
    pub(super) fn of_driver() -> Result<Self, String> {
        Self::open(Path::new("libcuda.so.1"))
    }

    /// Opens a library by path, or by name along the loader's search path. Errors: the loader's text.
    pub(super) fn open(name: &Path) -> Result<Self, String> {
        let name = CString::new(name.as_os_str().as_bytes()).map_err(|e| e.to_string())?;
        // SAFETY: the name is a C string. Constructors of the library run; a caller names libraries of CUDA alone.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(loader_error());
        }
        Ok(Self { handle: handle as usize })
    }

    /// Address of a function; `None` if the library has none of this name.
    pub(super) fn address(&self, name: &CStr) -> Option<*const c_void> {
        // SAFETY: the handle is of an open library and the name is a C string.
        let address = unsafe { libc::dlsym(self.handle as *mut c_void, name.as_ptr()) };
        (!address.is_null()).then_some(address.cast_const())
    }
}

/// File of the library that has code at `address`.
pub(super) fn file_at(address: *const c_void) -> Option<PathBuf> {
    let mut found = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: `found` is writable, and any address may be asked for.
    if unsafe { libc::dladdr(address, &mut found) } == 0 || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's name of a library that is never closed.
    let name = unsafe { CStr::from_ptr(found.dli_fname) };
    Some(PathBuf::from(std::ffi::OsString::from_vec(name.to_bytes().to_vec())))
}

/// Text of the loader's last error on this thread.
fn loader_error() -> String {
    // SAFETY: the text, if there is any, is valid until the thread's next call of the loader.
    let text = unsafe {
        let text = libc::dlerror();
        (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
    };
    text.unwrap_or_else(|| "the loader gave no reason".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_with_their_file() {
        let libc = Library::open(Path::new("libc.so.6")).unwrap();
        let address = libc.address(c"malloc").unwrap();
        assert!(file_at(address).unwrap().to_str().unwrap().contains("libc"));
        assert_eq!(libc.address(c"no_such_function_of_libc"), None);
    }

    #[test]
    fn a_missing_library_is_an_error_with_its_name() {
        let error = Library::open(Path::new("libno-such-library.so.1")).unwrap_err();
        assert!(error.contains("libno-such-library.so.1"), "{error}");
        assert!(Library::open(Path::new("a\0b")).is_err());
    }
}
