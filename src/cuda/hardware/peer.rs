//! What the check of a machine asks of a device: its place on the bus, and copies to another device.

use std::ffi::{CStr, c_char, c_int};

use super::super::{Driver, DriverError};
use super::Hardware;

/// Bytes of the copy that is compared.
const CHECK_BYTES: usize = 4 << 20;
/// `CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED`.
const ALREADY_ENABLED: c_int = 704;

/// How bytes come from one device to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerAccess {
    /// Through the host's memory.
    Absent,
    /// Directly; a copy had every byte.
    Direct,
    /// A copy differed from its source, as it does where an IOMMU remaps transfers between devices.
    Corrupt {
        /// Bytes that differed.
        differing: usize,
        /// Bytes that were copied.
        of: usize,
    },
}

impl Hardware {
    /// Address on the PCI bus, by which NVML knows the device.
    pub fn pci_bus_id(&self) -> Result<String, DriverError> {
        let mut text = [0 as c_char; 32];
        let functions = self.enter("cuDeviceGetPCIBusId")?;
        // SAFETY: the text has the length, less the last byte.
        unsafe {
            functions.cuDeviceGetPCIBusId(text.as_mut_ptr(), text.len() as c_int - 1, self.context.device)
        }?;
        // SAFETY: the last byte is 0, whatever the driver wrote before it.
        Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
    }

    /// Lets kernels of this device read and write the memory of a peer, which may be this device. Errors: there is no way to it.
    pub fn reach(&self, peer: &Self) -> Result<(), DriverError> {
        if self.context.device == peer.context.device {
            return Ok(());
        }
        let functions = self.enter("cuCtxEnablePeerAccess")?;
        // SAFETY: the peer's context is alive, and this device's is current.
        match unsafe { functions.cuCtxEnablePeerAccess(peer.context.handle, 0) } {
            Err(error) if error.code != ALREADY_ENABLED => Err(error),
            _ => Ok(()),
        }
    }

    /// Enables direct access to a peer and copies bytes to it. Memory of the check is freed with the devices.
    pub fn check_peer(&mut self, peer: &mut Self) -> Result<PeerAccess, DriverError> {
        let mut can = 0;
        let functions = self.enter("cuDeviceCanAccessPeer")?;
        // SAFETY: the output is writable.
        unsafe { functions.cuDeviceCanAccessPeer(&mut can, self.context.device, peer.context.device) }?;
        if can != 0 {
            self.reach(peer)?;
        }
        // Every 8 bytes differ from all others.
        let content: Vec<u8> = (0..CHECK_BYTES as u64 / 8)
            .flat_map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_ne_bytes())
            .collect();
        let from = self.allocate(CHECK_BYTES)?;
        let to = peer.allocate(CHECK_BYTES)?;
        peer.zero(to, CHECK_BYTES)?;
        peer.wait()?;
        self.upload(from, &content)?;
        let functions = self.enter("cuMemcpyPeerAsync")?;
        // SAFETY: both allocations have the bytes and live as long as their devices; the target is idle.
        unsafe {
            functions.cuMemcpyPeerAsync(
                to,
                peer.context.handle,
                from,
                self.context.handle,
                CHECK_BYTES,
                self.stream.handle(),
            )
        }?;
        self.wait()?;
        let transfer = peer.download(to, CHECK_BYTES)?;
        let mut found = Vec::new();
        peer.finish(transfer, &mut found)?;
        let differing = content.iter().zip(&found).filter(|(a, b)| a != b).count();
        Ok(match (differing, can) {
            (0, 0) => PeerAccess::Absent,
            (0, _) => PeerAccess::Direct,
            _ => PeerAccess::Corrupt { differing, of: CHECK_BYTES },
        })
    }

    /// Waits for all work of the stream.
    fn wait(&self) -> Result<(), DriverError> {
        let functions = self.enter("cuStreamSynchronize")?;
        // SAFETY: the stream is alive.
        unsafe { functions.cuStreamSynchronize(self.stream.handle()) }
    }
}
