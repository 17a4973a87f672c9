//! Indices of a step, one type each: rows, slots and blocks are all small numbers, and the compiler
//! cannot tell plain integers apart.

use bytemuck::{Pod, Zeroable};

macro_rules! index {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Pod, Zeroable)]
        #[repr(transparent)]
        pub struct $name(pub u32);

        impl $name {
            /// The index as an offset into a slice.
            pub fn at(self) -> usize {
                self.0 as usize
            }
        }
    };
}

index! {
    /// An id of the vocabulary.
    TokenId
}
index! {
    /// A block of the KV cache, the same in every layer.
    BlockId
}
index! {
    /// Position of one token's latent in a layer of the KV cache: block x block size + offset.
    KvSlot
}
index! {
    /// Slot of a running sequence, `0..max_num_seqs`: selects its sampling state on the device.
    SeqSlot
}
index! {
    /// A row of a step, `0..T`.
    Row
}

impl KvSlot {
    /// The slot of a padded row, whose latent is not stored.
    pub const PAD: Self = Self(u32::MAX);
}
