//! Whose credentials are looked at, and how many at a time: before a request is anybody's, all that is known of it is its address.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;

use domain::limits;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Queues that the addresses are spread over. Two that meet in one wait for each other, which nobody can bring about: the spread is secret.
const QUEUES: usize = 256;

/// The queues before authentication.
#[derive(Clone)]
pub(crate) struct Turns {
    queues: Arc<[Semaphore]>,
    spread: RandomState,
}

impl Turns {
    pub(crate) fn new() -> Self {
        let queue = || Semaphore::new(limits::AUTHENTICATIONS_PER_ADDRESS);
        Self { queues: std::iter::repeat_with(queue).take(QUEUES).collect(), spread: RandomState::new() }
    }

    /// Waits for a turn. `None` only if the queue were closed, which it never is.
    pub(crate) async fn wait(&self, address: Option<IpAddr>) -> Option<SemaphorePermit<'_>> {
        let queue = self.spread.hash_one(address.map(network)) as usize % QUEUES;
        self.queues[queue].acquire().await.ok()
    }
}

/// What one client has at least: an address, or with IPv6 a whole /64.
fn network(address: IpAddr) -> u128 {
    match address.to_canonical() {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits() >> 64 << 64,
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn one_address_has_so_many_turns_and_another_its_own() {
        let turns = Turns::new();
        let of = |text: &str| text.parse::<IpAddr>().ok();
        let mut taken = Vec::new();
        for number in 0..limits::AUTHENTICATIONS_PER_ADDRESS {
            // All of one network.
            taken.push(turns.wait(of(&format!("2001:db8::{number:x}"))).await);
        }
        assert!(turns.wait(of("2001:db8::ffff")).now_or_never().is_none(), "it waits");
        let full = |text: &str| {
            let queue = turns.spread.hash_one(of(text).map(network)) as usize % QUEUES;
            turns.queues[queue].available_permits() == 0
        };
        let others = (0..64).map(|number| format!("192.0.2.{number}"));
        assert!(others.filter(|other| full(other)).count() < 32, "others have queues of their own");
        taken.pop();
        assert!(turns.wait(of("2001:db8::ffff")).await.is_some());
    }
}
