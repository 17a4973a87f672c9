//! Whole-program tests.

mod client;
mod config;
mod engine;
mod fake;
mod faults;
mod golden;
mod golden_quant;
mod http;
mod layering;
mod malformed;
mod nano;
mod pruning;
mod serve;
