//! Cases of several devices that read and write each other's memory: queues of launches, one for each device,
//! with the answer, or with what must be found.
//!
//! The format is that of the golden cases of one device with `devices`, `launches` in the builds, and
//! arguments that differ by device. Nothing orders the launches of different devices. A case of one device
//! with several launches has no `devices`, and its tensors no dimension of devices.

use super::compare::{Change, Difference, Report};
use super::{
    CaseError, LaunchShape, Tensor, TensorEntry, Tolerance, builds_folder, json, load_tensors, push_param,
    read_text,
};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What a case needs of a machine with several devices in one address space.
pub trait Node {
    /// Address of new memory of a device, a multiple of `align`; the name is for messages.
    fn allocate(&mut self, device: usize, bytes: u64, align: u64, name: &str) -> u64;
    /// Writes memory. Errors name the range.
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), String>;
    /// Reads memory. Errors name the range.
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), String>;
    /// The address at which `multimem` instructions reach some allocations.
    fn multicast(&mut self, copies: &[u64]) -> Result<u64, String>;
    /// Runs the queues of all devices to their end.
    fn run(&mut self, queues: &[Vec<NodeLaunch<'_>>]) -> Result<(), Failure>;
}

/// A launch of one device.
#[derive(Clone, Debug)]
pub struct NodeLaunch<'a> {
    /// Module with the kernel.
    pub ptx: &'a str,
    /// Name of the kernel.
    pub entry: &'a str,
    /// Shape of the launch.
    pub shape: LaunchShape,
    /// The parameter block.
    pub params: Vec<u8>,
}

/// Why the launches did not come to their end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Accesses that nothing orders.
    Race(String),
    /// Nothing can go on.
    Deadlock(String),
    /// Anything else.
    Other(String),
}

impl Failure {
    /// The reason.
    pub fn text(&self) -> &str {
        match self {
            Self::Race(text) | Self::Deadlock(text) | Self::Other(text) => text,
        }
    }
}

/// What must be found in a wrong case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Expect {
    /// A race on one of the tensors that the case names.
    Race,
    /// A deadlock, and no race before it.
    Deadlock,
}

/// Whether a fault shows in every order of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// It does.
    #[default]
    Every,
    /// In some orders the answer may be right.
    Some,
}

/// What a run says of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The answer is right, or what must be found was found.
    Right,
    /// What must be found did not show in this order.
    NotShown,
    /// Why the run is wrong.
    Wrong(String),
}

/// Kernels of several devices with their inputs, and the answer or the fault.
#[derive(Clone, Debug)]
pub struct NodeCase {
    /// Name of the case.
    pub name: String,
    /// Number of devices.
    pub devices: usize,
    /// Allowed difference.
    pub tolerance: Tolerance,
    /// Tensors in order of their names. The first dimension is the device.
    pub tensors: Vec<Tensor>,
    /// What must be found; `None` for a case with an answer.
    pub expect: Option<Expect>,
    /// Orders in which it shows.
    pub order: Order,
    /// Tensors on one of which a race must be found.
    pub race_on: Vec<String>,
    /// One build for each architecture.
    pub builds: Vec<NodeBuild>,
    folder: PathBuf,
}

/// Launches compiled for one architecture.
#[derive(Clone, Debug, Deserialize)]
pub struct NodeBuild {
    /// Architecture without its suffix, as in `sm_90`.
    pub arch: String,
    /// Launches of every device, in order.
    pub launches: Vec<LaunchEntry>,
}

/// A launch on all devices.
#[derive(Clone, Debug, Deserialize)]
pub struct LaunchEntry {
    /// PTX file beside the case.
    pub file: String,
    /// Name of the kernel.
    pub entry: String,
    /// Threads of a block.
    pub block: [u32; 3],
    /// Blocks of a cluster.
    pub cluster: [u32; 3],
    /// Blocks of the grid.
    launch_grid: Option<[u32; 3]>,
    /// The same where devices differ.
    launch_grid_by_device: Option<Vec<[u32; 3]>>,
    /// Dynamic shared memory of a block, in bytes.
    pub dynamic_shared_bytes: u32,
    args: Vec<Arg>,
}

/// A kernel parameter.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Arg {
    /// Address of a device's copy of a tensor: its own unless another one is named.
    Pointer { tensor: String, device: Option<ByDevice<usize>> },
    /// Address of the addresses of all copies.
    PointerArray { tensor: String },
    /// A 64-bit address at which `multimem` instructions reach all copies.
    Multicast { tensor: String },
    /// A 32-bit integer.
    I32 { value: Option<i32>, by_device: Option<Vec<i32>> },
    /// A 64-bit integer.
    I64 { value: i64 },
    /// A 32-bit float.
    F32 { value: f32 },
    /// Address of zeroed memory.
    Scratch { bytes_per_block: u64, alignment: u64 },
}

/// One value, or one for each launching device.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum ByDevice<T> {
    All(T),
    Each(Vec<T>),
}

