//! Cases of compiled kernels: inputs, launch, parameters and the answer, read from a JSON file with a
//! `.safetensors` file and PTX beside it, and run on any [`Device`].
//!
//! The format is that of the golden cases compiled by Triton: one file for a kernel, one build for each
//! architecture. A case knows nothing of the machine that runs it.

pub mod command;
pub mod compare;
pub mod node;

use crate::transfer::tensor_map::{Element, Fill, Swizzle, TENSOR_MAP_BYTES, TensorMap};
use compare::{Change, Difference, Report};
use safetensors::SafeTensors;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fmt, fs, io};

/// What a case needs of a machine.
pub trait Device {
    /// Address of new global memory of `bytes` bytes, a multiple of `align`.
    fn allocate(&mut self, bytes: u64, align: u64) -> u64;
    /// Writes global memory.
    fn write(&mut self, address: u64, bytes: &[u8]);
    /// Reads global memory.
    fn read(&mut self, address: u64, bytes: &mut [u8]);
    /// A tensor map as the machine reads it: for all but a GPU the emulator's own.
    fn tensor_map(&mut self, map: &TensorMap) -> Result<[u8; TENSOR_MAP_BYTES], String> {
        map.encode().map_err(|error| error.to_string())
    }
    /// Runs the kernel `entry` of the module `ptx` to its end; `params` is the parameter block.
    fn launch(&mut self, ptx: &str, entry: &str, shape: &LaunchShape, params: &[u8]) -> Result<(), String>;
    /// A fresh machine of so many devices in its place, for a case that needs them.
    fn node(&mut self, _devices: usize) -> Option<&mut dyn node::Node> {
        None
    }
}

/// Shape of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Blocks of a cluster in x, y, z.
    pub cluster: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub dynamic_shared_bytes: u32,
}

/// A kernel with its inputs and answer.
#[derive(Clone, Debug)]
pub struct Case {
    /// Name of the case.
    pub name: String,
    /// Allowed difference.
    pub tolerance: Tolerance,
    /// Tensors in order of their names, which is the order of their allocation.
    pub tensors: Vec<Tensor>,
    /// One build for each architecture.
    pub builds: Vec<Build>,
    folder: PathBuf,
}

/// `|got - want| <= absolute + relative * |want|`; both zero means bit for bit.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub struct Tolerance {
    /// In units of the tensor.
    pub absolute: f64,
    /// Share of the wanted value.
    pub relative: f64,
}

/// A tensor in global memory.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Name in the case.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Bytes before the launch.
    pub contents: Vec<u8>,
    /// Bytes after the launch; `None` for an input, which must not change.
    pub expected: Option<Vec<u8>>,
    /// Whether the kernels keep what they like in it, which is not compared.
    pub is_work: bool,
    /// Allowed difference, where it is not that of the case.
    pub tolerance: Option<Tolerance>,
}

/// Element type of a tensor, under its name in Triton.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    Fp64,
    Fp32,
    Fp16,
    Bf16,
    /// fp8 with 4 exponent bits, finite: e4m3.
    Fp8e4nv,
    /// fp8 with 5 exponent bits: e5m2.
    Fp8e5,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
}

/// A kernel compiled for one architecture.
#[derive(Clone, Debug, Deserialize)]
pub struct Build {
    /// Architecture without its suffix, as in `sm_90`.
    pub arch: String,
    /// PTX file beside the case.
    pub file: String,
    /// Name of the kernel.
    pub entry: String,
    /// Threads of a block.
    pub block: [u32; 3],
    /// Blocks of a cluster.
    pub cluster: [u32; 3],
    /// Blocks of the grid, those of clusters included.
    pub launch_grid: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub dynamic_shared_bytes: u32,
    /// Kernel parameters in order.
    pub args: Vec<Arg>,
}

/// A kernel parameter.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Arg {
    /// Address of a tensor.
    Pointer {
        /// Name of the tensor.
        tensor: String,
    },
    /// A 32-bit integer.
    I32 {
        /// Value that the kernel is called with.
        value: i32,
    },
    /// A 64-bit integer.
    I64 {
        /// Value that the kernel is called with.
        value: i64,
    },
    /// A 32-bit float.
    F32 {
        /// Value that the kernel is called with.
        value: f32,
    },
    /// Address of zeroed memory that the kernel may use.
    Scratch {
        /// Bytes for each block of the grid; with 0, the address is not used.
        bytes_per_block: u64,
        /// Alignment in bytes.
        alignment: u64,
    },
    /// A tensor map by value.
    TensorMap(MapArg),
}

