//! Dtypes, shapes and borrowed host tensors. Knows no file, no device, no format of packed numbers.

mod dtype;
mod view;

pub use dtype::DType;
pub use view::TensorView;
