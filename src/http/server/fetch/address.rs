//! The policy for addresses: only the public internet is fetched from.
//!
//! IPv4 is open except for the registry of special ranges (RFC 6890, IANA "IPv4 Special-Purpose
//! Address Registry"). IPv6 is closed except for global unicast without its special ranges, so that
//! every form that embeds an IPv4 address is refused without being decoded.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// IPv4 ranges that are refused, as (first address, prefix length).
const REFUSED_V4: [(Ipv4Addr, u32); 17] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),          // this network, unspecified
    (Ipv4Addr::new(10, 0, 0, 0), 8),         // private
    (Ipv4Addr::new(100, 64, 0, 0), 10),      // carrier-grade NAT
    (Ipv4Addr::new(127, 0, 0, 0), 8),        // loopback
    (Ipv4Addr::new(168, 63, 129, 16), 32),   // Azure's platform services: public by number only
    (Ipv4Addr::new(169, 254, 0, 0), 16),     // link-local, metadata services of clouds
    (Ipv4Addr::new(172, 16, 0, 0), 12),      // private
    (Ipv4Addr::new(192, 0, 0, 0), 24),       // protocol assignments
    (Ipv4Addr::new(192, 0, 2, 0), 24),       // documentation
    (Ipv4Addr::new(192, 88, 99, 0), 24),     // 6to4 relays
    (Ipv4Addr::new(192, 168, 0, 0), 16),     // private
    (Ipv4Addr::new(198, 18, 0, 0), 15),      // benchmarking
    (Ipv4Addr::new(198, 51, 100, 0), 24),    // documentation
    (Ipv4Addr::new(203, 0, 113, 0), 24),     // documentation
    (Ipv4Addr::new(224, 0, 0, 0), 4),        // multicast
    (Ipv4Addr::new(240, 0, 0, 0), 4),        // reserved
    (Ipv4Addr::new(255, 255, 255, 255), 32), // broadcast
];

/// The IPv6 range that is open, as (first address, prefix length): global unicast. Outside of it lie
/// unspecified, loopback, IPv4-mapped and -compatible, NAT64, discard-only, unique local, link-local,
/// site-local and multicast addresses.
const OPEN_V6: (Ipv6Addr, u32) = (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);

/// IPv6 ranges within [`OPEN_V6`] that are refused.
const REFUSED_V6: [(Ipv6Addr, u32); 4] = [
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23), // Teredo, benchmarking, ORCHID and their like
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32), // documentation
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16), // 6to4
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20), // documentation
];

/// Whether an address is on the public internet.
pub(super) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let within = |(first, length): (Ipv4Addr, u32)| {
                (address.to_bits() ^ first.to_bits()).leading_zeros() >= length
            };
            !REFUSED_V4.into_iter().any(within)
        }
        IpAddr::V6(address) => {
            let within = |(first, length): (Ipv6Addr, u32)| {
                (address.to_bits() ^ first.to_bits()).leading_zeros() >= length
            };
            within(OPEN_V6) && !REFUSED_V6.into_iter().any(within)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(addresses: &str, expected: bool) {
        for address in addresses.split_whitespace() {
            assert_eq!(is_public(address.parse().unwrap()), expected, "{address}");
        }
    }

    #[test]
    fn public_addresses_and_the_neighbours_of_special_ranges_are_open() {
        check(
            "1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 \
             128.0.0.0 168.63.129.15 168.63.129.17 169.253.255.255 169.255.0.0 172.15.255.255 \
             172.32.0.0 191.255.255.255 192.0.1.0 192.0.3.0 192.88.98.255 192.88.100.0 \
             192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0 198.51.99.255 198.51.101.0 \
             203.0.112.255 203.0.114.0 223.255.255.255",
            true,
        );
        check(
            "2000:: 2001:200:: 2001:4860:4860::8888 2001:db7:ffff::1 2001:db9::1 2003::1 \
             2606:4700:4700::1111 2a00:1450:4001::1 3ffe:ffff::1 3fff:1000::1",
            true,
        );
    }

    #[test]
    fn special_ranges_are_refused_from_end_to_end() {
        check(
            "0.0.0.0 0.255.255.255 10.0.0.0 10.255.255.255 100.64.0.0 100.100.100.200 \
             100.127.255.255 127.0.0.1 127.255.255.255 168.63.129.16 169.254.0.0 169.254.169.254 \
             169.254.255.255 172.16.0.0 172.31.255.255 192.0.0.0 192.0.0.192 192.0.0.255 192.0.2.0 \
             192.0.2.255 192.88.99.1 192.168.0.0 192.168.255.255 198.18.0.0 198.19.255.255 \
             198.51.100.7 203.0.113.7 224.0.0.0 224.0.0.251 239.255.255.255 240.0.0.0 \
             255.255.255.254 255.255.255.255",
            false,
        );
        check(
            ":: ::1 ::2 ::127.0.0.1 ::8.8.8.8 ::ffff:127.0.0.1 ::ffff:8.8.8.8 ::ffff:0:8.8.8.8 \
             64:ff9b::7f00:1 64:ff9b::808:808 64:ff9b:1::808:808 100::1 2001::1 2001:0:4136:e378::1 \
             2001:2::1 2001:10::1 2001:20::1 2001:1ff:ffff::1 2001:db8::1 2001:db8:ffff::1 2002::1 \
             2002:7f00:1::1 2002:ffff::1 3fff::1 3fff:fff::1 4000::1 5f00::1 fc00::1 fd00:ec2::254 \
             fdff::1 fe80::1 febf::1 fec0::1 feff::1 ff02::1 ff0e::1 1fff:ffff::1",
            false,
        );
    }
}
