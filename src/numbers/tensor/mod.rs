//! Dtypes, shapes and borrowed host tensors. Knows no files, devices or packed number formats.

mod dtype;
mod view;

pub use dtype::{Dtype, ElementType};
pub use view::TensorView;