/// A tensor map as a case describes it. Dimension 0 is the fastest.
#[derive(Clone, Debug, Deserialize)]
pub struct MapArg {
    tensor: String,
    global_dim: Vec<u64>,
    global_stride_bytes: Vec<u64>,
    #[serde(rename = "box")]
    box_dims: Vec<u32>,
    element_bytes: u32,
    element_type: u64,
    swizzle: String,
    interleave: String,
    out_of_bounds: String,
}

/// Why a case cannot be read or prepared.
#[derive(Debug)]
pub enum CaseError {
    /// A file cannot be read.
    Read(PathBuf, io::Error),
    /// The JSON is malformed or lacks a field.
    Json(PathBuf, serde_json::Error),
    /// The tensor file is malformed or lacks a tensor.
    Tensors(PathBuf, safetensors::SafeTensorError),
    /// The case contradicts itself.
    Invalid(PathBuf, String),
}

impl fmt::Display for CaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(path, error) => write!(f, "cannot read {}: {error}", path.display()),
            Self::Json(path, error) => write!(f, "{} is not a case: {error}", path.display()),
            Self::Tensors(path, error) => {
                write!(f, "{} does not hold the tensors of the case: {error}", path.display())
            }
            Self::Invalid(path, reason) => write!(f, "{}: {reason}", path.display()),
        }
    }
}

impl std::error::Error for CaseError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Read(_, error) => Some(error),
            Self::Json(_, error) => Some(error),
            Self::Tensors(_, error) => Some(error),
            Self::Invalid(..) => None,
        }
    }
}

#[derive(Deserialize)]
struct CaseFile {
    name: String,
    tensors: BTreeMap<String, TensorEntry>,
    expected: BTreeMap<String, TensorEntry>,
    tolerance: Tolerance,
    builds: Vec<Build>,
}

#[derive(Deserialize)]
struct TensorEntry {
    dtype: DType,
    shape: Vec<usize>,
    #[serde(default)]
    role: String,
    /// Of an answer.
    tolerance: Option<Tolerance>,
}

impl Case {
    /// Reads `NAME.json` and `NAME.safetensors`.
    pub fn load(path: &Path) -> Result<Self, CaseError> {
        let file: CaseFile = json(path)?;
        let tensors = load_tensors(path, &file.tensors, &file.expected)?;
        let folder = builds_folder(path);
        Ok(Self { name: file.name, tolerance: file.tolerance, tensors, builds: file.builds, folder })
    }

    /// The PTX of a build.
    pub fn ptx(&self, build: &Build) -> Result<String, CaseError> {
        read_text(&self.folder.join(&build.file))
    }

    /// Runs one build: allocates and fills the tensors, launches, and compares every tensor. The time is
    /// that of the launch.
    ///
    /// Errors: parameters that contradict the tensors, and what the launch reports.
    pub fn run(
        &self,
        build: &Build,
        ptx: &str,
        device: &mut impl Device,
    ) -> Result<(Report, Duration), String> {
        let addresses: Vec<u64> = self
            .tensors
            .iter()
            .map(|tensor| {
                let address = device.allocate(tensor.contents.len() as u64, 256);
                device.write(address, &tensor.contents);
                address
            })
            .collect();
        let params = self.params(build, &addresses, device)?;
        let start = Instant::now();
        device.launch(ptx, &build.entry, &build.shape(), &params)?;
        let time = start.elapsed();
        let mut report = Report::default();
        for (tensor, &address) in self.tensors.iter().zip(&addresses) {
            let mut got = vec![0; tensor.contents.len()];
            device.read(address, &mut got);
            match &tensor.expected {
                Some(want) => {
                    report.differences.push(Difference::of(
                        &tensor.name,
                        tensor.dtype,
                        tensor.tolerance.unwrap_or(self.tolerance),
                        &got,
                        want,
                    ));
                }
                None => report.changes.extend(Change::of(&tensor.name, &tensor.contents, &got)),
            }
        }
        Ok((report, time))
    }

