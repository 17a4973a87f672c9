//! Runs cases of compiled kernels: `ptx-run CASE.json...`.

use perigee_emulator::case::command;
use perigee_emulator::machine::CaseDevice;
use std::io;
use std::process::ExitCode;

fn main() -> io::Result<ExitCode> {
    let arguments = std::env::args().skip(1);
    command::run(arguments, CaseDevice::new, &mut io::stdout(), &mut io::stderr()).map(Into::into)
}
