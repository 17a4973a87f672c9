//! Proxies that are trusted to say who called them.

use std::net::IpAddr;

/// A network of addresses, `ADDRESS/BITS`, or all callers of a Unix socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Network {
    Addresses { first: IpAddr, bits: u32 },
    Unix,
}

impl Network {
    /// Reads `10.0.0.0/8`, `2001:db8::/32`, a single address, or `unix`; `None`: it is none of these.
    pub(super) fn read(written: &str) -> Option<Self> {
        if written == "unix" {
            return Some(Self::Unix);
        }
        let (address, bits) = match written.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u32>().ok()?)),
            None => (written, None),
        };
        let first: IpAddr = address.parse().ok()?;
        let most = if first.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(most);
        (bits <= most).then_some(Self::Addresses { first, bits })
    }

    /// Whether a caller is in the network; `None` is one of a Unix socket.
    pub(super) fn holds(&self, caller: Option<IpAddr>) -> bool {
        let Self::Addresses { first, bits } = self else { return caller.is_none() };
        let same = |first: u128, other: u128, width: u32| {
            // Of a shift by all bits nothing is left to differ.
            (first ^ other).checked_shr(width - bits).unwrap_or(0) == 0
        };
        match (first, caller.map(|address| address.to_canonical())) {
            (IpAddr::V4(first), Some(IpAddr::V4(other))) => {
                same(first.to_bits().into(), other.to_bits().into(), 32)
            }
            (IpAddr::V6(first), Some(IpAddr::V6(other))) => same(first.to_bits(), other.to_bits(), 128),
            _ => false,
        }
    }
}

/// The address that a request came from, told by the proxies in front: from the right of `X-Forwarded-For` the first one that
/// is no trusted proxy's, since everything left of it is the caller's own word. `None`: `peer` is no trusted proxy, or nothing
/// that it says is an address.
pub(super) fn forwarded_for<'a>(
    peer: Option<IpAddr>,
    lines: impl DoubleEndedIterator<Item = &'a str>,
    trusted: &[Network],
) -> Option<IpAddr> {
    let is_trusted = |address| trusted.iter().any(|network| network.holds(address));
    if !is_trusted(peer) {
        return None;
    }
    let mut furthest = None;
    for entry in lines.rev().flat_map(|line| line.rsplit(',')) {
        let Some(address) = address(entry.trim()) else { break };
        furthest = Some(address);
        if !is_trusted(furthest) {
            break;
        }
    }
    furthest
}

/// An address as proxies write it: alone, with a port, or in brackets.
fn address(entry: &str) -> Option<IpAddr> {
    let bare =
        entry.strip_prefix('[').and_then(|rest| rest.split_once(']')).map_or(entry, |(inside, _)| inside);
    let with_port = || entry.parse::<std::net::SocketAddr>().ok().map(|address| address.ip());
    bare.parse().ok().or_else(with_port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_hold_their_addresses() {
        for (network, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.1"),
            ("10.1.2.3", "::ffff:10.1.2.3", "10.1.2.4"),
            ("0.0.0.0/0", "203.0.113.9", "::1"),
            ("2001:db8::/32", "2001:db8:1::1", "2001:db9::1"),
            ("::/0", "2001:db8::1", "10.0.0.1"),
        ] {
            let network = Network::read(network).unwrap();
            assert!(network.holds(inside.parse().ok()), "{network:?}");
            assert!(!network.holds(outside.parse().ok()) && !network.holds(None), "{network:?}");
        }
        assert!(Network::read("unix").unwrap().holds(None));
        for wrong in ["", "10.0.0.0/33", "::/129", "10.0.0/8", "example.org", "10.0.0.0/-1"] {
            assert_eq!(Network::read(wrong), None, "{wrong}");
        }
    }

    /// What a caller writes itself stands left of what the proxies add.
    #[test]
    fn only_trusted_proxies_are_believed() {
        let trusted = [Network::read("10.0.0.0/8").unwrap()];
        let told = |peer: &str, lines: &[&str]| {
            forwarded_for(peer.parse().ok(), lines.iter().copied(), &trusted)
                .map(|address| address.to_string())
        };
        assert_eq!(told("203.0.113.9", &["198.51.100.1"]), None);
        assert_eq!(told("10.0.0.1", &[]), None);
        assert_eq!(told("10.0.0.1", &["198.51.100.1"]).as_deref(), Some("198.51.100.1"));
        assert_eq!(told("10.0.0.1", &["1.1.1.1, 198.51.100.1, 10.2.2.2"]).as_deref(), Some("198.51.100.1"));
        assert_eq!(told("10.0.0.1", &["1.1.1.1", "198.51.100.1:4711"]).as_deref(), Some("198.51.100.1"));
        assert_eq!(told("10.0.0.1", &["[2001:db8::1]:99"]).as_deref(), Some("2001:db8::1"));
        assert_eq!(told("10.0.0.1", &["1.1.1.1, unknown, 10.2.2.2"]).as_deref(), Some("10.2.2.2"));
        assert_eq!(told("10.0.0.1", &["nonsense"]), None);
    }
}
