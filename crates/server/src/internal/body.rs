//! The two ways between the channel of an exchange and a body of HTTP/2.

use bytes::Bytes;
use domain::exchange::{ExchangeError, Item};
use futures_util::Stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::frames::{Decoder, encode};

/// What was to be sent ended without [`Item::End`]: the stream is reset, so that the other end sees a break.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the exchange was broken off")]
pub(super) struct BrokenOff;

/// The items of a channel as a body, behind those in `first`. With `let_go` the stream is reset.
pub(super) fn sending(
    first: Vec<Item>,
    items: mpsc::Receiver<Item>,
    let_go: CancellationToken,
) -> StreamBody<impl Stream<Item = Result<Frame<Bytes>, BrokenOff>> + Send> {
    enum Next {
        Items(std::vec::IntoIter<Item>),
        Channel,
        Over,
    }
    let state = (Next::Items(first.into_iter()), items, let_go);
    StreamBody::new(futures_util::stream::unfold(state, |(mut next, mut items, let_go)| async move {
        let item = loop {
            match &mut next {
                Next::Over => return None,
                Next::Channel => {
                    break tokio::select! {
                        biased;
                        () = let_go.cancelled() => None,
                        item = items.recv() => item,
                    };
                }
                Next::Items(first) => match first.next() {
                    Some(item) => break Some(item),
                    None => next = Next::Channel,
                },
            }
        };
        let Some(item) = item else { return Some((Err(BrokenOff), (Next::Over, items, let_go))) };
        if matches!(item, Item::End | Item::Failed(_)) {
            next = Next::Over;
        }
        Some((Ok(Frame::data(encode(&item))), (next, items, let_go)))
    }))
}

/// A body as items.
pub(super) struct Receiving {
    body: Incoming,
    decoder: Decoder,
}

impl Receiving {
    pub(super) fn new(body: Incoming) -> Self {
        Self { body, decoder: Decoder::default() }
    }

    /// The next item; `None` when the body ends or breaks.
    pub(super) async fn next(&mut self) -> Option<Item> {
        loop {
            match self.decoder.next() {
                Ok(Some(item)) => return Some(item),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(%error, "an exchange is broken off");
                    return None;
                }
            }
            let frame = match self.body.frame().await? {
                Ok(frame) => frame,
                Err(error) => {
                    tracing::debug!(%error, "an exchange broke");
                    return None;
                }
            };
            if let Some(bytes) = frame.data_ref() {
                self.decoder.push(bytes);
            }
        }
    }

    /// Hands every item on until the last one, or until nobody takes them. With `tell`, a break is told as an item.
    pub(super) async fn forward(mut self, to: mpsc::Sender<Item>, tell: Tell) {
        loop {
            let item = tokio::select! {
                biased;
                () = to.closed() => return,
                item = self.next() => item,
            };
            let item = match (item, tell) {
                (Some(item), _) => item,
                (None, Tell::Break) => Item::Failed(ExchangeError::broken_off()),
                (None, Tell::Nothing) => return,
            };
            let is_last = matches!(item, Item::End | Item::Failed(_));
            if to.send(item).await.is_err() || is_last {
                return;
            }
        }
    }
}

/// Whether a receiver is told of a break by an item, or only by the end of its channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tell {
    Break,
    Nothing,
}
