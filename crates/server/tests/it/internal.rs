//! The way of bytes between two processes, with an echo in the place of a worker.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use api::Duplex;
use bytes::Bytes;
use domain::exchange::{ExchangeError, Item, Opening, Operation, Piece};
use domain::limits::{EXCHANGE_BACKLOG, EXCHANGE_DATA_BYTES};
use domain::{Code, SessionId, TenantId};
use futures_util::future::BoxFuture;
use server::config::Secret;
use server::internal::{Client, Opens, serve};
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

const KEY: &str = "a key for the way between processes, long enough";

/// Sends back what it gets. A session with the number 0 is nobody's.
#[derive(Default)]
struct Echo {
    taken: Arc<AtomicUsize>,
    broken_off: Arc<Notify>,
    let_go: Arc<Notify>,
}

impl Opens for Echo {
    fn open(&self, opening: Opening) -> BoxFuture<'_, Result<Duplex, ExchangeError>> {
        let (taken, broken_off, let_go) = (self.taken.clone(), self.broken_off.clone(), self.let_go.clone());
        Box::pin(async move {
            if opening.session_id.uuid().is_nil() {
                return Err(ExchangeError::not_here().with("asked_for", opening.session_id.to_string()));
            }
            let (to, mut input) = mpsc::channel(EXCHANGE_BACKLOG);
            let (output, from) = mpsc::channel(EXCHANGE_BACKLOG);
            tokio::spawn(async move {
                loop {
                    let item = input.recv().await;
                    taken.fetch_add(1, Ordering::SeqCst);
                    let echo = match Item::step(item) {
                        Ok(Some(Piece::Data(bytes))) => Item::Data(bytes),
                        Ok(Some(Piece::Message(message))) if message == "fail" => {
                            Item::Failed(ExchangeError::new(Code::NoSpace, "full").with("free", 7))
                        }
                        Ok(Some(Piece::Message(message))) => Item::Message(message),
                        Ok(None) => Item::End,
                        Err(_) => return broken_off.notify_one(),
                    };
                    if output.send(echo).await.is_err() {
                        return let_go.notify_one();
                    }
                }
            });
            Ok(Duplex { to, from })
        })
    }
}

struct Between {
    address: String,
    client: Client,
    taken: Arc<AtomicUsize>,
    broken_off: Arc<Notify>,
    let_go: Arc<Notify>,
    stop: CancellationToken,
}