    /// The parameter block: every argument at its natural alignment, in order. `addresses` holds the
    /// address of each tensor; scratch memory comes from the device.
    pub fn params(
        &self,
        build: &Build,
        addresses: &[u64],
        device: &mut impl Device,
    ) -> Result<Vec<u8>, String> {
        let mut params = Vec::new();
        let mut push = |alignment: usize, bytes: &[u8]| push_param(&mut params, alignment, bytes);
        let find = |name: &str| {
            let index = self.tensors.iter().position(|tensor| tensor.name == name);
            index.ok_or_else(|| format!("the case has no tensor {name}"))
        };
        for arg in &build.args {
            match arg {
                Arg::Pointer { tensor } => push(8, &addresses[find(tensor)?].to_le_bytes()),
                Arg::I32 { value } => push(4, &value.to_le_bytes()),
                Arg::I64 { value } => push(8, &value.to_le_bytes()),
                Arg::F32 { value } => push(4, &value.to_le_bytes()),
                Arg::Scratch { bytes_per_block, alignment } => {
                    let blocks: u64 = build.launch_grid.iter().map(|&n| u64::from(n)).product();
                    push(8, &scratch(bytes_per_block * blocks, *alignment, device).to_le_bytes());
                }
                Arg::TensorMap(map) => {
                    let index = find(&map.tensor)?;
                    let map_of = map.resolve(addresses[index], &self.tensors[index]);
                    let encoded = map_of.and_then(|map| device.tensor_map(&map));
                    push(64, &encoded.map_err(|error| format!("tensor map of {}: {error}", map.tensor))?);
                }
            }
        }
        Ok(params)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, CaseError> {
    fs::read(path).map_err(|error| CaseError::Read(path.to_owned(), error))
}

fn read_text(path: &Path) -> Result<String, CaseError> {
    fs::read_to_string(path).map_err(|error| CaseError::Read(path.to_owned(), error))
}

fn json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, CaseError> {
    serde_json::from_slice(&read(path)?).map_err(|error| CaseError::Json(path.to_owned(), error))
}

/// The folder of the PTX files of a case.
fn builds_folder(path: &Path) -> PathBuf {
    path.parent().unwrap_or(Path::new("")).to_owned()
}

/// The tensors of a case and their answers, from `NAME.safetensors` beside `NAME.json`.
fn load_tensors(
    path: &Path,
    entries: &BTreeMap<String, TensorEntry>,
    answers: &BTreeMap<String, TensorEntry>,
) -> Result<Vec<Tensor>, CaseError> {
    let tensors_path = path.with_extension("safetensors");
    let bytes = read(&tensors_path)?;
    let stored =
        SafeTensors::deserialize(&bytes).map_err(|error| CaseError::Tensors(tensors_path.clone(), error))?;
    let contents = |name: &str, entry: &TensorEntry| -> Result<Vec<u8>, CaseError> {
        let view = stored.tensor(name).map_err(|error| CaseError::Tensors(tensors_path.clone(), error))?;
        let bytes = entry.shape.iter().product::<usize>() * entry.dtype.bytes();
        if view.shape() == entry.shape && view.data().len() == bytes {
            return Ok(view.data().to_vec());
        }
        let reason = format!(
            "{name} is {:?} of {} bytes, the case says {:?} of {bytes}",
            view.shape(),
            view.data().len(),
            entry.shape
        );
        Err(CaseError::Invalid(tensors_path.clone(), reason))
    };
    let mut tensors = Vec::new();
    for (name, entry) in entries {
        let expected = match answers.get(name) {
            Some(answer) if answer.dtype == entry.dtype && answer.shape == entry.shape => {
                Some(contents(&format!("{name}.expected"), answer)?)
            }
            Some(_) => {
                let reason = format!("the answer of {name} has another type or shape than {name}");
                return Err(CaseError::Invalid(path.to_owned(), reason));
            }
            None => None,
        };
        let contents = contents(name, entry)?;
        let is_work = entry.role == "work";
        let tolerance = answers.get(name).and_then(|answer| answer.tolerance);
        tensors.push(Tensor {
            name: name.clone(),
            dtype: entry.dtype,
            contents,
            expected,
            is_work,
            tolerance,
        });
    }
    if let Some(name) = answers.keys().find(|name| !entries.contains_key(*name)) {
        let reason = format!("the answer {name} has no tensor");
        return Err(CaseError::Invalid(path.to_owned(), reason));
    }
    Ok(tensors)
}

/// Adds a parameter at its natural alignment.
fn push_param(params: &mut Vec<u8>, alignment: usize, bytes: &[u8]) {
    params.resize(params.len().next_multiple_of(alignment), 0);
    params.extend_from_slice(bytes);
}

/// Address of zeroed memory; 0 where no byte is asked for, so that a use of it is an error.
fn scratch(bytes: u64, alignment: u64, device: &mut impl Device) -> u64 {
    if bytes == 0 {
        return 0;
    }
    let address = device.allocate(bytes, alignment);
    device.write(address, &vec![0; bytes as usize]);
    address
}

impl Build {
    /// Shape of the launch.
    pub fn shape(&self) -> LaunchShape {
        LaunchShape {
            grid: self.launch_grid,
            block: self.block,
            cluster: self.cluster,
            dynamic_shared_bytes: self.dynamic_shared_bytes,
        }
    }
}

impl MapArg {
    fn resolve(&self, address: u64, tensor: &Tensor) -> Result<TensorMap, String> {
        let rank = self.global_dim.len();
        if !(1..=5).contains(&rank)
            || self.box_dims.len() != rank
            || self.global_stride_bytes.len() != rank - 1
        {
            return Err(format!("{rank} dimensions with other numbers of boxes and strides"));
        }
        let element = Element::from_code(self.element_type)
            .ok_or_else(|| format!("unknown element type {}", self.element_type))?;
        let bits = tensor.dtype.bytes() as u32 * 8;
        if element.bits() != bits || self.element_bytes * 8 != bits {
            return Err(format!(
                "element type {element:?} of {} bytes for {:?}",
                self.element_bytes, tensor.dtype
            ));
        }
        if self.interleave != "none" {
            return Err(format!("interleave {} is not executed", self.interleave));
        }
        Ok(TensorMap {
            element,
            rank: rank as u32,
            address,
            dims: padded(&self.global_dim),
            strides_bytes: padded(&self.global_stride_bytes),
            box_dims: padded(&self.box_dims),
            element_strides: padded(&vec![1; rank]),
            swizzle: match self.swizzle.as_str() {
                "none" => Swizzle::None,
                "32B" => Swizzle::B32,
                "64B" => Swizzle::B64,
                "128B" => Swizzle::B128,
                other => return Err(format!("unknown swizzle {other}")),
            },
            fill: match self.out_of_bounds.as_str() {
                "zero" => Fill::Zero,
                "nan" => Fill::Nan,
                other => return Err(format!("unknown fill {other}")),
            },
        })
    }
}

fn padded<T: Copy + Default, const N: usize>(values: &[T]) -> [T; N] {
    std::array::from_fn(|i| values.get(i).copied().unwrap_or_default())
}

impl DType {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Self::Fp8e4nv | Self::Fp8e5 | Self::I8 | Self::U8 => 1,
            Self::Fp16 | Self::Bf16 | Self::I16 | Self::U16 => 2,
            Self::Fp32 | Self::I32 | Self::U32 => 4,
            Self::Fp64 | Self::I64 | Self::U64 => 8,
        }
    }

