//! The bounded way from a follower to one reader.
//!
//! # Design notes
//!
//! The follower runs in a task of its own and hands frames over within a budget of bytes; it waits when the budget is used up. While it
//! waits it holds no events: what happens meanwhile is read from the table afterwards. The wait itself ends when the reader made no
//! progress for too long. A frame larger than the whole budget takes all of it, so that one event is never cut in two. A reader who may not
//! read any more gets nothing of what waits for it.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::config::StreamConfig;

/// Where a follower puts frames.
pub(crate) struct Outlet {
    /// `None` is the end.
    frames: mpsc::UnboundedSender<Option<Frame>>,
    room: Arc<Semaphore>,
    taken: Arc<AtomicU64>,
    cut: CancellationToken,
    /// What is said in place of what waits.
    last_word: Arc<Mutex<Option<Bytes>>>,
    budget: usize,
    stall: Duration,
    last_sent: Instant,
}

struct Frame {
    bytes: Bytes,
    room: Option<OwnedSemaphorePermit>,
}

/// Why no more frames are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closed {
    /// The reader went away.
    Gone,
    /// The reader takes nothing.
    Stalled,
}

/// An outlet and the body of the response that it fills. `held` is dropped with the body: a reader that is no longer fed, but
/// keeps its connection, still counts.
pub(crate) fn outlet(config: &StreamConfig, held: impl Send + 'static) -> (Outlet, Body) {
    let (sender, receiver) = mpsc::unbounded_channel::<Option<Frame>>();
    let taken = Arc::new(AtomicU64::new(0));
    let (cut, last_word) = (CancellationToken::new(), Arc::new(Mutex::new(None)));
    let way = Way { receiver, taken: taken.clone(), cut: cut.clone(), last_word: last_word.clone(), held };
    let frames = stream::unfold(way, |mut way| async move {
        let bytes = way.next().await?;
        Some((Ok::<_, std::convert::Infallible>(bytes), way))
    });
    let outlet = Outlet {
        frames: sender,
        room: Arc::new(Semaphore::new(config.buffer_bytes)),
        taken,
        cut,
        last_word,
        budget: config.buffer_bytes,
        stall: config.stall,
        last_sent: Instant::now(),
    };
    (outlet, Body::from_stream(frames))
}

/// The reader's side.
struct Way<H> {
    receiver: mpsc::UnboundedReceiver<Option<Frame>>,
    taken: Arc<AtomicU64>,
    cut: CancellationToken,
    last_word: Arc<Mutex<Option<Bytes>>>,
    #[expect(dead_code, reason = "held as long as the body lives")]
    held: H,
}

impl<H> Way<H> {
    async fn next(&mut self) -> Option<Bytes> {
        tokio::select! {
            biased;
            () = self.cut.cancelled() => {
                self.receiver.close();
                while self.receiver.try_recv().is_ok() {}
                self.last_word.lock().unwrap_or_else(PoisonError::into_inner).take()
            }
            frame = self.receiver.recv() => {
                let Some(Frame { bytes, room }) = frame? else {
                    self.receiver.close();
                    return None;
                };
                self.taken.fetch_add(1, Ordering::Relaxed);
                drop(room);
                Some(bytes)
            }
        }
    }
}

impl Outlet {
    /// Hands a frame over, waiting for room.
    pub(crate) async fn send(&mut self, bytes: Bytes) -> Result<(), Closed> {
        let wanted = u32::try_from(bytes.len().min(self.budget)).unwrap_or(u32::MAX);
        let room = self.wait_for(wanted).await?;
        self.last_sent = Instant::now();
        self.frames.send(Some(Frame { bytes, room: Some(room) })).map_err(|_| Closed::Gone)
    }

    /// Hands over a last word, room or not.
    pub(crate) fn send_last(&mut self, bytes: Bytes) {
        let _ = self.frames.send(Some(Frame { bytes, room: None }));
    }

