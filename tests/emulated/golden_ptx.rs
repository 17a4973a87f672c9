//! The golden kernels compiled by Triton, on a GPU: what the emulator gives, a device gives too. Without one they are run by the
//! emulator's own tests.

use std::env;
use std::ffi::{CString, c_void};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::ptr::{null_mut, without_provenance_mut};

use cudarc::driver::sys::{self, CUresult};
use perigee_emulator::case::{Case, Device, LaunchShape};
use perigee_emulator::transfer::tensor_map::{Element, Fill, Swizzle, TENSOR_MAP_BYTES, TensorMap};

use super::on_gpu;
use crate::golden::golden_path;

/// A call that is named in the panic if it fails.
macro_rules! call {
    ($name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: handles are alive, pointers are valid, and the context is current on this thread.
        let result = unsafe { sys::$name($($argument),*) };
        assert_eq!(result, CUresult::CUDA_SUCCESS, stringify!($name));
    }};
}

/// The first GPU, by the driver's own assembler: PTX in, no cache, nothing freed but with the process.
struct Gpu {
    /// `.version` that the driver knows at most.
    newest: (u32, u32),
}

impl Gpu {
    fn open() -> (Self, String) {
        let (mut device, mut context, mut version) = (0, null_mut(), 0);
        let (mut major, mut minor) = (0, 0);
        call!(cuInit(0));
        call!(cuDeviceGet(&mut device, 0));
        call!(cuDevicePrimaryCtxRetain(&mut context, device));
        call!(cuCtxSetCurrent(context));
        call!(cuDriverGetVersion(&mut version));
        use sys::CUdevice_attribute::{
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
        };
        call!(cuDeviceGetAttribute(&mut major, MAJOR, device));
        call!(cuDeviceGetAttribute(&mut minor, MINOR, device));
        // CUDA 13.n came with PTX ISA 9.n (PTX ISA, "Release Notes").
        let newest = (9, (version as u32 % 1000) / 10);
        (Self { newest }, format!("sm_{major}{minor}"))
    }

    /// The text, saying that it is of the newest version that the driver knows: these kernels use nothing newer.
    fn known(&self, ptx: &str) -> String {
        let line = ptx.lines().find(|line| line.starts_with(".version")).unwrap();
        let (major, minor) = line.trim_start_matches(".version").trim().split_once('.').unwrap();
        let version: (u32, u32) = (major.parse().unwrap(), minor.parse().unwrap());
        let (major, minor) = version.min(self.newest);
        ptx.replacen(line, &format!(".version {major}.{minor}"), 1)
    }
}

impl Device for Gpu {
    fn allocate(&mut self, bytes: u64, align: u64) -> u64 {
        let mut address = 0;
        call!(cuMemAlloc_v2(&mut address, bytes as usize));
        assert!(address.is_multiple_of(align));
        address
    }

    fn write(&mut self, address: u64, bytes: &[u8]) {
        call!(cuMemcpyHtoD_v2(address, bytes.as_ptr().cast(), bytes.len()));
    }

