//! Asynchronous transfers: mbarriers and tensor maps, as values without a machine.

pub mod mbarrier;
pub mod reduce;
pub mod swizzle;
pub mod tensor_map;
pub mod tile;