    /// Ends the stream behind all that waits for the reader, and waits until that is taken or nobody is there to take it.
    pub(crate) async fn finish(&self) {
        let _ = self.frames.send(None);
        self.closed().await;
    }

    /// Ends the stream at once, with this word in place of all that waits for the reader.
    pub(crate) fn cut(&self, last_word: Option<Bytes>) {
        *self.last_word.lock().unwrap_or_else(PoisonError::into_inner) = last_word;
        self.cut.cancel();
    }

    /// Waits until the reader has gone, or has seen the end.
    pub(crate) async fn closed(&self) {
        self.frames.closed().await;
    }

    /// When a frame was last handed over.
    pub(crate) fn last_sent(&self) -> Instant {
        self.last_sent
    }

    async fn wait_for(&self, bytes: u32) -> Result<OwnedSemaphorePermit, Closed> {
        let mut acquire = pin!(self.room.clone().acquire_many_owned(bytes));
        loop {
            let before = self.taken.load(Ordering::Relaxed);
            tokio::select! {
                biased;
                room = &mut acquire => return room.map_err(|_| Closed::Gone),
                () = self.frames.closed() => return Err(Closed::Gone),
                () = sleep(self.stall) => {
                    if self.taken.load(Ordering::Relaxed) == before {
                        return Err(Closed::Stalled);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    fn config() -> StreamConfig {
        StreamConfig { buffer_bytes: 10, stall: Duration::from_secs(30), ..StreamConfig::default() }
    }

    #[tokio::test]
    async fn a_stream_that_is_cut_keeps_what_waits_to_itself() {
        for word in [None, Some(Bytes::from_static(b"no more"))] {
            let (mut outlet, mut body) = outlet(&config(), ());
            outlet.send(Bytes::from_static(b"1234567890")).await.expect("room");
            outlet.cut(word.clone());
            let frame = body.frame().await.map(|frame| frame.expect("a frame").into_data().expect("bytes"));
            assert_eq!(frame, word);
            assert!(frame.is_none() || body.frame().await.is_none());
            outlet.closed().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_takes_nothing_is_noticed_and_one_that_is_slow_is_not() {
        let (mut outlet, mut body) = outlet(&config(), ());
        outlet.send(Bytes::from_static(b"1234567")).await.expect("room");
        let slow = tokio::spawn(async move {
            sleep(Duration::from_secs(29)).await;
            let first = body.frame().await.expect("a frame").expect("bytes");
            (first.into_data().expect("data"), body)
        });
        outlet.send(Bytes::from_static(b"89012")).await.expect("room after 29 s");
        let (first, _body) = slow.await.expect("joins");
        assert_eq!(first, "1234567");
        let before = Instant::now();
        assert_eq!(outlet.send(Bytes::from_static(b"too much")).await, Err(Closed::Stalled));
        assert_eq!(before.elapsed(), Duration::from_secs(30));
    }

    #[tokio::test]
    async fn a_frame_above_the_budget_goes_alone_and_whole() {
        let (mut outlet, mut body) = outlet(&config(), ());
        outlet.send(Bytes::from_static(b"more than ten bytes")).await.expect("all of the room");
        outlet.send_last(Bytes::from_static(b"end"));
        drop(outlet);
        let mut all = Vec::new();
        while let Some(frame) = body.frame().await {
            all.push(frame.expect("bytes").into_data().expect("data"));
        }
        assert_eq!(all, ["more than ten bytes", "end"]);
    }

    #[tokio::test]
    async fn a_reader_that_goes_away_ends_the_wait() {
        let (mut outlet, body) = outlet(&config(), ());
        outlet.send(Bytes::from_static(b"1234567890")).await.expect("room");
        drop(body);
        outlet.closed().await;
        assert_eq!(outlet.send(Bytes::from_static(b"x")).await, Err(Closed::Gone));
    }
}
