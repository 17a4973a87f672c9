//! Runs cases of compiled kernels: `ptx-run CASE.json...`.

fn main() {}
