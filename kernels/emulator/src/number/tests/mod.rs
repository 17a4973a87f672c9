//! Tests against golden tables and against exact arithmetic.

mod approximate;
mod convert;
mod exact;
mod float;
mod golden;
mod integer;
mod packed;
