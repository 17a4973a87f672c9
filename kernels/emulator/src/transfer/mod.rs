//! Asynchronous transfers: mbarriers and tensor maps, as values without a machine.

pub mod mbarrier;