    fn read(&mut self, address: u64, bytes: &mut [u8]) {
        call!(cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), address, bytes.len()));
    }

    fn tensor_map(&mut self, map: &TensorMap) -> Result<[u8; TENSOR_MAP_BYTES], String> {
        let code = (0..16).find(|code| Element::from_driver_code(*code) == Some(map.element)).unwrap();
        let swizzle = match map.swizzle {
            Swizzle::None => 0,
            Swizzle::B32 => 1,
            Swizzle::B64 => 2,
            Swizzle::B128 => 3,
            other => return Err(format!("no case has swizzle {other:?}")),
        };
        let fill: u32 = if map.fill == Fill::Nan { 1 } else { 0 };
        #[repr(C, align(64))]
        struct Encoded([u8; TENSOR_MAP_BYTES]);
        let mut encoded = Encoded([0; TENSOR_MAP_BYTES]);
        // SAFETY: these enumerations of cuda.h are numbers of 32 bits, and each of these has a name there.
        let (element, swizzle, fill) = unsafe {
            (
                std::mem::transmute::<u32, sys::CUtensorMapDataType>(code),
                std::mem::transmute::<u32, sys::CUtensorMapSwizzle>(swizzle),
                std::mem::transmute::<u32, sys::CUtensorMapFloatOOBfill>(fill),
            )
        };
        call!(cuTensorMapEncodeTiled(
            (&raw mut encoded).cast(),
            element,
            map.rank,
            without_provenance_mut::<c_void>(map.address as usize),
            map.dims.as_ptr(),
            map.strides_bytes.as_ptr(),
            map.box_dims.as_ptr(),
            map.element_strides.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzle,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            fill,
        ));
        Ok(encoded.0)
    }

    fn launch(&mut self, ptx: &str, entry: &str, shape: &LaunchShape, params: &[u8]) -> Result<(), String> {
        use sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as SHARED;
        let text = CString::new(self.known(ptx)).unwrap();
        let name = CString::new(entry).unwrap();
        let (mut module, mut function) = (null_mut(), null_mut());
        call!(cuModuleLoadData(&mut module, text.as_ptr().cast()));
        call!(cuModuleGetFunction(&mut function, module, name.as_ptr()));
        call!(cuFuncSetAttribute(function, SHARED, shape.dynamic_shared_bytes as i32));
        let mut cluster = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { pad: [0; 64] },
        };
        let [x, y, z] = shape.cluster;
        cluster.value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x, y, z };
        let config = sys::CUlaunchConfig {
            gridDimX: shape.grid[0],
            gridDimY: shape.grid[1],
            gridDimZ: shape.grid[2],
            blockDimX: shape.block[0],
            blockDimY: shape.block[1],
            blockDimZ: shape.block[2],
            sharedMemBytes: shape.dynamic_shared_bytes,
            hStream: null_mut(),
            attrs: &raw mut cluster,
            numAttrs: u32::from(shape.cluster != [1, 1, 1]),
        };
        let params = laid_out(function, params);
        // CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE and CU_LAUNCH_PARAM_END of cuda.h.
        let mut bytes = params.len();
        let block = params.as_ptr().cast_mut().cast();
        let pointer = without_provenance_mut(1);
        let mut extra = [pointer, block, without_provenance_mut(2), (&raw mut bytes).cast(), null_mut()];
        call!(cuLaunchKernelEx(&config, function, null_mut(), extra.as_mut_ptr()));
        call!(cuCtxSynchronize());
        call!(cuModuleUnload(module));
        Ok(())
    }
}

/// The parameter block as the kernel has it. A case has one parameter behind the other; the assembler puts a tensor map where
/// its address in the bank of constants is a multiple of 64, and the bank's first parameter is not at one.
fn laid_out(function: sys::CUfunction, packed: &[u8]) -> Vec<u8> {
    let (mut block, mut from) = (Vec::new(), 0usize);
    for index in 0.. {
        let (mut at, mut size) = (0, 0);
        // SAFETY: the function's module is loaded, and outputs are writable.
        if unsafe { sys::cuFuncGetParamInfo(function, index, &mut at, &mut size) } != CUresult::CUDA_SUCCESS {
            break;
        }
        from = from.next_multiple_of(size.min(64));
        block.resize(block.len().max(at + size), 0);
        block[at..at + size].copy_from_slice(&packed[from..from + size]);
        from += size;
    }
    assert_eq!(from, packed.len(), "the parameters of the case are those of the kernel");
    block
}

/// Set to the name of a case in the process that runs it: what a kernel does to the device ends with its process.
const CASE: &str = "PERIGEE_TEST_GOLDEN_PTX";

#[test]
fn golden_kernels_give_their_answers_on_a_gpu() {
    if !on_gpu() {
        println!("skipped: TEST_GPU is not set");
        return;
    }
    let mut paths: Vec<PathBuf> =
        fs::read_dir(golden_path("ptx/triton")).unwrap().map(|file| file.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    let only = env::var(CASE).ok();
    let (mut gpu, arch) = Gpu::open();
    let (mut right, mut wrong) = (0, Vec::new());
    for path in &paths {
        let case = Case::load(path).unwrap();
        let Some(build) = case.builds.iter().find(|build| build.arch == arch) else { continue };
        match &only {
            Some(only) if *only == case.name => {
                let (report, _) = case.run(build, &case.ptx(build).unwrap(), &mut gpu).unwrap();
                assert!(report.is_right(), "{report:?}");
                return;
            }
            Some(_) => continue,
            None => {}
        }
        let mut test = Command::new(env::current_exe().unwrap());
        test.args(["--exact", "emulated::golden_ptx::golden_kernels_give_their_answers_on_a_gpu"]);
        let output = test.env(CASE, &case.name).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        match output.status.success() && text.contains("1 passed") {
            true => right += 1,
            false => wrong.push(format!("{}: {}", case.name, text.trim())),
        }
    }
    println!("{right} golden kernels of {arch} are right");
    assert!(wrong.is_empty(), "{} of {}: {}", wrong.len(), wrong.len() + right, wrong.join("\n"));
    assert!(right > 0, "no golden kernel is compiled for {arch}");
}
