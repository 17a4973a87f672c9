//! A device for golden cases.

use super::{Asynchrony, Machine, Options};
use crate::case::command::{self, DeviceOptions};
use crate::case::{Device, LaunchShape};

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
}
