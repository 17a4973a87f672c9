//! Devices for golden cases.

use super::{Asynchrony, Fault, Kernel, Launch, Machine, Options, Ptx};
use crate::case::command::{self, DeviceOptions};
use crate::case::node::{Failure, Node, NodeLaunch};
use crate::case::{Device, LaunchShape};
use std::collections::HashMap;
use std::sync::Arc;

/// One device of a machine of its own.
#[derive(Debug)]
pub struct CaseDevice(Machine);

impl CaseDevice {
    /// A device that executes as the options say.
    pub fn new(options: &DeviceOptions) -> Self {
        let asynchrony = match options.asynchrony {
            command::Asynchrony::Issue => Asynchrony::Issue,
            command::Asynchrony::Late => Asynchrony::Late,
            command::Asynchrony::Random => Asynchrony::Random,
        };
        // Seed 0 is the plain order.
        let seed = (options.seed != 0).then_some(options.seed);
        Self(Machine::new(
            1,
            Options {
                shuffle: seed,
                noise: seed,
                spurious: asynchrony == Asynchrony::Random,
                asynchrony,
                ..Options::default()
            },
        ))
    }

    /// A device with these options.
    pub fn with(options: Options) -> Self {
        Self(Machine::new(1, options))
    }
}

impl Device for CaseDevice {
    fn allocate(&mut self, bytes: u64, align: u64) -> u64 {
        self.0.allocate(0, bytes, align)
    }

    fn write(&mut self, address: u64, bytes: &[u8]) {
        self.0.write(address, bytes).expect("a range of an allocation");
    }

    fn read(&mut self, address: u64, bytes: &mut [u8]) {
        self.0.read(address, bytes).expect("a range of an allocation");
    }

    fn launch(&mut self, ptx: &str, entry: &str, shape: &LaunchShape, params: &[u8]) -> Result<(), String> {
        let module = self.0.load(0, ptx)?;
        let kernel = module.kernel(entry)?;
        self.0.launch(&kernel, *shape, params).map_err(|fault| fault.to_string())?;
        self.0.unload(module);
        Ok(())
    }

    fn node(&mut self, devices: usize) -> Option<&mut dyn Node> {
        // Races are what cases of several devices are about.
        self.0 = Machine::new(devices, Options { races: true, ..self.0.options.clone() });
        Some(&mut self.0)
    }
}

impl Node for Machine {
    fn allocate(&mut self, device: usize, bytes: u64, align: u64, name: &str) -> u64 {
        let address = self.allocate(device, bytes, align);
        self.name(address, name);
        address
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), String> {
        self.write(address, bytes)
    }

    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), String> {
        self.read(address, bytes)
    }

    fn multicast(&mut self, copies: &[u64]) -> Result<u64, String> {
        self.multicast(copies)
    }

    fn run(&mut self, queues: &[Vec<NodeLaunch<'_>>]) -> Result<(), Failure> {
        let mut parsed: HashMap<&str, Arc<Ptx>> = HashMap::new();
        let mut loaded = HashMap::new();
        let mut modules = Vec::new();
        let mut kernels: Vec<Vec<Kernel>> = Vec::new();
        for (device, launches) in queues.iter().enumerate() {
            let mut of_device = Vec::new();
            for &NodeLaunch { ptx, entry, .. } in launches {
                let text = match parsed.get(ptx) {
                    Some(text) => text.clone(),
                    None => Ptx::parse(ptx).map_err(Failure::Other)?,
                };
                let module = *loaded.entry((device, ptx)).or_insert_with(|| {
                    modules.push(self.load_parsed(device, &text));
                    modules.len() - 1
                });
                parsed.insert(ptx, text);
                of_device.push(modules[module].kernel(entry).map_err(Failure::Other)?);
            }
            kernels.push(of_device);
        }
        let launches: Vec<Vec<Launch<'_>>> = queues
            .iter()
            .zip(&kernels)
            .map(|(queue, kernels)| {
                let launches = queue.iter().zip(kernels);
                launches
                    .map(|(NodeLaunch { shape, params, .. }, kernel)| Launch {
                        kernel,
                        shape: *shape,
                        parameters: params,
                    })
                    .collect()
            })
            .collect();
        let queues: Vec<&[Launch<'_>]> = launches.iter().map(Vec::as_slice).collect();
        let result = Machine::run(self, &queues).map(|_| ()).map_err(Failure::from);
        modules.into_iter().for_each(|module| self.unload(module));
        result
    }
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        let text = fault.to_string();
        match () {
            () if fault.is_race() => Self::Race(text),
            () if fault.is_deadlock() => Self::Deadlock(text),
            () => Self::Other(text),
        }
    }
}
