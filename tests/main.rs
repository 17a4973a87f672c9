//! Whole-program tests.

mod calibrate;
mod chat;
mod client;
mod config;
mod delayed;
mod dialects;
mod engine;
mod fake;
mod faults;
mod fields;
mod golden;
mod grammar;
mod hostile;
mod golden_quant;
mod guard;
mod http;
mod inspect;
mod layering;
mod malformed;
mod nano;
mod overlap;
mod pruning;
mod quantize;
mod quantized;
mod scoring;
mod serve;
