//! Tests against golden tables and against exact arithmetic.

mod golden;