impl<T: Copy> ByDevice<T> {
    fn of(&self, device: usize) -> Option<T> {
        match self {
            Self::All(value) => Some(*value),
            Self::Each(values) => values.get(device).copied(),
        }
    }
}

#[derive(Deserialize)]
struct CaseFile {
    name: String,
    devices: Option<usize>,
    tensors: BTreeMap<String, TensorEntry>,
    #[serde(default)]
    expected: BTreeMap<String, TensorEntry>,
    tolerance: Option<Tolerance>,
    expect: Option<Expect>,
    #[serde(default)]
    order: Order,
    #[serde(default)]
    race_on: Vec<String>,
    builds: Vec<NodeBuild>,
}

/// Most devices of a node.
const MAX_DEVICES: usize = 64;

/// Addresses of one run.
struct Addresses {
    /// By tensor and device.
    copies: Vec<Vec<u64>>,
    /// Of the array of addresses of a tensor, by tensor and device; made when first asked for.
    arrays: BTreeMap<(usize, usize), u64>,
    /// Multicast addresses by tensor.
    multicasts: BTreeMap<usize, u64>,
}

impl NodeCase {
    /// Reads `NAME.json` and `NAME.safetensors`.
    pub fn load(path: &Path) -> Result<Self, CaseError> {
        let file: CaseFile = json(path)?;
        let invalid = |reason: String| CaseError::Invalid(path.to_owned(), reason);
        let devices = file.devices.unwrap_or(1);
        if !(1..=MAX_DEVICES).contains(&devices) {
            return Err(invalid(format!("{devices} devices; 1 to {MAX_DEVICES} are possible")));
        }
        let has_devices =
            |entry: &TensorEntry| file.devices.is_none() || entry.shape.first() == Some(&devices);
        if let Some((name, entry)) = file.tensors.iter().find(|(_, entry)| !has_devices(entry)) {
            return Err(invalid(format!("{name} is {:?}, not one for each device", entry.shape)));
        }
        Ok(Self {
            name: file.name,
            devices,
            tolerance: file.tolerance.unwrap_or(Tolerance { absolute: 0.0, relative: 0.0 }),
            tensors: load_tensors(path, &file.tensors, &file.expected)?,
            expect: file.expect,
            order: file.order,
            race_on: file.race_on,
            builds: file.builds,
            folder: builds_folder(path),
        })
    }

    /// The PTX of each launch of a build.
    pub fn ptx(&self, build: &NodeBuild) -> Result<Vec<String>, CaseError> {
        build.launches.iter().map(|launch| read_text(&self.folder.join(&launch.file))).collect()
    }

    /// Runs one build: allocates and fills the tensors, runs the launches of all devices, and compares every
    /// tensor but those that only the kernels use. The time is that of the launches.
    pub fn run(
        &self,
        build: &NodeBuild,
        ptx: &[String],
        node: &mut dyn Node,
    ) -> Result<(Report, Duration), Failure> {
        let mut addresses = self.place(node).map_err(Failure::Other)?;
        let queues = (0..self.devices)
            .map(|device| {
                let launches = build.launches.iter().zip(ptx);
                launches
                    .map(|(launch, ptx)| self.launch(launch, ptx, device, &mut addresses, node))
                    .collect::<Result<Vec<_>, _>>()
            })
            .collect::<Result<Vec<_>, _>>()
            .map_err(Failure::Other)?;
        let start = Instant::now();
        node.run(&queues)?;
        let time = start.elapsed();
        Ok((self.compare(&addresses, node).map_err(Failure::Other)?, time))
    }

    /// What a run says of the case.
    pub fn verdict(&self, outcome: &Result<(Report, Duration), Failure>) -> Verdict {
        let wrong = |text: &str| Verdict::Wrong(text.to_owned());
        match (self.expect, outcome) {
            (None, Ok((report, _))) if report.is_right() => Verdict::Right,
            (None, Ok(_)) => wrong("a wrong answer"),
            (Some(_), Ok(_)) => Verdict::NotShown,
            (Some(Expect::Race), Err(Failure::Race(text))) => {
                let named = |tensor: &String| text.contains(&format!("`{tensor}` + 0x"));
                match self.race_on.iter().any(named) {
                    true => Verdict::Right,
                    false => Verdict::Wrong(format!("a race on none of {:?}: {text}", self.race_on)),
                }
            }
            (Some(Expect::Deadlock), Err(Failure::Deadlock(_))) => Verdict::Right,
            // What a race loses may be waited for.
            (Some(Expect::Race), Err(Failure::Deadlock(_))) if self.order == Order::Some => Verdict::NotShown,
            (_, Err(failure)) => wrong(failure.text()),
        }
    }

    fn place(&self, node: &mut dyn Node) -> Result<Addresses, String> {
        let mut copies = Vec::new();
        for tensor in &self.tensors {
            let bytes = tensor.contents.len() / self.devices;
            let mut addresses = Vec::new();
            for (device, slice) in tensor.contents.chunks(bytes.max(1)).enumerate() {
                let address = node.allocate(device, bytes as u64, 256, &tensor.name);
                node.write(address, slice)?;
                addresses.push(address);
            }
            copies.push(addresses);
        }
        Ok(Addresses { copies, arrays: BTreeMap::new(), multicasts: BTreeMap::new() })
    }

