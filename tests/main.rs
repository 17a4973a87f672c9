//! Whole-program tests.

mod client;
mod config;
mod engine;
mod fake;
mod faults;
mod golden;
mod hostile;
mod http;
mod inspect;
mod layering;
mod malformed;
mod nano;
mod quantized;
mod serve;
