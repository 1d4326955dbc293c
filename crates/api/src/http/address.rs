//! Where a request comes from, for the audit trail.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use axum::http::HeaderMap;
use ipnet::{IpNet, Ipv4Net};
use serde::{Deserialize, Serialize};

/// The client's address: the peer's, or what a trusted proxy says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClientAddress(pub(crate) IpAddr);

/// The address of the peer at the other end of the connection, put there by the server loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerAddress(pub IpAddr);

/// Proxies whose word about their clients is taken: one address, or all of a network (`10.0.0.0/8`, `fd00::/8`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TrustedProxy(IpNet);

/// A text that names no proxy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is neither an address nor a network such as 10.0.0.0/8 or fd00::/8")]
pub struct NoProxy(String);

impl TrustedProxy {
    fn is(self, address: IpAddr) -> bool {
        self.0.contains(&address)
    }
}

impl FromStr for TrustedProxy {
    type Err = NoProxy;

    fn from_str(text: &str) -> Result<Self, NoProxy> {
        let network = match text.parse::<IpAddr>() {
            Ok(address) => IpNet::from(address),
            Err(_) => text.parse().map_err(|_| NoProxy(text.to_owned()))?,
        };
        Ok(Self(canonical(network)))
    }
}

/// Addresses are compared in their own family, so a network of mapped ones is one of IPv4.
fn canonical(network: IpNet) -> IpNet {
    let IpNet::V6(wide) = network else { return network };
    let v4 = wide.network().to_ipv4_mapped().zip(wide.prefix_len().checked_sub(96));
    v4.and_then(|(address, bits)| Ipv4Net::new(address, bits).ok()).map_or(network, IpNet::V4)
}

impl fmt::Display for TrustedProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.prefix_len() == self.0.max_prefix_len() {
            true => write!(f, "{}", self.0.addr()),
            false => write!(f, "{}", self.0),
        }
    }
}

impl TryFrom<String> for TrustedProxy {
    type Error = NoProxy;

    fn try_from(text: String) -> Result<Self, NoProxy> {
        text.parse()
    }
}

impl From<TrustedProxy> for String {
    fn from(proxy: TrustedProxy) -> Self {
        proxy.to_string()
    }
}

/// The last address of `X-Forwarded-For` that no trusted proxy of ours wrote.
pub(crate) fn client_address(peer: IpAddr, headers: &HeaderMap, trusted: &[TrustedProxy]) -> ClientAddress {
    // A listener for both families gives IPv4 peers as mapped IPv6 addresses.
    let mut address = peer.to_canonical();
    let forwarded: Vec<&str> = headers
        .get_all("x-forwarded-for")
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .collect();
    for hop in forwarded.iter().rev() {
        if !trusted.iter().any(|proxy| proxy.is(address)) {
            break;
        }
        match hop.trim().parse::<IpAddr>() {
            Ok(before) => address = before.to_canonical(),
            Err(_) => break,
        }
    }
    ClientAddress(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(peer: &str, forwarded: &str, trusted: &[&str]) -> String {
        let mut headers = HeaderMap::new();
        headers.insert("x-forwarded-for", forwarded.parse().expect("a header"));
        let trusted: Vec<TrustedProxy> = trusted.iter().map(|ip| ip.parse().expect("a proxy")).collect();
        client_address(peer.parse().expect("an address"), &headers, &trusted).0.to_string()
    }

    #[test]
    fn only_trusted_proxies_are_believed() {
        assert_eq!(address("9.9.9.9", "1.2.3.4", &[]), "9.9.9.9");
        assert_eq!(address("9.9.9.9", "1.2.3.4", &["9.9.9.9"]), "1.2.3.4");
        assert_eq!(address("9.9.9.9", "6.6.6.6, 1.2.3.4, 8.8.8.8", &["9.9.9.9", "8.8.8.8"]), "1.2.3.4");
        assert_eq!(address("9.9.9.9", "nonsense", &["9.9.9.9"]), "9.9.9.9");
        assert_eq!(address("::ffff:9.9.9.9", "1.2.3.4", &["9.9.9.9"]), "1.2.3.4");
        assert_eq!(address("9.9.9.9", "1.2.3.4, 6.6.6.6:80", &["9.9.9.9"]), "9.9.9.9");
    }

    #[test]
    fn a_network_of_proxies_is_trusted_whole_and_not_beyond() {
        assert_eq!(address("10.1.2.3", "1.2.3.4", &["10.0.0.0/8"]), "1.2.3.4");
        assert_eq!(address("11.1.2.3", "1.2.3.4", &["10.0.0.0/8"]), "11.1.2.3");
        assert_eq!(address("10.9.9.9", "1.2.3.4, 10.0.0.7", &["10.0.0.0/8"]), "1.2.3.4");
        assert_eq!(address("::ffff:10.1.2.3", "1.2.3.4", &["10.0.0.0/8"]), "1.2.3.4");
        assert_eq!(address("10.1.2.3", "1.2.3.4", &["::ffff:10.0.0.0/104"]), "1.2.3.4");
        assert_eq!(address("10.1.2.3", "1.2.3.4", &["::/0"]), "10.1.2.3");
        assert_eq!(address("fd00:1::5", "2001:db8::1", &["fd00::/8"]), "2001:db8::1");
        assert_eq!(address("fe00:1::5", "2001:db8::1", &["fd00::/8"]), "fe00:1::5");
        // Bits behind the prefix say nothing.
        assert_eq!(address("10.200.0.1", "1.2.3.4", &["10.1.2.3/8"]), "1.2.3.4");
    }

    #[test]
    fn what_names_no_proxy_is_refused_and_what_does_is_printed_as_given() {
        for bad in ["", "ingress", "10.0.0.0/33", "10.0.0/8", "10.0.0.1:80", "fd00::/129", "10.0.0.0/-1", "*"]
        {
            assert_eq!(bad.parse::<TrustedProxy>(), Err(NoProxy(bad.to_owned())));
        }
        for good in ["10.0.0.1", "10.0.0.0/8", "::1", "fd00::/8", "0.0.0.0/0"] {
            assert_eq!(good.parse::<TrustedProxy>().map(|proxy| proxy.to_string()).as_deref(), Ok(good));
        }
    }
}
