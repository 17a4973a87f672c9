//! Indices of a step, one type each: a row, a slot and a block are all small numbers, and mixing them up compiles otherwise.

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
    /// Where one token's latent lies in a layer of the KV cache: block x block size + offset.
    KvSlot
}
index! {
    /// Place of a running sequence, `0..max_num_seqs`: names its sampling state on the device.
    SeqSlot
}
index! {
    /// A row of a step, `0..T`.
    Row
}

impl KvSlot {
    /// The slot of a padded row: nothing is stored there.
    pub const PAD: Self = Self(u32::MAX);
}
