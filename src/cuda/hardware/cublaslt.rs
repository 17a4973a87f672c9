//! cuBLASLt: products of bf16 by the vendor's library. Its sums change with the number of rows, so the engine uses it where
//! `kernels.cublaslt` allows that, and `perigee bench kernels` measures it beside ours.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_int, c_void};
use std::mem;
use std::path::Path;
use std::ptr::{from_ref, null_mut, without_provenance, without_provenance_mut};

use super::super::DriverError;
use super::super::library::Library;
use super::functions::refusal;

/// Names along the loader's search path, newest first.
const LIBRARY_NAMES: [&str; 2] = ["libcublasLt.so.13", "libcublasLt.so.12"];
/// Device memory that a product may use.
pub(super) const WORKSPACE_BYTES: usize = 64 << 20;
/// Most plans: steps with rows of prompts have any number of rows. Beyond it all are made again.
const MAX_PLANS: usize = 512;

// Numbers of library_types.h, cublas_api.h and cublasLt.h.
const R_32F: c_int = 0;
const R_16BF: c_int = 14;
const COMPUTE_32F: c_int = 68;
const DESC_TRANSA: c_int = 3;
const OP_T: c_int = 1;
const PREF_MAX_WORKSPACE_BYTES: c_int = 1;

/// An opaque handle of the library.
type Handle = *mut c_void;

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
struct Heuristic {
    algorithm: [u64; 8],
    workspace_bytes: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

macro_rules! functions {
    ($($name:ident($($kind:ty),*);)*) => {
        /// The functions of the library under their names there; each returns a `cublasStatus_t` as a number.
        #[allow(non_snake_case)]
        struct Functions {
            $($name: unsafe extern "C" fn($($kind),*) -> c_int,)*
        }

        impl Functions {
            /// Looks all functions up; `None`: one is missing.
            fn find(library: &Library) -> Option<Self> {
                Some(Self {
                    $($name: {
                        let name = CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()).ok()?;
                        let address = library.address(name)?;
                        // SAFETY: the library is never closed, and the type is that of cublasLt.h with enumerations as numbers.
                        unsafe { mem::transmute::<*const c_void, unsafe extern "C" fn($($kind),*) -> c_int>(address) }
                    },)*
                })
            }
        }
    };
}

functions! {
    cublasLtCreate(*mut Handle);
    cublasLtDestroy(Handle);
    cublasLtMatmulDescCreate(*mut Handle, c_int, c_int);
    cublasLtMatmulDescSetAttribute(Handle, c_int, *const c_void, usize);
    cublasLtMatmulDescDestroy(Handle);
    cublasLtMatrixLayoutCreate(*mut Handle, c_int, u64, u64, i64);
    cublasLtMatrixLayoutDestroy(Handle);
    cublasLtMatmulPreferenceCreate(*mut Handle);
    cublasLtMatmulPreferenceSetAttribute(Handle, c_int, *const c_void, usize);
    cublasLtMatmulPreferenceDestroy(Handle);
    cublasLtMatmulAlgoGetHeuristic(Handle, Handle, Handle, Handle, Handle, Handle, Handle, c_int, *mut Heuristic, *mut c_int);
    cublasLtMatmul(Handle, Handle, *const c_void, *const c_void, Handle, *const c_void, Handle, *const c_void, *const c_void, Handle, *mut c_void, Handle, *const c_void, *mut c_void, usize, *mut c_void);
}

/// The library with the plans it has made. Descriptors live as long as it does.
pub(super) struct CublasLt {
    functions: Functions,
    handle: Handle,
    /// `[WORKSPACE_BYTES]` of device memory.
    pub(super) workspace: u64,
    plans: BTreeMap<[usize; 3], Plan>,
}

// SAFETY: handles are addresses that only the library follows, from any thread.
unsafe impl Send for CublasLt {}

/// A product of one shape. Handles that were not made are null.
struct Plan {
    product: Handle,
    /// Of the weights, the rows and the result.
    layouts: [Handle; 3],
    algorithm: [u64; 8],
}

impl Plan {
    fn destroy(&self, functions: &Functions) {
        // SAFETY: handles that are not null are alive, and not used again.
        unsafe {
            if !self.product.is_null() {
                let _ = (functions.cublasLtMatmulDescDestroy)(self.product);
            }
            for layout in self.layouts.into_iter().filter(|layout| !layout.is_null()) {
                let _ = (functions.cublasLtMatrixLayoutDestroy)(layout);
            }
        }
    }
}

fn check(call: &'static str, status: c_int) -> Result<(), DriverError> {
    match status {
        0 => Ok(()),
        status => Err(refusal(call, status, format!("cublasStatus_t {status}"))),
    }
}

/// The library's functions, if it is installed.
fn installed() -> Option<Functions> {
    let library = LIBRARY_NAMES.iter().find_map(|name| Library::open(Path::new(name)).ok())?;
    Functions::find(&library)
}

/// Whether cuBLASLt can be opened.
pub fn has_cublaslt() -> bool {
    installed().is_some()
}