    fn launch<'a>(
        &self,
        launch: &'a LaunchEntry,
        ptx: &'a str,
        device: usize,
        addresses: &mut Addresses,
        node: &mut dyn Node,
    ) -> Result<NodeLaunch<'a>, String> {
        let shape = LaunchShape {
            grid: launch.grid(device)?,
            block: launch.block,
            cluster: launch.cluster,
            dynamic_shared_bytes: launch.dynamic_shared_bytes,
        };
        let mut params = Vec::new();
        for arg in &launch.args {
            match arg {
                Arg::Pointer { tensor, device: of } => {
                    let of = of.as_ref().map_or(Some(device), |of| of.of(device));
                    let copy = of.and_then(|of| addresses.copies[self.find(tensor).ok()?].get(of).copied());
                    let copy = copy.ok_or_else(|| format!("no copy of {tensor} for device {device}"))?;
                    push_param(&mut params, 8, &copy.to_le_bytes());
                }
                Arg::PointerArray { tensor } => {
                    let index = self.find(tensor)?;
                    let array = match addresses.arrays.get(&(index, device)) {
                        Some(&array) => array,
                        None => {
                            let bytes: Vec<u8> =
                                addresses.copies[index].iter().flat_map(|copy| copy.to_le_bytes()).collect();
                            let name = format!("{tensor}_array");
                            let array = node.allocate(device, bytes.len() as u64, 256, &name);
                            node.write(array, &bytes)?;
                            addresses.arrays.insert((index, device), array);
                            array
                        }
                    };
                    push_param(&mut params, 8, &array.to_le_bytes());
                }
                Arg::Multicast { tensor } => {
                    let index = self.find(tensor)?;
                    let address = match addresses.multicasts.get(&index) {
                        Some(&address) => address,
                        None => {
                            let address = node.multicast(&addresses.copies[index])?;
                            addresses.multicasts.insert(index, address);
                            address
                        }
                    };
                    push_param(&mut params, 8, &address.to_le_bytes());
                }
                Arg::I32 { value, by_device } => {
                    let of_device = by_device.as_ref().and_then(|values| values.get(device).copied());
                    let value = of_device.or(*value);
                    let value =
                        value.ok_or_else(|| format!("an integer without a value on device {device}"))?;
                    push_param(&mut params, 4, &value.to_le_bytes());
                }
                Arg::I64 { value } => push_param(&mut params, 8, &value.to_le_bytes()),
                Arg::F32 { value } => push_param(&mut params, 4, &value.to_le_bytes()),
                Arg::Scratch { bytes_per_block, alignment } => {
                    let blocks = shape.grid.iter().fold(1u64, |product, &n| product.saturating_mul(n.into()));
                    let bytes = bytes_per_block.saturating_mul(blocks);
                    if bytes > MAX_SCRATCH {
                        return Err(format!("{bytes} bytes of scratch memory"));
                    }
                    // Without a byte, a use of the address is an error.
                    let mut address = 0;
                    if bytes > 0 {
                        address = node.allocate(device, bytes, *alignment, "scratch");
                        node.write(address, &vec![0; bytes as usize])?;
                    }
                    push_param(&mut params, 8, &address.to_le_bytes());
                }
            }
        }
        Ok(NodeLaunch { ptx, entry: &launch.entry, shape, params })
    }

    fn find(&self, name: &str) -> Result<usize, String> {
        let index = self.tensors.iter().position(|tensor| tensor.name == name);
        index.ok_or_else(|| format!("the case has no tensor {name}"))
    }

    fn compare(&self, addresses: &Addresses, node: &mut dyn Node) -> Result<Report, String> {
        let mut report = Report::default();
        for (tensor, copies) in self.tensors.iter().zip(&addresses.copies) {
            let mut got = vec![0; tensor.contents.len()];
            for (bytes, &copy) in got.chunks_mut((tensor.contents.len() / self.devices).max(1)).zip(copies) {
                node.read(copy, bytes)?;
            }
            match &tensor.expected {
                Some(want) => {
                    let tolerance = tensor.tolerance.unwrap_or(self.tolerance);
                    let difference = Difference::of(&tensor.name, tensor.dtype, tolerance, &got, want);
                    report.differences.push(difference);
                }
                None if tensor.is_work => {}
                None => report.changes.extend(Change::of(&tensor.name, &tensor.contents, &got)),
            }
        }
        Ok(report)
    }
}

/// Most bytes of scratch memory of a launch.
const MAX_SCRATCH: u64 = 1 << 30;

impl LaunchEntry {
    fn grid(&self, device: usize) -> Result<[u32; 3], String> {
        let by_device = self.launch_grid_by_device.as_ref();
        let grid = match by_device {
            Some(grids) => grids.get(device).copied(),
            None => self.launch_grid,
        };
        grid.ok_or_else(|| format!("{} has no grid on device {device}", self.entry))
    }
}
