//! A position in a file, and numbers read from there.

use crate::vision::{Format, ImageError};

/// The rest of a file of a known format; reading past its end is `ImageError::Truncated`.
#[derive(Clone, Copy)]
pub(super) struct Bytes<'a> {
    format: Format,
    rest: &'a [u8],
}

impl<'a> Bytes<'a> {
    pub(super) fn new(format: Format, rest: &'a [u8]) -> Self {
        Self { format, rest }
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The next `len` bytes.
    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8], ImageError> {
        let (taken, rest) =
            self.rest.split_at_checked(len).ok_or(ImageError::Truncated { format: self.format })?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ImageError> {
        Ok(self.take(N)?.try_into().expect("N bytes were taken"))
    }

    pub(super) fn u8(&mut self) -> Result<u8, ImageError> {
        Ok(self.array::<1>()?[0])
    }

    pub(super) fn u16_le(&mut self) -> Result<u16, ImageError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u16_be(&mut self) -> Result<u16, ImageError> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u24_le(&mut self) -> Result<u32, ImageError> {
        let [a, b, c] = self.array()?;
        Ok(u32::from_le_bytes([a, b, c, 0]))
    }

    pub(super) fn u32_le(&mut self) -> Result<u32, ImageError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u32_be(&mut self) -> Result<u32, ImageError> {
        self.array().map(u32::from_be_bytes)
    }

    /// A chunk's name.
    pub(super) fn name(&mut self) -> Result<[u8; 4], ImageError> {
        self.array()
    }
}