impl CublasLt {
    /// Opens the library for the current context, without a workspace; `None` where it is not installed.
    pub(super) fn open() -> Result<Option<Self>, DriverError> {
        let Some(functions) = installed() else { return Ok(None) };
        let mut handle = null_mut();
        // SAFETY: the output is writable, and a context is current.
        check("cublasLtCreate", unsafe { (functions.cublasLtCreate)(&mut handle) })?;
        Ok(Some(Self { functions, handle, workspace: 0, plans: BTreeMap::new() }))
    }

    /// Enqueues `y [m, n] f32 = x [m, k] bf16 * (w [n, k] bf16)^T`, or adds it, addresses as `[w, x, y]`. The first product of a
    /// shape makes its plan.
    pub(super) fn product(
        &mut self,
        shape: [usize; 3],
        [w, x, y]: [u64; 3],
        add: bool,
        stream: *mut c_void,
    ) -> Result<(), DriverError> {
        if !self.plans.contains_key(&shape) {
            if self.plans.len() == MAX_PLANS {
                // Work that was enqueued with them does not need them.
                for plan in std::mem::take(&mut self.plans).into_values() {
                    plan.destroy(&self.functions);
                }
            }
            let mut plan = Plan { product: null_mut(), layouts: [null_mut(); 3], algorithm: [0; 8] };
            self.make(&mut plan, shape).inspect_err(|_| plan.destroy(&self.functions))?;
            self.plans.insert(shape, plan);
        }
        let Some(Plan { product, layouts: [of_w, of_x, of_y], algorithm }) = self.plans.get(&shape) else {
            return Ok(());
        };
        let (one, kept) = (1.0f32, if add { 1.0f32 } else { 0.0 });
        let input = |address: u64| without_provenance::<c_void>(address as usize);
        let output = |address: u64| without_provenance_mut::<c_void>(address as usize);
        // SAFETY: handles are alive; the caller's addresses are of device memory of these sizes.
        let status = unsafe {
            (self.functions.cublasLtMatmul)(
                self.handle,
                *product,
                from_ref(&one).cast(),
                input(w),
                *of_w,
                input(x),
                *of_x,
                from_ref(&kept).cast(),
                input(y),
                *of_y,
                output(y),
                *of_y,
                algorithm.as_ptr().cast(),
                output(self.workspace),
                WORKSPACE_BYTES,
                stream,
            )
        };
        check("cublasLtMatmul", status)
    }

    /// What the library's own heuristic takes for a shape. In its order of columns first, the result is `[n, m]`, the weights,
    /// transposed, times the rows.
    fn make(&self, plan: &mut Plan, [m, n, k]: [usize; 3]) -> Result<(), DriverError> {
        let f = &self.functions;
        let shapes = [(R_16BF, k, n), (R_16BF, k, m), (R_32F, n, m)];
        for (handle, (kind, rows, columns)) in plan.layouts.iter_mut().zip(shapes) {
            // SAFETY: the output is writable.
            let status = unsafe {
                (f.cublasLtMatrixLayoutCreate)(handle, kind, rows as u64, columns as u64, rows as i64)
            };
            check("cublasLtMatrixLayoutCreate", status)?;
        }
        let mut preference = null_mut();
        let mut found =
            Heuristic { algorithm: [0; 8], workspace_bytes: 0, state: 0, waves: 0.0, reserved: [0; 4] };
        let (mut count, workspace) = (0, WORKSPACE_BYTES as u64);
        // SAFETY: outputs are writable, attributes have the sizes of their types, and handles are alive.
        unsafe {
            check(
                "cublasLtMatmulDescCreate",
                (f.cublasLtMatmulDescCreate)(&mut plan.product, COMPUTE_32F, R_32F),
            )?;
            let transposed = from_ref(&OP_T).cast();
            check(
                "cublasLtMatmulDescSetAttribute",
                (f.cublasLtMatmulDescSetAttribute)(plan.product, DESC_TRANSA, transposed, size_of::<c_int>()),
            )?;
            check("cublasLtMatmulPreferenceCreate", (f.cublasLtMatmulPreferenceCreate)(&mut preference))?;
            let most = from_ref(&workspace).cast();
            let set = (f.cublasLtMatmulPreferenceSetAttribute)(
                preference,
                PREF_MAX_WORKSPACE_BYTES,
                most,
                size_of::<u64>(),
            );
            let [w, x, y] = plan.layouts;
            let status = (f.cublasLtMatmulAlgoGetHeuristic)(
                self.handle,
                plan.product,
                w,
                x,
                y,
                y,
                preference,
                1,
                &mut found,
                &mut count,
            );
            let _ = (f.cublasLtMatmulPreferenceDestroy)(preference);
            check("cublasLtMatmulPreferenceSetAttribute", set)?;
            check("cublasLtMatmulAlgoGetHeuristic", status)?;
        }
        match (count, found.state) {
            (1.., 0) => {
                plan.algorithm = found.algorithm;
                Ok(())
            }
            _ => Err(refusal("cublasLtMatmulAlgoGetHeuristic", found.state, "no algorithm for this shape")),
        }
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        // Work with them has been waited for by who drops the device.
        for plan in self.plans.values() {
            plan.destroy(&self.functions);
        }
        // SAFETY: the handle is alive, and not used again.
        let _ = unsafe { (self.functions.cublasLtDestroy)(self.handle) };
    }
}
