//! Numbers, and the threads that work on them: element types and shapes, number formats as pure maths, worker threads.
//!
//! Knows no files, no devices and no model. Every result depends on arguments alone.

pub mod tensor;
pub mod threads;
pub mod quant;