    /// The value of one element, little-endian. Integers of 64 bits round to f64.
    pub fn value(self, bytes: &[u8]) -> f64 {
        let mut word = [0; 8];
        word[..self.bytes()].copy_from_slice(bytes);
        let bits = u64::from_le_bytes(word);
        match self {
            Self::Fp64 => f64::from_bits(bits),
            Self::Fp32 => f64::from(f32::from_bits(bits as u32)),
            Self::Bf16 => f64::from(f32::from_bits((bits as u32) << 16)),
            Self::Fp16 => small_float(bits as u32, 5, 10, true),
            Self::Fp8e5 => small_float(bits as u32, 5, 2, true),
            Self::Fp8e4nv => small_float(bits as u32, 4, 3, false),
            Self::I8 => f64::from(bits as i8),
            Self::I16 => f64::from(bits as i16),
            Self::I32 => f64::from(bits as i32),
            Self::I64 => bits as i64 as f64,
            Self::U8 | Self::U16 | Self::U32 | Self::U64 => bits as f64,
        }
    }
}

/// Value of a float of `1 + exponent_bits + fraction_bits` bits. Without infinities, only the code of all ones is NaN.
fn small_float(bits: u32, exponent_bits: u32, fraction_bits: u32, infinities: bool) -> f64 {
    let bias = (1 << (exponent_bits - 1)) - 1;
    let fraction = bits & ((1 << fraction_bits) - 1);
    let largest = (1 << exponent_bits) - 1;
    let exponent = bits >> fraction_bits & largest;
    let all_ones = fraction == (1 << fraction_bits) - 1;
    let magnitude = if exponent == largest && infinities {
        if fraction == 0 { f64::INFINITY } else { f64::NAN }
    } else if exponent == largest && all_ones {
        f64::NAN
    } else {
        let hidden = if exponent == 0 { 0 } else { 1 << fraction_bits };
        let scale = exponent.max(1) as i32 - bias - fraction_bits as i32;
        f64::from(hidden + fraction) * 2f64.powi(scale)
    };
    if bits >> (exponent_bits + fraction_bits) & 1 == 1 { -magnitude } else { magnitude }
}

#[cfg(test)]
mod tests;