async fn between() -> Between {
    let echo = Echo::default();
    let (taken, broken_off, let_go) = (echo.taken.clone(), echo.broken_off.clone(), echo.let_go.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let stop = CancellationToken::new();
    tokio::spawn(serve(listener, Secret::new(KEY), None, Arc::new(echo), stop.clone()));
    Between { address, client: Client::new(Secret::new(KEY), None), taken, broken_off, let_go, stop }
}

fn opening(number: u128) -> Opening {
    Opening {
        tenant_id: TenantId::from_uuid(Uuid::from_u128(1)),
        session_id: SessionId::from_uuid(Uuid::from_u128(number)),
        operation: Operation::Serving,
    }
}

impl Between {
    async fn open(&self) -> Duplex {
        self.client.open(&self.address, &opening(5)).await.expect("opens")
    }
}

/// Two runtimes' worth of work on one: the tests use several threads so that no order is assumed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_and_messages_go_both_ways_in_order_to_a_good_end() {
    let between = between().await;
    let Duplex { to, mut from } = between.open().await;
    const PIECES: usize = 512;
    let sending = tokio::spawn(async move {
        for n in 0..PIECES {
            to.send(Item::Data(Bytes::from(vec![n as u8; EXCHANGE_DATA_BYTES]))).await.expect("taken");
        }
        to.send(Item::message(&"résumé")).await.expect("taken");
        to.send(Item::End).await.expect("taken");
    });
    for n in 0..PIECES {
        let piece = Item::step(from.recv().await).expect("no error").expect("not the end");
        assert_eq!(piece, Piece::Data(Bytes::from(vec![n as u8; EXCHANGE_DATA_BYTES])));
    }
    let piece = Item::step(from.recv().await).expect("no error").expect("not the end");
    assert_eq!(piece.into_message::<String>().expect("text"), "résumé");
    assert_eq!(Item::step(from.recv().await), Ok(None));
    sending.await.expect("sent");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_read_holds_up_the_sender_and_nobody_else() {
    let between = between().await;
    let slow = between.open().await;
    let (mut sent, piece) = (0_usize, Bytes::from(vec![1; EXCHANGE_DATA_BYTES]));
    // Nothing is read: the sender stops once every buffer between the two is full.
    while tokio::time::timeout(std::time::Duration::from_secs(2), slow.to.send(Item::Data(piece.clone())))
        .await
        .is_ok()
    {
        sent += 1;
        assert!(sent < 1_000, "the sender is never held up");
    }
    let quick = between.open().await;
    let mut from = quick.from;
    for n in 0..64 {
        quick.to.send(Item::message(&n)).await.expect("taken");
        let echoed = Item::step(from.recv().await).expect("no error").expect("not the end");
        assert_eq!(echoed.into_message::<u32>().expect("a number"), n);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_keep_their_code_and_facts() {
    let between = between().await;
    let refused = between.client.open(&between.address, &opening(0)).await.expect_err("not here");
    assert!(refused.has_not_begun());
    assert_eq!(refused.details["asked_for"], opening(0).session_id.to_string());

    let Duplex { to, mut from } = between.open().await;
    to.send(Item::message(&"fail")).await.expect("taken");
    let failed = Item::step(from.recv().await).expect_err("fails");
    assert_eq!((failed.code, failed.details["free"].as_u64()), (Code::NoSpace, Some(7)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_break_is_never_taken_for_an_end() {
    let between = between().await;
    // The one who asks goes away without an end.
    let Duplex { to, from } = between.open().await;
    to.send(Item::Data(Bytes::from_static(b"half"))).await.expect("taken");
    drop(to);
    between.broken_off.notified().await;
    drop(from);

    // The one who asks does not listen any more: the operation is told.
    let Duplex { to, from } = between.open().await;
    drop(from);
    let telling = async {
        while to.send(Item::message(&"anybody there?")).await.is_ok() {
            tokio::task::yield_now().await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = telling => {}
        () = between.let_go.notified() => {}
        () = between.broken_off.notified() => {}
    }

    // The worker's process goes away.
    let Duplex { to, mut from } = between.open().await;
    to.send(Item::message(&"hello")).await.expect("taken");
    assert!(Item::step(from.recv().await).is_ok());
    between.stop.cancel();
    let broken = Item::step(from.recv().await).expect_err("no good end");
    assert_eq!(broken.code, Code::WorkerUnavailable);
    assert!(!broken.has_not_begun());
    let gone = between.client.open(&between.address, &opening(5)).await.expect_err("nobody listens");
    assert_eq!(gone.code, Code::WorkerUnavailable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_key_nothing_is_opened() {
    let between = between().await;
    let long = format!("{KEY} and more");
    for wrong in ["", "a", "another key of just the same length, as it is", &KEY[1..], &long] {
        let stranger = Client::new(Secret::new(wrong), None);
        let refused = stranger.open(&between.address, &opening(5)).await.expect_err("refused");
        assert_eq!(refused.code, Code::WorkerUnavailable, "{wrong:?}");
    }
    assert_eq!(between.taken.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_shows_no_key_keeps_no_connection() {
    let between = between().await;
    let mut silent = tokio::net::TcpStream::connect(&between.address).await.expect("connects");
    let mut known = between.open().await;
    let mut nothing = [0; 64];
    let cut = async {
        while tokio::io::AsyncReadExt::read(&mut silent, &mut nothing).await.is_ok_and(|read| read > 0) {}
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), cut).await.expect("it is cut");
    // One that was opened with the key in time stays.
    known.to.send(Item::message(&"still here")).await.expect("taken");
    let echo = Item::step(known.from.recv().await).expect("no error").expect("not the end");
    assert_eq!(echo, Piece::Message("still here".into()));
}
