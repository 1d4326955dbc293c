//! Work that takes a core for long: regular expressions over a tenant's bytes, megabyte by megabyte.
//!
//! # Design notes
//!
//! * *Never on a thread that others wait for.* The runtime's other tasks are given to another thread first.
//! * *On half of the cores at most*, so that what is not heavy (a call of another tenant, a health check, a lease) finds one.
//! * *Tenants take turns.* One of a tenant is in the queue for a core at a time, however much it asks for.
//! * The callers cut their work into pieces and ask between them whether to go on. A piece is a line at most: with the worst of patterns that
//!   is less than a second, with others less than a millisecond.
//! * The queue is the process's, as the cores are: whatever asks from within it stands in the same one.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use domain::TenantId;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;

/// Bytes of one piece of work.
pub const PIECE_BYTES: usize = 16 * 1024;

/// Does a tenant's work when its turn comes.
pub async fn heavy<T>(tenant: TenantId, work: impl FnOnce() -> T) -> T {
    static TURNS: LazyLock<Turns> = LazyLock::new(|| {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Turns::new((cores / 2).max(1))
    });
    TURNS.take(tenant, work).await
}

struct Turns {
    cores: Semaphore,
    /// Each with the number of those who stand in it.
    tenants: Mutex<HashMap<TenantId, (Arc<Semaphore>, usize)>>,
}

impl Turns {
    fn new(cores: usize) -> Self {
        Self { cores: Semaphore::new(cores), tenants: Mutex::default() }
    }

    async fn take<T>(&self, tenant: TenantId, work: impl FnOnce() -> T) -> T {
        let queue = self.queue(tenant);
        // Neither is ever closed.
        let _first = queue.semaphore.acquire().await;
        let _core = self.cores.acquire().await;
        match Handle::current().runtime_flavor() {
            RuntimeFlavor::MultiThread => tokio::task::block_in_place(work),
            // There is no other thread to give anything to.
            _ => work(),
        }
    }

    fn queue(&self, tenant: TenantId) -> Queue<'_> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        let (semaphore, count) = tenants.entry(tenant).or_insert_with(|| (Arc::new(Semaphore::new(1)), 0));
        *count += 1;
        Queue { turns: self, tenant, semaphore: Arc::clone(semaphore) }
    }
}

/// A tenant's queue, which is forgotten with the last who stands in it.
struct Queue<'a> {
    turns: &'a Turns,
    tenant: TenantId,
    semaphore: Arc<Semaphore>,
}

impl Drop for Queue<'_> {
    fn drop(&mut self) {
        let mut tenants = self.turns.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, count)) = tenants.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                tenants.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::mpsc::channel;
    use std::task::Poll;
    use std::time::Duration;

    use super::*;

    const SOON: Duration = Duration::from_secs(60);

    fn tenant(number: u128) -> TenantId {
        TenantId::from_uuid(uuid::Uuid::from_u128(number))
    }

    /// The only thread of the runtime works for somebody, and what that waits for is done all the same.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn others_go_on_beside_heavy_work() {
        let (done, is_done) = channel();
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let heavy = tokio::spawn(super::heavy(tenant(1), move || {
            let _ = begun.send(());
            is_done.recv_timeout(SOON)
        }));
        let light = tokio::spawn(async move {
            let _ = has_begun.await;
            done.send(())
        });
        assert_eq!(heavy.await.expect("joins"), Ok(()));
        light.await.expect("joins").expect("is heard");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_tenant_with_much_work_lets_another_go_first() {
        let turns = Arc::new(Turns::new(1));
        let (go, may_go) = channel();
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let first = tokio::spawn({
            let turns = Arc::clone(&turns);
            async move {
                let work = move || {
                    let _ = begun.send(());
                    may_go.recv_timeout(SOON)
                };
                turns.take(tenant(1), work).await
            }
        });
        has_begun.await.expect("begins");
        let order = Mutex::new(Vec::new());
        let note = |who| order.lock().expect("nobody panics with it").push(who);
        let mut second = std::pin::pin!(turns.take(tenant(1), || note("the same")));
        let mut other = std::pin::pin!(turns.take(tenant(2), || note("another")));
        poll_fn(|cx| {
            assert!(second.as_mut().poll(cx).is_pending() && other.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        go.send(()).expect("is heard");
        tokio::join!(second, other);
        first.await.expect("joins").expect("is told");
        assert_eq!(*order.lock().expect("nobody panics with it"), ["another", "the same"]);
        assert!(turns.tenants.lock().expect("nobody panics with it").is_empty());
    }
}
