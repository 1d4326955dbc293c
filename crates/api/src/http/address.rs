//! Where a request comes from, for the audit trail.

use std::net::IpAddr;

use axum::http::HeaderMap;

/// The client's address: the peer's, or what a trusted proxy says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClientAddress(pub(crate) IpAddr);

/// The address of the peer at the other end of the connection, put there by the server loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerAddress(pub IpAddr);

/// The last address of `X-Forwarded-For` that no trusted proxy of ours wrote.
pub(crate) fn client_address(peer: IpAddr, headers: &HeaderMap, trusted: &[IpAddr]) -> ClientAddress {
    // A listener for both families gives IPv4 peers as mapped IPv6 addresses.
    let mut address = peer.to_canonical();
    let forwarded: Vec<&str> = headers
        .get_all("x-forwarded-for")
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .collect();
    for hop in forwarded.iter().rev() {
        if !trusted.iter().any(|proxy| proxy.to_canonical() == address) {
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
        let trusted: Vec<IpAddr> = trusted.iter().map(|ip| ip.parse().expect("an address")).collect();
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
}
