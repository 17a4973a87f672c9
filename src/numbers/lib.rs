//! Numbers, and the threads that compute on them: element types and shapes, worker threads, number formats as
//! pure maths.
//!
//! Knows no files, no devices and no model. Every result depends on arguments alone.

pub mod tensor;
pub mod threads;
pub mod quant;
